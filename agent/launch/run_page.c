/* The page of a run: what its folder says about it, beside the page of its broker. */
#include "agent/launch/run_page.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/process/process.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/status.h"
#include "agent/launch/runs.h"
#include "agent/launch/series.h"
#include "agent/view/page.h"
#include "proto/base/json.h"
#include "proto/base/need.h"
#include "proto/http/http.h"

/* ---- the broker ---- */

/* Functions of a struct page_host, whose context is a struct run_page_options. */

/* The broker listens as given, or as the launcher wrote it; endpoints of another machine mean nothing here. */
static void find_broker(void *ctx, struct page_door *out)
{
    const struct run_page_options *self = ctx;
    struct folder_state state;
    char path[FOLDER_SIZE + 32];
    bool here = self->folder[0] && run_folder_locked(self->folder) &&
                run_folder_read_state(self->folder, &state, NULL) == RP_OK && !run_folder_is_elsewhere(&state);
    snprintf(out->service, sizeof out->service, "%s", self->service[0] ? self->service : here ? state.service : "");
    const char *key = self->key_file;
    if (!key[0] && self->folder[0] &&
        access(run_folder_path(path, sizeof path, self->folder, "keys/admin.key"), R_OK) == 0)
        key = path;
    out->has_key = key[0] && key_read(key, &out->key, NULL) == RP_OK && out->key.n_brokers > 0;
}

/* ---- the run ---- */

/* Name of the machine where the launcher works, if it is another one. */
static void find_node(const struct run_page_options *self, char out[FOLDER_NODE])
{
    struct folder_state state;
    out[0] = '\0';
    if (self->folder[0] && !self->service[0] && run_folder_read_state(self->folder, &state, NULL) == RP_OK &&
        run_folder_is_elsewhere(&state))
        memcpy(out, state.node, FOLDER_NODE);
}

static void tell_facts(const struct status *status, struct page_run *out)
{
    out->facts = (struct why_run){.actors = status->actors,
                                  .learners = status->learners,
                                  .actor_idle = status->actor_idle,
                                  .learner_idle = status->learner_idle,
                                  .cpu = status->cpu,
                                  .cores = status->cores,
                                  .others = status->others};
    out->has_facts = true;
}

static void say(struct page_run *out, const char *level, const char *text, const char *more)
{
    out->level = level;
    snprintf(out->why.text, sizeof out->why.text, "%s%s", text, more);
}

/* Sentences that are not the broker's. status is NULL if there is none. */
static void run_page_explain(const struct run_page_options *self, const struct status *status, bool folder_only,
                             struct page_run *out)
{
    char ended[400];
    if (!self->folder[0])
        return;
    if (!out->alive) {
        const char *reason = status ? status->reason : "";
        snprintf(ended, sizeof ended, "%s%s.", reason[0] ? ": " : "", reason);
        say(out, status && status->phase == PHASE_FAILED ? "bad" : "good", "The run has ended", ended);
    } else if (!status) {
        say(out, "good", "The run is being prepared: replay-launch measures how many processes to begin with.", "");
        out->if_silent = true;
    } else if (folder_only) {
        say(out, "good", status->waits[0] ? status->waits : "The run goes on.", "");
        snprintf(out->why.advice, sizeof out->why.advice, "%s", status->advice);
    } else if (out->node[0]) {
        snprintf(ended, sizeof ended, "%s: this page shows what its folder says.", out->node);
        say(out, "good", "The run goes on on ", ended);
    }
}

/* Locks do not reach from one machine to another on all file systems. */
static void look(const struct run_page_options *self, bool folder_only, struct page_run *out)
{
    struct status_copy copy;
    out->status = self->folder[0] ? run_folder_read(self->folder, FOLDER_STATUS) : NULL;
    bool known = out->status && status_from_json(out->status, &copy);
    if (!known) {
        free(out->status);
        out->status = NULL;
    }
    find_node(self, out->node);
    bool signs = out->node[0] && known && copy.status.phase < PHASE_DONE && run_folder_is_fresh(self->folder);
    out->alive = self->folder[0] && (signs || run_folder_locked(self->folder));
    out->folder_only = folder_only || (self->folder[0] && (!out->alive || out->node[0]));
    if (known)
        tell_facts(&copy.status, out);
    run_page_explain(self, known ? &copy.status : NULL, folder_only, out);
    if (known)
        status_copy_fini(&copy);
}

static void look_at_run(void *ctx, struct page_run *out)
{
    look(ctx, false, out);
}

/* The same from the run's folder alone. */
static void look_at_folder(void *ctx, struct page_run *out)
{
    look(ctx, true, out);
}

/* What the folder of a run holds: its state, its history, its logs; and the other runs. */

#define LINES_MOST 400u

static void run_page_finish(struct json *out, struct http_reply *reply)
{
    char *text = json_take(out);
    if (text)
        text_add(&reply->text, "%s\n", text);
    else
        http_fail(reply, 503, "no memory");
    free(text);
}

/* Finds the run that a request names (run=NAME, below the folder of all runs), or the page's own; otherwise the reply is an error. */
static bool find_run(const struct run_page *self, const struct http_request *request, struct http_reply *reply,
                     char out[FOLDER_SIZE])
{
    const char *name = http_query(request, "run");
    char path[FOLDER_SIZE + 32];
    bool other = name && name[0], named = other && !strchr(name, '/') && name[0] != '.' && self->options.runs[0];
    int size = named ? snprintf(out, FOLDER_SIZE, "%s/%s", self->options.runs, name)
                     : snprintf(out, FOLDER_SIZE, "%s", other ? "" : self->options.folder);
    if (size > 0 && size < (int)FOLDER_SIZE - 64 &&
        access(run_folder_path(path, sizeof path, out, FOLDER_STATE), F_OK) == 0)
        return true;
    http_fail(reply, 404, "there is no such run");
    return false;
}

/* Handlers of requests, whose context is a struct run_page. */

static void run_get_state(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct run_page *self = ctx;
    const char *other = http_query(request, "run");
    char folder[FOLDER_SIZE];
    if (!other || !other[0]) {
        page_get_state(self->page, request, reply);
        return;
    }
    if (!find_run(self, request, reply, folder))
        return;
    struct run_page_options place = {.folder = folder, .service = "", .key_file = ""};
    const struct page_host host = {.ctx = &place, .look = look_at_folder};
    char *state = page_make_state(&host);
    if (state)
        text_add(&reply->text, "%s, \"can\": {\"change\": false, \"stop\": \"\", \"runs\": true}}\n", state);
    else
        http_fail(reply, 503, "no memory");
    free(state);
}

static void run_get_history(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    char folder[FOLDER_SIZE];
    struct json out = {0};
    if (!find_run(ctx, request, reply, folder))
        return;
    series_put_history(&out, folder);
    run_page_finish(&out, reply);
}

static void run_get_report(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    char folder[FOLDER_SIZE];
    if (!find_run(ctx, request, reply, folder))
        return;
    char *text = run_folder_read(folder, "report.json");
    if (text)
        text_add(&reply->text, "%s", text);
    else
        http_fail(reply, 404, "there is no report");
    free(text);
}

static void run_get_log(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const char *name = http_query(request, "process"), *lines = http_query(request, "lines");
    struct process process = {0};
    char text[65536], folder[FOLDER_SIZE];
    if (!find_run(ctx, request, reply, folder))
        return;
    if (!name || !name[0] || strchr(name, '/') || name[0] == '.' || strlen(name) > 63 ||
        (size_t)snprintf(process.log, sizeof process.log, "%s/logs/%s.log", folder, name) >= sizeof process.log) {
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

static void run_get_runs(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const struct run_page *self = ctx;
    struct json out = {0};
    uint32_t n = 0;
    (void)request;
    struct run_summary *list = self->options.runs[0] ? runs_list(self->options.runs, &n) : NULL;
    json_open(&out, '{');
    json_key(&out, "runs");
    runs_json(&out, list, n);
    json_close(&out, '}');
    free(list);
    run_page_finish(&out, reply);
}

/* One run with its evaluations, to be compared. */
static void run_get_run(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    char folder[FOLDER_SIZE];
    struct run_summary run;
    struct json out = {0};
    if (!find_run(ctx, request, reply, folder))
        return;
    if (!runs_read(folder, &run)) {
        http_fail(reply, 404, "there is no such run");
        return;
    }
    runs_put_curves(&out, &run);
    run_page_finish(&out, reply);
}

/* The server of a run's page: which path is answered by whom. */

#define THREADS 4u

static void get_health(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    (void)request;
    text_add(&reply->text, "{\"ok\": true}\n");
}

static const struct http_route routes[] = {
    {"GET", "/healthz", get_health, true},
    {"GET", "/api/state", run_get_state, false}, /* also of other runs */
    {"GET", "/api/history", run_get_history, false},
    {"GET", "/api/report", run_get_report, false},
    {"GET", "/api/log", run_get_log, false},
    {"GET", "/api/runs", run_get_runs, false},
    {"GET", "/api/run", run_get_run, false},
};

struct run_page *run_page_start(const struct run_page_options *options, rp_error *err)
{
    struct run_page *self = need_alloc(sizeof *self);
    const char **texts[] = {&self->options.folder, &self->options.runs, &self->options.service,
                            &self->options.key_file};
    self->options = *options;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *texts[i] = *texts[i] ? *texts[i] : "";
    http_make_token(self->token);
    const struct page_host host = {.ctx = &self->options,
                                   .find = find_broker,
                                   .look = look_at_run,
                                   .what = "run",
                                   .stop = options->stop,
                                   .stop_ctx = options->ctx};
    self->page = page_new(&host, err);
    if (self->page) {
        const struct http_options http = {.address = options->address,
                                          .part = {routes, sizeof routes / sizeof routes[0], self},
                                          .further = page_part(self->page),
                                          .token = self->token,
                                          .open = !options->secure && http_is_loopback(options->address),
                                          .threads = THREADS};
        self->http = http_start(&http, err);
    }
    if (!self->http) {
        run_page_stop(&self);
        return NULL;
    }
    snprintf(self->address, sizeof self->address, "http://%s/", http_address(self->http));
    snprintf(self->url, sizeof self->url, "%s?token=%s", self->address, self->token);
    return self;
}

void run_page_stop(struct run_page **self)
{
    if (!*self)
        return;
    if ((*self)->page)
        page_leave((*self)->page);
    http_stop(&(*self)->http);
    page_destroy(&(*self)->page);
    free(*self);
    *self = NULL;
}
