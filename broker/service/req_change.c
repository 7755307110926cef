/* Update, delete and reset. */
#include <stdio.h>
#include <string.h>

#include "broker/peer/sockets.h"
#include "broker/service/service.h"
#include "proto/base/error.h"

/* Keys that are looked up at a time, so that their cache misses overlap. */
#define AT_ONCE 64u

/* Looks up the keys of the request from number `first` on, at most AT_ONCE. Returns how many. */
static uint32_t look_up(const struct table *table, const struct wire_keys *ask, uint32_t first, uint64_t *keys,
                        uint32_t *slots)
{
    uint32_t n = ask->key.n - first < AT_ONCE ? ask->key.n - first : AT_ONCE;
    for (uint32_t i = 0; i < n; i++)
        keys[i] = pb_u64(&ask->key, first + i);
    keymap_get_many(table->in.keys, n, keys, slots);
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] != KEYMAP_NONE) {
            __builtin_prefetch(&table->in.items[slots[i]], 1);
            if (table->sampler_ops->prefetch)
                table->sampler_ops->prefetch(table->in.sampler, slots[i]);
        }
    return n;
}

/* Prefetches what a removal touches besides the item. Inlined always: see prefetch_picks. */
static inline __attribute__((always_inline)) void prefetch_chunks(const struct table *table, const uint32_t *slots,
                                                                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] != KEYMAP_NONE)
            __builtin_prefetch(span_chunks(&table->in.items[slots[i]].span)[0], 1);
}

static rp_status read_keys(struct service *service, const struct request *request, bool priorities,
                           struct wire_keys *ask, struct table **table, rp_error *err)
{
    RP_TRY(wire_read_keys(request->head.data, request->head.size, priorities, ask, err));
    *table = tables_find(service->tables, ask->table.data, ask->table.size);
    if (!*table)
        return err_set(err, RP_NOT_FOUND, "no table '%.*s'", (int)(ask->table.size < 64 ? ask->table.size : 64),
                       ask->table.data);
    if (ask->key.n > REQUEST_MAX_KEYS)
        return err_set(err, RP_INVALID_ARGUMENT, "%u keys in one request, at most %u are taken: split them", ask->key.n,
                       REQUEST_MAX_KEYS);
    return RP_OK;
}

static void reply_change(struct service *service, struct request *request, const Replay__ChangeReply *reply,
                         const char *text)
{
    rp_status status = reply->refused ? RP_INVALID_ARGUMENT : RP_OK;
    request_reply(service->peers, request,
                  &(struct answer){status, text, REPLAY__REPLY__BODY_CHANGE, &reply->base, NULL, 0});
}

rp_status req_update(struct service *service, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(read_keys(service, request, true, &ask, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    char text[300] = "";
    uint64_t keys[AT_ONCE];
    uint32_t slots[AT_ONCE];
    /* A key may occur several times in a batch: values are applied in order, so the last one wins. */
    for (uint32_t first = 0, n; first < ask.key.n; first += n) {
        n = look_up(table, &ask, first, keys, slots);
        for (uint32_t i = 0; i < n; i++) {
            double priority = pb_f64(&ask.priority, first + i);
            rp_error why; /* filled if it is needed: clearing it for each key would cost more than the update */
            /* Before the key: whether a priority is allowed does not depend on what was evicted meanwhile. */
            if (table_check_priority(table, priority, &why) != RP_OK) {
                if (reply.refused++ == 0)
                    snprintf(text, sizeof text, "key %llu: %.240s", (unsigned long long)keys[i], why.text);
            } else if (slots[i] == KEYMAP_NONE) {
                reply.missing++;
            } else {
                table_update(table, slots[i], priority);
                reply.applied++;
            }
        }
    }
    table->stats.updates_missing += reply.missing;
    reply_change(service, request, &reply, text);
    return RP_OK;
}

rp_status req_delete(struct service *service, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(read_keys(service, request, false, &ask, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    uint64_t keys[AT_ONCE];
    uint32_t slots[AT_ONCE], n;
    for (uint32_t first = 0; first < ask.key.n; first += n) {
        n = look_up(table, &ask, first, keys, slots);
        prefetch_chunks(table, slots, n);
        for (uint32_t i = 0; i < n; i++) {
            /* The second occurrence of a key finds no item. */
            if (slots[i] == KEYMAP_NONE || table_find(table, keys[i]) != slots[i]) {
                reply.missing++;
            } else {
                table_remove(table, slots[i]);
                reply.applied++;
            }
        }
    }
    uint32_t held;
    char who[IDENTITY_QUOTED];
    if (reply.applied && log_allow(&service->delete_log, 5, service->loop->now_ns, &held))
        log_line(LEVEL_INFO, "B0214", "items deleted", "table=%s items=%llu key=%s held_back=%u", table->name,
                 (unsigned long long)reply.applied, identity_quoted(request->identity, who), held);
    table_mark(table);
    reply_change(service, request, &reply, "");
    return RP_OK;
}

rp_status req_reset(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Reset *ask = (const Replay__Reset *)request->body;
    struct table *table = tables_find(service->tables, ask->table, strlen(ask->table));
    if (!table)
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    reply.applied = table->in.size;
    RP_TRY(table_reset(table, err));
    char who[IDENTITY_QUOTED];
    log_line(LEVEL_INFO, "B0201", "table reset", "table=%s items=%llu key=%s", table->name,
             (unsigned long long)reply.applied, identity_quoted(request->identity, who));
    sockets_announce(service->peers, "table %s reset", table->name);
    table_mark(table);
    reply_change(service, request, &reply, "");
    return RP_OK;
}
