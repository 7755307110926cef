/* What SAC has beyond test_control.c: its temperature, the limits of its deviations, and that it draws what it says. */
#include <stdint.h>

#include <math.h>
#include <string.h>

#include "tests/support/control.h"
#include "tests/support/test.h"

static double mean_log_prob(const struct control_case *c)
{
    double sum = 0.0, action[CONTROL_ACTION];
    for (uint32_t i = 0; i < c->n; i++)
        sum += control_draw(c, c->params, c->batch.observation + (size_t)i * CONTROL_OBSERVATION,
                            c->noise + (size_t)i * CONTROL_ACTION, action);
    return sum / c->n;
}

static double alpha_loss(const struct control_case *c, const double *params)
{
    return -control_alpha(c, params) * (mean_log_prob(c) - CONTROL_ACTION);
}

/* The temperature is a parameter with a loss of its own. */
TEST(gradient_of_the_temperature)
{
    struct agent_config config = control_config("sac");
    config.batch = 24;
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        control_case_init(&c, agent, seed);
        control_fill_targets(&c, agent);
        struct agent_result result = {0};
        agent->ops->gradient(agent, &c.batch.view, &result);
        control_check_gradient(&c, agent, critic_extra_at(c.critic), 1, alpha_loss);
        learning_near(learning_scalar(&result, "alpha"), control_alpha(&c, c.params), 1e-6, "a number");
        learning_near(learning_scalar(&result, "entropy"), -mean_log_prob(&c), 1e-5, "a number");
        control_case_fini(&c);
    }
    agent_destroy(&agent);
}

/* One deviation at its upper limit, the other free: the limit has no slope. */
TEST(limits)
{
    struct agent_config config = control_config("sac");
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    control_case_init(&c, agent, 4);
    const struct net_layer *last = &c.critic->policy.layers[c.critic->policy.n_layers - 1];
    const uint32_t bias = last->bias + CONTROL_ACTION;
    agent->params[bias] = 8.0f;
    c.params[bias] = 8.0;
    control_fill_targets(&c, agent);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    control_check_gradient(&c, agent, 0, c.critic->policy.n_params, control_algorithms[CONTROL_SAC].policy_loss);
    assert_true(agent->grads[bias] == 0.0f && agent->grads[bias + 1] != 0.0f);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* Means far out, where tanh rounds to 1: everything stays finite. */
TEST(saturated)
{
    struct agent_config config = control_config("sac");
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    control_case_init(&c, agent, 4);
    const struct net_layer *last = &c.critic->policy.layers[c.critic->policy.n_layers - 1];
    agent->params[last->bias] = 60.0f;
    agent->params[last->bias + 1] = -60.0f;
    struct agent_result result = {0};
    for (uint32_t i = 0; i < 5; i++)
        agent_learn(agent, &c.batch.view, &result);
    for (uint32_t i = 0; i < agent->n_params; i++)
        assert_true(isfinite(agent->params[i]));
    assert_true(isfinite(learning_scalar(&result, "policy_loss")) && isfinite(learning_scalar(&result, "loss")));
    assert_true(learning_scalar(&result, "gradient_norm") > 0);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* Samples have the mean and deviation, before tanh, that the network says. */
TEST(samples)
{
    const struct agent_config config = control_config("sac");
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    control_case_init(&c, agent, 9);
    double out[2 * CONTROL_ACTION], sum = 0.0, squares = 0.0;
    control_policy(&c, c.params, c.batch.observation, out);
    const uint32_t n = 20000;
    struct rng rng;
    rng_seed(&rng, 4);
    for (uint32_t i = 0; i < n; i++) {
        struct agent_choice choice;
        agent_act(agent, c.batch.observation, &(struct agent_explore){0}, &rng, &choice);
        double e = (atanh(fmin(fmax((double)choice.continuous[1], -0.9999999), 0.9999999)) - out[1]) /
                   exp(out[CONTROL_ACTION + 1]);
        sum += e;
        squares += e * e;
    }
    assert_true(fabs(sum / n) < 0.03);
    assert_true(fabs(squares / n - 1) < 0.04);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* The temperature rises while the entropy is below its target, and falls above it. */
TEST(temperature)
{
    for (uint32_t rising = 0; rising < 2; rising++) {
        struct agent_config config = control_config("sac");
        config.target_entropy = rising ? 5.0 : -20.0;
        struct agent *agent = learning_agent(&config, &control_spec, 1);
        struct control_batch batch;
        struct agent_result result = {0};
        struct rng rng;
        rng_seed(&rng, 1);
        for (uint32_t i = 0; i < 20; i++) {
            control_fill(&batch, &rng, 7);
            agent_learn(agent, &batch.view, &result);
        }
        double alpha = learning_scalar(&result, "alpha");
        assert_true(rising ? alpha > 1.1 : alpha < 0.9);
        agent_destroy(&agent);
    }
}

TEST(fixed_temperature)
{
    struct agent_config config = control_config("sac");
    config.alpha = 0.3;
    struct agent *agent = learning_agent(&config, &control_spec, 1);
    struct control_case c;
    control_case_init(&c, agent, 3);
    const uint32_t at = critic_extra_at(c.critic);
    agent->params[at] = (float)log(0.3); /* for the losses of this test; the agent does not look at it */
    c.params[at] = log(0.3);
    control_fill_targets(&c, agent);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    control_check_gradient(&c, agent, 0, c.critic->policy.n_params, control_algorithms[CONTROL_SAC].policy_loss);
    learning_near(learning_scalar(&result, "loss"), control_critic_loss(&c, c.params), 1e-5, "a number");
    assert_true(agent->grads[at] == 0.0f);
    agent->params[at] = 1.5f;
    for (uint32_t i = 0; i < 5; i++)
        agent_learn(agent, &c.batch.view, &result);
    learning_near(learning_scalar(&result, "alpha"), 0.3, 0.0, "a number");
    assert_true(agent->params[at] == 1.5f);
    control_case_fini(&c);
    agent_destroy(&agent);
}
