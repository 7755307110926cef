/* The environments on MuJoCo: invariants of their physics, ends of episodes, options. Their golden traces are in
 * test_env_golden.c; what every built-in environment must keep to is in test_env_classic.c. */
#include "agent/env/mujoco.h"

#include <time.h>

#include "agent/env/builtin.h"
#include "tests/support/naive.h"

#define MAX_OBSERVATION 32

static const rp_env_ops *const all[] = {&env_inverted_pendulum, &env_cartpole_swingup, &env_cheetah};
#define N_ALL (sizeof all / sizeof all[0])

struct subject {
    const rp_env_ops *ops;
    void *self;
    rp_env_spec spec;
    float observation[MAX_OBSERVATION];
    rp_env_result result;
};

static void subject_open(struct subject *self, const rp_env_ops *ops)
{
    memset(self, 0, sizeof *self);
    self->ops = ops;
    self->self = ops->create(NULL, 0, &self->spec, &err);
    if (!self->self)
        fail_msg("%s: %s", ops->name, err.text);
    assert_in_range(self->spec.observation_shape[0], 1, MAX_OBSERVATION);
}

static void subject_close(struct subject *self)
{
    self->ops->destroy(self->self);
}

FIXTURE(struct subject, (void), subject_close)

static void subject_reset(struct subject *self)
{
    self->ops->reset(self->self, self->observation);
}

static void subject_step(struct subject *self, const float *action)
{
    self->ops->step(self->self, action, self->observation, &self->result);
}

static void subject_set(struct subject *self, const double *state, uint32_t n)
{
    assert_int_equal(self->ops->set_state(self->self, state, n, self->observation), RP_OK);
}

static mjData *subject_data(struct subject *self)
{
    struct mujoco *env = self->self;
    return env->data;
}

static void random_action(const rp_env_spec *spec, struct rng *rng, bool extreme, float *action)
{
    for (uint32_t i = 0; i < spec->action_size; i++) {
        double unit = extreme ? (double)(rng_next(rng) >> 63) : rng_unit(rng);
        action[i] = spec->action_low[i] + (spec->action_high[i] - spec->action_low[i]) * (float)unit;
    }
}

static void check_near(double value, double expected, double tolerance, const char *what)
{
    if (!(fabs(value - expected) <= tolerance * (1 + fabs(expected))))
        fail_msg("%s is %.9g and not %.9g", what, value, expected);
}

/* ---- physics ---- */

CASE(cart_stays_on_its_rail)
{
    subject_open(f, &env_cartpole_swingup);
    subject_reset(f);
    for (int i = 0; i < 900; i++)
        subject_step(f, &(float){1});
    assert_true(f->observation[0] > 1.7f && f->observation[0] < 2.2f);
}

/* Dropped from above the ground it comes to rest on its feet. */
CASE(cheetah_settles)
{
    subject_open(f, &env_cheetah);
    const double start[18] = {0, 0.3};
    const float still[6] = {0};
    subject_set(f, start, 18);
    const mjData *data = subject_data(f);
    for (int i = 0; i < 300; i++) {
        subject_step(f, still);
        /* Falling from there it gains less than 3 m/s, and nothing but the ground adds energy. */
        for (int j = 0; j < 2; j++)
            assert_true(fabs(data->qvel[j]) < 3.5);
    }
    for (int i = 0; i < 9; i++)
        assert_true(fabs(data->qvel[i]) < 0.01);
    double height = 0.7 + data->qpos[1];
    assert_true(height > 0.4 && height < 0.7);
    assert_true(fabs(data->qpos[2]) < 0.3);
    assert_true(data->ncon >= 2);
}

/* Also over whole episodes: the rewards add up to the distance. */
CASE(cheetah_reward_is_velocity)
{
    subject_open(f, &env_cheetah);
    subject_reset(f);
    struct rng rng = rng_of(5);
    const double *x = subject_data(f)->qpos;
    double start = *x, sum = 0;
    for (int i = 0; i < 500; i++) {
        float action[6];
        double before = *x, effort = 0;
        random_action(&f->spec, &rng, false, action);
        subject_step(f, action);
        for (int j = 0; j < 6; j++)
            effort += (double)action[j] * (double)action[j];
        check_near((double)f->result.reward, (*x - before) / 0.05 - 0.1 * effort, 1e-6, "the reward");
        sum += ((double)f->result.reward + 0.1 * effort) * 0.05;
    }
    check_near(sum, *x - start, 1e-4, "the distance");
    assert_true(fabs(*x - start) > 0.01);
}

static void check_finite(const struct subject *self)
{
    for (uint32_t i = 0; i < self->spec.observation_shape[0]; i++)
        assert_true(isfinite(self->observation[i]) && fabsf(self->observation[i]) < 1000);
    assert_true(isfinite(self->result.reward));
}

TEST(finite_under_any_action)
{
    for (size_t e = 0; e < N_ALL; e++)
        for (int extreme = 0; extreme < 2; extreme++) {
            struct subject subject;
            subject_open(&subject, all[e]);
            subject_reset(&subject);
            struct rng rng = rng_of(11);
            float action[RP_ENV_MAX_ACTION];
            for (int i = 0; i < 5000; i++) {
                /* Held for a while, extreme actions get further. */
                if (!extreme || i % 20 == 0)
                    random_action(&subject.spec, &rng, extreme, action);
                subject_step(&subject, action);
                check_finite(&subject);
                if (subject.result.terminal || subject.result.truncated)
                    subject_reset(&subject);
            }
            /* The sizes in the models are ample: nothing was left out. */
            const mjData *data = subject_data(&subject);
            for (int i = 0; i < mjNWARNING; i++)
                assert_int_equal(data->warning[i].number, 0);
            assert_true(data->maxuse_stack * 4 < data->nstack);
            subject_close(&subject);
        }
}

/* ---- episodes and instances ---- */

TEST(spec)
{
    static const uint32_t observations[] = {4, 5, 17}, actions[] = {1, 1, 6};
    static const float bounds[] = {3, 1, 1};
    for (size_t e = 0; e < N_ALL; e++) {
        struct subject subject;
        subject_open(&subject, all[e]);
        assert_int_equal(subject.spec.observation_dtype, RP_DTYPE_FLOAT32);
        assert_int_equal(subject.spec.observation_rank, 1);
        assert_int_equal(subject.spec.observation_shape[0], observations[e]);
        assert_int_equal(subject.spec.n_actions, 0);
        assert_int_equal(subject.spec.action_size, actions[e]);
        for (uint32_t i = 0; i < actions[e]; i++)
            assert_true(subject.spec.action_low[i] == -bounds[e] && subject.spec.action_high[i] == bounds[e]);
        assert_int_equal(subject.spec.max_steps, 1000);
        subject_close(&subject);
    }
}

/* On the ground from the first step on, where the solver of contacts begins with what it found last: here the solution of
 * the very same step. */
TEST(contacts_do_not_remember)
{
    const rp_option one = {.name = "frame_skip", .value = "1"};
    const double crouched[18] = {0, -0.14, 0.02, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1};
    const float still[6] = {0};
    struct subject subject = {.ops = &env_cheetah};
    subject.self = must(env_cheetah.create(&one, 1, &subject.spec, &err));
    double first[9];
    for (int i = 0; i < 5; i++) {
        subject_set(&subject, crouched, 18);
        subject_step(&subject, still);
        if (i == 0)
            memcpy(first, subject_data(&subject)->qvel, sizeof first);
        assert_memory_equal(first, subject_data(&subject)->qvel, sizeof first);
    }
    assert_true(subject_data(&subject)->ncon > 0);
    subject_close(&subject);
}

CASE(the_end_of_an_episode)
{
    static const float still[6] = {0};
    for (size_t e = 1; e < N_ALL; e++) {
        subject_open(f, all[e]);
        for (int episode = 0; episode < 2; episode++) {
            subject_reset(f);
            for (int i = 1; i <= 1000; i++) {
                subject_step(f, still);
                assert_int_equal(f->result.terminal, 0);
                assert_int_equal(f->result.truncated, i == 1000);
            }
        }
        subject_close(f);
    }
    /* Terminal wins over the time limit. */
    subject_open(f, &env_inverted_pendulum);
    static const double fallen[] = {0, 0.19, 0, 2};
    subject_set(f, fallen, 4);
    struct mujoco *env = f->self;
    env->base.steps = 999;
    subject_step(f, still);
    assert_int_equal(f->result.terminal, 1);
    assert_int_equal(f->result.truncated, 0);
    assert_true(f->result.reward == 1);
}

TEST(resets_are_cheap)
{
    for (size_t e = 0; e < N_ALL; e++) {
        struct subject subject;
        subject_open(&subject, all[e]);
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        for (int i = 0; i < 10000; i++)
            subject_reset(&subject);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        print_message("%s: %.0f ns a reset\n", all[e]->name, seconds * 1e5);
        assert_true(seconds < 0.5);
        subject_close(&subject);
    }
}

/* ---- options ---- */

TEST(frame_skip)
{
    const rp_option one = {.name = "frame_skip", .value = "1"};
    struct subject single, both;
    subject_open(&both, &env_inverted_pendulum);
    single = both;
    single.self = must(both.ops->create(&one, 1, &single.spec, &err));
    static const double start[] = {0, 0.02, 0.1, 0};
    subject_set(&single, start, 4);
    subject_set(&both, start, 4);
    float action = 0.5f;
    subject_step(&single, &action);
    subject_step(&single, &action);
    subject_step(&both, &action);
    assert_memory_equal(single.observation, both.observation, sizeof both.observation);
    subject_close(&single);
    subject_close(&both);

    static const rp_option bad[] = {{.name = "frame_skip", .value = "0"},
                                    {.name = "frame_skip", .value = "1.5"},
                                    {.name = "frame_skp", .value = "2"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rp_env_spec spec = {0};
        assert_null(env_cheetah.create(&bad[i], 1, &spec, &err));
        assert_int_equal(err.status, RP_INVALID_ARGUMENT);
        assert_non_null(strstr(err.text, "frame_sk"));
    }
}
