/* What the reader (schema_read.c) and the rows (schema.c, schema_units.c) share; not for others. */
#pragma once

#include "proto/config/schema.h"

#define SCHEMA_MAX_PATH 512u /* bytes of a key as it is shown to the user */

/* ---- schema.c: rows as a tree */
/* The rows at one level share a prefix: "" or "tables[]" or "tables[].limiter". If the row is below prefix, gives the
 * next component of its path and the rest after it ("" at a leaf, ".kind", "[].name"). */
bool schema_row_below(const struct schema_row *row, const char *prefix, const char **name, size_t *length,
                      const char **rest);
/* True if an earlier row below prefix has the same next component. */
bool schema_row_repeats(const struct schema *schema, uint32_t index, const char *prefix);
/* Joins "a" and "b" to "a.b"; an empty parent gives "b". */
void schema_join(char *out, size_t size, const char *parent, const char *name, size_t length);
/* Returns true if the row has no default and cannot be empty. */
bool schema_row_required(const struct schema_row *row);
bool schema_row_bounded(const struct schema_row *row);

/* Writes the value to base + offset. False: why has a sentence, and the struct is unchanged. */
bool schema_set_scalar(const struct schema_row *row, const char *text, void *base, char *why, size_t size);
/* Writes "between 1s and 1h", "at least 1", "at most 4GiB", "auto, or between 1 and 8"; empty if unbounded. For lists and strings
 * the bounds are counts. */
void schema_format_bounds(const struct schema_row *row, char *out, size_t size);

/* ---- schema_units.c */
enum schema_units { UNITS_OK, UNITS_BAD, UNITS_MISSING, UNITS_UNKNOWN, UNITS_NEGATIVE, UNITS_FRACTION, UNITS_LARGE };
enum schema_units schema_units_read(enum schema_type type, const char *text, void *out);
/* These read back to the same value. */
void schema_format_bytes(int64_t bytes, char *out, size_t size);
void schema_format_time(int64_t ns, char *out, size_t size);
void schema_format_real(double value, char *out, size_t size);
