/* How a node agent gets onto a host: the command of its carrier. ssh, or the user's own command, runs one line of shell there; it
 * finds our programs, or asks for them (the line `@rp {"type":"need"}`, which host_send.c answers with the bundle), and becomes
 * `replay-launch node`. Whatever goes wrong there is a sentence on standard error. */
#ifndef AGENT_LAUNCH_HOST_CARRIER_H
#define AGENT_LAUNCH_HOST_CARRIER_H

#include <stddef.h>

#include "agent/config/config.h"
#include "agent/launch/host/bundle.h"

struct carrier_options {
    const char *programs;        /* folder of our programs at home: a host may have the same ones under the same path */
    const struct bundle *bundle; /* see bundle_describe; may be NULL if every host has host_config.programs */
};

/* The command that reaches a host; NULL-terminated, command_free. name: destination for ssh, one of those that host->ssh stands
 * for; with host->command only a name for messages. NULL: err says why. */
char **carrier_build(const struct carrier_options *options, const struct host_config *host, const char *name,
                     rp_error *err);

/* What the user can do about a failed connection: "run `ssh cpu3` once by hand and accept its key". reason: the last lines that
 * the carrier printed. Gives out; "": nothing is known to help. */
const char *carrier_advice(const char *reason, const char *name, char *out, size_t size);

#endif
