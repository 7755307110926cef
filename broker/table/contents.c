#include "broker/table/contents.h"

#include <stdlib.h>
#include <string.h>

#include "broker/table/table.h"
#include "proto/base/need.h"

/* ---- spans */

void span_release(struct span *self, struct store *store, struct layouts *layouts)
{
    struct chunk *const *chunks = span_chunks(self);
    for (uint32_t i = 0; i < self->n; i++)
        store_release(store, chunks[i]);
    if (self->n > 1) {
        store->outside -= span_list_bytes(self->n);
        free(self->many);
    }
    if (self->n)
        layouts_release(layouts, layouts_at(layouts, self->layout));
    self->n = 0;
}

bool span_copy(const struct span *from, struct span *to, struct store *store, struct layouts *layouts)
{
    *to = *from;
    if (from->n > 1) {
        to->many = malloc(from->n * sizeof(*to->many));
        if (!to->many)
            return false;
        memcpy(to->many, from->many, from->n * sizeof(*to->many));
        store->outside += span_list_bytes(from->n);
    }
    struct chunk *const *chunks = span_chunks(to);
    for (uint32_t i = 0; i < to->n; i++)
        chunk_hold(chunks[i]);
    layouts_at(layouts, to->layout)->refs++;
    return true;
}

uint64_t span_bytes(const struct span *self)
{
    struct chunk *const *chunks = span_chunks(self);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->n; i++)
        bytes += chunks[i]->bytes;
    return bytes;
}

/* ---- episodes */

void episodes_init(struct episodes *self, uint64_t *account)
{
    *self = (struct episodes){.items = keymap_new(account)};
}

void episodes_fini(struct episodes *self)
{
    keymap_destroy(&self->items);
}

void episodes_open(struct episodes *self, struct episode_items *place, uint64_t episode)
{
    if (place->n)
        keymap_put(self->items, place->episode, place->n);
    uint32_t n = keymap_remove(self->items, episode);
    *place = (struct episode_items){.episode = episode, .n = n == KEYMAP_NONE ? 0 : n};
}

/* ---- groups */

uint32_t groups_find(const struct groups *self, uint64_t group)
{
    return keymap_get(self->leaders, group);
}

uint32_t groups_enter(struct groups *self, uint32_t slot, uint64_t group)
{
    uint32_t leader = groups_find(self, group);
    self->hidden++;
    if (leader != NO_SLOT) {
        struct group_member *first = &self->slots[leader];
        self->slots[slot] = (struct group_member){.group = group, .leader = leader, .next = leader};
        self->slots[first->last].next = slot;
        first->last = slot;
        first->n++;
        return leader;
    }
    self->slots[slot] = (struct group_member){
        .group = group, .leader = slot, .next = slot, .last = slot, .n = 1, .older = self->newest, .newer = NO_SLOT};
    *(self->newest == NO_SLOT ? &self->oldest : &self->slots[self->newest].newer) = slot;
    self->newest = slot;
    self->n_open++;
    keymap_put(self->leaders, group, slot);
    return slot;
}

/* Takes an open group off the list. */
static void end_wait(struct groups *self, uint32_t leader)
{
    const struct group_member *first = &self->slots[leader];
    *(first->older == NO_SLOT ? &self->oldest : &self->slots[first->older].newer) = first->newer;
    *(first->newer == NO_SLOT ? &self->newest : &self->slots[first->newer].older) = first->older;
    keymap_remove(self->leaders, first->group);
    self->n_open--;
    self->hidden -= first->n;
}

void groups_close(struct groups *self, uint32_t leader)
{
    end_wait(self, leader);
    self->slots[leader].closed = 1;
}

void groups_leave(struct groups *self, uint32_t leader)
{
    if (!self->slots[leader].closed)
        end_wait(self, leader);
}

/* ---- the window of versions */

static struct window_link *link_at(const struct window *self, uint32_t node)
{
    return node < self->capacity ? &self->slots[node] : &self->heads[node - self->capacity];
}

/* Makes the rings of the heads, all empty. */
static void heads_new(struct window *self, uint32_t lag)
{
    self->lag = lag;
    self->heads = need_alloc((lag + 3) * sizeof *self->heads);
    for (uint32_t i = 0; i < lag + 3; i++)
        self->heads[i] = (struct window_link){self->capacity + i, self->capacity + i};
}

/* The head of the list of a version that is at most the next one. */
static uint32_t head_of(const struct window *self, uint64_t version)
{
    return version + self->lag < self->version ? 0 : 1 + (uint32_t)(version % ((uint64_t)self->lag + 2));
}

/* The oldest version that is not stale. */
static uint64_t oldest_of(const struct window *self)
{
    return self->version > self->lag ? self->version - self->lag : 0;
}

/* Appends the nodes from `first` to `last`, which are linked. */
static void append(struct window *self, uint32_t head, uint32_t first, uint32_t last)
{
    struct window_link *to = &self->heads[head];
    link_at(self, to->prev)->next = first;
    link_at(self, first)->prev = to->prev;
    link_at(self, last)->next = self->capacity + head;
    to->prev = last;
}

void window_enter(struct window *self, uint32_t slot, uint64_t version)
{
    append(self, head_of(self, version), slot, slot);
}

void window_leave(struct window *self, uint32_t slot)
{
    struct window_link link = self->slots[slot];
    link_at(self, link.prev)->next = link.next;
    link_at(self, link.next)->prev = link.prev;
}

void window_move(struct window *self, uint64_t version)
{
    uint64_t keep = version > self->lag ? version - self->lag : 0; /* the oldest version that is not stale now */
    for (uint64_t v = oldest_of(self); v <= self->version + 1 && v < keep; v++) {
        uint32_t from = head_of(self, v);
        struct window_link list = self->heads[from];
        if (list.next >= self->capacity)
            continue;
        append(self, 0, list.next, list.prev);
        self->heads[from] = (struct window_link){self->capacity + from, self->capacity + from};
    }
    self->version = version;
}

void window_set_lag(struct window *self, uint32_t lag)
{
    struct window old = *self;
    heads_new(self, lag);
    if (old.heads[0].next < old.capacity)
        append(self, 0, old.heads[0].next, old.heads[0].prev);
    for (uint64_t v = oldest_of(&old); v <= old.version + 1; v++) {
        struct window_link list = old.heads[head_of(&old, v)];
        if (list.next < old.capacity)
            append(self, head_of(self, v), list.next, list.prev);
    }
    free(old.heads);
}

/* ---- marks */

static size_t bitmap_bytes(const struct marks *self)
{
    return (size_t)self->words * sizeof(uint64_t);
}

struct marks *marks_new(uint32_t capacity)
{
    struct marks *self = need_alloc(sizeof *self);
    self->words = capacity / 64 + 1;
    self->all_changed = true;
    self->changed = reserve_map(bitmap_bytes(self));
    self->pending = reserve_map(bitmap_bytes(self));
    return self;
}

void marks_destroy(struct marks **at)
{
    struct marks *self = *at;
    if (!self)
        return;
    reserve_unmap(self->changed, bitmap_bytes(self));
    reserve_unmap(self->pending, bitmap_bytes(self));
    free(self);
    *at = NULL;
}

void marks_touch(struct marks *self, const struct table *table, const struct contents *in, uint32_t slot)
{
    uint32_t word = slot / 64;
    uint64_t bit = UINT64_C(1) << (slot % 64);
    if (__builtin_expect(self->copying != NULL, 0) && word >= self->next && slot < self->high &&
        (marks_due(self, word) & bit)) {
        self->pending[word] ^= bit;
        self->copier->copy(self->copying, table, in, slot);
    }
    self->n_changed += !(self->changed[word] & bit);
    self->changed[word] |= bit;
}

void marks_abandon(struct marks *self)
{
    self->all_changed = true;
    memset(self->pending, 0, bitmap_bytes(self));
}

/* ---- contents */

static size_t items_bytes(const struct table *table)
{
    return (size_t)table->capacity * sizeof(struct item);
}

static uint64_t slots_memory(const struct contents *self)
{
    return (uint64_t)self->high * self->arrays.slot_bytes;
}

uint64_t contents_memory(const struct contents *self)
{
    return slots_memory(self) + keymap_bytes(self->keys) + keymap_bytes(self->episodes.items) +
           (self->groups.slots ? keymap_bytes(self->groups.leaders) : 0);
}

void contents_uncount_slots(struct contents *self, struct store *store)
{
    store->overhead -= slots_memory(self);
    self->arrays.slot_bytes = 0;
}

bool contents_fini_step(struct contents *self, const struct table *table)
{
    if (self->keys) {
        keymap_destroy(&self->keys);
    } else if (self->episodes.items) {
        episodes_fini(&self->episodes);
    } else if (self->marks) {
        marks_destroy(&self->marks);
    } else if (self->window.slots) {
        reserve_unmap(self->window.slots, self->window.capacity * sizeof *self->window.slots);
        free(self->window.heads);
        self->window = (struct window){0};
    } else if (self->groups.slots) {
        reserve_unmap(self->groups.slots, self->groups.capacity * sizeof *self->groups.slots);
        keymap_destroy(&self->groups.leaders);
        self->groups = (struct groups){0};
    } else if (self->sampler) {
        table->sampler_ops->destroy(self->sampler);
        self->sampler = NULL;
    } else if (self->remover) {
        table->remover_ops->destroy(self->remover);
        self->remover = NULL;
    } else if (self->items) {
        reserve_unmap(self->items, items_bytes(table));
        self->items = NULL;
        contents_uncount_slots(self, table->store);
    } else {
        return false;
    }
    return true;
}

void contents_fini(struct contents *self, const struct table *table)
{
    while (contents_fini_step(self, table)) {
    }
    *self = (struct contents){0};
}

/* Returns an account number that no table uses now. Old contents are freed long before their number is used again. */
static uint32_t account_new(struct tables *tables)
{
    for (;;) {
        uint32_t account = tables->next_account++ & UINT16_MAX;
        bool used = false;
        for (uint32_t i = 0; i < tables->n && !used; i++)
            used = tables->list[i].in.items && tables->list[i].in.account == account;
        if (!used)
            return account;
    }
}

rp_status contents_init(struct contents *self, struct table *table, struct contents_seeds seeds, rp_error *err)
{
    const struct table_config *config = table->config;
    uint64_t *account = &table->store->overhead;
    *self = (struct contents){
        .free = NO_SLOT, .account = account_new(table->tables), .arrays = {.sparing = table->store->sparing}};
    self->keys = keymap_new(account);
    episodes_init(&self->episodes, account);
    reserve_group_begin(&self->arrays);
    self->items = reserve_map(items_bytes(table));
    self->sampler = table->sampler_ops->create(config->sampler.options.data, config->sampler.options.count,
                                               table->capacity, seeds.sampler, err);
    if (self->sampler)
        self->remover = table->remover_ops->create(config->remover.options.data, config->remover.options.count,
                                                   table->capacity, seeds.remover, err);
    if (config_makes_checkpoints(table->tables->config))
        self->marks = marks_new(table->capacity);
    if (table->max_lag >= 0) {
        self->window = (struct window){.capacity = table->capacity,
                                       .version = table->version,
                                       .slots = reserve_map(table->capacity * sizeof *self->window.slots)};
        heads_new(&self->window, (uint32_t)table->max_lag);
    }
    if (config->group_size > 0)
        self->groups = (struct groups){.capacity = table->capacity,
                                       .size = (uint32_t)config->group_size,
                                       .oldest = NO_SLOT,
                                       .newest = NO_SLOT,
                                       .slots = reserve_map(table->capacity * sizeof *self->groups.slots),
                                       .leaders = keymap_new(account)};
    reserve_group_end(table->capacity);
    if (self->remover)
        return RP_OK;
    contents_fini(self, table);
    return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
}
