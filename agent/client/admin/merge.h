/* Puts the answers of all shards together into that of one logical broker.
 *
 * Counts, sizes, rates, bytes, bounds and cursors are sums; ages and staleness are means weighted by the rates of samples; what
 * all shards have in common is there once. Each merge takes the messages out of the answers, and gives one that the caller owns;
 * what every shard has said by itself is in its `shards`, where shards without an answer are named, too. A broker without shards:
 * its message, unchanged. NULL: no memory. */
#ifndef AGENT_CLIENT_ADMIN_MERGE_H
#define AGENT_CLIENT_ADMIN_MERGE_H

#include "agent/client/admin/gather.h"

Replay__Reply *merge_info(struct gather_answers *answers);
/* Texts get their shard in front ("shard 2: ..."); a shard that does not answer is a wait of the kind "shard". A sampler that
 * waits for all shards is there once, without a shard. */
Replay__Reply *merge_why(struct gather_answers *answers);
/* The sum of a reset. */
Replay__Reply *merge_change(struct gather_answers *answers);
/* The number is that of the first shard. */
Replay__Reply *merge_checkpoint(struct gather_answers *answers);
/* Limiters after a change. */
Replay__Reply *merge_limiter(struct gather_answers *answers);

/* Adds a message of InfoReply to the sum of those of the shards before, by the rows of proto/wire/figures.h. False: no memory. */
bool merge_add(ProtobufCMessage *into, const ProtobufCMessage *from);
/* After the last of n shards: a sum that waits gets the sentence of shard `first`. False: no memory. */
bool merge_end_limiter(Replay__LimiterInfo *into, uint32_t first, uint32_t n);
/* Returns a copy; NULL: no memory. */
ProtobufCMessage *merge_clone(const ProtobufCMessage *from);

#endif
