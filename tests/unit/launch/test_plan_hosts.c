/* Plans over several machines, with answers that are known. */

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"
#include "tests/support/naive.h"

#define MOST_HOSTS 16u

static void check_places(const struct plan_input *input, const struct plan_pair *choice, const uint32_t *actors,
                         const uint32_t *learners)
{
    uint32_t actors_at[MOST_HOSTS], learners_at[MOST_HOSTS];
    plan_place(input, choice->actors, choice->learners, actors_at, learners_at);
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (actors_at[i] != actors[i] || learners_at[i] != learners[i])
            fail_msg("%s has %u actors and %u learners, not %u and %u (%s)", input->hosts[i].name, actors_at[i],
                     learners_at[i], actors[i], learners[i], choice->reason);
}

/* Home has the broker and the learners, "fast" and "slow" the actors. One learner takes 1000 samples/s. */
struct three_hosts {
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input;
};

static void set_up(struct three_hosts *f)
{
    struct plan_host *hosts = f->hosts;
    hosts[0] = (struct plan_host){.name = "home", .kind = "0", .cores = 2, .memory = 4 * GIB, .learners = true};
    hosts[1] = (struct plan_host){.name = "fast", .kind = "1", .cores = 8, .memory = 4 * GIB, .actors = true};
    hosts[2] = (struct plan_host){.name = "slow", .kind = "2", .cores = 8, .memory = 4 * GIB, .actors = true};
    hosts[1].actor = unit_of(100, 1, 0.01, 10 * MIB);
    hosts[2].actor = unit_of(50, 1, 0.01, 10 * MIB);
    f->input = curves_input((struct plan_unit){0}, unit_of(1000, 0.8, 0.05, 50 * MIB), 1);
    f->input.hosts = hosts;
    f->input.n_hosts = 3;
    f->input.max_learners = 1;
}

FIXTURE(struct three_hosts, set_up, (void))

CASE(the_fast_kind_fills_up_before_the_slow_one)
{
    struct plan plan = curves_solve(&f->input);
    assert_int_equal(plan.chosen.actors, 12);
    check_places(&f->input, &plan.chosen, (uint32_t[]){0, 8, 4}, (uint32_t[]){1, 0, 0});
    assert_near(plan.chosen.inserts, 1000, 1e-3);
    assert_near(plan.chosen.cpu, 12 + 0.12 + 0.85, 1e-2);
    assert_int_equal(plan.chosen.bottleneck, PLAN_BALANCED);
    assert_int_equal(plan.most_actors, 64);
}

/* On one machine of 18 cores the same processes would compete; here the learners' machine is too small for the learner. */
CASE(a_small_machine_of_the_learner_is_the_bound)
{
    f->hosts[0].cores = 0.5;
    struct plan plan = curves_solve(&f->input);
    assert_int_equal(plan.chosen.bottleneck, PLAN_CORES);
    /* A sample costs 0.85 ms, an insert 0.1 ms of the broker: 0.5 / 0.00095. */
    assert_near(plan.chosen.inserts, 0.5 / 0.00095, 0.02);
}

CASE(actors_and_learners_compete_only_where_they_share_a_machine)
{
    struct plan_pair apart, shared;
    f->input.n_hosts = 2; /* all 8 cores of "fast" have actors */
    assert_true(plan_predict(&f->input, 8, 1, &apart));
    assert_near(apart.inserts, 800, 1e-3);
    f->hosts[0].learners = false;
    f->hosts[1].learners = true;
    assert_true(plan_predict(&f->input, 8, 1, &shared));
    /* An insert takes 10 ms, a sample 0.8 ms: 8 / 0.0108. */
    assert_near(shared.inserts, 8 / 0.0108, 1e-2);
    assert_int_equal(shared.bottleneck, PLAN_CORES);
}

CASE(numbers_of_the_file_are_placed)
{
    f->input.fixed_actors = 10;
    f->input.fixed_learners = 1;
    struct plan plan = curves_solve(&f->input);
    check_places(&f->input, &plan.chosen, (uint32_t[]){0, 8, 2}, (uint32_t[]){1, 0, 0});
    assert_near(plan.chosen.inserts, 900, 1e-3);
    assert_int_equal(plan.best.actors, 12);
    f->input.fixed_actors = 40; /* beyond the curves: the rest goes evenly */
    plan = curves_solve(&f->input);
    check_places(&f->input, &plan.chosen, (uint32_t[]){0, 20, 20}, (uint32_t[]){1, 0, 0});
}

CASE(each_machine_has_its_own_memory)
{
    f->hosts[1].memory = f->hosts[2].memory = 40 * MIB; /* of four actors */
    struct plan plan = curves_solve(&f->input);
    check_places(&f->input, &plan.chosen, (uint32_t[]){0, 4, 4}, (uint32_t[]){1, 0, 0});
    assert_int_equal(plan.chosen.bottleneck, PLAN_MEMORY);
    assert_int_equal(plan.most_actors, 8);
    f->hosts[0].memory = 100 * MIB; /* the broker alone takes all of it */
    must_fail(plan_solve(&f->input, &plan, &err), RP_INVALID_ARGUMENT, "home");
}

CASE(the_bound_of_the_file_is_for_all_hosts_together)
{
    f->input.max_actors = 8;
    struct plan plan = curves_solve(&f->input);
    assert_int_equal(plan.chosen.actors, 8);
    assert_int_equal(plan.chosen.bottleneck, PLAN_MAX_ACTORS);
    assert_int_equal(plan.most_actors, 8);
}

/* ---- joint runs ---- */

CASE(joint_runs_over_hosts_count)
{
    struct plan_pair next;
    uint32_t runs = 0;
    /* The plant: actors do nine tenths of what they did alone. */
    while (runs < 12 && plan_next(&f->input, &next)) {
        uint32_t actors_at[MOST_HOSTS], learners_at[MOST_HOSTS], actors = next.actors, learners = next.learners;
        plan_place(&f->input, actors, learners, actors_at, learners_at);
        double could = 0.9 * (100.0 * actors_at[1] + 50.0 * actors_at[2]), rate = fmin(could, 1000.0 * learners);
        struct plan_pair joint = run_of(actors, learners, rate, rate, 1 - rate / could, 1 - rate / (1000.0 * learners),
                                        actors * rate / could + 0.001 * rate);
        plan_add_run(&f->input, &joint);
        runs++;
    }
    struct plan plan = curves_solve(&f->input);
    assert_true(plan.chosen.runs > 0);
    assert_in_range(plan.chosen.actors, 14, 16); /* 0.9 * (800 + 7 * 50) = 1035 */
    assert_in_range(runs, 2, 8);
}

/* ---- properties ---- */

static struct plan_input random_input(struct rng *rng, struct plan_host *hosts)
{
    struct plan_input input = curves_input((struct plan_unit){0}, (struct plan_unit){0}, 1 + 4 * rng_unit(rng));
    memset(hosts, 0, MOST_HOSTS * sizeof *hosts);
    input.learner = unit_of(500 + 5000 * rng_unit(rng), rng_unit(rng) + 0.1, 0.1 * rng_unit(rng), 50 * MIB);
    input.n_hosts = 2 + (uint32_t)rng_below(rng, 6);
    input.hosts = hosts;
    for (uint32_t i = 0; i < input.n_hosts; i++) {
        snprintf(hosts[i].kind, sizeof hosts[i].kind, "%u", i);
        hosts[i].cores = (double)(1 + rng_below(rng, 16));
        hosts[i].actors = i == 1 || rng_below(rng, 3) > 0;
        hosts[i].learners = i == 0 || rng_below(rng, 3) == 0;
        hosts[i].actor = unit_of(20 + 200 * rng_unit(rng), 0.98, 0.02 * rng_unit(rng), 10 * MIB);
    }
    return input;
}

TEST(rates_are_possible_and_more_helps)
{
    struct rng rng = naive_rng(__func__);
    for (int round = 0; round < 30; round++) {
        struct plan_host hosts[MOST_HOSTS];
        struct plan_input input = random_input(&rng, hosts);
        struct plan plan = curves_solve(&input);
        const struct plan_pair *chosen = &plan.chosen;
        if (!(chosen->inserts > 0 && chosen->cpu <= plan_cores(&input) * 1.001))
            fail_msg("%u+%u: %g inserts/s with %g of %g cores", chosen->actors, chosen->learners, chosen->inserts,
                     chosen->cpu, plan_cores(&input));
        assert_true(chosen->waits.actor[IDLE_CREDIT] >= 0 && chosen->waits.actor[IDLE_CREDIT] <= 1);
        assert_true(plan.most_actors >= chosen->actors);
        /* More cores never hurt. Both plans may be the smallest within the noise. */
        hosts[0].cores *= 2;
        struct plan after = curves_solve(&input);
        if (!(after.chosen.inserts >= chosen->inserts * (1 - 2 * PLAN_NOISE)))
            fail_msg("%u+%u: %g inserts/s; with twice the cores at home %u+%u: %g", chosen->actors, chosen->learners,
                     chosen->inserts, after.chosen.actors, after.chosen.learners, after.chosen.inserts);
    }
}

/* ---- print ---- */

CASE(many_equal_hosts_are_one_row)
{
    for (uint32_t i = 1; i < 12; i++) {
        f->hosts[i] = (struct plan_host){.kind = "1", .cores = 8, .actors = true};
        snprintf(f->hosts[i].name, sizeof f->hosts[i].name, "cpu%u", i);
    }
    f->hosts[1].actor = unit_of(100, 1, 0.001, 10 * MIB);
    f->hosts[11].actors = false;
    f->input.n_hosts = 12;
    struct plan plan = curves_solve(&f->input);
    const char *text = PRINTED(plan_print(&plan, &f->input, printing));
    HAS(text, "cpu1 to cpu10 (10 hosts, 8 cores each)", "cpu11", "left out");
}
