/* What every built-in environment must keep to (seeds, ends of episodes), and properties of the classic ones. Their
 * dynamics are checked in agent/python/tests/test_env_models.py. */

#include "agent/env/classic.h"
#include "tests/support/envs.h"
#include "tests/support/naive.h"

#define MOST_BYTES 1024

struct play {
    struct env *env;
    struct rng rng; /* of the actions */
    uint64_t hash;
    uint32_t steps, episodes;
    rp_env_result result;
    union {
        uint8_t bytes[MOST_BYTES];
        float numbers[MOST_BYTES / 4];
    } seen;
};

static void play_open(struct play *self, const char *name, const rp_option *option)
{
    *self =
        (struct play){.rng = rng_of(7),
                      .env = ENV(.name = (char *)name, .options = {.data = (void *)option, .count = option ? 1 : 0})};
    assert_true(env_observation_bytes(&self->env->spec) <= MOST_BYTES);
}

/* FNV-1a over everything that comes out. */
static void mix(struct play *self, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        self->hash = (self->hash ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
}

static void play_reset(struct play *self)
{
    memset(&self->seen, 0x55, sizeof self->seen);
    env_reset(self->env, &self->seen);
    mix(self, &self->seen, sizeof self->seen);
    self->steps = 0;
}

/* Gives true at the end of an episode. */
static bool play_step(struct play *self, const void *action)
{
    memset(&self->seen, 0x55, sizeof self->seen);
    env_step(self->env, action, &self->seen, &self->result);
    mix(self, &self->seen, sizeof self->seen);
    mix(self, &self->result.reward, sizeof self->result.reward);
    self->steps++;
    const rp_env_spec *spec = &self->env->spec;
    size_t size = env_observation_bytes(spec);
    for (size_t i = size; i < sizeof self->seen; i++)
        assert_int_equal(self->seen.bytes[i], 0x55);
    assert_false(self->result.terminal && self->result.truncated);
    assert_int_equal(self->result.truncated,
                     spec->max_steps && self->steps == spec->max_steps && !self->result.terminal);
    assert_true(isfinite(self->result.reward));
    return self->result.terminal || self->result.truncated;
}

static bool play_random(struct play *self)
{
    return play_step(self, envs_action(self->env, &self->rng));
}

static void play_some(struct play *self, int steps)
{
    for (int i = 0; i < steps; i++)
        if (play_random(self)) {
            self->episodes++;
            play_reset(self);
        }
}

/* ---- every built-in one */

/* What docs/GUIDE.md tells of each. */
TEST(specs)
{
    static const struct {
        const char *name;
        uint32_t numbers, discrete, continuous;
        float bound;
        uint32_t max_steps;
    } rows[] = {
        {"CartPole-v1", 4, 2, 0, 0, 500},       {"Acrobot-v1", 6, 3, 0, 0, 500},
        {"MountainCar-v0", 2, 3, 0, 0, 200},    {"MountainCarContinuous-v0", 2, 0, 1, 1, 999},
        {"Pendulum-v1", 3, 0, 1, 2, 200},       {"Catch", 50, 3, 0, 0, 0},
        {"DeepSea", 100, 2, 0, 0, 0},           {"Breakout", 400, 3, 0, 0, 1000},
        {"Freeway", 700, 3, 0, 0, 2500},        {"Asterix", 400, 5, 0, 0, 10000},
        {"SpaceInvaders", 600, 4, 0, 0, 10000}, {"Memory", 2, 2, 0, 0, 0},
        {"InvertedPendulum", 4, 0, 1, 3, 1000}, {"CartPoleSwingUp", 5, 0, 1, 1, 1000},
        {"Cheetah", 17, 0, 6, 1, 1000},
    };
    assert_null(env_builtin[sizeof rows / sizeof rows[0]]);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(rows[i].name, env_builtin[i]->name);
        assert_true(strlen(env_builtin[i]->help) > 10);
        const rp_env_spec *spec = &ENV(.name = (char *)rows[i].name)->spec;
        assert_int_equal(env_observation_count(spec), rows[i].numbers);
        assert_int_equal(spec->n_actions, rows[i].discrete);
        assert_int_equal(spec->action_size, rows[i].continuous);
        for (uint32_t k = 0; k < spec->action_size; k++)
            assert_true(spec->action_low[k] == -rows[i].bound && spec->action_high[k] == rows[i].bound);
        assert_int_equal(spec->max_steps, rows[i].max_steps);
    }
}

TEST(seeds_decide_everything)
{
    for (const rp_env_ops *const *at = env_builtin; *at; at++) {
        static struct play plays[4];
        for (int i = 0; i < 4; i++)
            play_open(&plays[i], (*at)->name, NULL);
        /* The first is not seeded: that is seed 0. The third has a past that seeding must wipe out. */
        env_seed(plays[1].env, 0);
        play_reset(&plays[2]);
        play_some(&plays[2], 50);
        plays[2].hash = 0;
        rng_seed(&plays[2].rng, 7);
        env_seed(plays[2].env, 0);
        env_seed(plays[3].env, 1);
        for (int i = 0; i < 4; i++)
            play_reset(&plays[i]);
        for (int round = 0; round < 30; round++)
            for (int i = 0; i < 4; i++)
                play_some(&plays[i], 20);
        if (plays[0].hash != plays[1].hash || plays[0].hash != plays[2].hash)
            fail_msg("%s: one seed, different episodes", (*at)->name);
        if ((plays[0].hash == plays[3].hash) != (strcmp((*at)->name, "DeepSea") == 0))
            fail_msg("%s: different seeds, the same episodes", (*at)->name);
    }
}

TEST(wrong_states_are_refused)
{
    for (const rp_env_ops *const *at = env_builtin; *at; at++) {
        if (!(*at)->set_state)
            continue;
        struct play play;
        double numbers[64] = {0};
        play_open(&play, (*at)->name, NULL);
        uint32_t size = 0, taken = 0;
        for (uint32_t n = 0; n <= 64; n++)
            if ((*at)->set_state(play.env->self, numbers, n, &play.seen) == RP_OK) {
                size = n;
                taken++;
            }
        assert_int_equal(taken, 1);
        for (uint32_t i = 0; i < size; i++) {
            static const double wrong[] = {NAN, INFINITY, -INFINITY};
            for (int k = 0; k < 3; k++) {
                numbers[i] = wrong[k];
                if ((*at)->set_state(play.env->self, numbers, size, &play.seen) == RP_OK)
                    fail_msg("%s takes %g as number %u of its state", (*at)->name, wrong[k], i);
            }
            if (play.env->spec.observation_dtype == RP_DTYPE_UINT8) {
                numbers[i] = 5000;
                assert_int_equal((*at)->set_state(play.env->self, numbers, size, &play.seen), RP_INVALID_ARGUMENT);
                numbers[i] = 0.5;
                assert_int_equal((*at)->set_state(play.env->self, numbers, size, &play.seen), RP_INVALID_ARGUMENT);
            }
            numbers[i] = 0;
        }
    }
}

/* ---- where episodes start */

struct range {
    const char *name;
    uint32_t n;
    struct {
        double low, high; /* of each number of the first observation; equal: always this */
    } of[6];
};

TEST(resets_are_within_their_ranges)
{
    static const struct range ranges[] = {
        {"CartPole-v1", 4, {{-0.05, 0.05}, {-0.05, 0.05}, {-0.05, 0.05}, {-0.05, 0.05}}},
        /* cosine and sine of angles within 0.1 */
        {"Acrobot-v1",
         6,
         {{0.9950, 1}, {-0.09984, 0.09984}, {0.9950, 1}, {-0.09984, 0.09984}, {-0.1, 0.1}, {-0.1, 0.1}}},
        {"MountainCar-v0", 2, {{-0.6, -0.4}, {0, 0}}},
        {"MountainCarContinuous-v0", 2, {{-0.6, -0.4}, {0, 0}}},
        {"Pendulum-v1", 3, {{-1, 1}, {-1, 1}, {-1, 1}}},
    };
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        struct play play;
        double low[6], high[6];
        play_open(&play, ranges[r].name, NULL);
        for (int i = 0; i < 500; i++) {
            play_reset(&play);
            for (uint32_t k = 0; k < ranges[r].n; k++) {
                double value = (double)play.seen.numbers[k];
                low[k] = i && low[k] < value ? low[k] : value;
                high[k] = i && high[k] > value ? high[k] : value;
            }
        }
        for (uint32_t k = 0; k < ranges[r].n; k++) {
            double width = ranges[r].of[k].high - ranges[r].of[k].low;
            if (low[k] < ranges[r].of[k].low - 1e-6 || high[k] > ranges[r].of[k].high + 1e-6 ||
                high[k] - low[k] < 0.9 * width)
                fail_msg("%s: number %u starts from %g to %g", ranges[r].name, k, low[k], high[k]);
        }
    }
}

/* ---- how they end */

static void nothing(void *self)
{
    (void)self;
}

static void see_nothing(const void *self, void *observation)
{
    (void)self, (void)observation;
}

/* Ends with action 1. */
static double end_with_one(void *self, const void *action, bool *terminal)
{
    (void)self;
    *terminal = *(const int32_t *)action == 1;
    return -2;
}

TEST(a_step_ends_in_one_way)
{
    static const struct classic_task task = {.spec = {.max_steps = 2},
                                             .size = sizeof(struct classic),
                                             .start = nothing,
                                             .observe = see_nothing,
                                             .move = end_with_one};
    rp_env_spec spec;
    rp_env_result result = {0};
    void *self = must(classic_create("Task", &task, NULL, 0, &spec, &err));
    for (int32_t last = 0; last < 2; last++) {
        classic_reset(self, NULL);
        classic_step(self, &(int32_t){0}, NULL, &result);
        assert_true(result.reward == -2 && !result.terminal && !result.truncated);
        classic_step(self, &last, NULL, &result);
        assert_true(result.terminal == last && result.truncated == !last);
    }
    classic_destroy(self);
}

TEST(cartpole_hides_its_velocities)
{
    static const rp_option hidden = {"velocities", "0"};
    struct play whole, part;
    play_open(&whole, "CartPole-v1", NULL);
    play_open(&part, "CartPole-v1", &hidden);
    assert_int_equal(env_observation_count(&part.env->spec), 2);
    for (int i = 0; i < 500; i++) {
        if (i % 20 == 0) {
            play_reset(&whole);
            play_reset(&part);
        } else {
            assert_int_equal(play_random(&whole), play_random(&part));
        }
        assert_true(part.seen.numbers[0] == whole.seen.numbers[0] && part.seen.numbers[1] == whole.seen.numbers[2]);
    }
}

TEST(memory_draws_a_cue_and_waits_as_told)
{
    static const rp_option five = {"length", "5"};
    struct play play;
    uint32_t cues[2] = {0};
    play_open(&play, "Memory", &five);
    for (int episode = 0; episode < 1000; episode++) {
        play_reset(&play);
        cues[play.seen.numbers[1] > 0]++;
    }
    assert_in_range(cues[0], 430, 570);
    for (uint32_t step = 1; step <= 6; step++)
        assert_int_equal(play_step(&play, &(int32_t){0}), step == 6);
}

/* ---- boards */

TEST(catch_starts_anywhere)
{
    struct play play;
    uint32_t seen[5] = {0};
    play_open(&play, "Catch", NULL);
    for (int i = 0; i < 1000; i++) {
        play_reset(&play);
        uint32_t set = 0;
        for (int k = 0; k < 50; k++)
            set += play.seen.bytes[k];
        assert_int_equal(set, 2);
        assert_int_equal(play.seen.bytes[47], 1);
        for (int k = 0; k < 5; k++)
            seen[k] += play.seen.bytes[k];
    }
    for (int k = 0; k < 5; k++)
        assert_in_range(seen[k], 150, 250);
}

/* In which cells action 1 goes right, found by trying. */
static void deepsea_map(const rp_option *options, uint32_t n_options, uint8_t *right)
{
    struct env *env = ENV(.name = "DeepSea", .options = {.data = (void *)options, .count = n_options});
    for (uint32_t cell = 0; cell < 100; cell++) {
        bool moved_right[2];
        for (int32_t action = 0; action < 2; action++) {
            uint8_t board[100];
            rp_env_result result;
            double at[] = {cell / 10, cell % 10};
            ok(env->ops->set_state(env->self, at, 2, board));
            assert_int_equal(board[cell], 1);
            env_step(env, &action, board, &result);
            moved_right[action] = result.reward != 0;
        }
        assert_true(moved_right[0] != moved_right[1]);
        right[cell] = moved_right[1];
    }
}

TEST(deepsea_mapping_follows_its_seed)
{
    static const rp_option three[] = {{"randomize", "1"}, {"seed", "3"}}, four[] = {{"randomize", "1"}, {"seed", "4"}};
    uint8_t plain[100], first_map[100], again[100], other[100];
    deepsea_map(NULL, 0, plain);
    deepsea_map(three, 2, first_map);
    deepsea_map(three, 2, again);
    deepsea_map(four, 2, other);
    uint32_t n_right = 0;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(plain[i], 1);
        n_right += first_map[i];
    }
    assert_in_range(n_right, 30, 70);
    assert_memory_equal(first_map, again, 100);
    assert_memory_not_equal(first_map, other, 100);
}
