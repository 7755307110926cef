/* The instant of a checkpoint. Small state is written at once; for values and chunks of any size only references are
 * taken, and the marks of tables are turned over. */
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/checkpoint_run.h"
#include "broker/peer/peers.h"
#include "broker/sample/kept_samples.h"
#include "proto/base/error.h"

/* Most bytes of a selector's state besides its items. */
#define SELECTOR_BYTES 4096u

/* ---- whole or a change, and what is moved ---- */

/* Chooses segments of which less than one `part`-th is live: a whole checkpoint, which visits all items, moves their
 * live chunks. Returns their dead bytes, and takes the live ones from the budget. */
static uint64_t choose_sparse(struct checkpoint *self, uint64_t part, uint64_t *budget)
{
    const struct stream *stream = self->stream;
    uint64_t dead = 0;
    for (uint32_t i = 0; i < stream->segments.n; i++) {
        const struct segment_use *use = &stream->segments.list[i];
        if (use->number == stream->segment || use->live == 0 || use->live >= use->bytes / part || use->live > *budget)
            continue;
        struct named_segment *segment = checkpoint_file_segment(&self->file, use->number);
        if (!segment || segment->moving)
            continue;
        segment->moving = true;
        dead += use->bytes - use->live;
        *budget -= use->live;
    }
    return dead;
}

/* Chooses segments that could not be synced: all their live chunks are written again. True: there are any. */
static bool choose_bad(struct checkpoint *self)
{
    const struct stream *stream = self->stream;
    for (uint32_t i = 0; i < stream->segments.n; i++) {
        uint64_t number = stream->segments.list[i].number;
        struct named_segment *segment =
            stream_is_bad(stream, number) ? checkpoint_file_segment(&self->file, number) : NULL;
        if (segment)
            segment->moving = segment->bad = true;
    }
    return stream->bad_last != 0;
}

/* Chooses the segments whose chunks are moved, the sparsest first, as far as the disk's reserve allows. True: they are
 * worth a whole checkpoint. */
static bool choose_moving(struct checkpoint *self)
{
    const struct stream *stream = self->stream;
    if (choose_bad(self))
        return true;
    uint64_t budget = stream->journal ? space_moves(&stream->space) : UINT64_MAX;
    uint64_t dead = choose_sparse(self, 8, &budget);
    dead += choose_sparse(self, 2, &budget);
    uint64_t enough = stream->segments.total_bytes / 4, half = space_limit(&stream->space) / 2;
    return dead > (stream->journal && half < enough ? half : enough);
}

static bool may_change(const struct checkpoints *checkpoints)
{
    if (!checkpoints->base || checkpoints->links >= CHECKPOINT_LINKS ||
        checkpoints->chain_bytes >= checkpoints->base_bytes / 2)
        return false;
    uint64_t changed = 0, all = 0;
    for (uint32_t i = 0; i < checkpoints->state.tables->n; i++) {
        const struct contents *in = &checkpoints->state.tables->list[i].in;
        changed += in->marks->all_changed ? in->size : in->marks->n_changed;
        all += in->size;
    }
    return changed <= all / 2 || changed < 1000;
}

static void choose_base(struct checkpoint *self)
{
    const struct checkpoints *checkpoints = self->checkpoints;
    bool move = choose_moving(self);
    /* A base keeps everything that it names, even what is dead by now: an incremental checkpoint frees no space. */
    if (!move && self->reason != CHECKPOINT_SPACE && may_change(checkpoints))
        self->base = checkpoints->base;
    for (uint32_t i = 0; self->base && i < self->file.n_segments; i++)
        self->file.segments[i].moving = false;
}

/* ---- tables ---- */

static void put_selector(struct checkpoint *self, const struct table *table, uint32_t which)
{
    const rp_selector_ops *ops = which ? table->remover_ops : table->sampler_ops;
    uint8_t state[SELECTOR_BYTES];
    uint32_t bytes = ops->save ? ops->save(which ? table->in.remover : table->in.sampler, state, sizeof state) : 0;
    if (bytes == 0 || bytes > sizeof state)
        return;
    struct entry_selector *entry = checkpoint_file_entry(&self->file, ENTRY_SELECTOR, table->id, sizeof *entry + bytes);
    *entry = (struct entry_selector){.which = which, .bytes = bytes};
    memcpy(entry + 1, state, bytes);
}

static void turn_marks(struct checkpoint *self, struct copied_table *copied, struct table *table)
{
    struct marks *marks = table->in.marks;
    *copied = (struct copied_table){.table = table, .in = &table->in, .marks = marks};
    marks->whole = self->base == 0 || marks->all_changed;
    if (marks->whole) {
        if (marks->n_changed)
            memset(marks->changed, 0, ((size_t)table->in.high / 64 + 1) * sizeof(uint64_t));
    } else {
        uint64_t *changed = marks->changed;
        marks->changed = marks->pending;
        marks->pending = changed;
    }
    self->slots_all += marks->whole ? table->in.high : marks->n_changed;
    marks->n_changed = 0;
    marks->all_changed = false;
    marks->copying = self;
    marks->copier = &checkpoint_copier;
    marks->next = 0;
    marks->high = table->in.high;
}

/* Empties a table that was reset since the base, before its items follow. */
static void put_reset(struct checkpoint *self, const struct table *table)
{
    checkpoint_file_entry(&self->file, ENTRY_RESET, table->id, 0);
    journal_put_table(checkpoint_file_sink(&self->file), table);
}

static void put_tables(struct checkpoint *self)
{
    const struct durable_state *state = self->state;
    for (uint32_t i = 0; i < state->tables->n; i++) {
        struct table *table = &state->tables->list[i];
        if (self->base && table->in.marks->all_changed)
            put_reset(self, table);
        put_selector(self, table, 0);
        put_selector(self, table, 1);
        turn_marks(self, &self->tables[i], table);
        self->items += table->in.size;
    }
    self->n_tables = state->tables->n;
    for (uint32_t i = 0; i < state->layouts->count; i++)
        if (state->layouts->list[i])
            journal_put_layout(checkpoint_file_sink(&self->file), state->layouts->list[i]);
}

/* ---- sessions, parameters, requests ---- */

static void put_reply(void *ctx, const struct kept_reply *reply)
{
    journal_put_reply(checkpoint_file_sink(&((struct checkpoint *)ctx)->file), reply->client, reply->id, reply->frame,
                      reply->size);
}

static void hold_slots(struct checkpoint *self)
{
    const struct params *params = self->state->params;
    self->slots = calloc(params->n_slots + 1, sizeof *self->slots);
    if (!self->slots) {
        checkpoint_file_fail(&self->file, "no memory for %u parameter slots", params->n_slots);
        return;
    }
    for (uint32_t i = 0; i < params->n_slots; i++) {
        struct param_slot *slot = &params->slots[i];
        self->slots[i] = (struct copied_slot){.name = slot->name, .version = slot->version, .put_ns = slot->put_ns};
        zmq_msg_init(&self->slots[i].value);
        zmq_msg_copy(&self->slots[i].value, &slot->value);
        self->n_slots++;
    }
}

static struct copied_selection *selection_add(struct checkpoint *self, uint32_t n, uint32_t n_refs)
{
    if (self->n_selections == self->selections_capacity) {
        uint32_t capacity = self->selections_capacity ? 2 * self->selections_capacity : 64;
        struct copied_selection *larger = realloc(self->selections, capacity * sizeof *larger);
        if (!larger)
            return NULL;
        self->selections = larger;
        self->selections_capacity = capacity;
    }
    struct copied_selection *copy = &self->selections[self->n_selections];
    *copy = (struct copied_selection){.items = malloc((n + 1) * sizeof *copy->items),
                                      .refs = malloc((n_refs + 1) * sizeof(*copy->refs))};
    if (copy->items && copy->refs) {
        self->n_selections++;
        return copy;
    }
    free(copy->items);
    free(copy->refs);
    return NULL;
}

static void hold_selection(void *ctx, const struct kept_image *image)
{
    struct checkpoint *self = ctx;
    const struct picks *picks = &image->picks;
    uint32_t n_refs = image->info.holds ? picks->n_refs : 0;
    struct copied_selection *copy = selection_add(self, picks->n, n_refs);
    if (!copy) {
        checkpoint_file_fail(&self->file, "no memory for samples that may be asked for again");
        return;
    }
    copy->table = image->info.table->id;
    copy->head = (struct entry_selection){.client = image->info.client,
                                          .id = image->info.id,
                                          .want = image->info.want,
                                          .n = picks->n,
                                          .n_chunks = n_refs,
                                          .flags = image->info.flags,
                                          .table_size = picks->table_size,
                                          .answered = image->info.answered};
    for (uint32_t i = 0; i < picks->n; i++)
        copy->items[i] = (struct entry_selected){.key = picks->key[i],
                                                 .age_ns = (int64_t)picks->age_ns[i] < self->state->loop->now_ns
                                                               ? (uint64_t)self->state->loop->now_ns - picks->age_ns[i]
                                                               : 0,
                                                 .policy = picks->policy[i],
                                                 .step = picks->step[i],
                                                 .priority = picks->priority[i],
                                                 .probability = picks->probability[i],
                                                 .times_sampled = picks->times_sampled[i],
                                                 .session = picks->session[i],
                                                 .layout = picks->layout[i],
                                                 .offset = picks->offset[i],
                                                 .length = picks->length[i],
                                                 .chunks = image->info.holds ? picks->chunks[i] : 0};
    for (uint32_t i = 0; i < n_refs; i++) {
        copy->refs[i] = picks->refs[i];
        chunk_hold(copy->refs[i]);
    }
}

static void put_rest(struct checkpoint *self)
{
    const struct durable_state *state = self->state;
    struct entry_sink sink = checkpoint_file_sink(&self->file);
    for (const struct session *session = state->sessions->list; session; session = session->next)
        journal_put_session_all(sink, session);
    for (uint32_t i = 0; i < state->params->n_counters; i++)
        journal_put_counter(sink, &state->params->counters[i]);
    kept_replies_each(&state->peers->kept_replies, put_reply, self);
    journal_put_ordinal(sink, &state->tables->ordinals);
    hold_slots(self);
    kept_samples_each(state->samples, hold_selection, self);
}

/* ---- begin and end ---- */

/* Writes START, CHECKPOINT, every TABLE. */
static void put_head(struct checkpoint *self)
{
    const struct durable_state *state = self->state;
    struct entry_sink sink = checkpoint_file_sink(&self->file);
    journal_put_start(sink, state, (struct entry_start){.previous = self->checkpoints->last});
    struct entry_checkpoint *entry = checkpoint_file_entry(&self->file, ENTRY_CHECKPOINT, 0, sizeof *entry);
    *entry = (struct entry_checkpoint){.number = self->number, .base = self->base, .journal = self->journal};
    for (uint32_t i = 0; i < state->tables->n; i++)
        journal_put_table(sink, &state->tables->list[i]);
}

struct checkpoint *checkpoint_begin(struct checkpoints *checkpoints, enum checkpoint_reason reason, rp_error *err)
{
    const struct durable_state *state = &checkpoints->state;
    struct stream *stream = checkpoints->stream;
    struct checkpoint *self = calloc(1, sizeof *self);
    if (self)
        self->tables = calloc(state->tables->n, sizeof *self->tables);
    if (!self || !self->tables) {
        free(self);
        err_set(err, RP_NO_MEMORY, "no memory for a checkpoint");
        return NULL;
    }
    self->chore.step = checkpoint_step;
    self->checkpoints = checkpoints;
    self->state = state;
    self->stream = stream;
    self->number = checkpoints->next++;
    checkpoint_file_init(&self->file, stream, self->number);
    self->reason = reason;
    self->failures = stream->failures;
    self->start_ns = clock_now(&state->loop->clock);
    self->chunks = state->store->chunks;
    self->bytes = state->store->bytes;
    if (stream->journal) {
        stream_hand_over(stream); /* the instant lies between two records */
        self->journal = disk_at(stream->segment, stream->offset);
        /* Later entries of the journal may name chunks at their present places, even those that are moved: segments
         * with live chunks at this instant stay until the next checkpoint. */
        kept_checkpoints_note_dead(&checkpoints->kept);
    }
    choose_base(self);
    put_head(self);
    put_tables(self);
    put_rest(self);
    self->replaces = stream->journal_bytes;
    stream->journal_bytes = 0;
    return self;
}

void checkpoint_free(struct checkpoint *self)
{
    for (uint32_t i = 0; i < self->n_slots; i++)
        zmq_msg_close(&self->slots[i].value);
    for (uint32_t i = 0; i < self->n_selections; i++) {
        struct copied_selection *copy = &self->selections[i];
        for (uint32_t c = 0; c < copy->head.n_chunks; c++)
            store_release(self->state->store, copy->refs[c]);
        free(copy->items);
        free(copy->refs);
    }
    checkpoint_file_fini(&self->file);
    free(self->tables);
    free(self->slots);
    free(self->selections);
    free(self);
}
