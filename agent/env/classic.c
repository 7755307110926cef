#include "agent/env/classic.h"

#include <stdio.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/config/schema.h"

static const char *env_option(const rp_option *options, uint32_t n_options, const char *name)
{
    for (uint32_t i = 0; i < n_options; i++)
        if (strcmp(options[i].name, name) == 0)
            return options[i].value;
    return NULL;
}

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

rp_status env_known_options(const char *env, const rp_option *options, uint32_t n_options, const char *const *known,
                            rp_error *err)
{
    uint32_t n = 0;
    while (known && known[n])
        n++;
    for (uint32_t i = 0; i < n_options; i++) {
        uint32_t k = 0;
        while (k < n && strcmp(options[i].name, known[k]) != 0)
            k++;
        char what[160];
        snprintf(what, sizeof what, "environment %s has no option", env);
        if (k == n)
            return env_no_such(err, RP_INVALID_ARGUMENT, what, options[i].name, known, n,
                               n > 0 ? "it takes" : "it takes none");
    }
    return RP_OK;
}

rp_status env_option_real(const rp_option *options, uint32_t n_options, const struct env_real *real, rp_error *err)
{
    const char *text = env_option(options, n_options, real->name);
    double value;
    if (!text)
        return RP_OK;
    if (!schema_parse_real(text, &value) || !(value >= real->min && value <= real->max))
        return err_set(err, RP_INVALID_ARGUMENT, "option %s is '%s'; write a number from %g to %g", real->name, text,
                       real->min, real->max);
    *real->out = value;
    return RP_OK;
}

/* ---- episodes ---- */

void *classic_new(const char *name, const struct classic_task *task, size_t extra, const rp_option *options,
                  uint32_t n_options, const char *const *known, rp_env_spec *spec, rp_error *err)
{
    if (env_known_options(name, options, n_options, known, err) != RP_OK)
        return NULL;
    struct classic *self = need_alloc(task->size + extra);
    self->task = task;
    rng_seed(&self->rng, 0);
    *spec = task->spec;
    return self;
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
    classic->task->observe(self, observation);
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
    classic->task->observe(self, observation);
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
    classic->task->observe(self, observation);
    return RP_OK;
}
