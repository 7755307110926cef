/* A status as JSON and back. */
#include <time.h>

#include "agent/launch/process/status.h"
#include "tests/support/test.h"

static const double steps[] = {1000, 2000, 3000};
static const double values[] = {21.5, NAN, 475};
static const struct status_process processes[] = {
    {"broker", ROLE_BROKER, 100, 0, 1 << 20, 0.5, "runs", ""},
    {"actor-1", ROLE_ACTOR, 0, 3, 0, 0, "restarts in 2 s", "cpu1"},
};
static const struct status_host hosts[] = {
    {.name = "home", .state = "ready", .ready = true, .learners = 1, .learners_wanted = 1, .machine_cpu = NAN},
    {.name = "cpu1",
     .model = "a \"fast\" one, aarch64",
     .state = "ready",
     .ready = true,
     .actors = 15,
     .actors_wanted = 16,
     .times = 2,
     .losses = 1,
     .cpu = 14.5,
     .cores = 16,
     .machine_cpu = 15.25,
     .mean_cpu = 13.5,
     .lost_s = 12.5,
     .memory = UINT64_C(1) << 40,
     .round_trip_ms = 0.375},
    {.name = "cpu2", .state = "lost for 12 s: Connection refused", .actors_wanted = 16, .round_trip_ms = NAN},
};

static struct status sample(void)
{
    return (struct status){
        .name = "cart\"pole\n",
        .folder = "runs/x",
        .phase = PHASE_RUNNING,
        .unix_s = 1700000000.25,
        .elapsed_s = 12.5,
        .steps = UINT64_C(9007199254740993),
        .learner_steps = 7,
        .stop_steps = 100000,
        .stop_value = INFINITY,
        .progress = 0.31,
        .eta_s = NAN,
        .steps_rate = 5200,
        .spi = NAN,
        .spi_target = 32,
        .actor_idle = 0.61,
        .learner_idle = NAN,
        .idle_by = {.actor = {[IDLE_CREDIT] = 0.6, [IDLE_COUNTERS] = 0.01}, .learner = {[IDLE_REDUCE] = NAN}},
        .planned_inserts = NAN,
        .waits = "actors wait",
        .size = 5,
        .max_size = 10,
        .value = 475,
        .best = 480,
        .actor_value = NAN,
        .value_steps = steps,
        .values = values,
        .n_values = 3,
        .processes = processes,
        .n_processes = 2,
        .hosts = hosts,
        .n_hosts = 3,
        .actors = 3,
        .actors_wanted = 4,
        .restarts = 3,
        .memory = UINT64_MAX,
        .event = "actor-1 restarted",
        .event_unix_s = 1699999999};
}

TEST(round_trip)
{
    struct status s = sample();
    struct status_copy copy;
    char *json = status_to_json(&s, true);
    assert_non_null(json);
    assert_null(strchr(json, '\n'));
    assert_true(status_from_json(json, &copy));
    const struct status *c = &copy.status;
    assert_string_equal(c->name, s.name);
    assert_true(c->steps == s.steps && c->memory == UINT64_MAX && c->unix_s == s.unix_s);
    assert_true(isinf(c->stop_value) && isnan(c->eta_s) && isnan(c->planned_inserts) && isnan(c->learner_idle));
    assert_true(c->idle_by.actor[IDLE_CREDIT] == 0.6 && isnan(c->idle_by.learner[IDLE_REDUCE]));
    assert_true(c->n_values == 3 && isnan(c->values[1]) && c->value_steps[2] == 3000);
    assert_true(c->n_processes == 2 && c->processes[1].role == ROLE_ACTOR && c->processes[0].pid == 100);
    assert_true(c->n_hosts == 3 && c->hosts[1].round_trip_ms == 0.375 && isnan(c->hosts[2].round_trip_ms));
    assert_string_equal(c->hosts[1].model, hosts[1].model);
    /* What is written again is the same text. */
    char *again = status_to_json(c, true);
    assert_string_equal(again, json);
    free(again);
    free(json);
    status_copy_fini(&copy);
    assert_null(copy.values);
}

TEST(line)
{
    struct status s = sample();
    char *json = status_to_json(&s, false);
    assert_has_not(json, "\"processes\"");
    assert_has_not(json, "\"hosts\"");
    assert_has_not(json, "\"values\"");
    assert_has(json, "\"spi\": null");
    assert_has(json, "\"stop_value\": null");
    assert_has(json, "\"phase\": \"running\"");
    struct status_copy copy;
    assert_true(status_from_json(json, &copy));
    assert_int_equal(copy.status.n_values, 0);
    assert_int_equal(copy.status.n_processes, 0);
    assert_null(copy.status.processes);
    assert_int_equal(copy.status.n_hosts, 0);
    assert_null(copy.status.hosts);
    status_copy_fini(&copy);
    free(json);
}

TEST(damaged_hosts)
{
    struct status_copy copy;
    assert_true(status_from_json("{\"phase\": \"running\", \"hosts\": {\"name\": \"x\"}}", &copy));
    assert_int_equal(copy.status.n_hosts, 0);
    status_copy_fini(&copy);
    assert_true(
        status_from_json("{\"phase\": \"running\", \"hosts\": [null, 3, [], \"cpu1\", {\"name\": 7, \"ready\": "
                         "\"yes\", \"cores\": \"many\", \"actors\": -1, \"times\": 1e30, \"cpu\": -Infinity}, {}]}",
                         &copy));
    assert_int_equal(copy.status.n_hosts, 2);
    assert_string_equal(copy.status.hosts[0].name, "");
    assert_true(!copy.status.hosts[0].ready && copy.status.hosts[0].actors == 0);
    assert_true(copy.status.hosts[0].times == UINT32_MAX && copy.status.hosts[0].cpu == 0);
    assert_true(isnan(copy.status.hosts[1].round_trip_ms));
    status_copy_fini(&copy);
}

/* As many as there may be are kept; a list that somebody made longer is cut. */
TEST(many_hosts)
{
    static struct status_host many[1500];
    for (uint32_t n = 1023; n <= 1500; n += 159) {
        struct status s = {.phase = PHASE_RUNNING, .hosts = many, .n_hosts = n};
        struct status_copy copy;
        char *json = status_to_json(&s, true);
        assert_true(status_from_json(json, &copy));
        assert_int_equal(copy.status.n_hosts, n < 1024 ? n : 1024);
        status_copy_fini(&copy);
        free(json);
    }
}

TEST(garbage)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "[]",
                                      "null",
                                      "17",
                                      "\"running\"",
                                      "{}",
                                      "{\"phase\": 3}",
                                      "{\"phase\": \"walking\"}",
                                      "{\"phase\": \"running\"",
                                      "\x80\xff"};
    struct status_copy copy;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(status_from_json(bad[i], &copy));
        assert_null(copy.status.processes);
    }
    assert_false(status_from_json(NULL, &copy));
    /* Wrong types and sizes are as good as nothing. */
    assert_true(status_from_json("{\"phase\": \"done\", \"name\": 7, \"steps\": -5, \"restarts\": 1e300, \"actors\": "
                                 "NaN, \"cpu\": 1e999, \"elapsed_s\": NaN, \"spi\": -Infinity,"
                                 "\"progress\": \"much\", \"stop_value\": [], \"values\": {}, \"value_steps\": [1],"
                                 "\"processes\": [3, null, {\"name\": [], \"role\": \"king\", \"pid\": -1}]}",
                                 &copy));
    assert_string_equal(copy.status.name, "");
    assert_true(copy.status.steps == 0 && copy.status.restarts == UINT32_MAX && copy.status.actors == 0);
    assert_true(isnan(copy.status.progress) && isinf(copy.status.stop_value) && copy.status.n_values == 0);
    assert_true(copy.status.cpu == 0 && copy.status.elapsed_s == 0 && isnan(copy.status.spi));
    assert_int_equal(copy.status.n_processes, 1);
    assert_int_equal(copy.status.processes[0].pid, 0);
    status_copy_fini(&copy);
}

TEST(much)
{
    enum { N = STATUS_MAX_VALUES + 1000 };
    static double x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = y[i] = i;
    struct status s = {.phase = PHASE_RUNNING, .value_steps = x, .values = y, .n_values = N};
    char *json = status_to_json(&s, true);
    struct status_copy copy;
    assert_true(status_from_json(json, &copy));
    assert_int_equal(copy.status.n_values, STATUS_MAX_VALUES);
    assert_true(copy.values[STATUS_MAX_VALUES - 1] == N - 1); /* the newest are there */
    status_copy_fini(&copy);
    free(json);
    /* Text that is longer than its place is cut. */
    char text[4096], *at = text + sprintf(text, "{\"phase\": \"running\", \"name\": \"");
    memset(at, 'n', 2000);
    strcpy(at + 2000, "\"}");
    assert_true(status_from_json(text, &copy));
    assert_int_equal(strlen(copy.status.name), sizeof copy.status.name - 1);
    status_copy_fini(&copy);
}

/* Cut or changed anywhere, a status is refused or read, and nothing else happens. */
TEST(corrupt)
{
    const char *given = getenv("RP_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : (unsigned)time(NULL);
    print_message("RP_TEST_SEED=%u\n", seed);
    struct status s = sample();
    char *json = status_to_json(&s, true);
    size_t size = strlen(json);
    static const char odd[] = "{}[]\",:0123456789eE-+.nulltrue\\\x01\xff";
    for (int i = 0; i < 3000; i++) {
        char *copy = strdup(json);
        for (int k = rand_r(&seed) % 4; k >= 0; k--)
            copy[(size_t)rand_r(&seed) % size] = odd[(size_t)rand_r(&seed) % (sizeof odd - 1)];
        if (i % 3 == 0)
            copy[(size_t)rand_r(&seed) % size] = '\0';
        struct status_copy out;
        if (status_from_json(copy, &out)) {
            free(status_to_json(&out.status, true));
            status_copy_fini(&out);
        }
        free(copy);
    }
    free(json);
}

TEST(phases)
{
    assert_string_equal(phase_name(PHASE_STARTING), "starting");
    assert_string_equal(phase_name(PHASE_STOPPED), "stopped");
    assert_string_equal(phase_name(PHASE_FAILED), "failed");
    assert_string_equal(phase_name(PHASES), "unknown");
    assert_string_equal(phase_name((enum phase) - 1), "unknown");
}
