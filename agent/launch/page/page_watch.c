/* The thread that asks. It makes one state for all who look; nobody looks, nothing is asked. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/observe/status.h"
#include "agent/launch/page/page_impl.h"
#include "agent/why/why.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "replay/admin.h"

/* Somebody looks: a browser in front asks every second, one in the background every four. */
#define LOOKING_NS (8 * NS_PER_S)
#define EVERY_NS (NS_PER_S * 9 / 10)
#define FRESH_NS (2 * NS_PER_S)
/* A status that is younger than this is written by a launcher that works. */
#define FRESH_STATUS_S 30

static int64_t now_ns(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- the client ---- */

/* Where the broker listens now: as given, or as the launcher wrote it. Endpoints of another machine mean nothing here. */
static void find_service(const struct page *self, char out[256])
{
    struct folder_state state;
    snprintf(out, 256, "%s", self->service);
    if (!out[0] && self->folder[0] && run_folder_locked(self->folder) &&
        run_folder_read_state(self->folder, &state, NULL) == RP_OK && !run_folder_is_elsewhere(&state))
        snprintf(out, 256, "%s", state.service);
}

static const char *find_key(const struct page *self, char *out, size_t size)
{
    snprintf(out, size, "%s", self->key_file);
    if (!out[0] && self->folder[0]) {
        snprintf(out, size, "%s/keys/admin.key", self->folder);
        if (access(out, R_OK) != 0)
            out[0] = '\0';
    }
    return out;
}

/* Returns a client of the broker at `service`; NULL: nobody answers, or no broker is known. */
static rp_client *connect_to(const struct page *self, const char *service)
{
    char key[1100];
    rp_client_options options = {.struct_size = sizeof options, .name = "page", .backoff_max_ms = 500};
    options.key_file = find_key(self, key, sizeof key);
    return service[0] ? rp_client_connect(service, &options, PAGE_ASK_MS, NULL) : NULL;
}

/* Connects to the broker of now, unless the client is for it already. The client belongs to the watch's thread. */
static void connect_now(struct page *self)
{
    struct page_watch *watch = &self->watch;
    char service[256];
    find_service(self, service);
    if (watch->client && strcmp(service, watch->service) == 0)
        return;
    if (watch->client)
        rp_client_destroy(&watch->client);
    watch->client = connect_to(self, service);
    snprintf(watch->service, sizeof watch->service, "%s", watch->client ? service : "");
}

void page_with_client(struct page *self, void (*call)(rp_client *client, void *ctx), void *ctx)
{
    char service[256];
    find_service(self, service);
    rp_client *client = connect_to(self, service);
    call(client, ctx);
    if (client)
        rp_client_destroy(&client);
}

/* ---- the state ---- */

struct look {
    char *info_json, *why_json, *run_text;
    rp_info *info;
    rp_waits *waits;
    struct status_copy copy;
    bool run, alive;
    bool folder_only;       /* the broker is not asked */
    char node[FOLDER_NODE]; /* machine of the run if it is another one; "": this one */
    char silence[300];
};

static void look_at_broker(struct page *self, struct look *look)
{
    rp_error err = {0};
    connect_now(self);
    rp_client *client = self->watch.client;
    if (!client) {
        snprintf(look->silence, sizeof look->silence, "nobody answers at its endpoint");
        return;
    }
    if (rp_admin_info(client, NULL, 0, PAGE_ASK_MS, &look->info, &err) != RP_OK) {
        snprintf(look->silence, sizeof look->silence, "%s", err.text);
        return;
    }
    rp_admin_why(client, PAGE_ASK_MS, &look->waits, NULL);
    rp_admin_info_json(client, NULL, 0, PAGE_ASK_MS, &look->info_json, NULL);
    rp_admin_why_json(client, PAGE_ASK_MS, &look->why_json, NULL);
}

/* Name of the machine where the launcher works, if it is another one. */
static void find_node(const struct page *self, char out[FOLDER_NODE])
{
    struct folder_state state;
    out[0] = '\0';
    if (self->folder[0] && !self->service[0] && run_folder_read_state(self->folder, &state, NULL) == RP_OK &&
        run_folder_is_elsewhere(&state))
        memcpy(out, state.node, FOLDER_NODE);
}

/* A launcher writes the status every second. */
static bool is_fresh(const struct page *self)
{
    char path[FOLDER_SIZE + 16];
    struct stat st;
    return stat(run_folder_path(path, sizeof path, self->folder, FOLDER_STATUS), &st) == 0 &&
           time(NULL) - st.st_mtime < FRESH_STATUS_S;
}

/* Locks do not reach from one machine to another on all file systems. */
static void look_at_run(const struct page *self, struct look *look)
{
    look->run_text = self->folder[0] ? run_folder_read(self->folder, FOLDER_STATUS) : NULL;
    look->run = look->run_text && status_from_json(look->run_text, &look->copy);
    find_node(self, look->node);
    bool signs = look->node[0] && look->run && look->copy.status.phase < PHASE_DONE && is_fresh(self);
    look->alive = self->folder[0] && (signs || run_folder_locked(self->folder));
}

static void look_fini(struct look *look)
{
    rp_string_free(&look->info_json);
    rp_string_free(&look->why_json);
    rp_info_free(&look->info);
    rp_waits_free(&look->waits);
    free(look->run_text);
    if (look->run)
        status_copy_fini(&look->copy);
}

/* A run has one verdict: its launcher's, which sees more than the broker says. Without one, or if the broker does not answer this page,
 * the page judges by itself. */
static void explain_live(const struct look *look, struct why *out)
{
    const struct status *status = &look->copy.status;
    if (look->info && why_read_status(look->run_text, out))
        return;
    const struct why_run run = {.actors = status->actors,
                                .learners = status->learners,
                                .actor_idle = status->actor_idle,
                                .learner_idle = status->learner_idle,
                                .cpu = status->cpu,
                                .cores = status->cores,
                                .others = status->others,
                                .network = NAN};
    why_explain(&(struct why_facts){look->info, look->waits, look->run ? &run : NULL, look->silence}, out);
}

static void put_verdict(struct json *out, const struct page *self, const struct look *look)
{
    struct why why = {0};
    const char *level = "good";
    if (self->folder[0] && !look->alive) {
        snprintf(why.text, sizeof why.text, "The run has ended%s%s.",
                 look->run && look->copy.status.reason[0] ? ": " : "", look->run ? look->copy.status.reason : "");
        level = look->run && look->copy.status.phase == PHASE_FAILED ? "bad" : "good";
    } else if (self->folder[0] && !look->run && !look->info) {
        snprintf(why.text, sizeof why.text,
                 "The run is being prepared: replay-launch measures how many processes to start.");
    } else if (look->folder_only) {
        const struct status *status = &look->copy.status;
        snprintf(why.text, sizeof why.text, "%s", look->run && status->waits[0] ? status->waits : "The run goes on.");
        snprintf(why.advice, sizeof why.advice, "%s", look->run ? status->advice : "");
    } else if (look->node[0]) {
        snprintf(why.text, sizeof why.text, "The run goes on on %s: this page shows what its folder says.", look->node);
    } else {
        explain_live(look, &why);
        level = why.bad ? "bad" : why.blocked != WHY_NOBODY ? "warn" : "good";
    }
    json_key(out, "verdict");
    json_open(out, '{');
    json_text(out, "text", why.text);
    json_text(out, "advice", why.advice);
    json_text(out, "level", level);
    json_text(out, "cause", why_cause_names[why.cause]);
    json_text(out, "blocked", why_side_names[why.blocked]);
    json_text(out, "table", why.table);
    json_close(out, '}');
}

/* The status and the broker's answers are JSON already. */
static char *make_state(struct page *self, bool folder_only)
{
    struct look look = {.folder_only = folder_only};
    struct json out = {0};
    struct text all = {0};
    struct timespec now;
    look_at_run(self, &look);
    if (!folder_only && (!self->folder[0] || (look.alive && !look.node[0])))
        look_at_broker(self, &look);
    clock_gettime(CLOCK_REALTIME, &now);
    json_open(&out, '{');
    json_real(&out, "unix_s", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    json_key(&out, "run_alive");
    json_boolean(&out, look.alive);
    json_text(&out, "elsewhere", look.node);
    put_verdict(&out, self, &look);
    char *head = json_take(&out);
    /* {"waits": [...]} becomes a member. */
    const char *waits = look.why_json ? strchr(look.why_json, '[') : NULL;
    const char *waits_end = look.why_json ? strrchr(look.why_json, ']') : NULL;
    text_add(&all, "%s, \"broker\": %s, \"waits\": %.*s, \"run\": %s", head ? head : "{\"unix_s\": 0",
             look.info_json ? look.info_json : "null", waits && waits_end ? (int)(waits_end - waits + 1) : 2,
             waits && waits_end ? waits : "[]", look.run ? look.run_text : "null");
    free(head);
    look_fini(&look);
    return all.data;
}

char *page_folder_state(const char *folder)
{
    struct page other = {0};
    snprintf(other.folder, sizeof other.folder, "%s", folder);
    return make_state(&other, true);
}

/* ---- the thread ---- */

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t at = until.tv_sec * NS_PER_S + until.tv_nsec + ns;
    until = (struct timespec){.tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S};
    pthread_cond_timedwait(cond, lock, &until);
}

static void *watch_main(void *ctx)
{
    struct page *self = ctx;
    struct page_watch *watch = &self->watch;
    pthread_mutex_lock(&watch->lock);
    while (!watch->stop) {
        int64_t now = now_ns();
        bool wanted = watch->asked_ns && now - watch->asked_ns < LOOKING_NS;
        if (!wanted || now - watch->made_ns < EVERY_NS) {
            wait_until(&watch->asked, &watch->lock, wanted ? EVERY_NS - (now - watch->made_ns) : LOOKING_NS);
            continue;
        }
        pthread_mutex_unlock(&watch->lock);
        char *state = make_state(self, false);
        pthread_mutex_lock(&watch->lock);
        free(watch->state);
        watch->state = state;
        watch->made_ns = now_ns();
        pthread_cond_broadcast(&watch->made);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

rp_status page_watch_start(struct page *self, rp_error *err)
{
    struct page_watch *watch = &self->watch;
    pthread_condattr_t monotonic;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->asked, &monotonic);
    pthread_cond_init(&watch->made, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watch->started = pthread_create(&watch->thread, NULL, watch_main, self) == 0;
    return watch->started ? RP_OK : err_set(err, RP_RESOURCE_EXHAUSTED, "no thread for the page");
}

void page_watch_stop(struct page *self)
{
    struct page_watch *watch = &self->watch;
    if (watch->started) {
        pthread_mutex_lock(&watch->lock);
        watch->stop = true;
        pthread_cond_signal(&watch->asked);
        pthread_mutex_unlock(&watch->lock);
        pthread_join(watch->thread, NULL);
    }
    if (watch->client)
        rp_client_destroy(&watch->client);
    free(watch->state);
    pthread_cond_destroy(&watch->asked);
    pthread_cond_destroy(&watch->made);
    pthread_mutex_destroy(&watch->lock);
}

char *page_watch_state(struct page *self)
{
    struct page_watch *watch = &self->watch;
    pthread_mutex_lock(&watch->lock);
    int64_t now = now_ns(), end = now + 3 * PAGE_ASK_MS * NS_PER_MS;
    watch->asked_ns = now;
    pthread_cond_signal(&watch->asked);
    while ((!watch->state || now - watch->made_ns > FRESH_NS) && now < end) {
        wait_until(&watch->made, &watch->lock, end - now);
        now = now_ns();
    }
    char *state = watch->state ? strdup(watch->state) : NULL;
    pthread_mutex_unlock(&watch->lock);
    return state;
}
