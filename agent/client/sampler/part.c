/* See sampler.h. */
#include "agent/client/sampler/sampler.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/trace.h"
#include "proto/wire/pb.h"
#include "proto/wire/wire.h"

#define MOST_COUNT (UINT64_C(1) << 48)
#define MOST_MASS 1e300

/* ---- the sampler, as its parts see it ---- */

void sampler_ref(struct rp_sampler *self)
{
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
}

void sampler_unref(struct rp_sampler *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (uint32_t p = 0; p < self->n_parts; p++)
        part_fini(&self->parts[p]);
    for (uint32_t i = 0; self->plans && i < self->capacity; i++) {
        batch_list_release(&self->plans[i].batches);
        free(self->plans[i].copies);
        batch_join_drop(&self->plans[i].join);
    }
    batch_pool_unref(&self->pool);
    tokens_destroy(&self->tokens);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->work);
    pthread_cond_destroy(&self->ready);
    free(self->parts);
    free(self->groups);
    free(self->plans);
    free(self->room);
    free(self->counts);
    free(self->sizes);
    free(self->pieces.rows);
    free(self);
}

void sampler_wake(struct rp_sampler *self)
{
    self->news = true;
    pthread_cond_signal(self->inlined ? &self->ready : &self->work);
}

void sampler_time_out(struct rp_sampler *self, const char *why)
{
    snprintf(self->end_text, sizeof self->end_text, "nothing could be sampled from table '%s' for %lld ms: %s",
             self->parts[0].table, (long long)(self->idle_ns / NS_PER_MS), why);
    self->stop = true;
}

/* Tells the caller of an error, unless it has not taken the last one. */
static void sampler_fail(struct rp_sampler *self, rp_status status, const char *text)
{
    if (self->error.status != RP_OK)
        return;
    err_set(&self->error, status, "%s", text);
    pthread_cond_signal(&self->ready);
}

/* ---- picks: states ---- */

enum pick_event { EVENT_RECALL, EVENT_DROP, EVENT_REPLY, EVENT_OVERTAKEN, EVENT_USED, N_EVENTS };

#define NEVER (PICK_FREED + 1)

/* What each event makes of a pick, in the order of the events. A recall or a drop comes from this side, a reply from the broker; a reply is
 * overtaken if its memory holds other data by now, and used when it is decoded and when its last row is taken. */
static const uint8_t transitions[][N_EVENTS] = {
    [PICK_ASKED] = {PICK_RECALLED, PICK_DROPPED, PICK_ARRIVED, NEVER, NEVER},
    [PICK_RECALLED] = {PICK_RECALLED, PICK_DROPPED, PICK_ARRIVED, NEVER, NEVER},
    [PICK_DROPPED] = {NEVER, NEVER, PICK_FREED, NEVER, NEVER},
    [PICK_ARRIVED] = {PICK_ARRIVED, PICK_UNWANTED, NEVER, PICK_ASKED, PICK_DECODED},
    [PICK_UNWANTED] = {PICK_UNWANTED, PICK_UNWANTED, NEVER, PICK_UNWANTED, PICK_FREED},
    [PICK_DECODED] = {NEVER, NEVER, NEVER, NEVER, PICK_FREED},
};

static enum pick_state pick_move(struct pick *self, enum pick_event event)
{
    enum pick_state next = (enum pick_state)transitions[self->state][event];
    assert(next <= PICK_FREED);
    return self->state = next;
}

static bool is_in_flight(const struct pick *self)
{
    return self->state == PICK_ASKED || self->state == PICK_RECALLED;
}

static void pick_free(struct pick *self)
{
    batch_list_release(&self->batches);
    conn_loan_end(self->part->conn, &self->loan);
    conn_reply_destroy(&self->reply);
    free(self);
}

void pick_list_free(struct pick_list *list)
{
    for (struct pick *pick = TAILQ_FIRST(list), *next; pick; pick = next) {
        next = TAILQ_NEXT(pick, link);
        pick_free(pick);
    }
}

/* ---- life ---- */

bool part_init(struct part *self, struct rp_sampler *sampler, struct conn *conn, const char *table,
               struct batch_pool *pool, const struct batch_options *options)
{
    *self = (struct part){.sampler = sampler, .conn = conn, .table = strdup(table)};
    self->whole = sampler->whole;
    self->flexible = sampler->flexible;
    self->decoder = pool ? batch_decoder_new(pool, options) : NULL;
    self->copies_end = &self->copies;
    TAILQ_INIT(&self->asked);
    TAILQ_INIT(&self->done);
    pthread_cond_init(&self->work, NULL);
    return self->table && self->decoder;
}

void part_fini(struct part *self)
{
    pick_list_free(&self->asked);
    pick_list_free(&self->done);
    batch_decoder_destroy(&self->decoder);
    free(self->table);
    pthread_cond_destroy(&self->work);
}

/* ---- what the broker says about its table ---- */

static double as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return value < most ? value : most;
}

/* Whatever a broker says, sums over parts neither overflow nor become infinite. */
static void set_state(struct part *self, double mass, uint64_t room, uint64_t size)
{
    self->mass = !(mass > 0) ? 0 : mass < MOST_MASS ? mass : MOST_MASS;
    self->room = at_most(room, MOST_COUNT);
    self->size = at_most(size, MOST_COUNT);
    self->state_ns = clock_ns();
}

/* Checks what the first answer says: whether the part can be used. */
static rp_status check_deal(const struct part *self, rp_error *err)
{
    static const char *const ways[] = {"has a ratio of samples to inserts", "has no ratio", "is a queue"};
    const struct group *group = self->group;
    const struct part *other = NULL; /* of the same group, that has answered before */
    for (uint32_t i = 0; i < group->n && !other; i++)
        other = self->siblings[i].known && &self->siblings[i] != self ? &self->siblings[i] : NULL;
    uint32_t batch = self->sampler->options.batch_size;
    if (self->deal > DEAL_QUEUE)
        return err_set(err, RP_BAD_MESSAGE, "the broker does not say how table '%s' is sampled over shards",
                       self->table);
    if (other && group->deal != self->deal)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "table '%s' %s and table '%s' %s: sources without a share must be alike; give each of them a share",
            other->table, ways[group->deal], self->table, ways[self->deal]);
    if (self->deal == DEAL_PERMITS && self->buffer > 0 && batch > self->buffer)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch of %u is more than the limiter of one shard of table '%s' can be apart (%g): raise "
                       "error_buffer to at least %u, or use fewer shards",
                       batch, self->table, self->buffer, (batch + 1) / 2 * group->n);
    if (self->lag && self->deal == DEAL_MASS && self->sampler->options.distinct && !self->sampler->flexible)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "a batch of table '%s' without replacement must be there before anything is sampled, and over shards the "
            "limiter lag makes room for inserts when items are sampled: leave distinct out, or make it flexible",
            self->table);
    return RP_OK;
}

/* The first answer says how the part is sampled, before anything is picked there. Returns true if it can be. */
static bool learn_deal(struct part *self)
{
    if (self->known || self->group->deal == DEAL_PLAIN)
        return true;
    rp_error error;
    if (check_deal(self, &error) != RP_OK) {
        sampler_fail(self->sampler, (rp_status)error.status, error.text);
        self->retry_ns = clock_ns() + RETRY_NS;
        return false;
    }
    self->group->deal = (enum deal)self->deal;
    self->paid = self->deal != DEAL_QUEUE;
    self->whole = false;
    self->flexible = self->deal == DEAL_QUEUE;
    return true;
}

/* Reads a PermitReply and returns the number of permits that it grants, at most `most`. */
static uint32_t read_permit(struct part *self, const struct conn_reply *reply, uint32_t most)
{
    uint64_t values[13];
    if (conn_reply_numbers(reply, REPLAY__REPLY__BODY_PERMIT, values, 13, NULL) != RP_OK) {
        if (reply->status == RP_OK)
            self->retry_ns = clock_ns() + RETRY_NS;
        return 0;
    }
    set_state(self, as_double(values[4]), values[3], values[5]);
    self->deal = values[2] <= UINT32_MAX ? (uint32_t)values[2] : UINT32_MAX;
    self->min_size = at_most(values[6], MOST_COUNT);
    self->buffer = as_double(values[7]) > 0 ? as_double(values[7]) : 0;
    self->removes = values[8] != 0;
    self->lag = values[9] != 0;
    self->version = values[10];
    self->insert_room = at_most(values[11], INT32_MAX);
    self->insert_need = at_most(values[12], INT32_MAX);
    self->known = learn_deal(self);
    return (uint32_t)at_most(values[1], most);
}

/* Takes an error of a request: the broker may be back soon, or the caller has to know. */
static void note_error(struct part *self, rp_status status, const rp_error *error)
{
    if (status == RP_DEADLINE_EXCEEDED) {
        snprintf(self->why, sizeof self->why, "%s", error->text);
        return;
    }
    self->retry_ns = clock_ns() + RETRY_NS;
    if (status != RP_CANCELLED && status != RP_UNAVAILABLE)
        sampler_fail(self->sampler, status, error->text);
}

/* ---- permits ---- */

static void on_permit(void *ctx, struct conn_reply *reply)
{
    struct permit *permit = ctx;
    struct part *part = permit->part;
    struct rp_sampler *sampler = part->sampler;
    rp_error error = {0};
    rp_status status = conn_reply_status(reply, &error);
    pthread_mutex_lock(&sampler->lock);
    if (part->permit == permit)
        part->permit = NULL;
    part->group->out -= permit->count;
    if (reply->answered)
        part->away = false;
    uint32_t granted = read_permit(part, reply, permit->most);
    part->group->stock += granted;
    if (granted)
        part->why[0] = '\0'; /* it waits no more */
    if (status == RP_OK && permit->most && !granted)
        part->retry_ns = clock_ns() + RETRY_NS; /* it neither grants nor waits */
    if (status != RP_OK && !sampler->stopping)
        note_error(part, status, &error);
    sampler_wake(sampler);
    pthread_mutex_unlock(&sampler->lock);
    conn_reply_destroy(&reply);
    free(permit);
    sampler_unref(sampler);
}

bool part_permit(struct part *self, uint32_t count, int64_t timeout_ms, uint32_t wanted, const struct group_sum *lacks)
{
    struct rp_sampler *sampler = self->sampler;
    struct permit *permit = malloc(sizeof *permit);
    if (!permit)
        return false; /* asked for again at the next step */
    *permit = (struct permit){.part = self, .count = count, .most = count, .asked_ns = clock_ns()};
    permit->sure = count && self->room > 0;
    self->room -= at_most(self->room, count); /* until it tells */
    self->permit = permit;
    self->group->out += count;
    sampler_ref(sampler);
    pthread_mutex_unlock(&sampler->lock);
    Replay__Permit body = REPLAY__PERMIT__INIT;
    body.table = self->table;
    body.count = count;
    body.flexible = true;
    body.has_timeout_ms_case = REPLAY__PERMIT__HAS_TIMEOUT_MS_TIMEOUT_MS;
    body.timeout_ms = (uint64_t)timeout_ms;
    body.wanted = wanted;
    body.size = wanted ? lacks->size : 0;
    body.min_size = wanted ? lacks->min_size : 0;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PERMIT, .body = &body.base, .timeout_ms = -1};
    uint64_t id = conn_send(self->conn, &message, on_permit, permit);
    pthread_mutex_lock(&sampler->lock);
    if (self->permit == permit) /* it may have been answered and freed meanwhile */
        permit->id = id;
    return true;
}

/* ---- room for inserts ---- */

static void on_move(void *ctx, struct conn_reply *reply)
{
    struct part *part = ctx;
    struct rp_sampler *sampler = part->sampler;
    struct move *move = &part->group->move;
    pthread_mutex_lock(&sampler->lock);
    bool answered = reply->answered && reply->status == RP_OK, back = part == move->from;
    uint32_t n = read_permit(part, reply, move->n);
    if (!move->taking)
        n = answered && !back ? move->n - n : 0; /* what a version has settled meanwhile is nobody's any more */
    move->to = move->taking ? move->to : move->from;
    move->n = n;
    move->held = n > 0;
    move->busy = false;
    sampler_wake(sampler);
    pthread_cond_signal(&sampler->ready);
    pthread_mutex_unlock(&sampler->lock);
    conn_reply_destroy(&reply);
    sampler_unref(sampler);
}

void part_move(struct part *self, int32_t n)
{
    struct rp_sampler *sampler = self->sampler;
    struct move *move = &self->group->move;
    Replay__Permit body = REPLAY__PERMIT__INIT;
    body.table = self->table;
    body.move = n;
    body.version = move->version;
    move->busy = true;
    move->held = false;
    move->taking = n < 0;
    sampler_ref(sampler);
    pthread_mutex_unlock(&sampler->lock);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PERMIT, .body = &body.base, .timeout_ms = -1};
    conn_send(self->conn, &message, on_move, self);
    pthread_mutex_lock(&sampler->lock);
}

/* ---- picks: asking ---- */

static void on_pick(void *ctx, struct conn_reply *reply)
{
    struct pick *pick = ctx;
    struct part *part = pick->part;
    struct rp_sampler *sampler = part->sampler;
    pthread_mutex_lock(&sampler->lock);
    bool wanted = pick_move(pick, EVENT_REPLY) == PICK_ARRIVED;
    if (wanted) {
        pick->reply = reply;
        if (!sampler->decodes)
            pthread_cond_signal(&part->work);
        else if (sampler->waiting)
            pthread_cond_signal(&sampler->ready);
        else if (!part->decoding) /* otherwise the thread that decodes looks for more */
            sampler_wake(sampler);
    } else if (reply->answered) {
        part->away = false;
        sampler_wake(sampler);
    }
    if (--sampler->unanswered == 0 && sampler->stopping)
        pthread_cond_signal(&sampler->ready);
    pthread_mutex_unlock(&sampler->lock);
    if (!wanted) {
        conn_reply_destroy(&reply);
        pick_free(pick);
    }
    sampler_unref(sampler);
}

/* Sends the request of a pick; again: its id, if it was answered by memory that holds other data now. Released meanwhile. */
static void send_pick(struct pick *pick, uint64_t again)
{
    struct part *self = pick->part;
    struct rp_sampler *sampler = self->sampler;
    uint64_t seed = again ? 0 : sampler->options.seed;
    if (seed) { /* the next request draws other numbers; 0 would be none */
        sampler->options.seed = seed + UINT64_C(0x9e3779b97f4a7c15);
        sampler->options.seed += sampler->options.seed == 0;
    }
    sampler->unanswered++;
    sampler_ref(sampler);
    pthread_mutex_unlock(&sampler->lock);
    Replay__Sample body = REPLAY__SAMPLE__INIT;
    body.table = self->table;
    body.count = pick->count;
    body.distinct = sampler->options.distinct != 0;
    body.flexible = self->flexible;
    body.whole = self->whole;
    body.paid = self->paid;
    body.shared = !again && conn_has_arena(self->conn) ? WIRE_SHARED_HEAD : 0;
    body.seed = seed;
    body.lease_ms = sampler->options.lease_ms;
    if (pick->timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)pick->timeout_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_SAMPLE,
                                   .body = &body.base,
                                   .timeout_ms = -1,
                                   .again = again,
                                   .loan = again ? NULL : &pick->loan};
    uint64_t id = conn_send(self->conn, &message, on_pick, pick);
    pthread_mutex_lock(&sampler->lock);
    for (struct pick *at = TAILQ_FIRST(&self->asked); at; at = TAILQ_NEXT(at, link))
        if (at == pick) /* it may have been decoded and freed meanwhile */
            pick->id = id;
    if (sampler->ending)
        part_recall(self); /* another thread has ended the stream meanwhile */
}

bool part_ask(struct part *self, uint32_t count, int64_t now_ns, int64_t timeout_ms, struct plan *whole)
{
    struct pick *pick = malloc(sizeof *pick);
    if (!pick)
        return false;
    *pick = (struct pick){.part = self,
                          .count = count,
                          .sure = self->size > 0,
                          .asked_ns = now_ns,
                          .timeout_ms = timeout_ms,
                          .whole = whole};
    TAILQ_INSERT_TAIL(&self->asked, pick, link);
    self->outstanding += count;
    send_pick(pick, 0);
    return true;
}

/* Nobody waits for a pick any more: its reply function frees it, or the thread that decodes it. */
static void drop(struct part *self, struct pick *pick)
{
    if (pick->state != PICK_UNWANTED)
        self->outstanding -= pick->count;
    if (is_in_flight(pick))
        TAILQ_REMOVE(&self->asked, pick, link);
    pick_move(pick, EVENT_DROP);
}

void part_forget(struct part *self)
{
    for (struct pick *pick = TAILQ_FIRST(&self->asked), *next; pick; pick = next) {
        next = TAILQ_NEXT(pick, link);
        drop(self, pick);
    }
}

/* Cancels the picks that are in flight: with `recall` their items are still welcome. */
static void cancel_picks(struct part *self, bool recall)
{
    struct rp_sampler *sampler = self->sampler;
    for (struct pick *pick = TAILQ_FIRST(&self->asked); pick;) {
        uint64_t id = pick->id;
        if (!id || !is_in_flight(pick) || (recall && pick->state == PICK_RECALLED)) {
            pick = TAILQ_NEXT(pick, link);
            continue;
        }
        if (recall)
            pick_move(pick, EVENT_RECALL);
        else
            drop(self, pick);
        pthread_mutex_unlock(&sampler->lock);
        conn_cancel(self->conn, id);
        pthread_mutex_lock(&sampler->lock);
        pick = TAILQ_FIRST(&self->asked); /* the list may have changed */
    }
}

void part_recall(struct part *self)
{
    if (self->group->deal == DEAL_PLAIN) /* others answer soon, or keep the items for later */
        cancel_picks(self, true);
}

void part_abandon(struct part *self)
{
    if (self->permit && self->permit->count) {
        self->group->out -= self->permit->count;
        self->permit->count = 0; /* what it still grants is welcome */
        self->permit = NULL;
    }
    if (!part_is_last(self))
        cancel_picks(self, false);
}

void part_cancel(struct part *self)
{
    uint64_t permit = self->permit ? self->permit->id : 0;
    cancel_picks(self, false);
    pthread_mutex_unlock(&self->sampler->lock);
    /* Nobody decodes those that have arrived; the last reference to the sampler may outlive this connection. */
    for (struct pick *pick = TAILQ_FIRST(&self->asked); pick; pick = TAILQ_NEXT(pick, link))
        conn_loan_end(self->conn, &pick->loan);
    if (permit)
        conn_cancel(self->conn, permit);
    pthread_mutex_lock(&self->sampler->lock);
}

/* ---- picks: decoding ---- */

/* Takes what a reply says about the table. A part that gives nothing has no items until it says again that it has some: others give
 * them meanwhile. */
static void note_size(struct part *self, const rp_batch *batches, rp_status status)
{
    uint64_t n = batch_list_items(batches), size = batches ? batches->info.table_size : 0;
    enum deal deal = self->group->deal;
    if (self->paid && status == RP_OK && batches)
        set_state(self, batches->mass, batches->room, n ? size : 0);
    else if (self->paid || (deal == DEAL_QUEUE && status == RP_DEADLINE_EXCEEDED))
        self->size = 0;
    else if (status == RP_OK && n)
        self->size = deal != DEAL_QUEUE ? size : size > n ? size - n : 0; /* items of a queue have left it */
}

/* Keeps the rows of a decoded reply for batches, and the reply if they are in it. */
static void keep_rows(struct part *self, struct pick *pick, rp_batch **batches, rp_status status, const rp_error *error)
{
    bool wanted = pick->state == PICK_DECODED;
    if (pick->reply->answered)
        self->away = false;
    note_size(self, *batches, status);
    if (!wanted || batch_list_items(*batches) == 0)
        batch_list_release(batches);
    uint64_t n = batch_list_items(*batches);
    if (status != RP_OK)
        note_error(self, status, error);
    pick->batches = *batches;
    self->rows += n;
    if (n)
        self->why[0] = '\0';
    bool less = self->sampler->options.distinct || (!self->paid && self->flexible && n);
    if (status == RP_OK && less && wanted && self->group->deal != DEAL_QUEUE)
        self->excused += pick->count - n;
    if (status == RP_OK && n == 0 && wanted)
        self->retry_ns = clock_ns() + RETRY_NS;
    if (n)
        TAILQ_INSERT_TAIL(&self->done, pick, link);
}

/* Gives the plan of a sampler alone all of the reply to its request. */
static void take_whole(struct rp_sampler *self, struct pick *pick, rp_batch **batches, rp_status status,
                       const rp_error *error)
{
    struct part *part = pick->part;
    struct plan *plan = pick->whole;
    uint64_t n = batch_list_items(*batches);
    plan->state = PLAN_READY;
    plan->error.status = RP_OK;
    self->asked -= plan->count;
    if (n) {
        plan->batches = *batches;
        self->got += n;
        self->last_ns = self->decoded_ns;
        part->why[0] = '\0';
    } else if (status == RP_OK) {
        batch_list_release(batches);
        part->retry_ns = self->decoded_ns + RETRY_NS;
        if (self->options.on_demand)
            err_set(&plan->error, RP_BAD_MESSAGE, "0 items came for a request of %u", plan->count);
    } else if (status == RP_CANCELLED || (status == RP_DEADLINE_EXCEEDED && pick->reply->answered)) {
        if (pick->reply->answered || !part->why[0])
            snprintf(part->why, sizeof part->why, "%s", error->text);
        self->wanted = false;       /* a call makes one request */
        if (status == RP_CANCELLED) /* by this side, or by a broker that shuts down: the next one may be there soon */
            part->retry_ns = self->decoded_ns + RETRY_NS;
        else if (!self->stop && self->decoded_ns >= plans_end_ns(self)) /* and no other request got items meanwhile */
            sampler_time_out(self, error->text);
    } else {
        plan->error = *error;
    }
    pthread_cond_signal(&self->ready);
}

/* Returns the first pick whose reply can be decoded; a reply that is taken whole only after those before it. */
static struct pick *next_arrived(const struct part *self)
{
    struct pick *pick = TAILQ_FIRST(&self->asked);
    while (pick && is_in_flight(pick) && !self->sampler->alone)
        pick = TAILQ_NEXT(pick, link);
    return pick && !is_in_flight(pick) ? pick : NULL;
}

static rp_status decode(struct part *self, const struct pick *pick, rp_batch **batches, struct batch_shared *shared,
                        rp_error *error)
{
    RP_TRY(conn_reply_status(pick->reply, error));
    rp_status status = batch_decode_reply(self->decoder, pick->reply, batches, error);
    *shared = batch_decoder_shared(self->decoder);
    if (status != RP_OK)
        return status;
    uint64_t n = batch_list_items(*batches);
    if (n <= pick->count)
        return RP_OK;
    batch_list_release(batches);
    return err_set(error, RP_BAD_MESSAGE, "%llu items came for a request of %u", (unsigned long long)n, pick->count);
}

/* Keeps the bytes that an item takes in a reply, or in the batch if the reply says where it is: the most of late. */
static void note_bytes(struct rp_sampler *sampler, const struct pick *pick, struct batch_shared shared)
{
    uint64_t bytes = shared.bytes, old = sampler->item_bytes - sampler->item_bytes / 16;
    for (uint32_t i = 0; i < pick->reply->n_payload; i++)
        bytes += zmq_msg_size(&pick->reply->payload[i]);
    bytes /= pick->count;
    sampler->item_bytes = bytes > old ? bytes : old;
}

/* Asks for the same items again, by the socket. False: nobody wants them. Released meanwhile. */
static bool ask_again(struct pick *pick)
{
    struct part *self = pick->part;
    struct conn_reply *over = pick->reply;
    uint64_t id = pick->loan.id;
    self->sampler->stats.overtaken++;
    if (pick_move(pick, EVENT_OVERTAKEN) != PICK_ASKED)
        return false;
    self->away = false;
    pick->reply = NULL;
    pick->id = 0;
    pick->asked_ns = clock_ns();
    send_pick(pick, id);
    conn_reply_destroy(&over); /* it has no large message */
    return true;
}

/* Decodes a reply. False: no memory; the caller gets the error, and it is tried again. Released meanwhile. */
static bool decode_pick(struct part *self, struct pick *pick, bool *whole)
{
    struct rp_sampler *sampler = self->sampler;
    rp_batch *batches = NULL;
    rp_error error = {0};
    self->decoding = true;
    pthread_mutex_unlock(&sampler->lock);
    int64_t start = clock_ns(), traced = trace_now(conn_trace(self->conn));
    struct batch_shared shared = {0};
    rp_status status = decode(self, pick, &batches, &shared, &error);
    if (!shared.overtaken && status != RP_NO_MEMORY) /* otherwise it is needed again */
        conn_loan_end(self->conn, &pick->loan);
    trace_add_since(conn_trace(self->conn), "decode", NULL, traced, pick->count);
    pthread_mutex_lock(&sampler->lock);
    sampler->decoded_ns = clock_ns();
    sampler->stats.decode_ns += (uint64_t)(sampler->decoded_ns - start);
    note_bytes(sampler, pick, shared);
    *whole = true;
    if (shared.overtaken && ask_again(pick))
        return true;
    status = shared.overtaken ? RP_CANCELLED : status;
    if (status == RP_NO_MEMORY && pick->reply->answered && pick->reply->status == RP_OK) {
        sampler->stalled = true; /* its items may exist nowhere else */
        sampler->error = error;
        pthread_cond_signal(&sampler->ready);
        return false;
    }
    *whole = pick->state == PICK_UNWANTED || (status == RP_OK && batch_list_items(batches) == pick->count);
    if (pick->state != PICK_UNWANTED)
        self->outstanding -= pick->count;
    TAILQ_REMOVE(&self->asked, pick, link);
    pick_move(pick, EVENT_USED);
    sampler->stats.shared_bytes += shared.bytes;
    if (sampler->alone)
        take_whole(sampler, pick, &batches, status, &error);
    else
        keep_rows(self, pick, &batches, status, &error);
    struct conn_reply *over = pick->batches && pick->batches->in_reply.step ? NULL : pick->reply;
    pick->reply = over ? NULL : pick->reply;
    bool empty = !pick->batches;
    pthread_mutex_unlock(&sampler->lock); /* a large message is not freed at once */
    conn_reply_destroy(&over);
    if (empty)
        pick_free(pick);
    pthread_mutex_lock(&sampler->lock);
    return true;
}

bool part_decode(struct part *self, bool *whole)
{
    struct rp_sampler *sampler = self->sampler;
    struct pick *pick = next_arrived(self);
    if (!pick || self->decoding || sampler->stalled || sampler->stopping)
        return false;
    bool decoded = decode_pick(self, pick, whole);
    self->decoding = false;
    return decoded;
}

bool part_has_arrived(const struct part *self)
{
    return !self->decoding && next_arrived(self);
}

/* ---- questions ---- */

bool part_comes(const struct part *self)
{
    for (const struct pick *pick = TAILQ_FIRST(&self->asked); pick && !self->away; pick = TAILQ_NEXT(pick, link))
        if (pick->sure || !is_in_flight(pick))
            return true;
    return false;
}

bool part_is_late(const struct part *self, int64_t limit_ns)
{
    const struct pick *pick = TAILQ_FIRST(&self->asked);
    int64_t inside = CHOOSE_MS * NS_PER_MS, limit = clock_ns() - limit_ns;
    while (pick && !is_in_flight(pick))
        pick = TAILQ_NEXT(pick, link);
    bool items = pick && pick->asked_ns + (self->paid ? 0 : inside) < limit;
    bool permits = self->permit && self->permit->asked_ns + (self->permit->sure ? 0 : inside) < limit;
    return !conn_is_hosted(self->conn) && (items || permits);
}

static void on_why(void *ctx, struct conn_reply *reply)
{
    struct part *self = ctx;
    struct rp_sampler *sampler = self->sampler;
    Replay__WhyReply *why;
    conn_reply_read(reply, REPLAY__REPLY__BODY_WHY, &why, NULL);
    char us[64]; /* with keys a broker shows another number, which it alone knows */
    snprintf(us, sizeof us, "client %016llx", (unsigned long long)conn_client_id(self->conn));
    pthread_mutex_lock(&sampler->lock);
    self->why_asked = false;
    if (why)
        self->why[0] = '\0'; /* it may wait no more */
    for (size_t i = 0; why && i < why->n_waits; i++) {
        const Replay__Wait *wait = why->waits[i];
        bool all = wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
        bool ours = !all && (conn_has_key(self->conn) || strcmp(wait->who, us) == 0) &&
                    (strcmp(wait->kind, "sample") == 0 || strcmp(wait->kind, "permit") == 0);
        /* The disk comes first: it holds back the answer to a request that does not wait for items. */
        if ((ours && strcmp(wait->table, self->table) == 0) || strcmp(wait->kind, "journal") == 0)
            snprintf(self->why, sizeof self->why, "%s", wait->text);
    }
    pthread_mutex_unlock(&sampler->lock);
    unpack_free((ProtobufCMessage *)why);
    conn_reply_destroy(&reply);
    sampler_unref(sampler);
}

void part_ask_why(struct part *self)
{
    if (self->why_asked || self->away)
        return;
    self->why_asked = true;
    sampler_ref(self->sampler);
    pthread_mutex_unlock(&self->sampler->lock);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .timeout_ms = 1000};
    conn_send(self->conn, &message, on_why, self);
    pthread_mutex_lock(&self->sampler->lock);
}

/* ---- rows ---- */

uint32_t part_first_rows(const struct part *self)
{
    uint64_t skip = self->dealt;
    for (const struct pick *pick = TAILQ_FIRST(&self->done); pick; pick = TAILQ_NEXT(pick, link)) {
        uint64_t n = batch_list_items(pick->batches) - pick->row;
        if (n > skip)
            return (uint32_t)(n - skip);
        skip -= n;
    }
    return 0;
}

bool part_peek(struct part *self, uint32_t n, double share, struct batch_pieces *pieces)
{
    uint64_t skip = self->dealt;
    for (const struct pick *pick = TAILQ_FIRST(&self->done); pick && n; pick = TAILQ_NEXT(pick, link)) {
        uint32_t row = pick->row;
        for (const rp_batch *batch = pick->batches; batch && n; batch = batch->next, row = 0) {
            uint32_t left = batch->info.n - row;
            if (skip >= left) {
                skip -= left;
                continue;
            }
            row += (uint32_t)skip;
            left -= (uint32_t)skip;
            skip = 0;
            uint32_t part = left < n ? left : n;
            struct batch_rows piece = {batch, row, part, share, self->number, self->shard};
            if (!batch_pieces_add(pieces, &piece))
                return false;
            n -= part;
        }
    }
    return n == 0;
}

void part_consume(struct part *self, uint32_t n, struct pick_list *empty)
{
    self->dealt -= n;
    while (n) {
        struct pick *pick = TAILQ_FIRST(&self->done);
        assert(pick->batches); /* a pick that is done has rows */
        uint32_t left = pick->batches->info.n - pick->row, part = left < n ? left : n;
        pick->row += part;
        n -= part;
        if (part < left)
            continue;
        rp_batch *batch = batch_list_take(&pick->batches);
        rp_batch_release(&batch);
        pick->row = 0;
        if (!pick->batches) {
            pick_move(pick, EVENT_USED);
            TAILQ_REMOVE(&self->done, pick, link);
            TAILQ_INSERT_TAIL(empty, pick, link);
        }
    }
}

void part_drop_rows(struct part *self)
{
    part_forget(self);
    if (self->dealt)
        return;
    struct pick_list empty = TAILQ_HEAD_INITIALIZER(empty);
    self->dealt = self->rows;
    self->rows = 0;
    part_consume(self, (uint32_t)self->dealt, &empty);
    pick_list_free(&empty);
}
