/* Every public call that takes a time-out: any number is allowed, the call ends in time, and rp_wait_set ends it before. */

#include <pthread.h>
#include <stdatomic.h>

#include "proto/base/clock.h"
#include "replay/server.h"
#include "tests/support/fakepeer.h"
#include "tests/support/scoped.h"

#define SLACK_MS 400 /* for a busy machine */

/* A peer that answers nothing any more, and a real broker for calls that need an answer before they wait. */
struct fixture {
    struct fakepeer peer;
    rp_server *server;
    rp_client *client, *real, *lost; /* lost: nobody is at its endpoint */
    rp_writer *writer;               /* at its limit of items in flight */
    rp_writer *ruled;                /* the same, with a pattern for each step, and one for the end of an episode */
    rp_writer *begun;                /* the same, within a step */
    rp_sampler *sampler, *demand;
    rp_updater *updater; /* at its limit of requests in flight */
    rp_publisher *publisher;
    rp_subscriber *subscriber;
    rp_reduce *members[2];
};

static const rp_column column = {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_RAW};
static const uint64_t key = 1;
static const double priority = 1;
static const float one = 1;
static const void *const values[] = {&one};

static int64_t now_ms(void)
{
    return clock_ns() / NS_PER_MS;
}

struct row {
    const char *name;
    rp_status (*call)(struct fixture *f, int64_t ms);
    int32_t grace_ms; /* beyond the time-out, if the broker is connected and silent; -1: 10 s, not tested */
};

#define ROWS 64u
static struct row rows[ROWS];
static uint32_t n_rows; /* set_up checks that they fit */

static void add_row(struct row row)
{
    if (n_rows < ROWS)
        rows[n_rows] = row;
    n_rows++;
}

static rp_writer *full_writer(struct fixture *f, bool patterns)
{
    rp_slice slice = {.start = -1};
    rp_condition end = {.kind = RP_WHEN_END_OF_EPISODE};
    rp_pattern each = {.table = "a", .priority = 1, .slices = &slice, .n_slices = 1}, last = each;
    rp_writer *writer = must(rp_writer_new(f->client, &column, 1,
                                           OPTIONS(rp_writer, .max_in_flight_items = 2, .keep_alive = 4), WAIT, &err));
    assert_int_equal(rp_writer_append(writer, values, WAIT, &err), RP_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(rp_writer_item_last(writer, "a", 1, 1, WAIT, NULL, &err), RP_OK);
    last.conditions = &end;
    last.n_conditions = 1;
    if (patterns)
        assert_int_equal(rp_writer_add_pattern(writer, &each, &err), RP_OK);
    if (patterns)
        assert_int_equal(rp_writer_add_pattern(writer, &last, &err), RP_OK);
    return writer;
}

static rp_sampler *sampler(struct fixture *f, uint32_t on_demand)
{
    return rp_sampler_new(f->client, "a", OPTIONS(rp_sampler, .on_demand = on_demand), NULL);
}

static void set_up(struct fixture *f)
{
    rp_updater_options limits = {.struct_size = sizeof limits, .batch = 1, .in_flight = 1};
    assert_in_range(n_rows, 1, ROWS);
    fakepeer_start(&f->peer);
    f->peer.heartbeat_ms = 60000;
    f->peer.expiry_ms = 600000;
    fakepeer_set(&f->peer, &f->peer.hold, true);
    f->client = rp_client_connect(f->peer.endpoint, NULL, WAIT, &err);
    f->server = rp_server_start(NULL, NULL, &err);
    f->real = rp_client_connect(rp_server_endpoint(f->server), NULL, WAIT, &err);
    f->lost = rp_client_open("tcp://127.0.0.1:1", NULL, &err);
    assert_true(f->client && f->real && f->lost);
    f->writer = full_writer(f, false);
    f->ruled = full_writer(f, true);
    f->begun = full_writer(f, true);
    assert_int_equal(rp_writer_set(f->begun, 0, &one, sizeof one, &err), RP_OK);
    fakepeer_set(&f->peer, &f->peer.deaf, true);
    f->sampler = sampler(f, 0);
    f->demand = sampler(f, 1);
    f->updater = rp_updater_new(f->client, "a", &limits, &err);
    assert_int_equal(rp_updater_add(f->updater, &key, &priority, 1, WAIT, NULL, &err), RP_OK);
    f->publisher = rp_publisher_new(f->client, "slot", &err);
    assert_int_equal(rp_publisher_put(f->publisher, &one, sizeof one, &err), RP_OK);
    f->subscriber = rp_subscriber_new(f->client, "slot", 0, &err);
    for (int i = 0; i < 2; i++)
        f->members[i] = rp_reduce_join(f->real, "group", WAIT, &err);
    assert_non_null(f->members[1]);
}

static void tear_down(struct fixture *f)
{
    rp_writer_destroy(&f->writer, 0, NULL);
    rp_writer_destroy(&f->ruled, 0, NULL);
    rp_writer_destroy(&f->begun, 0, NULL);
    rp_sampler_destroy(&f->sampler);
    rp_sampler_destroy(&f->demand);
    rp_updater_destroy(&f->updater, 0, NULL);
    rp_publisher_destroy(&f->publisher, 0, NULL);
    rp_subscriber_destroy(&f->subscriber);
    for (int i = 0; i < 2; i++)
        rp_reduce_leave(&f->members[i], WAIT, NULL);
    rp_client_destroy(&f->client);
    rp_client_destroy(&f->lost);
    rp_client_destroy(&f->real);
    rp_server_stop(&f->server);
    fakepeer_stop(&f->peer);
}

/* ---- the calls */

static rp_status status_of(const void *made)
{
    return made ? RP_OK : (rp_status)err.status;
}

/* A call that takes a time-out of ms. */
#define CALL(title, grace, ...)                                                                                        \
    static rp_status title(struct fixture *f, int64_t ms)                                                              \
    {                                                                                                                  \
        (void)f;                                                                                                       \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    __attribute__((constructor)) static void add_##title(void)                                                         \
    {                                                                                                                  \
        add_row((struct row){"rp_" #title, title, grace});                                                             \
    }

CALL(client_connect, 0, rp_client *made = rp_client_connect("tcp://127.0.0.1:1", NULL, ms, &err);
     return status_of(made);)
CALL(client_wait, 0, return rp_client_wait(f->lost, ms, &err);)
CALL(writer_new, 0, rp_writer *made = rp_writer_new(f->client, &column, 1, NULL, ms, &err); return status_of(made);)
CALL(writer_append, 0, return rp_writer_append(f->ruled, values, ms, &err);)
CALL(writer_end_step, 0, return rp_writer_end_step(f->begun, ms, &err);)
CALL(writer_item, 0, rp_slice slice = {.start = -1};
     return rp_writer_item(f->writer, "a", 1, &slice, 1, ms, NULL, &err);)
CALL(writer_item_last, 0, return rp_writer_item_last(f->writer, "a", 1, 1, ms, NULL, &err);)
CALL(writer_flush, 0, return rp_writer_flush(f->writer, 0, ms, &err);)
CALL(writer_end_episode, 0, return rp_writer_end_episode(f->ruled, RP_END_GO, ms, &err);)
CALL(sampler_next, 0, rp_batch *batch; return rp_sampler_next(f->sampler, &batch, ms, &err);)
CALL(sampler_next_on_demand, -1, rp_batch *batch; return rp_sampler_next(f->demand, &batch, ms, &err);)
CALL(priorities_update, 0, return rp_priorities_update(f->client, "a", &key, &priority, 1, ms, NULL, &err);)
CALL(items_delete, 0, return rp_items_delete(f->client, "a", &key, 1, ms, NULL, &err);)
CALL(updater_add, 0, return rp_updater_add(f->updater, &key, &priority, 1, ms, NULL, &err);)
CALL(updater_flush, 0, return rp_updater_flush(f->updater, ms, NULL, &err);)
CALL(params_put, 0, return rp_params_put(f->client, "slot", &one, sizeof one, ms, NULL, &err);)
CALL(params_get, 0, rp_params *params; return rp_params_get(f->real, "never", 0, ms, &params, &err);)
CALL(publisher_flush, 0, return rp_publisher_flush(f->publisher, ms, NULL, &err);)
CALL(subscriber_take, 0, rp_params *params; return rp_subscriber_take(f->subscriber, ms, &params, &err);)
CALL(counter_add, 0, return rp_counter_add(f->client, "n", 1, ms, NULL, &err);)
CALL(counter_read, 0, return rp_counter_read(f->client, "n", ms, NULL, &err);)
CALL(counter_end, 0, rp_addition *addition = rp_counter_begin(f->client, "n", 1, &err);
     rp_status status = rp_counter_end(&addition, ms, NULL, &err); rp_counter_forget(&addition); return status;)
CALL(reduce_join, 0, rp_reduce *made = rp_reduce_join(f->client, "group", ms, &err); return status_of(made);)
CALL(reduce_add, 0, float sum = 1; return rp_reduce_add(f->members[0], &sum, 1, -1, ms, NULL, &err);)
CALL(admin_info, 0, rp_info *info; return rp_admin_info(f->client, NULL, 1, ms, &info, &err);)
CALL(admin_why, 0, rp_info *info; return rp_admin_why(f->client, ms, &info, &err);)
CALL(admin_list, 0, rp_info *info; return rp_admin_list(f->client, "a", 0, 1, ms, &info, &err);)
CALL(admin_fetch, 0, rp_batch *batch; return rp_admin_fetch(f->client, "a", &key, 1, ms, &batch, &err);)
CALL(admin_reset, 0, return rp_admin_reset(f->client, "a", ms, NULL, &err);)
CALL(admin_checkpoint, 2000, return rp_admin_checkpoint(f->client, ms, NULL, &err);)
CALL(admin_set_limiter, 0, rp_limiter_change change = {.struct_size = sizeof change};
     return rp_admin_set_limiter(f->client, "a", &change, ms, NULL, &err);)

/* Makes the call and checks how long it takes. A busy machine makes a call late now and then, but not five times. */
static rp_status timed(struct fixture *f, const struct row *row, int64_t ms, int64_t least_ms, int64_t most_ms)
{
    rp_status status = RP_OK;
    err = (rp_error){0};
    int64_t took_ms = INT64_MAX;
    for (int i = 0; i < 5 && took_ms > most_ms; i++) {
        int64_t start = now_ms();
        status = row->call(f, ms);
        took_ms = now_ms() - start;
    }
    if (took_ms < least_ms || took_ms > most_ms)
        fail_msg("%s(%lld ms) took %lld ms: %s", row->name, (long long)ms, (long long)took_ms, err.text);
    if (err.status != (int32_t)status || !err.text[0])
        fail_msg("%s(%lld ms): status %d, and the error has %d '%s'", row->name, (long long)ms, status, err.status,
                 err.text);
    return status;
}

/* No call has made a step or an item. */
static void nothing_done(struct fixture *f)
{
    rp_writer *const writers[] = {f->writer, f->ruled, f->begun};
    for (int i = 0; i < 3; i++) {
        rp_writer_info info = {.struct_size = sizeof info};
        assert_int_equal(rp_writer_get_info(writers[i], &info, NULL), RP_OK);
        assert_int_equal(info.created, 2);
        assert_int_equal(info.steps, 1);
        assert_int_equal(info.episode, 0);
    }
}

static bool is_late(rp_status status)
{
    return status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE;
}

FIXTURE(struct fixture, set_up, tear_down)

CASE(in_time)
{
    for (int64_t ms = 60; ms >= 0; ms -= 60)
        for (uint32_t i = 0; i < n_rows; i++) {
            if (rows[i].grace_ms < 0 || (ms == 0 && rows[i].grace_ms > 0))
                continue;
            rp_status status = timed(f, &rows[i], ms, ms ? 59 : 0, ms + rows[i].grace_ms + SLACK_MS);
            if (!is_late(status))
                fail_msg("%s(%lld ms): status %d", rows[i].name, (long long)ms, status);
        }
    nothing_done(f);
}

/* No number overflows into a time-out that has passed; and each wait can be ended. */
CASE(without_end)
{
    static const int64_t long_ms[] = {INT64_MIN, -1, INT64_MAX / 1000000, INT64_MAX - 1000, INT64_MAX};
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t t = i % 2; t < 5; t += 2) {
            int calls = 0;
            rp_wait_set(stop_wait, &calls);
            rp_status status =
                timed(f, &rows[i], long_ms[t], 45, 1000 + SLACK_MS); /* an answer to a cancel may take 1 s */
            rp_wait_set(NULL, NULL);
            if (status != RP_CANCELLED || calls == 0)
                fail_msg("%s(%lld ms): status %d", rows[i].name, (long long)long_ms[t], status);
        }
    nothing_done(f);
}

/* Objects can be destroyed but once, so this is no measurement: only a wait without end would fail. */
static void took(int64_t start, int64_t least_ms)
{
    assert_in_range(now_ms() - start, least_ms, least_ms + WAIT);
}

CASE(destroy_in_time)
{
    int64_t start = now_ms();
    assert_int_equal(rp_writer_destroy(&f->writer, 60, &err), RP_DEADLINE_EXCEEDED);
    took(start, 59);
    start = now_ms();
    assert_int_equal(rp_updater_destroy(&f->updater, 60, &err), RP_DEADLINE_EXCEEDED);
    took(start, 59);
    start = now_ms();
    assert_int_equal(rp_publisher_destroy(&f->publisher, 60, &err), RP_DEADLINE_EXCEEDED);
    took(start, 59);
    fakepeer_set(&f->peer, &f->peer.deaf, false);
    rp_writer *idle = rp_writer_new(f->client, &column, 1, NULL, WAIT, &err);
    fakepeer_set(&f->peer, &f->peer.deaf, true);
    assert_int_equal(rp_writer_destroy(&idle, 60, &err), RP_OK); /* BYE is not answered */
}

/* The options of a sampler and the pauses of a client take any number, too. */
CASE(options)
{
    rp_batch *batch;
    SCOPED(rp_sampler) endless = SAMPLER(f->real, "replay", .end_after_ms = INT64_MAX);
    assert_int_equal(rp_sampler_next(endless, &batch, 60, &err), RP_DEADLINE_EXCEEDED);
    must_fail_new(rp_client_connect("tcp://127.0.0.1:1",
                                    OPTIONS(rp_client, .backoff_min_ms = INT64_MAX, .backoff_max_ms = INT64_MAX), 60,
                                    &err),
                  RP_UNAVAILABLE, NULL);
}

/* A client that was opened connects by itself, however short the waits for it are. */
CASE(open_and_wait)
{
    rp_status status;
    SCOPED(rp_client) client = must(rp_client_open(rp_server_endpoint(f->server), NULL, &err));
    wait_until((status = rp_client_wait(client, 0, &err)) != RP_UNAVAILABLE);
    ok(status);
    ok(rp_client_wait(client, 0, &err));
    assert_string_equal(rp_client_table(client, 0), rp_client_table(f->real, 0));
}

struct waiter {
    rp_client *client;
    pthread_t thread;
    atomic_int looks; /* while it waits */
    rp_status first, second;
};

static int count_look(void *ctx)
{
    struct waiter *self = ctx;
    atomic_fetch_add(&self->looks, 1);
    return 0;
}

static void *wait_twice(void *ctx)
{
    struct waiter *self = ctx;
    rp_wait_set(count_look, self);
    self->first = rp_client_wait(self->client, WAIT, NULL);
    self->second = rp_client_wait(self->client, 0, NULL);
    return NULL;
}

/* The broker stands still until both threads wait for it. Nothing fails before they have ended: they use the client. */
CASE(two_threads_wait_at_once)
{
    pthread_mutex_lock(&f->peer.mutex);
    f->peer.deaf = false;
    rp_client *client = rp_client_open(f->peer.endpoint, NULL, &err);
    struct waiter waiters[2] = {{.client = client}, {.client = client}};
    int started = 0;
    while (client && started < 2 && pthread_create(&waiters[started].thread, NULL, wait_twice, &waiters[started]) == 0)
        started++;
    for (int64_t end = now_ms() + WAIT / 2; started == 2 && now_ms() < end && !(waiters[0].looks && waiters[1].looks);)
        nanosleep(&(struct timespec){.tv_nsec = 2 * NS_PER_MS}, NULL);
    pthread_mutex_unlock(&f->peer.mutex);
    for (int i = 0; i < started; i++)
        pthread_join(waiters[i].thread, NULL);
    must(client);
    rp_client_destroy(&client);
    assert_int_equal(started, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(waiters[i].looks > 0);
        assert_int_equal(waiters[i].first, RP_OK);
        assert_int_equal(waiters[i].second, RP_OK);
    }
}

static int twice(void *ctx)
{
    int *calls = ctx;
    return ++*calls == 2;
}

/* A function that lets a wait go on is called again; one that is called may use the library. */
static int use_library(void *ctx)
{
    struct fixture *f = ctx;
    int64_t value = 0;
    return rp_counter_add(f->real, "inside", 1, WAIT, &value, &err) == RP_OK && value == 3;
}

CASE(wait_function)
{
    int calls = 0;
    rp_batch *batch;
    rp_wait_set(twice, &calls);
    int64_t start = now_ms();
    assert_int_equal(rp_sampler_next(f->sampler, &batch, -1, &err), RP_CANCELLED);
    assert_in_range(now_ms() - start, 95, 100 + WAIT);
    rp_wait_set(use_library, f);
    assert_int_equal(rp_sampler_next(f->sampler, &batch, -1, &err), RP_CANCELLED);
    rp_wait_set(NULL, NULL);
    int64_t value = 0;
    assert_int_equal(rp_counter_read(f->real, "inside", WAIT, &value, &err), RP_OK);
    assert_int_equal(value, 3);
    assert_int_equal(rp_sampler_next(f->sampler, &batch, 60, &err), RP_DEADLINE_EXCEEDED);
}
