/* Reading the files of a broker in their order: the newest sound checkpoint, those that it is based on, and the segments
 * after it. Every entry goes to a function of the caller's, which knows what it means (checkpoint/restore.c). Also:
 * checking single files. */
#pragma once

#include "broker/journal/folder.h"

/* Where an entry comes from. */
enum load_phase {
    LOAD_BASE,       /* a checkpoint that others are based on: only tables, layouts and items matter */
    LOAD_CHECKPOINT, /* the checkpoint that is loaded */
    LOAD_JOURNAL,
};

/* What was found: damage, cuts, fallbacks. */
struct load_note {
    bool damage; /* false: information */
    char text[300];
};

struct load {
    /* Set by the caller. Applies an entry that passed entry_check. An error (RP_BAD_MESSAGE: the entry contradicts the
     * state): nothing has changed, and loading ends before the entry. */
    rp_status (*apply)(void *ctx, enum load_phase phase, const struct entry_view *entry, rp_error *err);
    /* Drops all that was applied: a checkpoint cannot be used. */
    void (*clear)(void *ctx);
    void *ctx;
    /* The result. */
    uint64_t checkpoint; /* number of the checkpoint; 0: none was used */
    uint64_t end;        /* place up to which the journal was applied, for entry_start.after; 0: none was */
    uint64_t journal_entries, journal_bytes; /* applied after the checkpoint */
    struct entry_start start;                /* of the newest file */
    bool whole;            /* all of the journal was applied, up to a torn end; false: see the notes */
    uint64_t lost_inserts; /* not whole: inserts that can be read and could not be applied */
    struct load_note *notes;
    uint32_t n_notes;
};

/* Reads the checkpoint `number` (0: the newest valid one; a damaged one is noted, and the one before it tried), those
 * that it is based on, and the segments after it. until_checkpoint: without the segments. RP_NOT_FOUND: there is
 * nothing to load. RP_DATA_LOSS: nothing of what is there can be loaded; the notes say why. A torn end of the last
 * segment, which has nothing sound behind it, is noted; with `cut`, the file is cut off there. */
rp_status load_files(struct load *self, const struct folder *folder, uint64_t number, bool until_checkpoint, bool cut,
                     rp_error *err);
void load_fini(struct load *self);

/* What a checkpoint says at its start. */
struct checkpoint_about {
    struct entry_start start;
    struct entry_checkpoint head;
};
rp_status checkpoint_peek(const struct folder *folder, uint64_t number, struct checkpoint_about *out, rp_error *err);

/* Checks everything in one file: every record, entry and chunk. An error: the file cannot be read at all. */
struct verify_result {
    uint64_t bytes, records, entries, chunks;
    uint64_t chunk_bytes;        /* data of the chunks, as stored */
    uint64_t types[ENTRY_TYPES]; /* entries of each type */
    struct entry_start start;
    struct entry_checkpoint checkpoint; /* of a checkpoint */
    struct entry_end end;               /* of a checkpoint that has one */
    bool damaged;
    uint64_t damaged_at; /* offset of the first damage */
    bool torn;           /* a segment that is sound up to a record without an end; not damaged */
    char text[300];      /* what is wrong there; empty: nothing */
};
rp_status disk_verify_file(const struct folder *folder, enum disk_kind kind, uint64_t number, struct verify_result *out,
                           rp_error *err);
