/* Update, delete and reset. */
#include <stdio.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/session.h"
#include "proto/error.h"

#define AHEAD 8u

static rp_status read_keys(struct broker *broker, const struct request *request, bool priorities, struct wire_keys *ask,
                           struct table **table, rp_error *err)
{
    RP_TRY(wire_read_keys(request->head.data, request->head.size, priorities, ask, err));
    *table = broker_table(broker, ask->table.data, ask->table.size);
    if (!*table)
        return err_set(err, RP_NOT_FOUND, "no table '%.*s'", (int)(ask->table.size < 64 ? ask->table.size : 64),
                       ask->table.data);
    if (ask->key.n > BROKER_MAX_BATCH)
        return err_set(err, RP_INVALID_ARGUMENT, "%u keys in one request, at most %u are taken: split them", ask->key.n,
                       BROKER_MAX_BATCH);
    return RP_OK;
}

static void reply_change(struct broker *broker, struct request *request, const Replay__ChangeReply *reply,
                         const char *text)
{
    request_reply(broker, request, reply->refused ? RP_INVALID_ARGUMENT : RP_OK, text, 20, &reply->base, NULL, 0);
}

rp_status req_update(struct broker *broker, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(read_keys(broker, request, true, &ask, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    char text[300] = "";
    /* One key of a batch may stand several times: the last value wins, as they are applied in order. */
    for (uint32_t i = 0; i < ask.key.n; i++) {
        if (i + AHEAD < ask.key.n)
            keymap_prefetch(table->in.keys, pb_u64(&ask.key, i + AHEAD));
        uint64_t key = pb_u64(&ask.key, i);
        double priority = pb_f64(&ask.priority, i);
        rp_error why = {0};
        uint32_t slot = table_find(table, key);
        if (slot == KEYMAP_NONE) {
            reply.missing++;
        } else if (table_check_priority(table, priority, &why) != RP_OK) {
            if (reply.refused++ == 0)
                snprintf(text, sizeof text, "key %llu: %.240s", (unsigned long long)key, why.text);
        } else {
            table_update(table, slot, priority);
            reply.applied++;
        }
    }
    table->stats.updates_missing += reply.missing;
    reply_change(broker, request, &reply, text);
    return RP_OK;
}

rp_status req_delete(struct broker *broker, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(read_keys(broker, request, false, &ask, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    for (uint32_t i = 0; i < ask.key.n; i++) {
        if (i + AHEAD < ask.key.n)
            keymap_prefetch(table->in.keys, pb_u64(&ask.key, i + AHEAD));
        uint32_t slot = table_find(table, pb_u64(&ask.key, i));
        if (slot == KEYMAP_NONE) {
            reply.missing++;
        } else {
            table_remove(table, slot);
            reply.applied++;
        }
    }
    pump_mark(table);
    reply_change(broker, request, &reply, "");
    return RP_OK;
}

rp_status req_reset(struct broker *broker, struct request *request, rp_error *err)
{
    const Replay__Reset *ask = (const Replay__Reset *)request->body;
    struct table *table = broker_table(broker, ask->table, strlen(ask->table));
    if (!table)
        return err_set(err, RP_NOT_FOUND, "no table '%.64s'", ask->table);
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    reply.applied = table->in.size;
    RP_TRY(table_reset(table, err));
    log_line(LEVEL_INFO, "B0201", "table reset", "table=%s items=%llu", table->name, (unsigned long long)reply.applied);
    broker_announce(broker, "table %s reset", table->name);
    pump_mark(table);
    reply_change(broker, request, &reply, "");
    return RP_OK;
}
