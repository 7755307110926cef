/* env_print NAME SEED STEPS [PLUGIN]: the numbers of an environment as the C programs see them, for comparison with other languages.
 *
 * To standard output, as bytes in the machine's order: the first observation; then for each step the observation, the reward (float),
 * terminal and truncated (a byte each), and after the end of an episode the first observation of the next. Step i takes the discrete
 * action i * 7 % 5 % n, or for each number j of a continuous one the canonical value ((i * 37 + j * 11) % 21 - 10) / 10. */
#include <stdio.h>
#include <stdlib.h>

#include "agent/env/env.h"

static void choose(const rp_env_spec *spec, uint64_t i, int32_t *discrete, float *continuous)
{
    *discrete = spec->n_actions ? (int32_t)(i * 7 % 5 % spec->n_actions) : 0;
    for (uint32_t j = 0; j < spec->action_size; j++)
        continuous[j] = (float)((int32_t)((i * 37 + j * 11) % 21) - 10) / 10.0f;
}

static void print_step(struct env *env, uint64_t i, void *observation)
{
    size_t bytes = env_observation_bytes(&env->spec);
    int32_t discrete;
    float continuous[RP_ENV_MAX_ACTION];
    rp_env_result result;
    choose(&env->spec, i, &discrete, continuous);
    env_step(env, env->spec.n_actions ? (const void *)&discrete : continuous, observation, &result);
    fwrite(observation, bytes, 1, stdout);
    fwrite(&result.reward, sizeof result.reward, 1, stdout);
    fwrite(&result.terminal, 1, 1, stdout);
    fwrite(&result.truncated, 1, 1, stdout);
    if (result.terminal || result.truncated) {
        env_reset(env, observation);
        fwrite(observation, bytes, 1, stdout);
    }
}

int main(int argc, char **argv)
{
    struct env env;
    rp_error err = {0};
    if (argc < 4)
        return fprintf(stderr, "usage: env_print NAME SEED STEPS [PLUGIN]\n"), 2;
    if (env_open(&env, &(struct env_config){.name = argv[1], .plugin = argc > 4 ? argv[4] : NULL}, &err) != RP_OK)
        return fprintf(stderr, "%s\n", err.text), 1;
    void *observation = env_observation_new(&env);
    if (!observation)
        return 1;
    uint64_t steps = strtoull(argv[3], NULL, 10);
    env_seed(&env, strtoull(argv[2], NULL, 10));
    env_reset(&env, observation);
    fwrite(observation, env_observation_bytes(&env.spec), 1, stdout);
    for (uint64_t i = 0; i < steps; i++)
        print_step(&env, i, observation);
    free(observation);
    env_close(&env);
    return 0;
}
