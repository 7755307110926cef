/* See top.h. What limits comes first, then the tables; those who wait and the sessions share the rest of the screen. */
#include <stdio.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "agent/ctl/top_impl.h"

#define ANY_ROWS 120u     /* where there is no limit */
#define HEAD_LINES 7u     /* with the footer */
#define TABLE_LINES 4u    /* of a table, with the blank before it */
#define WAITERS_LEAST 4u  /* lines, if so many wait */
#define SESSIONS_LEAST 5u /* lines, if there are so many */

uint32_t top_missing(const Replay__Shards *shards)
{
    uint32_t n = 0;
    for (size_t i = 0; shards && i < shards->n_shard; i++)
        n += shards->shard[i]->problem[0] != '\0';
    return n;
}

const char *top_totals(const Replay__Shards *shards, char *out, size_t size)
{
    uint32_t missing = top_missing(shards);
    out[0] = '\0';
    if (shards && missing)
        snprintf(out, size, "%zu of %zu shards", shards->n_shard - missing, shards->n_shard);
    else if (shards)
        snprintf(out, size, "%zu shards", shards->n_shard);
    return out;
}

static void add_head(struct sheet *self, const struct top_frame *frame, const struct look *look)
{
    const Replay__ServerInfo *server = frame->info ? frame->info->server : NULL;
    struct line *line = sheet_line(self, TOP_HEAD);
    format_buffer up;
    char totals[48];
    if (!line)
        return;
    line_put(line, TINT_BOLD, " replay-broker");
    if (server)
        line_try(line, TINT_NONE, " %s", server->release);
    line_put(line, TINT_NONE, "  %s", frame->endpoint);
    if (server)
        line_try(line, TINT_NONE, "  up %s", format_time(up, server->uptime_ns));
    if (server && frame->info->shards)
        line_try(line, top_missing(frame->info->shards) ? TINT_BAD : TINT_NONE, "  %s",
                 top_totals(frame->info->shards, totals, sizeof totals));
    if (look->paused)
        line_try(line, TINT_WARN, "  [paused]");
    line_try(line, TINT_DIM, "  %s", frame->clock);
}

static void add_memory(struct sheet *self, const Replay__ServerInfo *server)
{
    struct line *line = sheet_row(self, TOP_MEMORY, "memory");
    format_buffer used, limit, sessions, waiting;
    if (!line)
        return;
    double share = (double)server->memory_bytes / (double)server->memory_limit;
    if (server->memory_limit) {
        line_bar(line, share > 0.9 ? TINT_WARN : TINT_BAR, sheet_bar(self), share);
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

static void add_messages(struct sheet *self, const struct top_frame *frame)
{
    const Replay__ServerInfo *server = frame->info->server;
    struct line *line = sheet_row(self, TOP_MESSAGES, "messages");
    format_buffer a, b, c;
    if (!line)
        return;
    line_put(line, TINT_NONE, "%s in", frame->messages_rate >= 0 ? format_rate(a, frame->messages_rate) : "-");
    line_try(line, server->messages_bad ? TINT_WARN : TINT_DIM, ", %s bad", format_count(b, server->messages_bad));
    line_try(line, TINT_NONE, "   longest work %s", format_time(c, server->longest_stretch_ns));
    if (line_try(line, TINT_NONE, "   chunks %s, %s", format_short(a, (double)server->chunk_count),
                 format_bytes(b, server->chunk_bytes)))
        line_try(line, TINT_DIM, " (%s raw)", format_bytes(c, server->raw_bytes));
}

/* ---- tables ---- */

static struct line *add_cursor(struct sheet *self, const Replay__LimiterInfo *limiter)
{
    struct line *line =
        sheet_cursor(self, TOP_TABLES, "  cursor", limiter->cursor, limiter->min_diff, limiter->max_diff);
    format_buffer at, size, ratio;
    if (!line && (line = sheet_row(self, TOP_TABLES, "  cursor")))
        line_put(line, TINT_NONE, "%s   min size %s", format_short(at, limiter->cursor),
                 format_bound(size, limiter->min_size));
    if (line)
        line_try(line, TINT_NONE, "   SPI %s", format_bound(ratio, limiter->samples_per_insert));
    return line;
}

static struct line *add_min_size(struct sheet *self, const Replay__LimiterInfo *limiter)
{
    struct line *line = sheet_row(self, TOP_TABLES, "  ratio");
    format_buffer size;
    if (line)
        line_put(line, TINT_NONE, "none   min size %s", format_bound(size, limiter->min_size));
    return line;
}

static void add_limiter(struct sheet *self, const Replay__LimiterInfo *limiter)
{
    struct line *line = ctl_has_ratio(limiter) ? add_cursor(self, limiter) : add_min_size(self, limiter);
    if (line)
        line_try(line, TINT_DIM, "   %s", limiter->kind);
}

static void add_table(struct sheet *self, const Replay__TableInfo *table, const Replay__Shards *shards)
{
    format_buffer a, b, c;
    char totals[48];
    struct line *line = sheet_line(self, TOP_TABLES);
    if (!line)
        return;
    line_put(line, TINT_BOLD, " %s", table->name);
    line_try(line, TINT_NONE, "   in %s   out %s", format_rate(a, table->insert_rate),
             format_rate(b, table->sample_rate));
    line_try(line, TINT_NONE, "   updates %s", format_rate(c, table->update_rate));
    line_try(line, TINT_DIM, "   %s / %s", table->sampler, table->remover);
    if (!(line = sheet_row(self, TOP_TABLES, "  items")))
        return;
    if (table->max_size) {
        line_bar(line, TINT_BAR, sheet_bar(self), (double)table->size / (double)table->max_size);
        line_put(line, TINT_NONE, " %s", format_percent(a, (double)table->size, (double)table->max_size));
        line_to(line, line->width + 2);
    }
    line_put(line, TINT_NONE, "%s of %s items", format_count(a, table->size),
             table->max_size ? format_count(b, table->max_size) : "any");
    if (top_missing(shards))
        line_put(line, TINT_BAD, " in %s", top_totals(shards, totals, sizeof totals));
    line_try(line, TINT_NONE, "   %s", format_bytes(c, table->bytes));
    line_try(line, TINT_DIM, "   age %s", format_seconds(a, table->mean_age_s));
    if (table->limiter)
        add_limiter(self, table->limiter);
}

/* A line for each shard of a table. */
static void add_parts(struct sheet *self, const Replay__Shards *shards, const char *table)
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
        struct line *line = sheet_row(self, TOP_TABLES, name);
        if (!line)
            return;
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

static void add_tables(struct sheet *self, const struct top_frame *frame, uint32_t most)
{
    const Replay__InfoReply *info = frame->info;
    const Replay__Shards *shards = frame->by_shard ? info->shards : NULL;
    uint32_t lines = TABLE_LINES + (shards ? (uint32_t)shards->n_shard : 0), fit = most / lines;
    bool all = info->n_tables <= fit;
    uint32_t shown = all ? (uint32_t)info->n_tables : fit > 1 ? fit - (most % lines ? 0 : 1) : 1;
    for (uint32_t i = 0; i < shown; i++) {
        sheet_line(self, TOP_BLANK);
        add_table(self, info->tables[i], info->shards);
        if (shards)
            add_parts(self, shards, info->tables[i]->name);
    }
    struct line *line = all ? NULL : sheet_line(self, TOP_TABLES);
    if (line)
        line_put(line, TINT_DIM, " ... and %zu more tables", info->n_tables - shown);
}

/* ---- those who wait ---- */

static void add_waiters(struct sheet *self, const Replay__WhyReply *why, uint32_t most)
{
    struct line *line;
    if (why->n_waits == 0) {
        if ((line = sheet_row(self, TOP_WAITERS, "waiting")))
            line_put(line, TINT_DIM, "nothing waits");
        return;
    }
    bool all = why->n_waits <= most;
    uint32_t shown = all ? (uint32_t)why->n_waits : most ? most - 1 : 0;
    for (uint32_t i = 0; i < shown; i++) {
        const Replay__Wait *wait = why->waits[i];
        format_buffer time;
        if (!(line = sheet_row(self, TOP_WAITERS, i ? "" : "waiting")))
            return;
        line_put(line, TINT_NONE, "%s %s for %s: %s", wait->who, wait->kind, format_time(time, wait->waited_ns),
                 wait->text);
    }
    line = all ? NULL : sheet_row(self, TOP_WAITERS, "");
    if (line)
        line_put(line, TINT_DIM, "... and %zu more that wait", why->n_waits - shown);
}

/* ---- all of it ---- */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Shares the lines that are left among tables, those who wait, and sessions. */
static void add_body(struct sheet *self, const struct top_frame *frame, struct look *look)
{
    uint32_t rows = self->style->rows ? self->style->rows : ANY_ROWS, room = rows > HEAD_LINES ? rows - HEAD_LINES : 0;
    uint32_t waits = frame->why && !frame->problem ? (uint32_t)frame->why->n_waits : 0;
    uint32_t waiters = least(waits ? waits : 1, WAITERS_LEAST) + 1;
    uint32_t sessions = frame->n_sessions ? least(frame->n_sessions + 1, SESSIONS_LEAST) + 1 : 0;
    uint32_t tables = room > waiters + sessions ? room - waiters - sessions : 0;
    add_tables(self, frame, tables > TABLE_LINES ? tables : TABLE_LINES);
    sheet_line(self, TOP_BLANK);
    if (frame->why && !frame->problem) {
        uint32_t rest = rows > self->n + 1 + sessions ? rows - self->n - 1 - sessions : 1;
        add_waiters(self, frame->why,
                    look->chosen ? least(rest, WAITERS_LEAST) : least(rest, waits > 8 ? rest / 2 + 1 : 8));
    }
    sheet_line(self, TOP_BLANK);
    top_add_sessions(self, frame, look, rows > self->n + 1 ? rows - self->n - 1 : 0);
}

static void add_verdict(struct sheet *self, const struct top_frame *frame)
{
    if (frame->problem)
        sheet_wrapped(self, TOP_PROBLEM, "problem", TINT_BAD, frame->problem, 2);
    if (!frame->verdict || frame->problem)
        return;
    sheet_wrapped(self, TOP_WAITS, "waits", TINT_NONE, frame->verdict, 2);
    if (frame->advice && frame->advice[0])
        sheet_wrapped(self, TOP_ADVICE, "advice", TINT_DIM, frame->advice, 1);
}

void top_render(struct text *out, const struct top_frame *frame, const struct sheet_style *style, struct look *look)
{
    struct sheet_style fit = sheet_fit(style);
    struct sheet sheet = {.style = &fit};
    add_head(&sheet, frame, look);
    if (look->help) {
        sheet_line(&sheet, TOP_BLANK);
        look_add_help(&sheet, TOP_HEAD, look, "sessions");
    } else if (!frame->info || !frame->info->server) {
        struct line *line = sheet_line(&sheet, TOP_PROBLEM);
        if (line)
            line_put(line, TINT_BAD, " %s", frame->problem ? frame->problem : "waiting for the broker");
    } else {
        add_verdict(&sheet, frame);
        add_memory(&sheet, frame->info->server);
        add_messages(&sheet, frame);
        add_body(&sheet, frame, look);
    }
    look_add_footer(&sheet, TOP_FOOTER, look);
    sheet_write(&sheet, out);
}
