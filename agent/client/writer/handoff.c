/* See handoff.h. */
#include "agent/client/writer/handoff.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/client/conn/conn.h"

bool handoff_init(struct handoff *self, uint32_t batch_items, uint32_t n_tables)
{
    *self = (struct handoff){.batch_items = batch_items, .n_tables = n_tables};
    pthread_mutex_init(&self->mutex, NULL);
    conn_cond_init(&self->moved);
    self->slots = aligned_alloc(CACHE_LINE, HANDOFF_SLOTS * sizeof *self->slots);
    self->tables = calloc(n_tables ? n_tables : 1, sizeof *self->tables);
    return self->slots && self->tables;
}

void handoff_fini(struct handoff *self)
{
    free(self->slots);
    free(self->tables);
    free(self->rejections);
    pthread_cond_destroy(&self->moved);
    pthread_mutex_destroy(&self->mutex);
}

bool handoff_push(struct handoff *self, const struct queued_item *item, struct step_chunk *evicted)
{
    uint64_t tail = atomic_load_explicit(&self->tail, memory_order_relaxed);
    if (tail - self->seen_head >= HANDOFF_SLOTS) {
        self->seen_head = atomic_load_explicit(&self->head, memory_order_acquire);
        if (tail - self->seen_head >= HANDOFF_SLOTS)
            return false;
    }
    struct handoff_slot *slot = &self->slots[tail % HANDOFF_SLOTS];
    slot->item = *item;
    slot->evicted = evicted;
    __builtin_prefetch(&self->slots[(tail + HANDOFF_PREFETCH) % HANDOFF_SLOTS], 1); /* the consumer has it */
    atomic_store(&self->tail, tail + 1);
    return true;
}

bool handoff_should_wake(struct handoff *self)
{
    /* Sequentially consistent, like the store of the tail: the consumer sets its mode and then reads the tail once more, so at
     * least one of the two sees the other's store. */
    int mode = atomic_load(&self->mode);
    if (mode == HANDOFF_AWAKE)
        return false;
    uint64_t waiting = atomic_load_explicit(&self->tail, memory_order_relaxed) -
                       atomic_load_explicit(&self->head, memory_order_relaxed);
    uint64_t enough = HANDOFF_SLOTS / 2;
    if (mode == HANDOFF_IDLE)
        enough = 1;
    else if (mode == HANDOFF_LINGER && self->batch_items * HANDOFF_WAKE_BATCHES < enough)
        enough = self->batch_items * HANDOFF_WAKE_BATCHES;
    if (waiting < enough)
        return false;
    atomic_store_explicit(&self->mode, HANDOFF_AWAKE, memory_order_relaxed);
    return true;
}

void handoff_signal(struct handoff *self)
{
    /* A waiter counts itself first and reads the totals after that. */
    if (atomic_load(&self->waiters) == 0)
        return;
    pthread_mutex_lock(&self->mutex);
    pthread_cond_broadcast(&self->moved);
    pthread_mutex_unlock(&self->mutex);
}

void handoff_reject(struct handoff *self, const rp_rejection *rejection)
{
    pthread_mutex_lock(&self->mutex);
    if (!self->rejections)
        self->rejections = malloc(HANDOFF_REJECTIONS * sizeof *self->rejections);
    if (self->rejections && self->n_rejections < HANDOFF_REJECTIONS)
        self->rejections[(self->first_rejection + self->n_rejections++) % HANDOFF_REJECTIONS] = *rejection;
    else
        self->counts.rejections_dropped++;
    if (self->n_unreported++ == 0) {
        self->unreported.status = rejection->status;
        snprintf(self->unreported.text, sizeof self->unreported.text, "table '%.200s': item with key %llu: %.250s",
                 rejection->table, (unsigned long long)rejection->key, rejection->text);
    }
    pthread_mutex_unlock(&self->mutex);
}
