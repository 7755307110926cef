/* Samplers over several sources of one broker: queues beside replay, different fields and lengths, ends, time-outs, polls. */

#include "tests/support/asked.h"
#include "tests/support/numbers.h"
#include "tests/support/process.h"

static const char tables[] = "  - {name: free, max_size: 1000, limiter: {kind: none}}\n"
                             "  - {name: none, max_size: 1000, limiter: {kind: none}}\n"
                             "  - {name: queue, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo},\n"
                             "     limiter: {kind: min_size, min_size: 1}}\n"
                             "  - {name: a, max_size: 1000, sampler: {kind: uniform}}\n"
                             "  - {name: b, max_size: 1000, sampler: {kind: prioritized, exponent: \"1\"}}\n"
                             "  - {name: late, max_size: 1000, sampler: {kind: uniform},\n"
                             "     limiter: {kind: min_size, min_size: 10}}\n"
                             "  - {name: ratio, max_size: 1000, sampler: {kind: uniform}, limiter: {kind:\n"
                             "     sample_to_insert_ratio, samples_per_insert: 2, min_size: 1, error_buffer: 20}}\n";

static void begin(struct served *f)
{
    served_start(f, tables, NULL, NULL);
}

/* Inserts items of `steps` steps, each with the field x: all its steps, which are the item's number. */
static void insert(rp_client *client, const char *table, const char *field, uint8_t first, uint32_t n, uint32_t steps)
{
    rp_column column = {.name = field, .dtype = RP_DTYPE_UINT8};
    rp_slice slice = {.column = 0, .start = 0, .count = 0};
    SCOPED(rp_writer) writer = WRITER(client, &column, 1, .keep_alive = 16);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t number = (uint8_t)(first + i);
        const void *values[] = {&number};
        for (uint32_t k = 0; k < steps; k++)
            ok(rp_writer_append(writer, values, WAIT, &err));
        ok(rp_writer_item(writer, table, 1, &slice, 1, WAIT, NULL, &err));
        ok(rp_writer_end_episode(writer, RP_END_GO, WAIT, &err));
    }
    ok(rp_writer_flush(writer, 0, WAIT, &err));
}

/* A sampler over two tables with these options; shares below 0: by mass. */
static rp_sampler *mix(struct served *f, const char *first, const char *second, double share,
                       const rp_sampler_options *with)
{
    rp_source sources[] = {{f->client, first, share}, {f->client, second, share < 0 ? -1 : 1 - share}};
    return must(rp_sampler_new_mixed(sources, 2, with, &err));
}
#define MIX(first, second, share, ...) mix(f, first, second, share, OPTIONS(rp_sampler, __VA_ARGS__))

/* Checks each item against its number and length, and counts how often each came. */
static void note(const rp_batch *batch, uint32_t *seen)
{
    const rp_field_view *x = rp_batch_field(batch, 0);
    uint64_t longest = 0;
    assert_int_equal(info_of_batch(batch).n_fields, 1);
    for (uint64_t i = 0; i < x->shape[0]; i++) {
        const uint8_t *row = (const uint8_t *)x->data + i * x->shape[1];
        longest = x->lengths[i] > longest ? x->lengths[i] : longest;
        for (uint64_t k = 0; k < x->shape[1]; k++)
            assert_int_equal(row[k], k < x->lengths[i] ? row[0] : 0);
        seen[row[0]]++;
    }
    assert_int_equal(x->shape[1], longest);
}

/* Takes all until the stream ends, and returns how many items there were. */
static uint32_t take_all(rp_sampler *sampler, uint32_t *seen)
{
    rp_status status;
    uint32_t n = 0;
    for (rp_batch *batch; (status = rp_sampler_next(sampler, &batch, WAIT, &err)) == RP_OK; rp_batch_release(&batch)) {
        n += info_of_batch(batch).n;
        note(batch, seen);
    }
    if (status != RP_END_OF_STREAM)
        fail_msg("%s", err.text);
    return n;
}

FIXTURE(struct served, begin, served_stop)

/* Items of different lengths, from a queue that must give each once, beside replay, and an exact end; with and without prefetch. */
CASE(a_queue_beside_replay)
{
    for (uint32_t demand = 0; demand < 2; demand++) {
        uint32_t seen[256] = {0}, from_queue = 0;
        insert(f->client, "queue", "x", 1, 50, 3);
        insert(f->client, "queue", "x", 51, 50, 5);
        insert(f->client, "b", "x", 101, 20, 9);
        SCOPED(rp_sampler) sampler = MIX("queue", "b", 0.5, .batch_size = 16, .on_demand = demand, .max_samples = 130);
        assert_int_equal(take_all(sampler, seen), 130);
        for (uint32_t i = 1; i <= 100; i++) {
            assert_true(seen[i] <= 1);
            from_queue += seen[i];
        }
        assert_in_range(from_queue, 35, 95); /* of 65: 5 standard deviations */
        ok(rp_admin_reset(f->client, "queue", WAIT, NULL, &err));
    }
}

/* Sources by mass without a min_size of their own need one item, wherever it is. */
CASE(one_item_is_enough)
{
    SCOPED(rp_sampler) sampler = MIX("a", "b", -1, .batch_size = 4, .on_demand = 1);
    SCOPED(rp_sampler) other = MIX("free", "none", -1, .batch_size = 4, .on_demand = 1);
    rp_batch *batch;
    assert_int_equal(rp_sampler_next(sampler, &batch, 0, &err), RP_DEADLINE_EXCEEDED);
    insert(f->client, "b", "x", 1, 1, 1);
    insert(f->client, "none", "x", 1, 1, 1);
    assert_int_equal(batches_pass(sampler, 1), 4);
    assert_int_equal(batches_pass(other, 1), 4);
}

/* The stream of a queue ends when the queue has been empty for a while, and not before all items were given. */
CASE(streams_end_after_their_time)
{
    static const int64_t times[] = {-1, 1, 50};
    insert(f->client, "a", "x", 200, 5, 1);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t seen[256] = {0};
        insert(f->client, "queue", "x", 1, 60, 2);
        SCOPED(rp_sampler)
        sampler = MIX("queue", "a", 0.75, .batch_size = 8, .end_after_ms = times[i / 2],
                      .fill = (i % 2) ? RP_FILL_AT_ONCE : RP_FILL_WAIT);
        uint32_t n = take_all(sampler, seen);
        for (uint32_t k = 1; k <= 60; k++)
            if (seen[k] != 1)
                fail_msg("time-out %lld: item %u came %u times, of %u items", (long long)times[i / 2], k, seen[k], n);
    }
}

/* Two tables by mass, of which one has a ratio: permits run out, and all of them have been used. */
CASE(a_ratio_ends_a_stream)
{
    uint32_t seen[256] = {0};
    insert(f->client, "ratio", "x", 1, 10, 1);
    SCOPED(rp_sampler) sampler = MIX("ratio", "ratio", -1, .batch_size = 7, .end_after_ms = -1);
    assert_int_equal(take_all(sampler, seen), 2 * 10 - 2 + 20); /* down to 2 - 20 */
    rp_source sources[] = {{f->client, "ratio", -1}, {f->client, "a", -1}};
    must_fail_new(rp_sampler_new_mixed(sources, 2, NULL, &err), RP_INVALID_ARGUMENT, NULL);
    sources[1].table = "queue";
    must_fail_new(rp_sampler_new_mixed(sources, 2, NULL, &err), RP_INVALID_ARGUMENT, NULL);
}

/* A first call that does not wait gets what can be sampled at once. */
CASE(a_first_poll_gets_a_batch)
{
    insert(f->client, "a", "x", 1, 30, 1);
    insert(f->client, "b", "x", 51, 20, 1);
    for (uint32_t i = 0; i < 2; i++) {
        SCOPED(rp_sampler) sampler = MIX("a", "b", i ? 0.5 : -1, .batch_size = 40, .on_demand = 1);
        SCOPED(rp_batch) batch = NULL;
        ok(rp_sampler_next(sampler, &batch, 0, &err));
        assert_int_equal(info_of_batch(batch).n, 40);
        assert_int_equal(info_of_batch(batch).partial, 0);
        assert_int_equal(info_of_batch(batch).table_size, 50);
    }
}

/* With `whole`, a batch that lacks the items of one source is not given in part; without, it is. */
CASE(whole_batches)
{
    rp_batch *batch;
    insert(f->client, "a", "x", 1, 30, 1);
    insert(f->client, "late", "x", 51, 9, 1);
    SCOPED(rp_sampler) part = MIX("a", "late", 0.5, .batch_size = 64, .on_demand = 1);
    SCOPED(rp_sampler) whole = MIX("a", "late", 0.5, .batch_size = 64, .on_demand = 1, .fill = RP_FILL_WHOLE);
    ok(rp_sampler_next(part, &batch, 500, &err));
    assert_int_equal(info_of_batch(batch).partial, 1);
    for (uint32_t i = 0; i < info_of_batch(batch).n; i++)
        assert_int_equal(arrays_of(batch).source[i], 0);
    rp_batch_release(&batch);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rp_sampler_next(whole, &batch, 20, &err), RP_DEADLINE_EXCEEDED);
    insert(f->client, "late", "x", 60, 1, 1);
    assert_int_equal(batches_pass(whole, 1), 64);
}

/* Items of a distinct batch that was given up are not used for the next one, where they could come twice. */
CASE(distinct_batches_that_are_given_up)
{
    insert(f->client, "a", "x", 1, 30, 1);
    SCOPED(rp_sampler)
    sampler = MIX("a", "late", 0.7, .batch_size = 24, .on_demand = 1, .distinct = 1, .fill = RP_FILL_WHOLE);
    for (uint32_t given_up = 0; given_up < 8;) {
        uint32_t seen[256] = {0};
        SCOPED(rp_batch) batch = NULL;
        ok(rp_admin_reset(f->client, "late", WAIT, NULL, &err));
        if (rp_sampler_next(sampler, &batch, 10, &err) != RP_OK) {
            given_up++; /* otherwise a reply to the call before came late, and served */
            insert(f->client, "late", "x", 101, 24, 1);
            ok(rp_sampler_next(sampler, &batch, WAIT, &err));
        }
        assert_int_equal(info_of_batch(batch).n, 24);
        note(batch, seen);
        for (uint32_t k = 0; k < 256; k++)
            assert_true(seen[k] <= 1);
    }
}

/* Items that do not fit into one array come in batches of their own, each with its source. */
CASE(sources_of_different_fields)
{
    uint32_t seen[2][256] = {{0}}, n = 0;
    rp_status status;
    insert(f->client, "a", "x", 1, 10, 1);
    insert(f->client, "b", "y", 51, 10, 2);
    SCOPED(rp_sampler) sampler = MIX("a", "b", 0.5, .batch_size = 20, .max_samples = 400);
    for (rp_batch *batch; (status = rp_sampler_next(sampler, &batch, WAIT, &err)) == RP_OK; rp_batch_release(&batch)) {
        uint32_t source = arrays_of(batch).source[0];
        for (uint32_t i = 0; i < info_of_batch(batch).n; i++, n++)
            assert_int_equal(arrays_of(batch).source[i], source);
        assert_int_equal(info_of_batch(batch).partial, 1);
        assert_non_null(rp_batch_find(batch, source ? "y" : "x"));
        note(batch, seen[source]);
    }
    assert_int_equal(status, RP_END_OF_STREAM);
    assert_int_equal(n, 400);
    for (uint32_t i = 1; i < 256; i++)
        assert_true(!seen[0][i] == !(i >= 1 && i <= 10) && !seen[1][i] == !(i >= 51 && i <= 60));
}

/* max_bytes bounds a batch; a reply has the items of many. */
CASE(max_bytes_of_a_batch)
{
    uint32_t seen[256] = {0};
    rp_batch *batch;
    insert(f->client, "a", "x", 1, 10, 4);
    insert(f->client, "b", "x", 51, 10, 4);
    SCOPED(rp_sampler)
    sampler = MIX("a", "b", 0.5, .batch_size = 16, .in_flight = 64, .max_bytes = 64, .max_samples = 1600);
    assert_int_equal(take_all(sampler, seen), 1600);
    SCOPED(rp_sampler) less = MIX("a", "b", 0.5, .batch_size = 16, .in_flight = 64, .max_bytes = 63);
    assert_int_equal(rp_sampler_next(less, &batch, WAIT, &err), RP_RESOURCE_EXHAUSTED);
}

/* A call that its caller ends leaves nothing at the broker, and costs no item of a queue. */
CASE(a_call_that_its_caller_ends)
{
    uint32_t seen[256] = {0};
    rp_batch *batch;
    int calls = 0;
    insert(f->client, "queue", "x", 1, 40, 1);
    SCOPED(rp_sampler) sampler = MIX("queue", "late", 0.5, .batch_size = 20, .on_demand = 1);
    rp_wait_set(stop_wait, &calls);
    assert_int_equal(rp_sampler_next(sampler, &batch, -1, &err), RP_CANCELLED);
    rp_wait_set(NULL, NULL);
    assert_int_equal(calls > 0, 1);
    wait_until(asked_waits(f->client, "sample", NULL, 0) == 0);
    insert(f->client, "late", "x", 101, 10, 1);
    for (uint32_t left = 40; left > 0;) { /* the last ones in smaller batches */
        ok(rp_sampler_next(sampler, &batch, 500, &err));
        note(batch, seen);
        for (uint32_t i = 0; i < info_of_batch(batch).n; i++)
            left -= arrays_of(batch).source[i] == 0;
        rp_batch_release(&batch);
    }
    for (uint32_t i = 1; i <= 40; i++)
        assert_int_equal(seen[i], 1);
}
