#include "agent/client/sampler/demand.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"

/* A broker that is there answers in time by itself. One that has not after so long is given up. */
#define GRACE_NS (10 * NS_PER_S)
/* How often a caller whose time has passed looks whether the connection still stands. */
#define LOOK_NS (20 * NS_PER_MS)

struct demand {
    struct conn *conn;
    char *table;
    rp_sampler_options options;
    struct batch_pool *pool;
    struct batch_decoder *decoder;
    rp_sampler_stats stats;
    pthread_mutex_t lock; /* guards the reply */
    pthread_cond_t arrived;
    struct conn_reply *reply;
    struct conn_reply *kept; /* there was no memory to decode it: tried again at the next call */
    uint32_t kept_count;
    struct rp_batch *rest; /* of the last reply: batches that were not taken yet */
};

struct demand *demand_new(struct conn *conn, const char *table, const rp_sampler_options *options)
{
    struct demand *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    struct batch_options decode = {.beta = options->beta, .max_bytes = options->max_bytes};
    self->conn = conn;
    self->options = *options;
    self->table = strdup(table);
    self->pool = batch_pool_new(2);
    self->decoder = self->pool ? batch_decoder_new(self->pool, &decode) : NULL;
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->arrived);
    if (!self->table || !self->decoder)
        demand_destroy(&self);
    return self;
}

void demand_destroy(struct demand **self)
{
    struct demand *demand = *self;
    if (!demand)
        return;
    *self = NULL;
    conn_reply_destroy(&demand->kept);
    batch_list_release(&demand->rest);
    batch_decoder_destroy(&demand->decoder);
    batch_pool_unref(&demand->pool);
    pthread_mutex_destroy(&demand->lock);
    pthread_cond_destroy(&demand->arrived);
    free(demand->table);
    free(demand);
}

struct batch_pool *demand_pool(struct demand *self)
{
    return self->pool;
}

void demand_get_stats(const struct demand *self, rp_sampler_stats *out)
{
    *out = self->stats;
}

/* ---- one request ---- */

static void on_reply(void *ctx, struct conn_reply *reply)
{
    struct demand *self = ctx;
    pthread_mutex_lock(&self->lock);
    self->reply = reply;
    pthread_cond_signal(&self->arrived);
    pthread_mutex_unlock(&self->lock);
}

static uint64_t send_request(struct demand *self, uint32_t count, int64_t timeout_ms)
{
    Replay__Sample body = REPLAY__SAMPLE__INIT;
    body.table = self->table;
    body.count = count;
    body.distinct = self->options.distinct != 0;
    body.flexible = self->options.flexible != 0;
    body.whole = self->options.whole != 0;
    if (timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)timeout_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_SAMPLE, .body = &body.base, .timeout_ms = -1};
    return conn_send(self->conn, &message, on_reply, self);
}

/* When to look again, or 0: the request is to be given up. */
static int64_t look_again(struct demand *self, int64_t deadline)
{
    int64_t now = conn_now();
    if (now < deadline)
        return deadline;
    if (now - deadline >= GRACE_NS || conn_state(self->conn) != RP_CLIENT_CONNECTED)
        return 0;
    return now + LOOK_NS;
}

/* Waits for the reply: every request gets one, those that were given up as well. */
static struct conn_reply *await_reply(struct demand *self, uint64_t id, int64_t deadline)
{
    int64_t until = deadline;
    pthread_mutex_lock(&self->lock);
    while (!self->reply) {
        if (conn_wait(self->conn, &self->arrived, &self->lock, until) || self->reply)
            continue;
        pthread_mutex_unlock(&self->lock);
        until = look_again(self, deadline);
        if (until == 0) {
            conn_cancel(self->conn, id);
            until = deadline = INT64_MAX;
        }
        pthread_mutex_lock(&self->lock);
    }
    struct conn_reply *reply = self->reply;
    self->reply = NULL;
    pthread_mutex_unlock(&self->lock);
    return reply;
}

/* ---- a batch ---- */

static rp_status no_batch(struct demand *self, int64_t timeout_ms, const char *why, rp_error *err)
{
    char link[256];
    conn_describe(self->conn, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no batch from table '%s' within %lld ms: %s", self->table,
                   (long long)timeout_ms, link[0] ? link : why);
}

static rp_batch *take_rest(struct demand *self)
{
    rp_batch *batch = batch_list_take(&self->rest);
    self->stats.batches++;
    self->stats.items += batch->info.n;
    return batch;
}

static rp_status decode(struct demand *self, struct conn_reply *reply, uint32_t count, rp_batch **batch, rp_error *err)
{
    int64_t start = conn_now();
    RP_TRY(batch_decode_reply(self->decoder, reply, &self->rest, err));
    self->stats.decode_ns += (uint64_t)(conn_now() - start);
    uint64_t n = batch_list_items(self->rest);
    if (n > 0 && n <= count) {
        *batch = take_rest(self);
        return RP_OK;
    }
    batch_list_release(&self->rest);
    return err_set(err, RP_BAD_MESSAGE, "%llu items came for a request of %u", (unsigned long long)n, count);
}

rp_status demand_next(struct demand *self, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    if (self->rest) {
        *batch = take_rest(self);
        return RP_OK;
    }
    uint64_t max = self->options.max_samples, left = max - self->stats.items;
    uint32_t count = max && left < self->options.batch_size ? (uint32_t)left : self->options.batch_size;
    if (count == 0)
        return err_set(err, RP_END_OF_STREAM, "all of the %llu samples asked for were given", (unsigned long long)max);
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn_reply *reply = self->kept;
    if (reply)
        count = self->kept_count;
    else
        reply = await_reply(self, send_request(self, count, timeout_ms), deadline);
    self->kept = NULL;
    rp_error why = {0};
    rp_status status = conn_reply_status(reply, &why);
    if (status == RP_OK) {
        status = decode(self, reply, count, batch, err);
        if (status == RP_NO_MEMORY) { /* what it holds may be nowhere else */
            self->kept = reply;
            self->kept_count = count;
            return status;
        }
    } else if (status == RP_DEADLINE_EXCEEDED || status == RP_CANCELLED)
        /* Cancelled: by us, after the time had passed, or by a broker that shuts down and may come back. */
        status = no_batch(self, timeout_ms, why.text, err);
    else
        status = err_set(err, status, "%s", why.text);
    conn_reply_destroy(&reply);
    return status;
}
