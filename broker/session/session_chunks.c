#include "broker/session/session_chunks.h"

#include <stdlib.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/table/table.h"
#include "proto/base/error.h"

/* Most numbers that a ring spans. */
#define RING_MOST (1u << 20)
/* Highest chunk number: arithmetic on chunk numbers must not overflow. */
#define CHUNK_NUMBER_MOST (UINT64_C(1) << 62)

static bool ring_grow(struct session *self, uint64_t span)
{
    uint32_t capacity = self->ring ? self->ring_mask + 1 : 64;
    while (capacity < span)
        capacity *= 2;
    struct chunk **ring = calloc(capacity, sizeof(*ring));
    if (!ring)
        return false;
    for (uint64_t n = self->oldest_chunk; self->ring && n <= self->newest_chunk; n++)
        ring[n & (capacity - 1)] = self->ring[n & self->ring_mask];
    self->sessions->store->overhead += (capacity - (self->ring ? self->ring_mask + 1 : 0)) * sizeof(*ring);
    free(self->ring);
    self->ring = ring;
    self->ring_mask = capacity - 1;
    return true;
}

/* Bounds what sessions keep for later items: each by its window, all of them by the ingest budget. The first chunk of a
 * session is not refused, nor are the chunks of a session that keeps no more than its share. held: bytes with the new chunk. */
static rp_status check_kept(const struct session *self, uint64_t held, rp_error *err)
{
    const struct sessions *sessions = self->sessions;
    uint64_t window = WINDOW_BYTES, message = (uint64_t)sessions->config->max_message_bytes;
    uint64_t all = sessions->kept_bytes - self->chunk_bytes + held;
    /* A first chunk is let in only as long as all chunks leave the tables half of the memory. */
    bool first = self->chunk_bytes == 0 && (sessions->kept_bytes == 0 || all <= sessions->tables->storage_budget / 2);
    if (first ||
        (held * sessions->n_open <= sessions->ingest_budget && held <= 2 * (window > message ? window : message)))
        return RP_OK;
    if (held > 2 * (window > message ? window : message))
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the session keeps %llu bytes of chunks for later items, which is too much: use a shorter "
                       "keep-alive window",
                       (unsigned long long)held);
    if (all > 2 * sessions->ingest_budget)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "all sessions keep %llu bytes of chunks for later items, this one %llu: use shorter keep-alive "
                       "windows, or raise memory_limit",
                       (unsigned long long)all, (unsigned long long)held);
    return RP_OK;
}

rp_status session_keep_chunk(struct session *self, uint64_t number, struct chunk *chunk, rp_error *err)
{
    struct sessions *sessions = self->sessions;
    uint64_t span = number - self->oldest_chunk + 1;
    if (number < self->oldest_chunk || span > RING_MOST || number > CHUNK_NUMBER_MOST)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "chunk %llu is out of range: the session keeps chunks %llu and up, at most %u of them",
                       (unsigned long long)number, (unsigned long long)self->oldest_chunk, RING_MOST);
    uint64_t held = self->chunk_bytes + chunk_cost(chunk);
    RP_TRY(check_kept(self, held, err));
    if ((!self->ring || span > (uint64_t)self->ring_mask + 1) && !ring_grow(self, span))
        return err_set(err, RP_NO_MEMORY, "no memory for chunk %llu", (unsigned long long)number);
    if (number > self->newest_chunk)
        self->newest_chunk = number;
    self->ring[number & self->ring_mask] = chunk;
    self->chunk_bytes = held;
    sessions->kept_bytes += chunk_cost(chunk);
    return RP_OK;
}

/* A ring whose chunks are released in slices. */
struct ring_drop {
    struct chore chore;
    struct store *store;
    struct chunk **ring;
    uint32_t at, capacity;
};

/* False: all chunks are released. */
static bool ring_drop_some(struct ring_drop *self)
{
    for (uint32_t i = 0; i < 256 && self->at < self->capacity; i++, self->at++)
        if (self->ring[self->at])
            store_release(self->store, self->ring[self->at]);
    if (self->at < self->capacity)
        return true;
    free(self->ring);
    return false;
}

static bool ring_drop_step(struct chore *chore)
{
    if (ring_drop_some((struct ring_drop *)chore))
        return true;
    free(chore);
    return false;
}

void session_drop_all_chunks(struct session *self)
{
    struct sessions *sessions = self->sessions;
    if (!self->ring)
        return;
    struct ring_drop *drop = calloc(1, sizeof *drop);
    struct ring_drop now = {{NULL, ring_drop_step}, sessions->store, self->ring, 0, self->ring_mask + 1};
    if (drop) {
        *drop = now;
        chores_add(&sessions->loop->chores, &drop->chore);
    } else { /* no memory to do it later */
        while (ring_drop_some(&now)) {
        }
    }
    sessions->store->overhead -= ((uint64_t)self->ring_mask + 1) * sizeof(*self->ring);
    self->ring = NULL;
    self->ring_mask = 0;
    sessions->kept_bytes -= self->chunk_bytes;
    self->chunk_bytes = 0;
}

void session_drop_chunks(struct session *self, uint64_t oldest, uint32_t most)
{
    struct sessions *sessions = self->sessions;
    if (oldest > CHUNK_NUMBER_MOST)
        oldest = CHUNK_NUMBER_MOST;
    if (oldest <= self->oldest_chunk)
        return;
    uint64_t end = oldest <= self->newest_chunk + 1 ? oldest : self->newest_chunk + 1;
    if (self->ring && oldest > self->newest_chunk && self->newest_chunk - self->oldest_chunk > 1024) {
        session_drop_all_chunks(self);
        end = self->oldest_chunk;
    }
    if (end > self->oldest_chunk + most)
        end = oldest = self->oldest_chunk + most;
    for (uint64_t n = self->oldest_chunk; self->ring && n < end; n++) {
        struct chunk **at = &self->ring[n & self->ring_mask];
        if (*at) {
            self->chunk_bytes -= chunk_cost(*at);
            sessions->kept_bytes -= chunk_cost(*at);
            store_release(sessions->store, *at);
            *at = NULL;
        }
    }
    self->oldest_chunk = oldest;
    if (self->newest_chunk + 1 < oldest)
        self->newest_chunk = oldest - 1;
}
