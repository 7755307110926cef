/* What a broker says of itself: the messages of Info and Why, filled in from all rooms. Requests (req_info, req_why) and snapshots
 * for other threads (snapshot_maker.h) are made here alone. The messages live in an arena and point to nothing outside of it. */
#ifndef BROKER_INFO_H
#define BROKER_INFO_H

#include "proto/base/arena.h"
#include "replay.pb-c.h"

struct service;
struct session;
struct table;

/* Fills in the server, the disk, slots and counters, and makes room for all tables. */
void info_fill(struct arena *arena, const struct service *service, Replay__InfoReply *out);
/* Returns what is known of a table. */
Replay__TableInfo *info_table(struct arena *arena, const struct table *table);
/* Returns what is known of a session. */
Replay__SessionInfo *info_session(struct arena *arena, const struct session *session);
/* Fills in what waits, at most so many lines. */
void info_waits(struct arena *arena, const struct service *service, uint32_t most, Replay__WhyReply *out);

#endif
