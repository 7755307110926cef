/* Measures what actors and learners can do, by short runs (run.h) whose broker is thrown away: one actor and one learner with the
 * limiter off, then pairs of counts under the real limiter, as plan_next asks for them. With hosts, an actor on one host of each kind,
 * learners where the run will have them, and pairs over all of them. */
#ifndef AGENT_LAUNCH_MEASURE_H
#define AGENT_LAUNCH_MEASURE_H

#include "agent/launch/plan/profile.h"

/* Gives the measurements, from the cache or made now; *from_cache says which. out: plan_input_free. */
rp_status measure_profile(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err);

/* ---- for tests ---- */

/* The rate of a counter that is read repeatedly: its growth between its first and its last change, so that its steps do not count. */
struct measure_rate {
    struct measure_read {
        int64_t at_ns;
        uint64_t count;
    } first, first_change, last_change, last;
    uint32_t reads, changes;
};
/* A counter that went back belongs to a restarted broker: reading begins anew. */
void measure_rate_add(struct measure_rate *self, int64_t at_ns, uint64_t count);
double measure_rate_get(const struct measure_rate *self);

#endif
