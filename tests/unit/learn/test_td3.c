/* What TD3 has beyond test_control.c: the delay of the policy, and what it refuses. */
#include <stdint.h>

#include <math.h>
#include <string.h>

#include "tests/support/control.h"
#include "tests/support/test.h"

/* Steps 3, 6, 9 move policy and targets; the others do not touch them, and have no gradient for the policy. */
TEST(delay)
{
    struct agent_config config = control_config("td3");
    config.policy_delay = 3;
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    const struct critic *critic = agent->state;
    struct control_batch batch;
    struct rng rng;
    rng_seed(&rng, 1);
    float policy[512], target[1024];
    const size_t policy_bytes = critic->policy.n_params * sizeof(float), all_bytes = agent->n_params * sizeof(float);
    assert_true(policy_bytes <= sizeof policy && all_bytes <= sizeof target);
    uint32_t moved = 0;
    for (uint32_t step = 1; step <= 10; step++) {
        struct agent_result result = {0};
        control_fill(&batch, &rng, 7);
        memcpy(policy, agent->params, policy_bytes);
        memcpy(target, critic->target, all_bytes);
        agent->ops->gradient(agent, &batch.view, &result);
        bool any = false;
        for (uint32_t i = 0; i < critic->policy.n_params; i++)
            any = any || agent->grads[i] != 0.0f;
        assert_int_equal(any, step % 3 == 0);
        agent->ops->apply(agent, &result);
        assert_int_equal(memcmp(policy, agent->params, policy_bytes) != 0, step % 3 == 0);
        assert_int_equal(memcmp(target, critic->target, all_bytes) != 0, step % 3 == 0);
        moved += memcmp(policy, agent->params, policy_bytes) != 0;
    }
    assert_int_equal(moved, 3);
    assert_int_equal(agent->steps, 10);
    assert_int_equal(critic->policy_optim.steps, 3);
    assert_int_equal(critic->q_optim.steps, 10);
    agent_destroy(&agent);
}

/* A period of copies that no policy step would ever meet. */
TEST(refused)
{
    struct agent_config config = control_config("td3");
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    rp_env_spec spec = agent->spec;
    agent_destroy(&agent);
    config.policy_delay = 2;
    config.target_period = 25;
    rp_error err = {0};
    assert_null(agent_new(&config, "Test", &spec, 1, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "policy_delay"));
}
