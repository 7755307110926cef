/* Asks an environment in Python for its spec, once for a run. */
#ifndef AGENT_LAUNCH_DESCRIBE_H
#define AGENT_LAUNCH_DESCRIBE_H

#include "agent/config/config.h"

/* Runs python3 -m replaybus.describe and waits environment.timeout for it. Gives overrides "environment.spec.KEY=VALUE"
 * (NULL-terminated, command_free), or NULL with the reason. What the environment printed to standard error is passed
 * on. programs: folder of our programs; here: folder of the user's file. */
char **describe_environment(const struct run_config *config, const char *programs, const char *here, rp_error *err);

#endif
