/* Element types: everything follows from RP_DTYPE_LIST. */
#include "proto/base/dtype.h"

#include <stddef.h>
#include <string.h>

struct dtype_row {
    const char *name;
    uint32_t size;
    bool is_integer;
};

#define DTYPE_ROW(name, code, text, bytes, integer) [code] = {text, bytes, integer},
static const struct dtype_row dtypes[] = {RP_DTYPE_LIST(DTYPE_ROW)};
#undef DTYPE_ROW

#define N_DTYPES ((int32_t)(sizeof dtypes / sizeof dtypes[0]))

static const struct dtype_row *dtype_find(int32_t dtype)
{
    static const struct dtype_row none = {NULL, 0, false};
    return dtype > 0 && dtype < N_DTYPES ? &dtypes[dtype] : &none;
}

uint32_t dtype_size(int32_t dtype)
{
    return dtype_find(dtype)->size;
}

const char *dtype_name(int32_t dtype)
{
    return dtype_find(dtype)->name;
}

int32_t dtype_by_name(const char *name)
{
    for (int32_t i = 1; name != NULL && i < N_DTYPES; i++) {
        if (dtypes[i].name != NULL && strcmp(dtypes[i].name, name) == 0)
            return i;
    }
    return -1;
}

bool dtype_is_integer(int32_t dtype)
{
    return dtype_find(dtype)->is_integer;
}

uint64_t dtype_row_bytes(int32_t dtype, uint32_t rank, const uint32_t *shape)
{
    uint64_t bytes = dtype_size(dtype);
    if (rank > RP_MAX_RANK || bytes == 0)
        return DTYPE_NO_ROW;
    /* The product stays at or below 2^30 before each step, so it cannot overflow. */
    for (uint32_t i = 0; i < rank; i++) {
        bytes *= shape[i];
        if (bytes > RP_MAX_ROW_BYTES)
            return DTYPE_NO_ROW;
    }
    return bytes;
}
