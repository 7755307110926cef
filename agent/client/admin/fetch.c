/* Items by key: each shard is asked for its own, and their batches become one. And items as JSON. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/admin.h"
#include "agent/client/admin/gather.h"
#include "agent/client/sampler/batch.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

#define MAX_BYTES (UINT64_C(4) << 30)

/* Decodes what each shard has answered; lists[i] is NULL if it was not asked. */
static rp_status decode(const struct gather_answers *answers, struct batch_pool *pool, struct rp_batch **lists,
                        rp_error *err)
{
    struct batch_options options = {.max_bytes = MAX_BYTES};
    struct batch_decoder *decoder = batch_decoder_new(pool, &options);
    rp_status status = decoder ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to decode a batch");
    for (uint32_t i = 0; i < answers->n && status == RP_OK; i++) {
        if (answers->of[i].asked)
            status = batch_decode_reply(decoder, answers->of[i].reply, &lists[i], err);
        if (status == RP_OK && lists[i] && lists[i]->next)
            status = err_set(err, RP_FAILED_PRECONDITION, "%s; fetch those that fit together", lists[i]->text);
    }
    batch_decoder_destroy(&decoder);
    return status;
}

/* Gives the one batch that has items, or all of them in one; one without fields if no key was asked for. */
static rp_status join(struct batch_pool *pool, struct rp_batch **lists, uint32_t n, rp_batch **out, rp_error *err)
{
    struct batch_rows rows[WIRE_MAX_SHARDS];
    struct batch_join_options options = {.max_bytes = MAX_BYTES, .shards = true};
    uint32_t n_rows = 0, last = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (lists[i] && (lists[i]->info.n || !lists[last]))
            last = i;
        if (lists[i] && lists[i]->info.n)
            rows[n_rows++] = (struct batch_rows){.from = lists[i], .n = lists[i]->info.n, .share = 1, .shard = i};
    }
    if (!lists[last])
        return batch_make(pool, &(struct batch_spec){0}, out, err);
    if (n_rows <= 1) {
        *out = lists[last];
        lists[last] = NULL;
        return RP_OK;
    }
    RP_TRY(batch_join(pool, rows, n_rows, &options, out, err));
    if (!(*out)->next)
        return RP_OK;
    batch_list_release(out);
    return err_set(err, RP_FAILED_PRECONDITION,
                   "the items do not all have the same fields; fetch those that fit together");
}

static rp_status read_batch(const struct gather_answers *answers, rp_batch **out, rp_error *err)
{
    struct rp_batch *lists[WIRE_MAX_SHARDS] = {0};
    struct batch_pool *pool = batch_pool_new(0, NULL);
    if (!pool)
        return err_set(err, RP_NO_MEMORY, "no memory for a batch");
    rp_status status = decode(answers, pool, lists, err);
    if (status == RP_OK)
        status = join(pool, lists, answers->n, out, err);
    for (uint32_t i = 0; i < answers->n; i++)
        batch_list_release(&lists[i]);
    batch_pool_unref(&pool);
    return status;
}

rp_status rp_admin_fetch(rp_client *client, const char *table, const uint64_t *keys, uint32_t n, int64_t timeout_ms,
                         rp_batch **out, rp_error *err)
{
    Replay__Fetch bodies[WIRE_MAX_SHARDS];
    struct conn_message messages[WIRE_MAX_SHARDS];
    const struct conn_message *each[WIRE_MAX_SHARDS];
    *out = NULL;
    if (!table || (!keys && n > 0))
        return err_set(err, RP_INVALID_ARGUMENT, "a table and its items' keys are needed");
    uint64_t *sorted = malloc(((size_t)n + 1) * sizeof *sorted), *end = sorted;
    if (!sorted)
        return err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", n);
    for (uint32_t s = 0; s < client_shards(client); s++) {
        replay__fetch__init(&bodies[s]);
        bodies[s].table = (char *)(uintptr_t)table;
        bodies[s].key = end;
        for (uint32_t i = 0; i < n; i++)
            if (client_shard_of(client, keys[i]) == s)
                *end++ = keys[i];
        bodies[s].n_key = (size_t)(end - bodies[s].key);
        messages[s] = (struct conn_message){
            .field = REPLAY__REQUEST__BODY_FETCH, .body = &bodies[s].base, .timeout_ms = timeout_ms};
        each[s] = bodies[s].n_key ? &messages[s] : NULL;
    }
    struct gather_answers *answers;
    struct gather_plan plan = {.each = each, .want = REPLAY__REPLY__BODY__NOT_SET, .patient = true};
    rp_status status = gather(client, &plan, &answers, err);
    gather_explain(client, table, status, err);
    for (uint32_t i = 0; status == RP_OK && answers->good && i < answers->n; i++)
        answers->of[i].asked = answers->of[i].asked && answers->of[i].status != RP_NOT_FOUND; /* it has none of them */
    if (status == RP_OK)
        status = gather_all_good(answers, "have answered", err);
    if (status == RP_OK)
        status = read_batch(answers, out, err);
    gather_free(&answers);
    free(sorted);
    return status;
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
    case RP_DTYPE_INT16:
    case RP_DTYPE_INT32:
    case RP_DTYPE_INT64: {
        uint32_t unused = 64 - 8 * dtype_size(dtype);
        json_signed(out, (int64_t)(load(at, dtype_size(dtype)) << unused) >> unused);
        break;
    }
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
    json_begin(out, "shape", '[');
    for (uint32_t k = 1; k < field->rank; k++)
        json_unsigned(out, k == 1 ? rows : field->shape[k]);
    json_close(out, ']');
    json_begin(out, "values", '[');
    for (uint64_t k = 0; k < count && k < max_values; k++)
        admin_json_element(out, field->dtype, at + k * elem);
    json_close(out, ']');
    json_flag(out, "truncated", count > max_values);
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
    json_begin(out, "fields", '{');
    const rp_field_view *field;
    for (uint32_t f = 0; (field = rp_batch_field(batch, f)) != NULL; f++) {
        json_key(out, field->name);
        json_field(out, field, i, max_values);
    }
    json_close(out, '}');
    json_close(out, '}');
}

rp_status rp_batch_json(const rp_batch *batch, uint32_t max_values, char **json, rp_error *err)
{
    struct json out = {0};
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(batch, &info);
    json_open(&out, '{');
    json_begin(&out, "items", '[');
    for (uint32_t i = 0; i < info.n; i++)
        admin_json_item(&out, batch, i, max_values);
    json_close(&out, ']');
    json_close(&out, '}');
    *json = json_take(&out);
    return *json ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the text");
}
