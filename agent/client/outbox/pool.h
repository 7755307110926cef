/* Blocks of one size that one thread takes and any thread returns, many at a time. Blocks in use keep the pool alive, so that
 * libzmq may return one after the owner has gone. */
#ifndef AGENT_CLIENT_POOL_H
#define AGENT_CLIENT_POOL_H

#include <stddef.h>
#include <stdint.h>

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

/* Keeps at most about keep_bytes of unused blocks. NULL: out of memory. */
struct pool *pool_new(size_t block_bytes, size_t keep_bytes);
/* Takes a block, aligned for any type and not cleared. NULL: out of memory. Owner's thread. */
void *pool_get(struct pool *self);
/* Returns a block. Owner's thread. */
void pool_reuse(struct pool *self, void *block);
/* Returns a block. Any thread. */
void pool_put(void *block);
/* Collects blocks; pool_chain_put returns them and empties the chain. Any thread. */
void pool_chain_add(struct pool_chain *chain, void *block);
void pool_chain_put(struct pool_chain *chain);
/* The owner releases the pool, which is freed when the last block is back. */
void pool_destroy(struct pool **self);

#endif
