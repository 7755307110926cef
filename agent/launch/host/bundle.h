/* The programs that a host needs, packed into one file: replay-launch, replay-actor, replay-learner, the Python package beside
 * them, and the shared libraries that they need beyond the C library's own. A host that lacks them gets the file over the
 * connection, once: they are kept there under their hash (carrier.h). The file is packed when the first host asks for it. */
#ifndef AGENT_LAUNCH_HOST_BUNDLE_H
#define AGENT_LAUNCH_HOST_BUNDLE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "replay/error.h"

#define BUNDLE_HASH 65u /* SHA-256 in hexadecimal digits */

struct bundle {
    char hash[BUNDLE_HASH]; /* over names and contents of all that is in it */
    char programs
        [BUNDLE_HASH]; /* over programs and Python package alone: a host that has them elsewhere is asked for this */
    int64_t size;      /* of the packed file, bytes; 0: it is not packed */
    char path[512];    /* of the packed file: a gzipped tar file in the user's cache */
    /* ---- private */
    char from[512], cache[400],
        memory[512]; /* folders of the programs and of the cache; file that remembers the rest */
    pid_t pid;       /* of the script that packs; 0: none does */
    int out;         /* its output */
    size_t used;
    char output[2048];
};

/* Describes the bundle of the programs in a folder: hash and programs are known, and if the cache (XDG_CACHE_HOME or ~/.cache, replay/)
 * has it packed, size and path. The result is remembered by size and time of the programs, so a second call is cheap. */
rp_status bundle_describe(const char *programs, struct bundle *out, rp_error *err);
/* Packs the bundle in a process of its own, which takes seconds. RP_UNAVAILABLE: not yet, call again; RP_OK: size and path are known. */
rp_status bundle_pack(struct bundle *self, rp_error *err);
/* Ends packing. */
void bundle_fini(struct bundle *self);

#endif
