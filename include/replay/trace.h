/* Spans of a program in a trace of the broker (replay-ctl trace).
 *
 * While the broker records a trace, the library records what its own calls do, and sends it to the broker at the end. A program
 * adds what it does between those calls:
 *
 *     int64_t start = rp_trace_begin(client);
 *     learn(batch);
 *     rp_trace_end(client, "learner step", start);
 *
 * While no trace is on, either call costs a test. Spans of one thread should nest. Any thread may call both. */
#ifndef REPLAY_TRACE_H
#define REPLAY_TRACE_H

#include <stdint.h>

#include "replay/client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the start of a span, or 0 while no trace is on. client may be NULL: then there is none. */
RP_API int64_t rp_trace_begin(rp_client *client);
/* Ends a span that has begun at start_ns; 0: does nothing. Of the name, which is copied, 47 bytes are kept; a client takes about
 * 200 different names in one trace. */
RP_API void rp_trace_end(rp_client *client, const char *name, int64_t start_ns);

#ifdef __cplusplus
}
#endif

#endif
