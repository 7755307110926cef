/* Checkpoints next to plain files of the same size. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench.h"
#include "replay/admin.h"

#define GOAL_WRITE 0.7
#define GOAL_STALL_MS 20.0
#define GOAL_SECOND 0.05
#define GOAL_LOAD 0.5
#define GOAL_STRETCH_MS 5.0
#define LOAD_ITEM_BYTES 1000u
#define STRETCH_ITEMS 10000000u
#define STRETCH_ITEM_BYTES 16u
#define ASK_MS 300000

/* ---- plain files ---- */

#define BLOCK_BYTES (1u << 20)

static void add_bytes(const char *path, void *ctx)
{
    struct stat found;
    if (stat(path, &found) == 0)
        *(double *)ctx += (double)found.st_size;
}

/* Seconds to write a file of this many bytes of random data in blocks of 1 MiB, with fsync; the file is removed.
 * Negative: failed. */
static double files_write(const char *folder, uint64_t bytes)
{
    static uint8_t data[BLOCK_BYTES];
    char path[4096];
    random_bytes(data, sizeof data);
    snprintf(path, sizeof path, "%s/plain", folder);
    double start = children_now();
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    bool ok = file >= 0;
    for (uint64_t at = 0; ok && at < bytes; at += BLOCK_BYTES) {
        size_t size = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        ok = write(file, data, size) == (ssize_t)size;
    }
    ok = ok && fsync(file) == 0;
    double took = children_now() - start;
    if (!ok)
        fprintf(stderr, "replay-bench: cannot write %s: %s\n", path, strerror(errno));
    if (file >= 0)
        close(file);
    unlink(path);
    return ok ? took : -1;
}

static void read_one(const char *path, void *ctx)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && read(file, ctx, BLOCK_BYTES) > 0) {
    }
    if (file >= 0)
        close(file);
}

/* Seconds to read all files of the folder in blocks of 1 MiB. */
static double files_read(const char *folder)
{
    static uint8_t data[BLOCK_BYTES];
    double start = children_now();
    files_each(folder, read_one, data);
    return children_now() - start;
}

static void forget_one(const char *path, void *ctx)
{
    (void)ctx;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

/* Asks the kernel to drop the cached pages, so that the next reader waits for the disk. */
static void files_forget(const char *folder)
{
    files_each(folder, forget_one, NULL);
}

/* ---- requests, each from a process of its own ---- */

enum { ASK_CHECKPOINT, ASK_STRETCH, ASK_RESET };

struct question {
    struct load load;
    int what;
};

static void ask_job(void *ctx)
{
    struct question *self = ctx;
    struct load *load = &self->load;
    rp_info *info = NULL;
    rp_client *client = load_client(load);
    load_ok(load, self->what == ASK_CHECKPOINT ? rp_admin_checkpoint(client, ASK_MS, &info, &load->err)
                  : self->what == ASK_STRETCH  ? rp_admin_info(client, NULL, 0, ASK_MS, &info, &load->err)
                                               : rp_admin_reset(client, LOAD_TABLE, ASK_MS, NULL, &load->err));
    load->tally->value[0] =
        rp_info_u64(info, self->what == ASK_STRETCH ? "server.longest_stretch_ns" : "written_bytes");
    load->tally->value[1] = rp_info_u64(info, self->what == ASK_STRETCH ? "server.chunk_count" : "took_ns");
    tally_set_state(load->tally, TALLY_DONE);
}

/* Sends the request and waits for the answer. NULL: an error was printed. */
static struct tally *ask(const struct options *options, const struct party *party, int what)
{
    struct question question = {.what = what};
    return load_init(&question.load, options, party) ? child_run(ask_job, &question, 300) : NULL;
}

static bool insert(const struct options *options, const struct party *party, uint64_t items)
{
    struct load load;
    bool ok = load_init(&load, options, party);
    load.fill = items;
    return ok && child_run(load_insert, &load, 300);
}

/* A broker that makes checkpoints when asked, with a full table. */
static bool start(struct options *options, char *folder, size_t size, char *extra, size_t extra_size,
                  struct party *party)
{
    if (!files_folder(options->dir, folder, size))
        return false;
    snprintf(extra, extra_size, "folder: %s\njournal: off\ncheckpoint: {every: 0s}\n", folder);
    options->extra = extra;
    return run_broker(options, options->items, options->items, party);
}

/* ---- writing ---- */

static bool measure_writing(const struct options *given)
{
    double rate[MOST_REPEATS], plain[MOST_REPEATS], share = 0, bytes = 0;
    for (uint32_t i = 0; i < given->repeats; i++) {
        struct options options = *given;
        static struct party party;
        char folder[300], extra[400];
        bool ok = start(&options, folder, sizeof folder, extra, sizeof extra, &party);
        const struct tally *first = ok ? ask(&options, &party, ASK_CHECKPOINT) : NULL;
        if (first) {
            bytes = (double)first->value[0];
            double took = files_write(folder, first->value[0]);
            rate[i] = bytes / ((double)first->value[1] * 1e-9);
            plain[i] = took > 0 ? bytes / took : 0;
        }
        const struct tally *second =
            first && insert(&options, &party, options.items / 100) ? ask(&options, &party, ASK_CHECKPOINT) : NULL;
        if (second)
            share = (double)second->value[0] / bytes;
        run_end(&party);
        files_remove(folder);
        if (!second)
            return false;
    }
    report_value(given, "checkpoint: bytes written", bytes, 0, "B");
    report_value(given, "checkpoint: written per second", spread_of(rate, given->repeats).median / 1e6, 0, "MB/s");
    report_value(given, "plain file with fsync", spread_of(plain, given->repeats).median / 1e6, 0, "MB/s");
    report_value(given, "checkpoint / plain file", spread_ratio(rate, plain, given->repeats).median, GOAL_WRITE,
                 "ratio");
    report_cost(given, "second one after 1% change / first", share, GOAL_SECOND, "of its bytes");
    return true;
}

/* ---- a sampler meanwhile ---- */

static double stall_ms(const struct tally *tally)
{
    return (double)atomic_load(&tally->longest_ns) * 1e-6;
}

static bool measure_stall(const struct options *given)
{
    double quiet[MOST_REPEATS], during[MOST_REPEATS];
    for (uint32_t i = 0; i < given->repeats; i++) {
        struct options options = *given;
        static struct party party;
        char folder[300], extra[400];
        options.in_flight = 1;
        bool ok = start(&options, folder, sizeof folder, extra, sizeof extra, &party) &&
                  run_add_load(&options, &party, WORK_SAMPLE) && children_wait(options.warm_seconds);
        struct tally *tally = party.n_members ? party.members[0].tally : NULL;
        if (ok) {
            atomic_store(&tally->longest_ns, 0);
            ok = children_wait(options.seconds);
            quiet[i] = stall_ms(tally);
            atomic_store(&tally->longest_ns, 0);
            ok = ok && ask(&options, &party, ASK_CHECKPOINT) && children_wait(0.1);
            during[i] = stall_ms(tally);
        }
        run_end(&party);
        files_remove(folder);
        if (!ok)
            return false;
    }
    report_value(given, "longest wait of a sampler, no checkpoint", spread_of(quiet, given->repeats).median, 0, "ms");
    report_cost(given, "longest wait of a sampler meanwhile", spread_of(during, given->repeats).median, GOAL_STALL_MS,
                "ms");
    report_value(given, "  the worst of all repeats", spread_of(during, given->repeats).most, 0, "ms");
    return true;
}

/* ---- loading ---- */

static double start_seconds(const struct options *options)
{
    char service[160];
    double before = children_now();
    pid_t pid = child_start_broker(options, options->items, service, sizeof service);
    double took = children_now() - before;
    if (pid > 0)
        child_end(pid);
    return pid > 0 ? took : -1;
}

static bool measure_loading(const struct options *given)
{
    struct options options = *given;
    static struct party party;
    char folder[300], extra[400];
    options.size = LOAD_ITEM_BYTES;
    bool ok =
        start(&options, folder, sizeof folder, extra, sizeof extra, &party) && ask(&options, &party, ASK_CHECKPOINT);
    run_end(&party);
    double load[2][MOST_REPEATS], plain[2][MOST_REPEATS], bytes = 0;
    files_each(folder, add_bytes, &bytes);
    for (uint32_t i = 0; ok && i < given->repeats; i++)
        for (int warm = 0; ok && warm < 2; warm++) {
            if (!warm)
                files_forget(folder);
            plain[warm][i] = bytes / files_read(folder);
            if (!warm)
                files_forget(folder);
            double took = start_seconds(&options);
            ok = took > 0;
            load[warm][i] = bytes / took;
        }
    files_remove(folder);
    if (!ok)
        return false;
    for (int warm = 0; warm < 2; warm++) {
        if (!given->json)
            printf("  %s:\n", warm ? "from the page cache" : "from the disk");
        report_value(given, "load: files", bytes / 1e6, 0, "MB");
        report_value(given, "load: per second, with the broker's start",
                     spread_of(load[warm], given->repeats).median / 1e6, 0, "MB/s");
        report_value(given, "plain reading", spread_of(plain[warm], given->repeats).median / 1e6, 0, "MB/s");
        report_value(given, warm ? "load / plain reading, page cache" : "load / plain reading",
                     spread_ratio(load[warm], plain[warm], given->repeats).median, warm ? 0 : GOAL_LOAD, "ratio");
    }
    return true;
}

/* ---- the longest stretch ---- */

static bool measure_stretch(const struct options *given)
{
    struct options options = *given;
    static struct party party;
    char folder[300], extra[400];
    options.items = given->quick ? 100000 : STRETCH_ITEMS;
    options.size = STRETCH_ITEM_BYTES;
    /* Grows the table by a quarter, so that the surplus is evicted in bulk. */
    options.table_extra = "    soft_capacity: true\n";
    bool ok = start(&options, folder, sizeof folder, extra, sizeof extra, &party);
    const struct tally *filled = ok ? ask(&options, &party, ASK_STRETCH) : NULL;
    double fill_ms = filled ? (double)filled->value[0] * 1e-6 : 0;
    ok = filled && insert(&options, &party, options.items / 5) && children_wait(given->quick ? 0.2 : 2.0) &&
         ask(&options, &party, ASK_CHECKPOINT) && ask(&options, &party, ASK_RESET);
    const struct tally *end = NULL;
    do /* the old contents are freed in slices */
        end = ok && children_wait(0.1) ? ask(&options, &party, ASK_STRETCH) : NULL;
    while (end && end->value[1] > 0);
    if (end) {
        report_value(given, "core thread: items", (double)options.items, 0, "");
        report_value(given, "  longest stretch while the table was filled", fill_ms, 0, "ms");
        report_cost(given, "  with checkpoint, reset, removal en masse", (double)end->value[0] * 1e-6, GOAL_STRETCH_MS,
                    "ms");
    }
    run_end(&party);
    files_remove(folder);
    return end != NULL;
}

bool command_checkpoint(struct options *options)
{
    options_settle(options);
    return measure_writing(options) && measure_stall(options) && measure_loading(options) && measure_stretch(options);
}
