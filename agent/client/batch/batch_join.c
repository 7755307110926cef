/* Puts rows of several batches into one. A field's rows of one batch lie one after another, so each piece is one copy, unless items
 * have different numbers of steps. Where a piece goes is known before the first is copied, so pieces are copied in any order and by
 * any threads. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch.h"
#include "proto/base/error.h"

#define NARROW 5u /* arrays of 4 bytes per item: BATCH_NARROW, source, shard, weight */

/* A field of a new batch. */
struct joined_field {
    const rp_field_view
        *like;      /* in the first batch that it takes rows of, which may be gone when other pieces are copied */
    uint64_t steps; /* most of any row; 1: the field has no steps */
    uint64_t step_bytes;
    bool variable;
    uint64_t at; /* offset in the batch's memory, unless it is posted */
};

/* A new batch: pieces first ... first + n_pieces - 1. */
struct joined {
    struct rp_batch *batch;
    uint32_t first, n_pieces;
    uint32_t n, n_fields;
    uint64_t waited_ns; /* inside the broker, by the items that waited longest */
    struct joined_field *fields;
    uint64_t lengths, names, data, total; /* offsets in its memory */
};

struct piece {
    struct batch_rows rows;
    uint32_t given; /* its number, as the caller gave it */
    uint32_t batch; /* that it goes to */
    uint32_t at;    /* first row there */
};

struct batch_join {
    struct batch_pool *pool;
    struct batch_join_options options;
    uint32_t n, n_batches;
    struct piece *pieces;
    uint32_t *place; /* of the piece that the caller gave as number i */
    struct joined *batches;
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

/* Moves the pieces that fit to the first one to the front, in their order, and returns how many there are. */
static uint32_t group_front(struct piece *pieces, uint32_t n)
{
    uint32_t same = 1;
    for (uint32_t i = 1; i < n; i++) {
        if (!batches_fit(pieces[0].rows.from, pieces[i].rows.from))
            continue;
        struct piece moved = pieces[i];
        memmove(&pieces[same + 1], &pieces[same], (i - same) * sizeof *pieces);
        pieces[same++] = moved;
    }
    return same;
}

/* ---- the shape of a new batch ---- */

/* Returns the field of that name, which is most often the one at that index. */
static const rp_field_view *field_in(const struct rp_batch *from, uint32_t f, const char *name)
{
    return strcmp(from->fields[f].name, name) == 0 ? &from->fields[f] : rp_batch_find(from, name);
}

static void plan_field(const struct batch_join *join, struct joined *self, uint32_t f)
{
    const rp_field_view *like = &join->pieces[self->first].rows.from->fields[f];
    struct joined_field *field = &self->fields[f];
    *field = (struct joined_field){.like = like, .steps = 1, .variable = like->lengths != NULL};
    uint64_t per_item = like->shape[0] ? like->bytes / like->shape[0] : 0;
    if (!field->variable) {
        field->step_bytes = per_item;
        return;
    }
    field->step_bytes = like->shape[1] ? per_item / like->shape[1] : 0;
    for (uint32_t i = self->first; i < self->first + self->n_pieces; i++) {
        const struct batch_rows *rows = &join->pieces[i].rows;
        const rp_field_view *view = field_in(rows->from, f, like->name);
        for (uint32_t k = rows->first; k < rows->first + rows->n; k++)
            field->steps = view->lengths[k] > field->steps ? view->lengths[k] : field->steps;
        if (field->step_bytes == 0 && view->shape[0] && view->shape[1])
            field->step_bytes = view->bytes / view->shape[0] / view->shape[1];
    }
}

static rp_status plan(const struct batch_join *join, struct joined *self, rp_error *err)
{
    uint64_t most = join->options.max_bytes ? join->options.max_bytes : UINT64_MAX / 4;
    uint64_t bytes = 0, names = 0, variable = 0;
    for (uint32_t f = 0; f < self->n_fields; f++) {
        struct joined_field *field = &self->fields[f];
        uint64_t size;
        plan_field(join, self, f);
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
    self->lengths = align64((uint64_t)self->n * (BATCH_WIDE * 8 + NARROW * 4));
    self->names = self->lengths + variable * self->n * 4;
    self->data = align64(self->names + names);
    self->total = self->data + bytes;
    return RP_OK;
}

/* ---- its memory ---- */

/* Takes posted memory that fits; NULL: there is none. memory and misfit say so if it does not fit. */
static rp_buffer *take_posted(struct batch_pool *pool, const struct joined *self, uint32_t *memory, rp_error *misfit)
{
    uint32_t n = 0;
    rp_buffer *posted = self->n_fields ? batch_pool_take_posted(pool, &n) : NULL;
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

/* Returns array k of 8 bytes per item, and array k of 4 bytes per item. */
static void *wide(const struct joined *self, uint32_t k)
{
    return self->batch->memory + (size_t)k * self->n * 8;
}

static uint32_t *narrow(const struct joined *self, uint32_t k)
{
    return (uint32_t *)(void *)(self->batch->memory + (size_t)self->n * (BATCH_WIDE * 8 + k * 4));
}

enum { TIMES, SESSION, SOURCE, SHARD, WEIGHT };

static void set_arrays(const struct joined *self, const struct batch_join_options *options)
{
    self->batch->arrays = (rp_batch_arrays){.struct_size = sizeof self->batch->arrays,
                                            .n = self->n,
                                            .key = wide(self, 0),
                                            .priority = wide(self, 1),
                                            .probability = wide(self, 2),
                                            .age_ns = wide(self, 3),
                                            .policy = wide(self, 4),
                                            .step = wide(self, 5),
                                            .times_sampled = narrow(self, TIMES),
                                            .session = narrow(self, SESSION),
                                            .weight = (const float *)(const void *)narrow(self, WEIGHT),
                                            .source = options->sources ? narrow(self, SOURCE) : NULL,
                                            .shard = options->shards ? narrow(self, SHARD) : NULL};
}

static void set_views(const struct joined *self, const rp_buffer *posted)
{
    struct rp_batch *batch = self->batch;
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
        if (field->variable)
            lengths += self->n;
    }
}

static rp_status make_batch(const struct batch_join *join, struct joined *self, rp_error *err)
{
    uint32_t memory;
    rp_error misfit = {0};
    RP_TRY(plan(join, self, err));
    rp_buffer *posted = take_posted(join->pool, self, &memory, &misfit);
    self->batch = batch_pool_take(join->pool, self->n_fields, posted ? self->data : self->total + 64);
    if (!self->batch) {
        free(posted);
        return err_set(err, RP_NO_MEMORY, "no memory for a batch of %u items", self->n);
    }
    self->batch->info = (rp_batch_info){.struct_size = sizeof self->batch->info,
                                        .n = self->n,
                                        .n_fields = self->n_fields,
                                        .waited_ns = self->waited_ns,
                                        .memory = memory};
    size_t size = strnlen(misfit.text, sizeof self->batch->text - 1);
    memcpy(self->batch->text, misfit.text, size);
    self->batch->text[size] = '\0';
    self->batch->in_reply = (struct batch_in_reply){0};
    set_arrays(self, &join->options);
    set_views(self, posted);
    free(posted);
    return RP_OK;
}

/* ---- life ---- */

static uint64_t longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Groups the pieces, and gives each its place. */
static rp_status make_batches(struct batch_join *self, rp_error *err)
{
    for (uint32_t done = 0; done < self->n;) {
        struct joined *made = &self->batches[self->n_batches];
        made->first = done;
        made->n_pieces = group_front(self->pieces + done, self->n - done);
        made->n_fields = self->pieces[done].rows.from->info.n_fields;
        made->fields = malloc((made->n_fields + 1) * sizeof *made->fields);
        if (!made->fields)
            return err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
        for (uint32_t i = done; i < done + made->n_pieces; i++) {
            self->pieces[i].batch = self->n_batches;
            self->pieces[i].at = made->n;
            self->place[self->pieces[i].given] = i;
            made->n += self->pieces[i].rows.n;
            made->waited_ns = longer(made->waited_ns, self->pieces[i].rows.from->info.waited_ns);
        }
        self->n_batches++;
        RP_TRY(make_batch(self, made, err));
        done += made->n_pieces;
    }
    return RP_OK;
}

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
    self->place = malloc((n + 1) * sizeof *self->place);
    self->batches = calloc(n + 1, sizeof *self->batches);
    for (uint32_t i = 0; self->pieces && i < n; i++)
        self->pieces[i] = (struct piece){.rows = rows[i], .given = i};
    rp_status status = RP_OK;
    if (!self->pieces || !self->place || !self->batches)
        status = err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
    else
        status = make_batches(self, err);
    if (status != RP_OK)
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
    free(self->place);
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
        float *weight = (float *)(void *)narrow(made, WEIGHT);
        if (join->options.beta != 0)
            batch_weights(wide(made, 2), made->n, join->options.beta, weight);
        for (uint32_t k = 0; k < made->n && join->options.beta == 0; k++)
            weight[k] = 1;
        batch_pool_note_batch(join->pool, made->batch);
        *end = made->batch;
        end = &made->batch->next;
    }
    join_free(join);
    return first;
}

/* ---- copying ---- */

/* Finds the arrays of a batch, in its memory or in the reply. */
static void list_arrays(const struct rp_batch *batch, struct batch_in_reply *out)
{
    const rp_batch_arrays *arrays = &batch->arrays;
    const void *wide[] = {arrays->key,    arrays->priority, arrays->probability,
                          arrays->age_ns, arrays->policy,   arrays->step};
    const void *narrow[] = {arrays->times_sampled, arrays->session};
    *out = batch->in_reply;
    for (uint32_t k = 0; k < BATCH_WIDE && !out->step; k++)
        out->wide[k] = (struct pb_array){wide[k], batch->info.n};
    for (uint32_t k = 0; k < BATCH_NARROW && !out->step; k++)
        out->narrow[k] = (struct pb_array){narrow[k], batch->info.n};
}

static void copy_arrays(const struct joined *self, const struct piece *piece)
{
    const struct batch_rows *rows = &piece->rows;
    struct batch_in_reply from;
    list_arrays(rows->from, &from);
    for (uint32_t k = 0; k < BATCH_WIDE; k++)
        batch_expand(&from.wide[k], rows->first, rows->n, 8, (uint8_t *)wide(self, k) + (size_t)piece->at * 8);
    for (uint32_t k = 0; k < BATCH_NARROW; k++)
        batch_expand(&from.narrow[k], rows->first, rows->n, 4, narrow(self, k) + piece->at);
    double *probability = wide(self, 2);
    for (uint32_t j = piece->at; j < piece->at + rows->n; j++) {
        probability[j] *= rows->share;
        narrow(self, SOURCE)[j] = rows->source;
        narrow(self, SHARD)[j] = rows->shard;
    }
}

/* Returns a row of a field; `bytes` is the size of each, if they lie in the batch's memory. */
static const uint8_t *row_of(const struct rp_batch *batch, const rp_field_view *field, uint32_t i, uint64_t bytes)
{
    const struct batch_in_reply *in_reply = &batch->in_reply;
    uint32_t chunk = i;
    if (in_reply->step && in_reply->index)
        memcpy(&chunk, in_reply->index + (size_t)i * 4, 4);
    return (const uint8_t *)field->data + chunk * (in_reply->step ? in_reply->step : bytes);
}

/* Copies rows of a field whose items have different numbers of steps, and pads them with 0. */
static void copy_padded(const struct joined_field *field, const rp_field_view *from, const struct batch_rows *rows,
                        uint8_t *out)
{
    uint64_t to_bytes = field->steps * field->step_bytes, from_bytes = from->shape[1] * field->step_bytes;
    for (uint32_t i = 0; i < rows->n; i++) {
        const uint8_t *data = row_of(rows->from, from, rows->first + i, from_bytes);
        uint64_t bytes = from->lengths[rows->first + i] * field->step_bytes;
        if (bytes)
            memcpy(out + i * to_bytes, data, bytes);
        memset(out + i * to_bytes + bytes, 0, to_bytes - bytes);
    }
}

static void copy_even(const rp_field_view *from, const struct batch_rows *rows, uint64_t bytes, uint8_t *out)
{
    const struct batch_in_reply *in_reply = &rows->from->in_reply;
    if (!in_reply->step || (in_reply->step == bytes && !in_reply->index)) {
        memcpy(out, row_of(rows->from, from, rows->first, bytes), rows->n * bytes);
        return;
    }
    for (uint32_t i = 0; i < rows->n; i++)
        memcpy(out + i * bytes, row_of(rows->from, from, rows->first + i, bytes), bytes);
}

void batch_join_copy(struct batch_join *self, uint32_t i)
{
    const struct piece *piece = &self->pieces[self->place[i]];
    const struct joined *made = &self->batches[piece->batch];
    const struct batch_rows *rows = &piece->rows;
    copy_arrays(made, piece);
    for (uint32_t f = 0; f < made->n_fields; f++) {
        const struct joined_field *field = &made->fields[f];
        const rp_field_view *to = &made->batch->fields[f], *from = field_in(rows->from, f, to->name);
        uint64_t item_bytes = field->steps * field->step_bytes;
        uint8_t *out = (uint8_t *)to->data + piece->at * item_bytes;
        if (field->variable) {
            copy_padded(field, from, rows, out);
            memcpy((uint32_t *)to->lengths + piece->at, from->lengths + rows->first, rows->n * sizeof(uint32_t));
        } else if (item_bytes) {
            copy_even(from, rows, item_bytes, out);
        }
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
