#include <sys/resource.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/spill/spill.h"
#include "tests/support/diskfile.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define ROW 64u
#define TABLE "  - {name: t, max_size: 100000, sampler: {kind: uniform}, remover: {kind: fifo}}"
#define QUEUE "  - {name: t, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo}, remover: {kind: fifo}}"

static struct twin_folder folder;
static struct embed embed;

static int make_folder(void **state)
{
    (void)state;
    twin_folder_init(&folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    if (embed.broker)
        embed_stop(&embed);
    twin_folder_fini(&folder);
    return 0;
}

static void start(const char *tables, const char *storage, const char *more)
{
    bool durable = more && strstr(more, "checkpoint");
    embed_start(&embed, tables,
                textf("folder: %s\nstorage: {%s}\n%s%s", folder.path, storage,
                      durable ? "" : "journal: off\ncheckpoint: {keep: 0}\n", more ? more : ""));
}

static void open_rows(struct testpeer *peer)
{
    const struct testpeer_column column = {"x", "uint8", 1, {ROW}, ROW};
    testpeer_open_with(peer, false, &column, 1);
}

/* Starts a broker, and a writer of rows. */
static struct testpeer *start_rows(const char *tables, const char *storage, const char *more)
{
    start(tables, storage, more);
    struct testpeer *peer = testpeer_new(&embed);
    open_rows(peer);
    return peer;
}

static uint32_t rows_layout(struct testpeer *peer)
{
    Replay__Field field = REPLAY__FIELD__INIT;
    field.name = testpeer_text("x");
    return peer->n_layouts ? 0 : testpeer_layout(peer, "t", 1, &field);
}

/* n items over a chunk each, keys from `key` on. */
static void insert_rows(struct testpeer *peer, uint64_t key, uint32_t n, uint32_t rows, bool own)
{
    uint32_t layout = rows_layout(peer);
    for (uint32_t i = 0; i < n; i++)
        testpeer_item(peer, layout, key + i, 1.0 + (double)(key + i), testpeer_known(peer, rows, own), 0, rows);
    peer->oldest_chunk = peer->chunk + 1;
    testpeer_push(peer);
}

/* All that was sent is in the table, and more may be sent. */
static void settle(struct testpeer *peer)
{
    embed_settle(peer->embed);
    testpeer_heartbeat(peer, 0, false);
}

/* n items in batches, over a chunk of 2 KiB each, keys from 0 on. */
static void insert_many(struct testpeer *peer, uint32_t n, uint32_t batch)
{
    for (uint32_t key = 0; key < n; key += batch) {
        insert_rows(peer, key, batch, 32, false);
        settle(peer);
    }
}

static void check_all(const struct testpeer_answer *answer)
{
    assert_int_equal(answer->status, RP_OK);
    for (uint32_t i = 0; i < answer->reply->sample->n_key; i++)
        sampled_known(answer, i);
}

/* ---- the store ---- */

TEST(split_chunks_lose_their_data_and_get_it_back)
{
    struct store store;
    store_init(&store, UINT64_C(1) << 32);
    store.split = true;
    static const uint32_t sizes[] = {STORE_SPLIT_BYTES - 1, STORE_SPLIT_BYTES, 5000, 16384, 20000, 40000, 200000};
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint32_t as_message = 0; as_message < 2; as_message++) {
            uint8_t *data = malloc(sizes[i]);
            for (uint32_t k = 0; k < sizes[i]; k++)
                data[k] = (uint8_t)(k * 31 + i);
            zmq_msg_t message;
            zmq_msg_init_size(&message, sizes[i]);
            memcpy(zmq_msg_data(&message), data, sizes[i]);
            struct chunk *chunk =
                store_add(&store, 3, zmq_msg_data(&message), sizes[i], sizes[i], as_message ? &message : NULL);
            zmq_msg_close(&message);
            assert_true(chunk_is_here(chunk));
            assert_memory_equal(chunk_data(chunk), data, sizes[i]);
            assert_int_equal(chunk_message(chunk) != NULL, sizes[i] >= STORE_KEEP_BYTES);
            uint64_t before = store_memory(&store);
            assert_int_equal(chunk_is_split(chunk), sizes[i] >= STORE_SPLIT_BYTES);
            if (chunk_is_split(chunk)) {
                assert_int_equal(store.split_bytes, sizes[i]);
                store_let_go(&store, chunk);
                assert_false(chunk_is_here(chunk));
                assert_null(chunk_data(chunk));
                assert_null(chunk_message(chunk));
                assert_true(store_memory(&store) + sizes[i] <= before);
                assert_int_equal(store.spilled_bytes, sizes[i]);
                assert_int_equal(store.spilled_chunks, 1);
                assert_int_equal(store.split_bytes, 0);
                uint8_t *copy = malloc(sizes[i]);
                memcpy(copy, data, sizes[i]);
                assert_true(store_put_back(&store, chunk, copy));
                assert_int_equal(store.spilled_bytes, 0);
                assert_memory_equal(chunk_data(chunk), data, sizes[i]);
                if (i % 2)
                    store_let_go(&store, chunk);
            }
            store_release(&store, chunk);
            assert_int_equal(store_memory(&store), 0);
            assert_int_equal(store.spilled_chunks + store.spilled_bytes + store.split_bytes, 0);
            free(data);
        }
    struct chunk *absent = store_add_absent(&store, 2, 1000, 1000, disk_at(1, 4096));
    assert_false(chunk_is_here(absent));
    assert_int_equal(store.spilled_bytes, 1000);
    store_release(&store, absent);
    assert_int_equal(store_memory(&store) + store.spilled_bytes + store.chunks, 0);
    store_fini(&store);
}

/* ---- a broker ---- */

struct known {
    uint64_t key, step;
    uint32_t rows;
};

/* Random inserts (over one chunk or several, shared or not), samples, fetches, updates and removals in hardly any memory:
 * each reply has the bytes that were inserted, and the table the items of the model. */
TEST(replies_are_those_of_a_model, make_folder, drop_folder)
{
    struct rng rng = naive_rng(__func__);
    struct testpeer *peer =
        start_rows("  - {name: t, max_size: 400, sampler: {kind: prioritized}, remover: {kind: fifo}}",
                   "memory: 128KiB, disk: 100MiB", NULL);
    struct known known[400];
    uint32_t n = 0;
    uint64_t key = 1;
    for (uint32_t turn = 0; turn < 400; turn++) {
        uint32_t what = (uint32_t)rng_below(&rng, 10);
        if (what < 5) {
            /* A run of consecutive chunks, and items anywhere in it. */
            uint32_t layout = rows_layout(peer), rows = 1 + (uint32_t)rng_below(&rng, 60), chunks = 3;
            uint64_t first = peer->step, number = testpeer_known(peer, rows, false);
            for (uint32_t i = 1; i < chunks; i++)
                testpeer_known(peer, rows, false);
            for (uint32_t i = (uint32_t)rng_below(&rng, 8) + 1; i > 0; i--, key++) {
                uint32_t at = (uint32_t)rng_below(&rng, rows), length = 1 + (uint32_t)rng_below(&rng, rows * 2);
                testpeer_item(peer, layout, key, 1 + (double)rng_below(&rng, 9), number, at, length);
                if (n == 400)
                    memmove(known, known + 1, --n * sizeof *known);
                known[n++] = (struct known){key, first + at, length};
            }
            peer->oldest_chunk = peer->chunk + 1;
            testpeer_push(peer);
            settle(peer);
            assert_int_equal(embed_table(&embed, "t")->in.size, n);
        } else if (n && what < 8) {
            const struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1 + (uint32_t)rng_below(&rng, 16));
            check_all(answer);
        } else if (n && what == 8) {
            const struct known *one = &known[rng_below(&rng, n)];
            const struct testpeer_answer *answer = testpeer_fetch(peer, "t", 1, &one->key);
            check_all(answer);
            assert_int_equal(answer->reply->sample->step[0], one->step);
            assert_int_equal(sampled_u32(answer->reply->sample->length, answer->reply->sample->n_length, 0), one->rows);
        } else if (n) {
            uint32_t i = (uint32_t)rng_below(&rng, n);
            testpeer_delete(peer, "t", 1, &known[i].key);
            memmove(known + i, known + i + 1, (--n - i) * sizeof *known);
            assert_int_equal(embed_table(&embed, "t")->in.size, n);
        }
        testpeer_forget(peer);
        assert_true(embed.broker->store.split_bytes <= 256 << 10);
    }
    assert_true(embed.broker->spill->fetched_chunks > 100);
    assert_int_equal(embed.broker->spill->damaged_chunks, 0);
}

static uint32_t drive(struct testpeer *peer, uint64_t *keys, double *probabilities)
{
    open_rows(peer);
    insert_many(peer, 600, 20);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 100; i++) {
        const struct testpeer_answer *answer = testpeer_sampled(peer, "t", 10);
        check_all(answer);
        for (uint32_t k = 0; k < 10; k++, n++) {
            keys[n] = answer->reply->sample->key[k];
            probabilities[n] = answer->reply->sample->probability[k];
        }
        testpeer_forget(peer);
    }
    return n;
}

TEST(picks_are_those_of_a_table_in_memory, make_folder, drop_folder)
{
    static const char table[] = "  - {name: t, max_size: 500, sampler: {kind: prioritized}, remover: {kind: fifo}}";
    uint64_t keys[2][1000];
    double probabilities[2][1000];
    start(table, "memory: 64KiB", "seed: 11\n");
    drive(testpeer_new(&embed), keys[0], probabilities[0]);
    assert_true(embed.broker->spill->fetched_chunks > 0);
    embed_stop(&embed);
    embed_start(&embed, table, "seed: 11\n");
    drive(testpeer_new(&embed), keys[1], probabilities[1]);
    embed_stop(&embed);
    assert_memory_equal(keys[0], keys[1], sizeof keys[0]);
    assert_memory_equal(probabilities[0], probabilities[1], sizeof probabilities[0]);
}

TEST(a_queue_keeps_its_order, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(QUEUE, "memory: 64KiB", NULL);
    insert_many(peer, 500, 10);
    uint64_t next = 0, ids[50];
    for (uint32_t i = 0; i < 50; i++)
        ids[i] = testpeer_sample(peer, "t", 10, NO_TIMEOUT, 0);
    for (uint32_t i = 0; i < 50; i++) {
        const struct testpeer_answer *answer = testpeer_await(peer, ids[i]);
        check_all(answer);
        for (uint32_t k = 0; k < 10; k++)
            assert_int_equal(answer->reply->sample->key[k], next++);
    }
    assert_int_equal(embed_table(&embed, "t")->in.size, 0);
}

/* The data of all items is on disk only. */
static void spill_all(void)
{
    embed_settle(&embed);
    struct broker *broker = embed.broker;
    struct table *table = embed_table(&embed, "t");
    for (uint32_t i = 0; i < table->in.high; i++) {
        const struct span *span = &table->in.items[i].span;
        for (uint32_t c = 0; c < span->n; c++) {
            struct chunk *chunk = span_chunks(span)[c];
            stream_chunk(broker->stream, chunk);
        }
    }
    stream_hand_over(broker->stream);
    while (broker->stream->durable < stream_now(broker->stream))
        broker_turn(broker, 1);
    embed_settle(&embed);
    for (uint32_t i = 0; i < table->in.high; i++)
        for (uint32_t c = 0; c < table->in.items[i].span.n; c++) {
            struct chunk *chunk = span_chunks(&table->in.items[i].span)[c];
            if (chunk_is_here(chunk))
                store_let_go(&broker->store, chunk);
        }
}

/* Requests are taken, and nothing else is done: what was read does not come back meanwhile. */
static const struct wait *await_parked(uint64_t n)
{
    struct broker *broker = embed.broker;
    for (uint32_t ms = 0; ms < WAIT && broker->spill->parked.n < n; ms++)
        if (!service_receive(&broker->service))
            zmq_poll(NULL, 0, 1);
    assert_int_equal(broker->spill->parked.n, n);
    return broker->peers.waits.first;
}

TEST(a_parked_sample_says_what_it_waits_for_and_outlives_its_deadline, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(QUEUE, "memory: 1MiB", NULL);
    insert_rows(peer, 0, 60, 32, false);
    spill_all();
    uint64_t id = testpeer_sample(peer, "t", 12, 50, 0);
    const struct wait *wait = await_parked(1);
    struct wait_text why = {0};
    wait->ops->explain(wait, &why);
    assert_string_equal(why.text, "table 't': 12 of 12 items are being read from disk");
    assert_int_equal(embed_table(&embed, "t")->in.size, 48);
    embed.manual.now_ns += NS_PER_S;
    const struct testpeer_answer *answer = testpeer_await(peer, id);
    check_all(answer);
    assert_int_equal(answer->reply->sample->n_key, 12);
}

TEST(a_parked_sample_is_cancelled_and_lost_like_any_other, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 1MiB", NULL);
    insert_rows(peer, 0, 60, 32, false);
    spill_all();
    uint64_t id = testpeer_sample(peer, "t", 12, NO_TIMEOUT, 0);
    const uint64_t keys[] = {1, 2, 3};
    Replay__Fetch fetch = REPLAY__FETCH__INIT;
    fetch.table = testpeer_text("t");
    fetch.n_key = 3;
    fetch.key = (uint64_t *)(uintptr_t)keys;
    TESTPEER_REQUEST(request, FETCH, fetch, &fetch);
    uint64_t fetch_id = testpeer_ask(peer, &request);
    await_parked(2);
    waits_cancel_all(&embed.broker->peers.waits, RP_CANCELLED, "enough");
    assert_int_equal(embed.broker->spill->parked.n, 0);
    assert_int_equal(testpeer_await(peer, id)->status, RP_CANCELLED);
    assert_int_equal(testpeer_await(peer, fetch_id)->status, RP_CANCELLED);
    assert_int_equal(embed.broker->spill->pinned_bytes, 0);
    check_all(testpeer_sampled(peer, "t", 50));
}

/* Many samplers at once: what they pin together is bounded, and all are answered. */
TEST(many_samplers_share_memory_and_reads, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 128KiB", NULL);
    insert_many(peer, 600, 20);
    spill_all();
    uint64_t ids[60];
    for (uint32_t i = 0; i < 60; i++)
        ids[i] = testpeer_sample(peer, "t", 16, NO_TIMEOUT, 0);
    await_parked(60);
    uint64_t most = 0;
    while (embed.broker->spill->parked.n) {
        broker_turn(embed.broker, 1);
        if (embed.broker->store.split_bytes > most)
            most = embed.broker->store.split_bytes;
    }
    for (uint32_t i = 0; i < 60; i++)
        check_all(testpeer_await(peer, ids[i]));
    assert_true(most <= 256 << 10);
}

/* Parks a sample, and holds it when it has read its data, because its client does not read. Returns its client. */
static struct peer *park_and_hold(struct testpeer *peer, uint64_t *id)
{
    struct broker *broker = embed.broker;
    insert_rows(peer, 0, 60, 32, false);
    spill_all();
    *id = testpeer_sample(peer, "t", 12, NO_TIMEOUT, 0);
    struct peer *to = peer_find(&broker->peers, &await_parked(1)->to);
    atomic_fetch_add(&to->pending_bytes, 1LL << 40);
    for (uint32_t ms = 0; ms < WAIT && !broker->samples.held.n; ms++)
        broker_turn(broker, 1);
    assert_int_not_equal(broker->samples.held.n, 0);
    return to;
}

/* A sample that has read its data waits for a client that does not read; meanwhile the data goes to disk again. */
TEST(data_goes_while_its_client_does_not_read, make_folder, drop_folder)
{
    uint64_t id;
    struct testpeer *peer = start_rows(TABLE, "memory: 1MiB", NULL);
    struct peer *to = park_and_hold(peer, &id);
    spill_all();
    atomic_fetch_sub(&to->pending_bytes, 1LL << 40);
    embed_advance(&embed, 5);
    check_all(testpeer_await(peer, id));
}

/* The same, and the sample is cancelled meanwhile: it is parked again, and no longer held. */
TEST(data_goes_and_a_held_sample_is_cancelled, make_folder, drop_folder)
{
    uint64_t id;
    struct testpeer *peer = start_rows(QUEUE, "memory: 1MiB", NULL);
    struct peer *to = park_and_hold(peer, &id);
    struct broker *broker = embed.broker;
    const struct picks *picks = &TAILQ_FIRST(&broker->samples.held.queue)->picks;
    for (uint32_t i = 0; i < picks->n_refs; i++)
        if (chunk_is_here(picks->refs[i]))
            store_let_go(&broker->store, picks->refs[i]);
    testpeer_ask_cancel(peer, 1, &id);
    await_parked(1);
    assert_int_equal(broker->samples.held.n, 0);
    atomic_fetch_sub(&to->pending_bytes, 1LL << 40);
    embed_advance(&embed, 5);
    const struct testpeer_answer *answer = testpeer_await(peer, id);
    check_all(answer);
    assert_int_equal(answer->reply->sample->n_key, 12);
    assert_has(answer->text, "cancelled");
}

TEST(damaged_data_is_told_of_and_its_item_removed, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 1MiB", NULL);
    insert_rows(peer, 0, 10, 32, false);
    spill_all();
    struct table *table = embed_table(&embed, "t");
    for (uint64_t key = 3; key < 8; key += 4) {
        uint64_t at = table->in.items[table_find(table, key)].span.one->at;
        uint64_t data = disk_offset(at) + sizeof(struct entry_head) + sizeof(struct entry_chunk);
        diskfile_flip(folder.path, DISK_SEGMENT, disk_number(at), data + 100, 1);
    }
    const uint64_t one = 3, some[] = {6, 7, 8};
    const struct testpeer_answer *answer = testpeer_fetch(peer, "t", 1, &one);
    assert_int_equal(answer->status, RP_DATA_LOSS);
    assert_true(facts_within(answer->text, "1 of 1 items could not be read from the broker's disk: the chunk at"));
    assert_int_equal(table->in.size, 9);
    answer = testpeer_fetch(peer, "t", 3, some);
    check_all(answer);
    assert_int_equal(answer->reply->sample->n_key, 2);
    assert_int_equal(answer->reply->sample->key[0], 6);
    assert_int_equal(answer->reply->sample->key[1], 8);
    assert_true(facts_within(answer->text, "1 of 3 items could not be read"));
    assert_int_equal(table->in.size, 8);
    for (uint32_t i = 0; i < 20; i++)
        check_all(testpeer_sampled(peer, "t", 16));
    assert_int_equal(embed.broker->spill->damaged_chunks, 2);
}

/* The items of a queue leave it when they are picked: a lack of descriptors must not lose them. */
TEST(a_file_that_cannot_be_opened_now_loses_nothing, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(QUEUE, "memory: 1MiB", NULL);
    insert_rows(peer, 0, 10, 32, false);
    spill_all();
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, files.rlim_max}), 0);
    uint64_t id = testpeer_ask(peer, REQUEST_OF(SAMPLE, sample, Sample, .table = testpeer_text("t"), .count = 10));
    await_parked(1);
    for (uint32_t i = 0; i < 20; i++)
        broker_turn(embed.broker, 10);
    assert_int_equal(embed.broker->spill->parked.n, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    const struct testpeer_answer *answer = testpeer_await(peer, id);
    check_all(answer);
    assert_int_equal(answer->reply->sample->n_key, 10);
}

TEST(inserts_wait_while_memory_is_full, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 128KiB", NULL);
    embed.broker->stream->full = true; /* as if the disk did not take anything */
    for (uint32_t i = 0; i < 6; i++)
        insert_rows(peer, i * 10, 10, 64, false);
    for (uint32_t i = 0; i < 500; i++)
        broker_turn(embed.broker, 0);
    struct table *table = embed_table(&embed, "t");
    assert_true(table->in.size >= 30 && table->in.size <= 35);
    assert_int_equal(table->in.size + table->n_waiting_items, 60);
    assert_true(embed.broker->spill->held);
    char why[300] = "";
    const struct disk_tier *tier = &embed.broker->tables.disk;
    tier->explain_insert(tier->ctx, why, sizeof why);
    assert_true(facts_within(why, "0.2 MiB where storage.memory allows 0.1 MiB"));
    embed.broker->stream->full = false;
    embed.manual.now_ns += NS_PER_S;
    embed_settle(&embed);
    assert_int_equal(table->in.size, 60);
    assert_int_equal(table->stats.rejected + table->stats.evicted, 0);
}

TEST(data_stays_until_it_is_written, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 64KiB", NULL);
    struct table *table = embed_table(&embed, "t");
    for (uint32_t i = 0; i < 20; i++) {
        insert_rows(peer, i * 20, 20, 32, false);
        while (table->in.size < (i + 1) * 20) {
            broker_turn(embed.broker, 1);
            for (uint32_t slot = 0; slot < table->in.high; slot++) {
                const struct chunk *chunk = table->in.items[slot].span.one;
                assert_true(chunk_is_here(chunk) || chunk->at < embed.broker->spill->durable_at);
            }
        }
        settle(peer);
    }
    assert_true(embed.broker->store.spilled_chunks > 300);
}

/* What no item of a table uses cannot go: then inserts go on all the same. */
TEST(data_that_must_stay_does_not_stop_inserts, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 128KiB", NULL);
    uint32_t layout = rows_layout(peer);
    for (uint32_t i = 0; i < 200; i++)
        testpeer_known(peer, 32, false); /* kept by the session for later items */
    testpeer_pushed(peer);
    assert_int_equal(embed.broker->store.split_bytes, 200 * 32 * ROW);
    testpeer_item(peer, layout, 1, 1.0, 1, 0, 32);
    testpeer_pushed(peer);
    assert_int_equal(embed_table(&embed, "t")->in.size, 1);
    check_all(testpeer_sampled(peer, "t", 1));
}

TEST(a_full_disk_budget_removes_old_items, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 128KiB, disk: 1MiB", NULL);
    insert_many(peer, 2000, 10);
    struct table *table = embed_table(&embed, "t");
    assert_int_equal(table->in.size + table->stats.evicted, 2000); /* none was rejected */
    assert_true(table->in.size > 400 && table->in.size < 700);     /* 1 MiB on disk and 128 KiB here, 2 KiB each */
    assert_int_not_equal(table_find(table, 1999), KEYMAP_NONE);
    assert_int_equal(table_find(table, 0), KEYMAP_NONE);
    uint64_t live = 0;
    for (uint32_t i = 0; i < embed.broker->stream->segments.n; i++)
        live += embed.broker->stream->segments.list[i].live;
    assert_true(live <= 1 << 20);
    assert_string_equal(table->evicted_by, "storage.disk");
    check_all(testpeer_sampled(peer, "t", 200));
}

TEST(segments_that_hold_nothing_are_removed, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows("  - {name: t, max_size: 500, sampler: {kind: uniform}, remover: {kind: fifo}}",
                                       "memory: 128KiB", NULL);
    embed.broker->stream->segment_bytes = 256 << 10;
    /* Every tenth item stays for good: in time its segments hold hardly anything else. */
    uint64_t key = 0;
    for (uint32_t i = 0; i < 300; i++) {
        insert_rows(peer, key, 10, 32, false);
        settle(peer);
        uint64_t keys[9];
        for (uint32_t k = 0; k < 9; k++)
            keys[k] = key + 1 + k;
        testpeer_delete(peer, "t", i % 2 ? 9 : 0, keys);
        key += 10;
        if (i % 10 == 0)
            embed_advance(&embed, 1100);
        testpeer_forget(peer);
    }
    for (uint32_t i = 0; i < 20; i++)
        embed_advance(&embed, 1100);
    struct stream *stream = embed.broker->stream;
    uint64_t live = 0;
    for (uint32_t i = 0; i < stream->segments.n; i++) {
        assert_true(stream->segments.list[i].live > 0 || stream->segments.list[i].number == stream->segment);
        live += stream->segments.list[i].live;
    }
    assert_true(stream->segment > 10);
    assert_true(stream->segments.total_bytes <= 2 * live + 3 * stream->segment_bytes);
    for (uint32_t i = 0; i < 20; i++)
        check_all(testpeer_sampled(peer, "t", 16));
    assert_int_equal(embed.broker->spill->damaged_chunks, 0);
}

static uint32_t count_segments(void)
{
    uint32_t n;
    files_like(textf("%s/segment-*.replay", folder.path), &n);
    return n;
}

/* Without journal and checkpoints nothing is promised: the next broker starts empty, and clears up. */
TEST(files_of_a_broker_that_is_gone_are_removed, make_folder, drop_folder)
{
    struct testpeer *peer = start_rows(TABLE, "memory: 64KiB", NULL);
    embed.broker->stream->segment_bytes = 64 << 10;
    insert_many(peer, 400, 20);
    twin_kill(&embed);
    assert_true(count_segments() > 5);
    start(TABLE, "memory: 64KiB", NULL);
    assert_int_equal(embed_table(&embed, "t")->in.size, 0);
    embed_advance(&embed, 1100);
    wait_until(count_segments() <= 1);
}

/* A journal that was loaded outlives a broker that keeps none: what it promised is there again with the next. */
TEST(a_journal_of_before_stays, make_folder, drop_folder)
{
    static const char more[] = "checkpoint: {every: 0s}\n";
    for (uint32_t round = 0; round < 3; round++) {
        start(TABLE, "memory: 64KiB", round == 1 ? NULL : more);
        struct testpeer *peer = testpeer_new(&embed);
        if (round == 0) {
            embed.broker->stream->segment_bytes = 16 << 10;
            open_rows(peer);
            insert_many(peer, 400, 20);
            for (uint64_t key = 0; key < 200; key++)
                testpeer_delete(peer, "t", 1, &key);
        }
        assert_int_equal(embed_table(&embed, "t")->in.size, 200);
        for (uint32_t i = 0; i < 5; i++)
            embed_advance(&embed, 1100);
        for (uint64_t key = 200; key < 400; key += 7)
            check_all(testpeer_fetch(peer, "t", 1, &key));
        twin_kill(&embed);
    }
}

/* What is left in mostly dead segments is read back for a checkpoint that moves it, and is there after a restart. */
TEST(checkpoints_move_chunks_that_are_on_disk_only, make_folder, drop_folder)
{
    static const char more[] = "journal: off\ncheckpoint: {keep: 1, every: 0s}\n";
    struct testpeer *peer = start_rows(TABLE, "memory: 64KiB", more);
    embed.broker->stream->segment_bytes = 64 << 10;
    insert_many(peer, 400, 20);
    twin_checkpoint(&embed);
    uint32_t before = count_segments();
    for (uint64_t key = 0; key < 400; key++)
        if (key % 5)
            testpeer_delete(peer, "t", 1, &key);
    testpeer_forget(peer);
    twin_checkpoint(&embed);
    twin_checkpoint(&embed);
    wait_until(count_segments() <= before / 2);
    twin_kill(&embed);
    start(TABLE, "memory: 64KiB", more);
    assert_int_equal(embed_table(&embed, "t")->in.size, 80);
    assert_true(embed.broker->store.spilled_chunks > 20);
    assert_true(embed.broker->store.split_bytes <= 64 << 10);
    peer = testpeer_new(&embed);
    for (uint64_t key = 0; key < 400; key += 5)
        check_all(testpeer_fetch(peer, "t", 1, &key));
}

/* An item that memory does not hold as a whole cannot be moved: it stays where it is, and the checkpoint ends. */
TEST(checkpoints_leave_items_that_do_not_fit, make_folder, drop_folder)
{
    static const char more[] = "journal: off\ncheckpoint: {keep: 1, every: 0s}\n";
    struct testpeer *peer = start_rows(TABLE, "memory: 64KiB", more);
    embed.broker->stream->segment_bytes = 256 << 10;
    uint32_t layout = rows_layout(peer);
    for (uint64_t big = 0; big < 4; big++) {
        uint64_t first = testpeer_known(peer, 32, false);
        for (uint32_t i = 1; i < 40; i++)
            testpeer_known(peer, 32, false);
        testpeer_item(peer, layout, 1000 + big, 1, first, 0, 40 * 32);
        peer->oldest_chunk = peer->chunk + 1;
        testpeer_push(peer);
        settle(peer);
        for (uint32_t i = 0; i < 5; i++) {
            insert_rows(peer, big * 100 + i * 20, 20, 32, false);
            settle(peer);
        }
    }
    twin_checkpoint(&embed);
    for (uint64_t key = 0; key < 400; key++)
        testpeer_delete(peer, "t", 1, &key);
    testpeer_forget(peer);
    twin_checkpoint(&embed);
    twin_kill(&embed);
    start(TABLE, "memory: 64KiB", more);
    assert_int_equal(embed_table(&embed, "t")->in.size, 4);
    peer = testpeer_new(&embed);
    for (uint64_t key = 1000; key < 1004; key++)
        check_all(testpeer_fetch(peer, "t", 1, &key));
}
