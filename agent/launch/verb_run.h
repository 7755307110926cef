/* A run that goes on, in pieces: resume and the core job of Slurm put them together. (verb_run.c) */
#ifndef AGENT_LAUNCH_VERB_RUN_H
#define AGENT_LAUNCH_VERB_RUN_H

#include "agent/launch/prepare.h"
#include "agent/launch/view/screen.h"

enum screen_mode launch_screen_mode(const struct launch *launch);
/* Locks and reads the run that the argument names, with the overrides of the command line. -1: it can go on; otherwise the exit
 * status, and self is finished. */
int launch_reopen(struct prepared *self, struct launch *launch, struct folder_state *state);
/* Runs it until its end, in this process. Finishes self; its interrupts still say which signals came. Returns the exit status. */
/* With which tables the broker of the next leg starts: "the tables are those of the journal". */
const char *launch_tables_of(const struct run_config *config);
int launch_continue(struct prepared *self, struct launch *launch, struct folder_state *state);

/* verb_slurm.c */
/* Submits a new run, or one that goes on, and watches it. Both finish self and return the exit status. */
int launch_submit(struct prepared *self, const struct launch *launch);
int launch_submit_again(struct prepared *self, const struct launch *launch, struct folder_state *state);

#endif
