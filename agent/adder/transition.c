/* Transitions over up to n steps.
 *
 * Row t of the stream has the observation s_t, the action a_t, and in reward and discount the R and D of the window that
 * ends at s_t: it is complete when a_t is taken, which is also when the actor's value of s_t is known. So the item that
 * ends at s_t is made with row t. In row 0, where no window ends, both are 0. At the end of an episode of T steps there is
 *
 *   row T            s_T, no action;     R and D of s_{T-k} -> s_T, k = min(n, T)
 *   row T + j        neither;            R and D of s_{T-k+j} -> s_T, j = 1 .. k - 1
 *
 * so every observation is stored once, and one item is made with each row but the first. */
#include <math.h>

#include "agent/adder/adder_impl.h"
#include "proto/base/error.h"

#define MAX_STEPS 1000

static rp_status create(struct adder *self, rp_error *err)
{
    const struct adder_config *config = &self->config;
    if (config->n_step < 1 || config->n_step > MAX_STEPS)
        return err_set(err, RP_INVALID_ARGUMENT, "adder: n_step is %lld; it may be 1 to %d", (long long)config->n_step,
                       MAX_STEPS);
    if (!(config->discount >= 0 && config->discount <= 1))
        return err_set(err, RP_INVALID_ARGUMENT, "adder: discount is %g; it must be from 0 to 1", config->discount);
    self->slices[0] = (rp_slice){.field = "observation", .column = COLUMN_OBSERVATION, .count = 1, .squeeze = 1};
    self->slices[1] = (rp_slice){.field = "action", .column = COLUMN_ACTION, .count = 1, .squeeze = 1};
    self->slices[2] = (rp_slice){.field = "reward", .column = COLUMN_REWARD, .count = 1, .squeeze = 1};
    self->slices[3] = (rp_slice){.field = "discount", .column = COLUMN_DISCOUNT, .count = 1, .squeeze = 1};
    self->slices[4] = (rp_slice){.field = "next_observation", .column = COLUMN_OBSERVATION, .count = 1, .squeeze = 1};
    self->n_slices = 5;
    self->keep_rows = (uint64_t)config->n_step + 1;
    self->max_ops = 2 * (uint32_t)config->n_step + 2;
    return RP_OK;
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

static void push_item(struct adder *self, const struct window *window)
{
    const struct trace *trace = adder_trace(self, window->first);
    double priority = self->config.initial_priority;
    if (self->config.actor_priorities)
        priority = fabs(window->sum + self->config.discount * window->discount * window->value - (double)trace->q);
    struct op *op = adder_push(self, OP_ITEM);
    op->first = window->first;
    op->last = window->last;
    op->result = window->result;
    op->policy = trace->policy;
    op->priority = priority > ADDER_MIN_PRIORITY ? priority : ADDER_MIN_PRIORITY;
}

static rp_status step(struct adder *self, const struct adder_step *in, rp_error *err)
{
    uint64_t t = self->rows, n = (uint64_t)self->config.n_step;
    uint64_t first = t < n ? 0 : t - n;
    double sum = sum_rewards(self, first, t);
    double discount = t > first ? self->power[t - first - 1] : 0;
    RP_TRY(adder_complete(
        self, &(struct adder_row){.action = in->action, .reward = (float)sum, .discount = (float)discount}, err));
    if (t > 0)
        push_item(self, &(struct window){first, t, t, sum, discount, (double)in->value});
    *adder_trace(self, t) = (struct trace){.reward = in->reward, .q = in->q, .policy = self->policy};
    return RP_OK;
}

static void end(struct adder *self, const struct adder_step *in)
{
    uint64_t last = self->rows, n = (uint64_t)self->config.n_step;
    for (uint64_t first = last < n ? 0 : last - n; first < last; first++) {
        double sum = sum_rewards(self, first, last);
        double discount = in->terminal ? 0 : self->power[last - first - 1];
        struct op *row = adder_push(self, OP_ROW);
        row->reward = (float)sum;
        row->discount = (float)discount;
        push_item(self, &(struct window){first, last, self->rows++, sum, discount,
                                         in->terminal ? 0 : (double)in->last_value});
    }
    adder_push(self, OP_END);
}

static void aim(struct adder *self, const struct op *op)
{
    self->slices[0].start = self->slices[1].start = (int64_t)op->first;
    self->slices[2].start = self->slices[3].start = (int64_t)op->result;
    self->slices[4].start = (int64_t)op->last;
}

const struct adder_kind_ops adder_transition = {"transition", create, step, end, aim};
