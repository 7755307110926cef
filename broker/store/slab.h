/* Memory for small chunks: size classes of 16 bytes (up to 1 KiB, coarser above), in slabs of 64 KiB cut from 2 MiB
 * regions on huge pages. Sampling reads cold memory at random, so page-table misses cost it most. Owned by the chunk store; not
 * thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLAB_MAX_BYTES 16384u

struct slab_heap;

/* The head of a slab_heap. */
struct slab_bytes {
    size_t used;     /* of objects: each takes its part of its slab */
    size_t reserved; /* of slabs with objects, their free places included */
};

/* Size classes above 1 KiB, from 0 on: eight for each power of two. Of shared memory, too. */
static inline uint32_t slab_step(size_t size)
{
    uint32_t log = 63u - (uint32_t)__builtin_clzll((unsigned long long)(size - 1));
    return (log - 10) * 8 + ((uint32_t)((size - 1) >> (log - 3)) & 7u);
}

static inline uint32_t slab_step_bytes(uint32_t step)
{
    return (8 + step % 8 + 1) << (step / 8 + 10 - 3);
}

/* ahead: regions are prefaulted while the heap grows. */
struct slab_heap *slab_heap_new(bool ahead);
void slab_heap_destroy(struct slab_heap **self);
/* size <= SLAB_MAX_BYTES. The result is 16-byte aligned. NULL: no memory. */
void *slab_alloc(struct slab_heap *self, size_t size);
void slab_free(struct slab_heap *self, void *object);

/* Returns how full the slab of an object is, from 0 to 65536. */
uint32_t slab_fill(const void *object);

static inline const struct slab_bytes *slab_bytes(const struct slab_heap *self)
{
    return (const struct slab_bytes *)(const void *)self;
}
