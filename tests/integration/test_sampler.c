/* The sampler against a real broker: order, bounds, ends, deadlines, restarts, updates. */
#include <pthread.h>

#include "replay/admin.h"
#include "tests/support/asked.h"
#include "tests/support/numbers.h"
#include "tests/support/process.h"

static const char tables[] = "  - {name: queue, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo},\n"
                             "     limiter: {kind: min_size, min_size: 1}}\n"
                             "  - {name: fifo, max_size: 100000, sampler: {kind: fifo}}\n"
                             "  - {name: uniform, max_size: 1000, sampler: {kind: uniform}}\n"
                             "  - {name: prioritized, max_size: 1000, sampler: {kind: prioritized, exponent: \"1\"}}\n"
                             "  - {name: late, max_size: 1000, sampler: {kind: uniform},\n"
                             "     limiter: {kind: min_size, min_size: 10}}\n";

static void begin(struct served *f)
{
    served_start(f, tables, NULL);
}

/* Inserts items of one step: {number, [number, number + 0.5]}; priority 1 + number. Gives their keys if wanted. */
static void insert(rp_client *client, const char *table, int32_t first, uint32_t n, uint64_t *keys)
{
    rp_column columns[] = {{.name = "number", .dtype = RP_DTYPE_INT32},
                           {.name = "pair", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {2}}};
    rp_writer *writer = must(rp_writer_new(client, columns, 2, NULL, WAIT, &err));
    for (uint32_t i = 0; i < n; i++) {
        int32_t number = first + (int32_t)i;
        float pair[] = {(float)number, (float)number + 0.5f};
        rp_slice slices[] = {{.column = 0, .count = 1, .start = -1, .squeeze = 1},
                             {.column = 1, .count = 1, .start = -1, .squeeze = 1}};
        const void *values[] = {&number, pair};
        uint64_t key;
        ok(rp_writer_append(writer, values, WAIT, &err));
        ok(rp_writer_item(writer, table, 1.0 + number, slices, 2, WAIT, &key, &err));
        if (keys)
            keys[i] = key;
    }
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
}

static rp_sampler_options options(uint32_t batch, uint32_t in_flight)
{
    rp_sampler_options out = {.struct_size = sizeof out, .batch_size = batch, .in_flight = in_flight};
    return out;
}

static rp_sampler *sampler_new(rp_client *client, const char *table, const rp_sampler_options *with)
{
    return must(rp_sampler_new(client, table, with, &err));
}

struct expectation {
    rp_client *client;
    const char *table;
    uint64_t samples;
};

static int samples_reached(void *ctx)
{
    struct expectation *want = ctx;
    return asked_table(want->client, want->table, "limiter.samples") == want->samples;
}

/* Takes a batch by calls that do not wait. */
static rp_status poll_batch(rp_sampler *sampler, rp_batch **batch)
{
    rp_status status = RP_DEADLINE_EXCEEDED;
    for (int i = 0; i < WAIT && status == RP_DEADLINE_EXCEEDED; i++) {
        if (i)
            usleep(1000);
        status = rp_sampler_next(sampler, batch, 0, &err);
    }
    return status;
}

/* ---- order and bounds ---- */

FIXTURE(struct served, begin, served_stop)

CASE(order_and_max_samples)
{
    insert(f->client, "queue", 0, 2000, NULL);
    rp_sampler_options with = options(64, 8);
    with.max_samples = 1003;
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    int32_t expected = 0;
    for (;;) {
        rp_batch *batch = NULL;
        rp_status status = expected % 3 ? poll_batch(sampler, &batch) : rp_sampler_next(sampler, &batch, WAIT, &err);
        if (status == RP_END_OF_STREAM)
            break;
        ok(status);
        const rp_field_view *number = rp_batch_find(batch, "number"), *pair = rp_batch_find(batch, "pair");
        assert_int_equal(number->rank, 1);
        assert_int_equal(pair->rank, 2);
        assert_int_equal(pair->shape[1], 2);
        for (uint32_t i = 0; i < info_of_batch(batch).n; i++, expected++) {
            assert_int_equal(((int32_t *)number->data)[i], expected);
            assert_true(((float *)pair->data)[2 * i + 1] == (float)expected + 0.5f);
        }
        rp_batch_release(&batch);
    }
    assert_int_equal(expected, 1003);
    /* Exactly: also the table has given no more. */
    assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), 1003);
    rp_batch *batch = NULL;
    assert_int_equal(rp_sampler_next(sampler, &batch, 0, &err), RP_END_OF_STREAM);
    rp_sampler_destroy(&sampler);
    assert_null(sampler);
}

CASE(bounded_prefetch)
{
    insert(f->client, "queue", 0, 200, NULL);
    rp_sampler_options with = options(5, 3);
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    struct expectation want = {f->client, "queue", 15};
    assert_true(process_await(samples_reached, &want));
    for (uint32_t k = 1; k <= 4; k++) {
        batches_pass(sampler, 1);
        want.samples = 15 + 5 * k;
        assert_true(process_await(samples_reached, &want));
        /* Several requests to the same broker later, still no more. */
        for (uint32_t i = 0; i < 20; i++)
            assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), want.samples);
        rp_sampler_stats stats = stats_of(sampler);
        assert_true(stats.requested + stats.ready <= 3);
        assert_int_equal(stats.batches, k);
    }
    rp_sampler_destroy(&sampler);
}

/* Requests go out in bursts, when half of the batches were taken: no request for each of them. */
CASE(bursts)
{
    insert(f->client, "queue", 0, 200, NULL);
    rp_sampler_options with = options(5, 8);
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    struct expectation want = {f->client, "queue", 40};
    assert_true(process_await(samples_reached, &want));
    for (uint32_t k = 1; k <= 12; k++) {
        batches_pass(sampler, 1);
        want.samples = 40 + 20 * (k / 4);
        assert_true(process_await(samples_reached, &want));
        for (uint32_t i = 0; i < 20; i++)
            assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), want.samples);
    }
    rp_sampler_destroy(&sampler);
}

/* ---- ends and deadlines ---- */

CASE(timeout_ends_stream)
{
    insert(f->client, "queue", 0, 7, NULL);
    rp_sampler_options with = options(10, 4);
    with.end_after_ms = 150;
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    rp_batch *batch = batch_next(sampler);
    rp_batch_info info = info_of_batch(batch);
    assert_int_equal(info.n, 7);
    assert_int_equal(info.partial, 1);
    assert_true(strlen(rp_batch_text(batch)) > 0);
    rp_batch_release(&batch);
    assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_END_OF_STREAM);
    assert_null(batch);
    assert_non_null(strstr(err.text, "needs 1 more insert"));
    assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_END_OF_STREAM);
    rp_sampler_destroy(&sampler);
}

CASE(zero_timeout_polls)
{
    rp_sampler_options with = options(10, 2);
    with.end_after_ms = -1;
    rp_batch *batch = NULL;
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_END_OF_STREAM);
    rp_sampler_destroy(&sampler);
    insert(f->client, "queue", 0, 25, NULL);
    sampler = sampler_new(f->client, "queue", &with);
    uint32_t items = 0;
    rp_status status;
    while ((status = rp_sampler_next(sampler, &batch, WAIT, &err)) == RP_OK) {
        items += info_of_batch(batch).n;
        rp_batch_release(&batch);
    }
    assert_int_equal(status, RP_END_OF_STREAM);
    assert_int_equal(items, 25);
    rp_sampler_destroy(&sampler);
}

CASE(deadline_says_why)
{
    insert(f->client, "late", 0, 4, NULL);
    rp_sampler_options with = options(8, 2);
    rp_sampler *sampler = sampler_new(f->client, "late", &with);
    rp_batch *batch = NULL;
    /* The broker is asked shortly before the deadline. A machine that is slow then has the answer for the next call. */
    for (uint32_t tries = 0; tries < 10 && !strstr(err.text, "needs 6 more inserts"); tries++) {
        assert_int_equal(rp_sampler_next(sampler, &batch, 400, &err), RP_DEADLINE_EXCEEDED);
        assert_null(batch);
    }
    if (!strstr(err.text, "needs 6 more inserts"))
        fail_msg("not said what for: %s", err.text);
    /* The same requests are still under way. */
    insert(f->client, "late", 4, 6, NULL);
    assert_int_equal(batches_pass(sampler, 1), 8);
    rp_sampler_destroy(&sampler);
}

CASE(flexible_and_distinct)
{
    insert(f->client, "uniform", 0, 30, NULL);
    rp_sampler_options with = options(30, 2);
    with.distinct = 1;
    rp_sampler *sampler = sampler_new(f->client, "uniform", &with);
    for (uint32_t k = 0; k < 5; k++) {
        rp_batch *batch = batch_next(sampler);
        rp_batch_arrays arrays = arrays_of(batch);
        assert_int_equal(arrays.n, 30);
        for (uint32_t i = 0; i < arrays.n; i++) {
            for (uint32_t j = 0; j < i; j++)
                assert_true(arrays.key[i] != arrays.key[j]);
        }
        rp_batch_release(&batch);
    }
    rp_sampler_destroy(&sampler);

    insert(f->client, "queue", 0, 12, NULL);
    with = options(100, 1);
    with.fill = RP_FILL_AT_ONCE;
    sampler = sampler_new(f->client, "queue", &with);
    assert_int_equal(batches_pass(sampler, 1), 12);
    rp_sampler_destroy(&sampler);
}

static int nothing_waits(void *ctx)
{
    return asked_waits(ctx, NULL, NULL, 0) == 0;
}

static int something_waits(void *ctx)
{
    return !nothing_waits(ctx);
}

CASE(destroy_cancels)
{
    rp_sampler_options with = options(8, 4);
    rp_sampler *sampler = sampler_new(f->client, "late", &with);
    assert_true(process_await(something_waits, f->client));
    rp_sampler_destroy(&sampler);
    assert_true(process_await(nothing_waits, f->client));
}

/* What others insert after that is for others: nothing of the sampler is left at the broker. */
CASE(a_destroyed_sampler_takes_nothing)
{
    rp_client *other = must(rp_client_connect(f->broker.service, NULL, WAIT, &err));
    rp_sampler_options with = options(1, 8);
    for (uint32_t round = 0; round < 100; round++) {
        rp_sampler *sampler = sampler_new(f->client, "queue", &with);
        assert_true(process_await(something_waits, other));
        rp_sampler_destroy(&sampler);
        assert_true(nothing_waits(other));
    }
    insert(other, "queue", 0, 3, NULL);
    assert_int_equal(asked_table(other, "queue", "size"), 3);
    rp_client_destroy(&other);
}

/* What was picked comes, also the items of a request that waits for more; nothing is picked after that. */
CASE(stop)
{
    rp_batch *batch;
    for (uint32_t on_demand = 0; on_demand < 2; on_demand++) {
        uint32_t got = 0, expected = on_demand ? 8 : 30;
        rp_sampler_options with = options(8, 8);
        with.on_demand = on_demand;
        insert(f->client, "queue", 0, 30, NULL);
        rp_sampler *sampler = sampler_new(f->client, "queue", &with);
        got += batches_pass(sampler, 1);
        struct expectation all = {f->client, "queue", 30 * on_demand + expected};
        assert_true(process_await(samples_reached, &all));
        ok(rp_sampler_stop(sampler, &err));
        assert_true(process_await(nothing_waits, f->client)); /* what waits is recalled soon, not at once */
        insert(f->client, "queue", 30, 8, NULL);
        while (rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK) {
            got += info_of_batch(batch).n;
            rp_batch_release(&batch);
        }
        assert_int_equal(err.status, RP_END_OF_STREAM);
        assert_int_equal(got, expected);
        assert_int_equal(asked_table(f->client, "queue", "size"), on_demand ? 8 + 38 - 8 : 38 - 30);
        rp_sampler_destroy(&sampler);
    }
}

CASE(wrong_use)
{
    assert_null(rp_sampler_new(f->client, "unifrom", NULL, &err));
    assert_int_equal(err.status, RP_NOT_FOUND);
    assert_non_null(strstr(err.text, "uniform"));
    rp_sampler_options wrong[] = {options(1000000000, 4), options(1, 1000000), options(1, 1), options(1, 1)};
    wrong[2].beta = NAN;
    wrong[3].fill = RP_FILL_WHOLE + 1;
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_null(rp_sampler_new(f->client, "uniform", &wrong[i], &err));
        assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    }
}

/* ---- on demand ---- */

static rp_sampler_options on_demand(uint32_t batch)
{
    rp_sampler_options out = options(batch, 8);
    out.on_demand = 1;
    return out;
}

CASE(demand_asks_for_nothing_ahead)
{
    insert(f->client, "queue", 0, 100, NULL);
    rp_sampler_options with = on_demand(10);
    with.max_samples = 75;
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    rp_batch *batch = NULL;
    /* The answer of the broker to INFO comes after whatever was sent before on the same connection. */
    assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), 0);
    for (int32_t expected = 0; expected < 75;) {
        ok(rp_sampler_next(sampler, &batch, 0, &err));
        uint32_t n = info_of_batch(batch).n;
        assert_int_equal(n, expected < 70 ? 10 : 5);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(numbers_of(batch)[i], expected++);
        rp_batch_release(&batch);
        assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), expected);
    }
    assert_int_equal(rp_sampler_next(sampler, &batch, 0, &err), RP_END_OF_STREAM);
    rp_sampler_stats stats = stats_of(sampler);
    assert_int_equal(stats.batches, 8);
    assert_int_equal(stats.items, 75);
    assert_int_equal(stats.requested + stats.ready, 0);
    rp_sampler_destroy(&sampler);
    assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), 75);
}

/* ---- items of different fields ---- */

/* One item of another layout: the field "other" is {number, number} as int32[2]. */
static void insert_other(rp_client *client, const char *table, int32_t number)
{
    rp_column column = {.name = "other", .dtype = RP_DTYPE_INT32, .rank = 1, .shape = {2}};
    rp_slice slice = {.column = 0, .count = 1, .start = -1, .squeeze = 1};
    int32_t value[2] = {number, number};
    const void *values[] = {value};
    rp_writer *writer = must(rp_writer_new(client, &column, 1, NULL, WAIT, &err));
    ok(rp_writer_append(writer, values, WAIT, &err));
    ok(rp_writer_item(writer, table, 1.0, &slice, 1, WAIT, NULL, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
}

/* Takes `n` items and notes their numbers. Those of one layout come in rising order from a queue. */
static void take_mixed(rp_sampler *sampler, uint32_t n, bool rising, uint32_t *seen)
{
    int32_t last[2] = {-1, -1};
    while (n > 0) {
        rp_batch *batch = batch_next(sampler);
        const rp_field_view *number = rp_batch_find(batch, "number"), *other = rp_batch_find(batch, "other");
        assert_true(!number != !other);
        for (uint32_t i = 0; i < info_of_batch(batch).n; i++, n--) {
            int32_t value = number ? ((int32_t *)number->data)[i] : ((int32_t *)other->data)[2 * i + 1];
            assert_int_equal(value % 2, number ? 0 : 1);
            assert_true(!rising || value > last[value % 2]);
            last[value % 2] = value;
            seen[value]++;
        }
        rp_batch_release(&batch);
    }
}

/* Whatever stands side by side in a queue, each item is delivered once. */
CASE(items_of_different_fields)
{
    for (uint32_t demand = 0; demand < 2; demand++) {
        for (int32_t i = 0; i < 40; i++) {
            if (i % 2)
                insert_other(f->client, "queue", i);
            else
                insert(f->client, "queue", i, 1, NULL);
        }
        rp_sampler_options with = demand ? on_demand(8) : options(8, 4);
        with.max_samples = 40;
        rp_sampler *sampler = sampler_new(f->client, "queue", &with);
        uint32_t seen[40] = {0};
        take_mixed(sampler, 40, true, seen);
        for (uint32_t i = 0; i < 40; i++)
            assert_int_equal(seen[i], 1);
        rp_batch *batch = NULL;
        assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_END_OF_STREAM);
        rp_sampler_stats stats = stats_of(sampler);
        assert_int_equal(stats.items, 40);
        assert_int_equal(stats.batches, 10); /* of 5 replies */
        rp_sampler_destroy(&sampler);
        assert_int_equal(asked_table(f->client, "queue", "size"), 0);
    }
}

/* A fetch gives one batch, or says what does not fit; nothing is removed by it. */
CASE(fetch_of_different_fields)
{
    uint64_t keys[2];
    insert(f->client, "fifo", 0, 1, &keys[0]);
    insert_other(f->client, "fifo", 1);
    rp_info *list = NULL;
    ok(rp_admin_list(f->client, "fifo", 0, 4, WAIT, &list, &err));
    assert_int_equal(rp_info_count(list, "items"), 2);
    keys[1] = rp_info_u64(rp_info_at(list, "items", rp_info_u64(list, "items.0.key") == keys[0]), "key");
    rp_info_free(&list);
    rp_batch *batch = NULL;
    assert_int_equal(rp_admin_fetch(f->client, "fifo", keys, 2, WAIT, &batch, &err), RP_FAILED_PRECONDITION);
    assert_null(batch);
    for (uint32_t i = 0; i < 2; i++) {
        ok(rp_admin_fetch(f->client, "fifo", &keys[i], 1, WAIT, &batch, &err));
        assert_non_null(rp_batch_find(batch, i ? "other" : "number"));
        rp_batch_release(&batch);
    }
}

CASE(demand_polls_and_waits)
{
    insert(f->client, "late", 0, 4, NULL);
    rp_sampler_options with = on_demand(8);
    rp_sampler *sampler = sampler_new(f->client, "late", &with);
    rp_batch *batch = NULL;
    for (int64_t timeout = 0; timeout <= 60; timeout += 20) {
        err = (rp_error){0};
        assert_int_equal(rp_sampler_next(sampler, &batch, timeout, &err), RP_DEADLINE_EXCEEDED);
        assert_null(batch);
        if (!strstr(err.text, "needs 6 more inserts"))
            fail_msg("not said what for: %s", err.text);
        /* Nothing is left waiting in the broker. */
        assert_true(nothing_waits(f->client));
    }
    insert(f->client, "late", 4, 6, NULL);
    ok(rp_sampler_next(sampler, &batch, 0, &err));
    assert_int_equal(info_of_batch(batch).n, 8);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
}

static void *insert_when_waited_for(void *ctx)
{
    rp_client *client = ctx;
    if (process_await(something_waits, client))
        insert(client, "late", 0, 10, NULL);
    return NULL;
}

CASE(demand_waits_in_the_broker)
{
    rp_sampler_options with = on_demand(8);
    rp_sampler *sampler = sampler_new(f->client, "late", &with);
    pthread_t thread;
    for (int64_t timeout = -1; timeout <= WAIT; timeout += WAIT + 1) {
        assert_int_equal(pthread_create(&thread, NULL, insert_when_waited_for, f->client), 0);
        rp_batch *batch = NULL;
        ok(rp_sampler_next(sampler, &batch, timeout, &err));
        assert_int_equal(info_of_batch(batch).n, 8);
        rp_batch_release(&batch);
        pthread_join(thread, NULL);
        ok(rp_admin_reset(f->client, "late", WAIT, NULL, &err));
    }
    rp_sampler_destroy(&sampler);
}

CASE(demand_without_broker)
{
    rp_sampler_options with = on_demand(4);
    rp_sampler *sampler = sampler_new(f->client, "queue", &with);
    rp_batch *batch = NULL;
    broker_process_stop(&f->broker, SIGKILL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rp_sampler_next(sampler, &batch, i * 10, &err), RP_DEADLINE_EXCEEDED);
        assert_null(batch);
    }
    assert_non_null(strstr(err.text, "no broker answers"));
    broker_process_again(&f->broker, NULL);
    insert(f->client, "queue", 0, 10, NULL);
    /* The requests of the calls before are gone. */
    assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), 0);
    ok(rp_sampler_next(sampler, &batch, 0, &err));
    assert_int_equal(numbers_of(batch)[0], 0);
    assert_int_equal(asked_table(f->client, "queue", "limiter.samples"), 4);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
}

CASE(demand_wrong_use)
{
    rp_sampler_options with = on_demand(4);
    with.on_demand = 2;
    assert_null(rp_sampler_new(f->client, "queue", &with, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    with = on_demand(4);
    with.end_after_ms = 100;
    assert_null(rp_sampler_new(f->client, "queue", &with, &err));
    assert_non_null(strstr(err.text, "rp_sampler_next"));
}

/* ---- data ---- */

CASE(weights_and_metadata)
{
    uint64_t keys[9];
    insert(f->client, "prioritized", 0, 9, keys); /* priorities 1 to 9, sum 45 */
    rp_sampler_options with = options(64, 1);
    with.beta = 0.7;
    rp_sampler *sampler = sampler_new(f->client, "prioritized", &with);
    rp_batch *batch = batch_next(sampler);
    rp_batch_arrays a = arrays_of(batch);
    const int32_t *number = rp_batch_find(batch, "number")->data;
    rp_batch_info info = info_of_batch(batch);
    assert_int_equal(info.table_size, 9);
    double largest = 0;
    for (uint32_t i = 0; i < a.n; i++) {
        double w = pow(1.0 / (9 * a.probability[i]), 0.7);
        largest = w > largest ? w : largest;
    }
    for (uint32_t i = 0; i < a.n; i++) {
        assert_true(number[i] >= 0 && number[i] < 9);
        assert_int_equal(a.key[i], keys[number[i]]);
        assert_true(a.priority[i] == 1.0 + number[i]);
        assert_true(fabs(a.probability[i] - (1.0 + number[i]) / 45) < 1e-6);
        assert_true(fabs(a.weight[i] - pow(1.0 / (9 * a.probability[i]), 0.7) / largest) < 1e-5);
        assert_true(a.times_sampled[i] >= 1);
        assert_int_equal(a.step[i], number[i]);
    }
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
}

/* ---- updates ---- */

CASE(updates_and_deletes)
{
    enum { N = 500 };
    uint64_t keys[N + 1];
    double priorities[N + 1];
    insert(f->client, "prioritized", 0, N, keys);
    keys[N] = 12345; /* not there */
    for (uint32_t i = 0; i <= N; i++)
        priorities[i] = i == 77 ? 5 : 0;
    rp_change change = {0};
    ok(rp_priorities_update(f->client, "prioritized", keys, priorities, N + 1, WAIT, &change, &err));
    assert_int_equal(change.applied, N);
    assert_int_equal(change.missing, 1);
    rp_sampler_options with = options(20, 1);
    rp_sampler *sampler = sampler_new(f->client, "prioritized", &with);
    rp_batch *batch = batch_next(sampler);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(numbers_of(batch)[i], 77);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);

    priorities[3] = NAN;
    priorities[4] = -1;
    assert_int_equal(rp_priorities_update(f->client, "prioritized", keys, priorities, N, WAIT, &change, &err),
                     RP_INVALID_ARGUMENT);
    assert_int_equal(change.refused, 2);
    assert_int_equal(change.applied, N - 2);
    priorities[N] = -1; /* its key is not in the table */
    assert_int_equal(rp_priorities_update(f->client, "prioritized", keys + N, priorities + N, 1, WAIT, &change, &err),
                     RP_INVALID_ARGUMENT);
    assert_int_equal(change.refused, 1);
    assert_int_equal(change.missing, 0);
    assert_int_equal(rp_priorities_update(f->client, "nope", keys, priorities, 1, WAIT, &change, &err), RP_NOT_FOUND);

    ok(rp_items_delete(f->client, "prioritized", keys, N + 1, WAIT, &change, &err));
    assert_int_equal(change.applied, N);
    assert_int_equal(change.missing, 1);
    assert_int_equal(asked_table(f->client, "prioritized", "size"), 0);
    assert_int_equal(asked_table(f->client, "prioritized", "unique_samples"), 1); /* item 77, many times */
    assert_int_equal(asked_table(f->client, "prioritized", "episodes"), 1);
    assert_int_equal(asked_table(f->client, "prioritized", "deleted_episodes"), 1);
}

/* More keys than one request may have. */
CASE(large_updates_are_split)
{
    rp_client_info info = {.struct_size = sizeof info};
    ok(rp_client_get_info(f->client, &info, &err));
    assert_true(info.max_batch > 0);
    uint64_t n = (uint64_t)info.max_batch * 3 + 7;
    uint64_t *keys = calloc(n, sizeof *keys);
    double *priorities = calloc(n, sizeof *priorities);
    for (uint64_t i = 0; i < n; i++)
        keys[i] = i + 1;
    rp_change change = {0};
    ok(rp_priorities_update(f->client, "uniform", keys, priorities, n, WAIT, &change, &err));
    assert_int_equal(change.missing, n);
    ok(rp_items_delete(f->client, "uniform", keys, n, WAIT, &change, &err));
    assert_int_equal(change.missing, n);
    free(keys);
    free(priorities);
}

/* One update at a time, some, all; without gathering, and with several batches in a request: all arrive, in order. */
CASE(updater)
{
    enum { N = 300, ROUNDS = 50 };
    static const rp_updater_options limits[] = {{.batch = 64, .in_flight = 2},
                                                {.batch = 1, .in_flight = 1},
                                                {.batch = 16, .in_flight = 32},
                                                {.batch = 7, .in_flight = 5}};
    uint64_t keys[N], applied = 0;
    double priorities[N];
    insert(f->client, "prioritized", 0, N, keys);
    for (uint32_t which = 0; which < 4; which++) {
        rp_updater_options with = limits[which];
        with.struct_size = sizeof with;
        rp_updater *updater = must(rp_updater_new(f->client, "prioritized", &with, &err));
        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (uint32_t i = 0; i < N; i++)
                priorities[i] = which + round + i;
            uint32_t taken = 0, step = round % 3 == 0 ? N : round % 3 == 1 ? 1 : 37;
            for (uint32_t i = 0, n; i < N; i += n) {
                n = N - i < step ? N - i : step;
                ok(rp_updater_add(updater, keys + i, priorities + i, n, WAIT, &taken, &err));
                assert_int_equal(taken, n);
            }
        }
        rp_change change = {0};
        ok(rp_updater_flush(updater, WAIT, &change, &err));
        assert_int_equal(change.applied, ROUNDS * N);
        assert_int_equal(change.missing, 0);
        rp_info *list = NULL;
        ok(rp_admin_list(f->client, "prioritized", 0, N, WAIT, &list, &err));
        for (uint32_t i = 0; i < rp_info_count(list, "items"); i++, applied++) {
            const rp_info *item = rp_info_at(list, "items", i);
            double of_key = (double)(rp_info_u64(item, "key") - keys[0]);
            assert_true(rp_info_real(item, "priority") == which + ROUNDS - 1 + of_key);
        }
        rp_info_free(&list);
        /* An error is told once, by the call after it. */
        priorities[0] = INFINITY;
        ok(rp_updater_add(updater, keys, priorities, 1, WAIT, NULL, &err));
        assert_int_equal(rp_updater_flush(updater, WAIT, &change, &err), RP_INVALID_ARGUMENT);
        assert_int_equal(change.refused, 1);
        ok(rp_updater_flush(updater, WAIT, &change, &err));
        ok(rp_updater_destroy(&updater, WAIT, &err));
        assert_null(updater);
    }
    assert_int_equal(applied, 4 * N);
}

/* ---- restarts ---- */

static void restart_under_sampler(struct served *f, int signal_number)
{
    rp_sampler_options with = options(8, 4);
    rp_sampler *sampler = sampler_new(f->client, "late", &with);
    rp_batch *batch = NULL;
    assert_true(process_await(something_waits, f->client));
    broker_process_stop(&f->broker, signal_number);
    assert_int_equal(rp_sampler_next(sampler, &batch, 50, &err), RP_DEADLINE_EXCEEDED);
    broker_process_again(&f->broker, NULL);
    insert(f->client, "late", 100, 20, NULL);
    for (uint32_t k = 0; k < 10; k++) {
        batch = batch_next(sampler);
        assert_int_equal(info_of_batch(batch).n, 8);
        for (uint32_t i = 0; i < 8; i++)
            assert_true(numbers_of(batch)[i] >= 100);
        rp_batch_release(&batch);
    }
    rp_sampler_destroy(&sampler);
}

CASE(survives_kill)
{
    restart_under_sampler(f, SIGKILL);
}

CASE(survives_shutdown)
{
    restart_under_sampler(f, SIGTERM);
}

CASE(table_gone_after_restart)
{
    rp_sampler_options with = options(8, 2);
    rp_sampler *sampler = sampler_new(f->client, "late", &with);
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, "  - {name: another, max_size: 10}\n");
    rp_batch *batch = NULL;
    assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_NOT_FOUND);
    assert_non_null(strstr(err.text, "late"));
    rp_sampler_destroy(&sampler);
}
