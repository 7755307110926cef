/* Copies marked items to the checkpoint: slice by slice, or right before an item changes (table/marks.h).
 *
 * A checkpoint goes over the words of a table's marks from front to back. An incremental checkpoint copies the slots
 * whose bits are set in `pending`; a bit is cleared when its slot was copied ahead of its turn. A whole checkpoint
 * copies every slot below `high`; the bits that are set are those copied ahead. So neither kind costs anything at the
 * instant, however large the table. Words that were passed are zero again. */
#include "broker/checkpoint/checkpoint_run.h"

#include <stdlib.h>
#include <string.h>

#include "broker/spill/spill.h"
#include "proto/base/error.h"

#define BATCH 256u
/* Bytes of chunks after which a slice ends. */
#define SLICE_BYTES (256u << 10)
/* Most slots that a slice looks at: they may turn out to be free. */
#define SLICE_LOOKS 4096u
/* Tries to have an item's chunks read before it is written without moving them. */
#define NEAR_TRIES 64u
/* Values larger than this are copied by the disk writer. */
#define LARGE_BYTES (64u << 10)

/* ---- one item ---- */

static void item_copy(void *ctx, const struct table *table, const struct contents *in, uint32_t slot)
{
    struct checkpoint *self = ctx;
    const struct item *item = &in->items[slot];
    uint32_t n = item->span.n;
    if (n == 0) {
        if (!in->marks->whole) {
            struct entry_slot *entry = checkpoint_file_entry(&self->file, ENTRY_FREE, table->id, sizeof *entry);
            *entry = (struct entry_slot){.slot = slot};
        }
        return;
    }
    struct entry_item *entry =
        checkpoint_file_entry(&self->file, ENTRY_ITEM, table->id, sizeof *entry + n * sizeof(uint64_t));
    *entry = (struct entry_item){.insert = journal_insert_body(item, slot), .times_sampled = item->times_sampled};
    if (table->sampler_ops->order)
        entry->order[0] = table->sampler_ops->order(in->sampler, slot);
    if (table->remover_ops->order)
        entry->order[1] = table->remover_ops->order(in->remover, slot);
    uint64_t *places = (uint64_t *)(void *)(entry + 1);
    struct chunk *const *chunks = span_chunks(&item->span);
    for (uint32_t i = 0; i < n; i++)
        places[i] = checkpoint_file_place(&self->file, chunks[i]);
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
        const struct named_segment *segment =
            chunk_is_here(chunks[i]) ? NULL : checkpoint_file_segment(&self->file, disk_number(chunks[i]->at));
        if (segment && segment->moving && spill_bring(self->checkpoints->spill, chunks[i]) == SPILL_COMING)
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
    uint64_t before = self->file.chunk_bytes;
    if (n > 1)
        prefetch_items(in, slots, n);
    for (uint32_t i = 0; i < n; i++) {
        if (self->file.chunk_bytes - before > SLICE_BYTES)
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

static void slot_slice(struct checkpoint *self)
{
    struct copied_slot *slot = &self->slots[self->slot_at++];
    size_t name = strlen(slot->name), bytes = zmq_msg_size(&slot->value);
    struct {
        struct entry_value value;
        char name[256];
    } front = {
        .value = {
            .version = slot->version, .put_ns = slot->put_ns, .name_bytes = (uint32_t)name, .value_bytes = bytes}};
    memcpy(front.name, slot->name, name);
    if (bytes > LARGE_BYTES) {
        checkpoint_file_large(&self->file, ENTRY_SLOT, &front, sizeof front.value + name, &slot->value);
        return;
    }
    uint8_t *entry = checkpoint_file_entry(&self->file, ENTRY_SLOT, 0, sizeof front.value + name + bytes);
    memcpy(entry, &front, sizeof front.value + name);
    memcpy(entry + sizeof front.value + name, zmq_msg_data(&slot->value), bytes);
}

static void selection_slice(struct checkpoint *self)
{
    struct copied_selection *from = &self->selections[self->selection_at++];
    const struct entry_selection *head = &from->head;
    size_t items = head->n * sizeof(struct entry_selected), places = head->n_chunks * sizeof(uint64_t);
    struct entry_selection *entry =
        checkpoint_file_entry(&self->file, ENTRY_SELECTION, from->table, sizeof *entry + items + places);
    *entry = *head;
    memcpy(entry + 1, from->items, items);
    uint64_t *place = (uint64_t *)(void *)((uint8_t *)(entry + 1) + items);
    uint32_t n = head->n_chunks;
    for (uint32_t i = 0; i < n; i++) {
        place[i] = checkpoint_file_place(&self->file, from->refs[i]);
        store_release(self->state->store, from->refs[i]);
    }
    from->head.n_chunks = 0;
}

/* Ends the file after everything was copied, and has it named. */
static void checkpoint_end(struct checkpoint *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->file.n_segments; i++)
        n += named_is_needed(&self->file.segments[i], self->journal);
    checkpoint_file_flush(&self->file);
    struct entry_named *entry =
        checkpoint_file_entry(&self->file, ENTRY_PARTS, 0, sizeof *entry + n * sizeof(struct entry_part));
    entry->number = self->number;
    struct entry_part *part = (struct entry_part *)(void *)(entry + 1);
    for (uint32_t i = 0; i < self->file.n_segments; i++)
        if (named_is_needed(&self->file.segments[i], self->journal))
            *part++ = (struct entry_part){
                .segment = self->file.segments[i].number,
                .chunks = self->file.segments[i].chunks,
                .bytes = self->file.segments[i].bytes,
            };
    struct entry_end *end = checkpoint_file_entry(&self->file, ENTRY_END, 0, sizeof *end);
    *end = (struct entry_end){
        .items = self->items, .chunks = self->chunks, .bytes = self->bytes, .entries = self->file.entries};
    checkpoint_file_flush(&self->file);
    if (!self->journal)
        kept_checkpoints_note_dead(&self->checkpoints->kept);
    struct disk_job *job = self->file.failed ? NULL : calloc(1, sizeof *job);
    if (!job) {
        checkpoint_file_fail(&self->file, "no memory for its end");
        checkpoint_abandon(self);
        return;
    }
    *job = (struct disk_job){
        .what = DISK_JOB_FINISH, .kind = DISK_CHECKPOINT, .file = self->number, .failures = self->failures};
    self->ended = true;
    stream_give(self->stream, job);
}

bool checkpoint_step(struct chore *chore)
{
    struct checkpoint *self = (struct checkpoint *)chore;
    if (self->file.failed) {
        checkpoint_abandon(self);
        return false;
    }
    if (self->stream->backlog > checkpoint_ahead(self->stream)) {
        self->waits = true;
        return false;
    }
    if (self->slot_at < self->n_slots)
        slot_slice(self);
    else if (self->selection_at < self->n_selections)
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

const struct copier checkpoint_copier = {item_copy, keep_contents};

void checkpoint_let_go(struct checkpoint *self)
{
    while (self->table_at < self->n_tables) {
        struct copied_table *copied = &self->tables[self->table_at];
        marks_abandon(copied->marks);
        table_through(self, copied);
    }
}
