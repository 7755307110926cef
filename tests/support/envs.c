#include "tests/support/envs.h"

static void close_env(void *env)
{
    env_close(env);
    free(env);
}

struct env *envs_open(const struct env_config *config)
{
    struct env *env = calloc(1, sizeof *env);
    ok(env_open(env, config, &err));
    at_end(close_env, env);
    return env;
}

void envs_refuse(const struct env_config *config, rp_status status, const char *text)
{
    err = (rp_error){0};
    struct env env;
    memset(&env, 0x55, sizeof env);
    assert_int_equal(env_open(&env, config, &err), status);
    assert_int_equal(err.status, status);
    assert_has(err.text, text);
    env_close(&env); /* of one that was refused: does nothing */
    assert_null(env.self);
    assert_int_not_equal(env_open(&env, config, NULL), RP_OK);
}

const void *envs_action(const struct env *env, struct rng *rng)
{
    static int32_t discrete;
    static float continuous[RP_ENV_MAX_ACTION];
    if (env->spec.n_actions)
        discrete = (int32_t)rng_below(rng, env->spec.n_actions);
    for (uint32_t i = 0; i < env->spec.action_size; i++)
        continuous[i] = (float)(2 * rng_unit(rng) - 1);
    return env->spec.n_actions ? (const void *)&discrete : continuous;
}
