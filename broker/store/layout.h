/* Layouts: which rows of which columns make up the fields of an item. Writers register them. They are interned, so that equal
 * layouts of many sessions are stored once, and kept in the form in which replies carry them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "broker/loop/idmap.h"
#include "proto/base/dtype.h"
#include "replay.pb-c.h"
#include "replay/error.h"
#include "replay/types.h"

/* The columns of a session's stream, as HELLO gave them. */
struct column {
    char *name;
    int32_t dtype;
    uint32_t elem_bytes;
    uint32_t is_integer;
    uint32_t rank;
    uint32_t shape[RP_MAX_RANK];
    uint64_t row_bytes;
};

struct columns {
    uint32_t refs;
    uint32_t count;
    struct column *column;
};

/* Checks and copies the columns. NULL with err set. */
struct columns *columns_new(Replay__Column *const *list, size_t n, rp_error *err);
void columns_release(struct columns *self);
bool columns_equal(const struct columns *a, const struct columns *b);
/* Describes the columns as messages, which borrow; both arrays have RP_MAX_COLUMNS. */
void columns_describe(const struct columns *self, Replay__Column *list, Replay__Column **at);

/* Rows of a column, counted from the item's first step; negative: from its end. */
struct layout_field {
    uint32_t column;
    int32_t start;
    uint32_t count; /* 0: to the end */
    uint32_t stride;
};

struct layout {
    uint32_t id; /* index in layouts */
    uint32_t refs;
    uint32_t table;
    uint32_t min_length; /* fewest steps of an item */
    uint32_t n_columns;
    uint32_t n_fields;
    struct layout_field *fields;
    uint8_t need[32]; /* bit per column */
    uint8_t *wire;    /* a SampleReply.layouts field: tag, length, message */
    size_t wire_size;
    uint64_t hash;
    uint32_t stamp, index; /* place in the reply that is being built */
    bool journaled;        /* a LAYOUT entry in the journal says what its id means */
};

struct layouts {
    struct layout **list; /* by id; NULL: free */
    uint32_t count, capacity;
    uint32_t first_free;  /* places before this one are used */
    uint64_t bytes, most; /* that they take, and may take; 0: no limit */
    struct idmap by_hash;
};

/* True if the field of an item of `length` steps has rows among its steps first .. first + n - 1. */
bool layout_field_has_rows(const struct layout_field *self, uint32_t length, uint64_t first, uint64_t n);

/* The fields that every item of a table must have. n 0: any fields. */
struct signature {
    struct field_type *fields;
    uint32_t n;
    const char *table; /* its name */
};

/* Checks a layout from the network against the stream's columns and the table's signature. Returns the interned layout, with a
 * reference for the caller. NULL with err set. */
struct layout *layouts_intern(struct layouts *self, const Replay__Layout *wire, const struct columns *columns,
                              uint32_t table, struct signature signature, rp_error *err);
static inline struct layout *layouts_at(const struct layouts *self, uint32_t id)
{
    return self->list[id];
}
/* Returns the Layout message within `wire`: with the broker's id, and the columns. */
const uint8_t *layout_message(const struct layout *self, size_t *size);
void layouts_release(struct layouts *self, struct layout *layout);
void layouts_fini(struct layouts *self);
