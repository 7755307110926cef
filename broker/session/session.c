#include "broker/session/session.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/session/bye.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/session_chunks.h"
#include "broker/table/table.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"
#include "proto/base/utf8.h"

#define SESSIONS_MOST 1000000u

static uint64_t id_half(const uint8_t *id)
{
    uint64_t half;
    memcpy(&half, id, 8);
    return half;
}

struct session *session_find(struct sessions *sessions, const uint8_t *id)
{
    struct session *self = idmap_get(&sessions->by_id, id_half(id));
    return self && memcmp(self->id, id, WIRE_SESSION_BYTES) == 0 ? self : NULL;
}

static void session_silent(struct timer *timer, void *ctx);

static void set_timer(struct session *self, int64_t at_ns)
{
    timer_set(&self->sessions->loop->timers, &self->timer, at_ns);
}

/* Makes the flows of all tables at once: an open session never lacks the memory to count its items. */
static bool flows_make(struct session *self)
{
    if (!self->flows)
        return false;
    const struct tables *tables = self->sessions->tables;
    self->n_tables = tables->n;
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (!session_flow(self, &tables->list[i]))
            return false;
    return true;
}

static void flows_free(struct session *self)
{
    for (uint32_t i = 0; self->flows && i < self->n_tables; i++)
        free(self->flows[i]);
    free(self->flows);
}

/* Memory of a session without what it holds. */
static uint64_t session_memory(const struct sessions *sessions)
{
    return sizeof(struct session) + sessions->tables->n * (sizeof(struct flow) + sizeof(struct flow *));
}

/* Makes a session that has no ordinal yet. No other session has the id. */
static struct session *session_new(struct sessions *sessions, const uint8_t *id, const char *name,
                                   struct columns *columns, rp_error *err)
{
    struct session *self = sessions->by_id.count < SESSIONS_MOST ? calloc(1, sizeof *self) : NULL;
    if (self) {
        self->sessions = sessions;
        self->flows = calloc(sessions->tables->n, sizeof(struct flow *));
    }
    if (!self || !flows_make(self)) {
        if (self)
            flows_free(self);
        free(self);
        if (sessions->by_id.count < SESSIONS_MOST)
            err_set(err, RP_NO_MEMORY, "no memory for a session");
        else
            err_set(err, RP_RESOURCE_EXHAUSTED, "the broker has %u sessions, which is the most", SESSIONS_MOST);
        return NULL;
    }
    idmap_put(&sessions->by_id, id_half(id), self);
    sessions->store->overhead += session_memory(sessions);
    memcpy(self->id, id, sizeof self->id);
    strncpy(self->name, name[0] ? name : "unnamed", sizeof self->name - 1);
    utf8_clean(self->name, strlen(self->name));
    self->owner = &sessions->peers->identities.anyone;
    self->columns = columns;
    self->serial = ++sessions->next_serial;
    self->epoch = 1;
    self->oldest_chunk = 1;
    self->next = sessions->list;
    if (self->next)
        self->next->prev = self;
    sessions->list = self;
    self->seen_ns = sessions->loop->now_ns;
    self->timer = (struct timer){.fire = session_silent};
    return self;
}

/* Counts a session as open, or as open no more. */
static void count_open(struct session *self, bool open)
{
    uint32_t one = open ? 1 : UINT32_MAX;
    self->sessions->n_open += one;
    self->owner->sessions += one;
}

void session_set_owner(struct session *self, struct identity *owner)
{
    uint64_t granted = self->offered_bytes - self->returned_bytes;
    bool open = !self->tombstone;
    if (open) {
        self->owner->sessions--;
        self->owner->granted_bytes -= granted < self->owner->granted_bytes ? granted : self->owner->granted_bytes;
        owner->sessions++;
        owner->granted_bytes += granted;
    }
    self->owner = owner;
}

rp_status session_check_owner(const struct session *self, const struct identity *who, rp_error *err)
{
    /* A session of a time without keys belongs to whoever resumes it. */
    const struct identity *anyone = &self->sessions->peers->identities.anyone;
    if (self->owner == who || self->owner == anyone || who == anyone)
        return RP_OK;
    return err_set(err, RP_PERMISSION_DENIED, "session '%s' was opened with another key than '%s'", self->name,
                   who->name);
}

static void session_number(struct session *self, uint32_t ordinal, struct key_range keys)
{
    self->ordinal = ordinal;
    self->keys = keys;
    ordinals_hold(&self->sessions->tables->ordinals, ordinal);
}

struct session *session_open(struct sessions *sessions, const char *name, struct columns *columns,
                             struct identity *owner, rp_error *err)
{
    uint8_t id[WIRE_SESSION_BYTES];
    do
        rng_system(id, sizeof id);
    while (idmap_get(&sessions->by_id, id_half(id)));
    struct key_range keys;
    uint32_t ordinal = ordinals_take(&sessions->tables->ordinals, &keys);
    if (!ordinal) {
        err_set(err, RP_RESOURCE_EXHAUSTED, "all %u ordinals of sessions are in use: no key is left for a further one",
                KEY_ORDINALS - 1);
        return NULL;
    }
    struct session *self = session_new(sessions, id, name, columns, err);
    if (!self)
        return NULL;
    session_number(self, ordinal, keys);
    self->owner = owner;
    count_open(self, true);
    set_timer(self, sessions->loop->now_ns + sessions->config->expiry_ns);
    credit_open(self);
    return self;
}

struct session *session_restore(struct sessions *sessions, const struct session_origin *origin, struct columns *columns,
                                rp_error *err)
{
    if (idmap_get(&sessions->by_id, id_half(origin->id))) {
        err_set(err, RP_ALREADY_EXISTS, "two sessions have the same id");
        return NULL;
    }
    struct session *self = session_new(sessions, origin->id, origin->name, columns, err);
    if (!self)
        return NULL;
    session_number(self, origin->ordinal, origin->keys);
    self->tombstone = self->restored = true;
    set_timer(self, sessions->loop->now_ns + CONFIG_TOMBSTONE * sessions->config->expiry_ns);
    return self;
}

struct flow *session_flow(struct session *self, struct table *table)
{
    struct flow *flow = self->flows[table->id];
    if (flow)
        return flow;
    flow = calloc(1, sizeof *flow);
    if (!flow)
        return NULL;
    flow->session = self;
    flow->table = table;
    self->flows[table->id] = flow;
    return flow;
}

uint64_t session_unresolved(const struct session *self)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (self->flows[i])
            n += self->flows[i]->arrived - self->flows[i]->resolved;
    return n;
}

/* Drops everything but the numbers and the layouts. */
static void session_empty(struct session *self)
{
    struct sessions *sessions = self->sessions;
    for (uint32_t i = 0; i < sessions->tables->n; i++)
        if (self->flows[i]) {
            flow_drop(self->flows[i]);
            self->flows[i]->arrived = self->flows[i]->resolved;
        }
    session_drop_all_chunks(self);
    self->oldest_chunk = self->newest_chunk + 1;
    credit_close(self);
    if (self->bye)
        bye_cancel(self);
}

static void session_silent(struct timer *timer, void *ctx)
{
    (void)ctx;
    struct session *self = (struct session *)(void *)((char *)timer - offsetof(struct session, timer));
    struct sessions *sessions = self->sessions;
    if (self->tombstone) {
        session_close(self);
        return;
    }
    int64_t due = self->seen_ns + sessions->config->expiry_ns;
    /* While ingest or replies wait for the disk, silence means nothing. */
    if (due <= sessions->loop->now_ns && (sessions->ingest_held || commit_is_stuck(sessions->peers)))
        due = sessions->loop->now_ns + NS_PER_S;
    if (due > sessions->loop->now_ns) {
        set_timer(self, due);
        return;
    }
    uint64_t waiting = session_unresolved(self);
    uint32_t held;
    char name[SESSION_QUOTED];
    if (log_allow(&sessions->session_log, 20, sessions->loop->now_ns, &held))
        log_line(LEVEL_WARN, "B0103", "session expired",
                 "name=%s ordinal=%u silent_s=%.1f waiting_items_dropped=%llu held_back=%u", session_quoted(self, name),
                 self->ordinal, (double)(sessions->loop->now_ns - self->seen_ns) / (double)NS_PER_S,
                 (unsigned long long)waiting, held);
    session_empty(self);
    self->tombstone = true;
    count_open(self, false);
    set_timer(self, sessions->loop->now_ns + CONFIG_TOMBSTONE * sessions->config->expiry_ns);
}

const char *session_quoted(const struct session *self, char out[SESSION_QUOTED])
{
    return log_quote(out, SESSION_QUOTED, self->name);
}

void session_resume(struct session *self, uint64_t oldest_number, uint64_t *lost)
{
    struct sessions *sessions = self->sessions;
    uint64_t start = oldest_number > 0 ? oldest_number - 1 : 0;
    char name[SESSION_QUOTED];
    *lost = 0;
    if (self->tombstone) {
        self->tombstone = self->restored = false;
        count_open(self, true);
        /* Chunks and waiting items are gone: the writer sends what it still has, and item numbers tell which items are new. */
        self->received = start < self->received ? start : self->received;
        self->rebase = true;
        credit_open(self);
        log_line(LEVEL_INFO, "B0104", "session resumed", "name=%s ordinal=%u received=%llu", session_quoted(self, name),
                 self->ordinal, (unsigned long long)self->received);
    }
    if (start > self->received) {
        *lost = start - self->received;
        self->received = start;
        for (uint32_t i = 0; i < self->n_tables; i++)
            if (self->flows[i])
                self->flows[i]->jumps = true;
        log_line(LEVEL_ERROR, "B0105",
                 sessions->loop->effects ? "accepted messages were lost (before this journal, or its end is damaged)"
                                         : "accepted messages were lost (no journal)",
                 "name=%s ordinal=%u messages=%llu", session_quoted(self, name), self->ordinal,
                 (unsigned long long)*lost);
    }
    self->epoch++;
    self->gap = false;
    self->released_bytes = self->keep_bytes = 0; /* counted within an epoch */
    session_touch(self, sessions->loop->now_ns);
    set_timer(self, sessions->loop->now_ns + sessions->config->expiry_ns);
}

void session_close(struct session *self)
{
    struct sessions *sessions = self->sessions;
    timer_clear(&sessions->loop->timers, &self->timer);
    EFFECT(sessions->loop, session_end, self);
    session_empty(self);
    if (!self->tombstone)
        count_open(self, false);
    idmap_remove(&sessions->by_id, id_half(self->id));
    ordinals_release(&sessions->tables->ordinals, self->ordinal);
    if (sessions->walk == self)
        sessions->walk = self->next;
    if (self->prev)
        self->prev->next = self->next;
    else
        sessions->list = self->next;
    if (self->next)
        self->next->prev = self->prev;
    if (self->dirty) {
        struct session **at = &sessions->dirty;
        while (*at != self)
            at = &(*at)->next_dirty;
        *at = self->next_dirty;
    }
    for (uint32_t i = 0; i < self->n_layouts; i++) {
        if (self->layouts[i].layout)
            layouts_release(sessions->layouts, self->layouts[i].layout);
        free(self->layouts[i].refusal);
        free(self->layouts[i].packed);
    }
    flows_free(self);
    credit_confirm(self, UINT64_MAX);
    free(self->rejections);
    free(self->refusals);
    free(self->layouts);
    columns_release(self->columns);
    sessions->store->overhead -= session_memory(sessions);
    free(self);
}

void sessions_fini(struct sessions *self)
{
    for (struct session *session = self->list, *next; session; session = next) {
        next = session->next;
        session_close(session);
    }
    idmap_fini(&self->by_id);
}
