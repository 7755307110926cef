/* The report of a run: what was predicted and what came, as text, charts, JSON and a page. */
#include "agent/launch/view/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/view/plot.h"
#include "agent/launch/view/report_data.h"
#include "proto/base/error.h"
#include "proto/base/json.h"

#define REPORT_ROWS 5u

/* The table of hosts, for a run that has several. */
struct report_host {
    const char *name, *model;
    format_buffer actors, learners; /* planned there; "-": none */
    format_buffer lost;             /* "2 times, 1 min 5 s", "never" */
    format_buffer cores;            /* "14.2 of 16": used in the mean, while the host was there */
    bool was_lost;                  /* or was never there */
};

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

/* ---- predicted against achieved ---- */

#define FAR_OFF 0.2

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

const char *report_cell(const struct report_row *row, double value, char *out)
{
    if (!isfinite(value))
        snprintf(out, FORMAT_SIZE, "-");
    else if (row->share)
        snprintf(out, FORMAT_SIZE, "%.0f%%", 100 * value);
    else if (fabs(value) < 1000)
        snprintf(out, FORMAT_SIZE, "%.3g", value);
    else
        format_short(out, value);
    return out;
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

#define PRINT_MOST 16u /* rows in the terminal */

/* Number of rows; 0: only this machine. */
static uint32_t report_hosts(const struct status *last)
{
    return last->hosts && last->n_hosts > 1 ? last->n_hosts : 0;
}

static void count(char *out, uint32_t n)
{
    if (n)
        snprintf(out, FORMAT_SIZE, "%u", n);
    else
        snprintf(out, FORMAT_SIZE, "-");
}

static void report_host(const struct status *last, uint32_t index, struct report_host *out)
{
    const struct status_host *host = &last->hosts[index];
    format_buffer time;
    *out = (struct report_host){
        .name = host->name, .model = host->model, .was_lost = host->losses > 0 || !isfinite(host->mean_cpu)};
    count(out->actors, host->actors_wanted);
    count(out->learners, host->learners_wanted);
    if (host->losses)
        snprintf(out->lost, sizeof out->lost, "%u time%s, %s", host->losses, host->losses > 1 ? "s" : "",
                 format_seconds(time, host->lost_s));
    else
        snprintf(out->lost, sizeof out->lost, "%s", isfinite(host->mean_cpu) ? "never" : "never there");
    if (!isfinite(host->mean_cpu))
        snprintf(out->cores, sizeof out->cores, "-");
    else if (host->cores > 0)
        snprintf(out->cores, sizeof out->cores, "%.1f of %.4g", host->mean_cpu, host->cores);
    else
        snprintf(out->cores, sizeof out->cores, "%.1f", host->mean_cpu);
}

/* With many hosts, only those that were lost or never there have a row: the page has all. */
static uint32_t print_rows(const struct status *last, struct grid *grid)
{
    char clean[sizeof last->hosts->name];
    uint32_t n = report_hosts(last), rows = 0;
    for (uint32_t i = 0; i < n && rows < PRINT_MOST; i++) {
        struct report_host host;
        report_host(last, i, &host);
        if (n > PRINT_MOST && !host.was_lost)
            continue;
        grid_add(grid, format_clean(clean, sizeof clean, host.name));
        grid_add(grid, host.actors);
        grid_add(grid, host.learners);
        grid_add(grid, host.cores);
        grid_add(grid, host.lost);
        rows++;
    }
    return rows;
}

static void report_hosts_print(const struct status *last, FILE *out)
{
    static const char *const titles[] = {"host", ">actors", ">learners", ">cores used", "lost"};
    struct grid grid;
    uint32_t n = report_hosts(last);
    if (n == 0)
        return;
    grid_init(&grid, titles, sizeof titles / sizeof *titles);
    uint32_t rows = print_rows(last, &grid);
    if (rows)
        grid_print(&grid, out);
    grid_fini(&grid);
    if (rows < n)
        fprintf(out, "%s%u %shosts: see the report\n", rows ? "and " : "", n - rows, rows ? "more " : "");
    fprintf(out, "\n");
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

static void plot_rate(struct plot *plot, const struct report *self, const struct report_data *data, bool inserts,
                      struct level *level)
{
    plot->title = inserts ? "Inserts per second" : "Samples per second";
    plot->x_label = "seconds";
    plot->from_zero = true;
    add_series(plot, "achieved", &data->run, COLUMN_TIME, inserts ? COLUMN_INSERTS : COLUMN_SAMPLES);
    add_predicted(plot, level, self, inserts ? 0 : 1, 1.0);
}

static void plot_idle(struct plot *plot, const struct report *self, const struct report_data *data,
                      struct level levels[2])
{
    plot->title = "Idle share";
    plot->x_label = "seconds";
    plot->y_label = "percent of the time";
    plot->from_zero = true;
    add_series(plot, "actors", &data->run, COLUMN_TIME, COLUMN_ACTOR_IDLE);
    add_predicted(plot, &levels[0], self, 3, 100.0);
    add_series(plot, "learners", &data->run, COLUMN_TIME, COLUMN_LEARNER_IDLE);
    add_predicted(plot, &levels[1], self, 4, 100.0);
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

static void plot_loss(struct plot *plot, const struct report_data *data)
{
    plot->title = "Loss";
    plot->x_label = "learner steps";
    add_learning(plot, "loss", data, LEARNING_LOSS);
    add_learning(plot, "of the policy", data, LEARNING_POLICY_LOSS);
    add_learning(plot, "of the values", data, LEARNING_VALUE_LOSS);
}

/* What an algorithm reports about its own expectations: values, or else the entropy or the accuracy of its policy. */
static void plot_value(struct plot *plot, const struct report_data *data)
{
    bool q = has(data, LEARNING_Q), entropy = has(data, LEARNING_ENTROPY);
    plot->title = q ? "Value: mean Q of the batches" : entropy ? "Entropy of the policy" : "Accuracy of the policy";
    plot->x_label = "learner steps";
    add_learning(plot, plot->title, data, q ? LEARNING_Q : entropy ? LEARNING_ENTROPY : LEARNING_ACCURACY);
}

static void report_plot(struct text *out, const struct report *self, const struct report_data *data,
                        enum report_plot which, uint32_t width, uint32_t height)
{
    const struct status *last = self->last;
    struct plot plot = {0};
    struct level levels[2];
    switch (which) {
    case PLOT_RETURN:
        plot_return(&plot, last, data, levels);
        break;
    case PLOT_LOSS:
        plot_loss(&plot, data);
        break;
    case PLOT_VALUE:
        plot_value(&plot, data);
        break;
    case PLOT_INSERTS:
    case PLOT_SAMPLES:
        plot_rate(&plot, self, data, which == PLOT_INSERTS, levels);
        break;
    case PLOT_SPI:
        plot = (struct plot){.title = "Samples per insert", .x_label = "seconds", .from_zero = true};
        add_series(&plot, "achieved", &data->run, COLUMN_TIME, COLUMN_SPI);
        add_level(&plot, levels, "target", last->spi_target > 0 ? last->spi_target : NAN);
        break;
    case PLOT_IDLE:
        plot_idle(&plot, self, data, levels);
        break;
    case PLOT_MEMORY:
    case REPORT_PLOTS:
        plot = (struct plot){.title = "Memory of all processes", .x_label = "seconds", .y_label = "MiB"};
        plot.from_zero = true;
        add_series(&plot, "memory", &data->run, COLUMN_TIME, COLUMN_MEMORY);
        break;
    }
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

/* ---- for people ---- */

/* Prints the table; without a plan, only the achieved rates. */
static void report_print_rows(const struct report *self, const struct report_stretch *stretch, FILE *out)
{
    static const char *const titles[] = {"", ">predicted", ">achieved", ">difference"};
    static const char *const alone[] = {"", ">achieved"};
    struct report_row rows[REPORT_ROWS];
    struct grid grid;
    format_buffer cell;
    bool far_off;
    report_rows(self, stretch, rows);
    grid_init(&grid, self->plan ? titles : alone, self->plan ? 4 : 2);
    for (uint32_t i = 0; i < REPORT_ROWS; i++) {
        grid_addf(&grid, "  %s", rows[i].name);
        if (self->plan)
            grid_add(&grid, report_cell(&rows[i], rows[i].predicted, cell));
        grid_add(&grid, report_cell(&rows[i], rows[i].achieved, cell));
        if (self->plan)
            grid_add(&grid, report_difference(&rows[i], cell, &far_off));
    }
    fprintf(out, "\n");
    grid_print(&grid, out);
    grid_fini(&grid);
}

/* "waited: actors for credit 12%; learners for sample 3%, reduce 2%" */
static void print_waits(const struct idle_shares *by, FILE *out)
{
    char actors[128], learners[128];
    idle_words(by->actor, actors, sizeof actors);
    idle_words(by->learner, learners, sizeof learners);
    if (actors[0] || learners[0])
        fprintf(out, "  waited: %s%s%s%s%s\n", actors[0] ? "actors for " : "", actors,
                actors[0] && learners[0] ? "; " : "", learners[0] ? "learners for " : "", learners);
}

/* Prints stretch by stretch: a plan for four actors says nothing about eight. */
static void print_stretches(const struct report *self, FILE *out)
{
    char text[160];
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        if (!(stretch->rates.seconds > 0))
            continue;
        if (self->n_stretches > 1)
            fprintf(out, "\n%s", report_stretch_text(stretch, text, sizeof text));
        report_print_rows(self, stretch, out);
        print_waits(&stretch->rates.idle_by, out);
    }
    fprintf(out, "\n");
}

/* Prints the return of the parameters that the run leaves, and which file has better ones. */
static void print_return(const struct report *self, FILE *out)
{
    format_buffer a, b;
    const struct status *last = self->last;
    bool final = isfinite(self->final_value);
    if (final)
        fprintf(out, "final return %s (%s, mean of %u episode%s)", report_value(self->final_value, a),
                self->final_weights ? self->final_weights : "last parameters", self->final_episodes,
                self->final_episodes == 1 ? "" : "s");
    else if (isfinite(last->value))
        fprintf(out, "last evaluation %s", report_value(last->value, a));
    else if (isfinite(last->actor_value))
        fprintf(out, "last return of the actors, who explore: %s", report_value(last->actor_value, a));
    else
        return;
    if (self->best && !(final && self->final_value >= self->best->value))
        fprintf(out, ", best evaluation %s (" BEST_WEIGHTS_FILE ", learner step %s)",
                report_value(self->best->value, a), format_count(b, self->best->learner_steps));
    else if (!self->best && isfinite(last->best))
        fprintf(out, ", best evaluation %s", report_value(last->best, a));
    fprintf(out, "\n");
}

void report_print(const struct report *self, const char *folder, FILE *out)
{
    const struct status *last = self->last;
    format_buffer a, b, c;
    char clean[sizeof last->reason];
    fprintf(out, "%s %s after %s", format_clean(clean, sizeof clean, last->name), phase_name(self->last->phase),
            format_seconds(a, last->elapsed_s));
    fprintf(out, ": %s steps, %s updates", format_count(b, last->steps), format_count(c, last->learner_steps));
    if (last->restarts)
        fprintf(out, ", %u restart%s", last->restarts, last->restarts > 1 ? "s" : "");
    fprintf(out, "\n");
    if (last->reason[0] && last->phase != PHASE_FAILED) /* the cause of a failure is printed last */
        fprintf(out, "%s\n", format_clean(clean, sizeof clean, last->reason));
    print_return(self, out);
    print_stretches(self, out);
    if (last->shards > 1)
        fprintf(out, "broker: %u shards%s%s\n", last->shards, last->shards_reason[0] ? ": " : "",
                format_clean(clean, sizeof clean, last->shards_reason));
    report_hosts_print(last, out);
    fprintf(out, "report: %s/report.html\n", folder);
}

/* report.json. */

/* Writes one of the three columns of the table: predicted, achieved or their ratio. */
static void put_rows(struct json *out, const char *name, const struct report_row rows[REPORT_ROWS], int which)
{
    static const char *const keys[REPORT_ROWS] = {"inserts", "samples", "spi", "actor_idle", "learner_idle"};
    json_key(out, name);
    json_open(out, '{');
    for (uint32_t i = 0; i < REPORT_ROWS; i++)
        json_real(out, keys[i],
                  which == 0   ? rows[i].predicted
                  : which == 1 ? rows[i].achieved
                               : rows[i].achieved / rows[i].predicted);
    json_close(out, '}');
}

static void put_causes(struct json *out, const char *name, const double shares[IDLE_CAUSES], uint32_t causes)
{
    json_key(out, name);
    json_open(out, '{');
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (causes >> i & 1)
            json_real(out, idle_names[i], shares[i]);
    json_close(out, '}');
}

static void put_waits(struct json *out, const struct report_steady *rates)
{
    struct idle_shares none;
    idle_shares_none(&none);
    put_causes(out, "actor_idle_by", isfinite(rates->actor_idle) ? rates->idle_by.actor : none.actor, IDLE_OF_ACTOR);
    put_causes(out, "learner_idle_by", isfinite(rates->learner_idle) ? rates->idle_by.learner : none.learner,
               IDLE_OF_LEARNER);
}

static void put_rates(struct json *out, const struct report_steady *rates)
{
    json_real(out, "seconds", rates->seconds);
    json_real(out, "inserts", rates->inserts);
    json_real(out, "samples", rates->samples);
    json_real(out, "spi", rates->spi);
    json_real(out, "actor_idle", rates->actor_idle);
    json_real(out, "learner_idle", rates->learner_idle);
    put_waits(out, rates);
}

static void put_compared(struct json *out, const struct report *self, const struct report_stretch *stretch)
{
    struct report_row rows[REPORT_ROWS];
    report_rows(self, stretch, rows);
    put_rows(out, "predicted", rows, 0);
    put_rows(out, "achieved", rows, 1);
    put_rows(out, "ratio", rows, 2);
}

/* The first stretch, which has the planned counts, is repeated at the top. */
static void put_stretches(struct json *out, const struct report *self)
{
    static const struct report_steady none = {.spi = NAN, .actor_idle = NAN, .learner_idle = NAN};
    put_compared(out, self, self->n_stretches ? &self->stretches[0] : NULL);
    json_key(out, "steady");
    json_open(out, '{');
    put_rates(out, self->n_stretches && self->stretches[0].settled ? &self->stretches[0].rates : &none);
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
        put_compared(out, self, stretch);
        put_waits(out, &stretch->rates);
        json_close(out, '}');
    }
    json_close(out, ']');
}

/* null: there is no best.weights. */
static void put_best(struct json *out, const struct best *best)
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

static void put_run(struct json *out, const struct report *self, const struct report_data *data)
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
    put_best(out, self->best);
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

static void put_hosts(struct json *out, const struct status *last)
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

/* Returns the whole text: free(). NULL: no memory. */
static char *report_json(const struct report *self, const struct report_data *data)
{
    struct json out = {0};
    json_open(&out, '{');
    put_run(&out, self, data);
    put_stretches(&out, self);
    put_hosts(&out, self->last);
    json_key(&out, "events");
    json_open(&out, '[');
    for (uint32_t i = 0; i < data->n_events; i++) {
        json_open(&out, '{');
        json_real(&out, "elapsed_s", data->events[i].elapsed_s);
        json_text(&out, "event", data->events[i].text);
        json_close(&out, '}');
    }
    json_close(&out, ']');
    char *head = json_take(&out);
    /* The plan is JSON already. */
    char *plan = self->plan && self->plan_input ? plan_to_json(self->plan, self->plan_input) : NULL;
    struct text text = {0};
    if (head)
        text_add(&text, "%s, \"plan\": %s}\n", head, plan ? plan : "null");
    free(head);
    free(plan);
    return text.data;
}

/* The page of a report: one file that needs no other file. */

static const char head[] = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                           "<meta name=\"color-scheme\" content=\"light dark\">\n";

static const char css[] =
    "<style>\n"
    ":root{--ground:#f5f6f8;--card:#fff;--ink:#1f2733;--soft:#5b6675;--rule:#e4e7ec;--good:#12805c;--good-ground:#"
    "dcf5ea;"
    "--warn:#9a5b00;--warn-ground:#fdf0d8;--bad:#b3261e;--bad-ground:#fde3e1;--link:#1f66c7}\n"
    "@media (prefers-color-scheme:dark){:root{--ground:#0d1117;--card:#161b22;--ink:#e6ebf2;--soft:#9aa5b4;"
    "--rule:#2a313c;--good:#5fd3a3;--good-ground:#12352a;--warn:#f0b95b;--warn-ground:#3a2c10;--bad:#ff8a80;"
    "--bad-ground:#43191a;--link:#79b0ff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,"
    "'Helvetica Neue',sans-serif;-webkit-font-smoothing:antialiased}\n"
    "main{max-width:1120px;margin:0 auto;padding:40px 24px 64px}\n"
    "h1{font-size:30px;line-height:1.2;letter-spacing:-.02em;margin:0;font-weight:650;overflow-wrap:anywhere}\n"
    "h2{font-size:17px;margin:44px 0 14px;font-weight:620;letter-spacing:-.005em}\n"
    "p{margin:8px 0;color:var(--soft)}a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}\n"
    "header{display:flex;align-items:center;gap:14px;flex-wrap:wrap}\n"
    ".pill{font-size:13px;font-weight:600;padding:3px 12px;border-radius:99px}\n"
    ".done{color:var(--good);background:var(--good-ground)}.stopped{color:var(--warn);background:var(--warn-ground)}\n"
    ".failed{color:var(--bad);background:var(--bad-ground)}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:14px;margin-top:26px}\n"
    ".tile,.card{background:var(--card);border:1px solid var(--rule);border-radius:12px}\n"
    ".tile{padding:14px 18px}.tile b{display:block;font-size:25px;line-height:1.25;font-weight:620;"
    "letter-spacing:-.02em;font-variant-numeric:tabular-nums}\n"
    ".tile span{font-size:13px;color:var(--soft)}.tile small{display:block;font-size:12px;color:var(--soft)}\n"
    ".card{overflow-x:auto}.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}\n"
    ".charts .wide{grid-column:1/-1}.charts .card{overflow:hidden}.charts svg{display:block;width:100%;height:auto}\n"
    "@media (max-width:760px){.charts{grid-template-columns:minmax(0,1fr)}.charts .wide{overflow-x:auto}.charts .wide "
    "svg{min-width:720px}main{padding:24px 14px 48px}}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:left;padding:9px 18px;border-top:1px solid var(--rule);vertical-align:top}\n"
    "th{font-size:12.5px;font-weight:550;color:var(--soft);border-top:0;white-space:nowrap}\n"
    ".n{text-align:right;white-space:nowrap}.soft{color:var(--soft)}.off{color:var(--warn);font-weight:600}\n"
    "tr.chosen td:not(.soft){font-weight:600}td.soft{min-width:180px}code{font:13px/1.5 ui-monospace,'SF "
    "Mono',Menlo,Consolas,monospace}\n"
    "pre{margin:0;padding:14px 18px;overflow-x:auto}footer{margin-top:44px;color:var(--soft)}footer "
    "a{margin-right:18px}\n"
    "</style>\n";

static void add_cell(struct text *out, const char *class, const char *text)
{
    text_add(out, "<td%s%s%s>", class[0] ? " class=\"" : "", class, class[0] ? "\"" : "");
    plot_escape(out, text);
    text_add(out, "</td>");
}

/* ---- the top ---- */

static void add_tile(struct text *out, const char *name, const char *value, const char *more)
{
    text_add(out, "<div class=\"tile\"><span>%s</span><b>", name);
    plot_escape(out, value);
    text_add(out, "</b>");
    if (more[0]) {
        text_add(out, "<small>");
        plot_escape(out, more);
        text_add(out, "</small>");
    }
    text_add(out, "</div>\n");
}

static void add_return_tile(struct text *out, const struct report *self, const struct report_data *data)
{
    format_buffer value, best;
    char more[256] = "";
    bool final = isfinite(self->final_value);
    size_t used = 0;
    if (final)
        used = (size_t)snprintf(more, sizeof more, "%s, mean of %u episode%s",
                                self->final_weights ? self->final_weights : "last parameters", self->final_episodes,
                                self->final_episodes == 1 ? "" : "s");
    double other = self->best ? self->best->value : self->last->best;
    if (isfinite(other) && !(final && self->final_value >= other))
        snprintf(more + used, sizeof more - used, "%s%s %s", used ? "; " : "", self->best ? BEST_WEIGHTS_FILE : "best",
                 report_value(other, best));
    double shown = final ? self->final_value : self->last->value;
    if (!isfinite(shown)) { /* the run has no evaluations */
        shown = series_last(&data->run, COLUMN_ACTOR_VALUE);
        snprintf(more, sizeof more, "%s", isfinite(shown) ? "of the actors, who explore" : "");
    }
    add_tile(out, final ? "final return" : "last return", report_value(shown, value), more);
}

static void add_top(struct text *out, const struct report *self, const struct report_data *data)
{
    const struct status *last = self->last;
    format_buffer a, b;
    char more[128];
    time_t when = last->unix_s > 0 && last->unix_s < 1e11 ? (time_t)last->unix_s : 0;
    struct tm tm;
    char date[64] = "";
    if (when && gmtime_r(&when, &tm))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &tm);
    text_add(out, "<header><h1>");
    plot_escape(out, last->name);
    text_add(out, "</h1><span class=\"pill %s\">%s</span><span class=\"soft\">%s</span></header>\n<p>",
             phase_name(self->last->phase), phase_name(self->last->phase), date);
    plot_escape(out, last->reason);
    text_add(out, "</p>\n<div class=\"tiles\">\n");
    add_return_tile(out, self, data);
    more[0] = '\0';
    if (self->legs > 1)
        snprintf(more, sizeof more, "in %u legs", self->legs);
    add_tile(out, "wall time", format_seconds(a, last->elapsed_s), more);
    snprintf(more, sizeof more, "%s in the mean",
             format_rate(b, last->elapsed_s > 0 ? (double)last->steps / last->elapsed_s : 0));
    add_tile(out, "environment steps", format_count(a, last->steps), more);
    snprintf(more, sizeof more, "%s in the mean",
             format_rate(b, last->elapsed_s > 0 ? (double)last->learner_steps / last->elapsed_s : 0));
    add_tile(out, "learner steps", format_count(a, last->learner_steps), more);
    snprintf(more, sizeof more, "%u restart%s", last->restarts, last->restarts == 1 ? "" : "s");
    snprintf(a, sizeof a, "%u + %u", last->actors_wanted, last->learners_wanted);
    add_tile(out, "actors + learners", a, more);
    snprintf(more, sizeof more, "%.1f cores at most", data->peak_cpu);
    add_tile(out, "peak memory", format_bytes(a, data->peak_memory < 1e18 ? (uint64_t)data->peak_memory : 0), more);
    text_add(out, "</div>\n");
}

/* ---- tables ---- */

static void add_rows(struct text *out, const struct report *self, const struct report_stretch *stretch)
{
    struct report_row rows[REPORT_ROWS];
    format_buffer cell;
    report_rows(self, stretch, rows);
    text_add(out, "<div class=\"card\"><table><tr><th></th><th class=\"n\">predicted</th><th class=\"n\">achieved</th>"
                  "<th class=\"n\">difference</th></tr>\n");
    for (uint32_t i = 0; i < REPORT_ROWS; i++) {
        bool far_off;
        text_add(out, "<tr>");
        add_cell(out, "", rows[i].name);
        add_cell(out, "n", report_cell(&rows[i], rows[i].predicted, cell));
        add_cell(out, "n", report_cell(&rows[i], rows[i].achieved, cell));
        report_difference(&rows[i], cell, &far_off);
        add_cell(out, far_off ? "n off" : "n", cell);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table></div>\n");
}

/* "Learners waited for sample 3%, reduce 2% of the time." */
static void add_waits(struct text *out, const char *who, const double by[IDLE_CAUSES])
{
    char causes[128];
    if (idle_words(by, causes, sizeof causes)[0])
        text_add(out, "<p>%s waited for %s of the time.</p>\n", who, causes);
}

static void add_outcome(struct text *out, const struct report *self)
{
    char text[160];
    text_add(out, "<h2>Predicted against achieved</h2>\n");
    if (!self->plan)
        text_add(out, "<p>There was no plan.</p>\n");
    if (self->n_stretches == 0) {
        text_add(out, "<p>Nothing was inserted or sampled.</p>\n");
        add_rows(out, self, NULL);
    }
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        text_add(out, "<p>");
        plot_escape(out, report_stretch_text(&self->stretches[i], text, sizeof text));
        text_add(out, "</p>\n");
        add_rows(out, self, &self->stretches[i]);
        add_waits(out, "Actors", self->stretches[i].rates.idle_by.actor);
        add_waits(out, "Learners", self->stretches[i].rates.idle_by.learner);
    }
}

static void add_choice(struct text *out, const struct plan_choice *choice, bool chosen)
{
    format_buffer cell;
    const struct report_row share = {.share = true}, plain = {0};
    text_add(out, "<tr%s><td class=\"n\">%u</td><td class=\"n\">%u</td>", chosen ? " class=\"chosen\"" : "",
             choice->actors, choice->learners);
    add_cell(out, "n", report_cell(&plain, choice->inserts, cell));
    add_cell(out, "n", report_cell(&plain, choice->samples, cell));
    add_cell(out, "n", report_cell(&share, choice->actor_idle, cell));
    add_cell(out, "n", report_cell(&share, choice->learner_idle, cell));
    add_cell(out, "", plan_bottleneck_names[choice->bottleneck]);
    add_cell(out, "soft", choice->reason);
    text_add(out, "</tr>\n");
}

static void add_plan(struct text *out, const struct plan *plan)
{
    if (!plan)
        return;
    text_add(out, "<h2>The plan and its alternatives</h2>\n<div class=\"card\"><table><tr><th class=\"n\">actors</th>"
                  "<th class=\"n\">learners</th><th class=\"n\">inserts/s</th><th class=\"n\">samples/s</th>"
                  "<th class=\"n\">actors idle</th><th class=\"n\">learners idle</th>"
                  "<th>bottleneck</th><th>why</th></tr>\n");
    add_choice(out, &plan->chosen, true);
    for (uint32_t i = 0; i < plan->n_others && i < PLAN_MAX_OTHERS; i++)
        add_choice(out, &plan->others[i], false);
    text_add(out, "</table></div>\n");
}

/* "The broker had 4 shards: ...". A broker alone is named where a plan says why. */
static void add_shards(struct text *out, const struct status *last)
{
    if (last->shards < 2 && !last->shards_reason[0])
        return;
    text_add(out, "<p>The broker had %u shard%s%s", last->shards, last->shards == 1 ? "" : "s",
             last->shards_reason[0] ? ": " : "");
    plot_escape(out, last->shards_reason);
    text_add(out, ".</p>\n");
}

static void add_link(struct text *out, const char *folder, const char *file, const char *ending, const char *text)
{
    text_add(out, "<a href=\"%s", folder);
    for (const char *s = file; *s; s++) { /* a name may contain anything */
        bool plain = (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '-' ||
                     *s == '_' || *s == '.';
        text_add(out, plain ? "%c" : "%%%02X", (unsigned char)*s);
    }
    text_add(out, "%s\">", ending);
    plot_escape(out, text);
    text_add(out, "</a>");
}

static void add_hosts(struct text *out, const struct status *last)
{
    uint32_t n = report_hosts(last);
    if (n == 0)
        return;
    text_add(out, "<h2>Hosts</h2>\n<div class=\"card\"><table><tr><th>name</th><th class=\"n\">actors</th>"
                  "<th class=\"n\">learners</th><th class=\"n\">cores used</th><th>lost</th><th>processor</th></tr>\n");
    for (uint32_t i = 0; i < n; i++) {
        struct report_host host;
        report_host(last, i, &host);
        text_add(out, "<tr>");
        add_cell(out, "", host.name);
        add_cell(out, "n", host.actors);
        add_cell(out, "n", host.learners);
        add_cell(out, "n", host.cores);
        add_cell(out, host.was_lost ? "off" : "soft", host.lost);
        add_cell(out, "soft", host.model);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table></div>\n");
}

static void add_processes(struct text *out, const struct status *last)
{
    if (!last->n_processes || !last->processes)
        return;
    bool hosts = report_hosts(last) > 0;
    text_add(out,
             "<h2>Processes</h2>\n<div class=\"card\"><table><tr><th>name</th>%s<th>state</th>"
             "<th class=\"n\">restarts</th><th class=\"n\">memory</th><th>output</th></tr>\n",
             hosts ? "<th>host</th>" : "");
    for (uint32_t i = 0; i < last->n_processes; i++) {
        const struct status_process *p = &last->processes[i];
        format_buffer cell;
        text_add(out, "<tr>");
        add_cell(out, "", p->name);
        if (hosts)
            add_cell(out, "", p->host);
        add_cell(out, "soft", p->state);
        snprintf(cell, sizeof cell, "%u", p->restarts);
        add_cell(out, p->restarts ? "n off" : "n", cell);
        add_cell(out, "n", p->memory ? format_bytes(cell, p->memory) : "-");
        text_add(out, "<td>");
        add_link(out, "logs/", p->name, ".log", "log");
        text_add(out, "</td></tr>\n");
    }
    text_add(out, "</table></div>\n");
}

static void add_events(struct text *out, const struct report_data *data)
{
    if (!data->n_events)
        return;
    text_add(out, "<h2>Events</h2>\n");
    if (data->lost_events)
        text_add(out, "<p>%u earlier ones are in logs/launch.log.</p>\n", data->lost_events);
    text_add(out, "<div class=\"card\"><table><tr><th class=\"n\">after</th><th>what</th></tr>\n");
    for (uint32_t i = 0; i < data->n_events; i++) {
        format_buffer time;
        text_add(out, "<tr>");
        add_cell(out, "n soft", format_seconds(time, data->events[i].elapsed_s));
        add_cell(out, "", data->events[i].text);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table></div>\n");
}

/* ---- charts and the end ---- */

static void add_charts(struct text *out, const struct report *self, const struct report_data *data)
{
    text_add(out, "<h2>The run</h2>\n<div class=\"charts\">\n");
    for (uint32_t i = 0; i < REPORT_PLOTS; i++) {
        bool wide = i == PLOT_RETURN || i == PLOT_MEMORY;
        text_add(out, "<div class=\"card%s\">", wide ? " wide" : "");
        report_plot(out, self, data, (enum report_plot)i, wide ? 1070 : 528,
                    i == PLOT_RETURN   ? 340
                    : i == PLOT_MEMORY ? 220
                                       : 270);
        text_add(out, "</div>\n");
    }
    text_add(out, "</div>\n");
}

/* Links to the files that exist. */
static void add_footer(struct text *out, const char *folder)
{
    static const char *const files[] = {"config.yaml",     "report.json",     "plan.json",
                                        "profile.svg",     "metrics.jsonl",   "best.weights",
                                        "learner.weights", "logs/launch.log", "logs"};
    text_add(out, "<footer>");
    for (uint32_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[FOLDER_SIZE + 32];
        if (access(run_folder_path(path, sizeof path, folder, files[i]), R_OK) == 0)
            text_add(out, "<a href=\"%s\">%s</a>", files[i], files[i]);
    }
    text_add(out, "</footer>\n");
}

static void report_page(struct text *out, const struct report *self, const struct report_data *data, const char *folder)
{
    text_add(out, "%s<title>", head);
    plot_escape(out, self->last->name);
    text_add(out, " (%s)</title>\n%s</head>\n<body><main>\n", phase_name(self->last->phase), css);
    add_top(out, self, data);
    add_outcome(out, self);
    add_charts(out, self, data);
    add_plan(out, self->plan);
    add_shards(out, self->last);
    add_hosts(out, self->last);
    add_processes(out, self->last);
    add_events(out, data);
    if (self->command && self->command[0]) {
        text_add(out, "<h2>Once more</h2>\n<div class=\"card\"><pre><code>");
        plot_escape(out, self->command);
        text_add(out, "</code></pre></div>\n");
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

/* What report_print prints, for a launcher on another machine. */
static rp_status write_lines(const struct report *self, const char *folder, rp_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out)
        report_print(self, folder, out);
    rp_status status = out && fclose(out) == 0 ? run_folder_write(folder, REPORT_TEXT, text, err)
                                               : err_set(err, RP_NO_MEMORY, "no memory for the report of %s", folder);
    free(text);
    return status;
}

rp_status report_write(const struct report *self, const char *folder, rp_error *err)
{
    struct report_data data;
    struct text page = {0};
    report_data_read(&data, self->metrics, folder);
    char *json = report_json(self, &data);
    rp_status status = json ? run_folder_write(folder, "report.json", json, err)
                            : err_set(err, RP_RESOURCE_EXHAUSTED, "no memory for the report of %s", folder);
    free(json);
    if (status == RP_OK) {
        report_page(&page, self, &data, folder);
        status = write_text(folder, "report.html", &page, err);
    }
    if (status == RP_OK)
        status = write_plots(self, &data, folder, err);
    if (status == RP_OK)
        status = write_lines(self, folder, err);
    report_data_fini(&data);
    return status;
}
