/* What the files of the image share: image.c dispatches entries, and each of the others applies its types. */
#ifndef BROKER_DISK_IMAGE_IMPL_H
#define BROKER_DISK_IMAGE_IMPL_H

#include "broker/disk/image.h"

#define IMAGE_NOWHERE UINT32_MAX

/* A map from (client, id) to an index, with open addressing. A place holds index + 1; 0: it is empty. */
struct request_place {
    uint64_t client, id;
    uint32_t value;
};
struct request_map {
    struct request_place *places;
    uint32_t capacity, used;
};

struct image_impl {
    struct entry_start start; /* of the newest file */
    bool started, in_checkpoint;
    bool naming; /* the start of a segment is read only for the names of its tables; its counters are out of date */
    /* Times are kept in the clock of the first process: a time of the newest process plus `adjust`. */
    int64_t adjust;
    uint32_t *map; /* from the newest file's table index to the index in image.tables, or IMAGE_NOWHERE */
    uint32_t n_map;
    struct image_layout **layouts; /* by id, each with a reference */
    uint32_t n_layouts;
    uint32_t serial;
    struct image_session *last; /* the session that was last looked up */
    uint32_t tables_capacity, sessions_capacity, slots_capacity, counters_capacity;
    uint32_t notes_capacity;
    struct request_map by_reply, by_selection;
    uint32_t replies_capacity, replies_live, replies_first; /* those before replies_first are dropped */
    uint32_t selections_capacity, selections_live;
};

typedef rp_status image_fn(struct image *self, const struct entry_view *entry, rp_error *err);

/* Makes room for one more element in an array of n. False: no memory. */
bool image_grow(void **array, uint32_t *capacity, uint32_t n, size_t size);
/* Adds without overflow: stops at the limits. */
int64_t image_add(int64_t a, int64_t b);
/* Converts a time of the file being read to the clock in which times are kept. */
int64_t image_time(const struct image *self, int64_t time_ns);
/* Returns the index in image.tables for the file's index. IMAGE_NOWHERE: this file has not named it. */
uint32_t image_table_index(const struct image *self, uint32_t in_file);

/* image_table.c */
image_fn image_apply_table, image_apply_insert, image_apply_item, image_apply_free, image_apply_remove,
    image_apply_priority, image_apply_reset, image_apply_episodes, image_apply_charge, image_apply_limiter,
    image_apply_selector;
/* Returns the table of an entry. NULL with err set. */
struct image_table *image_table_of(const struct image *self, const struct entry_view *entry, rp_error *err);
/* Returns the item of a slot. NULL with err set: the slot is free. */
struct image_item *image_taken(struct image_table *table, uint32_t slot, rp_error *err);
/* Drops the state of a table's selectors, because an entry after the checkpoint changes the table. */
void image_table_changed(struct image *self, struct image_table *table);
void image_table_fini(struct image_table *table);
void image_table_shift(struct image_table *table, int64_t by);
/* Makes all insert times at most `now`, in the same order. */
void image_table_clamp(struct image_table *table, int64_t now);

/* image_item.c */
image_fn image_apply_layout;
struct image_layout *image_layout_find(const struct image *self, uint32_t id);
void image_layout_release(struct image_layout **layout);
void image_item_fini(struct image_item *item);
/* Copies n places from unaligned memory. False: no memory. */
bool image_item_places(struct image_item *item, const uint8_t *places, uint32_t n);
bool image_item_copy(struct image_item *to, const struct image_item *from);

/* image_session.c */
image_fn image_apply_session, image_apply_form, image_apply_progress, image_apply_rejection, image_apply_session_end;
/* NULL: there is no such session. */
struct image_session *image_session_find(struct image *self, uint32_t ordinal);
/* Returns the session's flow to a table, by index in image.tables. NULL: no memory. */
struct entry_flow *image_flow(struct image_session *session, uint32_t table);
void image_sessions_clear(struct image *self);

/* image_request.c */
image_fn image_apply_pick, image_apply_answered, image_apply_forget, image_apply_reply, image_apply_selection;
void image_requests_clear(struct image *self);
/* Removes what was dropped from the arrays. */
void image_requests_compact(struct image *self);

/* image_map.c */
uint32_t request_map_get(const struct request_map *self, uint64_t client, uint64_t id); /* IMAGE_NOWHERE: none */
bool request_map_put(struct request_map *self, uint64_t client, uint64_t id, uint32_t value);
void request_map_remove(struct request_map *self, uint64_t client, uint64_t id);
void request_map_fini(struct request_map *self);

/* image_load.c */
/* How far records were applied. */
struct applied {
    uint64_t entries; /* sum over all records */
    uint64_t stop;    /* place after the last entry that was applied */
};
/* Applies the entries of a record that lie before `limit`. */
rp_status image_apply_record(struct image *self, struct record_view record, uint64_t limit, struct applied *out,
                             rp_error *err);
/* Reads the START entry of a segment. False: it cannot be read. */
bool image_segment_start(const struct folder *folder, uint64_t number, struct entry_start *out);

/* image_journal.c. Applies the journal after the checkpoint that was loaded, or all of it. */
rp_status image_load_journal(struct image *self, const struct folder *folder, bool cut, rp_error *err);

/* image.c. Resets everything but notes and limits. */
void image_clear(struct image *self);

#endif
