/* Copies rows from blocks into a field's array.
 *
 * The work goes field by field, so that one tight loop writes one contiguous array. A raw block is read in place. A compressed
 * block is decoded once per reply: directly into the batch if an item takes all of it, and other items copy from there;
 * otherwise into scratch memory. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch_decoder.h"
#include "proto/base/error.h"

#define SLAB_BYTES ((size_t)1 << 20)

void batch_slabs_reset(struct batch_decoder *self, size_t keep)
{
    struct batch_slab *kept = NULL;
    while (self->slabs) {
        struct batch_slab *slab = self->slabs, *drop = slab;
        self->slabs = slab->next;
        if (slab->size <= keep && (!kept || slab->size > kept->size)) {
            drop = kept;
            kept = slab;
        }
        free(drop);
    }
    if (kept) {
        kept->next = NULL;
        kept->used = 0;
    }
    self->slabs = kept;
}

static void *slabs_take(struct batch_decoder *self, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!self->slabs || self->slabs->size - self->slabs->used < bytes) {
        size_t size = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        struct batch_slab *slab = malloc(sizeof *slab + size);
        if (!slab)
            return NULL;
        *slab = (struct batch_slab){.next = self->slabs, .size = size};
        self->slabs = slab;
    }
    void *out = self->slabs->data + self->slabs->used;
    self->slabs->used += bytes;
    return out;
}

static rp_status block_damaged(const struct batch_block *block, const struct batch_field *field, rp_error *err)
{
    if (block->codec == RP_CODEC_ABSENT)
        return err_set(err, RP_DATA_LOSS, "field '%s' has no data in some of its steps", field->name);
    return err_set(err, RP_DATA_LOSS, "a block of field '%s' has a size that cannot be right", field->name);
}

/* Decodes the rows of a block, into `whole` unless it is NULL. */
static rp_status block_open(struct batch_decoder *self, struct batch_block *block, const struct batch_field *field,
                            uint32_t length, uint8_t *whole, rp_error *err)
{
    uint64_t bytes = (uint64_t)length * field->row_bytes;
    /* lz4 cannot compress to less than 1/255. */
    if (block->row_bytes || block->codec == RP_CODEC_ABSENT || bytes > (uint64_t)block->size * 255 + 64)
        return block_damaged(block, field, err);
    if (block->codec == RP_CODEC_RAW) {
        if (block->size != bytes)
            return block_damaged(block, field, err);
        block->plain = block->data;
    } else {
        uint8_t *out = whole ? whole : slabs_take(self, (size_t)bytes);
        if (!out)
            return batch_no_memory(err);
        struct codec_shape shape = {.elem_bytes = field->elem_bytes,
                                    .is_integer = field->is_integer,
                                    .row_bytes = field->row_bytes,
                                    .rows = length,
                                    .rank = field->rank};
        RP_TRY(codec_decode(&self->scratch, block->codec, &shape, block->data, block->size, out, err));
        block->plain = out;
    }
    block->row_bytes = field->row_bytes;
    return RP_OK;
}

/* *hint is the index of the column in the last chunk. */
static inline struct batch_block *block_find(const struct batch_decoder *self, const struct batch_chunk *chunk,
                                             uint32_t column, uint32_t *hint)
{
    struct batch_block *blocks = (struct batch_block *)self->blocks.data + chunk->first_block;
    if (*hint < chunk->n_blocks && blocks[*hint].column == column)
        return &blocks[*hint];
    for (uint32_t k = 0; k < chunk->n_blocks; k++) {
        if (blocks[k].column == column) {
            *hint = k;
            return &blocks[k];
        }
    }
    return NULL;
}

static inline void copy_bytes(uint8_t *out, const uint8_t *from, size_t bytes)
{
    switch (bytes) {
    case 1:
        *out = *from;
        break;
    case 4:
        memcpy(out, from, 4);
        break;
    case 8:
        memcpy(out, from, 8);
        break;
    default:
        memcpy(out, from, bytes);
    }
}

/* The rows of a field that one item needs: `rows` of them, every stride-th. */
struct gather {
    struct batch_decoder *decoder;
    const struct batch_field *field;
    uint32_t first, rows; /* first is relative to the item */
    uint32_t hint;        /* see block_find; kept from item to item */
};

/* Copies `rows` rows from row `at` of one block. */
static rp_status gather_block(struct gather *g, const struct batch_chunk *chunk, uint32_t at, uint32_t rows,
                              uint8_t *out, rp_error *err)
{
    struct batch_decoder *self = g->decoder;
    const struct batch_field *field = g->field;
    struct batch_block *block = block_find(self, chunk, field->column, &g->hint);
    if (!block)
        return err_set(err, RP_DATA_LOSS, "the broker's reply is damaged: no data for field '%s'", field->name);
    size_t row = field->row_bytes;
    if (row == 0)
        return RP_OK; /* the shape holds a 0: there is nothing to copy */
    if (block->row_bytes != row) {
        bool whole = at == 0 && rows == chunk->length && field->stride == 1;
        RP_TRY(block_open(self, block, field, chunk->length, whole ? out : NULL, err));
    }
    const uint8_t *from = block->plain + (size_t)at * row;
    if (from == out)
        return RP_OK;
    if (field->stride == 1 || rows == 1) {
        copy_bytes(out, from, (size_t)rows * row);
        return RP_OK;
    }
    size_t step = row * field->stride;
    for (uint32_t k = 0; k < rows; k++)
        copy_bytes(out + k * row, from + k * step, row);
    return RP_OK;
}

/* The general case: rows that lie in several chunks. */
static rp_status gather_chunks(struct gather *g, const struct batch_item *item, uint8_t *out, rp_error *err)
{
    struct batch_decoder *self = g->decoder;
    const struct batch_field *field = g->field;
    const struct wire_sampled *view = self->view;
    const struct batch_chunk *chunks = self->chunks.data;
    uint64_t want = (uint64_t)item->offset + g->first; /* counted from the first chunk's first step */
    uint64_t base = 0;
    uint32_t rows = g->rows;
    for (uint32_t k = 0; k < item->n_refs && rows; k++) {
        uint32_t ref = item->first_ref + k;
        const struct batch_chunk *chunk = &chunks[view->chunk.n ? pb_u32(&view->chunk, ref) : ref];
        uint64_t end = base + chunk->length;
        if (want < end) {
            uint64_t fit = (end - want + field->stride - 1) / field->stride;
            uint32_t n = fit < rows ? (uint32_t)fit : rows;
            RP_TRY(gather_block(g, chunk, (uint32_t)(want - base), n, out, err));
            out += (size_t)n * field->row_bytes;
            want += (uint64_t)n * field->stride;
            rows -= n;
        }
        base = end;
    }
    return rows ? batch_damaged(err, "an item is longer than its chunks") : RP_OK;
}

/* The common case: adjacent rows in a raw block of the item's first chunk. False: call gather_item instead. */
static inline bool gather_fast(struct gather *g, const struct batch_item *item, uint8_t *out)
{
    const struct batch_decoder *self = g->decoder;
    const struct batch_chunk *chunk = (const struct batch_chunk *)self->chunks.data + item->chunk;
    const struct batch_field *field = g->field;
    uint64_t at = (uint64_t)item->offset + g->first;
    uint32_t rows = g->rows;
    if (at + rows > chunk->length || (field->stride != 1 && rows != 1))
        return false;
    const struct batch_block *block = block_find(self, chunk, field->column, &g->hint);
    size_t row = field->row_bytes;
    if (!block || block->codec != RP_CODEC_RAW || block->size != (uint64_t)chunk->length * row)
        return false;
    copy_bytes(out, block->data + (size_t)at * row, (size_t)rows * row);
    return true;
}

static rp_status gather_item(struct gather *g, const struct batch_item *item, uint8_t *out, rp_error *err)
{
    struct batch_decoder *self = g->decoder;
    const struct batch_chunk *chunk = (const struct batch_chunk *)self->chunks.data + item->chunk;
    uint64_t last = (uint64_t)item->offset + g->first + (uint64_t)(g->rows - 1) * g->field->stride;
    rp_status status = last < chunk->length ? gather_block(g, chunk, item->offset + g->first, g->rows, out, err)
                                            : gather_chunks(g, item, out, err);
    if (status != RP_OK)
        err_prefix(err, "item %llu",
                   (unsigned long long)pb_u64(&self->view->key,
                                              (uint32_t)(item - (const struct batch_item *)self->items.data)));
    return status;
}

/* Returns the first block of a column in a regular reply; NULL if there is none of the right size. */
static const uint8_t *regular_find(const struct batch_decoder *self, const struct batch_field *field)
{
    const struct wire_sampled *view = self->view;
    const uint8_t *at = self->regular.data;
    for (uint32_t k = 0; k < self->regular.n_blocks; k++) {
        uint32_t size = pb_u32(&view->block_size, k);
        if (view->block_column.data[k] == field->column)
            return size == (uint64_t)self->regular.chunk_length * field->row_bytes ? at : NULL;
        at += size;
    }
    return NULL;
}

static inline void regular_copy(const struct wire_sampled *view, const uint8_t *from, size_t step, size_t bytes,
                                uint8_t *out, size_t out_step)
{
    if (view->chunk.n == 0) {
        for (uint32_t i = 0; i < view->n_items; i++, from += step, out += out_step)
            copy_bytes(out, from, bytes);
        return;
    }
    for (uint32_t i = 0; i < view->n_items; i++, out += out_step)
        copy_bytes(out, from + pb_u32(&view->chunk, i) * step, bytes);
}

const uint8_t *batch_regular_rows(const struct batch_decoder *self, const struct batch_field *field, uint32_t *rows,
                                  rp_error *err)
{
    uint32_t first;
    if (!batch_layout_rows(field, self->regular.length, &first, rows)) {
        batch_too_short(self->view, 0, field, err);
        return NULL;
    }
    const uint8_t *from = regular_find(self, field);
    if (!from) {
        batch_damaged(err, "a block is missing or has a size that cannot be right");
        return NULL;
    }
    return from + (size_t)(self->regular.offset + first) * field->row_bytes;
}

static rp_status gather_regular(struct batch_decoder *self, const struct batch_plan *plan, uint8_t *out,
                                uint32_t *lengths, rp_error *err)
{
    const struct wire_sampled *view = self->view;
    const struct batch_field *field = plan->field;
    const struct batch_regular *regular = &self->regular;
    size_t row = field->row_bytes;
    uint32_t rows;
    const uint8_t *from = batch_regular_rows(self, field, &rows, err);
    if (!from)
        return RP_DATA_LOSS;
    if (field->stride == 1 || rows == 1) {
        regular_copy(view, from, regular->chunk_bytes, row * rows, out, (size_t)plan->item_bytes);
    } else {
        for (uint32_t k = 0; k < rows; k++)
            regular_copy(view, from + k * row * field->stride, regular->chunk_bytes, row, out + k * row,
                         (size_t)plan->item_bytes);
    }
    for (uint32_t i = 0; plan->variable && i < view->n_items; i++)
        lengths[i] = rows;
    return RP_OK;
}

rp_status batch_gather_field(struct batch_decoder *self, uint32_t f, const struct batch_plan *plan, uint8_t *out,
                             uint32_t *lengths, rp_error *err)
{
    if (self->regular.on)
        return gather_regular(self, plan, out, lengths, err);
    const struct wire_sampled *view = self->view;
    const struct batch_item *items = self->items.data;
    struct gather g = {.decoder = self, .field = plan->field};
    const bool one_layout = self->n_layouts == 1, alike = one_layout && view->length.n == 1;
    for (uint32_t i = 0; i < view->n_items; i++, out += plan->item_bytes) {
        const struct batch_item *item = &items[i];
        if (!one_layout)
            g.field = batch_field_of(self, f, item->layout);
        if (!(alike && i) && !batch_layout_rows(g.field, item->length, &g.first, &g.rows))
            return batch_too_short(view, i, g.field, err);
        if (!gather_fast(&g, item, out))
            RP_TRY(gather_item(&g, item, out, err));
        if (plan->variable) {
            size_t bytes = (size_t)g.rows * g.field->row_bytes;
            lengths[i] = g.rows;
            memset(out + bytes, 0, (size_t)plan->item_bytes - bytes);
        }
    }
    return RP_OK;
}
