#include "agent/env/env.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agent/env/builtin.h"
#include "agent/env/env_group.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define MOST_NAMES 128u /* library errors are read from this */

const rp_env_ops *const env_builtin[] = {
    &env_cartpole, &env_acrobot,  &env_mountaincar,       &env_mountaincar_continuous, &env_pendulum, &env_catch,
    &env_deepsea,  &env_breakout, &env_inverted_pendulum, &env_cartpole_swingup,       &env_cheetah,  NULL,
};

static const rp_env_ops *find(const rp_env_ops *const *list, const char *name)
{
    for (; list && *list; list++)
        if ((*list)->name && strcmp((*list)->name, name) == 0)
            return *list;
    return NULL;
}

/* ---- plug-ins */

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
    env_watch_crashes();
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

/* ---- by name */

static uint32_t add_names(const rp_env_ops *const *list, const char **names, uint32_t n)
{
    for (; list && *list && n < MOST_NAMES; list++)
        if ((*list)->name)
            names[n++] = (*list)->name;
    return n;
}

static rp_status unknown(const char *name, const rp_env_plugin *plugin, rp_error *err)
{
    const char *names[MOST_NAMES];
    uint32_t n = add_names(env_builtin, names, 0);
    n = plugin ? add_names(plugin->environments, names, n) : n;
    char list[400] = "";
    for (uint32_t i = 0, used = 0; i < n && used < sizeof list; i++)
        used += (uint32_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    const char *near = schema_nearest(name, names, n);
    if (near)
        return err_set(err, RP_NOT_FOUND, "unknown environment '%s' (did you mean '%s'?)", name, near);
    return err_set(err, RP_NOT_FOUND, "unknown environment '%s'; there are %s", name, list);
}

static rp_status choose(struct env *self, const struct env_config *config, rp_error *err)
{
    const char *name = env_name(config);
    const char *path = config->plugin ? config->plugin : "";
    const rp_env_plugin *plugin = NULL;
    if (*path)
        RP_TRY(load(self, path, &plugin, err));
    self->ops = find(env_builtin, name);
    const rp_env_ops *loaded = plugin ? find(plugin->environments, name) : NULL;
    if (self->ops && loaded)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment plug-in %s: '%s' is the name of a built-in environment: rename it", path, name);
    if (!self->ops && !loaded)
        return unknown(name, plugin, err);
    if (plugin && !loaded) {
        const char *names[MOST_NAMES] = {"nothing"};
        add_names(plugin->environments, names, 0);
        return err_set(err, RP_INVALID_ARGUMENT,
                       "environment plug-in %s: it is not used, for environment.name is the built-in %s; write '%s' "
                       "there, or leave the plug-in out",
                       path, name, names[0]);
    }
    if (loaded) {
        RP_TRY(check_ops(loaded, path, err));
        self->ops = loaded;
    }
    return RP_OK;
}

rp_status env_finish_open(struct env *self, const struct env_config *config, rp_error *err)
{
    if (config->max_steps < 0 || config->max_steps > UINT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "max_steps is %lld; it may be 0 (the environment's own) to %u",
                       (long long)config->max_steps, UINT32_MAX);
    RP_TRY(env_check_spec(env_name(config), &self->spec, err));
    self->max_steps = (uint32_t)config->max_steps;
    if (self->max_steps)
        self->spec.max_steps = self->max_steps;
    self->delay_ns = config->delay_ns;
    self->delay_kind = config->delay_kind;
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
    if (self->self && !self->provider) /* a provider's environments belong to their group */
        self->ops->destroy(self->self);
    if (self->library)
        dlclose(self->library);
    *self = (struct env){0};
}

/* ---- in use */

void env_seed(struct env *self, uint64_t seed)
{
    env_enter(self, "seed");
    self->ops->seed(self->self, seed);
    env_leave();
}

void env_reset(struct env *self, void *observation)
{
    self->steps = 0;
    env_enter(self, "reset");
    self->ops->reset(self->self, observation);
    env_leave();
}

static int64_t time_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* A busy delay is processor time, not wall time: like a real computation it takes longer where processes share a
 * core. */
static void delay(int64_t ns, int32_t kind)
{
    if (kind == ENV_DELAY_BUSY) {
        int64_t end = time_ns(CLOCK_THREAD_CPUTIME_ID) + ns;
        while (time_ns(CLOCK_THREAD_CPUTIME_ID) < end)
            continue;
        return;
    }
    int64_t end = time_ns(CLOCK_MONOTONIC) + ns;
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

/* The action is within its bounds. */
static void step(struct env *self, const void *action, void *observation, rp_env_result *result)
{
    *result = (rp_env_result){0};
    env_enter(self, "step");
    self->ops->step(self->self, action, observation, result);
    env_leave();
    self->steps++;
    /* C environments go on beyond their own limit if a longer one is set; those of a provider may not. */
    if (self->max_steps)
        result->truncated = (self->provider && result->truncated) || self->steps >= self->max_steps;
    /* A plug-in may report both; terminal counts. */
    if (result->terminal)
        result->truncated = 0;
    if (self->delay_ns > 0)
        delay(self->delay_ns, self->delay_kind);
}

static void step_discrete(struct env *self, const int32_t *action, void *observation, rp_env_result *result)
{
    assert(*action >= 0 && *action < (int32_t)self->spec.n_actions);
    step(self, action, observation, result);
}

void env_step(struct env *self, const void *action, void *observation, rp_env_result *result)
{
    float native[RP_ENV_MAX_ACTION];
    if (self->spec.n_actions) {
        step_discrete(self, action, observation, result);
        return;
    }
    env_native_action(&self->spec, action, native);
    step(self, native, observation, result);
}

void env_step_native(struct env *self, const void *action, void *observation, rp_env_result *result)
{
    float native[RP_ENV_MAX_ACTION];
    if (self->spec.n_actions) {
        step_discrete(self, action, observation, result);
        return;
    }
    clip(&self->spec, action, native);
    step(self, native, observation, result);
}
