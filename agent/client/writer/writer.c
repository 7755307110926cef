/* The writer: a stream of steps and items to each shard. A whole episode goes to one shard, the better of two; shards that are away get
 * no new episodes, and what was sent to them before waits there.
 *
 * The room agent/client/writer, from the ground up: step_stream.c (steps as chunks), item_layout.c (items as slices of chunks),
 * structured.c (patterns); on the I/O thread outbox.c (messages, credit, resending) and writer_session.c (HELLO, heartbeats). This
 * file is the writing thread's half, and uses them all. */
#include <inttypes.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/client/conn/client.h"
#include "agent/client/writer/item_layout.h"
#include "agent/client/writer/structured.h"
#include "agent/client/writer/writer_session.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/forks.h"
#include "proto/base/log.h"
#include "proto/base/rng.h"
#include "proto/base/trace.h"
#include "replay/writer.h"

#define DEFAULT_IN_FLIGHT_ITEMS 20000u
#define DEFAULT_IN_FLIGHT_BYTES (UINT64_C(256) << 20)
/* Most bytes in flight while the broker reads them in shared memory: milliseconds of the fastest writer. Memory that is used again soon is
 * in the processor's cache. */
#define SHARED_IN_FLIGHT_BYTES (UINT64_C(32) << 20)
#define DEFAULT_BATCH_ITEMS 50u
#define MAX_BATCH_ITEMS 4096u
/* A shard that is connected, and whose session is not open this long after the first one's, opens it later. (A shard that is silent is
 * not connected after a second.) */
#define GRACE_NS (3 * NS_PER_S)
#define MESSAGE_SLACK 4096u
/* A flush without a deadline says after this time what it waits for, and then after ever longer pauses. */
#define WARN_NS (5 * NS_PER_S)

/* Steps from `step` of the stream on were made with this version of the parameters. */
struct step_version {
    uint64_t step, version;
};
/* Changes of the version that are known of the steps that items may refer to. If there are more, two that follow each other
 * are taken as the older of them. */
#define STEP_VERSIONS 64u

/* A stream of steps and items to one shard. */
struct shard {
    struct handoff handoff; /* first: aligned to a cache line */
    struct writer_session session;
    struct conn *conn;
    struct trace *trace;      /* of the connection */
    struct conn_hello *hello; /* the writer's */
    struct step_stream stream;
    struct item_layouts layouts;
    rp_slice *all; /* [columns] for rp_writer_item_last */
    uint64_t *table_created;
    uint32_t last_table;
    uint64_t created, seen_resolved;
    uint64_t key_base, key_count, keys_used; /* of the current session */
    uint64_t handed_bytes, seen_done_bytes;  /* of chunks that items need */
    uint64_t max_items, max_bytes;
    uint64_t window;     /* of max_items, what the other shards leave: shard_set_window */
    rp_writer *writer;   /* that has this shard and others */
    uint32_t n_versions; /* 0: version 0 alone */
    struct step_version versions[STEP_VERSIONS];
    bool grouped;                 /* some table has groups */
    uint64_t handed_group;        /* of the item that was handed over last */
    struct waiting_item *waiting; /* items that wait until waiting_chunk is complete */
    uint32_t n_waiting, waiting_capacity;
    struct step_chunk *waiting_chunk;
    bool attached;
    uint32_t forks; /* of this process when the writer was made */
};

/* An item before it is handed over. */
struct waiting_item {
    struct queued_item item;
    uint64_t group;
};

struct rp_writer {
    struct conn_hello *hello; /* all shards have the same tables, and patterns name them by index */
    uint64_t group;           /* of the next items; 0: none */
    uint64_t reserved;        /* items that need not ask for room */
    struct shard *shard;      /* of the current episode */
    struct structured structured;
    bool choose; /* the next step begins an episode, and there are several shards */
    uint32_t n;
    struct rng rng;
    struct handoff_news news; /* of all shards */
    struct shard *shards[];
};

/* conn_check_process, without a call in the process that made the writer. */
static inline rp_status shard_check_process(const struct shard *self, rp_error *err)
{
    return self->forks == forks_count() ? RP_OK : conn_check_process(self->conn, err);
}

/* ---- handing chunks and items to the I/O thread */

/* Waits while the ring is full: the I/O thread never blocks, so there is room soon. Without a thread, the caller makes room. */
static void push(struct shard *self, const struct queued_item *item, struct step_chunk *evicted)
{
    struct timespec pause = {.tv_nsec = 20000};
    for (uint32_t tries = 0; !handoff_push(&self->handoff, item, evicted); tries++) {
        conn_wake(self->conn);
        conn_look(self->conn);
        if (tries < 100)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
    if (handoff_should_wake(&self->handoff))
        conn_wake(self->conn);
}

/* Returns the group of the next item of a table; 0: the table has none. */
static uint64_t group_for(const struct shard *self, uint32_t table)
{
    return self->hello->says->tables[table]->group_size ? self->writer->group : 0;
}

/* A slot of the ring has no room for a group: it goes ahead, if it differs from the last one. */
static __attribute__((noinline)) void push_item(struct shard *self, const struct queued_item *item, uint64_t group,
                                                struct step_chunk *evicted)
{
    if (group && group != self->handed_group) {
        push(self, &(struct queued_item){.key = group, .length = 1}, NULL);
        self->handed_group = group;
    }
    push(self, item, evicted);
}

static struct step_chunk *take_evicted(struct shard *self)
{
    struct step_chunk *evicted = self->stream.evicted;
    self->stream.evicted = NULL;
    return evicted;
}

static rp_status need_chunk(struct shard *self, struct step_chunk *chunk, rp_error *err)
{
    if (chunk != self->stream.open && !chunk->encoded) {
        RP_TRY(step_stream_encode(&self->stream, chunk, err));
        self->handed_bytes += chunk->size;
    }
    if (!chunk->needed)
        chunk->needed = true;
    return RP_OK;
}

static rp_status shard_release(struct shard *self, rp_error *err)
{
    if (self->n_waiting == 0 || self->waiting_chunk == self->stream.open)
        return RP_OK;
    RP_TRY(need_chunk(self, self->waiting_chunk, err));
    for (uint32_t i = 0; i < self->n_waiting; i++)
        push_item(self, &self->waiting[i].item, self->waiting[i].group,
                  i + 1 == self->n_waiting ? take_evicted(self) : NULL);
    self->n_waiting = 0;
    return RP_OK;
}

static rp_status await_chunk(struct shard *self, const struct queued_item *item, rp_error *err)
{
    if (self->n_waiting == self->waiting_capacity) {
        uint32_t capacity = self->waiting_capacity ? self->waiting_capacity * 2 : 64;
        struct waiting_item *grown = realloc(self->waiting, capacity * sizeof *grown);
        if (!grown)
            return err_set(err, RP_NO_MEMORY, "no memory for an item");
        self->waiting = grown;
        self->waiting_capacity = capacity;
    }
    if (self->n_waiting == 0)
        self->waiting_chunk = self->stream.open;
    self->waiting[self->n_waiting++] = (struct waiting_item){*item, group_for(self, item->layout->table)};
    return RP_OK;
}

/* ---- what a writer waits for */

static uint64_t shard_unconfirmed(struct shard *self)
{
    return self->created - atomic_load(&self->handoff.resolved);
}

/* Returns the unconfirmed items of the other shards. What waits for a broker that is away holds nobody up. */
static uint64_t held_by_others(const struct shard *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->writer->n; i++) {
        struct shard *shard = self->writer->shards[i];
        if (shard != self && conn_is_up(shard->conn))
            sum += shard_unconfirmed(shard);
    }
    return sum;
}

static void shard_set_window(struct shard *self)
{
    if (self->writer->n <= 1)
        return;
    uint64_t others = held_by_others(self), least = self->max_items / self->writer->n;
    self->window = self->max_items > others + least ? self->max_items - others : least;
}

/* Writes why the items wait, as far as it is known. */
static void explain(struct shard *self, char *out, size_t size)
{
    conn_describe(self->conn, out, size);
    if (out[0])
        return;
    uint32_t slowest = 0;
    uint64_t most = 0;
    pthread_mutex_lock(&self->handoff.news->mutex);
    snprintf(out, size, "%s", self->handoff.why);
    for (uint32_t i = 0; i < self->handoff.n_tables; i++) {
        uint64_t open = self->table_created[i] - self->handoff.tables[i].resolved;
        slowest = open > most ? i : slowest;
        most = open > most ? open : most;
    }
    struct handoff_table table = self->handoff.tables[slowest];
    pthread_mutex_unlock(&self->handoff.news->mutex);
    if (!out[0])
        snprintf(out, size,
                 "table '%.200s' has confirmed %" PRIu64 " of %" PRIu64 " items; %" PRIu64
                 " are sent, and the broker allows %" PRIu64,
                 self->hello->says->tables[slowest]->name, table.resolved, self->table_created[slowest], table.sent,
                 table.allowed);
}

typedef bool done_fn(struct shard *self, uint64_t arg);

/* Ends the wait for shards: all, or those that have confirmed all items. News mutex held. */
static void end_waits(struct shard *const *shards, uint32_t n, bool all)
{
    for (uint32_t i = 0; i < n; i++) {
        struct handoff *handoff = &shards[i]->handoff;
        if (handoff->wait_ns == 0 || (!all && shard_unconfirmed(shards[i]) > 0))
            continue;
        handoff->waited_ns += (uint64_t)(clock_ns() - handoff->wait_ns);
        handoff->wait_ns = 0;
    }
}

/* Waits for these shards until done, which hears the news of any; what: the name of its span in a trace. False: the deadline has passed,
 * or the caller has ended the wait. */
static bool wait_for(struct shard *const *shards, uint32_t n, const char *what, done_fn *done, uint64_t arg,
                     int64_t deadline_ns)
{
    struct shard *self = shards[0];
    struct handoff_news *news = self->handoff.news;
    if (done(self, arg))
        return true;
    if (deadline_ns != INT64_MAX && clock_ns() >= deadline_ns) {
        conn_look(self->conn);
        return done(self, arg);
    }
    int64_t start = trace_now(conn_trace(self->conn));
    atomic_fetch_add(&news->waiters, 1);
    pthread_mutex_lock(&news->mutex);
    for (uint32_t i = 0; i < n; i++) {
        shards[i]->handoff.why[0] = '\0';
        if (n > 1 && shard_unconfirmed(shards[i]) == 0)
            continue;
        shards[i]->handoff.wait_ns = clock_ns();
        conn_wake(shards[i]->conn); /* the I/O thread asks the broker for reasons while a caller waits */
    }
    bool ok;
    while (!(ok = done(self, arg)) && conn_wait(self->conn, &news->moved, &news->mutex, deadline_ns))
        if (n > 1)
            end_waits(shards, n, false);
    end_waits(shards, n, true);
    pthread_mutex_unlock(&news->mutex);
    atomic_fetch_sub(&news->waiters, 1);
    trace_add_since(conn_trace(self->conn), what, NULL, start, 0);
    return !conn_is_stopped() && (ok || done(self, arg));
}

/* ---- room */

/* Returns the number of unused keys of the current session. A new session has new keys. */
static inline uint64_t shard_keys_left(struct shard *self)
{
    uint64_t base = atomic_load_explicit(&self->handoff.key_base, memory_order_acquire);
    if (base != self->key_base) {
        self->key_base = base;
        self->key_count = atomic_load_explicit(&self->handoff.key_count, memory_order_relaxed);
        self->keys_used = 0;
    }
    return self->key_count - self->keys_used;
}

static inline bool shard_has_room(struct shard *self, uint64_t n)
{
    if (shard_keys_left(self) < n)
        return false;
    if (self->created + n - self->seen_resolved > self->window) {
        self->seen_resolved = atomic_load(&self->handoff.resolved);
        shard_set_window(self);
    }
    uint64_t most = self->max_bytes;
    if (most > SHARED_IN_FLIGHT_BYTES && pool_shares(self->stream.raws))
        most = SHARED_IN_FLIGHT_BYTES;
    if (self->handed_bytes - self->seen_done_bytes >= most) {
        self->seen_done_bytes = atomic_load(&self->handoff.done_bytes);
        self->seen_resolved = atomic_load(&self->handoff.resolved);
    }
    uint64_t open = self->created - self->seen_resolved;
    /* Chunks of items that were rejected before they were sent count as handed for ever: without open items, nothing is in flight. */
    return open == 0 || (open + n <= self->window && self->handed_bytes - self->seen_done_bytes < most);
}

/* Completes the open chunk if the writer would otherwise wait for items that wait for this chunk. */
static rp_status let_go(struct shard *self, rp_error *err)
{
    if (self->n_waiting == 0)
        return RP_OK;
    RP_TRY(step_stream_cut(&self->stream, err));
    return shard_release(self, err);
}

static void shard_hurry(struct shard *self)
{
    atomic_store(&self->handoff.urgent, true);
    conn_wake(self->conn);
}

/* Waits until n more items may be created. */
static rp_status shard_await_room(struct shard *self, uint64_t n, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(let_go(self, err));
    if (shard_keys_left(self) < n) {
        atomic_store(&self->handoff.renew, true);
        shard_hurry(self);
    }
    if (wait_for(&self, 1, "wait for credit", shard_has_room, n, conn_deadline(timeout_ms)))
        return RP_OK;
    if (conn_is_stopped())
        return conn_stopped(err);
    char why[400];
    explain(self, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED,
                   "after %g s, %" PRIu64 " items are in flight, the limit is %" PRIu64 ": %s",
                   (double)timeout_ms / 1e3, shard_unconfirmed(self) + held_by_others(self), self->max_items, why);
}

/* ---- flush */

static bool is_flushed(struct shard *self, uint64_t max_unconfirmed)
{
    return shard_unconfirmed(self) <= max_unconfirmed;
}

static uint64_t unconfirmed(struct shard *const *shards, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += shard_unconfirmed(shards[i]);
    return sum;
}

static bool all_flushed(struct shard *self, uint64_t max_unconfirmed)
{
    return unconfirmed(self->writer->shards, self->writer->n) <= max_unconfirmed;
}

/* Returns a shard with unconfirmed items, if there is one: rather one that is away, which says more than one that is slow. */
static struct shard *find_unconfirmed(struct shard *const *shards, uint32_t n)
{
    struct shard *found = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (shard_unconfirmed(shards[i]) == 0)
            continue;
        if (!conn_is_up(shards[i]->conn))
            return shards[i];
        found = found ? found : shards[i];
    }
    return found ? found : shards[0];
}

/* Returns the status of the first rejection since the last call, once. */
static rp_status report_rejections(struct handoff_news *news, rp_error *err)
{
    pthread_mutex_lock(&news->mutex);
    rp_error first = news->unreported;
    uint64_t n = news->n_unreported;
    news->n_unreported = 0;
    pthread_mutex_unlock(&news->mutex);
    if (n == 0)
        return RP_OK;
    if (n == 1)
        return err_set(err, (rp_status)first.status, "%s", first.text);
    return err_set(err, (rp_status)first.status, "%" PRIu64 " items were not accepted, the first: %s", n, first.text);
}

/* Sets err to how many items are unconfirmed after so many seconds, and why. */
static rp_status explain_flush(struct shard *const *shards, uint32_t n, double seconds, rp_error *err)
{
    char why[450];
    struct shard *at = find_unconfirmed(shards, n);
    int used = n > 1 && conn_is_up(at->conn) ? snprintf(why, sizeof why, "shard %u: ", conn_shard(at->conn)) : 0;
    explain(at, why + used, sizeof why - (size_t)used);
    return err_set(err, RP_DEADLINE_EXCEEDED, "%" PRIu64 " items are unconfirmed after %g s: %s",
                   unconfirmed(shards, n), seconds, why);
}

/* Waits until at most max_unconfirmed items are unconfirmed; without a deadline, says in the log what for. timeout_ms: that the caller has
 * given, for the error. */
static rp_status shards_flush(struct shard *const *shards, uint32_t n, uint64_t max_unconfirmed, int64_t timeout_ms,
                              int64_t deadline_ns, rp_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        RP_TRY(let_go(shards[i], err));
        if (max_unconfirmed != UINT64_MAX && shard_unconfirmed(shards[i]) > 0)
            shard_hurry(shards[i]);
    }
    int64_t slice_ns = WARN_NS, end_ns = deadline_ns < INT64_MAX ? deadline_ns : clock_ns() + slice_ns;
    while (!wait_for(shards, n, "flush", n > 1 ? all_flushed : is_flushed, max_unconfirmed, end_ns)) {
        if (conn_is_stopped())
            return conn_stopped(err);
        if (end_ns == deadline_ns)
            return explain_flush(shards, n, (double)timeout_ms / 1e3, err);
        rp_error wait;
        explain_flush(shards, n, (double)(2 * slice_ns - WARN_NS) / 1e9, &wait);
        log_line(LEVEL_WARN, "C0209", "a writer waits", "why=%s", log_text(wait.text));
        end_ns = clock_ns() + (slice_ns *= 2);
    }
    return report_rejections(shards[0]->handoff.news, err);
}

/* ---- making items */

/* Gives the index of the table, which is most often that of the last item. */
static rp_status shard_table(struct shard *self, const char *name, uint32_t *out, rp_error *err)
{
    const struct conn_hello *hello = self->hello;
    *out = self->last_table;
    if (name && *out < hello->says->n_tables && strcmp(hello->says->tables[*out]->name, name) == 0)
        return RP_OK;
    RP_TRY(conn_hello_table(hello, name, out, err));
    self->last_table = *out;
    return RP_OK;
}

/* Links the chunks that hold `steps` steps from `first` on, and checks that they fit into one message. */
static rp_status need_chunks(struct shard *self, struct step_chunk *first, uint64_t steps, rp_error *err)
{
    uint64_t bytes = MESSAGE_SLACK, most = atomic_load_explicit(&self->handoff.max_message_bytes, memory_order_relaxed);
    for (struct step_chunk *chunk = first;; chunk = step_stream_next(&self->stream, chunk)) {
        bytes += chunk->encoded ? chunk->size : self->stream.raw_bytes;
        if (steps <= chunk->length)
            break;
        steps -= chunk->length;
    }
    if (bytes > most)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the item's chunks take %" PRIu64 " bytes, the broker takes at most %" PRIu64
                       " in one message: shorten the item, or raise max_message_bytes there",
                       bytes, most);
    return RP_OK;
}

/* Returns the slices as an item of this shard; table is an index. */
static struct item_slices shard_slices(const struct shard *self, uint32_t table, const rp_slice *slices, uint32_t n)
{
    return (struct item_slices){&self->stream, self->hello->says->tables[table], slices, n};
}

/* Checks that an item of a table can have the writer's group. */
static __attribute__((noinline)) rp_status check_group(const struct shard *self, uint32_t table, rp_error *err)
{
    const Replay__TableSpec *spec = self->hello->says->tables[table];
    uint64_t group = self->writer->group;
    if (!spec->group_size)
        return RP_OK;
    if (!group)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "table '%.64s' has groups of %u items: give the item the key of its group, which is not 0",
                       spec->name, spec->group_size);
    uint32_t n = self->writer->n, home = wire_group_shard(group, n);
    if (self == self->writer->shards[home])
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "group %" PRIu64 " belongs to shard %u, and this episode went to shard %u: set the group before the "
                   "first step of the episode",
                   group, home, conn_shard(self->conn));
}

static void set_version(struct shard *self, uint64_t version)
{
    struct step_version *list = self->versions;
    uint64_t step = self->stream.steps, reach = step_stream_reach(&self->stream);
    uint32_t n = self->n_versions;
    if (n == 0) /* the first one is also that of the steps before it */
        list[n++] = (struct step_version){0, version};
    if (list[n - 1].version != version) {
        uint32_t gone = 0;
        while (gone + 1 < n && list[gone + 1].step <= reach)
            gone++;
        n -= gone;
        memmove(list, list + gone, n * sizeof *list);
        for (uint32_t i = 0; n == STEP_VERSIONS && i < n / 2; i++) /* pairs become one */
            list[i] = list[2 * i].version < list[2 * i + 1].version
                          ? list[2 * i]
                          : (struct step_version){list[2 * i].step, list[2 * i + 1].version};
        n = n == STEP_VERSIONS ? n / 2 : n;
        n -= list[n - 1].step == step; /* no step was made with that one */
        list[n++] = (struct step_version){step, version};
    }
    self->n_versions = n;
}

/* Returns the oldest version that made a step of an item: it says how old the item is. */
static uint64_t oldest_version(const struct shard *self, const struct item_steps *span)
{
    uint64_t end = span->first + span->length, oldest = self->n_versions ? UINT64_MAX : 0;
    for (uint32_t i = self->n_versions; i-- > 0;) {
        const struct step_version *from = &self->versions[i];
        if (from->step < end && from->version < oldest)
            oldest = from->version;
        if (from->step <= span->first)
            break;
    }
    return oldest;
}

/* Makes an item of this layout that covers these steps. */
static rp_status make_item(struct shard *self, struct item_layout *layout, const struct item_steps *span,
                           double priority, uint64_t *key, rp_error *err)
{
    struct step_chunk *chunk = step_stream_find(&self->stream, span->first);
    struct queued_item item = {.chunk = chunk,
                               .layout = layout,
                               .priority = priority,
                               .policy = oldest_version(self, span),
                               .mark = self->stream.oldest,
                               .offset = (uint32_t)(span->first - chunk->step),
                               .length = span->length};
    bool complete = true;
    if (__builtin_expect(self->grouped, 0))
        RP_TRY(check_group(self, layout->table, err));
    RP_TRY(need_chunks(self, chunk, (uint64_t)item.offset + item.length, err));
    uint64_t steps = (uint64_t)item.offset + item.length;
    for (; chunk; chunk = step_chunk_after(chunk, &steps)) { /* those that are complete are encoded */
        RP_TRY(need_chunk(self, chunk, err));
        complete = chunk != self->stream.open;
    }
    if (shard_keys_left(self) == 0)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "all %" PRIu64 " keys of the writer's session are used up: flush, and try again",
                       self->key_count);
    item.key = self->key_base + self->keys_used;
    if (!complete || self->n_waiting > 0)
        RP_TRY(await_chunk(self, &item, err));
    else if (__builtin_expect(self->grouped, 0))
        push_item(self, &item, group_for(self, layout->table), take_evicted(self));
    else
        push(self, &item, take_evicted(self));
    self->created++;
    self->keys_used++;
    self->table_created[layout->table]++;
    if (key)
        *key = item.key;
    return RP_OK;
}

/* Makes an item without waiting for room; table is an index. key may be NULL. */
static rp_status shard_make_item(struct shard *self, uint32_t table, const rp_slice *slices, uint32_t n,
                                 double priority, uint64_t *key, rp_error *err)
{
    struct item_slices item = shard_slices(self, table, slices, n);
    struct item_layout *layout;
    struct item_steps span;
    RP_TRY(item_layouts_get(&self->layouts, &item, table, &layout, &span, err));
    return make_item(self, layout, &span, priority, key, err);
}

/* Checks what an item is made with, and waits for room. Gives the index of the table. */
static rp_status begin_item(struct shard *self, const char *table, double priority, int64_t timeout_ms, uint32_t *index,
                            rp_error *err)
{
    RP_TRY(shard_check_process(self, err));
    RP_TRY(shard_table(self, table, index, err));
    RP_TRY(client_check_priority(priority, err));
    if (self->writer->reserved > 0 && shard_keys_left(self) > 0) {
        self->writer->reserved--;
        return RP_OK;
    }
    return shard_has_room(self, 1) ? RP_OK : shard_await_room(self, 1, timeout_ms, err);
}

rp_status rp_writer_item(rp_writer *writer, const char *table, double priority, const rp_slice *slices,
                         uint32_t n_slices, int64_t timeout_ms, uint64_t *key, rp_error *err)
{
    uint32_t index;
    RP_TRY(begin_item(writer->shard, table, priority, timeout_ms, &index, err));
    return shard_make_item(writer->shard, index, slices, n_slices, priority, key, err);
}

rp_status rp_writer_check_item(rp_writer *writer, const char *table, const rp_slice *slices, uint32_t n_slices,
                               rp_error *err)
{
    struct shard *shard = writer->shard;
    uint32_t index;
    RP_TRY(shard_check_process(shard, err));
    RP_TRY(shard_table(shard, table, &index, err));
    struct item_slices item = shard_slices(shard, index, slices, n_slices);
    return item_layouts_check(&shard->layouts, &item, err);
}

rp_status rp_writer_item_last(rp_writer *writer, const char *table, double priority, uint32_t steps, int64_t timeout_ms,
                              uint64_t *key, rp_error *err)
{
    struct shard *shard = writer->shard;
    uint32_t index;
    struct item_steps span;
    if (steps == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "an item has at least one step");
    RP_TRY(begin_item(shard, table, priority, timeout_ms, &index, err));
    struct item_layout *layout = item_layouts_newest(&shard->layouts, &shard->stream, index, steps, &span);
    if (!layout) {
        for (uint32_t i = 0; i < shard->stream.n_columns; i++)
            shard->all[i] = (rp_slice){.column = i, .start = -(int64_t)steps};
        struct item_slices item = shard_slices(shard, index, shard->all, shard->stream.n_columns);
        RP_TRY(item_layouts_get(&shard->layouts, &item, index, &layout, &span, err));
        shard->layouts.newest[index] = (struct item_newest){layout, steps}; /* for the next item */
    }
    return make_item(shard, layout, &span, priority, key, err);
}

void rp_writer_set_policy(rp_writer *writer, uint64_t version)
{
    for (uint32_t i = 0; i < writer->n; i++)
        set_version(writer->shards[i], version);
}

void rp_writer_set_group(rp_writer *writer, uint64_t group)
{
    writer->group = group;
}

/* ---- patterns */

/* Runs the checks of an item on a full window, so that mistakes show now and not at the first item. All shards have the same tables. */
rp_status rp_writer_add_pattern(rp_writer *writer, const rp_pattern *pattern, rp_error *err)
{
    struct shard *self = writer->shards[0];
    uint32_t table;
    struct step_stream full = self->stream;
    struct item_layout *layout;
    struct item_steps span;
    RP_TRY(shard_check_process(self, err));
    RP_TRY(shard_table(self, pattern->table, &table, err));
    RP_TRY(client_check_priority(pattern->priority, err));
    full.episode_start = 0;
    full.steps = full.keep_alive;
    full.absent_step = 0;
    RP_TRY(structured_check(pattern, &full, err));
    struct item_slices item = {&full, self->hello->says->tables[table], pattern->slices, pattern->n_slices};
    RP_TRY(item_layouts_get(&self->layouts, &item, table, &layout, &span, err));
    return structured_add(&writer->structured, pattern, table, err);
}

/* Makes the items of all patterns that apply after a step or, with `end`, at the end of an episode. */
static rp_status apply_patterns(struct shard *self, bool end, rp_error *err)
{
    uint32_t at = 0;
    for (struct pattern *pattern; (pattern = structured_next(&self->writer->structured, &self->stream, end, &at));) {
        RP_TRY(shard_make_item(self, pattern->table, pattern->slices, pattern->n_slices, pattern->priority, NULL, err));
        pattern->made = true;
        pattern->last_step = step_stream_length(&self->stream);
    }
    return RP_OK;
}

/* ---- which shard */

/* Returns a random shard that is open, other than `but`; NULL: there is none. */
static struct shard *any_open(rp_writer *self, const struct shard *but)
{
    uint32_t first = (uint32_t)rng_below(&self->rng, self->n);
    for (uint32_t i = 0; i < self->n; i++) {
        struct shard *shard = self->shards[(first + i) % self->n];
        if (shard != but && handoff_is_open(&shard->handoff) && conn_is_up(shard->conn))
            return shard;
    }
    return NULL;
}

/* Of two random shards takes the one with fewer unconfirmed items. With no shard open, the present one goes on. */
static __attribute__((noinline)) void choose_shard(rp_writer *self)
{
    struct shard *one = any_open(self, NULL), *other = one ? any_open(self, one) : NULL;
    self->choose = false;
    if (self->group && self->shard->grouped) /* its members meet there, also if it is away now */
        one = other = self->shards[wire_group_shard(self->group, self->n)];
    if (other && shard_unconfirmed(other) < shard_unconfirmed(one))
        one = other;
    if (one)
        self->shard = one;
    shard_set_window(self->shard);
}

/* Returns the shard for a step. */
static inline struct shard *shard_for_step(rp_writer *self)
{
    if (__builtin_expect(self->choose, 0))
        choose_shard(self);
    return self->shard;
}

/* An episode that begins chooses its shard now, and again if there is no room. */
rp_status rp_writer_reserve(rp_writer *writer, uint64_t items, int64_t timeout_ms, rp_error *err)
{
    bool choose = writer->choose;
    struct shard *shard = shard_for_step(writer);
    writer->reserved = 0;
    RP_TRY(shard_check_process(shard, err));
    rp_status status =
        items == 0 || shard_has_room(shard, items) ? RP_OK : shard_await_room(shard, items, timeout_ms, err);
    if (status == RP_OK)
        writer->reserved = items;
    else
        writer->choose = choose;
    return status;
}

/* ---- steps */

/* Waits for room for the items that patterns may make, before the step is taken, so that a time-out changes nothing. */
static rp_status await_pattern_room(struct shard *self, uint32_t n, int64_t timeout_ms, rp_error *err)
{
    if (n == 0 || shard_has_room(self, n))
        return RP_OK;
    return shard_await_room(self, n, timeout_ms, err);
}

static rp_status finish_step(struct shard *self, rp_error *err)
{
    if (self->writer->structured.with_values > 0)
        structured_look(&self->writer->structured, &self->stream);
    RP_TRY(step_stream_end_step(&self->stream, err));
    rp_status status = RP_OK;
    if (self->writer->structured.count > 0)
        status = apply_patterns(self, false, err);
    if (self->n_waiting > 0) {
        rp_status released = shard_release(self, err);
        status = status == RP_OK ? released : status;
    }
    return status;
}

static inline __attribute__((always_inline)) rp_status append(struct shard *self, const void *const *values,
                                                              int64_t timeout_ms, rp_error *err)
{
    struct step_stream *stream = &self->stream;
    if (self->writer->structured.count == 0 && step_stream_is_whole(stream, values)) {
        RP_TRY(step_stream_append(stream, values, err));
        return self->n_waiting > 0 ? shard_release(self, err) : RP_OK;
    }
    RP_TRY(step_stream_check_step(stream, values, err));
    RP_TRY(await_pattern_room(self, self->writer->structured.count, timeout_ms, err));
    for (uint32_t i = 0; i < stream->n_columns; i++)
        if (values[i])
            RP_TRY(step_stream_set(stream, i, values[i], stream->columns[i].row_bytes, err));
    return finish_step(self, err);
}

/* Appends in the process of a fork, or while a trace is recorded. */
static __attribute__((noinline)) rp_status append_slowly(struct shard *self, const void *const *values,
                                                         int64_t timeout_ms, rp_error *err)
{
    RP_TRY(shard_check_process(self, err));
    int64_t start = trace_now(self->trace);
    rp_status status = append(self, values, timeout_ms, err);
    trace_add_since(self->trace, "append", NULL, start, 1);
    return status;
}

/* Both calls are the last thing done here, so that a step pays a few tests and no frame for what is seldom the case. */
rp_status rp_writer_append(rp_writer *writer, const void *const *values, int64_t timeout_ms, rp_error *err)
{
    struct shard *shard = shard_for_step(writer);
    if (__builtin_expect(shard->forks != forks_count(), 0) || trace_on(shard->trace))
        return append_slowly(shard, values, timeout_ms, err);
    return append(shard, values, timeout_ms, err);
}

rp_status rp_writer_set(rp_writer *writer, uint32_t column, const void *value, uint64_t bytes, rp_error *err)
{
    struct shard *shard = shard_for_step(writer);
    RP_TRY(shard_check_process(shard, err));
    return step_stream_set(&shard->stream, column, value, bytes, err);
}

rp_status rp_writer_row(rp_writer *writer, uint32_t column, int64_t step, const void **row, rp_error *err)
{
    const struct step_stream *stream = &writer->shard->stream;
    *row = NULL;
    RP_TRY(shard_check_process(writer->shard, err));
    if (!stream->history)
        return err_set(err, RP_FAILED_PRECONDITION, "the writer keeps no history: set the option history");
    if (column >= stream->n_columns)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no column %u, the stream has %u", column, stream->n_columns);
    uint64_t at = step < 0 ? stream->steps + (uint64_t)step : stream->episode_start + (uint64_t)step;
    if (at < step_stream_reach(stream) || at >= stream->steps)
        return err_set(err, RP_NOT_FOUND,
                       "step %" PRId64 " is not in the history, which has the last %" PRIu64 " of %" PRIu64
                       " steps of this episode",
                       step, stream->steps - step_stream_reach(stream), step_stream_length(stream));
    step_stream_row(stream, column, at, row);
    return RP_OK;
}

rp_status rp_writer_end_step(rp_writer *writer, int64_t timeout_ms, rp_error *err)
{
    struct shard *shard = writer->shard;
    RP_TRY(shard_check_process(shard, err));
    if (shard->stream.n_set == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "no step has been begun");
    RP_TRY(await_pattern_room(shard, writer->structured.count, timeout_ms, err));
    return finish_step(shard, err);
}

static rp_status shard_end_episode(struct shard *self, int32_t mode, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    struct step_stream *stream = &self->stream;
    RP_TRY(shard_check_process(self, err));
    if (mode != RP_END_WAIT && mode != RP_END_GO)
        return err_set(err, RP_INVALID_ARGUMENT, "%d is no way to end an episode: RP_END_WAIT or RP_END_GO", mode);
    if (stream->n_set > 0)
        return err_set(err, RP_FAILED_PRECONDITION, "the episode ends inside a step: end the step first");
    if (step_stream_length(stream) > 0) {
        RP_TRY(await_pattern_room(self, self->writer->structured.at_end, timeout_ms, err));
        RP_TRY(apply_patterns(self, true, err));
        RP_TRY(step_stream_cut(stream, err));
        RP_TRY(shard_release(self, err));
        RP_TRY(step_stream_end_episode(stream, err));
        structured_reset(&self->writer->structured);
    }
    if (stream->evicted)
        push(self, &(struct queued_item){.chunk = NULL}, take_evicted(self));
    return shards_flush(&self, 1, mode == RP_END_GO ? UINT64_MAX : 0, timeout_ms, deadline, err);
}

rp_status rp_writer_end_episode(rp_writer *writer, int32_t mode, int64_t timeout_ms, rp_error *err)
{
    struct shard *shard = writer->shard;
    rp_status status = shard_end_episode(shard, mode, timeout_ms, err);
    writer->choose = writer->n > 1 && shard->stream.n_set == 0 && step_stream_length(&shard->stream) == 0;
    return status;
}

rp_status rp_writer_flush(rp_writer *writer, uint64_t max_unconfirmed, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(shard_check_process(writer->shard, err));
    return shards_flush(writer->shards, writer->n, max_unconfirmed, timeout_ms, deadline, err);
}

/* ---- rejections and counts */

rp_status rp_writer_next_rejection(rp_writer *writer, rp_rejection *out)
{
    struct handoff_news *news = &writer->news;
    RP_TRY(shard_check_process(writer->shard, NULL));
    pthread_mutex_lock(&news->mutex);
    bool any = news->n_rejections > 0;
    if (any) {
        *out = news->rejections[news->first_rejection];
        news->first_rejection = (news->first_rejection + 1) % HANDOFF_REJECTIONS;
        news->n_rejections--;
    }
    if (news->n_rejections == 0)
        news->n_unreported = 0;
    pthread_mutex_unlock(&news->mutex);
    return any ? RP_OK : RP_NOT_FOUND;
}

/* Adds the numbers of one shard. News mutex held. */
static void shard_add_info(struct shard *self, rp_writer_info *out)
{
    struct handoff_counts counts = self->handoff.counts;
    uint64_t resolved = atomic_load(&self->handoff.resolved);
    uint64_t refused = counts.rejected + counts.in_doubt;
    out->episode += self->stream.episode;
    out->steps += self->stream.steps;
    out->created += self->created;
    out->sent += counts.sent;
    out->accepted += resolved > refused ? resolved - refused : 0;
    out->rejected += counts.rejected;
    out->in_doubt += counts.in_doubt;
    out->unconfirmed += self->created - resolved;
    out->lost_messages += counts.lost_messages;
    out->messages += counts.messages;
    out->bytes += counts.bytes;
    out->resent_messages += counts.resent;
    out->sessions += counts.sessions;
    out->stored_messages += counts.stored;
}

rp_status rp_writer_get_info(rp_writer *writer, rp_writer_info *out, rp_error *err)
{
    RP_TRY(shard_check_process(writer->shard, err));
    rp_writer_info info = {.episode_steps = step_stream_length(&writer->shard->stream)};
    pthread_mutex_lock(&writer->news.mutex);
    for (uint32_t i = 0; i < writer->n; i++)
        shard_add_info(writer->shards[i], &info);
    info.rejections_dropped = writer->news.rejections_dropped;
    pthread_mutex_unlock(&writer->news.mutex);
    return client_copy_out(out, &info, sizeof info, err);
}

/* ---- life */

static void shard_free(struct shard *self)
{
    if (self->attached)
        conn_detach(self->conn, &self->session.part);
    /* After the detach only this thread uses the I/O thread's half. */
    if (self->session.conn) {
        step_stream_abandon(&self->stream);
        outbox_take(&self->session.outbox);
        outbox_evict(&self->session.outbox, self->stream.evicted);
        self->stream.evicted = NULL;
        writer_session_fini(&self->session);
    }
    step_stream_fini(&self->stream);
    item_layouts_fini(&self->layouts);
    handoff_fini(&self->handoff);
    free(self->all);
    free(self->table_created);
    free(self->waiting);
    free(self);
}

static rp_status shard_init(struct shard *self, const rp_column *columns, uint32_t n_columns,
                            const rp_writer_options *options, rp_error *err)
{
    self->trace = conn_trace(self->conn);
    self->forks = forks_count();
    self->hello = self->writer->hello;
    self->max_items = self->window = options->max_in_flight_items;
    self->max_bytes = options->max_in_flight_bytes;
    for (uint32_t i = 0; i < self->hello->says->n_tables; i++)
        self->grouped |= self->hello->says->tables[i]->group_size > 0;
    self->table_created = calloc(self->hello->says->n_tables + 1, sizeof *self->table_created);
    bool ok = handoff_init(&self->handoff, &self->writer->news, options->batch_items, self->hello->says->n_tables);
    ok = item_layouts_init(&self->layouts, self->hello->says->n_tables) && ok;
    if (!ok || !self->table_created)
        return err_set(err, RP_NO_MEMORY, "no memory for a writer");
    RP_TRY(step_stream_init(&self->stream, columns, n_columns, options->chunk_length, options->keep_alive, err));
    if (options->history)
        RP_TRY(step_stream_keep_history(&self->stream, err));
    self->all = calloc(n_columns, sizeof *self->all);
    if (!self->all ||
        !writer_session_init(&self->session, self->conn, &self->handoff, &self->stream, self->hello, options))
        return err_set(err, RP_NO_MEMORY, "no memory for a writer");
    return RP_OK;
}

/* Opens a session in the background: await_open. NULL with err set: wrong columns, or no memory. */
static struct shard *shard_new(rp_writer *writer, struct conn *conn, const rp_column *columns, uint32_t n_columns,
                               const rp_writer_options *options, rp_error *err)
{
    struct shard *self = aligned_alloc(CACHE_LINE, (sizeof *self + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory for a writer");
    memset(self, 0, sizeof *self);
    self->writer = writer;
    self->conn = conn;
    if (shard_init(self, columns, n_columns, options, err) != RP_OK) {
        shard_free(self);
        return NULL;
    }
    conn_attach(self->conn, &self->session.part);
    self->attached = true;
    return self;
}

#define BYE_MS 2000

/* Frees a shard. If all items are confirmed, says BYE before, and waits for the answer until the deadline, but not long: if it is not
 * answered, the session expires, and nothing is lost. */
static void shard_destroy(struct shard *self, int64_t deadline_ns)
{
    if (conn_is_foreign(self->conn)) {
        free(self);
        return;
    }
    bool settled = shard_unconfirmed(self) == 0;
    conn_detach(self->conn, &self->session.part);
    self->attached = false;
    if (settled && conn_is_up(self->conn)) {
        int64_t left_ms = conn_left_ms(deadline_ns);
        Replay__Bye body;
        struct conn_message message = writer_session_bye(&self->session, &body, BYE_MS);
        if (left_ms > 0 && left_ms < BYE_MS)
            message.timeout_ms = left_ms;
        if (left_ms == 0) {
            struct conn_ticket *unread = conn_ticket_new(self->conn, &message, NULL);
            conn_ticket_destroy(&unread);
        } else {
            conn_call(self->conn, &message, NULL, NULL);
        }
    }
    shard_free(self);
}

static rp_status read_options(const rp_writer_options *in, rp_writer_options *out, rp_error *err)
{
    RP_TRY(client_copy_options(out, sizeof *out, in, "rp_writer_options", err));
    if (out->chunk_length == 0)
        out->chunk_length = 1;
    if (out->keep_alive == 0)
        out->keep_alive = out->chunk_length;
    if (out->max_in_flight_items == 0)
        out->max_in_flight_items = DEFAULT_IN_FLIGHT_ITEMS;
    if (out->max_in_flight_bytes == 0)
        out->max_in_flight_bytes = DEFAULT_IN_FLIGHT_BYTES;
    if (out->batch_items == 0)
        out->batch_items = DEFAULT_BATCH_ITEMS;
    if (out->batch_items > MAX_BATCH_ITEMS)
        return err_set(err, RP_INVALID_ARGUMENT, "batch_items is %u; it may be 1 to %u", out->batch_items,
                       MAX_BATCH_ITEMS);
    if (out->doubt != RP_DOUBT_REPORT && out->doubt != RP_DOUBT_RESEND)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no rp_doubt %" PRId32, out->doubt);
    if (out->name && strlen(out->name) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a writer's name has at most %u bytes", RP_MAX_NAME);
    return RP_OK;
}

/* Returns the first shard whose session is open; NULL: none is. *pending: one that is connected has still to open its own. refusal: of one
 * that is refused. News mutex held. */
static struct shard *look_for_open(rp_writer *self, bool *pending, rp_error *refusal)
{
    struct shard *open = NULL;
    *pending = false;
    for (uint32_t i = 0; i < self->n; i++) {
        struct shard *shard = self->shards[i];
        if (handoff_is_open(&shard->handoff)) {
            open = open ? open : shard;
            continue;
        }
        *pending = *pending || conn_is_up(shard->conn);
        if (shard->handoff.refusal.status != RP_OK)
            *refusal = shard->handoff.refusal;
    }
    return open;
}

/* Waits until the sessions are open. One session is needed: a shard that is away opens its own later. */
static rp_status await_open(rp_writer *self, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms), end = deadline;
    bool pending, going = true;
    struct shard *open;
    rp_error refusal = {0};
    atomic_fetch_add(&self->news.waiters, 1);
    pthread_mutex_lock(&self->news.mutex);
    while (!(open = look_for_open(self, &pending, &refusal)) || pending) {
        if (refusal.status != RP_OK || !going)
            break;
        int64_t grace = open && end == deadline ? clock_ns() + GRACE_NS : end;
        end = grace < end ? grace : end;
        going = conn_wait(self->shard->conn, &self->news.moved, &self->news.mutex, end);
    }
    pthread_mutex_unlock(&self->news.mutex);
    atomic_fetch_sub(&self->news.waiters, 1);
    if (refusal.status != RP_OK)
        return err_set(err, (rp_status)refusal.status, "%s", refusal.text);
    if (conn_is_stopped() && (!open || pending))
        return conn_stopped(err);
    self->shard = open ? open : self->shard;
    if (open)
        return RP_OK;
    char why[400];
    conn_describe(self->shard->conn, why, sizeof why);
    return err_set(err, RP_UNAVAILABLE, "no session was opened at %s within %g s%s%s",
                   self->n == 1 ? conn_title(self->shard->conn) : "any shard", (double)timeout_ms / 1e3,
                   why[0] ? ": " : "", why);
}

/* Of a shard that is there, if there is one: others may not have answered since their tables were changed. */
static struct conn_hello *take_hello(rp_client *client, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (conn_is_up(client_shard(client, i)))
            return conn_hello_ref(client_shard(client, i));
    return conn_hello_ref(client_conn(client));
}

static void writer_free(rp_writer *self)
{
    conn_hello_unref(&self->hello);
    pthread_cond_destroy(&self->news.moved);
    pthread_mutex_destroy(&self->news.mutex);
    free(self->news.rejections);
    structured_fini(&self->structured);
    free(self);
}

rp_writer *rp_writer_new(rp_client *client, const rp_column *columns, uint32_t n_columns,
                         const rp_writer_options *options, int64_t timeout_ms, rp_error *err)
{
    rp_writer_options own;
    if (conn_check_process(client_conn(client), err) != RP_OK || read_options(options, &own, err) != RP_OK)
        return NULL;
    uint32_t n = client_shards(client);
    rp_writer *self = calloc(1, sizeof *self + n * sizeof *self->shards);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory for a writer");
    pthread_mutex_init(&self->news.mutex, NULL);
    pthread_cond_init(&self->news.moved, NULL);
    uint64_t seed;
    rng_system(&seed, sizeof seed);
    rng_seed(&self->rng, seed);
    own.name = own.name ? own.name : client_name(client);
    self->hello = take_hello(client, n);
    rp_status status = RP_OK;
    for (; self->n < n && status == RP_OK; self->n += status == RP_OK) {
        self->shards[self->n] = shard_new(self, client_shard(client, self->n), columns, n_columns, &own, err);
        status = self->shards[self->n] ? RP_OK : RP_NO_MEMORY; /* err says more */
    }
    self->shard = self->shards[0];
    self->choose = n > 1;
    if (status == RP_OK && await_open(self, timeout_ms, err) == RP_OK)
        return self;
    for (uint32_t i = 0; i < self->n; i++)
        shard_free(self->shards[i]);
    writer_free(self);
    return NULL;
}

rp_status rp_writer_destroy(rp_writer **writer, int64_t timeout_ms, rp_error *err)
{
    if (!writer || !*writer)
        return RP_OK;
    rp_writer *self = *writer;
    *writer = NULL;
    int64_t deadline = conn_deadline(timeout_ms);
    bool foreign = conn_is_foreign(self->shard->conn);
    rp_status status = foreign ? RP_OK : shards_flush(self->shards, self->n, 0, timeout_ms, deadline, err);
    if (conn_is_stopped())
        deadline = 0;
    for (uint32_t i = 0; i < self->n; i++)
        shard_destroy(self->shards[i], deadline);
    if (foreign)
        free(self);
    else
        writer_free(self);
    return status;
}
