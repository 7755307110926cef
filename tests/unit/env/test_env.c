/* The registry of environments and what env_open wraps around each: errors, options, canonical actions, time limits,
 * delays, plug-ins. */

#include <sys/wait.h>
#include <time.h>

#include "agent/env/env.h"
#include "agent/run/actor.h"
#include "proto/base/clock.h"
#include "tests/support/envs.h"
#include "tests/support/process.h"

static char *plugin_path(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s.so", process_env("RP_PLUGIN_DIR"), name);
    return path;
}

static void expect_bad_option(const char *env, const char *name, const char *value, const char *text)
{
    rp_option option = {.name = name, .value = value};
    struct env_config config = {.name = (char *)env, .options = {.data = &option, .count = 1}};
    envs_refuse(&config, RP_INVALID_ARGUMENT, text);
}

/* ---- described, and groups */

TEST(described_environments_have_a_spec)
{
    rp_option spec[] = {
        {"dtype", "uint8"}, {"shape", "[10, 12, 3]"}, {"low", "[-2, -1]"}, {"high", "[2, 1]"}, {"actions", "0"}};
    struct env_config config = {.python = (char *)"my_env:make", .max_steps = 7, .spec = {spec, 5}};
    assert_true(env_is_python(&config));
    struct env *env = envs_open(&config);
    assert_true(env->described);
    assert_int_equal(env->spec.observation_dtype, RP_DTYPE_UINT8);
    assert_int_equal(env_observation_bytes(&env->spec), 360);
    assert_int_equal(env->spec.action_size, 2);
    assert_float_equal(env->spec.action_low[0], -2, 0);
    assert_int_equal(env->spec.max_steps, 7);
    spec[4].value = "2";
    envs_refuse(&config, RP_INVALID_ARGUMENT, "it has both");
    spec[4].value = "0";
    spec[3].value = "[.inf, 1]";
    envs_refuse(&config, RP_INVALID_ARGUMENT, "goes from -2 to inf");
    spec[3].value = "1";
    envs_refuse(&config, RP_INVALID_ARGUMENT, "has 2 numbers in low and 1 in high");
    static const rp_option wrong[] = {
        {"shape", "[0]"},  {"shape", "[1.5]"}, {"shape", "[]"}, {"shape", "[1, x]"}, {"dtype", "float64"},
        {"actions", "-1"}, {"actions", "2.5"}, {"scale", "0"},  {"sahpe", "[4]"},    {"max_steps", "[1, 2]"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        spec[1] = wrong[i];
        envs_refuse(&config, RP_INVALID_ARGUMENT, wrong[i].name);
    }
    assert_string_equal(env_name(&(struct env_config){0}), ENV_DEFAULT_NAME);
    assert_string_equal(env_name(&(struct env_config){.gym = (char *)"LunarLander-v2"}), "LunarLander-v2");
}

/* Environments of a provider. integration.python_envs_py has those that step by what is announced. */
struct provided {
    struct subenv {
        int32_t announced;
        rp_status failure;
    } subenvs[3];
    bool destroyed;
};

static void provided_destroy(void *self)
{
    ((struct provided *)self)->destroyed = true;
}

static void *provided_create(void *ctx, const struct env_config *config, uint32_t *n, rp_env_spec *spec,
                             rp_error *error)
{
    (void)error;
    assert_string_equal(config->python, "my_env:make");
    *n = 3;
    *spec = (rp_env_spec){
        .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {1}, .n_actions = 9};
    return ctx;
}

static void *provided_subenv(void *whole, uint32_t index)
{
    return &((struct provided *)whole)->subenvs[index];
}

static void provided_announce(void *self, const void *action)
{
    ((struct subenv *)self)->announced = *(const int32_t *)action;
}

static rp_status provided_failure(void *self, rp_error *error)
{
    error->status = ((struct subenv *)self)->failure;
    return (rp_status)error->status;
}

TEST(groups_have_what_a_provider_makes)
{
    static const rp_env_ops ops = {.name = "provided", .destroy = provided_destroy};
    struct provided whole = {0};
    const struct env_provider provider = {.ctx = &whole,
                                          .ops = &ops,
                                          .create = provided_create,
                                          .subenv = provided_subenv,
                                          .failure = provided_failure,
                                          .announce = provided_announce};
    struct env_config config = {.python = (char *)"my_env:make"};
    struct env_group group;
    assert_int_equal(env_group_open(&group, &config, 1, &provider, &err), RP_OK);
    assert_int_equal(group.n, 3);
    for (int32_t i = 0; i < 3; i++) {
        env_announce(&group.envs[i], &(int32_t){i + 4});
        assert_int_equal(whole.subenvs[i].announced, i + 4);
    }
    whole.subenvs[1].failure = RP_INTERNAL;
    assert_int_equal(env_failure(&group.envs[0], &err), RP_OK);
    assert_int_equal(env_failure(&group.envs[1], &err), RP_INTERNAL);
    env_group_close(&group);
    assert_true(whole.destroyed);
    rp_option spec[] = {{"shape", "[4]"}, {"actions", "9"}};
    config.spec = (struct schema_list){spec, 2};
    assert_int_equal(env_group_open(&group, &config, 1, &provider, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(env_group_open(&group, &config, 1, NULL, &err), RP_OK); /* described */
    assert_true(group.envs[0].described);
    env_group_close(&group);
    assert_int_equal(env_group_open(&group, &(struct env_config){.name = (char *)"Catch"}, 5, NULL, &err), RP_OK);
    assert_int_equal(group.n, 5);
    env_group_close(&group);
}

/* ---- by name */

TEST(unknown_names_are_refused)
{
    envs_refuse(&(struct env_config){.name = "CartPol-v1"}, RP_NOT_FOUND,
                "unknown environment 'CartPol-v1' (did you mean 'CartPole-v1'?)");
    envs_refuse(&(struct env_config){.name = "Zorkmids"}, RP_NOT_FOUND,
                "unknown environment 'Zorkmids'; there are CartPole-v1, Acrobot-v1,");
    envs_refuse(&(struct env_config){.python = (char *)"my_env:make"}, RP_FAILED_PRECONDITION,
                "the shapes of environment 'my_env:make' are not known");
}

TEST(options_are_checked)
{
    expect_bad_option("Catch", "size", "3", "environment Catch has no option 'size'; it takes pixels");
    expect_bad_option("Pendulum-v1", "size", "3", "environment Pendulum-v1 has no option 'size'; it takes none");
    expect_bad_option("CartPole-v1", "velocity", "0", "did you mean 'velocities'?");
    expect_bad_option("DeepSea", "sise", "3", "environment DeepSea has no option 'sise' (did you mean 'size'?)");
    expect_bad_option("DeepSea", "zzzzzz", "3", "no option 'zzzzzz'; it takes size, randomize, seed, pixels");
    expect_bad_option("DeepSea", "size", "ten",
                      "environment DeepSea: option size is 'ten'; write a whole number from 1 to");
    expect_bad_option("DeepSea", "size", "0", "option size is '0'");
    expect_bad_option("DeepSea", "size", "101", "option size is '101'");
    expect_bad_option("DeepSea", "size", "2.5", "write a whole number from 1 to 100");
    expect_bad_option("DeepSea", "randomize", "0.5", "option randomize is '0.5'; write a whole number");
    expect_bad_option("Breakout", "sticky", "1.5", "environment Breakout: option sticky is '1.5'");
    expect_bad_option("Memory", "length", "0",
                      "environment Memory: option length is '0'; write a whole number from 1 to 10000");
    expect_bad_option("Breakout", "sticky", "", "option sticky is ''");
    expect_bad_option("Breakout", "stiky", "0", "did you mean 'sticky'?");
    expect_bad_option("Cheetah", "frame_skip", "0", "option frame_skip is '0'");
    expect_bad_option("Cheetah", "frame_skip", "1.5", "option frame_skip is '1.5'");
    expect_bad_option("Cheetah", "frame_skp", "2", "did you mean 'frame_skip'?");

    rp_option size = {.name = "size", .value = "4"};
    struct env *env = ENV(.name = "DeepSea", .options = {.data = &size, .count = 1});
    assert_int_equal(env_observation_count(&env->spec), 16);
}

TEST(specs_are_checked)
{
    const rp_env_spec good = {
        .observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3, .observation_shape = {10, 10, 4}, .n_actions = 3};
    assert_int_equal(env_check_spec("x", &good, &err), RP_OK);
    assert_int_equal(env_observation_count(&good), 400);
    assert_int_equal(env_observation_bytes(&good), 400);
    assert_int_equal(env_action_bytes(&good), 4);
    rp_env_spec bad[8];
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].observation_dtype = RP_DTYPE_FLOAT64;
    bad[1].observation_rank = 0;
    bad[2].observation_rank = RP_MAX_RANK + 1;
    bad[3].observation_shape[1] = 0;
    bad[4].observation_shape[0] = bad[4].observation_shape[1] = bad[4].observation_shape[2] = UINT32_MAX;
    bad[5].n_actions = UINT32_MAX;
    bad[6].action_size = 1;
    bad[7].n_actions = 0;
    bad[7].action_size = RP_ENV_MAX_ACTION + 1;
    static const char *const texts[] = {"have type 13",
                                        "rank 0; it may be 1 to 8",
                                        "rank 9",
                                        "dimension 1 of its observations is 0",
                                        "one observation is larger than",
                                        "more than an int32 holds",
                                        "it has both",
                                        "action_size is 65; at most 64"};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(env_check_spec("x", &bad[i], &err), RP_INVALID_ARGUMENT);
        if (!strstr(err.text, texts[i]))
            fail_msg("'%s' does not say '%s'", err.text, texts[i]);
    }
    const rp_env_spec continuous = {.observation_dtype = RP_DTYPE_FLOAT32,
                                    .observation_rank = 1,
                                    .observation_shape = {17},
                                    .action_size = 6,
                                    .action_high = {1, 1, 1, 1, 1, 1}};
    assert_int_equal(env_check_spec("x", &continuous, &err), RP_OK);
    assert_int_equal(env_observation_bytes(&continuous), 68);
    assert_int_equal(env_action_bytes(&continuous), 24);
}

/* ---- steps */

struct echo {
    float given[2], native[2];
};

/* The environment echoes the action that it gets. */
static void check_echoes(void (*step)(struct env *, const void *, void *, rp_env_result *), const struct echo *cases,
                         size_t n)
{
    struct env *env = ENV(.name = "Loose", .plugin = plugin_path("env_bad"));
    for (size_t i = 0; i < n; i++) {
        float echo[2];
        rp_env_result result;
        env_reset(env, echo);
        step(env, cases[i].given, echo, &result);
        assert_true(echo[0] == cases[i].native[0] && echo[1] == cases[i].native[1]);
        /* It says both; terminal wins. */
        assert_true(result.terminal && !result.truncated);
    }
}

TEST(actions_are_mapped_and_clipped)
{
    static const struct echo canonical[] = {{{-1, -1}, {-3, 10}}, {{1, 1}, {1, 30}},
                                            {{0, 0}, {-1, 20}},   {{0.5f, -0.5f}, {0, 15}},
                                            {{7, -7}, {1, 10}},   {{INFINITY, -INFINITY}, {1, 10}},
                                            {{NAN, 0}, {-3, 20}}, {{1, NAN}, {1, 10}}};
    static const struct echo native[] = {{{-3, 10}, {-3, 10}},
                                         {{0.5f, 29.5f}, {0.5f, 29.5f}},
                                         {{-3.5f, 31}, {-3, 30}},
                                         {{INFINITY, -INFINITY}, {1, 10}},
                                         {{NAN, NAN}, {-3, 10}}};
    check_echoes(env_step, canonical, sizeof canonical / sizeof canonical[0]);
    check_echoes(env_step_native, native, sizeof native / sizeof native[0]);
}

/* Steps with the same action until the episode ends; gives how many. */
static uint32_t play_out(struct env *env, const void *action, rp_env_result *result)
{
    float observation[64];
    assert_true(env_observation_bytes(&env->spec) <= sizeof observation);
    env_reset(env, observation);
    for (uint32_t steps = 1;; steps++) {
        env_step(env, action, observation, result);
        assert_false(result->terminal && result->truncated);
        if (result->terminal || result->truncated)
            return steps;
        assert_true(steps < 100000);
    }
}

TEST(time_limits_can_be_set)
{
    static const int64_t limits[] = {0, 3, 450};
    float nothing = 0;
    int32_t right = 1;
    rp_env_result result;
    for (int i = 0; i < 3; i++) {
        uint32_t expected = limits[i] ? (uint32_t)limits[i] : 200;
        struct env *env = ENV(.name = "Pendulum-v1", .max_steps = limits[i]);
        assert_int_equal(env->spec.max_steps, expected);
        for (int episode = 0; episode < 2; episode++) {
            assert_int_equal(play_out(env, &nothing, &result), expected);
            assert_true(result.truncated && !result.terminal);
        }
    }
    /* When the limit falls on the step that ends the task, the task has it. */
    struct env *env = ENV(.name = "CartPole-v1");
    int64_t fall = play_out(env, &right, &result);
    assert_true(result.terminal && fall < 20);
    for (int64_t limit = fall - 1; limit <= fall; limit++) {
        env = ENV(.name = "CartPole-v1", .max_steps = limit);
        assert_int_equal(play_out(env, &right, &result), limit);
        assert_int_equal(result.terminal, limit == fall);
        assert_int_equal(result.truncated, limit < fall);
    }
    envs_refuse(&(struct env_config){.name = "CartPole-v1", .max_steps = -1}, RP_INVALID_ARGUMENT, "max_steps is -1");
    envs_refuse(&(struct env_config){.name = "CartPole-v1", .max_steps = INT64_MAX}, RP_INVALID_ARGUMENT,
                "max_steps is 9223372036854775807; it may be 0 (the environment's own) to 4294967295");
}

TEST(delays_make_steps_slow)
{
    const int64_t delay = 4 * NS_PER_MS, steps = 5;
    float observation[4];
    int32_t action = 0;
    rp_env_result result;
    struct env *env = ENV(.name = "CartPole-v1", .delay_ns = delay);
    env_reset(env, observation);
    int64_t wall = clock_ns();
    clock_t cpu = clock();
    for (int i = 0; i < steps; i++)
        env_step(env, &action, observation, &result);
    assert_true(clock_ns() - wall >= steps * delay);
    assert_true((clock() - cpu) * (NS_PER_S / CLOCKS_PER_SEC) < steps * delay / 2); /* it waits */
}

/* ---- plug-ins */

TEST(plugins_have_names_options_and_limits_of_their_own)
{
    rp_option options[] = {{"length", "5"}, {"slip", "0"}};
    struct env_config config = {
        .name = "Corridor", .plugin = plugin_path("env_example"), .options = {.data = options, .count = 2}};
    struct env *env = envs_open(&config);
    assert_int_equal(env_observation_count(&env->spec), 5);
    assert_int_equal(env->spec.max_steps, 20);
    float observation[5];
    int32_t left = 0, right = 1;
    rp_env_result result;
    assert_int_equal(env->ops->set_state(env->self, &(double){2}, 1, observation), RP_OK);
    for (uint32_t i = 1; i <= 20; i++) {
        env_step(env, i % 2 ? &left : &right, observation, &result);
        assert_int_equal(result.truncated, i == 20);
    }
    options[0].value = "2";
    envs_refuse(&config, RP_INVALID_ARGUMENT, "environment Corridor: option 'length' is not understood");
    config.name = "Coridor";
    envs_refuse(&config, RP_NOT_FOUND, "does not have 'Coridor' (did you mean 'Corridor'?)");
    config.name = "Catch";
    config.options.count = 0;
    envs_refuse(&config, RP_NOT_FOUND, "does not have 'Catch'; there are Corridor");
}

/* Chooses the same action at all times. */
static void act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    (void)self;
    for (uint32_t i = 0; i < rows->n; i++)
        out[i] = (struct agent_choice){0};
}

static void loop_finds_out(const char *name, const char *text)
{
    err = (rp_error){0};
    static const struct agent_ops ops = {.act = act};
    static const struct run_config run = {.actors = {.count = 1, .pull_every = 1}};
    struct env *env = ENV(.name = (char *)name, .plugin = plugin_path("env_bad"));
    struct agent agent = {.ops = &ops, .spec = env->spec};
    struct environment_loop loop;
    bool ended;
    environment_loop_init(&loop, env, &(struct actor_options){.config = &run, .agent = &agent, .greedy = true});
    assert_int_equal(environment_loop_step(&loop, &ended, &err), RP_INVALID_ARGUMENT);
    assert_string_equal(err.text, text);
    environment_loop_fini(&loop);
}

TEST(mistakes_of_a_running_plugin_are_told)
{
    loop_finds_out("TooLong",
                   "environment 'TooLong' writes more than the 4 bytes of an observation that its spec states");
    loop_finds_out("NotFinite",
                   "environment 'NotFinite': number 0 of the observation after step 1 of the episode is nan");
    loop_finds_out("BadReward", "environment 'BadReward': the reward of step 1 of the episode is nan");
}

/* Steps a plug-in until it crashes. */
static _Noreturn void step_on(int error)
{
    float observation[2], action[2] = {0};
    rp_env_result result;
    dup2(error, STDERR_FILENO);
    for (int number = 1; number < 32; number++)
        signal(number, SIG_DFL); /* cmocka has handlers */
    struct env *env = ENV(.name = (char *)"Crash", .plugin = plugin_path("env_bad"));
    env_reset(env, observation);
    for (;;)
        env_step(env, action, observation, &result);
}

TEST(a_crash_of_a_plugin_names_its_step)
{
    char text[512] = "";
    int status, pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0)
        step_on(pipes[1]);
    close(pipes[1]);
    for (ssize_t n, at = 0; (n = read(pipes[0], text + at, sizeof text - 1 - (size_t)at)) > 0; at += n)
        ;
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_string_equal(text, "environment 'Crash': the plug-in has crashed in step 3 of the episode\n");
}

static void expect_bad_plugin(const char *file, const char *name, rp_status status, const char *text)
{
    envs_refuse(&(struct env_config){.name = (char *)name, .plugin = plugin_path(file)}, status, text);
}

TEST(bad_plugins_are_refused)
{
    expect_bad_plugin("no_such_file", "Corridor", RP_IO, "no_such_file.so: ");
    expect_bad_plugin("selector_example", "Corridor", RP_INVALID_ARGUMENT,
                      "selector_example.so: it does not export rp_env_plugin_entry");
    expect_bad_plugin("env_old", "Corridor", RP_UNSUPPORTED,
                      "env_old.so: built for interface 3, this program has 2: compile it again");
    expect_bad_plugin("env_bad", "NoActions", RP_INVALID_ARGUMENT,
                      "environment 'NoActions': it needs either n_actions (discrete) or action_size (continuous) above "
                      "0, it has neither");
    expect_bad_plugin("env_bad", "BadBounds", RP_INVALID_ARGUMENT, "action 1 goes from 10 to inf");
    expect_bad_plugin("env_bad", "Silent", RP_INTERNAL, "does not say why");
    expect_bad_plugin("env_bad", "NoStep", RP_INVALID_ARGUMENT, "'NoStep' lacks the function step");
}
