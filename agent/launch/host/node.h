/* The node agent: what replay-launch runs on another machine. It speaks with the launcher by lines on its standard input and
 * output (host_line.h), starts processes, forwards their output, sends their files home, and ends with all of them when the
 * launcher asks for it, is silent, or is gone. */
#pragma once

#include "replay/error.h"

/* Runs until the connection ends. in, out: descriptors of the connection; nothing else may use them. RP_OK: it ended in order. */
rp_status node_run(int in, int out, rp_error *err);
