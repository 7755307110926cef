/* A saved learner, measured without a broker: what its policy gives over some episodes, and one of them to look at. */
#ifndef AGENT_RUN_MEASURE_H
#define AGENT_RUN_MEASURE_H

#include <stdio.h>

#include "agent/program/worker_impl.h"
#include "agent/run/environment_loop.h"

/* Over evaluator.episodes; prints the result. The options of the worker name the file. */
rp_status measure_file(struct worker *worker, struct variables *variables, struct environment_loop *loop,
                       rp_error *err);

/* show.c: an episode on a terminal, a line a step; an image below its line. */
void show_head(const rp_env_spec *spec, FILE *out);
/* observation: that the action was chosen for; reward: what the action gave. */
void show_step(const rp_env_spec *spec, const struct episode *episode, const struct agent_choice *choice, double reward,
               const void *observation, FILE *out);
void show_end(const struct episode *episode, FILE *out);

#endif
