/* Signals to wait for: SIGINT and SIGTERM ask for the end, and so does SIGUSR1, which Slurm sends before the time limit of a job;
 * SIGHUP reopens the log, SIGCHLD only wakes the loop. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"

struct interrupts {
    int fd;
    uint32_t asked; /* how often a signal asked for the end */
    int last;       /* the last signal */
    int32_t sender; /* process that sent it; 0: the kernel, as for Ctrl-C, or not known */
};

/* Must come before any thread: threads inherit the signals that are blocked here. */
rp_status interrupts_init(struct interrupts *self, rp_error *err);
void interrupts_fini(struct interrupts *self);
/* Waits until a signal arrives or ms have passed. */
void interrupts_wait(struct interrupts *self, int ms);
/* Writes what the last signal was and who sent it: "Ctrl-C", "the time limit of the job is near", "a signal (SIGTERM) from
 * bash, process 12". Gives out. */
const char *interrupts_describe(const struct interrupts *self, char *out, size_t size);
