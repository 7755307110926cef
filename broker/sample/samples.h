/* Samples: from picked items to replies.
 *
 * The room owns the samples that wait for items, their picks (picks.h), the samples that were answered and may be asked for again
 * (kept_samples.h), those whose items are under lease (leases.h), and what it knows of samplers that wait for all shards. It offers answering (and reply.h). It uses the loop,
 * parameters, the configuration, tables, peers, and the flags of a pick from the disk format. */
#pragma once

#include "broker/config/config.h"
#include "broker/loop/entries.h"
#include "broker/peer/request.h"
#include "broker/sample/kept_samples.h"
#include "broker/sample/leases.h"
#include "proto/wire/wire.h"

struct layouts;
struct loop;
struct peers;
struct reply_build;
struct store;

/* Samplers that wait at no shard: what they wait for is the sum of all shards, such as min_size of a table without a ratio. Each
 * of them asks for the state of its tables again and again, and says then how many items it wants and how many there are in all.
 * They are shown with those who wait here, until they have been silent for WATCHER_NS. The list is bounded: of too many, the
 * newest are known. */
#define WATCHERS_MOST 64u
#define WATCHER_NS INT64_C(1000000000)

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

#define SAMPLE_MAX_ITEMS CONFIG_MAX_BATCH
/* Most chunks of a reply: more would take too long. A batch is cut short there, and a fetch refused. */
#define CHUNKS_PER_REPLY (1u << 20)

/* The disk as a second tier for chunks (spill/). ctx NULL: all chunks are in memory. */
struct sample_parking {
    void *ctx;
    /* Parks a waiter some of whose chunks are on disk; when they are read, sample_answer is called again. False: all chunks are
     * in memory. */
    bool (*park)(void *ctx, struct waiter *waiter);
    /* The waiter ends, parked or not. */
    void (*unpark)(void *ctx, struct waiter *waiter);
    /* Writes what a parked waiter waits for. */
    void (*explain)(const struct waiter *waiter, char *text, size_t size);
};

struct samples {
    struct loop *loop;
    const struct broker_config *config;
    struct store *store;
    struct layouts *layouts;
    struct peers *peers;
    struct sample_parking parking;
    struct waiter_list spare_waiters;
    struct reply_build *build; /* working memory of replies */
    struct kept_samples kept;  /* samples that may be asked for again */
    struct leases leases;
    struct waiter_list held; /* samples of clients that have left too many replies unread */
    struct timer held_timer;
    struct watchers watchers;
    uint64_t shared_samples; /* items whose data clients read themselves */
};

/* The caller has set what is borrowed: loop to peers. */
void samples_init(struct samples *self);
/* No sample waits any more, and the chores have run. */
void samples_fini(struct samples *self);
/* Calls fn for every kept sample, oldest first; then for the picks of samples that wait at present, as unanswered ones. */
void samples_each(const struct samples *samples, kept_image_fn *fn, void *ctx);

/* ---- waiters: samples that are being filled, at once or whenever their table allows more ---- */

/* A waiter whose picks are read from disk: see spill.h. */
enum park_state { PARK_NOT, PARK_WAITS, PARK_ADMITTED, PARK_READY };
struct park {
    enum park_state state;
    uint32_t pinned; /* references that are pinned, from the first on */
    uint32_t at;     /* references before it are in memory, or cannot be read */
    bool damaged;    /* some references cannot be read */
    bool broken;     /* no memory to wait */
};

struct waiter {
    struct wait wait;
    struct samples *samples;
    struct waiter_list *list; /* the queue of its table, the held or the parked ones; NULL: none of them */
    TAILQ_ENTRY(waiter) link; /* in it; of a spare one, in the list of those */
    struct table *table;
    /* Goes on with a waiter of the queue; sets *progress if it got something. True: it was answered and is gone, or it
     * is held. */
    bool (*serve)(struct waiter *self, bool *progress);
    uint32_t want;
    uint32_t empty; /* places of `want` that stay empty: of groups without all members */
    uint32_t stamp; /* distinct: marks the items picked */
    uint64_t seed;  /* of its picks, before the first of them; 0: none */
    uint32_t flags; /* PICK_... of loop/entries.h */
    bool distinct, flexible, whole;
    bool complete;                /* held with all that it will get */
    char *text;                   /* of the answer, why there are fewer than asked for; or NULL */
    bool paid;                    /* the limiter is not asked; it was charged before, if it takes permits */
    bool full;                    /* its reply has as many chunks as a reply may have */
    bool again;                   /* it was answered before, and gets the same items */
    uint32_t gone;                /* items of the first answer that are no longer in the table */
    bool fetch;                   /* asked for by key: nothing is counted */
    bool shared;                  /* its client reads shared memory */
    uint32_t reads;               /* what it reads there (wire_sample.shared) */
    bool short_of_memory;         /* it could not take what the table had for it */
    struct kept_sample *reserved; /* memory to keep its picks in */
    struct kept_sample *kept;     /* that lends memory for the reply; NULL: none does */
    uint32_t lease_ms;
    struct lease *lease; /* that its items are under; NULL: none */
    struct park park;
    struct picks picks;
};

/* Takes an empty waiter from the spare ones, or makes one. */
struct waiter *waiter_new(struct samples *samples, struct table *table);
/* Releases its picks; the waiter becomes a spare one. It is in no queue and waits no more. */
void waiter_release(struct waiter *self);
/* Appends it, which is in no list, to one; and takes it out of its list, if it is in one. */
void waiter_append(struct waiter *self, struct waiter_list *list);
void waiter_remove(struct waiter *self);
/* Moves it to a list outside its table, where it holds its picks. The next of the table's queue may be served. */
void waiter_set_aside(struct waiter *self, struct waiter_list *list);
/* Picks what the limiter allows, one by one or in batches, up to `want`. A paid waiter does not ask the limiter, which is charged if
 * nobody can have paid before. */
void waiter_fill(struct waiter *self);
/* True if the limiter counts its picks. */
static inline bool waiter_is_counted(const struct waiter *self)
{
    return !self->paid || !limiter_takes_permits(&self->table->limiter);
}
/* Sets `empty`: the picks are those of an earlier request. */
void waiter_count_empty(struct waiter *self);
bool waiter_is_done(const struct waiter *self);
/* Takes a waiter whose client has left too many replies unread out of the queue: `serve` is called when the client has read some. The
 * waiter stays with those that wait, and what it waits for is explained. False: the client has read enough. */
bool waiter_hold(struct waiter *self);

/* ---- answers: each of these functions ends the waiter, now or later ---- */

/* Lets a sample wait on behalf of a request, with the memory to keep its picks. On an error the waiter is released. */
rp_status sample_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err);
/* Goes on filling a sample, and answers it when it is done: see struct waiter. */
bool sample_serve(struct waiter *self, bool *progress);
/* Lets a fetch, which has its picks, wait on behalf of a request. */
rp_status fetch_begin(struct waiter *waiter, const struct request *request, rp_error *err);

/* Answers with the picks. text: why there are fewer than asked for; NULL: what was said before, if anything. If data has to be read
 * from disk first, the waiter is parked and answered later; if its client does not read, it is held. */
void sample_answer(struct waiter *waiter, const char *text);
/* Answers with an error. The picks count as lost. */
void sample_fail(struct waiter *waiter, rp_status status, const char *text);
/* Answers with an error. There are no picks, or a retry finds them again. */
void sample_refuse(struct waiter *waiter, rp_status status, const char *text);
/* The client has cancelled the request. */
void sample_give_up(struct waiter *waiter);

/* Returns the waiter of a wait that is a sample. NULL: it is something else. */
struct waiter *sample_of(struct wait *wait);

/* ---- permits ---- */

/* A sampler over shards charges the limiter of a shard that has room, and picks its items where the mass is. A permit
 * waits in the queue of its table, like a sample, and picks nothing. It is charged when it is answered, and not before: a client
 * that gives up, or is gone, has cost nothing, and the cursor is what clients were told. A table without a ratio grants permits and
 * counts none of them: its picks are counted when they are made. */

/* Most samples of one permit. */
#define PERMIT_MOST (1u << 24)

/* Refuses permits and paid samples of a table (`what` asks for them) whose limiter counts items that leave: one that is charged and
 * not picked here, or the other way round, would hold up the queue for ever. */
rp_status permit_check(const struct table *table, const char *what, rp_error *err);
/* Lets a permit of waiter->want samples wait on behalf of a request. On an error the waiter is released. */
rp_status permit_begin(struct waiter *waiter, const struct request *request, uint64_t timeout_ms, rp_error *err);
/* Charges the limiter and answers, if it allows the whole count (flexible: at least one). A count above what the bounds ever
 * allow at once is granted in part. True: the permit was answered, and the waiter is gone. */
bool permit_serve(struct waiter *waiter, bool *progress);
/* Fills in all but what was granted. */
void permit_state(const struct table *table, Replay__PermitReply *out);

/* ---- watchers ---- */

/* Notes what a client has said now; since_ns is filled in. wanted 0: it waits no more. */
void watchers_note(struct watchers *self, const struct watcher *heard);
/* True if a client has said lately that it waits. */
bool watcher_waits(const struct watcher *self, int64_t now_ns);
/* Writes what it waits for. */
void watcher_explain(const struct watcher *self, char *text, size_t size);
