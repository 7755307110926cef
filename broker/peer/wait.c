#include "broker/peer/wait.h"

#include <stddef.h>
#include <stdio.h>

#include "broker/loop/loop.h"
#include "broker/peer/monitor.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"

/* Places for requests that wait: a client that asks without reading must not use up the memory. A request is kept while it
 * waits: each PLACE_BYTES of it take a further place. */
#define WAIT_PLACES 100000u
#define PLACE_BYTES 1024u

static uint64_t name_of(uint64_t client, uint64_t id)
{
    return client ^ (id * UINT64_C(0xD6E8FEB86659FD93));
}

static void expire(struct timer *timer, void *ctx)
{
    struct wait *self = (struct wait *)(void *)((char *)timer - offsetof(struct wait, timer));
    self->ops->expire(ctx, self);
}

static void append(struct waits *waits, struct wait *self)
{
    self->next = NULL;
    self->prev = waits->last;
    if (waits->last)
        waits->last->next = self;
    else
        waits->first = self;
    waits->last = self;
    waits->count++;
}

rp_status wait_begin(struct peers *peers, struct wait *self, const struct request *request, uint64_t timeout_ms,
                     rp_error *err)
{
    struct loop *loop = peers->loop;
    struct waits *waits = &peers->waits;
    /* The descriptor of a closed connection is soon used again: the waits of the old connection must end before a wait of
     * the new one takes the descriptor. */
    monitor_run(peers);
    self->to = request->from;
    self->client = request->head.client;
    self->id = request->head.id;
    self->since_ns = loop->now_ns;
    self->traced_ns = loop_trace_start(loop);
    self->times = request->times;
    self->measured = false;
    self->message = peers->counters.messages_in;
    self->descriptor = request->descriptor;
    self->connection = monitor_connection(&peers->monitor, request->descriptor);
    self->timer = (struct timer){.fire = expire, .ctx = self->ctx};
    self->places = 1 + (uint32_t)(request->head.size / PLACE_BYTES);
    if (waits->places + self->places > WAIT_PLACES)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the requests that wait have taken all %u places: this %s request cannot wait, too. Ask again "
                       "later",
                       WAIT_PLACES, self->ops->kind);
    const struct quota *quota = &request->identity->quota;
    if (quota->waiting > 0 && request->identity->waiting + self->places > quota->waiting)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the requests of the key '%s' that wait have taken all of its %lld places: this %s request "
                       "cannot wait, too. Ask again later, or raise waiting= in the broker's list of keys",
                       request->identity->name, (long long)quota->waiting, self->ops->kind);
    bool has_deadline = timeout_ms <= (uint64_t)(INT64_MAX / NS_PER_MS / 2);
    if (has_deadline)
        timer_set(&loop->timers, &self->timer, loop->now_ns + (int64_t)timeout_ms * NS_PER_MS);
    idmap_put(&waits->by_request, name_of(self->client, self->id), self);
    self->identity = request->identity;
    self->roles = request->roles;
    self->identity->waiting += self->places;
    waits->places += self->places;
    append(waits, self);
    return RP_OK;
}

void wait_trace(const struct peers *peers, const struct wait *self)
{
    int64_t now = clock_now(&peers->loop->clock), start = self->traced_ns ? self->traced_ns : self->since_ns;
    if (self->message !=
        peers->counters.messages_in) /* otherwise it was answered at once, and is part of its request */
        trace_add(&peers->loop->trace, self->ops->kind, "waits",
                  &(struct trace_span){.start_ns = start,
                                       .duration_ns = now - start,
                                       .who = self->client,
                                       .id = self->id,
                                       .link = TRACE_REQUEST});
}

static void measure(const struct peers *peers, const struct wait *self)
{
    int64_t took = clock_now(&peers->loop->clock) - self->since_ns;
    histogram_add_ns(&self->times->latency, took, 1);
    histogram_add_ns(&self->times->waited, took, 1);
}

bool wait_goes_on(struct peers *peers)
{
    struct wait *last = peers->waits.last;
    if (!last || last->message != peers->counters.messages_in)
        return false;
    last->measured = last->times != NULL;
    return true;
}

void wait_end(struct peers *peers, struct wait *self)
{
    if (self->measured)
        measure(peers, self);
    if (trace_on(&peers->loop->trace))
        wait_trace(peers, self);
    struct waits *waits = &peers->waits;
    timer_clear(&peers->loop->timers, &self->timer);
    self->identity->waiting -= self->places;
    waits->places -= self->places;
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

struct wait *wait_find(const struct waits *waits, uint64_t client, uint64_t id)
{
    /* Client 0 is anonymous: requests of several anonymous clients may have the same id. */
    struct wait *wait = client ? idmap_get(&waits->by_request, name_of(client, id)) : NULL;
    return wait && wait->client == client && wait->id == id ? wait : NULL;
}

void wait_take_over(const struct peers *peers, struct wait *self, const struct request *request)
{
    uint64_t connection = monitor_connection(&peers->monitor, request->descriptor);
    if (connection && connection < self->connection)
        return;
    self->to = request->from;
    self->descriptor = request->descriptor;
    self->connection = connection;
}

void waits_check_roles(struct peers *peers)
{
    struct wait *next;
    for (struct wait *wait = peers->waits.first; wait; wait = next) {
        rp_error err = {0};
        char what[64];
        next = wait->next;
        snprintf(what, sizeof what, "a %s request", wait->ops->kind);
        if (identity_check(wait->identity, wait->roles, what, &err) != RP_OK)
            wait->ops->cancel(wait->ctx, wait, RP_PERMISSION_DENIED, err.text);
    }
}

void waits_cancel_all(struct waits *waits, rp_status status, const char *text)
{
    while (waits->first)
        waits->first->ops->cancel(waits->first->ctx, waits->first, status, text);
}
