/* The drawing of a trace: its processes and spans, laid into rows and written as JSON. */
#ifndef AGENT_CLIENT_ADMIN_TRACE_CHART_H
#define AGENT_CLIENT_ADMIN_TRACE_CHART_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "proto/base/json.h"
#include "proto/base/trace.h"
#include "replay.pb-c.h"
#include "replay/error.h"

/* A span on its way into the file. */
struct chart_event {
    int64_t start_ns, end_ns; /* since the start of the trace, by the broker's clock */
    struct trace_span span;
    uint32_t process;
    uint32_t row;   /* "tid"; 0: its track is full, and it is dropped */
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

/* Lays the events into rows, joins the ends of messages, and writes all into json. RP_NO_MEMORY: it failed. */
rp_status chart_write(struct chart *self, rp_error *err);

#endif
