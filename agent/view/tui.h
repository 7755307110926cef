/* What replay-ctl top and the view of replay-launch have in common: lines that know their width, canvases of such lines of which the
 * important ones stay in a small terminal, lists that can be sorted and scrolled, and keys with what they mean. It knows neither brokers
 * nor runs. */
#pragma once

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

/* ---- canvases ---- */

#define CANVAS_MAX 128u   /* lines */
#define CANVAS_RANKS 32u  /* ranks are below it */
#define CANVAS_LABEL 11u  /* column after the label of a row */
#define CANVAS_NARROW 60u /* below, columns stand closer together */
#define CANVAS_BAR 20u    /* columns of a bar, in a terminal that is not narrow */

struct canvas_style {
    uint32_t columns, rows; /* 0: any */
    bool utf8, colour;
};

/* Returns what a view may use of standard output: one column and one row less than the terminal has, since clearing the rest of a line
 * would erase the character in the last column, and the cursor stays below the view. rows 0: nothing can be drawn there. */
struct canvas_style tui_style(void);

/* Lines in their order, each with a rank: in a small terminal, lines of low rank stay. Zero-initialised but for style. */
struct canvas {
    const struct canvas_style *style;
    struct line lines[CANVAS_MAX + 1]; /* the last one takes what does not fit, and is never shown */
    uint8_t ranks[CANVAS_MAX + 1];
    uint32_t n;
};

/* Returns the style with no more rows than a canvas has lines. */
struct canvas_style canvas_fit(const struct canvas_style *style);
/* Adds a line. */
struct line *canvas_line(struct canvas *self, uint32_t rank);
/* Adds a line that begins with a label. */
struct line *canvas_row(struct canvas *self, uint32_t rank, const char *label);
/* Adds a row with a text that may be long: it goes on below, in at most `most` lines. */
void canvas_wrapped(struct canvas *self, uint32_t rank, const char *label, enum tint tint, const char *text,
                    uint32_t most);
/* Adds a row with a limiter's cursor between its bounds; NULL: there are no two bounds. */
struct line *canvas_cursor(struct canvas *self, uint32_t rank, const char *label, double at, double low, double high);
/* Columns that the layout may use. */
uint32_t canvas_columns(const struct canvas *self);
/* Columns for a bar. */
uint32_t canvas_bar(const struct canvas *self);
/* Adds the lines that fit to out, each with its end, and empties the canvas. */
void canvas_write(struct canvas *self, struct text *out);

/* ---- keys, which mean the same everywhere ---- */

enum tui_key {
    TUI_KEY_NONE,
    TUI_KEY_OTHER,
    TUI_KEY_QUIT,
    TUI_KEY_PAUSE,
    TUI_KEY_SORT,
    TUI_KEY_HELP,
    TUI_KEY_UP,
    TUI_KEY_DOWN,
    TUI_KEY_PAGE_UP,
    TUI_KEY_PAGE_DOWN
};

/* Standard input as a source of keys. Zero-initialised. */
struct tui_keys {
    bool usable; /* standard input is a terminal that has not gone away */
    bool changed;
    struct termios before;
};

void tui_keys_open(struct tui_keys *self);
/* Gives the terminal back as it was. */
void tui_keys_close(struct tui_keys *self);

/* What the keys have chosen. Zero-initialised. */
struct tui {
    bool quits; /* q quits the view; otherwise only Ctrl-C ends it, with the run */
    bool keys;  /* there are keys: the last line names them */
    bool paused, help;
    bool chosen;     /* the list was sorted or scrolled: it should be seen */
    uint32_t sort;   /* of the list's orders; counts on, the list takes it modulo their number */
    uint32_t first;  /* row of the list that is shown first */
    uint32_t page;   /* rows of the list that were shown */
    uint32_t n_rows; /* of the list */
};
enum tui_news { TUI_SAME, TUI_CHANGED, TUI_QUIT };
enum tui_news tui_take(struct tui *self, enum tui_key key);
/* Reads all keys that were pressed. */
enum tui_news tui_read(struct tui *self, struct tui_keys *keys);

/* Adds the text of the help. list: what is sorted, "sessions". */
void tui_add_help(struct canvas *canvas, uint32_t rank, const struct tui *self, const char *list);
/* Adds the last line, which names the keys. */
void tui_add_footer(struct canvas *canvas, uint32_t rank, const struct tui *self);

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

/* Adds the list in at most `most` lines: its titles, and as many rows as fit from tui->first on. The title of the column that
 * gives the order is marked. Nothing is added without room for a row. */
void list_add(struct canvas *canvas, uint32_t rank, const struct list *list, struct tui *tui, uint32_t most);
