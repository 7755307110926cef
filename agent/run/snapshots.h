/* Copies of a learner's whole state in the course of a run: snapshots/STEPS.weights in its folder, every so many learner
 * steps (learners.snapshot_every). Nobody removes them. A learner that was set back to an older state replaces those that it
 * passes again. */
#ifndef AGENT_RUN_SNAPSHOTS_H
#define AGENT_RUN_SNAPSHOTS_H

#include "agent/config/config.h"
#include "agent/run/learner.h"

#define SNAPSHOTS_FOLDER "snapshots"

struct snapshots {
    const char *folder; /* of the run, borrowed */
    uint64_t every;     /* learner steps; 0: none are made */
    uint64_t next;      /* learner steps at which one is due */
};

/* steps: of the learner, now. */
void snapshots_init(struct snapshots *self, const struct run_config *config, uint64_t steps);
/* After each learner step. Only the learner that leads writes; a disk that fails is told of. */
void snapshots_take(struct snapshots *self, struct learner *learner, uint64_t steps);

#endif
