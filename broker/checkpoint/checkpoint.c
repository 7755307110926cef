/* A checkpoint in progress goes over the words of a table's marks (table/contents.h) from front to back. An incremental one copies the
 * slots whose bits are set in `pending`; a bit is cleared when its slot was copied ahead of its turn. A whole one copies every slot
 * below `high`; the bits that are set are those copied ahead. So neither kind costs anything at the instant, however large the
 * table. Words that were passed are zero again.
 *
 * In this file: the file that is written; which checkpoints there are, and what can be removed; copying in slices; the instant; when checkpoints are made, and how they end. */
#include "broker/checkpoint/checkpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/journal/load.h"
#include "broker/journal/reader.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/spill/spill.h"
#include "broker/table/table.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

/* ---- the file ---- */

/* Takes a record. */
static void give_record(struct recorder *out, struct disk_job *job, size_t size)
{
    struct checkpoint *self = (struct checkpoint *)(void *)((char *)out - offsetof(struct checkpoint, out));
    struct stream *stream = self->stream;
    if (self->failed) {
        disk_job_free(job);
        return;
    }
    job->what = DISK_JOB_RECORD;
    job->kind = DISK_CHECKPOINT;
    job->file = self->number;
    job->offset = self->offset;
    job->size = size;
    self->offset += size;
    stream_give(stream, job);
}

RP_PRINTF(2, 3) static void checkpoint_fail(struct checkpoint *self, const char *format, ...)
{
    if (self->failed)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(self->error, sizeof self->error, format, args);
    va_end(args);
    self->failed = true;
}

/* Returns the place of a chunk, which is written first if it has none, or if its segment is emptied. */
static uint64_t chunk_place(struct checkpoint *self, struct chunk *chunk)
{
    struct stream *stream = self->stream;
    const struct segment_use *use = chunk->at ? segments_find(&stream->segments, disk_number(chunk->at)) : NULL;
    if (stream_lacks(stream, chunk) || (use && use->moving && chunk_is_here(chunk))) {
        if (!stream_chunk_again(stream, chunk))
            checkpoint_fail(self, "no memory for a chunk of %u bytes", chunk->bytes);
        self->chunk_bytes += sizeof(struct entry_chunk) + chunk->bytes;
    }
    struct segment_use *there = segments_find(&stream->segments, disk_number(chunk->at));
    if (there)
        there->named++;
    else
        checkpoint_fail(self, "segment %llu, where a chunk lies, is missing",
                        (unsigned long long)disk_number(chunk->at));
    return chunk->at;
}

/* ---- which checkpoints there are ---- */

/* Reads the segments that a checkpoint needs, which its last record names. */
static rp_status read_end(struct reader *reader, struct kept_checkpoint *out, rp_error *err)
{
    struct record_view record;
    RP_TRY(reader_last(reader, &record, err));
    struct entry_reader entries = entry_reader(record);
    bool ended = false;
    for (struct entry_view entry; entry_next(&entries, &entry);) {
        RP_TRY(entry_check(&entry, err));
        ended = entry.type == ENTRY_END;
        if (entry.type != ENTRY_PARTS || out->segments)
            continue;
        size_t bytes = entry.size - sizeof(struct entry_named);
        out->n_segments = (uint32_t)(bytes / sizeof *out->segments);
        out->segments = need_alloc((out->n_segments + 1) * sizeof *out->segments);
        memcpy(out->segments, entry.body + sizeof(struct entry_named), bytes);
    }
    return ended && out->segments ? RP_OK : err_set(err, RP_BAD_MESSAGE, "it has no end");
}

static rp_status read_one(const struct folder *folder, uint64_t number, struct kept_checkpoint *out, rp_error *err)
{
    struct checkpoint_about about;
    struct reader reader;
    RP_TRY(checkpoint_peek(folder, number, &about, err));
    out->base = about.head.base;
    out->journal = about.head.journal;
    RP_TRY(reader_open(&reader, folder, DISK_CHECKPOINT, number, err));
    rp_status status = read_end(&reader, out, err);
    reader_close(&reader);
    return status;
}

static struct kept_checkpoint *kept_add(struct kept_checkpoints *self, uint64_t number)
{
    self->list = need_room(self->list, self->n, &self->capacity, sizeof *self->list);
    self->list[self->n] = (struct kept_checkpoint){.number = number};
    return &self->list[self->n++];
}

/* Notes the segments without live chunks, which may be removed when the checkpoint is whole. */
static void kept_checkpoints_note_dead(struct kept_checkpoints *self)
{
    const struct stream *stream = self->stream;
    self->n_dead = 0;
    self->dead = need_resize(self->dead, stream->segments.n + 1, sizeof *self->dead);
    for (uint32_t i = 0; i < stream->segments.n; i++)
        if (stream->segments.list[i].live == 0 && stream->segments.list[i].number != stream->segment)
            self->dead[self->n_dead++] = stream->segments.list[i].number;
}

/* Marks the newest `keep` usable checkpoints, and their bases, as needed. *oldest: the oldest of the newest ones.
 * Returns the first segment of their journal: 0, which keeps all segments, if there is a journal and one of them was
 * made without. */
static uint64_t mark_needed(const struct kept_checkpoints *self, uint64_t keep, bool journal, bool *needed,
                            uint64_t *oldest)
{
    uint64_t from = UINT64_MAX, count = 0;
    *oldest = 0;
    for (uint32_t i = self->n; i-- > 0;) {
        const struct kept_checkpoint *kept = &self->list[i];
        if (!kept->useless && count < keep) {
            needed[i] = true;
            count++;
            *oldest = kept->number;
            if ((kept->journal || journal) && disk_number(kept->journal) < from)
                from = disk_number(kept->journal);
        }
        for (uint32_t b = 0; needed[i] && kept->base && b < i; b++)
            needed[b] |= self->list[b].number == kept->base;
    }
    return from;
}

static bool is_named(const struct kept_checkpoints *self, uint64_t segment)
{
    for (uint32_t i = 0; i < self->n; i++)
        for (uint32_t s = 0; s < self->list[i].n_segments; s++)
            if (self->list[i].segments[s] == segment)
                return true;
    return false;
}

static uint32_t remove_checkpoints(struct kept_checkpoints *self, const bool *needed, uint64_t oldest)
{
    uint32_t left = 0, removed = 0;
    for (uint32_t i = 0; i < self->n; i++) {
        struct kept_checkpoint *kept = &self->list[i];
        if (needed[i] || kept->number > oldest) {
            self->list[left++] = *kept;
            continue;
        }
        stream_file_job(self->stream, DISK_JOB_REMOVE, DISK_CHECKPOINT, kept->number);
        free(kept->segments);
        removed++;
    }
    self->n = left;
    return removed;
}

void checkpoints_clean(struct checkpoints *of)
{
    struct kept_checkpoints *self = &of->kept;
    struct stream *stream = self->stream;
    bool *needed = need_alloc((self->n + 1) * sizeof *needed);
    uint64_t oldest, keep = of->low ? 1 : (uint64_t)of->state.config->checkpoint_keep;
    uint64_t from = mark_needed(self, keep, stream->journal, needed, &oldest);
    if (!oldest) { /* no checkpoint is usable: the state is in the journal alone */
        free(needed);
        return;
    }
    uint32_t checkpoints = remove_checkpoints(self, needed, oldest), segments = 0;
    uint64_t bytes = stream->segments.total_bytes;
    for (uint32_t i = 0; i < self->n_dead; i++) {
        const struct segment_use *use = segments_find(&stream->segments, self->dead[i]);
        if (!use || use->live || use->number >= from || is_named(self, use->number))
            continue;
        stream_remove_segment(stream, self->dead[i]);
        segments++;
    }
    free(needed);
    if (checkpoints || segments)
        log_line(LEVEL_INFO, "B0524", "files that are no longer needed are removed",
                 "checkpoints=%u segments=%u segment_bytes=%llu", checkpoints, segments,
                 (unsigned long long)(bytes - stream->segments.total_bytes));
}

/* ---- a checkpoint in progress ---- */

/* Returns how many bytes a checkpoint may be ahead of the disk writer: well below what makes the stream full. */
static inline uint64_t checkpoint_ahead(const struct stream *stream)
{
    uint64_t part = stream->backlog_most / 4, most = UINT64_C(32) << 20;
    return part < most ? part : most;
}

static void abandon(struct checkpoint *self);

#define BATCH 256u
/* Bytes of chunks after which a slice ends. */
#define SLICE_BYTES (256u << 10)
/* Most slots that a slice looks at: they may turn out to be free. */
#define SLICE_LOOKS 4096u
/* Tries to have an item's chunks read before it is written without moving them. */
#define NEAR_TRIES 64u

/* ---- one item ---- */

static void item_copy(void *ctx, const struct table *table, const struct contents *in, uint32_t slot)
{
    struct checkpoint *self = ctx;
    const struct item *item = &in->items[slot];
    uint32_t n = item->span.n;
    if (n == 0) {
        if (!in->marks->whole)
            RECORD(&self->out, ENTRY_FREE, table->id, entry_slot, .slot = slot);
        return;
    }
    if (in->groups.slots)
        journal_put_group(&self->out, table, in, slot);
    struct entry_item *entry = recorder_entry(&self->out, ENTRY_ITEM, table->id, sizeof *entry + n * sizeof(uint64_t));
    const struct lease *lease = lease_numbered(&self->state->samples->leases, item_lease(item));
    /* The leases of a table that was reset meanwhile may be gone. */
    bool hidden = item_is_hidden(item) && (lease || !item_lease(item));
    *entry = (struct entry_item){
        .insert = journal_insert_body(item, slot), .times_sampled = item->times_sampled, .hidden = hidden};
    if (hidden && lease) {
        entry->hidden |= HIDDEN_LEASED | (lease->answered ? HIDDEN_ANSWERED : 0u) | lease->ms << HIDDEN_BITS;
        entry->order[0] = lease->client;
        entry->order[1] = lease->id;
    }
    if (table->sampler_ops->order && !hidden)
        entry->order[0] = table->sampler_ops->order(in->sampler, slot);
    if (table->remover_ops->order && !hidden)
        entry->order[1] = table->remover_ops->order(in->remover, slot);
    uint64_t *places = (uint64_t *)(void *)(entry + 1);
    struct chunk *const *chunks = span_chunks(&item->span);
    for (uint32_t i = 0; i < n; i++)
        places[i] = chunk_place(self, chunks[i]);
}

/* ---- tables, slice by slice ---- */

/* Everything about an item is cold. Always inlined, because gcc drops calls of a function that only prefetches. */
static inline __attribute__((always_inline)) void prefetch_items(const struct contents *in, const uint32_t *slots,
                                                                 uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        __builtin_prefetch(span_chunks(&in->items[slots[i]].span)[0], 1);
    for (uint32_t i = 0; i < n; i++) {
        const struct chunk *chunk = span_chunks(&in->items[slots[i]].span)[0];
        if (!in->items[slots[i]].span.n || chunk->at) /* the slot has become free: its chunk is gone */
            continue;
        const char *line = (const char *)chunk + 64, *end = line + (chunk->bytes < 1024 ? chunk->bytes : 1024);
        for (; line < end; line += 64)
            __builtin_prefetch(line);
    }
}

/* Collects the slots to copy, from the word `next` on; a whole checkpoint skips free slots. *end: the word after the
 * last one visited. Returns their number. */
static uint32_t gather(const struct contents *in, uint32_t most, uint32_t *slots, uint32_t *end)
{
    const struct marks *marks = in->marks;
    uint32_t n = 0, looks = 0, word = marks->next, words = (marks->high + 63) / 64;
    for (; word < words && n + 64 <= most && looks < SLICE_LOOKS; word++) {
        looks += marks->whole ? 64 : 1;
        for (uint64_t due = marks_due(marks, word); due; due &= due - 1) {
            slots[n] = word * 64 + (uint32_t)__builtin_ctzll(due);
            n += !marks->whole || in->items[slots[n]].span.n;
        }
    }
    *end = word;
    return n;
}

static void table_through(struct checkpoint *self, struct copied_table *copied)
{
    copied->marks->copying = NULL;
    if (copied->then)
        chores_add(&self->state->loop->chores, copied->then);
    copied->then = NULL;
    self->table_at++;
}

/* Has the chunks of an item read that are to be moved and are not in memory. False: they are being read. An item that
 * would fill too much of memory is not moved. */
static bool item_is_near(struct checkpoint *self, const struct item *item)
{
    struct chunk *const *chunks = span_chunks(&item->span);
    bool near = true;
    if (item->span.n > 1 && span_bytes(&item->span) > spill_cap(self->checkpoints->spill) / 8)
        return true;
    for (uint32_t i = 0; i < item->span.n; i++) {
        const struct segment_use *use =
            chunk_is_here(chunks[i]) ? NULL : segments_find(&self->stream->segments, disk_number(chunks[i]->at));
        if (use && use->moving && spill_bring(self->checkpoints->spill, chunks[i]) == SPILL_COMING)
            near = false;
    }
    return near;
}

/* True if the checkpoint should wait for an item's chunks. Chunks that were read may be freed again before the rest
 * arrives, so it does not wait for ever. */
static bool is_waited_for(struct checkpoint *self, uint32_t slot)
{
    if (self->near_table != self->table_at || self->near_slot != slot)
        self->near_tries = 0;
    self->near_table = self->table_at;
    self->near_slot = slot;
    return ++self->near_tries <= NEAR_TRIES;
}

static void table_slice(struct checkpoint *self, struct copied_table *copied)
{
    struct contents *in = copied->in;
    struct marks *marks = copied->marks;
    uint32_t slots[BATCH] = {0}, end, most = self->checkpoints->slice;
    uint32_t n = gather(in, most < BATCH ? most : BATCH, slots, &end);
    uint64_t before = self->chunk_bytes;
    if (n > 1)
        prefetch_items(in, slots, n);
    for (uint32_t i = 0; i < n; i++) {
        if (self->chunk_bytes - before > SLICE_BYTES)
            return; /* the bits show which slots are done */
        if (self->checkpoints->spill && !item_is_near(self, &in->items[slots[i]]) && is_waited_for(self, slots[i])) {
            while (++i < n)
                item_is_near(self, &in->items[slots[i]]);
            self->reads = spill_reads(self->checkpoints->spill) + 1;
            self->waits = true;
            return;
        }
        marks->pending[slots[i] / 64] ^= UINT64_C(1) << (slots[i] % 64);
        item_copy(self, copied->table, in, slots[i]);
    }
    uint32_t passed = end - marks->next;
    memset(&marks->pending[marks->next], 0, passed * sizeof(uint64_t));
    self->slots_done += marks->whole ? (uint64_t)passed * 64 : n;
    marks->next = end;
    if (end >= (marks->high + 63) / 64)
        table_through(self, copied);
}

/* ---- the rest ---- */

/* Returns where the places of a selection's chunks are. */
static uint64_t *selection_places(const struct copied_selection *self)
{
    return (uint64_t *)(void *)((struct entry_selected *)(void *)(self->body + 1) + self->body->n);
}

static void selection_slice(struct checkpoint *self)
{
    const struct copied_selection *from = &self->selections[self->selection_at++];
    uint64_t *place = selection_places(from);
    for (uint32_t i = 0; i < from->body->n_chunks; i++) {
        struct chunk *chunk = (struct chunk *)(uintptr_t)place[i];
        place[i] = chunk_place(self, chunk);
        store_release(self->state->store, chunk);
    }
    memcpy(recorder_entry(&self->out, ENTRY_SELECTION, from->table, from->bytes), from->body, from->bytes);
}

/* Ends the file after everything was copied, and has it named. */
static void checkpoint_end(struct checkpoint *self)
{
    const struct segments *segments = &self->stream->segments;
    self->segments = need_alloc((segments->n + 1) * sizeof *self->segments);
    for (uint32_t i = 0; i < segments->n; i++) {
        /* Journal entries after the instant may name the old places of moved chunks, but none in a bad segment. */
        const struct segment_use *use = &segments->list[i];
        if (use->named || (use->moving && !stream_is_bad(self->stream, use->number) && self->journal))
            self->segments[self->n_segments++] = use->number;
    }
    recorder_flush(&self->out);
    size_t bytes = self->n_segments * sizeof *self->segments;
    struct entry_named *entry = recorder_entry(&self->out, ENTRY_PARTS, 0, sizeof *entry + bytes);
    entry->number = self->number;
    memcpy(entry + 1, self->segments, bytes);
    struct entry_end *end = recorder_entry(&self->out, ENTRY_END, 0, sizeof *end);
    *end = (struct entry_end){
        .items = self->items, .chunks = self->chunks, .bytes = self->bytes, .entries = self->out.entries};
    recorder_flush(&self->out);
    if (!self->journal)
        kept_checkpoints_note_dead(&self->checkpoints->kept);
    if (self->failed) {
        abandon(self);
        return;
    }
    struct disk_job *job = need_alloc(sizeof *job);
    *job = (struct disk_job){
        .what = DISK_JOB_FINISH, .kind = DISK_CHECKPOINT, .file = self->number, .failures = self->failures};
    self->ended = true;
    stream_give(self->stream, job);
}

static bool step(struct chore *chore)
{
    struct checkpoint *self = (struct checkpoint *)chore;
    if (self->failed) {
        abandon(self);
        return false;
    }
    if (self->stream->backlog > checkpoint_ahead(self->stream)) {
        self->waits = true;
        return false;
    }
    if (self->selection_at < self->n_selections)
        selection_slice(self);
    else if (self->table_at < self->n_tables)
        table_slice(self, &self->tables[self->table_at]);
    else {
        checkpoint_end(self);
        return false;
    }
    return !self->waits;
}

static bool keep_contents(void *ctx, struct contents *in, struct chore *then)
{
    struct checkpoint *self = ctx;
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (self->tables[i].marks == in->marks) {
            self->tables[i].in = in;
            self->tables[i].then = then;
            return true;
        }
    return false;
}

static const struct copier copier = {item_copy, keep_contents};

static void let_go(struct checkpoint *self)
{
    while (self->table_at < self->n_tables) {
        struct copied_table *copied = &self->tables[self->table_at];
        marks_abandon(copied->marks);
        table_through(self, copied);
    }
}

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
        struct segment_use *use = &stream->segments.list[i];
        if (use->number == stream->segment || use->live == 0 || use->live >= use->bytes / part || use->live > *budget ||
            use->moving)
            continue;
        use->moving = true;
        dead += use->bytes - use->live;
        *budget -= use->live;
    }
    return dead;
}

/* Chooses the segments whose chunks are moved, the sparsest first, as far as the disk's reserve allows. True: they are
 * worth a whole checkpoint. */
static bool choose_moving(struct checkpoint *self)
{
    const struct stream *stream = self->stream;
    for (uint32_t i = 0; i < stream->segments.n; i++) {
        struct segment_use *use = &stream->segments.list[i];
        use->named = 0;
        use->moving = stream_is_bad(stream, use->number); /* all its live chunks are written again */
    }
    if (stream->bad_last)
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
    for (uint32_t i = 0; self->base && i < self->stream->segments.n; i++)
        self->stream->segments.list[i].moving = false;
}

/* ---- tables ---- */

static void put_selector(struct checkpoint *self, const struct table *table, uint32_t which)
{
    const rp_selector_ops *ops = which ? table->remover_ops : table->sampler_ops;
    uint8_t state[SELECTOR_BYTES];
    uint32_t bytes = ops->save ? ops->save(which ? table->in.remover : table->in.sampler, state, sizeof state) : 0;
    if (bytes == 0 || bytes > sizeof state)
        return;
    struct entry_selector *entry = recorder_entry(&self->out, ENTRY_SELECTOR, table->id, sizeof *entry + bytes);
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
    marks->copier = &copier;
    marks->next = 0;
    marks->high = table->in.high;
}

static void put_tables(struct checkpoint *self)
{
    const struct durable_state *state = self->state;
    for (uint32_t i = 0; i < state->tables->n; i++) {
        struct table *table = &state->tables->list[i];
        if (self->base && table->in.marks->all_changed)
            recorder_entry(&self->out, ENTRY_RESET, table->id, 0); /* it was reset since the base */
        put_selector(self, table, 0);
        put_selector(self, table, 1);
        turn_marks(self, &self->tables[i], table);
        self->items += table->in.size;
    }
    self->n_tables = state->tables->n;
    for (uint32_t i = 0; i < state->layouts->count; i++)
        if (state->layouts->list[i])
            journal_put_layout(&self->out, state->layouts->list[i]);
}

/* ---- sessions, parameters, requests ---- */

static void put_reply(void *ctx, const struct kept_reply *reply)
{
    journal_put_reply(&((struct checkpoint *)ctx)->out, reply->client, reply->id, reply->frame, reply->size);
}

static void hold_selection(void *ctx, const struct kept_image *image)
{
    struct checkpoint *self = ctx;
    const struct picks *picks = &image->picks;
    bool grouped = image->info.holds && image->info.table->in.groups.slots;
    uint32_t n = picks->n, n_refs = image->info.holds ? picks->n_refs : 0;
    struct copied_selection copy = {.table = image->info.table->id};
    copy.bytes =
        sizeof *copy.body + n * sizeof(struct entry_selected) + (n_refs + (grouped ? n : 0)) * sizeof(uint64_t);
    copy.body = malloc(copy.bytes);
    if (!copy.body) {
        checkpoint_fail(self, "no memory for samples that may be asked for again");
        return;
    }
    *copy.body = (struct entry_selection){.client = image->info.client,
                                          .id = image->info.id,
                                          .want = image->info.want,
                                          .n = n,
                                          .n_chunks = n_refs,
                                          .flags = image->info.flags | (grouped ? PICK_GROUPED : 0u),
                                          .table_size = picks->table_size,
                                          .answered = image->info.answered};
    struct entry_selected *items = (struct entry_selected *)(void *)(copy.body + 1);
    for (uint32_t i = 0; i < n; i++)
        items[i] = (struct entry_selected){.key = picks->key[i],
                                           .age_ns = (int64_t)picks->age_ns[i] < self->state->loop->now_ns
                                                         ? (uint64_t)self->state->loop->now_ns - picks->age_ns[i]
                                                         : 0,
                                           .policy = picks->policy[i],
                                           .priority = picks->priority[i],
                                           .probability = picks->probability[i],
                                           .times_sampled = picks->times_sampled[i],
                                           .layout = picks->layout[i],
                                           .offset = picks->offset[i],
                                           .length = picks->length[i],
                                           .chunks = image->info.holds ? picks->chunks[i] : 0};
    uint64_t *place = selection_places(&copy);
    for (uint32_t i = 0; i < n_refs; i++) {
        place[i] = (uintptr_t)picks->refs[i];
        chunk_hold(picks->refs[i]);
    }
    if (grouped)
        memcpy(place + n_refs, picks->group, n * sizeof *picks->group);
    self->selections =
        need_room(self->selections, self->n_selections, &self->selections_capacity, sizeof *self->selections);
    self->selections[self->n_selections++] = copy;
}

static void put_rest(struct checkpoint *self)
{
    const struct durable_state *state = self->state;
    struct recorder *sink = &self->out;
    for (const struct session *session = LIST_FIRST(&state->sessions->list); session;
         session = LIST_NEXT(session, link))
        journal_put_session_all(sink, session);
    for (uint32_t i = 0; i < state->params->n_counters; i++)
        journal_put_counter(sink, &state->params->counters[i]);
    kept_replies_each(&state->peers->kept_replies, put_reply, self);
    journal_put_ordinal(sink, &state->tables->ordinals);
    for (uint32_t i = 0; i < state->params->n_slots; i++)
        journal_put_slot(sink, &state->params->slots[i]);
    for (struct param_stage *stage = state->params->stages; stage; stage = stage->next)
        journal_put_stage(sink, stage);
    /* That a lease was answered changes no item, so items that lie in the base may not say so. */
    const struct leases *leases = &state->samples->leases;
    for (uint32_t i = 0; i < leases->n; i++) {
        const struct lease *lease = leases->list[i];
        if (lease && lease->answered)
            RECORD(sink, ENTRY_ANSWERED, 0, entry_request, lease->client, lease->id);
    }
    samples_each(state->samples, hold_selection, self);
}

/* ---- begin and end ---- */

/* Writes START, CHECKPOINT, every TABLE. */
static void put_head(struct checkpoint *self)
{
    const struct durable_state *state = self->state;
    struct recorder *sink = &self->out;
    journal_put_start(sink, state, (struct entry_start){.previous = self->checkpoints->last.number});
    RECORD(sink, ENTRY_CHECKPOINT, 0, entry_checkpoint, self->number, self->base, self->journal);
    for (uint32_t i = 0; i < state->tables->n; i++)
        journal_put_table(sink, &state->tables->list[i]);
}

static struct checkpoint *checkpoint_begin(struct checkpoints *checkpoints, enum checkpoint_reason reason)
{
    const struct durable_state *state = &checkpoints->state;
    struct stream *stream = checkpoints->stream;
    struct checkpoint *self = need_alloc(sizeof *self);
    self->tables = need_alloc(state->tables->n * sizeof *self->tables);
    self->chore.step = step;
    self->checkpoints = checkpoints;
    self->state = state;
    self->stream = stream;
    self->number = checkpoints->next++;
    self->out = (struct recorder){.give = give_record};
    self->offset = FILE_HEAD_BYTES;
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

static void checkpoint_free(struct checkpoint *self)
{
    for (uint32_t i = 0; i < self->n_selections; i++) {
        const struct copied_selection *copy = &self->selections[i];
        for (uint32_t c = 0; i >= self->selection_at && c < copy->body->n_chunks; c++)
            store_release(self->state->store, (struct chunk *)(uintptr_t)selection_places(copy)[c]);
        free(copy->body);
    }
    recorder_fini(&self->out);
    free(self->segments);
    free(self->tables);
    free(self->selections);
    free(self);
}

#define PROGRESS_NS (2 * NS_PER_S)
/* Delay before the next checkpoint that no client asked for, after a failure. */
#define RETRY_NS (30 * NS_PER_S)
#define RETRY_LOW_NS NS_PER_S /* inserts wait for it */
/* How long the last checkpoint waits for a disk that makes no progress, and for one that cannot be written. */
#define EXIT_STILL_NS (10 * NS_PER_S)
#define EXIT_TROUBLE_NS NS_PER_S
#define SLICE_SLOTS 256u
/* Estimated bytes of a checkpoint: per item, and for the rest. */
#define ITEM_BYTES (sizeof(struct entry_head) + sizeof(struct entry_item) + sizeof(uint64_t))
#define REST_BYTES (64u << 10)
/* A checkpoint to free space must free at least this much. */
#define GAIN_LEAST (64u << 10)

/* By enum checkpoint_reason. */
static const char *const reasons[] = {"asked", "signal", "period", "journal", "space", "sync", "exit"};

static uint64_t bytes_of(const struct checkpoint *self)
{
    return self->offset + self->chunk_bytes;
}

static double rate_of(uint64_t bytes, int64_t took_ns)
{
    return took_ns > 0 ? (double)bytes * 1e3 / (double)took_ns : 0;
}

double checkpoint_progress(const struct checkpoints *self)
{
    const struct checkpoint *run = self->running;
    if (!run || run->ended || run->slots_all == 0)
        return run && run->ended ? 1 : 0;
    double share = (double)run->slots_done / (double)run->slots_all;
    return share < 1 ? share : 1;
}

/* ---- begin ---- */

rp_status checkpoint_start(struct checkpoints *self, enum checkpoint_reason reason, uint64_t *number, rp_error *err)
{
    if (!self)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "checkpoints are off: write folder, and checkpoint.keep above 0, in the broker's configuration");
    if (!self->wanted || reason == CHECKPOINT_ASKED)
        self->reason = reason;
    self->wanted = true;
    if (number)
        *number = self->next;
    return RP_OK;
}

static void begin(struct checkpoints *self)
{
    self->wanted = false;
    struct checkpoint *run = self->running = checkpoint_begin(self, self->reason);
    log_line(LEVEL_INFO, "B0520", "checkpoint begun", "checkpoint=%llu reason=%s base=%llu items=%llu took_us=%lld",
             (unsigned long long)run->number, reasons[run->reason], (unsigned long long)run->base,
             (unsigned long long)run->items,
             (long long)((clock_now(&self->state.loop->clock) - run->start_ns) / NS_PER_US));
    timer_set(&self->state.loop->timers, &self->progress, self->state.loop->now_ns + PROGRESS_NS);
    chores_add(&self->state.loop->chores, &run->chore);
}

/* True if a checkpoint would free enough: segments without live chunks, which only the journal and older checkpoints
 * need. */
static bool gains_space(const struct checkpoints *self)
{
    const struct stream *stream = self->stream;
    uint64_t gain = 0;
    for (uint32_t i = 0; i < stream->segments.n; i++)
        if (!stream->segments.list[i].live && stream->segments.list[i].number != stream->segment)
            gain += stream->segments.list[i].bytes;
    return gain > 2 * stream->space.state + GAIN_LEAST;
}

/* Asks for checkpoints that the disk needs. On a disk that is short of space only the newest checkpoint is kept, and
 * the next one is made as soon as it frees anything. */
static void mind_space(struct checkpoints *self)
{
    bool low = space_is_low(&self->stream->space);
    if (low != self->low) {
        self->low = low;
        log_line(low ? LEVEL_WARN : LEVEL_INFO, low ? "B0528" : "B0529",
                 low ? "the disk is short of space" : "the disk has space again", "free_bytes=%llu reserve_bytes=%llu",
                 (unsigned long long)self->stream->space.free, (unsigned long long)space_reserve(&self->stream->space));
        if (low)
            checkpoints_clean(self);
    }
    if (self->stream->bad_last && !self->wanted && self->state.loop->now_ns >= self->heal_ns)
        checkpoint_start(self, CHECKPOINT_SYNC, NULL, NULL);
    if (self->wanted || self->state.loop->now_ns < self->not_before_ns)
        return;
    if (low && gains_space(self))
        checkpoint_start(self, CHECKPOINT_SPACE, NULL, NULL);
    else if (self->stream->journal && self->stream->journal_bytes > space_limit(&self->stream->space))
        checkpoint_start(self, CHECKPOINT_JOURNAL, NULL, NULL);
}

bool checkpoints_run(struct checkpoints *self)
{
    struct checkpoint *run = self->running;
    bool can_go = run && (!run->reads || spill_reads(self->spill) >= run->reads || !self->spill->bring_bytes);
    if (run && run->waits && can_go && self->stream->backlog <= checkpoint_ahead(self->stream) / 2) {
        run->waits = false;
        run->reads = 0;
        chores_add(&self->state.loop->chores, &run->chore);
        return true;
    }
    if (run)
        return false;
    mind_space(self);
    if (!self->wanted)
        return false;
    begin(self);
    return true;
}

/* ---- end ---- */

static void abandon(struct checkpoint *run)
{
    struct checkpoints *self = run->checkpoints;
    let_go(run);
    /* Which slots have changed since the base is not known any more: the next checkpoint is whole. */
    self->base = 0;
    for (uint32_t i = 0; i < self->state.tables->n; i++)
        self->state.tables->list[i].in.marks->all_changed = true;
    self->stream->journal_bytes += run->replaces;
    stream_file_job(self->stream, DISK_JOB_ABANDON, DISK_CHECKPOINT, run->number);
    log_line(LEVEL_ERROR, "B0523", "checkpoint failed", "checkpoint=%llu why=%s", (unsigned long long)run->number,
             log_text(run->error));
    /* The next checkpoint that no client asked for comes later; after each failure, if it is to replace bad segments. */
    self->heal_pause_ns = self->heal_pause_ns ? 2 * self->heal_pause_ns : RETRY_LOW_NS;
    if (self->heal_pause_ns > RETRY_NS)
        self->heal_pause_ns = RETRY_NS;
    self->heal_ns = self->state.loop->now_ns + self->heal_pause_ns;
    self->not_before_ns = self->state.loop->now_ns + (self->low ? RETRY_LOW_NS : RETRY_NS);
    /* They were dead at its instant, but the journal since the checkpoint before may still need them. */
    self->kept.n_dead = 0;
    self->running = NULL;
    timer_clear(&self->state.loop->timers, &self->progress);
    self->listener.ended(self->listener.ctx, run->number, run->error);
    checkpoint_free(run);
}

static void finish(struct checkpoints *self, struct checkpoint *run)
{
    int64_t now = clock_now(&self->state.loop->clock), took = now - run->start_ns;
    /* This checkpoint becomes the base of the next incremental one. */
    self->links = run->base ? self->links + 1 : 0;
    self->chain_bytes = run->base ? self->chain_bytes + run->offset : 0;
    if (!run->base)
        self->base_bytes = run->offset;
    self->base = run->number;
    stream_healed(self->stream, run->failures);
    self->heal_pause_ns = 0;
    self->last.number = run->number;
    self->last.based_on = run->base;
    self->last.items = run->items;
    self->last.written_bytes = bytes_of(run);
    self->last.took_ns = (uint64_t)took;
    self->last_ns = now;
    self->running = NULL;
    timer_clear(&self->state.loop->timers, &self->progress);
    log_line(LEVEL_INFO, "B0522", "checkpoint is whole",
             "checkpoint=%llu base=%llu items=%llu bytes=%llu of_them_chunks=%llu took_ms=%.1f mb_per_s=%.0f",
             (unsigned long long)run->number, (unsigned long long)run->base, (unsigned long long)run->items,
             (unsigned long long)bytes_of(run), (unsigned long long)run->chunk_bytes, (double)took / 1e6,
             rate_of(bytes_of(run), took));
    struct kept_checkpoint *kept = kept_add(&self->kept, run->number);
    kept->base = run->base;
    kept->journal = run->journal;
    kept->segments = run->segments;
    kept->n_segments = run->n_segments;
    run->segments = NULL;
    checkpoints_clean(self);
    self->listener.ended(self->listener.ctx, run->number, NULL);
    checkpoint_free(run);
}

void checkpoint_finished(void *checkpoints, uint64_t number, const char *why)
{
    struct checkpoints *self = checkpoints;
    struct checkpoint *run = self->running;
    if (!run || run->number != number)
        return;
    if (!why) {
        finish(self, run);
        return;
    }
    checkpoint_fail(run, "it could not be written: %s", why);
    if (run->ended || run->waits)
        abandon(run); /* otherwise its next slice abandons it */
}

bool checkpoint_exit(struct checkpoints *self, bool (*turn)(void *ctx), void *ctx)
{
    const struct stream *stream = self->stream;
    uint64_t seen = 0, number = 0;
    if (self->state.config->checkpoint_every_ns > 0)
        checkpoint_start(self, CHECKPOINT_EXIT, &number, NULL);
    int64_t moved_ns = clock_ns(); /* the broker's clock may stand still */
    while (self->running || self->wanted) {
        bool patient = turn(ctx);
        uint64_t moved = stream->given - stream->backlog + (self->running ? self->running->out.entries : 0);
        int64_t now = clock_ns();
        if (moved != seen)
            moved_ns = now;
        seen = moved;
        if (now - moved_ns < (stream->trouble[0] ? EXIT_TROUBLE_NS : EXIT_STILL_NS) && patient)
            continue;
        log_line(LEVEL_ERROR, "B0526", "the last checkpoint is abandoned", "why=\"%s\"",
                 patient ? "the disk makes no progress" : "asked twice to end");
        self->wanted = false;
        return false;
    }
    if (self->last.number >= number)
        return true;
    log_line(LEVEL_ERROR, "B0526", "the last checkpoint is abandoned", "why=\"it could not be written\"");
    return false;
}

/* ---- what the stream asks ---- */

static enum checkpoint_activity ops_activity(const void *ctx)
{
    const struct checkpoints *self = ctx;
    const struct checkpoint *run = self->running;
    if (run ? run->reason == CHECKPOINT_SPACE : self->wanted && self->reason == CHECKPOINT_SPACE)
        return CHECKPOINT_MAKES_ROOM;
    return run ? CHECKPOINT_RUNS : CHECKPOINT_NONE;
}

static uint64_t ops_bytes(const void *ctx)
{
    const struct checkpoints *self = ctx;
    const struct tables *tables = self->state.tables;
    uint64_t items = 0;
    for (uint32_t i = 0; i < tables->n; i++)
        items += tables->list[i].in.size;
    uint64_t bytes = items * ITEM_BYTES + self->state.params->bytes + REST_BYTES;
    return bytes > self->base_bytes ? bytes : self->base_bytes;
}

static const struct checkpoint_ops ops = {ops_activity, ops_bytes, checkpoint_finished};

/* ---- life ---- */

static void period_timer(struct timer *timer)
{
    struct checkpoints *self = timer->ctx;
    struct loop *loop = self->state.loop;
    if (!self->running && loop->now_ns >= self->not_before_ns)
        checkpoint_start(self, CHECKPOINT_PERIOD, NULL, NULL);
    timer_set(&loop->timers, timer, loop->now_ns + self->state.config->checkpoint_every_ns);
}

static void progress_timer(struct timer *timer)
{
    struct checkpoints *self = timer->ctx;
    struct loop *loop = self->state.loop;
    const struct checkpoint *run = self->running;
    if (!run)
        return;
    log_line(LEVEL_INFO, "B0521", "checkpoint in progress", "checkpoint=%llu done=%.1f%% bytes=%llu mb_per_s=%.0f",
             (unsigned long long)run->number, 100 * checkpoint_progress(self), (unsigned long long)bytes_of(run),
             rate_of(bytes_of(run), loop->now_ns - run->start_ns));
    timer_set(&loop->timers, timer, loop->now_ns + PROGRESS_NS);
}

/* Finds the checkpoints in the folder, and the newest of them. */
static void read_kept(struct checkpoints *self)
{
    const char *load = self->state.config->checkpoint_load;
    bool fresh = load && strcmp(load, "none") == 0; /* the broker was told to load none of them */
    const struct folder *folder = &self->stream->folder;
    self->kept.stream = self->stream;
    for (uint32_t i = 0; i < folder->n_files; i++) {
        const struct folder_file *file = &folder->files[i];
        if (file->kind != DISK_CHECKPOINT || !file->mine)
            continue;
        struct kept_checkpoint *kept = kept_add(&self->kept, file->number);
        rp_error why = {0};
        bool damaged = read_one(folder, file->number, kept, &why) != RP_OK;
        kept->useless = damaged || (!fresh && file->number > self->stream->origin);
        if (damaged)
            log_line(LEVEL_WARN, "B0527", "a checkpoint is damaged", "checkpoint=%llu why=%s",
                     (unsigned long long)file->number, log_text(why.text));
        if (kept->useless)
            continue;
        self->last.number = kept->number;
        self->last.based_on = kept->base;
        self->last_ns = file->changed_ns - self->state.loop->wall_offset_ns;
    }
    kept_checkpoints_note_dead(&self->kept);
}

void checkpoints_init(struct checkpoints **out, const struct durable_state *state, struct stream *stream,
                      struct spill *spill, struct checkpoint_listener listener)
{
    const struct broker_config *config = state->config;
    if (!config_makes_checkpoints(config))
        return;
    struct checkpoints *self = *out = need_alloc(sizeof *self);
    self->state = *state;
    self->stream = stream;
    self->spill = spill;
    self->listener = listener;
    self->slice = SLICE_SLOTS;
    self->progress = (struct timer){.fire = progress_timer, .ctx = self};
    self->period = (struct timer){.fire = period_timer, .ctx = self};
    self->next = folder_next(&stream->folder, DISK_CHECKPOINT);
    replay__checkpoint_reply__init(&self->last);
    self->last.folder = stream->folder.path;
    stream->ops = &ops;
    stream->ops_ctx = self;
    read_kept(self);
    if (config->checkpoint_every_ns)
        timer_set(&state->loop->timers, &self->period, state->loop->now_ns + config->checkpoint_every_ns);
}

void checkpoints_fini(struct checkpoints **at)
{
    struct checkpoints *self = *at;
    if (!self)
        return;
    struct loop *loop = self->state.loop;
    struct checkpoint *run = self->running;
    self->running = NULL;
    if (run) {
        let_go(run);
        stream_file_job(self->stream, DISK_JOB_ABANDON, DISK_CHECKPOINT, run->number);
        chores_remove(&loop->chores, &run->chore);
        checkpoint_free(run);
    }
    self->stream->ops = NULL;
    timer_clear(&loop->timers, &self->period);
    timer_clear(&loop->timers, &self->progress);
    for (uint32_t i = 0; i < self->kept.n; i++)
        free(self->kept.list[i].segments);
    free(self->kept.list);
    free(self->kept.dead);
    free(self);
    *at = NULL;
}
