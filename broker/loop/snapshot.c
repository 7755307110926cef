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

static void wake(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

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
    wake(self->wake_fd);
}

struct snapshot *exchange_take(struct exchange *self)
{
    uint64_t count;
    ssize_t ignored = read(self->made_fd, &count, sizeof count);
    (void)ignored;
    return atomic_exchange(&self->made, NULL);
}

void exchange_give(struct exchange *self, struct snapshot *snapshot)
{
    struct snapshot *old = atomic_exchange(&self->made, snapshot);
    snapshot_destroy(&old);
    wake(self->made_fd);
}
