/* What is left of a run: numbers, page, last lines. */
#include <json-c/json.h>

#include "agent/launch/process/run_folder.h"
#include "agent/launch/report.h"
#include "agent/launch/series.h"
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

static void set_up(struct fixture *f)
{
    strcpy(f->folder, "/tmp/rp_report_XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->metrics, sizeof f->metrics, "%s/metrics.jsonl", f->folder);
    for (int i = 0; i < 50; i++) {
        steps[i] = 1000 * i;
        values[i] = 10 * i;
    }
    f->last = (struct status){.name = "cart<pole>",
                              .phase = PHASE_DONE,
                              .reason = "return 475 reached",
                              .unix_s = 1700000000,
                              .elapsed_s = 41,
                              .steps = 61234,
                              .learner_steps = 30000,
                              .stop_value = 475,
                              .spi = 31.9,
                              .spi_target = 32,
                              .actor_idle = 0.6,
                              .learner_idle = 0.02,
                              .value = 490,
                              .best = 490,
                              .value_steps = steps,
                              .values = values,
                              .n_values = 50,
                              .processes = processes,
                              .n_processes = 2,
                              .actors_wanted = 4,
                              .learners_wanted = 1,
                              .restarts = 3,
                              .inserts_rate = 5000,
                              .samples_rate = 160000,
                              .memory = 300 << 20};
    f->home = (struct plan_host){.name = "home", .cores = 2, .memory = 4e9, .actors = true, .learners = true};
    f->input = (struct plan_input){.hosts = &f->home, .n_hosts = 1, .spi = 32};
    f->plan.chosen = (struct plan_choice){.actors = 4,
                                          .learners = 1,
                                          .inserts = 5000,
                                          .samples = 160000,
                                          .actor_idle = 0.58,
                                          .learner_idle = 0.02,
                                          .bottleneck = PLAN_LEARNERS,
                                          .reason = "highest throughput"};
    f->plan.best = f->plan.chosen;
    f->report = (struct report){.last = &f->last,
                                .plan = &f->plan,
                                .plan_input = &f->input,
                                .stretches = {{4, 1, 3, true, {30, 5500, 110000, 20, 0.61, 0.35, waited}}},
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

static double number(struct json_object *object, const char *path)
{
    char name[32];
    size_t size = strcspn(path, ".");
    snprintf(name, sizeof name, "%.*s", (int)size, path);
    struct json_object *member = NULL;
    if (!json_object_object_get_ex(object, name, &member))
        fail_msg("no '%s'", path);
    if (path[size])
        return number(member, path + size + 1);
    return member ? json_object_get_double(member) : NAN;
}

static struct json_object *member_of(struct json_object *object, const char *name)
{
    struct json_object *member = NULL;
    json_object_object_get_ex(object, name, &member);
    return member;
}

/* Returns the answers that report.html holds, for those who read it without a server: json_object_put. */
static struct json_object *answers_of(const struct fixture *f)
{
    static const char before[] = "<script type=\"application/json\" id=\"answers\">";
    char *page = run_folder_read(f->folder, "report.html"), *from = strstr(page, before);
    assert_non_null(from);
    char *end = strstr(from + strlen(before), "</script>");
    assert_non_null(end);
    *end = '\0';
    struct json_object *answers = json_tokener_parse(from + strlen(before));
    assert_null(strchr(from + strlen(before), '<')); /* text of a run is never markup */
    assert_true(json_object_is_type(answers, json_type_object));
    free(page);
    return answers;
}

static double last_of(struct json_object *columns, const char *name)
{
    struct json_object *list = member_of(columns, name);
    size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    return n > 0 ? json_object_get_double(json_object_array_get_idx(list, n - 1)) : NAN;
}

/* Writes the report; returns report.json: json_object_put. */
static struct json_object *written(struct fixture *f)
{
    ok(report_write(&f->report, f->folder, &err));
    char *text = run_folder_read(f->folder, "report.json");
    struct json_object *object = json_tokener_parse(text);
    assert_true(json_object_is_type(object, json_type_object));
    free(text);
    return object;
}

CASE(json)
{
    write_metrics(f, 40);
    struct json_object *object = written(f), *member = NULL, *first;
    assert_true(number(object, "elapsed_s") == 41 && number(object, "steps") == 61234);
    assert_true(number(object, "learner_steps") == 30000 && number(object, "restarts") == 3);
    assert_true(number(object, "final_value") == 481.25);
    assert_true(number(object, "best_weights.return") == 490 && number(object, "best_weights.learner_steps") == 28000);
    first = json_object_array_get_idx(member_of(object, "stretches"), 0);
    assert_true(number(first, "predicted.inserts") == 5000 && number(first, "achieved.inserts") == 5500);
    assert_true(number(first, "predicted.spi") == 32 && number(first, "achieved.spi") == 20);
    assert_true(number(first, "achieved.learner_idle") == 0.35 && number(first, "seconds") == 30);
    assert_true(number(first, "actor_idle_by.credit") == 0.6 && number(first, "learner_idle_by.reduce") == 0.25);
    assert_true(number(first, "learner_idle_by.updates") == 0);
    assert_true(number(object, "peak_memory") == 900.0 * 1048576);
    assert_true(json_object_object_get_ex(object, "plan", &member) && json_object_is_type(member, json_type_object));
    assert_string_equal(json_object_get_string(member_of(object, "phase")), "done");
    assert_string_equal(json_object_get_string(member_of(object, "reason")), "return 475 reached");
    json_object_put(object);
}

CASE(page)
{
    write_metrics(f, 400);
    write_learner(f);
    struct json_object *report = written(f), *answers = answers_of(f), *state_of = member_of(answers, "api/state");
    struct json_object *run = member_of(state_of, "run"), *curves = member_of(answers, "api/run");
    assert_true(json_object_equal(member_of(answers, "api/report"), report));
    assert_string_equal(json_object_get_string(member_of(run, "name")), "cart<pole>");
    assert_int_equal(json_object_array_length(member_of(run, "processes")), 2);
    assert_string_equal(json_object_get_string(member_of(member_of(state_of, "verdict"), "level")), "good");
    assert_true(last_of(member_of(answers, "api/history"), "elapsed_s") > 400);
    assert_true(last_of(member_of(curves, "learning"), "q") == 2.5);
    assert_has(json_object_get_string(member_of(report, "summary")), "final return 481.2 (learner.weights");
    assert_string_equal(json_object_get_string(member_of(report, "command")), f->report.command);
    struct json_object *events = member_of(report, "events"), *files = member_of(report, "files");
    assert_int_equal(json_object_array_length(events), 4);
    assert_string_equal(json_object_get_string(member_of(json_object_array_get_idx(events, 3), "event")),
                        "event <307>");
    assert_int_equal(json_object_array_length(files), 1); /* nothing else is in this folder */
    assert_string_equal(json_object_get_string(json_object_array_get_idx(files, 0)), "metrics.jsonl");
    json_object_put(report);
    json_object_put(answers);
    char *page = run_folder_read(f->folder, "report.html");
    assert_int_equal(strncmp(page, "<!doctype html>", 15), 0);
    assert_null(strstr(page, "<script src")); /* it needs no other file */
    assert_null(strstr(page, "@import"));
    assert_null(strstr(page, "<link"));
    assert_has(page, "</html>");
    free(page);
}

/* Without a plan, without metrics, without anything. */
CASE(nothing)
{
    struct status nothing = {
        .phase = PHASE_FAILED, .stop_value = INFINITY, .value = NAN, .best = NAN, .reason = "the broker did not start"};
    f->report = (struct report){.last = &nothing, .final_value = NAN};
    struct json_object *object = written(f), *answers = answers_of(f), *member = object;
    struct json_object *verdict = member_of(member_of(answers, "api/state"), "verdict");
    assert_string_equal(json_object_get_string(member_of(verdict, "level")), "bad");
    assert_has(json_object_get_string(member_of(verdict, "text")), "the broker did not start");
    assert_int_equal(json_object_object_length(member_of(answers, "api/history")), 0);
    assert_true(json_object_object_get_ex(object, "plan", &member) && member == NULL);
    assert_true(isnan(number(object, "final_value")));
    json_object_put(object);
    json_object_put(answers);
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
    struct json_object *report = written(f), *events = member_of(report, "events");
    assert_true(number(report, "peak_memory") == 900.0 * 1048576);
    assert_int_equal(json_object_array_length(events), 50);
    assert_true(number(json_object_array_get_idx(events, 49), "elapsed_s") == 4907);
    json_object_put(report);
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
    struct json_object *report = written(f), *answers = answers_of(f);
    struct json_object *learning = member_of(member_of(answers, "api/run"), "learning");
    for (size_t i = 0; i < 100; i++) {
        struct json_object *q = json_object_array_get_idx(member_of(learning, "q"), i);
        assert_int_equal(json_object_get_int(json_object_array_get_idx(member_of(learning, "learner_steps"), i)),
                         10 * (i + 1));
        double loss = json_object_get_double(json_object_array_get_idx(member_of(learning, "loss"), i));
        assert_true(fabs(loss - 1.0 / ((double)i + 1)) < 1e-5 && (q == NULL) == (i == 6));
    }
    assert_int_equal(json_object_array_length(member_of(learning, "loss")), 100);
    assert_null(member_of(learning, "entropy"));
    json_object_put(report);
    json_object_put(answers);
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
    struct json_object *object = written(f), *answers = answers_of(f), *curves = member_of(answers, "api/run");
    assert_true(number(object, "actor_value") == 123.5 && isnan(number(object, "value")));
    assert_has(json_object_get_string(member_of(object, "summary")), "123.5");
    assert_false(json_object_get_boolean(member_of(curves, "evaluated")));
    assert_true(last_of(member_of(curves, "curve"), "return") == 123.5);
    assert_true(last_of(member_of(curves, "curve"), "environment_steps") == 61234);
    json_object_put(object);
    json_object_put(answers);
}

static char *printed_report(const struct report *report)
{
    struct text text = {0};
    report_text(&text, report, "runs/x");
    return text.data;
}

/* Each stretch is compared with what the plan says about its own counts. */
CASE(stretches)
{
    f->home.actor = (struct plan_unit){1200, 0.12, 0.02, 1e6};
    f->input.learner = (struct plan_unit){400000, 0.5, 0.1, 1e6};
    f->home.cores = 16;
    f->report.stretches[1] = (struct report_stretch){8, 1, 20, true, {10, 9100, 290000, 31.9, 0.1, 0.2, not_waited}};
    f->report.stretches[2] = (struct report_stretch){99, 1, 31, false, {1, 50, 60, 1.2, NAN, NAN, not_waited}};
    f->report.n_stretches = 3;
    struct plan_choice expected;
    assert_true(plan_predict(&f->input, 8, 1, &expected));
    struct json_object *object = written(f), *list = NULL;
    assert_true(json_object_object_get_ex(object, "stretches", &list) && json_object_array_length(list) == 3);
    assert_true(number(json_object_array_get_idx(list, 0), "actor_idle_by.credit") == 0.6);
    assert_true(isnan(number(json_object_array_get_idx(list, 2), "learner_idle_by.sample"))); /* not known */
    struct json_object *second = json_object_array_get_idx(list, 1), *third = json_object_array_get_idx(list, 2);
    assert_true(number(json_object_array_get_idx(list, 0), "predicted.inserts") == 5000);
    assert_true(number(second, "actors") == 8 && number(second, "from_s") == 20 && number(second, "seconds") == 10);
    assert_true(fabs(number(second, "predicted.inserts") - expected.inserts) < 1e-6);
    assert_true(number(second, "achieved.inserts") == 9100 && expected.inserts != 5000);
    assert_true(number(third, "predicted.inserts") > 0 && number(third, "achieved.inserts") == 50);
    json_object_put(object);
    char *printed = printed_report(&f->report);
    assert_has(printed, "8 actors, 1 learner, from 20 s on: 10 s");
    assert_has(printed, "4 actors, 1 learner, from 3");
    assert_has(printed, "99 actors, 1 learner, from 31 s on");
    free(printed);
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
    if (n < 3)
        return;
    hosts[1].losses = 2;
    hosts[1].lost_s = 65;
    hosts[2].mean_cpu = NAN; /* it could not be reached */
}

CASE(hosts)
{
    static const uint32_t counts[] = {0, 1, 3, 100};
    static struct status_host hosts[100];
    fill_hosts(hosts, 100);
    f->last.hosts = hosts;
    for (uint32_t i = 0; i < 4; i++) {
        bool some = counts[i] > 1;
        f->last.n_hosts = counts[i];
        struct json_object *object = written(f), *list = NULL;
        char *printed = printed_report(&f->report);
        assert_true(json_object_object_get_ex(object, "hosts", &list));
        assert_int_equal(json_object_array_length(list), counts[i]);
        assert_int_equal(strstr(printed, "cores used") != NULL, some);
        if (some) {
            struct json_object *second = json_object_array_get_idx(list, 1);
            assert_true(number(second, "actors_wanted") == 30 && number(second, "learners_wanted") == 2);
            assert_true(number(second, "mean_cpu") == 29.25 && number(second, "cores") == 32);
            assert_true(number(second, "losses") == 2 && number(second, "lost_s") == 65);
            assert_true(isnan(number(json_object_array_get_idx(list, 2), "mean_cpu")));
            assert_has(printed, "\ncpu<1>      30         2  29.2 of 32  2 times, 1 min 5 s\n"
                                "cpu<2>      30         -           -  never there\n");
            assert_int_equal(strstr(printed, "\nhome         -         -  29.2 of 32  never\n") != NULL,
                             counts[i] == 3);
            assert_int_equal(strstr(printed, "\nand 98 more hosts") != NULL, counts[i] == 100);
        }
        json_object_put(object);
        free(printed);
    }
}

CASE(print)
{
    char *text = printed_report(&f->report);
    assert_string_equal(
        text, "cart<pole> done after 41 s: 61,234 steps, 30,000 updates, 3 restarts\n"
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
    free(text);
    f->report.plan = NULL;
    text = printed_report(&f->report);
    assert_has(text, "  samples per insert        20\n");
    assert_null(strstr(text, "predicted"));
    free(text);
}
