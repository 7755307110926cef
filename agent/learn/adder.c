/* Adders: what all share (the stream, the queue of items and the checks) and the kinds: transitions and sequences. An episode is a
 * sequence that is as long as an episode may be, and is cut off at its end.
 *
 * Rows of the writer's stream are made in two parts: the observation is set when it is seen, the rest follows when the
 * action in it and what came of that are known. Rows never wait; items may, for room in the writer's buffer. So a call
 * first makes its rows and puts the items over them into a queue, and then works through the queue. What is left after a
 * time-out is done by the next adder_retry. */
#include "agent/learn/adder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define DEFAULT_BUFFER_ITEMS 200
#define MOST_BATCH_ITEMS 4096 /* as a writer allows */
#define MIN_CODED_BYTES 64
#define MAX_TIMEOUT_MS (INT64_MAX / NS_PER_MS / 4)
/* How often, in steps, an adder looks for items that the broker refused within an episode. */
#define REJECTIONS_EVERY 256
/* So many refused items without one that was accepted mean that the broker takes none: its table is another than it was. */
#define REFUSED_IN_A_ROW 256u

enum adder_column {
    COLUMN_OBSERVATION,
    COLUMN_ACTION,
    COLUMN_REWARD,
    COLUMN_DISCOUNT,
    COLUMN_STEP_TYPE, /* not in streams of transitions */
    COLUMN_LOG_PROB,  /* optional */
    ADDER_MAX_COLUMNS,
};

/* An item that is to be made. Rows are counted from the start of the writer's episode. */
struct item {
    uint64_t first, last; /* its first row; transitions: the row of the next observation */
    uint64_t result;      /* transitions: the row of reward and discount */
    double priority;
};

/* What later items need of an earlier row. */
struct trace {
    float reward, q;
};

struct adder_kind_ops {
    const char *name;
    /* Sets keep_rows, max_items, slices and n_slices. */
    void (*create)(struct adder *self);
    /* Completes the row of this step and queues the items that end there. The next observation is not set yet. */
    rp_status (*step)(struct adder *self, const struct adder_step *step, rp_error *err);
    /* Makes the rows at the end of an episode and queues their items, after those of its last step were made. Sets `closing` if
     * the writer's episode ends, too. */
    rp_status (*end)(struct adder *self, rp_error *err);
    /* Points self->slices to the rows of an item. */
    void (*aim)(struct adder *self, const struct item *item);
};

struct adder {
    const struct adder_kind_ops *ops;
    struct adder_config config; /* its table is a copy of ours */
    struct sequence sequence;
    rp_writer *writer;
    size_t observation_bytes, action_bytes;
    void *zeros; /* as long as the longest row of a column */
    uint32_t n_columns;
    bool with_types, with_log_prob;
    bool running;  /* inside an episode */
    bool over;     /* the last step was added: the episode ends when the queue is empty */
    bool ended;    /* its end is not in the queue yet */
    bool closing;  /* the writer's episode ends after the queue */
    bool terminal; /* of the last step */
    float last_value;
    uint64_t length;    /* steps of this episode */
    uint64_t rows;      /* complete rows in the writer's episode, queued ones included */
    uint64_t policy;    /* version of the parameters that act now */
    uint64_t keep_rows; /* how many rows items reach back */
    struct trace *trace;
    uint64_t trace_mask;
    double *power; /* transitions: powers of the discount, 0 .. n - 1 */
    rp_slice slices[ADDER_MAX_COLUMNS];
    uint32_t n_slices;
    struct item *queue;
    uint32_t max_items, n_items, next_item;
    struct adder_stats stats;
    uint64_t accepted;       /* items, when an item was last refused */
    uint64_t refused_before; /* items, when one was last accepted */
    struct log_limit log;
};

/* ---- rows and items, for the kinds ---- */

/* A row of the stream, but for its observation. */
struct adder_row {
    const void *action; /* NULL: none; streams with step types have zeros there */
    float reward, discount;
    uint8_t step_type;
    float log_prob;
};

/* Completes the row whose observation is set. Streams without step_type and log_prob leave them out. */
static rp_status adder_complete(struct adder *self, const struct adder_row *row, rp_error *err)
{
    const void *action = row->action || !self->with_types ? row->action : self->zeros;
    const void *values[ADDER_MAX_COLUMNS] = {NULL,           action,          &row->reward,
                                             &row->discount, &row->step_type, &row->log_prob};
    rp_writer_set_policy(self->writer, self->policy);
    return rp_writer_append(self->writer, values, -1, err);
}

/* The trace of a row of the writer's episode at which items may still start. */
static inline struct trace *adder_trace(struct adder *self, uint64_t row)
{
    return &self->trace[row & self->trace_mask];
}

/* ---- transitions ----
 *
 * Transitions over up to n steps.
 *
 * Row t of the stream has the observation s_t, the action a_t, and in reward and discount the R and D of the window that
 * ends at s_t: it is complete when a_t is taken, which is also when the actor's value of s_t is known. So the item that
 * ends at s_t is made with row t. In row 0, where no window ends, both are 0. At the end of an episode of T steps there is
 *
 *   row T            s_T, no action;     R and D of s_{T-k} -> s_T, k = min(n, T)
 *   row T + j        neither;            R and D of s_{T-k+j} -> s_T, j = 1 .. k - 1
 *
 * so every observation is stored once, and one item is made with each row but the first. */

static void transition_create(struct adder *self)
{
    const struct adder_config *config = &self->config;
    self->slices[0] = (rp_slice){.field = "observation", .column = COLUMN_OBSERVATION, .count = 1, .squeeze = 1};
    self->slices[1] = (rp_slice){.field = "action", .column = COLUMN_ACTION, .count = 1, .squeeze = 1};
    self->slices[2] = (rp_slice){.field = "reward", .column = COLUMN_REWARD, .count = 1, .squeeze = 1};
    self->slices[3] = (rp_slice){.field = "discount", .column = COLUMN_DISCOUNT, .count = 1, .squeeze = 1};
    self->slices[4] = (rp_slice){.field = "next_observation", .column = COLUMN_OBSERVATION, .count = 1, .squeeze = 1};
    self->n_slices = 5;
    self->keep_rows = 2 * (uint64_t)config->n_step;
    self->max_items = (uint32_t)config->n_step + 1;
}

/* The rewards of rows first .. last - 1, discounted. */
static double sum_rewards(struct adder *self, uint64_t first, uint64_t last)
{
    double sum = 0;
    for (uint64_t row = first; row < last; row++)
        sum += self->power[row - first] * (double)adder_trace(self, row)->reward;
    return sum;
}

/* An item s_first -> s_last. */
struct window {
    uint64_t first, last;
    uint64_t result;      /* row of its R and D */
    double sum, discount; /* R and D */
    double value;         /* of s_last; 0 after a terminal step */
};

static void transition_push_item(struct adder *self, const struct window *window)
{
    const struct trace *trace = adder_trace(self, window->first);
    double priority = ADDER_PRIORITY;
    if (self->config.actor_priorities)
        priority = fabs(window->sum + self->config.discount * window->discount * window->value - (double)trace->q);
    self->queue[self->n_items++] = (struct item){window->first, window->last, window->result,
                                                 priority > ADDER_MIN_PRIORITY ? priority : ADDER_MIN_PRIORITY};
}

static rp_status transition_step(struct adder *self, const struct adder_step *in, rp_error *err)
{
    uint64_t t = self->rows, n = (uint64_t)self->config.n_step;
    uint64_t first = t < n ? 0 : t - n;
    double sum = sum_rewards(self, first, t);
    double discount = t > first ? self->power[t - first - 1] : 0;
    RP_TRY(adder_complete(
        self, &(struct adder_row){.action = in->action, .reward = (float)sum, .discount = (float)discount}, err));
    if (t > 0)
        transition_push_item(self, &(struct window){first, t, t, sum, discount, (double)in->value});
    *adder_trace(self, t) = (struct trace){.reward = in->reward, .q = in->q};
    return RP_OK;
}

static rp_status transition_end(struct adder *self, rp_error *err)
{
    uint64_t last = self->rows, n = (uint64_t)self->config.n_step;
    for (uint64_t first = last < n ? 0 : last - n; first < last; first++) {
        double sum = sum_rewards(self, first, last);
        double discount = self->terminal ? 0 : self->power[last - first - 1];
        RP_TRY(adder_complete(self, &(struct adder_row){.reward = (float)sum, .discount = (float)discount}, err));
        transition_push_item(self, &(struct window){first, last, self->rows++, sum, discount,
                                                    self->terminal ? 0 : (double)self->last_value});
    }
    self->closing = true;
    return RP_OK;
}

static void transition_aim(struct adder *self, const struct item *item)
{
    self->slices[0].start = self->slices[1].start = (int64_t)item->first;
    self->slices[2].start = self->slices[3].start = (int64_t)item->result;
    self->slices[4].start = (int64_t)item->last;
}

/* ---- sequences ----
 *
 * Sequences of all columns, by the rules of sequence.h. What happens at the end of an episode that is no write point depends on `end`;
 * M is the number of rows that are missing up to the next one.
 *
 *   pad        M rows of zeros with step type PADDING, then the item of the write point
 *   truncate   the item of the write point without its missing rows: the newest L - M rows
 *   write      an item over the newest min(L, N) rows; some are in the item before as well
 *   continue   nothing: rows are counted on through the next episode, and items may hold the end of one episode and the
 *              start of the next
 *
 * An episode of T steps is one item with all of its T + 1 rows: the truncated one of a length that no episode reaches. */

static void sequence_create(struct adder *self)
{
    const struct adder_config *config = &self->config;
    /* Items that may be shorter are checked against the table as "any number of steps". */
    bool fixed = config->end == ADDER_PAD || config->end == ADDER_CONTINUE;
    for (uint32_t i = 0; i < self->n_columns; i++)
        self->slices[i] = (rp_slice){.column = i, .count = fixed ? (uint32_t)config->length : 0};
    self->n_slices = self->n_columns;
    self->keep_rows = (uint64_t)self->sequence.length;
    self->max_items = 2;
}

static void sequence_push_item(struct adder *self, uint64_t first)
{
    self->queue[self->n_items++] = (struct item){.first = first, .priority = ADDER_PRIORITY};
}

/* Drops an episode that is too long: no item refers to its rows. A new one may begin. */
static rp_status episode_refuse(struct adder *self, rp_error *err)
{
    RP_TRY(adder_complete(self, &(struct adder_row){0}, err));
    self->over = self->closing = true;
    RP_TRY(adder_retry(self, 0, err));
    return err_set(
        err, RP_FAILED_PRECONDITION,
        "the episode has more than %lld steps and is dropped: raise the adder's max_length, or limit episodes "
        "with the environment's max_steps",
        (long long)self->config.max_length);
}

static rp_status sequence_step(struct adder *self, const struct adder_step *in, rp_error *err)
{
    uint8_t type = self->length == 0 ? STEP_FIRST : STEP_MID;
    if (self->config.kind == ADDER_EPISODE && self->length >= (uint64_t)self->config.max_length)
        return episode_refuse(self, err);
    RP_TRY(adder_complete(
        self, &(struct adder_row){in->action, in->reward, in->terminal ? 0.0f : 1.0f, type, in->log_prob}, err));
    if (sequence_missing(&self->sequence, self->rows + 1) == 0)
        sequence_push_item(self, self->rows + 1 - (uint64_t)self->sequence.length);
    return RP_OK;
}

/* Makes n rows of padding. */
static rp_status sequence_pad(struct adder *self, uint64_t n, rp_error *err)
{
    uint8_t type = STEP_PADDING;
    const void *values[ADDER_MAX_COLUMNS] = {self->zeros, self->zeros, self->zeros, self->zeros, &type, self->zeros};
    for (uint64_t i = 0; i < n; i++)
        RP_TRY(rp_writer_append(self->writer, values, -1, err));
    self->rows += n;
    return RP_OK;
}

static rp_status sequence_end(struct adder *self, rp_error *err)
{
    RP_TRY(adder_complete(self, &(struct adder_row){.step_type = STEP_LAST}, err));
    self->rows++;
    int32_t end = self->config.end;
    uint64_t length = (uint64_t)self->sequence.length, lack = sequence_missing(&self->sequence, self->rows);
    uint64_t first = self->rows + lack < length ? 0 : self->rows + lack - length;
    self->closing = end != ADDER_CONTINUE;
    if (lack > 0 && end == ADDER_WRITE) {
        sequence_push_item(self, self->rows < length ? 0 : self->rows - length);
    } else if (lack == 0 || end != ADDER_CONTINUE) {
        if (end == ADDER_PAD)
            RP_TRY(sequence_pad(self, lack, err));
        sequence_push_item(self, first);
    }
    return RP_OK;
}

static void sequence_aim(struct adder *self, const struct item *item)
{
    for (uint32_t i = 0; i < self->n_slices; i++) {
        self->slices[i].start = (int64_t)item->first;
        self->slices[i].count = 0; /* up to the newest row, so that items of all lengths have one layout */
    }
}

/* ---- time ---- */

/* 0 if timeout_ms is not a bound. */
static int64_t deadline_ns(int64_t timeout_ms)
{
    return timeout_ms <= 0 || timeout_ms > MAX_TIMEOUT_MS ? 0 : clock_ns() + timeout_ms * NS_PER_MS;
}

/* Milliseconds that are left until deadline_ns. */
static int64_t time_left_ms(int64_t timeout_ms, int64_t deadline)
{
    if (deadline == 0)
        return timeout_ms;
    int64_t left = deadline - clock_ns();
    return left <= 0 ? 0 : (left + NS_PER_MS - 1) / NS_PER_MS;
}

/* ---- the queue ---- */

/* Counts the items that the broker has refused since the last time, and logs the reason of the first. status: of the writer's
 * call before; RP_OK comes of it if it only told of these items. A refused item costs nothing but itself. When the broker
 * takes no item any more, that is an error. */
static rp_status take_rejections(struct adder *self, rp_status status, rp_error *err)
{
    rp_rejection first, next;
    if (rp_writer_next_rejection(self->writer, &first) != RP_OK)
        return status;
    bool told = first.status == (int32_t)status;
    while (rp_writer_next_rejection(self->writer, &next) == RP_OK)
        told |= next.status == (int32_t)status;
    rp_writer_info info = {.struct_size = sizeof info};
    RP_TRY(rp_writer_get_info(self->writer, &info, err));
    if (info.accepted != self->accepted) {
        self->accepted = info.accepted;
        self->refused_before = info.rejected;
    }
    self->stats.rejected = info.rejected;
    uint32_t held;
    char why[600];
    if (log_allow(&self->log, 1, clock_ns(), &held))
        log_line(LEVEL_WARN, "A0103", "the broker refused items",
                 "table=%s rejected=%llu accepted=%llu why=%s held_back=%u", first.table,
                 (unsigned long long)info.rejected, (unsigned long long)info.accepted,
                 log_quote(why, sizeof why, first.text), held);
    uint64_t in_a_row = info.rejected - self->refused_before;
    if (in_a_row >= REFUSED_IN_A_ROW)
        return err_set(err, (rp_status)first.status, "table '%s' refused the last %llu items, one of them: %s",
                       first.table, (unsigned long long)in_a_row, first.text);
    return told ? RP_OK : status;
}

static rp_status make_item(struct adder *self, const struct item *item, int64_t timeout_ms, rp_error *err)
{
    self->ops->aim(self, item);
    RP_TRY(rp_writer_item(self->writer, self->config.table, item->priority, self->slices, self->n_slices, timeout_ms,
                          NULL, err));
    self->stats.items++;
    return RP_OK;
}

static rp_status make_items(struct adder *self, int64_t timeout_ms, int64_t deadline, rp_error *err)
{
    for (; self->next_item < self->n_items; self->next_item++)
        RP_TRY(make_item(self, &self->queue[self->next_item], time_left_ms(timeout_ms, deadline), err));
    self->next_item = self->n_items = 0;
    return RP_OK;
}

static rp_status run_queue(struct adder *self, int64_t timeout_ms, rp_error *err)
{
    /* Several items may have to wait one after the other; a single one needs no look at the clock. */
    int64_t deadline = self->over ? deadline_ns(timeout_ms) : 0;
    RP_TRY(make_items(self, timeout_ms, deadline, err));
    if (!self->over)
        return RP_OK;
    if (self->ended) {
        self->ended = false;
        RP_TRY(self->ops->end(self, err));
        RP_TRY(make_items(self, timeout_ms, deadline, err));
    }
    bool closing = self->closing;
    self->over = self->running = self->closing = false;
    if (!closing)
        return RP_OK;
    self->rows = 0;
    /* Does not wait; reports items that were refused. */
    return take_rejections(self, rp_writer_end_episode(self->writer, RP_END_GO, 0, err), err);
}

/* ---- steps ---- */

static rp_status check_queue(const struct adder *self, rp_error *err)
{
    if (self->n_items == 0 && !self->over)
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "part of the step before is still to be done: call adder_retry until it is");
}

rp_status adder_first(struct adder *self, const void *observation, rp_error *err)
{
    RP_TRY(check_queue(self, err));
    if (self->running)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "a new episode begins after %llu steps of one that was neither terminal nor truncated",
                       (unsigned long long)self->length);
    RP_TRY(rp_writer_set(self->writer, COLUMN_OBSERVATION, observation, self->observation_bytes, err));
    self->running = true;
    self->length = 0;
    return RP_OK;
}

static rp_status check_step(const struct adder *self, const struct adder_step *step, rp_error *err)
{
    RP_TRY(check_queue(self, err));
    if (!self->running)
        return err_set(err, RP_FAILED_PRECONDITION, "no episode has been begun: call adder_first");
    if (step->terminal && step->truncated)
        return err_set(err, RP_INVALID_ARGUMENT, "a step is terminal or truncated, not both");
    if (!isfinite(step->reward))
        return err_set(err, RP_INVALID_ARGUMENT, "the reward of step %llu of the episode is %g",
                       (unsigned long long)self->length, (double)step->reward);
    if (self->config.actor_priorities &&
        (!isfinite(step->value) || !isfinite(step->q) || (step->truncated && !isfinite(step->last_value))))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the actor's values in step %llu of the episode are not finite (value %g, q %g): its parameters "
                       "have diverged",
                       (unsigned long long)self->length, (double)step->value, (double)step->q);
    return RP_OK;
}

rp_status adder_add(struct adder *self, const struct adder_step *step, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(check_step(self, step, err));
    RP_TRY(self->ops->step(self, step, err));
    self->rows++;
    self->length++;
    self->stats.steps++;
    RP_TRY(rp_writer_set(self->writer, COLUMN_OBSERVATION, step->next_observation, self->observation_bytes, err));
    if (step->terminal || step->truncated) {
        self->over = self->ended = true;
        self->terminal = step->terminal;
        self->last_value = step->last_value;
        self->stats.episodes++;
    }
    return adder_retry(self, timeout_ms, err);
}

rp_status adder_retry(struct adder *self, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(run_queue(self, timeout_ms, err));
    if (!self->running || self->length % REJECTIONS_EVERY == 0)
        return take_rejections(self, RP_OK, err);
    return RP_OK;
}

rp_status adder_flush(struct adder *self, uint64_t unconfirmed, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = deadline_ns(timeout_ms);
    RP_TRY(run_queue(self, timeout_ms, err));
    timeout_ms = time_left_ms(timeout_ms, deadline);
    return take_rejections(self, rp_writer_flush(self->writer, unconfirmed, timeout_ms, err), err);
}

rp_status adder_wait(struct adder *self, int64_t timeout_ms, rp_error *err)
{
    return adder_flush(self, (uint64_t)self->config.buffer_items / 2, timeout_ms, err);
}

void adder_set_policy(struct adder *self, uint64_t version)
{
    self->policy = version;
}

void adder_get_stats(const struct adder *self, struct adder_stats *out)
{
    *out = self->stats;
}

/* ---- life ---- */

static rp_status read_config(struct adder *self, const struct adder_config *in, rp_error *err)
{
    static const struct adder_kind_ops kinds[] = {
        [ADDER_TRANSITION] = {"transition", transition_create, transition_step, transition_end, transition_aim},
        [ADDER_SEQUENCE] = {"sequence", sequence_create, sequence_step, sequence_end, sequence_aim},
        [ADDER_EPISODE] = {"episode", sequence_create, sequence_step, sequence_end, sequence_aim},
    };
    struct adder_config *config = &self->config;
    *config = *in;
    config->table = need_text(in->table ? in->table : "");
    self->ops = &kinds[in->kind];
    self->with_types = in->kind != ADDER_TRANSITION;
    if (config->buffer_items == 0)
        config->buffer_items = DEFAULT_BUFFER_ITEMS;
    if (config->batch_items == 0)
        config->batch_items =
            config->buffer_items < 4 * MOST_BATCH_ITEMS ? (config->buffer_items + 3) / 4 : MOST_BATCH_ITEMS;
    if (config->chunk_length == 0)
        config->chunk_length = 1;
    if (config->buffer_items < config->batch_items)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "adder: batch_items is %lld and buffer_items %lld; a batch must fit into the buffer",
                       (long long)config->batch_items, (long long)config->buffer_items);
    char why[160];
    self->sequence = (struct sequence){config->length, config->period, config->burn_in};
    if (in->kind == ADDER_EPISODE) {
        self->sequence.length = config->max_length + 1;
        config->end = ADDER_TRUNCATE;
    }
    if (in->kind == ADDER_SEQUENCE && !sequence_check(&self->sequence, why, sizeof why))
        return err_set(err, RP_INVALID_ARGUMENT, "adder: %s", why);
    if (config->actor_priorities && in->kind != ADDER_TRANSITION)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "adder: actor_priorities are those of transitions; set them to false for kind %s",
                       self->ops->name);
    return RP_OK;
}

/* Short rows gain nothing from a codec, which would cost a third of a step's time. Other rows take the smallest
 * encoding. */
static void make_columns(struct adder *self, const rp_env_spec *spec, rp_column *columns)
{
    rp_column all[ADDER_MAX_COLUMNS] = {
        {.name = "observation", .dtype = spec->observation_dtype},
        {.name = "action", .dtype = RP_DTYPE_INT32},
        {.name = "reward", .dtype = RP_DTYPE_FLOAT32},
        {.name = "discount", .dtype = RP_DTYPE_FLOAT32},
        {.name = "step_type", .dtype = RP_DTYPE_UINT8},
        {.name = "log_prob", .dtype = RP_DTYPE_FLOAT32},
    };
    all[COLUMN_OBSERVATION].rank = spec->observation_rank;
    memcpy(all[COLUMN_OBSERVATION].shape, spec->observation_shape, spec->observation_rank * sizeof(uint32_t));
    if (spec->n_actions == 0) {
        all[COLUMN_ACTION].dtype = RP_DTYPE_FLOAT32;
        all[COLUMN_ACTION].rank = 1;
        all[COLUMN_ACTION].shape[0] = spec->action_size;
    }
    self->observation_bytes =
        (size_t)dtype_row_bytes(spec->observation_dtype, spec->observation_rank, spec->observation_shape);
    self->action_bytes = spec->n_actions ? sizeof(int32_t) : spec->action_size * sizeof(float);
    if (self->observation_bytes >= MIN_CODED_BYTES)
        all[COLUMN_OBSERVATION].codec = RP_CODEC_AUTO;
    self->n_columns = self->with_types ? self->with_log_prob ? 6 : 5 : 4;
    memcpy(columns, all, self->n_columns * sizeof *columns);
}

static void make_memory(struct adder *self)
{
    uint64_t rows = self->with_types ? 1 : self->keep_rows, size = 1;
    while (size < rows + 1)
        size *= 2;
    size_t widest = self->observation_bytes > self->action_bytes ? self->observation_bytes : self->action_bytes;
    self->trace_mask = size - 1;
    self->trace = need_alloc(size * sizeof *self->trace);
    self->zeros = need_alloc(widest + sizeof(float));
    self->queue = need_alloc(self->max_items * sizeof *self->queue);
    size_t powers = self->config.kind == ADDER_TRANSITION ? (size_t)self->config.n_step : 1;
    self->power = need_alloc(powers * sizeof *self->power);
    double power = 1;
    for (size_t i = 0; i < powers; i++) {
        self->power[i] = power;
        power *= self->config.discount;
    }
}

static rp_status open_writer(struct adder *self, const struct adder_options *given, const rp_column *columns,
                             rp_error *err)
{
    rp_writer_options options = {
        .struct_size = sizeof options,
        .chunk_length = (uint32_t)self->config.chunk_length,
        .name = given->name,
        .keep_alive = self->keep_rows,
        .max_in_flight_items = (uint64_t)self->config.buffer_items,
        .batch_items = (uint32_t)self->config.batch_items,
        /* After the broker has lost its memory, an item that arrives twice does less harm than a missing one. */
        .doubt = RP_DOUBT_RESEND,
    };
    rp_error why = {0};
    self->writer = rp_writer_new(given->client, columns, self->n_columns, &options, given->timeout_ms, &why);
    if (!self->writer)
        return err_set(err, (rp_status)why.status, "adder: %s", why.text);
    rp_status status = rp_writer_check_item(self->writer, self->config.table, self->slices, self->n_slices, &why);
    if (status == RP_OK)
        return RP_OK;
    return err_set(err, status, "adder of kind %s: %s", self->ops->name, why.text);
}

/* Checks the options, and makes columns and slices of them. */
static rp_status design(struct adder *self, const struct adder_options *options, rp_column *columns, rp_error *err)
{
    self->with_log_prob = options->with_log_prob;
    RP_TRY(read_config(self, options->config, err));
    make_columns(self, options->spec, columns);
    self->ops->create(self);
    return RP_OK;
}

uint32_t adder_fields(const struct adder_options *options, struct field_type out[ADDER_MAX_FIELDS], rp_error *err)
{
    struct adder self = {0};
    rp_column columns[ADDER_MAX_COLUMNS];
    uint32_t n = design(&self, options, columns, err) == RP_OK ? self.n_slices : 0;
    for (uint32_t i = 0; i < n; i++) {
        const rp_slice *slice = &self.slices[i];
        const rp_column *column = &columns[slice->column];
        out[i] = dtype_field(slice->field ? slice->field : column->name, column->dtype,
                             slice->squeeze ? NULL : &slice->count, column->rank, column->shape);
    }
    free(self.config.table);
    return n;
}

struct adder *adder_new(const struct adder_options *options, rp_error *err)
{
    rp_column columns[ADDER_MAX_COLUMNS];
    struct adder *self = need_alloc(sizeof *self);
    rp_status status = design(self, options, columns, err);
    if (status == RP_OK) {
        make_memory(self);
        status = open_writer(self, options, columns, err);
    }
    if (status != RP_OK)
        (void)adder_destroy(&self, 0, NULL);
    return self;
}

rp_status adder_destroy(struct adder **self, int64_t timeout_ms, rp_error *err)
{
    if (!self || !*self)
        return RP_OK;
    struct adder *adder = *self;
    *self = NULL;
    rp_status status = RP_OK;
    if (adder->writer) {
        int64_t deadline = deadline_ns(timeout_ms);
        status = adder_flush(adder, 0, timeout_ms, err);
        timeout_ms = time_left_ms(timeout_ms, deadline);
        rp_status closed = rp_writer_destroy(&adder->writer, timeout_ms, status == RP_OK ? err : NULL);
        status = status == RP_OK ? closed : status;
    }
    free(adder->config.table);
    free(adder->zeros);
    free(adder->trace);
    free(adder->power);
    free(adder->queue);
    free(adder);
    return status;
}
