/* Item layouts on the writer's side: the slices of an item, made relative to its first step, so that equal ones are
 * recognised and registered with the broker once. */
#ifndef AGENT_CLIENT_FORM_H
#define AGENT_CLIENT_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/client/conn/conn.h"
#include "agent/client/outbox/stream.h"
#include "replay/writer.h"

#define FORM_MAX_FIELDS 1024u
#define FORMS_MAX 65536u

struct form_field {
    const char *name;
    uint32_t column;
    int32_t start; /* negative: from the item's end */
    uint32_t count;
    uint32_t stride;
    bool squeeze;
};

/* Constant once made, but for the I/O thread's part. Lives as long as its writer. */
struct form {
    struct form *chain;
    uint64_t hash;
    uint32_t table; /* index into the HELLO's tables */
    uint8_t *wire;  /* an Ingest.layouts field: tag, length, message, the id first */
    size_t wire_size, wire_id;
    /* The I/O thread's: sessions number their layouts in the order in which they are sent. */
    uint64_t session; /* in which it was registered; 0: none */
    uint32_t id;
    uint32_t n_fields;
    struct form_field fields[];
};

struct forms {
    struct form **buckets;
    uint32_t n_buckets, count;
    struct form **last; /* [table] the one used last */
    uint32_t n_tables;
    struct form_field *scratch; /* the item being made */
    uint32_t scratch_size;
};

/* What an item covers, in steps of the stream. */
struct form_span {
    uint64_t first;
    uint32_t length;
};

/* The I/O thread: sets the id in the encoded form. */
void form_number(struct form *self, uint32_t id);

bool forms_init(struct forms *self, uint32_t n_tables);
void forms_fini(struct forms *self);

/* Checks the slices against the table's signature alone, wherever they start. Count 0 stands for any number of steps. */
rp_status forms_check(struct forms *self, const struct stream *stream, const struct conn_table *spec,
                      const rp_slice *slices, uint32_t n, rp_error *err);

/* Checks the slices against the stream's window and the table's signature, and gives the form and the steps covered.
 * The form is borrowed. */
rp_status forms_get(struct forms *self, const struct stream *stream, uint32_t table, const struct conn_table *spec,
                    const rp_slice *slices, uint32_t n, struct form **form, struct form_span *span, rp_error *err);

#endif
