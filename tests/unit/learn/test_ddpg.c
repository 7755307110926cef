/* What DDPG has beyond test_control.c: the Huber loss, rates and clipping of policy and critic, what it refuses. */
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/control.h"
#include "tests/support/test.h"

static double huber_loss(const struct control_case *c, const double *params)
{
    double loss = 0.0;
    for (uint32_t i = 0; i < c->n; i++) {
        double action[CONTROL_ACTION];
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = (double)c->batch.action[i * CONTROL_ACTION + j];
        double d =
            fabs(control_q(c, params, 0, c->batch.observation + (size_t)i * CONTROL_OBSERVATION, action) - c->y[i]);
        loss += (double)c->batch.weight[i] * (d <= 0.5 ? d * d / 2 : 0.5 * (d - 0.25));
    }
    return loss / c->n;
}

TEST(huber)
{
    struct agent_config config = control_config("ddpg");
    config.huber = 0.5;
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    control_case_init(&c, agent, 6);
    control_fill_targets(&c, agent);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    control_check_gradient(&c, agent, critic_at(c.critic, 0), c.critic->q.n_params, huber_loss);
    learning_near(learning_scalar(&result, "loss"), huber_loss(&c, c.params), 1e-5, "a number");
    double least = INFINITY, most = 0.0;
    for (uint32_t i = 0; i < c.n; i++) {
        least = fmin(least, result.priority[i]);
        most = fmax(most, result.priority[i]);
    }
    assert_true(least < 0.5 && most > 0.5); /* both sides were tried */
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* Policy and critic are clipped apart from each other; the first step of Adam moves each parameter by its rate. */
TEST(rates_and_clipping)
{
    struct agent_config config = control_config("ddpg");
    config.clip_norm = 0.01;
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    struct agent_result result = {0};
    control_case_init(&c, agent, 3);
    agent_learn(agent, &c.batch.view, &result);
    double policy = 0.0, q = 0.0, norm[2] = {0};
    for (uint32_t i = 0; i < agent->n_params; i++) {
        double moved = fabs((double)agent->params[i] - c.params[i]);
        bool in_policy = i < critic_at(c.critic, 0);
        double *most = in_policy ? &policy : &q;
        *most = fmax(*most, moved);
        norm[in_policy] += (double)agent->grads[i] * (double)agent->grads[i];
    }
    learning_near(policy, 1e-2, 1e-5, "a number");
    learning_near(q, 1e-2, 1e-5, "a number");
    learning_near(sqrt(norm[0]), 0.01, 1e-6, "a number");
    learning_near(sqrt(norm[1]), 0.01, 1e-6, "a number");
    assert_true(learning_scalar(&result, "gradient_norm") > 0.01);
    assert_true(learning_scalar(&result, "policy_gradient_norm") > 0.01);
    control_case_fini(&c);
    agent_destroy(&agent);
}

TEST(refused)
{
    struct agent_config config = control_config("ddpg");
    config.filters = 4;
    rp_env_spec spec = {.observation_dtype = RP_DTYPE_FLOAT32,
                        .observation_rank = 3,
                        .observation_shape = {4, 4, 1},
                        .action_size = 1,
                        .action_low = {-1},
                        .action_high = {1}};
    rp_error err = {0};
    assert_null(agent_new(&config, "Test", &spec, 1, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "filters"));
}
