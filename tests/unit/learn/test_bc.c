/* Behaviour cloning against losses of its own: gradients by finite differences, experts that can be imitated exactly, acting. */

#include "tests/support/learning.h"
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
            self->observation[i][k] = learning_uniform(rng);
        for (uint32_t k = 0; k < SIZE; k++)
            self->real[i][k] = learning_uniform(rng);
        self->action[i] = (int32_t)rng_below(rng, ACTIONS);
        self->weight[i] = (float)rng_unit(rng);
    }
    self->batch = (struct agent_batch){.n = N,
                                       .length = 1,
                                       .observation = self->observation,
                                       .action = labels ? (const void *)self->action : self->real,
                                       .weight = weights ? self->weight : NULL};
}

struct loss {
    const struct dense *net;
    const struct data *data;
};

static double naive_item(const struct loss *loss, uint32_t i)
{
    const struct data *data = loss->data;
    double out[ACTIONS], sum = 0.0;
    dense_forward(loss->net, data->observation[i], out);
    if (data->batch.action == data->action) {
        for (uint32_t a = 0; a < ACTIONS; a++)
            sum += exp(out[a]);
        return log(sum) - out[data->action[i]];
    }
    for (uint32_t k = 0; k < SIZE; k++)
        sum += 0.5 * pow(tanh(out[k]) - (double)data->real[i][k], 2.0);
    return sum;
}

static double naive_loss(const void *ctx)
{
    const struct loss *loss = ctx;
    double sum = 0.0;
    for (uint32_t i = 0; i < N; i++)
        sum += (loss->data->batch.weight ? (double)loss->data->weight[i] : 1.0) * naive_item(loss, i) / N;
    return sum;
}

static void check_gradient(struct agent *agent, const struct data *data)
{
    struct dense net;
    const struct loss loss = {.net = &net, .data = data};
    dense_init(&net, agent, "policy");
    assert_int_equal(net.n_params, agent->n_params);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    learning_near(learning_scalar(&result, "loss"), naive_loss(&loss), 1e-5, "the loss");
    for (uint32_t i = 0; i < N; i++)
        learning_near(result.priority[i], naive_item(&loss, i), 1e-5, "a priority");
    learning_check_derivatives(agent, &net, naive_loss, &loss);
    dense_fini(&net);
}

TEST(gradient_is_that_of_the_loss)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t options = 0; options < 16; options++) {
        struct agent_config config = make_config();
        config.activation = options & 2 ? 1 : 0;
        struct agent *agent = learning_agent(&config, options & 1 ? &discrete : &continuous, rng_next(&rng));
        learning_shake(agent, &rng, 0.3f);
        struct data data;
        make_data(&data, &rng, options & 1, options & 4);
        check_gradient(agent, &data);
        /* Once more: nothing is left over from the first time. */
        check_gradient(agent, &data);
        agent_destroy(&agent);
    }
}

/* Large outputs must not overflow. */
TEST(sure_of_itself_and_wrong)
{
    struct agent_config config = make_config();
    config.hidden.count = 1;
    struct agent *agent = learning_agent(&config, &discrete, 1);
    struct rng rng = rng_of(4);
    struct data data;
    make_data(&data, &rng, true, false);
    for (uint32_t k = 0; k < agent->n_params; k++)
        agent->params[k] *= 1e4f;
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    assert_true(isfinite(learning_scalar(&result, "loss")));
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(isfinite(agent->grads[k]));
    agent_destroy(&agent);
}

/* An expert whose rule a network can learn: which of the inputs is the largest; and a smooth curve. */
static double imitate(const rp_env_spec *spec, uint32_t steps, struct agent *agent)
{
    struct rng rng = rng_of(5);
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
        loss = step == 0 ? learning_scalar(&result, "loss") : 0.99 * loss + 0.01 * learning_scalar(&result, "loss");
    }
    assert_int_equal(agent->steps, steps);
    return loss;
}

TEST(imitates_experts)
{
    int64_t hidden[] = {32};
    struct agent_config config = make_config();
    config.hidden.data = hidden;
    config.hidden.count = 1;
    config.activation = 1;
    config.learning_rate = 1e-2;
    struct rng rng = rng_of(6);
    struct agent *agent = learning_agent(&config, &discrete, 2);
    assert_true(imitate(&discrete, 6000, agent) < 0.15);
    uint32_t right = 0;
    for (uint32_t i = 0; i < 200; i++) {
        float x[INPUTS] = {learning_uniform(&rng), learning_uniform(&rng), learning_uniform(&rng)};
        struct agent_choice choice;
        learning_act(agent, x, &(struct agent_explore){.greedy = true}, &rng, &choice);
        right += choice.discrete == (x[0] > x[1] ? (x[0] > x[2] ? 0 : 2) : (x[1] > x[2] ? 1 : 2));
    }
    assert_true(right >= 180);
    agent_destroy(&agent);

    agent = learning_agent(&config, &continuous, 2);
    assert_true(imitate(&continuous, 6000, agent) < 0.005);
    for (uint32_t i = 0; i < 100; i++) {
        float x[INPUTS] = {learning_uniform(&rng), learning_uniform(&rng), learning_uniform(&rng)};
        struct agent_choice choice;
        learning_act(agent, x, &(struct agent_explore){.greedy = true}, &rng, &choice);
        learning_near(choice.continuous[1], 0.5 * (double)(x[2] - x[0]), 0.15, "an action");
    }
    agent_destroy(&agent);
}

TEST(acts_as_it_is_told)
{
    struct agent_config config = make_config();
    struct rng rng = rng_of(7);
    float x[INPUTS] = {0.3f, -0.2f, 0.9f}, noise[SIZE] = {0.0f, 5.0f};
    struct agent_choice greedy, choice;
    struct agent *agent = learning_agent(&config, &discrete, 3);
    learning_act(agent, x, &(struct agent_explore){.greedy = true, .epsilon = 1, .uniform = true}, &rng, &greedy);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 200; i++) {
        learning_act(agent, x, &(struct agent_explore){.epsilon = 0}, &rng, &choice);
        assert_int_equal(choice.discrete, greedy.discrete);
        learning_act(agent, x, &(struct agent_explore){.epsilon = 1}, &rng, &choice);
        seen |= 1u << choice.discrete;
    }
    assert_int_equal(seen, (1u << ACTIONS) - 1);
    assert_true(agent_value(agent, x) == 0.0f && choice.value == 0.0f);
    agent_destroy(&agent);

    agent = learning_agent(&config, &continuous, 3);
    learning_act(agent, x, &(struct agent_explore){.greedy = true, .noise = noise}, &rng, &greedy);
    learning_act(agent, x, &(struct agent_explore){.noise = noise}, &rng, &choice);
    assert_true(choice.continuous[0] == greedy.continuous[0] && choice.continuous[1] == 1.0f);
    assert_true(fabsf(greedy.continuous[1]) < 1.0f);
    agent_destroy(&agent);
}
