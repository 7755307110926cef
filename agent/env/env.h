/* The env room: the built-in environments, plug-ins, environments that a provider makes (in Python), and the checks of
 * their options and specs. It knows nothing of agents, and nothing of Python: the extension that runs Python fills in
 * an env_provider.
 *
 * This header: an environment in use, found by name among the built-in ones and those of a plug-in, with actions in
 * canonical units and, if asked for, made slow.
 *
 * Continuous actions are canonical here: every number lies in [-1, 1] (others are clipped) and is mapped to the
 * bounds of the environment. Agents never see those bounds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proto/config/schema.h"
#include "replay/env.h"

struct env_config {
    char *name;        /* built in, or of the plug-in; python:... or gym:...; empty: ENV_DEFAULT_NAME */
    char *plugin;      /* path of a shared object, or empty */
    char *python;      /* in name: "module:callable" that makes an environment, or empty */
    char *gym;         /* in name: id of an environment that gymnasium or gym makes, or empty */
    char *interpreter; /* program that runs Python environments */
    struct schema_list
        spec; /* rp_option: what a Python environment says of itself, so that programs which never step it
                                   need not ask; empty: not known yet */
    struct schema_list options; /* rp_option */
    int64_t max_steps;          /* time limit instead of the environment's own; 0: its own */
    int64_t delay_ns;           /* added to the duration of each step */
};

#define ENV_DEFAULT_NAME "CartPole-v1"

/* Returns the factor of uint8 observations before networks: 1/255 for images, that is if the spec of a Python environment says so, and
 * for boards as pixels. */
double env_scale(const struct env_config *config);

struct env_provider; /* below */
struct env_picture;  /* agent/env/picture.h */

struct env {
    const rp_env_ops *ops;
    void *self;
    rp_env_spec spec;
    void *library;                       /* of a plug-in */
    const struct env_provider *provider; /* of a group; NULL: the environment is C */
    bool described;                      /* only the spec is known: no reset, no step */
    int64_t delay_ns;
    uint32_t max_steps; /* imposed here; 0: the environment's own */
    uint32_t steps;     /* steps of this episode */
};

/* The built-in environments, NULL-terminated. */
extern const rp_env_ops *const env_builtin[];

/* Errors name the known environments: "unknown environment 'CartPol-v1' (did you mean 'CartPole-v1'?)". */
rp_status env_open(struct env *self, const struct env_config *config, rp_error *err);
/* True for an environment that only Python can make. Without a provider env_open gives what its description says, and
 * nothing can be stepped. */
bool env_is_python(const struct env_config *config);
/* The name for people: of the C environment, the callable, or gym's id. */
const char *env_name(const struct env_config *config);
void env_close(struct env *self);
void env_seed(struct env *self, uint64_t seed);
void env_reset(struct env *self, void *observation);
/* `action`: one int32_t, or spec.action_size canonical floats. */
void env_step(struct env *self, const void *action, void *observation, rp_env_result *result);
/* The same with continuous actions in the environment's own units, clipped to its bounds. */
void env_step_native(struct env *self, const void *action, void *observation, rp_env_result *result);
/* Writes an action for env_step_native that is best in the present state. False: the environment has no expert. */
bool env_expert(const struct env *self, void *action);
/* The shapes that the environment draws; none: it draws nothing. */
void env_draw(const struct env *self, rp_drawing *out);
/* Maps a canonical action to the environment's own units; a value that is not a number counts as -1. */
void env_native_action(const rp_env_spec *spec, const float *canonical, float *native);

/* Memory for one observation, with guard bytes behind it for those of a plug-in: one that writes too much should not
 * crash the process. Free it with free. */
void *env_observation_new(const struct env *self);
/* Checks what a plug-in has written: RP_INVALID_ARGUMENT if it wrote too much, or a number that is not finite. Built-in
 * environments are not checked. */
rp_status env_observation_check(const struct env *self, const void *observation, rp_error *err);

/* Numbers in one observation; bytes of one observation; bytes of one action. */
size_t env_observation_count(const rp_env_spec *spec);
size_t env_observation_bytes(const rp_env_spec *spec);
size_t env_action_bytes(const rp_env_spec *spec);
/* RP_INVALID_ARGUMENT, with the reason, if a spec (of a plug-in) cannot be used. */
rp_status env_check_spec(const char *name, const rp_env_spec *spec, rp_error *err);
/* True if observations and actions are the same. */
bool env_same_spec(const rp_env_spec *a, const rp_env_spec *b);

/* ---- several environments that one actor steps in turns: copies of a C environment, or the environments that a provider makes.
 * A provider stands for another language: the Python extension has one. */

/* A number that an environment reports beside its rewards. */
struct env_metric {
    char name[56]; /* "info/success" */
    double value;
};
#define ENV_MAX_METRICS 16u

/* Environments of another language. The subenvs of one `create` are its environments; `ops` take a subenv as their self. */
struct env_provider {
    void *ctx;
    const rp_env_ops *ops; /* seed, reset and step; destroy takes the whole, and create is not used */
    /* Makes *n environments and returns the whole. Where the environment itself is many, *n becomes their number. */
    void *(*create)(void *ctx, const struct env_config *config, uint32_t *n, rp_env_spec *spec, rp_error *err);
    void *(*subenv)(void *whole, uint32_t index);
    /* RP_OK, or why the last reset or step of the subenv failed. */
    rp_status (*failure)(void *subenv, rp_error *err);
    /* Announces the action of the next step. Environments that step together step all at the first step of a round,
     * so every action is announced before it. */
    void (*announce)(void *subenv, const void *action);
    /* True if the next episode of the subenv begins within a round, without a step of its own: its first observation is
     * there after the other subenvs have stepped. */
    bool (*resets_within_round)(void *subenv);
    /* Gives the means of the numbers in the environments' infos since the last call: of all subenvs together. Returns how many. */
    uint32_t (*metrics)(void *subenv, struct env_metric out[ENV_MAX_METRICS]);
    /* Gives the frame that the subenv renders: width, height, rgb and step_s. False: it renders none. */
    bool (*render)(void *subenv, struct env_picture *out);
};

struct env_group {
    struct env *envs;
    uint32_t n;
    const struct env_provider *provider; /* NULL: C environments */
    void *whole;                         /* of the provider */
};

/* Opens n environments, or as many as the provider has. provider: makes environments in Python; NULL: none, and such an
 * environment is only described. */
rp_status env_group_open(struct env_group *self, const struct env_config *config, uint32_t n,
                         const struct env_provider *provider, rp_error *err);
void env_group_close(struct env_group *self);

/* The hooks of a provider; cheap for C environments. */
rp_status env_failure(const struct env *self, rp_error *err);
void env_announce(struct env *self, const void *action);
bool env_resets_within_round(const struct env *self);
uint32_t env_metrics(const struct env *self, struct env_metric out[ENV_MAX_METRICS]);
