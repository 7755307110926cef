/* The numbers that a broker shows of itself: one row for each number in the messages of InfoReply says how the numbers of several
 * shards become one, and which metric shows it. The sum over shards (agent/client/admin/gather.c) and /metrics (broker/program) are made from
 * these rows; JSON is made from the messages (json_message). To add a number: a field in replay.proto, a row here, the line that
 * counts, and a line in docs/METRICS.md. */
#pragma once

#include <stdint.h>

#include "replay.pb-c.h"

enum figure_fold {
    FOLD_FIRST, /* all shards have the same, or that of the first is as good as any */
    FOLD_SUM,
    FOLD_MOST,
    FOLD_LEAST,
    FOLD_BOUND, /* a sum, unless a bound is so large that there is none */
    FOLD_MEAN,  /* weighted by the samples of each shard */
};

enum figure_type { FIGURE_PLAIN, FIGURE_COUNTER, FIGURE_GAUGE, FIGURE_HISTOGRAM };

/* How a histogram of powers of two is shown: buckets from `first` to `last`, every `step`-th, and how many make a unit. */
struct figure_scale {
    uint32_t first, last, step;
    double per_unit; /* a value of 1e9 nanoseconds is 1 second */
};

struct figure {
    const char *name; /* of the field; NULL ends the list. Nanoseconds end in _ns, and a metric shows them as seconds */
    enum figure_fold fold;
    enum figure_type type;
    const char *metric; /* a counter's without "_total"; NULL: not in /metrics */
    const char *label;  /* further label of this metric, or NULL; rows of one metric stand together */
    const char *help;
    const struct figure_scale *scale; /* of a histogram, whose sum is the field NAME_sum */
};

struct figures {
    const ProtobufCMessageDescriptor *of;
    const char *label; /* of the metrics, with the first field of the message as its value; NULL: none */
    const struct figure *rows;
};

extern const struct figures server_figures, memory_figures, disk_figures, status_figures, command_figures,
    table_figures, limiter_figures, session_figures, slot_figures, counter_figures, process_figures, thread_figures;

/* A bound of a limiter beyond this is none. */
#define FIGURE_NO_BOUND 1e17

/* Returns the row of a field; NULL: it has none. */
const struct figure *figure_find(const ProtobufCMessageDescriptor *of, const char *name);
/* Returns the value of a number as a metric shows it: nanoseconds as seconds, a bound that is none as an infinity. */
double figure_value(const struct figure *figure, const ProtobufCMessage *message);
