/* How a sampler works.
 *
 * A *part* is a table at one broker, the requests in flight there, and the rows that they have brought. A *group* of parts stands
 * for one share of the items: the shards of a table, or sources that divide their share by mass. A *plan* is a batch to be: how many
 * items each group gives, then how many each part gives.
 *
 *   drawn    how many items each group gives: by the shares
 *   paid     the group has permits for them; how many each part gives is drawn by the masses that the parts told last
 *   dealt    all parts have the items, and each copies its own into the batch
 *   ready    the batch is complete
 *
 * A sampler *alone* has one part, and then all of this is simple: a plan is one request for all of its items, and its reply is the
 * batch as it comes. The plan is dealt as soon as it is drawn, the broker's limiter pays, and nothing is copied twice.
 *
 * Otherwise plans are drawn in bursts and paid together, so one request asks a part for its items of several batches. Items of a part
 * are alike (each is drawn independently of the others), so a plan takes whichever come first. An item's probability is the
 * probability inside its part times the share that was used for the draw: it is exact, however old the masses are.
 *
 * Permits (limiter charges) are got from parts with room, ahead of the plans that need them; picks are then made where the mass is.
 * With the limiter lag, inserts wait for versions, and writers do not spread evenly: while a batch waits, room for inserts is moved from a
 * part that has some to one whose inserts wait (broker/select/limiter.h).
 * The items that a part owes and cannot give are drawn again over the other parts. If sampling takes items out of the table, they
 * exist nowhere else: the request to a part that is away stays in flight, and its items come in addition, whenever they come. A plan
 * takes such spare rows before it draws others, and each row needs a permit like any other.
 *
 * One thread plans: the sampler's own, or the caller while it waits (on_demand, or a connection without a thread). Of a sampler alone it
 * only decodes ahead of the caller: a caller that waits decodes what it waits for, so that no other thread is woken. Each of several
 * parts has a thread that reads replies and copies rows out of them into batches, unless the caller does that, too.
 *
 * A *pick* is a request for items. Its reply is decoded by one thread, and its rows go to batches in the order in which they came.
 * The items of a table that removes what is sampled exist nowhere else: such a pick is never given up, only recalled.
 *
 * A *permit* is a request to the limiter: the right to a number of samples, which are then picked at any part of the group.
 *
 * What can happen to a pick in each of its states, and what it becomes, is a table in part.c.
 *
 * A reply is overtaken if it names memory of a broker on this host that holds other data by now. The same items are then asked for again,
 * by the socket. A loan tells the broker to keep them until they are decoded.
 *
 * All fields are guarded by the sampler's lock, which is never held while a function of a connection is called that takes a lock. The
 * sampler is counted by its owner, its threads and every request in flight. Functions are called with the lock held, unless they say
 * otherwise; those that send, decode, cancel or copy release it meanwhile. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

#include "agent/client/conn/conn.h"
#include "agent/client/sampler/batch.h"
#include "agent/client/sampler/tokens.h"
#include "proto/base/clock.h"
#include "proto/base/rng.h"
#include "replay/sampler.h"

/* How a group is sampled: PermitReply.deal, and plain samples for a group of one part. */
enum deal { DEAL_PERMITS, DEAL_MASS, DEAL_QUEUE, DEAL_PLAIN, DEAL_UNKNOWN };

/* Largest wait for permits and items of a queue inside one broker, before a broker is chosen again. */
#define CHOOSE_MS 50
#define RETRY_NS (100 * NS_PER_MS)

enum pick_state {
    PICK_ASKED,    /* in flight; without an id while it is being sent */
    PICK_RECALLED, /* cancelled, but items that it brings are welcome */
    PICK_DROPPED,  /* nobody waits for it; on_pick frees it */
    PICK_ARRIVED,  /* its reply waits for the thread that decodes */
    PICK_UNWANTED, /* the same, but its items are dropped */
    PICK_DECODED,  /* its rows wait for batches; freed with the last of them */
    PICK_FREED,
};

struct pick {
    struct part *part;
    TAILQ_ENTRY(pick) link; /* in part->asked, then in part->done */
    enum pick_state state;
    uint64_t id; /* of the request; 0: not sent yet */
    struct loan loan;
    uint32_t count;
    int64_t asked_ns, timeout_ms;
    bool sure;                /* the broker had items: it answers at once */
    struct plan *whole;       /* takes all of the reply; NULL: any batch takes rows of it */
    struct conn_reply *reply; /* not decoded yet, or the rows of `batches` are in it */
    rp_batch *batches;
    uint32_t row; /* rows of the first batch that were taken */
};

TAILQ_HEAD(pick_list, pick);

struct permit {
    struct part *part;
    uint64_t id;    /* of the request; 0: not sent yet */
    uint32_t count; /* 0: asks for the state, or nobody waits for it any more */
    uint32_t most;  /* that may be granted */
    bool sure;      /* the broker had room: it answers at once */
    int64_t asked_ns;
};

/* Room for inserts on its way from one part to another. */
struct move {
    struct part *from, *to;
    uint32_t n; /* asked for, or held by nobody else: `to` gets it next, or `from` gets back what `to` did not take */
    uint64_t version; /* of the parameters: no other version's room */
    bool held;        /* n is */
    bool busy;        /* a request is in flight */
    bool taking;      /* it is the first, to `from` */
};

/* The parts that together stand for one share of the items. */
struct group {
    double share;      /* of all items */
    uint32_t first, n; /* parts */
    uint32_t turn;     /* of a queue: which of them is asked first */
    enum deal deal;
    uint64_t stock; /* permits that no plan has used */
    uint64_t out;   /* permits asked for */
    struct move move;
};

/* The parts of a group that are there, together. */
struct group_sum {
    double mass;
    uint64_t size, min_size;
};

struct part {
    struct rp_sampler *sampler;
    struct group *group;
    const struct part *siblings; /* the first part of the group */
    struct conn *conn;           /* borrowed */
    char *table;
    uint32_t number, shard;        /* of the rp_source, and of the broker */
    struct batch_decoder *decoder; /* of the thread that decodes */
    pthread_t thread;
    bool started;
    pthread_cond_t work; /* for its thread */
    bool decoding;       /* a thread decodes a reply: one at a time, in their order */
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
    bool removes; /* a sample may take items out of the table */
    bool lag;     /* the limiter is, and the next three are of it: PermitReply */
    uint64_t version, insert_room, insert_need;
    int64_t state_ns; /* when it said so */
    char why[256];    /* what a request waits for */
    /* Its answers. */
    int64_t lost_ns;  /* for how long it is not connected; 0: it is. Only the thread that plans uses it */
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

/* Batches ahead for each part of the widest group: at least, and at most while the caller has to wait for batches that are under
 * way and all of them take no more than AHEAD_BYTES. The fewer are ahead, the newer are the priorities that they were drawn with. */
#define LEAST_AHEAD 2u
#define MOST_AHEAD 32u

/* What a part has to copy into a batch: the next rows of its `done`. */
struct copy {
    struct copy *next; /* in part->copies */
    struct plan *plan;
    uint32_t first, n; /* pieces of the join */
    uint32_t rows;
};

enum plan_state { PLAN_DRAWN, PLAN_PAID, PLAN_DEALT, PLAN_READY };

struct plan {
    enum plan_state state;
    uint32_t count;   /* items */
    uint32_t missing; /* items that it does without */
    int64_t drawn_ns;
    int64_t waited_ns;   /* for permits */
    struct copy *copies; /* [n_parts]; the next three are in its memory */
    double *share;       /* [n_parts] used for the draw */
    uint32_t *need;      /* [n_parts] items; of queues when they are dealt out */
    uint32_t *of_group;  /* [n_groups] items */
    uint32_t left;       /* copies that are not made yet; atomic */
    struct batch_join *join;
    rp_batch *batches;
    rp_error error; /* instead of batches */
};

struct rp_sampler {
    uint32_t refs;
    uint32_t unanswered; /* picks */
    rp_sampler_options options;
    uint32_t unit;        /* items of a group, in whose multiples all is counted; without groups 1 */
    bool flexible, whole; /* options.fill */
    int64_t idle_ns;      /* the stream ends when nothing came for this long; INT64_MAX: it does not */
    bool alone;           /* one part: its replies are the batches */
    bool inlined;         /* the caller plans and decodes */
    bool decodes;         /* the thread that plans decodes: the caller, or the only thread of a sampler with one part */
    struct batch_pool *pool; /* of the batches for the caller, or for `tokens` */
    struct tokens *tokens;   /* of the caller; NULL: batches are counted in items */
    struct rng rng;
    uint32_t n_parts, n_groups, n_sources, n_shards;
    uint32_t all_parts; /* that there are to be: n_parts, once all are made */
    uint32_t widest;    /* parts of the widest group */
    struct part *parts;
    struct group *groups;
    double *room; /* working memory, [2 * n_parts + n_groups] and more */
    uint32_t *counts;
    uint64_t *sizes;
    struct batch_pieces pieces; /* of the batch that is put together */
    uint64_t steps;             /* of the thread that plans */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the thread that plans */
    pthread_cond_t ready; /* for the caller */
    bool stopping;
    bool news;          /* something has changed for the thread that plans */
    bool stalled;       /* no memory: the caller gets `error`, then it is tried again */
    rp_error error;     /* for the caller, once */
    bool cut;           /* the log says that items of different fields came in several batches */
    int64_t decoded_ns; /* time of the last reply that was decoded */

    bool stop;           /* the stream is to end, for the reason in end_text: the thread that plans does it */
    bool ending;         /* no more requests */
    bool late;           /* the stream's time is over: no more requests that wait, and it ends when all are answered */
    bool sending;        /* alone: a thread is sending requests */
    bool waiting;        /* alone: a call waits, and decodes the next reply itself */
    bool wanted;         /* on_demand: a call waits for a batch */
    int64_t deadline_ns; /* on_demand: of the call */
    char end_text[512];
    int64_t last_ns;            /* of the last batch, or of the start */
    uint64_t asked;             /* items of plans that are not dealt */
    uint64_t got;               /* items of batches that are */
    uint32_t capacity;          /* plans */
    uint32_t window, most;      /* of them: how many there may be now, and how many if the caller waits */
    uint64_t item_bytes;        /* of an item in a reply */
    uint32_t waits;             /* of the caller since the last burst, for batches under way */
    uint64_t head, build, tail; /* plans: next to take, next to deal out, next to draw; modulo capacity */
    struct plan *plans;
    rp_sampler_stats stats;
};

/* Without the lock. The last one frees the sampler. */
void sampler_ref(struct rp_sampler *self);
void sampler_unref(struct rp_sampler *self);
/* Tells the thread that plans, or the caller that does its work. */
void sampler_wake(struct rp_sampler *self);
/* Ends the stream: nothing was got for the time that the options allow. */
void sampler_time_out(struct rp_sampler *self, const char *why);

/* ---- life; without the lock ---- */

/* The decoder's memory is of the pool. Borrows conn. False: no memory; call part_fini all the same. */
bool part_init(struct part *self, struct rp_sampler *sampler, struct conn *conn, const char *table,
               struct batch_pool *pool, const struct batch_options *options);
void part_fini(struct part *self);

/* ---- requests ---- */

/* Asks for items; timeout_ms bounds the wait inside the broker, negative: no bound. False: no memory, nothing was asked for. */
bool part_ask(struct part *self, uint32_t count, int64_t now_ns, int64_t timeout_ms, struct plan *whole);
/* Asks for permits, or with 0 for the state. lacks: what the group has, if a batch of `wanted` items waits for more: the broker shows
 * that somebody waits. False: no memory. */
bool part_permit(struct part *self, uint32_t count, int64_t timeout_ms, uint32_t wanted, const struct group_sum *lacks);
/* Sends the next request of its group's move to the part: takes room (n below 0), or gives it. */
void part_move(struct part *self, int32_t n);
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
/* True if a reply has arrived, and no thread decodes one. */
bool part_has_arrived(const struct part *self);

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
bool part_peek(struct part *self, uint32_t n, double share, struct batch_pieces *pieces);
/* Drops n rows that were copied from the front, and moves the picks that have none left to `empty`. */
void part_consume(struct part *self, uint32_t n, struct pick_list *empty);
/* Frees picks. Without the lock: a large message is not freed at once. */
void pick_list_free(struct pick_list *list);
/* Drops the rows that no batch takes, unless earlier ones are being copied, and those that are on their way: items of one
 * distinct batch could be in another one, too. */
void part_drop_rows(struct part *self);

/* Returns when the stream ends unless a batch comes; INT64_MAX: never. */
static inline int64_t plans_end_ns(const struct rp_sampler *self)
{
    return self->idle_ns == INT64_MAX ? INT64_MAX : self->last_ns + self->idle_ns;
}

static inline struct plan *plan_at(const struct rp_sampler *self, uint64_t position)
{
    return &self->plans[position % self->capacity];
}

/* ---- how many plans there are ---- */

/* True if enough of the window is free for a burst. */
bool plans_due(const struct rp_sampler *self);
/* Draws as many plans as there is room for, if a burst is due. */
void plans_draw(struct rp_sampler *self, int64_t now_ns);
/* Returns a time-out inside the broker: at most that of an on_demand call, or of the stream. */
int64_t plans_timeout_ms(const struct rp_sampler *self, int64_t timeout_ms);
/* Draws plans of a sampler alone and sends a request for each, if a burst is due. Any thread. */
void plans_ask(struct rp_sampler *self);
/* Notes that the caller found no batch. */
void plans_note_wait(struct rp_sampler *self);

/* ---- who pays for a plan and gives its items ---- */

/* Pays the plans that the permits are enough for, and draws which parts give their items. */
void plans_pay(struct rp_sampler *self);
/* Draws the items again that a part owes and cannot give. False: no other part can. */
bool plans_redraw(struct rp_sampler *self, struct part *part, uint64_t count);
/* Takes items out of the plans that a part gives, the newest first: they do without them. */
void plans_excuse(struct rp_sampler *self, struct part *part, uint64_t count);
/* The next plan, which there must be, waits no longer and does with what there is. False: a group gives nothing, or a whole batch
 * is not whole. */
bool plans_hurry(struct rp_sampler *self);
/* Drops all plans that are not dealt. */
void plans_drop(struct rp_sampler *self);
/* Returns the items that plans in a state want from a group. */
uint64_t plans_want(const struct rp_sampler *self, uint32_t group, enum plan_state state);
/* True if the plan gets items from all groups that it wants some from. */
bool plan_has_some(const struct rp_sampler *self, const struct plan *plan);
/* Returns how many items the next plan wants from a group that has too few in all, and what there is; 0: it does not wait for
 * that. */
uint32_t group_lacks(const struct rp_sampler *self, uint32_t group, struct group_sum *out);
/* Returns the rows that no plan needs and that may exist nowhere else, of all groups. */
uint64_t plans_left(const struct rp_sampler *self);

/* ---- batches whose items are there ---- */

/* Deals batches out while their items are there. */
void plans_build(struct rp_sampler *self);
/* True if the next batch can be dealt out. */
bool plans_wait_no_more(const struct rp_sampler *self);
/* Copies what was dealt to a part; false: there is nothing. */
bool plans_copy(struct rp_sampler *self, struct part *part);
/* Writes what the next batch waits for. */
void plans_explain(const struct rp_sampler *self, char *out, size_t size);
