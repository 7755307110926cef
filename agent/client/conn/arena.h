/* The memory of a broker on this host, mapped read-only: its replies say where data is instead of carrying it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay.pb-c.h"

/* Immutable and reference-counted: a reply keeps the memory that it speaks of, even if the broker is gone. */
struct conn_arena {
    uint32_t refs;
    const uint8_t *data;
    size_t size;
    uint64_t nonce;
};

/* True if this process uses shared memory with a broker on this host: REPLAY_SHM=0 in the environment forbids it. inside: the broker
 * is in this process, where frames cost little; then only REPLAY_SHM=1 allows it. */
bool conn_shares_memory(bool inside);
/* Maps what a broker offers, or takes a reference to `before` if it is that. before and offer may be NULL. Returns NULL if nothing is
 * offered, wanted or to be had: another host, another user. Then all data comes by the socket. */
struct conn_arena *conn_arena_map(struct conn_arena *before, const Replay__Arena *offer, bool inside);
/* Allows NULL, and returns self. */
struct conn_arena *conn_arena_ref(struct conn_arena *self);
void conn_arena_unref(struct conn_arena **self);
