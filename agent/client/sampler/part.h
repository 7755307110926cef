/* A part of a sampler: a table at one broker, the requests in flight there, and the rows that they have brought.
 *
 * A *pick* is a request for items. Its reply is decoded by one thread, and its rows go to batches in the order in which they came.
 * The items of a table that removes what is sampled exist nowhere else: such a pick is never given up, only recalled.
 *
 * A *permit* is a request to the limiter: the right to a number of samples, which are then picked at any part of the group.
 *
 *   state      recall      drop        reply       used
 *   ASKED      RECALLED    DROPPED     ARRIVED                in flight; without an id while it is being sent
 *   RECALLED   RECALLED    DROPPED     ARRIVED                cancelled, but items that it brings are welcome
 *   DROPPED                            FREED                  nobody waits for it; on_pick frees it
 *   ARRIVED    ARRIVED     UNWANTED                DECODED    its reply waits for the thread that decodes
 *   UNWANTED   UNWANTED    UNWANTED                FREED      the same, but its items are dropped
 *   DECODED                                        FREED      its rows wait for batches; freed with the last of them
 *
 * All fields are guarded by the hub's lock, which is never held while a function of a connection is called that takes a lock. The
 * hub is counted by the sampler, its threads and every request in flight. Functions are called with the lock held, unless they say
 * otherwise; those that send, decode or cancel release it meanwhile. */
#ifndef AGENT_CLIENT_PART_H
#define AGENT_CLIENT_PART_H

#include <pthread.h>

#include "agent/client/conn/conn.h"
#include "agent/client/sampler/batch.h"
#include "proto/base/clock.h"
#include "replay/sampler.h"

/* How a group is sampled: PermitReply.deal, and plain samples for a group of one part. */
enum deal { DEAL_PERMITS, DEAL_MASS, DEAL_QUEUE, DEAL_PLAIN, DEAL_UNKNOWN };

/* Largest wait for permits and items of a queue inside one broker, before a broker is chosen again. */
#define CHOOSE_MS 50
#define RETRY_NS (100 * NS_PER_MS)

enum pick_state { PICK_ASKED, PICK_RECALLED, PICK_DROPPED, PICK_ARRIVED, PICK_UNWANTED, PICK_DECODED, PICK_FREED };

struct pick {
    struct part *part;
    struct pick *next; /* in part->asked, then in part->done */
    enum pick_state state;
    uint64_t id; /* of the request; 0: not sent yet */
    uint32_t count;
    int64_t asked_ns;
    bool sure;                /* the broker had items: it answers at once */
    void *whole;              /* the batch to be that takes all of the reply; NULL: any batch takes rows of it */
    struct conn_reply *reply; /* not decoded yet, or the rows of `batches` are in it */
    rp_batch *batches;
    uint32_t row; /* rows of the first batch that were taken */
};

/* Rows of which a batch is put together. */
struct pieces {
    struct batch_rows *rows;
    uint32_t n, capacity;
};

struct pick_list {
    struct pick *first, *last;
};

struct permit {
    struct part *part;
    uint64_t id;    /* of the request; 0: not sent yet */
    uint32_t count; /* 0: asks for the state, or nobody waits for it any more */
    uint32_t most;  /* that may be granted */
    bool sure;      /* the broker had room: it answers at once */
    int64_t asked_ns;
};

/* What the parts of a sampler share with it. */
struct hub {
    uint32_t refs;
    void (*free)(struct hub *self);
    /* Takes a decoded reply whole, for a sampler with one part. NULL: its rows are joined with those of others. */
    void (*take)(struct hub *self, struct pick *pick, rp_batch **batches, rp_status status, const rp_error *error);
    rp_sampler_options options;
    bool flexible, whole; /* options.fill */
    int64_t idle_ns;      /* the stream ends when nothing came for this long; INT64_MAX: it does not */
    bool inlined;         /* the caller plans and decodes */
    bool decodes;         /* the thread that plans decodes: the caller, or the only thread of a sampler with one part */

    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the thread that plans */
    pthread_cond_t ready; /* for the caller */
    bool stopping;
    bool news;          /* something has changed for the thread that plans */
    bool stalled;       /* no memory: the caller gets `error`, then it is tried again */
    rp_error error;     /* for the caller, once */
    int64_t decoded_ns; /* time of the last reply that was decoded */
    uint64_t decode_ns; /* time spent decoding */
};

/* The parts that together stand for one share of the items. */
struct group {
    double share;      /* of all items */
    uint32_t first, n; /* parts */
    enum deal deal;
    uint64_t stock; /* permits that no plan has used */
    uint64_t out;   /* permits asked for */
};

/* The parts of a group that are there, together. */
struct group_sum {
    double mass;
    uint64_t size, min_size;
};

struct part {
    struct hub *hub;
    struct group *group;
    const struct part *siblings; /* the first part of the group */
    struct conn *conn;           /* borrowed */
    char *table;
    uint32_t number, shard;        /* of the rp_source, and of the broker */
    struct batch_decoder *decoder; /* of the thread that decodes */
    pthread_t thread;
    bool started;
    pthread_cond_t work; /* for its thread */
    /* How it is asked. */
    uint32_t most; /* items of one request */
    bool paid;     /* permits were got for the samples */
    bool whole, flexible;
    /* What the broker said last. */
    bool known; /* it has answered */
    double mass;
    uint64_t size, room, min_size;
    double buffer;
    uint32_t deal;
    bool removes;     /* a sample may take items out of the table */
    int64_t state_ns; /* when it said so */
    char why[256];    /* what a request waits for */
    /* Its answers. */
    bool connected;
    int64_t lost_ns;  /* since when it is not; 0: it is */
    int64_t retry_ns; /* no picks before this time */
    bool away;
    /* Requests. */
    struct pick_list asked, done;
    uint64_t outstanding; /* items of picks in flight */
    uint64_t rows;        /* items of `done` that no batch takes yet */
    uint64_t dealt;       /* items before them that are being copied */
    struct copy *copies, **copies_end;
    uint64_t needed;       /* items that plans want from it */
    uint64_t excused;      /* items that a flexible sample left out */
    struct permit *permit; /* the request in flight; NULL: none */
    uint64_t asked_step;   /* the step in which it was asked for permits */
    bool why_asked;
};

/* ---- hub ---- */

void hub_init(struct hub *self, const rp_sampler_options *options, void (*free)(struct hub *self));
/* Without the lock. */
void hub_ref(struct hub *self);
void hub_unref(struct hub *self);
/* Frees what hub_init made. */
void hub_fini(struct hub *self);
/* Tells the thread that plans, and a caller that does its work. */
void hub_wake(struct hub *self);

/* ---- life; without the lock ---- */

/* The decoder's memory is of the pool. Borrows conn. False: no memory; call part_fini all the same. */
bool part_init(struct part *self, struct hub *hub, struct conn *conn, const char *table, struct batch_pool *pool,
               const struct batch_options *options);
void part_fini(struct part *self);

/* ---- requests ---- */

/* Asks for items; timeout_ms bounds the wait inside the broker, negative: no bound. False: no memory, nothing was asked for. */
bool part_ask(struct part *self, uint32_t count, int64_t now_ns, int64_t timeout_ms, void *whole);
/* Asks for permits, or with 0 for the state. lacks: what the group has, if a batch of `wanted` items waits for more: the broker shows
 * that somebody waits. False: no memory. */
bool part_permit(struct part *self, uint32_t count, int64_t timeout_ms, uint32_t wanted, const struct group_sum *lacks);
/* Asks the broker what its requests wait for. */
void part_ask_why(struct part *self);
/* Gives up the picks and permits in flight: what they owe is asked for elsewhere. Picks whose items may exist nowhere else stay. */
void part_abandon(struct part *self);
/* Cancels picks that wait inside a broker. They stay until they are answered. */
void part_recall(struct part *self);
/* The sampler ends: gives up everything. */
void part_cancel(struct part *self);
/* Drops the rows that are on their way. Does not release the lock. */
void part_forget(struct part *self);
/* Decodes one reply that has arrived; false: there is none. *whole: all items that were asked for have come. */
bool part_decode(struct part *self, bool *whole);

/* ---- questions ---- */

/* True if the items of picks may exist nowhere else. Such picks are never given up. */
static inline bool part_is_last(const struct part *self)
{
    return !self->paid || self->removes;
}

/* Returns a part's weight in draws of its group: 0 if it can give nothing. */
static inline double part_weight(const struct part *self)
{
    return self->known && !self->away && self->size ? self->mass : 0;
}

/* Returns the items that are still expected from picks: a part that is away promises nothing. */
static inline uint64_t part_expected(const struct part *self)
{
    return self->away ? 0 : self->outstanding;
}

/* True if the part had items when it was asked for some, and has not answered. */
bool part_comes(const struct part *self);
/* True if a request is older than this, beside its wait inside the broker. Never for a broker that runs when it is asked to. */
bool part_is_late(const struct part *self, int64_t limit_ns);

/* ---- rows ---- */

/* Returns the rows of the first pick that has some for batches: the items of one pick are distinct, if they are to be. */
uint32_t part_first_rows(const struct part *self);
/* Adds the next n rows to the pieces. False: no memory. */
bool part_peek(struct part *self, uint32_t n, double share, struct pieces *pieces);
/* Drops n rows that were copied from the front, and moves the picks that have none left to `empty`. */
void part_consume(struct part *self, uint32_t n, struct pick_list *empty);
/* Frees picks. Without the lock: a large message is not freed at once. */
void pick_list_free(struct pick_list *list);
/* Drops the rows that no batch takes, unless earlier ones are being copied, and those that are on their way: items of one
 * distinct batch could be in another one, too. */
void part_drop_rows(struct part *self);

#endif
