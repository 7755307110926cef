/* The programs that a host needs, packed into one file: replay-launch, replay-actor, replay-learner, the Python package beside
 * them, and the shared libraries that they need beyond the C library's own. A host that lacks them gets the file over the
 * connection, once: they are kept there under their hash (carrier.h). */
#ifndef AGENT_LAUNCH_HOST_BUNDLE_H
#define AGENT_LAUNCH_HOST_BUNDLE_H

#include <stdint.h>

#include "replay/error.h"

#define BUNDLE_HASH 65u /* SHA-256 in hexadecimal digits */

struct bundle {
    char path[512];         /* a gzipped tar file in the user's cache */
    int64_t size;           /* of that file, bytes */
    char hash[BUNDLE_HASH]; /* over names and contents of all that is in it */
    char programs
        [BUNDLE_HASH]; /* over programs and Python package alone: a host that has them elsewhere is asked for this */
};

/* Describes the bundle of the programs in a folder. Packs it if the cache (XDG_CACHE_HOME or ~/.cache, replay/) does not have it
 * yet: that takes seconds. The result is remembered by size and time of the programs, so a second call is cheap. */
rp_status bundle_make(const char *programs, struct bundle *out, rp_error *err);

#endif
