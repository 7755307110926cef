/* What is left of a run: numbers, page, last lines. */
#include "agent/launch/report.h"
#include "agent/launch/series.h"
#include "tests/support/parsed.h"
#include "tests/support/statuses.h"
#include "tests/support/tempdir.h"

static double steps[50], values[50];
static const struct status_process processes[] = {
    {"broker", ROLE_BROKER, 0, 0, 80 << 20, 0.3, "ended", ""},
    {"actor-<1>", ROLE_ACTOR, 0, 3, 0, 0, "ended", ""},
};

static const struct best best_kept = {.value = 490, .episodes = 20, .environment_steps = 60000, .learner_steps = 28000};

struct fixture {
    char folder[64], metrics[96];
    struct status last;
    struct plan plan;
    struct plan_host home;
    struct plan_input input;
    struct report report;
};

static const struct idle_shares not_waited;
static const struct idle_shares waited = {.actor = {[IDLE_CREDIT] = 0.6, [IDLE_COUNTERS] = 0.01},
                                          .learner = {[IDLE_SAMPLE] = 0.1, [IDLE_REDUCE] = 0.25}};

/* With one learner, long enough to leave out the beginning. */
static struct report_stretch stretch_of(uint32_t actors, double from_s, double seconds, struct report_rates achieved,
                                        const struct idle_shares *idle_by)
{
    return (struct report_stretch){.actors = actors,
                                   .learners = 1,
                                   .from_s = from_s,
                                   .seconds = seconds,
                                   .settled = true,
                                   .achieved = achieved,
                                   .idle_by = *idle_by};
}

static void set_up(struct fixture *f)
{
    strcpy(f->folder, "/tmp/rp_report_XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->metrics, sizeof f->metrics, "%s/metrics.jsonl", f->folder);
    for (int i = 0; i < 50; i++) {
        steps[i] = 1000 * i;
        values[i] = 10 * i;
    }
    f->last = status_of(
        "\"name\": \"cart<pole>\", \"phase\": \"done\", \"reason\": \"return 475 reached\", \"unix_s\": 1700000000, "
        "\"elapsed_s\": 41, \"steps\": 61234, \"learner_steps\": 30000, \"stop_value\": 475, \"spi\": 31.9, "
        "\"spi_target\": 32, \"actor_idle\": 0.6, \"learner_idle\": 0.02, \"value\": 490, \"best\": 490, "
        "\"actors_wanted\": 4, \"learners_wanted\": 1, \"restarts\": 3, \"inserts_rate\": 5000, "
        "\"samples_rate\": 160000, \"memory\": 314572800");
    f->last.value_steps = steps;
    f->last.values = values;
    f->last.n_values = 50;
    f->last.processes = processes;
    f->last.n_processes = 2;
    f->home = (struct plan_host){.name = "home", .cores = 2, .memory = 4e9, .actors = true, .learners = true};
    f->input = (struct plan_input){.hosts = &f->home, .n_hosts = 1, .spi = 32};
    f->plan.chosen = (struct plan_pair){.actors = 4,
                                        .learners = 1,
                                        .inserts = 5000,
                                        .samples = 160000,
                                        .waits.actor[IDLE_CREDIT] = 0.58,
                                        .waits.learner[IDLE_SAMPLE] = 0.02,
                                        .bottleneck = PLAN_LEARNERS,
                                        .reason = "highest throughput"};
    f->plan.best = f->plan.chosen;
    f->report = (struct report){
        .last = &f->last,
        .plan = &f->plan,
        .plan_input = &f->input,
        .stretches = {stretch_of(4, 3, 30, (struct report_rates){5500, 110000, 20, 0.61, 0.35}, &waited)},
        .n_stretches = 1,
        .final_value = 481.25,
        .final_episodes = 20,
        .final_weights = "learner.weights",
        .best = &best_kept,
        .legs = 1,
        .command = "replay-launch x.yaml --set a=\"<b>\""};
}

static void tear_down(struct fixture *f)
{
    static const char *const files[] = {"metrics.jsonl", "report.json", "report.html", "report.txt", "learner-0.jsonl"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(file_in(f->folder, files[i]));
    assert_int_equal(rmdir(f->folder), 0); /* nothing else was left there */
}

FIXTURE(struct fixture, set_up, tear_down)

static void write_metrics(struct fixture *f, uint32_t seconds)
{
    FILE *file = fopen(f->metrics, "w");
    assert_non_null(file);
    struct status s = f->last;
    s.phase = PHASE_RUNNING;
    for (uint32_t i = 0; i < seconds; i++) {
        s.elapsed_s = i;
        s.unix_s = 1000 + i;
        s.spi = i < 3 ? NAN : 32;
        s.memory = (uint64_t)(i == seconds / 2 ? 900 : 300) << 20;
        if (i % 100 == 7) {
            snprintf(s.event, sizeof s.event, "event <%u>", i);
            s.event_unix_s = s.unix_s;
        }
        char *json = status_to_json(&s, false);
        fprintf(file, "%s\n", json);
        free(json);
        if (i % 10 == 0)
            fprintf(file, "nonsense\n{\"phase\": 4}\n\n[1, 2]\n");
    }
    for (int i = 0; i < 3; i++) { /* the processes end, one after the other */
        s.phase = i < 2 ? PHASE_STOPPING : PHASE_DONE;
        s.elapsed_s = seconds + i;
        s.memory = i == 0 ? 10 << 20 : 0;
        s.inserts_rate = s.samples_rate = 0;
        char *json = status_to_json(&s, false);
        fprintf(file, "%s\n", json);
        free(json);
    }
    fprintf(file, "{\"phase\": \"runn"); /* the launcher was killed */
    fclose(file);
}

static void write_learner(const struct fixture *f)
{
    FILE *file = fopen(file_in(f->folder, "learner-0.jsonl"), "w");
    assert_non_null(file);
    for (int i = 1; i <= 100; i++)
        fprintf(file, "{\"time\": %d, \"learner_steps\": %d, \"loss\": %g, \"q\": %s}\n%s", i, 10 * i, 1.0 / i,
                i == 7 ? "null" : "2.5", i == 50 ? "nonsense\n{\"loss\": 3}\n[]\n" : "");
    fprintf(file, "{\"learner_steps\": 9999, \"lo"); /* it still writes */
    fclose(file);
}

/* The answers that report.html holds, for those who read it without a server. */
static json_object *answers_of(const struct fixture *f)
{
    static const char before[] = "<script type=\"application/json\" id=\"answers\">";
    char *from = strstr(file_text(file_in(f->folder, "report.html")), before);
    assert_non_null(from);
    char *end = strstr(from + strlen(before), "</script>");
    assert_non_null(end);
    *end = '\0';
    assert_null(strchr(from + strlen(before), '<')); /* text of a run is never markup */
    return parsed(from + strlen(before));
}

/* The last number of a column. */
static double last_of(json_object *answers, const char *path)
{
    return parsed_number(answers, textf("%s/%zu", path, parsed_count(answers, path) - 1));
}

/* Writes the report; returns report.json. */
static json_object *written(struct fixture *f)
{
    report_predict(&f->report);
    ok(report_write(&f->report, f->folder, &err));
    return parsed(file_text(file_in(f->folder, "report.json")));
}

CASE(json)
{
    write_metrics(f, 40);
    json_object *report = written(f);
    FIGURES(report, {"/elapsed_s", 41}, {"/steps", 61234}, {"/learner_steps", 30000}, {"/restarts", 3},
            {"/final_value", 481.25}, {"/best_weights/return", 490}, {"/best_weights/learner_steps", 28000},
            {"/stretches/0/predicted/inserts", 5000}, {"/stretches/0/achieved/inserts", 5500},
            {"/stretches/0/predicted/spi", 32}, {"/stretches/0/achieved/spi", 20},
            {"/stretches/0/achieved/learner_idle", 0.35}, {"/stretches/0/seconds", 30},
            {"/stretches/0/actor_idle_by/credit", 0.6}, {"/stretches/0/learner_idle_by/reduce", 0.25},
            {"/stretches/0/learner_idle_by/updates", 0}, {"/peak_memory", 900.0 * 1048576});
    assert_true(json_object_is_type(parsed_at(report, "/plan"), json_type_object));
    assert_string_equal(parsed_text(report, "/phase"), "done");
    assert_string_equal(parsed_text(report, "/reason"), "return 475 reached");
}

CASE(page)
{
    write_metrics(f, 400);
    write_learner(f);
    json_object *report = written(f), *answers = answers_of(f);
    assert_true(json_object_equal(parsed_at(answers, "/api~1report"), report));
    assert_string_equal(parsed_text(answers, "/api~1state/run/name"), "cart<pole>");
    assert_int_equal(parsed_count(answers, "/api~1state/run/processes"), 2);
    assert_string_equal(parsed_text(answers, "/api~1state/verdict/level"), "good");
    assert_true(last_of(answers, "/api~1history/elapsed_s") > 400);
    assert_true(last_of(answers, "/api~1run/learning/q") == 2.5);
    assert_has(parsed_text(report, "/summary"), "final return 481.2 (learner.weights");
    assert_string_equal(parsed_text(report, "/command"), f->report.command);
    assert_int_equal(parsed_count(report, "/events"), 4);
    assert_string_equal(parsed_text(report, "/events/3/event"), "event <307>");
    assert_int_equal(parsed_count(report, "/files"), 1); /* nothing else is in this folder */
    assert_string_equal(parsed_text(report, "/files/0"), "metrics.jsonl");
    const char *page = file_text(file_in(f->folder, "report.html"));
    assert_int_equal(strncmp(page, "<!doctype html>", 15), 0);
    HAS_NOT(page, "<script src", "@import", "<link"); /* it needs no other file */
    assert_has(page, "</html>");
}

/* Without a plan, without metrics, without anything. */
CASE(nothing)
{
    struct status nothing = status_of("\"phase\": \"failed\", \"reason\": \"the broker did not start\"");
    f->report = (struct report){.last = &nothing, .final_value = NAN};
    json_object *report = written(f), *answers = answers_of(f);
    assert_string_equal(parsed_text(answers, "/api~1state/verdict/level"), "bad");
    assert_has(parsed_text(answers, "/api~1state/verdict/text"), "the broker did not start");
    assert_int_equal(json_object_object_length(parsed_at(answers, "/api~1history")), 0);
    assert_null(parsed_at(report, "/plan"));
    assert_null(parsed_at(report, "/final_value"));
    assert_int_not_equal(report_write(&f->report, "/nowhere", &err), RP_OK);
    assert_has(err.text, "/nowhere");
}

/* A long run is thinned by means, and its events are kept. */
CASE(long)
{
    struct series run;
    write_metrics(f, 5000);
    series_read_history(&run, f->folder);
    assert_true(run.n > SERIES_POINTS / 2 && run.n <= SERIES_POINTS);
    assert_true(run.columns[HISTORY_ELAPSED][0] < 8 && run.columns[HISTORY_ELAPSED][run.n - 1] > 4990);
    for (uint32_t i = 1; i < run.n; i++) {
        assert_true(run.columns[HISTORY_ELAPSED][i] > run.columns[HISTORY_ELAPSED][i - 1]);
        if (i + 1 == run.n && isnan(run.columns[HISTORY_SPI][i]))
            break; /* all its lines are of the end */
        assert_true(run.columns[HISTORY_SPI][i] == 32 && run.columns[HISTORY_INSERTS][i] == 5000);
        assert_true(run.columns[HISTORY_MEMORY][i] >= 300 << 20);
    }
    series_fini(&run);
    json_object *report = written(f);
    assert_int_equal(parsed_count(report, "/events"), 50);
    FIGURES(report, {"/peak_memory", 900.0 * 1048576}, {"/events/49/elapsed_s", 4907});
    /* A line without end is no line. */
    FILE *file = fopen(f->metrics, "w");
    for (int i = 0; i < 300000; i++)
        fputc('{', file);
    fputs("\n{\"phase\": \"running\", \"unix_s\": 9, \"elapsed_s\": 3}\n", file);
    fclose(file);
    series_read_history(&run, f->folder);
    assert_int_equal(run.n, 1);
    assert_true(run.columns[HISTORY_ELAPSED][0] == 3 && isnan(run.columns[HISTORY_SPI][0]));
    series_fini(&run);
}

/* The end of a run is no part of its curves, and what a learner tells is. */
CASE(curves)
{
    struct series run;
    write_metrics(f, 40);
    write_learner(f);
    series_read_history(&run, f->folder);
    assert_int_equal(run.n, 43);
    for (uint32_t i = 0; i < 43; i++) {
        assert_int_equal(isnan(run.columns[HISTORY_MEMORY][i]), i >= 40);
        assert_int_equal(isnan(run.columns[HISTORY_INSERTS][i]), i >= 40);
    }
    assert_true(series_last(&run, HISTORY_MEMORY) == 300 << 20 && series_last(&run, HISTORY_ELAPSED) == 42);
    series_fini(&run);
    written(f);
    json_object *learning = parsed_at(answers_of(f), "/api~1run/learning");
    for (int i = 0; i < 100; i++) {
        assert_near(parsed_number(learning, textf("/learner_steps/%d", i)), 10 * (i + 1), 0);
        assert_near(parsed_number(learning, textf("/loss/%d", i)), 1.0 / (i + 1), 5e-6);
        assert_int_equal(parsed_at(learning, textf("/q/%d", i)) == NULL, i == 6);
    }
    assert_int_equal(parsed_count(learning, "/loss"), 100);
    assert_false(json_object_object_get_ex(learning, "entropy", NULL));
}

/* Nobody evaluates: the actors' own returns are shown. */
CASE(returns_of_actors)
{
    f->last.n_values = 0;
    f->last.value = f->last.best = NAN;
    f->last.actor_value = 123.5;
    f->report.final_value = NAN;
    f->report.best = NULL;
    write_metrics(f, 40);
    json_object *report = written(f), *answers = answers_of(f);
    FIGURES(report, {"/actor_value", 123.5}, {"/value", NAN});
    assert_has(parsed_text(report, "/summary"), "123.5");
    assert_false(json_object_get_boolean(parsed_at(answers, "/api~1run/evaluated")));
    assert_true(last_of(answers, "/api~1run/curve/return") == 123.5);
    assert_true(last_of(answers, "/api~1run/curve/environment_steps") == 61234);
}

static const char *printed_report(struct report *report)
{
    struct text text = {0};
    report_predict(report);
    report_text(&text, report, "runs/x");
    return owned(text.data);
}

/* Each stretch is compared with what the plan says about its own counts. */
CASE(stretches)
{
    f->home.actor = (struct plan_unit){1200, 0.12, 0.02, 1e6};
    f->input.learner = (struct plan_unit){400000, 0.5, 0.1, 1e6};
    f->home.cores = 16;
    f->report.stretches[1] = stretch_of(8, 20, 10, (struct report_rates){9100, 290000, 31.9, 0.1, 0.2}, &not_waited);
    f->report.stretches[2] = stretch_of(99, 31, 1, (struct report_rates){50, 60, 1.2, NAN, NAN}, &not_waited);
    f->report.n_stretches = 3;
    struct plan_pair expected;
    assert_true(plan_predict(&f->input, 8, 1, &expected));
    json_object *report = written(f);
    assert_int_equal(parsed_count(report, "/stretches"), 3);
    FIGURES(report, {"/stretches/0/actor_idle_by/sample", 0}, {"/stretches/0/predicted/inserts", 5000},
            {"/stretches/1/actors", 8}, {"/stretches/1/from_s", 20}, {"/stretches/1/seconds", 10},
            {"/stretches/1/achieved/inserts", 9100}, {"/stretches/2/achieved/inserts", 50},
            {"/stretches/2/learner_idle_by/sample", NAN}); /* not known */
    assert_near(parsed_number(report, "/stretches/1/predicted/inserts"), expected.inserts, 1e-9);
    assert_true(expected.inserts != 5000 && parsed_number(report, "/stretches/2/predicted/inserts") > 0);
    HAS(printed_report(&f->report), "8 actors, 1 learner, from 20 s on: 10 s", "4 actors, 1 learner, from 3",
        "99 actors, 1 learner, from 31 s on");
}

static void fill_hosts(struct status_host *hosts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        hosts[i] = (struct status_host){.model = "a <processor>",
                                        .state = "ready",
                                        .ready = true,
                                        .actors_wanted = i ? 30 : 0,
                                        .learners_wanted = i == 1 ? 2 : 0,
                                        .times = i,
                                        .cores = 32,
                                        .mean_cpu = 29.25,
                                        .machine_cpu = NAN,
                                        .round_trip_ms = NAN};
        snprintf(hosts[i].name, sizeof hosts[i].name, i ? "cpu<%u>" : "home", i);
    }
    hosts[1].losses = 2;
    hosts[1].lost_s = 65;
    hosts[2].mean_cpu = NAN; /* it could not be reached */
}

CASE(hosts)
{
    static struct status_host hosts[100];
    fill_hosts(hosts, 100);
    f->last.hosts = hosts;
    f->last.n_hosts = 100;
    json_object *report = written(f);
    assert_int_equal(parsed_count(report, "/hosts"), 100);
    FIGURES(report, {"/hosts/1/actors_wanted", 30}, {"/hosts/1/learners_wanted", 2}, {"/hosts/1/mean_cpu", 29.25},
            {"/hosts/1/cores", 32}, {"/hosts/1/losses", 2}, {"/hosts/1/lost_s", 65}, {"/hosts/2/mean_cpu", NAN});
    const char *printed = printed_report(&f->report);
    assert_has(printed, "\n\ncpu<1> was lost 2 times, for 1 min 5 s\ncpu<2> was never there\nreport: ");
    for (uint32_t i = 0; i < 100; i++)
        hosts[i].losses = 1;
    HAS(printed_report(&f->report), "\n... see the report for all 100 hosts\n", "\nhome was lost 1 time, for");
    assert_has_not(printed_report(&f->report), "cpu<8>");
}

CASE(print)
{
    assert_string_equal(
        printed_report(&f->report),
        "cart<pole> done after 41 s: 61,234 steps, 30,000 updates, 3 restarts\n"
        "return 475 reached\n"
        "final return 481.2 (learner.weights, mean of 20 episodes), best evaluation 490 (best.weights, learner "
        "step 28,000)\n"
        "\n"
        "                      predicted  achieved  difference\n"
        "  inserts/s                 5 k     5.5 k        +10%\n"
        "  samples/s               160 k     110 k        -31%\n"
        "  samples per insert         32        20        -38%\n"
        "  actors idle               58%       61%   +3 points\n"
        "  learners idle              2%       35%  +33 points\n"
        "  waited: actors for credit 60%, counters 1%; learners for reduce 25%, sample 10%\n"
        "\n"
        "report: runs/x/report.html\n");
    f->report.plan = NULL;
    assert_has(printed_report(&f->report), "  samples per insert        20\n");
    assert_has_not(printed_report(&f->report), "predicted");
}
