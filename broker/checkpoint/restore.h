/* The restore: from files to a running broker. The entries of the newest valid checkpoint and of the journal after it are
 * applied to the broker's own tables, sessions and parameters (loading.h). Settings that differ between the files and the
 * configuration are logged; the configuration wins where it can (sizes, selectors, options, and limiters that were not changed
 * while the broker ran), and otherwise (a signature) the start is refused. */
#pragma once

#include "replay/error.h"

struct durable_state;
struct stream;
struct tables;

/* Restores the state. After stream_open, before the sockets are bound. RP_OK also if there is nothing to restore. */
rp_status restore(const struct durable_state *state, struct stream *stream, rp_error *err);
/* Removes items that the configuration has no room for. After stream_begin, so that the journal records it. */
void restore_finish(const struct tables *tables);
