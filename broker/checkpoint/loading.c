#include "broker/checkpoint/loading.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "broker/peer/peers.h"
#include "broker/select/selector.h"
#include "broker/session/flow.h"
#include "broker/session/session.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

_Static_assert(sizeof(struct chunk *) == sizeof(uint64_t), "a pointer has room for a place");

#define NOWHERE UINT32_MAX
#define MOST_SLOTS ((1u << 30) + (1u << 28))
/* No broker has more layouts than this. */
#define LAYOUT_IDS (1u << 22)
#define FORM_IDS 65536u

static int64_t add_times(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? INT64_MAX : INT64_MIN;
    return sum;
}

static int64_t time_here(const struct loading *self, int64_t time_ns)
{
    return add_times(time_ns, self->adjust);
}

/* ---- sorting ---- */

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)
#define PASSES 6u /* 66 bits */

static bool is_sorted(const struct pair *pairs, uint64_t n)
{
    for (uint64_t i = 1; i < n; i++)
        if (pairs[i].key < pairs[i - 1].key)
            return false;
    return true;
}

bool pairs_sort(struct pair *pairs, uint64_t n)
{
    if (is_sorted(pairs, n))
        return true;
    struct pair *other = malloc(n * sizeof *other);
    uint64_t(*counts)[DIGITS] = calloc(PASSES, sizeof *counts);
    if (other && counts) {
        for (uint64_t i = 0; i < n; i++)
            for (uint32_t pass = 0; pass < PASSES; pass++)
                counts[pass][pairs[i].key >> (pass * DIGIT_BITS) & (DIGITS - 1)]++;
        struct pair *from = pairs, *to = other;
        for (uint32_t pass = 0; pass < PASSES; pass++) {
            uint32_t shift = pass * DIGIT_BITS;
            if (counts[pass][from[0].key >> shift & (DIGITS - 1)] == n)
                continue; /* all keys have the same digit */
            uint64_t sum = 0;
            for (uint32_t digit = 0; digit < DIGITS; digit++) {
                uint64_t count = counts[pass][digit];
                counts[pass][digit] = sum;
                sum += count;
            }
            for (uint64_t i = 0; i < n; i++)
                to[counts[pass][from[i].key >> shift & (DIGITS - 1)]++] = from[i];
            struct pair *swap = from;
            from = to;
            to = swap;
        }
        if (from != pairs)
            memcpy(pairs, from, n * sizeof *pairs);
    }
    bool ok = other && counts;
    free(other);
    free(counts);
    return ok;
}

/* Returns the table of the file's index. NULL with err set: this file has not named it. */
static struct loaded_table *table_of(const struct loading *self, uint32_t in_file, rp_error *err)
{
    if (in_file < self->n_map && self->map[in_file] != NOWHERE)
        return &self->tables[self->map[in_file]];
    return err_null(err, RP_BAD_MESSAGE, "table %u was not named in this file", in_file);
}

uint64_t loading_items(const struct loading *self)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        n += self->tables[i].table->in.size;
    return n;
}

static void layout_drop(const struct loading *self, uint32_t id)
{
    layouts_release(self->state->layouts, layouts_at(self->state->layouts, id));
}

/* ---- slots ---- */

struct pair *loading_by_age(const struct table *table)
{
    struct pair *pairs = malloc((table->in.size + 1) * sizeof *pairs);
    uint32_t n = 0;
    for (uint32_t slot = 0; pairs && slot < table->in.high; slot++)
        if (table->in.items[slot].span.n)
            pairs[n++] = (struct pair){(uint64_t)table->in.items[slot].insert_ns ^ UINT64_C(1) << 63, slot};
    if (pairs && !pairs_sort(pairs, n)) {
        free(pairs);
        return NULL;
    }
    return pairs;
}

/* No item was inserted after this time. The order of insertion stays. */
static void clamp_times(struct loaded_table *self, int64_t now)
{
    struct table *table = self->table;
    if (self->newest_ns <= now || table->in.size == 0)
        return;
    struct pair *aged = loading_by_age(table);
    int64_t most = now;
    for (uint32_t n = aged ? table->in.size : 0; n-- > 0;) {
        struct item *item = &table->in.items[aged[n].value];
        if (item->insert_ns <= most)
            break;
        item->insert_ns = most;
        most = add_times(most, -1);
    }
    free(aged);
    self->newest_ns = now;
}

/* Frees an item whose span has places. */
static void slot_clear(const struct loading *self, struct table *table, uint32_t slot)
{
    struct span *span = &table->in.items[slot].span;
    if (!span->n)
        return;
    if (span->n > 1)
        free(span->many);
    layout_drop(self, span->layout);
    span->n = 0;
    table->in.size--;
}

static void slots_clear(const struct loading *self, struct table *table)
{
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        slot_clear(self, table, slot);
    table->in.high = 0;
}

/* Maps memory of zeros for more slots; pages are there when they are touched. NULL: no memory, and the old map stays. */
static void *map_slots(void *old, uint32_t before, uint32_t slots, size_t size)
{
    void *map =
        old ? mremap(old, before * size, slots * size, MREMAP_MAYMOVE)
            : mmap(NULL, slots * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

/* True if a selector may not be in the order of insertion. A list is, unless items return from leases or groups are
 * complete in another order than they began; that order of groups is not kept. */
static bool is_ranked(const struct table *table, const rp_selector_ops *ops)
{
    return ops->order && (ops->order != selector_fifo.order || table->config->max_times_sampled == 1);
}

/* Lets the table have the slots that a file gives it: what a broker gives a table of this size (see soft_capacity), or the
 * number in the file if that is larger. */
static rp_status slots_allow(struct loading *self, struct loaded_table *to, uint64_t max_size, uint64_t said,
                             rp_error *err)
{
    struct table *table = to->table;
    uint64_t most = (max_size < UINT32_MAX ? max_size : UINT32_MAX) / 4 * 5 + 16;
    most = said > most ? said : most;
    uint32_t slots = most < self->most_slots ? (uint32_t)most : self->most_slots;
    if (slots <= to->slots)
        return RP_OK;
    bool ok = true;
    if (!to->configured) {
        void *items = map_slots(table->in.items, to->slots, slots, sizeof *table->in.items);
        ok = items != NULL;
        table->in.items = ok ? items : table->in.items;
        table->capacity = ok ? slots : table->capacity;
    } else if (is_ranked(table, table->sampler_ops) || is_ranked(table, table->remover_ops)) {
        void *rank = map_slots(to->rank, to->slots, slots, sizeof *to->rank);
        ok = rank != NULL;
        to->rank = ok ? rank : to->rank;
    }
    if (!ok)
        return err_set(err, RP_NO_MEMORY, "no memory for the %u slots of table '%s'", slots, table->name);
    to->slots = slots;
    return RP_OK;
}

static rp_status slot_reserve(struct loaded_table *self, uint32_t slot, rp_error *err)
{
    struct table *table = self->table;
    if (slot >= self->slots)
        return err_set(err, RP_BAD_MESSAGE, "slot %u is outside of table '%s', which has %u", slot, table->name,
                       self->slots);
    if (slot < table->capacity)
        return RP_OK;
    uint64_t more = (uint64_t)slot + slot / 4 + 1;
    return table_grow(table, more < self->slots ? (uint32_t)more : self->slots, err);
}

static struct item *item_at(const struct table *table, uint32_t slot, rp_error *err)
{
    if (slot < table->in.high && table->in.items[slot].span.n)
        return &table->in.items[slot];
    return err_null(err, RP_BAD_MESSAGE, "slot %u of table '%s' holds no item", slot, table->name);
}

static void rank_set(struct loaded_table *self, uint32_t slot, uint64_t sampler, uint64_t remover)
{
    if (!self->rank)
        return;
    self->rank[slot][0] = sampler;
    self->rank[slot][1] = remover;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t *most = self->rank[slot][i] < RANK_NEW ? &self->returned : &self->highest;
        *most = self->rank[slot][i] > *most ? self->rank[slot][i] : *most;
    }
}

/* Gives an item a new rank in a selector: behind all others; or, if it returns, behind those that did. */
static void rank_move(struct loaded_table *self, uint32_t slot, uint32_t which, bool returns)
{
    const rp_selector_ops *ops = which ? self->table->remover_ops : self->table->sampler_ops;
    self->rank[slot][which] = ++*(returns && ops->put_back ? &self->returned : &self->highest);
}

/* Puts an item into a free slot. */
static rp_status slot_put(struct loading *self, struct loaded_table *to, const struct entry_insert *insert,
                          const uint8_t *places, uint32_t times_sampled, rp_error *err)
{
    struct table *table = to->table;
    struct layout *layout = insert->layout < self->n_layouts ? self->layouts[insert->layout] : NULL;
    if (!layout)
        return err_set(err, RP_BAD_MESSAGE, "layout %u was not described", insert->layout);
    uint32_t n = insert->n_chunks;
    struct item item = {
        .key = insert->key,
        .priority = insert->priority,
        .insert_ns = time_here(self, insert->insert_ns),
        .policy = insert->policy,
        .span = {.n = n, .offset = insert->offset, .length = insert->length, .layout = layout->id},
        .times_sampled = times_sampled,
    };
    _Static_assert(sizeof *item.span.many == sizeof(uint64_t), "a place lies where its chunk will be");
    if (n > 1 && !(item.span.many = malloc(n * sizeof *item.span.many)))
        return err_set(err, RP_NO_MEMORY, "no memory for the items of table '%s'", table->name);
    memcpy(n > 1 ? (void *)item.span.many : &item.span.one, places, n * sizeof(uint64_t));
    layout->refs++;
    table->in.items[insert->slot] = item;
    table->in.size++;
    table->in.high = insert->slot >= table->in.high ? insert->slot + 1 : table->in.high;
    to->newest_ns = item.insert_ns > to->newest_ns ? item.insert_ns : to->newest_ns;
    return RP_OK;
}

/* Returns the number by which a request is known. If two requests share a number, the later one is known. */
static uint64_t request_name(uint64_t client, uint64_t id)
{
    return (client ^ (id * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
}

/* Returns the lease of a sample; of this table, made if need be. NULL: there is none. */
static struct loaded_lease *lease_named(struct loading *self, uint64_t client, uint64_t id, const struct table *table)
{
    uintptr_t index = (uintptr_t)idmap_get(&self->leases_by_request, request_name(client, id));
    struct loaded_lease *lease = index ? &self->leases[index - 1] : NULL;
    if (lease && lease->client == client && lease->id == id && (!table || lease->table == table))
        return lease;
    if (!table)
        return NULL;
    self->leases = need_room(self->leases, self->n_leases, &self->leases_capacity, sizeof *self->leases);
    lease = &self->leases[self->n_leases++];
    *lease = (struct loaded_lease){.client = client, .id = id, .table = table};
    idmap_put(&self->leases_by_request, request_name(client, id), (void *)(uintptr_t)self->n_leases);
    return lease;
}

/* ---- sessions ----
 *
 * Entries of an unknown session are skipped: it has ended, and what still came from it concerned its items alone. */

static struct session *session_of(const struct loading *self, uint64_t ordinal)
{
    return self->state->sessions ? idmap_get(&self->sessions, ordinal) : NULL;
}

static void session_end(struct loading *self, uint64_t ordinal)
{
    struct session *session = session_of(self, ordinal);
    idmap_remove(&self->sessions, ordinal);
    if (session)
        session_close(session);
}

static struct session *session_revive(const struct loading *self, uint32_t ordinal, const Replay__Hello *hello,
                                      rp_error *err)
{
    uint64_t key = hello->oldest_number;
    if (hello->session.len != WIRE_SESSION_BYTES || ordinal >= KEY_ORDINALS || ordinal_of_key(key) != ordinal)
        return err_null(err, RP_BAD_MESSAGE, "session %u has no id, or its first key, %llu, is not one of its ordinal",
                        ordinal, (unsigned long long)key);
    struct identity *owner =
        identity_by_key(&self->state->peers->identities, hello->owner.len == KEY_BYTES ? hello->owner.data : NULL);
    struct columns *columns = columns_new(hello->columns, hello->n_columns, err);
    if (!columns)
        return NULL;
    struct session_origin origin = {
        hello->session.data, hello->name ? hello->name : "", ordinal, {key, KEY_COUNTERS - (key & (KEY_COUNTERS - 1))}};
    struct session *session = session_restore(self->state->sessions, &origin, columns, err);
    if (!session)
        columns_release(columns);
    else
        session_set_owner(session, owner);
    return session;
}

static rp_status apply_session(struct loading *self, const void *body)
{
    uint64_t ordinal = ((const struct entry_named *)body)->number;
    if (ordinal == 0 || ordinal > UINT32_MAX)
        return err_set(self->err, RP_BAD_MESSAGE, "session %llu has an impossible ordinal",
                       (unsigned long long)ordinal);
    Replay__Hello *hello = replay__hello__unpack(NULL, self->entry->size - sizeof(struct entry_named),
                                                 (const uint8_t *)body + sizeof(struct entry_named));
    if (!hello)
        return err_set(self->err, RP_BAD_MESSAGE, "the HELLO of session %llu cannot be decoded",
                       (unsigned long long)ordinal);
    session_end(self, ordinal);
    void *session = self->state->sessions ? (void *)session_revive(self, (uint32_t)ordinal, hello, self->err) : self;
    replay__hello__free_unpacked(hello, NULL);
    if (!session)
        return RP_BAD_MESSAGE;
    idmap_put(&self->sessions, ordinal, session);
    self->next_ordinal = ordinal >= self->next_ordinal ? ordinal + 1 : self->next_ordinal;
    return RP_OK;
}

static rp_status apply_form(struct loading *self, const void *body)
{
    const struct entry_named *named = body;
    const uint8_t *packed = (const uint8_t *)body + sizeof *named;
    size_t size = self->entry->size - sizeof *named;
    struct session *session = session_of(self, named->number);
    if (!session)
        return RP_OK;
    Replay__Layout *form = replay__layout__unpack(NULL, size, packed);
    if (!form || form->id >= FORM_IDS) {
        if (form)
            replay__layout__free_unpacked(form, NULL);
        return err_set(self->err, RP_BAD_MESSAGE, "a layout of session %u cannot be decoded", session->ordinal);
    }
    intake_register(session, form, packed, size);
    replay__layout__free_unpacked(form, NULL);
    return RP_OK;
}

/* Returns the session's flow to a table. NULL: the table is not configured. */
static struct flow *flow_of(struct session *session, const struct loaded_table *to)
{
    struct flow *flow = session && to && to->configured ? session_flow(session, to->table) : NULL;
    /* After an older state was loaded, a writer may continue with later items; without this they would be refused for
     * ever. */
    if (flow)
        flow->jumps = true;
    return flow;
}

static void flow_resolved(struct flow *flow, uint64_t number)
{
    flow->arrived = flow->resolved = flow->told_resolved = number;
    flow->allowed = flow->allowed > number ? flow->allowed : number;
}

static rp_status apply_progress(struct loading *self, const void *body)
{
    const struct entry_progress *from = body;
    const struct entry_flow *flows = (const void *)(from + 1);
    struct session *session = session_of(self, from->session);
    for (uint32_t i = 0; i < from->n_flows; i++)
        if (!table_of(self, flows[i].table, self->err))
            return RP_BAD_MESSAGE;
    if (!session)
        return RP_OK;
    for (uint32_t i = 0; i < from->n_flows; i++) {
        struct flow *flow = flow_of(session, table_of(self, flows[i].table, NULL));
        if (!flow)
            continue;
        flow->rejected = flows[i].rejected;
        flow->allowed = flows[i].allowed;
        flow_resolved(flow, flows[i].resolved);
    }
    session->epoch = from->epoch > 0 ? from->epoch : 1;
    session->received = from->received;
    session->counted = from->counted;
    session->received_bytes = session->returned_bytes = session->told_returned = from->received_bytes;
    session->allowed_bytes = from->allowed_bytes > from->received_bytes ? from->allowed_bytes : from->received_bytes;
    /* A checkpoint holds only unconfirmed ones. */
    if (self->phase == LOAD_JOURNAL)
        credit_confirm(session, from->confirmed_rejections);
    session->confirmed_rejections = from->confirmed_rejections;
    return RP_OK;
}

static rp_status apply_rejection(struct loading *self, const void *body)
{
    const struct entry_rejection *from = body;
    struct session *session = session_of(self, from->session);
    struct loaded_table *to = NULL;
    if (from->table != REJECTED_NOWHERE && !(to = table_of(self, from->table, self->err)))
        return RP_BAD_MESSAGE;
    if (!session)
        return RP_OK;
    struct rejection rejection = {
        to && to->configured ? to->table->id : REJECTED_NOWHERE, (rp_status)from->status, from->item, from->key,
        need_print("%.*s", (int)(self->entry->size - sizeof *from), (const char *)(from + 1))};
    credit_keep_rejection(session, &rejection);
    free(rejection.text);
    struct flow *flow = flow_of(session, to);
    /* The counters of a checkpoint include its rejections. An item that was not the next one of its flow resolves
     * nothing. */
    if (flow && self->phase == LOAD_JOURNAL && from->item == flow->resolved + 1) {
        flow_resolved(flow, from->item);
        flow->rejected++;
        to->table->stats.rejected++;
    }
    return RP_OK;
}

/* ---- tables ---- */

static void map_table(struct loading *self, uint32_t in_file, uint32_t index)
{
    if (in_file >= self->n_map) {
        uint32_t n = in_file + 16;
        self->map = need_resize(self->map, n, sizeof *self->map);
        memset(self->map + self->n_map, 0xff, (n - self->n_map) * sizeof *self->map);
        self->n_map = n;
    }
    self->map[in_file] = index;
}

/* Returns the index of the table of this name, which is added if there is none. */
static uint32_t table_named(struct loading *self, const char *name)
{
    uint32_t index = 0;
    while (index < self->n_tables && strcmp(self->tables[index].table->name, name) != 0)
        index++;
    if (index < self->n_tables)
        return index;
    struct table *table = tables_find(self->state->tables, name, strlen(name));
    bool configured = table != NULL;
    if (!table) {
        table = need_alloc(sizeof *table);
        *table = (struct table){
            .name = need_text(name), .id = self->state->tables->n + index, .stats = REPLAY__TABLE_INFO__INIT};
    }
    self->tables = need_resize(self->tables, index + 1, sizeof *self->tables);
    self->tables[self->n_tables++] =
        (struct loaded_table){.table = table, .configured = configured, .highest = RANK_NEW, .newest_ns = INT64_MIN};
    return index;
}

/* Takes the counters of a TABLE entry. Those in a segment are as of its beginning, so counters that were applied since
 * are kept. */
static void table_counters(struct loaded_table *self, const struct entry_table *head, const Replay__TableInfo *info,
                           bool all)
{
    struct entry_limiter before = self->limiter;
    self->limiter = head->limiter;
    if (!all) {
        self->limiter.inserts = before.inserts;
        self->limiter.samples = before.samples;
        self->limiter.deletes = before.deletes;
        return;
    }
    if (info->restored)
        table_copy_counters(&info->restored->base, &self->table->stats.base);
    self->table->resets = head->resets;
}

static rp_status apply_table(struct loading *self, const void *body)
{
    const struct entry_table *head = body;
    Replay__TableInfo *info =
        replay__table_info__unpack(NULL, self->entry->size - sizeof *head, (const uint8_t *)(head + 1));
    if (!info || !info->name[0]) {
        if (info)
            replay__table_info__free_unpacked(info, NULL);
        return err_set(self->err, RP_BAD_MESSAGE, "the description of table %u cannot be decoded", self->entry->table);
    }
    uint32_t index = table_named(self, info->name);
    struct loaded_table *to = &self->tables[index];
    rp_status status = slots_allow(self, to, info->max_size, head->slots, self->err);
    if (status == RP_OK) {
        map_table(self, self->entry->table, index);
        table_counters(to, head, info, !to->info || self->phase <= LOAD_CHECKPOINT);
        Replay__TableInfo *old = to->info;
        to->info = info;
        info = old;
    }
    if (info)
        replay__table_info__free_unpacked(info, NULL);
    return status;
}

/* The signature is checked when all is loaded: items before a reset may have had another one. */
static rp_status apply_layout(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_named *named = body;
    uint64_t id = named->number;
    if (id >= LAYOUT_IDS)
        return err_set(self->err, RP_BAD_MESSAGE, "layout %llu has an impossible id", (unsigned long long)id);
    if (id >= self->n_layouts) {
        uint32_t n = (uint32_t)id + (uint32_t)id / 2 + 64;
        self->layouts = need_resize(self->layouts, n, sizeof(*self->layouts));
        memset(self->layouts + self->n_layouts, 0, (n - self->n_layouts) * sizeof(*self->layouts));
        self->n_layouts = n;
    }
    Replay__Layout *wire =
        replay__layout__unpack(NULL, self->entry->size - sizeof *named, (const uint8_t *)body + sizeof *named);
    if (!wire)
        return err_set(self->err, RP_BAD_MESSAGE, "layout %llu cannot be decoded", (unsigned long long)id);
    rp_error why = {0};
    struct layout *layout = NULL;
    struct columns *columns = columns_new(wire->columns, wire->n_columns, &why);
    if (columns)
        layout = layouts_intern(self->state->layouts, wire, columns, to->table->id, (struct signature){0}, &why);
    columns_release(columns);
    replay__layout__free_unpacked(wire, NULL);
    if (!layout)
        return err_set(self->err, RP_BAD_MESSAGE, "%s", why.text);
    if (self->layouts[id])
        layouts_release(self->state->layouts, self->layouts[id]);
    self->layouts[id] = layout;
    return RP_OK;
}

static rp_status apply_insert(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_insert *insert = body;
    struct table *table = to->table;
    RP_TRY(slot_reserve(to, insert->slot, self->err));
    if (table->in.items[insert->slot].span.n)
        return err_set(self->err, RP_BAD_MESSAGE, "slot %u of table '%s' is taken already", insert->slot, table->name);
    RP_TRY(slot_put(self, to, insert, (const uint8_t *)body + sizeof *insert, 0, self->err));
    rank_set(to, insert->slot, to->highest + 1, to->highest + 1);
    if (to->configured && table->in.groups.slots)
        table->in.items[insert->slot].stamp = ITEM_HIDDEN;
    struct flow *flow = flow_of(session_of(self, insert->session), to);
    if (flow)
        flow_resolved(flow, insert->number);
    to->limiter.inserts++;
    table->stats.total_inserts++;
    return RP_OK;
}

/* A table that has no groups any more, or is not configured, has no use for it. */
static rp_status apply_group(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_group *from = body;
    RP_TRY(slot_reserve(to, from->slot, self->err));
    if (to->configured && to->table->in.groups.slots)
        to->table->in.groups.slots[from->slot] = (struct group_member){.group = from->group, .leader = from->leader};
    return RP_OK;
}

static rp_status apply_item(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_item *from = body;
    RP_TRY(slot_reserve(to, from->insert.slot, self->err));
    slot_clear(self, to->table, from->insert.slot);
    RP_TRY(slot_put(self, to, &from->insert, (const uint8_t *)body + sizeof *from, from->times_sampled, self->err));
    struct item *item = &to->table->in.items[from->insert.slot];
    item->stamp = from->hidden ? ITEM_HIDDEN : 0;
    if (!(from->hidden & HIDDEN_LEASED)) {
        rank_set(to, from->insert.slot, from->order[0], from->order[1]);
    } else {
        struct loaded_lease *lease = lease_named(self, from->order[0], from->order[1], to->table);
        lease->ms = from->hidden >> HIDDEN_BITS;
        lease->answered = from->hidden & HIDDEN_ANSWERED;
        item->stamp |= (uint32_t)(lease - self->leases) + 1;
    }
    return RP_OK;
}

static rp_status apply_free(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_slot *from = body;
    RP_TRY(slot_reserve(to, from->slot, self->err));
    slot_clear(self, to->table, from->slot);
    return RP_OK;
}

static rp_status apply_remove(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    uint32_t slot = ((const struct entry_slot *)body)->slot;
    if (!item_at(to->table, slot, self->err))
        return RP_BAD_MESSAGE;
    slot_clear(self, to->table, slot);
    to->limiter.deletes++;
    return RP_OK;
}

static rp_status apply_priority(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_priority *from = body;
    struct item *item = item_at(to->table, from->slot, self->err);
    if (!item)
        return RP_BAD_MESSAGE;
    item->priority = from->priority;
    if (to->rank && to->table->sampler_ops->update)
        rank_move(to, from->slot, 0, false);
    if (to->rank && to->table->remover_ops->update)
        rank_move(to, from->slot, 1, false);
    to->table->stats.updates++;
    return RP_OK;
}

static rp_status apply_hidden(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_slot *from = body;
    struct item *item = item_at(to->table, from->slot, self->err);
    if (!item)
        return RP_BAD_MESSAGE;
    item->stamp = self->entry->type == ENTRY_HIDE ? ITEM_HIDDEN : 0;
    item->times_sampled -= from->how == SHOW_UNDELIVERED && item->times_sampled;
    for (uint32_t which = 0; to->rank && which < 2; which++)
        rank_move(to, from->slot, which, from->how != SHOW_LAST);
    return RP_OK;
}

static rp_status apply_reset(struct loading *self, const void *body)
{
    (void)body;
    struct loaded_table *to = self->to;
    slots_clear(self, to->table);
    if (self->phase != LOAD_JOURNAL)
        return RP_OK; /* an incremental checkpoint drops the items of its base; the counters are in its TABLE */
    to->limiter.inserts = to->limiter.samples = to->limiter.deletes = 0;
    to->limiter.offset = 0;
    table_count_reset(to->table);
    self->changed = true;
    return RP_OK;
}

static rp_status apply_limiter(struct loading *self, const void *body)
{
    memcpy(&self->to->limiter, body, sizeof self->to->limiter);
    return RP_OK;
}

static rp_status apply_selector(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_selector *from = body;
    uint8_t *state = malloc(from->bytes + 1);
    if (!state)
        return err_set(self->err, RP_NO_MEMORY, "no memory for a selector's state");
    memcpy(state, from + 1, from->bytes);
    free(to->selector[from->which]);
    to->selector[from->which] = state;
    to->selector_bytes[from->which] = from->bytes;
    return RP_OK;
}

/* ---- requests that may be repeated: replies, and selections of samples ---- */

static struct loaded_selection *selection_find(const struct loading *self, uint64_t client, uint64_t id)
{
    struct loaded_selection *found = idmap_get(&self->selections, request_name(client, id));
    return found && found->kept.info.client == client && found->kept.info.id == id ? found : NULL;
}

/* Only keys and numbers of its items are kept from now on. */
static void selection_strip(const struct loading *self, struct loaded_selection *selection)
{
    struct picks *picks = &selection->kept.picks;
    for (uint32_t i = 0; i < picks->n; i++)
        if (picks->chunks[i]) {
            layout_drop(self, picks->layout[i]);
            picks->chunks[i] = 0;
        }
    picks->n_refs = 0;
}

/* Does nothing for NULL. */
static void selection_drop(struct loading *self, struct loaded_selection *selection)
{
    if (!selection)
        return;
    uint64_t name = request_name(selection->kept.info.client, selection->kept.info.id);
    if (idmap_get(&self->selections, name) == selection)
        idmap_remove(&self->selections, name);
    TAILQ_REMOVE(&self->kept, selection, link);
    selection_strip(self, selection);
    picks_fini(&selection->kept.picks);
    free(selection);
}

/* Appends an empty selection, in place of an older one of the same request. */
static struct loaded_selection *selection_new(struct loading *self, const struct loaded_table *to, uint64_t client,
                                              uint64_t id)
{
    selection_drop(self, selection_find(self, client, id));
    struct loaded_selection *selection = need_alloc(sizeof *selection);
    *selection = (struct loaded_selection){.kept.info = {.client = client, .id = id, .table = to->table},
                                           .configured = to->configured};
    idmap_put(&self->selections, request_name(client, id), selection);
    TAILQ_INSERT_TAIL(&self->kept, selection, link);
    return selection;
}

/* Adds an item as it was picked. False: no memory. */
static bool loading_selection_add(const struct loading *self, struct loaded_selection *to, const struct item *item,
                                  const void *places, double probability)
{
    struct picks *picks = &to->kept.picks;
    const struct span *span = &item->span;
    if (!picks_reserve(picks, 1) || !picks_reserve_refs(picks, span->n))
        return false;
    uint32_t i = picks->n++;
    picks->key[i] = item->key;
    picks->priority[i] = item->priority;
    picks->probability[i] = probability;
    picks->times_sampled[i] = item->times_sampled;
    picks->age_ns[i] = (uint64_t)item->insert_ns;
    picks->policy[i] = item->policy;
    picks->layout[i] = span->layout;
    picks->offset[i] = span->offset;
    picks->length[i] = span->length;
    picks->chunks[i] = span->n;
    picks->step[i] = picks->session[i] = 0; /* as its first chunk says */
    picks->group[i] = 0;
    if (span->n) {
        memcpy(picks->refs + picks->n_refs, places, span->n * sizeof(uint64_t));
        layouts_at(self->state->layouts, span->layout)->refs++;
    }
    picks->n_refs += span->n;
    return true;
}

/* The same rule as in kept_samples_keep. */
static void selection_answered(const struct loading *self, struct loaded_selection *selection)
{
    selection->kept.info.answered = true;
    bool leased = selection->kept.info.flags & PICK_LEASED;
    if (selection->configured && (leased || !selection->kept.info.table->one_by_one))
        selection_strip(self, selection);
}

static rp_status apply_pick(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_pick *from = body;
    const struct entry_picked *picked = (const void *)(from + 1);
    for (uint32_t i = 0; i < from->n; i++)
        if (!item_at(to->table, picked[i].slot, self->err))
            return RP_BAD_MESSAGE;
    struct loaded_selection *selection = NULL;
    if (from->client || from->id) {
        selection = selection_find(self, from->client, from->id);
        if (!selection || selection->kept.info.answered || selection->kept.info.table != to->table)
            selection = selection_new(self, to, from->client, from->id);
        selection->kept.info.want = from->want;
        selection->kept.info.flags = from->flags & ~(uint32_t)PICK_COUNTED;
        selection->kept.picks.table_size = from->table_size;
    }
    uint32_t stamp = PICKED;
    if (from->flags & PICK_LEASED) {
        struct loaded_lease *lease = lease_named(self, from->client, from->id, to->table);
        lease->ms = from->lease_ms;
        lease->answered = false;
        stamp = ITEM_HIDDEN | ((uint32_t)(lease - self->leases) + 1);
    }
    for (uint32_t i = 0; i < from->n; i++) {
        struct item *item = &to->table->in.items[picked[i].slot];
        item->stamp = item_is_hidden(item) ? item->stamp : stamp; /* only the first member of a group is not hidden */
        item->times_sampled = picked[i].times_sampled - 1;
        table_count_sample(to->table, item);
        if (selection && !loading_selection_add(self, selection, item, span_chunks(&item->span), picked[i].probability))
            return err_set(self->err, RP_NO_MEMORY, "no memory for a sample that may be asked for again");
        if (selection && to->table->in.groups.slots)
            selection->kept.picks.group[selection->kept.picks.n - 1] = to->table->in.groups.slots[picked[i].slot].group;
    }
    bool counted = (from->flags & (PICK_PAID | PICK_COUNTED)) != PICK_PAID && !(from->flags & PICK_LEASED);
    to->limiter.samples += counted ? from->n : 0;
    return RP_OK;
}

static rp_status apply_answered(struct loading *self, const void *body)
{
    const struct entry_request *request = body;
    struct loaded_selection *selection = selection_find(self, request->client, request->id);
    struct loaded_lease *lease = lease_named(self, request->client, request->id, NULL);
    if (selection)
        selection_answered(self, selection);
    if (lease)
        lease->answered = true;
    return RP_OK;
}

static rp_status apply_forget(struct loading *self, const void *body)
{
    const struct entry_request *request = body;
    selection_drop(self, selection_find(self, request->client, request->id));
    return RP_OK;
}

static rp_status apply_selection(struct loading *self, const void *body)
{
    struct loaded_table *to = self->to;
    const struct entry_selection *head = body;
    const struct entry_selected *from = (const void *)(head + 1);
    const uint8_t *places = (const uint8_t *)(from + head->n);
    const uint64_t *groups =
        head->flags & PICK_GROUPED ? (const uint64_t *)(const void *)places + head->n_chunks : NULL;
    struct loaded_selection *selection = selection_new(self, to, head->client, head->id);
    bool ok = true;
    for (uint32_t i = 0; i < head->n && ok; places += (size_t)from[i++].chunks * 8) {
        struct layout *layout = from[i].layout < self->n_layouts ? self->layouts[from[i].layout] : NULL;
        if (!layout && from[i].chunks) {
            selection_drop(self, selection);
            return err_set(self->err, RP_BAD_MESSAGE, "layout %u was not described", from[i].layout);
        }
        struct item item = {
            .key = from[i].key,
            .priority = from[i].priority,
            .insert_ns = time_here(self, self->clock_ns - (int64_t)from[i].age_ns),
            .policy = from[i].policy,
            .span = {.n = from[i].chunks, .offset = from[i].offset, .length = from[i].length},
            .times_sampled = from[i].times_sampled,
        };
        item.span.layout = layout ? layout->id : 0;
        ok = loading_selection_add(self, selection, &item, places, from[i].probability);
        if (ok && groups)
            selection->kept.picks.group[i] = groups[i];
    }
    if (!ok) {
        selection_drop(self, selection);
        return err_set(self->err, RP_NO_MEMORY, "no memory for a sample that may be asked for again");
    }
    selection->kept.info.want = head->want;
    selection->kept.info.flags = head->flags & ~(uint32_t)PICK_GROUPED;
    selection->kept.picks.table_size = head->table_size;
    if (head->answered)
        selection_answered(self, selection);
    return RP_OK;
}

static rp_status apply_reply(struct loading *self, const void *body)
{
    const struct entry_request *request = body;
    struct kept_reply reply = {request->client, request->id, (uint8_t *)(uintptr_t)(request + 1),
                               self->entry->size - sizeof *request};
    kept_replies_add(self->replies, self->state->loop, &reply);
    return RP_OK;
}

/* ---- parameters, and the rest ---- */

/* Copies the name of a slot or counter; out has PARAMS_NAME_MOST + 1 bytes. */
static rp_status copy_name(struct loading *self, const void *name, uint32_t size, char *out)
{
    if (size > PARAMS_NAME_MOST)
        return err_set(self->err, RP_BAD_MESSAGE, "a name has %u bytes", size);
    memcpy(out, name, size);
    out[size] = '\0';
    return RP_OK;
}

static rp_status apply_value(struct loading *self, const void *body)
{
    const struct entry_value *from = body;
    struct params *params = self->state->params;
    char name[PARAMS_NAME_MOST + 1];
    const uint8_t *rest = (const uint8_t *)(from + 1);
    RP_TRY(copy_name(self, rest, from->name_bytes, name));
    int64_t put_ns = time_here(self, from->put_ns);
    bool ok = true;
    if (self->entry->type == ENTRY_COUNTER)
        ok = params_restore_counter(params, name, (int64_t)from->version);
    else if (self->entry->type == ENTRY_SLOT)
        ok = params_restore_slot(params, name, from->version, put_ns, rest + from->name_bytes, from->value_bytes);
    else if (!params_restore_whole(params, name, from->value_bytes, from->version, put_ns))
        return err_set(self->err, RP_BAD_MESSAGE, "parts of version %llu of slot '%.64s' are missing",
                       (unsigned long long)from->version, name);
    return ok ? RP_OK
              : err_set(self->err, RP_NO_MEMORY, "no memory for '%.64s', of %llu bytes", name,
                        (unsigned long long)from->value_bytes);
}

static rp_status apply_part(struct loading *self, const void *body)
{
    const struct entry_part *from = body;
    const uint8_t *rest = (const uint8_t *)(from + 1);
    struct param_shape shape = {from->put, from->bytes, from->bf16_bytes, from->part_bytes};
    char name[PARAMS_NAME_MOST + 1];
    RP_TRY(copy_name(self, rest, from->name_bytes, name));
    if (params_restore_part(self->state->params, name, &shape, from->part, rest + from->name_bytes, from->data_bytes,
                            self->state->loop->now_ns))
        return RP_OK;
    return err_set(self->err, RP_BAD_MESSAGE, "part %u of slot '%.64s' does not fit to the others, or into memory",
                   from->part, name);
}

/* Entries of one number. */
static rp_status apply_number(struct loading *self, const void *body)
{
    uint64_t number = ((const struct entry_named *)body)->number;
    if (self->entry->type == ENTRY_SESSION_END) {
        session_end(self, number);
    } else if (self->entry->type == ENTRY_EPISODES) {
        self->to->table->stats.episodes = number;
    } else if (self->entry->type == ENTRY_CHARGE) {
        self->to->limiter.samples += number;
    } else if (number > self->next_ordinal) {
        self->next_ordinal = number;
    }
    return RP_OK;
}

void loading_end_process(struct loading *self, int64_t now)
{
    for (uint32_t i = 0; i < self->n_tables; i++)
        clamp_times(&self->tables[i], now);
    struct params *params = self->state->params;
    for (uint32_t i = 0; i < params->n_slots; i++)
        if (params->slots[i].put_ns > now)
            params->slots[i].put_ns = now;
    for (struct loaded_selection *at = TAILQ_FIRST(&self->kept), *next; at; at = next) {
        next = TAILQ_NEXT(at, link);
        if (at->kept.info.flags & PICK_LEASED && !at->kept.info.answered) {
            selection_drop(self, at);
            continue;
        }
        for (uint32_t i = 0; i < at->kept.picks.n; i++)
            if ((int64_t)at->kept.picks.age_ns[i] > now)
                at->kept.picks.age_ns[i] = (uint64_t)now;
    }
}

static rp_status apply_start(struct loading *self, const void *body)
{
    const struct entry_start *start = body;
    self->clock_ns = start->clock_ns;
    if (self->n_map)
        memset(self->map, 0xff, self->n_map * sizeof *self->map);
    if (self->started && start->instance == self->instance)
        return RP_OK;
    /* Another process, with another clock, in whose time nothing was inserted after its start. */
    int64_t zero = add_times(start->wall_ns, start->clock_ns == INT64_MIN ? INT64_MAX : -start->clock_ns);
    self->adjust = add_times(zero, -self->state->loop->wall_offset_ns);
    self->instance = start->instance;
    if (self->started)
        loading_end_process(self, time_here(self, start->clock_ns));
    self->started = true;
    return RP_OK;
}

static rp_status apply_end(struct loading *self, const void *body)
{
    const struct entry_end *end = body;
    if (self->phase != LOAD_CHECKPOINT && self->phase != LOAD_BASE)
        return err_set(self->err, RP_BAD_MESSAGE, "an END outside of a checkpoint");
    if (end->items != loading_items(self))
        return err_set(self->err, RP_BAD_MESSAGE, "there are %llu items where the checkpoint had %llu",
                       (unsigned long long)loading_items(self), (unsigned long long)end->items);
    return RP_OK;
}

/* What each type of entry does. CHUNK, CHECKPOINT and PARTS say nothing about the state. */
enum {
    APPLY_TABLE = 1, /* it is about one table */
    APPLY_BASE = 2,  /* also of a checkpoint that others are based on */
    APPLY_NEWS = 4,  /* it sets `changed` */
};
static const struct {
    rp_status (*apply)(struct loading *self, const void *body);
    uint32_t flags;
} appliers[ENTRY_TYPES] = {
    [ENTRY_START] = {apply_start, APPLY_BASE},
    [ENTRY_TABLE] = {apply_table, APPLY_BASE},
    [ENTRY_LAYOUT] = {apply_layout, APPLY_TABLE | APPLY_BASE},
    [ENTRY_INSERT] = {apply_insert, APPLY_TABLE | APPLY_NEWS},
    [ENTRY_REMOVE] = {apply_remove, APPLY_TABLE | APPLY_NEWS},
    [ENTRY_PRIORITY] = {apply_priority, APPLY_TABLE | APPLY_NEWS},
    [ENTRY_PICK] = {apply_pick, APPLY_TABLE | APPLY_NEWS},
    [ENTRY_RESET] = {apply_reset, APPLY_TABLE | APPLY_BASE},
    [ENTRY_LIMITER] = {apply_limiter, APPLY_TABLE},
    [ENTRY_SESSION] = {apply_session, 0},
    [ENTRY_FORM] = {apply_form, 0},
    [ENTRY_PROGRESS] = {apply_progress, 0},
    [ENTRY_REJECTION] = {apply_rejection, 0},
    [ENTRY_SESSION_END] = {apply_number, 0},
    [ENTRY_SLOT] = {apply_value, 0},
    [ENTRY_COUNTER] = {apply_value, 0},
    [ENTRY_SLOT_PART] = {apply_part, 0},
    [ENTRY_SLOT_WHOLE] = {apply_value, 0},
    [ENTRY_REPLY] = {apply_reply, 0},
    [ENTRY_ANSWERED] = {apply_answered, 0},
    [ENTRY_FORGET] = {apply_forget, 0},
    [ENTRY_SELECTOR] = {apply_selector, APPLY_TABLE},
    [ENTRY_ITEM] = {apply_item, APPLY_TABLE | APPLY_BASE},
    [ENTRY_FREE] = {apply_free, APPLY_TABLE | APPLY_BASE},
    [ENTRY_SELECTION] = {apply_selection, APPLY_TABLE},
    [ENTRY_ORDINAL] = {apply_number, 0},
    [ENTRY_END] = {apply_end, APPLY_BASE},
    [ENTRY_EPISODES] = {apply_number, APPLY_TABLE},
    [ENTRY_CHARGE] = {apply_number, APPLY_TABLE | APPLY_NEWS},
    [ENTRY_GROUP] = {apply_group, APPLY_TABLE | APPLY_BASE},
    [ENTRY_HIDE] = {apply_hidden, APPLY_TABLE | APPLY_NEWS},
    [ENTRY_SHOW] = {apply_hidden, APPLY_TABLE | APPLY_NEWS},
};

rp_status loading_apply(void *ctx, enum load_phase phase, const struct entry_view *entry, rp_error *err)
{
    struct loading *self = ctx;
    uint16_t type = entry->type;
    if (type != ENTRY_START && !self->started)
        return err_set(err, RP_BAD_MESSAGE, "a %s entry before the first START", entry_name(type));
    if (!appliers[type].apply || (phase == LOAD_BASE && !(appliers[type].flags & APPLY_BASE)))
        return RP_OK;
    self->phase = phase;
    self->entry = entry;
    self->err = err;
    self->to = NULL;
    if (appliers[type].flags & APPLY_TABLE && !(self->to = table_of(self, entry->table, err)))
        return RP_BAD_MESSAGE;
    rp_status status = appliers[type].apply(self, entry->body);
    self->changed |= status == RP_OK && (appliers[type].flags & APPLY_NEWS);
    return status;
}

/* Drops all that was applied. */
static void loading_clear(void *ctx)
{
    struct loading *self = ctx;
    struct sessions *sessions = self->state->sessions;
    for (struct loaded_selection *at = TAILQ_FIRST(&self->kept), *next; at; at = next) {
        next = TAILQ_NEXT(at, link);
        selection_drop(self, at);
    }
    for (uint32_t i = 0; i < self->n_tables; i++) {
        struct loaded_table *at = &self->tables[i];
        slots_clear(self, at->table);
        if (at->info)
            replay__table_info__free_unpacked(at->info, NULL);
        at->info = NULL;
        at->newest_ns = INT64_MIN;
        at->highest = RANK_NEW;
        at->returned = 0;
    }
    self->n_leases = 0;
    idmap_fini(&self->leases_by_request);
    while (sessions && !LIST_EMPTY(&sessions->list))
        session_close(LIST_FIRST(&sessions->list));
    idmap_fini(&self->sessions);
    params_fini(self->state->params);
    kept_replies_fini(self->replies);
    self->next_ordinal = 1;
    self->started = self->changed = false;
}

void loading_init(struct loading *self, const struct durable_state *state, struct kept_replies *replies)
{
    *self = (struct loading){.state = state, .replies = replies, .most_slots = MOST_SLOTS, .next_ordinal = 1};
    TAILQ_INIT(&self->kept);
    self->files = (struct load){.apply = loading_apply, .clear = loading_clear, .ctx = self};
}

void loading_fini(struct loading *self)
{
    const struct durable_state *state = self->state;
    for (struct loaded_selection *at = TAILQ_FIRST(&self->kept), *next; at; at = next) {
        next = TAILQ_NEXT(at, link);
        if (self->read && at->configured)
            picks_clear(&at->kept.picks, state->samples);
        selection_drop(self, at);
    }
    for (uint32_t i = 0; i < self->n_tables; i++) {
        struct loaded_table *at = &self->tables[i];
        struct table *table = at->table;
        for (uint32_t slot = at->entered; slot < table->in.high; slot++) {
            struct span *span = &table->in.items[slot].span;
            if (!self->read || !at->configured) {
                slot_clear(self, table, slot);
            } else {
                state->store->outside += span->n > 1 ? span_list_bytes(span->n) : 0;
                span_release(span, state->store, state->layouts);
            }
        }
        if (at->info)
            replay__table_info__free_unpacked(at->info, NULL);
        if (at->rank)
            munmap(at->rank, at->slots * sizeof *at->rank);
        free(at->selector[0]);
        free(at->selector[1]);
        if (at->configured)
            continue;
        if (table->in.items)
            munmap(table->in.items, at->slots * sizeof *table->in.items);
        free((char *)(uintptr_t)table->name);
        free(table);
    }
    for (uint32_t i = 0; i < self->n_layouts; i++)
        if (self->layouts[i])
            layouts_release(state->layouts, self->layouts[i]);
    idmap_fini(&self->sessions);
    idmap_fini(&self->selections);
    load_fini(&self->files);
    idmap_fini(&self->leases_by_request);
    free(self->leases);
    free(self->layouts);
    free(self->tables);
    free(self->map);
    free(self->wanted);
}

/* ---- chunks ---- */

/* Lists the chunks of items and samples, and returns their number; out may be NULL. Without a broker: of all tables. */
static uint64_t list_chunks(const struct loading *self, struct pair *out)
{
    bool all = !self->state->sessions;
    uint64_t n = 0;
    for (uint32_t i = 0; i < self->n_tables; i++) {
        const struct table *table = self->tables[i].table;
        for (uint32_t slot = 0; (all || self->tables[i].configured) && slot < table->in.high; slot++) {
            struct chunk *const *chunks = span_chunks(&table->in.items[slot].span);
            for (uint32_t c = 0; c < table->in.items[slot].span.n; c++, n++)
                if (out)
                    out[n] = (struct pair){(uintptr_t)chunks[c], (uintptr_t)&chunks[c]};
        }
    }
    for (const struct loaded_selection *at = TAILQ_FIRST(&self->kept); at; at = TAILQ_NEXT(at, link))
        for (uint32_t c = 0; (all || at->configured) && c < at->kept.picks.n_refs; c++, n++)
            if (out)
                out[n] = (struct pair){(uintptr_t)at->kept.picks.refs[c], (uintptr_t)&at->kept.picks.refs[c]};
    return n;
}

rp_status loading_read_chunks(struct loading *self, chunk_fn *fn, rp_error *err)
{
    uint64_t n = self->n_wanted = list_chunks(self, NULL), distinct = 0;
    self->wanted = malloc((n + 1) * sizeof *self->wanted);
    uint64_t *places = malloc((n + 1) * sizeof *places);
    if (self->wanted)
        list_chunks(self, self->wanted);
    rp_status status = RP_OK;
    if (!places || !self->wanted || !pairs_sort(self->wanted, n))
        status = err_set(err, RP_NO_MEMORY, "no memory for the places of %llu chunks", (unsigned long long)n);
    for (uint64_t i = 0; status == RP_OK && i < n; i++)
        if (distinct == 0 || places[distinct - 1] != self->wanted[i].key)
            places[distinct++] = self->wanted[i].key;
    if (status == RP_OK && n)
        status = chunks_read(self->folder, places, distinct, fn, self, err);
    free(places);
    return status;
}

/* ---- without a broker ---- */

void offline_init(struct offline *self)
{
    *self = (struct offline){0};
    self->state = (struct durable_state){
        .loop = &self->loop, .layouts = &self->layouts, .tables = &self->tables, .params = &self->params};
    kept_list_init(&self->replies.list);
    loading_init(&self->loading, &self->state, &self->replies);
}

void offline_fini(struct offline *self)
{
    loading_fini(&self->loading);
    kept_replies_fini(&self->replies);
    params_fini(&self->params);
    layouts_fini(&self->layouts);
}

rp_status offline_load(struct offline *self, const struct folder *folder, uint64_t number, bool until_checkpoint,
                       rp_error *err)
{
    self->loading.folder = folder;
    return load_files(&self->loading.files, folder, number, until_checkpoint, false, err);
}
