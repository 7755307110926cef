/* What replay-ctl top and the view of replay-launch have in common: lines that know their width, sheets of such lines of which the
 * important ones stay in a small terminal, lists that can be sorted and scrolled, and keys with what they mean. It knows neither brokers
 * nor runs. */
#ifndef AGENT_LOOK_H
#define AGENT_LOOK_H

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "proto/base/format.h"

/* ---- lines of a terminal ---- */

enum tint { TINT_NONE, TINT_BOLD, TINT_DIM, TINT_GOOD, TINT_WARN, TINT_BAD, TINT_BAR };

/* A line in the making. Whatever text is put into it, the line is never wider than its limit, and control characters of
 * the text do not reach the terminal. */
struct line {
    struct text text;
    uint32_t width, limit; /* columns; limit 0: any */
    bool utf8, colour;
};

void line_fini(struct line *self);
/* Cuts what does not fit and puts an ellipsis in its place. */
void line_put(struct line *self, enum tint tint, const char *format, ...) RP_PRINTF(3, 4);
/* Puts the whole text, or nothing if it does not fit. */
bool line_try(struct line *self, enum tint tint, const char *format, ...) RP_PRINTF(3, 4);
/* Puts blanks up to the column, at least one. */
void line_to(struct line *self, uint32_t column);
/* Puts a bar of this many columns, a share of them full. */
void line_bar(struct line *self, enum tint tint, uint32_t columns, double share);
/* Returns the columns that are left; a large number if there is no limit. */
uint32_t line_left(const struct line *self);

/* ---- sheets ---- */

#define SHEET_MAX 128u   /* lines */
#define SHEET_RANKS 32u  /* ranks are below it */
#define SHEET_LABEL 11u  /* column after the label of a row */
#define SHEET_NARROW 60u /* below, columns stand closer together */
#define SHEET_BAR 20u    /* columns of a bar, in a terminal that is not narrow */

struct sheet_style {
    uint32_t columns, rows; /* 0: any */
    bool utf8, colour;
};

/* Lines in their order, each with a rank: in a small terminal, lines of low rank stay. Zero-initialised but for style. */
struct sheet {
    const struct sheet_style *style;
    struct line lines[SHEET_MAX];
    uint8_t ranks[SHEET_MAX];
    uint32_t n;
};

/* Returns the style with no more rows than a sheet has lines. */
struct sheet_style sheet_fit(const struct sheet_style *style);
/* Adds a line; NULL: the sheet is full. */
struct line *sheet_line(struct sheet *self, uint32_t rank);
/* Adds a line that begins with a label. */
struct line *sheet_row(struct sheet *self, uint32_t rank, const char *label);
/* Adds a row with a text that may be long: it goes on below, in at most `most` lines. */
void sheet_wrapped(struct sheet *self, uint32_t rank, const char *label, enum tint tint, const char *text,
                   uint32_t most);
/* Adds a row with a limiter's cursor between its bounds; NULL: there are no two bounds, or there is no room. */
struct line *sheet_cursor(struct sheet *self, uint32_t rank, const char *label, double at, double low, double high);
/* Columns that the layout may use. */
uint32_t sheet_columns(const struct sheet *self);
/* Columns for a bar. */
uint32_t sheet_bar(const struct sheet *self);
/* Adds the lines that fit to out, each with its end, and empties the sheet. */
void sheet_write(struct sheet *self, struct text *out);

/* ---- keys, which mean the same everywhere ---- */

enum look_key {
    LOOK_KEY_NONE,
    LOOK_KEY_OTHER,
    LOOK_KEY_QUIT,
    LOOK_KEY_PAUSE,
    LOOK_KEY_SORT,
    LOOK_KEY_HELP,
    LOOK_KEY_UP,
    LOOK_KEY_DOWN,
    LOOK_KEY_PAGE_UP,
    LOOK_KEY_PAGE_DOWN
};

/* Standard input as a source of keys. Zero-initialised. */
struct look_keys {
    bool usable; /* standard input is a terminal that has not gone away */
    bool changed;
    struct termios before;
};

void look_keys_open(struct look_keys *self);
/* Gives the terminal back as it was. */
void look_keys_close(struct look_keys *self);

/* What the keys have chosen. Zero-initialised. */
struct look {
    bool quits; /* q quits the view; otherwise only Ctrl-C ends it, with the run */
    bool keys;  /* there are keys: the last line names them */
    bool paused, help;
    bool chosen;     /* the list was sorted or scrolled: it should be seen */
    uint32_t sort;   /* of the list's orders; counts on, the list takes it modulo their number */
    uint32_t first;  /* row of the list that is shown first */
    uint32_t page;   /* rows of the list that were shown */
    uint32_t n_rows; /* of the list */
};
enum look_news { LOOK_SAME, LOOK_CHANGED, LOOK_QUIT };
enum look_news look_take(struct look *self, enum look_key key);
/* Reads all keys that were pressed. */
enum look_news look_read(struct look *self, struct look_keys *keys);

/* Adds the text of the help. list: what is sorted, "sessions". */
void look_add_help(struct sheet *sheet, uint32_t rank, const struct look *self, const char *list);
/* Adds the last line, which names the keys. */
void look_add_footer(struct sheet *sheet, uint32_t rank, const struct look *self);

/* ---- lists ---- */

/* A list in a view: rows with columns, sorted and scrolled by keys. */

struct list_column {
    const char *title;
    uint32_t width; /* columns */
    bool left;      /* text: aligned to the left */
    /* Puts the cell into out (FORMAT_SIZE bytes). */
    void (*cell)(char *out, const void *row);
    /* Compares rows for an order by this column, qsort's way; NULL: there is no such order. */
    int (*compare)(const void *a, const void *b);
};

/* Defines a cell: what the expression puts into out, where `row` is the row, a struct `type`. */
#define LIST_CELL(name, type, row, expression)                                                                         \
    static void name(char *out, const void *of)                                                                        \
    {                                                                                                                  \
        const struct type *row = of;                                                                                   \
        (expression);                                                                                                  \
    }
/* Defines an order: the largest member first, and rows that are equal in it by `then`. */
#define LIST_ORDER(name, type, member, then)                                                                           \
    static int name(const void *a, const void *b)                                                                      \
    {                                                                                                                  \
        const struct type *p = a, *q = b;                                                                              \
        return p->member != q->member ? (p->member < q->member) - (p->member > q->member) : then(a, b);                \
    }

struct list {
    const struct list_column *columns; /* those that do not fit are left out, from the last on */
    uint32_t n_columns;
    void *rows; /* sorted by list_add */
    uint32_t n_rows;
    size_t size; /* of a row */
};

/* Adds the list in at most `most` lines: its titles, and as many rows as fit from look->first on. The title of the column that
 * gives the order is marked. Nothing is added without room for a row. */
void list_add(struct sheet *sheet, uint32_t rank, const struct list *list, struct look *look, uint32_t most);

#endif
