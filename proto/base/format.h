/* Numbers, tables and bars for people. */
#ifndef AGENT_TEXT_FORMAT_H
#define AGENT_TEXT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "replay/error.h"

/* A growing string; zero-initialised. Memory that runs out shows as missing text. */
struct text {
    char *data;
    size_t size, capacity;
};
void text_fini(struct text *self);
void text_add(struct text *self, const char *format, ...) RP_PRINTF(2, 3);
/* "" for an empty one. */
const char *text_get(const struct text *self);

/* wrap.c: whole lines, those that are too long broken between words and gone on with below the last column of the line. */
void format_wrap(struct text *out, const char *text, uint32_t columns);

/* All give out, which has room for FORMAT_SIZE bytes. */
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
/* The same from seconds; "-" for what is no time. */
const char *format_seconds(char *out, double seconds);
/* A bound of a limiter: "none" beyond what is meant as a number. */
const char *format_bound(char *out, double value);
/* "12%"; "-" if there is no limit. */
const char *format_percent(char *out, double part, double whole);

/* Text from elsewhere without control characters, so that it can do nothing to a terminal; cut to size. */
const char *format_clean(char *out, size_t size, const char *text);
/* Columns that the text takes on a terminal: its code points. */
size_t format_width(const char *text);
/* Bytes of the first `width` columns. */
size_t format_cut(const char *text, size_t width);

/* "[####......]", width columns in all; share is cut to 0..1. */
const char *format_bar(char *out, size_t size, uint32_t width, double share);
/* "[...o......]": a place between two ends. */
const char *format_place(char *out, size_t size, uint32_t width, double share);

/* ---- a table of text, columns aligned ---- */

struct grid {
    uint32_t columns;
    const char *const *titles; /* one that begins with '>' is aligned to the right */
    char **cells;
    uint32_t n_cells, capacity;
};

void grid_init(struct grid *self, const char *const *titles, uint32_t columns);
void grid_fini(struct grid *self);
/* Cells go from left to right, row after row. */
void grid_add(struct grid *self, const char *cell);
void grid_addf(struct grid *self, const char *format, ...) RP_PRINTF(2, 3);
void grid_print(const struct grid *self, FILE *out);

#endif
