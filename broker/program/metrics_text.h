/* What a broker says of itself as text for Prometheus: its text format 0.0.4, or OpenMetrics 1.0. The rows of proto/wire/figures.c
 * say which metrics there are. */
#pragma once

#include "broker/loop/histogram.h"
#include "proto/base/format.h"
#include "proto/wire/figures.h"

/* Sessions that have metrics of their own: those that sent most bytes. */
#define METRICS_SESSIONS 100u

struct metrics_style {
    bool openmetrics;
    int64_t
        shard; /* number of this broker among its shards, a label of all metrics; negative: it is alone, without that label */
};

/* info has a server and a process. */
void metrics_text(struct text *out, const Replay__InfoReply *info, const struct metrics_style *style);
/* Adds a number: whole ones as such, others with 15 digits; NaN, +Inf and -Inf as the text format writes them. */
void metrics_real(struct text *out, double value);
/* Gives the histogram that a message has under a figure's name. */
void metrics_histogram(const struct figure *figure, const ProtobufCMessage *message, struct histogram *out);
