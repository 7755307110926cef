/* Writes effects as entries of the stream. Inserts, picks, removals and priorities come by the million, so they are
 * plain stores into the record. */
#include "broker/journal/journal.h"

#include <string.h>

#include "broker/sample/waiter.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"

static void *stream_room(void *ctx, uint16_t type, uint32_t table, size_t size)
{
    return stream_entry(ctx, type, table, size);
}

static struct entry_sink stream_sink(struct stream *stream)
{
    return (struct entry_sink){stream_room, stream};
}

static struct stream *stream_of(struct effects *self)
{
    return (struct stream *)(void *)self; /* its first member */
}

/* Returns the number of the segment before the one that begins; 0: none. */
static uint64_t segment_before(const struct stream *stream)
{
    const struct segments *segments = &stream->segments;
    uint32_t i = segments->n;
    while (i > 0 && segments->list[i - 1].number >= stream->segment)
        i--;
    return i > 0 ? segments->list[i - 1].number : 0;
}

void journal_start(struct stream *stream)
{
    struct entry_sink sink = stream_sink(stream);
    const struct tables *tables = stream->state.tables;
    stream->start.previous = segment_before(stream);
    stream->start.flags |= stream->journal ? 0u : START_CHUNKS_ONLY;
    journal_put_start(sink, &stream->state, stream->start);
    stream->start = (struct entry_start){0};
    for (uint32_t i = 0; i < tables->n; i++)
        journal_put_table(sink, &tables->list[i]);
    journal_put_ordinal(sink, &tables->ordinals);
}

/* ---- tables ---- */

struct entry_insert journal_insert_body(const struct item *item, uint32_t slot)
{
    return (struct entry_insert){
        .slot = slot,
        .n_chunks = item->span.n,
        .key = item->key,
        .priority = item->priority,
        .insert_ns = item->insert_ns,
        .policy = item->policy,
        .layout = item->span.layout,
        .offset = item->span.offset,
        .length = item->span.length,
    };
}

static void effect_insert(struct effects *self, struct table *table, uint32_t slot, const struct flow *flow)
{
    struct stream *stream = stream_of(self);
    const struct item *item = &table->in.items[slot];
    struct chunk *const *chunks = span_chunks(&item->span);
    uint32_t n = item->span.n;
    for (uint32_t i = 0; i < n; i++)
        if (stream_lacks(stream, chunks[i]))
            (void)stream_chunk(stream, chunks[i]); /* cannot fail: large chunks were put there by stream_chunks_first */
    struct layout *layout = layouts_at(stream->state.layouts, item->span.layout);
    if (__builtin_expect(!layout->journaled, 0)) {
        journal_put_layout(stream_sink(stream), layout);
        layout->journaled = true;
    }
    struct entry_insert *entry = stream_entry(stream, ENTRY_INSERT, table->id, sizeof *entry + n * sizeof(uint64_t));
    *entry = journal_insert_body(item, slot);
    if (flow) {
        entry->session = flow->session->ordinal;
        entry->number = flow->resolved + 1;
    }
    uint64_t *places = (uint64_t *)(void *)(entry + 1);
    for (uint32_t i = 0; i < n; i++)
        places[i] = chunks[i]->at;
}

static void effect_remove(struct effects *self, struct table *table, uint32_t slot)
{
    struct entry_slot *entry = stream_entry(stream_of(self), ENTRY_REMOVE, table->id, sizeof *entry);
    *entry = (struct entry_slot){.slot = slot};
}

static void effect_episode(struct effects *self, struct table *table)
{
    struct entry_named *entry = stream_entry(stream_of(self), ENTRY_EPISODES, table->id, sizeof *entry);
    entry->number = table->stats.episodes;
}

static void effect_priority(struct effects *self, struct table *table, uint32_t slot, double priority)
{
    struct entry_priority *entry = stream_entry(stream_of(self), ENTRY_PRIORITY, table->id, sizeof *entry);
    *entry = (struct entry_priority){.slot = slot, .priority = priority};
}

static void effect_reset(struct effects *self, struct table *table)
{
    stream_entry(stream_of(self), ENTRY_RESET, table->id, 0);
}

struct entry_limiter journal_limiter_body(const struct limiter *limiter)
{
    return (struct entry_limiter){
        .kind = (uint32_t)limiter->kind,
        .changed_from = limiter->changed_from,
        .samples_per_insert = limiter->samples_per_insert,
        .min_size = limiter->min_size,
        .min_diff = limiter->min_diff,
        .max_diff = limiter->max_diff,
        .offset = limiter->offset,
        .inserts = limiter->inserts,
        .samples = limiter->samples,
        .deletes = limiter->deletes,
    };
}

static void effect_limiter(struct effects *self, struct table *table)
{
    struct entry_limiter *entry = stream_entry(stream_of(self), ENTRY_LIMITER, table->id, sizeof *entry);
    *entry = journal_limiter_body(&table->limiter);
}

static void effect_charge(struct effects *self, struct table *table, uint64_t samples)
{
    struct entry_named *entry = stream_entry(stream_of(self), ENTRY_CHARGE, table->id, sizeof *entry);
    entry->number = samples;
}

/* Returns the record's last entry if it is a pick of the same sample. */
static struct entry_pick *pick_last(const struct stream *stream, const struct table *table,
                                    const struct entry_pick *like)
{
    if (!stream->used || !stream->last)
        return NULL;
    const struct entry_head *head = (const struct entry_head *)(const void *)(stream->record + stream->last);
    if (head->type != ENTRY_PICK || head->table != table->id)
        return NULL;
    struct entry_pick *pick = (struct entry_pick *)(void *)(stream->record + stream->last + sizeof *head);
    bool same = pick->client == like->client && pick->id == like->id && pick->want == like->want &&
                pick->table_size == like->table_size && pick->flags == like->flags;
    return same ? pick : NULL;
}

static void effect_pick(struct effects *self, const struct waiter *waiter, uint32_t slot, double probability)
{
    const struct table *table = waiter->table;
    struct stream *stream = stream_of(self);
    const struct wait *wait = &waiter->wait;
    struct entry_pick head = {
        .client = wait->client,
        .id = wait->client ? wait->id : 0, /* without a client's number nobody can repeat the request */
        .want = waiter->want,
        .n = 1,
        .table_size = waiter->picks.table_size,
        .flags = waiter->flags | (waiter->paid && waiter_is_counted(waiter) ? PICK_COUNTED : 0u),
    };
    struct entry_pick *last = pick_last(stream, table, &head);
    struct entry_picked *picked = last ? stream_extend(stream, sizeof *picked) : NULL;
    if (picked) {
        last->n++;
    } else {
        struct entry_pick *entry = stream_entry(stream, ENTRY_PICK, table->id, sizeof *entry + sizeof *picked);
        *entry = head;
        picked = (struct entry_picked *)(void *)(entry + 1);
    }
    *picked = (struct entry_picked){
        .slot = slot,
        .times_sampled = table->in.items[slot].times_sampled + 1, /* this pick is counted right after */
        .probability = probability,
    };
}

static void request_entry(struct effects *self, uint16_t type, uint64_t client, uint64_t id)
{
    struct entry_request *entry = stream_entry(stream_of(self), type, 0, sizeof *entry);
    *entry = (struct entry_request){client, id};
}

static void effect_answered(struct effects *self, uint64_t client, uint64_t id)
{
    request_entry(self, ENTRY_ANSWERED, client, id);
}

static void effect_forget(struct effects *self, uint64_t client, uint64_t id)
{
    request_entry(self, ENTRY_FORGET, client, id);
}

/* ---- sessions ---- */

static void effect_session(struct effects *self, const struct session *session)
{
    journal_put_session(stream_sink(stream_of(self)), session);
}

static void effect_layout(struct effects *self, const struct session *session, const void *layout, size_t size)
{
    struct entry_named *entry = stream_entry(stream_of(self), ENTRY_FORM, 0, sizeof *entry + size);
    entry->number = session->ordinal;
    memcpy(entry + 1, layout, size);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* Hashes what an ENTRY_PROGRESS says. Never 0, which means that none was written for the session. */
static uint64_t progress_hash(const struct session *session)
{
    uint64_t hash = mix(session->epoch, session->received);
    hash = mix(hash, session->counted);
    hash = mix(hash, session->received_bytes);
    hash = mix(hash, session->allowed_bytes);
    hash = mix(hash, session->confirmed_rejections);
    for (uint32_t i = 0; i < session->n_tables; i++) {
        const struct flow *flow = session->flows[i];
        if (!flow)
            continue;
        hash = mix(hash, flow->resolved);
        hash = mix(hash, flow->rejected);
        hash = mix(hash, flow->allowed);
    }
    return hash ? hash : 1;
}

static void effect_progress(struct effects *self, struct session *session)
{
    uint64_t hash = progress_hash(session);
    if (hash == session->journaled)
        return;
    session->journaled = hash;
    journal_put_progress(stream_sink(stream_of(self)), session);
}

static void effect_rejection(struct effects *self, const struct session *session, const struct rejection *rejection)
{
    size_t size = strlen(rejection->text);
    struct entry_rejection *entry = stream_entry(stream_of(self), ENTRY_REJECTION, 0, sizeof *entry + size);
    *entry = (struct entry_rejection){
        .session = session->ordinal,
        .table = rejection->table,
        .item = rejection->item,
        .key = rejection->key,
        .status = (uint32_t)rejection->status,
    };
    memcpy(entry + 1, rejection->text, size);
}

static void effect_session_end(struct effects *self, const struct session *session)
{
    struct entry_named *entry = stream_entry(stream_of(self), ENTRY_SESSION_END, 0, sizeof *entry);
    entry->number = session->ordinal;
}

/* ---- parameters and requests ---- */

static void effect_together(struct effects *self, size_t bytes)
{
    struct stream *stream = stream_of(self);
    if (stream->used && stream->capacity - stream->used < bytes)
        stream_hand_over(stream);
}

static void effect_begin(struct effects *self)
{
    stream_hand_over(stream_of(self));
    journal_put_ordinal(stream_sink(stream_of(self)),
                        &stream_of(self)->state.tables->ordinals); /* an entry without effect opens the record */
}

/* Values of this size are copied by the disk writer. */
#define LARGE_VALUE (64u << 10)

static void effect_slot(struct effects *self, struct param_slot *slot)
{
    size_t name = strlen(slot->name), value = zmq_msg_size(&slot->value);
    uint8_t body[sizeof(struct entry_value) + PARAMS_NAME_MOST] __attribute__((aligned(8)));
    if (value < LARGE_VALUE || name > PARAMS_NAME_MOST) {
        journal_put_slot(stream_sink(stream_of(self)), slot);
        return;
    }
    *(struct entry_value *)(void *)body = (struct entry_value){
        .version = slot->version, .put_ns = slot->put_ns, .name_bytes = (uint32_t)name, .value_bytes = value};
    memcpy(body + sizeof(struct entry_value), slot->name, name);
    stream_entry_large(stream_of(self), ENTRY_SLOT, 0, body, sizeof(struct entry_value) + name, &slot->value);
}

static void effect_counter(struct effects *self, const struct param_counter *counter)
{
    journal_put_counter(stream_sink(stream_of(self)), counter);
}

static void effect_reply(struct effects *self, uint64_t client, uint64_t id, const void *frame, size_t size)
{
    journal_put_reply(stream_sink(stream_of(self)), client, id, frame, size);
}

static bool effect_prepare(struct effects *self, struct chunk *const *chunks, uint32_t n)
{
    return stream_chunks_first(stream_of(self), chunks, n);
}

const struct effects journal_effects = {
    .prepare = effect_prepare,
    .insert = effect_insert,
    .remove = effect_remove,
    .episode = effect_episode,
    .priority = effect_priority,
    .reset = effect_reset,
    .limiter = effect_limiter,
    .charge = effect_charge,
    .pick = effect_pick,
    .answered = effect_answered,
    .forget = effect_forget,
    .session = effect_session,
    .session_end = effect_session_end,
    .layout = effect_layout,
    .progress = effect_progress,
    .rejection = effect_rejection,
    .slot = effect_slot,
    .counter = effect_counter,
    .reply = effect_reply,
    .together = effect_together,
    .begin = effect_begin,
};
