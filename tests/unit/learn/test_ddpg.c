#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/control.h"

/* y = R + g D Q'(s', mu'(s')) */
static void fill_targets(struct control_case *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const float *next = c->batch.next_observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        control_policy(c, c->target, next, action);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = tanh(action[j]);
        c->y[i] = (double)c->batch.reward[i] +
                  c->discount * (double)c->batch.discount[i] * control_q(c, c->target, 0, next, action);
    }
}

/* Only the policy's part of params moves it: the critic is the one of before the step. */
static double policy_loss(const struct control_case *c, const double *params)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < c->n; i++) {
        const float *s = c->batch.observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        control_policy(c, params, s, action);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = tanh(action[j]);
        sum += control_q(c, c->params, 0, s, action);
    }
    return -sum / c->n;
}

static void test_gradient(void **state)
{
    (void)state;
    const struct agent_config config = control_config("ddpg");
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        control_case_init(&c, agent, seed);
        fill_targets(&c);
        struct agent_result result = {0};
        agent->ops->gradient(agent, &c.batch.view, &result);
        control_check_gradient(&c, agent, 0, c.critic->policy.n_params, policy_loss);
        control_check_gradient(&c, agent, critic_at(c.critic, 0), c.critic->q.n_params, control_critic_loss);
        control_check_near(control_scalar(&result, "loss"), control_critic_loss(&c, c.params), 1e-5);
        control_check_near(control_scalar(&result, "policy_loss"), policy_loss(&c, c.params), 1e-5);
        control_case_fini(&c);
    }
    agent_destroy(&agent);
}

/* |TD| of each item; and gradient() changes nothing but gradients. */
static void test_priorities(void **state)
{
    (void)state;
    const struct agent_config config = control_config("ddpg");
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    control_case_init(&c, agent, 2);
    fill_targets(&c);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    double td_sum = 0.0, q_sum = 0.0;
    for (uint32_t i = 0; i < c.n; i++) {
        double action[CONTROL_ACTION];
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = (double)c.batch.action[i * CONTROL_ACTION + j];
        double q = control_q(&c, c.params, 0, c.batch.observation + (size_t)i * CONTROL_OBSERVATION, action);
        control_check_near(result.priority[i], fabs(q - c.y[i]), 1e-5);
        td_sum += fabs(q - c.y[i]);
        q_sum += q;
    }
    control_check_near(control_scalar(&result, "q"), q_sum / c.n, 1e-5);
    control_check_near(control_scalar(&result, "td_error"), td_sum / c.n, 1e-5);
    for (uint32_t i = 0; i < agent->n_params; i++)
        assert_true((double)agent->params[i] == c.params[i] && (double)c.critic->target[i] == c.target[i]);
    assert_int_equal(agent->steps, 0);
    control_case_fini(&c);
    agent_destroy(&agent);
}

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

static void test_huber(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.huber = 0.5;
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    control_case_init(&c, agent, 6);
    fill_targets(&c);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    control_check_gradient(&c, agent, critic_at(c.critic, 0), c.critic->q.n_params, huber_loss);
    control_check_near(control_scalar(&result, "loss"), huber_loss(&c, c.params), 1e-5);
    double least = INFINITY, most = 0.0;
    for (uint32_t i = 0; i < c.n; i++) {
        least = fmin(least, result.priority[i]);
        most = fmax(most, result.priority[i]);
    }
    assert_true(least < 0.5 && most > 0.5); /* both sides were tried */
    control_case_fini(&c);
    agent_destroy(&agent);
}

static void test_act(void **state)
{
    (void)state;
    const struct agent_config config = control_config("ddpg");
    struct agent *agent = control_agent(&config, 1);
    control_check_act(agent, true);
    agent_destroy(&agent);
}

static uint32_t copied(const struct agent *agent)
{
    const struct critic *critic = agent->state;
    return memcmp(critic->target, agent->params, agent->n_params * sizeof(float)) == 0;
}

static void test_copied_targets(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.target_period = 10;
    struct agent *agent = control_agent(&config, 1);
    struct control_batch batch;
    struct agent_result result = {0};
    struct rng rng;
    rng_seed(&rng, 1);
    assert_true(copied(agent));
    for (uint32_t step = 1; step <= 35; step++) {
        control_fill(&batch, &rng, 7);
        agent_learn(agent, &batch.view, &result);
        assert_int_equal(agent->steps, step);
        assert_int_equal(copied(agent), step % 10 == 0);
    }
    agent_destroy(&agent);
}

static void test_soft_targets(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.tau = 0.25;
    struct agent *agent = control_agent(&config, 1);
    const struct critic *critic = agent->state;
    struct control_case c;
    struct agent_result result = {0};
    control_case_init(&c, agent, 3);
    agent_learn(agent, &c.batch.view, &result);
    for (uint32_t i = 0; i < agent->n_params; i++) {
        double want = c.target[i] + 0.25 * ((double)agent->params[i] - c.target[i]);
        control_check_near((double)critic->target[i], want, 1e-6);
    }
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* Policy and critic have rates of their own: the first step of Adam moves each parameter by its rate. */
static void test_rates_and_clipping(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.policy_learning_rate = 1e-3;
    config.clip_norm = 0.01;
    struct agent *agent = control_agent(&config, 1);
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
    control_check_near(policy, 1e-3, 1e-6);
    control_check_near(q, 1e-2, 1e-5);
    control_check_near(sqrt(norm[0]), 0.01, 1e-6);
    control_check_near(sqrt(norm[1]), 0.01, 1e-6);
    assert_true(control_scalar(&result, "gradient_norm") > 0.01);
    assert_true(control_scalar(&result, "policy_gradient_norm") > 0.01);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* Bytes are numbers: the same as the floats that they stand for. */
static void test_bytes(void **state)
{
    (void)state;
    const struct agent_config config = control_config("ddpg");
    struct agent *floats = control_agent(&config, 1);
    rp_env_spec spec = floats->spec;
    spec.observation_dtype = RP_DTYPE_UINT8;
    rp_error err = {0};
    struct agent *bytes = agent_new(&config, "Test", &spec, 1, &err);
    assert_non_null(bytes);
    struct control_batch batch;
    uint8_t now[7 * CONTROL_OBSERVATION], next[7 * CONTROL_OBSERVATION];
    struct rng rng;
    rng_seed(&rng, 1);
    control_fill(&batch, &rng, 7);
    for (uint32_t i = 0; i < 7 * CONTROL_OBSERVATION; i++) {
        batch.observation[i] = now[i] = (uint8_t)rng_below(&rng, 3);
        batch.next_observation[i] = next[i] = (uint8_t)rng_below(&rng, 3);
    }
    struct agent_result result = {0};
    struct agent_choice a, b;
    agent_learn(floats, &batch.view, &result);
    floats->ops->act(floats, batch.observation, &(struct agent_explore){.greedy = true}, &rng, &a);
    batch.view.observation = now;
    batch.view.next_observation = next;
    agent_learn(bytes, &batch.view, &result);
    bytes->ops->act(bytes, now, &(struct agent_explore){.greedy = true}, &rng, &b);
    assert_memory_equal(floats->params, bytes->params, floats->n_params * sizeof(float));
    assert_true(a.continuous[0] == b.continuous[0] && a.value == b.value);
    agent_destroy(&floats);
    agent_destroy(&bytes);
}

/* An actor gets the policy and a critic, not the rest. */
static void test_published(void **state)
{
    (void)state;
    const struct agent_config config = control_config("ddpg");
    struct agent *agent = control_agent(&config, 1);
    uint64_t floats = 0;
    for (uint32_t i = 0; i < agent->n_policy; i++)
        floats += tensor_bytes(&agent->tensors[i]) / sizeof(float);
    assert_int_equal(floats, agent->n_params);
    assert_string_equal(agent->tensors[0].name, "policy/layer0/weight");
    assert_true(agent->n_policy < agent->n_tensors);
    agent_destroy(&agent);
}

static void test_refused(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.filters = 4;
    config.kernel = 1;
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

static void test_bandit(void **state)
{
    (void)state;
    int64_t hidden[] = {32, 32};
    struct agent_config config = control_config("ddpg");
    config.hidden = (struct schema_list){.data = hidden, .count = 2};
    config.batch = 32;
    config.learning_rate = 3e-3;
    struct agent *agent = control_agent(&config, 1);
    double before = control_bandit(agent, 0), after = control_bandit(agent, 2000);
    print_message("bandit: error %.3f, then %.3f\n", before, after);
    assert_true(before > 0.3 && after < 0.08);
    agent_destroy(&agent);
}

static void test_saved(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.target_period = 10; /* neither save nor end falls on a copy */
    control_check_saved(&config);
}

static void test_averaged(void **state)
{
    (void)state;
    struct agent_config config = control_config("ddpg");
    config.target_period = 7;
    config.clip_norm = 0.5;
    control_check_averaged(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_huber),
        cmocka_unit_test(test_act),
        cmocka_unit_test(test_copied_targets),
        cmocka_unit_test(test_soft_targets),
        cmocka_unit_test(test_rates_and_clipping),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bandit),
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_averaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
