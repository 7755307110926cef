/* Plans over several machines, with answers that are known. */

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"
#include "tests/support/naive.h"

#define MOST_HOSTS 16u

static void check_close(double a, double b, double error, const char *what)
{
    if (!(fabs(a - b) <= error * (fabs(a) + fabs(b))))
        fail_msg("%s is %.9g and should be %.9g", what, a, b);
}

static void check_places(const struct plan_input *input, const struct plan_choice *choice, const uint32_t *actors,
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
static struct plan_input three_hosts(struct plan_host *hosts)
{
    struct plan_input input = curves_input((struct plan_unit){0}, unit_of(1000, 0.8, 0.05, 50 * MIB), 1);
    memset(hosts, 0, MOST_HOSTS * sizeof *hosts);
    hosts[0] = (struct plan_host){.name = "home", .kind = 0, .cores = 2, .memory = 4 * GIB, .learners = true};
    hosts[1] = (struct plan_host){.name = "fast", .kind = 1, .cores = 8, .memory = 4 * GIB, .actors = true};
    hosts[2] = (struct plan_host){.name = "slow", .kind = 2, .cores = 8, .memory = 4 * GIB, .actors = true};
    hosts[1].actor = unit_of(100, 1, 0.01, 10 * MIB);
    hosts[2].actor = unit_of(50, 1, 0.01, 10 * MIB);
    input.hosts = hosts;
    input.n_hosts = 3;
    input.max_learners = 1;
    return input;
}

TEST(the_fast_kind_fills_up_before_the_slow_one)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    struct plan plan = curves_solve(&input);
    assert_int_equal(plan.chosen.actors, 12);
    check_places(&input, &plan.chosen, (uint32_t[]){0, 8, 4}, (uint32_t[]){1, 0, 0});
    check_close(plan.chosen.inserts, 1000, 1e-3, "inserts");
    check_close(plan.chosen.cpu, 12 + 0.12 + 0.85, 1e-2, "cores");
    assert_int_equal(plan.chosen.bottleneck, PLAN_BALANCED);
    assert_int_equal(plan.most_actors, 16);
}

/* On one machine of 18 cores the same processes would compete; here the learners' machine is too small for the learner. */
TEST(a_small_machine_of_the_learner_is_the_bound)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    hosts[0].cores = 0.5;
    struct plan plan = curves_solve(&input);
    assert_int_equal(plan.chosen.bottleneck, PLAN_CORES);
    /* A sample costs 0.85 ms, an insert 0.1 ms of the broker: 0.5 / 0.00095. */
    check_close(plan.chosen.inserts, 0.5 / 0.00095, 0.02, "inserts");
}

TEST(actors_and_learners_compete_only_where_they_share_a_machine)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    struct plan_choice apart, shared;
    input.n_hosts = 2; /* all 8 cores of "fast" have actors */
    assert_true(plan_predict(&input, 8, 1, &apart));
    check_close(apart.inserts, 800, 1e-3, "inserts of actors on a machine of their own");
    hosts[0].learners = false;
    hosts[1].learners = true;
    assert_true(plan_predict(&input, 8, 1, &shared));
    /* An insert takes 10 ms, a sample 0.8 ms: 8 / 0.0108. */
    check_close(shared.inserts, 8 / 0.0108, 1e-2, "inserts of actors beside a learner");
    assert_int_equal(shared.bottleneck, PLAN_CORES);
}

TEST(a_host_for_learners_only)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    hosts[3] = (struct plan_host){.name = "gpu", .kind = 3, .cores = 4, .learners = true};
    input.n_hosts = 4;
    input.max_learners = 2;
    input.learner = unit_of(500, 0.8, 0.05, 50 * MIB);
    struct plan plan = curves_solve(&input);
    assert_int_equal(plan.chosen.learners, 2);
    hosts[0].actors = true; /* home takes both: the learners still go to the host that takes nothing else */
    hosts[0].actor = unit_of(100, 1, 0.01, 10 * MIB);
    plan = curves_solve(&input);
    uint32_t actors_at[4], learners_at[4];
    plan_place(&input, plan.chosen.actors, plan.chosen.learners, actors_at, learners_at);
    assert_int_equal(learners_at[3], 2);
    assert_int_equal(actors_at[3], 0);
}

TEST(numbers_of_the_file_are_placed)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    input.fixed_actors = 10;
    input.fixed_learners = 1;
    struct plan plan = curves_solve(&input);
    check_places(&input, &plan.chosen, (uint32_t[]){0, 8, 2}, (uint32_t[]){1, 0, 0});
    check_close(plan.chosen.inserts, 900, 1e-3, "inserts");
    assert_int_equal(plan.best.actors, 12);
    input.fixed_actors = 40; /* beyond the curves: the rest goes evenly */
    plan = curves_solve(&input);
    check_places(&input, &plan.chosen, (uint32_t[]){0, 20, 20}, (uint32_t[]){1, 0, 0});
}

TEST(each_machine_has_its_own_memory)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    hosts[1].memory = hosts[2].memory = 40 * MIB; /* of four actors */
    struct plan plan = curves_solve(&input);
    check_places(&input, &plan.chosen, (uint32_t[]){0, 4, 4}, (uint32_t[]){1, 0, 0});
    assert_int_equal(plan.chosen.bottleneck, PLAN_MEMORY);
    assert_int_equal(plan.most_actors, 8);
    hosts[0].memory = 100 * MIB; /* the broker alone takes all of it */
    assert_int_equal(plan_solve(&input, &plan, &err), RP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "home"));
}

TEST(hosts_that_take_more_than_was_measured_are_room_for_resizing)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    hosts[1].cores = 32;
    struct plan plan = curves_solve(&input);
    assert_int_equal(plan.most_actors, 40);
    input.max_actors = 20;
    plan = curves_solve(&input);
    assert_int_equal(plan.most_actors, 20);
    input.max_actors = 8; /* for all hosts together */
    plan = curves_solve(&input);
    assert_int_equal(plan.chosen.actors, 8);
    assert_int_equal(plan.chosen.bottleneck, PLAN_MAX_ACTORS);
    assert_int_equal(plan.most_actors, 8);
}

/* ---- joint runs ---- */

TEST(joint_runs_over_hosts_count)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    struct plan_run next;
    uint32_t runs = 0;
    /* The plant: actors do nine tenths of what they did alone. */
    while (runs < 12 && plan_next(&input, &next)) {
        uint32_t actors_at[MOST_HOSTS], learners_at[MOST_HOSTS], actors = next.actors, learners = next.learners;
        plan_place(&input, actors, learners, actors_at, learners_at);
        double could = 0.9 * (100.0 * actors_at[1] + 50.0 * actors_at[2]), rate = fmin(could, 1000.0 * learners);
        struct plan_run joint = {.actors = actors,
                                 .learners = learners,
                                 .shards = 1,
                                 .inserts = rate,
                                 .samples = rate,
                                 .actor_idle = 1 - rate / could,
                                 .learner_idle = 1 - rate / (1000.0 * learners),
                                 .cpu = actors * rate / could + 0.001 * rate};
        plan_add_run(&input, &joint);
        runs++;
    }
    struct plan plan = curves_solve(&input);
    assert_true(plan.chosen.measured);
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
        hosts[i].kind = i;
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
        const struct plan_choice *chosen = &plan.chosen;
        if (!(chosen->inserts > 0 && chosen->cpu <= plan_cores(&input) * 1.001))
            fail_msg("%u+%u: %g inserts/s with %g of %g cores", chosen->actors, chosen->learners, chosen->inserts,
                     chosen->cpu, plan_cores(&input));
        assert_true(chosen->actor_idle >= 0 && chosen->actor_idle <= 1);
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

TEST(many_equal_hosts_are_one_row)
{
    struct plan_host hosts[MOST_HOSTS];
    struct plan_input input = three_hosts(hosts);
    for (uint32_t i = 1; i < 12; i++) {
        hosts[i] = (struct plan_host){.kind = 1, .cores = 8, .actors = true};
        snprintf(hosts[i].name, sizeof hosts[i].name, "cpu%u", i);
    }
    hosts[1].actor = unit_of(100, 1, 0.001, 10 * MIB);
    hosts[11].actors = false;
    input.n_hosts = 12;
    struct plan plan = curves_solve(&input);
    const char *text = PRINTED(plan_print(&plan, &input, printing));
    assert_non_null(strstr(text, "cpu1 to cpu10 (10 hosts, 8 cores each)"));
    assert_non_null(strstr(text, "cpu11"));
    assert_non_null(strstr(text, "left out"));
}
