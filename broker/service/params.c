#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/disk/record.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"
#include "proto/wire/unpack.h"

/* Requests that are looked at in one go after a put: each takes about a microsecond. */
#define WAKE_SLICE 256u

/* A params_get that waits. */
struct poll {
    struct wait wait;
    struct poll *next, **prev;
    Replay__ParamsGet *ask;
};

struct slot *params_find(const struct params *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (strcmp(self->slots[i].name, name) == 0)
            return &self->slots[i];
    return NULL;
}

uint64_t params_version(const struct params *self, const char *name)
{
    const struct slot *slot = params_find(self, name);
    return slot ? slot->version : 0;
}

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

static rp_status name_check(const char *name, const char *what, rp_error *err)
{
    size_t size = strlen(name);
    if (size == 0 || size > PARAMS_NAME_MOST || !utf8_valid(name, size))
        return err_set(err, RP_INVALID_ARGUMENT, "a %s needs a name of 1 to %u bytes of UTF-8", what, PARAMS_NAME_MOST);
    return RP_OK;
}

static struct slot *slot_get(struct params *self, const char *name)
{
    struct slot *slot = params_find(self, name);
    if (slot || self->n_slots == PARAMS_SLOTS_MOST)
        return slot;
    if (self->n_slots == self->slots_capacity) {
        uint32_t capacity = self->slots_capacity ? self->slots_capacity * 2 : 8;
        /* A zmq_msg_t may not be moved by realloc: move them one by one. */
        struct slot *slots = calloc(capacity, sizeof *slots);
        if (!slots)
            return NULL;
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
    slot = &self->slots[self->n_slots];
    *slot = (struct slot){.name = strdup(name)};
    if (!slot->name)
        return NULL;
    zmq_msg_init(&slot->value);
    self->n_slots++;
    return slot;
}

bool params_restore_slot(struct params *self, const char *name, uint64_t version, int64_t put_ns, const void *value,
                         size_t size)
{
    struct slot *slot = slot_get(self, name);
    zmq_msg_t message;
    if (!slot || zmq_msg_init_size(&message, size) != 0)
        return false;
    if (size)
        memcpy(zmq_msg_data(&message), value, size);
    self->bytes += size - zmq_msg_size(&slot->value);
    zmq_msg_move(&slot->value, &message);
    zmq_msg_close(&message);
    slot->version = version;
    slot->put_ns = put_ns;
    return true;
}

static struct counter *counter_find(const struct params *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_counters; i++)
        if (strcmp(self->counters[i].name, name) == 0)
            return &self->counters[i];
    return NULL;
}

static struct counter *counter_add(struct params *self, const char *name)
{
    if (self->n_counters == self->counters_capacity) {
        uint32_t capacity = self->counters_capacity ? self->counters_capacity * 2 : 16;
        struct counter *larger =
            capacity <= PARAMS_SLOTS_MOST ? realloc(self->counters, capacity * sizeof *larger) : NULL;
        if (!larger)
            return NULL;
        self->counters = larger;
        self->counters_capacity = capacity;
    }
    struct counter *counter = &self->counters[self->n_counters];
    *counter = (struct counter){strdup(name), 0};
    if (!counter->name)
        return NULL;
    self->n_counters++;
    return counter;
}

bool params_restore_counter(struct params *self, const char *name, int64_t value)
{
    struct counter *counter = counter_find(self, name);
    if (!counter)
        counter = counter_add(self, name);
    if (counter)
        counter->value = value;
    return counter != NULL;
}

static void slot_info(const struct broker *broker, struct slot *slot, Replay__SlotInfo *out)
{
    replay__slot_info__init(out);
    out->name = slot->name;
    out->version = slot->version;
    out->bytes = zmq_msg_size(&slot->value);
    out->age_ns = (uint64_t)(broker->loop.now_ns - slot->put_ns);
}

/* Sends the slots that are newer than what the asker has, or that there is no memory. False: there is none. */
static bool poll_answer(struct broker *broker, const struct envelope *to, uint64_t id, const Replay__ParamsGet *ask,
                        bool even_empty)
{
    Replay__SlotInfo *infos = calloc(ask->n_name + 1, sizeof *infos);
    Replay__SlotInfo **list = calloc(ask->n_name + 1, sizeof(*list));
    zmq_msg_t *payload = calloc(ask->n_name + 1, sizeof *payload);
    uint32_t n = 0;
    if (!infos || !list || !payload) {
        free(infos);
        free(list);
        free(payload);
        request_send(broker, to, id, RP_NO_MEMORY, "no memory for the parameters", 0, NULL, NULL, 0);
        return true;
    }
    for (size_t i = 0; i < ask->n_name; i++) {
        struct slot *slot = params_find(&broker->params, ask->name[i]);
        uint64_t have = i < ask->n_have ? ask->have[i] : 0;
        if (!slot || slot->version == 0 || slot->version == have)
            continue;
        slot_info(broker, slot, &infos[n]);
        list[n] = &infos[n];
        zmq_msg_init(&payload[n]);
        zmq_msg_copy(&payload[n], &slot->value);
        n++;
    }
    if (n || even_empty) {
        Replay__ParamsReply reply = REPLAY__PARAMS_REPLY__INIT;
        reply.n_slots = n;
        reply.slots = list;
        if (ask->head) {
            for (uint32_t i = 0; i < n; i++)
                zmq_msg_close(&payload[i]);
            request_send(broker, to, id, RP_OK, "", 30, &reply.base, NULL, 0);
        } else {
            request_send(broker, to, id, RP_OK, "", 30, &reply.base, payload, n);
        }
    }
    free(infos);
    free(list);
    free(payload);
    return n > 0;
}

static void poll_end(struct broker *broker, struct poll *self)
{
    if (broker->params.wake_next == self)
        broker->params.wake_next = self->next;
    wait_end(broker, &self->wait);
    *self->prev = self->next;
    if (self->next)
        self->next->prev = self->prev;
    unpack_free(&self->ask->base);
    free(self);
}

static void poll_explain(const struct broker *broker, const struct wait *wait, struct wait_text *out)
{
    const struct poll *self = (const struct poll *)wait;
    uint64_t have = self->ask->n_have ? self->ask->have[0] : 0;
    out->count = self->ask->n_name;
    snprintf(out->text, sizeof out->text, "parameters '%.64s'%s: needs another version than %llu, there is %llu",
             self->ask->name[0], self->ask->n_name > 1 ? " and others" : "", (unsigned long long)have,
             (unsigned long long)params_version(&broker->params, self->ask->name[0]));
}

static void poll_cancel(struct broker *broker, struct wait *wait, rp_status status, const char *text)
{
    request_send(broker, &wait->to, wait->id, status, text, 0, NULL, NULL, 0);
    poll_end(broker, (struct poll *)wait);
}

static void poll_expire(struct broker *broker, struct wait *wait)
{
    struct wait_text why = {0};
    poll_explain(broker, wait, &why);
    poll_cancel(broker, wait, RP_DEADLINE_EXCEEDED, why.text);
}

static const struct wait_ops poll_ops = {"params", poll_expire, poll_cancel, poll_explain};

/* Whether a slot has another version than the asker. */
static bool poll_is_ready(const struct params *params, const Replay__ParamsGet *ask)
{
    for (size_t i = 0; i < ask->n_name; i++) {
        uint64_t version = params_version(params, ask->name[i]);
        if (version && version != (i < ask->n_have ? ask->have[i] : 0))
            return true;
    }
    return false;
}

/* A slice of the requests that wait. Those that come meanwhile were compared with the newest versions already. */
static bool wake_slice(struct broker *broker)
{
    struct params *params = &broker->params;
    for (uint32_t i = 0; i < WAKE_SLICE; i++) {
        if (!params->wake_next && params->wake_again) {
            params->wake_again = false;
            params->wake_next = params->polls;
        }
        struct poll *poll = params->wake_next;
        if (!poll)
            return false;
        params->wake_next = poll->next;
        if (poll_is_ready(params, poll->ask) && poll_answer(broker, &poll->wait.to, poll->wait.id, poll->ask, false))
            poll_end(broker, poll);
    }
    return params->wake_next || params->wake_again;
}

static bool wake_step(struct chore *chore)
{
    struct params *params = (struct params *)(void *)((char *)chore - offsetof(struct params, waking));
    struct broker *broker = (struct broker *)(void *)((char *)params - offsetof(struct broker, params));
    params->is_waking = wake_slice(broker);
    return params->is_waking;
}

/* After a put: a few are answered at once, many in slices, so that samplers and writers do not wait for all of them. */
static void wake_polls(struct broker *broker)
{
    struct params *params = &broker->params;
    params->wake_again = true;
    if (params->is_waking || !wake_slice(broker))
        return;
    params->is_waking = true;
    params->waking.step = wake_step;
    chores_add(&broker->loop.chores, &params->waking);
}

rp_status req_params_put(struct broker *broker, struct request *request, rp_error *err)
{
    const Replay__ParamsPut *ask = (const Replay__ParamsPut *)request->body;
    RP_TRY(name_check(ask->name, "parameter slot", err));
    if (request->n_payload != 1)
        return err_set(err, RP_INVALID_ARGUMENT, "parameters come as one frame after the header, not %u",
                       request->n_payload);
    struct slot *slot = slot_get(&broker->params, ask->name);
    if (!slot && broker->params.n_slots < PARAMS_SLOTS_MOST)
        return err_set(err, RP_NO_MEMORY, "no memory for a further parameter slot");
    if (!slot)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "no room for a further parameter slot: there are %u",
                       broker->params.n_slots);
    size_t size = zmq_msg_size(&request->payload[0]), old = zmq_msg_size(&slot->value);
    uint64_t total = broker->params.bytes - old + size;
    if (total > (uint64_t)broker->config->memory_limit / 4)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "parameters may take a quarter of memory_limit; with these %zu bytes there would be %" PRIu64,
                       size, total);
    if (broker->loop.effects && size > (size_t)RECORD_MOST - (64u << 10))
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "parameters of %zu bytes are too large for the journal: at most 1 GiB", size);
    broker->params.bytes = total;
    /* A small message may be a view into a shared receive buffer, which it would pin: copy those. */
    zmq_msg_close(&slot->value);
    if (size >= STORE_KEEP_BYTES || zmq_msg_init_size(&slot->value, size) != 0) {
        zmq_msg_init(&slot->value);
        zmq_msg_move(&slot->value, &request->payload[0]);
    } else {
        memcpy(zmq_msg_data(&slot->value), zmq_msg_data(&request->payload[0]), size);
    }
    slot->version++;
    slot->put_ns = broker->loop.now_ns;
    Replay__SlotInfo info, *list = &info;
    slot_info(broker, slot, &info);
    Replay__ParamsReply reply = REPLAY__PARAMS_REPLY__INIT;
    reply.n_slots = 1;
    reply.slots = &list;
    /* What was done and that it was done are in one record, or a retry would do it twice. A large value ends its record. */
    if (broker->loop.effects)
        broker->loop.effects->begin(broker->loop.effects);
    request_reply(broker, request, RP_OK, "", 30, &reply.base, NULL, 0);
    EFFECT(&broker->loop, slot, slot);
    broker_announce(broker, "params %s %llu", slot->name, (unsigned long long)slot->version);
    wake_polls(broker);
    return RP_OK;
}

rp_status req_params_get(struct broker *broker, struct request *request, rp_error *err)
{
    Replay__ParamsGet *ask = (Replay__ParamsGet *)request->body;
    if (ask->n_name == 0 || ask->n_name > 256)
        return err_set(err, RP_INVALID_ARGUMENT, "ask for 1 to 256 parameter slots, not %zu", ask->n_name);
    if (ask->n_have > ask->n_name)
        return err_set(err, RP_INVALID_ARGUMENT, "%zu versions for %zu names", ask->n_have, ask->n_name);
    bool polls = ask->has_timeout_ms_case == REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS && ask->timeout_ms == 0;
    request->answered = poll_answer(broker, &request->from, request->head.id, ask, polls || ask->head);
    if (request->answered || polls || ask->head) {
        request->answered = true;
        return RP_OK;
    }
    struct poll *poll = calloc(1, sizeof *poll);
    bool timed = ask->has_timeout_ms_case == REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
    rp_status status = poll ? wait_begin(broker, &poll->wait, &poll_ops, request, timed, ask->timeout_ms, err)
                            : err_set(err, RP_NO_MEMORY, "no memory to wait for parameters");
    if (status != RP_OK) {
        free(poll);
        return status;
    }
    poll->ask = ask;
    request->body = NULL; /* taken */
    poll->next = broker->params.polls;
    poll->prev = &broker->params.polls;
    if (poll->next)
        poll->next->prev = &poll->next;
    broker->params.polls = poll;
    request->answered = true;
    return RP_OK;
}

rp_status req_counter(struct broker *broker, struct request *request, rp_error *err)
{
    const Replay__Counter *ask = (const Replay__Counter *)request->body;
    struct params *params = &broker->params;
    RP_TRY(name_check(ask->name, "counter", err));
    struct counter *counter = counter_find(params, ask->name);
    if (!counter && ask->add != 0) {
        counter = counter_add(params, ask->name);
        if (!counter && params->n_counters < PARAMS_SLOTS_MOST)
            return err_set(err, RP_NO_MEMORY, "no memory for a further counter");
        if (!counter)
            return err_set(err, RP_RESOURCE_EXHAUSTED, "no room for a further counter: there are %u",
                           params->n_counters);
    }
    if (counter && __builtin_add_overflow(counter->value, ask->add, &counter->value))
        counter->value = ask->add > 0 ? INT64_MAX : INT64_MIN;
    if (counter && ask->add != 0)
        EFFECT(&broker->loop, counter, counter);
    Replay__CounterReply reply = REPLAY__COUNTER_REPLY__INIT;
    reply.value = counter ? counter->value : 0;
    request_reply(broker, request, RP_OK, "", 31, &reply.base, NULL, 0);
    return RP_OK;
}
