/* top: asks the broker at an interval and draws the answers on the alternate screen, or prints them one after another if the
 * output is not a terminal. What limits comes first, then the tables; those who wait and the sessions share the rest of the
 * screen. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "agent/view/tui.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/need.h"

/* In a small terminal, lines of low rank stay. */
enum top_rank {
    TOP_HEAD,
    TOP_PROBLEM,
    TOP_WAITS,
    TOP_TABLES,
    TOP_MEMORY,
    TOP_WAITERS,
    TOP_ADVICE,
    TOP_MESSAGES,
    TOP_SESSIONS,
    TOP_FOOTER,
    TOP_BLANK
};

/* A session as top shows it. */
struct top_session {
    char name[64];
    uint32_t ordinal;
    uint64_t received; /* items that have arrived */
    double rate;       /* items/s since the last frame; negative: not known */
    uint64_t waiting;  /* items that wait for room in a table */
    uint64_t credit;   /* items that it may send */
    uint64_t memory;   /* bytes that the broker keeps for it */
    uint64_t silent_ns;
    bool expired;
};

/* What the broker has said, which is what a frame shows. */
struct top {
    rp_info *info, *waits;
    struct why verdict;
    const rp_error *err; /* of the command */
    bool fresh;          /* the broker has answered; otherwise err says why not */
    uint64_t messages;
    uint32_t missing; /* shards that have not answered */
    int64_t time_ns;
    time_t taken;                 /* when the broker was last asked, whether it answered or not */
    double rate;                  /* messages/s since the last frame; negative: not known */
    struct top_session *sessions; /* sorted by list_add */
    uint32_t n_sessions;
    bool with_sessions;   /* they are shown: ask for them */
    bool by_shard;        /* show the part of each shard, too */
    const char *endpoint; /* of the broker */
};

static const Replay__InfoReply *info_of(const struct top *self)
{
    return ADMIN_AS(InfoReply, self->info);
}

/* ---- sessions: a list that keys sort and scroll ---- */

/* A shard numbers its sessions with this many bits. */
#define SHARD_SHIFT 20u

/* Fills in what the broker says of a session; the rate is not known yet. */
static void session_fill(struct top_session *out, const Replay__SessionInfo *info)
{
    *out = (struct top_session){.ordinal = info->ordinal,
                                .rate = -1,
                                .memory = info->chunk_bytes,
                                .silent_ns = info->silent_ns,
                                .expired = info->expired};
    snprintf(out->name, sizeof out->name, "%s", info->name);
    if (info->has_shard_case == REPLAY__SESSION_INFO__HAS_SHARD_SHARD) {
        out->ordinal |= info->shard << SHARD_SHIFT;
        snprintf(out->name, sizeof out->name, "%.50s @%u", info->name, info->shard);
    }
    for (size_t i = 0; i < info->n_tables; i++) {
        const Replay__SessionTable *table = info->tables[i];
        uint64_t arrived = table->resolved + table->waiting;
        out->received += arrived;
        out->waiting += table->waiting;
        out->credit += table->allowed > arrived ? table->allowed - arrived : 0;
    }
}

/* ---- the list ---- */

LIST_CELL(cell_name, top_session, s, snprintf(out, FORMAT_SIZE, "%.40s", s->name))
LIST_CELL(cell_rate, top_session, s, s->rate >= 0 ? format_rate(out, s->rate) : strcpy(out, "-"))
LIST_CELL(cell_waiting, top_session, s, format_short(out, (double)s->waiting))
LIST_CELL(cell_memory, top_session, s, format_bytes(out, s->memory))
LIST_CELL(cell_credit, top_session, s, format_short(out, (double)s->credit))

static void cell_state(char *out, const void *row)
{
    const struct top_session *s = row;
    format_buffer time;
    if (s->expired)
        snprintf(out, FORMAT_SIZE, "expired");
    else
        snprintf(out, FORMAT_SIZE, "heard %s ago", format_time(time, s->silent_ns));
}

/* "actor-2" is before "actor-10". */
static int by_name(const void *a, const void *b)
{
    const struct top_session *p = a, *q = b;
    int names = strverscmp(p->name, q->name);
    return names ? names : (p->ordinal > q->ordinal) - (p->ordinal < q->ordinal);
}

LIST_ORDER(by_rate, top_session, rate, by_name)
LIST_ORDER(by_waiting, top_session, waiting, by_name)
LIST_ORDER(by_memory, top_session, memory, by_name)

static const struct list_column session_columns[] = {
    {"session", 18, true, cell_name, by_name},       {"rate", 8, false, cell_rate, by_rate},
    {"waiting", 8, false, cell_waiting, by_waiting}, {"memory", 9, false, cell_memory, by_memory},
    {"credit", 7, false, cell_credit, NULL},         {"state", 20, true, cell_state, NULL},
};

/* Adds the list of sessions in at most this many lines. */
static void add_sessions(struct canvas *canvas, const struct top *top, struct tui *tui, uint32_t most)
{
    const struct list list = {.columns = session_columns,
                              .n_columns = sizeof session_columns / sizeof *session_columns,
                              .rows = top->sessions,
                              .n_rows = top->n_sessions,
                              .size = sizeof *top->sessions};
    list_add(canvas, TOP_SESSIONS, &list, tui, most);
}

/* ---- a frame ---- */

#define ANY_ROWS 120u     /* where there is no limit */
#define TABLE_LINES 4u    /* of a table, with the blank before it */
#define WAITERS_CHOSEN 3u /* while the list of sessions is used */

static void add_head(struct canvas *self, const struct top *top, const struct tui *tui)
{
    const Replay__InfoReply *info = info_of(top);
    const Replay__ServerInfo *server = info->server;
    struct line *line = canvas_line(self, TOP_HEAD);
    format_buffer up;
    char totals[48], clock[16];
    struct tm local;
    strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&top->taken, &local));
    line_put(line, TINT_BOLD, " replay-broker");
    if (server)
        line_try(line, TINT_NONE, " %s", server->release);
    line_put(line, TINT_NONE, "  %s", top->endpoint);
    if (server)
        line_try(line, TINT_NONE, "  up %s", format_time(up, server->uptime_ns));
    if (server && info->shards)
        line_try(line, ctl_missing(info->shards) ? TINT_BAD : TINT_NONE, "  %s",
                 ctl_totals(info->shards, totals, sizeof totals));
    if (tui->paused)
        line_try(line, TINT_WARN, "  [paused]");
    line_try(line, TINT_DIM, "  %s", clock);
}

static void add_memory(struct canvas *self, const Replay__ServerInfo *server)
{
    struct line *line = canvas_row(self, TOP_MEMORY, "memory");
    format_buffer used, limit, sessions, waiting;
    double share = (double)server->memory_bytes / (double)server->memory_limit;
    if (server->memory_limit) {
        line_bar(line, share > 0.9 ? TINT_WARN : TINT_BAR, canvas_bar(self), share);
        line_put(line, TINT_NONE, " ");
    }
    line_put(line, TINT_NONE, "%s", format_bytes(used, server->memory_bytes));
    if (server->memory_limit)
        line_try(line, TINT_NONE, " of %s", format_bytes(limit, server->memory_limit));
    else
        line_try(line, TINT_DIM, ", no limit");
    line_try(line, TINT_NONE, "   sessions %s", format_count(sessions, server->session_count));
    line_try(line, TINT_NONE, "   waiting %s", format_count(waiting, server->waiter_count));
}

static void add_messages(struct canvas *self, const struct top *top)
{
    const Replay__ServerInfo *server = info_of(top)->server;
    struct line *line = canvas_row(self, TOP_MESSAGES, "messages");
    format_buffer a, b, c;
    line_put(line, TINT_NONE, "%s in", top->rate >= 0 ? format_rate(a, top->rate) : "-");
    line_try(line, server->messages_bad ? TINT_WARN : TINT_DIM, ", %s bad", format_count(b, server->messages_bad));
    line_try(line, TINT_NONE, "   longest work %s", format_time(c, server->longest_stretch_ns));
    if (line_try(line, TINT_NONE, "   chunks %s, %s", format_short(a, (double)server->chunk_count),
                 format_bytes(b, server->chunk_bytes)))
        line_try(line, TINT_DIM, " (%s raw)", format_bytes(c, server->raw_bytes));
}

/* ---- tables ---- */

static void add_limiter(struct canvas *self, const Replay__LimiterInfo *limiter)
{
    bool ratio = ctl_has_ratio(limiter);
    struct line *line =
        ratio ? canvas_cursor(self, TOP_TABLES, "  cursor", limiter->cursor, limiter->min_diff, limiter->max_diff)
              : NULL;
    format_buffer at, size, spi;
    if (!line) {
        line = canvas_row(self, TOP_TABLES, ratio ? "  cursor" : "  ratio");
        line_put(line, TINT_NONE, "%s   min size %s", ratio ? format_short(at, limiter->cursor) : "none",
                 format_bound(size, limiter->min_size));
    }
    if (ratio)
        line_try(line, TINT_NONE, "   SPI %s", format_bound(spi, limiter->samples_per_insert));
    line_try(line, TINT_DIM, "   %s", limiter->kind);
}

static void add_table(struct canvas *self, const Replay__TableInfo *table, const Replay__Shards *shards)
{
    format_buffer a, b, c;
    char totals[48];
    struct line *line = canvas_line(self, TOP_TABLES);
    line_put(line, TINT_BOLD, " %s", table->name);
    line_try(line, TINT_NONE, "   in %s   out %s", format_rate(a, table->insert_rate),
             format_rate(b, table->sample_rate));
    line_try(line, TINT_NONE, "   updates %s", format_rate(c, table->update_rate));
    line_try(line, TINT_DIM, "   %s / %s", table->sampler, table->remover);
    line = canvas_row(self, TOP_TABLES, "  items");
    if (table->max_size) {
        line_bar(line, TINT_BAR, canvas_bar(self), (double)table->size / (double)table->max_size);
        line_put(line, TINT_NONE, " %s", format_percent(a, (double)table->size, (double)table->max_size));
        line_to(line, line->width + 2);
    }
    line_put(line, TINT_NONE, "%s of %s items", format_count(a, table->size),
             table->max_size ? format_count(b, table->max_size) : "any");
    if (ctl_missing(shards))
        line_put(line, TINT_BAD, " in %s", ctl_totals(shards, totals, sizeof totals));
    line_try(line, TINT_NONE, "   %s", format_bytes(c, table->bytes));
    line_try(line, TINT_DIM, "   age %s", format_seconds(a, table->mean_age_s));
    if (table->limiter)
        add_limiter(self, table->limiter);
}

/* A line for each shard of a table. */
static void add_parts(struct canvas *self, const Replay__Shards *shards, const char *table)
{
    for (size_t i = 0; i < shards->n_shard; i++) {
        const Replay__ShardInfo *row = shards->shard[i];
        const Replay__TableInfo *part = NULL;
        char name[32];
        format_buffer a, b, c, d;
        for (size_t k = 0; k < row->n_tables; k++)
            if (strcmp(row->tables[k]->name, table) == 0)
                part = row->tables[k];
        snprintf(name, sizeof name, "  shard %u", row->shard);
        struct line *line = canvas_row(self, TOP_TABLES, name);
        if (!part) {
            line_put(line, TINT_BAD, "does not answer");
            continue;
        }
        line_put(line, TINT_NONE, "%s items   in %s   out %s", format_count(a, part->size),
                 format_rate(b, part->insert_rate), format_rate(c, part->sample_rate));
        if (part->limiter)
            line_try(line, TINT_NONE, "   cursor %s", format_short(d, part->limiter->cursor));
    }
}

/* At most so many tables as fit into these lines; one has its lines in any case. */
static void add_tables(struct canvas *self, const struct top *top, uint32_t most)
{
    const Replay__InfoReply *info = info_of(top);
    const Replay__Shards *shards = top->by_shard ? info->shards : NULL;
    uint32_t lines = TABLE_LINES + (shards ? (uint32_t)shards->n_shard : 0), fit = most > lines ? most / lines : 1;
    for (size_t i = 0; i < info->n_tables && i < fit; i++) {
        canvas_line(self, TOP_BLANK);
        add_table(self, info->tables[i], info->shards);
        if (shards)
            add_parts(self, shards, info->tables[i]->name);
    }
    if (info->n_tables > fit)
        line_put(canvas_line(self, TOP_TABLES), TINT_DIM, " ... and %zu more tables", info->n_tables - fit);
}

/* ---- those who wait ---- */

static void add_waiters(struct canvas *self, const Replay__WhyReply *why, uint32_t most)
{
    if (why->n_waits == 0)
        line_put(canvas_row(self, TOP_WAITERS, "waiting"), TINT_DIM, "nothing waits");
    for (size_t i = 0; i < why->n_waits && i < most; i++) {
        const Replay__Wait *wait = why->waits[i];
        format_buffer time;
        line_put(canvas_row(self, TOP_WAITERS, i ? "" : "waiting"), TINT_NONE, "%s %s for %s: %s", wait->who,
                 wait->kind, format_time(time, wait->waited_ns), wait->text);
    }
    if (why->n_waits > most)
        line_put(canvas_row(self, TOP_WAITERS, ""), TINT_DIM, "... and %zu more that wait", why->n_waits - most);
}

/* ---- all of it ---- */

/* Tables get half of the terminal, those who wait a fifth, and sessions the rest. Once a key has asked for the sessions, they get nearly
 * all of it. */
static void add_body(struct canvas *self, const struct top *top, struct tui *tui)
{
    uint32_t rows = self->style->rows ? self->style->rows : ANY_ROWS;
    add_tables(self, top, tui->chosen ? 0 : rows / 2);
    canvas_line(self, TOP_BLANK);
    if (top->fresh)
        add_waiters(self, ADMIN_AS(WhyReply, top->waits), tui->chosen ? WAITERS_CHOSEN : rows / 5);
    canvas_line(self, TOP_BLANK);
    add_sessions(self, top, tui, rows > self->n + 1 ? rows - self->n - 1 : 0);
}

static void add_verdict(struct canvas *self, const struct top *top)
{
    if (!top->fresh) {
        canvas_wrapped(self, TOP_PROBLEM, "problem", TINT_BAD, top->err->text, 2);
        return;
    }
    canvas_wrapped(self, TOP_WAITS, "waits", TINT_NONE, top->verdict.text, 2);
    canvas_wrapped(self, TOP_ADVICE, "advice", TINT_DIM, top->verdict.advice, 1);
}

/* Adds at most style->rows lines, none wider than style->columns, each with its end of line. */
static void render(struct text *out, const struct top *top, const struct canvas_style *style, struct tui *tui)
{
    struct canvas_style fit = canvas_fit(style);
    struct canvas canvas = {.style = &fit};
    add_head(&canvas, top, tui);
    if (tui->help) {
        canvas_line(&canvas, TOP_BLANK);
        tui_add_help(&canvas, TOP_HEAD, tui, "sessions");
    } else {
        add_verdict(&canvas, top);
        if (info_of(top)->server) {
            add_memory(&canvas, info_of(top)->server);
            add_messages(&canvas, top);
        }
        add_body(&canvas, top, tui);
    }
    tui_add_footer(&canvas, TOP_FOOTER, tui);
    canvas_write(&canvas, out);
}

/* ---- signals ---- */

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
    struct tui_keys keys;
    struct tui tui;
};

static void terminal_enter(struct terminal *self)
{
    tui_keys_open(&self->keys);
    tui_read(&self->tui, &self->keys);
    fputs("\x1b[?1049h\x1b[?25l", stdout);
}

static void terminal_leave(struct terminal *self)
{
    fputs("\x1b[?7h\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    tui_keys_close(&self->keys);
}

static void terminal_open(struct terminal *self)
{
    self->screen = tui_style().rows > 0;
    self->tui.quits = true;
    if (self->screen)
        terminal_enter(self);
}

/* Stops until the shell lets this program go on. */
static void terminal_suspend(struct terminal *self)
{
    suspend = 0;
    terminal_leave(self);
    raise(SIGSTOP);
    terminal_enter(self);
}

static bool terminal_show(struct terminal *self, const struct top *top)
{
    struct text text = {0}, out = {0};
    struct canvas_style style = self->screen ? tui_style() : (struct canvas_style){0};
    render(&text, top, &style, &self->tui);
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
    while (!stop_signal) {
        if (suspend) {
            terminal_suspend(self);
            return WAKE_DRAW;
        }
        enum tui_news news = tui_read(&self->tui, &self->keys);
        if (news != TUI_SAME)
            return news == TUI_QUIT ? WAKE_QUIT : WAKE_DRAW;
        int64_t left = until_ns - clock_ns();
        if (left <= 0 && !self->tui.paused)
            return WAKE_TIME;
        struct pollfd input = {.fd = self->keys.usable ? STDIN_FILENO : -1, .events = POLLIN};
        int timeout = self->tui.paused || left / NS_PER_MS > 1000 ? 1000 : (int)((left + NS_PER_MS - 1) / NS_PER_MS);
        if (poll(&input, 1, timeout) < 0 && !suspend)
            return stop_signal ? WAKE_QUIT : WAKE_DRAW; /* the window has a new size */
    }
    return WAKE_QUIT;
}

/* ---- asking ---- */

static void top_fini(struct top *self)
{
    rp_info_free(&self->info);
    rp_info_free(&self->waits);
}

static int by_ordinal(const void *a, const void *b)
{
    const struct top_session *p = a, *q = b;
    return (p->ordinal > q->ordinal) - (p->ordinal < q->ordinal);
}

/* The rates of sessions come from what they had sent at the last look. */
static void take_sessions(struct top *self, double seconds)
{
    const Replay__InfoReply *info = info_of(self);
    struct top_session *list = need_alloc((info->n_sessions + 1) * sizeof *list);
    if (self->n_sessions)
        qsort(self->sessions, self->n_sessions, sizeof *self->sessions, by_ordinal);
    for (size_t i = 0; i < info->n_sessions; i++) {
        session_fill(&list[i], info->sessions[i]);
        const struct top_session *before =
            self->n_sessions ? bsearch(&list[i], self->sessions, self->n_sessions, sizeof *list, by_ordinal) : NULL;
        if (before && strcmp(before->name, list[i].name) == 0 && before->received <= list[i].received && seconds > 0)
            list[i].rate = (double)(list[i].received - before->received) / seconds;
    }
    free(self->sessions);
    self->sessions = list;
    self->n_sessions = (uint32_t)info->n_sessions;
}

static bool top_take(struct ctl *ctl, struct top *self)
{
    rp_info *info = NULL, *waits = NULL;
    self->taken = time(NULL);
    self->fresh = false;
    self->endpoint = conn_endpoint(client_conn(ctl->client));
    if (rp_admin_info(ctl->client, NULL, self->with_sessions, ctl->timeout_ms, &info, &ctl->err) != RP_OK)
        return false;
    if (rp_admin_why(ctl->client, ctl->timeout_ms, &waits, &ctl->err) != RP_OK) {
        rp_info_free(&info);
        return false;
    }
    bool first = !self->info;
    top_fini(self);
    self->info = info;
    self->waits = waits;
    ctl_explain(ctl, info, waits, &self->verdict);
    int64_t now = clock_ns();
    uint64_t messages = rp_info_u64(info, "server.messages_in");
    uint32_t missing = ctl_missing(info_of(self)->shards);
    self->rate = first || messages < self->messages || missing != self->missing
                     ? -1
                     : (double)(messages - self->messages) / ((double)(now - self->time_ns) / 1e9);
    take_sessions(self, first ? 0 : (double)(now - self->time_ns) / 1e9);
    self->messages = messages;
    self->missing = missing;
    self->time_ns = now;
    return self->fresh = true;
}

static int top_show_json(const struct top *self)
{
    struct json json = {0};
    json_open(&json, '{');
    json_key(&json, "info");
    json_message(&json, &info_of(self)->base);
    json_key(&json, "why");
    json_message(&json, &ADMIN_AS(WhyReply, self->waits)->base);
    json_close(&json, '}');
    return ctl_print_text(&json);
}

/* Shows frames until the end; returns the exit status. */
static int watch(struct ctl *ctl, struct terminal *terminal, struct top *self)
{
    for (uint64_t n = 1;; n++) {
        int64_t next_ns = clock_ns() + ctl->interval_ns;
        enum wake wake;
        do {
            if (ctl->json ? top_show_json(self) != CTL_OK : !terminal_show(terminal, self))
                return self->fresh ? CTL_REFUSED : CTL_SILENT;
            if ((ctl->given & CTL_COUNT) && n >= ctl->count)
                return CTL_OK;
            wake = terminal_wait(terminal, next_ns);
        } while (wake == WAKE_DRAW);
        if (wake == WAKE_QUIT)
            return CTL_OK;
        /* On a terminal top shows that the broker is away and goes on; a program that reads the output sees the exit status. */
        if (!top_take(ctl, self) && !terminal->screen)
            return ctl_fail(ctl);
    }
}

int ctl_top(struct ctl *ctl)
{
    struct terminal terminal = {0};
    struct top top = {.err = &ctl->err, .rate = -1, .with_sessions = !ctl->json, .by_shard = ctl->shards};
    if (!top_take(ctl, &top))
        return ctl_fail(ctl);
    if (!ctl->json)
        terminal_open(&terminal);
    catch_signals(terminal.screen);
    int rc = watch(ctl, &terminal, &top);
    if (terminal.screen)
        terminal_leave(&terminal);
    top_fini(&top);
    free(top.sessions);
    return rc;
}
