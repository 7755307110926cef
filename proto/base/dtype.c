/* Element types: everything follows from RP_DTYPE_LIST. */
#include "proto/base/dtype.h"

#include <stddef.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/text.h"

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

/* ---- fields */

struct field_type dtype_field(const char *name, int32_t dtype, const uint32_t *steps, uint32_t rank,
                              const uint32_t *shape)
{
    const uint32_t before = steps ? 1 : 0;
    struct field_type out = {name, dtype, rank + before, {steps ? *steps : 0}};
    for (uint32_t i = 0; i < rank; i++)
        out.shape[before + i] = shape[i];
    return out;
}

static void describe_shape(const struct field_type *self, char *out, size_t size)
{
    const uint32_t any = self->rank > 0 && self->shape[0] == 0;
    text_append(out, size, any ? "[any" : "[");
    for (uint32_t i = any; i < self->rank; i++)
        text_append(out, size, "%s%u", i > 0 ? "," : "", self->shape[i]);
    text_append(out, size, "]");
}

rp_status dtype_check_field(const struct field_type *field, bool squeezed, const struct field_type *want,
                            const char *table, rp_error *err)
{
    if (strcmp(field->name, want->name) != 0)
        return err_set(err, RP_INVALID_ARGUMENT, "table '%.64s' wants the field '%.64s' where '%.64s' stands", table,
                       want->name, field->name);
    if (field->dtype != want->dtype)
        return err_set(err, RP_INVALID_ARGUMENT, "field '%.64s' is %s, table '%.64s' wants %s", field->name,
                       dtype_name(field->dtype), table, dtype_name(want->dtype));
    bool same = field->rank == want->rank;
    for (uint32_t i = 0; same && i < want->rank; i++)
        same = field->shape[i] == want->shape[i] || (i == 0 && want->shape[0] == 0 && !squeezed);
    if (same)
        return RP_OK;
    char got[128] = "", wanted[128] = "";
    describe_shape(field, got, sizeof got);
    describe_shape(want, wanted, sizeof wanted);
    return err_set(err, RP_INVALID_ARGUMENT, "field '%.64s' has shape %s, table '%.64s' wants %s", field->name, got,
                   table, wanted);
}
