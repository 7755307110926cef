#include "broker/disk/folder.h"

#include <fcntl.h>

#include "proto/base/crc32c.h"
#include "tests/support/diskfile.h"

static void write_file(const char *folder, const char *name, const void *data, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

static bool is_there(const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void make(const struct folder *folder, enum disk_kind kind, uint64_t number, bool finish)
{
    int file = folder_create(folder, kind, number, &err);
    if (file < 0)
        fail_msg("%s", err.text);
    if (finish && kind == DISK_CHECKPOINT)
        assert_int_equal(folder_finish(folder, number, file, NULL), RP_OK);
    close(file);
}

static void open_folder(struct folder *folder, const char *path, bool write)
{
    ok(folder_open(folder, path, write, &err));
}

TEST(names)
{
    char name[64];
    folder_name(DISK_SEGMENT, 7, false, name, sizeof name);
    assert_string_equal(name, "segment-00000007.replay");
    folder_name(DISK_CHECKPOINT, 123456789012, true, name, sizeof name);
    assert_string_equal(name, "checkpoint-123456789012.replay.part");
}

TEST(listing)
{
    char *path = diskfile_folder();
    struct folder folder;
    open_folder(&folder, path, true);
    assert_true(folder.id != 0);
    assert_int_equal(folder.n_files, 0);
    assert_int_equal(folder_next(&folder, DISK_SEGMENT), 1);
    make(&folder, DISK_SEGMENT, 2, true);
    make(&folder, DISK_SEGMENT, 10, true);
    make(&folder, DISK_CHECKPOINT, 1, true);
    make(&folder, DISK_SEGMENT, 1, true);
    make(&folder, DISK_CHECKPOINT, 4, false);
    assert_int_equal(folder_list(&folder, NULL), RP_OK);
    assert_int_equal(folder.n_files, 4);
    const uint64_t numbers[] = {1, 2, 10, 1};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(folder.files[i].number, numbers[i]);
        assert_int_equal(folder.files[i].kind, i < 3 ? DISK_SEGMENT : DISK_CHECKPOINT);
        assert_int_equal(folder.files[i].bytes, FILE_HEAD_BYTES);
        assert_true(folder.files[i].mine && folder.files[i].changed_ns > 0);
    }
    assert_int_equal(folder_next(&folder, DISK_SEGMENT), 11);
    assert_int_equal(folder_next(&folder, DISK_CHECKPOINT), 5);
    assert_non_null(folder_find(&folder, DISK_SEGMENT, 10));
    assert_null(folder_find(&folder, DISK_CHECKPOINT, 10));
    /* The id stays, and whoever only reads needs no lock. */
    struct folder reader;
    open_folder(&reader, path, false);
    assert_int_equal(reader.id, folder.id);
    assert_int_equal(reader.n_files, 4);
    int file = folder_read(&reader, DISK_CHECKPOINT, 1, NULL);
    assert_true(file >= 0);
    close(file);
    folder_close(&reader);
    assert_true(is_there(path, "checkpoint-00000004.replay.part"));
    folder_close(&folder);
    diskfile_remove(&path);
}

TEST(lock)
{
    char *path = diskfile_folder();
    struct folder first, second;
    open_folder(&first, path, true);
    assert_int_equal(folder_open(&second, path, true, &err), RP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, path));
    char process[32];
    snprintf(process, sizeof process, "process %ld", (long)getpid());
    assert_non_null(strstr(err.text, process));
    folder_close(&first);
    open_folder(&second, path, true);
    folder_close(&second);
    diskfile_remove(&path);
}

TEST(made_if_missing)
{
    char *path = diskfile_folder();
    char deep[128], middle[128];
    snprintf(middle, sizeof middle, "%s/a", path);
    snprintf(deep, sizeof deep, "%s/a/b", path);
    struct folder folder;
    assert_int_equal(folder_open(&folder, deep, false, &err), RP_NOT_FOUND);
    open_folder(&folder, deep, true);
    folder_close(&folder);
    write_file(path, "file", "x", 1);
    char file[128];
    snprintf(file, sizeof file, "%s/file", path);
    assert_int_equal(folder_open(&folder, file, true, &err), RP_IO);
    char lock[160];
    snprintf(lock, sizeof lock, "%s/replay.lock", deep);
    unlink(lock);
    rmdir(deep);
    rmdir(middle);
    diskfile_remove(&path);
}

/* Files of others, whatever they are called, outlive everything that the broker does. */
TEST(foreign_files_survive)
{
    const char *names[] = {
        "segment-00000003.replay",         "checkpoint-00000002.replay", "checkpoint-00000003.replay.part",
        "checkpoint-00000009.replay.part", "segment-3.replay",           "notes.txt"};
    char *path = diskfile_folder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        write_file(path, names[i], "a file of somebody else, and longer than a head of ours", 40);
    write_file(path, "segment-00000004.replay", "", 0);
    struct folder folder;
    open_folder(&folder, path, true);
    make(&folder, DISK_SEGMENT, folder_next(&folder, DISK_SEGMENT), true);
    make(&folder, DISK_CHECKPOINT, folder_next(&folder, DISK_CHECKPOINT), true);
    assert_int_equal(folder_list(&folder, NULL), RP_OK);
    assert_true(folder_find(&folder, DISK_SEGMENT, 5)->mine && folder_find(&folder, DISK_CHECKPOINT, 10)->mine);
    assert_false(folder_find(&folder, DISK_SEGMENT, 3)->mine || folder_find(&folder, DISK_SEGMENT, 4)->mine);
    assert_int_equal(folder_read(&folder, DISK_SEGMENT, 3, &err), -1);
    assert_int_equal(folder_remove(&folder, DISK_SEGMENT, 3, false, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_remove(&folder, DISK_SEGMENT, 4, false, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_remove(&folder, DISK_CHECKPOINT, 3, true, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_create(&folder, DISK_SEGMENT, 3, &err), -1);
    assert_int_equal(folder_create(&folder, DISK_CHECKPOINT, 3, &err), -1);
    /* A finished checkpoint does not take the place of one of somebody else. */
    int part = folder_create(&folder, DISK_CHECKPOINT, 2, &err);
    assert_true(part >= 0);
    assert_int_equal(folder_finish(&folder, 2, part, &err), RP_IO);
    close(part);
    assert_int_equal(folder_remove(&folder, DISK_CHECKPOINT, 2, true, NULL), RP_OK);
    folder_close(&folder);
    open_folder(&folder, path, true);
    folder_close(&folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(is_there(path, names[i]));
    assert_true(is_there(path, "segment-00000004.replay"));
    diskfile_remove(&path);
}

TEST(parts_go_at_the_start)
{
    char *path = diskfile_folder();
    struct folder folder;
    open_folder(&folder, path, true);
    make(&folder, DISK_CHECKPOINT, 1, true);
    make(&folder, DISK_CHECKPOINT, 2, false);
    folder_close(&folder);
    open_folder(&folder, path, false);
    folder_close(&folder);
    assert_true(is_there(path, "checkpoint-00000002.replay.part"));
    open_folder(&folder, path, true);
    assert_false(is_there(path, "checkpoint-00000002.replay.part"));
    assert_true(is_there(path, "checkpoint-00000001.replay"));
    assert_int_equal(folder_next(&folder, DISK_CHECKPOINT), 2);
    folder_close(&folder);
    diskfile_remove(&path);
}

TEST(remove_and_missing)
{
    char *path = diskfile_folder();
    struct folder folder;
    open_folder(&folder, path, true);
    make(&folder, DISK_SEGMENT, 1, true);
    assert_int_equal(folder_remove(&folder, DISK_SEGMENT, 1, false, NULL), RP_OK);
    assert_false(is_there(path, "segment-00000001.replay"));
    assert_int_equal(folder_remove(&folder, DISK_SEGMENT, 1, false, NULL), RP_OK);
    assert_int_equal(folder_read(&folder, DISK_SEGMENT, 1, &err), -1);
    assert_int_equal(err.status, RP_NOT_FOUND);
    folder_close(&folder);
    diskfile_remove(&path);
}

static void copy_file(const char *from, const char *name, const char *to, const char *as)
{
    char path[256];
    uint8_t data[4096];
    snprintf(path, sizeof path, "%s/%s", from, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    write_file(to, as, data, size);
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
    assert_int_equal(folder_open(&folder, two, true, &err), RP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "segment-00000001.replay"));
    assert_non_null(strstr(err.text, "segment-00000002.replay"));
    assert_int_equal(folder_open(&folder, two, false, &err), RP_FAILED_PRECONDITION);
    diskfile_remove(&one);
    diskfile_remove(&two);
}

/* A head with any byte changed is nobody's; the file stays. */
TEST(damaged_heads)
{
    char *path = diskfile_folder();
    struct folder folder;
    open_folder(&folder, path, true);
    make(&folder, DISK_SEGMENT, 1, true);
    make(&folder, DISK_SEGMENT, 2, true);
    folder_close(&folder);
    char file[256];
    snprintf(file, sizeof file, "%s/segment-00000002.replay", path);
    for (uint32_t i = 0; i < FILE_HEAD_BYTES; i++) {
        int handle = open(file, O_RDWR);
        uint8_t byte;
        assert_int_equal(pread(handle, &byte, 1, i), 1);
        uint8_t other = byte ^ 4;
        assert_int_equal(pwrite(handle, &other, 1, i), 1);
        open_folder(&folder, path, true);
        assert_true(folder_find(&folder, DISK_SEGMENT, 1)->mine);
        assert_false(folder_find(&folder, DISK_SEGMENT, 2)->mine);
        assert_int_equal(folder_read(&folder, DISK_SEGMENT, 2, NULL), -1);
        assert_int_equal(folder_remove(&folder, DISK_SEGMENT, 2, false, NULL), RP_FAILED_PRECONDITION);
        folder_close(&folder);
        assert_int_equal(pwrite(handle, &byte, 1, i), 1);
        close(handle);
    }
    /* Renamed: sound, but not what its name says. */
    copy_file(path, "segment-00000001.replay", path, "segment-00000003.replay");
    open_folder(&folder, path, true);
    assert_true(folder_find(&folder, DISK_SEGMENT, 2)->mine);
    assert_false(folder_find(&folder, DISK_SEGMENT, 3)->mine);
    folder_close(&folder);
    diskfile_remove(&path);
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
        write_file(path, "segment-00000001.replay", &head, sizeof head);
        snprintf(words, sizeof words, "version %u", version);
        err = (rp_error){0};
        assert_int_equal(folder_open(&folder, path, true, &err), RP_UNSUPPORTED);
        assert_non_null(strstr(err.text, words));
        open_folder(&folder, path, false);
        assert_true(folder.files[0].mine);
        assert_int_equal(folder_read(&folder, DISK_SEGMENT, 1, &err), -1);
        assert_int_equal(err.status, RP_UNSUPPORTED);
        assert_non_null(strstr(err.text, words));
        folder_close(&folder);
        diskfile_remove(&path);
    }
}

/* Started with fewer shards than before, or with none, data would be left behind. */
TEST(shards)
{
    char *path = diskfile_folder(), part[4][256];
    struct folder folder;
    for (uint32_t i = 0; i < 4; i++)
        snprintf(part[i], sizeof part[i], "%s/shard-%u", path, i);
    assert_int_equal(folder_check_shards(path, 1, &err), RP_OK);
    assert_int_equal(folder_check_shards(part[0], 2, &err), RP_OK);
    for (uint32_t i = 0; i < 3; i++) {
        open_folder(&folder, part[i], true);
        make(&folder, DISK_SEGMENT, 1, true);
        folder_close(&folder);
    }
    assert_int_equal(folder_check_shards(path, 1, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_check_shards(part[1], 2, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(folder_check_shards(part[1], 3, &err), RP_OK);
    assert_int_equal(folder_check_shards(part[3], 4, &err), RP_OK); /* more than before */
    open_folder(&folder, path, true);
    make(&folder, DISK_CHECKPOINT, 1, true);
    folder_close(&folder);
    assert_int_equal(folder_check_shards(part[1], 3, &err), RP_FAILED_PRECONDITION);
    for (uint32_t i = 0; i < 3; i++) {
        char *own = strdup(part[i]);
        diskfile_remove(&own);
    }
    diskfile_remove(&path);
}
