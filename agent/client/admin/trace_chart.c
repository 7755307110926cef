/* Draws a trace in Chrome's trace format, which Perfetto and the Performance panel of Chrome's developer tools open.
 *
 * Every process of the trace is a "process", every thread a "thread" with complete events ("X") that nest. Spans of one track
 * that overlap without nesting, such as requests in flight, are laid into several rows of that track. The two ends of a message
 * are joined by an arrow: a flow from the client's span ("s") to the broker's ("f"). Chrome draws an arrow only if its start comes
 * first in the file, and if its ends have the category of the spans that they stand at. */
#include "agent/client/admin/trace_chart.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/base/error.h"

#define CATEGORY "replay"
/* Most rows of a track: nobody looks at more, and each event is tried in every row. */
#define ROWS_MOST 1024u

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

/* A row of a track, and the ends of the events in it that may contain the next one. */
struct row {
    int64_t *ends;
    uint32_t depth, capacity;
};

/* Puts the event into the row if it nests there. -1: no memory. */
static int row_take(struct row *self, const struct chart_event *event)
{
    while (self->depth && self->ends[self->depth - 1] <= event->start_ns)
        self->depth--;
    if (self->depth && self->ends[self->depth - 1] < event->end_ns)
        return 0;
    if (self->depth == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 8;
        int64_t *grown = realloc(self->ends, capacity * sizeof *grown);
        if (!grown)
            return -1;
        self->ends = grown;
        self->capacity = capacity;
    }
    self->ends[self->depth++] = event->end_ns;
    return 1;
}

static void write_row(struct chart *self, const struct chart_event *event, uint32_t number);

/* Lays the n events of one track into rows. False: no memory. */
static bool lay_track(struct chart *self, struct chart_event *events, uint32_t n)
{
    struct row *rows = NULL;
    uint32_t n_rows = 0;
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++) {
        uint32_t at = 0;
        int taken = 0;
        while (at < n_rows && (taken = row_take(&rows[at], &events[i])) == 0)
            at++;
        if (at == ROWS_MOST) {
            self->dropped++;
            continue;
        }
        if (at == n_rows) {
            struct row *grown = realloc(rows, (n_rows + 1) * sizeof *grown);
            if (grown) {
                rows = grown;
                rows[n_rows++] = (struct row){0};
                taken = row_take(&rows[at], &events[i]);
                write_row(self, &events[i], at);
            } else {
                taken = -1;
            }
        }
        events[i].row = self->rows + at + 1;
        ok = taken == 1;
    }
    self->rows += n_rows;
    for (uint32_t i = 0; i < n_rows; i++)
        free(rows[i].ends);
    free(rows);
    return ok;
}

static bool lay_all(struct chart *self)
{
    qsort(self->events, self->n, sizeof *self->events, by_track);
    for (uint32_t from = 0, to; from < self->n; from = to) {
        const struct chart_event *first = &self->events[from];
        for (to = from + 1; to < self->n; to++)
            if (self->events[to].process != first->process || self->events[to].span.track != first->span.track)
                break;
        if (!lay_track(self, &self->events[from], to - from))
            return false;
    }
    return true;
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

static bool are_linked(const struct chart_event *a, const struct chart_event *b)
{
    return a->span.link != TRACE_ALONE && a->span.link == b->span.link && a->shard == b->shard &&
           a->span.who == b->span.who && a->span.id == b->span.id;
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
        if (!client->broker && broker->broker && client->row && broker->row && are_linked(client, broker))
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
    json_key(&self->json, "args");
    json_open(&self->json, '{');
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
    json_key(&self->json, "args");
    json_open(&self->json, '{');
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
    json_key(&self->json, "args");
    json_open(&self->json, '{');
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
    json_key(&self->json, "args");
    json_open(&self->json, '{');
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

rp_status chart_write(struct chart *self, rp_error *err)
{
    json_open(&self->json, '[');
    bool ok = lay_all(self) && draw_arrows(self);
    for (uint32_t i = 0; i < self->n_processes; i++)
        write_process(self, i);
    if (ok)
        write_events(self);
    json_close(&self->json, ']');
    return ok && !self->json.failed ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for a trace of %u spans", self->n);
}
