/* Checkpoint requests: answered when the checkpoint is complete on disk. Requests that come meanwhile share one. */
#include <stdio.h>
#include <stdlib.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/peer/sockets.h"
#include "broker/service/service.h"
#include "proto/base/error.h"

struct checkpoint_wait {
    struct wait wait;
    struct checkpoint_wait *next, **prev;
    uint64_t number;
};

static void end(struct service *service, struct checkpoint_wait *self)
{
    wait_end(service->peers, &self->wait);
    *self->prev = self->next;
    if (self->next)
        self->next->prev = self->prev;
    free(self);
}

static void explain(const void *ctx, const struct wait *wait, struct wait_text *out)
{
    const struct service *service = ctx;
    const struct checkpoint_wait *self = (const struct checkpoint_wait *)wait;
    struct checkpoint_report report = checkpoints_report(service->checkpoints);
    if (report.running == self->number)
        snprintf(out->text, sizeof out->text, "checkpoint %llu is being written: %.0f%% of its items are written",
                 (unsigned long long)self->number, 100 * report.done);
    else
        snprintf(out->text, sizeof out->text, "checkpoint %llu begins when the one before it has ended",
                 (unsigned long long)self->number);
}

static void cancel(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    struct service *service = ctx;
    request_fail(service->peers, &wait->to, wait->id, status, text);
    end(service, (struct checkpoint_wait *)wait);
}

static void expire(void *ctx, struct wait *wait)
{
    struct service *service = ctx;
    struct wait_text why = {0};
    char text[600];
    explain(service, wait, &why);
    snprintf(text, sizeof text, "%s; the checkpoint continues", why.text);
    cancel(service, wait, RP_DEADLINE_EXCEEDED, text);
}

static const struct wait_ops ops = {"checkpoint", expire, cancel, explain};

void request_checkpoint_ended(void *ctx, uint64_t number, const char *error)
{
    struct service *service = ctx;
    struct checkpoint_report report = checkpoints_report(service->checkpoints);
    Replay__CheckpointReply reply = REPLAY__CHECKPOINT_REPLY__INIT;
    reply.number = report.last;
    reply.based_on = report.base;
    reply.items = report.items;
    reply.written_bytes = report.bytes;
    reply.took_ns = report.took_ns;
    reply.folder = service->stream->folder.path;
    struct checkpoint_wait *next;
    for (struct checkpoint_wait *at = service->checkpoint_waits; at; at = next) {
        next = at->next;
        if (at->number > number)
            continue;
        if (error) {
            char text[400];
            snprintf(text, sizeof text, "checkpoint %llu failed: %.300s", (unsigned long long)number, error);
            cancel(service, &at->wait, RP_IO, text);
            continue;
        }
        request_send(service->peers, &at->wait.to, at->wait.id,
                     &(struct answer){.status = RP_OK, .field = REPLAY__REPLY__BODY_CHECKPOINT, .body = &reply.base});
        end(service, at);
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
    char who[IDENTITY_QUOTED];
    log_line(LEVEL_INFO, "B0530", "checkpoint asked for", "checkpoint=%llu key=%s", (unsigned long long)number,
             identity_quoted(request->identity, who));
    if (ask->start_only) {
        Replay__CheckpointReply reply = REPLAY__CHECKPOINT_REPLY__INIT;
        reply.number = number;
        reply.folder = service->stream->folder.path;
        request_ok(service->peers, request, REPLAY__REPLY__BODY_CHECKPOINT, &reply.base);
        return RP_OK;
    }
    struct checkpoint_wait *self = calloc(1, sizeof *self);
    bool timed = ask->has_timeout_ms_case == REPLAY__CHECKPOINT__HAS_TIMEOUT_MS_TIMEOUT_MS;
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory to wait for a checkpoint");
    wait_init(&self->wait, &ops, service);
    rp_status status = wait_begin(service->peers, &self->wait, request, timed ? ask->timeout_ms : WAIT_FOREVER, err);
    if (status != RP_OK) {
        free(self);
        return status;
    }
    self->number = number;
    self->next = service->checkpoint_waits;
    self->prev = &service->checkpoint_waits;
    if (self->next)
        self->next->prev = &self->next;
    service->checkpoint_waits = self;
    request->answered = true;
    return RP_OK;
}
