#include "proto/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <isa-l/igzip_lib.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"

/* A browser uses six connections; a few browsers, a scraper and some curious people fit. */
#define CONNECTIONS 64u
#define TIMEOUT_S 10u
#define BODY_MOST 65536u
#define MEMORY_PER_CONNECTION (32u * 1024u)

/* ---- connections ----
 *
 * The connections of a server, and how long each may take: libmicrohttpd's own timeout begins anew with every byte, so a client
 * that sends a byte a second could keep a connection for hours. A thread cuts connections whose time is over. When most of the
 * connections that the server takes are in use, those that wait for a request have little time, and each reply ends its
 * connection: whoever holds many connections cannot keep others out for long. */

/* Most time for a request to arrive, and for its answer to be made and read. In a crowd a request has the time of a few round
 * trips. */
static const struct patience {
    int64_t request_ns, answer_ns;
} calm = {10 * NS_PER_S, 30 * NS_PER_S}, crowd = {NS_PER_S / 2, 10 * NS_PER_S};
#define DRAIN_NS NS_PER_S
#define LOOK_NS (NS_PER_S / 4)

struct link {
    struct link *next, **prev;
    int fd;
    int64_t since_ns; /* when it began to wait for a request, or to answer one */
    bool answers, cut;
};

struct links {
    pthread_mutex_t mutex; /* of everything below */
    pthread_cond_t changed;
    struct link *first;
    uint32_t n; /* connections */
    bool stop;
    pthread_t thread;
    bool started;
};

static bool is_crowded(const struct links *self)
{
    return self->n >= CONNECTIONS - CONNECTIONS / 4;
}

/* A connection leaves the list before libmicrohttpd closes its descriptor, so a descriptor in the list is open. */
static void cut_late(struct links *self)
{
    const struct patience *patience = is_crowded(self) ? &crowd : &calm;
    int64_t now_ns = clock_ns();
    for (struct link *link = self->first; link; link = link->next)
        if (now_ns - link->since_ns >= (link->answers ? patience->answer_ns : patience->request_ns) && !link->cut) {
            link->cut = true;
            shutdown(link->fd, SHUT_RDWR);
        }
}

static void *links_thread(void *arg)
{
    struct links *self = arg;
    pthread_setname_np(pthread_self(), "http");
    pthread_mutex_lock(&self->mutex);
    while (!self->stop) {
        int64_t at = clock_ns() + LOOK_NS;
        struct timespec until = {at / NS_PER_S, at % NS_PER_S};
        if (self->first)
            pthread_cond_timedwait(&self->changed, &self->mutex, &until);
        else
            pthread_cond_wait(&self->changed, &self->mutex);
        cut_late(self);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* False: there is no thread. */
static bool links_start(struct links *self)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the wall clock may jump */
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    self->started = pthread_create(&self->thread, NULL, links_thread, self) == 0;
    return self->started;
}

static bool answers_any(struct links *self)
{
    bool any = false;
    pthread_mutex_lock(&self->mutex);
    for (const struct link *link = self->first; link && !any; link = link->next)
        any = link->answers && !link->cut;
    pthread_mutex_unlock(&self->mutex);
    return any;
}

/* Waits until answers that are being made are sent, a second at most. */
static void links_drain(struct links *self)
{
    const struct timespec moment = {.tv_nsec = 2 * NS_PER_MS};
    for (int64_t end_ns = clock_ns() + DRAIN_NS; answers_any(self) && clock_ns() < end_ns;)
        nanosleep(&moment, NULL);
}

/* There are no connections any more. */
static void links_stop(struct links *self)
{
    if (!self->started)
        return;
    pthread_mutex_lock(&self->mutex);
    self->stop = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
    self->started = false;
}

static struct link *add(struct links *self, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct link *link = info ? need_alloc(sizeof *link) : NULL;
    if (!link)
        return NULL; /* it has libmicrohttpd's own timeout */
    *link = (struct link){.next = self->first, .prev = &self->first, .fd = info->connect_fd, .since_ns = clock_ns()};
    self->n++;
    if (link->next)
        link->next->prev = &link->next;
    else
        pthread_cond_signal(&self->changed);
    self->first = link;
    return link;
}

static void drop(struct links *self, struct link *link)
{
    if (!link)
        return;
    self->n--;
    *link->prev = link->next;
    if (link->next)
        link->next->prev = link->prev;
    free(link);
}

/* For MHD_OPTION_NOTIFY_CONNECTION; ctx: the links. */
static void links_notify(void *ctx, struct MHD_Connection *connection, void **link,
                         enum MHD_ConnectionNotificationCode code)
{
    struct links *self = ctx;
    pthread_mutex_lock(&self->mutex);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *link = add(self, connection);
    } else {
        drop(self, *link);
        *link = NULL;
    }
    pthread_mutex_unlock(&self->mutex);
}

/* A request has arrived and is answered; or its answer is sent, and another may come. */
static void links_answers(struct links *self, struct MHD_Connection *connection, bool answers)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct link *link = info ? info->socket_context : NULL;
    if (!link)
        return;
    pthread_mutex_lock(&self->mutex);
    link->since_ns = clock_ns();
    link->answers = answers;
    pthread_mutex_unlock(&self->mutex);
}

static bool links_crowded(struct links *self)
{
    pthread_mutex_lock(&self->mutex);
    bool crowded = is_crowded(self);
    pthread_mutex_unlock(&self->mutex);
    return crowded;
}

/* ---- the server ---- */

struct http {
    struct http_options options;
    struct MHD_Daemon *daemon;
    char *token;
    char address[HTTP_ADDRESS];
    bool loopback;
    struct links links;
};

/* What a connection has sent so far. */
struct upload {
    char *body;
    size_t size;
    bool too_large;
};

/* ---- requests ---- */

const char *http_query(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_header(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

void http_say(struct http_reply *reply, const char *name, const char *text)
{
    struct json out = {0};
    json_open(&out, '{');
    json_text(&out, name, text);
    json_close(&out, '}');
    text_put(&out.out, "\n", 2);
    if (out.out.failed)
        need_fail(strlen(text));
    out.out.size--; /* without its end, as text_add leaves it */
    reply->text = out.out;
}

void http_fail(struct http_reply *reply, uint32_t status, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_fini(&reply->text);
    *reply = (struct http_reply){.status = status};
    http_say(reply, "error", text);
}

/* ---- checks ---- */

void http_make_token(char out[HTTP_TOKEN])
{
    uint8_t bytes[(HTTP_TOKEN - 1) / 2];
    rng_system(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* Takes the same time wherever two texts differ. */
static bool same_secret(const char *a, const char *b)
{
    size_t n = strlen(b), other = strlen(a);
    unsigned difference = (unsigned)(n ^ other);
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned)(unsigned char)b[i] ^ (unsigned)(unsigned char)(other ? a[i % other] : 0);
    return difference == 0;
}

static bool has_token(const struct http_request *request, const char *token)
{
    static const char bearer[] = "Bearer ";
    const char *header = http_header(request, "Authorization"), *query = http_query(request, "token");
    if (header && strncmp(header, bearer, sizeof bearer - 1) == 0)
        return same_secret(header + sizeof bearer - 1, token);
    return query && same_secret(query, token);
}

/* True if a Host header has this name, with a port or without. */
static bool has_name(const char *host, const char *name, size_t length)
{
    return strncasecmp(host, name, length) == 0 && (host[length] == '\0' || host[length] == ':');
}

/* The Host header names this machine ("localhost:8080", "127.0.0.1", "[::1]:8080"), or the address of this server. */
static bool names_loopback(const struct http *self, const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; host && i < sizeof names / sizeof names[0]; i++)
        if (has_name(host, names[i], strlen(names[i])))
            return true;
    return host && has_name(host, self->address, (size_t)(strrchr(self->address, ':') - self->address));
}

/* True for a request of another site's page: browsers say where a request comes from. Such a page may link to this server, and
 * could not read an answer, but it must not change anything here nor make work. */
static bool is_foreign(const struct http_request *request, bool changes)
{
    const char *site = http_header(request, "Sec-Fetch-Site"), *origin = http_header(request, "Origin");
    const char *mode = http_header(request, "Sec-Fetch-Mode"), *host = http_header(request, "Host");
    bool link = !changes && mode && strcmp(mode, "navigate") == 0;
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0 && !link)
        return true;
    const char *slashes = origin ? strstr(origin, "://") : NULL;
    return origin && !(slashes && host && strcmp(slashes + 3, host) == 0);
}

/* What a path leads to. */
struct target {
    const struct http_route *route; /* NULL: nothing, or another method has the path */
    void *ctx;
    bool secret;
    const char *rest;  /* of the path */
    const char *allow; /* methods of the routes that have the path; NULL: none has */
};

static bool allow(const struct http *self, const struct http_request *request, const struct target *target,
                  struct http_reply *reply)
{
    bool changes = strcmp(target->route->method, "GET") != 0;
    bool free_to_all = !self->token[0] || target->route->open || (self->options.open && !target->secret && !changes);
    const char *reader = self->options.reader ? self->options.reader : "";
    bool reads = request->trusted || (reader[0] && has_token(request, reader));
    if (!free_to_all && changes && reads && !request->trusted)
        http_fail(reply, 403, "this token only reads: a change needs the one that changes");
    else if (!free_to_all && !reads)
        http_fail(reply, 401,
                  "a token is needed: open the address that was printed at the start, or send the header "
                  "'Authorization: Bearer TOKEN'");
    else if (!reads && self->loopback && !names_loopback(self, http_header(request, "Host")))
        http_fail(reply, 403, "this server answers only to localhost, 127.0.0.1 and %s", self->address);
    else if (is_foreign(request, changes))
        http_fail(reply, 403, "this server takes requests from its own page, and none from pages of other sites");
    else
        return true;
    return false;
}

/* ---- routes ---- */

static void find(const struct http_part *part, const char *method, const char *url, struct target *out)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    for (uint32_t i = 0; !out->route && i < part->n; i++) {
        const struct http_route *route = &part->routes[i];
        size_t length = strcspn(route->path, ".");
        bool open_end = strcmp(route->path + length, "...") == 0;
        if (open_end ? strncmp(url, route->path, length) != 0 : strcmp(url, route->path) != 0)
            continue;
        out->allow = strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method;
        out->rest = open_end ? url + length : url;
        if (strcmp(route->method, wanted) == 0) {
            out->route = route;
            out->ctx = part->ctx;
            out->secret = part->secret;
        }
    }
}

/* ---- libmicrohttpd ---- */

/* Decodes %XX in place. "%00" stays as it is, or it would hide what follows. */
static size_t unescape(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx;
    (void)connection;
    char *to = text;
    for (const char *from = text; *from; from++) {
        char digits[3] = {from[0] == '%' ? from[1] : '\0', from[0] == '%' && from[1] ? from[2] : '\0', '\0'};
        bool coded = strspn(digits, "0123456789abcdefABCDEF") == 2 && strcmp(digits, "00") != 0;
        *to++ = coded ? (char)strtol(digits, NULL, 16) : *from;
        from += coded ? 2 : 0;
    }
    *to = '\0';
    return (size_t)(to - text);
}

#define GZIP_LEAST 2048u /* bytes: less is one packet or two */

/* Compresses a body for a client that takes gzip. Returns the bytes, which the caller frees; NULL: the body goes out as it is. */
static void *compress_body(struct MHD_Connection *connection, const char *body, size_t *size)
{
    const char *takes = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Accept-Encoding");
    if (*size < GZIP_LEAST || *size > UINT32_MAX / 2 || !takes || !strstr(takes, "gzip"))
        return NULL;
    struct isal_zstream stream;
    uint8_t *out = malloc(*size);
    isal_deflate_stateless_init(&stream);
    stream.gzip_flag = IGZIP_GZIP;
    stream.end_of_stream = 1;
    stream.next_in = (uint8_t *)(uintptr_t)body;
    stream.avail_in = (uint32_t)*size;
    stream.next_out = out;
    stream.avail_out = (uint32_t)*size; /* a body that would grow stays as it is */
    if (!out || isal_deflate_stateless(&stream) != COMP_OK) {
        free(out);
        return NULL;
    }
    *size = stream.total_out;
    return out;
}

/* allow: the methods that a reply with status 405 names, otherwise NULL. */
static enum MHD_Result send_reply(struct http *self, struct MHD_Connection *connection, struct http_reply *reply,
                                  const char *allow)
{
    const char *body = reply->data ? reply->data : text_get(&reply->text);
    size_t size = reply->data ? reply->size : strlen(body);
    void *packed = compress_body(connection, body, &size);
    struct MHD_Response *response = MHD_create_response_from_buffer(size, packed ? packed : (void *)(uintptr_t)body,
                                                                    packed        ? MHD_RESPMEM_MUST_FREE
                                                                    : reply->data ? MHD_RESPMEM_PERSISTENT
                                                                                  : MHD_RESPMEM_MUST_COPY);
    text_fini(&reply->text);
    if (!response)
        return MHD_NO;
    static const struct {
        const char *name, *value;
    } always[] = {{"Cache-Control", "no-store"},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cross-Origin-Resource-Policy", "same-origin"},
                  {"X-Frame-Options", "DENY"},
                  {"Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; base-uri 'none'; "
                                              "form-action 'self'; frame-ancestors 'none'"}};
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        MHD_add_response_header(response, always[i].name, always[i].value);
    MHD_add_response_header(response, "Content-Type", reply->type ? reply->type : "application/json; charset=utf-8");
    if (packed)
        MHD_add_response_header(response, "Content-Encoding", "gzip");
    if (reply->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (allow)
        MHD_add_response_header(response, "Allow", allow);
    if (links_crowded(&self->links))
        MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(connection, reply->status ? reply->status : 200, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct http *self, struct MHD_Connection *connection, uint32_t status, const char *text,
                              const char *allow)
{
    struct http_reply reply = {0};
    http_fail(&reply, status, "%s", text);
    return send_reply(self, connection, &reply, allow);
}

static void take_body(struct upload *upload, const char *data, size_t size)
{
    upload->too_large = upload->too_large || upload->size + size > BODY_MOST;
    if (upload->too_large)
        return;
    upload->body = need_resize(upload->body, upload->size + size + 1, 1);
    memcpy(upload->body + upload->size, data, size);
    upload->size += size;
    upload->body[upload->size] = '\0';
}

static enum MHD_Result answer(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *data, size_t *size, void **state)
{
    struct http *self = ctx;
    (void)version;
    if (!*state) { /* the headers are there, the body is not */
        *state = need_alloc(sizeof(struct upload));
        return MHD_YES;
    }
    struct upload *upload = *state;
    if (*size > 0) {
        take_body(upload, data, *size);
        *size = 0;
        return MHD_YES;
    }
    links_answers(&self->links, connection, true);
    if (upload->too_large)
        return refuse(self, connection, 413, "the request is too large", NULL);
    struct target target = {0};
    struct http_part parts[] = {self->options.part, self->options.further};
    if (self->options.mount)
        self->options.mount(self->options.part.ctx, &url, parts);
    find(&parts[0], method, url, &target);
    find(&parts[1], method, url, &target);
    if (!target.route)
        return refuse(self, connection, target.allow ? 405 : 404,
                      target.allow ? "this method is not for this path" : "there is nothing here", target.allow);
    struct http_request request = {.connection = connection,
                                   .path = target.rest,
                                   .body = upload->body ? upload->body : "",
                                   .body_size = upload->size};
    struct http_reply reply = {0};
    request.trusted = self->token[0] && has_token(&request, self->token);
    if (allow(self, &request, &target, &reply))
        target.route->handle(target.ctx, &request, &reply);
    return send_reply(self, connection, &reply, NULL);
}

static void forget(void *ctx, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode code)
{
    struct http *self = ctx;
    (void)code;
    struct upload *upload = *state;
    links_answers(&self->links, connection, false);
    if (upload)
        free(upload->body);
    free(upload);
    *state = NULL;
}

/* ---- the address ---- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* "127.0.0.1:80", "[::1]:80", "localhost:80". */
static bool parse_address(const char *text, union address *out, socklen_t *size)
{
    char host[HTTP_ADDRESS];
    const char *colon = strrchr(text, ':');
    char *end;
    if (!colon || (size_t)(colon - text) >= sizeof host)
        return false;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end || port > 65535)
        return false;
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    *out = (union address){0};
    size_t length = strlen(host);
    if (length > 1 && host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = '\0';
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)port);
        *size = sizeof out->v6;
        return inet_pton(AF_INET6, host + 1, &out->v6.sin6_addr) == 1;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons((uint16_t)port);
    *size = sizeof out->v4;
    const char *name = strcmp(host, "localhost") == 0 ? "127.0.0.1" : strcmp(host, "*") == 0 ? "0.0.0.0" : host;
    return inet_pton(AF_INET, name, &out->v4.sin_addr) == 1;
}

bool http_is_loopback(const char *address)
{
    union address parsed;
    socklen_t size;
    if (!parse_address(address, &parsed, &size))
        return false;
    return parsed.any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&parsed.v6.sin6_addr)
                                            : (ntohl(parsed.v4.sin_addr.s_addr) >> 24) == 127;
}

static void write_address(char *out, size_t size, const union address *address)
{
    char host[INET6_ADDRSTRLEN] = "";
    bool v6 = address->any.sa_family == AF_INET6;
    inet_ntop(address->any.sa_family, v6 ? (const void *)&address->v6.sin6_addr : &address->v4.sin_addr, host,
              sizeof host);
    snprintf(out, size, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "",
             ntohs(v6 ? address->v6.sin6_port : address->v4.sin_port));
}

/* Returns a listening socket; -1 with err set. */
static int listen_at(struct http *self, rp_error *err)
{
    union address address;
    socklen_t size;
    const char *text = self->options.address;
    if (!parse_address(text, &address, &size)) {
        err_set(err, RP_INVALID_ARGUMENT, "'%.100s' is no address for HTTP: write one like 127.0.0.1:8080", text);
        return -1;
    }
    int one = 1, fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, &address.any, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, &address.any, &size) != 0) {
        err_set(err, RP_IO, "%s cannot be bound for HTTP: %s", text, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    write_address(self->address, sizeof self->address, &address);
    self->loopback = http_is_loopback(self->address);
    return fd;
}

/* ---- the whole ---- */

struct http *http_start(const struct http_options *options, rp_error *err)
{
    struct http *self = need_alloc(sizeof *self);
    self->token = need_text(options->token ? options->token : "");
    self->options = *options;
    int fd = listen_at(self, err);
    if (fd < 0) {
        http_stop(&self);
        return NULL;
    }
    uint32_t threads = options->threads > 1 ? options->threads : 0;
    if (links_start(&self->links))
        self->daemon = MHD_start_daemon(
            MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, answer, self, MHD_OPTION_LISTEN_SOCKET, fd,
            MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_NOTIFY_COMPLETED, forget,
            self, MHD_OPTION_NOTIFY_CONNECTION, links_notify, &self->links, MHD_OPTION_UNESCAPE_CALLBACK, unescape,
            NULL, threads ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads, MHD_OPTION_END);
    if (!self->daemon) {
        close(fd);
        err_set(err, RP_RESOURCE_EXHAUSTED, "the HTTP server could not be started at %s", self->address);
        http_stop(&self);
    }
    return self;
}

void http_stop(struct http **self)
{
    if (!*self)
        return;
    if ((*self)->daemon) {
        links_drain(&(*self)->links);
        MHD_stop_daemon((*self)->daemon);
    }
    links_stop(&(*self)->links);
    free((*self)->token);
    free(*self);
    *self = NULL;
}

const char *http_address(const struct http *self)
{
    return self->address;
}
