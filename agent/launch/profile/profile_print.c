/* Shows a profile: tables and plots in a terminal, and two files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/plot/plot.h"
#include "agent/launch/profile/profile.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

#define PLOT_ROWS 10u
#define PLOT_LEAST_COLUMNS 40u
#define PLOT_MOST_COLUMNS 78u
#define SVG_WIDTH 640u
#define SVG_HEIGHT 320u

/* ---- tables ---- */

static void print_curve(const struct plan_curve *curve, const char *const *titles, FILE *out)
{
    struct grid grid;
    format_buffer rate, each, memory;
    grid_init(&grid, titles, 6);
    for (uint32_t i = 0; i < curve->n; i++) {
        const struct plan_point *point = &curve->points[i];
        grid_addf(&grid, "%u", point->count);
        grid_add(&grid, format_rate(rate, point->rate));
        grid_add(&grid, format_rate(each, point->rate / point->count));
        grid_addf(&grid, "%.2f", point->cpu);
        grid_addf(&grid, "%.2f", point->broker_cpu);
        grid_add(&grid, plan_bytes(memory, point->memory));
    }
    grid_print(&grid, out);
    grid_fini(&grid);
}

static void add_share(struct grid *grid, double share)
{
    if (isnan(share))
        grid_add(grid, "-");
    else
        grid_addf(grid, "%.0f%%", 100.0 * share);
}

static void print_joints(const struct plan_input *input, FILE *out)
{
    static const char *const titles[] = {">actors",      ">learners",      ">inserts", ">samples",
                                         ">actors wait", ">learners wait", ">cores"};
    struct grid grid;
    format_buffer inserts, samples;
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        grid_addf(&grid, "%u", joint->actors);
        grid_addf(&grid, "%u", joint->learners);
        grid_add(&grid, format_rate(inserts, joint->inserts));
        grid_add(&grid, format_rate(samples, joint->samples));
        add_share(&grid, joint->actor_idle);
        add_share(&grid, joint->learner_idle);
        grid_addf(&grid, "%.2f", joint->cpu);
    }
    grid_print(&grid, out);
    grid_fini(&grid);
}

/* Runs that say how many shards pay; none if the file gives a number. */
static void print_shards(const struct plan_input *input, FILE *out)
{
    static const char *const titles[] = {">shards",  ">actors",      ">learners", ">inserts",
                                         ">samples", ">core thread", ">cores"};
    struct grid grid;
    format_buffer inserts, samples;
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (uint32_t i = 0; i < input->n_loads; i++) {
        const struct plan_load *load = &input->loads[i];
        grid_addf(&grid, "%u", load->shards);
        grid_addf(&grid, "%u", load->joint.actors);
        grid_addf(&grid, "%u", load->joint.learners);
        grid_add(&grid, format_rate(inserts, load->joint.inserts));
        grid_add(&grid, format_rate(samples, load->joint.samples));
        add_share(&grid, load->core);
        grid_addf(&grid, "%.2f", load->cores);
    }
    grid_print(&grid, out);
    grid_fini(&grid);
}

/* ---- plots ---- */

/* The numbers of the curves of a plot, which borrows them. */
struct points {
    double x[PLOT_MAX_LINES][PLAN_MAX_POINTS], y[PLOT_MAX_LINES][PLAN_MAX_POINTS];
};

/* A host of the kind on which actors are measured; the curve is kept with the first host of the kind, which may take learners only. */
static const struct plan_host *example_of(const struct plan_input *input, uint32_t kind)
{
    for (uint32_t i = kind; i < input->n_hosts; i++)
        if (input->hosts[i].kind == kind && input->hosts[i].actors)
            return &input->hosts[i];
    return &input->hosts[kind];
}

static void add_line(struct plot *plot, struct points *points, const struct plan_curve *curve, const char *name)
{
    uint32_t line = plot->n_lines;
    if (line == PLOT_MAX_LINES)
        return;
    for (uint32_t i = 0; i < curve->n; i++) {
        points->x[line][i] = curve->points[i].count;
        points->y[line][i] = curve->points[i].rate;
    }
    plot->lines[plot->n_lines++] =
        (struct plot_line){.name = name, .x = points->x[line], .y = points->y[line], .n = curve->n, .points = true};
}

/* With hosts, a line for each kind: what its actors do on one host. */
static struct plot actors_plot(const struct plan_input *input, struct points *points)
{
    struct plot plot = {.title = "actors alone, without a limiter",
                        .x_label = input->n_hosts > 0 ? "actors on one host" : "actors",
                        .y_label = "inserts/s",
                        .from_zero = true};
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (input->hosts[i].curve.n > 0)
            add_line(&plot, points, &input->hosts[i].curve, example_of(input, i)->name);
    if (input->n_hosts == 0)
        add_line(&plot, points, &input->actors, plot.y_label);
    return plot;
}

static struct plot learners_plot(const struct plan_input *input, struct points *points)
{
    struct plot plot = {
        .title = "learners alone, on a filled table", .x_label = "learners", .y_label = "samples/s", .from_zero = true};
    add_line(&plot, points, &input->learners, plot.y_label);
    return plot;
}

/* A single point is not drawn. */
static void print_plot(const struct plot *plot, const struct profile_style *style, FILE *out)
{
    struct text text = {0};
    uint32_t most = 0;
    for (uint32_t i = 0; i < plot->n_lines; i++)
        most = plot->lines[i].n > most ? plot->lines[i].n : most;
    if (most < 2)
        return;
    uint32_t columns = style->columns;
    columns = columns == 0 || columns > PLOT_MOST_COLUMNS ? PLOT_MOST_COLUMNS : columns;
    columns = columns < PLOT_LEAST_COLUMNS ? PLOT_LEAST_COLUMNS : columns;
    plot_text(&text, plot, columns, PLOT_ROWS, style->utf8);
    fputs(text_get(&text), out);
    fputc('\n', out);
    text_fini(&text);
}

/* "Actors on cpu1, and on 3 hosts like it (32 cores):". */
static void print_kind(const struct plan_input *input, uint32_t kind, FILE *out)
{
    uint32_t hosts = 0;
    for (uint32_t i = kind; i < input->n_hosts; i++)
        hosts += input->hosts[i].kind == kind && input->hosts[i].actors;
    fprintf(out, "Actors alone on %s", example_of(input, kind)->name);
    if (hosts > 1)
        fprintf(out, ", the same on %u host%s like it", hosts - 1, hosts == 2 ? "" : "s");
    fprintf(out, " (%.3g cores), without a limiter:\n", input->hosts[kind].cores);
}

void profile_print(const struct plan_input *input, const struct profile_style *style, FILE *out)
{
    static const char *const actors[] = {">actors", ">inserts", ">each", ">cores", ">broker cores", ">memory each"};
    static const char *const learners[] = {">learners", ">samples", ">each", ">cores", ">broker cores", ">memory each"};
    struct points points;
    format_buffer memory, broker;
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (input->hosts[i].curve.n > 0) {
            print_kind(input, i, out);
            print_curve(&input->hosts[i].curve, actors, out);
            fputc('\n', out);
        }
    fprintf(out, input->n_hosts > 0 ? "Actors of all hosts, as they would be placed (computed):\n"
                                    : "Actors alone, without a limiter:\n");
    print_curve(&input->actors, actors, out);
    struct plot plot = actors_plot(input, &points);
    print_plot(&plot, style, out);
    fprintf(out, "\nLearners alone, on a filled table:\n");
    print_curve(&input->learners, learners, out);
    plot = learners_plot(input, &points);
    print_plot(&plot, style, out);
    if (input->n_joints > 0) {
        fprintf(out, "\nTogether, with the limiter:\n");
        print_joints(input, out);
    }
    if (input->n_loads > 0 && input->fixed_shards == 0) {
        fprintf(out, "\nHow busy the broker was (the fastest run of each):\n");
        print_shards(input, out);
    }
    if (input->network > 0) {
        format_buffer network, item;
        fprintf(out, "\nNetwork: all hosts together send %s/s to this machine; an insert takes %s.\n",
                plan_bytes(network, input->network), plan_bytes(item, input->item_bytes));
    }
    fprintf(out, "\nBudget: %.3g cores, %s; the broker with full tables takes %s.\n", input->cores,
            plan_bytes(memory, input->memory), plan_bytes(broker, input->broker_memory));
}

/* ---- files ---- */

/* Draws both curves, one above the other. */
static void draw(const struct plan_input *input, struct text *out)
{
    struct points points;
    struct plot plot = actors_plot(input, &points);
    text_add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" viewBox=\"0 0 %u %u\">\n",
             SVG_WIDTH, 2 * SVG_HEIGHT, SVG_WIDTH, 2 * SVG_HEIGHT);
    plot_svg(out, &plot, SVG_WIDTH, SVG_HEIGHT);
    text_add(out, "<g transform=\"translate(0 %u)\">\n", SVG_HEIGHT);
    plot = learners_plot(input, &points);
    plot_svg(out, &plot, SVG_WIDTH, SVG_HEIGHT);
    text_add(out, "</g>\n</svg>\n");
}

rp_status profile_write(const struct plan_input *input, const char *folder, rp_error *err)
{
    char *json = plan_to_json(NULL, input);
    if (!json)
        return err_set(err, RP_NO_MEMORY, "no memory to write what was measured");
    rp_status status = run_folder_write(folder, "profile.json", json, err);
    free(json);
    struct text svg = {0};
    draw(input, &svg);
    if (status == RP_OK)
        status = run_folder_write(folder, "profile.svg", text_get(&svg), err);
    text_fini(&svg);
    return status;
}
