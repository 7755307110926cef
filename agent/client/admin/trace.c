/* Records a trace, reads the spans of all processes that took part, and draws them in Chrome's trace format, which Perfetto and the
 * Performance panel of Chrome's developer tools open.
 *
 * With shards, every shard gives a trace by its own clock, with the part of each client that concerns it. Clients that take part at
 * two shards tell how far the clocks of these are apart.
 *
 * Every process of the trace is a "process", every thread a "thread" with complete events ("X") that nest. Spans of one track
 * that overlap without nesting, such as requests in flight, are laid into several rows of that track. The two ends of a message
 * are joined by an arrow: a flow from the client's span ("s") to the broker's ("f"). Chrome draws an arrow only if its start comes
 * first in the file, and if its ends have the category of the spans that they stand at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "agent/client/admin/gather.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/trace.h"
#include "replay/admin.h"

/* The answer comes this long after the end, at the latest, if the connection holds. */
#define TRACE_GRACE_MS 10000
/* A time this far from the start of the trace, in ns, is none. */
#define FAR_NS (INT64_C(1) << 61)
#define CATEGORY "replay"
/* Most rows of a track: nobody looks at more, and each event is tried in every row. */
#define ROWS_MOST 1024u
#define NO_EVENT UINT32_MAX

/* A span on its way into the file. */
struct chart_event {
    int64_t start_ns, end_ns; /* since the start of the trace, by the broker's clock */
    struct trace_span span;
    uint32_t process;
    uint32_t row;   /* "tid"; 0: its track is full, and it is dropped */
    uint32_t outer; /* in its row, the event of the track that contains it; NO_EVENT: none does */
    uint64_t arrow; /* 0: none */
    uint32_t shard; /* whose message it is */
    bool broker;    /* the process is a broker */
    bool early;     /* it began before the trace, at which it is cut off */
};

/* A process of the trace: the broker or a shard, or a client's part at it. */
struct chart_process {
    const Replay__TraceSpans *from;
    const Replay__TraceReply *reply; /* of its shard */
    zmq_msg_t *frame;                /* its spans */
    int64_t shift_ns;                /* start of that shard's trace, after that of the first */
    uint32_t shard;
    bool broker; /* brokers are before clients */
};

struct chart {
    struct chart_process *processes;
    uint32_t n_processes;
    bool sharded;
    const char *missing; /* why a shard has no part in the trace; NULL: all have */
    struct chart_event *events;
    uint32_t n;
    uint64_t dropped; /* spans that cannot be read, or that have no row */
    uint32_t rows;
    struct json json;
};

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
        if (!answer->trace)
            continue;
        if (answer->reply->n_payload != answer->trace->n_processes)
            return err_set(err, RP_BAD_MESSAGE, "the broker's trace has %u frames for %zu processes",
                           answer->reply->n_payload, answer->trace->n_processes);
        *n += answer->reply->n_payload;
    }
    return RP_OK;
}

/* Adds the first process of a shard, which is the shard itself, or its other processes. */
static void add_processes(struct chart *self, const struct gather_answers *answers, uint32_t shard, bool broker)
{
    const Replay__TraceReply *reply = answers->of[shard].trace;
    int64_t shift = shift_of(answers->of[gather_first(answers)].trace, reply);
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
            if (answers->of[i].trace)
                add_processes(self, answers, i, clients == 0);
    for (uint32_t i = 0; i < answers->n && !self->missing; i++)
        self->missing = answers->of[i].trace ? NULL : answers->of[i].problem;
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

/* ---- rows ---- */

static int64_t order(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* Tracks one after another, each by time; of two that start together the longer one comes first and contains the other. */
static int by_track(const void *left, const void *right)
{
    const struct chart_event *a = left, *b = right;
    int64_t way = order(a->process, b->process);
    way = way ? way : order(a->span.track, b->span.track);
    way = way ? way : order(a->start_ns, b->start_ns);
    way = way ? way : order(b->end_ns, a->end_ns);
    return (int)way;
}

static void write_row(struct chart *self, const struct chart_event *event, uint32_t number);

/* Puts event i into a row if it nests there. *inner: the innermost event of the row that may contain it; NO_EVENT: there is none. */
static bool row_take(struct chart_event *events, uint32_t *inner, uint32_t i)
{
    while (*inner != NO_EVENT && events[*inner].end_ns <= events[i].start_ns)
        *inner = events[*inner].outer;
    if (*inner != NO_EVENT && events[*inner].end_ns < events[i].end_ns)
        return false;
    events[i].outer = *inner;
    *inner = i;
    return true;
}

/* Lays the n events of one track into rows. */
static void lay_track(struct chart *self, struct chart_event *events, uint32_t n)
{
    uint32_t rows[ROWS_MOST], n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;
        while (at < n_rows && !row_take(events, &rows[at], i))
            at++;
        if (at == ROWS_MOST) {
            self->dropped++;
            continue;
        }
        if (at == n_rows) {
            rows[n_rows++] = NO_EVENT;
            row_take(events, &rows[at], i);
            write_row(self, &events[i], at);
        }
        events[i].row = self->rows + at + 1;
    }
    self->rows += n_rows;
}

static void lay_all(struct chart *self)
{
    qsort(self->events, self->n, sizeof *self->events, by_track);
    for (uint32_t from = 0, to; from < self->n; from = to) {
        const struct chart_event *first = &self->events[from];
        for (to = from + 1; to < self->n; to++)
            if (self->events[to].process != first->process || self->events[to].span.track != first->span.track)
                break;
        lay_track(self, &self->events[from], to - from);
    }
}

/* ---- arrows ---- */

/* By what they are linked with: the client's end of a message, then the broker's in the order of time. */
static int by_link(const void *left, const void *right)
{
    const struct chart_event *a = *(struct chart_event *const *)left, *b = *(struct chart_event *const *)right;
    int64_t way = order(a->span.link, b->span.link);
    way = way ? way : order(a->shard, b->shard);
    way = way ? way : a->span.who != b->span.who ? (a->span.who < b->span.who ? -1 : 1) : 0;
    way = way ? way : a->span.id != b->span.id ? (a->span.id < b->span.id ? -1 : 1) : 0;
    way = way ? way : order(a->broker, b->broker);
    way = way ? way : order(a->start_ns, b->start_ns);
    return (int)way;
}

/* Joins each message's end at a client with the first at the broker. False: no memory. */
static bool draw_arrows(struct chart *self)
{
    struct chart_event **sorted = malloc((self->n + 1) * sizeof *sorted);
    uint64_t arrow = 0;
    if (!sorted)
        return false;
    for (uint32_t i = 0; i < self->n; i++)
        sorted[i] = &self->events[i];
    qsort(sorted, self->n, sizeof(*sorted), by_link);
    for (uint32_t i = 1; i < self->n; i++) {
        struct chart_event *client = sorted[i - 1], *broker = sorted[i];
        const struct trace_span *a = &client->span, *b = &broker->span;
        bool linked = a->link != TRACE_ALONE && a->link == b->link && client->shard == broker->shard &&
                      a->who == b->who && a->id == b->id;
        if (!client->broker && broker->broker && client->row && broker->row && linked)
            client->arrow = broker->arrow = ++arrow;
    }
    free(sorted);
    return true;
}

/* ---- writing ---- */

static void open_event(struct chart *self, const char *phase, const char *name, uint32_t process, uint32_t row)
{
    json_open(&self->json, '{');
    json_text(&self->json, "ph", phase);
    json_text(&self->json, "name", name);
    json_count(&self->json, "pid", process + 1);
    json_count(&self->json, "tid", row);
}

/* Chrome's times are microseconds. */
static void put_us(struct chart *self, const char *key, int64_t ns)
{
    json_real(&self->json, key, (double)ns / 1e3);
}

static void write_row(struct chart *self, const struct chart_event *event, uint32_t number)
{
    char name[TRACE_TEXT_BYTES + 16];
    snprintf(name, sizeof name, number ? "%.47s (%u)" : "%.47s",
             self->processes[event->process].from->text[event->span.track], number + 1);
    open_event(self, "M", "thread_name", event->process, self->rows + number + 1);
    json_begin(&self->json, "args", '{');
    json_text(&self->json, "name", name);
    json_close(&self->json, '}');
    json_close(&self->json, '}');
}

static void write_process(struct chart *self, uint32_t process)
{
    const struct chart_process *row = &self->processes[process];
    const Replay__TraceSpans *from = row->from;
    char name[300];
    if (self->sharded)
        snprintf(name, sizeof name, "%.200s, shard %u (pid %u)", from->name, row->shard, from->pid);
    else
        snprintf(name, sizeof name, "%.200s (pid %u)", from->name, from->pid);
    open_event(self, "M", "process_name", process, 0);
    json_begin(&self->json, "args", '{');
    json_text(&self->json, "name", name);
    json_key(&self->json, "clock_offset_ns");
    json_signed(&self->json, from->offset_ns);
    json_count(&self->json, "clock_uncertainty_ns", from->uncertainty_ns);
    json_count(&self->json, "dropped_spans", from->dropped + (process == 0 ? self->dropped : 0));
    if (row->broker) {
        put_us(self, "trace_us", (int64_t)(row->reply->end_ns - row->reply->start_ns));
        json_count(&self->json, "clients_missing", row->reply->missing);
    }
    if (process == 0 && self->missing)
        json_text(&self->json, "shard_missing", self->missing);
    json_close(&self->json, '}');
    json_close(&self->json, '}');
    open_event(self, "M", "process_sort_index", process, 0);
    json_begin(&self->json, "args", '{');
    json_count(&self->json, "sort_index", process);
    json_close(&self->json, '}');
    json_close(&self->json, '}');
}

/* An end of an arrow, at the start of the event that is there. */
static void write_arrow(struct chart *self, const struct chart_event *event)
{
    bool ends = event->broker;
    open_event(self, ends ? "f" : "s", event->span.link == TRACE_INGEST ? "ingest" : "request", event->process,
               event->row);
    put_us(self, "ts", event->start_ns);
    json_text(&self->json, "cat", CATEGORY);
    json_count(&self->json, "id", event->arrow);
    if (ends)
        json_text(&self->json, "bp", "e");
    json_close(&self->json, '}');
}

static void write_event(struct chart *self, const struct chart_event *event)
{
    const Replay__TraceSpans *from = self->processes[event->process].from;
    char text[24];
    open_event(self, "X", from->text[event->span.name], event->process, event->row);
    json_text(&self->json, "cat", CATEGORY);
    put_us(self, "ts", event->start_ns);
    put_us(self, "dur", event->end_ns - event->start_ns);
    json_begin(&self->json, "args", '{');
    if (event->span.count)
        json_count(&self->json, "count", event->span.count);
    if (event->span.link != TRACE_ALONE) {
        json_text(&self->json, "kind", event->span.link == TRACE_INGEST ? "ingest" : "request");
        snprintf(text, sizeof text, "%llu", (unsigned long long)event->span.who);
        json_text(&self->json, event->span.link == TRACE_INGEST ? "session" : "client", text);
        json_count(&self->json, "id", event->span.id);
    }
    if (event->early)
        json_text(&self->json, "note", "began before the trace");
    json_close(&self->json, '}');
    json_close(&self->json, '}');
    if (event->arrow)
        write_arrow(self, event);
}

/* Writes the broker's events last, because arrows end there. */
static void write_events(struct chart *self)
{
    uint32_t first = 0;
    while (first < self->n && self->events[first].broker)
        first++;
    for (uint32_t i = 0; i < self->n; i++) {
        const struct chart_event *event = &self->events[(first + i) % self->n];
        if (event->row)
            write_event(self, event);
    }
}

/* Lays the events into rows, joins the ends of messages, and writes all into json. RP_NO_MEMORY: it failed. */
static rp_status chart_write(struct chart *self, rp_error *err)
{
    json_open(&self->json, '[');
    lay_all(self);
    bool ok = draw_arrows(self);
    for (uint32_t i = 0; i < self->n_processes; i++)
        write_process(self, i);
    if (ok)
        write_events(self);
    json_close(&self->json, ']');
    return ok && !self->json.out.failed ? RP_OK
                                        : err_set(err, RP_NO_MEMORY, "no memory for a trace of %u spans", self->n);
}

/* ---- the call ---- */

rp_status rp_admin_trace_json(rp_client *client, int64_t duration_ms, char **json, rp_error *err)
{
    *json = NULL;
    Replay__Trace body = REPLAY__TRACE__INIT;
    body.duration_ms = duration_ms > 0 ? (uint64_t)duration_ms : 0;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_TRACE,
                                   .body = &body.base,
                                   .timeout_ms = duration_ms > 0 ? duration_ms : 0,
                                   .grace_ms = TRACE_GRACE_MS};
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
