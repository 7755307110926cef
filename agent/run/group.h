/* Parallel learners that stay bit-identical.
 *
 * Each learner adds its gradient to the broker's reduce, gets the sum back (the same bytes for all), divides by the
 * number of gradients in it and applies the mean. A few numbers follow each gradient and make joining safe:
 *
 *   gradients   how many of the vectors are gradients (joiners send zeros)
 *   joining     how many members ask for the state
 *   and of the learner with index i: whether it sent a gradient (present) or asks (asking), its steps, and 24 bits of
 *   its parameters' CRC-32C
 *
 * A learner that starts, comes back, or has missed a round joins: it sends zeros for one round R. If R contains
 * gradients, the learners that sent them apply R, the one with the lowest index puts the state after R into a
 * parameter slot, and the joiner loads it: from R + 1 on it is a member. If R contains no gradient, no learner is
 * active: of the joiners, the one with the most steps continues from its own state (of several, the lowest index; if
 * none has learned yet, learner 0 alone), and the others ask again until it has.
 *
 * A member may be slow and not dead, so a joiner can begin beside it. They find out when they meet in a round. Of the
 * learners that sent gradients the one with the most steps counts (of several, the lowest index): a learner with other
 * steps or parameters joins. If a joiner is ahead of them all, then all join, and that joiner begins. So a learner that
 * starts from nothing cannot destroy what was learned, and learners that have drifted apart find together again. */
#pragma once

#include <stdatomic.h>

#include "agent/learn/agent.h"
#include "replay/client.h"
#include "replay/collective.h"
#include "replay/params.h"

#define GROUP_MAX_LEARNERS 64u

struct learner_group;

struct group_options {
    rp_client *client;   /* borrowed */
    struct agent *agent; /* borrowed */
    uint32_t index;
    const int64_t *round_ms; /* how long a round waits for late members; read at the beginning of each round */
    const atomic_bool *stop; /* may be NULL */
};

struct group_info {
    uint32_t contributors; /* gradients in the last round */
    uint32_t lead;         /* 1: this learner has the lowest index of those with a gradient: it publishes */
    uint64_t round;
    uint64_t joins;  /* how often this learner had to fetch the state */
    uint64_t starts; /* how often this learner began from its own state, because no other had published one */
};

struct learner_group *group_new(const struct group_options *options, rp_error *err);
void group_destroy(struct learner_group **self);
/* Makes this learner a member of the group; returns at once if it is one. RP_DEADLINE_EXCEEDED: not yet, with the
 * reason: call again. RP_CANCELLED: stopped. */
rp_status group_join(struct learner_group *self, rp_error *err);
/* Replaces the agent's gradient by the mean over the group. RP_FAILED_PRECONDITION: this learner has missed rounds
 * and its gradient is worthless: join again and take the next batch. After RP_OK the caller applies the gradient and
 * then calls group_applied. */
rp_status group_mean(struct learner_group *self, rp_error *err);
/* Gives the state to the learners that asked for it in this round. */
rp_status group_applied(struct learner_group *self, rp_error *err);
const struct group_info *group_info(const struct learner_group *self);
