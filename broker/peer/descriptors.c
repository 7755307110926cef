#include "broker/peer/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/config/config.h"
#include "broker/peer/imports.h"
#include "broker/peer/inflow.h"
#include "proto/base/log.h"
#include "proto/base/open_files.h"

/* Descriptors that connections never take: for journal, checkpoints and reads of spilled chunks. */
#define DESCRIPTORS_RESERVE 16u
/* Sockets, listeners, actors and their wake-up descriptors: about 20, with a disk about 40; each I/O thread takes two more. */
#define DESCRIPTORS_OWN 40u
#define DESCRIPTORS_PER_IO_THREAD 2u
/* A broker starts only if at least this many connections are possible: a client takes two or three. */
#define DESCRIPTORS_CONNECTIONS 8u

static atomic_int accept_below = INT32_MAX;
static atomic_int accept_spare = -1; /* a descriptor to give up for a connection that is refused */
static atomic_uint_fast64_t accept_refused;

static void spare_open(void)
{
    int spare = open("/dev/null", O_RDONLY | O_CLOEXEC), none = -1;
    if (spare >= 0 && !atomic_compare_exchange_strong(&accept_spare, &none, spare))
        close(spare);
}

/* libzmq's I/O threads call this function instead of the C library's. On EMFILE libzmq aborts the process if the
 * endpoint is ipc, and calls accept again without a pause if it is tcp. Here a connection that would take a reserved
 * descriptor is closed at once: its peer sees a lost connection, and reconnects later. */
static int guarded_accept4(int socket, struct sockaddr *restrict address, socklen_t *restrict size, int flags)
{
    int peer = (int)syscall(SYS_accept4, socket, address, size, flags);
    if (peer >= 0 && peer < atomic_load_explicit(&accept_below, memory_order_relaxed)) {
        inflow_accepted(socket, peer);
        return peer;
    }
    if (peer < 0 && errno != EMFILE)
        return -1;
    int spare = peer < 0 ? atomic_exchange(&accept_spare, -1) : -1;
    if (spare >= 0) {
        close(spare);
        peer = (int)syscall(SYS_accept4, socket, NULL, NULL, flags);
    }
    if (peer >= 0)
        close(peer);
    if (spare >= 0)
        spare_open();
    atomic_fetch_add_explicit(&accept_refused, 1, memory_order_relaxed);
    errno = ECONNABORTED;
    return -1;
}

static void guard(void)
{
    const struct import imports[] = {
        {"accept4", (void (*)(void))guarded_accept4},
        {"listen", (void (*)(void))inflow_listen},
        {"recv", (void (*)(void))inflow_recv},
    };
    spare_open();
    imports_replace(imports, sizeof imports / sizeof imports[0]);
}

rp_status descriptors_init(const struct broker_config *config, rp_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct rlimit limit;
    pthread_once(&once, guard);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return RP_OK;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (before != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        limit.rlim_cur = before;
        log_line(LEVEL_WARN, "B0004", "could not raise the number of open files", "limit=%llu",
                 (unsigned long long)before);
    }
    uint32_t need = DESCRIPTORS_OWN + DESCRIPTORS_PER_IO_THREAD * (uint32_t)config->io_threads + DESCRIPTORS_RESERVE +
                    DESCRIPTORS_CONNECTIONS;
    RP_TRY(open_files_check(need, "a broker", "three more for each client", err));
    atomic_store(&accept_below, limit.rlim_cur > INT32_MAX ? INT32_MAX : (int)(limit.rlim_cur - DESCRIPTORS_RESERVE));
    return RP_OK;
}

/* The lowest free descriptor is a lower bound on the number of open ones, and takes two system calls. */
void descriptors_check(struct descriptors_watch *self)
{
    if (atomic_load(&accept_spare) < 0)
        spare_open();
    int lowest = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), error = errno, below = atomic_load(&accept_below);
    if (lowest >= 0)
        close(lowest);
    bool few = lowest < 0 ? error == EMFILE : lowest > below / 5 * 4;
    if (few && !self->few)
        log_line(LEVEL_WARN, "B0006", "nearly out of file descriptors: raise 'ulimit -n'", "open=%d limit=%u", lowest,
                 (unsigned)below + DESCRIPTORS_RESERVE);
    uint64_t refused = atomic_load(&accept_refused);
    if (refused != self->refused)
        log_line(LEVEL_ERROR, "B0007", "connections refused: out of file descriptors, raise 'ulimit -n'",
                 "refused=%llu limit=%u", (unsigned long long)(refused - self->refused),
                 (unsigned)below + DESCRIPTORS_RESERVE);
    self->few = few;
    self->refused = refused;
}
