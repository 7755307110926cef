#include "broker/table/tables.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"

rp_status tables_init(struct tables *self, rp_error *err)
{
    self->storage_budget = (uint64_t)self->config->memory_limit - (uint64_t)config_ingest_budget(self->config);
    if (!ordinals_init(&self->ordinals, config_shards(self->config) > 1 ? (uint32_t)self->config->shard : 0))
        return err_set(err, RP_NO_MEMORY, "no memory for the ordinals of sessions");
    return plugins_load(&self->plugins, &self->config->plugins, err);
}

rp_status tables_create(struct tables *self, struct rng *seeds, rp_error *err)
{
    uint32_t n = self->config->tables.count;
    self->list = calloc(n, sizeof *self->list);
    if (!self->list)
        return err_set(err, RP_NO_MEMORY, "no memory for %u tables", n);
    for (uint32_t i = 0; i < n; i++) {
        rp_status status = table_init(&self->list[i], self, i, rng_next(seeds), err);
        self->n = i + 1;
        if (status != RP_OK) {
            err_prefix(err, "table '%s'", self->list[i].config->name);
            return status;
        }
    }
    return RP_OK;
}

static void soft_timer(struct timer *timer, void *ctx)
{
    struct tables *self = ctx;
    int64_t now_ns = self->loop->now_ns, next_ns = INT64_MAX;
    for (uint32_t i = 0; i < self->n; i++) {
        struct table *table = &self->list[i];
        if (!table->config->soft_capacity)
            continue;
        if (now_ns >= table->next_removal_ns) {
            table->next_removal_ns = now_ns + table->config->remove_every_ns;
            table_remove_surplus(table);
        }
        if (table->next_removal_ns < next_ns)
            next_ns = table->next_removal_ns;
    }
    if (next_ns != INT64_MAX)
        timer_set(&self->loop->timers, timer, next_ns);
}

void tables_start(struct tables *self)
{
    self->soft = (struct timer){.fire = soft_timer, .ctx = self};
    soft_timer(&self->soft, self);
}

void tables_tick(struct tables *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        table_tick(&self->list[i], self->loop->now_ns);
        table_mark(&self->list[i]);
    }
}

void tables_fini(struct tables *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        table_fini(&self->list[i]);
    free(self->list);
    self->list = NULL;
    self->n = 0;
    ordinals_fini(&self->ordinals);
    plugins_fini(&self->plugins);
}

struct table *tables_find(const struct tables *self, const char *name, size_t size)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (strlen(self->list[i].name) == size && memcmp(self->list[i].name, name, size) == 0)
            return &self->list[i];
    return NULL;
}
