/* The report of a run: what was predicted and what came, as text, charts, JSON and a page. */
#include "agent/launch/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <json-c/json.h>

#include "agent/launch/plot.h"
#include "agent/launch/process/run_folder.h"
#include "agent/view/page.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/need.h"

#define FAR_OFF 0.2    /* of the prediction */
#define PRINT_MOST 16u /* hosts in the terminal */
#define MOST_LEARNERS 64

enum report_plot {
    PLOT_RETURN,
    PLOT_LOSS,
    PLOT_VALUE,
    PLOT_INSERTS,
    PLOT_SAMPLES,
    PLOT_SPI,
    PLOT_IDLE,
    PLOT_MEMORY,
    REPORT_PLOTS
};

/* ---- data ---- */

/* While processes end one after the other, rates and memory fall; that says nothing about the run. Actors report a last time when they
 * end. */
static void take_line(void *ctx, struct json_object *line, double *values)
{
    struct report_data *self = ctx;
    struct json_object *phase = NULL, *text = NULL;
    double unix_s = series_number(line, "unix_s"), at_s = series_number(line, "event_unix_s"), age = unix_s - at_s;
    self->peak_memory = fmax(self->peak_memory, values[COLUMN_MEMORY]);
    self->peak_cpu = fmax(self->peak_cpu, series_number(line, "cpu"));
    values[COLUMN_ACTOR_IDLE] *= 100;
    values[COLUMN_LEARNER_IDLE] *= 100;
    values[COLUMN_MEMORY] /= 1048576;
    json_object_object_get_ex(line, "phase", &phase);
    if (phase_find(json_object_get_string(phase)) >= PHASE_STOPPING)
        for (uint32_t c = COLUMN_INSERTS; c <= COLUMN_MEMORY; c++)
            values[c] = NAN;
    json_object_object_get_ex(line, "event", &text);
    const char *event = json_object_get_string(text);
    const struct report_event *last = self->n_events ? &self->events[self->n_events - 1] : NULL;
    if (!event || !event[0] || (last && last->unix_s == at_s && strcmp(last->text, event) == 0))
        return;
    if (self->n_events == REPORT_EVENTS) { /* the newest are kept */
        memmove(self->events, self->events + 1, --self->n_events * sizeof *self->events);
        self->lost_events++;
    }
    struct report_event *next = &self->events[self->n_events++];
    next->elapsed_s = values[COLUMN_TIME] - (age > 0 && age < values[COLUMN_TIME] ? age : 0);
    next->unix_s = at_s;
    snprintf(next->text, sizeof next->text, "%s", event);
}

struct report_data *report_data_read(const char *metrics, const char *folder)
{
    static const char *const run[REPORT_COLUMNS] = {"elapsed_s",  "steps",        "inserts_rate", "samples_rate", "spi",
                                                    "actor_idle", "learner_idle", "memory",       "actor_value"};
    static const char *const learning[LEARNING_COLUMNS] = {"learner_steps", "loss",    "policy_loss", "value_loss", "q",
                                                           "entropy",       "accuracy"};
    struct report_data *self = need_alloc(sizeof *self);
    char path[FOLDER_SIZE + 64];
    for (int i = 0; i == 0 || (i < MOST_LEARNERS && access(path, R_OK) != 0);
         i++) /* they stay identical: one is enough */
        snprintf(path, sizeof path, "%s/learner-%d.jsonl", folder, i);
    series_read(&self->learning, &(struct series_source){.path = path, .names = learning, .width = LEARNING_COLUMNS});
    series_read(
        &self->run,
        &(struct series_source){
            .path = metrics, .names = run, .width = REPORT_COLUMNS, .by_time = true, .line = take_line, .ctx = self});
    return self;
}

void report_data_free(struct report_data *self)
{
    series_fini(&self->run);
    series_fini(&self->learning);
    free(self);
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

/* "4 actors, 1 learner, from 20 s on, for 31 s": the time that a stretch covers. Gives out. */
static const char *report_stretch_text(const struct report_stretch *stretch, char *out, size_t size)
{
    format_buffer from, seconds;
    snprintf(out, size, "%u actor%s, %u learner%s, from %s on: %s%s", stretch->actors, stretch->actors == 1 ? "" : "s",
             stretch->learners, stretch->learners == 1 ? "" : "s", format_seconds(from, stretch->from_s),
             format_seconds(seconds, stretch->rates.seconds),
             stretch->settled ? "" : ", too short to leave out their beginning");
    return out;
}

const char *report_value(double value, char *out)
{
    if (!isfinite(value))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(value) >= 1e7)
        format_short(out, value);
    else
        snprintf(out, FORMAT_SIZE, fabs(value) >= 1000 || value == round(value) ? "%.0f" : "%.4g", value);
    return out;
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

/* "+4%", "+3 points", "-". *far_off: by more than 20%. */
static const char *report_difference(const struct report_row *row, char *out, bool *far_off)
{
    double off = row->share ? row->achieved - row->predicted : row->achieved / row->predicted - 1;
    *far_off = isfinite(off) && fabs(off) > FAR_OFF;
    if (!isfinite(off))
        snprintf(out, FORMAT_SIZE, "-");
    else if (fabs(off) < 0.005)
        snprintf(out, FORMAT_SIZE, row->share ? "0 points" : "0%%");
    else
        snprintf(out, FORMAT_SIZE, row->share ? "%+.0f points" : "%+.0f%%", 100 * off);
    return out;
}

/* The charts of a report. */

/* The prediction as a dashed line: a level for each stretch, with a gap between two. */
struct level {
    double x[3 * REPORT_STRETCHES], y[3 * REPORT_STRETCHES];
};

static void add_series(struct plot *plot, const char *name, const struct series *data, uint32_t x, uint32_t y)
{
    bool some = data->width > 0;
    plot->lines[plot->n_lines++] = (struct plot_line){.name = name,
                                                      .x = some ? data->columns[x] : NULL,
                                                      .y = some ? data->columns[y] : NULL,
                                                      .n = some ? data->n : 0,
                                                      .points = data->n <= 30};
}

/* The range in which the first line of the plot has points. False: it has none. */
static bool bounds_of(const struct plot *plot, double *left, double *right)
{
    const struct plot_line *line = &plot->lines[0];
    *left = INFINITY;
    *right = -INFINITY;
    for (uint32_t i = 0; line->x && line->y && i < line->n; i++) {
        if (!isfinite(line->x[i]) || !isfinite(line->y[i]))
            continue;
        *left = fmin(*left, line->x[i]);
        *right = fmax(*right, line->x[i]);
    }
    return *left < *right;
}

static void add_dashed(struct plot *plot, const struct level *level, const char *name, uint32_t n)
{
    if (n > 0)
        plot->lines[plot->n_lines++] =
            (struct plot_line){.name = name, .x = level->x, .y = level->y, .n = n, .dashed = true};
}

static void add_level(struct plot *plot, struct level *level, const char *name, double value)
{
    double left, right;
    if (!isfinite(value) || !bounds_of(plot, &left, &right))
        return;
    *level = (struct level){{left, right}, {value, value}};
    add_dashed(plot, level, name, 2);
}

/* row: of the table of predicted against achieved. */
static void add_predicted(struct plot *plot, struct level *level, const struct report *self, uint32_t row, double scale)
{
    double left, right;
    uint32_t n = 0;
    if (!bounds_of(plot, &left, &right))
        return;
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        struct report_row rows[REPORT_ROWS];
        double from = i == 0 ? left : self->stretches[i].from_s;
        double to = i + 1 < self->n_stretches ? self->stretches[i + 1].from_s : right;
        report_rows(self, &self->stretches[i], rows);
        if (!isfinite(rows[row].predicted) || !(from < to))
            continue;
        for (uint32_t k = 0; k < 3; k++, n++) {
            level->x[n] = k == 0 ? from : to;
            level->y[n] = k < 2 ? scale * rows[row].predicted : NAN;
        }
    }
    add_dashed(plot, level, "predicted", n);
}

static void plot_return(struct plot *plot, const struct status *last, const struct report_data *data,
                        struct level *level)
{
    bool some = last->values && last->value_steps && last->n_values > 0;
    plot->title = "Return";
    plot->x_label = "environment steps";
    plot->y_label = some ? "mean return of an evaluation" : "mean return of the actors";
    if (some)
        plot->lines[plot->n_lines++] = (struct plot_line){.name = "evaluations",
                                                          .x = last->value_steps,
                                                          .y = last->values,
                                                          .n = last->n_values,
                                                          .points = last->n_values <= 60};
    else
        add_series(plot, "actors, who explore", &data->run, COLUMN_STEPS, COLUMN_ACTOR_VALUE);
    add_level(plot, level, "target", last->stop_value);
}

static bool has(const struct report_data *data, enum learning_column column)
{
    return isfinite(series_last(&data->learning, column));
}

static void add_learning(struct plot *plot, const char *name, const struct report_data *data,
                         enum learning_column column)
{
    if (has(data, column))
        add_series(plot, name, &data->learning, LEARNING_STEPS, column);
}

/* What an algorithm reports about its own expectations: values, or else the entropy or the accuracy of its policy. */
static void plot_value(struct plot *plot, const struct report_data *data)
{
    bool q = has(data, LEARNING_Q), entropy = has(data, LEARNING_ENTROPY);
    plot->title = q ? "Value: mean Q of the batches" : entropy ? "Entropy of the policy" : "Accuracy of the policy";
    add_learning(plot, plot->title, data, q ? LEARNING_Q : entropy ? LEARNING_ENTROPY : LEARNING_ACCURACY);
}

/* The first two lines of the charts over the time of the run. row: of predicted against achieved, -1: none. */
static const struct {
    const char *title, *y_label;
    struct {
        const char *name;
        uint32_t column;
        int row;
        double scale;
    } lines[2];
} charts[REPORT_PLOTS] = {
    [PLOT_INSERTS] = {"Inserts per second", NULL, {{"achieved", COLUMN_INSERTS, 0, 1}}},
    [PLOT_SAMPLES] = {"Samples per second", NULL, {{"achieved", COLUMN_SAMPLES, 1, 1}}},
    [PLOT_SPI] = {"Samples per insert", NULL, {{"achieved", COLUMN_SPI, -1, 1}}},
    [PLOT_IDLE] = {"Idle share",
                   "percent of the time",
                   {{"actors", COLUMN_ACTOR_IDLE, 3, 100}, {"learners", COLUMN_LEARNER_IDLE, 4, 100}}},
    [PLOT_MEMORY] = {"Memory of all processes", "MiB", {{"memory", COLUMN_MEMORY, -1, 1}}},
};

static void report_plot(struct text *out, const struct report *self, const struct report_data *data,
                        enum report_plot which, uint32_t width, uint32_t height)
{
    const struct status *last = self->last;
    bool learning = which == PLOT_LOSS || which == PLOT_VALUE;
    struct plot plot = {.title = charts[which].title,
                        .x_label = learning ? "learner steps" : "seconds",
                        .y_label = charts[which].y_label,
                        .from_zero = charts[which].title != NULL};
    struct level levels[2];
    if (which == PLOT_RETURN)
        plot_return(&plot, last, data, levels);
    if (which == PLOT_VALUE)
        plot_value(&plot, data);
    if (which == PLOT_LOSS) {
        plot.title = "Loss";
        add_learning(&plot, "loss", data, LEARNING_LOSS);
        add_learning(&plot, "of the policy", data, LEARNING_POLICY_LOSS);
        add_learning(&plot, "of the values", data, LEARNING_VALUE_LOSS);
    }
    for (uint32_t i = 0; i < 2 && charts[which].lines[i].name; i++) {
        add_series(&plot, charts[which].lines[i].name, &data->run, COLUMN_TIME, charts[which].lines[i].column);
        if (charts[which].lines[i].row >= 0)
            add_predicted(&plot, &levels[i], self, (uint32_t)charts[which].lines[i].row, charts[which].lines[i].scale);
    }
    if (which == PLOT_SPI)
        add_level(&plot, levels, "target", last->spi_target > 0 ? last->spi_target : NAN);
    plot_svg(out, &plot, width, height);
}

/* Two charts, one above the other, as a file: rates.svg, learning.svg. */
static void report_plot_pair(struct text *out, const struct report *self, const struct report_data *data,
                             enum report_plot upper, enum report_plot lower)
{
    text_add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"600\" viewBox=\"0 0 900 600\">\n");
    report_plot(out, self, data, upper, 900, 295);
    text_add(out, "<g transform=\"translate(0 305)\">\n");
    report_plot(out, self, data, lower, 900, 295);
    text_add(out, "</g></svg>\n");
}

/* ---- tables, as text or as HTML: a cell that begins with '!' is far from what was wanted ---- */

static void put_table(struct text *out, struct grid *grid, bool html)
{
    char *printed = NULL;
    uint32_t columns = grid->columns ? grid->columns : 1;
    size_t size = 0;
    if (!html) {
        FILE *file = open_memstream(&printed, &size);
        grid_print(grid, file);
        fclose(file);
        text_add(out, "%s", printed);
    }
    for (uint32_t i = 0; html && i < columns + grid->n_cells; i++) {
        bool title = i < columns, right = grid->titles[i % columns][0] == '>';
        const char *cell = title ? grid->titles[i] + right : grid->cells[i - columns];
        bool off = cell[0] == '!';
        text_add(out, "%s<t%c%s%s%s>",
                 i == 0        ? "<section class=\"card scroll\"><table><tr>"
                 : i % columns ? ""
                               : "<tr>",
                 title ? 'h' : 'd', right || off ? " class=\"" : "",
                 right ? off ? "n bad" : "n"
                 : off ? "bad"
                       : "",
                 right || off ? "\"" : "");
        plot_escape(out, cell + off + strspn(cell + off, " "));
        text_add(out, "</t%c>%s", title ? 'h' : 'd', (i + 1) % columns ? "" : "</tr>\n");
    }
    if (html)
        text_add(out, "</table></section>\n");
    free(printed);
    grid_fini(grid);
}

/* Without a plan, only what was achieved. */
static void put_rows(struct text *out, const struct report *self, const struct report_stretch *stretch, bool html)
{
    static const char *const titles[] = {"", ">predicted", ">achieved", ">difference"};
    static const char *const alone[] = {"", ">achieved"};
    struct report_row rows[REPORT_ROWS];
    struct grid grid;
    format_buffer cell;
    report_rows(self, stretch, rows);
    grid_init(&grid, self->plan ? titles : alone, self->plan ? 4 : 2);
    for (uint32_t i = 0; i < REPORT_ROWS; i++) {
        bool far_off;
        grid_addf(&grid, "  %s", rows[i].name);
        if (self->plan)
            grid_add(&grid, report_cell(&rows[i], rows[i].predicted, cell));
        grid_add(&grid, report_cell(&rows[i], rows[i].achieved, cell));
        report_difference(&rows[i], cell, &far_off);
        if (self->plan)
            grid_addf(&grid, "%s%s", html && far_off ? "!" : "", cell);
    }
    put_table(out, &grid, html);
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
static void put_stretches(struct text *out, const struct report *self, bool html)
{
    char text[160];
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        if (!(stretch->rates.seconds > 0))
            continue;
        if (html || self->n_stretches > 1)
            text_add(out, "%s%s%s", html ? "<p>" : "\n", report_stretch_text(stretch, text, sizeof text),
                     html ? "</p>\n" : "");
        text_add(out, html ? "" : "\n");
        put_rows(out, self, stretch, html);
        text_add(out, html ? "<p>" : "");
        put_waits(out, &stretch->rates.idle_by);
        text_add(out, html ? "</p>\n" : "");
    }
}

/* Number of rows; 0: only this machine. */
static uint32_t report_hosts(const struct status *last)
{
    return last->hosts && last->n_hosts > 1 ? last->n_hosts : 0;
}

static void add_host(struct grid *grid, const struct status_host *host, bool html)
{
    char clean[sizeof host->name], model[sizeof host->model];
    format_buffer time;
    bool there = isfinite(host->mean_cpu);
    grid_add(grid, format_clean(clean, sizeof clean, host->name));
    grid_addf(grid, host->actors_wanted ? "%u" : "-", host->actors_wanted);
    grid_addf(grid, host->learners_wanted ? "%u" : "-", host->learners_wanted);
    grid_addf(grid, !there ? "-" : host->cores > 0 ? "%.1f of %.4g" : "%.1f", host->mean_cpu, host->cores);
    if (host->losses)
        grid_addf(grid, "%s%u time%s, %s", html ? "!" : "", host->losses, host->losses > 1 ? "s" : "",
                  format_seconds(time, host->lost_s));
    else
        grid_add(grid, there ? "never" : html ? "!never there" : "never there");
    if (html)
        grid_add(grid, format_clean(model, sizeof model, host->model));
}

/* With many hosts, only those that were lost or never there have a row in the terminal: the page has all. */
static void put_hosts(struct text *out, const struct status *last, bool html)
{
    static const char *const titles[] = {"host", ">actors", ">learners", ">cores used", "lost", "processor"};
    struct grid grid;
    uint32_t n = report_hosts(last), rows = 0;
    if (n == 0)
        return;
    grid_init(&grid, titles, html ? 6 : 5);
    for (uint32_t i = 0; i < n && (html || rows < PRINT_MOST); i++) {
        const struct status_host *host = &last->hosts[i];
        if (!html && n > PRINT_MOST && host->losses == 0 && isfinite(host->mean_cpu))
            continue;
        add_host(&grid, host, html);
        rows++;
    }
    text_add(out, html ? "<h2>Hosts</h2>\n" : "");
    if (rows)
        put_table(out, &grid, html);
    else
        grid_fini(&grid);
    if (rows < n)
        text_add(out, "%s%u %shosts: see the report\n", rows ? "and " : "", n - rows, rows ? "more " : "");
    text_add(out, html ? "" : "\n");
}

/* ---- the last lines in the terminal ---- */

/* The return of the parameters that the run leaves, and which file has better ones; "" without any return. */
static void put_return(struct text *out, const struct report *self)
{
    format_buffer a, b;
    const struct status *last = self->last;
    bool final = isfinite(self->final_value);
    if (final)
        text_add(out, "final return %s (%s, mean of %u episode%s)", report_value(self->final_value, a),
                 self->final_weights ? self->final_weights : "last parameters", self->final_episodes,
                 self->final_episodes == 1 ? "" : "s");
    else if (isfinite(last->value))
        text_add(out, "last evaluation %s", report_value(last->value, a));
    else if (isfinite(last->actor_value))
        text_add(out, "last return of the actors, who explore: %s", report_value(last->actor_value, a));
    else
        return;
    if (self->best && !(final && self->final_value >= self->best->value))
        text_add(out, ", best evaluation %s (" BEST_WEIGHTS_FILE ", learner step %s)",
                 report_value(self->best->value, a), format_count(b, self->best->learner_steps));
    else if (!self->best && isfinite(last->best))
        text_add(out, ", best evaluation %s", report_value(last->best, a));
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
    put_stretches(out, self, false);
    text_add(out, "\n");
    put_shards(out, self->last);
    put_hosts(out, self->last, false);
    text_add(out, "report: %s/report.html\n", folder);
}

/* ---- report.json ---- */

enum which { PREDICTED, ACHIEVED, RATIO };

static void json_cells(struct json *out, const struct report_row rows[REPORT_ROWS], enum which which)
{
    static const char *const keys[REPORT_ROWS] = {"inserts", "samples", "spi", "actor_idle", "learner_idle"};
    for (uint32_t i = 0; i < REPORT_ROWS; i++)
        json_real(out, keys[i],
                  which == PREDICTED  ? rows[i].predicted
                  : which == ACHIEVED ? rows[i].achieved
                                      : rows[i].achieved / rows[i].predicted);
}

static void json_causes(struct json *out, const char *name, const double shares[IDLE_CAUSES], bool known,
                        uint32_t causes)
{
    json_key(out, name);
    json_open(out, '{');
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (causes >> i & 1)
            json_real(out, idle_names[i], known ? shares[i] : NAN);
    json_close(out, '}');
}

static void json_waits(struct json *out, const struct report_steady *rates)
{
    json_causes(out, "actor_idle_by", rates->idle_by.actor, isfinite(rates->actor_idle), IDLE_OF_ACTOR);
    json_causes(out, "learner_idle_by", rates->idle_by.learner, isfinite(rates->learner_idle), IDLE_OF_LEARNER);
}

static void json_compared(struct json *out, const struct report *self, const struct report_stretch *stretch)
{
    static const char *const names[] = {[PREDICTED] = "predicted", [ACHIEVED] = "achieved", [RATIO] = "ratio"};
    struct report_row rows[REPORT_ROWS];
    report_rows(self, stretch, rows);
    for (enum which which = PREDICTED; which <= RATIO; which++) {
        json_key(out, names[which]);
        json_open(out, '{');
        json_cells(out, rows, which);
        json_close(out, '}');
    }
}

/* The first stretch, which has the planned counts, is repeated at the top. */
static void json_stretches(struct json *out, const struct report *self)
{
    static const struct report_stretch none = {.rates = {.actor_idle = NAN, .learner_idle = NAN}};
    const struct report_stretch *first = self->n_stretches ? &self->stretches[0] : NULL;
    const struct report_stretch *steady = first && first->settled ? first : &none;
    struct report_row rows[REPORT_ROWS];
    json_compared(out, self, first);
    report_rows(self, steady, rows);
    json_key(out, "steady");
    json_open(out, '{');
    json_real(out, "seconds", steady->rates.seconds);
    json_cells(out, rows, ACHIEVED);
    json_waits(out, &steady->rates);
    json_close(out, '}');
    json_key(out, "stretches");
    json_open(out, '[');
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        json_open(out, '{');
        json_count(out, "actors", stretch->actors);
        json_count(out, "learners", stretch->learners);
        json_real(out, "from_s", stretch->from_s);
        json_real(out, "seconds", stretch->rates.seconds);
        json_key(out, "settled");
        json_boolean(out, stretch->settled);
        json_compared(out, self, stretch);
        json_waits(out, &stretch->rates);
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

static void json_run(struct json *out, const struct report *self, const struct report_data *data)
{
    const struct status *last = self->last;
    json_text(out, "name", last->name);
    json_text(out, "exit", phase_name(self->last->phase));
    json_text(out, "reason", last->reason);
    json_text(out, "command", self->command);
    json_count(out, "legs", self->legs);
    json_real(out, "unix_s", last->unix_s);
    json_real(out, "wall_seconds", last->elapsed_s);
    json_count(out, "steps", last->steps);
    json_count(out, "learner_steps", last->learner_steps);
    json_real(out, "final_value", self->final_value);
    json_count(out, "final_episodes", self->final_episodes);
    json_text(out, "final_weights", self->final_weights);
    json_real(out, "value", last->value);
    json_real(out, "best", last->best);
    json_real(out, "actor_value", series_last(&data->run, COLUMN_ACTOR_VALUE));
    json_best(out, self->best);
    json_real(out, "stop_value", last->stop_value);
    json_count(out, "restarts", last->restarts);
    json_count(out, "actors", last->actors_wanted);
    json_count(out, "learners", last->learners_wanted);
    json_count(out, "shards", last->shards);
    json_text(out, "shards_reason", last->shards_reason);
    json_real(out, "spi_target", last->spi_target);
    json_real(out, "peak_memory", data->peak_memory);
    json_real(out, "peak_cpu", data->peak_cpu);
}

static void json_hosts(struct json *out, const struct status *last)
{
    json_key(out, "hosts");
    json_open(out, '[');
    for (uint32_t i = 0; i < report_hosts(last); i++) {
        const struct status_host *host = &last->hosts[i];
        json_open(out, '{');
        json_text(out, "name", host->name);
        json_text(out, "model", host->model);
        json_count(out, "actors", host->actors_wanted);
        json_count(out, "learners", host->learners_wanted);
        json_real(out, "cores", host->cores);
        json_real(out, "mean_cpu", host->mean_cpu);
        json_count(out, "times", host->times);
        json_count(out, "losses", host->losses);
        json_real(out, "lost_s", host->lost_s);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void report_json(struct text *out, const struct report *self, const struct report_data *data)
{
    struct json json = {0};
    json_open(&json, '{');
    json_run(&json, self, data);
    json_stretches(&json, self);
    json_hosts(&json, self->last);
    json_key(&json, "events");
    json_open(&json, '[');
    for (uint32_t i = 0; i < data->n_events; i++) {
        json_open(&json, '{');
        json_real(&json, "elapsed_s", data->events[i].elapsed_s);
        json_text(&json, "event", data->events[i].text);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    char *plan = self->plan && self->plan_input ? plan_to_json(self->plan, self->plan_input) : NULL;
    json_key(&json, "plan");
    json_raw(&json, plan ? plan : "null");
    json_close(&json, '}');
    char *text = json_take(&json);
    text_add(out, "%s\n", text ? text : "");
    free(plan);
    free(text);
}

/* ---- report.html: one file that needs no other file, in the style of the page of a run ---- */

/* The lines of the terminal, and what the run has used. */
static void add_top(struct text *out, const struct report *self, const struct report_data *data)
{
    static const char *const levels[PHASES] = {[PHASE_DONE] = "good", [PHASE_STOPPED] = "warn", [PHASE_FAILED] = "bad"};
    const struct status *last = self->last;
    const char *level = (unsigned)last->phase < PHASES && levels[last->phase] ? levels[last->phase] : "";
    struct text lines = {0};
    format_buffer memory, steps, updates;
    double seconds = last->elapsed_s > 0 ? last->elapsed_s : INFINITY;
    time_t when = last->unix_s > 0 && last->unix_s < 1e11 ? (time_t)last->unix_s : 0;
    struct tm tm;
    char date[64] = "";
    if (when && gmtime_r(&when, &tm))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &tm);
    text_add(out, "<header><h1>");
    plot_escape(out, last->name);
    text_add(out, "</h1><span class=\"badge %s\">%s</span><span class=\"soft\">%s</span></header>\n", level,
             phase_name(last->phase), date);
    put_head(&lines, self);
    if (last->phase == PHASE_FAILED)
        text_add(&lines, "%s\n", last->reason);
    text_add(
        &lines,
        "%u actors and %u learners; at most %s and %.1f cores; %s environment steps and %s learner steps in the mean",
        last->actors_wanted, last->learners_wanted,
        format_bytes(memory, data->peak_memory < 1e18 ? (uint64_t)data->peak_memory : 0), data->peak_cpu,
        format_rate(steps, (double)last->steps / seconds), format_rate(updates, (double)last->learner_steps / seconds));
    if (self->legs > 1)
        text_add(&lines, "; in %u legs", self->legs);
    text_add(&lines, "\n");
    put_shards(&lines, last);
    text_add(out, "<pre>");
    plot_escape(out, text_get(&lines));
    text_add(out, "</pre>\n");
    text_fini(&lines);
}

static void add_charts(struct text *out, const struct report *self, const struct report_data *data)
{
    text_add(out, "<h2>The run</h2>\n<div class=\"cards\">\n");
    for (enum report_plot i = 0; i < REPORT_PLOTS; i++) {
        bool wide = i == PLOT_RETURN || i == PLOT_MEMORY;
        text_add(out, "<section class=\"card%s\">", wide ? " wide" : "");
        report_plot(out, self, data, i, wide ? 1070 : 528, i == PLOT_RETURN ? 340 : i == PLOT_MEMORY ? 220 : 270);
        text_add(out, "</section>\n");
    }
    text_add(out, "</div>\n");
}

static void add_choice(struct grid *grid, const struct plan_choice *choice)
{
    format_buffer cell;
    grid_addf(grid, "%u", choice->actors);
    grid_addf(grid, "%u", choice->learners);
    grid_add(grid, report_rate(choice->inserts, cell));
    grid_add(grid, report_rate(choice->samples, cell));
    grid_add(grid, percent(choice->actor_idle, cell));
    grid_add(grid, percent(choice->learner_idle, cell));
    grid_add(grid, plan_bottleneck_names[choice->bottleneck]);
    grid_add(grid, choice->reason);
}

static void add_plan(struct text *out, const struct plan *plan)
{
    static const char *const titles[] = {">actors",      ">learners",      ">inserts/s", ">samples/s",
                                         ">actors idle", ">learners idle", "bottleneck", "why"};
    struct grid grid;
    if (!plan)
        return;
    text_add(out, "<h2>The plan, chosen first, and its alternatives</h2>\n");
    grid_init(&grid, titles, sizeof titles / sizeof *titles);
    add_choice(&grid, &plan->chosen);
    for (uint32_t i = 0; i < plan->n_others && i < PLAN_MAX_OTHERS; i++)
        add_choice(&grid, &plan->others[i]);
    put_table(out, &grid, true);
}

static void add_processes(struct text *out, const struct status *last)
{
    static const char *const titles[] = {"process", "state", ">restarts", ">memory", "host"};
    struct grid grid;
    format_buffer memory;
    if (!last->n_processes || !last->processes)
        return;
    text_add(out, "<h2>Processes</h2>\n");
    grid_init(&grid, titles, report_hosts(last) ? 5 : 4);
    for (uint32_t i = 0; i < last->n_processes; i++) {
        const struct status_process *p = &last->processes[i];
        grid_add(&grid, p->name);
        grid_add(&grid, p->state);
        grid_addf(&grid, "%s%u", p->restarts ? "!" : "", p->restarts);
        grid_add(&grid, p->memory ? format_bytes(memory, p->memory) : "-");
        if (report_hosts(last))
            grid_add(&grid, p->host);
    }
    put_table(out, &grid, true);
}

static void add_events(struct text *out, const struct report_data *data)
{
    static const char *const titles[] = {">after", "what"};
    struct grid grid;
    format_buffer time;
    if (!data->n_events)
        return;
    text_add(out, "<h2>Events</h2>\n");
    if (data->lost_events)
        text_add(out, "<p>%u earlier ones are in logs/launch.log.</p>\n", data->lost_events);
    grid_init(&grid, titles, 2);
    for (uint32_t i = 0; i < data->n_events; i++) {
        grid_add(&grid, format_seconds(time, data->events[i].elapsed_s));
        grid_add(&grid, data->events[i].text);
    }
    put_table(out, &grid, true);
}

/* Links to the files that exist. */
static void add_footer(struct text *out, const char *folder)
{
    static const char *const files[] = {"config.yaml",     "report.json",     "plan.json",
                                        "profile.svg",     "metrics.jsonl",   "best.weights",
                                        "learner.weights", "logs/launch.log", "logs"};
    text_add(out, "<footer class=\"row\">");
    for (uint32_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[FOLDER_SIZE + 32];
        if (access(run_folder_path(path, sizeof path, folder, files[i]), R_OK) == 0)
            text_add(out, "<a href=\"%s\">%s</a>", files[i], files[i]);
    }
    text_add(out, "</footer>\n");
}

static void report_page(struct text *out, const struct report *self, const struct report_data *data, const char *folder)
{
    text_add(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    plot_escape(out, self->last->name);
    text_add(out, " (%s)</title>\n<style>\n%s</style></head>\n<body><main>\n", phase_name(self->last->phase),
             page_style);
    add_top(out, self, data);
    text_add(out, "<h2>%s</h2>\n", self->plan ? "Predicted against achieved" : "Achieved, without a plan");
    if (self->n_stretches == 0)
        put_rows(out, self, NULL, true);
    put_stretches(out, self, true);
    add_charts(out, self, data);
    add_plan(out, self->plan);
    put_hosts(out, self->last, true);
    add_processes(out, self->last);
    add_events(out, data);
    if (self->command && self->command[0]) {
        text_add(out, "<h2>Once more</h2>\n<pre>");
        plot_escape(out, self->command);
        text_add(out, "</pre>\n");
    }
    add_footer(out, folder);
    text_add(out, "</main></body></html>\n");
}

/* ---- files ---- */

static rp_status write_text(const char *folder, const char *file, struct text *text, rp_error *err)
{
    rp_status status = run_folder_write(folder, file, text_get(text), err);
    text_fini(text);
    return status;
}

static rp_status write_plots(const struct report *self, const struct report_data *data, const char *folder,
                             rp_error *err)
{
    struct text text = {0};
    report_plot(&text, self, data, PLOT_RETURN, 900, 360);
    RP_TRY(write_text(folder, "return.svg", &text, err));
    report_plot_pair(&text, self, data, PLOT_LOSS, PLOT_VALUE);
    RP_TRY(write_text(folder, "learning.svg", &text, err));
    report_plot_pair(&text, self, data, PLOT_INSERTS, PLOT_SAMPLES);
    RP_TRY(write_text(folder, "rates.svg", &text, err));
    report_plot(&text, self, data, PLOT_SPI, 900, 300);
    return write_text(folder, "ratio.svg", &text, err);
}

rp_status report_write(const struct report *self, const char *folder, rp_error *err)
{
    struct text text = {0};
    struct report_data *data = report_data_read(self->metrics, folder);
    report_json(&text, self, data);
    rp_status status = write_text(folder, "report.json", &text, err);
    if (status == RP_OK) {
        report_page(&text, self, data, folder);
        status = write_text(folder, "report.html", &text, err);
    }
    if (status == RP_OK)
        status = write_plots(self, data, folder, err);
    if (status == RP_OK) {
        report_text(&text, self, folder);
        status = write_text(folder, REPORT_TEXT, &text, err);
    }
    report_data_free(data);
    return status;
}
