#include "broker/metrics/snapshot.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)64 << 10)

struct snapshot_block {
    struct snapshot_block *next;
    size_t used, size;
    max_align_t memory[];
};

struct snapshot *snapshot_new(void)
{
    return calloc(1, sizeof(struct snapshot));
}

void snapshot_destroy(struct snapshot **at)
{
    struct snapshot *self = *at;
    *at = NULL;
    if (!self)
        return;
    while (self->blocks) {
        struct snapshot_block *block = self->blocks;
        self->blocks = block->next;
        free(block);
    }
    free(self);
}

static struct snapshot_block *block_new(struct snapshot *self, size_t bytes)
{
    size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    struct snapshot_block *block = malloc(sizeof *block + size);
    if (!block) {
        self->failed = true;
        return NULL;
    }
    *block = (struct snapshot_block){.next = self->blocks, .size = size};
    self->blocks = block;
    return block;
}

static void *take_bytes(struct snapshot *self, size_t bytes)
{
    struct snapshot_block *block = self->blocks;
    if ((!block || block->size - block->used < bytes) && !(block = block_new(self, bytes)))
        return NULL;
    void *memory = (char *)block->memory + block->used;
    size_t aligned = (bytes + _Alignof(max_align_t) - 1) & ~(_Alignof(max_align_t) - 1);
    block->used = block->size - block->used < aligned ? block->size : block->used + aligned;
    return memory;
}

void *snapshot_take(struct snapshot *self, size_t count, size_t size)
{
    void *memory = take_bytes(self, count * size);
    if (memory)
        memset(memory, 0, count * size);
    return memory;
}

const char *snapshot_text(struct snapshot *self, const char *text)
{
    if (!text || !text[0])
        return "";
    size_t size = strlen(text) + 1;
    char *copy = take_bytes(self, size);
    return copy ? memcpy(copy, text, size) : "";
}
