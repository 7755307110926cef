/* See host_pool.h. Entries are never removed, so that an index stands for the same host as long as the pool lives. */
#include "agent/launch/host/host_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/host/carrier.h"
#include "agent/launch/host/host_pool_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
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

static int64_t now_of(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- entries ---- */

static struct pool_host *add(struct host_pool *self, const char *name, rp_error *err)
{
    struct pool_host **hosts = NULL;
    struct pool_host *one = NULL;
    if (self->n >= HOST_POOL_MOST) {
        err_set(err, RP_RESOURCE_EXHAUSTED, "a run may have %u hosts", HOST_POOL_MOST - 1);
        return NULL;
    }
    hosts = realloc(self->hosts, (self->n + 1) * sizeof *hosts);
    if (hosts)
        self->hosts = hosts;
    one = hosts ? calloc(1, sizeof *one) : NULL;
    if (!one) {
        err_set(err, RP_NO_MEMORY, "no memory for a host");
        return NULL;
    }
    snprintf(one->name, sizeof one->name, "%s", name);
    self->hosts[self->n++] = one;
    return one;
}

static rp_status connect_to(struct host_pool *self, struct pool_host *one, const char *const *carrier, rp_error *err)
{
    const struct host_options options = {.name = one->name,
                                         .carrier = carrier,
                                         .folder = self->options.folder,
                                         .here = self->options.here,
                                         .bundle = self->has_bundle ? &self->bundle : NULL,
                                         .guard = self->options.guard};
    one->host = host_new(&options, err);
    one->wanted = one->host != NULL;
    return one->host ? RP_OK : (rp_status)err->status;
}

/* One host of an entry of the file, which may stand for several. */
static rp_status add_one(struct host_pool *self, const struct host_config *config, const char *name, rp_error *err)
{
    const struct carrier_options options = {.programs = self->options.programs,
                                            .bundle = self->has_bundle ? &self->bundle : NULL};
    struct pool_host *one = add(self, name, err);
    char **carrier = one ? carrier_build(&options, config, name, err) : NULL;
    if (!carrier)
        return (rp_status)err->status;
    one->actors = host_config_takes(config, "actor");
    one->learners = host_config_takes(config, "learner");
    one->cores = config->cores;
    one->memory = (double)config->memory;
    rp_status status = connect_to(self, one, (const char *const *)carrier, err);
    command_free(&carrier);
    return status;
}

static rp_status add_entry(struct host_pool *self, const struct host_config *config, uint32_t index, rp_error *err)
{
    char pattern[512], why[160];
    if (config->local)
        return RP_OK;
    if (!config->programs[0] && !self->has_bundle) {
        RP_TRY(bundle_describe(self->options.programs, &self->bundle, err));
        self->has_bundle = true;
    }
    host_config_pattern(config, index, pattern, sizeof pattern);
    char **names = run_config_host_names(pattern, RUN_HOSTS_MOST, why, sizeof why);
    if (!names)
        return err_set(err, RP_INVALID_ARGUMENT, "hosts[%u]: %s", index, why);
    rp_status status = RP_OK;
    for (uint32_t i = 0; names[i] && status == RP_OK; i++)
        status = add_one(self, config, names[i], err);
    run_config_free_names(&names);
    return status;
}

static rp_status add_home(struct host_pool *self, rp_error *err)
{
    const struct run_config *config = self->options.config;
    const struct host_config *entry = run_config_home(config);
    if (gethostname(self->hostname, sizeof self->hostname - 1) != 0 || !self->hostname[0])
        snprintf(self->hostname, sizeof self->hostname, "localhost");
    struct pool_host *home = add(self, self->hostname, err);
    if (!home)
        return (rp_status)err->status;
    home->actors = run_config_home_takes(config, "actor");
    home->learners = run_config_home_takes(config, "learner");
    home->cores = entry && entry->cores > 0 ? entry->cores : self->options.cores;
    home->memory = entry && entry->memory > 0 ? (double)entry->memory : self->options.memory;
    return RP_OK;
}

struct host_pool *host_pool_new(const struct host_pool_options *options, rp_error *err)
{
    const struct host_config *hosts = options->config->hosts.data;
    struct host_pool *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the hosts of the run");
        return NULL;
    }
    self->options = *options;
    rp_status status = add_home(self, err);
    if (status == RP_OK)
        status = pool_find_files(self, err);
    for (uint32_t i = 0; i < options->config->hosts.count && status == RP_OK; i++)
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
    for (uint32_t i = 0; i < self->n; i++) /* all at once: each may take a moment to end */
        if (self->hosts[i]->host)
            host_close(self->hosts[i]->host);
    for (uint32_t i = 0; i < self->n; i++) {
        struct pool_host *one = self->hosts[i];
        host_destroy(&one->host);
        command_free(&one->carrier);
        pool_free_context(one);
        free(one);
    }
    for (uint32_t i = 0; i < self->n_old; i++)
        host_destroy(&self->old[i]);
    bundle_fini(&self->bundle);
    pool_free_files(self);
    free(self->old);
    free(self->hosts);
    free(self);
    *self_p = NULL;
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
    host_tend(one->host, now_ns);
    enum host_state state = host_state(one->host);
    if (state != one->state && state == HOST_LOST)
        note_loss(one, now_ns);
    one->state = state;
    if (state == HOST_READY && host_times(one->host) != one->greeted) {
        one->greeted = host_times(one->host);
        one->ready_ns = now_ns;
        pool_greet(self, one);
    }
    if (one->wanted && now_ns >= self->open_ns &&
        (state == HOST_ABSENT || (state == HOST_LOST && now_ns >= one->open_ns))) {
        self->open_ns = now_ns + SPACE_NS;
        host_open(one->host, now_ns);
        one->state = host_state(one->host);
        if (one->state == HOST_LOST)
            note_loss(one, now_ns);
    }
}

/* ---- keys that are revoked ---- */

void pool_drop(struct host_pool *self, struct pool_host *one, const char *why)
{
    char quoted[600];
    log_line(LEVEL_WARN, "A0444", "a host is dropped", "host=%s why=%s", one->name,
             log_quote(quoted, sizeof quoted, why));
    one->dropped = true;
    host_pool_vanish(self, one->name);
}

/* Drops hosts whose key is on the list no more. */
static void check_keys(struct host_pool *self, int64_t now_ns)
{
    const struct run_keys *keys = self->options.keys;
    char path[POOL_PATH + 16];
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
                pool_drop(self, one, "its key was revoked");
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
    for (uint32_t i = 0; i < self->n_old; i++)
        host_tend(self->old[i], now_ns); /* until its carrier has ended */
}

bool host_pool_busy(const struct host_pool *self)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (self->hosts[i]->host && host_busy(self->hosts[i]->host))
            return true;
    return false;
}

void host_pool_guard(const struct host_pool *self)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (self->hosts[i]->host)
            host_guard(self->hosts[i]->host);
    for (uint32_t i = 0; i < self->n_old; i++)
        host_guard(self->old[i]);
}

void host_pool_want(struct host_pool *self, uint32_t actors)
{
    if (self->options.source && self->options.source->want)
        self->options.source->want(self->options.source, actors);
}

bool host_pool_has(const struct host_pool *self, enum role role)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (host_pool_takes(self, i, role) && host_pool_ready(self, i))
            return true;
    return false;
}

/* True if every host is ready or has failed, and there is a host for every role. begin_ns: when the wait began. */
static bool settled(const struct host_pool *self, int64_t begin_ns)
{
    bool early = now_of() - begin_ns < RETRY_NS;
    const struct run_config *config = self->options.config;
    for (uint32_t i = 1; i < self->n; i++) {
        const struct pool_host *one = self->hosts[i];
        if (one->wanted && !host_pool_ready(self, i) && (early || one->failures == 0))
            return false;
    }
    return (!config->actors.on || host_pool_has(self, ROLE_ACTOR)) &&
           (!config->learners.on || host_pool_has(self, ROLE_LEARNER));
}

uint32_t host_pool_await(struct host_pool *self, int64_t ns, bool (*stop)(void *context), void *context)
{
    int64_t begin_ns = now_of(), end_ns = begin_ns + ns;
    uint32_t ready = 0;
    for (host_pool_tend(self, now_of()); !settled(self, begin_ns) && now_of() < end_ns && !(stop && stop(context));) {
        nanosleep(&(struct timespec){.tv_nsec = AWAIT_MS * NS_PER_MS}, NULL);
        host_pool_tend(self, now_of());
    }
    for (uint32_t i = 0; i < self->n; i++)
        ready += host_pool_ready(self, i);
    return ready;
}

/* ---- what they are ---- */

uint32_t host_pool_count(const struct host_pool *self)
{
    return self->n;
}

const char *host_pool_name(const struct host_pool *self, uint32_t index)
{
    return self->hosts[index]->name;
}

struct host *host_pool_at(const struct host_pool *self, uint32_t index)
{
    return self->hosts[index]->host;
}

bool host_pool_ready(const struct host_pool *self, uint32_t index)
{
    const struct pool_host *one = self->hosts[index];
    return index == HOST_POOL_HOME || (host_state(one->host) == HOST_READY && host_times(one->host) == one->greeted);
}

bool host_pool_dropped(const struct host_pool *self, uint32_t index)
{
    return self->hosts[index]->dropped;
}

bool host_pool_takes(const struct host_pool *self, uint32_t index, enum role role)
{
    const struct pool_host *one = self->hosts[index];
    return role == ROLE_ACTOR ? one->actors : role == ROLE_LEARNER ? one->learners : index == HOST_POOL_HOME;
}

static const struct host_facts *facts_of(const struct pool_host *one)
{
    return one->greeted > 0 ? host_facts(one->host) : NULL;
}

double host_pool_cores(const struct host_pool *self, uint32_t index)
{
    const struct pool_host *one = self->hosts[index];
    const struct host_facts *facts = facts_of(one);
    return one->cores > 0 ? one->cores : facts ? facts->cores : 0.0;
}

double host_pool_memory(const struct host_pool *self, uint32_t index)
{
    const struct pool_host *one = self->hosts[index];
    const struct host_facts *facts = facts_of(one);
    return one->memory > 0 ? one->memory : facts ? facts->memory : 0.0;
}

/* Home is a kind of its own: the broker runs there, and no network lies between. */
uint32_t host_pool_kind(const struct host_pool *self, uint32_t index)
{
    const struct host_facts *facts = facts_of(self->hosts[index]);
    for (uint32_t i = 1; i < index && facts; i++) {
        const struct host_facts *other = facts_of(self->hosts[i]);
        if (other && strcmp(other->model, facts->model) == 0 &&
            host_pool_cores(self, i) == host_pool_cores(self, index))
            return i;
    }
    return index;
}

/* ---- sources ---- */

static bool same_words(char *const *a, const char *const *b)
{
    for (; a && *a && *b; a++, b++)
        if (strcmp(*a, *b) != 0)
            return false;
    return a && !*a && !*b;
}

static char **copy_words(const char *const *words)
{
    uint32_t n = 0;
    while (words[n])
        n++;
    char **copy = calloc(n + 1, sizeof *copy);
    for (uint32_t i = 0; copy && i < n; i++) {
        copy[i] = strdup(words[i]);
        if (!copy[i])
            command_free(&copy);
    }
    return copy;
}

/* Processes may still refer to the former connection of a host: it is kept until the pool's end. */
static bool put_away(struct host_pool *self, struct pool_host *one)
{
    struct host **old = realloc(self->old, (self->n_old + 1) * sizeof *old);
    if (!old)
        return false;
    self->old = old;
    host_close(one->host);
    self->old[self->n_old++] = one->host;
    one->host = NULL;
    one->greeted = one->failures = 0;
    one->state = HOST_ABSENT;
    one->ready_ns = one->pause_ns = one->open_ns = 0;
    return true;
}

static struct pool_host *find(const struct host_pool *self, const char *name)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (strcmp(self->hosts[i]->name, name) == 0)
            return self->hosts[i];
    return NULL;
}

rp_status host_pool_appear(struct host_pool *self, const char *name, const char *const *carrier, double cores,
                           int64_t now_ns, rp_error *err)
{
    struct pool_host *one = find(self, name);
    if (one && (one->dropped || (one->wanted && same_words(one->carrier, carrier))))
        return RP_OK;
    if (one && one->host && !same_words(one->carrier, carrier) && !put_away(self, one))
        return err_set(err, RP_NO_MEMORY, "no memory for a host");
    if (!one)
        one = add(self, name, err);
    if (!one)
        return (rp_status)err->status;
    one->actors = true;
    one->cores = cores;
    one->open_ns = now_ns;
    one->wanted = true;
    if (one->host)
        return RP_OK;
    command_free(&one->carrier);
    one->carrier = copy_words(carrier);
    if (!one->carrier)
        return err_set(err, RP_NO_MEMORY, "no memory for a host");
    return connect_to(self, one, carrier, err);
}

void host_pool_vanish(struct host_pool *self, const char *name)
{
    struct pool_host *one = find(self, name);
    if (!one || !one->wanted)
        return;
    one->wanted = false;
    one->failures = 0;
    one->pause_ns = one->ready_ns = 0;
    if (one->host)
        host_close(one->host);
}
