#include "broker/loop/snapshot.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

/* ---- the exchange */

void exchange_init(struct exchange *self, int wake_fd)
{
    atomic_init(&self->wanted, 0);
    atomic_init(&self->made, NULL);
    self->wake_fd = wake_fd;
    self->made_fd = -1;
}

void exchange_fini(struct exchange *self)
{
    struct snapshot *left = atomic_exchange(&self->made, NULL);
    snapshot_destroy(&left);
    if (self->made_fd >= 0)
        close(self->made_fd);
    self->made_fd = -1;
}

bool exchange_open(struct exchange *self)
{
    if (self->made_fd < 0)
        self->made_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return self->made_fd >= 0;
}

void exchange_ask(struct exchange *self, unsigned parts)
{
    atomic_fetch_or(&self->wanted, parts);
    eventfd_write(self->wake_fd, 1);
}

struct snapshot *exchange_take(struct exchange *self)
{
    eventfd_t count;
    eventfd_read(self->made_fd, &count);
    return atomic_exchange(&self->made, NULL);
}

void exchange_give(struct exchange *self, struct snapshot *snapshot)
{
    struct snapshot *old = atomic_exchange(&self->made, snapshot);
    snapshot_destroy(&old);
    eventfd_write(self->made_fd, 1);
}
