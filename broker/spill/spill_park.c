/* Samples that need data from disk, and the reads for them.
 *
 * Waiters are admitted in the order in which they came. All chunks of an admitted waiter are pinned: those in memory
 * stay, the others are read. Waiters are admitted while their chunks fit into half of storage.memory, and at least one
 * is, so any number of samplers takes a bounded amount of memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/sample/answer.h"
#include "broker/spill/spill.h"

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
    need = calloc(1, sizeof *need);
    if (!need || !idmap_put(&self->needs, (uintptr_t)chunk, need)) {
        free(need);
        return NULL;
    }
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

void spill_order_reads(struct spill *self)
{
    while (self->reads && fetcher_under_way(self->fetcher) < BATCHES) {
        struct fetch_batch *batch = malloc(sizeof *batch);
        if (!batch)
            return; /* the next turn tries again */
        batch->n = 0;
        batch->err.status = RP_OK;
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

void spill_drop_reads(struct spill *self)
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
    if (!need || need->failed || need->bring)
        return need && need->failed ? SPILL_LOST : SPILL_COMING;
    need->bring = true;
    self->bring_bytes += chunk->bytes;
    need_read(self, need);
    spill_order_reads(self);
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
        if (!need) {
            waiter->park.broken = true;
            return;
        }
        need->pins++;
        waiter->park.pinned = i + 1;
        need_read(self, need);
    }
}

static void admit(struct spill *self)
{
    struct waiter *waiter;
    while ((waiter = self->not_admitted) && (self->pinned_bytes < self->memory / 2 || waiter == self->parked)) {
        self->not_admitted = waiter->park.next;
        waiter->park.state = PARK_ADMITTED;
        pin(self, waiter);
        self->arrived = true; /* all its chunks may be in memory already */
    }
    spill_order_reads(self);
}

static void unlink_waiter(struct spill *self, struct waiter *waiter)
{
    if (self->not_admitted == waiter)
        self->not_admitted = waiter->park.next;
    *waiter->park.prev = waiter->park.next;
    if (waiter->park.next)
        waiter->park.next->park.prev = waiter->park.prev;
    else
        self->parked_end = waiter->park.prev;
    self->n_parked--;
}

static bool spill_park(void *ctx, struct waiter *waiter, const char *text)
{
    struct spill *self = ctx;
    struct park *park = &waiter->park;
    if (park->state == PARK_READY) {
        /* The caller builds the reply before any data can be freed. */
        unpin(self, waiter);
        park->state = PARK_NOT;
        admit(self);
        return false;
    }
    if (park->state == PARK_NOT) {
        if (picks_are_here(&waiter->picks))
            return false;
        picks_own(&waiter->picks, waiter->samples);
        park->state = PARK_WAITS;
        park->next = NULL;
        park->prev = self->parked_end;
        *self->parked_end = waiter;
        self->parked_end = &park->next;
        self->n_parked++;
        if (!self->not_admitted)
            self->not_admitted = waiter;
    }
    if (text != park->text) {
        free(park->text);
        park->text = text ? strdup(text) : NULL;
    }
    admit(self);
    return true;
}

static void spill_unpark(void *ctx, struct waiter *waiter)
{
    struct spill *self = ctx;
    struct park *park = &waiter->park;
    if (park->state == PARK_NOT && !park->text)
        return;
    if (park->state == PARK_WAITS || park->state == PARK_ADMITTED)
        unlink_waiter(self, waiter);
    if (park->state != PARK_NOT) {
        unpin(self, waiter);
        admit(self);
    }
    free(park->text);
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

struct sample_parking spill_parking(struct spill *self)
{
    return (struct sample_parking){self, spill_park, spill_unpark, spill_explain};
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
        log_line(LEVEL_ERROR, "B0532", "an item whose data is lost was removed", "table=%s key=%llu held_back=%u",
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
    /* All pins go, because the reply is built right after. */
    uint32_t *lost = malloc((before ? before : 1) * sizeof *lost), n_lost = 0;
    if (!lost || waiter->park.broken) { /* nothing is dropped: the client asks again */
        free(lost);
        unpin(self, waiter);
        waiter->park.broken = true;
        snprintf(text, size, "no memory to read %u items from the broker's disk", before);
        return RP_NO_MEMORY;
    }
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
        sample_answer(waiter, waiter->park.text);
    else if (waiter->park.broken) /* the picks are kept for a retry */
        waiter->wait.ops->cancel(waiter->wait.ctx, &waiter->wait, status, text);
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

bool spill_take_reads(struct spill *self)
{
    int64_t end = clock_now(&self->state.loop->clock) + RUN_NS;
    struct fetch_batch *batch;
    bool more = false;
    while (!more && (batch = fetcher_take(self->fetcher))) {
        take_batch(self, batch);
        spill_order_reads(self);
        more = clock_now(&self->state.loop->clock) >= end;
    }
    if (!self->arrived)
        return more;
    self->arrived = false;
    struct waiter *next;
    for (struct waiter *waiter = self->parked; waiter && waiter->park.state == PARK_ADMITTED; waiter = next) {
        next = waiter->park.next;
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
