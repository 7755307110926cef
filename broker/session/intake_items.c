/* Items of an ingest message: inserted into their table at once, or queued in the flow that waits for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/intake.h"
#include "broker/session/session_chunks.h"
#include "broker/table/room.h"
#include "broker/table/tables.h"
#include "proto/base/error.h"

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
};

/* Queues an item that has to wait, or whose rejection has to. False: no memory, and nothing has changed. */
static bool item_wait(struct intake *self, struct flow *flow, const struct arrival *arrival, rp_status status,
                      const char *text)
{
    /* Of a writer that ignores its credit, a few rejected items are reported one by one and the rest are counted. */
    if (status != RP_OK && flow->count > 2 * self->session->sessions->config->window_items &&
        flow_merge_rejection(flow))
        return true;
    struct ingest_message *message = self->message ? self->message : calloc(1, sizeof *message);
    struct pending_item item = {*arrival, message, status != RP_OK ? strdup(text) : NULL, status, 0};
    if (!message || (status != RP_OK && !item.text) || !flow_push(flow, &item)) {
        free(item.text);
        if (!self->message)
            free(message);
        return false;
    }
    if (!self->message) {
        message->bytes = self->bytes;
        message->arrived_ns = self->session->sessions->loop->now_ns;
    }
    self->message = message;
    message->waiting++;
    return true;
}

/* True if memory and the limiter let an item in now. The limiter is asked for the rest of a run at once: what happens
 * meanwhile (removals) can only allow more. */
static bool may_insert(struct intake *self, struct table *table, const struct span *span, uint32_t run_left)
{
    if (tables_disk_is_full(table->tables) || room_waits(table, span))
        return false;
    if (self->allowance == 0)
        self->allowance = limiter_insertable(&table->limiter, run_left);
    if (self->allowance == 0)
        return false;
    self->allowance--;
    return true;
}

/* Inserts an item whose chunks the arrival holds; they are released if the table refuses it. RP_NO_MEMORY: they are not. */
static rp_status item_insert(struct flow *flow, struct arrival *arrival, rp_error *err)
{
    rp_status status = flow_insert(flow, arrival, err);
    if (status != RP_OK && status != RP_NO_MEMORY)
        span_release(&arrival->span, flow->session->sessions->store, flow->session->sessions->layouts);
    return status;
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
    bool waits = flow->count > 0 || (status == RP_OK && !may_insert(self, flow->table, &arrival.span, run->n - i));
    bool taken = true;
    flow->arrived++;
    if (waits) {
        taken = item_wait(self, flow, &arrival, status, text);
    } else if (status == RP_OK) {
        status = item_insert(flow, &arrival, &err);
        text = err.text;
        taken = status != RP_NO_MEMORY;
    }
    if (!taken) {
        span_release(&arrival.span, self->session->sessions->store, self->session->sessions->layouts);
        flow->arrived--;
        return false;
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

/* Why an item is refused whose key is of another shard; and why all are, if they are. */
struct stranger {
    rp_status refused;
    const char *why;
    rp_error err;
};

/* Before item i is taken: refuses it if its key is of another shard. Out of the way of take_run: almost no broker needs it. */
static __attribute__((noinline)) void check_stranger(struct intake *self, const struct item_run *run, uint32_t i,
                                                     struct stranger *out)
{
    uint64_t key = pb_u64(&self->in.item_key, run->first + i), own = self->session->keys.base;
    self->refused = out->refused;
    self->why = out->why;
    if (out->refused != RP_OK || !wire_key_shard(key ^ own))
        return;
    self->refused = err_set(&out->err, RP_INVALID_ARGUMENT,
                            "key %llu is of shard %u, and this broker is shard %u: use the keys of the session",
                            (unsigned long long)key, wire_key_shard(key), wire_key_shard(own));
    self->why = out->err.text;
}

/* Continues a flow after items that were lost with an older state of the broker. */
static void flow_jump(struct flow *flow, uint64_t arrived)
{
    char name[SESSION_QUOTED];
    log_line(LEVEL_ERROR, "B0106", "accepted items were lost", "name=%s ordinal=%u table=%s items=%llu",
             session_quoted(flow->session, name), flow->session->ordinal, flow->table->name,
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
    run.flow = run.layout && run.layout->table ? session->flows[run.layout->table->id] : NULL;
    char text[300];
    check_run(&run, id, text, sizeof text);
    self->allowance = 0;
    uint64_t before = run.flow ? run.flow->resolved - run.flow->rejected : 0;
    bool ok = true, strangers = config_shards(session->sessions->config) > 1 && has_strangers(self, &run);
    struct stranger stranger;
    stranger.refused = self->refused;
    stranger.why = self->why;
    for (uint32_t i = 0; i < n && ok; i++) {
        ok = credit_reserve(session);
        if (!ok)
            break;
        if (__builtin_expect(strangers, 0))
            check_stranger(self, &run, i, &stranger);
        if (!run.flow || text[0])
            reject_item(self, &run, i, text);
        else if (run.number + i > run.flow->arrived) /* otherwise it was sent again */
            ok = take_item(self, &run, i);
    }
    self->refused = stranger.refused;
    self->why = stranger.why;
    if (!run.flow)
        return ok;
    session->sessions->inserted += run.flow->resolved - run.flow->rejected - before;
    if (run.flow->table->waiters)
        table_mark(run.flow->table);
    return ok;
}

bool intake_items(struct intake *self)
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
