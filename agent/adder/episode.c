/* One item per episode, with all of its rows: T + 1 for T steps, the last one LAST with s_T and zeros. */
#include "agent/adder/adder_impl.h"
#include "proto/base/error.h"

#define MAX_LENGTH (INT64_C(1) << 30)

static rp_status create(struct adder *self, rp_error *err)
{
    const struct adder_config *config = &self->config;
    if (config->max_length < 1 || config->max_length > MAX_LENGTH)
        return err_set(err, RP_INVALID_ARGUMENT, "adder: max_length is %lld; it may be 1 to %lld",
                       (long long)config->max_length, (long long)MAX_LENGTH);
    for (uint32_t i = 0; i < self->n_columns; i++)
        self->slices[i] = (rp_slice){.column = i};
    self->n_slices = self->n_columns;
    self->keep_rows = (uint64_t)config->max_length + 1;
    self->max_ops = 4;
    return RP_OK;
}

/* Drops the episode: no item refers to its rows. A new one may begin. */
static rp_status refuse(struct adder *self, rp_error *err)
{
    adder_push(self, OP_ROW);
    adder_push(self, OP_END);
    self->ended = true;
    RP_TRY(adder_retry(self, 0, err));
    return err_set(
        err, RP_FAILED_PRECONDITION,
        "the episode has more than %lld steps and is dropped: raise the adder's max_length, or limit episodes "
        "with the environment's max_steps",
        (long long)self->config.max_length);
}

static rp_status step(struct adder *self, const struct adder_step *in, rp_error *err)
{
    uint8_t type = self->length == 0 ? STEP_FIRST : STEP_MID;
    if (self->length >= (uint64_t)self->config.max_length)
        return refuse(self, err);
    if (self->length == 0)
        self->trace[0].policy = self->policy;
    return adder_complete(
        self, &(struct adder_row){in->action, in->reward, in->terminal ? 0.0f : 1.0f, type, in->log_prob}, err);
}

static void end(struct adder *self, const struct adder_step *in)
{
    (void)in;
    adder_push(self, OP_ROW)->step_type = STEP_LAST;
    struct op *op = adder_push(self, OP_ITEM);
    op->policy = self->trace[0].policy;
    op->priority = self->config.initial_priority;
    adder_push(self, OP_END);
}

static void aim(struct adder *self, const struct op *op)
{
    (void)self; /* slices without bounds: the whole episode */
    (void)op;
}

const struct adder_kind_ops adder_episode = {"episode", create, step, end, aim};
