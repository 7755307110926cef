#include "broker/service/why.h"

#include <stdio.h>

#include "broker/journal/stream.h"
#include "broker/service/service.h"
#include "broker/session/flow.h"
#include "broker/session/pump.h"
#include "broker/session/session.h"
#include "broker/table/table.h"
#include "proto/base/format.h"

struct why {
    const struct service *service;
    why_fn *fn;
    void *ctx;
};

static bool add_requests(const struct why *self)
{
    for (const struct wait *wait = self->service->peers->waits.first; wait; wait = wait->next) {
        struct wait_text why = {0};
        char who[64];
        wait->ops->explain(wait->ctx, wait, &why);
        snprintf(who, sizeof who, "client %016llx", (unsigned long long)wait->client);
        if (!self->fn(self->ctx, &(struct why_line){.who = who,
                                                    .kind = wait->ops->kind,
                                                    .table = why.table,
                                                    .text = why.text,
                                                    .count = why.count,
                                                    .got = why.got,
                                                    .since_ns = wait->since_ns}))
            return false;
    }
    return true;
}

static bool add_watchers(const struct why *self)
{
    const struct watchers *watchers = &self->service->samples->watchers;
    for (uint32_t i = 0; i < watchers->n; i++) {
        const struct watcher *watcher = &watchers->list[i];
        char who[64], text[400];
        if (!watcher_waits(watcher, self->service->loop->now_ns))
            continue;
        snprintf(who, sizeof who, "client %016llx", (unsigned long long)watcher->client);
        watcher_explain(watcher, text, sizeof text);
        if (!self->fn(self->ctx, &(struct why_line){.who = who,
                                                    .kind = "sample",
                                                    .table = watcher->table->name,
                                                    .text = text,
                                                    .count = watcher->wanted,
                                                    .since_ns = watcher->since_ns,
                                                    .all_shards = true}))
            return false;
    }
    return true;
}

/* Adds a line for each session whose items wait for a table. */
static bool add_flows(const struct why *self, const struct table *table)
{
    const struct flow *flow = table->blocked;
    if (!flow)
        return true;
    do {
        char why[256] = "", text[400];
        pump_explain_insert(table, why, sizeof why);
        snprintf(text, sizeof text, "table '%s': %u items wait; %s", table->name, flow->count,
                 why[0] ? why : "about to be inserted");
        if (!self->fn(self->ctx, &(struct why_line){.who = flow->session->name,
                                                    .kind = "insert",
                                                    .table = table->name,
                                                    .text = text,
                                                    .count = flow->count,
                                                    .since_ns = flow->blocked_ns}))
            return false;
        flow = flow->next;
    } while (flow != table->blocked);
    return true;
}

/* Adds a line for each writer that waits for its data to arrive. */
static bool add_transits(const struct why *self)
{
    for (const struct session *session = self->service->sessions->list; session; session = session->next) {
        char text[256];
        if (!transit_holds(session))
            continue;
        transit_explain(session, text, sizeof text);
        if (!self->fn(self->ctx, &(struct why_line){.who = session->name,
                                                    .kind = "network",
                                                    .table = "",
                                                    .text = text,
                                                    .count = session->transit.messages,
                                                    .since_ns = session->transit.since_ns,
                                                    .rate = session->transit.rate}))
            return false;
    }
    return true;
}

/* Adds a line about evictions: nobody waits for them, but a table may have fewer items than a sampler waits for. */
static bool add_evicted(const struct why *self, const struct table *table)
{
    char text[400];
    format_buffer held;
    if (!table->stats.evicted_for_memory)
        return true;
    const struct table *holder = room_holder(table->tables);
    snprintf(text, sizeof text,
             "table '%s': %llu items were evicted because memory was full; it has %u where max_size is %lld, and table "
             "'%s' holds most, %s: raise memory_limit, or lower max_size",
             table->name, (unsigned long long)table->stats.evicted_for_memory, table->in.size,
             (long long)table->config->max_size, holder->name, format_bytes(held, room_held(holder)));
    return self->fn(self->ctx, &(struct why_line){.who = "broker",
                                                  .kind = "memory",
                                                  .table = table->name,
                                                  .text = text,
                                                  .count = table->stats.evicted_for_memory,
                                                  .since_ns = table->evicted_for_memory_ns});
}

static bool add_journal(const struct why *self)
{
    const struct service *service = self->service;
    const struct stream *stream = service->stream;
    const struct commit *commit = &service->peers->commit;
    char why[256] = "the disk is slow", text[400];
    if (!stream || (!stream_is_full(stream, why, sizeof why) && !commit_is_stuck(service->peers)))
        return true;
    snprintf(text, sizeof text, "%s: %llu messages to clients wait; %s", stream->folder.path,
             (unsigned long long)commit->count, why);
    int64_t since_ns = service->loop->now_ns;
    if (stream->trouble[0])
        since_ns = stream->trouble_ns;
    else if (stream->full)
        since_ns = stream->full_ns;
    else if (commit->first)
        since_ns = commit->oldest_ns;
    return self->fn(self->ctx, &(struct why_line){.who = "broker",
                                                  .kind = "journal",
                                                  .table = "",
                                                  .text = text,
                                                  .count = commit->count,
                                                  .since_ns = since_ns});
}

void why_each(const struct service *service, why_fn *fn, void *ctx)
{
    const struct why why = {service, fn, ctx};
    bool more = add_journal(&why);
    for (uint32_t i = 0; more && i < service->tables->n; i++)
        more = add_flows(&why, &service->tables->list[i]);
    more = more && add_transits(&why) && add_requests(&why) && add_watchers(&why);
    for (uint32_t i = 0; more && i < service->tables->n; i++)
        more = add_evicted(&why, &service->tables->list[i]);
}
