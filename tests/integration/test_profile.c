/* The profile with real processes: rates of an environment whose speed is known, the cache, a user who has had enough,
 * a child that fails; and that nothing is left running. */
#include "agent/launch/plan/profile.h"

#include "agent/launch/prepare.h"
#include "tests/support/process.h"
#include "tests/support/runtext.h"
#include "tests/support/tempdir.h"

/* One step takes 20 ms, whoever else is at work. */
#define DELAY_S 0.02

static const char config_text[] =
    "name: profile\n"
    "environment: {name: CartPole-v1, delay: 20ms}\n"
    "agent: {algorithm: dqn, hidden: [8], batch: 8}\n"
    "adder: {table: replay, buffer_items: 4}\n"
    "actors: {count: auto, pull_every: 1}\n"
    "learners: {count: auto, delay: 10ms, prefetch: 1}\n"
    "plan: {max_actors: 4, max_learners: 2, measure: 800ms}\n"
    "broker:\n"
    "  tables:\n"
    "    - name: replay\n"
    "      max_size: 10000\n"
    "      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 2000, error_buffer: 800}\n";

static struct guard guard;

struct fixture {
    char path[128];
    struct run_config config;
    struct profile_options options;
    int calls, stop_at; /* of progress */
};

static bool on_progress(void *context, const char *line)
{
    struct fixture *f = context;
    assert_true(line[0] != '\0');
    return ++f->calls != f->stop_at;
}

/* As the launcher does it: the children read a file with everything in it. */
static void set_config(struct fixture *f, const char *const *overrides)
{
    run_config_free(&f->config);
    f->config = runtext_read(config_text, overrides);
    file_put(f->path, PRINTED(schema_print(run_schema(), &f->config, printing)));
}

static void set_up(struct fixture *f)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    snprintf(f->path, sizeof f->path, "%s/config.yaml", tempdir);
    setenv("XDG_CACHE_HOME", tempdir, 1);
    f->options = (struct profile_options){.home.config = &f->config,
                                          .home.programs = process_env("RP_BUILD_DIR"),
                                          .home.config_path = f->path,
                                          .home.here = tempdir,
                                          .home.folder = tempdir,
                                          .home.guard = &guard,
                                          .progress = on_progress,
                                          .context = f};
    set_config(f, NULL);
    f->options.hosts = host_pool_new(&(struct host_pool_options){.home = f->options.home}, &err);
}

static void tear_down(struct fixture *f)
{
    host_pool_destroy(&f->options.hosts);
    run_config_free(&f->config);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct fixture, set_up, tear_down)

/* Of this process, the guard aside. */
static int count_children(void)
{
    int n = 0;
    char *at = file_text(textf("/proc/self/task/%d/children", (int)getpid())), *end;
    for (long pid; (pid = strtol(at, &end, 10)) > 0; at = end)
        n += pid != guard.pid;
    return n;
}

static void check_nothing_runs(void)
{
    struct endpoints endpoints = {0};
    assert_int_equal(count_children(), 0);
    if (endpoints_read(tempdir_at("profile/units/endpoints"), &endpoints, NULL) != RP_OK)
        return;
    assert_null(rp_client_connect(endpoints.service, NULL, 200, &err));
}

static void near(double value, double wanted, double share)
{
    if (!(value > wanted * (1.0 - share) && value < wanted * (1.0 + share)))
        fail_msg("%g is not within %g%% of %g", value, 100.0 * share, wanted);
}

/* Whether other programs took the processor, so that whoever sleeps wakes late. */
static bool disturbed(const struct plan_input *input)
{
    double most = 0;
    for (uint32_t i = 0; i < input->n_runs; i++)
        most = fmax(most, input->runs[i].others);
    return most > 0;
}

/* No step is shorter than its delay, and on a machine that has time for us hardly one is longer. */
static void check_rate(const struct plan_input *input, double rate, double most)
{
    near(rate, most, disturbed(input) ? 0.99 : 0.25);
    assert_true(rate < 1.25 * most);
}

/* A process that got no time may have reported nothing. */
static void check_share(const struct plan_input *input, double share)
{
    assert_true((share >= 0 && share <= 1) || (isnan(share) && disturbed(input)));
}

static void check_rates(const struct plan_input *input)
{
    const struct plan_unit *actor = &input->hosts[0].actor;
    check_rate(input, actor->rate, 1 / DELAY_S);
    assert_true(actor->cpu > 0 && actor->broker_cpu > 0 && actor->memory > 1e6);
    /* 100 steps of 8 items in a second, or a little less. */
    check_rate(input, input->learner.rate, 750.0);
    assert_in_range(input->n_runs, 1, PLAN_MAX_RUNS);
    const struct plan_pair *run = &input->runs[input->n_runs - 1];
    near(run->samples / run->inserts, 4.0, 0.25);
    check_share(input, run->waits.actor[IDLE_CREDIT]);
    check_share(input, run->waits.learner[IDLE_SAMPLE]);
    assert_true(input->broker_memory > 1e6);
}

CASE(measures_and_remembers)
{
    struct plan_input input, again;
    bool from_cache;
    ok(profile_measure(&f->options, &input, &from_cache, &err));
    assert_false(from_cache);
    check_nothing_runs();
    check_rates(&input);
    assert_true(f->calls > 10);
    /* The name makes no difference, and a profile of the same file is not measured again. */
    set_config(f, (const char *const[]){"name=other", "stop.steps=7", "seed=3", NULL});
    f->options.cached = true;
    assert_int_equal(profile_measure(&f->options, &again, &from_cache, &err), RP_OK);
    assert_true(from_cache);
    assert_memory_equal(&again.hosts[0].actor, &input.hosts[0].actor, sizeof input.hosts[0].actor);
    assert_int_equal(again.n_runs, input.n_runs);
    plan_input_free(&again);
    /* A slower environment does. */
    set_config(f, (const char *const[]){"environment.delay=21ms", NULL});
    assert_int_equal(profile_measure(&f->options, &again, &from_cache, &err), RP_NOT_FOUND);
    assert_int_equal(profile_write(&input, tempdir, &err), RP_OK);
    plan_input_free(&input);
}

CASE(respects_numbers)
{
    struct plan_input input;
    bool from_cache;
    set_config(f, (const char *const[]){"actors.count=3", "learners.count=1", "plan.measure=300ms", NULL});
    ok(profile_measure(&f->options, &input, &from_cache, &err));
    assert_int_equal(input.n_runs, 1);
    assert_int_equal(input.runs[0].actors, 3);
    plan_input_free(&input);
    check_nothing_runs();
}

CASE(stops_when_told)
{
    struct plan_input input;
    bool from_cache;
    f->stop_at = 6;
    assert_int_equal(profile_measure(&f->options, &input, &from_cache, &err), RP_CANCELLED);
    check_nothing_runs();
    /* What was not measured to its end is not kept. */
    f->options.cached = true;
    assert_int_equal(profile_measure(&f->options, &input, &from_cache, &err), RP_NOT_FOUND);
}

CASE(tells_who_failed)
{
    struct plan_input input;
    bool from_cache;
    set_config(f, (const char *const[]){"actors.command=[/bin/sh, -c, 'echo no such game >&2; exit 3']", NULL});
    assert_int_equal(profile_measure(&f->options, &input, &from_cache, &err), RP_FAILED_PRECONDITION);
    assert_has(err.text, "actor-0");
    assert_has(err.text, "exit status 3");
    assert_has(err.text, "no such game");
    check_nothing_runs();
}

int main(void)
{
    if (guard_start(&guard, NULL, &err) != RP_OK)
        return 1;
    int status = test_run(NULL, NULL);
    guard_stop(&guard);
    return status;
}
