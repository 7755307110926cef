/* DQN against a loss of its own: gradients by finite differences, values, exploration. */

#include "tests/support/learning.h"
#include "tests/support/naive.h"

#define N 7
#define INPUTS LEARNING_INPUTS
#define ACTIONS LEARNING_ACTIONS

static int64_t two_layers[] = {6, 5};

static struct agent_config make_config(void)
{
    return (struct agent_config){
        .algorithm = (char *)"dqn",
        .hidden = {.data = two_layers, .count = 2},
        .batch = N,
        .discount = 0.9,
    };
}

/* y of each item: constants of the loss. */
static void naive_targets(struct agent *agent, const struct learning_data *data, double y[N])
{
    struct dense online, target;
    dense_init(&online, agent, "q");
    dense_init(&target, agent, "target");
    for (uint32_t i = 0; i < N; i++) {
        double chooser[ACTIONS], judge[ACTIONS];
        dense_forward(agent->config.double_q ? &online : &target, data->next[i], chooser);
        dense_forward(&target, data->next[i], judge);
        uint32_t best = 0;
        for (uint32_t a = 1; a < ACTIONS; a++)
            best = chooser[a] > chooser[best] ? a : best;
        y[i] = (double)data->reward[i] + 0.9 * (double)data->discount[i] * judge[best];
    }
}

struct loss {
    const struct dense *online;
    const struct learning_data *data;
    double y[N], huber;
};

static double naive_error(const struct loss *loss, uint32_t i)
{
    double q[ACTIONS];
    dense_forward(loss->online, loss->data->observation[i], q);
    return fabs(q[loss->data->discrete[i]] - loss->y[i]);
}

static double naive_loss(const void *ctx)
{
    const struct loss *loss = ctx;
    double sum = 0.0, huber = loss->huber;
    for (uint32_t i = 0; i < N; i++) {
        double error = naive_error(loss, i), h = 0.5 * error * error;
        if (huber > 0.0 && error > huber)
            h = 0.5 * huber * huber + huber * (error - huber);
        sum += (loss->data->batch.weight ? (double)loss->data->weight[i] : 1.0) * h / N;
    }
    return sum;
}

static void check_gradient(struct agent *agent, const struct learning_data *data)
{
    struct dense online;
    struct loss loss = {.online = &online, .data = data, .huber = agent->config.huber};
    naive_targets(agent, data, loss.y);
    dense_init(&online, agent, "q");
    assert_int_equal(online.n_params, agent->n_params);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    assert_near(learning_scalar(&result, "loss"), naive_loss(&loss), 1e-5);
    for (uint32_t i = 0; i < N; i++)
        assert_near(result.priority[i], naive_error(&loss, i), 1e-5);
    learning_check_derivatives(agent, &online, naive_loss, &loss);
}

/* An agent says what its network says. */
static void check_values(struct agent *agent, const float *observation, struct rng *rng)
{
    struct dense online;
    double q[ACTIONS], most = -INFINITY;
    dense_init(&online, agent, "q");
    dense_forward(&online, observation, q);
    for (uint32_t a = 0; a < ACTIONS; a++)
        most = fmax(most, q[a]);
    struct agent_choice choice;
    learning_act(agent, observation, &(struct agent_explore){.uniform = true}, rng, &choice);
    assert_near(choice.q, q[choice.discrete], 1e-5);
    assert_near(choice.value, most, 1e-5);
    assert_near(agent_value(agent, observation), most, 1e-5);
}

TEST(gradient_is_that_of_the_loss)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t options = 0; options < 32; options++) {
        struct agent_config config = make_config();
        config.double_q = options & 1;
        config.dueling = options & 2;
        config.huber = options & 4 ? 0.7 : 0.0;
        config.activation = options & 8 ? 1 : 0;
        struct agent *agent = learning_agent(&config, &learning_discrete, rng_next(&rng));
        learning_shake_target(agent, &rng);
        learning_shake(agent, &rng, 0.3f);
        struct learning_data data;
        learning_data(&data, &rng, true, N, 1);
        data.batch.weight = options & 16 ? data.weight : NULL;
        check_gradient(agent, &data);
        /* Once more: nothing is left over from the first time. */
        check_gradient(agent, &data);
        check_values(agent, data.observation[0], &rng);
    }
}

/* With equal networks double Q changes nothing, so its stacked batch must give what two separate passes give; here with
 * images of bytes and a convolution. */
TEST(stacked_batch_equals_separate_passes)
{
    struct rng rng = naive_rng(__func__);
    rp_env_spec spec = {.observation_dtype = RP_DTYPE_UINT8,
                        .observation_rank = 3,
                        .observation_shape = {5, 4, 2},
                        .n_actions = ACTIONS};
    uint8_t observation[N][40], next[N][40];
    struct learning_data data;
    learning_data(&data, &rng, true, N, 1);
    for (uint32_t i = 0; i < N * 40; i++) {
        observation[i / 40][i % 40] = (uint8_t)rng_below(&rng, 2);
        next[i / 40][i % 40] = (uint8_t)rng_below(&rng, 256) / 64;
    }
    data.batch.observation = observation;
    data.batch.next_observation = next;
    for (int dueling = 0; dueling < 2; dueling++) {
        struct agent_config config = make_config();
        config.filters = 3;
        config.dueling = dueling;
        struct agent *single = learning_agent(&config, &spec, 5);
        config.double_q = true;
        struct agent *both = learning_agent(&config, &spec, 5);
        struct agent_result result = {0};
        single->ops->gradient(single, &data.batch, &result);
        both->ops->gradient(both, &data.batch, &result);
        for (uint32_t k = 0; k < single->n_params; k++)
            assert_near(both->grads[k], single->grads[k], 1e-5);
    }
}

TEST(explores_as_often_as_told)
{
    struct agent_config config = make_config();
    struct agent *agent = learning_agent(&config, &learning_discrete, 4);
    const float observation[INPUTS] = {0.3f, -0.2f, 0.9f};
    struct rng rng = naive_rng(__func__);
    struct rng before = rng;
    struct agent_choice greedy, choice;
    learning_act(agent, observation, &(struct agent_explore){.greedy = true, .epsilon = 1.0}, &rng, &greedy);
    assert_memory_equal(&before, &rng, sizeof rng);
    assert_true(greedy.q == greedy.value);

    const int draws = 40000;
    int others = 0, counts[ACTIONS] = {0};
    for (int i = 0; i < draws; i++) {
        learning_act(agent, observation, &(struct agent_explore){.epsilon = 0.4}, &rng, &choice);
        others += choice.discrete != greedy.discrete;
        assert_true(choice.value == greedy.value);
        assert_true(choice.discrete == greedy.discrete ? choice.q == choice.value : choice.q < choice.value);
        learning_act(agent, observation, &(struct agent_explore){.uniform = true}, &rng, &choice);
        counts[choice.discrete]++;
    }
    /* Five standard deviations of a share near 0.3 are 0.0115. */
    assert_near((double)others / draws, 0.4 * (ACTIONS - 1) / ACTIONS, 0.0115 / 1.3);
    for (uint32_t a = 0; a < ACTIONS; a++)
        assert_near((double)counts[a] / draws, 1.0 / ACTIONS, 0.0115 / 1.25);

    memset(agent->params, 0, agent->n_params * sizeof(float));
    learning_act(agent, observation, &(struct agent_explore){.greedy = true}, &rng, &choice);
    assert_int_equal(choice.discrete, 0);
}
