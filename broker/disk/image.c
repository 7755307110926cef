/* What each type of entry does to the state. */
#include "broker/disk/image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/disk/image_impl.h"
#include "proto/base/error.h"

#define MOST_SLOTS ((1u << 30) + (1u << 28))

bool image_grow(void **array, uint32_t *capacity, uint32_t n, size_t size)
{
    if (n < *capacity)
        return true;
    uint32_t larger = *capacity ? *capacity * 2 : 8;
    void *memory = larger > n ? realloc(*array, larger * size) : NULL;
    if (!memory)
        return false;
    *array = memory;
    *capacity = larger;
    return true;
}

int64_t image_add(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? INT64_MAX : INT64_MIN;
    return sum;
}

int64_t image_time(const struct image *self, int64_t time_ns)
{
    return image_add(time_ns, self->impl->adjust);
}

uint64_t image_size(const struct image *self)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        size += self->tables[i].size;
    return size;
}

void image_init(struct image *self)
{
    *self = (struct image){.most_slots = MOST_SLOTS, .next_ordinal = 1, .whole = true};
    self->impl = calloc(1, sizeof *self->impl);
}

static void params_clear(struct image *self)
{
    for (uint32_t i = 0; i < self->n_slots; i++) {
        free(self->slots[i].name);
        free(self->slots[i].value);
    }
    for (uint32_t i = 0; i < self->n_counters; i++)
        free(self->counters[i].name);
    self->n_slots = self->n_counters = 0;
}

/* Clears what every checkpoint holds completely. */
static void image_clear_small(struct image *self)
{
    image_sessions_clear(self);
    image_requests_clear(self);
    params_clear(self);
    for (uint32_t i = 0; i < self->n_tables; i++)
        for (uint32_t k = 0; k < 2; k++) {
            free(self->tables[i].selector[k]);
            self->tables[i].selector[k] = NULL;
            self->tables[i].selector_bytes[k] = 0;
        }
}

void image_clear(struct image *self)
{
    struct image_impl *impl = self->impl;
    if (!impl)
        return;
    image_clear_small(self);
    for (uint32_t i = 0; i < self->n_tables; i++)
        image_table_fini(&self->tables[i]);
    for (uint32_t i = 0; i < impl->n_layouts; i++)
        image_layout_release(&impl->layouts[i]);
    free(impl->layouts);
    free(impl->map);
    free(self->tables);
    free(self->sessions);
    free(self->slots);
    free(self->counters);
    free(self->replies);
    free(self->selections);
    struct image kept = {.notes = self->notes,
                         .n_notes = self->n_notes,
                         .most_slots = self->most_slots,
                         .next_ordinal = 1,
                         .whole = self->whole,
                         .impl = impl};
    *impl = (struct image_impl){.notes_capacity = impl->notes_capacity};
    *self = kept;
}

void image_fini(struct image *self)
{
    image_clear(self);
    free(self->notes);
    free(self->impl);
    *self = (struct image){0};
}

void image_note(struct image *self, bool damage, const char *format, ...)
{
    void *notes = self->notes;
    if (!image_grow(&notes, &self->impl->notes_capacity, self->n_notes, sizeof *self->notes))
        return;
    self->notes = notes;
    struct image_note *note = &self->notes[self->n_notes++];
    note->damage = damage;
    va_list args;
    va_start(args, format);
    vsnprintf(note->text, sizeof note->text, format, args);
    va_end(args);
}

/* Returns the wall time of a clock's zero. */
static int64_t clock_zero(int64_t wall_ns, int64_t clock_ns)
{
    return image_add(wall_ns, -clock_ns);
}

/* The times of further entries are in another process's clock. No time so far is after that process began. */
static void image_new_clock(struct image *self, int64_t wall_ns, int64_t clock_ns)
{
    struct image_impl *impl = self->impl;
    int64_t zero = clock_zero(impl->start.wall_ns, impl->start.clock_ns);
    int64_t moved = image_add(clock_zero(wall_ns, clock_ns), zero == INT64_MIN ? INT64_MAX : -zero);
    impl->adjust = image_add(impl->adjust, moved);
    int64_t now = image_add(clock_ns, impl->adjust);
    for (uint32_t i = 0; i < self->n_tables; i++)
        image_table_clamp(&self->tables[i], now);
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (self->slots[i].put_ns > now)
            self->slots[i].put_ns = now;
    for (uint32_t i = 0; i < self->n_selections; i++)
        for (uint32_t k = 0; self->selections[i] && k < self->selections[i]->n; k++)
            if (self->selections[i]->items[k].insert_ns > now)
                self->selections[i]->items[k].insert_ns = now;
}

static rp_status apply_start(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct image_impl *impl = self->impl;
    struct entry_start start;
    memcpy(&start, entry->body, sizeof start);
    if (impl->started && start.instance != impl->start.instance)
        image_new_clock(self, start.wall_ns, start.clock_ns);
    impl->start = start;
    impl->started = true;
    impl->in_checkpoint = false;
    for (uint32_t i = 0; i < impl->n_map; i++)
        impl->map[i] = IMAGE_NOWHERE;
    self->wall_ns = start.wall_ns;
    self->clock_ns = start.clock_ns;
    return RP_OK;
}

static rp_status apply_checkpoint(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_checkpoint head;
    memcpy(&head, entry->body, sizeof head);
    if (head.base != self->checkpoint || (head.base == 0 && image_size(self) > 0))
        return err_set(err, RP_BAD_MESSAGE, "checkpoint %llu is based on %llu, not on %llu",
                       (unsigned long long)head.number, (unsigned long long)head.base,
                       (unsigned long long)self->checkpoint);
    image_clear_small(self);
    self->checkpoint = head.number;
    self->end = head.journal;
    self->exact = true;
    self->impl->in_checkpoint = true;
    return RP_OK;
}

static rp_status apply_end(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_end end;
    memcpy(&end, entry->body, sizeof end);
    if (!self->impl->in_checkpoint)
        return err_set(err, RP_BAD_MESSAGE, "an END outside of a checkpoint");
    if (end.items != image_size(self))
        return err_set(err, RP_BAD_MESSAGE, "there are %llu items where the checkpoint had %llu",
                       (unsigned long long)image_size(self), (unsigned long long)end.items);
    return RP_OK;
}

static rp_status apply_ordinal(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    if (named.number > self->next_ordinal)
        self->next_ordinal = named.number;
    return RP_OK;
}

static rp_status slot_place(struct image *self, const char *name, size_t size, struct image_slot **out, rp_error *err)
{
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (strlen(self->slots[i].name) == size && memcmp(self->slots[i].name, name, size) == 0) {
            *out = &self->slots[i];
            return RP_OK;
        }
    void *slots = self->slots;
    char *copy = strndup(name, size);
    if (!copy || !image_grow(&slots, &self->impl->slots_capacity, self->n_slots, sizeof *self->slots)) {
        free(copy);
        return err_set(err, RP_NO_MEMORY, "no memory for a parameter slot");
    }
    self->slots = slots;
    *out = &self->slots[self->n_slots++];
    **out = (struct image_slot){.name = copy};
    return RP_OK;
}

static rp_status apply_slot(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_value head;
    memcpy(&head, entry->body, sizeof head);
    const uint8_t *name = entry->body + sizeof head;
    uint8_t *value = malloc(head.value_bytes ? head.value_bytes : 1);
    if (!value)
        return err_set(err, RP_NO_MEMORY, "no memory for a parameter slot of %llu bytes",
                       (unsigned long long)head.value_bytes);
    struct image_slot *slot = NULL;
    rp_status status = slot_place(self, (const char *)name, head.name_bytes, &slot, err);
    if (status != RP_OK) {
        free(value);
        return status;
    }
    memcpy(value, name + head.name_bytes, head.value_bytes);
    free(slot->value);
    slot->value = value;
    slot->bytes = head.value_bytes;
    slot->version = head.version;
    slot->put_ns = image_time(self, head.put_ns);
    return RP_OK;
}

static rp_status apply_counter(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_value head;
    memcpy(&head, entry->body, sizeof head);
    const char *name = (const char *)entry->body + sizeof head;
    for (uint32_t i = 0; i < self->n_counters; i++)
        if (strlen(self->counters[i].name) == head.name_bytes &&
            memcmp(self->counters[i].name, name, head.name_bytes) == 0) {
            self->counters[i].value = (int64_t)head.version;
            return RP_OK;
        }
    void *counters = self->counters;
    char *copy = strndup(name, head.name_bytes);
    if (!copy || !image_grow(&counters, &self->impl->counters_capacity, self->n_counters, sizeof *self->counters)) {
        free(copy);
        return err_set(err, RP_NO_MEMORY, "no memory for a counter");
    }
    self->counters = counters;
    self->counters[self->n_counters++] = (struct image_counter){copy, (int64_t)head.version};
    return RP_OK;
}

static rp_status apply_nothing(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)self;
    (void)entry;
    (void)err;
    return RP_OK;
}

static image_fn *const appliers[ENTRY_TYPES] = {
    [ENTRY_START] = apply_start,
    [ENTRY_TABLE] = image_apply_table,
    [ENTRY_CHUNK] = apply_nothing,
    [ENTRY_LAYOUT] = image_apply_layout,
    [ENTRY_INSERT] = image_apply_insert,
    [ENTRY_REMOVE] = image_apply_remove,
    [ENTRY_PRIORITY] = image_apply_priority,
    [ENTRY_PICK] = image_apply_pick,
    [ENTRY_RESET] = image_apply_reset,
    [ENTRY_LIMITER] = image_apply_limiter,
    [ENTRY_SESSION] = image_apply_session,
    [ENTRY_FORM] = image_apply_form,
    [ENTRY_PROGRESS] = image_apply_progress,
    [ENTRY_REJECTION] = image_apply_rejection,
    [ENTRY_SESSION_END] = image_apply_session_end,
    [ENTRY_SLOT] = apply_slot,
    [ENTRY_COUNTER] = apply_counter,
    [ENTRY_REPLY] = image_apply_reply,
    [ENTRY_ANSWERED] = image_apply_answered,
    [ENTRY_FORGET] = image_apply_forget,
    [ENTRY_SELECTOR] = image_apply_selector,
    [ENTRY_CHECKPOINT] = apply_checkpoint,
    [ENTRY_ITEM] = image_apply_item,
    [ENTRY_FREE] = image_apply_free,
    [ENTRY_SELECTION] = image_apply_selection,
    [ENTRY_ORDINAL] = apply_ordinal,
    [ENTRY_END] = apply_end,
    [ENTRY_PARTS] = apply_nothing,
    [ENTRY_EPISODES] = image_apply_episodes,
    [ENTRY_CHARGE] = image_apply_charge,
};

rp_status image_apply(struct image *self, const struct entry_view *entry, rp_error *err)
{
    if (!self->impl)
        return err_set(err, RP_NO_MEMORY, "no memory for an image");
    if (entry->type != ENTRY_START && !self->impl->started)
        return err_set(err, RP_BAD_MESSAGE, "a %s entry before the first START", entry_name(entry->type));
    rp_status status = appliers[entry->type](self, entry, err);
    if (status != RP_OK)
        err_prefix(err, "%s entry at offset %llu", entry_name(entry->type), (unsigned long long)disk_offset(entry->at));
    return status;
}

/* Converts all times from the first process's clock to the newest one's. */
static void image_settle_clock(struct image *self)
{
    int64_t by = self->impl->adjust == INT64_MIN ? INT64_MAX : -self->impl->adjust;
    self->impl->adjust = 0;
    if (by == 0)
        return;
    for (uint32_t i = 0; i < self->n_tables; i++)
        image_table_shift(&self->tables[i], by);
    for (uint32_t i = 0; i < self->n_slots; i++)
        self->slots[i].put_ns = image_add(self->slots[i].put_ns, by);
    for (uint32_t i = 0; i < self->n_selections; i++)
        for (uint32_t k = 0; self->selections[i] && k < self->selections[i]->n; k++)
            self->selections[i]->items[k].insert_ns = image_add(self->selections[i]->items[k].insert_ns, by);
}

void image_finish(struct image *self)
{
    if (!self->impl)
        return;
    image_requests_compact(self);
    image_settle_clock(self);
}

void image_rebase(struct image *self, int64_t wall_ns, int64_t clock_ns)
{
    if (!self->impl)
        return;
    if (self->impl->started)
        image_new_clock(self, wall_ns, clock_ns);
    self->impl->start.wall_ns = self->wall_ns = wall_ns;
    self->impl->start.clock_ns = self->clock_ns = clock_ns;
    image_settle_clock(self);
}
