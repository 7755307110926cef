/* Creates and destroys a table. */
#include <stdlib.h>
#include <string.h>

#include "broker/table/extension_host.h"
#include "broker/table/tables.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

static rp_status signature_init(struct table *self, rp_error *err)
{
    const struct field_config *fields = self->config->signature.data;
    struct signature *signature = &self->signature;
    signature->n = self->config->signature.count;
    signature->fields = calloc(signature->n ? signature->n : 1, sizeof *signature->fields);
    if (!signature->fields)
        return err_set(err, RP_NO_MEMORY, "no memory for the signature");
    for (uint32_t i = 0; i < signature->n; i++) {
        struct signature_field *field = &signature->fields[i];
        const int64_t *shape = fields[i].shape.data;
        field->name = fields[i].name;
        field->dtype = dtype_by_name(fields[i].dtype);
        field->rank = fields[i].shape.count;
        for (uint32_t d = 0; d < field->rank; d++)
            field->shape[d] = (uint32_t)shape[d];
    }
    return RP_OK;
}

static rp_status extensions_init(struct table *self, rp_error *err)
{
    const struct extension_config *list = self->config->extensions.data;
    uint32_t n = self->config->extensions.count;
    self->extensions = calloc(n ? n : 1, sizeof *self->extensions);
    if (!self->extensions)
        return err_set(err, RP_NO_MEMORY, "no memory for extensions");
    for (uint32_t i = 0; i < n; i++) {
        struct extension *extension = &self->extensions[i];
        extension->ops = plugins_extension(&self->tables->plugins, list[i].kind);
        if (!extension->ops)
            return err_set(err, RP_NOT_FOUND,
                           "no extension '%s': built in are statistics, priority_diffusion and "
                           "insert_on_sample; others come from plugins",
                           list[i].kind);
        extension->host = extension_host(self);
        extension->self =
            extension->ops->create(list[i].options.data, list[i].options.count, self->capacity, &extension->host, err);
        if (!extension->self)
            return err && err->status ? (rp_status)err->status : RP_INVALID_ARGUMENT;
        self->n_extensions = i + 1;
        self->hook_insert |= extension->ops->on_insert != NULL;
        self->hook_sample |= extension->ops->on_sample != NULL;
        self->hook_update |= extension->ops->on_update != NULL;
        self->hook_delete |= extension->ops->on_delete != NULL;
    }
    return RP_OK;
}

static rp_status selector_find(const struct table *self, const char *kind, const rp_selector_ops **ops, rp_error *err)
{
    *ops = plugins_selector(&self->tables->plugins, kind);
    return *ops ? RP_OK
                : err_set(err, RP_NOT_FOUND, "no selector '%s', neither built in nor in a loaded plug-in", kind);
}

rp_status table_set_metadata(struct table *self, const char *text, rp_error *err)
{
    char *copy = strdup(text);
    if (!copy)
        return err_set(err, RP_NO_MEMORY, "no memory for the metadata of table '%s'", self->name);
    free(self->metadata);
    self->metadata = copy;
    return RP_OK;
}

static rp_status init_with(struct table *self, uint32_t capacity, rp_error *err)
{
    const struct table_config *config = self->config;
    self->name = config->name;
    self->waiters_end = &self->waiters;
    self->newest_layout = NO_LAYOUT;
    self->capacity = capacity;
    self->loop = self->tables->loop;
    self->store = self->tables->store;
    self->layouts = self->tables->layouts;
    struct limiter_config limiter = config_limiter(&config->limiter);
    limiter.part = config_shards(self->tables->config) > 1;
    if (limiter.size == 0)
        limiter.size = (double)config->max_size;
    RP_TRY(limiter_init(&self->limiter, &limiter, err));
    RP_TRY(selector_find(self, config->sampler.kind, &self->sampler_ops, err));
    if (config_shards(self->tables->config) > 1 && !config_sampler_divides(config, self->sampler_ops))
        return err_set(err, RP_UNSUPPORTED, CONFIG_NO_MASS, config->sampler.kind);
    RP_TRY(selector_find(self, config->remover.kind, &self->remover_ops, err));
    RP_TRY(signature_init(self, err));
    RP_TRY(table_set_metadata(self, config->metadata ? config->metadata : "", err));
    RP_TRY(contents_init(&self->in, self, (struct contents_seeds){self->seed, self->seed ^ 1}, err));
    reserve_group_begin(&self->in.arrays);
    rp_status status = extensions_init(self, err);
    reserve_group_end(capacity);
    RP_TRY(status);
    self->one_by_one = config->max_times_sampled > 0 || self->hook_sample;
    return RP_OK;
}

rp_status table_init(struct table *self, struct tables *tables, uint32_t id, uint64_t seed, rp_error *err)
{
    const struct table_config *config = (const struct table_config *)tables->config->tables.data + id;
    *self = (struct table){.tables = tables, .config = config, .id = id, .seed = seed};
    return init_with(self, table_slots(config), err);
}

rp_status table_grow(struct table *self, uint32_t capacity, rp_error *err)
{
    struct table old = *self;
    table_fini(self);
    *self = (struct table){.tables = old.tables, .config = old.config, .id = old.id, .seed = old.seed};
    return init_with(self, capacity, err);
}

void table_fini(struct table *self)
{
    for (uint32_t i = 0; i < self->n_extensions; i++)
        self->extensions[i].ops->destroy(self->extensions[i].self);
    free(self->extensions);
    for (uint32_t i = 0; self->in.items && i < self->in.high; i++)
        if (self->in.items[i].span.n)
            table_release_item(self, &self->in, &self->in.items[i]);
    contents_fini(&self->in, self);
    table_newest_layout(self, NO_LAYOUT);
    free(self->signature.fields);
    free(self->metadata);
}
