/* Samplers that wait at no shard: what they wait for is the sum of all shards, such as min_size of a table without a ratio. Each
 * of them asks for the state of its tables again and again, and says then how many items it wants and how many there are in all.
 * They are shown with those who wait here, until they have been silent for WATCHER_NS. The list is bounded: of too many, the
 * newest are known. */
#ifndef BROKER_WATCHERS_H
#define BROKER_WATCHERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WATCHERS_MOST 64u
#define WATCHER_NS INT64_C(1000000000)

struct table;

struct watcher {
    uint64_t client;
    const struct table *table;
    uint32_t wanted;         /* items */
    uint64_t size, min_size; /* of all shards, as the sampler knows them */
    int64_t since_ns, heard_ns;
};

struct watchers {
    struct watcher list[WATCHERS_MOST];
    uint32_t n;
};

/* Notes what a client has said now; since_ns is filled in. wanted 0: it waits no more. */
void watchers_note(struct watchers *self, const struct watcher *heard);
/* True if a client has said lately that it waits. */
bool watcher_waits(const struct watcher *self, int64_t now_ns);
/* Writes what it waits for. */
void watcher_explain(const struct watcher *self, char *text, size_t size);

#endif
