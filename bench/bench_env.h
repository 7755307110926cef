#ifndef BENCH_BENCH_ENV_H
#define BENCH_BENCH_ENV_H

/* replay-bench env [--json] [--seconds S] [--repeat N] [--env NAME]: steps per second of each built-in environment on
 * one core. Returns the exit status. */
int bench_env(int argc, char **argv);

#endif
