#include "broker/sample/watchers.h"

#include <stdio.h>

#include "broker/table/table.h"

static struct watcher *find(struct watchers *self, const struct watcher *like)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->list[i].client == like->client && self->list[i].table == like->table)
            return &self->list[i];
    return NULL;
}

/* Returns a place for one more: a free one, or that of whom nothing was heard for the longest time. */
static struct watcher *take_place(struct watchers *self)
{
    if (self->n < WATCHERS_MOST)
        return &self->list[self->n++];
    struct watcher *oldest = &self->list[0];
    for (uint32_t i = 1; i < self->n; i++)
        if (self->list[i].heard_ns < oldest->heard_ns)
            oldest = &self->list[i];
    return oldest;
}

void watchers_note(struct watchers *self, const struct watcher *heard)
{
    struct watcher *known = find(self, heard);
    if (heard->wanted == 0) {
        if (known)
            *known = self->list[--self->n];
        return;
    }
    int64_t since_ns = known && watcher_waits(known, heard->heard_ns) ? known->since_ns : heard->heard_ns;
    if (!known)
        known = take_place(self);
    *known = *heard;
    known->since_ns = since_ns;
}

bool watcher_waits(const struct watcher *self, int64_t now_ns)
{
    return now_ns - self->heard_ns < WATCHER_NS;
}

void watcher_explain(const struct watcher *self, char *text, size_t size)
{
    unsigned long long items = self->size, least = self->min_size > 1 ? self->min_size : 1;
    const char *name = self->table->name;
    if (items < least)
        snprintf(text, size,
                 "table '%s': 0 of %u items picked; needs %llu more insert%s: all shards have %llu item%s, min_size is "
                 "%llu",
                 name, self->wanted, least - items, least - items == 1 ? "" : "s", items, items == 1 ? "" : "s", least);
    else if (items < self->wanted)
        snprintf(text, size,
                 "table '%s': 0 of %u items picked; needs %llu more items: the batch is without replacement, and all "
                 "shards have %llu",
                 name, self->wanted, self->wanted - items, items);
    else
        snprintf(text, size, "table '%s': 0 of %u items picked; waits for its turn", name, self->wanted);
}
