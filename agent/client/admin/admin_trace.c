/* Records a trace, and reads the spans of all processes that took part.
 *
 * With shards, every shard gives a trace by its own clock, with the part of each client that concerns it. Clients that take part at
 * two shards tell how far the clocks of these are apart. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/admin.h"
#include "agent/client/admin/gather.h"
#include "agent/client/admin/trace_chart.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* The answer comes this long after the end, at the latest, if the connection holds. */
#define GRACE_MS 10000
/* A time this far from the start of the trace, in ns, is none. */
#define FAR_NS (INT64_C(1) << 61)

/* ---- reading ---- */

static void read_process(struct chart *self, uint32_t process)
{
    const struct chart_process *row = &self->processes[process];
    const Replay__TraceSpans *from = row->from;
    const char *data = zmq_msg_data(row->frame);
    uint64_t zero = row->reply->start_ns;
    int64_t last = (int64_t)(row->reply->end_ns - zero);
    for (size_t at = 0; at + sizeof(struct trace_span) <= zmq_msg_size(row->frame); at += sizeof(struct trace_span)) {
        struct chart_event event = {.process = process, .shard = row->shard, .broker = row->broker};
        memcpy(&event.span, data + at, sizeof event.span);
        if (!trace_spans_are_sound(data + at, 1, (uint32_t)from->n_text)) {
            self->dropped++;
            continue;
        }
        if (!row->broker && event.span.link == TRACE_REQUEST)
            event.span.who = from->client;
        int64_t start = (int64_t)((uint64_t)event.span.start_ns + (uint64_t)from->offset_ns - zero);
        if (start < -FAR_NS || start > FAR_NS || start - NS_PER_S > last || start + event.span.duration_ns < 0)
            continue; /* not in the time of the trace */
        event.end_ns = start + event.span.duration_ns;
        event.early = start < 0;
        event.start_ns = start < 0 ? 0 : start;
        event.start_ns = event.start_ns + row->shift_ns > 0 ? event.start_ns + row->shift_ns : 0;
        event.end_ns = event.end_ns + row->shift_ns > event.start_ns ? event.end_ns + row->shift_ns : event.start_ns;
        self->events[self->n++] = event;
    }
}

static rp_status read_spans(struct chart *self, rp_error *err)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < self->n_processes; i++)
        bytes += zmq_msg_size(self->processes[i].frame);
    self->events = malloc((bytes / sizeof(struct trace_span) + 1) * sizeof *self->events);
    if (!self->events)
        return err_set(err, RP_NO_MEMORY, "no memory for a trace of %zu bytes", bytes);
    for (uint32_t i = 0; i < self->n_processes; i++)
        read_process(self, i);
    return RP_OK;
}

/* ---- shards ---- */

/* Returns how far the first shard's clock is before that of another, by the client that knows both best. False: no client took part at
 * both. */
static bool compare_clocks(const Replay__TraceReply *first, const Replay__TraceReply *other, int64_t *out)
{
    uint64_t best = UINT64_MAX;
    for (size_t i = 1; i < first->n_processes; i++) {
        const Replay__TraceSpans *here = first->processes[i];
        for (size_t k = 1; k < other->n_processes && here->client && here->uncertainty_ns; k++) {
            const Replay__TraceSpans *there = other->processes[k];
            uint64_t doubt = here->uncertainty_ns / 2 + there->uncertainty_ns / 2;
            if (there->client != here->client || !there->uncertainty_ns || doubt >= best)
                continue;
            best = doubt;
            *out = (int64_t)((uint64_t)here->offset_ns - (uint64_t)there->offset_ns);
        }
    }
    return best < UINT64_MAX;
}

/* Longest difference between the starts of two traces that were asked for at once. */
#define START_MOST_NS (60 * NS_PER_S)

/* Returns when a shard's trace began, after that of the first. Without a client at both, all began at once. */
static int64_t shift_of(const Replay__TraceReply *first, const Replay__TraceReply *other)
{
    int64_t clocks;
    if (first == other || !compare_clocks(first, other, &clocks))
        return 0;
    int64_t shift = (int64_t)(other->start_ns + (uint64_t)clocks - first->start_ns);
    return shift > -START_MOST_NS && shift < START_MOST_NS ? shift : 0;
}

static rp_status check_frames(const struct gather_answers *answers, uint32_t *n, rp_error *err)
{
    *n = 0;
    for (uint32_t i = 0; i < answers->n; i++) {
        const struct gather_answer *answer = &answers->of[i];
        if (!answer->wire)
            continue;
        if (answer->reply->n_payload != answer->wire->trace->n_processes)
            return err_set(err, RP_BAD_MESSAGE, "the broker's trace has %u frames for %zu processes",
                           answer->reply->n_payload, answer->wire->trace->n_processes);
        *n += answer->reply->n_payload;
    }
    return RP_OK;
}

/* Adds the first process of a shard, which is the shard itself, or its other processes. */
static void add_processes(struct chart *self, const struct gather_answers *answers, uint32_t shard, bool broker)
{
    const Replay__TraceReply *reply = answers->of[shard].wire->trace;
    int64_t shift = shift_of(answers->of[gather_first(answers)].wire->trace, reply);
    for (size_t i = broker ? 0 : 1; i < (broker && reply->n_processes ? 1 : reply->n_processes); i++)
        self->processes[self->n_processes++] = (struct chart_process){.from = reply->processes[i],
                                                                      .reply = reply,
                                                                      .frame = &answers->of[shard].reply->payload[i],
                                                                      .shift_ns = shift,
                                                                      .shard = shard,
                                                                      .broker = broker};
}

static rp_status read_answers(struct chart *self, const struct gather_answers *answers, rp_error *err)
{
    uint32_t n;
    RP_TRY(check_frames(answers, &n, err));
    self->sharded = answers->n > 1;
    self->processes = calloc(n + 1u, sizeof *self->processes);
    if (!self->processes)
        return err_set(err, RP_NO_MEMORY, "no memory for a trace of %u processes", n);
    for (uint32_t clients = 0; clients < 2; clients++)
        for (uint32_t i = 0; i < answers->n; i++)
            if (answers->of[i].wire)
                add_processes(self, answers, i, clients == 0);
    for (uint32_t i = 0; i < answers->n && !self->missing; i++)
        self->missing = answers->of[i].wire ? NULL : answers->of[i].problem;
    return read_spans(self, err);
}

/* ---- the call ---- */

rp_status rp_admin_trace_json(rp_client *client, int64_t duration_ms, char **json, rp_error *err)
{
    *json = NULL;
    Replay__Trace body = REPLAY__TRACE__INIT;
    body.duration_ms = duration_ms > 0 ? (uint64_t)duration_ms : 0;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_TRACE,
                                   .body = &body.base,
                                   .timeout_ms = conn_with_grace(duration_ms > 0 ? duration_ms : 0, GRACE_MS)};
    struct gather_plan plan = {.message = &message, .want = REPLAY__REPLY__BODY_TRACE, .patient = true};
    struct gather_answers *answers;
    RP_TRY(gather(client, &plan, &answers, err));
    struct chart chart = {0};
    rp_status status = read_answers(&chart, answers, err);
    if (status == RP_OK)
        status = chart_write(&chart, err);
    if (status == RP_OK)
        *json = json_take(&chart.json);
    if (status == RP_OK && !*json)
        status = err_set(err, RP_NO_MEMORY, "no memory for the text of a trace");
    json_fini(&chart.json);
    free(chart.events);
    free(chart.processes);
    gather_free(&answers);
    return status;
}
