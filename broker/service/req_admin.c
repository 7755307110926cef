/* List items page by page; show and change a limiter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "broker/peer/sockets.h"
#include "broker/service/service.h"
#include "broker/session/limiter_info.h"
#include "proto/base/error.h"

/* Most slots that a page looks at, however few items they hold. */
#define LIST_SLOTS 4096u
#define LIST_ITEMS 1000u

rp_status req_list(struct service *service, struct request *request, rp_error *err)
{
    const Replay__List *ask = (const Replay__List *)request->body;
    struct table *table = tables_find(service->tables, ask->table, strlen(ask->table));
    if (!table)
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    uint32_t most = ask->limit && ask->limit < LIST_ITEMS ? ask->limit : LIST_ITEMS;
    Replay__ItemInfo *infos = calloc(most, sizeof *infos), **list = calloc(most, sizeof(*list));
    Replay__ListReply reply = REPLAY__LIST_REPLY__INIT;
    reply.items = list;
    uint64_t slot = ask->cursor;
    for (uint32_t seen = 0; infos && list && slot < table->in.high && seen < LIST_SLOTS && reply.n_items < most;
         slot++, seen++) {
        const struct item *item = &table->in.items[slot];
        if (!item->span.n)
            continue;
        rp_item_view view;
        table_view(table, (uint32_t)slot, &view);
        Replay__ItemInfo *info = &infos[reply.n_items];
        replay__item_info__init(info);
        info->key = view.key;
        info->priority = view.priority;
        info->times_sampled = view.times_sampled;
        info->age_ns = (uint64_t)view.age_ns;
        info->policy = view.policy;
        info->step = view.step;
        info->session = view.session;
        info->length = view.length;
        info->chunks = item->span.n;
        info->bytes = view.bytes;
        info->episode = view.episode;
        list[reply.n_items++] = info;
    }
    reply.cursor = slot < table->in.high ? slot : 0;
    if (infos && list)
        request_ok(service->peers, request, REPLAY__REPLY__BODY_LIST, &reply.base);
    free(infos);
    free(list);
    return request->answered ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for a list of %u items", most);
}

/* Reads a value of the request. An absent value is NAN from here on, so NaN is refused if the client sends it. */
static rp_status read_value(const char *name, bool present, double value, double *out, rp_error *err)
{
    if (present && isnan(value))
        return err_set(err, RP_INVALID_ARGUMENT, "%s is NaN; write a number, or leave it out to keep its value", name);
    *out = present ? value : NAN;
    return RP_OK;
}

static rp_status read_change(const Replay__SetLimiter *ask, struct limiter_change *out, rp_error *err)
{
    RP_TRY(read_value("samples_per_insert", ask->has_samples_per_insert_case, ask->samples_per_insert,
                      &out->samples_per_insert, err));
    RP_TRY(read_value("min_size", ask->has_min_size_case, ask->min_size, &out->min_size, err));
    RP_TRY(read_value("min_diff", ask->has_min_diff_case, ask->min_diff, &out->min_diff, err));
    RP_TRY(read_value("max_diff", ask->has_max_diff_case, ask->max_diff, &out->max_diff, err));
    return read_value("error_buffer", ask->has_error_buffer_case, ask->error_buffer, &out->error_buffer, err);
}

rp_status req_set_limiter(struct service *service, struct request *request, rp_error *err)
{
    const Replay__SetLimiter *ask = (const Replay__SetLimiter *)request->body;
    struct table *table = tables_find(service->tables, ask->table, strlen(ask->table));
    if (!table)
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    struct limiter_change change;
    RP_TRY(read_change(ask, &change, err));
    struct limiter trial = table->limiter;
    RP_TRY(limiter_change(&trial, &change, err));
    if (trial.min_size > (double)table->config->max_size)
        return err_set(err, RP_INVALID_ARGUMENT, "min_size %.0f can never be reached: max_size of table '%s' is %lld",
                       trial.min_size, table->name, (long long)table->config->max_size);
    table->limiter = trial;
    EFFECT(service->loop, limiter, table);
    char who[IDENTITY_QUOTED];
    log_line(LEVEL_INFO, "B0202", "limiter changed",
             "table=%s samples_per_insert=%g min_size=%g min_diff=%g max_diff=%g key=%s", table->name,
             trial.samples_per_insert, trial.min_size, trial.min_diff, trial.max_diff,
             identity_quoted(request->identity, who));
    sockets_announce(service->peers, "table %s limiter", table->name);
    table_mark(table);
    struct limiter_info info;
    limiter_info(table, &info);
    request_ok(service->peers, request, REPLAY__REPLY__BODY_LIMITER, &info.body.base);
    return RP_OK;
}
