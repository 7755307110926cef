/* Behaviour cloning against losses of its own: gradients by finite differences, experts that can be imitated exactly, acting. */
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
#define SIZE 2

static int64_t two_layers[] = {6, 5};

static const rp_env_spec discrete = {
    .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {INPUTS}, .n_actions = ACTIONS};
static const rp_env_spec continuous = {.observation_dtype = RP_DTYPE_FLOAT32,
                                       .observation_rank = 1,
                                       .observation_shape = {INPUTS},
                                       .action_size = SIZE,
                                       .action_low = {-2, 0},
                                       .action_high = {2, 1}};

static struct agent_config make_config(void)
{
    return (struct agent_config){
        .algorithm = (char *)"bc", .hidden = {.data = two_layers, .count = 2}, .batch = N, .importance_exponent = -1};
}

static struct agent *make(const struct agent_config *config, const rp_env_spec *spec, uint64_t seed)
{
    rp_error err = {0};
    struct agent *agent = agent_new(config, "test", spec, seed, &err);
    if (!agent)
        fail_msg("%s", err.text);
    return agent;
}

static float uniform(struct rng *rng)
{
    return (float)(2.0 * rng_unit(rng) - 1.0);
}

struct data {
    float observation[N][INPUTS], weight[N], real[N][SIZE];
    int32_t action[N];
    struct agent_batch batch;
};

/* Only what behaviour cloning looks at is there. */
static void make_data(struct data *self, struct rng *rng, bool labels, bool weights)
{
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < INPUTS; k++)
            self->observation[i][k] = uniform(rng);
        for (uint32_t k = 0; k < SIZE; k++)
            self->real[i][k] = uniform(rng);
        self->action[i] = (int32_t)rng_below(rng, ACTIONS);
        self->weight[i] = (float)rng_unit(rng);
    }
    self->batch = (struct agent_batch){.n = N,
                                       .length = 1,
                                       .observation = self->observation,
                                       .action = labels ? (const void *)self->action : self->real,
                                       .weight = weights ? self->weight : NULL};
}

static double naive_item(const struct dense *net, const struct data *data, uint32_t i)
{
    double out[ACTIONS], sum = 0.0;
    dense_forward(net, data->observation[i], out);
    if (data->batch.action == data->action) {
        for (uint32_t a = 0; a < ACTIONS; a++)
            sum += exp(out[a]);
        return log(sum) - out[data->action[i]];
    }
    for (uint32_t k = 0; k < SIZE; k++)
        sum += 0.5 * pow(tanh(out[k]) - (double)data->real[i][k], 2.0);
    return sum;
}

static double naive_loss(const struct dense *net, const struct data *data)
{
    double loss = 0.0;
    for (uint32_t i = 0; i < N; i++)
        loss += (data->batch.weight ? (double)data->weight[i] : 1.0) * naive_item(net, data, i) / N;
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
    struct dense net;
    dense_init(&net, agent, "policy");
    assert_int_equal(net.n_params, agent->n_params);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    check_near(scalar_of(&result, "loss"), naive_loss(&net, data), 1e-5, "the loss");
    for (uint32_t i = 0; i < N; i++)
        check_near(result.priority[i], naive_item(&net, data, i), 1e-5, "a priority");
    for (uint32_t k = 0; k < net.n_params; k++) {
        const double step = 1e-6;
        double at = net.params[k];
        net.params[k] = at + step;
        double more = naive_loss(&net, data);
        net.params[k] = at - step;
        double less = naive_loss(&net, data);
        net.params[k] = at;
        check_near(agent->grads[net.source[k] - agent->params], (more - less) / (2.0 * step), 2e-5, "a derivative");
    }
    dense_fini(&net);
}

static void test_gradient_is_that_of_the_loss(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, naive_seed("test_gradient_is_that_of_the_loss"));
    for (uint32_t options = 0; options < 16; options++) {
        struct agent_config config = make_config();
        config.activation = options & 2 ? 1 : 0;
        struct agent *agent = make(&config, options & 1 ? &discrete : &continuous, rng_next(&rng));
        /* Initial biases are 0: there a relu that only sees dead units has no derivative. */
        for (uint32_t k = 0; k < agent->n_params; k++)
            agent->params[k] += 0.3f * uniform(&rng);
        struct data data;
        make_data(&data, &rng, options & 1, options & 4);
        check_gradient(agent, &data);
        /* Once more: nothing is left over from the first time. */
        check_gradient(agent, &data);
        agent_destroy(&agent);
    }
}

static void test_actions_that_do_not_exist_teach_nothing(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3);
    struct agent_config config = make_config();
    struct agent *agent = make(&config, &discrete, 1);
    struct data data;
    make_data(&data, &rng, true, false);
    for (uint32_t i = 0; i < N; i++)
        data.action[i] = i % 2 ? -1 : ACTIONS;
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(agent->grads[k] == 0.0f);
    assert_true(result.priority[0] == 0.0);
    assert_true(scalar_of(&result, "loss") == 0.0 && scalar_of(&result, "accuracy") == 0.0);
    agent_destroy(&agent);
}

/* Large outputs must not overflow. */
static void test_sure_of_itself_and_wrong(void **state)
{
    (void)state;
    struct agent_config config = make_config();
    config.hidden.count = 1;
    struct agent *agent = make(&config, &discrete, 1);
    struct rng rng;
    rng_seed(&rng, 4);
    struct data data;
    make_data(&data, &rng, true, false);
    for (uint32_t k = 0; k < agent->n_params; k++)
        agent->params[k] *= 1e4f;
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    assert_true(isfinite(scalar_of(&result, "loss")));
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(isfinite(agent->grads[k]));
    agent_destroy(&agent);
}

/* An expert whose rule a network can learn: which of the inputs is the largest; and a smooth curve. */
static double imitate(const rp_env_spec *spec, uint32_t steps, struct agent *agent)
{
    struct rng rng;
    rng_seed(&rng, 5);
    double loss = 0.0;
    for (uint32_t step = 0; step < steps; step++) {
        struct data data;
        make_data(&data, &rng, spec->n_actions > 0, false);
        for (uint32_t i = 0; i < N; i++) {
            const float *x = data.observation[i];
            data.action[i] = x[0] > x[1] ? (x[0] > x[2] ? 0 : 2) : (x[1] > x[2] ? 1 : 2);
            data.real[i][0] = 0.5f * (x[0] + x[1] * x[2]);
            data.real[i][1] = 0.5f * (x[2] - x[0]);
        }
        struct agent_result result = {0};
        agent_learn(agent, &data.batch, &result);
        loss = step == 0 ? scalar_of(&result, "loss") : 0.99 * loss + 0.01 * scalar_of(&result, "loss");
    }
    assert_int_equal(agent->steps, steps);
    return loss;
}

static void test_imitates_experts(void **state)
{
    (void)state;
    int64_t hidden[] = {32};
    struct agent_config config = make_config();
    config.hidden.data = hidden;
    config.hidden.count = 1;
    config.activation = 1;
    config.learning_rate = 3e-3;
    config.policy_learning_rate = 1e-2; /* the policy's own rate counts: all of it is the policy */
    struct rng rng;
    rng_seed(&rng, 6);
    struct agent *agent = make(&config, &discrete, 2);
    assert_true(imitate(&discrete, 6000, agent) < 0.15);
    uint32_t right = 0;
    for (uint32_t i = 0; i < 200; i++) {
        float x[INPUTS] = {uniform(&rng), uniform(&rng), uniform(&rng)};
        struct agent_choice choice;
        agent->ops->act(agent, x, &(struct agent_explore){.greedy = true}, &rng, &choice);
        right += choice.discrete == (x[0] > x[1] ? (x[0] > x[2] ? 0 : 2) : (x[1] > x[2] ? 1 : 2));
    }
    assert_true(right >= 180);
    agent_destroy(&agent);

    agent = make(&config, &continuous, 2);
    assert_true(imitate(&continuous, 6000, agent) < 0.005);
    for (uint32_t i = 0; i < 100; i++) {
        float x[INPUTS] = {uniform(&rng), uniform(&rng), uniform(&rng)};
        struct agent_choice choice;
        agent->ops->act(agent, x, &(struct agent_explore){.greedy = true}, &rng, &choice);
        check_near(choice.continuous[1], 0.5 * (double)(x[2] - x[0]), 0.15, "an action");
    }
    agent_destroy(&agent);
}

static void test_acts_as_it_is_told(void **state)
{
    (void)state;
    struct agent_config config = make_config();
    struct rng rng;
    rng_seed(&rng, 7);
    float x[INPUTS] = {0.3f, -0.2f, 0.9f}, noise[SIZE] = {0.0f, 5.0f};
    struct agent_choice greedy, choice;
    struct agent *agent = make(&config, &discrete, 3);
    agent->ops->act(agent, x, &(struct agent_explore){.greedy = true, .epsilon = 1, .uniform = true}, &rng, &greedy);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 200; i++) {
        agent->ops->act(agent, x, &(struct agent_explore){.epsilon = 0}, &rng, &choice);
        assert_int_equal(choice.discrete, greedy.discrete);
        agent->ops->act(agent, x, &(struct agent_explore){.epsilon = 1}, &rng, &choice);
        seen |= 1u << choice.discrete;
    }
    assert_int_equal(seen, (1u << ACTIONS) - 1);
    assert_true(agent->ops->value(agent, x) == 0.0f && choice.value == 0.0f);
    agent_destroy(&agent);

    agent = make(&config, &continuous, 3);
    agent->ops->act(agent, x, &(struct agent_explore){.greedy = true, .noise = noise}, &rng, &greedy);
    agent->ops->act(agent, x, &(struct agent_explore){.noise = noise}, &rng, &choice);
    assert_true(choice.continuous[0] == greedy.continuous[0] && choice.continuous[1] == 1.0f);
    assert_true(fabsf(greedy.continuous[1]) < 1.0f);
    agent_destroy(&agent);
}

/* Two learners that apply the same vectors stay the same, and actors need the network alone. */
static void test_gradient_and_apply_are_apart(void **state)
{
    (void)state;
    struct agent_config config = make_config();
    struct agent *one = make(&config, &discrete, 9), *two = make(&config, &discrete, 9);
    struct rng rng;
    rng_seed(&rng, 8);
    for (uint32_t step = 0; step < 20; step++) {
        struct data data;
        struct agent_result result = {0};
        make_data(&data, &rng, true, false);
        float *before = malloc(one->n_params * sizeof(float));
        memcpy(before, one->params, one->n_params * sizeof(float));
        one->ops->gradient(one, &data.batch, &result);
        assert_memory_equal(before, one->params, one->n_params * sizeof(float));
        free(before);
        memcpy(two->grads, one->grads, one->n_params * sizeof(float));
        one->ops->apply(one, &result);
        two->ops->apply(two, &result);
    }
    assert_memory_equal(one->params, two->params, one->n_params * sizeof(float));
    assert_int_equal(one->n_policy, 6);
    assert_string_equal(one->tensors[0].name, "policy/layer0/weight");
    agent_destroy(&one);
    agent_destroy(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_is_that_of_the_loss),
        cmocka_unit_test(test_actions_that_do_not_exist_teach_nothing),
        cmocka_unit_test(test_sure_of_itself_and_wrong),
        cmocka_unit_test(test_imitates_experts),
        cmocka_unit_test(test_acts_as_it_is_told),
        cmocka_unit_test(test_gradient_and_apply_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
