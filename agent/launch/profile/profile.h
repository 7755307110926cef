/* The profile room: measures what actors and learners can do, and keeps the results in a cache. It starts a real
 * broker that is thrown away, the real actors with the limiter off, the real learners on a table that an actor has
 * filled, at counts 1, 2, 4, ... as long as more processes pay; then joint runs under the real limiter of the pairs
 * that plan_next asks for. With hosts, one curve of actors for each kind of host, learners where the run will have them, the
 * network to the broker's machine, and joint runs over all of them. It may use plan, process, host, observe and plot.
 *
 * Rates of inserts are those of episodes as long as the environment lets them be (profile_impl.h): the first
 * policies fall at once, and the many ends of their episodes would promise more items than there will be. */
#ifndef AGENT_LAUNCH_PROFILE_H
#define AGENT_LAUNCH_PROFILE_H

#include "agent/launch/host/host_pool.h"
#include "agent/launch/plan/plan.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/process.h"

struct profile_options {
    const struct run_config *config;
    const char *programs, *config_path, *here; /* see command.h */
    const char *folder;                        /* logs of the profile's processes go below it; must exist */
    struct guard *guard;
    struct host_pool *hosts;     /* of the run, open; NULL: one machine */
    const struct run_keys *keys; /* of the run */
    bool fresh;                  /* ignore the cache */
    bool cached;                 /* use only the cache: RP_NOT_FOUND if it has nothing */
    /* Called a few times per second with a line about the present measurement. False: stop (RP_CANCELLED). */
    bool (*progress)(void *context, const char *line, double share);
    void *context;
};

/* Items that one learner samples for a step. */
int64_t profile_batch(const struct run_config *config);
/* Samples per insert that the configuration aims at: plan.spi, or the limiter's; 0: none. */
double profile_target(const struct run_config *config);

/* Gives the curves, from the cache or measured now; *from_cache says which. The cache is a file per configuration,
 * build and kinds of machines in $XDG_CACHE_HOME/replay (~/.cache/replay): machines are known by processor and cores, not by
 * name. What does not matter for speed (name, seed, folder, stop, launch, ...) does not change the key. With other numbers of
 * hosts of the same kinds, curves come from the cache, and network and joint runs are measured again. out: plan_input_free. */
rp_status profile_measure(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err);
/* How to draw plots in a terminal. */
struct profile_style {
    uint32_t columns; /* 0: any */
    bool utf8;
};
/* Prints both curves and the joint runs as tables and plots. */
void profile_print(const struct plan_input *input, const struct profile_style *style, FILE *out);
/* profile.json and profile.svg into the folder. */
rp_status profile_write(const struct plan_input *input, const char *folder, rp_error *err);

#endif
