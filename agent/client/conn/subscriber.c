/* A subscriber: a ParamsGet that waits at the broker, and the newest copy that it has brought.
 *
 * There is at most one request. It is sent when the caller has taken the last copy; the next copy lies ready until the caller
 * takes it, which makes the I/O thread ask again. A copy that lies ready for REFRESH_NS is replaced by a newer one, so that slow
 * callers get fresh parameters and fast callers do not pay for copies they skip.
 *
 * With shards there is a lane to each, and the one of the nearest shard asks. Another takes over when that shard is lost, or has
 * nothing while this client has nothing either. A shard may be slower than others to get a version: one that is older than what
 * the caller has got is dropped, and that shard is asked for another than it. Only when all shards that are there have become
 * other brokers may versions count from 1 again. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/params.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"
#include "replay/types.h"

/* Age at which a copy that was not taken is replaced. */
#define REFRESH_NS (20 * NS_PER_MS)
/* Wait for the first version at one of several shards. */
#define FIRST_MS 500
/* How often the lane of a lost shard looks for another. */
#define LOOK_NS (100 * NS_PER_MS)

struct subscribe_lane {
    struct params_lane lane; /* first */
    bool other;              /* lock: another broker than before, and versions have not begun anew */
    uint64_t behind;         /* lock: version that the shard had when others had a newer one; 0: none */
};

struct rp_subscriber {
    struct params_link link; /* first; its lock guards what follows */
    rp_params *ready;        /* NULL: nothing new */
    int64_t arrived_ns;      /* time at which it arrived */
    uint64_t have;           /* version of the newest copy; 0: none from this broker */
    uint64_t newest;         /* version that has arrived; 0: none since versions began */
    rp_subscriber_stats stats;
    uint32_t active; /* number of the lane that asks */
    uint32_t n_lanes;
    struct subscribe_lane lanes[];
};

static struct rp_subscriber *subscriber_of(const struct subscribe_lane *lane)
{
    return (struct rp_subscriber *)lane->lane.link;
}

/* ---- I/O threads ---- */

/* Makes the lane of the nearest shard the one that asks, if this lane was. True: another lane asks now. */
static bool pass_on(struct rp_subscriber *self, const struct subscribe_lane *lane, uint32_t nearest)
{
    pthread_mutex_lock(&self->link.lock);
    bool passed = lane == &self->lanes[self->active] && nearest != self->active;
    if (passed)
        self->active = nearest;
    pthread_mutex_unlock(&self->link.lock);
    if (passed)
        conn_wake(self->lanes[nearest].lane.conn);
    return passed;
}

/* True if a version is to be dropped: two lanes may have asked, and bring the same, or the second one an older one. Lock held. */
static bool is_known(struct rp_subscriber *self, struct subscribe_lane *lane, uint64_t version)
{
    bool older = self->n_lanes > 1 && version < self->newest;
    lane->behind = older ? version : 0;
    lane->other = lane->other && older;
    if (self->n_lanes > 1 && version == self->newest)
        self->have = version;
    return older || version == self->have;
}

/* Lock held. */
static void keep(struct rp_subscriber *self, struct subscribe_lane *lane, rp_params *params)
{
    uint64_t version = rp_params_slot(params, 0)->version;
    if (is_known(self, lane, version)) {
        rp_params_release(&params);
        return;
    }
    self->stats.replaced += self->ready != NULL;
    rp_params_release(&self->ready);
    self->ready = params;
    self->arrived_ns = conn_now();
    self->have = self->newest = version;
    self->stats.arrived++;
}

static uint64_t version_here(struct rp_subscriber *self)
{
    pthread_mutex_lock(&self->link.lock);
    uint64_t have = self->have;
    pthread_mutex_unlock(&self->link.lock);
    return have;
}

static void on_params(void *ctx, struct conn_reply *reply)
{
    struct subscribe_lane *lane = ctx;
    struct rp_subscriber *self = subscriber_of(lane);
    rp_params *params = NULL;
    rp_error error = {0};
    const char *name = self->link.name;
    uint64_t have = version_here(self);
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = params_read(&name, &have, 1, reply, &params, &error);
    else
        conn_reply_destroy(&reply);
    lane->lane.in_flight = false;
    if (status != RP_OK)
        lane->lane.next_ns = conn_now() + PARAMS_RETRY_NS;
    pthread_mutex_lock(&self->link.lock);
    if (status == RP_OK)
        keep(self, lane, params);
    else if (status != RP_UNAVAILABLE && status != RP_CANCELLED && status != RP_DEADLINE_EXCEEDED &&
             status != RP_RESOURCE_EXHAUSTED) /* what others have left unread goes away: asks again */
        params_link_keep_error(&self->link, &lane->lane, &error);
    pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
    if (status == RP_DEADLINE_EXCEEDED && have == 0)
        pass_on(self, lane, client_move_nearest(self->link.client, conn_shard(lane->lane.conn)));
}

/* Returns the time at which a ready copy is to be replaced, and the version that the lane need not bring. */
static int64_t due_ns(struct rp_subscriber *self, const struct subscribe_lane *lane, uint64_t *have)
{
    pthread_mutex_lock(&self->link.lock);
    int64_t due = self->ready ? self->arrived_ns + REFRESH_NS : 0;
    *have = lane->behind ? lane->behind : self->have;
    pthread_mutex_unlock(&self->link.lock);
    return due;
}

/* True if this lane is to ask; otherwise *wake_ns is the time to look again. */
static bool is_its_turn(struct rp_subscriber *self, const struct subscribe_lane *lane, int64_t now_ns, int64_t *wake_ns)
{
    if (self->n_lanes == 1)
        return true;
    pthread_mutex_lock(&self->link.lock);
    bool active = lane == &self->lanes[self->active];
    pthread_mutex_unlock(&self->link.lock);
    *wake_ns = INT64_MAX;
    if (!active || pass_on(self, lane, client_nearest(self->link.client)))
        return false;
    *wake_ns = lane->lane.up ? INT64_MAX : now_ns + LOOK_NS;
    return lane->lane.up;
}

static int64_t on_tick(struct conn_part *part, int64_t now_ns)
{
    struct subscribe_lane *lane = (struct subscribe_lane *)part;
    struct rp_subscriber *self = subscriber_of(lane);
    uint64_t have;
    int64_t wake_ns;
    if (!is_its_turn(self, lane, now_ns, &wake_ns) || !params_lane_is_free(&lane->lane, now_ns, &wake_ns))
        return wake_ns;
    wake_ns = due_ns(self, lane, &have);
    if (now_ns < wake_ns)
        return wake_ns;
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    if (self->n_lanes > 1 && have == 0) {
        body.has_timeout_ms_case = REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = FIRST_MS;
    }
    body.n_name = 1;
    body.name = &self->link.name;
    body.n_have = 1;
    body.have = &have;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET, .body = &body.base, .timeout_ms = -1};
    lane->lane.in_flight = conn_send_once(lane->lane.conn, part, &message, on_params);
    if (!lane->lane.in_flight) {
        lane->lane.next_ns = now_ns + PARAMS_RETRY_NS;
        return lane->lane.next_ns;
    }
    pthread_mutex_lock(&self->link.lock);
    self->stats.polls++;
    pthread_mutex_unlock(&self->link.lock);
    return INT64_MAX;
}

/* Other brokers may count from 1 again; if a shard that is there knows the old versions, they go on. Lock held. */
static void look_for_restart(struct rp_subscriber *self)
{
    uint32_t others = 0;
    for (uint32_t i = 0; i < self->n_lanes; i++) {
        if (self->lanes[i].lane.up && !self->lanes[i].other)
            return;
        others += self->lanes[i].lane.up;
    }
    if (others == 0)
        return; /* those that come back tell */
    for (uint32_t i = 0; i < self->n_lanes; i++) {
        self->lanes[i].other = false;
        self->lanes[i].behind = 0;
    }
    self->newest = self->have = 0;
}

static void on_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct subscribe_lane *lane = (struct subscribe_lane *)part;
    struct rp_subscriber *self = subscriber_of(lane);
    if (!params_lane_up(&lane->lane, hello))
        return;
    pthread_mutex_lock(&self->link.lock);
    lane->behind = 0;
    lane->other = true;
    look_for_restart(self);
    if (lane == &self->lanes[self->active])
        self->have = 0; /* any version it has may be new */
    pthread_mutex_unlock(&self->link.lock);
}

/* The shard that is lost may have been the last that knew the old versions. */
static void on_down(struct conn_part *part)
{
    struct rp_subscriber *self = subscriber_of((const struct subscribe_lane *)part);
    params_lane_down(part);
    pthread_mutex_lock(&self->link.lock);
    look_for_restart(self);
    pthread_mutex_unlock(&self->link.lock);
}

static const struct conn_part_ops subscriber_ops = {.up = on_up, .down = on_down, .tick = on_tick};

/* ---- calls ---- */

static rp_status nothing_new(struct rp_subscriber *self, uint64_t have, int64_t timeout_ms, rp_error *err)
{
    char why[256] = "";
    if (timeout_ms != 0)
        client_describe(self->link.client, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no other version of '%s' than %llu has arrived%s%s", self->link.name,
                   (unsigned long long)have, why[0] ? ": " : "", why);
}

rp_status rp_subscriber_take(rp_subscriber *subscriber, int64_t timeout_ms, rp_params **out, rp_error *err)
{
    int64_t deadline = timeout_ms == 0 ? 0 : conn_deadline(timeout_ms);
    struct conn *conn = client_conn(subscriber->link.client);
    *out = NULL;
    RP_TRY(conn_check_process(conn, err));
    if (timeout_ms == 0)
        conn_look(conn);
    int64_t start = timeout_ms != 0 ? trace_now(conn_trace(conn)) : 0;
    pthread_mutex_lock(&subscriber->link.lock);
    while (timeout_ms != 0 && !subscriber->ready && subscriber->link.status == RP_OK &&
           conn_wait(conn, &subscriber->link.changed, &subscriber->link.lock, deadline))
        ;
    trace_add_since(conn_trace(conn), "wait for parameters", NULL, start, 0);
    if (timeout_ms != 0 && conn_is_stopped()) {
        pthread_mutex_unlock(&subscriber->link.lock);
        return conn_stopped(err);
    }
    rp_status status = params_link_take_error(&subscriber->link, "slot", err);
    uint64_t have = subscriber->have;
    uint32_t active = subscriber->active;
    if (status == RP_OK && subscriber->ready) {
        *out = subscriber->ready;
        subscriber->ready = NULL;
        subscriber->stats.taken++;
    }
    pthread_mutex_unlock(&subscriber->link.lock);
    if (*out)
        conn_wake(subscriber->lanes[active].lane.conn);
    else if (status == RP_OK)
        status = nothing_new(subscriber, have, timeout_ms, err);
    return status;
}

rp_status rp_subscriber_get_stats(rp_subscriber *subscriber, rp_subscriber_stats *out)
{
    uint32_t size = out->struct_size;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    RP_TRY(conn_check_process(client_conn(subscriber->link.client), NULL));
    pthread_mutex_lock(&subscriber->link.lock);
    rp_subscriber_stats stats = subscriber->stats;
    pthread_mutex_unlock(&subscriber->link.lock);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}

/* ---- life ---- */

rp_subscriber *rp_subscriber_new(rp_client *client, const char *name, uint64_t have, rp_error *err)
{
    uint32_t n = client_shards(client);
    rp_subscriber *self = calloc(1, sizeof *self + n * sizeof self->lanes[0]);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a subscriber");
        return NULL;
    }
    if (params_link_init(&self->link, client, name, err) != RP_OK) {
        free(self);
        return NULL;
    }
    self->have = have;
    self->active = client_nearest(client);
    self->n_lanes = n;
    for (uint32_t i = 0; i < n; i++)
        params_lane_open(&self->lanes[i].lane, &self->link, i, &subscriber_ops);
    return self;
}

void rp_subscriber_destroy(rp_subscriber **subscriber)
{
    if (!subscriber || !*subscriber)
        return;
    rp_subscriber *self = *subscriber;
    *subscriber = NULL;
    if (conn_is_foreign(client_conn(self->link.client))) {
        free(self);
        return;
    }
    for (uint32_t i = 0; i < self->n_lanes; i++)
        params_lane_close(&self->lanes[i].lane);
    params_link_fini(&self->link);
    rp_params_release(&self->ready);
    free(self);
}
