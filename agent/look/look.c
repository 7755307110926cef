#include "agent/look/look.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

/* ---- the terminal ---- */

void look_keys_open(struct look_keys *self)
{
    *self = (struct look_keys){.usable = isatty(STDIN_FILENO) == 1};
}

/* A program in the background that touches its terminal would be stopped. */
static bool in_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* Lets keys come one by one and unseen. Signals stay: Ctrl-C is one. A shell may have undone this meanwhile. */
static bool take_terminal(struct look_keys *self)
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

void look_keys_close(struct look_keys *self)
{
    if (self->changed && in_foreground())
        tcsetattr(STDIN_FILENO, TCSANOW, &self->before);
    *self = (struct look_keys){0};
}

/* ---- keys ---- */

static const struct {
    const char *bytes;
    enum look_key key;
} table[] = {
    {"q", LOOK_KEY_QUIT},
    {"Q", LOOK_KEY_QUIT},
    {"\x03", LOOK_KEY_QUIT},
    {"p", LOOK_KEY_PAUSE},
    {"P", LOOK_KEY_PAUSE},
    {" ", LOOK_KEY_PAUSE},
    {"s", LOOK_KEY_SORT},
    {"S", LOOK_KEY_SORT},
    {"?", LOOK_KEY_HELP},
    {"h", LOOK_KEY_HELP},
    {"H", LOOK_KEY_HELP},
    {"\x1b[A", LOOK_KEY_UP},
    {"\x1bOA", LOOK_KEY_UP},
    {"k", LOOK_KEY_UP},
    {"\x1b[B", LOOK_KEY_DOWN},
    {"\x1bOB", LOOK_KEY_DOWN},
    {"j", LOOK_KEY_DOWN},
    {"\x1b[5~", LOOK_KEY_PAGE_UP},
    {"\x1b[6~", LOOK_KEY_PAGE_DOWN},
};

/* Reads a byte that is there already; 0: none. */
static char read_byte(struct look_keys *self)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte = 0;
    if (poll(&input, 1, 0) <= 0)
        return 0;
    if (read(STDIN_FILENO, &byte, 1) <= 0)
        self->usable = false;
    return byte;
}

enum look_key look_keys_read(struct look_keys *self)
{
    char bytes[8] = {0};
    if (!take_terminal(self) || !(bytes[0] = read_byte(self)))
        return LOOK_KEY_NONE;
    /* A sequence of a key ends with a letter or a tilde. */
    for (size_t n = 1; bytes[0] == '\x1b' && n < sizeof bytes - 1 && (bytes[n] = read_byte(self)); n++)
        if (n > 1 && ((bytes[n] >= 'A' && bytes[n] <= 'Z') || bytes[n] == '~'))
            break;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(bytes, table[i].bytes) == 0)
            return table[i].key;
    return LOOK_KEY_OTHER;
}

/* ---- what they mean ---- */

static void scroll(struct look *self, bool down, uint32_t by)
{
    uint32_t most = self->n_rows > self->page ? self->n_rows - self->page : 0;
    uint32_t to = down ? self->first + by : self->first - (by < self->first ? by : self->first);
    self->first = to < most ? to : most;
    self->chosen = true;
}

enum look_news look_take(struct look *self, enum look_key key)
{
    uint32_t page = self->page > 1 ? self->page - 1 : 1;
    switch (key) {
    case LOOK_KEY_NONE:
        return LOOK_SAME;
    case LOOK_KEY_QUIT:
        if (!self->help)
            return self->quits ? LOOK_QUIT : LOOK_SAME;
        break;
    case LOOK_KEY_HELP:
        self->help = !self->help;
        return LOOK_CHANGED;
    case LOOK_KEY_PAUSE:
        self->paused = !self->paused;
        break;
    case LOOK_KEY_SORT:
        self->sort++;
        self->first = 0;
        self->chosen = true;
        break;
    case LOOK_KEY_UP:
    case LOOK_KEY_DOWN:
        scroll(self, key == LOOK_KEY_DOWN, 1);
        break;
    case LOOK_KEY_PAGE_UP:
    case LOOK_KEY_PAGE_DOWN:
        scroll(self, key == LOOK_KEY_PAGE_DOWN, page);
        break;
    case LOOK_KEY_OTHER:
        break;
    }
    self->help = false; /* any key leads back */
    return LOOK_CHANGED;
}

enum look_news look_read(struct look *self, struct look_keys *keys)
{
    enum look_news news = LOOK_SAME;
    enum look_key key;
    self->keys = keys->usable;
    while (news != LOOK_QUIT && (key = look_keys_read(keys)) != LOOK_KEY_NONE) {
        enum look_news one = look_take(self, key);
        news = one > news ? one : news;
    }
    return news;
}

/* ---- words ---- */

void look_add_help(struct sheet *sheet, uint32_t rank, const struct look *self, const char *list)
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
    struct line *line = sheet_line(sheet, rank);
    if (line)
        line_put(line, TINT_BOLD, " keys");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!(line = sheet_line(sheet, rank)))
            return;
        line_put(line, TINT_BOLD, "   %s", rows[i].key);
        line_to(line, SHEET_LABEL + 5);
        line_put(line, TINT_NONE, "%s%s", rows[i].what, rows[i].more);
    }
}

void look_add_footer(struct sheet *sheet, uint32_t rank, const struct look *self)
{
    struct line *line = self->keys ? sheet_line(sheet, rank) : NULL;
    if (!line)
        return;
    line_put(line, TINT_DIM, self->quits ? " q quits" : " Ctrl-C stops");
    if (self->page && self->page < self->n_rows && !self->help)
        line_try(line, TINT_NONE, "   rows %u to %u of %u", self->first + 1, self->first + self->page, self->n_rows);
    line_try(line, TINT_DIM, "   ? %s", self->help ? "goes back" : "helps");
    line_try(line, self->paused ? TINT_WARN : TINT_DIM, self->paused ? "   p goes on (paused)" : "   p pauses");
    line_try(line, TINT_DIM, "   s sorts");
}
