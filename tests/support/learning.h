/* What the tests of all algorithms share: agents, comparisons, and derivatives by finite differences. */
#pragma once

#include "agent/learn/agent.h"
#include "tests/support/dense.h"
#include "tests/support/test.h"

#define LEARNING_INPUTS 3u
#define LEARNING_ACTIONS 4u /* of the discrete specification */
#define LEARNING_SIZE 2u    /* of the actions of the continuous one */
#define LEARNING_ROWS 64u
extern const rp_env_spec learning_discrete, learning_continuous;

/* Everything that any algorithm looks at, for both specifications. */
struct learning_data {
    float observation[LEARNING_ROWS][LEARNING_INPUTS], next[LEARNING_ROWS][LEARNING_INPUTS];
    float continuous[LEARNING_ROWS][LEARNING_SIZE];
    float reward[LEARNING_ROWS], discount[LEARNING_ROWS], weight[LEARNING_ROWS], log_prob[LEARNING_ROWS];
    int32_t discrete[LEARNING_ROWS];
    uint8_t step_type[LEARNING_ROWS];
    struct agent_batch batch;
};

/* Fills in random items of so many steps each; every third step is terminal. */
void learning_data(struct learning_data *self, struct rng *rng, bool discrete, uint32_t n, uint32_t length);

/* Fails the test with the sentence if the agent is refused. It is destroyed when the program ends. */
struct agent *learning_agent(const struct agent_config *config, const rp_env_spec *spec, uint64_t seed);
/* Acts on one observation. */
void learning_act(struct agent *agent, const void *observation, const struct agent_explore *explore, struct rng *rng,
                  struct agent_choice *out);
/* Between -1 and 1. */
float learning_uniform(struct rng *rng);
/* Moves the parameters at random by up to `by`. Initial biases are 0: there a relu that sees only dead units has no
 * derivative. */
void learning_shake(struct agent *agent, struct rng *rng, float by);
/* Makes the target another network than the online one. */
void learning_shake_target(struct agent *agent, struct rng *rng);

/* Fail if there is none of that name. */
double learning_scalar(const struct agent_result *result, const char *name);
struct tensor *learning_tensor(struct agent *agent, const char *name);

/* Fails unless the agent's gradient for each parameter of `net` is the central difference of the loss. */
void learning_check_derivatives(const struct agent *agent, const struct dense *net, double (*loss)(const void *ctx),
                                const void *ctx);
