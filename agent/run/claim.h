/* Environment steps of all actors together, claimed before they are taken: the counter COUNTER_STEPS never lets
 * actors take more steps than the run's stop.steps. Claims are blocks of some milliseconds, and the next claim is in
 * flight while the present block is used up, so that no step waits for the broker. Near the end blocks become small,
 * because steps that one actor claims are not available to the others. */
#ifndef AGENT_RUN_CLAIM_H
#define AGENT_RUN_CLAIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/config/config.h"
#include "proto/base/clock.h"
#include "replay/client.h"
#include "replay/collective.h"

struct claim_options {
    rp_client *client; /* borrowed */
    const char *counter;
    const char *taken; /* counter of the steps that were taken: claims may be given back, these never are; NULL: none */
    struct clock clock;
    int64_t limit;    /* stop.steps; 0: none */
    uint64_t least;   /* steps of a block */
    uint32_t sharers; /* actors that claim from this counter */
    const atomic_bool *stop;
};

struct claim {
    struct claim_options options;
    uint64_t left;  /* steps that may be taken */
    uint64_t total; /* steps of all actors before the first of these */
    uint64_t taken; /* all steps that were taken */
    uint64_t block; /* size of the newest block */
    uint64_t size;  /* size of the next block, from the speed of the last */
    uint64_t asked; /* steps claimed by the addition in flight */
    rp_addition *ahead;
    int64_t seen;     /* the counter's newest value */
    bool full;        /* the limit is reached: no more blocks */
    int64_t begun_ns; /* when the last block began */
    uint64_t claims;  /* number of blocks so far */
    uint64_t wait_ns; /* time spent waiting for steps */
    uint64_t told;    /* of the steps that were taken, those in their counter */
    int64_t told_ns;
    rp_addition *telling;
};

void claim_init(struct claim *self, const struct claim_options *options);
/* The same for an actor of a run with so many environments. A block has the steps of a round of them, and actors.pull_every. */
void claim_init_actor(struct claim *self, rp_client *client, const struct run_config *config, uint32_t environments,
                      const atomic_bool *stop);
/* Gives back the steps that were not taken, unless the end is so near that others may have noticed it already. */
void claim_fini(struct claim *self);
/* Waits until n steps may be taken, or all that are left before the limit: self->left. RP_DEADLINE_EXCEEDED: call it again. */
rp_status claim_steps(struct claim *self, uint64_t n, int64_t timeout_ms, rp_error *err);
/* The same without a time-out. RP_CANCELLED: stopped while no broker answered. */
rp_status claim_await(struct claim *self, uint64_t n, rp_error *err);
/* Counts n of the steps as taken. */
void claim_take(struct claim *self, uint64_t n);

#endif
