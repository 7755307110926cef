/* DDPG, TD3 and SAC by one table: gradients by finite differences, priorities, acting, a bandit. What is special to one of
 * them is in test_ddpg.c, test_td3.c and test_sac.c; what all algorithms have in common is in test_agent.c. */
#include <stdint.h>

#include <math.h>
#include <string.h>

#include "tests/support/control.h"
#include "tests/support/test.h"

/* ---- gradients ---- */

/* The larger |TD| of the critics; and the scalars that are means of it. */
static void check_errors(const struct control_case *c, const struct agent_result *result)
{
    double td_sum = 0.0, q_sum = 0.0;
    uint32_t n_q = c->critic->plan.n_q;
    for (uint32_t i = 0; i < c->n; i++) {
        double action[CONTROL_ACTION], largest = 0.0;
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            action[j] = (double)c->batch.action[i * CONTROL_ACTION + j];
        for (uint32_t k = 0; k < n_q; k++) {
            double q = control_q(c, c->params, k, c->batch.observation + (size_t)i * CONTROL_OBSERVATION, action);
            largest = fmax(largest, fabs(q - c->y[i]));
            td_sum += fabs(q - c->y[i]);
            q_sum += q;
        }
        learning_near(result->priority[i], largest, 1e-5, "a priority");
    }
    learning_near(learning_scalar(result, "q"), q_sum / c->n / n_q, 1e-5, "q");
    learning_near(learning_scalar(result, "td_error"), td_sum / c->n / n_q, 1e-5, "the error");
}

static void check_gradient(const struct control_algorithm *row, struct agent *agent, struct control_case *c)
{
    struct agent_result result = {0};
    control_fill_targets(c, agent);
    agent->ops->gradient(agent, &c->batch.view, &result);
    control_check_gradient(c, agent, 0, c->critic->policy.n_params, row->policy_loss);
    for (uint32_t k = 0; k < c->critic->plan.n_q; k++)
        control_check_gradient(c, agent, critic_at(c->critic, k), c->critic->q.n_params, control_critic_loss);
    learning_near(learning_scalar(&result, "loss"), control_critic_loss(c, c->params), 1e-5, "the loss");
    learning_near(learning_scalar(&result, "policy_loss"), row->policy_loss(c, c->params), 1e-5, "the policy's loss");
    check_errors(c, &result);
    /* gradient() changes nothing but gradients. */
    for (uint32_t i = 0; i < agent->n_params; i++)
        assert_true((double)agent->params[i] == c->params[i] && (double)c->critic->target[i] == c->target[i]);
    assert_int_equal(agent->steps, 0);
}

TEST(gradient)
{
    for (uint32_t k = 0; k < CONTROL_ALGORITHMS; k++) {
        const struct control_algorithm *row = &control_algorithms[k];
        struct agent_config config = control_config(row->name);
        config.policy_delay = 1;
        config.batch = 24;
        struct agent *agent = learning_agent(&config, &control_spec, 1);
        struct control_wins wins = {0};
        for (uint64_t seed = 1; seed <= 6; seed++) {
            struct control_case c;
            control_case_init(&c, agent, seed);
            c.wins = &wins;
            check_gradient(row, agent, &c);
            control_case_fini(&c);
        }
        /* Both critics were the smaller one now and then. */
        assert_true(k == CONTROL_DDPG || (wins.target[0] > 0 && wins.target[1] > 0));
        assert_true(k != CONTROL_SAC || (wins.policy[0] > 0 && wins.policy[1] > 0));
        agent_destroy(&agent);
    }
}

/* ---- acting ---- */

static void check_judgement(const struct control_case *self, const float *observation,
                            const struct agent_choice *choice)
{
    double greedy[2 * CONTROL_ACTION], taken[CONTROL_ACTION];
    control_policy(self, self->params, observation, greedy);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
        greedy[j] = tanh(greedy[j]);
        taken[j] = (double)choice->continuous[j];
        assert_true(fabs(taken[j]) <= 1.0);
    }
    learning_near((double)choice->value, control_q(self, self->params, 0, observation, greedy), 1e-5, "a number");
    learning_near((double)choice->q, control_q(self, self->params, 0, observation, taken), 1e-5, "a number");
}

static void check_uniform(struct agent *agent, const float *observation, struct rng *rng)
{
    const struct agent_explore uniform = {.uniform = true};
    double sum = 0.0, squares = 0.0;
    const uint32_t n = 4000;
    for (uint32_t i = 0; i < n; i++) {
        struct agent_choice choice;
        agent_act(agent, observation, &uniform, rng, &choice);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++) {
            assert_true(fabsf(choice.continuous[j]) <= 1.0f);
            sum += (double)choice.continuous[j];
            squares += (double)choice.continuous[j] * (double)choice.continuous[j];
        }
    }
    assert_true(fabs(sum / n / CONTROL_ACTION) < 0.05);
    assert_true(fabs(squares / n / CONTROL_ACTION - 1.0 / 3.0) < 0.03);
}

static void check_act(struct agent *agent, bool deterministic)
{
    struct control_case c;
    control_case_init(&c, agent, 5);
    struct rng rng;
    rng_seed(&rng, 1);
    const float *s = c.batch.observation;
    struct agent_choice greedy, again, noisy, bounded;
    struct rng before = rng;
    agent_act(agent, s, &(struct agent_explore){.greedy = true}, &rng, &greedy);
    assert_memory_equal(&before, &rng, sizeof rng);
    check_judgement(&c, s, &greedy);
    learning_near((double)greedy.q, (double)greedy.value, 0.0, "a number");
    learning_near((double)agent->ops->value(agent, s), (double)greedy.value, 0.0, "a number");
    double mean[2 * CONTROL_ACTION];
    control_policy(&c, c.params, s, mean);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++)
        learning_near((double)greedy.continuous[j], tanh(mean[j]), 1e-5, "a number");

    agent_act(agent, s, &(struct agent_explore){0}, &rng, &again);
    check_judgement(&c, s, &again);
    assert_int_equal(deterministic, memcmp(greedy.continuous, again.continuous, CONTROL_ACTION * sizeof(float)) == 0);

    /* The same random numbers again, now with noise on top; huge noise ends at the bounds. */
    float noise[CONTROL_ACTION] = {0.05f, -0.04f};
    rng = before;
    agent_act(agent, s, &(struct agent_explore){.noise = noise}, &rng, &noisy);
    check_judgement(&c, s, &noisy);
    for (uint32_t j = 0; j < CONTROL_ACTION; j++)
        learning_near((double)noisy.continuous[j], fmin(fmax((double)again.continuous[j] + (double)noise[j], -1), 1),
                      1e-6, "a number");
    noise[0] = 50.0f;
    noise[1] = -50.0f;
    agent_act(agent, s, &(struct agent_explore){.noise = noise}, &rng, &bounded);
    assert_true(bounded.continuous[0] == 1.0f && bounded.continuous[1] == -1.0f);
    check_uniform(agent, s, &rng);
    control_case_fini(&c);
}

/* Greedy, uniform, noise within bounds; value and q against the critic in double. Only SAC draws its actions. */
TEST(act)
{
    for (uint32_t k = 0; k < CONTROL_ALGORITHMS; k++) {
        const struct agent_config config = control_config(control_algorithms[k].name);
        struct agent *agent = learning_agent(&config, &control_spec, 1);
        check_act(agent, k != CONTROL_SAC);
        agent_destroy(&agent);
    }
}

/* ---- learning ---- */

/* Rewards are -|a - a*|^2 in episodes of one step; a* depends on the observation. */
static void best_action(const float *observation, float *out)
{
    out[0] = 0.7f * observation[0];
    out[1] = 0.2f * observation[2] - 0.5f * observation[1];
}

/* Gives the root of the mean square error of greedy actions. */
static double learn_bandit(struct agent *agent, uint32_t steps)
{
    struct control_batch batch;
    struct agent_result result = {0};
    struct rng rng;
    rng_seed(&rng, 77);
    float best[CONTROL_ACTION];
    for (uint32_t step = 0; step < steps; step++) {
        control_fill(&batch, &rng, (uint32_t)agent->config.batch);
        batch.view.weight = NULL;
        for (uint32_t i = 0; i < batch.view.n; i++) {
            best_action(batch.observation + (size_t)i * CONTROL_OBSERVATION, best);
            float a = batch.action[i * CONTROL_ACTION] - best[0], b = batch.action[i * CONTROL_ACTION + 1] - best[1];
            batch.reward[i] = -(a * a + b * b);
            batch.discount[i] = 0.0f;
        }
        agent_learn(agent, &batch.view, &result);
    }
    double error = 0.0;
    const struct agent_explore greedy = {.greedy = true};
    for (uint32_t i = 0; i < 200; i++) {
        float s[CONTROL_OBSERVATION];
        struct agent_choice choice;
        for (uint32_t k = 0; k < CONTROL_OBSERVATION; k++)
            s[k] = learning_uniform(&rng);
        best_action(s, best);
        agent_act(agent, s, &greedy, &rng, &choice);
        for (uint32_t j = 0; j < CONTROL_ACTION; j++)
            error += pow((double)choice.continuous[j] - (double)best[j], 2);
    }
    return sqrt(error / 200 / CONTROL_ACTION);
}

TEST(bandit)
{
    static const uint32_t steps[CONTROL_ALGORITHMS] = {2000, 1500, 1500};
    int64_t hidden[] = {32, 32};
    for (uint32_t k = 0; k < CONTROL_ALGORITHMS; k++) {
        struct agent_config config = control_config(control_algorithms[k].name);
        config.hidden = (struct schema_list){.data = hidden, .count = 2};
        config.batch = 32;
        config.learning_rate = 3e-3;
        config.target_entropy = k == CONTROL_SAC ? -4 : 0;
        struct agent *agent = learning_agent(&config, &control_spec, 1);
        double before = learn_bandit(agent, 0), after = learn_bandit(agent, steps[k]);
        print_message("%s: bandit: error %.3f, then %.3f\n", config.algorithm, before, after);
        assert_true(before > 0.3 && after < 0.08);
        agent_destroy(&agent);
    }
}
