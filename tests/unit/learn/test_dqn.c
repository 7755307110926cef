/* DQN against a loss of its own: gradients by finite differences, a chain whose values are known, exploration. */

#include "tests/support/learning.h"
#include "tests/support/naive.h"

#define N 7
#define INPUTS 3
#define ACTIONS 4

static int64_t two_layers[] = {6, 5};

static const rp_env_spec flat = {
    .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {INPUTS}, .n_actions = ACTIONS};

static struct agent_config make_config(void)
{
    return (struct agent_config){
        .algorithm = (char *)"dqn",
        .hidden = {.data = two_layers, .count = 2},
        .batch = N,
        .discount = 0.9,
    };
}

struct data {
    float observation[N][INPUTS], next[N][INPUTS], reward[N], discount[N], weight[N];
    int32_t action[N];
    struct agent_batch batch;
};

static void make_data(struct data *self, struct rng *rng, bool weights)
{
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < INPUTS; k++) {
            self->observation[i][k] = learning_uniform(rng);
            self->next[i][k] = learning_uniform(rng);
        }
        self->action[i] = (int32_t)rng_below(rng, ACTIONS);
        self->reward[i] = 3.0f * learning_uniform(rng);
        self->discount[i] = i % 3 == 0 ? 0.0f : 0.81f;
        self->weight[i] = (float)rng_unit(rng);
    }
    self->batch = (struct agent_batch){
        .n = N,
        .length = 1,
        .observation = self->observation,
        .next_observation = self->next,
        .action = self->action,
        .reward = self->reward,
        .discount = self->discount,
        .weight = weights ? self->weight : NULL,
    };
}

/* y of each item: constants of the loss. */
static void naive_targets(struct agent *agent, const struct data *data, double y[N])
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
    dense_fini(&online);
    dense_fini(&target);
}

struct loss {
    const struct dense *online;
    const struct data *data;
    double y[N], huber;
};

static double naive_error(const struct loss *loss, uint32_t i)
{
    double q[ACTIONS];
    dense_forward(loss->online, loss->data->observation[i], q);
    return fabs(q[loss->data->action[i]] - loss->y[i]);
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

static void check_gradient(struct agent *agent, const struct data *data)
{
    struct dense online;
    struct loss loss = {.online = &online, .data = data, .huber = agent->config.huber};
    naive_targets(agent, data, loss.y);
    dense_init(&online, agent, "q");
    assert_int_equal(online.n_params, agent->n_params);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    learning_near(learning_scalar(&result, "loss"), naive_loss(&loss), 1e-5, "the loss");
    for (uint32_t i = 0; i < N; i++)
        learning_near(result.priority[i], naive_error(&loss, i), 1e-5, "a priority");
    learning_check_derivatives(agent, &online, naive_loss, &loss);
    dense_fini(&online);
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
        struct agent *agent = learning_agent(&config, &flat, rng_next(&rng));
        learning_shake_target(agent, &rng);
        learning_shake(agent, &rng, 0.3f);
        struct data data;
        make_data(&data, &rng, options & 16);
        check_gradient(agent, &data);
        /* Once more: nothing is left over from the first time. */
        check_gradient(agent, &data);
        agent_destroy(&agent);
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
    struct data data;
    make_data(&data, &rng, true);
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
            learning_near(both->grads[k], single->grads[k], 1e-5, "a derivative");
        agent_destroy(&single);
        agent_destroy(&both);
    }
}

#define STATES 5

/* A corridor: right from the last state is worth 1 and ends it, left in the first one stays. All steps as one batch. */
static void make_chain(float observation[2 * STATES][STATES], float next[2 * STATES][STATES], int32_t *action,
                       float *reward, float *discount, double q[STATES][2])
{
    memset(observation, 0, 2 * STATES * STATES * sizeof(float));
    memset(next, 0, 2 * STATES * STATES * sizeof(float));
    for (int s = 0; s < STATES; s++) {
        for (int a = 0; a < 2; a++) {
            int i = 2 * s + a, to = a == 1 ? s + 1 : s > 0 ? s - 1 : 0;
            action[i] = a;
            reward[i] = to == STATES ? 1.0f : 0.0f;
            discount[i] = to == STATES ? 0.0f : 1.0f;
            observation[i][s] = 1.0f;
            next[i][to == STATES ? s : to] = 1.0f;
        }
        q[s][1] = pow(0.9, STATES - 1 - s);
        q[s][0] = s > 0 ? pow(0.9, STATES - s + 1) : pow(0.9, STATES);
    }
}

static void learn_chain(struct agent_config config)
{
    rp_env_spec spec = {
        .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {STATES}, .n_actions = 2};
    float observation[2 * STATES][STATES], next[2 * STATES][STATES], reward[2 * STATES], discount[2 * STATES];
    int32_t action[2 * STATES];
    double q[STATES][2];
    make_chain(observation, next, action, reward, discount, q);
    int64_t hidden[] = {32};
    config.hidden.data = hidden;
    config.hidden.count = 1;
    config.batch = 2 * STATES;
    struct agent *agent = learning_agent(&config, &spec, 11);
    struct agent_batch batch = {.n = 2 * STATES,
                                .length = 1,
                                .observation = observation,
                                .next_observation = next,
                                .action = action,
                                .reward = reward,
                                .discount = discount};
    struct agent_result result = {0};
    for (int step = 0; step < 3000; step++)
        agent_learn(agent, &batch, &result);
    for (int s = 0; s < STATES; s++) {
        struct agent_choice choice;
        struct rng rng = rng_of(1);
        learning_act(agent, observation[2 * s], &(struct agent_explore){.greedy = true}, &rng, &choice);
        assert_int_equal(choice.discrete, 1);
        learning_near(choice.value, q[s][1], 0.01, "the value of going right");
        learning_near(agent_value(agent, observation[2 * s]), q[s][1], 0.01, "the value");
        while (choice.discrete == 1)
            learning_act(agent, observation[2 * s], &(struct agent_explore){.uniform = true}, &rng, &choice);
        learning_near(choice.q, q[s][0], 0.01, "the value of going left");
    }
    agent_destroy(&agent);
}

TEST(learns_a_chain)
{
    struct agent_config config = make_config();
    config.learning_rate = 3e-3;
    config.target_period = 20;
    learn_chain(config);
    config.double_q = config.dueling = true;
    config.huber = 1.0;
    learn_chain(config);
    config.target_period = 0;
    config.tau = 0.05;
    learn_chain(config);
}

TEST(clips_the_gradient)
{
    struct rng rng = rng_of(8);
    struct data data;
    make_data(&data, &rng, false);
    struct agent_result result = {0};
    struct agent_config config = make_config();
    config.clip_norm = 1e-3;
    struct agent *agent = learning_agent(&config, &flat, 1);
    agent_learn(agent, &data.batch, &result);
    double sum = 0.0;
    for (uint32_t k = 0; k < agent->n_params; k++)
        sum += (double)agent->grads[k] * (double)agent->grads[k];
    learning_near(sqrt(sum), 1e-3, 1e-6, "the norm");
    assert_true(learning_scalar(&result, "gradient_norm") > 1e-2);
    agent_destroy(&agent);
}

TEST(explores_as_often_as_told)
{
    struct agent_config config = make_config();
    struct agent *agent = learning_agent(&config, &flat, 4);
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
    learning_near((double)others / draws, 0.4 * (ACTIONS - 1) / ACTIONS, 0.0115 / 1.3, "the share of explored actions");
    for (int a = 0; a < ACTIONS; a++)
        learning_near((double)counts[a] / draws, 1.0 / ACTIONS, 0.0115 / 1.25, "the share of an action");

    memset(agent->params, 0, agent->n_params * sizeof(float));
    learning_act(agent, observation, &(struct agent_explore){.greedy = true}, &rng, &choice);
    assert_int_equal(choice.discrete, 0);
    agent_destroy(&agent);
}
