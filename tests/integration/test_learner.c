/* A learner against a real broker, and what a table may hold that it did not expect. */
#include <pthread.h>
#include <time.h>

#include "agent/run/learner.h"
#include "proto/base/clock.h"
#include "tests/support/asked.h"
#include "tests/support/facts.h"
#include "tests/support/numbers.h"
#include "tests/support/process.h"
#include "tests/support/runtext.h"

#define BATCH 8

static const char tables[] = "  - {name: replay, max_size: 1000, sampler: {kind: prioritized, exponent: 0.6}}\n";

struct fixture {
    SERVED;
    struct run_config config;
    struct env env;
    struct agent *agent;
    struct learner *learner;
    atomic_bool stop;
    const char *learners; /* the section of the configuration; NULL: prefetch: 1 */
    int batch;            /* 0: BATCH */
};

static void open_learner(struct fixture *f, const char *environment, const char *agent, const char *adder)
{
    const char *text = textf("environment: {name: %s}\nagent: {%s, hidden: [8], batch: %d}\nadder: {%s}\n"
                             "learners: {%s}\nbroker:\n  tables:\n%s",
                             environment, agent, f->batch ? f->batch : BATCH, adder,
                             f->learners ? f->learners : "prefetch: 1", tables);
    /* Not every algorithm gives priorities. */
    static const char *const uniform[] = {"broker.tables[0].sampler={kind: uniform}", NULL};
    bool sequences = strstr(adder, "kind: sequence") != NULL;
    f->config = runtext_read(text, sequences ? uniform : NULL);
    ok(env_open(&f->env, &f->config.environment, &err));
    f->agent = must(agent_new(&f->config.agent, environment, &f->env.spec, 1, &err));
    struct learner_options options = {.config = &f->config, .client = f->client, .agent = f->agent, .stop = &f->stop};
    f->learner = must(learner_new(&options, &err));
}

static void open_pendulum(struct fixture *f, const char *algorithm)
{
    open_learner(f, "Pendulum-v1", textf("algorithm: %s", algorithm), "kind: transition, table: replay");
}

static void setup(struct fixture *f)
{
    served_start(f, tables, NULL, NULL);
}

static void teardown(struct fixture *f)
{
    learner_destroy(&f->learner);
    agent_destroy(&f->agent);
    env_close(&f->env);
    run_config_free(&f->config);
    served_stop(f);
}

FIXTURE(struct fixture, setup, teardown)

/* Items of one transition of Pendulum-v1, whose numbers are all `value` but for their rewards. */
static void insert(struct fixture *f, uint32_t n, float value, float reward)
{
    const rp_column columns[] = {
        {.name = "observation", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {3}},
        {.name = "action", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {1}},
        {.name = "reward", .dtype = RP_DTYPE_FLOAT32},
        {.name = "discount", .dtype = RP_DTYPE_FLOAT32},
        {.name = "next_observation", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {3}},
    };
    rp_slice slices[5];
    for (uint32_t i = 0; i < 5; i++)
        slices[i] = (rp_slice){.field = columns[i].name, .column = i, .count = 1, .squeeze = 1};
    SCOPED(rp_writer) writer = must(rp_writer_new(f->client, columns, 5, NULL, WAIT, &err));
    for (uint32_t i = 0; i < n; i++) {
        float three[3] = {value, 0.1f * (float)i, value};
        const void *row[] = {three, &value, &reward, &value, three};
        ok(rp_writer_append(writer, row, WAIT, &err));
        for (uint32_t k = 0; k < 5; k++)
            slices[k].start = (int64_t)i;
        ok(rp_writer_item(writer, "replay", 1.0, slices, 5, WAIT, NULL, &err));
    }
}

static void take_steps(struct fixture *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ok(learner_step(f->learner, WAIT, &err));
}

static double scalar(const struct learner_stats *stats, const char *name)
{
    double value = NAN;
    uint32_t found = 0;
    for (uint32_t i = 0; i < stats->n_scalars; i++)
        if (strcmp(stats->scalars[i].name, name) == 0) {
            value = stats->scalars[i].value;
            found++;
        }
    if (found != 1)
        fail_msg("'%s' is there %u times", name, found);
    return value;
}

/* Each second step of TD3 has scalars of the policy: means are over the steps that have one. */
CASE(scalars)
{
    enum { STEPS = 24, NAMES = 4 };
    static const char *const names[NAMES] = {"loss", "gradient_norm", "policy_gradient_norm", "policy_loss"};
    open_pendulum(f, "td3");
    insert(f, 2 * BATCH, 0.5f, -1.0f);
    struct learner_stats one, all;
    double sums[NAMES] = {0};
    take_steps(f, STEPS);
    learner_take_stats(f->learner, &all);
    assert_int_equal(all.n_scalars, 6);
    for (uint32_t i = 0; i < STEPS; i++) {
        ok(learner_step(f->learner, WAIT, &err));
        learner_take_stats(f->learner, &one);
        assert_int_equal(one.n_scalars, i % 2 ? 6 : 4);
        for (uint32_t k = 0; k < (i % 2 ? NAMES : 2); k++)
            sums[k] += scalar(&one, names[k]);
    }
    /* Little changes in so many steps: means of the same quantity are close. */
    for (uint32_t k = 0; k < NAMES; k++) {
        double mean = scalar(&all, names[k]), next = sums[k] / (k < 2 ? STEPS : STEPS / 2);
        if (!(fabs(mean - next) <= 0.3 * fabs(next) + 0.02))
            fail_msg("%s: %g over so many steps, and then %g", names[k], mean, next);
    }
}

/* Anybody may insert anything: numbers that are not finite cost a step, not the learner. */
CASE(not_finite)
{
    open_learner(f, "Pendulum-v1", "algorithm: ddpg, options: {huber: 1}", "kind: transition, table: replay");
    insert(f, BATCH, 0.5f, NAN);
    insert(f, BATCH, 0.5f, INFINITY);
    insert(f, BATCH, NAN, 1.0f);
    take_steps(f, 20);
    for (uint32_t i = 0; i < f->agent->n_params; i++)
        assert_true(isfinite(f->agent->params[i]));
    /* What was refused would be told by the updates that follow. */
    insert(f, 2 * BATCH, 0.5f, 1.0f);
    take_steps(f, 20);
}

CASE(other_items)
{
    open_learner(f, "CartPole-v1", "algorithm: dqn", "kind: transition, table: replay");
    insert(f, 2 * BATCH, 0.5f, 1.0f);
    must_fail(learner_step(f->learner, WAIT, &err), RP_FAILED_PRECONDITION, "another environment");
}

/* Items with another field, as any holder of an actor's key may insert them into a table without a signature: they are
 * counted, cost a batch, and a prioritized table hardly picks them again. */
CASE(other_items_are_skipped)
{
    struct learner_stats stats;
    open_pendulum(f, "ddpg");
    insert(f, 8 * BATCH, 0.5f, 1.0f);
    take_steps(f, 20);
    learner_take_stats(f->learner, &stats);
    numbers_insert(f->client, "replay", 0, 4 * BATCH, NULL);
    for (uint64_t skipped = 0; skipped < BATCH; skipped += stats.skipped) {
        ok(learner_step(f->learner, WAIT, &err));
        learner_take_stats(f->learner, &stats);
    }
    take_steps(f, 200);
    learner_take_stats(f->learner, &stats);
    take_steps(f, 100);
    learner_take_stats(f->learner, &stats);
    assert_in_range(stats.skipped, 0, BATCH);
    assert_true(stats.batches >= 90);
}

CASE(other_lengths)
{
    open_learner(f, "CartPole-v1", "algorithm: impala", "kind: sequence, table: replay, length: 2, period: 1");
    insert(f, 2 * BATCH, 0.5f, 1.0f);
    assert_int_equal(learner_step(f->learner, WAIT, &err), RP_FAILED_PRECONDITION);
    assert_true(facts_within(err.text, "those of this run have 1 to 2"));
}

/* Longer steps are no wait for data. */
CASE(delay)
{
    open_pendulum(f, "td3");
    insert(f, 2 * BATCH, 0.5f, -1.0f);
    ok(learner_step(f->learner, WAIT, &err)); /* the first batch is on its way then */
    struct learner_stats stats;
    learner_take_stats(f->learner, &stats);
    uint64_t before = idle_total(learner_idle(f->learner));
    f->config.learners.delay_ns = 60 * NS_PER_MS; /* more than one nap */
    int64_t start_ns = clock_ns();
    take_steps(f, 3);
    learner_take_stats(f->learner, &stats);
    assert_int_equal(stats.batches, 3);
    int64_t idle_ns = (int64_t)(idle_total(learner_idle(f->learner)) - before);
    assert_true(idle_ns + 180 * NS_PER_MS <= clock_ns() - start_ns); /* a delay is not counted as idle time */
}

static void *stop_soon(void *stop)
{
    nanosleep(&(struct timespec){.tv_nsec = 20 * NS_PER_MS}, NULL);
    atomic_store((atomic_bool *)stop, true);
    return NULL;
}

/* A step of an hour ends when it is told to. */
CASE(delay_is_stopped)
{
    open_pendulum(f, "td3");
    insert(f, 2 * BATCH, 0.5f, -1.0f);
    atomic_bool stop = false;
    struct learner_options options = {.config = &f->config, .client = f->client, .agent = f->agent, .stop = &stop};
    learner_destroy(&f->learner);
    f->learner = must(learner_new(&options, &err));
    f->config.learners.delay_ns = 3600 * NS_PER_S;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &stop), 0);
    ok(learner_step(f->learner, WAIT, &err));
    pthread_join(thread, NULL);
    assert_true(atomic_load(&stop));
    /* Turns in one process do not wait. */
    atomic_store(&stop, false);
    options.lockstep = true;
    learner_destroy(&f->learner);
    f->learner = must(learner_new(&options, &err));
    ok(learner_step(f->learner, WAIT, &err));
}

/* ---- waiting for nothing ---- */

static bool has_sampled(const struct fixture *f)
{
    return asked_table(f->client, "replay", "limiter.samples") ==
           (uint64_t)(f->config.learners.prefetch * f->config.agent.batch);
}

/* A broker that does not answer holds nobody up who has batches: parameters are published at every step, and none of the
 * steps waits for that. */
CASE(publishing_does_not_wait)
{
    f->learners = "prefetch: 6, publish_every: 1";
    open_pendulum(f, "ddpg");
    insert(f, 2 * BATCH, 0.5f, -1.0f);
    wait_until(has_sampled(f));
    kill(f->broker.pid, SIGSTOP);
    take_steps(f, 6);
    kill(f->broker.pid, SIGCONT);
    assert_int_equal(f->agent->steps, 6);
    ok(learner_publish(f->learner, &err));
    SCOPED(rp_params) params = NULL;
    uint64_t steps = 0;
    struct tensor which = {.name = "steps", .dtype = RP_DTYPE_UINT64, .rank = 1, .shape = {1}, .data = &steps};
    ok(rp_params_get(f->client, VARIABLES_SLOT, 0, WAIT, &params, &err));
    ok(weights_decode(rp_params_slot(params)->data, rp_params_slot(params)->bytes, &which, 1, &err));
    assert_int_equal(steps, 6);
}

/* Whatever it waits for is counted, under its cause. */
CASE(waits_have_causes)
{
    /* 33 requests of 256 updates go out, the last one while half of 64 are without an answer; a request of 2048 gathers meanwhile. */
    enum { FULL = (33 * 256 + 2048) / 32 };
    f->batch = 32;
    f->learners = "prefetch: 600, publish_every: 100000";
    open_pendulum(f, "ddpg");
    const uint64_t *idle = learner_idle(f->learner)->ns;
    assert_int_equal(learner_step(f->learner, 30, &err), RP_DEADLINE_EXCEEDED);
    assert_true(idle[IDLE_SAMPLE] >= (uint64_t)(30 * NS_PER_MS));
    assert_int_equal(idle[IDLE_PARAMETERS], 0);
    ok(learner_publish(f->learner, &err));
    assert_true(idle[IDLE_PARAMETERS] > 0);
    insert(f, 64, 0.5f, -1.0f);
    wait_until(has_sampled(f));
    kill(f->broker.pid, SIGSTOP);
    take_steps(f, FULL);
    assert_int_equal(idle[IDLE_UPDATES], 0);
    atomic_store(&f->stop, true);
    assert_int_equal(learner_step(f->learner, WAIT, &err), RP_DEADLINE_EXCEEDED);
    assert_true(idle[IDLE_UPDATES] > 0);
    assert_int_equal(idle[IDLE_REDUCE], 0);
    kill(f->broker.pid, SIGCONT);
}

CASE(reduce_is_a_wait)
{
    f->learners = "count: 2";
    open_pendulum(f, "ddpg");
    insert(f, 2 * BATCH, 0.5f, -1.0f);
    ok(learner_step(f->learner, WAIT, &err));
    assert_true(learner_idle(f->learner)->ns[IDLE_REDUCE] > 0);
}
