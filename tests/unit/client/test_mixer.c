/* A sampler over shards whose brokers answer what no real broker would: it waits, and does not ask without end. */

#include "proto/base/clock.h"
#include "replay.pb-c.h"
#include "tests/support/fakepeer.h"
#include "tests/support/scoped.h"

#define SHARDS FAKESHARDS
#define SOON_MS 1500 /* less than the 2 s that nobody should wait */
#define MANY UINT64_C(0xffffffffffffffff)

struct row {
    uint32_t granted, deal;
    uint64_t room;
    double mass;
    uint64_t size, min_size;
    double buffer;
};

static const struct row rows[] = {
    {UINT32_MAX, 0, MANY, NAN, MANY, MANY, NAN},
    {UINT32_MAX, 0, MANY, INFINITY, MANY, 0, -1},
    {UINT32_MAX, 0, MANY, -INFINITY, MANY, 0, INFINITY},
    {UINT32_MAX, 0, MANY, 1e308, MANY, 0, 1e308},
    {0, 0, MANY, 5, 5, 0, 1000},
    {5, 0, 0, 5, 0, 0, 1000},
    {5, 1, MANY, 5, 5, 1, 0},
    {0, 1, 0, 1e308, MANY, MANY, 0},
    {0, 1, 0, 1e-320, 1, 0, 0},
    {5, 2, MANY, INFINITY, MANY, 0, 0},
    {5, 2, 0, -1, 0, 0, 0},
};

struct fixture {
    struct fakeshards shards;
    rp_client *client;
    Replay__PermitReply permit;
};

static void set_up(struct fixture *f)
{
    replay__permit_reply__init(&f->permit);
    fakeshards_start(&f->shards, 77);
    f->client = must(rp_client_connect(f->shards.peers[0].endpoint, NULL, WAIT, &err));
}

static void tear_down(struct fixture *f)
{
    rp_client_destroy(&f->client);
    fakeshards_stop(&f->shards);
}

static void say(struct fixture *f, const struct row *row)
{
    for (uint32_t i = 0; i < SHARDS; i++)
        pthread_mutex_lock(&f->shards.peers[i].mutex);
    f->permit.granted = row->granted;
    f->permit.deal = row->deal;
    f->permit.room = row->room;
    f->permit.mass = row->mass;
    f->permit.size = row->size;
    f->permit.min_size = row->min_size;
    f->permit.buffer = row->buffer;
    for (uint32_t i = 0; i < SHARDS; i++) {
        f->shards.peers[i].permit = &f->permit;
        f->shards.peers[i].permits = f->shards.peers[i].samples = 0;
        pthread_mutex_unlock(&f->shards.peers[i].mutex);
    }
}

static int64_t now_ms(void)
{
    return clock_ns() / NS_PER_MS;
}

static rp_sampler *new_sampler(struct fixture *f, uint32_t on_demand, uint32_t distinct, rp_error *error)
{
    rp_sampler_options options = {
        .struct_size = sizeof options, .batch_size = 16, .on_demand = on_demand, .distinct = distinct};
    return rp_sampler_new(f->client, "a", &options, error);
}

FIXTURE(struct fixture, set_up, tear_down)

CASE(answers_without_sense_do_no_harm)
{
    for (uint32_t i = 0; i < 6 * sizeof rows / sizeof rows[0]; i++) {
        rp_batch *batch;
        f->permit.removes = i / 3 % 2; /* nobody reads it now: there is no sampler */
        say(f, &rows[i / 6]);
        rp_sampler *sampler = new_sampler(f, i % 3 == 1, i % 3 == 2, &err);
        if (!sampler)
            fail_msg("row %u: %s", i / 6, err.text);
        int64_t start = clock_ns();
        rp_status status = rp_sampler_next(sampler, &batch, 60, &err);
        rp_sampler_destroy(&sampler);
        double ms = (double)(clock_ns() - start) * 1e-6;
        uint64_t asked = 0;
        for (uint32_t s = 0; s < SHARDS; s++)
            asked += fakepeer_read(&f->shards.peers[s], &f->shards.peers[s].permits) +
                     fakepeer_read(&f->shards.peers[s], &f->shards.peers[s].samples);
        if (status != RP_DEADLINE_EXCEEDED || asked > 200 + (uint64_t)ms)
            fail_msg("row %u, kind %u: status %d, %llu requests in %.0f ms", i / 6, i % 6, status,
                     (unsigned long long)asked, ms);
    }
}

CASE(a_deal_that_nobody_knows_is_refused)
{
    const struct row row = {0, 7, 0, 1, 1, 0, 0};
    say(f, &row);
    must_fail_new(new_sampler(f, 0, 0, &err), RP_BAD_MESSAGE, NULL);
}

static const struct row sound = {0, 1, 0, 5, 5, 0, 0};

static void set_all(struct fixture *f, size_t knob, bool value)
{
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_set(&f->shards.peers[i], (bool *)((char *)&f->shards.peers[i] + knob), value);
}

/* Items come whatever is said about the rest; more items than were asked for are an error, not a batch. */
CASE(replies_with_items)
{
    static const double masses[] = {5, INFINITY, 1e308, 1e-300};
    rp_batch *batch;
    set_all(f, offsetof(struct fakepeer, give), true);
    for (uint32_t i = 0; i < 2 * sizeof masses / sizeof masses[0]; i++) {
        struct row row = sound;
        row.mass = masses[i / 2];
        say(f, &row);
        SCOPED(rp_sampler) sampler = must(new_sampler(f, i % 2, 0, &err));
        for (uint32_t b = 0; b < 3; b++) {
            rp_batch_arrays arrays = {.struct_size = sizeof arrays};
            if (rp_sampler_next(sampler, &batch, WAIT, &err) != RP_OK)
                fail_msg("mass %g: %s", row.mass, err.text);
            rp_batch_get_arrays(batch, &arrays);
            assert_int_equal(arrays.n, 16);
            for (uint32_t k = 0; k < arrays.n; k++)
                assert_true(arrays.probability[k] > 0 && arrays.probability[k] <= 0.5);
            rp_batch_release(&batch);
        }
    }
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_set(&f->shards.peers[i], &f->shards.peers[i].surplus, 1);
    for (uint32_t i = 0; i < 2; i++) {
        say(f, &sound);
        SCOPED(rp_sampler) sampler = new_sampler(f, i, 0, &err);
        assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_BAD_MESSAGE);
    }
    fakepeer_set(&f->shards.peers[0], &f->shards.peers[0].surplus, 0);
    for (uint32_t i = 0; i < 2; i++) { /* the other shard gives the items that cannot be used */
        SCOPED(rp_sampler) sampler = new_sampler(f, i, 0, &err);
        for (uint32_t got = 0, tries = 0; got < 8; tries++) {
            rp_status status = rp_sampler_next(sampler, &batch, WAIT, &err);
            if (tries == 100 || (status != RP_OK && status != RP_BAD_MESSAGE))
                fail_msg("%u batches of %u: %s", got, tries, err.text);
            got += status == RP_OK;
            rp_batch_release(&batch);
        }
    }
}

/* One shard that answers is enough to begin, and a new sampler waits for the others but shortly. */
CASE(a_silent_shard_does_not_hold_up_the_start)
{
    say(f, &sound);
    for (uint32_t i = 0; i < SHARDS; i++) {
        fakepeer_set(&f->shards.peers[i], &f->shards.peers[i].deaf, true);
        int64_t took = SOON_MS + 1;
        for (uint32_t tries = 0; tries < 5 && took > SOON_MS;
             tries++) { /* a busy machine is late, but not five times */
            int64_t start = now_ms();
            SCOPED(rp_sampler) sampler = must(new_sampler(f, 0, 0, &err));
            took = now_ms() - start;
        }
        assert_in_range(took, 0, SOON_MS);
        fakepeer_set(&f->shards.peers[i], &f->shards.peers[i].deaf, false);
    }
}

/* Also if no shard answers: the caller gets its thread back when it asks for it. */
CASE(waits_that_the_caller_ends)
{
    rp_batch *batch;
    int calls = 0;
    say(f, &sound);
    SCOPED(rp_sampler) demand = new_sampler(f, 1, 0, &err);
    SCOPED(rp_sampler) ahead = new_sampler(f, 0, 0, &err);
    set_all(f, offsetof(struct fakepeer, deaf), true);
    int64_t took = SOON_MS + 1;
    rp_wait_set(stop_wait, &calls);
    for (uint32_t tries = 0; tries < 5 && took > SOON_MS; tries++) {
        int64_t start = now_ms();
        must_fail_new(new_sampler(f, 0, 0, &err), RP_CANCELLED, NULL);
        assert_int_equal(rp_sampler_next(demand, &batch, -1, &err), RP_CANCELLED);
        assert_int_equal(rp_sampler_next(ahead, &batch, -1, &err), RP_CANCELLED);
        took = now_ms() - start;
    }
    rp_wait_set(NULL, NULL);
    assert_true(calls >= 3);
    assert_in_range(took, 100, SOON_MS);
}

/* A reply whose memory is gone comes when the stream has ended already: what is asked for again is cancelled, too. */
TEST(a_stream_that_ends_recalls_what_it_asks_for_again)
{
    rp_batch *batch;
    struct fakepeer *peer = calloc(1, sizeof *peer);
    fakepeer_start(peer);
    fakepeer_set(peer, &peer->overtake, true);
    rp_client *client = must(rp_client_connect(peer->endpoint, NULL, WAIT, &err));
    rp_sampler *sampler = must(rp_sampler_new(client, "a", OPTIONS(rp_sampler, .batch_size = 1, .in_flight = 1), &err));
    assert_true(fakepeer_await(peer, &peer->samples, 1));
    ok(rp_sampler_stop(sampler, &err));
    assert_int_equal(rp_sampler_next(sampler, &batch, WAIT, &err), RP_END_OF_STREAM);
    assert_int_equal(fakepeer_read(peer, &peer->samples), 2);
    assert_int_equal(fakepeer_read(peer, &peer->cancels), 2);
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
    fakepeer_stop(peer);
    free(peer);
}
