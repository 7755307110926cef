/* An observer of a real broker: counters, who waits and what for, and what is told while the broker is away. */
#include "agent/launch/process/observe.h"

#include "replay/collective.h"
#include "replay/replay.h"
#include "tests/support/process.h"

static const char tables[] = "  - name: other\n"
                             "  - name: queue\n"
                             "    max_size: 4\n"
                             "    max_times_sampled: 1\n"
                             "    sampler: {kind: fifo}\n"
                             "    limiter: {kind: queue}\n";

struct fixture {
    struct broker_process broker;
    rp_client *client;
    rp_writer *writer;
    rp_sampler *sampler;
    struct observer *observer;
    struct observation seen;
};

static void set_up(struct fixture *f)
{
    broker_process_start(&f->broker, tables, "");
    rp_client_options options = {.struct_size = sizeof options, .name = "actor-3", .backoff_max_ms = 200};
    f->client = rp_client_connect(f->broker.service, &options, 5000, &err);
    struct observe_options observe = {
        .service = f->broker.service, .table = "queue", .folder = "", .foreign_actors = true};
    f->observer = observer_new(&observe, &err);
    if (!f->client || !f->observer)
        fail_msg("%s", err.text);
}

static void tear_down(struct fixture *f)
{
    observer_destroy(&f->observer);
    rp_sampler_destroy(&f->sampler);
    rp_writer_destroy(&f->writer, 0, NULL);
    rp_client_destroy(&f->client);
    broker_process_fini(&f->broker);
}

FIXTURE(struct fixture, set_up, tear_down)

static void add_items(struct fixture *f, int n)
{
    float value = 1.0f;
    for (int i = 0; i < n; i++) {
        const void *values[] = {&value};
        ok(rp_writer_append(f->writer, values, WAIT, &err));
        ok(rp_writer_item_last(f->writer, "queue", 1.0, 1, WAIT, NULL, &err));
    }
}

static int insert_waits(void *ctx)
{
    struct fixture *f = ctx;
    observer_poll(f->observer, WAIT, &f->seen);
    return f->seen.waiting_inserts == 1 && f->seen.inserts == 4;
}

static int sample_waits(void *ctx)
{
    struct fixture *f = ctx;
    observer_poll(f->observer, WAIT, &f->seen);
    return f->seen.waiting_samplers == 2 && f->seen.samples == 9;
}

CASE(counts_and_waits)
{
    static const rp_column column = {.name = "x", .dtype = RP_DTYPE_FLOAT32};
    rp_counter_add(f->client, "environment_steps", 70, WAIT, NULL, NULL);
    rp_counter_add(f->client, "environment_steps_taken", 3, WAIT, NULL, NULL); /* what an earlier leg has put back */
    rp_counter_add(f->client, "learner_steps", 7, WAIT, NULL, NULL);
    rp_params_put(f->client, "policy", "p", 1, WAIT, NULL, NULL);
    rp_params_put(f->client, "policy", "q", 1, WAIT, NULL, NULL);
    f->writer = must(rp_writer_new(f->client, &column, 1, NULL, WAIT, &err));
    add_items(f, 9);
    assert_true(process_await(insert_waits, f));
    assert_true(f->seen.broker);
    assert_int_equal(f->seen.inserts, 4);
    assert_int_equal(f->seen.size, 4);
    assert_int_equal(f->seen.max_size, 4);
    assert_int_equal(f->seen.steps, 70);
    assert_int_equal(f->seen.taken, 70); /* actors of the user's own claim what they take */
    assert_int_equal(f->seen.learner_steps, 7);
    assert_int_equal(f->seen.policy, 2);
    assert_non_null(strstr(f->seen.inserts_wait, "queue"));
    assert_string_equal(f->seen.samples_wait, "");
    assert_true(isnan(f->seen.actor_idle) && isnan(f->seen.value)); /* there is no folder */
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = 20, .in_flight = 2};
    f->sampler = must(rp_sampler_new(f->client, "queue", &options, &err));
    assert_true(process_await(sample_waits, f));
    assert_int_equal(f->seen.inserts, 9);
    assert_int_equal(f->seen.samples, 9);
    assert_int_equal(f->seen.waiting_inserts, 0);
    assert_string_equal(f->seen.inserts_wait, "");
    assert_true(f->seen.samples_wait[0] != '\0');
}

static int broker_answers(void *ctx)
{
    struct fixture *f = ctx;
    observer_poll(f->observer, 200, &f->seen);
    return f->seen.broker;
}

/* Without a broker what it said last stands, and nobody waits longer than asked for. */
CASE(broker_goes_and_comes)
{
    rp_counter_add(f->client, "environment_steps", 70, WAIT, NULL, NULL);
    assert_true(process_await(broker_answers, f));
    uint64_t instance = f->seen.broker_instance;
    broker_process_stop(&f->broker, SIGKILL);
    int64_t before = f->seen.at_ns;
    assert_false(broker_answers(f));
    assert_true(f->seen.at_ns - before < INT64_C(20000000000));
    assert_int_equal(f->seen.steps, 70);
    broker_process_again(&f->broker, NULL);
    assert_true(process_await(broker_answers, f));
    assert_true(f->seen.broker_instance != instance);
    assert_int_equal(f->seen.steps, 0);
}

CASE(nobody_answers)
{
    struct observe_options observe = {.service = "nonsense", .table = "queue", .folder = ""};
    assert_null(observer_new(&observe, &err));
    assert_true(err.text[0] != '\0');
}
