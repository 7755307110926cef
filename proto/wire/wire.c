/* Hot headers: the pass over a frame, the tables and checks of the messages that are read, and the plans of those that are
 * written. */
#include "proto/wire/wire.h"

#include <inttypes.h>

#include "proto/base/error.h"
#include "replay.pb-c.h"
#include "replay/types.h"

/* ---- the pass over a header: one walk over the tags, a table lookup by field number, no allocation. Code that only a bad frame
 * needs is kept out of line. */

#define WIRE_ROWS 32u
#define WIRE_FIRST_BODY 16u

enum wire_kind {
    WIRE_NONE,
    WIRE_U32, /* varint, uint32_t */
    WIRE_U64, /* varint, uint64_t */
    WIRE_BOOL,
    WIRE_F32,  /* fixed32, uint32_t */
    WIRE_F64,  /* fixed64, uint64_t */
    WIRE_TEXT, /* struct wire_string */
    WIRE_A8,   /* bytes, packed fixed32 and fixed64 or double: struct pb_array */
    WIRE_A32,
    WIRE_A64,
    WIRE_SUBS, /* repeated sub-messages: only counted; wire_found says where they are */
};

struct wire_row {
    uint8_t kind;
    uint8_t want;    /* the wire type plus 1; 0, which no tag has, if there is no field */
    uint8_t shift;   /* an array's element takes 1 << shift bytes */
    uint16_t offset; /* of the member in the view */
};

#define ROW_U32 WIRE_U32, PB_VARINT + 1, 0
#define ROW_U64 WIRE_U64, PB_VARINT + 1, 0
#define ROW_BOOL WIRE_BOOL, PB_VARINT + 1, 0
#define ROW_F32 WIRE_F32, PB_FIXED32 + 1, 0
#define ROW_F64 WIRE_F64, PB_FIXED64 + 1, 0
#define ROW_TEXT WIRE_TEXT, PB_BYTES + 1, 0
#define ROW_A8 WIRE_A8, PB_BYTES + 1, 0
#define ROW_A32 WIRE_A32, PB_BYTES + 1, 2
#define ROW_A64 WIRE_A64, PB_BYTES + 1, 3
#define ROW_SUBS WIRE_SUBS, PB_BYTES + 1, 0

struct wire_spec {
    const char *name;
    const ProtobufCMessageDescriptor *of; /* names its fields */
    bool has_body;                        /* fields from WIRE_FIRST_BODY on are bodies */
    struct wire_row rows[WIRE_ROWS];
};

/* What a pass finds in addition to the members of the view. */
struct wire_found {
    uint32_t seen; /* bit per field number */
    uint32_t n_subs;
    const uint8_t *subs, *subs_end;
    uint32_t body;
    const uint8_t *data;
    size_t size;
};

/* The same code stores strings and arrays. */
_Static_assert(sizeof(struct wire_string) == sizeof(struct pb_array) &&
                   offsetof(struct wire_string, size) == offsetof(struct pb_array, n),
               "a string is an array of bytes");

/* ---- sentences, off the hot path: RP_BAD_MESSAGE with "Message.field what (value)" or "Message.field has 3 elements: it must
 * have 5 or 1" */

#define WIRE_COLD __attribute__((cold, noinline))

static WIRE_COLD const char *field_name(const struct wire_spec *spec, uint32_t number)
{
    return protobuf_c_message_descriptor_get_field(spec->of, number)->name;
}

static WIRE_COLD rp_status wire_damaged(const struct wire_spec *spec, size_t at, rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "%s: damaged at byte %zu: not a field in protobuf encoding", spec->name, at);
}

static WIRE_COLD rp_status wire_bad_wire(const struct wire_spec *spec, uint32_t number, uint32_t wire, rp_error *err)
{
    uint8_t kind = spec->rows[number].kind;
    const char *field = field_name(spec, number);
    if ((kind == WIRE_A32 || kind == WIRE_A64) && (wire == PB_FIXED32 || wire == PB_FIXED64))
        return err_set(err, RP_BAD_MESSAGE, "%s.%s is not packed: send its elements as one packed array", spec->name,
                       field);
    return err_set(err, RP_BAD_MESSAGE, "%s.%s has wire type %" PRIu32 ": it must be %u", spec->name, field, wire,
                   spec->rows[number].want - 1u);
}

static WIRE_COLD rp_status wire_twice(const struct wire_spec *spec, uint32_t number, rp_error *err)
{
    uint8_t kind = spec->rows[number].kind;
    const char *what = kind == WIRE_A32 || kind == WIRE_A64 ? "send each packed array once" : "send it once";
    return err_set(err, RP_BAD_MESSAGE, "%s.%s stands twice: %s", spec->name, field_name(spec, number), what);
}

static WIRE_COLD rp_status wire_bad_value(const struct wire_spec *spec, uint32_t number, const char *what,
                                          uint64_t value, rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "%s.%s %s (%" PRIu64 ")", spec->name, field_name(spec, number), what, value);
}

static WIRE_COLD rp_status wire_bad_count(const struct wire_spec *spec, uint32_t number, uint32_t got, uint64_t want,
                                          bool or_one, rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "%s.%s has %" PRIu32 " elements: it must have %" PRIu64 "%s", spec->name,
                   field_name(spec, number), got, want, or_one && want > 1 ? " or 1" : "");
}

/* ---- the pass */

/* Takes a field without a row: a body, or a field to skip. Returns the byte after it, or NULL. */
static const uint8_t *wire_other(const struct wire_spec *spec, const uint8_t *frame, struct pb_reader in,
                                 struct wire_found *found, rp_error *err)
{
    const uint8_t *at = in.at;
    struct pb_field field;
    if (pb_next(&in, &field) != 1) {
        wire_damaged(spec, (size_t)(at - frame), err);
        return NULL;
    }
    if (!spec->has_body || field.number < WIRE_FIRST_BODY)
        return in.at;
    if (field.wire != PB_BYTES)
        return err_null(err, RP_BAD_MESSAGE, "%s: body %" PRIu32 " has wire type %d: it must be 2", spec->name,
                        field.number, (int)field.wire);
    if (found->body != 0)
        return err_null(err, RP_BAD_MESSAGE,
                        "%s has two bodies (%" PRIu32 " and %" PRIu32 "): send one message for each", spec->name,
                        found->body, field.number);
    found->body = field.number;
    found->data = field.data;
    found->size = field.size;
    return in.at;
}

/* Handles a tag that has no row, or the wrong wire type for its row. */
static const uint8_t *wire_odd(const struct wire_spec *spec, const uint8_t *frame, struct pb_reader in, uint64_t tag,
                               struct wire_found *found, rp_error *err)
{
    if (tag >> 3 >= WIRE_ROWS || spec->rows[tag >> 3].kind == WIRE_NONE)
        return wire_other(spec, frame, in, found, err);
    wire_bad_wire(spec, (uint32_t)tag >> 3, (uint32_t)tag & 7, err);
    return NULL;
}

static inline rp_status wire_store_varint(const struct wire_spec *spec, uint32_t number, uint64_t value, void *member,
                                          rp_error *err)
{
    uint8_t kind = spec->rows[number].kind;
    if (kind == WIRE_U32 && value > UINT32_MAX)
        return wire_bad_value(spec, number, "does not fit 32 bits", value, err);
    if (kind == WIRE_U32)
        *(uint32_t *)member = (uint32_t)value;
    else if (kind == WIRE_BOOL)
        *(bool *)member = value != 0;
    else
        *(uint64_t *)member = value;
    return RP_OK;
}

static WIRE_COLD rp_status wire_bad_length(const struct wire_spec *spec, uint32_t number, uint64_t size, rp_error *err)
{
    const char *what = spec->rows[number].shift == 3 ? "has a length in bytes that is no multiple of 8"
                                                     : "has a length in bytes that is no multiple of 4";
    return wire_bad_value(spec, number, what, size, err);
}

/* Stores every field of the frame in the view, which the caller has zeroed. On failure the view has the fields before the
 * damage. */
static rp_status wire_scan(const struct wire_spec *spec, const void *frame, size_t size, void *view,
                           struct wire_found *found, rp_error *err)
{
    const uint8_t *at = frame, *end = pb_reader(frame, size).end;
    uint32_t seen = 0;
    *found = (struct wire_found){0};
    /* Counts must fit 32 bits. */
    if (size > UINT32_MAX)
        return err_set(err, RP_BAD_MESSAGE, "%s: a header of %zu bytes is too long", spec->name, size);
    while (at != end) {
        const uint8_t *start = at;
        struct pb_number tag = pb_read_varint(at, end);
        if (tag.at == NULL)
            return wire_damaged(spec, (size_t)(start - (const uint8_t *)frame), err);
        uint32_t number = (uint32_t)(tag.value >> 3), wire = (uint32_t)tag.value & 7;
        const struct wire_row *row = &spec->rows[number % WIRE_ROWS];
        if (tag.value >> 3 >= WIRE_ROWS || row->want != wire + 1) {
            at = wire_odd(spec, frame, (struct pb_reader){at, end}, tag.value, found, err);
            if (at == NULL)
                return RP_BAD_MESSAGE;
            continue;
        }
        if (seen >> number & 1 && row->kind != WIRE_SUBS)
            return wire_twice(spec, number, err);
        seen |= 1u << number;
        at = tag.at;
        void *member = (char *)view + row->offset;
        if (wire == PB_FIXED64 || wire == PB_FIXED32) {
            size_t width = wire == PB_FIXED64 ? 8 : 4;
            if ((size_t)(end - at) < width)
                return wire_damaged(spec, (size_t)(start - (const uint8_t *)frame), err);
            memcpy(member, at, width);
            at += width;
            continue;
        }
        struct pb_number value = pb_read_varint(at, end);
        if (value.at == NULL || (wire == PB_BYTES && value.value > (uint64_t)(end - value.at)))
            return wire_damaged(spec, (size_t)(start - (const uint8_t *)frame), err);
        at = value.at;
        if (wire == PB_VARINT) {
            RP_TRY(wire_store_varint(spec, number, value.value, member, err));
            continue;
        }
        if (row->kind == WIRE_SUBS) {
            at += value.value;
            found->subs = found->n_subs == 0 ? start : found->subs;
            found->subs_end = at;
            found->n_subs++;
            continue;
        }
        if (value.value & ((1u << row->shift) - 1))
            return wire_bad_length(spec, number, value.value, err);
        struct pb_array array = {at, (uint32_t)(value.value >> row->shift)};
        memcpy(member, &array, sizeof array);
        at += value.value;
    }
    found->seen = seen;
    return RP_OK;
}

/* ---- reading: each message is a table of rows (number, kind, member of the view), then come checks across fields */

#define WIRE_ROW(number, kind, member) [number] = {ROW_##kind, offsetof(struct WIRE_VIEW, member)}

#define WIRE_VIEW wire_request
static const struct wire_spec request_spec = {
    "Request",
    &replay__request__descriptor,
    true,
    {WIRE_ROW(1, U32, version), WIRE_ROW(2, F64, id), WIRE_ROW(3, F64, client), WIRE_ROW(4, F64, settled)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_reply
static const struct wire_spec reply_spec = {"Reply",
                                            &replay__reply__descriptor,
                                            true,
                                            {WIRE_ROW(1, U32, version), WIRE_ROW(2, F64, id), WIRE_ROW(3, U32, status),
                                             WIRE_ROW(4, TEXT, text), WIRE_ROW(5, TEXT, tracing)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_sample
static const struct wire_spec sample_spec = {
    "Sample",
    &replay__sample__descriptor,
    false,
    {WIRE_ROW(1, TEXT, table), WIRE_ROW(2, U32, count), WIRE_ROW(3, U64, timeout_ms), WIRE_ROW(4, BOOL, distinct),
     WIRE_ROW(5, BOOL, flexible), WIRE_ROW(6, BOOL, whole), WIRE_ROW(7, BOOL, paid), WIRE_ROW(8, U32, shared),
     WIRE_ROW(9, F64, seed), WIRE_ROW(10, U32, lease_ms)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_keys
static const struct wire_spec update_spec = {
    "Update",
    &replay__update__descriptor,
    false,
    {WIRE_ROW(1, TEXT, table), WIRE_ROW(2, A64, key), WIRE_ROW(3, A64, priority)}};
static const struct wire_spec keys_spec = {
    "Delete or Fetch", &replay__fetch__descriptor, false, {WIRE_ROW(1, TEXT, table), WIRE_ROW(2, A64, key)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_lease
static const struct wire_spec lease_spec = {
    "Lease",
    &replay__lease__descriptor,
    false,
    {WIRE_ROW(1, TEXT, table), WIRE_ROW(2, A64, key), WIRE_ROW(3, U32, op), WIRE_ROW(4, U32, ms)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_ingest
static const struct wire_spec ingest_spec = {
    "Ingest",
    &replay__ingest__descriptor,
    false,
    {WIRE_ROW(1, U32, version),       WIRE_ROW(2, F64, session[0]),     WIRE_ROW(3, F64, session[8]),
     WIRE_ROW(4, F32, epoch),         WIRE_ROW(5, F64, number),         WIRE_ROW(6, F64, oldest_chunk),
     WIRE_ROW(7, SUBS, layouts),      WIRE_ROW(10, A64, chunk_number),  WIRE_ROW(11, A64, chunk_step),
     WIRE_ROW(12, A32, chunk_length), WIRE_ROW(13, A32, chunk_episode), WIRE_ROW(14, A32, block_size),
     WIRE_ROW(15, A8, block_codec),   WIRE_ROW(16, F32, packed),        WIRE_ROW(17, A64, place),
     WIRE_ROW(20, A32, run_layout),   WIRE_ROW(21, A32, run_items),     WIRE_ROW(22, A64, run_first),
     WIRE_ROW(23, A64, run_policy),   WIRE_ROW(24, A64, item_key),      WIRE_ROW(25, A64, item_priority),
     WIRE_ROW(26, A64, item_chunk),   WIRE_ROW(27, A32, item_offset),   WIRE_ROW(28, A32, item_length),
     WIRE_ROW(29, A64, item_group)}};
#undef WIRE_VIEW
#define WIRE_VIEW wire_sampled
static const struct wire_spec sampled_spec = {
    "SampleReply",
    &replay__sample_reply__descriptor,
    false,
    {WIRE_ROW(1, A64, key),           WIRE_ROW(2, A64, priority),      WIRE_ROW(3, A64, probability),
     WIRE_ROW(4, A32, times_sampled), WIRE_ROW(5, A64, age_ns),        WIRE_ROW(6, A64, policy),
     WIRE_ROW(7, A64, step),          WIRE_ROW(8, A32, session),       WIRE_ROW(9, A32, layout),
     WIRE_ROW(10, A32, offset),       WIRE_ROW(11, A32, length),       WIRE_ROW(12, A32, chunks),
     WIRE_ROW(13, A32, chunk),        WIRE_ROW(14, A32, chunk_length), WIRE_ROW(15, A32, chunk_blocks),
     WIRE_ROW(16, A8, block_column),  WIRE_ROW(17, A8, block_codec),   WIRE_ROW(18, A32, block_size),
     WIRE_ROW(19, F32, packed),       WIRE_ROW(20, SUBS, layouts),     WIRE_ROW(21, F64, table_size),
     WIRE_ROW(22, F64, waited_ns),    WIRE_ROW(23, BOOL, partial),     WIRE_ROW(24, F64, mass),
     WIRE_ROW(25, F64, room),         WIRE_ROW(26, A64, place),        WIRE_ROW(27, A64, stamp),
     WIRE_ROW(28, A64, packed_at),    WIRE_ROW(29, A64, group),        WIRE_ROW(30, A64, head_at)}};
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
            return wire_bad_count(spec, number, (array).n, count, false, err);                                         \
    } while (0)
#define WIRE_OR_ONE(spec, number, array, count)                                                                        \
    do {                                                                                                               \
        if (!wire_is_n_or_one(&(array), count))                                                                        \
            return wire_bad_count(spec, number, (array).n, count, true, err);                                          \
    } while (0)
#define WIRE_OPTIONAL(spec, number, array, count)                                                                      \
    do {                                                                                                               \
        if (!wire_optional(&(array), count))                                                                           \
            return wire_bad_count(spec, number, (array).n, count, true, err);                                          \
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

rp_status wire_read_lease(const void *body, size_t size, struct wire_lease *out, rp_error *err)
{
    struct wire_found found;
    memset(out, 0, sizeof *out);
    return wire_scan(&lease_spec, body, size, out, &found, err);
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
        return wire_bad_value(&ingest_spec, 14, "must have 1 element, or one for each column of each chunk",
                              out->block_size.n, err);
    if (!wire_is_per_block(&out->block_codec, n))
        return wire_bad_value(&ingest_spec, 15, "must have 1 element, or one for each column of each chunk",
                              out->block_codec.n, err);
    if (out->packed > n)
        return wire_bad_value(&ingest_spec, 16, "is more than the number of chunks", out->packed, err);
    if (out->place.n > 0)
        WIRE_EXACT(&ingest_spec, 17, out->place, n - out->packed);
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
    if (out->item_group.n > 0)
        WIRE_OR_ONE(&ingest_spec, 29, out->item_group, items);

    uint64_t sum = 0;
    for (uint32_t i = 0; i < runs; i++)
        sum += pb_u32(&out->run_items, i);
    if (sum != items)
        return wire_bad_value(&ingest_spec, 21, "does not add up to the number of items", sum, err);
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
        return wire_bad_value(spec, 9, "refers to a layout that is not there", wire_max(&out->layout), err);
    return RP_OK;
}

static rp_status wire_check_blocks(struct wire_sampled *out, rp_error *err)
{
    const struct wire_spec *spec = &sampled_spec;
    uint32_t chunks = out->n_chunks, most = wire_max(&out->chunk_blocks);
    WIRE_OR_ONE(spec, 14, out->chunk_length, chunks);
    WIRE_OR_ONE(spec, 15, out->chunk_blocks, chunks);
    WIRE_EXACT(spec, 27, out->stamp, out->place.n);
    if (out->group.n)
        WIRE_OR_ONE(spec, 29, out->group, out->n_items);
    if (out->head_at.n)
        WIRE_EXACT(spec, 30, out->head_at, out->n_items ? 0u : 4u);
    if (out->packed_at.n)
        WIRE_EXACT(spec, 28, out->packed_at, out->packed ? 3u : 0u);
    if ((uint64_t)out->packed + out->place.n > chunks)
        return wire_bad_value(spec, 19, "is more than the number of chunks", out->packed, err);
    if (most > RP_MAX_COLUMNS)
        return wire_bad_value(spec, 15, "is more than a stream may have columns", most, err);
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
            return wire_bad_value(spec, 13, "skips chunks: every chunk belongs to an item", chunks - 1, err);
    }
    if (chunks > WIRE_MAX_CHUNKS)
        return wire_bad_value(spec, 12, "adds up to too many chunks", chunks, err);
    out->n_chunks = (uint32_t)chunks;
    return wire_check_blocks(out, err);
}

/* ---- writing. Writes hot headers. The fields are planned first, so that the exact size is known: one reservation, then one pass that stores
 * tag, length and bytes without checks. Fields are in the order of their numbers, as protobuf writes them. */

#define WIRE_MAX_PARTS 31u
#define WIRE_SAMPLE_BODY 19u

/* The fixed start of an ingest header: tags and values up to oldest_chunk, with zeros written out. */
enum {
    INGEST_VERSION = 1,
    INGEST_SESSION_HI = 3,
    INGEST_SESSION_LO = 12,
    INGEST_EPOCH = 21,
    INGEST_NUMBER = 26,
    INGEST_OLDEST = 35,
    INGEST_FIXED = 43,
};

struct wire_part {
    const void *data;
    uint64_t size;
    uint32_t tag;
    bool verbatim; /* encoded fields with their tags */
};

struct wire_plan {
    struct wire_part parts[WIRE_MAX_PARTS];
    uint32_t n_parts;
    uint64_t size;
};

static inline void plan_add(struct wire_plan *self, uint32_t tag, const void *data, uint64_t size)
{
    self->parts[self->n_parts++] = (struct wire_part){data, size, tag, false};
    self->size += pb_varint_size(tag) + pb_varint_size(size) + size;
}

/* A packed array; absent if there is nothing in it. */
static inline void plan_array(struct wire_plan *self, uint32_t number, const void *data, uint32_t n, uint32_t width)
{
    if (n > 0 && data != NULL)
        plan_add(self, number << 3 | PB_BYTES, data, (uint64_t)n * width);
}

/* A packed array marked "or 1". */
static inline void plan_folded(struct wire_plan *self, uint32_t number, const void *data, uint32_t n, uint32_t width)
{
    if (n > 0 && data != NULL)
        plan_add(self, number << 3 | PB_BYTES, data, pb_all_equal(data, n, width) ? width : (uint64_t)n * width);
}

/* The same, left out if all elements are 0: for arrays that read as 0 when absent. */
static inline void plan_optional(struct wire_plan *self, uint32_t number, const void *data, uint32_t n, uint32_t width)
{
    static const uint8_t zeros[8];
    if (n > 0 && data != NULL && !(memcmp(data, zeros, width) == 0 && pb_all_equal(data, n, width)))
        plan_folded(self, number, data, n, width);
}

/* A scalar: fixed32, fixed64, or a flag of one byte as a varint. Left out if 0. */
static inline void plan_scalar(struct wire_plan *self, uint32_t number, enum pb_wire wire, const void *value)
{
    static const uint8_t zeros[8];
    uint32_t width = wire == PB_FIXED64 ? 8 : wire == PB_FIXED32 ? 4 : 1;
    if (memcmp(value, zeros, width) == 0)
        return;
    uint32_t tag = number << 3 | wire;
    self->parts[self->n_parts++] = (struct wire_part){value, width, tag, false};
    self->size += pb_varint_size(tag) + width;
}

static inline void plan_verbatim(struct wire_plan *self, const void *data, size_t size)
{
    if (size > 0 && data != NULL) {
        self->parts[self->n_parts++] = (struct wire_part){data, size, 0, true};
        self->size += size;
    }
}

/* Most arrays of a header have one element: no call for those. */
static inline void plan_copy(uint8_t *at, const void *data, size_t size)
{
    if (size == 4)
        memcpy(at, data, 4);
    else if (size == 8)
        memcpy(at, data, 8);
    else
        memcpy(at, data, size);
}

static uint8_t *plan_store(const struct wire_plan *self, uint8_t *at)
{
    for (uint32_t i = 0; i < self->n_parts; i++) {
        const struct wire_part *part = &self->parts[i];
        if (!part->verbatim) {
            at = pb_store_varint(at, part->tag);
            if ((part->tag & 7) == PB_BYTES)
                at = pb_store_varint(at, part->size);
        }
        plan_copy(at, part->data, (size_t)part->size);
        at += part->size;
    }
    return at;
}

static void wire_store_fixed(uint8_t *at, const struct wire_ingest_out *in)
{
    at[0] = 1 << 3 | PB_VARINT;
    at[INGEST_VERSION] = WIRE_VERSION;
    at[INGEST_SESSION_HI - 1] = 2 << 3 | PB_FIXED64;
    at[INGEST_SESSION_LO - 1] = 3 << 3 | PB_FIXED64;
    at[INGEST_EPOCH - 1] = 4 << 3 | PB_FIXED32;
    wire_patch_ingest(at, in->session, in->epoch);
    at[INGEST_NUMBER - 1] = 5 << 3 | PB_FIXED64;
    memcpy(at + INGEST_NUMBER, &in->number, 8);
    at[INGEST_OLDEST - 1] = 6 << 3 | PB_FIXED64;
    memcpy(at + INGEST_OLDEST, &in->oldest_chunk, 8);
}

void wire_patch_ingest(void *frame, const uint8_t *session, uint32_t epoch)
{
    uint8_t *at = frame;
    memcpy(at + INGEST_SESSION_HI, session, 8);
    memcpy(at + INGEST_SESSION_LO, session + 8, 8);
    memcpy(at + INGEST_EPOCH, &epoch, 4);
}

void wire_write_ingest(struct text *out, const struct wire_ingest_out *in)
{
    uint32_t n_blocks = in->n_chunks * in->n_columns;
    struct wire_plan plan;
    plan.n_parts = 0;
    plan.size = INGEST_FIXED;
    plan_verbatim(&plan, in->layouts, in->layouts_size);
    plan_array(&plan, 10, in->chunk_number, in->n_chunks, 8);
    plan_array(&plan, 11, in->chunk_step, in->n_chunks, 8);
    plan_folded(&plan, 12, in->chunk_length, in->n_chunks, 4);
    plan_optional(&plan, 13, in->chunk_episode, in->n_chunks, 4);
    plan_folded(&plan, 14, in->block_size, n_blocks, 4);
    plan_folded(&plan, 15, in->block_codec, n_blocks, 1);
    plan_scalar(&plan, 16, PB_FIXED32, &in->packed);
    if (in->place)
        plan_array(&plan, 17, in->place, in->n_chunks - in->packed, 8);
    plan_array(&plan, 20, in->run_layout, in->n_runs, 4);
    plan_array(&plan, 21, in->run_items, in->n_runs, 4);
    plan_array(&plan, 22, in->run_first, in->n_runs, 8);
    plan_optional(&plan, 23, in->run_policy, in->n_runs, 8);
    plan_array(&plan, 24, in->item_key, in->n_items, 8);
    plan_folded(&plan, 25, in->item_priority, in->n_items, 8);
    plan_array(&plan, 26, in->item_chunk, in->n_items, 8);
    plan_optional(&plan, 27, in->item_offset, in->n_items, 4);
    plan_folded(&plan, 28, in->item_length, in->n_items, 4);
    plan_folded(&plan, 29, in->item_group, in->n_items, 8);

    uint8_t *at = text_reserve(out, (size_t)plan.size);
    if (at == NULL)
        return;
    wire_store_fixed(at, in);
    plan_store(&plan, at + INGEST_FIXED);
}

static void plan_sampled(struct wire_plan *plan, const struct wire_sampled_out *in)
{
    plan_array(plan, 1, in->key, in->n_items, 8);
    plan_array(plan, 2, in->priority, in->n_items, 8);
    plan_folded(plan, 3, in->probability, in->n_items, 8);
    plan_folded(plan, 4, in->times_sampled, in->n_items, 4);
    plan_array(plan, 5, in->age_ns, in->n_items, 8);
    plan_folded(plan, 6, in->policy, in->n_items, 8);
    plan_array(plan, 7, in->step, in->n_items, 8);
    plan_folded(plan, 8, in->session, in->n_items, 4);
    plan_folded(plan, 9, in->layout, in->n_items, 4);
    plan_folded(plan, 10, in->offset, in->n_items, 4);
    plan_folded(plan, 11, in->length, in->n_items, 4);
    plan_folded(plan, 12, in->chunks, in->n_items, 4);
    plan_array(plan, 13, in->chunk, in->n_chunk_refs, 4);
    plan_folded(plan, 14, in->chunk_length, in->n_chunks, 4);
    plan_folded(plan, 15, in->chunk_blocks, in->n_chunks, 4);
    plan_array(plan, 16, in->block_column, in->n_block_columns, 1);
    plan_folded(plan, 17, in->block_codec, in->n_blocks, 1);
    plan_folded(plan, 18, in->block_size, in->n_blocks, 4);
    plan_scalar(plan, 19, PB_FIXED32, &in->packed);
    plan_verbatim(plan, in->layouts, in->layouts_size);
    plan_scalar(plan, 21, PB_FIXED64, &in->table_size);
    plan_scalar(plan, 22, PB_FIXED64, &in->waited_ns);
    plan_scalar(plan, 23, PB_VARINT, &in->partial);
    if (in->paid) {
        plan_scalar(plan, 24, PB_FIXED64, &in->mass);
        plan_scalar(plan, 25, PB_FIXED64, &in->room);
    }
    plan_array(plan, 26, in->place, in->n_places, 8);
    plan_array(plan, 27, in->stamp, in->n_places, 8);
    plan_array(plan, 28, in->packed_at, in->packed_at ? 3 : 0, 8);
    plan_folded(plan, 29, in->group, in->n_items, 8);
    plan_array(plan, 30, in->head_at, in->head_at ? 4 : 0, 8);
}

void wire_write_sampled(struct text *out, const struct wire_sampled_out *in)
{
    size_t text_size = in->text == NULL ? 0 : strlen(in->text);
    struct wire_plan plan;
    plan.n_parts = 0;
    plan.size = 0;
    plan_sampled(&plan, in);

    pb_put_varint(out, 1, WIRE_VERSION);
    pb_put_fixed64(out, 2, in->id);
    pb_put_varint(out, 3, in->status);
    pb_put_bytes(out, 4, in->text, text_size);
    pb_tag(out, WIRE_SAMPLE_BODY, PB_BYTES);
    pb_varint(out, plan.size);
    uint8_t *at = text_reserve(out, (size_t)plan.size);
    if (at != NULL)
        plan_store(&plan, at);
}

bool wire_write_sampled_at(const struct wire_sampled_out *in, void *(*room)(void *ctx, size_t bytes), void *ctx)
{
    struct wire_plan plan;
    plan.n_parts = 0;
    plan.size = 0;
    plan_sampled(&plan, in);
    void *at = room(ctx, (size_t)plan.size);
    if (at)
        plan_store(&plan, at);
    return at;
}
