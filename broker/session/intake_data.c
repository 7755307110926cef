/* Layouts and chunks of an ingest message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/session/flow.h"
#include "broker/session/intake.h"
#include "broker/session/session_chunks.h"
#include "broker/table/tables.h"
#include "proto/base/error.h"
#include "proto/wire/codec.h"
#include "proto/wire/unpack.h"

#define LAYOUTS_PER_SESSION 65536u
/* Most bytes of one Layout, and of all in one message: decoding takes time. Most bytes of all layouts of a session as they are
 * kept, with all columns: a few bytes on the wire become many. */
#define LAYOUT_BYTES (128u << 10)
#define LAYOUT_BYTES_PER_MESSAGE (512u << 10)
#define LAYOUT_BYTES_PER_SESSION (8u << 20)
/* Most bytes of a chunk after decompression: a small block can expand to a very large one, which readers must unpack. */
#define CHUNK_RAW_BYTES (UINT64_C(1) << 30)

/* Makes a place for the layout of this id, which must be in use or the next. */
static rp_status layout_place(struct session *session, uint32_t id)
{
    if (id < session->n_layouts)
        return RP_OK;
    if (id >= LAYOUTS_PER_SESSION || id > session->n_layouts)
        return RP_INVALID_ARGUMENT;
    /* The array doubles; n_layouts is one past the last registered id. */
    if ((session->n_layouts & (session->n_layouts - 1)) == 0) {
        uint32_t capacity = session->n_layouts ? session->n_layouts * 2 : 1;
        struct session_layout *layouts = realloc(session->layouts, capacity * sizeof *layouts);
        if (!layouts)
            return RP_NO_MEMORY;
        session->layouts = layouts;
    }
    session->layouts[session->n_layouts++] = (struct session_layout){0};
    return RP_OK;
}

/* Keeps a refused layout with the reason. False: no memory. */
static bool layout_refuse(struct session *session, struct session_layout *place, const char *text, const void *data,
                          size_t size)
{
    place->packed = malloc(size ? size : 1);
    place->refusal = place->packed ? strdup(text) : NULL;
    if (!place->refusal) {
        free(place->packed);
        place->packed = NULL;
        return false;
    }
    memcpy(place->packed, data, size);
    place->packed_size = (uint32_t)size;
    session->layout_bytes += size;
    return true;
}

bool intake_register(struct session *session, const Replay__Layout *wire, const void *data, size_t size)
{
    struct sessions *sessions = session->sessions;
    rp_status placed = layout_place(session, wire->id);
    if (placed == RP_NO_MEMORY)
        return false;
    if (placed != RP_OK) {
        intake_complain(sessions, "B0204", "layout refused", session, "layout ids must be 0, 1, 2 ... up to 65535");
        return true;
    }
    struct session_layout *place = &session->layouts[wire->id];
    if (place->layout || place->refusal)
        return true; /* sent again after a reconnect */
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
    if (!place->layout && (err.status == RP_NO_MEMORY || !layout_refuse(session, place, err.text, data, size)))
        return false;
    EFFECT(sessions->loop, layout, session, data, size);
    if (place->layout)
        session->layout_bytes += place->layout->wire_size;
    else
        intake_complain(sessions, "B0204", "layout refused", session, err.text);
    return true;
}

bool intake_layouts(struct intake *self)
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
        bool ok =
            status == RP_OK && intake_register(self->session, (const Replay__Layout *)wire, field.data, field.size);
        unpack_free(wire);
        if (!ok && status != RP_BAD_MESSAGE)
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
    rp_status status = session_keep_chunk(self->session, plan->number, chunk, err);
    if (status != RP_OK)
        store_release(self->session->sessions->store, chunk);
    return status;
}

static void chunk_refused(struct intake *self, uint64_t number, const rp_error *err)
{
    struct session *session = self->session;
    if (!session->refusals)
        session->refusals = calloc(REFUSALS_KEPT, sizeof *session->refusals);
    if (session->refusals) /* without the memory, the rejection of an item says that the chunk was refused, not why */
        session->refusals[session->next_refusal++ % REFUSALS_KEPT] = (struct refusal){number, *err};
    intake_complain(self->session->sessions, "B0205", "chunk refused", self->session, err->text);
}

/* Returns where chunk i lies: in the packed frame, or in a frame of its own (then *message is set). NULL: the frame is too
 * short, or has another size. */
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

/* False: no memory. */
static bool take_chunk(struct intake *self, uint32_t i, size_t *packed_at)
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
        return true; /* already kept, or released */
    else
        status = chunk_store(self, i, &plan, data, message, &err);
    if (status == RP_OK || status == RP_NO_MEMORY)
        return status == RP_OK;
    err_prefix(&err, "chunk %llu", (unsigned long long)plan.number);
    chunk_refused(self, plan.number, &err);
    return true;
}

bool intake_chunks(struct intake *self)
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
    size_t packed_at = 0;
    for (uint32_t i = 0; i < in->n_chunks; i++)
        if (!take_chunk(self, i, &packed_at))
            return false;
    return true;
}
