#include "proto/base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"
#include "proto/base/utf8.h"

/* Bytes of the first block, and most of a later one, which is twice as large as the one before. */
#define BLOCK_FIRST ((size_t)1 << 10)
#define BLOCK_MOST ((size_t)64 << 10)

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    max_align_t memory[];
};

void *arena_take(struct arena *self, size_t count, size_t size)
{
    struct arena_block *block = self->blocks;
    size_t bytes = count * size, align = _Alignof(max_align_t);
    bytes = (bytes + align - 1) & ~(align - 1);
    if (!block || block->size - block->used < bytes) {
        size_t room = !block ? BLOCK_FIRST : block->size < BLOCK_MOST / 2 ? 2 * block->size : BLOCK_MOST;
        room = bytes > room ? bytes : room;
        block = need_alloc(sizeof *block + room);
        *block = (struct arena_block){.next = self->blocks, .size = room};
        self->blocks = block;
    }
    void *memory = (char *)block->memory + block->used;
    block->used += bytes;
    return memory;
}

void *arena_copy(struct arena *self, const void *data, size_t size)
{
    void *copy = arena_take(self, 1, size);
    return size ? memcpy(copy, data, size) : copy;
}

char *arena_text(struct arena *self, const char *text)
{
    size_t size = text ? strlen(text) : 0;
    char *copy = arena_copy(self, size ? text : "", size + 1);
    utf8_clean(copy, size);
    return copy;
}

void arena_fini(struct arena *self)
{
    while (self->blocks) {
        struct arena_block *block = self->blocks;
        self->blocks = block->next;
        free(block);
    }
}
