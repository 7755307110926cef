#include "broker/store/layout.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/base/siphash.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"

#define MAX_LAYOUTS 1048576u
#define MAX_FIELDS 1024u

static rp_status column_fill(struct column *column, const Replay__Column *wire, rp_error *err)
{
    size_t length = strlen(wire->name);
    if (length == 0 || length > RP_MAX_NAME || !utf8_valid(wire->name, length))
        return err_set(err, RP_INVALID_ARGUMENT, "a column's name must be UTF-8 of 1 to %u bytes", RP_MAX_NAME);
    column->dtype = dtype_by_name(wire->dtype);
    column->elem_bytes = dtype_size(column->dtype);
    if (!column->elem_bytes)
        return err_set(err, RP_INVALID_ARGUMENT, "column '%.64s': no dtype '%.32s'", wire->name, wire->dtype);
    if (wire->n_shape > RP_MAX_RANK)
        return err_set(err, RP_INVALID_ARGUMENT, "column '%.64s': rank %zu is above the limit of %u", wire->name,
                       wire->n_shape, RP_MAX_RANK);
    column->rank = (uint32_t)wire->n_shape;
    for (size_t i = 0; i < wire->n_shape; i++)
        column->shape[i] = wire->shape[i];
    column->row_bytes = dtype_row_bytes(column->dtype, column->rank, column->shape);
    if (column->row_bytes == DTYPE_NO_ROW)
        return err_set(err, RP_INVALID_ARGUMENT, "column '%.64s': its shape makes a step larger than 1 GiB",
                       wire->name);
    column->is_integer = dtype_is_integer(column->dtype);
    column->name = need_text(wire->name);
    return RP_OK;
}

struct columns *columns_new(Replay__Column *const *list, size_t n, rp_error *err)
{
    if (n == 0 || n > RP_MAX_COLUMNS)
        return err_null(err, RP_INVALID_ARGUMENT, "a stream has 1 to %u columns, not %zu", RP_MAX_COLUMNS, n);
    struct columns *self = need_alloc(sizeof *self);
    self->column = need_alloc(n * sizeof *self->column);
    self->refs = 1;
    for (size_t i = 0; i < n; i++) {
        self->count = (uint32_t)i + 1;
        bool ok = column_fill(&self->column[i], list[i], err) == RP_OK;
        for (size_t j = 0; ok && j < i; j++)
            if (strcmp(self->column[i].name, self->column[j].name) == 0) {
                err_set(err, RP_INVALID_ARGUMENT, "column '%.64s' is listed twice", self->column[i].name);
                ok = false;
            }
        if (!ok) {
            columns_release(self);
            return NULL;
        }
    }
    return self;
}

void columns_release(struct columns *self)
{
    if (!self || --self->refs > 0)
        return;
    for (uint32_t i = 0; i < self->count; i++)
        free(self->column[i].name);
    free(self->column);
    free(self);
}

bool columns_equal(const struct columns *a, const struct columns *b)
{
    if (a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct column *x = &a->column[i], *y = &b->column[i];
        if (strcmp(x->name, y->name) != 0 || x->dtype != y->dtype || x->rank != y->rank ||
            memcmp(x->shape, y->shape, x->rank * sizeof x->shape[0]) != 0)
            return false;
    }
    return true;
}

void columns_describe(const struct columns *self, Replay__Column *list, Replay__Column **at)
{
    for (uint32_t i = 0; i < self->count; i++) {
        struct column *column = &self->column[i];
        replay__column__init(at[i] = &list[i]);
        list[i].name = column->name;
        list[i].dtype = (char *)(uintptr_t)dtype_name(column->dtype);
        list[i].n_shape = column->rank;
        list[i].shape = column->shape;
    }
}

/* Returns the smallest item length at which the field's rows exist. 0: no length is enough. */
static uint64_t field_min_length(const Replay__Field *field)
{
    uint64_t stride = field->stride ? field->stride : 1;
    uint64_t span = field->count ? (uint64_t)(field->count - 1) * stride + 1 : 1;
    if (field->start >= 0)
        return (uint64_t)field->start + span;
    uint64_t back = (uint64_t)(-(int64_t)field->start);
    return field->count && span > back ? 0 : back;
}

static rp_status field_check(const Replay__Field *field, const struct columns *columns, rp_error *err)
{
    size_t length = strlen(field->name);
    if (length == 0 || length > RP_MAX_NAME || !utf8_valid(field->name, length))
        return err_set(err, RP_INVALID_ARGUMENT, "a field's name must be UTF-8 of 1 to %u bytes", RP_MAX_NAME);
    if (field->column >= columns->count)
        return err_set(err, RP_INVALID_ARGUMENT, "field '%.64s' names column %u, the stream has %u", field->name,
                       field->column, columns->count);
    if (field->squeeze && field->count != 1)
        return err_set(err, RP_INVALID_ARGUMENT, "field '%.64s': squeeze needs count 1, not %u", field->name,
                       field->count);
    uint64_t least = field_min_length(field);
    if (least == 0 || least > UINT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "field '%.64s': no item is long enough for start %d, count %u, stride %u", field->name,
                       field->start, field->count, field->stride);
    return RP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static rp_status names_check(const Replay__Layout *wire, rp_error *err)
{
    const char *names[MAX_FIELDS] = {NULL};
    for (size_t i = 0; i < wire->n_fields; i++)
        names[i] = wire->fields[i]->name;
    qsort(names, wire->n_fields, sizeof names[0], by_name);
    for (size_t i = 1; i < wire->n_fields; i++)
        if (strcmp(names[i], names[i - 1]) == 0)
            return err_set(err, RP_INVALID_ARGUMENT, "field '%.64s' is listed twice", names[i]);
    return RP_OK;
}

static rp_status layout_check(const Replay__Layout *wire, const struct columns *columns, struct signature signature,
                              rp_error *err)
{
    if (wire->n_fields == 0 || wire->n_fields > MAX_FIELDS)
        return err_set(err, RP_INVALID_ARGUMENT, "an item has 1 to %u fields, not %zu", MAX_FIELDS, wire->n_fields);
    if (signature.n && wire->n_fields != signature.n)
        return err_set(err, RP_INVALID_ARGUMENT, "the item has %zu fields, the table's signature %u", wire->n_fields,
                       signature.n);
    for (size_t i = 0; i < wire->n_fields; i++) {
        const Replay__Field *field = wire->fields[i];
        RP_TRY(field_check(field, columns, err));
        const struct column *column = &columns->column[field->column];
        struct field_type is =
            dtype_field(field->name, column->dtype, field->squeeze ? NULL : &field->count, column->rank, column->shape);
        if (signature.n)
            RP_TRY(dtype_check_field(&is, field->squeeze, &signature.fields[i], signature.table, err));
    }
    return names_check(wire, err);
}

/* Encodes the layout as replies carry it, without the id, which is put in front later. */
static uint8_t *layout_encode(const Replay__Layout *wire, const struct columns *columns, size_t *size)
{
    Replay__Column list[RP_MAX_COLUMNS], *at[RP_MAX_COLUMNS];
    columns_describe(columns, list, at);
    Replay__Layout copy = *wire;
    copy.id = 0;
    copy.n_columns = columns->count;
    copy.columns = at;
    *size = replay__layout__get_packed_size(&copy);
    uint8_t *out = need_alloc(*size);
    replay__layout__pack(&copy, out);
    return out;
}

/* Returns a free id. UINT32_MAX: there are MAX_LAYOUTS. */
static uint32_t layouts_free_id(struct layouts *self)
{
    uint32_t id = self->first_free;
    while (id < self->count && self->list[id])
        id++;
    self->first_free = id;
    if (id == MAX_LAYOUTS)
        return UINT32_MAX;
    self->list = need_room(self->list, id, &self->capacity, sizeof(*self->list));
    if (id == self->count)
        self->list[self->count++] = NULL;
    return id;
}

static void layout_free(struct layout *self)
{
    free(self->fields);
    free(self->wire);
    free(self);
}

/* Puts the body into a SampleReply.layouts field, with the id (field 1) first. */
static void layout_wrap(struct layout *self, const uint8_t *body, size_t size)
{
    const uint32_t tag = 20u << 3 | PB_BYTES, id_bytes = 5;
    self->wire_size = pb_varint_size(tag) + pb_varint_size(size + id_bytes) + id_bytes + size;
    self->wire = need_alloc(self->wire_size);
    uint8_t *at = pb_store_varint(pb_store_varint(self->wire, tag), size + id_bytes);
    *at++ = 1 << 3 | PB_FIXED32;
    memcpy(at, &self->id, sizeof self->id);
    memcpy(at + sizeof self->id, body, size);
}

struct layout *layouts_intern(struct layouts *self, const Replay__Layout *wire, const struct columns *columns,
                              uint32_t table, struct signature signature, rp_error *err)
{
    if (layout_check(wire, columns, signature, err) != RP_OK) {
        err_prefix(err, "layout %u of table '%.64s'", wire->id, wire->table);
        return NULL;
    }
    size_t size = 0;
    uint8_t *body = layout_encode(wire, columns, &size);
    uint64_t hash = siphash((const uint8_t[16]){0}, body, size);
    struct layout *layout = idmap_get(&self->by_hash, hash);
    if (layout && (layout->wire_size < size || memcmp(layout->wire + layout->wire_size - size, body, size) != 0))
        layout = NULL;
    bool full = self->most && self->bytes + size > self->most;
    uint32_t id = layout ? layout->id : full ? UINT32_MAX : layouts_free_id(self);
    if (layout || id == UINT32_MAX) {
        free(body);
        if (layout)
            layout->refs++;
        else
            err_set(err, RP_RESOURCE_EXHAUSTED, "no room for a further layout");
        return layout;
    }
    layout = self->list[id] = need_alloc(sizeof *layout);
    *layout = (struct layout){.id = id,
                              .refs = 1,
                              .table = table,
                              .hash = hash,
                              .n_columns = columns->count,
                              .n_fields = (uint32_t)wire->n_fields,
                              .fields = need_alloc(wire->n_fields * sizeof *layout->fields)};
    layout_wrap(layout, body, size);
    self->bytes += layout->wire_size;
    free(body);
    for (size_t i = 0; i < wire->n_fields; i++) {
        const Replay__Field *field = wire->fields[i];
        uint32_t column = field->column, least = (uint32_t)field_min_length(field);
        layout->fields[i] =
            (struct layout_field){column, field->start, field->count, field->stride ? field->stride : 1};
        layout->need[column / 8] |= (uint8_t)(1u << (column % 8));
        if (least > layout->min_length)
            layout->min_length = least;
    }
    idmap_put(&self->by_hash, hash, layout);
    return layout;
}

const uint8_t *layout_message(const struct layout *self, size_t *size)
{
    size_t at = 2; /* the tag of field 20 */
    while (self->wire[at++] & 0x80) {
    }
    *size = self->wire_size - at;
    return self->wire + at;
}

bool layout_field_has_rows(const struct layout_field *self, uint32_t length, uint64_t first, uint64_t n)
{
    uint64_t row = (uint64_t)(self->start >= 0 ? self->start : (int64_t)length + self->start);
    uint64_t last = self->count ? row + (uint64_t)(self->count - 1) * self->stride : length - 1;
    if (last < first || row >= first + n)
        return false;
    if (row < first)
        row += (first - row + self->stride - 1) / self->stride * self->stride;
    return row < first + n && row <= last;
}

void layouts_release(struct layouts *self, struct layout *layout)
{
    if (--layout->refs > 0)
        return;
    self->list[layout->id] = NULL;
    if (layout->id < self->first_free)
        self->first_free = layout->id;
    if (idmap_get(&self->by_hash, layout->hash) == layout)
        idmap_remove(&self->by_hash, layout->hash);
    self->bytes -= layout->wire_size;
    layout_free(layout);
}

void layouts_fini(struct layouts *self)
{
    for (uint32_t i = 0; i < self->count; i++)
        if (self->list[i])
            layout_free(self->list[i]);
    free(self->list);
    idmap_fini(&self->by_hash);
    *self = (struct layouts){0};
}
