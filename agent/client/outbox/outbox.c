/* Takes items in and sends messages; outbox_build.c makes the messages. */
#include "agent/client/outbox/outbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/outbox/outbox_impl.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/trace.h"

/* Number of keys of a session if the broker does not say it. */
#define OLD_KEY_COUNT (UINT64_C(1) << 40)

/* Messages that are sent in one wake-up before replies are read again. */
#define MESSAGES_PER_TURN 64u

/* ---- life */

bool outbox_init(struct outbox *self, struct handoff *handoff, const struct conn_hello *hello, uint32_t n_columns,
                 int32_t doubt)
{
    *self = (struct outbox){.handoff = handoff,
                            .hello = hello,
                            .n_columns = n_columns,
                            .batch_items = handoff->batch_items,
                            .doubt = doubt,
                            .n_tables = hello->n_tables,
                            .wire_next = 1,
                            .mark = 1,
                            .max_message_bytes = hello->max_message_bytes};
    self->tables = calloc(self->n_tables ? self->n_tables : 1, sizeof *self->tables);
    self->scratch = outbox_scratch_new(self->batch_items, n_columns);
    for (uint32_t i = 0; self->tables && i < self->n_tables; i++)
        self->tables[i] = (struct outbox_table){.id = hello->tables[i].id, .known = true};
    return self->tables && self->scratch;
}

/* ---- chunks and messages */

static void list_add(struct message_list *list, struct message *message)
{
    message->next = NULL;
    message->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = message;
    list->last = message;
    list->count++;
}

static void list_remove(struct message_list *list, struct message *message)
{
    *(message->prev ? &message->prev->next : &list->first) = message->next;
    *(message->next ? &message->next->prev : &list->last) = message->prev;
    list->count--;
}

static void message_free(struct message *self)
{
    for (uint32_t i = 0; i < self->n_frames; i++)
        zmq_msg_close(&self->frames[i]);
    free(self);
}

void outbox_keep(struct outbox *self, struct message *message)
{
    list_add(&self->kept, message);
    if (!self->cursor)
        self->cursor = message;
}

void outbox_unlive(struct outbox *self, struct message *message)
{
    if (--message->live > 0)
        return;
    if (self->cursor == message)
        self->cursor = message->next;
    list_remove(message->session == self->serial ? &self->kept : &self->stored, message);
    message_free(message);
}

static void chunk_check(struct outbox *self, struct step_chunk *chunk)
{
    if (chunk->refs > 0 || chunk->in_window)
        return;
    if (chunk->message)
        outbox_unlive(self, chunk->message);
    step_chunk_chain_add(&self->done, chunk);
}

void outbox_evict(struct outbox *self, struct step_chunk *chunk)
{
    for (struct step_chunk *next; chunk; chunk = next) {
        next = chunk->evicted;
        chunk->in_window = false;
        chunk_check(self, chunk);
    }
}

static void item_ref(const struct queued_item *item)
{
    uint64_t left = (uint64_t)item->offset + item->length;
    for (struct step_chunk *chunk = item->chunk;; chunk = chunk->next) {
        chunk->refs++;
        if (left <= chunk->length)
            return;
        left -= chunk->length;
    }
}

static void item_unref(struct outbox *self, const struct queued_item *item)
{
    uint64_t left = (uint64_t)item->offset + item->length;
    for (struct step_chunk *chunk = item->chunk, *next; chunk; chunk = next) {
        next = left > chunk->length ? chunk->next : NULL; /* next of the last chunk belongs to the writer */
        left -= chunk->length;
        chunk->refs--;
        chunk_check(self, chunk);
    }
}

/* ---- items */

static bool table_grow(struct outbox_table *self)
{
    uint64_t capacity = self->capacity ? self->capacity * 2 : 256;
    struct queued_item *ring = malloc(capacity * sizeof *ring);
    if (!ring)
        return false;
    for (uint64_t i = self->resolved; i < self->tail; i++)
        ring[i & (capacity - 1)] = self->ring[i & (self->capacity - 1)];
    free(self->ring);
    self->ring = ring;
    self->capacity = capacity;
    return true;
}

bool outbox_take(struct outbox *self)
{
    struct handoff_slot *slot;
    while ((slot = handoff_peek(self->handoff)) != NULL) {
        if (slot->item.chunk) {
            struct outbox_table *table = &self->tables[slot->item.layout->table];
            if (table->tail - table->resolved == table->capacity && !table_grow(table))
                return false;
            *outbox_item(table, table->tail++) = slot->item;
            item_ref(&slot->item);
            self->mark = slot->item.mark;
        }
        if (slot->evicted)
            outbox_evict(self, slot->evicted);
        handoff_popped(self->handoff);
    }
    step_chunk_chain_put(&self->done);
    return true;
}

/* How far ahead the chunks of items that are resolved are fetched. */
#define PREFETCH_ITEMS 8u

/* Resolves the oldest unresolved item. */
static void resolve_one(struct outbox *self, struct outbox_table *table)
{
    step_chunk_prefetch(outbox_item(table, table->resolved + PREFETCH_ITEMS)->chunk);
    struct queued_item *item = outbox_item(table, table->resolved++);
    struct message *message = item->message;
    if (--message->items == 0)
        atomic_fetch_add(&self->handoff->done_bytes, message->chunk_bytes);
    outbox_unlive(self, message);
    item_unref(self, item);
}

static void resolve_to(struct outbox *self, struct outbox_table *table, uint64_t index)
{
    uint64_t n = 0;
    for (; table->resolved < index && table->resolved < table->sent; n++)
        resolve_one(self, table);
    if (n > 0)
        atomic_fetch_add(&self->handoff->resolved, n);
}

void outbox_fini(struct outbox *self)
{
    if (self->handoff)
        outbox_take(self);
    for (uint32_t t = 0; self->tables && t < self->n_tables; t++) {
        struct outbox_table *table = &self->tables[t];
        resolve_to(self, table, table->sent);
        for (; table->resolved < table->tail; table->resolved++)
            item_unref(self, outbox_item(table, table->resolved));
        free(table->ring);
    }
    step_chunk_chain_put(&self->done);
    free(self->tables);
    outbox_scratch_destroy(&self->scratch);
    *self = (struct outbox){0};
}

/* ---- sending */

/* Rejects the unsent items of a table that the broker no longer has. */
static void reject_unknown(struct outbox *self, uint32_t t)
{
    struct outbox_table *table = &self->tables[t];
    uint64_t n = 0;
    for (; table->sent < table->tail; table->sent++, n++) {
        struct queued_item *item = outbox_item(table, table->sent);
        rp_rejection rejection = {.status = RP_NOT_FOUND, .key = item->key};
        snprintf(rejection.table, sizeof rejection.table, "%s", self->hello->tables[t].name);
        snprintf(rejection.text, sizeof rejection.text, "the broker was restarted without this table");
        handoff_reject(self->handoff, &rejection);
        item_unref(self, item);
    }
    table->base = table->resolved = table->sent;
    table->rejected += n;
    self->counts.rejected += n;
    atomic_fetch_add(&self->handoff->resolved, n);
}

/* Sends one message; false: the socket is full. */
static inline __attribute__((always_inline)) bool transmit(struct outbox *self, struct message *message,
                                                           struct way push)
{
    zmq_msg_t copy;
    for (uint32_t i = 0; i < message->n_frames; i++) {
        if (i == 0 && message->epoch != self->epoch) {
            /* libzmq may still read the frame that was sent first: change the epoch in a copy. */
            if (zmq_msg_init_size(&copy, zmq_msg_size(&message->frames[0])) != 0) {
                self->short_of_memory = true;
                return false;
            }
            memcpy(zmq_msg_data(&copy), zmq_msg_data(&message->frames[0]), zmq_msg_size(&copy));
            wire_patch_ingest(zmq_msg_data(&copy), self->session, self->epoch);
        } else {
            zmq_msg_init(&copy);
            zmq_msg_copy(&copy, &message->frames[i]);
        }
        if (!way_send(push, &copy, i + 1 < message->n_frames)) {
            zmq_msg_close(&copy);
            return false; /* the socket takes a whole message or nothing */
        }
    }
    return true;
}

static inline bool is_traced(const struct outbox *self)
{
    return self->trace && trace_on(self->trace);
}

/* Sends an empty message in place of one that was dropped, so that the numbers have no gap. */
static bool transmit_blank(struct outbox *self, struct way push)
{
    struct pb_writer out = {0};
    uint64_t oldest = self->announced;
    for (const struct message *message = self->cursor; message; message = message->next)
        oldest = message->lowest < oldest ? message->lowest : oldest;
    struct wire_ingest_out blank = {.session = self->session,
                                    .epoch = self->epoch,
                                    .number = self->wire_next,
                                    .oldest_chunk = oldest,
                                    .n_columns = self->n_columns};
    wire_write_ingest(&out, &blank);
    self->short_of_memory |= out.failed;
    bool ok = !out.failed && way_send_bytes(push, out.data, out.size, false);
    pb_writer_fini(&out);
    return ok;
}

/* Sends the message with the number wire_next. */
static inline bool transmit_next(struct outbox *self, struct way push, bool blank)
{
    return blank ? transmit_blank(self, push) : transmit(self, self->cursor, push);
}

/* The same, as a span. */
static __attribute__((noinline)) bool transmit_traced(struct outbox *self, struct way push, bool blank)
{
    int64_t start = trace_clock();
    if (!transmit_next(self, push, blank))
        return false;
    trace_add(self->trace, "send", NULL,
              &(struct trace_span){.start_ns = start,
                                   .duration_ns = trace_clock() - start,
                                   .who = self->ordinal,
                                   .id = self->wire_next,
                                   .link = TRACE_INGEST});
    return true;
}

/* Sends messages that have a number and were not sent in this epoch. */
static bool catch_up(struct outbox *self, struct way push)
{
    while (self->wire_next <= self->last_number) {
        bool blank = !self->cursor || self->cursor->number > self->wire_next;
        if (!(is_traced(self) ? transmit_traced(self, push, blank) : transmit_next(self, push, blank)))
            return false;
        if (self->wire_next <= self->highest_sent)
            self->counts.resent++;
        else
            self->highest_sent = self->wire_next;
        self->wire_next++;
        if (!blank)
            self->cursor = self->cursor->next;
    }
    return true;
}

/* outbox_build, as a span. */
static __attribute__((noinline)) uint32_t build_traced(struct outbox *self, struct outbox_table *table)
{
    int64_t start = trace_clock();
    uint32_t n = outbox_build(self, table);
    if (n)
        trace_add_until_now(self->trace, "pack items", NULL, start, n);
    return n;
}

/* A full socket signals when it has room; after a lack of memory, retry soon. */
static enum outbox_more full_or_short(struct outbox *self, int64_t now_ns)
{
    if (!self->short_of_memory)
        return OUTBOX_FULL;
    self->last_partial_ns = now_ns;
    return OUTBOX_LINGER;
}

enum outbox_more outbox_send(struct outbox *self, struct way push, int64_t now_ns, bool urgent)
{
    self->short_of_memory = false;
    if (!catch_up(self, push))
        return full_or_short(self, now_ns);
    bool linger = !urgent && now_ns - self->last_partial_ns < OUTBOX_LINGER_NS;
    enum outbox_more more = OUTBOX_EMPTY;
    uint32_t idle = 0;
    for (uint32_t built = 0; built < MESSAGES_PER_TURN && idle < self->n_tables;) {
        struct outbox_table *table = &self->tables[self->turn];
        self->turn = (self->turn + 1) % self->n_tables;
        uint64_t waiting = table->tail - table->sent;
        if (waiting > 0 && !table->known && table->sent == table->resolved) {
            reject_unknown(self, (uint32_t)(table - self->tables));
            handoff_signal(self->handoff);
        }
        if (waiting == 0 || !table->known) {
            idle++;
            continue;
        }
        if (waiting < self->batch_items && linger) {
            more = OUTBOX_LINGER;
            idle++;
            continue;
        }
        self->short_of_memory = false;
        uint32_t n = is_traced(self) ? build_traced(self, table) : outbox_build(self, table);
        if (n == 0) {
            if (self->short_of_memory)
                self->last_partial_ns = now_ns;
            more = more == OUTBOX_LINGER || self->short_of_memory ? OUTBOX_LINGER : OUTBOX_BLOCKED;
            idle++;
            continue;
        }
        idle = 0;
        built++;
        if (waiting < self->batch_items)
            self->last_partial_ns = now_ns;
        if (!catch_up(self, push))
            return full_or_short(self, now_ns);
    }
    return idle < self->n_tables ? OUTBOX_MORE : more;
}

/* ---- sessions */

uint64_t outbox_oldest(const struct outbox *self)
{
    uint64_t oldest = self->kept.first ? self->kept.first->number : self->last_number + 1;
    return oldest <= self->received ? oldest : self->received + 1; /* empty messages can always be sent again */
}

/* Updates the ids of tables: they can change when the broker restarts with another configuration. */
static void map_tables(struct outbox *self, const Replay__HelloReply *hello)
{
    for (uint32_t t = 0; t < self->n_tables; t++) {
        self->tables[t].known = false;
        for (size_t i = 0; i < hello->n_tables; i++)
            if (strcmp(hello->tables[i]->name, self->hello->tables[t].name) == 0) {
                self->tables[t].known = true;
                self->tables[t].id = hello->tables[i]->id;
            }
    }
}

/* A broker that restarted from an older state has counted fewer bytes than were sent, and would never allow enough. Counts the
 * bytes that it has counted, and those of the messages that are sent again. */
static void count_again(struct outbox *self, uint64_t returned_bytes)
{
    self->sent_bytes = returned_bytes;
    for (const struct message *message = self->cursor; message; message = message->next)
        for (uint32_t i = 0; i < message->n_frames; i++)
            self->sent_bytes += zmq_msg_size(&message->frames[i]);
}

void outbox_open(struct outbox *self, const uint8_t *session, uint32_t epoch, const Replay__HelloReply *hello)
{
    bool fresh = self->serial == 0 || memcmp(session, self->session, WIRE_SESSION_BYTES) != 0;
    map_tables(self, hello);
    if (hello->max_message_bytes)
        self->max_message_bytes = hello->max_message_bytes;
    memcpy(self->session, session, WIRE_SESSION_BYTES);
    self->epoch = epoch;
    self->allowed_bytes = self->released_bytes = 0; /* both start at 0 in each epoch */
    if (fresh) {
        self->serial++;
        self->counts.sessions++;
        self->rejections_seen = 0;
        self->announced = 1;
        self->n_layouts = 0;
        for (uint32_t t = 0; t < self->n_tables; t++)
            self->tables[t].session_rejected = 0;
    }
    for (uint32_t t = 0; t < self->n_tables; t++)
        if (!self->tables[t].known && self->tables[t].resolved == self->tables[t].sent)
            reject_unknown(self, t);
    self->counts.lost_messages += hello->lost_messages;
    uint64_t received = hello->credit ? hello->credit->received : 0;
    self->received = received;
    self->wire_next = received < self->last_number ? received + 1 : self->last_number + 1;
    self->cursor = self->kept.first;
    while (self->cursor && self->cursor->number < self->wire_next)
        self->cursor = self->cursor->next;
    atomic_store(&self->handoff->key_count, hello->key_count ? hello->key_count : OLD_KEY_COUNT);
    if (hello->lost_messages && hello->credit)
        count_again(self, hello->credit->returned_bytes);
    atomic_store(&self->handoff->key_base, hello->key_base);
    if (fresh)
        atomic_store(&self->handoff->renew, false);
}

bool outbox_is_settled(const struct outbox *self)
{
    for (uint32_t t = 0; t < self->n_tables; t++)
        if (self->tables[t].resolved != self->tables[t].tail)
            return false;
    return !handoff_peek(self->handoff);
}

static void report_doubt(struct outbox *self, uint32_t t)
{
    struct outbox_table *table = &self->tables[t];
    for (uint64_t i = table->resolved; i < table->sent; i++) {
        rp_rejection rejection = {.status = RP_IN_DOUBT, .key = outbox_item(table, i)->key};
        snprintf(rejection.table, sizeof rejection.table, "%s", self->hello->tables[t].name);
        snprintf(rejection.text, sizeof rejection.text,
                 "sent in a session that the broker no longer knows: it may or may not be in the table");
        handoff_reject(self->handoff, &rejection);
    }
    self->counts.in_doubt += table->sent - table->resolved;
    resolve_to(self, table, table->sent);
}

/* Makes sent items unsent again. Their messages stay as long as their chunks may be needed. */
static void take_back(struct outbox *self, struct outbox_table *table)
{
    uint64_t mark = table->sent < table->tail ? outbox_item(table, table->sent)->mark : self->mark;
    for (uint64_t i = table->sent; i-- > table->resolved;) {
        struct queued_item *item = outbox_item(table, i);
        struct message *message = item->message;
        item->mark = mark = item->chunk->number < mark ? item->chunk->number : mark;
        if (--message->items == 0)
            atomic_fetch_add(&self->handoff->done_bytes, message->chunk_bytes);
        outbox_unlive(self, message);
    }
    table->again = table->sent;
    self->counts.sent -= table->sent - table->resolved;
    table->sent = table->resolved;
}

void outbox_forget(struct outbox *self, bool left)
{
    uint64_t doubt = 0;
    for (uint32_t t = 0; t < self->n_tables; t++) {
        doubt += self->tables[t].sent - self->tables[t].resolved;
        if (self->doubt == RP_DOUBT_RESEND)
            take_back(self, &self->tables[t]);
        else
            report_doubt(self, t);
        self->tables[t].base = self->tables[t].sent;
        self->tables[t].allowed = self->tables[t].sent;
    }
    if (!left)
        log_line(LEVEL_ERROR, "C0201", "the broker has forgotten this writer's session",
                 "items_in_doubt=%llu policy=%s", (unsigned long long)doubt,
                 self->doubt == RP_DOUBT_RESEND ? "resend" : "report");
    /* From now on the remaining messages of this session only store chunks. */
    for (struct message *message = self->kept.first, *next; message; message = next) {
        next = message->next;
        list_remove(&self->kept, message);
        list_add(&self->stored, message);
        message->session = 0;
    }
    self->cursor = NULL;
    self->last_number = self->highest_sent = self->received = 0;
    self->wire_next = 1;
    self->sent_bytes = self->allowed_bytes = self->released_bytes = 0;
    memset(self->session, 0, sizeof self->session);
    handoff_signal(self->handoff);
}

/* ---- credit */

static void take_rejection(struct outbox *self, const Replay__Rejection *wire)
{
    rp_rejection rejection = {.status = (int32_t)wire->status, .key = wire->key};
    for (uint32_t t = 0; t < self->n_tables; t++) {
        struct outbox_table *table = &self->tables[t];
        if (table->id != wire->table)
            continue;
        /* The item was in doubt, is in the table, and was sent again: not a rejection. */
        if (wire->status == RP_ALREADY_EXISTS && table->base + wire->item <= table->again) {
            table->rejected--;
            self->counts.rejected--;
            return;
        }
        snprintf(rejection.table, sizeof rejection.table, "%s", self->hello->tables[t].name);
    }
    snprintf(rejection.text, sizeof rejection.text, "%s", wire->text);
    handoff_reject(self->handoff, &rejection);
}

static void take_rejections(struct outbox *self, const Replay__Credit *credit)
{
    for (size_t i = 0; i < credit->n_rejections; i++) {
        uint64_t number = credit->first_rejection + i + 1;
        if (number <= self->rejections_seen)
            continue;
        self->rejections_seen = number;
        take_rejection(self, credit->rejections[i]);
    }
}

static void take_totals(struct outbox *self, struct outbox_table *table, uint64_t allowed, uint64_t rejected)
{
    if (table->base + allowed > table->allowed)
        table->allowed = table->base + allowed;
    if (rejected > table->session_rejected) {
        table->rejected += rejected - table->session_rejected;
        self->counts.rejected += rejected - table->session_rejected;
        table->session_rejected = rejected;
    }
}

uint64_t outbox_free_bytes(const struct outbox *self)
{
    uint64_t used = self->sent_bytes + self->released_bytes;
    return self->allowed_bytes > used ? self->allowed_bytes - used : 0;
}

void outbox_credit(struct outbox *self, const Replay__Credit *credit)
{
    size_t n = credit->n_table;
    if (credit->n_resolved != n || credit->n_allowed != n || credit->n_rejected != n)
        n = 0;
    if (credit->allowed_bytes > self->allowed_bytes)
        self->allowed_bytes = credit->allowed_bytes;
    if (credit->keep_bytes && outbox_free_bytes(self) > credit->keep_bytes)
        self->released_bytes += outbox_free_bytes(self) - credit->keep_bytes;
    if (credit->received > self->received)
        self->received = credit->received;
    /* Rejections first, so that a caller that waits for the last item finds them. */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++)
            for (uint32_t t = 0; t < self->n_tables; t++) {
                struct outbox_table *table = &self->tables[t];
                if (table->id != credit->table[i] || !table->known)
                    continue;
                if (pass == 0)
                    take_totals(self, table, credit->allowed[i], credit->rejected[i]);
                else
                    resolve_to(self, table, table->base + credit->resolved[i]);
            }
        if (pass == 0)
            take_rejections(self, credit);
    }
    step_chunk_chain_put(&self->done);
    outbox_publish(self);
    handoff_signal(self->handoff);
}

void outbox_publish(struct outbox *self)
{
    pthread_mutex_lock(&self->handoff->mutex);
    uint64_t dropped = self->handoff->counts.rejections_dropped;
    self->counts.stored = self->kept.count + self->stored.count;
    self->handoff->counts = self->counts;
    self->handoff->counts.rejections_dropped = dropped;
    self->handoff->last_number = self->last_number;
    for (uint32_t t = 0; t < self->n_tables; t++)
        self->handoff->tables[t] = (struct handoff_table){self->tables[t].sent, self->tables[t].resolved,
                                                          self->tables[t].rejected, self->tables[t].allowed};
    pthread_mutex_unlock(&self->handoff->mutex);
}
