/* In this file: state as entries (what every file begins with, what a checkpoint holds besides items, and effects whose entry is the
 * whole state of their object); effects as entries, of which inserts, picks, removals and priorities come by the million, so they
 * are plain stores into the record; records and chunks; and the disk writer's news, which says how far the files are. */
#include "broker/journal/stream.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/session/flow.h"
#include "proto/base/need.h"

static char *borrow(const char *text)
{
    return (char *)(uintptr_t)text; /* protobuf-c's structs are not const */
}

void journal_put_start(struct recorder *to, const struct durable_state *state, struct entry_start start)
{
    start.instance = state->instance;
    start.wall_ns = state->loop->now_ns + state->loop->wall_offset_ns;
    start.clock_ns = state->loop->now_ns;
    struct entry_start *entry = recorder_entry(to, ENTRY_START, 0, sizeof *entry);
    *entry = start;
}

void journal_put_ordinal(struct recorder *to, const struct ordinals *ordinals)
{
    RECORD(to, ENTRY_ORDINAL, 0, entry_named, ordinals->next);
}

/* ---- tables ---- */

static struct entry_limiter limiter_body(const struct limiter *limiter)
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

void journal_put_table(struct recorder *to, const struct table *table)
{
    Replay__TableInfo info = REPLAY__TABLE_INFO__INIT;
    info.name = borrow(table->name);
    info.sampler = borrow(table->sampler_ops->name);
    info.remover = borrow(table->remover_ops->name);
    info.max_size = (uint64_t)table->config->max_size;
    info.max_bytes = (uint64_t)table->config->max_bytes;
    info.max_times_sampled = (uint32_t)table->config->max_times_sampled;
    info.group_size = (uint32_t)table->config->group_size;
    info.metadata = table->metadata;
    Replay__TableRestored counters = REPLAY__TABLE_RESTORED__INIT;
    table_copy_counters(&table->stats.base, &counters.base);
    info.restored = &counters;
    struct entry_table *entry =
        recorder_entry(to, ENTRY_TABLE, table->id, sizeof *entry + replay__table_info__get_packed_size(&info));
    *entry = (struct entry_table){
        .limiter = limiter_body(&table->limiter),
        .slots = table->capacity,
        .resets = table->resets,
    };
    replay__table_info__pack(&info, (uint8_t *)(entry + 1));
}

/* Writes an entry of a number and a message, whose place it returns. */
static uint8_t *put_message(struct recorder *to, uint16_t type, uint32_t table, uint64_t number, const void *message,
                            size_t size)
{
    struct entry_named *entry = recorder_entry(to, type, table, sizeof *entry + size);
    entry->number = number;
    return memcpy(entry + 1, message, size);
}

void journal_put_layout(struct recorder *to, const struct layout *layout)
{
    size_t size;
    const uint8_t *message = layout_message(layout, &size);
    put_message(to, ENTRY_LAYOUT, layout->table, layout->id, message, size);
}

/* ---- sessions ---- */

/* Writes a SESSION entry alone. */
static void journal_put_session(struct recorder *to, const struct session *session)
{
    Replay__Column list[RP_MAX_COLUMNS], *at[RP_MAX_COLUMNS];
    columns_describe(session->columns, list, at);
    Replay__Hello hello = REPLAY__HELLO__INIT;
    hello.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, (uint8_t *)(uintptr_t)session->id};
    hello.name = borrow(session->name);
    hello.n_columns = session->columns->count;
    hello.columns = at;
    hello.notices = session->notices;
    hello.oldest_number = session->keys.base;
    if (session->owner->unread)
        hello.owner = (ProtobufCBinaryData){KEY_BYTES, session->owner->public_key};
    size_t size = replay__hello__get_packed_size(&hello);
    struct entry_named *entry = recorder_entry(to, ENTRY_SESSION, 0, sizeof *entry + size);
    entry->number = session->ordinal;
    replay__hello__pack(&hello, (uint8_t *)(entry + 1));
}

/* Writes a registered layout as its writer sent it: the interned layout with the writer's number. */
static void put_form(struct recorder *to, const struct session *session, uint32_t id)
{
    const struct session_layout *from = &session->layouts[id];
    size_t size = from->packed_size;
    const uint8_t *message = from->packed;
    if (from->layout)
        message = layout_message(from->layout, &size);
    if (!message)
        return;
    uint8_t *out = put_message(to, ENTRY_FORM, 0, session->ordinal, message, size);
    if (from->layout)
        memcpy(out + 1, &id, sizeof id); /* field 1, a fixed32, comes first */
}

static void journal_put_progress(struct recorder *to, const struct session *session)
{
    uint32_t n = session->n_tables;
    struct entry_flow *out;
    struct entry_progress *entry = recorder_entry(to, ENTRY_PROGRESS, 0, sizeof *entry + n * sizeof *out);
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
    for (uint32_t i = 0; i < n; i++) {
        const struct flow *flow = &session->flows[i];
        out[i] = (struct entry_flow){
            .table = i, .resolved = flow->resolved, .rejected = flow->rejected, .allowed = flow->allowed};
    }
}

static void put_rejection(struct recorder *to, const struct session *session, const struct rejection *from)
{
    const char *text = from->text ? from->text : "";
    size_t size = strlen(text);
    struct entry_rejection *entry = recorder_entry(to, ENTRY_REJECTION, 0, sizeof *entry + size);
    *entry = (struct entry_rejection){
        .session = session->ordinal,
        .table = from->table,
        .item = from->item,
        .key = from->key,
        .status = (uint32_t)from->status,
    };
    memcpy(entry + 1, text, size);
}

void journal_put_session_all(struct recorder *to, const struct session *session)
{
    journal_put_session(to, session);
    for (uint32_t i = 0; i < session->n_layouts; i++)
        put_form(to, session, i);
    journal_put_progress(to, session);
    for (uint32_t i = 0; i < session->rejection_count; i++)
        put_rejection(to, session, &session->rejections[(session->rejection_head + i) % session->rejection_capacity]);
}

/* ---- parameters and requests ---- */

/* Values of this size are copied by the disk writer. */
#define LARGE_VALUE (64u << 10)

/* Writes an entry of a front, which ends with a name, and data. */
static void put_value(struct recorder *to, uint16_t type, const void *front, size_t size, zmq_msg_t *data)
{
    size_t value = zmq_msg_size(data);
    if (value >= LARGE_VALUE) {
        recorder_large(to, type, 0, front, size, data);
        return;
    }
    uint8_t *out = recorder_entry(to, type, 0, size + value);
    memcpy(out, front, size);
    if (value)
        memcpy(out + size, zmq_msg_data(data), value);
}

static void put_part(struct recorder *to, const char *name, struct param_value *value, uint32_t part)
{
    const struct param_shape *shape = &value->shape;
    size_t size = strlen(name);
    struct {
        struct entry_part part;
        char name[PARAMS_NAME_MOST + 1];
    } front = {{.put = shape->put,
                .bytes = shape->bytes,
                .bf16_bytes = shape->bf16_bytes,
                .part_bytes = shape->part_bytes,
                .part = part,
                .name_bytes = (uint32_t)size,
                .data_bytes = zmq_msg_size(&value->parts[part])},
               ""};
    memcpy(front.name, name, size);
    put_value(to, ENTRY_SLOT_PART, &front, sizeof front.part + size, &value->parts[part]);
}

/* Writes a counter; or that the parts of a value, whose number is put, are a version, or, with 0, nothing any more. */
static void put_named(struct recorder *to, uint16_t type, const char *name, uint64_t put, uint64_t version,
                      int64_t put_ns)
{
    size_t size = strlen(name);
    struct entry_value *entry = recorder_entry(to, type, 0, sizeof *entry + size);
    *entry =
        (struct entry_value){.version = version, .put_ns = put_ns, .name_bytes = (uint32_t)size, .value_bytes = put};
    memcpy(entry + 1, name, size);
}

static void put_parts(struct recorder *to, const char *name, struct param_value *value)
{
    for (uint32_t i = 0; i < value->n_parts; i++)
        if (zmq_msg_size(&value->parts[i]))
            put_part(to, name, value, i);
}

void journal_put_stage(struct recorder *to, struct param_stage *stage)
{
    put_parts(to, stage->name, stage->value);
}

void journal_put_slot(struct recorder *to, struct param_slot *slot)
{
    size_t name = strlen(slot->name);
    if (slot->value->shape.put) {
        put_parts(to, slot->name, slot->value);
        put_named(to, ENTRY_SLOT_WHOLE, slot->name, slot->value->shape.put, slot->version, slot->put_ns);
        return;
    }
    struct {
        struct entry_value value;
        char name[PARAMS_NAME_MOST + 1];
    } front = {{.version = slot->version,
                .put_ns = slot->put_ns,
                .name_bytes = (uint32_t)name,
                .value_bytes = param_slot_bytes(slot)},
               ""};
    memcpy(front.name, slot->name, name);
    put_value(to, ENTRY_SLOT, &front, sizeof front.value + name, &slot->value->parts[0]);
}

void journal_put_counter(struct recorder *to, const struct param_counter *counter)
{
    put_named(to, ENTRY_COUNTER, counter->name, 0, (uint64_t)counter->value, 0);
}

void journal_put_reply(struct recorder *to, uint64_t client, uint64_t id, const void *frame, size_t size)
{
    struct entry_request *entry = recorder_entry(to, ENTRY_REPLY, 0, sizeof *entry + size);
    *entry = (struct entry_request){client, id};
    memcpy(entry + 1, frame, size);
}

static struct stream *stream_of(struct recorder *out)
{
    return (struct stream *)(void *)((char *)out - offsetof(struct stream, out));
}

/* Writes the entries that every segment begins with: START, every TABLE, ORDINAL. */
static void put_first(struct stream *stream)
{
    struct recorder *sink = &stream->out;
    const struct tables *tables = stream->state.tables;
    const struct segments *segments = &stream->segments;
    uint32_t before = segments->n;
    while (before > 0 && segments->list[before - 1].number >= stream->segment)
        before--;
    stream->start.previous = before > 0 ? segments->list[before - 1].number : 0;
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

static void effect_insert(struct recorder *to, struct table *table, uint32_t slot, const struct flow *flow)
{
    struct stream *stream = stream_of(to);
    const struct item *item = &table->in.items[slot];
    struct chunk *const *chunks = span_chunks(&item->span);
    uint32_t n = item->span.n;
    for (uint32_t i = 0; i < n; i++)
        if (stream_lacks(stream, chunks[i]))
            (void)stream_chunk(stream, chunks[i]); /* cannot fail: large chunks were put there by effect_prepare */
    struct layout *layout = layouts_at(stream->state.layouts, item->span.layout);
    if (__builtin_expect(!layout->journaled, 0)) {
        journal_put_layout(&stream->out, layout);
        layout->journaled = true;
    }
    struct entry_insert *entry =
        recorder_entry(&stream->out, ENTRY_INSERT, table->id, sizeof *entry + n * sizeof(uint64_t));
    *entry = journal_insert_body(item, slot);
    if (flow) {
        entry->session = flow->session->ordinal;
        entry->number = flow->resolved + 1;
    }
    uint64_t *places = (uint64_t *)(void *)(entry + 1);
    for (uint32_t i = 0; i < n; i++)
        places[i] = chunks[i]->at;
}

void journal_put_group(struct recorder *to, const struct table *table, const struct contents *in, uint32_t slot)
{
    const struct group_member *member = &in->groups.slots[slot];
    RECORD(to, ENTRY_GROUP, table->id, entry_group, slot, member->leader, member->group);
}

static void effect_group(struct recorder *to, struct table *table, uint32_t slot)
{
    journal_put_group(to, table, &table->in, slot);
}

static void effect_limiter(struct recorder *to, struct table *table)
{
    struct entry_limiter *entry = recorder_entry(to, ENTRY_LIMITER, table->id, sizeof *entry);
    *entry = limiter_body(&table->limiter);
}

/* Returns the record's last entry if it is a pick of the same sample. */
static struct entry_pick *pick_last(const struct stream *stream, const struct table *table,
                                    const struct entry_pick *like)
{
    if (!stream->out.used || !stream->out.last)
        return NULL;
    const struct entry_head *head = (const struct entry_head *)(const void *)(stream->out.record + stream->out.last);
    if (head->type != ENTRY_PICK || head->table != table->id)
        return NULL;
    struct entry_pick *pick = (struct entry_pick *)(void *)(stream->out.record + stream->out.last + sizeof *head);
    bool same = pick->client == like->client && pick->id == like->id && pick->want == like->want &&
                pick->table_size == like->table_size && pick->flags == like->flags;
    return same ? pick : NULL;
}

static void effect_pick(struct recorder *to, const struct waiter *waiter, uint32_t slot, double probability)
{
    const struct table *table = waiter->table;
    struct stream *stream = stream_of(to);
    const struct wait *wait = &waiter->wait;
    struct entry_pick head = {
        .client = wait->client,
        .id = wait->client ? wait->id : 0, /* without a client's number nobody can repeat the request */
        .want = waiter->want,
        .n = 1,
        .table_size = waiter->picks.table_size,
        .flags = waiter->flags | (waiter->paid && waiter_is_counted(waiter) ? PICK_COUNTED : 0u),
        .lease_ms = waiter->lease ? waiter->lease->ms : 0,
    };
    struct entry_pick *last = pick_last(stream, table, &head);
    struct entry_picked *picked = last ? recorder_extend(&stream->out, sizeof *picked) : NULL;
    if (picked) {
        last->n++;
    } else {
        struct entry_pick *entry = recorder_entry(&stream->out, ENTRY_PICK, table->id, sizeof *entry + sizeof *picked);
        *entry = head;
        picked = (struct entry_picked *)(void *)(entry + 1);
    }
    *picked = (struct entry_picked){
        .slot = slot,
        .times_sampled = table->in.items[slot].times_sampled + 1, /* this pick is counted right after */
        .probability = probability,
    };
}

/* ---- sessions ---- */

static void effect_layout(struct recorder *to, const struct session *session, const void *layout, size_t size)
{
    put_message(to, ENTRY_FORM, 0, session->ordinal, layout, size);
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
        const struct flow *flow = &session->flows[i];
        hash = mix(hash, flow->resolved);
        hash = mix(hash, flow->rejected);
        hash = mix(hash, flow->allowed);
    }
    return hash ? hash : 1;
}

static void effect_progress(struct recorder *to, struct session *session)
{
    uint64_t hash = progress_hash(session);
    if (hash == session->journaled)
        return;
    session->journaled = hash;
    journal_put_progress(to, session);
}

/* ---- parameters and requests ---- */

static void effect_together(struct recorder *to, size_t bytes)
{
    struct stream *stream = stream_of(to);
    if (stream->out.used && stream->out.capacity - stream->out.used < bytes)
        stream_hand_over(stream);
}

static void effect_begin(struct recorder *to)
{
    struct stream *stream = stream_of(to);
    stream_hand_over(stream);
    journal_put_ordinal(to, &stream->state.tables->ordinals); /* an entry without effect opens the record */
}

/* The parts of a value are there when it becomes a version. */
static void effect_slot(struct recorder *to, struct param_slot *slot)
{
    if (slot->value->shape.put)
        put_named(to, ENTRY_SLOT_WHOLE, slot->name, slot->value->shape.put, slot->version, slot->put_ns);
    else
        journal_put_slot(to, slot);
}

static void effect_part(struct recorder *to, struct param_stage *stage, uint32_t part)
{
    put_part(to, stage->name, stage->value, part);
}

static void effect_stage_end(struct recorder *to, const struct param_stage *stage)
{
    put_named(to, ENTRY_SLOT_WHOLE, stage->name, stage->value->shape.put, 0, 0);
}

/* The data of a chunk larger than this is copied by the disk writer, not by the core thread. */
#define LARGE_CHUNK (RECORD_BYTES / 2)

/* Writes the large chunks of an item; the others need no memory. */
static bool effect_prepare(struct recorder *to, struct chunk *const *chunks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (chunks[i]->bytes > LARGE_CHUNK && !stream_chunk(stream_of(to), chunks[i]))
            return false;
    return true;
}

static const struct effects effects = {
    .entry = recorder_entry,
    .prepare = effect_prepare,
    .insert = effect_insert,
    .group = effect_group,
    .limiter = effect_limiter,
    .pick = effect_pick,
    .session = journal_put_session,
    .layout = effect_layout,
    .progress = effect_progress,
    .rejection = put_rejection,
    .slot = effect_slot,
    .part = effect_part,
    .stage_end = effect_stage_end,
    .counter = journal_put_counter,
    .reply = journal_put_reply,
    .together = effect_together,
    .begin = effect_begin,
};

/* While the disk writer has this many records, a small one is kept back and grows. */
#define OUTSTANDING_ENOUGH 2u
#define SMALL_RECORD (256u << 10)

/* ---- segments */

struct segment_use *segments_find(const struct segments *self, uint64_t number)
{
    if (!self->n)
        return NULL;
    /* Few numbers are missing, and the last ones are asked for most: try the place where the number would be. */
    uint64_t back = self->list[self->n - 1].number - number;
    if (back < self->n && self->list[self->n - 1 - back].number == number)
        return &self->list[self->n - 1 - back];
    uint32_t low = 0, high = self->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->list[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < self->n && self->list[low].number == number ? &self->list[low] : NULL;
}

/* Adds a segment, or sets the size of a known one. */
static void segments_know(struct segments *self, uint64_t number, uint64_t bytes)
{
    struct segment_use *known = segments_find(self, number);
    if (known) {
        self->total_bytes += bytes - known->bytes;
        known->bytes = bytes;
        return;
    }
    self->list = need_room(self->list, self->n, &self->capacity, sizeof *self->list);
    uint32_t at = self->n++;
    for (; at > 0 && self->list[at - 1].number > number; at--)
        self->list[at] = self->list[at - 1];
    self->list[at] = (struct segment_use){.number = number, .bytes = bytes};
    self->total_bytes += bytes;
}

static void segments_forget(struct segments *self, uint64_t number)
{
    struct segment_use *use = segments_find(self, number);
    if (!use)
        return;
    self->total_bytes -= use->bytes;
    self->n_lost -= use->lost;
    memmove(use, use + 1, (size_t)(self->list + self->n - use - 1) * sizeof *use);
    self->n--;
}

/* A chunk of so many bytes in this segment comes into use; negative: goes out of use. */
static void segments_use(struct segments *self, uint64_t number, int64_t bytes)
{
    struct segment_use *use = segments_find(self, number);
    if (use) {
        use->live += (uint64_t)bytes;
        self->live += (uint64_t)bytes;
    }
}

/* ---- records */

/* Takes a record of the segment. */
static void record_give(struct recorder *out, struct disk_job *job, size_t size)
{
    struct stream *self = stream_of(out);
    job->what = DISK_JOB_RECORD;
    job->kind = DISK_SEGMENT;
    job->file = self->segment;
    job->offset = self->offset;
    job->number = self->number++;
    job->size = size;
    segments_find(&self->segments, self->segment)->bytes += size;
    self->segments.total_bytes += size;
    self->journal_bytes += size;
    self->offset += size;
    self->start_used = 0;
    stream_give(self, job);
}

void stream_hand_over(struct stream *self)
{
    if (self->journal || self->out.used != self->start_used)
        recorder_flush(&self->out); /* without a journal, no file is created before there is a chunk */
}

uint64_t stream_segment_bytes(const struct stream *self)
{
    uint64_t bytes = space_segment(&self->space), start = 4 * (uint64_t)self->first_bytes;
    bytes = bytes > start ? bytes : start; /* with many tables, the first entries are long */
    return bytes < self->segment_bytes ? bytes : self->segment_bytes;
}

/* Begins a segment; `after`: for its START entry; 0: as it is. Only when all effects are recorded, because the first entries of
 * a segment hold the state of counters. */
static void segment_begin(struct stream *self, uint64_t number, uint64_t after)
{
    segments_know(&self->segments, number, FILE_HEAD_BYTES);
    self->segment = number;
    self->offset = FILE_HEAD_BYTES;
    if (after)
        self->start.after = after;
    put_first(self);
    self->start_used = self->first_bytes = self->out.used;
}

static void segment_next(struct stream *self)
{
    /* `after` shows a loader that nothing is missing between the segments */
    segment_begin(self, self->segment + 1, disk_at(self->segment, self->offset));
}

void stream_flush(struct stream *self)
{
    if (self->out.used < SMALL_RECORD && self->number - 1 - self->durable >= OUTSTANDING_ENOUGH)
        return;
    stream_hand_over(self);
    if (self->offset >= stream_segment_bytes(self))
        segment_next(self);
}

/* ---- chunks */

static size_t chunk_entry_bytes(const struct chunk *chunk)
{
    return sizeof(struct entry_chunk) + (size_t)chunk->columns * 5 + chunk->bytes;
}

/* Returns the bytes that a chunk takes in its segment. */
static uint64_t chunk_disk_bytes(const struct chunk *chunk)
{
    return entry_padded(sizeof(struct entry_head) + chunk_entry_bytes(chunk));
}

static void chunk_head(struct chunk *chunk, uint8_t *body)
{
    *(struct entry_chunk *)(void *)body = (struct entry_chunk){
        .step = chunk->step,
        .length = chunk->length,
        .bytes = chunk->bytes,
        .raw_bytes = chunk_raw_bytes(chunk),
        .session = chunk->session,
        .episode = chunk->episode,
        .columns = chunk->columns,
        .absent = chunk->absent,
    };
    uint8_t *sizes = body + sizeof(struct entry_chunk), *codecs = sizes + chunk->columns * sizeof(uint32_t);
    memcpy(sizes, chunk_block_sizes(chunk), (size_t)(codecs - sizes));
    memcpy(codecs, chunk_block_codecs(chunk), chunk->columns);
}

/* True if the disk writer copies the chunk's data out of its message. */
static bool chunk_is_in_message(struct chunk *chunk)
{
    zmq_msg_t *message = chunk_message(chunk);
    return message && zmq_msg_size(message) == chunk->bytes && chunk_entry_bytes(chunk) > LARGE_CHUNK;
}

static void chunk_put(struct stream *self, struct chunk *chunk)
{
    size_t size = chunk_entry_bytes(chunk);
    if (chunk_is_in_message(chunk)) {
        uint8_t head[sizeof(struct entry_chunk) + 5 * UINT8_MAX] __attribute__((aligned(8)));
        chunk_head(chunk, head);
        recorder_flush(&self->out);
        uint64_t place = disk_at(self->segment, self->offset);
        chunk->at = place + recorder_large(&self->out, ENTRY_CHUNK, 0, head, size - chunk->bytes, chunk_message(chunk));
    } else {
        uint8_t *body = recorder_entry(&self->out, ENTRY_CHUNK, 0, size);
        chunk_head(chunk, body);
        memcpy(body + size - chunk->bytes, chunk_data(chunk), chunk->bytes);
        uint64_t in_record = (uint64_t)(body - self->out.record) - sizeof(struct entry_head);
        chunk->at = disk_at(self->segment, self->offset + in_record);
    }
    stream_chunk_known(self, chunk);
}

static void chunk_dead(void *stream, const struct chunk *chunk)
{
    struct stream *self = stream;
    segments_use(&self->segments, disk_number(chunk->at), -(int64_t)chunk_disk_bytes(chunk));
}

bool stream_chunk(struct stream *self, struct chunk *chunk)
{
    return !stream_lacks(self, chunk) || stream_chunk_again(self, chunk);
}

bool stream_chunk_again(struct stream *self, struct chunk *chunk)
{
    size_t need = sizeof(struct record_head) + chunk_disk_bytes(chunk);
    if (!chunk_is_in_message(chunk) && !recorder_reserve(&self->out, need))
        return false;
    if (chunk->at)
        chunk_dead(self, chunk);
    chunk_put(self, chunk);
    return true;
}

void stream_chunk_known(struct stream *self, const struct chunk *chunk)
{
    segments_use(&self->segments, disk_number(chunk->at), (int64_t)chunk_disk_bytes(chunk));
}

#define SEGMENT_BYTES (UINT64_C(256) << 20)
#define BACKLOG_MOST (UINT64_C(64) << 20)

/* ---- room on the disk */

/* Returns why inserts should wait. A reason that holds ends only well past its limit, so that it does not flicker. */
static enum stream_hold why_hold(const struct stream *self)
{
    if (self->trouble[0])
        return HOLD_TROUBLE;
    uint64_t reserve = self->journal ? space_reserve(&self->space) : 0;
    if (self->space.free < (self->hold == HOLD_SPACE ? reserve / 4 * 5 : reserve))
        return HOLD_SPACE;
    enum checkpoint_activity checkpoint =
        self->journal && self->ops ? self->ops->activity(self->ops_ctx) : CHECKPOINT_NONE;
    if (checkpoint == CHECKPOINT_MAKES_ROOM)
        return HOLD_COMPACTION;
    if (checkpoint == CHECKPOINT_RUNS && self->journal_bytes + self->out.used > space_limit(&self->space))
        return HOLD_JOURNAL;
    return self->backlog > (self->hold == HOLD_BACKLOG ? self->backlog_most / 2 : self->backlog_most) ? HOLD_BACKLOG
                                                                                                      : HOLD_NOTHING;
}

static uint64_t below(uint64_t value, uint64_t limit)
{
    return value < limit ? limit - value : 0;
}

static void update_full(struct stream *self)
{
    uint64_t waiting = self->backlog + self->out.used;
    self->space.free = self->free == SPACE_UNKNOWN ? SPACE_UNKNOWN : below(waiting, self->free);
    self->hold = why_hold(self);
    bool before = self->full;
    self->full = self->hold != HOLD_NOTHING;
    if (self->full && !before)
        self->full_ns = self->state.loop->now_ns;
    /* The next check is due when so many bytes have been recorded. */
    uint64_t room = below(self->journal_bytes + self->out.used, space_limit(&self->space));
    uint64_t rest = below(space_reserve(&self->space), self->space.free);
    self->look_at = self->given + self->out.used + (rest < room ? rest : room);
}

bool stream_has_room(struct stream *self)
{
    uint64_t at = self->given + self->out.used;
    if (at - self->message_at > self->space.message)
        self->space.message = at - self->message_at;
    self->message_at = at;
    if (at < self->look_at)
        return true;
    update_full(self);
    return !self->full && self->journal_bytes + self->out.used <= space_limit(&self->space);
}

static void update_space(struct stream *self)
{
    const struct broker_config *config = self->state.config;
    self->space = (struct space){
        .journal = self->journal,
        .journal_max = (uint64_t)config->journal_max,
        .keep = (uint64_t)config->checkpoint_keep,
        .live = self->segments.live,
        .state = self->ops ? self->ops->bytes(self->ops_ctx) : 0,
        .message = self->space.message,
        .used = self->segments.total_bytes,
    };
    update_full(self);
    disk_writer_watch(self->disk_writer, space_is_low(&self->space));
}

void stream_give(struct stream *self, struct disk_job *job)
{
    if (job->what == DISK_JOB_FINISH)
        stream_hand_over(self);
    if (job->what == DISK_JOB_RECORD) {
        self->given += job->size;
        self->backlog += job->size;
        update_full(self);
    }
    disk_writer_give(self->disk_writer, job);
}

void stream_file_job(struct stream *self, enum disk_job_what what, enum disk_kind kind, uint64_t number)
{
    struct disk_job *job = need_alloc(sizeof *job);
    *job = (struct disk_job){.what = what, .kind = kind, .file = number};
    stream_give(self, job);
}

void stream_remove_segment(struct stream *self, uint64_t number)
{
    if (number == self->segment || !segments_find(&self->segments, number))
        return;
    stream_file_job(self, DISK_JOB_REMOVE, DISK_SEGMENT, number);
    segments_forget(&self->segments, number);
}

/* ---- the disk writer's news */

/* A sync has failed. Called between two turns, when all effects are recorded. */
static void stream_distrust(struct stream *self, const struct disk_news *news)
{
    self->failures = news->failures;
    self->bad_first = news->bad_first;
    self->bad_last = news->bad_last;
    stream_hand_over(self);
    if (stream_is_bad(self, self->segment) && self->offset > FILE_HEAD_BYTES)
        segment_next(self);
    for (uint32_t i = 0; i < self->segments.n; i++) {
        struct segment_use *use = &self->segments.list[i];
        bool lost = stream_is_bad(self, use->number) && use->number != self->segment;
        self->segments.n_lost += lost && !use->lost;
        use->lost |= lost;
    }
}

bool stream_is_lost(const struct stream *self, uint64_t segment)
{
    const struct segment_use *use = segments_find(&self->segments, segment);
    return use && use->lost;
}

void stream_healed(struct stream *self, uint64_t failures)
{
    if (failures == self->failures)
        self->bad_first = self->bad_last = 0;
}

static void take_news(struct stream *self, const struct disk_news *news)
{
    if (news->failures != self->failures)
        stream_distrust(self, news);
    self->durable = news->durable;
    self->backlog = self->given - news->written;
    self->free = news->free;
    if (strcmp(self->trouble, news->trouble) != 0) {
        if (!self->trouble[0])
            self->trouble_ns = self->state.loop->now_ns;
        memcpy(self->trouble, news->trouble, sizeof self->trouble);
    }
    if (news->finished && self->ops)
        self->ops->finished(self->ops_ctx, news->finished, NULL);
    if (news->abandoned && self->ops)
        self->ops->finished(self->ops_ctx, news->abandoned, news->why);
    update_space(self);
}

void stream_run(struct stream *self)
{
    self->message_at = self->given + self->out.used;
    struct disk_news news;
    if (disk_writer_news(self->disk_writer, &news))
        take_news(self, &news); /* the next turn reads what comes meanwhile */
}

static void hold_text(const struct stream *self, char *text, size_t size)
{
    const char *path = self->folder.path;
    switch (self->hold) {
    case HOLD_SPACE:
        snprintf(text, size, "%s: %.140s has %.1f MiB free, and a checkpoint may need %.1f MiB; free some space",
                 strerror(ENOSPC), path, (double)self->space.free / (1 << 20),
                 (double)space_reserve(&self->space) / (1 << 20));
        break;
    case HOLD_COMPACTION:
        snprintf(text, size, "%.140s has %.1f MiB free: a checkpoint comes first, which makes room", path,
                 (double)self->space.free / (1 << 20));
        break;
    case HOLD_JOURNAL:
        snprintf(text, size,
                 "the journal in %.140s has grown by %.1f MiB while a checkpoint is written: raise journal_max", path,
                 (double)self->journal_bytes / (1 << 20));
        break;
    case HOLD_BACKLOG:
        snprintf(text, size, "the disk is slow: %.1f MiB wait to be written in %.140s",
                 (double)self->backlog / (1 << 20), path);
        break;
    default:
        snprintf(text, size, "%s", self->trouble);
    }
}

bool stream_is_full(const struct stream *self, char *text, size_t size)
{
    if (!self->full)
        return false;
    if (text)
        hold_text(self, text, size);
    return true;
}

/* ---- life */

static uint64_t record_needed(const void *journal)
{
    return stream_now(journal);
}

void stream_record(struct stream *self, bool on)
{
    struct commit *commit = &self->state.peers->commit;
    self->journal = on;
    commit->needed = on ? record_needed : NULL;
    commit->durable = &self->durable;
    commit->journal = self;
    self->state.loop->effects = on ? &effects : NULL;
    self->state.loop->record = &self->out;
}

/* Starts the disk writer. The folder is open. */
static rp_status open_writer(struct stream *self, rp_error *err)
{
    const struct broker_config *config = self->state.config;
    self->out = (struct recorder){.give = record_give};
    for (uint32_t i = 0; i < self->folder.n_files; i++) {
        const struct folder_file *file = &self->folder.files[i];
        if (file->kind == DISK_SEGMENT && file->mine)
            segments_know(&self->segments, file->number, file->bytes);
    }
    /* Without a journal nothing is promised to clients; a checkpoint syncs what it needs at its end. */
    enum fsync_mode mode = config->journal_ns < 0    ? FSYNC_NEVER
                           : config->journal_ns == 0 ? FSYNC_ALWAYS
                                                     : FSYNC_INTERVAL;
    self->disk_writer = disk_writer_new(&self->folder, mode, config->journal_ns, err);
    if (!self->disk_writer)
        return RP_NO_MEMORY;
    disk_writer_set_trace(self->disk_writer, &self->state.loop->trace);
    self->free = disk_writer_free(self->disk_writer);
    return RP_OK;
}

rp_status stream_open(struct stream **out, const struct durable_state *state, rp_error *err)
{
    const struct broker_config *config = state->config;
    struct stream *self = need_alloc(sizeof *self);
    rp_status status = folder_open(&self->folder, config_folder(config), true, err);
    if (status != RP_OK) {
        free(self);
        return status;
    }
    self->state = *state;
    stream_record(self, config_has_journal(config));
    self->number = 1;
    self->segment_bytes = SEGMENT_BYTES;
    uint64_t eighth = (uint64_t)config->memory_limit / 8;
    self->backlog_most = eighth < BACKLOG_MOST ? eighth : BACKLOG_MOST;
    status = open_writer(self, err);
    if (status != RP_OK) {
        stream_close(&self, 0);
        return status;
    }
    state->store->freed = chunk_dead;
    state->store->freed_ctx = self;
    *out = self;
    return RP_OK;
}

void stream_begin(struct stream *self)
{
    update_space(self);
    segment_begin(self, folder_next(&self->folder, DISK_SEGMENT), 0);
    stream_flush(self);
}

void stream_close(struct stream **at, int timeout_ms)
{
    struct stream *self = *at;
    if (!self)
        return;
    stream_record(self, false);
    if (self->disk_writer) {
        stream_hand_over(self);
        recorder_fini(&self->out);
    }
    disk_writer_destroy(&self->disk_writer, timeout_ms);
    folder_close(&self->folder);
    free(self->segments.list);
    free(self);
    *at = NULL;
}
