/* What the parts of the profile share. Within agent/launch/profile*.c. */
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
    uint32_t joint_runs; /* so far */
    struct profile_session session;
};

/* profile.c. Waits for so many more samples. */
rp_status profile_await_samples(struct profile *self, uint64_t more, int64_t limit_ns, rp_error *err);
/* profile_joint.c. Adds to out->joints. */
rp_status profile_measure_joints(struct profile *self, rp_error *err);

/* profile_config.c. What the plan has to know and was not measured: counts of the file, budgets of now. */
void profile_fill(const struct run_config *config, struct plan_input *out);

/* Items that an actor of ours makes in a step of its environment, if episodes are as long as the environment lets them
 * be; 0: not known (actors of the user's own, whole episodes as items). The first policies fall at once, and the ends
 * of their short episodes make more items: what is measured with them would not last. */
double profile_items_per_step(const struct run_config *config);
/* What a rate of inserts, measured together with a rate of steps, becomes then. */
double profile_lasting(double items_per_step, double steps, double inserts);
/* The same for both sides together: where actors could still keep up, only their idle share changes. */
void profile_lasting_joint(double items_per_step, double steps, struct plan_joint *joint);

/* profile_cache.c. The key: a text of everything that the curves depend on; free(). NULL: no memory. */
char *profile_key(const struct profile_options *options);
/* 64-bit FNV-1a. */
uint64_t profile_hash(const char *text);
/* False: nothing there, or not for this key, or damaged. */
bool profile_load(const char *key, struct plan_input *out);
/* Replaces what is there, whole or not at all. */
rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err);

/* profile_machine.c. The same as profile_cores and profile_memory, with /proc and /sys below `root`. */
double profile_cores_below(const char *root, double most);
double profile_memory_below(const char *root);

#endif
