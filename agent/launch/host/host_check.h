/* Tries all hosts of a run's file without a run: which of them could work, and why others could not. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "agent/launch/process/command.h"
#include "agent/launch/process/interrupts.h"
#include "replay/error.h"

/* Connects to all hosts at once, within 10 s unless programs must be sent first, and prints a line for each: its processor, its
 * programs, and whether it reaches this machine, where the broker will listen. Writes into no run. SIGINT and SIGTERM end the check.
 * RP_UNAVAILABLE: a host cannot work, and its line says why. */
rp_status host_check(const struct command_context *home, struct interrupts *interrupts, FILE *out, rp_error *err);
