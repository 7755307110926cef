#include "broker/table/window.h"

#include <stdlib.h>

#include "broker/store/reserve.h"
#include "proto/base/need.h"

static struct window_link *link_at(const struct window *self, uint32_t node)
{
    return node < self->capacity ? &self->slots[node] : &self->heads[node - self->capacity];
}

/* Makes the rings of the heads, all empty. */
static void heads_new(struct window *self, uint32_t lag)
{
    self->lag = lag;
    self->heads = need_alloc((lag + 3) * sizeof *self->heads);
    for (uint32_t i = 0; i < lag + 3; i++)
        self->heads[i] = (struct window_link){self->capacity + i, self->capacity + i};
}

void window_init(struct window *self, uint32_t capacity, uint32_t lag, uint64_t version)
{
    *self = (struct window){.capacity = capacity, .version = version};
    self->slots = reserve_map(capacity * sizeof *self->slots);
    heads_new(self, lag);
}

void window_fini(struct window *self)
{
    if (self->slots)
        reserve_unmap(self->slots, self->capacity * sizeof *self->slots);
    free(self->heads);
    *self = (struct window){0};
}

/* The head of the list of a version that is at most the next one. */
static uint32_t head_of(const struct window *self, uint64_t version)
{
    return version + self->lag < self->version ? 0 : 1 + (uint32_t)(version % ((uint64_t)self->lag + 2));
}

/* The oldest version that is not stale. */
static uint64_t oldest_of(const struct window *self)
{
    return self->version > self->lag ? self->version - self->lag : 0;
}

/* Appends the nodes from `first` to `last`, which are linked. */
static void append(struct window *self, uint32_t head, uint32_t first, uint32_t last)
{
    struct window_link *to = &self->heads[head];
    link_at(self, to->prev)->next = first;
    link_at(self, first)->prev = to->prev;
    link_at(self, last)->next = self->capacity + head;
    to->prev = last;
}

void window_enter(struct window *self, uint32_t slot, uint64_t version)
{
    append(self, head_of(self, version), slot, slot);
}

void window_leave(struct window *self, uint32_t slot)
{
    struct window_link link = self->slots[slot];
    link_at(self, link.prev)->next = link.next;
    link_at(self, link.next)->prev = link.prev;
}

void window_move(struct window *self, uint64_t version)
{
    uint64_t keep = version > self->lag ? version - self->lag : 0; /* the oldest version that is not stale now */
    for (uint64_t v = oldest_of(self); v <= self->version + 1 && v < keep; v++) {
        uint32_t from = head_of(self, v);
        struct window_link list = self->heads[from];
        if (list.next >= self->capacity)
            continue;
        append(self, 0, list.next, list.prev);
        self->heads[from] = (struct window_link){self->capacity + from, self->capacity + from};
    }
    self->version = version;
}

void window_set_lag(struct window *self, uint32_t lag)
{
    struct window old = *self;
    heads_new(self, lag);
    if (old.heads[0].next < old.capacity)
        append(self, 0, old.heads[0].next, old.heads[0].prev);
    for (uint64_t v = oldest_of(&old); v <= old.version + 1; v++) {
        struct window_link list = old.heads[head_of(&old, v)];
        if (list.next < old.capacity)
            append(self, head_of(self, v), list.next, list.prev);
    }
    free(old.heads);
}
