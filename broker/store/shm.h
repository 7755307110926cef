/* Shared memory: a file (memfile.h) from which clients of the same user on the same host read the data of chunks themselves.
 *
 * Nobody may open the file but for reading. What this room has to know about the memory lies outside of it. Each object has a
 * line of 64 bytes before it whose first 8 bytes are the stamp of the object, a number that no other object had before; it is gone
 * before the memory is used again. So who has copied data, and finds the stamp unchanged after that, has copied what was there.
 *
 * The file is much larger than what may be in it, and sparse. Objects up to 512 KiB share a unit of 4 MiB with others of their
 * size; a larger one has units of its own. Units that are freed give their pages back when too many are unused. Owned by the chunk
 * store; not thread-safe. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/base/memfile.h"

struct shm;

/* The head of a struct shm. */
struct shm_bytes {
    uint64_t used;     /* of objects */
    uint64_t reserved; /* of all pages that are there */
};

struct shm_place {
    uint64_t at, stamp;
};

/* Room for a multiple of this many bytes. NULL: the system does not allow it. */
struct shm *shm_new(uint64_t bytes);
void shm_destroy(struct shm **self);
/* Borrowed. */
const struct memfile *shm_file(const struct shm *self);
/* bytes > 0. The result is 64-byte aligned. NULL: no room, or the system has no memory. */
void *shm_alloc(struct shm *self, size_t bytes);
void shm_free(struct shm *self, void *object);
struct shm_place shm_place(const struct shm *self, const void *object);

static inline const struct shm_bytes *shm_bytes(const struct shm *self)
{
    return (const struct shm_bytes *)(const void *)self;
}
