/* The keys of a run: made in the run's folder when its broker needs keys, one for each role, and named to the processes by a
 * variable of their environment. */
#ifndef AGENT_LAUNCH_RUN_KEYS_H
#define AGENT_LAUNCH_RUN_KEYS_H

#include "agent/config/config.h"
#include "replay/error.h"

#define RUN_KEYS_FOLDER "keys"

struct run_keys {
    bool on;
    bool foreign;      /* the list of keys is the user's: this run takes its keys off it at the end */
    char folder[1024]; /* of the key files: actor.key, learner.key, admin.key */
    char list[1024];   /* folder of the broker's key and list of keys */
};

/* Makes the keys that are not there yet and lets them in. list: security.keys as the broker gets it; "": the run's own. Does
 * nothing if the broker needs no keys. */
rp_status run_keys_open(struct run_keys *self, const struct broker_config *broker, const char *run_folder,
                        const char *list, rp_error *err);
/* The run has ended: its keys are of no use any more. */
void run_keys_close(struct run_keys *self);
/* Writes the path of a role's key file ("actor", "learner", "admin"); "" without keys. Gives out. */
const char *run_keys_file(const struct run_keys *self, const char *role, char *out, size_t size);

#endif
