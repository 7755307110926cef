#ifndef BENCH_BENCH_AGENT_H
#define BENCH_BENCH_AGENT_H

#include "bench/options.h"

/* replay-bench agent: steps/s of an actor, in parts, and the time of a learner's step. Returns the exit status. */
int command_agent(struct options *options);

/* The learner's part. Prints its figures. False: an error was printed. */
bool bench_agent_learn(const struct options *options);

#endif
