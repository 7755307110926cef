/* A status as JSON and back. */
#include "tests/support/naive.h"
#include "tests/support/statuses.h"

static struct status sample(void)
{
    return status_of(
        "\"name\": \"cart\\\"pole\\n\", \"folder\": \"runs/x\", \"phase\": \"running\", \"unix_s\": 1700000000.25, "
        "\"elapsed_s\": 12.5, \"steps\": 9007199254740993, \"learner_steps\": 7, \"stop_steps\": 100000, "
        "\"progress\": 0.31, \"steps_rate\": 5200, \"spi_target\": 32, \"actor_idle\": 0.61, "
        "\"actor_idle_credit\": 0.6, \"actor_idle_sample\": 0.01, \"waits\": \"actors wait\", \"size\": 5, "
        "\"max_size\": 10, \"value\": 475, \"best\": 480, \"actors\": 3, \"actors_wanted\": 4, \"restarts\": 3, "
        "\"memory\": 18446744073709551615, \"event\": \"actor-1 restarted\", \"event_unix_s\": 1699999999, "
        "\"value_steps\": [1000, 2000, 3000], \"values\": [21.5, null, 475], "
        "\"processes\": [{\"name\": \"broker\", \"role\": \"broker\", \"pid\": 100, \"memory\": 1048576, \"cpu\": "
        "0.5}, "
        "{\"name\": \"actor-1\", \"role\": \"actor\", \"restarts\": 3, \"state\": \"restarts in 2 s\", "
        "\"host\": \"cpu1\"}], "
        "\"hosts\": [{\"name\": \"home\", \"state\": \"ready\", \"ready\": true, \"learners\": 1}, {\"name\": "
        "\"cpu1\", "
        "\"model\": \"a \\\"fast\\\" one, aarch64\", \"ready\": true, \"actors\": 15, \"times\": 2, \"cpu\": 14.5, "
        "\"machine_cpu\": 15.25, \"lost_s\": 12.5, \"memory\": 1099511627776, \"round_trip_ms\": 0.375}, "
        "{\"name\": \"cpu2\", \"state\": \"lost for 12 s: Connection refused\", \"actors_wanted\": 16}]");
}

/* What the text names is there, and what it does not name is not known, or none. */
TEST(round_trip)
{
    struct status s = sample();
    struct status copy;
    char *json = owned(status_to_json(&s, true));
    assert_null(strchr(json, '\n'));
    assert_true(status_from_json(json, &copy));
    const struct status *c = &copy;
    assert_string_equal(c->name, "cart\"pole\n");
    assert_true(c->steps == UINT64_C(9007199254740993) && c->memory == UINT64_MAX && c->unix_s == 1700000000.25);
    assert_true(isinf(c->stop_value) && isnan(c->eta_s) && isnan(c->planned_inserts) && isnan(c->learner_idle));
    assert_true(c->idle_by.actor[IDLE_SAMPLE] == 0.01 && isnan(c->idle_by.learner[IDLE_REDUCE]));
    assert_true(c->n_values == 3 && isnan(c->values[1]) && c->value_steps[2] == 3000);
    assert_true(c->n_processes == 2 && c->processes[1].role == ROLE_ACTOR && c->processes[0].pid == 100);
    assert_true(c->n_hosts == 3 && c->hosts[1].round_trip_ms == 0.375 && isnan(c->hosts[2].round_trip_ms));
    assert_string_equal(c->hosts[1].model, "a \"fast\" one, aarch64");
    /* What is written again is the same text. */
    assert_string_equal(owned(status_to_json(c, true)), json);
    status_fini(&copy);
    assert_null(copy.values);
}

TEST(line)
{
    struct status s = sample();
    char *json = owned(status_to_json(&s, false));
    HAS_NOT(json, "\"processes\"", "\"hosts\"", "\"values\"");
    HAS(json, "\"spi\": null", "\"stop_value\": null", "\"phase\": \"running\"");
    struct status copy;
    assert_true(status_from_json(json, &copy));
    assert_int_equal(copy.n_values, 0);
    assert_int_equal(copy.n_processes, 0);
    assert_null(copy.processes);
    assert_int_equal(copy.n_hosts, 0);
    assert_null(copy.hosts);
    status_fini(&copy);
}

TEST(damaged_hosts)
{
    struct status copy;
    assert_true(status_from_json("{\"phase\": \"running\", \"hosts\": {\"name\": \"x\"}}", &copy));
    assert_int_equal(copy.n_hosts, 0);
    status_fini(&copy);
    assert_true(
        status_from_json("{\"phase\": \"running\", \"hosts\": [null, 3, [], \"cpu1\", {\"name\": 7, \"ready\": "
                         "\"yes\", \"cores\": \"many\", \"actors\": -1, \"times\": 1e30, \"cpu\": -Infinity}, {}]}",
                         &copy));
    assert_int_equal(copy.n_hosts, 2);
    assert_string_equal(copy.hosts[0].name, "");
    assert_true(!copy.hosts[0].ready && copy.hosts[0].actors == 0);
    assert_true(copy.hosts[0].times == UINT32_MAX && copy.hosts[0].cpu == 0);
    assert_true(isnan(copy.hosts[1].round_trip_ms));
    status_fini(&copy);
}

/* As many as there may be are kept; a list that somebody made longer is cut. */
TEST(many_hosts)
{
    static struct status_host many[1500];
    for (uint32_t n = 1023; n <= 1500; n += 159) {
        struct status s = {.phase = PHASE_RUNNING, .hosts = many, .n_hosts = n};
        struct status copy;
        assert_true(status_from_json(owned(status_to_json(&s, true)), &copy));
        assert_int_equal(copy.n_hosts, n < 1024 ? n : 1024);
        status_fini(&copy);
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
    struct status copy;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(status_from_json(bad[i], &copy));
        assert_null(copy.processes);
    }
    assert_false(status_from_json(NULL, &copy));
    /* Wrong types and sizes are as good as nothing. */
    assert_true(status_from_json("{\"phase\": \"done\", \"name\": 7, \"steps\": -5, \"restarts\": 1e300, \"actors\": "
                                 "NaN, \"cpu\": 1e999, \"elapsed_s\": NaN, \"spi\": -Infinity,"
                                 "\"progress\": \"much\", \"stop_value\": [], \"values\": {}, \"value_steps\": [1],"
                                 "\"processes\": [3, null, {\"name\": [], \"role\": \"king\", \"pid\": -1}]}",
                                 &copy));
    assert_string_equal(copy.name, "");
    assert_true(copy.steps == 0 && copy.restarts == UINT32_MAX && copy.actors == 0);
    assert_true(isnan(copy.progress) && isinf(copy.stop_value) && copy.n_values == 0);
    assert_true(copy.cpu == 0 && copy.elapsed_s == 0 && isnan(copy.spi));
    assert_int_equal(copy.n_processes, 1);
    assert_int_equal(copy.processes[0].pid, 0);
    status_fini(&copy);
}

TEST(much)
{
    enum { N = STATUS_MAX_VALUES + 1000 };
    static double x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = y[i] = i;
    struct status s = {.phase = PHASE_RUNNING, .value_steps = x, .values = y, .n_values = N};
    struct status copy;
    assert_true(status_from_json(owned(status_to_json(&s, true)), &copy));
    assert_int_equal(copy.n_values, STATUS_MAX_VALUES);
    assert_true(copy.values[STATUS_MAX_VALUES - 1] == N - 1); /* the newest are there */
    status_fini(&copy);
    /* Text that is longer than its place is cut. */
    assert_true(status_from_json(textf("{\"phase\": \"running\", \"name\": \"%02000d\"}", 7), &copy));
    assert_int_equal(strlen(copy.name), sizeof copy.name - 1);
    status_fini(&copy);
}

/* Cut or changed anywhere, a status is refused or read, and nothing else happens. */
TEST(corrupt)
{
    static const char odd[] = "{}[]\",:0123456789eE-+.nulltrue\\\x01\xff";
    struct rng rng = naive_rng(__func__);
    struct status s = sample();
    char *json = owned(status_to_json(&s, true));
    size_t size = strlen(json);
    for (int i = 0; i < 3000; i++) {
        char *copy = strdup(json);
        for (uint64_t k = rng_below(&rng, 4) + 1; k > 0; k--)
            copy[rng_below(&rng, size)] = odd[rng_below(&rng, sizeof odd - 1)];
        if (i % 3 == 0)
            copy[rng_below(&rng, size)] = '\0';
        struct status out;
        if (status_from_json(copy, &out)) {
            free(status_to_json(&out, true));
            status_fini(&out);
        }
        free(copy);
    }
}

TEST(phases)
{
    assert_string_equal(phase_name(PHASE_STARTING), "starting");
    assert_string_equal(phase_name(PHASE_STOPPED), "stopped");
    assert_string_equal(phase_name(PHASE_FAILED), "failed");
    assert_string_equal(phase_name(PHASES), "unknown");
    assert_string_equal(phase_name((enum phase) - 1), "unknown");
}
