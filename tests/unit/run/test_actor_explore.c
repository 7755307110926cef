/* How actors explore: the ladder of epsilons, their decay, the random start, held actions, and noise. What the actor asks
 * of its agent is recorded; the agent answers with random actions. */

#include "agent/run/actor.h"
#include "tests/support/test.h"

#define ACTIONS 1000000 /* large enough that two random actions differ */
#define NOISE_SIZE 2u

static struct agent_explore asked; /* by the last act */
static float asked_noise[NOISE_SIZE];

static uint32_t passes; /* number of calls of act */

static void record_row(const struct agent_explore *explore, struct rng *rng, struct agent_choice *out)
{
    asked = *explore;
    if (explore->noise)
        memcpy(asked_noise, explore->noise, sizeof asked_noise);
    out->discrete = (int32_t)(rng_unit(rng) * ACTIONS);
    for (uint32_t i = 0; i < NOISE_SIZE; i++)
        out->continuous[i] = (float)rng_unit(rng);
    out->value = (float)rng_unit(rng);
    out->q = out->value - 1.0f;
    out->log_prob = -2.0f;
}

static void record(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    (void)self;
    passes++;
    assert_in_range(rows->n, 1, ACTOR_ROWS);
    for (uint32_t i = 0; i < rows->n; i++)
        record_row(&rows->explore[i], rows->rng[i], &out[i]);
}

static const struct agent_ops ops = {.name = "record", .act = record};

struct fixture {
    struct run_config config;
    struct agent agent;
    struct actor actor;
};

/* An actor with the section's values; seed 7. */
static void start(struct fixture *self, struct actors_section actors, uint32_t index, bool greedy)
{
    *self = (struct fixture){.config.actors = actors, .agent.ops = &ops};
    if (actors.noise_sigma > 0)
        self->agent.spec.action_size = NOISE_SIZE;
    else
        self->agent.spec.n_actions = ACTIONS;
    const struct actor_options options = {
        .config = &self->config, .agent = &self->agent, .index = index, .seed = 7, .greedy = greedy};
    actor_init(&self->actor, &options);
    assert_int_equal(actor_observe_first(&self->actor, "", NULL), RP_OK);
}

/* One step at which all actors together have taken `total`. */
static struct agent_choice step_at(struct fixture *self, uint64_t total)
{
    struct agent_choice choice;
    self->actor.total = total;
    const void *action = actor_select(&self->actor, "", &choice);
    if (self->agent.spec.n_actions)
        assert_ptr_equal(action, &choice.discrete);
    else
        assert_ptr_equal(action, choice.continuous);
    return choice;
}

/* ---- epsilon ---- */

TEST(ladder)
{
    assert_near(actor_ladder(0.4, 7.0, 0, 1), 0.4, 0.0);
    assert_near(actor_ladder(0.4, 7.0, 0, 0), 0.4, 0.0);
    assert_near(actor_ladder(0.4, 7.0, 0, 8), 0.4, 1e-12);
    assert_near(actor_ladder(0.4, 7.0, 7, 8), pow(0.4, 8.0), 1e-12);
    assert_near(actor_ladder(0.4, 7.0, 1, 2), pow(0.4, 8.0), 1e-12);
    assert_near(actor_ladder(0.4, 7.0, 1, 8), 0.16, 1e-12);
    assert_near(actor_ladder(0.3, 3.5, 2, 5), pow(0.3, 2.75), 1e-12);
    assert_near(actor_ladder(0.4, 0.0, 3, 5), 0.4, 1e-12); /* flat */
    assert_near(actor_ladder(0.0, 7.0, 3, 5), 0.0, 0.0);
    assert_near(actor_ladder(1.0, 7.0, 3, 5), 1.0, 0.0);
    for (uint32_t i = 1; i < 8; i++)
        assert_true(actor_ladder(0.4, 7.0, i, 8) < actor_ladder(0.4, 7.0, i - 1, 8));
}

/* epsilon_steps 0: no decay. */
TEST(decay)
{
    struct fixture f;
    static const uint64_t at[] = {0, 1, 250, 500, 999, 1000, 1001, 1000000};
    for (uint32_t index = 0; index < 3; index++)
        for (int64_t steps = 0; steps <= 1000; steps += 1000) {
            double end = actor_ladder(0.4, 7, index, 3);
            start(&f, (struct actors_section){.count = 3, .epsilon = 0.4, .epsilon_alpha = 7, .epsilon_steps = steps},
                  index, false);
            for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
                step_at(&f, at[i]);
                double share = (double)at[i] < steps ? (double)at[i] / (double)steps : 1;
                assert_near(asked.epsilon, 1.0 + (end - 1.0) * share, 1e-12);
                assert_false(asked.greedy);
                assert_false(asked.uniform);
                assert_null(asked.noise);
            }
        }
}

TEST(greedy)
{
    struct fixture f;
    const struct actors_section actors = {
        .count = 1, .epsilon = 0.1, .epsilon_steps = 1000, .random_steps = 1000, .random_hold = 10, .noise_sigma = 0.5};
    start(&f, actors, 0, true);
    float before = -1.0f;
    for (uint32_t i = 0; i < 20; i++) {
        struct agent_choice choice = step_at(&f, i);
        assert_true(asked.greedy);
        assert_false(asked.uniform);
        assert_null(asked.noise);
        assert_true(choice.continuous[0] != before); /* none is held */
        before = choice.continuous[0];
    }
}

/* ---- the random start ---- */

/* Random actions, each held for some steps; then the agent's, discrete or with noise. */
TEST(random_steps)
{
    struct fixture f;
    for (uint32_t i = 0; i < 4; i++) {
        bool continuous = i % 2;
        uint32_t hold = i < 2 ? 1 : 6;
        struct agent_choice held = {0};
        start(&f,
              (struct actors_section){
                  .count = 1, .random_steps = 50, .random_hold = hold, .noise_sigma = continuous ? 0.1 : 0},
              0, false);
        for (uint32_t step = 0; step < 60; step++) {
            struct agent_choice choice = step_at(&f, step);
            bool same = continuous ? memcmp(choice.continuous, held.continuous, sizeof held.continuous) == 0
                                   : choice.discrete == held.discrete;
            assert_int_equal(same, step < 50 && step % hold != 0);
            if (same) { /* the value of the observation is new; a kept action has no value of its own */
                assert_true(choice.value != held.value);
                assert_true(choice.q == choice.value);
            }
            assert_int_equal(asked.uniform, step < 50);
            assert_int_equal(asked.noise != NULL, continuous && step >= 50);
            held = choice;
        }
    }
}

/* ---- noise ---- */

struct noise {
    double first, all; /* standard deviation of the first step of an episode and of all steps */
    double one, two;   /* correlation over one and over two steps */
};

static struct noise measure(double sigma, double correlation, uint32_t episodes, uint32_t length)
{
    struct fixture f;
    start(&f, (struct actors_section){.count = 1, .noise_sigma = sigma, .noise_correlation = correlation}, 0, false);
    double first_sum = 0, sum = 0, square = 0, products[2] = {0}, across = 0;
    uint64_t n = 0, pairs[2] = {0};
    for (uint32_t e = 0; e < episodes; e++) {
        float before[2] = {0};
        assert_int_equal(actor_observe_first(&f.actor, "", NULL), RP_OK);
        for (uint32_t i = 0; i < length; i++, n++) {
            step_at(&f, n);
            assert_non_null(asked.noise);
            double x = (double)asked_noise[0];
            sum += x;
            square += x * x;
            across += x * (double)asked_noise[1];
            if (i == 0)
                first_sum += x * x;
            for (uint32_t k = 0; k < 2 && k < i; k++) {
                products[k] += x * (double)before[k];
                pairs[k]++;
            }
            before[1] = before[0];
            before[0] = asked_noise[0];
        }
    }
    assert_near(sum / (double)n, 0.0, 0.1 * sigma);
    assert_near(across / square, 0.0, 0.1);
    return (struct noise){.first = sqrt(first_sum / (double)episodes),
                          .all = sqrt(square / (double)n),
                          .one = products[0] / (double)pairs[0] / (square / (double)n),
                          .two = products[1] / (double)pairs[1] / (square / (double)n)};
}

/* Actors that choose together choose what each would choose alone. */
TEST(many)
{
    enum { N = 130 };
    const struct actors_section section = {.count = 1, .epsilon = 0.1, .random_steps = 3, .random_hold = 2};
    static struct fixture together[N], alone[N];
    static struct agent_choice choices[N];
    struct actor *actors[N];
    for (uint32_t i = 0; i < N; i++) {
        start(&together[i], section, i, false);
        start(&alone[i], section, i, false);
        rng_seed(&together[i].actor.rng, i);
        rng_seed(&alone[i].actor.rng, i);
        actors[i] = &together[i].actor;
    }
    for (uint64_t step = 0; step < 6; step++) {
        for (uint32_t i = 0; i < N; i++)
            actors[i]->total = step;
        passes = 0;
        actor_select_many(actors, N, "", choices);
        assert_int_equal(passes, 3);
        for (uint32_t i = 0; i < N; i++) {
            struct agent_choice choice = step_at(&alone[i], step);
            assert_int_equal(choices[i].discrete, choice.discrete);
            assert_true(choices[i].value == choice.value && choices[i].q == choice.q);
            assert_ptr_equal(actor_action(actors[i], &choices[i]), &choices[i].discrete);
        }
    }
}

TEST(noise)
{
    static const double correlations[] = {0.0, 0.5, 0.9, 1.0}; /* 1: the same for a whole episode */
    for (size_t i = 0; i < 4; i++) {
        double keep = correlations[i];
        const struct noise noise = measure(0.3, keep, 2000, 50);
        assert_near(noise.first, 0.3, 0.015);
        assert_near(noise.all, 0.3, 0.015);
        assert_near(noise.one, keep, 0.026);
        assert_near(noise.two, keep * keep, 0.026);
    }
}
