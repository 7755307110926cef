#include "broker/service/arena.h"

#include <stdlib.h>

struct arena_piece {
    struct arena_piece *next;
    max_align_t memory[];
};

void *arena_take(struct arena *self, size_t count, size_t size)
{
    struct arena_piece *piece = calloc(1, sizeof *piece + count * size);
    if (!piece) {
        self->failed = true;
        return NULL;
    }
    piece->next = self->pieces;
    self->pieces = piece;
    return piece->memory;
}

void arena_fini(struct arena *self)
{
    while (self->pieces) {
        struct arena_piece *piece = self->pieces;
        self->pieces = piece->next;
        free(piece);
    }
}
