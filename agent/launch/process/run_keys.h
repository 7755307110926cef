/* The keys of a run: made in the run's folder when its broker needs keys, one for each role at home and one for each role of each
 * host, and named to the processes by a variable of their environment. */
#pragma once

#include "agent/config/config.h"
#include "proto/keys/allow.h"
#include "replay/error.h"

#define RUN_KEYS_FOLDER "keys"

struct run_keys {
    bool on;
    bool passes_work;  /* actors also sample, and learners also write: their keys have both roles */
    bool foreign;      /* the list of keys is the user's: this run takes its keys off it at the end */
    char folder[1024]; /* of the key files: actor.key, learner.key, admin.key, HOST.actor.key */
    char list[1024];   /* folder of the broker's key and list of keys */
};

/* Makes the keys that are not there yet and lets them in. list: security.keys as the broker gets it; "": the run's own. Does
 * nothing if the broker needs no keys. */
rp_status run_keys_open(struct run_keys *self, const struct run_config *config, const char *run_folder,
                        const char *list, rp_error *err);
/* Makes a host's key for a role, or finds it, and lets it in. RP_PERMISSION_DENIED: somebody has revoked it. */
struct host_key {
    char path[1100];
    char name[KEY_NAME]; /* on the list */
};
rp_status run_keys_of_host(const struct run_keys *self, const char *host, const char *role, struct host_key *out,
                           rp_error *err);
/* The run has ended: its keys are of no use any more. */
void run_keys_close(struct run_keys *self);
/* Writes the path of a role's key file ("actor", "learner", "admin"); "" without keys. Gives out. */
const char *run_keys_file(const struct run_keys *self, const char *role, char *out, size_t size);
