/* Sizes that follow from a spec, and checks of a spec. */
#include <inttypes.h>
#include <math.h>

#include "agent/env/env.h"
#include "proto/base/error.h"

size_t env_observation_count(const rp_env_spec *spec)
{
    size_t count = 1;
    for (uint32_t i = 0; i < spec->observation_rank; i++)
        count *= spec->observation_shape[i];
    return count;
}

size_t env_observation_bytes(const rp_env_spec *spec)
{
    return env_observation_count(spec) * (spec->observation_dtype == RP_DTYPE_FLOAT32 ? sizeof(float) : 1);
}

size_t env_action_bytes(const rp_env_spec *spec)
{
    return spec->n_actions ? sizeof(int32_t) : spec->action_size * sizeof(float);
}

static rp_status check_observation(const char *name, const rp_env_spec *spec, rp_error *err)
{
    if (spec->observation_dtype != RP_DTYPE_FLOAT32 && spec->observation_dtype != RP_DTYPE_UINT8)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment '%s': its observations have type %" PRId32 "; only float32 (%d) and uint8 (%d) can "
                       "be used",
                       name, spec->observation_dtype, RP_DTYPE_FLOAT32, RP_DTYPE_UINT8);
    if (spec->observation_rank < 1 || spec->observation_rank > RP_MAX_RANK)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment '%s': its observations have rank %" PRIu32 "; it may be 1 to %u", name,
                       spec->observation_rank, RP_MAX_RANK);
    uint64_t bytes = spec->observation_dtype == RP_DTYPE_FLOAT32 ? sizeof(float) : 1;
    for (uint32_t i = 0; i < spec->observation_rank; i++) {
        if (spec->observation_shape[i] == 0)
            return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': dimension %" PRIu32 " of its observations is 0",
                           name, i);
        /* A product of factors below 2^30 and 2^32 fits into 64 bits. */
        bytes *= spec->observation_shape[i];
        if (bytes > RP_MAX_ROW_BYTES)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s': one observation is larger than %" PRIu64 " bytes", name,
                           RP_MAX_ROW_BYTES);
    }
    return RP_OK;
}

rp_status env_check_spec(const char *name, const rp_env_spec *spec, rp_error *err)
{
    RP_TRY(check_observation(name, spec, err));
    if ((spec->n_actions > 0) == (spec->action_size > 0))
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "environment '%s': it needs either n_actions (discrete) or action_size (continuous) above 0, it has "
            "%s",
            name, spec->n_actions ? "both" : "neither");
    if (spec->n_actions > INT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': n_actions is %" PRIu32 ", more than an int32 holds",
                       name, spec->n_actions);
    if (spec->action_size > RP_ENV_MAX_ACTION)
        return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': action_size is %" PRIu32 "; at most %u can be used",
                       name, spec->action_size, RP_ENV_MAX_ACTION);
    for (uint32_t i = 0; i < spec->action_size; i++) {
        float low = spec->action_low[i], high = spec->action_high[i];
        if (!isfinite(low) || !isfinite(high) || !(low < high))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s': action %" PRIu32 " goes from %g to %g; both must be finite, and the "
                           "first below the second",
                           name, i, (double)low, (double)high);
    }
    return RP_OK;
}
