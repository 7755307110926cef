#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "broker/checkpoint/loading.h"
#include "tests/support/diskfile.h"
#include "tests/support/facts.h"

/* In front of the library's: a disk that cannot be read from this offset on. */
static off_t bad_from = INT64_MAX;

/* And one whose segments cannot be opened now. */
static bool no_descriptors;

int openat(int folder, const char *name, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    unsigned mode = flags & O_CREAT ? va_arg(more, unsigned) : 0;
    va_end(more);
    errno = EMFILE;
    return no_descriptors && strncmp(name, "segment-", 8) == 0 ? -1
                                                               : (int)syscall(SYS_openat, folder, name, flags, mode);
}

ssize_t pread(int descriptor, void *data, size_t size, off_t offset)
{
    if (offset >= bad_from) {
        errno = EIO;
        return -1;
    }
    if ((off_t)size > bad_from - offset)
        size = (size_t)(bad_from - offset);
    return syscall(SYS_pread64, descriptor, data, size, offset);
}

/* A small history: item k goes to slot k - 1 with key k and priority k, one record each. Whatever happens to the files,
 * a state is sound if it has the items 1 .. n for some n, and its counters say the same. */
struct world {
    char *path;
    struct folder folder;
    struct diskfile out; /* the segment that is being written */
    uint64_t items, instance;
    uint64_t place[64];   /* place[k]: where the record of item k + 1 begins */
    struct offline state; /* after the last load, */
    struct load *load;    /* of which this is the report, */
    rp_status status;     /* with this status */
};

static void world_open(struct world *w)
{
    *w = (struct world){.path = diskfile_folder(), .instance = 1};
    offline_init(&w->state);
    assert_int_equal(folder_open(&w->folder, w->path, true, NULL), RP_OK);
}

static void world_close(struct world *w)
{
    offline_fini(&w->state);
    folder_close(&w->folder);
    diskfile_remove(&w->path);
}

static void preamble(struct diskfile *out)
{
    diskfile_table(out, 0, "a", 40, NULL);
    struct entry_named ordinal = {1};
    diskfile_put(out, ENTRY_ORDINAL, 0, &ordinal, sizeof ordinal, NULL, 0);
}

static void segment(struct world *w, uint64_t number, uint64_t after, uint32_t flags)
{
    diskfile_begin(&w->out, &w->folder, DISK_SEGMENT, number);
    int64_t now = 1000 * (int64_t)w->instance;
    diskfile_start(&w->out, w->instance, now, now, number - 1, after, flags);
    preamble(&w->out);
    diskfile_layout(&w->out, 0, 0, "a");
}

static struct entry_insert insert_of(uint64_t k)
{
    return (struct entry_insert){
        .slot = (uint32_t)k - 1, .n_chunks = 1, .key = k, .priority = (double)k, .insert_ns = (int64_t)k, .length = 1};
}

static void grow(struct world *w, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        w->place[w->items] = diskfile_here(&w->out);
        uint64_t k = ++w->items, chunk = diskfile_chunk(&w->out, k, "data", 4);
        struct entry_insert insert = insert_of(k);
        diskfile_insert(&w->out, 0, &insert, &chunk);
        diskfile_flush(&w->out);
    }
}

/* A checkpoint of the items up to now, of which those after `from` are written. */
static void checkpoint(struct world *w, uint64_t number, uint64_t base, uint64_t from, bool journal)
{
    struct diskfile out;
    diskfile_begin(&out, &w->folder, DISK_CHECKPOINT, number);
    int64_t now = 1000 * (int64_t)w->instance;
    diskfile_start(&out, w->instance, now, now, number - 1, 0, 0);
    diskfile_checkpoint(&out, base, journal ? diskfile_here(&w->out) : 0);
    struct entry_table counters = {.limiter = {.inserts = w->items}};
    diskfile_table(&out, 0, "a", 40, &counters);
    diskfile_layout(&out, 0, 0, "a");
    diskfile_flush(&out);
    for (uint64_t k = from + 1; k <= w->items; k++) {
        uint64_t chunk = disk_at(1, 4096);
        struct entry_item item = {.insert = insert_of(k), .order = {k, k}};
        diskfile_item(&out, 0, &item, &chunk);
        if (k % 2)
            diskfile_flush(&out);
    }
    diskfile_finish(&out, w->items);
    diskfile_end(&out, &w->folder);
}

static rp_status load_again(struct world *w, uint64_t number, bool until_checkpoint, bool cut, rp_error *error)
{
    assert_int_equal(folder_list(&w->folder, NULL), RP_OK);
    offline_fini(&w->state);
    offline_init(&w->state);
    w->load = &w->state.loading.files;
    return w->status = load_files(w->load, &w->folder, number, until_checkpoint, cut, error);
}

/* Loads and gives how many items there are, or -1 with a status that says why not. */
static int64_t load(struct world *w, uint64_t number, bool cut)
{
    err = (rp_error){0};
    if (load_again(w, number, false, cut, &err) != RP_OK) {
        assert_true(err.text[0] != '\0');
        return -1;
    }
    const struct loaded_table *got = w->state.loading.tables;
    const struct contents *in = &got->table->in;
    for (uint32_t i = 0; i < in->size; i++)
        assert_true(in->items[i].key == i + 1 && in->items[i].priority == i + 1 && in->items[i].span.n == 1);
    assert_int_equal(got->limiter.inserts, in->size);
    return in->size;
}

static uint32_t damages(const struct load *load)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < load->n_notes; i++)
        n += load->notes[i].damage;
    return n;
}

static bool noted(const struct load *load, const char *words)
{
    for (uint32_t i = 0; i < load->n_notes; i++)
        if (facts_within(load->notes[i].text, words))
            return true;
    return false;
}

static void path_of(const struct world *w, enum disk_kind kind, uint64_t number, char *out, size_t size)
{
    char name[64];
    folder_name(kind, number, false, name, sizeof name);
    snprintf(out, size, "%s/%s", w->path, name);
}

static void flip(const struct world *w, enum disk_kind kind, uint64_t number, uint64_t offset)
{
    diskfile_flip(w->path, kind, number, offset, 0x20);
}

static struct world world;

static int set_up(void **state)
{
    *state = &world;
    world_open(&world);
    return 0;
}

static int tear_down(void **state)
{
    world_close(*state);
    return 0;
}

/* Segments 1 and 2, checkpoints 1 and 2 (a change of 1) on the way; ten items. */
static int set_up_history(void **state)
{
    struct world *w = &world;
    set_up(state);
    segment(w, 1, 0, 0);
    grow(w, 3);
    checkpoint(w, 1, 0, 0, true);
    grow(w, 2);
    checkpoint(w, 2, 1, 3, true);
    grow(w, 1);
    uint64_t end = diskfile_here(&w->out);
    diskfile_end(&w->out, &w->folder);
    segment(w, 2, end, 0);
    grow(w, 4);
    diskfile_end(&w->out, &w->folder);
    return 0;
}

TEST_WITH(struct world, w, chain_and_journal, set_up_history, tear_down)
{
    assert_int_equal(load(w, 0, false), 10);
    assert_int_equal(w->load->checkpoint, 2);
    assert_int_equal(w->load->journal_entries, 5 + 1); /* with the LAYOUT of segment 2 */
    assert_int_equal(w->load->end, diskfile_here(&w->out));
    assert_int_equal(w->load->n_notes, 0);
    assert_true(w->load->whole);
    assert_int_equal(load(w, 1, false), 10);
    assert_int_equal(load_again(w, 2, true, false, NULL), RP_OK);
    assert_int_equal(loading_items(&w->state.loading), 5);
    assert_int_equal(load(w, 3, false), -1);
    assert_int_equal(w->status, RP_NOT_FOUND);
}

TEST_WITH(struct world, w, empty_folder, set_up, tear_down)
{
    assert_int_equal(load(w, 0, false), -1);
    assert_int_equal(w->status, RP_NOT_FOUND);
    /* A process that did nothing, and one without a journal. */
    segment(w, 1, 0, 0);
    w->out.used = sizeof(struct record_head);
    diskfile_start(&w->out, 1, 0, 0, 0, 0, 0);
    preamble(&w->out);
    diskfile_end(&w->out, &w->folder);
    segment(w, 2, 0, START_CHUNKS_ONLY);
    diskfile_chunk(&w->out, 1, "abc", 3);
    diskfile_end(&w->out, &w->folder);
    assert_int_equal(load(w, 0, false), -1);
    assert_int_equal(w->status, RP_NOT_FOUND);
}

TEST_WITH(struct world, w, damaged_checkpoints_fall_back, set_up_history, tear_down)
{
    flip(w, DISK_CHECKPOINT, 2, 200);
    assert_int_equal(load(w, 0, false), 10);
    assert_int_equal(w->load->checkpoint, 1);
    assert_int_equal(damages(w->load), 1);
    assert_true(noted(w->load, "checkpoint 2") && noted(w->load, "checkpoint-00000002.replay at offset"));
    assert_int_equal(load(w, 2, false), -1);
    assert_int_equal(w->status, RP_DATA_LOSS);
    flip(w, DISK_CHECKPOINT, 2, 200);
    /* One that others stand on. */
    flip(w, DISK_CHECKPOINT, 1, 200);
    assert_int_equal(load(w, 0, false), 10);
    assert_int_equal(w->load->checkpoint, 0);
    assert_int_equal(damages(w->load), 2);
    assert_true(noted(w->load, "based on 1"));
}

TEST_WITH(struct world, w, torn_end, set_up_history, tear_down)
{
    char path[256];
    struct stat about;
    path_of(w, DISK_SEGMENT, 2, path, sizeof path);
    assert_int_equal(truncate(path, (off_t)disk_offset(w->place[9]) + 50), 0);
    assert_int_equal(load(w, 0, false), 9);
    assert_int_equal(damages(w->load), 0);
    assert_true(
        noted(w->load, "torn end of the journal: the last 50 bytes of segment-00000002.replay are passed over"));
    assert_true(w->load->whole);
    assert_int_equal(w->load->end, w->place[9]);
    assert_int_equal(load(w, 0, true), 9);
    assert_true(noted(w->load, "cut off"));
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_size, disk_offset(w->place[9]));
    assert_int_equal(load(w, 0, true), 9);
    assert_int_equal(w->load->n_notes, 0);
}

/* Killed when a segment had just been made: it has no head yet, or a part of one. Nothing is lost, and nothing is said. */
TEST_WITH(struct world, w, segment_without_a_head, set_up, tear_down)
{
    for (size_t bytes = 0; bytes < FILE_HEAD_BYTES; bytes += 20) {
        char path[256];
        world_close(w);
        world_open(w);
        segment(w, 1, 0, 0);
        grow(w, 5);
        diskfile_end(&w->out, &w->folder);
        path_of(w, DISK_SEGMENT, 2, path, sizeof path);
        int file = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(file >= 0 && write(file, "RPLYDISK............................", bytes) == (ssize_t)bytes);
        close(file);
        assert_int_equal(load(w, 0, true), 5);
        assert_int_equal(damages(w->load), 0);
        assert_true(w->load->whole);
    }
}

/* What cannot be read may be sound: nothing is cut, and nothing goes on without it. */
TEST_WITH(struct world, w, unreadable_end, set_up, tear_down)
{
    segment(w, 1, 0, 0);
    grow(w, 5);
    diskfile_end(&w->out, &w->folder);
    bad_from = (off_t)disk_offset(w->place[3]) + 10;
    assert_int_equal(load(w, 0, true), -1);
    assert_int_equal(w->status, RP_IO);
    bad_from = INT64_MAX;
    no_descriptors = true; /* is no damage */
    const uint64_t at = disk_at(1, disk_offset(w->place[0]));
    assert_int_equal(chunks_read(&w->folder, &at, 1, NULL, NULL, &err), RP_NO_MEMORY);
    assert_int_equal(load(w, 0, true), -1);
    assert_int_equal(w->status, RP_NO_MEMORY);
    no_descriptors = false;
    assert_int_equal(load(w, 0, true), 5);
}

/* A process that found a damage goes on from there, and so does every later load. */
TEST_WITH(struct world, w, going_on_after_damage, set_up_history, tear_down)
{
    uint64_t bad = disk_offset(w->place[8]) + 30;
    flip(w, DISK_SEGMENT, 2, bad);
    assert_int_equal(load(w, 0, true), 8);
    assert_true(damages(w->load) > 0 && !w->load->whole);
    assert_true(noted(w->load, "damaged in the middle"));
    assert_int_equal(w->load->lost_inserts, 1);
    assert_int_equal(w->load->end, w->place[8]);
    uint64_t after = w->load->end;
    w->instance = 2;
    w->items = 8;
    segment(w, 3, after, 0);
    grow(w, 3);
    diskfile_end(&w->out, &w->folder);
    assert_int_equal(load(w, 0, true), 11);
    assert_int_equal(damages(w->load), 0);
    assert_true(w->load->whole);
    /* The same when the damage heals: what was not loaded then is no part of the state. */
    flip(w, DISK_SEGMENT, 2, bad);
    assert_int_equal(load(w, 0, false), 11);
    /* A damage before that place was not there then. */
    flip(w, DISK_SEGMENT, 2, disk_offset(w->place[6]) + 30);
    assert_int_equal(load(w, 0, true), 6);
    assert_true(damages(w->load) > 0);
    assert_int_equal(w->load->lost_inserts, 4);
}

/* A torn record is no torn end while a later segment has sound records, even if that one does not begin with one. */
TEST_WITH(struct world, w, torn_before_a_damaged_segment, set_up_history, tear_down)
{
    char path[256];
    uint64_t end = diskfile_here(&w->out);
    segment(w, 3, end, 0);
    grow(w, 2);
    diskfile_end(&w->out, &w->folder);
    path_of(w, DISK_SEGMENT, 2, path, sizeof path);
    assert_int_equal(truncate(path, (off_t)disk_offset(w->place[9]) + 50), 0);
    flip(w, DISK_SEGMENT, 3, FILE_HEAD_BYTES + 40);
    assert_int_equal(load(w, 0, true), 9);
    assert_true(damages(w->load) > 0 && !w->load->whole);
    assert_int_equal(w->load->lost_inserts, 1); /* the other is in the record that was hit */
}

TEST_WITH(struct world, w, missing_segments, set_up_history, tear_down)
{
    uint64_t end = diskfile_here(&w->out);
    segment(w, 3, end, 0);
    grow(w, 2);
    diskfile_end(&w->out, &w->folder);
    assert_int_equal(load(w, 0, false), 12);
    assert_int_equal(folder_remove(&w->folder, DISK_SEGMENT, 2, false, NULL), RP_OK);
    assert_int_equal(load(w, 0, false), 6);
    assert_true(noted(w->load, "segment 3 does not go on from segment 1"));
    assert_true(damages(w->load) > 0 && !w->load->whole);
    /* The one with which the journal begins. */
    assert_int_equal(folder_remove(&w->folder, DISK_SEGMENT, 1, false, NULL), RP_OK);
    assert_int_equal(load(w, 0, false), 5);
    assert_true(noted(w->load, "segment 1, with which the journal after checkpoint 2 begins, is missing"));
    /* Without a checkpoint there is nothing to go on from. */
    assert_int_equal(folder_remove(&w->folder, DISK_CHECKPOINT, 1, false, NULL), RP_OK);
    assert_int_equal(folder_remove(&w->folder, DISK_CHECKPOINT, 2, false, NULL), RP_OK);
    assert_int_equal(load(w, 0, false), -1);
    assert_int_equal(w->status, RP_DATA_LOSS);
}

/* Checkpoints of a broker without a journal: older segments are of the past, later ones go on. */
TEST_WITH(struct world, w, no_journal_for_a_while, set_up, tear_down)
{
    segment(w, 1, 0, 0);
    grow(w, 2);
    diskfile_end(&w->out, &w->folder);
    w->instance = 2;
    segment(w, 2, 0, START_CHUNKS_ONLY);
    diskfile_chunk(&w->out, 1, "abc", 3);
    diskfile_flush(&w->out);
    w->items = 5;
    checkpoint(w, 1, 0, 0, false);
    diskfile_end(&w->out, &w->folder);
    assert_int_equal(load(w, 0, false), 5);
    w->instance = 3;
    segment(w, 3, 0, 0);
    grow(w, 2);
    diskfile_end(&w->out, &w->folder);
    assert_int_equal(load(w, 0, false), 7);
}

/* What changes an incremental checkpoint can hold. */
TEST_WITH(struct world, w, changes, set_up, tear_down)
{
    w->items = 6;
    checkpoint(w, 1, 0, 0, false);
    struct diskfile out;
    diskfile_begin(&out, &w->folder, DISK_CHECKPOINT, 2);
    diskfile_start(&out, 1, 1000, 1000, 1, 0, 0);
    diskfile_checkpoint(&out, 1, 0);
    struct entry_table counters = {.limiter = {.inserts = 5}};
    diskfile_table(&out, 0, "a", 40, &counters);
    struct entry_slot gone = {.slot = 5};
    diskfile_put(&out, ENTRY_FREE, 0, &gone, sizeof gone, NULL, 0);
    gone.slot = 30;
    diskfile_put(&out, ENTRY_FREE, 0, &gone, sizeof gone, NULL, 0);
    diskfile_finish(&out, 5);
    diskfile_end(&out, &w->folder);
    assert_int_equal(load(w, 0, false), 5);
    assert_int_equal(w->load->checkpoint, 2);
    /* One whose count of items is not that of the state is damaged, whatever its checksums say. */
    diskfile_begin(&out, &w->folder, DISK_CHECKPOINT, 3);
    diskfile_start(&out, 1, 1000, 1000, 1, 0, 0);
    diskfile_checkpoint(&out, 2, 0);
    diskfile_table(&out, 0, "a", 40, &counters);
    diskfile_finish(&out, 6);
    diskfile_end(&out, &w->folder);
    assert_int_equal(load(w, 0, false), 5);
    assert_int_equal(w->load->checkpoint, 2);
    assert_true(noted(w->load, "5 items where the checkpoint had 6"));
    /* Neither is one without its end, or with an entry less. */
    for (uint64_t number = 4; number < 6; number++) {
        diskfile_begin(&out, &w->folder, DISK_CHECKPOINT, number);
        diskfile_start(&out, 1, 1000, 1000, 1, 0, 0);
        diskfile_checkpoint(&out, 2, 0);
        diskfile_table(&out, 0, "a", 40, &counters);
        out.entries++;
        if (number == 5)
            diskfile_finish(&out, 5);
        diskfile_end(&out, &w->folder);
        assert_int_equal(load(w, 0, false), 5);
        assert_int_equal(w->load->checkpoint, 2);
        assert_true(noted(w->load, "is cut short"));
    }
}

/* ---- any byte, any cut */

static const struct {
    enum disk_kind kind;
    uint64_t number;
} files[] = {{DISK_SEGMENT, 1}, {DISK_SEGMENT, 2}, {DISK_CHECKPOINT, 1}, {DISK_CHECKPOINT, 2}};

/* All of them; under a sanitizer, where a load takes far longer, some. */
static uint64_t step(void)
{
    const char *sanitizer = getenv("RP_SANITIZE");
    return sanitizer && sanitizer[0] ? 61 : 1;
}

/* Nothing is passed over in silence: what is there is a prefix, and where it is not all there are words. */
static void check_damaged(struct world *w, const char *what, uint64_t offset)
{
    int64_t n = load(w, 0, false);
    bool told = w->status != RP_OK || n == 10 || w->load->n_notes > 0;
    if (!told || (w->status != RP_OK && w->status != RP_DATA_LOSS))
        fail_msg("%s at %llu: %lld items, status %d", what, (unsigned long long)offset, (long long)n, (int)w->status);
}

TEST_WITH(struct world, w, every_byte, set_up_history, tear_down)
{
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        assert_int_equal(folder_list(&w->folder, NULL), RP_OK);
        uint64_t bytes = folder_find(&w->folder, files[f].kind, files[f].number)->bytes;
        for (uint64_t i = 0; i < bytes; i += step()) {
            flip(w, files[f].kind, files[f].number, i);
            check_damaged(w, "byte", i);
            flip(w, files[f].kind, files[f].number, i);
        }
    }
    assert_int_equal(load(w, 0, false), 10);
}

TEST_WITH(struct world, w, every_cut, set_up_history, tear_down)
{
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[256];
        uint8_t data[16384];
        path_of(w, files[f].kind, files[f].number, path, sizeof path);
        int file = open(path, O_RDWR);
        ssize_t bytes = pread(file, data, sizeof data, 0);
        assert_true(bytes > 0 && bytes < (ssize_t)sizeof data);
        bool last = f == 1;
        for (off_t i = bytes - 1; i >= 0; i -= (off_t)step()) {
            assert_int_equal(ftruncate(file, i), 0);
            bool boundary = last && (i == FILE_HEAD_BYTES || i == (off_t)disk_offset(w->place[6]) ||
                                     i == (off_t)disk_offset(w->place[7]) || i == (off_t)disk_offset(w->place[8]) ||
                                     i == (off_t)disk_offset(w->place[9]));
            if (boundary)
                assert_true(load(w, 0, false) >= 6);
            else
                check_damaged(w, "cut", (uint64_t)i);
        }
        assert_int_equal(pwrite(file, data, (size_t)bytes, 0), bytes);
        close(file);
    }
    assert_int_equal(load(w, 0, false), 10);
}

/* Bytes that are cut out of the last segment, or put in, are no torn end while a sound record is behind them. */
TEST_WITH(struct world, w, moved_records, set_up_history, tear_down)
{
    char path[256];
    uint8_t data[16384];
    struct verify_result result;
    path_of(w, DISK_SEGMENT, 2, path, sizeof path);
    int file = open(path, O_RDWR);
    ssize_t bytes = pread(file, data, sizeof data, 0);
    assert_true(bytes > 0 && bytes < (ssize_t)sizeof data);
    static const ssize_t sizes[] = {1, 8, 24, 99, 400};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (off_t i = FILE_HEAD_BYTES; i + sizes[k] <= (off_t)disk_offset(w->place[9]); i += (off_t)step()) {
            ssize_t rest = bytes - i - sizes[k];
            assert_int_equal(pwrite(file, data + i + sizes[k], (size_t)rest, i), rest);
            assert_int_equal(ftruncate(file, bytes - sizes[k]), 0);
            int64_t n = load(w, 0, true);
            if (n < 6 || n > 9 || !damages(w->load) || w->load->whole || !w->load->lost_inserts)
                fail_msg("%zd bytes at %lld: %lld items", sizes[k], (long long)i, (long long)n);
            assert_int_equal(disk_verify_file(&w->folder, DISK_SEGMENT, 2, &result, NULL), RP_OK);
            assert_true(result.damaged && result.records > 0);
            assert_int_equal(pwrite(file, data, (size_t)bytes, 0), bytes);
        }
    off_t middle = (off_t)disk_offset(w->place[7]);
    assert_int_equal(pwrite(file, data + middle, (size_t)(bytes - middle), middle + 13), bytes - middle);
    assert_int_equal(load(w, 0, true), 7);
    assert_int_equal(w->load->lost_inserts, 3);
    /* A copy of what was applied is no sign that something is lost. */
    assert_int_equal(pwrite(file, data, (size_t)bytes, 0), bytes);
    assert_int_equal(ftruncate(file, bytes), 0);
    assert_int_equal(pwrite(file, data + FILE_HEAD_BYTES, (size_t)middle, bytes), middle);
    assert_int_equal(load(w, 0, true), 10);
    assert_int_equal(damages(w->load), 0);
    close(file);
}

/* A torn record may be full of heads that a writer sent as data: the search for a sound record takes no long time. */
TEST_WITH(struct world, w, heads_without_records, set_up_history, tear_down)
{
    char path[256];
    path_of(w, DISK_SEGMENT, 2, path, sizeof path);
    int file = open(path, O_WRONLY | O_APPEND);
    const size_t n = (2u << 20) / step();
    struct record_head *heads = calloc(n, sizeof *heads);
    assert_non_null(heads);
    for (size_t i = 0; i < n; i++)
        heads[i] = (struct record_head){
            .magic = RECORD_MAGIC, .size = (uint32_t)((n - i) * sizeof *heads / 2) & ~7u, .at = disk_at(2, 1u << 30)};
    assert_int_equal(write(file, heads, n * sizeof *heads), n * sizeof *heads);
    free(heads);
    close(file);
    assert_int_equal(load(w, 0, true), 10);
    assert_int_equal(damages(w->load), 0);
}

TEST_WITH(struct world, w, verify, set_up_history, tear_down)
{
    struct verify_result result;
    assert_int_equal(disk_verify_file(&w->folder, DISK_SEGMENT, 1, &result, &err), RP_OK);
    assert_false(result.damaged);
    assert_int_equal(result.chunks, 6);
    assert_int_equal(result.chunk_bytes, 24);
    assert_int_equal(result.types[ENTRY_INSERT], 6);
    assert_int_equal(result.records, 6);
    assert_int_equal(disk_verify_file(&w->folder, DISK_CHECKPOINT, 2, &result, &err), RP_OK);
    assert_false(result.damaged);
    assert_int_equal(result.checkpoint.base, 1);
    assert_int_equal(result.end.items, 5);
    assert_int_equal(disk_verify_file(&w->folder, DISK_CHECKPOINT, 9, &result, &err), RP_NOT_FOUND);
    flip(w, DISK_SEGMENT, 1, disk_offset(w->place[2]) + 40);
    assert_int_equal(disk_verify_file(&w->folder, DISK_SEGMENT, 1, &result, &err), RP_OK);
    assert_true(result.damaged);
    assert_int_equal(result.damaged_at, disk_offset(w->place[2]));
    assert_int_equal(result.records, 5); /* it goes on after the damage */
    assert_true(facts_within(result.text, "checksum"));
    char path[256];
    path_of(w, DISK_CHECKPOINT, 2, path, sizeof path);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(truncate(path, about.st_size - 8), 0);
    assert_int_equal(disk_verify_file(&w->folder, DISK_CHECKPOINT, 2, &result, &err), RP_OK);
    assert_true(result.damaged);
}
