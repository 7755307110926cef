/* From files to a running broker: the newest valid checkpoint and the journal after it become tables, sessions,
 * parameters. What differs between the files' settings and the configuration is reported; the configuration wins where it
 * can (sizes, limiters, selectors, options), and the start is refused where it can not (a signature). */
#ifndef BROKER_RESTORE_H
#define BROKER_RESTORE_H

#include "broker/broker.h"

/* After stream_open, and before the sockets are bound. RP_OK also when there is nothing to restore. */
rp_status restore(struct broker *broker, rp_error *err);
/* After stream_begin: removes what the configuration has no room for. So the journal knows of it. */
void restore_finish(struct broker *broker);

#endif
