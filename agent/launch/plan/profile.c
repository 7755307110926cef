/* The sequence of measurements: one process of each side, pairs; or what the cache has of them. */
#include "agent/launch/plan/profile.h"

#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/launch/plan/trial.h"
#include "agent/launch/process/run_folder.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"

#define VERSION 11 /* of the cache */
/* How long the first item, sample or parameters may take. */
#define FIRST_NS (30 * NS_PER_S)
/* A pair runs long enough that each process reports its idle share a few times. */
#define LEAST_NS (3 * TRIAL_REPORT_MS * NS_PER_MS)
/* After an actor has ended, until its last items are seen. */
#define SETTLE_NS (2 * TRIAL_REPORT_MS * NS_PER_MS)
/* After the first few, no pair begins later than this many times plan.measure. */
#define MOST_TIMES 8
#define LEAST_RUNS 3u
/* Seconds of items that a pair fills the table with first, and by which one side may run ahead. */
#define FILL_S 0.25
#define BUFFER_S 0.1
#define LIMIT_IS_NONE 1e17
/* A side that waits nearly all the time says too little about what it could do. */
#define MOST_IDLE 0.95
#define ITEM_BYTES 160.0 /* of an item beside its data: its place in the table, the sampler and the index */

/* ---- what the configuration says ---- */

int64_t profile_batch(const struct run_config *config)
{
    const struct agent_ops *ops = run_config_algorithm(config);
    int64_t batch = config->agent.batch > 0 || !ops ? config->agent.batch : ops->defaults->batch;
    return batch > 0 ? batch : 1;
}

/* Fills in what the file says. */
static void profile_fill(const struct run_config *config, struct plan_input *out)
{
    out->spi = run_config_ratio(config);
    out->other_memory = config->evaluator.episodes > 0 ? plan_actor_on(out, PLAN_HOME).memory : 0.0;
    out->fixed_actors = run_config_actors(config);
    out->fixed_learners = run_config_learners(config);
    out->max_actors = (uint32_t)config->plan.max_actors;
    out->max_learners = (uint32_t)config->plan.max_learners;
    out->fixed_shards = config->broker.shards.count;
    out->most_shards = run_config_most_shards(config, profile_batch(config));
}

/* ---- what lasts ---- */

double profile_items_per_step(const struct run_config *config)
{
    if (config->actors.command.count > 0 || config->adder.kind == ADDER_EPISODE)
        return 0.0;
    return config->adder.kind == ADDER_TRANSITION ? 1.0 : 1.0 / (double)config->adder.period;
}

double profile_lasting(double items_per_step, double steps, double inserts)
{
    return items_per_step > 0 && steps > 0 ? fmin(inserts, items_per_step * steps) : inserts;
}

void profile_lasting_pair(double items_per_step, double steps, struct plan_pair *pair)
{
    double *actors = &pair->waits.actor[IDLE_CREDIT], *learners = &pair->waits.learner[IDLE_SAMPLE];
    double idle = isnan(*actors) ? 0.0 : *actors;
    if (!(items_per_step > 0 && steps > 0 && pair->inserts > 0) || idle > MOST_IDLE)
        return;
    double could = items_per_step * steps / (1.0 - idle), inserts = fmin(pair->inserts, could);
    double share = inserts / pair->inserts;
    pair->inserts = inserts;
    pair->samples *= share;
    if (!isnan(*actors))
        *actors = fmin(idle, 1.0 - inserts / could);
    *learners = 1.0 - (1.0 - *learners) * share;
}

/* ---- hosts ---- */

struct plan_host *profile_hosts(const struct host_pool *pool, const struct plan_input *known, uint32_t *n)
{
    *n = host_pool_count(pool);
    struct plan_host *hosts = need_alloc(*n * sizeof *hosts);
    struct plan_input now = {.hosts = hosts, .n_hosts = *n};
    for (uint32_t i = 0; i < *n; i++) {
        const struct pool_host *one = host_pool_at(pool, i);
        hosts[i] = (struct plan_host){.cores = one->cores,
                                      .memory = one->memory,
                                      .actors = one->ready && one->takes[ROLE_ACTOR],
                                      .learners = one->ready && one->takes[ROLE_LEARNER]};
        snprintf(hosts[i].name, sizeof hosts[i].name, "%s", one->info->name);
        host_pool_kind(pool, i, hosts[i].kind, sizeof hosts[i].kind);
    }
    for (uint32_t from = 0; from < known->n_hosts; from++)
        for (uint32_t to = 0; to < *n; to++)
            if (strcmp(hosts[to].kind, known->hosts[from].kind) == 0 && !plan_example(&now, to))
                hosts[to].actor = known->hosts[from].actor;
    return hosts;
}

/* One line for each machine that is used and its roles: what a measurement depends on. free() */
static char *describe_machines(const struct profile_options *options)
{
    char *text = NULL;
    size_t size = 0;
    uint32_t n;
    FILE *out = open_memstream(&text, &size);
    struct plan_host *hosts = profile_hosts(options->hosts, &(struct plan_input){0}, &n);
    for (uint32_t i = 0; i < n; i++)
        if (i == HOST_POOL_HOME || hosts[i].actors || hosts[i].learners) /* the broker runs at home */
            fprintf(out, "%s%s%s\n", hosts[i].kind, hosts[i].actors ? ", actors" : "",
                    hosts[i].learners ? ", learners" : "");
    free(hosts);
    fclose(out);
    return text;
}

/* Gives an input the hosts of now, each with what was measured on one of its kind. */
static void adopt_hosts(const struct profile_options *options, struct plan_input *out)
{
    uint32_t n;
    struct plan_host *hosts = profile_hosts(options->hosts, out, &n);
    plan_input_free(out);
    out->hosts = hosts;
    out->n_hosts = n;
}

/* ---- the cache ---- */

/* One file for each configuration, build and kinds of machines. The file holds the whole key, so a damaged file, or one whose name
 * belongs to another key by chance, is only a miss. */

/* Keys that do not matter for speed, and of the broker those for which the throw-away broker has its own values. */
static const char *const ignored[] = {"name",
                                      "seed",
                                      "folder",
                                      "stop.",
                                      "launch.",
                                      "report.",
                                      "hosts",
                                      "broker.service",
                                      "broker.ingest",
                                      "broker.events",
                                      "broker.seed",
                                      "broker.log.",
                                      "broker.http",
                                      "broker.journal",
                                      "broker.checkpoint.",
                                      "broker.storage.",
                                      "broker.advertise"};

/* Prints the keys that matter. */
static void add_config(const struct run_config *config, FILE *out)
{
    struct schema some = *run_schema();
    struct schema_row *rows = need_alloc(some.n_rows * sizeof *rows);
    uint32_t n = 0;
    for (uint32_t i = 0; i < some.n_rows; i++) {
        bool matters = true;
        for (size_t k = 0; k < sizeof ignored / sizeof ignored[0]; k++)
            matters &= strncmp(some.rows[i].path, ignored[k], strlen(ignored[k])) != 0;
        if (matters)
            rows[n++] = some.rows[i];
    }
    some.rows = rows;
    some.n_rows = n;
    schema_print(&some, config, out);
    free(rows);
}

/* A changed file has another size or time. */
static void add_file_state(const char *path, FILE *out)
{
    struct stat status;
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode))
        fprintf(out, "file %s %lld %lld.%09ld\n", path, (long long)status.st_size, (long long)status.st_mtim.tv_sec,
                status.st_mtim.tv_nsec);
}

static void add_command(const struct schema_list *command, const char *here, FILE *out)
{
    static const char placeholder[] = "{here}";
    char *const *words = command->data;
    for (uint32_t i = 0; i < command->count; i++) {
        char path[PATH_MAX];
        const char *word = words[i];
        bool below = strncmp(word, placeholder, sizeof placeholder - 1) == 0;
        snprintf(path, sizeof path, "%s%s", below ? here : "", below ? word + sizeof placeholder - 1 : word);
        add_file_state(path, out);
    }
}

/* The user's module, if it lies beside the run's file: a.b:make is a/b.py or a/b/__init__.py. */
static void add_python(const struct env_config *config, const char *here, FILE *out)
{
    char path[PATH_MAX];
    size_t length = strcspn(config->python, ":");
    if (length == 0)
        return;
    int start = snprintf(path, sizeof path, "%s/", here);
    int used = start + snprintf(path + start, sizeof path - (size_t)start, "%.*s", (int)length, config->python);
    if (used < 0 || (size_t)used + sizeof "/__init__.py" > sizeof path)
        return;
    for (char *c = path + start; *c; c++)
        *c = *c == '.' ? '/' : *c;
    strcpy(path + used, ".py");
    add_file_state(path, out);
    strcpy(path + used, "/__init__.py");
    add_file_state(path, out);
}

char *profile_key(const struct profile_options *options, const char *machines)
{
    static const char *const programs[] = {"replay-broker", "replay-actor", "replay-learner"};
    char *text = NULL, path[PATH_MAX];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "profile %d\n%s", VERSION, machines);
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", options->home.programs, programs[i]);
        add_file_state(path, out);
    }
    add_python(&options->home.config->environment, options->home.here, out);
    add_command(&options->home.config->actors.command, options->home.here, out);
    add_command(&options->home.config->learners.command, options->home.here, out);
    add_config(options->home.config, out);
    fclose(out);
    return text;
}

/* Fills in the folder of the cache and the name of a key's file. */
static rp_status find_place(const char *key, char folder[FOLDER_SIZE], char name[48], rp_error *err)
{
    snprintf(name, 48, "profile-%016llx.json", (unsigned long long)rng_hash(0, key));
    return run_folder_cache(folder, err);
}

bool profile_load(const char *key, struct plan_input *out)
{
    char folder[FOLDER_SIZE], name[48];
    char *text = find_place(key, folder, name, NULL) == RP_OK ? run_folder_read(folder, name) : NULL;
    struct json_object *root = text ? json_tokener_parse(text) : NULL;
    *out = (struct plan_input){0};
    bool ok = strcmp(json_map_text(root, "key"), key) == 0 && plan_input_from_json(text, out);
    json_object_put(root);
    free(text);
    return ok;
}

rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err)
{
    char folder[FOLDER_SIZE], name[48];
    RP_TRY(find_place(key, folder, name, err));
    RP_TRY(run_folder_make(folder, 0755, err));
    char *text = plan_to_json(NULL, input);
    struct json_object *root = json_tokener_parse(text);
    json_object_object_add(root, "key", json_object_new_string(key));
    rp_status status =
        run_folder_write(folder, name, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), err);
    json_object_put(root);
    free(text);
    return status;
}

/* ---- a profile in the making ---- */

struct profile {
    const struct profile_options *options;
    const struct run_config *config;
    const struct table_config *table;
    struct plan_input *out;
    uint64_t batch;
    double items_per_step;
    int64_t began_ns, measure_ns;
    uint32_t n_runs; /* made so far */
    struct trial trial;
};

/* A host was lost: the profile goes on without it. False: no host is left for actors or for learners. */
static bool leave_out(struct profile *self)
{
    struct plan_input *out = self->out;
    uint32_t host = self->trial.lost, actors = 0, learners = 0;
    out->hosts[host].actors = out->hosts[host].learners = false;
    out->n_runs = 0; /* they were made with the host */
    self->trial.lost = TRIAL_NO_HOST;
    for (uint32_t i = 0; i < out->n_hosts; i++) {
        actors += out->hosts[i].actors;
        learners += out->hosts[i].learners;
    }
    if (actors == 0 || learners == 0)
        return false;
    trial_tell(&self->trial, "%s was lost: measuring goes on without it: %s", out->hosts[host].name,
               host_pool_at(self->options->hosts, host)->info->reason);
    if (self->options->progress) /* the next part has a line of its own */
        self->options->progress(self->options->context, self->trial.line);
    return true;
}

/* Starts a pair where the run would have it. */
static rp_status start_pair(struct profile *self, uint32_t actors, uint32_t learners, rp_error *err)
{
    uint32_t n = self->out->n_hosts, *at = need_alloc((size_t)n * 2 * sizeof *at);
    plan_place(self->out, actors, learners, at, at + n);
    rp_status status = trial_start(&self->trial, ROLE_LEARNER, at + n, n, err);
    if (status == RP_OK)
        status = trial_start(&self->trial, ROLE_ACTOR, at, n, err);
    free(at);
    return status;
}

static rp_status start_actor(struct profile *self, uint32_t host, rp_error *err)
{
    uint32_t n = self->out->n_hosts, *at = need_alloc(n * sizeof *at);
    at[host] = 1;
    rp_status status = trial_start(&self->trial, ROLE_ACTOR, at, n, err);
    free(at);
    return status;
}

/* ---- one process of each side ---- */

/* What the table must have counted. */
struct wanted {
    uint64_t inserts, samples;
};

static bool has_come(struct trial *trial, void *context)
{
    const struct wanted *wanted = context;
    return trial->seen.inserts >= wanted->inserts && trial->seen.samples >= wanted->samples;
}

static rp_status await_samples(struct profile *self, uint64_t more, int64_t limit_ns, rp_error *err)
{
    struct trial *trial = &self->trial;
    struct wanted wanted = {.samples = trial->seen.samples + more};
    rp_status status = trial_await(trial, has_come, &wanted, limit_ns, err);
    if (status != RP_DEADLINE_EXCEEDED)
        return status;
    struct why why;
    observer_why(trial->observer, NULL, &why);
    return err_set(err, status, "learners did not sample from '%s' within %d s. %s See %s/learner-*.log",
                   self->config->adder.table, (int)(limit_ns / NS_PER_S), why.text, trial->folder);
}

/* Fills in the memory of the broker with full tables. */
static void measure_broker(struct profile *self)
{
    const struct observation *seen = &self->trial.seen;
    double items = 0.0, each = seen->size > 0 ? (double)seen->broker_bytes / (double)seen->size : 0.0;
    if (seen->size > 0)
        items = (double)seen->max_size * (each + ITEM_BYTES);
    if (self->table->max_bytes > 0)
        items = fmin(items, (double)self->table->max_bytes * 1.25);
    self->out->broker_memory = (double)self->trial.base_memory + fmin(items, (double)self->config->broker.memory_limit);
}

/* share: the role's part of what the broker did. */
static void take_unit(const struct trial_measured *measured, enum role role, double rate, double share,
                      struct plan_unit *out)
{
    *out = (struct plan_unit){.rate = rate,
                              .cpu = measured->cpu[role],
                              .broker_cpu = measured->cpu[ROLE_BROKER] * share,
                              .memory = measured->memory[role]};
}

/* An actor on a host, beside a learner that runs: neither holds the other one back. */
static rp_status measure_actor(struct profile *self, uint32_t host, rp_error *err)
{
    struct trial *trial = &self->trial;
    struct trial_measured measured;
    bool hosts = self->out->n_hosts > 1;
    trial_tell(trial, "1 actor%s%s and 1 learner, without the limiter", hosts ? " on " : "",
               hosts ? self->out->hosts[host].name : "");
    trial_stop(trial, ROLE_ACTOR);
    if (trial->seen.inserts > 0) { /* what the actor before inserted is none of this one's */
        rp_status settled = trial_await(trial, NULL, NULL, SETTLE_NS, err);
        if (settled != RP_DEADLINE_EXCEEDED)
            return settled;
    }
    struct wanted wanted = {.inserts = trial->seen.inserts + 1};
    RP_TRY(start_actor(self, host, err));
    rp_status status = trial_await(trial, has_come, &wanted, FIRST_NS, err);
    if (status == RP_DEADLINE_EXCEEDED && trial->seen.policy == 0)
        return err_set(err, status, "the learner published no parameters within %d s: see %s/learner-0.log",
                       (int)(FIRST_NS / NS_PER_S), trial->folder);
    if (status == RP_DEADLINE_EXCEEDED)
        return err_set(err, status, "no actor inserted an item into '%s' within %d s: see %s/actor-0.log",
                       self->config->adder.table, (int)(FIRST_NS / NS_PER_S), trial->folder);
    RP_TRY(status);
    RP_TRY(await_samples(self, 2 * self->batch, FIRST_NS, err));
    RP_TRY(trial_measure(trial, self->measure_ns, &measured, err));
    double inserts = profile_lasting(self->items_per_step, measured.steps, measured.inserts);
    double share = measured.inserts / fmax(1.0, measured.inserts + measured.samples);
    take_unit(&measured, ROLE_ACTOR, inserts, share, &self->out->hosts[host].actor);
    take_unit(&measured, ROLE_LEARNER, measured.samples, 1.0 - share, &self->out->learner);
    measure_broker(self);
    return RP_OK;
}

/* A learner, with an actor on one host of each kind. */
static rp_status measure_units(struct profile *self, rp_error *err)
{
    struct plan_input *out = self->out;
    struct trial_options options = {.profile = self->options, .name = "units"};
    rp_status status = trial_open(&self->trial, &options, err);
    if (status == RP_OK)
        status = start_pair(self, 0, 1, err);
    for (uint32_t i = 0; status == RP_OK && i < out->n_hosts; i++)
        if (out->hosts[i].actors && !plan_example(out, i))
            status = measure_actor(self, i, err);
    trial_close(&self->trial);
    return status;
}

/* ---- pairs, with everything that a run has, under the real limiter ---- */

/* Keeps the limiter, but with fewer items to fill first and less room to run ahead, so that a second shows the lasting rate. */
static void shorten(const struct profile *self, const struct plan_pair *pair, struct trial_options *options)
{
    const struct limiter_config *limiter = &self->table->limiter;
    double rate = pair->actors * plan_actor_on(self->out, PLAN_HOME).rate,
           batch = (double)(self->batch * pair->learners);
    double least = ceil(fmax(2.0 * batch, FILL_S * rate));
    if (limiter->kind != LIMITER_RATIO && limiter->kind != LIMITER_MIN_SIZE)
        return;
    double cut = limiter->min_size > least ? limiter->min_size - least : 0.0;
    options->min_size = cut > 0 ? least : 0.0;
    if (limiter->kind == LIMITER_MIN_SIZE)
        return;
    /* For each shard as much as for a broker alone: with less room, more shards would look slower than they are. */
    double room = pair->shards * fmax(8.0 * batch, BUFFER_S * rate * limiter->samples_per_insert);
    if (limiter->error_buffer > room)
        options->buffer = fmax(room, 2.0 * fmax(1.0, limiter->samples_per_insert));
    bool bounds =
        limiter->error_buffer < 0 && fabs(limiter->min_diff) < LIMIT_IS_NONE && fabs(limiter->max_diff) < LIMIT_IS_NONE;
    options->shift = bounds ? -cut * limiter->samples_per_insert : 0.0;
}

static rp_status measure_pair(struct profile *self, struct plan_pair *pair, rp_error *err)
{
    struct trial *trial = &self->trial;
    struct trial_measured measured;
    char with[32] = "";
    if (pair->shards > 1)
        snprintf(with, sizeof with, " with %u shards", pair->shards);
    trial_tell(trial, "%u actor%s and %u learner%s together%s", pair->actors, pair->actors == 1 ? "" : "s",
               pair->learners, pair->learners == 1 ? "" : "s", with);
    RP_TRY(start_pair(self, pair->actors, pair->learners, err));
    if (self->config->evaluator.episodes > 0)
        RP_TRY(trial_start(trial, ROLE_EVALUATOR, &(uint32_t){1}, 1, err));
    RP_TRY(await_samples(self, 2 * pair->learners * self->batch, FIRST_NS, err));
    int64_t ns = self->measure_ns > LEAST_NS ? self->measure_ns : LEAST_NS;
    RP_TRY(trial_measure(trial, ns, &measured, err));
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

static rp_status run_pair(struct profile *self, struct plan_pair *pair, rp_error *err)
{
    char name[24];
    snprintf(name, sizeof name, "joint-%u", self->n_runs++);
    struct trial_options options = {.profile = self->options, .name = name, .shards = pair->shards, .limited = true};
    shorten(self, pair, &options);
    rp_status status = trial_open(&self->trial, &options, err);
    if (status == RP_OK)
        status = measure_pair(self, pair, err);
    trial_close(&self->trial);
    return status;
}

static bool in_time(const struct profile *self)
{
    return clock_ns() - self->began_ns < MOST_TIMES * self->measure_ns;
}

/* Pairs that are worth it; then more shards, where the broker's core thread holds the best pair back. If no plan can be made of the
 * measurements, plan_solve says so. */
static rp_status measure_pairs(struct profile *self, rp_error *err)
{
    struct plan_pair next;
    self->began_ns = clock_ns();
    while (((self->out->n_runs < LEAST_RUNS || in_time(self)) && plan_next(self->out, &next)) ||
           plan_next_shards(self->out, &next)) {
        struct plan_pair pair = next, again = next;
        RP_TRY(run_pair(self, &pair, err));
        /* A run from which other programs took processor time is repeated, and the faster one counts: others only slow
         * a run down. */
        if (pair.others > 0 && in_time(self)) {
            RP_TRY(run_pair(self, &again, err));
            pair = again.inserts > pair.inserts ? again : pair;
        }
        plan_add_run(self->out, &pair);
    }
    return RP_OK;
}

/* ---- the whole ---- */

/* Measures, again without a host that was lost meanwhile. */
static rp_status measure_without_lost(struct profile *self, rp_status (*part)(struct profile *, rp_error *),
                                      rp_error *err)
{
    rp_status status;
    do
        status = part(self, err);
    while (status != RP_OK && self->trial.lost != TRIAL_NO_HOST && leave_out(self));
    return status;
}

static rp_status measure(const struct profile_options *options, struct plan_input *out, rp_error *err)
{
    struct profile self = {.options = options,
                           .config = options->home.config,
                           .table = run_config_table(options->home.config),
                           .out = out,
                           .batch = (uint64_t)profile_batch(options->home.config),
                           .items_per_step = profile_items_per_step(options->home.config),
                           .measure_ns = options->home.config->plan.measure_ns};
    adopt_hosts(options, out);
    profile_fill(options->home.config, out);
    RP_TRY(measure_without_lost(&self, measure_units, err));
    adopt_hosts(options, out); /* with those that have come, or come back, meanwhile */
    profile_fill(options->home.config, out);
    return measure_without_lost(&self, measure_pairs, err);
}

/* Takes what the cache has for a configuration. */
static bool load(const struct profile_options *options, const struct run_config *config, struct plan_input *out)
{
    struct profile_options other = *options;
    other.home.config = config;
    char *machines = describe_machines(options), *key = profile_key(&other, machines);
    bool found = profile_load(key, out);
    free(key);
    free(machines);
    if (found) {
        adopt_hosts(options, out);
        profile_fill(options->home.config, out);
    }
    return found;
}

/* What was measured for auto counts also holds for fixed counts, unless these need a run of their own to say how many shards pay. */
static bool load_auto(const struct profile_options *options, struct plan_input *out)
{
    struct run_config config = *options->home.config;
    struct plan_pair next;
    config.actors.count = config.learners.count = RUN_AUTO;
    if (!load(options, &config, out))
        return false;
    if (!plan_next_shards(out, &next))
        return true;
    plan_input_free(out);
    *out = (struct plan_input){0};
    return false;
}

rp_status profile_measure(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err)
{
    rp_status status = RP_OK;
    *out = (struct plan_input){0};
    *from_cache = !options->fresh && (load(options, options->home.config, out) || load_auto(options, out));
    if (!*from_cache && options->cached)
        status = err_set(err, RP_NOT_FOUND, "nothing was measured yet for this configuration, build and machine");
    else if (!*from_cache)
        status = measure(options, out, err);
    /* If the cache cannot be written, the next run measures again; this run loses nothing. */
    if (status == RP_OK && !*from_cache) {
        char *machines = describe_machines(options), *key = profile_key(options, machines);
        profile_store(key, out, NULL);
        free(key);
        free(machines);
    }
    if (status != RP_OK)
        plan_input_free(out);
    return status;
}
