/* Blocks of one size that one thread takes and any thread returns, many at a time. Blocks in use keep the pool alive, so that
 * libzmq may return one after the owner has gone. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/memfile.h"

/* Blocks begin with a head and are aligned to lines of the cache, so that a block that one thread writes shares none with another. */
#define POOL_ALIGNMENT 64u
#define POOL_HEAD_BYTES 16u

struct pool;
struct pool_block;

/* Blocks of one pool that are to be returned together. Starts zero-initialised. */
struct pool_chain {
    struct pool_block *first, *last;
    uint32_t count;
};

/* Keeps at most about keep_bytes of unused blocks, and at least four of them; with 0, one. NULL: out of memory. */
struct pool *pool_new(size_t block_bytes, size_t keep_bytes);
/* Makes a file for blocks that a broker on this host may read, and gives its name. Its owner calls it once, before the first block.
 * False: the system does not allow it, or blocks are too large. */
bool pool_make_file(struct pool *self, struct memfile_name *name);
/* Any thread: new blocks lie in the file from now on, as long as it has room; or do not. */
void pool_share(struct pool *self, bool on);
bool pool_shares(const struct pool *self);
/* Returns where a block lies in the file. 0: it does not. */
uint64_t pool_place(const void *block);
/* Takes a block, aligned for any type and not cleared. NULL: out of memory. Owner's thread. */
void *pool_get(struct pool *self);
/* Returns a block. Any thread. */
void pool_put(void *block);
/* Collects blocks; pool_chain_put returns them and empties the chain. Any thread. */
void pool_chain_add(struct pool_chain *chain, void *block);
void pool_chain_put(struct pool_chain *chain);
/* The owner releases the pool, which is freed when the last block is back. */
void pool_destroy(struct pool **self);

/* ---- arenas ---- */

/* Memory for chunks and for small chunks' data, allocated one after another: the data of a message is adjacent and can be sent
 * without a copy, and the processor fetches ahead what comes next. The writing thread takes parts and any thread may return them;
 * an arena returns to its pool when it is retired and all its parts are back. */
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
