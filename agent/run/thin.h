/* Files of a run that grow: by whole records, and files of lines that are thinned with age, so that a long run does not fill the disk:
 * metrics.jsonl, and the reports of processes. A file of lines is replaced by a thinner one, whole, and never holds half a rewrite: a
 * reader opens it by its name.
 *
 * By their age, counted from the newest line, these lines are kept: every line of the last hour; the first of each 10 seconds up
 * to 12 hours, of each minute up to a week, and of each 10 minutes after that. So are lines with a new event, and those with the
 * most memory, the most processor time and the largest return. What is kept depends on the lines alone, not on when they were
 * thinned before. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most lines that are kept only because they tell of a new event; the newest are. */
#define THIN_EVENTS 1000u

/* A file that grows by whole records. The rest of a record that a full disk or a killed process left behind is cut off before the next
 * one is written, so a reader never sees half a record. Functions return false with errno set; nothing here ends the program. */
struct record_file {
    int fd;       /* -1: not open */
    int64_t size; /* bytes of the whole records */
};
/* Continues an existing file after its last whole line; with `fresh`, an existing file is an error (EEXIST). */
bool record_file_open(struct record_file *self, const char *path, bool fresh);
/* Appends all of it or nothing. A file in which the end of the last record cannot be restored is closed: open it again. */
bool record_file_append(struct record_file *self, const void *data, size_t size);
void record_file_close(struct record_file *self);

/* A file of lines that is thinned with age. */
struct line_file {
    struct record_file file;
    char *path;      /* NULL: nothing is written */
    const char *key; /* of the time in seconds, as in "\"time\": " */
    uint64_t added;  /* lines since the file was thinned */
    uint64_t kept;   /* lines that were left then */
};
/* Takes the path, borrows the key; opens nothing yet. */
void line_file_init(struct line_file *self, char *path, const char *key);
void line_file_fini(struct line_file *self);
/* Opens the file now, not with the first line. */
bool line_file_open(struct line_file *self);
/* Adds a line (text without its end). Thins the file when it has grown enough. */
bool line_file_add(struct line_file *self, const char *text);
/* Rewrites the file at once. On failure the old file stays. */
bool line_file_thin(struct line_file *self);

/* Finds a number of a line by its key, as in "\"time\": "; NaN: there is none. The quotes of a text within the line are escaped, so a
 * text cannot look like a key. */
double thin_number(const char *line, const char *key);
/* Returns how many seconds lie between lines of this age that are kept; 0: all are. */
double thin_width(double age_s);
