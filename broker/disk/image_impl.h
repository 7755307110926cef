/* What the files of the image share. */
#ifndef BROKER_DISK_IMAGE_IMPL_H
#define BROKER_DISK_IMAGE_IMPL_H

#include "broker/disk/image.h"

#define IMAGE_NOWHERE UINT32_MAX

/* From (client, id) to an index. Open addressing; value 0 is an empty place, so index + 1 is kept. */
struct request_place {
    uint64_t client, id;
    uint32_t value;
};
struct request_map {
    struct request_place *places;
    uint32_t capacity, used;
};

struct image_impl {
    struct entry_start start; /* the newest */
    bool started, in_checkpoint;
    bool naming; /* the start of a segment is read for the names of its tables: what it says of them is older */
    /* Times are kept in the clock of the first process: a time of the newest plus `adjust`. */
    int64_t adjust;
    uint32_t *map; /* the newest file's table index -> index in image.tables, or IMAGE_NOWHERE */
    uint32_t n_map;
    struct image_layout **layouts; /* by id, each with a reference */
    uint32_t n_layouts;
    uint32_t serial;
    struct image_session *last; /* the session that was last looked up */
    uint32_t tables_capacity, sessions_capacity, slots_capacity, counters_capacity;
    uint32_t notes_capacity;
    struct request_map by_reply, by_selection;
    uint32_t replies_capacity, replies_live, replies_first; /* those before `first` are gone */
    uint32_t selections_capacity, selections_live;
};

typedef rp_status image_fn(struct image *self, const struct entry_view *entry, rp_error *err);

/* Makes room for one more of `n` in a growing array. */
bool image_grow(void **array, uint32_t *capacity, uint32_t n, size_t size);
/* Sum that stops at the ends. */
int64_t image_add(int64_t a, int64_t b);
/* A time of the file that is being read, as it is kept. */
int64_t image_time(const struct image *self, int64_t time_ns);
/* Index of a table by the file's index. IMAGE_NOWHERE: not named in this file. */
uint32_t image_table_index(const struct image *self, uint32_t in_file);

/* image_table.c */
image_fn image_apply_table, image_apply_insert, image_apply_item, image_apply_free, image_apply_remove,
    image_apply_priority, image_apply_reset, image_apply_limiter, image_apply_selector;
/* The table of an entry. NULL with err set. */
struct image_table *image_table_of(const struct image *self, const struct entry_view *entry, rp_error *err);
/* A slot that holds an item. NULL with err set. */
struct image_item *image_taken(struct image_table *table, uint32_t slot, rp_error *err);
/* An entry after the checkpoint changes it: its selectors' state is of the past. */
void image_table_changed(struct image *self, struct image_table *table);
void image_table_fini(struct image_table *table);
void image_table_shift(struct image_table *table, int64_t by);
/* No insert time after `now`, the order kept. */
void image_table_clamp(struct image_table *table, int64_t now);

/* image_item.c */
image_fn image_apply_layout;
struct image_layout *image_layout_find(const struct image *self, uint32_t id);
void image_layout_release(struct image_layout **layout);
void image_item_fini(struct image_item *item);
/* Takes n places from unaligned memory. False: no memory. */
bool image_item_places(struct image_item *item, const uint8_t *places, uint32_t n);
bool image_item_copy(struct image_item *to, const struct image_item *from);

/* image_session.c */
image_fn image_apply_session, image_apply_form, image_apply_progress, image_apply_rejection, image_apply_session_end;
/* NULL: not known. */
struct image_session *image_session_find(struct image *self, uint32_t ordinal);
/* Its flow to a table, by index in image.tables. NULL: no memory. */
struct entry_flow *image_flow(struct image_session *session, uint32_t table);
void image_sessions_clear(struct image *self);

/* image_request.c */
image_fn image_apply_pick, image_apply_answered, image_apply_forget, image_apply_reply, image_apply_selection;
void image_requests_clear(struct image *self);
/* Takes what was dropped out of the arrays. */
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
/* What a segment begins with. False: it can not be read. */
bool image_segment_start(const struct folder *folder, uint64_t number, struct entry_start *out);

/* image_journal.c: what comes after the checkpoint that was loaded, or all there is. */
rp_status image_load_journal(struct image *self, const struct folder *folder, bool cut, rp_error *err);

/* image.c: everything but notes and limits is as after image_init. */
void image_clear(struct image *self);

#endif
