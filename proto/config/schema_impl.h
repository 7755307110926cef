/* Shared by the files of the schema reader, which are one module cut by task; not for others. */
#ifndef PROTO_SCHEMA_IMPL_H
#define PROTO_SCHEMA_IMPL_H

#include "proto/config/schema.h"

#define SCHEMA_MAX_FILE (1u << 20)
#define SCHEMA_MAX_DEPTH 32u
#define SCHEMA_MAX_LIST 4096u /* elements, if the row has no bound */
#define SCHEMA_MAX_PATH 512u  /* bytes of a key as it is shown to the user */
#define SCHEMA_MAX_NAME 128u  /* bytes of a free option's name */

/* A place in the file, counted from 1; line 0: not in a file. Lines from SCHEMA_OVERRIDE_LINE on stand for the overrides, in
 * their order. */
#define SCHEMA_OVERRIDE_LINE (1u << 30)
struct schema_place {
    uint32_t line, column;
};

/* ---- schema_report.c */
/* Starts a new file: drops the places of the last one. Each problem begins with `file`. */
void schema_report_begin(struct schema_report *self, const char *file);
/* Sets the overrides that places from SCHEMA_OVERRIDE_LINE on stand for. Borrowed until it is set to NULL. */
void schema_report_overrides(struct schema_report *self, const char *const *overrides);
/* Records where a path was written. */
void schema_report_place(struct schema_report *self, const char *path, struct schema_place place);
void schema_report_at(struct schema_report *self, struct schema_place place, const char *path, const char *format, ...)
    RP_PRINTF(4, 5);
/* quiet: drops later problems of a path that has a problem itself, or above or below it, because they are consequences. */
void schema_report_quiet(struct schema_report *self, bool quiet);

/* ---- schema.c: rows as a tree */
/* The rows at one level share a prefix: "" or "tables[]" or "tables[].limiter". If the row is below prefix, gives the
 * next component of its path and the rest after it ("" at a leaf, ".kind", "[].name"). */
bool schema_row_below(const struct schema_row *row, const char *prefix, const char **name, size_t *length,
                      const char **rest);
/* True if an earlier row below prefix has the same next component. */
bool schema_row_repeats(const struct schema *schema, uint32_t index, const char *prefix);
/* Joins "a" and "b" to "a.b"; an empty parent gives "b". */
void schema_join(char *out, size_t size, const char *parent, const char *name, size_t length);
void schema_free_value(const struct schema *schema, const struct schema_row *row, void *base);
/* Returns true if the row has no default and cannot be empty. */
bool schema_row_required(const struct schema_row *row);
bool schema_row_bounded(const struct schema_row *row);

/* ---- schema_value.c: one scalar */
/* Writes the value to base + offset. False: why has a sentence, and the struct is unchanged. */
bool schema_set_scalar(const struct schema_row *row, const char *text, void *base, char *why, size_t size);
/* Returns the number of words of a row of whole numbers; each word stands for its index. */
uint32_t schema_row_words(const struct schema_row *row);
/* Writes "between 1s and 1h", "at least 1", "at most 4GiB", "auto, or between 1 and 8"; empty if unbounded. For lists and strings
 * the bounds are counts. */
void schema_format_bounds(const struct schema_row *row, char *out, size_t size);
const char *schema_type_name(enum schema_type type);

/* ---- schema_units.c */
enum schema_units { UNITS_OK, UNITS_BAD, UNITS_MISSING, UNITS_UNKNOWN, UNITS_NEGATIVE, UNITS_FRACTION, UNITS_LARGE };
enum schema_units schema_units_int(const char *text, int64_t *out);
enum schema_units schema_units_real(const char *text, double *out);
enum schema_units schema_units_bytes(const char *text, int64_t *out);
enum schema_units schema_units_time(const char *text, int64_t *out_ns);
/* These read back to the same value. */
void schema_format_bytes(int64_t bytes, char *out, size_t size);
void schema_format_time(int64_t ns, char *out, size_t size);
void schema_format_real(double value, char *out, size_t size);

#endif
