/* What the built-in environments share: their options, their memory, and the end of a step. */
#ifndef AGENT_ENV_CLASSIC_H
#define AGENT_ENV_CLASSIC_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/rng.h"
#include "replay/env.h"

/* For the create functions of environments. Refuses options that are not in the NULL-terminated list, with "did you mean". */
rp_status env_known_options(const char *env, const rp_option *options, uint32_t n_options, const char *const *known,
                            rp_error *err);
/* An option that is a number within bounds; *out keeps its default if the option is absent. */
struct env_real {
    const char *name;
    double min, max;
    double *out;
};
rp_status env_option_real(const rp_option *options, uint32_t n_options, const struct env_real *real, rp_error *err);

/* Zeroed memory for an environment (free releases it), or NULL with err set: an option that is not in the
 * NULL-terminated list. */
void *classic_new(const char *name, size_t size, const rp_option *options, uint32_t n_options, const char *const *known,
                  rp_error *err);

/* Checks for set_state: the number of values, all finite; for cells of a grid also whole and within [0, n). */
bool classic_finite(const double *state, uint32_t n, uint32_t expected);
static inline bool classic_cell(double value, uint32_t n)
{
    return value >= 0 && value < n && value == floor(value);
}

static inline double classic_uniform(struct rng *rng, double low, double high)
{
    return low + rng_unit(rng) * (high - low);
}

static inline double classic_clip(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* Ends a step: counts it, and keeps the two ways to end an episode apart. */
static inline void classic_result(rp_env_result *result, double reward, bool terminal, uint32_t *steps,
                                  uint32_t max_steps)
{
    ++*steps;
    result->reward = (float)reward;
    result->terminal = terminal;
    result->truncated = !terminal && max_steps > 0 && *steps >= max_steps;
}

#endif
