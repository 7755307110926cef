#include "agent/client/outbox/arena.h"

#define KEEP_BYTES ((size_t)16 << 20)

void arena_front_init(struct arena_front *self)
{
    *self = (struct arena_front){.pool = pool_new(sizeof(struct arena) + ARENA_BYTES, KEEP_BYTES)};
}

static void retire(struct arena_front *self)
{
    if (!self->arena)
        return;
    int64_t taken = self->taken;
    if (atomic_fetch_add_explicit(&self->arena->balance, taken, memory_order_acq_rel) + taken == 0)
        pool_reuse(self->pool, self->arena);
    self->arena = NULL;
    self->taken = 0;
}

void arena_front_fini(struct arena_front *self)
{
    retire(self);
    pool_destroy(&self->pool);
}

uint8_t *arena_take(struct arena_front *self, size_t bytes, struct arena **arena)
{
    if (!self->arena || self->used + bytes > ARENA_BYTES) {
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
    return part;
}

void arena_shrink(struct arena_front *self, const uint8_t *part, size_t bytes, size_t size)
{
    if (self->arena && part + bytes == self->arena->data + self->used)
        self->used -= bytes - size;
}

void arena_untake(struct arena_front *self, struct arena *arena)
{
    if (arena == self->arena)
        self->taken--;
    else
        arena_put(arena, 1);
}

void arena_put(struct arena *arena, uint32_t n)
{
    if (atomic_fetch_sub_explicit(&arena->balance, n, memory_order_acq_rel) == (int64_t)n)
        pool_put(arena);
}

void arena_put_hint(void *data, void *hint)
{
    (void)data;
    arena_put(hint, 1);
}
