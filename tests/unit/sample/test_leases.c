/* Leases: items that samplers have, until they are acknowledged or return. */

#include <time.h>

#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define QUEUE "  - {name: t, max_size: 8, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}\n"

enum { ACK = WIRE_LEASE_ACK, RELEASE = WIRE_LEASE_RELEASE, TOUCH = WIRE_LEASE_TOUCH };

static struct table *table(struct embed *embed)
{
    return embed_table(embed, "t");
}

static struct testpeer *worker(struct embed *embed, uint32_t lease_ms)
{
    struct testpeer *peer = testpeer_new(embed);
    peer->lease_ms = lease_ms;
    return peer;
}

static struct testpeer *fill(struct embed *embed, uint64_t first, uint32_t n)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_insert(peer, "t", first, n, 1);
    embed_settle(embed);
    return peer;
}

/* Takes n items, and checks that they are those from `first` on. */
static void take(struct testpeer *peer, uint64_t first, uint32_t n, uint32_t delivery)
{
    const struct testpeer_answer *answer = testpeer_sampled(peer, "t", n);
    const Replay__SampleReply *reply = answer->reply->sample;
    assert_int_equal(reply->n_key, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(reply->key[i], first + i);
        assert_int_equal(sampled_u32(reply->times_sampled, reply->n_times_sampled, i), delivery);
        sampled_check(answer, i);
    }
}

/* Says what becomes of n items from `first` on, and checks how many of them were the peer's. */
static void say(struct testpeer *peer, uint32_t op, uint64_t first, uint32_t n, uint32_t applied)
{
    uint64_t keys[64];
    for (uint32_t i = 0; i < n; i++)
        keys[i] = first + i;
    const struct testpeer_answer *answer = testpeer_lease(peer, "t", op, 1000, n, keys);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(answer->reply->change->applied, applied);
    assert_int_equal(answer->reply->change->missing, n - applied);
    assert_int_equal(answer->text[0] != '\0', applied < n);
}

static void expect_counts(struct embed *embed, uint32_t size, uint32_t leased, uint64_t samples)
{
    embed_settle(embed);
    assert_int_equal(table(embed)->in.size, size);
    assert_int_equal(table(embed)->in.leased, leased);
    assert_int_equal(table(embed)->limiter.samples, samples);
}

EMBED_TEST(an_acknowledged_item_leaves_and_counts_once, QUEUE, NULL)
{
    fill(embed, 1, 5);
    struct testpeer *peer = worker(embed, 1000);
    take(peer, 1, 3, 1);
    expect_counts(embed, 5, 3, 0);
    say(peer, ACK, 1, 2, 2);
    expect_counts(embed, 3, 1, 2);
    say(peer, ACK, 1, 3, 1); /* once */
    expect_counts(embed, 2, 0, 3);
    assert_null(embed->broker->samples.leases.holders);
    take(peer, 4, 2, 1);
    assert_int_equal(table(embed)->stats.returned, 0);
}

EMBED_TEST(what_is_not_acknowledged_returns_first_in_line, QUEUE, NULL)
{
    fill(embed, 1, 6);
    struct testpeer *peer = worker(embed, 1000), *other = worker(embed, 1000);
    take(peer, 1, 2, 1);
    take(peer, 3, 2, 1);
    embed_advance(embed, 999);
    expect_counts(embed, 6, 4, 0);
    embed_advance(embed, 1);
    expect_counts(embed, 6, 0, 0);
    say(peer, ACK, 1, 4, 0); /* too late */
    take(other, 1, 4, 2);
    take(other, 5, 2, 1);
    say(other, ACK, 1, 6, 6);
    expect_counts(embed, 0, 0, 6);
    assert_int_equal(table(embed)->stats.returned, 4);
}

EMBED_TEST(a_client_releases_and_touches_its_own_items, QUEUE, NULL)
{
    fill(embed, 1, 6);
    struct testpeer *peer = worker(embed, 600), *other = worker(embed, 600);
    take(peer, 1, 3, 1);
    say(other, ACK, 1, 3, 0);
    say(other, RELEASE, 1, 3, 0);
    say(peer, RELEASE, 2, 1, 1);
    expect_counts(embed, 6, 2, 0);
    embed_advance(embed, 500);
    say(peer, TOUCH, 1, 1, 1); /* both of its items */
    embed_advance(embed, 999);
    expect_counts(embed, 6, 2, 0);
    take(other, 2, 1, 2);
    say(other, ACK, 2, 1, 1);
    embed_advance(embed, 1);
    expect_counts(embed, 5, 0, 1);
    take(other, 1, 1, 2);
}

/* A queue's bound holds for what is not done, and a returned item does not exceed it. */
EMBED_TEST(a_queue_is_full_of_what_is_not_done, QUEUE, NULL)
{
    struct testpeer *writer = fill(embed, 1, 8), *peer = worker(embed, 1000);
    take(peer, 1, 8, 1);
    testpeer_insert(writer, "t", 9, 1, 1);
    embed_settle(embed);
    assert_int_equal(table(embed)->n_waiting_items, 1);
    const Replay__WhyReply *why = testpeer_why(peer);
    assert_int_equal(why->n_waits, 1);
    assert_non_null(strstr(why->waits[0]->text, "8 items are under lease"));
    say(peer, ACK, 3, 1, 1);
    embed_settle(embed);
    assert_int_equal(table(embed)->n_waiting_items, 0);
    say(peer, RELEASE, 1, 8, 7);
    expect_counts(embed, 8, 0, 1);
    assert_int_equal(table(embed)->stats.evicted, 0);
    take(peer, 1, 2, 2);
}

EMBED_TEST(a_sampler_that_waits_is_told_who_has_the_items, QUEUE, NULL)
{
    fill(embed, 1, 3);
    struct testpeer *peer = worker(embed, 4000), *other = worker(embed, 1000);
    take(peer, 1, 3, 1);
    embed_advance(embed, 1500);
    uint64_t id = testpeer_sample(other, "t", 1, NO_TIMEOUT, 0);
    embed_settle(embed);
    const Replay__WhyReply *why = testpeer_why(peer);
    char text[200];
    snprintf(text, sizeof text, "3 items are under lease, of which client %016llx has 3; the first lease ends in 2.5 s",
             (unsigned long long)embed->broker->samples.leases.holders->next->client);
    assert_int_equal(why->n_waits, 1);
    if (!strstr(why->waits[0]->text, text))
        fail_msg("%s", why->waits[0]->text);
    say(peer, RELEASE, 2, 1, 1);
    assert_int_equal(testpeer_await(other, id)->reply->sample->key[0], 2);
}

EMBED_TEST(a_retry_gets_the_same_items_and_the_same_answer, QUEUE, NULL)
{
    fill(embed, 1, 4);
    struct testpeer *peer = worker(embed, 1000);
    for (uint32_t round = 0; round < 2; round++) {
        Replay__Sample sample = REPLAY__SAMPLE__INIT;
        sample.table = testpeer_text("t");
        sample.count = 2;
        sample.lease_ms = 1000;
        TESTPEER_REQUEST(request, SAMPLE, sample, &sample);
        const struct testpeer_answer *answer = testpeer_await(peer, testpeer_ask_with(peer, &request, 77, NULL, 0));
        assert_int_equal(answer->reply->sample->key[0], 1);
        assert_int_equal(answer->reply->sample->n_key, 2);
        testpeer_forget(peer);
        embed_advance(embed, 800); /* the retry begins the time anew */
        expect_counts(embed, 4, 2, 0);
    }
    for (uint32_t round = 0; round < 2; round++) {
        Replay__Lease lease = REPLAY__LEASE__INIT;
        lease.table = testpeer_text("t");
        lease.n_key = 2;
        lease.key = (uint64_t[]){1, 2};
        TESTPEER_REQUEST(request, LEASE, lease, &lease);
        const struct testpeer_answer *answer = testpeer_await(peer, testpeer_ask_with(peer, &request, 78, NULL, 0));
        assert_int_equal(answer->reply->change->applied, 2);
        testpeer_forget(peer);
        expect_counts(embed, 2, 0, 2);
    }
}

/* Once its lease has ended, a retry is a new sample. */
EMBED_TEST(a_retry_that_comes_too_late_gets_other_items, QUEUE, NULL)
{
    fill(embed, 1, 4);
    struct testpeer *peer = worker(embed, 1000), *other = worker(embed, 1000);
    uint64_t id = 9;
    Replay__Sample sample = REPLAY__SAMPLE__INIT;
    sample.table = testpeer_text("t");
    sample.count = 2;
    sample.lease_ms = 1000;
    TESTPEER_REQUEST(request, SAMPLE, sample, &sample);
    testpeer_await(peer, testpeer_ask_with(peer, &request, id, NULL, 0));
    testpeer_forget(peer);
    embed_advance(embed, 1000);
    take(other, 1, 2, 2);
    TESTPEER_REQUEST(again, SAMPLE, sample, &sample);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_ask_with(peer, &again, id, NULL, 0));
    assert_int_equal(answer->reply->sample->key[0], 3);
    expect_counts(embed, 4, 4, 0);
}

/* What was never sent is not delivered: it returns at once, and does not count. */
EMBED_TEST(a_sample_that_is_given_up_returns_its_items, QUEUE, NULL)
{
    fill(embed, 1, 3);
    struct testpeer *peer = worker(embed, 1000), *other = worker(embed, 1000);
    uint64_t id = testpeer_sample(peer, "t", 5, NO_TIMEOUT, 0);
    expect_counts(embed, 3, 3, 0);
    embed_advance(embed, 5000); /* its time has not begun */
    expect_counts(embed, 3, 3, 0);
    assert_int_equal(testpeer_cancel(peer, 1, &id), 1);
    assert_int_equal(testpeer_await(peer, id)->status, RP_CANCELLED);
    expect_counts(embed, 3, 0, 0);
    take(other, 1, 3, 1);
    assert_int_equal(table(embed)->stats.orphaned_picks, 0);
}

EMBED_TEST(items_leave_in_other_ways_too, QUEUE, NULL)
{
    struct testpeer *writer = fill(embed, 1, 4), *peer = worker(embed, 1000);
    take(peer, 1, 4, 1);
    testpeer_delete(writer, "t", 1, (uint64_t[]){2});
    expect_counts(embed, 3, 3, 0);
    say(peer, ACK, 1, 2, 1);
    testpeer_reset(writer, "t");
    expect_counts(embed, 0, 0, 0);
    testpeer_insert(writer, "t", 11, 4, 1);
    embed_settle(embed);
    say(peer, ACK, 3, 2, 0);
    embed_advance(embed, 2000);
    take(peer, 11, 4, 1);
    assert_int_equal(table(embed)->stats.returned, 0);
}

#define DEAD                                                                                                           \
    "  - {name: t, max_size: 8, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue},\n"                \
    "     max_deliveries: 2, dead_table: dead}\n"                                                                      \
    "  - {name: dead, max_size: 3, sampler: {kind: fifo}, limiter: {kind: none}}\n"

EMBED_TEST(what_nobody_acknowledges_goes_to_the_dead, DEAD, NULL)
{
    struct testpeer *writer = fill(embed, 1, 8), *peer = worker(embed, 1000);
    for (uint32_t delivery = 1; delivery <= 2; delivery++) {
        take(peer, 1, 2, delivery);
        say(peer, RELEASE, 1, 2, 2);
    }
    expect_counts(embed, 6, 0, 0);
    const struct table *dead = embed_table(embed, "dead");
    assert_int_equal(dead->in.size, 2);
    assert_true(table_find(dead, 1) != UINT32_MAX && table_find(dead, 2) != UINT32_MAX);
    assert_int_equal(table(embed)->stats.dead, 2);
    testpeer_insert(writer, "t", 9, 2, 1); /* the queue has room for them */
    expect_counts(embed, 8, 0, 0);
    take(peer, 3, 1, 1);
    say(peer, ACK, 3, 1, 1);
    const Replay__TableInfo *info = testpeer_table_info(writer, "t");
    assert_int_equal(info->dead, 2);
    assert_int_equal(info->returned, 2);
    assert_int_equal(info->leased, 0);
}

EMBED_TEST(leases_are_for_queues_alone,
           "  - {name: t, max_size: 8, sampler: {kind: fifo}, limiter: {kind: none}}\n"
           "  - {name: q, max_size: 8, max_times_sampled: 1, limiter: {kind: none}}\n",
           NULL)
{
    fill(embed, 1, 4);
    struct testpeer *peer = worker(embed, 1000);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 1, 0, 0));
    assert_int_equal(answer->status, RP_FAILED_PRECONDITION);
    assert_non_null(strstr(answer->text, "max_times_sampled: 1"));
    peer->lease_ms = WIRE_LEASE_MOST_MS + 1;
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "q", 1, 0, 0))->status, RP_INVALID_ARGUMENT);
    peer->lease_ms = 10;
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "q", 1, 0, PAID))->status, RP_INVALID_ARGUMENT);
    peer->client = 0;
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "q", 1, 0, 0))->status, RP_INVALID_ARGUMENT);
    peer->client = 5;
    assert_int_equal(testpeer_lease(peer, "q", 3, 0, 0, NULL)->status, RP_UNSUPPORTED);
    assert_int_equal(testpeer_lease(peer, "q", TOUCH, 0, 0, NULL)->status, RP_INVALID_ARGUMENT);
    assert_int_equal(testpeer_lease(peer, "none", ACK, 0, 0, NULL)->status, RP_NOT_FOUND);
}

/* ---- a restart ---- */

/* Kills the broker and starts another from its files. The peers that were the client's go on. */
static void restart(struct embed *embed, struct twin_folder *folder, bool checkpoint)
{
    embed_settle(embed);
    if (checkpoint)
        twin_checkpoint(embed);
    twin_kill(embed);
    embed_start(embed, DEAD, twin_config(folder, NULL));
}

TEST(leases_outlive_the_broker)
{
    for (uint32_t checkpoint = 0; checkpoint < 2; checkpoint++) {
        struct twin_folder folder;
        struct embed embed;
        twin_folder_init(&folder);
        embed_start(&embed, DEAD, twin_config(&folder, NULL));
        fill(&embed, 1, 7);
        struct testpeer *peer = worker(&embed, 1000), *waits = worker(&embed, 1000);
        uint64_t client = peer->client;
        take(peer, 1, 4, 1);
        say(peer, ACK, 1, 1, 1);
        say(peer, RELEASE, 2, 1, 1);
        take(peer, 2, 1, 2);
        testpeer_sample(waits, "t", 6, NO_TIMEOUT, 0); /* gets 5 to 7, and no answer */
        expect_counts(&embed, 6, 6, 1);
        restart(&embed, &folder, checkpoint);
        expect_counts(&embed, 6, 3, 1);
        peer = worker(&embed, 1000);
        peer->client = client;
        peer->next_id = 100;
        say(peer, ACK, 3, 1, 1);
        embed_advance(&embed, 999);
        expect_counts(&embed, 5, 2, 2);
        embed_advance(&embed, 1);
        assert_int_equal(embed_table(&embed, "dead")->in.size, 1); /* item 2, for the second time */
        expect_counts(&embed, 4, 0, 2);
        restart(&embed, &folder, checkpoint);
        expect_counts(&embed, 4, 0, 2);
        peer = worker(&embed, 1000);
        static const struct {
            uint64_t key;
            uint32_t delivery;
        } left[] = {{5, 1}, {6, 1}, {7, 1}, {4, 2}}; /* in the order in which they returned */
        for (uint32_t i = 0; i < 4; i++)
            take(peer, left[i].key, 1, left[i].delivery);
        embed_stop(&embed);
        twin_folder_fini(&folder);
    }
}

/* Items return from leases before and after a restart. Notes the keys in the order in which they are sampled then. */
static void sample_order(const char *sampler, uint32_t how, uint64_t *keys)
{
    enum { STAYS, JOURNAL, CHECKPOINT };
    struct twin_folder folder;
    struct embed embed;
    char tables[300];
    snprintf(tables, sizeof tables,
             "  - {name: t, max_size: 12, max_times_sampled: 1, sampler: {kind: %s}, remover: {kind: %s}, "
             "limiter: {kind: queue}}\n",
             sampler, sampler);
    twin_folder_init(&folder);
    embed_start(&embed, tables, twin_config(&folder, NULL));
    struct testpeer *writer = fill(&embed, 1, 3), *peer = worker(&embed, 1000);
    uint64_t client = peer->client;
    testpeer_sampled(peer, "t", 3);
    say(peer, ACK, 1, 3, 3);
    testpeer_insert(writer, "t", 4, 8, 1); /* in the slots of the others, the last one first */
    embed_settle(&embed);
    testpeer_sampled(peer, "t", 5);
    say(peer, RELEASE, 8, 1, 1);
    say(peer, RELEASE, 7, 1, 1);
    testpeer_update(peer, "t", 1, (uint64_t[]){9}, (double[]){1});
    testpeer_insert(writer, "t", 12, 1, 1);
    embed_settle(&embed);
    if (how == CHECKPOINT)
        twin_checkpoint(&embed);
    if (how != STAYS) {
        twin_kill(&embed);
        embed_start(&embed, tables, twin_config(&folder, NULL));
    }
    peer = worker(&embed, 1000);
    peer->client = client;
    peer->next_id = 100;
    embed_advance(&embed, 1000); /* the others return */
    for (uint32_t i = 0; i < 9; i++)
        keys[i] = testpeer_sampled(peer, "t", 1)->reply->sample->key[0];
    embed_stop(&embed);
    twin_folder_fini(&folder);
}

TEST(returned_items_keep_their_order_over_a_restart)
{
    static const char *const samplers[] = {"fifo", "lifo", "min_heap"};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t how = 1; how < 3; how++) {
            uint64_t before[9], after[9];
            sample_order(samplers[i], 0, before);
            sample_order(samplers[i], how, after);
            for (uint32_t k = 0; k < 9; k++)
                if (before[k] != after[k])
                    fail_msg("%s %u: %u. is %u, not %u", samplers[i], how, k, (uint32_t)after[k], (uint32_t)before[k]);
        }
}

/* A sample whose client did not read in time is asked for again with its id: the files do not add the picks of both. */
TEST(a_lease_that_ended_unanswered_is_forgotten)
{
    struct twin_folder folder;
    struct embed embed;
    twin_folder_init(&folder);
    embed_start(&embed, DEAD, twin_config(&folder, NULL));
    struct testpeer *writer = fill(&embed, 1, 3), *peer = worker(&embed, 1000);
    uint64_t client = peer->client, id = testpeer_sample(peer, "t", 5, NO_TIMEOUT, 0);
    expect_counts(&embed, 3, 3, 0);
    int64_t backlog = embed.config.peer_backlog_bytes;
    embed.config.peer_backlog_bytes = -1; /* the peer has not read what there is */
    testpeer_insert(writer, "t", 4, 2, 1);
    expect_counts(&embed, 5, 5, 0);
    embed_advance(&embed, 1000);
    assert_int_equal(testpeer_await(peer, id)->status, RP_DEADLINE_EXCEEDED);
    testpeer_forget(peer);
    expect_counts(&embed, 5, 0, 0);
    embed.config.peer_backlog_bytes = backlog;
    for (uint32_t round = 0; round < 2; round++) {
        Replay__Sample sample = REPLAY__SAMPLE__INIT;
        sample.table = testpeer_text("t");
        sample.count = 5;
        sample.lease_ms = 1000;
        TESTPEER_REQUEST(request, SAMPLE, sample, &sample);
        const struct testpeer_answer *answer = testpeer_await(peer, testpeer_ask_with(peer, &request, id, NULL, 0));
        assert_int_equal(answer->status, RP_OK);
        assert_int_equal(answer->reply->sample->n_key, 5);
        for (uint32_t i = 0; i < 5; i++)
            assert_int_equal(answer->reply->sample->key[i], 1 + i);
        expect_counts(&embed, 5, 5, 0);
        if (round == 0) {
            restart(&embed, &folder, false);
            peer = worker(&embed, 1000);
            peer->client = client;
        }
    }
    embed_stop(&embed);
    twin_folder_fini(&folder);
}

/* ---- clients that are gone ---- */

static int64_t cpu_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return at.tv_sec * NS_PER_S + at.tv_nsec;
}

/* Ends the leases of many clients that are gone, beside those of `others` that are not. Returns how long it took. */
static int64_t end_beside(uint64_t others)
{
    struct embed embed;
    embed_start(&embed, QUEUE, NULL);
    struct leases *leases = &embed.broker->samples.leases;
    enum { GONE = 2000 };
    for (uint64_t client = 1; client <= GONE + others; client++) {
        lease_restored(lease_restore(leases, client, 1, table(&embed), 1000000), true);
        if (client <= GONE)
            leases->holders->connection = UINT64_MAX;
    }
    leases_sweep(leases);
    assert_null(embed.broker->loop.chores.first);
    leases_sweep(leases);
    int64_t start = cpu_now();
    while (chores_run(&embed.broker->loop.chores, &embed.broker->loop.clock, 0)) {
    }
    int64_t took = cpu_now() - start;
    uint64_t left = 0;
    for (const struct lease_holder *holder = leases->holders; holder; holder = holder->next)
        left++;
    assert_int_equal(left, others);
    embed_stop(&embed);
    return took;
}

TEST(those_who_are_there_cost_nothing_when_others_are_gone)
{
    int64_t alone = end_beside(0), beside = end_beside(40000);
    if (beside > 20 * alone + 5 * NS_PER_MS)
        fail_msg("%lld ns, and %lld ns beside others", (long long)alone, (long long)beside);
}

/* ---- against a model ---- */

#define ITEMS 400u
#define WORKERS 3u

enum state { FREE, LEASED, DONE, DEAD_ITEM };
struct model_item {
    enum state state;
    uint32_t holder, deliveries;
    int64_t end_ms;
};

static uint32_t lease_number(struct embed *embed, uint64_t key)
{
    return item_lease(&table(embed)->in.items[table_find(table(embed), key)]);
}

/* Every item is in the table, under the lease of one client, done once, or dead; in the order in which it should come. */
TEST(random_leases_match_the_model)
{
    struct rng rng;
    struct embed embed;
    rng_seed(&rng, naive_seed(__func__));
    embed_start(&embed,
                "  - {name: t, max_size: 500, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue},\n"
                "     max_deliveries: 6, dead_table: dead}\n"
                "  - {name: dead, max_size: 500, limiter: {kind: none}}\n",
                NULL);
    static struct model_item items[ITEMS + 1];
    memset(items, 0, sizeof items);
    struct testpeer *writer = testpeer_opened(&embed, false), *workers[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++)
        workers[i] = worker(&embed, 0);
    uint64_t inserted = 0, done = 0, dead = 0;
    int64_t now_ms = 0;
    for (uint32_t round = 0; round < 1500; round++) {
        uint32_t w = (uint32_t)rng_below(&rng, WORKERS), dice = (uint32_t)rng_below(&rng, 10);
        if (dice < 2 && inserted + 5 <= ITEMS) {
            testpeer_insert(writer, "t", inserted + 1, 5, 1);
            testpeer_heartbeat(writer, 0, false);
            inserted += 5;
        } else if (dice < 6) {
            workers[w]->lease_ms = 1 + (uint32_t)rng_below(&rng, 100);
            const struct testpeer_answer *answer =
                testpeer_await(workers[w], testpeer_sample(workers[w], "t", 1 + (uint32_t)rng_below(&rng, 8), 0, 0));
            for (size_t i = 0; answer->status == RP_OK && i < answer->reply->sample->n_key; i++) {
                struct model_item *item = &items[answer->reply->sample->key[i]];
                assert_int_equal(item->state, FREE);
                *item = (struct model_item){LEASED, w, item->deliveries + 1, now_ms + workers[w]->lease_ms};
                assert_int_equal(sampled_u32(answer->reply->sample->times_sampled,
                                             answer->reply->sample->n_times_sampled, (uint32_t)i),
                                 item->deliveries);
            }
        } else if (dice < 9 && inserted) {
            uint32_t op = (uint32_t)rng_below(&rng, 3), applied = 0;
            uint64_t key = 1 + rng_below(&rng, inserted);
            for (uint32_t i = 0; i < 20 && items[key].state != LEASED; i++)
                key = 1 + rng_below(&rng, inserted);
            struct model_item *item = &items[key];
            w = rng_below(&rng, 4) ? item->holder : w;
            if (item->state == LEASED && item->holder == w) {
                applied = 1;
                if (op == ACK)
                    item->state = DONE;
                else if (op == RELEASE)
                    item->state = item->deliveries < 6 ? FREE : DEAD_ITEM;
                else
                    for (uint32_t i = 1; i <= inserted; i++) /* items of one lease end together */
                        if (items[i].state == LEASED && lease_number(&embed, i) == lease_number(&embed, key))
                            items[i].end_ms = now_ms + 1000;
                done += op == ACK;
                dead += item->state == DEAD_ITEM;
            }
            say(workers[w], op, key, 1, applied);
        } else {
            int64_t ms = (int64_t)rng_below(&rng, rng_below(&rng, 20) ? 20 : 1200);
            now_ms += ms;
            embed_advance(&embed, ms);
            for (uint32_t i = 1; i <= inserted; i++)
                if (items[i].state == LEASED && items[i].end_ms <= now_ms) {
                    items[i].state = items[i].deliveries < 6 ? FREE : DEAD_ITEM;
                    dead += items[i].state == DEAD_ITEM;
                }
        }
        uint32_t leased = 0;
        for (uint32_t i = 1; i <= inserted; i++) {
            uint32_t slot = table_find(embed_table(&embed, "t"), i);
            assert_int_equal(slot != UINT32_MAX, items[i].state == FREE || items[i].state == LEASED);
            leased += items[i].state == LEASED;
        }
        expect_counts(&embed, (uint32_t)(inserted - done - dead), leased, done);
        assert_int_equal(embed_table(&embed, "dead")->in.size, dead);
        for (uint32_t i = 0; i < WORKERS; i++)
            testpeer_forget(workers[i]);
    }
    assert_true(done > 50 && dead > 5);
    embed_stop(&embed);
}
