/* What the profile is made of, without processes: rates from readings, the cache and its key, limits of the machine. */
#include "agent/launch/plan/profile.h"

#include <sys/stat.h>

#include "agent/launch/plan/trial.h"
#include "agent/launch/prepare.h"
#include "agent/launch/process/machine.h"
#include "proto/base/clock.h"
#include "proto/base/rng.h"
#include "tests/support/curves.h"
#include "tests/support/runtext.h"
#include "tests/support/tempdir.h"

struct fixture {
    struct run_config config;
    struct profile_options options;
};

static void read_config(struct fixture *f, const char *const *overrides)
{
    run_config_free(&f->config);
    f->config = runtext_read(NULL, overrides);
}

static void set_up(struct fixture *f)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    setenv("XDG_CACHE_HOME", tempdir, 1);
    f->options = (struct profile_options){.home.config = &f->config,
                                          .home.programs = tempdir,
                                          .home.config_path = "",
                                          .home.here = tempdir,
                                          .home.folder = tempdir};
    read_config(f, NULL);
}

static void tear_down(struct fixture *f)
{
    run_config_free(&f->config);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct fixture, set_up, tear_down)

/* Writes a file and makes the folders above it. */
static void put(const char *name, const char *text)
{
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/'))
        mkdir(tempdir_at(textf("%.*s", (int)(slash - name), name)), 0755);
    file_put(tempdir_at(name), text);
}

/* ---- rates ---- */

/* Reads every 25 ms for so long a counter that grows by `step` `rate` times a second. */
static double rate_of(double rate, uint64_t step, int ms)
{
    struct trial_rate read = {0};
    for (int at = 0; at <= ms; at += 25)
        trial_rate_add(&read, at * NS_PER_MS, 7 + step * (uint64_t)(rate * at * 1e-3));
    return trial_rate_get(&read);
}

TEST(rates)
{
    static const struct {
        double rate;
        uint64_t step;
        int ms;
        double tolerance;
    } cases[] = {{20000, 1, 1000, 0.01}, {50, 1, 1000, 0.03},   {10, 1, 2000, 0.02}, {4, 50, 2000, 0.02},
                 {90, 64, 1000, 0.03},   {5000, 64, 500, 0.01}, {45, 64, 2000, 0.03}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_near(rate_of(cases[i].rate, cases[i].step, cases[i].ms), cases[i].rate * (double)cases[i].step,
                    cases[i].tolerance);
}

TEST(nothing_to_read)
{
    struct trial_rate read = {0};
    assert_true(trial_rate_get(&read) == 0);
    trial_rate_add(&read, 5, 7);
    trial_rate_add(&read, 5, 9); /* no time has passed */
    assert_true(trial_rate_get(&read) == 0);
    trial_rate_add(&read, NS_PER_S, 2); /* another broker */
    assert_true(trial_rate_get(&read) == 0);
    trial_rate_add(&read, 2 * NS_PER_S, 12);
    assert_true(trial_rate_get(&read) == 10);
}

/* ---- the cache ---- */

static struct plan_input example(void)
{
    static struct plan_host home;
    home = (struct plan_host){
        .name = "home", .cores = 2, .memory = 1e9, .actors = true, .learners = true, .actor = {1000.5, 0.3, 0.1, 3e6}};
    struct plan_input input = {
        .hosts = &home, .n_hosts = 1, .spi = 32, .learner = {50000.25, 0.9, 0.2, 5e6}, .broker_memory = 2e7};
    input.runs[0] = run_of(2, 1, 1500, 48000, 0.2, NAN, 1.7);
    input.runs[0].core = NAN;
    input.n_runs = 1;
    return input;
}

static const char *key_of(const struct fixture *f)
{
    return owned(profile_key(&f->options, "one machine\n"));
}

static void key_differs(struct fixture *f, const char *override, bool wanted)
{
    const char *before = key_of(f);
    read_config(f, (const char *const[]){override, NULL});
    if ((strcmp(before, key_of(f)) != 0) != wanted)
        fail_msg("%s: the key %s", override, wanted ? "stays the same" : "changes");
    read_config(f, NULL);
}

CASE(keys)
{
    static const char *const same[] = {"name=x",
                                       "seed=9",
                                       "folder=/tmp/x",
                                       "stop.steps=5000",
                                       "launch.grace=1s",
                                       "report.every=1s",
                                       "broker.service=tcp://127.0.0.1:1234",
                                       "broker.http=127.0.0.1:9100",
                                       "broker.log.level=warn"};
    static const char *const other[] = {"agent.batch=65",
                                        "environment.delay=1ms",
                                        "plan.measure=3s",
                                        "actors.count=auto",
                                        "broker.tables[0].max_size=99999",
                                        "broker.io_threads=2",
                                        "plan.cores=1",
                                        "evaluator.every=7",
                                        "evaluator.episodes=0"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        key_differs(f, same[i], false);
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        key_differs(f, other[i], true);
}

/* A program, a file of the command, and the module of an environment, which change under the same configuration. */
CASE(a_new_build_has_another_key)
{
    static const char *const cases[][2] = {
        {"replay-actor", "seed=1"},
        {"my.py", "actors.command=[python3, '{here}/my.py']"},
        {"my.py", "environment={name: 'python:my:make', spec: {shape: [4], actions: 2}}"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        read_config(f, (const char *const[]){cases[i][1], NULL});
        put(cases[i][0], "one");
        const char *before = key_of(f);
        put(cases[i][0], "three");
        assert_string_not_equal(before, key_of(f));
    }
}

CASE(what_is_kept_comes_back)
{
    struct plan_input input = example(), read;
    assert_false(profile_load("some key\n", &read));
    assert_int_equal(profile_store("some key\n", &input, NULL), RP_OK);
    assert_true(profile_load("some key\n", &read));
    assert_memory_equal(&read.hosts[0].actor, &input.hosts[0].actor, sizeof input.hosts[0].actor);
    assert_true(read.learner.rate == 50000.25);
    assert_true(read.runs[0].inserts == 1500 && isnan(read.runs[0].waits.learner[IDLE_SAMPLE]));
    plan_input_free(&read);
    assert_false(profile_load("other key\n", &read));
}

static const char *cache_path(const char *key)
{
    return textf("replay/profile-%016llx.json", (unsigned long long)rng_hash(0, key));
}

CASE(damage_is_a_miss)
{
    struct plan_input input = example(), read;
    assert_int_equal(profile_store("k", &input, NULL), RP_OK);
    const char *text = owned(strdup(file_text(tempdir_at(cache_path("k")))));
    size_t size = strlen(text);
    assert_true(size > 100);
    /* Cut anywhere before its last bracket. */
    for (size_t cut = 0; cut + 2 < size; cut += 7) {
        put(cache_path("k"), textf("%.*s", (int)cut, text));
        assert_false(profile_load("k", &read));
    }
    /* Any byte replaced: a miss or a number, never a crash. */
    for (size_t i = 0; i < size; i += 3) {
        put(cache_path("k"), textf("%.*s%c%s", (int)i, text, "x\"}0-"[i % 5], text + i + 1));
        profile_load("k", &read);
        plan_input_free(&read);
    }
    /* The text of another key under this one's name. */
    put(cache_path("other"), text);
    assert_false(profile_load("other", &read));
    put(cache_path("k"), "[]");
    assert_false(profile_load("k", &read));
    put(cache_path("k"), text);
    assert_true(profile_load("k", &read));
    plan_input_free(&read);
}

CASE(measurements_that_cannot_be)
{
    struct plan_input input = example(), read;
    input.hosts[0].actor.rate = 0;
    assert_int_equal(profile_store("k", &input, NULL), RP_OK);
    assert_false(profile_load("k", &read));
    input = example();
    input.learner.rate = NAN;
    assert_int_equal(profile_store("k", &input, NULL), RP_OK);
    assert_false(profile_load("k", &read));
}

CASE(no_place_for_a_cache)
{
    struct plan_input input = example(), read;
    const char *path = tempdir_at("file");
    file_put(path, "");
    setenv("XDG_CACHE_HOME", path, 1);
    assert_int_equal(profile_store("k", &input, &err), RP_IO);
    assert_non_null(strstr(err.text, path));
    assert_false(profile_load("k", &read));
}

/* ---- targets ---- */

CASE(targets)
{
    static const struct {
        const char *limiter, *times;
        double wanted;
    } cases[] = {
        {"{kind: sample_to_insert_ratio, samples_per_insert: 8, min_size: 100, error_buffer: 800}", "0", 8},
        {"queue", "1", 1},
        {"queue", "4", 4},
        {"{kind: min_size, min_size: 100}", "0", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        read_config(f, (const char *const[]){textf("broker.tables[0].limiter=%s", cases[i].limiter),
                                             textf("broker.tables[0].max_times_sampled=%s", cases[i].times), NULL});
        assert_true(run_config_ratio(&f->config) == cases[i].wanted);
    }
}

/* ---- what lasts ---- */

CASE(items_per_step)
{
    read_config(f, (const char *const[]){"adder.n_step=10", NULL});
    assert_true(profile_items_per_step(&f->config) == 1);
    read_config(f, (const char *const[]){"actors.command=[./mine]", NULL});
    assert_true(profile_items_per_step(&f->config) == 0);
    static const char *const sequences[] = {"agent={algorithm: impala}",
                                            "adder.kind=sequence",
                                            "adder.length=21",
                                            "adder.period=20",
                                            "broker.tables[0].sampler={kind: uniform}",
                                            NULL};
    read_config(f, sequences);
    assert_near(profile_items_per_step(&f->config), 1.0 / 20.0, 1e-12);
}

TEST(what_lasts)
{
    assert_true(profile_lasting(0, 100, 170) == 170);
    assert_true(profile_lasting(1.5, 0, 170) == 170);
    assert_true(profile_lasting(1.5, 100, 170) == 150);
    assert_true(profile_lasting(1.5, 100, 120) == 120);
    /* Neither side held the other one back: all items that fall away are missing for the learners. */
    struct plan_pair joint = {
        .inserts = 200, .samples = 800, .waits.actor[IDLE_CREDIT] = 0, .waits.learner[IDLE_SAMPLE] = 0.5};
    profile_lasting_pair(1.0, 100, &joint);
    assert_near(joint.inserts, 100, 1e-12);
    assert_near(joint.samples, 400, 1e-12);
    assert_near(joint.waits.learner[IDLE_SAMPLE], 0.75, 1e-12);
    assert_true(joint.waits.actor[IDLE_CREDIT] == 0);
    /* They waited for three quarters of the time, and can make up for it. */
    joint = (struct plan_pair){
        .inserts = 200, .samples = 800, .waits.actor[IDLE_CREDIT] = 0.75, .waits.learner[IDLE_SAMPLE] = 0.1};
    profile_lasting_pair(1.0, 100, &joint);
    assert_near(joint.inserts, 200, 1e-12);
    assert_near(joint.waits.actor[IDLE_CREDIT], 0.5, 1e-12);
    assert_near(joint.waits.learner[IDLE_SAMPLE], 0.1, 1e-12);
    joint = (struct plan_pair){
        .inserts = 200, .samples = 800, .waits.actor[IDLE_CREDIT] = NAN, .waits.learner[IDLE_SAMPLE] = NAN};
    profile_lasting_pair(1.0, 100, &joint);
    assert_near(joint.inserts, 100, 1e-12);
    assert_true(isnan(joint.waits.actor[IDLE_CREDIT]) && isnan(joint.waits.learner[IDLE_SAMPLE]));
}

/* ---- the machine ---- */

CASE(control_groups)
{
    put("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    put("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 10 kB\nMemAvailable:    1000000 kB\n");
    assert_true(machine_cores_below(tempdir, 8) == 8);
    assert_near(machine_memory_below(tempdir), 0.8 * 1000000 * 1024, 1e-9);
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    assert_true(machine_cores_below(tempdir, 8) == 1.5);
    assert_true(machine_cores_below(tempdir, 1) == 1);
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/memory.max", "100000000\n");
    put("sys/fs/cgroup/a/memory.current", "60000000\n");
    put("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file_of_others 9\ninactive_file 10000000\nfile 3\n");
    assert_near(machine_memory_below(tempdir), 0.8 * 50000000, 1e-9);
}

TEST(this_machine)
{
    assert_true(machine_cores() > 0 && machine_cores() < 1e6);
    assert_true(machine_memory() > 1e6);
}

CASE(writes)
{
    struct plan_input input = example();
    assert_int_equal(profile_write(&input, tempdir, NULL), RP_OK);
    assert_true(file_exists(tempdir_at("profile.html")));
    must_fail(profile_write(&input, "/nowhere/at/all", &err), RP_IO, "/nowhere/at/all/profile.json");
}
