/* A client without a thread, and the broker that it hosts: everything that a client can do, on one thread. */
#include "agent/client/conn/client.h"
#include "tests/support/asked.h"
#include "tests/support/embed.h"
#include "tests/support/numbers.h"
#include "tests/support/process.h"

static const char yaml[] = "service: inproc://service\n" /* not bound */
                           "tables:\n"
                           "  - {name: queue, max_size: 100, max_times_sampled: 1, sampler: {kind: fifo},\n"
                           "     limiter: {kind: queue}}\n"
                           "  - {name: prioritized, max_size: 1000, sampler: {kind: prioritized}}\n"
                           "  - {name: late, max_size: 1000, sampler: {kind: uniform},\n"
                           "     limiter: {kind: min_size, min_size: 10}}\n";

struct fixture {
    struct broker_config config;
    struct channels channels;
    struct broker *broker;
    rp_client *client;
    uint32_t threads; /* before */
    uint64_t turns;
    bool deaf; /* the broker does nothing */
};

static void turn(void *ctx, int wait_ms)
{
    struct fixture *f = ctx;
    f->turns++;
    if (!f->deaf)
        broker_turn(f->broker, wait_ms);
}

static void setup(struct fixture *f)
{
    char problems[2048];
    if (!embed_read_config(yaml, &f->config, problems, sizeof problems))
        fail_msg("%s", problems);
    f->broker = must(broker_new_local(&f->config, clock_system(), &f->channels, &err));
    f->threads = process_threads();
    const struct conn_host host = {.channels = &f->channels, .turn = turn, .ctx = f};
    f->client = must(client_connect("this process", OPTIONS(rp_client, .name = "hosted"), &host, WAIT, &err));
}

static void teardown(struct fixture *f)
{
    assert_in_range(process_threads(), 1,
                    f->threads); /* whatever was opened meanwhile; one of the start may have ended */
    rp_client_destroy(&f->client);
    broker_destroy(&f->broker);
    channels_fini(&f->channels);
    schema_free(&broker_schema, &f->config);
}

/* in_flight 0: on demand. */
static rp_sampler *open_sampler(rp_client *client, const char *table, uint32_t batch, uint32_t in_flight)
{
    return SAMPLER(client, table, .batch_size = batch, .in_flight = in_flight, .on_demand = in_flight == 0);
}

/* The next n numbers, in batches of any size. */
static void expect_numbers(rp_sampler *sampler, int32_t first, uint32_t n)
{
    for (uint32_t done = 0; done < n;) {
        SCOPED(rp_batch) batch = batch_next(sampler);
        for (uint32_t i = 0, items = info_of_batch(batch).n; i < items; i++)
            assert_int_equal(numbers_of(batch)[i], first + (int32_t)done++);
    }
}

/* ---- data ---- */

FIXTURE(struct fixture, setup, teardown)

/* More items than the ring between writer and connection has room for, and than the table has: each call that waits makes
 * the other side move. */
CASE(queue)
{
    for (uint32_t in_flight = 0; in_flight <= 4; in_flight += 2) {
        SCOPED(rp_writer) writer = numbers_writer(f->client);
        SCOPED(rp_sampler) sampler = open_sampler(f->client, "queue", 7, in_flight);
        int32_t written = 0, read = 0;
        for (int32_t round = 0; round < 60; round++) {
            for (uint32_t i = 0; i < 70; i++)
                numbers_write(writer, "queue", written++, 1);
            ok(rp_writer_flush(writer, 0, WAIT, &err));
            expect_numbers(sampler, read, 70);
            read += 70;
        }
    }
}

/* Items over any of a stream's columns, in chunks of their own and in one: a reply has the blocks that its items need. */
CASE(some_columns)
{
    static const rp_column columns[] = {{.name = "a", .dtype = RP_DTYPE_INT32},
                                        {.name = "b", .dtype = RP_DTYPE_INT64},
                                        {.name = "c", .dtype = RP_DTYPE_INT32}};
    for (uint32_t set = 1; set < 8; set++) { /* bit i: column i is a field */
        SCOPED(rp_writer) writer = WRITER(f->client, columns, 3, .chunk_length = set % 3 + 1, .keep_alive = 3);
        rp_slice slices[3];
        uint32_t n = 0;
        for (uint32_t i = 0; i < 3; i++)
            if (set >> i & 1)
                slices[n++] = (rp_slice){.column = i, .count = 2, .start = -2};
        for (int32_t t = 0; t < 12; t++) {
            const void *values[] = {&t, &(int64_t){100 + t}, &(int32_t){200 + t}};
            ok(rp_writer_append(writer, values, WAIT, &err));
            if (t > 0)
                ok(rp_writer_item(writer, "queue", 1.0, slices, n, WAIT, NULL, &err));
        }
        ok(rp_writer_flush(writer, 0, WAIT, &err));
        SCOPED(rp_sampler) sampler = open_sampler(f->client, "queue", 11, 0);
        SCOPED(rp_batch) batch = batch_next(sampler);
        for (uint32_t i = 0; i < 3; i++) {
            const rp_field_view *view = rp_batch_find(batch, columns[i].name);
            assert_int_equal(view != NULL, set >> i & 1);
            for (int32_t k = 0; view && k < 22; k++) {
                int64_t got = i == 1 ? ((const int64_t *)view->data)[k] : ((const int32_t *)view->data)[k];
                assert_int_equal(got, 100 * (int32_t)i + k / 2 + k % 2);
            }
        }
    }
}

/* Whoever asks again and again without patience gets there, too. */
CASE(without_patience)
{
    SCOPED(rp_writer) writer = numbers_writer(f->client);
    SCOPED(rp_sampler) sampler = open_sampler(f->client, "queue", 5, 2);
    for (int32_t i = 0; i < 5; i++)
        ok(numbers_try(writer, "queue", i, 1, 0, NULL, &err));
    rp_status status;
    wait_until((status = rp_writer_flush(writer, 0, 0, &err)) != RP_DEADLINE_EXCEEDED);
    ok(status);
    SCOPED(rp_batch) batch = NULL;
    wait_until((status = rp_sampler_next(sampler, &batch, 0, &err)) != RP_DEADLINE_EXCEEDED);
    ok(status);
}

/* More items than the ring between a writer and its connection holds, while nothing waits: the writer makes the room itself. */
CASE(many_items)
{
    rp_writer *writer = numbers_writer(f->client);
    for (int32_t i = 0; i < 5000; i++)
        ok(numbers_try(writer, "prioritized", i, 1, 0, NULL, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
    assert_int_equal(asked_table(f->client, "prioritized", "size"), 1000);
}

/* Nothing comes: the wait ends when it is told to, the broker sleeps meanwhile, and says what is missing, unless the machine stood
 * still meanwhile. */
CASE(time_out)
{
    for (uint32_t in_flight = 0; in_flight <= 2; in_flight += 2) {
        SCOPED(rp_sampler) sampler = open_sampler(f->client, "late", 3, in_flight);
        rp_batch *batch;
        bool told = false;
        for (uint32_t i = 0; i < 10 && !told; i++) {
            uint64_t turns = f->turns;
            int64_t start = clock_ns();
            assert_int_equal(rp_sampler_next(sampler, &batch, 300, &err), RP_DEADLINE_EXCEEDED);
            assert_true(clock_ns() - start >= 300 * NS_PER_MS);
            assert_in_range(f->turns - turns, 1, 100);
            told = strstr(err.text, "10") != NULL;
        }
        assert_true(told);
    }
}

/* A broker that does not answer: requests end at their time. */
CASE(deaf)
{
    f->deaf = true;
    assert_int_equal(rp_params_put(f->client, "slot", "x", 1, 50, NULL, &err), RP_DEADLINE_EXCEEDED);
    f->deaf = false;
    ok(rp_params_put(f->client, "slot", "x", 1, WAIT, NULL, &err));
}

/* ---- the rest ---- */

CASE(priorities)
{
    SCOPED(rp_writer) writer = numbers_writer(f->client);
    uint64_t keys[20];
    double priorities[20] = {0};
    for (int32_t i = 0; i < 20; i++)
        keys[i] = numbers_write(writer, "prioritized", i, 1);
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    priorities[7] = 1.0;
    SCOPED(rp_updater)
    updater = must(rp_updater_new(f->client, "prioritized", OPTIONS(rp_updater, .batch = 3, .in_flight = 2), &err));
    rp_change change;
    ok(rp_updater_add(updater, keys, priorities, 20, WAIT, NULL, &err));
    ok(rp_updater_flush(updater, WAIT, &change, &err));
    assert_int_equal(change.applied, 20);
    SCOPED(rp_sampler) sampler = open_sampler(f->client, "prioritized", 1, 0);
    for (uint32_t i = 0; i < 10; i++)
        expect_numbers(sampler, 7, 1);
    ok(rp_items_delete(f->client, "prioritized", keys, 20, WAIT, &change, &err));
    assert_int_equal(change.applied, 20);
}

CASE(parameters)
{
    uint64_t version = 0;
    SCOPED(rp_params) params = NULL;
    assert_int_equal(rp_params_get(f->client, "policy", 0, 20, &params, &err), RP_DEADLINE_EXCEEDED);
    ok(rp_params_put(f->client, "policy", "abc", 3, WAIT, &version, &err));
    ok(rp_params_get(f->client, "policy", 0, WAIT, &params, &err));
    assert_int_equal(rp_params_slot(params)->bytes, 3);
    int64_t value = 0;
    ok(rp_counter_add(f->client, "steps", 5, WAIT, &value, &err));
    ok(rp_counter_add(f->client, "steps", 5, WAIT, &value, &err));
    assert_int_equal(value, 10);
    rp_reduce *reduce = must(rp_reduce_join(f->client, "group", WAIT, &err));
    float vector[] = {1, 2, 3};
    rp_reduced reduced;
    ok(rp_reduce_add(reduce, vector, 3, WAIT, WAIT, &reduced, &err));
    assert_int_equal(reduced.contributors, 1);
    ok(rp_reduce_leave(&reduce, WAIT, &err));
    SCOPED(rp_info) info = asked_info(f->client, NULL);
    assert_int_equal(rp_info_count(info, "tables"), 3);
}

/* Those that talk while their caller does something else: here, while it looks. */
CASE(without_waiting)
{
    rp_status status;
    SCOPED(rp_publisher) publisher = must(rp_publisher_new(f->client, "policy", &err));
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, "policy", 0, &err));
    ok(rp_publisher_put(publisher, "abcd", 4, &err));
    SCOPED(rp_params) params = NULL;
    wait_until((status = rp_subscriber_take(subscriber, 0, &params, &err)) != RP_DEADLINE_EXCEEDED);
    ok(status);
    assert_int_equal(rp_params_slot(params)->bytes, 4);
    rp_addition *addition = must(rp_counter_begin(f->client, "steps", 3, &err));
    int64_t value = 0;
    wait_until((status = rp_counter_end(&addition, 0, &value, &err)) != RP_DEADLINE_EXCEEDED);
    ok(status);
    assert_int_equal(value, 3);
    ok(rp_publisher_destroy(&publisher, WAIT, &err));
}

/* What is under way when the client goes is ended, not waited for. */
CASE(end)
{
    SCOPED(rp_sampler) sampler = open_sampler(f->client, "late", 3, 4);
    rp_batch *batch;
    assert_int_equal(rp_sampler_next(sampler, &batch, 0, NULL), RP_DEADLINE_EXCEEDED);
    rp_sampler_destroy(&sampler);
    sampler = open_sampler(f->client, "late", 3, 4);
}
