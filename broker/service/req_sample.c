/* Sample, cancel and fetch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/sample/recall.h"
#include "broker/sample/reply.h"
#include "broker/sample/samples.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

static rp_status find_table(struct broker *broker, const struct wire_string *name, struct table **out, rp_error *err)
{
    *out = tables_find(&broker->tables, name->data, name->size);
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
    spill_unpark(broker->spill, self);
    wait_end(&broker->peers, &self->wait);
    recall_release(broker, self);
    /* What was picked may have made room for inserts, and the next in the queue may be served now. */
    table_mark(self->table);
    waiter_release(broker, self);
}

/* Why there are fewer than asked for, where nobody has said so. */
static const char *sample_text(const struct waiter *waiter, uint32_t n, char *out, size_t size)
{
    if (waiter->full)
        return "the items run over so many chunks that a reply holds no more of them";
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

/* True: the answer has to wait until data is here. The table has done its part: others may be served. */
static bool sample_parks(struct broker *broker, struct waiter *waiter, const char *text)
{
    if (!broker->spill || !spill_park(broker->spill, waiter, text))
        return false;
    if (waiter->queued) {
        unqueue(waiter);
        table_mark(waiter->table);
    }
    return true;
}

void sample_answer(struct broker *broker, struct waiter *waiter, const char *text)
{
    char why[200];
    if (sample_parks(broker, waiter, text))
        return;
    if (waiter->fetch) {
        reply_picks(broker, &waiter->wait.to, waiter->wait.id, waiter->table, &waiter->picks, text ? text : "", false,
                    -1);
        waiter_end(broker, waiter);
        return;
    }
    struct picks *picks = recall_keep(broker, waiter, true);
    if (!text)
        text = sample_text(waiter, picks->n, why, sizeof why);
    int64_t waited_ns = waiter->again ? -1 : broker->loop.now_ns - waiter->wait.since_ns;
    bool sent = reply_picks(broker, &waiter->wait.to, waiter->wait.id, waiter->table, picks, text,
                            picks->n < waiter->want, waited_ns);
    if (!sent && !waiter->wait.client) /* nobody can ask for them again */
        waiter->table->stats.orphaned_picks += picks->n;
    waiter_end(broker, waiter);
}

void sample_fail(struct broker *broker, struct waiter *waiter, rp_status status, const char *text)
{
    if (!waiter->fetch)
        recall_lose(broker, waiter);
    request_fail(&broker->peers, &waiter->wait.to, waiter->wait.id, status, text);
    waiter_end(broker, waiter);
}

static void sample_explain(const void *ctx, const struct wait *wait, struct wait_text *out)
{
    (void)ctx;
    const struct waiter *self = (const struct waiter *)wait;
    strncpy(out->table, self->table->name, sizeof out->table - 1);
    out->count = self->want;
    out->got = self->picks.n;
    if (self->park.state != PARK_NOT)
        spill_explain(self, out->text, sizeof out->text);
    else
        waiter_explain(self, out->text, sizeof out->text);
}

static void sample_expire(void *ctx, struct wait *wait)
{
    struct broker *broker = ctx;
    struct waiter *self = (struct waiter *)wait;
    struct wait_text why = {0};
    if (self->park.state != PARK_NOT)
        return; /* it has what it asked for, and gets it as soon as it is read */
    sample_explain(broker, wait, &why);
    if (self->picks.n > 0) {
        sample_answer(broker, self, why.text);
        return;
    }
    request_fail(&broker->peers, &wait->to, wait->id, RP_DEADLINE_EXCEEDED, why.text);
    waiter_end(broker, self);
}

/* The connection is lost, or the broker stops: a retry goes on from what is left behind. */
static void sample_cancel(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    struct broker *broker = ctx;
    struct waiter *self = (struct waiter *)wait;
    spill_unpark(broker->spill, self);
    recall_keep(broker, self, false);
    request_fail(&broker->peers, &wait->to, wait->id, status, text);
    waiter_end(broker, self);
}

static const struct wait_ops sample_ops = {"sample", sample_expire, sample_cancel, sample_explain};

static void fetch_expire(void *ctx, struct wait *wait)
{
    (void)ctx;
    (void)wait; /* it has no deadline */
}

static void fetch_cancel(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    struct broker *broker = ctx;
    request_fail(&broker->peers, &wait->to, wait->id, status, text);
    waiter_end(broker, (struct waiter *)wait);
}

static const struct wait_ops fetch_ops = {"fetch", fetch_expire, fetch_cancel, sample_explain};

/* The client does not want to wait any longer. Items that have left their table for it go out all the same: they are
 * nowhere else. */
static void sample_give_up(struct broker *broker, struct waiter *self)
{
    if (self->picks.n && (self->table->one_by_one || self->again)) {
        sample_answer(broker, self, "cancelled by the client");
        return;
    }
    spill_unpark(broker->spill, self);
    if (self->picks.n) {
        log_line(LEVEL_WARN, "B0304", "sampler gave up with items picked", "table=%s picks=%u", self->table->name,
                 self->picks.n);
        recall_lose(broker, self);
    }
    request_fail(&broker->peers, &self->wait.to, self->wait.id, RP_CANCELLED, "cancelled by the client");
    waiter_end(broker, self);
}

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

/* A waiter that waits and has all that it takes to remember its picks. */
static rp_status waiter_begin(struct broker *broker, const struct request *request, struct table *table,
                              const struct wire_sample *ask, struct waiter **out, rp_error *err)
{
    struct waiter *waiter = *out = waiter_new(broker, table);
    if (!waiter)
        return err_set(err, RP_NO_MEMORY, "no memory for a sample of %u items", ask->count);
    waiter->want = ask->count;
    wait_init(&waiter->wait, &sample_ops, broker);
    uint64_t timeout_ms = ask->has_timeout ? ask->timeout_ms : WAIT_FOREVER;
    rp_status status = wait_begin(&broker->peers, &waiter->wait, request, timeout_ms, err);
    if (status == RP_OK && !recall_reserve(broker, waiter)) {
        wait_end(&broker->peers, &waiter->wait);
        status = err_set(err, RP_NO_MEMORY, "no memory to remember a sample of %u items", ask->count);
    }
    if (status != RP_OK) {
        recall_release(broker, waiter);
        waiter_release(broker, waiter);
        return status;
    }
    waiter->flexible = ask->flexible;
    waiter->whole = ask->whole;
    waiter->distinct = ask->distinct;
    if (ask->distinct && ++table->stamp == 0)
        table->stamp = 1;
    waiter->stamp = table->stamp;
    return RP_OK;
}

rp_status req_sample(struct broker *broker, struct request *request, rp_error *err)
{
    struct wire_sample ask;
    struct table *table;
    RP_TRY(wire_read_sample(request->head.data, request->head.size, &ask, err));
    RP_TRY(find_table(broker, &ask.table, &table, err));
    RP_TRY(sample_check(&ask, table, err));
    if (broker->loop.draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    RP_TRY(recall_check(broker, request, table, ask.count, pick_flags(ask.distinct, ask.flexible, ask.whole), err));
    struct peer *peer = peer_find(&broker->peers, &request->from);
    if (peer && peer_is_full(&broker->peers, peer))
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "this client has left more than %lld bytes of replies unread: read them before asking for more",
                       (long long)broker->config->peer_backlog_bytes);
    struct waiter *waiter;
    RP_TRY(waiter_begin(broker, request, table, &ask, &waiter, err));
    request->answered = true;
    enum recall_found found = recall_load(broker, waiter);
    if (found == RECALL_NO_MEMORY) {
        fetch_cancel(broker, &waiter->wait, RP_NO_MEMORY, "no memory for the sample");
        return RP_OK;
    }
    if (found != RECALL_ANSWERED && !table->waiters && !waiter_is_done(waiter)) {
        /* If the batch fills at once, nothing can leave the table before the reply is made. */
        waiter->picks.borrowed = !table->one_by_one && found == RECALL_NOTHING;
        waiter_fill(waiter);
        if (waiter->picks.n)
            table_mark(table);
        if (waiter->short_of_memory && !waiter->picks.n) {
            sample_fail(broker, waiter, RP_NO_MEMORY, "no memory for the sample");
            return RP_OK;
        }
    }
    bool done = found == RECALL_ANSWERED || waiter_is_done(waiter);
    if (!done)
        picks_own(&waiter->picks, broker);
    if (done)
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
        struct wait *wait = wait_find(&broker->peers.waits, request->head.client, ask->id[i]);
        if (wait) {
            if (wait->ops == &sample_ops)
                sample_give_up(broker, (struct waiter *)wait);
            else
                wait->ops->cancel(broker, wait, RP_CANCELLED, "cancelled by the client");
            reply.applied++;
        } else {
            reply.missing++;
        }
    }
    request_ok(&broker->peers, request, 20, &reply.base);
    return RP_OK;
}

/* Answers when the data is here. Takes the picks. */
static rp_status fetch_later(struct broker *broker, struct request *request, struct table *table, struct picks *picks,
                             rp_error *err)
{
    struct waiter *waiter = waiter_new(broker, table);
    if (!waiter)
        return err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", picks->n);
    wait_init(&waiter->wait, &fetch_ops, broker);
    rp_status status = wait_begin(&broker->peers, &waiter->wait, request, WAIT_FOREVER, err);
    if (status != RP_OK) {
        waiter_release(broker, waiter);
        return status;
    }
    picks_fini(&waiter->picks);
    waiter->picks = *picks;
    *picks = (struct picks){0};
    waiter->want = waiter->picks.n;
    waiter->fetch = true;
    request->answered = true;
    sample_answer(broker, waiter, NULL);
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
    bool none = ok && !picks.n;
    rp_status later = RP_OK;
    if (ok && picks.n && !picks_are_here(&picks)) {
        later = fetch_later(broker, request, table, &picks, err);
    } else if (ok && picks.n) {
        reply_picks(broker, &request->from, request->head.id, table, &picks, "", false, -1);
        request->answered = true;
    }
    picks_clear(&picks, broker);
    picks_fini(&picks);
    if (later != RP_OK)
        return later;
    if (none)
        return err_set(err, RP_NOT_FOUND, "none of the %u keys is in table '%s'", ask.key.n, table->name);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", ask.key.n);
}
