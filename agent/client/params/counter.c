/* Counters: additions, in one call or in two steps. */
#include <pthread.h>
#include <stdlib.h>

#include "agent/client/params/params.h"
#include "proto/base/error.h"

/* Shared by the caller and the request. */
struct rp_addition {
    struct conn *conn;
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t refs;
    struct conn_reply *reply; /* NULL: no reply yet */
};

static void addition_unref(struct rp_addition *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    conn_reply_destroy(&self->reply);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->done);
    free(self);
}

static void on_reply(void *ctx, struct conn_reply *reply)
{
    struct rp_addition *self = ctx;
    pthread_mutex_lock(&self->lock);
    self->reply = reply;
    pthread_cond_signal(&self->done);
    pthread_mutex_unlock(&self->lock);
    addition_unref(self);
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

/* Sends the addition. timeout_ms as in conn_send. */
static rp_status begin(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, rp_addition **out,
                       rp_error *err)
{
    *out = NULL;
    RP_TRY(params_check_name(name, err));
    RP_TRY(conn_check_process(client_conn(client), err));
    rp_addition *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for an addition");
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->done);
    self->conn = client_conn(client);
    self->refs = 2;
    Replay__Counter body = REPLAY__COUNTER__INIT;
    body.name = (char *)(uintptr_t)name;
    body.add = add;
    struct conn_message message = {
        .field = REPLAY__REQUEST__BODY_COUNTER, .body = &body.base, .timeout_ms = timeout_ms};
    conn_send(self->conn, &message, on_reply, self);
    *out = self;
    return RP_OK;
}

rp_addition *rp_counter_begin(rp_client *client, const char *name, int64_t add, rp_error *err)
{
    rp_addition *addition;
    begin(client, name, add, -1, &addition, err);
    return addition;
}

rp_status rp_counter_end(rp_addition **addition, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    rp_addition *self = *addition;
    int64_t deadline = conn_deadline(timeout_ms);
    if (conn_is_foreign(self->conn)) {
        *addition = NULL;
        return conn_check_process(self->conn, err);
    }
    if (timeout_ms == 0)
        conn_look(self->conn);
    int64_t start = conn_now();
    pthread_mutex_lock(&self->lock);
    while (!self->reply && timeout_ms != 0 && conn_wait(self->conn, &self->done, &self->lock, deadline))
        ;
    bool done = self->reply != NULL;
    pthread_mutex_unlock(&self->lock);
    conn_waited_add(self->conn, conn_now() - start);
    if (!done && conn_is_stopped()) {
        rp_counter_forget(addition);
        return conn_stopped(err);
    }
    if (!done) {
        char title[300];
        return err_set(err, RP_DEADLINE_EXCEEDED, "%s has not answered an addition within %lld ms",
                       conn_title(self->conn, title, sizeof title), (long long)timeout_ms);
    }
    rp_status status = read_value(self->reply, value, err);
    rp_counter_forget(addition);
    return status;
}

void rp_counter_forget(rp_addition **addition)
{
    if (addition && *addition && !conn_is_foreign((*addition)->conn))
        addition_unref(*addition);
    if (addition)
        *addition = NULL;
}

rp_status rp_counter_add(rp_client *client, const char *name, int64_t add, int64_t timeout_ms, int64_t *value,
                         rp_error *err)
{
    rp_addition *addition;
    RP_TRY(begin(client, name, add, timeout_ms, &addition, err));
    /* The connection ends the request at its deadline, with a better explanation. */
    return rp_counter_end(&addition, -1, value, err);
}

rp_status rp_counter_read(rp_client *client, const char *name, int64_t timeout_ms, int64_t *value, rp_error *err)
{
    return rp_counter_add(client, name, 0, timeout_ms, value, err);
}
