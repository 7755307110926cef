/* Makes batches from a sample reply.
 *
 * First the pieces of the reply are found and checked: chunks, blocks, items, layouts. Then the size of each field is computed, memory
 * is taken, and the rows are copied, field by field, so that one tight loop writes one contiguous array. A raw block is read in place.
 * A compressed block is decoded once per reply: directly into the batch if an item takes all of it, and other items copy from there;
 * otherwise into scratch memory. Items whose fields do not fit into one array come in several batches, so that no item is lost.
 *
 * A large batch is filled by several threads: the blocks that it needs are opened first, then each thread copies the rows of some items.
 *
 * Chunks, and those that are packed, may lie in the broker's memory, where they can change while they are read. Nothing but the rows comes from there: all sizes are in
 * the reply. When all is copied, stamps tell whether it was still the data of the reply. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/conn.h"
#include "agent/client/sampler/batch.h"
#include "agent/client/sampler/crew.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/wire/codec.h"
#include "replay.pb-c.h"

/* Frames of a reply that need no allocation. */
#define FEW_FRAMES 16u
/* Chunks, and blocks, without data that a reply may have: a broker puts no more chunks into one. */
#define SPARE_EMPTY (UINT64_C(1) << 20)

/* Layouts are kept from reply to reply, by the broker's number modulo this: no more than so many when a reply begins. */
#define KEPT_LAYOUTS 512u
/* Bytes of a batch that several threads fill, and parts into which it is cut for each of them: one of them may be slow. */
#define LARGE_BATCH (UINT64_C(1) << 20)
#define SLICES 4u
/* Bytes of a slab for decoded blocks, and of one that is kept for the next reply. */
#define SLAB_BYTES ((size_t)1 << 20)
#define SLAB_KEEP ((size_t)64 << 20)
/* Data in the broker's memory begins at a multiple of this, and its stamp is so many bytes before it. */
#define PLACE_ALIGN 64u

struct batch_field {
    const char *name; /* inside the layout */
    int32_t dtype;
    uint32_t elem_bytes;
    uint32_t is_integer;
    uint32_t row_bytes; /* of one step */
    uint32_t rank;      /* of one step */
    uint32_t shape[RP_MAX_RANK];
    uint32_t column;
    int32_t start;
    uint32_t count; /* 0: to the item's end */
    uint32_t stride;
    bool squeeze;
};

/* The fields of an item, and where their rows are. Parsed once and compared byte by byte with later replies, so that a restarted
 * broker cannot be misread. */
struct batch_layout {
    struct batch_layout *next; /* at the same place of the decoder's */
    uint32_t n_fields;
    size_t encoded_size;
    uint8_t *encoded; /* this and the names of the fields: behind them */
    struct batch_field fields[];
};

struct batch_block {
    const uint8_t *data;
    const uint8_t *plain; /* decoded rows; valid when row_bytes is set */
    uint32_t size;
    uint32_t row_bytes;
    uint8_t codec;
    uint8_t column;
    bool mapped; /* in the broker's memory */
};

struct batch_chunk {
    uint32_t first_block;
    uint32_t n_blocks;
    uint32_t length;
};

struct batch_item {
    uint32_t at; /* in the reply */
    uint32_t layout;
    uint32_t chunk; /* the first chunk */
    uint32_t first_ref;
    uint32_t n_refs;
    uint32_t offset;
    uint32_t length;
};

struct batch_vec {
    void *data;
    size_t capacity;
};

/* Memory for decoded blocks, which all end together: a list. */
struct slab {
    struct slab *next;
    size_t size, used;
    _Alignas(16) uint8_t data[];
};

/* What one of the threads needs that fill a batch. */
struct batch_worker {
    struct codec_scratch scratch;
    struct slab *slabs;
    struct batch_vec stable; /* a compressed block of the broker's memory, which cannot change here */
    rp_error error;          /* of its part of the batch */
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
    struct batch_layout *kept[KEPT_LAYOUTS];
    uint32_t n_kept;
    struct crew *crew;
    struct batch_worker *workers; /* [crew_size] */
    /* Of the current reply. */
    struct batch_shared shared;
    const struct wire_sampled *view;
    struct batch_regular regular;
    struct batch_vec blocks, chunks, all_items, layouts;
    struct batch_vec head;   /* what a reply in the broker's memory says, which cannot change here */
    bool copied;             /* to `head` */
    struct batch_vec groups; /* [layout] the first layout whose items fit into one batch with its items */
    struct batch_vec maps;   /* [layout * most_fields + f] the field that is field f of the first layout of its group */
    uint32_t most_fields;
    uint32_t n_groups;
    rp_error why;        /* how the layouts differ, if there is more than one group */
    uint64_t made_bytes; /* bytes of the batches made from the reply so far */
    /* Of the current batch: the items of one group. */
    uint32_t group, n_fields, n_items;
    bool one_layout;
    const struct batch_item *items; /* [n_items]; NULL: the reply is regular */
    struct batch_vec part, fields;
};

/* Returns field f of the batch in one of the reply's layouts. */
static inline const struct batch_field *field_of(const struct batch_decoder *self, uint32_t f, uint32_t layout)
{
    const struct batch_layout *const *layouts = self->layouts.data;
    const uint32_t *maps = self->maps.data;
    return &layouts[layout]->fields[maps[(size_t)layout * self->most_fields + f]];
}

static bool vec_reserve(struct batch_vec *self, uint64_t n, size_t size)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(n, (uint64_t)size, &bytes) || bytes > SIZE_MAX / 2)
        return false;
    if (self->data && bytes <= self->capacity)
        return true;
    size_t capacity = (size_t)(bytes + bytes / 2 + 64);
    free(self->data);
    self->data = malloc(capacity);
    self->capacity = self->data ? capacity : 0;
    return self->data != NULL;
}

/* Ends all that was taken, and keeps the largest slab of at most `keep` bytes for what comes next. */
static void slabs_reset(struct slab **self, size_t keep)
{
    struct slab *kept = NULL;
    while (*self) {
        struct slab *slab = *self, *drop = slab;
        *self = slab->next;
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
    *self = kept;
}

/* Returns memory aligned to 16 bytes. NULL: no memory. */
static void *slabs_take(struct slab **self, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!*self || (*self)->size - (*self)->used < bytes) {
        size_t size = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        struct slab *slab = malloc(sizeof *slab + size);
        if (!slab)
            return NULL;
        *slab = (struct slab){.next = *self, .size = size};
        *self = slab;
    }
    void *out = (*self)->data + (*self)->used;
    (*self)->used += bytes;
    return out;
}

static rp_status no_memory(rp_error *err)
{
    return err_set(err, RP_NO_MEMORY, "no memory to decode a batch");
}

static rp_status damaged(rp_error *err, const char *what)
{
    return err_set(err, RP_DATA_LOSS, "the broker's reply is damaged: %s", what);
}

static rp_status too_short(uint64_t key, uint32_t length, const struct batch_field *field, rp_error *err)
{
    return err_set(err, RP_DATA_LOSS, "item %llu has %u steps, too few for its field '%s'", (unsigned long long)key,
                   length, field->name);
}

/* ---- layouts ---- */

/* Gives the number of rows that a field takes from an item of `length` steps, and the first row. False: the item is too
 * short. */
static inline bool field_rows(const struct batch_field *field, uint32_t length, uint32_t *first, uint32_t *rows)
{
    int64_t start = field->start < 0 ? (int64_t)length + field->start : field->start;
    if (start < 0 || start >= (int64_t)length)
        return false;
    uint64_t left = length - (uint64_t)start;
    uint64_t n = field->count ? field->count : (left + field->stride - 1) / field->stride;
    *first = (uint32_t)start;
    *rows = (uint32_t)n;
    return (n - 1) * field->stride < left;
}

static void free_layouts(struct batch_decoder *self)
{
    for (uint32_t i = 0; i < KEPT_LAYOUTS; i++)
        for (struct batch_layout *layout = self->kept[i], *next; layout; layout = next) {
            next = layout->next;
            free(layout);
        }
    memset(self->kept, 0, sizeof self->kept);
    self->n_kept = 0;
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

static rp_status layout_new(const uint8_t *encoded, size_t size, struct batch_layout **out, rp_error *err)
{
    Replay__Layout *from = replay__layout__unpack(NULL, size, encoded);
    *out = NULL;
    if (!from)
        return err_set(err, RP_DATA_LOSS, "a layout in the broker's reply cannot be decoded");
    rp_status status = RP_OK;
    size_t names_size = 0, fields_size = from->n_fields * sizeof(struct batch_field);
    for (size_t i = 0; i < from->n_fields; i++)
        names_size += strlen(from->fields[i]->name) + 1;
    struct batch_layout *self = calloc(1, sizeof *self + fields_size + names_size + size);
    if (from->n_fields > BATCH_MAX_FIELDS || from->n_columns > RP_MAX_COLUMNS)
        status =
            err_set(err, RP_DATA_LOSS, "a layout with %zu fields over %zu columns", from->n_fields, from->n_columns);
    else if (!self)
        status = err_set(err, RP_NO_MEMORY, "no memory for a layout");
    char *name = self ? (char *)self->fields + fields_size : NULL;
    for (size_t i = 0; i < from->n_fields && status == RP_OK; i++) {
        status = field_parse(from, from->fields[i], &self->fields[i], err);
        self->fields[i].name = strcpy(name, from->fields[i]->name);
        name += strlen(name) + 1;
    }
    if (status == RP_OK) {
        self->encoded = memcpy(name, encoded, size);
        self->encoded_size = size;
        self->n_fields = (uint32_t)from->n_fields;
        *out = self;
    } else {
        free(self);
    }
    replay__layout__free_unpacked(from, NULL);
    return status;
}

/* Gives the layout with this encoding, parsed and checked. It is valid until the next reply. */
static rp_status layout_get(struct batch_decoder *self, const uint8_t *encoded, size_t size,
                            const struct batch_layout **out, rp_error *err)
{
    uint32_t id = 0; /* absent if it is 0 */
    if (size >= 5 && encoded[0] == 0x0d)
        memcpy(&id, encoded + 1, 4);
    struct batch_layout **slot = &self->kept[id % KEPT_LAYOUTS], *layout = *slot;
    while (layout && (layout->encoded_size != size || memcmp(layout->encoded, encoded, size) != 0))
        layout = layout->next;
    if (!layout) {
        RP_TRY(layout_new(encoded, size, &layout, err));
        layout->next = *slot;
        *slot = layout;
        self->n_kept++;
    }
    *out = layout;
    return RP_OK;
}

/* True if rows of both fields fit into one array. */
static bool fields_agree(const struct batch_field *a, const struct batch_field *b)
{
    return a->dtype == b->dtype && a->squeeze == b->squeeze && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0 && strcmp(a->name, b->name) == 0;
}

/* Writes "float32[84,84]", for messages. */
static void field_describe(const struct batch_field *self, char *out, size_t size)
{
    snprintf(out, size, "%s[", dtype_name(self->dtype));
    for (uint32_t i = 0; i < self->rank; i++)
        text_append(out, size, "%s%u", i ? "," : "", self->shape[i]);
    text_append(out, size, "]%s", self->squeeze ? "" : " per step");
}

/* ---- the pieces of a reply ---- */

/* True if the packed chunks are in the broker's memory, and in no frame. */
static bool is_packed_there(const struct wire_sampled *view)
{
    return view->packed_at.n > 0;
}

/* Returns the number of frames before those that are a chunk each. */
static uint32_t packed_frames(const struct wire_sampled *view)
{
    return view->packed > 0 && !is_packed_there(view);
}

/* Returns the packed chunks. There must be some. */
static struct batch_frame packed_frame(const struct batch_reply *reply)
{
    const struct pb_array *at = &reply->view->packed_at;
    return at->n ? (struct batch_frame){reply->arena + pb_u64(at, 0), (size_t)pb_u64(at, 2)} : reply->frames[0];
}

/* Checks what the payload frames say against the header: all else was checked when the header was read. */
static rp_status check_frames(const struct wire_sampled *view, const struct batch_frame *frames, uint32_t n_frames,
                              rp_error *err)
{
    if (view->n_items == 0)
        return RP_OK; /* an empty frame is allowed */
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_frames; i++)
        bytes += frames[i].size;
    if (n_frames != packed_frames(view) + (uint64_t)(view->n_chunks - view->packed - view->place.n))
        return damaged(err, "the number of frames does not match its chunks");
    bytes += (uint64_t)view->place.n * RP_MAX_COLUMNS + (is_packed_there(view) ? pb_u64(&view->packed_at, 2) : 0);
    /* An array of one element for all could claim any number of empty chunks. */
    if (view->n_chunks > bytes + SPARE_EMPTY || view->n_blocks > bytes + SPARE_EMPTY)
        return damaged(err, "more chunks than bytes");
    return RP_OK;
}

/* Returns the bytes of a chunk if all chunks have blocks of the same sizes, else 0. */
static size_t alike_bytes(const struct wire_sampled *view, uint32_t n_blocks)
{
    const struct pb_array *sizes = &view->block_size;
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < n_blocks; k++)
        bytes += pb_u32(sizes, k);
    for (uint32_t c = 1; c < view->n_chunks && sizes->n > 1; c++) {
        if (memcmp(sizes->data, sizes->data + (size_t)c * n_blocks * 4, (size_t)n_blocks * 4) != 0)
            return 0;
    }
    return (size_t)bytes;
}

static void read_regular(struct batch_decoder *self, const struct batch_reply *reply)
{
    const struct wire_sampled *view = reply->view;
    struct batch_regular *out = &self->regular;
    out->on = false;
    if (view->n_items == 0 || view->packed != view->n_chunks || view->n_layouts != 1 || view->length.n != 1 ||
        view->offset.n != 1 || view->chunks.n != 1 || view->chunk_length.n != 1 || view->chunk_blocks.n != 1 ||
        view->block_codec.n != 1)
        return;
    out->n_blocks = pb_u32(&view->chunk_blocks, 0);
    out->length = pb_u32(&view->length, 0);
    out->chunk_length = pb_u32(&view->chunk_length, 0);
    out->offset = pb_u32(&view->offset, 0);
    if (pb_u32(&view->chunks, 0) != 1 || out->length == 0 || view->block_column.n != out->n_blocks ||
        (uint64_t)out->offset + out->length > out->chunk_length || pb_u8(&view->block_codec, 0) != RP_CODEC_RAW)
        return;
    out->chunk_bytes = alike_bytes(view, out->n_blocks);
    struct batch_frame frame = packed_frame(reply);
    out->data = frame.data;
    out->on = out->chunk_bytes && frame.size / out->chunk_bytes == view->n_chunks && frame.size % out->chunk_bytes == 0;
}

/* Finds the data of a chunk: in a frame of its own or of several, or in the broker's memory. */
static const uint8_t *chunk_data(const struct batch_reply *reply, uint32_t c, const uint8_t **end)
{
    const struct wire_sampled *view = reply->view;
    uint32_t by_frames = view->n_chunks - view->place.n;
    if (c < by_frames) {
        struct batch_frame frame =
            c < view->packed ? packed_frame(reply) : reply->frames[packed_frames(view) + (c - view->packed)];
        *end = (const uint8_t *)frame.data + frame.size;
        return frame.data;
    }
    *end = reply->arena + reply->arena_size;
    return reply->arena + pb_u64(&view->place, c - by_frames);
}

static rp_status read_chunks(struct batch_decoder *self, const struct batch_reply *reply, rp_error *err)
{
    const struct wire_sampled *view = reply->view;
    uint32_t by_frames = view->n_chunks - view->place.n;
    /* The columns of the first chunk's blocks stand for all chunks if they are not listed for each. */
    bool shared = view->block_column.n != view->n_blocks;
    if (view->n_blocks == 0)
        return view->n_items ? damaged(err, "it holds no data") : RP_OK;
    if (!vec_reserve(&self->chunks, view->n_chunks, sizeof(struct batch_chunk)) ||
        !vec_reserve(&self->blocks, view->n_blocks, sizeof(struct batch_block)))
        return no_memory(err);
    struct batch_chunk *chunks = self->chunks.data;
    struct batch_block *block = self->blocks.data, *blocks = block;
    const uint8_t *columns = view->block_column.data;
    size_t size_step = view->block_size.n == 1 ? 0 : 4, codec_step = view->block_codec.n == 1 ? 0 : 1;
    const uint8_t *sizes = view->block_size.data, *codecs = view->block_codec.data;
    const uint8_t *at = NULL, *end = NULL;
    for (uint32_t c = 0; c < view->n_chunks; c++) {
        if (c == 0 || c >= view->packed)
            at = chunk_data(reply, c, &end);
        uint32_t n = pb_u32(&view->chunk_blocks, c);
        chunks[c] = (struct batch_chunk){(uint32_t)(block - blocks), n, pb_u32(&view->chunk_length, c)};
        for (uint32_t k = 0; k < n; k++, block++, sizes += size_step, codecs += codec_step) {
            uint32_t size;
            memcpy(&size, sizes, 4);
            if (size > (size_t)(end - at))
                return damaged(err, c < by_frames ? "a frame is shorter than its blocks"
                                                  : "a chunk goes beyond the broker's memory");
            bool mapped = c >= by_frames || (c < view->packed && is_packed_there(view));
            *block = (struct batch_block){
                .data = at, .size = size, .codec = *codecs, .column = columns[k], .mapped = mapped};
            at += size;
        }
        if (!shared)
            columns += n;
        if (c + 1 >= view->packed && c < by_frames && at != end)
            return damaged(err, "a frame is longer than its blocks");
    }
    return RP_OK;
}

/* Fills items and refs: the chunks that each item spans. */
static rp_status read_items(struct batch_decoder *self, const struct wire_sampled *view, rp_error *err)
{
    if (!vec_reserve(&self->all_items, view->n_items, sizeof(struct batch_item)))
        return no_memory(err);
    struct batch_item *items = self->all_items.data;
    const struct batch_chunk *chunks = self->chunks.data;
    uint32_t at = 0;
    for (uint32_t i = 0; i < view->n_items; i++) {
        struct batch_item item = {.at = i,
                                  .layout = pb_u32(&view->layout, i),
                                  .first_ref = at,
                                  .n_refs = pb_u32(&view->chunks, i),
                                  .offset = pb_u32(&view->offset, i),
                                  .length = pb_u32(&view->length, i)};
        uint64_t steps = 0;
        for (uint32_t k = 0; k < item.n_refs; k++, at++) {
            uint32_t c = view->chunk.n ? pb_u32(&view->chunk, at) : at;
            if (k == 0)
                item.chunk = c;
            steps += chunks[c].length;
        }
        if (item.length == 0 || item.n_refs == 0 || (uint64_t)item.offset + item.length > steps ||
            item.offset >= chunks[item.chunk].length)
            return damaged(err, "an item is longer than its chunks");
        items[i] = item;
    }
    return RP_OK;
}

/* ---- the fields of the batch ---- */

/* Maps the fields of the first layout to those of another. RP_OK: items of both fit into one batch. */
static rp_status map_fields(const struct batch_layout *first, const struct batch_layout *other, uint32_t *map,
                            rp_error *err)
{
    if (other->n_fields != first->n_fields)
        return err_set(err, RP_FAILED_PRECONDITION, "some have %u fields and some %u", first->n_fields,
                       other->n_fields);
    for (uint32_t f = 0; f < first->n_fields; f++) {
        const struct batch_field *want = &first->fields[f], *have = &other->fields[f];
        map[f] = f;
        if (fields_agree(want, have))
            continue;
        uint32_t k = 0;
        while (k < other->n_fields && strcmp(other->fields[k].name, want->name) != 0)
            k++;
        if (k == other->n_fields)
            return err_set(err, RP_FAILED_PRECONDITION, "some have a field '%s' and some do not", want->name);
        map[f] = k;
        if (fields_agree(want, &other->fields[k]))
            continue;
        char a[96], b[96];
        field_describe(want, a, sizeof a);
        field_describe(&other->fields[k], b, sizeof b);
        return err_set(err, RP_FAILED_PRECONDITION, "field '%s' is %s in some and %s in others", want->name, a, b);
    }
    return RP_OK;
}

/* Finds the layouts whose items fit into one batch. */
static rp_status read_groups(struct batch_decoder *self, uint32_t n, rp_error *err)
{
    const struct batch_layout *const *layouts = self->layouts.data;
    self->most_fields = self->n_groups = 0;
    for (uint32_t l = 0; l < n; l++)
        self->most_fields = layouts[l]->n_fields > self->most_fields ? layouts[l]->n_fields : self->most_fields;
    if (!vec_reserve(&self->groups, n, sizeof(uint32_t)) ||
        !vec_reserve(&self->maps, (uint64_t)n * self->most_fields, sizeof(uint32_t)))
        return no_memory(err);
    uint32_t *groups = self->groups.data;
    self->why.text[0] = '\0';
    for (uint32_t l = 0; l < n; l++) {
        uint32_t *map = (uint32_t *)self->maps.data + (size_t)l * self->most_fields;
        groups[l] = l;
        for (uint32_t g = 0; g < l && groups[l] == l; g++) {
            rp_error *why = self->why.text[0] ? NULL : &self->why;
            if (groups[g] == g && map_fields(layouts[g], layouts[l], map, why) == RP_OK)
                groups[l] = g;
        }
        self->n_groups += groups[l] == l;
        for (uint32_t f = 0; f < layouts[l]->n_fields && groups[l] == l; f++)
            map[f] = f;
    }
    return RP_OK;
}

static rp_status read_layouts(struct batch_decoder *self, const struct wire_sampled *view, rp_error *err)
{
    if (self->n_kept > KEPT_LAYOUTS)
        free_layouts(self);
    if (!vec_reserve(&self->layouts, view->n_layouts, sizeof(struct batch_layout *)))
        return no_memory(err);
    const struct batch_layout **layouts = self->layouts.data;
    struct pb_reader reader = pb_reader(view->layouts, view->layouts_size);
    struct pb_field field;
    uint32_t n = 0;
    while (n < view->n_layouts && pb_next(&reader, &field) == 1) {
        if (field.number == 20 && field.wire == PB_BYTES)
            RP_TRY(layout_get(self, field.data, field.size, &layouts[n++], err));
    }
    if (n != view->n_layouts)
        return damaged(err, "a layout is missing");
    return read_groups(self, n, err);
}

/* ---- copying rows ---- */

static rp_status block_damaged(const struct batch_block *block, const struct batch_field *field, rp_error *err)
{
    if (block->codec == RP_CODEC_ABSENT)
        return err_set(err, RP_DATA_LOSS, "field '%s' has no data in some of its steps", field->name);
    return err_set(err, RP_DATA_LOSS, "a block of field '%s' has a size that cannot be right", field->name);
}

/* Returns the bytes of a compressed block; of one in the broker's memory a copy: a decoder relies on what it has checked. NULL: no memory. */
static const uint8_t *block_bytes(struct batch_worker *self, const struct batch_block *block)
{
    if (!block->mapped)
        return block->data;
    return vec_reserve(&self->stable, block->size, 1) ? memcpy(self->stable.data, block->data, block->size) : NULL;
}

/* Decodes the rows of a block, into `whole` unless it is NULL. */
static rp_status block_open(struct batch_worker *self, struct batch_block *block, const struct batch_field *field,
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
        uint8_t *out = whole ? whole : slabs_take(&self->slabs, (size_t)bytes);
        const uint8_t *from = block_bytes(self, block);
        if (!out || !from)
            return no_memory(err);
        struct codec_shape shape = {.elem_bytes = field->elem_bytes,
                                    .is_integer = field->is_integer,
                                    .row_bytes = field->row_bytes,
                                    .rows = length,
                                    .rank = field->rank};
        RP_TRY(codec_decode(&self->scratch, block->codec, &shape, from, block->size, out, err));
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
    struct batch_worker *opens; /* blocks when they are needed; NULL: all were opened that can be */
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
        if (!g->opens)
            return block_damaged(block, field, err);
        bool whole = at == 0 && rows == chunk->length && field->stride == 1;
        RP_TRY(block_open(g->opens, block, field, chunk->length, whole ? out : NULL, err));
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
    return rows ? damaged(err, "an item is longer than its chunks") : RP_OK;
}

static rp_status gather_item(struct gather *g, const struct batch_item *item, uint8_t *out, rp_error *err)
{
    struct batch_decoder *self = g->decoder;
    const struct batch_chunk *chunk = (const struct batch_chunk *)self->chunks.data + item->chunk;
    uint64_t last = (uint64_t)item->offset + g->first + (uint64_t)(g->rows - 1) * g->field->stride;
    rp_status status = last < chunk->length ? gather_block(g, chunk, item->offset + g->first, g->rows, out, err)
                                            : gather_chunks(g, item, out, err);
    if (status != RP_OK)
        err_prefix(err, "item %llu", (unsigned long long)pb_u64(&self->view->key, item->at));
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

/* Items of a batch. */
struct batch_range {
    uint32_t first, end;
};

/* Copies `bytes` bytes of each item: item i is at `from`, plus `step` times its chunk. */
static void regular_copy(const struct wire_sampled *view, struct batch_range items, const uint8_t *from, size_t step,
                         size_t bytes, uint8_t *out, size_t out_step)
{
    const uint8_t *index = view->chunk.n ? view->chunk.data : NULL;
    out += items.first * out_step;
    if (!index && step == bytes && out_step == bytes) {
        memcpy(out, from + items.first * step, (items.end - items.first) * bytes);
        return;
    }
    if (bytes <= 8) {
        for (uint32_t i = items.first; i < items.end; i++, out += out_step)
            copy_bytes(out, from + batch_chunk_at(index, i) * step, bytes);
        return;
    }
    for (uint32_t i = items.first; i < items.end; i++, out += out_step)
        memcpy(out, from + batch_chunk_at(index, i) * step, bytes);
}

static void gather_regular(const struct batch_decoder *self, const struct batch_spec_field *to,
                           struct batch_range items, uint8_t *out, uint32_t *lengths)
{
    const struct wire_sampled *view = self->view;
    const struct batch_field *field = to->from;
    size_t row = field->row_bytes, step = self->regular.chunk_bytes;
    uint32_t rows = (uint32_t)to->steps;
    if (field->stride == 1 || rows == 1) {
        regular_copy(view, items, to->rows_at, step, row * rows, out, row * rows);
    } else {
        for (uint32_t k = 0; k < rows; k++)
            regular_copy(view, items, to->rows_at + k * row * field->stride, step, row, out + k * row, row * rows);
    }
    for (uint32_t i = items.first; to->variable && i < items.end; i++)
        lengths[i] = rows;
}

/* Returns the rows that field f takes from the items before one. Items that are too short were refused when the batch was planned. */
static uint64_t rows_before(const struct batch_decoder *self, uint32_t f, uint32_t item)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < item; i++) {
        uint32_t first, rows = 0;
        field_rows(field_of(self, f, self->items[i].layout), self->items[i].length, &first, &rows);
        sum += rows;
    }
    return sum;
}

/* Copies the rows of field f of some items. opens: see struct gather. */
static rp_status gather_field(struct batch_decoder *self, struct batch_worker *opens, uint32_t f,
                              const struct batch_spec_field *to, struct batch_range items, uint8_t *out,
                              uint32_t *lengths, rp_error *err)
{
    if (self->regular.on) {
        gather_regular(self, to, items, out, lengths);
        return RP_OK;
    }
    struct gather g = {.decoder = self, .opens = opens, .field = to->from};
    const bool alike = self->one_layout && self->view->length.n == 1;
    out += (to->packed ? rows_before(self, f, items.first) : items.first) * to->item_bytes;
    for (uint32_t i = items.first; i < items.end; i++) {
        const struct batch_item *item = &self->items[i];
        if (!self->one_layout)
            g.field = field_of(self, f, item->layout);
        if (!(alike && i > items.first) && !field_rows(g.field, item->length, &g.first, &g.rows))
            return too_short(pb_u64(&self->view->key, item->at), item->length, g.field, err);
        RP_TRY(gather_item(&g, item, out, err));
        size_t bytes = (size_t)g.rows * g.field->row_bytes;
        if (to->variable) {
            lengths[i] = g.rows;
            if (!to->packed)
                memset(out + bytes, 0, (size_t)to->item_bytes - bytes);
        }
        out += to->packed ? bytes : to->item_bytes;
    }
    return RP_OK;
}

/* ---- a batch ---- */

static rp_status plan_field(struct batch_decoder *self, uint32_t f, struct batch_spec_field *out, rp_error *err)
{
    const struct wire_sampled *view = self->view;
    const uint32_t *groups = self->groups.data;
    const struct batch_field *field = field_of(self, f, self->group);
    const bool packed = self->options.packed && !field->squeeze;
    bool variable = field->count == 0 || packed;
    for (uint32_t l = self->group + 1; l < view->n_layouts; l++)
        variable |= groups[l] == self->group && field_of(self, f, l)->count != field->count;
    uint32_t first, rows, steps = field->count;
    uint64_t sum = 0;
    const uint8_t *rows_at = NULL;
    if (self->regular.on) {
        if (!field_rows(field, self->regular.length, &first, &steps))
            return too_short(pb_u64(&view->key, 0), self->regular.length, field, err);
        rows_at = regular_find(self, field);
        if (!rows_at)
            return damaged(err, "a block is missing or has a size that cannot be right");
        rows_at += (size_t)(self->regular.offset + first) * field->row_bytes;
        sum = (uint64_t)steps * self->n_items;
    } else if (variable || steps > 1) {
        steps = 0;
        for (uint32_t i = 0; i < self->n_items; i++) {
            const struct batch_item *item = &self->items[i];
            if (!field_rows(field_of(self, f, item->layout), item->length, &first, &rows))
                return too_short(pb_u64(&view->key, item->at), item->length, field, err);
            steps = rows > steps ? rows : steps;
            sum += rows;
        }
    }
    *out = (struct batch_spec_field){
        .from = field,
        .rows_at = rows_at,
        .steps = steps,
        .item_bytes = (packed ? 1 : (uint64_t)steps) * field->row_bytes,
        .variable = variable,
        .packed = packed,
        .rows = sum,
        .view = {.name = field->name, .dtype = field->dtype, .rank = 1, .squeezed = field->squeeze}};
    if (!field->squeeze && !packed)
        out->view.shape[out->view.rank++] = steps;
    for (uint32_t k = 0; k < field->rank; k++)
        out->view.shape[out->view.rank++] = field->shape[k];
    return RP_OK;
}

/* Fills in what a batch of the current items needs: its fields, and how many bytes each item takes in them. */
static rp_status plan_batch(struct batch_decoder *self, struct batch_spec *spec, rp_error *err)
{
    uint64_t most = self->options.max_bytes ? self->options.max_bytes : UINT64_MAX / 4;
    if (!vec_reserve(&self->fields, self->n_fields, sizeof(struct batch_spec_field)))
        return no_memory(err);
    *spec = (struct batch_spec){.n = self->n_items,
                                .n_fields = self->n_fields,
                                .fields = self->fields.data,
                                .max_bytes = most,
                                .limit = most > self->made_bytes ? most - self->made_bytes : 0,
                                .packed = self->options.packed,
                                .groups = self->view->group.n > 0,
                                .in_reply = self->options.leave_items && self->regular.on && !self->copied &&
                                            !is_packed_there(self->view)};
    for (uint32_t f = 0; f < self->n_fields; f++) {
        struct batch_spec_field *field = &spec->fields[f];
        RP_TRY(plan_field(self, f, field, err));
        spec->in_reply = spec->in_reply && (field->from->stride == 1 || field->steps == 1);
    }
    return RP_OK;
}

/* Writes an array of the reply for the items of the batch. */
static void fill_array(const struct batch_decoder *self, const struct pb_array *from, size_t width, void *out)
{
    if (self->n_items == self->view->n_items)
        batch_expand(from, 0, self->n_items, width, out);
    for (uint32_t i = 0; i < self->n_items && self->n_items < self->view->n_items; i++)
        batch_expand(from, self->items[i].at, 1, width, (uint8_t *)out + i * width);
}

/* Fills the items' arrays, or leaves them in the reply. */
static void fill_arrays(const struct batch_decoder *self, bool in_reply, struct rp_batch *batch)
{
    const struct wire_sampled *view = self->view;
    struct batch_in_reply left = {
        .step = in_reply ? self->regular.chunk_bytes : 0,
        .index = view->chunk.n ? view->chunk.data : NULL,
        .wide = {view->key, view->priority, view->probability, view->age_ns, view->policy, view->step, view->group},
        .narrow = {view->times_sampled, view->session}};
    if (in_reply) {
        batch->in_reply = left;
        return;
    }
    for (uint32_t k = 0; k < batch->n_wide; k++)
        fill_array(self, &left.wide[k], 8, batch_wide(batch, k));
    for (uint32_t k = 0; k < BATCH_NARROW; k++)
        fill_array(self, &left.narrow[k], 4, batch_narrow(batch, k));
    /* One probability for all: equal weights. */
    batch_set_weights(batch, view->probability.n <= 1 ? 0 : self->options.beta);
}

/* Gathers the rows of some items, field by field. */
static rp_status gather_items(struct batch_decoder *self, struct batch_worker *opens, const struct batch_spec *spec,
                              struct batch_range items, const struct rp_batch *batch, rp_error *err)
{
    for (uint32_t f = 0; f < spec->n_fields; f++) {
        const rp_field_view *out = &batch->fields[f];
        RP_TRY(
            gather_field(self, opens, f, &spec->fields[f], items, out->data, (uint32_t *)(uintptr_t)out->lengths, err));
    }
    return RP_OK;
}

/* A batch that several threads fill. */
struct batch_job {
    struct batch_decoder *decoder;
    const struct batch_spec *spec;
    struct rp_batch *batch;
    uint32_t slices;
};

static struct batch_range slice_of(const struct batch_job *self, uint32_t n, uint32_t slice)
{
    return (struct batch_range){(uint32_t)((uint64_t)n * slice / self->slices),
                                (uint32_t)((uint64_t)n * (slice + 1) / self->slices)};
}

/* Opens the blocks of some chunks that the fields may need. One that cannot be opened is an error of the item that needs it. */
static void open_slice(void *ctx, uint32_t worker, uint32_t slice)
{
    const struct batch_job *job = ctx;
    struct batch_decoder *self = job->decoder;
    struct batch_worker *by = &self->workers[worker];
    struct batch_range range = slice_of(job, self->view->n_chunks, slice);
    const struct batch_chunk *chunks = self->chunks.data;
    for (uint32_t f = 0; f < job->spec->n_fields; f++) {
        const struct batch_field *field = job->spec->fields[f].from;
        uint32_t hint = 0;
        for (uint32_t c = range.first; c < range.end && by->error.status != RP_NO_MEMORY; c++) {
            struct batch_block *block = block_find(self, &chunks[c], field->column, &hint);
            if (block && !block->row_bytes && field->row_bytes)
                block_open(by, block, field, chunks[c].length, NULL, &by->error);
        }
    }
}

static void gather_slice(void *ctx, uint32_t worker, uint32_t slice)
{
    const struct batch_job *job = ctx;
    struct batch_worker *by = &job->decoder->workers[worker];
    struct batch_range range = slice_of(job, job->spec->n, slice);
    if (by->error.status == RP_OK)
        gather_items(job->decoder, NULL, job->spec, range, job->batch, &by->error);
}

/* Gives the first error of the threads that is one of `kind`; RP_OK: of any kind. */
static rp_status worker_errors(struct batch_decoder *self, rp_status kind, rp_error *err)
{
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < crew_size(self->crew); i++) {
        rp_error *error = &self->workers[i].error;
        if (status == RP_OK && error->status != RP_OK && (kind == RP_OK || error->status == (int32_t)kind))
            status = err_set(err, (rp_status)error->status, "%s", error->text);
        error->status = RP_OK;
    }
    return status;
}

/* Gathers all rows, by several threads if the batch is large. They share no block that is not open, and open those of all chunks: one
 * thread does it if some chunks are not of these fields. */
static rp_status gather_all(struct batch_decoder *self, const struct batch_spec *spec, struct rp_batch *batch,
                            rp_error *err)
{
    struct batch_job job = {self, spec, batch, crew_size(self->crew) * SLICES};
    if (spec->bytes < (self->options.large ? self->options.large : LARGE_BATCH) || crew_size(self->crew) == 1 ||
        !self->one_layout || self->n_groups > 1)
        return gather_items(self, &self->workers[0], spec, (struct batch_range){0, spec->n}, batch, err);
    if (!self->regular.on) {
        crew_run(self->crew, job.slices, open_slice, &job);
        RP_TRY(worker_errors(self, RP_NO_MEMORY, err));
    }
    crew_run(self->crew, job.slices, gather_slice, &job);
    return worker_errors(self, RP_OK, err);
}

/* Gathers the rows of the fields, or leaves them in the reply. */
static rp_status fill_fields(struct batch_decoder *self, const struct batch_spec *spec, struct rp_batch *batch,
                             rp_error *err)
{
    if (!spec->in_reply)
        return gather_all(self, spec, batch, err);
    for (uint32_t f = 0; f < spec->n_fields; f++) {
        const struct batch_spec_field *field = &spec->fields[f];
        rp_field_view *out = &batch->fields[f];
        out->data = (void *)(uintptr_t)field->rows_at;
        for (uint32_t i = 0; field->variable && i < spec->n; i++)
            ((uint32_t *)(uintptr_t)out->lengths)[i] = (uint32_t)field->steps;
    }
    return RP_OK;
}

/* Makes a batch of the current items. */
static rp_status build(struct batch_decoder *self, struct wire_string text, struct rp_batch **out, rp_error *err)
{
    const struct wire_sampled *view = self->view;
    struct batch_spec spec;
    struct rp_batch *batch;
    RP_TRY(plan_batch(self, &spec, err));
    RP_TRY(batch_make(self->pool, &spec, &batch, err));
    self->made_bytes += spec.bytes;
    batch->info.partial = view->partial || self->n_items < view->n_items;
    batch->info.table_size = view->table_size;
    batch->info.waited_ns = view->waited_ns;
    batch_set_text(batch, text.data, text.size);
    batch->mass = view->mass;
    batch->room = view->room;
    fill_arrays(self, spec.in_reply, batch);
    rp_status status = fill_fields(self, &spec, batch, err);
    if (status != RP_OK)
        rp_batch_release(&batch);
    *out = batch;
    return status;
}

/* Makes the items of a group the current ones. */
static rp_status use_group(struct batch_decoder *self, uint32_t group, rp_error *err)
{
    const struct wire_sampled *view = self->view;
    const struct batch_layout *const *layouts = self->layouts.data;
    const uint32_t *groups = self->groups.data;
    const struct batch_item *all = self->regular.on ? NULL : self->all_items.data;
    self->group = group;
    self->n_fields = view->n_layouts ? layouts[group]->n_fields : 0;
    self->n_items = view->n_items;
    self->items = all;
    uint32_t n_layouts = 0;
    for (uint32_t l = 0; l < view->n_layouts; l++)
        n_layouts += groups[l] == group;
    self->one_layout = n_layouts == 1;
    if (self->n_groups <= 1 || !all)
        return RP_OK;
    if (!vec_reserve(&self->part, view->n_items, sizeof(struct batch_item)))
        return no_memory(err);
    struct batch_item *items = self->part.data;
    self->items = items;
    self->n_items = 0;
    for (uint32_t i = 0; i < view->n_items; i++)
        if (groups[all[i].layout] == group)
            items[self->n_items++] = all[i];
    return RP_OK;
}

/* ---- replies ---- */

/* Makes a batch for each group of layouts that has items. */
static rp_status split(struct batch_decoder *self, struct wire_string text, struct rp_batch **out, rp_error *err)
{
    const uint32_t *groups = self->groups.data;
    struct rp_batch **end = out;
    rp_status status = RP_OK;
    for (uint32_t l = 0; l < self->view->n_layouts && status == RP_OK; l++) {
        status = groups[l] == l ? use_group(self, l, err) : RP_OK;
        if (groups[l] != l || status != RP_OK || self->n_items == 0)
            continue;
        char why[sizeof((*out)->text)];
        struct wire_string said = text;
        if (!text.size && self->n_items < self->view->n_items) {
            snprintf(why, sizeof why,
                     "the %u items of the reply do not all have the same fields, this batch has %u of them: %s",
                     self->view->n_items, self->n_items, self->why.text);
            said = (struct wire_string){why, (uint32_t)strlen(why)};
        }
        status = build(self, said, end, err);
        if (*end)
            end = &(*end)->next;
    }
    if (status != RP_OK)
        batch_list_release(out);
    return status;
}

static bool is_place(const struct batch_reply *reply, uint64_t place)
{
    return place >= PLACE_ALIGN && place % PLACE_ALIGN == 0 && place <= reply->arena_size;
}

static rp_status check_places(const struct batch_reply *reply, rp_error *err)
{
    const struct wire_sampled *view = reply->view;
    bool inside = true;
    for (uint32_t i = 0; i < view->place.n; i++)
        inside = inside && is_place(reply, pb_u64(&view->place, i));
    if (is_packed_there(view))
        inside = inside && is_place(reply, pb_u64(&view->packed_at, 0)) &&
                 pb_u64(&view->packed_at, 2) <= reply->arena_size - pb_u64(&view->packed_at, 0);
    return inside ? RP_OK : damaged(err, "it names a place outside the broker's memory");
}

static bool has_stamp(const struct batch_reply *reply, uint64_t place, uint64_t stamp)
{
    const uint64_t *at = (const uint64_t *)(const void *)(reply->arena + place - PLACE_ALIGN);
    return __atomic_load_n(at, __ATOMIC_RELAXED) == stamp;
}

/* True if the data in the broker's memory was that of the reply until now. */
static bool is_unchanged(const struct batch_reply *reply)
{
    const struct wire_sampled *view = reply->view;
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* the rows were read before */
    for (uint32_t i = 0; i < view->place.n; i++)
        if (!has_stamp(reply, pb_u64(&view->place, i), pb_u64(&view->stamp, i)))
            return false;
    const struct pb_array *packed = &view->packed_at;
    return !is_packed_there(view) || has_stamp(reply, pb_u64(packed, 0), pb_u64(packed, 1));
}

static rp_status decode_reply(struct batch_decoder *self, const struct batch_reply *reply, struct rp_batch **out,
                              rp_error *err)
{
    const struct wire_sampled *view = reply->view;
    RP_TRY(check_frames(view, reply->frames, reply->n_frames, err));
    read_regular(self, reply);
    if (!self->regular.on) {
        RP_TRY(read_chunks(self, reply, err));
        RP_TRY(read_items(self, view, err));
    }
    RP_TRY(read_layouts(self, view, err));
    if (self->n_groups > 1 && view->n_items)
        return split(self, reply->text, out, err);
    RP_TRY(use_group(self, 0, err));
    return build(self, reply->text, out, err);
}

static rp_status overtaken(struct batch_decoder *self, struct rp_batch **out, rp_error *err)
{
    self->shared.overtaken = true;
    batch_list_release(out);
    return err_set(err, RP_DATA_LOSS, "the broker uses the memory of a reply for other data: ask for the items again");
}

/* Decodes a reply whose header is here. */
static rp_status decode_here(struct batch_decoder *self, const struct batch_reply *reply, struct rp_batch **out,
                             rp_error *err)
{
    bool shared = reply->view->place.n > 0 || is_packed_there(reply->view);
    self->view = reply->view;
    self->made_bytes = 0;
    for (uint32_t i = 0; i < crew_size(self->crew); i++)
        slabs_reset(&self->workers[i].slabs, SLAB_KEEP);
    if (shared && !reply->arena)
        return overtaken(self, out, err);
    if (reply->arena)
        RP_TRY(check_places(reply, err));
    rp_status status = decode_reply(self, reply, out, err);
    self->shared.bytes = shared ? self->made_bytes : 0;
    return shared && !is_unchanged(reply) ? overtaken(self, out, err) : status;
}

rp_status batch_decode(struct batch_decoder *self, const struct batch_reply *reply, struct rp_batch **out,
                       rp_error *err)
{
    const struct pb_array *at = &reply->view->head_at;
    *out = NULL;
    self->shared = (struct batch_shared){0};
    self->copied = at->n > 0;
    if (!self->copied)
        return decode_here(self, reply, out, err);
    if (!reply->arena)
        return overtaken(self, out, err);
    uint64_t place = pb_u64(at, 0), offset = pb_u64(at, 2), bytes = pb_u64(at, 3), size = reply->arena_size;
    if (!is_place(reply, place) || offset > size - place || bytes > size - place - offset)
        return damaged(err, "it names a place outside the broker's memory");
    if (!vec_reserve(&self->head, bytes, 1))
        return no_memory(err);
    memcpy(self->head.data, reply->arena + place + offset, (size_t)bytes);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!has_stamp(reply, place, pb_u64(at, 1)))
        return overtaken(self, out, err);
    struct wire_sampled view;
    struct batch_reply here = *reply;
    here.view = &view;
    RP_TRY(wire_read_sampled(self->head.data, (size_t)bytes, &view, err));
    return view.head_at.n ? damaged(err, "its header is in two places") : decode_here(self, &here, out, err);
}

struct batch_shared batch_decoder_shared(const struct batch_decoder *self)
{
    return self->shared;
}

struct batch_decoder *batch_decoder_new(struct batch_pool *pool, const struct batch_options *options)
{
    struct batch_decoder *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    uint32_t threads = options->threads ? options->threads : 1;
    self->pool = batch_pool_ref(pool);
    self->options = *options;
    self->crew = crew_new(threads);
    self->workers = calloc(threads, sizeof *self->workers);
    if (!self->crew || !self->workers)
        batch_decoder_destroy(&self);
    return self;
}

void batch_decoder_destroy(struct batch_decoder **self)
{
    struct batch_decoder *decoder = *self;
    *self = NULL;
    if (!decoder)
        return;
    struct batch_vec *vecs[] = {&decoder->blocks,  &decoder->chunks, &decoder->all_items,
                                &decoder->layouts, &decoder->groups, &decoder->maps,
                                &decoder->part,    &decoder->fields, &decoder->head};
    for (size_t i = 0; i < sizeof vecs / sizeof vecs[0]; i++)
        free(vecs[i]->data);
    for (uint32_t i = 0; decoder->workers && decoder->crew && i < crew_size(decoder->crew); i++) {
        slabs_reset(&decoder->workers[i].slabs, 0);
        codec_scratch_fini(&decoder->workers[i].scratch);
        free(decoder->workers[i].stable.data);
    }
    crew_destroy(&decoder->crew);
    free(decoder->workers);
    free_layouts(decoder);
    batch_pool_unref(&decoder->pool);
    free(decoder);
}

rp_status batch_decode_reply(struct batch_decoder *self, struct conn_reply *reply, struct rp_batch **out, rp_error *err)
{
    struct batch_frame few[FEW_FRAMES] = {{0}}, *frames = few;
    struct wire_sampled view;
    self->shared = (struct batch_shared){0};
    if (reply->view.body != REPLAY__REPLY__BODY_SAMPLE)
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply holds no items");
    RP_TRY(wire_read_sampled(reply->view.data, reply->view.size, &view, err));
    if (reply->n_payload > FEW_FRAMES) {
        frames = malloc(reply->n_payload * sizeof *frames);
        if (!frames)
            return err_set(err, RP_NO_MEMORY, "no memory for a reply of %u frames", reply->n_payload);
    }
    for (uint32_t i = 0; i < reply->n_payload; i++)
        frames[i] = (struct batch_frame){zmq_msg_data(&reply->payload[i]), zmq_msg_size(&reply->payload[i])};
    struct batch_reply read = {&view, reply->view.text, frames, reply->n_payload, NULL, 0};
    if (reply->arena) {
        read.arena = reply->arena->data;
        read.arena_size = reply->arena->size;
    }
    rp_status status = batch_decode(self, &read, out, err);
    if (frames != few)
        free(frames);
    return status;
}
