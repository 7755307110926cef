/* An observer of a real broker: counters, who waits and what for, and what is told while the broker is away. */
#include "agent/launch/process/observe.h"

#include "tests/support/numbers.h"
#include "tests/support/process.h"

static const char tables[] = "  - name: other\n"
                             "  - name: queue\n"
                             "    max_size: 4\n"
                             "    max_times_sampled: 1\n"
                             "    sampler: {kind: fifo}\n"
                             "    limiter: {kind: queue}\n";

struct fixture {
    SERVED;
    rp_writer *writer;
    rp_sampler *sampler;
    struct observer *observer;
    struct observation seen;
};

static const struct run_config config = {.adder.table = (char[]){"queue"}, .actors.command.count = 1};
static const struct command_context context = {.config = &config, .folder = ""};

static void set_up(struct fixture *f)
{
    served_start(f, tables, NULL, OPTIONS(rp_client, .name = "actor-3", .backoff_max_ms = 200));
    f->observer = must(observer_new(&context, f->broker.service, 0, 5000, &err));
}

static void tear_down(struct fixture *f)
{
    observer_destroy(&f->observer);
    rp_sampler_destroy(&f->sampler);
    rp_writer_destroy(&f->writer, 0, NULL);
    served_stop(f);
}

FIXTURE(struct fixture, set_up, tear_down)

/* Who waits at the queue, by what the broker says. */
static bool is_blocked(const struct fixture *f, enum why_side side)
{
    struct why why;
    observer_why(f->observer, NULL, &why);
    return why.blocked == side && strcmp(why.table, "queue") == 0;
}

static bool insert_waits(struct fixture *f)
{
    observer_poll(f->observer, WAIT, &f->seen);
    return is_blocked(f, WHY_SIDE_ACTORS) && f->seen.inserts == 4;
}

static bool sample_waits(struct fixture *f)
{
    observer_poll(f->observer, WAIT, &f->seen);
    return is_blocked(f, WHY_SIDE_LEARNERS) && f->seen.samples == 9;
}

CASE(counts_and_waits)
{
    rp_counter_add(f->client, "environment_steps", 70, WAIT, NULL, NULL);
    rp_counter_add(f->client, "environment_steps_taken", 3, WAIT, NULL, NULL); /* what an earlier leg has put back */
    rp_counter_add(f->client, "learner_steps", 7, WAIT, NULL, NULL);
    rp_params_put(f->client, "policy", "p", 1, WAIT, NULL, NULL);
    rp_params_put(f->client, "policy", "q", 1, WAIT, NULL, NULL);
    f->writer = numbers_writer(f->client);
    for (int32_t i = 0; i < 9; i++)
        numbers_write(f->writer, "queue", i, 1);
    wait_until(insert_waits(f));
    assert_true(f->seen.broker);
    assert_int_equal(f->seen.inserts, 4);
    assert_int_equal(f->seen.size, 4);
    assert_int_equal(f->seen.max_size, 4);
    assert_int_equal(f->seen.steps, 70);
    assert_int_equal(f->seen.taken, 70); /* actors of the user's own claim what they take */
    assert_int_equal(f->seen.learner_steps, 7);
    assert_int_equal(f->seen.policy, 2);
    assert_true(isnan(f->seen.actor_idle) && isnan(f->seen.value)); /* there is no folder */
    f->sampler = SAMPLER(f->client, "queue", .batch_size = 20, .in_flight = 2);
    wait_until(sample_waits(f));
    assert_int_equal(f->seen.inserts, 9);
    assert_int_equal(f->seen.samples, 9);
}

static bool broker_answers(struct fixture *f)
{
    observer_poll(f->observer, 200, &f->seen);
    return f->seen.broker;
}

/* Without a broker what it said last stands, and nobody waits longer than asked for. */
CASE(broker_goes_and_comes)
{
    rp_counter_add(f->client, "environment_steps", 70, WAIT, NULL, NULL);
    wait_until(broker_answers(f));
    uint64_t instance = f->seen.broker_instance;
    broker_process_stop(&f->broker, SIGKILL);
    int64_t before = f->seen.at_ns;
    assert_false(broker_answers(f));
    assert_true(f->seen.at_ns - before < INT64_C(20000000000));
    assert_int_equal(f->seen.steps, 70);
    broker_process_again(&f->broker, NULL);
    wait_until(broker_answers(f));
    assert_true(f->seen.broker_instance != instance);
    assert_int_equal(f->seen.steps, 0);
}

CASE(nobody_answers)
{
    assert_null(observer_new(&context, "nonsense", 0, 5000, &err));
    assert_true(err.text[0] != '\0');
}
