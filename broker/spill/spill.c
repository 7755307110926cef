/* Parked samples and their reads; the segment files, where no checkpoints care for them; the clock hand that picks cold chunks;
 * the budgets; and what spilling does in each turn. */
#include "broker/spill/spill.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/journal/stream.h"
#include "broker/sample/samples.h"
#include "proto/base/need.h"

/* Most batches in flight: one that the fetcher reads, and one for it to go on with. */
#define BATCHES 2u
#define RUN_NS (300 * NS_PER_US)

/* A chunk that is pinned, being read, or both. */
struct need {
    struct chunk *chunk; /* with a reference */
    struct need *next;   /* in the queue of reads */
    uint32_t pins;
    bool reading; /* queued, or in flight */
    bool bring;   /* wanted by spill_bring */
    rp_status failed;
    char *why;
};

static struct need *need_find(const struct spill *self, const struct chunk *chunk)
{
    return chunk->needed ? idmap_get(&self->needs, (uintptr_t)chunk) : NULL;
}

static struct need *need_of(struct spill *self, struct chunk *chunk)
{
    struct need *need = need_find(self, chunk);
    if (need)
        return need;
    need = need_alloc(sizeof *need);
    idmap_put(&self->needs, (uintptr_t)chunk, need);
    need->chunk = chunk;
    chunk_hold(chunk);
    chunk->needed = 1;
    self->pinned_bytes += chunk->bytes;
    return need;
}

static void need_end(struct spill *self, struct need *need)
{
    struct chunk *chunk = need->chunk;
    idmap_remove(&self->needs, (uintptr_t)chunk);
    chunk->needed = 0;
    self->pinned_bytes -= chunk->bytes;
    free(need->why);
    free(need);
    store_release(self->state.store, chunk);
}

static void need_read(struct spill *self, struct need *need)
{
    if (need->reading || need->failed || chunk_is_here(need->chunk))
        return;
    need->reading = true;
    need->next = NULL;
    *self->reads_end = need;
    self->reads_end = &need->next;
}

/* ---- reads ---- */

static void order_reads(struct spill *self)
{
    while (self->reads && fetcher_under_way(self->fetcher) < BATCHES) {
        struct fetch_batch *batch = need_alloc(sizeof *batch);
        for (uint64_t bytes = 0; self->reads && batch->n < FETCH_CHUNKS;) {
            struct need *need = self->reads;
            if (batch->n && bytes + need->chunk->bytes > FETCH_BYTES)
                break;
            self->reads = need->next;
            if (!self->reads)
                self->reads_end = &self->reads;
            if (!need->pins && !need->bring) { /* the waiters that wanted it have ended */
                need_end(self, need);
                continue;
            }
            bytes += need->chunk->bytes;
            batch->jobs[batch->n++] = (struct fetch_job){
                .owner = need, .at = need->chunk->at, .bytes = need->chunk->bytes, .columns = need->chunk->columns};
        }
        if (batch->n)
            fetcher_give(self->fetcher, batch);
        else
            free(batch);
    }
}

static void drop_reads(struct spill *self)
{
    while (self->reads) {
        struct need *need = self->reads;
        self->reads = need->next;
        need_end(self, need);
    }
    self->reads_end = &self->reads;
    while (fetcher_under_way(self->fetcher)) {
        zmq_pollitem_t item = {fetcher_socket(self->fetcher), 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, -1);
        struct fetch_batch *batch = fetcher_take(self->fetcher);
        for (uint32_t i = 0; batch && i < batch->n; i++)
            need_end(self, batch->jobs[i].owner);
        fetch_batch_destroy(&batch);
    }
}

static void need_failed(struct spill *self, struct need *need, rp_status status, const char *text)
{
    uint32_t held;
    need->failed = status;
    need->why = strdup(text);
    self->damaged_chunks++;
    if (log_allow(&self->log, 5, self->state.loop->now_ns, &held))
        log_line(LEVEL_ERROR, "B0531", "a chunk could not be read back", "error=\"%s\" held_back=%u", text, held);
}

static void take_batch(struct spill *self, struct fetch_batch *batch)
{
    struct store *store = self->state.store;
    for (uint32_t i = 0; i < batch->n; i++) {
        struct fetch_job *job = &batch->jobs[i];
        struct need *need = job->owner;
        struct chunk *chunk = need->chunk;
        bool brought = need->bring;
        need->reading = need->bring = false;
        if (brought)
            self->bring_bytes -= chunk->bytes;
        if (brought && job->status != RP_OK)
            idmap_put(&self->lost, chunk->at, self);
        if (job->status == RP_OK) {
            self->fetched_chunks++;
            self->fetched_bytes += chunk->bytes;
            if (!store_put_back(store, chunk, job->data))
                need_failed(self, need, RP_NO_MEMORY, "no memory for a chunk that was read back");
            job->data = NULL;
        } else {
            need_failed(self, need, job->status, batch->err.text);
        }
        if (need->pins == 0)
            need_end(self, need);
    }
    self->arrived = true;
    fetch_batch_destroy(&batch);
}

enum spill_brings spill_bring(struct spill *self, struct chunk *chunk)
{
    if (chunk_is_here(chunk) || !self)
        return SPILL_HERE;
    if (idmap_get(&self->lost, chunk->at))
        return SPILL_LOST;
    /* Chunks that are moved must not push out those that samplers need. */
    if (self->bring_bytes > self->memory / 8)
        return SPILL_COMING;
    struct need *need = need_of(self, chunk);
    if (need->failed || need->bring)
        return need->failed ? SPILL_LOST : SPILL_COMING;
    need->bring = true;
    self->bring_bytes += chunk->bytes;
    need_read(self, need);
    order_reads(self);
    return SPILL_COMING;
}

/* ---- waiters ---- */

static void unpin(struct spill *self, struct waiter *waiter)
{
    for (uint32_t i = 0; i < waiter->park.pinned; i++) {
        struct need *need = need_find(self, waiter->picks.refs[i]);
        if (--need->pins == 0 && !need->reading)
            need_end(self, need);
    }
    waiter->park.pinned = 0;
}

static void pin(struct spill *self, struct waiter *waiter)
{
    for (uint32_t i = 0; i < waiter->picks.n_refs; i++) {
        struct need *need = need_of(self, waiter->picks.refs[i]);
        need->pins++;
        waiter->park.pinned = i + 1;
        need_read(self, need);
    }
}

static void admit(struct spill *self)
{
    struct waiter *waiter;
    while ((waiter = self->not_admitted) &&
           (self->pinned_bytes < self->memory / 2 || waiter == TAILQ_FIRST(&self->parked.queue))) {
        self->not_admitted = TAILQ_NEXT(waiter, link);
        waiter->park.state = PARK_ADMITTED;
        pin(self, waiter);
        self->arrived = true; /* all its chunks may be in memory already */
    }
    order_reads(self);
}

static void unlink_waiter(struct spill *self, struct waiter *waiter)
{
    if (self->not_admitted == waiter)
        self->not_admitted = TAILQ_NEXT(waiter, link);
    waiter_remove(waiter);
}

static bool spill_park(void *ctx, struct waiter *waiter)
{
    struct spill *self = ctx;
    struct park *park = &waiter->park;
    if (park->state == PARK_READY) {
        /* The caller builds the reply before any data can be freed; or its client does not read, and it is parked again later. */
        unpin(self, waiter);
        park->state = PARK_NOT;
        park->at = 0;
        park->damaged = park->broken = false;
        admit(self);
        return false;
    }
    if (park->state == PARK_NOT) {
        if (picks_are_here(&waiter->picks))
            return false;
        park->state = PARK_WAITS;
        waiter_set_aside(waiter, &self->parked);
        if (!self->not_admitted)
            self->not_admitted = waiter;
    }
    admit(self);
    return true;
}

static void spill_unpark(void *ctx, struct waiter *waiter)
{
    struct spill *self = ctx;
    struct park *park = &waiter->park;
    if (park->state == PARK_NOT)
        return;
    if (park->state != PARK_READY)
        unlink_waiter(self, waiter);
    unpin(self, waiter);
    admit(self);
    *park = (struct park){0};
}

static void spill_explain(const struct waiter *waiter, char *text, size_t size)
{
    const struct picks *picks = &waiter->picks;
    uint32_t missing = 0, ref = 0;
    for (uint32_t i = 0; i < picks->n; i++) {
        bool here = true;
        for (uint32_t c = 0; c < picks->chunks[i]; c++)
            here &= chunk_is_here(picks->refs[ref++]);
        missing += !here;
    }
    snprintf(text, size, "table '%s': %u of %u items are being read from disk%s", waiter->table->name, missing,
             picks->n, waiter->park.state == PARK_WAITS ? ", after those of other requests" : "");
}

/* Removes an item whose data is lost, if the table still has it: sampling it would fail again. */
static void remove_item(struct spill *self, struct table *table, uint64_t key, const struct chunk *chunk)
{
    uint32_t slot = table_find(table, key);
    if (slot == KEYMAP_NONE)
        return;
    const struct span *span = &table->in.items[slot].span;
    struct chunk *const *chunks = span_chunks(span);
    uint32_t i = 0;
    while (i < span->n && chunks[i] != chunk)
        i++;
    if (i == span->n)
        return; /* the key belongs to another item now */
    uint32_t held;
    if (log_allow(&self->log, 5, self->state.loop->now_ns, &held))
        log_line(LEVEL_ERROR, "B0532", "items whose data is lost were removed", "table=%s key=%llu held_back=%u",
                 table->name, (unsigned long long)key, held);
    table_remove(table, slot);
    table_mark(table);
}

/* Drops the items that could not be read from the picks. Returns their status, and writes what is wrong to text. */
static rp_status drop_damaged(struct spill *self, struct waiter *waiter, char *text, size_t size)
{
    struct picks *picks = &waiter->picks;
    uint32_t before = picks->n, ref = picks->n_refs;
    rp_status status = RP_NO_MEMORY;
    char why[256] = "no memory to read it";
    if (waiter->park.broken) { /* nothing is dropped: the client asks again */
        const struct need *need = need_find(self, picks->refs[waiter->park.at - 1]);
        snprintf(text, size, "%u items could not be read from the broker's disk now: %s", before,
                 need->why ? need->why : "no memory");
        unpin(self, waiter);
        return RP_NO_MEMORY;
    }
    /* All pins go: the reply is built right after, or the waiter is held and parked again. */
    uint32_t *lost = need_alloc((before + 1) * sizeof *lost), n_lost = 0;
    for (uint32_t i = before; i-- > 0;) {
        ref -= picks->chunks[i];
        for (uint32_t c = 0; c < picks->chunks[i]; c++) {
            struct chunk *chunk = picks->refs[ref + c];
            if (chunk_is_here(chunk))
                continue;
            const struct need *need = need_find(self, chunk);
            if (need && need->failed) {
                status = need->failed;
                snprintf(why, sizeof why, "%s", need->why ? need->why : "");
            }
            if (need && need->failed == RP_DATA_LOSS)
                remove_item(self, waiter->table, picks->key[i], chunk);
            lost[n_lost++] = i;
            break;
        }
    }
    unpin(self, waiter);
    for (uint32_t i = 0; i < n_lost; i++)
        picks_drop(picks, waiter->samples, lost[i]);
    free(lost);
    snprintf(text, size, "%u of %u items could not be read from the broker's disk: %s", n_lost, before, why);
    return status;
}

/* Answers a waiter for which all that can be read is in memory. */
static void finish(struct spill *self, struct waiter *waiter)
{
    char text[400];
    rp_status status = RP_OK;
    if (waiter->park.damaged || waiter->park.broken)
        status = drop_damaged(self, waiter, text, sizeof text);
    unlink_waiter(self, waiter);
    waiter->park.state = PARK_READY;
    if (status == RP_OK)
        sample_answer(waiter, NULL);
    else if (waiter->park.broken) /* the picks are kept for a retry */
        wait_cancel(&waiter->wait, status, text);
    else if (waiter->picks.n && !waiter->whole)
        sample_answer(waiter, text);
    else
        sample_fail(waiter, status, text);
}

static bool is_complete(const struct spill *self, struct waiter *waiter)
{
    struct park *park = &waiter->park;
    for (; !park->broken && park->at < waiter->picks.n_refs; park->at++) {
        const struct chunk *chunk = waiter->picks.refs[park->at];
        if (chunk_is_here(chunk))
            continue;
        const struct need *need = need_find(self, chunk);
        if (!need || !need->failed)
            return false;
        if (need->failed == RP_NO_MEMORY)
            park->broken = true; /* the data is not lost: all picks are kept for a retry */
        else
            park->damaged = true;
    }
    return true;
}

static bool take_reads(struct spill *self)
{
    int64_t end = clock_now(&self->state.loop->clock) + RUN_NS;
    struct fetch_batch *batch;
    bool more = false;
    while (!more && (batch = fetcher_take(self->fetcher))) {
        take_batch(self, batch);
        order_reads(self);
        more = clock_now(&self->state.loop->clock) >= end;
    }
    if (!self->arrived)
        return more;
    self->arrived = false;
    for (struct waiter *waiter = TAILQ_FIRST(&self->parked.queue), *next; waiter && waiter->park.state == PARK_ADMITTED;
         waiter = next) {
        next = TAILQ_NEXT(waiter, link);
        if (!is_complete(self, waiter))
            continue;
        finish(self, waiter);
        if (clock_now(&self->state.loop->clock) >= end) {
            self->arrived = true;
            break;
        }
    }
    return more || self->arrived;
}

static bool owns_files(const struct spill *self)
{
    const struct folder *folder = &self->stream->folder;
    for (uint32_t i = 0; i < folder->n_files; i++)
        if (folder->files[i].kind == DISK_CHECKPOINT)
            return false;
    return !config_makes_checkpoints(self->state.config);
}

static bool move_chunk(struct spill *self, struct chunk *chunk)
{
    struct stream *stream = self->stream;
    enum spill_brings found = spill_bring(self, chunk);
    if (found != SPILL_HERE) {
        self->round_waiting += found == SPILL_COMING;
        return false;
    }
    if (stream->full || stream->backlog > stream->backlog_most / 2 || !stream_chunk_again(stream, chunk)) {
        self->round_waiting++;
        return false;
    }
    self->round_work++;
    return true;
}

static void sweep(struct spill *self)
{
    struct stream *stream = self->stream;
    uint64_t live = 0, sparsest = 0;
    double least = 0.5;
    for (uint32_t i = stream->segments.n; i-- > 0;) {
        const struct segment_use use = stream->segments.list[i];
        live += use.live;
        /* Keep the segments of an earlier broker's journal: there is nothing else to restore its state from. */
        if (use.number == stream->segment || use.number < stream->first_own)
            continue;
        if (use.live == 0) {
            stream_remove_segment(stream, use.number);
            continue;
        }
        double part = (double)use.live / (double)(use.bytes ? use.bytes : 1);
        if (part < least) {
            least = part;
            sparsest = use.number;
        }
    }
    if (self->moving && !segments_find(&stream->segments, self->moving))
        self->moving = 0;
    bool may = !self->moving && self->state.loop->now_ns >= self->move_after_ns;
    if (may && stream->segments.total_bytes > 2 * live + 2 * stream_segment_bytes(stream))
        self->moving = sparsest;
}

#define LOOKS_PER_SLICE 256u
/* Bytes written to records that count as one look. */
#define PUT_PER_LOOK 4096u
#define REST_NS (10 * NS_PER_MS)
#define SWEEP_NS NS_PER_S
#define MOVE_AGAIN_NS (60 * NS_PER_S)

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

/* Writes the chunk to a segment. False: not now. */
static bool put(struct spill *self, struct chunk *chunk, uint32_t *looks)
{
    struct stream *stream = self->stream;
    if (self->disk && stream->segments.live + chunk_cost(chunk) + 64 > self->disk) {
        self->disk_full = true;
        return false;
    }
    /* Records that are not written yet take memory, too. */
    uint64_t most = self->memory / 4 > 2 * RECORD_BYTES ? self->memory / 4 : 2 * RECORD_BYTES;
    if (stream->full || stream->backlog >= most || !stream_chunk(stream, chunk)) {
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
    if (!chunk_is_split(chunk))
        return;
    if (self->moving && disk_number(chunk->at) == self->moving && move_chunk(self, chunk))
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
    struct spill *self = (struct spill *)(void *)((char *)chore - offsetof(struct spill, hand));
    bool more = true;
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
    release_inserts(self);
    self->hand_runs = more;
    self->idle_bytes = self->state.store->split_bytes;
    self->idle_ns = self->state.loop->now_ns;
    return more;
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
    if (self->hand_runs || (bytes <= high_mark(self) && !self->moving))
        return false;
    return !self->idle || self->news || bytes > self->idle_bytes + self->memory / 16 ||
           self->state.loop->now_ns - self->idle_ns > REST_NS;
}

bool spill_run(struct spill *self)
{
    uint64_t reads = spill_reads(self);
    bool more = take_reads(self) || reads != spill_reads(self);
    self->news |= watch_durable(self) || more;
    if (self->state.loop->now_ns - self->swept_ns >= SWEEP_NS) {
        self->swept_ns = self->state.loop->now_ns;
        if (owns_files(self))
            sweep(self);
    }
    if (hand_is_due(self)) {
        self->hand_runs = true;
        self->idle = self->news = false;
        self->round_whole = self->hand_table == 0 && self->hand_slot == 0;
        self->round_work = self->round_waiting = 0;
        chores_add(&self->state.loop->chores, &self->hand);
    }
    release_inserts(self);
    order_reads(self);
    return more || self->hand_runs || self->state.tables->dirty;
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
    bool works = self->hand_runs || self->parked.n || self->needs.count || fetcher_under_way(self->fetcher);
    return !works && (self->state.store->split_bytes <= high_mark(self) || self->stalled) && !self->moving &&
           stream->durable + 1 >= stream->number;
}

/* ---- life ---- */

rp_status spill_open(struct spill **out, const struct durable_state *state, struct stream *stream, rp_error *err)
{
    const struct broker_config *config = state->config;
    if (!config->storage_memory)
        return RP_OK;
    struct spill *self = need_alloc(sizeof *self);
    self->fetcher = fetcher_new(&stream->folder, err);
    if (!self->fetcher) {
        free(self);
        return RP_NO_MEMORY;
    }
    self->state = *state;
    self->stream = stream;
    self->hand.step = hand_step;
    self->memory = (uint64_t)config->storage_memory;
    self->disk = (uint64_t)config->storage_disk;
    TAILQ_INIT(&self->parked.queue);
    self->reads_end = &self->reads;
    self->swept_ns = state->loop->now_ns;
    state->store->split = true;
    state->tables->disk = (struct disk_tier){self, tier_is_full, tier_wants_room, tier_explain_insert};
    state->samples->parking = (struct sample_parking){self, spill_park, spill_unpark, spill_explain};
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
    if (self->hand_runs)
        chores_remove(&self->state.loop->chores, &self->hand);
    drop_reads(self);
    fetcher_destroy(&self->fetcher);
    idmap_fini(&self->needs);
    idmap_fini(&self->lost);
    free(self);
    *at = NULL;
}
