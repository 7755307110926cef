/* How many files this process can still open. libzmq and czmq abort the process when they cannot open what they need. */
#pragma once

#include <stdint.h>

#include "replay/error.h"

/* Fails with RP_RESOURCE_EXHAUSTED unless n more files can be opened now. For the sentence: who needs them, and what more. */
rp_status open_files_check(uint32_t n, const char *who, const char *more, rp_error *err);
