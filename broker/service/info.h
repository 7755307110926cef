/* What the broker tells about itself. */
#ifndef BROKER_INFO_H
#define BROKER_INFO_H

#include "broker/table/table.h"
#include "replay.pb-c.h"

struct limiter_info {
    Replay__LimiterInfo body;
    char inserts_wait[256], samples_wait[256];
};
/* body points into the struct. */
void info_limiter(const struct table *table, struct limiter_info *out);

#endif
