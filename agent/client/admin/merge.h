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

/* Adds a limiter to the sum of those of the shards before. False: no memory. (merge_table.c) */
bool merge_add_limiter(Replay__LimiterInfo *into, const Replay__LimiterInfo *from);
/* After the last of n shards: a sum waits only if all of them do, with the sentence of shard `first`. False: no memory. */
bool merge_end_limiter(Replay__LimiterInfo *into, uint32_t first, uint32_t n);
bool merge_add_table(Replay__TableInfo *into, const Replay__TableInfo *from);
/* Adds the server's counts; uptime and names are those of the first. (merge_server.c) */
bool merge_add_server(Replay__ServerInfo *into, const Replay__ServerInfo *from);
bool merge_add_disk(Replay__DiskInfo *into, const Replay__DiskInfo *from, uint32_t shard);

/* Helpers of this room. */
ProtobufCMessage *merge_clone(const ProtobufCMessage *from);
/* Replaces a string of a message. False: no memory. */
bool merge_set_text(char **text, const char *format, ...) RP_PRINTF(2, 3);
/* Appends n pointers to an array of a message. False: no memory. */
bool merge_append(void ***array, size_t *n, void *const *more, size_t n_more);
/* Appends a copy of a message. False: no memory. */
bool merge_append_copy(void ***array, size_t *n, const ProtobufCMessage *from);

#endif
