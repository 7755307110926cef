/* Behaviour cloning against losses of its own: gradients by finite differences, acting. */

#include "tests/support/learning.h"
#include "tests/support/naive.h"

#define N 7
#define INPUTS LEARNING_INPUTS
#define ACTIONS LEARNING_ACTIONS
#define SIZE LEARNING_SIZE

static int64_t two_layers[] = {6, 5};

static struct agent_config make_config(void)
{
    return (struct agent_config){
        .algorithm = (char *)"bc", .hidden = {.data = two_layers, .count = 2}, .batch = N, .importance_exponent = -1};
}

/* Only what behaviour cloning looks at is there. */
static void make_data(struct learning_data *self, struct rng *rng, bool discrete, bool weights)
{
    learning_data(self, rng, discrete, N, 1);
    self->batch = (struct agent_batch){.n = N,
                                       .length = 1,
                                       .observation = self->observation,
                                       .action = self->batch.action,
                                       .weight = weights ? self->weight : NULL};
}

struct loss {
    const struct dense *net;
    const struct learning_data *data;
};

static double naive_item(const struct loss *loss, uint32_t i)
{
    const struct learning_data *data = loss->data;
    double out[ACTIONS], sum = 0.0;
    dense_forward(loss->net, data->observation[i], out);
    if (data->batch.action == data->discrete) {
        for (uint32_t a = 0; a < ACTIONS; a++)
            sum += exp(out[a]);
        return log(sum) - out[data->discrete[i]];
    }
    for (uint32_t k = 0; k < SIZE; k++)
        sum += 0.5 * pow(tanh(out[k]) - (double)data->continuous[i][k], 2.0);
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

static void check_gradient(struct agent *agent, const struct learning_data *data)
{
    struct dense net;
    const struct loss loss = {.net = &net, .data = data};
    dense_init(&net, agent, "policy");
    assert_int_equal(net.n_params, agent->n_params);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    assert_near(learning_scalar(&result, "loss"), naive_loss(&loss), 1e-5);
    for (uint32_t i = 0; i < N; i++)
        assert_near(result.priority[i], naive_item(&loss, i), 1e-5);
    learning_check_derivatives(agent, &net, naive_loss, &loss);
}

TEST(gradient_is_that_of_the_loss)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t options = 0; options < 16; options++) {
        struct agent_config config = make_config();
        config.activation = options & 2 ? 1 : 0;
        struct agent *agent =
            learning_agent(&config, options & 1 ? &learning_discrete : &learning_continuous, rng_next(&rng));
        learning_shake(agent, &rng, 0.3f);
        struct learning_data data;
        make_data(&data, &rng, options & 1, options & 4);
        check_gradient(agent, &data);
        /* Once more: nothing is left over from the first time. */
        check_gradient(agent, &data);
    }
}

/* Large outputs must not overflow. */
TEST(sure_of_itself_and_wrong)
{
    struct agent_config config = make_config();
    config.hidden.count = 1;
    struct agent *agent = learning_agent(&config, &learning_discrete, 1);
    struct rng rng = rng_of(4);
    struct learning_data data;
    make_data(&data, &rng, true, false);
    for (uint32_t k = 0; k < agent->n_params; k++)
        agent->params[k] *= 1e4f;
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    assert_true(isfinite(learning_scalar(&result, "loss")));
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(isfinite(agent->grads[k]));
}

TEST(acts_as_it_is_told)
{
    struct agent_config config = make_config();
    struct rng rng = rng_of(7);
    float x[INPUTS] = {0.3f, -0.2f, 0.9f}, noise[SIZE] = {0.0f, 5.0f};
    struct agent_choice greedy, choice;
    struct agent *agent = learning_agent(&config, &learning_discrete, 3);
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

    agent = learning_agent(&config, &learning_continuous, 3);
    learning_act(agent, x, &(struct agent_explore){.greedy = true, .noise = noise}, &rng, &greedy);
    learning_act(agent, x, &(struct agent_explore){.noise = noise}, &rng, &choice);
    assert_true(choice.continuous[0] == greedy.continuous[0] && choice.continuous[1] == 1.0f);
    assert_true(fabsf(greedy.continuous[1]) < 1.0f);
}
