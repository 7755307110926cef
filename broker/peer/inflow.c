#include "broker/peer/inflow.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "broker/config/config.h"
#include "proto/base/clock.h"

/* Connections with descriptors beyond this are not counted: no Linux has more by default. */
#define CONNECTIONS_MOST (1 << 20)
#define MIB (UINT64_C(1) << 20)
/* Bound of a connection that is cut: its next bytes end it. */
#define CUT 1

/* By descriptor. Pages of descriptors that are not used take no memory. */
static struct connection {
    atomic_uint_fast64_t bytes;     /* since the last message that inflow_taken was called for */
    atomic_uint_fast64_t most;      /* 0: not counted */
    atomic_uint_fast64_t ask_above; /* bytes */
    atomic_int_fast64_t since_ns;   /* time of the first of these bytes */
    atomic_uint_fast64_t cookie;    /* of the socket: another one may have got the descriptor */
    const struct inflow_watch *_Atomic watch;
} connections[CONNECTIONS_MOST];

static atomic_int highest; /* descriptor */
static _Thread_local struct inflow_bounds binding;
atomic_bool inflow_asks;

/* Cut connections, and the last of them. */
static struct {
    pthread_mutex_t mutex;
    uint64_t n, bytes;
    char address[64];
} cut = {.mutex = PTHREAD_MUTEX_INITIALIZER};

uint64_t inflow_most_requests(const struct broker_config *config)
{
    return 2 * (uint64_t)config->max_message_bytes + 8 * MIB; /* one that is read, one behind it, and small ones */
}

uint64_t inflow_most_inserts(const struct broker_config *config)
{
    /* While the disk holds ingest up, all that was granted may wait; small frames have much around them. */
    uint64_t budget = (uint64_t)config_ingest_budget(config);
    return budget + budget / 2 + (uint64_t)config->max_message_bytes + MIB;
}

static struct connection *find(int descriptor)
{
    return descriptor >= 0 && descriptor < CONNECTIONS_MOST ? &connections[descriptor] : NULL;
}

static uint64_t cookie_of(int descriptor)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    return getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* ---- libzmq's threads ---- */

void inflow_bind(struct inflow_bounds bounds)
{
    binding = bounds;
}

int inflow_listen(int socket, int backlog)
{
    struct connection *at = find(socket);
    if (at) {
        atomic_store(&at->most, binding.first);
        atomic_store(&at->ask_above, binding.ask_above);
        atomic_store(&at->watch, binding.watch);
    }
    return (int)syscall(SYS_listen, socket, backlog);
}

void inflow_accepted(int listener, int descriptor)
{
    struct connection *from = find(listener), *at = find(descriptor);
    if (!from || !at)
        return;
    atomic_store(&at->bytes, 0);
    atomic_store(&at->ask_above, atomic_load(&from->ask_above));
    atomic_store(&at->watch, atomic_load(&from->watch));
    atomic_store(&at->most, atomic_load(&from->most));
    atomic_store(&at->cookie, atomic_load(&at->most) ? cookie_of(descriptor) : 0);
    int most = atomic_load(&highest);
    while (descriptor > most && !atomic_compare_exchange_weak(&highest, &most, descriptor)) {
    }
}

static void note_cut(int descriptor, uint64_t bytes)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    char host[48] = "-", port[8] = "";
    if (getpeername(descriptor, (struct sockaddr *)&address, &size) == 0 && address.ss_family != AF_UNIX)
        getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    pthread_mutex_lock(&cut.mutex);
    cut.n++;
    cut.bytes = bytes;
    snprintf(cut.address, sizeof cut.address, "%s%s%s", host, port[0] ? ":" : "", port);
    pthread_mutex_unlock(&cut.mutex);
}

/* True if the descriptor is still that of the accepted connection; otherwise nothing is counted for it any more. */
static bool is_same(int descriptor, struct connection *at)
{
    if (cookie_of(descriptor) == atomic_load(&at->cookie))
        return true;
    atomic_store(&at->most, 0);
    atomic_store(&at->bytes, 0);
    return false;
}

/* To libzmq, a connection that sends too much looks like one that is lost. */
ssize_t inflow_recv(int socket, void *data, size_t size, int flags)
{
    ssize_t n = syscall(SYS_recvfrom, socket, data, size, flags, NULL, NULL);
    struct connection *at = n > 0 ? find(socket) : NULL;
    uint64_t most = at ? atomic_load_explicit(&at->most, memory_order_relaxed) : 0;
    if (!most)
        return n;
    uint64_t before = atomic_fetch_add_explicit(&at->bytes, (uint64_t)n, memory_order_relaxed);
    uint64_t bytes = before + (uint64_t)n;
    if (before == 0)
        atomic_store_explicit(&at->since_ns, now_ns(), memory_order_relaxed);
    if (bytes > atomic_load_explicit(&at->ask_above, memory_order_relaxed) && !inflow_wants())
        atomic_store_explicit(&inflow_asks, true, memory_order_relaxed);
    if (bytes <= most || !is_same(socket, at))
        return n;
    if (most != CUT)
        note_cut(socket, bytes);
    errno = ECONNRESET;
    return -1;
}

/* ---- the core thread ---- */

void inflow_taken(int descriptor, uint64_t most)
{
    struct connection *at = find(descriptor);
    if (!at || !atomic_load_explicit(&at->most, memory_order_relaxed))
        return;
    atomic_store_explicit(&at->bytes, 0, memory_order_relaxed);
    if (most > atomic_load_explicit(&at->most, memory_order_relaxed))
        atomic_store_explicit(&at->most, most, memory_order_relaxed);
}

/* Returns what connections have unfinished; those below their ask_above do not count. *oldest: the descriptor of the one whose
 * message is unfinished for longest; -1: there is none. */
static uint64_t sum_up(const struct inflow_watch *watch, int *oldest)
{
    uint64_t sum = 0;
    *oldest = -1;
    for (int i = 0; i <= atomic_load_explicit(&highest, memory_order_relaxed); i++) {
        struct connection *at = &connections[i];
        uint64_t bytes = atomic_load_explicit(&at->bytes, memory_order_relaxed);
        if (bytes <= atomic_load_explicit(&at->ask_above, memory_order_relaxed))
            continue;
        if (atomic_load(&at->watch) != watch || !is_same(i, at))
            continue;
        sum += bytes;
        if (*oldest < 0 || atomic_load(&at->since_ns) < atomic_load(&connections[*oldest].since_ns))
            *oldest = i;
    }
    return sum;
}

void inflow_watch_init(struct inflow_watch *self)
{
    pthread_mutex_lock(&cut.mutex);
    self->cut = cut.n;
    pthread_mutex_unlock(&cut.mutex);
}

static void log_cuts(struct inflow_watch *self, int64_t now)
{
    uint32_t held;
    pthread_mutex_lock(&cut.mutex);
    bool more = cut.n != self->cut;
    if (more && log_allow(&self->log, 5, now, &held))
        log_line(LEVEL_WARN, "B0008", "connection cut: it sent a message without end", "address=%s bytes=%llu cut=%llu",
                 cut.address, (unsigned long long)cut.bytes, (unsigned long long)(cut.n - self->cut));
    self->cut = cut.n;
    pthread_mutex_unlock(&cut.mutex);
}

uint64_t inflow_check(struct inflow_watch *self, uint64_t most, int64_t now)
{
    int oldest = -1;
    uint64_t sum = inflow_wants() ? sum_up(self, &oldest) : 0;
    while (most && sum > most && oldest >= 0) {
        note_cut(oldest, atomic_load(&connections[oldest].bytes));
        atomic_store(&connections[oldest].most, CUT);
        atomic_store(&connections[oldest].bytes, 0);
        if (cookie_of(oldest) == atomic_load(&connections[oldest].cookie))
            shutdown(oldest, SHUT_RDWR);
        sum = sum_up(self, &oldest);
    }
    atomic_store_explicit(&inflow_asks, oldest >= 0, memory_order_relaxed);
    log_cuts(self, now);
    return sum;
}
