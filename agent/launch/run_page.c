#include "agent/launch/run_page.h"

#include <json-c/json.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/process.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/status.h"
#include "agent/launch/report.h"
#include "agent/launch/runs.h"
#include "agent/launch/series.h"
#include "agent/launch/watch.h"
#include "agent/run/recording.h"
#include "agent/view/page.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "proto/http/http.h"

/* One run, or a broker alone. Views live as long as their server. */
struct run_view {
    char folder[FOLDER_SIZE]; /* "": there is no run */
    const char *service, *key_file;
    struct run_server *server;
    struct run_view *next;
    struct page *page;
    atomic_int stopped; /* pid of the launcher that was asked to end: a second signal would kill it */
    atomic_bool ended;  /* the run is over, and its launcher still shows it */
    atomic_bool told;   /* somebody has read the report since then */
};

struct run_server {
    struct run_page_options options;
    bool shared;
    struct home home; /* of a shared page */
    char token[HTTP_TOKEN];
    struct http *http; /* NULL: another process serves */
    struct run_view *own;
    pthread_mutex_t lock; /* of the list */
    struct run_view *views;
    uint32_t n_views;
    pthread_t keeper; /* takes over */
    bool keeps;
    atomic_bool leaves;
};

/* ---- the broker ---- */

/* Functions of a struct page_host, whose context is a struct run_view. */

/* The broker listens as given, or as the launcher wrote it; endpoints of another machine mean nothing here. */
static void find_broker(void *ctx, struct page_door *out)
{
    const struct run_view *self = ctx;
    struct folder_state state;
    char path[FOLDER_SIZE + 32];
    bool here = self->folder[0] && run_folder_works_here(self->folder, &state);
    snprintf(out->service, sizeof out->service, "%s", self->service[0] ? self->service : here ? state.service : "");
    const char *key = self->key_file;
    if (!key[0] && self->folder[0] &&
        access(run_folder_path(path, sizeof path, self->folder, "keys/admin.key"), R_OK) == 0)
        key = path;
    out->has_key = key[0] && key_read(key, &out->key, NULL) == RP_OK && out->key.n_brokers > 0;
}

/* True if the run has keys: what its broker says is not for everybody on this machine. */
static bool has_keys(const char *folder)
{
    char path[FOLDER_SIZE + 32];
    return folder[0] && access(run_folder_path(path, sizeof path, folder, "keys"), F_OK) == 0;
}

/* ---- the run ---- */

/* Locks do not reach from one machine to another on all file systems. */
static void look_at_run(void *ctx, struct page_run *out)
{
    const struct run_view *self = ctx;
    struct folder_state state;
    struct status copy = {0};
    if (!self->folder[0])
        return;
    out->status = run_folder_read(self->folder, FOLDER_STATUS);
    out->has_facts = out->status && status_from_json(out->status, &copy);
    if (!out->has_facts) {
        free(out->status);
        out->status = NULL;
    }
    if (run_folder_read_state(self->folder, &state, NULL) == RP_OK && run_folder_is_elsewhere(&state))
        memcpy(out->node, state.node, FOLDER_NODE);
    bool signs = out->node[0] && out->has_facts && copy.phase < PHASE_DONE && run_folder_is_fresh(self->folder);
    out->alive = !atomic_load(&self->ended) && (signs || run_folder_locked(self->folder));
    out->folder_only = !out->alive || out->node[0];
    /* Sentences that are not the broker's. */
    struct why *why = &out->why;
    out->level = out->alive && out->has_facts && !out->node[0] ? NULL : "good";
    if (!out->alive && out->has_facts) {
        report_ended(&copy, copy.value, why->text, sizeof why->text);
        out->level = copy.phase == PHASE_FAILED ? "bad" : "good";
    } else if (!out->alive) {
        snprintf(why->text, sizeof why->text, "The run has ended without a report.");
    } else if (!out->has_facts) {
        snprintf(why->text, sizeof why->text,
                 "The run is being prepared: replay-launch measures how many processes to begin with.");
        out->if_silent = true;
    } else if (out->node[0]) {
        snprintf(why->text, sizeof why->text, "The run goes on on %s: this page shows what its folder says.",
                 out->node);
    }
    if (!out->has_facts)
        return;
    out->facts = status_facts(&copy);
    status_fini(&copy);
}

/* Ends the run, whoever works on it. */
static rp_status stop_run(void *ctx, bool *already, rp_error *err)
{
    struct run_view *self = ctx;
    struct folder_state state;
    int32_t pid = 0;
    if (run_folder_read_state(self->folder, &state, NULL) == RP_OK && state.pid == atomic_load(&self->stopped)) {
        *already = true;
        return RP_OK;
    }
    RP_TRY(run_folder_stop(self->folder, "the page", &pid, err));
    atomic_store(&self->stopped, pid);
    return RP_OK;
}

/* What the folder of a run holds: its state, its history, its logs; and the other runs. */

#define LINES_MOST 400u

static void run_page_finish(struct json *out, struct http_reply *reply)
{
    char *text = json_need(out);
    text_add(&reply->text, "%s\n", text);
    free(text);
}

/* Handlers of requests, whose context is a struct run_view. */

static void run_get_history(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_view *self = ctx;
    struct json out = {0};
    (void)request;
    series_put_history(&out, self->folder);
    run_page_finish(&out, reply);
}

static void run_get_report(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct run_view *self = ctx;
    (void)request;
    char *text = run_folder_read(self->folder, "report.json");
    if (atomic_load(&self->ended))
        atomic_store(&self->told, true);
    if (text)
        text_add(&reply->text, "%s", text);
    else
        http_fail(reply, 404, "there is no report");
    free(text);
}

/* The recorded episodes, or with at=N one of them. */
static void run_get_play(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_view *self = ctx;
    const char *at = http_query(request, "at");
    struct json out = {0};
    if (!at) {
        recording_put_list(&out, self->folder, RECORDINGS_KEPT);
        run_page_finish(&out, reply);
        return;
    }
    char *text = recording_read(self->folder, false, &(uint64_t){strtoull(at, NULL, 10)});
    if (text)
        text_add(&reply->text, "%s", text);
    else
        http_fail(reply, 404, "this episode is no longer kept: choose another one");
    free(text);
}

static void run_get_log(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const char *name = http_query(request, "process"), *lines = http_query(request, "lines");
    const struct run_view *self = ctx;
    struct process process = {0};
    char text[65536];
    if (!name || !name[0] || strchr(name, '/') || name[0] == '.' || strlen(name) > 63 ||
        (size_t)snprintf(process.log, sizeof process.log, "%s/logs/%s.log", self->folder, name) >= sizeof process.log) {
        http_fail(reply, 404, "there is no such log");
        return;
    }
    unsigned long wanted = lines ? strtoul(lines, NULL, 10) : 40;
    process_tail(&process, text, sizeof text, (uint32_t)(wanted > 0 && wanted < LINES_MOST ? wanted : LINES_MOST));
    struct json out = {0};
    json_open(&out, '{');
    json_text(&out, "process", name);
    json_text(&out, "text", text);
    json_close(&out, '}');
    run_page_finish(&out, reply);
}

/* Gives the folder of runs with a number, from 1 on. */
static bool folder_of(const struct run_server *self, uint32_t number, char out[FOLDER_SIZE])
{
    if (self->shared)
        return home_folder(&self->home, number, out);
    snprintf(out, FOLDER_SIZE, FOLDER_RUNS);
    return number == 1;
}

/* A run with keys shows nothing without the token. */
static void drop_secret(struct run_summary *list, uint32_t *n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (!has_keys(list[i].folder))
            list[kept++] = list[i];
    *n = kept;
}

/* All runs, and the folders in which they lie, in the order of their numbers. */
static void put_runs(struct run_server *self, bool trusted, struct http_reply *reply)
{
    struct run_summary *list = NULL;
    struct json out = {0};
    char folder[FOLDER_SIZE];
    uint32_t n = 0;
    json_open(&out, '{');
    json_begin(&out, "folders", '[');
    for (uint32_t i = 1; folder_of(self, i, folder); i++) {
        json_string(&out, folder);
        runs_add(folder, &list, &n);
    }
    json_close(&out, ']');
    if (!trusted)
        drop_secret(list, &n);
    json_key(&out, "runs");
    runs_json(&out, list, n);
    json_close(&out, '}');
    free(list);
    run_page_finish(&out, reply);
}

static void run_get_runs(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_view *self = ctx;
    put_runs(self->server, request->trusted, reply);
}

/* What replay-launch ask asks for, too. A browser waits 8 s. */
#define ASK_S 6

static void run_do_ask(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_view *self = ctx;
    struct json_object *wish = json_tokener_parse(request->body);
    const char *order = json_map_text(wish, "order");
    rp_error err = {0};
    char *answer = NULL;
    if (!order[0])
        err_set(&err, RP_INVALID_ARGUMENT, "the request has no order");
    else if (!self->folder[0] || !run_folder_locked(self->folder))
        err_set(&err, RP_FAILED_PRECONDITION, "this run has ended already");
    else
        answer = run_request_ask(self->folder, order, ASK_S, &err);
    if (answer && strncmp(answer, RUN_REQUEST_OK, strlen(RUN_REQUEST_OK)) == 0)
        http_say(reply, "text", answer + strlen(RUN_REQUEST_OK));
    else
        http_fail(reply, 400, "%s", answer ? answer : err.text);
    free(answer);
    json_object_put(wish);
}

/* One run with its evaluations, to be compared. */
static void run_get_run(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_view *self = ctx;
    struct run_summary run;
    struct json out = {0};
    (void)request;
    if (!runs_read(self->folder, &run)) {
        http_fail(reply, 404, "there is no such run");
        return;
    }
    runs_put_curves(&out, &run);
    run_page_finish(&out, reply);
}

/* Figures of the run; those of its broker are at the broker's own address. */
static void run_get_metrics(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_view *self = ctx;
    struct status copy;
    (void)request;
    reply->type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    if (watch_status(self->folder, &copy)) {
        status_metrics(&reply->text, &copy);
        status_fini(&copy);
    } else {
        text_add(&reply->text, "# EOF\n"); /* a run that has just begun */
    }
}

/* ---- the list of all runs, which is what a shared page shows at its root ---- */

static void get_health(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    (void)request;
    text_add(&reply->text, "{\"ok\": true}\n");
}

static void home_get_runs(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    put_runs(ctx, request->trusted, reply);
}

static void home_get_state(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    (void)request;
    text_add(&reply->text,
             "{\"home\": true, \"unix_s\": %lld, \"run\": null, \"run_alive\": false, \"broker\": null, \"verdict\": "
             "{\"level\": \"good\", \"text\": \"All runs of this user on this machine: a name opens one.\"}, "
             "\"can\": {\"change\": false, \"stop\": \"\", \"runs\": true}}\n",
             (long long)time(NULL));
}

/* ---- the server: which path is answered by whom ---- */

#define THREADS 4u
#define VIEWS_MOST 1000u
#define TAKE_OVER_MS 500

static const struct http_route view_routes[] = {
    {"GET", "/healthz", get_health, true},           {"GET", "/metrics", run_get_metrics, false},
    {"GET", "/api/history", run_get_history, false}, {"GET", "/api/report", run_get_report, false},
    {"GET", "/api/log", run_get_log, false},         {"GET", "/api/runs", run_get_runs, false},
    {"GET", "/api/run", run_get_run, false},         {"GET", "/api/play", run_get_play, false},
    {"POST", "/api/ask", run_do_ask, false},
};

static const struct http_route home_routes[] = {
    {"GET", "/healthz", get_health, true},
    {"GET", "/api/state", home_get_state, false},
    {"GET", "/api/runs", home_get_runs, false},
};

static struct run_view *view_new(struct run_server *server, const char *folder, const char *service,
                                 const char *key_file)
{
    struct run_view *self = need_alloc(sizeof *self);
    snprintf(self->folder, sizeof self->folder, "%s", folder);
    self->service = service;
    self->key_file = key_file;
    self->server = server;
    const struct page_host host = {
        .ctx = self, .find = find_broker, .look = look_at_run, .what = "run", .stop = folder[0] ? stop_run : NULL};
    self->page = page_new(&host);
    return self;
}

/* Returns the view of a run's folder, which is made when somebody looks for the first time; NULL: there are too many. */
static struct run_view *find_view(struct run_server *self, const char *folder)
{
    pthread_mutex_lock(&self->lock);
    struct run_view *view = self->views;
    while (view && strcmp(view->folder, folder) != 0)
        view = view->next;
    if (!view && self->n_views < VIEWS_MOST) {
        view = view_new(self, folder, "", "");
        view->next = self->views;
        self->views = view;
        self->n_views++;
    }
    pthread_mutex_unlock(&self->lock);
    return view;
}

/* Gives the folder of the run that a path "/N/NAME/..." names, and moves *url on to what follows NAME. */
static bool name_run(const struct run_server *self, const char **url, char out[FOLDER_SIZE])
{
    char *end;
    unsigned long number = strtoul(*url + 1, &end, 10);
    size_t size = *end == '/' ? strcspn(end + 1, "/") : 0;
    if ((*url)[1] < '0' || (*url)[1] > '9' || number > UINT32_MAX || size == 0 || end[1] == '.' ||
        end[1 + size] != '/' || !folder_of(self, (uint32_t)number, out))
        return false;
    size_t used = strlen(out);
    if ((size_t)snprintf(out + used, FOLDER_SIZE - used, "/%.*s", (int)size, end + 1) >= FOLDER_SIZE - used - 64 ||
        !run_folder_holds(out))
        return false;
    *url = end + 1 + size;
    return true;
}

static bool mount(void *ctx, const char **url, struct http_part out[2])
{
    struct run_server *self = ctx;
    char folder[FOLDER_SIZE];
    struct run_view *view = name_run(self, url, folder) ? find_view(self, folder) : self->shared ? NULL : self->own;
    if (!view)
        return false;
    bool secret = view->key_file[0] || has_keys(view->folder);
    out[0] = (struct http_part){view_routes, sizeof view_routes / sizeof view_routes[0], view, secret};
    out[1] = page_part(view->page);
    out[1].secret = secret;
    return true;
}

static rp_status serve(struct run_server *self, rp_error *err)
{
    const char *address = self->options.address;
    const struct http_options http = {.address = address,
                                      .part = {home_routes, sizeof home_routes / sizeof home_routes[0], self, false},
                                      .further = page_files(),
                                      .mount = mount,
                                      .token = self->token,
                                      .open = http_is_loopback(address),
                                      .threads = THREADS};
    self->http = http_start(&http, err);
    return self->http ? RP_OK : (rp_status)err->status;
}

/* Waits for the end of whoever serves the page of all runs. */
static void *keep(void *ctx)
{
    struct run_server *self = ctx;
    pthread_setname_np(pthread_self(), "page keeper");
    while (!atomic_load(&self->leaves) && !self->http) {
        rp_error err = {0};
        if (home_lock(&self->home) && serve(self, &err) != RP_OK)
            home_unlock(&self->home);
        poll(NULL, 0, TAKE_OVER_MS);
    }
    return NULL;
}

static rp_status start_shared(struct run_server *self, rp_error *err)
{
    if (!home_lock(&self->home)) {
        self->keeps = pthread_create(&self->keeper, NULL, keep, self) == 0;
        return RP_OK;
    }
    if (serve(self, err) == RP_OK)
        return RP_OK;
    home_unlock(&self->home);
    const rp_error why = *err;
    return err_set(err, RP_UNAVAILABLE,
                   "%s. Another program or another user has this address: name another one with --http, launch.http "
                   "or REPLAY_PAGE",
                   why.text);
}

/* ---- life ---- */

static rp_status open_server(struct run_page *page, const struct run_page_options *options, rp_error *err)
{
    struct run_server *self = page->server;
    char place[HOME_PAGE] = "", real[PATH_MAX];
    const char *folder = options->folder ? options->folder : "";
    self->options = *options;
    self->shared = home_is_shared(options->address) && !(options->service && options->service[0]);
    http_make_token(self->token);
    if (self->shared) {
        RP_TRY(home_open(&self->home, options->address, err));
        if (folder[0])
            RP_TRY(home_add(&self->home, folder, place, sizeof place, err));
        memcpy(self->token, self->home.token, sizeof self->token);
        folder = folder[0] && realpath(folder, real) && strlen(real) < FOLDER_SIZE - 64 ? real : "";
    }
    if (self->shared && folder[0])
        self->own = find_view(self, folder);
    else if (!self->shared)
        self->own = self->views = view_new(self, folder, options->service ? options->service : "",
                                           options->key_file ? options->key_file : "");
    RP_TRY(self->shared ? start_shared(self, err) : serve(self, err));
    snprintf(page->address, sizeof page->address, "http://%s/%s",
             self->http ? http_address(self->http) : options->address, place);
    snprintf(page->url, sizeof page->url, "%s?token=%s", page->address, self->token);
    return RP_OK;
}

struct run_page *run_page_start(const struct run_page_options *options, rp_error *err)
{
    struct run_page *self = need_alloc(sizeof *self);
    self->server = need_alloc(sizeof *self->server);
    self->server->home.lock = -1;
    pthread_mutex_init(&self->server->lock, NULL);
    if (open_server(self, options, err) != RP_OK)
        run_page_stop(&self);
    return self;
}

bool run_page_is_elsewhere(const struct run_page *self)
{
    return self->server->keeps;
}

char *run_page_state(struct run_page *self)
{
    return page_state(self->server->own->page);
}

static void stop_keeper(struct run_server *self)
{
    atomic_store(&self->leaves, true);
    if (self->keeps)
        pthread_join(self->keeper, NULL);
    self->keeps = false;
}

#define END_MS 10000  /* a browser in front asks every second, one in the background every four */
#define OTHERS_MS 400 /* for further browsers, and for the reply itself */

void run_page_end(struct run_page *self)
{
    if (!self)
        return;
    stop_keeper(self->server);
    struct run_view *own = self->server->own;
    if (!self->server->http || !own || !page_is_watched(own->page))
        return;
    atomic_store(&own->ended, true);
    for (int waited = 0; waited < END_MS && !atomic_load(&own->told) && page_is_watched(own->page); waited += 50)
        poll(NULL, 0, 50);
    poll(NULL, 0, OTHERS_MS);
}

void run_page_stop(struct run_page **self)
{
    if (!*self)
        return;
    struct run_server *server = (*self)->server;
    stop_keeper(server);
    pthread_mutex_lock(&server->lock);
    for (struct run_view *view = server->views; view; view = view->next)
        page_leave(view->page);
    pthread_mutex_unlock(&server->lock);
    http_stop(&server->http);
    home_unlock(&server->home); /* whoever takes over finds the address free */
    for (struct run_view *view; (view = server->views);) {
        server->views = view->next;
        page_destroy(&view->page);
        free(view);
    }
    pthread_mutex_destroy(&server->lock);
    free(server);
    free(*self);
    *self = NULL;
}
