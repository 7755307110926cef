/* What a profile takes from the configuration. */
#ifndef AGENT_LAUNCH_PROFILE_CONFIG_H
#define AGENT_LAUNCH_PROFILE_CONFIG_H

#include "agent/launch/profile/profile.h"

/* Fills in what a plan needs beyond measurements: the counts of the file, and the budgets of this machine now. */
void profile_fill(const struct run_config *config, struct plan_input *out);

/* Items that an actor of ours makes in a step of its environment, if episodes are as long as the environment lets them
 * be; 0: not known (actors of the user's own, whole episodes as items). The first policies fall at once, and the ends
 * of their short episodes make more items: what is measured with them would not last. */
double profile_items_per_step(const struct run_config *config);
/* Converts a measured rate of inserts, with the rate of steps at that time, to episodes of full length. */
double profile_lasting(double items_per_step, double steps, double inserts);
/* The same for both sides together: where actors could still keep up, only their idle share changes. */
void profile_lasting_joint(double items_per_step, double steps, struct plan_joint *joint);

#endif
