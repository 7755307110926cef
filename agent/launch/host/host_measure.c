/* See host_measure.h. The sender ends its half of the connection; the sink then answers with a line "BYTES NS\n": how much has arrived,
 * and the time between the first and the last byte. */
#include "agent/launch/host/host_measure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/launch/host/host_listen.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define PEERS_MOST 1024u
#define ANSWER_NS (10 * NS_PER_S)
#define PIECE (256u * 1024)

struct peer {
    int fd;
    uint64_t bytes;
    int64_t first_ns, last_ns;
};

struct host_measure_sink {
    int listener, stop; /* stop: an eventfd */
    pthread_t thread;
    atomic_uint_fast64_t bytes;
    struct peer peers[PEERS_MOST];
    struct pollfd polls[PEERS_MOST + 2];
    uint32_t n;
    char buffer[PIECE];
};

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- sink ---- */

static void accept_peer(struct host_measure_sink *self)
{
    int fd = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (self->n == PEERS_MOST)
        close(fd);
    else
        self->peers[self->n++] = (struct peer){.fd = fd};
}

static void answer_peer(const struct peer *peer)
{
    char line[64];
    int size = snprintf(line, sizeof line, "%" PRIu64 " %" PRId64 "\n", peer->bytes, peer->last_ns - peer->first_ns);
    ssize_t n = send(peer->fd, line, (size_t)size, MSG_NOSIGNAL);
    (void)n; /* a peer that is gone misses its answer */
}

/* Reads once. False: the connection has ended. */
static bool read_peer(struct host_measure_sink *self, struct peer *peer)
{
    ssize_t n = recv(peer->fd, self->buffer, sizeof self->buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0) {
        if (n == 0)
            answer_peer(peer);
        return false;
    }
    peer->last_ns = now();
    if (peer->bytes == 0)
        peer->first_ns = peer->last_ns;
    peer->bytes += (uint64_t)n;
    atomic_fetch_add_explicit(&self->bytes, (uint64_t)n, memory_order_relaxed);
    return true;
}

static void *sink_main(void *context)
{
    struct host_measure_sink *self = context;
    for (;;) {
        self->polls[0] = (struct pollfd){.fd = self->stop, .events = POLLIN};
        self->polls[1] = (struct pollfd){.fd = self->listener, .events = POLLIN};
        for (uint32_t i = 0; i < self->n; i++)
            self->polls[i + 2] = (struct pollfd){.fd = self->peers[i].fd, .events = POLLIN};
        if (poll(self->polls, self->n + 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (self->polls[0].revents)
            return NULL;
        for (uint32_t i = self->n; i-- > 0;) {
            if (!self->polls[i + 2].revents || read_peer(self, &self->peers[i]))
                continue;
            close(self->peers[i].fd);
            self->peers[i] = self->peers[--self->n];
        }
        if (self->polls[1].revents)
            accept_peer(self);
    }
}

struct host_measure_sink *host_measure_sink_open(const char *address, uint16_t *port, rp_error *err)
{
    struct host_measure_sink *self = calloc(1, sizeof *self);
    if (!self) {
        err_fill(err, RP_NO_MEMORY, "no memory to measure the network");
        return NULL;
    }
    self->stop = eventfd(0, EFD_CLOEXEC);
    self->listener = host_listen(address, 0, port);
    if (self->stop >= 0 && self->listener >= 0 && pthread_create(&self->thread, NULL, sink_main, self) == 0)
        return self;
    err_fill(err, RP_IO, "the network cannot be measured: no socket to listen at: %s", strerror(errno));
    if (self->stop >= 0)
        close(self->stop);
    if (self->listener >= 0)
        close(self->listener);
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
    eventfd_write(sink->stop, 1);
    pthread_join(sink->thread, NULL);
    for (uint32_t i = 0; i < sink->n; i++)
        close(sink->peers[i].fd);
    close(sink->listener);
    close(sink->stop);
    free(sink);
}

/* ---- sender ---- */

static bool await(int fd, short events, int64_t by)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int64_t left = (by - now() + NS_PER_MS - 1) / NS_PER_MS;
    return poll(&poll_fd, 1, left > 0 ? (int)left : 0) == 1;
}

static bool send_for(int fd, int64_t by)
{
    static const char zeros[65536];
    while (now() < by) {
        if (!await(fd, POLLOUT, by))
            return true;
        if (send(fd, zeros, sizeof zeros, MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != EINTR)
            return false;
    }
    return true;
}

static bool read_answer(int fd, uint64_t *bytes, int64_t *ns)
{
    char line[64];
    size_t used = 0;
    int64_t by = now() + ANSWER_NS;
    while (used + 1 < sizeof line && await(fd, POLLIN, by)) {
        ssize_t n = recv(fd, line + used, sizeof line - 1 - used, 0);
        if (n <= 0)
            break;
        used += (size_t)n;
        line[used] = '\0';
        if (strchr(line, '\n'))
            return sscanf(line, "%" SCNu64 " %" SCNd64, bytes, ns) == 2;
    }
    return false;
}

bool host_measure_send(int fd, int64_t ns, double *rate, char *text, size_t size)
{
    uint64_t bytes = 0;
    int64_t took = 0;
    *rate = 0.0;
    if (!send_for(fd, now() + ns)) {
        snprintf(text, size, "the connection broke: %s", strerror(errno));
        return false;
    }
    shutdown(fd, SHUT_WR);
    if (!read_answer(fd, &bytes, &took) || bytes == 0 || took <= 0) {
        snprintf(text, size, "the other side did not say what has arrived");
        return false;
    }
    *rate = (double)bytes * 1e9 / (double)took;
    return true;
}
