/* What processes wait for: reports, means, words, and the shares that a plan tells. */

#include "agent/launch/plan/plan.h"
#include "agent/run/idle.h"
#include "tests/support/test.h"

static double find(const struct agent_scalar *scalars, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(scalars[i].name, name) == 0)
            return scalars[i].value;
    return NAN;
}

/* The share is the sum of its causes, and each report counts from the one before. */
TEST(report)
{
    struct idle now = {.ns = {[IDLE_SAMPLE] = 250000000, [IDLE_REDUCE] = 500000000, [IDLE_UPDATES] = 1000000}};
    struct idle before = {{0}};
    struct agent_scalar out[IDLE_CAUSES + 1];
    uint32_t n = idle_report(&now, &before, 2.0, "wait_share", IDLE_OF_LEARNER, out);
    assert_int_equal(n, 6);
    assert_true(fabs(find(out, n, "wait_share") - 0.3755) < 1e-12);
    assert_true(fabs(find(out, n, "idle_sample") - 0.125) < 1e-12);
    assert_true(fabs(find(out, n, "idle_reduce") - 0.25) < 1e-12);
    assert_true(fabs(find(out, n, "idle_updates") - 0.0005) < 1e-12);
    assert_true(find(out, n, "idle_parameters") == 0 && isnan(find(out, n, "idle_credit")));
    now.ns[IDLE_SAMPLE] += 100000000;
    n = idle_report(&now, &before, 1.0, "wait_share", IDLE_OF_LEARNER, out);
    assert_true(fabs(find(out, n, "wait_share") - 0.1) < 1e-12 && find(out, n, "idle_reduce") == 0);
    assert_int_equal(idle_total(&before), idle_total(&now));
    n = idle_report(&now, &before, 0.0, "blocked_share", IDLE_OF_ACTOR, out);
    assert_int_equal(n, 4);
    assert_true(find(out, n, "blocked_share") == 0);
}

TEST(words)
{
    char out[64];
    const double none[IDLE_CAUSES] = {0.004, NAN},
                 some[IDLE_CAUSES] = {
                     [IDLE_SAMPLE] = 0.034, [IDLE_REDUCE] = 0.12, [IDLE_COUNTERS] = 0.001, [IDLE_UPDATES] = NAN};
    assert_string_equal(idle_words(none, out, sizeof out), "");
    assert_string_equal(idle_words(some, out, sizeof out), "reduce 12%, sample 3%");
    assert_string_equal(idle_words(some, out, 15), "reduce 12%");
    assert_string_equal(idle_words(some, out, 4), "");
}

TEST(shares)
{
    struct idle_shares sum = {{0}, {0}}, one;
    idle_shares_none(&one);
    assert_true(isnan(one.actor[IDLE_CREDIT]) && isnan(one.learner[IDLE_SAMPLE]));
    idle_shares_add(&sum, &one, 5);
    assert_true(sum.actor[IDLE_CREDIT] == 0);
    one.actor[IDLE_CREDIT] = 0.5;
    idle_shares_add(&sum, &one, 3);
    assert_true(sum.actor[IDLE_CREDIT] == 1.5 && sum.learner[IDLE_SAMPLE] == 0);
    idle_shares_none(&sum);
    idle_shares_add(&sum, &one, 2);
    assert_true(sum.actor[IDLE_CREDIT] == 1 && isnan(sum.learner[IDLE_SAMPLE]));
}

/* What a plan tells: the mean of what was waited for in all runs of the pair. */
TEST(plan)
{
    struct plan_input input = {0};
    struct plan_pair run = {.actors = 2, .learners = 2, .shards = 1};
    idle_shares_none(&run.waits);
    assert_true(plan_add_run(&input, &run));
    assert_true(isnan(plan_actor_idle(&input.runs[0])) && isnan(plan_learner_idle(&input.runs[0])));
    run.waits.actor[IDLE_CREDIT] = 0.25;
    run.waits.actor[IDLE_COUNTERS] = 0.125;
    run.waits.learner[IDLE_SAMPLE] = 0.5;
    run.waits.learner[IDLE_REDUCE] = 0.75;
    assert_true(plan_add_run(&input, &run)); /* the first one said nothing */
    assert_true(plan_actor_idle(&input.runs[0]) == 0.375);
    assert_true(plan_learner_idle(&input.runs[0]) == 1);
    run.waits.actor[IDLE_CREDIT] = 1;
    assert_true(plan_add_run(&input, &run));
    assert_true(plan_actor_idle(&input.runs[0]) == 0.625);
}
