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

static rp_status no_such_option(const char *env, const char *name, const struct env_number *numbers, uint32_t n,
                                rp_error *err)
{
    const char *known[MOST_OPTIONS];
    char what[160];
    assert(n <= MOST_OPTIONS);
    for (uint32_t i = 0; i < n; i++)
        known[i] = numbers[i].name;
    snprintf(what, sizeof what, "environment %s has no option", env);
    return env_no_such(err, RP_INVALID_ARGUMENT, what, name, known, n, n > 0 ? "it takes" : "it takes none");
}

rp_status env_read_options(const char *env, const rp_option *options, uint32_t n_options,
                           const struct env_number *numbers, uint32_t n, rp_error *err)
{
    for (uint32_t i = 0; i < n_options; i++) {
        const char *text = options[i].value;
        uint32_t k = 0;
        while (k < n && strcmp(options[i].name, numbers[k].name) != 0)
            k++;
        if (k == n)
            return no_such_option(env, options[i].name, numbers, n, err);
        double value;
        if (!schema_parse_real(text, &value) || !(value >= numbers[k].min && value <= numbers[k].max) ||
            (numbers[k].whole && value != floor(value)))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment %s: option %s is '%s'; write a %s from %.15g to %.15g", env, numbers[k].name,
                           text, numbers[k].whole ? "whole number" : "number", numbers[k].min, numbers[k].max);
        *numbers[k].out = value;
    }
    return RP_OK;
}

/* ---- episodes ---- */

void *classic_new(const struct classic_task *task, size_t extra, rp_env_spec *spec)
{
    struct classic *self = need_alloc(task->size + extra);
    self->task = task;
    rng_seed(&self->rng, 0);
    *spec = task->spec;
    return self;
}

void *classic_with_pixels(void *self, const char *name, double side, rp_env_spec *spec, rp_error *err)
{
    struct classic *classic = self;
    uint32_t rows = spec->observation_shape[0], columns = spec->observation_shape[1];
    if (side > 0 && (side < rows || side < columns)) {
        err_set(err, RP_INVALID_ARGUMENT, "environment %s: option pixels is %g, less than the %u cells of its board",
                name, side, rows > columns ? rows : columns);
        classic_destroy(self);
        return NULL;
    }
    if (side > 0)
        classic->pixels = pixels_new(classic->task->greys, (uint32_t)side, spec);
    return self;
}

void *classic_create(const char *name, const struct classic_task *task, const rp_option *options, uint32_t n_options,
                     rp_env_spec *spec, rp_error *err)
{
    double pixels = 0;
    const struct env_number number = CLASSIC_PIXELS(&pixels);
    if (env_read_options(name, options, n_options, &number, task->greys ? 1 : 0, err) != RP_OK)
        return NULL;
    return classic_with_pixels(classic_new(task, 0, spec), name, pixels, spec, err);
}

void classic_destroy(void *self)
{
    free(((struct classic *)self)->pixels);
    free(self);
}

static void show(struct classic *self, bool first, void *observation)
{
    self->task->observe(self, self->pixels ? pixels_board(self->pixels) : observation);
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

/* Takes the doubles behind struct classic, which are the state. */
static bool place_numbers(struct classic *self, const double *values, uint32_t n)
{
    if (n != self->task->n_state)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return false;
    memcpy(self + 1, values, n * sizeof *values);
    return true;
}

rp_status classic_set_state(void *self, const double *values, uint32_t n, void *observation)
{
    struct classic *classic = self;
    if (!(classic->task->place ? classic->task->place(self, values, n) : place_numbers(self, values, n)))
        return RP_INVALID_ARGUMENT;
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
