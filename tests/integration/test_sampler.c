/* The sampler against a real broker: order, bounds, ends, deadlines, restarts, updates. */
#include <pthread.h>

#include "proto/base/clock.h"
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
    served_start(f, tables, NULL, NULL);
}

/* Inserts items of one step: {number, [number, number + 0.5]}; priority 1 + number. Gives their keys if wanted. */
static void insert(rp_client *client, const char *table, int32_t first, uint32_t n, uint64_t *keys)
{
    rp_column columns[] = {{.name = "number", .dtype = RP_DTYPE_INT32},
                           {.name = "pair", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {2}}};
    SCOPED(rp_writer) writer = WRITER(client, columns, 2);
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
}

/* Samples that the limiter of a table has counted. */
static uint64_t sampled(rp_client *client, const char *table)
{
    return asked_table(client, table, "limiter.samples");
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

/* Takes what comes until the stream ends, and returns how many items that were. */
static uint32_t items_till_the_end(rp_sampler *sampler)
{
    uint32_t items = 0;
    for (rp_batch *batch; rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK; rp_batch_release(&batch))
        items += info_of_batch(batch).n;
    assert_int_equal(err.status, RP_END_OF_STREAM);
    return items;
}

/* ---- order and bounds ---- */

FIXTURE(struct served, begin, served_stop)

CASE(order_and_max_samples)
{
    insert(f->client, "queue", 0, 2000, NULL);
    rp_sampler *sampler = SAMPLER(f->client, "queue", .batch_size = 64, .in_flight = 8, .max_samples = 1003);
    int32_t expected = 0;
    for (;;) {
        SCOPED(rp_batch) batch = NULL;
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
    }
    assert_int_equal(expected, 1003);
    /* Exactly: also the table has given no more. */
    assert_int_equal(sampled(f->client, "queue"), 1003);
    rp_batch *batch = NULL;
    assert_int_equal(rp_sampler_next(sampler, &batch, 0, &err), RP_END_OF_STREAM);
    rp_sampler_destroy(&sampler);
    assert_null(sampler);
}

CASE(bounded_prefetch)
{
    insert(f->client, "queue", 0, 200, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 5, .in_flight = 3);
    wait_until(sampled(f->client, "queue") == 15);
    for (uint32_t k = 1; k <= 4; k++) {
        batches_pass(sampler, 1);
        wait_until(sampled(f->client, "queue") == 15 + 5 * k);
        /* Several requests to the same broker later, still no more. */
        for (uint32_t i = 0; i < 20; i++)
            assert_int_equal(sampled(f->client, "queue"), 15 + 5 * k);
        rp_sampler_stats stats = stats_of(sampler);
        assert_true(stats.requested + stats.ready <= 3);
        assert_int_equal(stats.batches, k);
    }
}

/* Requests go out in bursts, when half of the batches were taken: no request for each of them. */
CASE(bursts)
{
    insert(f->client, "queue", 0, 200, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 5, .in_flight = 8);
    wait_until(sampled(f->client, "queue") == 40);
    for (uint32_t k = 1; k <= 12; k++) {
        batches_pass(sampler, 1);
        wait_until(sampled(f->client, "queue") == 40 + 20 * (k / 4));
        for (uint32_t i = 0; i < 20; i++)
            assert_int_equal(sampled(f->client, "queue"), 40 + 20 * (k / 4));
    }
}

/* ---- ends and deadlines ---- */

CASE(timeout_ends_stream)
{
    insert(f->client, "queue", 0, 7, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 10, .in_flight = 4, .end_after_ms = 150);
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
}

CASE(zero_timeout_polls)
{
    for (uint32_t items = 0; items <= 25; items += 25) {
        insert(f->client, "queue", 0, items, NULL);
        SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 10, .in_flight = 2, .end_after_ms = -1);
        assert_int_equal(items_till_the_end(sampler), items);
    }
}

CASE(deadline_says_why)
{
    insert(f->client, "late", 0, 4, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "late", .batch_size = 8, .in_flight = 2);
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
}

CASE(flexible_and_distinct)
{
    insert(f->client, "uniform", 0, 30, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "uniform", .batch_size = 30, .in_flight = 2, .distinct = 1);
    for (uint32_t k = 0; k < 5; k++) {
        bool seen[30] = {false};
        SCOPED(rp_batch) batch = batch_next(sampler);
        assert_int_equal(arrays_of(batch).n, 30);
        for (uint32_t i = 0; i < 30; i++) {
            assert_false(seen[numbers_of(batch)[i]]);
            seen[numbers_of(batch)[i]] = true;
        }
    }
    insert(f->client, "queue", 0, 12, NULL);
    SCOPED(rp_sampler)
    flexible = SAMPLER(f->client, "queue", .batch_size = 100, .in_flight = 1, .fill = RP_FILL_AT_ONCE);
    assert_int_equal(batches_pass(flexible, 1), 12);
}

static bool nothing_waits(rp_client *client)
{
    return asked_waits(client, NULL, NULL, 0) == 0;
}

/* What others insert after that is for others: nothing of the sampler is left at the broker. A sampler waits for that for a second
 * at most; where a loaded machine makes it longer, its requests leave a little later. */
CASE(a_destroyed_sampler_takes_nothing)
{
    SCOPED(rp_client) other = CONNECT(f->broker.service);
    for (uint32_t round = 0; round < 100; round++) {
        rp_sampler *sampler = SAMPLER(f->client, "queue", .batch_size = 1, .in_flight = 8);
        wait_until(!nothing_waits(other));
        int64_t began_ns = clock_ns();
        rp_sampler_destroy(&sampler);
        if (clock_ns() - began_ns < NS_PER_S)
            assert_true(nothing_waits(other));
        wait_until(nothing_waits(other));
    }
    insert(other, "queue", 0, 3, NULL);
    assert_int_equal(asked_table(other, "queue", "size"), 3);
}

/* What was picked comes, also the items of a request that waits for more; nothing is picked after that. */
CASE(stop)
{
    for (uint32_t on_demand = 0; on_demand < 2; on_demand++) {
        uint32_t expected = on_demand ? 8 : 30;
        insert(f->client, "queue", 0, 30, NULL);
        SCOPED(rp_sampler)
        sampler = SAMPLER(f->client, "queue", .batch_size = 8, .in_flight = 8, .on_demand = on_demand);
        uint32_t got = batches_pass(sampler, 1);
        wait_until(sampled(f->client, "queue") == 30 * on_demand + expected);
        ok(rp_sampler_stop(sampler, &err));
        wait_until(nothing_waits(f->client)); /* what waits is recalled soon, not at once */
        insert(f->client, "queue", 30, 8, NULL);
        assert_int_equal(got + items_till_the_end(sampler), expected);
        assert_int_equal(asked_table(f->client, "queue", "size"), on_demand ? 8 + 38 - 8 : 38 - 30);
    }
}

CASE(wrong_use)
{
    must_fail_new(rp_sampler_new(f->client, "unifrom", NULL, &err), RP_NOT_FOUND, "uniform");
    const rp_sampler_options *const wrong[] = {
        OPTIONS(rp_sampler, .batch_size = 1000000000), OPTIONS(rp_sampler, .in_flight = 1000000),
        OPTIONS(rp_sampler, .beta = NAN), OPTIONS(rp_sampler, .fill = RP_FILL_WHOLE + 1),
        OPTIONS(rp_sampler, .on_demand = 2)};
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        must_fail_new(rp_sampler_new(f->client, "uniform", wrong[i], &err), RP_INVALID_ARGUMENT, NULL);
    must_fail_new(rp_sampler_new(f->client, "uniform", OPTIONS(rp_sampler, .on_demand = 1, .end_after_ms = 100), &err),
                  RP_INVALID_ARGUMENT, "rp_sampler_next");
}

/* ---- on demand ---- */

CASE(demand_asks_for_nothing_ahead)
{
    insert(f->client, "queue", 0, 100, NULL);
    rp_sampler *sampler = SAMPLER(f->client, "queue", .batch_size = 10, .on_demand = 1, .max_samples = 75);
    rp_batch *batch = NULL;
    /* The answer of the broker to INFO comes after whatever was sent before on the same connection. */
    assert_int_equal(sampled(f->client, "queue"), 0);
    for (int32_t expected = 0; expected < 75;) {
        ok(rp_sampler_next(sampler, &batch, 0, &err));
        uint32_t n = info_of_batch(batch).n;
        assert_int_equal(n, expected < 70 ? 10 : 5);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(numbers_of(batch)[i], expected++);
        rp_batch_release(&batch);
        assert_int_equal(sampled(f->client, "queue"), expected);
    }
    assert_int_equal(rp_sampler_next(sampler, &batch, 0, &err), RP_END_OF_STREAM);
    rp_sampler_stats stats = stats_of(sampler);
    assert_int_equal(stats.batches, 8);
    assert_int_equal(stats.items, 75);
    assert_int_equal(stats.requested + stats.ready, 0);
    rp_sampler_destroy(&sampler);
    assert_int_equal(sampled(f->client, "queue"), 75);
}

/* ---- items of different fields ---- */

/* One item of another layout: the field "other" is {number, number} as int32[2]. */
static void insert_other(rp_client *client, const char *table, int32_t number)
{
    rp_column column = {.name = "other", .dtype = RP_DTYPE_INT32, .rank = 1, .shape = {2}};
    rp_slice slice = {.column = 0, .count = 1, .start = -1, .squeeze = 1};
    int32_t value[2] = {number, number};
    const void *values[] = {value};
    SCOPED(rp_writer) writer = WRITER(client, &column, 1);
    ok(rp_writer_append(writer, values, WAIT, &err));
    ok(rp_writer_item(writer, table, 1.0, &slice, 1, WAIT, NULL, &err));
}

/* Takes `n` items and notes their numbers. Those of one layout come in rising order from a queue. */
static void take_mixed(rp_sampler *sampler, uint32_t n, bool rising, uint32_t *seen)
{
    int32_t last[2] = {-1, -1};
    while (n > 0) {
        SCOPED(rp_batch) batch = batch_next(sampler);
        const rp_field_view *number = rp_batch_find(batch, "number"), *other = rp_batch_find(batch, "other");
        assert_true(!number != !other);
        for (uint32_t i = 0; i < info_of_batch(batch).n; i++, n--) {
            int32_t value = number ? ((int32_t *)number->data)[i] : ((int32_t *)other->data)[2 * i + 1];
            assert_int_equal(value % 2, number ? 0 : 1);
            assert_true(!rising || value > last[value % 2]);
            last[value % 2] = value;
            seen[value]++;
        }
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
        SCOPED(rp_sampler)
        sampler = SAMPLER(f->client, "queue", .batch_size = 8, .in_flight = 4, .on_demand = demand, .max_samples = 40);
        uint32_t seen[40] = {0};
        take_mixed(sampler, 40, true, seen);
        for (uint32_t i = 0; i < 40; i++)
            assert_int_equal(seen[i], 1);
        assert_int_equal(items_till_the_end(sampler), 0);
        rp_sampler_stats stats = stats_of(sampler);
        assert_int_equal(stats.items, 40);
        assert_int_equal(stats.batches, 10); /* of 5 replies */
        assert_int_equal(asked_table(f->client, "queue", "size"), 0);
    }
}

/* A fetch gives one batch, or says what does not fit; nothing is removed by it. */
CASE(fetch_of_different_fields)
{
    uint64_t keys[2];
    insert(f->client, "fifo", 0, 1, &keys[0]);
    insert_other(f->client, "fifo", 1);
    SCOPED(rp_info) list = NULL;
    ok(rp_admin_list(f->client, "fifo", 0, 4, WAIT, &list, &err));
    assert_int_equal(rp_info_count(list, "items"), 2);
    keys[1] = rp_info_u64(rp_info_at(list, "items", rp_info_u64(list, "items.0.key") == keys[0]), "key");
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
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "late", .batch_size = 8, .on_demand = 1);
    SCOPED(rp_batch) batch = NULL;
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
}

static void *insert_when_waited_for(void *client)
{
    wait_until(!nothing_waits(client));
    insert(client, "late", 0, 10, NULL);
    return NULL;
}

CASE(demand_waits_in_the_broker)
{
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "late", .batch_size = 8, .on_demand = 1);
    pthread_t thread;
    for (int64_t timeout = -1; timeout <= WAIT; timeout += WAIT + 1) {
        assert_int_equal(pthread_create(&thread, NULL, insert_when_waited_for, f->client), 0);
        SCOPED(rp_batch) batch = NULL;
        rp_status status = rp_sampler_next(sampler, &batch, timeout, &err);
        pthread_join(thread, NULL); /* before anything can fail: the thread uses the client */
        ok(status);
        assert_int_equal(info_of_batch(batch).n, 8);
        ok(rp_admin_reset(f->client, "late", WAIT, NULL, &err));
    }
}

CASE(demand_without_broker)
{
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "queue", .batch_size = 4, .on_demand = 1);
    SCOPED(rp_batch) batch = NULL;
    broker_process_stop(&f->broker, SIGKILL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rp_sampler_next(sampler, &batch, i * 10, &err), RP_DEADLINE_EXCEEDED);
        assert_null(batch);
    }
    assert_non_null(strstr(err.text, "no broker answers"));
    broker_process_again(&f->broker, NULL);
    insert(f->client, "queue", 0, 10, NULL);
    /* The requests of the calls before are gone. */
    assert_int_equal(sampled(f->client, "queue"), 0);
    ok(rp_sampler_next(sampler, &batch, 0, &err));
    assert_int_equal(numbers_of(batch)[0], 0);
    assert_int_equal(sampled(f->client, "queue"), 4);
}

/* ---- data ---- */

CASE(weights_and_metadata)
{
    uint64_t keys[9];
    insert(f->client, "prioritized", 0, 9, keys); /* priorities 1 to 9, sum 45 */
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "prioritized", .batch_size = 64, .in_flight = 1, .beta = 0.7);
    SCOPED(rp_batch) batch = batch_next(sampler);
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
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "prioritized", .batch_size = 20, .in_flight = 1);
    SCOPED(rp_batch) batch = batch_next(sampler);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(numbers_of(batch)[i], 77);
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
        SCOPED(rp_info) list = NULL;
        ok(rp_admin_list(f->client, "prioritized", 0, N, WAIT, &list, &err));
        for (uint32_t i = 0; i < rp_info_count(list, "items"); i++, applied++) {
            const rp_info *item = rp_info_at(list, "items", i);
            double of_key = (double)(rp_info_u64(item, "key") - keys[0]);
            assert_true(rp_info_real(item, "priority") == which + ROUNDS - 1 + of_key);
        }
        /* An error is told once, by the call after it. */
        priorities[0] = 1e300; /* too large for the table */
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

CASE(survives_a_kill_and_a_shutdown)
{
    static const int signals[] = {SIGKILL, SIGTERM};
    for (uint32_t s = 0; s < 2; s++) {
        SCOPED(rp_sampler) sampler = SAMPLER(f->client, "late", .batch_size = 8, .in_flight = 4);
        rp_batch *batch = NULL;
        wait_until(!nothing_waits(f->client));
        broker_process_stop(&f->broker, signals[s]);
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
        ok(rp_admin_reset(f->client, "late", WAIT, NULL, &err));
    }
}

CASE(table_gone_after_restart)
{
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "late", .batch_size = 8, .in_flight = 2);
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, "  - {name: another, max_size: 10}\n");
    rp_batch *batch = NULL;
    must_fail(rp_sampler_next(sampler, &batch, WAIT, &err), RP_NOT_FOUND, "late");
}
