/* Environment steps of all actors together, claimed before they are taken: the counter COUNTER_STEPS never lets more steps
 * be taken than the run's stop.steps. Claims are blocks of some milliseconds, and the next one is under way while the
 * present one is used up, so that no step waits for the broker. Near the end blocks get small: what one actor claims, no
 * other can take. */
#ifndef AGENT_RUN_CLAIM_H
#define AGENT_RUN_CLAIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"
#include "replay/client.h"
#include "replay/params.h"

struct claim_options {
    rp_client *client; /* borrowed */
    const char *counter;
    struct clock clock;
    int64_t limit;    /* stop.steps; 0: none */
    uint64_t least;   /* of a block */
    uint32_t sharers; /* actors that claim from this counter */
    const atomic_bool *stop;
};

struct claim {
    struct claim_options options;
    uint64_t left;  /* steps of the present block that were not given out */
    uint64_t total; /* of all actors, before the next step that is given out */
    uint64_t block; /* size of the present one */
    uint64_t size;  /* of the next one, from the speed of the last */
    uint64_t asked; /* by the addition under way */
    rp_addition *ahead;
    int64_t seen;     /* the counter's newest value */
    bool full;        /* the limit is reached: there are no more blocks */
    int64_t begun_ns; /* when the last block was begun */
    uint64_t claims;  /* blocks so far */
    uint64_t wait_ns; /* time without a step to take */
};

void claim_init(struct claim *self, const struct claim_options *options);
/* Gives back what was not taken, unless the end is so near that others may have seen it already. */
void claim_fini(struct claim *self);
/* Gives 1 to `most` steps that may be taken now, and how many all actors have taken or claimed before them; 0: the limit is
 * reached. RP_CANCELLED: stopped while no broker answered. */
rp_status claim_next(struct claim *self, uint64_t most, uint64_t *n, uint64_t *total, rp_error *err);
/* Of the steps that were given last, so many were not taken. */
void claim_return(struct claim *self, uint64_t n);

#endif
