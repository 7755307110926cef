/* Publishers, subscribers and additions under way against a real broker, which is stopped (SIGSTOP), killed and started
 * again to hold requests where a test wants them. Counts are asserted, never times. */

#include "agent/client/conn/client.h"
#include "tests/support/asked.h"
#include "tests/support/process.h"

#define SLOT "policy"
/* More than a quarter of the broker's memory_limit. */
#define TOO_LARGE (20u << 20)

struct fixture {
    SERVED;
    rp_publisher *publisher;
    rp_subscriber *subscriber;
};

static void set_up(struct fixture *f)
{
    served_start(f, "  - {name: replay, max_size: 10}\n", "memory_limit: 64MiB\n",
                 OPTIONS(rp_client, .backoff_max_ms = 50));
    f->publisher = must(rp_publisher_new(f->client, SLOT, &err));
    f->subscriber = must(rp_subscriber_new(f->client, SLOT, 0, &err));
}

static void tear_down(struct fixture *f)
{
    rp_publisher_destroy(&f->publisher, 0, NULL);
    rp_subscriber_destroy(&f->subscriber);
    served_stop(f);
}

static void put(struct fixture *f, uint32_t value)
{
    ok(rp_publisher_put(f->publisher, &value, sizeof value, &err));
}

static rp_publisher_stats published(const struct fixture *f)
{
    rp_publisher_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(rp_publisher_get_stats(f->publisher, &stats), RP_OK);
    return stats;
}

static rp_subscriber_stats subscribed(const struct fixture *f)
{
    rp_subscriber_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(rp_subscriber_get_stats(f->subscriber, &stats), RP_OK);
    return stats;
}

/* The value that a look gives; 0: nothing new. */
static uint32_t take(struct fixture *f, int64_t timeout_ms, uint64_t *version)
{
    SCOPED(rp_params) params = NULL;
    rp_status status = rp_subscriber_take(f->subscriber, timeout_ms, &params, &err);
    if (status == RP_DEADLINE_EXCEEDED) {
        assert_null(params);
        return 0;
    }
    ok(status);
    const rp_param *slot = rp_params_slot(params);
    uint32_t value;
    assert_string_equal(slot->name, SLOT);
    assert_int_equal(slot->bytes, sizeof value);
    memcpy(&value, slot->data, sizeof value);
    if (version)
        *version = slot->version;
    return value;
}

/* Polls that wait at the broker. */
static uint32_t waiting(const struct fixture *f)
{
    return asked_waits(f->client, "params", NULL, 0);
}

/* ---- publisher ---- */

FIXTURE(struct fixture, set_up, tear_down)

/* One put is under way for as long as the broker does not answer; of the blocks given meanwhile the newest is sent. */
CASE(newest_wins)
{
    uint64_t version = 0;
    kill(f->broker.pid, SIGSTOP);
    put(f, 1);
    wait_until(published(f).puts >= 1);
    for (uint32_t i = 2; i <= 50; i++)
        put(f, i);
    assert_int_equal(published(f).puts, 1);
    assert_int_equal(rp_publisher_flush(f->publisher, 0, NULL, &err), RP_DEADLINE_EXCEEDED);
    kill(f->broker.pid, SIGCONT);
    ok(rp_publisher_flush(f->publisher, WAIT, &version, &err));
    rp_publisher_stats stats = published(f);
    assert_int_equal(stats.given, 50);
    assert_int_equal(stats.puts, 2);
    assert_int_equal(stats.replaced, 48);
    assert_int_equal(stats.version, 2);
    assert_int_equal(version, 2);
    rp_params *params = NULL;
    uint32_t value = 0;
    ok(rp_params_get(f->client, SLOT, 0, WAIT, &params, &err));
    memcpy(&value, rp_params_slot(params)->data, sizeof value);
    rp_params_release(&params);
    assert_int_equal(value, 50);
}

CASE(error_at_next_call)
{
    void *block = calloc(1, TOO_LARGE);
    uint32_t errors = 0;
    ok(rp_publisher_put(f->publisher, block, TOO_LARGE, &err));
    assert_int_equal(rp_publisher_flush(f->publisher, WAIT, NULL, &err), RP_RESOURCE_EXHAUSTED);
    ok(rp_publisher_flush(f->publisher, WAIT, NULL, &err));
    ok(rp_publisher_put(f->publisher, block, TOO_LARGE, &err));
    wait_until(published(f).puts >= 2);
    /* The broker answers in the order of the requests: after this the refusal is here. */
    ok(rp_counter_read(f->client, "any", WAIT, NULL, &err));
    for (uint32_t i = 1; i <= 5; i++) {
        rp_status status = rp_publisher_put(f->publisher, &i, sizeof i, &err);
        errors += status != RP_OK;
        assert_true(status == RP_OK || (i == 1 && status == RP_RESOURCE_EXHAUSTED));
    }
    assert_int_equal(errors, 1);
    ok(rp_publisher_flush(f->publisher, WAIT, NULL, &err));
    assert_int_equal(published(f).given, 7);
    assert_int_equal(take(f, WAIT, NULL) > 0, 1);
    free(block);
    must_fail_new(rp_publisher_new(f->client, "", &err), RP_INVALID_ARGUMENT, NULL);
}

CASE(stop_under_way)
{
    kill(f->broker.pid, SIGSTOP);
    put(f, 1);
    wait_until(published(f).puts >= 1);
    put(f, 2);
    assert_int_equal(rp_publisher_destroy(&f->publisher, 20, &err), RP_DEADLINE_EXCEEDED);
    assert_null(f->publisher);
    rp_subscriber_destroy(&f->subscriber);
    rp_client_destroy(&f->client);
    kill(f->broker.pid, SIGCONT);
}

struct cutter {
    struct conn_part part; /* first */
    struct conn *conn;
    bool done;
};

static void cutter_ignore(struct conn_part *part)
{
    (void)part;
}

static void cutter_up(struct conn_part *part, const struct conn_hello *hello)
{
    (void)part;
    (void)hello;
}

/* Breaks the connection off once. */
static int64_t cutter_tick(struct conn_part *part, int64_t now_ns)
{
    struct cutter *self = (struct cutter *)part;
    (void)now_ns;
    if (!self->done)
        conn_reset(self->conn, "the test breaks it off");
    self->done = true;
    return INT64_MAX;
}

static const struct conn_part_ops cutter_ops = {.up = cutter_up, .down = cutter_ignore, .tick = cutter_tick};

/* A put whose answer is lost is repeated, and makes one version. */
CASE(put_once)
{
    struct cutter cutter = {.part.ops = &cutter_ops, .conn = client_conn(f->client)};
    uint64_t version = 0;
    kill(f->broker.pid, SIGSTOP);
    put(f, 1);
    wait_until(published(f).puts >= 1);
    conn_attach(cutter.conn, &cutter.part);
    kill(f->broker.pid, SIGCONT);
    ok(rp_publisher_flush(f->publisher, WAIT, &version, &err));
    conn_detach(cutter.conn, &cutter.part);
    assert_true(cutter.done);
    assert_int_equal(published(f).puts, 2);
    assert_int_equal(version, 1);
}

/* What was given while there is no broker reaches the next one. */
CASE(put_without_broker)
{
    uint64_t version = 0;
    put(f, 1);
    ok(rp_publisher_flush(f->publisher, WAIT, &version, &err));
    assert_int_equal(take(f, WAIT, NULL), 1);
    broker_process_stop(&f->broker, SIGKILL);
    for (uint32_t i = 2; i <= 9; i++)
        put(f, i);
    assert_int_equal(rp_publisher_flush(f->publisher, 20, NULL, &err), RP_DEADLINE_EXCEEDED);
    broker_process_again(&f->broker, NULL);
    ok(rp_publisher_flush(f->publisher, WAIT, &version, &err));
    assert_int_equal(take(f, WAIT, NULL), 9);
}

/* ---- subscriber ---- */

/* A look is no request: however often one looks, one poll stands at the broker. */
CASE(looks_cost_nothing)
{
    wait_until(subscribed(f).polls >= 1 && waiting(f) == 1);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(take(f, 0, NULL), 0);
    assert_int_equal(subscribed(f).polls, 1);
    put(f, 7);
    assert_int_equal(take(f, WAIT, NULL), 7);
    wait_until(subscribed(f).polls >= 2 && waiting(f) == 1);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(take(f, 0, NULL), 0);
    rp_subscriber_stats stats = subscribed(f);
    assert_int_equal(stats.polls, 2);
    assert_int_equal(stats.arrived, 1);
    assert_int_equal(stats.taken, 1);
    rp_subscriber_destroy(&f->subscriber);
    f->subscriber = rp_subscriber_new(f->client, SLOT, 1, &err);
    wait_until(subscribed(f).polls >= 1 && waiting(f) == 1); /* the one that is gone does not stand there any more */
}

/* Versions never go back, the last one arrives, and those that lie there untaken are replaced. */
CASE(versions)
{
    uint64_t last = 0, version = 0;
    uint32_t value = 0, given = 0;
    for (uint32_t i = 0; i < 500; i++) {
        put(f, ++given);
        uint32_t got = take(f, i % 7 == 0 ? WAIT : 0, &version);
        if (got == 0)
            continue;
        assert_true(version > last && got > value && got <= given);
        last = version;
        value = got;
        if (i % 50 == 0)
            wait_until(subscribed(f).polls >= subscribed(f).taken + 1);
    }
    ok(rp_publisher_flush(f->publisher, WAIT, &last, &err));
    while (version < last)
        value = take(f, WAIT, &version);
    assert_int_equal(value, given);
    /* Without takes: one arrives, and after a while a newer one in its place. */
    put(f, ++given);
    wait_until(subscribed(f).arrived >= subscribed(f).taken + 1);
    uint64_t before = subscribed(f).arrived;
    put(f, ++given);
    wait_until(subscribed(f).arrived >= before + 1);
    assert_int_equal(take(f, 0, NULL), given);
    rp_subscriber_stats stats = subscribed(f);
    assert_true(stats.replaced >= 1);
    assert_int_equal(stats.arrived, stats.taken + stats.replaced);
    assert_true(stats.polls <= stats.arrived + 1);
}

/* Versions of a broker that keeps nothing begin at 1 again: that one is new all the same. */
CASE(restart_under_poll)
{
    uint64_t version = 0;
    for (int how = 0; how < 2; how++) {
        put(f, 10u + (uint32_t)how);
        assert_int_equal(take(f, WAIT, &version), 10 + how);
        assert_int_equal(version, 1);
        wait_until(waiting(f) == 1);
        broker_process_stop(&f->broker, how == 0 ? SIGKILL : SIGTERM);
        assert_int_equal(take(f, 0, NULL), 0);
        broker_process_again(&f->broker, NULL);
        wait_until(waiting(f) == 1);
    }
    put(f, 12);
    assert_int_equal(take(f, WAIT, &version), 12);
    assert_int_equal(version, 1);
}

/* ---- additions under way ---- */

CASE(additions)
{
    int64_t value = 0;
    kill(f->broker.pid, SIGSTOP);
    rp_addition *first = rp_counter_begin(f->client, "steps", 5, &err);
    rp_addition *second = rp_counter_begin(f->client, "steps", 7, &err);
    rp_addition *third = rp_counter_begin(f->client, "steps", 100, &err);
    assert_int_equal(rp_counter_end(&first, 0, &value, &err), RP_DEADLINE_EXCEEDED);
    assert_non_null(first);
    assert_int_equal(rp_counter_end(&second, 5, &value, &err), RP_DEADLINE_EXCEEDED);
    rp_counter_forget(&third);
    assert_null(third);
    kill(f->broker.pid, SIGCONT);
    ok(rp_counter_end(&second, WAIT, &value, &err));
    assert_int_equal(value, 12);
    ok(rp_counter_end(&first, WAIT, &value, &err));
    assert_int_equal(value, 5);
    assert_null(first);
    ok(rp_counter_read(f->client, "steps", WAIT, &value, &err));
    assert_int_equal(value, 112);
    must_fail_new(rp_counter_begin(f->client, "", 1, &err), RP_INVALID_ARGUMENT, NULL);
    rp_addition *last = rp_counter_begin(f->client, "steps", 1, &err);
    kill(f->broker.pid, SIGSTOP);
    rp_addition *open = rp_counter_begin(f->client, "steps", 1, &err);
    rp_counter_forget(&last);
    rp_counter_forget(&open);
    rp_publisher_destroy(&f->publisher, 0, NULL);
    rp_subscriber_destroy(&f->subscriber);
    rp_client_destroy(&f->client);
    kill(f->broker.pid, SIGCONT);
}
