#include "agent/launch/plan/trial.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/process/run_folder.h"
#include "agent/run/worker.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "replay/collective.h"

#define POLL_MS 10
#define CONNECT_MS 5000
#define ANSWER_MS 2000
#define COUNTER_MS 2000
#define START_NS (20 * NS_PER_S)
#define TELL_NS (200 * NS_PER_MS)
/* Measured data is thrown away, so no process needs long to end. */
#define GRACE_NS (2 * NS_PER_S)
/* Restarts of programs that ended by themselves with success, before the profile gives up. */
#define MOST_AGAIN 100u
/* A counter that changes less often is read for longer, up to this many times the time; one that stands still, for START_NS at least. */
#define LEAST_CHANGES 5u
#define LONGEST 8
#define WARM_PART 4
/* Hosts report about once a second what their processes use. Later than this, a process without news counts as idle. */
#define REPORT_NS (3 * NS_PER_S)

/* Waits, while hosts are tended. */
static void nap(struct trial *self, int64_t ms)
{
    host_pool_tend(self->hosts, clock_ns());
    nanosleep(&(struct timespec){.tv_nsec = ms * NS_PER_MS}, NULL);
}

/* ---- overrides ---- */

static void override_limiter(struct trial *self, const struct trial_options *options)
{
    const struct run_config *config = options->profile->home.config;
    const struct table_config *table = run_config_table(config);
    uint32_t k = (uint32_t)(table - (const struct table_config *)config->broker.tables.data);
    if (!options->limited) {
        words_addf(&self->overrides, "broker.tables[%u].limiter={kind: min_size, min_size: 1}", k);
        words_addf(&self->overrides, "broker.tables[%u].max_times_sampled=0", k);
    }
    if (options->min_size > 0)
        words_addf(&self->overrides, "broker.tables[%u].limiter.min_size=%.0f", k, options->min_size);
    if (options->buffer > 0)
        words_addf(&self->overrides, "broker.tables[%u].limiter.error_buffer=%.17g", k, options->buffer);
    if (options->shift != 0) {
        const struct limiter_config *limiter = &table->limiter;
        words_addf(&self->overrides, "broker.tables[%u].limiter.min_diff=%.17g", k, limiter->min_diff + options->shift);
        words_addf(&self->overrides, "broker.tables[%u].limiter.max_diff=%.17g", k, limiter->max_diff + options->shift);
    }
}

/* Overrides for a measurement: nothing ends by itself, actors act as they do after the first steps, and no port or
 * file of a real run is touched. */
static void make_overrides(struct trial *self, const struct trial_options *options)
{
    static const char *const fixed[] = {
        "stop.steps=0",           "stop.learner_steps=0",   "stop.value=.inf",           "actors.random_steps=0",
        "actors.epsilon_steps=0", "learners.save_every=0s", "learners.snapshot_every=0", "broker.log.file=",
        "broker.http=",           "broker.folder=",         "broker.storage.memory=0"};
    /* Hosts reach the broker as they will reach the run's. */
    static const char *const local[] = {"broker.service=tcp://127.0.0.1:0", "broker.ingest=tcp://127.0.0.1:0",
                                        "broker.events=tcp://127.0.0.1:0"};
    const struct run_keys *keys = self->options->home.keys;
    words_addf(&self->overrides, "report.every=%dms", TRIAL_REPORT_MS);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        words_add(&self->overrides, fixed[i]);
    for (size_t i = 0; host_pool_count(self->hosts) == 1 && i < sizeof local / sizeof local[0]; i++)
        words_add(&self->overrides, local[i]);
    /* On loopback as in the run: what encryption costs belongs into the plan. */
    words_addf(&self->overrides, "broker.security.mode=%s", keys && keys->on ? "curve" : "none");
    if (options->shards > 0)
        words_addf(&self->overrides, "broker.shards=%u", options->shards);
    override_limiter(self, options);
}

/* ---- folder ---- */

/* Removes reports and endpoints of an earlier profile in the same folder, which would be taken for new ones. */
static void clear_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (text_ends(entry->d_name, ".jsonl") || text_ends(entry->d_name, ".weights") ||
            strcmp(entry->d_name, "endpoints") == 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder)
        closedir(folder);
}

static rp_status make_folder(struct trial *self, const char *name, rp_error *err)
{
    int length = snprintf(self->folder, sizeof self->folder, "%s/profile/%s", self->options->home.folder, name);
    if (length + 32 > (int)sizeof self->folder)
        return err_set(err, RP_INVALID_ARGUMENT, "the name of the folder %.100s... is too long", self->folder);
    snprintf(self->endpoints_file, sizeof self->endpoints_file, "%s/endpoints", self->folder);
    RP_TRY(run_folder_make(self->folder, 0755, err));
    clear_folder(self->folder);
    return RP_OK;
}

/* ---- processes ---- */

static rp_status launch(struct trial *self, struct trial_worker *worker, rp_error *err)
{
    struct command_context context;
    const struct pool_host *host = host_pool_at(self->hosts, worker->host);
    if (!host->ready) {
        self->lost = worker->host;
        return err_set(err, RP_UNAVAILABLE, "the host %s is not reachable: %s", host->info->name, host->info->reason);
    }
    host_pool_context(self->hosts, worker->host, &self->context, &context);
    return command_start(&context, worker->role, worker->index, self->folder, &worker->process, clock_ns(), err);
}

static rp_status add_worker(struct trial *self, enum role role, uint32_t index, uint32_t host, rp_error *err)
{
    struct trial_worker worker = {.role = role, .index = index, .host = host};
    RP_TRY(launch(self, &worker, err));
    self->workers = need_resize(self->workers, self->n_workers + 1, sizeof *self->workers);
    self->workers[self->n_workers++] = worker;
    return RP_OK;
}

rp_status trial_start(struct trial *self, enum role role, const uint32_t *at, uint32_t n, rp_error *err)
{
    uint32_t total = 0, index = 0;
    for (uint32_t i = 0; i < n; i++)
        total += at[i];
    if (role == ROLE_ACTOR)
        self->context.actors = total;
    else if (role == ROLE_LEARNER)
        self->context.learners = total;
    for (uint32_t host = 0; host < n; host++)
        for (uint32_t i = 0; i < at[host]; i++)
            RP_TRY(add_worker(self, role, index++, host, err));
    return RP_OK;
}

static rp_status tell_end(struct trial *self, const struct trial_worker *worker, int status, rp_error *err)
{
    const struct process *process = &worker->process;
    const struct host_info *info = host_pool_at(self->hosts, worker->host)->info;
    char how[96], tail[300];
    if (status == PROCESS_LOST && worker->host != HOST_POOL_HOME) {
        self->lost = worker->host;
        return err_set(err, RP_UNAVAILABLE, "the host %s was lost while %s was measured there: %s", info->name,
                       process->name, info->reason);
    }
    process_describe(status, how, sizeof how);
    process_tail(process, tail, sizeof tail, 4);
    return err_set(err, RP_FAILED_PRECONDITION, "%s ended while it was measured (%s)%s%s", process->name, how,
                   tail[0] ? ":\n" : ", without a word", tail);
}

/* Starts the process again, with all steps still to take. */
static rp_status start_again(struct trial *self, struct trial_worker *worker, rp_error *err)
{
    int64_t steps = 0;
    rp_client *client = self->observer ? observer_client(self->observer) : NULL;
    if (client && rp_counter_read(client, COUNTER_STEPS, COUNTER_MS, &steps, NULL) == RP_OK && steps > 0)
        rp_counter_add(client, COUNTER_STEPS, -steps, COUNTER_MS, NULL, NULL);
    self->n_again++;
    *worker = (struct trial_worker){.role = worker->role, .index = worker->index, .host = worker->host};
    return launch(self, worker, err);
}

/* Looks whether a process has ended that should not have. */
static rp_status check_workers(struct trial *self, rp_error *err)
{
    const struct run_config *config = self->options->home.config;
    for (uint32_t i = 0; i < self->n_workers; i++) {
        struct trial_worker *worker = &self->workers[i];
        int status = 0;
        if (!worker->process.running || !process_ended(&worker->process, &status))
            continue;
        /* A user's own program may end by itself, for example after a number of steps. */
        bool foreign = (worker->role == ROLE_ACTOR && config->actors.command.count > 0) ||
                       (worker->role == ROLE_LEARNER && config->learners.command.count > 0);
        RP_TRY(foreign && status == 0 && self->n_again < MOST_AGAIN ? start_again(self, worker, err)
                                                                    : tell_end(self, worker, status, err));
    }
    return RP_OK;
}

/* Notes what processes have used so far; home: also those of this machine, which is done only where it counts. Reports from a host come
 * about once a second: a changed number is a new one. */
static void note_usage(struct trial *self, bool home)
{
    for (uint32_t i = 0; i < self->n_workers; i++) {
        struct trial_worker *worker = &self->workers[i];
        struct process_usage usage;
        bool here = worker->host == HOST_POOL_HOME;
        if ((here && !home) || !worker->process.running || !process_usage(&worker->process, &usage))
            continue;
        worker->memory = usage.memory;
        if (here || worker->now.seen_ns == 0 || usage.cpu_ns != worker->now.cpu_ns)
            worker->now = (struct trial_usage){usage.cpu_ns, usage.main_ns, clock_ns()};
    }
}

static bool any_runs(struct trial *self, enum role role)
{
    bool runs = false;
    for (uint32_t i = 0; i < self->n_workers; i++) {
        struct trial_worker *worker = &self->workers[i];
        int status;
        runs |= worker->role == role && worker->process.running && !process_ended(&worker->process, &status);
    }
    return runs;
}

/* Asks all to end, and kills those that do not. */
void trial_stop(struct trial *self, enum role role)
{
    int64_t start = clock_ns();
    uint32_t kept = 0;
    for (uint32_t i = 0; i < self->n_workers; i++)
        if (self->workers[i].role == role && self->workers[i].process.running)
            process_ask(&self->workers[i].process, start);
    while (any_runs(self, role)) {
        for (uint32_t i = 0; clock_ns() - start > GRACE_NS && i < self->n_workers; i++) {
            struct process *process = &self->workers[i].process;
            if (self->workers[i].role == role && process->running && !process->killed)
                process_kill(process);
        }
        nap(self, 2);
    }
    for (uint32_t i = 0; i < self->n_workers; i++)
        if (self->workers[i].role != role)
            self->workers[kept++] = self->workers[i];
    self->n_workers = kept;
}

/* ---- looking ---- */

static rp_status tell_user(struct trial *self, rp_error *err)
{
    const struct profile_options *options = self->options;
    int64_t now = clock_ns();
    if (!options->progress || now - self->told_ns < TELL_NS)
        return RP_OK;
    self->told_ns = now;
    return options->progress(options->context, self->line)
               ? RP_OK
               : err_set(err, RP_CANCELLED, "stopped while it was measuring");
}

void trial_tell(struct trial *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->line, sizeof self->line, format, arguments);
    va_end(arguments);
    self->told_ns = 0;
}

/* Looks once at the broker, the processes, the hosts and the user: a process that ended, or a user who cancels, is an error. If a
 * process ended because its host was lost, self->lost names the host. */
static rp_status trial_poll(struct trial *self, rp_error *err)
{
    host_pool_tend(self->hosts, clock_ns());
    RP_TRY(check_workers(self, err));
    note_usage(self, false);
    RP_TRY(tell_user(self, err));
    if (self->observer)
        observer_poll(self->observer, ANSWER_MS, &self->seen);
    return RP_OK;
}

rp_status trial_await(struct trial *self, bool (*test)(struct trial *, void *), void *context, int64_t limit_ns,
                      rp_error *err)
{
    int64_t end = clock_ns() + limit_ns;
    for (;;) {
        RP_TRY(trial_poll(self, err));
        if (test && test(self, context))
            return RP_OK;
        if (clock_ns() >= end)
            return RP_DEADLINE_EXCEEDED;
        nap(self, POLL_MS);
    }
}

/* ---- begin and end ---- */

static bool endpoints_there(struct trial *self, void *context)
{
    (void)context;
    return endpoints_read(self->endpoints_file, &self->endpoints, NULL) == RP_OK && self->endpoints.service[0];
}

static rp_status start_broker(struct trial *self, rp_error *err)
{
    RP_TRY(add_worker(self, ROLE_BROKER, 0, HOST_POOL_HOME, err));
    rp_status status = trial_await(self, endpoints_there, NULL, START_NS, err);
    if (status == RP_DEADLINE_EXCEEDED)
        return err_set(err, RP_UNAVAILABLE, "the broker that was started to measure did not listen within %d s: see %s",
                       (int)(START_NS / NS_PER_S), self->workers[0].process.log);
    RP_TRY(status);
    self->context.endpoints = &self->endpoints;
    self->observer =
        observer_new(&self->context, self->endpoints.service, TRIAL_REPORT_MS * NS_PER_MS, CONNECT_MS, err);
    if (!self->observer)
        return RP_UNAVAILABLE;
    note_usage(self, true);
    self->base_memory = self->workers[0].memory;
    return RP_OK;
}

rp_status trial_open(struct trial *self, const struct trial_options *options, rp_error *err)
{
    const struct profile_options *profile = options->profile;
    *self = (struct trial){.options = profile, .hosts = profile->hosts, .lost = TRIAL_NO_HOST};
    trial_tell(self, "starting a broker");
    RP_TRY(make_folder(self, options->name, err));
    make_overrides(self, options);
    self->context = profile->home;
    self->context.folder = options->limited ? self->folder : "";
    self->context.endpoints_file = self->endpoints_file;
    self->context.actors = self->context.learners = 1;
    self->context.overrides = (const char *const *)self->overrides.list;
    return start_broker(self, err);
}

void trial_close(struct trial *self)
{
    static const char *const weights[] = {"learner.weights", "best.weights"};
    for (int role = 0; role < ROLES; role++)
        if (role != ROLE_BROKER)
            trial_stop(self, (enum role)role);
    observer_destroy(&self->observer);
    trial_stop(self, ROLE_BROKER);
    free(self->workers);
    words_free(&self->overrides.list);
    for (size_t i = 0; self->folder[0] && i < sizeof weights / sizeof weights[0]; i++) {
        char path[640];
        snprintf(path, sizeof path, "%s/%s", self->folder, weights[i]);
        unlink(path);
    }
    *self = (struct trial){.options = self->options, .lost = self->lost};
}

/* ---- rates ---- */

void trial_rate_add(struct trial_rate *self, int64_t at_ns, uint64_t count)
{
    const struct trial_read read = {at_ns, count};
    if (self->reads == 0 || count < self->last.count)
        *self = (struct trial_rate){.first = read, .last = read};
    if (count != self->last.count) {
        if (self->changes++ == 0)
            self->first_change = read;
        self->last_change = read;
    }
    self->last = read;
    self->reads++;
}

double trial_rate_get(const struct trial_rate *self)
{
    bool enough = self->changes >= 3;
    const struct trial_read *from = enough ? &self->first_change : &self->first;
    const struct trial_read *to = enough ? &self->last_change : &self->last;
    double seconds = 1e-9 * (double)(to->at_ns - from->at_ns);
    return seconds > 0 ? (double)(to->count - from->count) / seconds : 0.0;
}

/* ---- measuring ---- */

struct readings {
    struct trial_rate inserts, samples, steps;
    uint32_t n[2]; /* looks at which actors and learners had reported */
    struct idle_shares by;
};

/* Whether the hosts have told what their processes have used since the measurement began. */
static bool all_reported(const struct trial *self)
{
    for (uint32_t i = 0; i < self->n_workers; i++) {
        const struct trial_worker *worker = &self->workers[i];
        if (worker->host != HOST_POOL_HOME && worker->process.running && worker->now.seen_ns <= worker->from.seen_ns)
            return false;
    }
    return true;
}

/* Reads until there are enough changes to compute rates from. */
static rp_status read_counters(struct trial *self, int64_t ns, struct readings *out, rp_error *err)
{
    const struct observation *seen = &self->seen;
    int64_t start = clock_ns(), pause = ns / 80 / NS_PER_MS;
    pause = pause < 5 ? 5 : pause > 500 ? 500 : pause;
    for (;;) {
        RP_TRY(trial_poll(self, err));
        if (seen->broker) {
            trial_rate_add(&out->inserts, seen->at_ns, seen->inserts);
            trial_rate_add(&out->samples, seen->at_ns, seen->samples);
            trial_rate_add(&out->steps, seen->at_ns, seen->steps);
            out->n[0] += !isnan(seen->idle_by.actor[IDLE_CREDIT]);
            out->n[1] += !isnan(seen->idle_by.learner[IDLE_SAMPLE]);
            idle_shares_add(&out->by, &seen->idle_by, 1.0);
        }
        int64_t taken = clock_ns() - start;
        uint32_t changes = out->inserts.changes < out->samples.changes ? out->inserts.changes : out->samples.changes;
        bool enough =
            (taken >= ns && changes >= LEAST_CHANGES) || (taken >= LONGEST * ns && (changes > 0 || taken >= START_NS));
        if (enough && (taken >= REPORT_NS || all_reported(self)))
            return RP_OK;
        nap(self, pause);
    }
}

/* Cores and memory since the measurement began. A report of a host covers the time since the report before; one that has not come counts
 * as nothing used. */
static void add_usage(const struct trial_worker *worker, struct trial_measured *out)
{
    const struct trial_usage *now = &worker->now, *from = &worker->from;
    if (!worker->process.running)
        return;
    out->memory[worker->role] = fmax(out->memory[worker->role], (double)worker->memory);
    if (from->seen_ns == 0 || now->seen_ns <= from->seen_ns)
        return;
    double ns = (double)(now->seen_ns - from->seen_ns), used = fmax(0.0, (double)(now->cpu_ns - from->cpu_ns) / ns);
    out->cpu[worker->role] += used;
    out->home += worker->host == HOST_POOL_HOME ? used : 0.0;
    if (worker->role == ROLE_BROKER && now->main_ns > from->main_ns)
        out->core = (double)(now->main_ns - from->main_ns) / ns;
}

/* The mean of n shares; NAN: nobody has reported. A report that comes late may tell of more than its time. */
static double mean_share(double sum, double n)
{
    return n > 0 ? fmin(sum / n, 1.0) : (double)NAN;
}

rp_status trial_measure(struct trial *self, int64_t ns, struct trial_measured *out, rp_error *err)
{
    struct readings read = {.by = {{0}, {0}}};
    struct machine_load before, after;
    rp_status status = trial_await(self, NULL, NULL, ns / WARM_PART, err);
    if (status != RP_DEADLINE_EXCEEDED)
        return status;
    note_usage(self, true);
    machine_load_read(&before);
    for (uint32_t i = 0; i < self->n_workers; i++) {
        struct trial_worker *worker = &self->workers[i];
        worker->from = worker->now;
        if (worker->now.seen_ns == 0) /* no report yet: since its start */
            worker->from.seen_ns = worker->process.started_ns;
    }
    RP_TRY(read_counters(self, ns, &read, err));
    note_usage(self, true);
    machine_load_read(&after);
    *out = (struct trial_measured){.inserts = trial_rate_get(&read.inserts),
                                   .samples = trial_rate_get(&read.samples),
                                   .steps = trial_rate_get(&read.steps),
                                   .core = NAN};
    for (int i = 0; i < IDLE_CAUSES; i++) {
        out->idle_by.actor[i] = mean_share(read.by.actor[i], read.n[0]);
        out->idle_by.learner[i] = mean_share(read.by.learner[i], read.n[1]);
    }
    for (uint32_t i = 0; i < self->n_workers; i++)
        add_usage(&self->workers[i], out);
    out->others = machine_load_others(&before, &after, out->home);
    return RP_OK;
}
