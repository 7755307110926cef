/* Traces. One at a time: for the time asked for, the broker records its own spans, and its replies tell clients that a trace is
 * on. Clients record theirs and send them when the time has passed. The request is answered when all clients that have taken
 * part have sent everything, or a little later without them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/service/service.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"

#define DURATION_MOST_MS 60000u
/* Most spans of the broker and of all clients together: 8 MB. */
#define SPANS_OF_BROKER 100000u
#define SPANS_OF_CLIENTS 100000u
#define CLIENTS_MOST 1024u
#define NAME_BYTES 256u
/* How long clients may take to send their spans. */
#define COLLECT_NS (2 * NS_PER_S)

/* A client that takes part. */
struct trace_client {
    struct trace_client *next;
    uint64_t client;
    Replay__TraceSpans *said; /* its last message: names, clock */
    struct trace_span *spans;
    uint32_t n;
    uint64_t dropped; /* here, because all clients together had too many */
    bool complete;
};

struct trace_session {
    struct wait wait; /* of the client that has asked for the trace */
    struct service *service;
    struct timer timer; /* the end of recording, then of collecting */
    int64_t start_ns, end_ns;
    uint64_t number;
    bool collecting;
    struct trace_list own;
    struct trace_client *clients;
    uint32_t n_clients, n_complete;
    uint32_t n_spans, n_complete_spans; /* of all clients; of those that are complete */
};

static void free_message(void *data, void *hint)
{
    (void)hint;
    free(data);
}

/* Stops the recording, if it goes on. */
static void stop(struct trace_session *self)
{
    struct service *service = self->service;
    if (self->collecting)
        return;
    self->collecting = true;
    self->end_ns = clock_now(&service->loop->clock);
    service->peers->tracing.number = 0;
    trace_stop(&service->loop->trace, &self->own);
}

static void req_trace_end(struct wait *wait)
{
    struct trace_session *self = (struct trace_session *)wait;
    struct service *service = self->service;
    stop(self);
    timer_clear(&service->loop->timers, &self->timer);
    service->trace = NULL;
    wait_end(wait);
    for (struct trace_client *client = self->clients, *next; client; client = next) {
        next = client->next;
        unpack_free((ProtobufCMessage *)client->said);
        free(client->spans);
        free(client);
    }
    trace_list_fini(&self->own);
    free(self);
}

static void req_trace_explain(const struct wait *wait, struct wait_text *out)
{
    const struct trace_session *self = (const struct trace_session *)wait;
    snprintf(out->text, sizeof out->text,
             self->collecting ? "waits for the spans of clients: %u of %u have sent all"
                              : "a trace is recorded; %u of %u clients have sent all",
             self->n_complete, self->n_clients);
}

static const struct wait_ops req_trace_ops = {"trace", req_trace_explain, req_trace_end, NULL, NULL};

/* ---- the answer ---- */

/* A reply under construction: the broker's own spans are its first process. */
struct trace_answer {
    Replay__TraceReply reply;
    Replay__TraceSpans broker;
    Replay__TraceSpans **processes;
    char *texts[TRACE_TEXTS];
    zmq_msg_t *payload;
    uint32_t n;
};

/* Moves spans into a frame of the reply. Names may be cut in the middle of a character. */
static void add_process(struct trace_answer *self, Replay__TraceSpans *process, struct trace_span **spans, uint32_t n)
{
    zmq_msg_t *frame = &self->payload[self->n];
    utf8_clean(process->name, strlen(process->name));
    for (size_t i = 0; i < process->n_text; i++)
        utf8_clean(process->text[i], strlen(process->text[i]));
    self->processes[self->n++] = process;
    if (n && zmq_msg_init_data(frame, *spans, n * sizeof **spans, free_message, NULL) == 0) {
        *spans = NULL;
        return;
    }
    zmq_msg_init(frame);
    process->dropped += n;
}

static void answer_build(struct trace_answer *self, struct trace_session *trace)
{
    struct trace_list *own = &trace->own;
    replay__trace_reply__init(&self->reply);
    replay__trace_spans__init(&self->broker);
    for (uint32_t i = 0; i < own->n_texts; i++)
        self->texts[i] = own->texts[i];
    self->broker.name = (char *)(uintptr_t) "broker";
    self->broker.pid = (uint32_t)getpid();
    self->broker.dropped = own->dropped;
    self->broker.text = self->texts;
    self->broker.n_text = own->n_texts;
    add_process(self, &self->broker, &own->spans, own->n);
    for (struct trace_client *client = trace->clients; client; client = client->next) {
        client->said->client = client->client;
        client->said->dropped += client->dropped;
        add_process(self, client->said, &client->spans, client->n);
        self->reply.missing += !client->complete;
    }
    self->reply.start_ns = (uint64_t)trace->start_ns;
    self->reply.end_ns = (uint64_t)trace->end_ns;
    self->reply.processes = self->processes;
    self->reply.n_processes = self->n;
}

static void req_trace_finish(struct trace_session *self)
{
    uint32_t n = self->n_clients + 1;
    struct trace_answer *answer = need_alloc(sizeof *answer);
    answer->payload = need_alloc(n * sizeof *answer->payload);
    answer->processes = need_alloc(n * sizeof(*answer->processes));
    answer_build(answer, self);
    request_send(self->service->peers, &self->wait.to, self->wait.id,
                 &(struct answer){.status = RP_OK,
                                  .field = REPLAY__REPLY__BODY_TRACE,
                                  .body = &answer->reply.base,
                                  .payload = answer->payload,
                                  .n_payload = n});
    free(answer->payload);
    free(answer->processes);
    free(answer);
    req_trace_end(&self->wait);
}

/* ---- recording ---- */

/* Adds what still waits: a wait that does not end is what one looks for. */
static void add_waits(const struct service *service)
{
    for (const struct wait *wait = service->peers->waits.first; wait; wait = wait->next)
        if (wait->ops != &req_trace_ops)
            wait_trace(wait);
    for (uint32_t i = 0; i < service->tables->n; i++) {
        const struct flow *first = service->tables->list[i].blocked, *flow = first;
        while (flow) {
            flow_trace(flow);
            flow = flow->next == first ? NULL : flow->next;
        }
    }
}

static void fire(struct timer *timer)
{
    struct trace_session *self = timer->ctx;
    struct service *service = self->service;
    if (!self->collecting) {
        add_waits(service);
        stop(self);
        if (self->n_complete < self->n_clients) {
            timer_set(&service->loop->timers, timer, service->loop->now_ns + COLLECT_NS);
            return;
        }
    }
    req_trace_finish(self);
}

rp_status req_trace(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Trace *ask = (const Replay__Trace *)request->body;
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    if (ask->duration_ms == 0 || ask->duration_ms > DURATION_MOST_MS)
        return err_set(err, RP_INVALID_ARGUMENT, "a trace takes 1 ms to %u s, not %llu ms", DURATION_MOST_MS / 1000,
                       (unsigned long long)ask->duration_ms);
    if (service->trace)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "another trace is being recorded, and there is one at a time: ask again when it has ended");
    struct trace_session *self =
        wait_new(service->peers, sizeof *self, &req_trace_ops, service, request, WAIT_FOREVER, err);
    if (!self)
        return (rp_status)err->status;
    self->service = service;
    self->timer = (struct timer){.fire = fire, .ctx = self};
    self->start_ns = service->loop->now_ns;
    self->end_ns = self->start_ns + (int64_t)ask->duration_ms * NS_PER_MS;
    rng_system(&self->number, sizeof self->number);
    self->number |= 1; /* 0 stands for no trace */
    timer_set(&service->loop->timers, &self->timer, self->end_ns);
    if (!trace_start(&service->loop->trace, SPANS_OF_BROKER)) {
        wait_cancel(&self->wait, RP_NO_MEMORY, "no memory for a trace");
        return RP_OK;
    }
    service->trace = self;
    service->peers->tracing.number = self->number;
    service->peers->tracing.end_ns = self->end_ns;
    return RP_OK;
}

/* ---- spans of clients ---- */

static rp_status check_spans(const struct request *request, const Replay__TraceSpans *said, rp_error *err)
{
    size_t size = request->n_payload ? zmq_msg_size(&request->payload[0]) : 0;
    if (request->n_payload > 1 || size % sizeof(struct trace_span) != 0)
        return err_set(err, RP_BAD_MESSAGE, "spans are one frame of records of %zu bytes", sizeof(struct trace_span));
    if (said->n_text > TRACE_TEXTS)
        return err_set(err, RP_INVALID_ARGUMENT, "%zu names of spans; at most %u are taken", said->n_text, TRACE_TEXTS);
    bool fits = strlen(said->name) < NAME_BYTES;
    for (size_t i = 0; i < said->n_text; i++)
        fits = fits && strlen(said->text[i]) < TRACE_TEXT_BYTES;
    if (!fits)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "names of clients have less than %u bytes, names of spans less than %u", NAME_BYTES,
                       TRACE_TEXT_BYTES);
    if (size && !trace_spans_are_sound(zmq_msg_data(&request->payload[0]), (uint32_t)(size / sizeof(struct trace_span)),
                                       (uint32_t)said->n_text))
        return err_set(err, RP_BAD_MESSAGE, "a span has no name, or a time that cannot be");
    return RP_OK;
}

/* Returns a client, which is added if it is new. NULL: there are too many. */
static struct trace_client *client_of(struct trace_session *self, uint64_t id)
{
    struct trace_client *client = self->clients;
    while (client && client->client != id)
        client = client->next;
    if (client || self->n_clients == CLIENTS_MOST)
        return client;
    client = need_alloc(sizeof *client);
    client->client = id;
    client->next = self->clients;
    self->clients = client;
    self->n_clients++;
    return client;
}

/* Returns how many spans a client may add. What clients have left that are complete is shared by the others: so the first that
 * sends does not take the room of all. */
static uint32_t room_for(const struct trace_session *self, const struct trace_client *client)
{
    uint32_t room = SPANS_OF_CLIENTS - self->n_spans;
    uint32_t share = (SPANS_OF_CLIENTS - self->n_complete_spans) / (self->n_clients - self->n_complete);
    uint32_t rest = share > client->n ? share - client->n : 0;
    return rest < room ? rest : room;
}

/* Appends as many spans as there is room for. Later ones of the same client are dropped then, or there would be a gap. */
static void add_spans(struct trace_session *self, struct trace_client *client, zmq_msg_t *frame)
{
    uint32_t n = (uint32_t)(zmq_msg_size(frame) / sizeof(struct trace_span));
    uint32_t room = client->dropped ? 0 : room_for(self, client), taken = n < room ? n : room;
    struct trace_span *grown = taken ? realloc(client->spans, (client->n + taken) * sizeof *grown) : NULL;
    if (grown) {
        memcpy(grown + client->n, zmq_msg_data(frame), taken * sizeof *grown);
        client->spans = grown;
        client->n += taken;
        self->n_spans += taken;
    }
    client->dropped += grown ? n - taken : n;
}

rp_status req_trace_spans(struct service *service, struct request *request, rp_error *err)
{
    const Replay__TraceSpans *said = (const Replay__TraceSpans *)request->body;
    struct trace_session *self = service->trace;
    if (!self || said->trace != self->number)
        return err_set(err, RP_NOT_FOUND, "this trace is not recorded any more");
    if (!request->head.client)
        return err_set(err, RP_INVALID_ARGUMENT, "Request.client is missing: a trace tells clients apart by it");
    RP_TRY(check_spans(request, said, err));
    struct trace_client *client = client_of(self, request->head.client);
    if (!client)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "a trace has at most %u clients", CLIENTS_MOST);
    if (client->complete)
        return err_set(err, RP_FAILED_PRECONDITION, "this client has already said that its spans are complete");
    unpack_free((ProtobufCMessage *)client->said);
    client->said = (Replay__TraceSpans *)request->body;
    request->body = NULL; /* kept */
    if (request->n_payload)
        add_spans(self, client, &request->payload[0]);
    client->complete = client->said->last;
    self->n_complete += client->complete;
    self->n_complete_spans += client->complete ? client->n : 0;
    request_reply(service->peers, request, &(struct answer){.status = RP_OK});
    if (self->collecting && self->n_complete == self->n_clients)
        req_trace_finish(self);
    return RP_OK;
}
