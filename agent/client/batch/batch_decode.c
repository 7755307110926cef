/* Makes a batch from a sample reply: computes the size of each field, takes memory, and fills it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch_decoder.h"
#include "proto/base/error.h"

#define SLAB_KEEP ((size_t)64 << 20)

static rp_status plan_field(struct batch_decoder *self, const struct wire_sampled *view, uint32_t f,
                            struct batch_plan *plan, rp_error *err)
{
    plan->field = batch_field_of(self, f, 0);
    plan->variable = plan->field->count == 0;
    for (uint32_t l = 1; l < self->n_layouts; l++)
        plan->variable |= batch_field_of(self, f, l)->count != plan->field->count;
    plan->rows = plan->field->count;
    if (self->regular.on) {
        uint32_t first;
        if (!batch_layout_rows(plan->field, self->regular.length, &first, &plan->rows))
            return batch_too_short(view, 0, plan->field, err);
    } else if (plan->variable || plan->rows > 1) {
        const struct batch_item *items = self->items.data;
        plan->rows = 0;
        for (uint32_t i = 0; i < view->n_items; i++) {
            uint32_t first, rows;
            if (!batch_layout_rows(batch_field_of(self, f, items[i].layout), items[i].length, &first, &rows))
                return batch_too_short(view, i, plan->field, err);
            if (rows > plan->rows)
                plan->rows = rows;
        }
    }
    plan->item_bytes = (uint64_t)plan->rows * plan->field->row_bytes;
    return RP_OK;
}

void batch_expand(const struct pb_array *from, uint32_t first, uint32_t n, size_t width, void *out)
{
    if (from->n > 1) {
        memcpy(out, from->data + first * width, n * width);
    } else if (from->n == 0) {
        memset(out, 0, n * width);
    } else if (width == 8) {
        uint64_t *to = out, value = pb_u64(from, 0);
        for (uint32_t i = 0; i < n; i++)
            to[i] = value;
    } else {
        uint32_t *to = out, value = pb_u32(from, 0);
        for (uint32_t i = 0; i < n; i++)
            to[i] = value;
    }
}

void batch_weights(const double *probability, uint32_t n, double beta, float *out)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (probability[i] > 0 && probability[i] < least)
            least = probability[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        double p = probability[i];
        double ratio = p > 0 && isfinite(p) ? least / p : 1;
        if (beta == 1)
            out[i] = (float)ratio;
        else if (beta == 0.5)
            out[i] = (float)sqrt(ratio);
        else
            out[i] = powf((float)ratio, (float)beta);
    }
}

/* Offsets of everything in one block of memory. */
struct shape_of_batch {
    uint64_t arrays;  /* 60 bytes for each item */
    uint64_t lengths; /* of the variable fields */
    uint64_t names;
    uint64_t names_bytes; /* all names, terminated */
    uint64_t fields;
    uint64_t total; /* including the fields */
    bool in_reply;  /* arrays and fields take no memory */
};

static uint64_t align64(uint64_t value)
{
    return (value + 63) & ~UINT64_C(63);
}

/* True if the items can be read where they are in the reply. */
static bool items_can_stay(const struct batch_decoder *self)
{
    const struct batch_plan *plans = self->plans.data;
    bool can = self->leave_items && self->regular.on;
    for (uint32_t f = 0; f < self->n_fields && can; f++)
        can = plans[f].field->stride == 1 || plans[f].rows == 1;
    return can;
}

static rp_status plan_batch(struct batch_decoder *self, const struct wire_sampled *view, struct shape_of_batch *out,
                            rp_error *err)
{
    if (!batch_vec_reserve(&self->plans, self->n_fields, sizeof(struct batch_plan)))
        return batch_no_memory(err);
    struct batch_plan *plans = self->plans.data;
    uint64_t n = view->n_items, most = self->options.max_bytes ? self->options.max_bytes : UINT64_MAX / 4;
    uint64_t limit = most > self->made_bytes ? most - self->made_bytes : 0;
    uint64_t variable = 0, bytes = 0, names = 0;
    for (uint32_t f = 0; f < self->n_fields; f++) {
        RP_TRY(plan_field(self, view, f, &plans[f], err));
        uint64_t size;
        plans[f].at = bytes;
        if (__builtin_mul_overflow(plans[f].item_bytes, n, &size) || size > limit || bytes > limit - size)
            return err_set(err, RP_RESOURCE_EXHAUSTED,
                           "a batch of %u items with field '%s' of %u steps would take more than max_bytes (%llu)",
                           view->n_items, plans[f].field->name, plans[f].rows, (unsigned long long)most);
        bytes = align64(bytes + size);
        variable += plans[f].variable;
        names += strlen(plans[f].field->name) + 1;
    }
    out->arrays = 0;
    out->in_reply = items_can_stay(self);
    out->lengths = out->in_reply ? 0 : align64(n * 60);
    out->names = out->lengths + variable * n * 4;
    out->names_bytes = names;
    out->fields = align64(out->names + names);
    out->total = out->fields + (out->in_reply ? 0 : bytes);
    self->made_bytes += bytes;
    return RP_OK;
}

/* Takes posted memory; NULL: there is none, or it does not fit, and misfit says why. */
static rp_buffer *take_posted(struct batch_decoder *self, uint32_t n_items, uint32_t *memory, rp_error *misfit)
{
    uint32_t n = 0;
    *memory = RP_BATCH_LIBRARY;
    rp_buffer *posted = self->n_fields ? batch_pool_take_posted(self->pool, &n) : NULL;
    if (!posted)
        return NULL;
    const struct batch_plan *plans = self->plans.data;
    *memory = RP_BATCH_CALLER;
    if (n != self->n_fields) {
        err_set(misfit, RP_INVALID_ARGUMENT, "%u buffers were posted for %u fields", n, self->n_fields);
        *memory = RP_BATCH_MISFIT;
    }
    for (uint32_t f = 0; f < self->n_fields && *memory == RP_BATCH_CALLER; f++) {
        uint64_t need = plans[f].item_bytes * n_items;
        if (posted[f].bytes < need) {
            err_set(misfit, RP_INVALID_ARGUMENT,
                    "the buffer posted for field '%s' has %llu bytes, this batch needs %llu", plans[f].field->name,
                    (unsigned long long)posted[f].bytes, (unsigned long long)need);
            *memory = RP_BATCH_MISFIT;
        }
    }
    if (*memory == RP_BATCH_MISFIT) {
        free(posted);
        posted = NULL;
    }
    return posted;
}

/* Lists the arrays of a reply, in the order of those in a batch. */
static void list_arrays(const struct wire_sampled *view, struct pb_array *wide, struct pb_array *narrow)
{
    const struct pb_array all_wide[BATCH_WIDE] = {view->key,    view->priority, view->probability,
                                                  view->age_ns, view->policy,   view->step};
    const struct pb_array all_narrow[BATCH_NARROW] = {view->times_sampled, view->session};
    memcpy(wide, all_wide, sizeof all_wide);
    memcpy(narrow, all_narrow, sizeof all_narrow);
}

static void fill_arrays(const struct batch_decoder *self, const struct wire_sampled *view, struct rp_batch *batch)
{
    uint32_t n = view->n_items;
    struct pb_array wide[BATCH_WIDE], narrow[BATCH_NARROW];
    void *columns[BATCH_WIDE];
    list_arrays(view, wide, narrow);
    for (uint32_t k = 0; k < BATCH_WIDE; k++) {
        columns[k] = batch->memory + (size_t)k * n * 8;
        batch_expand(&wide[k], 0, n, 8, columns[k]);
    }
    uint32_t *times = (uint32_t *)(void *)(batch->memory + (size_t)BATCH_WIDE * n * 8), *session = times + n;
    float *weight = (float *)(void *)(session + n);
    batch_expand(&narrow[0], 0, n, 4, times);
    batch_expand(&narrow[1], 0, n, 4, session);
    if (self->options.beta == 0 || view->probability.n <= 1) {
        for (uint32_t i = 0; i < n; i++)
            weight[i] = 1;
    } else {
        batch_weights(columns[2], n, self->options.beta, weight);
    }
    batch->arrays = (rp_batch_arrays){.struct_size = sizeof batch->arrays,
                                      .n = n,
                                      .key = columns[0],
                                      .priority = columns[1],
                                      .probability = columns[2],
                                      .age_ns = columns[3],
                                      .policy = columns[4],
                                      .step = columns[5],
                                      .times_sampled = times,
                                      .session = session,
                                      .weight = weight};
}

/* Leaves the items' arrays in the reply. */
static void leave_arrays(const struct batch_decoder *self, const struct wire_sampled *view, struct rp_batch *batch)
{
    struct batch_in_reply *out = &batch->in_reply;
    out->step = self->regular.chunk_bytes;
    out->index = view->chunk.n ? view->chunk.data : NULL;
    list_arrays(view, out->wide, out->narrow);
    batch->arrays = (rp_batch_arrays){.struct_size = sizeof batch->arrays, .n = view->n_items};
}

static void fill_view(const struct batch_plan *plan, uint32_t n_items, rp_field_view *out)
{
    const struct batch_field *field = plan->field;
    out->dtype = field->dtype;
    out->rank = 0;
    out->shape[out->rank++] = n_items;
    if (!field->squeeze)
        out->shape[out->rank++] = plan->rows;
    for (uint32_t k = 0; k < field->rank; k++)
        out->shape[out->rank++] = field->shape[k];
    out->bytes = plan->item_bytes * n_items;
}

/* Leaves the rows of a field in the reply. */
static rp_status leave_field(const struct batch_decoder *self, const struct batch_plan *plan, rp_field_view *out,
                             uint32_t *lengths, rp_error *err)
{
    uint32_t rows;
    const uint8_t *from = batch_regular_rows(self, plan->field, &rows, err);
    if (!from)
        return RP_DATA_LOSS;
    out->data = (void *)(uintptr_t)from;
    for (uint32_t i = 0; plan->variable && i < self->view->n_items; i++)
        lengths[i] = rows;
    return RP_OK;
}

static rp_status fill_fields(struct batch_decoder *self, const struct shape_of_batch *shape, const rp_buffer *posted,
                             struct rp_batch *batch, rp_error *err)
{
    const struct batch_plan *plans = self->plans.data;
    uint32_t n = self->view->n_items;
    uint32_t *lengths = (uint32_t *)(void *)(batch->memory + shape->lengths);
    char *name = (char *)batch->memory + shape->names;
    for (uint32_t f = 0; f < self->n_fields; f++) {
        rp_field_view *out = &batch->fields[f];
        fill_view(&plans[f], n, out);
        size_t size = strlen(plans[f].field->name) + 1;
        memcpy(name, plans[f].field->name, size);
        out->name = name;
        name += size;
        out->lengths = plans[f].variable ? lengths : NULL;
        if (shape->in_reply) {
            RP_TRY(leave_field(self, &plans[f], out, lengths, err));
        } else {
            out->data = posted ? posted[f].data : batch->memory + shape->fields + plans[f].at;
            RP_TRY(batch_gather_field(self, f, &plans[f], out->data, lengths, err));
        }
        if (plans[f].variable)
            lengths += n;
    }
    return RP_OK;
}

static void note_layout(struct batch_decoder *self)
{
    const struct batch_layout *const *layouts = self->layouts.data;
    if (self->n_fields && layouts[0] != self->noted) {
        batch_pool_note(self->pool, layouts[0]);
        self->noted = layouts[0];
    }
}

rp_status batch_build(struct batch_decoder *self, struct wire_string text, struct rp_batch **out, rp_error *err)
{
    const struct wire_sampled *view = self->view;
    struct shape_of_batch shape = {0};
    RP_TRY(plan_batch(self, view, &shape, err));
    note_layout(self);
    uint32_t memory;
    rp_error misfit = {0};
    rp_buffer *posted = take_posted(self, view->n_items, &memory, &misfit);
    struct rp_batch *batch = batch_pool_take(self->pool, self->n_fields, posted ? shape.fields : shape.total + 64);
    if (!batch) {
        free(posted);
        return batch_no_memory(err);
    }
    batch->info = (rp_batch_info){.struct_size = sizeof batch->info,
                                  .n = view->n_items,
                                  .n_fields = self->n_fields,
                                  .partial = view->partial,
                                  .table_size = view->table_size,
                                  .waited_ns = view->waited_ns,
                                  .memory = memory};
    size_t size = memory == RP_BATCH_MISFIT ? strlen(misfit.text) : text.size;
    if (size >= sizeof batch->text)
        size = sizeof batch->text - 1;
    if (size)
        memcpy(batch->text, memory == RP_BATCH_MISFIT ? misfit.text : text.data, size);
    batch->text[size] = '\0';
    batch->in_reply = (struct batch_in_reply){0};
    if (shape.in_reply)
        leave_arrays(self, view, batch);
    else
        fill_arrays(self, view, batch);
    rp_status status = fill_fields(self, &shape, posted, batch, err);
    free(posted);
    if (status != RP_OK)
        rp_batch_release(&batch);
    *out = batch;
    return status;
}

rp_status batch_decode(struct batch_decoder *self, const struct batch_reply *reply, struct rp_batch **out,
                       rp_error *err)
{
    const struct wire_sampled *view = reply->view;
    *out = NULL;
    self->view = view;
    self->made_bytes = 0;
    batch_slabs_reset(self, SLAB_KEEP);
    RP_TRY(batch_check_counts(view, reply->frames, reply->n_frames, err));
    batch_read_regular(self, view, reply->frames, reply->n_frames);
    if (!self->regular.on) {
        RP_TRY(batch_read_chunks(self, view, reply->frames, err));
        RP_TRY(batch_read_items(self, view, err));
    }
    RP_TRY(batch_read_layouts(self, view, err));
    if (self->n_groups > 1 && view->n_items)
        return batch_split(self, view, reply->text, out, err);
    if (!batch_use_group(self, 0, view->n_layouts))
        return batch_no_memory(err);
    return batch_build(self, reply->text, out, err);
}

struct batch_decoder *batch_decoder_new(struct batch_pool *pool, const struct batch_options *options)
{
    struct batch_decoder *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->pool = batch_pool_ref(pool);
    self->options = *options;
    return self;
}

void batch_decoder_leave_items(struct batch_decoder *self)
{
    self->leave_items = true;
}

void batch_decoder_destroy(struct batch_decoder **self)
{
    struct batch_decoder *decoder = *self;
    *self = NULL;
    if (!decoder)
        return;
    struct batch_vec *vecs[] = {&decoder->blocks,    &decoder->chunks,     &decoder->items,  &decoder->layouts,
                                &decoder->maps,      &decoder->plans,      &decoder->arrays, &decoder->groups,
                                &decoder->all_items, &decoder->all_layouts};
    for (size_t i = 0; i < sizeof vecs / sizeof vecs[0]; i++)
        free(vecs[i]->data);
    batch_slabs_reset(decoder, 0);
    batch_layouts_fini(&decoder->cache);
    codec_scratch_fini(&decoder->scratch);
    batch_pool_unref(&decoder->pool);
    free(decoder);
}
