/* What each type of entry does to the state: layouts and items, tables, sessions, requests that may be repeated, parameters. */
#include "broker/disk/image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/base/error.h"
#include "proto/base/need.h"

#define IMAGE_NOWHERE UINT32_MAX
#define MOST_SLOTS ((1u << 30) + (1u << 28))

/* Returns the array with room for one more element than n. */
static void *grown(void *array, uint32_t *capacity, uint32_t n, size_t size)
{
    if (n < *capacity)
        return array;
    *capacity = *capacity ? *capacity * 2 : 8;
    return need_resize(array, *capacity, size);
}

static int64_t add_times(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? INT64_MAX : INT64_MIN;
    return sum;
}

static int64_t time_here(const struct image *self, int64_t time_ns)
{
    return add_times(time_ns, self->adjust);
}

/* Returns the index in image.tables for the file's index. IMAGE_NOWHERE: this file has not named it. */
static uint32_t table_index(const struct image *self, uint32_t in_file)
{
    return in_file < self->n_map ? self->map[in_file] : IMAGE_NOWHERE;
}

uint64_t image_size(const struct image *self)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        size += self->tables[i].size;
    return size;
}

/* No broker has more layouts than this. */
#define LAYOUT_IDS (1u << 22)

static void layout_release(struct image_layout **layout)
{
    struct image_layout *self = *layout;
    *layout = NULL;
    if (!self || --self->refs > 0)
        return;
    replay__layout__free_unpacked(self->wire, NULL);
    free(self->packed);
    free(self);
}

static struct image_layout *layout_find(const struct image *self, uint32_t id)
{
    return id < self->n_layouts ? self->layouts[id] : NULL;
}

static void layouts_reserve(struct image *self, uint32_t id)
{
    if (id < self->n_layouts)
        return;
    uint32_t n = self->n_layouts ? self->n_layouts : 64;
    while (n <= id)
        n *= 2;
    self->layouts = need_resize(self->layouts, n, sizeof(*self->layouts));
    memset(self->layouts + self->n_layouts, 0, (n - self->n_layouts) * sizeof(*self->layouts));
    self->n_layouts = n;
}

/* NULL: it cannot be decoded. */
static struct image_layout *layout_new(const uint8_t *packed, size_t size)
{
    Replay__Layout *wire = replay__layout__unpack(NULL, size, packed);
    if (!wire)
        return NULL;
    struct image_layout *self = need_alloc(sizeof *self);
    *self = (struct image_layout){.refs = 1, .wire = wire, .packed = need_alloc(size), .packed_size = (uint32_t)size};
    memcpy(self->packed, packed, size);
    return self;
}

static rp_status apply_layout(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    const uint8_t *packed = entry->body + sizeof named;
    size_t size = entry->size - sizeof named;
    uint32_t table = table_index(self, entry->table);
    if (named.number >= LAYOUT_IDS)
        return err_set(err, RP_BAD_MESSAGE, "layout %llu has an impossible id", (unsigned long long)named.number);
    layouts_reserve(self, (uint32_t)named.number);
    struct image_layout **place = &self->layouts[named.number];
    if (*place && (*place)->table == table && (*place)->packed_size == size &&
        memcmp((*place)->packed, packed, size) == 0)
        return RP_OK;
    struct image_layout *layout = layout_new(packed, size);
    if (!layout)
        return err_set(err, RP_BAD_MESSAGE, "layout %llu cannot be decoded", (unsigned long long)named.number);
    layout->table = table;
    layout_release(place);
    *place = layout;
    return RP_OK;
}

static void item_fini(struct image_item *item)
{
    if (item->n > 1)
        free(item->many);
    layout_release(&item->layout);
    *item = (struct image_item){0};
}

static bool item_places(struct image_item *item, const uint8_t *places, uint32_t n)
{
    item->n = n;
    if (n > 1)
        item->many = malloc((size_t)n * sizeof *item->many);
    if (n > 1 && !item->many) {
        item->n = 0;
        return false;
    }
    if (n)
        memcpy(n > 1 ? item->many : &item->one, places, (size_t)n * sizeof(uint64_t));
    return true;
}

static bool item_copy(struct image_item *to, const struct image_item *from)
{
    *to = *from;
    if (!item_places(to, (const uint8_t *)image_chunks(from), from->n)) {
        *to = (struct image_item){0};
        return false;
    }
    if (to->layout)
        to->layout->refs++;
    return true;
}

/* ---- sessions, sorted by ordinal ---- */

/* Entries of an unknown session are skipped: it has ended, and what still came from it concerned its items alone. */
#define FORM_IDS 65536u

/* Returns the index of a session, or where it belongs. */
static uint32_t session_place(const struct image *self, uint32_t ordinal)
{
    uint32_t low = 0, high = self->n_sessions;
    if (high && self->sessions[high - 1]->ordinal < ordinal)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->sessions[middle]->ordinal < ordinal)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct image_session *session_find(struct image *self, uint32_t ordinal)
{
    struct image_session *last = self->last;
    if (last && last->ordinal == ordinal)
        return last;
    uint32_t at = session_place(self, ordinal);
    if (at == self->n_sessions || self->sessions[at]->ordinal != ordinal)
        return NULL;
    return self->last = self->sessions[at];
}

static struct image_session *session_named(struct image *self, uint64_t ordinal)
{
    return ordinal <= UINT32_MAX ? session_find(self, (uint32_t)ordinal) : NULL;
}

static void session_destroy(struct image_session *self)
{
    replay__hello__free_unpacked(self->hello, NULL);
    for (uint32_t i = 0; i < self->n_forms; i++)
        if (self->forms[i])
            replay__layout__free_unpacked(self->forms[i], NULL);
    for (uint32_t i = 0; i < self->n_rejections; i++)
        free(self->rejections[i].text);
    free(self->forms);
    free(self->flows);
    free(self->rejections);
    free(self);
}

static void session_remove(struct image *self, uint32_t at)
{
    if (self->last == self->sessions[at])
        self->last = NULL;
    session_destroy(self->sessions[at]);
    memmove(self->sessions + at, self->sessions + at + 1, (self->n_sessions - at - 1) * sizeof(*self->sessions));
    self->n_sessions--;
}

static void sessions_clear(struct image *self)
{
    for (uint32_t i = 0; i < self->n_sessions; i++)
        session_destroy(self->sessions[i]);
    self->n_sessions = 0;
    self->last = NULL;
}

static rp_status apply_session(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    if (named.number == 0 || named.number > UINT32_MAX)
        return err_set(err, RP_BAD_MESSAGE, "session %llu has an impossible ordinal", (unsigned long long)named.number);
    Replay__Hello *hello = replay__hello__unpack(NULL, entry->size - sizeof named, entry->body + sizeof named);
    if (!hello)
        return err_set(err, RP_BAD_MESSAGE, "the HELLO of session %llu cannot be decoded",
                       (unsigned long long)named.number);
    struct image_session *session = need_alloc(sizeof *session);
    session->ordinal = (uint32_t)named.number;
    session->hello = hello;
    uint32_t at = session_place(self, session->ordinal);
    if (at < self->n_sessions && self->sessions[at]->ordinal == session->ordinal)
        session_remove(self, at);
    self->sessions = grown(self->sessions, &self->sessions_capacity, self->n_sessions, sizeof(*self->sessions));
    memmove(self->sessions + at + 1, self->sessions + at, (self->n_sessions - at) * sizeof(*self->sessions));
    self->sessions[at] = session;
    self->n_sessions++;
    if (named.number >= self->next_ordinal)
        self->next_ordinal = named.number + 1;
    return RP_OK;
}

static rp_status apply_session_end(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    const struct image_session *session = session_named(self, named.number);
    if (session)
        session_remove(self, session_place(self, session->ordinal));
    return RP_OK;
}

static rp_status apply_form(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    struct image_session *session = session_named(self, named.number);
    if (!session)
        return RP_OK;
    Replay__Layout *form = replay__layout__unpack(NULL, entry->size - sizeof named, entry->body + sizeof named);
    if (!form || form->id >= FORM_IDS) {
        if (form)
            replay__layout__free_unpacked(form, NULL);
        return err_set(err, RP_BAD_MESSAGE, "a layout of session %u cannot be decoded", session->ordinal);
    }
    if (form->id >= session->n_forms) {
        uint32_t n = form->id + 1 + form->id / 2;
        session->forms = need_resize(session->forms, n, sizeof(*session->forms));
        memset(session->forms + session->n_forms, 0, (n - session->n_forms) * sizeof(*session->forms));
        session->n_forms = n;
    }
    if (session->forms[form->id])
        replay__layout__free_unpacked(session->forms[form->id], NULL);
    session->forms[form->id] = form;
    return RP_OK;
}

/* Returns the session's flow to a table, by index in image.tables. */
static struct entry_flow *flow_of(struct image_session *session, uint32_t table)
{
    if (table >= session->n_flows) {
        session->flows = need_resize(session->flows, table + 1, sizeof *session->flows);
        for (uint32_t i = session->n_flows; i <= table; i++)
            session->flows[i] = (struct entry_flow){.table = i};
        session->n_flows = table + 1;
    }
    return &session->flows[table];
}

/* Drops the rejections that the client has confirmed. */
static void rejections_confirm(struct image_session *session, uint64_t confirmed)
{
    uint64_t passed = confirmed > session->confirmed_rejections ? confirmed - session->confirmed_rejections : 0;
    uint32_t n = passed < session->n_rejections ? (uint32_t)passed : session->n_rejections;
    for (uint32_t i = 0; i < n; i++)
        free(session->rejections[i].text);
    if (n)
        memmove(session->rejections, session->rejections + n,
                (session->n_rejections - n) * sizeof *session->rejections);
    session->n_rejections -= n;
    session->confirmed_rejections = confirmed;
}

static rp_status apply_progress(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_progress progress;
    memcpy(&progress, entry->body, sizeof progress);
    struct image_session *session = session_find(self, progress.session);
    if (!session)
        return RP_OK;
    struct entry_flow from;
    for (uint32_t i = 0; i < progress.n_flows; i++) {
        memcpy(&from, entry->body + sizeof progress + i * sizeof from, sizeof from);
        if (table_index(self, from.table) == IMAGE_NOWHERE)
            return err_set(err, RP_BAD_MESSAGE, "table %u was not named in this file", from.table);
    }
    for (uint32_t i = 0; i < progress.n_flows; i++) {
        memcpy(&from, entry->body + sizeof progress + i * sizeof from, sizeof from);
        struct entry_flow *flow = flow_of(session, table_index(self, from.table));
        from.table = flow->table;
        *flow = from;
    }
    session->epoch = progress.epoch;
    session->received = progress.received;
    session->counted = progress.counted;
    session->received_bytes = progress.received_bytes;
    session->allowed_bytes = progress.allowed_bytes;
    /* A checkpoint holds only unconfirmed ones. */
    if (self->in_checkpoint)
        session->confirmed_rejections = progress.confirmed_rejections;
    else
        rejections_confirm(session, progress.confirmed_rejections);
    return RP_OK;
}

static void rejection_keep(struct image_session *session, const struct entry_rejection *head, uint32_t table,
                           const uint8_t *text, size_t size)
{
    uint32_t n = session->n_rejections;
    if (n >= IMAGE_REJECTIONS)
        return;
    if ((n & (n - 1)) == 0) /* the array grows in powers of two */
        session->rejections = need_resize(session->rejections, n ? (size_t)n * 2 : 1, sizeof *session->rejections);
    session->rejections[session->n_rejections++] =
        (struct image_rejection){.table = table,
                                 .status = head->status,
                                 .more = head->more,
                                 .item = head->item,
                                 .key = head->key,
                                 .text = need_print("%.*s", (int)size, (const char *)text)};
}

static rp_status apply_rejection(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_rejection head;
    memcpy(&head, entry->body, sizeof head);
    struct image_session *session = session_find(self, head.session);
    if (!session)
        return RP_OK;
    uint32_t table = IMAGE_NOWHERE;
    struct entry_flow *flow = NULL;
    if (head.table != IMAGE_NOWHERE) {
        table = table_index(self, head.table);
        if (table == IMAGE_NOWHERE)
            return err_set(err, RP_BAD_MESSAGE, "table %u was not named in this file", head.table);
        flow = flow_of(session, table);
    }
    rejection_keep(session, &head, table, entry->body + sizeof head, entry->size - sizeof head);
    /* The counters of a checkpoint include its rejections. An item that was not the next one of its flow resolves
     * nothing. */
    if (flow && !self->in_checkpoint && head.item == flow->resolved + 1) {
        flow->resolved = head.item + head.more;
        flow->rejected += UINT64_C(1) + head.more;
        self->tables[table].rejected += UINT64_C(1) + head.more;
    }
    return RP_OK;
}

/* ---- tables ---- */

static void table_shift(struct image_table *table, int64_t by)
{
    for (uint32_t i = 0; i < table->high; i++)
        table->items[i].insert_ns = add_times(table->items[i].insert_ns, table->items[i].n ? by : 0);
    if (table->last_ns != INT64_MIN)
        table->last_ns = add_times(table->last_ns, by);
}

static int by_time(const void *a, const void *b)
{
    const struct image_item *x = *(struct image_item *const *)a, *y = *(struct image_item *const *)b;
    return x->insert_ns < y->insert_ns ? -1 : x->insert_ns > y->insert_ns;
}

static void table_clamp(struct image_table *table, int64_t now)
{
    if (table->last_ns <= now || table->size == 0)
        return;
    struct image_item **sorted = malloc((size_t)table->size * sizeof(*sorted));
    uint32_t n = 0;
    for (uint32_t i = 0; i < table->high && sorted; i++)
        if (table->items[i].n)
            sorted[n++] = &table->items[i];
    if (n)
        qsort(sorted, n, sizeof(*sorted), by_time);
    for (int64_t most = now; n > 0 && sorted[n - 1]->insert_ns > most; most = add_times(sorted[n]->insert_ns, -1))
        sorted[--n]->insert_ns = most;
    free(sorted);
    table->last_ns = now;
}

static struct image_item *item_at(struct image_table *table, uint32_t slot, rp_error *err)
{
    if (slot < table->high && table->items[slot].n)
        return &table->items[slot];
    err_set(err, RP_BAD_MESSAGE, "slot %u of table '%s' holds no item", slot, table->name);
    return NULL;
}

static void table_changed(struct image *self, struct image_table *table)
{
    if (self->in_checkpoint)
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
            item_fini(&table->items[i]);
            table->size--;
        }
    table->high = 0;
}

static void table_fini(struct image_table *table)
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

static void map_table(struct image *self, uint32_t in_file, uint32_t index)
{
    if (in_file >= self->n_map) {
        uint32_t n = in_file + 16;
        self->map = need_resize(self->map, n, sizeof *self->map);
        for (uint32_t i = self->n_map; i < n; i++)
            self->map[i] = IMAGE_NOWHERE;
        self->n_map = n;
    }
    self->map[in_file] = index;
}

/* Returns the index of the table of this name, which is made if there is none. */
static uint32_t table_named(struct image *self, const char *name, bool *fresh)
{
    uint32_t index = 0;
    while (index < self->n_tables && strcmp(self->tables[index].name, name) != 0)
        index++;
    *fresh = index == self->n_tables;
    if (*fresh) {
        self->tables = grown(self->tables, &self->tables_capacity, index, sizeof *self->tables);
        self->tables[self->n_tables++] = (struct image_table){.name = need_text(name), .last_ns = INT64_MIN};
    }
    return index;
}

/* Takes the counters of a TABLE entry. Those in a segment are as of its beginning, so counters that were applied since
 * are kept. */
static void table_counters(struct image_table *table, const struct entry_table *head, bool all)
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
    table->unique_samples = head->unique_samples;
    table->rejected = head->rejected;
    table->evicted = head->evicted;
    table->resets = head->resets;
}

static rp_status apply_table(struct image *self, const struct entry_view *entry, rp_error *err)
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
    if (status == RP_OK) {
        index = table_named(self, spec->name, &fresh);
        status = table_reserve(&self->tables[index], slots_of(self, spec->max_size, head.slots), err);
    }
    if (status == RP_OK) {
        map_table(self, entry->table, index);
        struct image_table *table = &self->tables[index];
        if (fresh || !self->naming)
            table_counters(table, &head, fresh || self->in_checkpoint);
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
    struct image_layout *layout = layout_find(self, insert->layout);
    if (!layout)
        return err_set(err, RP_BAD_MESSAGE, "layout %u was not described", insert->layout);
    *out = (struct image_item){.key = insert->key,
                               .priority = insert->priority,
                               .insert_ns = time_here(self, insert->insert_ns),
                               .policy = insert->policy,
                               .offset = insert->offset,
                               .length = insert->length};
    if (!item_places(out, places, insert->n_chunks))
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

static rp_status apply_insert(struct image *self, struct image_table *table, const struct entry_view *entry,
                              rp_error *err)
{
    struct entry_insert insert;
    memcpy(&insert, entry->body, sizeof insert);
    RP_TRY(slot_in_bounds(table, insert.slot, err));
    if (table->items[insert.slot].n)
        return err_set(err, RP_BAD_MESSAGE, "slot %u of table '%s' is taken already", insert.slot, table->name);
    struct image_session *session = insert.session ? session_find(self, insert.session) : NULL;
    struct entry_flow *flow = session ? flow_of(session, (uint32_t)(table - self->tables)) : NULL;
    struct image_item item;
    RP_TRY(item_read(self, &insert, entry->body + sizeof insert, &item, err));
    item.order[0] = item.order[1] = ++table->order;
    slot_take(table, insert.slot, &item);
    if (flow)
        flow->resolved = insert.number;
    table->limiter.inserts++;
    table->total_inserts++;
    table_changed(self, table);
    return RP_OK;
}

static rp_status apply_item(struct image *self, struct image_table *table, const struct entry_view *entry,
                            rp_error *err)
{
    struct entry_item head;
    memcpy(&head, entry->body, sizeof head);
    RP_TRY(slot_in_bounds(table, head.insert.slot, err));
    struct image_item item;
    RP_TRY(item_read(self, &head.insert, entry->body + sizeof head, &item, err));
    item.times_sampled = head.times_sampled;
    item.order[0] = head.order[0];
    item.order[1] = head.order[1];
    for (uint32_t i = 0; i < 2; i++)
        table->order = item.order[i] > table->order ? item.order[i] : table->order;
    if (table->items[head.insert.slot].n) {
        item_fini(&table->items[head.insert.slot]);
        table->size--;
    }
    slot_take(table, head.insert.slot, &item);
    return RP_OK;
}

static rp_status apply_free(struct image *self, struct image_table *table, const struct entry_view *entry,
                            rp_error *err)
{
    (void)self;
    struct entry_slot slot;
    memcpy(&slot, entry->body, sizeof slot);
    RP_TRY(slot_in_bounds(table, slot.slot, err));
    if (slot.slot < table->high && table->items[slot.slot].n) {
        item_fini(&table->items[slot.slot]);
        table->size--;
    }
    return RP_OK;
}

static rp_status apply_remove(struct image *self, struct image_table *table, const struct entry_view *entry,
                              rp_error *err)
{
    struct entry_slot slot;
    memcpy(&slot, entry->body, sizeof slot);
    struct image_item *item = item_at(table, slot.slot, err);
    if (!item)
        return RP_BAD_MESSAGE;
    item_fini(item);
    table->size--;
    table->limiter.deletes++;
    table_changed(self, table);
    return RP_OK;
}

static rp_status apply_priority(struct image *self, struct image_table *table, const struct entry_view *entry,
                                rp_error *err)
{
    struct entry_priority priority;
    memcpy(&priority, entry->body, sizeof priority);
    struct image_item *item = item_at(table, priority.slot, err);
    if (!item)
        return RP_BAD_MESSAGE;
    item->priority = priority.priority;
    item->order[0] = item->order[1] = ++table->order;
    table->updates++;
    table_changed(self, table);
    return RP_OK;
}

static rp_status apply_reset(struct image *self, struct image_table *table, const struct entry_view *entry,
                             rp_error *err)
{
    (void)entry;
    (void)err;
    table_empty(table);
    if (self->in_checkpoint)
        return RP_OK; /* an incremental checkpoint drops the items of its base; the counters are in its TABLE */
    table->limiter.inserts = table->limiter.samples = table->limiter.deletes = 0;
    table->limiter.offset = 0;
    table->episodes = table->unique_samples = 0;
    table->resets++;
    table_changed(self, table);
    return RP_OK;
}

static rp_status apply_episodes(struct image *self, struct image_table *table, const struct entry_view *entry,
                                rp_error *err)
{
    (void)self;
    (void)err;
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    table->episodes = named.number;
    return RP_OK;
}

static rp_status apply_charge(struct image *self, struct image_table *table, const struct entry_view *entry,
                              rp_error *err)
{
    (void)err;
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    table->limiter.samples += named.number;
    table_changed(self, table);
    return RP_OK;
}

static rp_status apply_limiter(struct image *self, struct image_table *table, const struct entry_view *entry,
                               rp_error *err)
{
    (void)self;
    (void)err;
    memcpy(&table->limiter, entry->body, sizeof table->limiter);
    return RP_OK;
}

static rp_status apply_selector(struct image *self, struct image_table *table, const struct entry_view *entry,
                                rp_error *err)
{
    (void)self;
    struct entry_selector selector;
    memcpy(&selector, entry->body, sizeof selector);
    uint8_t *state = malloc(selector.bytes ? selector.bytes : 1);
    if (!state)
        return err_set(err, RP_NO_MEMORY, "no memory for a selector's state");
    memcpy(state, entry->body + sizeof selector, selector.bytes);
    free(table->selector[selector.which]);
    table->selector[selector.which] = state;
    table->selector_bytes[selector.which] = selector.bytes;
    return RP_OK;
}

/* ---- requests that may be repeated: replies, and selections of samples ---- */

/* Returns the number by which a request is known. If two requests share a number, the later one is known. */
static uint64_t request_name(uint64_t client, uint64_t id)
{
    return (client ^ (id * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
}

static void *request_find(const struct image_requests *self, uint64_t client, uint64_t id)
{
    struct image_request *found = idmap_get(&self->by_name, request_name(client, id));
    return found && found->client == client && found->id == id ? found : NULL;
}

/* False: no memory. */
static bool request_add(struct image_requests *self, struct image_request *request)
{
    idmap_put(&self->by_name, request_name(request->client, request->id), request);
    request->older = self->newest;
    *(self->newest ? &self->newest->newer : &self->oldest) = request;
    self->newest = request;
    self->n++;
    return true;
}

static void request_remove(struct image_requests *self, struct image_request *request)
{
    uint64_t name = request_name(request->client, request->id);
    if (idmap_get(&self->by_name, name) == request)
        idmap_remove(&self->by_name, name);
    *(request->older ? &request->older->newer : &self->oldest) = request->newer;
    *(request->newer ? &request->newer->older : &self->newest) = request->older;
    self->n--;
}

static void selection_free(struct image_selection *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        item_fini(&self->items[i]);
    free(self->items);
    free(self->probability);
    free(self);
}

/* Does nothing for NULL, as the next. */
static void selection_drop(struct image *self, struct image_selection *selection)
{
    if (!selection)
        return;
    request_remove(&self->selections, &selection->request);
    selection_free(selection);
}

static void reply_free(struct image_reply *self)
{
    free(self->frame);
    free(self);
}

static void reply_drop(struct image *self, struct image_reply *reply)
{
    if (!reply)
        return;
    request_remove(&self->replies, &reply->request);
    reply_free(reply);
}

static void requests_clear(struct image *self)
{
    struct image_request *next;
    for (struct image_request *at = self->selections.oldest; at; at = next) {
        next = at->newer;
        selection_free(image_selection(at));
    }
    for (struct image_request *at = self->replies.oldest; at; at = next) {
        next = at->newer;
        reply_free(image_reply(at));
    }
    idmap_fini(&self->selections.by_name);
    idmap_fini(&self->replies.by_name);
    self->selections = self->replies = (struct image_requests){0};
}

/* Makes room for n more items. False: no memory. */
static bool selection_grow(struct image_selection *self, uint32_t n)
{
    size_t all = (size_t)self->n + n + 1;
    struct image_item *items = realloc(self->items, all * sizeof *items);
    if (items)
        self->items = items;
    double *probability = realloc(self->probability, all * sizeof *probability);
    if (probability)
        self->probability = probability;
    return items && probability;
}

/* Appends an empty selection for this request with room for n items, and drops an older one. NULL: no memory. */
static struct image_selection *selection_new(struct image *self, uint64_t client, uint64_t id, uint32_t n)
{
    selection_drop(self, request_find(&self->selections, client, id));
    struct image_selection *selection = need_alloc(sizeof *selection);
    selection->request = (struct image_request){.client = client, .id = id};
    if (selection_grow(selection, n) && request_add(&self->selections, &selection->request))
        return selection;
    selection_free(selection);
    return NULL;
}

static struct entry_picked picked_at(const struct entry_view *entry, uint32_t i)
{
    struct entry_picked picked;
    memcpy(&picked, entry->body + sizeof(struct entry_pick) + i * sizeof picked, sizeof picked);
    return picked;
}

/* Returns the selection that these picks belong to, with room for them. */
static struct image_selection *pick_selection(struct image *self, const struct entry_pick *head, uint32_t table)
{
    struct image_selection *selection = request_find(&self->selections, head->client, head->id);
    if (selection && !selection->answered && selection->table == table) {
        if (!selection_grow(selection, head->n))
            return NULL;
    } else {
        selection = selection_new(self, head->client, head->id, head->n);
    }
    if (selection) {
        selection->table = table;
        selection->want = head->want;
        selection->flags = head->flags & ~(uint32_t)PICK_COUNTED;
        selection->table_size = head->table_size;
    }
    return selection;
}

static rp_status apply_pick(struct image *self, struct image_table *table, const struct entry_view *entry,
                            rp_error *err)
{
    struct entry_pick head;
    memcpy(&head, entry->body, sizeof head);
    for (uint32_t i = 0; i < head.n; i++)
        if (!item_at(table, picked_at(entry, i).slot, err))
            return RP_BAD_MESSAGE;
    struct image_selection *selection = NULL;
    if (head.client || head.id) {
        selection = pick_selection(self, &head, (uint32_t)(table - self->tables));
        if (!selection)
            return err_set(err, RP_NO_MEMORY, "no memory for a selection");
    }
    for (uint32_t i = 0; i < head.n; i++) {
        struct entry_picked picked = picked_at(entry, i);
        struct image_item *item = &table->items[picked.slot];
        item->times_sampled = picked.times_sampled;
        table->unique_samples += picked.times_sampled == 1;
        if (!selection)
            continue;
        if (!item_copy(&selection->items[selection->n], item))
            return err_set(err, RP_NO_MEMORY, "no memory for a selection");
        selection->probability[selection->n++] = picked.probability;
    }
    table->limiter.samples += (head.flags & (PICK_PAID | PICK_COUNTED)) == PICK_PAID ? 0 : head.n;
    table->total_samples += head.n;
    table_changed(self, table);
    return RP_OK;
}

static rp_status apply_answered(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_request request;
    memcpy(&request, entry->body, sizeof request);
    struct image_selection *selection = request_find(&self->selections, request.client, request.id);
    if (selection)
        selection->answered = true;
    return RP_OK;
}

static rp_status apply_forget(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_request request;
    memcpy(&request, entry->body, sizeof request);
    selection_drop(self, request_find(&self->selections, request.client, request.id));
    reply_drop(self, request_find(&self->replies, request.client, request.id));
    return RP_OK;
}

static rp_status apply_reply(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_request request;
    memcpy(&request, entry->body, sizeof request);
    size_t size = entry->size - sizeof request;
    struct image_reply *reply = need_alloc(sizeof *reply);
    *reply = (struct image_reply){
        .request = {.client = request.client, .id = request.id}, .frame = malloc(size ? size : 1), .size = size};
    reply_drop(self, request_find(&self->replies, request.client, request.id));
    if (!reply->frame || !request_add(&self->replies, &reply->request)) {
        reply_free(reply);
        return err_set(err, RP_NO_MEMORY, "no memory for a reply");
    }
    memcpy(reply->frame, entry->body + sizeof request, size);
    if (self->replies.n > IMAGE_REPLIES)
        reply_drop(self, image_reply(self->replies.oldest));
    return RP_OK;
}

/* Reads one item of a checkpoint's selection; its chunks start at *chunk. */
static rp_status selected_read(struct image *self, const struct entry_selected *from, const uint8_t *places,
                               struct image_item *out, rp_error *err)
{
    struct image_layout *layout = layout_find(self, from->layout);
    if (!layout && from->chunks)
        return err_set(err, RP_BAD_MESSAGE, "layout %u was not described", from->layout);
    *out = (struct image_item){.key = from->key,
                               .priority = from->priority,
                               .insert_ns = time_here(self, self->start.clock_ns - (int64_t)from->age_ns),
                               .policy = from->policy,
                               .times_sampled = from->times_sampled,
                               .offset = from->offset,
                               .length = from->length};
    if (!item_places(out, places, from->chunks))
        return err_set(err, RP_NO_MEMORY, "no memory for a selection");
    out->layout = from->chunks ? layout : NULL;
    if (out->layout)
        layout->refs++;
    return RP_OK;
}

static rp_status apply_selection(struct image *self, struct image_table *table, const struct entry_view *entry,
                                 rp_error *err)
{
    struct entry_selection head;
    memcpy(&head, entry->body, sizeof head);
    struct image_selection *selection = selection_new(self, head.client, head.id, head.n);
    if (!selection)
        return err_set(err, RP_NO_MEMORY, "no memory for a selection");
    selection->table = (uint32_t)(table - self->tables);
    selection->want = head.want;
    selection->flags = head.flags;
    selection->table_size = head.table_size;
    selection->answered = head.answered != 0;
    const uint8_t *items = entry->body + sizeof head;
    const uint8_t *places = items + head.n * sizeof(struct entry_selected);
    for (uint32_t i = 0; i < head.n; i++) {
        struct entry_selected selected;
        memcpy(&selected, items + i * sizeof selected, sizeof selected);
        rp_status status = selected_read(self, &selected, places, &selection->items[i], err);
        if (status != RP_OK) {
            selection_drop(self, selection);
            return status;
        }
        selection->n++;
        selection->probability[i] = selected.probability;
        places += (size_t)selected.chunks * 8;
    }
    return RP_OK;
}

void image_init(struct image *self)
{
    *self = (struct image){.most_slots = MOST_SLOTS, .next_ordinal = 1, .whole = true};
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
    sessions_clear(self);
    requests_clear(self);
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
    image_clear_small(self);
    for (uint32_t i = 0; i < self->n_tables; i++)
        table_fini(&self->tables[i]);
    for (uint32_t i = 0; i < self->n_layouts; i++)
        layout_release(&self->layouts[i]);
    free(self->layouts);
    free(self->map);
    free(self->tables);
    free(self->sessions);
    free(self->slots);
    free(self->counters);
    *self = (struct image){.notes = self->notes,
                           .n_notes = self->n_notes,
                           .notes_capacity = self->notes_capacity,
                           .most_slots = self->most_slots,
                           .next_ordinal = 1,
                           .whole = self->whole};
}

void image_fini(struct image *self)
{
    image_clear(self);
    free(self->notes);
    *self = (struct image){0};
}

void image_note(struct image *self, bool damage, const char *format, ...)
{
    self->notes = grown(self->notes, &self->notes_capacity, self->n_notes, sizeof *self->notes);
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
    return add_times(wall_ns, -clock_ns);
}

/* The times of further entries are in another process's clock. No time so far is after that process began. */
static void image_new_clock(struct image *self, int64_t wall_ns, int64_t clock_ns)
{
    int64_t zero = clock_zero(self->start.wall_ns, self->start.clock_ns);
    int64_t moved = add_times(clock_zero(wall_ns, clock_ns), zero == INT64_MIN ? INT64_MAX : -zero);
    self->adjust = add_times(self->adjust, moved);
    int64_t now = add_times(clock_ns, self->adjust);
    for (uint32_t i = 0; i < self->n_tables; i++)
        table_clamp(&self->tables[i], now);
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (self->slots[i].put_ns > now)
            self->slots[i].put_ns = now;
    for (struct image_request *at = self->selections.oldest; at; at = at->newer)
        for (uint32_t k = 0; k < image_selection(at)->n; k++)
            if (image_selection(at)->items[k].insert_ns > now)
                image_selection(at)->items[k].insert_ns = now;
}

static rp_status apply_start(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_start start;
    memcpy(&start, entry->body, sizeof start);
    if (self->started && start.instance != self->start.instance)
        image_new_clock(self, start.wall_ns, start.clock_ns);
    self->start = start;
    self->started = true;
    self->in_checkpoint = false;
    for (uint32_t i = 0; i < self->n_map; i++)
        self->map[i] = IMAGE_NOWHERE;
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
    self->in_checkpoint = true;
    return RP_OK;
}

static rp_status apply_end(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_end end;
    memcpy(&end, entry->body, sizeof end);
    if (!self->in_checkpoint)
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

/* Returns the slot of this name, which is made if there is none. */
static struct image_slot *slot_named(struct image *self, const char *name, size_t size)
{
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (strlen(self->slots[i].name) == size && memcmp(self->slots[i].name, name, size) == 0)
            return &self->slots[i];
    self->slots = grown(self->slots, &self->slots_capacity, self->n_slots, sizeof *self->slots);
    struct image_slot *slot = &self->slots[self->n_slots++];
    *slot = (struct image_slot){.name = need_print("%.*s", (int)size, name)};
    return slot;
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
    struct image_slot *slot = slot_named(self, (const char *)name, head.name_bytes);
    memcpy(value, name + head.name_bytes, head.value_bytes);
    free(slot->value);
    slot->value = value;
    slot->bytes = head.value_bytes;
    slot->version = head.version;
    slot->put_ns = time_here(self, head.put_ns);
    return RP_OK;
}

static rp_status apply_counter(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_value head;
    memcpy(&head, entry->body, sizeof head);
    const char *name = (const char *)entry->body + sizeof head;
    for (uint32_t i = 0; i < self->n_counters; i++)
        if (strlen(self->counters[i].name) == head.name_bytes &&
            memcmp(self->counters[i].name, name, head.name_bytes) == 0) {
            self->counters[i].value = (int64_t)head.version;
            return RP_OK;
        }
    self->counters = grown(self->counters, &self->counters_capacity, self->n_counters, sizeof *self->counters);
    self->counters[self->n_counters++] =
        (struct image_counter){need_print("%.*s", (int)head.name_bytes, name), (int64_t)head.version};
    return RP_OK;
}

typedef rp_status apply_fn(struct image *self, const struct entry_view *entry, rp_error *err);
static apply_fn *const appliers[ENTRY_TYPES] = {
    [ENTRY_START] = apply_start,         [ENTRY_TABLE] = apply_table,
    [ENTRY_LAYOUT] = apply_layout,       [ENTRY_SESSION] = apply_session,
    [ENTRY_FORM] = apply_form,           [ENTRY_PROGRESS] = apply_progress,
    [ENTRY_REJECTION] = apply_rejection, [ENTRY_SESSION_END] = apply_session_end,
    [ENTRY_SLOT] = apply_slot,           [ENTRY_COUNTER] = apply_counter,
    [ENTRY_REPLY] = apply_reply,         [ENTRY_ANSWERED] = apply_answered,
    [ENTRY_FORGET] = apply_forget,       [ENTRY_CHECKPOINT] = apply_checkpoint,
    [ENTRY_ORDINAL] = apply_ordinal,     [ENTRY_END] = apply_end,
};

/* Entries that are about one table. */
typedef rp_status apply_table_fn(struct image *self, struct image_table *table, const struct entry_view *entry,
                                 rp_error *err);
static apply_table_fn *const table_appliers[ENTRY_TYPES] = {
    [ENTRY_INSERT] = apply_insert,       [ENTRY_REMOVE] = apply_remove,     [ENTRY_PRIORITY] = apply_priority,
    [ENTRY_PICK] = apply_pick,           [ENTRY_RESET] = apply_reset,       [ENTRY_LIMITER] = apply_limiter,
    [ENTRY_SELECTOR] = apply_selector,   [ENTRY_ITEM] = apply_item,         [ENTRY_FREE] = apply_free,
    [ENTRY_SELECTION] = apply_selection, [ENTRY_EPISODES] = apply_episodes, [ENTRY_CHARGE] = apply_charge,
};

rp_status image_apply(struct image *self, const struct entry_view *entry, rp_error *err)
{
    if (entry->type != ENTRY_START && !self->started)
        return err_set(err, RP_BAD_MESSAGE, "a %s entry before the first START", entry_name(entry->type));
    rp_status status = RP_OK; /* CHUNK and PARTS say nothing about the state */
    if (appliers[entry->type]) {
        status = appliers[entry->type](self, entry, err);
    } else if (table_appliers[entry->type]) {
        uint32_t index = table_index(self, entry->table);
        status = index == IMAGE_NOWHERE
                     ? err_set(err, RP_BAD_MESSAGE, "table %u was not named in this file", entry->table)
                     : table_appliers[entry->type](self, &self->tables[index], entry, err);
    }
    if (status != RP_OK)
        err_prefix(err, "%s entry at offset %llu", entry_name(entry->type), (unsigned long long)disk_offset(entry->at));
    return status;
}

void image_finish(struct image *self)
{
    int64_t by = self->adjust == INT64_MIN ? INT64_MAX : -self->adjust;
    self->adjust = 0;
    if (by == 0)
        return;
    for (uint32_t i = 0; i < self->n_tables; i++)
        table_shift(&self->tables[i], by);
    for (uint32_t i = 0; i < self->n_slots; i++)
        self->slots[i].put_ns = add_times(self->slots[i].put_ns, by);
    for (struct image_request *at = self->selections.oldest; at; at = at->newer)
        for (uint32_t k = 0; k < image_selection(at)->n; k++) {
            struct image_item *item = &image_selection(at)->items[k];
            item->insert_ns = add_times(item->insert_ns, by);
        }
}

void image_rebase(struct image *self, int64_t wall_ns, int64_t clock_ns)
{
    if (self->started)
        image_new_clock(self, wall_ns, clock_ns);
    self->start.wall_ns = self->wall_ns = wall_ns;
    self->start.clock_ns = self->clock_ns = clock_ns;
    image_finish(self);
}
