/* The clock hand that picks cold chunks, the budgets, and what spilling does in each turn. */
#include "broker/spill/spill.h"

#include <stdio.h>
#include <stdlib.h>

#include "broker/journal/stream.h"
#include "proto/base/error.h"

#define LOOKS_PER_SLICE 256u
/* Bytes written to records that count as one look. */
#define PUT_PER_LOOK 4096u
#define REST_NS (10 * NS_PER_MS)
#define SWEEP_NS NS_PER_S
#define MOVE_AGAIN_NS (60 * NS_PER_S)

/* Allocated by itself, because as a chore it may outlive struct spill by a slice. */
struct hand {
    struct chore chore;
    struct spill *spill; /* NULL: spilling has ended */
};

/* ---- budgets ---- */

uint64_t spill_cap(const struct spill *self)
{
    uint64_t other = store_memory(self->state.store) - self->state.store->split_bytes, least = self->memory / 8;
    uint64_t room = self->state.tables->storage_budget > other ? self->state.tables->storage_budget - other : 0;
    uint64_t cap = room < self->memory ? room : self->memory;
    return cap > least ? cap : least;
}

/* The hooks of struct disk_tier. */

static bool tier_is_full(void *ctx)
{
    struct spill *self = ctx;
    bool full = !self->stalled && self->state.store->split_bytes > spill_cap(self);
    if (full)
        self->held = true;
    return full;
}

static void tier_explain_insert(void *ctx, char *text, size_t size)
{
    const struct spill *self = ctx;
    if (!tier_is_full(ctx))
        return;
    char why[300] = "";
    bool stuck = stream_is_full(self->stream, why, sizeof why);
    snprintf(
        text, size,
        "needs memory: %.1f MiB of chunks are in memory, where storage.memory allows %.1f MiB, and are being written "
        "to disk%s%s",
        (double)self->state.store->split_bytes / (1 << 20), (double)spill_cap(self) / (1 << 20), stuck ? "; " : "",
        why);
}

static bool tier_wants_room(void *ctx)
{
    const struct spill *self = ctx;
    if (!self->disk)
        return false;
    /* Chunks that stayed in memory because storage.disk was used up will need room there. */
    uint64_t here = self->state.store->split_bytes, cap = spill_cap(self);
    uint64_t more = self->disk_full && here > cap ? (here - cap) / 8 * 9 : 0;
    return self->stream->segments.live + more > self->disk;
}

/* ---- the hand ---- */

/* The hand starts at the high mark, before memory is full, and stops at the low mark. */
static uint64_t high_mark(const struct spill *self)
{
    return spill_cap(self) / 8 * 7;
}

static uint64_t low_mark(const struct spill *self)
{
    return spill_cap(self) / 16 * 13;
}

/* True if chunks may be written now. Records that are not written yet take memory, too. */
static bool may_put(const struct spill *self)
{
    const struct stream *stream = self->stream;
    uint64_t most = self->memory / 4 > 2 * RECORD_BYTES ? self->memory / 4 : 2 * RECORD_BYTES;
    return !stream->full && stream->backlog < most;
}

/* Writes the chunk to a segment. False: not now. */
static bool put(struct spill *self, struct chunk *chunk, uint32_t *looks)
{
    struct stream *stream = self->stream;
    if (self->disk && stream->segments.live + chunk_cost(chunk) + 64 > self->disk) {
        self->disk_full = true;
        return false;
    }
    if (!may_put(self)) {
        self->round_waiting++;
        return false;
    }
    if (!stream_chunk(stream, chunk)) {
        self->round_waiting++;
        return false;
    }
    self->disk_full = false;
    self->round_work++;
    *looks += chunk->bytes / PUT_PER_LOOK;
    return true;
}

static void look_at(struct spill *self, struct chunk *chunk, uint32_t *looks)
{
    ++*looks;
    if (chunk->kind != CHUNK_SPLIT)
        return;
    if (self->moving && disk_number(chunk->at) == self->moving && spill_move_chunk(self, chunk))
        *looks += chunk->bytes / PUT_PER_LOOK;
    if (chunk->where == CHUNK_ON_DISK || chunk->needed || self->state.store->split_bytes <= low_mark(self))
        return;
    if (chunk->hot) {
        chunk->hot = 0;
        chunk->seen = self->round;
        self->round_work++;
        if (stream_lacks(self->stream, chunk))
            put(self, chunk, looks);
        return;
    }
    if (chunk->seen == self->round)
        return; /* the hand has met it in this round, at another item */
    if (stream_lacks(self->stream, chunk) && !put(self, chunk, looks))
        return;
    if (chunk->at >= self->durable_at) {
        self->round_waiting++;
        return;
    }
    self->let_go_chunks++;
    self->let_go_bytes += chunk->bytes;
    self->round_work++;
    store_let_go(self->state.store, chunk);
}

/* The hand has passed all items. False: it stops. */
static bool round_end(struct spill *self)
{
    bool nothing = self->round_whole && self->round_work == 0;
    self->idle = nothing;
    self->stalled = nothing && self->round_waiting == 0;
    if (self->round_work)
        self->stalled = false;
    self->round = !self->round;
    self->round_whole = true;
    self->round_work = self->round_waiting = 0;
    self->hand_table = self->hand_slot = 0;
    if (self->stalled && self->moving) {
        /* The segment still holds a chunk that is in no table: it cannot be emptied now. */
        self->moving = 0;
        self->move_after_ns = self->state.loop->now_ns + MOVE_AGAIN_NS;
    }
    return !nothing;
}

static void release_inserts(struct spill *self)
{
    if (!self->held || (!self->stalled && self->state.store->split_bytes > spill_cap(self)))
        return;
    self->held = false;
    for (uint32_t i = 0; i < self->state.tables->n; i++)
        if (self->state.tables->list[i].blocked)
            table_mark(&self->state.tables->list[i]);
}

static bool hand_step(struct chore *chore)
{
    struct hand *hand = (struct hand *)chore;
    struct spill *self = hand->spill;
    bool more = self != NULL;
    for (uint32_t looks = 0; more && looks < LOOKS_PER_SLICE;) {
        if (self->state.store->split_bytes <= low_mark(self) && !self->moving) {
            more = false;
        } else if (self->hand_table == self->state.tables->n) {
            more = round_end(self);
        } else if (self->hand_slot >= self->state.tables->list[self->hand_table].in.high) {
            self->hand_table++;
            self->hand_slot = 0;
        } else {
            const struct item *item = &self->state.tables->list[self->hand_table].in.items[self->hand_slot++];
            struct chunk *const *chunks = span_chunks(&item->span);
            looks++;
            for (uint32_t i = 0; i < item->span.n; i++)
                look_at(self, chunks[i], &looks);
        }
    }
    if (self)
        release_inserts(self);
    if (more)
        return true;
    if (self) {
        self->hand = NULL;
        self->idle_bytes = self->state.store->split_bytes;
        self->idle_ns = self->state.loop->now_ns;
    }
    free(hand);
    return false;
}

static void hand_start(struct spill *self)
{
    struct hand *hand = calloc(1, sizeof *hand);
    if (!hand)
        return; /* the next turn tries again */
    *hand = (struct hand){{NULL, hand_step}, self};
    self->hand = hand;
    self->idle = self->news = false;
    self->round_whole = self->hand_table == 0 && self->hand_slot == 0;
    self->round_work = self->round_waiting = 0;
    chores_add(&self->state.loop->chores, &hand->chore);
}

/* ---- the turn ---- */

/* Updates durable_at, the place up to which records are written. True: it has moved. */
static bool watch_durable(struct spill *self)
{
    const struct stream *stream = self->stream;
    bool moved = false;
    /* Twice, because the next mark may be reached already. */
    for (uint32_t i = 0; i < 2 && stream->durable >= self->mark_number; i++) {
        moved |= self->durable_at != self->mark_at;
        self->durable_at = self->mark_at;
        self->mark_at = disk_at(stream->segment, stream->offset);
        self->mark_number = stream->number - 1;
    }
    return moved;
}

static bool hand_is_due(const struct spill *self)
{
    uint64_t bytes = self->state.store->split_bytes;
    if (self->hand || (bytes <= high_mark(self) && !self->moving))
        return false;
    return !self->idle || self->news || bytes > self->idle_bytes + self->memory / 16 ||
           self->state.loop->now_ns - self->idle_ns > REST_NS;
}

bool spill_run(struct spill *self)
{
    uint64_t reads = spill_reads(self);
    bool more = spill_take_reads(self) || reads != spill_reads(self);
    self->news |= watch_durable(self) || more;
    if (self->state.loop->now_ns - self->swept_ns >= SWEEP_NS) {
        self->swept_ns = self->state.loop->now_ns;
        if (spill_owns_files(self))
            spill_sweep(self);
    }
    if (hand_is_due(self))
        hand_start(self);
    release_inserts(self);
    spill_order_reads(self);
    return more || self->hand || self->state.tables->dirty;
}

void *spill_socket(const struct spill *self)
{
    return fetcher_socket(self->fetcher);
}

uint64_t spill_reads(const struct spill *self)
{
    return self ? self->fetched_chunks + self->damaged_chunks : 0;
}

bool spill_is_quiet(const struct spill *self)
{
    const struct stream *stream = self->stream;
    bool works = self->hand || self->parked || self->needs.count || fetcher_under_way(self->fetcher);
    return !works && (self->state.store->split_bytes <= high_mark(self) || self->stalled) && !self->moving &&
           stream->durable + 1 >= stream->number;
}

/* ---- life ---- */

rp_status spill_open(struct spill **out, const struct durable_state *state, struct stream *stream, rp_error *err)
{
    const struct broker_config *config = state->config;
    if (!config->storage_memory)
        return RP_OK;
    struct spill *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory to spill chunks to disk");
    self->fetcher = fetcher_new(&stream->folder, err);
    if (!self->fetcher) {
        free(self);
        return RP_NO_MEMORY;
    }
    self->state = *state;
    self->stream = stream;
    self->memory = (uint64_t)config->storage_memory;
    self->disk = (uint64_t)config->storage_disk;
    self->parked_end = &self->parked;
    self->reads_end = &self->reads;
    self->swept_ns = state->loop->now_ns;
    state->store->split = true;
    state->tables->disk = (struct disk_tier){self, tier_is_full, tier_wants_room, tier_explain_insert};
    state->samples->parking = spill_parking(self);
    *out = self;
    return RP_OK;
}

void spill_close(struct spill **at)
{
    struct spill *self = *at;
    if (!self)
        return;
    self->state.tables->disk = (struct disk_tier){0};
    self->state.samples->parking = (struct sample_parking){0};
    if (self->hand)
        self->hand->spill = NULL;
    spill_drop_reads(self);
    fetcher_destroy(&self->fetcher);
    idmap_fini(&self->needs);
    idmap_fini(&self->lost);
    free(self);
    *at = NULL;
}
