/* Points of several columns, thinned out as lines come in: a series has at most REPORT_POINTS points. */
#ifndef AGENT_LAUNCH_SERIES_H
#define AGENT_LAUNCH_SERIES_H

#include <stdbool.h>
#include <stdint.h>

#define REPORT_POINTS 1024u

/* Zero-initialised. A value is NAN where a column has none. */
#define SERIES_MAX 12u
struct series {
    double *columns[SERIES_MAX];
    uint32_t width, n, stride; /* columns; points; lines that make up a point */
    double *weights;           /* of the points */
    /* ---- the point in the making */
    double sums[SERIES_MAX], shares[SERIES_MAX]; /* weighted values, and the weights of those that are numbers */
    double weight;                               /* of all its lines */
    uint32_t lines;
};
/* False: no memory, and the series stays empty. */
bool series_init(struct series *self, uint32_t width);
void series_fini(struct series *self);
/* Adds a line: as many values as there are columns. weight: the time for which the line stands; the same for all: a plain
 * mean. */
void series_add(struct series *self, const double *values, double weight);
/* Completes the last point, which may have fewer lines than the others. */
void series_end(struct series *self);
/* Returns the newest value of a column; NAN: none. */
double series_last(const struct series *self, uint32_t column);

#endif
