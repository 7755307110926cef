/* episodes.jsonl: what is recorded can be drawn again, and neither an episode nor the file grows without bound. */
#include "agent/run/recording.h"

#include "agent/env/picture.h"
#include "tests/support/envs.h"
#include "tests/support/naive.h"
#include "tests/support/parsed.h"
#include "tests/support/tempdir.h"

struct fixture {
    struct recording *recording;
};

static void begin(struct fixture *f)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    f->recording = recording_new(tempdir, true);
}

static void end(struct fixture *f)
{
    recording_destroy(&f->recording);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct fixture, begin, end)

/* Records an episode of an environment, with actions of 0, and returns its number of steps. */
static uint64_t play(struct recording *self, const char *name, uint32_t most)
{
    struct env *env = ENV(.name = (char *)(uintptr_t)name);
    rp_env_result result = {0};
    float action[RP_ENV_MAX_ACTION] = {0};
    uint64_t steps = 0;
    void *observation = owned(env_observation_new(env));
    env_reset(env, observation);
    recording_begin(self, env, observation);
    while (!result.terminal && !result.truncated) {
        env_step(env, action, observation, &result);
        result.truncated |= ++steps == most;
        recording_step(self, env, observation, action, &result);
    }
    return steps;
}

static json_object *read_at(uint64_t at)
{
    return parsed(owned(recording_read(tempdir, false, &(uint64_t){at})));
}

/* A part of a frame: step, sum of rewards, action, shapes. */
static json_object *frame_at(json_object *root, size_t i, int part)
{
    return parsed_at(root, textf("/frames/%zu/%d", i, part));
}

/* An agent that has diverged can still be looked at: its recording is JSON. */
CASE(not_numbers)
{
    struct env *env = ENV(.name = (char *)(uintptr_t) "Pendulum-v1");
    float action[RP_ENV_MAX_ACTION] = {NAN};
    float *observation = owned(env_observation_new(env));
    env_reset(env, observation);
    recording_begin(f->recording, env, observation);
    recording_step(f->recording, env, observation, action, &(rp_env_result){.reward = -INFINITY});
    static const rp_env_ops blind = {.name = "blind"};
    const rp_env_ops *sighted = env->ops;
    env->ops = &blind; /* shows its observation */
    observation[0] = NAN;
    observation[1] = INFINITY;
    recording_step(f->recording, env, observation, action, &(rp_env_result){.reward = NAN});
    env->ops = sighted;
    recording_save(f->recording, "Pendulum-v1", &(struct best){.value = NAN, .environment_steps = 5});
    const char *text = owned(recording_read(tempdir, false, &(uint64_t){5}));
    HAS_NOT(text, "nan", "inf");
    json_object *root = parsed(text);
    assert_int_equal(parsed_count(root, "/frames"), 3);
    assert_null(frame_at(root, 1, 1));
    assert_null(parsed_at(root, "/frames/1/2/0"));
}

CASE(an_episode)
{
    uint64_t steps = play(f->recording, "CartPole-v1", 500), at = 0;
    recording_save(f->recording, "CartPole-v1",
                   &(struct best){.value = 12.5, .episodes = 4, .environment_steps = 900, .learner_steps = 7});
    json_object *root = read_at(900);
    FIGURES(root, {"/head/mean", 12.5}, {"/head/episodes", 4}, {"/head/learner_steps", 7},
            {"/head/steps", (double)steps}, {"/head/return", (double)steps}, {"/head/width", 0}, {"/head/height", 370},
            {"/head/step_s", 0.02});
    assert_string_equal(parsed_text(root, "/head/environment"), "CartPole-v1");
    assert_int_equal(parsed_count(root, "/frames"), steps + 1);
    assert_null(frame_at(root, 0, 2)); /* no action led to the first state */
    for (size_t i = 0; i <= steps; i++) {
        assert_int_equal(json_object_get_int(frame_at(root, i, 0)), i);
        assert_int_equal(json_object_get_int(frame_at(root, i, 1)), i);
        assert_int_equal(json_object_array_length(frame_at(root, i, 3)), 6 + 7 + 5); /* cart, pole, joint */
    }
    assert_int_equal(parsed_count(root, "/scene"), 3 * 7);
    assert_null(recording_read(tempdir, false, &(uint64_t){901}));
    recording_destroy(&f->recording);
    f->recording = recording_new(tempdir, false);
    recording_save(f->recording, "CartPole-v1", &(struct best){0}); /* nothing was recorded */
    free(recording_read(tempdir, true, &at));
    assert_int_equal(at, 900);
    recording_destroy(&f->recording);
    f->recording = recording_new(tempdir, true);
    assert_null(recording_read(tempdir, true, &at));
    assert_null(recording_new("", true));
}

/* Every second frame of a long episode goes, again and again; the first and the last stay. */
CASE(a_long_episode)
{
    uint64_t steps = play(f->recording, "Cheetah", 3333);
    recording_save(f->recording, "Cheetah", &(struct best){.learner_steps = 5});
    json_object *root = read_at(5);
    size_t n = parsed_count(root, "/frames");
    int every = json_object_get_int(frame_at(root, 1, 0));
    assert_in_range(n, 500, steps - 1);
    for (size_t i = 0; i + 1 < n; i++)
        assert_int_equal(json_object_get_int(frame_at(root, i, 0)), (int)i * every);
    assert_int_equal(json_object_get_int(frame_at(root, n - 1, 0)), steps);
    assert_int_equal(json_object_array_length(frame_at(root, 1, 2)), 6);
}

static struct env_picture drawn;

/* Reads the runs of a frame and compares them with a picture. */
static void compare(const char *text, const struct env_picture *expected)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = 0, n = (size_t)expected->width * expected->height;
    for (; text[0]; text += 3) {
        unsigned colour = (unsigned)((strchr(digits, text[1]) - digits) << 6 | (strchr(digits, text[2]) - digits));
        for (ptrdiff_t run = strchr(digits, text[0]) - digits; run >= 0; run--, at++) {
            assert_true(at < n);
            for (unsigned part = 0; part < 3; part++)
                assert_int_equal(colour >> (8 - 4 * part) & 15, expected->rgb[3 * at + part] >> 4);
        }
    }
    assert_int_equal(at, n);
}

/* Images of noise, the worst that can be recorded. */
CASE(images)
{
    static const rp_env_ops ops = {.name = "noise"};
    struct env env = {.ops = &ops,
                      .spec = {.observation_dtype = RP_DTYPE_UINT8,
                               .observation_rank = 3,
                               .observation_shape = {96, 96, 3},
                               .n_actions = 2}};
    struct rng rng = rng_of(9);
    uint8_t *image = owned(malloc(96 * 96 * 3));
    for (int step = 0; step <= 100; step++) {
        for (size_t i = 0; i < 96 * 96 * 3; i++)
            image[i] = (uint8_t)rng_below(&rng, 256);
        if (step == 0)
            recording_begin(f->recording, &env, image);
        else
            recording_step(f->recording, &env, image, &(int32_t){1},
                           &(rp_env_result){.reward = 0.5f, .terminal = step == 100});
    }
    recording_save(f->recording, "noise", &(struct best){.environment_steps = 1});
    json_object *root = read_at(1);
    size_t n = parsed_count(root, "/frames");
    assert_in_range(n, 6, RECORDING_BYTES / (3 * 96 * 96) + 1);
    assert_int_equal(json_object_get_int(frame_at(root, n - 1, 0)), 100);
    picture_take(&env, image, &drawn);
    compare(json_object_get_string(frame_at(root, n - 1, 3)), &drawn);
    assert_in_range(file_size(tempdir_at(RECORDING_FILE)), 1, RECORDING_BYTES + 4096);
}

static json_object *list(uint32_t most)
{
    struct json json = {0};
    recording_put_list(&json, tempdir, most);
    return parsed(owned(json_take(&json)));
}

static double at_of(json_object *list, size_t i)
{
    return parsed_number(list, textf("/episodes/%zu/at", i));
}

/* Of many evaluations the first, the newest and the best stay, and the others lie far apart; one that diverged is not the best. */
CASE(many_evaluations)
{
    for (uint32_t i = 1; i <= 200; i++) {
        play(f->recording, "Catch", 100);
        recording_save(f->recording, "Catch",
                       &(struct best){.value = i == 77       ? -1
                                               : i % 10 == 3 ? NAN
                                                             : -5,
                                      .environment_steps = 1000 * i});
    }
    json_object *all = list(RECORDINGS_KEPT);
    bool best = false;
    assert_int_equal(parsed_count(all, "/episodes"), RECORDINGS_KEPT);
    for (size_t i = 0; i < RECORDINGS_KEPT; i++) {
        best |= at_of(all, i) == 77000;
        if (i > 0)
            assert_in_range(at_of(all, i) - at_of(all, i - 1), 1000, 60000);
    }
    assert_true(best && at_of(all, 0) == 1000 && at_of(all, RECORDINGS_KEPT - 1) == 200000);
    all = list(1);
    assert_int_equal(parsed_count(all, "/episodes"), 1);
    assert_true(at_of(all, 0) == 200000);
    /* A run that was resumed from before takes the place of what came after. */
    play(f->recording, "Catch", 100);
    recording_save(f->recording, "Catch", &(struct best){.environment_steps = 90000});
    uint64_t at = 0;
    free(recording_read(tempdir, true, &at));
    assert_int_equal(at, 90000);
}

/* Half a line, and a folder that is gone. */
CASE(damage)
{
    play(f->recording, "Catch", 100);
    recording_save(f->recording, "Catch", &(struct best){.environment_steps = 1});
    FILE *out = fopen(tempdir_at(RECORDING_FILE), "ae");
    fputs("nonsense\n{\"head\": {\"at\": 5, \"me", out);
    fclose(out);
    uint64_t at = 0;
    free(recording_read(tempdir, true, &at));
    assert_int_equal(at, 1);
    play(f->recording, "Catch", 100);
    recording_save(f->recording, "Catch", &(struct best){.environment_steps = 2});
    json_object *all = list(RECORDINGS_KEPT);
    assert_int_equal(parsed_count(all, "/episodes"), 2);
    recording_destroy(&f->recording);
    f->recording = recording_new("/proc/none", false);
    play(f->recording, "Catch", 100);
    recording_save(f->recording, "Catch", &(struct best){.environment_steps = 2}); /* logged */
}
