/* The HTTP server: who is let in, what is refused, and that bad input disturbs nobody. */
#include <arpa/inet.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "proto/http/http.h"
#include "tests/support/test.h"

static void get_hello(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const char *name = http_query(request, "name");
    text_add(&reply->text, "{\"hello\": \"%s\", \"trusted\": %d, \"calls\": %d}", name ? name : "", request->trusted,
             ++*(int *)ctx);
}

static void get_rest(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    reply->type = "text/plain";
    text_add(&reply->text, "<%s>", request->path);
}

static void post_size(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    text_add(&reply->text, "%zu %.8s", request->body_size, request->body);
}

static sem_t called;

/* Answers while the server is being stopped. */
static void get_slow(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx, (void)request;
    sem_post(&called);
    usleep(200000);
    text_add(&reply->text, "{\"slow\": true}");
}

static const struct http_route routes[] = {{"GET", "/slow", get_slow, false},
                                           {"GET", "/hello", get_hello, false},
                                           {"GET", "/open", get_rest, true},
                                           {"POST", "/size", post_size, false},
                                           {"GET", "/files/...", get_rest, false}};

static int calls;

static struct http *start_at(const char *address, const char *token, bool open)
{
    const struct http_options options = {.address = address,
                                         .part = {routes, 4, &calls, false},
                                         .further = {routes + 4, 1, &calls, false},
                                         .token = token,
                                         .reader = "reader",
                                         .open = open,
                                         .threads = 2};
    return must(http_start(&options, &err));
}

static struct http *start(const char *token, bool open)
{
    return start_at("127.0.0.1:0", token, open);
}

static int dial(const struct http *http)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[HTTP_ADDRESS] = "";
    sscanf(http_address(http), "%63[^:]", host);
    inet_pton(AF_INET, host, &to.sin_addr);
    to.sin_port = htons((uint16_t)atoi(strchr(http_address(http), ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 20}, sizeof(struct timeval));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void send_all(int fd, const char *data, size_t size)
{
    for (ssize_t n; size > 0 && (n = send(fd, data, size, MSG_NOSIGNAL)) > 0; data += n)
        size -= (size_t)n;
}

/* Sends a request and returns the status; the whole reply is in `out`. 0: the connection was closed without one. */
static int ask(const struct http *http, const char *text, char out[8192])
{
    int fd = dial(http), status = 0;
    size_t used = 0;
    send_all(fd, text, strlen(text));
    for (ssize_t n; used < 8191 && (n = recv(fd, out + used, 8191 - used, 0)) > 0;)
        used += (size_t)n;
    out[used] = '\0';
    close(fd);
    sscanf(out, "HTTP/1.1 %d", &status);
    return status;
}

static int get(const struct http *http, const char *path, const char *headers, char out[8192])
{
    char text[1024];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n", path, headers);
    return ask(http, text, out);
}

#define LOCAL "Host: 127.0.0.1:80\r\n"

TEST(routes)
{
    char out[8192];
    struct http *http = start("", false);
    assert_int_equal(get(http, "/hello?name=a%20b", LOCAL, out), 200);
    assert_non_null(strstr(out, "{\"hello\": \"a b\", \"trusted\": 0"));
    assert_non_null(strstr(out, "application/json"));
    assert_non_null(strstr(out, "no-store"));
    assert_null(strstr(out, "Access-Control"));
    assert_int_equal(get(http, "/nothing", LOCAL, out), 404);
    assert_int_equal(get(http, "/hello/", LOCAL, out), 404);
    assert_int_equal(get(http, "/size", LOCAL, out), 405);
    assert_int_equal(get(http, "/files/a/b.js", LOCAL, out), 200);
    assert_non_null(strstr(out, "<a/b.js>"));
    assert_int_equal(ask(http, "HEAD /hello HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n", out), 200);
    assert_null(strstr(out, "hello\":"));
    assert_int_equal(ask(http, "DELETE /hello HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n", out), 405);
    assert_int_equal(
        ask(http, "POST /size HTTP/1.1\r\n" LOCAL "Content-Length: 5\r\nConnection: close\r\n\r\nabcde", out), 200);
    assert_non_null(strstr(out, "5 abcde"));
    http_stop(&http);
    assert_null(http);
}

TEST(token)
{
    char out[8192], text[512];
    struct http *http = start("secret", false);
    assert_int_equal(get(http, "/hello", LOCAL, out), 401);
    assert_int_equal(get(http, "/hello?token=secre", LOCAL, out), 401);
    assert_int_equal(get(http, "/hello?token=secrets", LOCAL, out), 401);
    assert_int_equal(get(http, "/hello?token=", LOCAL, out), 401);
    assert_int_equal(get(http, "/hello?token=secret", LOCAL, out), 200);
    assert_int_equal(get(http, "/hello", LOCAL "Authorization: Bearer secret\r\n", out), 200);
    assert_int_equal(get(http, "/hello", LOCAL "Authorization: Bearer wrong\r\n", out), 401);
    assert_int_equal(get(http, "/hello", LOCAL "Authorization: Basic secret\r\n", out), 401);
    assert_int_equal(get(http, "/open", LOCAL, out), 200);
    static const char post[] =
        "POST /size?token=%s HTTP/1.1\r\n" LOCAL "Content-Length: 1\r\nConnection: close\r\n\r\na";
    snprintf(text, sizeof text, post, "reader"); /* the other token reads, and changes nothing */
    assert_int_equal(get(http, "/hello?token=reader", LOCAL, out), 200);
    assert_int_equal(get(http, "/hello?token=reader", "Host: proxy.example\r\n", out), 200);
    assert_int_equal(ask(http, text, out), 403);
    snprintf(text, sizeof text, post, "secret");
    assert_int_equal(ask(http, text, out), 200);
    http_stop(&http);
    http = start("secret", true); /* reading is free, changing is not */
    assert_int_equal(get(http, "/hello", LOCAL, out), 200);
    assert_int_equal(ask(http, "POST /size HTTP/1.1\r\n" LOCAL "Content-Length: 1\r\nConnection: close\r\n\r\na", out),
                     401);
    assert_int_equal(
        ask(http, "POST /size?token=secret HTTP/1.1\r\n" LOCAL "Content-Length: 1\r\nConnection: close\r\n\r\na", out),
        200);
    http_stop(&http);
}

static bool mount(void *ctx, const char **url, struct http_part out[2])
{
    if (strncmp(*url, "/below/", 7) != 0)
        return false;
    *url += 6;
    out[0] = (struct http_part){routes + 1, 1, ctx, true};
    out[1] = (struct http_part){routes + 2, 1, ctx, true};
    return true;
}

/* Below a path there are other routes, which may be secret on a server that is open otherwise. */
TEST(mounted)
{
    char out[8192];
    const struct http_options options = {
        .address = "127.0.0.1:0", .part = {routes, 4, &calls, false}, .mount = mount, .token = "secret", .open = true};
    struct http *http = must(http_start(&options, &err));
    assert_int_equal(get(http, "/hello", LOCAL, out), 200);
    assert_int_equal(get(http, "/below/hello", LOCAL, out), 401);
    assert_int_equal(get(http, "/below/hello?token=secret", LOCAL, out), 200);
    assert_int_equal(get(http, "/below/open", LOCAL, out), 200);
    assert_int_equal(get(http, "/below/slow?token=secret", LOCAL, out), 404);
    http_stop(&http);
}

/* A page of another site must neither read through a name of its own nor change anything. */
TEST(other_sites)
{
    char out[8192];
    struct http *http = start("secret", true);
    assert_int_equal(get(http, "/hello", "Host: evil.example\r\n", out), 403);
    assert_int_equal(get(http, "/hello", "Host: 127.0.0.1.evil.example\r\n", out), 403);
    assert_int_equal(get(http, "/hello", LOCAL "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", out), 403);
    assert_int_equal(get(http, "/hello", LOCAL "Origin: http://evil.example\r\n", out), 403);
    assert_int_equal(get(http, "/hello", LOCAL "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n", out), 200);
    assert_int_equal(get(http, "/hello", LOCAL "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n", out), 200);
    assert_int_equal(get(http, "/hello", "Host: localhost:99\r\n", out), 200);
    assert_int_equal(get(http, "/hello", "Host: [::1]:99\r\n", out), 200);
    static const char post[] =
        "POST /size?token=secret HTTP/1.1\r\n" LOCAL "%sContent-Length: 1\r\nConnection: close\r\n\r\na";
    char text[512];
    snprintf(text, sizeof text, post, "Origin: http://evil.example\r\n");
    assert_int_equal(ask(http, text, out), 403);
    snprintf(text, sizeof text, post, "Sec-Fetch-Site: cross-site\r\n");
    assert_int_equal(ask(http, text, out), 403);
    snprintf(text, sizeof text, post, "Origin: http://127.0.0.1:80\r\nSec-Fetch-Site: same-origin\r\n");
    assert_int_equal(ask(http, text, out), 200);
    http_stop(&http);
}

TEST(bad_input)
{
    char out[8192], *huge = malloc(300000);
    struct http *http = start("", false);
    static const char *const texts[] = {"\r\n\r\n",
                                        "GET\r\n\r\n",
                                        "GET /hello\r\n\r\n",
                                        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                        "GET /../../etc/passwd HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n",
                                        "GET /files/%2e%2e/%00x HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n",
                                        "POST /size HTTP/1.1\r\n" LOCAL
                                        "Content-Length: -5\r\nConnection: close\r\n\r\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = dial(http); /* whatever comes back, the server stays */
        send_all(fd, texts[i], strlen(texts[i]));
        close(fd);
    }
    memset(huge, 'a', 300000);
    memcpy(huge, "GET /hello HTTP/1.1\r\n" LOCAL "X: ", strlen("GET /hello HTTP/1.1\r\n" LOCAL "X: "));
    memcpy(huge + 299995, "\r\n\r\n", 5);
    int status = ask(http, huge, out);
    assert_true(status == 0 || status == 431 || status == 400 || status == 414);
    int length =
        snprintf(huge, 300000, "POST /size HTTP/1.1\r\n" LOCAL "Content-Length: 200000\r\nConnection: close\r\n\r\n");
    memset(huge + length, 'b', 200000);
    huge[length + 200000] = '\0';
    assert_int_equal(ask(http, huge, out), 413);
    free(huge);
    assert_int_equal(get(http, "/hello", LOCAL, out), 200);
    http_stop(&http);
}

/* A server also answers to its own address on loopback, and not to another one. */
TEST(own_address)
{
    char out[8192], header[HTTP_ADDRESS + 10];
    struct http *http = start_at("127.0.0.2:0", "", false);
    snprintf(header, sizeof header, "Host: %s\r\n", http_address(http));
    assert_int_equal(get(http, "/hello", header, out), 200);
    assert_int_equal(get(http, "/hello", "Host: 127.0.0.2\r\n", out), 200);
    assert_int_equal(get(http, "/hello", LOCAL, out), 200);
    assert_int_equal(get(http, "/hello", "Host: 127.0.0.2.evil.example\r\n", out), 403);
    assert_int_equal(get(http, "/hello", "Host: 127.0.0.3\r\n", out), 403);
    http_stop(&http);
}

static void dial_many(const struct http *http, int *fds, int n)
{
    for (int i = 0; i < n; i++)
        fds[i] = dial(http);
}

static void close_many(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/* Far more connections than the server takes, all of them silent: somebody with a request is served beside them. */
TEST(many_connections)
{
    char out[8192];
    int idle[200];
    struct http *http = start("", false);
    dial_many(http, idle, 200);
    assert_int_equal(get(http, "/hello", LOCAL, out), 200);
    close_many(idle, 200);
    assert_int_equal(get(http, "/hello", LOCAL, out), 200);
    http_stop(&http);
}

/* In a crowd a reply ends its connection, so that requests on connections that stay open cannot keep others out. */
TEST(crowd_ends_connections)
{
    char out[8192] = "";
    int idle[56];
    struct http *http = start("", false);
    for (int i = 0; i < 20 && !strstr(out, "Connection: close"); i++) {
        dial_many(http, idle, 56);
        assert_int_equal(ask(http, "GET /hello HTTP/1.1\r\n" LOCAL "\r\n", out), 200);
        close_many(idle, 56);
    }
    assert_non_null(strstr(out, "Connection: close"));
    http_stop(&http);
}

/* A request that stops the server gets its answer, too. */
TEST(stop_sends_answers)
{
    char out[8192] = "";
    struct http *http = start("", false);
    sem_init(&called, 0, 0);
    int fd = dial(http);
    send_all(fd, "GET /slow HTTP/1.1\r\n" LOCAL "\r\n", strlen("GET /slow HTTP/1.1\r\n" LOCAL "\r\n"));
    sem_wait(&called);
    http_stop(&http);
    for (ssize_t n, used = 0; (n = recv(fd, out + used, sizeof out - 1 - (size_t)used, 0)) > 0;)
        used += n;
    assert_non_null(strstr(out, "{\"slow\": true}"));
    close(fd);
    sem_destroy(&called);
}

TEST(addresses)
{
    static const char *const bad[] = {"",           "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
                                      "nowhere:80", "[::1:80",   ":80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct http_options options = {.address = bad[i], .part = {routes, 5, NULL, false}};
        assert_null(http_start(&options, &err));
        assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    }
    struct http *http = start("", false);
    const struct http_options taken = {.address = http_address(http), .part = {routes, 5, NULL, false}};
    assert_null(http_start(&taken, &err));
    assert_int_equal(err.status, RP_IO);
    http_stop(&http);
    assert_true(http_is_loopback("127.0.0.1:0"));
    assert_true(http_is_loopback("localhost:0"));
    assert_true(http_is_loopback("[::1]:0"));
    assert_false(http_is_loopback("0.0.0.0:0"));
    assert_false(http_is_loopback("*:80"));
    assert_false(http_is_loopback("10.0.0.1:80"));
}
