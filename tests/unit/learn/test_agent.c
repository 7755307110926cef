/* What all algorithms share: found by name, refused with a sentence, completed with defaults, saved and resumed to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/adder/adder.h"
#include "agent/learn/agent.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

#define N 8
#define LENGTH 5
#define INPUTS 3
#define ROWS (N * LENGTH)
#define ACTION_SIZE 2

static int64_t small[] = {8, 8};

static const rp_env_spec discrete = {
    .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {INPUTS}, .n_actions = 2};
static const rp_env_spec continuous = {.observation_dtype = RP_DTYPE_FLOAT32,
                                       .observation_rank = 1,
                                       .observation_shape = {INPUTS},
                                       .action_size = ACTION_SIZE,
                                       .action_low = {-1, -2},
                                       .action_high = {1, 2}};

static struct agent_config config_of(const char *algorithm)
{
    return (struct agent_config){.algorithm = (char *)algorithm};
}

static struct agent *make(const struct agent_config *config, const rp_env_spec *spec, uint64_t seed)
{
    rp_error err = {0};
    struct agent *agent = agent_new(config, "test", spec, seed, &err);
    if (!agent)
        fail_msg("%s: %s", config->algorithm, err.text);
    return agent;
}

static const rp_env_spec *spec_of(const struct agent_ops *ops)
{
    return ops->discrete ? &discrete : &continuous;
}

/* ---- refused ---- */

static void refuse(const struct agent_config *config, const char *env_name, const rp_env_spec *spec, const char *text)
{
    rp_error err = {0};
    assert_null(agent_new(config, env_name, spec, 1, &err));
    if (!facts_within(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

static void test_unknown_algorithms_are_refused(void **state)
{
    (void)state;
    struct agent_config config = config_of("dqm");
    refuse(&config, "x", &discrete, "unknown algorithm 'dqm' (did you mean 'dqn'?)");
    config = config_of("reinforcement");
    refuse(&config, "x", &discrete, "unknown algorithm 'reinforcement'; there are dqn, ");
    config = config_of(NULL);
    refuse(&config, "x", &discrete, "unknown algorithm ''");
    assert_null(agent_new(&config, "x", &discrete, 1, NULL));
}

static void test_actions_must_suit(void **state)
{
    (void)state;
    struct agent_config config = config_of("ddpg");
    refuse(&config, "CartPole-v1", &discrete,
           "ddpg needs continuous actions; CartPole-v1 has 2 discrete ones: use dqn, impala or bc");
    config = config_of("dqn");
    refuse(&config, "Pendulum-v1", &continuous,
           "dqn needs discrete actions; an action of Pendulum-v1 is 2 real numbers: use ddpg, td3, sac or bc");
}

static void test_numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    struct agent_config config = config_of("dqn");
    config.discount = 1.5;
    refuse(&config, "x", &discrete, "agent.discount is 1.5; it must lie between 0 and 1");
    config.discount = NAN;
    refuse(&config, "x", &discrete, "agent.discount is nan");
    config = config_of("dqn");
    config.batch = -1;
    refuse(&config, "x", &discrete, "agent.batch is -1");
    config = config_of("dqn");
    config.learning_rate = -1e-3;
    refuse(&config, "x", &discrete, "agent.learning_rate");
    config = config_of("dqn");
    config.target_period = 10;
    config.tau = 0.1;
    refuse(&config, "x", &discrete, "give one of them");
    config = config_of("dqn");
    config.activation = 2;
    refuse(&config, "x", &discrete, "agent.activation is 2");
    config = config_of("dqn");
    config.optimiser = 9;
    refuse(&config, "x", &discrete, "agent.optimiser is 9");
}

static void test_networks_must_fit(void **state)
{
    (void)state;
    struct agent_config config = config_of("dqn");
    config.filters = 4;
    refuse(&config, "CartPole-v1", &discrete, "observations of CartPole-v1 have rank 1, not 3");
    rp_env_spec image = {
        .observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3, .observation_shape = {10, 5, 1}, .n_actions = 3};
    config.kernel = 6;
    refuse(&config, "Catch", &image, "agent.kernel is 6, but images of Catch are 10 x 5");
    config = config_of("dqn");
    int64_t bad[] = {64, 0};
    config.hidden = (struct schema_list){.data = bad, .count = 2};
    refuse(&config, "x", &discrete, "agent.hidden[1] is 0");
    int64_t many[NET_MAX_HIDDEN + 1] = {4, 4, 4, 4, 4, 4, 4, 4, 4};
    config.hidden = (struct schema_list){.data = many, .count = NET_MAX_HIDDEN + 1};
    refuse(&config, "x", &discrete, "agent.hidden has 9 layers; at most 8");
    rp_env_spec both = discrete;
    both.action_size = 1;
    config = config_of("dqn");
    refuse(&config, "x", &both, "both");
}

/* ---- completed ---- */

static void test_defaults_are_the_algorithms(void **state)
{
    (void)state;
    struct agent_config config = config_of("dqn");
    struct agent *agent = make(&config, &discrete, 1);
    assert_int_equal(agent->config.batch, 256);
    assert_int_equal(agent->config.target_period, 100);
    assert_true(agent->config.discount == 0.99 && agent->config.learning_rate == 1e-3);
    assert_true(agent->config.policy_learning_rate == 1e-3);
    assert_true(agent->config.tau == 0.0 && agent->config.huber == 0.0 && agent->config.importance_exponent == 0.0);
    assert_int_equal(agent->config.hidden.count, 2);
    agent_destroy(&agent);
    assert_null(agent);

    config.clip_norm = -1.0;
    config.importance_exponent = -1.0;
    config.tau = 0.01;
    config.batch = 7;
    agent = make(&config, &discrete, 1);
    assert_true(agent->config.clip_norm == 0.0);
    assert_true(agent->config.importance_exponent == 0.2);
    assert_int_equal(agent->config.target_period, 0);
    assert_int_equal(agent->config.batch, 7);
    agent_destroy(&agent);

    config = config_of("impala");
    agent = make(&config, &discrete, 1);
    assert_true(agent->config.entropy_cost == 0.01 && agent->config.value_cost == 0.5);
    assert_true(agent->config.clip_norm == 40.0 && agent->config.rho_clip == 1.0);
    agent_destroy(&agent);
    config.entropy_cost = -1.0;
    agent = make(&config, &discrete, 1);
    assert_true(agent->config.entropy_cost == 0.0);
    agent_destroy(&agent);
}

/* ---- helpers ---- */

static void test_bytes_become_floats(void **state)
{
    (void)state;
    rp_env_spec image = {.observation_dtype = RP_DTYPE_UINT8, .observation_rank = 2, .observation_shape = {2, 3}};
    uint8_t bytes[12];
    float scratch[12], floats[3];
    for (uint32_t i = 0; i < 12; i++)
        bytes[i] = (uint8_t)(i * 23);
    const float *out = agent_floats(&image, bytes, 2, scratch);
    assert_ptr_equal(out, scratch);
    for (uint32_t i = 0; i < 12; i++)
        assert_true(out[i] == (float)bytes[i]);
    assert_ptr_equal(agent_floats(&discrete, floats, 1, scratch), floats);
}

static void test_scalars_are_bounded_and_unique(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i",
                                        "j", "k", "l", "m", "n", "o", "p", "q"};
    struct agent_result result = {0};
    for (uint32_t i = 0; i < 17; i++)
        agent_scalar(&result, names[i], i);
    assert_int_equal(result.n_scalars, AGENT_MAX_SCALARS);
    agent_scalar(&result, "c", 9.0);
    assert_int_equal(result.n_scalars, AGENT_MAX_SCALARS);
    assert_true(result.scalars[2].value == 9.0);
}

/* ---- saved and resumed ---- */

struct data {
    float observation[ROWS][INPUTS], next[ROWS][INPUTS], reward[ROWS], discount[ROWS], log_prob[ROWS];
    float continuous[ROWS][ACTION_SIZE];
    int32_t discrete[ROWS];
    uint8_t step_type[ROWS];
    struct agent_batch batch;
};

static void make_data(struct data *self, const struct agent_ops *ops, struct rng *rng)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        for (uint32_t k = 0; k < INPUTS; k++) {
            self->observation[i][k] = (float)(2.0 * rng_unit(rng) - 1.0);
            self->next[i][k] = (float)(2.0 * rng_unit(rng) - 1.0);
        }
        for (uint32_t k = 0; k < ACTION_SIZE; k++)
            self->continuous[i][k] = (float)(2.0 * rng_unit(rng) - 1.0);
        self->discrete[i] = (int32_t)rng_below(rng, 2);
        self->reward[i] = (float)rng_unit(rng);
        self->discount[i] = rng_below(rng, 4) ? 1.0f : 0.0f;
        self->log_prob[i] = -0.7f;
        self->step_type[i] = STEP_MID;
    }
    self->batch = (struct agent_batch){
        .n = N,
        .length = ops->data == AGENT_SEQUENCES ? LENGTH : 1,
        .observation = self->observation,
        .next_observation = self->next,
        .action = ops->discrete ? (const void *)self->discrete : (const void *)self->continuous,
        .reward = self->reward,
        .discount = self->discount,
        .log_prob = self->log_prob,
        .step_type = self->step_type,
    };
}

static struct agent_config learner_config(const struct agent_ops *ops)
{
    struct agent_config config = config_of(ops->name);
    config.hidden = (struct schema_list){.data = small, .count = 2};
    config.batch = N;
    config.target_period = 4;
    return config;
}

static void learn(struct agent *agent, uint64_t seed, int steps)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (int i = 0; i < steps; i++) {
        struct data data;
        struct agent_result result = {0};
        make_data(&data, agent->ops, &rng);
        agent_learn(agent, &data.batch, &result);
        assert_true(result.n_scalars > 0 && result.n_scalars < AGENT_MAX_SCALARS);
        assert_non_null(result.priority);
        for (uint32_t k = 0; k < N; k++)
            assert_true(result.priority[k] >= 0.0);
    }
}

static void copy(const struct agent *from, struct agent *to, uint32_t n)
{
    size_t size = weights_size(from->tensors, n);
    void *block = malloc(size);
    assert_non_null(block);
    weights_encode(from->tensors, n, block);
    rp_error err = {0};
    if (weights_decode(block, size, to->tensors, n, &err) != RP_OK)
        fail_msg("%s", err.text);
    free(block);
}

static void check_same_actions(struct agent *a, struct agent *b, bool greedy)
{
    struct rng data, one, other;
    rng_seed(&data, 77);
    rng_seed(&one, 5);
    rng_seed(&other, 5);
    const float noise[ACTION_SIZE] = {0.1f, -0.2f};
    struct agent_explore explore = {.greedy = greedy, .epsilon = 0.3, .noise = noise};
    for (int i = 0; i < 50; i++) {
        float observation[INPUTS];
        for (uint32_t k = 0; k < INPUTS; k++)
            observation[k] = (float)(4.0 * rng_unit(&data) - 2.0);
        struct agent_choice x = {0}, y = {0};
        a->ops->act(a, observation, &explore, &one, &x);
        b->ops->act(b, observation, &explore, &other, &y);
        assert_memory_equal(&x, &y, sizeof x);
        assert_true(a->ops->value(a, observation) == b->ops->value(b, observation));
    }
}

static void check_same_tensors(const struct agent *a, const struct agent *b)
{
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint32_t i = 0; i < a->n_tensors; i++) {
        assert_string_equal(a->tensors[i].name, b->tensors[i].name);
        if (memcmp(a->tensors[i].data, b->tensors[i].data, tensor_bytes(&a->tensors[i])) != 0)
            fail_msg("%s: tensor %s differs", a->ops->name, a->tensors[i].name);
    }
}

static void test_a_resumed_learner_goes_on_to_the_bit(void **state)
{
    (void)state;
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++) {
        struct agent_config config = learner_config(*ops);
        struct agent *first = make(&config, spec_of(*ops), 1), *second = make(&config, spec_of(*ops), 2);
        assert_string_equal(first->tensors[first->n_tensors - 1].name, "steps");
        assert_memory_not_equal(first->params, second->params, first->n_params * sizeof(float));
        learn(first, 10, 7);
        copy(first, second, first->n_tensors);
        assert_int_equal(second->steps, 7);
        check_same_actions(first, second, false);
        learn(first, 20, 10);
        learn(second, 20, 10);
        assert_int_equal(second->steps, 17);
        check_same_tensors(first, second);
        check_same_actions(first, second, false);
        agent_destroy(&first);
        agent_destroy(&second);
    }
}

static void test_an_actor_needs_the_policy_alone(void **state)
{
    (void)state;
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++) {
        struct agent_config config = learner_config(*ops);
        struct agent *learner = make(&config, spec_of(*ops), 1), *actor = make(&config, spec_of(*ops), 2);
        assert_true(learner->n_policy > 0 && learner->n_policy < learner->n_tensors);
        learn(learner, 10, 5);
        copy(learner, actor, learner->n_policy);
        assert_int_equal(actor->steps, 0);
        check_same_actions(learner, actor, true);
        check_same_actions(learner, actor, false);
        agent_destroy(&learner);
        agent_destroy(&actor);
    }
}

/* Two learners that apply the same vectors stay the same, whatever batches those came from. */
static void test_the_same_gradients_keep_learners_equal(void **state)
{
    (void)state;
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++) {
        struct agent_config config = learner_config(*ops);
        struct agent *one = make(&config, spec_of(*ops), 1), *other = make(&config, spec_of(*ops), 1);
        size_t bytes = one->n_params * sizeof(float);
        float *before = malloc(bytes);
        assert_non_null(before);
        struct rng rng;
        rng_seed(&rng, 3);
        for (int i = 0; i < 8; i++) {
            struct data data;
            struct agent_result result = {0};
            make_data(&data, *ops, &rng);
            (*ops)->gradient(other, &data.batch, &result);
            make_data(&data, *ops, &rng);
            memcpy(before, one->params, bytes);
            (*ops)->gradient(one, &data.batch, &result);
            assert_memory_equal(before, one->params, bytes);
            assert_memory_not_equal(one->grads, other->grads, bytes);
            for (uint32_t k = 0; k < one->n_params; k++)
                one->grads[k] = other->grads[k] = 0.5f * (one->grads[k] + other->grads[k]);
            (*ops)->apply(one, &result);
            (*ops)->apply(other, &result);
            assert_memory_not_equal(before, one->params, bytes);
        }
        assert_int_equal(one->steps, 8);
        check_same_tensors(one, other);
        free(before);
        agent_destroy(&one);
        agent_destroy(&other);
    }
}

/* The same seed gives the same agent; a deep one has more tensors than any other and still room for them. */
static void test_seeds_and_depth(void **state)
{
    (void)state;
    int64_t deep[NET_MAX_HIDDEN] = {4, 4, 4, 4, 4, 4, 4, 4};
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++) {
        struct agent_config config = learner_config(*ops);
        config.hidden = (struct schema_list){.data = deep, .count = NET_MAX_HIDDEN};
        struct agent *a = make(&config, spec_of(*ops), 9), *b = make(&config, spec_of(*ops), 9);
        check_same_tensors(a, b);
        for (uint32_t i = 0; i < a->n_tensors; i++)
            for (uint32_t k = 0; k < i; k++)
                assert_string_not_equal(a->tensors[i].name, a->tensors[k].name);
        agent_destroy(&a);
        agent_destroy(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_algorithms_are_refused),
        cmocka_unit_test(test_actions_must_suit),
        cmocka_unit_test(test_numbers_out_of_range_are_refused),
        cmocka_unit_test(test_networks_must_fit),
        cmocka_unit_test(test_defaults_are_the_algorithms),
        cmocka_unit_test(test_bytes_become_floats),
        cmocka_unit_test(test_scalars_are_bounded_and_unique),
        cmocka_unit_test(test_a_resumed_learner_goes_on_to_the_bit),
        cmocka_unit_test(test_an_actor_needs_the_policy_alone),
        cmocka_unit_test(test_the_same_gradients_keep_learners_equal),
        cmocka_unit_test(test_seeds_and_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
