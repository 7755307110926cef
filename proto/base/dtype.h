/* Element types: names, sizes, and which are integers; and the fields of items, which have one and a shape. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"
#include "replay/types.h"

/* Returns the size in bytes; 0 if there is no such type. */
uint32_t dtype_size(int32_t dtype);
/* Returns "float32"; NULL if there is no such type. */
const char *dtype_name(int32_t dtype);
/* Returns the type of that name; -1 if there is none, or name is NULL. */
int32_t dtype_by_name(const char *name);
bool dtype_is_integer(int32_t dtype);

/* Returns the bytes of one step of a column, which are 0 if the shape has a 0 in it. DTYPE_NO_ROW: dtype, rank or the product
 * (RP_MAX_ROW_BYTES) is out of range. */
#define DTYPE_NO_ROW UINT64_MAX
uint64_t dtype_row_bytes(int32_t dtype, uint32_t rank, const uint32_t *shape);

/* A field of an item, or what the signature of a table says of one. */
struct field_type {
    const char *name;
    int32_t dtype;
    uint32_t rank, shape[RP_MAX_RANK + 1]; /* shape[0] == 0: any number of steps */
};

/* Returns the field that has these steps (0: any number; NULL: it is squeezed) of a column of this shape. */
struct field_type dtype_field(const char *name, int32_t dtype, const uint32_t *steps, uint32_t rank,
                              const uint32_t *shape);
/* Checks a field against the one that stands in its place in a table's signature. */
rp_status dtype_check_field(const struct field_type *field, bool squeezed, const struct field_type *want,
                            const char *table, rp_error *err);
