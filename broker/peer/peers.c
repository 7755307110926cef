#include "broker/peer/peers.h"

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/sockets.h"

void peers_init(struct peers *self, struct loop *loop, const struct broker_config *config, struct ducts *ducts)
{
    self->loop = loop;
    self->config = config;
    self->ducts = ducts;
    commit_init(&self->commit);
    inflow_watch_init(&self->inflow);
    self->identities.anyone = (struct identity){.name = "anyone", .roles = KEY_ANY};
}

static void forget_idle(struct idmap *by_route)
{
    for (uint32_t i = 0; by_route->entries && i <= by_route->mask; i++) {
        struct peer *peer = by_route->entries[i].value;
        if (peer && atomic_load_explicit(&peer->refs, memory_order_acquire) == 1) {
            idmap_remove(by_route, peer->route); /* may move another entry to this place: the next sweep sees it */
            peer_release(peer);
        }
    }
}

void peers_bound(struct peers *self)
{
    /* Without keys anybody may open any number of connections, and each has its own bound alone. */
    uint64_t all = inflow_most_inserts(self->config) + inflow_most_requests(self->config);
    self->unfinished_bytes = inflow_check(&self->inflow, self->identities.on ? all : 0, self->loop->now_ns);
}

void peers_sweep(struct peers *self)
{
    peers_bound(self);
    forget_idle(&self->by_route);
    monitor_sweep(self);
    descriptors_check(&self->descriptors);
}

void peers_fini(struct peers *self)
{
    sockets_close(self);
    struct idmap *by_route = &self->by_route;
    for (uint32_t i = 0; by_route->entries && i <= by_route->mask; i++)
        if (by_route->entries[i].value)
            peer_release(by_route->entries[i].value);
    idmap_fini(by_route);
    kept_replies_fini(&self->kept_replies);
    idmap_fini(&self->waits.by_request);
    monitor_fini(&self->monitor);
    commit_fini(&self->commit);
    identities_close(&self->identities);
}
