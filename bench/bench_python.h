#ifndef BENCH_BENCH_PYTHON_H
#define BENCH_BENCH_PYTHON_H

/* replay-bench python [--json] [--repeat N] [--quick] [--check]: the Python package next to the C library. Returns the exit
 * status only if Python cannot be started. */
int bench_python(int argc, char **argv);

#endif
