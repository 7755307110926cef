/* Element types: one table of name, size and whether integer differences make sense. */
#ifndef PROTO_DTYPE_H
#define PROTO_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/types.h"

/* 0 if there is no such type. */
uint32_t dtype_size(int32_t dtype);
/* "float32"; NULL if there is no such type. */
const char *dtype_name(int32_t dtype);
/* -1 if there is no such type, or name is NULL. */
int32_t dtype_by_name(const char *name);
bool dtype_is_integer(int32_t dtype);

/* Bytes of one step of a column; 0 if dtype, rank or the product is out of range (RP_MAX_ROW_BYTES). A shape with a 0
 * in it is refused. */
uint64_t dtype_row_bytes(int32_t dtype, uint32_t rank, const uint32_t *shape);

#endif
