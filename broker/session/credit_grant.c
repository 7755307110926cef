/* Grants: how many items per table, and how many bytes, a session may have unresolved.
 *
 * Windows start small, double while they are used up, and are shared among the sessions that write. The sum of all byte
 * grants (offered - returned) never exceeds the ingest budget; one item at a time may always be sent, so a session
 * without any grant still makes progress.
 *
 * A grant that a writer knows of cannot be taken back: its messages may be in flight. When the budget is short, a session
 * that uses little of its grant is asked to keep less (Credit.keep_bytes), and its client releases the rest in a heartbeat
 * (Heartbeat.released_bytes). The window of a client that does not support this shrinks as the client uses it: nothing is
 * added until the smaller window is used up. */
#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/session.h"

#define FIRST_WINDOW_ITEMS 64u
#define FIRST_WINDOW_BYTES (1u << 20)
/* The n-th session begins with budget / (IDLE_PART * (n + 1)) bytes at most. The sum is harmonic: 1,000 sessions hold less
 * than half of the budget, even if none of them ever releases credit. */
#define IDLE_PART 16u
#define SHARED_WINDOW_ITEMS 40000u
/* Window of a table that is being sampled: a deep queue of inserts delays samplers. */
#define SAMPLED_WINDOW_ITEMS 4000u
#define LEAST_WINDOW_ITEMS 256u
/* Unread rejections after which a session gets no more credit. */
#define REJECTIONS_MOST 1024u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns how many sessions share the windows: those that write, and this one. */
static uint64_t writers(const struct session *self)
{
    return (uint64_t)self->sessions->n_writing + (self->writing ? 0 : 1);
}

static uint64_t most_bytes(const struct session *self)
{
    const struct sessions *sessions = self->sessions;
    uint64_t own = (uint64_t)self->owner->quota.granted_bytes;
    uint64_t most = least(WINDOW_BYTES, sessions->ingest_budget / (writers(self) + 1));
    return own ? least(most, own / ((uint64_t)self->owner->sessions + 1)) : most;
}

/* Returns the window of a session that does not write. */
static uint64_t idle_bytes(const struct sessions *sessions)
{
    uint64_t part = sessions->ingest_budget / IDLE_PART / ((uint64_t)sessions->n_open + 1);
    return least(FIRST_WINDOW_BYTES, part ? part : 1);
}

static uint64_t most_items(const struct flow *flow, uint32_t flows)
{
    const struct session *self = flow->session;
    uint64_t all = flow->table->sampled_lately ? SAMPLED_WINDOW_ITEMS : SHARED_WINDOW_ITEMS;
    uint64_t fair = all / writers(self);
    if (fair < LEAST_WINDOW_ITEMS)
        fair = LEAST_WINDOW_ITEMS;
    uint64_t most = least(WINDOW_ITEMS, fair);
    uint64_t rate = (uint64_t)self->owner->quota.inserts_per_second;
    if (rate) /* a short queue: credit that comes later is what limits the rate */
        most = least(most, rate / 10 ? rate / 10 : 1);
    if (self->items) {
        /* Cap the window so that one blocked table cannot consume the bytes that the session's other tables need. */
        uint64_t mean = self->received_bytes / self->items + sizeof(struct pending_item);
        uint64_t share = self->window_bytes / (flows > 1 ? 2 * flows : 1) / mean;
        most = least(most, share ? share : 1);
    }
    return most;
}

/* Returns how much the session's key may be granted beyond what it has. */
static uint64_t owner_room(const struct session *self)
{
    uint64_t most = (uint64_t)self->owner->quota.granted_bytes, has = self->owner->granted_bytes;
    return most == 0 ? UINT64_MAX : most > has ? most - has : 0;
}

/* Counts bytes that are no longer granted. */
static void take_back(struct session *self, uint64_t bytes)
{
    self->sessions->granted_bytes -= least(bytes, self->sessions->granted_bytes);
    self->owner->granted_bytes -= least(bytes, self->owner->granted_bytes);
}

static void grant_bytes(struct session *self)
{
    struct sessions *sessions = self->sessions;
    uint64_t used = self->returned_bytes - self->told_returned;
    if (used >= self->window_bytes / 8) /* a single item may have been larger than the window */
        self->window_bytes = 2 * (used > self->window_bytes ? used : self->window_bytes);
    uint64_t most = most_bytes(self);
    if (self->window_bytes > most)
        self->window_bytes = most;
    uint64_t want = self->returned_bytes + self->window_bytes;
    if (want <= self->offered_bytes)
        return;
    uint64_t room =
        sessions->granted_bytes < sessions->ingest_budget ? sessions->ingest_budget - sessions->granted_bytes : 0;
    credit_offer(self, least(least(want - self->offered_bytes, room), owner_room(self)));
}

static void grant_items(struct flow *flow, uint32_t flows)
{
    if (!flow->window)
        flow->window = FIRST_WINDOW_ITEMS;
    if (flow->resolved - flow->told_resolved >= flow->window / 8)
        flow->window *= 2;
    uint64_t most = most_items(flow, flows);
    if (flow->window > most)
        flow->window = most;
    if (flow->resolved + flow->window > flow->allowed)
        flow->allowed = flow->resolved + flow->window;
}

static uint32_t count_flows(const struct session *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        n += self->flows[i] && self->flows[i]->arrived > 0;
    return n;
}

void credit_offer(struct session *self, uint64_t bytes)
{
    struct sessions *sessions = self->sessions;
    self->offered_bytes += bytes;
    sessions->granted_bytes += bytes;
    self->owner->granted_bytes += bytes;
    if (self->allowed_bytes < self->offered_bytes)
        self->allowed_bytes = self->offered_bytes;
}

void credit_refresh(struct session *self)
{
    if (self->rejection_count > REJECTIONS_MOST)
        return;
    if (identity_owes_s(self->owner, self->sessions->loop->now_ns) > 0.0) {
        credit_mark(self, true); /* a notice brings the credit when the key has paid */
        return;
    }
    grant_bytes(self);
    uint32_t flows = count_flows(self);
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (self->flows[i])
            grant_items(self->flows[i], flows);
}

uint64_t credit_allowed(const struct session *self)
{
    return self->offered_bytes + self->released_bytes;
}

static void set_writing(struct session *self, bool writing)
{
    if (self->writing != writing)
        self->sessions->n_writing += writing ? 1 : UINT32_MAX;
    self->writing = writing;
}

void credit_use(struct session *self)
{
    set_writing(self, true);
}

void credit_open(struct session *self)
{
    struct sessions *sessions = self->sessions;
    self->window_bytes = least(idle_bytes(sessions), most_bytes(self));
    /* A tombstone keeps only its promise (allowed_bytes): credit starts anew, and what the writer sends again is accepted up
     * to the promise. */
    self->offered_bytes = self->returned_bytes;
    self->told_returned = self->measured_bytes = self->returned_bytes;
    self->measured_ns = sessions->loop->now_ns;
    self->released_bytes = self->keep_bytes = 0;
    credit_refresh(self);
}

void credit_close(struct session *self)
{
    if (self->tombstone)
        return; /* closed when it expired */
    set_writing(self, false);
    take_back(self, self->offered_bytes - self->returned_bytes);
    /* Everything that has arrived counts as returned. */
    self->offered_bytes = self->returned_bytes = self->received_bytes;
}

void credit_return(struct session *self, uint64_t bytes)
{
    self->returned_bytes += bytes;
    take_back(self, bytes);
}

void credit_measure(struct session *self)
{
    struct sessions *sessions = self->sessions;
    /* Some clients poll for credit with many heartbeats per second. */
    if (sessions->loop->now_ns - self->measured_ns < sessions->config->expiry_ns / CONFIG_HEARTBEATS / 2)
        return;
    uint64_t used = self->received_bytes - self->measured_bytes, keep = idle_bytes(sessions);
    self->measured_ns = sessions->loop->now_ns;
    self->measured_bytes = self->received_bytes;
    set_writing(self, used > 0 || session_unresolved(self) > 0);
    self->keep_bytes = 0;
    uint64_t own = (uint64_t)self->owner->quota.granted_bytes;
    if (sessions->granted_bytes <= sessions->ingest_budget / 2 && (!own || self->owner->granted_bytes <= own / 2))
        return;
    keep = keep > 2 * used ? keep : 2 * used;
    if (self->window_bytes > keep)
        self->window_bytes = keep;
    if (self->offered_bytes - self->received_bytes > keep)
        self->keep_bytes = keep;
}

void credit_release(struct session *self, uint64_t released)
{
    struct sessions *sessions = self->sessions;
    if (released <= self->released_bytes || released > credit_allowed(self))
        return; /* known already; or more than it ever had */
    /* A single item that needed no credit may have used up what is released here. */
    uint64_t bytes = least(released - self->released_bytes, self->offered_bytes - self->received_bytes);
    self->released_bytes = released;
    self->offered_bytes -= bytes;
    self->allowed_bytes = self->offered_bytes; /* no less than what it has sent */
    take_back(self, bytes);
    uint64_t left = self->offered_bytes - self->returned_bytes, idle = idle_bytes(sessions);
    left = left > idle ? left : idle;
    if (self->window_bytes > left)
        self->window_bytes = left;
    self->keep_bytes = 0;
}
