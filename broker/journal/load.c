/* Reads the files of a broker in their order: a chain of checkpoints, then the journal after it.
 *
 * The journal is one stream of entries over all segments. A process that loads it notes the place up to which it could apply it
 * (START.after) in its own first segment. Entries between that place and that segment, a torn end or what follows a damage, are
 * not part of the state. So every later load gives the same state, whatever happens to the process. */
#include "broker/journal/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/journal/reader.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* How far records were applied. */
struct applied {
    uint64_t entries; /* sum over all records */
    uint64_t stop;    /* place after the last entry that was applied */
};

/* Most checkpoints in a chain: more than a broker ever makes. */
#define CHAIN_MOST 4096u
/* Bytes that are read for a file's first record. */
#define PEEK_BYTES (64u << 10)

/* Reads the next entry, which must have this type. */
static rp_status peek_entry(struct entry_reader *entries, uint16_t type, struct entry_view *entry, rp_error *err)
{
    if (!entry_next(entries, entry) || entry->type != type)
        return err_set(err, RP_BAD_MESSAGE, "it does not begin with a %s entry", entry_name(type));
    return entry_check(entry, err);
}

/* Reads what a file says at its start. */
static rp_status peek(const struct folder *folder, enum disk_kind kind, uint64_t number, struct checkpoint_about *out,
                      rp_error *err)
{
    *out = (struct checkpoint_about){0};
    struct reader reader;
    struct record_view record;
    struct entry_view entry;
    RP_TRY(reader_open(&reader, folder, kind, number, err));
    reader.piece = PEEK_BYTES;
    rp_status status = reader_next(&reader, &record, err);
    if (status == RP_END_OF_STREAM)
        status = err_set(err, RP_BAD_MESSAGE, "%s is empty", reader.name);
    struct entry_reader entries = status == RP_OK ? entry_reader(record) : (struct entry_reader){0};
    bool whole = status == RP_OK;
    if (status == RP_OK)
        status = peek_entry(&entries, ENTRY_START, &entry, err);
    if (status == RP_OK)
        memcpy(&out->start, entry.body, sizeof out->start);
    if (status == RP_OK && kind == DISK_CHECKPOINT)
        status = peek_entry(&entries, ENTRY_CHECKPOINT, &entry, err);
    if (status == RP_OK && kind == DISK_CHECKPOINT) {
        memcpy(&out->head, entry.body, sizeof out->head);
        if (out->head.number != number)
            status = err_set(err, RP_BAD_MESSAGE, "it says that it is checkpoint %llu",
                             (unsigned long long)out->head.number);
    }
    if (whole && status != RP_OK)
        err_prefix(err, "%s", reader.name);
    reader_close(&reader);
    return status;
}

rp_status checkpoint_peek(const struct folder *folder, uint64_t number, struct checkpoint_about *out, rp_error *err)
{
    return peek(folder, DISK_CHECKPOINT, number, out, err);
}

static bool segment_start(const struct folder *folder, uint64_t number, struct entry_start *out)
{
    struct checkpoint_about about;
    bool ok = peek(folder, DISK_SEGMENT, number, &about, NULL) == RP_OK;
    *out = about.start;
    return ok;
}

RP_PRINTF(3, 4) static void note(struct load *self, bool damage, const char *format, ...)
{
    self->notes = need_resize(self->notes, self->n_notes + 1, sizeof *self->notes);
    struct load_note *out = &self->notes[self->n_notes++];
    out->damage = damage;
    va_list args;
    va_start(args, format);
    vsnprintf(out->text, sizeof out->text, format, args);
    va_end(args);
}

static rp_status apply_record(struct load *self, enum load_phase phase, struct record_view record, uint64_t limit,
                              struct applied *out, rp_error *err)
{
    struct entry_reader reader = entry_reader(record);
    for (struct entry_view entry; entry_next(&reader, &entry) && entry.at < limit; out->entries++) {
        out->stop = entry.at;
        RP_TRY(entry_check(&entry, err));
        if (entry.type == ENTRY_START)
            memcpy(&self->start, entry.body, sizeof self->start);
        rp_status status = self->apply(self->ctx, phase, &entry, err);
        if (status != RP_OK) {
            err_prefix(err, "%s entry at offset %llu", entry_name(entry.type),
                       (unsigned long long)disk_offset(entry.at));
            return status;
        }
    }
    out->stop = reader.at;
    if (reader.bad)
        return err_set(err, RP_BAD_MESSAGE, "the entry at offset %llu runs out of its record",
                       (unsigned long long)disk_offset(reader.at));
    return RP_OK;
}

/* ---- checkpoints */

/* True if the record's last entry is an END, which is copied to out. */
static bool record_end(struct record_view record, struct entry_end *out)
{
    size_t whole = sizeof(struct entry_head) + sizeof *out;
    if (record.size < sizeof(struct record_head) + whole)
        return false;
    struct entry_head head;
    memcpy(&head, record.data + record.size - whole, sizeof head);
    memcpy(out, record.data + record.size - sizeof *out, sizeof *out);
    return head.type == ENTRY_END && head.size == whole;
}

/* Applies one file of the chain. */
static rp_status load_checkpoint(struct load *self, const struct folder *folder, uint64_t number, enum load_phase phase,
                                 rp_error *err)
{
    struct reader reader;
    RP_TRY(reader_open(&reader, folder, DISK_CHECKPOINT, number, err));
    struct record_view record;
    struct applied applied = {0};
    struct entry_end end = {0};
    bool ended = false;
    rp_status status;
    while ((status = reader_next(&reader, &record, err)) == RP_OK) {
        status = apply_record(self, phase, record, UINT64_MAX, &applied, err);
        if (status != RP_OK) {
            err_prefix(err, "%s", reader.name);
            break;
        }
        ended = record_end(record, &end);
    }
    if (status == RP_END_OF_STREAM)
        status = ended && end.entries == applied.entries
                     ? RP_OK
                     : err_set(err, RP_BAD_MESSAGE, "%s is cut short: it has %llu entries and %s", reader.name,
                               (unsigned long long)applied.entries, ended ? "should have more" : "no END");
    reader_close(&reader);
    return status;
}

/* Applies a checkpoint after those that it is based on, of which only the items matter. */
static rp_status load_chain(struct load *self, const struct folder *folder, uint64_t number, enum load_phase phase,
                            uint32_t depth, rp_error *err)
{
    struct checkpoint_about about;
    if (depth == CHAIN_MOST)
        return err_set(err, RP_BAD_MESSAGE, "the chain of base checkpoints is too long");
    RP_TRY(checkpoint_peek(folder, number, &about, err));
    if (about.head.base != 0) {
        rp_status status = load_chain(self, folder, about.head.base, LOAD_BASE, depth + 1, err);
        if (status != RP_OK) {
            err_prefix(err, "checkpoint %llu is based on %llu", (unsigned long long)number,
                       (unsigned long long)about.head.base);
            return status;
        }
    }
    self->checkpoint = number;
    self->end = about.head.journal;
    return load_checkpoint(self, folder, number, phase, err);
}

/* True if a later process started from an older checkpoint or from nothing, so that this checkpoint is not part of the
 * state. */
static bool is_abandoned(const struct folder *folder, uint64_t number, uint64_t journal)
{
    for (uint32_t i = 0; i < folder->n_files; i++) {
        const struct folder_file *file = &folder->files[i];
        struct entry_start start;
        if (file->kind == DISK_SEGMENT && disk_at(file->number, 0) > journal &&
            segment_start(folder, file->number, &start) && !(start.flags & START_CHUNKS_ONLY) &&
            start.loaded < number && number < start.next)
            return true;
    }
    return false;
}

/* Loads the newest checkpoint that can be loaded. RP_NOT_FOUND: none of the *tried ones can. */
static rp_status load_newest(struct load *self, const struct folder *folder, uint32_t *tried, rp_error *err)
{
    for (uint32_t i = folder->n_files; i-- > 0;) {
        const struct folder_file *file = &folder->files[i];
        if (file->kind != DISK_CHECKPOINT)
            continue;
        rp_error why = {0};
        struct checkpoint_about about;
        bool known = checkpoint_peek(folder, file->number, &about, &why) == RP_OK;
        if (known && is_abandoned(folder, file->number, about.head.journal)) {
            note(self, false, "checkpoint %llu is skipped: the broker was started from an older state after it",
                 (unsigned long long)file->number);
            continue;
        }
        rp_status status = load_chain(self, folder, file->number, LOAD_CHECKPOINT, 0, &why);
        if (status == RP_OK)
            return RP_OK;
        self->clear(self->ctx);
        self->checkpoint = self->end = 0;
        if (status == RP_NO_MEMORY)
            return err_set(err, status, "%s", why.text);
        ++*tried;
        note(self, true, "checkpoint %llu cannot be used, the one before it is tried: %s",
             (unsigned long long)file->number, why.text);
    }
    return err_set(err, RP_NOT_FOUND, "folder '%s' has no checkpoint that can be loaded", folder->path);
}

struct segment {
    uint64_t number, bytes;
    bool readable; /* its first record is whole and begins with a START */
    bool chunks;   /* its process had no journal: it has chunks alone */
    struct entry_start start;
    uint64_t limit; /* entries from this place on are not part of the state */
};

struct journal {
    struct load *load;
    const struct folder *folder;
    struct segment *segments;
    uint32_t n;
    bool cut;
    bool anchored; /* it continues a checkpoint, or begins with the first segment, so its entries can be applied */
    bool over;     /* nothing more of it can be applied */
};

/* Lists the segments from `from` on, with their limits, which follow from the STARTs of later segments. */
static void journal_list(struct journal *self, uint64_t from)
{
    self->segments = need_alloc((self->folder->n_files + 1) * sizeof *self->segments);
    for (uint32_t i = 0; i < self->folder->n_files; i++) {
        const struct folder_file *file = &self->folder->files[i];
        if (file->kind != DISK_SEGMENT || file->number < from)
            continue;
        struct segment *segment = &self->segments[self->n++];
        *segment = (struct segment){.number = file->number, .bytes = file->bytes};
        segment->readable = segment_start(self->folder, segment->number, &segment->start);
    }
    uint64_t limit = UINT64_MAX;
    for (uint32_t i = self->n; i-- > 0;) {
        struct segment *segment = &self->segments[i];
        const struct segment *next = i + 1 < self->n ? segment + 1 : NULL;
        segment->limit = limit;
        segment->chunks = segment->readable ? (segment->start.flags & START_CHUNKS_ONLY) != 0
                                            : next && next->chunks && next->start.next == 0;
        if (segment->readable && !segment->chunks && segment->start.after != 0 && segment->start.after < limit)
            limit = segment->start.after;
    }
}

/* False if nothing in the segment is part of the state. */
static bool counts(const struct segment *segment)
{
    return segment->limit > disk_at(segment->number, 0) && !segment->chunks;
}

/* True if the segment was begun, and nothing sound was written into it. */
static bool is_empty(const struct journal *self, const struct segment *segment)
{
    struct reader reader;
    if (segment->readable || segment->bytes < FILE_HEAD_BYTES)
        return !segment->readable;
    bool empty =
        reader_open(&reader, self->folder, DISK_SEGMENT, segment->number, NULL) == RP_OK && !reader_resync(&reader);
    reader_close(&reader);
    return empty;
}

/* Counts the inserts in sound records of a segment, from the reader's place on. */
static uint64_t count_inserts(struct reader *reader, uint64_t limit)
{
    uint64_t n = 0;
    struct record_view record;
    while (reader_resync(reader))
        while (reader_next(reader, &record, NULL) == RP_OK) {
            struct entry_reader entries = entry_reader(record);
            for (struct entry_view entry; entry_next(&entries, &entry) && entry.at < limit;)
                n += entry.type == ENTRY_INSERT;
        }
    return n;
}

/* Ends the journal, and notes what is lost: the rest of segment `index`, if the reader is in it, and the segments after it. */
static void note_lost(struct journal *self, uint32_t index, struct reader *in)
{
    struct load *load = self->load;
    uint64_t bytes = in ? in->bytes - in->offset : 0, inserts = in ? count_inserts(in, self->segments[index].limit) : 0;
    for (uint32_t i = in ? index + 1 : index; i < self->n; i++) {
        struct reader reader;
        if (!counts(&self->segments[i]))
            continue;
        bytes += self->segments[i].bytes;
        if (reader_open(&reader, self->folder, DISK_SEGMENT, self->segments[i].number, NULL) == RP_OK)
            inserts += count_inserts(&reader, self->segments[i].limit);
        reader_close(&reader);
    }
    self->over = true;
    load->whole = false;
    load->lost_inserts = inserts;
    note(load, true,
         "%llu bytes of the journal are left out, because they cannot be applied without what is missing. Sound "
         "records in them have %llu inserts of items",
         (unsigned long long)bytes, (unsigned long long)inserts);
}

static void journal_cut(const struct journal *self, const struct reader *reader)
{
    int file = openat(self->folder->descriptor, reader->name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 || ftruncate(file, (off_t)reader->offset) != 0)
        note(self->load, false, "%s cannot be cut: %s", reader->name, strerror(errno));
    if (file >= 0) {
        fsync(file);
        close(file);
    }
}

/* The journal ends where the reader stands: there is no whole record. With nothing sound behind it, the broker ended while
 * it wrote that record. */
static void journal_broken(struct journal *self, uint32_t index, struct reader *reader, const char *why)
{
    struct load *load = self->load;
    uint64_t left = reader->bytes - reader->offset;
    bool last = true;
    self->over = true;
    for (uint32_t i = index + 1; i < self->n; i++)
        last &= !counts(&self->segments[i]) || is_empty(self, &self->segments[i]);
    uint64_t bad = reader->offset;
    bool more = reader_resync(reader);
    uint64_t sound = reader->offset;
    reader_seek(reader, bad);
    if (last && !more) {
        note(load, false, "torn end of the journal: the last %llu bytes of %s are %s (%s)", (unsigned long long)left,
             reader->name, self->cut ? "cut off" : "passed over", why);
        if (self->cut)
            journal_cut(self, reader);
        return;
    }
    if (more)
        note(load, true, "%s. It is damaged in the middle: records that were written later begin at offset %llu", why,
             (unsigned long long)sound);
    else
        note(load, true, "%s. The journal is applied up to there", why);
    note_lost(self, index, reader);
}

/* An unreadable file may be sound. It is neither cut off nor skipped, because that would lose it for good. */
static rp_status journal_unread(rp_status status, const rp_error *why, rp_error *err)
{
    return err_set(err, status, "%s%s", why->text,
                   status == RP_IO ? ". Repair it, or move the file elsewhere to load what comes before it" : "");
}

/* Counts the entries that change the state: not those that a segment begins with, nor chunks. */
static uint64_t record_news(struct record_view record, uint64_t limit)
{
    struct entry_reader reader = entry_reader(record);
    uint64_t news = 0;
    for (struct entry_view entry; entry_next(&reader, &entry) && entry.at < limit;)
        news += entry.type != ENTRY_START && entry.type != ENTRY_TABLE && entry.type != ENTRY_ORDINAL &&
                entry.type != ENTRY_CHUNK;
    return news;
}

/* Applies one record of a segment. */
static rp_status journal_record(struct journal *self, uint32_t index, struct reader *reader, struct record_view record,
                                rp_error *err)
{
    struct load *load = self->load;
    uint64_t limit = self->segments[index].limit, news = record_news(record, limit);
    struct applied applied = {0};
    if (news && !self->anchored)
        return err_set(err, RP_DATA_LOSS,
                       "the journal in folder '%s' begins in the middle (%s): there is no checkpoint that it continues "
                       "from",
                       self->folder->path, reader->name);
    rp_error why = {0};
    rp_status status = apply_record(load, LOAD_JOURNAL, record, limit, &applied, &why);
    load->journal_entries += news;
    load->journal_bytes += record.size;
    if (applied.stop > load->end)
        load->end = applied.stop;
    if (status == RP_NO_MEMORY)
        return err_set(err, status, "%s", why.text);
    if (status != RP_OK) {
        note(load, true, "%s: %s. The journal is applied up to there", reader->name, why.text);
        note_lost(self, index, reader);
    }
    return RP_OK;
}

/* Applies one segment from offset `from` on; the process that wrote what is before that also wrote the checkpoint, and named its
 * tables there. */
static rp_status journal_records(struct journal *self, uint32_t index, struct reader *reader, uint64_t from,
                                 rp_error *err)
{
    uint64_t limit = self->segments[index].limit;
    struct record_view record;
    if (from)
        reader_seek(reader, from);
    while (!self->over && disk_at(reader->number, reader->offset) < limit) {
        rp_error why = {0};
        rp_status status = reader_next(reader, &record, &why);
        if (status == RP_END_OF_STREAM)
            return RP_OK;
        if (status == RP_NO_MEMORY || status == RP_IO)
            return journal_unread(status, &why, err);
        if (status == RP_OK)
            RP_TRY(journal_record(self, index, reader, record, err));
        else
            journal_broken(self, index, reader, why.text);
    }
    return RP_OK;
}

/* True if the segment continues what was applied. */
static bool journal_follows(const struct journal *self, uint32_t index)
{
    const struct segment *segment = &self->segments[index];
    const struct load *load = self->load;
    if (index == 0 || load->end == 0)
        return true;
    if (segment->start.after != 0)
        return segment->start.after == load->end;
    const struct segment *before = &self->segments[index - 1];
    return segment->number == before->number + 1 || segment->start.previous == before->number;
}

static rp_status journal_segment(struct journal *self, uint32_t index, uint64_t from, rp_error *err)
{
    struct segment *segment = &self->segments[index];
    if (!counts(segment))
        return RP_OK;
    if (segment->readable && !journal_follows(self, index)) {
        note(self->load, true, "segment %llu does not continue segment %llu: what lies between is missing",
             (unsigned long long)segment->number, (unsigned long long)self->segments[index - 1].number);
        note_lost(self, index, NULL);
        return RP_OK;
    }
    struct reader reader;
    rp_error why = {0};
    rp_status status = reader_open(&reader, self->folder, DISK_SEGMENT, segment->number, &why);
    if (status == RP_NO_MEMORY || status == RP_IO)
        return journal_unread(status, &why, err);
    if (status != RP_OK && segment->bytes < FILE_HEAD_BYTES) {
        note(self->load, false, "segment %llu was just created when the broker ended, and is empty",
             (unsigned long long)segment->number);
        return RP_OK;
    }
    if (status != RP_OK) {
        note(self->load, true, "%s", why.text);
        note_lost(self, index + 1, NULL);
        return RP_OK;
    }
    status = journal_records(self, index, &reader, from, err);
    reader_close(&reader);
    return status;
}

/* Returns the first segment after a checkpoint that was made without a journal: one of its own process, or of a later
 * one. */
static uint32_t journal_first(const struct journal *self, const struct entry_start *checkpoint)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->segments[i].readable && self->segments[i].start.instance == checkpoint->instance)
            return i;
    for (uint32_t i = 0; i < self->n; i++)
        if (self->segments[i].readable && self->segments[i].start.wall_ns > checkpoint->wall_ns)
            return i;
    return self->n;
}

static rp_status load_journal(struct load *load, const struct folder *folder, bool cut, rp_error *err)
{
    struct journal self = {.load = load, .folder = folder, .cut = cut, .anchored = load->checkpoint != 0};
    uint64_t place = load->end;
    struct entry_start checkpoint = load->start;
    journal_list(&self, disk_number(place));
    uint32_t first = 0;
    if (load->checkpoint && place == 0)
        first = journal_first(&self, &checkpoint);
    else if (!load->checkpoint)
        self.anchored = self.n && (self.segments[0].number == 1 ||
                                   (self.segments[0].readable && self.segments[0].start.previous == 0));
    for (uint32_t i = 0; i < self.n && !load->checkpoint; i++)
        if (self.segments[i].readable && self.segments[i].start.flags & START_FRESH) {
            first = i;
            self.anchored = true;
        }
    rp_status status = RP_OK;
    if (place && self.n && self.segments[0].number != disk_number(place) && self.segments[0].readable &&
        self.segments[0].start.after != place) {
        note(load, true, "segment %llu, with which the journal after checkpoint %llu begins, is missing",
             (unsigned long long)disk_number(place), (unsigned long long)load->checkpoint);
        note_lost(&self, 0, NULL);
    }
    for (uint32_t i = first; i < self.n && !self.over && status == RP_OK; i++)
        status = journal_segment(&self, i, self.segments[i].number == disk_number(place) ? disk_offset(place) : 0, err);
    free(self.segments);
    return status;
}

rp_status load_files(struct load *self, const struct folder *folder, uint64_t number, bool until_checkpoint, bool cut,
                     rp_error *err)
{
    uint32_t tried = 0;
    self->whole = true;
    rp_status status =
        number ? load_chain(self, folder, number, LOAD_CHECKPOINT, 0, err) : load_newest(self, folder, &tried, err);
    if (status == RP_BAD_MESSAGE) {
        status = RP_DATA_LOSS;
        if (err)
            err->status = RP_DATA_LOSS;
    }
    bool alone = status == RP_NOT_FOUND && !number && !until_checkpoint;
    if (alone || (status == RP_OK && !until_checkpoint))
        status = load_journal(self, folder, cut, err);
    if (status == RP_OK && alone && self->journal_entries == 0 && (self->whole || tried))
        status = err_set(err, RP_NOT_FOUND, "folder '%s' has nothing to load", folder->path);
    if (status == RP_NOT_FOUND && tried)
        status =
            err_set(err, RP_DATA_LOSS, "none of the %u checkpoints in folder '%s' can be loaded", tried, folder->path);
    return status;
}

void load_fini(struct load *self)
{
    free(self->notes);
    *self = (struct load){0};
}
