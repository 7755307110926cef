#include "agent/env/classic.h"

#include <stdio.h>
#include <stdlib.h>
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

static rp_status refuse(const char *env, const char *name, const char *const *known, uint32_t n, rp_error *err)
{
    char list[256] = "";
    for (uint32_t i = 0, used = 0; i < n && used < sizeof list; i++)
        used += (uint32_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", known[i]);
    const char *near = schema_nearest(name, known, n);
    if (near)
        return err_set(err, RP_INVALID_ARGUMENT, "environment %s has no option '%s' (did you mean '%s'?)", env, name,
                       near);
    if (n == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "environment %s has no option '%s'; it takes none", env, name);
    return err_set(err, RP_INVALID_ARGUMENT, "environment %s has no option '%s'; it takes %s", env, name, list);
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
        if (k == n)
            return refuse(env, options[i].name, known, n, err);
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

void *classic_new(const char *name, size_t size, const rp_option *options, uint32_t n_options, const char *const *known,
                  rp_error *err)
{
    if (env_known_options(name, options, n_options, known, err) != RP_OK)
        return NULL;
    return need_alloc(size);
}

bool classic_finite(const double *state, uint32_t n, uint32_t expected)
{
    if (n != expected)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(state[i]))
            return false;
    return true;
}
