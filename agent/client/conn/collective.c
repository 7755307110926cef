/* Counters that all clients share, and sums over parallel learners: replay/collective.h. Replies are read without memory: an
 * addition that was carried out must not look failed. */
#include "replay/collective.h"

#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"
#include "proto/base/trace.h"
#include "replay/types.h"

/* ---- counters */

/* An rp_addition is the ticket of its request. */
static rp_addition *begin_addition(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, rp_error *err)
{
    if (client_check_name("name", name, err) != RP_OK || conn_check_process(client_conn(client), err) != RP_OK)
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
    rp_addition *self = begin_addition(client, name, add, -1, err);
    if (self)
        conn_hold(client_conn(client));
    return self;
}

static rp_status read_value(const struct conn_reply *reply, int64_t *value, rp_error *err)
{
    RP_TRY(conn_reply_status(reply, err));
    uint64_t numbers[2]; /* the value is zigzag encoded */
    RP_TRY(conn_reply_numbers(reply, REPLAY__REPLY__BODY_COUNTER, numbers, 2, err));
    if (value)
        *value = (int64_t)(numbers[1] >> 1) ^ -(int64_t)(numbers[1] & 1);
    return RP_OK;
}

static rp_status end_addition(rp_addition **addition, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    struct conn_ticket *ticket = (struct conn_ticket *)*addition;
    struct conn *conn = ticket->conn;
    int64_t deadline = timeout_ms == 0 ? 0 : conn_deadline(timeout_ms);
    if (conn_is_foreign(conn)) {
        *addition = NULL;
        return conn_check_process(conn, err);
    }
    int64_t start = clock_ns();
    struct conn_reply *reply = conn_ticket_await(ticket, deadline);
    conn_waited_add(conn, clock_ns() - start);
    if (!reply && !conn_is_stopped()) {
        return err_set(err, RP_DEADLINE_EXCEEDED, "%s has not answered an addition within %lld ms", conn_title(conn),
                       (long long)timeout_ms);
    }
    rp_status status = reply ? read_value(reply, value, err) : conn_stopped(err);
    conn_reply_destroy(&reply);
    *addition = NULL;
    conn_ticket_destroy(&ticket);
    return status;
}

rp_status rp_counter_end(rp_addition **addition, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    if (!addition || !*addition)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no addition in flight");
    struct conn *conn = ((struct conn_ticket *)*addition)->conn;
    rp_status status = end_addition(addition, timeout_ms, value, err);
    if (!*addition && !conn_is_foreign(conn))
        conn_let_go(conn);
    return status;
}

void rp_counter_forget(rp_addition **addition)
{
    if (!addition || !*addition)
        return;
    struct conn_ticket *ticket = (struct conn_ticket *)*addition;
    *addition = NULL;
    if (!conn_is_foreign(ticket->conn))
        conn_let_go(ticket->conn);
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
    return end_addition(&addition, -1, value, err);
}

rp_status rp_counter_read(rp_client *client, const char *name, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    return rp_counter_add(client, name, 0, timeout_ms, value, err);
}

/* ---- reduce: one member of a group
 *
 * A vector that was sent stays in its round even if the call that sent it times out, so the request outlives the call, and the next
 * call goes on waiting. */

struct rp_reduce {
    struct conn *conn;
    char group[RP_MAX_NAME + 1];
    uint64_t member;
    uint64_t round;              /* the round to add to next */
    bool joined;                 /* false: the broker may not know this member, and round may be another broker's */
    struct conn_ticket *pending; /* the vector that is in its round; NULL: none */
};

static Replay__Reduce body_of(rp_reduce *self, Replay__Reduce__Op op)
{
    Replay__Reduce body = REPLAY__REDUCE__INIT;
    body.group = self->group;
    body.member = self->member;
    body.op = op;
    body.round = self->round;
    return body;
}

/* The numbers of a ReduceReply, by field. */
enum { REPLY_ROUND = 1, REPLY_CONTRIBUTORS, REPLY_MEMBERS, REPLY_COUNTED, REPLY_FIELDS };

static rp_status read_reply(const struct conn_reply *reply, uint64_t numbers[REPLY_FIELDS], rp_error *err)
{
    return conn_reply_numbers(reply, REPLAY__REPLY__BODY_REDUCE, numbers, REPLY_FIELDS, err);
}

/* Sends JOIN or LEAVE. */
static rp_status membership(rp_reduce *self, Replay__Reduce__Op op, int64_t timeout_ms, rp_error *err)
{
    Replay__Reduce body = body_of(self, op);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_REDUCE, .body = &body.base, .timeout_ms = timeout_ms};
    struct conn_reply *reply = NULL;
    RP_TRY(conn_call(self->conn, &message, &reply, err));
    uint64_t numbers[REPLY_FIELDS];
    rp_status status = read_reply(reply, numbers, err);
    if (status == RP_OK)
        self->round = numbers[REPLY_ROUND];
    self->joined = status == RP_OK && op == REPLAY__REDUCE__OP__JOIN;
    conn_reply_destroy(&reply);
    return status;
}

rp_reduce *rp_reduce_join(rp_client *client, const char *group, int64_t timeout_ms, rp_error *err)
{
    if (client_check_name("group's name", group, err) != RP_OK)
        return NULL;
    rp_reduce *self = calloc(1, sizeof *self);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory to join group '%s'", group);
    self->conn = client_conn(client);
    strcpy(self->group, group);
    rng_system(&self->member, sizeof self->member);
    if (membership(self, REPLAY__REDUCE__OP__JOIN, timeout_ms, err) == RP_OK) {
        conn_hold(self->conn);
        return self;
    }
    free(self);
    return NULL;
}

static rp_status send_vector(rp_reduce *self, const float *values, uint64_t n, int64_t round_ms, rp_error *err)
{
    zmq_msg_t payload;
    if (n > SIZE_MAX / sizeof *values || !message_copy(&payload, values, (size_t)n * sizeof *values))
        return err_set(err, RP_NO_MEMORY, "no memory for a vector of %llu floats", (unsigned long long)n);
    Replay__Reduce body = body_of(self, REPLAY__REDUCE__OP__ADD);
    if (round_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__REDUCE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)round_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_REDUCE,
                                   .body = &body.base,
                                   .payload = &payload,
                                   .n_payload = 1,
                                   .timeout_ms = -1};
    self->pending = conn_ticket_new(self->conn, &message, err);
    zmq_msg_close(&payload);
    return self->pending ? RP_OK : RP_NO_MEMORY;
}

static rp_status read_sum(rp_reduce *self, struct conn_reply *reply, float *values, uint64_t n, rp_reduced *out,
                          rp_error *err)
{
    uint64_t numbers[REPLY_FIELDS];
    RP_TRY(read_reply(reply, numbers, err));
    if (reply->n_payload != 1 || zmq_msg_size(&reply->payload[0]) != n * sizeof *values)
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply holds no sum of %llu floats", (unsigned long long)n);
    memcpy(values, zmq_msg_data(&reply->payload[0]), (size_t)n * sizeof *values);
    *out = (rp_reduced){.round = numbers[REPLY_ROUND],
                        .contributors = (uint32_t)numbers[REPLY_CONTRIBUTORS],
                        .members = (uint32_t)numbers[REPLY_MEMBERS],
                        .counted = numbers[REPLY_COUNTED] != 0};
    self->round = numbers[REPLY_ROUND] + 1;
    return RP_OK;
}

/* Joins again after an answer that says that this client is no longer a member. */
static rp_status rejoin(rp_reduce *self, int64_t timeout_ms, rp_error *err)
{
    rp_error why = {0};
    uint64_t missed = self->round;
    self->joined = false;
    rp_status status = membership(self, REPLAY__REDUCE__OP__JOIN, timeout_ms, &why);
    if (status == RP_OK)
        err_prefix(err, "joined again at round %llu, round %llu was missed", (unsigned long long)self->round,
                   (unsigned long long)missed);
    else
        err_prefix(err, "could not join again (%.120s)", why.text);
    return RP_FAILED_PRECONDITION;
}

rp_status rp_reduce_add(rp_reduce *reduce, float *values, uint64_t n, int64_t round_ms, int64_t timeout_ms,
                        rp_reduced *out, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    rp_error own = {0};
    rp_reduced ignored;
    if (!values || n == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a vector needs at least one value");
    RP_TRY(conn_check_process(reduce->conn, err));
    if (!err)
        err = &own;
    if (!reduce->pending && !reduce->joined)
        RP_TRY(membership(reduce, REPLAY__REDUCE__OP__JOIN, conn_left_ms(deadline), err));
    if (!reduce->pending)
        RP_TRY(send_vector(reduce, values, n, round_ms, err));
    int64_t start = trace_now(conn_trace(reduce->conn));
    struct conn_reply *reply = conn_ticket_await(reduce->pending, deadline);
    if (reply)
        conn_ticket_destroy(&reduce->pending);
    trace_add_since(conn_trace(reduce->conn), "wait for a sum", NULL, start, 0);
    if (!reply && conn_is_stopped())
        return conn_stopped(err);
    if (!reply) {
        char link[256];
        conn_describe(reduce->conn, link, sizeof link);
        return err_set(err, RP_DEADLINE_EXCEEDED, "round %llu of group '%s' is not complete after %lld ms%s%s",
                       (unsigned long long)reduce->round, reduce->group, (long long)timeout_ms, link[0] ? ": " : "",
                       link);
    }
    rp_reduced *result = out ? out : &ignored;
    rp_status status = conn_reply_status(reply, err);
    if (status == RP_OK)
        status = read_sum(reduce, reply, values, n, result, err);
    else if (reply->answered && (status == RP_NOT_FOUND || status == RP_FAILED_PRECONDITION))
        status = rejoin(reduce, conn_left_ms(deadline), err);
    conn_reply_destroy(&reply);
    /* The round had closed before this vector arrived, so this client has left the group. It has the sum all the same; if it
     * cannot join at once, the next add does. */
    if (status == RP_OK && !result->counted) {
        reduce->joined = false;
        (void)membership(reduce, REPLAY__REDUCE__OP__JOIN, conn_left_ms(deadline), NULL);
    }
    return status;
}

rp_status rp_reduce_leave(rp_reduce **reduce, int64_t timeout_ms, rp_error *err)
{
    if (!reduce || !*reduce)
        return RP_OK;
    rp_reduce *self = *reduce;
    *reduce = NULL;
    if (conn_is_foreign(self->conn)) {
        free(self);
        return RP_OK;
    }
    if (self->pending)
        conn_cancel(self->conn, self->pending->id);
    rp_status status = membership(self, REPLAY__REDUCE__OP__LEAVE, timeout_ms, err);
    conn_ticket_destroy(&self->pending);
    conn_let_go(self->conn);
    free(self);
    return status == RP_NOT_FOUND ? RP_OK : status;
}
