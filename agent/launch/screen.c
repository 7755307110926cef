/* Standard output while a run goes on. A frame is one write: the cursor goes up over the last frame, each line is
 * written over the old one, and what is left of it is cleared, so nothing flickers. Nobody who reads slowly or not
 * at all may hold up the run: what cannot be written soon is dropped. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/screen.h"
#include "agent/launch/view.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define FRAME_EVERY_NS (200 * NS_PER_MS)
#define LINE_EVERY_NS (5 * NS_PER_S)
#define JSON_EVERY_NS NS_PER_S
#define PATIENCE_NS (500 * NS_PER_MS)
#define FRAME_LINES CANVAS_MAX

enum output { OUTPUT_TERMINAL, OUTPUT_LINES, OUTPUT_QUIET, OUTPUT_JSON };

struct screen {
    enum output output;
    bool utf8, colour;
    bool torn; /* the last output was cut in the middle */
    int64_t shown_ns;
    enum phase phase; /* phase of what was shown last; PHASES: nothing yet */
    /* ---- keys */
    struct tui_keys keys;
    struct tui tui;
    bool quit;    /* q was pressed */
    bool touched; /* a key was pressed: draw soon */
    bool held;    /* paused: `copy` is shown */
    struct status_copy copy;
    /* ---- the frame that stands on the terminal */
    struct text frame;
    uint32_t widths[FRAME_LINES], lines;
};

struct screen *screen_new(enum screen_mode mode)
{
    struct screen *self = need_alloc(sizeof *self);
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    bool able = isatty(STDOUT_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
    self->output = mode == SCREEN_QUIET  ? OUTPUT_QUIET
                   : mode == SCREEN_JSON ? OUTPUT_JSON
                   : able                ? OUTPUT_TERMINAL
                                         : OUTPUT_LINES;
    self->utf8 = terminal_has_utf8();
    self->colour = able && !(no_colour && no_colour[0]);
    self->phase = PHASES;
    if (self->output == OUTPUT_TERMINAL)
        tui_keys_open(&self->keys);
    return self;
}

/* ---- keys ---- */

static void release(struct screen *self)
{
    if (self->held)
        status_copy_fini(&self->copy);
    self->held = false;
}

/* Keeps a copy of the status while the view is paused. Returns what is to be shown. */
static const struct status *hold(struct screen *self, const struct status *status)
{
    if (!self->tui.paused || status->phase >= PHASE_STOPPING) {
        self->tui.paused = false;
        release(self);
        return status;
    }
    if (!self->held) {
        char *text = status_to_json(status, true);
        self->held = status_from_json(text, &self->copy);
        free(text);
    }
    return self->held ? &self->copy.status : status;
}

bool screen_touched(struct screen *self)
{
    enum tui_news news = self->output == OUTPUT_TERMINAL ? tui_read(&self->tui, &self->keys) : TUI_SAME;
    self->touched |= news != TUI_SAME;
    self->quit |= news == TUI_QUIT;
    return self->touched;
}

void screen_follow(struct screen *self)
{
    self->tui.quits = true;
}

bool screen_quit(const struct screen *self)
{
    return self->quit;
}

void screen_destroy(struct screen **self)
{
    if (!*self)
        return;
    tui_keys_close(&(*self)->keys);
    release(*self);
    text_fini(&(*self)->frame);
    free(*self);
    *self = NULL;
}

/* ---- writing ---- */

/* Waits for room for a limited time. A pipe or terminal that is writable takes 4096 bytes (PIPE_BUF) without
 * blocking. */
static bool writable(int64_t until_ns)
{
    for (;;) {
        int64_t left = (until_ns - clock_ns()) / NS_PER_MS;
        struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};
        int n = poll(&fd, 1, left > 0 ? (int)left : 0);
        if (n > 0)
            return fd.revents & POLLOUT;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

/* Output that cannot be written is dropped. */
static void screen_write(struct screen *self, const char *data, size_t size, int64_t patience_ns)
{
    int64_t until_ns = clock_ns() + patience_ns;
    if (!writable(until_ns))
        return;
    if (self->torn && self->output != OUTPUT_TERMINAL && write(STDOUT_FILENO, "\n", 1) != 1)
        return;
    self->torn = false;
    for (size_t at = 0; at < size;) {
        size_t piece = size - at < 4096 ? size - at : 4096;
        ssize_t n = writable(until_ns + PATIENCE_NS) ? write(STDOUT_FILENO, data + at, piece) : -1;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            self->torn = at > 0;
            return;
        }
        at += (size_t)n;
    }
}

static void screen_write_text(struct screen *self, const struct text *text, int64_t patience_ns)
{
    screen_write(self, text_get(text), text->size, patience_ns);
}

/* ---- the frame on the terminal ---- */

/* Returns the lines that the last frame takes now: a terminal that became narrower has wrapped lines that are too
 * wide. */
static uint32_t frame_height(const struct screen *self, uint32_t columns)
{
    uint32_t height = 0;
    for (uint32_t i = 0; i < self->lines; i++)
        height += self->widths[i] > columns ? (self->widths[i] + columns - 1) / columns : 1;
    return height;
}

/* Until the end of the frame: no wrapping, no cursor, and an atomic update where the terminal supports it (mode 2026). */
static void frame_begin(const struct screen *self, struct text *out, uint32_t columns)
{
    uint32_t up = frame_height(self, columns);
    text_add(out, "\x1b[?2026h\x1b[?25l\r");
    if (up)
        text_add(out, "\x1b[%uA", up);
}

static void frame_lines(const struct screen *self, struct text *out)
{
    text_add(out, "\x1b[?7l");
    terminal_add_frame(out, text_get(&self->frame));
    text_add(out, "\x1b[?7h\x1b[?25h\x1b[?2026l");
}

static void frame_keep(struct screen *self, struct text *frame)
{
    text_fini(&self->frame);
    self->frame = *frame;
    self->lines = 0;
    for (const char *at = text_get(frame); *at && self->lines < FRAME_LINES;) {
        size_t size = strcspn(at, "\n");
        char *line = need_print("%.*s", (int)size, at);
        self->widths[self->lines++] = format_width(line);
        free(line);
        at += size + (at[size] == '\n');
    }
}

static void show_frame(struct screen *self, const struct status *status)
{
    struct text frame = {0}, out = {0};
    struct canvas_style style = {.utf8 = self->utf8, .colour = self->colour};
    terminal_size(&style.columns, &style.rows);
    uint32_t columns = style.columns;
    /* The cursor is below the frame here; clearing the rest of a line would erase the character in the last column. */
    style.rows = style.rows > 1 ? style.rows - 1 : 1;
    style.columns = style.columns > 1 ? style.columns - 1 : 1;
    /* A stopped terminal (Ctrl-S) gets no new frames. */
    if (!writable(0))
        return;
    view_draw(&frame, hold(self, status), &style, &self->tui);
    frame_begin(self, &out, columns);
    frame_keep(self, &frame);
    frame_lines(self, &out);
    screen_write_text(self, &out, PATIENCE_NS);
    text_fini(&out);
}

static void show_line(struct screen *self, const struct status *status)
{
    struct text out = {0};
    view_line(&out, status);
    text_add(&out, "\n");
    screen_write_text(self, &out, PATIENCE_NS);
    text_fini(&out);
}

static void show_json(struct screen *self, const struct status *status)
{
    struct text out = {0};
    char *json = status_to_json(status, false);
    text_add(&out, "%s\n", json);
    free(json);
    screen_write_text(self, &out, PATIENCE_NS);
    text_fini(&out);
}

void screen_show(struct screen *self, const struct status *status)
{
    static const int64_t everies[] = {
        [OUTPUT_TERMINAL] = FRAME_EVERY_NS, [OUTPUT_LINES] = LINE_EVERY_NS, [OUTPUT_JSON] = JSON_EVERY_NS};
    int64_t now = clock_ns();
    bool over = status->phase >= PHASE_DONE;
    if (self->output == OUTPUT_QUIET)
        return;
    bool last = (over && self->output == OUTPUT_TERMINAL) || screen_touched(self);
    self->touched = false;
    if (!last && self->phase == status->phase && now - self->shown_ns < everies[self->output])
        return;
    self->phase = status->phase;
    self->shown_ns = now;
    if (self->output == OUTPUT_TERMINAL)
        show_frame(self, status);
    else if (self->output == OUTPUT_JSON)
        show_json(self, status);
    else
        show_line(self, status);
}

/* ---- saying something ---- */

/* Prints line by line, so that only line ends have an effect on the terminal. */
static void add_message(struct text *out, const char *message, bool loud, const struct screen *self)
{
    for (const char *at = message; *at;) {
        size_t size = strcspn(at, "\n");
        struct line line = {.utf8 = self->utf8, .colour = self->colour && self->output == OUTPUT_TERMINAL};
        line_put(&line, loud ? TINT_WARN : TINT_NONE, "%.*s", (int)size, at);
        text_add(out, "%s%s\n", text_get(&line.text), self->output == OUTPUT_TERMINAL ? "\x1b[K" : "");
        line_fini(&line);
        at += size + (at[size] == '\n');
    }
}

static void add_json(struct text *out, const char *message, bool loud)
{
    struct json json = {0};
    size_t size = strlen(message);
    while (size && message[size - 1] == '\n')
        size--;
    char *whole = need_print("%.*s", (int)size, message);
    json_open(&json, '{');
    json_text(&json, "event", whole);
    json_flag(&json, "loud", loud);
    json_close(&json, '}');
    char *text = json_need(&json);
    text_add(out, "%s\n", text);
    free(text);
    free(whole);
}

void screen_say(struct screen *self, bool loud, const char *format, ...)
{
    char *message = NULL;
    va_list args;
    if (self->output == OUTPUT_QUIET && !loud)
        return;
    va_start(args, format);
    int n = vasprintf(&message, format, args);
    va_end(args);
    if (n < 0)
        return;
    struct text out = {0};
    uint32_t columns, rows;
    terminal_size(&columns, &rows);
    if (self->output == OUTPUT_TERMINAL && self->lines)
        frame_begin(self, &out, columns);
    if (self->output == OUTPUT_JSON)
        add_json(&out, message, loud);
    else
        add_message(&out, message, loud, self);
    if (self->output == OUTPUT_TERMINAL && self->lines)
        frame_lines(self, &out);
    /* A frame that is drawn again is not wrapped any more. */
    for (uint32_t i = 0; i < self->lines; i++)
        self->widths[i] = self->widths[i] < columns ? self->widths[i] : columns;
    screen_write_text(self, &out, PATIENCE_NS);
    text_fini(&out);
    free(message);
}
