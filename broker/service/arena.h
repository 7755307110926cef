/* Memory of one reply: freed as a whole. */
#ifndef BROKER_ARENA_H
#define BROKER_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena_piece;

struct arena {
    struct arena_piece *pieces;
    bool failed; /* there was no memory for a piece */
};

/* Returns zeroed memory. NULL: there is none. */
void *arena_take(struct arena *self, size_t count, size_t size);
void arena_fini(struct arena *self);

/* Lets a message of protobuf-c, whose structs are not const, point to a text that it only reads. */
static inline char *arena_borrow(const char *text)
{
    return (char *)(uintptr_t)text;
}

#endif
