/* How a mixer works.
 *
 * A *part* is a table at one broker. A *group* of parts stands for one share of the items: the shards of a table, or sources that
 * divide their share by mass. A *plan* is a batch to be: how many items each group gives, then how many each part gives.
 *
 *   drawn    how many items each group gives: by the shares
 *   paid     the group has permits for them; how many each part gives is drawn by the masses that the parts told last
 *   dealt    all parts have the items, and each copies its own into the batch
 *   ready    the batch is complete
 *
 * Plans are drawn in bursts and paid together, so one request asks a part for its items of several batches. Items of a part are
 * alike (each is drawn independently of the others), so a plan takes whichever come first. An item's probability is the
 * probability inside its part times the share that was used for the draw: it is exact, however old the masses are.
 *
 * Permits (limiter charges) are got from parts with room, ahead of the plans that need them; picks are then made where the mass is.
 * The items that a part owes and cannot give are drawn again over the other parts. If sampling takes items out of the table, they
 * exist nowhere else: the request to a part that is away stays in flight, and its items come in addition, whenever they come. A plan
 * takes such spare rows before it draws others, and each row needs a permit like any other.
 *
 * One thread plans: the mixer's own, or the caller while it waits (on_demand, or a connection without a thread). Each part has a
 * thread that reads replies and copies rows out of them into batches, unless the caller does that, too. All fields are guarded by
 * the mixer's lock, which is never held while a function of a connection is called that takes a lock. The mixer is counted by its
 * owner, its threads and every request in flight. */
#ifndef AGENT_CLIENT_MIXER_IMPL_H
#define AGENT_CLIENT_MIXER_IMPL_H

#include <pthread.h>

#include "agent/client/sampler/mixer.h"
#include "agent/client/sampler/sample_source.h"
#include "proto/base/clock.h"
#include "proto/base/rng.h"

/* How a group is sampled: PermitReply.deal, and plain samples for a group of one part. */
enum deal { DEAL_PERMITS, DEAL_MASS, DEAL_QUEUE, DEAL_PLAIN, DEAL_UNKNOWN };

/* How long permits and items of a queue are waited for at one broker, before it is chosen again. */
#define CHOOSE_MS 50
/* A broker that does not answer for this long gets no requests until it does. */
#define SILENT_NS NS_PER_S
#define AWAY_NS (NS_PER_S / 4)
#define RETRY_NS (100 * NS_PER_MS)
/* Batches ahead for each part of the widest group: at least, and at most while the caller has to wait for batches that are under
 * way and all of them take no more than these bytes. The fewer are ahead, the newer are the priorities that they were drawn with. */
#define LEAST_AHEAD 2u
#define MOST_AHEAD 32u
#define AHEAD_BYTES (UINT64_C(64) << 20)

struct pick {
    struct part *part;
    struct pick *next; /* in part->asked, then in part->done */
    uint64_t id;       /* of the request; 0: not sent yet */
    uint32_t count;
    int64_t asked_ns;
    bool sure; /* the broker had items: it answers at once */
    bool arrived;
    bool abandoned;           /* nobody waits for it any more */
    bool recalled;            /* cancelled, but items that it brings are welcome */
    bool forgotten;           /* its items are dropped when they come */
    struct conn_reply *reply; /* not decoded yet, or the rows of `batches` are in it */
    rp_batch *batches;
    uint32_t row; /* rows of the first batch that were taken */
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

struct part {
    struct mixer *mixer;
    struct sample_source source; /* decoder: of the thread that decodes */
    uint32_t group;
    uint32_t number, shard; /* of the rp_source, and of the broker */
    pthread_t thread;
    bool started;
    pthread_cond_t work; /* for its thread */
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
};

struct mixer {
    uint32_t refs;
    rp_sampler_options options;
    struct batch_pool *pool; /* of the batches for the caller */
    struct rng rng;
    bool inlined; /* the caller plans and decodes */
    uint32_t n_parts, n_groups, n_sources, n_shards;
    uint32_t widest; /* parts of the widest group */
    struct part *parts;
    struct group *groups;
    double *room; /* working memory, [2 * n_parts + n_groups] and more */
    uint32_t *counts;
    uint64_t *sizes;
    struct batch_rows *rows; /* pieces of the batch that is put together */
    uint32_t rows_capacity;
    uint32_t turn;  /* which part of a queue is asked first */
    uint64_t steps; /* of the thread that plans */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    bool stopping, ending;
    bool stop;           /* the caller wants no more: the thread that plans ends the stream */
    bool late;           /* the stream's time is over: no more requests that wait, and it ends when all are answered */
    bool news;           /* something has changed for the thread that plans */
    bool wanted;         /* on_demand: a call waits for a batch */
    int64_t deadline_ns; /* on_demand: of the call */
    bool stalled;        /* no memory: the caller gets `error`, then it is tried again */
    rp_error error;      /* for the caller, once */
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

static inline struct plan *plan_at(struct mixer *self, uint64_t position)
{
    return &self->plans[position % self->capacity];
}

/* True if the items of picks may exist nowhere else. Such picks are never given up. */
static inline bool part_is_last(const struct part *self)
{
    return !self->source.paid || self->removes;
}

/* True if requests may be made that wait inside a broker. */
static inline bool mixer_is_open(const struct mixer *self)
{
    return (!self->options.on_demand || self->wanted) && !self->late && !self->ending;
}

/* All of these are called with the lock held, unless they say otherwise. Those that send or copy release it meanwhile. */

/* mixer.c: life and threads. */
/* Any thread, without the lock. */
void mixer_unref(struct mixer *self);
/* Tells the thread that plans, and a caller that does its work. */
void mixer_wake(struct mixer *self);

/* mixer_step.c: what the thread that plans does. */
/* Makes one step; returns the time of the next. Released meanwhile. */
int64_t mixer_step(struct mixer *self);
/* Ends the stream, whose plans do with what there is. The format tells why. Released meanwhile. */
void mixer_end(struct mixer *self, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* True if items are on their way that exist nowhere else, at parts that are away or at parts that are there. */
bool mixer_is_owed(const struct mixer *self, bool away);
/* True if no pick, no permit and no first question is in flight, at parts that are there. */
bool mixer_is_quiet(const struct mixer *self);

/* mixer_permit.c: what brokers say about their tables, and permits. */
/* Asks for permits, or with 0 for the state. Released while it sends. False: no memory. */
bool part_permit(struct part *self, uint32_t count);
/* Reads a PermitReply and returns the number of permits that it grants, at most `most`. False: it is none. */
bool part_read_permit(struct part *self, const struct conn_reply *reply, uint32_t most, uint32_t *granted);
/* Reads the end of the reply to a paid sample. */
void part_read_sample(struct part *self, const struct conn_reply *reply, uint64_t table_size);
/* The broker has answered, so it is there. */
void part_note_answer(struct part *self);
/* Takes an error of a request: the broker may be back soon, or the caller has to know. */
void part_note_error(struct part *self, rp_status status, const rp_error *error, int64_t now_ns);
/* Returns a time-out inside the broker: at most that of an on_demand call, or of the stream. */
int64_t mixer_broker_ms(const struct mixer *mixer, int64_t timeout_ms);

/* mixer_part.c: picks, and the rows that they bring. */
/* Asks a part for items. Released while it sends. */
void part_ask(struct part *self, uint32_t count);
/* Decodes one reply that has arrived; false: there is none. Released meanwhile. */
bool part_decode(struct part *self);
/* Returns the items that are still expected from picks: a part that is away promises nothing. */
uint64_t part_expected(const struct part *self);
/* Returns the rows of the first pick that has some for batches: the items of one pick are distinct, if they are to be. */
uint32_t part_first_rows(const struct part *self);
/* Gives up the picks and permits in flight: what they owe is asked for elsewhere. Picks whose items may exist nowhere else stay.
 * Released while it cancels. */
void part_abandon(struct part *self);
/* Cancels picks that wait inside a broker without prefetch. They stay until they are answered. Released while it cancels. */
void part_recall(struct part *self);
/* The sampler ends: gives up everything. Released while it cancels. */
void part_cancel(struct part *self);
/* Drops the rows that are on their way. */
void part_forget(struct part *self);
/* Adds the next n rows to the pieces in mixer->rows. False: no memory. */
bool part_peek(struct part *self, uint32_t n, double share, uint32_t *pieces);
/* Lets the part copy its next rows into the batch of a plan. */
void part_deal(struct part *self, struct copy *copy);
/* Copies what was dealt to it; false: there is nothing. Released meanwhile. */
bool part_copy(struct part *self);
/* Drops the rows that no batch takes, unless earlier ones are being copied, and those that are on their way: items of one
 * distinct batch could be in another one, too. */
void part_drop_rows(struct part *self);
void part_fini(struct part *self);
void *part_main(void *arg);

/* mixer_draw.c: how many plans there are. */
/* True if enough of the window is free for a burst. */
bool plans_due(const struct mixer *self);
/* Draws as many plans as there is room for, if a burst is due. */
void plans_draw(struct mixer *self, int64_t now_ns);
/* Sets how many plans there may be at most: the more the smaller they are, but no more than the limiters could pay for. */
void plans_set_most(struct mixer *self, uint64_t batch_bytes);
/* Notes that the caller found no batch. */
void plans_note_wait(struct mixer *self);

/* mixer_plan.c: who pays for a plan and gives its items. */
/* Pays the plans that the permits are enough for, and draws which parts give their items. */
void plans_pay(struct mixer *self);
/* Draws the items again that a part owes and cannot give. False: no other part can. */
bool plans_redraw(struct mixer *self, struct part *part, uint64_t count);
/* Takes items out of the plans that a part gives, the newest first: they do without them. */
void plans_excuse(struct mixer *self, struct part *part, uint64_t count);
/* The next plan, which there must be, waits no longer and does with what there is. False: a group gives nothing, or a whole batch
 * is not whole. */
bool plans_hurry(struct mixer *self);
/* The same for a call without prefetch. False: there is nothing, and the plan was dropped. */
bool plans_hurry_call(struct mixer *self);
/* Drops all plans that are not ready. */
void plans_drop(struct mixer *self);
/* Returns the items that plans in a state want from a group. */
uint64_t plans_want(struct mixer *self, uint32_t group, enum plan_state state);
/* Returns a part's weight in draws of its group: 0 if it can give nothing. */
double part_weight(const struct part *self);
/* The plan does without some items; what was paid for them is there again. */
void plan_shrink(struct mixer *self, struct plan *plan, uint32_t group, uint32_t count);
/* Adds up the parts of a group that are there. False: some of them have not told their masses. */
bool group_sum(const struct mixer *self, const struct group *group, struct group_sum *out);
/* Returns how many items the next plan wants from a group that has too few in all, and what there is; 0: it does not wait for
 * that. */
uint32_t group_lacks(struct mixer *self, uint32_t group, struct group_sum *out);
/* Returns the rows that no plan needs and that may exist nowhere else. */
uint64_t group_left(const struct mixer *self, const struct group *group);
/* Returns the rows that are there for a group. */
uint64_t group_rows(const struct mixer *self, const struct group *group);
/* True if the part had items when it was asked for some, and has not answered. */
bool part_comes(const struct part *self);
/* The same for any part of a group. */
bool group_comes(const struct mixer *self, const struct group *group);
/* Returns how many items a plan gets from a group if it waits no longer. */
uint32_t plan_offer(const struct mixer *self, const struct plan *plan, uint32_t group);
/* True if the plan gets items from all groups that it wants some from. */
bool plan_has_some(const struct mixer *self, const struct plan *plan);

/* mixer_build.c: batches whose items are there. */
/* Deals batches out while their items are there. Released meanwhile. */
void plans_build(struct mixer *self);
/* True if the next batch can be dealt out. */
bool plans_wait_no_more(struct mixer *self);
/* All parts have copied their rows: completes the batch. Takes the lock. */
void plan_finish(struct mixer *self, struct plan *plan);

/* mixer_why.c: reasons. */
/* Writes what the next batch waits for. */
void mixer_explain(struct mixer *self, char *out, size_t size);
/* Asks the broker what its requests wait for. Released while it sends. */
void part_ask_why(struct part *self);

#endif
