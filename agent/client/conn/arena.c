#include "agent/client/conn/arena.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/memfile.h"

bool conn_shares_memory(bool inside)
{
    const char *value = getenv("REPLAY_SHM");
    return value ? strcmp(value, "0") != 0 : !inside;
}

struct conn_arena *conn_arena_map(struct conn_arena *before, const Replay__Arena *offer, bool inside)
{
    if (!offer || !conn_shares_memory(inside))
        return NULL;
    if (before && before->nonce == offer->nonce && before->size == offer->size)
        return conn_arena_ref(before);
    struct memfile_name name = {offer->pid, offer->fd, offer->size, offer->nonce};
    struct conn_arena *self = malloc(sizeof *self);
    const uint8_t *data = self ? memfile_map(&name) : NULL;
    if (data) {
        *self = (struct conn_arena){.refs = 1, .data = data, .size = (size_t)offer->size, .nonce = offer->nonce};
        return self;
    }
    free(self);
    return NULL;
}

struct conn_arena *conn_arena_ref(struct conn_arena *self)
{
    if (self)
        __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return self;
}

void conn_arena_unref(struct conn_arena **self_p)
{
    struct conn_arena *self = *self_p;
    *self_p = NULL;
    if (!self || __atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    memfile_unmap(self->data, self->size);
    free(self);
}
