/* A snapshot as text for Prometheus: its text format 0.0.4, or OpenMetrics 1.0. */
#ifndef BROKER_HTTP_METRICS_TEXT_H
#define BROKER_HTTP_METRICS_TEXT_H

#include "broker/http/out.h"
#include "broker/http/threads.h"
#include "broker/metrics/snapshot.h"

/* Sessions that have metrics of their own: those that sent most bytes. */
#define METRICS_SESSIONS 100u

struct metrics_style {
    bool openmetrics;
    int64_t
        shard; /* number of this broker among its shards: a label of all metrics; negative: it is alone, without that label */
};

void metrics_text(struct out *out, const struct snapshot *snapshot, const struct threads *threads,
                  const struct metrics_style *style);

/* How a histogram is shown: buckets from `first` to `last`, every `step`-th, and how many make a unit. */
struct histogram_scale {
    uint32_t first, last, step;
    double per_unit; /* a value of 1e9 nanoseconds is 1 second */
};
/* 1 microsecond to 137 seconds; 1 millisecond to 52 days; 0 to a million versions. */
extern const struct histogram_scale latency_scale, age_scale, versions_scale;

#endif
