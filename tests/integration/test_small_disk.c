/* A real broker on a file system of a few MiB.
 *
 * Little live data at full speed: nobody ever waits for long, the folder stays below the bound that docs/OPERATE.md
 * gives, and a broker that starts on a disk that is nearly full makes room first. RP_DISK_SECONDS: how long each run
 * writes. Unset: until it has written many times what the disk holds.
 *
 * A disk that is full: writers wait, everybody who asks is told why, nothing is torn or lost, also if the broker is
 * killed meanwhile, and all goes on when there is room. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "proto/base/clock.h"
#include "tests/support/asked.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define DISK_BYTES (24 * MIB)
#define ITEMS 50u
#define WORDS 512u /* of a row */
#define ROW_BYTES (4 * WORDS)
/* Of a row on disk, and of what a whole checkpoint of so small a state takes. */
#define LIVE_BYTES (ITEMS * (ROW_BYTES + 128) + 64 * KIB)
#define WRITTEN_BYTES (8 * DISK_BYTES)

struct scene {
    struct broker_process broker;
    rp_client *client;
    pthread_t writer;
    uint64_t most;                /* rows that the writer writes */
    atomic_bool stop, done, told; /* told: a time-out of the writer has named the disk */
    atomic_ullong rows;           /* appended so far */
};

static int set_up(void **state)
{
    *state = calloc(1, sizeof(struct scene));
    return tempdir_enter(NULL);
}

static int tear_down(void **state)
{
    free(*state);
    return tempdir_leave(NULL);
}

#define DISK_TEST(title) TEST_WITH(struct scene, self, title, set_up, tear_down)

/* A machine that lets nobody mount skips the test. */
static void begin(struct scene *self, uint64_t bytes, const char *table, const char *keys)
{
    if (!tempdir_mount(textf("size=%llu", (unsigned long long)bytes)))
        skip();
    self->most = UINT64_MAX;
    broker_process_start(&self->broker, textf("  - {name: t, limiter: {kind: none}, %s}\n", table),
                         textf("folder: %s/journal\n%s\n", tempdir, keys));
}

static void end(struct scene *self)
{
    assert_int_equal(WEXITSTATUS(broker_process_stop(&self->broker, SIGTERM)), 0);
    broker_process_fini(&self->broker);
}

static void kill_and_restart(struct scene *self)
{
    broker_process_stop(&self->broker, SIGKILL);
    broker_process_again(&self->broker, NULL);
}

static rp_client *connect_to(const struct scene *self)
{
    return CONNECT(self->broker.service, .backoff_min_ms = 5, .backoff_max_ms = 40);
}

/* Does not compress. The first word of a row is its number. */
static uint32_t word(uint32_t row, uint32_t k)
{
    uint64_t x = ((uint64_t)row << 16 | k) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 31) * UINT64_C(0xBF58476D1CE4E5B9);
    return k ? (uint32_t)(x >> 32) : row;
}

static void *write_rows(void *ctx)
{
    struct scene *self = ctx;
    static uint32_t row[WORDS];
    SCOPED(rp_client) client = connect_to(self);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT32, .rank = 1, .shape = {WORDS}};
    rp_writer *writer = WRITER(client, &column, 1);
    while (!atomic_load(&self->stop) && atomic_load(&self->rows) < self->most) {
        uint32_t i = (uint32_t)atomic_fetch_add(&self->rows, 1);
        for (uint32_t k = 0; k < WORDS; k++)
            row[k] = word(i, k);
        ok(rp_writer_append(writer, (const void *[]){row}, WAIT, &err));
        ok(rp_writer_item_last(writer, "t", 1, 1, WAIT, NULL, &err));
    }
    while (rp_writer_flush(writer, 0, 1000, &err) == RP_DEADLINE_EXCEEDED)
        if (strstr(err.text, "No space left on device"))
            atomic_store(&self->told, true);
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
    atomic_store(&self->done, true);
    return NULL;
}

static void write_begin(struct scene *self)
{
    self->stop = self->done = false;
    assert_int_equal(pthread_create(&self->writer, NULL, write_rows, self), 0);
}

/* Samples n items, which must be whole rows. in_order: they begin with 0, and each is the next one. Otherwise they are
 * rows of `least` or later. */
static void check_rows(struct scene *self, uint32_t n, bool in_order, uint32_t least)
{
    SCOPED(rp_client) client = connect_to(self);
    SCOPED(rp_sampler) sampler = SAMPLER(client, "t", .batch_size = 16, .fill = RP_FILL_AT_ONCE, .max_samples = n);
    uint32_t taken = 0, rows = (uint32_t)atomic_load(&self->rows);
    for (rp_batch *batch = NULL; rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK; rp_batch_release(&batch)) {
        const rp_field_view *field = rp_batch_find(batch, "x");
        const uint32_t *row = field->data;
        for (uint64_t i = 0; i < field->shape[0]; i++, taken++, row += WORDS) {
            assert_true(in_order ? row[0] == taken : row[0] >= least && row[0] < rows);
            for (uint32_t k = 1; k < WORDS; k++)
                assert_int_equal(row[k], word(row[0], k));
        }
    }
    assert_int_equal(taken, n);
}

/* ---- a disk that is large enough ---- */

static uint64_t folder_bytes(void)
{
    uint64_t sum = 0;
    uint32_t n;
    char **files = files_like(tempdir_at("journal/*"), &n);
    while (n > 0) {
        int64_t size = file_size(files[--n]); /* -1: it has just gone */
        sum += size > 0 ? (uint64_t)size : 0;
    }
    return sum;
}

/* As docs/OPERATE.md has it. */
static uint64_t most_bytes(uint64_t journal_max, uint64_t keep)
{
    uint64_t stretch = journal_max > LIVE_BYTES ? journal_max : LIVE_BYTES;
    return (keep + 3) * (stretch + 2 * LIVE_BYTES + MIB);
}

/* Writes so much, or, if seconds are given, for so long. Gives the most that the folder had. */
static uint64_t write_much(struct scene *self, uint64_t bytes, const char *seconds)
{
    uint64_t first = atomic_load(&self->rows), most = 0;
    int64_t start = clock_ns();
    write_begin(self);
    for (bool more = true; more && !atomic_load(&self->done);) {
        uint64_t now = folder_bytes(), rows = atomic_load(&self->rows) - first;
        most = now > most ? now : most;
        more = seconds ? (double)(clock_ns() - start) * 1e-9 < atof(seconds) : rows * ROW_BYTES < bytes;
        usleep(200);
    }
    atomic_store(&self->stop, true);
    pthread_join(self->writer, NULL);
    if (bytes > MIB)
        printf("%.0f MiB written in %.1f s; the folder had %.1f MiB at most\n",
               (double)((atomic_load(&self->rows) - first) * ROW_BYTES) / (double)MIB,
               (double)(clock_ns() - start) * 1e-9, (double)most / (double)MIB);
    return most;
}

/* The table is whole, and the row that was written last is in it if the newest are kept. */
static void check_table(struct scene *self, bool newest)
{
    check_rows(self, 20 * ITEMS, false, newest ? (uint32_t)atomic_load(&self->rows) - ITEMS : 0);
}

static void stays_below(struct scene *self, const char *remover, const char *keys, uint64_t most, bool newest)
{
    begin(self, DISK_BYTES, textf("max_size: %u, sampler: {kind: uniform}, remover: {kind: %s}", ITEMS, remover), keys);
    assert_in_range(write_much(self, WRITTEN_BYTES, getenv("RP_DISK_SECONDS")), 1, most);
    kill_and_restart(self);
    check_table(self, newest);
    end(self);
}

DISK_TEST(the_folder_stays_below_its_bound)
{
    stays_below(self, "fifo", "journal_max: 1MiB", most_bytes(MIB, 3), true);
}

/* Something lives in every segment. */
DISK_TEST(so_it_does_if_items_stay_at_random)
{
    stays_below(self, "uniform", "journal_max: 1MiB\njournal: 0s", most_bytes(MIB, 3), false);
}

/* journal_max is many times the disk. */
DISK_TEST(a_small_disk_has_a_short_journal)
{
    stays_below(self, "uniform", "", DISK_BYTES, false);
}

/* Takes all of the disk but so many bytes. A broker may take some of it at the same time: then it is tried again. */
static void hog(uint64_t left)
{
    int file = open(tempdir_at("hog"), O_WRONLY | O_CREAT, 0644), failed = 0;
    do {
        struct statvfs about;
        assert_int_equal(statvfs(tempdir, &about), 0);
        uint64_t has = (uint64_t)about.f_bavail * about.f_frsize;
        failed = has > left ? posix_fallocate(file, 0, (off_t)(has - left)) : 0;
    } while (failed == ENOSPC);
    assert_int_equal(failed, 0);
    close(file);
}

/* The disk is nearly full, of a journal of dead data and of what others have put there. */
DISK_TEST(a_start_on_a_full_disk_makes_room_first)
{
    begin(self, DISK_BYTES, textf("max_size: %u, sampler: {kind: uniform}, remover: {kind: fifo}", ITEMS),
          "journal: never");
    while (folder_bytes() < 4 * MIB)
        write_much(self, 64 * KIB, NULL);
    broker_process_stop(&self->broker, SIGKILL);
    hog(600 * KIB);
    broker_process_again(&self->broker, NULL);
    wait_until(folder_bytes() < 5 * MIB / 2); /* what lives may lie in two segments of a MiB */
    check_table(self, true);
    write_much(self, 20 * MIB, NULL);
    check_table(self, true);
    end(self);
}

/* ---- a disk that is full ---- */

#define STEPS 3000u
#define QUEUE "max_size: 100000, sampler: {kind: fifo}, remover: {kind: fifo}, max_times_sampled: 1"

/* Whether the broker says that it waits for its journal, and why. */
static bool is_stuck(struct scene *self)
{
    char text[512] = "";
    asked_waits(self->client, "journal", text, sizeof text);
    return strstr(text, "No space left on device") != NULL;
}

static void write_until_stuck(struct scene *self)
{
    self->most = STEPS;
    write_begin(self);
    self->client = connect_to(self);
    wait_until(is_stuck(self));
}

static void make_room(void)
{
    assert_int_equal(mount("tmpfs", tempdir, "tmpfs", MS_REMOUNT, "size=64m"), 0);
}

static void finish(struct scene *self, bool kills)
{
    pthread_join(self->writer, NULL);
    if (kills)
        kill_and_restart(self);
    check_rows(self, STEPS, true, 0);
    rp_client_destroy(&self->client);
    end(self);
}

static void full_disk(struct scene *self, const char *sync, bool kills)
{
    begin(self, 2 * MIB, QUEUE, textf("session: {expiry: 3s}\njournal: %s", sync));
    write_until_stuck(self);
    if (kills)
        kill_and_restart(self);
    /* who comes now is let in, and told */
    rp_client_destroy(&self->client);
    self->client = connect_to(self);
    wait_until(is_stuck(self));
    wait_until(atomic_load(&self->told));
    make_room();
    finish(self, true);
}

DISK_TEST(writers_wait_for_a_full_disk)
{
    full_disk(self, "1s", false);
}

DISK_TEST(a_kill_on_a_full_disk_loses_nothing)
{
    full_disk(self, "0s", true);
}

/* Nothing at all can be written, and nobody will free space while the broker is told to end. */
DISK_TEST(the_end_does_not_wait_for_a_full_disk)
{
    begin(self, 2 * MIB, QUEUE, "session: {expiry: 3s}");
    hog(0);
    write_until_stuck(self);
    while (rp_counter_add(self->client, "n", 1, 1000, NULL, &err) == RP_OK)
        ;
    must_fail((rp_status)err.status, RP_DEADLINE_EXCEEDED, "No space left on device");
    rp_sampler *sampler = SAMPLER(self->client, "t", .batch_size = 1);
    must_fail(rp_sampler_next(sampler, &(rp_batch *){NULL}, 1000, &err), RP_DEADLINE_EXCEEDED, "No space left");
    rp_sampler_destroy(&sampler);
    int64_t from_ns = clock_ns();
    assert_int_equal(WEXITSTATUS(broker_process_stop(&self->broker, SIGTERM)), 0);
    assert_true(clock_ns() - from_ns < 60 * NS_PER_S); /* it tries for a second, twice */
    make_room();
    broker_process_again(&self->broker, NULL);
    finish(self, false);
}
