/* Measures what actors and learners can do, and keeps the results in a cache. It starts a real broker that is thrown away, one real
 * actor and one real learner with the limiter off; then pairs of counts under the real limiter, as plan_next asks for them. With
 * hosts, an actor on one host of each kind, learners where the run will have them, and pairs over all of them.
 *
 * Rates of inserts are those of long episodes: the first policies fall at once, and the many ends of their episodes would promise
 * more items than there will be. */
#pragma once

#include "agent/launch/host/host_pool.h"
#include "agent/launch/plan/plan.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/process.h"

struct profile_options {
    struct command_context home; /* of the run; logs of the profile's processes go below its folder, which must exist */
    struct host_pool *hosts;     /* of the run, open */
    bool fresh;                  /* ignore the cache */
    bool cached;                 /* use only the cache: RP_NOT_FOUND if it has nothing */
    /* Called a few times per second with a line about the present measurement. False: stop (RP_CANCELLED). */
    bool (*progress)(void *context, const char *line);
    void *context;
};

/* The hosts of a pool as a plan sees them, each kind with what was measured on it for `known`, which may have no hosts. Hosts that are
 * not ready take no processes. *n: how many there are. free() */
struct plan_host *profile_hosts(const struct host_pool *pool, const struct plan_input *known, uint32_t *n);

/* Items that one learner samples for a step. */
int64_t profile_batch(const struct run_config *config);

/* Gives the measurements, from the cache or made now; *from_cache says which. The cache is a file per configuration,
 * build and kinds of machines in $XDG_CACHE_HOME/replay (~/.cache/replay): machines are known by processor and cores, not by
 * name. What does not matter for speed (name, seed, folder, stop, launch, ...) does not change the key. out: plan_input_free. */
rp_status profile_measure(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err);

/* Items that an actor of ours makes in a step of its environment, if episodes are long; 0: not known (actors of the user's own, whole
 * episodes as items). */
double profile_items_per_step(const struct run_config *config);
/* Converts a measured rate of inserts, with the rate of steps at that time, to long episodes. */
double profile_lasting(double items_per_step, double steps, double inserts);
/* The same for a pair: where actors could still keep up, only their idle share changes. */
void profile_lasting_pair(double items_per_step, double steps, struct plan_pair *pair);

/* ---- for tests: the cache ---- */

/* Returns the key, a text of everything that the measurements depend on, which are the programs, the
 * configuration and the machines: free(). */
char *profile_key(const struct profile_options *options, const char *machines);
/* False: there is no file, it belongs to another key, or it is damaged. out: plan_input_free. */
bool profile_load(const char *key, struct plan_input *out);
/* Replaces the file, whole or not at all. */
rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err);
