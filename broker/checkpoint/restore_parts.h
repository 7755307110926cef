/* What the files of the restore share: the work in progress, which restore.c drives through tables (restore_table.c),
 * chunks (restore_chunk.c), and sessions, parameters and samples (restore_session.c). */
#ifndef BROKER_RESTORE_PARTS_H
#define BROKER_RESTORE_PARTS_H

#include "broker/config/config.h"
#include "broker/disk/image.h"
#include "broker/journal/stream.h"
#include "broker/loop/loop.h"
#include "broker/table/table.h"
#include "proto/base/log.h"

/* A sort key and its value. */
struct pair {
    uint64_t key, value;
};

struct restoring {
    const struct durable_state *state;
    struct stream *stream;
    const struct folder *folder;
    struct image image;
    bool newest;           /* the image is the newest state, with a whole journal */
    struct table **tables; /* by index in the image; NULL: not configured */
    /* Chunks to read: the place, and the address of the number that the chunk's address replaces. */
    struct pair *wanted;
    uint64_t n_wanted, next_wanted;
    uint64_t chunks, bytes, items, left_out, sessions;
};

/* Sorts by key; pairs with equal keys keep their order. False: no memory. */
bool pairs_sort(struct pair *pairs, uint64_t n);

/* restore_table.c. Finds the broker's tables for those of the image, and logs what differs. */
rp_status restore_match(struct restoring *self, rp_error *err);
/* Adds the chunks of a matched table's items to those to read. */
void restore_want_items(struct restoring *self, uint32_t index);
/* Puts the items into the table. After the chunks are read. */
rp_status restore_items(struct restoring *self, uint32_t index, rp_error *err);
/* Returns the interned layout, which is made at the first call. NULL with err set. */
struct layout *restore_layout(struct restoring *self, struct image_layout *from, const struct table *table,
                              rp_error *err);

/* Releases the reference that interning gave. */
void restore_layout_release(struct restoring *self, struct image_layout *layout);

/* restore_chunk.c */
uint64_t restore_count_wanted(const struct restoring *self);
void restore_want(struct restoring *self, uint64_t *place);
/* Reads the chunks, and puts their addresses in place of their places. */
rp_status restore_chunks(struct restoring *self, rp_error *err);

/* restore_session.c */
rp_status restore_sessions(struct restoring *self, rp_error *err);
rp_status restore_params(struct restoring *self, rp_error *err);
bool restore_selection_holds(const struct restoring *self, const struct image_selection *from);
void restore_selections(struct restoring *self);

#endif
