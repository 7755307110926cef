#include "broker/table/table.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/entries.h"
#include "broker/loop/loop.h"
#include "broker/store/params.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"
#include "proto/base/siphash.h"

/* Releases the chunks, the layout and the key of an item of the contents, which are the table's or were until a reset. */
static void table_release_item(struct table *self, const struct contents *in, struct item *item)
{
    struct chunk *const *chunks = span_chunks(&item->span);
    for (uint32_t i = 0; i < item->span.n; i++)
        if (chunk_leave(self->store, chunks[i], in->account) && in == &self->in)
            self->bytes -= chunks[i]->bytes;
    ordinals_leave(&self->tables->ordinals, item->key);
    span_release(&item->span, self->store, self->layouts);
}

rp_status table_check_priority_(const struct table *self, double priority, rp_error *err)
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

static void unhide(struct contents *in, struct item *item)
{
    in->hidden--;
    in->leased -= item_lease(item) != 0;
    item->stamp = 0;
}

void table_hide(struct table *self, uint32_t slot, uint32_t lease)
{
    touch(self, slot);
    self->sampler_ops->remove(self->in.sampler, slot);
    self->remover_ops->remove(self->in.remover, slot);
    self->in.items[slot].stamp = ITEM_HIDDEN | lease;
    self->in.hidden++;
    self->in.leased += lease != 0;
    if (!lease)
        EFFECT_ENTRY(self->loop, ENTRY_HIDE, self->id, entry_slot, .slot = slot);
}

/* Returns the mean of the members' priorities. It is between the lowest and the highest, which built-in selectors allow; a selector of
 * a plug-in may not. */
static double group_priority(const struct table *self, uint32_t leader)
{
    const struct group_member *slots = self->in.groups.slots;
    double first = self->in.items[leader].priority, low = first, high = first, mean = 0;
    uint32_t n = slots[leader].n, slot = leader;
    for (uint32_t i = 0; i < n; i++, slot = slots[slot].next) {
        double priority = self->in.items[slot].priority;
        low = fmin(low, priority);
        high = fmax(high, priority);
        mean += priority / n;
    }
    mean = fmin(fmax(mean, low), high); /* also after rounding */
    return table_check_priority(self, mean, NULL) == RP_OK ? mean : first;
}

double table_priority(const struct table *self, uint32_t slot)
{
    return self->in.groups.slots ? group_priority(self, slot) : self->in.items[slot].priority;
}

static void selector_show(const rp_selector_ops *ops, void *selector, uint32_t slot, double priority, bool first)
{
    (first && ops->put_back ? ops->put_back : ops->insert)(selector, slot, priority);
}

void table_show(struct table *self, uint32_t slot, enum table_show how)
{
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    unhide(&self->in, item);
    if (how == SHOW_UNDELIVERED)
        self->in.unseen += --item->times_sampled == 0;
    double priority = table_priority(self, slot);
    selector_show(self->sampler_ops, self->in.sampler, slot, priority, how != SHOW_LAST);
    selector_show(self->remover_ops, self->in.remover, slot, priority, how != SHOW_LAST);
    EFFECT_ENTRY(self->loop, ENTRY_SHOW, self->id, entry_slot, slot, how);
    table_mark(self);
}

void table_lease(struct table *self, uint32_t slot, uint32_t lease)
{
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    self->in.unseen -= item->times_sampled == 0;
    table_count_sample(self, item);
    if (self->hook_sample)
        RUN_HOOKS(self, on_sample, slot, );
    table_hide(self, slot, lease);
}

/* Removes an item alone. */
static inline __attribute__((always_inline)) void remove_item(struct table *self, uint32_t slot)
{
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    if (self->hook_delete)
        RUN_HOOKS(self, on_delete, slot, );
    if (item_is_hidden(item)) {
        unhide(&self->in, item);
    } else {
        self->sampler_ops->remove(self->in.sampler, slot);
        self->remover_ops->remove(self->in.remover, slot);
    }
    if (self->in.window.slots)
        window_leave(&self->in.window, slot);
    self->in.unseen -= item->times_sampled == 0;
    keymap_remove(self->in.keys, item->key);
    episodes_leave(&self->in.episodes, span_episode(&item->span));
    table_release_item(self, &self->in, item);
    slot_give_back(&self->in, slot);
    self->in.size--;
    limiter_deleted(&self->limiter, 1);
    EFFECT_ENTRY(self->loop, ENTRY_REMOVE, self->id, entry_slot, .slot = slot);
}

/* Bytes in the journal of the removal of an item, and of a limiter; each is less. */
#define REMOVAL_BYTES 32u
#define LIMITER_BYTES 256u
/* The same of an item that moves to another table, without the places of its chunks. */
#define MOVE_BYTES 1024u

static __attribute__((noinline)) void remove_group(struct table *self, uint32_t leader)
{
    struct groups *groups = &self->in.groups;
    uint32_t n = groups->slots[leader].n;
    groups_leave(groups, leader);
    EFFECT(self->loop, together, (size_t)n * REMOVAL_BYTES);
    for (uint32_t i = 0, slot = leader, next; i < n; i++, slot = next) {
        next = groups->slots[slot].next;
        remove_item(self, slot);
    }
}

void table_remove(struct table *self, uint32_t slot)
{
    if (__builtin_expect(self->in.groups.slots != NULL, 0))
        remove_group(self, self->in.groups.slots[slot].leader);
    else
        remove_item(self, slot);
}

/* How many slots ahead of an eviction in the order of slots the head of a chunk is fetched, and then all of it: the next chunk
 * that comes takes its place. */
#define HEADS_AHEAD 8u
#define CHUNKS_AHEAD 4u
#define FETCH_BYTES 1024u /* of a chunk */

/* Prefetches what the next evictions touch, if they go in the order of slots. So they do in a full table with fifo. */
static inline __attribute__((always_inline)) void prefetch_victims(struct table *self, uint32_t slot)
{
    const struct contents *in = &self->in;
    bool in_order = slot == self->last_evicted + 1;
    self->last_evicted = slot;
    if (!in_order || slot + HEADS_AHEAD >= in->high)
        return;
    const struct item *far = &in->items[slot + HEADS_AHEAD], *near = &in->items[slot + CHUNKS_AHEAD];
    if (far->span.n == 1)
        __builtin_prefetch(far->span.one, 1);
    if (far->key % KEYMAP_LINE_KEYS == 0)
        keymap_prefetch(in->keys, far->key);
    if (near->span.n != 1 || chunk_is_split(near->span.one))
        return;
    uint32_t bytes = sizeof(struct chunk) + near->span.one->bytes;
    for (uint32_t at = 64; at < bytes && at < FETCH_BYTES; at += 64)
        __builtin_prefetch((const char *)near->span.one + at, 1);
}

/* Removes an item, and those of its group, which owe no samples any more. Returns how many. */
static uint32_t drop(struct table *self, uint32_t slot)
{
    /* What is taken once, and is still here, was never counted: it came back from its leases. */
    uint32_t times_sampled = self->config->max_times_sampled == 1 ? 0 : self->in.items[slot].times_sampled;
    uint32_t before = self->in.size;
    table_remove(self, slot);
    for (uint32_t i = self->in.size; i < before; i++)
        limiter_forgot(&self->limiter, times_sampled, self->in.unseen);
    table_mark(self); /* waiting inserts may continue */
    return before - self->in.size;
}

/* Evicts at most n of the items that are too old, and the rest of the last one's group. Returns how many. */
static uint32_t drop_stale(struct table *self, uint32_t n)
{
    uint32_t slot = window_stale(&self->in.window), dropped = 0;
    if (__builtin_expect(slot == NO_SLOT, 1))
        return 0;
    EFFECT(self->loop, together, (size_t)(n + self->in.groups.size) * REMOVAL_BYTES + LIMITER_BYTES);
    for (; slot != NO_SLOT && dropped < n; slot = window_stale(&self->in.window))
        dropped += drop(self, slot);
    self->stats.stale += dropped;
    self->stale_ns = self->loop->now_ns;
    EFFECT(self->loop, limiter, self);
    return dropped;
}

/* Drops an open group. */
static void drop_group(struct table *self, uint32_t leader, const char *why)
{
    struct group_member group = self->in.groups.slots[leader];
    uint32_t not_logged;
    EFFECT(self->loop, together, (size_t)group.n * REMOVAL_BYTES + LIMITER_BYTES);
    drop(self, leader);
    self->stats.dropped_groups++;
    EFFECT(self->loop, limiter, self);
    if (log_allow(&self->group_log, 1, self->loop->now_ns, &not_logged))
        log_line(LEVEL_WARN, "B0215", why, "table=%s group=%llu members=%u size=%u held_back=%u", self->name,
                 (unsigned long long)group.group, group.n, self->in.groups.size, not_logged);
}

/* Where the remover has nothing to pick, all items are of open groups: the oldest goes, unless it gets a member now. False: there is
 * no other. */
static bool evict_open(struct table *self)
{
    const struct groups *groups = &self->in.groups;
    uint32_t leader = groups->slots ? groups->oldest : NO_SLOT;
    if (leader != NO_SLOT && leader == self->spared)
        leader = groups->slots[leader].newer;
    if (leader == NO_SLOT)
        return false;
    self->stats.evicted += groups->slots[leader].n;
    drop_group(self, leader, "a table that is full of groups without all members drops the oldest");
    return true;
}

/* Picks of which one is evicted. */
#define SPARSE_PICKS 16u

/* Removes an item that is too old, or else the one that the remover picks; of several picks the item whose first chunk lies in the emptiest
 * slab. False: the table is empty. */
static inline __attribute__((always_inline)) bool evict_of(struct table *self, uint32_t picks)
{
    uint32_t slots[SPARSE_PICKS], best = 0, least = UINT32_MAX;
    double probabilities[SPARSE_PICKS];
    if (drop_stale(self, 1))
        return true;
    if (self->in.size == 0 || self->remover_ops->pick(self->in.remover, picks, slots, probabilities) != picks)
        return evict_open(self);
    for (uint32_t i = 0; picks > 1 && i < picks; i++) {
        struct chunk *chunk = span_chunks(&self->in.items[slots[i]].span)[0];
        const void *object = !chunk_is_split(chunk)          ? chunk
                             : chunk->where == CHUNK_IN_SLAB ? (const void *)chunk_data(chunk)
                                                             : NULL;
        uint32_t fill = object ? slab_fill(object) : UINT32_MAX;
        best = fill < least ? i : best;
        least = fill < least ? fill : least;
    }
    prefetch_victims(self, slots[best]);
    self->stats.evicted +=
        self->in.groups.slots ? self->in.groups.slots[slots[best]].n : 1; /* the leader of its group */
    table_remove(self, slots[best]);
    return true;
}

static bool table_evict(struct table *self)
{
    return evict_of(self, 1);
}

static bool table_evict_sparse(struct table *self)
{
    return evict_of(self, SPARSE_PICKS);
}

/* True if the table's items owe samples that the limiter would allow now: then no item is evicted for memory. */
static bool room_is_kept(const struct table *self)
{
    return self->config->max_times_sampled && limiter_counts(&self->limiter) && table_visible(self) &&
           limiter_sampleable(&self->limiter, 1) > 0;
}

static inline bool too_much(const struct table *self)
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

rp_status table_enter(struct table *self, uint32_t slot, uint64_t key, const struct span *span, rp_error *err)
{
    if (!keymap_put(self->in.keys, key, slot))
        return err_set(err, RP_ALREADY_EXISTS,
                       "key %llu is in table '%s' already: to change its priority send an update",
                       (unsigned long long)key, self->name);
    struct chunk *const *chunks = span_chunks(span);
    for (uint32_t i = 0; i < span->n; i++)
        if (chunk_enter(self->store, chunks[i], self->in.account))
            self->bytes += chunks[i]->bytes;
    ordinals_enter(&self->tables->ordinals, key);
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

/* ---- groups */

/* Closes an open group: from now on it can be sampled. */
static void show_group(struct table *self, uint32_t leader)
{
    groups_close(&self->in.groups, leader);
    table_show(self, leader, SHOW_LAST);
}

int64_t table_group_since_ns(const struct table *self, uint32_t leader)
{
    int64_t began = self->in.items[leader].insert_ns, start = self->tables->start_ns;
    return began > start ? began : start;
}

static void set_group_timer(struct table *self)
{
    uint32_t oldest = self->in.groups.oldest;
    if (oldest != NO_SLOT && !self->group_timer.place)
        timer_set(&self->loop->timers, &self->group_timer,
                  table_group_since_ns(self, oldest) + self->config->group_deadline_ns);
}

static void enter_group(struct table *self, uint32_t slot, uint64_t group)
{
    struct groups *groups = &self->in.groups;
    self->spared = groups_enter(groups, slot, group);
    self->in.items[slot].stamp = ITEM_HIDDEN;
    self->in.hidden++;
    EFFECT(self->loop, group, self, slot);
    set_group_timer(self);
}

/* Shows the group of an item that was inserted, if it was the last member: after the record of the insert, without which files would
 * show a group that lacks it. */
static void complete_group(struct table *self)
{
    struct groups *groups = &self->in.groups;
    uint32_t leader = self->spared;
    if (groups->slots[leader].n < groups->size)
        return;
    show_group(self, leader);
    self->stats.complete_groups++;
}

/* Items of groups that one turn drops or delivers. */
#define GROUP_ITEMS_PER_TURN 256u

static void look_at_groups(struct timer *timer)
{
    struct table *self = timer->ctx;
    const struct groups *groups = &self->in.groups;
    int64_t due = self->loop->now_ns - self->config->group_deadline_ns;
    uint32_t leader;
    for (uint32_t items = 0; (leader = groups->oldest) != NO_SLOT && items < GROUP_ITEMS_PER_TURN &&
                             table_group_since_ns(self, leader) <= due;) {
        items += groups->slots[leader].n;
        if (self->config->group_incomplete == GROUP_DROP) {
            drop_group(self, leader, "a group did not get all its members in time, and was dropped");
        } else {
            show_group(self, leader);
            self->stats.short_groups++;
        }
    }
    set_group_timer(self);
    table_mark(self);
}

uint64_t table_insertable_group(const struct table *self, uint64_t group)
{
    const struct groups *groups = &self->in.groups;
    uint64_t all = groups_missing(groups) + groups->size;
    /* A group with members that are too old has yet to leave: it gets no more. */
    if (self->limiter.paused || window_stale(&self->in.window) != NO_SLOT)
        return 0;
    if (groups_find(groups, group) != NO_SLOT)
        return 1;
    /* What a ratio still asks for after a drop must not keep an empty table empty. */
    bool empty = self->in.size == 0 && self->limiter.kind == LIMITER_RATIO;
    return empty || limiter_insertable(&self->limiter, all) == all;
}

uint64_t table_needed_room(const struct table *self)
{
    const struct groups *groups = &self->in.groups;
    uint64_t want = self->n_waiting_items, unseen = self->in.unseen, most = (uint64_t)self->config->max_size;
    if (groups->slots)
        want = want ? groups_missing(groups) + (want + groups->size - 1) / groups->size * groups->size : 0;
    uint64_t room = limiter_insertable(&self->limiter, want), ahead = (uint64_t)limiter_cursor(&self->limiter);
    if (self->limiter.paused || room >= want || (room && !groups->slots) || ahead <= unseen || self->in.size >= most)
        return 0;
    want = want - room < ahead - unseen ? want - room : ahead - unseen;
    return want < most - self->in.size ? want : most - self->in.size;
}

uint64_t table_spare_room(const struct table *self)
{
    uint64_t kept = self->in.groups.slots ? groups_missing(&self->in.groups) : 0;
    uint64_t room = limiter_insertable(&self->limiter, kept + UINT32_MAX);
    return room > kept && !table_needed_room(self) ? room - kept : 0;
}

uint64_t table_move_room(struct table *self, int64_t n)
{
    int64_t most = (int64_t)(n < 0 ? table_spare_room(self) : UINT32_MAX);
    uint64_t moved = limiter_move(&self->limiter, n < -most ? -most : n, self->in.unseen);
    if (moved)
        EFFECT(self->loop, limiter, self);
    table_mark(self);
    return moved;
}

void table_explain_groups(const struct table *self, char *text, size_t size)
{
    const struct groups *groups = &self->in.groups;
    text[0] = '\0';
    if (!groups->slots || !groups->n_open)
        return;
    const struct group_member *oldest = &groups->slots[groups->oldest];
    snprintf(text, size, "%u group%s for members: the oldest, key %llu, has %u of %u for %.0f s", groups->n_open,
             groups->n_open == 1 ? " waits" : "s wait", (unsigned long long)oldest->group, oldest->n, groups->size,
             fmax(0.0, (double)(self->loop->now_ns - table_group_since_ns(self, groups->oldest)) / (double)NS_PER_S));
}

void table_explain_begin(const struct table *self, uint64_t group, char *text, size_t size)
{
    const struct groups *groups = &self->in.groups;
    char open[200];
    text[0] = '\0';
    if (!groups->slots || table_insertable_group(self, group) || window_stale(&self->in.window) != NO_SLOT)
        return;
    uint64_t missing = groups_missing(groups), all = missing + groups->size;
    table_explain_groups(self, open, sizeof open);
    snprintf(text, size,
             "a new group needs room for %u items: the limiter allows %llu, less %llu that open groups lack%s%s",
             groups->size, (unsigned long long)limiter_insertable(&self->limiter, all), (unsigned long long)missing,
             open[0] ? "; " : "", open);
}

/* True if memory may be nearly full: then room_make looks closer. */
static inline bool room_is_short(const struct tables *tables)
{
    const struct store *store = tables->store;
    uint64_t chunks = slab_bytes(store->slabs)->reserved + store_shared(store).reserved + store->outside;
    return chunks + store->overhead + store->overhead / 16 > tables->storage_budget;
}
static rp_status room_make(struct table *self, rp_error *err);

/* Items that leave with one that comes, if they are too old: one that is too old itself should go at once, and most others are left
 * to the chore. */
#define STALE_PER_INSERT 4u

rp_status table_insert(struct table *self, const struct arrival *arrival, rp_error *err)
{
    const struct tables *tables = self->tables;
    struct loop *loop = self->loop;
    if (__builtin_expect(self->in.groups.slots != NULL, 0))
        self->spared = groups_find(&self->in.groups, arrival->group);
    if (__builtin_expect(room_is_short(tables) || tables->disk.ctx, 0) &&
        keymap_get(self->in.keys, arrival->key) == KEYMAP_NONE)
        RP_TRY(room_make(self, err));
    if (loop->effects && !loop->effects->prepare(loop->record, span_chunks(&arrival->span), arrival->span.n))
        return err_set(err, RP_NO_MEMORY, "no memory to record an item of table '%s'", self->name);
    uint32_t slot = slot_take(self);
    rp_status status = table_enter(self, slot, arrival->key, &arrival->span, err);
    if (status != RP_OK) {
        slot_give_back(&self->in, slot);
        return status;
    }
    struct item *item = &self->in.items[slot];
    touch(self, slot);
    self->last_insert_ns = loop->now_ns > self->last_insert_ns ? loop->now_ns : self->last_insert_ns + 1;
    *item = (struct item){.key = arrival->key,
                          .priority = arrival->priority,
                          .insert_ns = self->last_insert_ns,
                          .policy = arrival->policy,
                          .span = arrival->span};
    if (__builtin_expect(self->in.groups.slots != NULL, 0)) {
        enter_group(self, slot, arrival->group);
    } else {
        self->sampler_ops->insert(self->in.sampler, slot, item->priority);
        self->remover_ops->insert(self->in.remover, slot, item->priority);
    }
    if (self->in.window.slots) {
        item->policy = window_version(&self->in.window,
                                      item->policy); /* files keep it so, or it would be younger after a restart */
        window_enter(&self->in.window, slot, item->policy);
    }
    self->newest_policy = item->policy;
    self->in.size++;
    self->in.unseen++;
    table_newest_layout(self, item->span.layout);
    limiter_inserted(&self->limiter, 1);
    self->stats.total_inserts++;
    EFFECT(loop, insert, self, slot, arrival->flow);
    if (__builtin_expect(self->in.groups.slots != NULL, 0))
        complete_group(self);
    if (episodes_enter(&self->in.episodes, span_episode(&item->span)) && !arrival->same_episode) {
        self->stats.episodes++;
        EFFECT_ENTRY(loop, ENTRY_EPISODES, self->id, entry_named, self->stats.episodes);
    }
    if (self->hook_insert)
        RUN_HOOKS(self, on_insert, slot, );
    uint32_t left = self->evictions;
    (void)drop_stale(self, STALE_PER_INSERT);
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

static inline void selectors_update(const struct table *self, uint32_t n, const uint32_t *slots,
                                    const double *priorities)
{
    if (self->sampler_ops->update)
        self->sampler_ops->update(self->in.sampler, n, slots, priorities);
    if (self->remover_ops->update)
        self->remover_ops->update(self->in.remover, n, slots, priorities);
}

/* Runs no hooks, and does not count as an update. */
static void set_priorities(struct table *self, uint32_t n, const uint32_t *slots, const double *priorities)
{
    for (uint32_t i = 0; i < n && self->in.marks; i++)
        touch(self, slots[i]);
    if (self->in.hidden) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t slot = self->in.groups.slots ? self->in.groups.slots[slots[i]].leader : slots[i];
            touch(self, slot);
            self->in.items[slots[i]].priority = priorities[i];
            double priority = table_priority(self, slot);
            if (!item_is_hidden(&self->in.items[slot]))
                selectors_update(self, 1, &slot, &priority);
        }
    } else {
        selectors_update(self, n, slots, priorities);
    }
    for (uint32_t i = 0; i < n; i++)
        self->in.items[slots[i]].priority = priorities[i];
    for (uint32_t i = 0; i < n && self->loop->effects; i++)
        EFFECT_ENTRY(self->loop, ENTRY_PRIORITY, self->id, entry_priority, .slot = slots[i], .priority = priorities[i]);
}

void table_update(struct table *self, uint32_t n, const uint32_t *slots, const double *priorities)
{
    self->stats.updates += n;
    if (!self->hook_update)
        set_priorities(self, n, slots, priorities);
    for (uint32_t i = 0; i < n && self->hook_update; i++) { /* a hook sees the changes up to its own */
        double old = self->in.items[slots[i]].priority;
        set_priorities(self, 1, &slots[i], &priorities[i]);
        RUN_HOOKS(self, on_update, slots[i], COMMA old);
    }
}

uint64_t table_sampleable(const struct table *self, uint64_t want)
{
    if (!table_is_ready(self))
        return 0;
    uint64_t leased = self->in.leased, shown = table_items_shown(self);
    /* Items of open groups count for the limiter, and cannot be sampled: a whole batch waits until there are enough others. */
    if (self->in.groups.slots && self->config->max_times_sampled == 1 && want > shown)
        want = shown;
    uint64_t n = limiter_sampleable(&self->limiter, want + leased);
    return n > leased ? n - leased : 0;
}

double table_mass(const struct table *self)
{
    if (!table_is_ready(self))
        return 0;
    uint32_t n = table_visible(self);
    return self->sampler_ops->mass ? self->sampler_ops->mass(self->in.sampler, n) : (double)n;
}

void table_count_reset(struct table *self)
{
    self->stats.episodes = self->stats.unique_samples = 0;
    self->resets++;
}

void table_copy_counters(const ProtobufCMessage *from, ProtobufCMessage *to)
{
    const ProtobufCMessageDescriptor *kept = &replay__table_restored__descriptor;
    for (unsigned i = 0; i < kept->n_fields; i++) {
        const char *name = kept->fields[i].name;
        memcpy((char *)to + protobuf_c_message_descriptor_get_field_by_name(to->descriptor, name)->offset,
               (const char *)from + protobuf_c_message_descriptor_get_field_by_name(from->descriptor, name)->offset,
               sizeof(uint64_t));
    }
}

void table_sampled_one(struct table *self, uint32_t slot)
{
    if (self->hook_sample)
        RUN_HOOKS(self, on_sample, slot, );
    int64_t most = self->config->max_times_sampled;
    if (most && self->in.items[slot].times_sampled >= most)
        table_remove(self, slot);
}

void table_sampled_group(struct table *self, uint32_t leader)
{
    const struct group_member *slots = self->in.groups.slots;
    uint32_t n = slots[leader].n, slot = leader;
    for (uint32_t i = 0; i < n; i++, slot = slots[slot].next) {
        touch(self, slot);
        self->in.unseen -= self->in.items[slot].times_sampled == 0;
        table_count_sample(self, &self->in.items[slot]);
        if (self->hook_sample)
            RUN_HOOKS(self, on_sample, slot, );
    }
    limiter_sampled(&self->limiter, n);
    int64_t most = self->config->max_times_sampled;
    if (most && self->in.items[leader].times_sampled >= most)
        table_remove(self, leader);
}

/* Once a second: records the history behind the rates. */
static void table_tick(struct table *self, int64_t now_ns)
{
    struct table_history *history = &self->history;
    self->sampled_lately = history->n && self->stats.total_samples != history->counts[history->at][1];
    history->at = (history->at + 1) % (TABLE_RATE_SECONDS + 1);
    uint64_t *now = history->counts[history->at];
    now[0] = self->stats.total_inserts;
    now[1] = self->stats.total_samples;
    now[2] = self->stats.updates;
    history->at_ns[history->at] = now_ns;
    if (history->n < TABLE_RATE_SECONDS + 1)
        history->n++;
}

double table_rate(const struct table *self, uint32_t kind)
{
    const struct table_history *history = &self->history;
    if (history->n < 2)
        return 0;
    uint32_t last = history->at;
    uint32_t first = (last + TABLE_RATE_SECONDS + 2 - history->n) % (TABLE_RATE_SECONDS + 1);
    double seconds = (double)(history->at_ns[last] - history->at_ns[first]) / (double)NS_PER_S;
    return seconds > 0 ? (double)(history->counts[last][kind] - history->counts[first][kind]) / seconds : 0;
}

/* True if the table has more items than it should have, now that nothing is being inserted. */
static bool has_surplus(const struct table *self)
{
    return self->in.size > (uint64_t)self->config->max_size || too_much(self) ||
           window_stale(&self->in.window) != NO_SLOT;
}

static bool trimming_step(struct chore *chore)
{
    struct table *table = (struct table *)(void *)((char *)chore - offsetof(struct table, trimming));
    table_mark(table); /* below min_size, waiting inserts may continue */
    (void)drop_stale(table, 256);
    if (window_stale(&table->in.window) != NO_SLOT)
        return true;
    for (uint32_t i = 0; i < table->evictions; i++) {
        table->removing = has_surplus(table) && table_evict(table);
        if (!table->removing)
            return false;
    }
    return true;
}

void table_remove_surplus(struct table *self)
{
    if (self->removing || !has_surplus(self))
        return;
    self->trimming.step = trimming_step;
    self->removing = true;
    chores_add(&self->loop->chores, &self->trimming);
}

/* ---- versions of the parameters */

/* Items and limiter follow the version of the table. */
static void follow(struct table *self)
{
    if (self->in.window.slots && self->version > self->in.window.version)
        window_move(&self->in.window, self->version);
    if (limiter_moved(&self->limiter, self->version))
        EFFECT(self->loop, limiter, self);
    table_remove_surplus(self);
    table_mark(self);
}

void table_set_max_lag(struct table *self, uint32_t lag)
{
    self->max_lag = lag;
    window_set_lag(&self->in.window, lag);
    follow(self);
}

void tables_moved(struct tables *self, const struct param_slot *slot)
{
    for (uint32_t i = 0; i < self->n; i++) {
        struct table *table = &self->list[i];
        if (strcmp(table->config->policy_slot, slot->name) != 0)
            continue;
        table->version = slot->version;
        if (table->max_lag >= 0)
            follow(table);
    }
}

void tables_follow(struct tables *self, const struct params *params)
{
    for (uint32_t i = 0; i < self->n; i++) {
        struct table *table = &self->list[i];
        struct contents *in = &table->in;
        table->version = params_version(params, table->config->policy_slot);
        table->limiter.version = table->version;
        if (table->max_lag < 0)
            continue;
        if (table->limiter.kind == LIMITER_LAG) /* it keeps a change that was made while the broker ran */
            table->max_lag = (int64_t)limiter_max_lag(&table->limiter);
        window_set_lag(&in->window, (uint32_t)table->max_lag);
        window_move(&in->window, table->version);
        int64_t newest_ns = INT64_MIN;
        in->unseen = 0;
        for (uint32_t slot = 0; slot < in->high; slot++) {
            const struct item *item = &in->items[slot];
            if (!item->span.n)
                continue;
            window_enter(&in->window, slot, window_version(&in->window, item->policy));
            in->unseen += item->times_sampled == 0;
            table->newest_policy = item->insert_ns >= newest_ns ? item->policy : table->newest_policy;
            newest_ns = item->insert_ns >= newest_ns ? item->insert_ns : newest_ns;
        }
        table_remove_surplus(table);
    }
}

void table_remove_too_much(struct table *self)
{
    while ((self->in.size > (uint64_t)self->config->max_size || too_much(self)) && table_evict(self)) {
    }
}

/* ---- room for one more item */

#define MIB (1024.0 * 1024.0)

/* Returns what is left for chunks: a sixteenth at least, so that a table that once had very many small items goes on with large
 * ones. */
static uint64_t left_for_chunks(const struct store *store, uint64_t limit)
{
    uint64_t least = limit / 16;
    return store->overhead + least < limit ? limit - store->overhead : least;
}

/* True if one more item would exceed this much memory.
 *
 * Slots and keys stay with their table when items go: only chunks are freed. So a table that needs a further slot evicts while all
 * memory exceeds the limit, and gets the slot of another item. It stops growing a little earlier, in proportion to what cannot be
 * given back: or every change of what others hold would cost a great many small items. */
static bool exceeds(const struct table *self, uint64_t limit)
{
    const struct store *store = self->store;
    if (store_chunk_memory(store) > left_for_chunks(store, limit))
        return true;
    uint64_t margin = limit == self->tables->storage_budget ? store->overhead / 16 : 0;
    return self->in.free == NO_SLOT && store_memory(store) + margin > limit;
}

static bool disk_wants_room(const struct tables *self)
{
    return self->disk.ctx && self->disk.wants_room(self->disk.ctx);
}

/* True if something should be evicted. Chunks that are about to go to disk make room without that: inserts wait for them
 * before they come here. */
static bool wants_room(const struct table *self)
{
    const struct tables *tables = self->tables;
    return (exceeds(self, tables->storage_budget) && !tables_disk_is_full(tables)) || disk_wants_room(tables);
}

/* Bytes that the item adds to the table. */
static uint64_t added_bytes(const struct table *self, const struct span *span)
{
    struct chunk *const *chunks = span_chunks(span);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < span->n; i++)
        bytes += chunk_is_in(chunks[i], self->in.account) ? 0 : chunks[i]->bytes;
    return bytes;
}

static bool exceeds_max_bytes(const struct table *self, const struct span *span)
{
    uint64_t most = (uint64_t)self->config->max_bytes;
    return most && self->bytes + added_bytes(self, span) > most;
}

static bool exceeds_memory(const struct table *self)
{
    return self->waiters.n ? exceeds(self, (uint64_t)self->tables->config->memory_limit) : wants_room(self);
}

/* True if the table is full of hidden items: one more item would be evicted at once. */
static bool is_full_of_hidden(const struct table *self)
{
    return !self->in.groups.slots && self->in.hidden >= (uint64_t)self->config->max_size; /* open groups are evicted */
}

static bool has_to_wait(const struct table *self, const struct span *span)
{
    if (is_full_of_hidden(self))
        return true;
    bool all_leased = self->in.leased && !table_visible(self); /* then nothing can be evicted for the item but itself */
    if (all_leased && (exceeds_memory(self) || exceeds_max_bytes(self, span)))
        return true;
    if (!limiter_counts(&self->limiter))
        return false;
    if (self->in.size == 0) /* only a sampler that holds picked items can make room */
        return self->waiters.n && exceeds_memory(self);
    return (exceeds_memory(self) || exceeds_max_bytes(self, span)) && room_is_kept(self);
}

static bool relieve(const struct store *store)
{
    return store->relieve && store->relieve(store->relieve_ctx);
}

bool room_waits_(struct table *self, const struct span *span)
{
    while (has_to_wait(self, span))
        if (!exceeds_memory(self) || !relieve(self->store)) {
            self->waits_for_room = self->tables->waits_for_room = true;
            return true;
        }
    return false;
}

/* The first time is logged: the table will not get as large as its configuration says. */
static void note_evicted(struct table *self, uint32_t n, const char *by)
{
    self->evicted_by = by;
    if (self->stats.evicted_for_memory == 0) {
        self->evicted_for_memory_ns = self->loop->now_ns;
        log_line(LEVEL_WARN, "B0210", "a table evicts items before it is full",
                 "table=%s items=%u max_size=%lld limit=%s memory_bytes=%llu memory_limit=%lld", self->name,
                 self->in.size, (long long)self->config->max_size, self->evicted_by,
                 (unsigned long long)store_memory(self->store), (long long)self->tables->config->memory_limit);
    }
    self->evicted_lately_ns = self->loop->now_ns;
    self->stats.evicted_for_memory += n;
}

uint64_t room_held(const struct table *self)
{
    return self->bytes + contents_memory(&self->in);
}

const struct table *room_holder(const struct tables *tables)
{
    const struct table *largest = &tables->list[0];
    for (uint32_t i = 1; i < tables->n; i++)
        if (room_held(&tables->list[i]) > room_held(largest))
            largest = &tables->list[i];
    return largest;
}

/* True if memory is lost in places that nobody fits into, because keys are far apart or the sizes of chunks have changed. Then the
 * table shrinks slowly, by one more item for each that comes, until these places come free. */
static bool loses_memory(const struct table *self)
{
    const struct store *store = self->store;
    uint64_t budget = self->tables->storage_budget, waste = store_waste(store);
    return (waste > 0 && store_chunk_memory(store) + waste > left_for_chunks(store, budget)) ||
           (store_memory(store) > budget && contents_are_full(&self->in));
}

/* Evicts for memory, if the table may: its own items first; only when it has none left is the item refused. */
static rp_status room_make(struct table *self, rp_error *err)
{
    const struct tables *tables = self->tables;
    const struct store *store = self->store;
    uint64_t before = self->stats.evicted;
    while (wants_room(self) && relieve(store)) {
    }
    if (!room_is_kept(self)) {
        const char *by = disk_wants_room(tables) ? "storage.disk" : "memory_limit";
        /* One pick of a remover that picks at random would free no slab before nearly all old items are gone. */
        bool (*evict_one)(struct table *) = store_waste(self->store) > 0 ? table_evict_sparse : table_evict;
        for (uint32_t n = 0; n < self->evictions && wants_room(self) && evict_one(self);)
            n++;
        if (loses_memory(self) && !tables_disk_is_full(tables))
            (void)evict_one(self);
        if (self->stats.evicted > before)
            note_evicted(self, (uint32_t)(self->stats.evicted - before), by);
    }
    if (self->in.size > 0 || !exceeds(self, (uint64_t)tables->config->memory_limit))
        return RP_OK;
    uint64_t used = store_memory(self->store);
    const struct table *holder = room_holder(tables);
    return err_set(
        err, RP_RESOURCE_EXHAUSTED,
        "memory is full: %llu of %lld bytes are in use and this table has nothing left to remove; table '%s' "
        "holds most, %llu bytes. Lower its max_size or max_bytes, or raise memory_limit",
        (unsigned long long)used, (long long)tables->config->memory_limit, holder->name,
        (unsigned long long)room_held(holder));
}

void room_explain(const struct table *self, const struct span *span, char *text, size_t size)
{
    if (!(self->config->max_times_sampled || self->in.hidden) || !has_to_wait(self, span))
        return;
    if (is_full_of_hidden(self)) {
        snprintf(text, size,
                 "needs room: all %u items of the table are hidden and not evicted, %u of them under lease; inserts "
                 "continue "
                 "when some are acknowledged, or shown again",
                 self->in.hidden, self->in.leased);
        return;
    }
    double used = (double)store_memory(self->store) / MIB;
    double limit = (double)self->tables->config->memory_limit / MIB;
    const struct table *holder = room_holder(self->tables);
    if (self->waiters.n && exceeds_memory(self))
        snprintf(
            text, size,
            "needs memory: %.1f MiB of %.1f MiB are in use (memory_limit), and a sampler waits for more items: ask "
            "for smaller batches, or raise memory_limit",
            used, limit);
    else if (exceeds_memory(self))
        snprintf(
            text, size,
            "needs memory: %.1f MiB are in use, of which table '%s' holds %.1f MiB, and tables may have %.1f MiB "
            "(seven eighths of memory_limit); the %u items of this table are not evicted, since they still have to "
            "be sampled: inserts continue when they are",
            used, holder->name, (double)room_held(holder) / MIB, (double)self->tables->storage_budget / MIB,
            self->in.size);
    else
        snprintf(text, size,
                 "needs room: the table has %.1f MiB of at most %.1f MiB (max_bytes); its %u items are not evicted, "
                 "since they still have to be sampled: inserts continue when they are",
                 (double)self->bytes / MIB, (double)self->config->max_bytes / MIB, self->in.size);
}

/* ---- the calls that an extension may make to its table */

static bool in_use(const struct table *table, uint32_t slot)
{
    return slot < table->in.high && table->in.items[slot].span.n > 0;
}

static bool host_view(void *ctx, uint32_t slot, rp_item_view *out)
{
    const struct table *table = ctx;
    if (!in_use(table, slot))
        return false;
    table_view(table, slot, out);
    return true;
}

static bool host_set_priority(void *ctx, uint32_t slot, double priority)
{
    struct table *table = ctx;
    if (!in_use(table, slot) || table_check_priority(table, priority, NULL) != RP_OK)
        return false;
    set_priorities(table, 1, &slot, &priority);
    return true;
}

static bool host_copy_to(void *ctx, uint32_t slot, const char *other_table, double priority)
{
    struct table *table = ctx, *other = tables_find(table->tables, other_table, strlen(other_table));
    if (!in_use(table, slot) || !other || other == table || other->in.groups.slots ||
        table_check_priority(other, priority, NULL) != RP_OK)
        return false;
    const struct item *item = &table->in.items[slot];
    struct arrival arrival = {.key = item->key, .priority = priority, .policy = item->policy};
    if (!span_copy(&item->span, &arrival.span, table->store, table->layouts))
        return false;
    if (room_waits(other, &arrival.span) || table_insert(other, &arrival, NULL) != RP_OK) {
        span_release(&arrival.span, table->store, table->layouts);
        return false;
    }
    table_mark(other);
    return true;
}

void table_return(struct table *self, uint32_t slot, bool delivered)
{
    const struct item *item = &self->in.items[slot];
    int64_t most = self->config->max_deliveries;
    if (delivered && most && item->times_sampled >= most) {
        EFFECT(self->loop, together, MOVE_BYTES + item->span.n * sizeof(uint64_t));
        if (host_copy_to(self, slot, self->config->dead_table, item->priority)) {
            table_remove(self, slot);
            limiter_forgot(&self->limiter, 0, self->in.unseen);
            EFFECT(self->loop, limiter, self);
            self->stats.dead++;
            table_mark(self);
            return;
        }
    }
    self->stats.returned += delivered;
    table_show(self, slot, delivered ? SHOW_FIRST : SHOW_UNDELIVERED);
}

/* ---- life */

static void signature_init(struct table *self)
{
    const rp_option *fields = self->config->signature.data;
    struct signature *signature = &self->signature;
    signature->n = self->config->signature.count;
    signature->fields = need_alloc(signature->n * sizeof *signature->fields);
    signature->table = self->config->name;
    for (uint32_t i = 0; i < signature->n; i++)
        config_field(&fields[i], &signature->fields[i]); /* the configuration was checked */
}

static rp_status extensions_init(struct table *self, rp_error *err)
{
    const struct schema_kind *list = self->config->extensions.data;
    uint32_t n = self->config->extensions.count;
    self->extensions = need_alloc(n * sizeof *self->extensions);
    for (uint32_t i = 0; i < n; i++) {
        struct extension *extension = &self->extensions[i];
        extension->ops = plugins_extension(&self->tables->plugins, list[i].kind);
        if (!extension->ops)
            return err_set(err, RP_NOT_FOUND,
                           "no extension '%s': built in are statistics, priority_diffusion and "
                           "insert_on_sample; others come from plugins",
                           list[i].kind);
        extension->host = (rp_extension_host){self, host_view, host_set_priority, host_copy_to};
        extension->self =
            extension->ops->create(list[i].options.data, list[i].options.count, self->capacity, &extension->host, err);
        if (!extension->self)
            return err && err->status ? (rp_status)err->status : RP_INVALID_ARGUMENT;
        self->n_extensions = i + 1;
        self->hook_insert |= extension->ops->on_insert != NULL;
        self->hook_sample |= extension->ops->on_sample != NULL;
        self->hook_update |= extension->ops->on_update != NULL;
        self->hook_delete |= extension->ops->on_delete != NULL;
    }
    return RP_OK;
}

static rp_status selector_find(const struct table *self, const char *kind, const rp_selector_ops **ops, rp_error *err)
{
    *ops = plugins_selector(&self->tables->plugins, kind);
    return *ops ? RP_OK
                : err_set(err, RP_NOT_FOUND, "no selector '%s', neither built in nor in a loaded plug-in", kind);
}

void table_set_metadata(struct table *self, const char *text)
{
    free(self->metadata);
    self->metadata = need_text(text);
}

/* Narrows the priorities that need no check to those of a selector. */
static void narrow_bounds(struct table *self, const rp_selector_ops *ops, void *selector)
{
    double low = 1, high = 0; /* none */
    if (!ops->check)
        return;
    if (ops->bounds)
        ops->bounds(selector, &low, &high);
    self->low = fmax(self->low, low);
    self->high = fmin(self->high, high);
}

static rp_status init_with(struct table *self, uint32_t capacity, rp_error *err)
{
    replay__table_info__init(&self->stats);
    replay__table_restored__init(&self->restored);
    const struct table_config *config = self->config;
    self->name = config->name;
    TAILQ_INIT(&self->waiters.queue);
    self->newest_layout = NO_LAYOUT;
    self->spared = NO_SLOT;
    self->evictions = config->group_size > 1 ? EVICTIONS_AT_ONCE / (uint32_t)config->group_size + 1 : EVICTIONS_AT_ONCE;
    self->group_timer = (struct timer){.fire = look_at_groups, .ctx = self};
    self->capacity = capacity;
    self->loop = self->tables->loop;
    self->store = self->tables->store;
    self->layouts = self->tables->layouts;
    self->max_lag = config->max_lag;
    struct limiter_config limiter = config_limiter(config);
    limiter.part = config_shards(self->tables->config) > 1;
    RP_TRY(limiter_init(&self->limiter, &limiter, err));
    RP_TRY(selector_find(self, config->sampler.kind, &self->sampler_ops, err));
    if (config_shards(self->tables->config) > 1 && !config_sampler_divides(config, self->sampler_ops))
        return err_set(err, RP_UNSUPPORTED, CONFIG_NO_MASS, config->sampler.kind);
    RP_TRY(selector_find(self, config->remover.kind, &self->remover_ops, err));
    signature_init(self);
    table_set_metadata(self, config->metadata ? config->metadata : "");
    RP_TRY(contents_init(&self->in, self, (struct contents_seeds){self->seed, self->seed ^ 1}, err));
    self->low = 0;
    self->high = DBL_MAX;
    narrow_bounds(self, self->sampler_ops, self->in.sampler);
    narrow_bounds(self, self->remover_ops, self->in.remover);
    reserve_group_begin(&self->in.arrays);
    rp_status status = extensions_init(self, err);
    reserve_group_end(capacity);
    RP_TRY(status);
    self->one_by_one = config->max_times_sampled > 0 || self->hook_sample;
    return RP_OK;
}

static void table_fini(struct table *self)
{
    for (uint32_t i = 0; i < self->n_extensions; i++)
        self->extensions[i].ops->destroy(self->extensions[i].self);
    free(self->extensions);
    for (uint32_t i = 0; self->in.items && i < self->in.high; i++)
        if (self->in.items[i].span.n)
            table_release_item(self, &self->in, &self->in.items[i]);
    contents_fini(&self->in, self);
    table_newest_layout(self, NO_LAYOUT);
    free(self->signature.fields);
    free(self->metadata);
}

rp_status table_grow(struct table *self, uint32_t capacity, rp_error *err)
{
    struct table old = *self;
    *self = (struct table){.tables = old.tables, .config = old.config, .id = old.id, .seed = old.seed};
    rp_status status = init_with(self, capacity, err);
    if (status != RP_OK) {
        table_fini(self);
        *self = old;
        return status;
    }
    memcpy(self->in.items, old.in.items, old.in.high * sizeof *old.in.items);
    if (self->in.groups.slots)
        memcpy(self->in.groups.slots, old.in.groups.slots, old.capacity * sizeof *old.in.groups.slots);
    self->in.high = old.in.high;
    self->in.size = old.in.size;
    self->stats = old.stats;
    self->resets = old.resets;
    old.in.high = 0;
    table_fini(&old);
    return RP_OK;
}

/* ---- a reset: a table gets empty contents at once, and a chore frees the old contents in slices */

/* Items that are freed in one slice. */
#define SLICE_ITEMS 256u

/* A new selector continues the random numbers of the old one from its state; if the old one has no state to show, it starts
 * from `otherwise`. */
static uint64_t seed_after(const rp_selector_ops *ops, void *selector, uint64_t otherwise)
{
    uint8_t state[4096];
    uint32_t n = ops->save ? ops->save(selector, state, sizeof state) : 0;
    return n ? siphash((const uint8_t[16]){0}, state, n) : otherwise;
}

/* The chore that frees the old contents of a table. */
struct old_contents {
    struct chore chore;
    struct table *table;
    struct contents in;
    uint32_t at; /* slots before this one are free */
};

static bool old_contents_step(struct chore *chore)
{
    struct old_contents *self = (struct old_contents *)chore;
    uint32_t end = self->in.high - self->at > SLICE_ITEMS ? self->at + SLICE_ITEMS : self->in.high;
    for (; self->at < end; self->at++)
        if (self->in.items[self->at].span.n)
            table_release_item(self->table, &self->in, &self->in.items[self->at]);
    if (self->at < self->in.high || contents_fini_step(&self->in, self->table))
        return true;
    free(self);
    return false;
}

#define RESET_BYTES ((size_t)64 << 20)

rp_status table_reset(struct table *self, rp_error *err)
{
    struct contents fresh;
    /* Old and new contents exist side by side. The rest is for alignment and the first keys. */
    if (!reserve_has_room(self->in.arrays.bytes + RESET_BYTES))
        return err_set(err, RP_NO_MEMORY, "no address space to reset table '%s': it is needed twice meanwhile",
                       self->name);
    uint64_t other = self->seed + (self->resets + 1) * UINT64_C(0xd1342543de82ef95);
    struct contents_seeds seeds = {seed_after(self->sampler_ops, self->in.sampler, other),
                                   seed_after(self->remover_ops, self->in.remover, other ^ 1)};
    RP_TRY(contents_init(&fresh, self, seeds, err));
    struct old_contents *old = need_alloc(sizeof *old);
    *old = (struct old_contents){.chore = {.step = old_contents_step}, .table = self, .in = self->in};
    contents_uncount_slots(&old->in, self->store);
    self->in = fresh;
    self->bytes = 0;
    table_newest_layout(self, NO_LAYOUT);
    table_count_reset(self);
    if (self->loop->effects)
        self->loop->effects->entry(self->loop->record, ENTRY_RESET, self->id, 0);
    const struct marks *marks = old->in.marks;
    bool kept = marks && marks->copying && marks->copier->keep(marks->copying, &old->in, &old->chore);
    if (!kept)
        chores_add(&self->loop->chores, &old->chore);
    limiter_reset(&self->limiter);
    for (uint32_t i = 0; i < self->n_extensions; i++)
        if (self->extensions[i].ops->on_reset)
            self->extensions[i].ops->on_reset(self->extensions[i].self);
    return RP_OK;
}

/* ---- all tables */

rp_status tables_init(struct tables *self, rp_error *err)
{
    self->storage_budget = (uint64_t)self->config->memory_limit - (uint64_t)config_ingest_budget(self->config);
    ordinals_init(&self->ordinals, config_shards(self->config) > 1 ? (uint32_t)self->config->shard : 0);
    return plugins_load(&self->plugins, &self->config->plugins, err);
}

rp_status tables_create(struct tables *self, struct rng *seeds, rp_error *err)
{
    uint32_t n = self->config->tables.count;
    self->list = need_alloc(n * sizeof *self->list);
    for (uint32_t i = 0; i < n; i++) {
        const struct table_config *config = (const struct table_config *)self->config->tables.data + i;
        self->list[i] = (struct table){.tables = self, .config = config, .id = i, .seed = rng_next(seeds)};
        rp_status status = init_with(&self->list[i], table_slots(config), err);
        self->n = i + 1;
        if (status != RP_OK) {
            err_prefix(err, "table '%s'", config->name);
            return status;
        }
    }
    return RP_OK;
}

void tables_start(struct tables *self)
{
    self->start_ns = clock_now(&self->loop->clock);
    for (uint32_t i = 0; i < self->n; i++) {
        timer_clear(&self->loop->timers, &self->list[i].group_timer);
        if (self->list[i].in.groups.slots)
            set_group_timer(&self->list[i]);
    }
}

void tables_tick(struct tables *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        struct table *table = &self->list[i];
        table_tick(table, self->loop->now_ns);
        table_mark(table);
        if (table->config->soft_capacity) /* it grows by a quarter at most meanwhile */
            table_remove_surplus(table);
    }
}

void tables_fini(struct tables *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        table_fini(&self->list[i]);
    free(self->list);
    self->list = NULL;
    self->n = 0;
    ordinals_fini(&self->ordinals);
    plugins_fini(&self->plugins);
}

struct table *tables_find(const struct tables *self, const char *name, size_t size)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (strlen(self->list[i].name) == size && memcmp(self->list[i].name, name, size) == 0)
            return &self->list[i];
    return NULL;
}
