/* Offline learning: an expert's episodes go through a real broker into a checkpoint, and learners without actors imitate
 * them; in one process, as processes, and under the launcher. */

#include "agent/env/env.h"
#include "agent/learn/adder.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define EPISODES 20
#define GOOD 450.0

static const char tables[] =
    "  - {name: expert, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: min_size}}\n";

static char expert[96];
static bool slow; /* a sanitizer makes everything ten times as slow: fewer steps, which are enough, too */

static double steps(void)
{
    return slow ? 1000 : 3000;
}

/* ---- an expert ---- */

/* Leans against the fall, and a little towards the middle. */
static int32_t rule(const float s[4])
{
    return 3.0f * s[2] + s[3] + 0.1f * s[0] + 0.3f * s[1] > 0.0f;
}

static double play_episode(struct env *env, struct adder *adder)
{
    float s[4], next[4];
    double value = 0.0;
    rp_env_result result = {0};
    env_reset(env, s);
    ok(adder_first(adder, s, &err));
    while (!result.terminal && !result.truncated) {
        int32_t action = rule(s);
        env_step(env, &action, next, &result);
        const struct adder_step step = {.action = &action,
                                        .reward = result.reward,
                                        .terminal = result.terminal,
                                        .truncated = result.truncated,
                                        .next_observation = next};
        ok(adder_add(adder, &step, WAIT, &err));
        memcpy(s, next, sizeof s);
        value += (double)result.reward;
    }
    return value;
}

static void record(const char *service)
{
    struct env env;
    const struct env_config task = {.name = (char *)"CartPole-v1"};
    const struct adder_config config = {
        .kind = ADDER_TRANSITION, .table = (char *)"expert", .n_step = 1, .discount = 0.99};
    ok(env_open(&env, &task, &err));
    env_seed(&env, 1);
    rp_client *client = must(rp_client_connect(service, NULL, WAIT, &err));
    struct adder *adder =
        must(adder_new(&(struct adder_options){client, "expert", &config, &env.spec, false, WAIT}, &err));
    for (int i = 0; i < EPISODES; i++)
        assert_true(play_episode(&env, adder) == 500.0);
    ok(adder_destroy(&adder, WAIT, &err));
    rp_client_destroy(&client);
    env_close(&env);
}

static int setup(void **state)
{
    struct broker_process broker = {0};
    assert_int_equal(tempdir_enter(state), 0);
    snprintf(expert, sizeof expert, "%s/expert", tempdir);
    slow = getenv("RP_SANITIZE") && getenv("RP_SANITIZE")[0];
    broker_process_start(&broker, tables, textf("folder: %s\njournal: off\n", expert));
    record(broker.service);
    assert_int_equal(broker_process_stop(&broker, SIGTERM), 0);
    broker_process_fini(&broker);
    return 0;
}

/* ---- programs ---- */

/* A program with a shipped file, at most eight settings and further words, and the exit status that it must have. */
struct words {
    const char *program, *config, *sets[8], *more[8];
    int status;
};

static char out[8192], problems[4096];

static char *config_path(const char *name)
{
    return textf("%s/configs/%s", process_env("RP_SOURCE_DIR"), name);
}

/* Returns what the program printed, in `out`; what it complained of is in `problems`. */
static const char *run(struct words words)
{
    const char *list[32] = {process_env(words.program)};
    uint32_t n = 1;
    if (strcmp(words.program, "RP_LAUNCH") != 0)
        list[n++] = "-c";
    list[n++] = config_path(words.config);
    for (uint32_t i = 0; i < 8 && words.sets[i]; i++) {
        list[n++] = "--set";
        list[n++] = words.sets[i];
    }
    for (uint32_t i = 0; i < 8 && words.more[i]; i++)
        list[n++] = words.more[i];
    int got = process_run(list, out, sizeof out, problems, sizeof problems);
    if (got != words.status)
        fail_msg("%s ended with %d, not %d:\n%s\n%s", list[0], got, words.status, out, problems);
    return out;
}

/* Settings of runs on the test's checkpoint. */
static const char *folder(void)
{
    return textf("broker.folder=%s", expert);
}

static const char *enough(void)
{
    return textf("stop.learner_steps=%g", steps());
}

static double number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    if (!at)
        fail_msg("no %s in: %s", key, text);
    return strtod(at + strlen(key), NULL);
}

/* ---- tests ---- */

static const char *single(const char *seed)
{
    return run((struct words){.program = "RP_SINGLE",
                              .config = "offline-bc.yaml",
                              .sets = {folder(), enough(), "evaluator.every=0"}, /* at the end is enough */
                              .more = {"--quiet", "--json", "--seed", seed}});
}

TEST(one_process_imitates)
{
    static const char *const seeds[] = {"1", "2", "3"};
    for (size_t i = 0; i < (slow ? 1 : sizeof seeds / sizeof seeds[0]); i++) {
        single(seeds[i]);
        double value = number_after(out, "\"return\": ");
        print_message("seed %s: return %g\n", seeds[i], value);
        assert_true(value >= GOOD);
        assert_true(number_after(out, "\"learner_steps\": ") == steps());
        assert_true(number_after(out, "\"environment_steps\": ") == 0 && number_after(out, "\"inserted\": ") == 0);
    }
}

/* What is loaded is the same each time, and nothing in the folder has changed. */
TEST(the_same_again)
{
    const char *first = textf("%s", single("7")), *second = single("7");
    const char *a = strstr(first, "\"fingerprint\""), *b = strstr(second, "\"fingerprint\"");
    assert_true(a && b);
    assert_string_equal(a, b);
}

/* A learner against a broker that somebody has started with the checkpoint. */
TEST(a_learner_alone)
{
    struct broker_process broker = {0};
    broker_process_start(&broker, tables, textf("folder: %s\njournal: off\ncheckpoint: {every: 0s}\n", expert));
    run((struct words){.program = "RP_LEARNER",
                       .config = "offline-bc.yaml",
                       .sets = {folder(), enough()},
                       .more = {"--endpoint", broker.service, "--folder", tempdir_at("alone")}});
    run((struct words){.program = "RP_ACTOR",
                       .config = "offline-bc.yaml",
                       .sets = {folder(), enough()},
                       .more = {"--weights", tempdir_at("alone/learner.weights")}});
    assert_true(number_after(out, "mean return of 20 episodes: ") >= GOOD);
    /* There are no actors to act. */
    run((struct words){.program = "RP_ACTOR",
                       .config = "offline-bc.yaml",
                       .sets = {folder(), enough()},
                       .more = {"--endpoint", broker.service},
                       .status = 2});
    assert_has(problems, "actors.count is 0: this run has no actors");
    broker_process_stop(&broker, SIGTERM);
    broker_process_fini(&broker);
}

/* Nobody inserts what is missing: that is said at once, and not waited for. */
TEST(too_little_was_loaded)
{
    static const char *const programs[] = {"RP_SINGLE", "RP_LAUNCH"};
    for (uint32_t i = 0; i < 2; i++) {
        struct words words = {.program = programs[i], .config = "offline-bc.yaml", .status = 1};
        words.sets[0] = folder();
        words.sets[1] = enough();
        words.sets[2] = "broker.tables[0].limiter.min_size=20000";
        words.sets[3] = "launch.failures=1";
        words.more[0] = "--quiet";
        words.more[1] = i ? "--folder" : NULL;
        words.more[2] = tempdir_at("little");
        run(words);
        assert_has(problems,
                   "table 'expert' holds 10000 items, its limiter wants 20000 (min_size), and there are no actors");
    }
}

/* By the launcher, with what the imitator in BASE/first has learned. */
static void launch_record(const char *name, const char *steps, const char *says)
{
    run((struct words){.program = "RP_LAUNCH",
                       .config = "expert-record.yaml",
                       .sets = {"agent={algorithm: bc, hidden: [64, 64], activation: tanh}",
                                textf("stop.steps=%s", steps),
                                textf("actors.weights=%s/first/learner.weights", tempdir),
                                textf("broker.folder=%s/second-expert", tempdir)},
                       .more = {"--folder", tempdir_at(name)}});
    assert_has(out, says);
}

/* The whole way with the shipped files: imitate, record what the imitator does, and some more, imitate that. */
TEST(launched)
{
    run((struct words){.program = "RP_LAUNCH",
                       .config = "offline-bc.yaml",
                       .sets = {folder(), enough()},
                       .more = {"--folder", tempdir_at("first")}});
    assert_has(out, "000 learner steps were made");
    launch_record("recorded", "10000", "10000 environment steps were taken");
    /* The counters of the run before are loaded, too; this one begins at 0. */
    launch_record("more", "1000", "1000 environment steps were taken");
    run((struct words){
        .program = "RP_SINGLE",
        .config = "offline-bc.yaml",
        .sets = {textf("broker.folder=%s/second-expert", tempdir), enough(), "broker.tables[0].limiter.min_size=10900"},
        .more = {"--quiet", "--json"}});
    assert_true(number_after(out, "\"return\": ") >= GOOD);
}

int main(void)
{
    return test_run(setup, tempdir_leave);
}
