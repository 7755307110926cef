/* Where the library's log lines go. Without a call of rp_log_set they go to standard error, from level info on. */
#ifndef REPLAY_LOG_H
#define REPLAY_LOG_H

#include <stdint.h>

#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rp_log_level {
    RP_LOG_DEBUG = 0,
    RP_LOG_INFO = 1,
    RP_LOG_WARN = 2,
    RP_LOG_ERROR = 3,
    RP_LOG_OFF = 4,
} rp_log_level;

/* Gets one line at a time, without a newline, valid during the call: "2026-01-31T12:00:00.123Z info  C0001 connected ...".
 * Threads of the library call it, several at once, and wait for it. It must not call the library. */
typedef void rp_log_fn(void *ctx, int32_t level, const char *line);

/* Sends lines of this level and above to fn; NULL: to standard error. When the call returns, the former fn is no longer
 * called. For the whole process. */
RP_API void rp_log_set(rp_log_fn *fn, void *ctx, int32_t level);

#ifdef __cplusplus
}
#endif

#endif
