#include "broker/peer/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zmq.h>

#include "broker/config/config.h"
#include "proto/base/clock.h"
#include "proto/base/open_files.h"

/* ---- bytes of unfinished messages ---- */

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

/* ---- libzmq's threads ---- */

void inflow_bind(struct inflow_bounds bounds)
{
    binding = bounds;
}

static int inflow_listen(int socket, int backlog)
{
    struct connection *at = find(socket);
    if (at) {
        atomic_store(&at->most, binding.first);
        atomic_store(&at->ask_above, binding.ask_above);
        atomic_store(&at->watch, binding.watch);
    }
    return (int)syscall(SYS_listen, socket, backlog);
}

static void inflow_accepted(int listener, int descriptor)
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
static ssize_t inflow_recv(int socket, void *data, size_t size, int flags)
{
    ssize_t n = syscall(SYS_recvfrom, socket, data, size, flags, NULL, NULL);
    struct connection *at = n > 0 ? find(socket) : NULL;
    uint64_t most = at ? atomic_load_explicit(&at->most, memory_order_relaxed) : 0;
    if (!most)
        return n;
    uint64_t before = atomic_fetch_add_explicit(&at->bytes, (uint64_t)n, memory_order_relaxed);
    uint64_t bytes = before + (uint64_t)n;
    if (before == 0)
        atomic_store_explicit(&at->since_ns, clock_of(CLOCK_MONOTONIC_COARSE), memory_order_relaxed);
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

/* ---- libzmq's imports ---- */

/* Functions of the C library that libzmq calls, replaced by ours in libzmq's own table of imported functions. A definition of
 * such a function in a library would not reach libzmq where a program has loaded that library at run time, as Python does, and
 * would change the calls of the program itself. Where
 * libzmq is linked statically, nothing is replaced. */

struct import {
    const char *name;
    void (*function)(void); /* of the type that the name has */
};
struct imports {
    const struct import *rows;
    uint32_t n;
};

static void *address_in(const struct dl_phdr_info *object, uintptr_t at)
{
    return (void *)(at < object->dlpi_addr ? object->dlpi_addr + at : at);
}

/* Lets an entry of an object's table of imported functions point to another function. */
static void import_set(const struct dl_phdr_info *object, const ElfW(Rela) * entry, void (*function)(void))
{
    uintptr_t at = object->dlpi_addr + entry->r_offset, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    bool constant = false; /* the loader has made it so */
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t end = (object->dlpi_addr + part->p_vaddr + part->p_memsz) & ~(page - 1);
        constant |= part->p_type == PT_GNU_RELRO && entry->r_offset - part->p_vaddr < part->p_memsz && at < end;
    }
    void *start = (void *)(at & ~(page - 1));
    if (constant && mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
        return;
    __atomic_store_n((uintptr_t *)at, (uintptr_t)function, __ATOMIC_RELEASE);
    if (constant)
        mprotect(start, page, PROT_READ);
}

static void imports_set(const struct dl_phdr_info *object, const ElfW(Dyn) * at, const struct imports *imports)
{
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const ElfW(Rela) * lists[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    for (; at->d_tag != DT_NULL; at++)
        switch (at->d_tag) {
        case DT_SYMTAB:
            symbols = address_in(object, at->d_un.d_ptr);
            break;
        case DT_STRTAB:
            names = address_in(object, at->d_un.d_ptr);
            break;
        case DT_JMPREL:
            lists[0] = address_in(object, at->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            bytes[0] = at->d_un.d_val;
            break;
        case DT_RELA:
            lists[1] = address_in(object, at->d_un.d_ptr);
            break;
        case DT_RELASZ:
            bytes[1] = at->d_un.d_val;
            break;
        default:
            break;
        }
    for (uint32_t k = 0; k < 2 && symbols && names; k++)
        for (size_t i = 0; lists[k] && i < bytes[k] / sizeof(ElfW(Rela)); i++) {
            const char *name = names + symbols[ELF64_R_SYM(lists[k][i].r_info)].st_name;
            for (uint32_t j = 0; j < imports->n; j++)
                if (strcmp(name, imports->rows[j].name) == 0)
                    import_set(object, &lists[k][i], imports->rows[j].function);
        }
}

/* Of all objects in the process, finds the one with libzmq. */
static int object_visit(struct dl_phdr_info *object, size_t size, void *ctx)
{
    (void)size;
    bool found = false;
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        found |= part->p_type == PT_LOAD && (uintptr_t)zmq_bind - object->dlpi_addr - part->p_vaddr < part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + part->p_vaddr);
    }
    if (found && dynamic)
        imports_set(object, dynamic, ctx);
    return found;
}

/* ---- descriptors ---- */

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
    static const struct import rows[] = {
        {"accept4", (void (*)(void))guarded_accept4},
        {"listen", (void (*)(void))inflow_listen},
        {"recv", (void (*)(void))inflow_recv},
    };
    spare_open();
    struct imports imports = {rows, sizeof rows / sizeof rows[0]};
    dl_iterate_phdr(object_visit, &imports);
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
