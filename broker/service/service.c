#include "broker/service/service.h"

#include <stdlib.h>

#include "proto/base/error.h"

rp_status service_init(struct service *self, rp_error *err)
{
    uint32_t n;
    dispatch_commands(&n);
    self->commands = calloc(n, sizeof *self->commands);
    return self->commands ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the counts of %u kinds of requests", n);
}

void service_fini(struct service *self)
{
    reduces_fini(&self->reduces);
    free(self->commands);
    self->commands = NULL;
}
