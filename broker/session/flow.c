#include "broker/session/flow.h"

#include <stdlib.h>

#include "broker/loop/loop.h"
#include "broker/session/credit.h"
#include "broker/session/session.h"
#include "broker/table/table.h"
#include "proto/base/error.h"

#define DROPS_PER_STEP 256u

static bool queue_grow(struct flow *self)
{
    uint32_t capacity = self->capacity ? self->capacity * 2 : 64;
    struct pending_item *queue = malloc(capacity * sizeof *queue);
    if (!queue)
        return false;
    for (uint32_t i = 0; i < self->count; i++)
        queue[i] = self->queue[(self->head + i) % self->capacity];
    self->session->sessions->store->overhead += (capacity - self->capacity) * sizeof *queue;
    free(self->queue);
    self->queue = queue;
    self->capacity = capacity;
    self->head = 0;
    return true;
}

static void block(struct flow *self)
{
    struct flow *first = self->table->blocked;
    self->blocked_ns = self->stopped_ns = self->session->sessions->loop->now_ns;
    self->next = first ? first : self;
    self->prev = first ? first->prev : self;
    self->prev->next = self;
    self->next->prev = self;
    if (!first)
        self->table->blocked = self;
}

void flow_trace(const struct flow *self)
{
    struct loop *loop = self->session->sessions->loop;
    int64_t now = clock_now(&loop->clock);
    if (now > self->stopped_ns)
        trace_add(&loop->trace, self->table->name, "inserts that wait",
                  &(struct trace_span){.start_ns = self->stopped_ns,
                                       .duration_ns = now - self->stopped_ns,
                                       .who = self->session->ordinal,
                                       .count = self->count});
}

static void unblock(struct flow *self)
{
    struct table *table = self->table;
    if (trace_on(&self->session->sessions->loop->trace))
        flow_trace(self);
    if (self->next == self) {
        table->blocked = NULL;
    } else {
        self->prev->next = self->next;
        self->next->prev = self->prev;
        if (table->blocked == self)
            table->blocked = self->next;
    }
    self->prev = self->next = NULL;
}

bool flow_push(struct flow *self, const struct pending_item *item)
{
    if (self->count == self->capacity && !queue_grow(self))
        return false;
    self->queue[(self->head + self->count) % self->capacity] = *item;
    self->table->n_waiting_items++;
    if (self->count++ == 0)
        block(self);
    return true;
}

static struct pending_item pop(struct flow *self)
{
    struct pending_item item = self->queue[self->head];
    self->head = (self->head + 1) % self->capacity;
    self->table->n_waiting_items--;
    self->blocked_ns = self->session->sessions->loop->now_ns;
    if (--self->count == 0)
        unblock(self);
    return item;
}

bool flow_merge_rejection(struct flow *self)
{
    struct pending_item *last = self->count ? &self->queue[(self->head + self->count - 1) % self->capacity] : NULL;
    if (!last || last->status == RP_OK || last->more == UINT32_MAX)
        return false;
    last->more++;
    return true;
}

/* ---- the end of a session ---- */

/* The queue of a flow that was dropped. */
struct queue_drop {
    struct chore chore;
    struct sessions *sessions;
    struct pending_item *queue;
    uint32_t head, count, capacity;
};

/* False: all items are dropped. */
static bool drop_some(struct queue_drop *self)
{
    for (uint32_t i = 0; i < DROPS_PER_STEP && self->count; i++, self->count--) {
        struct pending_item *item = &self->queue[self->head];
        span_release(&item->arrival.span, self->sessions->store, self->sessions->layouts);
        free(item->text);
        if (item->message && --item->message->waiting == 0)
            free(item->message);
        self->head = (self->head + 1) % self->capacity;
    }
    if (self->count)
        return true;
    free(self->queue);
    return false;
}

static bool drop_step(struct chore *chore)
{
    if (drop_some((struct queue_drop *)chore))
        return true;
    free(chore);
    return false;
}

void flow_drop(struct flow *self)
{
    struct sessions *sessions = self->session->sessions;
    if (self->count == 0) {
        free(self->queue);
    } else {
        self->table->n_waiting_items -= self->count;
        unblock(self);
        struct queue_drop *later = calloc(1, sizeof *later);
        struct queue_drop now = {{NULL, drop_step}, sessions, self->queue, self->head, self->count, self->capacity};
        if (later) {
            *later = now;
            chores_add(&sessions->loop->chores, &later->chore);
        } else { /* no memory to do it later */
            while (drop_some(&now)) {
            }
        }
    }
    sessions->store->overhead -= self->capacity * sizeof *self->queue;
    self->queue = NULL;
    self->head = self->count = self->capacity = 0;
}

/* ---- items are resolved ---- */

/* Refuses a key outside of the session's own range if another session has it. Checked when the item enters its table: while
 * the item waited, the key may have been handed out. */
static __attribute__((noinline)) rp_status check_foreign_key(const struct session *session, uint64_t key, rp_error *err)
{
    const struct ordinals *ordinals = &session->sessions->tables->ordinals;
    if (wire_key_shard(key ^ ordinals->prefix) || !ordinals->at[ordinal_of_key(key)].sessions)
        return RP_OK;
    return err_set(err, RP_PERMISSION_DENIED,
                   "key %llu belongs to another writer's session: use keys from %llu on, which HELLO gave to this one",
                   (unsigned long long)key, (unsigned long long)session->keys.base);
}

rp_status flow_insert(struct flow *self, struct arrival *arrival, rp_error *err)
{
    const struct key_range *own = &self->session->keys;
    if (__builtin_expect(arrival->key - own->base >= own->count, 0))
        RP_TRY(check_foreign_key(self->session, arrival->key, err));
    uint32_t episode = span_chunks(&arrival->span)[0]->episode + 1;
    arrival->same_episode = episode == self->episode && self->resets == self->table->resets;
    RP_TRY(table_insert(self->table, arrival, err));
    self->episode = episode;
    self->resets = self->table->resets;
    return RP_OK;
}

/* Counts an item as resolved; with the last item of its message, the bytes of the message are returned as credit. */
static void resolved(struct flow *self, struct ingest_message *message)
{
    self->resolved++;
    if (message && --message->waiting == 0) {
        credit_return(self->session, message->bytes);
        free(message);
    }
    credit_mark(self->session, false);
}

bool flow_resolve_first(struct flow *self)
{
    struct sessions *sessions = self->session->sessions;
    struct pending_item *first = &self->queue[self->head];
    rp_error err = {0};
    rp_status status = first->status;
    const char *text = first->text;
    if (!credit_reserve(self->session))
        return false;
    if (status == RP_OK) {
        status = flow_insert(self, &first->arrival, &err);
        text = err.text;
        if (status == RP_NO_MEMORY)
            return false;
        if (status != RP_OK)
            span_release(&first->arrival.span, sessions->store, sessions->layouts);
    }
    struct pending_item item = pop(self);
    if (status == RP_OK && item.message) {
        int64_t took = sessions->loop->now_ns - item.message->arrived_ns;
        histogram_add_ns(&sessions->insert, took, 1);
        histogram_add_ns(&sessions->insert_wait, took, 1);
    }
    if (item.more) /* the rejections that are only counted belong to the same record */
        EFFECT(sessions->loop, together, 8192);
    if (status != RP_OK)
        credit_reject(self, item.arrival.key, status, text);
    free(item.text);
    self->resolved += item.more;
    self->rejected += item.more;
    self->table->stats.rejected += item.more;
    resolved(self, item.message);
    if (item.more)
        EFFECT(sessions->loop, progress, self->session);
    return true;
}
