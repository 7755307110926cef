/* What is left of a run, in numbers: report.json and the last lines in the terminal. */
#include "agent/launch/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/json.h"
#include "agent/launch/report_impl.h"
#include "agent/launch/run_folder.h"
#include "proto/error.h"

#define FAR_OFF 0.2

/* ---- predicted against achieved ---- */

void report_rows(const struct report *self, struct report_row rows[REPORT_ROWS])
{
    const struct plan_choice *plan = self->plan ? &self->plan->chosen : NULL;
    const struct report_steady *steady = &self->steady;
    bool was = steady->seconds > 0;
    double spi = plan && plan->inserts > 0 ? plan->samples / plan->inserts : NAN;
    const struct report_row all[REPORT_ROWS] = {
        {"inserts/s", plan ? plan->inserts : NAN, was ? steady->inserts : NAN, false},
        {"samples/s", plan ? plan->samples : NAN, was ? steady->samples : NAN, false},
        {"samples per insert", spi, was ? steady->spi : NAN, false},
        {"actors idle", plan ? plan->actor_idle : NAN, was ? steady->actor_idle : NAN, true},
        {"learners idle", plan ? plan->learner_idle : NAN, was ? steady->learner_idle : NAN, true},
    };
    memcpy(rows, all, sizeof all);
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

const char *report_difference(const struct report_row *row, char *out, bool *far_off)
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

/* ---- report.json ---- */

static void put_number(struct json *out, const char *name, double value)
{
    json_key(out, name);
    if (isfinite(value))
        json_double(out, value);
    else
        json_message(out, NULL); /* null */
}

static void put_text(struct json *out, const char *name, const char *text)
{
    json_key(out, name);
    json_string(out, text ? text : "");
}

static void put_count(struct json *out, const char *name, uint64_t value)
{
    json_key(out, name);
    json_unsigned(out, value);
}

/* One of the three columns of the table: predicted, achieved or their ratio. */
static void put_rows(struct json *out, const char *name, const struct report_row rows[REPORT_ROWS], int which)
{
    static const char *const keys[REPORT_ROWS] = {"inserts", "samples", "spi", "actor_idle", "learner_idle"};
    json_key(out, name);
    json_open(out, '{');
    for (uint32_t i = 0; i < REPORT_ROWS; i++)
        put_number(out, keys[i],
                   which == 0   ? rows[i].predicted
                   : which == 1 ? rows[i].achieved
                                : rows[i].achieved / rows[i].predicted);
    json_close(out, '}');
}

static void put_steady(struct json *out, const struct report_steady *steady)
{
    json_key(out, "steady");
    json_open(out, '{');
    put_number(out, "seconds", steady->seconds);
    put_number(out, "inserts", steady->inserts);
    put_number(out, "samples", steady->samples);
    put_number(out, "spi", steady->spi);
    put_number(out, "actor_idle", steady->actor_idle);
    put_number(out, "learner_idle", steady->learner_idle);
    json_close(out, '}');
}

/* null: there is no best.weights. */
static void put_best(struct json *out, const struct best *best)
{
    json_key(out, "best_weights");
    if (!best) {
        json_message(out, NULL);
        return;
    }
    json_open(out, '{');
    put_number(out, "return", best->value);
    put_count(out, "episodes", best->episodes);
    put_count(out, "environment_steps", best->environment_steps);
    put_count(out, "learner_steps", best->learner_steps);
    json_close(out, '}');
}

static void put_run(struct json *out, const struct report *self, const struct report_data *data)
{
    const struct status *last = self->last;
    put_text(out, "name", last->name);
    put_text(out, "exit", phase_name(self->last->phase));
    put_text(out, "reason", last->reason);
    put_text(out, "command", self->command);
    put_count(out, "legs", self->legs);
    put_number(out, "unix_s", last->unix_s);
    put_number(out, "wall_seconds", last->elapsed_s);
    put_count(out, "steps", last->steps);
    put_count(out, "learner_steps", last->learner_steps);
    put_number(out, "final_value", self->final_value);
    put_count(out, "final_episodes", self->final_episodes);
    put_text(out, "final_weights", self->final_weights);
    put_number(out, "value", last->value);
    put_number(out, "best", last->best);
    put_best(out, self->best);
    put_number(out, "stop_value", last->stop_value);
    put_count(out, "restarts", last->restarts);
    put_count(out, "actors", last->actors_wanted);
    put_count(out, "learners", last->learners_wanted);
    put_number(out, "spi_target", last->spi_target);
    put_number(out, "peak_memory", data->peak_memory);
    put_number(out, "peak_cpu", data->peak_cpu);
}

/* Gives the whole text: free(). */
static char *report_json(const struct report *self, const struct report_data *data)
{
    struct json out = {0};
    struct report_row rows[REPORT_ROWS];
    report_rows(self, rows);
    json_open(&out, '{');
    put_run(&out, self, data);
    put_rows(&out, "predicted", rows, 0);
    put_rows(&out, "achieved", rows, 1);
    put_rows(&out, "ratio", rows, 2);
    put_steady(&out, &self->steady);
    json_key(&out, "events");
    json_open(&out, '[');
    for (uint32_t i = 0; i < data->n_events; i++) {
        json_open(&out, '{');
        put_number(&out, "elapsed_s", data->events[i].elapsed_s);
        put_text(&out, "event", data->events[i].text);
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

/* ---- all of it ---- */

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
    report_plot_rates(&text, self, data);
    RP_TRY(write_text(folder, "rates.svg", &text, err));
    report_plot(&text, self, data, PLOT_SPI, 900, 300);
    return write_text(folder, "ratio.svg", &text, err);
}

rp_status report_write(const struct report *self, const char *folder, rp_error *err)
{
    struct report_data data;
    struct text page = {0};
    report_data_read(&data, self->metrics);
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
    report_data_fini(&data);
    return status;
}

/* The table; without a plan, what was achieved alone. */
static void print_rows(const struct report *self, FILE *out)
{
    static const char *const titles[] = {"", ">predicted", ">achieved", ">difference"};
    static const char *const alone[] = {"", ">achieved"};
    struct report_row rows[REPORT_ROWS];
    struct grid grid;
    format_buffer cell;
    bool far_off;
    report_rows(self, rows);
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
    fprintf(out, "\n");
}

/* What the parameters are worth that the run leaves, and which file has better ones. */
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
    if (last->reason[0])
        fprintf(out, "%s\n", format_clean(clean, sizeof clean, last->reason));
    print_return(self, out);
    if (self->steady.seconds > 0)
        print_rows(self, out);
    fprintf(out, "report: %s/report.html\n", folder);
}
