/* The charts of a report. */
#include <math.h>

#include "agent/launch/report/report_impl.h"

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

void report_plot(struct text *out, const struct report *self, const struct report_data *data, enum report_plot which,
                 uint32_t width, uint32_t height)
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

void report_plot_pair(struct text *out, const struct report *self, const struct report_data *data,
                      enum report_plot upper, enum report_plot lower)
{
    text_add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"600\" viewBox=\"0 0 900 600\">\n");
    report_plot(out, self, data, upper, 900, 295);
    text_add(out, "<g transform=\"translate(0 305)\">\n");
    report_plot(out, self, data, lower, 900, 295);
    text_add(out, "</g></svg>\n");
}
