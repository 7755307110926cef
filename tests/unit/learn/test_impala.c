/* IMPALA against a loss of its own that cuts sequences into episodes first: gradients by finite differences, V-trace's targets as
 * the sum of the paper, rows that must not matter. */

#include "agent/learn/adder.h"
#include "tests/support/learning.h"
#include "tests/support/naive.h"

#define N 5
#define LENGTH 8
#define INPUTS 3
#define ACTIONS 3
#define GAMMA 0.9

static int64_t two_layers[] = {6, 5};

static const rp_env_spec flat = {
    .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {INPUTS}, .n_actions = ACTIONS};

static struct agent_config make_config(void)
{
    return (struct agent_config){
        .algorithm = (char *)"impala",
        .hidden = {.data = two_layers, .count = 2},
        .activation = 1,
        .batch = N,
        .discount = GAMMA,
        .entropy_cost = 0.3,
        .value_cost = 0.7,
    };
}

/* F first, m within, T the step that ends the episode, U the step that the time limit cuts, L last, p padding. */
static const char *const layouts[N] = {"Fmmmmmmm", "mmTLpppp", "mULFmmTL", "FTLFULFm", "mmmmmULp"};

struct data {
    float observation[N][LENGTH][INPUTS], reward[N][LENGTH], discount[N][LENGTH], log_prob[N][LENGTH], weight[N];
    int32_t action[N][LENGTH];
    uint8_t step_type[N][LENGTH];
    uint32_t lengths[N];
    struct agent_batch batch;
};

static uint8_t type_of(uint32_t i, uint32_t t)
{
    switch (layouts[i][t]) {
    case 'F':
        return STEP_FIRST;
    case 'L':
        return STEP_LAST;
    case 'p':
        return STEP_PADDING;
    default:
        return STEP_MID;
    }
}

static void make_data(struct data *self, struct rng *rng)
{
    memset(self, 0, sizeof *self);
    for (uint32_t i = 0; i < N; i++) {
        self->weight[i] = (float)(0.5 + 0.5 * rng_unit(rng));
        self->lengths[i] = LENGTH;
        for (uint32_t t = 0; t < LENGTH; t++) {
            uint8_t type = self->step_type[i][t] = type_of(i, t);
            for (uint32_t k = 0; k < INPUTS; k++)
                self->observation[i][t][k] = type == STEP_PADDING ? 9.0f : learning_uniform(rng);
            self->action[i][t] = (int32_t)rng_below(rng, ACTIONS);
            self->reward[i][t] = learning_uniform(rng);
            self->discount[i][t] =
                layouts[i][t] == 'T' ? 0.0f : 1.0f; /* rows without an action have all of this, too */
            self->log_prob[i][t] = (float)log(0.1 + 0.8 * rng_unit(rng));
        }
    }
    self->batch = (struct agent_batch){.n = N,
                                       .length = LENGTH,
                                       .observation = self->observation,
                                       .action = self->action,
                                       .reward = &self->reward[0][0],
                                       .discount = &self->discount[0][0],
                                       .weight = self->weight,
                                       .log_prob = &self->log_prob[0][0],
                                       .step_type = &self->step_type[0][0],
                                       .lengths = self->lengths};
}

/* Row t is the first of a transition if an action was taken there and the next row was seen. */
static bool counts(const struct data *data, uint32_t i, uint32_t t)
{
    return t + 1 < data->lengths[i] && data->step_type[i][t] < STEP_LAST;
}

static void naive_policy(const struct dense *policy, const float *x, double p[ACTIONS])
{
    double sum = 0.0;
    dense_forward(policy, x, p);
    for (uint32_t a = 0; a < ACTIONS; a++)
        sum += p[a] = exp(p[a]);
    for (uint32_t a = 0; a < ACTIONS; a++)
        p[a] /= sum;
}

/* Both networks, and what is constant in the loss. */
struct loss {
    const struct agent *agent;
    const struct data *data;
    struct dense policy, value;
    double target[N][LENGTH], advantage[N][LENGTH];
};

/* v_t of equation 1, walking forward to the end of the episode or of the sequence. */
static double naive_target(const struct loss *loss, uint32_t i, uint32_t from)
{
    const struct data *data = loss->data;
    double here, next, product = 1.0, p[ACTIONS];
    dense_forward(&loss->value, data->observation[i][from], &here);
    double sum = here;
    for (uint32_t t = from; counts(data, i, t); t++) {
        dense_forward(&loss->value, data->observation[i][t], &here);
        dense_forward(&loss->value, data->observation[i][t + 1], &next);
        naive_policy(&loss->policy, data->observation[i][t], p);
        double ratio = p[data->action[i][t]] / exp((double)data->log_prob[i][t]);
        double discount = GAMMA * (double)data->discount[i][t];
        sum += product * fmin(1.0, ratio) * ((double)data->reward[i][t] + discount * next - here);
        product *= discount * fmin(1.0, ratio);
    }
    return sum;
}

static void loss_init(struct loss *self, const struct agent *agent, const struct data *data)
{
    *self = (struct loss){.agent = agent, .data = data};
    dense_init(&self->policy, agent, "policy");
    dense_init(&self->value, agent, "value");
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t t = 0; t < LENGTH; t++) {
            if (!counts(data, i, t))
                continue;
            double here, p[ACTIONS];
            dense_forward(&self->value, data->observation[i][t], &here);
            naive_policy(&self->policy, data->observation[i][t], p);
            double rho = fmin(1.0, p[data->action[i][t]] / exp((double)data->log_prob[i][t]));
            self->target[i][t] = naive_target(self, i, t);
            self->advantage[i][t] = rho * ((double)data->reward[i][t] - here +
                                           GAMMA * (double)data->discount[i][t] * naive_target(self, i, t + 1));
        }
    }
}

static double naive_loss(const void *ctx)
{
    const struct loss *loss = ctx;
    const struct agent_config *config = &loss->agent->config;
    const struct data *data = loss->data;
    double sum = 0.0;
    uint32_t m = 0;
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t t = 0; t < LENGTH; t++) {
            if (!counts(data, i, t))
                continue;
            double here, p[ACTIONS], entropy = 0.0;
            dense_forward(&loss->value, data->observation[i][t], &here);
            naive_policy(&loss->policy, data->observation[i][t], p);
            for (uint32_t a = 0; a < ACTIONS; a++)
                entropy -= p[a] * log(p[a]);
            double error = loss->target[i][t] - here;
            sum += (double)data->weight[i] * (-loss->advantage[i][t] * log(p[data->action[i][t]]) +
                                              config->value_cost * error * error - config->entropy_cost * entropy);
            m++;
        }
    }
    return sum / m;
}

static void check_gradient(struct agent *agent, const struct data *data)
{
    struct loss loss;
    loss_init(&loss, agent, data);
    assert_int_equal(loss.policy.n_params + loss.value.n_params, agent->n_params);
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data->batch, &result);
    assert_near(learning_scalar(&result, "loss"), naive_loss(&loss), 1e-5);
    learning_check_derivatives(agent, &loss.policy, naive_loss, &loss);
    learning_check_derivatives(agent, &loss.value, naive_loss, &loss);
}

TEST(gradient_is_that_of_the_loss)
{
    struct rng rng = naive_rng(__func__);
    for (int round = 0; round < 4; round++) {
        struct agent_config config = make_config();
        struct agent *agent = learning_agent(&config, &flat, rng_next(&rng));
        learning_shake(agent, &rng, 0.5f);
        struct data data;
        make_data(&data, &rng);
        check_gradient(agent, &data);
        /* Shorter sequences: what lies past their end is not seen. */
        data.lengths[0] = 4;
        data.lengths[2] = 2;
        data.lengths[3] = 1;
        check_gradient(agent, &data);
    }
}

TEST(nothing_to_learn_from_is_no_error)
{
    struct rng rng = rng_of(4);
    struct agent_config config = make_config();
    struct agent *agent = learning_agent(&config, &flat, 1);
    struct data data;
    make_data(&data, &rng);
    memset(data.step_type, STEP_PADDING, sizeof data.step_type);
    data.action[0][0] = -7;
    data.step_type[0][0] = STEP_FIRST;
    data.step_type[0][1] = STEP_MID;
    /* What no adder writes: a step after the last one, a beginning without an end. */
    data.step_type[1][0] = STEP_LAST;
    data.step_type[1][1] = STEP_MID;
    data.step_type[1][2] = STEP_FIRST;
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(agent->grads[k] == 0.0f);
    data.batch.length = 1;
    agent->ops->gradient(agent, &data.batch, &result);
    assert_true(agent->grads[0] == 0.0f);
}

TEST(survives_ratios_past_all_bounds)
{
    struct rng rng = rng_of(1);
    struct agent_config config = make_config();
    struct agent *agent = learning_agent(&config, &flat, 1);
    struct data data;
    make_data(&data, &rng);
    memcpy(data.log_prob[0], (float[]){-1e30f, 1e30f, -INFINITY}, 3 * sizeof(float));
    struct agent_result result = {0};
    agent->ops->gradient(agent, &data.batch, &result);
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(isfinite(agent->grads[k]));
}

TEST(says_how_likely_its_action_was)
{
    struct rng rng = naive_rng(__func__);
    struct agent_config config = make_config();
    struct agent *agent = learning_agent(&config, &flat, 3);
    learning_shake(agent, &rng, 0.5f);
    const float x[INPUTS] = {0.5f, -1.0f, 0.25f};
    struct dense policy, value;
    dense_init(&policy, agent, "policy");
    dense_init(&value, agent, "value");
    double p[ACTIONS], v;
    naive_policy(&policy, x, p);
    dense_forward(&value, x, &v);
    struct rng before = rng;
    struct agent_choice choice;
    learning_act(agent, x, &(struct agent_explore){.greedy = true, .uniform = true}, &rng, &choice);
    assert_memory_equal(&before, &rng, sizeof rng);
    for (uint32_t a = 0; a < ACTIONS; a++)
        assert_true(p[choice.discrete] >= p[a]);
    assert_near(choice.value, v, 1e-5);
    assert_near(agent_value(agent, x), v, 1e-5);
    const int draws = 20000;
    int count[ACTIONS] = {0};
    for (int i = 0; i < draws; i++) {
        learning_act(agent, x, &(struct agent_explore){0}, &rng, &choice);
        assert_near(choice.log_prob, log(p[choice.discrete]), 1e-5);
        count[choice.discrete]++;
        learning_act(agent, x, &(struct agent_explore){.uniform = true}, &rng, &choice);
        assert_near(choice.log_prob, -log(ACTIONS), 1e-6);
    }
    /* Five standard deviations of a share are at most 0.018. */
    for (uint32_t a = 0; a < ACTIONS; a++)
        assert_true(fabs((double)count[a] / draws - p[a]) < 0.018);
}
