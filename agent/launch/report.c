/* The report of a run: what was predicted and what came, as text, charts, JSON and a page. */
#include "agent/launch/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <json-c/json.h>

#include "agent/launch/process/run_folder.h"
#include "agent/launch/series.h"
#include "agent/run/recording.h"
#include "agent/view/page.h"
#include "proto/base/json.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define PRINT_MOST 16u /* hosts in the terminal */
#define REPORT_EVENTS 200u

/* ---- data ---- */

struct report_data {
    double peak_memory; /* bytes */
    double peak_cpu;    /* cores */
    struct report_event {
        double elapsed_s, unix_s;
        char text[512];
    } events[REPORT_EVENTS];
    uint32_t n_events, lost_events;
};

static void take_line(void *ctx, struct json_object *line, double *values)
{
    struct report_data *self = ctx;
    double unix_s = json_map_number(line, "unix_s"), at_s = json_map_number(line, "event_unix_s"), age = unix_s - at_s;
    self->peak_memory = fmax(self->peak_memory, json_map_number(line, "memory"));
    self->peak_cpu = fmax(self->peak_cpu, json_map_number(line, "cpu"));
    const char *event = json_map_text(line, "event");
    const struct report_event *last = self->n_events ? &self->events[self->n_events - 1] : NULL;
    if (!event[0] || (last && last->unix_s == at_s && strcmp(last->text, event) == 0))
        return;
    if (self->n_events == REPORT_EVENTS) { /* the newest are kept */
        memmove(self->events, self->events + 1, --self->n_events * sizeof *self->events);
        self->lost_events++;
    }
    struct report_event *next = &self->events[self->n_events++];
    next->elapsed_s = values[0] - (age > 0 && age < values[0] ? age : 0);
    next->unix_s = at_s;
    snprintf(next->text, sizeof next->text, "%s", event);
}

static struct report_data *read_data(const char *folder)
{
    static const char *const names[] = {"elapsed_s"};
    struct report_data *self = need_alloc(sizeof *self);
    struct series series;
    char path[FOLDER_SIZE + 32];
    run_folder_path(path, sizeof path, folder, FOLDER_METRICS);
    series_read(&series,
                &(struct series_source){.path = path, .names = names, .width = 1, .line = take_line, .ctx = self});
    series_fini(&series);
    return self;
}

/* ---- predicted against achieved ---- */

#define REPORT_ROWS 5u

struct report_row {
    const char *name;
    double predicted, achieved; /* NAN: not known */
    bool share;                 /* 0 to 1: the difference is in percentage points, not a ratio */
};

/* Finds what the plan predicts for a stretch's counts. False: nothing. */
static bool report_predicted(const struct report *self, const struct report_stretch *stretch, struct plan_choice *out)
{
    if (!self->plan)
        return false;
    *out = self->plan->chosen;
    if (!stretch || (stretch->actors == out->actors && stretch->learners == out->learners))
        return true;
    return self->plan_input && plan_predict(self->plan_input, stretch->actors, stretch->learners, out);
}

static void report_rows(const struct report *self, const struct report_stretch *stretch,
                        struct report_row rows[REPORT_ROWS])
{
    struct plan_choice plan;
    bool planned = report_predicted(self, stretch, &plan), was = stretch && stretch->rates.seconds > 0;
    const struct report_steady *rates = was ? &stretch->rates : NULL;
    double spi = planned && plan.inserts > 0 ? plan.samples / plan.inserts : NAN;
    const struct report_row all[REPORT_ROWS] = {
        {"inserts/s", planned ? plan.inserts : NAN, was ? rates->inserts : NAN, false},
        {"samples/s", planned ? plan.samples : NAN, was ? rates->samples : NAN, false},
        {"samples per insert", spi, was ? rates->spi : NAN, false},
        {"actors idle", planned ? plan_actor_idle(&plan, self->plan_input) : NAN, was ? rates->actor_idle : NAN, true},
        {"learners idle", planned ? plan_learner_idle(&plan, self->plan_input) : NAN, was ? rates->learner_idle : NAN,
         true},
    };
    memcpy(rows, all, sizeof all);
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

/* "61%", "-" */
static const char *percent(double share, char *out)
{
    snprintf(out, FORMAT_SIZE, isfinite(share) ? "%.0f%%" : "-", 100 * share);
    return out;
}

static const char *report_cell(const struct report_row *row, double value, char *out)
{
    return row->share ? percent(value, out) : report_rate(value, out);
}

/* "+4%", "+3 points", "-" */
static const char *report_difference(const struct report_row *row, char *out)
{
    double off = row->share ? row->achieved - row->predicted : row->achieved / row->predicted - 1;
    if (!isfinite(off))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(off) < 0.005)
        snprintf(out, FORMAT_SIZE, row->share ? "0 points" : "0%%");
    else
        snprintf(out, FORMAT_SIZE, row->share ? "%+.0f points" : "%+.0f%%", 100 * off);
    return out;
}

static void put_table(struct text *out, struct grid *grid)
{
    char *printed = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&printed, &size);
    grid_print(grid, file);
    fclose(file);
    text_add(out, "%s", printed);
    free(printed);
}

/* Without a plan, only what was achieved. */
static void put_rows(struct text *out, const struct report *self, const struct report_stretch *stretch)
{
    static const char *const titles[] = {"", ">predicted", ">achieved", ">difference"};
    static const char *const alone[] = {"", ">achieved"};
    struct report_row rows[REPORT_ROWS];
    struct grid grid;
    format_buffer cell;
    report_rows(self, stretch, rows);
    grid_init(&grid, self->plan ? titles : alone, self->plan ? 4 : 2);
    for (uint32_t i = 0; i < REPORT_ROWS; i++) {
        grid_addf(&grid, "  %s", rows[i].name);
        if (self->plan)
            grid_add(&grid, report_cell(&rows[i], rows[i].predicted, cell));
        grid_add(&grid, report_cell(&rows[i], rows[i].achieved, cell));
        if (self->plan)
            grid_add(&grid, report_difference(&rows[i], cell));
    }
    put_table(out, &grid);
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
        if (!(stretch->rates.seconds > 0))
            continue;
        if (self->n_stretches > 1)
            text_add(out, "\n%u actor%s, %u learner%s, from %s on: %s%s", stretch->actors,
                     stretch->actors == 1 ? "" : "s", stretch->learners, stretch->learners == 1 ? "" : "s",
                     format_seconds(from, stretch->from_s), format_seconds(seconds, stretch->rates.seconds),
                     stretch->settled ? "" : ", too short to leave out their beginning");
        text_add(out, "\n");
        put_rows(out, self, stretch);
        put_waits(out, &stretch->rates.idle_by);
    }
}

/* With many hosts, only those that were lost or never there have a row: the page has all. */
static void put_hosts(struct text *out, const struct status *last)
{
    static const char *const titles[] = {"host", ">actors", ">learners", ">cores used", "lost"};
    struct grid grid;
    format_buffer time;
    uint32_t n = last->n_hosts, rows = 0;
    if (!last->hosts || n < 2)
        return;
    grid_init(&grid, titles, sizeof titles / sizeof *titles);
    for (uint32_t i = 0; i < n && rows < PRINT_MOST; i++) {
        const struct status_host *host = &last->hosts[i];
        bool there = isfinite(host->mean_cpu);
        char clean[sizeof host->name];
        if (n > PRINT_MOST && host->losses == 0 && there)
            continue;
        grid_add(&grid, format_clean(clean, sizeof clean, host->name));
        grid_addf(&grid, host->actors_wanted ? "%u" : "-", host->actors_wanted);
        grid_addf(&grid, host->learners_wanted ? "%u" : "-", host->learners_wanted);
        grid_addf(&grid, !there ? "-" : host->cores > 0 ? "%.1f of %.4g" : "%.1f", host->mean_cpu, host->cores);
        if (host->losses)
            grid_addf(&grid, "%u time%s, %s", host->losses, host->losses > 1 ? "s" : "",
                      format_seconds(time, host->lost_s));
        else
            grid_add(&grid, there ? "never" : "never there");
        rows++;
    }
    if (rows)
        put_table(out, &grid);
    else
        grid_fini(&grid);
    if (rows < n)
        text_add(out, "%s%u %shosts: see the report\n", rows ? "and " : "", n - rows, rows ? "more " : "");
    text_add(out, "\n");
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
        text_add(out, "last return of the actors, who explore: %s", format_measured(a, last->actor_value));
    else
        return;
    if (self->best && !(final && self->final_value >= self->best->value))
        text_add(out, ", best evaluation %s (" BEST_WEIGHTS_FILE ", learner step %s)",
                 format_measured(a, self->best->value), format_count(b, self->best->learner_steps));
    else if (!self->best && isfinite(last->best))
        text_add(out, ", best evaluation %s", format_measured(a, last->best));
    text_add(out, "\n");
}

/* "broker: 4 shards: why" */
static void put_shards(struct text *out, const struct status *last)
{
    char clean[sizeof last->shards_reason];
    if (last->shards > 1)
        text_add(out, "broker: %u shards%s%s\n", last->shards, last->shards_reason[0] ? ": " : "",
                 format_clean(clean, sizeof clean, last->shards_reason));
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
    put_head(out, self);
    put_stretches(out, self);
    text_add(out, "\n");
    put_shards(out, self->last);
    put_hosts(out, self->last);
    text_add(out, "report: %s/report.html\n", folder);
}

/* ---- report.json: the last status, and what is known only at the end ---- */

/* Writes a column of the table of predicted against achieved. */
static void json_column(struct json *out, const char *name, const struct report_row rows[REPORT_ROWS], bool achieved)
{
    static const char *const keys[REPORT_ROWS] = {"inserts", "samples", "spi", "actor_idle", "learner_idle"};
    json_begin(out, name, '{');
    for (uint32_t i = 0; i < REPORT_ROWS; i++)
        json_real(out, keys[i], achieved ? rows[i].achieved : rows[i].predicted);
    json_close(out, '}');
}

static void json_causes(struct json *out, const char *name, const double shares[IDLE_CAUSES], bool known,
                        uint32_t causes)
{
    json_begin(out, name, '{');
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (causes >> i & 1)
            json_real(out, idle_names[i], known ? shares[i] : NAN);
    json_close(out, '}');
}

static void json_stretches(struct json *out, const struct report *self)
{
    struct report_row rows[REPORT_ROWS];
    json_begin(out, "stretches", '[');
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        const struct report_steady *rates = &stretch->rates;
        report_rows(self, stretch, rows);
        json_open(out, '{');
        json_count(out, "actors", stretch->actors);
        json_count(out, "learners", stretch->learners);
        json_real(out, "from_s", stretch->from_s);
        json_real(out, "seconds", rates->seconds);
        json_flag(out, "settled", stretch->settled);
        json_column(out, "predicted", rows, false);
        json_column(out, "achieved", rows, true);
        json_causes(out, "actor_idle_by", rates->idle_by.actor, isfinite(rates->actor_idle), IDLE_OF_ACTOR);
        json_causes(out, "learner_idle_by", rates->idle_by.learner, isfinite(rates->learner_idle), IDLE_OF_LEARNER);
        json_close(out, '}');
    }
    json_close(out, ']');
}

/* null: there is no best.weights. */
static void json_best(struct json *out, const struct best *best)
{
    json_key(out, "best_weights");
    if (!best) {
        json_null(out);
        return;
    }
    json_open(out, '{');
    json_real(out, "return", best->value);
    json_count(out, "episodes", best->episodes);
    json_count(out, "environment_steps", best->environment_steps);
    json_count(out, "learner_steps", best->learner_steps);
    json_close(out, '}');
}

static void json_events(struct json *out, const struct report_data *data)
{
    json_count(out, "lost_events", data->lost_events);
    json_begin(out, "events", '[');
    for (uint32_t i = 0; i < data->n_events; i++) {
        json_open(out, '{');
        json_real(out, "elapsed_s", data->events[i].elapsed_s);
        json_text(out, "event", data->events[i].text);
        json_close(out, '}');
    }
    json_close(out, ']');
}

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
    struct report_data *data = read_data(folder);
    struct json json = {0};
    struct text summary = {0};
    put_head(&summary, self);
    json_open(&json, '{');
    json_text(&json, "summary", text_get(&summary));
    json_text(&json, "command", self->command);
    json_count(&json, "legs", self->legs);
    json_real(&json, "final_value", self->final_value);
    json_count(&json, "final_episodes", self->final_episodes);
    json_text(&json, "final_weights", self->final_weights);
    json_best(&json, self->best);
    json_real(&json, "peak_memory", data->peak_memory);
    json_real(&json, "peak_cpu", data->peak_cpu);
    json_stretches(&json, self);
    json_events(&json, data);
    json_files(&json, folder);
    char *plan = self->plan && self->plan_input ? plan_to_json(self->plan, self->plan_input) : NULL;
    json_key(&json, "plan");
    json_raw(&json, plan ? plan : "null");
    json_close(&json, '}');
    free(plan);
    free(data);
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
    char name[64], *episode = recording_read_last(folder, &at);
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
