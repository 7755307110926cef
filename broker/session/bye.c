#include "broker/session/bye.h"

#include <stdio.h>
#include <stdlib.h>

#include "broker/peer/peers.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/pump.h"
#include "broker/session/session.h"
#include "proto/base/error.h"

struct bye {
    struct wait wait;
    struct session *session;
    uint64_t last_number;
};

static void explain(const void *ctx, const struct wait *wait, struct wait_text *out)
{
    (void)ctx;
    const struct bye *self = (const struct bye *)wait;
    const struct session *session = self->session;
    out->count = session_unresolved(session);
    int used =
        snprintf(out->text, sizeof out->text, "session '%s' ends: message %llu of %llu has arrived, %llu items wait",
                 session->name, (unsigned long long)session->received, (unsigned long long)self->last_number,
                 (unsigned long long)out->count);
    for (uint32_t i = 0; i < session->n_tables && used > 0 && (size_t)used < sizeof out->text; i++) {
        const struct flow *flow = session->flows[i];
        char why[200] = "";
        if (!flow || !flow->count)
            continue;
        pump_explain_insert(flow->table, why, sizeof why);
        used += snprintf(out->text + used, sizeof out->text - (size_t)used, "; table '%.64s' holds back %u: %s",
                         flow->table->name, flow->count, why);
    }
}

/* Answers and ends the wait. */
static void answer(void *ctx, struct wait *wait, rp_status status, const char *text)
{
    (void)ctx;
    struct bye *self = (struct bye *)wait;
    struct peers *peers = self->session->sessions->peers;
    struct credit_message *credit = credit_message_new(self->session, status != RP_OK);
    const ProtobufCMessage *body = credit ? credit_message_body(credit) : NULL;
    if (status == RP_OK)
        request_finish(peers, wait, REPLAY__REPLY__BODY_CREDIT, body);
    else
        request_send(peers, &wait->to, wait->id,
                     &(struct answer){status, text, REPLAY__REPLY__BODY_CREDIT, body, NULL, 0});
    credit_message_destroy(&credit);
    wait_end(peers, wait);
    self->session->bye = NULL;
    free(self);
}

static void expire(void *ctx, struct wait *wait)
{
    struct wait_text why = {0};
    explain(ctx, wait, &why);
    answer(ctx, wait, RP_DEADLINE_EXCEEDED, why.text);
}

static const struct wait_ops bye_ops = {"bye", expire, answer, explain};

void bye_cancel(struct session *session)
{
    answer(NULL, &session->bye->wait, RP_FAILED_PRECONDITION,
           "the session was silent for too long and expired before its last items were resolved: resume it with HELLO, "
           "then say BYE again");
}

void bye_check(struct session *session)
{
    if (session->received < session->bye->last_number || session_unresolved(session) > 0)
        return;
    answer(NULL, &session->bye->wait, RP_OK, "");
    char quoted[SESSION_QUOTED];
    log_line(LEVEL_DEBUG, "B0102", "session closed", "name=%s ordinal=%u", session_quoted(session, quoted),
             session->ordinal);
    session_close(session);
}

rp_status bye_begin(struct session *session, struct request *request, uint64_t last_number, uint64_t timeout_ms,
                    rp_error *err)
{
    struct bye *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for BYE");
    wait_init(&self->wait, &bye_ops, NULL);
    rp_status status = wait_begin(session->sessions->peers, &self->wait, request, timeout_ms, err);
    if (status != RP_OK) {
        free(self);
        return status;
    }
    self->session = session;
    self->last_number = last_number;
    session->bye = self;
    request->answered = true;
    bye_check(session);
    return RP_OK;
}
