/* A child of the launcher, or of a node agent, that waits for its end, and then kills every process group that it knows. With a lease it
 * also acts when its parent is stopped or stuck: a node agent's processes must not outlive what the launcher believes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "replay/error.h"

/* More than a run has processes and hosts. One beyond them still dies with the launcher. */
#define GUARD_GROUPS_MOST 16384u

struct guard_groups {
    pid_t list[GUARD_GROUPS_MOST];
    size_t count;
};

struct guard {
    int pipe; /* -1: there is no guard */
    pid_t pid;
    const char *folder;         /* removed after the parent's end; NULL: none */
    struct guard_groups groups; /* those that it knows: a guard that takes its place is forked with them */
};

/* folder: an absolute path, of a parent with a folder of its own; borrowed. NULL: there is none. */
rp_status guard_start(struct guard *self, const char *folder, rp_error *err);
/* Lets the guard do at once what it does when its parent ends, and waits for it. */
void guard_finish(struct guard *self);
/* Ends the guard; it kills nothing. For the time after all children have ended. */
void guard_stop(struct guard *self);
/* True if the guard has been killed. Then a new guard runs, if one could be started, and knows the same groups; its lease is gone. */
bool guard_lost(struct guard *self);
/* From now on the guard also acts when it hears nothing for this long, and kills its parent as well. guard_alive keeps it quiet. */
void guard_lease(const struct guard *self, int64_t ns);
/* Never waits. */
void guard_alive(const struct guard *self);
/* Makes a group known (positive) or forgotten (negative), to the guard and to one that takes its place: what a child of the parent tells
 * after fork reaches the guard alone, so the parent tells it, too. Safe between fork and exec. self may be NULL. */
void guard_tell(struct guard *self, int32_t group);
