#include "broker/service/service.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

static void free_shards(struct service *self)
{
    for (uint32_t i = 0; i < self->n_shards; i++)
        free(self->shards[i]);
    free(self->shards);
    self->shards = NULL;
    self->n_shards = 0;
}

rp_status service_set_shards(struct service *self, char *const *endpoints, uint32_t n, rp_error *err)
{
    free_shards(self);
    self->shards = calloc(n, sizeof *self->shards);
    for (; self->shards && self->n_shards < n; self->n_shards++)
        if (!(self->shards[self->n_shards] = strdup(endpoints[self->n_shards])))
            break;
    return self->n_shards == n ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the endpoints of %u shards", n);
}

rp_status service_init(struct service *self, rp_error *err)
{
    uint32_t n;
    dispatch_commands(&n);
    self->commands = calloc(n, sizeof *self->commands);
    if (!self->commands)
        return err_set(err, RP_NO_MEMORY, "no memory for the counts of %u kinds of requests", n);
    const struct schema_list *shards = &self->config->shards;
    return shards->count > 1 && config_shard_endpoint(self->config, 0)
               ? service_set_shards(self, shards->data, shards->count, err)
               : RP_OK;
}

void service_fini(struct service *self)
{
    reduces_fini(&self->reduces);
    free_shards(self);
    free(self->commands);
    self->commands = NULL;
}
