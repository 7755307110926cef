/* Parallel learners that stay bit-identical.
 *
 * Each learner adds its gradient to the broker's reduce, gets the sum back (the same bytes for all), divides by the number
 * of gradients in it and applies the mean. Behind the gradient travel a few numbers that make joining safe:
 *
 *   gradients   how many of the vectors are gradients (joiners send zeros)
 *   joining     how many members ask for the state
 *   and of the learner with index i: whether it sent a gradient (present) or asks (asking), its steps, and 24 bits of its
 *   parameters' CRC-32C
 *
 * A learner that starts, comes back, or has missed a round joins: it sends zeros for one round R. If gradients were
 * among the vectors of R, those who sent them apply R, the lowest of them puts the state after R into a parameter slot,
 * and the joiner loads it: from R + 1 on it is one of them. If nobody sent a gradient, nobody learns at present: of those
 * who ask, the one with the most steps goes on from its own state (of several, the lowest index; if nobody has learned
 * yet, learner 0 alone), and the others ask again until it has.
 *
 * A member may be slow and not dead, so a joiner can begin beside it. They find out when they meet. Of those who sent
 * gradients the one with the most steps counts (of several, the lowest index): whoever has other steps or parameters
 * joins. If somebody who asks is ahead of them all, then all join, and that one begins. So what was learned is not lost to
 * a learner that started anew, and learners that drift apart find together again. */
#ifndef AGENT_RUN_GROUP_H
#define AGENT_RUN_GROUP_H

#include <stdatomic.h>

#include "agent/learn/agent.h"
#include "replay/client.h"
#include "replay/params.h"

#define GROUP_MAX_LEARNERS 64u

struct group;

struct group_options {
    rp_client *client;   /* borrowed */
    struct agent *agent; /* borrowed */
    uint32_t index;
    int64_t round_ms;        /* how long a round waits for members that are late */
    const atomic_bool *stop; /* may be NULL */
};

struct group_info {
    uint32_t contributors; /* gradients in the last round */
    uint32_t lead;         /* 1: of those, this learner has the lowest index: it publishes */
    uint64_t round;
    uint64_t joins;  /* how often this learner had to fetch the state */
    uint64_t starts; /* how often it began from its own: nobody else has published that */
};

struct group *group_new(const struct group_options *options, rp_error *err);
void group_destroy(struct group **self);
/* Makes this learner one of the group; returns at once if it is. RP_DEADLINE_EXCEEDED: not yet, and why: call again.
 * RP_CANCELLED: stopped meanwhile. */
rp_status group_join(struct group *self, rp_error *err);
/* Replaces the agent's gradient by the mean over the group. RP_FAILED_PRECONDITION: rounds were missed; the gradient is
 * worthless now: join again and take the next batch. After RP_OK the caller applies it and then calls group_applied. */
rp_status group_mean(struct group *self, rp_error *err);
/* Gives the state to those who asked for it in this round. */
rp_status group_applied(struct group *self, rp_error *err);
void group_get_info(const struct group *self, struct group_info *out);

#endif
