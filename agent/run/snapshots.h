/* Copies of a learner's whole state in the course of a run: snapshots/STEPS.weights in the run's folder, at every
 * multiple of learners.snapshot_every learner steps. They are never removed. A learner that was set back to an older
 * state replaces the snapshots that it passes again. */
#ifndef AGENT_RUN_SNAPSHOTS_H
#define AGENT_RUN_SNAPSHOTS_H

#include "agent/config/config.h"
#include "agent/run/learner.h"

#define SNAPSHOTS_FOLDER "snapshots"

struct snapshots {
    const char *folder; /* folder of the run, borrowed */
    uint64_t every;     /* learner steps; 0: none are made */
    uint64_t next;      /* learner steps at which the next one is due */
};

/* steps: the learner's present steps. */
void snapshots_init(struct snapshots *self, const struct run_config *config, uint64_t steps);
/* Call after each learner step. Only the leading learner writes; a failing disk is logged. */
void snapshots_take(struct snapshots *self, struct learner *learner, uint64_t steps);

#endif
