/* rp_writer_row against a model that keeps every step, while chunks are compressed, sent and evicted. */

#include "tests/support/naive.h"
#include "tests/support/writer_fixture.h"

#define STEPS 400
#define KEEP 7

static const rp_column columns[] = {
    {.name = "x", .dtype = RP_DTYPE_INT64, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {3}},
    {.name = "b", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_LZ4, .rank = 1, .shape = {5}},
};
enum { X_BYTES = 24, B_BYTES = 5 };

FIXTURE(struct writer_fixture, writer_fixture_start, writer_fixture_stop)

static void open_writer(struct writer_fixture *f, uint32_t chunk_length, uint32_t history)
{
    rp_writer_options options = {
        .struct_size = sizeof options, .chunk_length = chunk_length, .keep_alive = KEEP, .history = history};
    writer_fixture_open(f, columns, 2, &options);
}

struct model {
    uint8_t rows[STEPS][2][X_BYTES];
    bool absent[STEPS][2];
    uint32_t start, steps; /* of the episode; of all */
};

/* Asks for every step of the episode, from both ends, and for some beyond. */
static void agrees(struct writer_fixture *f, const struct model *model)
{
    int64_t length = model->steps - model->start, kept = length < KEEP ? length : KEEP;
    for (int64_t step = -length - 2; step <= length + 1; step++) {
        int64_t at = step < 0 ? length + step : step;
        for (uint32_t c = 0; c < 2; c++) {
            const void *row = &row;
            rp_status status = rp_writer_row(f->writer, c, step, &row, &err);
            if (at < length - kept || at >= length) {
                assert_int_equal(status, RP_NOT_FOUND);
                assert_null(row);
                continue;
            }
            assert_int_equal(status, RP_OK);
            uint32_t i = model->start + (uint32_t)at;
            assert_int_equal(row == NULL, model->absent[i][c]);
            if (row)
                assert_memory_equal(row, model->rows[i][c], c ? B_BYTES : X_BYTES);
        }
    }
}

static void random_run(struct writer_fixture *f, struct rng *rng)
{
    static struct model model;
    memset(&model, 0, sizeof model);
    while (model.steps < STEPS) {
        const void *values[2];
        for (uint32_t c = 0; c < 2; c++) {
            for (uint32_t i = 0; i < X_BYTES; i++)
                model.rows[model.steps][c][i] = (uint8_t)rng_below(rng, 3);
            model.absent[model.steps][c] = c == 1 && rng_below(rng, 4) == 0;
            values[c] = model.absent[model.steps][c] ? NULL : model.rows[model.steps][c];
        }
        assert_int_equal(rp_writer_append(f->writer, values, 5000, &err), RP_OK);
        model.steps++;
        rp_slice slice = {.column = 0, .start = -1};
        if (rng_below(rng, 2))
            assert_int_equal(rp_writer_item(f->writer, "a", 1, &slice, 1, 5000, NULL, &err), RP_OK);
        agrees(f, &model);
        if (rng_below(rng, 20) == 0) {
            assert_int_equal(rp_writer_end_episode(f->writer, RP_END_GO, 5000, &err), RP_OK);
            model.start = model.steps;
            agrees(f, &model);
        }
    }
}

CASE(model)
{
    for (uint32_t chunk_length = 1; chunk_length <= 9; chunk_length += 2) {
        struct rng rng = rng_of(chunk_length);
        open_writer(f, chunk_length, 1);
        random_run(f, &rng);
    }
}

CASE(statuses)
{
    int64_t x[3] = {1, 2, 3};
    const void *row, *values[] = {x, NULL};
    open_writer(f, 1, 0);
    assert_int_equal(rp_writer_append(f->writer, values, 0, &err), RP_OK);
    assert_int_equal(rp_writer_row(f->writer, 0, -1, &row, &err), RP_FAILED_PRECONDITION);
    open_writer(f, 1, 1);
    assert_int_equal(rp_writer_row(f->writer, 0, -1, &row, &err), RP_NOT_FOUND);
    assert_int_equal(rp_writer_set(f->writer, 0, x, sizeof x, &err), RP_OK);
    assert_int_equal(rp_writer_row(f->writer, 0, 0, &row, &err), RP_NOT_FOUND); /* the step is not complete */
    assert_int_equal(rp_writer_end_step(f->writer, 0, &err), RP_OK);
    assert_int_equal(rp_writer_row(f->writer, 0, 0, &row, &err), RP_OK);
    assert_memory_equal(row, x, sizeof x);
    assert_int_equal(rp_writer_row(f->writer, 2, 0, &row, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(rp_writer_row(f->writer, 0, INT64_MIN, &row, &err), RP_NOT_FOUND);
    assert_int_equal(rp_writer_row(f->writer, 0, INT64_MAX, &row, &err), RP_NOT_FOUND);
    rp_writer_options huge = {.struct_size = sizeof huge, .keep_alive = UINT64_MAX, .history = 1};
    must_fail_new(rp_writer_new(f->client, columns, 2, &huge, 5000, &err), RP_NO_MEMORY, NULL);
}
