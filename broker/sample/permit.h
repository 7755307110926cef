/* Permits: a sampler over shards charges the limiter of a shard that has room, and picks its items where the mass is. A permit
 * waits in the queue of its table, like a sample, and picks nothing. It is charged when it is answered, and not before: a client
 * that gives up, or is gone, has cost nothing, and the cursor is what clients were told. A table without a ratio grants permits and
 * counts none of them: its picks are counted when they are made. */
#ifndef BROKER_PERMIT_H
#define BROKER_PERMIT_H

#include "broker/sample/waiter.h"
#include "proto/wire/wire.h"

/* Most samples of one permit. */
#define PERMIT_MOST (1u << 24)

/* Refuses permits and paid samples of a table (`what` asks for them) whose limiter counts items that leave: one that is charged and
 * not picked here, or the other way round, would hold up the queue for ever. */
rp_status permit_check(const struct table *table, const char *what, rp_error *err);
/* Lets a permit of waiter->want samples wait on behalf of a request. On an error the waiter is released. */
rp_status permit_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err);
/* Charges the limiter and answers, if it allows the whole count (flexible: at least one). A count above what the bounds ever
 * allow at once is granted in part. True: the permit was answered, and the waiter is gone. */
bool permit_serve(struct waiter *waiter, bool *progress);
/* The deadline has passed: answers with what can be granted now, or with an error. Ends the waiter. */
void permit_expire(struct waiter *waiter);
/* Fills in all but what was granted. */
void permit_state(const struct table *table, Replay__PermitReply *out);

#endif
