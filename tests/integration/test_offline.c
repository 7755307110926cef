/* Offline learning: an expert's episodes go through a real broker into a checkpoint, and learners without actors imitate
 * them; in one process, as processes, and under the launcher. */

#include "agent/env/env.h"
#include "agent/learn/adder.h"
#include "replay/client.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define EPISODES 20
#define GOOD 450.0

static const char tables[] =
    "  - {name: expert, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: min_size}}\n";

static char expert[96], configs[512];
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
    rp_client *client = rp_client_connect(service, NULL, WAIT, &err);
    struct adder *adder =
        client ? adder_new(&(struct adder_options){client, "expert", &config, &env.spec, false, WAIT}, &err) : NULL;
    if (!adder)
        fail_msg("%s", err.text);
    for (int i = 0; i < EPISODES; i++)
        assert_true(play_episode(&env, adder) == 500.0);
    ok(adder_destroy(&adder, WAIT, &err));
    rp_client_destroy(&client);
    env_close(&env);
}

static int setup(void **state)
{
    struct broker_process broker = {0};
    char more[160];
    assert_int_equal(tempdir_enter(state), 0);
    snprintf(expert, sizeof expert, "%s/expert", tempdir);
    snprintf(configs, sizeof configs, "%s/configs", process_env("RP_SOURCE_DIR"));
    slow = getenv("RP_SANITIZE") && getenv("RP_SANITIZE")[0];
    snprintf(more, sizeof more, "folder: %s\njournal: off\n", expert);
    broker_process_start(&broker, tables, more);
    record(broker.service);
    assert_int_equal(broker_process_stop(&broker, SIGTERM), 0);
    broker_process_fini(&broker);
    return 0;
}

/* ---- programs ---- */

struct words {
    const char *list[32];
    char text[16][640];
    uint32_t n, n_text;
};

static void word(struct words *self, const char *text)
{
    assert_true(self->n + 1 < 32);
    self->list[self->n++] = text;
    self->list[self->n] = NULL;
}

static void wordf(struct words *self, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wordf(struct words *self, const char *format, ...)
{
    assert_true(self->n_text < 16);
    char *text = self->text[self->n_text++];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof self->text[0], format, args);
    va_end(args);
    word(self, text);
}

static void set(struct words *self, const char *key, const char *value)
{
    word(self, "--set");
    wordf(self, "%s=%s", key, value);
}

/* A program with a shipped file; the folder of the checkpoint is the test's. */
static void begin(struct words *self, const char *program, const char *config)
{
    memset(self, 0, sizeof *self);
    word(self, process_env(program));
    if (strcmp(program, "RP_LAUNCH") != 0)
        word(self, "-c");
    wordf(self, "%s/%s", configs, config);
    set(self, "broker.folder", expert);
    word(self, "--set");
    wordf(self, "stop.learner_steps=%g", steps());
}

static void run(const struct words *self, int status, char *out, size_t size, char *problems, size_t problems_size)
{
    char unread[4096];
    problems = problems ? problems : unread;
    int got = process_run(self->list, out, size, problems, problems == unread ? sizeof unread : problems_size);
    if (got != status)
        fail_msg("%s ended with %d, not %d:\n%s\n%s", self->list[0], got, status, out, problems);
}

static double number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    if (!at)
        fail_msg("no %s in: %s", key, text);
    return strtod(at + strlen(key), NULL);
}

/* ---- tests ---- */

static void single(const char *seed, char *out, size_t size)
{
    struct words words;
    begin(&words, "RP_SINGLE", "offline-bc.yaml");
    set(&words, "evaluator.every", "0"); /* at the end is enough */
    word(&words, "--quiet");
    word(&words, "--json");
    word(&words, "--seed");
    word(&words, seed);
    run(&words, 0, out, size, NULL, 0);
}

TEST(one_process_imitates)
{
    char out[1024];
    static const char *const seeds[] = {"1", "2", "3"};
    for (size_t i = 0; i < (slow ? 1 : sizeof seeds / sizeof seeds[0]); i++) {
        single(seeds[i], out, sizeof out);
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
    char first[1024], second[1024];
    single("7", first, sizeof first);
    single("7", second, sizeof second);
    const char *a = strstr(first, "\"fingerprint\""), *b = strstr(second, "\"fingerprint\"");
    assert_non_null(a);
    assert_non_null(b);
    assert_string_equal(a, b);
}

/* A learner against a broker that somebody has started with the checkpoint. */
TEST(a_learner_alone)
{
    struct broker_process broker = {0};
    char more[160], out[1024], problems[2048];
    snprintf(more, sizeof more, "folder: %s\njournal: off\ncheckpoint: {every: 0s}\n", expert);
    broker_process_start(&broker, tables, more);
    struct words words;
    begin(&words, "RP_LEARNER", "offline-bc.yaml");
    word(&words, "--endpoint");
    word(&words, broker.service);
    word(&words, "--folder");
    wordf(&words, "%s/alone", tempdir);
    run(&words, 0, out, sizeof out, NULL, 0);

    begin(&words, "RP_ACTOR", "offline-bc.yaml");
    word(&words, "--weights");
    wordf(&words, "%s/alone/learner.weights", tempdir);
    run(&words, 0, out, sizeof out, NULL, 0);
    assert_true(number_after(out, "mean return of 20 episodes: ") >= GOOD);

    /* There are no actors to act. */
    begin(&words, "RP_ACTOR", "offline-bc.yaml");
    word(&words, "--endpoint");
    word(&words, broker.service);
    run(&words, 2, out, sizeof out, problems, sizeof problems);
    assert_non_null(strstr(problems, "actors.count is 0: this run has no actors"));
    broker_process_stop(&broker, SIGTERM);
    broker_process_fini(&broker);
}

/* Nobody inserts what is missing: that is said at once, and not waited for. */
TEST(too_little_was_loaded)
{
    static const char little[] =
        "table 'expert' holds 10000 items, its limiter wants 20000 (min_size), and there are no actors";
    char out[1024], problems[4096];
    struct words words;
    begin(&words, "RP_SINGLE", "offline-bc.yaml");
    set(&words, "broker.tables[0].limiter.min_size", "20000");
    run(&words, 1, out, sizeof out, problems, sizeof problems);
    assert_non_null(strstr(problems, little));

    begin(&words, "RP_LAUNCH", "offline-bc.yaml");
    set(&words, "broker.tables[0].limiter.min_size", "20000");
    set(&words, "launch.failures", "1");
    word(&words, "--quiet");
    word(&words, "--folder");
    wordf(&words, "%s/little", tempdir);
    run(&words, 1, out, sizeof out, problems, sizeof problems);
    assert_non_null(strstr(problems, little));
}

/* By the launcher, with what the imitator in BASE/first has learned. */
static void launch_record(const char *folder, const char *steps, const char *says)
{
    char out[8192];
    struct words words = {0};
    word(&words, process_env("RP_LAUNCH"));
    wordf(&words, "%s/expert-record.yaml", configs);
    set(&words, "agent", "{algorithm: bc, hidden: [64, 64], activation: tanh}");
    set(&words, "stop.steps", steps);
    word(&words, "--set");
    wordf(&words, "actors.weights=%s/first/learner.weights", tempdir);
    word(&words, "--set");
    wordf(&words, "broker.folder=%s/second-expert", tempdir);
    word(&words, "--folder");
    wordf(&words, "%s/%s", tempdir, folder);
    run(&words, 0, out, sizeof out, NULL, 0);
    if (!strstr(out, says))
        fail_msg("no '%s' in:\n%s", says, out);
}

/* The whole way with the shipped files: imitate, record what the imitator does, and some more, imitate that. */
TEST(launched)
{
    char out[8192];
    struct words words;
    begin(&words, "RP_LAUNCH", "offline-bc.yaml");
    word(&words, "--folder");
    wordf(&words, "%s/first", tempdir);
    run(&words, 0, out, sizeof out, NULL, 0);
    assert_non_null(strstr(out, "000 learner steps were made"));
    launch_record("recorded", "10000", "10000 environment steps were taken");
    /* The counters of the run before are loaded, too; this one begins at 0. */
    launch_record("more", "1000", "1000 environment steps were taken");

    memset(&words, 0, sizeof words);
    word(&words, process_env("RP_SINGLE"));
    word(&words, "-c");
    wordf(&words, "%s/offline-bc.yaml", configs);
    word(&words, "--set");
    wordf(&words, "broker.folder=%s/second-expert", tempdir);
    word(&words, "--set");
    wordf(&words, "stop.learner_steps=%g", steps());
    set(&words, "broker.tables[0].limiter.min_size", "10900");
    word(&words, "--quiet");
    word(&words, "--json");
    run(&words, 0, out, sizeof out, NULL, 0);
    assert_true(number_after(out, "\"return\": ") >= GOOD);
}

int main(void)
{
    return test_run(setup, tempdir_leave);
}
