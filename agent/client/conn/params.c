/* Parameter slots: put, get, and what was received; and counters. */
#include "agent/client/conn/params.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "replay/params.h"
#include "replay/types.h"

#define MAX_NAMES 256u
/* Grace beyond the broker's own time-out. */
#define GRACE_MS 2000
/* With shards: how long one of them is asked at a time, and how long it may be silent beyond that. */
#define TURN_MS 500
#define SILENCE_MS 500

struct rp_params {
    struct conn_reply *reply; /* holds the payload frames */
    Replay__Reply *wire;      /* holds the names */
    uint32_t n;
    rp_param slots[];
};

rp_status params_check_name(const char *name, rp_error *err)
{
    size_t size = name ? strlen(name) : 0;
    if (size == 0 || size > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a name has 1 to %u bytes", RP_MAX_NAME);
    return RP_OK;
}

rp_status params_unexpected(rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "the broker's reply is not what was asked for");
}

/* ---- slots ---- */

void rp_params_release(rp_params **params)
{
    if (!params || !*params)
        return;
    rp_params *self = *params;
    *params = NULL;
    if (self->wire)
        conn_reply_unpacked_free(self->wire);
    conn_reply_destroy(&self->reply);
    free(self);
}

const rp_param *rp_params_slot(const rp_params *params, uint32_t i)
{
    return i < params->n ? &params->slots[i] : NULL;
}

/* Copies the names behind the slots, so that slots that are not in the reply have names too. */
static rp_params *params_new(const char *const *names, const uint64_t *have, uint32_t n)
{
    size_t text = 0;
    for (uint32_t i = 0; i < n; i++)
        text += strlen(names[i]) + 1;
    rp_params *self = calloc(1, sizeof *self + n * sizeof *self->slots + text);
    if (!self)
        return NULL;
    char *at = (char *)(self->slots + n);
    for (uint32_t i = 0; i < n; i++) {
        size_t size = strlen(names[i]) + 1;
        memcpy(at, names[i], size);
        self->slots[i].name = at;
        self->slots[i].version = have ? have[i] : 0;
        at += size;
    }
    self->n = n;
    return self;
}

/* Takes the slots that the reply lists, with one frame for each, in order. */
static rp_status params_fill(rp_params *self, struct conn_reply *reply, uint32_t *newer, rp_error *err)
{
    self->reply = reply;
    *newer = 0;
    RP_TRY(conn_reply_read(reply, &self->wire, err));
    if (self->wire->body_case == REPLAY__REPLY__BODY__NOT_SET)
        return RP_OK;
    if (self->wire->body_case != REPLAY__REPLY__BODY_PARAMS)
        return params_unexpected(err);
    const Replay__ParamsReply *params = self->wire->params;
    if (params->n_slots > reply->n_payload)
        return params_unexpected(err);
    for (size_t k = 0; k < params->n_slots; k++) {
        const Replay__SlotInfo *slot = params->slots[k];
        for (uint32_t i = 0; i < self->n; i++) {
            rp_param *out = &self->slots[i];
            if (out->data || strcmp(out->name, slot->name) != 0)
                continue;
            out->version = slot->version;
            out->age_ns = slot->age_ns;
            out->data = zmq_msg_data(&reply->payload[k]);
            out->bytes = zmq_msg_size(&reply->payload[k]);
            ++*newer;
        }
    }
    return RP_OK;
}

rp_status params_read(const char *const *names, const uint64_t *have, uint32_t n, struct conn_reply *reply,
                      rp_params **out, rp_error *err)
{
    *out = NULL;
    rp_params *self = params_new(names, have, n);
    if (!self) {
        conn_reply_destroy(&reply);
        return err_set(err, RP_NO_MEMORY, "no memory for %u slots", n);
    }
    uint32_t newer;
    rp_status status = params_fill(self, reply, &newer, err);
    if (status == RP_OK && newer == 0)
        status = err_set(err, RP_DEADLINE_EXCEEDED, "slot '%s'%s has no version newer than %llu", names[0],
                         n > 1 ? " and the others asked for" : "", (unsigned long long)(have ? have[0] : 0));
    if (status != RP_OK)
        rp_params_release(&self);
    *out = self;
    return status;
}

/* What is asked for. */
struct ask {
    const char *const *names;
    const uint64_t *have;
    uint32_t n;
};

/* Asks one shard, which answers within timeout_ms; silence_ms later the call ends. */
static rp_status get_from(struct conn *conn, const struct ask *ask, int64_t timeout_ms, int64_t silence_ms,
                          rp_params **out, rp_error *err)
{
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    body.n_name = ask->n;
    body.name = (char **)(uintptr_t)ask->names;
    body.n_have = ask->have ? ask->n : 0;
    body.have = (uint64_t *)(uintptr_t)ask->have;
    if (timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)timeout_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET,
                                   .body = &body.base,
                                   .timeout_ms = conn_with_grace(timeout_ms, silence_ms)};
    struct conn_reply *reply = NULL;
    RP_TRY(conn_call(conn, &message, &reply, err));
    return params_read(ask->names, ask->have, ask->n, reply, out, err);
}

static bool has_nothing(const struct ask *ask)
{
    for (uint32_t i = 0; ask->have && i < ask->n; i++)
        if (ask->have[i])
            return false;
    return true;
}

/* True if a slot's version is lower than the one that the caller has. */
static bool is_older(const rp_params *params, const struct ask *ask)
{
    for (uint32_t i = 0; ask->have && i < ask->n; i++)
        if (params->slots[i].data && params->slots[i].version < ask->have[i])
            return true;
    return false;
}

/* Asks the nearest shard, again and again until the time is over, and another one if that is silent. A client that has nothing
 * asks all in turn, because a shard that was restarted may have nothing either. A shard that has an older version than the client
 * may be slow: then shard 0, which gives the versions, knows whether they count anew. */
static rp_status get_from_shards(rp_client *client, const struct ask *ask, int64_t timeout_ms, rp_params **out,
                                 rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    bool older = false;
    for (uint32_t tries = 1;; tries++) {
        uint32_t shard = older ? 0 : client_nearest(client);
        int64_t left = conn_left_ms(deadline);
        rp_status status = get_from(client_shard(client, shard), ask, left < 0 || left > TURN_MS ? TURN_MS : left,
                                    SILENCE_MS, out, err);
        older = status == RP_OK && shard != 0 && is_older(*out, ask);
        if (older) {
            rp_params_release(out);
            continue;
        }
        if (status != RP_DEADLINE_EXCEEDED && status != RP_UNAVAILABLE)
            return status;
        bool others = has_nothing(ask) && tries < client_shards(client);
        if (conn_left_ms(deadline) == 0 && !others)
            return status;
        if (has_nothing(ask) || status == RP_UNAVAILABLE)
            client_move_nearest(client, shard);
    }
}

rp_status rp_params_get_many(rp_client *client, const char *const *names, const uint64_t *have, uint32_t n,
                             int64_t timeout_ms, rp_params **out, rp_error *err)
{
    *out = NULL;
    if (n == 0 || n > MAX_NAMES)
        return err_set(err, RP_INVALID_ARGUMENT, "%u names were given; it must be 1 to %u", n, MAX_NAMES);
    for (uint32_t i = 0; i < n; i++)
        RP_TRY(params_check_name(names[i], err));
    struct ask ask = {names, have, n};
    if (client_shards(client) > 1)
        return get_from_shards(client, &ask, timeout_ms, out, err);
    return get_from(client_conn(client), &ask, timeout_ms, GRACE_MS, out, err);
}

rp_status rp_params_get(rp_client *client, const char *name, uint64_t have, int64_t timeout_ms, rp_params **out,
                        rp_error *err)
{
    return rp_params_get_many(client, &name, &have, 1, timeout_ms, out, err);
}

/* ---- link ---- */

rp_status params_link_init(struct params_link *self, rp_client *client, const char *name, rp_error *err)
{
    RP_TRY(params_check_name(name, err));
    RP_TRY(conn_check_process(client_conn(client), err));
    *self = (struct params_link){.client = client, .name = strdup(name)};
    if (!self->name)
        return err_set(err, RP_NO_MEMORY, "no memory for the slot '%s'", name);
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->changed);
    return RP_OK;
}

void params_link_fini(struct params_link *self)
{
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    free(self->name);
}

rp_status params_link_take_error(struct params_link *self, const char *what, rp_error *err)
{
    rp_status status = self->status;
    self->status = RP_OK;
    if (status != RP_OK)
        err_set(err, status, "%s '%s': %s", what, self->name, self->error.text);
    return status;
}

void params_link_keep_error(struct params_link *self, const struct params_lane *lane, const rp_error *error)
{
    char title[300];
    if (self->status != RP_OK)
        return;
    self->status = (rp_status)error->status;
    self->error = *error;
    if (client_shards(self->client) > 1)
        err_prefix(&self->error, "%s", conn_title(lane->conn, title, sizeof title));
}

/* ---- lanes ---- */

void params_lane_open(struct params_lane *self, struct params_link *link, uint32_t shard,
                      const struct conn_part_ops *ops)
{
    *self = (struct params_lane){.part.ops = ops, .link = link, .conn = client_shard(link->client, shard)};
    conn_attach(self->conn, &self->part);
}

void params_lane_close(struct params_lane *self)
{
    if (self->conn)
        conn_detach(self->conn, &self->part);
}

static void set_up(struct params_lane *self, bool up)
{
    pthread_mutex_lock(&self->link->lock);
    self->up = up;
    pthread_cond_broadcast(&self->link->changed);
    pthread_mutex_unlock(&self->link->lock);
}

bool params_lane_up(struct params_lane *self, const struct conn_hello *hello)
{
    bool other = self->instance != 0 && self->instance != hello->instance;
    self->instance = hello->instance;
    self->next_ns = 0;
    set_up(self, true);
    return other;
}

void params_lane_down(struct conn_part *part)
{
    set_up((struct params_lane *)part, false);
}

bool params_lane_is_free(const struct params_lane *self, int64_t now_ns, int64_t *wake_ns)
{
    *wake_ns = !self->up || self->in_flight ? INT64_MAX : self->next_ns;
    return now_ns >= *wake_ns;
}

/* ---- counters ---- */

/* An rp_addition is the ticket of its request. */
static rp_addition *begin_addition(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, rp_error *err)
{
    if (params_check_name(name, err) != RP_OK || conn_check_process(client_conn(client), err) != RP_OK)
        return NULL;
    Replay__Counter body = REPLAY__COUNTER__INIT;
    body.name = (char *)(uintptr_t)name;
    body.add = add;
    struct conn_message message = {
        .field = REPLAY__REQUEST__BODY_COUNTER, .body = &body.base, .timeout_ms = timeout_ms};
    return (rp_addition *)conn_ticket_new(client_conn(client), &message, err);
}

rp_addition *rp_counter_begin(rp_client *client, const char *name, int64_t add, rp_error *err)
{
    return begin_addition(client, name, add, -1, err);
}

static rp_status read_value(const struct conn_reply *reply, int64_t *value, rp_error *err)
{
    rp_status status = conn_reply_status(reply, err);
    if (status != RP_OK)
        return status;
    uint64_t zigzag = 0;
    struct pb_reader reader = pb_reader(reply->view.data, reply->view.size);
    struct pb_field field;
    int more;
    while ((more = pb_next(&reader, &field)) == 1)
        if (field.number == 1 && field.wire == PB_VARINT)
            zigzag = field.value;
    if (more < 0 || reply->view.body != REPLAY__REPLY__BODY_COUNTER)
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply is not a counter's value");
    if (value)
        *value = (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
    return RP_OK;
}

rp_status rp_counter_end(rp_addition **addition, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    struct conn_ticket *ticket = (struct conn_ticket *)*addition;
    struct conn *conn = ticket->conn;
    int64_t deadline = timeout_ms == 0 ? 0 : conn_deadline(timeout_ms);
    if (conn_is_foreign(conn)) {
        *addition = NULL;
        return conn_check_process(conn, err);
    }
    int64_t start = conn_now();
    struct conn_reply *reply = conn_ticket_await(ticket, deadline);
    conn_waited_add(conn, conn_now() - start);
    if (!reply && !conn_is_stopped()) {
        char title[300];
        return err_set(err, RP_DEADLINE_EXCEEDED, "%s has not answered an addition within %lld ms",
                       conn_title(conn, title, sizeof title), (long long)timeout_ms);
    }
    rp_status status = reply ? read_value(reply, value, err) : conn_stopped(err);
    conn_reply_destroy(&reply);
    rp_counter_forget(addition);
    return status;
}

void rp_counter_forget(rp_addition **addition)
{
    if (!addition)
        return;
    struct conn_ticket *ticket = (struct conn_ticket *)*addition;
    *addition = NULL;
    conn_ticket_destroy(&ticket);
}

rp_status rp_counter_add(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, int64_t *value,
                         rp_error *err)
{
    rp_error own = {0};
    err = err ? err : &own;
    rp_addition *addition = begin_addition(client, name, add, timeout_ms, err);
    if (!addition)
        return (rp_status)err->status;
    /* The connection ends the request at its deadline, with a better explanation. */
    return rp_counter_end(&addition, -1, value, err);
}

rp_status rp_counter_read(rp_client *client, const char *name, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    return rp_counter_add(client, name, 0, timeout_ms, value, err);
}
