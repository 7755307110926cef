#include "broker/metrics/snapshot.h"

#include <stdlib.h>

#include "proto/base/need.h"

struct snapshot *snapshot_new(void)
{
    struct snapshot *self = need_alloc(sizeof *self);
    replay__info_reply__init(&self->info);
    replay__why_reply__init(&self->why);
    return self;
}

void snapshot_destroy(struct snapshot **at)
{
    struct snapshot *self = *at;
    *at = NULL;
    if (!self)
        return;
    arena_fini(&self->arena);
    free(self);
}
