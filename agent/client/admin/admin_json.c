/* The administrative calls with JSON text as their result. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/admin.h"
#include "agent/client/conn/client.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

static rp_status finish(struct json *json, char **out, rp_error *err)
{
    *out = json_take(json);
    return *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the text");
}

/* Writes the message as JSON. Takes the reply that holds it. */
static rp_status finish_message(Replay__Reply *wire, const ProtobufCMessage *message, char **out, rp_error *err)
{
    struct json json = {0};
    json_message(&json, message);
    conn_reply_unpacked_free(wire);
    return finish(&json, out, err);
}

void rp_string_free(char **text)
{
    if (!text)
        return;
    free(*text);
    *text = NULL;
}

rp_status rp_admin_info_json(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms, char **json,
                             rp_error *err)
{
    Replay__Reply *wire = NULL;
    *json = NULL;
    RP_TRY(admin_info(client, table, sessions != 0, timeout_ms, &wire, err));
    return finish_message(wire, &wire->info->base, json, err);
}

rp_status rp_admin_why_json(rp_client *client, int64_t timeout_ms, char **json, rp_error *err)
{
    Replay__Reply *wire = NULL;
    *json = NULL;
    RP_TRY(admin_why(client, timeout_ms, &wire, err));
    return finish_message(wire, &wire->why->base, json, err);
}

rp_status rp_admin_list_json(rp_client *client, const char *table, uint64_t cursor, uint32_t limit, int64_t timeout_ms,
                             char **json, rp_error *err)
{
    Replay__Reply *wire = NULL;
    *json = NULL;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    RP_TRY(admin_list(client, &(struct admin_page){table, cursor, limit}, timeout_ms, &wire, err));
    return finish_message(wire, &wire->list->base, json, err);
}

rp_status rp_admin_reset_json(rp_client *client, const char *table, int64_t timeout_ms, char **json, rp_error *err)
{
    Replay__Reply *wire = NULL;
    *json = NULL;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    RP_TRY(admin_reset(client, table, timeout_ms, &wire, err));
    return finish_message(wire, &wire->change->base, json, err);
}

rp_status rp_admin_limiter_json(rp_client *client, const char *table, const rp_limiter_change *change,
                                int64_t timeout_ms, char **json, rp_error *err)
{
    Replay__Reply *wire = NULL;
    *json = NULL;
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "a table is needed");
    if (change) {
        RP_TRY(admin_set_limiter(client, table, change, timeout_ms, &wire, err));
        return finish_message(wire, &wire->limiter->base, json, err);
    }
    RP_TRY(admin_info(client, table, false, timeout_ms, &wire, err));
    if (wire->info->n_tables != 1) {
        conn_reply_unpacked_free(wire);
        return err_set(err, RP_NOT_FOUND, "no table '%s'", table);
    }
    const Replay__LimiterInfo *limiter = wire->info->tables[0]->limiter;
    return finish_message(wire, limiter ? &limiter->base : NULL, json, err);
}

/* ---- values ---- */

static float widen(uint32_t sign, uint32_t exponent, uint32_t fraction)
{
    uint32_t bits = sign << 31 | exponent << 23 | fraction;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float from_half(uint16_t half)
{
    uint32_t sign = half >> 15, exponent = half >> 10 & 31, fraction = half & 1023u;
    if (exponent == 31)
        return widen(sign, 255, fraction << 13);
    if (exponent)
        return widen(sign, exponent + 112, fraction << 13);
    float value = (float)fraction / 16777216.0f; /* 2^-24 is the smallest subnormal number */
    return sign ? -value : value;
}

static void floats(struct json *out, const void *at, uint32_t n)
{
    float value[2];
    memcpy(value, at, n * sizeof *value);
    for (uint32_t i = 0; i < n; i++)
        json_float(out, value[i]);
}

static void doubles(struct json *out, const void *at, uint32_t n)
{
    double value[2];
    memcpy(value, at, n * sizeof *value);
    for (uint32_t i = 0; i < n; i++)
        json_double(out, value[i]);
}

static uint64_t load(const void *at, size_t size)
{
    uint64_t value = 0; /* little-endian */
    memcpy(&value, at, size);
    return value;
}

void admin_json_element(struct json *out, int32_t dtype, const void *at)
{
    switch (dtype) {
    case RP_DTYPE_BOOL:
        json_boolean(out, load(at, 1) != 0);
        break;
    case RP_DTYPE_INT8:
        json_signed(out, (int8_t)load(at, 1));
        break;
    case RP_DTYPE_INT16:
        json_signed(out, (int16_t)load(at, 2));
        break;
    case RP_DTYPE_INT32:
        json_signed(out, (int32_t)load(at, 4));
        break;
    case RP_DTYPE_INT64:
        json_signed(out, (int64_t)load(at, 8));
        break;
    case RP_DTYPE_FLOAT16:
        json_float(out, from_half((uint16_t)load(at, 2)));
        break;
    case RP_DTYPE_BFLOAT16: {
        uint32_t bits = (uint32_t)load(at, 2) << 16;
        floats(out, &bits, 1);
        break;
    }
    case RP_DTYPE_FLOAT32:
        floats(out, at, 1);
        break;
    case RP_DTYPE_FLOAT64:
        doubles(out, at, 1);
        break;
    case RP_DTYPE_COMPLEX64:
    case RP_DTYPE_COMPLEX128:
        json_open(out, '[');
        if (dtype == RP_DTYPE_COMPLEX64)
            floats(out, at, 2);
        else
            doubles(out, at, 2);
        json_close(out, ']');
        break;
    default:
        json_unsigned(out, load(at, dtype_size(dtype)));
        break;
    }
}

static void json_field(struct json *out, const rp_field_view *field, uint32_t i, uint32_t max_values)
{
    uint64_t bytes = field->bytes / field->shape[0], elem = dtype_size(field->dtype), count = bytes / elem;
    uint64_t rows = field->rank > 1 && field->lengths ? field->lengths[i] : field->rank > 1 ? field->shape[1] : 1;
    if (field->lengths && field->shape[1])
        count = count / field->shape[1] * rows;
    const uint8_t *at = (const uint8_t *)field->data + bytes * i;
    json_open(out, '{');
    json_text(out, "dtype", dtype_name(field->dtype));
    json_key(out, "shape");
    json_open(out, '[');
    for (uint32_t k = 1; k < field->rank; k++)
        json_unsigned(out, k == 1 ? rows : field->shape[k]);
    json_close(out, ']');
    json_key(out, "values");
    json_open(out, '[');
    for (uint64_t k = 0; k < count && k < max_values; k++)
        admin_json_element(out, field->dtype, at + k * elem);
    json_close(out, ']');
    json_key(out, "truncated");
    json_boolean(out, count > max_values);
    json_close(out, '}');
}

void admin_json_item(struct json *out, const rp_batch *batch, uint32_t i, uint32_t max_values)
{
    rp_batch_arrays arrays = {.struct_size = sizeof arrays};
    rp_batch_get_arrays(batch, &arrays);
    json_open(out, '{');
    json_item_key(out, arrays.key[i]);
    json_key(out, "priority");
    json_double(out, arrays.priority[i]);
    json_count(out, "times_sampled", arrays.times_sampled[i]);
    json_count(out, "age_ns", arrays.age_ns[i]);
    json_count(out, "policy", arrays.policy[i]);
    json_count(out, "step", arrays.step[i]);
    json_count(out, "session", arrays.session[i]);
    json_key(out, "fields");
    json_open(out, '{');
    const rp_field_view *field;
    for (uint32_t f = 0; (field = rp_batch_field(batch, f)) != NULL; f++) {
        json_key(out, field->name);
        json_field(out, field, i, max_values);
    }
    json_close(out, '}');
    json_close(out, '}');
}

rp_status rp_admin_fetch_json(rp_client *client, const char *table, const uint64_t *keys, uint32_t n,
                              uint32_t max_values, int64_t timeout_ms, char **json, rp_error *err)
{
    rp_batch *batch = NULL;
    struct json out = {0};
    *json = NULL;
    RP_TRY(rp_admin_fetch(client, table, keys, n, timeout_ms, &batch, err));
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(batch, &info);
    json_open(&out, '{');
    json_key(&out, "items");
    json_open(&out, '[');
    for (uint32_t i = 0; i < info.n; i++)
        admin_json_item(&out, batch, i, max_values);
    json_close(&out, ']');
    json_close(&out, '}');
    rp_batch_release(&batch);
    return finish(&out, json, err);
}
