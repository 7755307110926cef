#include "agent/launch/host/host_measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

#define BACKLOG 1024
#define PEERS_MOST 1024u
#define PIECE (256u * 1024)
#define REACH_NS (5 * NS_PER_S)

/* ---- a socket that listens ---- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int listen_at(const union address *at, socklen_t size, uint16_t *bound)
{
    const int on = 1, off = 0;
    union address there = {0};
    socklen_t length = sizeof there;
    int fd = socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, &at->any, size) == 0 && listen(fd, BACKLOG) == 0 && getsockname(fd, &there.any, &length) == 0) {
        *bound = ntohs(at->any.sa_family == AF_INET6 ? there.v6.sin6_port : there.v4.sin_port);
        return fd;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int host_listen(const char *address, uint16_t port, uint16_t *bound)
{
    const union address v6 = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
    union address v4 = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    if (address && inet_pton(AF_INET, address, &v4.v4.sin_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    int fd = address ? -1 : listen_at(&v6, sizeof v6.v6, bound);
    return fd >= 0 ? fd : listen_at(&v4, sizeof v4.v4, bound);
}

/* ---- sink ---- */

struct host_measure_sink {
    pthread_t thread;
    atomic_uint_fast64_t bytes;
    struct pollfd polls[PEERS_MOST + 2]; /* an eventfd that ends the thread, the listening socket, the connections */
    uint32_t n;
    char buffer[PIECE];
};

static void *sink_main(void *context)
{
    struct host_measure_sink *self = context;
    while (poll(self->polls, self->n, -1) >= 0 || errno == EINTR) {
        if (self->polls[0].revents)
            break;
        for (uint32_t i = self->n; i-- > 2;) {
            ssize_t n = self->polls[i].revents ? recv(self->polls[i].fd, self->buffer, sizeof self->buffer, 0) : 1;
            if (self->polls[i].revents && n > 0)
                atomic_fetch_add_explicit(&self->bytes, (uint64_t)n, memory_order_relaxed);
            if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
                continue;
            close(self->polls[i].fd);
            self->polls[i] = self->polls[--self->n];
        }
        int fd = self->polls[1].revents ? accept4(self->polls[1].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        if (fd >= 0 && self->n < PEERS_MOST + 2)
            self->polls[self->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        else if (fd >= 0)
            close(fd);
    }
    return NULL;
}

struct host_measure_sink *host_measure_sink_open(const char *address, uint16_t *port, rp_error *err)
{
    struct host_measure_sink *self = need_alloc(sizeof *self);
    self->polls[0] = (struct pollfd){.fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN};
    self->polls[1] = (struct pollfd){.fd = host_listen(address, 0, port), .events = POLLIN};
    self->n = 2;
    if (self->polls[0].fd >= 0 && self->polls[1].fd >= 0 && pthread_create(&self->thread, NULL, sink_main, self) == 0)
        return self;
    err_fill(err, RP_IO, "the network cannot be measured: no socket to listen at: %s", strerror(errno));
    for (uint32_t i = 0; i < 2; i++)
        if (self->polls[i].fd >= 0)
            close(self->polls[i].fd);
    free(self);
    return NULL;
}

uint64_t host_measure_sink_bytes(const struct host_measure_sink *self)
{
    return atomic_load_explicit(&self->bytes, memory_order_relaxed);
}

void host_measure_sink_close(struct host_measure_sink **self)
{
    struct host_measure_sink *sink = *self;
    *self = NULL;
    if (!sink)
        return;
    eventfd_write(sink->polls[0].fd, 1);
    pthread_join(sink->thread, NULL);
    for (uint32_t i = 0; i < sink->n; i++)
        close(sink->polls[i].fd);
    free(sink);
}

/* ---- probe ---- */

struct question {
    char address[256]; /* "host:port" */
    int64_t ns;
    int to;
};

/* Waits until the socket takes bytes. */
static bool await_writable(int fd, int64_t by)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    int64_t left = (by - clock_ns() + NS_PER_MS - 1) / NS_PER_MS;
    return poll(&poll_fd, 1, left > 0 ? (int)left : 0) == 1;
}

/* Returns the error of a connection that is being made. */
static int await_connected(int fd, int64_t by)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (!await_writable(fd, by))
        return ETIMEDOUT;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
}

/* Tries every address of the name. Returns the socket; -1: out->text says why. */
static int connect_to(const char *address, struct host_probe *out)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int64_t by = clock_ns() + REACH_NS;
    bool brackets = address[0] == '[' && colon && colon > address + 1 && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - address) - 2 * brackets : 0, address + brackets);
    int rc = colon ? getaddrinfo(host, colon + 1, &hints, &list) : EAI_NONAME;
    if (rc != 0) {
        snprintf(out->text, sizeof out->text, "%.120s is not known: %s", address, gai_strerror(rc));
        return -1;
    }
    int fd = -1, error = EHOSTUNREACH;
    for (const struct addrinfo *at = list; at && error != 0; at = at->ai_next) {
        int64_t start = clock_ns();
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        error = fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
        if (fd >= 0 && error == EINPROGRESS)
            error = await_connected(fd, by);
        out->ns = clock_ns() - start;
        if (fd >= 0 && error != 0)
            close(fd);
    }
    freeaddrinfo(list);
    if (error == 0)
        return fd;
    snprintf(out->text, sizeof out->text, "%.120s cannot be reached: %s", address, strerror(error));
    return -1;
}

/* The kernel counts what the other side has acknowledged: bytes that only wait in a buffer here have not arrived. */
static void send_for(int fd, int64_t ns, struct host_probe *out)
{
    static const char zeros[65536];
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    int64_t begin = clock_ns(), by = begin + ns;
    while (clock_ns() < by) {
        if (await_writable(fd, by) && send(fd, zeros, sizeof zeros, MSG_NOSIGNAL) < 0 && errno != EAGAIN &&
            errno != EINTR) {
            snprintf(out->text, sizeof out->text, "the connection broke: %s", strerror(errno));
            out->ok = false;
            return;
        }
    }
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    out->rate = (double)info.tcpi_bytes_acked * 1e9 / (double)(clock_ns() - begin);
    out->ok = out->rate > 0;
    if (!out->ok)
        snprintf(out->text, sizeof out->text, "nothing has arrived at the other side");
}

static void *answer(void *context)
{
    struct question *question = context;
    struct host_probe out = {.done = true};
    int fd = connect_to(question->address, &out);
    out.ok = fd >= 0;
    if (fd >= 0 && question->ns > 0)
        send_for(fd, question->ns, &out);
    if (fd >= 0)
        close(fd);
    while (write(question->to, &out, sizeof out) < 0 && errno == EINTR)
        ;
    free(question);
    return NULL;
}

void host_probe_start(const char *endpoint, int64_t ns, int to)
{
    static const char scheme[] = "tcp://";
    struct question *question = need_alloc(sizeof *question);
    pthread_attr_t attributes;
    pthread_t thread;
    bool whole = strncmp(endpoint, scheme, sizeof scheme - 1) == 0;
    *question = (struct question){.ns = ns, .to = to};
    snprintf(question->address, sizeof question->address, "%s", endpoint + (whole ? sizeof scheme - 1 : 0));
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, answer, question) != 0) {
        const struct host_probe failed = {.done = true, .text = "the node agent could not start a thread"};
        ssize_t n = write(to, &failed, sizeof failed);
        (void)n;
        free(question);
    }
    pthread_attr_destroy(&attributes);
}
