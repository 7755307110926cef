/* top: asks the broker at an interval and draws the answers on the alternate screen, or prints them one after another if the
 * output is not a terminal. */
#include "agent/ctl/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/terminal.h"

static volatile sig_atomic_t stop_signal, suspend;

static void on_signal(int number)
{
    stop_signal = number;
}

/* Ctrl-Z: the terminal is given back before the program stops. */
static void on_suspend(int number)
{
    (void)number;
    suspend = 1;
}

/* Does nothing: the signal interrupts poll, and the frame is drawn again. Only for a view on a terminal: elsewhere another frame
 * would be another part of the output. */
static void on_resize(int number)
{
    (void)number;
}

static void catch_signals(bool screen)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    action.sa_handler = on_resize;
    if (!screen)
        return;
    sigaction(SIGWINCH, &action, NULL);
    action.sa_handler = on_suspend;
    sigaction(SIGTSTP, &action, NULL);
}

/* ---- terminal ---- */

struct terminal {
    bool screen; /* standard output is a terminal: the alternate screen is used */
    struct sheet_style style;
    struct look_keys keys;
    struct look look;
};

static void terminal_enter(struct terminal *self)
{
    look_keys_open(&self->keys);
    look_read(&self->look, &self->keys);
    fputs("\x1b[?1049h\x1b[?25l", stdout);
}

static void terminal_leave(struct terminal *self)
{
    fputs("\x1b[?7h\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    look_keys_close(&self->keys);
}

static void terminal_open(struct terminal *self)
{
    const char *name = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    self->screen = isatty(STDOUT_FILENO) && !(name && strcmp(name, "dumb") == 0);
    self->style = (struct sheet_style){.utf8 = self->screen && terminal_has_utf8(),
                                       .colour = self->screen && !(no_colour && no_colour[0])};
    self->look.quits = true;
    if (self->screen)
        terminal_enter(self);
}

static void terminal_close(struct terminal *self)
{
    if (self->screen)
        terminal_leave(self);
}

/* Stops until the shell lets this program go on. */
static void terminal_suspend(struct terminal *self)
{
    suspend = 0;
    terminal_leave(self);
    raise(SIGSTOP);
    terminal_enter(self);
}

/* Clearing the rest of a line would erase the character in the last column, so that column stays empty. */
static bool terminal_show(struct terminal *self, const struct top_frame *frame)
{
    struct text text = {0}, out = {0};
    if (self->screen) {
        terminal_size(&self->style.columns, &self->style.rows);
        self->style.columns -= self->style.columns > 1;
        self->style.rows -= self->style.rows > 1;
    }
    top_render(&text, frame, &self->style, &self->look);
    if (self->screen) {
        terminal_add_frame(&out, text_get(&text));
        printf("\x1b[?7l\x1b[H%s\x1b[?7h", text_get(&out));
    } else {
        printf("%s\n", text_get(&text));
    }
    text_fini(&text);
    text_fini(&out);
    return fflush(stdout) == 0 && !ferror(stdout);
}

enum wake { WAKE_TIME, WAKE_DRAW, WAKE_QUIT };

/* Waits until the time, a key, or another size of the terminal. */
static enum wake terminal_wait(struct terminal *self, int64_t until_ns)
{
    struct clock clock = clock_system();
    while (!stop_signal) {
        if (suspend) {
            terminal_suspend(self);
            return WAKE_DRAW;
        }
        enum look_news news = look_read(&self->look, &self->keys);
        if (news != LOOK_SAME)
            return news == LOOK_QUIT ? WAKE_QUIT : WAKE_DRAW;
        int64_t left = until_ns - clock_now(&clock);
        if (left <= 0 && !self->look.paused)
            return WAKE_TIME;
        struct pollfd input = {.fd = self->keys.usable ? STDIN_FILENO : -1, .events = POLLIN};
        int timeout = self->look.paused || left / NS_PER_MS > 1000 ? 1000 : (int)((left + NS_PER_MS - 1) / NS_PER_MS);
        if (poll(&input, 1, timeout) < 0 && !suspend)
            return stop_signal ? WAKE_QUIT : WAKE_DRAW; /* the window has a new size */
    }
    return WAKE_QUIT;
}

/* ---- what is drawn ---- */

struct sample {
    rp_info *info, *waits;
    struct why verdict;
    rp_error err;
    uint64_t messages;
    uint32_t missing; /* shards that have not answered */
    int64_t time_ns;
    time_t taken; /* when the broker was last asked, whether it answered or not */
    double rate;
    struct top_session *sessions;
    uint32_t n_sessions;
    bool with_sessions; /* they are shown: ask for them */
};

static void sample_fini(struct sample *self)
{
    rp_info_free(&self->info);
    rp_info_free(&self->waits);
}

static int by_ordinal(const void *a, const void *b)
{
    const struct top_session *p = a, *q = b;
    return (p->ordinal > q->ordinal) - (p->ordinal < q->ordinal);
}

/* The rates of sessions come from what they had sent at the last look. Without memory, sessions are not shown. */
static void take_sessions(struct sample *self, double seconds)
{
    const Replay__InfoReply *info = ADMIN_AS(InfoReply, self->info);
    struct top_session *list = info->n_sessions ? calloc(info->n_sessions, sizeof *list) : NULL;
    if (self->n_sessions)
        qsort(self->sessions, self->n_sessions, sizeof *self->sessions, by_ordinal);
    for (size_t i = 0; list && i < info->n_sessions; i++) {
        top_session_fill(&list[i], info->sessions[i]);
        const struct top_session *before =
            self->n_sessions ? bsearch(&list[i], self->sessions, self->n_sessions, sizeof *list, by_ordinal) : NULL;
        if (before && strcmp(before->name, list[i].name) == 0 && before->received <= list[i].received && seconds > 0)
            list[i].rate = (double)(list[i].received - before->received) / seconds;
    }
    free(self->sessions);
    self->sessions = list;
    self->n_sessions = list ? (uint32_t)info->n_sessions : 0;
}

static bool sample_take(struct ctl *ctl, struct sample *self)
{
    rp_info *info = NULL, *waits = NULL;
    struct clock clock = clock_system();
    self->taken = time(NULL);
    if (rp_admin_info(ctl->client, NULL, self->with_sessions, ctl->timeout_ms, &info, &self->err) != RP_OK)
        return false;
    if (rp_admin_why(ctl->client, ctl->timeout_ms, &waits, &self->err) != RP_OK) {
        rp_info_free(&info);
        return false;
    }
    bool first = !self->info;
    sample_fini(self);
    self->info = info;
    self->waits = waits;
    ctl_explain(ctl, info, waits, &self->verdict);
    int64_t now = clock_now(&clock);
    uint64_t messages = rp_info_u64(info, "server.messages_in");
    uint32_t missing = top_missing(ADMIN_AS(InfoReply, info)->shards);
    self->rate = first || messages < self->messages || missing != self->missing
                     ? -1
                     : (double)(messages - self->messages) / ((double)(now - self->time_ns) / 1e9);
    take_sessions(self, first ? 0 : (double)(now - self->time_ns) / 1e9);
    self->messages = messages;
    self->missing = missing;
    self->time_ns = now;
    return true;
}

static int show_json(const struct sample *sample)
{
    struct json json = {0};
    json_open(&json, '{');
    json_key(&json, "info");
    json_message(&json, &ADMIN_AS(InfoReply, sample->info)->base);
    json_key(&json, "why");
    json_message(&json, &ADMIN_AS(WhyReply, sample->waits)->base);
    json_close(&json, '}');
    return ctl_print_text(&json);
}

static bool show(struct ctl *ctl, struct terminal *terminal, const struct sample *sample, bool fresh)
{
    if (ctl->json)
        return fresh && show_json(sample) == CTL_OK;
    char clock[16];
    struct tm local;
    localtime_r(&sample->taken, &local);
    strftime(clock, sizeof clock, "%H:%M:%S", &local);
    struct top_frame frame = {.info = ADMIN_AS(InfoReply, sample->info),
                              .why = ADMIN_AS(WhyReply, sample->waits),
                              .verdict = sample->verdict.text,
                              .advice = sample->verdict.advice,
                              .endpoint = conn_endpoint(client_conn(ctl->client)),
                              .problem = fresh ? NULL : sample->err.text,
                              .messages_rate = sample->rate,
                              .sessions = sample->sessions,
                              .n_sessions = sample->n_sessions,
                              .by_shard = ctl->shards,
                              .clock = clock};
    return terminal_show(terminal, &frame);
}

/* Shows frames until the end; returns the exit status. */
static int watch(struct ctl *ctl, struct terminal *terminal, struct sample *sample)
{
    struct clock clock = clock_system();
    bool fresh = true;
    for (uint64_t n = 1;; n++) {
        int64_t next_ns = clock_now(&clock) + ctl->interval_ns;
        enum wake wake;
        do {
            if (!show(ctl, terminal, sample, fresh))
                return fresh ? CTL_REFUSED : CTL_SILENT;
            if ((ctl->given & CTL_COUNT) && n >= ctl->count)
                return CTL_OK;
            wake = terminal_wait(terminal, next_ns);
        } while (wake == WAKE_DRAW);
        if (wake == WAKE_QUIT)
            return CTL_OK;
        fresh = sample_take(ctl, sample);
        /* On a terminal top shows that the broker is away and goes on; a program that reads the output sees the exit status. */
        if (!fresh && !terminal->screen)
            return ctl_fail(ctl, &sample->err);
    }
}

int ctl_top(struct ctl *ctl)
{
    struct terminal terminal = {0};
    struct sample sample = {.rate = -1, .with_sessions = !ctl->json};
    if (!sample_take(ctl, &sample))
        return ctl_fail(ctl, &sample.err);
    if (!ctl->json)
        terminal_open(&terminal);
    catch_signals(terminal.screen);
    int rc = watch(ctl, &terminal, &sample);
    terminal_close(&terminal);
    sample_fini(&sample);
    free(sample.sessions);
    return rc;
}
