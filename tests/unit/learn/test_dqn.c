/* DQN against a loss of its own: gradients by finite differences, a chain whose values are known, targets, exploration. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/learn/agent.h"
#include "tests/support/dense.h"
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

static struct agent *make(const struct agent_config *config, const rp_env_spec *spec, uint64_t seed)
{
    rp_error err = {0};
    struct agent *agent = agent_new(config, "test", spec, seed, &err);
    if (!agent)
        fail_msg("%s", err.text);
    return agent;
}

static struct tensor *tensor_of(struct agent *agent, const char *name)
{
    for (uint32_t i = 0; i < agent->n_tensors; i++)
        if (strcmp(agent->tensors[i].name, name) == 0)
            return &agent->tensors[i];
    fail_msg("no tensor '%s'", name);
    return NULL;
}

static float uniform(struct rng *rng)
{
    return (float)(2.0 * rng_unit(rng) - 1.0);
}

/* The target becomes another network than the online one. */
static void shake_target(struct agent *agent, struct rng *rng)
{
    for (uint32_t i = 0; i < agent->n_tensors; i++) {
        struct tensor *tensor = &agent->tensors[i];
        if (strncmp(tensor->name, "target/", 7) != 0)
            continue;
        for (uint64_t k = 0; k < tensor_bytes(tensor) / sizeof(float); k++)
            ((float *)tensor->data)[k] += uniform(rng);
    }
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
            self->observation[i][k] = uniform(rng);
            self->next[i][k] = uniform(rng);
        }
        self->action[i] = (int32_t)rng_below(rng, ACTIONS);
        self->reward[i] = 3.0f * uniform(rng);
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

static double naive_loss(const struct dense *online, const struct data *data, const double y[N], double huber,
                         double error[N])
{
    double loss = 0.0;
    for (uint32_t i = 0; i < N; i++) {
        double q[ACTIONS];
        dense_forward(online, data->observation[i], q);
        error[i] = fabs(q[data->action[i]] - y[i]);
        double h = 0.5 * error[i] * error[i];
        if (huber > 0.0 && error[i] > huber)
            h = 0.5 * huber * huber + huber * (error[i] - huber);
        loss += (data->batch.weight ? (double)data->weight[i] : 1.0) * h / N;
    }
    return loss;
}

static void check_near(double got, double expected, double tolerance, const char *what)
{
    if (!(fabs(got - expected) <= tolerance * (1.0 + fabs(expected))))
        fail_msg("%s is %.9g, not %.9g", what, got, expected);
}

static double scalar_of(const struct agent_result *result, const char *name)
{
    for (uint32_t i = 0; i < result->n_scalars; i++)
        if (strcmp(result->scalars[i].name, name) == 0)
            return result->scalars[i].value;
    fail_msg("no scalar '%s'", name);
    return 0.0;
}

static void check_gradient(struct agent *agent, const struct data *data)
{
    double y[N], error[N], ignored[N], huber = agent->config.huber;
    naive_targets(agent, data, y);
    struct dense online;
    dense_init(&online, agent, "q");
    assert_int_equal(online.n_params, agent->n_params);
    double loss = naive_loss(&online, data, y, huber, error);

    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    check_near(scalar_of(&result, "loss"), loss, 1e-5, "the loss");
    for (uint32_t i = 0; i < N; i++)
        check_near(result.priority[i], error[i], 1e-5, "a priority");
    for (uint32_t k = 0; k < online.n_params; k++) {
        const double step = 1e-6;
        double at = online.params[k];
        online.params[k] = at + step;
        double more = naive_loss(&online, data, y, huber, ignored);
        online.params[k] = at - step;
        double less = naive_loss(&online, data, y, huber, ignored);
        online.params[k] = at;
        check_near(agent->grads[online.source[k] - agent->params], (more - less) / (2.0 * step), 2e-5, "a derivative");
    }
    dense_fini(&online);
}

static void test_gradient_is_that_of_the_loss(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, naive_seed("test_gradient_is_that_of_the_loss"));
    for (uint32_t options = 0; options < 32; options++) {
        struct agent_config config = make_config();
        config.double_q = options & 1;
        config.dueling = options & 2;
        config.huber = options & 4 ? 0.7 : 0.0;
        config.activation = options & 8 ? 1 : 0;
        struct agent *agent = make(&config, &flat, rng_next(&rng));
        shake_target(agent, &rng);
        /* Initial biases are 0: there a relu that only sees dead units has no derivative. */
        for (uint32_t k = 0; k < agent->n_params; k++)
            agent->params[k] += 0.3f * uniform(&rng);
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
static void test_stacked_batch_equals_separate_passes(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, naive_seed("test_stacked_batch_equals_separate_passes"));
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
        struct agent *single = make(&config, &spec, 5);
        config.double_q = true;
        struct agent *both = make(&config, &spec, 5);
        assert_int_equal(both->config.kernel, 3);
        struct agent_result result = {0};
        single->ops->gradient(single, &data.batch, &result);
        both->ops->gradient(both, &data.batch, &result);
        for (uint32_t k = 0; k < single->n_params; k++)
            check_near(both->grads[k], single->grads[k], 1e-5, "a derivative");
        agent_destroy(&single);
        agent_destroy(&both);
    }
}

static void test_actions_that_do_not_exist_teach_nothing(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3);
    struct agent_config config = make_config();
    struct agent *agent = make(&config, &flat, 1);
    struct data data;
    make_data(&data, &rng, false);
    for (uint32_t i = 0; i < N; i++)
        data.action[i] = i % 2 ? -1 : ACTIONS;
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(agent->grads[k] == 0.0f);
    assert_true(result.priority[0] == 0.0);
    agent_destroy(&agent);
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
    struct agent *agent = make(&config, &spec, 11);
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
        struct rng rng;
        rng_seed(&rng, 1);
        agent->ops->act(agent, observation[2 * s], &(struct agent_explore){.greedy = true}, &rng, &choice);
        assert_int_equal(choice.discrete, 1);
        check_near(choice.value, q[s][1], 0.01, "the value of going right");
        check_near(agent->ops->value(agent, observation[2 * s]), q[s][1], 0.01, "the value");
        while (choice.discrete == 1)
            agent->ops->act(agent, observation[2 * s], &(struct agent_explore){.uniform = true}, &rng, &choice);
        check_near(choice.q, q[s][0], 0.01, "the value of going left");
    }
    agent_destroy(&agent);
}

static void test_learns_a_chain(void **state)
{
    (void)state;
    struct agent_config config = make_config();
    config.learning_rate = 3e-3;
    config.target_period = 20;
    learn_chain(config);
    config.double_q = config.dueling = true;
    config.huber = 1.0;
    learn_chain(config);
    config.target_period = 0;
    config.tau = 0.05;
    config.optimiser = OPTIM_RMSPROP;
    config.learning_rate = 2e-4;
    learn_chain(config);
}

static void test_target_follows(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 8);
    struct data data;
    make_data(&data, &rng, false);
    struct agent_result result = {0};
    struct agent_config config = make_config();
    config.target_period = 3;
    struct agent *agent = make(&config, &flat, 1);
    size_t bytes = agent->n_params * sizeof(float);
    /* All tensors of the target lie in one vector, in the order of the parameters. */
    const float *target = tensor_of(agent, "target/layer0/weight")->data;
    assert_memory_equal(target, agent->params, bytes);
    for (uint64_t step = 1; step <= 9; step++) {
        agent_learn(agent, &data.batch, &result);
        assert_int_equal(agent->steps, step);
        assert_int_equal(memcmp(target, agent->params, bytes) == 0, step % 3 == 0);
    }
    agent_destroy(&agent);

    config.target_period = 0;
    config.tau = 0.25;
    agent = make(&config, &flat, 1);
    target = tensor_of(agent, "target/layer0/weight")->data;
    for (int step = 0; step < 5; step++) {
        float before = target[4];
        agent_learn(agent, &data.batch, &result);
        check_near(target[4], before + 0.25f * (agent->params[4] - before), 1e-6, "the target");
    }
    agent_destroy(&agent);
}

static void test_clips_the_gradient(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 8);
    struct data data;
    make_data(&data, &rng, false);
    struct agent_result result = {0};
    struct agent_config config = make_config();
    config.clip_norm = 1e-3;
    struct agent *agent = make(&config, &flat, 1);
    agent_learn(agent, &data.batch, &result);
    double sum = 0.0;
    for (uint32_t k = 0; k < agent->n_params; k++)
        sum += (double)agent->grads[k] * (double)agent->grads[k];
    check_near(sqrt(sum), 1e-3, 1e-6, "the norm");
    assert_true(scalar_of(&result, "gradient_norm") > 1e-2);
    agent_destroy(&agent);
}

static void test_explores_as_often_as_told(void **state)
{
    (void)state;
    struct agent_config config = make_config();
    struct agent *agent = make(&config, &flat, 4);
    const float observation[INPUTS] = {0.3f, -0.2f, 0.9f};
    struct rng rng;
    rng_seed(&rng, naive_seed("test_explores_as_often_as_told"));
    struct rng before = rng;
    struct agent_choice greedy, choice;
    agent->ops->act(agent, observation, &(struct agent_explore){.greedy = true, .epsilon = 1.0}, &rng, &greedy);
    assert_memory_equal(&before, &rng, sizeof rng);
    assert_true(greedy.q == greedy.value);

    const int draws = 40000;
    int others = 0, counts[ACTIONS] = {0};
    for (int i = 0; i < draws; i++) {
        agent->ops->act(agent, observation, &(struct agent_explore){.epsilon = 0.4}, &rng, &choice);
        others += choice.discrete != greedy.discrete;
        assert_true(choice.value == greedy.value);
        assert_true(choice.discrete == greedy.discrete ? choice.q == choice.value : choice.q < choice.value);
        agent->ops->act(agent, observation, &(struct agent_explore){.uniform = true}, &rng, &choice);
        counts[choice.discrete]++;
    }
    /* Five standard deviations of a share near 0.3 are 0.0115. */
    check_near((double)others / draws, 0.4 * (ACTIONS - 1) / ACTIONS, 0.0115 / 1.3, "the share of explored actions");
    for (int a = 0; a < ACTIONS; a++)
        check_near((double)counts[a] / draws, 1.0 / ACTIONS, 0.0115 / 1.25, "the share of an action");

    memset(agent->params, 0, agent->n_params * sizeof(float));
    agent->ops->act(agent, observation, &(struct agent_explore){.greedy = true}, &rng, &choice);
    assert_int_equal(choice.discrete, 0);
    agent_destroy(&agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_is_that_of_the_loss),
        cmocka_unit_test(test_stacked_batch_equals_separate_passes),
        cmocka_unit_test(test_actions_that_do_not_exist_teach_nothing),
        cmocka_unit_test(test_learns_a_chain),
        cmocka_unit_test(test_target_follows),
        cmocka_unit_test(test_clips_the_gradient),
        cmocka_unit_test(test_explores_as_often_as_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
