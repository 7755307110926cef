#include "tests/support/diskfile.h"

#include <fcntl.h>

#include "broker/journal/reader.h"
#include "replay.pb-c.h"

char *diskfile_folder(void)
{
    char *path = strdup("/tmp/replay-disk-XXXXXX");
    assert_true(path && mkdtemp(path));
    return path;
}

void diskfile_remove(char **path)
{
    assert_int_equal(system(textf("rm -rf %s", *path)), 0);
    free(*path);
    *path = NULL;
}

uint64_t diskfile_each(const struct folder *folder, enum disk_kind kind, uint64_t number,
                       void (*fn)(void *ctx, const struct entry_view *entry), void *ctx)
{
    struct reader reader;
    struct record_view record;
    rp_status status;
    ok(reader_open(&reader, folder, kind, number, &err));
    while ((status = reader_next(&reader, &record, &err)) == RP_OK) {
        struct entry_reader entries = entry_reader(record);
        for (struct entry_view entry; entry_next(&entries, &entry);)
            fn(ctx, &entry);
        assert_false(entries.bad);
    }
    ok(status == RP_END_OF_STREAM ? RP_OK : status);
    uint64_t bytes = reader.bytes;
    reader_close(&reader);
    return bytes;
}

void diskfile_flip(const char *folder, enum disk_kind kind, uint64_t number, uint64_t offset, uint8_t bits)
{
    char name[64], path[256];
    uint8_t byte;
    folder_name(kind, number, false, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(file, &byte, 1, (off_t)offset), 1);
    byte ^= bits;
    assert_int_equal(pwrite(file, &byte, 1, (off_t)offset), 1);
    close(file);
}

void diskfile_begin(struct diskfile *self, const struct folder *folder, enum disk_kind kind, uint64_t number)
{
    *self = (struct diskfile){.kind = kind, .number = number, .offset = FILE_HEAD_BYTES};
    self->descriptor = folder_create(folder, kind, number, &err);
    if (self->descriptor < 0)
        fail_msg("%s", err.text);
    self->used = sizeof(struct record_head);
}

uint64_t diskfile_put(struct diskfile *self, uint16_t type, uint32_t table, const void *body, size_t size,
                      const void *rest, size_t rest_size)
{
    size_t whole = sizeof(struct entry_head) + size + rest_size;
    size_t need = self->used + entry_padded(whole);
    if (need > self->capacity) {
        self->capacity = need * 2;
        self->record = realloc(self->record, self->capacity);
        assert_true(self->record);
    }
    uint64_t at = disk_at(self->number, self->offset + self->used);
    struct entry_head head = {.size = (uint32_t)whole, .type = type, .table = (uint16_t)table};
    uint8_t *to = self->record + self->used;
    memset(to, 0, entry_padded(whole));
    memcpy(to, &head, sizeof head);
    if (size)
        memcpy(to + sizeof head, body, size);
    if (rest_size)
        memcpy(to + sizeof head + size, rest, rest_size);
    self->used = need;
    self->entries++;
    return at;
}

void diskfile_flush(struct diskfile *self)
{
    if (self->used == sizeof(struct record_head))
        return;
    record_seal(self->record, self->used, disk_at(self->number, self->offset));
    assert_true(pwrite(self->descriptor, self->record, self->used, (off_t)self->offset) == (ssize_t)self->used);
    self->offset += self->used;
    self->used = sizeof(struct record_head);
}

uint64_t diskfile_here(const struct diskfile *self)
{
    return disk_at(self->number, self->offset);
}

void diskfile_end(struct diskfile *self, const struct folder *folder)
{
    diskfile_flush(self);
    if (self->kind == DISK_CHECKPOINT)
        assert_true(folder_finish(folder, self->number, self->descriptor, NULL) == RP_OK);
    close(self->descriptor);
    free(self->record);
}

void diskfile_start(struct diskfile *self, uint64_t instance, int64_t wall_ns, int64_t clock_ns, uint64_t previous,
                    uint64_t after, uint32_t flags)
{
    struct entry_start start = {.instance = instance,
                                .wall_ns = wall_ns,
                                .clock_ns = clock_ns,
                                .previous = previous,
                                .after = after,
                                .flags = flags};
    diskfile_put(self, ENTRY_START, 0, &start, sizeof start, NULL, 0);
}

void diskfile_table(struct diskfile *self, uint32_t index, const char *name, uint64_t max_size,
                    const struct entry_table *counters)
{
    Replay__TableInfo info = REPLAY__TABLE_INFO__INIT;
    char text[64];
    snprintf(text, sizeof text, "%s", name);
    info.name = text;
    info.max_size = max_size;
    uint8_t packed[512];
    struct entry_table table = counters ? *counters : (struct entry_table){0};
    Replay__TableRestored kept = REPLAY__TABLE_RESTORED__INIT;
    kept.total_inserts = table.limiter.inserts;
    info.restored = &kept;
    size_t size = replay__table_info__pack(&info, packed);
    diskfile_put(self, ENTRY_TABLE, index, &table, sizeof table, packed, size);
}

void diskfile_layout(struct diskfile *self, uint32_t table, uint64_t id, const char *name)
{
    Replay__Layout layout = REPLAY__LAYOUT__INIT;
    char text[64];
    snprintf(text, sizeof text, "%s", name);
    layout.table = text;
    Replay__Column column = REPLAY__COLUMN__INIT, *columns[] = {&column};
    Replay__Field field = REPLAY__FIELD__INIT, *fields[] = {&field};
    char column_name[] = "x", dtype[] = "uint8";
    column.name = field.name = column_name;
    column.dtype = dtype;
    layout.columns = columns;
    layout.fields = fields;
    layout.n_columns = layout.n_fields = 1;
    uint8_t packed[256];
    size_t size = replay__layout__pack(&layout, packed);
    struct entry_named named = {id};
    diskfile_put(self, ENTRY_LAYOUT, table, &named, sizeof named, packed, size);
}

uint64_t diskfile_chunk(struct diskfile *self, uint64_t step, const void *data, uint32_t size)
{
    uint8_t *rest = malloc((size_t)size + 5);
    assert_true(rest);
    memcpy(rest, &size, 4);
    rest[4] = 0;
    if (size)
        memcpy(rest + 5, data, size);
    struct entry_chunk chunk = {.step = step, .length = 1, .bytes = size, .raw_bytes = size, .columns = 1};
    uint64_t at = diskfile_put(self, ENTRY_CHUNK, 0, &chunk, sizeof chunk, rest, (size_t)size + 5);
    free(rest);
    return at;
}

void diskfile_insert(struct diskfile *self, uint32_t table, const struct entry_insert *insert, const uint64_t *chunks)
{
    diskfile_put(self, ENTRY_INSERT, table, insert, sizeof *insert, chunks, (size_t)insert->n_chunks * 8);
}

void diskfile_item(struct diskfile *self, uint32_t table, const struct entry_item *item, const uint64_t *chunks)
{
    diskfile_put(self, ENTRY_ITEM, table, item, sizeof *item, chunks, (size_t)item->insert.n_chunks * 8);
}

void diskfile_session(struct diskfile *self, uint64_t ordinal, const char *name)
{
    Replay__Hello hello = REPLAY__HELLO__INIT;
    char text[64];
    snprintf(text, sizeof text, "%s", name);
    hello.name = text;
    uint8_t packed[256];
    size_t size = replay__hello__pack(&hello, packed);
    struct entry_named named = {ordinal};
    diskfile_put(self, ENTRY_SESSION, 0, &named, sizeof named, packed, size);
}

void diskfile_value(struct diskfile *self, uint16_t type, const char *name, uint64_t version, int64_t put_ns,
                    const void *value, size_t size)
{
    size_t name_size = strlen(name);
    uint8_t *rest = malloc(name_size + size + 1);
    assert_true(rest);
    memcpy(rest, name, name_size);
    if (size)
        memcpy(rest + name_size, value, size);
    struct entry_value head = {
        .version = version, .put_ns = put_ns, .name_bytes = (uint32_t)name_size, .value_bytes = size};
    diskfile_put(self, type, 0, &head, sizeof head, rest, name_size + size);
    free(rest);
}

const struct folder_file *folder_find(const struct folder *self, enum disk_kind kind, uint64_t number)
{
    for (uint32_t i = 0; i < self->n_files; i++)
        if (self->files[i].kind == kind && self->files[i].number == number)
            return &self->files[i];
    return NULL;
}

void diskfile_checkpoint(struct diskfile *self, uint64_t base, uint64_t journal)
{
    struct entry_checkpoint head = {.number = self->number, .base = base, .journal = journal};
    diskfile_put(self, ENTRY_CHECKPOINT, 0, &head, sizeof head, NULL, 0);
}

void diskfile_finish(struct diskfile *self, uint64_t items)
{
    struct entry_end end = {.items = items, .entries = self->entries + 1};
    diskfile_put(self, ENTRY_END, 0, &end, sizeof end, NULL, 0);
}
