/* How the ingest budget is shared: idle sessions leave it to those who write, nobody's promise is broken, and the sum of all
 * grants stays within it. Time moves only when a test says so. */

#include "broker/session/session.h"
#include "tests/support/naive.h"
#include "tests/support/testpeer.h"

#define TABLES                                                                                                         \
    "  - {name: blocked, max_size: 2, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}\n"          \
    "  - {name: open, max_size: 400, sampler: {kind: fifo}, limiter: {kind: none}}\n"
#define BLOCKED 0
#define OPEN 1
#define TIMES "session: {expiry: 30s}\n"
#define ITEM_BYTES 20000u
#define MESSAGE_BYTES (ITEM_BYTES + 500u)

static const struct testpeer_column image = {"x", "uint8", 1, {ITEM_BYTES}, ITEM_BYTES};

struct writer {
    struct testpeer *peer;
    uint64_t sent[2];
    uint32_t epoch;
    uint64_t told[6]; /* the totals of its newest credit: allowed_bytes may be less in the next epoch, and no other */
    bool knows;       /* gives up credit when it is asked to */
};

static struct session *session_of(const struct embed *embed, const struct writer *writer)
{
    return session_find(&embed->broker->sessions, writer->peer->session);
}

static uint64_t unused(const struct writer *self)
{
    uint64_t used = self->peer->sent_bytes + self->peer->released;
    return self->peer->credit->allowed_bytes > used ? self->peer->credit->allowed_bytes - used : 0;
}

/* The broker's account, item by item. */
static void check_account(const struct embed *embed)
{
    uint64_t sum = 0;
    uint32_t writing = 0;
    for (const struct session *s = LIST_FIRST(&embed->broker->sessions.list); s; s = LIST_NEXT(s, link)) {
        assert_true(s->tombstone || s->offered_bytes >= s->received_bytes);
        assert_true(s->received_bytes >= s->returned_bytes);
        sum += s->tombstone ? 0 : s->offered_bytes - s->returned_bytes;
        writing += s->writing;
    }
    assert_int_equal(embed->broker->sessions.granted_bytes, sum);
    assert_true(sum <= embed->broker->sessions.ingest_budget);
    assert_int_equal(embed->broker->sessions.n_writing, writing);
}

static void open_writer(struct embed *embed, struct writer *self, bool knows)
{
    *self = (struct writer){.peer = testpeer_new(embed), .knows = knows};
    testpeer_open_with(self->peer, false, &image, 1);
    self->epoch = self->peer->epoch;
}

static void beat(struct embed *embed, struct writer *self)
{
    testpeer_heartbeat(self->peer, 0, false);
    assert_int_equal(self->peer->credit->n_rejections, 0);
    if (self->knows && self->peer->credit->keep_bytes && unused(self) > self->peer->credit->keep_bytes) {
        self->peer->released += unused(self) - self->peer->credit->keep_bytes;
        testpeer_heartbeat(self->peer, 0, false);
    }
    const uint64_t totals[6] = {self->peer->credit->allowed_bytes,      self->peer->credit->received,
                                testpeer_resolved(self->peer, OPEN),    testpeer_allowed(self->peer, OPEN),
                                testpeer_resolved(self->peer, BLOCKED), testpeer_allowed(self->peer, BLOCKED)};
    for (uint32_t i = self->peer->epoch != self->epoch; i < 6; i++)
        assert_true(totals[i] >= self->told[i]);
    self->epoch = self->peer->epoch;
    memcpy(self->told, totals, sizeof totals);
    check_account(embed);
    testpeer_forget(self->peer);
}

static bool may_send(const struct writer *self, uint32_t table)
{
    if (self->sent[table] == testpeer_resolved(self->peer, table))
        return true;
    return self->sent[table] < testpeer_allowed(self->peer, table) && unused(self) >= MESSAGE_BYTES;
}

static void send(struct writer *self, uint32_t table)
{
    uint64_t key = ((uint64_t)self->peer->ordinal << 40) + ((uint64_t)table << 36) + ++self->sent[table];
    testpeer_insert_large(self->peer, table == OPEN ? "open" : "blocked", key, ITEM_BYTES, false);
}

/* Writes as fast as it may, a heartbeat for each round. */
static void write_rounds(struct embed *embed, struct writer *self, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        while (may_send(self, OPEN))
            send(self, OPEN);
        embed_settle(embed);
        beat(embed, self);
    }
}

/* Sessions that were opened and do nothing: without a connection of their own, so that there can be a thousand. */
static void open_idle(struct embed *embed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t shape = ITEM_BYTES;
        Replay__Column column = REPLAY__COLUMN__INIT, *list = &column;
        column.name = testpeer_text("x");
        column.dtype = testpeer_text("uint8");
        column.n_shape = 1;
        column.shape = &shape;
        struct columns *columns = must(columns_new(&list, 1, &err));
        struct identity *anyone = &embed->broker->peers.identities.anyone;
        assert_non_null(session_open(&embed->broker->sessions, "idle", columns, anyone, &err));
        assert_true(embed->broker->sessions.granted_bytes <= embed->broker->sessions.ingest_budget);
    }
}

struct windows {
    uint64_t bytes, items;
};

/* What a fast writer may have under way in the end, beside so many sessions that never wrote. */
static struct windows windows_beside(const char *more, uint32_t idle)
{
    struct embed embed;
    struct writer fast;
    embed_start(&embed, TABLES, more);
    open_idle(&embed, idle);
    open_writer(&embed, &fast, true);
    write_rounds(&embed, &fast, 14);
    const struct session *session = session_of(&embed, &fast);
    struct windows result = {session->offered_bytes - session->returned_bytes, session->flows[OPEN].window};
    embed_stop(&embed);
    return result;
}

TEST(sessions_that_never_write_cost_a_writer_nothing)
{
    static const struct {
        const char *more;
        uint32_t idle;
    } rows[] = {{"memory_limit: 64MiB\n" TIMES, 9},
                {"memory_limit: 64MiB\n" TIMES, 600},
                {"memory_limit: 256MiB\n" TIMES, 1000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct windows alone = windows_beside(rows[i].more, 0), beside = windows_beside(rows[i].more, rows[i].idle);
        assert_true(beside.bytes * 10 >= alone.bytes * 9);
        assert_true(beside.items * 10 >= alone.items * 9);
    }
}

#define CROWD 12u

/* A crowd that uses up the budget. */
static void open_crowd(struct embed *embed, struct writer *crowd, bool knows)
{
    for (uint32_t i = 0; i < CROWD; i++)
        open_writer(embed, &crowd[i], knows);
    for (uint32_t round = 0; round < 14; round++)
        for (uint32_t i = 0; i < CROWD; i++)
            write_rounds(embed, &crowd[i], 1);
    assert_true(embed->broker->sessions.granted_bytes >= embed->broker->sessions.ingest_budget * 3 / 4);
}

/* Sessions that wrote and stopped: a newcomer has their grants within two seconds. */
TEST(unused_grants_go_to_those_who_write)
{
    static const char *more = "memory_limit: 64MiB\n" TIMES;
    uint64_t alone = windows_beside(more, 0).bytes;
    struct embed embed;
    struct writer crowd[CROWD], fast;
    embed_start(&embed, TABLES, more);
    open_crowd(&embed, crowd, true);
    open_writer(&embed, &fast, true);
    uint64_t early = 0;
    for (uint32_t step = 0; step < 4; step++) { /* half a second each */
        write_rounds(&embed, &fast, 6);
        if (step == 0)
            early = session_of(&embed, &fast)->offered_bytes - session_of(&embed, &fast)->returned_bytes;
        embed_advance(&embed, 500);
        for (uint32_t i = 0; i < CROWD; i++)
            if (i % 2 == step % 2)
                beat(&embed, &crowd[i]);
    }
    write_rounds(&embed, &fast, 6);
    const struct session *session = session_of(&embed, &fast);
    assert_true(early < alone / 2); /* there was something to be won */
    assert_true((session->offered_bytes - session->returned_bytes) * 10 >= alone * 8);
    assert_int_equal(embed.broker->sessions.n_writing, 1);
    /* Those who come back to write get their share again, and lose nothing. */
    embed_advance(&embed, 1000);
    for (uint32_t round = 0; round < 14; round++) {
        for (uint32_t i = 0; i < CROWD; i++)
            write_rounds(&embed, &crowd[i], 1);
        write_rounds(&embed, &fast, 1);
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        assert_int_equal(testpeer_resolved(crowd[i].peer, OPEN), crowd[i].sent[OPEN]);
        assert_true(unused(&crowd[i]) > 10 * MESSAGE_BYTES);
    }
    embed_stop(&embed);
}

/* The same within the limit of one key, which is less than the budget. */
EMBED_TEST(unused_grants_of_a_key_go_to_its_other_writers, TABLES, "memory_limit: 64MiB\n" TIMES)
{
    struct writer idle, fast;
    struct identity *key = &embed->broker->peers.identities.anyone;
    key->quota.granted_bytes = (int64_t)(embed->broker->sessions.ingest_budget / 4);
    open_writer(embed, &idle, true);
    write_rounds(embed, &idle, 14);
    open_writer(embed, &fast, true);
    for (uint32_t step = 0; step < 4; step++) {
        write_rounds(embed, &fast, 6);
        embed_advance(embed, 500);
        beat(embed, &idle);
        assert_true(key->granted_bytes <= (uint64_t)key->quota.granted_bytes);
    }
    write_rounds(embed, &fast, 6);
    const struct session *session = session_of(embed, &fast);
    assert_true((session->offered_bytes - session->returned_bytes) * 4 >= (uint64_t)key->quota.granted_bytes);
}

/* A client that does not know of keep_bytes is asked in vain: it keeps its promise and can use it, to the last byte, and
 * only then finds its window smaller. */
EMBED_TEST(a_client_that_does_not_know_keeps_what_it_was_promised, TABLES, "memory_limit: 64MiB\n" TIMES)
{
    struct writer crowd[CROWD], fast;
    open_crowd(embed, crowd, false);
    open_writer(embed, &fast, true);
    uint64_t before[CROWD];
    for (uint32_t i = 0; i < CROWD; i++)
        before[i] = unused(&crowd[i]);
    for (uint32_t second = 0; second < 4; second++) {
        embed_advance(embed, 1000);
        write_rounds(embed, &fast, 2);
        for (uint32_t i = 0; i < CROWD; i++) {
            beat(embed, &crowd[i]);
            assert_true(unused(&crowd[i]) >= before[i]);
        }
    }
    assert_true(crowd[0].peer->credit->keep_bytes > 0);
    for (uint32_t i = 0; i < CROWD; i++) {
        uint64_t resolved = testpeer_resolved(crowd[i].peer, OPEN);
        send(&crowd[i], OPEN);
        beat(embed, &crowd[i]);
        assert_true(unused(&crowd[i]) < before[i]); /* a little use is not made good */
        while (unused(&crowd[i]) >= MESSAGE_BYTES && crowd[i].sent[OPEN] < testpeer_allowed(crowd[i].peer, OPEN))
            send(&crowd[i], OPEN);
        assert_true(crowd[i].sent[OPEN] > resolved + 5);
        beat(embed, &crowd[i]); /* fails if anything was rejected */
        assert_int_equal(testpeer_resolved(crowd[i].peer, OPEN), crowd[i].sent[OPEN]);
    }
}

/* Tombstones that come back while others have the budget: they count in the same sum, and what they had sent under their
 * old promise is taken. */
EMBED_TEST(resumed_sessions_fit_into_the_budget, TABLES, "memory_limit: 64MiB\n" TIMES)
{
    struct writer old[CROWD], crowd[CROWD];
    open_crowd(embed, old, false);
    for (uint32_t i = 0; i < CROWD; i++) {
        struct testpeer *peer = old[i].peer;
        peer->keep = peer->lose = true; /* sent within the credit, and lost on the way */
        while (unused(&old[i]) >= MESSAGE_BYTES && old[i].sent[OPEN] < testpeer_allowed(peer, OPEN))
            send(&old[i], OPEN);
        peer->lose = false;
    }
    embed_advance(embed, 30001);
    assert_int_equal(embed->broker->sessions.n_open, 0);
    assert_int_equal(embed->broker->sessions.granted_bytes, 0);
    open_crowd(embed, crowd, false);
    for (uint32_t i = 0; i < CROWD; i++) {
        assert_int_equal(testpeer_resume(old[i].peer, old[i].peer->sent->number, false)->status, RP_OK);
        check_account(embed);
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        testpeer_resend(old[i].peer, old[i].peer->credit->received);
        beat(embed, &old[i]);
        assert_int_equal(testpeer_resolved(old[i].peer, OPEN), old[i].sent[OPEN]);
        assert_int_equal(old[i].peer->credit->rejected[OPEN], 0);
    }
}

/* Totals: said twice it counts once, a claim of more than there is counts for nothing, and a new epoch starts from what is
 * left. */
EMBED_TEST(credit_is_given_up_once, TABLES, "memory_limit: 64MiB\n" TIMES)
{
    struct writer writer;
    open_writer(embed, &writer, false);
    write_rounds(embed, &writer, 14);
    embed_settle(embed);
    beat(embed, &writer);
    struct session *session = session_of(embed, &writer);
    uint64_t told = credit_allowed(session), offered = session->offered_bytes;
    writer.peer->released = told + 1;
    beat(embed, &writer);
    assert_int_equal(session->offered_bytes, offered);
    writer.peer->released = UINT64_MAX;
    beat(embed, &writer);
    assert_int_equal(session->offered_bytes, offered);
    writer.peer->keep = writer.peer->lose = true; /* on the way when the rest is given up */
    for (uint32_t i = 0; i < 10; i++)
        send(&writer, BLOCKED);
    writer.peer->lose = false;
    const uint64_t left = 20 * MESSAGE_BYTES;
    uint64_t give = offered - session->returned_bytes - left;
    writer.peer->released = give;
    for (uint32_t i = 0; i < 3; i++) {
        beat(embed, &writer);
        assert_int_equal(session->offered_bytes - session->returned_bytes, left);
        assert_int_equal(credit_allowed(session), told);
    }
    assert_int_equal(testpeer_resume(writer.peer, writer.peer->number - 9, false)->status, RP_OK);
    assert_int_equal(writer.peer->credit->allowed_bytes, offered - give);
    assert_int_equal(session->released_bytes, 0);
    testpeer_resend(writer.peer, writer.peer->credit->received);
    for (uint32_t i = 0; i < 10; i++)
        send(&writer, BLOCKED);
    embed_settle(embed);
    beat(embed, &writer);
    for (uint32_t i = 0; i < 20; i++)
        testpeer_sampled(writer.peer, "blocked", 1);
    beat(embed, &writer); /* fails if anything was rejected */
    assert_int_equal(testpeer_resolved(writer.peer, BLOCKED), 20);
}

/* ---- any order of events ---- */

static void take_up(struct writer *self)
{
    assert_int_equal(testpeer_resume(self->peer, 1, false)->status, RP_OK);
    assert_int_equal(self->peer->lost_messages, 0);
    testpeer_resend(self->peer, self->peer->credit->received);
}

static void step(struct embed *embed, struct writer *self, struct rng *rng)
{
    uint32_t table = rng_below(rng, 4) ? OPEN : BLOCKED;
    switch (rng_below(rng, 8)) {
    case 0:
        take_up(self);
        break;
    case 1:
        self->peer->lose = true;
        for (uint64_t n = rng_below(rng, 40); n-- && may_send(self, table);)
            send(self, table);
        self->peer->lose = false;
        break;
    case 2:
    case 3:
        testpeer_heartbeat(self->peer, 0, false);
        if (self->peer->credit->gap)
            take_up(self);
        else
            beat(embed, self);
        break;
    default:
        for (uint64_t n = rng_below(rng, 12); n-- && may_send(self, table);)
            send(self, table);
    }
}

/* Writers that keep the rules, whether they know of keep_bytes or not, never have an item rejected: over lost messages,
 * reconnects, expiry, and grants that are given up. The account is right after each step. */
TEST(nobody_who_keeps_the_rules_is_refused)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct embed embed;
        struct writer writers[5];
        struct rng rng = rng_of(seed);
        embed_start(&embed, TABLES, "memory_limit: 8MiB\n" TIMES);
        for (uint32_t i = 0; i < 5; i++) {
            open_writer(&embed, &writers[i], i % 2);
            writers[i].peer->keep = true;
        }
        for (uint32_t n = 0; n < 300; n++) {
            step(&embed, &writers[rng_below(&rng, 5)], &rng);
            embed_advance(&embed, rng_below(&rng, 50) ? (int64_t)rng_below(&rng, 700) : 31000);
            check_account(&embed);
            if (rng_below(&rng, 6) == 0)
                testpeer_await(writers[0].peer, testpeer_sample(writers[0].peer, "blocked", 1, 0, 0));
        }
        for (uint32_t i = 0; i < 5; i++) {
            take_up(&writers[i]);
            embed_settle(&embed);
            beat(&embed, &writers[i]);
            while (testpeer_resolved(writers[i].peer, BLOCKED) < writers[i].sent[BLOCKED]) {
                testpeer_await(writers[0].peer, testpeer_sample(writers[0].peer, "blocked", 1, 0, 0));
                beat(&embed, &writers[i]);
            }
            assert_int_equal(testpeer_resolved(writers[i].peer, OPEN), writers[i].sent[OPEN]);
        }
        embed_stop(&embed);
    }
}
