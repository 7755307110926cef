#include "agent/env/classic.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/config/schema.h"

#define MOST_OPTIONS 8u

rp_status env_no_such(rp_error *err, rp_status status, const char *what, const char *name, const char *const *names,
                      uint32_t n, const char *others)
{
    const char *near = schema_nearest(name, names, n);
    if (near)
        return err_set(err, status, "%s '%s' (did you mean '%s'?)", what, name, near);
    char list[400] = "";
    for (uint32_t i = 0, used = 0; i < n && used < sizeof list; i++)
        used += (uint32_t)snprintf(list + used, sizeof list - used, "%s %s", i ? "," : "", names[i]);
    return err_set(err, status, "%s '%s'; %s%s", what, name, others, list);
}

/* ---- options ---- */

static rp_status no_such_option(const struct classic *self, const char *name, rp_error *err)
{
    const char *known[MOST_OPTIONS];
    char what[160];
    uint32_t n = self->task->n_options;
    assert(n <= MOST_OPTIONS);
    for (uint32_t i = 0; i < n; i++)
        known[i] = self->task->options[i].name;
    snprintf(what, sizeof what, "environment %s has no option", self->name);
    return env_no_such(err, RP_INVALID_ARGUMENT, what, name, known, n, n > 0 ? "it takes" : "it takes none");
}

static rp_status set_option(struct classic *self, const rp_option *given, rp_error *err)
{
    const struct classic_option *option = self->task->options, *end = option + self->task->n_options;
    double value;
    while (option < end && strcmp(given->name, option->name) != 0)
        option++;
    if (option == end)
        return no_such_option(self, given->name, err);
    if (!schema_parse_real(given->value, &value) || !(value >= option->min && value <= option->max) ||
        (option->whole && value != floor(value)))
        return err_set(err, RP_INVALID_ARGUMENT, "environment %s: option %s is '%s'; write a %s from %.15g to %.15g",
                       self->name, option->name, given->value, option->whole ? "whole number" : "number", option->min,
                       option->max);
    memcpy((char *)self + option->offset, &value, sizeof value);
    return RP_OK;
}

/* ---- pixels: the brightest plane of each cell of a board as one grey picture, scaled to a square, and the last four of these
 * stacked, as networks that look at screens expect them ---- */

#define FRAMES 4

struct pixels {
    const uint8_t *greys; /* the brightness of each plane */
    uint32_t side, rows, columns, planes;
    uint8_t *board;            /* [rows][columns][planes]: where the environment writes its planes */
    uint8_t history[][FRAMES]; /* [rows][columns]: the cell's brightness in the last frames, the newest last */
};

/* Takes the spec of a board (rows, columns, planes) and makes it that of its images, side x side x 4. side is at least rows and
 * columns. */
static struct pixels *pixels_new(const uint8_t *greys, uint32_t side, rp_env_spec *spec)
{
    uint32_t *shape = spec->observation_shape, cells = shape[0] * shape[1];
    struct pixels *self = need_alloc(sizeof *self + cells * (FRAMES + shape[2]));
    *self = (struct pixels){.greys = greys, .side = side, .rows = shape[0], .columns = shape[1], .planes = shape[2]};
    self->board = self->history[cells];
    shape[0] = shape[1] = side;
    shape[2] = FRAMES;
    return self;
}

static uint8_t brightness(const struct pixels *self, const uint8_t *planes)
{
    uint8_t most = 0;
    for (uint32_t i = 0; i < self->planes; i++)
        if (planes[i] && self->greys[i] > most)
            most = self->greys[i];
    return most;
}

static void remember(struct pixels *self, bool first)
{
    for (uint32_t i = 0; i < self->rows * self->columns; i++) {
        uint8_t *cell = self->history[i], newest = brightness(self, self->board + i * self->planes);
        memmove(cell, cell + 1, FRAMES - 1);
        cell[FRAMES - 1] = newest;
        if (first)
            memset(cell, newest, FRAMES);
    }
}

/* Pixel p of a side shows cell p * cells / side. */
static void draw_row(const struct pixels *self, uint32_t row, uint8_t *out)
{
    for (uint32_t column = 0, x = 0; column < self->columns; column++)
        for (; x * self->columns < (column + 1) * self->side; x++)
            memcpy(out + (size_t)x * FRAMES, self->history[row * self->columns + column], FRAMES);
}

/* Writes the images: the board is the newest, in the last place; all four are the board if it is the first of its episode. */
static void pixels_draw(struct pixels *self, bool first, uint8_t *images)
{
    size_t row_bytes = (size_t)self->side * FRAMES;
    remember(self, first);
    for (uint32_t row = 0, y = 0; row < self->rows; row++) {
        const uint8_t *drawn = images + y * row_bytes;
        draw_row(self, row, images + y * row_bytes);
        for (y++; y * self->rows < (row + 1) * self->side; y++)
            memcpy(images + y * row_bytes, drawn, row_bytes);
    }
}

/* ---- episodes ---- */

void *classic_new(const char *name, const struct classic_task *task)
{
    struct classic *self = need_alloc(task->size);
    self->task = task;
    self->name = name;
    rng_seed(&self->rng, 0);
    for (uint32_t i = 0; i < task->n_options; i++)
        memcpy((char *)self + task->options[i].offset, &task->options[i].initial, sizeof(double));
    return self;
}

static rp_status complete(struct classic *self, const rp_option *options, uint32_t n_options, rp_env_spec *spec,
                          rp_error *err)
{
    const struct classic_task *task = self->task;
    *spec = task->spec;
    for (uint32_t i = 0; i < n_options; i++)
        RP_TRY(set_option(self, &options[i], err));
    if (task->prepare)
        RP_TRY(task->prepare(self, spec, err));
    uint32_t rows = spec->observation_shape[0], columns = spec->observation_shape[1];
    if (self->side > 0 && (self->side < rows || self->side < columns))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment %s: option pixels is %g, less than the %u cells of its board", self->name,
                       self->side, rows > columns ? rows : columns);
    if (self->side > 0)
        self->pixels = pixels_new(task->greys, (uint32_t)self->side, spec);
    return RP_OK;
}

void *classic_complete(void *self, const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    if (complete(self, options, n_options, spec, err) == RP_OK)
        return self;
    classic_destroy(self);
    return NULL;
}

void *classic_create(const char *name, const struct classic_task *task, const rp_option *options, uint32_t n_options,
                     rp_env_spec *spec, rp_error *err)
{
    return classic_complete(classic_new(name, task), options, n_options, spec, err);
}

void classic_destroy(void *self)
{
    struct classic *classic = self;
    if (classic->task->release)
        classic->task->release(self);
    free(classic->pixels);
    free(self);
}

static void show(struct classic *self, bool first, void *observation)
{
    self->task->observe(self, self->pixels ? self->pixels->board : observation);
    if (self->pixels)
        pixels_draw(self->pixels, first, observation);
}

void classic_seed(void *self, uint64_t seed)
{
    rng_seed(&((struct classic *)self)->rng, seed);
}

void classic_reset(void *self, void *observation)
{
    struct classic *classic = self;
    classic->steps = 0;
    classic->task->start(self);
    show(classic, true, observation);
}

void classic_step(void *self, const void *action, void *observation, rp_env_result *result)
{
    struct classic *classic = self;
    uint32_t max_steps = classic->task->spec.max_steps;
    bool terminal = false;
    result->reward = (float)classic->task->move(self, action, &terminal);
    classic->steps++;
    result->terminal = terminal;
    result->truncated = !terminal && max_steps > 0 && classic->steps >= max_steps;
    show(classic, false, observation);
}

static bool is_state(const struct classic_task *task, const double *values, uint32_t n)
{
    bool good = task->n_state == 0 || n == task->n_state;
    for (uint32_t i = 0, k = 0; good && i < n; i++, k++) {
        k -= task->n_below && k == task->n_below ? task->repeat : 0;
        good = isfinite(values[i]) && (!task->n_below || classic_cell(values[i], task->below[k]));
    }
    return good;
}

rp_status classic_set_state(void *self, const double *values, uint32_t n, void *observation)
{
    struct classic *classic = self;
    const struct classic_task *task = classic->task;
    if (!is_state(task, values, n) || (task->place && !task->place(self, values, n)))
        return RP_INVALID_ARGUMENT;
    if (!task->place)
        memcpy(classic + 1, values, n * sizeof *values);
    classic->steps = 0;
    show(classic, true, observation);
    return RP_OK;
}

void classic_draw(const void *self, rp_drawing *out)
{
    const struct classic *classic = self;
    if (classic->task->draw)
        classic->task->draw(self, out);
}
