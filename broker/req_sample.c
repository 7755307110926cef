/* Sample, cancel and fetch. */
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/sample.h"
#include "broker/session.h"
#include "proto/error.h"

static rp_status find_table(struct broker *broker, const struct wire_string *name, struct table **out, rp_error *err)
{
    *out = broker_table(broker, name->data, name->size);
    return *out ? RP_OK
                : err_set(err, RP_NOT_FOUND, "no table '%.*s'", (int)(name->size < 64 ? name->size : 64), name->data);
}

static void unqueue(struct waiter *self)
{
    if (!self->queued)
        return;
    *self->prev = self->next;
    if (self->next)
        self->next->prev = self->prev;
    else
        self->table->waiters_end = self->prev;
    self->table->n_waiters--;
    self->queued = false;
}

static void waiter_end(struct broker *broker, struct waiter *self)
{
    unqueue(self);
    wait_end(broker, &self->wait);
    /* What was picked may have made room for inserts, and the next in the queue may be served now. */
    pump_mark(self->table);
    waiter_release(broker, self);
}

void sample_answer(struct broker *broker, struct waiter *waiter, const char *text)
{
    if (!text)
        text = waiter->full ? "the items run over so many chunks that a reply holds no more of them" : "";
    reply_picks(broker, &waiter->wait.to, waiter->wait.id, waiter->table, &waiter->picks, text,
                waiter->picks.n < waiter->want, broker->now_ns - waiter->wait.since_ns);
    waiter_end(broker, waiter);
}

static void sample_explain(const struct broker *broker, const struct wait *wait, struct wait_text *out)
{
    (void)broker;
    const struct waiter *self = (const struct waiter *)wait;
    strncpy(out->table, self->table->name, sizeof out->table - 1);
    out->count = self->want;
    out->got = self->picks.n;
    waiter_explain(self, out->text, sizeof out->text);
}

static void sample_expire(struct broker *broker, struct wait *wait)
{
    struct waiter *self = (struct waiter *)wait;
    struct wait_text why = {0};
    sample_explain(broker, wait, &why);
    if (self->picks.n > 0) {
        sample_answer(broker, self, why.text);
        return;
    }
    request_send(broker, &wait->to, wait->id, RP_DEADLINE_EXCEEDED, why.text, 0, NULL, NULL, 0);
    waiter_end(broker, self);
}

static void sample_cancel(struct broker *broker, struct wait *wait, rp_status status, const char *text)
{
    struct waiter *self = (struct waiter *)wait;
    if (self->picks.n) {
        self->table->stats.orphaned_picks += self->picks.n;
        log_line(LEVEL_WARN, "B0304", "sampler gave up with items picked", "table=%s picks=%u", self->table->name,
                 self->picks.n);
    }
    request_send(broker, &wait->to, wait->id, status, text, 0, NULL, NULL, 0);
    waiter_end(broker, self);
}

static const struct wait_ops sample_ops = {"sample", sample_expire, sample_cancel, sample_explain};

static rp_status sample_check(const struct wire_sample *ask, const struct table *table, rp_error *err)
{
    if (ask->count == 0 || ask->count > BROKER_MAX_BATCH)
        return err_set(err, RP_INVALID_ARGUMENT, "count is %u, a sample takes 1 to %u items", ask->count,
                       BROKER_MAX_BATCH);
    if (ask->whole && ask->flexible)
        return err_set(err, RP_INVALID_ARGUMENT, "a sample can not be both whole (all or nothing) and flexible");
    if (!ask->distinct)
        return RP_OK;
    if (!table->sampler_ops->pick_distinct)
        return err_set(err, RP_UNSUPPORTED, "the sampler '%s' of table '%s' can not sample without replacement",
                       table->sampler_ops->name, table->name);
    if (ask->count > table->config->max_size)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch of %u without replacement can never be filled: table '%s' has max_size %lld",
                       ask->count, table->name, (long long)table->config->max_size);
    return RP_OK;
}

static void enqueue(struct table *table, struct waiter *waiter)
{
    waiter->next = NULL;
    waiter->prev = table->waiters_end;
    *table->waiters_end = waiter;
    table->waiters_end = &waiter->next;
    table->n_waiters++;
    waiter->queued = true;
}

rp_status req_sample(struct broker *broker, struct request *request, rp_error *err)
{
    struct wire_sample ask;
    struct table *table;
    RP_TRY(wire_read_sample(request->head.data, request->head.size, &ask, err));
    RP_TRY(find_table(broker, &ask.table, &table, err));
    RP_TRY(sample_check(&ask, table, err));
    if (broker->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    struct peer *peer = peer_find(broker, &request->from);
    if (peer && peer_is_full(broker, peer))
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "this client has left more than %lld bytes of replies unread: read them before asking for more",
                       (long long)broker->config->peer_backlog_bytes);
    struct waiter *waiter = waiter_new(broker, table);
    if (!waiter)
        return err_set(err, RP_NO_MEMORY, "no memory for a sample of %u items", ask.count);
    rp_status status = wait_begin(broker, &waiter->wait, &sample_ops, request, ask.has_timeout, ask.timeout_ms, err);
    if (status != RP_OK) {
        waiter_release(broker, waiter);
        return status;
    }
    waiter->want = ask.count;
    waiter->flexible = ask.flexible;
    waiter->whole = ask.whole;
    waiter->distinct = ask.distinct;
    if (ask.distinct && ++table->stamp == 0)
        table->stamp = 1;
    waiter->stamp = table->stamp;
    request->answered = true;
    if (!table->waiters) {
        /* If the batch fills at once, nothing can leave the table before the reply is made. */
        waiter->picks.borrowed = !table->one_by_one;
        waiter_fill(waiter);
        if (waiter->picks.n)
            pump_mark(table);
    }
    if (!waiter_is_done(waiter))
        picks_own(&waiter->picks, broker);
    if (waiter_is_done(waiter))
        sample_answer(broker, waiter, NULL);
    else if (ask.has_timeout && ask.timeout_ms == 0)
        sample_expire(broker, &waiter->wait);
    else
        enqueue(table, waiter);
    return RP_OK;
}

rp_status req_cancel(struct broker *broker, struct request *request, rp_error *err)
{
    (void)err;
    const Replay__Cancel *ask = (const Replay__Cancel *)request->body;
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    for (size_t i = 0; i < ask->n_id && i < BROKER_MAX_BATCH; i++) {
        struct wait *wait = wait_find(broker, request->head.client, ask->id[i]);
        if (wait) {
            wait->ops->cancel(broker, wait, RP_CANCELLED, "cancelled by the client");
            reply.applied++;
        } else {
            reply.missing++;
        }
    }
    request_reply(broker, request, RP_OK, "", 20, &reply.base, NULL, 0);
    return RP_OK;
}

rp_status req_fetch(struct broker *broker, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(wire_read_keys(request->head.data, request->head.size, false, &ask, err));
    RP_TRY(find_table(broker, &ask.table, &table, err));
    if (ask.key.n > BROKER_MAX_KEYS)
        return err_set(err, RP_INVALID_ARGUMENT, "a fetch takes at most %u keys, not %u", BROKER_MAX_KEYS, ask.key.n);
    struct picks picks = {.table_size = table->in.size};
    bool ok = true;
    for (uint32_t i = 0; ok && i < ask.key.n; i++) {
        uint32_t slot = table_find(table, pb_u64(&ask.key, i));
        if (slot != KEYMAP_NONE)
            ok = picks_add(&picks, table, slot, 0);
    }
    if (ok && picks.n)
        reply_picks(broker, &request->from, request->head.id, table, &picks, "", false, -1);
    request->answered = ok && picks.n;
    bool none = ok && !picks.n;
    picks_clear(&picks, broker);
    picks_fini(&picks);
    if (none)
        return err_set(err, RP_NOT_FOUND, "none of the %u keys is in table '%s'", ask.key.n, table->name);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", ask.key.n);
}
