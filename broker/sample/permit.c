#include "broker/sample/permit.h"

#include <stdio.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/table/table.h"
#include "proto/base/error.h"

/* How a table is sampled over shards. */
enum { DEAL_PERMITS, DEAL_MASS, DEAL_QUEUE };

static uint32_t deal_of(const struct table *table)
{
    bool once = table->config->max_times_sampled == 1 && strcmp(table->sampler_ops->name, "fifo") == 0;
    enum limiter_kind kind = table->limiter.kind;
    if (kind == LIMITER_QUEUE || kind == LIMITER_STACK || once)
        return DEAL_QUEUE;
    return limiter_takes_permits(&table->limiter) ? DEAL_PERMITS : DEAL_MASS;
}

rp_status permit_check(const struct table *table, const char *what, rp_error *err)
{
    enum limiter_kind kind = table->limiter.kind;
    return kind == LIMITER_QUEUE || kind == LIMITER_STACK
               ? err_set(
                     err, RP_FAILED_PRECONDITION,
                     "table '%s' has the limiter '%s', which counts the items that are taken: it has no %s. Ask for "
                     "plain samples",
                     table->name, limiter_kind_name(kind), what)
               : RP_OK;
}

void permit_state(const struct table *table, Replay__PermitReply *out)
{
    out->deal = deal_of(table);
    out->room = table_sampleable(table, UINT32_MAX);
    out->mass = table_mass(table);
    out->size = table->in.size;
    out->min_size = table->limiter.kind == LIMITER_NONE ? 0 : (uint64_t)table->limiter.min_size_part;
    out->buffer = limiter_span(&table->limiter);
    out->removes = table->one_by_one;
}

static void permit_end(struct waiter *self)
{
    waiter_unqueue(self);
    wait_end(self->samples->peers, &self->wait);
    table_mark(self->table); /* inserts may have room, and the next waiter of the queue may be served now */
    waiter_release(self);
}

static void refuse(struct waiter *self, rp_status status, const char *text)
{
    request_fail(self->samples->peers, &self->wait.to, self->wait.id, status, text);
    permit_end(self);
}

/* Charges the limiter, in one record of the journal with the answer. A table without a ratio counts its picks, and not its
 * permits. */
static void charge(struct table *table, uint32_t n)
{
    if (!limiter_takes_permits(&table->limiter))
        return;
    limiter_sampled(&table->limiter, n);
    table->stats.permits += n;
    EFFECT(table->loop, together, 2 * KEPT_REPLY_BYTES);
    EFFECT(table->loop, charge, table, n);
}

/* Charges and answers: a retry after a crash gets this answer. */
static void permit_grant(struct waiter *self, uint32_t n)
{
    struct table *table = self->table;
    struct peers *peers = self->samples->peers;
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    if (!kept_replies_reserve(&peers->kept_replies, KEPT_PERMITS)) { /* a retry would be charged once more */
        refuse(self, RP_NO_MEMORY, "no memory to remember a permit");
        return;
    }
    charge(table, n);
    permit_state(table, &reply);
    reply.granted = n;
    request_finish(peers, &self->wait, REPLAY__REPLY__BODY_PERMIT, &reply.base);
    permit_end(self);
}

bool permit_serve(struct waiter *self, bool *progress)
{
    const struct table *table = self->table;
    uint64_t least = self->flexible ? 1 : limiter_most_at_once(&table->limiter, self->want);
    uint64_t n = table_sampleable(table, self->want);
    if (n < least)
        return false;
    *progress = true;
    permit_grant(self, (uint32_t)n);
    return true;
}

static void explain(const void *ctx, const struct wait *wait, struct wait_text *out)
{
    (void)ctx;
    const struct waiter *self = (const struct waiter *)wait;
    const struct table *table = self->table;
    uint64_t least = self->flexible ? 1 : limiter_most_at_once(&table->limiter, self->want);
    strncpy(out->table, table->name, sizeof out->table - 1);
    out->count = self->want;
    int used = snprintf(out->text, sizeof out->text, "table '%s': room for %llu of %u samples; ", table->name,
                        (unsigned long long)table_sampleable(table, self->want), self->want);
    if (used < 0 || (size_t)used >= sizeof out->text)
        return;
    char *rest = out->text + used;
    size_t room = sizeof out->text - (size_t)used;
    limiter_explain_sample(&table->limiter, least, rest, room);
    if (!rest[0])
        snprintf(rest, room, "waits for its turn");
}

void permit_expire(struct waiter *self)
{
    const struct table *table = self->table;
    bool first = !table->waiters || table->waiters == self; /* those before it in the queue get what there is */
    uint64_t n = first ? table_sampleable(table, self->want) : 0;
    if (n > 0) {
        permit_grant(self, (uint32_t)n);
        return;
    }
    struct wait_text why = {0};
    explain(NULL, &self->wait, &why);
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    permit_state(table, &reply);
    request_send(self->samples->peers, &self->wait.to, self->wait.id,
                 &(struct answer){.status = RP_DEADLINE_EXCEEDED,
                                  .text = why.text,
                                  .field = REPLAY__REPLY__BODY_PERMIT,
                                  .body = &reply.base});
    permit_end(self);
}

static void expire(void *ctx, struct wait *wait)
{
    (void)ctx;
    permit_expire((struct waiter *)wait);
}

static void cancel(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    (void)ctx;
    refuse((struct waiter *)wait, status, text);
}

static const struct wait_ops permit_ops = {"permit", expire, cancel, explain};

rp_status permit_begin(struct waiter *self, const struct request *request, uint64_t timeout_ms, rp_error *err)
{
    self->serve = permit_serve;
    wait_init(&self->wait, &permit_ops, NULL);
    rp_status status = wait_begin(self->samples->peers, &self->wait, request, timeout_ms, err);
    if (status != RP_OK)
        waiter_release(self);
    return status;
}
