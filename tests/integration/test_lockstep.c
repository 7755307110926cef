/* A whole run in one process: the same every time, no more learning than the limiter allows, and no more steps than were
 * asked for. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "agent/run/lockstep.h"
#include "tests/support/process.h"
#include "tests/support/runtext.h"

static const char dqn[] =
    "environment: {name: CartPole-v1}\n"
    "agent: {algorithm: dqn, hidden: [32], batch: 16, learning_rate: 1e-3}\n"
    "adder: {table: replay, n_step: 3}\n"
    "actors: {count: 2, epsilon: 0.4, epsilon_steps: 500}\n"
    "evaluator: {episodes: 3, every: 1000}\n"
    "stop: {steps: 3000}\n"
    "broker:\n"
    "  tables:\n"
    "    - name: replay\n"
    "      max_size: 2000\n"
    "      sampler: {kind: prioritized, exponent: 0.6}\n"
    "      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, min_size: 200, error_buffer: 160}\n";

static const char impala[] =
    "environment: {name: CartPole-v1}\n"
    "agent: {algorithm: impala, hidden: [32], batch: 4}\n"
    "adder: {kind: sequence, table: trajectories, length: 11, period: 10, end: continue}\n"
    "actors: {count: 3}\n"
    "evaluator: {episodes: 3}\n"
    "stop: {steps: 1500}\n"
    "broker:\n"
    "  tables:\n"
    "    - {name: trajectories, max_size: 32, max_times_sampled: 1, sampler: {kind: fifo}, remover: {kind: fifo},\n"
    "       limiter: {kind: queue}}\n";

static const char td3[] =
    "environment: {name: Pendulum-v1}\n"
    "agent: {algorithm: td3, hidden: [16, 16], batch: 8}\n"
    "adder: {table: replay}\n"
    "actors: {count: 1, noise_sigma: 0.1, noise_correlation: 0.5, random_steps: 200}\n"
    "evaluator: {episodes: 2}\n"
    "stop: {steps: 1000}\n"
    "broker:\n"
    "  tables:\n"
    "    - {name: replay, max_size: 2000, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8,\n"
    "       min_size: 200, error_buffer: 16}}\n";

#define SET(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct lockstep_report run(const char *text, const char *const *overrides)
{
    struct run_config config = runtext_read(text, overrides);
    struct lockstep_report result;
    ok(lockstep_run(&(struct lockstep_options){.config = &config}, &result, &err));
    run_config_free(&config);
    return result;
}

static bool same(const struct lockstep_report *a, const struct lockstep_report *b)
{
    return a->fingerprint == b->fingerprint && memcmp(&a->evaluation, &b->evaluation, sizeof a->evaluation) == 0 &&
           a->steps == b->steps && a->learner_steps == b->learner_steps && a->episodes == b->episodes &&
           a->inserted == b->inserted;
}

/* ---- the same run twice ---- */

/* Returns its report; another seed has another one. */
static struct lockstep_report repeat(const char *text)
{
    struct lockstep_report a = run(text, NULL), b = run(text, NULL), other = run(text, SET("seed=2"));
    assert_true(same(&a, &b));
    assert_int_equal(other.steps, a.steps);
    assert_true(other.fingerprint != a.fingerprint);
    return a;
}

TEST(dqn_repeats)
{
    struct lockstep_report a = repeat(dqn);
    assert_int_equal(a.steps, 3000);
    assert_true(a.learner_steps > 1000 && a.episodes > 20 && a.evaluation >= 8.0 && a.evaluation <= 500.0);
}

TEST(impala_repeats)
{
    struct lockstep_report a = repeat(impala);
    /* Each sequence is learned from once, as soon as there is a batch of them. */
    assert_int_equal(a.steps, 1500);
    assert_int_equal(a.learner_steps, a.inserted / 4);
    /* Items of 11 steps begin every 10; each end of an episode is a step more. Three streams are cut off at the end. */
    uint64_t rows = a.steps + a.episodes;
    assert_in_range(a.inserted, rows / 10 - 6, rows / 10);
}

TEST(td3_repeats)
{
    struct lockstep_report a = repeat(td3);
    assert_int_equal(a.steps, 1000);
    assert_int_equal(a.episodes, 5); /* of 200 steps */
    assert_true(a.evaluation < 0.0 && a.evaluation > -2000.0);
}

TEST(looking_changes_nothing)
{
    struct lockstep_report a = run(dqn, NULL), b = run(dqn, SET("evaluator.every=50"));
    assert_int_equal(a.fingerprint, b.fingerprint);
    assert_int_equal(a.learner_steps, b.learner_steps);
}

/* ---- what the limiter allows ---- */

/* Samples may run ahead of samples_per_insert by the error buffer, in whole batches. That the table saw no other insert
 * than the actors' (the evaluator's episodes are many) follows from the equality, with a learner step for each insert. */
static uint64_t allowed(const struct lockstep_report *result, uint64_t ratio, uint64_t min_size, uint64_t buffer,
                        uint64_t batch)
{
    assert_true(result->inserted >= min_size);
    return (result->inserted * ratio - (min_size * ratio - buffer)) / batch;
}

TEST(exact_ratio)
{
    struct lockstep_report a = run(dqn, SET("evaluator.every=100"));
    assert_int_equal(a.learner_steps, allowed(&a, 8, 200, 160, 16));
    a = run(dqn, SET("broker.tables[0].limiter.samples_per_insert=16", "evaluator.every=100"));
    assert_int_equal(a.learner_steps, allowed(&a, 16, 200, 160, 16));
    /* A ratio and a buffer that batches do not divide. */
    a = run(dqn, SET("broker.tables[0].limiter.samples_per_insert=5", "broker.tables[0].limiter.error_buffer=77",
                     "agent.batch=24", "stop.steps=1000"));
    assert_int_equal(a.learner_steps, allowed(&a, 5, 200, 77, 24));
    a = run(td3, NULL);
    assert_int_equal(a.learner_steps, allowed(&a, 8, 200, 16, 8));
    assert_int_equal(a.inserted, a.steps); /* one item per step */
}

/* Without an episode's beginning and end, one item per step. */
TEST(items)
{
    struct lockstep_report a = run(dqn, SET("adder.n_step=1", "evaluator.every=100"));
    assert_in_range(a.inserted, a.steps - 2, a.steps); /* what follows the last step of an actor is not known yet */
}

/* ---- limiters that a run in one process cannot have ---- */

static void refused(const char *text, const char *const *overrides, const char *why)
{
    err = (rp_error){0};
    struct run_config config = runtext_read(text, overrides);
    struct lockstep_report result;
    assert_int_equal(lockstep_run(&(struct lockstep_options){.config = &config}, &result, &err), RP_INVALID_ARGUMENT);
    assert_string_equal(err.text, why);
    assert_int_equal(result.steps, 0);
    run_config_free(&config);
}

TEST(unbounded_refused)
{
    refused(dqn, SET("broker.tables[0].limiter=min_size"),
            "a run in one process learns for as long as the limiter of table 'replay' lets it, and a min_size limiter "
            "always does: use sample_to_insert_ratio or queue");
    refused(dqn, SET("broker.tables[0].limiter=none"),
            "a run in one process learns for as long as the limiter of table 'replay' lets it, and a none limiter "
            "always does: use sample_to_insert_ratio or queue");
}

/* Six actors with episodes that end in the same round insert 24 items, which takes the cursor on by 192. */
TEST(narrow_refused)
{
    refused(dqn, SET("actors.count=6", "broker.tables[0].limiter.error_buffer=183"),
            "the limiter of table 'replay' leaves less room than a run in one process needs: a batch, and what 6 "
            "actors insert in one round; write error_buffer of at least 184");
    struct lockstep_report a =
        run(dqn, SET("actors.count=6", "broker.tables[0].limiter.error_buffer=184", "stop.steps=900"));
    assert_int_equal(a.steps, 900);
    assert_int_equal(a.learner_steps, allowed(&a, 8, 200, 184, 16));
    refused(impala, SET("broker.tables[0].max_size=8"),
            "the limiter of table 'trajectories' has room for 8 items; a run in one process needs 9: a batch, and what "
            "3 actors insert in one round");
    a = run(impala, SET("broker.tables[0].max_size=9"));
    assert_int_equal(a.learner_steps, a.inserted / 4);
}

/* ---- the end ---- */

TEST(limits)
{
    struct lockstep_report a = run(dqn, SET("actors.count=4", "stop.steps=501")); /* not a multiple of the actors */
    assert_int_equal(a.steps, 501);
    a = run(dqn, SET("stop.learner_steps=100", "broker.tables[0].limiter.samples_per_insert=64",
                     "broker.tables[0].limiter.error_buffer=640"));
    assert_int_equal(a.learner_steps, 100);
    assert_in_range(a.steps, 150, 300);
    a = run(dqn, SET("stop.value=1", "evaluator.every=300")); /* every policy reaches it */
    assert_int_equal(a.steps, 300);
    assert_true(a.evaluation >= 1.0);
    a = run(dqn, SET("stop.steps=0", "stop.time=200ms"));
    assert_true(a.steps > 0 && a.seconds >= 0.2);
}

struct stopper {
    atomic_bool stop;
    uint64_t at; /* steps; 0: never */
    uint64_t reports, evaluations, last_steps, last_learner_steps;
};

static void on_report(void *ctx, const struct lockstep_report *report)
{
    struct stopper *self = ctx;
    assert_true(report->steps >= self->last_steps && report->learner_steps >= self->last_learner_steps);
    self->last_steps = report->steps;
    self->last_learner_steps = report->learner_steps;
    if (isnan(report->evaluation)) /* those of evaluations come in addition */
        assert_int_equal(report->steps, 100 * ++self->reports);
    else
        self->evaluations++;
    if (self->at > 0 && report->steps >= self->at)
        atomic_store(&self->stop, true);
}

static struct lockstep_report run_stopped(struct stopper *stopper, const char *const *overrides)
{
    struct run_config config = runtext_read(dqn, overrides);
    struct lockstep_report result;
    const struct lockstep_options options = {
        .config = &config, .report_every = 100, .report = on_report, .ctx = stopper, .stop = &stopper->stop};
    ok(lockstep_run(&options, &result, &err));
    run_config_free(&config);
    return result;
}

TEST(stop)
{
    struct stopper stopper = {.at = 700};
    struct lockstep_report a = run_stopped(&stopper, SET("evaluator.every=0"));
    assert_int_equal(a.steps, 700);
    assert_int_equal(stopper.reports, 7);
    assert_true(isnan(a.evaluation));
    assert_true(a.learner_steps > 0 && a.fingerprint != 0);

    stopper = (struct stopper){.stop = true};
    a = run_stopped(&stopper, NULL);
    assert_int_equal(a.steps, 0);
    assert_int_equal(stopper.reports, 0);
}

/* A million episodes would take minutes; the signal comes in the middle of them. */
static atomic_bool alarmed;

static void on_alarm(int number)
{
    (void)number;
    atomic_store(&alarmed, true);
}

TEST(stop_while_evaluating)
{
    struct run_config config = runtext_read(dqn, SET("evaluator.every=100", "evaluator.episodes=1000000"));
    struct lockstep_report result;
    struct sigaction action = {.sa_handler = on_alarm}, before;
    struct itimerval timer = {.it_value = {.tv_usec = 400000}};
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &timer, NULL);
    assert_int_equal(lockstep_run(&(struct lockstep_options){.config = &config, .stop = &alarmed}, &result, &err),
                     RP_OK);
    sigaction(SIGALRM, &before, NULL);
    assert_true(alarmed);
    assert_int_equal(result.steps, 100);
    assert_true(isnan(result.evaluation));
    run_config_free(&config);
}

TEST(reports)
{
    struct stopper stopper = {0};
    struct lockstep_report a = run_stopped(&stopper, SET("stop.steps=1000", "evaluator.every=500"));
    assert_int_equal(stopper.reports, 10);
    assert_int_equal(stopper.evaluations, 3); /* two on the way, one at the end */
    assert_int_equal(stopper.last_steps, a.steps);
    assert_int_equal(stopper.last_learner_steps, a.learner_steps);
}

/* ---- one thread ---- */

struct threads {
    uint32_t before, most;
};

static void watch_threads(void *ctx, const struct lockstep_report *report)
{
    struct threads *self = ctx;
    uint32_t now = process_threads();
    (void)report;
    self->most = now > self->most ? now : self->most;
}

static long voluntary_switches(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_nvcsw;
}

/* Broker, client, actors and learner call each other: nobody is waited for, of any algorithm. Beside the caller there is
 * at most the thread of the process that brings in memory for brokers. */
TEST(no_hand_overs)
{
    static const char *const runs[] = {dqn, impala, td3};
    for (uint32_t i = 0; i < 3; i++) {
        struct run_config config = runtext_read(runs[i], SET("evaluator.every=0"));
        struct threads threads = {.before = process_threads()};
        struct lockstep_report result;
        const struct lockstep_options options = {
            .config = &config, .report_every = 50, .report = watch_threads, .ctx = &threads};
        long switches = voluntary_switches();
        ok(lockstep_run(&options, &result, &err));
        switches = voluntary_switches() - switches;
        if (switches > (long)result.steps / 10)
            fail_msg("%ld voluntary context switches in %llu steps", switches, (unsigned long long)result.steps);
        assert_in_range(threads.most, 1, threads.before + 1);
        run_config_free(&config);
    }
}
