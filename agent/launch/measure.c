/* The sequence of measurements: one process of each side, then pairs. Each is a run whose configuration never stops by itself. */
#include "agent/launch/measure.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/run_state.h"
#include "agent/run/worker.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* Time between two reports of a process while it is measured. */
#define REPORT_MS 200
/* Between two looks, while nothing is measured yet. */
#define PAUSE_MS 10
/* How long the first parameters, item or samples may take. */
#define FIRST_NS (30 * NS_PER_S)
#define TELL_NS (200 * NS_PER_MS)
/* Measured data is thrown away, so no process needs long to end. */
#define GRACE_NS (2 * NS_PER_S)
/* A pair runs long enough that each process reports its idle share a few times. */
#define LEAST_NS (3 * REPORT_MS * NS_PER_MS)
/* A counter that changes less often is read for longer, up to this many times the time. */
#define LEAST_CHANGES 5u
#define LONGEST 8
#define WARM_PART 4
/* Hosts report about once a second what their processes use. Later than this, a process without news counts as idle. */
#define NEWS_NS (3 * NS_PER_S)
/* After the first few, no pair begins later than this many times plan.measure. */
#define MOST_TIMES 8
#define LEAST_RUNS 3u
/* Seconds of items that a pair fills the table with first, and by which one side may run ahead. */
#define FILL_S 0.25
#define BUFFER_S 0.1
#define LIMIT_IS_NONE 1e17
#define ITEM_BYTES 160.0 /* of an item beside its data: its place in the table, the sampler and the index */

/* What a short run is to be. */
struct trial {
    uint32_t actors, learners;
    uint32_t shards; /* of the broker; 0: as the file says */
    uint32_t host;   /* of the actors; RUN_NO_HOST: as the plan places them */
    bool limited;    /* use the table's own limiter, and the evaluator; otherwise none */
    double min_size; /* replaces the limiter's min_size; 0: unchanged */
    double buffer;   /* replaces error_buffer; 0: unchanged */
    double shift;    /* added to min_diff and max_diff where the file has them; 0: unchanged */
};

/* The results of one measurement. */
struct measured {
    double inserts, samples;    /* items/s */
    double steps;               /* environment steps/s; 0: they are not counted */
    double cpu[ROLES];          /* cores used by all processes of a role */
    double memory[ROLES];       /* bytes of the largest process of a role */
    struct idle_shares idle_by; /* all waits by cause; NAN: not known */
    double others;              /* cores that other programs took */
    double home;                /* cores that our processes used on this machine */
    double core; /* share of the time for which the broker's busiest core thread worked; NAN: not known */
};

struct measure {
    const struct profile_options *options;
    const struct table_config *table;
    struct plan_input *out;
    uint64_t batch;
    double items_per_step;
    int64_t began_ns, measure_ns;
    uint32_t n_runs; /* made so far */
    uint32_t lost;   /* host whose loss has ended a run; RUN_NO_HOST: none */
    /* ---- for who waits */
    char line[160];
    int64_t told_ns;
    /* ---- the present run */
    char folder[FOLDER_SIZE];
    struct run_config config;
    struct words overrides;
    struct interrupts interrupts; /* none: options->progress says when to stop */
    struct screen *screen;
    struct run_trial trial;
    struct run_options run_options;
    struct run run;
    uint64_t base_memory; /* of the broker with empty tables */
};

/* ---- the configuration of a short run ---- */

static void override_limiter(struct measure *self, const struct trial *trial)
{
    const struct schema_list *tables = &self->options->home.config->broker.tables;
    const struct limiter_config *limiter = &self->table->limiter;
    uint32_t k = (uint32_t)(self->table - (const struct table_config *)tables->data);
    if (!trial->limited) {
        words_addf(&self->overrides, "broker.tables[%u].limiter={kind: min_size, min_size: 1}", k);
        words_addf(&self->overrides, "broker.tables[%u].max_times_sampled=0", k);
    }
    if (trial->min_size > 0)
        words_addf(&self->overrides, "broker.tables[%u].limiter.min_size=%.0f", k, trial->min_size);
    if (trial->buffer > 0)
        words_addf(&self->overrides, "broker.tables[%u].limiter.error_buffer=%.17g", k, trial->buffer);
    if (trial->shift != 0) {
        words_addf(&self->overrides, "broker.tables[%u].limiter.min_diff=%.17g", k, limiter->min_diff + trial->shift);
        words_addf(&self->overrides, "broker.tables[%u].limiter.max_diff=%.17g", k, limiter->max_diff + trial->shift);
    }
}

/* Overrides for the processes: nothing ends by itself, actors act as they do after the first steps, and no port or
 * file of a real run is touched. */
static void trial_overrides(struct measure *self, const struct trial *trial)
{
    static const char *const fixed[] = {
        "stop.steps=0",           "stop.learner_steps=0",   "stop.value=.inf",           "actors.random_steps=0",
        "actors.epsilon_steps=0", "learners.save_every=0s", "learners.snapshot_every=0", "broker.log.file=",
        "broker.http=",           "broker.folder=",         "broker.storage.memory=0"};
    /* Hosts reach the broker as they will reach the run's. */
    static const char *const local[] = {"broker.service=tcp://127.0.0.1:0", "broker.ingest=tcp://127.0.0.1:0",
                                        "broker.events=tcp://127.0.0.1:0"};
    const struct run_keys *keys = self->options->home.keys;
    words_addf(&self->overrides, "report.every=%dms", REPORT_MS);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        words_add(&self->overrides, fixed[i]);
    for (size_t i = 0; host_pool_count(self->options->hosts) == 1 && i < sizeof local / sizeof local[0]; i++)
        words_add(&self->overrides, local[i]);
    /* On loopback as in the run: what encryption costs belongs into the plan. */
    words_addf(&self->overrides, "broker.security.mode=%s", keys && keys->on ? "curve" : "none");
    if (trial->shards > 0)
        words_addf(&self->overrides, "broker.shards=%u", trial->shards);
    override_limiter(self, trial);
}

/* The same for the launcher. */
static void make_config(struct measure *self, const struct trial *trial)
{
    static char none[] = "";
    static char *shards[CONFIG_MAX_SHARDS];
    struct run_config *config = &self->config;
    *config = *self->options->home.config;
    for (uint32_t i = 0; i < CONFIG_MAX_SHARDS; i++)
        shards[i] = none;
    config->actors.count = trial->actors;
    config->learners.count = trial->learners;
    config->stop = (struct stop_section){.value = INFINITY};
    config->report.every_ns = REPORT_MS * NS_PER_MS;
    config->launch.failures = 1;
    config->launch.grace_ns = GRACE_NS;
    config->broker.folder = none;
    if (trial->shards > 0)
        config->broker.shards = (struct schema_list){shards, trial->shards};
    if (!trial->limited)
        config->evaluator.episodes = 0;
}

/* Makes the folder of a run, without reports and weights of an earlier one, which would be taken for new ones. */
static rp_status trial_folder(struct measure *self, const char *name, rp_error *err)
{
    char logs[FOLDER_SIZE + 16];
    int length = snprintf(self->folder, sizeof self->folder, "%s/profile/%s", self->options->home.folder, name);
    if (length + 64 > (int)sizeof self->folder)
        return err_set(err, RP_INVALID_ARGUMENT, "the name of the folder %.100s... is too long", self->folder);
    RP_TRY(run_folder_make(run_folder_path(logs, sizeof logs, self->folder, "logs"), 0755, err));
    DIR *folder = opendir(self->folder);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        if (text_ends(entry->d_name, ".jsonl") || text_ends(entry->d_name, ".weights"))
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    return RP_OK;
}

/* ---- looking ---- */

static void tell_line(struct measure *self, const char *format, ...) RP_PRINTF(2, 3);

/* Sets the line of progress. */
static void tell_line(struct measure *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->line, sizeof self->line, format, arguments);
    va_end(arguments);
    self->told_ns = 0;
}

static rp_status tell_user(struct measure *self, rp_error *err)
{
    const struct profile_options *options = self->options;
    int64_t now_ns = clock_ns();
    if (!options->progress || now_ns - self->told_ns < TELL_NS)
        return RP_OK;
    self->told_ns = now_ns;
    return options->progress(options->context, self->line)
               ? RP_OK
               : err_set(err, RP_CANCELLED, "stopped while it was measuring");
}

/* Fails if a process waits for its host. */
static rp_status check_lost(struct measure *self, rp_error *err)
{
    for (uint32_t i = 0; i < self->run.n_members; i++) {
        const struct member *member = self->run.members[i];
        if (!member->wanted || !member->waits || member->host == RUN_NO_HOST)
            continue;
        const struct host_info *info = host_pool_info(self->options->hosts, member->host);
        self->lost = member->host;
        return err_set(err, RP_UNAVAILABLE, "the host %s was lost while %s was measured there: %s", info->name,
                       member->name, info->reason);
    }
    return RP_OK;
}

/* One turn of the run. A process that ended, a host that was lost, or a user who cancels is an error. */
static rp_status turn(struct measure *self, rp_error *err)
{
    struct run *run = &self->run;
    run_turn(run);
    RP_TRY(check_lost(self, err));
    if (run->phase >= PHASE_STOPPING)
        return err_set(err, RP_FAILED_PRECONDITION, "measuring has failed: %s",
                       run->cause[0] ? run->cause : run->reason);
    if (run->observer && self->base_memory == 0) {
        run_measure_usage(run, clock_ns());
        self->base_memory = run->members[0]->usage.memory;
    }
    return tell_user(self, err);
}

/* Says for what the run waits in vain. */
static rp_status too_late(const struct measure *self, rp_error *err)
{
    const struct run *run = &self->run;
    const char *table = self->config.adder.table;
    int seconds = (int)(FIRST_NS / NS_PER_S);
    if (!run->observer || !run->learners_started)
        return err_set(err, RP_UNAVAILABLE,
                       "the broker that was started to measure is not ready: see %s/logs/broker.log", self->folder);
    if (run->seen.inserts == 0 && run->seen.policy == 0)
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "the learner published no parameters within %d s: see %s/logs/learner-0.log", seconds,
                       self->folder);
    if (run->seen.inserts == 0)
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "no actor inserted an item into '%s' within %d s: see %s/logs/actor-0.log", table, seconds,
                       self->folder);
    struct why why;
    observer_why(run->observer, NULL, &why);
    return err_set(err, RP_DEADLINE_EXCEEDED,
                   "learners did not sample from '%s' within %d s. %s See %s/logs/learner-*.log", table, seconds,
                   why.text, self->folder);
}

/* Waits until learners have sampled so much. */
static rp_status await_samples(struct measure *self, uint64_t samples, rp_error *err)
{
    const struct run *run = &self->run;
    int64_t since_ns = clock_ns();
    for (uint32_t before = 0; run->seen.samples < samples;) {
        uint32_t steps = !!run->observer + run->learners_started + run->actors_started + (run->seen.inserts > 0);
        if (steps != before)
            since_ns = clock_ns();
        before = steps;
        if (clock_ns() - since_ns > FIRST_NS)
            return too_late(self, err);
        RP_TRY(turn(self, err));
    }
    return RP_OK;
}

/* ---- rates ---- */

void measure_rate_add(struct measure_rate *self, int64_t at_ns, uint64_t count)
{
    const struct measure_read read = {at_ns, count};
    if (self->reads == 0 || count < self->last.count)
        *self = (struct measure_rate){.first = read, .last = read};
    if (count != self->last.count) {
        if (self->changes++ == 0)
            self->first_change = read;
        self->last_change = read;
    }
    self->last = read;
    self->reads++;
}

double measure_rate_get(const struct measure_rate *self)
{
    bool enough = self->changes >= 3;
    const struct measure_read *from = enough ? &self->first_change : &self->first;
    const struct measure_read *to = enough ? &self->last_change : &self->last;
    double seconds = 1e-9 * (double)(to->at_ns - from->at_ns);
    return seconds > 0 ? (double)(to->count - from->count) / seconds : 0.0;
}

/* ---- measuring ---- */

struct readings {
    struct measure_rate inserts, samples, steps;
    uint32_t n[2]; /* looks at which actors and learners had reported */
    struct idle_shares by;
};

static void read_once(const struct observation *seen, struct readings *out)
{
    measure_rate_add(&out->inserts, seen->at_ns, seen->inserts);
    measure_rate_add(&out->samples, seen->at_ns, seen->samples);
    measure_rate_add(&out->steps, seen->at_ns, seen->steps);
    out->n[0] += !isnan(seen->idle_by.actor[IDLE_CREDIT]);
    out->n[1] += !isnan(seen->idle_by.learner[IDLE_SAMPLE]);
    idle_shares_add(&out->by, &seen->idle_by, 1.0);
}

/* Whether the hosts have told what their processes have used since the measurement began. */
static bool all_reported(const struct run *run)
{
    for (uint32_t i = 0; i < run->n_members; i++) {
        const struct member *member = run->members[i];
        struct process_usage usage = {0};
        if (member->at != HOST_POOL_HOME && member->process.running &&
            (!process_usage(&member->process, &usage) || usage.at_ns <= member->usage.at_ns))
            return false;
    }
    return true;
}

/* Reads until there are enough changes to compute rates from. */
static rp_status read_counters(struct measure *self, int64_t ns, struct readings *out, rp_error *err)
{
    int64_t start = clock_ns(), pause = ns / 80 / NS_PER_MS;
    self->trial.pause_ms = (int)(pause < 5 ? 5 : pause > 500 ? 500 : pause);
    for (;;) {
        RP_TRY(turn(self, err));
        if (self->run.seen.broker)
            read_once(&self->run.seen, out);
        int64_t taken = clock_ns() - start;
        uint32_t changes = out->inserts.changes > out->samples.changes ? out->inserts.changes : out->samples.changes;
        bool enough = (taken >= ns && changes >= LEAST_CHANGES) || taken >= LONGEST * ns;
        if (enough && (taken >= NEWS_NS || all_reported(&self->run)))
            return RP_OK;
    }
}

/* The mean of n shares; NAN: nobody has reported. A report that comes late may tell of more than its time. */
static double mean_share(double sum, double n)
{
    return n > 0 ? fmin(sum / n, 1.0) : (double)NAN;
}

/* Measures for ns; longer, if hardly anything moves. A quarter of that time goes by first. */
static rp_status measure_run(struct measure *self, int64_t ns, struct measured *out, rp_error *err)
{
    struct readings read = {.by = {{0}, {0}}};
    struct machine_load before, after;
    for (int64_t end_ns = clock_ns() + ns / WARM_PART; clock_ns() < end_ns;)
        RP_TRY(turn(self, err));
    run_measure_usage(&self->run, clock_ns());
    machine_load_read(&before);
    RP_TRY(read_counters(self, ns, &read, err));
    run_measure_usage(&self->run, clock_ns());
    machine_load_read(&after);
    *out = (struct measured){.inserts = measure_rate_get(&read.inserts),
                             .samples = measure_rate_get(&read.samples),
                             .steps = measure_rate_get(&read.steps),
                             .core = NAN};
    for (int i = 0; i < IDLE_CAUSES; i++) {
        out->idle_by.actor[i] = mean_share(read.by.actor[i], read.n[0]);
        out->idle_by.learner[i] = mean_share(read.by.learner[i], read.n[1]);
    }
    for (uint32_t i = 0; i < self->run.n_members; i++) {
        const struct member *member = self->run.members[i];
        out->memory[member->role] = fmax(out->memory[member->role], (double)member->usage.memory);
        out->cpu[member->role] += member->cpu;
        out->home += member->at == HOST_POOL_HOME ? member->cpu : 0.0;
        if (member->role == ROLE_BROKER && member->main > 0)
            out->core = member->main;
    }
    out->others = machine_load_others(&before, &after, out->home);
    return RP_OK;
}

/* Fills in the memory of the broker with full tables. */
static void measure_broker(struct measure *self)
{
    const struct observation *seen = &self->run.seen;
    double items = 0.0, each = seen->size > 0 ? (double)seen->broker_bytes / (double)seen->size : 0.0;
    if (seen->size > 0)
        items = (double)seen->max_size * (each + ITEM_BYTES);
    if (self->table->max_bytes > 0)
        items = fmin(items, (double)self->table->max_bytes * 1.25);
    self->out->broker_memory = (double)self->base_memory + fmin(items, (double)self->config.broker.memory_limit);
}

/* ---- a short run ---- */

static rp_status begin(struct measure *self, const struct trial *trial, const char *name, rp_error *err)
{
    RP_TRY(trial_folder(self, name, err));
    trial_overrides(self, trial);
    make_config(self, trial);
    self->trial = (struct run_trial){.pause_ms = PAUSE_MS, .actors_at = trial->host};
    self->interrupts = (struct interrupts){.fd = -1};
    self->screen = screen_new(SCREEN_SILENT);
    self->run_options = (struct run_options){.home = self->options->home,
                                             .cwd = "",
                                             .command = "",
                                             .plan_input = self->out,
                                             .hosts = self->options->hosts,
                                             .interrupts = &self->interrupts,
                                             .screen = &self->screen,
                                             .trial = &self->trial};
    self->run_options.home.config = &self->config;
    self->run_options.home.folder = self->folder;
    self->run_options.home.overrides = (const char *const *)self->overrides.list;
    return run_begin(&self->run, &self->run_options, err);
}

/* Ends all processes of the run. */
static void end(struct measure *self)
{
    static const char *const weights[] = {LEARNER_STATE_FILE, BEST_WEIGHTS_FILE};
    self->trial.pause_ms = 2;
    run_stop(&self->run, PHASE_STOPPED, false, "it was measured");
    while (!run_is_over(&self->run))
        run_turn(&self->run);
    run_end(&self->run);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        run_folder_remove(self->folder, weights[i]);
}

static rp_status run_trial(struct measure *self, const struct trial *trial, struct measured *out, rp_error *err)
{
    char name[24];
    int64_t ns = trial->limited && self->measure_ns < LEAST_NS ? LEAST_NS : self->measure_ns;
    snprintf(name, sizeof name, trial->limited ? "joint-%u" : "units-%u", self->n_runs++);
    self->base_memory = 0;
    rp_status status = begin(self, trial, name, err);
    if (status == RP_OK)
        status = await_samples(self, 2 * trial->learners * self->batch, err);
    if (status == RP_OK)
        status = measure_run(self, ns, out, err);
    if (status == RP_OK && !trial->limited)
        measure_broker(self);
    if (self->screen)
        end(self);
    screen_destroy(&self->screen);
    words_clear(&self->overrides);
    return status;
}

/* ---- one process of each side ---- */

/* share: the role's part of what the broker did. */
static void take_unit(const struct measured *measured, enum role role, double rate, double share, struct plan_unit *out)
{
    *out = (struct plan_unit){.rate = rate,
                              .cpu = measured->cpu[role],
                              .broker_cpu = measured->cpu[ROLE_BROKER] * share,
                              .memory = measured->memory[role]};
}

/* An actor on a host, beside a learner: neither holds the other one back. */
static rp_status measure_unit(struct measure *self, uint32_t host, rp_error *err)
{
    const struct trial trial = {.actors = 1, .learners = 1, .host = host};
    struct measured measured;
    bool hosts = self->out->n_hosts > 1;
    tell_line(self, "1 actor%s%s and 1 learner, without the limiter", hosts ? " on " : "",
              hosts ? self->out->hosts[host].name : "");
    RP_TRY(run_trial(self, &trial, &measured, err));
    double inserts = profile_lasting(self->items_per_step, measured.steps, measured.inserts);
    double share = measured.inserts / fmax(1.0, measured.inserts + measured.samples);
    take_unit(&measured, ROLE_ACTOR, inserts, share, &self->out->hosts[host].actor);
    take_unit(&measured, ROLE_LEARNER, measured.samples, 1.0 - share, &self->out->learner);
    return RP_OK;
}

/* A learner, with an actor on one host of each kind. */
static rp_status measure_units(struct measure *self, rp_error *err)
{
    for (uint32_t i = 0; i < self->out->n_hosts; i++)
        if (self->out->hosts[i].actors && !plan_example(self->out, i))
            RP_TRY(measure_unit(self, i, err));
    return RP_OK;
}

/* ---- pairs, with everything that a run has, under the real limiter ---- */

/* Keeps the limiter, but with fewer items to fill first and less room to run ahead, so that a second shows the lasting rate. */
static void shorten_limiter(const struct measure *self, struct trial *trial)
{
    const struct limiter_config *limiter = &self->table->limiter;
    double rate = trial->actors * plan_actor_on(self->out, PLAN_HOME).rate,
           batch = (double)(self->batch * trial->learners);
    double least = ceil(fmax(2.0 * batch, FILL_S * rate));
    if (limiter->kind != LIMITER_RATIO && limiter->kind != LIMITER_MIN_SIZE)
        return;
    double cut = limiter->min_size > least ? limiter->min_size - least : 0.0;
    trial->min_size = cut > 0 ? least : 0.0;
    if (limiter->kind == LIMITER_MIN_SIZE)
        return;
    /* For each shard as much as for a broker alone: with less room, more shards would look slower than they are. */
    double room = trial->shards * fmax(8.0 * batch, BUFFER_S * rate * limiter->samples_per_insert);
    if (limiter->error_buffer > room)
        trial->buffer = fmax(room, 2.0 * fmax(1.0, limiter->samples_per_insert));
    bool bounds =
        limiter->error_buffer < 0 && fabs(limiter->min_diff) < LIMIT_IS_NONE && fabs(limiter->max_diff) < LIMIT_IS_NONE;
    trial->shift = bounds ? -cut * limiter->samples_per_insert : 0.0;
}

static rp_status measure_pair(struct measure *self, struct plan_pair *pair, rp_error *err)
{
    struct trial trial = {.actors = pair->actors,
                          .learners = pair->learners,
                          .shards = pair->shards,
                          .host = RUN_NO_HOST,
                          .limited = true};
    struct measured measured;
    char with[32] = "";
    if (pair->shards > 1)
        snprintf(with, sizeof with, " with %u shards", pair->shards);
    tell_line(self, "%u actor%s and %u learner%s together%s", pair->actors, pair->actors == 1 ? "" : "s",
              pair->learners, pair->learners == 1 ? "" : "s", with);
    shorten_limiter(self, &trial);
    RP_TRY(run_trial(self, &trial, &measured, err));
    *pair = (struct plan_pair){.actors = pair->actors,
                               .learners = pair->learners,
                               .shards = pair->shards,
                               .inserts = measured.inserts,
                               .samples = measured.samples,
                               .others = measured.others,
                               .core = measured.core,
                               .home = measured.home + measured.others,
                               .waits = measured.idle_by};
    for (int role = 0; role < ROLES; role++)
        pair->cpu += measured.cpu[role];
    profile_lasting_pair(self->items_per_step, measured.steps, pair);
    return RP_OK;
}

static bool in_time(const struct measure *self)
{
    return clock_ns() - self->began_ns < MOST_TIMES * self->measure_ns;
}

/* A run from which other programs took processor time is repeated, and the faster one counts: other programs only slow a run down. */
static rp_status add_pair(struct measure *self, const struct plan_pair *next, rp_error *err)
{
    struct plan_pair pair = *next, again = *next;
    RP_TRY(measure_pair(self, &pair, err));
    if (pair.others > 0 && in_time(self)) {
        RP_TRY(measure_pair(self, &again, err));
        pair = again.inserts > pair.inserts ? again : pair;
    }
    plan_add_run(self->out, &pair);
    return RP_OK;
}

/* Pairs that are worth it; then more shards, where the broker's core thread holds the best pair back. If no plan can be made of the
 * measurements, plan_solve says so. */
static rp_status measure_pairs(struct measure *self, rp_error *err)
{
    struct plan_pair next;
    self->began_ns = clock_ns();
    while (((self->out->n_runs < LEAST_RUNS || in_time(self)) && plan_next(self->out, &next)) ||
           plan_next_shards(self->out, &next))
        RP_TRY(add_pair(self, &next, err));
    return RP_OK;
}

/* ---- the whole ---- */

/* A host was lost: measuring goes on without it. False: no host is left for actors or for learners. */
static bool leave_out(struct measure *self)
{
    struct plan_input *out = self->out;
    uint32_t host = self->lost, actors = 0, learners = 0;
    out->hosts[host].actors = out->hosts[host].learners = false;
    out->n_runs = 0; /* they were made with the host */
    self->lost = RUN_NO_HOST;
    for (uint32_t i = 0; i < out->n_hosts; i++) {
        actors += out->hosts[i].actors;
        learners += out->hosts[i].learners;
    }
    if (actors == 0 || learners == 0)
        return false;
    tell_line(self, "%s was lost: measuring goes on without it: %s", out->hosts[host].name,
              host_pool_info(self->options->hosts, host)->reason);
    tell_user(self, NULL); /* the next part has a line of its own */
    return true;
}

/* Measures, again without a host that was lost meanwhile. */
static rp_status measure_without_lost(struct measure *self, rp_status (*part)(struct measure *, rp_error *),
                                      rp_error *err)
{
    rp_status status;
    do
        status = part(self, err);
    while (status != RP_OK && self->lost != RUN_NO_HOST && leave_out(self));
    return status;
}

static rp_status measure_all(const struct profile_options *options, struct plan_input *out, rp_error *err)
{
    const struct run_config *config = options->home.config;
    struct measure *self = need_alloc(sizeof *self);
    self->options = options;
    self->table = run_config_table(config);
    self->out = out;
    self->batch = (uint64_t)profile_batch(config);
    self->items_per_step = profile_items_per_step(config);
    self->measure_ns = config->plan.measure_ns;
    self->lost = RUN_NO_HOST;
    rp_status status = RP_OK;
    if (!self->table)
        status = err_set(err, RP_NOT_FOUND, "there is no table '%s' in broker.tables", config->adder.table);
    profile_adopt(options, out);
    if (status == RP_OK)
        status = measure_without_lost(self, measure_units, err);
    if (status == RP_OK) {
        profile_adopt(options, out); /* with those that have come, or come back, meanwhile */
        status = measure_without_lost(self, measure_pairs, err);
    }
    free(self);
    return status;
}

rp_status measure_profile(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err)
{
    rp_status status = RP_OK;
    *out = (struct plan_input){0};
    *from_cache = !options->fresh && profile_recall(options, out);
    if (!*from_cache && options->cached)
        status = err_set(err, RP_NOT_FOUND, "nothing was measured yet for this configuration, build and machine");
    else if (!*from_cache)
        status = measure_all(options, out, err);
    if (status == RP_OK && !*from_cache)
        profile_keep(options, out);
    if (status != RP_OK)
        plan_input_free(out);
    return status;
}
