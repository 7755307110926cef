/* Puts rows of several batches into one. A field's rows of one batch lie one after another, so each piece is one copy, unless items
 * have different numbers of steps. Where a piece goes is known before the first is copied, so pieces are copied in any order and by
 * any threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/sampler/batch.h"
#include "proto/base/error.h"

/* A new batch, of pieces whose fields are those of `like`. */
struct joined {
    struct rp_batch *batch;
    const struct rp_batch *like;
    uint32_t n;
    uint64_t waited_ns; /* inside the broker, by the items that waited longest */
    struct batch_spec_field *fields;
};

struct piece {
    struct batch_rows rows;
    uint32_t batch; /* that it goes to */
    uint32_t at;    /* first row there */
};

struct batch_join {
    struct batch_pool *pool;
    struct batch_join_options options;
    uint32_t n, n_batches;
    struct piece *pieces;
    struct joined *batches;
};

bool batch_pieces_add(struct batch_pieces *self, const struct batch_rows *rows)
{
    if (self->n == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 64;
        struct batch_rows *grown = realloc(self->rows, capacity * sizeof *grown);
        if (!grown)
            return false;
        self->rows = grown;
        self->capacity = capacity;
    }
    self->rows[self->n++] = *rows;
    return true;
}

/* ---- which batches fit together ---- */

/* Returns the name of a field in which the batches differ; NULL: they fit together. */
static const char *misfit(const struct rp_batch *a, const struct rp_batch *b)
{
    const uint32_t of_steps = a->info.packed ? 1 : 2; /* the first dimension of a step */
    if (a->info.n_fields < b->info.n_fields)
        return misfit(b, a);
    for (uint32_t f = 0; f < a->info.n_fields; f++) {
        const rp_field_view *one = &a->fields[f], *other = rp_batch_find(b, one->name);
        if (!other || one->dtype != other->dtype || one->rank != other->rank || !one->lengths != !other->lengths ||
            one->squeezed != other->squeezed)
            return one->name;
        for (uint32_t k = one->lengths ? of_steps : 1; k < one->rank; k++) /* numbers of items and steps may differ */
            if (one->shape[k] != other->shape[k])
                return one->name;
    }
    return NULL;
}

/* Gives each piece its place in the first batch that it fits into. */
static void place_pieces(struct batch_join *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        struct piece *piece = &self->pieces[i];
        const struct rp_batch *from = piece->rows.from;
        uint32_t k = 0;
        while (k < self->n_batches && misfit(self->batches[k].like, from))
            k++;
        struct joined *made = &self->batches[k];
        if (k == self->n_batches) {
            made->like = from;
            self->n_batches++;
        }
        piece->batch = k;
        piece->at = made->n;
        made->n += piece->rows.n;
        made->waited_ns = made->waited_ns > from->info.waited_ns ? made->waited_ns : from->info.waited_ns;
    }
}

/* ---- the shape of a new batch ---- */

/* Returns the field of that name, which is most often the one at that index. */
static const rp_field_view *field_in(const struct rp_batch *from, uint32_t f, const char *name)
{
    return strcmp(from->fields[f].name, name) == 0 ? &from->fields[f] : rp_batch_find(from, name);
}

/* Returns the sum of n lengths, from the first on. */
static uint64_t steps_of(const uint32_t *lengths, uint32_t first, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = first; i < first + n; i++)
        sum += lengths[i];
    return sum;
}

static void batch_join_plan_field(const struct batch_join *join, uint32_t batch, uint32_t f)
{
    const rp_field_view *like = &join->batches[batch].like->fields[f];
    struct batch_spec_field *field = &join->batches[batch].fields[f];
    *field = (struct batch_spec_field){.view = *like, .steps = 1, .variable = like->lengths != NULL};
    field->packed = join->options.packed && field->variable;
    uint64_t steps = like->shape[0] * (field->variable && !field->packed ? like->shape[1] : 1);
    for (uint32_t i = 0; i < join->n && field->variable; i++) {
        const struct batch_rows *rows = &join->pieces[i].rows;
        if (join->pieces[i].batch != batch)
            continue;
        const uint32_t *lengths = field_in(rows->from, f, like->name)->lengths;
        field->rows += field->packed ? steps_of(lengths, rows->first, rows->n) : 0;
        for (uint32_t k = rows->first; k < rows->first + rows->n && !field->packed; k++)
            field->steps = lengths[k] > field->steps ? lengths[k] : field->steps;
    }
    field->item_bytes = steps ? field->steps * (like->bytes / steps) : 0;
    if (field->variable && !field->packed)
        field->view.shape[1] = field->steps;
}

/* Tells the steps of each item: where a piece goes in a packed field follows from them. */
static void copy_lengths(const struct batch_join *join)
{
    for (uint32_t i = 0; i < join->n; i++) {
        const struct piece *piece = &join->pieces[i];
        const struct rp_batch *to = join->batches[piece->batch].batch;
        for (uint32_t f = 0; f < to->info.n_fields; f++)
            if (to->fields[f].lengths)
                memcpy((uint32_t *)to->fields[f].lengths + piece->at,
                       field_in(piece->rows.from, f, to->fields[f].name)->lengths + piece->rows.first,
                       piece->rows.n * sizeof(uint32_t));
    }
}

static rp_status make_batch(const struct batch_join *join, uint32_t batch, rp_error *err)
{
    struct joined *self = &join->batches[batch];
    uint64_t most = join->options.max_bytes ? join->options.max_bytes : UINT64_MAX / 4;
    uint32_t n_fields = self->like->info.n_fields;
    self->fields = malloc((n_fields + 1) * sizeof *self->fields);
    if (!self->fields)
        return err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
    struct batch_spec spec = {.n = self->n,
                              .n_fields = n_fields,
                              .fields = self->fields,
                              .max_bytes = most,
                              .limit = most,
                              .sources = join->options.sources,
                              .shards = join->options.shards,
                              .groups = self->like->n_wide > BATCH_WIDE,
                              .packed = join->options.packed};
    for (uint32_t f = 0; f < n_fields; f++)
        batch_join_plan_field(join, batch, f);
    RP_TRY(batch_make(join->pool, &spec, &self->batch, err));
    self->batch->info.waited_ns = self->waited_ns;
    return RP_OK;
}

/* ---- life ---- */

rp_status batch_join_new(struct batch_pool *pool, const struct batch_rows *rows, uint32_t n,
                         const struct batch_join_options *options, struct batch_join **out, rp_error *err)
{
    struct batch_join *self = calloc(1, sizeof *self);
    *out = NULL;
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
    self->pool = batch_pool_ref(pool);
    self->options = *options;
    self->n = n;
    self->pieces = malloc((n + 1) * sizeof *self->pieces);
    self->batches = calloc(n + 1, sizeof *self->batches);
    for (uint32_t i = 0; self->pieces && i < n; i++)
        self->pieces[i] = (struct piece){.rows = rows[i]};
    rp_status status = RP_OK;
    if (self->pieces && self->batches)
        place_pieces(self);
    else
        status = err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
    for (uint32_t i = 0; i < self->n_batches && status == RP_OK; i++)
        status = make_batch(self, i, err);
    if (status == RP_OK)
        copy_lengths(self);
    else
        batch_join_drop(&self);
    *out = self;
    return status;
}

static void join_free(struct batch_join *self)
{
    for (uint32_t i = 0; self->batches && i < self->n_batches; i++)
        free(self->batches[i].fields);
    batch_pool_unref(&self->pool);
    free(self->pieces);
    free(self->batches);
    free(self);
}

void batch_join_drop(struct batch_join **self)
{
    struct batch_join *join = *self;
    *self = NULL;
    if (!join)
        return;
    for (uint32_t i = 0; join->batches && i < join->n_batches; i++)
        rp_batch_release(&join->batches[i].batch);
    join_free(join);
}

struct rp_batch *batch_join_finish(struct batch_join **self)
{
    struct batch_join *join = *self;
    struct rp_batch *first = NULL, **end = &first;
    *self = NULL;
    for (uint32_t i = 0; i < join->n_batches; i++) {
        const struct joined *made = &join->batches[i];
        batch_set_weights(made->batch, join->options.beta);
        if (join->n_batches > 1)
            snprintf(made->batch->text, sizeof made->batch->text,
                     "the items of the batch do not all have the same fields: '%s' differs",
                     misfit(join->batches[0].batch, join->batches[1].batch));
        *end = made->batch;
        end = &made->batch->next;
    }
    join_free(join);
    return first;
}

/* ---- copying ---- */

/* Finds the arrays of a batch, in its memory or in the reply. */
static void batch_join_list_arrays(const struct rp_batch *batch, struct batch_in_reply *out)
{
    *out = batch->in_reply;
    for (uint32_t k = 0; k < batch->n_wide && !out->step; k++)
        out->wide[k] = (struct pb_array){batch_wide(batch, k), batch->info.n};
    for (uint32_t k = 0; k < BATCH_NARROW && !out->step; k++)
        out->narrow[k] = (struct pb_array){(const void *)batch_narrow(batch, k), batch->info.n};
}

static void copy_arrays(const struct joined *self, const struct piece *piece)
{
    const struct batch_rows *rows = &piece->rows;
    struct batch_in_reply from;
    batch_join_list_arrays(rows->from, &from);
    for (uint32_t k = 0; k < self->batch->n_wide; k++)
        batch_expand(&from.wide[k], rows->first, rows->n, 8,
                     (uint8_t *)batch_wide(self->batch, k) + (size_t)piece->at * 8);
    for (uint32_t k = 0; k < BATCH_NARROW; k++)
        batch_expand(&from.narrow[k], rows->first, rows->n, 4, batch_narrow(self->batch, k) + piece->at);
    double *probability = (double *)batch_wide(self->batch, 2) + piece->at, share = rows->share;
    for (uint32_t i = 0; i < rows->n && share != 1; i++)
        probability[i] *= share;
    const uint32_t *sources = rows->from->arrays.source, *shards = rows->from->arrays.shard;
    uint32_t *source = batch_narrow(self->batch, BATCH_SOURCE) + piece->at;
    for (uint32_t i = 0; i < rows->n && self->batch->arrays.source; i++)
        source[i] = sources ? sources[rows->first + i] : rows->source;
    uint32_t *shard = batch_narrow(self->batch, BATCH_SHARD) + piece->at, number = rows->shard;
    for (uint32_t i = 0; i < rows->n && self->batch->arrays.shard; i++)
        shard[i] = shards ? shards[rows->first + i] : number;
}

/* Returns a row of a field; `bytes` is the size of each, if they lie in the batch's memory. */
static const uint8_t *row_of(const struct rp_batch *batch, const rp_field_view *field, uint32_t i, uint64_t bytes)
{
    const struct batch_in_reply *in_reply = &batch->in_reply;
    size_t at = in_reply->step ? batch_chunk_at(in_reply->index, i) * in_reply->step : i * bytes;
    return (const uint8_t *)field->data + at;
}

/* Copies rows of a field whose items have different numbers of steps, and pads them with 0. */
static void copy_padded(const struct batch_spec_field *field, const rp_field_view *from, const struct batch_rows *rows,
                        uint8_t *out)
{
    uint64_t to_bytes = field->item_bytes, step_bytes = to_bytes / field->steps;
    uint64_t from_bytes = from->shape[1] * step_bytes;
    for (uint32_t i = 0; i < rows->n; i++) {
        const uint8_t *data = row_of(rows->from, from, rows->first + i, from_bytes);
        uint64_t bytes = from->lengths[rows->first + i] * step_bytes;
        if (bytes)
            memcpy(out + i * to_bytes, data, bytes);
        memset(out + i * to_bytes + bytes, 0, to_bytes - bytes);
    }
}

/* Copies the steps of a packed field, which lie together in both batches. bytes: of a step. */
static void copy_packed(const struct piece *piece, uint64_t bytes, const rp_field_view *from, const rp_field_view *to)
{
    const struct batch_rows *rows = &piece->rows;
    uint64_t size = steps_of(from->lengths, rows->first, rows->n) * bytes;
    if (size)
        memcpy((uint8_t *)to->data + steps_of(to->lengths, 0, piece->at) * bytes,
               (const uint8_t *)from->data + steps_of(from->lengths, 0, rows->first) * bytes, size);
}

static void copy_even(const rp_field_view *from, const struct batch_rows *rows, uint64_t bytes, uint8_t *out)
{
    const struct batch_in_reply *in_reply = &rows->from->in_reply;
    const size_t step = in_reply->step;
    const uint8_t *data = from->data, *index = step ? in_reply->index : NULL;
    if (!step || (step == bytes && !index)) {
        memcpy(out, data + rows->first * bytes, rows->n * bytes);
        return;
    }
    for (uint32_t i = rows->first; i < rows->first + rows->n; i++, out += bytes)
        memcpy(out, data + batch_chunk_at(index, i) * step, bytes);
}

void batch_join_copy(struct batch_join *self, uint32_t i)
{
    const struct piece *piece = &self->pieces[i];
    const struct joined *made = &self->batches[piece->batch];
    const struct batch_rows *rows = &piece->rows;
    copy_arrays(made, piece);
    for (uint32_t f = 0; f < made->batch->info.n_fields; f++) {
        const struct batch_spec_field *field = &made->fields[f];
        const rp_field_view *to = &made->batch->fields[f], *from = field_in(rows->from, f, to->name);
        uint64_t item_bytes = field->item_bytes;
        uint8_t *out = (uint8_t *)to->data + (field->packed ? 0 : piece->at * item_bytes);
        if (field->packed)
            copy_packed(piece, item_bytes, from, to);
        else if (field->variable)
            copy_padded(field, from, rows, out);
        else if (item_bytes)
            copy_even(from, rows, item_bytes, out);
    }
}

rp_status batch_join(struct batch_pool *pool, const struct batch_rows *rows, uint32_t n,
                     const struct batch_join_options *options, struct rp_batch **out, rp_error *err)
{
    struct batch_join *self;
    *out = NULL;
    RP_TRY(batch_join_new(pool, rows, n, options, &self, err));
    for (uint32_t i = 0; i < n; i++)
        batch_join_copy(self, i);
    *out = batch_join_finish(&self);
    return RP_OK;
}
