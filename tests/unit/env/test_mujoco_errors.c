/* Environments on MuJoCo when things go wrong: the library must not exit, wait for a key or write its log file. */
#include "agent/env/mujoco.h"

#include "agent/env/builtin.h"
#include "tests/support/test.h"

TEST(errors_of_a_model_have_the_line)
{
    static const struct {
        const char *xml, *part;
    } bad[] = {
        {"<mujoco>\n<worldbody>\n<body>\n<jiont/>\n</body>\n</worldbody>\n</mujoco>\n", "line 4"},
        {"<mujoco>\n<worldbody>\n<body>\n<joint type='hinge'/>\n</body>\n</worldbody>\n</mujoco>\n", "line = 3"},
        {"<mujoco>\n<worldbody>\n", "Line number=2"},
        {"", "0 bytes"},
        {"junk", "MuJoCo refuses the model of Broken: "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mjModel *model = NULL;
        assert_int_equal(mujoco_load("Broken", bad[i].xml, &model, &err), RP_INVALID_ARGUMENT);
        assert_null(model);
        if (!strstr(err.text, bad[i].part) || !strstr(err.text, "Broken"))
            fail_msg("'%s' does not say '%s'", err.text, bad[i].part);
    }
    assert_int_not_equal(access("MUJOCO_LOG.TXT", F_OK), 0);
}

/* Enough memory for the pose at rest, high up, and not for the boxes on the ground in the first state of an episode. */
static const char tight_xml[] = "<mujoco>\n"
                                "  <size nstack='80' njmax='200' nconmax='20'/>\n"
                                "  <worldbody>\n"
                                "    <geom type='plane' size='9 9 1' conaffinity='1' contype='0'/>\n"
                                "    <body pos='0 0 10'>\n"
                                "      <joint type='slide' axis='0 0 1'/>\n"
                                "      <geom type='box' size='1 1 1' conaffinity='0'/>\n"
                                "      <geom type='box' size='2 2 1' conaffinity='0'/>\n"
                                "      <geom type='box' size='3 3 1' conaffinity='0'/>\n"
                                "      <geom type='box' size='4 4 1' conaffinity='0'/>\n"
                                "    </body>\n"
                                "  </worldbody>\n"
                                "</mujoco>\n";

static void tight_start(struct mujoco *self, double *qpos, double *qvel)
{
    (void)self;
    qpos[0] = -9.25;
    qvel[0] = 1;
}

static void tight_observe(const struct mujoco *self, float *out)
{
    *out = (float)self->data->qpos[0];
}

static double tight_judge(const struct mujoco *self, const float *action, bool *terminal)
{
    (void)self;
    (void)action;
    *terminal = false;
    return 1;
}

/* MuJoCo's own handler of this error would write a file, wait for a key and exit. */
TEST(an_error_in_a_step_ends_the_episode)
{
    static const struct mujoco_task task = {
        .xml = tight_xml,
        .frame_skip = 1,
        .n_observation = 1,
        .start = tight_start,
        .observe = tight_observe,
        .judge = tight_judge,
    };
    rp_env_spec spec = {0};
    void *env = must(mujoco_create("Tight", &task, NULL, 0, &spec, &err));
    for (int i = 0; i < 3; i++) {
        float observation = 0;
        rp_env_result result = {0};
        classic_reset(env, &observation);
        classic_step(env, NULL, &observation, &result);
        assert_int_equal(result.truncated, 1);
        assert_int_equal(result.terminal, 0);
        assert_true(result.reward == 0);
        assert_true(observation == -9.25f);
    }
    classic_destroy(env);
    assert_int_not_equal(access("MUJOCO_LOG.TXT", F_OK), 0);
}

TEST(a_run_away_model_ends_the_episode)
{
    rp_env_spec spec = {0};
    void *env = must(env_cheetah.create(NULL, 0, &spec, &err));
    double wild[18] = {0};
    wild[9] = 1e11;
    const float still[6] = {0};
    float observation[17];
    rp_env_result result;
    assert_int_equal(env_cheetah.set_state(env, wild, 18, observation), RP_OK);
    env_cheetah.step(env, still, observation, &result);
    assert_int_equal(result.truncated, 1);
    assert_int_equal(result.terminal, 0);
    assert_true(result.reward == 0);
    /* As good as new after a reset. */
    env_cheetah.reset(env, observation);
    env_cheetah.step(env, still, observation, &result);
    assert_int_equal(result.truncated, 0);
    for (int i = 0; i < 17; i++)
        assert_true(isfinite(observation[i]) && fabsf(observation[i]) < 10);
    env_cheetah.destroy(env);
    assert_int_not_equal(access("MUJOCO_LOG.TXT", F_OK), 0);
}
