/* What process.c and guard.c share. */
#ifndef AGENT_LAUNCH_PROCESS_IMPL_H
#define AGENT_LAUNCH_PROCESS_IMPL_H

#include "agent/launch/process/process.h"

/* A group to know (positive) or to forget (negative). Safe between fork and exec. self may be NULL. */
void guard_tell(const struct guard *self, int32_t word);

#endif
