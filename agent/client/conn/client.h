/* rp_client: the connections of one client to all shards of a broker; to one broker, if it is alone. This header: what the other
 * rooms of the library may ask of it. */
#pragma once

#include <math.h>

#include "agent/client/conn/conn.h"
#include "proto/base/error.h"
#include "replay/client.h"

/* rp_client_connect with a host. If it has channels, the client has no thread, the broker in this process runs on the caller's thread,
 * and one thread makes all calls of such a client. */
rp_client *client_connect(const char *endpoints, const rp_client_options *options, const struct conn_host *host,
                          int64_t timeout_ms, rp_error *err);
/* rp_client_connect for those who look at a broker in trouble: any of its shards is enough, even without shard 0. */
rp_client *client_connect_any(const char *endpoints, const rp_client_options *options, int64_t timeout_ms,
                              rp_error *err);
/* Returns the connection, which lives as long as the client. With shards: that to shard 0, which has the counters and reduces. */
struct conn *client_conn(rp_client *self);
/* Returns the number of shards, at least 1, and the connection to one of them. A shard that has not answered yet has a connection,
 * too: it keeps trying, and its conn_hello_ref gives what another shard said. */
uint32_t client_shards(const rp_client *self);
struct conn *client_shard(rp_client *self, uint32_t shard);
/* Returns the number of the shard that owns a key. A key of no shard goes to shard 0, which does not have it. */
uint32_t client_shard_of(const rp_client *self, uint64_t key);
/* Returns the number of the shard to read from, where any would do: clients are spread over the shards, and go to another when
 * theirs has not answered for a second. */
uint32_t client_nearest(rp_client *self);
/* Goes on from one that was the nearest to the next that answers, and returns that. */
uint32_t client_move_nearest(rp_client *self, uint32_t from);
/* Writes which shards do not answer ("shard 2 at tcp://... has not answered for 3.2 s; ..."), or "no broker answers at ..."; ""
 * while all answer. */
void client_describe(rp_client *self, char *out, size_t size);
/* Returns the label given in the options. */
const char *client_name(const rp_client *self);

/* Checks the priority of an item. */
static inline rp_status client_check_priority(double priority, rp_error *err)
{
    if (isfinite(priority) && priority >= 0)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT, "a priority must be finite and not negative: %g", priority);
}

/* Checks the name of a slot, a counter or a group; what: "name" or "group's name". */
rp_status client_check_name(const char *what, const char *name, rp_error *err);

/* ---- public structs, which begin with their struct_size: a caller may know a shorter one ---- */

/* Fills the caller's struct. RP_INVALID_ARGUMENT: struct_size is not set. */
rp_status client_copy_out(void *out, const void *from, size_t size, rp_error *err);
/* Reads the caller's options (NULL: none); members that it does not know are 0. what: their type, for the error. */
rp_status client_copy_options(void *out, size_t size, const void *given, const char *what, rp_error *err);
