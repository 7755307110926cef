/* Columns of numbers from a file of JSON lines, such as metrics.jsonl or the reports of a process. A long file has more lines than a
 * chart has points: then each point is the mean of several lines. */
#ifndef AGENT_LAUNCH_SERIES_H
#define AGENT_LAUNCH_SERIES_H

#include <stdbool.h>
#include <stdint.h>

#define SERIES_POINTS 1024u
#define SERIES_MAX 12u

struct json_object; /* json-c */

struct series_source {
    const char *path;
    const char *const *names; /* of the columns; a line without a number for the first one does not count */
    uint32_t width;           /* columns */
    bool
        by_time; /* the first column is a time, and a line weighs as much as the time since the line before; otherwise all lines
                     weigh the same */
    void (*line)(void *ctx, struct json_object *line,
                 double *values); /* called for each line, may change it; or NULL */
    void *ctx;
};

struct series {
    double *columns[SERIES_MAX]; /* NAN where a point has no value */
    uint32_t width, n;           /* columns, points */
    /* ---- the point in the making */
    double *weights;                             /* of the points */
    double sums[SERIES_MAX], shares[SERIES_MAX]; /* weighted values, and the weights of those that are numbers */
    double weight;                               /* of all its lines */
    uint32_t lines, stride;                      /* lines so far, and how many make up a point */
};
/* Reads as much as a file that is missing, cut or damaged allows. */
void series_read(struct series *self, const struct series_source *source);
void series_fini(struct series *self);
/* Returns the newest value of a column; NAN: none. */
double series_last(const struct series *self, uint32_t column);
/* Returns a number of a JSON object; NAN: it has none of this name. */
double series_number(struct json_object *object, const char *name);

#endif
