/* Observations of plug-ins: memory with a guard, and a check of what was written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env/env.h"
#include "proto/base/error.h"

/* Only the first bytes of the guard are checked. */
#define GUARD_BYTES (1u << 20)
#define GUARD_SEEN 64u
#define GUARD_FILL 0xa5

void *env_observation_new(const struct env *self)
{
    size_t bytes = env_observation_bytes(&self->spec);
    char *observation = calloc(1, bytes + (self->library ? GUARD_BYTES : 0));
    if (observation && self->library)
        memset(observation + bytes, GUARD_FILL, GUARD_SEEN);
    return observation;
}

rp_status env_observation_check(const struct env *self, const void *observation, rp_error *err)
{
    const rp_env_spec *spec = &self->spec;
    if (!self->library)
        return RP_OK;
    size_t bytes = env_observation_bytes(spec);
    const unsigned char *guard = (const unsigned char *)observation + bytes;
    for (uint32_t i = 0; i < GUARD_SEEN; i++)
        if (guard[i] != GUARD_FILL)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s' writes more than the %zu bytes of an observation that its spec states",
                           self->ops->name, bytes);
    const float *numbers = observation;
    for (size_t i = 0; spec->observation_dtype == RP_DTYPE_FLOAT32 && i < bytes / sizeof *numbers; i++)
        if (!isfinite(numbers[i]))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s': number %zu of the observation after step %lu of the episode is %g",
                           self->ops->name, i, (unsigned long)self->steps, (double)numbers[i]);
    return RP_OK;
}
