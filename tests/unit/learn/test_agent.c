/* What all algorithms share: found by name, refused with a sentence, completed with defaults, saved and resumed to the bit. */

#include "agent/learn/adder.h"
#include "tests/support/facts.h"
#include "tests/support/learning.h"
#include "tests/support/naive.h"

#define N 8
#define LENGTH 5
#define INPUTS LEARNING_INPUTS
#define ROWS (N * LENGTH)
#define ACTION_SIZE LEARNING_SIZE

static int64_t small[] = {8, 8};

static struct agent_config config_of(const char *algorithm)
{
    return (struct agent_config){.algorithm = (char *)algorithm};
}

static const rp_env_spec *spec_of(const struct agent_ops *ops)
{
    return ops->discrete ? &learning_discrete : &learning_continuous;
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
    refuse(&config, "x", &learning_discrete, "unknown algorithm 'dqm' (did you mean 'dqn'?)");
    config = config_of("reinforcement");
    refuse(&config, "x", &learning_discrete, "unknown algorithm 'reinforcement'; there are dqn, ");
    config = config_of(NULL);
    refuse(&config, "x", &learning_discrete, "unknown algorithm ''");
    assert_null(agent_new(&config, "x", &learning_discrete, 1, NULL));
}

TEST(networks_must_fit)
{
    struct agent_config config = config_of("dqn");
    config.filters = 4;
    rp_env_spec image = {
        .observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3, .observation_shape = {10, 2, 1}, .n_actions = 3};
    refuse(&config, "Catch", &image, "agent.filters are 3 x 3, but images of Catch are 10 x 2");
    config = config_of("dqn");
    int64_t bad[] = {64, 0};
    config.hidden = (struct schema_list){.data = bad, .count = 2};
    refuse(&config, "x", &learning_discrete, "agent.hidden[1] is 0");
    rp_env_spec both = learning_discrete;
    both.action_size = 1;
    config = config_of("dqn");
    refuse(&config, "x", &both, "both");
}

/* ---- completed ---- */

TEST(defaults_are_the_algorithms)
{
    struct agent_config config = config_of("dqn");
    struct agent *agent = learning_agent(&config, &learning_discrete, 1);
    assert_int_equal(agent->config.batch, 256);
    assert_int_equal(agent->config.target_period, 100);
    assert_true(agent->config.discount == 0.99 && agent->config.learning_rate == 1e-3);
    assert_true(agent->config.tau == 0.0 && agent->config.huber == 0.0 && agent->config.importance_exponent == 0.0);
    assert_int_equal(agent->config.hidden.count, 2);

    config.clip_norm = -1.0;
    config.importance_exponent = -1.0;
    config.tau = 0.01;
    config.batch = 7;
    agent = learning_agent(&config, &learning_discrete, 1);
    assert_true(agent->config.clip_norm == 0.0);
    assert_true(agent->config.importance_exponent == 0.2);
    assert_int_equal(agent->config.target_period, 0);
    assert_int_equal(agent->config.batch, 7);

    config = config_of("impala");
    agent = learning_agent(&config, &learning_discrete, 1);
    assert_true(agent->config.entropy_cost == 0.01 && agent->config.value_cost == 0.5);
    assert_true(agent->config.clip_norm == 40.0);
    config.entropy_cost = -1.0;
    agent = learning_agent(&config, &learning_discrete, 1);
    assert_true(agent->config.entropy_cost == 0.0);
}

/* ---- helpers ---- */

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

static void make_data(struct learning_data *self, const struct agent_ops *ops, struct rng *rng)
{
    learning_data(self, rng, ops->discrete, N, LENGTH);
    self->batch.length = ops->data == AGENT_SEQUENCES ? LENGTH : 1;
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
        struct learning_data data;
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
    void *block = owned(malloc(size));
    weights_encode(from->tensors, n, block);
    ok(weights_decode(block, size, to->tensors, n, &err));
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
}

/* Two learners that apply the same vectors stay the same, whatever batches and noise those came from; and a gradient
 * alone changes no parameter. */
static void check_averaged(const struct agent_ops *ops, const struct agent_config *config)
{
    struct agent *one = learning_agent(config, spec_of(ops), 1), *other = learning_agent(config, spec_of(ops), 1);
    size_t bytes = one->n_params * sizeof(float);
    float *before = owned(malloc(bytes));
    struct rng rng = rng_of(3);
    rng_seed(&other->rng, 99);
    for (int i = 0; i < 40; i++) {
        struct learning_data data;
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
}

/* Bytes are numbers, times config.scale: the same as the floats that they stand for. */
static void check_bytes(const struct agent_ops *ops, const struct agent_config *config)
{
    rp_env_spec spec = *spec_of(ops);
    struct agent *floats = learning_agent(config, &spec, 1);
    struct agent_config scaled = *config;
    scaled.scale = 0.5;
    spec.observation_dtype = RP_DTYPE_UINT8;
    struct agent *bytes = learning_agent(&scaled, &spec, 1);
    struct learning_data data;
    uint8_t now[ROWS][INPUTS], next[ROWS][INPUTS];
    struct rng rng = rng_of(1);
    make_data(&data, ops, &rng);
    for (uint32_t i = 0; i < ROWS * INPUTS; i++) {
        now[i / INPUTS][i % INPUTS] = (uint8_t)rng_below(&rng, 3);
        next[i / INPUTS][i % INPUTS] = (uint8_t)rng_below(&rng, 3);
        data.observation[i / INPUTS][i % INPUTS] = 0.5f * now[i / INPUTS][i % INPUTS];
        data.next[i / INPUTS][i % INPUTS] = 0.5f * next[i / INPUTS][i % INPUTS];
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
}

/* Rows that are acted upon together choose what each would choose alone, and draw from their own generators. */
static void check_rows(const struct agent_ops *ops, const struct agent_config *given)
{
    struct agent_config config = *given;
    config.acting_rows = ROWS;
    struct agent *agent = learning_agent(&config, spec_of(ops), 1);
    struct learning_data data;
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
            assert_near(many[i].continuous[j], (double)one.continuous[j], 1e-5);
        assert_near(many[i].value, (double)one.value, 1e-5);
        assert_near(many[i].q, (double)one.q, 1e-5);
        assert_near(many[i].log_prob, (double)one.log_prob, 1e-5);
        assert_memory_equal(&rng, &own[i], sizeof rng);
    }
}

static void check_missing_actions(const struct agent_ops *ops, const struct agent_config *config)
{
    if (!ops->discrete)
        return;
    struct agent *agent = learning_agent(config, &learning_discrete, 1);
    struct learning_data data;
    struct rng rng = rng_of(3);
    make_data(&data, ops, &rng);
    for (uint32_t i = 0; i < ROWS; i++)
        data.discrete[i] = i % 2 ? -1 : (int32_t)LEARNING_ACTIONS;
    struct agent_result result = {0};
    ops->gradient(agent, &data.batch, &result);
    for (uint32_t k = 0; k < agent->n_params; k++)
        assert_true(agent->grads[k] == 0.0f);
    for (uint32_t i = 0; i < result.n_scalars; i++)
        if (strcmp(result.scalars[i].name, "loss") == 0 || strcmp(result.scalars[i].name, "accuracy") == 0)
            assert_true(result.scalars[i].value == 0.0);
    assert_true(result.priority[0] == 0.0);
}

static void check_all(void (*check)(const struct agent_ops *ops, const struct agent_config *config))
{
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++)
        for (int variant = 0; variant < VARIANTS; variant++) {
            struct agent_config config = learner_config(*ops, variant);
            check(*ops, &config);
        }
}

/* A test of every algorithm in both ways. */
#define EVERY(title, check)                                                                                            \
    TEST(title)                                                                                                        \
    {                                                                                                                  \
        check_all(check);                                                                                              \
    }
EVERY(rows_act_as_each_alone, check_rows)
EVERY(a_resumed_learner_goes_on_to_the_bit, check_resumed)
EVERY(an_actor_needs_the_policy_alone, check_actor)
EVERY(the_same_gradients_keep_learners_equal, check_averaged)
EVERY(bytes_teach_what_floats_teach, check_bytes)
EVERY(actions_that_do_not_exist_teach_nothing, check_missing_actions)

/* ---- learning ---- */

#define BATCH 32u

/* The best action of an observation: its largest input, or a smooth curve. */
static void best_action(const float *x, struct agent_choice *out)
{
    out->discrete = x[0] > x[1] ? (x[0] > x[2] ? 0 : 2) : (x[1] > x[2] ? 1 : 2);
    out->continuous[0] = 0.7f * x[0];
    out->continuous[1] = 0.2f * x[2] - 0.5f * x[1];
}

/* Square of an action's distance from another; 0 or 1 between discrete ones. */
static double distance(const struct agent *agent, const struct agent_choice *a, const struct agent_choice *b)
{
    if (agent->spec.n_actions)
        return a->discrete != b->discrete;
    return pow((double)(a->continuous[0] - b->continuous[0]), 2) +
           pow((double)(a->continuous[1] - b->continuous[1]), 2);
}

/* Episodes of one step: random actions, the agent's own if it learns from sequences, or an expert's if it imitates. */
static void make_episodes(struct learning_data *data, struct agent *agent, struct rng *rng)
{
    bool sequences = agent->ops->data == AGENT_SEQUENCES, imitates = strcmp(agent->ops->name, "bc") == 0;
    uint32_t length = sequences ? 2 : 1;
    learning_data(data, rng, agent->spec.n_actions > 0, BATCH, length);
    data->batch.weight = NULL;
    for (uint32_t i = 0; i < BATCH * length; i += length) {
        struct agent_choice best = {0}, taken = {0};
        best_action(data->observation[i], &best);
        learning_act(agent, data->observation[i], &(struct agent_explore){.uniform = !sequences}, rng, &taken);
        taken = imitates ? best : taken;
        data->discrete[i] = taken.discrete;
        memcpy(data->continuous[i], taken.continuous, sizeof data->continuous[i]);
        data->log_prob[i] = taken.log_prob;
        data->reward[i] = -(float)distance(agent, &taken, &best);
        data->discount[i] = 0.0f;
        data->step_type[i + length - 1] = sequences ? STEP_LAST : STEP_MID;
    }
}

/* Gives the root of the mean distance of greedy actions from the best ones, and the mean of the values. */
static double error_of(struct agent *agent, double *value)
{
    struct rng rng = rng_of(3);
    double sum = 0.0;
    *value = 0.0;
    for (uint32_t i = 0; i < 200; i++) {
        float x[INPUTS] = {learning_uniform(&rng), learning_uniform(&rng), learning_uniform(&rng)};
        struct agent_choice best = {0}, choice = {0};
        best_action(x, &best);
        learning_act(agent, x, &(struct agent_explore){.greedy = true}, &rng, &choice);
        sum += distance(agent, &choice, &best) / 200;
        *value += (double)choice.value / 200;
    }
    return sqrt(sum);
}

static void check_learning(const struct agent_ops *ops, const rp_env_spec *spec)
{
    int64_t hidden[] = {32, 32};
    struct agent_config config = {.algorithm = (char *)ops->name,
                                  .hidden = {.data = hidden, .count = 2},
                                  .activation = 1,
                                  .batch = BATCH,
                                  .learning_rate = 3e-3,
                                  .entropy_cost = 1e-3,
                                  .target_entropy = -4};
    struct agent *agent = learning_agent(&config, spec, 1);
    struct rng rng = rng_of(77);
    struct agent_result result = {0};
    double value, before = error_of(agent, &value);
    for (uint32_t step = 0; step < 2000; step++) {
        struct learning_data data;
        make_episodes(&data, agent, &rng);
        agent_learn(agent, &data.batch, &result);
    }
    double after = error_of(agent, &value);
    print_message("%s: error %.3f, then %.3f, value %.3f\n", ops->name, before, after, value);
    assert_true(before > 0.3 && after < (spec->n_actions ? 0.3 : 0.1));
    assert_near(value, 0, 0.1); /* what the best actions are worth */
}

TEST(every_algorithm_learns)
{
    for (const struct agent_ops *const *ops = agent_algorithms; *ops; ops++) {
        if ((*ops)->discrete)
            check_learning(*ops, &learning_discrete);
        if ((*ops)->continuous)
            check_learning(*ops, &learning_continuous);
    }
}

#define CHAIN 3u /* states, each an input of its own */

/* Every action in every state of a chain: action 0 goes on, and from the last state to the end, for a reward of 1; others
 * stay. */
static void make_chain(struct learning_data *data, struct rng *rng)
{
    learning_data(data, rng, true, CHAIN * LEARNING_ACTIONS, 1);
    data->batch.weight = NULL;
    for (uint32_t i = 0; i < CHAIN * LEARNING_ACTIONS; i++) {
        uint32_t state = i / LEARNING_ACTIONS, action = i % LEARNING_ACTIONS, next = state + (action == 0);
        for (uint32_t k = 0; k < INPUTS; k++) {
            data->observation[i][k] = k == state;
            data->next[i][k] = k == next;
        }
        data->discrete[i] = (int32_t)action;
        data->reward[i] = data->discount[i] = 0.0f;
        *(next == CHAIN ? &data->reward[i] : &data->discount[i]) = 1.0f;
    }
}

/* What the end is worth comes back by one state with each move of the target: 1, 1/2, 1/4. */
TEST(values_come_back_along_a_chain)
{
    static const struct {
        int64_t period;
        double tau;
    } ways[] = {{25, 0}, {0, 0.05}};
    static float states[CHAIN][INPUTS] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    for (uint32_t way = 0; way < 4; way++) {
        struct agent_config config = config_of("dqn");
        config.hidden = (struct schema_list){.data = small, .count = 2};
        config.batch = CHAIN * LEARNING_ACTIONS;
        config.learning_rate = 1e-2;
        config.discount = 0.5;
        config.double_q = way % 2;
        config.target_period = ways[way / 2].period;
        config.tau = ways[way / 2].tau;
        struct agent *agent = learning_agent(&config, &learning_discrete, 1);
        struct rng rng = rng_of(1);
        struct agent_result result = {0};
        struct learning_data data;
        make_chain(&data, &rng);
        for (uint32_t step = 0; step < 1000; step++)
            agent_learn(agent, &data.batch, &result);
        for (uint32_t i = 0; i < CHAIN; i++) {
            struct agent_choice choice = {0};
            learning_act(agent, states[i], &(struct agent_explore){.greedy = true}, &rng, &choice);
            assert_int_equal(choice.discrete, 0);
            assert_near(choice.value, pow(0.5, CHAIN - 1 - i), 0.02);
        }
    }
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
}

/* Gives how many tensors the targets have. */
static uint32_t check_tracked(struct agent_config config, const rp_env_spec *spec, float tau)
{
    float before[AGENT_MAX_TENSORS][64];
    const struct tensor *targets[AGENT_MAX_TENSORS];
    struct rng rng = rng_of(8);
    config.tau = (double)tau;
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
                assert_near(target[k], (double)(before[i][k] + tau * (online[k] - before[i][k])), 1e-6);
        }
    }
    return n;
}

/* Targets are copied every third step, or move a quarter of the way, or all of it, at each step. SAC's policy has no target. */
TEST(targets_follow)
{
    static const struct {
        const char *algorithm;
        uint32_t tensors;
    } rows[] = {{"dqn", 6}, {"ddpg", 12}, {"td3", 18}, {"sac", 12}};
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const rp_env_spec *spec = i == 0 ? &learning_discrete : &learning_continuous;
        struct agent_config config = config_of(rows[i].algorithm);
        config.hidden = (struct schema_list){.data = small, .count = 2};
        config.batch = N;
        config.policy_delay = i == 2 ? 1 : 0;
        check_copied(config, spec);
        assert_int_equal(check_tracked(config, spec, 0.25f), rows[i].tensors);
        check_tracked(config, spec, 1.0f);
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
    }
}
