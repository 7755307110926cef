#include "broker/store/params.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

/* A smaller value is copied: its message may be a view into a receive buffer that it shares with others, and would pin. The
 * store has such a bound of its own: the two need not agree. */
#define KEEP_BYTES 32768u

void params_fini(struct params *self)
{
    for (uint32_t i = 0; i < self->n_slots; i++) {
        free(self->slots[i].name);
        zmq_msg_close(&self->slots[i].value);
    }
    for (uint32_t i = 0; i < self->n_counters; i++)
        free(self->counters[i].name);
    free(self->slots);
    free(self->counters);
    *self = (struct params){0};
}

/* ---- slots ---- */

struct param_slot *params_find(const struct params *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (strcmp(self->slots[i].name, name) == 0)
            return &self->slots[i];
    return NULL;
}

uint64_t params_version(const struct params *self, const char *name)
{
    const struct param_slot *slot = params_find(self, name);
    return slot ? slot->version : 0;
}

/* A zmq_msg_t may not be moved by realloc: the messages are moved one by one. */
static void slots_grow(struct params *self)
{
    uint32_t capacity = self->slots_capacity ? self->slots_capacity * 2 : 8;
    struct param_slot *slots = need_alloc(capacity * sizeof *slots);
    for (uint32_t i = 0; i < self->n_slots; i++) {
        slots[i] = self->slots[i];
        zmq_msg_init(&slots[i].value);
        zmq_msg_move(&slots[i].value, &self->slots[i].value);
        zmq_msg_close(&self->slots[i].value);
    }
    free(self->slots);
    self->slots = slots;
    self->slots_capacity = capacity;
}

struct param_slot *params_make_slot(struct params *self, const char *name)
{
    struct param_slot *slot = params_find(self, name);
    if (slot || self->n_slots == PARAMS_SLOTS_MOST)
        return slot;
    if (self->n_slots == self->slots_capacity)
        slots_grow(self);
    slot = &self->slots[self->n_slots++];
    *slot = (struct param_slot){.name = need_text(name)};
    zmq_msg_init(&slot->value);
    return slot;
}

void params_put(struct params *self, struct param_slot *slot, zmq_msg_t *value, uint64_t version, int64_t now_ns)
{
    size_t size = zmq_msg_size(value);
    self->bytes += size - zmq_msg_size(&slot->value);
    zmq_msg_close(&slot->value);
    if (size >= KEEP_BYTES || zmq_msg_init_size(&slot->value, size) != 0) {
        zmq_msg_init(&slot->value);
        zmq_msg_move(&slot->value, value);
    } else {
        memcpy(zmq_msg_data(&slot->value), zmq_msg_data(value), size);
    }
    slot->version = version;
    slot->put_ns = now_ns;
}

bool params_restore_slot(struct params *self, const char *name, uint64_t version, int64_t put_ns, const void *value,
                         size_t size)
{
    struct param_slot *slot = params_make_slot(self, name);
    zmq_msg_t message;
    if (!slot || zmq_msg_init_size(&message, size) != 0)
        return false;
    if (size)
        memcpy(zmq_msg_data(&message), value, size);
    params_put(self, slot, &message, version, put_ns);
    zmq_msg_close(&message);
    return true;
}

/* ---- counters ---- */

struct param_counter *params_find_counter(const struct params *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_counters; i++)
        if (strcmp(self->counters[i].name, name) == 0)
            return &self->counters[i];
    return NULL;
}

struct param_counter *params_add_counter(struct params *self, const char *name)
{
    if (self->n_counters == PARAMS_SLOTS_MOST)
        return NULL;
    if (self->n_counters == self->counters_capacity) {
        self->counters_capacity = self->counters_capacity ? self->counters_capacity * 2 : 16;
        self->counters = need_resize(self->counters, self->counters_capacity, sizeof *self->counters);
    }
    struct param_counter *counter = &self->counters[self->n_counters++];
    *counter = (struct param_counter){need_text(name), 0};
    return counter;
}

bool params_restore_counter(struct params *self, const char *name, int64_t value)
{
    struct param_counter *counter = params_find_counter(self, name);
    if (!counter)
        counter = params_add_counter(self, name);
    if (counter)
        counter->value = value;
    return counter != NULL;
}
