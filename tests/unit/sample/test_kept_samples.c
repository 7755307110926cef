/* Samples that are asked for again: the same selection, counted once, for as long as it may be needed. */

#include "broker/sample/kept_samples.h"
#include "proto/base/rng.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/one_table.h"
#include "tests/support/twin.h"

#define QUEUE "max_size: 10000, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}"
#define TCP "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"

static struct testpeer *writer; /* beside the peer, which has no session */

static void begin_kept(const char *table, const char *more)
{
    embed_start(&embed, textf("  - {name: t, %s}\n", table), more);
    peer = testpeer_new(&embed);
    writer = testpeer_opened(&embed, false);
}

/* What the writer may send now. */
static uint32_t allowed(void)
{
    testpeer_heartbeat(writer, 0, false);
    return (uint32_t)(testpeer_allowed(writer, 0) - writer->tables[0].items);
}

static void insert(uint64_t first, uint32_t n)
{
    for (uint32_t done = 0; done < n;) {
        uint32_t most = writer->n_tables ? allowed() : 10, some = n - done < most ? n - done : most;
        assert_true(some > 0);
        testpeer_inserted(writer, "t", first + done, some, 1);
        done += some;
    }
}

static uint64_t ask(struct testpeer *self, uint64_t id, uint32_t count, int64_t timeout_ms, int flags)
{
    return testpeer_sample_as(self, id, "t", count, timeout_ms, flags);
}

/* What a reply says of its items. */
struct selection {
    size_t n;
    uint64_t key[256], table_size;
    double priority[256], probability[256];
    uint32_t times_sampled[256];
    bool partial;
};

static struct selection selection(const struct testpeer_answer *answer)
{
    struct selection out = {0};
    assert_int_equal(answer->status, RP_OK);
    const Replay__SampleReply *reply = answer->reply->sample;
    out.n = reply->n_key;
    assert_true(out.n <= 256);
    for (uint32_t i = 0; i < out.n; i++) {
        sampled_check(answer, i);
        out.key[i] = reply->key[i];
        out.priority[i] = reply->priority[i];
        out.probability[i] = reply->probability[reply->n_probability == out.n ? i : 0];
        out.times_sampled[i] = sampled_u32(reply->times_sampled, reply->n_times_sampled, i);
    }
    out.table_size = reply->table_size;
    out.partial = reply->partial;
    return out;
}

/* The reply is lost with its connection; the answer to the retry is given. */
static struct testpeer_answer *lose_and_retry(uint64_t id, uint32_t count, int flags)
{
    embed_settle(&embed);
    testpeer_forget(peer);
    testpeer_reconnect(peer);
    return testpeer_await(peer, ask(peer, id, count, 0, flags));
}

TEST(a_retry_gets_the_same_selection)
{
    static const char *const tables[] = {
        "max_size: 100, limiter: {kind: none}",
        "max_size: 100, sampler: {kind: prioritized, exponent: 0.7}, limiter: {kind: none}",
        "max_size: 100, max_times_sampled: 3, limiter: {kind: none}", QUEUE};
    for (uint32_t i = 0; i < 4; i++) {
        begin_kept(tables[i], NULL);
        for (uint64_t key = 1; key <= 50; key++)
            testpeer_insert(writer, "t", key, 1, (double)(key % 7 + 1));
        embed_settle(&embed);
        static struct selection first, again;
        first = selection(testpeer_await(peer, ask(peer, 0, 20, 0, 0)));
        assert_int_equal(first.n, 20);
        uint64_t id = peer->next_id, samples = table()->limiter.samples;
        for (uint64_t key = 1; key <= 50; key++)
            testpeer_update(peer, "t", 1, &key, &(double){100});
        ask(peer, 0, 20, 0, 0); /* others come in between */
        uint64_t counted = samples + 20;
        for (int times = 0; times < 3; times++) {
            again = selection(lose_and_retry(id, 20, 0));
            assert_memory_equal(&first, &again, sizeof first);
            assert_int_equal(table()->limiter.samples, counted);
        }
        embed_stop(&embed);
    }
}

TEST(items_that_have_gone_are_left_out, NULL, end)
{
    begin_kept("max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}", NULL);
    insert(1, 5);
    static struct selection first, again;
    uint64_t id = ask(peer, 0, 5, 0, DISTINCT);
    first = selection(testpeer_await(peer, id));
    assert_int_equal(first.n, 5);
    testpeer_delete(writer, "t", 2, (uint64_t[]){2, 4});
    struct testpeer_answer *answer = lose_and_retry(id, 5, DISTINCT);
    again = selection(answer);
    assert_int_equal(again.n, 3);
    assert_int_equal(again.key[0] * 100 + again.key[1] * 10 + again.key[2], 135);
    assert_true(again.partial);
    assert_true(facts_within(answer->text, "of the 5 items of the first answer 2 have been removed"));
    assert_int_equal(table()->limiter.samples, 5);
    /* With nothing left of it, it is a new sample. */
    testpeer_delete(writer, "t", 3, (uint64_t[]){1, 3, 5});
    insert(10, 5);
    again = selection(lose_and_retry(id, 5, DISTINCT));
    assert_int_equal(again.n, 5);
    assert_int_equal(again.key[0], 10);
    assert_int_equal(table()->limiter.samples, 10);
}

TEST(what_is_settled_is_forgotten_and_refused, NULL, end)
{
    begin_kept(QUEUE, NULL);
    insert(1, 20);
    uint64_t ids[4];
    for (uint32_t i = 0; i < 4; i++) {
        ids[i] = ask(peer, 0, 5, 0, 0);
        assert_int_equal(testpeer_await(peer, ids[i])->status, RP_OK);
    }
    assert_int_equal(embed.broker->store.chunks, 20);
    testpeer_settled(peer, ids[1]);
    assert_int_equal(embed.broker->store.chunks, 10);
    assert_int_equal(selection(lose_and_retry(ids[2], 5, 0)).key[0], 11);
    /* A request that comes late, by a connection that is long gone, takes nothing. */
    insert(100, 5);
    struct testpeer_answer *answer = lose_and_retry(ids[0], 5, 0);
    assert_int_equal(answer->status, RP_FAILED_PRECONDITION);
    assert_int_equal(table()->in.size, 5);
    testpeer_settled(peer, ids[0]); /* it does not go back */
    testpeer_settled(peer, ids[3]);
    assert_int_equal(embed.broker->store.chunks, 5);
    assert_int_equal(embed.broker->samples.kept.list.bytes, 0);
    assert_int_equal(table()->stats.orphaned_picks, 0);
}

TEST(another_sample_needs_another_id, NULL, end)
{
    begin_kept(QUEUE, NULL);
    insert(1, 20);
    uint64_t id = ask(peer, 0, 5, 0, 0);
    testpeer_await(peer, id);
    struct testpeer_answer *answer = lose_and_retry(id, 6, 0);
    assert_int_equal(answer->status, RP_INVALID_ARGUMENT);
    assert_true(facts_within(answer->text, "sample of 5 items of table 't'"));
    answer = lose_and_retry(id, 5, FLEXIBLE);
    testpeer_refused(answer, RP_INVALID_ARGUMENT, "with other flags");
}

static uint64_t count_of(bool answered);

TEST(only_the_last_ones_of_a_client_are_kept, NULL, end)
{
    begin_kept(QUEUE, NULL);
    for (uint64_t key = 0; key < 5000; key += 500)
        insert(1 + key, 500);
    uint64_t first = peer->next_id + 1;
    for (uint32_t i = 0; i < 100; i++) {
        testpeer_await(peer, ask(peer, 0, 2, 0, 0));
        testpeer_forget(peer);
    }
    assert_int_equal(count_of(true), KEPT_PER_CLIENT);
    assert_int_equal(selection(lose_and_retry(first + 99, 2, 0)).key[0], 199);
    assert_int_equal(selection(lose_and_retry(first + 40, 2, 0)).key[0], 81);
    assert_int_equal(selection(lose_and_retry(first, 2, 0)).key[0], 201); /* forgotten, so it is a new one */
    /* Who says what it has read may leave more unread. */
    testpeer_settled(peer, first + 99);
    assert_int_equal(count_of(true), 0);
    for (uint32_t i = 0; i < KEPT_SETTLING + 10; i++) {
        testpeer_await(peer, ask(peer, 0, 2, 0, 0));
        testpeer_forget(peer);
    }
    assert_int_equal(count_of(true), KEPT_SETTLING);
}

TEST(all_together_stay_within_their_budget, NULL, end)
{
    begin_kept("max_size: 1000, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: none}",
               "memory_limit: 64MiB\n");
    testpeer_close(writer);
    writer = testpeer_new(&embed);
    static const struct testpeer_column column = {"x", "uint8", 1, {200000, 0}, 200000};
    testpeer_open_with(writer, false, &column, 1);
    uint64_t budget = embed.broker->samples.kept.budget;
    uint64_t first = peer->next_id + 1;
    for (uint64_t key = 1; key <= 40; key++) {
        testpeer_insert_large(writer, "t", key, 200000, true);
        testpeer_heartbeat(writer, 0, false);
        struct testpeer_answer *answer = testpeer_good(peer, ask(peer, 0, 1, 1000, 0));
        assert_int_equal(answer->reply->sample->key[0], key);
        testpeer_forget(peer);
        assert_true(embed.broker->samples.kept.list.bytes <= budget);
    }
    assert_true(embed.broker->store.chunks >= 15 && embed.broker->store.chunks <= 20);
    /* The newest is there, the first is not. */
    testpeer_reconnect(peer);
    assert_int_equal(testpeer_await(peer, ask(peer, first + 39, 1, 0, 0))->reply->sample->key[0], 40);
    assert_int_equal(testpeer_await(peer, ask(peer, first, 1, 0, 0))->status, RP_DEADLINE_EXCEEDED);
}

/* ---- left behind ---- */

/* As the monitor does it: inproc peers have no descriptor. */
static void lose_connections(void)
{
    embed_settle(&embed);
    while (embed.broker->peers.waits.first)
        wait_cancel(embed.broker->peers.waits.first, RP_UNAVAILABLE, "lost");
    testpeer_forget(peer);
    testpeer_reconnect(peer);
}

/* The time for which a client is remembered begins when its request ends, not when it was sent. */
TEST(a_long_wait_does_not_shorten_the_memory, NULL, end)
{
    begin_kept(QUEUE, NULL);
    insert(1, 3);
    selection(testpeer_await(peer, ask(peer, 0, 1, 0, 0))); /* it is known from now on */
    testpeer_waits(peer, ask(peer, 0, 5, NO_TIMEOUT, 0));
    embed_advance(&embed, 1000 * (60 * 10 - 5)); /* nearly session.tombstone */
    lose_connections();
    embed_advance(&embed, 1000 * 60);
    assert_int_equal(table()->stats.orphaned_picks, 0);
    assert_int_equal(count_of(false), 1);
}

/* Also beside another one that has picked the same items, and waits, too. */
TEST(a_distinct_batch_goes_on_without_what_it_has, NULL, end)
{
    begin_kept("max_size: 100, limiter: {kind: none}", NULL);
    insert(1, 5);
    uint64_t id = testpeer_waits(peer, ask(peer, 0, 8, NO_TIMEOUT, DISTINCT));
    lose_connections();
    uint64_t other = testpeer_waits(writer, ask(writer, 0, 8, NO_TIMEOUT, DISTINCT));
    ask(peer, id, 8, NO_TIMEOUT, DISTINCT);
    insert(6, 2);
    assert_null(testpeer_poll(peer, id));
    insert(8, 1);
    const struct selection got[] = {selection(testpeer_await(peer, id)), selection(testpeer_await(writer, other))};
    uint32_t seen[2] = {0};
    for (uint32_t i = 0; i < 16; i++)
        seen[i / 8] |= 1u << got[i / 8].key[i % 8];
    assert_true(seen[0] == 0x1fe && seen[1] == 0x1fe);
}

TEST(a_stop_leaves_picks_behind, NULL, end)
{
    begin_kept(QUEUE, NULL);
    insert(1, 2);
    testpeer_waits(peer, ask(peer, 0, 5, NO_TIMEOUT, 0));
    assert_int_equal(count_of(false), 1); /* while it waits, too */
    broker_drain(embed.broker);
    assert_int_equal(embed.broker->peers.waits.count, 0);
    assert_int_equal(count_of(false), 1);
    assert_int_equal(table()->stats.orphaned_picks, 0);
}

/* Also behind one that was known before them, and is still there. */
TEST(clients_that_stay_away_are_forgotten, NULL, end)
{
    begin_kept(QUEUE, "session: {expiry: 5s}\n");
    insert(1, 5);
    testpeer_await(writer, ask(writer, 0, 1, 0, 0));
    testpeer_await(peer, ask(peer, 0, 2, 0, 0));
    testpeer_waits(peer, ask(peer, 0, 5, NO_TIMEOUT, 0));
    lose_connections();
    for (uint32_t i = 0; i < 3; i++) {
        embed_advance(&embed, 60000);
        testpeer_counter(peer, "here", 1);
        testpeer_counter(writer, "here", 1);
    }
    assert_int_equal(count_of(true) + count_of(false), 3);
    assert_int_equal(embed.broker->store.chunks, 5);
    for (uint32_t i = 0; i < 120; i++) {
        embed_advance(&embed, 1000);
        testpeer_counter(writer, "here", 1);
    }
    assert_int_equal(count_of(true) + count_of(false), 1);
    assert_int_equal(embed.broker->store.chunks, 1);
    assert_int_equal(table()->stats.orphaned_picks, 2);
}

/* A message that was on its way by an older connection must not take the answer there. */
TEST(a_late_copy_does_not_take_the_answer_away, NULL, end)
{
    begin_kept(QUEUE, TCP);
    struct testpeer *older = testpeer_new(&embed);
    testpeer_counter(older, "here", 1);
    testpeer_counter(peer, "here", 1);
    struct testpeer *newer = testpeer_new(&embed);
    testpeer_counter(newer, "here", 1);
    older->client = newer->client;
    ask(newer, 77, 1, NO_TIMEOUT, 0);
    for (int i = 0; i < 5000 && embed.broker->peers.waits.count < 1; i++)
        broker_turn(embed.broker, 1);
    ask(older, 77, 1, NO_TIMEOUT, 0);
    testpeer_counter(older, "here", 1); /* the broker has read it */
    testpeer_insert(writer, "t", 1, 1, 1);
    assert_int_equal(testpeer_await(newer, 77)->reply->sample->key[0], 1);
}

/* ---- checkpoint and restore ---- */

static void count_one(void *ctx, const struct kept_image *kept)
{
    uint64_t *counts = ctx;
    counts[kept->info.answered]++;
    for (uint32_t i = 0; i < kept->picks.n; i++) /* all arrays are there */
        counts[2] += kept->picks.key[i] + kept->picks.age_ns[i] + kept->picks.layout[i] + kept->picks.chunks[i];
}

static uint64_t count_of(bool answered)
{
    uint64_t counts[3] = {0};
    samples_each(&embed.broker->samples, count_one, counts);
    return counts[answered];
}

/* A broker that was killed, with a checkpoint or with the journal alone, goes on with what it had given away. */
TEST(what_is_restored_is_as_it_was)
{
    for (int how = 0; how < 4; how++) {
        const char *line = how / 2 ? QUEUE : "max_size: 100, limiter: {kind: queue}";
        struct twin_folder folder;
        twin_folder_init(&folder);
        begin_kept(line, twin_config(&folder, NULL));
        insert(1, 12);
        uint64_t id = ask(peer, 0, 5, 0, 0), client = peer->client;
        static struct selection first, again;
        first = selection(testpeer_await(peer, id));
        uint64_t left = testpeer_waits(peer, ask(peer, 0, 9, NO_TIMEOUT, 0));
        assert_int_equal(count_of(true) + count_of(false), 2);
        if (how % 2)
            twin_checkpoint(&embed);
        twin_kill(&embed);
        begin_kept(line, twin_config(&folder, NULL));
        peer->client = client;
        again = selection(lose_and_retry(id, 5, 0));
        assert_memory_equal(&first, &again, sizeof first);
        ask(peer, left, 9, NO_TIMEOUT, 0);
        insert(20, 2);
        again = selection(testpeer_await(peer, left));
        assert_int_equal(again.n, 9);
        if (how / 2)
            assert_int_equal(again.key[0] * 10000 + again.key[6] * 100 + again.key[8], 61221);
        embed_stop(&embed);
        twin_folder_fini(&folder);
    }
}

/* ---- against a model ---- */

#define CLIENTS 4u
#define MANY 4000u

/* Of each request: what its first answer said. */
struct known {
    uint64_t id;
    uint32_t count, n;
    uint64_t key[8];
    bool answered, waits;
};

struct player {
    struct testpeer *peer;
    struct known known[MANY];
    uint32_t n;
    uint32_t settled; /* those before it are */
};

static struct player players[CLIENTS];
static uint32_t times_given[MANY * 4];

/* Answers that have come: the first is noted, further ones must be the same. */
static void note_answers(struct player *player)
{
    testpeer_read(player->peer);
    for (struct testpeer_answer *answer = player->peer->answers; answer; answer = answer->next) {
        struct known *known = NULL;
        for (uint32_t i = player->settled; i < player->n && !known; i++)
            if (player->known[i].id == answer->id)
                known = &player->known[i];
        if (!known || answer->status == RP_UNAVAILABLE)
            continue;
        assert_int_equal(answer->status, RP_OK);
        const Replay__SampleReply *reply = answer->reply->sample;
        if (!known->answered) {
            known->answered = true;
            known->waits = false;
            known->n = (uint32_t)reply->n_key;
            for (uint32_t i = 0; i < known->n; i++) {
                assert_true(i == 0 || reply->key[i] > reply->key[i - 1]); /* a retry goes on behind what it had */
                known->key[i] = reply->key[i];
                times_given[reply->key[i]]++;
            }
        }
        assert_int_equal(known->n, reply->n_key);
        assert_memory_equal(known->key, reply->key, known->n * 8);
    }
    testpeer_forget(player->peer);
}

/* Whatever is lost and asked for again: every item of a queue is given to one request, and none is given to none. */
TEST(a_queue_loses_nothing, NULL, end)
{
    struct rng rng = naive_rng(__func__);
    begin_kept(QUEUE, NULL);
    memset(players, 0, sizeof players);
    memset(times_given, 0, sizeof times_given);
    for (uint32_t i = 0; i < CLIENTS; i++)
        players[i].peer = testpeer_new(&embed);
    uint64_t inserted = 0;
    for (uint32_t step = 0; step < 3000; step++) {
        struct player *player = &players[rng_below(&rng, CLIENTS)];
        switch (rng_below(&rng, 8)) {
        case 0:
        case 1: {
            uint32_t n = 1 + (uint32_t)rng_below(&rng, 6);
            insert(inserted + 1, n);
            inserted += n;
            break;
        }
        case 2:
        case 3:
            if (player->n - player->settled < 8) {
                struct known *known = &player->known[player->n++];
                known->count = 1 + (uint32_t)rng_below(&rng, 6);
                known->id = ask(player->peer, 0, known->count, NO_TIMEOUT, 0);
                known->waits = true;
            }
            break;
        case 4: /* all answers under way are lost; what is not answered is asked for again, and some of the rest */
            embed_settle(&embed);
            for (struct wait *wait = embed.broker->peers.waits.first, *next; wait; wait = next) {
                next = wait->next;
                if (wait->client == player->peer->client)
                    wait_cancel(wait, RP_UNAVAILABLE, "lost");
            }
            testpeer_forget(player->peer);
            testpeer_reconnect(player->peer);
            for (uint32_t i = player->settled; i < player->n; i++)
                if (!player->known[i].answered || rng_below(&rng, 2))
                    ask(player->peer, player->known[i].id, player->known[i].count, NO_TIMEOUT, 0);
            break;
        case 5: {
            uint32_t before = player->settled;
            while (player->settled < player->n && player->known[player->settled].answered)
                player->settled++;
            if (player->settled > before)
                testpeer_settled(player->peer, player->known[player->settled - 1].id);
            break;
        }
        default:
            embed_settle(&embed);
            note_answers(player);
        }
    }
    /* Those who still wait get what they wait for; then all is given. */
    for (uint32_t round = 0; round < 100; round++) {
        bool waits = false;
        for (uint32_t i = 0; i < CLIENTS; i++) {
            lose_connections();
            testpeer_reconnect(players[i].peer);
            for (uint32_t k = players[i].settled; k < players[i].n; k++)
                if (!players[i].known[k].answered)
                    ask(players[i].peer, players[i].known[k].id, players[i].known[k].count, NO_TIMEOUT, 0);
            embed_settle(&embed);
            note_answers(&players[i]);
            for (uint32_t k = players[i].settled; k < players[i].n; k++)
                waits |= !players[i].known[k].answered;
        }
        if (!waits)
            break;
        insert(inserted + 1, 50);
        inserted += 50;
    }
    uint64_t given = 0;
    for (uint64_t key = 1; key <= inserted; key++) {
        assert_true(times_given[key] <= 1);
        given += times_given[key];
    }
    assert_int_equal(given + table()->in.size + table()->n_waiting_items, inserted);
    assert_int_equal(given, table()->limiter.samples);
    assert_int_equal(table()->stats.orphaned_picks, 0);
}
