#include "broker/peer/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/config/config.h"
#include "broker/peer/inflow.h"
#include "proto/base/log.h"

/* Descriptors that connections never take: for journal, checkpoints and reads of spilled chunks. */
#define DESCRIPTORS_RESERVE 16u
/* Sockets, listeners, actors and their wake-up descriptors: about 20, with a disk about 40; each I/O thread takes two more. */
#define DESCRIPTORS_OWN 40u
#define DESCRIPTORS_PER_IO_THREAD 2u
/* A broker starts only if at least this many connections are possible: a client takes two or three. */
#define DESCRIPTORS_CONNECTIONS 8u

static atomic_int accept_below = INT32_MAX;
static atomic_uint_fast64_t accept_refused;

/* libzmq's I/O threads call this definition instead of the C library's. On EMFILE libzmq aborts the process if the
 * endpoint is ipc, and calls accept again without a pause if it is tcp. Here a connection that would take a reserved
 * descriptor is closed at once: its peer sees a lost connection, and reconnects later. */
__attribute__((visibility("default"))) int accept4(int socket, struct sockaddr *restrict address,
                                                   socklen_t *restrict size, int flags)
{
    int peer = (int)syscall(SYS_accept4, socket, address, size, flags);
    if (peer >= 0 && peer < atomic_load_explicit(&accept_below, memory_order_relaxed)) {
        inflow_accepted(socket, peer);
        return peer;
    }
    if (peer < 0 && errno != EMFILE)
        return -1;
    if (peer >= 0)
        close(peer);
    atomic_fetch_add_explicit(&accept_refused, 1, memory_order_relaxed);
    errno = ECONNABORTED;
    return -1;
}

rp_status descriptors_init(const struct broker_config *config, rp_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return RP_OK;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (before != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        limit.rlim_cur = before;
        log_line(LEVEL_WARN, "B0004", "could not raise the number of open files", "limit=%llu",
                 (unsigned long long)before);
    }
    rlim_t need = DESCRIPTORS_OWN + DESCRIPTORS_PER_IO_THREAD * (rlim_t)config->io_threads + DESCRIPTORS_RESERVE +
                  DESCRIPTORS_CONNECTIONS;
    if (limit.rlim_cur < need)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "this process may open %llu files, and a broker needs at least %llu, and three more for each "
                       "client: raise 'ulimit -n' (systemd: LimitNOFILE)",
                       (unsigned long long)limit.rlim_cur, (unsigned long long)need);
    atomic_store(&accept_below, limit.rlim_cur > INT32_MAX ? INT32_MAX : (int)(limit.rlim_cur - DESCRIPTORS_RESERVE));
    return RP_OK;
}

/* The lowest free descriptor is a lower bound on the number of open ones, and takes two system calls. */
void descriptors_check(struct descriptors_watch *self)
{
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
