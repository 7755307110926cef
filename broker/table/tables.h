/* All tables of a broker, and what they share: where chunks and layouts are kept, the budget of memory, the ordinals in
 * keys, and who has to be looked at by the pump. */
#ifndef BROKER_TABLES_H
#define BROKER_TABLES_H

#include "broker/table/ordinals.h"
#include "broker/table/plugin.h"
#include "broker/table/table.h"

struct tables {
    struct table *list;
    uint32_t n;
    uint32_t next_account;   /* see struct contents */
    struct table *dirty;     /* tables that the pump has to look at */
    bool waits_for_room;     /* inserts of some table do: room.h */
    uint64_t storage_budget; /* bytes of chunks that tables may have: memory_limit less the ingest budget */
    struct ordinals ordinals;
    struct plugins plugins;
};

#endif
