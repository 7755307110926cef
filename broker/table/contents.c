#include "broker/table/contents.h"

#include "broker/table/table.h"
#include "proto/base/error.h"

static size_t items_bytes(const struct table *table)
{
    return (size_t)table->capacity * sizeof(struct item);
}

static uint64_t slots_memory(const struct contents *self)
{
    return (uint64_t)self->high * self->arrays.slot_bytes;
}

uint64_t contents_memory(const struct contents *self)
{
    return slots_memory(self) + keymap_bytes(self->keys) + keymap_bytes(self->episodes.items);
}

void contents_uncount_slots(struct contents *self, struct store *store)
{
    store->overhead -= slots_memory(self);
    self->arrays.slot_bytes = 0;
}

bool contents_fini_step(struct contents *self, const struct table *table)
{
    if (self->keys) {
        keymap_destroy(&self->keys);
    } else if (self->episodes.items) {
        episodes_fini(&self->episodes);
    } else if (self->marks) {
        marks_destroy(&self->marks);
    } else if (self->sampler) {
        table->sampler_ops->destroy(self->sampler);
        self->sampler = NULL;
    } else if (self->remover) {
        table->remover_ops->destroy(self->remover);
        self->remover = NULL;
    } else if (self->items) {
        reserve_unmap(self->items, items_bytes(table));
        self->items = NULL;
        contents_uncount_slots(self, table->store);
    } else {
        return false;
    }
    return true;
}

void contents_fini(struct contents *self, const struct table *table)
{
    while (contents_fini_step(self, table)) {
    }
    *self = (struct contents){0};
}

/* Returns an account number that no table uses now. Old contents are freed long before their number is used again. */
static uint32_t account_new(struct tables *tables)
{
    for (;;) {
        uint32_t account = tables->next_account++ & UINT16_MAX;
        bool used = false;
        for (uint32_t i = 0; i < tables->n && !used; i++)
            used = tables->list[i].in.items && tables->list[i].in.account == account;
        if (!used)
            return account;
    }
}

rp_status contents_init(struct contents *self, struct table *table, struct contents_seeds seeds, rp_error *err)
{
    const struct table_config *config = table->config;
    uint64_t *account = &table->store->overhead;
    *self = (struct contents){
        .free = NO_SLOT, .account = account_new(table->tables), .arrays = {.sparing = table->store->sparing}};
    self->keys = keymap_new(account);
    bool counts = episodes_init(&self->episodes, account);
    reserve_group_begin(&self->arrays);
    self->items = reserve_map(items_bytes(table));
    self->sampler = table->sampler_ops->create(config->sampler.options.data, config->sampler.options.count,
                                               table->capacity, seeds.sampler, err);
    if (self->sampler)
        self->remover = table->remover_ops->create(config->remover.options.data, config->remover.options.count,
                                                   table->capacity, seeds.remover, err);
    rp_status status = RP_OK;
    if (!self->items || !self->keys || !counts)
        status = err_set(err, RP_NO_MEMORY, "no memory for %u slots", table->capacity);
    else if (!self->remover)
        status = err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    else if (config_makes_checkpoints(table->tables->config))
        status = marks_init(&self->marks, table->capacity, err);
    reserve_group_end(table->capacity);
    if (status != RP_OK)
        contents_fini(self, table);
    return status;
}
