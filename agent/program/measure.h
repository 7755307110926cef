/* Measures a saved learner without a broker: the return of its policy over some episodes, and one episode to look
 * at. */
#ifndef AGENT_PROGRAM_MEASURE_H
#define AGENT_PROGRAM_MEASURE_H

#include <stdio.h>

#include "agent/program/worker_impl.h"
#include "agent/run/environment_loop.h"

/* Runs evaluator.episodes episodes and prints the result. The options of the worker name the file. */
rp_status measure_file(struct worker *worker, struct variables *variables, struct environment_loop *loop,
                       rp_error *err);

/* Prints an episode on a terminal, one line for each step, with images below their line. (show.c) */
void show_head(const rp_env_spec *spec, FILE *out);
/* observation: for which the action was chosen; reward: of the action. */
void show_step(const rp_env_spec *spec, const struct episode *episode, const struct agent_choice *choice, double reward,
               const void *observation, FILE *out);
void show_end(const struct episode *episode, FILE *out);

#endif
