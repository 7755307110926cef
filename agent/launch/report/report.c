/* The report of a run: predicted against achieved rates, the files, and the last lines in the terminal. */
#include "agent/launch/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/report/report_impl.h"
#include "proto/base/error.h"

#define FAR_OFF 0.2

/* ---- predicted against achieved ---- */

bool report_predicted(const struct report *self, const struct report_stretch *stretch, struct plan_choice *out)
{
    if (!self->plan)
        return false;
    *out = self->plan->chosen;
    if (!stretch || (stretch->actors == out->actors && stretch->learners == out->learners))
        return true;
    return self->plan_input && plan_predict(self->plan_input, stretch->actors, stretch->learners, out);
}

void report_rows(const struct report *self, const struct report_stretch *stretch, struct report_row rows[REPORT_ROWS])
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

const char *report_stretch_text(const struct report_stretch *stretch, char *out, size_t size)
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

/* Prints the table; without a plan, only the achieved rates. */
static void print_rows(const struct report *self, const struct report_stretch *stretch, FILE *out)
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
        print_rows(self, stretch, out);
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
