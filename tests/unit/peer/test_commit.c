/* Output commit: with the journal on, nothing that promises something leaves before it is durable. The disk is held up by
 * a limit on the size of files. */

#include <signal.h>
#include <sys/resource.h>

#include "broker/broker.h"
#include "broker/journal/stream.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define TABLE "  - {name: replay, max_size: 100, limiter: {kind: min_size, min_size: 1}}\n"

struct room {
    struct embed embed;
    struct rlimit before;
};

static void room_open(struct room *self, bool journal)
{
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &self->before), 0);
    assert_int_equal(tempdir_enter(NULL), 0);
    embed_start(&self->embed, TABLE, textf("folder: %s\njournal: %s\n", tempdir, journal ? "1s" : "off"));
    self->embed.lossy = true; /* a broker that cannot write does not read */
}

static void room_close(struct room *self)
{
    embed_stop(&self->embed);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct room, (void), room_close)

/* From now on no file grows. */
static void block(struct room *self)
{
    embed_settle(&self->embed);
    struct stream *stream = self->embed.broker->stream;
    struct rlimit limit = {stream->offset, self->before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void unblock(struct room *self)
{
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &self->before), 0);
    struct broker *broker = self->embed.broker;
    wait_until((broker_turn(broker, 0), STAILQ_EMPTY(&broker->peers.commit.parked) && !broker->stream->trouble[0]));
    assert_false(broker->sessions.ingest_held);
}

/* Turns until the stream is known to be in trouble. */
static void await_trouble(struct room *self)
{
    wait_until((broker_turn(self->embed.broker, 0), self->embed.broker->stream->trouble[0]));
}

static uint64_t ask_counter(struct testpeer *peer, int64_t add)
{
    Replay__Counter body = REPLAY__COUNTER__INIT;
    body.name = testpeer_text("steps");
    body.add = add;
    TESTPEER_REQUEST(request, COUNTER, counter, &body);
    return testpeer_ask(peer, &request);
}

static uint64_t ask_why(struct testpeer *peer)
{
    Replay__Why body = REPLAY__WHY__INIT;
    TESTPEER_REQUEST(request, WHY, why, &body);
    return testpeer_ask(peer, &request);
}

CASE(nothing_leaves_before_it_is_durable)
{
    room_open(f, true);
    struct testpeer *peer = testpeer_opened(&f->embed, true);
    testpeer_insert(peer, "replay", 1, 3, 1.0);
    embed_advance(&f->embed, 10);
    testpeer_read(peer);
    assert_int_equal(testpeer_resolved(peer, 0), 3);
    block(f);
    uint64_t ids[8];
    for (uint32_t i = 0; i < 8; i++)
        ids[i] = ask_counter(peer, 1);
    uint64_t sample = testpeer_sample(peer, "replay", 2, NO_TIMEOUT, 0);
    testpeer_insert(peer, "replay", 4, 3, 1.0);
    await_trouble(f);
    embed_settle(&f->embed);
    testpeer_read(peer);
    for (uint32_t i = 0; i < 8; i++)
        assert_null(testpeer_poll(peer, ids[i]));
    assert_null(testpeer_poll(peer, sample));
    assert_int_equal(testpeer_resolved(peer, 0), 3);
    assert_true(f->embed.broker->peers.commit.count >= 9);
    /* all of it leaves when the disk has room, in order, and once */
    unblock(f);
    embed_advance(&f->embed, 10);
    for (uint32_t i = 0; i < 8; i++) {
        struct testpeer_answer *answer = testpeer_good(peer, ids[i]);
        assert_int_equal(answer->reply->counter->value, i + 1);
    }
    assert_int_equal(testpeer_await(peer, sample)->status, RP_OK);
    testpeer_read(peer);
    assert_int_equal(testpeer_resolved(peer, 0), 6);
    assert_int_equal(f->embed.broker->peers.counters.replies_dropped, 0);
}

CASE(what_promises_nothing_goes_ahead)
{
    room_open(f, true);
    struct testpeer *peer = testpeer_opened(&f->embed, true);
    block(f);
    uint64_t counter = ask_counter(peer, 1);
    await_trouble(f);
    assert_null(testpeer_poll(peer, counter));
    /* info, why, and errors */
    assert_non_null(testpeer_info(peer));
    struct testpeer_answer *why = testpeer_await(peer, ask_why(peer));
    assert_int_equal(why->reply->why->n_waits, 1);
    assert_string_equal(why->reply->why->waits[0]->kind, "journal");
    assert_non_null(strstr(why->reply->why->waits[0]->text, "File too large"));
    assert_int_equal(testpeer_await(peer, testpeer_sample(peer, "nowhere", 1, 0, 0))->status, RP_NOT_FOUND);
    /* a heartbeat, in words once it has taken long enough; its numbers say nothing */
    embed_advance(&f->embed, 600);
    struct testpeer_answer *beat = testpeer_heartbeat(peer, 0, false);
    assert_int_equal(beat->status, RP_OK);
    assert_non_null(strstr(beat->text, "File too large"));
    assert_int_equal(beat->reply->credit->n_table, 0);
    assert_int_equal(beat->reply->credit->received, 0);
    assert_int_equal(beat->reply->credit->n_waiting, 1);
    assert_null(testpeer_poll(peer, counter));
    /* nothing is taken in, and silence is no reason to end a session */
    uint64_t before = LIST_FIRST(&f->embed.broker->sessions.list)->received;
    testpeer_insert(peer, "replay", 1, 3, 1.0);
    embed_advance(&f->embed, 100000);
    assert_int_equal(LIST_FIRST(&f->embed.broker->sessions.list)->received, before);
    assert_int_equal(f->embed.broker->sessions.n_open, 1);
    unblock(f);
    embed_settle(&f->embed);
    assert_int_equal(testpeer_await(peer, counter)->status, RP_OK);
    assert_int_equal(embed_table(&f->embed, "replay")->in.size, 3);
    assert_int_equal(testpeer_await(peer, ask_why(peer))->reply->why->n_waits, 0);
}

/* Without a journal nobody waits for the disk. */
CASE(without_a_journal_nothing_waits)
{
    room_open(f, false);
    struct testpeer *peer = testpeer_opened(&f->embed, true);
    uint64_t id = ask_counter(peer, 5);
    broker_turn(f->embed.broker, 0);
    assert_int_equal(f->embed.broker->peers.commit.count, 0);
    assert_int_equal(testpeer_await(peer, id)->reply->counter->value, 5);
}

/* A broker that ends with messages that could not be committed neither sends them nor waits for ever. */
CASE(the_end_gives_up_what_can_not_be_written)
{
    room_open(f, true);
    struct testpeer *peer = testpeer_opened(&f->embed, true);
    block(f);
    uint64_t counter = ask_counter(peer, 1);
    await_trouble(f);
    broker_hurry(f->embed.broker);
    broker_run(f->embed.broker);
    assert_true(f->embed.broker->peers.commit.count > 0);
    assert_null(testpeer_poll(peer, counter));
    unblock(f);
}

/* Without a journal the last checkpoint is all that stays. A request that comes while it is written is not answered: its
 * client asks again when the broker is back. With a journal it is recorded, and answered. */
TEST(nothing_is_told_that_the_last_checkpoint_does_not_have)
{
    for (int journal = 0; journal < 2; journal++) {
        struct room room;
        room_open(&room, journal);
        struct testpeer *peer = testpeer_new(&room.embed);
        assert_int_equal(testpeer_counter(peer, "c", 1), 1);
        Replay__Counter body = REPLAY__COUNTER__INIT;
        body.name = testpeer_text("c");
        body.add = 1;
        TESTPEER_REQUEST(request, COUNTER, counter, &body);
        testpeer_ask(peer, &request);
        broker_finish(room.embed.broker);
        testpeer_read(peer);
        assert_int_equal(room.embed.broker->params.counters[0].value, 1 + journal);
        assert_int_equal(peer->answers && peer->answers->next != NULL, journal);
        room_close(&room);
    }
}
