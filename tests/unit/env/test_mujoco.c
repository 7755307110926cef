/* The environments on MuJoCo: invariants of their physics, ends of episodes, options. Their models are in
 * agent/python/tests/test_env_models.py; what every built-in environment must keep to is in test_env_classic.c. */
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
        assert_near((double)f->result.reward, (*x - before) / 0.05 - 0.1 * effort, 1e-6);
        sum += ((double)f->result.reward + 0.1 * effort) * 0.05;
    }
    assert_near(sum, *x - start, 1e-4);
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
}
