

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

static struct plan_pair predict(const struct plan_input *input, uint32_t actors, uint32_t learners)
{
    struct plan_pair choice;
    assert_true(plan_predict(input, actors, learners, &choice));
    return choice;
}

static void check_pair(const struct plan_pair *choice, uint32_t actors, uint32_t learners)
{
    if (choice->actors != actors || choice->learners != learners)
        fail_msg("%u actors and %u learners (%s), not %u and %u", choice->actors, choice->learners, choice->reason,
                 actors, learners);
}

static const char *print(const struct plan *plan, const struct plan_input *input)
{
    return PRINTED(plan_print(plan, input, printing));
}

/* ---- known curves ---- */

TEST(memory_bounds_the_number_of_actors)
{
    struct plan_input input =
        curves_input(unit_of(100, 0.01, 0.001, 200 * MIB), unit_of(3000, 0.2, 0.05, 100 * MIB), 1);
    input.max_actors = 32;
    input.max_learners = 1;
    input.hosts[0].memory = 1300 * MIB; /* 220 for the broker, the rest and the learner: five actors */
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 5, 1);
    assert_int_equal(plan.chosen.bottleneck, PLAN_MEMORY);
    assert_int_equal(plan.most_actors, 5);
    assert_near(plan.chosen.memory, 1220 * MIB, 1e-6);
    facts_said(plan.chosen.reason, "29 actors, 1 learner would need 5.9 GiB of 1.3 GiB");
    const char *text = print(&plan, &input);
    facts_said(text, "bottleneck: memory");
    facts_said(text, "1.2 GiB of 1.3 GiB");

    input.hosts[0].memory = 300 * MIB;
    assert_int_equal(plan_solve(&input, &plan, &err), RP_INVALID_ARGUMENT);
    facts_said(err.text, "1 actor and 1 learner, with the broker, need 420 MiB of 300 MiB");
}

/* ---- numbers of the file ---- */

TEST(a_number_of_the_file_is_respected_and_compared)
{
    struct plan_input input = curves_input(unit_of(100, 0.01, 0.001, 10 * MIB), unit_of(500, 0.3, 0.01, 50 * MIB), 1);
    input.max_actors = 16;
    input.max_learners = 2;
    input.fixed_actors = 16;
    struct plan plan = curves_solve(&input);
    assert_int_equal(plan.chosen.actors, 16);
    assert_near(plan.chosen.inserts, 1000, 1e-6);
    assert_int_equal(plan.best.learners, 2);
    assert_true(plan.best.actors < 16);
    facts_said(plan.chosen.reason, "actors.count is a number in the file");
    const char *text = print(&plan, &input);
    facts_said(text, "actors.count says 16; auto would take 10");

    input.fixed_actors = 0;
    input.fixed_learners = 1;
    plan = curves_solve(&input);
    check_pair(&plan.chosen, 5, 1);
    check_pair(&plan.best, 10, 2);
    text = print(&plan, &input);
    facts_said(text, "learners.count says 1; auto would take 2");

    input.fixed_actors = 5;
    plan = curves_solve(&input);
    facts_said(plan.chosen.reason, "as the file says");
    input.fixed_actors = 10;
    input.fixed_learners = 2;
    plan = curves_solve(&input);
    text = print(&plan, &input);
    facts_said(text, "actors.count says 10, as auto would");
}

TEST(a_number_that_does_not_fit_is_respected)
{
    struct plan_input input = curves_input(unit_of(100, 0.01, 0, 100 * MIB), unit_of(500, 0.1, 0, 100 * MIB), 1);
    input.max_actors = 8;
    input.max_learners = 2;
    input.hosts[0].memory = 620 * MIB;
    input.fixed_actors = 8;
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 8, 1);
    facts_said(plan.chosen.reason, "needs 1.0 GiB of 620 MiB; actors.count is a number in the file");
    assert_true(plan.best.memory <= input.hosts[0].memory);
    assert_int_equal(plan.most_actors, 8);
    /* Nothing fits at all, but the file says what to do. */
    input.hosts[0].memory = 1 * MIB;
    input.fixed_learners = 1;
    plan = curves_solve(&input);
    check_pair(&plan.chosen, 8, 1);
    /* More than plan.max_actors and plan.max_learners. */
    input.hosts[0].memory = 4 * GIB;
    input.fixed_actors = 20;
    input.fixed_learners = 3;
    plan = curves_solve(&input);
    check_pair(&plan.chosen, 20, 3);
    assert_near(plan.chosen.inserts, 1500, 1e-6);
}

/* ---- joint runs ---- */

TEST(a_joint_run_counts_instead_of_the_formula)
{
    struct plan_input input = curves_input(unit_of(1000, 0.5, 0.1, MIB), unit_of(2000, 0.5, 0.1, MIB), 1);
    assert_int_equal(predict(&input, 2, 1).bottleneck, PLAN_BALANCED);
    assert_near(predict(&input, 2, 1).inserts, 2000, 1e-6);
    input.runs[0] = run_of(2, 1, 1600, 1580, 0.3, 0.02, 1.7);
    input.n_runs = 1;
    struct plan_pair measured = predict(&input, 2, 1);
    assert_int_equal(measured.runs, 1);
    assert_near(measured.inserts, 1600, 1e-6);
    assert_near(measured.samples, 1580, 1e-6);
    assert_near(measured.waits.actor[IDLE_CREDIT], 0.3, 1e-6);
    assert_near(measured.cpu, 1.7, 1e-6);
    assert_int_equal(measured.bottleneck, PLAN_LEARNERS);
    /* Other pairs are slower than their curves by as much. */
    assert_near(predict(&input, 3, 1).inserts, 2000 * 0.8, 1e-6);
    assert_near(predict(&input, 1, 1).inserts, 1000 * 0.8, 1e-6);
    /* An unknown idle share is the model's. */
    input.runs[0] = run_of(2, 1, 1, 1, NAN, NAN, NAN);
    assert_near(predict(&input, 2, 1).waits.actor[IDLE_CREDIT], 0, 1e-6);
    input.runs[0] = run_of(2, 1, 1900, 1900, 0, 0, 2);
    assert_int_equal(predict(&input, 2, 1).bottleneck, PLAN_CORES);
}

/* A joint run says by its waits what to try next. */
TEST(waits_say_what_to_run_next)
{
    const struct {
        struct plan_pair run;
        uint32_t actors, learners;
        double others;
    } cases[] = {
        {run_of(8, 1, 800, 6400, 0, 0.5, 1), 16, 1, 0},     /* learners wait: more actors */
        {run_of(8, 1, 800, 6400, 0, 0.2, 1), 10, 1, 0},     /* as many as feed them */
        {run_of(8, 1, 800, 6400, 0.4, 0, 1), 8, 2, 0},      /* actors wait: more learners */
        {run_of(8, 4, 800, 6400, 0.4, 0, 1), 5, 4, 0},      /* there are no more: fewer actors */
        {run_of(8, 1, 800, 6400, 0.02, 0.03, 1), 16, 2, 0}, /* nobody waits: more of both */
        {run_of(32, 2, 800, 6400, 0, 0.93, 1), 32, 1, 0},   /* one learner is more than enough */
        {run_of(4, 1, 599, 4792, 0, 0.7, 1.9), 2, 1, 0},    /* all cores are busy: fewer actors */
        {run_of(1, 2, 599, 4792, 0, 0.05, 1.9), 1, 1, 0},   /* and fewer learners */
        {run_of(1, 1, 599, 4792, 0, 0.05, 1.9), 1, 1, 0},   /* nothing smaller: once more */
        {run_of(4, 1, 599, 4792, 0, 0.7, 1.0), 2, 1, 0.9},  /* busy with other programs */
    };
    struct plan_input input = curves_input(unit_of(200, 0.03, 0.01, MIB), unit_of(64000, 0.9, 0.2, MIB), 8);
    input.max_actors = 32;
    input.max_learners = 4;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plan_pair next;
        input.runs[0] = cases[i].run;
        input.runs[0].others = cases[i].others;
        input.n_runs = 1;
        assert_true(plan_next(&input, &next));
        if (next.actors != cases[i].actors || next.learners != cases[i].learners)
            fail_msg("case %zu: %u actors and %u learners", i, next.actors, next.learners);
    }
}

/* The bounds of the file, of the cores and of memory are distinguished. */
TEST(the_bound_that_holds_has_a_name)
{
    struct plan_input input = curves_input(unit_of(100, 0.01, 0.001, 10 * MIB), unit_of(10000, 0.2, 0.05, 10 * MIB), 1);
    input.max_actors = 4;
    input.max_learners = 2;
    struct plan plan = curves_solve(&input);
    assert_int_equal(plan.chosen.actors, 4);
    assert_int_equal(plan.chosen.bottleneck, PLAN_MAX_ACTORS);
    const char *text = print(&plan, &input);
    facts_said(text, "plan.max_actors allows 4");
    input.learner = unit_of(130, 0.2, 0.05, 10 * MIB);
    plan = curves_solve(&input);
    assert_int_equal(plan.chosen.bottleneck, PLAN_MAX_LEARNERS);
    text = print(&plan, &input);
    facts_said(text, "plan.max_learners allows 2");
    input.hosts[0].memory = 145 * MIB; /* 120 and two processes */
    assert_int_equal(curves_solve(&input).chosen.bottleneck, PLAN_MEMORY);
    input.hosts[0].memory = 4 * GIB;
    input.hosts[0].cores = 0.1;
    assert_int_equal(curves_solve(&input).chosen.bottleneck, PLAN_CORES);
}

TEST(runs_of_a_pair_are_averaged)
{
    struct plan_input input = curves_input(unit_of(1000, 0.1, 0.1, MIB), unit_of(2000, 0.2, 0.1, MIB), 1);
    const struct plan_pair joints[] = {run_of(2, 1, 1900, 1900, 0, 0, 1), run_of(1, 1, 900, 900, 0, 0.5, 0.5)};
    for (uint32_t i = 0; i < 2; i++)
        assert_true(plan_add_run(&input, &joints[i]));
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 2, 1);
    const char *text = print(&plan, &input);
    facts_said(text, "1.9 k/s");
    facts_said(text, "900/s");
    struct plan_pair again = run_of(1, 1, 1100, 1100, NAN, 0.3, 0.7);
    assert_true(plan_add_run(&input, &again));
    assert_int_equal(input.n_runs, 2);
    assert_int_equal(input.runs[1].runs, 2);
    assert_near(input.runs[1].inserts, 1000, 1e-6);
    assert_near(input.runs[1].waits.actor[IDLE_CREDIT], 0, 1e-6);
    assert_near(input.runs[1].waits.learner[IDLE_SAMPLE], 0.4, 1e-6);
    assert_near(input.runs[1].cpu, 0.6, 1e-6);
    for (uint32_t x = 5; input.n_runs < PLAN_MAX_RUNS; x++) {
        again.actors = x;
        assert_true(plan_add_run(&input, &again));
    }
    again.actors = 100;
    assert_false(plan_add_run(&input, &again));
}

/* Of a plan that goes from one pair to the next and never comes to rest, the best that was measured is taken. */
TEST(once_settled_only_what_was_measured_is_chosen)
{
    struct plan_input input = curves_input(unit_of(200, 0.03, 0.01, MIB), unit_of(128000, 0.9, 0.2, MIB), 32);
    input.max_learners = 1;
    input.runs[0] = run_of(23, 1, 2440, 78200, 0.44, 0.07, 1.6);
    input.runs[1] = run_of(13, 1, 2430, 77900, 0, 0.37, 1.4);
    input.runs[2] = run_of(16, 1, 2960, 94720, 0, 0.12, 1.5);
    input.n_runs = 3;
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 16, 1);
    assert_near(plan.chosen.inserts, 2960, 1e-6);
    /* A number of the file that no joint run had is respected. */
    input.fixed_actors = 7;
    plan = curves_solve(&input);
    check_pair(&plan.chosen, 7, 1);
    /* So is the memory that there is. */
    input.fixed_actors = 0;
    input.hosts[0].memory = input.broker_memory + input.other_memory + 8 * MIB;
    plan = curves_solve(&input);
    assert_true(plan.chosen.actors <= 7);
}

/* ---- what cannot be planned ---- */

TEST(inputs_that_say_nothing_are_refused)
{
    struct plan_input good = curves_input(unit_of(1000, 0.5, 0.1, MIB), unit_of(2000, 0.5, 0.1, MIB), 1), bad;
    struct plan plan;
    bad = good;
    bad.learner.rate = 0;
    assert_int_equal(plan_solve(&bad, &plan, &err), RP_INVALID_ARGUMENT);
    facts_said(err.text, "the learners did nothing while they were measured");
    struct plan_host home = good.hosts[0];
    bad = good;
    bad.hosts = &home;
    home.actor.rate = NAN;
    assert_int_equal(plan_solve(&bad, &plan, &err), RP_INVALID_ARGUMENT);
    facts_said(err.text, "the actors did nothing");
    home = good.hosts[0];
    home.cores = NAN;
    assert_int_equal(plan_solve(&bad, &plan, &err), RP_INVALID_ARGUMENT);
    bad.n_hosts = 0;
    assert_int_equal(plan_solve(&bad, &plan, &err), RP_INVALID_ARGUMENT);
    bad = good;
    bad.spi = 0;
    assert_int_equal(plan_solve(&bad, &plan, &err), RP_INVALID_ARGUMENT);
    facts_said(err.text, "sets no ratio");
    bad.fixed_actors = 1;
    bad.fixed_learners = 1;
    plan = curves_solve(&bad);
    assert_near(plan.chosen.inserts, 1000, 1e-6);
    assert_near(plan.chosen.samples, 2000, 1e-6);
    assert_near(plan.chosen.waits.learner[IDLE_SAMPLE], 0, 1e-6);
    /* No budget is no bound; costs that were not measured are none. */
    bad = good;
    bad.hosts = &home;
    home = good.hosts[0];
    home.memory = home.actor.cpu = home.actor.broker_cpu = NAN;
    bad.max_learners = 1;
    plan = curves_solve(&bad);
    assert_near(plan.chosen.inserts, 2000, 1e-6);
}

/* ---- against a naive evaluation ---- */

static struct plan_pair naive_pair(const struct plan_input *input, uint32_t x, uint32_t y)
{
    const struct plan_unit *actor = &input->hosts[0].actor, *learner = &input->learner;
    double a = x * actor->rate, l = y * learner->rate / input->spi;
    double cost = (actor->cpu + actor->broker_cpu) / actor->rate +
                  input->spi * (learner->cpu + learner->broker_cpu) / learner->rate;
    double rate = fmin(fmin(a, l), input->hosts[0].cores / cost);
    return (struct plan_pair){.actors = x,
                              .learners = y,
                              .inserts = rate,
                              .samples = rate * input->spi,
                              .waits.actor[IDLE_CREDIT] = fmax(0, 1 - l / a),
                              .waits.learner[IDLE_SAMPLE] = fmax(0, 1 - a / l),
                              .cpu = rate * cost,
                              .memory =
                                  actor->memory * x + learner->memory * y + input->broker_memory + input->other_memory};
}

static struct plan_unit random_unit(struct rng *rng)
{
    double cpu = 0.001 + rng_unit(rng) * rng_unit(rng);
    return unit_of(exp(2 + 8 * rng_unit(rng)), cpu, cpu * rng_unit(rng), rng_unit(rng) * GIB);
}

static void check_choice(const struct plan_pair *got, const struct plan_pair *want)
{
    assert_near(got->inserts, want->inserts, 1e-6);
    assert_near(got->samples, want->samples, 1e-6);
    assert_near(got->waits.actor[IDLE_CREDIT], want->waits.actor[IDLE_CREDIT], 1e-6);
    assert_near(got->waits.learner[IDLE_SAMPLE], want->waits.learner[IDLE_SAMPLE], 1e-6);
    assert_near(got->cpu, want->cpu, 1e-6);
    assert_near(got->memory, want->memory, 1e-6);
}

static void check_solution(const struct plan_input *input)
{
    struct plan plan;
    rp_status status = plan_solve(input, &plan, &err);
    bool any = false;
    uint32_t most_x = input->max_actors, most_y = input->max_learners;
    double top = 0;
    for (uint32_t x = 1; x <= most_x; x++)
        for (uint32_t y = 1; y <= most_y; y++) {
            struct plan_pair want = naive_pair(input, x, y), got = predict(input, x, y);
            check_choice(&got, &want);
            any = any || want.memory <= input->hosts[0].memory;
            if (want.memory <= input->hosts[0].memory)
                top = fmax(top, want.inserts);
        }
    assert_int_equal(status == RP_OK, any);
    if (!any)
        return;
    struct plan_pair want = naive_pair(input, plan.chosen.actors, plan.chosen.learners);
    check_choice(&plan.chosen, &want);
    assert_true(plan.chosen.memory <= input->hosts[0].memory);
    assert_true(plan.chosen.inserts >= top * (1 - PLAN_NOISE) * (1 - 1e-9));
    assert_true(plan.most_actors >= plan.chosen.actors && plan.most_actors <= most_x);
    /* No pair near the highest rate is smaller, and none as small is faster. */
    uint32_t count = plan.chosen.actors + plan.chosen.learners;
    for (uint32_t x = 1; x <= most_x; x++)
        for (uint32_t y = 1; y <= most_y; y++) {
            struct plan_pair pair = naive_pair(input, x, y);
            if (pair.memory > input->hosts[0].memory || pair.inserts < top * (1 - PLAN_NOISE) * (1 + 1e-9))
                continue;
            assert_true(x + y > count || (x + y == count && pair.inserts <= plan.chosen.inserts * (1 + 1e-9)));
        }
}

TEST(any_curves_are_solved_as_by_hand)
{
    struct rng rng = naive_rng(__func__);
    for (int i = 0; i < 300; i++) {
        struct plan_input input = curves_input(random_unit(&rng), random_unit(&rng), exp(6 * rng_unit(&rng) - 2));
        input.max_actors = 1 + (uint32_t)rng_below(&rng, 40);
        input.max_learners = 1 + (uint32_t)rng_below(&rng, 8);
        input.hosts[0].cores = 1 + (double)rng_below(&rng, 16);
        input.hosts[0].memory = rng_unit(&rng) * 20 * GIB;
        check_solution(&input);
    }
}

TEST(the_largest_search_is_quick)
{
    struct plan_input input = curves_input(unit_of(10, 0.0001, 0.0001, MIB), unit_of(300, 0.01, 0.001, MIB), 1);
    input.max_actors = 4096;
    input.max_learners = 64;
    input.hosts[0].memory = 64 * GIB;
    struct plan plan = curves_solve(&input);
    assert_true(plan.chosen.inserts >= 0.95 * 19200);
}
