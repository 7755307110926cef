/* Reads hot headers. Each message is a table of rows (number, kind, name, member of the view) for wire_scan; then come the checks
 * across fields. */
#include "proto/base/error.h"
#include "proto/wire/wire_scan.h"
#include "replay/types.h"

#define WIRE_ROW(number, kind, name, member) [number] = {ROW_##kind, offsetof(struct WIRE_VIEW, member)},
#define WIRE_FIELD(number, kind, name, member) [number] = #name,

#define REQUEST_FIELDS(X)                                                                                              \
    X(1, U32, version, version) X(2, F64, id, id) X(3, F64, client, client) X(4, F64, settled, settled)

#define REPLY_FIELDS(X)                                                                                                \
    X(1, U32, version, version)                                                                                        \
    X(2, F64, id, id) X(3, U32, status, status) X(4, TEXT, text, text) X(5, TEXT, tracing, tracing)

#define SAMPLE_FIELDS(X)                                                                                               \
    X(1, TEXT, table, table)                                                                                           \
    X(2, U32, count, count)                                                                                            \
    X(3, U64, timeout_ms, timeout_ms)                                                                                  \
    X(4, BOOL, distinct, distinct)                                                                                     \
    X(5, BOOL, flexible, flexible)                                                                                     \
    X(6, BOOL, whole, whole)                                                                                           \
    X(7, BOOL, paid, paid)

#define KEYS_FIELDS(X) X(1, TEXT, table, table) X(2, A64, key, key)
#define UPDATE_FIELDS(X) KEYS_FIELDS(X) X(3, A64, priority, priority)

#define INGEST_FIELDS(X)                                                                                               \
    X(1, U32, version, version)                                                                                        \
    X(2, F64, session_hi, session[0])                                                                                  \
    X(3, F64, session_lo, session[8])                                                                                  \
    X(4, F32, epoch, epoch)                                                                                            \
    X(5, F64, number, number)                                                                                          \
    X(6, F64, oldest_chunk, oldest_chunk)                                                                              \
    X(7, SUBS, layouts, layouts)                                                                                       \
    X(10, A64, chunk_number, chunk_number)                                                                             \
    X(11, A64, chunk_step, chunk_step)                                                                                 \
    X(12, A32, chunk_length, chunk_length)                                                                             \
    X(13, A32, chunk_episode, chunk_episode)                                                                           \
    X(14, A32, block_size, block_size)                                                                                 \
    X(15, A8, block_codec, block_codec)                                                                                \
    X(16, F32, packed, packed)                                                                                         \
    X(20, A32, run_layout, run_layout)                                                                                 \
    X(21, A32, run_items, run_items)                                                                                   \
    X(22, A64, run_first, run_first)                                                                                   \
    X(23, A64, run_policy, run_policy)                                                                                 \
    X(24, A64, item_key, item_key)                                                                                     \
    X(25, A64, item_priority, item_priority)                                                                           \
    X(26, A64, item_chunk, item_chunk)                                                                                 \
    X(27, A32, item_offset, item_offset)                                                                               \
    X(28, A32, item_length, item_length)

#define SAMPLED_FIELDS(X)                                                                                              \
    X(1, A64, key, key)                                                                                                \
    X(2, A64, priority, priority)                                                                                      \
    X(3, A64, probability, probability)                                                                                \
    X(4, A32, times_sampled, times_sampled)                                                                            \
    X(5, A64, age_ns, age_ns)                                                                                          \
    X(6, A64, policy, policy)                                                                                          \
    X(7, A64, step, step)                                                                                              \
    X(8, A32, session, session)                                                                                        \
    X(9, A32, layout, layout)                                                                                          \
    X(10, A32, offset, offset)                                                                                         \
    X(11, A32, length, length)                                                                                         \
    X(12, A32, chunks, chunks)                                                                                         \
    X(13, A32, chunk, chunk)                                                                                           \
    X(14, A32, chunk_length, chunk_length)                                                                             \
    X(15, A32, chunk_blocks, chunk_blocks)                                                                             \
    X(16, A8, block_column, block_column)                                                                              \
    X(17, A8, block_codec, block_codec)                                                                                \
    X(18, A32, block_size, block_size)                                                                                 \
    X(19, F32, packed, packed)                                                                                         \
    X(20, SUBS, layouts, layouts)                                                                                      \
    X(21, F64, table_size, table_size)                                                                                 \
    X(22, F64, waited_ns, waited_ns)                                                                                   \
    X(23, BOOL, partial, partial)                                                                                      \
    X(24, F64, mass, mass)                                                                                             \
    X(25, F64, room, room)

#define WIRE_VIEW wire_request
static const char *const request_names[] = {REQUEST_FIELDS(WIRE_FIELD)};
static const struct wire_spec request_spec = {"Request", request_names, true, {REQUEST_FIELDS(WIRE_ROW)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_reply
static const char *const reply_names[] = {REPLY_FIELDS(WIRE_FIELD)};
static const struct wire_spec reply_spec = {"Reply", reply_names, true, {REPLY_FIELDS(WIRE_ROW)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_sample
static const char *const sample_names[] = {SAMPLE_FIELDS(WIRE_FIELD)};
static const struct wire_spec sample_spec = {"Sample", sample_names, false, {SAMPLE_FIELDS(WIRE_ROW)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_keys
static const char *const update_names[] = {UPDATE_FIELDS(WIRE_FIELD)};
static const struct wire_spec update_spec = {"Update", update_names, false, {UPDATE_FIELDS(WIRE_ROW)}};
static const struct wire_spec keys_spec = {"Delete or Fetch", update_names, false, {KEYS_FIELDS(WIRE_ROW)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_ingest
static const char *const ingest_names[] = {INGEST_FIELDS(WIRE_FIELD)};
static const struct wire_spec ingest_spec = {"Ingest", ingest_names, false, {INGEST_FIELDS(WIRE_ROW)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_sampled
static const char *const sampled_names[] = {SAMPLED_FIELDS(WIRE_FIELD)};
static const struct wire_spec sampled_spec = {"SampleReply", sampled_names, false, {SAMPLED_FIELDS(WIRE_ROW)}};
#undef WIRE_VIEW

/* ---- checks of counts */

static const uint8_t wire_zeros[8];

static inline bool wire_is_n_or_one(const struct pb_array *a, uint32_t n)
{
    return a->n == n || (a->n == 1 && n > 0);
}

/* Makes an absent optional array one 0, if there are elements that it describes. */
static inline bool wire_optional(struct pb_array *a, uint32_t n)
{
    if (a->n == 0 && n > 0)
        *a = (struct pb_array){wire_zeros, 1};
    return wire_is_n_or_one(a, n);
}

#define WIRE_EXACT(spec, number, array, count)                                                                         \
    do {                                                                                                               \
        if ((array).n != (count))                                                                                      \
            return wire_scan_bad_count(spec, number, (array).n, count, false, err);                                    \
    } while (0)
#define WIRE_OR_ONE(spec, number, array, count)                                                                        \
    do {                                                                                                               \
        if (!wire_is_n_or_one(&(array), count))                                                                        \
            return wire_scan_bad_count(spec, number, (array).n, count, true, err);                                     \
    } while (0)
#define WIRE_OPTIONAL(spec, number, array, count)                                                                      \
    do {                                                                                                               \
        if (!wire_optional(&(array), count))                                                                           \
            return wire_scan_bad_count(spec, number, (array).n, count, true, err);                                     \
    } while (0)

/* ---- messages */

rp_status wire_read_request(const void *frame, size_t size, struct wire_request *out, rp_error *err)
{
    struct wire_found found;
    memset(out, 0, sizeof *out);
    RP_TRY(wire_scan(&request_spec, frame, size, out, &found, err));
    out->body = found.body;
    out->data = found.data;
    out->size = found.size;
    return RP_OK;
}

rp_status wire_read_reply(const void *frame, size_t size, struct wire_reply *out, rp_error *err)
{
    struct wire_found found;
    memset(out, 0, sizeof *out);
    RP_TRY(wire_scan(&reply_spec, frame, size, out, &found, err));
    out->body = found.body;
    out->data = found.data;
    out->size = found.size;
    return RP_OK;
}

rp_status wire_read_sample(const void *body, size_t size, struct wire_sample *out, rp_error *err)
{
    struct wire_found found;
    memset(out, 0, sizeof *out);
    RP_TRY(wire_scan(&sample_spec, body, size, out, &found, err));
    out->has_timeout = found.seen >> 3 & 1;
    return RP_OK;
}

rp_status wire_read_keys(const void *body, size_t size, bool with_priority, struct wire_keys *out, rp_error *err)
{
    struct wire_found found;
    memset(out, 0, sizeof *out);
    RP_TRY(wire_scan(with_priority ? &update_spec : &keys_spec, body, size, out, &found, err));
    if (with_priority)
        WIRE_OR_ONE(&update_spec, 3, out->priority, out->key.n);
    return RP_OK;
}

/* block_size or block_codec: 1 or a multiple of n_chunks; none without chunks. */
static inline bool wire_is_per_block(const struct pb_array *a, uint32_t n_chunks)
{
    if (n_chunks == 0 || a->n == 0)
        return a->n == n_chunks;
    return a->n == 1 || a->n % n_chunks == 0;
}

static rp_status wire_check_chunks(struct wire_ingest *out, rp_error *err)
{
    uint32_t n = out->n_chunks = out->chunk_number.n;
    WIRE_EXACT(&ingest_spec, 11, out->chunk_step, n);
    WIRE_OR_ONE(&ingest_spec, 12, out->chunk_length, n);
    WIRE_OPTIONAL(&ingest_spec, 13, out->chunk_episode, n);
    if (!wire_is_per_block(&out->block_size, n))
        return wire_scan_bad_value(&ingest_spec, 14, "must have 1 element, or one for each column of each chunk",
                                   out->block_size.n, err);
    if (!wire_is_per_block(&out->block_codec, n))
        return wire_scan_bad_value(&ingest_spec, 15, "must have 1 element, or one for each column of each chunk",
                                   out->block_codec.n, err);
    if (out->packed > n)
        return wire_scan_bad_value(&ingest_spec, 16, "is more than the number of chunks", out->packed, err);
    return RP_OK;
}

rp_status wire_read_ingest(const void *frame, size_t size, struct wire_ingest *out, rp_error *err)
{
    struct wire_found found;
    memset(out, 0, sizeof *out);
    RP_TRY(wire_scan(&ingest_spec, frame, size, out, &found, err));
    out->layouts = found.subs;
    out->layouts_size = (size_t)(found.subs_end - found.subs);
    out->n_layouts = found.n_subs;
    RP_TRY(wire_check_chunks(out, err));

    uint32_t runs = out->n_runs = out->run_items.n;
    WIRE_EXACT(&ingest_spec, 20, out->run_layout, runs);
    WIRE_EXACT(&ingest_spec, 22, out->run_first, runs);
    WIRE_OPTIONAL(&ingest_spec, 23, out->run_policy, runs);

    uint32_t items = out->n_items = out->item_key.n;
    WIRE_OR_ONE(&ingest_spec, 25, out->item_priority, items);
    WIRE_EXACT(&ingest_spec, 26, out->item_chunk, items);
    WIRE_OPTIONAL(&ingest_spec, 27, out->item_offset, items);
    WIRE_OR_ONE(&ingest_spec, 28, out->item_length, items);

    uint64_t sum = 0;
    for (uint32_t i = 0; i < runs; i++)
        sum += pb_u32(&out->run_items, i);
    if (sum != items)
        return wire_scan_bad_value(&ingest_spec, 21, "does not add up to the number of items", sum, err);
    return RP_OK;
}

static uint32_t wire_max(const struct pb_array *a)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t v;
        memcpy(&v, a->data + (size_t)i * 4, 4);
        max = v > max ? v : max;
    }
    return max;
}

/* Returns the sum of n values; an array of one element stands for all n. */
static uint64_t wire_sum(const struct pb_array *a, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t v;
        memcpy(&v, a->data + (size_t)i * 4, 4);
        sum += v;
    }
    return a->n == 1 ? sum * n : sum;
}

static rp_status wire_check_items(struct wire_sampled *out, rp_error *err)
{
    const struct wire_spec *spec = &sampled_spec;
    uint32_t n = out->n_items = out->key.n;
    WIRE_EXACT(spec, 2, out->priority, n);
    WIRE_OPTIONAL(spec, 3, out->probability, n);
    WIRE_OPTIONAL(spec, 4, out->times_sampled, n);
    WIRE_EXACT(spec, 5, out->age_ns, n);
    WIRE_OPTIONAL(spec, 6, out->policy, n);
    WIRE_EXACT(spec, 7, out->step, n);
    WIRE_OPTIONAL(spec, 8, out->session, n);
    WIRE_OPTIONAL(spec, 9, out->layout, n);
    WIRE_OPTIONAL(spec, 10, out->offset, n);
    WIRE_OR_ONE(spec, 11, out->length, n);
    WIRE_OR_ONE(spec, 12, out->chunks, n);
    if (n > 0 && wire_max(&out->layout) >= out->n_layouts)
        return wire_scan_bad_value(spec, 9, "refers to a layout that is not there", wire_max(&out->layout), err);
    return RP_OK;
}

static rp_status wire_check_blocks(struct wire_sampled *out, rp_error *err)
{
    const struct wire_spec *spec = &sampled_spec;
    uint32_t chunks = out->n_chunks, most = wire_max(&out->chunk_blocks);
    WIRE_OR_ONE(spec, 14, out->chunk_length, chunks);
    WIRE_OR_ONE(spec, 15, out->chunk_blocks, chunks);
    if (out->packed > chunks)
        return wire_scan_bad_value(spec, 19, "is more than the number of chunks", out->packed, err);
    if (most > RP_MAX_COLUMNS)
        return wire_scan_bad_value(spec, 15, "is more than a stream may have columns", most, err);
    /* At most 2^24 chunks of 255 blocks: this fits. */
    uint32_t n = out->n_blocks = (uint32_t)wire_sum(&out->chunk_blocks, chunks);
    WIRE_OR_ONE(spec, 17, out->block_codec, n);
    WIRE_OR_ONE(spec, 18, out->block_size, n);
    bool same = chunks > 0 && out->block_column.n == most && n == (uint64_t)most * chunks;
    if (!same)
        WIRE_EXACT(spec, 16, out->block_column, n);
    return RP_OK;
}

rp_status wire_read_sampled(const void *body, size_t size, struct wire_sampled *out, rp_error *err)
{
    const struct wire_spec *spec = &sampled_spec;
    struct wire_found found;
    memset(out, 0, sizeof *out);
    RP_TRY(wire_scan(spec, body, size, out, &found, err));
    out->layouts = found.subs;
    out->layouts_size = (size_t)(found.subs_end - found.subs);
    out->n_layouts = found.n_subs;
    RP_TRY(wire_check_items(out, err));

    uint64_t chunks = wire_sum(&out->chunks, out->n_items);
    if (out->chunk.n > 0) {
        WIRE_EXACT(spec, 13, out->chunk, chunks);
        chunks = (uint64_t)wire_max(&out->chunk) + 1;
        if (chunks > out->chunk.n)
            return wire_scan_bad_value(spec, 13, "skips chunks: every chunk belongs to an item", chunks - 1, err);
    }
    if (chunks > WIRE_MAX_CHUNKS)
        return wire_scan_bad_value(spec, 12, "adds up to too many chunks", chunks, err);
    out->n_chunks = (uint32_t)chunks;
    return wire_check_blocks(out, err);
}
