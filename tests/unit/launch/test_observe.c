/* Reports of a run's processes as they grow: torn lines, garbage, files that come late, are cut or replaced; and who
 * counts as idle. */
#include "agent/launch/process/observe.h"

#include <sys/stat.h>

#include "proto/base/clock.h"
#include "tests/support/tempdir.h"

#define START 1.7e9 /* seconds since 1970 */

struct fixture {
    struct observe_files files;
    struct observation seen;
};

static void set_up(struct fixture *f)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    observe_files_init(&f->files, tempdir, 2 * NS_PER_S);
}

static void tear_down(struct fixture *f)
{
    observe_files_fini(&f->files);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct fixture, set_up, tear_down)

static void put(const char *name, const char *mode, const char *text)
{
    FILE *file = fopen(tempdir_at(name), mode);
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void add(const char *name, double time_s, const char *rest)
{
    char line[512];
    snprintf(line, sizeof line, "{\"time\": %.3f, \"environment_steps\": 10, \"learner_steps\": 5, %s}\n", time_s,
             rest);
    put(name, "a", line);
}

/* What there is at a time, while these wait in the broker. */
static const struct observation *look(struct fixture *f, double now_s, const char *waiting)
{
    observe_files_read(&f->files, now_s);
    observe_files_sum(&f->files, &waiting, waiting ? 1 : 0, now_s, &f->seen);
    return &f->seen;
}

CASE(newest_reports_count)
{
    assert_near(look(f, START, NULL)->actor_idle, NAN, 1e-9);
    add("actor-0.jsonl", START, "\"blocked_share\": 0.5, \"return\": 20");
    add("actor-0.jsonl", START + 2, "\"blocked_share\": 0.25, \"return\": null");
    add("actor-1.jsonl", START + 2, "\"blocked_share\": 0.75, \"return\": 40");
    add("learner-0.jsonl", START + 2, "\"wait_share\": 0.125");
    add("evaluator-0.jsonl", START + 1, "\"return\": 100");
    const struct observation *seen = look(f, START + 2, NULL);
    assert_near(seen->actor_idle, 0.5, 1e-9);
    assert_near(seen->learner_idle, 0.125, 1e-9);
    assert_near(seen->actor_value, 30, 1e-9); /* no episode ended in the last report: the one before stands */
    assert_near(seen->value, 100, 1e-9);
    assert_int_equal(seen->values, 1);
    assert_int_equal(seen->value_learner_steps, 5);
    add("evaluator-0.jsonl", START + 3, "\"return\": 200");
    seen = look(f, START + 3, NULL);
    assert_near(seen->value, 200, 1e-9);
    assert_int_equal(seen->values, 2);
    assert_near(f->files.values[0].value, 100, 1e-9);
    assert_int_equal(f->files.values[0].steps, 10);
}

/* The newest report of each, by cause. Who does not say what it waited for waited for the other side. */
CASE(causes_are_kept)
{
    assert_near(look(f, START, NULL)->idle_by.learner[IDLE_REDUCE], NAN, 1e-9);
    add("learner-0.jsonl", START, "\"wait_share\": 0.5, \"idle_sample\": 0.1, \"idle_reduce\": 0.4");
    add("learner-1.jsonl", START, "\"wait_share\": 0.25, \"idle_sample\": 0.05, \"idle_updates\": 0.2");
    add("actor-0.jsonl", START, "\"blocked_share\": 0.5");
    add("actor-1.jsonl", START, "\"blocked_share\": 0.1, \"idle_credit\": 0, \"idle_counters\": 0.1");
    const struct observation *seen = look(f, START + 1.5, NULL);
    assert_near(seen->learner_idle, 0.375, 1e-9);
    assert_near(seen->idle_by.learner[IDLE_SAMPLE], 0.075, 1e-9);
    assert_near(seen->idle_by.learner[IDLE_REDUCE], 0.2, 1e-9);
    assert_near(seen->idle_by.learner[IDLE_UPDATES], 0.1, 1e-9);
    assert_near(seen->idle_by.learner[IDLE_COUNTERS], 0, 1e-9);
    assert_near(seen->actor_idle, 0.3, 1e-9);
    assert_near(seen->idle_by.actor[IDLE_CREDIT], 0.25, 1e-9);
    assert_near(seen->idle_by.actor[IDLE_COUNTERS], 0.05, 1e-9);
}

/* A report of another machine counts from its arrival on, whatever that machine's clock says. */
CASE(other_clocks)
{
    for (int skew = -1; skew <= 1; skew += 2) {
        const char *name = skew < 0 ? "learner-0.jsonl" : "actor-0.jsonl";
        add(name, START + skew * 1000, "\"wait_share\": 1, \"blocked_share\": 1");
        look(f, START, NULL);
        add(name, START + 2 + skew * 1000, "\"wait_share\": 0.5, \"blocked_share\": 0.5");
    }
    look(f, START + 1.5, NULL);
    add("learner-0.jsonl", START - 998, "\"wait_share\": 0.25");
    const struct observation *seen = look(f, START + 2, NULL);
    assert_near(seen->learner_idle, 0.25, 1e-9);
    assert_near(seen->actor_idle, 0.5, 1e-9);
    assert_near(look(f, START + 100, NULL)->learner_idle, NAN, 1e-9);
}

/* Reports that come often are found as often. */
CASE(files_of_a_short_measurement)
{
    observe_files_fini(&f->files);
    observe_files_init(&f->files, tempdir, NS_PER_S / 5);
    look(f, START, NULL);
    add("learner-0.jsonl", START, "\"wait_share\": 1");
    assert_near(look(f, START + 0.25, NULL)->learner_idle, 1, 1e-9);
}

CASE(files_come_later)
{
    look(f, START, NULL);
    add("learner-0.jsonl", START, "\"wait_share\": 1");
    assert_near(look(f, START + 0.5, NULL)->learner_idle, NAN, 1e-9); /* the folder is read once a second */
    assert_near(look(f, START + 1.1, NULL)->learner_idle, 1, 1e-9);
    add("learner-0.jsonl", START + 1, "\"wait_share\": 0.5");
    assert_near(look(f, START + 1.2, NULL)->learner_idle, 0.5, 1e-9); /* files that are known, at once */
}

CASE(half_a_line_waits)
{
    add("evaluator-0.jsonl", START, "\"return\": 1");
    put("evaluator-0.jsonl", "a", "{\"time\": 1700000001, \"ret");
    assert_int_equal(look(f, START, NULL)->values, 1);
    put("evaluator-0.jsonl", "a", "urn\": 2}");
    assert_int_equal(look(f, START, NULL)->values, 1); /* it may go on: "2}" is no whole line */
    put("evaluator-0.jsonl", "a", "\n");
    assert_int_equal(look(f, START, NULL)->values, 2);
    assert_near(f->seen.value, 2, 1e-9);
}

CASE(garbage_is_passed_over)
{
    static const char *const lines[] = {"\n",
                                        "null\n",
                                        "[1, 2]\n",
                                        "{\"time\": \"now\", \"return\": 7}\n",
                                        "{\"return\": 7}\n",
                                        "{\"time\": 1e999, \"return\": 7}\n",
                                        "{\"time\": 1700000000, \"return\": NaN}\n",
                                        "{\"time\": 1700000000, \"return\": {\"a\": [}\n",
                                        "\x01\xff\xfe{{{{\n",
                                        "{\"time\": 1700000000, \"return\": \n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        put("evaluator-0.jsonl", "a", lines[i]);
    /* Longer than any line, so that its end is read apart from its beginning. */
    size_t size = 3 * 65536;
    char *deep = calloc(1, size + 1);
    memset(deep, '[', size);
    put("evaluator-0.jsonl", "a", deep);
    free(deep);
    assert_int_equal(look(f, START, NULL)->values, 0);
    put("evaluator-0.jsonl", "a", "{\"time\": 1700000000, \"return\": 7}\n");
    add("evaluator-0.jsonl", START, "\"return\": 3, \"environment_steps\": -4");
    assert_int_equal(look(f, START, NULL)->values, 1);
    assert_near(f->seen.value, 3, 1e-9);
    put("actor-0.jsonl", "a", "{\"time\": 1700000000, \"blocked_share\": 17}\n");
    assert_near(look(f, START + 2, NULL)->actor_idle, 1, 1e-9);
}

CASE(other_files_are_left_alone)
{
    static const char *const names[] = {"actor-.jsonl", "actor-1.csv", "actor-x.jsonl", "my-actor-1.jsonl",
                                        "actor-12345678901234567890123456789012345.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        add(names[i], START, "\"blocked_share\": 1");
    assert_int_equal(mkfifo(tempdir_at("actor-2.jsonl"), 0600), 0); /* a pipe without a writer must not block */
    assert_int_equal(mkdir(tempdir_at("actor-3.jsonl"), 0700), 0);
    assert_near(look(f, START, NULL)->actor_idle, NAN, 1e-9);
}

CASE(cut_and_replaced)
{
    add("evaluator-0.jsonl", START, "\"return\": 1");
    add("evaluator-0.jsonl", START, "\"return\": 2");
    assert_int_equal(look(f, START, NULL)->values, 2);
    put("evaluator-0.jsonl", "w", "");
    add("evaluator-0.jsonl", START, "\"return\": 9");
    assert_int_equal(look(f, START, NULL)->values, 1);
    assert_near(f->seen.value, 9, 1e-9);
    add("new", START, "\"return\": 4");
    add("new", START, "\"return\": 5");
    add("new", START, "\"return\": 6");
    assert_int_equal(rename(tempdir_at("new"), tempdir_at("evaluator-0.jsonl")), 0);
    assert_int_equal(look(f, START, NULL)->values, 3);
    assert_near(f->files.values[0].value, 4, 1e-9);
    unlink(tempdir_at("evaluator-0.jsonl"));
    assert_int_equal(look(f, START, NULL)->values, 3);
}

/* Of a long file, the end is enough; of evaluations, everything. */
CASE(long_files)
{
    for (int i = 0; i < 3000; i++) {
        char rest[64];
        snprintf(rest, sizeof rest, "\"return\": %d, \"blocked_share\": 0.%d", i, i % 10);
        add("actor-0.jsonl", START + i, rest);
        add("evaluator-0.jsonl", START + i, rest);
    }
    look(f, START + 2999, NULL);
    assert_int_equal(f->seen.values, 3000);
    assert_near(f->seen.actor_value, 2999, 1e-9);
    assert_near(f->seen.actor_idle, 0.9, 1e-9);
}

CASE(the_silent_do_not_count)
{
    /* At the beginning no process has reported yet, and an actor that waits now may have worked before. */
    assert_near(look(f, START, "actor-7")->actor_idle, NAN, 1e-9);
    assert_near(look(f, START + 2.9, "actor-7")->actor_idle, NAN, 1e-9);
    assert_near(look(f, START + 3.1, "actor-7")->actor_idle, 1, 1e-9);
    add("actor-0.jsonl", START, "\"blocked_share\": 0.5");
    add("actor-1.jsonl", START + 20, "\"blocked_share\": 0.1");
    assert_near(look(f, START + 10.9, NULL)->actor_idle, 0.3, 1e-9); /* three periods of 2 s, and 5 s */
    assert_near(look(f, START + 11.1, NULL)->actor_idle, 0.1, 1e-9);
    /* It waits in the broker: that is why. */
    assert_near(look(f, START + 20, "actor-0")->actor_idle, 0.55, 1e-9);
    /* One that waits and reports nevertheless knows better. */
    assert_near(look(f, START + 20, "actor-1")->actor_idle, 0.1, 1e-9);
    /* One that has never got so far as to report. */
    assert_near(look(f, START + 20, "actor-7")->actor_idle, 0.55, 1e-9);
    assert_near(look(f, START + 20, "somebody")->actor_idle, 0.1, 1e-9);
    /* How long a user's own actors wait is not known: one that waits now may have worked before. */
    f->files.foreign_actors = true;
    assert_near(look(f, START + 20, "actor-7")->actor_idle, 0.1, 1e-9);
    f->files.foreign_actors = false;
    assert_near(look(f, START + 60, NULL)->actor_idle, NAN, 1e-9);
}
