/* The report of a run: what was predicted and what came, as text, charts, JSON and a page. */
#include "agent/launch/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/process/run_folder.h"
#include "agent/launch/series.h"
#include "agent/run/recording.h"
#include "agent/view/page.h"
#include "proto/base/json.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define PRINT_MOST 8u /* hosts in the terminal */

/* ---- data ---- */

/* What the lines of metrics.jsonl say. */
struct report_data {
    double peak_memory, peak_cpu; /* bytes, cores */
    struct json events;           /* a list of all, which metrics.jsonl bounds */
    double event_s;               /* the last one: seconds since 1970, */
    char event[512];              /* and its text */
};

static void take_line(void *ctx, struct json_object *line, double *values)
{
    struct report_data *self = ctx;
    double unix_s = json_map_number(line, "unix_s"), at_s = json_map_number(line, "event_unix_s"), age = unix_s - at_s;
    self->peak_memory = fmax(self->peak_memory, json_map_number(line, "memory"));
    self->peak_cpu = fmax(self->peak_cpu, json_map_number(line, "cpu"));
    const char *event = json_map_text(line, "event");
    if (!event[0] || (self->event_s == at_s && strcmp(self->event, event) == 0))
        return;
    self->event_s = at_s;
    snprintf(self->event, sizeof self->event, "%s", event);
    json_open(&self->events, '{');
    json_real(&self->events, "elapsed_s", values[0] - (age > 0 && age < values[0] ? age : 0));
    json_text(&self->events, "event", self->event);
    json_close(&self->events, '}');
}

static void read_data(const char *folder, struct report_data *out)
{
    static const char *const names[] = {"elapsed_s"};
    struct series series;
    char path[FOLDER_SIZE + 32];
    *out = (struct report_data){0};
    json_open(&out->events, '[');
    run_folder_path(path, sizeof path, folder, FOLDER_METRICS);
    series_read(&series,
                &(struct series_source){.path = path, .names = names, .width = 1, .line = take_line, .ctx = out});
    series_fini(&series);
    json_close(&out->events, ']');
}

/* ---- predicted against achieved ---- */

static const struct json_row rates_rows[] = {
    JSON_ROW(struct report_rates, inserts),      JSON_ROW(struct report_rates, samples),
    JSON_ROW(struct report_rates, spi),          JSON_ROW(struct report_rates, actor_idle),
    JSON_ROW(struct report_rates, learner_idle), {0},
};

/* In the order of these rows. */
static const struct report_line {
    const char *name;
    bool share; /* the difference is in percentage points, not a ratio */
} lines[] = {{"inserts/s", false},
             {"samples/s", false},
             {"samples per insert", false},
             {"actors idle", true},
             {"learners idle", true}};
#define LINES (sizeof lines / sizeof *lines)

void report_predict(struct report *self)
{
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        struct report_stretch *stretch = &self->stretches[i];
        struct plan_pair plan = self->plan ? self->plan->chosen : (struct plan_pair){0};
        bool same = stretch->actors == plan.actors && stretch->learners == plan.learners;
        stretch->predicted = (struct report_rates){NAN, NAN, NAN, NAN, NAN};
        if (self->plan &&
            (same || (self->plan_input && plan_predict(self->plan_input, stretch->actors, stretch->learners, &plan))))
            stretch->predicted = (struct report_rates){.inserts = plan.inserts,
                                                       .samples = plan.samples,
                                                       .spi = plan.inserts > 0 ? plan.samples / plan.inserts : NAN,
                                                       .actor_idle = plan_actor_idle(&plan),
                                                       .learner_idle = plan_learner_idle(&plan)};
    }
}

const char *report_rate(double value, char *out)
{
    if (!isfinite(value))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(value) < 1000)
        snprintf(out, FORMAT_SIZE, "%.3g", value);
    else
        format_short(out, value);
    return out;
}

void report_ended(const struct status *last, double value, char *out, size_t size)
{
    format_buffer number;
    const char *how =
        last->phase < PHASE_DONE ? "ended without a report: its launcher was killed" : phase_name(last->phase);
    bool known = isfinite(value) && last->phase != PHASE_FAILED;
    snprintf(out, size, "%s%s%s%s%s.", how, known ? ", return " : "", known ? format_measured(number, value) : "",
             last->reason[0] ? ": " : "", last->reason);
}

/* "61%", "5.2 k", "-" */
static const char *cell_of(const struct report_line *line, double value, char *out)
{
    if (!line->share)
        return report_rate(value, out);
    snprintf(out, FORMAT_SIZE, isfinite(value) ? "%.0f%%" : "-", 100 * value);
    return out;
}

/* "+4%", "+3 points", "-" */
static const char *difference_of(const struct report_line *line, double predicted, double achieved, char *out)
{
    double off = line->share ? achieved - predicted : achieved / predicted - 1;
    if (!isfinite(off))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(off) < 0.005)
        snprintf(out, FORMAT_SIZE, line->share ? "0 points" : "0%%");
    else
        snprintf(out, FORMAT_SIZE, line->share ? "%+.0f points" : "%+.0f%%", 100 * off);
    return out;
}

static double rate_of(const struct report_rates *rates, size_t line)
{
    return *(const double *)(const void *)((const char *)rates + rates_rows[line].offset);
}

/* Without a plan, only what was achieved. */
static void put_rows(struct text *out, const struct report *self, const struct report_stretch *stretch)
{
    static const char *const titles[] = {"", ">predicted", ">achieved", ">difference"};
    static const char *const alone[] = {"", ">achieved"};
    char *printed = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&printed, &size);
    struct grid grid;
    format_buffer cell;
    grid_init(&grid, self->plan ? titles : alone, self->plan ? 4 : 2);
    for (size_t i = 0; i < LINES; i++) {
        double predicted = rate_of(&stretch->predicted, i), achieved = rate_of(&stretch->achieved, i);
        grid_addf(&grid, "  %s", lines[i].name);
        if (self->plan)
            grid_add(&grid, cell_of(&lines[i], predicted, cell));
        grid_add(&grid, cell_of(&lines[i], achieved, cell));
        if (self->plan)
            grid_add(&grid, difference_of(&lines[i], predicted, achieved, cell));
    }
    grid_print(&grid, file);
    fclose(file);
    text_add(out, "%s", printed);
    free(printed);
}

/* "waited: actors for credit 12%; learners for sample 3%, reduce 2%" */
static void put_waits(struct text *out, const struct idle_shares *by)
{
    char actors[128], learners[128];
    idle_words(by->actor, actors, sizeof actors);
    idle_words(by->learner, learners, sizeof learners);
    if (actors[0] || learners[0])
        text_add(out, "  waited: %s%s%s%s%s\n", actors[0] ? "actors for " : "", actors,
                 actors[0] && learners[0] ? "; " : "", learners[0] ? "learners for " : "", learners);
}

/* Stretch by stretch: a plan for four actors says nothing about eight. */
static void put_stretches(struct text *out, const struct report *self)
{
    format_buffer from, seconds;
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        if (self->n_stretches > 1)
            text_add(out, "\n%u actor%s, %u learner%s, from %s on: %s%s", stretch->actors,
                     stretch->actors == 1 ? "" : "s", stretch->learners, stretch->learners == 1 ? "" : "s",
                     format_seconds(from, stretch->from_s), format_seconds(seconds, stretch->seconds),
                     stretch->settled ? "" : ", too short to leave out their beginning");
        text_add(out, "\n");
        put_rows(out, self, stretch);
        put_waits(out, &stretch->idle_by);
    }
}

/* Names the hosts that were lost or never there: report.html has a table of all. */
static void put_hosts(struct text *out, const struct status *last)
{
    uint32_t told = 0;
    format_buffer time;
    for (uint32_t i = 0; last->hosts && i < last->n_hosts && told < PRINT_MOST; i++) {
        const struct status_host *host = &last->hosts[i];
        char clean[sizeof host->name];
        bool never = isnan(host->mean_cpu);
        if (!never && !host->losses)
            continue;
        told++;
        format_clean(clean, sizeof clean, host->name);
        if (never)
            text_add(out, "%s was never there\n", clean);
        else
            text_add(out, "%s was lost %u time%s, for %s\n", clean, host->losses, host->losses > 1 ? "s" : "",
                     format_seconds(time, host->lost_s));
    }
    if (told == PRINT_MOST)
        text_add(out, "... see the report for all %u hosts\n", last->n_hosts);
}

/* ---- the last lines in the terminal ---- */

/* The return of the parameters that the run leaves, and which file has better ones; "" without any return. */
static void put_return(struct text *out, const struct report *self)
{
    format_buffer a, b;
    const struct status *last = self->last;
    bool final = isfinite(self->final_value);
    if (final)
        text_add(out, "final return %s (%s, mean of %u episode%s)", format_measured(a, self->final_value),
                 self->final_weights ? self->final_weights : "last parameters", self->final_episodes,
                 self->final_episodes == 1 ? "" : "s");
    else if (isfinite(last->value))
        text_add(out, "last evaluation %s", format_measured(a, last->value));
    else if (isfinite(last->actor_value))
        text_add(out, "last return of the actors: %s", format_measured(a, last->actor_value));
    else
        return;
    if (self->best && !(final && self->final_value >= self->best->value))
        text_add(out, ", best evaluation %s (" BEST_WEIGHTS_FILE ", learner step %s)",
                 format_measured(a, self->best->value), format_count(b, self->best->learner_steps));
    else if (!self->best && isfinite(last->best))
        text_add(out, ", best evaluation %s", format_measured(a, last->best));
    text_add(out, "\n");
}

/* "NAME done after 41 s: 61,234 steps, 30,000 updates, 3 restarts", the reason, and the return */
static void put_head(struct text *out, const struct report *self)
{
    const struct status *last = self->last;
    format_buffer a, b, c;
    char clean[sizeof last->reason];
    text_add(out, "%s %s after %s: %s steps, %s updates", format_clean(clean, sizeof clean, last->name),
             phase_name(last->phase), format_seconds(a, last->elapsed_s), format_count(b, last->steps),
             format_count(c, last->learner_steps));
    if (last->restarts)
        text_add(out, ", %u restart%s", last->restarts, last->restarts > 1 ? "s" : "");
    text_add(out, "\n");
    if (last->reason[0] && last->phase != PHASE_FAILED) /* the cause of a failure is printed last */
        text_add(out, "%s\n", format_clean(clean, sizeof clean, last->reason));
    put_return(out, self);
}

void report_text(struct text *out, const struct report *self, const char *folder)
{
    const struct status *last = self->last;
    char clean[sizeof last->shards_reason];
    put_head(out, self);
    put_stretches(out, self);
    text_add(out, "\n");
    if (last->shards > 1)
        text_add(out, "broker: %u shards%s%s\n", last->shards, last->shards_reason[0] ? ": " : "",
                 format_clean(clean, sizeof clean, last->shards_reason));
    put_hosts(out, self->last);
    if (folder)
        text_add(out, "report: %s/report.html\n", folder);
}

/* ---- report.json: the last status, and what is known only at the end ---- */

static const struct json_row stretch_rows[] = {
    JSON_ROW(struct report_stretch, actors),
    JSON_ROW(struct report_stretch, learners),
    JSON_ROW(struct report_stretch, from_s),
    JSON_ROW(struct report_stretch, seconds),
    JSON_ROW(struct report_stretch, settled),
    JSON_OBJECT(struct report_stretch, predicted, rates_rows),
    JSON_OBJECT(struct report_stretch, achieved, rates_rows),
    {0},
};

static void json_causes(struct json *out, const char *name, const double shares[IDLE_CAUSES], bool known,
                        uint32_t causes)
{
    json_begin(out, name, '{');
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (causes >> i & 1)
            json_real(out, idle_name(i), known ? shares[i] : NAN);
    json_close(out, '}');
}

static void json_stretches(struct json *out, const struct report *self)
{
    json_begin(out, "stretches", '[');
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        json_open(out, '{');
        json_map_write(out, stretch_rows, stretch);
        json_causes(out, "actor_idle_by", stretch->idle_by.actor, isfinite(stretch->achieved.actor_idle),
                    IDLE_OF_ACTOR | 1u << IDLE_SAMPLE); /* of a queue: a user's own actor */
        json_causes(out, "learner_idle_by", stretch->idle_by.learner, isfinite(stretch->achieved.learner_idle),
                    IDLE_OF_LEARNER);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static const struct json_row best_rows[] = {
    JSON_ROW_AS("return", struct best, value, NAN),
    JSON_ROW(struct best, episodes),
    JSON_ROW(struct best, environment_steps),
    JSON_ROW(struct best, learner_steps),
    {0},
};

/* Names the files that exist, for links. */
static void json_files(struct json *out, const char *folder)
{
    static const char *const files[] = {"config.yaml",     "plan.json",       "metrics.jsonl", "best.weights",
                                        "learner.weights", "logs/launch.log", "logs"};
    json_begin(out, "files", '[');
    for (uint32_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[FOLDER_SIZE + 32];
        if (access(run_folder_path(path, sizeof path, folder, files[i]), R_OK) == 0)
            json_string(out, files[i]);
    }
    json_close(out, ']');
}

static char *report_json(const struct report *self, const char *status, const char *folder)
{
    struct report_data data;
    struct json json = {0};
    struct text summary = {0};
    read_data(folder, &data);
    put_head(&summary, self);
    json_open(&json, '{');
    json_text(&json, "summary", text_get(&summary));
    json_text(&json, "command", self->command);
    json_count(&json, "legs", self->legs);
    json_real(&json, "final_value", self->final_value);
    json_count(&json, "final_episodes", self->final_episodes);
    json_text(&json, "final_weights", self->final_weights);
    json_key(&json, "best_weights");
    if (self->best) {
        json_open(&json, '{');
        json_map_write(&json, best_rows, self->best);
        json_close(&json, '}');
    } else {
        json_null(&json);
    }
    json_real(&json, "peak_memory", data.peak_memory);
    json_real(&json, "peak_cpu", data.peak_cpu);
    json_stretches(&json, self);
    json_key(&json, "events");
    char *events = json_need(&data.events);
    json_raw(&json, events);
    free(events);
    json_files(&json, folder);
    char *plan = self->plan && self->plan_input ? plan_to_json(self->plan, self->plan_input) : NULL;
    json_key(&json, "plan");
    json_raw(&json, plan ? plan : "null");
    json_close(&json, '}');
    free(plan);
    text_fini(&summary);
    char *own = json_need(&json), *whole = need_print("%.*s, %s", (int)strlen(status) - 1, status, own + 1);
    free(own);
    return whole;
}

/* ---- report.html: the page of a run, with what its server would answer ---- */

/* The newest recorded episode, which is the only one in the file. */
static void put_episode(struct json *json, const char *folder)
{
    uint64_t at = 0;
    char name[64], *episode = recording_read(folder, true, &at);
    if (episode) {
        json_key(json, "api/play");
        recording_put_list(json, folder, 1);
        snprintf(name, sizeof name, "api/play?at=%llu", (unsigned long long)at);
        json_key(json, name);
        json_raw(json, episode);
    }
    free(episode);
}

static char *make_answers(const struct report *self, const char *status, const char *report, const char *folder)
{
    const struct status *last = self->last;
    struct json json = {0};
    char ended[sizeof last->reason + 128];
    report_ended(last, isfinite(self->final_value) ? self->final_value : last->value, ended, sizeof ended);
    json_open(&json, '{');
    json_begin(&json, "api/state", '{');
    json_real(&json, "unix_s", last->unix_s);
    json_flag(&json, "run_alive", false);
    json_begin(&json, "verdict", '{');
    json_text(&json, "text", ended);
    json_text(&json, "level", last->phase == PHASE_FAILED ? "bad" : "good");
    json_close(&json, '}');
    json_key(&json, "run");
    json_raw(&json, status);
    json_close(&json, '}');
    json_key(&json, "api/history");
    series_put_history(&json, folder);
    json_begin(&json, "api/run", '{');
    series_put_curves(&json, folder);
    json_close(&json, '}');
    put_episode(&json, folder);
    json_key(&json, "api/report");
    json_raw(&json, report);
    json_close(&json, '}');
    return json_need(&json);
}

/* ---- files ---- */

static rp_status write_text(const char *folder, const char *file, struct text *text, rp_error *err)
{
    rp_status status = run_folder_write(folder, file, text_get(text), err);
    text_fini(text);
    return status;
}

rp_status report_write(const struct report *self, const char *folder, rp_error *err)
{
    struct text text = {0};
    char *last = status_to_json(self->last, true), *report = report_json(self, last, folder);
    char *answers = make_answers(self, last, report, folder);
    page_put_alone(&text, answers);
    rp_status status = write_text(folder, "report.html", &text, err);
    if (status == RP_OK)
        status = run_folder_write(folder, "report.json", report, err);
    if (status == RP_OK) {
        report_text(&text, self, folder);
        status = write_text(folder, REPORT_TEXT, &text, err);
    }
    free(last);
    free(report);
    free(answers);
    return status;
}
