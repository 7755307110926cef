/* A profile in the making: shared by the files of this room. */
#ifndef AGENT_LAUNCH_PROFILE_IMPL_H
#define AGENT_LAUNCH_PROFILE_IMPL_H

#include "agent/launch/profile/profile.h"
#include "agent/launch/profile/profile_session.h"

/* How long the first item, sample or parameters may take. */
#define PROFILE_FIRST_NS (30 * NS_PER_S)
/* The share of the whole that both curves take, for progress. */
#define PROFILE_ALONE_END 0.7

struct profile {
    const struct profile_options *options;
    const struct run_config *config;
    const struct table_config *table;
    struct plan_input *out;
    uint64_t batch;
    double items_per_step;
    int64_t began_ns;
    uint32_t joint_runs; /* made so far */
    double from, to;     /* share of the whole work at the begin and the end of the present curve of actors */
    struct profile_session session;
};

/* Tells the user something at once. (profile.c) */
void profile_say(struct profile *self, const char *format, ...) RP_PRINTF(2, 3);
/* Measures the curves of learners and actors. (profile_alone.c) */
rp_status profile_measure_alone(struct profile *self, rp_error *err);
/* Waits for this many more samples. (profile_alone.c) */
rp_status profile_await_samples(struct profile *self, uint64_t more, int64_t limit_ns, rp_error *err);
/* Measures pairs and adds them to out->joints. (profile_joint.c) */
rp_status profile_measure_joints(struct profile *self, rp_error *err);
/* Finds the next run that says how many shards pay; false: there is none. (profile_joint.c) */
bool profile_next_shards(const struct plan_input *input, struct plan_load *next);

#endif
