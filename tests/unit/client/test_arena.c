/* What a broker says about its memory is checked before it is mapped. */
#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "agent/client/conn/arena.h"
#include "tests/support/tempdir.h"

#define SIZE 8192u
#define NONCE UINT64_C(0x1122334455667788)

static int memory_new(unsigned seals)
{
    uint64_t nonce = NONCE;
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SIZE), 0);
    assert_int_equal(pwrite(fd, &nonce, sizeof nonce, 0), sizeof nonce);
    assert_int_equal(pwrite(fd, "data", 4, 4096), 4);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static Replay__Arena offer_of(int fd)
{
    Replay__Arena offer = REPLAY__ARENA__INIT;
    offer.pid = (uint32_t)getpid();
    offer.fd = (uint32_t)fd;
    offer.size = SIZE;
    offer.nonce = NONCE;
    return offer;
}

TEST(memory_is_mapped_once)
{
    int fd = memory_new(F_SEAL_SHRINK);
    Replay__Arena offer = offer_of(fd);
    struct conn_arena *first = conn_arena_map(NULL, &offer, false), *again = conn_arena_map(first, &offer, false);
    close(fd); /* it stays mapped */
    assert_non_null(first);
    assert_ptr_equal(first, again);
    assert_int_equal(first->size, SIZE);
    conn_arena_unref(&first);
    assert_null(first);
    assert_memory_equal(again->data + 4096, "data", 4);
    conn_arena_unref(&again);
    assert_null(conn_arena_map(NULL, NULL, false));
}

TEST(an_offer_that_is_not_what_it_says)
{
    int fd = memory_new(F_SEAL_SHRINK), loose = memory_new(0), folder = open("/", O_RDONLY | O_CLOEXEC), ends[2];
    assert_int_equal(pipe(ends), 0);
    const Replay__Arena good = offer_of(fd);
    struct conn_arena *arena = conn_arena_map(NULL, &good, false);
    assert_non_null(arena);
    Replay__Arena bad[11];
    for (uint32_t i = 0; i < 11; i++)
        bad[i] = good;
    bad[0].nonce++;
    bad[1].size = SIZE - 4096;
    bad[2].size = SIZE + 4096;
    bad[3].size = 0;
    bad[4].size = UINT64_MAX;
    bad[5].fd = (uint32_t)loose; /* it could become smaller while it is read */
    bad[6].fd = (uint32_t)ends[0];
    bad[7].fd = (uint32_t)folder;
    bad[8].fd = 1u << 30;
    bad[9].pid = UINT32_MAX;
    bad[10].pid = 1u << 30;
    for (uint32_t i = 0; i < 11; i++) {
        assert_null(conn_arena_map(NULL, &bad[i], false));
        if (i < 5) /* the others name what is mapped already */
            assert_null(conn_arena_map(arena, &bad[i], false));
    }
    setenv("REPLAY_SHM", "0", 1);
    assert_null(conn_arena_map(arena, &good, false));
    unsetenv("REPLAY_SHM");
    assert_null(conn_arena_map(arena, &good, true)); /* of a broker in this process only if it is asked for */
    conn_arena_unref(&arena);
    int fds[] = {fd, loose, folder, ends[0], ends[1]};
    for (uint32_t i = 0; i < 5; i++)
        close(fds[i]);
}

/* To open a pipe or a device has an effect on who uses it. */
TEST(nothing_but_a_file_is_opened, tempdir_enter, tempdir_leave)
{
    char event[sizeof(struct inotify_event) + 256];
    const char *path = tempdir_at("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC), opened = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_true(fd >= 0 && inotify_add_watch(opened, path, IN_OPEN) >= 0);
    Replay__Arena offer = offer_of(fd);
    assert_null(conn_arena_map(NULL, &offer, false));
    assert_int_equal(read(opened, event, sizeof event), -1);
    assert_int_equal(errno, EAGAIN);
    close(open(path, O_RDWR | O_CLOEXEC)); /* that one shows */
    assert_true(read(opened, event, sizeof event) > 0);
    close(opened);
    close(fd);
}
