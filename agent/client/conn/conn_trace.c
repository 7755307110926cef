/* A client's part in a trace: it hears of the trace by a reply, compares its clock with the broker's, and sends its spans at
 * the end. If the connection is lost meanwhile, or the broker refuses, the spans are dropped: a trace is never worth a wait. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/unpack.h"
#include "replay/trace.h"

/* Spans of one client, and of one message. */
#define SPANS_MOST 16384u
#define SPANS_PER_MESSAGE 4096u
/* Round trips that compare the clocks: the shortest counts. */
#define TRIPS 8u
#define ANSWER_MS 5000
/* A longer trace than a broker records. */
#define DURATION_MOST (INT64_C(3600) * NS_PER_S)

struct trace *conn_trace(struct conn *self)
{
    return &self->trace;
}

static void leave(struct conn *self)
{
    struct trace_list rest;
    trace_stop(&self->trace, &rest);
    trace_list_fini(&rest);
    trace_list_fini(&self->tracing.list);
    self->tracing = (struct conn_trace){.last = self->tracing.number ? self->tracing.number : self->tracing.last};
}

void conn_trace_fini(struct conn *self)
{
    leave(self);
    trace_fini(&self->trace);
}

/* ---- messages ---- */

static void on_answer(void *ctx, struct conn_reply *reply)
{
    struct conn_part *part = ctx;
    struct conn *self = (struct conn *)(void *)((char *)part - offsetof(struct conn, tracing.part));
    self->tracing.sending = false;
    if (reply->status != RP_OK || (self->tracing.list.spans && self->tracing.sent == self->tracing.list.n))
        leave(self);
    conn_reply_destroy(&reply);
}

/* Sends the next n spans, or none in order to take part and to compare the clocks. */
static void send_spans(struct conn *self, uint32_t n)
{
    struct conn_trace *trace = &self->tracing;
    struct trace_list *list = &trace->list;
    Replay__TraceSpans body = REPLAY__TRACE_SPANS__INIT;
    char *texts[TRACE_TEXTS];
    zmq_msg_t frame;
    for (uint32_t i = 0; i < list->n_texts; i++)
        texts[i] = list->texts[i];
    body.trace = trace->number;
    body.name = self->name;
    body.pid = (uint32_t)self->pid;
    body.text = texts;
    body.n_text = list->n_texts;
    body.dropped = list->dropped;
    if (trace->trip_ns != INT64_MAX) {
        body.offset_ns = trace->offset_ns;
        body.uncertainty_ns = (uint64_t)(trace->trip_ns + 1) / 2;
    }
    body.last = list->spans && trace->sent + n == list->n;
    if (zmq_msg_init_size(&frame, n * sizeof *list->spans) != 0) {
        leave(self);
        return;
    }
    if (n && list->spans)
        memcpy(zmq_msg_data(&frame), list->spans + trace->sent, n * sizeof *list->spans);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_TRACE_SPANS,
                                   .body = &body.base,
                                   .payload = &frame,
                                   .n_payload = n ? 1 : 0,
                                   .timeout_ms = ANSWER_MS};
    trace->sent += n;
    trace->sending = conn_send_once(self, &trace->part, &message, on_answer);
    zmq_msg_close(&frame);
    if (!trace->sending)
        leave(self);
}

int64_t conn_trace_tick(struct conn *self, int64_t now_ns)
{
    struct conn_trace *trace = &self->tracing;
    if (trace->sending)
        return INT64_MAX; /* the answer wakes this thread */
    if (now_ns < trace->end_ns) {
        if (trace->trips++ >= TRIPS)
            return trace->end_ns;
        send_spans(self, 0);
        return INT64_MAX;
    }
    if (!trace->list.spans)
        trace_stop(&self->trace, &trace->list);
    uint32_t left = trace->list.n - trace->sent;
    send_spans(self, left < SPANS_PER_MESSAGE ? left : SPANS_PER_MESSAGE);
    return INT64_MAX;
}

/* ---- being told ---- */

/* Compares the clocks: the broker's reading was made at some time between sending and receiving. */
static void compare(struct conn_trace *self, int64_t sent_ns, int64_t now_ns, int64_t broker_ns)
{
    if (!sent_ns || now_ns - sent_ns >= self->trip_ns)
        return;
    self->trip_ns = now_ns - sent_ns;
    self->offset_ns = broker_ns - (sent_ns + self->trip_ns / 2);
    /* Processes of one machine have one clock: an offset that may be 0 is 0. */
    if (llabs(self->offset_ns) <= (self->trip_ns + 1) / 2)
        self->offset_ns = 0;
}

void conn_trace_told(struct conn *self, const struct wire_reply *reply, int64_t sent_ns)
{
    struct conn_trace *trace = &self->tracing;
    ProtobufCMessage *message;
    if (unpack(&replay__tracing__descriptor, reply->tracing.data, reply->tracing.size, &message) != RP_OK)
        return;
    const Replay__Tracing *told = (const Replay__Tracing *)message;
    int64_t now = conn_now(), left = (int64_t)(told->end_ns - told->now_ns);
    bool fresh = !trace->number && told->trace && told->trace != trace->last && left > 0 && left < DURATION_MOST;
    if (fresh && trace_start(&self->trace, SPANS_MOST)) {
        trace->number = told->trace;
        trace->end_ns = now + left;
        trace->trip_ns = INT64_MAX;
    }
    if (trace->number == told->trace)
        compare(trace, sent_ns, now, (int64_t)told->now_ns);
    unpack_free(message);
}

void conn_trace_request(struct conn *self, const struct conn_request *request)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(&replay__request__descriptor, request->field);
    trace_add(&self->trace, field ? field->name : "request", "requests",
              &(struct trace_span){.start_ns = request->traced_ns,
                                   .duration_ns = conn_now() - request->traced_ns,
                                   .id = request->id,
                                   .link = TRACE_REQUEST});
}

/* ---- spans of programs ---- */

int64_t rp_trace_begin(rp_client *client)
{
    return client ? trace_now(&client_conn(client)->trace) : 0;
}

void rp_trace_end(rp_client *client, const char *name, int64_t start_ns)
{
    if (client && name && start_ns > 0 && !conn_is_foreign(client_conn(client)))
        trace_add_since(&client_conn(client)->trace, name, NULL, start_ns, 0);
}
