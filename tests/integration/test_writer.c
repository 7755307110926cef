/* A writer and a real broker: rows come back as they were written, and items survive what happens to connections,
 * sessions and brokers. */

#include <sys/wait.h>

#include "proto/base/log.h"
#include "proto/base/rng.h"
#include "tests/support/asked.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/numbers.h"
#include "tests/support/process.h"

static const char tables[] = "  - name: replay\n"
                             "    max_size: 100000\n"
                             "    sampler: {kind: fifo}\n"
                             "  - name: queue\n"
                             "    max_size: 10\n"
                             "    max_times_sampled: 1\n"
                             "    sampler: {kind: fifo}\n"
                             "    limiter: {kind: queue}\n"
                             "  - name: strict\n"
                             "    signature: {x: [float32, 2, 3]}\n"
                             "  - name: ranked\n"
                             "    sampler: {kind: prioritized}\n";

static const rp_column columns[] = {
    {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {3}},
    {.name = "image", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_AUTO, .rank = 2, .shape = {20, 20}},
    {.name = "n", .dtype = RP_DTYPE_INT64, .codec = RP_CODEC_AUTO},
};

struct fixture {
    SERVED;
    rp_writer *writer;
    int64_t step;
};

static void set_up(struct fixture *f)
{
    served_start(f, tables, "session: {expiry: 1s}\n", OPTIONS(rp_client, .backoff_max_ms = 200));
}

static void tear_down(struct fixture *f)
{
    rp_writer_destroy(&f->writer, 0, NULL);
    served_stop(f);
}

static void open_writer(struct fixture *f, uint32_t chunk_length, uint64_t keep_alive)
{
    f->writer = WRITER(f->client, columns, 3, .chunk_length = chunk_length, .keep_alive = keep_alive);
}

static void fill(int64_t n, float *x, uint8_t *image)
{
    for (int i = 0; i < 3; i++)
        x[i] = (float)n + (float)i / 4;
    for (int i = 0; i < 400; i++)
        image[i] = (uint8_t)(n * 7 + i % (1 + n % 5));
}

static void append(struct fixture *f)
{
    float x[3];
    uint8_t image[400];
    const void *values[] = {x, image, &f->step};
    fill(f->step, x, image);
    ok(rp_writer_append(f->writer, values, 10000, &err));
    f->step++;
}

static uint64_t item(struct fixture *f, const char *table, uint32_t steps)
{
    uint64_t key;
    ok(rp_writer_item_last(f->writer, table, 1, steps, 10000, &key, &err));
    return key;
}

static uint64_t table_size(struct fixture *f, const char *name)
{
    return asked_table(f->client, name, "size");
}

/* ---- rows */

FIXTURE(struct fixture, set_up, tear_down)

/* Items of random slices are fetched by key and compared row by row. */
CASE(rows_come_back_as_they_were_written)
{
    struct rng rng = naive_rng(__func__);
    enum { ITEMS = 300 };
    static uint64_t keys[ITEMS];
    static int64_t first[ITEMS], count[ITEMS], stride[ITEMS], last[ITEMS];
    open_writer(f, 4, 12);
    int64_t episode_start = 0;
    for (int i = 0; i < ITEMS; i++) {
        for (uint64_t k = 1 + rng_below(&rng, 3); k > 0; k--)
            append(f);
        int64_t length = f->step - episode_start, reach = length < 12 ? length : 12;
        stride[i] = 1 + (int64_t)rng_below(&rng, 3);
        int64_t back = 1 + (int64_t)rng_below(&rng, (uint64_t)reach);
        count[i] = 1 + (int64_t)rng_below(&rng, (uint64_t)((back + stride[i] - 1) / stride[i]));
        first[i] = f->step - back;
        last[i] = f->step - 1;
        rp_slice slices[] = {
            {.field = "xs", .column = 0, .start = -back, .count = (uint32_t)count[i], .stride = (uint32_t)stride[i]},
            {.field = "images",
             .column = 1,
             .start = -back,
             .count = (uint32_t)count[i],
             .stride = (uint32_t)stride[i]},
            {.field = "last", .column = 2, .start = -1, .count = 1, .squeeze = 1}};
        ok(rp_writer_item(f->writer, "replay", 1, slices, 3, 5000, &keys[i], &err));
        if (rng_below(&rng, 20) == 0) {
            ok(rp_writer_end_episode(f->writer, RP_END_GO, 5000, &err));
            episode_start = f->step;
        } else if (rng_below(&rng, 20) == 0) {
            ok(rp_writer_flush(f->writer, 0, 5000, &err));
        }
    }
    ok(rp_writer_flush(f->writer, 0, 5000, &err));
    for (int i = 0; i < ITEMS; i++) {
        SCOPED(rp_batch) batch = NULL;
        ok(rp_admin_fetch(f->client, "replay", &keys[i], 1, 5000, &batch, &err));
        const rp_field_view *xs = rp_batch_find(batch, "xs"), *images = rp_batch_find(batch, "images");
        assert_int_equal(xs->shape[1], count[i]);
        for (int64_t row = 0; row < count[i]; row++) {
            float x[3];
            uint8_t image[400];
            fill(first[i] + row * stride[i], x, image);
            assert_memory_equal((const float *)xs->data + row * 3, x, sizeof x);
            assert_memory_equal((const uint8_t *)images->data + row * 400, image, sizeof image);
        }
        assert_int_equal(*(const int64_t *)rp_batch_find(batch, "last")->data, last[i]);
    }
}

/* Writes ITEMS items over the last two steps: with all columns to "replay", with the flat column alone to "ranked". */
static void write_flat(struct fixture *f, uint32_t n_columns, uint32_t chunk_length, uint32_t items)
{
    static const rp_column flat[] = {
        {.name = "none", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {0}},
        {.name = "flat", .dtype = RP_DTYPE_INT16, .codec = RP_CODEC_AUTO, .rank = 2, .shape = {3, 0}},
        {.name = "n", .dtype = RP_DTYPE_INT64, .codec = RP_CODEC_AUTO},
    };
    f->writer = WRITER(f->client, flat, n_columns, .chunk_length = chunk_length, .keep_alive = 8);
    rp_slice slice = {.column = 1, .start = -2, .count = 2};
    for (int64_t i = 0; i <= items; i++) {
        const void *values[] = {"", "", &i};
        ok(rp_writer_append(f->writer, values, 5000, &err));
        if (i == 0)
            continue;
        ok(rp_writer_item_last(f->writer, "replay", 1, 2, 5000, NULL, &err));
        ok(rp_writer_item(f->writer, "ranked", 1, &slice, 1, 5000, NULL, &err));
    }
    ok(rp_writer_destroy(&f->writer, 5000, &err));
}

static rp_batch *take(struct fixture *f, const char *table, uint32_t n)
{
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, table, .batch_size = n, .on_demand = 1);
    return batch_next(sampler);
}

/* Columns whose shape holds a 0 have no data, and their fields have their shape. */
CASE(shapes_may_hold_a_zero)
{
    for (uint32_t i = 0; i < 4; i++) {
        bool data = i % 2 == 0; /* or no column has any */
        write_flat(f, data ? 3 : 2, i < 2 ? 1 : 5, 20);
        SCOPED(rp_batch) batch = take(f, "replay", 1);
        SCOPED(rp_batch) more = take(f, "ranked", 20);
        const rp_field_view *none = rp_batch_find(batch, "none"), *flat = rp_batch_find(more, "flat");
        assert_int_equal(none->rank, 3);
        assert_int_equal(none->shape[0] * none->shape[1], 2);
        assert_int_equal(none->shape[2], 0);
        assert_int_equal(none->bytes, 0);
        assert_int_equal(flat->rank, 4);
        assert_int_equal(flat->shape[0] * flat->shape[1], 40);
        assert_int_equal(flat->shape[2], 3);
        assert_int_equal(flat->bytes, 0);
        const rp_field_view *n = rp_batch_find(batch, "n");
        assert_true(!n == !data);
        if (n)
            assert_int_equal(((const int64_t *)n->data)[1], 1);
        ok(rp_admin_reset(f->client, "replay", 5000, NULL, &err));
        ok(rp_admin_reset(f->client, "ranked", 5000, NULL, &err));
    }
}

/* Every chunk is a frame of its own, and several go in one item. */
CASE(large_rows_travel_whole)
{
    const rp_column wide = {.name = "w", .dtype = RP_DTYPE_UINT64, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {30000}};
    f->writer = WRITER(f->client, &wide, 1, .keep_alive = 8);
    uint64_t *row = malloc(30000 * sizeof *row), key = 0;
    const void *values[] = {row};
    struct rng rng;
    for (uint64_t step = 0; step < 40; step++) {
        rng_seed(&rng, step);
        for (int i = 0; i < 30000; i++)
            row[i] = rng_next(&rng);
        ok(rp_writer_append(f->writer, values, 5000, &err));
        if (step >= 7)
            key = item(f, "replay", 8);
    }
    ok(rp_writer_flush(f->writer, 0, 10000, &err));
    SCOPED(rp_batch) batch = NULL;
    ok(rp_admin_fetch(f->client, "replay", &key, 1, 5000, &batch, &err));
    const uint64_t *data = rp_batch_find(batch, "w")->data;
    for (uint64_t step = 32; step < 40; step++) {
        rng_seed(&rng, step);
        for (int i = 0; i < 30000; i++)
            assert_int_equal(*data++, rng_next(&rng));
    }
    free(row);
}

/* ---- back-pressure */

CASE(a_held_back_table_is_explained_and_holds_back_nobody_else)
{
    open_writer(f, 1, 1);
    for (int i = 0; i < 200; i++) {
        append(f);
        if (i < 15)
            item(f, "queue", 1);
        item(f, "replay", 1);
    }
    must_fail(rp_writer_flush(f->writer, 0, 300, &err), RP_DEADLINE_EXCEEDED, "5 items are unconfirmed");
    assert_true(facts_within(err.text, "table 'queue' holds back 5 items"));
    assert_int_equal(table_size(f, "replay"), 200);
    ok(rp_writer_flush(f->writer, 5, WAIT, &err));
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 1, .max_samples = 5, .in_flight = 5);
    ok(rp_writer_flush(f->writer, 0, 5000, &err));
}

/* ---- loss */

/* Another process: 15 items for the queue, which takes 10, and 45 for the other table. After the 50th step it says so on
 * standard output and waits for a word on standard input. */
static int write_in_another_process(const char *service)
{
    char byte = 'w';
    log_set_level(LEVEL_OFF);
    SCOPED(rp_client) client = CONNECT(service);
    SCOPED(rp_writer) writer = WRITER(client, columns, 3, .keep_alive = 3);
    float x[3];
    uint8_t image[400];
    for (int64_t n = 0; n < 60; n++) {
        const void *values[] = {x, image, &n};
        fill(n, x, image);
        ok(rp_writer_append(writer, values, 5000, &err));
        ok(rp_writer_item_last(writer, n % 4 ? "replay" : "queue", 1, n < 3 ? 1 : 3, 5000, NULL, &err));
        if (n == 49) {
            ok(rp_writer_flush(writer, 3, 5000, &err));
            assert_true(write(STDOUT_FILENO, &byte, 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1);
        }
    }
    return 0;
}

static bool one_has_expired(rp_client *client)
{
    bool expired = false;
    SCOPED(rp_info) info = NULL;
    ok(rp_admin_info(client, NULL, 1, WAIT, &info, &err));
    for (uint32_t s = 0; s < rp_info_count(info, "sessions"); s++)
        expired |= rp_info_u64(rp_info_at(info, "sessions", s), "expired") != 0;
    return expired;
}

/* The writer's process is stopped for longer than its session lasts, in the middle of its work. */
CASE(a_stopped_process_takes_its_session_up_again)
{
    int go[2], done[2];
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        /* Threads do not come along: this program again, as a writer only. */
        dup2(go[0], STDIN_FILENO);
        dup2(done[1], STDOUT_FILENO);
        execl("/proc/self/exe", "writer", f->broker.service, (char *)NULL);
        _exit(127);
    }
    char byte;
    assert_int_equal(read(done[0], &byte, 1), 1);
    kill(child, SIGSTOP);
    /* The broker drops what waits, and says so in its list of sessions. */
    wait_until(one_has_expired(f->client));
    kill(child, SIGCONT);
    assert_int_equal(write(go[1], "g", 1), 1);
    /* Make room in the queue for all 15. */
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 1, .max_samples = 15);
    for (int i = 0; i < 15; i++) {
        SCOPED(rp_batch) batch = batch_next(sampler);
        /* Each once, in order: items over steps 0, 2-4, 6-8 ... */
        assert_int_equal(arrays_of(batch).step[0], i == 0 ? 0 : 4 * i - 2);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(table_size(f, "replay"), 45);
}

/* A broker that stands still for a while, longer than the client's patience: nothing is lost or doubled. */
CASE(a_broker_that_stood_still_goes_on)
{
    open_writer(f, 1, 2);
    for (int i = 0; i < 500; i++) {
        append(f);
        item(f, "replay", 1);
        if (i == 250) {
            kill(f->broker.pid, SIGSTOP);
            assert_int_equal(rp_writer_flush(f->writer, 0, 900, NULL), RP_DEADLINE_EXCEEDED);
        }
        if (i == 400)
            kill(f->broker.pid, SIGCONT);
    }
    ok(rp_writer_flush(f->writer, 0, 15000, &err));
    assert_int_equal(table_size(f, "replay"), 500);
    rp_writer_info info = {.struct_size = sizeof info};
    rp_writer_get_info(f->writer, &info, NULL);
    assert_int_equal(info.accepted, 500);
    assert_int_equal(info.sessions, 1);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[0], "writer") == 0)
        return write_in_another_process(argv[1]);
    return test_run(NULL, NULL);
}
