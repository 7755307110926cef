/* The broker's HTTP room beside a core thread that does not answer; integration.metrics_py has one that does. */
#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "broker/program/web.h"
#include "proto/base/clock.h"
#include "tests/support/test.h"

static int dial(const struct web *web, const char *path)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(web_url(web), ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    const char *text = textf("GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

/* The server stops at once, though a request waits for a core thread that is asked and does not answer any more. */
TEST(stopping_does_not_wait)
{
    int64_t took_ns = INT64_MAX;
    for (uint32_t tries = 0; tries < 5 && took_ns > 4 * NS_PER_S; tries++) { /* a machine stalls, but not five times */
        struct exchange exchange;
        int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        exchange_init(&exchange, wake_fd);
        const struct web_options options = {.address = "127.0.0.1:0", .exchange = &exchange, .shard = -1};
        struct web *web = must(web_start(&options, &err));
        int fd = dial(web, "/metrics");
        wait_until(exchange_wanted(&exchange));
        int64_t start_ns = clock_ns();
        web_destroy(&web);
        took_ns = clock_ns() - start_ns;
        assert_null(web);
        exchange_fini(&exchange);
        close(wake_fd);
        close(fd);
    }
    assert_true(took_ns < 4 * NS_PER_S); /* the request would wait for five seconds */
}
