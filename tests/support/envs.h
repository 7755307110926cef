/* Environments that are closed when the program ends. */
#pragma once

#include "agent/env/env.h"
#include "proto/base/rng.h"
#include "tests/support/test.h"

/* Fails the test if the environment is refused. ENV(.name = "Catch"): by members of its configuration. */
struct env *envs_open(const struct env_config *config);
#define ENV(...) envs_open(&(struct env_config){__VA_ARGS__})
/* Fails the test unless this configuration is refused with this status and text. */
void envs_refuse(const struct env_config *config, rp_status status, const char *text);
/* A random action of an environment: valid until the next. */
const void *envs_action(const struct env *env, struct rng *rng);
