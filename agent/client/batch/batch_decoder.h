/* The decoder's own parts: batch_read.c finds the pieces of a reply, batch_split.c groups items that do not fit into one batch,
 * batch_gather.c copies rows, batch_decode.c makes the batch. Used by these four files only. */
#ifndef AGENT_CLIENT_BATCH_DECODER_H
#define AGENT_CLIENT_BATCH_DECODER_H

#include "agent/client/batch/batch.h"
#include "proto/wire/codec.h"

struct batch_block {
    const uint8_t *data;
    const uint8_t *plain; /* decoded rows; valid when row_bytes is set */
    uint32_t size;
    uint32_t row_bytes;
    uint8_t codec;
    uint8_t column;
};

struct batch_chunk {
    uint32_t first_block;
    uint32_t n_blocks;
    uint32_t length;
};

struct batch_item {
    uint32_t layout;
    uint32_t chunk; /* the first chunk */
    uint32_t first_ref;
    uint32_t n_refs;
    uint32_t offset;
    uint32_t length;
};

struct batch_plan {
    const struct batch_field *field; /* of the first layout */
    uint32_t rows;                   /* largest number of any item */
    bool variable;
    uint64_t item_bytes;
    uint64_t at; /* offset in the batch's memory, unless it is posted */
};

struct batch_slab {
    struct batch_slab *next;
    size_t size, used;
    _Alignas(16) uint8_t data[];
};

struct batch_vec {
    void *data;
    size_t capacity;
};

/* The common reply: one layout, one chunk per item, all chunks alike, raw and in one frame. Then the address of every block can
 * be computed, and no lists of blocks, chunks and items are made. */
struct batch_regular {
    bool on;
    uint32_t offset; /* of every item in its chunk */
    uint32_t length; /* of every item */
    uint32_t chunk_length;
    uint32_t n_blocks; /* in each chunk */
    size_t chunk_bytes;
    const uint8_t *data; /* the first chunk */
};

struct batch_decoder {
    struct batch_pool *pool;
    struct batch_options options;
    bool leave_items;
    struct batch_layouts cache;
    struct codec_scratch scratch;
    struct batch_slab *slabs;
    const struct batch_layout *noted;
    /* Of the current reply. */
    struct batch_vec all_items, all_layouts, groups;
    uint32_t n_groups;   /* groups of layouts whose items fit into one batch */
    rp_error why;        /* how the layouts differ, if there is more than one group */
    uint64_t made_bytes; /* bytes of the batches made from the reply so far */
    /* Of the current batch: all of the reply, or a part of it. */
    const struct wire_sampled *view;
    uint32_t n_fields, n_layouts;
    struct batch_regular regular;
    struct batch_vec blocks, chunks, items, layouts, maps, plans, arrays;
};

/* Makes room for n elements; growing discards the contents. */
bool batch_vec_reserve(struct batch_vec *self, uint64_t n, size_t size);
rp_status batch_no_memory(rp_error *err);
rp_status batch_damaged(rp_error *err, const char *what);
/* Sets err: item i has fewer steps than the field needs. */
rp_status batch_too_short(const struct wire_sampled *view, uint32_t i, const struct batch_field *field, rp_error *err);

/* Called in this order. Afterwards blocks, chunks, items and layouts are filled, and every index in them is in range. */
rp_status batch_check_counts(const struct wire_sampled *view, const struct batch_frame *frames, uint32_t n_frames,
                             rp_error *err);
/* Sets self->regular, after batch_check_counts. If it is on, chunks and items are not read. */
void batch_read_regular(struct batch_decoder *self, const struct wire_sampled *view, const struct batch_frame *frames,
                        uint32_t n_frames);
rp_status batch_read_chunks(struct batch_decoder *self, const struct wire_sampled *view,
                            const struct batch_frame *frames, rp_error *err);
rp_status batch_read_items(struct batch_decoder *self, const struct wire_sampled *view, rp_error *err);
/* Fills all_layouts, and groups: for each layout the first layout with the same fields. */
rp_status batch_read_layouts(struct batch_decoder *self, const struct wire_sampled *view, rp_error *err);
/* Sets the layouts of the current batch: those of one group, in their order. False: no memory. */
bool batch_use_group(struct batch_decoder *self, uint32_t group, uint32_t n_layouts);

/* Makes a batch of the current items. */
rp_status batch_build(struct batch_decoder *self, struct wire_string text, struct rp_batch **out, rp_error *err);
/* Makes a batch for each group of layouts that has items. */
rp_status batch_split(struct batch_decoder *self, const struct wire_sampled *view, struct wire_string text,
                      struct rp_batch **out, rp_error *err);

/* Returns field f of the batch in one of the reply's layouts. */
static inline const struct batch_field *batch_field_of(const struct batch_decoder *self, uint32_t f, uint32_t layout)
{
    const struct batch_layout *const *layouts = self->layouts.data;
    const uint32_t *maps = self->maps.data;
    return &layouts[layout]->fields[maps[(size_t)layout * self->n_fields + f]];
}

/* Returns the rows of a field's first item in a regular reply, and sets their number; NULL: the reply is damaged. */
const uint8_t *batch_regular_rows(const struct batch_decoder *self, const struct batch_field *field, uint32_t *rows,
                                  rp_error *err);
/* Writes field f of all items to out, and to lengths if the field is variable. */
rp_status batch_gather_field(struct batch_decoder *self, uint32_t f, const struct batch_plan *plan, uint8_t *out,
                             uint32_t *lengths, rp_error *err);
/* Drops decoded blocks; keeps at most one slab of up to `keep` bytes. */
void batch_slabs_reset(struct batch_decoder *self, size_t keep);

#endif
