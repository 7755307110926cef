/* The signature of a table, as clients see it: the fields of its items. */
#ifndef BROKER_INFO_SIGNATURE_H
#define BROKER_INFO_SIGNATURE_H

#include "broker/service/arena.h"
#include "replay.pb-c.h"

struct table;

/* Fills in `signature` and `prescribed`: the signature of the configuration, or else the fields of the newest item. Without memory
 * the arena fails. */
void info_signature(struct arena *arena, const struct table *table, Replay__TableInfo *info);

#endif
