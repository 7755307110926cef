/* The broker's HTTP room beside a core thread that works, or does not answer. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "broker/program/web.h"
#include "proto/base/clock.h"
#include "tests/support/test.h"

enum mood { WORKS, IS_SILENT };

/* Stands for the core thread. */
struct core {
    struct exchange exchange;
    pthread_t thread;
    int wake_fd;
    atomic_int mood;
    atomic_uint made;
    atomic_bool asked, done;
};

static struct snapshot *make(unsigned parts)
{
    struct snapshot *snapshot = snapshot_new();
    Replay__ServerInfo *server = arena_take(&snapshot->arena, 1, sizeof *server);
    Replay__MemoryInfo *memory = arena_take(&snapshot->arena, 1, sizeof *memory);
    replay__server_info__init(server);
    replay__memory_info__init(memory);
    server->memory = memory;
    snapshot->info.server = server;
    snapshot->parts = parts;
    snapshot->made_ns = clock_ns();
    return snapshot;
}

static void *core_thread(void *arg)
{
    struct core *self = arg;
    while (!atomic_load(&self->done)) {
        struct pollfd fd = {self->wake_fd, POLLIN, 0};
        uint64_t count;
        poll(&fd, 1, 1000);
        ssize_t ignored = read(self->wake_fd, &count, sizeof count);
        (void)ignored;
        unsigned parts = exchange_wanted(&self->exchange);
        enum mood mood = (enum mood)atomic_load(&self->mood);
        if (parts)
            atomic_store(&self->asked, true);
        if (!parts || mood == IS_SILENT)
            continue;
        atomic_fetch_add(&self->made, 1);
        exchange_give(&self->exchange, make(parts));
    }
    return NULL;
}

static struct web *begin(struct core *self)
{
    *self = (struct core){.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    exchange_init(&self->exchange, self->wake_fd);
    struct web *web =
        web_start(&(struct web_options){.address = "127.0.0.1:0", .exchange = &self->exchange, .shard = -1}, &err);
    assert_non_null(web);
    assert_int_equal(pthread_create(&self->thread, NULL, core_thread, self), 0);
    return web;
}

static void end(struct core *self, struct web **web)
{
    web_destroy(web);
    assert_null(*web);
    atomic_store(&self->done, true);
    exchange_ask(&self->exchange, 1);
    pthread_join(self->thread, NULL);
    exchange_fini(&self->exchange);
    close(self->wake_fd);
}

static int dial(const struct web *web, const char *path)
{
    char text[256];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(web_url(web), ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(send(fd, text, (size_t)size, MSG_NOSIGNAL), size);
    return fd;
}

/* Returns the status; the reply is in out. */
static int ask(const struct web *web, const char *path, char out[65536])
{
    int fd = dial(web, path), status = 0;
    size_t used = 0;
    for (ssize_t n; used < 65535 && (n = recv(fd, out + used, 65535 - used, 0)) > 0;)
        used += (size_t)n;
    out[used] = '\0';
    close(fd);
    sscanf(out, "HTTP/1.1 %d", &status);
    return status;
}

TEST(every_path_is_answered)
{
    static const char *const paths[] = {"/api",     "/metrics",    "/api/info",    "/api/tables", "/api/sessions",
                                        "/api/why", "/api/params", "/api/latency", "/healthz"};
    static char out[65536];
    struct core core;
    struct web *web = begin(&core);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_int_equal(ask(web, paths[i], out), 200);
    assert_int_equal(ask(web, "/api/tables/none", out), 404);
    end(&core, &web);
}

/* The server stops at once, though a request waits for a core thread that does not answer any more. */
TEST(stopping_does_not_wait)
{
    int64_t took_ns = INT64_MAX;
    for (uint32_t tries = 0; tries < 5 && took_ns > 4 * NS_PER_S; tries++) { /* a machine stalls, but not five times */
        struct core core;
        struct web *web = begin(&core);
        atomic_store(&core.mood, IS_SILENT);
        int fd = dial(web, "/metrics");
        while (!atomic_load(&core.asked))
            usleep(1000);
        int64_t start_ns = clock_ns();
        end(&core, &web);
        took_ns = clock_ns() - start_ns;
        close(fd);
    }
    assert_true(took_ns < 4 * NS_PER_S); /* the request would wait for five seconds */
}
