/* The way in: an ingest message becomes chunks in the store and items in tables, or items that wait for their table.
 *
 * Messages of a session are taken in the order of their numbers, each once. What is wrong with one item concerns that
 * item alone: it is rejected with a sentence, and the rest goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/frames.h"
#include "broker/session.h"
#include "proto/codec.h"
#include "proto/error.h"

#define LAYOUTS_PER_SESSION 65536u
/* Of one Layout, and of all in one message: decoding takes time. Of a session's layouts as they are kept, each with all
 * columns: a few bytes on the wire make many. */
#define LAYOUT_BYTES (128u << 10)
#define LAYOUT_BYTES_PER_MESSAGE (512u << 10)
#define LAYOUT_BYTES_PER_SESSION (8u << 20)
#define CHUNKS_PER_ITEM 65536u
/* Of all items of one message: each is looked at. */
#define CHUNKS_SPANNED (1u << 20)
/* A small block can stand for a very large one: bound what a reader must unpack. */
#define CHUNK_RAW_BYTES (UINT64_C(1) << 30)
/* Blocks of one message: a chunk takes 16 bytes of the header, however many columns it has. */
#define BLOCKS_PER_MESSAGE (1u << 20)

/* One message on its way in. */
struct intake {
    struct broker *broker;
    struct session *session;
    struct wire_ingest in;
    zmq_msg_t *payload;
    uint32_t n_payload;
    uint64_t bytes;
    bool lone;               /* the one item that may always be sent */
    uint64_t allowance;      /* inserts that the limiter of this run's table has allowed */
    struct inbound *inbound; /* made when the first item has to wait */
    uint32_t spanned;        /* chunks of its items so far, those over one chunk aside */
};

static void complain(struct broker *broker, const char *id, const char *what, const struct session *session,
                     const char *text)
{
    uint32_t held;
    char quoted[320];
    if (log_allow(&broker->ingest_log, 5, broker->now_ns, &held))
        log_line(LEVEL_WARN, id, what, "session=%s text=%s held_back=%u", session ? session->name : "-",
                 log_quote(quoted, sizeof quoted, text), held);
}

/* ---- layouts ---- */

static bool layout_place(struct session *session, uint32_t id)
{
    if (id < session->n_layouts)
        return true;
    if (id >= LAYOUTS_PER_SESSION || id > session->n_layouts)
        return false;
    /* Doubles; n_layouts is always one past the last registered. */
    if ((session->n_layouts & (session->n_layouts - 1)) == 0) {
        uint32_t capacity = session->n_layouts ? session->n_layouts * 2 : 1;
        struct session_layout *layouts = realloc(session->layouts, capacity * sizeof *layouts);
        if (!layouts)
            return false;
        session->layouts = layouts;
    }
    session->layouts[session->n_layouts++] = (struct session_layout){0};
    return true;
}

static void layout_register(struct intake *self, const Replay__Layout *wire)
{
    struct session *session = self->session;
    struct broker *broker = self->broker;
    if (!layout_place(session, wire->id)) {
        complain(broker, "B0204", "layout refused", session, "layout ids must be 0, 1, 2 ... up to 65535");
        return;
    }
    struct session_layout *place = &session->layouts[wire->id];
    if (place->layout || place->refusal)
        return; /* sent again after a reconnect */
    rp_error err = {0};
    place->table = broker_table(broker, wire->table, strlen(wire->table));
    if (session->layout_bytes > LAYOUT_BYTES_PER_SESSION)
        err_set(&err, RP_RESOURCE_EXHAUSTED, "the layouts of this session take more than %u bytes: register fewer",
                LAYOUT_BYTES_PER_SESSION);
    else if (place->table)
        place->layout = layouts_intern(&broker->layouts, wire, session->columns, place->table->id,
                                       place->table->signature, place->table->n_signature, &err);
    else
        err_set(&err, RP_NOT_FOUND, "no table '%.64s'", wire->table);
    if (place->layout) {
        session->layout_bytes += place->layout->wire_size;
        return;
    }
    place->refusal = strdup(err.text);
    complain(broker, "B0204", "layout refused", session, err.text);
}

static void take_layouts(struct intake *self)
{
    struct pb_reader reader = pb_reader(self->in.layouts, self->in.layouts_size);
    struct pb_field field;
    size_t taken = 0;
    while (pb_next(&reader, &field) == 1) {
        if (field.number != 7 || field.wire != PB_BYTES)
            continue;
        taken += field.size;
        if (field.size > LAYOUT_BYTES || taken > LAYOUT_BYTES_PER_MESSAGE) {
            complain(self->broker, "B0204", "layout refused", self->session,
                     "a Layout may have 128 KiB, all of one message 512 KiB");
            return;
        }
        Replay__Layout *wire = replay__layout__unpack(NULL, field.size, field.data);
        if (wire) {
            layout_register(self, wire);
            replay__layout__free_unpacked(wire, NULL);
        } else {
            complain(self->broker, "B0204", "layout refused", self->session, "a Layout could not be decoded");
        }
    }
}

/* ---- chunks ---- */

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
        if (plan->raw_bytes <= CHUNK_RAW_BYTES) /* too much already: a sum of 255 could wrap around */
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
    if (plan->rows == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "it has no steps");
    if (plan->raw_bytes > CHUNK_RAW_BYTES)
        return err_set(err, RP_INVALID_ARGUMENT, "it has %llu bytes uncompressed, at most %llu are allowed",
                       (unsigned long long)plan->raw_bytes, (unsigned long long)CHUNK_RAW_BYTES);
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
    RP_TRY(chunk_check(self, plan, data, err));
    struct chunk *chunk =
        store_add(&self->broker->store, columns, data, (uint32_t)plan->bytes, plan->raw_bytes, message);
    if (!chunk)
        return err_set(err, RP_NO_MEMORY, "the broker has no memory for it");
    memcpy(chunk_block_sizes(chunk), plan->size, columns * sizeof plan->size[0]);
    memcpy(chunk_block_codecs(chunk), plan->codec, columns);
    chunk->length = plan->rows;
    chunk->absent = plan->absent;
    chunk->step = pb_u64(&in->chunk_step, i);
    chunk->episode = pb_u32(&in->chunk_episode, i);
    chunk->session = self->session->ordinal;
    rp_status status = session_keep_chunk(self->session, self->broker, plan->number, chunk, err);
    if (status != RP_OK)
        store_release(&self->broker->store, chunk);
    return status;
}

static void chunk_refused(struct intake *self, uint64_t number, const rp_error *err)
{
    struct session *session = self->session;
    if (!session->refusals)
        session->refusals = calloc(REFUSALS_KEPT, sizeof *session->refusals);
    if (session->refusals) /* without memory for it the item is told that the chunk was refused, not why */
        session->refusals[session->next_refusal++ % REFUSALS_KEPT] = (struct refusal){number, *err};
    complain(self->broker, "B0205", "chunk refused", self->session, err->text);
}

/* Where chunk i lies: in the pack, or in a frame of its own (then *message is set). NULL: its frame has not its size. */
static const uint8_t *chunk_find(const struct intake *self, uint32_t i, uint64_t bytes, size_t *packed_at,
                                 zmq_msg_t **message, size_t *room)
{
    const uint8_t *data;
    if (i < self->in.packed) {
        *message = NULL;
        *room = zmq_msg_size(&self->payload[0]) - *packed_at;
        data = (const uint8_t *)zmq_msg_data(&self->payload[0]) + *packed_at;
        *packed_at += bytes <= *room ? bytes : *room;
        return bytes <= *room ? data : NULL;
    }
    *message = &self->payload[i - self->in.packed + (self->in.packed ? 1 : 0)];
    *room = zmq_msg_size(*message);
    return bytes == *room ? zmq_msg_data(*message) : NULL;
}

static void take_chunk(struct intake *self, uint32_t i, size_t *packed_at)
{
    struct chunk_plan plan;
    zmq_msg_t *message;
    size_t room;
    rp_error err;
    chunk_plan(self, i, &plan);
    const uint8_t *data = chunk_find(self, i, plan.bytes, packed_at, &message, &room);
    rp_status status;
    if (!data)
        status = err_set(&err, RP_BAD_MESSAGE, "%zu bytes are left in its frame where its blocks need %llu", room,
                         (unsigned long long)plan.bytes);
    else if (plan.number < self->session->oldest_chunk || session_chunk(self->session, plan.number))
        return; /* here already, or let go of */
    else
        status = chunk_store(self, i, &plan, data, message, &err);
    if (status == RP_OK)
        return;
    err_prefix(&err, "chunk %llu", (unsigned long long)plan.number);
    chunk_refused(self, plan.number, &err);
}

static void take_chunks(struct intake *self)
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
        return;
    }
    size_t packed_at = 0;
    for (uint32_t i = 0; i < in->n_chunks; i++)
        take_chunk(self, i, &packed_at);
}

/* ---- items ---- */

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

/* Whether the item needs rows of a column that has none in this chunk, which holds its steps from `first` on. */
static rp_status check_absent(const struct layout *layout, const struct span *span, struct chunk *chunk, uint64_t first,
                              uint64_t n, const struct columns *columns, rp_error *err)
{
    const uint8_t *codecs = chunk_block_codecs(chunk);
    for (uint32_t f = 0; f < layout->n_fields; f++) {
        const struct layout_field *field = &layout->fields[f];
        if (codecs[field->column] == RP_CODEC_ABSENT && layout_field_has_rows(field, span->length, first, n))
            return err_set(err, RP_INVALID_ARGUMENT, "column '%.64s' has no data in the steps that it needs",
                           columns->column[field->column].name);
    }
    return RP_OK;
}

/* An item that runs over several chunks. */
static rp_status span_many(struct intake *self, const struct layout *layout, uint64_t number, struct span *span,
                           rp_error *err)
{
    const struct session *session = self->session;
    uint64_t covered = session_chunk(session, number)->length - span->offset;
    uint32_t n = 1;
    while (covered < span->length) {
        const struct chunk *last = session_chunk(session, number + n - 1), *next = session_chunk(session, number + n);
        if (!next)
            return missing_chunk(session, number + n, err);
        if (next->step != last->step + last->length)
            return err_set(err, RP_INVALID_ARGUMENT, "chunks %llu and %llu are not consecutive steps",
                           (unsigned long long)(number + n - 1), (unsigned long long)(number + n));
        covered += next->length;
        if (++n > CHUNKS_PER_ITEM)
            return err_set(err, RP_INVALID_ARGUMENT, "it runs over more than %u chunks", CHUNKS_PER_ITEM);
        self->spanned += 1 + (next->absent ? layout->n_fields / 8 : 0); /* all fields are looked at, too */
        if (self->spanned > CHUNKS_SPANNED)
            return err_set(err, RP_RESOURCE_EXHAUSTED,
                           "the items of its message run over more than %u chunks: use longer chunks, or send fewer "
                           "items at a time",
                           CHUNKS_SPANNED);
    }
    struct chunk **many = malloc(n * sizeof(*many));
    if (!many)
        return err_set(err, RP_NO_MEMORY, "no memory for an item over %u chunks", n);
    uint64_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        many[i] = session_chunk(session, number + i);
        uint64_t steps = many[i]->length - (i == 0 ? span->offset : 0);
        if (many[i]->absent && check_absent(layout, span, many[i], first, steps, session->columns, err) != RP_OK) {
            free(many);
            return RP_INVALID_ARGUMENT;
        }
        first += steps;
    }
    for (uint32_t i = 0; i < n; i++)
        chunk_hold(many[i]);
    span->many = many;
    span->n = n;
    self->broker->store.outside += n * sizeof(*many); /* until span_release */
    return RP_OK;
}

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
        if (chunk->absent)
            RP_TRY(check_absent(layout, span, chunk, 0, span->length, session->columns, err));
        chunk_hold(chunk);
        span->one = chunk;
        span->n = 1;
    }
    layout->refs++;
    return RP_OK;
}

/* Everything about an item but whether its table takes it now. On RP_OK the span holds its chunks. */
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
        span_release(&out->span, &self->broker->store, &self->broker->layouts);
        return RP_RESOURCE_EXHAUSTED;
    }
    return RP_OK;
}

static void item_wait(struct intake *self, struct flow *flow, const struct arrival *arrival, rp_status status,
                      const char *text)
{
    /* A writer that ignores its credit is told of so many items one by one, of the rest by their number. */
    if (status != RP_OK && flow->count > 2 * self->broker->config->window_items && flow_merge_rejection(flow))
        return;
    if (!self->inbound) {
        self->inbound = calloc(1, sizeof *self->inbound);
        if (!self->inbound)
            abort(); /* 24 bytes: the process is beyond saving */
        *self->inbound = (struct inbound){self->bytes, 0};
    }
    struct pending pending = {*arrival, self->inbound, status != RP_OK ? strdup(text) : NULL, status, 0};
    if (flow_push(flow, &pending)) {
        self->inbound->waiting++;
        return;
    }
    free(pending.text);
    if (status == RP_OK)
        span_release(&pending.arrival.span, &self->broker->store, &self->broker->layouts);
    if (self->inbound->waiting == 0) {
        free(self->inbound);
        self->inbound = NULL;
    }
    credit_reject(self->broker, flow, arrival->key, RP_NO_MEMORY, "the broker has no memory to keep it waiting");
    flow_resolved(self->broker, flow, NULL);
}

/* Whether the limiter lets an item in now. Asked for the rest of a run at once: what happens meanwhile (removals) can
 * only allow more. */
static bool may_insert(struct intake *self, const struct table *table, uint32_t run_left)
{
    if (self->allowance == 0)
        self->allowance = limiter_insertable(&table->limiter, run_left);
    if (self->allowance == 0)
        return false;
    self->allowance--;
    return true;
}

/* Item i, number flow->arrived + 1; run_left more of its run follow, itself included. */
static void take_item(struct intake *self, uint32_t i, uint32_t run_left, const struct session_layout *layout,
                      struct flow *flow, uint64_t policy, rp_status refused, const char *why)
{
    struct broker *broker = self->broker;
    struct arrival arrival = {
        pb_u64(&self->in.item_key, i), pb_f64(&self->in.item_priority, i), policy, {{0}, 0, 0, 0, 0}};
    rp_error err; /* filled if it is needed: clearing it for each item would cost too much */
    rp_status status = refused;
    const char *text = why;
    flow->arrived++;
    self->session->items++;
    if (status == RP_OK && flow->arrived > flow->allowed && !self->lone) {
        status = err_set(&err, RP_CREDIT_EXCEEDED,
                         "item %llu of table '%s' was sent, only %llu were allowed: wait for credit",
                         (unsigned long long)flow->arrived, flow->table->name, (unsigned long long)flow->allowed);
        text = err.text;
    }
    if (status == RP_OK) {
        status = item_check(self, i, layout, &arrival, &err);
        text = err.text;
    }
    bool waits = flow->count > 0 || (status == RP_OK && !may_insert(self, flow->table, run_left));
    if (waits) {
        item_wait(self, flow, &arrival, status, text);
        return;
    }
    if (status == RP_OK) {
        status = flow_insert(flow, &arrival, &err);
        if (status == RP_OK) {
            flow->resolved++;
            return;
        }
        text = err.text;
        span_release(&arrival.span, &broker->store, &broker->layouts);
    }
    credit_reject(broker, flow, arrival.key, status, text);
    flow->resolved++;
}

/* Goes on after items that were lost with an older state of the broker. */
static void flow_jump(struct flow *flow, uint64_t arrived)
{
    flow->arrived = flow->resolved = arrived;
    flow->jumps = false;
    if (flow->allowed < arrived + flow->window)
        flow->allowed = arrived + flow->window;
}

/* Items first .. first + n - 1 of the message, which share a layout. */
static void take_run(struct intake *self, uint32_t run, uint32_t first, uint32_t n, rp_status refused, const char *why)
{
    const struct wire_ingest *in = &self->in;
    struct session *session = self->session;
    uint32_t id = pb_u32(&in->run_layout, run);
    uint64_t number = pb_u64(&in->run_first, run), policy = pb_u64(&in->run_policy, run);
    const struct session_layout *layout = id < session->n_layouts ? &session->layouts[id] : NULL;
    struct flow *flow = layout && layout->table ? session->flows[layout->table->id] : NULL;
    char text[300];
    text[0] = '\0';
    self->allowance = 0;
    if (!layout)
        snprintf(text, sizeof text, "layout %u was never registered", id);
    else if (!flow)
        snprintf(text, sizeof text, "%.250s", layout->refusal ? layout->refusal : "no memory");
    else if (number > flow->arrived + 1 && flow->jumps && flow->count == 0)
        flow_jump(flow, number - 1);
    else if (number > flow->arrived + 1)
        snprintf(text, sizeof text, "item numbers of table '%s' jump from %llu to %llu: they must be consecutive",
                 flow->table->name, (unsigned long long)flow->arrived, (unsigned long long)number);
    for (uint32_t i = 0; i < n; i++) {
        if (!flow || text[0]) {
            credit_reject_at(self->broker, session, flow ? flow->table->id : REJECTED_NOWHERE, number + i,
                             pb_u64(&in->item_key, first + i),
                             layout && !flow && layout->refusal ? RP_NOT_FOUND : RP_INVALID_ARGUMENT, text);
            continue;
        }
        if (number + i <= flow->arrived)
            continue; /* sent again: it is here */
        take_item(self, first + i, n - i, layout, flow, policy, refused, why);
    }
    if (flow && flow->table->waiters)
        pump_mark(flow->table);
}

static void take_items(struct intake *self, rp_status refused, const char *why)
{
    uint32_t first = 0;
    for (uint32_t run = 0; run < self->in.n_runs; run++) {
        uint32_t n = pb_u32(&self->in.run_items, run);
        take_run(self, run, first, n, refused, why);
        first += n;
    }
}

/* ---- messages ---- */

/* One item may always be sent when its table has none of the session's unresolved. */
static bool is_lone_item(const struct intake *self)
{
    if (self->in.n_items != 1)
        return false;
    uint32_t id = 0;
    for (uint32_t run = 0; run < self->in.n_runs; run++)
        if (pb_u32(&self->in.run_items, run) == 1)
            id = pb_u32(&self->in.run_layout, run);
    const struct session *session = self->session;
    const struct table *table = id < session->n_layouts ? session->layouts[id].table : NULL;
    const struct flow *flow = table ? session->flows[table->id] : NULL;
    return flow && flow->arrived == flow->resolved;
}

/* Whether the message as a whole can be taken: its bytes against the credit, its frames against its chunks. */
static rp_status message_check(struct intake *self, rp_error *err)
{
    struct session *session = self->session;
    struct broker *broker = self->broker;
    uint32_t frames = self->in.n_chunks - self->in.packed + (self->in.packed ? 1 : 0);
    bool over = session->received_bytes > session->allowed_bytes;
    uint64_t surplus = over ? session->received_bytes - session->allowed_bytes : 0;
    /* Keep the account whole: what is here counts as granted. */
    broker->granted_bytes += surplus;
    session->allowed_bytes += surplus;
    uint64_t blocks = (uint64_t)self->in.n_chunks * session->columns->count;
    if (blocks > BLOCKS_PER_MESSAGE)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "%u chunks of %u columns in one message are too many: send fewer",
                       self->in.n_chunks, session->columns->count);
    if (self->n_payload != frames)
        return err_set(err, RP_BAD_MESSAGE, "%u payload frames where %u chunks, %u of them packed, need %u",
                       self->n_payload, self->in.n_chunks, self->in.packed, frames);
    if (self->bytes > (uint64_t)broker->config->max_message_bytes)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "message %llu has %llu bytes, at most %lld are allowed",
                       (unsigned long long)self->in.number, (unsigned long long)self->bytes,
                       (long long)broker->config->max_message_bytes);
    if (!over || self->lone)
        return RP_OK;
    uint32_t held;
    if (log_allow(&broker->credit_log, 5, broker->now_ns, &held))
        log_line(LEVEL_WARN, "B0206", "a writer ignores its credit", "session=%s message=%llu held_back=%u",
                 session->name, (unsigned long long)self->in.number, held);
    return err_set(err, RP_CREDIT_EXCEEDED,
                   "message %llu goes %llu bytes over what the session was allowed: wait for credit",
                   (unsigned long long)self->in.number, (unsigned long long)surplus);
}

/* After a tombstone the ring starts anew, at the oldest chunk that this writer can still mean. */
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
    struct broker *broker = self->broker;
    session->received = self->in.number;
    if (self->in.number > session->counted) {
        session->counted = self->in.number;
        session->received_bytes += self->bytes;
    } else {
        self->bytes = 0;
    }
    if (session->rebase)
        ring_rebase(self);
    if (self->in.n_layouts)
        take_layouts(self);
    self->lone = is_lone_item(self);
    rp_error err;
    err.text[0] = '\0';
    rp_status refused = message_check(self, &err);
    if (refused == RP_OK && self->in.n_chunks)
        take_chunks(self);
    take_items(self, refused, err.text);
    /* Items of this message hold what they need themselves. */
    /* More than came, or a writer of many small chunks would never catch up. */
    session_drop_chunks(session, broker, self->in.oldest_chunk, 2048 + 2 * (uint32_t)self->in.n_chunks);
    if (!self->inbound)
        credit_return(broker, session, self->bytes);
    credit_mark(broker, session, false);
}

/* A message whose header could not be read: if it says whose it is and is next in turn, it is passed over with a
 * rejection; otherwise there is nobody to tell. */
static void message_bad(struct broker *broker, const struct wire_ingest *in, const char *text)
{
    broker->counters.messages_bad++;
    struct session *session = session_find(broker, in->session);
    complain(broker, "B0207", "bad ingest message", session, text);
    if (!session || session->tombstone || in->epoch != session->epoch || in->number != session->received + 1)
        return;
    session->received = in->number;
    credit_reject_at(broker, session, REJECTED_NOWHERE, 0, 0, RP_BAD_MESSAGE, text);
}

/* n frames were read; of a message with more the rest was dropped. */
static void ingest_message(struct broker *broker, zmq_msg_t *frames, uint32_t n)
{
    struct intake intake = {.broker = broker, .payload = frames + 1, .n_payload = n - 1};
    rp_error err;
    rp_status status = wire_read_ingest(zmq_msg_data(&frames[0]), zmq_msg_size(&frames[0]), &intake.in, &err);
    if (status == RP_OK && intake.in.version != WIRE_VERSION)
        status = err_set(&err, RP_UNSUPPORTED, "protocol version %u is unknown here: this broker speaks version %u",
                         intake.in.version, WIRE_VERSION);
    if (status != RP_OK) {
        message_bad(broker, &intake.in, err.text);
        return;
    }
    struct session *session = intake.session = session_find(broker, intake.in.session);
    if (!session || session->tombstone || intake.in.epoch != session->epoch) {
        broker->counters.ingest_stale++;
        if (!session)
            complain(broker, "B0208", "message of an unknown session ignored", NULL, "it has ended, or never was here");
        return;
    }
    session_touch(session, broker->now_ns);
    if (intake.in.number <= session->received || broker->draining)
        return;
    if (intake.in.number > session->received + 1) {
        broker->counters.ingest_gaps++;
        if (!session->gap) {
            session->gap = true;
            log_line(LEVEL_WARN, "B0209", "messages were lost on the way", "session=%s received=%llu next=%llu",
                     session->name, (unsigned long long)session->received, (unsigned long long)intake.in.number);
            credit_mark(broker, session, true);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        intake.bytes += zmq_msg_size(&frames[i]);
    take_message(&intake);
}

bool ingest_receive(struct broker *broker)
{
    static _Thread_local zmq_msg_t frames[BROKER_MAX_FRAMES];
    uint32_t n;
    bool whole;
    if (!frames_receive(broker->ingest, frames, BROKER_MAX_FRAMES, &n, &whole))
        return false;
    broker->counters.messages_in++;
    ingest_message(broker, frames, n);
    frames_close(frames, n);
    return true;
}
