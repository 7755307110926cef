/* Administrative calls that give the broker's own messages, for replay-ctl and for the public calls. Replies are
 * given to the caller: replay__reply__free_unpacked(reply, NULL). Their body is the one asked for. */
#ifndef AGENT_CLIENT_ADMIN_H
#define AGENT_CLIENT_ADMIN_H

#include <stdbool.h>

#include "agent/client/conn/conn.h"
#include "proto/base/json.h"
#include "replay/admin.h"

/* All pages of sessions are put into the one reply. table may be NULL. */
rp_status admin_info(struct conn *conn, const char *table, bool sessions, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err);
rp_status admin_why(struct conn *conn, int64_t timeout_ms, Replay__Reply **out, rp_error *err);
/* A page of a table's items. */
struct admin_page {
    const char *table;
    uint64_t cursor; /* 0: the first page */
    uint32_t limit;  /* items; 0: the broker's own limit for one reply */
};
rp_status admin_list(struct conn *conn, const struct admin_page *page, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err);
rp_status admin_reset(struct conn *conn, const char *table, int64_t timeout_ms, Replay__Reply **out, rp_error *err);
rp_status admin_checkpoint(struct conn *conn, int64_t timeout_ms, Replay__Reply **out, rp_error *err);
rp_status admin_set_limiter(struct conn *conn, const char *table, const rp_limiter_change *change, int64_t timeout_ms,
                            Replay__Reply **out, rp_error *err);

/* One element of an array as a JSON value: half floats widened, complex numbers as [real, imaginary]. */
void admin_json_element(struct json *out, int32_t dtype, const void *at);
/* An object for item i: its metadata and fields, at most max_values numbers of each. */
void admin_json_item(struct json *out, const rp_batch *batch, uint32_t i, uint32_t max_values);

#endif
