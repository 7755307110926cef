/* Writes hot headers. The fields are planned first, so that the exact size is known: one reservation, then one pass that stores
 * tag, length and bytes without checks. Fields are in the order of their numbers, as protobuf writes them. */
#include "proto/wire/wire.h"

#define WIRE_MAX_PARTS 26u
#define WIRE_SAMPLE_BODY 19u

/* The fixed start of an ingest header: tags and values up to oldest_chunk, with zeros written out. */
enum {
    INGEST_VERSION = 1,
    INGEST_SESSION_HI = 3,
    INGEST_SESSION_LO = 12,
    INGEST_EPOCH = 21,
    INGEST_NUMBER = 26,
    INGEST_OLDEST = 35,
    INGEST_FIXED = 43,
};

struct wire_part {
    const void *data;
    uint64_t size;
    uint32_t tag;
    bool verbatim; /* encoded fields with their tags */
};

struct wire_plan {
    struct wire_part parts[WIRE_MAX_PARTS];
    uint32_t n_parts;
    uint64_t size;
};

static inline void plan_add(struct wire_plan *self, uint32_t tag, const void *data, uint64_t size)
{
    self->parts[self->n_parts++] = (struct wire_part){data, size, tag, false};
    self->size += pb_varint_size(tag) + pb_varint_size(size) + size;
}

/* A packed array; absent if there is nothing in it. */
static inline void plan_array(struct wire_plan *self, uint32_t number, const void *data, uint32_t n, uint32_t width)
{
    if (n > 0 && data != NULL)
        plan_add(self, number << 3 | PB_BYTES, data, (uint64_t)n * width);
}

/* A packed array marked "or 1". */
static inline void plan_folded(struct wire_plan *self, uint32_t number, const void *data, uint32_t n, uint32_t width)
{
    if (n > 0 && data != NULL)
        plan_add(self, number << 3 | PB_BYTES, data, pb_all_equal(data, n, width) ? width : (uint64_t)n * width);
}

/* The same, left out if all elements are 0: for arrays that read as 0 when absent. */
static inline void plan_optional(struct wire_plan *self, uint32_t number, const void *data, uint32_t n, uint32_t width)
{
    static const uint8_t zeros[8];
    if (n > 0 && data != NULL && !(memcmp(data, zeros, width) == 0 && pb_all_equal(data, n, width)))
        plan_folded(self, number, data, n, width);
}

/* A scalar: fixed32, fixed64, or a flag of one byte as a varint. Left out if 0. */
static inline void plan_scalar(struct wire_plan *self, uint32_t number, enum pb_wire wire, const void *value)
{
    static const uint8_t zeros[8];
    uint32_t width = wire == PB_FIXED64 ? 8 : wire == PB_FIXED32 ? 4 : 1;
    if (memcmp(value, zeros, width) == 0)
        return;
    uint32_t tag = number << 3 | wire;
    self->parts[self->n_parts++] = (struct wire_part){value, width, tag, false};
    self->size += pb_varint_size(tag) + width;
}

static inline void plan_verbatim(struct wire_plan *self, const void *data, size_t size)
{
    if (size > 0 && data != NULL) {
        self->parts[self->n_parts++] = (struct wire_part){data, size, 0, true};
        self->size += size;
    }
}

/* Most arrays of a header have one element: no call for those. */
static inline void plan_copy(uint8_t *at, const void *data, size_t size)
{
    if (size == 4)
        memcpy(at, data, 4);
    else if (size == 8)
        memcpy(at, data, 8);
    else
        memcpy(at, data, size);
}

static uint8_t *plan_store(const struct wire_plan *self, uint8_t *at)
{
    for (uint32_t i = 0; i < self->n_parts; i++) {
        const struct wire_part *part = &self->parts[i];
        if (!part->verbatim) {
            at = pb_store_varint(at, part->tag);
            if ((part->tag & 7) == PB_BYTES)
                at = pb_store_varint(at, part->size);
        }
        plan_copy(at, part->data, (size_t)part->size);
        at += part->size;
    }
    return at;
}

static void wire_store_fixed(uint8_t *at, const struct wire_ingest_out *in)
{
    at[0] = 1 << 3 | PB_VARINT;
    at[INGEST_VERSION] = WIRE_VERSION;
    at[INGEST_SESSION_HI - 1] = 2 << 3 | PB_FIXED64;
    at[INGEST_SESSION_LO - 1] = 3 << 3 | PB_FIXED64;
    at[INGEST_EPOCH - 1] = 4 << 3 | PB_FIXED32;
    wire_patch_ingest(at, in->session, in->epoch);
    at[INGEST_NUMBER - 1] = 5 << 3 | PB_FIXED64;
    memcpy(at + INGEST_NUMBER, &in->number, 8);
    at[INGEST_OLDEST - 1] = 6 << 3 | PB_FIXED64;
    memcpy(at + INGEST_OLDEST, &in->oldest_chunk, 8);
}

void wire_patch_ingest(void *frame, const uint8_t *session, uint32_t epoch)
{
    uint8_t *at = frame;
    memcpy(at + INGEST_SESSION_HI, session, 8);
    memcpy(at + INGEST_SESSION_LO, session + 8, 8);
    memcpy(at + INGEST_EPOCH, &epoch, 4);
}

void wire_write_ingest(struct pb_writer *out, const struct wire_ingest_out *in)
{
    uint32_t n_blocks = in->n_chunks * in->n_columns;
    struct wire_plan plan;
    plan.n_parts = 0;
    plan.size = INGEST_FIXED;
    plan_verbatim(&plan, in->layouts, in->layouts_size);
    plan_array(&plan, 10, in->chunk_number, in->n_chunks, 8);
    plan_array(&plan, 11, in->chunk_step, in->n_chunks, 8);
    plan_folded(&plan, 12, in->chunk_length, in->n_chunks, 4);
    plan_optional(&plan, 13, in->chunk_episode, in->n_chunks, 4);
    plan_folded(&plan, 14, in->block_size, n_blocks, 4);
    plan_folded(&plan, 15, in->block_codec, n_blocks, 1);
    plan_scalar(&plan, 16, PB_FIXED32, &in->packed);
    plan_array(&plan, 20, in->run_layout, in->n_runs, 4);
    plan_array(&plan, 21, in->run_items, in->n_runs, 4);
    plan_array(&plan, 22, in->run_first, in->n_runs, 8);
    plan_optional(&plan, 23, in->run_policy, in->n_runs, 8);
    plan_array(&plan, 24, in->item_key, in->n_items, 8);
    plan_folded(&plan, 25, in->item_priority, in->n_items, 8);
    plan_array(&plan, 26, in->item_chunk, in->n_items, 8);
    plan_optional(&plan, 27, in->item_offset, in->n_items, 4);
    plan_folded(&plan, 28, in->item_length, in->n_items, 4);

    uint8_t *at = pb_reserve(out, (size_t)plan.size);
    if (at == NULL)
        return;
    wire_store_fixed(at, in);
    plan_store(&plan, at + INGEST_FIXED);
}

static void plan_sampled(struct wire_plan *plan, const struct wire_sampled_out *in)
{
    plan_array(plan, 1, in->key, in->n_items, 8);
    plan_array(plan, 2, in->priority, in->n_items, 8);
    plan_folded(plan, 3, in->probability, in->n_items, 8);
    plan_folded(plan, 4, in->times_sampled, in->n_items, 4);
    plan_array(plan, 5, in->age_ns, in->n_items, 8);
    plan_folded(plan, 6, in->policy, in->n_items, 8);
    plan_array(plan, 7, in->step, in->n_items, 8);
    plan_folded(plan, 8, in->session, in->n_items, 4);
    plan_folded(plan, 9, in->layout, in->n_items, 4);
    plan_folded(plan, 10, in->offset, in->n_items, 4);
    plan_folded(plan, 11, in->length, in->n_items, 4);
    plan_folded(plan, 12, in->chunks, in->n_items, 4);
    plan_array(plan, 13, in->chunk, in->n_chunk_refs, 4);
    plan_folded(plan, 14, in->chunk_length, in->n_chunks, 4);
    plan_folded(plan, 15, in->chunk_blocks, in->n_chunks, 4);
    plan_array(plan, 16, in->block_column, in->n_block_columns, 1);
    plan_folded(plan, 17, in->block_codec, in->n_blocks, 1);
    plan_folded(plan, 18, in->block_size, in->n_blocks, 4);
    plan_scalar(plan, 19, PB_FIXED32, &in->packed);
    plan_verbatim(plan, in->layouts, in->layouts_size);
    plan_scalar(plan, 21, PB_FIXED64, &in->table_size);
    plan_scalar(plan, 22, PB_FIXED64, &in->waited_ns);
    plan_scalar(plan, 23, PB_VARINT, &in->partial);
    if (in->paid) {
        plan_scalar(plan, 24, PB_FIXED64, &in->mass);
        plan_scalar(plan, 25, PB_FIXED64, &in->room);
    }
}

void wire_write_sampled(struct pb_writer *out, const struct wire_sampled_out *in)
{
    size_t text_size = in->text == NULL ? 0 : strlen(in->text);
    struct wire_plan plan;
    plan.n_parts = 0;
    plan.size = 0;
    plan_sampled(&plan, in);

    pb_put_varint(out, 1, WIRE_VERSION);
    pb_put_fixed64(out, 2, in->id);
    pb_put_varint(out, 3, in->status);
    pb_put_bytes(out, 4, in->text, text_size);
    pb_tag(out, WIRE_SAMPLE_BODY, PB_BYTES);
    pb_varint(out, plan.size);
    uint8_t *at = pb_reserve(out, (size_t)plan.size);
    if (at != NULL)
        plan_store(&plan, at);
}
