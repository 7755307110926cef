/* The answer to a sample: with the picks that its waiter has collected, or with an error. Each of these functions ends the
 * waiter. */
#ifndef BROKER_ANSWER_H
#define BROKER_ANSWER_H

#include "broker/sample/waiter.h"

/* Lets a sample wait on behalf of a request, with the memory to keep its picks. On an error the waiter is released. */
rp_status sample_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err);
/* The same for a fetch, which has its picks. */
rp_status fetch_begin(struct waiter *waiter, const struct request *request, rp_error *err);

/* Answers with the picks. text: why there are fewer than asked for, or NULL. If data has to be read from disk first, the
 * waiter is parked and answered later. */
void sample_answer(struct waiter *waiter, const char *text);
/* Answers with an error. The picks count as lost. */
void sample_fail(struct waiter *waiter, rp_status status, const char *text);
/* Answers with an error. There are no picks, or a retry finds them again. */
void sample_refuse(struct waiter *waiter, rp_status status, const char *text);
/* The deadline has passed: answers with the picks so far, or with an error. A parked waiter stays parked. */
void sample_expire(struct waiter *waiter);
/* The client has cancelled the request. */
void sample_give_up(struct waiter *waiter);

/* Returns the waiter of a wait that is a sample. NULL: it is something else. */
struct waiter *sample_of(struct wait *wait);

#endif
