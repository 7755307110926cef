/* The rate of a counter that is read repeatedly. Pure functions. */
#ifndef AGENT_LAUNCH_PROFILE_RATE_H
#define AGENT_LAUNCH_PROFILE_RATE_H

#include <stdint.h>

#define PROFILE_MAX_READS 4096u

struct profile_reads {
    int64_t at_ns[PROFILE_MAX_READS];
    uint64_t count[PROFILE_MAX_READS];
    uint32_t n;
};

struct profile_rate {
    double rate;      /* per second */
    double spread;    /* spread of the middle half of the slices, relative to the rate; INFINITY: no slices */
    uint32_t changes; /* reads that differ from the previous one */
};

/* Adds a read; does nothing once full. */
void profile_reads_add(struct profile_reads *self, int64_t at_ns, uint64_t count);
/* quantum: how much the counter grows at a time. The rate of a fast counter is the median of eight slices, so that a
 * pause of the machine does not count. The rate of a slow counter is its growth between its first and its last
 * change, so that its steps do not count. */
struct profile_rate profile_rate(const struct profile_reads *reads, uint64_t quantum);
/* The mean between the first and the last change: the rate of a long run, pauses of the machine included. */
double profile_rate_mean(const struct profile_reads *reads);

#endif
