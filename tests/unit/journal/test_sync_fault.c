/* A sync that fails, and takes with it what was written since the last one that worked: the broker writes all of that
 * anew, and what it then tells clients, and calls a checkpoint, does not rely on the hole. In every mode. */

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define TABLE "  - {name: t, max_size: 100000, sampler: {kind: uniform}, remover: {kind: fifo}}"
#define FILES 4096u
#define STEP 40u

/* ---- a disk that loses pages ---- */

static struct {
    pthread_mutex_t lock;
    struct {
        ino_t inode;
        off_t good; /* up to here it was synced */
    } files[FILES];
    uint32_t n;
    atomic_uint fail, failed; /* so many syncs are to fail; have failed */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct twin_folder folder;

static off_t *good_of(ino_t inode)
{
    for (uint32_t i = 0; i < disk.n; i++)
        if (disk.files[i].inode == inode)
            return &disk.files[i].good;
    assert_true(disk.n < FILES);
    disk.files[disk.n].inode = inode;
    disk.files[disk.n].good = 0;
    return &disk.files[disk.n++].good;
}

static void lose(int descriptor, off_t from, off_t to)
{
    static const char zeros[4096];
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    for (; file >= 0 && from < to; from += (off_t)sizeof zeros) {
        size_t size = to - from < (off_t)sizeof zeros ? (size_t)(to - from) : sizeof zeros;
        if (pwrite(file, zeros, size, from) < 0)
            break;
    }
    close(file);
}

/* In front of the library's. Fails for files of the folder alone. */
int fdatasync(int descriptor)
{
    struct stat about = {0};
    char link[64], path[300] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    pthread_mutex_lock(&disk.lock);
    fstat(descriptor, &about);
    off_t *good = good_of(about.st_ino);
    bool ours = readlink(link, path, sizeof path - 1) > 0 && strncmp(path, folder.path, strlen(folder.path)) == 0;
    bool fails = ours && disk.fail > 0 && about.st_size > *good;
    if (fails) {
        lose(descriptor, *good, about.st_size);
        disk.fail--;
        disk.failed++;
    }
    *good = about.st_size; /* Linux tells of it once */
    pthread_mutex_unlock(&disk.lock);
    errno = EIO;
    return fails ? -1 : 0;
}

/* ---- a broker ---- */

static int forget(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)kind;
    (void)at;
    pthread_mutex_lock(&disk.lock);
    *good_of(info->st_ino) = 0; /* another file may get its number */
    pthread_mutex_unlock(&disk.lock);
    return remove(path);
}

static void start(struct embed *embed, const char *mode, const char *where, const char *load)
{
    embed_start(embed, TABLE,
                textf("session: {expiry: 24h}\nfolder: %s\njournal: %s\ncheckpoint: {every: 0s, load: %s}\n", where,
                      mode, load));
}

/* Turns the loop until it is so. The broker's clock goes on, too: what failed is tried again. */
#define AWAIT(embed, condition)                                                                                        \
    do {                                                                                                               \
        struct clock clock_ = clock_system();                                                                          \
        int64_t end_ = clock_now(&clock_) + 60 * NS_PER_S;                                                             \
        while (!(condition) && clock_now(&clock_) < end_) {                                                            \
            (embed)->manual.now_ns += 10 * NS_PER_MS;                                                                  \
            broker_turn((embed)->broker, 1);                                                                           \
            zmq_poll(NULL, 0, 1); /* other threads have their turn */                                                  \
        }                                                                                                              \
        assert_true(condition);                                                                                        \
    } while (0)

static void ask_checkpoint(struct embed *embed, uint64_t *number)
{
    assert_int_equal(checkpoint_start(embed->broker->checkpoints, CHECKPOINT_ASKED, number, NULL), RP_OK);
}

static void remove_folder(const struct twin_folder *self)
{
    assert_int_equal(nftw(self->path, forget, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* A broker that starts from what is in the folder now, as after the machine has failed, has the items up to this key. */
static void check_copy(const char *mode, uint64_t keys, const char *load)
{
    struct embed embed;
    struct twin_folder copy;
    twin_folder_copy(&copy, &folder);
    start(&embed, mode, copy.path, load);
    struct testpeer *peer = testpeer_new(&embed);
    for (uint64_t key = 0; key < keys; key++) {
        struct testpeer_answer *answer = testpeer_fetch(peer, "t", 1, &key);
        assert_int_equal(answer->status, RP_OK);
        assert_int_equal(answer->reply->sample->n_key, 1);
        sampled_check(answer, 0);
        testpeer_forget(peer);
    }
    twin_kill(&embed);
    remove_folder(&copy);
}

static bool is_settled(const struct embed *embed)
{
    const struct stream *stream = embed->broker->stream;
    return stream->durable >= stream_now(stream);
}

static void insert(struct embed *embed, uint64_t *keys, unsigned fail)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    AWAIT(embed, is_settled(embed));
    disk.fail = fail;
    testpeer_insert(peer, "t", *keys, STEP, 1.0);
    *keys += STEP;
}

static bool is_healed(const struct embed *embed)
{
    const struct stream *stream = embed->broker->stream;
    return disk.fail == 0 && stream->bad_last == 0 && stream->trouble[0] == 0 && is_settled(embed) &&
           !checkpoint_is_running(embed->broker->checkpoints);
}

/* Until all is in the table, and on the disk. */
static void settle(struct embed *embed, bool journal, uint64_t keys)
{
    uint64_t number;
    AWAIT(embed, embed_table(embed, "t")->in.size == keys);
    if (!journal) {
        ask_checkpoint(embed, &number);
        AWAIT(embed, embed->broker->checkpoints->last.number == number);
    }
    AWAIT(embed, is_settled(embed));
}

/* once: one sync fails. Otherwise all do, until the test has looked at what is there meanwhile. */
static void loses_nothing(const char *mode, bool once)
{
    struct embed embed;
    uint64_t keys = 0, number = 0;
    bool journal = strcmp(mode, "off") != 0;
    twin_folder_init(&folder);
    start(&embed, mode, folder.path, "newest");
    struct stream *stream = embed.broker->stream;
    insert(&embed, &keys, 0);
    settle(&embed, journal, keys);
    ask_checkpoint(&embed, &number);
    AWAIT(&embed, embed.broker->checkpoints->last.number == number && is_settled(&embed));
    uint64_t failed = disk.failed;
    insert(&embed, &keys, once ? 1 : UINT32_MAX);
    uint64_t durable = stream->durable;
    if (strcmp(mode, "never") == 0 || !journal) { /* nothing else is synced */
        AWAIT(&embed, embed_table(&embed, "t")->in.size == keys);
        ask_checkpoint(&embed, &number);
    }
    AWAIT(&embed, disk.failed > failed && stream->failures > 0);
    if (!once) {
        assert_true(stream->bad_last > 0);
        assert_true(strcmp(mode, "0s") != 0 || stream->durable == durable);
        check_copy(mode, STEP, "salvage");        /* there is a hole, and the segment after it */
        AWAIT(&embed, disk.failed >= failed + 4); /* it is tried again, and comes to nothing */
        assert_true(stream->bad_last > 0 && stream->trouble[0]);
        assert_true(strcmp(mode, "0s") != 0 || stream->durable == durable);
        disk.fail = 0;
    }
    AWAIT(&embed, is_healed(&embed));
    settle(&embed, journal, keys);
    check_copy(mode, keys, "newest");
    insert(&embed, &keys, 0);
    settle(&embed, journal, keys);
    check_copy(mode, keys, "newest");
    twin_kill(&embed);
    remove_folder(&folder);
}

TEST(a_failed_sync_loses_nothing)
{
    static const char *const modes[] = {"never", "5ms", "0s", "off"};
    for (uint32_t i = 0; i < 4; i++) {
        loses_nothing(modes[i], true);
        loses_nothing(modes[i], false);
    }
}

/* While the segment is written anew, a chunk that lies there is in no item: only a session holds it. Then it comes into
 * one. */
static void a_later_item(const char *mode)
{
    struct embed embed;
    uint64_t keys = 0, number = 0;
    bool journal = strcmp(mode, "off") != 0;
    twin_folder_init(&folder);
    start(&embed, mode, folder.path, "newest");
    struct stream *stream = embed.broker->stream;
    struct table *table = embed_table(&embed, "t");
    insert(&embed, &keys, 0);
    struct testpeer *peer = testpeer_opened(&embed, false);
    settle(&embed, journal, keys);
    uint32_t layout = testpeer_plain(peer, "t"), failed = disk.failed;
    const void *blocks[] = {&keys};
    uint64_t chunk = testpeer_chunk(peer, 1, blocks, false), first_key = keys + 1000;
    disk.fail = 1;
    testpeer_item(peer, layout, first_key, 1.0, chunk, 0, 1);
    testpeer_push(peer);
    AWAIT(&embed, table->in.size == keys + 1);
    uint32_t slot = table_find(table, first_key);
    const struct chunk *held = table->in.items[slot].span.one;
    if (strcmp(mode, "never") == 0 || !journal) /* nothing else is synced */
        ask_checkpoint(&embed, &number);
    AWAIT(&embed, held->at != 0);
    uint64_t place = held->at;
    table_remove(table, slot);
    AWAIT(&embed, disk.failed > failed && stream->failures > 0);
    AWAIT(&embed, is_healed(&embed));
    assert_int_equal(held->at, place);
    testpeer_item(peer, layout, keys, 1.0, chunk, 0, 1);
    testpeer_push(peer);
    keys++;
    settle(&embed, journal, keys);
    assert_true(held->at != place);
    check_copy(mode, keys, "newest");
    twin_kill(&embed);
    remove_folder(&folder);
}

TEST(a_later_item_does_not_rely_on_it)
{
    static const char *const modes[] = {"never", "5ms", "0s", "off"};
    for (uint32_t i = 0; i < 4; i++)
        a_later_item(modes[i]);
}
