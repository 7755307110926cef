/* Memory of one reply or one snapshot: taken piece by piece, freed as a whole. Small pieces share blocks. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct arena_block;

/* Starts zero-initialised. */
struct arena {
    struct arena_block *blocks;
};

/* Returns zeroed memory that lives as long as the arena. */
void *arena_take(struct arena *self, size_t count, size_t size);
/* Returns a copy of a text, which may be NULL: then it is "". Each byte that is not UTF-8 becomes a question mark. */
char *arena_text(struct arena *self, const char *text);
/* Returns a copy of these bytes. */
void *arena_copy(struct arena *self, const void *data, size_t size);
void arena_fini(struct arena *self);
