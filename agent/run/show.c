#include "agent/run/show.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/env/picture.h"
#include "agent/run/stop.h"
#include "agent/view/tui.h"
#include "proto/base/clock.h"
#include "proto/base/need.h"

#define LEAST_FRAME_NS (NS_PER_S / 40) /* between two frames: terminals cannot show more */
#define LOOK_MS 50                     /* between two looks at the stop flag */
#define LAST_FRAME_NS NS_PER_S         /* for which the end of an episode stays */

struct show {
    const char *name;
    uint64_t episodes, shown; /* in all; that have ended */
    const atomic_bool *stop;
    bool drawn, over; /* in a terminal; nothing more is shown */
    struct tui tui;
    struct tui_keys keys;
    struct env_picture picture;
    int64_t due_ns, drawn_ns; /* when the present step is over; of the last frame */
};

#define MOST_ACTIONS 4u

/* ---- as text: a line for each step ---- */

#define MOST_NUMBERS 1000u /* of an observation */

/* The action was chosen for the older of the two observations. */
static void text_step(const rp_env_spec *spec, const struct environment_loop *loop, double reward, bool ended)
{
    const struct agent_choice *choice = &loop->actor.choice;
    const struct episode *episode = &loop->episode;
    size_t n = env_observation_count(spec);
    if (episode->steps == 1)
        printf("%6s %10s %10s %10s  action, observation\n", "step", "reward", "return", "value");
    printf("%6llu %10.4g %10.4g %10.4g ", (unsigned long long)episode->steps, reward, episode->value,
           (double)choice->value);
    if (spec->n_actions)
        printf(" %-6d", choice->discrete);
    for (uint32_t i = 0; i < spec->action_size && i < MOST_ACTIONS; i++) /* canonical: the bounds are -1 and 1 */
        printf(" %10.4f", (double)choice->continuous[i]);
    for (size_t i = 0; i < n && i < MOST_NUMBERS; i++)
        printf(" %.4g", spec->observation_dtype == RP_DTYPE_UINT8 ? (double)((const uint8_t *)loop->next)[i]
                                                                  : (double)((const float *)loop->next)[i]);
    printf("%s\n", n > MOST_NUMBERS ? " ..." : "");
    if (ended)
        printf("%s after %llu steps with a return of %.6g\n\n",
               episode->truncated ? "cut off by the time limit" : "ended", (unsigned long long)episode->steps,
               episode->value);
}

/* ---- in a terminal: two pixels in each character, an upper half block ---- */

/* One of the 256 colours that every terminal of today has: of 24 greys, or of a cube of 6 x 6 x 6. */
static uint32_t colour_of(const uint8_t *rgb)
{
    uint32_t out = 0, low = 255, high = 0;
    for (uint32_t part = 0; part < 3; part++) {
        low = rgb[part] < low ? rgb[part] : low;
        high = rgb[part] > high ? rgb[part] : high;
        out = 6 * out + (rgb[part] < 48 ? 0u : rgb[part] < 115 ? 1u : (uint32_t)(rgb[part] - 35) / 40);
    }
    return high - low < 32 && low >= 8 && high < 244 ? 232 + (low + high - 6) / 20 : 16 + out;
}

static void add_pixels(struct text *out, const uint8_t *rgb, uint32_t columns, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t upper = 0, lower = 0;
        for (uint32_t x = 0; x < columns; x++) {
            const uint8_t *pixel = rgb + 3 * ((size_t)2 * row * columns + x);
            uint32_t above = colour_of(pixel), below = colour_of(pixel + 3 * (size_t)columns);
            if (x == 0 || above != upper || below != lower)
                text_add(out, "\x1b[38;5;%um\x1b[48;5;%um", above, below);
            text_add(out, "%s", above == below ? " " : "\u2580");
            upper = above;
            lower = below;
        }
        text_add(out, "\x1b[0m\n");
    }
}

static void draw(struct show *self, const struct environment_loop *loop, double reward)
{
    uint32_t columns, rows;
    struct text out = {0};
    struct line line = {.utf8 = true, .colour = true};
    const struct agent_choice *choice = &loop->actor.choice;
    terminal_size(&columns, &rows);
    rows = rows > 3 ? rows - 2 : 1;
    picture_take(loop->env, loop->observation, &self->picture);
    uint8_t *rgb = need_alloc((size_t)columns * 2 * rows * 3);
    picture_paint(&self->picture, columns, 2 * rows, rgb);
    text_add(&out, "\x1b[H");
    add_pixels(&out, rgb, columns, rows);
    line.limit = columns;
    line_put(&line, TINT_BOLD, "%s", self->name);
    line_put(&line, TINT_NONE, "  episode %llu of %llu  step %llu  reward %.4g  return %.6g  action",
             (unsigned long long)self->shown + 1, (unsigned long long)self->episodes,
             (unsigned long long)loop->episode.steps, reward, loop->episode.value);
    if (loop->env->spec.n_actions)
        line_put(&line, TINT_NONE, " %d", choice->discrete);
    for (uint32_t i = 0; i < loop->env->spec.action_size && i < MOST_ACTIONS; i++)
        line_put(&line, TINT_NONE, " %+.2f", (double)choice->continuous[i]);
    text_add(&out, "%s\x1b[K\n", text_get(&line.text));
    text_add(&out, "%.*s\x1b[K", (int)columns,
             self->tui.paused ? "paused: space goes on, q ends" : "space pauses, q ends");
    fputs(text_get(&out), stdout);
    fflush(stdout);
    free(rgb);
    line_fini(&line);
    text_fini(&out);
}

/* Gives the terminal back. */
static void end_drawing(struct show *self)
{
    if (self->drawn && !self->over) {
        fputs("\x1b[0m\x1b[?25h\x1b[?1049l", stdout);
        fflush(stdout);
        tui_keys_close(&self->keys);
    }
    self->over = true;
}

/* Waits until the time of the step is over, and as long as the user pauses. */
static void wait_for_step(struct show *self)
{
    for (;;) {
        if (tui_read(&self->tui, &self->keys) == TUI_QUIT)
            end_drawing(self);
        int64_t left_ms = (self->due_ns - clock_ns()) / NS_PER_MS;
        if (self->over || is_stopped(self->stop) || (!self->tui.paused && left_ms <= 0))
            break;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        poll(&input, self->keys.usable ? 1 : 0, self->tui.paused || left_ms > LOOK_MS ? LOOK_MS : (int)left_ms);
    }
    if (self->tui.paused)
        self->due_ns = clock_ns();
}

static void draw_step(struct show *self, const struct environment_loop *loop, double reward, bool ended)
{
    int64_t now = clock_ns();
    if (ended || now - self->drawn_ns >= LEAST_FRAME_NS) {
        draw(self, loop, reward);
        self->drawn_ns = now;
    }
    int64_t from =
        self->due_ns > now - NS_PER_S ? self->due_ns : now; /* an environment that is slow is not caught up with */
    self->due_ns = from + (ended ? LAST_FRAME_NS : (int64_t)(self->picture.step_s * 1e9));
    wait_for_step(self);
}

/* ---- life ---- */

struct show *show_new(const char *name, uint64_t episodes, const atomic_bool *stop)
{
    struct show *self = need_alloc(sizeof *self);
    const char *why = !isatty(STDOUT_FILENO) ? "standard output is not a terminal"
                      : !terminal_has_utf8() ? "the terminal's locale has no UTF-8"
                                             : NULL;
    *self = (struct show){.name = name, .episodes = episodes, .stop = stop, .drawn = !why, .tui.quits = true};
    if (why) {
        fprintf(stderr, "%s, so the environment cannot be drawn: the first episode follows as text\n", why);
    } else {
        tui_keys_open(&self->keys);
        fputs("\x1b[?1049h\x1b[?25l\x1b[2J", stdout);
    }
    return self;
}

void show_destroy(struct show **self)
{
    if (!*self)
        return;
    end_drawing(*self);
    free(*self);
    *self = NULL;
}

void show_step(struct show *self, const struct environment_loop *loop, double reward, bool ended)
{
    if (self->over)
        return;
    if (self->drawn) {
        draw_step(self, loop, reward, ended);
    } else {
        text_step(&loop->env->spec, loop, reward, ended);
        self->over = ended; /* one is enough to read */
    }
    self->shown += ended;
}
