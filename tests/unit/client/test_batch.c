/* Batches decoded from replies: against a naive model over random streams, layouts and items; against damage;
 * weights. */
#include "agent/client/sampler/batch.h"
#include "proto/base/dtype.h"
#include "proto/base/rng.h"
#include "proto/wire/codec.h"
#include "proto/wire/pb.h"
#include "replay.pb-c.h"
#include "tests/support/naive.h"

#define MAX_COLUMNS 6u
#define MAX_FIELDS 8u
#define MAX_LAYOUTS 3u
#define MAX_CHUNKS 64u
#define MAX_ITEMS 300u
#define MAX_STEPS 2048u

struct column {
    int32_t dtype;
    uint32_t rank, shape[3];
    uint32_t row_bytes;
    uint8_t *rows; /* of the whole stream */
};

struct field {
    char name[24];
    uint32_t column;
    int32_t start;
    uint32_t count, stride;
    bool squeeze;
};

struct layout_spec {
    uint32_t n_fields;
    struct field fields[MAX_FIELDS];
};

struct item_spec {
    uint32_t layout, first_step, length;
    uint32_t number; /* in the reply */
};

/* One stream of steps cut into chunks, and items over it. */
struct model {
    struct rng rng;
    uint32_t n_columns, n_layouts, n_chunks, n_items, n_steps;
    bool regular; /* raw blocks, all in one frame, columns told once */
    bool shared;  /* some chunks are in the broker's memory */
    bool head;    /* and what the reply says about its items */
    bool typed;   /* chunks with odd numbers are for layout 1, where elements of column 0 are twice as large */
    struct column columns[MAX_COLUMNS];
    struct layout_spec layouts[MAX_LAYOUTS];
    uint32_t chunk_first[MAX_CHUNKS], chunk_length[MAX_CHUNKS];
    struct item_spec items[MAX_ITEMS];
};

struct reply {
    struct text header;
    struct wire_reply outer;
    struct wire_sampled view;
    struct text frames[MAX_CHUNKS + 1];
    struct batch_frame list[MAX_CHUNKS + 1];
    uint32_t n_frames;
    uint8_t *arena; /* the broker's memory */
    size_t arena_size;
    uint64_t place[MAX_CHUNKS], stamp[MAX_CHUNKS];
    uint32_t n_places;
    uint64_t packed_at[3]; /* place, stamp and bytes */
    uint64_t head_at[4];   /* place, stamp, offset and bytes */
    bool packed_there;
};

static rp_status decode_reply(struct batch_decoder *decoder, const struct reply *r, rp_batch **batch, rp_error *error)
{
    struct batch_reply reply = {&r->view, r->outer.text, r->list, r->n_frames, r->arena, r->arena_size};
    return batch_decode(decoder, &reply, batch, error);
}

static uint32_t below(struct model *m, uint32_t n)
{
    return (uint32_t)rng_below(&m->rng, n);
}

/* ---- the model ---- */

static void model_columns(struct model *m)
{
    static const int32_t dtypes[] = {RP_DTYPE_FLOAT32, RP_DTYPE_UINT8, RP_DTYPE_INT32, RP_DTYPE_FLOAT64, RP_DTYPE_BOOL};
    m->n_columns = 1 + below(m, MAX_COLUMNS);
    for (uint32_t c = 0; c < m->n_columns; c++) {
        struct column *column = &m->columns[c];
        column->dtype = dtypes[below(m, 5)];
        column->rank = below(m, 3);
        for (uint32_t k = 0; k < column->rank; k++)
            column->shape[k] = 1 + below(m, 6);
        column->row_bytes = (uint32_t)dtype_row_bytes(column->dtype, column->rank, column->shape);
        size_t bytes = (size_t)m->n_steps * column->row_bytes;
        column->rows = malloc(bytes);
        bool smooth = below(m, 2); /* so that some blocks are compressed */
        for (size_t i = 0; i < bytes; i++)
            column->rows[i] = smooth ? (uint8_t)(i / 97) : (uint8_t)rng_next(&m->rng);
    }
}

static void model_chunks(struct model *m, uint32_t max_length)
{
    m->n_chunks = 1 + below(m, MAX_CHUNKS);
    m->n_steps = 0;
    for (uint32_t c = 0; c < m->n_chunks; c++) {
        m->chunk_first[c] = m->n_steps;
        m->chunk_length[c] = 1 + below(m, max_length);
        m->n_steps += m->chunk_length[c];
    }
}

/* Further layouts have the same fields in another order, with counts of their own. */
static void model_layouts(struct model *m)
{
    m->n_layouts = 1 + below(m, MAX_LAYOUTS);
    struct layout_spec *first = &m->layouts[0];
    first->n_fields = 1 + below(m, MAX_FIELDS);
    for (uint32_t f = 0; f < first->n_fields; f++) {
        struct field *field = &first->fields[f];
        snprintf(field->name, sizeof field->name, "field_%u", f);
        field->column = below(m, m->n_columns);
        field->squeeze = below(m, 3) == 0;
        field->count = field->squeeze ? 1 : below(m, 4);
        field->stride = below(m, 4);
        field->start = (int32_t)below(m, 7) - 3;
    }
    for (uint32_t l = 1; l < m->n_layouts; l++) {
        m->layouts[l] = *first;
        for (uint32_t f = 0; f < first->n_fields; f++) {
            struct field *field = &m->layouts[l].fields[f];
            if (!field->squeeze && below(m, 2))
                field->count = below(m, 4);
        }
        if (first->n_fields > 1 && below(m, 2)) {
            struct field swap = m->layouts[l].fields[0];
            m->layouts[l].fields[0] = m->layouts[l].fields[1];
            m->layouts[l].fields[1] = swap;
        }
    }
}

static uint32_t stride_of(const struct field *field)
{
    return field->stride ? field->stride : 1;
}

/* Steps that an item of this layout must have. */
static uint32_t least_length(const struct layout_spec *layout)
{
    uint32_t least = 1;
    for (uint32_t f = 0; f < layout->n_fields; f++) {
        const struct field *field = &layout->fields[f];
        uint32_t span = field->count ? (field->count - 1) * stride_of(field) + 1 : 1;
        uint32_t need = field->start >= 0 ? (uint32_t)field->start + span : (uint32_t)-field->start;
        if (need > least)
            least = need;
    }
    return least;
}

/* A negative start leaves -start steps: the field must not need more. */
static bool layout_possible(const struct layout_spec *layout)
{
    for (uint32_t f = 0; f < layout->n_fields; f++) {
        const struct field *field = &layout->fields[f];
        if (field->start < 0 && field->count && (field->count - 1) * stride_of(field) + 1 > (uint32_t)-field->start)
            return false;
    }
    return true;
}

static bool model_items(struct model *m)
{
    m->n_items = 1 + below(m, MAX_ITEMS);
    for (uint32_t i = 0; i < m->n_items; i++) {
        struct item_spec *item = &m->items[i];
        item->layout = below(m, m->n_layouts);
        uint32_t least = least_length(&m->layouts[item->layout]);
        if (least > m->n_steps)
            return false;
        uint32_t most = m->n_steps < least + 12 ? m->n_steps : least + 12;
        item->length = least + below(m, most - least + 1);
        item->first_step = below(m, m->n_steps - item->length + 1);
    }
    return true;
}

static void model_fini(struct model *m)
{
    for (uint32_t c = 0; c < m->n_columns; c++)
        free(m->columns[c].rows);
    m->n_columns = 0;
}

/* One chunk per item, all chunks and items alike: what most replies look like. */
static void regular_model(struct model *m, uint64_t seed)
{
    for (uint64_t attempt = 0;; attempt++) {
        memset(m, 0, sizeof *m);
        rng_seed(&m->rng, seed + attempt * 7919);
        m->regular = true;
        uint32_t length = 1 + below(m, 12);
        m->n_chunks = 1 + below(m, MAX_CHUNKS);
        m->n_steps = m->n_chunks * length;
        for (uint32_t c = 0; c < m->n_chunks; c++) {
            m->chunk_first[c] = c * length;
            m->chunk_length[c] = length;
        }
        model_columns(m);
        model_layouts(m);
        m->n_layouts = 1;
        uint32_t least = least_length(&m->layouts[0]);
        if (layout_possible(&m->layouts[0]) && least <= length) {
            uint32_t own = least + below(m, length - least + 1), offset = below(m, length - own + 1);
            bool again = below(m, 2); /* some chunks several times, some not at all */
            m->n_items = again ? 1 + below(m, MAX_ITEMS) : m->n_chunks;
            for (uint32_t i = 0; i < m->n_items; i++)
                m->items[i] = (struct item_spec){.first_step = (again ? below(m, m->n_chunks) : i) * length + offset,
                                                 .length = own};
            return;
        }
        model_fini(m);
    }
}

static void model_init(struct model *m, uint64_t seed)
{
    for (uint64_t attempt = 0;; attempt++) {
        memset(m, 0, sizeof *m);
        rng_seed(&m->rng, seed + attempt * 7919);
        model_chunks(m, attempt % 2 ? 1 : 12);
        model_columns(m);
        model_layouts(m);
        bool possible = true;
        for (uint32_t l = 0; l < m->n_layouts; l++)
            possible &= layout_possible(&m->layouts[l]);
        if (possible && model_items(m))
            return;
        model_fini(m);
    }
}

static void shared_model(struct model *m, uint64_t seed)
{
    if (seed % 2)
        model_init(m, seed);
    else
        regular_model(m, seed);
    m->shared = true;
}

static void head_model(struct model *m, uint64_t seed)
{
    shared_model(m, seed);
    m->head = true;
}

static struct column column_of(const struct model *m, uint32_t column, uint32_t layout)
{
    struct column out = m->columns[column];
    if (m->typed && layout == 1 && column == 0) {
        out.dtype = RP_DTYPE_FLOAT64;
        out.shape[0] /= 2;
    }
    return out;
}

/* ---- the reply that a broker would make of it ---- */

static void encode_layouts(const struct model *m, struct text *out)
{
    for (uint32_t l = 0; l < m->n_layouts; l++) {
        Replay__Layout layout = REPLAY__LAYOUT__INIT;
        Replay__Field fields[MAX_FIELDS], *field_list[MAX_FIELDS];
        Replay__Column columns[MAX_COLUMNS], *column_list[MAX_COLUMNS];
        struct column specs[MAX_COLUMNS];
        char names[MAX_COLUMNS][24];
        for (uint32_t f = 0; f < m->layouts[l].n_fields; f++) {
            const struct field *from = &m->layouts[l].fields[f];
            replay__field__init(&fields[f]);
            fields[f].name = (char *)from->name;
            fields[f].column = from->column;
            fields[f].start = from->start;
            fields[f].count = from->count;
            fields[f].stride = from->stride;
            fields[f].squeeze = from->squeeze;
            field_list[f] = &fields[f];
        }
        for (uint32_t c = 0; c < m->n_columns; c++) {
            replay__column__init(&columns[c]);
            snprintf(names[c], sizeof names[c], "column_%u", c);
            columns[c].name = names[c];
            specs[c] = column_of(m, c, l);
            columns[c].dtype = (char *)dtype_name(specs[c].dtype);
            columns[c].n_shape = specs[c].rank;
            columns[c].shape = specs[c].shape;
            column_list[c] = &columns[c];
        }
        layout.id = 100 + l;
        layout.table = (char *)"replay";
        layout.n_fields = m->layouts[l].n_fields;
        layout.fields = field_list;
        layout.n_columns = m->n_columns;
        layout.columns = column_list;
        uint8_t bytes[4096];
        size_t size = replay__layout__pack(&layout, bytes);
        assert_true(size < sizeof bytes);
        pb_put_bytes(out, 20, bytes, size);
    }
}

static void encode_block(struct model *m, uint32_t chunk, uint32_t column, struct text *frame, uint32_t *size_out,
                         uint8_t *codec_out)
{
    static const int32_t wanted[] = {RP_CODEC_RAW, RP_CODEC_AUTO, RP_CODEC_LZ4, RP_CODEC_SHUFFLE_LZ4,
                                     RP_CODEC_DELTA_LZ4};
    const struct column spec = column_of(m, column, chunk % 2), *from = &spec;
    struct codec_shape shape = {.elem_bytes = dtype_size(from->dtype),
                                .is_integer = dtype_is_integer(from->dtype),
                                .row_bytes = from->row_bytes,
                                .rows = m->chunk_length[chunk],
                                .rank = from->rank};
    struct codec_scratch scratch = {0};
    uint8_t *bytes = malloc(codec_bound(&shape) + 1);
    size_t size = 0;
    int32_t codec = m->regular ? RP_CODEC_RAW : m->typed ? RP_CODEC_SHUFFLE_LZ4 : wanted[below(m, 5)];
    rp_status status =
        codec_encode(&scratch, codec, &shape, from->rows + (size_t)m->chunk_first[chunk] * from->row_bytes, bytes,
                     &size, codec_out, NULL);
    assert_int_equal(status, RP_OK);
    memcpy(text_reserve(frame, size), bytes, size);
    *size_out = (uint32_t)size;
    free(bytes);
    codec_scratch_fini(&scratch);
}

static uint32_t chunk_at(const struct model *m, uint32_t step)
{
    uint32_t c = 0;
    while (step >= m->chunk_first[c] + m->chunk_length[c])
        c++;
    return c;
}

struct arrays {
    uint64_t key[MAX_ITEMS], age[MAX_ITEMS], policy[MAX_ITEMS], step[MAX_ITEMS];
    double priority[MAX_ITEMS], probability[MAX_ITEMS];
    uint32_t times[MAX_ITEMS], session[MAX_ITEMS], layout[MAX_ITEMS], offset[MAX_ITEMS], length[MAX_ITEMS];
    uint32_t chunks[MAX_ITEMS], chunk[MAX_ITEMS * MAX_CHUNKS];
    uint32_t chunk_length[MAX_CHUNKS], chunk_blocks[MAX_CHUNKS], block_size[MAX_CHUNKS * MAX_COLUMNS];
    uint8_t block_column[MAX_CHUNKS * MAX_COLUMNS], block_codec[MAX_CHUNKS * MAX_COLUMNS];
    uint32_t index[MAX_CHUNKS]; /* chunk of the stream -> chunk of the reply */
    uint32_t n_refs, n_chunks, n_blocks;
};

static void encode_items(struct model *m, struct arrays *a)
{
    for (uint32_t c = 0; c < MAX_CHUNKS; c++)
        a->index[c] = UINT32_MAX;
    for (uint32_t i = 0; i < m->n_items; i++) {
        struct item_spec *item = &m->items[i];
        item->number = i;
        uint32_t from = chunk_at(m, item->first_step), to = chunk_at(m, item->first_step + item->length - 1);
        a->key[i] = 1000 + i;
        a->age[i] = i * 11;
        a->policy[i] = 7;
        a->step[i] = item->first_step;
        a->priority[i] = 0.5 * i;
        a->probability[i] = 1.0 / (2.0 + i);
        a->times[i] = i % 3;
        a->session[i] = 4;
        a->layout[i] = item->layout;
        a->offset[i] = item->first_step - m->chunk_first[from];
        a->length[i] = item->length;
        a->chunks[i] = to - from + 1;
        for (uint32_t c = from; c <= to; c++) {
            if (a->index[c] == UINT32_MAX) {
                a->index[c] = a->n_chunks;
                a->chunk_length[a->n_chunks++] = m->chunk_length[c];
            }
            a->chunk[a->n_refs++] = a->index[c];
        }
    }
}

static void share_frame(struct reply *r, struct text *frame, uint64_t place, uint64_t stamp)
{
    memcpy(r->arena + place - 64, &stamp, 8);
    memcpy(r->arena + place, frame->data, frame->size);
    text_fini(frame);
}

/* Moves the last frames to the broker's memory, the last one first, and that of the packed chunks. */
static void share_frames(struct model *m, struct reply *r, uint32_t n, bool packed)
{
    size_t size = 64;
    r->packed_there = packed;
    if (packed) {
        memcpy(r->packed_at, (uint64_t[]){size + 64, rng_next(&m->rng), r->frames[0].size}, sizeof r->packed_at);
        size += 64 + (r->frames[0].size + 63) / 64 * 64;
    }
    r->n_places = n;
    r->n_frames -= n;
    for (uint32_t k = n; k > 0; k--) {
        r->place[k - 1] = size + 64;
        r->stamp[k - 1] = rng_next(&m->rng);
        size += 64 + (r->frames[r->n_frames + k - 1].size + 63) / 64 * 64;
    }
    r->arena_size = size;
    r->arena = aligned_alloc(64, size);
    memset(r->arena, 0, size);
    for (uint32_t k = 0; k < n; k++)
        share_frame(r, &r->frames[r->n_frames + k], r->place[k], r->stamp[k]);
    if (packed) {
        share_frame(r, &r->frames[0], r->packed_at[0], r->packed_at[1]);
        memmove(r->frames, r->frames + 1, --r->n_frames * sizeof r->frames[0]);
    }
}

/* Returns where the reply says k-th that data is, and gives the stamp of that data. */
static uint8_t *place_of(struct reply *r, uint32_t k, uint64_t *stamp)
{
    *stamp = k < r->n_places ? r->stamp[k] : r->packed_at[1];
    const struct pb_array *array = k < r->n_places ? &r->view.place : &r->view.packed_at;
    return (uint8_t *)(uintptr_t)array->data + (k < r->n_places ? (size_t)k * 8 : 0);
}

/* Makes room for the header behind all else in the broker's memory. */
static void *add_head(void *ctx, size_t bytes)
{
    struct reply *r = ctx;
    const uint64_t place = r->arena_size + 64, stamp = 77, offset = 40;
    size_t size = (place + offset + bytes + 63) / 64 * 64;
    uint8_t *arena = aligned_alloc(64, size);
    memcpy(arena, r->arena, r->arena_size);
    memset(arena + r->arena_size, 0, size - r->arena_size);
    memcpy(arena + place - 64, &stamp, 8);
    free(r->arena);
    r->arena = arena;
    r->arena_size = size;
    memcpy(r->head_at, (uint64_t[]){place, stamp, offset, bytes}, sizeof r->head_at);
    return arena + place + offset;
}

static void reply_fini(struct reply *r)
{
    text_fini(&r->header);
    for (uint32_t i = 0; i < r->n_frames; i++)
        text_fini(&r->frames[i]);
    free(r->arena);
    memset(r, 0, sizeof *r);
}

/* Takes the place of the reply before. */
static void encode_reply(struct model *m, struct reply *r)
{
    reply_fini(r);
    struct arrays *a = calloc(1, sizeof *a);
    encode_items(m, a);
    uint32_t packed = m->regular ? a->n_chunks : below(m, a->n_chunks + 1);
    for (uint32_t k = 0; k < a->n_chunks; k++) {
        uint32_t c = 0;
        while (a->index[c] != k)
            c++;
        uint32_t frame = k < packed ? 0 : (packed > 0) + k - packed;
        r->n_frames = frame + 1;
        a->chunk_blocks[k] = m->n_columns;
        for (uint32_t column = 0; column < m->n_columns; column++, a->n_blocks++) {
            a->block_column[a->n_blocks] = (uint8_t)column;
            encode_block(m, c, column, &r->frames[frame], &a->block_size[a->n_blocks], &a->block_codec[a->n_blocks]);
        }
    }
    if (m->shared)
        share_frames(m, r, packed < a->n_chunks ? 1 + below(m, a->n_chunks - packed) : 0,
                     packed == a->n_chunks || (packed && below(m, 2)));
    struct text layouts = {0};
    encode_layouts(m, &layouts);
    struct wire_sampled_out out = {.id = 9,
                                   .place = r->place,
                                   .stamp = r->stamp,
                                   .n_places = r->n_places,
                                   .packed_at = r->packed_there ? r->packed_at : NULL,
                                   .text = "because",
                                   .n_items = m->n_items,
                                   .n_chunks = a->n_chunks,
                                   .n_blocks = a->n_blocks,
                                   .n_chunk_refs = a->n_refs,
                                   .key = a->key,
                                   .age_ns = a->age,
                                   .policy = a->policy,
                                   .step = a->step,
                                   .priority = a->priority,
                                   .probability = a->probability,
                                   .times_sampled = a->times,
                                   .session = a->session,
                                   .layout = a->layout,
                                   .offset = a->offset,
                                   .length = a->length,
                                   .chunks = a->chunks,
                                   .chunk = a->chunk,
                                   .chunk_length = a->chunk_length,
                                   .chunk_blocks = a->chunk_blocks,
                                   .block_size = a->block_size,
                                   .block_column = a->block_column,
                                   .block_codec = a->block_codec,
                                   .n_block_columns = !m->regular && below(m, 2) ? a->n_blocks : m->n_columns,
                                   .packed = packed,
                                   .layouts = layouts.data,
                                   .layouts_size = layouts.size,
                                   .table_size = 12345,
                                   .waited_ns = 99,
                                   .partial = true};
    if (m->head) {
        assert_true(wire_write_sampled_at(&out, add_head, r));
        out = (struct wire_sampled_out){.id = 9, .text = "because", .head_at = r->head_at};
    }
    wire_write_sampled(&r->header, &out);
    text_fini(&layouts);
    free(a);
    for (uint32_t i = 0; i < r->n_frames; i++)
        r->list[i] = (struct batch_frame){r->frames[i].data, r->frames[i].size};
}

static rp_status reply_read(struct reply *r, rp_error *error)
{
    rp_status status = wire_read_reply(r->header.data, r->header.size, &r->outer, error);
    return status == RP_OK ? wire_read_sampled(r->outer.data, r->outer.size, &r->view, error) : status;
}

/* ---- comparing ---- */

static const struct field *find_field(const struct layout_spec *layout, const char *name)
{
    for (uint32_t f = 0; f < layout->n_fields; f++) {
        if (strcmp(layout->fields[f].name, name) == 0)
            return &layout->fields[f];
    }
    return NULL;
}

static void check_field(const struct model *m, const struct rp_batch *batch, const rp_field_view *view)
{
    const struct field *first = find_field(&m->layouts[0], view->name);
    const struct column *column = &m->columns[first->column];
    uint64_t rows_max = first->squeeze ? 1 : view->shape[1];
    assert_int_equal(view->dtype, column->dtype);
    assert_int_equal(view->rank, column->rank + 1 + !first->squeeze);
    assert_int_equal(view->shape[0], m->n_items);
    for (uint32_t k = 0; k < column->rank; k++)
        assert_int_equal(view->shape[view->rank - column->rank + k], column->shape[k]);
    assert_int_equal(view->bytes, (uint64_t)m->n_items * rows_max * column->row_bytes);
    const uint8_t *at = view->data;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < m->n_items; i++) {
        const struct item_spec *item = &m->items[i];
        const struct field *field = find_field(&m->layouts[item->layout], view->name);
        uint32_t start = field->start < 0 ? item->length - (uint32_t)-field->start : (uint32_t)field->start;
        uint32_t rows = 0;
        for (uint32_t step = start; step < item->length && (!field->count || rows < field->count);
             step += stride_of(field), rows++) {
            const uint8_t *want = column->rows + (size_t)(item->first_step + step) * column->row_bytes;
            assert_memory_equal(at + (size_t)rows * column->row_bytes, want, column->row_bytes);
        }
        if (view->lengths)
            assert_int_equal(view->lengths[i], rows);
        else
            assert_int_equal(rows, rows_max);
        for (size_t k = (size_t)rows * column->row_bytes; k < rows_max * column->row_bytes; k++)
            assert_int_equal(at[k], 0);
        longest = rows > longest ? rows : longest;
        at += rows_max * column->row_bytes;
    }
    assert_int_equal(longest, rows_max);
    assert_ptr_equal(rp_batch_find(batch, view->name), view);
}

static void check_in_block(const rp_batch_info *info, const void *data, uint64_t bytes)
{
    uint64_t at = (uint64_t)((const uint8_t *)data - (const uint8_t *)info->memory);
    assert_true(at <= info->bytes && bytes <= info->bytes - at);
}

static void check_batch(const struct model *m, const struct rp_batch *batch)
{
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_arrays arrays = {.struct_size = sizeof arrays};
    assert_int_equal(rp_batch_get_info(batch, &info), RP_OK);
    assert_int_equal(rp_batch_get_arrays(batch, &arrays), RP_OK);
    assert_int_equal(info.n, m->n_items);
    assert_int_equal(info.n_fields, m->layouts[0].n_fields);
    assert_int_equal(info.table_size, 12345);
    assert_int_equal(info.waited_ns, 99);
    assert_int_equal(info.partial, 1);
    assert_string_equal(rp_batch_text(batch), "because");
    for (uint32_t i = 0; i < m->n_items; i++) {
        uint32_t number = m->items[i].number;
        assert_int_equal(arrays.key[i], 1000 + number);
        assert_int_equal(arrays.age_ns[i], number * 11);
        assert_int_equal(arrays.policy[i], 7);
        assert_int_equal(arrays.step[i], m->items[i].first_step);
        assert_true(arrays.priority[i] == 0.5 * number);
        assert_true(arrays.probability[i] == 1.0 / (2.0 + number));
        double ratio =
            (2.0 + number) / (2.0 + m->items[m->n_items - 1].number); /* the last one is the least probable */
        assert_true(fabs(arrays.weight[i] - pow(ratio, 0.4)) < 1e-5);
        assert_int_equal(arrays.times_sampled[i], number % 3);
        assert_int_equal(arrays.session[i], 4);
    }
    assert_int_equal((uintptr_t)info.memory % 64 + info.bytes % 64, 0);
    check_in_block(&info, arrays.key, info.n * sizeof *arrays.key);
    check_in_block(&info, arrays.weight, info.n * sizeof *arrays.weight);
    for (uint32_t f = 0; f < info.n_fields; f++) {
        const rp_field_view *view = rp_batch_field(batch, f);
        check_field(m, batch, view);
        check_in_block(&info, view->data, view->bytes);
        if (view->lengths)
            check_in_block(&info, view->lengths, info.n * sizeof *view->lengths);
    }
    assert_null(rp_batch_field(batch, info.n_fields));
    assert_null(rp_batch_find(batch, "no such field"));
}

struct fixture {
    struct batch_pool *pool;
    struct batch_decoder *decoder;
    struct model m;
    struct reply r;
};

static void set_up(struct fixture *f)
{
    struct batch_options options = {.beta = 0.4, .max_bytes = UINT64_C(1) << 30};
    f->pool = batch_pool_new(2, NULL);
    f->decoder = batch_decoder_new(f->pool, &options);
    assert_non_null(f->decoder);
}

static void tear_down(struct fixture *f)
{
    batch_decoder_destroy(&f->decoder);
    batch_pool_unref(&f->pool);
    reply_fini(&f->r);
    model_fini(&f->m);
}

/* Makes a decoder with these options. */
static void set_options(struct fixture *f, struct batch_options options)
{
    batch_decoder_destroy(&f->decoder);
    f->decoder = batch_decoder_new(f->pool, &options);
}

/* Makes the reply of the fixture's model. */
static void reply_begin(struct fixture *f)
{
    encode_reply(&f->m, &f->r);
    ok(reply_read(&f->r, &err));
}

/* Makes a model and its reply. */
static void begin_with(struct fixture *f, void (*make)(struct model *m, uint64_t seed), uint64_t seed)
{
    model_fini(&f->m);
    make(&f->m, seed);
    reply_begin(f);
}

FIXTURE(struct fixture, set_up, tear_down)

/* ---- tests ---- */

/* Puts a batch together again from its rows in two pieces, as a sampler over shards does while the reply is there. */
static void rejoin(struct model *m, struct batch_pool *pool, struct rp_batch **batch)
{
    struct rp_batch *from = *batch, *joined;
    uint32_t n = from->info.n, cut = below(m, n + 1), pieces = 0;
    struct batch_rows rows[2];
    if (cut)
        rows[pieces++] = (struct batch_rows){.from = from, .first = 0, .n = cut, .share = 1};
    if (cut < n)
        rows[pieces++] = (struct batch_rows){.from = from, .first = cut, .n = n - cut, .share = 1};
    struct batch_join_options options = {.beta = 0.4};
    assert_int_equal(batch_join(pool, rows, pieces, &options, &joined, NULL), RP_OK);
    assert_null(joined->next);
    joined->info.table_size = from->info.table_size;
    joined->info.partial = from->info.partial;
    memcpy(joined->text, from->text, sizeof joined->text);
    rp_batch_release(batch);
    *batch = joined;
}

/* left: the items stay in the reply until a batch is put together. Returns how many replies could keep theirs. */
static uint64_t check_random_replies(struct fixture *f, void (*make)(struct model *m, uint64_t seed), uint64_t rounds,
                                     bool left)
{
    uint64_t seed = naive_seed(__func__), stayed = 0;
    if (left)
        set_options(f, (struct batch_options){.beta = 0.4, .max_bytes = UINT64_C(1) << 30, .leave_items = true});
    for (uint64_t round = 0; round < rounds; round++) {
        struct rp_batch *batch = NULL;
        begin_with(f, make, seed + round * 1000003);
        ok(decode_reply(f->decoder, &f->r, &batch, &err));
        stayed += batch->in_reply.step > 0;
        if (left)
            rejoin(&f->m, f->pool, &batch);
        check_batch(&f->m, batch);
        rp_batch_release(&batch);
        assert_null(batch);
    }
    return stayed;
}

CASE(random_replies)
{
    assert_int_equal(check_random_replies(f, model_init, 80, false), 0);
    assert_int_equal(check_random_replies(f, regular_model, 80, false), 0);
}

/* The same batches from the broker's memory as from bytes. */
CASE(shared_replies)
{
    assert_int_equal(check_random_replies(f, shared_model, 80, false), 0);
    assert_true(batch_decoder_shared(f->decoder).bytes > 0);
    assert_int_equal(check_random_replies(f, shared_model, 40, true), 0);
}

/* Several threads make the same batches as one. */
CASE(threads_gather)
{
    for (uint32_t threads = 2; threads < 6; threads++) {
        set_options(f, (struct batch_options){.beta = 0.4, .threads = threads, .large = 1});
        check_random_replies(f, model_init, 20, false);
        check_random_replies(f, regular_model, 20, false);
        check_random_replies(f, shared_model, 20, false);
    }
}

/* A stamp that is not that of the reply: nothing that was read counts, whatever it was. */
CASE(overtaken_reply)
{
    uint64_t seed = naive_seed(__func__);
    struct model *m = &f->m;
    struct reply *r = &f->r;
    for (uint64_t round = 0; round < 40; round++) {
        struct rp_batch *batch = NULL;
        begin_with(f, shared_model, seed + round * 1000003);
        uint64_t at, good;
        memcpy(&at, place_of(r, below(m, r->n_places + r->packed_there), &good), 8);
        uint8_t *stamp = r->arena + at - 64;
        stamp[below(m, 8)] ^= 1;
        assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_DATA_LOSS);
        assert_true(batch_decoder_shared(f->decoder).overtaken);
        assert_null(batch);
        memcpy(stamp, &good, 8);
        assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_OK);
        assert_false(batch_decoder_shared(f->decoder).overtaken);
        check_batch(m, batch);
        rp_batch_release(&batch);
        uint8_t *arena = r->arena;
        r->arena = NULL; /* nothing is mapped */
        assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_DATA_LOSS);
        assert_true(batch_decoder_shared(f->decoder).overtaken);
        r->arena = arena;
    }
}

/* The broker gives the memory to other data after the reply was checked, before its rows are copied. */
static void *overwrite(void *ctx, size_t bytes)
{
    struct fixture *f = ctx;
    struct reply *r = &f->r;
    for (size_t i = 64; i < r->arena_size; i++)
        r->arena[i] = (uint8_t)rng_next(&f->m.rng);
    return aligned_alloc(64, bytes);
}

static void free_block(void *ctx, void *memory, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(memory);
}

CASE(overtaken_while_it_is_read)
{
    uint64_t seed = naive_seed(__func__);
    for (uint64_t round = 0; round < 60; round++) {
        struct batch_options options = {.threads = 1 + round % 3, .large = 1};
        struct rp_batch *batch = NULL;
        struct batch_pool *pool = batch_pool_new(0, &(rp_memory){overwrite, free_block, f});
        struct batch_decoder *decoder = batch_decoder_new(pool, &options);
        begin_with(f, shared_model, seed + round * 1000003);
        assert_int_equal(decode_reply(decoder, &f->r, &batch, NULL), RP_DATA_LOSS);
        assert_true(batch_decoder_shared(decoder).overtaken);
        assert_null(batch);
        batch_decoder_destroy(&decoder);
        batch_pool_unref(&pool);
    }
}

/* Places that no broker would name are refused; those that overlap are read like any others. */
CASE(hostile_places)
{
    uint64_t seed = naive_seed(__func__);
    struct model *m = &f->m;
    struct reply *r = &f->r;
    for (uint64_t round = 0; round < 20; round++) {
        begin_with(f, shared_model, seed + round * 1000003);
        uint64_t good, stamp;
        uint8_t *place = place_of(r, below(m, r->n_places + r->packed_there), &stamp);
        memcpy(&good, place, 8);
        const uint64_t end = r->arena_size;
        const uint64_t bad[] = {
            0, 8, 63, good + 1, good + 32, end + 64, end + 4096, UINT64_C(1) << 63, UINT64_MAX - 63, UINT64_MAX};
        for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            struct rp_batch *batch = NULL;
            memcpy(place, &bad[i], 8);
            assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_DATA_LOSS);
            assert_false(batch_decoder_shared(f->decoder).overtaken);
            assert_null(batch);
        }
        for (uint64_t at = 64; at <= end; at += 64) {
            struct rp_batch *batch = NULL;
            memcpy(place, &at, 8);
            memcpy(r->arena + at - 64, &stamp, 8);
            decode_reply(f->decoder, r, &batch, NULL);
            batch_list_release(&batch);
        }
    }
}

/* What a reply says about its items is copied before it is read, and then all is as if it had come in a frame. */
CASE(header_in_shared_memory)
{
    struct reply *r = &f->r;
    struct rp_batch *batch;
    assert_int_equal(check_random_replies(f, head_model, 60, false), 0);
    begin_with(f, head_model, naive_seed(__func__));
    uint8_t *at = (uint8_t *)(uintptr_t)r->view.head_at.data, *arena = r->arena;
    const uint64_t end = r->arena_size, *good = r->head_at;
    const struct {
        uint32_t k;
        uint64_t value;
        bool overtaken;
    } bad[] = {
        {0, 0, false},         {0, good[0] + 8, false},       {0, end + 64, false},   {0, UINT64_MAX - 63, false},
        {1, 78, true},         {2, end - good[0] + 1, false}, {2, UINT64_MAX, false}, {3, end - good[0], false},
        {3, UINT64_MAX, false}};
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memcpy(at + (size_t)bad[i].k * 8, &bad[i].value, 8);
        assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_DATA_LOSS);
        assert_int_equal(batch_decoder_shared(f->decoder).overtaken, bad[i].overtaken);
        assert_null(batch);
        memcpy(at, good, sizeof r->head_at);
    }
    r->arena = NULL;
    assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_DATA_LOSS);
    assert_true(batch_decoder_shared(f->decoder).overtaken);
    r->arena = arena;
    memcpy(r->arena + good[0] + good[2], r->outer.data, r->outer.size); /* it says that it is elsewhere, once more */
    memcpy(at + 24, &(uint64_t){r->outer.size}, 8);
    assert_int_equal(decode_reply(f->decoder, r, &batch, NULL), RP_DATA_LOSS);
    assert_int_equal(check_random_replies(f, head_model, 40, true), 0);
}

CASE(items_left_in_the_reply)
{
    check_random_replies(f, model_init, 40, true);
    assert_in_range(check_random_replies(f, regular_model, 80, true), 1, 79); /* rows with a stride are gathered */
}

/* Whatever is changed in a reply, the decoder returns. */
CASE(damage)
{
    uint64_t seed = naive_seed(__func__);
    struct model *m = &f->m;
    struct reply *r = &f->r;
    uint32_t refused = 0;
    for (uint64_t round = 0; round < 40; round++) {
        if (round == 20)
            set_options(f, (struct batch_options){.beta = 0.4, .max_bytes = UINT64_C(1) << 30, .leave_items = true});
        void (*const models[])(struct model *, uint64_t) = {regular_model, model_init, shared_model, head_model};
        begin_with(f, models[round % 4], seed + round * 999983);
        for (uint32_t k = 0; k < 50; k++) {
            struct rp_batch *batch = NULL;
            uint32_t frame = below(m, r->n_frames + 2);
            struct text *hit = frame < r->n_frames ? &r->frames[frame] : &r->header;
            bool shared = r->arena && below(m, 2);
            uint8_t *byte =
                shared ? r->arena + below(m, (uint32_t)r->arena_size) : hit->bytes + below(m, (uint32_t)hit->size);
            uint8_t old = *byte;
            *byte = (uint8_t)rng_next(&m->rng);
            size_t size = r->list[0].size;
            if (size && below(m, 8) == 0)
                r->list[0].size -= 1;
            if (reply_read(r, &err) != RP_OK || decode_reply(f->decoder, r, &batch, &err) != RP_OK) {
                refused++;
                assert_null(batch);
            } else if (batch && batch->in_reply.step) {
                rejoin(m, f->pool, &batch);
            }
            batch_list_release(&batch); /* damaged layouts may differ */
            *byte = old;
            r->list[0].size = size;
        }
    }
    assert_true(refused > 0);
}

/* A model that is the same each time: 4 columns of 400 bytes together, one step per item. */
static void plain_model(struct model *m, uint32_t n_items)
{
    static const uint32_t widths[] = {48, 48, 1, 3};
    model_fini(m);
    memset(m, 0, sizeof *m);
    rng_seed(&m->rng, 1);
    m->n_items = n_items;
    m->n_chunks = n_items < MAX_CHUNKS ? n_items : MAX_CHUNKS;
    m->n_steps = m->n_chunks;
    m->n_columns = 4;
    m->n_layouts = 1;
    m->layouts[0].n_fields = 4;
    for (uint32_t c = 0; c < m->n_chunks; c++) {
        m->chunk_first[c] = c;
        m->chunk_length[c] = 1;
    }
    for (uint32_t c = 0; c < 4; c++) {
        struct column *column = &m->columns[c];
        *column =
            (struct column){.dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {widths[c]}, .row_bytes = widths[c] * 4};
        column->rows = malloc((size_t)m->n_steps * column->row_bytes);
        for (size_t i = 0; i < (size_t)m->n_steps * column->row_bytes; i++)
            column->rows[i] = (uint8_t)rng_next(&m->rng);
        struct field *field = &m->layouts[0].fields[c];
        *field = (struct field){.column = c, .count = 1, .squeeze = true};
        snprintf(field->name, sizeof field->name, "field_%u", c);
    }
    for (uint32_t i = 0; i < n_items; i++)
        m->items[i] = (struct item_spec){.first_step = i % m->n_steps, .length = 1};
}

/* The items of m that have fields like those of layout `like`, as a model of their own over the same data. */
static void model_part(const struct model *m, uint32_t like, const bool *alike, struct model *part)
{
    *part = *m;
    part->n_items = 0;
    part->layouts[0] = m->layouts[like];
    part->columns[0] = column_of(m, 0, like);
    for (uint32_t i = 0; i < m->n_items; i++) {
        if (!alike[m->items[i].layout])
            continue;
        part->items[part->n_items] = m->items[i];
        if (part->items[part->n_items].layout == like)
            part->items[part->n_items].layout = 0;
        part->n_items++;
    }
}

static void check_part(const struct model *m, uint32_t like, const bool *alike, const struct rp_batch *batch)
{
    struct model *part = owned(malloc(sizeof *part));
    model_part(m, like, alike, part);
    check_batch(part, batch);
}

/* A reply whose layout `odd` does not agree with the others, which agree: two batches, nothing lost. */
static void expect_split(struct fixture *f, uint32_t odd)
{
    const struct model *m = &f->m;
    struct rp_batch *list = NULL;
    bool alike[2][MAX_LAYOUTS];
    bool has[2] = {false, false};
    for (uint32_t l = 0; l < m->n_layouts; l++) {
        alike[0][l] = l != odd;
        alike[1][l] = l == odd;
    }
    for (uint32_t i = 0; i < m->n_items; i++)
        has[m->items[i].layout == odd] = true;
    reply_begin(f);
    ok(decode_reply(f->decoder, &f->r, &list, &err));
    assert_int_equal(batch_list_items(list), m->n_items);
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t which = odd == 0 ? 1 - k : k; /* in the order of the layouts */
        if (!has[which])
            continue;
        struct rp_batch *batch = batch_list_take(&list);
        check_part(m, which ? odd : odd == 0, alike[which], batch);
        rp_batch_release(&batch);
    }
    assert_null(list);
}

CASE(layouts_that_differ)
{
    struct model *m = &f->m;
    plain_model(m, 8);
    m->n_layouts = 2;
    m->items[5].layout = m->items[2].layout = 1;
    m->layouts[1] = m->layouts[0];
    m->layouts[1].fields[2].squeeze = false;
    expect_split(f, 1);
    m->layouts[1] = m->layouts[0];
    m->layouts[1].fields[3].column = 0;
    expect_split(f, 1);
    m->layouts[1] = m->layouts[0];
    snprintf(m->layouts[1].fields[0].name, sizeof m->layouts[1].fields[0].name, "other");
    expect_split(f, 1);
    m->layouts[1] = m->layouts[0];
    m->layouts[1].n_fields = 3;
    expect_split(f, 1);
}

/* Threads open no block as one of the other layout: its rows have as many bytes, of other elements. */
CASE(layouts_that_differ_in_the_size_of_elements)
{
    struct model *m = &f->m;
    set_options(f, (struct batch_options){.beta = 0.4, .max_bytes = UINT64_C(1) << 30, .threads = 4, .large = 1});
    plain_model(m, 64);
    m->n_layouts = 2;
    m->layouts[1] = m->layouts[0];
    m->typed = true;
    for (uint32_t i = 0; i < m->n_items; i++)
        m->items[i].layout = i % 2;
    for (size_t i = 0; i < (size_t)m->n_steps * m->columns[0].row_bytes; i++)
        m->columns[0].rows[i] =
            (uint8_t)(i % 8 * 16 + i / 64 % 16); /* compresses, and no two bytes of an element are alike */
    for (uint32_t shared = 0; shared < 2; shared++) {
        m->shared = shared;
        expect_split(f, 1);
    }
}

/* Random replies, any one of whose layouts has a field that the others do not have. */
CASE(random_replies_of_different_fields)
{
    uint64_t seed = naive_seed(__func__);
    struct model *m = &f->m;
    uint32_t split = 0;
    for (uint64_t round = 0; round < 200; round++) {
        model_fini(m);
        model_init(m, seed + round * 1000003);
        if (m->n_layouts > 1) {
            uint32_t odd = below(m, m->n_layouts);
            struct layout_spec *layout = &m->layouts[odd];
            snprintf(layout->fields[below(m, layout->n_fields)].name, sizeof layout->fields[0].name, "other");
            expect_split(f, odd);
            split++;
        }
    }
    assert_true(split > 20);
}

/* max_bytes bounds all batches of a reply together. */
CASE(different_fields_share_max_bytes)
{
    struct model *m = &f->m;
    plain_model(m, 8);
    m->n_layouts = 2;
    m->layouts[1] = m->layouts[0];
    snprintf(m->layouts[1].fields[0].name, sizeof m->layouts[1].fields[0].name, "other");
    m->items[1].layout = 1;
    reply_begin(f);
    for (uint32_t k = 0; k < 2; k++) {
        struct rp_batch *list = NULL;
        set_options(
            f, (struct batch_options){.max_bytes = 8 * 400 + (k ? 1024 : 0)}); /* fields begin at multiples of 64 */
        assert_int_equal(decode_reply(f->decoder, &f->r, &list, &err), k ? RP_OK : RP_RESOURCE_EXHAUSTED);
        assert_int_equal(batch_list_items(list), k ? 8 : 0);
        batch_list_release(&list);
    }
}

/* A layout number that comes back with other contents, as after a restart of the broker, is read anew. */
CASE(layout_number_reused)
{
    struct model *m = &f->m;
    for (uint32_t k = 0; k < 4; k++) {
        struct rp_batch *batch = NULL;
        plain_model(m, 16);
        if (k % 2)
            snprintf(m->layouts[0].fields[1].name, sizeof m->layouts[0].fields[1].name, "renamed");
        reply_begin(f);
        ok(decode_reply(f->decoder, &f->r, &batch, &err));
        check_batch(m, batch);
        rp_batch_release(&batch);
    }
}

/* An item without a probability has the weight 1; check_batch has the others. */
TEST(weights)
{
    float w[3];
    batch_weights((const double[]){0.1, 0.0, 0.4}, 3, 0.5, w);
    assert_true(fabs(w[0] - 1) < 1e-6 && w[1] == 1 && fabs(w[2] - 0.5) < 1e-6);
}

/* Memory of the caller, which may be refused or not aligned. */
struct lent {
    uint32_t blocks, allocs, off; /* off: bytes that the next block is away from its alignment */
    size_t bytes;
};

static void *lend(void *ctx, size_t bytes)
{
    struct lent *self = ctx;
    uint8_t *memory = aligned_alloc(64, bytes + 64);
    self->blocks++;
    self->allocs++;
    self->bytes += bytes;
    return memory + self->off;
}

static void take_back(void *ctx, void *memory, size_t bytes)
{
    struct lent *self = ctx;
    self->blocks--;
    self->bytes -= bytes;
    free((uint8_t *)memory - self->off);
}

CASE(memory_of_the_caller)
{
    struct lent lent = {0};
    struct model *m = &f->m;
    struct reply *r = &f->r;
    struct rp_batch *batches[3];
    struct batch_options options = {.beta = 0.4};
    struct batch_pool *pool = batch_pool_new(2, &(rp_memory){lend, take_back, &lent});
    struct batch_decoder *decoder = batch_decoder_new(pool, &options);
    plain_model(m, 16);
    reply_begin(f);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(decode_reply(decoder, r, &batches[i], NULL), RP_OK);
            check_batch(m, batches[i]);
        }
        assert_int_equal(lent.blocks, 3);
        for (uint32_t i = 0; i < 3; i++)
            rp_batch_release(&batches[i]);
        assert_int_equal(lent.blocks, 2);
    }
    assert_int_equal(lent.allocs, 3 + 3); /* two of three are used again each time */
    assert_int_equal(decode_reply(decoder, r, &batches[0], NULL), RP_OK);
    reply_fini(r);
    batch_decoder_destroy(&decoder);
    batch_pool_unref(&pool);
    assert_int_equal(lent.blocks, 2);
    check_batch(m, batches[0]); /* a batch outlives its reply and its sampler */
    rp_batch_release(&batches[0]);
    assert_int_equal(lent.blocks, 0);
    assert_int_equal(lent.bytes, 0);

    reply_begin(f);
    lent.off = 8;
    pool = batch_pool_new(2, &(rp_memory){lend, take_back, &lent});
    decoder = batch_decoder_new(pool, &options);
    assert_int_equal(decode_reply(decoder, r, &batches[0], NULL), RP_NO_MEMORY);
    assert_int_equal(lent.blocks, 0);
    batch_decoder_destroy(&decoder);
    batch_pool_unref(&pool);
}
