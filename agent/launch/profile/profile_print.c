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

/* ---- plots ---- */

/* The numbers of a curve; a plot borrows them. */
struct points {
    double x[PLAN_MAX_POINTS], y[PLAN_MAX_POINTS];
};

static struct plot plot_of(const struct plan_curve *curve, struct points *points, const char *title,
                           const char *x_label, const char *y_label)
{
    for (uint32_t i = 0; i < curve->n; i++) {
        points->x[i] = curve->points[i].count;
        points->y[i] = curve->points[i].rate;
    }
    struct plot plot = {.title = title, .x_label = x_label, .y_label = y_label, .n_lines = 1, .from_zero = true};
    plot.lines[0] = (struct plot_line){.name = y_label, .x = points->x, .y = points->y, .n = curve->n, .points = true};
    return plot;
}

static struct plot actors_plot(const struct plan_input *input, struct points *points)
{
    return plot_of(&input->actors, points, "actors alone, without a limiter", "actors", "inserts/s");
}

static struct plot learners_plot(const struct plan_input *input, struct points *points)
{
    return plot_of(&input->learners, points, "learners alone, on a filled table", "learners", "samples/s");
}

/* A single point is not drawn. */
static void print_plot(const struct plot *plot, const struct profile_style *style, FILE *out)
{
    struct text text = {0};
    if (plot->lines[0].n < 2)
        return;
    uint32_t columns = style->columns;
    columns = columns == 0 || columns > PLOT_MOST_COLUMNS ? PLOT_MOST_COLUMNS : columns;
    columns = columns < PLOT_LEAST_COLUMNS ? PLOT_LEAST_COLUMNS : columns;
    plot_text(&text, plot, columns, PLOT_ROWS, style->utf8);
    fputs(text_get(&text), out);
    fputc('\n', out);
    text_fini(&text);
}

void profile_print(const struct plan_input *input, const struct profile_style *style, FILE *out)
{
    static const char *const actors[] = {">actors", ">inserts", ">each", ">cores", ">broker cores", ">memory each"};
    static const char *const learners[] = {">learners", ">samples", ">each", ">cores", ">broker cores", ">memory each"};
    struct points points;
    format_buffer memory, broker;
    fprintf(out, "Actors alone, without a limiter:\n");
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
