/* The hosts of a profile: which there are, what is known about each kind, and what the network carries. */
#ifndef AGENT_LAUNCH_PROFILE_HOSTS_H
#define AGENT_LAUNCH_PROFILE_HOSTS_H

#include "agent/launch/profile/profile_impl.h"

/* True if there are other machines than this one. */
bool profile_is_spread(const struct profile_options *options);
/* Makes the list of hosts anew from the pool. Hosts that are not ready take no processes. */
rp_status profile_hosts_fill(const struct host_pool *pool, struct plan_input *out, rp_error *err);
/* Writes one line for each kind of machine and its roles: what curves depend on. */
void profile_hosts_key(const struct profile_options *options, FILE *out);
/* Gives an input from the cache the hosts of the pool: each kind keeps its curve. *same: there are as many hosts of each kind as
 * then; otherwise joint runs and network are dropped. False: the kinds are others, or no memory; nothing changes then. */
bool profile_hosts_adopt(const struct host_pool *pool, struct plan_input *out, bool *same);

/* Returns the first host of a kind that takes actors; PROFILE_NO_HOST: none. */
uint32_t profile_hosts_first(const struct plan_input *input, uint32_t kind);
/* Returns the number of actors in the file; of several hosts, the most of them that one of a kind gets. 0: auto. */
uint32_t profile_hosts_fixed(const struct plan_input *input, uint32_t kind);
/* A host was lost: the profile goes on without it. False: no host is left for actors or for learners. */
bool profile_hosts_leave_out(struct profile *self, uint32_t host);
/* Measures what all hosts together can send to this machine. A network that cannot be measured is no error. */
rp_status profile_measure_network(struct profile *self, rp_error *err);

#endif
