/* Tables of an image. A table's slots are one reserved mapping: zeros until they are touched, and moved only when the
 * table grows. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "broker/disk/image_impl.h"
#include "proto/base/error.h"

uint32_t image_table_index(const struct image *self, uint32_t in_file)
{
    return in_file < self->impl->n_map ? self->impl->map[in_file] : IMAGE_NOWHERE;
}

struct image_table *image_table_of(const struct image *self, const struct entry_view *entry, rp_error *err)
{
    uint32_t index = image_table_index(self, entry->table);
    if (index == IMAGE_NOWHERE) {
        err_set(err, RP_BAD_MESSAGE, "table %u was not named in this file", entry->table);
        return NULL;
    }
    return &self->tables[index];
}

struct image_item *image_taken(struct image_table *table, uint32_t slot, rp_error *err)
{
    if (slot < table->high && table->items[slot].n)
        return &table->items[slot];
    err_set(err, RP_BAD_MESSAGE, "slot %u of table '%s' holds no item", slot, table->name);
    return NULL;
}

void image_table_changed(struct image *self, struct image_table *table)
{
    if (self->impl->in_checkpoint)
        return;
    self->exact = false;
    for (uint32_t i = 0; i < 2; i++) {
        free(table->selector[i]);
        table->selector[i] = NULL;
        table->selector_bytes[i] = 0;
    }
}

static void table_empty(struct image_table *table)
{
    for (uint32_t i = 0; i < table->high && table->size; i++)
        if (table->items[i].n) {
            image_item_fini(&table->items[i]);
            table->size--;
        }
    table->high = 0;
}

void image_table_fini(struct image_table *table)
{
    table_empty(table);
    if (table->items)
        munmap(table->items, (size_t)table->capacity * sizeof *table->items);
    if (table->spec)
        replay__table_spec__free_unpacked(table->spec, NULL);
    if (table->info)
        replay__table_info__free_unpacked(table->info, NULL);
    free(table->selector[0]);
    free(table->selector[1]);
    free(table->name);
    *table = (struct image_table){0};
}

/* Returns the slots that a broker gives a table of this size (see soft_capacity), or the number in the file if that is
 * larger. */
static uint32_t slots_of(const struct image *self, uint64_t max_size, uint64_t said)
{
    uint64_t slots = (max_size < UINT32_MAX ? max_size : UINT32_MAX) / 4 * 5 + 16;
    if (said > slots)
        slots = said;
    return slots < self->most_slots ? (uint32_t)slots : self->most_slots;
}

static rp_status table_reserve(struct image_table *table, uint32_t slots, rp_error *err)
{
    if (slots <= table->capacity)
        return RP_OK;
    size_t bytes = (size_t)slots * sizeof *table->items;
    void *items = table->items
                      ? mremap(table->items, (size_t)table->capacity * sizeof *table->items, bytes, MREMAP_MAYMOVE)
                      : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (items == MAP_FAILED)
        return err_set(err, RP_NO_MEMORY, "no memory for the %u slots of table '%s'", slots, table->name);
    if (bytes >= 4u << 20)
        madvise(items, bytes, MADV_HUGEPAGE);
    table->items = items;
    table->capacity = slots;
    return RP_OK;
}

static rp_status map_table(struct image *self, uint32_t in_file, uint32_t index, rp_error *err)
{
    struct image_impl *impl = self->impl;
    if (in_file >= impl->n_map) {
        uint32_t n = impl->n_map ? impl->n_map : 16;
        while (n <= in_file)
            n *= 2;
        uint32_t *map = realloc(impl->map, n * sizeof *map);
        if (!map)
            return err_set(err, RP_NO_MEMORY, "no memory for tables");
        for (uint32_t i = impl->n_map; i < n; i++)
            map[i] = IMAGE_NOWHERE;
        impl->map = map;
        impl->n_map = n;
    }
    impl->map[in_file] = index;
    return RP_OK;
}

/* Finds the table of this name, or makes it. */
static rp_status table_named(struct image *self, const char *name, uint32_t *index, bool *fresh, rp_error *err)
{
    for (*index = 0; *index < self->n_tables; ++*index)
        if (strcmp(self->tables[*index].name, name) == 0) {
            *fresh = false;
            return RP_OK;
        }
    void *tables = self->tables;
    char *copy = strdup(name);
    if (!copy || !image_grow(&tables, &self->impl->tables_capacity, self->n_tables, sizeof *self->tables)) {
        free(copy);
        return err_set(err, RP_NO_MEMORY, "no memory for table '%s'", name);
    }
    self->tables = tables;
    self->tables[self->n_tables++] = (struct image_table){.name = copy, .last_ns = INT64_MIN};
    *fresh = true;
    return RP_OK;
}

/* Takes the counters of a TABLE entry. Those in a segment are as of its beginning, so counters that were applied since
 * are kept. */
static void table_counters(struct image_table *table, const struct entry_table *head, const Replay__TableInfo *info,
                           bool all)
{
    struct entry_limiter before = table->limiter;
    table->limiter = head->limiter;
    if (!all) {
        table->limiter.inserts = before.inserts;
        table->limiter.samples = before.samples;
        table->limiter.deletes = before.deletes;
        return;
    }
    table->total_inserts = head->total_inserts;
    table->total_samples = head->total_samples;
    table->updates = head->updates;
    table->episodes = head->episodes;
    table->rejected = head->rejected;
    table->evicted = head->evicted;
    table->resets = head->resets;
    table->unique_samples = info->unique_samples;
}

rp_status image_apply_table(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_table head;
    memcpy(&head, entry->body, sizeof head);
    const uint8_t *packed = entry->body + sizeof head;
    Replay__TableSpec *spec = replay__table_spec__unpack(NULL, head.spec_bytes, packed);
    Replay__TableInfo *info = replay__table_info__unpack(NULL, head.info_bytes, packed + head.spec_bytes);
    uint32_t index = 0;
    bool fresh = false;
    rp_status status = RP_OK;
    if (!spec || !info || !spec->name[0])
        status = err_set(err, RP_BAD_MESSAGE, "the description of table %u cannot be decoded", entry->table);
    if (status == RP_OK)
        status = table_named(self, spec->name, &index, &fresh, err);
    if (status == RP_OK)
        status = table_reserve(&self->tables[index], slots_of(self, spec->max_size, head.slots), err);
    if (status == RP_OK)
        status = map_table(self, entry->table, index, err);
    if (status == RP_OK) {
        struct image_table *table = &self->tables[index];
        if (fresh || !self->impl->naming)
            table_counters(table, &head, info, fresh || self->impl->in_checkpoint);
        Replay__TableSpec *old_spec = table->spec;
        Replay__TableInfo *old_info = table->info;
        table->spec = spec;
        table->info = info;
        spec = old_spec;
        info = old_info;
    }
    if (spec)
        replay__table_spec__free_unpacked(spec, NULL);
    if (info)
        replay__table_info__free_unpacked(info, NULL);
    return status;
}

/* Makes an item from an entry, without its slot. */
static rp_status item_read(struct image *self, const struct entry_insert *insert, const uint8_t *places,
                           struct image_item *out, rp_error *err)
{
    struct image_layout *layout = image_layout_find(self, insert->layout);
    if (!layout)
        return err_set(err, RP_BAD_MESSAGE, "layout %u was not described", insert->layout);
    *out = (struct image_item){.key = insert->key,
                               .priority = insert->priority,
                               .insert_ns = image_time(self, insert->insert_ns),
                               .policy = insert->policy,
                               .offset = insert->offset,
                               .length = insert->length};
    if (!image_item_places(out, places, insert->n_chunks))
        return err_set(err, RP_NO_MEMORY, "no memory for an item");
    out->layout = layout;
    layout->refs++;
    return RP_OK;
}

static rp_status slot_in_bounds(const struct image_table *table, uint32_t slot, rp_error *err)
{
    if (slot >= table->capacity)
        return err_set(err, RP_BAD_MESSAGE, "slot %u is outside of table '%s', which has %u", slot, table->name,
                       table->capacity);
    return RP_OK;
}

/* Puts an item into a free slot. */
static void slot_take(struct image_table *table, uint32_t slot, const struct image_item *item)
{
    table->items[slot] = *item;
    table->size++;
    if (slot >= table->high)
        table->high = slot + 1;
    if (item->insert_ns > table->last_ns)
        table->last_ns = item->insert_ns;
}

rp_status image_apply_insert(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_insert insert;
    memcpy(&insert, entry->body, sizeof insert);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    RP_TRY(slot_in_bounds(table, insert.slot, err));
    if (table->items[insert.slot].n)
        return err_set(err, RP_BAD_MESSAGE, "slot %u of table '%s' is taken already", insert.slot, table->name);
    struct image_session *session = insert.session ? image_session_find(self, insert.session) : NULL;
    struct entry_flow *flow = session ? image_flow(session, (uint32_t)(table - self->tables)) : NULL;
    if (session && !flow)
        return err_set(err, RP_NO_MEMORY, "no memory for a session");
    struct image_item item;
    RP_TRY(item_read(self, &insert, entry->body + sizeof insert, &item, err));
    item.order[0] = item.order[1] = ++table->order;
    slot_take(table, insert.slot, &item);
    if (flow)
        flow->resolved = insert.number;
    table->limiter.inserts++;
    table->total_inserts++;
    image_table_changed(self, table);
    return RP_OK;
}

rp_status image_apply_item(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_item head;
    memcpy(&head, entry->body, sizeof head);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    RP_TRY(slot_in_bounds(table, head.insert.slot, err));
    struct image_item item;
    RP_TRY(item_read(self, &head.insert, entry->body + sizeof head, &item, err));
    item.times_sampled = head.times_sampled;
    item.order[0] = head.order[0];
    item.order[1] = head.order[1];
    for (uint32_t i = 0; i < 2; i++)
        table->order = item.order[i] > table->order ? item.order[i] : table->order;
    if (table->items[head.insert.slot].n) {
        image_item_fini(&table->items[head.insert.slot]);
        table->size--;
    }
    slot_take(table, head.insert.slot, &item);
    return RP_OK;
}

rp_status image_apply_free(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_slot slot;
    memcpy(&slot, entry->body, sizeof slot);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    RP_TRY(slot_in_bounds(table, slot.slot, err));
    if (slot.slot < table->high && table->items[slot.slot].n) {
        image_item_fini(&table->items[slot.slot]);
        table->size--;
    }
    return RP_OK;
}

rp_status image_apply_remove(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_slot slot;
    memcpy(&slot, entry->body, sizeof slot);
    struct image_table *table = image_table_of(self, entry, err);
    struct image_item *item = table ? image_taken(table, slot.slot, err) : NULL;
    if (!item)
        return RP_BAD_MESSAGE;
    image_item_fini(item);
    table->size--;
    table->limiter.deletes++;
    image_table_changed(self, table);
    return RP_OK;
}

rp_status image_apply_priority(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_priority priority;
    memcpy(&priority, entry->body, sizeof priority);
    struct image_table *table = image_table_of(self, entry, err);
    struct image_item *item = table ? image_taken(table, priority.slot, err) : NULL;
    if (!item)
        return RP_BAD_MESSAGE;
    item->priority = priority.priority;
    item->order[0] = item->order[1] = ++table->order;
    table->updates++;
    image_table_changed(self, table);
    return RP_OK;
}

rp_status image_apply_reset(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    table_empty(table);
    if (self->impl->in_checkpoint)
        return RP_OK; /* an incremental checkpoint drops the items of its base; the counters are in its TABLE */
    table->limiter.inserts = table->limiter.samples = table->limiter.deletes = 0;
    table->limiter.offset = 0;
    table->episodes = table->unique_samples = 0;
    table->resets++;
    image_table_changed(self, table);
    return RP_OK;
}

rp_status image_apply_episodes(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    table->episodes = named.number;
    return RP_OK;
}

rp_status image_apply_charge(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    table->limiter.samples += named.number;
    image_table_changed(self, table);
    return RP_OK;
}

rp_status image_apply_limiter(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    memcpy(&table->limiter, entry->body, sizeof table->limiter);
    return RP_OK;
}

rp_status image_apply_selector(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_selector selector;
    memcpy(&selector, entry->body, sizeof selector);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    uint8_t *state = malloc(selector.bytes ? selector.bytes : 1);
    if (!state)
        return err_set(err, RP_NO_MEMORY, "no memory for a selector's state");
    memcpy(state, entry->body + sizeof selector, selector.bytes);
    free(table->selector[selector.which]);
    table->selector[selector.which] = state;
    table->selector_bytes[selector.which] = selector.bytes;
    return RP_OK;
}
