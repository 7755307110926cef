/* The sessions of a broker as a list, which keys sort and scroll. */
#include <stdio.h>
#include <string.h>

#include "agent/ctl/top_impl.h"

/* A shard numbers its sessions with this many bits. */
#define SHARD_SHIFT 20u

void top_session_fill(struct top_session *out, const Replay__SessionInfo *info)
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

static void cell_name(char *out, const void *row)
{
    const struct top_session *s = row;
    snprintf(out, FORMAT_SIZE, "%.40s", s->name);
}

static void cell_rate(char *out, const void *row)
{
    const struct top_session *s = row;
    if (s->rate >= 0)
        format_rate(out, s->rate);
    else
        snprintf(out, FORMAT_SIZE, "-");
}

static void cell_waiting(char *out, const void *row)
{
    const struct top_session *s = row;
    format_short(out, (double)s->waiting);
}

static void cell_memory(char *out, const void *row)
{
    const struct top_session *s = row;
    format_bytes(out, s->memory);
}

static void cell_credit(char *out, const void *row)
{
    const struct top_session *s = row;
    format_short(out, (double)s->credit);
}

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

static int by_rate(const void *a, const void *b)
{
    const struct top_session *p = a, *q = b;
    return p->rate != q->rate ? (p->rate < q->rate) - (p->rate > q->rate) : by_name(a, b);
}

static int by_waiting(const void *a, const void *b)
{
    const struct top_session *p = a, *q = b;
    return p->waiting != q->waiting ? (p->waiting < q->waiting) - (p->waiting > q->waiting) : by_name(a, b);
}

static int by_memory(const void *a, const void *b)
{
    const struct top_session *p = a, *q = b;
    return p->memory != q->memory ? (p->memory < q->memory) - (p->memory > q->memory) : by_name(a, b);
}

static const struct list_column session_columns[] = {
    {"session", 18, true, cell_name, by_name},       {"rate", 8, false, cell_rate, by_rate},
    {"waiting", 8, false, cell_waiting, by_waiting}, {"memory", 9, false, cell_memory, by_memory},
    {"credit", 7, false, cell_credit, NULL},         {"state", 20, true, cell_state, NULL},
};

void top_add_sessions(struct sheet *sheet, const struct top_frame *frame, struct look *look, uint32_t most)
{
    const struct list list = {.columns = session_columns,
                              .n_columns = sizeof session_columns / sizeof *session_columns,
                              .rows = frame->sessions,
                              .n_rows = frame->n_sessions,
                              .size = sizeof *frame->sessions};
    list_add(sheet, TOP_SESSIONS, &list, look, most);
}
