/* DDPG, TD3 and SAC by one table, against their losses in double precision: gradients by finite differences, priorities,
 * acting; then what is special to each. What all algorithms have in common is in test_agent.c. */

#include "tests/support/learning.h"
#include "tests/support/naive.h"

#define INPUTS LEARNING_INPUTS
#define ACTION LEARNING_SIZE
#define MOST LEARNING_ROWS /* items of a batch */
#define TARGET_SIGMA 0.2
#define TARGET_CLIP 0.5

static int64_t small[] = {6, 5};

/* tanh networks of 6 and 5 units, batches of 7. */
static struct agent_config config_of(const char *algorithm)
{
    return (struct agent_config){.algorithm = (char *)(uintptr_t)algorithm,
                                 .hidden = {.data = small, .count = 2},
                                 .activation = 1,
                                 .batch = 7,
                                 .discount = 0.9,
                                 .learning_rate = 1e-2};
}

static void fill(float *out, size_t n, struct rng *rng, double low, double high)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(low + (high - low) * rng_unit(rng));
}

/* ---- losses in double ---- */

enum { DDPG, TD3, SAC, ALGORITHMS };
static const char *const names[ALGORITHMS] = {"ddpg", "td3", "sac"};

/* Everything that a loss depends on: an agent with random parameters, its networks in double, a batch with its noise, and the
 * targets y that follow from them. */
struct problem {
    struct agent *agent;
    int algorithm;
    struct learning_data data;
    uint32_t n, n_q;
    struct dense policy, q[2], target_policy, target_q[2];
    double log_alpha;
    float noise[2 * MOST * ACTION]; /* that the agent's next gradient draws */
    double y[MOST];
    uint32_t target_wins[2], policy_wins[2]; /* how often each critic was the smaller one */
};

static double q_of(const struct dense *q, const float *observation, const double *action)
{
    double row[INPUTS + ACTION], out;
    for (uint32_t j = 0; j < INPUTS; j++)
        row[j] = (double)observation[j];
    memcpy(row + INPUTS, action, ACTION * sizeof *row);
    dense_row(q, row, &out);
    return out;
}

static double smaller_q(const struct dense q[2], const float *observation, const double *action, uint32_t wins[2])
{
    double q1 = q_of(&q[0], observation, action), q2 = q_of(&q[1], observation, action);
    wins[q2 < q1]++;
    return fmin(q1, q2);
}

static void tanh_policy(const struct dense *policy, const float *observation, double *action)
{
    double out[2 * ACTION];
    dense_forward(policy, observation, out);
    for (uint32_t j = 0; j < ACTION; j++)
        action[j] = tanh(out[j]);
}

/* SAC: an action tanh(mean + std e). Returns the log of its density: that of u, over the slope of tanh. */
static double draw(const struct problem *p, const float *observation, const float *noise, double *action)
{
    const double pi = 3.14159265358979323846;
    double out[2 * ACTION], log_prob = 0.0;
    dense_forward(&p->policy, observation, out);
    for (uint32_t j = 0; j < ACTION; j++) {
        double std = exp(fmin(fmax(out[ACTION + j], -20), 2)), u = out[j] + std * (double)noise[j];
        double density = exp(-pow((u - out[j]) / std, 2) / 2) / (std * sqrt(2 * pi));
        action[j] = tanh(u);
        log_prob += log(density * cosh(u) * cosh(u)); /* 1 - tanh^2 = 1 / cosh^2 */
    }
    return log_prob;
}

static double clamp(double x, double limit)
{
    return fmin(fmax(x, -limit), limit);
}

/* The value of item i's next state. */
static double next_value(struct problem *p, uint32_t i)
{
    const float *next = p->data.next[i];
    double action[ACTION];
    if (p->algorithm == SAC) {
        double log_prob = draw(p, next, p->noise + (size_t)(p->n + i) * ACTION, action);
        return smaller_q(p->target_q, next, action, p->target_wins) - exp(p->log_alpha) * log_prob;
    }
    tanh_policy(&p->target_policy, next, action);
    if (p->algorithm == DDPG)
        return q_of(&p->target_q[0], next, action);
    for (uint32_t j = 0; j < ACTION; j++)
        action[j] = clamp(action[j] + clamp(TARGET_SIGMA * (double)p->noise[i * ACTION + j], TARGET_CLIP), 1);
    return smaller_q(p->target_q, next, action, p->target_wins);
}

static void fill_targets(struct problem *p)
{
    struct rng same = p->agent->rng;
    uint32_t n = (uint32_t)p->algorithm * p->n * ACTION; /* DDPG draws none, TD3 for s', SAC for s and s' */
    for (uint32_t i = 0; i < n; i += 2) {
        double normal[2];
        rng_normals(&same, normal);
        p->noise[i] = (float)normal[0];
        p->noise[i + 1] = (float)normal[1];
    }
    for (uint32_t i = 0; i < p->n; i++)
        p->y[i] = (double)p->data.reward[i] + 0.9 * (double)p->data.discount[i] * next_value(p, i);
}

/* Copies the agent's present parameters, and computes y. */
static void take_networks(struct problem *p)
{
    static const char *const q[2][2] = {{"q1", "target/q1"}, {"q2", "target/q2"}};
    dense_init(&p->policy, p->agent, "policy");
    if (p->algorithm != SAC)
        dense_init(&p->target_policy, p->agent, "target/policy");
    for (uint32_t k = 0; k < p->n_q && k < 2; k++) {
        dense_init(&p->q[k], p->agent, q[k][0]);
        dense_init(&p->target_q[k], p->agent, q[k][1]);
    }
    if (p->algorithm == SAC)
        p->log_alpha = (double)*(const float *)learning_tensor(p->agent, "log_alpha")->data;
    fill_targets(p);
}

/* An agent with random parameters and targets, and a random batch. */
static void problem_init(struct problem *p, int algorithm, const struct agent_config *config, uint64_t seed)
{
    struct rng rng = rng_of(seed);
    memset(p, 0, sizeof *p);
    p->algorithm = algorithm;
    p->agent = learning_agent(config, &learning_continuous, 1);
    p->n = (uint32_t)config->batch;
    p->n_q = algorithm == DDPG ? 1 : 2;
    fill(p->agent->params, p->agent->n_params, &rng, -0.8, 0.8);
    fill(p->agent->grads, p->agent->n_params, &rng, -9, 9); /* to be overwritten */
    for (uint32_t i = 0; i < p->agent->n_tensors; i++) {
        struct tensor *tensor = &p->agent->tensors[i];
        if (strncmp(tensor->name, "target/", 7) == 0)
            fill(tensor->data, tensor_bytes(tensor) / sizeof(float), &rng, -0.8, 0.8);
    }
    learning_data(&p->data, &rng, false, p->n, 1);
    take_networks(p);
}

FIXTURE(struct problem, (void), (void))

/* |TD| of critic k for item i. */
static double td_of(const struct problem *p, uint32_t k, uint32_t i, double *q)
{
    double action[ACTION];
    for (uint32_t j = 0; j < ACTION; j++)
        action[j] = (double)p->data.continuous[i][j];
    *q = q_of(&p->q[k], p->data.observation[i], action);
    return fabs(*q - p->y[i]);
}

/* The sum over critics of the mean of w (Q - y)^2 / 2, or of its Huber form. */
static double critic_loss(const void *ctx)
{
    const struct problem *p = ctx;
    double loss = 0.0, huber = p->agent->config.huber > 0 ? p->agent->config.huber : INFINITY, q;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->n_q; k++) {
            double d = td_of(p, k, i, &q);
            loss += (double)p->data.weight[i] * (d <= huber ? d * d / 2 : huber * (d - huber / 2));
        }
    return loss / p->n;
}

/* The first critic alone guides a deterministic policy. */
static double policy_loss(const void *ctx)
{
    struct problem *p = (struct problem *)(uintptr_t)ctx;
    double sum = 0.0;
    for (uint32_t i = 0; i < p->n; i++) {
        const float *s = p->data.observation[i];
        double action[ACTION];
        if (p->algorithm == SAC) {
            double log_prob = draw(p, s, p->noise + (size_t)i * ACTION, action);
            sum += exp(p->log_alpha) * log_prob - smaller_q(p->q, s, action, p->policy_wins);
        } else {
            tanh_policy(&p->policy, s, action);
            sum -= q_of(&p->q[0], s, action);
        }
    }
    return sum / p->n;
}

/* The largest move of a parameter since its network was copied. */
static double largest_move(const struct dense *net)
{
    double most = 0.0;
    for (uint32_t i = 0; i < net->n_params; i++)
        most = fmax(most, fabs((double)*net->source[i] - net->params[i]));
    return most;
}

static void check_gradient(struct problem *p, struct agent_result *result)
{
    struct agent *agent = p->agent;
    agent->ops->gradient(agent, &p->data.batch, result);
    const struct dense *nets[] = {&p->policy, &p->q[0], &p->q[1], &p->target_policy, &p->target_q[0], &p->target_q[1]};
    for (int i = 0; i < 6; i++) /* it changes nothing but gradients */
        assert_true(largest_move(nets[i]) == 0.0);
    learning_check_derivatives(agent, &p->policy, policy_loss, p);
    for (uint32_t k = 0; k < p->n_q; k++)
        learning_check_derivatives(agent, &p->q[k], critic_loss, p);
    assert_near(learning_scalar(result, "loss"), critic_loss(p), 1e-5);
    assert_near(learning_scalar(result, "policy_loss"), policy_loss(p), 1e-5);
}

/* The larger |TD| of the critics; and the scalars that are means of it. */
static void check_errors(const struct problem *p, const struct agent_result *result)
{
    double td_sum = 0.0, q_sum = 0.0, q;
    for (uint32_t i = 0; i < p->n; i++) {
        double largest = 0.0;
        for (uint32_t k = 0; k < p->n_q; k++) {
            double td = td_of(p, k, i, &q);
            largest = fmax(largest, td);
            td_sum += td;
            q_sum += q;
        }
        assert_near(result->priority[i], largest, 1e-5);
    }
    assert_near(learning_scalar(result, "q"), q_sum / p->n / p->n_q, 1e-5);
    assert_near(learning_scalar(result, "td_error"), td_sum / p->n / p->n_q, 1e-5);
}

TEST(gradient)
{
    for (int k = 0; k < ALGORITHMS; k++) {
        struct agent_config config = config_of(names[k]);
        uint32_t target_wins[2] = {0}, policy_wins[2] = {0};
        config.policy_delay = 1;
        config.batch = 24;
        for (uint64_t seed = 1; seed <= 6; seed++) {
            struct problem p;
            struct agent_result result = {0};
            problem_init(&p, k, &config, seed);
            check_gradient(&p, &result);
            check_errors(&p, &result);
            for (int i = 0; i < 2; i++) {
                target_wins[i] += p.target_wins[i];
                policy_wins[i] += p.policy_wins[i];
            }
            assert_int_equal(p.agent->steps, 0);
        }
        /* Both critics were the smaller one now and then. */
        assert_true(k == DDPG || (target_wins[0] > 0 && target_wins[1] > 0));
        assert_true(k != SAC || (policy_wins[0] > 0 && policy_wins[1] > 0));
    }
}

/* ---- acting ---- */

static void check_judgement(const struct problem *p, const struct agent_choice *choice)
{
    double greedy[ACTION], taken[ACTION];
    tanh_policy(&p->policy, p->data.observation[0], greedy);
    for (uint32_t j = 0; j < ACTION; j++) {
        taken[j] = (double)choice->continuous[j];
        assert_true(fabs(taken[j]) <= 1.0);
    }
    assert_near(choice->value, q_of(&p->q[0], p->data.observation[0], greedy), 1e-5);
    assert_near(choice->q, q_of(&p->q[0], p->data.observation[0], taken), 1e-5);
}

static void check_uniform(struct agent *agent, const float *observation, struct rng *rng)
{
    const struct agent_explore uniform = {.uniform = true};
    double sum = 0.0, squares = 0.0;
    const uint32_t n = 4000;
    for (uint32_t i = 0; i < n; i++) {
        struct agent_choice choice;
        learning_act(agent, observation, &uniform, rng, &choice);
        for (uint32_t j = 0; j < ACTION; j++) {
            assert_true(fabsf(choice.continuous[j]) <= 1.0f);
            sum += (double)choice.continuous[j];
            squares += (double)choice.continuous[j] * (double)choice.continuous[j];
        }
    }
    assert_true(fabs(sum / n / ACTION) < 0.05);
    assert_true(fabs(squares / n / ACTION - 1.0 / 3.0) < 0.03);
}

static void check_act(struct problem *p)
{
    struct rng rng = rng_of(1);
    const float *s = p->data.observation[0];
    struct agent_choice greedy, again, noisy, bounded;
    struct rng before = rng;
    learning_act(p->agent, s, &(struct agent_explore){.greedy = true}, &rng, &greedy);
    assert_memory_equal(&before, &rng, sizeof rng);
    check_judgement(p, &greedy);
    assert_near(greedy.q, (double)greedy.value, 0.0);
    assert_near(agent_value(p->agent, s), (double)greedy.value, 0.0);
    double mean[ACTION];
    tanh_policy(&p->policy, s, mean);
    for (uint32_t j = 0; j < ACTION; j++)
        assert_near(greedy.continuous[j], mean[j], 1e-5);

    learning_act(p->agent, s, &(struct agent_explore){0}, &rng, &again);
    check_judgement(p, &again);
    for (uint32_t j = 0; j < ACTION; j++)
        assert_int_equal(p->algorithm != SAC, greedy.continuous[j] == again.continuous[j]);

    /* The same random numbers again, now with noise on top; huge noise ends at the bounds. */
    float noise[ACTION] = {0.05f, -0.04f};
    rng = before;
    learning_act(p->agent, s, &(struct agent_explore){.noise = noise}, &rng, &noisy);
    check_judgement(p, &noisy);
    for (uint32_t j = 0; j < ACTION; j++)
        assert_near(noisy.continuous[j], clamp((double)again.continuous[j] + (double)noise[j], 1), 1e-6);
    noise[0] = 50.0f;
    noise[1] = -50.0f;
    learning_act(p->agent, s, &(struct agent_explore){.noise = noise}, &rng, &bounded);
    assert_true(bounded.continuous[0] == 1.0f && bounded.continuous[1] == -1.0f);
    check_uniform(p->agent, s, &rng);
}

/* Greedy, uniform, noise within bounds; value and q against the critic in double. Only SAC draws its actions. */
TEST(act)
{
    for (int k = 0; k < ALGORITHMS; k++) {
        const struct agent_config config = config_of(names[k]);
        struct problem p;
        problem_init(&p, k, &config, 5);
        check_act(&p);
    }
}

/* ---- DDPG and TD3 ---- */

CASE(huber)
{
    struct agent_config config = config_of("ddpg");
    config.huber = 0.5;
    struct agent_result result = {0};
    problem_init(f, DDPG, &config, 6);
    check_gradient(f, &result);
    double least = INFINITY, most = 0.0;
    for (uint32_t i = 0; i < f->n; i++) {
        least = fmin(least, result.priority[i]);
        most = fmax(most, result.priority[i]);
    }
    assert_true(least < 0.5 && most > 0.5); /* both sides were tried */
}

static double gradient_norm(const struct agent *agent, const struct dense *net)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < net->n_params; i++)
        sum += pow((double)agent->grads[net->source[i] - agent->params], 2);
    return sqrt(sum);
}

/* Policy and critic are clipped apart from each other; the first step of Adam moves each parameter by its rate. */
CASE(rates_and_clipping)
{
    struct agent_config config = config_of("ddpg");
    config.clip_norm = 0.01;
    struct agent_result result = {0};
    problem_init(f, DDPG, &config, 3);
    agent_learn(f->agent, &f->data.batch, &result);
    const struct dense *nets[] = {&f->policy, &f->q[0]};
    for (int i = 0; i < 2; i++) {
        assert_near(largest_move(nets[i]), 1e-2, 1e-5);
        assert_near(gradient_norm(f->agent, nets[i]), 0.01, 1e-6);
    }
    assert_true(learning_scalar(&result, "gradient_norm") > 0.01);
    assert_true(learning_scalar(&result, "policy_gradient_norm") > 0.01);
}

static uint64_t optimiser_steps(struct agent *agent, const char *name)
{
    return *(const uint64_t *)learning_tensor(agent, name)->data;
}

/* Steps 3, 6, 9 move policy and targets; the others do not touch them, and have no gradient for the policy. */
CASE(delay)
{
    struct agent_config config = config_of("td3");
    config.policy_delay = 3;
    problem_init(f, TD3, &config, 1);
    for (uint32_t step = 1; step <= 10; step++) {
        struct agent_result result = {0};
        take_networks(f);
        f->agent->ops->gradient(f->agent, &f->data.batch, &result);
        assert_int_equal(gradient_norm(f->agent, &f->policy) > 0, step % 3 == 0);
        f->agent->ops->apply(f->agent, &result);
        const struct dense *nets[] = {&f->policy, &f->target_policy, &f->target_q[0], &f->target_q[1]};
        for (int i = 0; i < 4; i++)
            assert_int_equal(largest_move(nets[i]) > 0, step % 3 == 0);
        assert_true(largest_move(&f->q[0]) > 0 && largest_move(&f->q[1]) > 0);
    }
    assert_int_equal(optimiser_steps(f->agent, "optimiser/policy/steps"), 3);
    assert_int_equal(optimiser_steps(f->agent, "optimiser/q/steps"), 10);
}

/* A convolution; and a period of copies that no policy step would ever meet. */
TEST(refused)
{
    rp_env_spec image = learning_continuous;
    image.observation_rank = 3;
    memcpy(image.observation_shape, (uint32_t[]){4, 4, 1}, 3 * sizeof(uint32_t));
    struct agent_config config = config_of("ddpg");
    config.filters = 4;
    must_fail_new(agent_new(&config, "Test", &image, 1, &err), RP_INVALID_ARGUMENT, "filters");
    config = config_of("td3");
    config.policy_delay = 2;
    config.target_period = 25;
    must_fail_new(agent_new(&config, "Test", &learning_continuous, 1, &err), RP_INVALID_ARGUMENT, "policy_delay");
}

/* ---- SAC: its temperature, the limits of its deviations, and that it draws what it says ---- */

static float *alpha_param(struct agent *agent)
{
    return learning_tensor(agent, "log_alpha")->data;
}

static float alpha_gradient(struct agent *agent)
{
    return agent->grads[alpha_param(agent) - agent->params];
}

/* The temperature is a parameter with a loss of its own: -alpha (mean log pi + target entropy), whose derivative is itself. */
TEST(gradient_of_the_temperature)
{
    struct agent_config config = config_of("sac");
    config.batch = 24;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct problem p;
        struct agent_result result = {0};
        double target = seed % 2 ? -(double)ACTION : 5.0;
        config.target_entropy = seed % 2 ? 0 : target; /* 0: by the size of actions */
        problem_init(&p, SAC, &config, seed);
        p.agent->ops->gradient(p.agent, &p.data.batch, &result);
        double mean = 0.0, action[ACTION];
        for (uint32_t i = 0; i < p.n; i++)
            mean += draw(&p, p.data.observation[i], p.noise + (size_t)i * ACTION, action) / p.n;
        assert_near(alpha_gradient(p.agent), -exp(p.log_alpha) * (mean + target), 1e-5);
        assert_near(learning_scalar(&result, "alpha"), exp(p.log_alpha), 1e-6);
        assert_near(learning_scalar(&result, "entropy"), -mean, 1e-5);
    }
}

/* One deviation at its upper limit, the other free: the limit has no slope. */
CASE(limits)
{
    const struct agent_config config = config_of("sac");
    struct agent_result result = {0};
    problem_init(f, SAC, &config, 4);
    float *bias = (float *)learning_tensor(f->agent, "policy/layer2/bias")->data + ACTION;
    bias[0] = 8.0f;
    take_networks(f);
    check_gradient(f, &result);
    const float *grads = f->agent->grads + (bias - f->agent->params);
    assert_true(grads[0] == 0.0f && grads[1] != 0.0f);
}

/* Means far out, where tanh rounds to 1: everything stays finite. */
CASE(saturated)
{
    const struct agent_config config = config_of("sac");
    struct agent_result result = {0};
    problem_init(f, SAC, &config, 4);
    float *bias = learning_tensor(f->agent, "policy/layer2/bias")->data;
    bias[0] = 60.0f;
    bias[1] = -60.0f;
    for (uint32_t i = 0; i < 5; i++)
        agent_learn(f->agent, &f->data.batch, &result);
    for (uint32_t i = 0; i < f->agent->n_params; i++)
        assert_true(isfinite(f->agent->params[i]));
    assert_true(isfinite(learning_scalar(&result, "policy_loss")) && isfinite(learning_scalar(&result, "loss")));
    assert_true(learning_scalar(&result, "gradient_norm") > 0);
}

/* Samples have the mean and deviation, before tanh, that the network says. */
CASE(samples)
{
    const struct agent_config config = config_of("sac");
    problem_init(f, SAC, &config, 9);
    double out[2 * ACTION], sum = 0.0, squares = 0.0;
    dense_forward(&f->policy, f->data.observation[0], out);
    const uint32_t n = 20000;
    struct rng rng = rng_of(4);
    for (uint32_t i = 0; i < n; i++) {
        struct agent_choice choice;
        learning_act(f->agent, f->data.observation, &(struct agent_explore){0}, &rng, &choice);
        double e = (atanh(clamp((double)choice.continuous[1], 0.9999999)) - out[1]) / exp(out[ACTION + 1]);
        sum += e;
        squares += e * e;
    }
    assert_true(fabs(sum / n) < 0.03);
    assert_true(fabs(squares / n - 1) < 0.04);
}

CASE(fixed_temperature)
{
    struct agent_config config = config_of("sac");
    config.alpha = 0.3;
    struct agent_result result = {0};
    problem_init(f, SAC, &config, 3);
    *alpha_param(f->agent) = (float)log(0.3); /* for the losses of this test; the agent does not look at it */
    take_networks(f);
    check_gradient(f, &result);
    assert_true(alpha_gradient(f->agent) == 0.0f);
    *alpha_param(f->agent) = 1.5f;
    for (uint32_t i = 0; i < 5; i++)
        agent_learn(f->agent, &f->data.batch, &result);
    assert_near(learning_scalar(&result, "alpha"), 0.3, 0.0);
    assert_true(*alpha_param(f->agent) == 1.5f);
}
