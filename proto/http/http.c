#include "proto/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <isa-l/igzip_lib.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
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
/* More that may be open until libmicrohttpd has closed those that were cut. */
#define SPARE 32u
#define TIMEOUT_S 10u
#define BODY_MOST 65536u
#define MEMORY_PER_CONNECTION (32u * 1024u)
#define DRAIN_NS NS_PER_S

/* ---- connections ----
 *
 * When all connections are in use, a further one takes the place of the one that has waited longest for a request. An answer that is not
 * read within ANSWER_NS counts as such a wait, or the one that has taken longest goes if there is nothing else. So whoever holds many
 * connections cannot keep others out. */

#define ANSWER_NS (10 * NS_PER_S)

struct link {
    LIST_ENTRY(link) entry;
    int fd;
    int64_t since_ns; /* when it began to wait for a request, or to answer one */
    bool answers, cut;
};

struct links {
    pthread_mutex_t mutex; /* of everything below */
    LIST_HEAD(link_list, link) list;
    uint32_t n; /* connections */
};

static int64_t waits_from(const struct link *self)
{
    return self->since_ns + (self->answers ? ANSWER_NS : 0);
}

/* A connection leaves the list before libmicrohttpd closes its descriptor, so a descriptor in the list is open. */
static void cut_oldest(struct links *self)
{
    struct link *oldest = NULL;
    for (struct link *link = LIST_FIRST(&self->list); link; link = LIST_NEXT(link, entry))
        if (!link->cut && (!oldest || waits_from(link) < waits_from(oldest)))
            oldest = link;
    if (!oldest)
        return;
    oldest->cut = true;
    shutdown(oldest->fd, SHUT_RDWR);
}

static bool answers_any(struct links *self)
{
    bool any = false;
    pthread_mutex_lock(&self->mutex);
    for (const struct link *link = LIST_FIRST(&self->list); link && !any; link = LIST_NEXT(link, entry))
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

static struct link *add(struct links *self, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct link *link = info ? need_alloc(sizeof *link) : NULL;
    if (!link)
        return NULL; /* it has libmicrohttpd's own timeout */
    if (self->n++ >= CONNECTIONS)
        cut_oldest(self);
    *link = (struct link){.fd = info->connect_fd, .since_ns = clock_ns()};
    LIST_INSERT_HEAD(&self->list, link, entry);
    return link;
}

/* For MHD_OPTION_NOTIFY_CONNECTION; ctx: the links. */
static void links_notify(void *ctx, struct MHD_Connection *connection, void **link,
                         enum MHD_ConnectionNotificationCode code)
{
    struct links *self = ctx;
    pthread_mutex_lock(&self->mutex);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *link = add(self, connection);
    } else if (*link) {
        self->n--;
        LIST_REMOVE((struct link *)*link, entry);
        free(*link);
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
static enum MHD_Result send_reply(struct MHD_Connection *connection, struct http_reply *reply, const char *allow)
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
    enum MHD_Result result = MHD_queue_response(connection, reply->status ? reply->status : 200, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, uint32_t status, const char *text, const char *allow)
{
    struct http_reply reply = {0};
    http_fail(&reply, status, "%s", text);
    return send_reply(connection, &reply, allow);
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
        return refuse(connection, 413, "the request is too large", NULL);
    struct target target = {0};
    struct http_part parts[] = {self->options.part, self->options.further};
    if (self->options.mount)
        self->options.mount(self->options.part.ctx, &url, parts);
    find(&parts[0], method, url, &target);
    find(&parts[1], method, url, &target);
    if (!target.route)
        return refuse(connection, target.allow ? 405 : 404,
                      target.allow ? "this method is not for this path" : "there is nothing here", target.allow);
    struct http_request request = {.connection = connection,
                                   .path = target.rest,
                                   .body = upload->body ? upload->body : "",
                                   .body_size = upload->size};
    struct http_reply reply = {0};
    request.trusted = self->token[0] && has_token(&request, self->token);
    if (allow(self, &request, &target, &reply))
        target.route->handle(target.ctx, &request, &reply);
    return send_reply(connection, &reply, NULL);
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

/* Reads "127.0.0.1:80", "[::1]:80", "localhost:80", "*:80". NULL: it is no address; otherwise for freeaddrinfo. */
static struct addrinfo *parse_address(const char *text)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    char host[HTTP_ADDRESS];
    const char *colon = strrchr(text, ':');
    struct addrinfo *found = NULL;
    if (!colon || (size_t)(colon - text) >= sizeof host || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        !colon[1] || strtoul(colon + 1, NULL, 10) > 65535)
        return NULL;
    bool v6 = text[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(colon - text) - 2 * v6, text + v6);
    const char *name = strcmp(host, "localhost") == 0 ? "127.0.0.1" : strcmp(host, "*") == 0 ? "0.0.0.0" : host;
    struct in6_addr any; /* getaddrinfo alone takes "127.1", too, and "0" */
    return inet_pton(v6 ? AF_INET6 : AF_INET, name, &any) == 1 && getaddrinfo(name, colon + 1, &hints, &found) == 0
               ? found
               : NULL;
}

bool http_is_loopback(const char *address)
{
    struct addrinfo *parsed = parse_address(address);
    if (!parsed)
        return false;
    const void *at = parsed->ai_addr;
    bool loopback = parsed->ai_family == AF_INET6
                        ? IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr)
                        : (ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24) == 127;
    freeaddrinfo(parsed);
    return loopback;
}

/* Returns a listening socket; -1 with err set. */
static int listen_at(struct http *self, rp_error *err)
{
    const char *text = self->options.address;
    struct addrinfo *address = parse_address(text);
    if (!address) {
        err_set(err, RP_INVALID_ARGUMENT, "'%.100s' is no address for HTTP: write one like 127.0.0.1:8080", text);
        return -1;
    }
    int one = 1, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, address->ai_addr, &address->ai_addrlen) != 0) {
        err_set(err, RP_IO, "%s cannot be bound for HTTP: %s", text, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        char host[NI_MAXHOST] = "", port[8] = "";
        getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
        snprintf(self->address, sizeof self->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
        self->loopback = http_is_loopback(self->address);
    }
    freeaddrinfo(address);
    return fd;
}

/* ---- the whole ---- */

struct http *http_start(const struct http_options *options, rp_error *err)
{
    struct http *self = need_alloc(sizeof *self);
    pthread_mutex_init(&self->links.mutex, NULL);
    self->token = need_text(options->token ? options->token : "");
    self->options = *options;
    int fd = listen_at(self, err);
    if (fd < 0) {
        http_stop(&self);
        return NULL;
    }
    uint32_t threads = options->threads > 1 ? options->threads : 0;
    self->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, answer, self, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS + SPARE, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_NOTIFY_COMPLETED, forget, self,
        MHD_OPTION_NOTIFY_CONNECTION, links_notify, &self->links, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        threads ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads, MHD_OPTION_END);
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
    free((*self)->token);
    free(*self);
    *self = NULL;
}

const char *http_address(const struct http *self)
{
    return self->address;
}
