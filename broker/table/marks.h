/* Marks of the slots of a table that have changed since the last checkpoint, and of the slots that the checkpoint in
 * progress still has to copy. A table without checkpoints has none.
 *
 * The table marks a slot right before it changes (marks_touch). While a checkpoint copies the table, an item that is about
 * to change before its turn is copied first: marks.copier is the checkpoint's way to do so, and this room knows nothing else
 * of checkpoints. */
#ifndef BROKER_MARKS_H
#define BROKER_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"

struct chore;
struct contents;
struct table;

/* What copies a table. */
struct copier {
    /* Copies the item of a slot, or that the slot is free. */
    void (*copy)(void *ctx, const struct table *table, const struct contents *in, uint32_t slot);
    /* The contents lie at `in` since the table was reset. True: they are still being copied; the copier adds `then`, which
     * frees them, to the chores when it has finished. */
    bool (*keep)(void *ctx, struct contents *in, struct chore *then);
};

/* Bits by slot; reserved for the capacity. */
struct marks {
    uint64_t *changed;
    /* Slots that are still to be copied; if all slots are copied (whole): slots below `high` that were copied ahead of
     * their turn. */
    uint64_t *pending;
    uint32_t words;
    uint32_t n_changed;
    void *copying;               /* ctx of the copier; NULL: no copy is in progress, or this table is copied */
    const struct copier *copier; /* set while copying is */
    uint32_t next;               /* words before this one are copied */
    uint32_t high;               /* slots from this one on were not used when the copy began */
    bool whole;                  /* all slots are copied, not only changed ones */
    bool all_changed;            /* as after a start or a reset: the next checkpoint copies all slots */
};

rp_status marks_init(struct marks **self, uint32_t capacity, rp_error *err);
void marks_destroy(struct marks **self);
/* A slot of the contents is about to change: by insert, remove, priority or sample. */
void marks_touch(struct marks *self, const struct table *table, const struct contents *in, uint32_t slot);
/* The copy in progress fails: the next one copies all slots. */
void marks_abandon(struct marks *self);

/* Slots of the word that are still to be copied. */
static inline uint64_t marks_due(const struct marks *self, uint32_t word)
{
    uint64_t due = self->pending[word];
    if (!self->whole)
        return due;
    uint32_t left = self->high - word * 64;
    return ~due & (left < 64 ? (UINT64_C(1) << left) - 1 : UINT64_MAX);
}

#endif
