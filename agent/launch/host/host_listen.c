#include "agent/launch/host/host_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024

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
