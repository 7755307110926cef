/* Questions about the network, answered by threads: names are looked up, and connections are made and waited for. A thread writes
 * its answer as one message into a pipe; no thread outlives the program. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/launch/host/host_measure.h"
#include "agent/launch/host/node_impl.h"
#include "proto/base/clock.h"

#define REACH_NS (5 * NS_PER_S)
#define MEASURE_MOST_MS 60000

struct question {
    const char *type; /* of the answer */
    int to;
    char address[256]; /* "host:port" */
    int64_t ns;        /* 0: only connect */
};

/* Smaller than PIPE_BUF, so that answers do not mix. */
struct answer {
    const char *type;
    bool ok;
    int64_t ns;
    double rate;
    char text[256];
};

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

static bool await_connected(int fd, int64_t by)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof error;
    int64_t left = (by - now()) / NS_PER_MS;
    if (poll(&poll_fd, 1, left > 0 ? (int)left : 0) != 1) {
        errno = ETIMEDOUT;
        return false;
    }
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0;
}

/* Tries every address of the name. Returns the socket, and the time that the connection took; -1: text says why. */
static int connect_to(const char *address, int64_t *took, char *text, size_t size)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int64_t by = now() + REACH_NS;
    snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - address) : 0, address);
    size_t length = strlen(host);
    if (length > 1 && host[0] == '[' && host[length - 1] == ']') {
        memmove(host, host + 1, length - 2);
        host[length - 2] = '\0';
    }
    int rc = colon ? getaddrinfo(host, colon + 1, &hints, &list) : EAI_NONAME;
    if (rc != 0) {
        snprintf(text, size, "%.120s is not known: %s", address, gai_strerror(rc));
        return -1;
    }
    int fd = -1;
    errno = EHOSTUNREACH;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
        int64_t start = now();
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 &&
            (connect(fd, at->ai_addr, at->ai_addrlen) == 0 || (errno == EINPROGRESS && await_connected(fd, by)))) {
            *took = now() - start;
            continue;
        }
        int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        fd = -1;
    }
    if (fd < 0)
        snprintf(text, size, "%.120s cannot be reached: %s", address, strerror(errno));
    freeaddrinfo(list);
    return fd;
}

static void *answer_question(void *context)
{
    struct question *question = context;
    struct answer answer = {.type = question->type};
    int fd = connect_to(question->address, &answer.ns, answer.text, sizeof answer.text);
    answer.ok = fd >= 0;
    if (fd >= 0 && question->ns > 0)
        answer.ok = host_measure_send(fd, question->ns, &answer.rate, answer.text, sizeof answer.text);
    if (fd >= 0)
        close(fd);
    while (write(question->to, &answer, sizeof answer) < 0 && errno == EINTR)
        ;
    free(question);
    return NULL;
}

static void ask(struct node *self, const struct question *question)
{
    struct question *copy = malloc(sizeof *copy);
    pthread_attr_t attributes;
    pthread_t thread;
    if (copy)
        *copy = *question;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!copy || pthread_create(&thread, &attributes, answer_question, copy) != 0) {
        const struct answer answer = {.type = question->type, .text = "the node agent could not start a thread"};
        ssize_t n = write(self->answers[1], &answer, sizeof answer);
        (void)n;
        free(copy);
    }
    pthread_attr_destroy(&attributes);
}

void node_network_reach(struct node *self, struct json_object *line)
{
    static const char scheme[] = "tcp://";
    struct question question = {.type = "reached", .to = self->answers[1]};
    const char *endpoint = host_line_text(line, "endpoint");
    if (endpoint && strncmp(endpoint, scheme, sizeof scheme - 1) == 0)
        endpoint += sizeof scheme - 1;
    snprintf(question.address, sizeof question.address, "%s", endpoint ? endpoint : "");
    ask(self, &question);
}

void node_network_measure(struct node *self, struct json_object *line)
{
    struct question question = {.type = "measured", .to = self->answers[1]};
    const char *address = host_line_text(line, "address");
    snprintf(question.address, sizeof question.address, "%s", address ? address : "");
    question.ns = host_line_number(line, "ms", 1, MEASURE_MOST_MS) * NS_PER_MS;
    ask(self, &question);
}

void node_network_tend(struct node *self)
{
    struct answer answer;
    while (read(self->answers[0], &answer, sizeof answer) == (ssize_t)sizeof answer) {
        struct json_object *line = host_line_new(answer.type);
        host_line_add_flag(line, "ok", answer.ok);
        host_line_add_number(line, "ns", answer.ns);
        host_line_add_real(line, "rate", answer.rate);
        host_line_add_text(line, "text", answer.text);
        host_writer_put(&self->writer, line);
    }
}
