#include "agent/client/outbox/chunk_arena.h"

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
