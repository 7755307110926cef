

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

static void check_close(double a, double b, const char *what)
{
    if (!(fabs(a - b) <= 1e-6 * (1 + fabs(a) + fabs(b))))
        fail_msg("%s is %.9g and should be %.9g", what, a, b);
}

/* A run with one shard. */
static struct plan_run run_of(uint32_t actors, uint32_t learners, double inserts, double samples, double actor_idle,
                              double learner_idle, double cpu, double others)
{
    return (struct plan_run){.actors = actors,
                             .learners = learners,
                             .shards = 1,
                             .inserts = inserts,
                             .samples = samples,
                             .actor_idle = actor_idle,
                             .learner_idle = learner_idle,
                             .cpu = cpu,
                             .others = others,
                             .runs = 1};
}

static struct plan_choice predict(const struct plan_input *input, uint32_t actors, uint32_t learners)
{
    struct plan_choice choice;
    assert_true(plan_predict(input, actors, learners, &choice));
    return choice;
}

static void check_pair(const struct plan_choice *choice, uint32_t actors, uint32_t learners)
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

TEST(a_heavy_learner_needs_one_actor)
{
    struct plan_input input = curves_input(unit_of(1000, 0.1, 0.01, 10 * MIB), unit_of(450, 0.8, 0.01, 50 * MIB), 1);
    input.max_learners = 2;
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 1, 2);
    check_close(plan.chosen.inserts, 900, "inserts");
    check_close(plan.chosen.actor_idle, 0.1, "actors idle");
    check_close(plan.chosen.learner_idle, 0, "learners idle");
    assert_int_equal(plan.chosen.bottleneck, PLAN_MAX_LEARNERS);
    const char *text = print(&plan, &input);
    facts_said(text, "plan: 1 actor, 2 learners\n");
    facts_said(text, "bottleneck: the learners: plan.max_learners allows 2");
}

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
    check_close(plan.chosen.memory, 1220 * MIB, "memory");
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
    check_close(plan.chosen.inserts, 1000, "inserts");
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
    check_close(plan.chosen.inserts, 1500, "inserts");
}

/* ---- joint runs ---- */

TEST(a_joint_run_counts_instead_of_the_formula)
{
    struct plan_input input = curves_input(unit_of(1000, 0.5, 0.1, MIB), unit_of(2000, 0.5, 0.1, MIB), 1);
    assert_int_equal(predict(&input, 2, 1).bottleneck, PLAN_BALANCED);
    check_close(predict(&input, 2, 1).inserts, 2000, "inserts");
    input.runs[0] = run_of(2, 1, 1600, 1580, 0.3, 0.02, 1.7, 0);
    input.n_runs = 1;
    struct plan_choice measured = predict(&input, 2, 1);
    assert_true(measured.measured);
    check_close(measured.inserts, 1600, "inserts");
    check_close(measured.samples, 1580, "samples");
    check_close(measured.actor_idle, 0.3, "actors idle");
    check_close(measured.cpu, 1.7, "cores");
    assert_int_equal(measured.bottleneck, PLAN_LEARNERS);
    /* Other pairs are slower than their curves by as much. */
    check_close(predict(&input, 3, 1).inserts, 2000 * 0.8, "inserts with one actor more");
    check_close(predict(&input, 1, 1).inserts, 1000 * 0.8, "inserts with one actor fewer");
    /* An unknown idle share is the model's. */
    input.runs[0] = run_of(2, 1, 1, 1, NAN, NAN, NAN, 0);
    check_close(predict(&input, 2, 1).actor_idle, 0, "actors idle");
    input.runs[0] = run_of(2, 1, 1900, 1900, 0, 0, 2, 0);
    assert_int_equal(predict(&input, 2, 1).bottleneck, PLAN_CORES);
}

/* A joint run says by its waits what to try next. */
TEST(waits_say_what_to_run_next)
{
    const struct {
        struct plan_run run;
        uint32_t actors, learners;
    } cases[] = {
        {run_of(8, 1, 800, 6400, 0, 0.5, 1, 0), 16, 1},     /* learners wait: more actors */
        {run_of(8, 1, 800, 6400, 0, 0.2, 1, 0), 10, 1},     /* as many as feed them */
        {run_of(8, 1, 800, 6400, 0.4, 0, 1, 0), 8, 2},      /* actors wait: more learners */
        {run_of(8, 4, 800, 6400, 0.4, 0, 1, 0), 5, 4},      /* there are no more: fewer actors */
        {run_of(8, 1, 800, 6400, 0.02, 0.03, 1, 0), 16, 2}, /* nobody waits: more of both */
        {run_of(32, 2, 800, 6400, 0, 0.93, 1, 0), 32, 1},   /* one learner is more than enough */
        {run_of(4, 1, 599, 4792, 0, 0.7, 1.9, 0), 2, 1},    /* all cores are busy: fewer actors */
        {run_of(1, 2, 599, 4792, 0, 0.05, 1.9, 0), 1, 1},   /* and fewer learners */
        {run_of(1, 1, 599, 4792, 0, 0.05, 1.9, 0), 1, 1},   /* nothing smaller: once more */
        {run_of(4, 1, 599, 4792, 0, 0.7, 1.0, 0.9), 2, 1},  /* busy with other programs */
    };
    struct plan_input input = curves_input(unit_of(200, 0.03, 0.01, MIB), unit_of(64000, 0.9, 0.2, MIB), 8);
    input.max_actors = 32;
    input.max_learners = 4;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plan_run next;
        input.runs[0] = cases[i].run;
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
    const struct plan_run joints[] = {run_of(2, 1, 1900, 1900, 0, 0, 1, 0), run_of(1, 1, 900, 900, 0, 0.5, 0.5, 0)};
    for (uint32_t i = 0; i < 2; i++)
        assert_true(plan_add_run(&input, &joints[i]));
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 2, 1);
    const char *text = print(&plan, &input);
    facts_said(text, "1.9 k/s");
    facts_said(text, "900/s");
    struct plan_run again = run_of(1, 1, 1100, 1100, NAN, 0.3, 0.7, 0.2);
    assert_true(plan_add_run(&input, &again));
    assert_int_equal(input.n_runs, 2);
    assert_int_equal(input.runs[1].runs, 2);
    check_close(input.runs[1].inserts, 1000, "inserts");
    check_close(input.runs[1].actor_idle, 0, "actors idle");
    check_close(input.runs[1].learner_idle, 0.4, "learners idle");
    check_close(input.runs[1].cpu, 0.6, "cores");
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
    input.runs[0] = run_of(23, 1, 2440, 78200, 0.44, 0.07, 1.6, 0);
    input.runs[1] = run_of(13, 1, 2430, 77900, 0, 0.37, 1.4, 0);
    input.runs[2] = run_of(16, 1, 2960, 94720, 0, 0.12, 1.5, 0);
    input.n_runs = 3;
    struct plan plan = curves_solve(&input);
    check_pair(&plan.chosen, 16, 1);
    check_close(plan.chosen.inserts, 2960, "inserts");
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
    check_close(plan.chosen.inserts, 1000, "inserts");
    check_close(plan.chosen.samples, 2000, "samples");
    check_close(plan.chosen.learner_idle, 0, "learners idle");
    /* No budget is no bound; costs that were not measured are none. */
    bad = good;
    bad.hosts = &home;
    home = good.hosts[0];
    home.memory = home.actor.cpu = home.actor.broker_cpu = NAN;
    bad.max_learners = 1;
    plan = curves_solve(&bad);
    check_close(plan.chosen.inserts, 2000, "inserts");
}

/* ---- against a naive evaluation ---- */

static struct plan_choice naive_pair(const struct plan_input *input, uint32_t x, uint32_t y)
{
    const struct plan_unit *actor = &input->hosts[0].actor, *learner = &input->learner;
    double a = x * actor->rate, l = y * learner->rate / input->spi;
    double cost = (actor->cpu + actor->broker_cpu) / actor->rate +
                  input->spi * (learner->cpu + learner->broker_cpu) / learner->rate;
    double rate = fmin(fmin(a, l), input->hosts[0].cores / cost);
    return (struct plan_choice){.actors = x,
                                .learners = y,
                                .inserts = rate,
                                .samples = rate * input->spi,
                                .actor_idle = fmax(0, 1 - l / a),
                                .learner_idle = fmax(0, 1 - a / l),
                                .cpu = rate * cost,
                                .memory = actor->memory * x + learner->memory * y + input->broker_memory +
                                          input->other_memory};
}

static struct plan_unit random_unit(struct rng *rng)
{
    double cpu = 0.001 + rng_unit(rng) * rng_unit(rng);
    return unit_of(exp(2 + 8 * rng_unit(rng)), cpu, cpu * rng_unit(rng), rng_unit(rng) * GIB);
}

static void check_choice(const struct plan_choice *got, const struct plan_choice *want)
{
    check_close(got->inserts, want->inserts, "inserts");
    check_close(got->samples, want->samples, "samples");
    check_close(got->actor_idle, want->actor_idle, "actors idle");
    check_close(got->learner_idle, want->learner_idle, "learners idle");
    check_close(got->cpu, want->cpu, "cores");
    check_close(got->memory, want->memory, "memory");
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
            struct plan_choice want = naive_pair(input, x, y), got = predict(input, x, y);
            check_choice(&got, &want);
            any = any || want.memory <= input->hosts[0].memory;
            if (want.memory <= input->hosts[0].memory)
                top = fmax(top, want.inserts);
        }
    assert_int_equal(status == RP_OK, any);
    if (!any)
        return;
    assert_true(plan.chosen.memory <= input->hosts[0].memory);
    assert_true(plan.chosen.inserts >= top * (1 - PLAN_NOISE) * (1 - 1e-9));
    assert_true(plan.most_actors >= plan.chosen.actors && plan.most_actors <= most_x);
    /* No pair near the highest rate is smaller, and none as small is faster. */
    uint32_t count = plan.chosen.actors + plan.chosen.learners;
    for (uint32_t x = 1; x <= most_x; x++)
        for (uint32_t y = 1; y <= most_y; y++) {
            struct plan_choice pair = naive_pair(input, x, y);
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
