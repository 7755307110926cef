/* Little live data at full speed on a small disk: nobody ever waits for long, the folder stays below the bound that
 * docs/OPERATE.md gives, and a broker that starts on a disk that is nearly full makes room first. With a real broker on a
 * file system of a few MiB.
 *
 * RP_DISK_SECONDS: how long each run writes. Unset: until it has written many times what the disk holds. */

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "proto/base/clock.h"
#include "replay/admin.h"
#include "replay/replay.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define DISK_BYTES (24 * MIB)
#define ITEMS 50u
#define ROW_BYTES 2048u
/* Of a row on disk, and of what a whole checkpoint of so small a state takes. */
#define LIVE_BYTES (ITEMS * (ROW_BYTES + 128) + 64 * KIB)
#define WRITTEN_BYTES (8 * DISK_BYTES)

struct scene {
    struct broker_process broker;
    atomic_bool stop, failed;
    atomic_ullong rows; /* appended so far */
    char text[600];
};

static uint64_t folder_bytes(void)
{
    uint64_t sum = 0;
    DIR *dir = opendir(tempdir_at("journal"));
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat about;
        if (entry->d_name[0] != '.' && fstatat(dirfd(dir), entry->d_name, &about, 0) == 0)
            sum += (uint64_t)about.st_size;
    }
    closedir(dir);
    return sum;
}

/* As docs/OPERATE.md has it. */
static uint64_t most_bytes(uint64_t journal_max, uint64_t keep)
{
    uint64_t stretch = journal_max > LIVE_BYTES ? journal_max : LIVE_BYTES;
    return (keep + 3) * (stretch + 2 * LIVE_BYTES + MIB);
}

/* Does not compress. */
static uint32_t word(uint32_t row, uint32_t k)
{
    uint64_t x = ((uint64_t)row << 16 | k) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 31) * UINT64_C(0xBF58476D1CE4E5B9);
    return (uint32_t)(x >> 32);
}

static void *write_rows(void *ctx)
{
    struct scene *self = ctx;
    static uint32_t row[ROW_BYTES / 4];
    rp_client_options options = {.struct_size = sizeof options, .backoff_min_ms = 5, .backoff_max_ms = 40};
    rp_client *client = rp_client_connect(self->broker.service, &options, WAIT, &err);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT32, .rank = 1, .shape = {ROW_BYTES / 4}};
    rp_writer *writer = client ? rp_writer_new(client, &column, 1, NULL, WAIT, &err) : NULL;
    bool ok = writer != NULL;
    while (ok && !atomic_load(&self->stop)) {
        uint32_t i = (uint32_t)atomic_fetch_add(&self->rows, 1);
        for (uint32_t k = 1; k < ROW_BYTES / 4; k++)
            row[k] = word(i, k);
        row[0] = i;
        const void *values[] = {row};
        ok = rp_writer_append(writer, values, WAIT, &err) == RP_OK &&
             rp_writer_item_last(writer, "t", 1, 1, WAIT, NULL, &err) == RP_OK;
    }
    ok = ok && rp_writer_flush(writer, 0, WAIT, &err) == RP_OK;
    if (writer && rp_writer_destroy(&writer, WAIT, &err) != RP_OK)
        ok = false;
    if (!ok)
        snprintf(self->text, sizeof self->text, "writer: %s", err.text);
    atomic_store(&self->failed, !ok);
    rp_client_destroy(&client);
    return NULL;
}

static double now_s(void)
{
    return (double)clock_ns() * 1e-9;
}

/* Writes so much, or, if seconds are given, for so long. Gives the most that the folder had. */
static uint64_t write_much(struct scene *self, uint64_t bytes, const char *seconds)
{
    uint64_t first = atomic_load(&self->rows), most = 0;
    double start = now_s();
    pthread_t thread;
    atomic_store(&self->stop, false);
    assert_int_equal(pthread_create(&thread, NULL, write_rows, self), 0);
    for (bool more = true; more && !atomic_load(&self->failed);) {
        uint64_t now = folder_bytes(), rows = atomic_load(&self->rows) - first;
        most = now > most ? now : most;
        more = seconds ? now_s() - start < atof(seconds) : rows * ROW_BYTES < bytes;
        usleep(200);
    }
    atomic_store(&self->stop, true);
    pthread_join(thread, NULL);
    if (atomic_load(&self->failed))
        fail_msg("%s", self->text);
    if (bytes > MIB)
        printf("%.0f MiB written in %.1f s; the folder had %.1f MiB at most\n",
               (double)((atomic_load(&self->rows) - first) * ROW_BYTES) / (double)MIB, now_s() - start,
               (double)most / (double)MIB);
    return most;
}

/* The table is whole, and the row that was written last is in it if the newest are kept. */
static void check_items(struct scene *self, bool newest)
{
    rp_client *client = must(rp_client_connect(self->broker.service, NULL, WAIT, &err));
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = ITEMS, .max_samples = 20 * ITEMS};
    rp_sampler *sampler = must(rp_sampler_new(client, "t", &options, &err));
    uint32_t last = (uint32_t)atomic_load(&self->rows) - 1, n = 0;
    for (rp_batch *batch = NULL; rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK; rp_batch_release(&batch)) {
        const rp_field_view *field = rp_batch_find(batch, "x");
        const uint32_t *values = field->data;
        for (uint64_t i = 0; i < field->shape[0]; i++, n++) {
            const uint32_t *row = values + i * (ROW_BYTES / 4);
            assert_true(row[0] <= last && (!newest || row[0] > last - ITEMS));
            for (uint32_t k = 1; k < ROW_BYTES / 4; k++)
                assert_int_equal(row[k], word(row[0], k));
        }
    }
    assert_int_equal(n, 20 * ITEMS);
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
}

/* Takes all of the disk but so many bytes. */
static void hog(uint64_t left)
{
    struct statvfs about;
    assert_int_equal(statvfs(tempdir, &about), 0);
    uint64_t has = (uint64_t)about.f_bavail * about.f_frsize;
    int file = open(tempdir_at("hog"), O_WRONLY | O_CREAT, 0644);
    assert_true(file >= 0);
    if (has > left)
        assert_int_equal(posix_fallocate(file, 0, (off_t)(has - left)), 0);
    close(file);
}

static bool begin(struct scene *self, const char *remover, const char *keys)
{
    char tables[256], more[256];
    snprintf(more, sizeof more, "size=%llu", (unsigned long long)DISK_BYTES);
    if (!tempdir_mount(more))
        return false;
    snprintf(tables, sizeof tables,
             "  - {name: t, max_size: %u, sampler: {kind: uniform}, remover: {kind: %s}, limiter: {kind: none}}\n",
             ITEMS, remover);
    snprintf(more, sizeof more, "folder: %s/journal\n%s\n", tempdir, keys);
    broker_process_start(&self->broker, tables, more);
    return true;
}

static void end(struct scene *self)
{
    assert_int_equal(WEXITSTATUS(broker_process_stop(&self->broker, SIGTERM)), 0);
    broker_process_fini(&self->broker);
}

static void stays_below(const char *remover, const char *keys, uint64_t most, bool newest)
{
    struct scene self = {0};
    if (!begin(&self, remover, keys))
        skip();
    assert_in_range(write_much(&self, WRITTEN_BYTES, getenv("RP_DISK_SECONDS")), 1, most);
    broker_process_stop(&self.broker, SIGKILL);
    broker_process_again(&self.broker, NULL);
    check_items(&self, newest);
    end(&self);
}

TEST(the_folder_stays_below_its_bound, tempdir_enter, tempdir_leave)
{
    stays_below("fifo", "journal_max: 1MiB", most_bytes(MIB, 3), true);
}

/* Something lives in every segment. */
TEST(so_it_does_if_items_stay_at_random, tempdir_enter, tempdir_leave)
{
    stays_below("uniform", "journal_max: 1MiB\njournal: 0s", most_bytes(MIB, 3), false);
}

/* journal_max is many times the disk. */
TEST(a_small_disk_has_a_short_journal, tempdir_enter, tempdir_leave)
{
    stays_below("uniform", "", DISK_BYTES, false);
}

static int has_shrunk(void *ctx)
{
    (void)ctx;
    return folder_bytes() < 3 * MIB / 2; /* what lives, and a segment that the checkpoint names */
}

/* The disk is nearly full, of a journal of dead data and of what others have put there. */
TEST(a_start_on_a_full_disk_makes_room_first, tempdir_enter, tempdir_leave)
{
    struct scene self = {0};
    if (!begin(&self, "fifo", "journal: never"))
        skip();
    while (folder_bytes() < 2 * MIB)
        write_much(&self, 64 * KIB, NULL);
    broker_process_stop(&self.broker, SIGKILL);
    hog(600 * KIB);
    broker_process_again(&self.broker, NULL);
    assert_true(process_await(has_shrunk, &self));
    check_items(&self, true);
    write_much(&self, 20 * MIB, NULL);
    check_items(&self, true);
    end(&self);
}
