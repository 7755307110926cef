#include "broker/sample/recall.h"

#include <stdlib.h>
#include <string.h>

#include "broker/disk/record.h"
#include "broker/sample/recall_impl.h"
#include "proto/base/error.h"

#define DROPS_PER_SWEEP 256u

/* ---- remembering ---- */

static bool memory_reserve(struct memory *memory, uint32_t n)
{
    size_t need = (size_t)n * KEY_BYTES;
    if (need <= memory->room)
        return true;
    free(memory->block);
    memory->block = malloc(need);
    memory->room = memory->block ? need : 0;
    return memory->block != NULL;
}

static bool memory_copy(struct memory *memory, const struct picks *picks)
{
    if (picks->n == 0 || !memory_reserve(memory, picks->n))
        return false;
    memory->n = picks->n;
    memory->table_size = picks->table_size;
    memcpy(memory->block, picks->key, (size_t)picks->n * 8);
    memcpy(block_priority(memory), picks->priority, (size_t)picks->n * 8);
    memcpy(block_probability(memory), picks->probability, (size_t)picks->n * 8);
    memcpy(block_times(memory), picks->times_sampled, (size_t)picks->n * 4);
    return true;
}

/* A chunk that neighbours share counts once. */
static uint64_t held_bytes(const struct picks *picks)
{
    uint64_t bytes = sizeof(struct memory) + (uint64_t)picks->capacity * 72 + (uint64_t)picks->refs_capacity * 8;
    for (uint32_t i = 0; i < picks->n_refs; i++)
        if (i == 0 || picks->refs[i] != picks->refs[i - 1])
            bytes += chunk_cost(picks->refs[i]);
    return bytes;
}

/* Says once in a while that the budget is too small for what clients have not read. */
static void tell_full(struct recall *self, const struct table *table, uint64_t client, uint64_t id, uint32_t picks)
{
    uint32_t held;
    if (log_allow(&self->full_log, 1, self->broker->loop.now_ns, &held))
        log_line(LEVEL_WARN, "B0540", "sample forgotten before the client said that it has it",
                 "table=%s client=%016llx id=%llu picks=%u budget_bytes=%llu held_back=%u", table->name,
                 (unsigned long long)client, (unsigned long long)id, picks, (unsigned long long)self->budget, held);
}

static bool make_room(struct recall *self, struct owner *owner, uint64_t bytes)
{
    if (bytes > self->budget)
        return false;
    while (owner->count >= (owner->settles ? RECALL_SETTLING : RECALL_PER_CLIENT))
        recall_drop(self, owner->first);
    while (self->bytes + bytes > self->budget) {
        struct memory *oldest = self->oldest;
        if (oldest->holds)
            tell_full(self, oldest->table, oldest->owner->client, oldest->id, oldest->picks.n);
        recall_drop(self, oldest);
    }
    return true;
}

/* Takes picks to hold, or copies of them what is needed. NULL: no memory, no room, and nothing was taken. */
static struct memory *remember(struct recall *self, struct owner *owner, struct table *table, uint64_t id,
                               uint32_t want, uint32_t flags, bool answered, bool holds, struct picks *picks,
                               struct memory **aside)
{
    uint64_t bytes = holds ? held_bytes(picks) : sizeof(struct memory) + (uint64_t)picks->n * KEY_BYTES;
    if (!make_room(self, owner, bytes)) {
        tell_full(self, table, owner->client, id, picks->n);
        return NULL;
    }
    struct memory *memory = aside && *aside ? *aside : recall_memory_new(self);
    if (!memory)
        return NULL;
    if (aside)
        *aside = NULL;
    memory->n = 0;
    if (holds) {
        struct picks empty = memory->picks;
        memory->picks = *picks;
        *picks = empty;
    } else if (!memory_copy(memory, picks)) {
        recall_recycle(self, memory);
        return NULL;
    }
    memory->id = id;
    memory->table = table;
    memory->want = want;
    memory->flags = flags;
    memory->answered = answered;
    memory->holds = holds;
    memory->bytes = bytes;
    recall_link(self, owner, memory);
    return memory;
}

static uint32_t waiter_flags(const struct waiter *waiter)
{
    return pick_flags(waiter->distinct, waiter->flexible, waiter->whole);
}

void recall_lose(struct broker *broker, struct waiter *waiter)
{
    if (waiter->wait.client)
        EFFECT(&broker->loop, forget, waiter->wait.client, waiter->wait.id);
    waiter->table->stats.orphaned_picks += waiter->picks.n;
}

bool recall_reserve(struct broker *broker, struct waiter *waiter)
{
    struct recall *self = broker->samples.recall;
    if (!self || !waiter->wait.client)
        return true;
    if (!recall_owner_make(self, waiter->wait.client))
        return false;
    waiter->memory = recall_memory_new(self);
    return waiter->memory && (waiter->table->one_by_one || memory_reserve(waiter->memory, waiter->want));
}

void recall_release(struct broker *broker, struct waiter *waiter)
{
    if (waiter->memory)
        recall_recycle(broker->samples.recall, waiter->memory);
    waiter->memory = NULL;
}

struct picks *recall_keep(struct broker *broker, struct waiter *waiter, bool answered)
{
    struct recall *self = broker->samples.recall;
    uint64_t client = waiter->wait.client, id = waiter->wait.id;
    if (waiter->picks.n == 0 || waiter->fetch)
        return &waiter->picks;
    if (answered && !waiter->again && client)
        EFFECT(&broker->loop, answered, client, id);
    answered |= waiter->again;
    struct owner *owner = self ? recall_owner_make(self, client) : NULL;
    /* What is looked up by keys stays remembered while it is sent once more. */
    if (waiter->again && recall_find(owner, id))
        return &waiter->picks;
    bool holds = waiter->table->one_by_one || !answered;
    struct memory *memory = NULL;
    if (owner && id > owner->settled) {
        recall_heard(self, owner); /* it was there up to now, however long it has waited */
        if (holds)
            picks_own(&waiter->picks, broker);
        memory = remember(self, owner, waiter->table, id, waiter->want, waiter_flags(waiter), answered, holds,
                          &waiter->picks, &waiter->memory);
    }
    if (memory)
        return holds ? &memory->picks : &waiter->picks;
    if (!answered)
        recall_lose(broker, waiter);
    else if (client)
        EFFECT(&broker->loop, forget, client, id);
    return &waiter->picks;
}

/* ---- asked again ---- */

rp_status recall_check(struct broker *broker, const struct request *request, const struct table *table, uint32_t want,
                       uint32_t flags, rp_error *err)
{
    const struct owner *owner =
        broker->samples.recall ? recall_owner(broker->samples.recall, request->head.client) : NULL;
    if (!owner)
        return RP_OK;
    if (request->head.id <= owner->settled)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "this client has said that it has all replies up to request %llu: %llu is not answered again",
                       (unsigned long long)owner->settled, (unsigned long long)request->head.id);
    const struct memory *memory = recall_find(owner, request->head.id);
    if (memory && (memory->table != table || memory->want != want || memory->flags != flags))
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "request %llu of this client was a sample of %u items of table '%s'%s: another one needs a new id",
            (unsigned long long)request->head.id, memory->want, memory->table->name,
            memory->flags != flags ? ", with other flags" : "");
    return RP_OK;
}

/* The items of a memory that holds none, as far as they are in the table. False: no memory. */
static bool look_up(struct waiter *waiter, const struct memory *memory)
{
    const uint64_t *keys = (const uint64_t *)(const void *)memory->block;
    struct picks *picks = &waiter->picks;
    for (uint32_t i = 0; i < memory->n; i++) {
        uint32_t slot = table_find(waiter->table, keys[i]);
        if (slot == KEYMAP_NONE)
            continue;
        if (!picks_add(picks, waiter->table, slot, block_probability(memory)[i]))
            return false;
        picks->priority[picks->n - 1] = block_priority(memory)[i];
        picks->times_sampled[picks->n - 1] = block_times(memory)[i];
    }
    picks->table_size = memory->table_size;
    waiter->gone = memory->n - picks->n;
    return true;
}

/* What the batch has already must not come into it again. */
static void stamp_picked(struct waiter *waiter)
{
    struct contents *in = &waiter->table->in;
    for (uint32_t i = 0; i < waiter->picks.n; i++) {
        uint32_t slot = table_find(waiter->table, waiter->picks.key[i]);
        if (slot != KEYMAP_NONE && (uint64_t)in->items[slot].insert_ns == waiter->picks.age_ns[i])
            in->items[slot].stamp = waiter->stamp;
    }
}

enum recall_found recall_load(struct broker *broker, struct waiter *waiter)
{
    struct recall *self = broker->samples.recall;
    struct memory *memory = self ? recall_find(recall_owner(self, waiter->wait.client), waiter->wait.id) : NULL;
    if (!memory)
        return RECALL_NOTHING;
    bool answered = memory->answered;
    if (!memory->holds) {
        if (!look_up(waiter, memory))
            return RECALL_NO_MEMORY;
        if (waiter->picks.n == 0) { /* nothing of it is left: a new sample takes its place */
            waiter->gone = 0;
            recall_drop(self, memory);
            return RECALL_NOTHING;
        }
    } else {
        struct picks empty = waiter->picks;
        waiter->picks = memory->picks;
        memory->picks = empty;
    }
    if (memory->holds || !answered) {
        recall_unlink(self, memory);
        recall_recycle(self, memory);
    }
    waiter->again = answered;
    if (!answered && waiter->distinct)
        stamp_picked(waiter);
    return answered ? RECALL_ANSWERED : RECALL_LEFT;
}

/* ---- forgetting ---- */

void recall_settled(struct broker *broker, uint64_t client, uint64_t id)
{
    struct recall *self = broker->samples.recall;
    struct owner *owner = self ? recall_owner(self, client) : NULL;
    if (!owner)
        return;
    recall_heard(self, owner);
    if (id <= owner->settled)
        return;
    owner->settles = true;
    owner->settled = id;
    for (struct memory *memory = owner->first, *after; memory; memory = after) {
        after = memory->after;
        if (memory->id <= id) {
            memory->answered = true; /* or not wanted: nobody is left without it */
            recall_drop(self, memory);
        }
    }
}

void recall_sweep(struct broker *broker)
{
    struct recall *self = broker->samples.recall;
    if (!self)
        return;
    uint32_t left = DROPS_PER_SWEEP, lost = 0;
    while (self->first_owner && left) {
        struct owner *owner = self->first_owner;
        if (broker->loop.now_ns - owner->heard_ns <= broker->config->tombstone_ns)
            break;
        for (struct memory *memory = owner->first, *after; memory && left; memory = after, left--) {
            after = memory->after;
            lost += memory->answered ? 0 : memory->picks.n;
            recall_drop(self, memory);
        }
        if (!owner->first)
            recall_drop_owner(self, owner);
    }
    uint32_t held;
    if (lost && log_allow(&self->gone_log, 1, broker->loop.now_ns, &held))
        log_line(LEVEL_WARN, "B0541", "a sampler did not come back for the items picked for it",
                 "picks=%u held_back=%u", lost, held);
}

uint64_t recall_bytes(const struct broker *broker)
{
    return broker->samples.recall ? broker->samples.recall->bytes : 0;
}

/* ---- checkpoint and restore ---- */

/* Stands in for what is not remembered. Never written to. */
static const uint64_t zeros[BROKER_MAX_BATCH];

static struct picks keys_of(const struct memory *memory)
{
    uint64_t *wide = (uint64_t *)(uintptr_t)zeros;
    uint32_t *narrow = (uint32_t *)(uintptr_t)zeros;
    return (struct picks){.n = memory->n < BROKER_MAX_BATCH ? memory->n : BROKER_MAX_BATCH,
                          .key = (uint64_t *)(void *)memory->block,
                          .priority = block_priority(memory),
                          .probability = block_probability(memory),
                          .times_sampled = block_times(memory),
                          .age_ns = wide,
                          .policy = wide,
                          .step = wide,
                          .session = narrow,
                          .layout = narrow,
                          .offset = narrow,
                          .length = narrow,
                          .chunks = narrow,
                          .table_size = memory->table_size};
}

void recall_each(struct broker *broker, void (*fn)(void *ctx, const struct recalled *recalled), void *ctx)
{
    for (struct memory *at = broker->samples.recall ? broker->samples.recall->oldest : NULL; at; at = at->newer) {
        struct recalled recalled = {at->owner->client, at->id,       at->table, at->want,
                                    at->flags,         at->answered, at->picks, at->holds};
        if (!at->holds)
            recalled.picks = keys_of(at);
        fn(ctx, &recalled);
    }
    for (const struct wait *wait = broker->peers.waits.first; wait; wait = wait->next) {
        const struct waiter *waiter = (const struct waiter *)wait;
        if (strcmp(wait->ops->kind, "sample") != 0 || !wait->client || waiter->fetch || !waiter->picks.n)
            continue;
        if (waiter->again && !waiter->table->one_by_one)
            continue; /* it is remembered, and was given above */
        struct recalled recalled = {wait->client,         wait->id,      waiter->table, waiter->want,
                                    waiter_flags(waiter), waiter->again, waiter->picks, true};
        fn(ctx, &recalled);
    }
}

bool recall_restore(struct broker *broker, struct recalled *recalled)
{
    struct recall *self = broker->samples.recall;
    struct picks *picks = &recalled->picks;
    struct owner *owner = self && recalled->client && recalled->id ? recall_owner_make(self, recalled->client) : NULL;
    bool holds = recalled->holds, ok = false;
    if (owner && picks->n && picks->n <= BROKER_MAX_BATCH && !recall_find(owner, recalled->id))
        ok = remember(self, owner, recalled->table, recalled->id, recalled->want, recalled->flags, recalled->answered,
                      holds, picks, NULL) != NULL;
    if (!holds)
        picks->n = picks->n_refs = 0; /* they held nothing */
    picks_clear(picks, broker);
    picks_fini(picks);
    return ok;
}
