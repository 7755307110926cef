/* Sequences of `length` rows of all columns, L below, every `period` rows, P.
 *
 * Row t of an episode has s_t, a_t, r_t, d_t and a step type; after T steps comes one more row, LAST, with s_T and
 * zeros. So an episode of T steps has N = T + 1 rows. Items are made at the write points, that is when the number of
 * rows is L, L + P, L + 2P ..., each over the newest L rows. If N is not a write point, then let M be the number of
 * rows that are missing up to the next one, and at the end of the episode comes
 *
 *   pad        M rows of zeros with step type PADDING, then the item of the write point
 *   truncate   the item of the write point without its missing rows: the newest L - M rows
 *   write      an item over the newest min(L, N) rows; some are in the item before as well
 *   continue   nothing: rows are counted on through the next episode, and items may hold the end of one episode and the
 *              start of the next
 *
 * With pad and truncate, an item that would hold no real row (M >= L, possible only if P > L) is not made. */
#include "agent/adder/adder_impl.h"
#include "proto/base/error.h"

#define MAX_LENGTH 65536
#define MAX_PERIOD (INT64_C(1) << 40)

static rp_status create(struct adder *self, rp_error *err)
{
    const struct adder_config *config = &self->config;
    if (config->length < 1 || config->length > MAX_LENGTH)
        return err_set(err, RP_INVALID_ARGUMENT, "adder: length is %lld; it may be 1 to %d", (long long)config->length,
                       MAX_LENGTH);
    if (config->period < 1 || config->period > MAX_PERIOD)
        return err_set(err, RP_INVALID_ARGUMENT, "adder: period is %lld; it must be at least 1",
                       (long long)config->period);
    if (config->end < ADDER_PAD || config->end > ADDER_CONTINUE)
        return err_set(err, RP_INVALID_ARGUMENT, "adder: there is no end behaviour %d", (int)config->end);
    /* Items that may be shorter are checked against the table as "any number of steps". */
    bool fixed = config->end == ADDER_PAD || config->end == ADDER_CONTINUE;
    for (uint32_t i = 0; i < self->n_columns; i++)
        self->slices[i] = (rp_slice){.column = i, .count = fixed ? (uint32_t)config->length : 0};
    self->n_slices = self->n_columns;
    self->keep_rows = (uint64_t)config->length;
    self->max_ops = 6;
    return RP_OK;
}

/* Number of rows that are missing up to the next write point. */
static uint64_t missing(const struct adder *self, uint64_t rows)
{
    uint64_t length = (uint64_t)self->config.length, period = (uint64_t)self->config.period;
    if (rows <= length)
        return length - rows;
    uint64_t over = (rows - length) % period;
    return over == 0 ? 0 : period - over;
}

static void push_item(struct adder *self, uint64_t first)
{
    struct op *op = adder_push(self, OP_ITEM);
    op->first = first;
    op->policy = adder_trace(self, first)->policy;
    op->priority = self->config.initial_priority;
}

static rp_status step(struct adder *self, const struct adder_step *in, rp_error *err)
{
    uint8_t type = self->length == 0 ? STEP_FIRST : STEP_MID;
    adder_trace(self, self->rows)->policy = self->policy;
    RP_TRY(adder_complete(
        self, &(struct adder_row){in->action, in->reward, in->terminal ? 0.0f : 1.0f, type, in->log_prob}, err));
    if (missing(self, self->rows + 1) == 0)
        push_item(self, self->rows + 1 - (uint64_t)self->config.length);
    return RP_OK;
}

static void push_rest(struct adder *self, uint64_t lack)
{
    uint64_t length = (uint64_t)self->config.length;
    if (self->config.end == ADDER_WRITE) {
        push_item(self, self->rows < length ? 0 : self->rows - length);
        return;
    }
    if (self->config.end == ADDER_CONTINUE || lack >= length)
        return;
    uint64_t first = self->rows + lack - length;
    if (self->config.end == ADDER_PAD) {
        adder_push(self, OP_ZERO)->count = lack;
        self->rows += lack;
    }
    push_item(self, first);
}

static void end(struct adder *self, const struct adder_step *in)
{
    (void)in;
    adder_trace(self, self->rows)->policy = self->policy;
    adder_push(self, OP_ROW)->step_type = STEP_LAST;
    self->rows++;
    uint64_t lack = missing(self, self->rows);
    if (lack == 0)
        push_item(self, self->rows - (uint64_t)self->config.length);
    else
        push_rest(self, lack);
    if (self->config.end != ADDER_CONTINUE)
        adder_push(self, OP_END);
}

static void aim(struct adder *self, const struct op *op)
{
    for (uint32_t i = 0; i < self->n_slices; i++) {
        self->slices[i].start = (int64_t)op->first;
        self->slices[i].count = 0; /* up to the newest row, so that items of all lengths have one layout */
    }
}

const struct adder_kind_ops adder_sequence = {"sequence", create, step, end, aim};
