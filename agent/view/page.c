/* The page: one state for all who look; questions about writers and items; changes. */
#include "agent/view/page.h"

#include <json-c/json.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define PAGE_ASK_MS 1500

struct page {
    struct page_host host;
    atomic_bool leaving;           /* no call waits for the broker any more */
    atomic_int_least64_t asked_ns; /* when somebody last looked; monotonic; 0: never */
    pthread_mutex_t lock;          /* of everything below */
    rp_client *client;             /* for states; NULL: no broker is known */
    struct page_door door;         /* that the client came through */
    char *state;                   /* the newest one: JSON without its last "}"; NULL: none yet */
    int64_t made_ns;
};

/* ---- the broker ---- */

/* Returns a client of the broker that the host names now; NULL: nobody answers, or no broker is known. */
static rp_client *connect_to(const struct page_door *door)
{
    const rp_client_options options = {.struct_size = sizeof options, .name = "page", .key_file = ""};
    const struct conn_host host = {.key = door->has_key ? &door->key : NULL};
    return door->service[0] ? client_connect(door->service, &options, &host, PAGE_ASK_MS, NULL) : NULL;
}

/* For rp_wait_set: 1 if calls that wait for the broker are to end. */
static int is_leaving(void *ctx)
{
    const struct page *self = ctx;
    return atomic_load(&self->leaving);
}

/* Connects for the calls of a request: NULL if nobody answers, or if calls are to end. */
static rp_client *calls_begin(struct page *self, rp_error *err)
{
    struct page_door door = {0};
    rp_wait_set(is_leaving, self);
    self->host.find(self->host.ctx, &door);
    rp_client *client = connect_to(&door);
    key_wipe(&door.key);
    if (!client)
        err_set(err, RP_UNAVAILABLE, "the broker does not answer");
    return client;
}

static void calls_end(rp_client *client)
{
    rp_client_destroy(&client);
    rp_wait_set(NULL, NULL);
}

/* ---- the state: what limits now, the broker's answers, and the run, as one JSON object ---- */

struct look {
    struct page_run run;
    rp_info *info, *waits;
    char silence[300]; /* why the broker does not answer */
};

/* Asks the process that serves the page if it is the broker, else its client; waits may be NULL. */
static rp_status ask_state(const struct page_host *host, rp_client *client, bool sessions, rp_info **info,
                           rp_info **waits, rp_error *err)
{
    if (host->show)
        return host->show(host->ctx, sessions, info, waits, err);
    if (!client)
        return err_set(err, RP_UNAVAILABLE, "nobody answers at its endpoint");
    RP_TRY(rp_admin_info(client, NULL, sessions, PAGE_ASK_MS, info, err));
    if (waits)
        rp_admin_why(client, PAGE_ASK_MS, waits, NULL);
    return RP_OK;
}

/* A run has one verdict: its launcher's, which sees more than the broker says. Without one, or if the broker does not answer this page,
 * the page judges by itself. */
static void put_verdict(struct json *out, const struct look *look)
{
    struct why why = look->run.why;
    const char *level = look->run.level;
    const struct why_run *run = look->run.has_facts ? &look->run.facts : NULL;
    if (!level || (look->run.if_silent && look->info)) {
        if (!look->info || !why_read_status(look->run.status, &why))
            why_explain(&(struct why_facts){look->info, look->waits, run, look->silence}, &why);
        level = why.bad ? "bad" : why.blocked != WHY_NOBODY ? "warn" : "good";
    }
    json_begin(out, "verdict", '{');
    json_text(out, "text", why.text);
    json_text(out, "advice", why.advice);
    json_text(out, "level", level);
    json_text(out, "cause", why_cause_names[why.cause]);
    json_text(out, "blocked", why_side_names[why.blocked]);
    json_text(out, "table", why.table);
    json_close(out, '}');
}

static char *put_together(const struct look *look)
{
    struct json out = {0};
    json_open(&out, '{');
    json_real(&out, "unix_s", clock_unix_s());
    json_flag(&out, "run_alive", look->run.alive);
    json_text(&out, "elsewhere", look->run.node);
    put_verdict(&out, look);
    json_key(&out, "broker");
    json_message(&out, (const ProtobufCMessage *)look->info);
    json_begin(&out, "waits", '[');
    for (uint32_t i = 0; i < rp_info_count(look->waits, "waits"); i++)
        json_message(&out, (const ProtobufCMessage *)rp_info_at(look->waits, "waits", i));
    json_close(&out, ']');
    json_key(&out, "run");
    json_raw(&out, look->run.status ? look->run.status : "null");
    return json_take(&out);
}

/* ---- asking: one question to the broker answers all who look, and if nobody looks, nothing is asked ---- */

/* Somebody looks: a browser in front asks every second, one in the background every four. */
#define LOOKING_NS (8 * NS_PER_S)
/* For which a state is new. */
#define FRESH_NS (NS_PER_S * 9 / 10)

static bool is_same(const struct page_door *a, const struct page_door *b)
{
    return strcmp(a->service, b->service) == 0 && a->has_key == b->has_key && a->key.n_brokers == b->key.n_brokers &&
           memcmp(a->key.brokers, b->key.brokers, sizeof a->key.brokers) == 0;
}

/* Connects to the broker of now, unless the client is for it already: it may listen elsewhere, or have another key. */
static rp_client *connect_now(struct page *self)
{
    struct page_door door = {0};
    self->host.find(self->host.ctx, &door);
    if (!self->client || !is_same(&door, &self->door)) {
        rp_client_destroy(&self->client);
        self->client = connect_to(&door);
        self->door = door;
    }
    key_wipe(&door.key);
    return self->client;
}

/* Makes a state with the answers of the broker, or with why there is none. */
static char *state_new(struct page *self)
{
    const struct page_host *host = &self->host;
    struct look look = {0};
    if (host->look)
        host->look(host->ctx, &look.run);
    rp_error err = {0};
    if (!look.run.folder_only &&
        ask_state(host, host->show ? NULL : connect_now(self), false, &look.info, &look.waits, &err) != RP_OK)
        snprintf(look.silence, sizeof look.silence, "%s", err.text);
    char *state = put_together(&look);
    rp_info_free(&look.info);
    rp_info_free(&look.waits);
    free(look.run.status);
    return state;
}

char *page_state(struct page *self)
{
    pthread_mutex_lock(&self->lock);
    atomic_store(&self->asked_ns, clock_ns());
    if (!self->state || clock_ns() - self->made_ns > FRESH_NS) {
        rp_wait_set(is_leaving, self);
        free(self->state);
        self->state = state_new(self);
        self->made_ns = clock_ns();
        rp_wait_set(NULL, NULL);
    }
    char *state = self->state ? strdup(self->state) : NULL;
    pthread_mutex_unlock(&self->lock);
    return state;
}

bool page_is_watched(struct page *self)
{
    int64_t asked_ns = atomic_load(&self->asked_ns);
    return asked_ns && clock_ns() - asked_ns < LOOKING_NS;
}

static void page_get_state(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct page *self = ctx;
    char *state = page_state(self);
    if (!state) {
        http_fail(reply, 503, "no memory for an answer: ask again later");
        return;
    }
    text_add(&reply->text, "%s, \"can\": {\"change\": %s, \"stop\": \"%s\", \"runs\": %s}}\n", state,
             request->trusted ? "true" : "false", request->trusted && self->host.stop ? self->host.what : "",
             self->host.look ? "true" : "false");
    free(state);
}

/* ---- what the broker says: writers with their sessions, items ---- */

#define ITEMS_MOST 200u
#define VALUES_MOST 262144u /* of each field of an item: an image of 512 x 512 */

static uint32_t http_status(rp_status status)
{
    switch (status) {
    case RP_NOT_FOUND:
        return 404;
    case RP_INVALID_ARGUMENT:
    case RP_FAILED_PRECONDITION:
        return 400;
    case RP_PERMISSION_DENIED:
        return 403;
    default:
        return 503;
    }
}

/* Answers with JSON, or with the error. */
static void give(struct http_reply *reply, rp_status status, char *json, const rp_error *err)
{
    if (status == RP_OK)
        text_add(&reply->text, "%s\n", json);
    else
        http_fail(reply, http_status(status), "%s", err->text);
    rp_string_free(&json);
}

/* Asks the broker on a connection of its own, and answers with the JSON that `ask` makes of what it says. */
static void answer(struct page *self, const struct http_request *request, struct http_reply *reply,
                   rp_status (*ask)(rp_client *client, const struct http_request *request, char **json, rp_error *err))
{
    rp_error err = {0};
    char *json = NULL;
    rp_client *client = calls_begin(self, &err);
    rp_status status = client ? ask(client, request, &json, &err) : (rp_status)err.status;
    calls_end(client);
    give(reply, status, json, &err);
}

/* Makes JSON of what the broker has said, and frees it. */
static rp_status info_json(rp_status status, rp_info *info, char **json, rp_error *err)
{
    status = status == RP_OK ? rp_info_json(info, json, err) : status;
    rp_info_free(&info);
    return status;
}

/* A number of the query; 0: there is none. */
static uint64_t query_number(const struct http_request *request, const char *name)
{
    const char *text = http_query(request, name);
    return text ? strtoull(text, NULL, 10) : 0;
}

static const char *query_text(const struct http_request *request, const char *name)
{
    const char *text = http_query(request, name);
    return text ? text : "";
}

static void get_writers(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct page *self = ctx;
    rp_error err = {0};
    rp_info *info = NULL;
    char *json = NULL;
    (void)request;
    rp_client *client = self->host.show ? NULL : calls_begin(self, &err);
    rp_status status = ask_state(&self->host, client, true, &info, NULL, &err);
    calls_end(client);
    status = info_json(status, info, &json, &err);
    give(reply, status, json, &err);
}

static rp_status ask_items(rp_client *client, const struct http_request *request, char **json, rp_error *err)
{
    uint64_t count = query_number(request, "count");
    rp_info *info = NULL;
    rp_status status =
        rp_admin_list(client, query_text(request, "table"), query_number(request, "cursor"),
                      (uint32_t)(count > 0 && count < ITEMS_MOST ? count : ITEMS_MOST), PAGE_ASK_MS, &info, err);
    return info_json(status, info, json, err);
}

static void get_items(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    answer(ctx, request, reply, ask_items);
}

static rp_status ask_item(rp_client *client, const struct http_request *request, char **json, rp_error *err)
{
    uint64_t key = query_number(request, "key");
    rp_batch *batch = NULL;
    rp_status status = rp_admin_fetch(client, query_text(request, "table"), &key, 1, PAGE_ASK_MS, &batch, err);
    if (status == RP_OK)
        status = rp_batch_json(batch, VALUES_MOST, json, err);
    rp_batch_release(&batch);
    return status;
}

static void get_item(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    answer(ctx, request, reply, ask_item);
}

/* ---- priorities and ages of a sample of the items, for histograms ---- */

#define PARTS 64u /* of the table, from each of which a few items are taken: neighbours are of one age */
#define PART_ITEMS 16u

/* A shard that does not answer gives no items: those of the others are a sample, too. */
static rp_status take_part(rp_client *client, const char *table, uint64_t cursor, struct json out[2], rp_error *err)
{
    rp_info *list = NULL;
    rp_status status = rp_admin_list(client, table, cursor, PART_ITEMS, PAGE_ASK_MS, &list, err);
    for (uint32_t i = 0; i < rp_info_count(list, "items"); i++) {
        const rp_info *item = rp_info_at(list, "items", i);
        json_number(&out[0], rp_info_real(item, "priority"));
        json_number(&out[1], rp_info_real(item, "age_ns") * 1e-9);
    }
    rp_info_free(&list);
    return status;
}

/* size: of the table, about. */
static rp_status ask_sample(rp_client *client, const struct http_request *request, char **json, rp_error *err)
{
    uint64_t all = query_number(request, "size"), shards = client_shards(client);
    uint64_t size = all / shards; /* about the same at all shards */
    uint64_t parts = all > PARTS * PART_ITEMS ? PARTS / shards : (size + PART_ITEMS - 1) / PART_ITEMS;
    struct json lists[2] = {0}; /* priorities, ages */
    rp_status status = RP_OK;
    parts = parts || shards == 1 ? parts : 1;
    for (uint32_t k = 0; k < 2; k++)
        json_open(&lists[k], '[');
    for (uint64_t i = 0; status == RP_OK && i < parts * shards; i++)
        status = take_part(client, query_text(request, "table"),
                           (i % shards) << RP_CURSOR_BITS | i / shards * size / parts, lists, err);
    for (uint32_t k = 0; k < 2; k++)
        json_close(&lists[k], ']');
    *json = need_print("{\"priorities\": %.*s, \"ages\": %.*s}", (int)lists[0].out.size, lists[0].out.data,
                       (int)lists[1].out.size, lists[1].out.data);
    json_fini(&lists[0]);
    json_fini(&lists[1]);
    return status;
}

static void get_histogram(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    answer(ctx, request, reply, ask_sample);
}

/* ---- changes: a checkpoint, a reset, another limiter, the end of the run or of the broker. The server lets in only requests with the
 * token. ---- */

#define CHANGE_MS 5000
#define DONE_SIZE 200u

/* Makes a change that somebody wishes for, and says in `done` what was done. */
typedef rp_status action(rp_client *client, struct json_object *wish, char done[DONE_SIZE], rp_error *err);

static rp_status make_checkpoint(rp_client *client, struct json_object *wish, char done[DONE_SIZE], rp_error *err)
{
    rp_info *made = NULL;
    (void)wish;
    rp_status status = rp_admin_checkpoint(client, CHANGE_MS, &made, err);
    if (status == RP_DEADLINE_EXCEEDED) { /* the broker goes on with it, and a browser does not wait for ever */
        snprintf(done, DONE_SIZE, "The checkpoint takes longer than %d s: the broker goes on with it.",
                 CHANGE_MS / 1000);
        return RP_OK;
    }
    snprintf(done, DONE_SIZE, "Checkpoint %llu is on disk: %llu items.",
             (unsigned long long)rp_info_u64(made, "number"), (unsigned long long)rp_info_u64(made, "items"));
    rp_info_free(&made);
    return status;
}

static rp_status reset(rp_client *client, struct json_object *wish, char done[DONE_SIZE], rp_error *err)
{
    const char *table = json_map_text(wish, "table");
    rp_info *removed = NULL;
    rp_status status = rp_admin_reset(client, table, CHANGE_MS, &removed, err);
    snprintf(done, DONE_SIZE, "%llu items of '%.100s' are gone.", (unsigned long long)rp_info_u64(removed, "applied"),
             table);
    rp_info_free(&removed);
    return status;
}

static rp_status set_limiter(rp_client *client, struct json_object *wish, char done[DONE_SIZE], rp_error *err)
{
    rp_limiter_change change = {.struct_size = sizeof change};
    const struct {
        const char *name;
        rp_limiter_field field;
        double *value;
    } rows[] = {{"samples_per_insert", RP_LIMITER_SAMPLES_PER_INSERT, &change.samples_per_insert},
                {"min_size", RP_LIMITER_MIN_SIZE, &change.min_size},
                {"error_buffer", RP_LIMITER_ERROR_BUFFER, &change.error_buffer},
                {"max_lag", RP_LIMITER_MAX_LAG, &change.max_lag}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i].value = json_map_number(wish, rows[i].name);
        change.set |= isfinite(*rows[i].value) ? rows[i].field : 0;
    }
    const char *table = json_map_text(wish, "table");
    snprintf(done, DONE_SIZE, "The limiter of '%.100s' is changed.", table);
    return rp_admin_set_limiter(client, table, &change, CHANGE_MS, NULL, err);
}

static const struct {
    const char *name;
    action *act;
} actions[] = {{"checkpoint", make_checkpoint}, {"reset", reset}, {"limiter", set_limiter}};

static rp_status act(struct page *page, struct json_object *wish, char done[DONE_SIZE], rp_error *err)
{
    const char *wanted = json_map_text(wish, "action");
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(actions[i].name, wanted) != 0)
            continue;
        rp_client *client = calls_begin(page, err);
        rp_status status = client ? actions[i].act(client, wish, done, err) : (rp_status)err->status;
        calls_end(client);
        return status;
    }
    return err_set(err, RP_INVALID_ARGUMENT, "there is no action '%.40s'", wanted);
}

static void end(struct page *page, struct http_reply *reply)
{
    const struct page_host *host = &page->host;
    char text[64];
    if (!host->stop) {
        http_fail(reply, 400, "this page cannot end anything: use replay-launch stop, or a signal to the broker");
        return;
    }
    rp_error err = {0};
    bool already = false;
    if (host->stop(host->ctx, &already, &err) != RP_OK) {
        http_fail(reply, 400, "%s", err.text);
        return;
    }
    snprintf(text, sizeof text, "The %s ends%s.", host->what, already ? " already" : "");
    http_say(reply, "text", text);
}

static void do_change(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct json_object *wish = json_tokener_parse(request->body);
    rp_error err = {0};
    char done[DONE_SIZE] = "";
    if (!json_object_is_type(wish, json_type_object))
        http_fail(reply, 400, "the request is no JSON object");
    else if (strcmp(json_map_text(wish, "action"), "stop") == 0)
        end(ctx, reply);
    else if (act(ctx, wish, done, &err) == RP_OK)
        http_say(reply, "text", done);
    else
        http_fail(reply, err.status == RP_UNAVAILABLE ? 503 : 400, "%s", err.text);
    json_object_put(wish);
}

/* ---- the files of the page, as they lie in files/. The assembler puts them into the program ---- */

#define EMBED(name, file) EMBED_FROM(name, RP_PAGE_FILES "/" file)
#define EMBED_FROM(name, path)                                                                                         \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".global page_" #name "\n.hidden page_" #name "\npage_" #name ":\n"                                        \
            ".incbin \"" path "\"\n"                                                                                   \
            ".global page_" #name "_end\n.hidden page_" #name "_end\npage_" #name "_end:\n.byte 0\n"                   \
            ".popsection\n");                                                                                          \
    extern const char page_##name[], page_##name##_end[];

/* A module comes after those that it imports. */
#define MODULES(X)                                                                                                     \
    X(util) X(chart) X(latency) X(store) X(flow) X(views) X(items) X(play) X(runs) X(report) X(controls) X(app)
#define EMBED_MODULE(name) EMBED(name, #name ".js")
EMBED(index, "index.html")
EMBED(style, "style.css")
EMBED(icon, "icon.svg")
EMBED_FROM(dygraph, RP_DYGRAPHS)
EMBED(alone, "alone.js")
MODULES(EMBED_MODULE)

#define JS "text/javascript; charset=utf-8"
#define MODULE_FILE(name) {#name ".js", JS, page_##name, page_##name##_end},
static const struct page_file {
    const char *name, *type, *begin, *end;
} files[] = {{"", "text/html; charset=utf-8", page_index, page_index_end},
             {"index.html", "text/html; charset=utf-8", page_index, page_index_end},
             {"style.css", "text/css; charset=utf-8", page_style, page_style_end},
             {"icon.svg", "image/svg+xml", page_icon, page_icon_end},
             {"dygraph.js", "text/javascript", page_dygraph, page_dygraph_end}, /* no module */
             MODULES(MODULE_FILE)};

void page_put_alone(struct text *out, const char *answers)
{
    const char *links = strstr(page_index, "<link "), *body = strstr(page_index, "</head>"),
               *script = strstr(page_index, "<script ");
    text_add(out, "%.*s<style>\n%s</style>\n", (int)(links - page_index), page_index, page_style);
    text_add(out, "%.*s<script type=\"application/json\" id=\"answers\">", (int)(script - body), body);
    for (const char *rest = answers; *rest;) { /* no text of a run ends the script */
        size_t plain = strcspn(rest, "<");
        text_add(out, "%.*s%s", (int)plain, rest, rest[plain] ? "\\u003c" : "");
        rest += plain + (rest[plain] != '\0');
    }
    text_add(out, "</script>\n<script>\n%s</script>\n", page_dygraph);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(files[i].type, JS) == 0)
            text_add(out, "<script type=\"text/plain\" class=\"module\" id=\"%s\">\n%s</script>\n", files[i].name,
                     files[i].begin);
    text_add(out, "<script type=\"module\">\n%s</script>\n</body>\n</html>\n", page_alone);
}

static void get_file(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (strcmp(request->path, files[i].name) != 0)
            continue;
        reply->type = files[i].type;
        reply->data = files[i].begin;
        reply->size = (size_t)(files[i].end - files[i].begin);
        return;
    }
    http_fail(reply, 404, "there is nothing here");
}

/* ---- routes ---- */

static const struct http_route routes[] = {
    {"GET", "/api/state", page_get_state, false},
    {"GET", "/api/histogram", get_histogram, false},
    {"GET", "/api/writers", get_writers, false},
    {"GET", "/api/items", get_items, false},
    {"GET", "/api/item", get_item, false},
    {"POST", "/api/do", do_change, false},
    {"GET", "/...", get_file, true}, /* the files of the page are no secret */
};

struct http_part page_part(struct page *self)
{
    return (struct http_part){.routes = routes, .n = sizeof routes / sizeof routes[0], .ctx = self};
}

struct http_part page_files(void)
{
    return (struct http_part){.routes = &routes[sizeof routes / sizeof routes[0] - 1], .n = 1};
}

/* ---- life ---- */

struct page *page_new(const struct page_host *host)
{
    struct page *self = need_alloc(sizeof *self);
    self->host = *host;
    atomic_init(&self->leaving, false);
    atomic_init(&self->asked_ns, 0);
    pthread_mutex_init(&self->lock, NULL);
    return self;
}

void page_leave(struct page *self)
{
    atomic_store(&self->leaving, true);
}

void page_destroy(struct page **self)
{
    if (!*self)
        return;
    page_leave(*self);
    rp_client_destroy(&(*self)->client);
    key_wipe(&(*self)->door.key);
    pthread_mutex_destroy(&(*self)->lock);
    free((*self)->state);
    free(*self);
    *self = NULL;
}
