/* Memory for chunks and for small chunks' data, allocated one after another: the data of a message is adjacent and can be sent
 * without a copy, and the processor fetches ahead what comes next. The writing thread takes parts and any thread may return them;
 * an arena returns to its pool when it is retired and all its parts are back. */
#ifndef AGENT_CLIENT_CHUNK_ARENA_H
#define AGENT_CLIENT_CHUNK_ARENA_H

#include <stdatomic.h>
#include <stdint.h>

#include "agent/client/outbox/pool.h"

#define CHUNK_ARENA_BYTES ((size_t)256 << 10)
/* Largest part; larger chunks have blocks of their own. */
#define CHUNK_ARENA_MAX_PART (CHUNK_ARENA_BYTES / 16)

struct chunk_arena {
    /* Decreases with every part that is returned; the number of parts taken is added when the arena is retired. */
    atomic_int_fast64_t balance;
    uint8_t unused[POOL_ALIGNMENT - POOL_HEAD_BYTES - sizeof(atomic_int_fast64_t)];
    uint8_t data[]; /* aligned to a line of the cache */
};

/* The writing thread's side of an arena. */
struct chunk_arena_front {
    struct pool *pool;
    size_t size;               /* of an arena */
    struct chunk_arena *arena; /* NULL: none yet */
    size_t used;
    int64_t taken;
};

/* Arenas of this size. Leaves pool NULL if there is no memory. */
void chunk_arena_front_init(struct chunk_arena_front *self, size_t size);
void chunk_arena_front_fini(struct chunk_arena_front *self);
/* Takes a part and gives its arena; parts of whole lines of the cache begin at one. NULL: out of memory. */
uint8_t *chunk_arena_take(struct chunk_arena_front *self, size_t bytes, struct chunk_arena **arena);
/* The writing thread: returns the end of a part, or (size 0) all of it. Has an effect only on the part taken last. */
void chunk_arena_shrink(struct chunk_arena_front *self, const uint8_t *part, size_t bytes, size_t size);
/* The writing thread returns a part. */
void chunk_arena_untake(struct chunk_arena_front *self, struct chunk_arena *arena);
/* Any thread returns n parts. */
void chunk_arena_put(struct chunk_arena *arena, uint32_t n);
/* Returns one part, with the signature that zmq_msg_init_data needs; the hint is the arena. */
void chunk_arena_put_hint(void *data, void *hint);

#endif
