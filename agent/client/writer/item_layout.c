/* See item_layout.h. */
#include "agent/client/writer/item_layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"

#define LAYOUTS_FIELD 7u
#define ID_BYTES 5u

bool item_layouts_init(struct item_layouts *self, uint32_t n_tables)
{
    *self = (struct item_layouts){.count = 0};
    self->buckets = calloc(ITEM_LAYOUT_BUCKETS, sizeof(*self->buckets));
    self->last = calloc(n_tables ? n_tables : 1, sizeof(*self->last));
    self->newest = calloc(n_tables ? n_tables : 1, sizeof *self->newest);
    return self->buckets && self->last && self->newest;
}

void item_layouts_fini(struct item_layouts *self)
{
    for (uint32_t i = 0; self->buckets && i < ITEM_LAYOUT_BUCKETS; i++)
        for (struct item_layout *layout = self->buckets[i], *next; layout; layout = next) {
            next = layout->chain;
            free(layout->wire);
            free(layout);
        }
    free(self->buckets);
    free(self->last);
    free(self->newest);
    free(self->scratch);
    free(self->ranges);
    *self = (struct item_layouts){0};
}

/* ---- which steps */

/* A slice in steps of the stream: rows first, first + stride ... last. */
struct slice_range {
    uint64_t first, last, count, stride;
};

static rp_status slice_range(const struct step_stream *stream, const rp_slice *slice, struct slice_range *out,
                             rp_error *err)
{
    if (slice->column >= stream->n_columns)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no column %u, the stream has %u", slice->column,
                       stream->n_columns);
    const char *name = stream->columns[slice->column].name;
    int64_t length = (int64_t)step_stream_length(stream);
    int64_t start = slice->start < 0 ? length + slice->start : slice->start;
    if (start < 0 || start >= length)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the slice of column '%s' starts at step %" PRId64 ", but the episode has %" PRId64 " steps",
                       name, slice->start, length);
    uint64_t left = (uint64_t)(length - start);
    out->stride = slice->stride ? slice->stride : 1;
    out->count = slice->count ? slice->count : slice->squeeze ? 1 : (left + out->stride - 1) / out->stride;
    if (slice->squeeze && out->count != 1)
        return err_set(err, RP_INVALID_ARGUMENT, "the slice of column '%s' is squeezed: its count must be 1, not %u",
                       name, slice->count);
    if ((out->count - 1) * out->stride >= left)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the slice of column '%s' ends at step %" PRIu64 ", but the episode has %" PRId64 " steps", name,
                       (uint64_t)start + (out->count - 1) * out->stride, length);
    out->first = stream->episode_start + (uint64_t)start;
    out->last = out->first + (out->count - 1) * out->stride;
    if (out->first < step_stream_reach(stream))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the slice of column '%s' starts at step %" PRId64 " of the episode, which is out of reach: the "
                       "newest is %" PRId64 " and keep_alive is %" PRIu64,
                       name, start, length - 1, stream->keep_alive);
    return RP_OK;
}

static rp_status check_present(const struct step_stream *stream, uint32_t column, const struct slice_range *range,
                               rp_error *err)
{
    if (range->first >= stream->absent_step)
        return RP_OK;
    for (uint64_t i = 0, step = range->first; i < range->count; i++, step += range->stride)
        if (step_stream_is_absent(stream, column, step))
            return err_set(err, RP_INVALID_ARGUMENT, "column '%s' has no value in step %" PRIu64 " of the episode",
                           stream->columns[column].name, step - stream->episode_start);
    return RP_OK;
}

/* Makes slice i relative to the item's first step, or to its end. */
static rp_status normalise(Replay__Field *out, const struct item_slices *item, uint32_t i,
                           const struct slice_range *range, const struct item_steps *span, rp_error *err)
{
    const rp_slice *slice = &item->slices[i];
    const char *column = item->stream->columns[slice->column].name;
    uint64_t start = range->first - span->first, end = span->first + span->length;
    /* A slice "to the end" needs a count if the table's signature fixes the number of steps. */
    const Replay__Column *want = i < item->table->n_signature ? item->table->signature[i] : NULL;
    bool fixed = want && want->n_shape > 0 && want->shape[0] != 0;
    bool to_end = slice->count == 0 && !slice->squeeze && !fixed;
    bool from_end = !to_end && start > 0 && range->last + 1 == end;
    if (range->count > UINT32_MAX || start > INT32_MAX || (from_end && end - range->first > INT32_MAX))
        return err_set(err, RP_INVALID_ARGUMENT, "an item of %u steps is too long for the slice of column '%s'",
                       span->length, column);
    out->name = (char *)(uintptr_t)(slice->field ? slice->field : column);
    out->column = slice->column;
    out->start = from_end ? -(int32_t)(end - range->first) : (int32_t)start;
    out->count = to_end ? 0 : (uint32_t)range->count;
    out->stride = range->stride == 1 ? 0 : (uint32_t)range->stride;
    out->squeeze = slice->squeeze != 0;
    return RP_OK;
}

static rp_status scratch_reserve(struct item_layouts *self, uint32_t n, rp_error *err)
{
    if (n == 0 || n > ITEM_LAYOUT_MAX_FIELDS)
        return err_set(err, RP_INVALID_ARGUMENT, "an item has 1 to %u slices, not %u", ITEM_LAYOUT_MAX_FIELDS, n);
    if (n <= self->scratch_size)
        return RP_OK;
    Replay__Field *grown = realloc(self->scratch, n * sizeof *grown);
    if (grown)
        self->scratch = grown;
    struct slice_range *ranges = realloc(self->ranges, n * sizeof *ranges);
    if (ranges)
        self->ranges = ranges;
    if (!grown || !ranges)
        return err_set(err, RP_NO_MEMORY, "no memory for an item");
    while (self->scratch_size < n)
        replay__field__init(&self->scratch[self->scratch_size++]);
    return RP_OK;
}

static rp_status scratch_fill(struct item_layouts *self, const struct item_slices *item, struct item_steps *span,
                              rp_error *err)
{
    const struct step_stream *stream = item->stream;
    const rp_slice *slices = item->slices;
    RP_TRY(scratch_reserve(self, item->n, err));
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < item->n; i++) {
        struct slice_range *range = &self->ranges[i];
        RP_TRY(slice_range(stream, &slices[i], range, err));
        RP_TRY(check_present(stream, slices[i].column, range, err));
        uint64_t last = slices[i].count == 0 && !slices[i].squeeze ? stream->steps : range->last + 1;
        first = range->first < first ? range->first : first;
        end = last > end ? last : end;
    }
    if (end - first > UINT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "an item of %" PRIu64 " steps is too long", end - first);
    span->first = first;
    span->length = (uint32_t)(end - first);
    for (uint32_t i = 0; i < item->n; i++)
        RP_TRY(normalise(&self->scratch[i], item, i, &self->ranges[i], span, err));
    return RP_OK;
}

/* ---- new layouts */

static rp_status check_field(const Replay__Field *field, const struct step_column *column, const Replay__Column *want,
                             const char *table, rp_error *err)
{
    int32_t dtype = dtype_by_name(want->dtype);
    if (dtype < 0 || want->n_shape > RP_MAX_RANK + 1)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "table '%s' wants a field '%s' of a dtype or shape that is not known here ('%s')", table,
                       want->name, want->dtype);
    struct field_type is =
        dtype_field(field->name, column->dtype, field->squeeze ? NULL : &field->count, column->rank, column->shape);
    struct field_type wanted = dtype_field(want->name, dtype, NULL, (uint32_t)want->n_shape, want->shape);
    return dtype_check_field(&is, field->squeeze, &wanted, table, err);
}

static rp_status check_fields(const Replay__Field *fields, const struct item_slices *item, rp_error *err)
{
    const Replay__TableSpec *spec = item->table;
    uint32_t n = item->n;
    if (spec->n_signature && spec->n_signature != n)
        return err_set(err, RP_INVALID_ARGUMENT, "the item has %u fields, table '%s' wants %zu", n, spec->name,
                       spec->n_signature);
    for (uint32_t i = 0; i < n; i++) {
        size_t length = strlen(fields[i].name);
        if (length == 0 || length > RP_MAX_NAME || !utf8_valid(fields[i].name, length))
            return err_set(err, RP_INVALID_ARGUMENT, "a field's name must have 1 to %u bytes of UTF-8", RP_MAX_NAME);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(fields[i].name, fields[j].name) == 0)
                return err_set(err, RP_INVALID_ARGUMENT, "field '%s' stands twice in the item", fields[i].name);
        if (spec->n_signature)
            RP_TRY(
                check_field(&fields[i], &item->stream->columns[fields[i].column], spec->signature[i], spec->name, err));
    }
    return RP_OK;
}

rp_status item_layouts_check(struct item_layouts *self, const struct item_slices *item, rp_error *err)
{
    const struct step_stream *stream = item->stream;
    RP_TRY(scratch_reserve(self, item->n, err));
    for (uint32_t i = 0; i < item->n; i++) {
        const rp_slice *slice = &item->slices[i];
        if (slice->column >= stream->n_columns)
            return err_set(err, RP_INVALID_ARGUMENT, "there is no column %u, the stream has %u", slice->column,
                           stream->n_columns);
        Replay__Field *field = &self->scratch[i];
        field->name = slice->field ? (char *)(uintptr_t)slice->field : stream->columns[slice->column].name;
        field->column = slice->column;
        field->count = slice->count;
        field->squeeze = slice->squeeze != 0;
    }
    return check_fields(self->scratch, item, err);
}

static bool item_layout_encode(struct item_layout *self, const char *table)
{
    Replay__Field **at = calloc(self->n_fields, sizeof(*at));
    struct text out = {0};
    if (at) {
        Replay__Layout layout = REPLAY__LAYOUT__INIT;
        layout.table = (char *)(uintptr_t)table;
        layout.n_fields = self->n_fields;
        layout.fields = at;
        for (uint32_t i = 0; i < self->n_fields; i++)
            at[i] = &self->fields[i];
        size_t size = replay__layout__get_packed_size(&layout);
        pb_tag(&out, LAYOUTS_FIELD, PB_BYTES);
        pb_varint(&out, size + ID_BYTES);
        pb_tag(&out, 1, PB_FIXED32);
        self->wire_id = out.size;
        (void)text_reserve(&out, 4);
        uint8_t *place = text_reserve(&out, size);
        if (place)
            replay__layout__pack(&layout, place);
    }
    free(at);
    self->wire = out.bytes;
    self->wire_size = out.size;
    return out.data != NULL && !out.failed;
}

void item_layout_number(struct item_layout *self, uint32_t id)
{
    self->id = id;
    memcpy(self->wire + self->wire_id, &id, sizeof id);
}

static struct item_layout *item_layout_new(const Replay__Field *fields, uint32_t n, const Replay__TableSpec *spec)
{
    size_t names = 0;
    for (uint32_t i = 0; i < n; i++)
        names += strlen(fields[i].name) + 1;
    struct item_layout *self = calloc(1, sizeof *self + n * sizeof self->fields[0] + names);
    if (!self)
        return NULL;
    self->n_fields = n;
    char *name = (char *)(self->fields + n);
    for (uint32_t i = 0; i < n; i++) {
        self->fields[i] = fields[i];
        self->fields[i].name = strcpy(name, fields[i].name);
        name += strlen(name) + 1;
    }
    if (item_layout_encode(self, spec->name))
        return self;
    free(self->wire);
    free(self);
    return NULL;
}

/* ---- look-up */

static bool same_fields(const struct item_layout *layout, const Replay__Field *fields, uint32_t n)
{
    if (layout->n_fields != n)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const Replay__Field *a = &layout->fields[i], *b = &fields[i];
        if (a->column != b->column || a->start != b->start || a->count != b->count || a->stride != b->stride ||
            a->squeeze != b->squeeze || strcmp(a->name, b->name) != 0)
            return false;
    }
    return true;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static uint64_t hash_fields(uint32_t table, const Replay__Field *fields, uint32_t n)
{
    uint64_t hash = mix(n, table);
    for (uint32_t i = 0; i < n; i++) {
        hash = mix(hash, (uint64_t)fields[i].column << 32 | (uint32_t)fields[i].start);
        hash = mix(hash, (uint64_t)fields[i].count << 32 | fields[i].stride << 1 | (fields[i].squeeze != 0));
        for (const char *at = fields[i].name; *at; at++)
            hash = mix(hash, (uint8_t)*at);
    }
    return hash;
}

rp_status item_layouts_get(struct item_layouts *self, const struct item_slices *item, uint32_t table,
                           struct item_layout **out, struct item_steps *span, rp_error *err)
{
    uint32_t n = item->n;
    RP_TRY(scratch_fill(self, item, span, err));
    struct item_layout *layout = self->last[table];
    if (layout && same_fields(layout, self->scratch, n)) {
        *out = layout;
        return RP_OK;
    }
    uint64_t hash = hash_fields(table, self->scratch, n);
    layout = self->buckets[hash % ITEM_LAYOUT_BUCKETS];
    while (layout && (layout->hash != hash || layout->table != table || !same_fields(layout, self->scratch, n)))
        layout = layout->chain;
    if (!layout) {
        RP_TRY(check_fields(self->scratch, item, err));
        if (self->count == ITEM_LAYOUTS_MAX)
            return err_set(err, RP_RESOURCE_EXHAUSTED,
                           "items of this writer have %u different layouts already: use slices with count 0 for items "
                           "of varying length",
                           ITEM_LAYOUTS_MAX);
        layout = item_layout_new(self->scratch, n, item->table);
        if (!layout)
            return err_set(err, RP_NO_MEMORY, "no memory for a layout");
        layout->table = table;
        layout->hash = hash;
        self->count++;
        layout->chain = self->buckets[hash % ITEM_LAYOUT_BUCKETS];
        self->buckets[hash % ITEM_LAYOUT_BUCKETS] = layout;
    }
    self->last[table] = layout;
    *out = layout;
    return RP_OK;
}
