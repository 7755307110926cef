#include "agent/client/conn/pool.h"

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
    struct memfile file; /* blocks that lie in it stay there until the pool is freed */
    atomic_bool shares;
    /* Owner's thread. */
    uint64_t file_used; /* bytes */
    struct pool_block *local;
    int64_t taken; /* calls of pool_get */
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
    size_t keep = keep_bytes / self->block_bytes, least = keep_bytes ? 4 : 1;
    self->keep = keep < least ? (uint32_t)least : keep > UINT32_MAX ? UINT32_MAX : (uint32_t)keep;
    return self;
}

/* Size of a file, of which only the pages of blocks are there: what is in flight, and the window of recent steps. */
#define FILE_BYTES (UINT64_C(256) << 20)

bool pool_make_file(struct pool *self, struct memfile_name *name)
{
    if (self->block_bytes > FILE_BYTES / 8 || !memfile_make(&self->file, FILE_BYTES))
        return false;
    self->file_used = POOL_ALIGNMENT; /* the nonce is before */
    *name = memfile_name(&self->file);
    return true;
}

void pool_share(struct pool *self, bool on)
{
    atomic_store_explicit(&self->shares, on, memory_order_relaxed);
}

bool pool_shares(const struct pool *self)
{
    return atomic_load_explicit(&self->shares, memory_order_relaxed);
}

static uint64_t place_of(const struct pool_block *block)
{
    const struct memfile *file = &block->pool->file;
    uintptr_t from = (uintptr_t)file->memory, at = (uintptr_t)block;
    return file->memory && at >= from && at < from + file->size ? at - from : 0;
}

uint64_t pool_place(const void *data)
{
    uint64_t place = place_of((const struct pool_block *)data - 1);
    return place ? place + sizeof(struct pool_block) : 0;
}

static struct pool_block *block_new(struct pool *self)
{
    struct pool_block *block = NULL;
    if (pool_shares(self) && self->block_bytes <= self->file.size - self->file_used &&
        memfile_fill(&self->file, self->file_used, self->block_bytes)) {
        block = (void *)(self->file.memory + self->file_used);
        self->file_used += self->block_bytes;
    } else {
        block = aligned_alloc(POOL_ALIGNMENT, self->block_bytes);
    }
    if (block)
        block->pool = self;
    return block;
}

/* Returns the unused block that was returned last. NULL: there is none. */
static struct pool_block *first_local(struct pool *self)
{
    if (!self->local && atomic_load_explicit(&self->returned, memory_order_relaxed)) {
        self->local = atomic_exchange_explicit(&self->returned, NULL, memory_order_acquire);
        atomic_store_explicit(&self->idle, 0, memory_order_relaxed);
    }
    return self->local;
}

void *pool_get(struct pool *self)
{
    struct pool_block *block;
    while ((block = first_local(self)) != NULL && pool_shares(self) && !place_of(block)) {
        self->local = block->next; /* the broker reads only blocks in the file */
        free(block);
    }
    if (block) {
        self->local = block->next;
        if (self->local) { /* another thread has written to it */
            __builtin_prefetch(self->local, 1);
            __builtin_prefetch((const char *)self->local + POOL_ALIGNMENT, 1);
        }
    } else {
        block = block_new(self);
        if (!block)
            return NULL;
    }
    self->taken++;
    return block + 1;
}

/* Frees the blocks of a list that are on the heap, and returns the others: they stay in the file. */
static struct pool_block *free_blocks(struct pool_block *block)
{
    struct pool_block *left = NULL;
    for (struct pool_block *next; block; block = next) {
        next = block->next;
        if (place_of(block)) {
            block->next = left;
            left = block;
        } else {
            free(block);
        }
    }
    return left;
}

/* Frees the blocks of a chain that are on the heap. */
static void chain_shrink(struct pool_chain *chain)
{
    struct pool_block *left = free_blocks(chain->first);
    *chain = (struct pool_chain){.first = left};
    for (; left; left = left->next) {
        chain->last = left;
        chain->count++;
    }
}

static void pool_free(struct pool *self)
{
    free_blocks(self->local);
    free_blocks(atomic_load(&self->returned));
    memfile_fini(&self->file);
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
    if (atomic_load_explicit(&self->idle, memory_order_relaxed) >= self->keep)
        chain_shrink(chain);
    if (chain->first) {
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
        pool_put(self->arena);
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
