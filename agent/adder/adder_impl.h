/* The inside of an adder: what the kinds share.
 *
 * Rows of the writer's stream are made in two parts: the observation is set when it is seen, the rest follows when the
 * action in it and what came of that are known. Rows never wait; items may, for room in the writer's buffer. So a call
 * first puts the operations that it leads to into a queue and then works through it. What is left after a time-out is
 * done by the next adder_retry, each operation once. */
#ifndef AGENT_ADDER_ADDER_IMPL_H
#define AGENT_ADDER_ADDER_IMPL_H

#include <stddef.h>

#include "agent/adder/adder.h"
#include "proto/base/log.h"

enum adder_column {
    COLUMN_OBSERVATION,
    COLUMN_ACTION,
    COLUMN_REWARD,
    COLUMN_DISCOUNT,
    COLUMN_STEP_TYPE, /* not in streams of transitions */
    COLUMN_LOG_PROB,  /* optional */
    ADDER_MAX_COLUMNS,
};

enum op_kind {
    OP_ROW,  /* completes the row whose observation is set, without an action; or makes one without an observation */
    OP_ZERO, /* `count` rows of zeros, marked as padding */
    OP_ITEM,
    OP_END, /* of the writer's episode */
};

/* Rows are counted from the start of the writer's episode. */
struct op {
    int32_t kind;         /* an op_kind */
    uint8_t step_type;    /* OP_ROW */
    float reward;         /* OP_ROW */
    float discount;       /* OP_ROW */
    uint64_t count;       /* OP_ZERO */
    uint64_t first, last; /* OP_ITEM: its first row; transitions: the row of the next observation */
    uint64_t result;      /* OP_ITEM, transitions: the row of reward and discount */
    uint64_t policy;      /* OP_ITEM */
    double priority;      /* OP_ITEM */
};

/* What later items need of an earlier row. */
struct trace {
    float reward, q;
    uint64_t policy;
};

struct adder_kind_ops {
    const char *name;
    /* Checks the kind's part of the configuration and sets keep_alive, max_ops, slices and n_slices. */
    rp_status (*create)(struct adder *self, rp_error *err);
    /* Completes the row of this step and queues the operations that follow. The next observation is not set yet. */
    rp_status (*step)(struct adder *self, const struct adder_step *step, rp_error *err);
    /* Queues the operations at the end of an episode, after the next observation was set. */
    void (*end)(struct adder *self, const struct adder_step *step);
    /* Points self->slices to the rows of an item. */
    void (*aim)(struct adder *self, const struct op *op);
};

extern const struct adder_kind_ops adder_transition, adder_sequence, adder_episode;

struct adder {
    const struct adder_kind_ops *ops;
    struct adder_config config; /* its table is a copy of ours */
    rp_writer *writer;
    size_t observation_bytes, action_bytes;
    void *zeros; /* as long as the longest row of a column */
    uint32_t n_columns;
    bool with_types, with_log_prob;
    bool running;       /* inside an episode */
    bool ended;         /* the last step was added, and the queue is not empty */
    uint64_t length;    /* steps of this episode */
    uint64_t rows;      /* complete rows in the writer's episode, queued ones included */
    uint64_t policy;    /* version of the parameters that act now */
    uint64_t keep_rows; /* how many rows items reach back */
    struct trace *trace;
    uint64_t trace_mask;
    double *power; /* transitions: powers of the discount, 0 .. n - 1 */
    rp_slice slices[ADDER_MAX_COLUMNS];
    uint32_t n_slices;
    struct op *queue;
    uint32_t max_ops, n_ops, next_op;
    struct adder_stats stats;
    uint64_t accepted;       /* items, when an item was last refused */
    uint64_t refused_before; /* items, when one was last accepted */
    struct log_limit log;
};

/* Appends an operation, zeroed but for its kind. */
struct op *adder_push(struct adder *self, int32_t kind);
/* A row of the stream, but for its observation. */
struct adder_row {
    const void *action; /* NULL: none */
    float reward, discount;
    uint8_t step_type;
    float log_prob;
};
/* Completes the row whose observation is set. Streams without step_type and log_prob leave them out. */
rp_status adder_complete(struct adder *self, const struct adder_row *row, rp_error *err);

/* The trace of a row of the writer's episode at which items may still start. */
static inline struct trace *adder_trace(struct adder *self, uint64_t row)
{
    return &self->trace[row & self->trace_mask];
}

#endif
