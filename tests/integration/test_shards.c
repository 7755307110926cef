/* Writers and samplers over four real shards: one table, the right probabilities, one ratio, and shards that die. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "proto/base/clock.h"
#include "tests/support/asked.h"
#include "tests/support/numbers.h"
#include "tests/support/shardbed.h"

#define SHARDS 4u

static const char tables[] =
    "  - {name: uniform, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 1}}\n"
    "  - {name: prioritized, max_size: 100000, sampler: {kind: prioritized, exponent: \"1\"},\n"
    "     limiter: {kind: min_size, min_size: 1}}\n"
    "  - {name: ratio, max_size: 100000, sampler: {kind: uniform},\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 40, error_buffer: 800}}\n"
    "  - {name: queue, max_size: 4000, max_times_sampled: 1, sampler: {kind: fifo},\n"
    "     limiter: {kind: queue}}\n"
    "  - {name: late, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 100}}\n"
    "  - {name: once, max_size: 100000, max_times_sampled: 1, sampler: {kind: uniform},\n"
    "     limiter: {kind: min_size, min_size: 1}}\n"
    "  - {name: twice, max_size: 100000, max_times_sampled: 2, sampler: {kind: prioritized, exponent: "
    "\"1\"},\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 4, error_buffer: 80000}}\n";

/* Seconds within which a sampler finds out that a shard is away, also if the machine stalls. */
#define SOON_S 15

static double seconds_now(void)
{
    return (double)clock_ns() * 1e-9;
}

struct fixture {
    struct shardbed shards;
    rp_client *client;
};

static void setup(struct fixture *f)
{
    shardbed_start(&f->shards, SHARDS, tables, NULL);
    f->client = shardbed_connect(&f->shards, 2, NULL);
}

static void teardown(struct fixture *f)
{
    alarm(WAIT /
          1000); /* a test that has failed leaves samplers behind, for which a client waits: end with its message */
    rp_client_destroy(&f->client);
    alarm(0);
    shardbed_stop(&f->shards);
}

/* Inserts one item, an episode of its own; returns its key. */
static uint64_t insert_one(rp_writer *writer, const char *table, int32_t number, double priority)
{
    uint64_t key = numbers_write(writer, table, number, priority);
    ok(rp_writer_end_episode(writer, RP_END_GO, WAIT, &err));
    return key;
}

/* Inserts numbers first ... first + n - 1 and waits until they are in the table. Counts items by shard. */
static void insert(rp_client *client, const char *table, int32_t first, uint32_t n, uint32_t *by_shard)
{
    SCOPED(rp_writer) writer = numbers_writer(client);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = insert_one(writer, table, first + (int32_t)i, 1 + i % 3);
        if (by_shard)
            by_shard[key >> 56]++;
        if (i % 64 == 63)
            ok(rp_writer_flush(writer, 0, WAIT, &err));
    }
    ok(rp_writer_flush(writer, 0, WAIT, &err));
}

/* Takes items and counts how often each came, until there is none for a while or `most` have come. */
static uint32_t take(rp_sampler *sampler, uint32_t most, int64_t timeout_ms, uint32_t *seen)
{
    uint32_t got = 0;
    err = (rp_error){0};
    for (rp_batch *batch; got < most && rp_sampler_next(sampler, &batch, timeout_ms, &err) == RP_OK;
         rp_batch_release(&batch))
        for (uint32_t i = 0; i < arrays_of(batch).n; i++, got++)
            seen[numbers_of(batch)[i]]++;
    return got;
}

/* The same until the stream ends. */
static uint32_t take_all(rp_sampler *sampler, uint32_t *seen)
{
    uint32_t got = take(sampler, UINT32_MAX, WAIT, seen);
    if (err.status != RP_END_OF_STREAM)
        fail_msg("%u items, then %s", got, err.text);
    return got;
}

FIXTURE(struct fixture, setup, teardown)

/* Episodes are spread over all shards, and all of them are sampled in proportion to their priorities. */
CASE(items_of_all_shards_are_sampled_by_priority)
{
    enum { ITEMS = 300, BATCHES = 400, BATCH = 128 };
    uint32_t by_shard[256] = {0}, counts[ITEMS] = {0};
    insert(f->client, "prioritized", 0, ITEMS, by_shard);
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_in_range(by_shard[s], 40, 120);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "prioritized", .batch_size = BATCH, .beta = 1);
    double total = 0; /* priorities 1, 2, 3 in turn */
    for (uint32_t i = 0; i < ITEMS; i++)
        total += 1 + i % 3;
    for (uint32_t b = 0; b < BATCHES; b++) {
        SCOPED(rp_batch) batch = batch_next(sampler);
        rp_batch_arrays arrays = arrays_of(batch);
        assert_int_equal(arrays.n, BATCH);
        assert_non_null(arrays.shard);
        for (uint32_t i = 0; i < arrays.n; i++) {
            int32_t number = numbers_of(batch)[i];
            counts[number]++;
            assert_int_equal(arrays.shard[i], arrays.key[i] >> 56);
            assert_true(fabs(arrays.probability[i] - (1 + number % 3) / total) < 1e-9);
            assert_true(fabs(arrays.weight[i] * (1 + number % 3) - 1) < 1e-6);
        }
    }
    double chi = 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        double expected = (1 + i % 3) / total * BATCHES * BATCH;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    /* Mean 299, standard deviation 24.5: 5 of them happen once in a million runs. */
    assert_true(chi < 299 + 5 * 24.5);
}

struct changer {
    rp_client *client;
    uint64_t keys[SHARDS][256];
    uint32_t n[SHARDS];
    atomic_bool stop;
};

/* Makes one shard after another heavy, and the one before light again. */
static void *change_masses(void *arg)
{
    struct changer *self = arg;
    double priorities[256];
    for (uint32_t turn = 0; !self->stop; turn++) {
        uint32_t s = turn / 2 % SHARDS;
        for (uint32_t i = 0; i < self->n[s]; i++)
            priorities[i] = turn % 2 ? 1 : 8;
        ok(rp_priorities_update(self->client, "prioritized", self->keys[s], priorities, self->n[s], WAIT, NULL, &err));
    }
    return NULL;
}

/* The mean of 1 / (N probability) over the items of a shard is the shard's part of all items, whatever masses the draws were made
 * with. */
CASE(weights_are_exact_while_masses_change)
{
    enum { ITEMS = 240, BATCHES = 1500, BATCH = 64 };
    struct changer changer = {.client = f->client};
    double sum[SHARDS] = {0}, squares[SHARDS] = {0};
    rp_writer *writer = numbers_writer(f->client);
    for (int32_t i = 0; i < ITEMS; i++) {
        uint64_t key = insert_one(writer, "prioritized", i, 1);
        changer.keys[key >> 56][changer.n[key >> 56]++] = key;
    }
    ok(rp_writer_destroy(&writer, WAIT, &err));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change_masses, &changer), 0);
    SCOPED(rp_sampler) ahead = SAMPLER(f->client, "prioritized", .batch_size = BATCH);
    SCOPED(rp_sampler) on_demand = SAMPLER(f->client, "prioritized", .batch_size = BATCH, .on_demand = 1);
    for (uint32_t b = 0; b < BATCHES; b++) {
        double here[SHARDS] = {0};
        SCOPED(rp_batch) batch = batch_next(b % 8 ? ahead : on_demand);
        rp_batch_arrays arrays = arrays_of(batch);
        for (uint32_t i = 0; i < BATCH; i++)
            here[arrays.shard[i]] += 1 / (ITEMS * arrays.probability[i] * BATCH);
        for (uint32_t s = 0; s < SHARDS; s++) {
            sum[s] += here[s];
            squares[s] += here[s] * here[s];
        }
    }
    changer.stop = true;
    pthread_join(thread, NULL);
    for (uint32_t s = 0; s < SHARDS; s++) {
        double mean = sum[s] / BATCHES, part = (double)changer.n[s] / ITEMS;
        double error = sqrt((squares[s] / BATCHES - mean * mean) / BATCHES);
        assert_true(fabs(mean - part) < 5.5 * error);
    }
}

/* The sum of samples stays within the ratio and its buffer, and a starved sampler says why. */
CASE(the_ratio_holds_over_all_shards)
{
    enum { ITEMS = 600, BATCH = 50 };
    insert(f->client, "ratio", 0, 200, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "ratio", .batch_size = BATCH, .on_demand = 1);
    uint64_t sampled = 0, most = 200 * 4 - 40 * 4 + 800; /* cursor = 200 * 4 - samples >= 40 * 4 - 800 */
    rp_batch *batch;
    for (double end = seconds_now() + WAIT / 1000.0; sampled < most && seconds_now() < end;) {
        if (rp_sampler_next(sampler, &batch, 200, &err) == RP_OK) /* the last one is not full, and comes at its end */
            sampled += arrays_of(batch).n;
        rp_batch_release(&batch);
    }
    assert_int_equal(sampled, most);
    assert_int_equal(rp_sampler_next(sampler, &batch, 200, &err), RP_DEADLINE_EXCEEDED);
    insert(f->client, "ratio", 200, 100, NULL);
    batches_pass(sampler, 1);
}

/* All items come out of a queue, each once; and so they do where a sample removes its items, whatever shard has run out of them. */
CASE(a_queue_gives_each_item_once)
{
    enum { ITEMS = 500 };
    for (uint32_t t = 0; t < 2; t++) {
        uint32_t seen[ITEMS] = {0};
        const char *table = t ? "once" : "queue";
        insert(f->client, table, 0, ITEMS, NULL);
        SCOPED(rp_sampler) sampler = SAMPLER(f->client, table, .batch_size = 50, .max_samples = ITEMS);
        assert_int_equal(take_all(sampler, seen), ITEMS);
        for (uint32_t i = 0; i < ITEMS; i++)
            assert_int_equal(seen[i], 1);
    }
}

/* Returns how many samplers of a table `why` names, and the text of the last. */
static uint32_t waits_of(rp_client *client, const char *table, char text[512])
{
    SCOPED(rp_info) waits = NULL;
    uint32_t seen = 0;
    ok(rp_admin_why(client, WAIT, &waits, &err));
    for (uint32_t i = 0; i < rp_info_count(waits, "waits"); i++) {
        const rp_info *wait = rp_info_at(waits, "waits", i);
        if (strcmp(rp_info_text(wait, "kind"), "sample") != 0 || strcmp(rp_info_text(wait, "table"), table) != 0)
            continue;
        snprintf(text, 512, "%s", rp_info_text(wait, "text"));
        assert_int_equal(rp_info_u64(wait, "count"), 10);
        seen++;
    }
    return seen;
}

/* A sampler waits for all shards together: no shard has a request of it, and each tells of it. */
CASE(min_size_counts_the_items_of_all_shards)
{
    insert(f->client, "late", 0, 99, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "late", .batch_size = 10, .on_demand = 1);
    SCOPED(rp_sampler) other = SAMPLER(f->client, "late", .batch_size = 10);
    rp_batch *batch;
    assert_int_equal(rp_sampler_next(sampler, &batch, 100, &err), RP_DEADLINE_EXCEEDED);
    char text[512];
    wait_until(waits_of(f->client, "late", text) == 1);
    assert_has(text, "99 items");
    assert_has(text, "100");
    insert(f->client, "late", 99, 1, NULL);
    wait_until(waits_of(f->client, "late", text) == 0);
    rp_sampler_destroy(&other);
    batches_pass(sampler, 1);
}

/* One item is enough for min_size 1, wherever it is; and items without priority are as likely as each other. */
CASE(few_items_and_no_priorities)
{
    SCOPED(rp_writer) writer = numbers_writer(f->client);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "prioritized", .batch_size = 10, .on_demand = 1, .beta = 1);
    for (int32_t i = 0; i < 40; i += i ? 39 : 1) {
        for (int32_t k = 0; k < (i ? 39 : 1); k++)
            insert_one(writer, "prioritized", i + k, 0);
        ok(rp_writer_flush(writer, 0, WAIT, &err));
        SCOPED(rp_batch) batch = batch_next(sampler);
        rp_batch_arrays arrays = arrays_of(batch);
        assert_int_equal(arrays.n, 10);
        for (uint32_t k = 0; k < arrays.n; k++)
            assert_true(arrays.weight[k] > 0 && arrays.weight[k] <= 1);
    }
    /* They count, although nobody has paid for them. */
    assert_int_equal(asked_table(f->client, "prioritized", "limiter.samples"), 20);
}

/* Takes batches and returns the longest wait for one in seconds. */
static double longest_wait(rp_sampler *sampler, uint32_t batches)
{
    double longest = 0;
    for (uint32_t i = 0; i < batches; i++) {
        double before = seconds_now();
        batches_pass(sampler, 1);
        longest = fmax(longest, seconds_now() - before);
    }
    return longest;
}

/* Takes a batch. Returns true if it has an item of the shard. */
static bool has_item_of(rp_sampler *sampler, uint32_t shard)
{
    bool has = false;
    SCOPED(rp_batch) batch = batch_next(sampler);
    for (uint32_t i = 0; i < arrays_of(batch).n; i++)
        has = has || arrays_of(batch).shard[i] == shard;
    return has;
}

/* A sampler and a writer go on while a shard is dead, and take it back. */
CASE(a_shard_dies_and_comes_back)
{
    insert(f->client, "uniform", 0, 400, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "uniform", .batch_size = 64);
    broker_process_stop(&f->shards.shards[1], SIGKILL);
    double longest = longest_wait(sampler, 300);
    if (longest > SOON_S)
        fail_msg("a batch came after %.2f s", longest);
    SCOPED(rp_writer) writer = numbers_writer(f->client);
    for (int32_t i = 0; i < 100; i++)
        assert_int_not_equal(insert_one(writer, "uniform", 1000 + i, 1) >> 56, 1);
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    broker_process_again(&f->shards.shards[1], NULL); /* empty */
    wait_until(insert_one(writer, "uniform", 2000, 1) >> 56 == 1);
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    wait_until(has_item_of(sampler, 1));
}

/* Items that leave their table when they are sampled, and that a silent shard was asked for, come when it is there again: each as
 * often as its table says. */
static void check_items_of_a_silent_shard(struct fixture *f, const char *table, uint32_t times,
                                          const rp_sampler_options *options)
{
    enum { ITEMS = 600 };
    uint32_t seen[ITEMS] = {0};
    insert(f->client, table, 0, ITEMS, NULL);
    SCOPED(rp_sampler) sampler = must(rp_sampler_new(f->client, table, options, &err));
    uint32_t got = take(sampler, 16, WAIT, seen);
    kill(f->shards.shards[3].pid, SIGSTOP);
    for (uint32_t i = 0; i < 14; i++) { /* the others still have items when it is found out that the shard is away */
        got += take(sampler, 16, WAIT, seen);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    kill(f->shards.shards[3].pid, SIGCONT);
    for (double end = seconds_now() + WAIT / 1000.0; got < times * ITEMS && seconds_now() < end;)
        got += take(sampler, times * ITEMS - got, 200, seen);
    for (uint32_t i = 0; i < ITEMS; i++)
        if (seen[i] != times)
            fail_msg("table '%s': %u of %u samples came; item %u came %u times", table, got, times * ITEMS, i, seen[i]);
}

CASE(a_silent_shard_keeps_items_that_leave_their_table)
{
    const rp_sampler_options *flexible = OPTIONS(rp_sampler, .batch_size = 16, .fill = RP_FILL_AT_ONCE);
    check_items_of_a_silent_shard(f, "queue", 1, flexible);
    check_items_of_a_silent_shard(f, "once", 1, flexible);
    check_items_of_a_silent_shard(f, "once", 1, OPTIONS(rp_sampler, .batch_size = 16, .on_demand = 1));
    check_items_of_a_silent_shard(f, "twice", 2, flexible);
    check_items_of_a_silent_shard(f, "twice", 2,
                                  OPTIONS(rp_sampler, .batch_size = 16, .fill = RP_FILL_AT_ONCE, .distinct = 1));
}

/* What was picked comes at once if the sampler is flexible, and otherwise when its time is over. The stream ends `timeout_ms` after
 * the last row. */
CASE(a_stream_ends_after_its_last_row)
{
    enum { ITEMS = 300, TIMEOUT_MS = 4000 }; /* a shard may stall for three seconds */
    static const char *const names[] = {"once", "twice"};
    for (uint32_t i = 0, tries = 1; i < 3; tries++) {
        uint32_t flexible = i > 0, times = i / 2 + 1, seen[ITEMS] = {0}, got = 0;
        insert(f->client, names[i / 2], 0, ITEMS, NULL);
        SCOPED(rp_sampler)
        sampler = SAMPLER(f->client, names[i / 2], .batch_size = 40, .fill = flexible ? RP_FILL_AT_ONCE : RP_FILL_WAIT,
                          .end_after_ms = TIMEOUT_MS);
        double last = seconds_now(), longest = 0;
        for (rp_batch *batch; rp_sampler_next(sampler, &batch, -1, &err) == RP_OK; rp_batch_release(&batch)) {
            longest = seconds_now() - last > longest ? seconds_now() - last : longest;
            last = seconds_now();
            for (uint32_t k = 0; k < arrays_of(batch).n; k++, got++)
                seen[numbers_of(batch)[k]]++;
        }
        double end = (seconds_now() - last) * 1000;
        print_message("case %u: longest wait %.2f s, end after %.0f ms\n", i, longest, end);
        assert_int_equal(err.status, RP_END_OF_STREAM);
        assert_int_equal(got, times * ITEMS);
        for (uint32_t k = 0; k < ITEMS; k++)
            assert_int_equal(seen[k], times);
        /* A busy machine makes a batch or the end late now and then, but not five times. */
        if (end > 0.9 * TIMEOUT_MS && end < 1.8 * TIMEOUT_MS && (!flexible || longest < 0.9e-3 * TIMEOUT_MS))
            i++, tries = 0;
        assert_true(tries < 5);
    }
}

/* A shard that is stopped and not dead: connected, and silent. */
CASE(a_shard_that_is_silent)
{
    insert(f->client, "ratio", 0, 200, NULL);
    insert(f->client, "uniform", 0, 100, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "ratio", .batch_size = 16);
    SCOPED(rp_sampler) other = SAMPLER(f->client, "uniform", .batch_size = 16, .on_demand = 1);
    batches_pass(other, 1);
    batches_pass(sampler, 1);
    kill(f->shards.shards[3].pid, SIGSTOP);
    double longest = longest_wait(sampler, 20);
    assert_true(longest_wait(other, 1) <
                SOON_S); /* without prefetch: the first call finds out that the shard is away, */
    uint32_t slow = 0;
    for (uint32_t i = 0; i < 8; i++)
        slow += longest_wait(other, 1) > 1;
    assert_in_range(slow, 0, 4); /* and the others know it */
    kill(f->shards.shards[3].pid, SIGCONT);
    print_message("the longest wait was %.2f s\n", longest);
    assert_true(longest < SOON_S);
}

/* Takes what is left of a table, and checks that each item came as often as its table says. */
static void check_all_came(struct fixture *f, const char *table, uint32_t times, uint32_t *seen, uint32_t n)
{
    SCOPED(rp_sampler) rest = SAMPLER(f->client, table, .batch_size = 16, .fill = RP_FILL_AT_ONCE, .end_after_ms = 300);
    take_all(rest, seen);
    for (uint32_t i = 0; i < n; i++)
        if (seen[i] != times)
            fail_msg("table '%s': item %u came %u times", table, i, seen[i]);
}

/* A sampler that is stopped gives everything that it has got ahead: what it does not give is in the table. */
CASE(a_sampler_that_is_stopped_loses_nothing)
{
    enum { ITEMS = 300 };
    static const char *const names[] = {"queue", "once", "twice"};
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t seen[ITEMS] = {0};
        const char *table = names[i % 3];
        insert(f->client, table, 0, ITEMS, NULL);
        rp_sampler *sampler =
            SAMPLER(f->client, table, .batch_size = 16, .fill = (i / 3 % 2) ? RP_FILL_AT_ONCE : RP_FILL_WAIT,
                    .on_demand = i / 6, .distinct = i % 2);
        uint32_t got = take(sampler, 32, WAIT, seen);
        ok(rp_sampler_stop(sampler, &err));
        got += take_all(sampler, seen);
        assert_true(got < ITEMS || i % 3); /* it has not emptied the table */
        rp_sampler_destroy(&sampler);
        check_all_came(f, table, i % 3 == 2 ? 2 : 1, seen, ITEMS);
    }
}

/* A stream does not end before a silent shard has given what it owes; and max_samples is exact, so nothing is picked in vain. */
CASE(a_stream_waits_for_a_silent_shard)
{
    enum { ITEMS = 600, MOST = 200 };
    for (uint32_t i = 0; i < 4; i++) {
        const char *table = i % 2 ? "queue" : "once";
        uint32_t seen[ITEMS] = {0};
        rp_batch *batch;
        insert(f->client, table, 0, ITEMS, NULL);
        rp_sampler *sampler = SAMPLER(f->client, table, .batch_size = 16, .fill = RP_FILL_AT_ONCE, .end_after_ms = 500,
                                      .max_samples = i >= 2 ? MOST : 0);
        uint32_t got = take(sampler, 16, WAIT, seen);
        kill(f->shards.shards[3].pid, SIGSTOP);
        rp_status status = RP_OK;
        for (double start = seconds_now();
             status != RP_END_OF_STREAM && seconds_now() < start + (status == RP_OK ? WAIT / 1000.0 : 2.5);) {
            status = rp_sampler_next(sampler, &batch, 100, &err);
            for (uint32_t k = 0; status == RP_OK && k < arrays_of(batch).n; k++, got++)
                seen[numbers_of(batch)[k]]++;
            rp_batch_release(&batch);
        }
        kill(f->shards.shards[3].pid, SIGCONT);
        if (status != RP_DEADLINE_EXCEEDED && !(i == 3 && got == MOST)) /* the shard may owe nothing then */
            fail_msg("case %u: %u items, then %s", i, got, status == RP_OK ? "more" : err.text);
        got += take_all(sampler, seen);
        if (i >= 2)
            assert_int_equal(got, MOST);
        rp_sampler_destroy(&sampler);
        check_all_came(f, table, 1, seen, ITEMS);
    }
}

/* `distinct` holds within each batch, also if there are hardly more items; `flexible` batches are full while there is room. */
CASE(distinct_and_flexible_batches)
{
    enum { ITEMS = 40, BATCH = 30 };
    insert(f->client, "uniform", 0, ITEMS, NULL);
    insert(f->client, "ratio", 0, 200, NULL);
    for (uint32_t demand = 0; demand < 2; demand++) {
        SCOPED(rp_sampler)
        sampler = SAMPLER(f->client, "uniform", .batch_size = BATCH, .distinct = 1, .on_demand = demand);
        for (uint32_t b = 0; b < 50; b++) {
            SCOPED(rp_batch) batch = batch_next(sampler);
            bool seen[ITEMS] = {false};
            assert_int_equal(arrays_of(batch).n, BATCH);
            for (uint32_t i = 0; i < BATCH; i++) {
                assert_false(seen[numbers_of(batch)[i]]);
                seen[numbers_of(batch)[i]] = true;
            }
        }
    }
    /* A batch waits for another item, and does without it when the time is over. */
    SCOPED(rp_sampler) larger = SAMPLER(f->client, "uniform", .batch_size = ITEMS + 1, .distinct = 1, .on_demand = 1);
    SCOPED(rp_sampler) ahead = SAMPLER(f->client, "uniform", .batch_size = ITEMS + 1, .distinct = 1);
    rp_batch *all;
    uint32_t most = 0;
    for (uint32_t tries = 0; tries < 100 && most < ITEMS; tries++) { /* a shard may be late */
        rp_status status = rp_sampler_next(larger, &all, 50, &err);
        assert_true(status == RP_OK || status == RP_DEADLINE_EXCEEDED);
        if (status != RP_OK)
            continue;
        most = arrays_of(all).n;
        rp_batch_release(&all);
    }
    assert_int_equal(most, ITEMS);
    assert_int_equal(rp_sampler_next(ahead, &all, 50, &err), RP_DEADLINE_EXCEEDED);
    insert(f->client, "uniform", ITEMS, 1, NULL);
    assert_int_equal(batches_pass(larger, 1), ITEMS + 1);
    assert_int_equal(batches_pass(ahead, 1), ITEMS + 1);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "ratio", .batch_size = BATCH, .fill = RP_FILL_AT_ONCE);
    for (uint32_t b = 0; b < 20; b++) /* there is room for 1,440 samples */
        assert_int_equal(batches_pass(sampler, 1), BATCH);
}

/* max_samples is exact, and a sampler may be destroyed at any time. */
CASE(samplers_end_at_any_time)
{
    static const char *const names[] = {"uniform", "ratio", "queue", "prioritized"};
    for (uint32_t t = 0; t < 4; t++)
        insert(f->client, names[t], 0, 200, NULL);
    for (uint32_t i = 0; i < 64; i++) {
        SCOPED(rp_batch) batch = NULL; /* it goes after its sampler */
        SCOPED(rp_sampler)
        sampler = SAMPLER(f->client, names[i % 2 * 3], .batch_size = 1 + i % 40, .on_demand = i / 4 % 2,
                          .fill = (i / 8 % 2) ? RP_FILL_AT_ONCE : RP_FILL_WAIT, .distinct = i / 16 % 2);
        rp_status status = i % 5 ? rp_sampler_next(sampler, &batch, i % 3, &err) : RP_DEADLINE_EXCEEDED;
        assert_true(status == RP_OK || status == RP_DEADLINE_EXCEEDED);
    }
    for (uint32_t t = 0; t < 3; t++) {
        uint32_t seen[200] = {0};
        SCOPED(rp_sampler)
        sampler = SAMPLER(f->client, names[t], .batch_size = 50, .max_samples = 137, .on_demand = t == 0);
        assert_int_equal(take_all(sampler, seen), 137);
    }
}

/* What a sampler has got ahead stays charged when it ends: 48 batches for each shard at most, and nothing without prefetch. */
CASE(what_a_sampler_leaves_charged)
{
    uint64_t given = 0;
    enum { BATCH = 4 };
    insert(f->client, "ratio", 0, 200, NULL);
    for (uint32_t on_demand = 2; on_demand-- > 0;) {
        rp_sampler *sampler = SAMPLER(f->client, "ratio", .batch_size = BATCH, .on_demand = on_demand);
        for (uint32_t i = 0; i < 20; i++, given += BATCH) {
            batches_pass(sampler, 1);
            if (on_demand)
                assert_int_equal(asked_table(f->client, "ratio", "limiter.samples"), given + BATCH);
        }
        rp_sampler_destroy(&sampler);
        uint64_t left = asked_table(f->client, "ratio", "limiter.samples") - given;
        assert_in_range(left, 0, on_demand ? 0 : 48 * SHARDS * BATCH);
    }
}

/* With more items in a batch than a shard's limiter lets the cursor move, samplers would wait for each other. */
CASE(a_batch_above_the_buffer_is_refused)
{
    must_fail_new(rp_sampler_new(f->client, "ratio", OPTIONS(rp_sampler, .batch_size = 1000), &err),
                  RP_INVALID_ARGUMENT, NULL);
}

/* Batches that a sampler has or has asked for, after it gave 64. */
static uint64_t ahead_of(rp_sampler *sampler)
{
    batches_pass(sampler, 64);
    rp_sampler_stats stats = stats_of(sampler);
    return stats.ready + stats.requested;
}

/* Batches ahead are as old as they are many: only a caller that waits for them gets more than it needs. */
CASE(a_caller_that_waits_gets_more_batches_ahead)
{
    enum { LEAST = 2 * SHARDS, ROUNDS = 2000 };
    insert(f->client, "uniform", 0, 200, NULL);
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "uniform", .batch_size = 32);
    uint64_t ahead = 0;
    wait_until((ahead = ahead_of(sampler)) > LEAST);
    for (uint32_t i = 0; i < ROUNDS && ahead > LEAST; i++) {
        wait_until(!stats_of(sampler).requested); /* the caller is slower than the shards */
        ahead = stats_of(sampler).ready;
        batches_pass(sampler, 1);
    }
    assert_in_range(ahead, 1, LEAST);
}
