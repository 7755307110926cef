/* Thins a file of lines with age, so that a long run does not fill the disk: metrics.jsonl, and the reports of processes. The
 * file is replaced by a thinner one, whole, and never holds half a rewrite: a reader opens it by its name.
 *
 * By their age, counted from the newest line, these lines are kept: every line of the last hour; the first of each 10 seconds up
 * to 12 hours, of each minute up to a week, and of each 10 minutes after that. So are lines with a new event, and those with the
 * most memory, the most processor time and the largest return. What is kept depends on the lines alone, not on when they were
 * thinned before. */
#ifndef AGENT_RUN_THIN_H
#define AGENT_RUN_THIN_H

#include <stdbool.h>
#include <stdint.h>

/* The most lines that are kept only because they tell of a new event; the newest are. */
#define THIN_EVENTS 1000u

/* Zero-initialised. */
struct thin {
    uint64_t added; /* lines since the file was thinned */
    uint64_t kept;  /* lines that were left then */
};

/* Counts a line that was added. True: the file has grown enough to be thinned. */
bool thin_is_due(struct thin *self);
/* Rewrites the file. key: of the time in seconds, as in "\"time\": ". On failure the old file stays, and errno says why. */
bool thin_file(struct thin *self, const char *path, const char *key);
/* Finds a number of a line by its key, as in "\"time\": "; NaN: there is none. The quotes of a text within the line are escaped, so a
 * text cannot look like a key. */
double thin_number(const char *line, const char *key);
/* Returns how many seconds lie between lines of this age that are kept; 0: all are. */
double thin_width(double age_s);

#endif
