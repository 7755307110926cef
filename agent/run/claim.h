/* Environment steps of all actors together, claimed before they are taken: the counter COUNTER_STEPS never lets
 * actors take more steps than the run's stop.steps. Claims are blocks of some milliseconds, and the next claim is in
 * flight while the present block is used up, so that no step waits for the broker. Near the end blocks become small,
 * because steps that one actor claims are not available to the others. */
#pragma once

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
    uint64_t left;  /* steps of the present block that were not handed out */
    uint64_t total; /* steps of all actors before the next step that is handed out */
    uint64_t block; /* size of the present block */
    uint64_t size;  /* size of the next block, from the speed of the last */
    uint64_t asked; /* steps claimed by the addition in flight */
    rp_addition *ahead;
    int64_t seen;     /* the counter's newest value */
    bool full;        /* the limit is reached: no more blocks */
    int64_t begun_ns; /* when the last block began */
    uint64_t claims;  /* number of blocks so far */
    uint64_t wait_ns; /* time spent waiting for steps */
    uint64_t out;     /* steps that were handed out last */
    uint64_t handed;  /* all steps that were handed out and not returned */
    uint64_t told;    /* of these, counted as taken */
    int64_t told_ns;
    rp_addition *telling;
};

void claim_init(struct claim *self, const struct claim_options *options);
/* The same for an actor of a run with so many environments. A block has the steps of a round of them, and actors.pull_every. */
void claim_init_actor(struct claim *self, rp_client *client, const struct run_config *config, uint32_t environments,
                      const atomic_bool *stop);
/* Gives back the steps that were not taken, unless the end is so near that others may have noticed it already. */
void claim_fini(struct claim *self);
/* Hands out 1 to `most` steps that may be taken now, and says how many all actors have taken or claimed before them;
 * 0: the limit is reached. RP_CANCELLED: stopped while no broker answered. */
rp_status claim_next(struct claim *self, uint64_t most, uint64_t *n, uint64_t *total, rp_error *err);
struct claim_steps {
    uint64_t n;     /* 0: the limit is reached */
    uint64_t total; /* steps that all actors have taken or claimed before them */
};
/* The same for a caller that does not want to wait longer: RP_DEADLINE_EXCEEDED, and it may be called again. */
rp_status claim_try(struct claim *self, uint64_t most, int64_t timeout_ms, struct claim_steps *out, rp_error *err);
/* Takes back this many of the steps that were handed out last. */
void claim_return(struct claim *self, uint64_t n);
