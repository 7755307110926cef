#ifndef BENCH_BENCH_TREE_H
#define BENCH_BENCH_TREE_H

/* replay-bench tree [--json] [--repeat N] [--leaves N]: time per element of changing and picking priorities. Returns the
 * exit status. */
int bench_tree(int argc, char **argv);

#endif
