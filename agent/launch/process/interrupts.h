/* Signals as something to wait for: SIGINT and SIGTERM ask for the end; SIGHUP has the log opened anew; SIGCHLD only wakes. */
#ifndef AGENT_LAUNCH_INTERRUPTS_H
#define AGENT_LAUNCH_INTERRUPTS_H

#include <stdint.h>

#include "replay/error.h"

struct interrupts {
    int fd;
    uint32_t asked; /* how often the end was asked for */
    int last;       /* the signal */
};

/* Before any thread is started: they inherit what is blocked here. */
rp_status interrupts_init(struct interrupts *self, rp_error *err);
void interrupts_fini(struct interrupts *self);
/* Until a signal comes or ms have passed. */
void interrupts_wait(struct interrupts *self, int ms);

#endif
