/* Compares runs side by side. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/observe/status.h"
#include "agent/launch/report/report_impl.h"
#include "agent/launch/report/runs.h"
#include "proto/base/error.h"

#define MOST_LEVELS 16
#define MOST_DIFFERENCES 60u

/* ---- configurations ---- */

struct level {
    size_t indent;
    char key[64];
    int items; /* in a list: how many elements have begun */
};

static void add_path(struct text *out, const struct level *levels, int n)
{
    for (int i = 0; i < n; i++) {
        text_add(out, "%s%s", i > 0 ? "." : "", levels[i].key);
        if (levels[i].items > 0)
            text_add(out, "[%d]", levels[i].items - 1);
    }
}

/* One line of YAML as the launcher prints it: "key: value", "key:", "- key: value". */
static void flatten_line(struct text *out, struct level *levels, int *n, const char *line, size_t size)
{
    size_t indent = strspn(line, " ");
    if (indent >= size || line[indent] == '#')
        return;
    bool item = size - indent > 2 && line[indent] == '-' && line[indent + 1] == ' ';
    while (*n > 0 && levels[*n - 1].indent >= indent + (item ? 1 : 0))
        (*n)--;
    if (item) {
        if (*n > 0)
            levels[*n - 1].items++;
        indent += 2 + strspn(line + indent + 2, " ");
    }
    const char *key = line + indent, *colon = memchr(key, ':', size - indent);
    if (!colon || *n == MOST_LEVELS)
        return;
    levels[*n] = (struct level){.indent = indent};
    snprintf(levels[*n].key, sizeof levels[*n].key, "%.*s", (int)(colon - key), key);
    (*n)++;
    const char *value = colon + 1 + strspn(colon + 1, " ");
    if (value >= line + size)
        return;
    add_path(out, levels, *n);
    text_add(out, ": %.*s\n", (int)(line + size - value), value);
}

char *runs_flatten_config(const char *text)
{
    struct level levels[MOST_LEVELS];
    struct text out = {0};
    int n = 0;
    for (const char *line = text ? text : ""; *line;) {
        size_t size = strcspn(line, "\n");
        flatten_line(&out, levels, &n, line, size);
        line += size + (line[size] == '\n');
    }
    char *flat = strdup(text_get(&out));
    text_fini(&out);
    return flat;
}

/* The value of a key, or "-". */
static void value_of(const char *flat, const char *key, size_t length, char *out, size_t size)
{
    snprintf(out, size, "-");
    for (const char *line = flat ? flat : ""; *line; line += strcspn(line, "\n") + 1)
        if (strncmp(line, key, length) == 0 && line[length] == ':') {
            size_t bytes = strcspn(line + length + 2, "\n");
            snprintf(out, size, "%.*s", (int)bytes, line + length + 2);
            return;
        }
}

static bool seen_before(char *const *flat, uint32_t upto, const char *key, size_t length)
{
    char value[8];
    for (uint32_t i = 0; i < upto; i++) {
        value_of(flat[i], key, length, value, sizeof value);
        if (strcmp(value, "-") != 0)
            return true;
    }
    return false;
}

/* Adds a row for a key whose values differ. Returns true if there was one. */
static bool add_difference(struct grid *grid, char *const *flat, uint32_t n, const char *key, size_t length)
{
    char values[RUNS_MOST_COMPARED][80];
    bool differs = false;
    for (uint32_t i = 0; i < n; i++) {
        value_of(flat[i], key, length, values[i], sizeof values[i]);
        differs |= strcmp(values[i], values[0]) != 0;
    }
    if (!differs)
        return false;
    grid_addf(grid, "  %.*s", (int)length, key);
    for (uint32_t i = 0; i < n; i++)
        grid_add(grid, values[i]);
    return true;
}

static void add_differences(struct grid *grid, const struct run_summary *runs, uint32_t n)
{
    char *flat[RUNS_MOST_COMPARED] = {0};
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        char *text = run_folder_read(runs[i].folder, FOLDER_CONFIG);
        flat[i] = runs_flatten_config(text);
        free(text);
    }
    for (uint32_t i = 0; i < n; i++)
        for (const char *line = flat[i] ? flat[i] : ""; *line && rows < MOST_DIFFERENCES;
             line += strcspn(line, "\n") + 1) {
            size_t length = strcspn(line, ":");
            if (!seen_before(flat, i, line, length))
                rows += add_difference(grid, flat, n, line, length);
        }
    for (uint32_t i = 0; i < n; i++)
        free(flat[i]);
}

/* ---- the table ---- */

enum row {
    ROW_RESULT,
    ROW_RETURN,
    ROW_BEST,
    ROW_STEPS,
    ROW_UPDATES,
    ROW_TIME,
    ROW_INSERTS,
    ROW_SAMPLES,
    ROW_SIZE,
    ROWS
};
static const char *const row_names[ROWS] = {
    [ROW_RESULT] = "result",     [ROW_RETURN] = "final return", [ROW_BEST] = "best evaluation",
    [ROW_STEPS] = "steps",       [ROW_UPDATES] = "updates",     [ROW_TIME] = "wall time",
    [ROW_INSERTS] = "inserts/s", [ROW_SAMPLES] = "samples/s",   [ROW_SIZE] = "actors + learners",
};

static const char *cell_of(const struct run_summary *run, enum row row, char *out)
{
    const struct report_row plain = {0};
    switch (row) {
    case ROW_RESULT:
        return run->result;
    case ROW_RETURN:
        return report_value(run->final_value, out);
    case ROW_BEST:
        return report_value(run->best, out);
    case ROW_STEPS:
        return format_count(out, run->steps);
    case ROW_UPDATES:
        return format_count(out, run->learner_steps);
    case ROW_TIME:
        return format_seconds(out, run->seconds);
    case ROW_INSERTS:
        return report_cell(&plain, run->inserts, out);
    case ROW_SAMPLES:
        return report_cell(&plain, run->samples, out);
    case ROW_SIZE:
    case ROWS:
        break;
    }
    snprintf(out, FORMAT_SIZE, "%u + %u", run->actors, run->learners);
    return out;
}

void runs_print_compared(const struct run_summary *runs, uint32_t n, FILE *out)
{
    const char *titles[RUNS_MOST_COMPARED + 1] = {""};
    char names[RUNS_MOST_COMPARED][160];
    struct grid grid;
    n = n < RUNS_MOST_COMPARED ? n : RUNS_MOST_COMPARED;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], ">%s", runs[i].name);
        titles[i + 1] = names[i];
    }
    grid_init(&grid, titles, n + 1);
    for (uint32_t row = 0; row < ROWS; row++) {
        format_buffer cell;
        grid_addf(&grid, "  %s", row_names[row]);
        for (uint32_t i = 0; i < n; i++)
            grid_add(&grid, cell_of(&runs[i], (enum row)row, cell));
    }
    add_differences(&grid, runs, n);
    grid_print(&grid, out);
    grid_fini(&grid);
}

/* ---- the chart ---- */

/* Evaluations; without any, the returns of the actors. */
struct curve {
    struct status_copy copy;
    bool copied;
    struct report_data data;
};

static void curve_read(struct curve *self, const struct run_summary *run, struct plot_line *line)
{
    char metrics[FOLDER_SIZE + 32];
    char *text = run_folder_read(run->folder, FOLDER_STATUS);
    self->copied = text && status_from_json(text, &self->copy);
    free(text);
    report_data_read(&self->data, run_folder_path(metrics, sizeof metrics, run->folder, FOLDER_METRICS), run->folder);
    *line = (struct plot_line){.name = run->name};
    if (self->copied && self->copy.status.n_values > 0) {
        line->x = self->copy.status.value_steps;
        line->y = self->copy.status.values;
        line->n = self->copy.status.n_values;
    } else if (self->data.run.width > 0) {
        line->x = self->data.run.columns[COLUMN_STEPS];
        line->y = self->data.run.columns[COLUMN_ACTOR_VALUE];
        line->n = self->data.run.n;
    }
    line->points = line->n <= 60;
}

rp_status runs_write_svg(const struct run_summary *runs, uint32_t n, const char *path, rp_error *err)
{
    struct plot plot = {.title = "Return", .x_label = "environment steps", .y_label = "mean return"};
    struct text text = {0};
    n = n < RUNS_MOST_COMPARED ? n : RUNS_MOST_COMPARED;
    struct curve *curves = calloc(n ? n : 1, sizeof *curves);
    if (!curves)
        return err_set(err, RP_NO_MEMORY, "no memory for a chart of %u runs", n);
    for (uint32_t i = 0; i < n; i++)
        curve_read(&curves[i], &runs[i], &plot.lines[plot.n_lines++]);
    plot_svg(&text, &plot, 900, 420);
    FILE *out = fopen(path, "we");
    bool ok = out && fputs(text_get(&text), out) >= 0;
    if (out && fclose(out) != 0)
        ok = false;
    for (uint32_t i = 0; i < n; i++) {
        if (curves[i].copied)
            status_copy_fini(&curves[i].copy);
        report_data_fini(&curves[i].data);
    }
    free(curves);
    text_fini(&text);
    return ok ? RP_OK : err_set(err, RP_IO, "'%s' cannot be written", path);
}
