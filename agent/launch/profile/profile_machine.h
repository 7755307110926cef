/* The budgets of this machine, read below another root than / in tests. */
#ifndef AGENT_LAUNCH_PROFILE_MACHINE_H
#define AGENT_LAUNCH_PROFILE_MACHINE_H

/* The same as profile_cores and profile_memory, with /proc and /sys below `root`. */
double profile_cores_below(const char *root, double most);
double profile_memory_below(const char *root);

#endif
