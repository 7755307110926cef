/* What all algorithms share: found by name, refused with a sentence, completed with defaults, saved and resumed to the bit. */

#include "agent/learn/adder.h"
#include "tests/support/facts.h"
#include "tests/support/learning.h"
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

static const rp_env_spec *spec_of(const struct agent_ops *ops)
{
    return ops->discrete ? &discrete : &continuous;
}

/* ---- refused ---- */

static void refuse(const struct agent_config *config, const char *env_name, const rp_env_spec *spec, const char *text)
{
    err = (rp_error){0};
    assert_null(agent_new(config, env_name, spec, 1, &err));
    if (!facts_within(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

TEST(unknown_algorithms_are_refused)
{
    struct agent_config config = config_of("dqm");
    refuse(&config, "x", &discrete, "unknown algorithm 'dqm' (did you mean 'dqn'?)");
    config = config_of("reinforcement");
    refuse(&config, "x", &discrete, "unknown algorithm 'reinforcement'; there are dqn, ");
    config = config_of(NULL);
    refuse(&config, "x", &discrete, "unknown algorithm ''");
    assert_null(agent_new(&config, "x", &discrete, 1, NULL));
}

TEST(actions_must_suit)
{
    struct agent_config config = config_of("ddpg");
    refuse(&config, "CartPole-v1", &discrete,
           "ddpg needs continuous actions; CartPole-v1 has 2 discrete ones: use dqn, impala or bc");
    config = config_of("dqn");
    refuse(&config, "Pendulum-v1", &continuous,
           "dqn needs discrete actions; an action of Pendulum-v1 is 2 real numbers: use ddpg, td3, sac or bc");
}

TEST(networks_must_fit)
{
    struct agent_config config = config_of("dqn");
    config.filters = 4;
    refuse(&config, "CartPole-v1", &discrete, "observations of CartPole-v1 have rank 1, not 3");
    rp_env_spec image = {
        .observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3, .observation_shape = {10, 2, 1}, .n_actions = 3};
    refuse(&config, "Catch", &image, "agent.filters are 3 x 3, but images of Catch are 10 x 2");
    config = config_of("dqn");
    int64_t bad[] = {64, 0};
    config.hidden = (struct schema_list){.data = bad, .count = 2};
    refuse(&config, "x", &discrete, "agent.hidden[1] is 0");
    rp_env_spec both = discrete;
    both.action_size = 1;
    config = config_of("dqn");
    refuse(&config, "x", &both, "both");
}

/* ---- completed ---- */

TEST(defaults_are_the_algorithms)
{
    struct agent_config config = config_of("dqn");
    struct agent *agent = learning_agent(&config, &discrete, 1);
    assert_int_equal(agent->config.batch, 256);
    assert_int_equal(agent->config.target_period, 100);
    assert_true(agent->config.discount == 0.99 && agent->config.learning_rate == 1e-3);
    assert_true(agent->config.tau == 0.0 && agent->config.huber == 0.0 && agent->config.importance_exponent == 0.0);
    assert_int_equal(agent->config.hidden.count, 2);
    agent_destroy(&agent);
    assert_null(agent);

    config.clip_norm = -1.0;
    config.importance_exponent = -1.0;
    config.tau = 0.01;
    config.batch = 7;
    agent = learning_agent(&config, &discrete, 1);
    assert_true(agent->config.clip_norm == 0.0);
    assert_true(agent->config.importance_exponent == 0.2);
    assert_int_equal(agent->config.target_period, 0);
    assert_int_equal(agent->config.batch, 7);
    agent_destroy(&agent);

    config = config_of("impala");
    agent = learning_agent(&config, &discrete, 1);
    assert_true(agent->config.entropy_cost == 0.01 && agent->config.value_cost == 0.5);
    assert_true(agent->config.clip_norm == 40.0);
    agent_destroy(&agent);
    config.entropy_cost = -1.0;
    agent = learning_agent(&config, &discrete, 1);
    assert_true(agent->config.entropy_cost == 0.0);
    agent_destroy(&agent);
}

/* ---- helpers ---- */

TEST(bytes_become_floats)
{
    rp_env_spec image = {.observation_dtype = RP_DTYPE_UINT8, .observation_rank = 2, .observation_shape = {2, 3}};
    uint8_t bytes[12];
    float scratch[12], floats[3];
    for (uint32_t i = 0; i < 12; i++)
        bytes[i] = (uint8_t)(i * 23);
    struct agent agent = {.spec = image};
    const float *out = agent_floats(&agent, bytes, 2, scratch);
    assert_ptr_equal(out, scratch);
    for (uint32_t i = 0; i < 12; i++)
        assert_true(out[i] == (float)bytes[i]);
    agent.config.scale = 0.5;
    agent_floats(&agent, bytes, 2, scratch);
    for (uint32_t i = 0; i < 12; i++)
        assert_true(scratch[i] == 0.5f * (float)bytes[i]);
    agent.spec = discrete;
    assert_ptr_equal(agent_floats(&agent, floats, 1, scratch), floats);
}

TEST(scalars_are_bounded_and_unique)
{
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
            self->observation[i][k] = learning_uniform(rng);
            self->next[i][k] = learning_uniform(rng);
        }
        for (uint32_t k = 0; k < ACTION_SIZE; k++)
            self->continuous[i][k] = learning_uniform(rng);
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

/* Each algorithm learns in two ways: with copied targets, and with its defaults and a bounded gradient. */
#define VARIANTS 2

static struct agent_config learner_config(const struct agent_ops *ops, int variant)
{
    struct agent_config config = config_of(ops->name);
    config.hidden = (struct schema_list){.data = small, .count = 2};
    config.batch = N;
    config.target_period = variant == 0 ? 4 : 0;
    config.clip_norm = variant == 0 ? 0 : 0.5;
    return config;
}

/* Gives the sum of all priorities. */
static double learn(struct agent *agent, uint64_t seed, int steps)
{
    struct rng rng;
    double sum = 0.0;
    rng_seed(&rng, seed);
    for (int i = 0; i < steps; i++) {
        struct data data;
        struct agent_result result = {0};
        make_data(&data, agent->ops, &rng);
        agent_learn(agent, &data.batch, &result);
        assert_true(result.n_scalars > 0 && result.n_scalars < AGENT_MAX_SCALARS);
        assert_non_null(result.priority);
        for (uint32_t k = 0; k < N; k++) {
            assert_true(result.priority[k] >= 0.0);
            sum += result.priority[k];
        }
    }
    return sum;
}

static void copy(const struct agent *from, struct agent *to, uint32_t n)
{
    size_t size = weights_size(from->tensors, n);
    void *block = malloc(size);
    assert_non_null(block);
    weights_encode(from->tensors, n, block);
    ok(weights_decode(block, size, to->tensors, n, &err));
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
        learning_act(a, observation, &explore, &one, &x);
        learning_act(b, observation, &explore, &other, &y);
        assert_memory_equal(&x, &y, sizeof x);
        assert_true(agent_value(a, observation) == agent_value(b, observation));
    }
}

static void check_same_tensors(const struct agent *a, const struct agent *b, bool with_rng)
{
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint32_t i = 0; i < a->n_tensors; i++) {
        if (!with_rng && strcmp(a->tensors[i].name, "rng") == 0)
            continue;
        assert_string_equal(a->tensors[i].name, b->tensors[i].name);
        if (memcmp(a->tensors[i].data, b->tensors[i].data, tensor_bytes(&a->tensors[i])) != 0)
            fail_msg("%s: tensor %s differs", a->ops->name, a->tensors[i].name);
    }
}

/* Saved after an odd number of steps: delays, copies and noise go on where they were. */
static void check_resumed(const struct agent_ops *ops, const struct agent_config *config)
{
    struct agent *first = learning_agent(config, spec_of(ops), 1), *second = learning_agent(config, spec_of(ops), 2);
    assert_string_equal(first->tensors[first->n_tensors - 1].name, "steps");
    assert_memory_not_equal(first->params, second->params, first->n_params * sizeof(float));
    learn(first, 10, 15);
    copy(first, second, first->n_tensors);
    assert_int_equal(second->steps, 15);
    check_same_actions(first, second, false);
    assert_true(learn(first, 20, 15) == learn(second, 20, 15));
    assert_int_equal(second->steps, 30);
    check_same_tensors(first, second, true);
    check_same_actions(first, second, false);
    agent_destroy(&first);
    agent_destroy(&second);
}

static void check_actor(const struct agent_ops *ops, const struct agent_config *config)
{
    struct agent *learner = learning_agent(config, spec_of(ops), 1), *actor = learning_agent(config, spec_of(ops), 2);
    assert_true(learner->n_policy > 0 && learner->n_policy < learner->n_tensors);
    learn(learner, 10, 5);
    copy(learner, actor, learner->n_policy);
    assert_int_equal(actor->steps, 0);
    check_same_actions(learner, actor, true);
    check_same_actions(learner, actor, false);
    agent_destroy(&learner);
    agent_destroy(&actor);
}

/* Two learners that apply the same vectors stay the same, whatever batches and noise those came from; and a gradient
 * alone changes no parameter. */
static void check_averaged(const struct agent_ops *ops, const struct agent_config *config)
{
    struct agent *one = learning_agent(config, spec_of(ops), 1), *other = learning_agent(config, spec_of(ops), 1);
    size_t bytes = one->n_params * sizeof(float);
    float *before = malloc(bytes);
    assert_non_null(before);
    struct rng rng = rng_of(3);
    rng_seed(&other->rng, 99);
    for (int i = 0; i < 40; i++) {
        struct data data;
        struct agent_result result = {0};
        make_data(&data, ops, &rng);
        ops->gradient(other, &data.batch, &result);
        make_data(&data, ops, &rng);
        memcpy(before, one->params, bytes);
        ops->gradient(one, &data.batch, &result);
        assert_memory_equal(before, one->params, bytes);
        assert_memory_not_equal(one->grads, other->grads, bytes);
        for (uint32_t k = 0; k < one->n_params; k++)
            one->grads[k] = other->grads[k] = 0.5f * (one->grads[k] + other->grads[k]);
        ops->apply(one, &result);
        ops->apply(other, &result);
        assert_memory_not_equal(before, one->params, bytes);
    }
    assert_int_equal(one->steps, 40);
    check_same_tensors(one, other, false);
    free(before);
    agent_destroy(&one);
    agent_destroy(&other);
}

/* Bytes are numbers: the same as the floats that they stand for. */
static void check_bytes(const struct agent_ops *ops, const struct agent_config *config)
{
    rp_env_spec spec = *spec_of(ops);
    struct agent *floats = learning_agent(config, &spec, 1);
    spec.observation_dtype = RP_DTYPE_UINT8;
    struct agent *bytes = learning_agent(config, &spec, 1);
    struct data data;
    uint8_t now[ROWS][INPUTS], next[ROWS][INPUTS];
    struct rng rng = rng_of(1);
    make_data(&data, ops, &rng);
    for (uint32_t i = 0; i < ROWS * INPUTS; i++) {
        data.observation[i / INPUTS][i % INPUTS] = now[i / INPUTS][i % INPUTS] = (uint8_t)rng_below(&rng, 3);
        data.next[i / INPUTS][i % INPUTS] = next[i / INPUTS][i % INPUTS] = (uint8_t)rng_below(&rng, 3);
    }
    struct agent_result result = {0};
    struct agent_choice a = {0}, b = {0};
    agent_learn(floats, &data.batch, &result);
    learning_act(floats, data.observation, &(struct agent_explore){.greedy = true}, &rng, &a);
    data.batch.observation = now;
    data.batch.next_observation = next;
    agent_learn(bytes, &data.batch, &result);
    learning_act(bytes, now, &(struct agent_explore){.greedy = true}, &rng, &b);
    check_same_tensors(floats, bytes, true);
    assert_memory_equal(&a, &b, sizeof a);
    agent_destroy(&floats);
    agent_destroy(&bytes);
}

/* Rows that are acted upon together choose what each would choose alone, and draw from their own generators. */
static void check_rows(const struct agent_ops *ops, const struct agent_config *given)
{
    struct agent_config config = *given;
    config.acting_rows = ROWS;
    struct agent *agent = learning_agent(&config, spec_of(ops), 1);
    struct data data;
    struct rng rng, own[ROWS], *rngs[ROWS];
    rng_seed(&rng, 1);
    make_data(&data, ops, &rng);
    const float noise[ACTION_SIZE] = {0.1f, -0.2f};
    struct agent_explore explore[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        rng_seed(&own[i], i);
        rngs[i] = &own[i];
        explore[i] = (struct agent_explore){.epsilon = 0.5, .greedy = i % 4 == 1, .uniform = i % 4 == 2};
        explore[i].noise = i % 4 == 3 ? noise : NULL;
    }
    struct agent_choice many[ROWS] = {{0}}, one = {0};
    ops->act(agent, &(struct agent_rows){ROWS, data.observation, explore, rngs}, many);
    for (uint32_t i = 0; i < ROWS; i++) {
        rng_seed(&rng, i);
        learning_act(agent, data.observation[i], &explore[i], &rng, &one);
        assert_int_equal(many[i].discrete, one.discrete);
        for (uint32_t j = 0; j < spec_of(ops)->action_size; j++)
            learning_near((double)many[i].continuous[j], (double)one.continuous[j], 1e-5, "an action");
        learning_near((double)many[i].value, (double)one.value, 1e-5, "a value");
        learning_near((double)many[i].q, (double)one.q, 1e-5, "a value of an action");
        learning_near((double)many[i].log_prob, (double)one.log_prob, 1e-5, "a log probability");
        assert_memory_equal(&rng, &own[i], sizeof rng);
    }
    agent_destroy(&agent);
}

static void check_missing_actions(const struct agent_ops *ops, const struct agent_config *config)
{
    if (!ops->discrete)
        return;
    struct agent *agent = learning_agent(config, &discrete, 1);
    struct data data;
    struct rng rng = rng_of(3);
    make_data(&data, ops, &rng);
    for (uint32_t i = 0; i < ROWS; i++)
        data.discrete[i] = i % 2 ? -1 : (int32_t)discrete.n_actions;
    struct agent_result result = {0};
    ops->gradient(agent, &data.batch, &result);
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(agent->grads[k] == 0.0f);
    for (uint32_t i = 0; i < result.n_scalars; i++)
        if (strcmp(result.scalars[i].name, "loss") == 0 || strcmp(result.scalars[i].name, "accuracy") == 0)
            assert_true(result.scalars[i].value == 0.0);
    assert_true(result.priority[0] == 0.0);
    agent_destroy(&agent);
}

static void check_all(void (*check)(const struct agent_ops *ops, const struct agent_config *config))
{
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++)
        for (int variant = 0; variant < VARIANTS; variant++) {
            struct agent_config config = learner_config(*ops, variant);
            check(*ops, &config);
        }
}

TEST(rows_act_as_each_alone)
{
    check_all(check_rows);
}

TEST(a_resumed_learner_goes_on_to_the_bit)
{
    check_all(check_resumed);
}

TEST(an_actor_needs_the_policy_alone)
{
    check_all(check_actor);
}

TEST(the_same_gradients_keep_learners_equal)
{
    check_all(check_averaged);
}

TEST(bytes_teach_what_floats_teach)
{
    check_all(check_bytes);
}

TEST(actions_that_do_not_exist_teach_nothing)
{
    check_all(check_missing_actions);
}

/* The tensors that an algorithm publishes for actors come first: their number, and whether they are all parameters. */
TEST(what_is_published)
{
    static const struct {
        const char *algorithm, *first;
        uint32_t n;
        bool all; /* every parameter is published */
    } rows[] = {{"dqn", "q/layer0/weight", 6, true},        {"bc", "policy/layer0/weight", 6, true},
                {"ddpg", "policy/layer0/weight", 12, true}, {"td3", "policy/layer0/weight", 12, false},
                {"sac", "policy/layer0/weight", 12, false}, {"impala", "policy/layer0/weight", 12, true}};
    for (uint32_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const struct agent_ops *const *ops = agent_algorithms;
        while (strcmp((*ops)->name, rows[r].algorithm) != 0)
            ops++;
        struct agent_config config = learner_config(*ops, 0);
        struct agent *agent = learning_agent(&config, spec_of(*ops), 1);
        uint64_t floats = 0;
        assert_int_equal(agent->n_policy, rows[r].n);
        for (uint32_t i = 0; i < agent->n_policy; i++)
            floats += tensor_bytes(&agent->tensors[i]) / sizeof(float);
        assert_string_equal(agent->tensors[0].name, rows[r].first);
        assert_int_equal(floats == agent->n_params, rows[r].all);
        assert_true(agent->n_policy < agent->n_tensors);
        agent_destroy(&agent);
    }
}

/* ---- targets ---- */

static const struct tensor *online_of(struct agent *agent, const struct tensor *target)
{
    char name[64];
    bool dqn = strcmp(agent->ops->name, "dqn") == 0;
    snprintf(name, sizeof name, "%s%s", dqn ? "q" : "", target->name + (dqn ? 6 : 7));
    return learning_tensor(agent, name);
}

static uint32_t count_targets(struct agent *agent, const struct tensor *out[AGENT_MAX_TENSORS])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < agent->n_tensors; i++)
        if (strncmp(agent->tensors[i].name, "target/", 7) == 0)
            out[n++] = &agent->tensors[i];
    return n;
}

static bool is_copied(struct agent *agent)
{
    const struct tensor *targets[AGENT_MAX_TENSORS];
    uint32_t n = count_targets(agent, targets);
    bool same = true;
    for (uint32_t i = 0; i < n; i++)
        same &= memcmp(targets[i]->data, online_of(agent, targets[i])->data, tensor_bytes(targets[i])) == 0;
    return same;
}

static void check_copied(struct agent_config config, const rp_env_spec *spec)
{
    config.target_period = 3;
    struct agent *agent = learning_agent(&config, spec, 1);
    assert_true(is_copied(agent));
    for (uint64_t step = 1; step <= 9; step++) {
        learn(agent, step, 1);
        assert_int_equal(agent->steps, step);
        assert_int_equal(is_copied(agent), step % 3 == 0);
    }
    agent_destroy(&agent);
}

/* Gives how many tensors the targets have. */
static uint32_t check_tracked(struct agent_config config, const rp_env_spec *spec)
{
    float before[AGENT_MAX_TENSORS][64];
    const struct tensor *targets[AGENT_MAX_TENSORS];
    struct rng rng = rng_of(8);
    config.tau = 0.25;
    struct agent *agent = learning_agent(&config, spec, 1);
    uint32_t n = count_targets(agent, targets);
    learning_shake_target(agent, &rng);
    for (uint64_t step = 0; step < 5; step++) {
        for (uint32_t i = 0; i < n; i++) {
            assert_true(tensor_bytes(targets[i]) <= sizeof before[i]);
            memcpy(before[i], targets[i]->data, tensor_bytes(targets[i]));
        }
        learn(agent, step, 1);
        for (uint32_t i = 0; i < n; i++) {
            const float *target = targets[i]->data, *online = online_of(agent, targets[i])->data;
            for (uint32_t k = 0; k < tensor_bytes(targets[i]) / sizeof(float); k++)
                learning_near((double)target[k], (double)(before[i][k] + 0.25f * (online[k] - before[i][k])), 1e-6,
                              "a target");
        }
    }
    agent_destroy(&agent);
    return n;
}

/* Targets are copied every third step, or move a quarter of the way at each step. SAC's policy has no target. */
TEST(targets_follow)
{
    static const struct {
        const char *algorithm;
        uint32_t tensors;
    } rows[] = {{"dqn", 6}, {"ddpg", 12}, {"td3", 18}, {"sac", 12}};
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const rp_env_spec *spec = i == 0 ? &discrete : &continuous;
        struct agent_config config = config_of(rows[i].algorithm);
        config.hidden = (struct schema_list){.data = small, .count = 2};
        config.batch = N;
        config.policy_delay = i == 2 ? 1 : 0;
        check_copied(config, spec);
        assert_int_equal(check_tracked(config, spec), rows[i].tensors);
    }
}

/* The same seed gives the same agent; a deep one has more tensors than any other and still room for them. */
TEST(seeds_and_depth)
{
    int64_t deep[NET_MAX_HIDDEN] = {4, 4, 4, 4, 4, 4, 4, 4};
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++) {
        struct agent_config config = learner_config(*ops, 0);
        config.hidden = (struct schema_list){.data = deep, .count = NET_MAX_HIDDEN};
        struct agent *a = learning_agent(&config, spec_of(*ops), 9), *b = learning_agent(&config, spec_of(*ops), 9);
        check_same_tensors(a, b, true);
        for (uint32_t i = 0; i < a->n_tensors; i++)
            for (uint32_t k = 0; k < i; k++)
                assert_string_not_equal(a->tensors[i].name, a->tensors[k].name);
        agent_destroy(&a);
        agent_destroy(&b);
    }
}
