/* Reduce: sums float32 vectors over the members of a group, round by round, so that parallel learners can apply the same
 * averaged gradient. The broker knows nothing about the algorithm. */
#ifndef BROKER_REQ_REDUCE_H
#define BROKER_REQ_REDUCE_H

#include <stdint.h>

struct reduce_group;

struct reduces {
    struct reduce_group *groups;
    uint32_t count;
    uint64_t bytes; /* of vectors that wait and sums that are kept */
};

void reduces_fini(struct reduces *self);

#endif
