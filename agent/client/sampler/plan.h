/* How a sampler works.
 *
 * A *part* is a table at one broker (part.h). A *group* of parts stands for one share of the items: the shards of a table, or sources
 * that divide their share by mass. A *plan* is a batch to be: how many items each group gives, then how many each part gives.
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
 * The items that a part owes and cannot give are drawn again over the other parts. If sampling takes items out of the table, they
 * exist nowhere else: the request to a part that is away stays in flight, and its items come in addition, whenever they come. A plan
 * takes such spare rows before it draws others, and each row needs a permit like any other.
 *
 * One thread plans: the sampler's own, or the caller while it waits (on_demand, or a connection without a thread). Each of several
 * parts has a thread that reads replies and copies rows out of them into batches, unless the caller does that, too. All fields are
 * guarded by the hub's lock. Functions are called with the lock held; those that send or copy release it meanwhile. */
#ifndef AGENT_CLIENT_PLAN_H
#define AGENT_CLIENT_PLAN_H

#include "agent/client/sampler/part.h"
#include "proto/base/rng.h"

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
    uint32_t *of_group;  /* [n_groups] items */
    uint32_t *need;      /* [n_parts] items; of queues when they are dealt out */
    double *share;       /* [n_parts] used for the draw */
    struct copy *copies; /* [n_parts] */
    uint32_t left;       /* copies that are not made yet; atomic */
    struct batch_join *join;
    rp_batch *batches;
    rp_error error; /* instead of batches */
};

struct rp_sampler {
    struct hub hub;
    struct batch_pool *pool; /* of the batches for the caller */
    struct rng rng;
    bool alone; /* one part: its replies are the batches */
    uint32_t n_parts, n_groups, n_sources, n_shards;
    uint32_t widest; /* parts of the widest group */
    struct part *parts;
    struct group *groups;
    double *room; /* working memory, [2 * n_parts + n_groups] and more */
    uint32_t *counts;
    uint64_t *sizes;
    struct pieces pieces; /* of the batch that is put together */
    uint32_t turn;        /* which part of a queue is asked first */
    uint64_t steps;       /* of the thread that plans */
    pthread_t thread;
    bool started;

    bool stop;           /* the stream is to end, for the reason in end_text: the thread that plans does it */
    bool ending;         /* no more requests */
    bool late;           /* the stream's time is over: no more requests that wait, and it ends when all are answered */
    bool sending;        /* alone: a thread is sending requests */
    bool wanted;         /* on_demand: a call waits for a batch */
    int64_t deadline_ns; /* on_demand: of the call */
    char end_text[512];
    int64_t last_ns;            /* of the last batch, or of the start */
    uint64_t asked;             /* items of plans that are not dealt */
    uint64_t got;               /* items of batches that are */
    uint32_t capacity;          /* plans */
    uint32_t window, most;      /* of them: how many there may be now, and how many if the caller waits */
    uint32_t waits;             /* of the caller since the last burst, for batches under way */
    uint64_t head, build, tail; /* plans: next to take, next to deal out, next to draw; modulo capacity */
    struct plan *plans;
    rp_sampler_stats stats;
};

static inline struct plan *plan_at(const struct rp_sampler *self, uint64_t position)
{
    return &self->plans[position % self->capacity];
}

/* ---- how many plans there are ---- */

/* True if enough of the window is free for a burst. */
bool plans_due(const struct rp_sampler *self);
/* Draws as many plans as there is room for, if a burst is due. */
void plans_draw(struct rp_sampler *self, int64_t now_ns);
/* Returns when the stream ends unless a batch comes; INT64_MAX: never. */
int64_t plans_end_ns(const struct rp_sampler *self);
/* Returns a time-out inside the broker: at most that of an on_demand call, or of the stream. */
int64_t plans_timeout_ms(const struct rp_sampler *self, int64_t timeout_ms);
/* Draws plans of a sampler alone and sends a request for each, if a burst is due. Any thread. */
void plans_ask(struct rp_sampler *self);
/* Takes the reply to such a request. */
void plans_take(struct hub *hub, struct pick *pick, rp_batch **batches, rp_status status, const rp_error *error);
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
/* The same for a call without prefetch. False: there is nothing, and the plan was dropped. */
bool plans_hurry_call(struct rp_sampler *self);
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

#endif
