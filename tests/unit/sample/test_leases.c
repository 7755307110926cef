/* Leases: items that samplers have, until they are acknowledged or return. */

#include <time.h>

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
    testpeer_inserted(peer, "t", first, n, 1);
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

/* A queue's bound holds for what is not done, and a returned item does not exceed it. */
EMBED_TEST(a_queue_is_full_of_what_is_not_done, QUEUE, NULL)
{
    struct testpeer *writer = fill(embed, 1, 8), *peer = worker(embed, 1000);
    take(peer, 1, 8, 1);
    testpeer_inserted(writer, "t", 9, 1, 1);
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
    unsigned long long client = LIST_NEXT(LIST_FIRST(&embed->broker->samples.leases.holders), link)->client;
    assert_int_equal(why->n_waits, 1);
    assert_has(why->waits[0]->text,
               textf("3 items are under lease, of which client %016llx has 3; the first lease ends in 2.5 s", client));
    say(peer, RELEASE, 2, 1, 1);
    assert_int_equal(testpeer_await(other, id)->reply->sample->key[0], 2);
}

EMBED_TEST(a_retry_gets_the_same_items_and_the_same_answer, QUEUE, NULL)
{
    fill(embed, 1, 4);
    struct testpeer *peer = worker(embed, 1000);
    for (uint32_t round = 0; round < 2; round++) {
        const struct testpeer_answer *answer =
            testpeer_await(peer, testpeer_sample_as(peer, 77, "t", 2, NO_TIMEOUT, 0));
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
    testpeer_await(peer, testpeer_sample_as(peer, 9, "t", 2, NO_TIMEOUT, 0));
    testpeer_forget(peer);
    embed_advance(embed, 1000);
    take(other, 1, 2, 2);
    testpeer_sample_as(peer, 9, "t", 2, NO_TIMEOUT, 0);
    assert_int_equal(testpeer_await(peer, 9)->reply->sample->key[0], 3);
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
    testpeer_inserted(writer, "t", 11, 4, 1);
    say(peer, ACK, 3, 2, 0);
    embed_advance(embed, 2000);
    take(peer, 11, 4, 1);
    assert_int_equal(table(embed)->stats.returned, 0);
}

#define DEAD                                                                                                           \
    "  - {name: t, max_size: 8, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue},\n"                \
    "     max_deliveries: 2, dead_table: dead}\n"                                                                      \
    "  - {name: dead, max_size: 3, sampler: {kind: fifo}, limiter: {kind: none}}\n"

EMBED_TEST(leases_are_for_queues_alone,
           "  - {name: t, max_size: 8, sampler: {kind: fifo}, limiter: {kind: none}}\n"
           "  - {name: q, max_size: 8, max_times_sampled: 1, limiter: {kind: none}}\n",
           NULL)
{
    fill(embed, 1, 4);
    struct testpeer *peer = worker(embed, 1000);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 1, 0, 0));
    testpeer_refused(answer, RP_FAILED_PRECONDITION, "max_times_sampled: 1");
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
    const char *tables = textf("  - {name: t, max_size: 12, max_times_sampled: 1, sampler: {kind: %s}, "
                               "remover: {kind: %s}, limiter: {kind: queue}}\n",
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
    testpeer_inserted(writer, "t", 12, 1, 1);
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
        testpeer_sample_as(peer, id, "t", 5, NO_TIMEOUT, 0);
        const struct testpeer_answer *answer = testpeer_good(peer, id);
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
        lease_restored(lease_make(leases, client, 1, table(&embed), 1000000), true);
        if (client <= GONE)
            LIST_FIRST(&leases->holders)->connection = UINT64_MAX;
    }
    leases_sweep(leases);
    assert_null(embed.broker->loop.chores.first);
    leases_sweep(leases);
    int64_t start = cpu_now();
    while (chores_run(&embed.broker->loop.chores, &embed.broker->loop.clock, 0)) {
    }
    int64_t took = cpu_now() - start;
    uint64_t left = 0;
    for (const struct lease_holder *holder = LIST_FIRST(&leases->holders); holder; holder = LIST_NEXT(holder, link))
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
#define QUEUED 60u /* max_size */

enum state { FREE, LEASED, DONE, DEAD_ITEM };
struct model_item {
    enum state state;
    uint32_t holder, deliveries;
    int64_t end_ms, place; /* of its lease; in the queue: what has returned comes before what has not been taken */
    uint64_t lease, pick;  /* what was sampled or touched together; which of them it was */
};

struct model {
    struct embed embed;
    struct testpeer *workers[WORKERS];
    struct model_item items[ITEMS + 1]; /* by key */
    uint64_t inserted, done, dead, returned, leases;
    int64_t now_ms;
};

static void give_back(struct model *self, struct model_item *item)
{
    bool again = item->deliveries < 6;
    item->state = again ? FREE : DEAD_ITEM;
    item->place = INT64_MIN + (int64_t)self->returned;
    self->returned += again;
    self->dead += !again;
}

/* Returns the item that comes next: of those that can be taken, or of leases that have ended. NULL: there is none. */
static struct model_item *next_item(struct model *self, enum state state)
{
    struct model_item *best = NULL;
    for (uint64_t key = 1; key <= self->inserted; key++) {
        struct model_item *item = &self->items[key];
        if (item->state != state || (state == LEASED && item->end_ms > self->now_ms))
            continue;
        if (!best || (state == FREE                  ? item->place < best->place
                      : item->end_ms != best->end_ms ? item->end_ms < best->end_ms
                      : item->lease != best->lease   ? item->lease < best->lease
                                                     : item->pick < best->pick))
            best = item;
    }
    return best;
}

static void model_take(struct model *self, uint32_t w, struct rng *rng)
{
    struct testpeer *peer = self->workers[w];
    uint32_t want = 1 + (uint32_t)rng_below(rng, 8), i = 0;
    peer->lease_ms = 1 + (uint32_t)rng_below(rng, 100);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", want, 0, 0));
    const Replay__SampleReply *reply = answer->status == RP_OK ? answer->reply->sample : NULL;
    self->leases++;
    for (struct model_item *item; i < want && (item = next_item(self, FREE)); i++) {
        assert_true(reply && i < reply->n_key);
        assert_ptr_equal(item, &self->items[reply->key[i]]);
        *item = (struct model_item){.state = LEASED,
                                    .holder = w,
                                    .deliveries = item->deliveries + 1,
                                    .end_ms = self->now_ms + peer->lease_ms,
                                    .lease = self->leases,
                                    .pick = i};
        assert_int_equal(sampled_u32(reply->times_sampled, reply->n_times_sampled, i), item->deliveries);
    }
    assert_int_equal(reply ? reply->n_key : 0, i);
}

/* A worker says what becomes of an item, which is mostly its own. */
static void model_say(struct model *self, uint32_t w, struct rng *rng)
{
    uint32_t op = (uint32_t)rng_below(rng, 3);
    uint64_t key = 1 + rng_below(rng, self->inserted);
    for (uint32_t i = 0; i < 20 && self->items[key].state != LEASED; i++)
        key = 1 + rng_below(rng, self->inserted);
    struct model_item *item = &self->items[key];
    w = rng_below(rng, 4) ? item->holder : w;
    bool own = item->state == LEASED && item->holder == w;
    uint64_t lease = item->lease;
    if (own && op == ACK) {
        item->state = DONE;
        self->done++;
    } else if (own && op == RELEASE) {
        give_back(self, item);
    } else if (own) {
        self->leases++;
        for (uint32_t i = 1; i <= self->inserted; i++) /* items of one lease end together */
            if (self->items[i].state == LEASED && self->items[i].lease == lease) {
                self->items[i].end_ms = self->now_ms + 1000;
                self->items[i].lease = self->leases;
            }
    }
    say(self->workers[w], op, key, 1, own);
}

static void model_check(struct model *self)
{
    struct embed *embed = &self->embed;
    const struct table *dead = embed_table(embed, "dead");
    uint32_t leased = 0;
    for (uint32_t key = 1; key <= self->inserted; key++) {
        enum state state = self->items[key].state;
        assert_int_equal(table_find(table(embed), key) != UINT32_MAX, state == FREE || state == LEASED);
        assert_int_equal(table_find(dead, key) != UINT32_MAX, state == DEAD_ITEM);
        leased += state == LEASED;
    }
    expect_counts(embed, (uint32_t)(self->inserted - self->done - self->dead), leased, self->done);
    assert_true(leased || LIST_EMPTY(&embed->broker->samples.leases.holders));
    assert_int_equal(dead->in.size, self->dead);
    assert_int_equal(table(embed)->stats.dead, self->dead);
    assert_int_equal(table(embed)->stats.returned, self->returned);
    for (uint32_t i = 0; i < WORKERS; i++)
        testpeer_forget(self->workers[i]);
}

/* Every item is in the table, under the lease of one client, done once, or dead; and comes in its turn. */
TEST(random_leases_match_the_model)
{
    struct rng rng = naive_rng(__func__);
    static struct model model;
    memset(&model, 0, sizeof model);
    embed_start(&model.embed,
                "  - {name: t, max_size: 60, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue},\n"
                "     max_deliveries: 6, dead_table: dead}\n"
                "  - {name: dead, max_size: 500, limiter: {kind: none}}\n",
                NULL);
    struct testpeer *writer = testpeer_opened(&model.embed, false);
    for (uint32_t i = 0; i < WORKERS; i++)
        model.workers[i] = worker(&model.embed, 0);
    for (uint32_t round = 0; round < 1500; round++) {
        uint32_t w = (uint32_t)rng_below(&rng, WORKERS), dice = (uint32_t)rng_below(&rng, 10);
        if (dice < 2 && model.inserted + 5 <= ITEMS && model.inserted - model.done - model.dead + 5 <= QUEUED) {
            testpeer_insert(writer, "t", model.inserted + 1, 5, 1);
            testpeer_heartbeat(writer, 0, false);
            for (uint32_t i = 0; i < 5; i++, model.inserted++)
                model.items[model.inserted + 1].place = (int64_t)model.inserted;
        } else if (dice < 6) {
            model_take(&model, w, &rng);
        } else if (dice < 9 && model.inserted) {
            model_say(&model, w, &rng);
        } else {
            int64_t ms = (int64_t)rng_below(&rng, rng_below(&rng, 20) ? 20 : 1200);
            model.now_ms += ms;
            embed_advance(&model.embed, ms);
            for (struct model_item *item; (item = next_item(&model, LEASED));)
                give_back(&model, item);
        }
        model_check(&model);
    }
    assert_true(model.done > 50 && model.dead > 5);
    const Replay__TableInfo *info = testpeer_table_info(writer, "t");
    assert_int_equal(info->dead, model.dead);
    assert_int_equal(info->returned, model.returned);
    assert_int_equal(info->leased, table(&model.embed)->in.leased);
    embed_stop(&model.embed);
}
