/* Checkpoint requests: answered when the checkpoint is complete on disk. Requests that come meanwhile share one. */
#include <stdio.h>
#include <stdlib.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/peer/peers.h"
#include "broker/service/service.h"
#include "proto/base/error.h"

struct checkpoint_wait {
    struct wait wait;
    uint64_t number;
};

static void end(struct wait *wait)
{
    wait_end(wait);
    free(wait);
}

static void explain(const struct wait *wait, struct wait_text *out)
{
    const struct service *service = wait->ctx;
    const struct checkpoint_wait *self = (const struct checkpoint_wait *)wait;
    const struct checkpoint *run = service->checkpoints->running;
    if (run && run->number == self->number)
        snprintf(out->text, sizeof out->text, "checkpoint %llu is being written: %.0f%% of its items are written",
                 (unsigned long long)self->number, 100 * checkpoint_progress(service->checkpoints));
    else
        snprintf(out->text, sizeof out->text, "checkpoint %llu begins when the one before it has ended",
                 (unsigned long long)self->number);
}

static void expire(struct wait *wait)
{
    struct wait_text why = {0};
    char text[600];
    explain(wait, &why);
    snprintf(text, sizeof text, "%s; the checkpoint continues", why.text);
    wait_cancel(wait, RP_DEADLINE_EXCEEDED, text);
}

static const struct wait_ops ops = {"checkpoint", explain, end, NULL, expire};

void request_checkpoint_ended(void *ctx, uint64_t number, const char *error)
{
    struct service *service = ctx;
    char text[400];
    snprintf(text, sizeof text, "checkpoint %llu failed: %.300s", (unsigned long long)number, error ? error : "");
    for (struct wait *wait = service->peers->waits.first, *next; wait; wait = next) {
        next = wait->next;
        if (wait->ops != &ops || ((struct checkpoint_wait *)wait)->number > number)
            continue;
        if (error) {
            wait_cancel(wait, RP_IO, text);
            continue;
        }
        request_send(service->peers, &wait->to, wait->id,
                     &(struct answer){.status = RP_OK,
                                      .field = REPLAY__REPLY__BODY_CHECKPOINT,
                                      .body = &service->checkpoints->last.base});
        end(wait);
    }
    if (!error)
        sockets_announce(service->peers, "checkpoint %llu", (unsigned long long)number);
}

rp_status req_checkpoint(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Checkpoint *ask = (const Replay__Checkpoint *)request->body;
    uint64_t number;
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    RP_TRY(checkpoint_start(service->checkpoints, CHECKPOINT_ASKED, &number, err));
    log_line(LEVEL_INFO, "B0530", "checkpoint asked for", "checkpoint=%llu key=%s", (unsigned long long)number,
             log_text(request->identity->name));
    if (ask->start_only) {
        Replay__CheckpointReply reply = REPLAY__CHECKPOINT_REPLY__INIT;
        reply.number = number;
        reply.folder = service->stream->folder.path;
        request_ok(service->peers, request, REPLAY__REPLY__BODY_CHECKPOINT, &reply.base);
        return RP_OK;
    }
    bool timed = ask->has_timeout_ms_case == REPLAY__CHECKPOINT__HAS_TIMEOUT_MS_TIMEOUT_MS;
    struct checkpoint_wait *self =
        wait_new(service->peers, sizeof *self, &ops, service, request, timed ? ask->timeout_ms : WAIT_FOREVER, err);
    if (!self)
        return (rp_status)err->status;
    self->number = number;
    return RP_OK;
}
