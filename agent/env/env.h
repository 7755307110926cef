/* The env room: the built-in environments, plug-ins, and the checks of their options and specs. It knows nothing of
 * agents.
 *
 * This header: an environment in use, found by name among the built-in ones and those of a plug-in, with actions in
 * canonical units and, if asked for, made slow.
 *
 * Continuous actions are canonical here: every number lies in [-1, 1] (others are clipped) and is mapped to the
 * bounds of the environment. Agents never see those bounds. */
#ifndef AGENT_ENV_ENV_H
#define AGENT_ENV_ENV_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/config/schema.h"
#include "replay/env.h"

enum env_delay { ENV_DELAY_SLEEP, ENV_DELAY_BUSY };

struct env_config {
    char *name;
    char *plugin;               /* path of a shared object, or empty */
    struct schema_list options; /* rp_option */
    int64_t max_steps;          /* time limit instead of the environment's own; 0: its own */
    int64_t delay_ns;           /* added to the duration of each step */
    int32_t delay_kind;         /* an env_delay: wait, or keep the processor busy */
};

struct env {
    const rp_env_ops *ops;
    void *self;
    rp_env_spec spec;
    void *library; /* of a plug-in */
    int64_t delay_ns;
    int32_t delay_kind;
    uint32_t max_steps; /* imposed here; 0: the environment's own */
    uint32_t steps;     /* steps of this episode */
};

/* The built-in environments, NULL-terminated. */
extern const rp_env_ops *const env_builtin[];

/* Errors name the known environments: "unknown environment 'CartPol-v1' (did you mean 'CartPole-v1'?)". */
rp_status env_open(struct env *self, const struct env_config *config, rp_error *err);
void env_close(struct env *self);
void env_seed(struct env *self, uint64_t seed);
void env_reset(struct env *self, void *observation);
/* `action`: one int32_t, or spec.action_size canonical floats. */
void env_step(struct env *self, const void *action, void *observation, rp_env_result *result);

/* Numbers in one observation; bytes of one observation; bytes of one action. */
size_t env_observation_count(const rp_env_spec *spec);
size_t env_observation_bytes(const rp_env_spec *spec);
size_t env_action_bytes(const rp_env_spec *spec);
/* RP_INVALID_ARGUMENT, with the reason, if a spec (of a plug-in) cannot be used. */
rp_status env_check_spec(const char *name, const rp_env_spec *spec, rp_error *err);

/* For the create functions of environments: returns the option's value, or NULL. */
const char *env_option(const rp_option *options, uint32_t n_options, const char *name);
/* Refuses options that are not in the NULL-terminated list, with "did you mean". */
rp_status env_known_options(const char *env, const rp_option *options, uint32_t n_options, const char *const *known,
                            rp_error *err);
/* An option that is a number within bounds; *out keeps its default if the option is absent. */
struct env_real {
    const char *name;
    double min, max;
    double *out;
};
rp_status env_option_real(const rp_option *options, uint32_t n_options, const struct env_real *real, rp_error *err);

#endif
