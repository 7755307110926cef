/* From files to a running broker: the newest valid checkpoint and the journal after it become tables, sessions,
 * parameters. What differs between the files' settings and the configuration is reported; the configuration wins where it
 * can (sizes, limiters, selectors, options), and the start is refused where it can not (a signature). */
#ifndef BROKER_RESTORE_H
#define BROKER_RESTORE_H

#include "replay/error.h"

struct durable_state;
struct stream;
struct tables;

/* After stream_open, and before the sockets are bound. RP_OK also when there is nothing to restore. */
rp_status restore(const struct durable_state *state, struct stream *stream, rp_error *err);
/* After stream_begin: removes what the configuration has no room for. So the journal knows of it. */
void restore_finish(const struct tables *tables);

#endif
