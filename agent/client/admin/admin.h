/* Administrative calls that give the broker's own messages.
 *
 * The room agent/client/admin offers the calls of replay/admin.h (admin.c, admin_info.c for plain structs, admin_fetch.c for items,
 * admin_json.c for JSON text, admin_trace.c and trace_chart.c for traces) and, for replay-ctl, the same calls with the broker's
 * messages as their result. gather.c asks all shards of a broker at once, and merge.c makes one answer of theirs: no caller needs
 * to know how many there are. The room uses conn, batch (for fetched items) and proto/base.
 *
 * Replies are given to the caller: replay__reply__free_unpacked(reply, NULL). They have the body that was asked for. */
#ifndef AGENT_CLIENT_ADMIN_H
#define AGENT_CLIENT_ADMIN_H

#include <stdbool.h>

#include "agent/client/conn/client.h"
#include "proto/base/json.h"
#include "replay/admin.h"

/* Gives all pages of sessions in one reply. table may be NULL. */
rp_status admin_info(rp_client *client, const char *table, bool sessions, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err);
rp_status admin_why(rp_client *client, int64_t timeout_ms, Replay__Reply **out, rp_error *err);
/* Give a reply of admin_info or admin_why as the public structs, which own it from here on. NULL: no memory; the reply is freed. */
rp_info *admin_take_info(Replay__Reply *reply);
rp_waits *admin_take_waits(Replay__Reply *reply);
/* A page of a table's items. */
struct admin_page {
    const char *table;
    uint64_t cursor; /* 0: the first page */
    uint32_t limit;  /* items; 0: the broker's own limit for one reply */
};
rp_status admin_list(rp_client *client, const struct admin_page *page, int64_t timeout_ms, Replay__Reply **out,
                     rp_error *err);
rp_status admin_reset(rp_client *client, const char *table, int64_t timeout_ms, Replay__Reply **out, rp_error *err);
rp_status admin_checkpoint(rp_client *client, int64_t timeout_ms, Replay__Reply **out, rp_error *err);
rp_status admin_set_limiter(rp_client *client, const char *table, const rp_limiter_change *change, int64_t timeout_ms,
                            Replay__Reply **out, rp_error *err);

/* Writes one element of an array as a JSON value: half floats are widened, complex numbers are [real, imaginary]. */
void admin_json_element(struct json *out, int32_t dtype, const void *at);
/* Writes an object for item i: its metadata and fields, at most max_values numbers of each field. */
void admin_json_item(struct json *out, const rp_batch *batch, uint32_t i, uint32_t max_values);

#endif
