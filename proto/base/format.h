/* Formats numbers, tables and bars for people. */
#ifndef AGENT_TEXT_FORMAT_H
#define AGENT_TEXT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "replay/error.h"

/* A growing string; starts zero-initialised. Without memory, text is missing. */
struct text {
    char *data;
    size_t size, capacity;
};
void text_fini(struct text *self);
void text_add(struct text *self, const char *format, ...) RP_PRINTF(2, 3);
/* Returns the text; "" if it is empty. */
const char *text_get(const struct text *self);

/* wrap.c: adds the lines of a text, and breaks lines that are too long between words; the rest continues below the line's last
 * column. */
void format_wrap(struct text *out, const char *text, uint32_t columns);

/* All return out, which has room for FORMAT_SIZE bytes. */
#define FORMAT_SIZE 48
typedef char format_buffer[FORMAT_SIZE];

/* "512 B", "1.2 GiB". */
const char *format_bytes(char *out, uint64_t bytes);
/* "17", "12,345", "1,234,567". */
const char *format_count(char *out, uint64_t count);
/* "0", "12", "3.4 k", "5.6 M". */
const char *format_short(char *out, double value);
/* "0/s", "3.4 M/s". */
const char *format_rate(char *out, double per_second);
/* "850 ns", "3.4 ms", "12 s", "2 min 5 s", "3 h 20 min", "4 d 2 h". */
const char *format_time(char *out, uint64_t ns);
/* The same from seconds; "-" if it is negative or not finite. */
const char *format_seconds(char *out, double seconds);
/* A limiter's bound; "none" if it is so large that it means "unlimited". */
const char *format_bound(char *out, double value);
/* "12%"; "-" if there is no limit. */
const char *format_percent(char *out, double part, double whole);

/* Copies untrusted text without control characters, so that it cannot control the terminal; cut to size. */
const char *format_clean(char *out, size_t size, const char *text);
/* Returns the columns that the text takes on a terminal: its number of code points. */
size_t format_width(const char *text);
/* Returns the number of bytes in the first `width` columns. */
size_t format_cut(const char *text, size_t width);

/* Writes "[####......]", width columns in all; share is clamped to 0..1. */
const char *format_bar(char *out, size_t size, uint32_t width, double share);
/* Writes "[...o......]": a position between two ends. */
const char *format_place(char *out, size_t size, uint32_t width, double share);

/* ---- a table of text, columns aligned ---- */

struct grid {
    uint32_t columns;
    const char *const *titles; /* a title that begins with '>' aligns its column to the right */
    char **cells;
    uint32_t n_cells, capacity;
};

void grid_init(struct grid *self, const char *const *titles, uint32_t columns);
void grid_fini(struct grid *self);
/* Adds cells from left to right, row after row. */
void grid_add(struct grid *self, const char *cell);
void grid_addf(struct grid *self, const char *format, ...) RP_PRINTF(2, 3);
void grid_print(const struct grid *self, FILE *out);

#endif
