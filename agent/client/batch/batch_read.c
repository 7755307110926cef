/* Finds the pieces of a sample reply, and checks everything that batch_gather.c relies on. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/batch/batch_decoder.h"
#include "proto/base/error.h"

/* Chunks, and blocks, without data that a reply may have: a broker puts no more chunks into one. */
#define SPARE_EMPTY (UINT64_C(1) << 20)

bool batch_vec_reserve(struct batch_vec *self, uint64_t n, size_t size)
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

rp_status batch_no_memory(rp_error *err)
{
    return err_set(err, RP_NO_MEMORY, "no memory to decode a batch");
}

rp_status batch_damaged(rp_error *err, const char *what)
{
    return err_set(err, RP_DATA_LOSS, "the broker's reply is damaged: %s", what);
}

rp_status batch_too_short(const struct wire_sampled *view, uint32_t i, const struct batch_field *field, rp_error *err)
{
    return err_set(err, RP_DATA_LOSS, "item %llu has %u steps, too few for its field '%s'",
                   (unsigned long long)pb_u64(&view->key, i), pb_u32(&view->length, i), field->name);
}

rp_status batch_check_counts(const struct wire_sampled *view, const struct batch_frame *frames, uint32_t n_frames,
                             rp_error *err)
{
    if (view->n_items == 0 && view->n_chunks == 0 && view->n_blocks == 0)
        return RP_OK; /* an empty frame is allowed */
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_frames; i++)
        bytes += frames[i].size;
    if (view->packed > view->n_chunks || n_frames != (view->packed > 0) + (uint64_t)(view->n_chunks - view->packed))
        return batch_damaged(err, "the number of frames does not match its chunks");
    /* An array of one element for all could claim any number of empty chunks. */
    if (view->n_chunks > bytes + SPARE_EMPTY || view->n_blocks > bytes + SPARE_EMPTY)
        return batch_damaged(err, "more chunks than bytes");
    uint32_t n = view->n_items;
    const struct pb_array *each[] = {&view->priority, &view->probability, &view->times_sampled, &view->age_ns,
                                     &view->policy,   &view->step,        &view->session,       &view->layout,
                                     &view->offset,   &view->length,      &view->chunks};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        if (each[i]->n > 1 && each[i]->n != n)
            return batch_damaged(err, "arrays of different lengths");
    }
    if (view->key.n != n || (n && (!view->length.n || !view->chunks.n)))
        return batch_damaged(err, "an array is missing");
    if (view->n_chunks && (!view->chunk_length.n || !view->chunk_blocks.n ||
                           (view->chunk_length.n > 1 && view->chunk_length.n != view->n_chunks) ||
                           (view->chunk_blocks.n > 1 && view->chunk_blocks.n != view->n_chunks)))
        return batch_damaged(err, "arrays of chunks of different lengths");
    if (view->n_blocks && (!view->block_size.n || (view->block_size.n > 1 && view->block_size.n != view->n_blocks) ||
                           (view->block_codec.n > 1 && view->block_codec.n != view->n_blocks)))
        return batch_damaged(err, "arrays of blocks of different lengths");
    return RP_OK;
}

/* The columns of the first chunk's blocks stand for all chunks if they are not listed for each. */
static rp_status check_columns(const struct wire_sampled *view, bool *shared, rp_error *err)
{
    *shared = view->block_column.n != view->n_blocks;
    if (*shared && (view->chunk_blocks.n != 1 || view->block_column.n != pb_u32(&view->chunk_blocks, 0)))
        return batch_damaged(err, "the columns of its blocks are not listed");
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

void batch_read_regular(struct batch_decoder *self, const struct wire_sampled *view, const struct batch_frame *frames,
                        uint32_t n_frames)
{
    struct batch_regular *out = &self->regular;
    out->on = false;
    if (view->n_items == 0 || n_frames != 1 || view->packed != view->n_chunks || view->n_layouts != 1 ||
        view->layout.n > 1 || view->length.n != 1 || view->offset.n > 1 || view->chunks.n != 1 ||
        view->chunk_length.n != 1 || view->chunk_blocks.n != 1 || view->block_codec.n > 1)
        return;
    out->n_blocks = pb_u32(&view->chunk_blocks, 0);
    out->length = pb_u32(&view->length, 0);
    out->chunk_length = pb_u32(&view->chunk_length, 0);
    out->offset = view->offset.n ? pb_u32(&view->offset, 0) : 0;
    if ((view->layout.n && pb_u32(&view->layout, 0) != 0) || pb_u32(&view->chunks, 0) != 1 || out->length == 0 ||
        (uint64_t)out->offset + out->length > out->chunk_length || view->block_column.n != out->n_blocks ||
        view->n_blocks != (uint64_t)view->n_chunks * out->n_blocks ||
        (view->block_codec.n && pb_u8(&view->block_codec, 0) != RP_CODEC_RAW) ||
        view->n_items != (view->chunk.n ? view->chunk.n : view->n_chunks))
        return;
    for (uint32_t i = 0; i < view->chunk.n; i++) {
        if (pb_u32(&view->chunk, i) >= view->n_chunks)
            return;
    }
    out->chunk_bytes = alike_bytes(view, out->n_blocks);
    out->data = frames[0].data;
    out->on = out->chunk_bytes && frames[0].size / out->chunk_bytes == view->n_chunks &&
              frames[0].size % out->chunk_bytes == 0;
}

rp_status batch_read_chunks(struct batch_decoder *self, const struct wire_sampled *view,
                            const struct batch_frame *frames, rp_error *err)
{
    bool shared;
    if (view->n_blocks == 0)
        return view->n_items ? batch_damaged(err, "it holds no data") : RP_OK;
    RP_TRY(check_columns(view, &shared, err));
    if (!batch_vec_reserve(&self->chunks, view->n_chunks, sizeof(struct batch_chunk)) ||
        !batch_vec_reserve(&self->blocks, view->n_blocks, sizeof(struct batch_block)))
        return batch_no_memory(err);
    struct batch_chunk *chunks = self->chunks.data;
    struct batch_block *block = self->blocks.data, *blocks = block, *end_blocks = block + view->n_blocks;
    const uint8_t *columns = view->block_column.data;
    size_t size_step = view->block_size.n == 1 ? 0 : 4, codec_step = view->block_codec.n <= 1 ? 0 : 1;
    static const uint8_t raw = RP_CODEC_RAW;
    const uint8_t *sizes = view->block_size.data, *codecs = view->block_codec.n ? view->block_codec.data : &raw;
    const uint8_t *at = NULL, *end = NULL;
    for (uint32_t c = 0; c < view->n_chunks; c++) {
        if (c == 0 || c >= view->packed) {
            const struct batch_frame *frame = &frames[c < view->packed ? 0 : (view->packed > 0) + (c - view->packed)];
            at = frame->data;
            end = at + frame->size;
        }
        uint32_t n = pb_u32(&view->chunk_blocks, c);
        if (n > (size_t)(end_blocks - block))
            return batch_damaged(err, "more blocks than announced");
        chunks[c] = (struct batch_chunk){(uint32_t)(block - blocks), n, pb_u32(&view->chunk_length, c)};
        for (uint32_t k = 0; k < n; k++, block++, sizes += size_step, codecs += codec_step) {
            uint32_t size;
            memcpy(&size, sizes, 4);
            if (size > (size_t)(end - at))
                return batch_damaged(err, "a frame is shorter than its blocks");
            *block = (struct batch_block){.data = at, .size = size, .codec = *codecs, .column = columns[k]};
            at += size;
        }
        if (!shared)
            columns += n;
        if ((c + 1 >= view->packed) && at != end)
            return batch_damaged(err, "a frame is longer than its blocks");
    }
    return block == end_blocks ? RP_OK : batch_damaged(err, "fewer blocks than announced");
}

/* Fills items and refs: the chunks that each item spans. */
rp_status batch_read_items(struct batch_decoder *self, const struct wire_sampled *view, rp_error *err)
{
    uint64_t n_refs = 0;
    for (uint32_t i = 0; i < view->n_items; i++)
        n_refs += pb_u32(&view->chunks, i);
    if (n_refs != (view->chunk.n ? view->chunk.n : view->n_chunks))
        return batch_damaged(err, "items and chunks do not match");
    if (!batch_vec_reserve(&self->items, view->n_items, sizeof(struct batch_item)))
        return batch_no_memory(err);
    struct batch_item *items = self->items.data;
    const struct batch_chunk *chunks = self->chunks.data;
    uint32_t at = 0;
    for (uint32_t i = 0; i < view->n_items; i++) {
        struct batch_item item = {.layout = view->layout.n ? pb_u32(&view->layout, i) : 0,
                                  .first_ref = at,
                                  .n_refs = pb_u32(&view->chunks, i),
                                  .offset = view->offset.n ? pb_u32(&view->offset, i) : 0,
                                  .length = pb_u32(&view->length, i)};
        uint64_t steps = 0;
        for (uint32_t k = 0; k < item.n_refs; k++, at++) {
            uint32_t c = view->chunk.n ? pb_u32(&view->chunk, at) : at;
            if (c >= view->n_chunks)
                return batch_damaged(err, "an item refers to a chunk that is not there");
            if (k == 0)
                item.chunk = c;
            steps += chunks[c].length;
        }
        if (item.length == 0 || item.layout >= view->n_layouts || (uint64_t)item.offset + item.length > steps ||
            item.offset >= chunks[item.chunk].length)
            return batch_damaged(err, "an item is longer than its chunks");
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
        if (batch_layout_agrees(want, have))
            continue;
        uint32_t k = 0;
        while (k < other->n_fields && strcmp(other->fields[k].name, want->name) != 0)
            k++;
        if (k == other->n_fields)
            return err_set(err, RP_FAILED_PRECONDITION, "some have a field '%s' and some do not", want->name);
        map[f] = k;
        if (batch_layout_agrees(want, &other->fields[k]))
            continue;
        char a[96], b[96];
        batch_layout_describe(want, a, sizeof a);
        batch_layout_describe(&other->fields[k], b, sizeof b);
        return err_set(err, RP_FAILED_PRECONDITION, "field '%s' is %s in some and %s in others", want->name, a, b);
    }
    return RP_OK;
}

static bool maps_reserve(struct batch_decoder *self, uint64_t n_layouts, uint32_t n_fields)
{
    return batch_vec_reserve(&self->maps, (n_layouts ? n_layouts : 1) * n_fields, sizeof(uint32_t));
}

static rp_status read_groups(struct batch_decoder *self, uint32_t n, rp_error *err)
{
    const struct batch_layout *const *layouts = self->all_layouts.data;
    if (!batch_vec_reserve(&self->groups, n, sizeof(uint32_t)))
        return batch_no_memory(err);
    uint32_t *groups = self->groups.data;
    self->n_groups = n > 0;
    self->why.text[0] = '\0';
    if (n)
        groups[0] = 0;
    for (uint32_t l = 1; l < n; l++) {
        groups[l] = l;
        if (!maps_reserve(self, 1, layouts[l]->n_fields))
            return batch_no_memory(err);
        for (uint32_t g = 0; g < l && groups[l] == l; g++) {
            rp_error *why = self->why.text[0] ? NULL : &self->why;
            if (groups[g] == g && map_fields(layouts[g], layouts[l], self->maps.data, why) == RP_OK)
                groups[l] = g;
        }
        self->n_groups += groups[l] == l;
    }
    return RP_OK;
}

bool batch_use_group(struct batch_decoder *self, uint32_t group, uint32_t n_layouts)
{
    const struct batch_layout *const *all = self->all_layouts.data;
    const uint32_t *groups = self->groups.data;
    self->n_fields = n_layouts ? all[group]->n_fields : 0;
    if (!batch_vec_reserve(&self->layouts, n_layouts, sizeof(struct batch_layout *)) ||
        !maps_reserve(self, n_layouts, self->n_fields))
        return false;
    const struct batch_layout **layouts = self->layouts.data;
    uint32_t *maps = self->maps.data, n = 0;
    for (uint32_t f = 0; f < self->n_fields; f++)
        maps[f] = f;
    for (uint32_t l = group; l < n_layouts; l++) {
        if (groups[l] != group)
            continue;
        if (l > group)
            map_fields(all[group], all[l], maps + (size_t)n * self->n_fields, NULL);
        layouts[n++] = all[l];
    }
    self->n_layouts = n;
    return true;
}

rp_status batch_read_layouts(struct batch_decoder *self, const struct wire_sampled *view, rp_error *err)
{
    if (batch_layouts_turn(&self->cache))
        self->noted = NULL;
    if (!batch_vec_reserve(&self->all_layouts, view->n_layouts, sizeof(struct batch_layout *)))
        return batch_no_memory(err);
    const struct batch_layout **layouts = self->all_layouts.data;
    struct pb_reader reader = pb_reader(view->layouts, view->layouts_size);
    struct pb_field field;
    uint32_t n = 0;
    while (n < view->n_layouts && pb_next(&reader, &field) == 1) {
        if (field.number == 20 && field.wire == PB_BYTES)
            RP_TRY(batch_layouts_get(&self->cache, field.data, field.size, &layouts[n++], err));
    }
    if (n != view->n_layouts)
        return batch_damaged(err, "a layout is missing");
    return read_groups(self, n, err);
}
