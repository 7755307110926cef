/* Several environments that one actor steps in turns: copies of a C environment, or the environments that a provider
 * makes. A provider stands for another language: the Python extension has one. */
#ifndef AGENT_ENV_ENV_GROUP_H
#define AGENT_ENV_ENV_GROUP_H

#include "agent/env/env.h"

/* Environments of another language. The seats of one `create` are its environments; `ops` take a seat as their self. */
struct env_provider {
    void *ctx;
    const rp_env_ops *ops; /* seed, reset and step; destroy takes the whole, and create is not used */
    /* Makes *n environments and returns the whole. Where the environment itself is many, *n becomes their number. */
    void *(*create)(void *ctx, const struct env_config *config, uint32_t *n, rp_env_spec *spec, rp_error *err);
    void *(*seat)(void *whole, uint32_t index);
    /* RP_OK, or why the last reset or step of the seat failed. */
    rp_status (*failure)(void *seat, rp_error *err);
    /* Announces the action of the next step. Environments that step together step all at the first step of a round,
     * so every action is announced before it. */
    void (*announce)(void *seat, const void *action);
    /* True if the next episode of the seat begins within a round, without a step of its own: its first observation is
     * there after the other seats have stepped. */
    bool (*resets_within_round)(void *seat);
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

#endif
