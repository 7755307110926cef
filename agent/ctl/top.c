/* top: asks the broker at an interval and draws the answers on the alternate screen, or prints them one after another if the
 * output is not a terminal. */
#include "agent/ctl/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "agent/why/why.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/terminal.h"

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

/* Does nothing: the signal interrupts poll, and the frame is drawn again. */
static void on_resize(int number)
{
    (void)number;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    action.sa_handler = on_resize;
    sigaction(SIGWINCH, &action, NULL);
}

/* ---- terminal ---- */

struct terminal {
    bool screen; /* standard output is a terminal: the alternate screen is used */
    bool keys;   /* standard input is a terminal: keys work */
    struct termios before;
};

static void terminal_open(struct terminal *self)
{
    const char *name = getenv("TERM");
    self->screen = isatty(STDOUT_FILENO) && !(name && strcmp(name, "dumb") == 0);
    self->keys = self->screen && isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &self->before) == 0;
    if (self->keys) {
        struct termios raw = self->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    if (self->screen)
        fputs("\x1b[?1049h\x1b[?25l", stdout);
}

static void terminal_close(struct terminal *self)
{
    if (self->screen) {
        fputs("\x1b[?25h\x1b[?1049l", stdout);
        fflush(stdout);
    }
    if (self->keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &self->before);
}

static bool terminal_show(struct terminal *self, const struct top_frame *frame)
{
    struct text text = {0}, out = {0};
    uint32_t columns = 0, rows = 0;
    if (self->screen)
        terminal_size(&columns, &rows);
    top_render(&text, frame, columns, rows > 1 ? rows - 1 : rows);
    if (self->screen) {
        terminal_add_frame(&out, text_get(&text));
        printf("\x1b[H%s\x1b[7m q quits \x1b[0m", text_get(&out));
    } else {
        printf("%s\n", text_get(&text));
    }
    text_fini(&text);
    text_fini(&out);
    return fflush(stdout) == 0 && !ferror(stdout);
}

/* Waits until the time or a key. False: quit. */
static bool terminal_wait(struct terminal *self, int64_t until_ns)
{
    struct clock clock = clock_system();
    while (!stop_signal) {
        int64_t left = until_ns - clock_now(&clock);
        if (left <= 0)
            return true;
        struct pollfd input = {.fd = self->keys ? STDIN_FILENO : -1, .events = POLLIN};
        int timeout = left / NS_PER_MS > 3600000 ? 3600000 : (int)((left + NS_PER_MS - 1) / NS_PER_MS);
        int n = poll(&input, 1, timeout);
        if (n < 0)
            return !stop_signal; /* the window has a new size: draw again */
        char key = 0;
        if (n > 0 && read(STDIN_FILENO, &key, 1) <= 0)
            self->keys = false;
        if (key == 'q' || key == 'Q' || key == 3)
            return false;
        if (key == ' ')
            return true;
    }
    return false;
}

/* ---- what is drawn ---- */

struct sample {
    rp_info *box; /* own the two replies */
    rp_waits *waits;
    const Replay__InfoReply *info;
    const Replay__WhyReply *why;
    struct why verdict;
    rp_error err;
    uint64_t messages;
    int64_t time_ns;
    double rate;
};

static void sample_fini(struct sample *self)
{
    rp_info_free(&self->box);
    rp_waits_free(&self->waits);
    self->info = NULL;
    self->why = NULL;
}

static bool sample_take(struct ctl *ctl, struct sample *self)
{
    Replay__Reply *info = NULL, *why = NULL;
    struct clock clock = clock_system();
    if (admin_info(ctl->conn, NULL, false, ctl->timeout_ms, &info, &self->err) != RP_OK)
        return false;
    if (admin_why(ctl->conn, ctl->timeout_ms, &why, &self->err) != RP_OK) {
        replay__reply__free_unpacked(info, NULL);
        return false;
    }
    bool first = !self->info;
    sample_fini(self);
    self->info = info->info;
    self->why = why->why;
    self->box = admin_take_info(info);
    self->waits = admin_take_waits(why);
    if (!self->box || !self->waits) {
        sample_fini(self);
        err_set(&self->err, RP_NO_MEMORY, "no memory for the broker's answer");
        return false;
    }
    why_explain(&(struct why_facts){.info = self->box, .waits = self->waits}, &self->verdict);
    int64_t now = clock_now(&clock);
    uint64_t messages = self->info->server->messages_in;
    self->rate = first || messages < self->messages
                     ? -1
                     : (double)(messages - self->messages) / ((double)(now - self->time_ns) / 1e9);
    self->messages = messages;
    self->time_ns = now;
    return true;
}

static int show_json(const struct sample *sample)
{
    struct json json = {0};
    json_open(&json, '{');
    json_key(&json, "info");
    json_message(&json, &sample->info->base);
    json_key(&json, "why");
    json_message(&json, &sample->why->base);
    json_close(&json, '}');
    return ctl_print_text(&json);
}

static bool show(struct ctl *ctl, struct terminal *terminal, const struct sample *sample, bool fresh)
{
    if (ctl->json)
        return fresh && show_json(sample) == CTL_OK;
    char clock[16];
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(clock, sizeof clock, "%H:%M:%S", &local);
    struct top_frame frame = {.info = sample->info,
                              .why = sample->why,
                              .verdict = sample->verdict.text,
                              .advice = sample->verdict.advice,
                              .endpoint = conn_endpoint(ctl->conn),
                              .problem = fresh ? NULL : sample->err.text,
                              .messages_rate = sample->rate,
                              .clock = clock};
    return terminal_show(terminal, &frame);
}

int ctl_top(struct ctl *ctl)
{
    struct terminal terminal = {0};
    struct sample sample = {.rate = -1};
    struct clock clock = clock_system();
    int rc = CTL_OK;
    if (!sample_take(ctl, &sample))
        return ctl_fail(ctl, &sample.err);
    catch_signals();
    if (!ctl->json)
        terminal_open(&terminal);
    bool fresh = true;
    for (uint64_t n = 1;; n++) {
        if (!show(ctl, &terminal, &sample, fresh)) {
            rc = fresh ? CTL_REFUSED : CTL_SILENT;
            break;
        }
        if ((ctl->given & CTL_COUNT) && n >= ctl->count)
            break;
        if (!terminal_wait(&terminal, clock_now(&clock) + ctl->interval_ns))
            break;
        fresh = sample_take(ctl, &sample);
        /* On a terminal top shows that the broker is away and goes on; a program that reads the output sees the exit status. */
        if (!fresh && !terminal.screen) {
            rc = ctl_fail(ctl, &sample.err);
            break;
        }
    }
    terminal_close(&terminal);
    sample_fini(&sample);
    return rc;
}
