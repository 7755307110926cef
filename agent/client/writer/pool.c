#include "agent/client/writer/pool.h"

#include <stdatomic.h>
#include <stdlib.h>

struct pool_block {
    struct pool_block *next;
    struct pool *pool;
};
_Static_assert(sizeof(struct pool_block) == POOL_HEAD_BYTES && POOL_HEAD_BYTES % 16 == 0, "aligned for any type");

struct pool {
    size_t block_bytes; /* with the head */
    uint32_t keep;
    /* Owner's thread. */
    struct pool_block *local;
    int64_t taken; /* calls of pool_get minus calls of pool_reuse */
    /* Any thread. */
    _Atomic(struct pool_block *) returned;
    atomic_uint idle; /* on that stack */
    /* Decreases with every returned block; the owner adds the number of blocks it took when it destroys the pool. It starts at
     * 0, is not positive while the owner exists, and is 0 again when the owner has gone and all blocks are back. */
    atomic_int_fast64_t balance;
};

struct pool *pool_new(size_t block_bytes, size_t keep_bytes)
{
    struct pool *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->block_bytes =
        (sizeof(struct pool_block) + block_bytes + POOL_ALIGNMENT - 1) / POOL_ALIGNMENT * POOL_ALIGNMENT;
    size_t keep = keep_bytes / self->block_bytes;
    self->keep = keep < 4 ? 4 : keep > UINT32_MAX ? UINT32_MAX : (uint32_t)keep;
    return self;
}

void *pool_get(struct pool *self)
{
    if (!self->local && atomic_load_explicit(&self->returned, memory_order_relaxed)) {
        self->local = atomic_exchange_explicit(&self->returned, NULL, memory_order_acquire);
        atomic_store_explicit(&self->idle, 0, memory_order_relaxed);
    }
    struct pool_block *block = self->local;
    if (block) {
        self->local = block->next;
        if (self->local) { /* another thread has written to it */
            __builtin_prefetch(self->local, 1);
            __builtin_prefetch((const char *)self->local + POOL_ALIGNMENT, 1);
        }
    } else {
        block = aligned_alloc(POOL_ALIGNMENT, self->block_bytes);
        if (!block)
            return NULL;
        block->pool = self;
    }
    self->taken++;
    return block + 1;
}

void pool_reuse(struct pool *self, void *data)
{
    struct pool_block *block = (struct pool_block *)data - 1;
    block->next = self->local;
    self->local = block;
    self->taken--;
}

static void free_blocks(struct pool_block *block)
{
    for (struct pool_block *next; block; block = next) {
        next = block->next;
        free(block);
    }
}

static void pool_free(struct pool *self)
{
    free_blocks(self->local);
    free_blocks(atomic_load(&self->returned));
    free(self);
}

void pool_chain_add(struct pool_chain *chain, void *data)
{
    struct pool_block *block = (struct pool_block *)data - 1;
    block->next = chain->first;
    chain->first = block;
    if (!chain->last)
        chain->last = block;
    chain->count++;
}

void pool_chain_put(struct pool_chain *chain)
{
    if (chain->count == 0)
        return;
    struct pool *self = chain->first->pool;
    int64_t count = chain->count;
    if (atomic_load_explicit(&self->idle, memory_order_relaxed) >= self->keep) {
        free_blocks(chain->first);
    } else {
        struct pool_block *top = atomic_load_explicit(&self->returned, memory_order_relaxed);
        do {
            chain->last->next = top;
        } while (!atomic_compare_exchange_weak_explicit(&self->returned, &top, chain->first, memory_order_release,
                                                        memory_order_relaxed));
        atomic_fetch_add_explicit(&self->idle, chain->count, memory_order_relaxed);
    }
    *chain = (struct pool_chain){0};
    if (atomic_fetch_sub_explicit(&self->balance, count, memory_order_acq_rel) == count)
        pool_free(self);
}

void pool_put(void *block)
{
    struct pool_chain chain = {0};
    pool_chain_add(&chain, block);
    pool_chain_put(&chain);
}

void pool_destroy(struct pool **self_p)
{
    struct pool *self = *self_p;
    *self_p = NULL;
    if (!self)
        return;
    int64_t taken = self->taken;
    if (atomic_fetch_add_explicit(&self->balance, taken, memory_order_acq_rel) + taken == 0)
        pool_free(self);
}

/* ---- arenas */

#define KEEP_BYTES ((size_t)16 << 20)
#define PREFETCH_BYTES 512u

_Static_assert((POOL_HEAD_BYTES + offsetof(struct chunk_arena, data)) % POOL_ALIGNMENT == 0, "parts begin at a line");

void chunk_arena_front_init(struct chunk_arena_front *self, size_t size)
{
    *self = (struct chunk_arena_front){.pool = pool_new(sizeof(struct chunk_arena) + size, KEEP_BYTES), .size = size};
}

static void retire(struct chunk_arena_front *self)
{
    if (!self->arena)
        return;
    int64_t taken = self->taken;
    if (atomic_fetch_add_explicit(&self->arena->balance, taken, memory_order_acq_rel) + taken == 0)
        pool_reuse(self->pool, self->arena);
    self->arena = NULL;
    self->taken = 0;
}

void chunk_arena_front_fini(struct chunk_arena_front *self)
{
    retire(self);
    pool_destroy(&self->pool);
}

uint8_t *chunk_arena_take(struct chunk_arena_front *self, size_t bytes, struct chunk_arena **arena)
{
    if (!self->arena || self->used + bytes > self->size) {
        retire(self);
        self->arena = pool_get(self->pool);
        if (!self->arena)
            return NULL;
        atomic_init(&self->arena->balance, 0);
        self->used = 0;
    }
    uint8_t *part = self->arena->data + self->used;
    self->used += bytes;
    self->taken++;
    *arena = self->arena;
    for (size_t at = 0; at < bytes && at < PREFETCH_BYTES; at += POOL_ALIGNMENT)
        __builtin_prefetch(part + bytes + at, 1); /* for the next one: another thread has read it */
    return part;
}

void chunk_arena_shrink(struct chunk_arena_front *self, const uint8_t *part, size_t bytes, size_t size)
{
    if (self->arena && part + bytes == self->arena->data + self->used)
        self->used -= bytes - size;
}

void chunk_arena_untake(struct chunk_arena_front *self, struct chunk_arena *arena)
{
    if (arena == self->arena)
        self->taken--;
    else
        chunk_arena_put(arena, 1);
}

void chunk_arena_put(struct chunk_arena *arena, uint32_t n)
{
    if (atomic_fetch_sub_explicit(&arena->balance, n, memory_order_acq_rel) == (int64_t)n)
        pool_put(arena);
}

void chunk_arena_put_hint(void *data, void *hint)
{
    (void)data;
    chunk_arena_put(hint, 1);
}
