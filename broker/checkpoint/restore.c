#include "broker/checkpoint/restore.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/restore_parts.h"
#include "broker/journal/stream.h"
#include "broker/session/session.h"
#include "proto/base/error.h"

/* Reads checkpoint.load: *number is the checkpoint, 0 the newest; *salvage: a journal that is not whole is loaded, too.
 * False: start from nothing, or *status is an error. */
static bool what_to_load(const struct broker_config *config, uint64_t *number, bool *salvage, rp_status *status,
                         rp_error *err)
{
    const char *load = config->checkpoint_load && config->checkpoint_load[0] ? config->checkpoint_load : "newest";
    *number = 0;
    *status = RP_OK;
    if (strcmp(load, "none") == 0)
        return false;
    *salvage = strcmp(load, "salvage") == 0;
    if (*salvage || strcmp(load, "newest") == 0)
        return true;
    char *end;
    errno = 0;
    *number = strtoull(load, &end, 10);
    if (errno || *end || *number == 0 || load[0] < '0' || load[0] > '9') {
        *status = err_set(err, RP_INVALID_ARGUMENT,
                          "checkpoint.load is '%.64s': it must be newest, salvage, none, or the number of a checkpoint",
                          load);
        return false;
    }
    return true;
}

static void log_notes(const struct image *image)
{
    char quoted[640];
    for (uint32_t i = 0; i < image->n_notes; i++) {
        const struct image_note *note = &image->notes[i];
        log_line(note->damage ? LEVEL_ERROR : LEVEL_INFO, note->damage ? "B0512" : "B0511",
                 note->damage ? "damage was found in the files" : "reading the files", "text=%s",
                 log_quote(quoted, sizeof quoted, note->text));
    }
}

static rp_status want_chunks(struct restoring *self, rp_error *err)
{
    uint64_t n = restore_count_wanted(self);
    self->wanted = malloc((n + 1) * sizeof *self->wanted);
    if (!self->wanted)
        return err_set(err, RP_NO_MEMORY, "no memory for the places of %llu chunks", (unsigned long long)n);
    for (uint32_t i = 0; i < self->image.n_tables; i++)
        if (self->tables[i])
            restore_want_items(self, i);
    for (uint32_t s = 0; s < self->image.n_selections; s++) {
        struct image_selection *selection = self->image.selections[s];
        for (uint32_t i = 0; i < selection->n && restore_selection_holds(self, selection); i++) {
            struct image_item *item = &selection->items[i];
            uint64_t *places = item->n > 1 ? item->many : &item->one;
            for (uint32_t c = 0; c < item->n; c++)
                restore_want(self, &places[c]);
        }
    }
    return RP_OK;
}

static rp_status restore_all(struct restoring *self, rp_error *err)
{
    RP_TRY(restore_match(self, err));
    RP_TRY(want_chunks(self, err));
    RP_TRY(restore_chunks(self, err));
    for (uint32_t i = 0; i < self->image.n_tables; i++)
        if (self->tables[i])
            RP_TRY(restore_items(self, i, err));
    RP_TRY(restore_sessions(self, err));
    restore_selections(self);
    return restore_params(self, err);
}

/* Releases chunks that nothing took over: those of samples that were not restored, or all of them after an error. */
static void restoring_fini(struct restoring *self)
{
    for (uint64_t i = 0; i < self->next_wanted; i++) {
        struct chunk *chunk = (struct chunk *)(uintptr_t)(*(uint64_t *)(uintptr_t)self->wanted[i].value);
        if (chunk)
            store_release(self->state->store, chunk);
    }
    /* Each interned layout has a reference of the restore's. */
    for (uint32_t t = 0; t < self->image.n_tables; t++)
        for (uint32_t i = 0; i < self->image.tables[t].high; i++)
            restore_layout_release(self, self->image.tables[t].items[i].layout);
    for (uint32_t s = 0; s < self->image.n_selections; s++)
        for (uint32_t i = 0; i < self->image.selections[s]->n; i++)
            restore_layout_release(self, self->image.selections[s]->items[i].layout);
    free(self->wanted);
    free(self->tables);
    image_fini(&self->image);
}

static void log_restored(const struct restoring *self, int64_t start_ns)
{
    int64_t took = clock_now(&self->state->loop->clock) - start_ns;
    log_line(LEVEL_INFO, "B0510", "restored",
             "checkpoint=%llu items=%llu chunks=%llu bytes=%llu sessions=%llu journal_entries=%llu "
             "items_left_out=%llu took_ms=%.1f",
             (unsigned long long)self->image.checkpoint, (unsigned long long)self->items,
             (unsigned long long)self->chunks, (unsigned long long)self->bytes, (unsigned long long)self->sessions,
             (unsigned long long)self->image.journal_entries, (unsigned long long)self->left_out,
             (double)took / (double)NS_PER_MS);
}

rp_status restore(const struct durable_state *state, struct stream *stream, rp_error *err)
{
    uint64_t number;
    rp_status status;
    bool salvage = false;
    stream->start.next = folder_next(&stream->folder, DISK_CHECKPOINT);
    if (!what_to_load(state->config, &number, &salvage, &status, err)) {
        stream->start.flags = START_FRESH;
        return status;
    }
    int64_t start_ns = clock_now(&state->loop->clock);
    struct restoring self = {.state = state, .stream = stream, .folder = &stream->folder};
    image_init(&self.image);
    status = image_load(&self.image, self.folder, number, number != 0, true, err);
    log_notes(&self.image);
    if (status == RP_NOT_FOUND && number == 0) {
        image_fini(&self.image);
        return RP_OK;
    }
    if (status == RP_OK && !self.image.whole && !salvage)
        status = err_set(err, RP_DATA_LOSS,
                         "its journal is damaged, and what follows the damage, at least %llu inserts, cannot be "
                         "applied (the log says where). Put back the files from a copy, or start with "
                         "checkpoint.load: salvage to go on without what is lost",
                         (unsigned long long)self.image.lost_inserts);
    self.newest = number == 0 && self.image.end != 0 && self.image.whole;
    if (status == RP_OK)
        image_rebase(&self.image, state->loop->now_ns + state->loop->wall_offset_ns, state->loop->now_ns);
    bool journal = stream->journal;
    stream_record(stream, false); /* what is restored is on disk already */
    if (status == RP_OK) {
        self.tables = calloc(self.image.n_tables + 1, sizeof(*self.tables));
        status = self.tables ? restore_all(&self, err) : err_set(err, RP_NO_MEMORY, "no memory to restore");
    }
    stream_record(stream, journal);
    if (status == RP_OK) {
        /* With a checkpoint that was made without a journal and chosen by its number, no journal was applied. */
        stream->start.after = self.image.end || !number ? self.image.end : disk_at(1, 0);
        stream->start.loaded = stream->origin = self.image.checkpoint;
        /* Nothing of a damaged journal could be applied: later starts pass over it, too. */
        if (!self.image.checkpoint && !self.image.end)
            stream->start.flags = START_FRESH;
        stream->journal_bytes = self.image.journal_bytes;
        stream->first_own = self.image.journal_entries ? folder_next(&stream->folder, DISK_SEGMENT) : 0;
        log_restored(&self, start_ns);
    } else {
        err_prefix(err, "the state in '%s' cannot be restored", self.folder->path);
    }
    restoring_fini(&self);
    return status;
}

void restore_finish(const struct tables *tables)
{
    for (uint32_t i = 0; i < tables->n; i++) {
        struct table *table = &tables->list[i];
        uint32_t before = table->in.size;
        /* The journal may end between the last sample of an item and its removal. */
        uint32_t most = (uint32_t)table->config->max_times_sampled;
        for (uint32_t slot = 0; most && slot < table->in.high; slot++)
            if (table->in.items[slot].span.n && table->in.items[slot].times_sampled >= most)
                table_remove(table, slot);
        table_remove_too_much(table);
        if (before != table->in.size)
            log_line(LEVEL_WARN, "B0519", "items were removed to fit the configuration", "table=%s removed=%u left=%u",
                     table->name, before - table->in.size, table->in.size);
    }
}
