#include "agent/launch/series.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/status.h"
#include "proto/base/json.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define LINE_MOST 65536
#define LINES_MOST (1u << 20) /* of a file: those that processes of a run write are thinned with age */
#define MOST_LEARNERS 64
#define LEAST 1e-3 /* weight of a line; two lines may have the same time */

void series_fini(struct series *self)
{
    free(self->columns[0]);
    *self = (struct series){0};
}

double series_last(const struct series *self, uint32_t column)
{
    for (uint32_t i = self->n; i-- > 0 && column < self->width;)
        if (!isnan(self->columns[column][i]))
            return self->columns[column][i];
    return NAN;
}

/* Makes each point of as many rows, which are a weight and the values of a line each, as leaves at most SERIES_POINTS. */
static void average(struct series *self, const double *rows, uint32_t n)
{
    uint32_t each = (n + SERIES_POINTS - 1) / SERIES_POINTS, size = self->width + 1;
    for (uint32_t first = 0; first < n; first += each, self->n++) {
        uint32_t end = n - first < each ? n : first + each;
        for (uint32_t i = first; i < end; i++)
            self->weights[self->n] += rows[i * size];
        for (uint32_t c = 0; c < self->width; c++) {
            double sum = 0, share = 0;
            for (uint32_t i = first; i < end; i++) {
                const double *row = rows + i * size;
                sum += isfinite(row[c + 1]) ? row[0] * row[c + 1] : 0;
                share += isfinite(row[c + 1]) ? row[0] : 0;
            }
            self->columns[c][self->n] = share > 0 ? sum / share : NAN;
        }
    }
}

void series_read(struct series *self, const struct series_source *source)
{
    double *block = need_alloc((source->width + 1) * SERIES_POINTS * sizeof *block), *rows = NULL, before = NAN;
    uint32_t n = 0, capacity = 0, size = source->width + 1;
    *self = (struct series){.width = source->width, .weights = block + source->width * SERIES_POINTS};
    for (uint32_t c = 0; c < self->width; c++)
        self->columns[c] = block + c * SERIES_POINTS;
    FILE *file = source->path ? fopen(source->path, "re") : NULL;
    char *text = need_alloc(LINE_MOST);
    for (bool whole = true;
         file && n < LINES_MOST && fgets(text, LINE_MOST, file);) { /* whole: the next begins a line */
        bool first = whole;
        whole = strchr(text, '\n') != NULL;
        struct json_object *line = first && whole ? json_tokener_parse(text) : NULL;
        rows = need_room(rows, n, &capacity, size * sizeof *rows);
        double *row = rows + n * size, *values = row + 1;
        for (uint32_t c = 0; c < self->width; c++)
            values[c] = json_object_is_type(line, json_type_object) ? json_map_number(line, source->names[c]) : NAN;
        if (isfinite(values[0])) {
            row[0] = source->by_time ? fmax(values[0] - before, LEAST) : 1;
            before = values[0];
            if (source->line)
                source->line(source->ctx, line, values);
            n++;
        }
        json_object_put(line);
    }
    average(self, rows, n);
    free(rows);
    free(text);
    if (file)
        fclose(file);
}

/* ---- the files of a run ---- */

static const char *const history_names[HISTORY_COLUMNS] = {
    "unix_s",       "elapsed_s", "steps",      "learner_steps", "value", "actor_value", "inserts_rate",
    "samples_rate", "spi",       "actor_idle", "learner_idle",  "cpu",   "memory",      "steps_rate"};

/* While processes end one after the other, rates and memory fall; that says nothing about the run. */
static void drop_the_end(void *ctx, struct json_object *line, double *values)
{
    (void)ctx;
    if (phase_find(json_map_text(line, "phase")) >= PHASE_STOPPING)
        for (uint32_t c = HISTORY_INSERTS; c < HISTORY_COLUMNS; c++)
            values[c] = NAN;
}

void series_read_history(struct series *self, const char *folder)
{
    char path[FOLDER_SIZE + 32];
    run_folder_path(path, sizeof path, folder, FOLDER_METRICS);
    series_read(
        self,
        &(struct series_source){
            .path = path, .names = history_names, .width = HISTORY_COLUMNS, .by_time = true, .line = drop_the_end});
}

/* Leaves out columns without a value. */
static void put_columns(struct json *out, const struct series *self, const char *const *names)
{
    json_open(out, '{');
    for (uint32_t c = 0; c < self->width; c++) {
        if (isnan(series_last(self, c)))
            continue;
        json_begin(out, names[c], '[');
        for (uint32_t i = 0; i < self->n; i++)
            json_number(out, self->columns[c][i]);
        json_close(out, ']');
    }
    json_close(out, '}');
}

void series_put_history(struct json *out, const char *folder)
{
    struct series series;
    series_read_history(&series, folder);
    put_columns(out, &series, history_names);
    series_fini(&series);
}

/* Seconds since 1970 at which the run began, from the first line of its history; NAN: nothing was written yet. */
static double began_at(const char *folder)
{
    char path[FOLDER_SIZE + 32], *text = NULL;
    size_t size = 0;
    FILE *file = fopen(run_folder_path(path, sizeof path, folder, FOLDER_METRICS), "re");
    bool read = file && getline(&text, &size, file) > 0;
    struct json_object *line = read ? json_tokener_parse(text) : NULL;
    double began = line ? json_map_number(line, "unix_s") - json_map_number(line, "elapsed_s") : NAN;
    json_object_put(line);
    free(text);
    if (file)
        fclose(file);
    return began;
}

/* Columns by time, environment steps and learner steps; the times become seconds since the run began. */
static void put_curves(struct json *out, const char *member, const struct series_source *source,
                       const char *const *names, double began)
{
    struct series series;
    series_read(&series, source);
    for (uint32_t i = 0; i < series.n; i++)
        series.columns[0][i] -= began;
    json_key(out, member);
    put_columns(out, &series, names);
    series_fini(&series);
}

#define BY "time", "environment_steps", "learner_steps"
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Processes of a kind report the same, or nearly: the first one with a file is enough. */
static void put_process(struct json *out, const char *member, const char *folder, const char *kind,
                        const char *const *names, uint32_t width, double began)
{
    char path[FOLDER_SIZE + 64];
    for (int i = 0; i == 0 || (i < MOST_LEARNERS && access(path, R_OK) != 0); i++)
        snprintf(path, sizeof path, "%s/%s-%d.jsonl", folder, kind, i);
    put_curves(out, member, &(struct series_source){.path = path, .names = names, .width = width}, names, began);
}

void series_put_curves(struct json *out, const char *folder)
{
    static const char *const evaluated[] = {BY, "return"};
    static const char *const of_actors[] = {"unix_s", "steps", "learner_steps", "actor_value"};
    static const char *const learning[] = {BY,  "loss",    "policy_loss", "value_loss",
                                           "q", "entropy", "accuracy",    "gradient_norm"};
    static const char *const acting[] = {BY, "return", "episode_length", "epsilon"};
    char path[FOLDER_SIZE + 32];
    double began = began_at(folder);
    run_folder_path(path, sizeof path, folder, "evaluator-0.jsonl");
    struct stat file;
    bool is_evaluated = stat(path, &file) == 0 && file.st_size > 0;
    if (!is_evaluated)
        run_folder_path(path, sizeof path, folder, FOLDER_METRICS);
    json_flag(out, "evaluated", is_evaluated);
    put_curves(
        out, "curve",
        &(struct series_source){.path = path, .names = is_evaluated ? evaluated : of_actors, .width = COUNT(evaluated)},
        evaluated, began);
    put_process(out, "learning", folder, "learner", learning, COUNT(learning), began);
    put_process(out, "acting", folder, "actor", acting, COUNT(acting), began);
}
