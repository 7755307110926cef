/* episodes.jsonl: what is recorded can be drawn again, and neither an episode nor the file grows without bound. */
#include "agent/run/recording.h"

#include <json-c/json.h>
#include <sys/stat.h>

#include "agent/env/picture.h"
#include "tests/support/naive.h"
#include "tests/support/tempdir.h"

static double number(json_object *object, const char *name)
{
    return json_object_get_double(json_object_object_get(object, name));
}

/* Records an episode of an environment, with actions of 0, and returns its number of steps. */
static uint64_t play(struct recording *self, const char *name, uint32_t most)
{
    struct env env;
    struct env_config config = {.name = (char *)(uintptr_t)name};
    rp_env_result result = {0};
    float action[RP_ENV_MAX_ACTION] = {0};
    uint64_t steps = 0;
    assert_int_equal(env_open(&env, &config, &err), RP_OK);
    void *observation = env_observation_new(&env);
    env_reset(&env, observation);
    recording_begin(self, &env, observation);
    while (!result.terminal && !result.truncated) {
        env_step(&env, action, observation, &result);
        result.truncated |= ++steps == most;
        recording_step(self, &env, observation, action, &result);
    }
    free(observation);
    env_close(&env);
    return steps;
}

static json_object *read_at(uint64_t at)
{
    char *text = recording_read(tempdir, at);
    assert_non_null(text);
    json_object *root = json_tokener_parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

static json_object *frame_at(json_object *root, size_t i, size_t part)
{
    return json_object_array_get_idx(json_object_array_get_idx(json_object_object_get(root, "frames"), i), part);
}

static size_t frames_of(json_object *root)
{
    return json_object_array_length(json_object_object_get(root, "frames"));
}

/* An agent that has diverged can still be looked at: its recording is JSON. */
TEST(not_numbers, tempdir_enter, tempdir_leave)
{
    struct recording *self = recording_new(tempdir, true);
    struct env env;
    struct env_config config = {.name = (char *)(uintptr_t) "Pendulum-v1"};
    float action[RP_ENV_MAX_ACTION] = {NAN};
    assert_int_equal(env_open(&env, &config, &err), RP_OK);
    float *observation = env_observation_new(&env);
    env_reset(&env, observation);
    recording_begin(self, &env, observation);
    recording_step(self, &env, observation, action, &(rp_env_result){.reward = -INFINITY});
    static const rp_env_ops blind = {.name = "blind"};
    const rp_env_ops *sighted = env.ops;
    env.ops = &blind; /* shows its observation */
    observation[0] = NAN;
    observation[1] = INFINITY;
    recording_step(self, &env, observation, action, &(rp_env_result){.reward = NAN});
    env.ops = sighted;
    env_close(&env);
    recording_save(self, "Pendulum-v1", &(struct best){.value = NAN, .environment_steps = 5});
    char *text = recording_read(tempdir, 5);
    assert_non_null(text);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    json_object *root = json_tokener_parse(text);
    assert_int_equal(frames_of(root), 3);
    assert_null(frame_at(root, 1, 1));
    assert_null(json_object_array_get_idx(frame_at(root, 1, 2), 0));
    json_object_put(root);
    free(text);
    free(observation);
    recording_destroy(&self);
}

TEST(an_episode, tempdir_enter, tempdir_leave)
{
    struct recording *self = recording_new(tempdir, true);
    uint64_t steps = play(self, "CartPole-v1", 500);
    recording_save(self, "CartPole-v1",
                   &(struct best){.value = 12.5, .episodes = 4, .environment_steps = 900, .learner_steps = 7});
    json_object *root = read_at(900), *head = json_object_object_get(root, "head");
    assert_true(number(head, "mean") == 12.5 && number(head, "episodes") == 4 && number(head, "learner_steps") == 7);
    assert_true(number(head, "steps") == (double)steps && number(head, "return") == (double)steps);
    assert_true(number(head, "width") == 0 && number(head, "height") == 370 && number(head, "step_s") == 0.02);
    assert_string_equal(json_object_get_string(json_object_object_get(head, "environment")), "CartPole-v1");
    assert_int_equal(frames_of(root), steps + 1);
    assert_null(frame_at(root, 0, 2)); /* no action led to the first state */
    for (size_t i = 0; i <= steps; i++) {
        assert_int_equal(json_object_get_int(frame_at(root, i, 0)), i);
        assert_int_equal(json_object_get_int(frame_at(root, i, 1)), i);
        assert_int_equal(json_object_array_length(frame_at(root, i, 3)), 6 + 7 + 5); /* cart, pole, joint */
    }
    assert_int_equal(json_object_array_length(json_object_object_get(root, "scene")), 3 * 7);
    json_object_put(root);
    assert_null(recording_read(tempdir, 901));
    recording_destroy(&self);
    self = recording_new(tempdir, false);
    recording_save(self, "CartPole-v1", &(struct best){0}); /* nothing was recorded */
    recording_destroy(&self);
    uint64_t at = 0;
    free(recording_read_last(tempdir, &at));
    assert_int_equal(at, 900);
    self = recording_new(tempdir, true);
    assert_null(recording_read_last(tempdir, &at));
    recording_destroy(&self);
    assert_null(recording_new("", true));
}

/* Every second frame of a long episode goes, again and again; the first and the last stay. */
TEST(a_long_episode, tempdir_enter, tempdir_leave)
{
    struct recording *self = recording_new(tempdir, true);
    uint64_t steps = play(self, "Cheetah", 3333);
    recording_save(self, "Cheetah", &(struct best){.learner_steps = 5});
    json_object *root = read_at(5);
    size_t n = frames_of(root);
    int every = json_object_get_int(frame_at(root, 1, 0));
    assert_in_range(n, 500, steps - 1);
    for (size_t i = 0; i + 1 < n; i++)
        assert_int_equal(json_object_get_int(frame_at(root, i, 0)), (int)i * every);
    assert_int_equal(json_object_get_int(frame_at(root, n - 1, 0)), steps);
    assert_int_equal(json_object_array_length(frame_at(root, 1, 2)), 6);
    json_object_put(root);
    recording_destroy(&self);
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
TEST(images, tempdir_enter, tempdir_leave)
{
    static const rp_env_ops ops = {.name = "noise"};
    struct env env = {.ops = &ops,
                      .spec = {.observation_dtype = RP_DTYPE_UINT8,
                               .observation_rank = 3,
                               .observation_shape = {96, 96, 3},
                               .n_actions = 2}};
    struct rng rng = rng_of(9);
    uint8_t *image = test_malloc(96 * 96 * 3);
    struct recording *self = recording_new(tempdir, true);
    for (int step = 0; step <= 100; step++) {
        for (size_t i = 0; i < 96 * 96 * 3; i++)
            image[i] = (uint8_t)rng_below(&rng, 256);
        if (step == 0)
            recording_begin(self, &env, image);
        else
            recording_step(self, &env, image, &(int32_t){1}, &(rp_env_result){.reward = 0.5f, .terminal = step == 100});
    }
    recording_save(self, "noise", &(struct best){.environment_steps = 1});
    json_object *root = read_at(1);
    size_t n = frames_of(root);
    assert_in_range(n, 6, RECORDING_BYTES / (3 * 96 * 96) + 1);
    assert_int_equal(json_object_get_int(frame_at(root, n - 1, 0)), 100);
    picture_take(&env, image, &drawn);
    compare(json_object_get_string(frame_at(root, n - 1, 3)), &drawn);
    json_object_put(root);
    struct stat st;
    char path[512];
    snprintf(path, sizeof path, "%s/" RECORDING_FILE, tempdir);
    assert_int_equal(stat(path, &st), 0);
    assert_in_range(st.st_size, 1, RECORDING_BYTES + 4096);
    recording_destroy(&self);
    test_free(image);
}

static json_object *list(uint32_t most)
{
    struct json json = {0};
    recording_put_list(&json, tempdir, most);
    char *text = json_take(&json);
    json_object *root = json_tokener_parse(text);
    free(text);
    return root;
}

static double at_of(json_object *list, size_t i)
{
    return number(json_object_array_get_idx(json_object_object_get(list, "episodes"), i), "at");
}

/* Of many evaluations the first, the newest and the best stay, and the others lie far apart; one that diverged is not the best. */
TEST(many_evaluations, tempdir_enter, tempdir_leave)
{
    struct recording *self = recording_new(tempdir, true);
    for (uint32_t i = 1; i <= 200; i++) {
        play(self, "Catch", 100);
        recording_save(self, "Catch",
                       &(struct best){.value = i == 77       ? -1
                                               : i % 10 == 3 ? NAN
                                                             : -5,
                                      .environment_steps = 1000 * i});
    }
    json_object *all = list(RECORDINGS_KEPT);
    bool best = false;
    assert_int_equal(json_object_array_length(json_object_object_get(all, "episodes")), RECORDINGS_KEPT);
    for (size_t i = 0; i < RECORDINGS_KEPT; i++) {
        best |= at_of(all, i) == 77000;
        if (i > 0)
            assert_in_range(at_of(all, i) - at_of(all, i - 1), 1000, 60000);
    }
    assert_true(best && at_of(all, 0) == 1000 && at_of(all, RECORDINGS_KEPT - 1) == 200000);
    json_object_put(all);
    all = list(1);
    assert_int_equal(json_object_array_length(json_object_object_get(all, "episodes")), 1);
    assert_true(at_of(all, 0) == 200000);
    json_object_put(all);
    /* A run that was resumed from before takes the place of what came after. */
    play(self, "Catch", 100);
    recording_save(self, "Catch", &(struct best){.environment_steps = 90000});
    uint64_t at = 0;
    free(recording_read_last(tempdir, &at));
    assert_int_equal(at, 90000);
    recording_destroy(&self);
}

/* Half a line, and a folder that is gone. */
TEST(damage, tempdir_enter, tempdir_leave)
{
    char path[512];
    struct recording *self = recording_new(tempdir, true);
    play(self, "Catch", 100);
    recording_save(self, "Catch", &(struct best){.environment_steps = 1});
    snprintf(path, sizeof path, "%s/" RECORDING_FILE, tempdir);
    FILE *out = fopen(path, "ae");
    fputs("nonsense\n{\"head\": {\"at\": 5, \"me", out);
    fclose(out);
    uint64_t at = 0;
    free(recording_read_last(tempdir, &at));
    assert_int_equal(at, 1);
    play(self, "Catch", 100);
    recording_save(self, "Catch", &(struct best){.environment_steps = 2});
    json_object *all = list(RECORDINGS_KEPT);
    assert_int_equal(json_object_array_length(json_object_object_get(all, "episodes")), 2);
    json_object_put(all);
    recording_destroy(&self);
    self = recording_new("/proc/none", false);
    play(self, "Catch", 100);
    recording_save(self, "Catch", &(struct best){.environment_steps = 2}); /* logged */
    recording_destroy(&self);
}
