/* See batch_layout.h. The cache owns all layouts; one decoder owns the cache. */
#include "agent/client/sampler/batch_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/sampler/batch.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "replay.pb-c.h"

/* Largest number of cached layouts. With more layouts the cache is emptied now and then. */
#define CACHE_BOUND 4096u

static void layout_free(struct batch_layout *self)
{
    if (!self)
        return;
    free(self->encoded);
    free(self->names);
    free(self);
}

void batch_layouts_fini(struct batch_layouts *self)
{
    for (uint32_t i = 0; i < self->capacity; i++)
        layout_free(self->slots[i]);
    free(self->slots);
    while (self->retired) {
        struct batch_layout *next = self->retired->next;
        layout_free(self->retired);
        self->retired = next;
    }
    *self = (struct batch_layouts){0};
}

bool batch_layouts_turn(struct batch_layouts *self)
{
    if (self->count <= CACHE_BOUND && !self->retired)
        return false;
    if (self->count > CACHE_BOUND) {
        batch_layouts_fini(self);
        return true;
    }
    while (self->retired) {
        struct batch_layout *next = self->retired->next;
        layout_free(self->retired);
        self->retired = next;
    }
    return true;
}

/* Reads the id; it is absent if it is 0. */
static uint32_t encoded_id(const uint8_t *encoded, size_t size)
{
    uint32_t id = 0;
    if (size >= 5 && encoded[0] == 0x0d)
        memcpy(&id, encoded + 1, 4);
    return id;
}

static uint32_t slot_of(const struct batch_layouts *self, uint32_t id)
{
    uint32_t mask = self->capacity - 1;
    uint32_t i = (id * UINT32_C(0x9e3779b1)) & mask;
    while (self->slots[i] && self->slots[i]->id != id)
        i = (i + 1) & mask;
    return i;
}

static bool grow(struct batch_layouts *self)
{
    if (self->capacity && self->count * 2 < self->capacity)
        return true;
    struct batch_layouts bigger = {
        .capacity = self->capacity ? self->capacity * 2 : 16, .count = self->count, .retired = self->retired};
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (uint32_t i = 0; i < self->capacity; i++) {
        if (self->slots[i])
            bigger.slots[slot_of(&bigger, self->slots[i]->id)] = self->slots[i];
    }
    free(self->slots);
    *self = bigger;
    return true;
}

static rp_status field_parse(const Replay__Layout *from, const Replay__Field *field, struct batch_field *out,
                             rp_error *err)
{
    if (field->column >= from->n_columns)
        return err_set(err, RP_DATA_LOSS, "field '%s' names column %u of %zu", field->name, field->column,
                       from->n_columns);
    const Replay__Column *column = from->columns[field->column];
    int32_t dtype = dtype_by_name(column->dtype);
    uint64_t row_bytes = dtype < 0 || column->n_shape > RP_MAX_RANK
                             ? DTYPE_NO_ROW
                             : dtype_row_bytes(dtype, (uint32_t)column->n_shape, column->shape);
    if (row_bytes == DTYPE_NO_ROW)
        return err_set(err, RP_DATA_LOSS, "column '%s' has a dtype or shape that is not known here ('%s')",
                       column->name, column->dtype);
    if (field->squeeze && field->count != 1)
        return err_set(err, RP_DATA_LOSS, "field '%s' is squeezed but has %u steps", field->name, field->count);
    out->dtype = dtype;
    out->elem_bytes = dtype_size(dtype);
    out->is_integer = dtype_is_integer(dtype);
    out->row_bytes = (uint32_t)row_bytes;
    out->rank = (uint32_t)column->n_shape;
    if (column->n_shape)
        memcpy(out->shape, column->shape, column->n_shape * sizeof *column->shape);
    out->column = field->column;
    out->start = field->start;
    out->count = field->count;
    out->stride = field->stride ? field->stride : 1;
    out->squeeze = field->squeeze;
    return RP_OK;
}

static rp_status fields_parse(struct batch_layout *self, const Replay__Layout *from, rp_error *err)
{
    char *name = self->names;
    for (uint32_t i = 0; i < self->n_fields; i++) {
        struct batch_field *field = &self->fields[i];
        RP_TRY(field_parse(from, from->fields[i], field, err));
        size_t size = strlen(from->fields[i]->name) + 1;
        memcpy(name, from->fields[i]->name, size);
        field->name = name;
        name += size;
    }
    return RP_OK;
}

static rp_status layout_new(const uint8_t *encoded, size_t size, struct batch_layout **out, rp_error *err)
{
    Replay__Layout *from = replay__layout__unpack(NULL, size, encoded);
    if (!from)
        return err_set(err, RP_DATA_LOSS, "a layout in the broker's reply cannot be decoded");
    rp_status status = RP_OK;
    struct batch_layout *self = NULL;
    size_t names_size = 1;
    for (size_t i = 0; i < from->n_fields; i++)
        names_size += strlen(from->fields[i]->name) + 1;
    if (from->n_fields > BATCH_MAX_FIELDS || from->n_columns > RP_MAX_COLUMNS) {
        status =
            err_set(err, RP_DATA_LOSS, "a layout with %zu fields over %zu columns", from->n_fields, from->n_columns);
        goto done;
    }
    self = calloc(1, sizeof *self + from->n_fields * sizeof *self->fields);
    if (self) {
        self->encoded = malloc(size ? size : 1);
        self->names = calloc(1, names_size);
    }
    if (!self || !self->encoded || !self->names) {
        status = err_set(err, RP_NO_MEMORY, "no memory for a layout");
        goto done;
    }
    if (size)
        memcpy(self->encoded, encoded, size);
    self->encoded_size = size;
    self->id = encoded_id(encoded, size);
    self->n_fields = (uint32_t)from->n_fields;
    status = fields_parse(self, from, err);
done:
    replay__layout__free_unpacked(from, NULL);
    if (status != RP_OK) {
        layout_free(self);
        self = NULL;
    }
    *out = self;
    return status;
}

rp_status batch_layouts_get(struct batch_layouts *self, const uint8_t *encoded, size_t size,
                            const struct batch_layout **out, rp_error *err)
{
    struct batch_layout **slot = NULL;
    if (self->capacity) {
        slot = &self->slots[slot_of(self, encoded_id(encoded, size))];
        if (*slot && (*slot)->encoded_size == size && memcmp((*slot)->encoded, encoded, size) == 0) {
            *out = *slot;
            return RP_OK;
        }
    }
    struct batch_layout *fresh = NULL;
    RP_TRY(layout_new(encoded, size, &fresh, err));
    if (!slot || !*slot) {
        if (!grow(self)) {
            layout_free(fresh);
            return err_set(err, RP_NO_MEMORY, "no memory for a layout");
        }
        slot = &self->slots[slot_of(self, fresh->id)];
        self->count++;
    } else {
        (*slot)->next = self->retired;
        self->retired = *slot;
    }
    *slot = fresh;
    *out = fresh;
    return RP_OK;
}

bool batch_layout_agrees(const struct batch_field *a, const struct batch_field *b)
{
    return a->dtype == b->dtype && a->squeeze == b->squeeze && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0 && strcmp(a->name, b->name) == 0;
}

void batch_layout_describe(const struct batch_field *self, char *out, size_t size)
{
    int at = snprintf(out, size, "%s[", dtype_name(self->dtype));
    for (uint32_t i = 0; i < self->rank && at >= 0 && (size_t)at < size; i++)
        at += snprintf(out + at, size - (size_t)at, "%s%u", i ? "," : "", self->shape[i]);
    if (at >= 0 && (size_t)at < size)
        snprintf(out + at, size - (size_t)at, "]%s", self->squeeze ? "" : " per step");
}
