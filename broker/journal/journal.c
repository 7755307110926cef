/* Writes state and effects as entries. State: what every file begins with, what a checkpoint holds besides items, and effects whose
 * entry is the whole state of their object. Inserts, picks, removals and priorities come by the million, so they are plain
 * stores into the record. */
#include "broker/journal/journal.h"

#include <assert.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/peer/identity.h"
#include "broker/sample/waiter.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/limiter_info.h"
#include "proto/base/dtype.h"

static char *borrow(const char *text)
{
    return (char *)(uintptr_t)text; /* protobuf-c's structs are not const */
}

void journal_put_start(struct entry_sink to, const struct durable_state *state, struct entry_start start)
{
    start.instance = state->instance;
    start.wall_ns = state->loop->now_ns + state->loop->wall_offset_ns;
    start.clock_ns = state->loop->now_ns;
    struct entry_start *entry = to.room(to.ctx, ENTRY_START, 0, sizeof *entry);
    *entry = start;
}

void journal_put_ordinal(struct entry_sink to, const struct ordinals *ordinals)
{
    struct entry_named *entry = to.room(to.ctx, ENTRY_ORDINAL, 0, sizeof *entry);
    entry->number = ordinals->next;
}

/* ---- tables ---- */

/* A list of protobuf columns with the array that holds them. It needs no allocation, because an effect cannot be
 * refused any more; streams and signatures have at most RP_MAX_COLUMNS columns. */
struct column_list {
    Replay__Column column[RP_MAX_COLUMNS], *at[RP_MAX_COLUMNS];
};

static void column_list_set(struct column_list *self, uint32_t i, const char *name, int32_t dtype, uint32_t rank,
                            uint32_t *shape)
{
    replay__column__init(&self->column[i]);
    self->at[i] = &self->column[i];
    self->column[i].name = borrow(name);
    self->column[i].dtype = borrow(dtype_name(dtype));
    self->column[i].n_shape = rank;
    self->column[i].shape = shape;
}

static void table_entry(struct entry_sink to, const struct table *table, const Replay__TableSpec *spec,
                        const Replay__TableInfo *info)
{
    size_t spec_bytes = replay__table_spec__get_packed_size(spec);
    size_t info_bytes = replay__table_info__get_packed_size(info);
    struct entry_table *entry = to.room(to.ctx, ENTRY_TABLE, table->id, sizeof *entry + spec_bytes + info_bytes);
    *entry = (struct entry_table){
        .spec_bytes = (uint32_t)spec_bytes,
        .info_bytes = (uint32_t)info_bytes,
        .limiter = journal_limiter_body(&table->limiter),
        .total_inserts = table->stats.total_inserts,
        .total_samples = table->stats.total_samples,
        .updates = table->stats.updates,
        .episodes = table->stats.episodes,
        .unique_samples = table->stats.unique_samples,
        .rejected = table->stats.rejected,
        .evicted = table->stats.evicted,
        .slots = table->capacity,
        .resets = table->resets,
    };
    replay__table_spec__pack(spec, (uint8_t *)(entry + 1));
    replay__table_info__pack(info, (uint8_t *)(entry + 1) + spec_bytes);
}

void journal_put_table(struct entry_sink to, const struct table *table)
{
    struct column_list columns;
    struct limiter_info limiter;
    assert(table->signature.n <= RP_MAX_COLUMNS);
    for (uint32_t i = 0; i < table->signature.n; i++) {
        struct signature_field *field = &table->signature.fields[i];
        column_list_set(&columns, i, field->name, field->dtype, field->rank, field->shape);
    }
    Replay__TableSpec spec = REPLAY__TABLE_SPEC__INIT;
    spec.name = borrow(table->name);
    spec.id = table->id;
    spec.max_size = (uint64_t)table->config->max_size;
    spec.max_bytes = (uint64_t)table->config->max_bytes;
    spec.n_signature = table->signature.n;
    spec.signature = columns.at;
    limiter_info(table, &limiter);
    Replay__TableInfo info = REPLAY__TABLE_INFO__INIT;
    info.name = spec.name;
    info.sampler = borrow(table->sampler_ops->name);
    info.remover = borrow(table->remover_ops->name);
    info.limiter = &limiter.body;
    info.size = table->in.size;
    info.max_size = spec.max_size;
    info.bytes = table->bytes;
    info.max_bytes = spec.max_bytes;
    info.max_times_sampled = (uint32_t)table->config->max_times_sampled;
    info.metadata = table->metadata;
    table_entry(to, table, &spec, &info);
}

void journal_put_layout(struct entry_sink to, const struct layout *layout)
{
    size_t size;
    const uint8_t *message = layout_message(layout, &size);
    struct entry_named *entry = to.room(to.ctx, ENTRY_LAYOUT, layout->table, sizeof *entry + size);
    entry->number = layout->id;
    memcpy(entry + 1, message, size);
}

/* ---- sessions ---- */

/* Writes a SESSION entry alone. */
static void journal_put_session(struct entry_sink to, const struct session *session)
{
    const struct columns *columns = session->columns;
    struct column_list list;
    assert(columns->count <= RP_MAX_COLUMNS);
    for (uint32_t i = 0; i < columns->count; i++) {
        struct column *column = &columns->column[i];
        column_list_set(&list, i, column->name, column->dtype, column->rank, column->shape);
    }
    Replay__Hello hello = REPLAY__HELLO__INIT;
    hello.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, (uint8_t *)(uintptr_t)session->id};
    hello.name = borrow(session->name);
    hello.n_columns = columns->count;
    hello.columns = list.at;
    hello.notices = session->notices;
    hello.oldest_number = session->keys.base;
    if (session->owner->unread)
        hello.owner = (ProtobufCBinaryData){KEY_BYTES, session->owner->public_key};
    size_t size = replay__hello__get_packed_size(&hello);
    struct entry_named *entry = to.room(to.ctx, ENTRY_SESSION, 0, sizeof *entry + size);
    entry->number = session->ordinal;
    replay__hello__pack(&hello, (uint8_t *)(entry + 1));
}

/* Writes a registered layout as its writer sent it: the interned layout with the writer's number. */
static void put_form(struct entry_sink to, const struct session *session, uint32_t id)
{
    const struct session_layout *from = &session->layouts[id];
    size_t size = from->packed_size;
    const uint8_t *message = from->packed;
    if (from->layout)
        message = layout_message(from->layout, &size);
    if (!message)
        return;
    struct entry_named *entry = to.room(to.ctx, ENTRY_FORM, 0, sizeof *entry + size);
    entry->number = session->ordinal;
    uint8_t *out = (uint8_t *)(entry + 1);
    memcpy(out, message, size);
    if (from->layout)
        memcpy(out + 1, &id, sizeof id); /* field 1, a fixed32, comes first */
}

static void journal_put_progress(struct entry_sink to, const struct session *session)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < session->n_tables; i++)
        n += session->flows[i] != NULL;
    struct entry_flow *out;
    struct entry_progress *entry = to.room(to.ctx, ENTRY_PROGRESS, 0, sizeof *entry + n * sizeof *out);
    *entry = (struct entry_progress){
        .session = session->ordinal,
        .epoch = session->epoch,
        .received = session->received,
        .counted = session->counted,
        .received_bytes = session->received_bytes,
        .allowed_bytes = session->allowed_bytes,
        .confirmed_rejections = session->confirmed_rejections,
        .n_flows = n,
    };
    out = (struct entry_flow *)(void *)(entry + 1);
    for (uint32_t i = 0; i < session->n_tables; i++) {
        const struct flow *flow = session->flows[i];
        if (flow)
            *out++ = (struct entry_flow){
                .table = i, .resolved = flow->resolved, .rejected = flow->rejected, .allowed = flow->allowed};
    }
}

static void put_rejection(struct entry_sink to, const struct session *session, const struct rejection *from)
{
    const char *text = from->text ? from->text : "";
    size_t size = strlen(text);
    struct entry_rejection *entry = to.room(to.ctx, ENTRY_REJECTION, 0, sizeof *entry + size);
    *entry = (struct entry_rejection){
        .session = session->ordinal,
        .table = from->table,
        .item = from->item,
        .key = from->key,
        .status = (uint32_t)from->status,
    };
    memcpy(entry + 1, text, size);
}

void journal_put_session_all(struct entry_sink to, const struct session *session)
{
    journal_put_session(to, session);
    for (uint32_t i = 0; i < session->n_layouts; i++)
        put_form(to, session, i);
    journal_put_progress(to, session);
    for (uint32_t i = 0; i < session->rejection_count; i++)
        put_rejection(to, session, &session->rejections[(session->rejection_head + i) % session->rejection_capacity]);
}

/* ---- parameters and requests ---- */

static void journal_put_slot(struct entry_sink to, struct param_slot *slot)
{
    size_t name = strlen(slot->name), value = zmq_msg_size(&slot->value);
    struct entry_value *entry = to.room(to.ctx, ENTRY_SLOT, 0, sizeof *entry + name + value);
    *entry = (struct entry_value){
        .version = slot->version, .put_ns = slot->put_ns, .name_bytes = (uint32_t)name, .value_bytes = value};
    uint8_t *out = (uint8_t *)(entry + 1);
    memcpy(out, slot->name, name);
    if (value)
        memcpy(out + name, zmq_msg_data(&slot->value), value);
}

void journal_put_counter(struct entry_sink to, const struct param_counter *counter)
{
    size_t name = strlen(counter->name);
    struct entry_value *entry = to.room(to.ctx, ENTRY_COUNTER, 0, sizeof *entry + name);
    *entry = (struct entry_value){.version = (uint64_t)counter->value, .name_bytes = (uint32_t)name};
    memcpy(entry + 1, counter->name, name);
}

void journal_put_reply(struct entry_sink to, uint64_t client, uint64_t id, const void *frame, size_t size)
{
    struct entry_request *entry = to.room(to.ctx, ENTRY_REPLY, 0, sizeof *entry + size);
    *entry = (struct entry_request){client, id};
    memcpy(entry + 1, frame, size);
}

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
    put_rejection(stream_sink(stream_of(self)), session, rejection);
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
