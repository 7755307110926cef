/* A table's limiter as the protocol and the files describe it: settings, counters, and what inserts and samples wait for. */
#ifndef BROKER_LIMITER_INFO_H
#define BROKER_LIMITER_INFO_H

#include "broker/table/table.h"
#include "replay.pb-c.h"

struct limiter_info {
    Replay__LimiterInfo body; /* points into this struct */
    char inserts_wait[256], samples_wait[256];
};

void limiter_info(const struct table *table, struct limiter_info *out);

#endif
