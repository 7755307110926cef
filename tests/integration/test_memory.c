/* Byte accounts and limits: of chunks, tables, and the whole broker. At the limit the run goes on. */

#include "tests/support/naive.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define KIB 1024u

static struct embed embed;

static int end(void **state)
{
    (void)state;
    embed_stop(&embed);
    return 0;
}

static uint64_t size_of(const char *table)
{
    return embed_table(&embed, table)->in.size;
}

/* Returns a peer with a session of items of so many bytes. */
static struct testpeer *writer_of(uint32_t bytes)
{
    struct testpeer *peer = testpeer_new(&embed);
    testpeer_open_with(peer, false, &(struct testpeer_column){"x", "uint8", 1, {bytes}, bytes}, 1);
    return peer;
}

/* Sends an item of the session's size, and reads what became of it. */
static void insert_one(struct testpeer *peer, const char *table, uint64_t key, bool own)
{
    testpeer_insert_large(peer, table, key, peer->columns[0].row_bytes, own);
    testpeer_heartbeat(peer, 0, false);
}

/* Sends items one after another until the credit is used up, but at most up to key `last`. */
static uint64_t send_allowed(struct testpeer *writer, uint64_t sent, uint64_t last)
{
    uint32_t bytes = writer->columns[0].row_bytes;
    while (sent < last &&
           ((sent < testpeer_allowed(writer, 0) && writer->sent_bytes + bytes + 500 <= writer->credit->allowed_bytes) ||
            sent == testpeer_resolved(writer, 0)))
        testpeer_insert_large(writer, "t", ++sent, bytes, false);
    testpeer_heartbeat(writer, 0, false);
    assert_int_equal(writer->credit->n_rejections, 0);
    testpeer_forget(writer);
    return sent;
}

/* Half of the memory that max_size needs, a ratio limiter, a real sampler: several times max_size goes through. */
TEST(the_run_goes_on_at_half_the_memory_that_max_size_needs, NULL, end)
{
    embed_start(&embed,
                "  - name: t\n    max_size: 1000\n    sampler: {kind: uniform}\n"
                "    limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 100, error_buffer: 20}\n",
                "memory_limit: 5MiB\n"); /* 1000 items of 10,000 bytes need 10 MB */
    struct testpeer *writer = writer_of(10000), *sampler = testpeer_new(&embed);
    uint64_t sent = 0, sampled = 0, most = 0;
    uint32_t idle = 0;
    uint64_t id = 0;
    while (testpeer_resolved(writer, 0) < 5000 && idle < 1000) {
        idle++;
        sent = send_allowed(writer, sent, 5000);
        if (!id)
            id = testpeer_sample(sampler, "t", 16, NO_TIMEOUT, 0);
        struct testpeer_answer *answer = testpeer_poll(sampler, id);
        if (answer) {
            assert_int_equal(answer->status, RP_OK);
            sampled += answer->reply->sample->n_key;
            testpeer_forget(sampler);
            id = 0;
            idle = 0;
        }
        uint64_t memory = store_memory(&embed.broker->store);
        most = memory > most ? memory : most;
        embed_advance(&embed, 1);
    }
    assert_int_equal(testpeer_resolved(writer, 0), 5000);
    assert_true(sampled > 9000);
    assert_true(most <= 5 * KIB * KIB);
    assert_true(size_of("t") >= 300 && size_of("t") <= 500);
}

/* A writer that lets go of no chunk must not drive everybody's items out of the tables. */
TEST(chunks_kept_by_one_session_do_not_empty_the_tables, NULL, end)
{
    embed_start(&embed, "  - {name: t, max_size: 100000, limiter: {kind: none}}\n", "memory_limit: 8MiB\n");
    struct testpeer *good = testpeer_opened(&embed, false), *hoarder = writer_of(40000);
    for (uint64_t i = 0; i < 20; i++) {
        testpeer_insert(good, "t", 1 + i * 50, 50, 1);
        testpeer_heartbeat(good, 0, false);
    }
    assert_int_equal(size_of("t"), 1000);
    uint8_t *block = calloc(1, 40000);
    const void *blocks[] = {block};
    for (uint32_t i = 0; i < 1000; i++) { /* 40 MB, never let go of, within its credit */
        if (hoarder->sent_bytes + 41000 > hoarder->credit->allowed_bytes)
            testpeer_heartbeat(hoarder, 0, false);
        if (hoarder->sent_bytes + 41000 > hoarder->credit->allowed_bytes)
            break;
        testpeer_chunk(hoarder, 1, blocks, true);
        testpeer_push(hoarder);
        embed_settle(&embed);
    }
    free(block);
    assert_true(store_memory(&embed.broker->store) <= 8 * KIB * KIB);
    testpeer_insert(good, "t", 5000, 10, 1);
    testpeer_heartbeat(good, 0, false);
    assert_int_equal(good->credit->n_rejections, 0);
    assert_true(size_of("t") >= 1000);
}

TEST(a_table_with_nothing_to_remove_names_the_holder, NULL, end)
{
    embed_start(&embed,
                "  - {name: large, max_size: 100000, limiter: {kind: none}}\n"
                "  - {name: small, max_size: 100000, limiter: {kind: none}}\n",
                "memory_limit: 4MiB\n");
    struct testpeer *peer = writer_of(100000);
    uint64_t key = 0;
    /* Up to the storage budget, then as much as ingest may have under way: held by the first table. */
    while (store_memory(&embed.broker->store) < 3500000 && key < 100)
        insert_one(peer, "large", ++key, true);
    uint64_t held = size_of("large");
    for (uint32_t i = 0; i < 20; i++)
        insert_one(peer, "small", ++key, true);
    assert_int_equal(size_of("large"), held); /* a table never pays for another */
    assert_true(size_of("small") <= 10);
    assert_true(store_memory(&embed.broker->store) <= 4 * KIB * KIB);
    testpeer_insert_large(peer, "large", ++key, 100000, true);
    testpeer_heartbeat(peer, peer->credit->first_rejection + peer->credit->n_rejections, false);
    assert_int_equal(peer->credit->n_rejections, 0);
}

TEST(an_item_that_finds_no_room_is_refused_with_numbers, NULL, end)
{
    embed_start(&embed, "  - {name: t, max_size: 100, limiter: {kind: none}}\n",
                "memory_limit: 1MiB\nmax_message_bytes: 8MiB\n");
    struct testpeer *peer = writer_of(2000000);
    insert_one(peer, "t", 1, true);
    assert_int_equal(testpeer_resolved(peer, 0), 1);
    assert_int_equal(peer->credit->n_rejections, 1);
    assert_int_equal(peer->credit->rejections[0]->status, RP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(peer->credit->rejections[0]->text, "1048576"));
    assert_int_equal(embed.broker->store.chunks, 0);
}

TEST(a_refused_duplicate_removes_nothing_at_the_limit, NULL, end)
{
    embed_start(&embed, "  - {name: t, max_size: 100000, limiter: {kind: none}}\n", "memory_limit: 2MiB\n");
    struct testpeer *peer = writer_of(10000);
    uint64_t key = 0;
    while (store_memory(&embed.broker->store) <= embed.broker->tables.storage_budget - 12000 && key < 1000)
        insert_one(peer, "t", ++key, false);
    uint64_t before = size_of("t");
    for (uint32_t i = 0; i < 5; i++)
        insert_one(peer, "t", key, false);
    assert_int_equal(peer->credit->n_rejections, 5);
    assert_int_equal(peer->credit->rejections[0]->status, RP_ALREADY_EXISTS);
    assert_int_equal(size_of("t"), before);
}

/* ---- items that owe samples ---- */

/* What waits with this kind, or NULL. */
static const Replay__Wait *find_wait(struct testpeer *peer, const char *kind)
{
    const Replay__WhyReply *why = testpeer_why(peer);
    for (size_t i = 0; i < why->n_waits; i++)
        if (strcmp(why->waits[i]->kind, kind) == 0)
            return why->waits[i];
    return NULL;
}

/* Fills the table until nothing more goes in. */
static uint64_t fill(struct testpeer *writer, uint64_t sent, uint64_t last)
{
    for (uint64_t before = UINT64_MAX; before != sent;) {
        before = sent;
        sent = send_allowed(writer, sent, last);
    }
    return sent;
}

/* The items of a sample are the next ones of a queue. Returns the key after them. */
static uint64_t check_next(struct testpeer *sampler, const struct testpeer_answer *answer, uint64_t next)
{
    assert_int_equal(answer->status, RP_OK);
    for (size_t i = 0; i < answer->reply->sample->n_key; i++)
        assert_int_equal(answer->reply->sample->key[i], next++);
    testpeer_settled(sampler, 0);
    testpeer_forget(sampler);
    return next;
}

#define QUEUE "sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue}"

/* At the memory limit a queue keeps what it has accepted; inserts wait, say so, and go on as it is read. The slots and
 * keys of small items take more than their data. */
TEST(a_queue_loses_nothing_at_the_memory_limit)
{
    static const struct {
        const char *table, *more, *limit;
        uint32_t bytes, items, least, most; /* least, most: sent before inserts wait */
    } rows[] = {
        {"  - {name: t, max_size: 5000, " QUEUE "}\n", "memory_limit: 4MiB\n", "memory_limit", 10000, 2000, 200, 1500},
        {"  - {name: t, max_size: 5000, max_bytes: 2MiB, " QUEUE "}\n", NULL, "max_bytes", 10000, 2000, 200, 1500},
        {"  - {name: t, max_size: 1000000, " QUEUE "}\n", "memory_limit: 1MiB\n", "memory_limit", 8, 30000, 2000,
         20000},
    };
    for (uint32_t r = 0; r < 3; r++) {
        const uint64_t items = rows[r].items;
        embed_start(&embed, rows[r].table, rows[r].more);
        struct testpeer *writer = writer_of(rows[r].bytes), *sampler = testpeer_new(&embed);
        uint64_t sent = fill(writer, 0, items), size = size_of("t");
        struct table *table = embed_table(&embed, "t");
        assert_in_range(sent, rows[r].least, rows[r].most);
        assert_in_range(size, rows[r].least / 2, sent - 1);
        assert_true(table->n_waiting_items > 0);
        assert_true(store_memory(&embed.broker->store) <= (uint64_t)embed.config.memory_limit);
        assert_int_equal(table->stats.evicted, 0);
        assert_true(strlen(testpeer_table_info(sampler, "t")->limiter->inserts_wait) > 0);
        for (uint64_t next = 1; next <= items;) {
            sent = send_allowed(writer, sent, items);
            const Replay__Wait *wait = find_wait(sampler, "insert");
            assert_int_equal(wait ? wait->count : 0, table->n_waiting_items);
            assert_true(wait || next > 1);
            if (wait)
                assert_has(wait->text, rows[r].limit);
            next = check_next(
                sampler, testpeer_await(sampler, testpeer_sample(sampler, "t", (uint32_t)items / 285, 0, FLEXIBLE)),
                next);
            assert_true(store_memory(&embed.broker->store) <= (uint64_t)embed.config.memory_limit);
            if (r == 1)
                assert_true(table->bytes <= 2 * KIB * KIB);
        }
        assert_int_equal(sent, items);
        assert_int_equal(table->stats.evicted, 0);
        assert_true(limiter_cursor(&table->limiter) == 0); /* all of its capacity is there */
        embed_stop(&embed);
    }
}

/* A batch that memory cannot hold: it waits, with the reason, and what it has got is delivered at its deadline. */
TEST(a_batch_larger_than_memory_ends_at_its_deadline)
{
    for (int flags = 0; flags <= WHOLE; flags += WHOLE) {
        embed_start(&embed, "  - {name: t, max_size: 5000, " QUEUE "}\n", "memory_limit: 2MiB\n");
        struct testpeer *writer = writer_of(10000), *sampler = testpeer_new(&embed);
        uint64_t id = testpeer_sample(sampler, "t", 1000, 5000, flags);
        uint64_t sent = fill(writer, 0, 2000);
        assert_null(testpeer_poll(sampler, id));
        /* The batch may fill up memory_limit; what is under way besides is bounded by itself. */
        assert_true(store_memory(&embed.broker->store) <= 2 * KIB * KIB + embed.broker->sessions.ingest_budget + 20000);
        assert_non_null(find_wait(writer, "insert"));
        embed_advance(&embed, 6000);
        struct testpeer_answer *answer = testpeer_await(sampler, id);
        uint64_t next = 1;
        if (flags == WHOLE)
            assert_int_equal(answer->status, RP_DEADLINE_EXCEEDED);
        else
            next = check_next(sampler, answer, next);
        assert_true(flags == WHOLE || next > 101);
        testpeer_settled(sampler, 0);
        while (next <= 2000) {
            sent = send_allowed(writer, sent, 2000);
            next = check_next(sampler, testpeer_await(sampler, testpeer_sample(sampler, "t", 50, 0, 0)), next);
        }
        assert_int_equal(embed_table(&embed, "t")->stats.evicted, 0);
        embed_stop(&embed);
    }
}

/* A reset, a delete, or another table's items that go wake inserts that wait for memory. */
TEST(memory_that_comes_free_elsewhere_wakes_inserts, NULL, end)
{
    embed_start(&embed,
                "  - {name: t, max_size: 5000, " QUEUE "}\n  - {name: u, max_size: 5000, limiter: {kind: none}}\n",
                "memory_limit: 4MiB\n");
    struct testpeer *writer = writer_of(10000), *other = writer_of(10000);
    for (uint64_t key = 1; key <= 100; key++)
        insert_one(other, "u", key, false);
    assert_int_equal(size_of("u"), 100);
    fill(writer, 0, 2000);
    uint64_t waiting = embed_table(&embed, "t")->n_waiting_items;
    assert_true(waiting > 0);
    testpeer_reset(other, "u"); /* buried in slices, by a chore */
    embed_settle(&embed);
    assert_true(embed_table(&embed, "t")->n_waiting_items < waiting);
    assert_int_equal(embed_table(&embed, "t")->stats.evicted, 0);
}

/* Items that need more samples than the limiter will ever allow do not stop the run: they are evicted, and counted. */
TEST(what_cannot_be_sampled_is_evicted_and_counted, NULL, end)
{
    embed_start(&embed,
                "  - {name: t, max_size: 5000, max_times_sampled: 4, limiter: {kind: sample_to_insert_ratio, "
                "samples_per_insert: 1, min_size: 1, error_buffer: 10}}\n",
                "memory_limit: 4MiB\n");
    struct testpeer *writer = writer_of(10000), *sampler = testpeer_new(&embed);
    uint64_t sent = 0, got = 0;
    for (uint32_t turn = 0; got < 1500 && turn < 5000; turn++) {
        sent = send_allowed(writer, sent, 2000);
        struct testpeer_answer *answer = testpeer_await(sampler, testpeer_sample(sampler, "t", 5, 0, 0));
        got += answer->status == RP_OK ? answer->reply->sample->n_key : 0;
        testpeer_settled(sampler, 0);
        testpeer_forget(sampler);
    }
    assert_true(got >= 1500);
    uint64_t evicted = embed_table(&embed, "t")->stats.evicted_for_memory;
    assert_true(evicted > 0);
    assert_int_equal(testpeer_table_info(sampler, "t")->evicted_for_memory, evicted);
    const Replay__Wait *wait = find_wait(sampler, "memory");
    assert_non_null(wait);
    assert_int_equal(wait->count, evicted);
    assert_string_equal(wait->table, "t");
}

TEST(eviction_for_memory_is_told, NULL, end)
{
    embed_start(&embed, "  - {name: t, max_size: 5000, limiter: {kind: none}}\n", "memory_limit: 4MiB\n");
    tempdir_enter(NULL);
    log_set_level(LEVEL_WARN);
    ok(log_open(tempdir_at("log"), &err));
    struct testpeer *writer = writer_of(10000);
    fill(writer, 0, 300);
    assert_null(find_wait(writer, "memory"));
    assert_int_equal(testpeer_table_info(writer, "t")->evicted_for_memory, 0);
    fill(writer, 300, 600);
    Replay__TableInfo *info = testpeer_table_info(writer, "t");
    assert_true(info->evicted_for_memory >= 200);
    assert_int_equal(info->evicted_for_memory, info->evicted);
    assert_int_equal(info->size + info->evicted, 600);
    const Replay__Wait *wait = find_wait(writer, "memory");
    assert_non_null(wait);
    assert_int_equal(wait->count, info->evicted_for_memory);
    log_close();
    log_set_level(LEVEL_OFF);
    const char *line = strstr(file_text(tempdir_at("log")), "B0210");
    assert_non_null(line);
    assert_null(strstr(line + 1, "B0210")); /* the first time only */
    tempdir_leave(NULL);
}

/* Writers and samplers of all kinds at the limit: what is accepted is delivered as often as it owes, and all goes on. */
TEST(random_use_at_the_limit_loses_nothing)
{
    enum { ITEMS = 600 };
    static const char *const kinds[] = {
        "sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue}",
        "sampler: {kind: lifo}, max_times_sampled: 1, limiter: {kind: stack}",
        "sampler: {kind: uniform}, max_times_sampled: 1, max_bytes: 1MiB, limiter: {kind: queue}",
        "sampler: {kind: uniform}, max_times_sampled: 3, limiter: {kind: sample_to_insert_ratio, samples_per_insert: "
        "3, "
        "min_size: 1, min_diff: 0, max_diff: 1000}",
    };
    struct rng rng = naive_rng(__func__);
    for (uint32_t k = 0; k < 4; k++) {
        embed_start(&embed, textf("  - {name: t, max_size: 1000, %s}\n", kinds[k]), "memory_limit: 2MiB\n");
        struct testpeer *writer = writer_of(10000), *samplers[2] = {testpeer_new(&embed), testpeer_new(&embed)};
        uint32_t times[ITEMS + 1] = {0}, each = k == 3 ? 3 : 1;
        uint64_t sent = 0, got = 0, ids[2] = {0, 0};
        bool limited = false;
        for (uint32_t turn = 0; got < ITEMS * each && turn < 20000; turn++) {
            bool alone = turn / 20 % 2 == 0; /* now and then nobody samples, and the table fills up */
            if (rng_below(&rng, 2))
                sent = alone ? fill(writer, sent, ITEMS) : send_allowed(writer, sent, ITEMS);
            uint32_t s = (uint32_t)rng_below(&rng, 2);
            static const int flags[] = {0, FLEXIBLE, WHOLE, DISTINCT, DISTINCT | WHOLE};
            if (!ids[s] && !alone)
                ids[s] = testpeer_sample(samplers[s], "t", 1 + (uint32_t)rng_below(&rng, 60),
                                         (int64_t)rng_below(&rng, 200), flags[rng_below(&rng, 5)]);
            struct testpeer_answer *answer = ids[s] ? testpeer_poll(samplers[s], ids[s]) : NULL;
            limited |= embed.broker->tables.waits_for_room;
            if (answer) {
                size_t n = answer->status == RP_OK ? answer->reply->sample->n_key : 0;
                assert_true(answer->status == RP_OK || answer->status == RP_DEADLINE_EXCEEDED);
                for (size_t i = 0; i < n; i++)
                    times[answer->reply->sample->key[i]]++;
                got += n;
                ids[s] = 0;
                testpeer_settled(samplers[s], 0);
                testpeer_forget(samplers[s]);
            }
            embed_advance(&embed, 5);
            assert_true(store_memory(&embed.broker->store) <= 2 * KIB * KIB + 20000);
        }
        assert_true(limited);
        assert_int_equal(got, ITEMS * each);
        for (uint32_t i = 1; i <= ITEMS; i++)
            assert_int_equal(times[i], each);
        assert_int_equal(embed_table(&embed, "t")->stats.evicted, 0);
        embed_stop(&embed);
    }
}

/* ---- items whose slots and keys take more than their data ---- */

static uint64_t insert_small(struct testpeer *writer, uint64_t key, uint64_t last, struct rng *rng)
{
    for (; key < last; key += 50) {
        testpeer_insert(writer, "t", key + 1, 50, (double)rng_below(rng, 1000));
        testpeer_heartbeat(writer, UINT64_MAX >> 1, false);
        testpeer_forget(writer);
    }
    return key;
}

/* Whatever is evicted, the table neither grows beyond its memory nor shrinks to nothing, also when its keys are far apart. */
TEST(slots_and_keys_count)
{
    static const char *const removers[] = {"fifo", "uniform", "prioritized", "min_heap"};
    struct rng rng = naive_rng(__func__);
    for (uint32_t r = 0; r < 4; r++) {
        embed_start(&embed,
                    textf("  - {name: t, max_size: 10000000, remover: {kind: %s}, sampler: {kind: prioritized}, "
                          "limiter: {kind: none}}\n",
                          removers[r]),
                    "memory_limit: 2MiB\n");
        struct testpeer *writer = testpeer_opened(&embed, false);
        const struct store *store = &embed.broker->store;
        uint64_t key = 0;
        for (uint32_t turn = 1; turn <= 20; turn++) {
            key = insert_small(writer, key, turn * 5000, &rng);
            assert_true(store_memory(store) <= embed.broker->tables.storage_budget + 64 * KIB);
            if (turn > 3)
                assert_in_range(size_of("t"), 5000, 13000);
        }
        const Replay__Wait *wait = find_wait(writer, "memory");
        assert_non_null(wait);
        assert_int_equal(wait->count, embed_table(&embed, "t")->stats.evicted);
        embed_stop(&embed);
    }
}

/* What --check expects of an item without data is what it takes. */
TEST(an_item_takes_what_the_check_expects)
{
    static const char *const kinds[] = {"fifo", "lifo", "uniform", "prioritized", "min_heap", "max_heap"};
    struct rng rng = rng_of(1);
    for (uint32_t k = 0; k < 6; k++) {
        embed_start(&embed,
                    textf("  - {name: t, max_size: 1000000, sampler: {kind: %s}, remover: {kind: %s}, "
                          "limiter: {kind: none}}\n",
                          kinds[k], kinds[5 - k]),
                    NULL);
        struct testpeer *writer = testpeer_opened(&embed, false);
        uint64_t n = insert_small(writer, 0, 50000, &rng);
        assert_int_equal(size_of("t"), n);
        const struct table *table = embed_table(&embed, "t");
        double takes = (double)contents_memory(&table->in) / (double)n;
        assert_float_equal(takes, config_item_overhead(table->config), 4.0);
        embed_stop(&embed);
    }
}

/* Slots stay with their table: it goes on with large items, and a reset gives the slots back. */
TEST(a_table_of_small_items_goes_on_with_large_ones, NULL, end)
{
    struct rng rng = rng_of(1);
    embed_start(&embed, "  - {name: t, max_size: 10000000, limiter: {kind: none}}\n", "memory_limit: 4MiB\n");
    struct testpeer *writer = testpeer_opened(&embed, false), *large = writer_of(10000);
    uint64_t key = insert_small(writer, 0, 60000, &rng);
    assert_int_equal(table_reset(embed_table(&embed, "t"), &err), RP_OK);
    uint64_t evicted = embed_table(&embed, "t")->stats.evicted;
    for (uint32_t i = 0; i < 4; i++, key += 50) /* in the same turn, before the chore that frees the old items */
        testpeer_insert(writer, "t", key + 1, 50, 1.0);
    embed_settle(&embed);
    assert_int_equal(size_of("t"), 200);
    assert_int_equal(embed_table(&embed, "t")->stats.evicted, evicted);
    key = insert_small(writer, key, key + 60000, &rng);
    for (uint32_t reset = 0; reset < 2; reset++) {
        for (uint32_t i = 0; i < 500; i++) {
            insert_one(large, "t", ++key, false);
            testpeer_forget(large);
        }
        assert_int_equal(large->credit->n_rejections, 0);
        assert_true(store_memory(&embed.broker->store) <= (uint64_t)embed.config.memory_limit);
        assert_in_range(size_of("t"), reset ? 300 : 20, reset ? 340 : 200);
        testpeer_reset(writer, "t");
    }
}

/* Sizes that change leave slabs with few chunks: they count, and the table makes room until they are whole again. */
TEST(slabs_that_are_mostly_free_count, NULL, end)
{
    embed_start(&embed, "  - {name: t, max_size: 1000000, remover: {kind: uniform}, limiter: {kind: none}}\n",
                "memory_limit: 48MiB\n");
    uint64_t key = 0, most = 0, least = UINT64_MAX;
    for (uint32_t bytes = 1000; bytes <= 2500; bytes += 300) {
        struct testpeer *writer = writer_of(bytes);
        for (uint32_t i = 0; i < 40000; i++) {
            testpeer_insert_large(writer, "t", ++key, bytes, false);
            if (i % 20)
                continue;
            testpeer_heartbeat(writer, 0, false);
            testpeer_forget(writer);
            uint64_t reserved = slab_bytes(embed.broker->store.slabs)->reserved, size = size_of("t");
            most = reserved > most ? reserved : most;
            least = key > 40000 && size < least ? size : least;
        }
    }
    print_message("at most %.1f MiB in slabs, at least %llu items\n", (double)most / (KIB * KIB),
                  (unsigned long long)least);
    assert_true(most <= 60 * KIB * KIB);
    assert_true(least > 5000);
}

/* ---- max_bytes ---- */

TEST(max_bytes_is_held_and_larger_items_refused, NULL, end)
{
    embed_start(&embed, "  - {name: t, max_size: 100000, max_bytes: 100kB, limiter: {kind: none}}\n", NULL);
    struct testpeer *peer = writer_of(1000), *big = writer_of(60000), *huge = writer_of(100001);
    for (uint64_t key = 1; key <= 150; key++) {
        testpeer_insert_large(peer, "t", key, 1000, false);
        embed_settle(&embed);
        assert_true(embed_table(&embed, "t")->bytes <= 100000);
    }
    assert_int_equal(size_of("t"), 100);
    assert_int_equal(testpeer_fetch(peer, "t", 1, &(uint64_t){50})->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_fetch(peer, "t", 1, &(uint64_t){51})->status, RP_OK);
    testpeer_insert_large(big, "t", 1000, 60000, true);
    embed_settle(&embed);
    assert_true(embed_table(&embed, "t")->bytes <= 100000);
    assert_int_equal(size_of("t"), 41);
    insert_one(huge, "t", 2000, true);
    assert_int_equal(huge->credit->rejections[0]->status, RP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(huge->credit->rejections[0]->text, "max_bytes"));
    assert_int_equal(size_of("t"), 41);
}

/* ---- shared chunks ---- */

/* The bytes of the distinct chunks that a table's items use, counted the slow way. */
static uint64_t count_bytes(const struct table *table)
{
    static const struct chunk *seen[4096];
    uint32_t n = 0;
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < table->in.high; slot++) {
        const struct span *span = &table->in.items[slot].span;
        for (uint32_t c = 0; c < span->n; c++) {
            const struct chunk *chunk = span_chunks(span)[c];
            uint32_t i = 0;
            while (i < n && seen[i] != chunk)
                i++;
            if (i < n)
                continue;
            assert_true(n < 4096);
            seen[n++] = chunk;
            bytes += chunk->bytes;
        }
    }
    return bytes;
}

/* Items over one to four chunks, shared by three tables, one of which copies what is sampled to another. */
TEST(random_use_keeps_the_accounts, NULL, end)
{
    struct rng rng = naive_rng(__func__);
    static const char *const tables[] = {"a", "b", "c"};
    embed_start(
        &embed,
        "  - {name: a, max_size: 40, max_bytes: 2kB, remover: {kind: uniform}, limiter: {kind: none}, extensions: "
        "[{kind: insert_on_sample, table: c}]}\n"
        "  - {name: b, max_size: 30, max_times_sampled: 2, limiter: {kind: none}}\n"
        "  - {name: c, max_size: 20, limiter: {kind: none}}\n",
        NULL);
    struct testpeer *peer = testpeer_opened(&embed, false);
    uint64_t key = 0;
    for (uint32_t step = 0; step < 1500; step++) {
        const char *table = tables[rng_below(&rng, 3)];
        uint64_t what = rng_below(&rng, 100), old = 1 + rng_below(&rng, key + 1);
        if (what < 55) {
            uint64_t rows[8] = {0};
            const void *blocks[] = {rows};
            uint32_t layout = testpeer_plain(peer, table), length = 1 + (uint32_t)rng_below(&rng, 4);
            for (uint32_t i = 0; i < 4; i++)
                testpeer_chunk(peer, length, blocks, false);
            uint64_t back = rng_below(&rng, peer->chunk < 8 ? peer->chunk : 8);
            uint64_t first = peer->chunk - back; /* may reach into the chunks of the message before */
            if (first >= peer->oldest_chunk)
                testpeer_item(peer, layout, ++key, 1, first, 0, 1);
            testpeer_item(peer, layout, ++key, 1, peer->chunk - 3, 0, length * (1 + (uint32_t)rng_below(&rng, 4)));
            peer->oldest_chunk = peer->chunk - 3;
            testpeer_push(peer);
            testpeer_heartbeat(peer, UINT64_MAX >> 1, false);
        } else if (what < 80) {
            testpeer_await(peer, testpeer_sample(peer, table, 1 + (uint32_t)rng_below(&rng, 4), 0, 0));
        } else if (what < 98) {
            testpeer_delete(peer, table, 1, &old);
        } else {
            testpeer_reset(peer, table);
        }
        embed_settle(&embed);
        for (uint32_t t = 0; t < 3; t++)
            assert_int_equal(embed_table(&embed, tables[t])->bytes, count_bytes(embed_table(&embed, tables[t])));
        assert_true(embed_table(&embed, "a")->bytes <= 2000);
        testpeer_forget(peer);
    }
    assert_true(key > 500);
}
