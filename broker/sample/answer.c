#include "broker/sample/answer.h"

#include <stdio.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/kept_samples.h"
#include "broker/sample/reply.h"
#include "broker/sample/samples.h"
#include "broker/table/table.h"
#include "proto/base/error.h"

static void unpark(struct waiter *self)
{
    const struct sample_parking *parking = &self->samples->parking;
    if (parking->ctx)
        parking->unpark(parking->ctx, self);
}

static void waiter_end(struct waiter *self)
{
    waiter_unqueue(self);
    unpark(self);
    wait_end(self->samples->peers, &self->wait);
    kept_samples_unreserve(self);
    /* The picks may have made room for inserts, and the next waiter of the queue may be served now. */
    table_mark(self->table);
    waiter_release(self);
}

static void fail(struct waiter *self, rp_status status, const char *text)
{
    request_fail(self->samples->peers, &self->wait.to, self->wait.id, status, text);
}

/* Returns why there are fewer items than asked for, where the caller has given no reason. */
static const char *explain_answer(const struct waiter *waiter, uint32_t n, char *out, size_t size)
{
    if (waiter->full)
        return "the batch is cut short: its items run over as many chunks as one reply may hold";
    if (!waiter->again || n >= waiter->want)
        return "";
    if (!waiter->gone)
        return "asked again: these are the items of the first answer";
    snprintf(
        out, size,
        "asked again: of the %u items of the first answer %u have been removed from the table since, to make room or "
        "by a request",
        n + waiter->gone, waiter->gone);
    return out;
}

/* Parks a waiter some of whose chunks are on disk. Its table has done its part: others may be served. False: all chunks are
 * in memory. */
static bool parks(struct waiter *waiter, const char *text)
{
    const struct sample_parking *parking = &waiter->samples->parking;
    if (!parking->ctx || !parking->park(parking->ctx, waiter, text))
        return false;
    if (waiter->queued) {
        waiter_unqueue(waiter);
        table_mark(waiter->table);
    }
    return true;
}

static __attribute__((noinline)) bool reply_traced(const struct waiter *waiter, const struct sample_reply *reply)
{
    struct loop *loop = waiter->samples->loop;
    int64_t start = loop_trace_start(loop);
    bool sent = reply_picks(waiter->samples, reply);
    loop_trace_end(
        loop, "reply", start,
        (struct trace_span){
            .who = waiter->wait.client, .id = waiter->wait.id, .count = reply->picks->n, .link = TRACE_REQUEST});
    return sent;
}

void sample_answer(struct waiter *waiter, const char *text)
{
    if (parks(waiter, text))
        return;
    char why[200];
    struct picks *picks = waiter->fetch ? &waiter->picks : kept_samples_keep(waiter, true);
    bool counts = !waiter->fetch && !waiter->again;
    struct sample_reply reply = {
        .to = &waiter->wait.to,
        .id = waiter->wait.id,
        .table = waiter->table,
        .picks = picks,
        .text = text ? text : explain_answer(waiter, picks->n, why, sizeof why),
        .partial = !waiter->fetch && picks->n < waiter->want,
        .paid = waiter->paid,
        .waited_ns = counts ? waiter->samples->loop->now_ns - waiter->wait.since_ns : -1,
    };
    bool sent =
        trace_on(&waiter->samples->loop->trace) ? reply_traced(waiter, &reply) : reply_picks(waiter->samples, &reply);
    if (!sent && !waiter->fetch && !waiter->wait.client) /* nobody can ask for them again */
        waiter->table->stats.orphaned_picks += picks->n;
    waiter_end(waiter);
}

void sample_fail(struct waiter *waiter, rp_status status, const char *text)
{
    if (!waiter->fetch)
        kept_samples_lose(waiter);
    sample_refuse(waiter, status, text);
}

void sample_refuse(struct waiter *waiter, rp_status status, const char *text)
{
    fail(waiter, status, text);
    waiter_end(waiter);
}

static void explain(const void *ctx, const struct wait *wait, struct wait_text *out)
{
    (void)ctx;
    const struct waiter *self = (const struct waiter *)wait;
    strncpy(out->table, self->table->name, sizeof out->table - 1);
    out->count = self->want;
    out->got = self->picks.n;
    if (self->park.state != PARK_NOT)
        self->samples->parking.explain(self, out->text, sizeof out->text);
    else
        waiter_explain(self, out->text, sizeof out->text);
}

void sample_expire(struct waiter *waiter)
{
    struct wait_text why = {0};
    if (waiter->park.state != PARK_NOT)
        return; /* it has all its items, and is answered as soon as their data is read */
    explain(NULL, &waiter->wait, &why);
    if (waiter->picks.n > 0)
        sample_answer(waiter, why.text);
    else
        sample_refuse(waiter, RP_DEADLINE_EXCEEDED, why.text);
}

static void expire(void *ctx, struct wait *wait)
{
    (void)ctx;
    sample_expire((struct waiter *)wait);
}

/* The connection is lost, or the broker stops: the picks are kept, and a retry continues from them. */
static void cancel(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    (void)ctx;
    struct waiter *self = (struct waiter *)wait;
    unpark(self);
    kept_samples_keep(self, false);
    sample_refuse(self, status, text);
}

static const struct wait_ops sample_ops = {"sample", expire, cancel, explain};

static void fetch_expire(void *ctx, struct wait *wait)
{
    (void)ctx;
    (void)wait; /* it has no deadline */
}

static void fetch_cancel(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    (void)ctx;
    sample_refuse((struct waiter *)wait, status, text);
}

static const struct wait_ops fetch_ops = {"fetch", fetch_expire, fetch_cancel, explain};

struct waiter *sample_of(struct wait *wait)
{
    return wait->ops == &sample_ops ? (struct waiter *)wait : NULL;
}

void sample_give_up(struct waiter *waiter)
{
    /* Items that have left their table for this sample are sent all the same: they are nowhere else. */
    if (waiter->picks.n && (waiter->table->one_by_one || waiter->again)) {
        sample_answer(waiter, "cancelled by the client");
        return;
    }
    unpark(waiter);
    if (waiter->picks.n) {
        log_line(LEVEL_WARN, "B0304", "sampler gave up with items picked", "table=%s picks=%u", waiter->table->name,
                 waiter->picks.n);
        kept_samples_lose(waiter);
    }
    sample_refuse(waiter, RP_CANCELLED, "cancelled by the client");
}

static bool serve(struct waiter *self, bool *progress)
{
    uint32_t before = self->picks.n;
    waiter_fill(self);
    *progress |= self->picks.n > before;
    if (!waiter_is_done(self))
        return false;
    sample_answer(self, NULL);
    return true;
}

rp_status sample_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err)
{
    struct peers *peers = waiter->samples->peers;
    waiter->serve = serve;
    wait_init(&waiter->wait, &sample_ops, NULL);
    rp_status status = wait_begin(peers, &waiter->wait, request, timeout_ms, err);
    if (status == RP_OK && !kept_samples_reserve(waiter)) {
        wait_end(peers, &waiter->wait);
        status = err_set(err, RP_NO_MEMORY, "no memory to keep a sample of %u items", waiter->want);
    }
    if (status != RP_OK) {
        kept_samples_unreserve(waiter);
        waiter_release(waiter);
    }
    return status;
}

rp_status fetch_begin(struct waiter *waiter, const struct request *request, rp_error *err)
{
    waiter->fetch = true;
    wait_init(&waiter->wait, &fetch_ops, NULL);
    rp_status status = wait_begin(waiter->samples->peers, &waiter->wait, request, WAIT_FOREVER, err);
    if (status != RP_OK)
        waiter_release(waiter);
    return status;
}
