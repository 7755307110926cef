/* What is shown of each struct of a snapshot: one row per member gives its name in JSON and its metric with type, unit and help.
 * To add a figure: a member in metrics/snapshot.h, a line in service/snapshot_fill.c, a row here, a line in docs/METRICS.md. */
#ifndef BROKER_HTTP_FIELDS_H
#define BROKER_HTTP_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/json.h"

enum field_kind {
    FIELD_U64,
    FIELD_U32,
    FIELD_I64,
    FIELD_REAL,
    FIELD_NS,   /* a uint64_t of nanoseconds, shown as seconds */
    FIELD_FLAG, /* a bool */
    FIELD_TEXT, /* a const char * */
    FIELD_NAME, /* a char array */
    FIELD_HEX,  /* a uint64_t, shown as text of 16 digits */
};

enum metric_type { METRIC_NONE, METRIC_COUNTER, METRIC_GAUGE };

struct field {
    const char *name; /* in JSON; NULL ends the list */
    enum field_kind kind;
    size_t offset;
    enum metric_type type;
    const char *metric; /* a counter's without "_total" */
    const char *label;  /* further label of this metric, or NULL; rows of one metric stand together */
    const char *help;
};

extern const struct field server_fields[], process_fields[], thread_fields[], memory_fields[], disk_fields[];
extern const struct field table_fields[], session_fields[], flow_fields[], slot_fields[], counter_fields[];
extern const struct field command_fields[], wait_fields[];

/* Returns the number that a metric shows. */
double field_value(const struct field *field, const void *base);
/* Writes the members into an object that is open. */
void fields_json(struct json *out, const struct field *fields, const void *base);

#endif
