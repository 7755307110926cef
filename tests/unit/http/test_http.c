/* The HTTP server: who is let in, what is refused, and that bad input disturbs nobody. */
#include <arpa/inet.h>
#include <semaphore.h>
#include <sys/socket.h>

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

#define LARGE_BYTES (6u << 20) /* more than sockets buffer */

static void get_large(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx, (void)request;
    memset(text_reserve(&reply->text, LARGE_BYTES), 'x', LARGE_BYTES);
    text_add(&reply->text, "\n");
    sem_post(&called);
}

static const struct http_route routes[] = {{"GET", "/slow", get_slow, false},   {"GET", "/hello", get_hello, false},
                                           {"GET", "/open", get_rest, true},    {"POST", "/size", post_size, false},
                                           {"GET", "/large", get_large, false}, {"GET", "/files/...", get_rest, false}};

static int calls;

/* A server, and its last reply. */
struct fixture {
    struct http *http;
    char out[8192];
};

static void end(struct fixture *f)
{
    http_stop(&f->http);
    assert_null(f->http);
}

FIXTURE(struct fixture, (void), end)

static void start_at(struct fixture *f, const char *address, const char *token, bool open)
{
    const struct http_options options = {.address = address,
                                         .part = {routes, 5, &calls, false},
                                         .further = {routes + 5, 1, &calls, false},
                                         .token = token,
                                         .reader = "reader",
                                         .open = open,
                                         .threads = 2};
    http_stop(&f->http);
    f->http = must(http_start(&options, &err));
}

static void start(struct fixture *f, const char *token, bool open)
{
    start_at(f, "127.0.0.1:0", token, open);
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

static int receive(int fd, char out[8192])
{
    int status = 0;
    size_t used = 0;
    for (ssize_t n; used < 8191 && (n = recv(fd, out + used, 8191 - used, 0)) > 0;)
        used += (size_t)n;
    out[used] = '\0';
    close(fd);
    sscanf(out, "HTTP/1.1 %d", &status);
    return status;
}

/* Sends a request and returns the status; the whole reply is in f->out. 0: the connection was closed without one. */
static int ask(struct fixture *f, const char *text)
{
    int fd = dial(f->http);
    send_all(fd, text, strlen(text));
    return receive(fd, f->out);
}

static int get(struct fixture *f, const char *path, const char *headers)
{
    return ask(f, textf("GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n", path, headers));
}

static int post(struct fixture *f, const char *query, const char *headers)
{
    return ask(f, textf("POST /size%s HTTP/1.1\r\nHost: 127.0.0.1:80\r\n%sContent-Length: 5\r\nConnection: "
                        "close\r\n\r\nabcde",
                        query, headers));
}

#define LOCAL "Host: 127.0.0.1:80\r\n"

CASE(routes)
{
    start(f, "", false);
    assert_int_equal(get(f, "/hello?name=a%20b", LOCAL), 200);
    HAS(f->out, "{\"hello\": \"a b\", \"trusted\": 0", "application/json", "no-store");
    assert_null(strstr(f->out, "Access-Control"));
    assert_int_equal(get(f, "/nothing", LOCAL), 404);
    assert_int_equal(get(f, "/hello/", LOCAL), 404);
    assert_int_equal(get(f, "/size", LOCAL), 405);
    assert_int_equal(get(f, "/files/a/b.js", LOCAL), 200);
    assert_non_null(strstr(f->out, "<a/b.js>"));
    assert_int_equal(ask(f, "HEAD /hello HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n"), 200);
    assert_null(strstr(f->out, "hello\":"));
    assert_int_equal(ask(f, "DELETE /hello HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n"), 405);
    assert_int_equal(post(f, "", ""), 200);
    assert_non_null(strstr(f->out, "5 abcde"));
}

CASE(token)
{
    start(f, "secret", false);
    assert_int_equal(get(f, "/hello", LOCAL), 401);
    HAS(f->out, "WWW-Authenticate: Bearer\r\n");
    assert_int_equal(get(f, "/hello?token=secre", LOCAL), 401);
    assert_int_equal(get(f, "/hello?token=secrets", LOCAL), 401);
    assert_int_equal(get(f, "/hello?token=", LOCAL), 401);
    assert_int_equal(get(f, "/hello?token=secret", LOCAL), 200);
    assert_int_equal(get(f, "/hello", LOCAL "Authorization: Bearer secret\r\n"), 200);
    assert_int_equal(get(f, "/hello", LOCAL "Authorization: Bearer wrong\r\n"), 401);
    static const char *const bad[] = {"Basic secret", "secret", "Bearer", "Bearer secre", "Bearer secrets"};
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char header[200];
        snprintf(header, sizeof header, LOCAL "Authorization: %s\r\n", bad[i]);
        assert_int_equal(get(f, "/hello", header), 401);
        HAS_NOT(f->out, "secret");
    }
    assert_int_equal(get(f, "/open", LOCAL), 200);
    assert_int_equal(get(f, "/hello?token=reader", LOCAL), 200); /* the other token reads, and changes nothing */
    assert_int_equal(get(f, "/hello?token=reader", "Host: proxy.example\r\n"), 200);
    assert_int_equal(post(f, "?token=reader", ""), 403);
    assert_int_equal(post(f, "?token=secret", ""), 200);
    start(f, "secret", true); /* reading is free, changing is not */
    assert_int_equal(get(f, "/hello", LOCAL), 200);
    assert_int_equal(post(f, "", ""), 401);
    assert_int_equal(post(f, "?token=secret", ""), 200);
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
CASE(mounted)
{
    const struct http_options options = {
        .address = "127.0.0.1:0", .part = {routes, 5, &calls, false}, .mount = mount, .token = "secret", .open = true};
    f->http = must(http_start(&options, &err));
    assert_int_equal(get(f, "/hello", LOCAL), 200);
    assert_int_equal(get(f, "/below/hello", LOCAL), 401);
    assert_int_equal(get(f, "/below/hello?token=secret", LOCAL), 200);
    assert_int_equal(get(f, "/below/open", LOCAL), 200);
    assert_int_equal(get(f, "/below/slow?token=secret", LOCAL), 404);
}

/* A page of another site must neither read through a name of its own nor change anything. */
CASE(other_sites)
{
    start(f, "secret", true);
    assert_int_equal(get(f, "/hello", "Host: evil.example\r\n"), 403);
    assert_int_equal(get(f, "/hello", "Host: 127.0.0.1.evil.example\r\n"), 403);
    assert_int_equal(get(f, "/hello", LOCAL "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"), 403);
    assert_int_equal(get(f, "/hello", LOCAL "Origin: http://evil.example\r\n"), 403);
    assert_int_equal(get(f, "/hello", LOCAL "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"), 200);
    assert_int_equal(get(f, "/hello", LOCAL "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n"), 200);
    assert_int_equal(get(f, "/hello", "Host: localhost:99\r\n"), 200);
    assert_int_equal(get(f, "/hello", "Host: [::1]:99\r\n"), 200);
    assert_int_equal(post(f, "?token=secret", "Origin: http://evil.example\r\n"), 403);
    assert_int_equal(post(f, "?token=secret", "Sec-Fetch-Site: cross-site\r\n"), 403);
    assert_int_equal(post(f, "?token=secret", "Origin: http://127.0.0.1:80\r\nSec-Fetch-Site: same-origin\r\n"), 200);
}

CASE(bad_input)
{
    char *huge = owned(malloc(300000));
    start(f, "", false);
    static const char *const texts[] = {"\r\n\r\n",
                                        "GET\r\n\r\n",
                                        "GET /hello\r\n\r\n",
                                        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                        "GET /../../etc/passwd HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n",
                                        "GET /files/%2e%2e/%00x HTTP/1.1\r\n" LOCAL "Connection: close\r\n\r\n",
                                        "POST /size HTTP/1.1\r\n" LOCAL
                                        "Content-Length: -5\r\nConnection: close\r\n\r\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = dial(f->http); /* whatever comes back, the server stays */
        send_all(fd, texts[i], strlen(texts[i]));
        close(fd);
    }
    memset(huge, 'a', 300000);
    memcpy(huge, "GET /hello HTTP/1.1\r\n" LOCAL "X: ", strlen("GET /hello HTTP/1.1\r\n" LOCAL "X: "));
    memcpy(huge + 299995, "\r\n\r\n", 5);
    int status = ask(f, huge);
    assert_true(status == 0 || status == 431 || status == 400 || status == 414);
    int length =
        snprintf(huge, 300000, "POST /size HTTP/1.1\r\n" LOCAL "Content-Length: 200000\r\nConnection: close\r\n\r\n");
    memset(huge + length, 'b', 200000);
    huge[length + 200000] = '\0';
    assert_int_equal(ask(f, huge), 413);
    assert_int_equal(get(f, "/hello", LOCAL), 200);
}

/* A server also answers to its own address on loopback, and not to another one. */
CASE(own_address)
{
    start_at(f, "127.0.0.2:0", "", false);
    assert_int_equal(get(f, "/hello", textf("Host: %s\r\n", http_address(f->http))), 200);
    assert_int_equal(get(f, "/hello", "Host: 127.0.0.2\r\n"), 200);
    assert_int_equal(get(f, "/hello", LOCAL), 200);
    assert_int_equal(get(f, "/hello", "Host: 127.0.0.2.evil.example\r\n"), 403);
    assert_int_equal(get(f, "/hello", "Host: 127.0.0.3\r\n"), 403);
}

/* Far more connections than the server takes, all of them silent: somebody with a request is served beside them, and the first ones are
 * cut. */
CASE(many_connections)
{
    int idle[200];
    char byte;
    start(f, "", false);
    for (int i = 0; i < 200; i++)
        idle[i] = dial(f->http);
    assert_int_equal(get(f, "/hello", LOCAL), 200);
    assert_int_equal(recv(idle[0], &byte, 1, 0), 0); /* it was cut */
    for (int i = 0; i < 200; i++)
        close(idle[i]);
    assert_int_equal(get(f, "/hello", LOCAL), 200);
}

/* Nobody reads the answers. */
CASE(stuck_answers)
{
    int stuck[64];
    start(f, "", false);
    sem_init(&called, 0, 0);
    for (int i = 0; i < 64; i++) {
        stuck[i] = dial(f->http);
        send_all(stuck[i], "GET /large HTTP/1.1\r\n" LOCAL "\r\n", strlen("GET /large HTTP/1.1\r\n" LOCAL "\r\n"));
        sem_wait(&called);
    }
    assert_int_equal(get(f, "/hello", LOCAL), 200);
    for (int i = 0; i < 64; i++)
        close(stuck[i]);
    sem_destroy(&called);
}

/* A request that stops the server gets its answer, too. */
CASE(stop_sends_answers)
{
    start(f, "", false);
    sem_init(&called, 0, 0);
    int fd = dial(f->http);
    send_all(fd, "GET /slow HTTP/1.1\r\n" LOCAL "\r\n", strlen("GET /slow HTTP/1.1\r\n" LOCAL "\r\n"));
    sem_wait(&called);
    http_stop(&f->http);
    assert_int_equal(receive(fd, f->out), 200);
    assert_has(f->out, "{\"slow\": true}");
    sem_destroy(&called);
}

CASE(addresses)
{
    static const char *const bad[] = {"",           "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
                                      "nowhere:80", "[::1:80",   ":80",        "127.1:80",    "0:80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct http_options options = {.address = bad[i], .part = {routes, 5, NULL, false}};
        must_fail_new(http_start(&options, &err), RP_INVALID_ARGUMENT, NULL);
    }
    start(f, "", false);
    const struct http_options taken = {.address = http_address(f->http), .part = {routes, 5, NULL, false}};
    must_fail_new(http_start(&taken, &err), RP_IO, NULL);
    assert_true(http_is_loopback("127.0.0.1:0"));
    assert_true(http_is_loopback("localhost:0"));
    assert_true(http_is_loopback("[::1]:0"));
    assert_false(http_is_loopback("0.0.0.0:0"));
    assert_false(http_is_loopback("*:80"));
    assert_false(http_is_loopback("10.0.0.1:80"));
}
