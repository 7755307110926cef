/* Writes files of a broker's folder, entry by entry, for tests of whoever reads them. */
#pragma once

#include "broker/journal/folder.h"
#include "tests/support/test.h"

struct diskfile {
    enum disk_kind kind;
    uint64_t number;
    int descriptor;
    uint64_t offset; /* where the record that is being filled will lie */
    uint8_t *record; /* with room for its head */
    size_t used, capacity;
    uint64_t entries;
};

/* A folder of its own under /tmp, removed with all that is in it. */
char *diskfile_folder(void);
void diskfile_remove(char **path);

/* Returns a file in the list of the folder; NULL: it is not there. */
const struct folder_file *folder_find(const struct folder *self, enum disk_kind kind, uint64_t number);

void diskfile_begin(struct diskfile *self, const struct folder *folder, enum disk_kind kind, uint64_t number);
/* Appends an entry and gives its place. rest may be NULL. */
uint64_t diskfile_put(struct diskfile *self, uint16_t type, uint32_t table, const void *body, size_t size,
                      const void *rest, size_t rest_size);
/* Seals and writes the record, if there is anything in it. */
void diskfile_flush(struct diskfile *self);
/* The place where the next record will lie. */
uint64_t diskfile_here(const struct diskfile *self);
/* Flushes and closes; a checkpoint gets its name. */
void diskfile_end(struct diskfile *self, const struct folder *folder);

/* Calls fn for each entry of a file, which must be sound. Returns the size of the file. */
uint64_t diskfile_each(const struct folder *folder, enum disk_kind kind, uint64_t number,
                       void (*fn)(void *ctx, const struct entry_view *entry), void *ctx);
/* Turns bits of a byte of a file over. */
void diskfile_flip(const char *folder, enum disk_kind kind, uint64_t number, uint64_t offset, uint8_t bits);

/* Whole entries. */
void diskfile_start(struct diskfile *self, uint64_t instance, int64_t wall_ns, int64_t clock_ns, uint64_t previous,
                    uint64_t after, uint32_t flags);
void diskfile_table(struct diskfile *self, uint32_t index, const char *name, uint64_t max_size,
                    const struct entry_table *counters);
void diskfile_layout(struct diskfile *self, uint32_t table, uint64_t id, const char *name);
/* One column, with this data. */
uint64_t diskfile_chunk(struct diskfile *self, uint64_t step, const void *data, uint32_t size);
void diskfile_insert(struct diskfile *self, uint32_t table, const struct entry_insert *insert, const uint64_t *chunks);
void diskfile_item(struct diskfile *self, uint32_t table, const struct entry_item *item, const uint64_t *chunks);
void diskfile_session(struct diskfile *self, uint64_t ordinal, const char *name);
void diskfile_value(struct diskfile *self, uint16_t type, const char *name, uint64_t version, int64_t put_ns,
                    const void *value, size_t size);
void diskfile_checkpoint(struct diskfile *self, uint64_t base, uint64_t journal);
void diskfile_finish(struct diskfile *self, uint64_t items);
