#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/control.h"

static const double PI = 3.14159265358979323846;

static double alpha_at(const struct control_case *c, const double *params)
{
    return exp(params[critic_extra_at(c->critic)]);
}

/* a = tanh(mean + std e); gives the log of its density: that of u, over the slope of tanh. */
static double draw(const struct control_case *c, const double *params, const float *observation, const float *noise,
                   double *action)
{
    double out[2 * CONTROL_ACTION], log_prob = 0.0;
    control_policy(c, params, observation, out);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
        double std = exp(fmin(fmax(out[CONTROL_ACTION + j], -20), 2)), u = out[j] + std * (double)noise[j];
        double density = exp(-pow((u - out[j]) / std, 2) / 2) / (std * sqrt(2 * PI));
        action[j] = tanh(u);
        log_prob += log(density * cosh(u) * cosh(u)); /* 1 - tanh^2 = 1 / cosh^2 */
    }
    return log_prob;
}

static void fill_targets(struct control_case *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const float *next = c->batch.next_observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        double log_prob = draw(c, c->params, next, c->noise + (size_t)(c->n + i) * CONTROL_ACTION, action);
        double q = fmin(control_q(c, c->target, 0, next, action), control_q(c, c->target, 1, next, action));
        c->y[i] = (double)c->batch.reward[i] +
                  c->discount * (double)c->batch.discount[i] * (q - alpha_at(c, c->params) * log_prob);
    }
}

static double policy_loss(const struct control_case *c, const double *params)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < c->n; i++) {
        const float *s = c->batch.observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        double log_prob = draw(c, params, s, c->noise + (size_t)i * CONTROL_ACTION, action);
        double q = fmin(control_q(c, c->params, 0, s, action), control_q(c, c->params, 1, s, action));
        sum += alpha_at(c, c->params) * log_prob - q;
    }
    return sum / c->n;
}

/* Which critic is the smaller one at the policy's actions. */
static void count_smaller(const struct control_case *c, uint32_t wins[2])
{
    for (uint32_t i = 0; i < c->n; i++) {
        const float *s = c->batch.observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        draw(c, c->params, s, c->noise + (size_t)i * CONTROL_ACTION, action);
        wins[control_q(c, c->params, 1, s, action) < control_q(c, c->params, 0, s, action)]++;
    }
}

static double mean_log_prob(const struct control_case *c)
{
    double sum = 0.0, action[CONTROL_ACTION];
    for (uint32_t i = 0; i < c->n; i++)
        sum += draw(c, c->params, c->batch.observation + (size_t)i * CONTROL_OBSERVATION,
                    c->noise + (size_t)i * CONTROL_ACTION, action);
    return sum / c->n;
}

static double alpha_loss(const struct control_case *c, const double *params)
{
    return -alpha_at(c, params) * (mean_log_prob(c) - CONTROL_ACTION);
}

static void begin(struct control_case *c, struct agent *agent, uint64_t seed)
{
    control_case_init(c, agent, seed);
    struct rng same = agent->rng;
    critic_normals(&same, c->noise, 2 * c->n * CONTROL_ACTION);
    fill_targets(c);
}

static void test_gradient(void **state)
{
    (void)state;
    struct agent_config config = control_config("sac");
    config.batch = 24;
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    uint32_t wins[2] = {0};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        begin(&c, agent, seed);
        count_smaller(&c, wins);
        struct agent_result result = {0};
        agent->ops->gradient(agent, &c.batch.view, &result);
        control_check_gradient(&c, agent, 0, c.critic->policy.n_params, policy_loss);
        control_check_gradient(&c, agent, critic_at(c.critic, 0), c.critic->q.n_params, control_critic_loss);
        control_check_gradient(&c, agent, critic_at(c.critic, 1), c.critic->q.n_params, control_critic_loss);
        control_check_gradient(&c, agent, critic_extra_at(c.critic), 1, alpha_loss);
        control_check_near(control_scalar(&result, "loss"), control_critic_loss(&c, c.params), 1e-5);
        control_check_near(control_scalar(&result, "policy_loss"), policy_loss(&c, c.params), 1e-5);
        control_check_near(control_scalar(&result, "alpha"), alpha_at(&c, c.params), 1e-6);
        control_check_near(control_scalar(&result, "entropy"), -mean_log_prob(&c), 1e-5);
        control_case_fini(&c);
    }
    assert_true(wins[0] > 0 && wins[1] > 0);
    agent_destroy(&agent);
}

/* One deviation at its upper limit, the other free: the limit has no slope. */
static void test_limits(void **state)
{
    (void)state;
    struct agent_config config = control_config("sac");
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    control_case_init(&c, agent, 4);
    const struct net_layer *last = &c.critic->policy.layers[c.critic->policy.n_layers - 1];
    const uint32_t bias = last->bias + CONTROL_ACTION;
    agent->params[bias] = 8.0f;
    c.params[bias] = 8.0;
    struct rng same = agent->rng;
    critic_normals(&same, c.noise, 2 * c.n * CONTROL_ACTION);
    fill_targets(&c);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    control_check_gradient(&c, agent, 0, c.critic->policy.n_params, policy_loss);
    assert_true(agent->grads[bias] == 0.0f && agent->grads[bias + 1] != 0.0f);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* Means far out, where tanh rounds to 1: everything stays finite. */
static void test_saturated(void **state)
{
    (void)state;
    struct agent_config config = control_config("sac");
    struct agent *agent = control_agent(&config, 1);
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
    assert_true(isfinite(control_scalar(&result, "policy_loss")) && isfinite(control_scalar(&result, "loss")));
    assert_true(control_scalar(&result, "gradient_norm") > 0);
    control_case_fini(&c);
    agent_destroy(&agent);
}

static void test_act(void **state)
{
    (void)state;
    const struct agent_config config = control_config("sac");
    struct agent *agent = control_agent(&config, 1);
    control_check_act(agent, false);
    agent_destroy(&agent);
}

/* Samples have the mean and deviation, before tanh, that the network says. */
static void test_samples(void **state)
{
    (void)state;
    const struct agent_config config = control_config("sac");
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    control_case_init(&c, agent, 9);
    double out[2 * CONTROL_ACTION], sum = 0.0, squares = 0.0;
    control_policy(&c, c.params, c.batch.observation, out);
    const uint32_t n = 20000;
    struct rng rng;
    rng_seed(&rng, 4);
    for (uint32_t i = 0; i < n; i++) {
        struct agent_choice choice;
        agent->ops->act(agent, c.batch.observation, &(struct agent_explore){0}, &rng, &choice);
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

/* Twin critics are tracked at every step; there is no target policy. */
static void test_targets(void **state)
{
    (void)state;
    struct agent_config config = control_config("sac");
    config.tau = 0.1;
    struct agent *agent = control_agent(&config, 1);
    const struct critic *critic = agent->state;
    struct control_case c;
    struct agent_result result = {0};
    control_case_init(&c, agent, 3);
    agent_learn(agent, &c.batch.view, &result);
    for (uint32_t i = critic_at(critic, 0); i < critic_extra_at(critic); i++)
        control_check_near((double)critic->target[i], c.target[i] + 0.1 * ((double)agent->params[i] - c.target[i]),
                           1e-6);
    for (uint32_t i = 0; i < agent->n_tensors; i++)
        assert_null(strstr(agent->tensors[i].name, "target/policy"));
    assert_int_equal(agent->steps, 1);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* The temperature rises while the entropy is below its target, and falls above it. */
static void test_temperature(void **state)
{
    (void)state;
    for (uint32_t rising = 0; rising < 2; rising++) {
        struct agent_config config = control_config("sac");
        config.target_entropy = rising ? 5.0 : -20.0;
        struct agent *agent = control_agent(&config, 1);
        struct control_batch batch;
        struct agent_result result = {0};
        struct rng rng;
        rng_seed(&rng, 1);
        for (uint32_t i = 0; i < 20; i++) {
            control_fill(&batch, &rng, 7);
            agent_learn(agent, &batch.view, &result);
        }
        double alpha = control_scalar(&result, "alpha");
        assert_true(rising ? alpha > 1.1 : alpha < 0.9);
        agent_destroy(&agent);
    }
}

static void test_fixed_temperature(void **state)
{
    (void)state;
    struct agent_config config = control_config("sac");
    config.alpha = 0.3;
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    control_case_init(&c, agent, 3);
    struct rng same = agent->rng;
    critic_normals(&same, c.noise, 2 * c.n * CONTROL_ACTION);
    const uint32_t at = critic_extra_at(c.critic);
    agent->params[at] = (float)log(0.3); /* for the losses of this test; the agent does not look at it */
    c.params[at] = log(0.3);
    fill_targets(&c);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    control_check_gradient(&c, agent, 0, c.critic->policy.n_params, policy_loss);
    control_check_near(control_scalar(&result, "loss"), control_critic_loss(&c, c.params), 1e-5);
    assert_true(agent->grads[at] == 0.0f);
    agent->params[at] = 1.5f;
    for (uint32_t i = 0; i < 5; i++)
        agent_learn(agent, &c.batch.view, &result);
    control_check_near(control_scalar(&result, "alpha"), 0.3, 0.0);
    assert_true(agent->params[at] == 1.5f);
    control_case_fini(&c);
    agent_destroy(&agent);
}

static void test_bandit(void **state)
{
    (void)state;
    int64_t hidden[] = {32, 32};
    struct agent_config config = control_config("sac");
    config.hidden = (struct schema_list){.data = hidden, .count = 2};
    config.batch = 32;
    config.learning_rate = 3e-3;
    config.target_entropy = -4;
    struct agent *agent = control_agent(&config, 1);
    double before = control_bandit(agent, 0), after = control_bandit(agent, 1500);
    print_message("bandit: error %.3f, then %.3f\n", before, after);
    assert_true(before > 0.3 && after < 0.08);
    agent_destroy(&agent);
}

static void test_saved(void **state)
{
    (void)state;
    const struct agent_config config = control_config("sac");
    control_check_saved(&config);
}

static void test_averaged(void **state)
{
    (void)state;
    const struct agent_config config = control_config("sac");
    control_check_averaged(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_saturated),   cmocka_unit_test(test_act),
        cmocka_unit_test(test_samples),     cmocka_unit_test(test_targets),
        cmocka_unit_test(test_temperature), cmocka_unit_test(test_fixed_temperature),
        cmocka_unit_test(test_bandit),      cmocka_unit_test(test_saved),
        cmocka_unit_test(test_averaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
