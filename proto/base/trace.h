/* A trace: spans that say what a process did and when.
 *
 * Any thread may add a span. While no trace is on, a recorder has no memory, and a caller pays one test (trace_on). The record
 * keeps the first spans and drops later ones when it is full: so all processes of a trace show the same beginning, and spans
 * that belong together are there together. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"

/* Most different names of spans and tracks, and their longest text with its end. */
#define TRACE_TEXTS 250u
#define TRACE_TEXT_BYTES 48u

/* What (who, id) names, so that the two ends of a message find each other. */
enum trace_link {
    TRACE_ALONE,   /* nothing */
    TRACE_REQUEST, /* a request: a client, and the request's id */
    TRACE_INGEST,  /* an ingest message: a session's ordinal, and the message's number */
    TRACE_LINKS,
};

/* A record, as it is sent: little-endian, 40 bytes. */
struct trace_span {
    int64_t start_ns, duration_ns;
    uint64_t who; /* in a client's own record 0 stands for the client */
    uint64_t id;
    uint32_t count; /* of items, keys or bytes */
    uint16_t name;  /* index of a text */
    uint8_t track;  /* the same: a thread, or a group of things that overlap, such as requests */
    uint8_t link;   /* a trace_link */
};
_Static_assert(sizeof(struct trace_span) == 40, "a span is sent as it is");

/* Spans and their texts. */
struct trace_list {
    struct trace_span *spans;
    uint32_t n, capacity;
    uint64_t dropped;
    char (*texts)[TRACE_TEXT_BYTES];
    const char **sources; /* [n_texts] where each text came from: most are constants */
    uint32_t n_texts;
};
void trace_list_fini(struct trace_list *self);

struct trace {
    atomic_bool on;
    pthread_mutex_t lock;
    struct trace_list list;
};

void trace_init(struct trace *self);
void trace_fini(struct trace *self);
/* Starts to record. False: no memory. */
bool trace_start(struct trace *self, uint32_t capacity);
/* Stops, and gives what was recorded. */
void trace_stop(struct trace *self, struct trace_list *out);

static inline bool trace_on(const struct trace *self)
{
    return __builtin_expect(atomic_load_explicit(&self->on, memory_order_relaxed), 0);
}
/* Returns the time, or 0 if nothing is recorded. */
static inline int64_t trace_now(const struct trace *self)
{
    return trace_on(self) ? clock_ns() : 0;
}
/* Adds a span, if a trace is on. name and track are copied; span->name and span->track are set here. track NULL: the calling
 * thread. */
void trace_add(struct trace *self, const char *name, const char *track, const struct trace_span *span);
/* Adds a span from start_ns until now. start_ns 0, from trace_now before the trace began: nothing is added. */
void trace_add_until_now(struct trace *self, const char *name, const char *track, int64_t start_ns, uint32_t count);
static inline void trace_add_since(struct trace *self, const char *name, const char *track, int64_t start_ns,
                                   uint32_t count)
{
    if (__builtin_expect(start_ns != 0, 0))
        trace_add_until_now(self, name, track, start_ns, count);
}

/* True if all n records, aligned or not, have known texts and links, and times that can be added up. */
bool trace_spans_are_sound(const void *records, uint32_t n, uint32_t n_texts);
