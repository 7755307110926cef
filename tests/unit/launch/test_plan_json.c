

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"
#include "tests/support/naive.h"

static struct plan_input whole_input(void)
{
    static struct plan_host hosts[3] = {{.kind = "0"},
                                        {.name = "fast", .kind = "1", .cores = 8, .actors = true},
                                        {.name = "slow", .kind = "2", .cores = 8, .learners = true}};
    struct plan_input input = curves_input(unit_of(1000, 0.5, 0.1, MIB), unit_of(2000, 0.5, 0.1, 3 * MIB), 1.25);
    hosts[0] = input.hosts[0];
    hosts[1].actor = unit_of(100, 1, 0.01, 10 * MIB);
    input.hosts = hosts;
    input.n_hosts = 3;
    input.runs[0] = run_of(2, 1, 1600, 2000, NAN, 0.02, 1.7);
    input.runs[0].waits.learner[IDLE_UPDATES] = 0.125;
    input.runs[0].core = 0.25;
    input.most_shards = 8;
    input.n_runs = 1;
    input.fixed_actors = 3;
    return input;
}

TEST(json_goes_both_ways)
{
    struct plan_input input = whole_input(), input_back;
    struct plan plan = curves_solve(&input), back;
    char *text = owned(plan_to_json(&plan, &input));
    assert_true(plan_from_json(text, &back, &input_back));
    assert_string_equal(text, owned(plan_to_json(&back, &input_back)));
    assert_true(isnan(input_back.runs[0].waits.actor[IDLE_CREDIT]));
    assert_true(input_back.runs[0].waits.learner[IDLE_UPDATES] == 0.125);
    assert_true(input_back.hosts[0].actor.rate == 1000 && input_back.learner.memory == 3 * MIB);
    assert_true(input_back.n_hosts == 3 && input_back.hosts[1].actor.rate == 100);
    assert_string_equal(input_back.hosts[2].name, "slow");
    assert_string_equal(back.chosen.reason, plan.chosen.reason);
    assert_int_equal(back.chosen.bottleneck, plan.chosen.bottleneck);
    assert_int_equal(back.most_actors, plan.most_actors);
    assert_int_equal(back.broker.shards, 1);
    assert_string_equal(back.broker.reason, plan.broker.reason);
    assert_true(input_back.runs[0].core == 0.25 && input_back.most_shards == 8 && input_back.fixed_shards == 0);
    plan_input_free(&input_back);
    assert_true(plan_input_from_json(text, &input_back));
    plan_input_free(&input_back);
    /* The curves alone: there is an input, and no plan. */
    text = owned(plan_to_json(NULL, &input));
    assert_true(plan_input_from_json(text, &input_back));
    plan_input_free(&input_back);
    assert_false(plan_from_json(text, &back, &input_back));
}

TEST(json_that_is_cut_or_changed_does_no_harm)
{
    struct plan_input input = whole_input();
    struct plan plan = curves_solve(&input);
    char *text = owned(plan_to_json(&plan, &input));
    size_t size = strlen(text);
    struct rng rng = naive_rng(__func__);
    for (size_t cut = 0; cut < size; cut += 1 + rng_below(&rng, 5)) {
        struct plan back;
        struct plan_input input_back;
        const char *part = textf("%.*s", (int)cut, text);
        assert_false(plan_from_json(part, &back, &input_back));
        assert_false(plan_input_from_json(part, &input_back));
        assert_null(input_back.hosts);
    }
    for (int i = 0; i < 3000; i++) {
        char *changed = strdup(text);
        uint64_t changes = 1 + rng_below(&rng, 3);
        for (uint64_t k = 0; k < changes; k++)
            changed[rng_below(&rng, size)] =
                i % 2 ? (char)(1 + rng_below(&rng, 255)) : "0123456789.-e{}[]\",:n"[rng_below(&rng, 21)];
        struct plan back;
        struct plan_input input_back;
        if (plan_from_json(changed, &back, &input_back)) {
            PRINTED(plan_print(&back, &input_back, printing));
            if (plan_solve(&input_back, &plan, NULL) == RP_OK)
                assert_true(plan.chosen.actors > 0);
            plan_input_free(&input_back);
        }
        free(changed);
    }
    static const char *const garbage[] = {"",
                                          "null",
                                          "[]",
                                          "{}",
                                          "1",
                                          "{\"input\":null}",
                                          "{\"input\":{}}",
                                          "x",
                                          "\"",
                                          "{{{",
                                          "{\"input\":{\"spi\":\"2\"}}"};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        struct plan_input input_back;
        assert_false(plan_input_from_json(garbage[i], &input_back));
    }
}

/* A list may be longer than there is room for. */
TEST(json_with_too_many_joints_is_refused)
{
    struct plan_input input = whole_input(), back;
    char *text = owned(plan_to_json(NULL, &input)), *list = strstr(text, "\"runs\"");
    assert_non_null(list);
    list = strchr(list, '[') + 1;
    const char *joint = owned(strndup(list, (size_t)(strchr(list, '}') + 1 - list)));
    const char *longer = list;
    for (uint32_t more = 0; more <= PLAN_MAX_RUNS + 100; more++) {
        const char *whole = textf("%.*s%s", (int)(list - text), text, longer);
        assert_int_equal(plan_input_from_json(whole, &back), more < PLAN_MAX_RUNS);
        plan_input_free(&back);
        longer = textf("%s,%s", joint, longer);
    }
}

/* A plan looks at every pair up to the largest count that was run: no file may make that billions. */
TEST(json_with_joints_beyond_all_counts_is_refused)
{
    static const uint32_t counts[] = {1, 4096, 0, 4097, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int learners = 0; learners < 2; learners++) {
            struct plan_input input = whole_input(), back;
            *(learners ? &input.runs[0].learners : &input.runs[0].actors) = counts[i];
            assert_int_equal(plan_input_from_json(owned(plan_to_json(NULL, &input)), &back), i < 2);
            plan_input_free(&back);
        }
}

/* The text with the value of a member replaced where it stands first. */
static const char *with(const char *text, const char *name, const char *value)
{
    const char *at = strstr(text, name);
    assert_non_null(at);
    at = strchr(at, ':') + 1;
    return textf("%.*s %s%s", (int)(at - text), text, value, at + strcspn(at, ",\n}"));
}

/* Counts and bytes become processes and integers. */
TEST(json_with_numbers_beyond_all_measure)
{
    static const struct {
        const char *name, *value;
        bool good;
    } cases[] = {{"\"kind\": \"1\"", "2", false},
                 {"\"most_actors\"", "4000000000", false},
                 {"\"most_actors\"", "4096", true},
                 {"\"most_actors\"", "0", false},
                 {"\"most_actors\"", "-1", false},
                 {"\"most_actors\"", "4294967297", false},
                 {"\"actors\"", "5000", false},
                 {"\"actors\"", "0", false},
                 {"\"memory\": 4294967296", "1e300", true},
                 {"\"memory\": 4294967296", "1e999", true},
                 {"\"memory\": 4294967296", "-7", true},
                 {"\"broker_memory\"", "1e300", true},
                 {"\"inserts\"", "1e300", true},
                 {"\"cores\"", "1e999", true},
                 {"\"fixed_actors\"", "4000000000", false}};
    struct plan_input input = whole_input(), input_back;
    struct plan plan = curves_solve(&input), back;
    char *text = owned(plan_to_json(&plan, &input));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *changed = with(text, cases[i].name, cases[i].value);
        if (plan_from_json(changed, &back, &input_back) != cases[i].good)
            fail_msg("%s %s is %s", cases[i].name, cases[i].value, cases[i].good ? "refused" : "taken");
        if (cases[i].good) {
            PRINTED(plan_print(&back, &input_back, printing));
            assert_true(plan_memory(&input_back) >= 0 && plan_memory(&input_back) <= 1e18);
            plan_input_free(&input_back);
        }
    }
}
