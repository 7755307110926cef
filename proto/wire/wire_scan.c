/* See wire_scan.h. Code that only a bad frame needs is kept out of line. */
#include "proto/wire/wire_scan.h"

#include <inttypes.h>

#include "proto/base/error.h"

/* The same code stores strings and arrays. */
_Static_assert(sizeof(struct wire_string) == sizeof(struct pb_array) &&
                   offsetof(struct wire_string, size) == offsetof(struct pb_array, n),
               "a string is an array of bytes");

/* ---- sentences, off the hot path */

#define WIRE_COLD __attribute__((cold, noinline))

static WIRE_COLD rp_status wire_damaged(const struct wire_spec *spec, size_t at, rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "%s: damaged at byte %zu: not a field in protobuf encoding", spec->name, at);
}

static WIRE_COLD rp_status wire_bad_wire(const struct wire_spec *spec, uint32_t number, uint32_t wire, rp_error *err)
{
    uint8_t kind = spec->rows[number].kind;
    const char *field = spec->fields[number];
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
    return err_set(err, RP_BAD_MESSAGE, "%s.%s stands twice: %s", spec->name, spec->fields[number], what);
}

WIRE_COLD rp_status wire_scan_bad_value(const struct wire_spec *spec, uint32_t number, const char *what, uint64_t value,
                                        rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "%s.%s %s (%" PRIu64 ")", spec->name, spec->fields[number], what, value);
}

WIRE_COLD rp_status wire_scan_bad_count(const struct wire_spec *spec, uint32_t number, uint32_t got, uint64_t want,
                                        bool or_one, rp_error *err)
{
    return err_set(err, RP_BAD_MESSAGE, "%s.%s has %" PRIu32 " elements: it must have %" PRIu64 "%s", spec->name,
                   spec->fields[number], got, want, or_one && want > 1 ? " or 1" : "");
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
    if (field.wire != PB_BYTES) {
        err_set(err, RP_BAD_MESSAGE, "%s: body %" PRIu32 " has wire type %d: it must be 2", spec->name, field.number,
                (int)field.wire);
        return NULL;
    }
    if (found->body != 0) {
        err_set(err, RP_BAD_MESSAGE, "%s has two bodies (%" PRIu32 " and %" PRIu32 "): send one message for each",
                spec->name, found->body, field.number);
        return NULL;
    }
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
        return wire_scan_bad_value(spec, number, "does not fit 32 bits", value, err);
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
    return wire_scan_bad_value(spec, number, what, size, err);
}

rp_status wire_scan(const struct wire_spec *spec, const void *frame, size_t size, void *view, struct wire_found *found,
                    rp_error *err)
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
