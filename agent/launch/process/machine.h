/* What this machine offers to processes. */
#ifndef AGENT_LAUNCH_MACHINE_H
#define AGENT_LAUNCH_MACHINE_H

#include <stddef.h>

/* Cores that this process may use: affinity, and the limit of its control group. */
double machine_cores(void);
/* Bytes that this process may use: four fifths of what is free, and the limit of its control group. */
double machine_memory(void);
/* The same, with /proc and /sys below `root`. */
double machine_cores_below(const char *root, double most);
double machine_memory_below(const char *root);
/* Bytes of memory that all programs use; 0: not known. */
double machine_memory_used(void);
/* Writes the model of the processor and the architecture: "Neoverse-N1 (aarch64)". Gives out. */
const char *machine_model(char *out, size_t size);

#endif
