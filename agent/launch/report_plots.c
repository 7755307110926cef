/* The charts of a report. */
#include <math.h>

#include "agent/launch/report_impl.h"

/* A dashed level over the whole width of a line. */
struct level {
    double x[2], y[2];
};

static void add_series(struct plot *plot, const char *name, const struct report_data *data, enum report_column column)
{
    plot->lines[plot->n_lines++] =
        (struct plot_line){.name = name, .x = data->columns[COLUMN_TIME], .y = data->columns[column], .n = data->n};
}

static void add_level(struct plot *plot, struct level *level, const char *name, double value)
{
    const struct plot_line *line = &plot->lines[0];
    double left = INFINITY, right = -INFINITY;
    for (uint32_t i = 0; i < line->n; i++) {
        left = isfinite(line->x[i]) ? fmin(left, line->x[i]) : left;
        right = isfinite(line->x[i]) ? fmax(right, line->x[i]) : right;
    }
    if (!isfinite(value) || !(left < right))
        return;
    *level = (struct level){{left, right}, {value, value}};
    plot->lines[plot->n_lines++] =
        (struct plot_line){.name = name, .x = level->x, .y = level->y, .n = 2, .dashed = true};
}

static void plot_rate(struct plot *plot, const struct report_data *data, enum report_column column, double predicted,
                      struct level *level)
{
    bool inserts = column == COLUMN_INSERTS;
    plot->title = inserts ? "Inserts per second" : "Samples per second";
    plot->x_label = "seconds";
    plot->from_zero = true;
    add_series(plot, "achieved", data, column);
    add_level(plot, level, "predicted", predicted);
}

static void plot_idle(struct plot *plot, const struct report *self, const struct report_data *data,
                      struct level levels[2])
{
    plot->title = "Idle share";
    plot->x_label = "seconds";
    plot->y_label = "percent of the time";
    plot->from_zero = true;
    add_series(plot, "actors", data, COLUMN_ACTOR_IDLE);
    if (self->plan)
        add_level(plot, &levels[0], "predicted", 100 * self->plan->chosen.actor_idle);
    add_series(plot, "learners", data, COLUMN_LEARNER_IDLE);
    if (self->plan)
        add_level(plot, &levels[1], "predicted", 100 * self->plan->chosen.learner_idle);
}

static void plot_return(struct plot *plot, const struct status *last, struct level *level)
{
    bool some = last->values && last->value_steps;
    plot->title = "Return";
    plot->x_label = "environment steps";
    plot->y_label = "mean return of an evaluation";
    plot->lines[plot->n_lines++] = (struct plot_line){.name = "evaluations",
                                                      .x = last->value_steps,
                                                      .y = last->values,
                                                      .n = some ? last->n_values : 0,
                                                      .points = some && last->n_values <= 60};
    add_level(plot, level, "target", last->stop_value);
}

void report_plot(struct text *out, const struct report *self, const struct report_data *data, enum report_plot which,
                 uint32_t width, uint32_t height)
{
    const struct status *last = self->last;
    struct plot plot = {0};
    struct level levels[2];
    switch (which) {
    case PLOT_RETURN:
        plot_return(&plot, last, levels);
        break;
    case PLOT_INSERTS:
        plot_rate(&plot, data, COLUMN_INSERTS, self->plan ? self->plan->chosen.inserts : NAN, levels);
        break;
    case PLOT_SAMPLES:
        plot_rate(&plot, data, COLUMN_SAMPLES, self->plan ? self->plan->chosen.samples : NAN, levels);
        break;
    case PLOT_SPI:
        plot = (struct plot){.title = "Samples per insert", .x_label = "seconds", .from_zero = true};
        add_series(&plot, "achieved", data, COLUMN_SPI);
        add_level(&plot, levels, "target", last->spi_target > 0 ? last->spi_target : NAN);
        break;
    case PLOT_IDLE:
        plot_idle(&plot, self, data, levels);
        break;
    case PLOT_MEMORY:
    case REPORT_PLOTS:
        plot = (struct plot){.title = "Memory of all processes", .x_label = "seconds", .y_label = "MiB"};
        plot.from_zero = true;
        add_series(&plot, "memory", data, COLUMN_MEMORY);
        break;
    }
    plot_svg(out, &plot, width, height);
}

void report_plot_rates(struct text *out, const struct report *self, const struct report_data *data)
{
    text_add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"600\" viewBox=\"0 0 900 600\">\n");
    report_plot(out, self, data, PLOT_INSERTS, 900, 295);
    text_add(out, "<g transform=\"translate(0 305)\">\n");
    report_plot(out, self, data, PLOT_SAMPLES, 900, 295);
    text_add(out, "</g></svg>\n");
}
