/* A scripted broker: a thread with a ROUTER and a PULL that answers HELLO and heartbeats, counts what arrives, and misbehaves on
 * request. For what a real broker does only by accident: losing messages, losing sessions, granting no credit. */
#pragma once

#include <pthread.h>

#include "replay/types.h"
#include "tests/support/test.h"

#define FAKEPEER_TABLES 2u
#define FAKEPEER_KEYS 65536u

struct fakepeer {
    char endpoint[64];
    char ingest[64];
    void *context, *router, *pull;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all that follows */
    bool stop;
    /* Behaviour. Change it with fakepeer_set. */
    bool hold;       /* items stay unresolved */
    bool lose;       /* ingest messages are lost on the way */
    bool forget;     /* the next HELLO or heartbeat of a session gets SESSION_UNKNOWN */
    bool expire;     /* the next HELLO finds a tombstone */
    bool ends;       /* the next HELLO of a session gets CANCELLED, as from a broker that shuts down */
    bool deaf;       /* requests are not answered */
    bool reject_odd; /* items with odd numbers are rejected */
    bool discard;    /* messages are counted and not read */
    bool age;        /* the next HELLO finds an older state: messages are lost, and their bytes are not counted */
    uint64_t window_items[FAKEPEER_TABLES], window_bytes;
    uint64_t keep_bytes; /* asks the client to release unused credit beyond it */
    uint32_t heartbeat_ms, expiry_ms;
    uint64_t key_count;         /* keys of a session */
    const rp_column *signature; /* of table 0; its shape includes the steps */
    uint32_t n_signature;
    uint32_t shard;    /* with shards: the number of this one */
    char **shards;     /* endpoints of all */
    uint32_t n_shards; /* 0: this broker is alone */
    uint64_t settings; /* hash of the settings */
    const void
        *permit; /* a Replay__PermitReply: the answer to permits; NULL: none. Samples are then answered without items */
    bool give;   /* samples are answered with items instead: field "number" of one int32 each */
    bool
        overtake; /* samples wait for a cancel: the first says that the items are in memory, which nobody has; others are obeyed */
    uint64_t surplus;  /* of them: more than were asked for */
    uint64_t instance; /* random */
    /* Counts. */
    uint64_t hellos, resumes, heartbeats, byes, explains, permits, samples, cancels;
    uint64_t messages, duplicates, stale, gaps, blanks;
    uint64_t items, chunks, layouts, out_of_order;
    uint64_t largest;       /* items in one message */
    uint64_t oldest_number; /* stated by the last resume */
    uint64_t n_keys;
    uint64_t keys[FAKEPEER_KEYS]; /* in the order of arrival, each item once */
    uint32_t lengths[FAKEPEER_KEYS];
    uint64_t policies[FAKEPEER_KEYS];
    uint32_t chunk_lengths[FAKEPEER_KEYS];
    /* The session. */
    uint8_t route[64];
    uint32_t route_size;
    uint32_t ordinal;
    uint32_t epoch;
    bool open, gap;
    uint64_t received, received_bytes;
    uint64_t held_bytes;     /* of them: arrived while items were held */
    uint64_t released_bytes; /* stated by heartbeats of this epoch; the window shrinks by it */
    uint64_t arrived[FAKEPEER_TABLES], resolved[FAKEPEER_TABLES];
    uint64_t rejected, confirmed;
    uint64_t rejected_item[64], rejected_key[64];
    uint32_t layout_table[1024];
};

/* Starts with two tables, "a" and "b", and unlimited windows. */
void fakepeer_start(struct fakepeer *self);
void fakepeer_stop(struct fakepeer *self);
#define fakepeer_set(self, knob, value)                                                                                \
    (pthread_mutex_lock(&(self)->mutex), *(knob) = (value), (void)pthread_mutex_unlock(&(self)->mutex))
/* Makes the broker one of several shards. The list stays the caller's. */
void fakepeer_join(struct fakepeer *self, uint32_t shard, char **shards, uint32_t n, uint64_t settings);
/* Resolves held items and notifies the client. */
void fakepeer_release(struct fakepeer *self);
/* Waits until a count is at least n. */
bool fakepeer_await(struct fakepeer *self, const uint64_t *count, uint64_t n);
uint64_t fakepeer_read(struct fakepeer *self, const uint64_t *count);

/* Several of them that are the shards of one broker, with the same settings. */
#define FAKESHARDS 3u
struct fakeshards {
    struct fakepeer peers[FAKESHARDS];
    char *list[FAKESHARDS]; /* endpoints */
};
void fakeshards_start(struct fakeshards *self, uint64_t settings);
void fakeshards_stop(struct fakeshards *self);
