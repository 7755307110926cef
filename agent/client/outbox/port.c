/* The ring and what is shared beside it. */
#include "agent/client/outbox/port.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/client/conn/conn.h"

bool port_init(struct port *self, uint32_t batch_items, uint32_t n_tables)
{
    *self = (struct port){.batch_items = batch_items, .n_tables = n_tables};
    pthread_mutex_init(&self->mutex, NULL);
    conn_cond_init(&self->moved);
    self->slots = malloc(PORT_SLOTS * sizeof *self->slots);
    self->tables = calloc(n_tables ? n_tables : 1, sizeof *self->tables);
    return self->slots && self->tables;
}

void port_fini(struct port *self)
{
    free(self->slots);
    free(self->tables);
    free(self->rejections);
    pthread_cond_destroy(&self->moved);
    pthread_mutex_destroy(&self->mutex);
}

bool port_push(struct port *self, const struct item *item, struct chunk *evicted)
{
    uint64_t tail = atomic_load_explicit(&self->tail, memory_order_relaxed);
    if (tail - self->seen_head >= PORT_SLOTS) {
        self->seen_head = atomic_load_explicit(&self->head, memory_order_acquire);
        if (tail - self->seen_head >= PORT_SLOTS)
            return false;
    }
    struct port_slot *slot = &self->slots[tail % PORT_SLOTS];
    slot->item = *item;
    slot->evicted = evicted;
    atomic_store(&self->tail, tail + 1);
    return true;
}

bool port_should_wake(struct port *self)
{
    /* Sequentially consistent, as the store of the tail was: the consumer states its mode and then looks at the tail
     * once more, so one of the two sees the other. */
    int mode = atomic_load(&self->mode);
    if (mode == PORT_AWAKE)
        return false;
    uint64_t waiting = atomic_load_explicit(&self->tail, memory_order_relaxed) -
                       atomic_load_explicit(&self->head, memory_order_relaxed);
    uint64_t enough = PORT_SLOTS / 2;
    if (mode == PORT_IDLE)
        enough = 1;
    else if (mode == PORT_LINGER && self->batch_items * PORT_WAKE_BATCHES < enough)
        enough = self->batch_items * PORT_WAKE_BATCHES;
    if (waiting < enough)
        return false;
    atomic_store_explicit(&self->mode, PORT_AWAKE, memory_order_relaxed);
    return true;
}

struct port_slot *port_peek(struct port *self)
{
    uint64_t head = atomic_load_explicit(&self->head, memory_order_relaxed);
    if (head == self->seen_tail) {
        self->seen_tail = atomic_load(&self->tail);
        if (head == self->seen_tail)
            return NULL;
    }
    return &self->slots[head % PORT_SLOTS];
}

void port_prefetch(struct port *self)
{
    uint64_t ahead = atomic_load_explicit(&self->head, memory_order_relaxed) + 4;
    if (ahead < self->seen_tail)
        __builtin_prefetch(self->slots[ahead % PORT_SLOTS].item.chunk, 1);
}

void port_popped(struct port *self)
{
    uint64_t head = atomic_load_explicit(&self->head, memory_order_relaxed);
    atomic_store_explicit(&self->head, head + 1, memory_order_release);
}

void port_signal(struct port *self)
{
    /* Whoever waits counts itself first and looks at the totals then. */
    if (atomic_load(&self->waiters) == 0)
        return;
    pthread_mutex_lock(&self->mutex);
    pthread_cond_broadcast(&self->moved);
    pthread_mutex_unlock(&self->mutex);
}

void port_reject(struct port *self, const rp_rejection *rejection)
{
    pthread_mutex_lock(&self->mutex);
    if (!self->rejections)
        self->rejections = malloc(PORT_REJECTIONS * sizeof *self->rejections);
    if (self->rejections && self->n_rejections < PORT_REJECTIONS)
        self->rejections[(self->first_rejection + self->n_rejections++) % PORT_REJECTIONS] = *rejection;
    else
        self->counts.rejections_dropped++;
    if (self->n_unreported++ == 0) {
        self->unreported.status = rejection->status;
        snprintf(self->unreported.text, sizeof self->unreported.text, "table '%.200s': item with key %llu: %.250s",
                 rejection->table, (unsigned long long)rejection->key, rejection->text);
    }
    pthread_mutex_unlock(&self->mutex);
}
