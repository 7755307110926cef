/* Memory for small chunks: size classes of 16 bytes (up to 1 KiB, coarser above), in slabs of 64 KiB cut from 2 MiB
 * regions on huge pages. Sampling reads cold memory at random, so page-table misses cost it most. Owned by the chunk store; not
 * thread-safe. */
#ifndef BROKER_SLAB_H
#define BROKER_SLAB_H

#include <stddef.h>
#include <stdint.h>

#define SLAB_MAX_BYTES 16384u

struct slab_heap;

struct slab_heap *slab_heap_new(void);
void slab_heap_destroy(struct slab_heap **self);
/* size <= SLAB_MAX_BYTES. The result is 16-byte aligned. NULL: no memory. */
void *slab_alloc(struct slab_heap *self, size_t size);
void slab_free(struct slab_heap *self, void *object);
/* Bytes of the objects in use, each rounded up to its class. */
size_t slab_used(const struct slab_heap *self);
/* Bytes of slabs in use, their free places included. */
size_t slab_reserved(const struct slab_heap *self);

#endif
