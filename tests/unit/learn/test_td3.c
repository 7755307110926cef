#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/control.h"

static double clamp(double x, double limit)
{
    return fmin(fmax(x, -limit), limit);
}

/* a' = clip(mu'(s') + clip(sigma e, c), 1); y = R + g D min(Q1'(s', a'), Q2'(s', a')). Counts which critic won. */
static void fill_targets(struct control_case *c, double sigma, double limit, uint32_t wins[2])
{
    for (uint32_t i = 0; i < c->n; i++) {
        const float *next = c->batch.next_observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        control_policy(c, c->target, next, action);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = clamp(tanh(action[j]) + clamp(sigma * (double)c->noise[i * CONTROL_ACTION + j], limit), 1);
        double q1 = control_q(c, c->target, 0, next, action), q2 = control_q(c, c->target, 1, next, action);
        wins[q2 < q1]++;
        c->y[i] = (double)c->batch.reward[i] + c->discount * (double)c->batch.discount[i] * fmin(q1, q2);
    }
}

/* The first critic alone guides the policy. */
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
    struct agent_config config = control_config("td3");
    config.policy_delay = 1;
    config.target_sigma = 0.6;
    config.target_clip = 0.4;
    config.batch = 24;
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    uint32_t wins[2] = {0};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        control_case_init(&c, agent, seed);
        struct rng same = agent->rng;
        critic_normals(&same, c.noise, c.n * CONTROL_ACTION);
        fill_targets(&c, 0.6, 0.4, wins);
        struct agent_result result = {0};
        agent->ops->gradient(agent, &c.batch.view, &result);
        control_check_gradient(&c, agent, 0, c.critic->policy.n_params, policy_loss);
        control_check_gradient(&c, agent, critic_at(c.critic, 0), c.critic->q.n_params, control_critic_loss);
        control_check_gradient(&c, agent, critic_at(c.critic, 1), c.critic->q.n_params, control_critic_loss);
        control_check_near(control_scalar(&result, "loss"), control_critic_loss(&c, c.params), 1e-5);
        control_check_near(control_scalar(&result, "policy_loss"), policy_loss(&c, c.params), 1e-5);
        control_case_fini(&c);
    }
    assert_true(wins[0] > 0 && wins[1] > 0);
    agent_destroy(&agent);
}

/* The larger |TD| of the two critics. */
static void test_priorities(void **state)
{
    (void)state;
    struct agent_config config = control_config("td3");
    struct agent *agent = control_agent(&config, 1);
    struct control_case c;
    uint32_t wins[2] = {0};
    control_case_init(&c, agent, 2);
    struct rng same = agent->rng;
    critic_normals(&same, c.noise, c.n * CONTROL_ACTION);
    fill_targets(&c, 0.2, 0.5, wins);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &c.batch.view, &result);
    for (uint32_t i = 0; i < c.n; i++) {
        const float *s = c.batch.observation + (size_t)i * CONTROL_OBSERVATION;
        double action[CONTROL_ACTION];
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = (double)c.batch.action[i * CONTROL_ACTION + j];
        double q1 = control_q(&c, c.params, 0, s, action), q2 = control_q(&c, c.params, 1, s, action);
        control_check_near(result.priority[i], fmax(fabs(q1 - c.y[i]), fabs(q2 - c.y[i])), 1e-5);
    }
    control_case_fini(&c);
    agent_destroy(&agent);
}

static void test_act(void **state)
{
    (void)state;
    const struct agent_config config = control_config("td3");
    struct agent *agent = control_agent(&config, 1);
    control_check_act(agent, true);
    agent_destroy(&agent);
}

/* Steps 3, 6, 9 move policy and targets; the others do not touch them, and have no gradient for the policy. */
static void test_delay(void **state)
{
    (void)state;
    struct agent_config config = control_config("td3");
    config.policy_delay = 3;
    struct agent *agent = control_agent(&config, 1);
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

static void test_targets(void **state)
{
    (void)state;
    struct agent_config config = control_config("td3");
    config.policy_delay = 1;
    config.tau = 0.1;
    struct agent *agent = control_agent(&config, 1);
    const struct critic *critic = agent->state;
    struct control_case c;
    struct agent_result result = {0};
    control_case_init(&c, agent, 3);
    agent_learn(agent, &c.batch.view, &result);
    for (uint32_t i = 0; i < agent->n_params; i++)
        control_check_near((double)critic->target[i], c.target[i] + 0.1 * ((double)agent->params[i] - c.target[i]),
                           1e-6);
    control_case_fini(&c);
    agent_destroy(&agent);
}

/* A period of copies that no policy step would ever meet. */
static void test_refused(void **state)
{
    (void)state;
    struct agent_config config = control_config("td3");
    struct agent *agent = control_agent(&config, 1);
    rp_env_spec spec = agent->spec;
    agent_destroy(&agent);
    config.policy_delay = 2;
    config.target_period = 25;
    rp_error err = {0};
    assert_null(agent_new(&config, "Test", &spec, 1, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "policy_delay"));
}

static void test_bandit(void **state)
{
    (void)state;
    int64_t hidden[] = {32, 32};
    struct agent_config config = control_config("td3");
    config.hidden = (struct schema_list){.data = hidden, .count = 2};
    config.batch = 32;
    config.learning_rate = 3e-3;
    struct agent *agent = control_agent(&config, 1);
    double before = control_bandit(agent, 0), after = control_bandit(agent, 1500);
    print_message("bandit: error %.3f, then %.3f\n", before, after);
    assert_true(before > 0.3 && after < 0.08);
    agent_destroy(&agent);
}

/* Saved after an odd number of steps: the delay goes on where it was, and so does the noise. */
static void test_saved(void **state)
{
    (void)state;
    const struct agent_config config = control_config("td3");
    control_check_saved(&config);
}

static void test_averaged(void **state)
{
    (void)state;
    const struct agent_config config = control_config("td3");
    control_check_averaged(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient), cmocka_unit_test(test_priorities), cmocka_unit_test(test_act),
        cmocka_unit_test(test_delay),    cmocka_unit_test(test_targets),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bandit),   cmocka_unit_test(test_saved),      cmocka_unit_test(test_averaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
