/* Figures as text or as JSON. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench/options.h"
#include "bench/run.h"

struct spread {
    double median, least, most;
};

/* One comparison: ours against another. */
struct row {
    const char *what;                    /* "insert" */
    const char *other;                   /* "raw", or what it is compared with */
    struct spread ours, theirs, ratio;   /* items/s */
    double goal;                         /* 0: none */
    double server_cpu[2], client_cpu[2]; /* cores, medians */
    double thread_ns[2];                 /* CPU time of the server's first thread for one item */
    double memory_per_item;              /* NAN: not measured */
};

/* Over repeats; ratios are taken pair by pair, in the order of measurement. */
struct spread spread_of(const double *values, uint32_t n);
struct spread spread_ratio(const double *ours, const double *theirs, uint32_t n);

/* From the figures of ours and of the other; group: 0 what writers did, 1 what askers did. */
void row_fill(struct row *row, const struct figures *figures, uint32_t group);

void report_begin(const struct options *options, const char *command);
void report_row(const struct options *options, const struct row *row);
/* Prints a further figure of the command, with its goal (0: none). */
void report_value(const struct options *options, const char *name, double value, double goal, const char *unit);
/* The same for a figure where less is better: the goal is an upper bound. */
void report_cost(const struct options *options, const char *name, double value, double goal, const char *unit);
void report_end(const struct options *options);

#endif
