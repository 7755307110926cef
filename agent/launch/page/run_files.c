/* What the folder of a run holds: its state, its history, its logs; and the other runs. */
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/page/run_page_impl.h"
#include "agent/launch/process/process.h"
#include "agent/launch/report/runs.h"
#include "proto/base/json.h"

#define POINTS_MOST 4096u
#define LINE_MOST 65536
#define LINES_MOST 400u

/* ---- points of a file of JSON lines ---- */

#define COLUMNS_MOST 16u

/* Columns of a file as points. When there are too many, every second is dropped, and only every second line is read from then
 * on. */
struct points {
    const char *const *names;
    uint32_t width, n, stride;
    uint64_t most; /* lines to read; 0: all */
    double (*list)[COLUMNS_MOST];
};

static double number_of(struct json_object *line, const char *name)
{
    struct json_object *value = NULL;
    bool is = json_object_object_get_ex(line, name, &value) &&
              (json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int));
    return is ? json_object_get_double(value) : NAN;
}

static void add_point(struct points *self, const char *text)
{
    struct json_object *line = json_tokener_parse(text);
    if (json_object_is_type(line, json_type_object)) {
        for (uint32_t i = 0; i < self->width; i++)
            self->list[self->n][i] = number_of(line, self->names[i]);
        self->n++;
    }
    json_object_put(line);
    if (self->n < POINTS_MOST)
        return;
    for (uint32_t i = 0; i < POINTS_MOST / 2; i++)
        memcpy(self->list[i], self->list[2 * i], sizeof self->list[i]);
    self->n = POINTS_MOST / 2;
    self->stride *= 2;
}

/* False: no memory. A file that does not exist has no points. */
static bool read_points(struct points *self, const char *path)
{
    char *line = malloc(LINE_MOST);
    self->stride = 1;
    self->list = malloc(POINTS_MOST * sizeof *self->list);
    FILE *file = fopen(path, "re");
    for (uint64_t i = 0; file && line && self->list && (!self->most || i < self->most) && fgets(line, LINE_MOST, file);
         i++)
        if (i % self->stride == 0)
            add_point(self, line);
    if (file)
        fclose(file);
    free(line);
    return line && self->list;
}

static void put_column(struct json *out, const char *name, const struct points *points, uint32_t column, double less)
{
    json_key(out, name);
    json_open(out, '[');
    for (uint32_t i = 0; i < points->n; i++)
        json_number(out, points->list[i][column] - less);
    json_close(out, ']');
}

static void finish(struct json *out, struct http_reply *reply)
{
    char *text = json_take(out);
    if (text)
        text_add(&reply->text, "%s\n", text);
    else
        http_fail(reply, 503, "no memory");
    free(text);
}

/* ---- state and history ---- */

/* Finds the run that a request names (run=NAME, below the folder of all runs), or the page's own. False: there is none. */
static bool find_run(const struct run_page *self, const struct http_request *request, char out[FOLDER_SIZE])
{
    const char *name = http_query(request, "run");
    if (!name || !name[0]) {
        snprintf(out, FOLDER_SIZE, "%s", self->place.folder);
        return out[0] != '\0';
    }
    struct run_summary run;
    if (strchr(name, '/') || name[0] == '.' || !self->runs[0] ||
        (size_t)snprintf(out, FOLDER_SIZE, "%s/%s", self->runs, name) >= FOLDER_SIZE)
        return false;
    return runs_read(out, &run);
}

void run_get_state(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct run_page *self = ctx;
    const char *other = http_query(request, "run");
    struct page_place place = {0};
    if (!other || !other[0]) {
        page_get_state(self->page, request, reply);
        return;
    }
    if (!find_run(self, request, place.folder)) {
        http_fail(reply, 404, "there is no such run");
        return;
    }
    const struct page_host host = {.ctx = &place, .look = page_place_look_folder};
    char *state = page_make_state(&host);
    if (state)
        text_add(&reply->text, "%s, \"can\": {\"change\": false, \"stop\": \"\", \"runs\": true}}\n", state);
    else
        http_fail(reply, 503, "no memory");
    free(state);
}

void run_get_history(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    static const char *const names[] = {"unix_s",       "steps", "value", "actor_idle", "learner_idle", "inserts_rate",
                                        "samples_rate", "spi",   "cpu",   "memory",     "steps_rate"};
    struct points points = {.names = names, .width = sizeof names / sizeof names[0]};
    char folder[FOLDER_SIZE], path[FOLDER_SIZE + 32];
    if (!find_run(ctx, request, folder)) {
        http_fail(reply, 404, "there is no run here");
        return;
    }
    struct json out = {0};
    bool ok = read_points(&points, run_folder_path(path, sizeof path, folder, FOLDER_METRICS));
    json_open(&out, '{');
    json_key(&out, "points");
    json_open(&out, '[');
    for (uint32_t i = 0; ok && i < points.n; i++) {
        json_open(&out, '{');
        for (uint32_t k = 0; k < points.width; k++)
            json_real(&out, names[k], points.list[i][k]);
        json_close(&out, '}');
    }
    json_close(&out, ']');
    json_close(&out, '}');
    free(points.list);
    finish(&out, reply);
}

/* ---- logs ---- */

void run_get_log(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_page *self = ctx;
    const char *name = http_query(request, "process"), *lines = http_query(request, "lines");
    struct process process = {0};
    char text[65536], folder[FOLDER_SIZE];
    if (!find_run(self, request, folder) || !name || !name[0] || strchr(name, '/') || name[0] == '.' ||
        strlen(name) > 63) {
        http_fail(reply, 404, "there is no such log");
        return;
    }
    unsigned long wanted = lines ? strtoul(lines, NULL, 10) : 40;
    if ((size_t)snprintf(process.log, sizeof process.log, "%s/logs/%s.log", folder, name) >= sizeof process.log) {
        http_fail(reply, 404, "there is no such log");
        return;
    }
    process_tail(&process, text, sizeof text, (uint32_t)(wanted > 0 && wanted < LINES_MOST ? wanted : LINES_MOST));
    struct json out = {0};
    json_open(&out, '{');
    json_text(&out, "process", name);
    json_text(&out, "text", text);
    json_close(&out, '}');
    finish(&out, reply);
}

/* ---- runs ---- */

static void put_run(struct json *out, const struct run_summary *run)
{
    json_text(out, "name", run->name);
    json_text(out, "phase", run->result);
    json_real(out, "value", run->final_value);
    json_real(out, "best", run->best);
    json_count(out, "steps", run->steps);
    json_count(out, "learner_steps", run->learner_steps);
    json_real(out, "elapsed_s", run->seconds);
    json_count(out, "actors_wanted", run->actors);
    json_count(out, "learners_wanted", run->learners);
    json_real(out, "inserts_rate", run->inserts);
    json_real(out, "samples_rate", run->samples);
    json_count(out, "bytes", run->bytes);
}

void run_get_runs(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_page *self = ctx;
    struct json out = {0};
    uint32_t n = 0;
    (void)request;
    struct run_summary *list = self->runs[0] ? runs_list(self->runs, &n) : NULL;
    json_open(&out, '{');
    json_key(&out, "runs");
    json_open(&out, '[');
    for (uint32_t i = 0; list && i < n; i++) {
        json_open(&out, '{');
        put_run(&out, &list[i]);
        json_close(&out, '}');
    }
    json_close(&out, ']');
    json_close(&out, '}');
    free(list);
    finish(&out, reply);
}

/* When the run began, in seconds since 1970; NAN: nothing was written yet. */
static double began_at(const char *folder)
{
    static const char *const names[] = {"unix_s", "elapsed_s"};
    struct points points = {.names = names, .width = 2, .most = 1};
    char path[FOLDER_SIZE + 32];
    bool some = read_points(&points, run_folder_path(path, sizeof path, folder, FOLDER_METRICS)) && points.n > 0;
    double began = some ? points.list[0][0] - points.list[0][1] : NAN;
    free(points.list);
    return began;
}

/* One run with its evaluations, to be compared. */
void run_get_run(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    static const char *const names[] = {"time", "environment_steps", "return"};
    struct points points = {.names = names, .width = 3};
    char folder[FOLDER_SIZE], path[FOLDER_SIZE + 32];
    struct run_summary run;
    if (!find_run(ctx, request, folder) || !runs_read(folder, &run)) {
        http_fail(reply, 404, "there is no such run");
        return;
    }
    struct json out = {0};
    json_open(&out, '{');
    put_run(&out, &run);
    if (read_points(&points, run_folder_path(path, sizeof path, folder, "evaluator-0.jsonl"))) {
        put_column(&out, "seconds", &points, 0, began_at(folder));
        put_column(&out, "steps_of_values", &points, 1, 0);
        put_column(&out, "values", &points, 2, 0);
    }
    json_close(&out, '}');
    free(points.list);
    finish(&out, reply);
}
