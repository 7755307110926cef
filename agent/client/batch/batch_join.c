/* Puts rows of several batches into one. A field's rows of one batch lie one after another, so each piece is one copy, unless items
 * have different numbers of steps. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch.h"
#include "proto/base/error.h"

#define WIDE 6u   /* arrays of 8 bytes per item */
#define NARROW 5u /* arrays of 4 bytes per item */

/* A field of the new batch. */
struct joined_field {
    const rp_field_view *like; /* in the first batch */
    uint64_t steps;            /* most of any batch; 1: the field has no steps */
    uint64_t step_bytes;
    bool variable;
    uint64_t at; /* offset in the batch's memory, unless it is posted */
};

struct join {
    struct batch_pool *pool;
    const struct batch_rows *rows;
    uint32_t n_rows; /* pieces */
    const struct batch_join_options *options;
    uint32_t n, n_fields; /* of the new batch */
    struct joined_field *fields;
    uint64_t lengths, names, data, total; /* offsets in its memory */
};

static uint64_t align64(uint64_t value)
{
    return (value + 63) & ~UINT64_C(63);
}

/* ---- which batches fit together ---- */

/* Returns the first dimension of one step: all before it may differ between batches. */
static uint32_t first_fixed(const rp_field_view *a)
{
    return a->lengths ? 2 : 1;
}

static bool field_fits(const rp_field_view *a, const rp_field_view *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank || !a->lengths != !b->lengths)
        return false;
    for (uint32_t k = first_fixed(a); k < a->rank; k++)
        if (a->shape[k] != b->shape[k])
            return false;
    return true;
}

static bool batches_fit(const struct rp_batch *a, const struct rp_batch *b)
{
    if (a->info.n_fields != b->info.n_fields)
        return false;
    for (uint32_t f = 0; f < a->info.n_fields; f++) {
        const rp_field_view *other = rp_batch_find(b, a->fields[f].name);
        if (!other || !field_fits(&a->fields[f], other))
            return false;
    }
    return true;
}

/* ---- one batch ---- */

static const rp_field_view *field_in(const struct join *self, uint32_t piece, uint32_t f)
{
    const struct rp_batch *from = self->rows[piece].from;
    const rp_field_view *same = &from->fields[f], *like = self->fields[f].like;
    return same == like || strcmp(same->name, like->name) == 0 ? same : rp_batch_find(from, like->name);
}

static void plan_field(struct join *self, uint32_t f)
{
    const rp_field_view *like = &self->rows[0].from->fields[f];
    struct joined_field *field = &self->fields[f];
    *field = (struct joined_field){.like = like, .steps = 1, .variable = like->lengths != NULL};
    uint64_t per_item = like->shape[0] ? like->bytes / like->shape[0] : 0;
    if (!field->variable) {
        field->step_bytes = per_item;
        return;
    }
    field->step_bytes = like->shape[1] ? per_item / like->shape[1] : 0;
    for (uint32_t i = 0; i < self->n_rows; i++) {
        const rp_field_view *view = field_in(self, i, f);
        if (view->shape[1] > field->steps)
            field->steps = view->shape[1];
        if (field->step_bytes == 0 && view->shape[0] && view->shape[1])
            field->step_bytes = view->bytes / view->shape[0] / view->shape[1];
    }
}

static rp_status plan(struct join *self, rp_error *err)
{
    uint64_t most = self->options->max_bytes ? self->options->max_bytes : UINT64_MAX / 4;
    uint64_t bytes = 0, names = 0, variable = 0;
    for (uint32_t f = 0; f < self->n_fields; f++) {
        struct joined_field *field = &self->fields[f];
        uint64_t size;
        plan_field(self, f);
        field->at = bytes;
        if (__builtin_mul_overflow(field->steps * field->step_bytes, (uint64_t)self->n, &size) || size > most ||
            bytes > most - size)
            return err_set(err, RP_RESOURCE_EXHAUSTED,
                           "a batch of %u items with field '%s' of %llu steps would take more than max_bytes (%llu)",
                           self->n, field->like->name, (unsigned long long)field->steps, (unsigned long long)most);
        bytes = align64(bytes + size);
        names += strlen(field->like->name) + 1;
        variable += field->variable;
    }
    self->lengths = align64((uint64_t)self->n * (WIDE * 8 + NARROW * 4));
    self->names = self->lengths + variable * self->n * 4;
    self->data = align64(self->names + names);
    self->total = self->data + bytes;
    return RP_OK;
}

/* Takes posted memory that fits; NULL: there is none. memory and the batch's text say so if it does not fit. */
static rp_buffer *take_posted(const struct join *self, uint32_t *memory, rp_error *misfit)
{
    uint32_t n = 0;
    rp_buffer *posted = self->n_fields ? batch_pool_take_posted(self->pool, &n) : NULL;
    *memory = posted ? RP_BATCH_CALLER : RP_BATCH_LIBRARY;
    if (posted && n != self->n_fields) {
        err_set(misfit, RP_INVALID_ARGUMENT, "%u buffers were posted for %u fields", n, self->n_fields);
        *memory = RP_BATCH_MISFIT;
    }
    for (uint32_t f = 0; f < self->n_fields && *memory == RP_BATCH_CALLER; f++) {
        uint64_t need = self->fields[f].steps * self->fields[f].step_bytes * self->n;
        if (posted[f].bytes >= need)
            continue;
        err_set(misfit, RP_INVALID_ARGUMENT, "the buffer posted for field '%s' has %llu bytes, this batch needs %llu",
                self->fields[f].like->name, (unsigned long long)posted[f].bytes, (unsigned long long)need);
        *memory = RP_BATCH_MISFIT;
    }
    if (*memory == RP_BATCH_MISFIT) {
        free(posted);
        posted = NULL;
    }
    return posted;
}

static void copy_arrays(const struct join *self, struct rp_batch *batch)
{
    uint32_t n = self->n;
    uint8_t *wide[WIDE], *at = batch->memory;
    for (uint32_t k = 0; k < WIDE; k++, at += (size_t)n * 8)
        wide[k] = at;
    uint32_t *times = (uint32_t *)(void *)at, *session = times + n, *source = session + n, *shard = source + n;
    float *weight = (float *)(void *)(shard + n);
    double *probability = (double *)(void *)wide[2];
    for (uint32_t i = 0, to = 0; i < self->n_rows; to += self->rows[i++].n) {
        const struct batch_rows *rows = &self->rows[i];
        const rp_batch_arrays *from = &rows->from->arrays;
        const void *columns[WIDE] = {from->key,    from->priority, from->probability,
                                     from->age_ns, from->policy,   from->step};
        for (uint32_t k = 0; k < WIDE; k++)
            memcpy(wide[k] + (size_t)to * 8, (const uint8_t *)columns[k] + (size_t)rows->first * 8,
                   (size_t)rows->n * 8);
        memcpy(times + to, from->times_sampled + rows->first, rows->n * sizeof *times);
        memcpy(session + to, from->session + rows->first, rows->n * sizeof *session);
        for (uint32_t j = to; j < to + rows->n; j++) {
            probability[j] *= rows->share;
            source[j] = rows->source;
            shard[j] = rows->shard;
        }
    }
    if (self->options->beta != 0)
        batch_weights(probability, n, self->options->beta, weight);
    for (uint32_t j = 0; j < n && self->options->beta == 0; j++)
        weight[j] = 1;
    batch->arrays = (rp_batch_arrays){.struct_size = sizeof batch->arrays,
                                      .n = n,
                                      .key = (const uint64_t *)(const void *)wide[0],
                                      .priority = (const double *)(const void *)wide[1],
                                      .probability = probability,
                                      .age_ns = (const uint64_t *)(const void *)wide[3],
                                      .policy = (const uint64_t *)(const void *)wide[4],
                                      .step = (const uint64_t *)(const void *)wide[5],
                                      .times_sampled = times,
                                      .session = session,
                                      .weight = weight,
                                      .source = self->options->sources ? source : NULL,
                                      .shard = self->options->shards ? shard : NULL};
}

/* Copies a piece of a field whose items have different numbers of steps, and pads them with 0. */
static void copy_padded(const struct joined_field *field, const rp_field_view *from, const struct batch_rows *rows,
                        uint8_t *out)
{
    uint64_t to_bytes = field->steps * field->step_bytes, from_bytes = from->shape[1] * field->step_bytes;
    const uint8_t *data = from->data;
    for (uint32_t i = 0; i < rows->n; i++) {
        memcpy(out + i * to_bytes, data + (rows->first + i) * from_bytes, from_bytes);
        memset(out + i * to_bytes + from_bytes, 0, to_bytes - from_bytes);
    }
}

static void copy_field(const struct join *self, uint32_t f, uint8_t *out, uint32_t *lengths)
{
    const struct joined_field *field = &self->fields[f];
    uint64_t item_bytes = field->steps * field->step_bytes;
    for (uint32_t i = 0, to = 0; i < self->n_rows; to += self->rows[i++].n) {
        const struct batch_rows *rows = &self->rows[i];
        const rp_field_view *from = field_in(self, i, f);
        if (field->variable) {
            copy_padded(field, from, rows, out + to * item_bytes);
            memcpy(lengths + to, from->lengths + rows->first, rows->n * sizeof *lengths);
        } else if (item_bytes) {
            memcpy(out + to * item_bytes, (const uint8_t *)from->data + rows->first * item_bytes, rows->n * item_bytes);
        }
    }
}

static void copy_fields(const struct join *self, const rp_buffer *posted, struct rp_batch *batch)
{
    uint32_t *lengths = (uint32_t *)(void *)(batch->memory + self->lengths);
    char *name = (char *)batch->memory + self->names;
    for (uint32_t f = 0; f < self->n_fields; f++) {
        const struct joined_field *field = &self->fields[f];
        rp_field_view *out = &batch->fields[f];
        size_t size = strlen(field->like->name) + 1;
        *out = *field->like;
        memcpy(name, field->like->name, size);
        out->name = name;
        name += size;
        out->shape[0] = self->n;
        if (field->variable)
            out->shape[1] = field->steps;
        out->bytes = field->steps * field->step_bytes * self->n;
        out->data = posted ? posted[f].data : batch->memory + self->data + field->at;
        out->lengths = field->variable ? lengths : NULL;
        copy_field(self, f, out->data, lengths);
        if (field->variable)
            lengths += self->n;
    }
}

static rp_status join(struct join *self, struct rp_batch **out, rp_error *err)
{
    uint32_t memory;
    rp_error misfit = {0};
    RP_TRY(plan(self, err));
    rp_buffer *posted = take_posted(self, &memory, &misfit);
    struct rp_batch *batch = batch_pool_take(self->pool, self->n_fields, posted ? self->data : self->total + 64);
    if (!batch) {
        free(posted);
        return err_set(err, RP_NO_MEMORY, "no memory for a batch of %u items", self->n);
    }
    batch->info =
        (rp_batch_info){.struct_size = sizeof batch->info, .n = self->n, .n_fields = self->n_fields, .memory = memory};
    memcpy(batch->text, misfit.text, strnlen(misfit.text, sizeof batch->text - 1) + 1);
    batch->text[sizeof batch->text - 1] = '\0';
    copy_arrays(self, batch);
    copy_fields(self, posted, batch);
    free(posted);
    batch_pool_note_batch(self->pool, batch);
    *out = batch;
    return RP_OK;
}

/* Moves the pieces that fit to the first one to the front, in their order, and returns how many there are. */
static uint32_t group_front(struct batch_rows *rows, uint32_t n)
{
    uint32_t same = 1;
    for (uint32_t i = 1; i < n; i++) {
        if (!batches_fit(rows[0].from, rows[i].from))
            continue;
        struct batch_rows moved = rows[i];
        memmove(&rows[same + 1], &rows[same], (i - same) * sizeof *rows);
        rows[same++] = moved;
    }
    return same;
}

static uint32_t most_fields(const struct batch_rows *rows, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = rows[i].from->info.n_fields > most ? rows[i].from->info.n_fields : most;
    return most;
}

rp_status batch_join(struct batch_pool *pool, const struct batch_rows *rows, uint32_t n,
                     const struct batch_join_options *options, struct rp_batch **out, rp_error *err)
{
    struct rp_batch **end = out;
    struct batch_rows *sorted = malloc((n ? n : 1) * sizeof *sorted);
    struct joined_field *fields = malloc((most_fields(rows, n) + 1) * sizeof *fields);
    rp_status status = RP_OK;
    *out = NULL;
    if (!sorted || !fields)
        status = err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
    else
        memcpy(sorted, rows, n * sizeof *rows);
    for (uint32_t done = 0; done < n && status == RP_OK;) {
        struct join self = {.pool = pool,
                            .rows = sorted + done,
                            .n_rows = group_front(sorted + done, n - done),
                            .options = options,
                            .n_fields = sorted[done].from->info.n_fields,
                            .fields = fields};
        for (uint32_t i = 0; i < self.n_rows; i++)
            self.n += self.rows[i].n;
        status = join(&self, end, err);
        done += self.n_rows;
        if (*end)
            end = &(*end)->next;
    }
    free(sorted);
    free(fields);
    if (status != RP_OK)
        batch_list_release(out);
    return status;
}
