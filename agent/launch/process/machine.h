/* What this machine offers to processes, and how busy it is. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Cores that this process may use: affinity, and the limit of its control group. */
double machine_cores(void);
/* Bytes that this process may use: four fifths of what is free, and the limit of its control group. */
double machine_memory(void);
/* The same, with /proc and /sys below `root`. */
double machine_cores_below(const char *root, double most);
double machine_memory_below(const char *root);
/* Writes the model of the processor and the architecture: "Neoverse-N1 (aarch64)". Gives out. */
const char *machine_model(char *out, size_t size);

/* How busy the processors are that this process may use, all programs together. Compared with the use of our own
 * processes, it shows when other programs take processor time from them. */
struct machine_load {
    int64_t at_ns;   /* monotonic */
    int64_t busy_ns; /* processor time of all programs so far, with what a hypervisor gave to other machines */
    int64_t own_ns;  /* of this process */
    uint32_t cores;  /* that this process may use */
};

/* False: the kernel does not provide the numbers. */
bool machine_load_read(struct machine_load *out);
/* The same from a text in the form of /proc/stat. allowed(cpu, context) says which processors count. */
bool machine_load_parse(const char *text, bool (*allowed)(uint32_t cpu, const void *context), const void *context,
                        struct machine_load *out);
/* Cores in use by all programs between two looks; 0: not known. */
double machine_load_busy(const struct machine_load *before, const struct machine_load *after);
/* Cores that other programs took between two looks, while ours used `ours` (without this process); 0: cores were
 * free, or the number is within the noise. */
double machine_load_others(const struct machine_load *before, const struct machine_load *after, double ours);
