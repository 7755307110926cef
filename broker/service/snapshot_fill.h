/* Copies the state of rooms into the structs of a snapshot. Each call is short. */
#ifndef BROKER_SNAPSHOT_FILL_H
#define BROKER_SNAPSHOT_FILL_H

#include "broker/metrics/snapshot.h"

struct service;
struct session;
struct table;

/* Server, memory, disk, parameters, commands. */
void snapshot_fill_state(struct snapshot *self, const struct service *service);
/* Adds a table; snapshot->tables has room for it. */
void snapshot_fill_table(struct snapshot *self, const struct table *table);
/* Adds a session; snapshot->sessions has room for it. seen: per table, the serial number of the last session whose flow was
 * added. */
void snapshot_fill_session(struct snapshot *self, const struct session *session, uint64_t *seen);
/* Adds what waits, at most SNAPSHOT_WAITS_MOST lines; and what tables wait for. After the tables. */
void snapshot_fill_waits(struct snapshot *self, const struct service *service);

#endif
