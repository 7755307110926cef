/* Steps, chunks, the window, and the layouts of items, without any connection. */

#include "agent/client/writer/item_layout.h"
#include "agent/client/writer/step_stream.h"
#include "proto/base/rng.h"
#include "proto/wire/codec.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

static const rp_column columns[] = {
    {.name = "x", .dtype = RP_DTYPE_INT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {3}},
    {.name = "y", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_RAW, .rank = 2, .shape = {8, 8}},
    {.name = "z", .dtype = RP_DTYPE_FLOAT64, .codec = RP_CODEC_SHUFFLE_LZ4},
};

static Replay__TableSpec table = {.name = (char *)(uintptr_t) "t"};

static void start(struct step_stream *stream, uint32_t chunk_length, uint64_t keep_alive)
{
    ok(step_stream_init(stream, columns, 3, chunk_length, keep_alive, &err));
}

/* The bytes of step n, told from all others. */
static void row(uint32_t column, uint64_t step, void *out)
{
    int32_t x[3] = {(int32_t)step, (int32_t)step * 3, -(int32_t)step};
    double z = (double)step / 7;
    if (column == 0)
        memcpy(out, x, sizeof x);
    else if (column == 1)
        for (int i = 0; i < 64; i++)
            ((uint8_t *)out)[i] = (uint8_t)(step * 31 + (uint64_t)i);
    else
        memcpy(out, &z, sizeof z);
}

/* Appends every second step as a whole, as far as that is possible. */
static void add_step(struct step_stream *stream, uint32_t skip)
{
    uint8_t rows[3][64];
    const void *const values[3] = {rows[0], skip == 1 ? NULL : rows[1], rows[2]};
    for (uint32_t c = 0; c < 3; c++)
        row(c, stream->steps, rows[c]);
    if (stream->steps % 2 && step_stream_is_whole(stream, values)) {
        assert_int_equal(step_stream_append(stream, values, NULL), RP_OK);
        return;
    }
    static const uint64_t bytes[] = {12, 64, 8};
    uint8_t value[64];
    for (uint32_t c = 0; c < 3; c++) {
        if (c == skip)
            continue;
        row(c, stream->steps, value);
        assert_int_equal(step_stream_set(stream, c, value, bytes[c], NULL), RP_OK);
    }
    assert_int_equal(step_stream_end_step(stream, NULL), RP_OK);
}

/* Decodes a chunk and compares every row. */
static void check_chunk(struct step_stream *stream, struct step_chunk *chunk, uint32_t skip)
{
    struct codec_scratch scratch = {0};
    uint8_t want[64], *rows = malloc(64u * chunk->length);
    assert_int_equal(step_stream_encode(stream, chunk, NULL), RP_OK);
    const uint8_t *data = chunk->data;
    for (uint32_t c = 0; c < 3; c++) {
        const struct step_column *column = &stream->columns[c];
        struct codec_shape shape = {column->elem_bytes, column->is_integer, column->row_bytes, chunk->length,
                                    column->rank};
        assert_int_equal(
            codec_decode(&scratch, step_chunk_codecs(chunk, 3)[c], &shape, data, chunk->block_size[c], rows, NULL),
            RP_OK);
        for (uint32_t r = 0; r < chunk->length && c != skip; r++) {
            row(c, chunk->step + r, want);
            assert_memory_equal(rows + r * column->row_bytes, want, (size_t)column->row_bytes);
        }
        data += chunk->block_size[c];
    }
    assert_int_equal(data - chunk->data, chunk->size);
    codec_scratch_fini(&scratch);
    free(rows);
}

FIXTURE(struct step_stream, (void), step_stream_fini)

/* integration.writer has the rows of random items after a broker has kept them. */

CASE(a_cut_inside_a_step_moves_it_on)
{
    start(f, 4, 8);
    add_step(f, 3);
    uint8_t value[64];
    row(1, 1, value);
    assert_int_equal(step_stream_set(f, 1, value, 64, NULL), RP_OK);
    assert_int_equal(step_stream_cut(f, NULL), RP_OK);
    row(0, 1, value);
    assert_int_equal(step_stream_set(f, 0, value, 12, NULL), RP_OK);
    row(2, 1, value);
    assert_int_equal(step_stream_set(f, 2, value, 8, NULL), RP_OK);
    assert_int_equal(step_stream_end_step(f, NULL), RP_OK);
    assert_int_equal(step_stream_cut(f, NULL), RP_OK);
    assert_int_equal(step_stream_find(f, 0)->length, 1);
    assert_ptr_equal(step_stream_next(f, step_stream_find(f, 0)), step_stream_find(f, 1));
    check_chunk(f, step_stream_find(f, 1), 3);
}

CASE(the_window_moves)
{
    start(f, 3, 4);
    for (int i = 0; i < 100; i++) {
        add_step(f, 3);
        assert_int_equal(step_stream_reach(f), i < 4 ? 0 : i - 3);
        assert_true(step_stream_find(f, step_stream_reach(f))->step <= step_stream_reach(f));
        assert_true(f->next - f->oldest <= 3);
    }
    assert_null(f->evicted);
    assert_int_equal(step_stream_end_episode(f, NULL), RP_OK);
    assert_int_equal(step_stream_length(f), 0);
    assert_int_equal(f->episode, 1);
    assert_int_equal(f->oldest, f->next);
    add_step(f, 3);
    assert_int_equal(step_stream_find(f, 100)->episode, 1);
}

CASE(absent_values_are_known)
{
    start(f, 2, 8);
    add_step(f, 3);
    add_step(f, 1);
    add_step(f, 1);
    add_step(f, 1);
    assert_false(step_stream_is_absent(f, 1, 0));
    assert_false(step_stream_is_absent(f, 0, 1));
    for (uint64_t step = 1; step < 4; step++)
        assert_true(step_stream_is_absent(f, 1, step));
    check_chunk(f, step_stream_find(f, 1), 1);
    check_chunk(f, step_stream_find(f, 2), 1);
    assert_true(step_stream_find(f, 2)->block_size[1] < 64);
}

/* ---- layouts */

/* What is found without a look at the slices is what the slices give, and nothing is found that they do not give. */
CASE(the_newest_steps_are_found_again)
{
    struct item_layouts layouts;
    struct rng rng = rng_of(21);
    uint32_t found = 0, refused = 0;
    start(f, 3, 7);
    assert_true(item_layouts_init(&layouts, 1));
    for (uint32_t round = 0; round < 5000; round++) {
        struct item_layout *layout = NULL;
        struct item_steps span = {0}, newest = {0};
        if (rng_below(&rng, 3) > 0)
            add_step(f, rng_below(&rng, 30) == 0 ? 1 : 3);
        if (rng_below(&rng, 60) == 0)
            assert_int_equal(step_stream_end_episode(f, NULL), RP_OK);
        uint32_t steps = 1 + (uint32_t)rng_below(&rng, 2 + 7 * (round / 1000 % 2));
        rp_slice all[3] = {{.start = -(int64_t)steps}, {.column = 1, .start = -(int64_t)steps}};
        all[2] = (rp_slice){.column = 2, .start = -(int64_t)steps};
        struct item_layout *got = item_layouts_newest(&layouts, f, 0, steps, &newest);
        rp_status status =
            item_layouts_get(&layouts, &(struct item_slices){f, &table, all, 3}, 0, &layout, &span, NULL);
        if (got) {
            assert_int_equal(status, RP_OK);
            assert_ptr_equal(got, layout);
            assert_int_equal(newest.first, span.first);
            assert_int_equal(newest.length, span.length);
        }
        if (status == RP_OK)
            layouts.newest[0] = (struct item_newest){layout, steps};
        found += got != NULL;
        refused += status != RP_OK;
    }
    assert_true(found > 500 && refused > 200);
    item_layouts_fini(&layouts);
}

CASE(bad_slices_are_refused)
{
    static const struct {
        rp_slice slices[2];
        uint32_t n;
        const char *text;
    } bad[] = {{{{.start = -12, .count = 1}}, 1, "starts at step -12, but the episode has 10 steps"},
               {{{.start = 1, .count = 4, .stride = 3}}, 1, "ends at step 10, but the episode has 10 steps"},
               {{{.start = -1, .count = 1}, {.start = -2, .count = 1}}, 2, "stands twice"}};
    struct item_layouts layouts;
    struct item_layout *layout;
    struct item_steps span;
    start(f, 1, 100);
    assert_true(item_layouts_init(&layouts, 1));
    for (int i = 0; i < 10; i++)
        add_step(f, 3);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct item_slices slices = {f, &table, bad[i].slices, bad[i].n};
        assert_int_equal(item_layouts_get(&layouts, &slices, 0, &layout, &span, &err), RP_INVALID_ARGUMENT);
        facts_said(err.text, bad[i].text);
    }
    item_layouts_fini(&layouts);
}

/* What a broker says of a signature may be longer than a field can be, or of a type of another version. */
CASE(signatures_that_are_not_known_here_are_refused)
{
    uint32_t shape[1000] = {0, 3};
    Replay__Column want = REPLAY__COLUMN__INIT, *wants[] = {&want};
    Replay__TableSpec spec = {.name = (char *)(uintptr_t) "t", .n_signature = 1, .signature = wants};
    rp_slice slice = {.start = -1};
    struct item_layouts layouts;
    start(f, 1, 100);
    assert_true(item_layouts_init(&layouts, 1));
    want.name = (char *)(uintptr_t) "x";
    want.dtype = (char *)(uintptr_t) "int32";
    want.shape = shape;
    for (want.n_shape = 0; want.n_shape <= 1000; want.n_shape += want.n_shape < 12 ? 1 : 988) {
        const struct item_slices item = {f, &spec, &slice, 1};
        rp_status status = item_layouts_check(&layouts, &item, &err);
        assert_int_equal(status, want.n_shape == 2 ? RP_OK : RP_INVALID_ARGUMENT);
        if (status != RP_OK)
            facts_said(err.text, want.n_shape > RP_MAX_RANK + 1 ? "not known here" : "field 'x' has shape [any,3]");
    }
    want.n_shape = 2;
    want.dtype = (char *)(uintptr_t) "int3";
    must_fail(item_layouts_check(&layouts, &(struct item_slices){f, &spec, &slice, 1}, &err), RP_INVALID_ARGUMENT,
              "not known here ('int3')");
    item_layouts_fini(&layouts);
}

/* Random slices: the layout must give back the same rows, for every length that it is used with. */
CASE(item_layouts_name_the_rows_that_were_asked_for)
{
    struct rng rng = naive_rng(__func__);
    struct item_layouts layouts;
    start(f, 4, 50);
    assert_true(item_layouts_init(&layouts, 1));
    for (int round = 0; round < 20000; round++) {
        if (rng_below(&rng, 3) == 0 || step_stream_length(f) == 0)
            add_step(f, 3);
        if (rng_below(&rng, 40) == 0)
            step_stream_cut(f, NULL);
        if (rng_below(&rng, 500) == 0) {
            step_stream_end_episode(f, NULL);
            continue;
        }
        uint64_t length = step_stream_length(f), reach = length < 50 ? length : 50;
        static const char *const names[] = {"p", "q", "r"};
        rp_slice slices[3];
        uint32_t n = 1 + (uint32_t)rng_below(&rng, 3);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t back = 1 + rng_below(&rng, reach), stride = 1 + rng_below(&rng, 4);
            uint64_t most = (back + stride - 1) / stride;
            slices[i] = (rp_slice){.field = names[i],
                                   .column = (uint32_t)rng_below(&rng, 3),
                                   .start = -(int64_t)back,
                                   .stride = (uint32_t)stride,
                                   .count = (uint32_t)rng_below(&rng, most + 1)};
            if (rng_below(&rng, 2))
                slices[i].start += (int64_t)length;
        }
        struct item_layout *layout;
        struct item_steps span;
        if (item_layouts_get(&layouts, &(struct item_slices){f, &table, slices, n}, 0, &layout, &span, &err) != RP_OK)
            fail_msg("%s", err.text);
        uint64_t from = UINT64_MAX, end = 0; /* of all slices */
        for (uint32_t i = 0; i < n; i++) {
            const Replay__Field *field = &layout->fields[i];
            uint64_t stride = field->stride ? field->stride : 1;
            int64_t asked = slices[i].start < 0 ? slices[i].start + (int64_t)length : slices[i].start;
            int64_t start_row = field->start < 0 ? (int64_t)span.length + field->start : field->start;
            assert_int_equal(span.first + (uint64_t)start_row, f->episode_start + (uint64_t)asked);
            uint64_t left = length - (uint64_t)asked, left_in_item = span.length - (uint64_t)start_row;
            uint64_t want = slices[i].count ? slices[i].count : (left + slices[i].stride - 1) / slices[i].stride;
            uint64_t got = field->count ? field->count : (left_in_item + stride - 1) / stride;
            assert_int_equal(got, want);
            assert_int_equal(stride, slices[i].stride);
            uint64_t to = slices[i].count ? (uint64_t)asked + (want - 1) * slices[i].stride + 1 : length;
            from = (uint64_t)asked < from ? (uint64_t)asked : from;
            end = to > end ? to : end;
        }
        assert_int_equal(span.first, f->episode_start + from);
        assert_int_equal(span.length, end - from);
    }
    item_layouts_fini(&layouts);
}

TEST(bad_columns_are_refused)
{
    struct step_stream stream;
    rp_column bad[2] = {columns[0], columns[0]};
    must_fail(step_stream_init(&stream, bad, 2, 1, 1, &err), RP_INVALID_ARGUMENT, "stands twice");
    bad[0].dtype = 99;
    assert_int_equal(step_stream_init(&stream, bad, 1, 1, 1, &err), RP_INVALID_ARGUMENT);
    bad[0] = columns[0];
    bad[0].shape[0] = UINT32_MAX;
    assert_int_equal(step_stream_init(&stream, bad, 1, 1, 1, &err), RP_INVALID_ARGUMENT);
    bad[0] = columns[0];
    bad[0].name = "";
    assert_int_equal(step_stream_init(&stream, bad, 1, 1, 1, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(step_stream_init(&stream, bad, 0, 1, 1, &err), RP_INVALID_ARGUMENT);
}
