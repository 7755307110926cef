/* Statuses of runs as texts: what a text does not name is not known, or none. */
#pragma once

#include "agent/launch/process/status.h"
#include "tests/support/test.h"

/* Reads a status from its members, without the braces of the object; its lists last until the program ends. */
struct status status_of(const char *members);
