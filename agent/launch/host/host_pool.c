/* Entries are never removed, so that an index stands for the same host as long as the pool lives. */
#include "agent/launch/host/host_pool.h"

#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/host/carrier.h"
#include "agent/launch/process/machine.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/keys/allow.h"

/* Pause before a lost host is opened again: doubled up to the most, until the host has been ready for long enough. */
#define PAUSE_NS NS_PER_S
#define PAUSE_MOST_NS (30 * NS_PER_S)
#define HEALTHY_NS (30 * NS_PER_S)
/* Connections are opened one after the other: an ssh server, perhaps one through which all hosts are reached, refuses many at once. */
#define SPACE_NS (25 * NS_PER_MS)
/* A first attempt that fails is repeated for this long before the wait for hosts ends without it. */
#define RETRY_NS (3 * NS_PER_S)
#define AWAIT_MS 20
/* How often the list of keys is looked at. */
#define KEYS_NS NS_PER_S
#define CONFIG_NAME "config.yaml"
#define WEIGHTS_NAME "actors.weights"
#define HERE_NAME "here" /* folder of the files of launch.send */
#define HOST_POOL_FILES_MOST 512u

struct host_pool {
    struct host_pool_options options;
    struct host_info home;    /* always ready, and never greeted */
    struct pool_host **hosts; /* the first is home */
    uint32_t n;
    int64_t open_ns; /* when the next connection may be opened */
    bool has_bundle;
    struct bundle bundle;
    struct words paths, names; /* of the files of launch.send: at home, and in the work folder there */
    int64_t keys_ns;           /* when the list of keys was looked at */
    struct timespec listed;    /* when that list was changed */
};

/* ---- files of the user ---- */

/* Takes a file of launch.send, or what is wrong with it. */
static rp_status add_file(struct host_pool *self, const FTSENT *at, rp_error *err)
{
    const char *below_here = at->fts_path + strlen(self->options.home.here);
    if (at->fts_info == FTS_D || at->fts_info == FTS_DP)
        return RP_OK;
    if (at->fts_info == FTS_NS)
        return err_set(err, RP_NOT_FOUND, "launch.send: there is no file %s", at->fts_path);
    if (at->fts_info != FTS_F)
        return err_set(err, RP_INVALID_ARGUMENT, "launch.send: %s is no file and no folder that can be sent",
                       at->fts_path);
    if (self->paths.count == HOST_POOL_FILES_MOST)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "launch.send: these are more than %u files", HOST_POOL_FILES_MOST);
    words_add(&self->paths, at->fts_path);
    words_addf(&self->names, HERE_NAME "%s", below_here);
    return RP_OK;
}

/* Leaves out what no program needs elsewhere: hidden files in folders, and what Python has compiled. */
static rp_status find_files(struct host_pool *self, rp_error *err)
{
    const struct schema_list *send = &self->options.home.config->launch.send;
    char *const *list = send->data;
    struct words paths = {0};
    rp_status status = RP_OK;
    if (!run_config_is_spread(self->options.home.config) || send->count == 0)
        return RP_OK;
    for (uint32_t i = 0; i < send->count; i++)
        words_addf(&paths, "%s/%s", self->options.home.here, list[i] + (strncmp(list[i], "./", 2) == 0 ? 2 : 0));
    FTS *tree = fts_open(paths.list, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *at; status == RP_OK && tree && (at = fts_read(tree));)
        if (at->fts_level > 0 && (at->fts_name[0] == '.' || strcmp(at->fts_name, "__pycache__") == 0))
            fts_set(tree, at, FTS_SKIP);
        else
            status = add_file(self, at, err);
    if (tree)
        fts_close(tree);
    words_clear(&paths);
    return status;
}

/* ---- entries ---- */

static struct pool_host *add(struct host_pool *self)
{
    self->hosts = need_resize(self->hosts, self->n + 1, sizeof *self->hosts);
    return self->hosts[self->n++] = need_alloc(sizeof **self->hosts);
}

static struct pool_host *add_host(struct host_pool *self, const char *name, const char *const *carrier, rp_error *err)
{
    const struct host_options options = {.name = name,
                                         .carrier = carrier,
                                         .folder = self->options.home.folder,
                                         .here = self->options.home.here,
                                         .guard = self->options.home.guard};
    if (self->n >= HOST_POOL_MOST) {
        err_set(err, RP_RESOURCE_EXHAUSTED, "a run may have %u hosts", HOST_POOL_MOST - 1);
        return NULL;
    }
    struct pool_host *one = add(self);
    one->host = host_new(&options);
    one->info = host_info(one->host);
    one->wanted = true;
    return one;
}

/* One host of an entry of the file, which may stand for several. */
static rp_status add_one(struct host_pool *self, const struct host_config *config, const char *name, rp_error *err)
{
    char **carrier = carrier_build(self->has_bundle ? &self->bundle : NULL, config, name, err);
    struct pool_host *one = carrier ? add_host(self, name, (const char *const *)carrier, err) : NULL;
    if (one) {
        one->takes[ROLE_ACTOR] = host_config_takes(config, "actor");
        one->takes[ROLE_LEARNER] = host_config_takes(config, "learner");
        one->cores = one->given = config->cores;
    }
    words_free(&carrier);
    return one ? RP_OK : (rp_status)err->status;
}

static rp_status add_entry(struct host_pool *self, const struct host_config *config, uint32_t index, rp_error *err)
{
    char pattern[512], why[160];
    if (host_config_is_local(config))
        return RP_OK;
    if (!config->programs[0] && !self->has_bundle) {
        RP_TRY(bundle_describe(self->options.home.programs, &self->bundle, err));
        self->has_bundle = true;
    }
    host_config_pattern(config, index, pattern, sizeof pattern);
    char **names = run_config_host_names(pattern, RUN_HOSTS_MOST, why, sizeof why);
    if (!names)
        return err_set(err, RP_INVALID_ARGUMENT, "hosts[%u]: %s", index, why);
    rp_status status = RP_OK;
    for (uint32_t i = 0; names[i] && status == RP_OK; i++)
        status = add_one(self, config, names[i], err);
    words_free(&names);
    return status;
}

static void add_home(struct host_pool *self)
{
    const struct run_config *config = self->options.home.config;
    const struct host_config *entry = run_config_home(config);
    struct host_info *info = &self->home;
    struct pool_host *home = add(self);
    info->state = HOST_READY;
    if (gethostname(info->name, sizeof info->name - 1) != 0 || !info->name[0])
        snprintf(info->name, sizeof info->name, "localhost");
    machine_model(info->facts.model, sizeof info->facts.model);
    info->facts.cores = machine_cores();
    info->facts.memory = machine_memory();
    home->info = info;
    home->ready = home->takes[ROLE_BROKER] = home->takes[ROLE_EVALUATOR] = true;
    home->takes[ROLE_ACTOR] = run_config_home_takes(config, "actor");
    home->takes[ROLE_LEARNER] = run_config_home_takes(config, "learner");
    home->given = entry && entry->cores > 0 ? entry->cores : config->plan.cores;
    home->cores = home->given > 0 ? home->given : info->facts.cores;
    home->memory = config->plan.memory > 0 ? (double)config->plan.memory : info->facts.memory;
}

struct host_pool *host_pool_new(const struct host_pool_options *options, rp_error *err)
{
    const struct host_config *hosts = options->home.config->hosts.data;
    struct host_pool *self = need_alloc(sizeof *self);
    self->options = *options;
    add_home(self);
    rp_status status = find_files(self, err);
    for (uint32_t i = 0; i < options->home.config->hosts.count && status == RP_OK; i++)
        status = add_entry(self, &hosts[i], i, err);
    if (status != RP_OK)
        host_pool_destroy(&self);
    return self;
}

void host_pool_destroy(struct host_pool **self_p)
{
    struct host_pool *self = *self_p;
    if (!self)
        return;
    for (uint32_t i = 1; i < self->n; i++) /* all at once: each may take a moment to end */
        host_close(self->hosts[i]->host);
    for (uint32_t i = 0; i < self->n; i++) {
        struct pool_host *one = self->hosts[i];
        host_destroy(&one->host);
        words_free(&one->overrides.list);
        free(one);
    }
    words_clear(&self->paths);
    words_clear(&self->names);
    free(self->hosts);
    free(self);
    *self_p = NULL;
}

/* ---- what a host that has become ready gets ---- */

static void drop(struct host_pool *self, struct pool_host *one, const char *why)
{
    char quoted[600];
    log_line(LEVEL_WARN, "A0444", "a host is dropped", "host=%s why=%s", one->info->name,
             log_quote(quoted, sizeof quoted, why));
    one->dropped = true;
    host_pool_vanish(self, one->info->name);
}

static void send_file(struct pool_host *one, const char *path, const char *name)
{
    rp_error err = {0};
    char quoted[sizeof err.text * 2];
    if (host_send_file(one->host, path, name, &err) != RP_OK)
        log_line(LEVEL_WARN, "A0430", "a host does not get a file", "host=%s file=%s reason=%s", one->info->name, name,
                 log_quote(quoted, sizeof quoted, err.text));
}

static void send_key(struct host_pool *self, struct pool_host *one, enum role role)
{
    const char *word = role_names[role];
    char name[64];
    struct host_key key;
    rp_error err = {0};
    if (!self->options.home.keys || !self->options.home.keys->on || one->dropped)
        return;
    snprintf(name, sizeof name, RUN_KEYS_FOLDER "/%s.key", word);
    if (run_keys_of_host(self->options.home.keys, one->info->name, word, &key, &err) != RP_OK) {
        drop(self, one, err.text);
        return;
    }
    memcpy(one->keys[role == ROLE_LEARNER], key.name, KEY_NAME);
    send_file(one, key.path, name);
}

static const char *weights_of(const struct run_config *config)
{
    return config->actors.count != 0 && config->actors.weights ? config->actors.weights : "";
}

static void greet(struct host_pool *self, struct pool_host *one)
{
    if (!self->options.home.config_path)
        return; /* there is no run */
    send_file(one, self->options.home.config_path, CONFIG_NAME);
    if (one->takes[ROLE_ACTOR])
        send_key(self, one, ROLE_ACTOR);
    if (one->takes[ROLE_LEARNER]) /* a host without learners does not need what a learner may do */
        send_key(self, one, ROLE_LEARNER);
    if (one->takes[ROLE_ACTOR] && weights_of(self->options.home.config)[0])
        send_file(one, weights_of(self->options.home.config), WEIGHTS_NAME);
    for (uint32_t i = 0; i < self->paths.count; i++)
        send_file(one, self->paths.list[i], self->names.list[i]);
}

void host_pool_config_changed(struct host_pool *self)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (self->hosts[i]->ready)
            send_file(self->hosts[i], self->options.home.config_path, CONFIG_NAME);
}

/* ---- keeping them open ---- */

/* A host that was lost: the pause grows, unless the host was ready for long. */
static void note_loss(struct pool_host *one, int64_t now_ns)
{
    bool healthy = one->ready_ns > 0 && now_ns - one->ready_ns > HEALTHY_NS;
    one->pause_ns = one->pause_ns == 0 || healthy ? PAUSE_NS : 2 * one->pause_ns;
    one->pause_ns = one->pause_ns < PAUSE_MOST_NS ? one->pause_ns : PAUSE_MOST_NS;
    one->open_ns = now_ns + one->pause_ns;
    one->ready_ns = 0;
    one->failures++;
}

static void tend_one(struct host_pool *self, struct pool_host *one, int64_t now_ns)
{
    enum host_state before = one->info->state;
    host_tend(one->host, now_ns);
    if (one->info->state == HOST_READY && one->info->times != one->greeted) {
        one->greeted = one->info->times;
        one->ready_ns = now_ns;
        one->cores = one->given > 0 ? one->given : one->info->facts.cores;
        one->memory = one->info->facts.memory;
        greet(self, one);
    }
    one->ready = one->info->state == HOST_READY;
    if (one->info->state == HOST_LOST && before != HOST_LOST)
        note_loss(one, now_ns);
    bool due = one->info->state == HOST_ABSENT || (one->info->state == HOST_LOST && now_ns >= one->open_ns);
    if (!one->wanted || !due || now_ns < self->open_ns)
        return;
    self->open_ns = now_ns + SPACE_NS;
    host_open(one->host, now_ns);
    if (one->info->state == HOST_LOST)
        note_loss(one, now_ns);
}

/* Drops hosts whose key is on the list no more. */
static void check_keys(struct host_pool *self, int64_t now_ns)
{
    const struct run_keys *keys = self->options.home.keys;
    char path[HOST_POOL_PATH + 16];
    struct stat info;
    struct allow_list list;
    if (!keys || !keys->on || self->n < 2 || now_ns - self->keys_ns < KEYS_NS)
        return;
    self->keys_ns = now_ns;
    snprintf(path, sizeof path, "%s/" ALLOW_FILE, keys->list);
    if (stat(path, &info) != 0 || memcmp(&info.st_ctim, &self->listed, sizeof self->listed) == 0 ||
        allow_read(keys->list, &list, NULL) != RP_OK)
        return;
    self->listed = info.st_ctim;
    for (uint32_t i = 1; i < self->n; i++) {
        struct pool_host *one = self->hosts[i];
        for (uint32_t role = 0; role < 2 && !one->dropped; role++)
            if (one->keys[role][0] && !allow_find(&list, one->keys[role]))
                drop(self, one, "its key was revoked");
    }
    allow_free(&list);
}

void host_pool_tend(struct host_pool *self, int64_t now_ns)
{
    check_keys(self, now_ns);
    if (self->options.source)
        self->options.source->look(self->options.source, self, now_ns);
    for (uint32_t i = 1; i < self->n; i++)
        tend_one(self, self->hosts[i], now_ns);
}

bool host_pool_busy(const struct host_pool *self)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (self->hosts[i]->info->busy)
            return true;
    return false;
}

void host_pool_want(struct host_pool *self, uint32_t actors)
{
    if (self->options.source && self->options.source->want)
        self->options.source->want(self->options.source, actors);
}

bool host_pool_has(const struct host_pool *self, enum role role)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->hosts[i]->takes[role] && self->hosts[i]->ready)
            return true;
    return false;
}

/* True if every host is ready or has failed, and a run has a host for every role. begin_ns: when the wait began. */
static bool settled(const struct host_pool *self, int64_t begin_ns)
{
    bool early = clock_ns() - begin_ns < RETRY_NS;
    const struct run_config *config = self->options.home.config;
    for (uint32_t i = 1; i < self->n; i++) {
        const struct pool_host *one = self->hosts[i];
        if (one->wanted && !one->ready && (early || one->failures == 0))
            return false;
    }
    return !self->options.home.config_path || ((config->actors.count == 0 || host_pool_has(self, ROLE_ACTOR)) &&
                                               (config->learners.count == 0 || host_pool_has(self, ROLE_LEARNER)));
}

uint32_t host_pool_await(struct host_pool *self, int64_t ns, bool (*stop)(void *context), void *context)
{
    int64_t begin_ns = clock_ns(), end_ns = begin_ns + ns;
    uint32_t ready = 0;
    for (host_pool_tend(self, clock_ns());
         !settled(self, begin_ns) && clock_ns() < end_ns && !(stop && stop(context));) {
        nanosleep(&(struct timespec){.tv_nsec = AWAIT_MS * NS_PER_MS}, NULL);
        host_pool_tend(self, clock_ns());
    }
    for (uint32_t i = 0; i < self->n; i++)
        ready += self->hosts[i]->ready;
    return ready;
}

/* ---- what they are ---- */

uint32_t host_pool_count(const struct host_pool *self)
{
    return self->n;
}

const struct pool_host *host_pool_at(const struct host_pool *self, uint32_t index)
{
    return self->hosts[index];
}

const char *host_pool_kind(const struct host_pool *self, uint32_t index, char *out, size_t size)
{
    const struct host_info *info = self->hosts[index]->info;
    bool known = info->facts.model[0];
    snprintf(out, size, "%s%s, %g cores", index == HOST_POOL_HOME ? "home: " : "",
             known ? info->facts.model : info->name, self->hosts[index]->cores);
    return out;
}

/* ---- sources ---- */

static struct pool_host *find(const struct host_pool *self, const char *name)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (strcmp(self->hosts[i]->info->name, name) == 0)
            return self->hosts[i];
    return NULL;
}

/* From now on the host is kept open, or closed; what its connections went through so far counts no more. */
static void set_wanted(struct pool_host *one, bool wanted, int64_t now_ns)
{
    one->wanted = wanted;
    one->ready = false;
    one->open_ns = now_ns;
    one->failures = 0;
    one->ready_ns = one->pause_ns = 0;
}

rp_status host_pool_appear(struct host_pool *self, const char *name, const char *const *carrier, double cores,
                           int64_t now_ns, rp_error *err)
{
    struct pool_host *one = find(self, name);
    if (one && (one->dropped || (!host_set_carrier(one->host, carrier) && one->wanted)))
        return RP_OK;
    if (!one && !(one = add_host(self, name, carrier, err)))
        return (rp_status)err->status;
    one->takes[ROLE_ACTOR] = true;
    one->cores = one->given = cores;
    set_wanted(one, true, now_ns);
    return RP_OK;
}

rp_status host_pool_add(struct host_pool *self, const char *name, int64_t now_ns, rp_error *err)
{
    const struct schema_list *list = &self->options.home.config->hosts;
    const struct host_config *hosts = list->data;
    char why[160];
    uint32_t like = 0;
    while (like < list->count && host_config_is_local(&hosts[like]))
        like++;
    if (like == list->count)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "this run has no other hosts, so its broker listens on this machine only: name one in its file");
    char **names = run_config_host_names(name, 1, why, sizeof why); /* cpu[7] is cpu7 */
    if (!names)
        return err_set(err, RP_INVALID_ARGUMENT, "%s", why);
    struct pool_host *one = find(self, names[0]);
    rp_status status = RP_OK;
    if (!one)
        status = add_one(self, &hosts[like], names[0], err);
    else if (one->wanted || one->dropped)
        status = err_set(err, RP_ALREADY_EXISTS, "%s %s", names[0],
                         one->wanted ? "is a host of this run already" : "was dropped, since its key was revoked");
    else
        set_wanted(one, true, now_ns);
    words_free(&names);
    return status;
}

uint32_t host_pool_find(const struct host_pool *self, const char *name)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (strcmp(self->hosts[i]->info->name, name) == 0 && self->hosts[i]->wanted)
            return i;
    return 0;
}

void host_pool_vanish(struct host_pool *self, const char *name)
{
    struct pool_host *one = find(self, name);
    if (!one || !one->wanted)
        return;
    set_wanted(one, false, 0);
    host_close(one->host);
}

/* ---- what processes need to know there ---- */

const char *host_pool_home_address(const struct host_facts *facts, const struct broker_config *broker, char *out,
                                   size_t size)
{
    static const char mapped[] = "::ffff:";
    char hostname[HOST_NAME] = "", seen[HOST_NAME + 3];
    const char *address = facts->address;
    gethostname(hostname, sizeof hostname - 1);
    if (strncmp(address, mapped, sizeof mapped - 1) == 0 && strchr(address, '.'))
        address += sizeof mapped - 1;
    bool same = strcmp(address, "::1") == 0 || strcmp(hostname, facts->hostname) == 0;
    bool ipv6 = strchr(address, ':') != NULL;
    snprintf(seen, sizeof seen, ipv6 ? "[%s]" : "%s", address);
    bool heard = !ipv6 || endpoint_is_ipv6(broker->service); /* the broker listens there */
    if (broker->advertise[0])
        snprintf(out, size, "%s", broker->advertise);
    else if (strcmp(address, "::1") != 0 && heard && endpoint_is_host(seen))
        snprintf(out, size, "%s", seen);
    else
        snprintf(out, size, "%s", same ? "127.0.0.1" : hostname);
    return out;
}

bool host_pool_endpoint(const struct host_facts *facts, const struct broker_config *broker, const char *configured,
                        const char *bound, char *out, size_t size)
{
    const char *port = strrchr(bound, ':');
    char open[300], address[HOST_NAME + 3];
    if (!endpoint_is_any(configured) || !port)
        return endpoint_with_host(bound, broker->advertise, out, size);
    snprintf(open, sizeof open, "tcp://*%s", port);
    host_pool_home_address(facts, broker, address, sizeof address);
    return endpoint_with_host(open, address, out, size);
}

/* The part of a path below a folder; NULL: the path is elsewhere. */
static const char *below(const char *path, const char *folder)
{
    size_t size = strlen(folder);
    return size > 0 && strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == '\0') ? path + size
                                                                                                     : NULL;
}

static void map_overrides(const struct host_pool *self, struct pool_host *one, const struct command_context *base,
                          const char *work)
{
    const struct run_config *config = base->config;
    const char *plugin = config->environment.plugin ? config->environment.plugin : "";
    char path[PATH_MAX + HOST_POOL_PATH], real[PATH_MAX];
    words_clear(&one->overrides);
    words_add_list(&one->overrides, base->overrides);
    if (weights_of(config)[0]) {
        snprintf(path, sizeof path, "%s/" WEIGHTS_NAME, work);
        words_add_path(&one->overrides, "actors.weights=", path);
    }
    if (plugin[0] && realpath(plugin, real)) { /* beside the run's file, or at the same path there */
        const char *rest = below(real, self->options.home.here);
        snprintf(path, sizeof path, "%s%s", rest ? one->here : "", rest ? rest : real);
        words_add_path(&one->overrides, "environment.plugin=", path);
    }
}

void host_pool_context(struct host_pool *self, uint32_t index, const struct command_context *base,
                       struct command_context *out)
{
    struct pool_host *one = self->hosts[index];
    *out = *base;
    out->place = one->host ? host_place(one->host) : base->place;
    if (one->greeted == 0)
        return;
    const struct host_facts *facts = &one->info->facts;
    const char *rest = below(base->folder, self->options.home.folder);
    snprintf(one->config_path, sizeof one->config_path, "%s/" CONFIG_NAME, facts->work);
    snprintf(one->folder, sizeof one->folder, "%s%s", base->folder[0] ? facts->work : "", rest ? rest : "");
    if (self->paths.count > 0)
        snprintf(one->here, sizeof one->here, "%s/" HERE_NAME, facts->work);
    else
        snprintf(one->here, sizeof one->here, "%s", facts->here);
    one->run_keys = (struct run_keys){.on = base->keys && base->keys->on};
    snprintf(one->run_keys.folder, sizeof one->run_keys.folder, "%s/" RUN_KEYS_FOLDER, facts->work);
    const struct broker_config *broker = &self->options.home.config->broker;
    const struct endpoints *bound = base->endpoints;
    struct endpoints *there = &one->endpoints;
    if (bound) {
        host_pool_endpoint(facts, broker, broker->service, bound->service, there->service, sizeof there->service);
        host_pool_endpoint(facts, broker, broker->ingest, bound->ingest, there->ingest, sizeof there->ingest);
        host_pool_endpoint(facts, broker, broker->events, bound->events, there->events, sizeof there->events);
    }
    map_overrides(self, one, base, facts->work);
    out->programs = facts->programs;
    out->config_path = one->config_path;
    out->here = one->here;
    out->folder = one->folder;
    out->endpoints = bound ? there : NULL;
    out->endpoints_file = "";
    out->keys = &one->run_keys;
    out->overrides = (const char *const *)one->overrides.list;
    out->elsewhere = true;
    out->python = facts->python;
}
