/* What the files of the restore share. */
#ifndef BROKER_RESTORE_PARTS_H
#define BROKER_RESTORE_PARTS_H

#include "broker/config/config.h"
#include "broker/disk/image.h"
#include "broker/journal/stream.h"
#include "broker/loop/loop.h"
#include "broker/table/tables.h"
#include "proto/base/log.h"

/* A number and what belongs to it. */
struct pair {
    uint64_t key, value;
};

struct restoring {
    const struct durable_state *state;
    struct stream *stream;
    const struct folder *folder;
    struct image image;
    bool newest;           /* the image is all that there ever was: a whole journal */
    struct table **tables; /* by the image's index; NULL: not configured */
    /* Places of chunks that are needed, each with the address of the number that is to become the chunk's address. */
    struct pair *wanted;
    uint64_t n_wanted, next_wanted;
    uint64_t chunks, bytes, items, left_out, sessions;
};

/* Sorts by key; pairs with equal keys stay in their order. False: no memory. */
bool pairs_sort(struct pair *pairs, uint64_t n);

/* restore_table.c: finds the tables that the image's are, and says what differs. */
rp_status restore_match(struct restoring *self, rp_error *err);
/* Notes all chunks of a matched table's items. */
void restore_want_items(struct restoring *self, uint32_t index);
/* After the chunks are there: items become the table's. */
rp_status restore_items(struct restoring *self, uint32_t index, rp_error *err);
/* The interned layout, made when it is first asked for, without a reference of its own. NULL with err set. */
struct layout *restore_layout(struct restoring *self, struct image_layout *from, const struct table *table,
                              rp_error *err);

/* Lets go of the reference that interning gave. */
void restore_layout_release(struct restoring *self, struct image_layout *layout);

/* restore_chunk.c */
uint64_t restore_count_wanted(const struct restoring *self);
void restore_want(struct restoring *self, uint64_t *place);
/* Reads all chunks that are wanted, and puts their addresses where they are. */
rp_status restore_chunks(struct restoring *self, rp_error *err);

/* restore_session.c */
rp_status restore_sessions(struct restoring *self, rp_error *err);
rp_status restore_params(struct restoring *self, rp_error *err);
bool restore_selection_holds(const struct restoring *self, const struct image_selection *from);
void restore_selections(struct restoring *self);

#endif
