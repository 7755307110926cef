/* Memory for small chunks, one after another, so that the chunks of a message stand side by side and are sent from where
 * they were written. Parts are taken by the writing thread and given back by any; an arena goes back to its pool when
 * it is retired and all its parts are back. */
#ifndef AGENT_CLIENT_CHUNK_ARENA_H
#define AGENT_CLIENT_CHUNK_ARENA_H

#include <stdatomic.h>
#include <stdint.h>

#include "agent/client/outbox/pool.h"

#define CHUNK_ARENA_BYTES ((size_t)256 << 10)
/* Larger chunks have blocks of their own. */
#define CHUNK_ARENA_MAX_PART (CHUNK_ARENA_BYTES / 16)

struct chunk_arena {
    /* Falls with every part that comes back; what was taken is added when the arena is retired. */
    atomic_int_fast64_t balance;
    _Alignas(16) uint8_t data[];
};

/* The writing thread's end of it. */
struct chunk_arena_front {
    struct pool *pool;
    struct chunk_arena *arena; /* NULL: none yet */
    size_t used;
    int64_t taken;
};

/* NULL in pool: out of memory. */
void chunk_arena_front_init(struct chunk_arena_front *self);
void chunk_arena_front_fini(struct chunk_arena_front *self);
/* Takes a part; *arena is the one it stands in. NULL: out of memory. */
uint8_t *chunk_arena_take(struct chunk_arena_front *self, size_t bytes, struct chunk_arena **arena);
/* The writing thread: gives back the end of a part, or (size 0) all of it. Of use only for the part taken last. */
void chunk_arena_shrink(struct chunk_arena_front *self, const uint8_t *part, size_t bytes, size_t size);
/* The writing thread gives a part back. */
void chunk_arena_untake(struct chunk_arena_front *self, struct chunk_arena *arena);
/* Any thread gives n parts back. */
void chunk_arena_put(struct chunk_arena *arena, uint32_t n);
/* One part, with the signature that zmq_msg_init_data wants; the hint is the arena. */
void chunk_arena_put_hint(void *data, void *hint);

#endif
