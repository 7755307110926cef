/* Deadlines and waits of the callers' threads, and the function of rp_wait_set that looks meanwhile. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"
#include "replay/client.h"
#include "replay/error.h"

/* Returns the monotonic time of a deadline: INT64_MAX for a negative time-out and for a time that the clock does not reach, now
 * for 0. Any number is allowed. */
int64_t conn_deadline(int64_t timeout_ms);
/* Returns the milliseconds until a deadline, for a part of a call: 0 when it has passed, -1 if there is none. */
int64_t conn_left_ms(int64_t deadline_ns);

/* Waits for a condition that another thread signals. False: the deadline has passed. */
bool conn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);

/* True if the function of rp_wait_set, or the end of the client, has ended a wait of this thread since it last called conn_deadline or
 * conn_wait. */
bool conn_is_stopped(void);
/* Sets err for a wait that was ended so: RP_CANCELLED. */
rp_status conn_stopped(rp_error *err);
/* A wait until a deadline that the function of rp_wait_set may end: conn_watch_begin returns the time until which to sleep; conn_watch_end,
 * called with the mutex held, lets the function look. in_time: the sleep has ended before its time. False: the deadline has passed,
 * or the function has ended the wait. */
int64_t conn_watch_begin(int64_t deadline_ns);
bool conn_watch_end(pthread_mutex_t *mutex, int64_t deadline_ns, bool in_time);
/* Ends a wait for which there is no I/O thread any more; returns false. */
bool conn_watch_stop(void);
