/* Lines that know their width, canvases of them, keys and lists. */
#include "agent/view/tui.h"

#include <ctype.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_ANY 10000u

static const char *const tints[] = {
    [TINT_NONE] = "",         [TINT_BOLD] = "\x1b[1m",   [TINT_DIM] = "\x1b[2m",  [TINT_GOOD] = "\x1b[32m",
    [TINT_WARN] = "\x1b[33m", [TINT_BAD] = "\x1b[1;31m", [TINT_BAR] = "\x1b[36m",
};

void line_fini(struct line *self)
{
    text_fini(&self->text);
    self->width = 0;
}

uint32_t line_left(const struct line *self)
{
    uint32_t limit = self->limit ? self->limit : LINE_ANY;
    return self->width < limit ? limit - self->width : 0;
}

/* Adds as much of s as fits into `most` columns. Returns the columns used, and sets *rest if something is left. */
static uint32_t add_clean(struct text *out, const char *s, uint32_t most, bool utf8, bool *rest)
{
    uint32_t width = 0;
    *rest = false;
    for (size_t bytes; *s; s += bytes) {
        uint32_t columns = format_character(s, &bytes);
        bool shown = columns > 0 && (utf8 || bytes == 1);
        uint32_t own = shown ? columns : 1;
        if (width + own > most) {
            *rest = true;
            break;
        }
        text_add(out, "%.*s", shown ? (int)bytes : 1, shown ? s : "?");
        width += own;
    }
    return width;
}

/* Adds the text, cut to what is left; with `whole`, all of it or nothing. */
static bool put(struct line *self, enum tint tint, bool whole, const char *s)
{
    struct text clean = {0};
    bool rest, ok = true;
    uint32_t left = line_left(self), width = add_clean(&clean, s, left, self->utf8, &rest);
    if (rest && whole) {
        ok = false;
    } else if (rest && left > 0) {
        text_fini(&clean);
        width = add_clean(&clean, s, left - 1, self->utf8, &rest) + 1;
        text_add(&clean, self->utf8 ? "…" : "~");
    }
    if (ok && width) {
        bool coloured = self->colour && tint != TINT_NONE;
        text_add(&self->text, "%s%s%s", coloured ? tints[tint] : "", text_get(&clean), coloured ? "\x1b[0m" : "");
        self->width += width;
    }
    text_fini(&clean);
    return ok;
}

/* Formats text of any length; NULL: out of memory, and nothing is shown. */
static char *formatted(const char *format, va_list args)
{
    char *out = NULL;
    return vasprintf(&out, format, args) < 0 ? NULL : out;
}

void line_put(struct line *self, enum tint tint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *s = formatted(format, args);
    va_end(args);
    if (s)
        put(self, tint, false, s);
    free(s);
}

bool line_try(struct line *self, enum tint tint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *s = formatted(format, args);
    va_end(args);
    bool ok = s && put(self, tint, true, s);
    free(s);
    return ok;
}

void line_to(struct line *self, uint32_t column)
{
    uint32_t blanks = self->width < column ? column - self->width : 1;
    if (blanks > line_left(self))
        blanks = line_left(self);
    text_add(&self->text, "%*s", (int)blanks, "");
    self->width += blanks;
}

/* Puts n times the same character. */
static void put_many(struct line *self, enum tint tint, const char *one, uint32_t n)
{
    struct text text = {0};
    for (uint32_t i = 0; i < n; i++)
        text_add(&text, "%s", one);
    line_put(self, tint, "%s", text_get(&text));
    text_fini(&text);
}

void line_bar(struct line *self, enum tint tint, uint32_t columns, double share)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    if (columns > line_left(self))
        columns = line_left(self);
    if (!columns)
        return;
    share = share > 1 ? 1 : share > 0 ? share : 0; /* NaN: empty */
    uint32_t units = (uint32_t)(share * columns * 8 + 0.5);
    if (share > 0 && units == 0)
        units = 1;
    uint32_t at = units / 8;
    put_many(self, tint, self->utf8 ? "█" : "#", at);
    if (at < columns && units % 8 && self->utf8) {
        line_put(self, tint, "%s", eighths[units % 8]);
        at++;
    }
    put_many(self, TINT_DIM, self->utf8 ? "·" : ".", columns - at);
}

/* Puts a mark between two ends, this many columns apart. */
static void line_place(struct line *self, enum tint tint, uint32_t columns, double share)
{
    if (columns > line_left(self))
        columns = line_left(self);
    if (!columns)
        return;
    share = share > 1 ? 1 : share > 0 ? share : 0; /* NaN: at the low end */
    uint32_t at = (uint32_t)(share * (columns - 1) + 0.5);
    put_many(self, TINT_DIM, self->utf8 ? "·" : ".", at);
    line_put(self, tint, self->utf8 ? "◆" : "o");
    put_many(self, TINT_DIM, self->utf8 ? "·" : ".", columns - 1 - at);
}

#define COLUMNS 100u   /* where there is no limit */
#define NO_BOUND 1e300 /* a limiter's bound so large means that there is none */

struct canvas_style tui_style(void)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    struct canvas_style style = {.utf8 = terminal_has_utf8()};
    if (!isatty(STDOUT_FILENO) || !term || !term[0] || strcmp(term, "dumb") == 0)
        return style;
    terminal_size(&style.columns, &style.rows);
    style.columns -= style.columns > 1;
    style.rows -= style.rows > 1;
    style.colour = !(no_colour && no_colour[0]);
    return style;
}

struct canvas_style canvas_fit(const struct canvas_style *style)
{
    struct canvas_style fit = *style;
    fit.rows = fit.rows > CANVAS_MAX ? CANVAS_MAX : fit.rows;
    return fit;
}

struct line *canvas_line(struct canvas *self, uint32_t rank)
{
    struct line *line = &self->lines[self->n];
    line_fini(line); /* the one that is never shown has a text */
    *line = (struct line){.limit = self->style->columns, .utf8 = self->style->utf8, .colour = self->style->colour};
    self->ranks[self->n] = (uint8_t)(rank < CANVAS_RANKS ? rank : CANVAS_RANKS - 1);
    self->n += self->n < CANVAS_MAX;
    return line;
}

struct line *canvas_row(struct canvas *self, uint32_t rank, const char *label)
{
    struct line *line = canvas_line(self, rank);
    line_put(line, TINT_DIM, " %s", label);
    line_to(line, CANVAS_LABEL);
    return line;
}

void canvas_wrapped(struct canvas *self, uint32_t rank, const char *label, enum tint tint, const char *text,
                    uint32_t most)
{
    uint32_t wide = canvas_columns(self) > CANVAS_LABEL + 20 ? canvas_columns(self) - CANVAS_LABEL : 20;
    for (uint32_t i = 0; i < most && *text; i++) {
        struct line *line = canvas_row(self, rank, i ? "" : label);
        size_t size = format_cut(text, wide), blank = size;
        bool last = i + 1 == most || !text[size];
        while (!last && blank > 0 && text[blank] != ' ')
            blank--;
        size = last ? strlen(text) : blank ? blank : size;
        line_put(line, tint, "%.*s", (int)size, text);
        text += size;
        text += strspn(text, " ");
    }
}

struct line *canvas_cursor(struct canvas *self, uint32_t rank, const char *label, double at, double low, double high)
{
    bool bounded = fabs(low) < NO_BOUND && fabs(high) < NO_BOUND && high > low;
    struct line *line = bounded ? canvas_row(self, rank, label) : NULL;
    format_buffer a, b, c;
    if (!line)
        return NULL;
    line_place(line, TINT_BAR, canvas_bar(self), (at - low) / (high - low));
    line_put(line, TINT_NONE, " %s in %s..%s", format_short(a, at), format_short(b, low), format_short(c, high));
    return line;
}

uint32_t canvas_columns(const struct canvas *self)
{
    return self->style->columns ? self->style->columns : COLUMNS;
}

uint32_t canvas_bar(const struct canvas *self)
{
    uint32_t wide = canvas_columns(self);
    return wide < CANVAS_NARROW ? wide / 6 : CANVAS_BAR;
}

/* The highest rank that still fits, and how many lines of that rank fit. */
static uint32_t choose(const struct canvas *self, uint32_t *last)
{
    uint32_t counts[CANVAS_RANKS] = {0}, left = self->style->rows ? self->style->rows : CANVAS_MAX;
    for (uint32_t i = 0; i < self->n; i++)
        counts[self->ranks[i]]++;
    uint32_t rank = 0;
    while (rank < CANVAS_RANKS - 1 && counts[rank] <= left)
        left -= counts[rank++];
    *last = rank;
    return left;
}

void canvas_write(struct canvas *self, struct text *out)
{
    uint32_t last, left = choose(self, &last);
    line_fini(&self->lines[CANVAS_MAX]);
    for (uint32_t i = 0; i < self->n; i++) {
        bool shown = self->ranks[i] < last || (self->ranks[i] == last && left > 0);
        left -= shown && self->ranks[i] == last;
        if (shown)
            text_add(out, "%s\n", text_get(&self->lines[i].text));
        line_fini(&self->lines[i]);
    }
    self->n = 0;
}

/* ---- the terminal ---- */

void tui_keys_open(struct tui_keys *self)
{
    *self = (struct tui_keys){.usable = isatty(STDIN_FILENO) == 1};
}

/* A program in the background that touches its terminal would be stopped. */
static bool in_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* Lets keys come one by one and unseen. Signals stay: Ctrl-C is one. A shell may have undone this meanwhile. */
static bool take_terminal(struct tui_keys *self)
{
    struct termios now;
    if (!self->usable || !in_foreground() || tcgetattr(STDIN_FILENO, &now) != 0)
        return false;
    if (!(now.c_lflag & ICANON))
        return true;
    if (!self->changed)
        self->before = now;
    self->changed = true;
    now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    now.c_cc[VMIN] = 0;
    now.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
}

void tui_keys_close(struct tui_keys *self)
{
    if (self->changed && in_foreground())
        tcsetattr(STDIN_FILENO, TCSANOW, &self->before);
    *self = (struct tui_keys){0};
}

/* ---- keys ---- */

/* Letters without case. */
static const struct {
    const char *bytes;
    enum tui_key key;
} table[] = {
    {"q", TUI_KEY_QUIT},  {"\x03", TUI_KEY_QUIT},       {"p", TUI_KEY_PAUSE},
    {" ", TUI_KEY_PAUSE}, {"s", TUI_KEY_SORT},          {"?", TUI_KEY_HELP},
    {"h", TUI_KEY_HELP},  {"\x1b[A", TUI_KEY_UP},       {"\x1bOA", TUI_KEY_UP},
    {"k", TUI_KEY_UP},    {"\x1b[B", TUI_KEY_DOWN},     {"\x1bOB", TUI_KEY_DOWN},
    {"j", TUI_KEY_DOWN},  {"\x1b[5~", TUI_KEY_PAGE_UP}, {"\x1b[6~", TUI_KEY_PAGE_DOWN},
};

/* Reads a byte that is there already; 0: none. */
static char read_byte(struct tui_keys *self)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte = 0;
    if (poll(&input, 1, 0) <= 0)
        return 0;
    if (read(STDIN_FILENO, &byte, 1) <= 0)
        self->usable = false;
    return byte;
}

/* Reads the next key without waiting. In the background nothing is read, and the terminal is left alone. */
static enum tui_key tui_keys_read(struct tui_keys *self)
{
    char bytes[8] = {0};
    if (!take_terminal(self) || !(bytes[0] = read_byte(self)))
        return TUI_KEY_NONE;
    bytes[0] = (char)tolower((unsigned char)bytes[0]);
    /* A sequence of a key ends with a letter or a tilde. */
    for (size_t n = 1; bytes[0] == '\x1b' && n < sizeof bytes - 1 && (bytes[n] = read_byte(self)); n++)
        if (n > 1 && ((bytes[n] >= 'A' && bytes[n] <= 'Z') || bytes[n] == '~'))
            break;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(bytes, table[i].bytes) == 0)
            return table[i].key;
    return TUI_KEY_OTHER;
}

/* ---- what they mean ---- */

static void scroll(struct tui *self, bool down, uint32_t by)
{
    uint32_t most = self->n_rows > self->page ? self->n_rows - self->page : 0;
    uint32_t to = down ? self->first + by : self->first - (by < self->first ? by : self->first);
    self->first = to < most ? to : most;
    self->chosen = true;
}

enum tui_news tui_take(struct tui *self, enum tui_key key)
{
    uint32_t page = self->page > 1 ? self->page - 1 : 1;
    switch (key) {
    case TUI_KEY_NONE:
        return TUI_SAME;
    case TUI_KEY_QUIT:
        if (!self->help)
            return self->quits ? TUI_QUIT : TUI_SAME;
        break;
    case TUI_KEY_HELP:
        self->help = !self->help;
        return TUI_CHANGED;
    case TUI_KEY_PAUSE:
        self->paused = !self->paused;
        break;
    case TUI_KEY_SORT:
        self->sort++;
        self->first = 0;
        self->chosen = true;
        break;
    case TUI_KEY_UP:
    case TUI_KEY_DOWN:
        scroll(self, key == TUI_KEY_DOWN, 1);
        break;
    case TUI_KEY_PAGE_UP:
    case TUI_KEY_PAGE_DOWN:
        scroll(self, key == TUI_KEY_PAGE_DOWN, page);
        break;
    case TUI_KEY_OTHER:
        break;
    }
    self->help = false; /* any key leads back */
    return TUI_CHANGED;
}

enum tui_news tui_read(struct tui *self, struct tui_keys *keys)
{
    enum tui_news news = TUI_SAME;
    enum tui_key key;
    self->keys = keys->usable;
    while (news != TUI_QUIT && (key = tui_keys_read(keys)) != TUI_KEY_NONE) {
        enum tui_news one = tui_take(self, key);
        news = one > news ? one : news;
    }
    return news;
}

/* ---- words ---- */

void tui_add_help(struct canvas *canvas, uint32_t rank, const struct tui *self, const char *list)
{
    const struct {
        const char *key, *what, *more;
    } rows[] = {
        {"s", "sort the ", list},
        {"p, space", "pause, and go on", ""},
        {"up, down", "move through the ", list},
        {"PgUp, PgDn", "the same by pages", ""},
        {"?, h", "this help", ""},
        {self->quits ? "q" : "Ctrl-C", self->quits ? "quit" : "stop the run; once more: at once", ""},
    };
    line_put(canvas_line(canvas, rank), TINT_BOLD, " keys");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct line *line = canvas_line(canvas, rank);
        line_put(line, TINT_BOLD, "   %s", rows[i].key);
        line_to(line, CANVAS_LABEL + 5);
        line_put(line, TINT_NONE, "%s%s", rows[i].what, rows[i].more);
    }
}

void tui_add_footer(struct canvas *canvas, uint32_t rank, const struct tui *self)
{
    struct line *line = self->keys ? canvas_line(canvas, rank) : NULL;
    if (!line)
        return;
    line_put(line, TINT_DIM, self->quits ? " q quits" : " Ctrl-C stops");
    if (self->page && self->page < self->n_rows && !self->help)
        line_try(line, TINT_NONE, "   rows %u to %u of %u", self->first + 1, self->first + self->page, self->n_rows);
    line_try(line, TINT_DIM, "   ? %s", self->help ? "goes back" : "helps");
    line_try(line, self->paused ? TINT_WARN : TINT_DIM, self->paused ? "   p goes on (paused)" : "   p pauses");
    line_try(line, TINT_DIM, "   s sorts");
}

#define GAP 2u
#define LEAST 2u /* titles and a row */

/* The column that gives the order: the sort-th of those that can; n_columns: none can, and the rows keep their order. */
static uint32_t order_of(const struct list *self, uint32_t sort)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_columns; i++)
        n += self->columns[i].compare != NULL;
    uint32_t left = n ? sort % n : 0;
    for (uint32_t i = 0; i < self->n_columns; i++)
        if (self->columns[i].compare && left-- == 0)
            return i;
    return self->n_columns;
}

static uint32_t columns_that_fit(const struct list *self, uint32_t wide)
{
    uint32_t n = 0, used = 1;
    for (; n < self->n_columns; n++) {
        used += (n ? GAP : 0) + self->columns[n].width;
        if (used > wide)
            break;
    }
    return n ? n : 1;
}

static void put_cell(struct line *line, const struct list_column *column, uint32_t end, bool last, enum tint tint,
                     const char *text)
{
    uint32_t limit = line->limit, own = format_width(text);
    if (!column->left && line->width + own < end)
        line_put(line, TINT_NONE, "%*s", (int)(end - own - line->width), "");
    line->limit = limit && limit < end ? limit : end;
    line_put(line, tint, "%s", text);
    line->limit = limit;
    if (line->width < end && !last)
        line_to(line, end);
}

static void put_row(struct canvas *canvas, uint32_t rank, const struct list *self, uint32_t n, const void *row,
                    uint32_t order)
{
    struct line *line = canvas_line(canvas, rank);
    line_to(line, 1);
    for (uint32_t i = 0, end = 1; i < n; i++) {
        const struct list_column *column = &self->columns[i];
        format_buffer cell = "";
        if (row)
            column->cell(cell, row);
        else
            snprintf(cell, sizeof cell, i == order ? "%s%s" : "%s", column->title, line->utf8 ? "▾" : "*");
        if (i)
            line_put(line, TINT_NONE, "%*s", (int)GAP, "");
        end += (i ? GAP : 0) + column->width;
        put_cell(line, column, end, i + 1 == n, row ? TINT_NONE : i == order ? TINT_BOLD : TINT_DIM, cell);
    }
}

void list_add(struct canvas *canvas, uint32_t rank, const struct list *self, struct tui *tui, uint32_t most)
{
    tui->n_rows = self->n_rows;
    tui->page = 0;
    if (most < LEAST || self->n_rows == 0)
        return;
    uint32_t order = order_of(self, tui->sort), n = columns_that_fit(self, canvas_columns(canvas));
    if (order < self->n_columns)
        qsort(self->rows, self->n_rows, self->size, self->columns[order].compare);
    tui->page = self->n_rows < most - 1 ? self->n_rows : most - 1;
    if (tui->first > self->n_rows - tui->page)
        tui->first = self->n_rows - tui->page;
    put_row(canvas, rank, self, n, NULL, order);
    for (uint32_t i = tui->first; i < tui->first + tui->page; i++)
        put_row(canvas, rank, self, n, (const char *)self->rows + i * self->size, order);
}
