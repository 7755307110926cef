/* Writes state as entries: what every file begins with, what a checkpoint holds besides items, and effects whose entry
 * is the whole state of their object. */
#include <assert.h>
#include <string.h>

#include "broker/journal/journal.h"
#include "broker/loop/loop.h"
#include "broker/peer/identity.h"
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
    info.unique_samples = table->stats.unique_samples;
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

void journal_put_session(struct entry_sink to, const struct session *session)
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

void journal_put_progress(struct entry_sink to, const struct session *session)
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

static void put_rejections(struct entry_sink to, const struct session *session)
{
    for (uint32_t i = 0; i < session->rejection_count; i++) {
        const struct rejection *from =
            &session->rejections[(session->rejection_head + i) % session->rejection_capacity];
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
}

void journal_put_session_all(struct entry_sink to, const struct session *session)
{
    journal_put_session(to, session);
    for (uint32_t i = 0; i < session->n_layouts; i++)
        put_form(to, session, i);
    journal_put_progress(to, session);
    put_rejections(to, session);
}

/* ---- parameters and requests ---- */

void journal_put_slot(struct entry_sink to, struct param_slot *slot)
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
