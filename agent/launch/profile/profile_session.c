/* See profile_session.h. All waiting is one loop of looks, and each look also checks the children. */
#include "agent/launch/profile/profile_session.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/profile/profile_hosts.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define LOOK_MS 2000
#define START_NS (20 * NS_PER_S)
#define TELL_NS (200 * NS_PER_MS)

static int64_t now_ns(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

void profile_session_pause(struct profile_session *self, int64_t ms)
{
    if (self->hosts)
        host_pool_tend(self->hosts, now_ns());
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS}, NULL);
}

/* ---- overrides ---- */

static bool override(struct profile_session *self, const char *format, ...) RP_PRINTF(2, 3);
static bool override(struct profile_session *self, const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = self->n_overrides < PROFILE_MAX_OVERRIDES ? vasprintf(&text, format, arguments) : -1;
    va_end(arguments);
    if (length < 0)
        return false;
    self->overrides[self->n_overrides++] = text;
    return true;
}

/* Returns the index of the run's table in broker.tables. */
static uint32_t table_index(const struct run_config *config)
{
    return (uint32_t)(run_config_table(config) - (const struct table_config *)config->broker.tables.data);
}

static bool override_limiter(struct profile_session *self, const struct profile_session_options *options)
{
    const struct run_config *config = options->profile->config;
    const struct limiter_section *limiter = &run_config_table(config)->limiter;
    uint32_t k = table_index(config);
    if (!options->limited)
        return override(self, "broker.tables[%u].limiter={kind: min_size, min_size: 1}", k) &&
               override(self, "broker.tables[%u].max_times_sampled=0", k);
    bool ok = true;
    if (options->min_size > 0)
        ok = override(self, "broker.tables[%u].limiter.min_size=%.0f", k, options->min_size);
    if (options->buffer > 0)
        ok = ok && override(self, "broker.tables[%u].limiter.error_buffer=%.17g", k, options->buffer);
    if (options->shift != 0)
        ok = ok && override(self, "broker.tables[%u].limiter.min_diff=%.17g", k, limiter->min_diff + options->shift) &&
             override(self, "broker.tables[%u].limiter.max_diff=%.17g", k, limiter->max_diff + options->shift);
    return ok;
}

/* Overrides for a measurement: nothing ends by itself, actors act as they do after the first steps, and no port or
 * file of a real run is touched. */
static rp_status make_overrides(struct profile_session *self, const struct profile_session_options *options,
                                rp_error *err)
{
    static const char *const fixed[] = {"stop.steps=0",
                                        "stop.learner_steps=0",
                                        "stop.value=.inf",
                                        "actors.random_steps=0",
                                        "actors.epsilon_steps=0",
                                        "report.tensorboard=false",
                                        "report.csv=false",
                                        "learners.save_every=0s",
                                        "learners.snapshot_every=0",
                                        "broker.log.file=",
                                        "broker.http=",
                                        "broker.journal.dir=",
                                        "broker.checkpoint.dir=",
                                        "broker.storage={dir: '', memory: 0}"};
    /* Hosts reach the broker as they will reach the run's. */
    static const char *const local[] = {"broker.service=tcp://127.0.0.1:0", "broker.ingest=tcp://127.0.0.1:0",
                                        "broker.events=tcp://127.0.0.1:0"};
    bool ok = override(self, "report.every=%dms", PROFILE_REPORT_MS);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        ok = ok && override(self, "%s", fixed[i]);
    for (size_t i = 0; !self->hosts && i < sizeof local / sizeof local[0]; i++)
        ok = ok && override(self, "%s", local[i]);
    /* On loopback as in the run: what encryption costs belongs into the plan. */
    const struct run_keys *keys = self->options->keys;
    ok = ok && override(self, "broker.security.mode=%s", keys && keys->on ? "curve" : "none");
    if (options->shards > 0)
        ok = ok && override(self, "broker.shards=%u", options->shards);
    ok = ok && override_limiter(self, options);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to start processes");
}

/* ---- folder ---- */

/* Removes reports and endpoints of an earlier profile in the same folder, which would be taken for new ones. */
static void clear_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        bool report = length > 6 && strcmp(entry->d_name + length - 6, ".jsonl") == 0;
        bool weights = length > 8 && strcmp(entry->d_name + length - 8, ".weights") == 0;
        if (report || weights || strcmp(entry->d_name, "endpoints") == 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder)
        closedir(folder);
}

static rp_status make_folder(struct profile_session *self, const char *name, rp_error *err)
{
    char above[480];
    const char *folder = self->options->folder;
    if ((size_t)snprintf(above, sizeof above, "%s/profile", folder) >= sizeof above)
        return err_set(err, RP_INVALID_ARGUMENT, "the name of the folder %.100s... is too long", folder);
    snprintf(self->folder, sizeof self->folder, "%s/%.24s", above, name);
    snprintf(self->endpoints_file, sizeof self->endpoints_file, "%s/endpoints", self->folder);
    if ((mkdir(above, 0755) != 0 && errno != EEXIST) || (mkdir(self->folder, 0755) != 0 && errno != EEXIST))
        return err_set(err, RP_IO, "the folder %s could not be made: %s", self->folder, strerror(errno));
    clear_folder(self->folder);
    return RP_OK;
}

/* ---- looking ---- */

void profile_session_tell(struct profile_session *self, double share, double next_share, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->line, sizeof self->line, format, arguments);
    va_end(arguments);
    self->share = share;
    self->next_share = next_share;
    self->since_ns = now_ns();
    self->told_ns = 0;
}

static rp_status tell_user(struct profile_session *self, rp_error *err)
{
    const struct profile_options *options = self->options;
    int64_t now = now_ns();
    if (!options->progress || now - self->told_ns < TELL_NS)
        return RP_OK;
    self->told_ns = now;
    /* The duration of a part is not known in advance. */
    double gone = (double)(now - self->since_ns) / (double)options->config->plan.measure_ns;
    double share = self->share + (self->next_share - self->share) * (1.0 - exp(-gone));
    return options->progress(options->context, self->line, share)
               ? RP_OK
               : err_set(err, RP_CANCELLED, "stopped while it was measuring");
}

rp_status profile_session_look(struct profile_session *self, rp_error *err)
{
    if (self->hosts)
        host_pool_tend(self->hosts, now_ns());
    RP_TRY(profile_workers_check(self, err));
    profile_session_note(self, false);
    RP_TRY(tell_user(self, err));
    if (self->observer)
        observer_look(self->observer, LOOK_MS, &self->seen);
    return RP_OK;
}

rp_status profile_session_await(struct profile_session *self, bool (*test)(struct profile_session *, void *),
                                void *context, int64_t limit_ns, rp_error *err)
{
    int64_t end = now_ns() + limit_ns;
    for (;;) {
        RP_TRY(profile_session_look(self, err));
        if (test(self, context))
            return RP_OK;
        if (now_ns() >= end)
            return RP_DEADLINE_EXCEEDED;
        profile_session_pause(self, PROFILE_POLL_MS);
    }
}

static bool never(struct profile_session *self, void *context)
{
    (void)self;
    (void)context;
    return false;
}

rp_status profile_session_wait(struct profile_session *self, int64_t ns, rp_error *err)
{
    rp_status status = profile_session_await(self, never, NULL, ns, err);
    return status == RP_DEADLINE_EXCEEDED ? RP_OK : status;
}

/* ---- begin and end ---- */

static bool endpoints_there(struct profile_session *self, void *context)
{
    (void)context;
    return endpoints_read(self->endpoints_file, &self->endpoints, NULL) == RP_OK && self->endpoints.service[0];
}

static rp_status start_broker(struct profile_session *self, rp_error *err)
{
    RP_TRY(profile_workers_launch(self, &self->broker, ROLE_BROKER, 0, err));
    rp_status status = profile_session_await(self, endpoints_there, NULL, START_NS, err);
    if (status == RP_DEADLINE_EXCEEDED)
        return err_set(err, RP_UNAVAILABLE, "the broker that was started to measure did not listen within %d s: see %s",
                       (int)(START_NS / NS_PER_S), self->broker.process.log);
    RP_TRY(status);
    self->context.endpoints = &self->endpoints;
    char key[1100];
    struct observe_options observe = {.service = self->endpoints.service,
                                      .table = self->options->config->adder.table,
                                      .folder = self->context.folder,
                                      .every_ns = PROFILE_REPORT_MS * NS_PER_MS,
                                      .foreign_actors = self->options->config->actors.command.count > 0,
                                      .key_file = run_keys_file(self->options->keys, "admin", key, sizeof key)};
    self->observer = observer_new(&observe, err);
    if (!self->observer)
        return RP_UNAVAILABLE;
    struct process_usage usage;
    if (process_usage(&self->broker.process, &usage))
        self->base_memory = usage.memory;
    return RP_OK;
}

rp_status profile_session_open(struct profile_session *self, const struct profile_session_options *options,
                               rp_error *err)
{
    const struct profile_options *profile = options->profile;
    *self = (struct profile_session){
        .options = profile, .hosts = profile_is_spread(profile) ? profile->hosts : NULL, .lost = PROFILE_NO_HOST};
    profile_session_tell(self, options->share, options->share, "starting a broker");
    RP_TRY(make_folder(self, options->name, err));
    RP_TRY(make_overrides(self, options, err));
    self->context = (struct command_context){.config = profile->config,
                                             .programs = profile->programs,
                                             .config_path = profile->config_path,
                                             .here = profile->here,
                                             .folder = options->limited ? self->folder : "",
                                             .endpoints_file = self->endpoints_file,
                                             .actors = 1,
                                             .learners = 1,
                                             .keys = profile->keys,
                                             .overrides = (const char *const *)self->overrides};
    return start_broker(self, err);
}

void profile_session_close(struct profile_session *self)
{
    for (int role = 0; role < ROLES; role++) {
        profile_workers_end(self, self->workers[role], self->n[role]);
        free(self->workers[role]);
    }
    observer_destroy(&self->observer);
    profile_workers_end(self, &self->broker, 1);
    for (uint32_t i = 0; i < self->n_overrides; i++)
        free(self->overrides[i]);
    static const char *const weights[] = {"learner.weights", "best.weights"};
    for (size_t i = 0; self->folder[0] && i < sizeof weights / sizeof weights[0]; i++) {
        char path[640];
        snprintf(path, sizeof path, "%s/%s", self->folder, weights[i]);
        unlink(path);
    }
    *self = (struct profile_session){.lost = self->lost, .share = self->share};
}
