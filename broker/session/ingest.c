/* Messages of a session are taken in the order of their numbers, each once. What is wrong with one item concerns that item
 * alone: it is rejected with a sentence, and the other items are taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peer.h"
#include "broker/peer/peers.h"
#include "broker/session/session.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/wire/codec.h"
#include "proto/wire/pb.h"

/* An ingest message on its way in.
 *
 * A function that returns false has found no memory. What was taken so far stays, and is skipped when the writer sends the message
 * again. */
struct intake {
    struct session *session;
    struct wire_ingest in;
    zmq_msg_t *payload;
    uint32_t n_payload;
    const uint8_t *packed; /* what is left of the frame of packed chunks */
    size_t packed_left;
    uint64_t bytes;     /* that count against the credit: of all frames, or 0 if the message was sent again */
    bool lone;          /* its only item may be sent without credit */
    bool placed;        /* chunks that are not packed lie in the session's memory, not in frames */
    rp_status refused;  /* none of its items can be taken, for this reason; or RP_OK */
    const char *why;    /* text of refused */
    uint64_t allowance; /* inserts that the limiter of this run's table has allowed */
    struct ingest_message *message; /* made when the first item has to wait */
    uint32_t spanned;               /* chunks after the first of each item, so far */
};

static void intake_complain(struct sessions *sessions, const char *id, const char *what, const struct session *session,
                            const char *text)
{
    uint32_t held;
    if (log_allow(&sessions->ingest_log, 5, sessions->loop->now_ns, &held))
        log_line(LEVEL_WARN, id, what, "session=%s text=%s held_back=%u", session ? log_text(session->name) : "-",
                 log_text(text), held);
}

/* ---- layouts and chunks */

#define LAYOUTS_PER_SESSION 65536u
/* Most bytes of one Layout, and of all in one message: decoding takes time. Most bytes of all layouts of a session as they are
 * kept, with all columns: a few bytes on the wire become many. */
#define LAYOUT_BYTES (128u << 10)
#define LAYOUT_BYTES_PER_MESSAGE (512u << 10)
#define LAYOUT_BYTES_PER_SESSION (8u << 20)
/* Most bytes of a chunk after decompression: a small block can expand to a very large one, which readers must unpack. */
#define CHUNK_RAW_BYTES (UINT64_C(1) << 30)

/* Returns the place of the layout of this id, which must be in use or the next. NULL: it is neither. */
static struct session_layout *layout_place(struct session *session, uint32_t id)
{
    if (id >= LAYOUTS_PER_SESSION || id > session->n_layouts)
        return NULL;
    if (id == session->n_layouts) {
        if ((id & (id - 1)) == 0) /* the array doubles */
            session->layouts = need_resize(session->layouts, id ? (size_t)id * 2 : 1, sizeof *session->layouts);
        session->layouts[session->n_layouts++] = (struct session_layout){0};
    }
    return &session->layouts[id];
}

void intake_register(struct session *session, const Replay__Layout *wire, const void *data, size_t size)
{
    struct sessions *sessions = session->sessions;
    struct session_layout *place = layout_place(session, wire->id);
    if (!place) {
        intake_complain(sessions, "B0204", "layout refused", session, "layout ids must be 0, 1, 2 ... up to 65535");
        return;
    }
    if (place->layout || place->refusal)
        return; /* sent again after a reconnect */
    rp_error err = {0};
    place->table = tables_find(session->sessions->tables, wire->table, strlen(wire->table));
    if (session->layout_bytes > LAYOUT_BYTES_PER_SESSION)
        err_set(&err, RP_RESOURCE_EXHAUSTED, "the layouts of this session take more than %u bytes: register fewer",
                LAYOUT_BYTES_PER_SESSION);
    else if (place->table)
        place->layout =
            layouts_intern(sessions->layouts, wire, session->columns, place->table->id, place->table->signature, &err);
    else
        err_set(&err, RP_NOT_FOUND, "no table '%.64s'", wire->table);
    EFFECT(sessions->loop, layout, session, data, size);
    if (place->layout) {
        session->layout_bytes += place->layout->wire_size;
        return;
    }
    place->refusal = need_text(err.text);
    place->packed = memcpy(need_alloc(size), data, size);
    place->packed_size = (uint32_t)size;
    session->layout_bytes += size;
    intake_complain(sessions, "B0204", "layout refused", session, err.text);
}

static bool intake_layouts(struct intake *self)
{
    struct pb_reader reader = pb_reader(self->in.layouts, self->in.layouts_size);
    struct pb_field field;
    size_t taken = 0;
    while (pb_next(&reader, &field) == 1) {
        if (field.number != 7 || field.wire != PB_BYTES)
            continue;
        taken += field.size;
        if (field.size > LAYOUT_BYTES || taken > LAYOUT_BYTES_PER_MESSAGE) {
            intake_complain(self->session->sessions, "B0204", "layout refused", self->session,
                            "a Layout may have at most 128 KiB, all Layouts of one message 512 KiB");
            return true;
        }
        ProtobufCMessage *wire;
        rp_status status = unpack(&replay__layout__descriptor, field.data, field.size, &wire);
        if (status == RP_BAD_MESSAGE)
            intake_complain(self->session->sessions, "B0204", "layout refused", self->session,
                            "a Layout could not be decoded");
        if (status == RP_OK)
            intake_register(self->session, (const Replay__Layout *)wire, field.data, field.size);
        unpack_free(wire);
        if (status == RP_NO_MEMORY)
            return false;
    }
    return true;
}

/* What the header says about one chunk. */
struct chunk_plan {
    uint64_t number;
    uint64_t bytes, raw_bytes;
    uint32_t rows;
    bool absent;
    uint32_t size[RP_MAX_COLUMNS];
    uint8_t codec[RP_MAX_COLUMNS];
};

static void chunk_plan(const struct intake *self, uint32_t i, struct chunk_plan *plan)
{
    const struct wire_ingest *in = &self->in;
    const struct columns *columns = self->session->columns;
    plan->number = pb_u64(&in->chunk_number, i);
    plan->rows = pb_u32(&in->chunk_length, i);
    plan->bytes = plan->raw_bytes = 0;
    plan->absent = false;
    for (uint32_t c = 0; c < columns->count; c++) {
        plan->size[c] = pb_u32(&in->block_size, i * columns->count + c);
        plan->codec[c] = pb_u8(&in->block_codec, i * columns->count + c);
        plan->absent |= plan->codec[c] == RP_CODEC_ABSENT;
        plan->bytes += plan->size[c];
        if (plan->raw_bytes <= CHUNK_RAW_BYTES) /* beyond the limit already: a sum of 255 could wrap around */
            plan->raw_bytes += plan->rows * columns->column[c].row_bytes;
    }
}

static rp_status block_check(const struct column *column, const struct chunk_plan *plan, uint32_t c,
                             const uint8_t *data, rp_error *err)
{
    if (plan->codec[c] == RP_CODEC_RAW) {
        if (plan->size[c] == plan->rows * column->row_bytes)
            return RP_OK;
        err_set(err, RP_INVALID_ARGUMENT, "%u bytes for %u steps of %llu bytes", plan->size[c], plan->rows,
                (unsigned long long)column->row_bytes);
    } else {
        struct codec_shape shape = {column->elem_bytes, column->is_integer, column->row_bytes, plan->rows,
                                    column->rank};
        if (codec_check(plan->codec[c], &shape, data, plan->size[c], err) == RP_OK)
            return RP_OK;
    }
    err_prefix(err, "column '%.64s'", column->name);
    return (rp_status)err->status;
}

static rp_status chunk_check(const struct intake *self, const struct chunk_plan *plan, const uint8_t *data,
                             rp_error *err)
{
    const struct columns *columns = self->session->columns;
    for (uint32_t c = 0; c < columns->count; c++) {
        RP_TRY(block_check(&columns->column[c], plan, c, data, err));
        data += plan->size[c];
    }
    return RP_OK;
}

static rp_status chunk_store(struct intake *self, uint32_t i, const struct chunk_plan *plan, const uint8_t *data,
                             zmq_msg_t *message, rp_error *err)
{
    const struct wire_ingest *in = &self->in;
    uint32_t columns = self->session->columns->count;
    if (plan->rows == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "it has no steps");
    if (plan->raw_bytes > CHUNK_RAW_BYTES)
        return err_set(err, RP_INVALID_ARGUMENT, "it has %llu bytes uncompressed, at most %llu are allowed",
                       (unsigned long long)plan->raw_bytes, (unsigned long long)CHUNK_RAW_BYTES);
    struct chunk *chunk =
        store_add(self->session->sessions->store, columns, data, (uint32_t)plan->bytes, plan->raw_bytes, message);
    if (!chunk)
        return err_set(err, RP_NO_MEMORY, "the broker has no memory for it");
    memcpy(chunk_block_sizes(chunk), plan->size, columns * sizeof plan->size[0]);
    memcpy(chunk_block_codecs(chunk), plan->codec, columns);
    chunk->length = plan->rows;
    chunk->absent = plan->absent;
    chunk->step = pb_u64(&in->chunk_step, i);
    chunk->episode = pb_u32(&in->chunk_episode, i);
    chunk->session = self->session->ordinal;
    /* What is checked is the broker's own copy: a writer could change its memory meanwhile. */
    rp_status status = chunk_check(self, plan, chunk_data(chunk), err);
    if (status == RP_OK)
        status = session_keep_chunk(self->session, plan->number, chunk, err);
    if (status != RP_OK)
        store_release(self->session->sessions->store, chunk);
    return status;
}

static void chunk_refused(struct intake *self, uint64_t number, const rp_error *err)
{
    struct session *session = self->session;
    if (!session->refusals)
        session->refusals = need_alloc(REFUSALS_KEPT * sizeof *session->refusals);
    session->refusals[session->next_refusal++ % REFUSALS_KEPT] = (struct refusal){number, *err};
    intake_complain(self->session->sessions, "B0205", "chunk refused", self->session, err->text);
}

/* Returns where chunk i lies: in the packed frame, in the session's memory, or in a frame of its own (then *message is set). NULL: the
 * frame or the memory is too short, or the frame has another size. *room: bytes that were left. */
static const uint8_t *chunk_find(struct intake *self, uint32_t i, uint64_t bytes, zmq_msg_t **message, size_t *room)
{
    const uint8_t *data = self->packed;
    if (i < self->in.packed) {
        size_t left = *room = self->packed_left, taken = bytes <= left ? bytes : left;
        *message = NULL;
        self->packed += taken;
        self->packed_left -= taken;
        return bytes <= left ? data : NULL;
    }
    if (self->placed) {
        const struct borrowed *borrowed = &self->session->borrowed;
        uint64_t place = pb_u64(&self->in.place, i - self->in.packed);
        *message = NULL;
        *room = place < borrowed->size ? (size_t)(borrowed->size - place) : 0;
        return bytes <= *room ? borrowed->data + place : NULL;
    }
    *message = &self->payload[i - self->in.packed + (self->in.packed ? 1 : 0)];
    *room = zmq_msg_size(*message);
    return bytes == *room ? zmq_msg_data(*message) : NULL;
}

/* False: no memory. */
static bool take_chunk(struct intake *self, uint32_t i)
{
    struct chunk_plan plan;
    zmq_msg_t *message;
    size_t room;
    rp_error err;
    chunk_plan(self, i, &plan);
    const uint8_t *data = chunk_find(self, i, plan.bytes, &message, &room);
    rp_status status;
    if (!data)
        status =
            err_set(&err, RP_BAD_MESSAGE, "%zu bytes are left in its %s where its blocks need %llu", room,
                    self->placed && i >= self->in.packed ? "writer's memory" : "frame", (unsigned long long)plan.bytes);
    else if (plan.number < self->session->oldest_chunk || session_chunk(self->session, plan.number))
        return true; /* already kept, or released */
    else
        status = chunk_store(self, i, &plan, data, message, &err);
    if (status == RP_OK || status == RP_NO_MEMORY)
        return status == RP_OK;
    err_prefix(&err, "chunk %llu", (unsigned long long)plan.number);
    chunk_refused(self, plan.number, &err);
    return true;
}

static bool intake_chunks(struct intake *self)
{
    const struct wire_ingest *in = &self->in;
    uint64_t blocks = (uint64_t)in->n_chunks * self->session->columns->count;
    if ((in->block_size.n != 1 && in->block_size.n != blocks) ||
        (in->block_codec.n != 1 && in->block_codec.n != blocks)) {
        rp_error err;
        err_set(&err, RP_INVALID_ARGUMENT,
                "chunks of %u columns come with %u block sizes and %u codecs, %llu or 1 are needed",
                self->session->columns->count, in->block_size.n, in->block_codec.n, (unsigned long long)blocks);
        chunk_refused(self, pb_u64(&in->chunk_number, 0), &err);
        return true;
    }
    if (in->packed) {
        self->packed = zmq_msg_data(&self->payload[0]);
        self->packed_left = zmq_msg_size(&self->payload[0]);
    }
    for (uint32_t i = 0; i < in->n_chunks; i++)
        if (!take_chunk(self, i))
            return false;
    return true;
}

/* ---- items */

#define CHUNKS_PER_ITEM 65536u
/* Chunks that the items of one message may run over, all together: each of them is looked at. */
#define CHUNKS_SPANNED (1u << 20)

/* ---- the chunks of an item ---- */

/* Explains why the session has no chunk of this number. */
static rp_status missing_chunk(const struct session *session, uint64_t number, rp_error *err)
{
    unsigned long long n = number;
    for (uint32_t i = 0; session->refusals && i < REFUSALS_KEPT; i++) {
        const struct refusal *refusal = &session->refusals[i];
        if (refusal->error.status != RP_OK && refusal->number == number)
            return err_set(err, (rp_status)refusal->error.status, "%s", refusal->error.text);
    }
    if (number < session->oldest_chunk)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "chunk %llu is gone: the session had said that nothing before chunk %llu would be needed", n,
                       (unsigned long long)session->oldest_chunk);
    return err_set(err, RP_FAILED_PRECONDITION, "chunk %llu was never sent or was refused", n);
}

/* The steps of an item that lie in one chunk. */
struct item_piece {
    struct chunk *chunk;
    uint64_t first, n; /* steps, counted from the first of the item */
};

/* Checks that the item needs no rows of a column that the chunk has no data of. length: steps of the item. */
static rp_status check_absent(const struct session *session, const struct layout *layout, uint32_t length,
                              const struct item_piece *piece, rp_error *err)
{
    const uint8_t *codecs = chunk_block_codecs(piece->chunk);
    for (uint32_t f = 0; f < layout->n_fields; f++) {
        const struct layout_field *field = &layout->fields[f];
        if (codecs[field->column] == RP_CODEC_ABSENT && layout_field_has_rows(field, length, piece->first, piece->n))
            return err_set(err, RP_INVALID_ARGUMENT, "column '%.64s' has no data in the steps that it needs",
                           session->columns->column[field->column].name);
    }
    return RP_OK;
}

/* Counts the chunks of an item that runs over several, from chunk `number` on. */
static rp_status count_chunks(struct intake *self, const struct layout *layout, uint64_t number,
                              const struct span *span, uint32_t *out, rp_error *err)
{
    const struct session *session = self->session;
    const struct chunk *last = session_chunk(session, number);
    uint64_t covered = last->length - span->offset;
    uint32_t n = 1;
    while (covered < span->length) {
        const struct chunk *next = session_chunk(session, number + n);
        if (!next)
            return missing_chunk(session, number + n, err);
        if (next->step != last->step + last->length)
            return err_set(err, RP_INVALID_ARGUMENT, "chunks %llu and %llu are not consecutive steps",
                           (unsigned long long)(number + n - 1), (unsigned long long)(number + n));
        covered += next->length;
        last = next;
        if (++n > CHUNKS_PER_ITEM)
            return err_set(err, RP_INVALID_ARGUMENT, "it runs over more than %u chunks", CHUNKS_PER_ITEM);
        self->spanned += 1 + (next->absent ? layout->n_fields / 8 : 0); /* all fields are looked at, too */
        if (self->spanned > CHUNKS_SPANNED)
            return err_set(err, RP_RESOURCE_EXHAUSTED,
                           "the items of its message run over more than %u chunks: use longer chunks, or send fewer "
                           "items at a time",
                           CHUNKS_SPANNED);
    }
    *out = n;
    return RP_OK;
}

/* Fills in the chunks of an item that runs over several, and holds them. */
static rp_status span_many(struct intake *self, const struct layout *layout, uint64_t number, struct span *span,
                           rp_error *err)
{
    const struct session *session = self->session;
    uint32_t n = 1;
    RP_TRY(count_chunks(self, layout, number, span, &n, err));
    struct chunk **many = malloc(n * sizeof(*many));
    if (!many)
        return err_set(err, RP_NO_MEMORY, "no memory for an item over %u chunks", n);
    uint64_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        many[i] = session_chunk(session, number + i);
        struct item_piece piece = {many[i], first, many[i]->length - (i == 0 ? span->offset : 0)};
        if (many[i]->absent && check_absent(session, layout, span->length, &piece, err) != RP_OK) {
            free(many);
            return RP_INVALID_ARGUMENT;
        }
        first += piece.n;
    }
    for (uint32_t i = 0; i < n; i++)
        chunk_hold(many[i]);
    span->many = many;
    span->n = n;
    session->sessions->store->outside += span_list_bytes(n); /* until span_release */
    return RP_OK;
}

/* Finds and holds the chunks of item i. */
static rp_status item_span(struct intake *self, uint32_t i, struct layout *layout, struct span *span, rp_error *err)
{
    const struct wire_ingest *in = &self->in;
    const struct session *session = self->session;
    uint64_t number = pb_u64(&in->item_chunk, i);
    *span = (struct span){
        .offset = pb_u32(&in->item_offset, i),
        .length = pb_u32(&in->item_length, i),
        .layout = layout->id,
    };
    struct chunk *chunk = session_chunk(session, number);
    if (!chunk)
        return missing_chunk(session, number, err);
    if (span->length < layout->min_length || span->length == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "it spans %u steps, its layout needs %u", span->length,
                       layout->min_length);
    if (span->offset >= chunk->length)
        return err_set(err, RP_INVALID_ARGUMENT, "it starts at step %u of a chunk of %u", span->offset, chunk->length);
    if ((uint64_t)span->offset + span->length > chunk->length) {
        RP_TRY(span_many(self, layout, number, span, err));
    } else {
        struct item_piece piece = {chunk, 0, span->length};
        if (chunk->absent)
            RP_TRY(check_absent(session, layout, span->length, &piece, err));
        chunk_hold(chunk);
        span->one = chunk;
        span->n = 1;
    }
    layout->refs++;
    return RP_OK;
}

/* Checks everything about an item but whether its table takes it now. On RP_OK the span holds its chunks. */
static rp_status item_check(struct intake *self, uint32_t i, const struct session_layout *layout, struct arrival *out,
                            rp_error *err)
{
    const struct table *table = layout->table;
    if (!layout->layout)
        return err_set(err, RP_INVALID_ARGUMENT, "%s", layout->refusal ? layout->refusal : "its layout was refused");
    RP_TRY(table_check_priority(table, out->priority, err));
    RP_TRY(item_span(self, i, layout->layout, &out->span, err));
    uint64_t most = (uint64_t)table->config->max_bytes;
    if (most && span_bytes(&out->span) > most) {
        err_set(err, RP_RESOURCE_EXHAUSTED, "its chunks have %llu bytes, table '%s' holds at most %llu (max_bytes)",
                (unsigned long long)span_bytes(&out->span), table->name, (unsigned long long)most);
        span_release(&out->span, self->session->sessions->store, self->session->sessions->layouts);
        return RP_RESOURCE_EXHAUSTED;
    }
    return RP_OK;
}

/* ---- runs of items ---- */

/* Items first .. first + n - 1 of a message: they share a layout, and so a flow. */
struct item_run {
    const struct session_layout *layout; /* NULL: never registered */
    struct flow *flow;                   /* NULL: there is no such table */
    uint64_t number;                     /* of the first item in its flow */
    uint64_t policy;
    uint32_t first, n;
    bool strangers; /* some of its keys are of another shard */
    bool special;   /* that, or its items or its table have groups */
};

/* Queues an item that has to wait, or whose rejection has to. */
static void item_wait(struct intake *self, struct flow *flow, const struct arrival *arrival, rp_status status,
                      const char *text)
{
    /* Of a writer that ignores its credit, a few rejected items are reported one by one and the rest are counted. */
    if (status != RP_OK && flow->count > 2 * WINDOW_ITEMS && flow_merge_rejection(flow))
        return;
    if (!self->message) {
        self->message = need_alloc(sizeof *self->message);
        self->message->bytes = self->bytes;
        self->message->arrived_ns = self->session->sessions->loop->now_ns;
    }
    self->message->waiting++;
    flow_push(flow,
              &(struct pending_item){*arrival, self->message, status != RP_OK ? need_text(text) : NULL, status, 0});
}

/* True if memory and the limiter let an item in now. The limiter is asked for the rest of a run at once: what happens
 * meanwhile (removals) can only allow more. */
static bool ingest_may_insert(struct intake *self, struct table *table, const struct arrival *arrival,
                              uint32_t run_left)
{
    if (tables_disk_is_full(table->tables) || room_waits(table, &arrival->span))
        return false;
    if (self->allowance == 0)
        self->allowance = table_insertable(table, arrival->group, run_left);
    if (self->allowance == 0)
        return false;
    self->allowance--;
    return true;
}

/* Refuses a key of another shard. Out of the way of take_item: almost no broker needs it. */
static __attribute__((noinline)) rp_status check_shard(const struct session *session, uint64_t key, rp_error *err)
{
    uint64_t own = session->keys.base;
    if (!wire_key_shard(key ^ own))
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "key %llu is of shard %u, and this broker is shard %u: use the keys of the session",
                   (unsigned long long)key, wire_key_shard(key), wire_key_shard(own));
}

/* Sets and checks the group of an item. */
static rp_status take_group(const struct intake *self, uint32_t i, const struct table *table, struct arrival *out,
                            rp_error *err)
{
    out->group = self->in.item_group.n ? pb_u64(&self->in.item_group, i) : 0;
    if (!out->group == !table->in.groups.slots)
        return RP_OK;
    return out->group ? err_set(err, RP_INVALID_ARGUMENT,
                                "item %llu has the group %llu, and table '%s' has no groups: leave it out",
                                (unsigned long long)out->key, (unsigned long long)out->group, table->name)
                      : err_set(err, RP_INVALID_ARGUMENT,
                                "item %llu has no group, and table '%s' has groups of %u: give it the key of one, "
                                "which is not 0",
                                (unsigned long long)out->key, table->name, table->in.groups.size);
}

/* Takes item i of a run, the next of its flow. False: no memory, and the item has not arrived. */
static bool take_item(struct intake *self, const struct item_run *run, uint32_t i)
{
    struct flow *flow = run->flow;
    uint32_t at = run->first + i;
    struct arrival arrival = {.key = pb_u64(&self->in.item_key, at),
                              .priority = pb_f64(&self->in.item_priority, at),
                              .policy = run->policy,
                              .flow = flow};
    rp_error err; /* filled if it is needed: clearing it for each item would cost too much */
    rp_status status = self->refused;
    const char *text = self->why;
    if (__builtin_expect(run->special, 0) && status == RP_OK) {
        status = run->strangers ? check_shard(self->session, arrival.key, &err) : RP_OK;
        if (status == RP_OK)
            status = take_group(self, at, flow->table, &arrival, &err);
        text = err.text;
    }
    if (status == RP_OK && flow->arrived + 1 > flow->allowed && !self->lone) {
        status = err_set(&err, RP_CREDIT_EXCEEDED,
                         "item %llu of table '%s' was sent, only %llu were allowed: wait for credit",
                         (unsigned long long)flow->arrived + 1, flow->table->name, (unsigned long long)flow->allowed);
        text = err.text;
    }
    if (status == RP_OK) {
        status = item_check(self, at, run->layout, &arrival, &err);
        if (status == RP_NO_MEMORY)
            return false;
        text = err.text;
    }
    bool waits = flow->count > 0 || (status == RP_OK && !ingest_may_insert(self, flow->table, &arrival, run->n - i));
    flow->arrived++;
    if (waits) {
        item_wait(self, flow, &arrival, status, text);
    } else if (status == RP_OK) {
        status = flow_insert(flow, &arrival, &err);
        text = err.text;
        if (status != RP_OK)
            span_release(&arrival.span, self->session->sessions->store, self->session->sessions->layouts);
        if (status == RP_NO_MEMORY) {
            flow->arrived--;
            return false;
        }
    }
    self->session->items++;
    if (!waits && status != RP_OK)
        credit_reject(flow, arrival.key, status, text);
    flow->resolved += !waits;
    return true;
}

/* True if an item of the run has a key of another shard. */
static bool has_strangers(const struct intake *self, const struct item_run *run)
{
    uint64_t differs = 0;
    for (uint32_t i = 0; i < run->n; i++)
        differs |= pb_u64(&self->in.item_key, run->first + i) ^ self->session->keys.base;
    return wire_key_shard(differs) != 0;
}

/* Continues a flow after items that were lost with an older state of the broker. */
static void flow_jump(struct flow *flow, uint64_t arrived)
{
    log_line(LEVEL_ERROR, "B0106", "accepted items were lost", "name=%s ordinal=%u table=%s items=%llu",
             log_text(flow->session->name), flow->session->ordinal, flow->table->name,
             (unsigned long long)(arrived - flow->arrived));
    flow->arrived = flow->resolved = arrived;
    flow->jumps = false;
    if (flow->allowed < arrived + flow->window)
        flow->allowed = arrived + flow->window;
    /* Later entries of this flow count on from here. */
    EFFECT(flow->session->sessions->loop, progress, flow->session);
}

/* Writes why no item of the run can be taken; nothing if they can. */
static void check_run(const struct item_run *run, uint32_t layout, char *text, size_t size)
{
    struct flow *flow = run->flow;
    text[0] = '\0';
    if (!run->layout)
        snprintf(text, size, "layout %u was never registered", layout);
    else if (!flow)
        snprintf(text, size, "%.250s", run->layout->refusal ? run->layout->refusal : "no memory");
    else if (run->number > flow->arrived + 1 && flow->jumps && flow->count == 0)
        flow_jump(flow, run->number - 1);
    else if (run->number > flow->arrived + 1)
        snprintf(text, size, "item numbers of table '%s' jump from %llu to %llu: they must be consecutive",
                 flow->table->name, (unsigned long long)flow->arrived, (unsigned long long)run->number);
}

static void reject_item(struct intake *self, const struct item_run *run, uint32_t i, char *text)
{
    struct rejection rejection = {
        .table = run->flow ? run->flow->table->id : REJECTED_NOWHERE,
        .item = run->number + i,
        .key = pb_u64(&self->in.item_key, run->first + i),
        .status = run->layout && !run->flow && run->layout->refusal ? RP_NOT_FOUND : RP_INVALID_ARGUMENT,
        .text = text,
    };
    credit_reject_at(self->session, &rejection);
}

/* Takes run r, n items from item `first` of the message on. False: no memory. */
static bool take_run(struct intake *self, uint32_t r, uint32_t first, uint32_t n)
{
    const struct wire_ingest *in = &self->in;
    struct session *session = self->session;
    uint32_t id = pb_u32(&in->run_layout, r);
    struct item_run run = {
        .layout = id < session->n_layouts ? &session->layouts[id] : NULL,
        .number = pb_u64(&in->run_first, r),
        .policy = pb_u64(&in->run_policy, r),
        .first = first,
        .n = n,
    };
    run.flow = run.layout && run.layout->table ? session_flow(session, run.layout->table) : NULL;
    char text[300];
    check_run(&run, id, text, sizeof text);
    self->allowance = 0;
    uint64_t before = run.flow ? run.flow->resolved - run.flow->rejected : 0;
    bool ok = true;
    run.strangers = config_shards(session->sessions->config) > 1 && has_strangers(self, &run);
    run.special = run.strangers || in->item_group.n || (run.flow && run.flow->table->in.groups.slots);
    for (uint32_t i = 0; i < n && ok; i++) {
        if (!run.flow || text[0])
            reject_item(self, &run, i, text);
        else if (run.number + i > run.flow->arrived) /* otherwise it was sent again */
            ok = take_item(self, &run, i);
    }
    if (!run.flow)
        return ok;
    session->sessions->inserted += run.flow->resolved - run.flow->rejected - before;
    if (run.flow->table->waiters.n)
        table_mark(run.flow->table);
    return ok;
}

static bool intake_items(struct intake *self)
{
    uint32_t first = 0;
    for (uint32_t run = 0; run < self->in.n_runs; run++) {
        uint32_t n = pb_u32(&self->in.run_items, run);
        if (!take_run(self, run, first, n))
            return false;
        first += n;
    }
    return true;
}

/* ---- messages */

/* Most blocks of one message: a chunk takes 16 bytes of the header, however many columns it has. */
#define BLOCKS_PER_MESSAGE (1u << 20)
#define FRAMES_MOST 1024u
/* Bytes of a header that are fetched before it is read. */
#define HEAD_AHEAD 4096u

/* Returns the flow of a message with one item for a table that has no unresolved item of the session: it needs no credit. NULL
 * for other messages. */
static const struct flow *lone_flow(const struct intake *self)
{
    if (self->in.n_items != 1)
        return NULL;
    uint32_t id = 0;
    for (uint32_t run = 0; run < self->in.n_runs; run++)
        if (pb_u32(&self->in.run_items, run) == 1)
            id = pb_u32(&self->in.run_layout, run);
    struct session *session = self->session;
    const struct table *table = id < session->n_layouts ? session->layouts[id].table : NULL;
    const struct flow *flow = table ? session_flow(session, table) : NULL;
    return flow && flow->arrived == flow->resolved ? flow : NULL;
}

/* Returns the bytes of the chunks that lie in the session's memory. They count as those of frames do, but they cost their writer
 * nothing: of a message that is too large, no more count than show it. */
static uint64_t placed_bytes(const struct intake *self)
{
    const struct pb_array *sizes = &self->in.block_size;
    uint32_t columns = self->session->columns->count;
    uint64_t blocks = (uint64_t)self->in.n_chunks * columns, bytes = 0;
    uint64_t most = (uint64_t)self->session->sessions->config->max_message_bytes;
    if (blocks > BLOCKS_PER_MESSAGE) /* refused: they are not looked at */
        return 0;
    for (uint64_t i = (uint64_t)self->in.packed * columns; i < blocks && bytes <= most; i++)
        bytes += pb_u32(sizes, sizes->n == blocks ? (uint32_t)i : 0);
    return bytes <= most ? bytes : most + 1;
}

/* Checks the message as a whole: its bytes against the credit, its frames against its chunks. size: its bytes, sent again or not. */
static rp_status message_check(struct intake *self, uint64_t size, rp_error *err)
{
    struct session *session = self->session;
    struct sessions *sessions = session->sessions;
    uint32_t frames = (self->placed ? 0 : self->in.n_chunks - self->in.packed) + (self->in.packed ? 1 : 0);
    /* Bytes that have arrived count as granted, whether they were or not: offered - returned stays true. */
    uint64_t allowed = session->allowed_bytes;
    bool over = session->received_bytes > allowed;
    if (session->received_bytes > session->offered_bytes)
        credit_offer(session, session->received_bytes - session->offered_bytes);
    uint64_t blocks = (uint64_t)self->in.n_chunks * session->columns->count;
    if (blocks > BLOCKS_PER_MESSAGE)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "%u chunks of %u columns in one message are too many: send fewer",
                       self->in.n_chunks, session->columns->count);
    if (self->n_payload != frames)
        return err_set(err, RP_BAD_MESSAGE, "%u payload frames where %u chunks, %u of them packed, need %u",
                       self->n_payload, self->in.n_chunks, self->in.packed, frames);
    if (size > (uint64_t)sessions->config->max_message_bytes)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "message %llu has %llu bytes, at most %lld are allowed",
                       (unsigned long long)self->in.number, (unsigned long long)size,
                       (long long)sessions->config->max_message_bytes);
    if (!over || self->lone)
        return RP_OK;
    uint32_t held;
    if (log_allow(&sessions->credit_log, 5, sessions->loop->now_ns, &held))
        log_line(LEVEL_WARN, "B0206", "a writer ignores its credit", "session=%s message=%llu held_back=%u",
                 log_text(session->name), (unsigned long long)self->in.number, held);
    return err_set(err, RP_CREDIT_EXCEEDED,
                   "message %llu goes %llu bytes over what the session was allowed: wait for credit",
                   (unsigned long long)self->in.number, (unsigned long long)(session->received_bytes - allowed));
}

/* Starts the ring of a resumed tombstone anew, at the oldest chunk that the writer can still refer to. */
static void ring_rebase(struct intake *self)
{
    uint64_t base = self->in.oldest_chunk ? self->in.oldest_chunk : 1;
    for (uint32_t i = 0; i < self->in.n_chunks; i++) {
        uint64_t number = pb_u64(&self->in.chunk_number, i);
        base = number && number < base ? number : base;
    }
    self->session->oldest_chunk = base;
    self->session->newest_chunk = base - 1;
    self->session->rebase = false;
}

static void take_message(struct intake *self)
{
    struct session *session = self->session;
    bool owes = session->owner->quota.inserts_per_second &&
                identity_owes_s(session->owner, session->sessions->loop->now_ns) > 0.0;
    session->received = self->in.number;
    /* A message that was made for a broker on the same host has places, and may come with frames all the same. */
    self->placed = self->in.place.n > 0 && session->borrowed.data && self->n_payload == (self->in.packed > 0);
    self->bytes += self->placed ? placed_bytes(self) : 0;
    uint64_t size = self->bytes;
    if (self->in.number > session->counted) {
        session->counted = self->in.number;
        session->received_bytes += self->bytes;
        credit_use(session);
        if (session->owner->quota.inserts_per_second)
            identity_inserted(session->owner, self->in.n_items, session->sessions->loop->now_ns);
    } else {
        self->bytes = 0;
    }
    if (session->rebase)
        ring_rebase(self);
    bool taken = !self->in.n_layouts || intake_layouts(self);
    const struct flow *lone = lone_flow(self);
    self->lone = lone != NULL;
    rp_error err;
    err.text[0] = '\0';
    self->refused = message_check(self, size, &err);
    self->why = err.text;
    bool early = owes && lone && lone->arrived >= lone->allowed;
    taken = taken && !early;
    if (taken && self->refused == RP_OK && self->in.n_chunks)
        taken = intake_chunks(self);
    taken = taken && intake_items(self);
    self->why = NULL;
    if (!taken) { /* it counts as lost: its writer sends it again, and what was taken of it is known by its numbers */
        session->received = self->in.number - 1;
        session->gap = true;
    }
    if (early) /* came without credit while its key owes: otherwise a writer that sends items one by one would have no limit */
        credit_mark(session, true);
    else if (!taken)
        /* The writer learns of it with the answer to its next heartbeat: at once, writer and broker would do nothing else. */
        intake_complain(session->sessions, "B0211", "no memory for a message: its writer sends it again", session,
                        "lower memory_limit, or give the machine more memory");
    else
        /* Items of this message hold their own chunks. More chunks are released than have come, or a writer of many small
         * chunks would never catch up. */
        session_drop_chunks(session, self->in.oldest_chunk, 2048 + 2 * (uint32_t)self->in.n_chunks);
    if (!self->message)
        credit_return(session, self->bytes);
    credit_mark(session, false);
}

/* The loop has read its clock just before it received the message: so nothing has to be kept for a trace that is off. */
static __attribute__((noinline)) void trace_insert(const struct intake *self)
{
    struct loop *loop = self->session->sessions->loop;
    loop_trace_end(
        loop, "insert", loop->now_ns,
        (struct trace_span){
            .who = self->session->ordinal, .id = self->in.number, .count = self->in.n_items, .link = TRACE_INGEST});
}

/* True if the sender of a message may write, and opened the session. Its writer learns otherwise with its next heartbeat. */
static bool may_feed(const struct session *session, zmq_msg_t *frames)
{
    struct sessions *sessions = session->sessions;
    if (!sessions->peers->identities.on)
        return true;
    const struct identity *who = identity_of(sessions->peers, &frames[0]);
    rp_error err = {0};
    if (identity_check(who, KEY_ACTOR, "an insert", &err) == RP_OK && session_check_owner(session, who, &err) == RP_OK)
        return true;
    sessions->ingest_stale++;
    intake_complain(sessions, "B0213", "message refused", session, err.text);
    return false;
}

/* Skips a message whose header is damaged. If it names its session and is the next of it, the writer gets a rejection. */
static void message_bad(struct sessions *sessions, const struct wire_ingest *in, zmq_msg_t *frames, const char *text)
{
    sessions->peers->counters.messages_bad++;
    struct session *session = session_find(sessions, in->session);
    intake_complain(sessions, "B0207", "bad ingest message", session, text);
    if (!session || session->tombstone || session->gap || in->epoch != session->epoch ||
        in->number != session->received + 1 || !may_feed(session, frames))
        return;
    session->received = in->number;
    struct rejection rejection = {.table = REJECTED_NOWHERE, .status = RP_BAD_MESSAGE, .text = (char *)(uintptr_t)text};
    credit_reject_at(session, &rejection);
}

/* Takes a message of n frames and so many bytes; of a longer message the rest was dropped. */
static void message_receive(struct sessions *sessions, zmq_msg_t *frames, uint32_t n, uint64_t bytes)
{
    struct intake intake = {.payload = frames + 1, .n_payload = n - 1, .bytes = bytes};
    rp_error err;
    const uint8_t *head = zmq_msg_data(&frames[0]);
    size_t head_size = zmq_msg_size(&frames[0]);
    /* Another thread has received the header: its short arrays would come line by line, each when it is first read. */
    for (size_t at = 0; at < head_size && at < HEAD_AHEAD; at += 64)
        __builtin_prefetch(head + at);
    rp_status status = wire_read_ingest(head, head_size, &intake.in, &err);
    if (status == RP_OK && intake.in.version != WIRE_VERSION)
        status = err_set(&err, RP_UNSUPPORTED, "protocol version %u is unknown here: this broker speaks version %u",
                         intake.in.version, WIRE_VERSION);
    if (status != RP_OK) {
        message_bad(sessions, &intake.in, frames, err.text);
        return;
    }
    struct session *session = intake.session = session_find(sessions, intake.in.session);
    if (!session || session->tombstone || intake.in.epoch != session->epoch) {
        sessions->ingest_stale++;
        if (!session)
            intake_complain(sessions, "B0208", "message of an unknown session ignored", NULL,
                            "it has ended, or this broker never knew it");
        return;
    }
    if (!may_feed(session, frames))
        return;
    session_touch(session, sessions->loop->now_ns);
    if (intake.in.number <= session->received || sessions->loop->draining)
        return;
    /* After a gap nothing is taken until HELLO, not even the message that was missing: what the writer sends again comes in
     * a new epoch, so anything else is left over from a connection that the writer has closed. */
    if (session->gap || intake.in.number > session->received + 1) {
        sessions->ingest_gaps++;
        if (!session->gap) {
            session->gap = true;
            log_line(LEVEL_WARN, "B0209", "messages were lost on the way", "session=%s received=%llu next=%llu",
                     log_text(session->name), (unsigned long long)session->received,
                     (unsigned long long)intake.in.number);
            credit_mark(session, true);
        }
        return;
    }
    take_message(&intake);
    if (trace_on(&sessions->loop->trace))
        trace_insert(&intake);
}

bool ingest_receive(struct sessions *sessions)
{
    static _Thread_local zmq_msg_t frames[FRAMES_MOST];
    uint32_t n;
    bool whole;
    struct port from = {sessions->peers->ingest, sessions->peers->channels ? &sessions->peers->channels->data : NULL};
    if (!frames_receive(from, frames, FRAMES_MOST, &n, &whole))
        return false;
    if (inflow_wants())
        inflow_taken(zmq_msg_get(&frames[0], ZMQ_SRCFD), 0);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += zmq_msg_size(&frames[i]);
    sessions->peers->counters.messages_in++;
    sessions->peers->counters.bytes_in += bytes;
    message_receive(sessions, frames, n, bytes);
    frames_close(frames, n);
    return true;
}
