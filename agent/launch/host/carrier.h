/* How a node agent gets onto a host. The carrier is ssh, or the user's own command, and runs one line of shell there, which finds our
 * programs and becomes `replay-launch node`. If the host lacks them, the carrier is used once more to send them. Whatever goes wrong
 * there is a sentence on standard error. */
#pragma once

#include <stddef.h>

#include "agent/config/config.h"
#include "replay/error.h"

#define BUNDLE_HASH 65u /* SHA-256 in hexadecimal digits */

/* The programs that a host needs: replay-launch, replay-actor, replay-learner, the Python package beside them, and the shared libraries
 * that they need beyond the C library's own. A host that lacks them gets them once, as one packed file, which the user's cache keeps
 * (XDG_CACHE_HOME or ~/.cache, replay/); there they are kept under their hash. */
struct bundle {
    char hash[BUNDLE_HASH]; /* over names and contents of the programs and of the Python package */
    char programs[512];     /* the folder that they are in, at home */
};
/* Describes the bundle of the programs in a folder. Takes a moment. */
rp_status bundle_describe(const char *programs, struct bundle *out, rp_error *err);

/* The command that reaches a host; NULL-terminated, words_free. name: destination for ssh, one of those that host->name stands
 * for; with host->command only a name for messages. bundle: may be NULL if the host has host->programs. NULL: err says why. The command
 * prints the line `@rp {"type":"sending"}` before it sends our programs. */
char **carrier_build(const struct bundle *bundle, const struct host_config *host, const char *name, rp_error *err);

/* What the user can do about a failed connection: "run `ssh cpu3` once by hand and accept its key". reason: the last lines that
 * the carrier printed. Gives out; "": nothing is known to help. */
const char *carrier_advice(const char *reason, const char *name, char *out, size_t size);
