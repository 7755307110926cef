/* Time that a process of a run waits, by what it waits for. A side's idle share is the sum over its causes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/learn/agent.h"

enum idle_cause {
    IDLE_SAMPLE,     /* a learner, or a user's own actor that works on a queue: a batch */
    IDLE_CREDIT,     /* an actor: room in the table, or for items in flight */
    IDLE_PARAMETERS, /* an actor: the first parameters; a learner: until published parameters are stored */
    IDLE_REDUCE,     /* a learner: the gradients and the state of the others */
    IDLE_UPDATES,    /* a learner: confirmations of priorities */
    IDLE_COUNTERS,   /* counters of the broker: steps to claim, steps to report */
    IDLE_CAUSES
};

/* The keys of shares in files, "idle_sample"; and the names of causes, "sample". */
extern const char *const idle_keys[IDLE_CAUSES];
const char *idle_name(uint32_t cause);

/* Time waited by one process since its start. */
struct idle {
    uint64_t ns[IDLE_CAUSES];
};

uint64_t idle_total(const struct idle *self);
/* Writes the shares of the seconds since `before`, which becomes *self: the sum under the name `total`, and
 * idle_CAUSE for each cause of the given set (a bit for each). Returns the number of scalars. */
uint32_t idle_report(const struct idle *self, struct idle *before, double seconds, const char *total, uint32_t causes,
                     struct agent_scalar out[IDLE_CAUSES + 1]);
#define IDLE_OF_ACTOR (1u << IDLE_CREDIT | 1u << IDLE_PARAMETERS | 1u << IDLE_COUNTERS)
#define IDLE_OF_LEARNER                                                                                                \
    (1u << IDLE_SAMPLE | 1u << IDLE_PARAMETERS | 1u << IDLE_REDUCE | 1u << IDLE_UPDATES | 1u << IDLE_COUNTERS)

/* Mean shares of the processes of both sides. NAN: not known. */
struct idle_shares {
    double actor[IDLE_CAUSES], learner[IDLE_CAUSES];
};

void idle_shares_none(struct idle_shares *out);
/* Adds the shares times a weight, where both are known; an unknown sum begins at 0. */
void idle_shares_add(struct idle_shares *self, const struct idle_shares *other, double weight);
/* "reduce 12%, sample 3%": causes of at least half a percent, the largest first; "" if there is none. */
const char *idle_words(const double shares[IDLE_CAUSES], char *out, size_t size);
