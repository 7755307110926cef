/* Permits: a sampler over shards charges the limiter of a shard that has room, and picks its items where the mass is. A permit
 * waits in the queue of its table, like a sample, and picks nothing. What it has been granted is held until it is answered: if the
 * client gives up, or is gone, the limiter gets it back, and after a crash it was never charged. */
#ifndef BROKER_PERMIT_H
#define BROKER_PERMIT_H

#include "broker/sample/waiter.h"
#include "proto/wire/wire.h"

/* Most samples of one permit. */
#define PERMIT_MOST (1u << 24)

/* Lets a permit of waiter->want samples wait on behalf of a request. On an error the waiter is released. */
rp_status permit_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err);
/* Charges the limiter as far as it allows. True: the permit was answered, and the waiter is gone. */
bool permit_serve(struct waiter *waiter, bool *progress);
/* The deadline has passed: answers with what was granted, or with an error. Ends the waiter. */
void permit_expire(struct waiter *waiter);
/* Fills in all but what was granted. */
void permit_state(const struct table *table, Replay__PermitReply *out);

#endif
