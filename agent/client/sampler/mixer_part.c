/* One part of a mixer: its requests, their replies, and the rows that wait to be dealt. */
#include <stdlib.h>

#include "agent/client/sampler/mixer_impl.h"
#include "proto/base/trace.h"

static void list_add(struct pick_list *list, struct pick *pick)
{
    pick->next = NULL;
    if (list->last)
        list->last->next = pick;
    else
        list->first = pick;
    list->last = pick;
}

static void list_remove(struct pick_list *list, struct pick *pick)
{
    struct pick *before = NULL;
    for (struct pick *at = list->first; at != pick; at = at->next)
        before = at;
    if (before)
        before->next = pick->next;
    else
        list->first = pick->next;
    if (list->last == pick)
        list->last = before;
}

static void pick_free(struct pick *self)
{
    batch_list_release(&self->batches);
    conn_reply_destroy(&self->reply);
    free(self);
}

void part_fini(struct part *self)
{
    struct pick_list *lists[] = {&self->asked, &self->done};
    for (uint32_t i = 0; i < 2; i++)
        while (lists[i]->first) {
            struct pick *pick = lists[i]->first;
            list_remove(lists[i], pick);
            pick_free(pick);
        }
    sample_source_fini(&self->source);
    pthread_cond_destroy(&self->work);
}

/* ---- picks ---- */

static void on_pick(void *ctx, struct conn_reply *reply)
{
    struct pick *pick = ctx;
    struct part *part = pick->part;
    struct mixer *mixer = part->mixer;
    pthread_mutex_lock(&mixer->lock);
    bool wanted = !pick->abandoned;
    if (wanted) {
        pick->reply = reply;
        pick->arrived = true;
        if (mixer->inlined)
            mixer_wake(mixer);
        else
            pthread_cond_signal(&part->work);
    } else if (reply->answered) {
        part_note_answer(part);
        mixer_wake(mixer);
    }
    pthread_mutex_unlock(&mixer->lock);
    if (!wanted) {
        conn_reply_destroy(&reply);
        pick_free(pick);
    }
    mixer_unref(mixer);
}

void part_ask(struct part *self, uint32_t count)
{
    struct mixer *mixer = self->mixer;
    struct pick *pick = calloc(1, sizeof *pick);
    if (!pick)
        return; /* asked for again at the next step */
    *pick = (struct pick){.part = self, .count = count, .sure = self->size > 0, .asked_ns = conn_now()};
    list_add(&self->asked, pick);
    self->outstanding += count;
    __atomic_add_fetch(&mixer->refs, 1, __ATOMIC_RELAXED);
    int64_t timeout_ms = mixer_broker_ms(mixer, mixer->groups[self->group].deal == DEAL_QUEUE ? CHOOSE_MS : -1);
    pthread_mutex_unlock(&mixer->lock);
    uint64_t id = sample_source_request(&self->source, count, timeout_ms, on_pick, pick);
    pthread_mutex_lock(&mixer->lock);
    for (struct pick *at = self->asked.first; at; at = at->next)
        if (at == pick) /* it may have been decoded and freed meanwhile */
            pick->id = id;
}

uint32_t part_first_rows(const struct part *self)
{
    uint64_t skip = self->dealt;
    for (const struct pick *pick = self->done.first; pick; pick = pick->next) {
        uint64_t n = batch_list_items(pick->batches) - pick->row;
        if (n > skip)
            return (uint32_t)(n - skip);
        skip -= n;
    }
    return 0;
}

uint64_t part_expected(const struct part *self)
{
    return self->away ? 0 : self->outstanding;
}

/* Takes a pick out of those that are asked for. */
static void end_pick(struct part *self, struct pick *pick)
{
    list_remove(&self->asked, pick);
    self->outstanding -= pick->forgotten ? 0 : pick->count;
}

void part_forget(struct part *self)
{
    for (struct pick *pick = self->asked.first; pick; pick = pick->next)
        pick->forgotten = true;
    self->outstanding = 0;
}

static void cancel_picks(struct part *self)
{
    struct mixer *mixer = self->mixer;
    for (struct pick *pick = self->asked.first, *next; pick; pick = next) {
        next = pick->next;
        if (pick->arrived || !pick->id)
            continue;
        uint64_t id = pick->id;
        end_pick(self, pick);
        pick->abandoned = true; /* its reply function frees it */
        pthread_mutex_unlock(&mixer->lock);
        conn_cancel(self->source.conn, id);
        pthread_mutex_lock(&mixer->lock);
        next = self->asked.first;
    }
}

void part_abandon(struct part *self)
{
    struct mixer *mixer = self->mixer;
    if (self->permit && self->permit->count) {
        mixer->groups[self->group].out -= self->permit->count;
        self->permit->count = 0; /* what it still grants is welcome */
        self->permit = NULL;
    }
    if (!part_is_last(self))
        cancel_picks(self);
}

void part_recall(struct part *self)
{
    struct mixer *mixer = self->mixer;
    for (struct pick *pick = self->asked.first; pick;) {
        bool skip = pick->arrived || !pick->id || pick->recalled;
        uint64_t id = pick->id;
        pick->recalled = true;
        pick = pick->next;
        if (skip)
            continue;
        pthread_mutex_unlock(&mixer->lock);
        conn_cancel(self->source.conn, id);
        pthread_mutex_lock(&mixer->lock);
        pick = self->asked.first; /* the list may have changed */
    }
}

void part_cancel(struct part *self)
{
    struct mixer *mixer = self->mixer;
    uint64_t permit = self->permit ? self->permit->id : 0;
    cancel_picks(self);
    if (!permit)
        return;
    pthread_mutex_unlock(&mixer->lock);
    conn_cancel(self->source.conn, permit);
    pthread_mutex_lock(&mixer->lock);
}

/* Takes what a reply says about the table. A part that gives nothing has no items until it says again that it has some: others give
 * them meanwhile. */
static void note_size(struct part *self, const struct pick *pick, const rp_batch *batches, rp_status status)
{
    uint64_t n = batch_list_items(batches), size = batches ? batches->info.table_size : 0;
    enum deal deal = self->mixer->groups[self->group].deal;
    if (self->source.paid && status == RP_OK)
        part_read_sample(self, pick->reply, n ? size : 0);
    else if (self->source.paid || (deal == DEAL_QUEUE && status == RP_DEADLINE_EXCEEDED))
        self->size = 0;
    else if (status == RP_OK && n)
        self->size = deal != DEAL_QUEUE ? size : size > n ? size - n : 0; /* items of a queue have left it */
}

/* Takes what was decoded from the pick's reply. Returns the reply if nobody needs it any more. Lock held. */
static struct conn_reply *finish(struct part *self, struct pick *pick, rp_batch *batches, rp_status status,
                                 const rp_error *error)
{
    struct mixer *mixer = self->mixer;
    int64_t now = conn_now();
    end_pick(self, pick);
    if (pick->reply->answered)
        part_note_answer(self);
    note_size(self, pick, batches, status);
    bool whole = pick->forgotten || (status == RP_OK && batch_list_items(batches) == pick->count);
    if (pick->forgotten)
        batch_list_release(&batches);
    uint64_t n = batch_list_items(batches);
    if (status != RP_OK)
        part_note_error(self, status, error, now);
    bool in_reply = batches && batches->in_reply.step;
    struct conn_reply *over = in_reply ? NULL : pick->reply;
    pick->reply = in_reply ? pick->reply : NULL;
    pick->batches = batches;
    self->rows += n;
    if (n)
        self->why[0] = '\0';
    bool less = self->source.options.distinct || (!self->source.paid && self->source.options.flexible && n);
    if (status == RP_OK && less && !pick->forgotten && mixer->groups[self->group].deal != DEAL_QUEUE)
        self->excused += pick->count - n;
    if (status == RP_OK && n == 0 && !pick->forgotten)
        self->retry_ns = now + RETRY_NS;
    if (n)
        list_add(&self->done, pick);
    else
        pick_free(pick);
    if (!whole || mixer->inlined || mixer->build == mixer->tail || plans_wait_no_more(mixer))
        mixer_wake(mixer); /* otherwise there is nothing to do about it before other parts have answered */
    return over;
}

bool part_decode(struct part *self)
{
    struct mixer *mixer = self->mixer;
    struct pick *pick = self->asked.first;
    while (pick && !pick->arrived)
        pick = pick->next;
    if (!pick || mixer->stalled || mixer->stopping)
        return false;
    rp_batch *batches = NULL;
    rp_error error = {0};
    pthread_mutex_unlock(&mixer->lock);
    int64_t start = conn_now(), traced = trace_now(conn_trace(self->source.conn));
    rp_status status = conn_reply_status(pick->reply, &error);
    if (status == RP_OK)
        status = sample_source_decode(&self->source, pick->reply, pick->count, &batches, &error);
    trace_add_since(conn_trace(self->source.conn), "decode", NULL, traced, pick->count);
    pthread_mutex_lock(&mixer->lock);
    mixer->stats.decode_ns += (uint64_t)(conn_now() - start);
    if (status == RP_NO_MEMORY && pick->reply->answered && pick->reply->status == RP_OK) {
        mixer->stalled = true; /* its items may exist nowhere else */
        mixer->error = error;
        pthread_cond_signal(&mixer->ready);
        return false;
    }
    struct conn_reply *reply = finish(self, pick, batches, status, &error);
    if (!reply)
        return true;
    pthread_mutex_unlock(&mixer->lock); /* a large message is not freed at once */
    conn_reply_destroy(&reply);
    pthread_mutex_lock(&mixer->lock);
    return true;
}

void *part_main(void *arg)
{
    struct part *self = arg;
    struct mixer *mixer = self->mixer;
    pthread_mutex_lock(&mixer->lock);
    while (!mixer->stopping)
        if (!part_copy(self) && !part_decode(self) && !mixer->stopping)
            pthread_cond_wait(&self->work, &mixer->lock);
    pthread_mutex_unlock(&mixer->lock);
    mixer_unref(mixer);
    return NULL;
}

/* ---- rows ---- */

static bool add_piece(struct mixer *mixer, uint32_t *pieces, const struct batch_rows *piece)
{
    if (*pieces == mixer->rows_capacity) {
        uint32_t capacity = mixer->rows_capacity ? 2 * mixer->rows_capacity : 64;
        struct batch_rows *grown = realloc(mixer->rows, capacity * sizeof *grown);
        if (!grown)
            return false;
        mixer->rows = grown;
        mixer->rows_capacity = capacity;
    }
    mixer->rows[(*pieces)++] = *piece;
    return true;
}

bool part_peek(struct part *self, uint32_t n, double share, uint32_t *pieces)
{
    uint64_t skip = self->dealt;
    for (const struct pick *pick = self->done.first; pick && n; pick = pick->next) {
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
            if (!add_piece(self->mixer, pieces, &piece))
                return false;
            n -= part;
        }
    }
    return n == 0;
}

void part_deal(struct part *self, struct copy *copy)
{
    self->rows -= copy->rows;
    self->dealt += copy->rows;
    copy->next = NULL;
    *self->copies_end = copy;
    self->copies_end = &copy->next;
}

/* Drops n rows that were copied from the front. Moves the picks that have none left to `empty`. */
static void consume(struct part *self, uint32_t n, struct pick_list *empty)
{
    self->dealt -= n;
    while (n) {
        struct pick *pick = self->done.first;
        uint32_t left = pick->batches->info.n - pick->row, part = left < n ? left : n;
        pick->row += part;
        n -= part;
        if (part < left)
            continue;
        rp_batch *batch = batch_list_take(&pick->batches);
        rp_batch_release(&batch);
        pick->row = 0;
        if (!pick->batches) {
            list_remove(&self->done, pick);
            list_add(empty, pick);
        }
    }
}

static void list_free(struct pick_list *list)
{
    for (struct pick *pick = list->first, *next; pick; pick = next) {
        next = pick->next;
        pick_free(pick);
    }
}

void part_drop_rows(struct part *self)
{
    part_forget(self);
    if (self->dealt)
        return;
    struct pick_list empty = {0};
    self->dealt = self->rows;
    self->rows = 0;
    consume(self, (uint32_t)self->dealt, &empty);
    list_free(&empty);
}

bool part_copy(struct part *self)
{
    struct mixer *mixer = self->mixer;
    struct copy *copy = self->copies;
    uint32_t rows = 0;
    if (!copy)
        return false;
    self->copies = NULL;
    self->copies_end = &self->copies;
    pthread_mutex_unlock(&mixer->lock);
    while (copy) {
        struct plan *plan = copy->plan;
        for (uint32_t i = copy->first; i < copy->first + copy->n && plan->join; i++)
            batch_join_copy(plan->join, i);
        rows += copy->rows;
        copy = copy->next;
        if (__atomic_sub_fetch(&plan->left, 1, __ATOMIC_ACQ_REL) == 0) /* otherwise the plan belongs to others now */
            plan_finish(mixer, plan);
    }
    struct pick_list empty = {0};
    pthread_mutex_lock(&mixer->lock);
    consume(self, rows, &empty);
    if (!empty.first)
        return true;
    pthread_mutex_unlock(&mixer->lock); /* a large message is not freed at once */
    list_free(&empty);
    pthread_mutex_lock(&mixer->lock);
    return true;
}
