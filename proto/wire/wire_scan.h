/* The pass over a hot header: one walk over the tags, a table lookup by field number, no allocation. A message is a table
 * of rows, one per field number; wire_read.c has the tables. */
#ifndef PROTO_WIRE_SCAN_H
#define PROTO_WIRE_SCAN_H

#include "proto/wire/wire.h"

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
    const char *const *fields;
    bool has_body; /* fields from WIRE_FIRST_BODY on are bodies */
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

/* Stores every field of the frame in the view, which the caller has zeroed. On failure the view has the fields before the
 * damage. */
rp_status wire_scan(const struct wire_spec *spec, const void *frame, size_t size, void *view, struct wire_found *found,
                    rp_error *err);

/* RP_BAD_MESSAGE with "Message.field what (value)" or "Message.field has 3 elements: it must have 5 or 1". */
rp_status wire_scan_bad_value(const struct wire_spec *spec, uint32_t number, const char *what, uint64_t value,
                              rp_error *err);
rp_status wire_scan_bad_count(const struct wire_spec *spec, uint32_t number, uint32_t got, uint64_t want, bool or_one,
                              rp_error *err);

#endif
