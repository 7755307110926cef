#include "agent/env/env.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"
#include "proto/base/clock.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* ---- specs: sizes that follow from them, and checks ---- */

size_t env_observation_count(const rp_env_spec *spec)
{
    size_t count = 1;
    for (uint32_t i = 0; i < spec->observation_rank; i++)
        count *= spec->observation_shape[i];
    return count;
}

size_t env_observation_bytes(const rp_env_spec *spec)
{
    return env_observation_count(spec) * (spec->observation_dtype == RP_DTYPE_FLOAT32 ? sizeof(float) : 1);
}

size_t env_action_bytes(const rp_env_spec *spec)
{
    return spec->n_actions ? sizeof(int32_t) : spec->action_size * sizeof(float);
}

static rp_status check_observation(const char *name, const rp_env_spec *spec, rp_error *err)
{
    if (spec->observation_dtype != RP_DTYPE_FLOAT32 && spec->observation_dtype != RP_DTYPE_UINT8)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment '%s': its observations have type %" PRId32 "; only float32 (%d) and uint8 (%d) can "
                       "be used",
                       name, spec->observation_dtype, RP_DTYPE_FLOAT32, RP_DTYPE_UINT8);
    if (spec->observation_rank < 1 || spec->observation_rank > RP_MAX_RANK)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment '%s': its observations have rank %" PRIu32 "; it may be 1 to %u", name,
                       spec->observation_rank, RP_MAX_RANK);
    uint64_t bytes = spec->observation_dtype == RP_DTYPE_FLOAT32 ? sizeof(float) : 1;
    for (uint32_t i = 0; i < spec->observation_rank; i++) {
        if (spec->observation_shape[i] == 0)
            return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': dimension %" PRIu32 " of its observations is 0",
                           name, i);
        /* A product of factors below 2^30 and 2^32 fits into 64 bits. */
        bytes *= spec->observation_shape[i];
        if (bytes > RP_MAX_ROW_BYTES)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s': one observation is larger than %" PRIu64 " bytes", name,
                           RP_MAX_ROW_BYTES);
    }
    return RP_OK;
}

rp_status env_check_spec(const char *name, const rp_env_spec *spec, rp_error *err)
{
    RP_TRY(check_observation(name, spec, err));
    if ((spec->n_actions > 0) == (spec->action_size > 0))
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "environment '%s': it needs either n_actions (discrete) or action_size (continuous) above 0, it has "
            "%s",
            name, spec->n_actions ? "both" : "neither");
    if (spec->n_actions > INT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': n_actions is %" PRIu32 ", more than an int32 holds",
                       name, spec->n_actions);
    if (spec->action_size > RP_ENV_MAX_ACTION)
        return err_set(err, RP_INVALID_ARGUMENT, "environment '%s': action_size is %" PRIu32 "; at most %u can be used",
                       name, spec->action_size, RP_ENV_MAX_ACTION);
    for (uint32_t i = 0; i < spec->action_size; i++) {
        float low = spec->action_low[i], high = spec->action_high[i];
        if (!isfinite(low) || !isfinite(high) || !(low < high))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s': action %" PRIu32 " goes from %g to %g; both must be finite, and the "
                           "first below the second",
                           name, i, (double)low, (double)high);
    }
    return RP_OK;
}

bool env_same_spec(const rp_env_spec *a, const rp_env_spec *b)
{
    return a->observation_dtype == b->observation_dtype && a->observation_rank == b->observation_rank &&
           memcmp(a->observation_shape, b->observation_shape, sizeof a->observation_shape) == 0 &&
           a->n_actions == b->n_actions && a->action_size == b->action_size &&
           memcmp(a->action_low, b->action_low, a->action_size * sizeof(float)) == 0 &&
           memcmp(a->action_high, b->action_high, a->action_size * sizeof(float)) == 0;
}

/* ---- observations of plug-ins: memory with a guard, and a check of what was written ---- */

/* Only the first bytes of the guard are checked. */
#define GUARD_BYTES (1u << 20)
#define GUARD_SEEN 64u
#define GUARD_FILL 0xa5

void *env_observation_new(const struct env *self)
{
    size_t bytes = env_observation_bytes(&self->spec);
    char *observation = need_alloc(bytes + (self->library ? GUARD_BYTES : 0));
    if (self->library)
        memset(observation + bytes, GUARD_FILL, GUARD_SEEN);
    return observation;
}

rp_status env_observation_check(const struct env *self, const void *observation, rp_error *err)
{
    const rp_env_spec *spec = &self->spec;
    if (!self->library)
        return RP_OK;
    size_t bytes = env_observation_bytes(spec);
    const unsigned char *guard = (const unsigned char *)observation + bytes;
    for (uint32_t i = 0; i < GUARD_SEEN; i++)
        if (guard[i] != GUARD_FILL)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s' writes more than the %zu bytes of an observation that its spec states",
                           self->ops->name, bytes);
    const float *numbers = observation;
    for (size_t i = 0; spec->observation_dtype == RP_DTYPE_FLOAT32 && i < bytes / sizeof *numbers; i++)
        if (!isfinite(numbers[i]))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment '%s': number %zu of the observation after step %lu of the episode is %g",
                           self->ops->name, i, (unsigned long)self->steps, (double)numbers[i]);
    return RP_OK;
}

/* ---- crashes of plug-ins: the signal ends the process, and the launcher shows its last lines; one names the environment ---- */

/* The plug-in that this thread runs, for the handler. */
static _Thread_local struct {
    const struct env *env; /* NULL: none */
    const char *function;
} inside;

static void say(const char *text)
{
    ssize_t done = write(STDERR_FILENO, text, strlen(text));
    (void)done;
}

/* Uses nothing but write. The signal's own action comes next. */
static void on_crash(int number)
{
    char digits[16];
    char *at = digits + sizeof digits - 1;
    if (inside.env) {
        *at = '\0';
        for (uint32_t left = inside.env->steps + 1; left; left /= 10)
            *--at = (char)('0' + left % 10);
        bool step = strcmp(inside.function, "step") == 0;
        say("environment '");
        say(inside.env->ops->name);
        say("': the plug-in has crashed in ");
        say(inside.function);
        say(step ? " " : "");
        say(step ? at : "");
        say(step ? " of the episode\n" : "\n");
    }
    raise(number);
}

/* Catches the signals of a crash, unless somebody else does. */
static void watch_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND}, before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
}

/* Goes around every call of a plug-in: if it crashes, a line says in which environment, and in which function or step. */
static void env_enter(const struct env *self, const char *function)
{
    inside.function = function;
    inside.env = self->library ? self : NULL;
}

static void env_leave(void)
{
    inside.env = NULL;
}

/* ---- environments that are only described: for programs that never step them, such as a learner ---- */

static bool is_set(const char *text)
{
    return text && text[0];
}

bool env_is_python(const struct env_config *config)
{
    return is_set(config->python) || is_set(config->gym);
}

const char *env_name(const struct env_config *config)
{
    return is_set(config->python) ? config->python
           : is_set(config->gym)  ? config->gym
           : is_set(config->name) ? config->name
                                  : ENV_DEFAULT_NAME;
}

static const rp_env_ops described = {.name = "described", .help = "an environment in Python"};

/* Most numbers in a list of a spec. */
#define MOST_NUMBERS (RP_ENV_MAX_ACTION > RP_MAX_RANK ? RP_ENV_MAX_ACTION : RP_MAX_RANK)

/* Reads "[1, 2]" or "1". False: something in it is not a number, or there are too many. */
static bool read_numbers(const char *text, double out[MOST_NUMBERS], uint32_t *n)
{
    char word[48];
    for (*n = 0; schema_next(&text, word, sizeof word); ++*n)
        if (*n == MOST_NUMBERS || !schema_parse_real(word, &out[*n]))
            return false;
    return !text[strspn(text, " ]")];
}

static bool take_bounds(float *out, uint32_t *size, const double *numbers, uint32_t n)
{
    *size = n;
    for (uint32_t i = 0; i < n && i < RP_ENV_MAX_ACTION; i++)
        out[i] = (float)numbers[i];
    return n <= RP_ENV_MAX_ACTION;
}

/* Takes one key of a spec. highs: number of upper bounds. False: it is wrong. */
static bool take_key(const rp_option *option, rp_env_spec *spec, uint32_t *highs)
{
    const char *name = option->name;
    double numbers[MOST_NUMBERS] = {0};
    uint32_t n;
    if (strcmp(name, "dtype") == 0) {
        spec->observation_dtype = dtype_by_name(option->value);
        return spec->observation_dtype == RP_DTYPE_FLOAT32 || spec->observation_dtype == RP_DTYPE_UINT8;
    }
    if (!read_numbers(option->value, numbers, &n))
        return false;
    if (strcmp(name, "low") == 0)
        return take_bounds(spec->action_low, &spec->action_size, numbers, n);
    if (strcmp(name, "high") == 0)
        return take_bounds(spec->action_high, highs, numbers, n);
    if (strcmp(name, "shape") == 0) {
        bool good = n > 0 && n <= RP_MAX_RANK;
        spec->observation_rank = n;
        for (uint32_t i = 0; good && i < n; i++) {
            good = numbers[i] >= 1 && numbers[i] <= UINT32_MAX && numbers[i] == (double)(uint32_t)numbers[i];
            spec->observation_shape[i] = good ? (uint32_t)numbers[i] : 0;
        }
        return good;
    }
    bool whole = n == 1 && numbers[0] >= 0 && numbers[0] <= INT32_MAX && numbers[0] == floor(numbers[0]);
    if (strcmp(name, "actions") == 0 && whole)
        spec->n_actions = (uint32_t)numbers[0];
    else if (strcmp(name, "max_steps") == 0 && whole)
        spec->max_steps = (uint32_t)numbers[0];
    else
        return strcmp(name, "scale") == 0 && n == 1 && numbers[0] >= 1e-6 && numbers[0] <= 1e6;
    return true;
}

static rp_status read_spec(const struct env_config *config, rp_env_spec *spec, rp_error *err)
{
    const rp_option *options = config->spec.data;
    uint32_t highs = 0;
    spec->observation_dtype = RP_DTYPE_FLOAT32;
    for (uint32_t i = 0; i < config->spec.count; i++)
        if (!take_key(&options[i], spec, &highs))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "environment.spec cannot have %s: %s; 'python3 -m replaybus.describe' prints a spec",
                           options[i].name, options[i].value);
    if (spec->observation_rank == 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the shapes of environment '%s' are not known: replay-launch asks the environment for them; for "
                       "other programs, write what 'python3 -m replaybus.describe' prints below environment.spec",
                       env_name(config));
    if (highs != spec->action_size)
        return err_set(err, RP_INVALID_ARGUMENT, "environment.spec has %u numbers in low and %u in high",
                       spec->action_size, highs);
    return RP_OK;
}

double env_scale(const struct env_config *config)
{
    const rp_option *options = config->spec.data;
    double scale = 1.0, side;
    for (uint32_t i = 0; i < config->spec.count; i++)
        if (strcmp(options[i].name, "scale") == 0)
            schema_parse_real(options[i].value, &scale);
    options = config->options.data;
    for (uint32_t i = 0; !env_is_python(config) && i < config->options.count; i++)
        if (strcmp(options[i].name, "pixels") == 0 && schema_parse_real(options[i].value, &side))
            scale = side > 0 ? 1.0 / 255 : 1.0; /* of built-in boards */
    return scale;
}

/* RP_FAILED_PRECONDITION: the configuration states no shape. */
static rp_status env_open_described(struct env *self, const struct env_config *config, rp_error *err)
{
    RP_TRY(read_spec(config, &self->spec, err));
    self->ops = &described;
    self->described = true;
    return RP_OK;
}

/* ---- built-in environments and plug-ins ---- */

#define MOST_NAMES 128u /* library errors are read from this */

const rp_env_ops *const env_builtin[] = {
    &env_cartpole,          &env_acrobot,
    &env_mountaincar,       &env_mountaincar_continuous,
    &env_pendulum,          &env_catch,
    &env_deepsea,           &env_breakout,
    &env_freeway,           &env_asterix,
    &env_space_invaders,    &env_memory,
    &env_inverted_pendulum, &env_cartpole_swingup,
    &env_cheetah,           NULL,
};

static const rp_env_ops *find_ops(const rp_env_ops *const *list, const char *name)
{
    for (; list && *list; list++)
        if ((*list)->name && strcmp((*list)->name, name) == 0)
            return *list;
    return NULL;
}

static rp_status load(struct env *self, const char *path, const rp_env_plugin **out, rp_error *err)
{
    /* A bare name means a file in the working directory, as elsewhere in a configuration; dlopen would search the
     * system's libraries for it. */
    char here[PATH_MAX];
    int length = snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (length < 0 || (size_t)length >= sizeof here)
        return err_set(err, RP_INVALID_ARGUMENT, "the name of the environment plug-in is too long");
    self->library = dlopen(here, RTLD_NOW | RTLD_LOCAL);
    if (!self->library)
        return err_set(err, RP_IO, "environment plug-in %s: %s", path, dlerror());
    watch_crashes();
    rp_env_plugin_entry_fn *entry = NULL;
    *(void **)(&entry) = dlsym(self->library, "rp_env_plugin_entry");
    if (!entry)
        return err_set(err, RP_INVALID_ARGUMENT, "environment plug-in %s: it does not export rp_env_plugin_entry",
                       path);
    const rp_env_plugin *plugin = entry();
    if (!plugin)
        return err_set(err, RP_INVALID_ARGUMENT, "environment plug-in %s: rp_env_plugin_entry gives NULL", path);
    if (plugin->abi != RP_ENV_ABI)
        return err_set(err, RP_UNSUPPORTED,
                       "environment plug-in %s: built for interface %u, this program has %u: compile it again", path,
                       plugin->abi, RP_ENV_ABI);
    *out = plugin;
    return RP_OK;
}

static rp_status check_ops(const rp_env_ops *ops, const char *path, rp_error *err)
{
    const char *missing = !ops->create    ? "create"
                          : !ops->destroy ? "destroy"
                          : !ops->seed    ? "seed"
                          : !ops->reset   ? "reset"
                          : !ops->step    ? "step"
                                          : NULL;
    if (missing)
        return err_set(err, RP_INVALID_ARGUMENT, "environment plug-in %s: '%s' lacks the function %s", path, ops->name,
                       missing);
    return RP_OK;
}

/* With a plug-in the environment is one of its own. */
static rp_status choose(struct env *self, const struct env_config *config, rp_error *err)
{
    const char *path = config->plugin ? config->plugin : "", *name = env_name(config), *names[MOST_NAMES];
    const rp_env_ops *const *list = env_builtin;
    char what[400] = "unknown environment";
    uint32_t n = 0;
    if (*path) {
        const rp_env_plugin *plugin = NULL;
        RP_TRY(load(self, path, &plugin, err));
        list = plugin->environments;
        snprintf(what, sizeof what, "environment plug-in %s does not have", path);
    }
    self->ops = find_ops(list, name);
    if (self->ops)
        return *path ? check_ops(self->ops, path, err) : RP_OK;
    for (; list && *list && n < MOST_NAMES; list++)
        if ((*list)->name)
            names[n++] = (*list)->name;
    return env_no_such(err, RP_NOT_FOUND, what, name, names, n, "there are");
}

/* The last part of opening: checks the spec, and applies the configuration's limit and delay. */
static rp_status env_finish_open(struct env *self, const struct env_config *config, rp_error *err)
{
    if (config->max_steps < 0 || config->max_steps > UINT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "max_steps is %lld; it may be 0 (the environment's own) to %u",
                       (long long)config->max_steps, UINT32_MAX);
    RP_TRY(env_check_spec(env_name(config), &self->spec, err));
    self->max_steps = (uint32_t)config->max_steps;
    if (self->max_steps)
        self->spec.max_steps = self->max_steps;
    self->delay_ns = config->delay_ns;
    return RP_OK;
}

static rp_status open_env(struct env *self, const struct env_config *config, rp_error *err)
{
    if (env_is_python(config)) {
        RP_TRY(env_open_described(self, config, err));
        return env_finish_open(self, config, err);
    }
    RP_TRY(choose(self, config, err));
    rp_error why = {0};
    env_enter(self, "create");
    self->self = self->ops->create(config->options.data, config->options.count, &self->spec, &why);
    env_leave();
    if (!self->self)
        return err_set(err, why.status ? (rp_status)why.status : RP_INTERNAL, "%s",
                       why.text[0] ? why.text : "the environment could not be made, and does not say why");
    return env_finish_open(self, config, err);
}

rp_status env_open(struct env *self, const struct env_config *config, rp_error *err)
{
    *self = (struct env){0};
    rp_status status = open_env(self, config, err);
    if (status != RP_OK)
        env_close(self);
    return status;
}

void env_close(struct env *self)
{
    if (self->self && !self->described && !self->provider) /* a provider's environments belong to their group */
        self->ops->destroy(self->self);
    if (self->library)
        dlclose(self->library);
    *self = (struct env){0};
}

/* ---- in use ---- */

void env_seed(struct env *self, uint64_t seed)
{
    if (self->described)
        return;
    env_enter(self, "seed");
    self->ops->seed(self->self, seed);
    env_leave();
}

void env_reset(struct env *self, void *observation)
{
    assert(!self->described); /* programs refuse to step an environment that is only described */
    self->steps = 0;
    env_enter(self, "reset");
    self->ops->reset(self->self, observation);
    env_leave();
}

static void delay(int64_t ns)
{
    int64_t end = clock_ns() + ns;
    struct timespec until = {.tv_sec = end / NS_PER_S, .tv_nsec = end % NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

void env_native_action(const rp_env_spec *spec, const float *canonical, float *native)
{
    for (uint32_t i = 0; i < spec->action_size; i++) {
        double low = (double)spec->action_low[i], high = (double)spec->action_high[i];
        double unit = (double)canonical[i];
        unit = unit >= 1 ? 1 : unit > -1 ? unit : -1;
        native[i] = (float)(low + 0.5 * (unit + 1) * (high - low));
    }
}

bool env_expert(const struct env *self, void *action)
{
    if (!self->ops->expert)
        return false;
    env_enter(self, "expert");
    self->ops->expert(self->self, action);
    env_leave();
    return true;
}

void env_announce(struct env *self, const void *action)
{
    if (!self->provider)
        return;
    float native[RP_ENV_MAX_ACTION];
    if (!self->spec.n_actions)
        env_native_action(&self->spec, action, native);
    self->provider->announce(self->self, self->spec.n_actions ? action : native);
}

/* A value that is not a number counts as the lower bound. */
static void clip(const rp_env_spec *spec, const float *action, float *native)
{
    for (uint32_t i = 0; i < spec->action_size; i++) {
        float low = spec->action_low[i], high = spec->action_high[i];
        native[i] = action[i] >= high ? high : action[i] > low ? action[i] : low;
    }
}

/* `native`: a continuous action in the environment's own units, within its bounds. */
static void step(struct env *self, const void *action, const float *native, void *observation, rp_env_result *result)
{
    assert(!self->spec.n_actions || *(const uint32_t *)action < self->spec.n_actions);
    *result = (rp_env_result){0};
    env_enter(self, "step");
    self->ops->step(self->self, self->spec.n_actions ? action : native, observation, result);
    env_leave();
    self->steps++;
    /* C environments go on beyond their own limit if a longer one is set; those of a provider may not. */
    if (self->max_steps)
        result->truncated = (self->provider && result->truncated) || self->steps >= self->max_steps;
    /* A plug-in may report both; terminal counts. */
    if (result->terminal)
        result->truncated = 0;
    if (self->delay_ns > 0)
        delay(self->delay_ns);
}

void env_step(struct env *self, const void *action, void *observation, rp_env_result *result)
{
    float native[RP_ENV_MAX_ACTION];
    env_native_action(&self->spec, action, native);
    step(self, action, native, observation, result);
}

void env_step_native(struct env *self, const void *action, void *observation, rp_env_result *result)
{
    float native[RP_ENV_MAX_ACTION];
    clip(&self->spec, action, native);
    step(self, action, native, observation, result);
}

/* A plug-in may draw anything. */
static bool is_sound(const rp_shape *shape)
{
    return (unsigned)shape->kind <= RP_SHAPE_BOX && (unsigned)shape->role <= RP_ROLE_GOAL &&
           isfinite(shape->x + shape->y + shape->x2 + shape->y2 + shape->size);
}

void env_draw(const struct env *self, rp_drawing *out)
{
    *out = (rp_drawing){0};
    if (!self->ops->draw)
        return;
    env_enter(self, "draw");
    self->ops->draw(self->self, out);
    env_leave();
    double across = out->right - out->left, up = out->top - out->bottom;
    uint32_t n = isfinite(across + up) && across > 0 && up > 0 && out->n <= RP_MAX_SHAPES ? out->n : 0;
    out->n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (is_sound(&out->shapes[i]))
            out->shapes[out->n++] = out->shapes[i];
}

/* ---- groups ---- */

/* The configuration states a spec if the environment was described before: both must agree, or the learner would read
 * observations of another size. */
static rp_status check_description(const struct env_config *config, const rp_env_spec *spec, rp_error *err)
{
    struct env stated = {0};
    if (config->spec.count == 0)
        return RP_OK;
    RP_TRY(env_open_described(&stated, config, err));
    if (!env_same_spec(&stated.spec, spec))
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment '%s' has other shapes than environment.spec states: it has changed since it was "
                       "described; start a new run",
                       env_name(config));
    return RP_OK;
}

static rp_status open_provided(struct env_group *self, const struct env_config *config,
                               const struct env_provider *provider, rp_error *err)
{
    rp_env_spec spec = {0};
    self->whole = provider->create(provider->ctx, config, &self->n, &spec, err);
    if (!self->whole)
        return (rp_status)err->status;
    self->provider = provider;
    RP_TRY(check_description(config, &spec, err));
    self->envs = need_alloc(self->n * sizeof *self->envs);
    for (uint32_t i = 0; i < self->n; i++) {
        struct env *env = &self->envs[i];
        *env = (struct env){
            .ops = provider->ops, .self = provider->subenv(self->whole, i), .spec = spec, .provider = provider};
        RP_TRY(env_finish_open(env, config, err));
    }
    return RP_OK;
}

static rp_status open_copies(struct env_group *self, const struct env_config *config, rp_error *err)
{
    uint32_t wanted = self->n;
    self->envs = need_alloc(wanted * sizeof *self->envs);
    for (self->n = 0; self->n < wanted; self->n++)
        RP_TRY(env_open(&self->envs[self->n], config, err));
    return RP_OK;
}

rp_status env_group_open(struct env_group *self, const struct env_config *config, uint32_t n,
                         const struct env_provider *provider, rp_error *err)
{
    *self = (struct env_group){.n = n};
    rp_status status =
        provider && env_is_python(config) ? open_provided(self, config, provider, err) : open_copies(self, config, err);
    if (status != RP_OK)
        env_group_close(self);
    return status;
}

void env_group_close(struct env_group *self)
{
    for (uint32_t i = 0; self->envs && i < self->n; i++)
        env_close(&self->envs[i]);
    free(self->envs);
    if (self->whole)
        self->provider->ops->destroy(self->whole);
    *self = (struct env_group){0};
}

rp_status env_failure(const struct env *self, rp_error *err)
{
    return self->provider ? self->provider->failure(self->self, err) : RP_OK;
}

bool env_resets_within_round(const struct env *self)
{
    return self->provider && self->provider->resets_within_round(self->self);
}

uint32_t env_metrics(const struct env *self, struct env_metric out[ENV_MAX_METRICS])
{
    return self->provider ? self->provider->metrics(self->self, out) : 0;
}
