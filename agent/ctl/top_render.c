/* See top.h. Tables come first; the sentences about who waits take the rest of the screen, at least WAITS_LEAST lines. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl/top.h"

#define BAR 22u
#define WAITS_LEAST 4u

struct top_lines {
    struct text *out;
    uint32_t columns; /* width of the screen; 0: any */
    uint32_t left;    /* lines that still fit */
};

static void put_line(struct top_lines *self, const char *format, ...) RP_PRINTF(2, 3);

static void put_line(struct top_lines *self, const char *format, ...)
{
    char raw[1024], clean[1024];
    va_list args;
    if (self->left == 0)
        return;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    format_clean(clean, sizeof clean, raw);
    size_t bytes = self->columns ? format_cut(clean, self->columns) : strlen(clean);
    text_add(self->out, "%.*s\n", (int)bytes, clean);
    self->left--;
}

static void put_server(struct top_lines *self, const struct top_frame *frame)
{
    const Replay__ServerInfo *server = frame->info->server;
    format_buffer a, b, c, d;
    char bar[BAR + 4];
    put_line(self, "replay-broker %s  %s  up %s  %s", server->release, frame->endpoint,
             format_time(a, server->uptime_ns), frame->clock);
    if (server->memory_limit)
        put_line(self, "memory %s %s of %s   sessions %s   waiting %s",
                 format_bar(bar, sizeof bar, BAR, (double)server->memory_bytes / (double)server->memory_limit),
                 format_bytes(a, server->memory_bytes), format_bytes(b, server->memory_limit),
                 format_count(c, server->session_count), format_count(d, server->waiter_count));
    else
        put_line(self, "memory %s, no limit   sessions %s   waiting %s", format_bytes(a, server->memory_bytes),
                 format_count(c, server->session_count), format_count(d, server->waiter_count));
    put_line(self, "chunks %s, %s (%s raw)   messages %s in, %s bad   longest work %s",
             format_short(a, (double)server->chunk_count), format_bytes(b, server->chunk_bytes),
             format_bytes(c, server->raw_bytes), frame->messages_rate >= 0 ? format_rate(d, frame->messages_rate) : "-",
             format_count((format_buffer){0}, server->messages_bad),
             format_time((format_buffer){0}, server->longest_stretch_ns));
}

static bool bounded(double value)
{
    return isfinite(value) && fabs(value) < 1e300;
}

static void put_limiter(struct top_lines *self, const Replay__LimiterInfo *limiter)
{
    format_buffer a, b, c, d;
    char bar[BAR + 4];
    bool low = bounded(limiter->min_diff), high = bounded(limiter->max_diff);
    if (low && high) {
        double share = (limiter->cursor - limiter->min_diff) / (limiter->max_diff - limiter->min_diff);
        put_line(self, "  cursor %s %s in %s..%s  %s, spi %s", format_place(bar, sizeof bar, BAR, share),
                 format_short(a, limiter->cursor), format_short(b, limiter->min_diff),
                 format_short(c, limiter->max_diff), limiter->kind, format_bound(d, limiter->samples_per_insert));
    } else {
        put_line(self, "  cursor %s  min size %s, samples per insert %s (%s)", format_short(a, limiter->cursor),
                 format_bound(b, limiter->min_size), format_bound(c, limiter->samples_per_insert), limiter->kind);
    }
}

static void put_table(struct top_lines *self, const Replay__TableInfo *table)
{
    format_buffer a, b, c, d;
    char bar[BAR + 4];
    double share = table->max_size ? (double)table->size / (double)table->max_size : 0;
    put_line(self, "%s  (%s / %s)  %s of %s items, %s", table->name, table->sampler, table->remover,
             format_count(a, table->size), table->max_size ? format_count(b, table->max_size) : "any",
             format_bytes(c, table->bytes));
    put_line(self, "  fill   %s %-5s in %s  out %s  upd %s  age %s", format_bar(bar, sizeof bar, BAR, share),
             format_percent(a, (double)table->size, (double)table->max_size), format_rate(b, table->insert_rate),
             format_rate(c, table->sample_rate), format_rate(d, table->update_rate),
             format_seconds((format_buffer){0}, table->mean_age_s));
    if (table->limiter)
        put_limiter(self, table->limiter);
}

static void put_waits(struct top_lines *self, const Replay__WhyReply *why)
{
    if (why->n_waits == 0) {
        put_line(self, "nothing waits");
        return;
    }
    for (size_t i = 0; i < why->n_waits && self->left; i++) {
        const Replay__Wait *wait = why->waits[i];
        format_buffer time;
        if (self->left == 1 && i + 1 < why->n_waits)
            put_line(self, "... and %zu more that wait", why->n_waits - i);
        else
            put_line(self, "%s %s for %s: %s", wait->who, wait->kind, format_time(time, wait->waited_ns), wait->text);
    }
}

void top_render(struct text *out, const struct top_frame *frame, uint32_t columns, uint32_t rows)
{
    struct top_lines lines = {.out = out, .columns = columns, .left = rows ? rows : UINT32_MAX};
    if (!frame->info || !frame->info->server) {
        put_line(&lines, "%s  %s", frame->endpoint, frame->clock);
        put_line(&lines, "%s", frame->problem ? frame->problem : "waiting for the broker");
        return;
    }
    put_server(&lines, frame);
    if (frame->verdict && !frame->problem)
        put_line(&lines, "%s %s", frame->verdict, frame->advice ? frame->advice : "");
    for (size_t i = 0; i < frame->info->n_tables; i++) {
        /* A table takes four lines; keep room for what waits. */
        if (lines.left < 4 + WAITS_LEAST) {
            put_line(&lines, "... and %zu more tables", frame->info->n_tables - i);
            break;
        }
        put_line(&lines, "%s", "");
        put_table(&lines, frame->info->tables[i]);
    }
    put_line(&lines, "%s", "");
    if (frame->problem)
        put_line(&lines, "%s", frame->problem);
    else if (frame->why)
        put_waits(&lines, frame->why);
}
