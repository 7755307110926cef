/* Asks a ZeroMQ peer which mechanism it speaks.
 *
 * If a client has a key and the broker wants none, or the other way round, both sides close the connection when they have read
 * the other's greeting. Whoever is faster destroys what the other would have read, so libzmq often reports an end without a
 * reason. The first 11 bytes of a greeting (ZMTP 3.0) are enough to get the peer's whole greeting, mechanism and all. */
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/client/conn/conn_impl.h"

#define PATIENCE_MS 300
#define GREETING_BYTES 64u
#define MECHANISM_AT 12u
#define MECHANISM_BYTES 20u

/* Waits until the socket is ready. */
static bool ready(int socket, short events)
{
    struct pollfd item = {.fd = socket, .events = events};
    return poll(&item, 1, PATIENCE_MS) == 1 && item.revents & events;
}

static int connect_to(const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int error = 0;
    socklen_t error_size = sizeof error;
    if (connect(fd, address, size) == 0 ||
        (ready(fd, POLLOUT) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 && error == 0))
        return fd;
    close(fd);
    return -1;
}

static int open_tcp(const char *place)
{
    char host[256];
    const char *colon = strrchr(place, ':');
    if (!colon || (size_t)(colon - place) >= sizeof host || strchr(place, ';'))
        return -1;
    bool bracketed = place[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(colon - place) - (bracketed ? 2 : 0), place + bracketed);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &list) != 0)
        return -1;
    int fd = connect_to(list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return fd;
}

static int open_ipc(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] == '@' || strlen(path) >= sizeof address.sun_path)
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    return connect_to((const struct sockaddr *)&address, sizeof address);
}

bool greeting_mechanism(const char *endpoint, char out[MECHANISM_BYTES + 1])
{
    static const uint8_t ours[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3};
    uint8_t theirs[GREETING_BYTES];
    size_t got = 0;
    int fd = strncmp(endpoint, "tcp://", 6) == 0   ? open_tcp(endpoint + 6)
             : strncmp(endpoint, "ipc://", 6) == 0 ? open_ipc(endpoint + 6)
                                                   : -1;
    if (fd < 0)
        return false;
    if (send(fd, ours, sizeof ours, MSG_NOSIGNAL) == (ssize_t)sizeof ours)
        while (got < sizeof theirs && ready(fd, POLLIN)) {
            ssize_t n = recv(fd, theirs + got, sizeof theirs - got, 0);
            if (n <= 0)
                break;
            got += (size_t)n;
        }
    close(fd);
    if (got < MECHANISM_AT + MECHANISM_BYTES || theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3)
        return false;
    memcpy(out, theirs + MECHANISM_AT, MECHANISM_BYTES);
    out[MECHANISM_BYTES] = '\0';
    return true;
}
