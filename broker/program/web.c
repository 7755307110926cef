#include "broker/program/web.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/program/metrics_text.h"
#include "broker/program/threads.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/need.h"
#include "proto/http/http.h"
#include "proto/keys/keys.h"
#include "proto/wire/pb.h"

/* A snapshot that is not older serves all requests. */
#define FRESH_NS (100 * NS_PER_MS)
/* After this time without a snapshot the answer says so. */
#define PATIENCE_NS (5 * NS_PER_S)

#define NO_SNAPSHOT "the broker has made no snapshot in time: it is stopping, or very busy"

/* Requests for the page may wait for the broker: others go on beside them. */
#define THREADS 4u

struct web {
    struct http *http;
    struct exchange *exchange;
    int64_t shard;                              /* see web_options */
    char token[TOKEN_TEXT], reader[TOKEN_TEXT]; /* reader: "" without keys */
    char url[HTTP_ADDRESS + 16];
    int stop_fd;               /* eventfd: readable when the server stops */
    pthread_mutex_t lock;      /* of everything below: the exchange has one reader at a time */
    struct snapshot *snapshot; /* the newest; NULL: none yet */
    struct threads threads;
    int64_t now_ns; /* of this request */
};

/* ---- tokens ---- */

#define TOKEN_FILE_BYTES 4096u

static void print_token(FILE *file, const void *token)
{
    fprintf(file, "%s\n", (const char *)token);
}

static rp_status token_read(const char *path, char token[TOKEN_TEXT], rp_error *err)
{
    char *text;
    struct stat facts;
    if (lstat(path, &facts) == 0 && (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid()))
        return err_set(err, RP_PERMISSION_DENIED,
                       "the token %s is no plain file of this user: remove it, and the broker makes a new one", path);
    RP_TRY(key_file_read(path, true, TOKEN_FILE_BYTES, &text, err));
    size_t size = strcspn(text, "\r\n");
    bool good = size == TOKEN_TEXT - 1 && strspn(text, "0123456789abcdef") == size;
    if (good)
        snprintf(token, TOKEN_TEXT, "%s", text);
    free(text);
    return good
               ? RP_OK
               : err_set(err, RP_INVALID_ARGUMENT,
                         "the token %s has not 64 hexadecimal digits: remove it, and the broker makes a new one", path);
}

/* Several shards make it at the same time: the first one's counts, and it is there as a whole or not at all. */
rp_status token_open(const char *folder, const char *file, char token[TOKEN_TEXT], rp_error *err)
{
    char path[KEY_PATH], made[TOKEN_TEXT];
    RP_TRY(key_path(folder, file, path, err));
    rp_status status = token_read(path, token, err);
    if (status != RP_NOT_FOUND)
        return status;
    http_make_token(made);
    status = key_file_write(path, true, print_token, made, false, err);
    return status == RP_OK || status == RP_ALREADY_EXISTS ? token_read(path, token, err) : status;
}

/* ---- snapshots ---- */

static bool is_fresh(const struct web *self, unsigned parts, int64_t since_ns)
{
    const struct snapshot *snapshot = self->snapshot;
    return snapshot && (snapshot->parts & parts) == parts && snapshot->made_ns >= since_ns;
}

/* Waits for the core thread. False: the server stops, or the time is over. */
static bool take_next(struct web *self, int64_t end_ns)
{
    struct pollfd fds[] = {{self->exchange->made_fd, POLLIN, 0}, {self->stop_fd, POLLIN, 0}};
    int64_t left_ms = (end_ns - clock_ns()) / NS_PER_MS;
    if (left_ms <= 0 || poll(fds, 2, (int)left_ms) <= 0 || fds[1].revents)
        return false;
    struct snapshot *taken = exchange_take(self->exchange);
    if (taken) {
        snapshot_destroy(&self->snapshot);
        self->snapshot = taken;
    }
    return true;
}

/* Sees to it that self->snapshot has these parts. False: there is none in time. */
static bool look(struct web *self, unsigned parts)
{
    int64_t start_ns = clock_ns(), since_ns = start_ns - FRESH_NS, end_ns = start_ns + PATIENCE_NS;
    bool more = true;
    while (more && !is_fresh(self, parts, since_ns)) {
        exchange_ask(self->exchange, parts);
        more = take_next(self, end_ns);
    }
    self->now_ns = clock_ns();
    if (!is_fresh(self, parts, since_ns))
        return false;
    threads_look(&self->threads, self->now_ns);
    self->snapshot->info.process = &self->threads.process;
    return true;
}

rp_status web_show(struct web *self, bool sessions, rp_info **info, rp_info **waits, rp_error *err)
{
    unsigned parts = SNAPSHOT_STATE | (sessions ? SNAPSHOT_SESSIONS : 0) | (waits ? SNAPSHOT_WAITS : 0);
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->lock);
    if (look(self, parts)) {
        Replay__InfoReply shown = self->snapshot->info;
        shown.n_sessions = sessions ? shown.n_sessions : 0;
        *info = (rp_info *)unpack_clone(&shown.base);
        if (waits)
            *waits = (rp_info *)unpack_clone(&self->snapshot->why.base);
        status = *info ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the broker's state");
    } else {
        status = err_set(err, RP_UNAVAILABLE, NO_SNAPSHOT);
    }
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* ---- answers ---- */

static void take_json(struct http_reply *reply, struct json *json)
{
    text_put(&json->out, "", 1); /* its end */
    reply->text = json->out;
    if (json->out.failed)
        http_fail(reply, 503, "no memory for the answer");
}

typedef void show_fn(struct web *self, const struct http_request *request, struct http_reply *reply);

/* Shows parts of a snapshot, which is self->snapshot. One thread at a time. */
static void answer_snapshot(struct web *self, const struct http_request *request, struct http_reply *reply,
                            unsigned parts, show_fn *show)
{
    pthread_mutex_lock(&self->lock);
    if (look(self, parts))
        show(self, request, reply);
    else
        http_fail(reply, 503, NO_SNAPSHOT);
    pthread_mutex_unlock(&self->lock);
}

/* The handler of a path that shows parts of a snapshot by show_WHAT. */
#define HANDLER(what, wanted)                                                                                          \
    static void get_##what(void *ctx, const struct http_request *request, struct http_reply *reply)                    \
    {                                                                                                                  \
        answer_snapshot(ctx, request, reply, wanted, show_##what);                                                     \
    }

static void show_metrics(struct web *self, const struct http_request *request, struct http_reply *reply)
{
    const char *accept = http_header(request, "Accept");
    bool openmetrics = accept && strstr(accept, "application/openmetrics-text");
    metrics_text(&reply->text, &self->snapshot->info,
                 &(struct metrics_style){.openmetrics = openmetrics, .shard = self->shard});
    reply->type = openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                              : "text/plain; version=0.0.4; charset=utf-8";
}

static void show_message(struct http_reply *reply, const ProtobufCMessage *message)
{
    struct json json = {0};
    json_message(&json, message);
    take_json(reply, &json);
}

/* Everything but sessions, which may be many. */
static void show_info(struct web *self, const struct http_request *request, struct http_reply *reply)
{
    Replay__InfoReply info = self->snapshot->info;
    (void)request;
    info.n_sessions = 0;
    show_message(reply, &info.base);
}

static void show_why(struct web *self, const struct http_request *request, struct http_reply *reply)
{
    (void)request;
    show_message(reply, &self->snapshot->why.base);
}

/* Shows lists of the state. */
static void show_lists(const Replay__InfoReply *info, const char *const *names, struct http_reply *reply)
{
    struct json json = {0};
    json_open(&json, '{');
    for (; *names; names++) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(info->base.descriptor, *names);
        const char *base = (const char *)info;
        json_list(&json, *names, *(ProtobufCMessage *const *const *)(const void *)(base + field->offset),
                  *(const size_t *)(const void *)(base + field->quantifier_offset));
    }
    json_close(&json, '}');
    take_json(reply, &json);
}

#define SHOW_LISTS(what, ...)                                                                                          \
    static void show_##what(struct web *self, const struct http_request *request, struct http_reply *reply)            \
    {                                                                                                                  \
        (void)request;                                                                                                 \
        show_lists(&self->snapshot->info, (const char *const[]){__VA_ARGS__, NULL}, reply);                            \
    }
SHOW_LISTS(tables, "tables")
SHOW_LISTS(sessions, "sessions")
SHOW_LISTS(params, "slots", "counters")

static void show_table(struct web *self, const struct http_request *request, struct http_reply *reply)
{
    const Replay__InfoReply *info = &self->snapshot->info;
    size_t i = 0;
    while (i < info->n_tables && strcmp(info->tables[i]->name, request->path) != 0)
        i++;
    if (i < info->n_tables)
        show_message(reply, &info->tables[i]->base);
    else
        http_fail(reply, 404, "there is no table '%.256s'; /api/tables lists them", request->path);
}

/* Writes all histograms of a message as members. Counts in buckets that are not empty are pairs of an upper bound and a count; a
 * quantile is the bound of its bucket. */
static void web_put_histograms(struct json *out, const struct figures *figures, const ProtobufCMessage *message)
{
    struct histogram histogram;
    for (const struct figure *row = figures->rows; row->name; row++) {
        if (row->type != FIGURE_HISTOGRAM)
            continue;
        double unit = row->scale->per_unit;
        metrics_histogram(row, message, &histogram);
        json_key(out, row->name);
        json_open(out, '{');
        json_count(out, "count", histogram_count(&histogram));
        json_real(out, "sum", histogram.sum / unit);
        json_real(out, "p50", (double)histogram_quantile(&histogram, 0.5) / unit);
        json_real(out, "p90", (double)histogram_quantile(&histogram, 0.9) / unit);
        json_real(out, "p99", (double)histogram_quantile(&histogram, 0.99) / unit);
        json_key(out, "buckets");
        json_open(out, '[');
        for (uint32_t b = 0; b < HISTOGRAM_BUCKETS; b++) {
            if (!histogram.counts[b])
                continue;
            json_open(out, '[');
            json_number(out, (double)histogram_bound(b) / unit);
            json_unsigned(out, histogram.counts[b]);
            json_close(out, ']');
        }
        json_close(out, ']');
        json_close(out, '}');
    }
}

/* Writes an object with the histograms of each message of a list, by the name of the message. */
static void put_histogram_list(struct json *out, const char *name, const struct figures *figures, void *list, size_t n)
{
    const ProtobufCMessage *const *messages = list;
    json_key(out, name);
    json_open(out, '{');
    for (size_t i = 0; i < n; i++) {
        const ProtobufCMessage *message = messages[i];
        json_key(out, *(char *const *)(const void *)((const char *)message + message->descriptor->fields[0].offset));
        json_open(out, '{');
        web_put_histograms(out, figures, message);
        json_close(out, '}');
    }
    json_close(out, '}');
}

static void show_latency(struct web *self, const struct http_request *request, struct http_reply *reply)
{
    const Replay__InfoReply *info = &self->snapshot->info;
    struct json json = {0};
    (void)request;
    json_open(&json, '{');
    web_put_histograms(&json, &server_figures, &info->server->base);
    put_histogram_list(&json, "requests", &command_figures, info->server->commands, info->server->n_commands);
    put_histogram_list(&json, "tables", &table_figures, info->tables, info->n_tables);
    json_close(&json, '}');
    take_json(reply, &json);
}

/* The broker is in good health if its core thread makes snapshots. */
static void show_health(struct web *self, const struct http_request *request, struct http_reply *reply)
{
    (void)self, (void)request;
    text_add(&reply->text, "{\"status\": \"ok\"}");
}

HANDLER(metrics, SNAPSHOT_STATE | SNAPSHOT_SESSIONS)
HANDLER(info, SNAPSHOT_STATE)
HANDLER(tables, SNAPSHOT_STATE)
HANDLER(table, SNAPSHOT_STATE)
HANDLER(health, SNAPSHOT_STATE)
HANDLER(sessions, SNAPSHOT_STATE | SNAPSHOT_SESSIONS)
HANDLER(why, SNAPSHOT_STATE | SNAPSHOT_WAITS)
HANDLER(params, SNAPSHOT_STATE)
HANDLER(latency, SNAPSHOT_STATE)

static void get_list(void *ctx, const struct http_request *request, struct http_reply *reply);

static const struct http_route routes[] = {
    {"GET", "/metrics", get_metrics, false},      {"GET", "/api", get_list, false},
    {"GET", "/api/info", get_info, false},        {"GET", "/api/tables", get_tables, false},
    {"GET", "/api/tables/...", get_table, false}, {"GET", "/api/sessions", get_sessions, false},
    {"GET", "/api/why", get_why, false},          {"GET", "/api/params", get_params, false},
    {"GET", "/api/latency", get_latency, false},  {"GET", "/healthz", get_health, true},
};
#define N_ROUTES (sizeof routes / sizeof routes[0])

static void get_list(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct json json = {0};
    (void)ctx, (void)request;
    json_open(&json, '{');
    json_key(&json, "paths");
    json_open(&json, '[');
    for (uint32_t i = 0; i < N_ROUTES; i++)
        json_string(&json, routes[i].path);
    json_close(&json, ']');
    json_close(&json, '}');
    take_json(reply, &json);
}

/* ---- the server ---- */

static rp_status web_begin(struct web *self, const struct web_options *options, rp_error *err)
{
    self->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->stop_fd < 0 || !exchange_open(self->exchange))
        return err_set(err, RP_NO_MEMORY, "no memory or descriptors for http");
    if (options->keys) {
        RP_TRY(token_open(options->keys, TOKEN_ADMIN, self->token, err));
        RP_TRY(token_open(options->keys, TOKEN_READER, self->reader, err));
    } else {
        http_make_token(self->token);
    }
    const struct http_options server = {.address = options->address,
                                        .part = {routes, N_ROUTES, self, false},
                                        .further = options->further,
                                        .token = self->token,
                                        .reader = self->reader,
                                        .open = !options->keys,
                                        .threads = THREADS};
    self->http = http_start(&server, err);
    if (!self->http)
        return RP_IO; /* err says why */
    snprintf(self->url, sizeof self->url, "http://%s/", http_address(self->http));
    return RP_OK;
}

struct web *web_start(const struct web_options *options, rp_error *err)
{
    struct web *self = need_alloc(sizeof *self);
    self->exchange = options->exchange;
    self->shard = options->shard;
    self->stop_fd = -1;
    pthread_mutex_init(&self->lock, NULL);
    if (web_begin(self, options, err) != RP_OK)
        web_destroy(&self);
    return self;
}

const char *web_url(const struct web *self)
{
    return self->url;
}

const char *web_token(const struct web *self)
{
    return self->token;
}

void web_stop(struct web *self)
{
    if (self->stop_fd >= 0)
        eventfd_write(self->stop_fd, 1);
    http_stop(&self->http);
}

void web_destroy(struct web **at)
{
    struct web *self = *at;
    *at = NULL;
    if (!self)
        return;
    web_stop(self);
    if (self->stop_fd >= 0)
        close(self->stop_fd);
    snapshot_destroy(&self->snapshot);
    pthread_mutex_destroy(&self->lock);
    free(self);
}
