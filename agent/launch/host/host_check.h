/* Tries all hosts of a run's file without a run: which of them could work, and why others could not. */
#ifndef AGENT_LAUNCH_HOST_CHECK_H
#define AGENT_LAUNCH_HOST_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#include "agent/config/config.h"
#include "agent/launch/process/guard.h"
#include "agent/launch/process/interrupts.h"
#include "replay/error.h"

struct host_check_options {
    const struct run_config *config;
    const char *programs, *here; /* at home: folder of our programs, folder of the user's file */
    struct guard *guard;
    struct interrupts *interrupts; /* SIGINT and SIGTERM end the check */
};

/* Connects to all hosts at once, within 10 s unless programs must be sent first, and prints a line for each: its processor, its
 * programs, and whether it reaches this machine, where the broker will listen. Writes into no run. RP_UNAVAILABLE: a host cannot
 * work, and its line says why. */
rp_status host_check(const struct host_check_options *options, FILE *out, rp_error *err);

#endif
