/* Restarts, back-off and giving up, on a clock that the test moves. */
#include <signal.h>
#include <time.h>

#include "agent/launch/supervisor.h"
#include "proto/base/clock.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

#define EXIT(n) ((n) << 8)

static const struct supervisor_limits limits = {
    .backoff_ns = NS_PER_S, .backoff_most_ns = 10 * NS_PER_S, .failures = 4, .healthy_ns = 60 * NS_PER_S};

/* The first failure of a row is the one that is told; the model below checks what is done. */
TEST(row_ends_the_run)
{
    struct supervised self = {0};
    char text[4096], line[128];
    for (int i = 0; i < 4; i++) {
        const struct supervisor_end end = {EXIT(3), false, textf("line %d\nsecond", i), NS_PER_S, NS_PER_S / 5 + i};
        assert_int_equal(supervisor_ended(&self, &limits, &end), i < 3 ? SUPERVISOR_RESTART : SUPERVISOR_GIVE_UP);
        assert_false(supervisor_due(&self, self.restart_ns - 1));
    }
    assert_int_equal(self.restart_ns, 0);
    assert_false(supervisor_due(&self, 1000 * NS_PER_S));
    facts_same(supervisor_explain(&self, "actor-1", text, sizeof text),
               "actor-1 failed 4 times in a row with exit status 3; the first time after 0.2 s:\n"
               "  | line 0\n"
               "  | second");
    facts_same(supervisor_one_line(text, line, sizeof line),
               "actor-1 failed 4 times in a row with exit status 3; the first time after 0.2 s: second");
}

TEST(one_line)
{
    char out[32];
    assert_string_equal(supervisor_one_line("", out, sizeof out), "");
    assert_string_equal(supervisor_one_line("one\n", out, sizeof out), "one");
    assert_string_equal(supervisor_one_line("\n\n", out, sizeof out), "");
    assert_string_equal(supervisor_one_line("its lines:\n  a\nNameError: b \n\n", out, sizeof out),
                        "its lines: NameError: b");
    assert_string_equal(supervisor_one_line("a:\n  | 0123456789012345678901234567890", out, 8), "a: 0123");
}

TEST(expected_ends)
{
    static const int statuses[] = {0, EXIT(143), SIGTERM, SIGKILL};
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        struct supervised self = {.restart_ns = 5};
        assert_int_equal(supervisor_ended(&self, &limits, &(struct supervisor_end){statuses[i], true, "bye", 9, 9}),
                         SUPERVISOR_DONE);
        assert_int_equal(self.restart_ns, 0);
        assert_int_equal(self.in_a_row, 0);
    }
    struct supervised self = {0};
    assert_int_equal(supervisor_ended(&self, &limits, &(struct supervisor_end){0, false, "", 9, 9}),
                     SUPERVISOR_RESTART);
}

TEST(not_started)
{
    struct supervised self = {0};
    struct supervisor_limits few = limits;
    char text[256], tiny[12];
    few.failures = 2;
    assert_int_equal(supervisor_not_started(&self, &few, "could not start ./x: No such file", 1), SUPERVISOR_RESTART);
    assert_int_equal(supervisor_not_started(&self, &few, "later", 2), SUPERVISOR_GIVE_UP);
    assert_string_equal(supervisor_explain(&self, "actor-0", text, sizeof text),
                        "actor-0 could not be started 2 times in a row:\n  | could not start ./x: No such file");
    assert_string_equal(supervisor_explain(&self, "actor-0", tiny, sizeof tiny), "actor-0 cou");
    few.failures = 1;
    self = (struct supervised){0};
    assert_int_equal(supervisor_ended(&self, &few, &(struct supervisor_end){SIGABRT, false, NULL, 1, 3 * NS_PER_S}),
                     SUPERVISOR_GIVE_UP);
    assert_string_equal(supervisor_explain(&self, "broker", text, sizeof text),
                        "broker failed, killed by SIGABRT (Aborted) after 3.0 s; it printed nothing");
    self = (struct supervised){0};
    assert_int_equal(supervisor_ended(&self, &few, &(struct supervisor_end){0, false, "", 1, 0}), SUPERVISOR_GIVE_UP);
    assert_string_equal(supervisor_explain(&self, "broker", text, sizeof text),
                        "broker ended by itself with exit status 0 after 0.0 s; it printed nothing");
}

/* ---- against a model that remembers everything and counts from the start each time ---- */

enum { HISTORY = 64 };

struct end {
    int status;
    int64_t ran_ns;
};

static uint32_t model_row(const struct end *ends, uint32_t n, const struct supervisor_limits *of)
{
    uint32_t row = 1;
    for (uint32_t i = n - 1; i > 0; i--, row++) {
        if (ends[i].ran_ns >= of->healthy_ns || ends[i - 1].status != ends[i].status)
            break;
    }
    return row;
}

static int64_t model_pause(const struct end *ends, uint32_t n, const struct supervisor_limits *of)
{
    double pause = (double)of->backoff_ns;
    for (uint32_t i = n - 1; i > 0 && ends[i].ran_ns < of->healthy_ns; i--)
        pause *= 2;
    return pause < (double)of->backoff_most_ns ? (int64_t)pause : of->backoff_most_ns;
}

static void run_model(struct rng *rng)
{
    struct supervisor_limits of = {
        .backoff_ns = 1 + (int64_t)rng_below(rng, 1000), .failures = 1 + (uint32_t)rng_below(rng, 5), .healthy_ns = 50};
    of.backoff_most_ns = of.backoff_ns + (int64_t)rng_below(rng, 20000);
    struct supervised self = {0};
    struct end ends[HISTORY];
    int64_t now = 1;
    for (uint32_t n = 1; n <= HISTORY; n++) {
        bool start = rng_below(rng, 6) > 0;
        ends[n - 1].status = start ? EXIT((int)rng_below(rng, 2)) : -1;
        ends[n - 1].ran_ns = start ? (int64_t)rng_below(rng, 60) : 0;
        now += ends[n - 1].ran_ns;
        enum supervisor_action action =
            start ? supervisor_ended(&self, &of,
                                     &(struct supervisor_end){ends[n - 1].status, false, "x", now, ends[n - 1].ran_ns})
                  : supervisor_not_started(&self, &of, "x", now);
        uint32_t row = model_row(ends, n, &of);
        assert_int_equal(self.in_a_row, row);
        assert_int_equal(self.first.ran_ns, ends[n - row].ran_ns);
        assert_int_equal(action, row >= of.failures ? SUPERVISOR_GIVE_UP : SUPERVISOR_RESTART);
        if (action == SUPERVISOR_GIVE_UP)
            return;
        assert_int_equal(self.restart_ns, now + model_pause(ends, n, &of));
        now = self.restart_ns + (int64_t)rng_below(rng, 5);
        assert_false(supervisor_due(&self, self.restart_ns - 1));
        assert_true(supervisor_due(&self, now));
        assert_false(supervisor_due(&self, now + NS_PER_S)); /* once */
        assert_int_equal(self.restarts, n);
    }
}

TEST(model)
{
    struct rng rng = naive_rng(__func__);
    for (int i = 0; i < 3000; i++)
        run_model(&rng);
}

TEST(large_limits)
{
    struct supervisor_limits of = {INT64_MAX / 4, INT64_MAX / 2, 1000, 1};
    struct supervised self = {0};
    for (int i = 0; i < 100; i++)
        assert_int_equal(supervisor_ended(&self, &of, &(struct supervisor_end){1, false, "", 1, 0}),
                         SUPERVISOR_RESTART);
    assert_int_equal(self.restart_ns, 1 + INT64_MAX / 2);
    char tail[2 * SUPERVISOR_TAIL];
    memset(tail, 'x', sizeof tail - 1);
    tail[sizeof tail - 1] = '\0';
    supervisor_ended(&self, &of, &(struct supervisor_end){2, false, tail, 1, 0});
    assert_int_equal(strlen(self.first.tail), SUPERVISOR_TAIL - 1);
}

TEST(hang)
{
    struct hang self = {0};
    for (int64_t now = 100; now < 140; now++) /* the processor time changes at 125 */
        assert_int_equal(hang_seen(&self, 10, now < 125 ? 5 : 6, now), now == 110 || now == 120 || now == 135);
    assert_false(hang_seen(&self, 10, 6, 146)); /* nobody has looked */
    assert_false(hang_seen(&self, 10, 6, 151));
    assert_true(hang_seen(&self, 10, 6, 156));
    assert_false(hang_seen(&self, 0, 6, 9999)); /* never */
}
