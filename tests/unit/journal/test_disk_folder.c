#include "broker/journal/folder.h"

#include <fcntl.h>

#include "proto/base/crc32c.h"
#include "tests/support/diskfile.h"
#include "tests/support/tempdir.h"

static void make(const struct folder *folder, enum disk_kind kind, uint64_t number, bool finish)
{
    int file = folder_create(folder, kind, number, &err);
    if (file < 0)
        fail_msg("%s", err.text);
    if (finish && kind == DISK_CHECKPOINT)
        assert_int_equal(folder_finish(folder, number, file, NULL), RP_OK);
    close(file);
}

/* A folder of the test's own, open for writing. */
struct fixture {
    char *path;
    struct folder folder;
};

static void open_folder(struct folder *folder, const char *path, bool write)
{
    ok(folder_open(folder, path, write, &err));
}

static void begin(struct fixture *f)
{
    f->path = diskfile_folder();
    open_folder(&f->folder, f->path, true);
}

static void end(struct fixture *f)
{
    folder_close(&f->folder);
    diskfile_remove(&f->path);
}

FIXTURE(struct fixture, begin, end)

static void reopen(struct fixture *f, bool write)
{
    folder_close(&f->folder);
    open_folder(&f->folder, f->path, write);
}

static bool is_there(const struct fixture *f, const char *name)
{
    return file_exists(file_in(f->path, name));
}

TEST(names)
{
    char name[64];
    folder_name(DISK_SEGMENT, 7, false, name, sizeof name);
    assert_string_equal(name, "segment-00000007.replay");
    folder_name(DISK_CHECKPOINT, 123456789012, true, name, sizeof name);
    assert_string_equal(name, "checkpoint-123456789012.replay.part");
}

CASE(listing)
{
    assert_true(f->folder.id != 0);
    assert_int_equal(f->folder.n_files, 0);
    assert_int_equal(folder_next(&f->folder, DISK_SEGMENT), 1);
    make(&f->folder, DISK_SEGMENT, 2, true);
    make(&f->folder, DISK_SEGMENT, 10, true);
    make(&f->folder, DISK_CHECKPOINT, 1, true);
    make(&f->folder, DISK_SEGMENT, 1, true);
    make(&f->folder, DISK_CHECKPOINT, 4, false);
    assert_int_equal(folder_list(&f->folder, NULL), RP_OK);
    assert_int_equal(f->folder.n_files, 4);
    const uint64_t numbers[] = {1, 2, 10, 1};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(f->folder.files[i].number, numbers[i]);
        assert_int_equal(f->folder.files[i].kind, i < 3 ? DISK_SEGMENT : DISK_CHECKPOINT);
        assert_int_equal(f->folder.files[i].bytes, FILE_HEAD_BYTES);
        assert_true(f->folder.files[i].mine && f->folder.files[i].changed_ns > 0);
    }
    assert_int_equal(folder_next(&f->folder, DISK_SEGMENT), 11);
    assert_int_equal(folder_next(&f->folder, DISK_CHECKPOINT), 5);
    assert_non_null(folder_find(&f->folder, DISK_SEGMENT, 10));
    assert_null(folder_find(&f->folder, DISK_CHECKPOINT, 10));
    /* The id stays, and whoever only reads needs no lock. */
    struct folder reader;
    open_folder(&reader, f->path, false);
    assert_int_equal(reader.id, f->folder.id);
    assert_int_equal(reader.n_files, 4);
    int file = folder_read(&reader, DISK_CHECKPOINT, 1, NULL);
    assert_true(file >= 0);
    close(file);
    folder_close(&reader);
    assert_true(is_there(f, "checkpoint-00000004.replay.part"));
}

CASE(lock)
{
    struct folder second;
    must_fail(folder_open(&second, f->path, true, &err), RP_FAILED_PRECONDITION, textf("process %ld", (long)getpid()));
    unlink(file_in(f->path, "replay.lock")); /* the folder is locked, too */
    must_fail(folder_open(&second, f->path, true, &err), RP_FAILED_PRECONDITION, f->path);
    reopen(f, true);
}

TEST(made_if_missing)
{
    char *path = diskfile_folder();
    char deep[128];
    snprintf(deep, sizeof deep, "%s/a/b", path);
    struct folder folder;
    assert_int_equal(folder_open(&folder, deep, false, &err), RP_NOT_FOUND);
    open_folder(&folder, deep, true);
    folder_close(&folder);
    file_put(file_in(path, "file"), "x");
    assert_int_equal(folder_open(&folder, file_in(path, "file"), true, &err), RP_IO);
    unlink(file_in(deep, "replay.lock"));
    rmdir(deep);
    rmdir(file_in(path, "a"));
    diskfile_remove(&path);
}

/* Files of others, whatever they are called, outlive everything that the broker does. */
CASE(foreign_files_survive)
{
    const char *names[] = {
        "segment-00000003.replay",         "checkpoint-00000002.replay", "checkpoint-00000003.replay.part",
        "checkpoint-00000009.replay.part", "segment-3.replay",           "notes.txt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        file_put(file_in(f->path, names[i]), "a file of somebody else, and longer than a head of ours");
    file_put(file_in(f->path, "segment-00000004.replay"), "");
    reopen(f, true);
    make(&f->folder, DISK_SEGMENT, folder_next(&f->folder, DISK_SEGMENT), true);
    make(&f->folder, DISK_CHECKPOINT, folder_next(&f->folder, DISK_CHECKPOINT), true);
    assert_int_equal(folder_list(&f->folder, NULL), RP_OK);
    assert_true(folder_find(&f->folder, DISK_SEGMENT, 5)->mine && folder_find(&f->folder, DISK_CHECKPOINT, 10)->mine);
    assert_false(folder_find(&f->folder, DISK_SEGMENT, 3)->mine || folder_find(&f->folder, DISK_SEGMENT, 4)->mine);
    assert_int_equal(folder_read(&f->folder, DISK_SEGMENT, 3, &err), -1);
    assert_int_equal(folder_remove(&f->folder, DISK_SEGMENT, 3, false, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_remove(&f->folder, DISK_SEGMENT, 4, false, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_remove(&f->folder, DISK_CHECKPOINT, 3, true, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_create(&f->folder, DISK_SEGMENT, 3, &err), -1);
    assert_int_equal(folder_create(&f->folder, DISK_CHECKPOINT, 3, &err), -1);
    /* A finished checkpoint does not take the place of one of somebody else. */
    int part = folder_create(&f->folder, DISK_CHECKPOINT, 2, &err);
    assert_true(part >= 0);
    assert_int_equal(folder_finish(&f->folder, 2, part, &err), RP_IO);
    close(part);
    assert_int_equal(folder_remove(&f->folder, DISK_CHECKPOINT, 2, true, NULL), RP_OK);
    reopen(f, true);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(is_there(f, names[i]));
    assert_true(is_there(f, "segment-00000004.replay"));
}

CASE(parts_go_at_the_start)
{
    make(&f->folder, DISK_CHECKPOINT, 1, true);
    make(&f->folder, DISK_CHECKPOINT, 2, false);
    reopen(f, false);
    assert_true(is_there(f, "checkpoint-00000002.replay.part"));
    reopen(f, true);
    assert_false(is_there(f, "checkpoint-00000002.replay.part"));
    assert_true(is_there(f, "checkpoint-00000001.replay"));
    assert_int_equal(folder_next(&f->folder, DISK_CHECKPOINT), 2);
}

CASE(remove_and_missing)
{
    make(&f->folder, DISK_SEGMENT, 1, true);
    assert_int_equal(folder_remove(&f->folder, DISK_SEGMENT, 1, false, NULL), RP_OK);
    assert_false(is_there(f, "segment-00000001.replay"));
    assert_int_equal(folder_remove(&f->folder, DISK_SEGMENT, 1, false, NULL), RP_OK);
    assert_int_equal(folder_read(&f->folder, DISK_SEGMENT, 1, &err), -1);
    assert_int_equal(err.status, RP_NOT_FOUND);
}

static void copy_file(const char *from, const char *name, const char *to, const char *as)
{
    size_t size;
    const char *data = file_bytes(file_in(from, name), &size);
    file_write(file_in(to, as), data, size, 0600);
}

TEST(two_folders_in_one)
{
    char *one = diskfile_folder(), *two = diskfile_folder();
    struct folder folder;
    open_folder(&folder, one, true);
    make(&folder, DISK_SEGMENT, 1, true);
    folder_close(&folder);
    open_folder(&folder, two, true);
    make(&folder, DISK_SEGMENT, 2, true);
    folder_close(&folder);
    copy_file(one, "segment-00000001.replay", two, "segment-00000001.replay");
    must_fail(folder_open(&folder, two, true, &err), RP_FAILED_PRECONDITION, "segment-00000001.replay");
    assert_non_null(strstr(err.text, "segment-00000002.replay"));
    assert_int_equal(folder_open(&folder, two, false, &err), RP_FAILED_PRECONDITION);
    diskfile_remove(&one);
    diskfile_remove(&two);
}

/* A head with any byte changed is nobody's; the file stays. */
CASE(damaged_heads)
{
    make(&f->folder, DISK_SEGMENT, 1, true);
    make(&f->folder, DISK_SEGMENT, 2, true);
    for (uint32_t i = 0; i < FILE_HEAD_BYTES; i++) {
        int handle = open(file_in(f->path, "segment-00000002.replay"), O_RDWR);
        uint8_t byte;
        assert_int_equal(pread(handle, &byte, 1, i), 1);
        uint8_t other = byte ^ 4;
        assert_int_equal(pwrite(handle, &other, 1, i), 1);
        reopen(f, true);
        assert_true(folder_find(&f->folder, DISK_SEGMENT, 1)->mine);
        assert_false(folder_find(&f->folder, DISK_SEGMENT, 2)->mine);
        assert_int_equal(folder_read(&f->folder, DISK_SEGMENT, 2, NULL), -1);
        assert_int_equal(folder_remove(&f->folder, DISK_SEGMENT, 2, false, NULL), RP_FAILED_PRECONDITION);
        assert_int_equal(pwrite(handle, &byte, 1, i), 1);
        close(handle);
    }
    /* Renamed: sound, but not what its name says. */
    copy_file(f->path, "segment-00000001.replay", f->path, "segment-00000003.replay");
    reopen(f, true);
    assert_true(folder_find(&f->folder, DISK_SEGMENT, 2)->mine);
    assert_false(folder_find(&f->folder, DISK_SEGMENT, 3)->mine);
}

TEST(another_version_is_refused)
{
    for (uint16_t version = DISK_VERSION - 1; version <= DISK_VERSION + 1; version += 2) {
        char *path = diskfile_folder(), words[32];
        struct folder folder;
        open_folder(&folder, path, true);
        struct file_head head = {
            .magic = "RPLYDIS", .version = version, .kind = DISK_SEGMENT, .number = 1, .folder = folder.id};
        head.magic[7] = 'K';
        head.crc = crc32c(0, &head, sizeof head);
        folder_close(&folder);
        file_write(file_in(path, "segment-00000001.replay"), &head, sizeof head, 0600);
        snprintf(words, sizeof words, "version %u", version);
        err = (rp_error){0};
        must_fail(folder_open(&folder, path, true, &err), RP_UNSUPPORTED, words);
        open_folder(&folder, path, false);
        assert_true(folder.files[0].mine);
        assert_int_equal(folder_read(&folder, DISK_SEGMENT, 1, &err), -1);
        assert_int_equal(err.status, RP_UNSUPPORTED);
        assert_non_null(strstr(err.text, words));
        folder_close(&folder);
        diskfile_remove(&path);
    }
}
