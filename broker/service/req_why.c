/* Why: what stands still in the broker, and what it waits for. */
#include <stdio.h>
#include <string.h>

#include "broker/journal/stream.h"
#include "broker/service/arena.h"
#include "broker/service/service.h"
#include "broker/session/flow.h"
#include "broker/session/pump.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"

#define WAITS_MOST 1000u

struct why {
    const struct service *service;
    struct arena arena;
    Replay__WhyReply reply; /* waits is an array of WAITS_MOST */
};

/* What waits, at which table or "", and for what. Texts are copied. */
struct why_line {
    const char *who, *kind, *table, *text;
    uint64_t count;
    int64_t since_ns;
};

/* Adds a line. NULL: no memory, or there are WAITS_MOST lines. */
static Replay__Wait *add_line(struct why *self, const struct why_line *line)
{
    if (self->reply.n_waits == WAITS_MOST)
        return NULL;
    Replay__Wait *info = arena_take(&self->arena, 1, sizeof *info);
    char *strings[3];
    const char *const from[3] = {line->who, line->table, line->text};
    for (uint32_t i = 0; i < 3; i++) {
        strings[i] = arena_take(&self->arena, 1, strlen(from[i]) + 1);
        if (strings[i])
            utf8_clean(strcpy(strings[i], from[i]), strlen(from[i]));
    }
    if (self->arena.failed)
        return NULL;
    replay__wait__init(info);
    info->who = strings[0];
    info->kind = arena_borrow(line->kind);
    info->table = strings[1];
    info->text = strings[2];
    info->count = line->count;
    info->waited_ns = (uint64_t)(self->service->loop->now_ns - line->since_ns);
    self->reply.waits[self->reply.n_waits++] = info;
    return info;
}

static void add_requests(struct why *self)
{
    for (const struct wait *wait = self->service->peers->waits.first; wait; wait = wait->next) {
        struct wait_text why = {0};
        char who[64];
        wait->ops->explain(wait->ctx, wait, &why);
        snprintf(who, sizeof who, "client %016llx", (unsigned long long)wait->client);
        Replay__Wait *info = add_line(self, &(struct why_line){.who = who,
                                                               .kind = wait->ops->kind,
                                                               .table = why.table,
                                                               .text = why.text,
                                                               .count = why.count,
                                                               .since_ns = wait->since_ns});
        if (!info)
            return;
        info->got = why.got;
    }
}

/* Adds a line for each session whose items wait for a table. */
static void add_flows(struct why *self, const struct table *table)
{
    const struct flow *flow = table->blocked;
    if (!flow)
        return;
    do {
        char why[256] = "", text[400];
        pump_explain_insert(table, why, sizeof why);
        snprintf(text, sizeof text, "table '%s': %u items wait; %s", table->name, flow->count,
                 why[0] ? why : "about to be inserted");
        struct why_line line = {flow->session->name, "insert", table->name, text, flow->count, flow->blocked_ns};
        if (!add_line(self, &line))
            return;
        flow = flow->next;
    } while (flow != table->blocked);
}

/* Adds a line about evictions: nobody waits for them, but a table may have fewer items than a sampler waits for. */
static void add_evicted(struct why *self, const struct table *table)
{
    char text[400];
    const struct table_stats *stats = &table->stats;
    if (!stats->evicted_for_memory)
        return;
    snprintf(text, sizeof text,
             "table '%s': %llu items were evicted because memory was full; it has %u where max_size is %lld: raise "
             "memory_limit, or lower max_size",
             table->name, (unsigned long long)stats->evicted_for_memory, table->in.size,
             (long long)table->config->max_size);
    add_line(self, &(struct why_line){"broker", "memory", table->name, text, stats->evicted_for_memory,
                                      stats->evicted_for_memory_ns});
}

static void add_journal(struct why *self)
{
    const struct service *service = self->service;
    const struct stream *stream = service->stream;
    const struct commit *commit = &service->peers->commit;
    char why[256] = "the disk is slow", text[400];
    if (!stream || (!stream_is_full(stream, why, sizeof why) && !commit_is_stuck(service->peers)))
        return;
    snprintf(text, sizeof text, "%s: %llu messages to clients wait; %s", stream->folder.path,
             (unsigned long long)commit->count, why);
    int64_t since_ns = service->loop->now_ns;
    if (stream->trouble[0])
        since_ns = stream->trouble_ns;
    else if (stream->full)
        since_ns = stream->full_ns;
    else if (commit->first)
        since_ns = commit->oldest_ns;
    add_line(self, &(struct why_line){"broker", "journal", "", text, commit->count, since_ns});
}

rp_status req_why(struct service *service, struct request *request, rp_error *err)
{
    struct why why = {.service = service};
    replay__why_reply__init(&why.reply);
    why.reply.waits = arena_take(&why.arena, WAITS_MOST, sizeof(*why.reply.waits));
    if (why.reply.waits) {
        add_journal(&why);
        for (uint32_t i = 0; i < service->tables->n; i++)
            add_flows(&why, &service->tables->list[i]);
        add_requests(&why);
        for (uint32_t i = 0; i < service->tables->n; i++)
            add_evicted(&why, &service->tables->list[i]);
    }
    if (!why.arena.failed)
        request_ok(service->peers, request, REPLAY__REPLY__BODY_WHY, &why.reply.base);
    arena_fini(&why.arena);
    return request->answered ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the answer");
}
