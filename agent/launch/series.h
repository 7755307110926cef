/* Columns of numbers from a file of JSON lines, such as metrics.jsonl or the reports of a process. A long file has more lines than a
 * chart has points: then each point is the mean of several lines. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SERIES_POINTS 1024u
#define SERIES_MAX 16u

struct json;
struct json_object; /* json-c */

struct series_source {
    const char *path;
    const char *const *names; /* of the columns; a line without a number for the first one does not count */
    uint32_t width;           /* columns */
    /* The first column is a time, and a line weighs as much as the time since the line before; otherwise all lines weigh the same. */
    bool by_time;
    void (*line)(void *ctx, struct json_object *line,
                 double *values); /* called for each line, may change it; or NULL */
    void *ctx;
};

struct series {
    double *columns[SERIES_MAX]; /* NAN where a point has no value */
    uint32_t width, n;           /* columns, points */
    double *weights;             /* of the points */
};
/* Reads as much as a file that is missing, cut or damaged allows. */
void series_read(struct series *self, const struct series_source *source);
void series_fini(struct series *self);
/* Returns the newest value of a column; NAN: none. */
double series_last(const struct series *self, uint32_t column);

/* ---- what the files of a run's folder say, for charts ---- */

enum history_column {
    HISTORY_UNIX,
    HISTORY_ELAPSED,
    HISTORY_STEPS,
    HISTORY_LEARNER_STEPS,
    HISTORY_VALUE,
    HISTORY_ACTOR_VALUE, /* mean return of the actors' newest episodes */
    HISTORY_INSERTS,     /* from here on, without a number once the run stops */
    HISTORY_SAMPLES,
    HISTORY_SPI,
    HISTORY_ACTOR_IDLE,
    HISTORY_LEARNER_IDLE,
    HISTORY_CPU,
    HISTORY_MEMORY,
    HISTORY_STEPS_RATE,
    HISTORY_COLUMNS
};
void series_read_history(struct series *self, const char *folder);
/* Writes an object: a list of numbers for each column. */
void series_put_history(struct json *out, const char *folder);
/* Writes the members "curve" (returns of the evaluations, or of the actors if there is no evaluation), "learning" (what a learner
 * reports) and "acting" (what an actor reports) into an object that is open, each by seconds, environment steps and learner steps. */
void series_put_curves(struct json *out, const char *folder);
