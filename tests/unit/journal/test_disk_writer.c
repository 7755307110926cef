/* The disk writer: order, what is durable when, and disks that cannot be written. Syncs that fail: test_sync_fault.c. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "broker/journal/disk_writer.h"
#include "proto/base/clock.h"
#include "tests/support/diskfile.h"
#include "tests/support/tempdir.h"

/* In front of the library's: slow if need be, how many there were, and how large the file was that was synced last. */
static _Atomic int sync_takes_us;
static _Atomic unsigned syncs;
static _Atomic off_t synced_bytes;

int fdatasync(int descriptor)
{
    struct stat state = {0};
    fstat(descriptor, &state);
    if (sync_takes_us)
        usleep((useconds_t)sync_takes_us);
    syncs++;
    int result = (int)syscall(SYS_fdatasync, descriptor);
    synced_bytes = state.st_size;
    return result;
}

static _Atomic int name_error; /* of fsync, which is for folders and checkpoints */

int fsync(int descriptor)
{
    errno = name_error;
    return name_error ? -1 : (int)syscall(SYS_fsync, descriptor);
}

struct desk {
    struct folder folder;
    struct disk_writer *disk_writer;
    uint64_t number, offset;
    struct disk_news news;
    uint64_t finished, abandoned;
};

/* again: in the folder that is there. */
static void desk_open(struct desk *self, bool again, enum fsync_mode mode)
{
    *self = (struct desk){.offset = FILE_HEAD_BYTES};
    assert_int_equal(again ? 0 : tempdir_enter(NULL), 0);
    ok(folder_open(&self->folder, tempdir, true, &err));
    self->disk_writer = must(disk_writer_new(&self->folder, mode, 20 * NS_PER_MS, &err));
}

static void desk_close(struct desk *self)
{
    disk_writer_destroy(&self->disk_writer, 2000);
    folder_close(&self->folder);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct desk, (void), desk_close)

/* A record with one entry that is `fill` all over. Gives its number. */
static uint64_t desk_write(struct desk *self, enum disk_kind kind, uint64_t file, uint64_t offset, size_t bytes,
                           uint8_t fill)
{
    size_t body = entry_padded(sizeof(struct entry_head) + bytes), size = sizeof(struct record_head) + body;
    struct disk_job *job = disk_job_new(size);
    job->what = DISK_JOB_RECORD;
    job->kind = kind;
    job->file = file;
    job->offset = offset;
    job->size = size;
    memset(job->data, fill, job->size);
    struct entry_head head = {.size = (uint32_t)(sizeof head + bytes), .type = ENTRY_COUNTER};
    memcpy(job->data + sizeof(struct record_head), &head, sizeof head);
    memset(job->data + job->size - (body - sizeof head - bytes), 0, body - sizeof head - bytes);
    if (kind == DISK_SEGMENT)
        job->number = ++self->number;
    disk_writer_give(self->disk_writer, job);
    return self->number;
}

static uint64_t desk_record(struct desk *self, uint64_t file, size_t bytes, uint8_t fill)
{
    uint64_t number = desk_write(self, DISK_SEGMENT, file, self->offset, bytes, fill);
    self->offset += sizeof(struct record_head) + entry_padded(sizeof(struct entry_head) + bytes);
    return number;
}

static void desk_job(struct desk *self, enum disk_job_what what, enum disk_kind kind, uint64_t file)
{
    struct disk_job *job = calloc(1, sizeof *job);
    job->what = what;
    job->kind = kind;
    job->file = file;
    disk_writer_give(self->disk_writer, job);
}

/* Takes news until `done`, for at most so long. */
static bool desk_await(struct desk *self, bool (*done)(const struct desk *, uint64_t), uint64_t value, int ms)
{
    int64_t end = clock_ns() + ms * NS_PER_MS;
    for (;;) {
        struct disk_news news;
        while (disk_writer_news(self->disk_writer, &news)) {
            assert_true(news.durable >= self->news.durable);
            self->news = news;
            if (news.finished)
                self->finished = news.finished;
            if (news.abandoned)
                self->abandoned = news.abandoned;
        }
        if (done(self, value))
            return true;
        if (clock_ns() >= end)
            return false;
        zmq_pollitem_t item = {disk_writer_socket(self->disk_writer), 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, 20);
    }
}

static bool is_durable(const struct desk *self, uint64_t number)
{
    return self->news.durable >= number;
}
static bool has_finished(const struct desk *self, uint64_t number)
{
    return self->finished == number;
}
static bool has_abandoned(const struct desk *self, uint64_t number)
{
    return self->abandoned == number;
}
static bool in_trouble(const struct desk *self, uint64_t wanted)
{
    return (self->news.trouble[0] != '\0') == (wanted != 0);
}

struct filled {
    uint8_t first;
    uint32_t n;
};

static void check_filled(void *ctx, const struct entry_view *entry)
{
    struct filled *self = ctx;
    assert_int_equal(entry->body[0], (uint8_t)(self->first + self->n++));
}

/* Reads a segment whose records have an entry each, and checks that they are filled with first, first + 1, ... Gives
 * their count. */
static uint32_t check_segment(struct desk *self, uint64_t number, uint8_t first)
{
    struct filled filled = {.first = first};
    diskfile_each(&self->folder, DISK_SEGMENT, number, check_filled, &filled);
    return filled.n;
}

TEST(records_are_written_in_order)
{
    for (int mode = FSYNC_NEVER; mode <= FSYNC_ALWAYS; mode++) {
        struct desk desk;
        desk_open(&desk, false, (enum fsync_mode)mode);
        for (uint32_t i = 0; i < 100; i++)
            desk_record(&desk, 1, 100 + i * 37, (uint8_t)i);
        desk_record(&desk, 1, 3 * RECORD_BYTES, 100);
        assert_true(desk_await(&desk, is_durable, 101, 60000));
        assert_int_equal(check_segment(&desk, 1, 0), 101);
        desk.offset = FILE_HEAD_BYTES;
        for (uint32_t i = 0; i < 10; i++)
            desk_record(&desk, 2, 5000, (uint8_t)(50 + i));
        assert_true(desk_await(&desk, is_durable, 111, 60000));
        assert_int_equal(check_segment(&desk, 1, 0), 101);
        assert_int_equal(check_segment(&desk, 2, 50), 10);
        desk_job(&desk, DISK_JOB_REMOVE, DISK_SEGMENT, 1);
        disk_writer_destroy(&desk.disk_writer, 1000);
        assert_true(folder_read(&desk.folder, DISK_SEGMENT, 1, &err) < 0);
        desk_close(&desk);
    }
}

/* What was given is written by the time that the disk writer has ended, and bytes are counted. */
CASE(the_end_waits_for_what_was_given)
{
    desk_open(f, false, FSYNC_ALWAYS);
    for (uint32_t i = 0; i < 200; i++)
        desk_record(f, 1, 20000, (uint8_t)i);
    disk_writer_destroy(&f->disk_writer, 5000);
    assert_int_equal(check_segment(f, 1, 0), 200);
}

/* The data of a large entry is put in by the disk writer. */
CASE(a_tail_is_copied_in)
{
    desk_open(f, false, FSYNC_INTERVAL);
    struct disk_job *job = calloc(1, sizeof *job);
    size_t head = sizeof(struct record_head) + sizeof(struct entry_head), bytes = 100003;
    *job = (struct disk_job){.what = DISK_JOB_RECORD,
                             .kind = DISK_SEGMENT,
                             .file = 1,
                             .offset = f->offset,
                             .number = ++f->number,
                             .data = calloc(1, head),
                             .size = sizeof(struct record_head) + entry_padded(sizeof(struct entry_head) + bytes),
                             .tail_at = head};
    struct entry_head entry = {.size = (uint32_t)(sizeof entry + bytes), .type = ENTRY_COUNTER};
    memcpy(job->data + sizeof(struct record_head), &entry, sizeof entry);
    zmq_msg_init_size(&job->tail, bytes);
    memset(zmq_msg_data(&job->tail), 9, bytes);
    disk_writer_give(f->disk_writer, job);
    assert_true(desk_await(f, is_durable, 1, 60000));
    assert_int_equal(check_segment(f, 1, 9), 1);
}

static bool exists(const struct desk *self, const char *name)
{
    return faccessat(self->folder.descriptor, name, F_OK, 0) == 0;
}

TEST(a_checkpoint_gets_its_name_at_the_end)
{
    for (int mode = FSYNC_NEVER; mode <= FSYNC_ALWAYS; mode++) {
        struct desk desk;
        desk_open(&desk, false, (enum fsync_mode)mode);
        desk_record(&desk, 1, 1000, 0);
        desk.offset = FILE_HEAD_BYTES;
        desk_record(&desk, 2, 1000, 0);
        desk_write(&desk, DISK_CHECKPOINT, 1, FILE_HEAD_BYTES, 1000, 1);
        assert_true(desk_await(&desk, is_durable, 2, 60000));
        assert_false(exists(&desk, "checkpoint-00000001.replay"));
        desk_job(&desk, DISK_JOB_FINISH, DISK_CHECKPOINT, 1);
        desk_record(&desk, 2, 1000, 1);
        assert_true(desk_await(&desk, has_finished, 1, 60000));
        assert_true(exists(&desk, "checkpoint-00000001.replay"));
        assert_false(exists(&desk, "checkpoint-00000001.replay.part"));
        /* one that is abandoned leaves nothing, and what still comes for it is dropped */
        desk_write(&desk, DISK_CHECKPOINT, 2, FILE_HEAD_BYTES, 1000, 1);
        desk_job(&desk, DISK_JOB_ABANDON, DISK_CHECKPOINT, 2);
        desk_write(&desk, DISK_CHECKPOINT, 2, FILE_HEAD_BYTES + 1032, 1000, 1);
        desk_job(&desk, DISK_JOB_FINISH, DISK_CHECKPOINT, 2);
        desk_write(&desk, DISK_CHECKPOINT, 3, FILE_HEAD_BYTES, 1000, 1);
        desk_job(&desk, DISK_JOB_FINISH, DISK_CHECKPOINT, 3);
        assert_true(desk_await(&desk, has_finished, 3, 60000));
        assert_false(exists(&desk, "checkpoint-00000002.replay"));
        assert_false(exists(&desk, "checkpoint-00000002.replay.part"));
        assert_int_equal(desk.abandoned, 0); /* who abandons it knows */
        /* one that was not finished at the end leaves nothing either */
        desk_write(&desk, DISK_CHECKPOINT, 4, FILE_HEAD_BYTES, 1000, 1);
        disk_writer_destroy(&desk.disk_writer, 1000);
        assert_false(exists(&desk, "checkpoint-00000004.replay.part"));
        desk_close(&desk);
    }
}

/* With a sync for everything, the end of a checkpoint between two records changes nothing about what is told when. */
CASE(a_checkpoint_does_not_hide_what_is_not_synced)
{
    desk_open(f, false, FSYNC_ALWAYS);
    sync_takes_us = 30000;
    desk_write(f, DISK_CHECKPOINT, 1, FILE_HEAD_BYTES, 1000, 1);
    desk_record(f, 1, 1000, 0); /* while this is synced the others come, and make one batch */
    usleep(10000);
    uint64_t last = desk_record(f, 1, 1000, 1);
    desk_job(f, DISK_JOB_FINISH, DISK_CHECKPOINT, 1);
    assert_true(desk_await(f, is_durable, last, 60000));
    assert_true(synced_bytes >= (off_t)f->offset);
    assert_true(desk_await(f, has_finished, 1, 60000));
    sync_takes_us = 0;
}

static void fill(int *ballast, size_t leave)
{
    *ballast = open(tempdir_at("ballast"), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    static char block[4096];
    memset(block, 1, sizeof block);
    while (write(*ballast, block, sizeof block) == (ssize_t)sizeof block) {
    }
    struct stat stat;
    assert_int_equal(fstat(*ballast, &stat), 0);
    assert_true((size_t)stat.st_size > leave);
    assert_int_equal(ftruncate(*ballast, (off_t)(stat.st_size - (off_t)leave)), 0);
}

static void full_disk_of_mode(enum fsync_mode mode)
{
    int ballast;
    struct desk desk;
    assert_int_equal(tempdir_enter(NULL), 0);
    if (!tempdir_mount("size=4m")) {
        assert_int_equal(tempdir_leave(NULL), 0);
        skip();
    }
    desk_open(&desk, true, mode);
    desk_record(&desk, 1, 1000, 0);
    assert_true(desk_await(&desk, is_durable, 1, 60000));
    fill(&ballast, 100 << 10);
    /* fits in part: cut back to the last whole record */
    uint64_t last = desk_record(&desk, 1, 300 << 10, 1);
    assert_true(desk_await(&desk, in_trouble, 1, 60000));
    assert_non_null(strstr(desk.news.trouble, "No space left on device"));
    assert_non_null(strstr(desk.news.trouble, "free some space"));
    assert_int_equal(check_segment(&desk, 1, 0), 1);
    last = desk_record(&desk, 1, 50 << 10, 2);
    assert_false(desk_await(&desk, is_durable, 2, 100));
    /* a removal further back makes room, and a checkpoint is given up at once */
    desk_write(&desk, DISK_CHECKPOINT, 1, FILE_HEAD_BYTES, 900 << 10, 1);
    desk_job(&desk, DISK_JOB_FINISH, DISK_CHECKPOINT, 1);
    assert_int_equal(ftruncate(ballast, 1 << 20), 0);
    assert_true(desk_await(&desk, is_durable, last, 60000));
    assert_true(desk_await(&desk, in_trouble, 0, 60000));
    assert_int_equal(check_segment(&desk, 1, 0), 3);
    assert_true(desk_await(&desk, has_finished, 1, 60000));
    fill(&ballast, 200 << 10);
    desk_write(&desk, DISK_CHECKPOINT, 2, FILE_HEAD_BYTES, 900 << 10, 1);
    desk_job(&desk, DISK_JOB_FINISH, DISK_CHECKPOINT, 2);
    assert_true(desk_await(&desk, has_abandoned, 2, 60000));
    assert_non_null(strstr(desk.news.why, "No space left on device"));
    assert_false(exists(&desk, "checkpoint-00000002.replay.part"));
    /* the journal is more than a checkpoint that has begun */
    desk_write(&desk, DISK_CHECKPOINT, 3, FILE_HEAD_BYTES, 150 << 10, 1);
    last = desk_record(&desk, 1, 120 << 10, 3);
    assert_true(desk_await(&desk, is_durable, last, 60000));
    assert_true(desk_await(&desk, has_abandoned, 3, 60000));
    /* what is removed further back makes room for what comes before it */
    fill(&ballast, 10 << 10);
    last = desk_record(&desk, 1, 600 << 10, 4);
    assert_true(desk_await(&desk, in_trouble, 1, 60000));
    desk_job(&desk, DISK_JOB_REMOVE, DISK_CHECKPOINT, 1);
    assert_true(desk_await(&desk, is_durable, last, 60000));
    assert_int_equal(check_segment(&desk, 1, 0), 5);
    /* the end does not wait for ever, and leaves nothing torn */
    desk_record(&desk, 1, 900 << 10, 5);
    disk_writer_destroy(&desk.disk_writer, 200);
    assert_int_equal(check_segment(&desk, 1, 0), 5);
    folder_close(&desk.folder);
    close(ballast);
    assert_int_equal(tempdir_leave(NULL), 0);
}

TEST(a_full_disk_is_waited_for)
{
    full_disk_of_mode(FSYNC_INTERVAL);
    full_disk_of_mode(FSYNC_ALWAYS);
}

/* A limit on the size of files is met in the middle of a record; anybody can set one. */
CASE(a_file_that_may_not_grow_is_cut_back)
{
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    desk_open(f, false, FSYNC_NEVER);
    desk_record(f, 1, 10000, 0);
    assert_true(desk_await(f, is_durable, 1, 60000));
    limit = (struct rlimit){30000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (uint32_t i = 1; i < 10; i++)
        desk_record(f, 1, 7000, (uint8_t)i);
    assert_true(desk_await(f, in_trouble, 1, 60000));
    assert_int_equal(f->news.durable, 3);
    assert_int_equal(check_segment(f, 1, 0), 3);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(desk_await(f, is_durable, 10, 60000));
    assert_true(desk_await(f, in_trouble, 0, 60000));
    assert_int_equal(check_segment(f, 1, 0), 10);
}

/* A record is not durable in a file whose name may be gone. */
CASE(a_name_that_cannot_be_synced_is_waited_for)
{
    desk_open(f, false, FSYNC_ALWAYS);
    name_error = EIO;
    uint64_t last = desk_record(f, 1, 1000, 0);
    assert_true(desk_await(f, in_trouble, 1, 60000));
    assert_non_null(strstr(f->news.trouble, "cannot be synced"));
    assert_false(desk_await(f, is_durable, last, 150));
    name_error = 0;
    assert_true(desk_await(f, is_durable, last, 60000));
    assert_true(desk_await(f, in_trouble, 0, 60000));
    assert_int_equal(check_segment(f, 1, 0), 1);
}

/* A new segment says that it goes on where the last one of the process before ends. If that end were lost with the power, the new
 * segment would look like one that others are missing before. */
TEST(what_a_process_before_has_left_is_synced_first)
{
    struct desk desk, next;
    desk_open(&desk, false, FSYNC_NEVER);
    desk_record(&desk, 1, 1000, 0);
    disk_writer_destroy(&desk.disk_writer, 5000);
    folder_close(&desk.folder);
    desk_open(&next, true, FSYNC_ALWAYS);
    name_error = EIO; /* the next segment cannot even be begun */
    syncs = 0;
    uint64_t last = desk_record(&next, 2, 1000, 1);
    assert_true(desk_await(&next, in_trouble, 1, 60000));
    assert_int_equal(syncs, 1);
    name_error = 0;
    assert_true(desk_await(&next, is_durable, last, 60000));
    desk_close(&next);
}
