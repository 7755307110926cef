/* Sample, cancel and fetch. */
#include "broker/disk/record.h"
#include "broker/sample/answer.h"
#include "broker/sample/kept_samples.h"
#include "broker/sample/permit.h"
#include "broker/sample/reply.h"
#include "broker/service/service.h"
#include "proto/base/error.h"

static rp_status find_table(struct service *service, const struct wire_string *name, struct table **out, rp_error *err)
{
    *out = tables_find(service->tables, name->data, name->size);
    return *out ? RP_OK
                : err_set(err, RP_NOT_FOUND, "no table '%.*s'", (int)(name->size < 64 ? name->size : 64), name->data);
}

static rp_status sample_check(const struct wire_sample *ask, const struct table *table, rp_error *err)
{
    if (ask->count == 0 || ask->count > SAMPLE_MAX_ITEMS)
        return err_set(err, RP_INVALID_ARGUMENT, "count is %u, a sample takes 1 to %u items", ask->count,
                       SAMPLE_MAX_ITEMS);
    if (ask->whole && ask->flexible)
        return err_set(err, RP_INVALID_ARGUMENT, "a sample cannot be both whole (all or nothing) and flexible");
    if (ask->whole && ask->paid)
        return err_set(err, RP_INVALID_ARGUMENT, "a paid sample does not wait: it cannot be whole (all or nothing)");
    if (ask->paid)
        RP_TRY(permit_check(table, "paid samples", err));
    if (!ask->distinct)
        return RP_OK;
    if (!table->sampler_ops->pick_distinct)
        return err_set(err, RP_UNSUPPORTED, "the sampler '%s' of table '%s' cannot sample without replacement",
                       table->sampler_ops->name, table->name);
    if (ask->count > table->config->max_size)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch of %u without replacement can never be filled: table '%s' has max_size %lld",
                       ask->count, table->name, (long long)table->config->max_size);
    return RP_OK;
}

static uint32_t flags_of(const struct wire_sample *ask)
{
    return pick_flags(ask->distinct, ask->flexible, ask->whole) | (ask->paid ? PICK_PAID : 0u);
}

/* Makes a waiter that waits on behalf of the request. */
static rp_status waiter_begin(struct service *service, const struct request *request, struct table *table,
                              const struct wire_sample *ask, struct waiter **out, rp_error *err)
{
    struct waiter *waiter = *out = waiter_new(service->samples, table);
    if (!waiter)
        return err_set(err, RP_NO_MEMORY, "no memory for a sample of %u items", ask->count);
    waiter->want = ask->count;
    RP_TRY(sample_begin(waiter, request, ask->has_timeout ? ask->timeout_ms : WAIT_FOREVER, err));
    waiter->flexible = ask->flexible;
    waiter->whole = ask->whole;
    waiter->distinct = ask->distinct;
    waiter->paid = ask->paid;
    waiter->flags = flags_of(ask);
    if (ask->distinct && ++table->stamp == 0)
        table->stamp = 1;
    waiter->stamp = table->stamp;
    return RP_OK;
}

/* Fills the waiter as far as possible now. False: no memory, and it was answered so. */
static bool waiter_start(struct waiter *waiter, enum kept_found found)
{
    struct table *table = waiter->table;
    if (found == KEPT_NO_MEMORY) {
        sample_refuse(waiter, RP_NO_MEMORY, "no memory for the sample");
        return false;
    }
    if (found == KEPT_ANSWERED || table->waiters || waiter_is_done(waiter))
        return true;
    /* If the batch fills at once, nothing can leave the table before the reply is made. */
    waiter->picks.borrowed = !table->one_by_one && found == KEPT_NOTHING;
    waiter_fill(waiter);
    if (waiter->picks.n)
        table_mark(table);
    if (waiter->short_of_memory && !waiter->picks.n) {
        sample_fail(waiter, RP_NO_MEMORY, "no memory for the sample");
        return false;
    }
    return true;
}

/* Answers a paid sample with what can be picked now. Nobody waits for it, and it waits for nobody. */
static void answer_paid(struct waiter *waiter, enum kept_found found)
{
    struct table *table = waiter->table;
    if (found == KEPT_NOTHING || found == KEPT_UNANSWERED) {
        waiter->picks.borrowed = !table->one_by_one && found == KEPT_NOTHING;
        waiter_fill_paid(waiter);
        table_mark(table); /* items that have left it make room */
    }
    if (found == KEPT_NO_MEMORY || (waiter->short_of_memory && !waiter->picks.n))
        sample_fail(waiter, RP_NO_MEMORY, "no memory for the sample");
    else
        sample_answer(waiter, table->in.size || waiter->picks.n ? NULL : "the table is empty");
}

rp_status req_sample(struct service *service, struct request *request, rp_error *err)
{
    struct wire_sample ask;
    struct table *table;
    RP_TRY(wire_read_sample(request->head.data, request->head.size, &ask, err));
    RP_TRY(find_table(service, &ask.table, &table, err));
    RP_TRY(sample_check(&ask, table, err));
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    struct kept_info asked = {
        .client = request->head.client,
        .id = request->head.id,
        .table = table,
        .want = ask.count,
        .flags = flags_of(&ask),
    };
    RP_TRY(kept_samples_check(service->samples, &asked, err));
    struct peer *peer = peer_find(service->peers, &request->from);
    if (peer && peer_is_full(service->peers, peer))
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "this client has left more than %lld bytes of replies unread: read them before asking for more",
                       (long long)service->config->peer_backlog_bytes);
    struct waiter *waiter;
    RP_TRY(waiter_begin(service, request, table, &ask, &waiter, err));
    request->answered = true;
    enum kept_found found = kept_samples_load(waiter);
    if (ask.paid) {
        answer_paid(waiter, found);
        return RP_OK;
    }
    if (!waiter_start(waiter, found))
        return RP_OK;
    bool done = found == KEPT_ANSWERED || waiter_is_done(waiter);
    if (!done)
        picks_own(&waiter->picks, service->samples);
    if (done)
        sample_answer(waiter, NULL);
    else if (ask.has_timeout && ask.timeout_ms == 0)
        sample_expire(waiter);
    else
        waiter_enqueue(waiter);
    return RP_OK;
}

rp_status req_cancel(struct service *service, struct request *request, rp_error *err)
{
    (void)err;
    const Replay__Cancel *ask = (const Replay__Cancel *)request->body;
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    for (size_t i = 0; i < ask->n_id && i < SAMPLE_MAX_ITEMS; i++) {
        struct wait *wait = wait_find(&service->peers->waits, request->head.client, ask->id[i]);
        if (wait) {
            struct waiter *sample = sample_of(wait);
            if (sample)
                sample_give_up(sample);
            else
                wait->ops->cancel(wait->ctx, wait, RP_CANCELLED, "cancelled by the client");
            reply.applied++;
        } else {
            reply.missing++;
        }
    }
    request_ok(service->peers, request, REPLAY__REPLY__BODY_CHANGE, &reply.base);
    return RP_OK;
}

/* Answers when the data has been read from disk. Takes the picks. */
static rp_status fetch_later(struct service *service, struct request *request, struct table *table, struct picks *picks,
                             rp_error *err)
{
    struct waiter *waiter = waiter_new(service->samples, table);
    if (!waiter)
        return err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", picks->n);
    RP_TRY(fetch_begin(waiter, request, err));
    picks_fini(&waiter->picks);
    waiter->picks = *picks;
    *picks = (struct picks){0};
    waiter->want = waiter->picks.n;
    request->answered = true;
    sample_answer(waiter, NULL);
    return RP_OK;
}

rp_status req_fetch(struct service *service, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(wire_read_keys(request->head.data, request->head.size, false, &ask, err));
    RP_TRY(find_table(service, &ask.table, &table, err));
    if (ask.key.n > REQUEST_MAX_KEYS)
        return err_set(err, RP_INVALID_ARGUMENT, "a fetch takes at most %u keys, not %u", REQUEST_MAX_KEYS, ask.key.n);
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
        later = fetch_later(service, request, table, &picks, err);
    } else if (ok && picks.n) {
        struct sample_reply reply = {&request->from, request->head.id, table, &picks, "", false, false, -1};
        reply_picks(service->samples, &reply);
        request->answered = true;
    }
    picks_clear(&picks, service->samples);
    picks_fini(&picks);
    if (later != RP_OK)
        return later;
    if (none)
        return err_set(err, RP_NOT_FOUND, "none of the %u keys is in table '%s'", ask.key.n, table->name);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", ask.key.n);
}
