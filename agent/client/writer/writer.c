/* The public writer: a lane to each shard. A whole episode goes into one lane, the better of two; lanes to brokers that are away get
 * no new episodes, and what they hold waits there. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/writer/lane.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"

#define DEFAULT_IN_FLIGHT_ITEMS 20000u
#define DEFAULT_IN_FLIGHT_BYTES (UINT64_C(256) << 20)
#define DEFAULT_BATCH_ITEMS 50u
#define MAX_BATCH_ITEMS 4096u
/* A shard that is connected, and whose session is not open this long after the first one's, opens it later. (A shard that is silent is
 * not connected after a second.) And how long a lane is looked at in turn. */
#define GRACE_NS (3 * NS_PER_S)
#define TURN_MS 50

struct rp_writer {
    struct lane *lane; /* of the current episode */
    bool choose;       /* the next step begins an episode, and there are several lanes */
    uint32_t n;
    struct rng rng;
    struct lane *lanes[];
};

/* ---- which lane ---- */

/* Returns a random lane that is open, other than `but`; NULL: there is none. */
static struct lane *any_open(rp_writer *self, const struct lane *but)
{
    uint32_t first = (uint32_t)rng_below(&self->rng, self->n);
    for (uint32_t i = 0; i < self->n; i++) {
        struct lane *lane = self->lanes[(first + i) % self->n];
        if (lane != but && lane_is_open(lane))
            return lane;
    }
    return NULL;
}

/* Of two random lanes takes the one with fewer unconfirmed items. With no lane open, the present one goes on. */
static __attribute__((noinline)) void choose_lane(rp_writer *self)
{
    struct lane *one = any_open(self, NULL), *other = one ? any_open(self, one) : NULL;
    self->choose = false;
    if (other && lane_unconfirmed(other) < lane_unconfirmed(one))
        one = other;
    if (one)
        self->lane = one;
    lane_set_window(self->lane);
}

/* Returns the lane for a step. */
static inline struct lane *lane_for_step(rp_writer *self)
{
    if (__builtin_expect(self->choose, 0))
        choose_lane(self);
    return self->lane;
}

/* ---- steps and items ---- */

rp_status rp_writer_append(rp_writer *writer, const void *const *values, int64_t timeout_ms, rp_error *err)
{
    return lane_append(lane_for_step(writer), values, timeout_ms, err);
}

rp_status rp_writer_set(rp_writer *writer, uint32_t column, const void *value, uint64_t bytes, rp_error *err)
{
    return lane_set(lane_for_step(writer), column, value, bytes, err);
}

rp_status rp_writer_end_step(rp_writer *writer, int64_t timeout_ms, rp_error *err)
{
    return lane_end_step(writer->lane, timeout_ms, err);
}

rp_status rp_writer_row(rp_writer *writer, uint32_t column, int64_t step, const void **row, rp_error *err)
{
    return lane_row(writer->lane, column, step, row, err);
}

rp_status rp_writer_item(rp_writer *writer, const char *table, double priority, const rp_slice *slices,
                         uint32_t n_slices, int64_t timeout_ms, uint64_t *key, rp_error *err)
{
    return lane_item(writer->lane, table, priority, slices, n_slices, timeout_ms, key, err);
}

rp_status rp_writer_item_last(rp_writer *writer, const char *table, double priority, uint32_t steps, int64_t timeout_ms,
                              uint64_t *key, rp_error *err)
{
    return lane_item_last(writer->lane, table, priority, steps, timeout_ms, key, err);
}

rp_status rp_writer_check_item(rp_writer *writer, const char *table, const rp_slice *slices, uint32_t n_slices,
                               rp_error *err)
{
    return lane_check_item(writer->lane, table, slices, n_slices, err);
}

void rp_writer_set_policy(rp_writer *writer, uint64_t version)
{
    for (uint32_t i = 0; i < writer->n; i++)
        lane_set_policy(writer->lanes[i], version);
}

rp_status rp_writer_end_episode(rp_writer *writer, int32_t mode, int64_t timeout_ms, rp_error *err)
{
    struct lane *lane = writer->lane;
    rp_status status = lane_end_episode(lane, mode, timeout_ms, err);
    writer->choose = writer->n > 1 && lane->stream.n_set == 0 && step_stream_length(&lane->stream) == 0;
    return status;
}

rp_status rp_writer_add_pattern(rp_writer *writer, const rp_pattern *pattern, rp_error *err)
{
    for (uint32_t i = 0; i < writer->n; i++) {
        rp_status status = lane_add_pattern(writer->lanes[i], pattern, err);
        if (status == RP_OK)
            continue;
        while (i-- > 0) /* all lanes have it, or none */
            structured_drop_newest(&writer->lanes[i]->structured);
        return status;
    }
    return RP_OK;
}

/* ---- confirmed and rejected items ---- */

rp_status rp_writer_flush(rp_writer *writer, uint64_t max_unconfirmed, int64_t timeout_ms, rp_error *err)
{
    struct lane_flush flush = {max_unconfirmed, timeout_ms, conn_deadline(timeout_ms)};
    RP_TRY(lane_check_process(writer->lane, err));
    return lanes_flush(writer->lanes, writer->n, &flush, err);
}

rp_status rp_writer_next_rejection(rp_writer *writer, rp_rejection *out)
{
    rp_status status = RP_NOT_FOUND;
    for (uint32_t i = 0; i < writer->n && status == RP_NOT_FOUND; i++)
        status = lane_next_rejection(writer->lanes[i], out);
    return status;
}

rp_status rp_writer_get_info(rp_writer *writer, rp_writer_info *out, rp_error *err)
{
    RP_TRY(lane_check_process(writer->lane, err));
    rp_writer_info info = {.episode_steps = step_stream_length(&writer->lane->stream)};
    for (uint32_t i = 0; i < writer->n; i++)
        lane_add_info(writer->lanes[i], &info);
    return client_copy_out(out, &info, sizeof info, err);
}

/* ---- life ---- */

static rp_status read_options(const rp_writer_options *in, rp_writer_options *out, rp_error *err)
{
    RP_TRY(client_copy_options(out, sizeof *out, in, "rp_writer_options", err));
    if (out->chunk_length == 0)
        out->chunk_length = 1;
    if (out->keep_alive == 0)
        out->keep_alive = out->chunk_length;
    if (out->max_in_flight_items == 0)
        out->max_in_flight_items = DEFAULT_IN_FLIGHT_ITEMS;
    if (out->max_in_flight_bytes == 0)
        out->max_in_flight_bytes = DEFAULT_IN_FLIGHT_BYTES;
    if (out->batch_items == 0)
        out->batch_items = DEFAULT_BATCH_ITEMS;
    if (out->batch_items > MAX_BATCH_ITEMS)
        return err_set(err, RP_INVALID_ARGUMENT, "batch_items is %u; it may be 1 to %u", out->batch_items,
                       MAX_BATCH_ITEMS);
    if (out->doubt != RP_DOUBT_REPORT && out->doubt != RP_DOUBT_RESEND)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no rp_doubt %" PRId32, out->doubt);
    if (out->name && strlen(out->name) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a writer's name has at most %u bytes", RP_MAX_NAME);
    return RP_OK;
}

/* Looks at all lanes once, and waits a little for those that are to open. RP_UNAVAILABLE: *pending is one that has not. */
static rp_status look_for_open(rp_writer *self, int64_t deadline_ns, struct lane **open, struct lane **pending,
                               rp_error *err)
{
    *pending = NULL;
    for (uint32_t i = 0; i < self->n; i++) {
        struct lane *lane = self->lanes[i];
        bool is_open = lane_is_open(lane);
        if (!is_open && (!*open || conn_state(lane->conn) == RP_CLIENT_CONNECTED)) {
            int64_t left = conn_left_ms(deadline_ns);
            rp_error why = {0};
            rp_status status = lane_await_open(lane, left >= 0 && left < TURN_MS ? left : TURN_MS, &why);
            if (status != RP_OK && status != RP_UNAVAILABLE) /* refused, or the caller has ended the wait */
                return err_set(err, status, "%s", why.text);
            is_open = status == RP_OK;
            *pending = is_open || *pending ? *pending : lane;
        }
        *open = is_open && !*open ? lane : *open;
    }
    return *open ? RP_OK : RP_UNAVAILABLE;
}

/* Waits until the sessions are open. One session is needed: a shard that is away opens its own later. */
static rp_status await_open(rp_writer *self, int64_t timeout_ms, rp_error *err)
{
    if (self->n == 1)
        return lane_await_open(self->lane, timeout_ms, err);
    int64_t deadline = conn_deadline(timeout_ms), end = deadline;
    struct lane *open = NULL, *pending;
    for (;;) {
        rp_status status = look_for_open(self, end, &open, &pending, err);
        if (status != RP_OK && status != RP_UNAVAILABLE)
            return status;
        int64_t now = conn_now();
        if (open && end == deadline)
            end = deadline - now > GRACE_NS ? now + GRACE_NS : deadline;
        if (open && (!pending || now >= end)) {
            self->lane = open;
            return RP_OK;
        }
        if (!open && now >= deadline)
            break;
    }
    char why[400];
    conn_describe(self->lanes[0]->conn, why, sizeof why);
    return err_set(err, RP_UNAVAILABLE, "no shard has opened a session within %g s%s%s", (double)timeout_ms / 1e3,
                   why[0] ? ": " : "", why);
}

rp_writer *rp_writer_new(rp_client *client, const rp_column *columns, uint32_t n_columns,
                         const rp_writer_options *options, int64_t timeout_ms, rp_error *err)
{
    rp_writer_options own;
    if (conn_check_process(client_conn(client), err) != RP_OK || read_options(options, &own, err) != RP_OK)
        return NULL;
    uint32_t n = client_shards(client);
    rp_writer *self = calloc(1, sizeof *self + n * sizeof *self->lanes);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a writer");
        return NULL;
    }
    uint64_t seed;
    rng_system(&seed, sizeof seed);
    rng_seed(&self->rng, seed);
    rp_status status = RP_OK;
    for (; self->n < n && status == RP_OK; self->n += status == RP_OK) {
        struct lane_options lane = {.conn = client_shard(client, self->n),
                                    .name = own.name ? own.name : client_name(client),
                                    .columns = columns,
                                    .n_columns = n_columns,
                                    .writer = &own,
                                    .lanes = self->lanes,
                                    .n_lanes = n};
        self->lanes[self->n] = lane_new(&lane, err);
        status = self->lanes[self->n] ? RP_OK : RP_NO_MEMORY; /* err says more */
    }
    self->lane = self->lanes[0];
    self->choose = n > 1;
    if (status == RP_OK && await_open(self, timeout_ms, err) == RP_OK)
        return self;
    for (uint32_t i = 0; i < self->n; i++)
        lane_drop(&self->lanes[i]);
    free(self);
    return NULL;
}

rp_status rp_writer_destroy(rp_writer **writer, int64_t timeout_ms, rp_error *err)
{
    if (!writer || !*writer)
        return RP_OK;
    rp_writer *self = *writer;
    *writer = NULL;
    struct lane_flush flush = {0, timeout_ms, conn_deadline(timeout_ms)};
    rp_status status = RP_OK;
    if (!conn_is_foreign(self->lane->conn))
        status = lanes_flush(self->lanes, self->n, &flush, err);
    if (conn_is_stopped())
        flush.deadline_ns = 0;
    for (uint32_t i = 0; i < self->n; i++)
        lane_destroy(&self->lanes[i], flush.deadline_ns);
    free(self);
    return status;
}
