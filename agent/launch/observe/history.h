/* metrics.jsonl: a line for each status of a run, thinned with age, so that a long run does not fill the disk. A reader opens
 * the file by its name: the file is now and then replaced by a thinner one, whole, and never holds half a rewrite. */
#ifndef AGENT_LAUNCH_HISTORY_H
#define AGENT_LAUNCH_HISTORY_H

#include <stdbool.h>
#include <stdio.h>

#include "agent/launch/observe/run_folder.h"

/* The most lines that are kept only because they tell of a new event; the newest are. */
#define HISTORY_EVENTS 1000u

/* Zero-initialised. */
struct history {
    char path[FOLDER_SIZE + 32];
    FILE *file;
    bool cut;       /* the last line could not be written, or not the whole of it */
    uint64_t added; /* lines since the file was thinned */
    uint64_t kept;  /* lines that were left then */
};

/* Opens the file, which may have lines of earlier legs. A last line that a crash has cut is ended. */
rp_status history_open(struct history *self, const char *path, rp_error *err);
/* Adds a line (text without its end). Thins the file when it has grown enough. */
void history_add(struct history *self, const char *text);
void history_close(struct history *self);

/* Rewrites the file at once. By their age in time of the run (elapsed_s), these lines are kept: every line of the last hour;
 * the first of each 10 seconds up to 12 hours, of each minute up to a week, and of each 10 minutes after that. So are lines
 * with a new event, and the lines with the most memory and processor time. What is kept depends on the lines alone, not on when they were thinned before.
 * On failure the old file stays. */
rp_status history_thin(struct history *self, rp_error *err);

#endif
