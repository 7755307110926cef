#include "broker/peer/wait.h"

#include <stddef.h>

#include "broker/broker.h"
#include "broker/peer/monitor.h"
#include "proto/base/error.h"

/* Requests that wait at a time: more than this is a client that asks without reading. */
#define REQUESTS_MOST 100000u

static uint64_t name_of(uint64_t client, uint64_t id)
{
    return client ^ (id * UINT64_C(0xD6E8FEB86659FD93));
}

static void fire(struct timer *timer, void *ctx)
{
    struct wait *self = (struct wait *)(void *)((char *)timer - offsetof(struct wait, timer));
    self->ops->expire(ctx, self);
}

rp_status wait_begin(struct broker *broker, struct wait *self, const struct wait_ops *ops,
                     const struct request *request, bool has_timeout, uint64_t timeout_ms, rp_error *err)
{
    /* The number of a connection that has ended is soon used again: its end must be dealt with before a wait of the new
     * one takes the number. */
    monitor_run(broker);
    self->ops = ops;
    self->to = request->from;
    self->client = request->head.client;
    self->id = request->head.id;
    self->since_ns = broker->loop.now_ns;
    self->descriptor = request->descriptor;
    self->connection = monitor_connection(broker, request->descriptor);
    self->timer = (struct timer){.fire = fire};
    if (broker->peers.waits.count >= REQUESTS_MOST)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "%u requests wait already, which is the most: %s can not wait, too",
                       REQUESTS_MOST, ops->kind);
    if (timeout_ms > (uint64_t)(INT64_MAX / NS_PER_MS / 2))
        has_timeout = false;
    if (has_timeout &&
        !timer_set(&broker->loop.timers, &self->timer, broker->loop.now_ns + (int64_t)timeout_ms * NS_PER_MS))
        return err_set(err, RP_NO_MEMORY, "no memory to wait for %s", ops->kind);
    if (!idmap_put(&broker->peers.waits.by_request, name_of(self->client, self->id), self)) {
        timer_clear(&broker->loop.timers, &self->timer);
        return err_set(err, RP_NO_MEMORY, "no memory to wait for %s", ops->kind);
    }
    struct waits *waits = &broker->peers.waits;
    self->next = NULL;
    self->prev = waits->last;
    if (waits->last)
        waits->last->next = self;
    else
        waits->first = self;
    waits->last = self;
    waits->count++;
    return RP_OK;
}

void wait_end(struct broker *broker, struct wait *self)
{
    struct waits *waits = &broker->peers.waits;
    timer_clear(&broker->loop.timers, &self->timer);
    uint64_t name = name_of(self->client, self->id);
    if (idmap_get(&waits->by_request, name) == self)
        idmap_remove(&waits->by_request, name);
    if (self->prev)
        self->prev->next = self->next;
    else
        waits->first = self->next;
    if (self->next)
        self->next->prev = self->prev;
    else
        waits->last = self->prev;
    waits->count--;
}

struct wait *wait_find(struct broker *broker, uint64_t client, uint64_t id)
{
    /* Client 0 is nobody: what strangers ask under the same id is not the same. */
    struct wait *wait = client ? idmap_get(&broker->peers.waits.by_request, name_of(client, id)) : NULL;
    return wait && wait->client == client && wait->id == id ? wait : NULL;
}

void wait_take_over(const struct broker *broker, struct wait *self, const struct request *request)
{
    uint64_t connection = monitor_connection(broker, request->descriptor);
    if (connection && connection < self->connection)
        return;
    self->to = request->from;
    self->descriptor = request->descriptor;
    self->connection = connection;
}

void waits_cancel_all(struct broker *broker, rp_status status, const char *text)
{
    while (broker->peers.waits.first)
        broker->peers.waits.first->ops->cancel(broker, broker->peers.waits.first, status, text);
}
