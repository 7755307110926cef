/* Permit: charges a table's limiter for samples that are picked elsewhere, or here as paid ones. */
#include <string.h>

#include "broker/sample/permit.h"
#include "broker/service/service.h"
#include "proto/base/error.h"

/* Answers with the state alone. It changes nothing, and need not wait for the journal. */
static rp_status answer_state(struct service *service, struct request *request, const struct table *table)
{
    const Replay__Permit *ask = (const Replay__Permit *)request->body;
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    watchers_note(&service->samples->watchers, &(struct watcher){.client = request->head.client,
                                                                 .table = table,
                                                                 .wanted = ask->wanted,
                                                                 .size = ask->size,
                                                                 .min_size = ask->min_size,
                                                                 .heard_ns = service->loop->now_ns});
    permit_state(table, &reply);
    service->peers->commit.ahead = true;
    request_ok(service->peers, request, REPLAY__REPLY__BODY_PERMIT, &reply.base);
    return RP_OK;
}

rp_status req_permit(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Permit *ask = (const Replay__Permit *)request->body;
    struct table *table = tables_find(service->tables, ask->table, strlen(ask->table));
    if (!table)
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    if (ask->count == 0)
        return answer_state(service, request, table);
    if (ask->count > PERMIT_MOST)
        return err_set(err, RP_INVALID_ARGUMENT, "a permit is for at most %u samples, not %u", PERMIT_MOST, ask->count);
    RP_TRY(permit_check(table, "permits", err));
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    struct waiter *waiter = waiter_new(service->samples, table);
    if (!waiter)
        return err_set(err, RP_NO_MEMORY, "no memory for a permit of %u samples", ask->count);
    bool timed = ask->has_timeout_ms_case == REPLAY__PERMIT__HAS_TIMEOUT_MS_TIMEOUT_MS, progress = false;
    waiter->want = ask->count;
    waiter->flexible = ask->flexible;
    RP_TRY(permit_begin(waiter, request, timed ? ask->timeout_ms : WAIT_FOREVER, err));
    request->answered = true;
    if (!table->waiters && permit_serve(waiter, &progress))
        return RP_OK;
    if (timed && ask->timeout_ms == 0)
        permit_expire(waiter);
    else
        waiter_enqueue(waiter);
    return RP_OK;
}
