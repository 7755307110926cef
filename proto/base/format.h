/* Formats text for people: numbers, tables, and frames on a terminal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/base/text.h"
#include "replay/error.h"

/* All return out, which has room for FORMAT_SIZE bytes. */
#define FORMAT_SIZE 48
typedef char format_buffer[FORMAT_SIZE];

/* "512 B", "1.2 GiB". */
const char *format_bytes(char *out, uint64_t bytes);
/* "17", "12,345", "1,234,567". */
const char *format_count(char *out, uint64_t count);
/* "0", "12", "3.4 k", "5.6 M". */
const char *format_short(char *out, double value);
/* "412", "3.142", "1.2 M", "-": a measured value, such as a return. */
const char *format_measured(char *out, double value);
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
/* Returns the columns that the character at the start of a text takes on a terminal, and sets its bytes. 0: the character must not
 * reach a terminal, and a question mark stands for it. */
uint32_t format_character(const char *text, size_t *bytes);
/* Returns the columns that the text takes on a terminal; colours take none. */
uint32_t format_width(const char *text);
/* Returns the bytes of the text that fit into this many columns. */
size_t format_cut(const char *text, uint32_t columns);

/* ---- a table of text, columns aligned ---- */

struct grid {
    uint32_t columns;
    const char *const *titles; /* a title that begins with '>' aligns its column to the right */
    char **cells;
    uint32_t n_cells, capacity;
};

void grid_init(struct grid *self, const char *const *titles, uint32_t columns);
/* Frees the cells of a table that is not printed. */
void grid_fini(struct grid *self);
/* Adds cells from left to right, row after row. */
void grid_add(struct grid *self, const char *cell);
void grid_addf(struct grid *self, const char *format, ...) RP_PRINTF(2, 3);
/* Prints the table and frees its cells. */
void grid_print(struct grid *self, FILE *out);

/* ---- terminals ---- */

/* Gives the size of the terminal at standard output; 80 x 24 if there is none. */
void terminal_size(uint32_t *columns, uint32_t *rows);
/* True if the user's locale has UTF-8. Does not change this program's locale. */
bool terminal_has_utf8(void);
/* Adds the lines of a frame, from the cursor downwards. Each line overwrites the old line, the rest of the old line is cleared,
 * and so is everything below the last line. So nothing flickers. */
void terminal_add_frame(struct text *out, const char *frame);
