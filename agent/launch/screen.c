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

struct screen {
    enum screen_mode mode; /* never SCREEN_AUTO */
    bool torn;             /* the last output was cut in the middle */
    int64_t shown_ns;
    enum phase phase; /* phase of what was shown last; PHASES: nothing yet */
    /* ---- keys */
    struct tui_keys keys;
    struct tui tui;
    bool quit;    /* q was pressed */
    bool touched; /* a key was pressed: draw soon */
    bool held;    /* paused: `copy` is shown */
    struct status copy;
    /* ---- the frame that stands on the terminal */
    struct text frame;
    uint32_t columns; /* of the terminal when it was drawn: its lines are not wider */
};

struct screen *screen_new(enum screen_mode mode)
{
    struct screen *self = need_alloc(sizeof *self);
    self->mode = mode != SCREEN_AUTO ? mode : tui_style().rows ? SCREEN_TERMINAL : SCREEN_LINES;
    self->phase = PHASES;
    if (self->mode == SCREEN_TERMINAL)
        tui_keys_open(&self->keys);
    return self;
}

/* ---- keys ---- */

static void release(struct screen *self)
{
    status_fini(&self->copy);
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
    return self->held ? &self->copy : status;
}

bool screen_touched(struct screen *self)
{
    enum tui_news news = self->mode == SCREEN_TERMINAL ? tui_read(&self->tui, &self->keys) : TUI_SAME;
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

/* Writes and frees the text. Output that cannot be written is dropped. */
static void screen_write(struct screen *self, struct text *text)
{
    int64_t until_ns = clock_ns() + PATIENCE_NS;
    size_t size = writable(until_ns) ? text->size : 0, at = 0;
    if (size && self->torn && self->mode != SCREEN_TERMINAL && write(STDOUT_FILENO, "\n", 1) != 1)
        size = 0;
    self->torn &= size == 0;
    while (at < size) {
        size_t piece = size - at < 4096 ? size - at : 4096;
        ssize_t n = writable(until_ns + PATIENCE_NS) ? write(STDOUT_FILENO, text->data + at, piece) : -1;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            self->torn = at > 0;
            break;
        }
        at += (size_t)n;
    }
    text_fini(text);
}

/* ---- the frame on the terminal ---- */

/* Returns the lines that the last frame takes now: a terminal that became narrower has wrapped lines that are too
 * wide. */
static uint32_t frame_height(const struct screen *self)
{
    uint32_t columns, rows, height = 0;
    terminal_size(&columns, &rows);
    for (const char *at = text_get(&self->frame); *at; height++) {
        size_t size = strcspn(at, "\n");
        char *line = need_print("%.*s", (int)size, at);
        uint32_t width = format_width(line), drawn = width < self->columns ? width : self->columns;
        height += drawn > columns ? (drawn - 1) / columns : 0;
        free(line);
        at += size + (at[size] == '\n');
    }
    return height;
}

/* Until the end of the frame: no wrapping, no cursor, and an atomic update where the terminal supports it (mode 2026). */
static void frame_begin(const struct screen *self, struct text *out)
{
    uint32_t up = frame_height(self);
    text_add(out, "\x1b[?2026h\x1b[?25l\r");
    if (up)
        text_add(out, "\x1b[%uA", up);
}

static void frame_end(struct screen *self, struct text *out)
{
    uint32_t rows;
    terminal_size(&self->columns, &rows);
    text_add(out, "\x1b[?7l");
    terminal_add_frame(out, text_get(&self->frame));
    text_add(out, "\x1b[?7h\x1b[?25h\x1b[?2026l");
}

static void add_frame(struct screen *self, struct text *out, const struct status *status)
{
    struct text frame = {0};
    struct canvas_style style = tui_style();
    view_draw(&frame, hold(self, status), &style, &self->tui);
    frame_begin(self, out);
    text_fini(&self->frame);
    self->frame = frame;
    frame_end(self, out);
}

void screen_show(struct screen *self, const struct status *status)
{
    static const int64_t everies[] = {
        [SCREEN_TERMINAL] = FRAME_EVERY_NS, [SCREEN_LINES] = LINE_EVERY_NS, [SCREEN_JSON] = JSON_EVERY_NS};
    int64_t now = clock_ns();
    bool over = status->phase >= PHASE_DONE;
    if (self->mode == SCREEN_QUIET)
        return;
    bool last = (over && self->mode == SCREEN_TERMINAL) || screen_touched(self);
    self->touched = false;
    if (!last && self->phase == status->phase && now - self->shown_ns < everies[self->mode])
        return;
    self->phase = status->phase;
    self->shown_ns = now;
    if (self->mode == SCREEN_TERMINAL && !writable(0)) /* a stopped terminal (Ctrl-S) gets no new frames */
        return;
    struct text out = {0};
    if (self->mode == SCREEN_TERMINAL) {
        add_frame(self, &out, status);
    } else if (self->mode == SCREEN_JSON) {
        char *json = status_to_json(status, false);
        text_add(&out, "%s\n", json);
        free(json);
    } else {
        view_line(&out, status);
        text_add(&out, "\n");
    }
    screen_write(self, &out);
}

/* ---- saying something ---- */

/* Prints line by line, so that only line ends have an effect on the terminal. */
static void add_message(struct text *out, const char *message, bool loud, const struct screen *self)
{
    const struct canvas_style style = tui_style();
    for (const char *at = message; *at;) {
        size_t size = strcspn(at, "\n");
        struct line line = {.utf8 = style.utf8, .colour = style.colour && self->mode == SCREEN_TERMINAL};
        line_put(&line, loud ? TINT_WARN : TINT_NONE, "%.*s", (int)size, at);
        text_add(out, "%s%s\n", text_get(&line.text), self->mode == SCREEN_TERMINAL ? "\x1b[K" : "");
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
    if (self->mode == SCREEN_QUIET && !loud)
        return;
    va_start(args, format);
    int n = vasprintf(&message, format, args);
    va_end(args);
    if (n < 0)
        return;
    struct text out = {0};
    if (self->frame.size)
        frame_begin(self, &out);
    if (self->mode == SCREEN_JSON)
        add_json(&out, message, loud);
    else
        add_message(&out, message, loud, self);
    if (self->frame.size)
        frame_end(self, &out);
    screen_write(self, &out);
    free(message);
}
