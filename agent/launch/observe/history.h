/* metrics.jsonl: a line for each status of a run, thinned with age (agent/run/thin.h). */
#ifndef AGENT_LAUNCH_HISTORY_H
#define AGENT_LAUNCH_HISTORY_H

#include <stdbool.h>
#include <stdio.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/run/thin.h"

/* Zero-initialised. */
struct history {
    char path[FOLDER_SIZE + 32];
    FILE *file;
    bool cut; /* the last line could not be written, or not the whole of it */
    struct thin thin;
};

/* Opens the file, which may have lines of earlier legs. A last line that a crash has cut is ended. */
rp_status history_open(struct history *self, const char *path, rp_error *err);
/* Adds a line (text without its end). Thins the file when it has grown enough. */
void history_add(struct history *self, const char *text);
void history_close(struct history *self);

/* Rewrites the file at once. False: the old file stays; errno says why. */
bool history_thin(struct history *self);

#endif
