/* Given-back blocks stand on a stack that is pushed to with compare-and-swap and emptied as a whole by the owner: nobody
 * ever pops a single block from it, so there is no ABA. */
#include "agent/client/pool.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

struct block {
    struct block *next;
    struct pool *pool;
};
_Static_assert(sizeof(struct block) % 16 == 0, "blocks are aligned behind their head");

struct pool {
    size_t block_bytes;
    uint32_t keep;
    atomic_uint idle; /* on the stack or local: a bound, not exact */
    atomic_size_t users; /* blocks that are out, and the owner */
    _Atomic(struct block *) returned;
    struct block *local;
};

struct pool *pool_new(size_t block_bytes, size_t keep_bytes)
{
    struct pool *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->block_bytes = block_bytes;
    size_t keep = keep_bytes / (block_bytes + sizeof(struct block));
    self->keep = keep < 4 ? 4 : keep > UINT32_MAX ? UINT32_MAX : (uint32_t)keep;
    atomic_init(&self->users, 1);
    return self;
}

void *pool_get(struct pool *self)
{
    if (!self->local)
        self->local = atomic_exchange_explicit(&self->returned, NULL, memory_order_acquire);
    struct block *block = self->local;
    if (block) {
        self->local = block->next;
        atomic_fetch_sub_explicit(&self->idle, 1, memory_order_relaxed);
    } else {
        block = malloc(sizeof *block + self->block_bytes);
        if (!block)
            return NULL;
        block->pool = self;
    }
    atomic_fetch_add_explicit(&self->users, 1, memory_order_relaxed);
    return block + 1;
}

static void free_chain(struct block *block)
{
    for (struct block *next; block; block = next) {
        next = block->next;
        free(block);
    }
}

static void pool_unuse(struct pool *self)
{
    if (atomic_fetch_sub_explicit(&self->users, 1, memory_order_acq_rel) != 1)
        return;
    free_chain(self->local);
    free_chain(atomic_load(&self->returned));
    free(self);
}

void pool_put(void *data)
{
    struct block *block = (struct block *)data - 1;
    struct pool *self = block->pool;
    if (atomic_fetch_add_explicit(&self->idle, 1, memory_order_relaxed) >= self->keep) {
        atomic_fetch_sub_explicit(&self->idle, 1, memory_order_relaxed);
        free(block);
    } else {
        struct block *top = atomic_load_explicit(&self->returned, memory_order_relaxed);
        do {
            block->next = top;
        } while (!atomic_compare_exchange_weak_explicit(&self->returned, &top, block, memory_order_release,
                                                        memory_order_relaxed));
    }
    pool_unuse(self);
}

void pool_put_hint(void *block, void *hint)
{
    (void)hint;
    pool_put(block);
}

void pool_destroy(struct pool **self)
{
    if (*self)
        pool_unuse(*self);
    *self = NULL;
}
