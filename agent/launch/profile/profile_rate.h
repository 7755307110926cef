/* The rate of a counter that was read again and again. Pure. Within agent/launch/profile*.c. */
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
    double spread;    /* how far apart the middle half of the slices is, relative to the rate; INFINITY: no slices */
    uint32_t changes; /* reads that differ from the one before */
};

/* Once full, nothing is added. */
void profile_reads_add(struct profile_reads *self, int64_t at_ns, uint64_t count);
/* quantum: what the counter grows by at a time. A fast counter gives the median of eight slices, so that a pause of the
 * machine does not count; a slow one what it grew by between its first and its last change, so that its steps do not.
 * */
struct profile_rate profile_rate(const struct profile_reads *reads, uint64_t quantum);
/* The mean between the first and the last change: what a long run gets, pauses of the machine included. */
double profile_rate_mean(const struct profile_reads *reads);

#endif
