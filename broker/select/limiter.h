/* The rate limiter: how many inserts and samples a table allows now. One mechanism, six presets.
 *
 * cursor = inserts * samples_per_insert - samples, plus an offset that keeps it in its place when the ratio is changed.
 * With kind lag the cursor counts the items that are ahead of the learner: each insert is one more, and a version of the parameters
 * takes `batch` of them back; samples do not count. It may reach (max_lag + 1) * batch.
 *
 * Kind lag over shards: each shard has its part b of the batch, so the cursors may reach (max_lag + 1) * batch together. But writers do
 * not spread evenly (an episode stays at one shard, a group at its own), and the learner needs a whole batch before its next version:
 * a shard that is full would wait for it, and it for that shard's items. So a sampler that waits moves room from a shard that has
 * some to one whose inserts wait: one cursor goes up, then the other goes down by as much.
 *   - Never too much: moves keep the sum of the cursors, and a version takes no more than b from each. The sum is never less than
 *     the items that are ahead of the learner.
 *   - Never too little: no cursor is above (max_lag + 1) * b, so after each version there is room for a whole batch, and it can move.
 *   - Room moves between shards of the same version, because a version settles what was moved before it, and only for inserts whose
 *     items were sampled: the cursor stays at the unsampled items or above (limiter_forgot).
 *   - Room is lost, until the next version, if the sampler dies between the two halves of a move: a learner that restarts publishes.
 *
 * Deletes change the size, not the cursor, but for items that became too old to be sampled: they owe no samples any more. Limits are
 * inclusive. Embedded in its table, which calls it before and after each operation. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"

/* Counts are exact in a double up to here. */
#define LIMITER_MOST_COUNT (UINT64_C(1) << 53)
/* Most versions that an item may be behind. */
#define LIMITER_MOST_LAG 65536u

enum limiter_kind { LIMITER_NONE, LIMITER_MIN_SIZE, LIMITER_RATIO, LIMITER_QUEUE, LIMITER_STACK, LIMITER_LAG };
#define LIMITER_KINDS ((uint32_t)LIMITER_LAG + 1)

/* As configured. error_buffer >= 0 sets both bounds; otherwise min_diff and max_diff are used as they are. */
struct limiter_config {
    enum limiter_kind kind;
    double samples_per_insert;
    double min_size;
    bool part;           /* the table is one of several shards: its part of min_size may be 0 */
    double error_buffer; /* < 0: not given */
    double min_diff;
    double max_diff;
    double size;    /* queue, stack */
    double batch;   /* lag: items that the learner takes between two versions; of a shard, its part of them */
    double whole;   /* lag, part: items of all shards */
    double max_lag; /* lag: versions that an item may be behind; < 0: not given */
};

struct limiter {
    enum limiter_kind kind;
    bool part;   /* as configured */
    bool paused; /* nothing is allowed; a restart ends it */
    double samples_per_insert;
    double min_size;      /* items without which nothing is sampled, at least 1 */
    double min_size_part; /* as configured: the parts of all shards add up to min_size of the table */
    double min_diff;
    double max_diff;
    double batch;     /* lag; otherwise 0 */
    double whole;     /* as configured */
    uint64_t version; /* lag: the newest */
    double offset;    /* keeps the cursor in its place when settings change */
    uint64_t inserts;
    uint64_t samples;
    uint64_t deletes;
    uint32_t configured;   /* hash of the settings of the configuration, never 0 */
    uint32_t changed_from; /* `configured`, if the settings were changed since; otherwise 0 */
};

/* A change of a running limiter; NaN leaves a value as it is. */
struct limiter_change {
    double samples_per_insert;
    double min_size;
    double min_diff;
    double max_diff;
    double error_buffer;
    double max_lag; /* lag */
};

/* Returns the kind's name in a configuration. */
const char *limiter_kind_name(enum limiter_kind kind);

rp_status limiter_check_lag(double lag, rp_error *err);
rp_status limiter_init(struct limiter *self, const struct limiter_config *config, rp_error *err);
/* Checks all values, then changes all; an error leaves the limiter as it was. Counters stay. Kind min_size can change only
 * min_size, queue and stack only max_diff (their size), lag only max_lag, none nothing.
 *
 * Bounds that error_buffer has set follow a new ratio or min_size, and the cursor keeps its place between them; otherwise bounds
 * and cursor stay where they are. */
rp_status limiter_change(struct limiter *self, const struct limiter_change *change, rp_error *err);

/* Returns how many inserts (samples) in a row are allowed now, at most `most`. */
uint64_t limiter_insertable(const struct limiter *self, uint64_t most);
uint64_t limiter_sampleable(const struct limiter *self, uint64_t most);

void limiter_inserted(struct limiter *self, uint64_t n);
static inline void limiter_sampled(struct limiter *self, uint64_t n)
{
    self->samples += n;
}
/* Takes back samples that were counted. */
void limiter_refund(struct limiter *self, uint64_t n);
void limiter_deleted(struct limiter *self, uint64_t n);
/* An item that was sampled so often has become too old, has left, and owes no more samples. unseen: items of the table that were never
 * sampled, without it. */
void limiter_forgot(struct limiter *self, uint32_t times_sampled, uint64_t unseen);
/* The parameters have this version now. True: the limiter has changed. */
bool limiter_moved(struct limiter *self, uint64_t version);
/* lag: room for n inserts comes from another shard; below 0: goes to one. unseen: items that were never sampled. Returns how many. */
uint64_t limiter_move(struct limiter *self, int64_t n, uint64_t unseen);
void limiter_reset(struct limiter *self);
/* Sets the offset after a change of settings: see limiter_change. from: the same limiter, before the change. */
void limiter_place(struct limiter *self, const struct limiter *from);
/* Takes over the settings of an earlier process that were changed while it ran, if the configuration is the same as then. */
rp_status limiter_keep(struct limiter *self, uint32_t changed_from, const struct limiter_change *settings,
                       rp_error *err);

/* True if samples are paid for: over shards a sampler takes permits, which are charged, and its picks are not. Otherwise nobody
 * pays, and every pick counts, wherever it is made. */
bool limiter_takes_permits(const struct limiter *self);
/* True if inserts wait for samples: then an item that leaves before it was sampled reduces the inserts that are possible. */
bool limiter_counts(const struct limiter *self);
double limiter_cursor(const struct limiter *self);
/* Returns the width between the bounds of the cursor. 0: it has not both. */
double limiter_span(const struct limiter *self);
/* Returns the largest batch, up to `most`, that the limiter will eventually grant in one piece if inserts go on and nobody else
 * samples. */
uint64_t limiter_most_at_once(const struct limiter *self, uint64_t most);
uint64_t limiter_size(const struct limiter *self);
/* Versions that an item may be behind, with kind lag; otherwise -1. */
double limiter_max_lag(const struct limiter *self);

/* Both write a clause such as "needs 412 more inserts: the table has 88 items, min_size is 500": what the next insert, or a
 * sample of `want` items, waits for. Empty: it does not wait. The numbers are exact as long as nothing is deleted: with that
 * many more inserts (samples) it is possible, with one fewer it is not. Unless it is paused, the limiter never holds back both an insert
 * and a sample of one item. */
void limiter_explain_insert(const struct limiter *self, char *text, size_t size);
void limiter_explain_sample(const struct limiter *self, uint64_t want, char *text, size_t size);
