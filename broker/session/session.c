#include "broker/session/session.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/entries.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/memfile.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"
#include "proto/base/utf8.h"

#define SESSIONS_MOST 1000000u
/* Least time between two notices; while data arrives they come less often, since each costs as much as many items. */
#define NOTICE_NS (100 * NS_PER_US)
#define BUSY_NOTICE_NS NS_PER_MS

/* ---- the chunks that a session keeps: later items may refer to them, by number ---- */

/* Most numbers that a ring spans. */
#define RING_MOST (1u << 20)
/* Highest chunk number: arithmetic on chunk numbers must not overflow. */
#define CHUNK_NUMBER_MOST (UINT64_C(1) << 62)

static bool ring_grow(struct session *self, uint64_t span)
{
    uint32_t capacity = self->ring ? self->ring_mask + 1 : 64;
    while (capacity < span)
        capacity *= 2;
    struct chunk **ring = calloc(capacity, sizeof(*ring));
    if (!ring)
        return false;
    for (uint64_t n = self->oldest_chunk; self->ring && n <= self->newest_chunk; n++)
        ring[n & (capacity - 1)] = self->ring[n & self->ring_mask];
    self->sessions->store->overhead += (capacity - (self->ring ? self->ring_mask + 1 : 0)) * sizeof(*ring);
    free(self->ring);
    self->ring = ring;
    self->ring_mask = capacity - 1;
    return true;
}

/* Bounds what sessions keep for later items: each by its window, all of them by the ingest budget. The first chunk of a
 * session is not refused, nor are the chunks of a session that keeps no more than its share. held: bytes with the new chunk. */
static rp_status check_kept(const struct session *self, uint64_t held, rp_error *err)
{
    const struct sessions *sessions = self->sessions;
    uint64_t window = WINDOW_BYTES, message = (uint64_t)sessions->config->max_message_bytes;
    uint64_t all = sessions->kept_bytes - self->chunk_bytes + held;
    /* A first chunk is let in only as long as all chunks leave the tables half of the memory. */
    bool first = self->chunk_bytes == 0 && (sessions->kept_bytes == 0 || all <= sessions->tables->storage_budget / 2);
    if (first ||
        (held * sessions->n_open <= sessions->ingest_budget && held <= 2 * (window > message ? window : message)))
        return RP_OK;
    if (held > 2 * (window > message ? window : message))
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the session keeps %llu bytes of chunks for later items, which is too much: use a shorter "
                       "keep-alive window",
                       (unsigned long long)held);
    if (all > 2 * sessions->ingest_budget)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "all sessions keep %llu bytes of chunks for later items, this one %llu: use shorter keep-alive "
                       "windows, or raise memory_limit",
                       (unsigned long long)all, (unsigned long long)held);
    return RP_OK;
}

rp_status session_keep_chunk(struct session *self, uint64_t number, struct chunk *chunk, rp_error *err)
{
    struct sessions *sessions = self->sessions;
    uint64_t span = number - self->oldest_chunk + 1;
    if (number < self->oldest_chunk || span > RING_MOST || number > CHUNK_NUMBER_MOST)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "chunk %llu is out of range: the session keeps chunks %llu and up, at most %u of them",
                       (unsigned long long)number, (unsigned long long)self->oldest_chunk, RING_MOST);
    uint64_t held = self->chunk_bytes + chunk_cost(chunk);
    RP_TRY(check_kept(self, held, err));
    if ((!self->ring || span > (uint64_t)self->ring_mask + 1) && !ring_grow(self, span))
        return err_set(err, RP_NO_MEMORY, "no memory for chunk %llu", (unsigned long long)number);
    if (number > self->newest_chunk)
        self->newest_chunk = number;
    self->ring[number & self->ring_mask] = chunk;
    self->chunk_bytes = held;
    sessions->kept_bytes += chunk_cost(chunk);
    return RP_OK;
}

/* A ring whose chunks are released in slices. */
struct ring_drop {
    struct chore chore;
    struct store *store;
    struct chunk **ring;
    uint32_t at, capacity;
};

static bool ring_drop_step(struct chore *chore)
{
    struct ring_drop *self = (struct ring_drop *)chore;
    for (uint32_t i = 0; i < 256 && self->at < self->capacity; i++, self->at++)
        if (self->ring[self->at])
            store_release(self->store, self->ring[self->at]);
    if (self->at < self->capacity)
        return true;
    free(self->ring);
    free(self);
    return false;
}

/* Releases all chunks, in slices. The range of numbers stays. */
static void session_drop_all_chunks(struct session *self)
{
    struct sessions *sessions = self->sessions;
    if (!self->ring)
        return;
    struct ring_drop *drop = need_alloc(sizeof *drop);
    *drop = (struct ring_drop){{NULL, ring_drop_step}, sessions->store, self->ring, 0, self->ring_mask + 1};
    chores_add(&sessions->loop->chores, &drop->chore);
    sessions->store->overhead -= ((uint64_t)self->ring_mask + 1) * sizeof(*self->ring);
    self->ring = NULL;
    self->ring_mask = 0;
    sessions->kept_bytes -= self->chunk_bytes;
    self->chunk_bytes = 0;
}

void session_drop_chunks(struct session *self, uint64_t oldest, uint32_t most)
{
    struct sessions *sessions = self->sessions;
    if (oldest > CHUNK_NUMBER_MOST)
        oldest = CHUNK_NUMBER_MOST;
    if (oldest <= self->oldest_chunk)
        return;
    uint64_t end = oldest <= self->newest_chunk + 1 ? oldest : self->newest_chunk + 1;
    if (self->ring && oldest > self->newest_chunk && self->newest_chunk - self->oldest_chunk > 1024) {
        session_drop_all_chunks(self);
        end = self->oldest_chunk;
    }
    if (end > self->oldest_chunk + most)
        end = oldest = self->oldest_chunk + most;
    for (uint64_t n = self->oldest_chunk; self->ring && n < end; n++) {
        struct chunk **at = &self->ring[n & self->ring_mask];
        if (*at) {
            self->chunk_bytes -= chunk_cost(*at);
            sessions->kept_bytes -= chunk_cost(*at);
            store_release(sessions->store, *at);
            *at = NULL;
        }
    }
    self->oldest_chunk = oldest;
    if (self->newest_chunk + 1 < oldest)
        self->newest_chunk = oldest - 1;
}

/* ---- BYE: the request waits until the session's last items are resolved ---- */

struct goodbye {
    struct wait wait;
    struct session *session;
    uint64_t last_number;
};

static void goodbye_explain(const struct wait *wait, struct wait_text *out)
{
    const struct goodbye *self = (const struct goodbye *)wait;
    const struct session *session = self->session;
    out->count = flows_unresolved(session);
    int used =
        snprintf(out->text, sizeof out->text, "session '%s' ends: message %llu of %llu has arrived, %llu items wait",
                 session->name, (unsigned long long)session->received, (unsigned long long)self->last_number,
                 (unsigned long long)out->count);
    for (uint32_t i = 0; i < session->n_tables && used > 0 && (size_t)used < sizeof out->text; i++) {
        const struct flow *flow = &session->flows[i];
        char why[200] = "";
        if (!flow->count)
            continue;
        pump_explain_insert(flow->table, why, sizeof why);
        used += snprintf(out->text + used, sizeof out->text - (size_t)used, "; table '%.64s' holds back %u: %s",
                         flow->table->name, flow->count, why);
    }
}

/* Answers and ends the wait. */
static void goodbye_answer(struct wait *wait, rp_status status, const char *text)
{
    struct goodbye *self = (struct goodbye *)wait;
    struct peers *peers = self->session->sessions->peers;
    struct arena arena = {0};
    Replay__Credit *credit = credit_message(&arena, self->session, status != RP_OK);
    if (status == RP_OK)
        request_finish(peers, wait, REPLAY__REPLY__BODY_CREDIT, &credit->base);
    else
        request_send(peers, &wait->to, wait->id,
                     &(struct answer){status, text, REPLAY__REPLY__BODY_CREDIT, &credit->base, NULL, 0});
    arena_fini(&arena);
    wait_end(wait);
    self->session->goodbye = NULL;
    free(self);
}

static const struct wait_ops goodbye_ops = {"bye", goodbye_explain, NULL, goodbye_answer, NULL};

/* ---- life ---- */

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

static void session_silent(struct timer *timer);

static void set_timer(struct session *self, int64_t at_ns)
{
    timer_set(&self->sessions->loop->timers, &self->timer, at_ns);
}

/* Memory of a session without what it holds. */
static uint64_t session_memory(const struct sessions *sessions)
{
    return sizeof(struct session) + sessions->tables->n * sizeof(struct flow);
}

/* Makes a session that has no ordinal yet. No other session has the id. */
static struct session *session_new(struct sessions *sessions, const uint8_t *id, const char *name,
                                   struct columns *columns, rp_error *err)
{
    if (sessions->by_id.count >= SESSIONS_MOST)
        return err_null(err, RP_RESOURCE_EXHAUSTED, "the broker has %u sessions, which is the most", SESSIONS_MOST);
    struct session *self = need_alloc(sizeof *self);
    self->sessions = sessions;
    self->n_tables = sessions->tables->n;
    self->flows = need_alloc(self->n_tables * sizeof *self->flows);
    for (uint32_t i = 0; i < self->n_tables; i++) {
        self->flows[i].session = self;
        self->flows[i].table = &sessions->tables->list[i];
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
    LIST_INSERT_HEAD(&sessions->list, self, link);
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
    if (!ordinal)
        return err_null(err, RP_RESOURCE_EXHAUSTED,
                        "all %u ordinals of sessions are in use: no key is left for a further one", KEY_ORDINALS - 1);
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
    if (idmap_get(&sessions->by_id, id_half(origin->id)))
        return err_null(err, RP_ALREADY_EXISTS, "two sessions have the same id");
    struct session *self = session_new(sessions, origin->id, origin->name, columns, err);
    if (!self)
        return NULL;
    session_number(self, origin->ordinal, origin->keys);
    self->tombstone = self->restored = true;
    set_timer(self, sessions->loop->now_ns + CONFIG_TOMBSTONE * sessions->config->expiry_ns);
    return self;
}

/* Most address space that a writer's memory may take here, and most writers: a process may have some 65,000 mappings. */
#define BORROWED_MOST (UINT64_C(1) << 30)
#define LENDERS_MOST 4096u

void session_borrow(struct session *self, const Replay__Arena *offer)
{
    struct borrowed *borrowed = &self->borrowed;
    if (borrowed->data && offer && offer->nonce == borrowed->nonce && offer->size == borrowed->size)
        return;
    self->sessions->n_borrowed -= borrowed->data != NULL;
    memfile_unmap(borrowed->data, borrowed->size);
    *borrowed = (struct borrowed){0};
    if (!offer || !self->sessions->config->shared_memory || self->remote || offer->size > BORROWED_MOST ||
        self->sessions->n_borrowed >= LENDERS_MOST)
        return;
    struct memfile_name name = {offer->pid, offer->fd, offer->size, offer->nonce};
    *borrowed = (struct borrowed){memfile_map(&name), offer->size, offer->nonce};
    self->sessions->n_borrowed += borrowed->data != NULL;
}

/* Drops everything but the numbers and the layouts. */
static void session_empty(struct session *self)
{
    for (uint32_t i = 0; i < self->n_tables; i++) {
        flow_drop(&self->flows[i]);
        self->flows[i].arrived = self->flows[i].resolved;
    }
    session_drop_all_chunks(self);
    session_borrow(self, NULL);
    self->oldest_chunk = self->newest_chunk + 1;
    credit_close(self);
    if (self->goodbye)
        wait_cancel(&self->goodbye->wait, RP_FAILED_PRECONDITION,
                    "the session was silent for too long and expired before its last items were resolved: resume it "
                    "with HELLO, then say BYE again");
}

static void session_silent(struct timer *timer)
{
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
    uint64_t waiting = flows_unresolved(self);
    uint32_t held;
    if (log_allow(&sessions->session_log, 20, sessions->loop->now_ns, &held))
        log_line(LEVEL_WARN, "B0103", "session expired",
                 "name=%s ordinal=%u silent_s=%.1f waiting_items_dropped=%llu held_back=%u", log_text(self->name),
                 self->ordinal, (double)(sessions->loop->now_ns - self->seen_ns) / (double)NS_PER_S,
                 (unsigned long long)waiting, held);
    session_empty(self);
    self->tombstone = true;
    count_open(self, false);
    set_timer(self, sessions->loop->now_ns + CONFIG_TOMBSTONE * sessions->config->expiry_ns);
}

void session_resume(struct session *self, uint64_t oldest_number, uint64_t *lost)
{
    struct sessions *sessions = self->sessions;
    uint64_t start = oldest_number > 0 ? oldest_number - 1 : 0;
    *lost = 0;
    if (self->tombstone) {
        self->tombstone = self->restored = false;
        count_open(self, true);
        /* Chunks and waiting items are gone: the writer sends what it still has, and item numbers tell which items are new. */
        self->received = start < self->received ? start : self->received;
        self->rebase = true;
        credit_open(self);
        log_line(LEVEL_INFO, "B0104", "session resumed", "name=%s ordinal=%u received=%llu", log_text(self->name),
                 self->ordinal, (unsigned long long)self->received);
    }
    if (start > self->received) {
        *lost = start - self->received;
        self->received = start;
        for (uint32_t i = 0; i < self->n_tables; i++)
            self->flows[i].jumps = true;
        log_line(LEVEL_ERROR, "B0105",
                 sessions->loop->effects ? "accepted messages were lost (before this journal, or its end is damaged)"
                                         : "accepted messages were lost (no journal)",
                 "name=%s ordinal=%u messages=%llu", log_text(self->name), self->ordinal, (unsigned long long)*lost);
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
    EFFECT_ENTRY(sessions->loop, ENTRY_SESSION_END, 0, entry_named, self->ordinal);
    session_empty(self);
    if (!self->tombstone)
        count_open(self, false);
    idmap_remove(&sessions->by_id, id_half(self->id));
    ordinals_release(&sessions->tables->ordinals, self->ordinal);
    if (sessions->walk == self)
        sessions->walk = LIST_NEXT(self, link);
    LIST_REMOVE(self, link);
    if (self->dirty)
        LIST_REMOVE(self, news);
    for (uint32_t i = 0; i < self->n_layouts; i++) {
        if (self->layouts[i].layout)
            layouts_release(sessions->layouts, self->layouts[i].layout);
        free(self->layouts[i].refusal);
        free(self->layouts[i].packed);
    }
    free(self->flows);
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
    while (!LIST_EMPTY(&self->list))
        session_close(LIST_FIRST(&self->list));
    idmap_fini(&self->by_id);
}

/* If the session's last items are resolved, answers its BYE and closes the session. */
static void goodbye_check(struct session *session)
{
    if (session->received < session->goodbye->last_number || flows_unresolved(session) > 0)
        return;
    goodbye_answer(&session->goodbye->wait, RP_OK, "");
    log_line(LEVEL_DEBUG, "B0102", "session closed", "name=%s ordinal=%u", log_text(session->name), session->ordinal);
    session_close(session);
}

rp_status session_say_goodbye(struct session *session, struct request *request, uint64_t last_number,
                              uint64_t timeout_ms, rp_error *err)
{
    struct goodbye *self =
        wait_new(session->sessions->peers, sizeof *self, &goodbye_ops, NULL, request, timeout_ms, err);
    if (!self)
        return (rp_status)err->status;
    self->session = session;
    self->last_number = last_number;
    session->goodbye = self;
    goodbye_check(session);
    return RP_OK;
}

/* ---- notices ---- */

/* True if something has changed since the last notice. */
static bool has_news(const struct session *self)
{
    bool news = self->urgent || self->returned_bytes != self->told_returned;
    for (uint32_t i = 0; i < self->n_tables && !news; i++)
        news = self->flows[i].resolved != self->flows[i].told_resolved;
    return news;
}

/* True if a notice should be sent now: an eighth of a window has come free, or the writer may be waiting for the rest. */
static bool is_due(const struct session *self)
{
    const struct sessions *sessions = self->sessions;
    if (self->urgent || self->goodbye)
        return true;
    if (self->returned_bytes - self->told_returned >= self->window_bytes / 8 && self->window_bytes)
        return true;
    for (uint32_t i = 0; i < self->n_tables; i++) {
        const struct flow *flow = &self->flows[i];
        if (flow->resolved != flow->told_resolved && flow->resolved - flow->told_resolved >= flow->window / 8)
            return true;
    }
    return sessions->config->prompt ||
           sessions->loop->now_ns - self->told_ns >= (sessions->ingest_idle ? NOTICE_NS : BUSY_NOTICE_NS);
}

void sessions_notify(struct sessions *sessions)
{
    for (struct session *self = LIST_FIRST(&sessions->dirty), *next; self; self = next) {
        bool news = self->notices && !self->tombstone && has_news(self);
        next = LIST_NEXT(self, news);
        if (news && (!is_due(self) || identity_owes_s(self->owner, sessions->loop->now_ns) > 0.0))
            continue;
        LIST_REMOVE(self, news);
        self->dirty = self->urgent = false;
        if (news) {
            struct arena arena = {0};
            credit_refresh(self);
            Replay__Credit *credit = credit_message(&arena, self, false);
            request_send(sessions->peers, &self->to, 0,
                         &(struct answer){RP_OK, NULL, REPLAY__REPLY__BODY_CREDIT, &credit->base, NULL, 0});
            arena_fini(&arena);
        }
        if (self->goodbye)
            goodbye_check(self);
    }
}

/* ---- transit ---- */

/* A writer that waits for less than this share of its time is not held back. */
#define SHARE_LEAST 0.15
/* Confirmations on a fast network take less, even with busy processors. */
#define FLIGHT_LEAST_NS (10 * NS_PER_MS)
/* After this many intervals without a heartbeat, nothing is known any more. */
#define SILENT_HEARTBEATS 3
/* So many measurements in a row end it: a single one may fall on a busy moment. */
#define MISSES 2u

static bool waits_here(const struct session *session)
{
    for (uint32_t i = 0; i < session->n_tables; i++)
        if (session->flows[i].count > 0)
            return true;
    return false;
}

/* True if the writer waits, and not for this broker. */
static bool is_held(const struct session *session)
{
    const struct transit *self = &session->transit;
    return session->remote && self->share >= SHARE_LEAST && self->flight_ns >= FLIGHT_LEAST_NS &&
           session->sessions->ingest_idle && !session->sessions->ingest_held && !waits_here(session);
}

void transit_measure(struct session *session, const struct transit_report *report)
{
    struct transit *self = &session->transit;
    int64_t now = session->sessions->loop->now_ns, ns = now - self->at_ns;
    if (ns < session->sessions->config->expiry_ns / CONFIG_HEARTBEATS / 2)
        return;
    bool known = self->at_ns > 0 && report->waited_ns >= self->waited_ns && session->received_bytes >= self->bytes;
    double share = known ? (double)(report->waited_ns - self->waited_ns) / (double)ns : 0.0;
    self->share = share < 1.0 ? share : 1.0;
    self->rate = known ? (double)(session->received_bytes - self->bytes) * 1e9 / (double)ns : 0.0;
    self->flight_ns = report->flight_ns;
    self->messages = report->sent > session->received ? report->sent - session->received : 0;
    self->waited_ns = report->waited_ns;
    self->bytes = session->received_bytes;
    self->at_ns = now;
    self->misses = is_held(session) ? 0 : self->misses + 1;
    if (self->misses >= MISSES)
        self->since_ns = 0;
    else if (self->misses == 0 && self->since_ns == 0)
        self->since_ns = now - ns;
}

bool transit_holds(const struct session *session)
{
    const struct transit *self = &session->transit;
    int64_t silent = session->sessions->loop->now_ns - self->at_ns;
    return self->since_ns > 0 && !session->tombstone &&
           silent < SILENT_HEARTBEATS * session->sessions->config->expiry_ns / CONFIG_HEARTBEATS;
}

void transit_explain(const struct session *session, char *out, unsigned size)
{
    const struct transit *self = &session->transit;
    format_buffer rate, flight;
    snprintf(out, size, "its data takes %s to the broker, which gets %s/s of it; the writer waits %.0f%% of its time",
             format_time(flight, self->flight_ns), format_bytes(rate, (uint64_t)self->rate), 100 * self->share);
}
