#include "broker/table/table.h"

#include <math.h>
#include <stdlib.h>

#include "broker/loop/loop.h"
#include "broker/table/room.h"
#include "broker/table/tables.h"
#include "proto/base/error.h"

void table_release_item(struct table *self, const struct contents *in, struct item *item)
{
    struct chunk *const *chunks = span_chunks(&item->span);
    for (uint32_t i = 0; i < item->span.n; i++)
        if (chunk_leave(self->store, chunks[i], in->account) && in == &self->in)
            self->bytes -= chunks[i]->bytes;
    ordinals_leave(&self->tables->ordinals, item->key);
    span_release(&item->span, self->store, self->layouts);
}

rp_status table_check_priority(const struct table *self, double priority, rp_error *err)
{
    if (!(priority >= 0) || isinf(priority))
        return err_set(err, RP_INVALID_ARGUMENT, "priority %g is not allowed: it must be finite and not negative",
                       priority);
    if (self->sampler_ops->check)
        RP_TRY(self->sampler_ops->check(self->in.sampler, priority, err));
    if (self->remover_ops->check)
        RP_TRY(self->remover_ops->check(self->in.remover, priority, err));
    return RP_OK;
}

void table_view(const struct table *self, uint32_t slot, rp_item_view *out)
{
    const struct item *item = &self->in.items[slot];
    const struct chunk *first = span_chunks(&item->span)[0];
    *out = (rp_item_view){
        .key = item->key,
        .priority = item->priority,
        .slot = slot,
        .times_sampled = item->times_sampled,
        .session = first->session,
        .episode = first->episode,
        .step = first->step + item->span.offset,
        .length = item->span.length,
        .policy = item->policy,
        .bytes = span_bytes(&item->span),
        .age_ns = item_age(item, self->loop->now_ns),
    };
}

#define RUN_HOOKS(self, hook, slot, ...)                                                                               \
    do {                                                                                                               \
        rp_item_view view_;                                                                                            \
        table_view(self, slot, &view_);                                                                                \
        for (uint32_t i_ = 0; i_ < (self)->n_extensions; i_++)                                                         \
            if ((self)->extensions[i_].ops->hook)                                                                      \
                (self)->extensions[i_].ops->hook((self)->extensions[i_].self, &view_ __VA_ARGS__);                     \
    } while (0)
#define COMMA ,

/* The slot is about to change. */
static inline void touch(struct table *self, uint32_t slot)
{
    if (self->in.marks)
        marks_touch(self->in.marks, self, &self->in, slot);
}

uint64_t table_deleted_episodes(const struct table *self)
{
    uint64_t here = self->in.episodes.here;
    return self->stats.episodes > here ? self->stats.episodes - here : 0;
}

static void slot_give_back(struct contents *in, uint32_t slot)
{
    in->items[slot].stamp = in->free;
    in->free = slot;
}

void table_remove(struct table *self, uint32_t slot)
{
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    if (self->hook_delete)
        RUN_HOOKS(self, on_delete, slot, );
    self->sampler_ops->remove(self->in.sampler, slot);
    self->remover_ops->remove(self->in.remover, slot);
    keymap_remove(self->in.keys, item->key);
    episodes_leave(&self->in.episodes, span_episode(&item->span));
    table_release_item(self, &self->in, item);
    slot_give_back(&self->in, slot);
    self->in.size--;
    limiter_deleted(&self->limiter, 1);
    EFFECT(self->loop, remove, self, slot);
}

static void evict(struct table *self, uint32_t slot)
{
    table_remove(self, slot);
    self->stats.evicted++;
}

bool table_evict(struct table *self)
{
    uint32_t slot;
    double probability;
    if (self->in.size == 0 || self->remover_ops->pick(self->in.remover, 1, &slot, &probability) != 1)
        return false;
    evict(self, slot);
    return true;
}

/* Picks of which one is evicted. */
#define SPARSE_PICKS 16u

bool table_evict_sparse(struct table *self)
{
    uint32_t slots[SPARSE_PICKS], best = 0, least = UINT32_MAX;
    double probabilities[SPARSE_PICKS];
    if (self->in.size == 0 ||
        self->remover_ops->pick(self->in.remover, SPARSE_PICKS, slots, probabilities) != SPARSE_PICKS)
        return false;
    for (uint32_t i = 0; i < SPARSE_PICKS; i++) {
        const struct chunk *chunk = span_chunks(&self->in.items[slots[i]].span)[0];
        uint32_t fill = chunk->kind == CHUNK_SLAB ? slab_fill(chunk) : UINT32_MAX;
        best = fill < least ? i : best;
        least = fill < least ? fill : least;
    }
    evict(self, slots[best]);
    return true;
}

static bool too_much(const struct table *self)
{
    if (self->config->max_bytes && self->bytes > (uint64_t)self->config->max_bytes && !room_is_kept(self))
        return true;
    if (!self->config->soft_capacity)
        return self->in.size > (uint64_t)self->config->max_size;
    return self->in.size >= table_slots(self->config);
}

/* Slots after which a growing table has its next slots prefaulted; a table counts as growing from the second time on. */
#define LOOK_AHEAD 8192u

static uint32_t slot_take(struct table *self)
{
    struct contents *in = &self->in;
    if (in->free == NO_SLOT) {
        if (in->high % LOOK_AHEAD == 0 && in->high > LOOK_AHEAD)
            reserve_group_ahead(&in->arrays, in->high, self->capacity);
        self->store->overhead += in->arrays.slot_bytes;
        return in->high++;
    }
    uint32_t slot = in->free;
    in->free = in->items[slot].stamp;
    return slot;
}

/* Counts the span's chunks as this table's. False: no memory, and nothing has changed. */
static bool span_enter(struct table *self, const struct span *span)
{
    struct chunk *const *chunks = span_chunks(span);
    for (uint32_t i = 0; i < span->n; i++) {
        enum chunk_entered entered = chunk_enter(self->store, chunks[i], self->in.account);
        if (entered == CHUNK_FIRST)
            self->bytes += chunks[i]->bytes;
        if (entered != CHUNK_NO_MEMORY)
            continue;
        while (i-- > 0)
            if (chunk_leave(self->store, chunks[i], self->in.account))
                self->bytes -= chunks[i]->bytes;
        return false;
    }
    return true;
}

/* Takes a slot for an item, and enters its key and its chunks. An error: nothing has changed. */
static rp_status slot_claim(struct table *self, const struct arrival *arrival, uint32_t *out, rp_error *err)
{
    uint32_t slot = *out = slot_take(self);
    if (!keymap_put(self->in.keys, arrival->key, slot)) {
        slot_give_back(&self->in, slot);
        if (keymap_get(self->in.keys, arrival->key) == KEYMAP_NONE)
            return err_set(err, RP_NO_MEMORY, "no memory for the key map of table '%s'", self->name);
        return err_set(err, RP_ALREADY_EXISTS,
                       "key %llu is in table '%s' already: to change its priority send an update",
                       (unsigned long long)arrival->key, self->name);
    }
    if (!span_enter(self, &arrival->span)) {
        keymap_remove(self->in.keys, arrival->key);
        slot_give_back(&self->in, slot);
        return err_set(err, RP_NO_MEMORY, "no memory for an item of table '%s'", self->name);
    }
    ordinals_enter(&self->tables->ordinals, arrival->key);
    return RP_OK;
}

void table_newest_layout(struct table *self, uint32_t layout)
{
    if (__builtin_expect(layout == self->newest_layout, 1))
        return;
    if (layout != NO_LAYOUT)
        layouts_at(self->layouts, layout)->refs++;
    if (self->newest_layout != NO_LAYOUT)
        layouts_release(self->layouts, layouts_at(self->layouts, self->newest_layout));
    self->newest_layout = layout;
}

rp_status table_insert(struct table *self, const struct arrival *arrival, rp_error *err)
{
    const struct tables *tables = self->tables;
    struct loop *loop = self->loop;
    if (__builtin_expect(room_is_short(tables) || tables->disk.ctx, 0) &&
        keymap_get(self->in.keys, arrival->key) == KEYMAP_NONE)
        RP_TRY(room_make(self, err));
    struct effects *effects = loop->effects;
    if (effects && !effects->prepare(effects, span_chunks(&arrival->span), arrival->span.n))
        return err_set(err, RP_NO_MEMORY, "no memory to record an item of table '%s'", self->name);
    uint32_t slot;
    RP_TRY(slot_claim(self, arrival, &slot, err));
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    self->last_insert_ns = loop->now_ns > self->last_insert_ns ? loop->now_ns : self->last_insert_ns + 1;
    *item = (struct item){.key = arrival->key,
                          .priority = arrival->priority,
                          .insert_ns = self->last_insert_ns,
                          .policy = arrival->policy,
                          .span = arrival->span};
    self->sampler_ops->insert(self->in.sampler, slot, item->priority);
    self->remover_ops->insert(self->in.remover, slot, item->priority);
    self->in.size++;
    table_newest_layout(self, item->span.layout);
    limiter_inserted(&self->limiter, 1);
    self->stats.total_inserts++;
    EFFECT(loop, insert, self, slot, arrival->flow);
    if (episodes_enter(&self->in.episodes, span_episode(&item->span)) && !arrival->same_episode) {
        self->stats.episodes++;
        EFFECT(loop, episode, self);
    }
    if (self->hook_insert)
        RUN_HOOKS(self, on_insert, slot, );
    uint32_t left = EVICTIONS_PER_INSERT;
    while (too_much(self) && left-- > 0 && table_evict(self)) {
    }
    if (__builtin_expect(left == UINT32_MAX, 0))
        table_remove_surplus(self);
    return RP_OK;
}

uint32_t table_find(const struct table *self, uint64_t key)
{
    return keymap_get(self->in.keys, key);
}

void table_set_priority(struct table *self, uint32_t slot, double priority)
{
    touch(self, slot);
    self->in.items[slot].priority = priority;
    self->sampler_ops->update(self->in.sampler, slot, priority);
    self->remover_ops->update(self->in.remover, slot, priority);
    EFFECT(self->loop, priority, self, slot, priority);
}

void table_update(struct table *self, uint32_t slot, double priority)
{
    double old = self->in.items[slot].priority;
    table_set_priority(self, slot, priority);
    self->stats.updates++;
    if (self->hook_update)
        RUN_HOOKS(self, on_update, slot, COMMA old);
}

uint64_t table_sampleable(const struct table *self, uint64_t want)
{
    return self->in.size ? limiter_sampleable(&self->limiter, want) : 0;
}

double table_mass(const struct table *self)
{
    return self->sampler_ops->mass ? self->sampler_ops->mass(self->in.sampler, self->in.size) : (double)self->in.size;
}

void table_sampled(struct table *self, uint32_t slot)
{
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    self->stats.unique_samples += item->times_sampled++ == 0;
    limiter_sampled(&self->limiter, 1);
    self->stats.total_samples++;
    if (self->hook_sample)
        RUN_HOOKS(self, on_sample, slot, );
    if (self->config->max_times_sampled && item->times_sampled >= self->config->max_times_sampled)
        table_remove(self, slot);
}

void table_tick(struct table *self, int64_t now_ns)
{
    struct table_stats *stats = &self->stats;
    self->sampled_lately = stats->history_n && stats->total_samples != stats->history[stats->history_at][1];
    stats->history_at = (stats->history_at + 1) % (TABLE_RATE_SECONDS + 1);
    uint64_t *now = stats->history[stats->history_at];
    now[0] = stats->total_inserts;
    now[1] = stats->total_samples;
    now[2] = stats->updates;
    stats->history_ns[stats->history_at] = now_ns;
    if (stats->history_n < TABLE_RATE_SECONDS + 1)
        stats->history_n++;
}

double table_rate(const struct table *self, uint32_t kind)
{
    const struct table_stats *stats = &self->stats;
    if (stats->history_n < 2)
        return 0;
    uint32_t last = stats->history_at;
    uint32_t first = (last + TABLE_RATE_SECONDS + 2 - stats->history_n) % (TABLE_RATE_SECONDS + 1);
    double seconds = (double)(stats->history_ns[last] - stats->history_ns[first]) / (double)NS_PER_S;
    return seconds > 0 ? (double)(stats->history[last][kind] - stats->history[first][kind]) / seconds : 0;
}

/* The chore that evicts the surplus of a table. */
struct trimming {
    struct chore chore;
    struct table *table;
};

static bool trimming_step(struct chore *chore)
{
    struct table *table = ((struct trimming *)chore)->table;
    table_mark(table); /* below min_size, waiting inserts may continue */
    for (uint32_t i = 0; i < 256; i++) {
        bool done = table->in.size <= (uint64_t)table->config->max_size && !too_much(table);
        if (done || !table_evict(table)) {
            table->removing = false;
            free(chore);
            return false;
        }
    }
    return true;
}

void table_remove_surplus(struct table *self)
{
    if (self->removing || (self->in.size <= (uint64_t)self->config->max_size && !too_much(self)))
        return;
    struct trimming *trimming = calloc(1, sizeof *trimming);
    if (!trimming)
        return; /* the next tick tries again */
    trimming->chore.step = trimming_step;
    trimming->table = self;
    self->removing = true;
    chores_add(&self->loop->chores, &trimming->chore);
}

void table_remove_too_much(struct table *self)
{
    while ((self->in.size > (uint64_t)self->config->max_size || too_much(self)) && table_evict(self)) {
    }
}
