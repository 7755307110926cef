/* How many shards pay: numbers from runs with one shard and with more. */

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"

static const struct plan_pair pair = {.actors = 8, .learners = 2};

static struct plan_pair sharded(uint32_t shards, uint32_t actors, uint32_t learners, double inserts, double core,
                                double used)
{
    struct plan_pair run = run_of(actors, learners, inserts, inserts, 0, 0, used);
    run.shards = shards;
    run.core = core;
    run.home = used;
    return run;
}

static void add_run(struct plan_input *input, uint32_t shards, double inserts, double core, double used)
{
    struct plan_pair run = sharded(shards, pair.actors, pair.learners, inserts, core, used);
    assert_true(plan_add_run(input, &run));
}

/* A machine and a run of the pair with one shard; the file says how many actors and learners there are. */
static struct plan_input input_of(double machine, double core, double used)
{
    struct plan_input input = curves_input(unit_of(1e5, 0.5, 0.1, MIB), unit_of(1e6, 0.5, 0.1, MIB), 1);
    input.hosts[0].cores = machine;
    input.most_shards = 128;
    input.fixed_actors = pair.actors;
    input.fixed_learners = pair.learners;
    add_run(&input, 1, 1e6, core, used);
    return input;
}

static void expect(const struct plan_input *input, uint32_t next, uint32_t chosen, const char *reason)
{
    struct plan plan = curves_solve(input);
    struct plan_pair run;
    bool more = plan_next_shards(input, &run);
    assert_int_equal(more ? run.shards : 0, next);
    assert_int_equal(plan.broker.shards, chosen);
    assert_string_equal(plan.broker.reason, reason);
}

TEST(one_is_enough_for_a_broker_that_waits)
{
    struct plan_input input = input_of(16, 0.3, 6);
    expect(&input, 0, 1, "the broker's core thread works 30% of the time: more shards would gain little");
    input = input_of(2, 0.95, 2);
    expect(&input, 0, 1,
           "the broker's core thread works 95% of the time, but only 0 of 2 cores are left for more shards");
    input.n_runs = 0; /* a run of the pair comes first */
    expect(&input, 1, 1, "it was not measured how busy the broker is");
    input = input_of(16, NAN, 6);
    expect(&input, 0, 1, "it was not measured how busy the broker is");
}

TEST(shards_are_doubled_while_they_pay)
{
    struct plan_input input = input_of(16, 0.97, 4);
    expect(&input, 2, 1, "the broker's core thread works 97% of the time, and more were not measured");
    add_run(&input, 2, 1.9e6, 0.9, 6);
    expect(&input, 4, 2,
           "+90% inserts/s against one; the busiest core thread works 90% of the time, and more were not measured");
    add_run(&input, 4, 2.5e6, 0.3, 9);
    expect(&input, 0, 4,
           "+150% inserts/s against one; the busiest core thread works 30% of the time: more shards would gain little");
    input.n_runs = 2;
    add_run(&input, 4, 1.93e6, 0.7, 9);
    expect(&input, 0, 2,
           "+90% inserts/s against one; the busiest core thread works 90% of the time, but 4 shards gave only +2%");
    input.runs[2].inserts = 0.95e6;
    expect(&input, 0, 2,
           "+90% inserts/s against one; the busiest core thread works 90% of the time, but 4 shards gave 50% less");
}

TEST(tables_and_cores_bound_them)
{
    struct plan_pair next;
    struct plan_input input = input_of(16, 0.97, 4);
    input.most_shards = 1;
    expect(
        &input, 0, 1,
        "the broker's core thread works 97% of the time, but the table's sampler, limiter or sizes allow no 2 shards");
    input = input_of(3, 0.97, 1.5);
    add_run(&input, 2, 2e6, 0.9, 1.9);
    expect(&input, 0, 2,
           "+100% inserts/s against one; the busiest core thread works 90% of the time, but 4 shards are more than 3 "
           "cores");
    /* The broker's own machine counts. */
    struct plan_host hosts[2] = {{.cores = 2, .actors = true, .learners = true}, {.kind = "1", .cores = 64}};
    input = input_of(66, 0.97, 1.8);
    hosts[0].actor = input.hosts[0].actor;
    input.hosts = hosts;
    input.n_hosts = 2;
    assert_false(plan_next_shards(&input, &next));
}

/* Counts that the file leaves open grow with the shards, as far as cores, bounds and memory allow. */
TEST(processes_grow_with_shards)
{
    struct plan_pair next;
    struct plan_input input = input_of(16, 0.97, 6);
    input.fixed_actors = input.fixed_learners = 0;
    assert_true(plan_next_shards(&input, &next));
    assert_int_equal(next.shards, 2);
    assert_int_equal(next.actors, 16);
    assert_int_equal(next.learners, 4);
    input.max_learners = 3;
    input.fixed_actors = 8;
    assert_true(plan_next_shards(&input, &next));
    assert_int_equal(next.actors, 8);
    assert_int_equal(next.learners, 3);
    input.fixed_actors = input.max_learners = 0;
    input.runs[0].cpu = input.runs[0].home = 12; /* a third more is all that the cores allow */
    assert_true(plan_next_shards(&input, &next));
    assert_int_equal(next.actors, 11);
    assert_int_equal(next.learners, 3);
    input.hosts[0].memory = 131 * MIB; /* of which broker and evaluator take 120 */
    assert_true(plan_next_shards(&input, &next));
    assert_int_equal(next.actors, 8);
    assert_int_equal(next.learners, 2);
}

TEST(a_number_of_the_file_is_kept)
{
    struct plan_input input = input_of(16, 0.97, 4);
    input.fixed_shards = 1;
    expect(&input, 0, 1,
           "as broker.shards says; the busiest core thread works 97% of the time, so more may pay (auto measures it)");
    input.fixed_shards = 4;
    expect(&input, 0, 4, "as broker.shards says");
    add_run(&input, 4, 1e6, 0.05, 4);
    expect(&input, 0, 4, "as broker.shards says; the busiest core thread works 5% of the time, so one would do");
}

TEST(the_pair_that_was_run_with_them_is_chosen)
{
    struct plan_input input = curves_input(unit_of(1000, 0.5, 0.1, MIB), unit_of(2000, 0.5, 0.1, 3 * MIB), 1.25);
    input.hosts[0].cores = 16;
    input.most_shards = 8;
    struct plan plan = curves_solve(&input), back;
    uint32_t actors = plan.chosen.actors, learners = plan.chosen.learners;
    struct plan_pair one = sharded(1, actors, learners, plan.chosen.inserts, 0.9, 6);
    struct plan_pair two = sharded(2, 2 * actors, 2 * learners, 1.5 * plan.chosen.inserts, 0.3, 10);
    two.waits.learner[IDLE_UPDATES] = 0.125;
    plan_add_run(&input, &one);
    plan_add_run(&input, &two);
    plan = curves_solve(&input);
    assert_int_equal(plan.broker.shards, 2);
    assert_int_equal(plan.chosen.actors, 2 * actors);
    assert_int_equal(plan.chosen.learners, 2 * learners);
    assert_int_equal(plan.chosen.shards, 2);
    assert_true(plan.chosen.runs == 1 && plan.chosen.inserts == two.inserts && plan.chosen.cpu == 10);
    assert_true(plan.most_actors >= 2 * actors);
    assert_non_null(strstr(plan.chosen.reason, "50% more inserts/s than the best pair with one shard"));
    assert_int_equal(plan.best.actors, 2 * actors);
    assert_true(plan.chosen.waits.learner[IDLE_UPDATES] == 0.125);
    struct plan_input read;
    assert_true(plan_from_json(owned(plan_to_json(&plan, &input)), &back, &read));
    assert_true(back.chosen.waits.learner[IDLE_UPDATES] == 0.125);
    plan_input_free(&read);
    assert_int_not_equal(plan.chosen.bottleneck, PLAN_BROKER);
    /* The counts of the file stay: runs of other counts say nothing about them. */
    input.fixed_actors = actors;
    plan = curves_solve(&input);
    assert_int_equal(plan.broker.shards, 1);
    assert_int_equal(plan.chosen.actors, actors);
    assert_int_equal(plan.chosen.bottleneck, PLAN_BROKER);
}
