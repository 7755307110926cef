/* Layouts of a sample reply: the fields of an item, and where their rows are. Parsed once, then cached by the broker's number and
 * compared byte by byte, so that a restarted broker cannot be misread. */
#ifndef AGENT_CLIENT_BATCH_LAYOUT_H
#define AGENT_CLIENT_BATCH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"
#include "replay/types.h"

struct batch_field {
    const char *name; /* inside the layout */
    int32_t dtype;
    uint32_t elem_bytes;
    uint32_t is_integer;
    uint32_t row_bytes; /* of one step */
    uint32_t rank;      /* of one step */
    uint32_t shape[RP_MAX_RANK];
    uint32_t column;
    int32_t start;
    uint32_t count; /* 0: to the item's end */
    uint32_t stride;
    bool squeeze;
};

struct batch_layout {
    struct batch_layout *next; /* next in the list of retired layouts */
    uint32_t id;
    uint32_t n_fields;
    uint8_t *encoded;
    size_t encoded_size;
    char *names;
    struct batch_field fields[];
};

/* Starts zero-initialised. */
struct batch_layouts {
    struct batch_layout **slots; /* open addressing by id */
    uint32_t capacity;           /* a power of two, or 0 */
    uint32_t count;
    struct batch_layout *retired; /* replaced layouts, in use until the next batch_layouts_turn */
};

void batch_layouts_fini(struct batch_layouts *self);
/* Frees replaced layouts between two replies. Returns true if pointers given before have become invalid: those of replaced
 * layouts, or all if the cache had grown past its bound. */
bool batch_layouts_turn(struct batch_layouts *self);
/* Returns the layout with this encoding, parsed and checked. Borrowed until the next turn. */
rp_status batch_layouts_get(struct batch_layouts *self, const uint8_t *encoded, size_t size,
                            const struct batch_layout **out, rp_error *err);

/* Gives the number of rows that a field takes from an item of `length` steps, and the first row. False: the item is too
 * short. */
static inline bool batch_layout_rows(const struct batch_field *field, uint32_t length, uint32_t *first, uint32_t *rows)
{
    int64_t start = field->start < 0 ? (int64_t)length + field->start : field->start;
    if (start < 0 || start >= (int64_t)length)
        return false;
    uint64_t left = length - (uint64_t)start;
    uint64_t n = field->count ? field->count : (left + field->stride - 1) / field->stride;
    *first = (uint32_t)start;
    *rows = (uint32_t)n;
    return (n - 1) * field->stride < left;
}

/* True if rows of both fields fit into one array. */
bool batch_layout_agrees(const struct batch_field *a, const struct batch_field *b);
/* Writes "float32[84,84]", for messages. */
void batch_layout_describe(const struct batch_field *self, char *out, size_t size);

#endif
