#include "agent/launch/profile_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plot.h"
#include "agent/launch/process/run_folder.h"
#include "agent/view/page.h"
#include "proto/base/format.h"

#define PLOT_ROWS 10u
#define PLOT_LEAST_COLUMNS 40u
#define PLOT_MOST_COLUMNS 78u

/* ---- tables ---- */

static void add_unit(struct grid *grid, const struct plan_unit *unit, const char *what, const char *where)
{
    format_buffer rate, memory;
    grid_addf(grid, "one %s%s%s", what, where[0] ? " on " : "", where);
    grid_add(grid, format_rate(rate, unit->rate));
    grid_addf(grid, "%.2f", unit->cpu);
    grid_addf(grid, "%.2f", unit->broker_cpu);
    grid_add(grid, plan_bytes(memory, unit->memory));
}

/* The first host of a kind may take learners only: the one that was measured takes actors. */
static void add_kind(struct grid *grid, const struct plan_input *input, uint32_t kind)
{
    const struct plan_host *example = NULL;
    uint32_t hosts = 0;
    char where[sizeof example->name + 48] = "";
    for (uint32_t i = kind; i < input->n_hosts; i++)
        if (input->hosts[i].kind == kind && input->hosts[i].actors) {
            example = example ? example : &input->hosts[i];
            hosts++;
        }
    if (!example)
        example = &input->hosts[kind];
    if (hosts > 1)
        snprintf(where, sizeof where, "%s and on %u more like it", example->name, hosts - 1);
    else if (input->n_hosts > 1)
        snprintf(where, sizeof where, "%s", example->name);
    add_unit(grid, &input->hosts[kind].actor, "actor", where);
}

static void add_share(struct grid *grid, double share)
{
    if (isnan(share))
        grid_add(grid, "-");
    else
        grid_addf(grid, "%.0f%%", 100.0 * share);
}

static void print_runs(const struct plan_input *input, FILE *out)
{
    static const char *const titles[] = {">actors",      ">learners",      ">shards", ">inserts",    ">samples",
                                         ">actors wait", ">learners wait", ">cores",  ">core thread"};
    struct grid grid;
    format_buffer inserts, samples;
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (uint32_t i = 0; i < input->n_runs; i++) {
        const struct plan_run *run = &input->runs[i];
        grid_addf(&grid, "%u", run->actors);
        grid_addf(&grid, "%u", run->learners);
        grid_addf(&grid, "%u", run->shards);
        grid_add(&grid, format_rate(inserts, run->inserts));
        grid_add(&grid, format_rate(samples, run->samples));
        add_share(&grid, run->actor_idle);
        add_share(&grid, run->learner_idle);
        grid_addf(&grid, "%.2f", run->cpu);
        add_share(&grid, run->core);
    }
    grid_print(&grid, out);
    grid_fini(&grid);
}

/* ---- the plot ---- */

/* What a plot borrows. */
struct lines {
    char names[PLOT_MAX_LINES][32];
    double x[PLOT_MAX_LINES][PLAN_MAX_RUNS], y[PLOT_MAX_LINES][PLAN_MAX_RUNS];
};

static int by_actors(const void *a, const void *b)
{
    const struct plan_run *left = a, *right = b;
    return (left->actors > right->actors) - (left->actors < right->actors);
}

/* Inserts/s of the pairs that ran, a line for each number of learners. */
static struct plot make_plot(const struct plan_input *input, struct lines *lines)
{
    struct plot plot = {
        .title = "together, with the limiter", .x_label = "actors", .y_label = "inserts/s", .from_zero = true};
    struct plan_run runs[PLAN_MAX_RUNS] = {0};
    for (uint32_t i = 0; i < input->n_runs; i++)
        runs[i] = input->runs[i];
    qsort(runs, input->n_runs, sizeof runs[0], by_actors);
    for (uint32_t i = 0; i < input->n_runs; i++) {
        uint32_t k = 0;
        char name[32];
        snprintf(name, sizeof name, "%u learner%s", runs[i].learners, runs[i].learners == 1 ? "" : "s");
        while (k < plot.n_lines && strcmp(lines->names[k], name) != 0)
            k++;
        if (runs[i].shards != plan_shards(input) || k == PLOT_MAX_LINES)
            continue;
        if (k == plot.n_lines) {
            memcpy(lines->names[k], name, sizeof name);
            plot.lines[plot.n_lines++] =
                (struct plot_line){.name = lines->names[k], .x = lines->x[k], .y = lines->y[k], .points = true};
        }
        lines->x[k][plot.lines[k].n] = runs[i].actors;
        lines->y[k][plot.lines[k].n++] = runs[i].inserts;
    }
    return plot;
}

void profile_print(const struct plan_input *input, const struct profile_style *style, FILE *out)
{
    static const char *const titles[] = {"alone", ">items", ">cores", ">broker cores", ">memory"};
    struct grid grid;
    struct text text = {0};
    struct lines lines;
    format_buffer memory, broker;
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (input->hosts[i].actor.rate > 0)
            add_kind(&grid, input, i);
    add_unit(&grid, &input->learner, "learner", "");
    grid_print(&grid, out);
    grid_fini(&grid);
    if (input->n_runs > 0) {
        fprintf(out, "\nActors and learners together, with the limiter:\n");
        print_runs(input, out);
    }
    if (input->n_runs > 1) {
        uint32_t columns = style->columns ? style->columns : PLOT_MOST_COLUMNS;
        columns = columns > PLOT_MOST_COLUMNS ? PLOT_MOST_COLUMNS : columns;
        const struct plot plot = make_plot(input, &lines);
        plot_text(&text, &plot, columns < PLOT_LEAST_COLUMNS ? PLOT_LEAST_COLUMNS : columns, PLOT_ROWS, style->utf8);
        fprintf(out, "%s\n", text_get(&text));
        text_fini(&text);
    }
    fprintf(out, "\nBudget: %.3g cores, %s; the broker with full tables takes %s.\n", plan_cores(input),
            plan_bytes(memory, plan_memory(input)), plan_bytes(broker, input->broker_memory));
}

rp_status profile_write(const struct plan_input *input, const char *folder, rp_error *err)
{
    struct text page = {0}, answers = {0};
    char *json = plan_to_json(NULL, input);
    text_add(&answers, "{\"api/state\": {}, \"api/report\": {\"plan\": %s}}", json);
    page_put_alone(&page, text_get(&answers));
    rp_status status = run_folder_write(folder, "profile.json", json, err);
    if (status == RP_OK)
        status = run_folder_write(folder, "profile.html", text_get(&page), err);
    text_fini(&page);
    text_fini(&answers);
    free(json);
    return status;
}
