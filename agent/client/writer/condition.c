/* See condition.h. */
#include "agent/client/writer/condition.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/base/dtype.h"
#include "proto/base/error.h"

#define TWO_63 9223372036854775808.0

/* ---- comparing */

/* Returns -1, 0 or 1: how a whole number with its sign apart stands to a number, without rounding either. */
static int order_whole(bool negative, uint64_t size, double number)
{
    if ((number < 0) != negative)
        return negative ? -1 : 1;
    double other = negative ? -number : number; /* both have this sign: compare the sizes */
    int order = -1;
    if (other < 2 * TWO_63) {
        uint64_t whole = (uint64_t)other;
        order = size < whole ? -1 : size > whole;
        if (order == 0 && other > (double)whole)
            order = -1;
    }
    return negative ? -order : order;
}

static int order_signed(int64_t value, double number)
{
    return order_whole(value < 0, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, number);
}

static bool order_is(int order, uint64_t compare)
{
    switch (compare) {
    case RP_COMPARE_EQ:
        return order == 0;
    case RP_COMPARE_NE:
        return order != 0;
    case RP_COMPARE_LT:
        return order < 0;
    case RP_COMPARE_LE:
        return order <= 0;
    case RP_COMPARE_GT:
        return order > 0;
    default:
        return order >= 0;
    }
}

static bool float_holds(double value, const rp_condition *condition)
{
    if (isnan(value))
        return condition->a == RP_COMPARE_NE;
    return order_is((value > condition->number) - (value < condition->number), condition->a);
}

#define READ(type)                                                                                                     \
    type value;                                                                                                        \
    memcpy(&value, data, sizeof value)

static int order_of(int32_t dtype, const void *data, double number)
{
    switch (dtype) {
    case RP_DTYPE_INT8: {
        READ(int8_t);
        return order_signed(value, number);
    }
    case RP_DTYPE_INT16: {
        READ(int16_t);
        return order_signed(value, number);
    }
    case RP_DTYPE_INT32: {
        READ(int32_t);
        return order_signed(value, number);
    }
    case RP_DTYPE_INT64: {
        READ(int64_t);
        return order_signed(value, number);
    }
    case RP_DTYPE_UINT16: {
        READ(uint16_t);
        return order_whole(false, value, number);
    }
    case RP_DTYPE_UINT32: {
        READ(uint32_t);
        return order_whole(false, value, number);
    }
    case RP_DTYPE_UINT64: {
        READ(uint64_t);
        return order_whole(false, value, number);
    }
    default: { /* BOOL, UINT8 */
        READ(uint8_t);
        return order_whole(false, value, number);
    }
    }
}

bool condition_value_holds(const rp_condition *condition, const struct step_stream *stream)
{
    const void *data = step_stream_current(stream, condition->column);
    if (!data)
        return false;
    int32_t dtype = stream->columns[condition->column].dtype;
    if (dtype == RP_DTYPE_FLOAT32) {
        READ(float);
        return float_holds((double)value, condition);
    }
    if (dtype == RP_DTYPE_FLOAT64) {
        READ(double);
        return float_holds(value, condition);
    }
    return order_is(order_of(dtype, data, condition->number), condition->a);
}

bool condition_steps_hold(const rp_condition *condition, uint64_t steps)
{
    return order_is(order_whole(false, steps, condition->number), condition->a);
}

/* ---- checking */

static rp_status check_column(const rp_condition *condition, const struct step_stream *stream, rp_error *err)
{
    if (condition->column >= stream->n_columns)
        return err_set(err, RP_INVALID_ARGUMENT, "a condition names column %u, the stream has %u", condition->column,
                       stream->n_columns);
    const struct step_column *column = &stream->columns[condition->column];
    bool is_number = column->is_integer || column->dtype == RP_DTYPE_BOOL || column->dtype == RP_DTYPE_FLOAT32 ||
                     column->dtype == RP_DTYPE_FLOAT64;
    if (!is_number || column->row_bytes != column->elem_bytes)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a condition compares one number: column '%s' has %" PRIu64 " values of type %s per step",
                       column->name, column->row_bytes / column->elem_bytes, dtype_name(column->dtype));
    return RP_OK;
}

rp_status condition_check(const rp_condition *condition, const struct step_stream *stream, rp_error *err)
{
    if (condition->kind < RP_WHEN_STEP_MODULO || condition->kind > RP_WHEN_STEPS)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no condition of kind %" PRId32, condition->kind);
    if (condition->kind == RP_WHEN_STEP_MODULO && condition->b >= condition->a)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "steps modulo %" PRIu64 " are never %" PRIu64 ": the pattern would make no item", condition->a,
                       condition->b);
    if (condition->kind != RP_WHEN_VALUE && condition->kind != RP_WHEN_STEPS)
        return RP_OK;
    if (condition->a < RP_COMPARE_EQ || condition->a > RP_COMPARE_GE)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no comparison of kind %" PRIu64, condition->a);
    if (isnan(condition->number))
        return err_set(err, RP_INVALID_ARGUMENT, "a condition compares with a number, not with NaN");
    return condition->kind == RP_WHEN_VALUE ? check_column(condition, stream, err) : RP_OK;
}
