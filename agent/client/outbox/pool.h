/* Blocks of one size, taken by one thread and given back by any, many at a time. Blocks that are out keep the pool alive,
 * so that libzmq may give one back after its owner has gone. */
#ifndef AGENT_CLIENT_POOL_H
#define AGENT_CLIENT_POOL_H

#include <stddef.h>
#include <stdint.h>

struct pool;
struct pool_block;

/* Blocks of one pool that are on their way back. Zero-initialised. */
struct pool_chain {
    struct pool_block *first, *last;
    uint32_t count;
};

/* Keeps at most about keep_bytes of blocks that came back and that nobody uses. NULL: out of memory. */
struct pool *pool_new(size_t block_bytes, size_t keep_bytes);
/* The owner's thread. Aligned for any type, not cleared. NULL: out of memory. */
void *pool_get(struct pool *self);
/* The owner's thread. */
void pool_reuse(struct pool *self, void *block);
/* Any thread. */
void pool_put(void *block);
/* The same with the signature that zmq_msg_init_data wants. */
void pool_put_hint(void *block, void *hint);
/* Collects blocks; pool_chain_put gives them back and empties the chain. Any thread. */
void pool_chain_add(struct pool_chain *chain, void *block);
void pool_chain_put(struct pool_chain *chain);
/* The owner lets go. Frees the pool when the last block has come back. */
void pool_destroy(struct pool **self);

#endif
