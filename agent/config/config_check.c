/* What follows from several keys of a run: the fields and the memory of its items, and mistakes that are found before anything
 * starts: names that do not exist, parts that do not fit each other, and limiters with which actors and learners would wait for
 * each other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/config.h"
#include "agent/config/placeholder.h"
#include "agent/learn/sequence.h"
#include "broker/select/selector.h"
#include "broker/store/store.h"
#include "proto/base/dtype.h"
#include "proto/base/need.h"

/* Bytes of all sequences of a batch together. */
#define MOST_STEPS (INT64_C(1) << 24)
/* Batches in flight if the file does not say: enough that requests go out in bursts of eight, ... */
#define PREFETCH_MOST 16
/* ... but only this part of the limiter's width: otherwise the limiter would hold back batches in flight instead of
 * actors. */
#define PREFETCH_SHARE 0.4
/* A max_diff this large means "unlimited". */
#define NO_BOUND 1e17

/* ---- what the keys of a run say ---- */

const struct agent_ops *run_config_algorithm(const struct run_config *self)
{
    return agent_find(self->agent.algorithm, NULL);
}

uint32_t run_config_actors(const struct run_config *self)
{
    return self->actors.count > 0 ? (uint32_t)self->actors.count : 0;
}

uint32_t run_config_learners(const struct run_config *self)
{
    return self->learners.count > 0 ? (uint32_t)self->learners.count : 0;
}

const struct table_config *run_config_table(const struct run_config *self)
{
    const struct table_config *tables = self->broker.tables.data;
    for (uint32_t i = 0; i < self->broker.tables.count; i++)
        if (self->adder.table && tables[i].name && strcmp(tables[i].name, self->adder.table) == 0)
            return &tables[i];
    return NULL;
}

bool run_config_bounds_lag(const struct run_config *self)
{
    const struct table_config *table = run_config_table(self);
    return table && table->max_lag >= 0;
}

/* Writes the path of a key of the table that actors insert into. */
static void table_path(const struct run_config *config, const char *key, char *out, size_t size)
{
    size_t index = (size_t)(run_config_table(config) - (const struct table_config *)config->broker.tables.data);
    snprintf(out, size, "broker.tables[%zu].%s", index, key);
}

/* ---- the fields of a run's items ----
 *
 * They are the signature of the run's table: the broker rejects items with other fields, so that no actor's key can insert what
 * learners cannot read. */

/* Returns "[float32, 0, 4]", to be freed. */
static char *field_text(const struct field_type *field)
{
    char text[160];
    int used = snprintf(text, sizeof text, "[%s", dtype_name(field->dtype));
    for (uint32_t i = 0; i < field->rank; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, ", %u", field->shape[i]);
    return need_print("%s]", text);
}

/* True if items with this field fit the file's signature. A length of 0 there fits any number of steps. */
static bool fits_field(const rp_option *option, const struct field_type *field)
{
    struct field_type written;
    return config_field(option, &written) && dtype_check_field(field, false, &written, "", NULL) == RP_OK;
}

static void check_signature(const struct run_config *self, const struct table_config *table,
                            const struct field_type *fields, uint32_t n, struct schema_report *report)
{
    const rp_option *written = table->signature.data;
    char path[64];
    uint32_t i = 0;
    while (i < n && i < table->signature.count && fits_field(&written[i], &fields[i]))
        i++;
    table_path(self, "signature", path, sizeof path);
    if (i < n || i < table->signature.count)
        schema_problem(report, path,
                       "the items of environment and adder have %u fields, and field %u ('%s') does not fit: leave the "
                       "signature out, and it is made from them",
                       n, i, i < n ? fields[i].name : written[i].name);
}

void run_config_prescribe(struct run_config *self, bool again, struct schema_report *report)
{
    struct table_config *table = (struct table_config *)(uintptr_t)run_config_table(self);
    const struct agent_ops *ops = run_config_algorithm(self);
    struct field_type fields[ADDER_MAX_FIELDS];
    struct env env;
    if (!table || self->actors.count == 0 || self->actors.command.count > 0 || !ops ||
        env_open(&env, &self->environment, NULL) != RP_OK)
        return;
    const struct adder_options options = {
        .config = &self->adder, .spec = &env.spec, .with_log_prob = ops->stores_log_prob};
    uint32_t n = adder_fields(&options, fields, NULL);
    env_close(&env);
    if (n == 0)
        return;
    if (table->signature.count > 0 && !again) {
        check_signature(self, table, fields, n, report);
        return;
    }
    rp_option *signature = table->signature.data;
    for (uint32_t i = 0; i < table->signature.count; i++) {
        free((char *)signature[i].name);
        free((char *)signature[i].value);
    }
    signature = need_resize(signature, n, sizeof *signature);
    for (uint32_t i = 0; i < n; i++)
        signature[i] = (rp_option){need_text(fields[i].name), field_text(&fields[i])};
    table->signature = (struct schema_list){signature, n}; /* freed with the configuration */
}

/* ---- memory of full tables, where the run knows more than the tables' signatures do ---- */

/* The slab heap's classes. */
#define GRAIN 16.0

/* Rows that each item adds to the stream, because items share the others; and rows that an item spans. */
static void adder_rows(const struct adder_config *adder, double *added, double *spanned)
{
    switch (adder->kind) {
    case ADDER_SEQUENCE:
        *added = (double)(adder->period < adder->length ? adder->period : adder->length);
        *spanned = (double)adder->length;
        break;
    case ADDER_EPISODE:
        *added = *spanned = (double)(adder->max_length + 1);
        break;
    default:
        *added = 1.0;
        *spanned = (double)(adder->n_step + 1);
        break;
    }
}

/* Bytes of an item of this run's own adder: its part of the chunks, with their headers, and its list of chunks. */
static double adder_item_bytes(const struct run_config *self, const rp_env_spec *spec)
{
    const struct adder_config *adder = &self->adder;
    const struct agent_ops *ops = run_config_algorithm(self);
    double added, spanned, length = (double)(adder->chunk_length > 0 ? adder->chunk_length : 1);
    adder_rows(adder, &added, &spanned);
    bool sequence = adder->kind != ADDER_TRANSITION, log_prob = sequence && ops && ops->stores_log_prob;
    double row = (double)(env_observation_bytes(spec) + env_action_bytes(spec) + 2 * sizeof(float) +
                          (sequence ? sizeof(uint8_t) : 0) + (log_prob ? sizeof(float) : 0));
    uint32_t columns = 4u + sequence + log_prob;
    double chunk = (double)(sizeof(struct chunk) + chunk_table_bytes(columns)) + length * row;
    double chunks = ceil(spanned / length) + (length > 1.0 ? 1.0 : 0.0);
    return ceil(chunk / GRAIN) * GRAIN * added / length +
           (chunks > 1.0 ? (double)store_block_bytes((uint64_t)chunks * sizeof(void *)) : 0.0);
}

static double item_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec)
{
    if (spec && self->actors.command.count == 0 && table == run_config_table(self))
        return adder_item_bytes(self, spec);
    return config_item_bytes(table);
}

double run_config_table_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec)
{
    return config_table_bytes(table, item_bytes(self, table, spec));
}

/* Reports tables that cannot become as large as configured. */
static void check_table_memory(const struct run_config *self, const rp_env_spec *spec, struct schema_report *report)
{
    const struct table_config *tables = self->broker.tables.data;
    uint32_t n = self->broker.tables.count;
    double *bytes = need_alloc(n * sizeof *bytes);
    for (uint32_t i = 0; i < n; i++)
        bytes[i] = item_bytes(self, &tables[i], spec);
    config_check_memory(&self->broker, bytes, "broker.", report);
    free(bytes);
}

/* ---- shards: what the agent needs of each of them, and how many the tables allow ---- */

/* Each shard has its part of the limiter's room, and gives whole batches. With less than a batch on either side the ratio would swing
 * between the bounds; the broker itself demands room for the samples of one insert. */
static void check_room(const struct run_config *self, int64_t batch, struct schema_report *report)
{
    const struct table_config *table = run_config_table(self);
    if (batch <= 0 || !table || table->limiter.kind != LIMITER_RATIO)
        return;
    const struct limiter_config *limiter = &table->limiter;
    uint32_t shards = config_shards(&self->broker);
    double spi = limiter->samples_per_insert, width = limiter->max_diff - limiter->min_diff;
    double least = shards * fmax((double)batch, isfinite(spi) ? spi : 0.0);
    char path[64], over[40] = "";
    if (shards > 1)
        snprintf(over, sizeof over, " for each of %u shards", shards);
    table_path(self, limiter->error_buffer >= 0 ? "limiter.error_buffer" : "limiter", path, sizeof path);
    if (limiter->error_buffer >= 0 && limiter->error_buffer < (double)batch * shards)
        schema_problem(
            report, path,
            "%g is below one batch of %lld (agent.batch)%s: actors and learners would wait for each other at "
            "every batch; write at least %g",
            limiter->error_buffer, (long long)batch, over, least);
    else if (limiter->error_buffer < 0 && width < 2.0 * (double)batch * shards)
        schema_problem(report, path,
                       "max_diff less min_diff is %g, below two batches of %lld (agent.batch)%s: actors and learners "
                       "would wait for each other at every batch; let them be %g apart",
                       width, (long long)batch, over, 2.0 * least);
}

/* Over shards, one of several learners may hold what the others lack. */
static bool is_divided_lag(const struct run_config *self, const struct table_config *table)
{
    int64_t most = self->learners.count < 0 ? self->plan.max_learners : self->learners.count;
    return table->limiter.kind == LIMITER_LAG && config_shards(&self->broker) > 1 && most > 1;
}

/* True if nothing speaks against this many shards. */
static bool allows_shards(const struct run_config *self, int64_t batch, uint32_t shards, char **names)
{
    struct run_config config = *self;
    struct schema_report *report = schema_report_new();
    config.broker.shards = (struct schema_list){names, shards};
    config.broker.shard = -1;
    config_check_shards(&config.broker, report);
    check_room(&config, batch, report);
    const struct table_config *table = run_config_table(&config);
    bool ok = schema_report_count(report) == 0 && !(table && is_divided_lag(&config, table));
    schema_report_destroy(&report);
    return ok;
}

uint32_t run_config_most_shards(const struct run_config *self, int64_t batch)
{
    static char none[] = "";
    char *names[CONFIG_MAX_SHARDS];
    uint32_t most = 1;
    for (uint32_t i = 0; i < CONFIG_MAX_SHARDS; i++)
        names[i] = none;
    while (2 * most <= CONFIG_MAX_SHARDS && allows_shards(self, batch, 2 * most, names))
        most *= 2;
    return most;
}

void run_config_set_shards(struct run_config *self, uint32_t shards)
{
    struct schema_list *list = &self->broker.shards;
    char **names = list->data;
    for (uint32_t i = 0; i < list->count; i++)
        free(names[i]);
    names = need_resize(names, shards, sizeof *names);
    for (uint32_t i = 0; i < shards; i++)
        names[i] = need_text("");
    *list = (struct schema_list){names, shards};
}

/* ---- runs of which one side is off ----
 *
 * Without actors, learners learn from what the broker loads; without learners, actors
 * fill a table for later. In both cases some limiters would make the other side wait for ever, and some stop
 * conditions would never be met. */

static bool is_queue(const struct limiter_config *limiter)
{
    return limiter->kind == LIMITER_QUEUE || limiter->kind == LIMITER_STACK;
}

/* With one side alone, a limiter that couples both sides eventually stops it. inserts: there are only actors. */
static void check_coupling(const struct run_config *config, const struct table_config *table, bool inserts,
                           struct schema_report *report)
{
    const struct limiter_config *limiter = &table->limiter;
    char path[64];
    bool bound = inserts ? limiter->max_diff < NO_BOUND : limiter->min_diff > -NO_BOUND;
    bool held = limiter->kind == LIMITER_RATIO && (limiter->error_buffer >= 0 || bound);
    table_path(config, "limiter", path, sizeof path);
    if (held || is_queue(limiter) || (inserts && limiter->kind == LIMITER_LAG)) /* inserts wait for learners */
        schema_problem(report, path, "with a %s limiter %s: they would wait for ever; write kind: min_size",
                       limiter_kind_name(limiter->kind),
                       inserts ? "actors insert as often as learners sample, and learners.count is 0"
                               : "learners sample as often as actors insert, and actors.count is 0");
}

/* Without actors the table must be loaded. */
static void check_loaded(const struct run_config *config, struct schema_report *report)
{
    const char *load = config->broker.checkpoint_load ? config->broker.checkpoint_load : "";
    if (!config_folder(&config->broker))
        schema_problem(report, "actors.count",
                       "is 0, so no actor fills table '%s': write broker.folder, the folder of a checkpoint to load",
                       config->adder.table ? config->adder.table : "");
    else if (strcmp(load, "none") == 0)
        schema_problem(report, "broker.checkpoint.load",
                       "is none, and actors.count is 0, so no actor fills table '%s': write newest",
                       config->adder.table ? config->adder.table : "");
}

static void check_learners_alone(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    check_loaded(config, report);
    if (table)
        check_coupling(config, table, false, report);
    if (table && table->max_times_sampled > 0) {
        char path[64];
        table_path(config, "max_times_sampled", path, sizeof path);
        schema_problem(report, path,
                       "items leave after %lld samples, and no actor inserts others (actors.count is 0): the table "
                       "would run empty; write 0",
                       (long long)table->max_times_sampled);
    }
    if (config->stop.steps > 0)
        schema_problem(report, "stop.steps",
                       "are taken by actors, and actors.count is 0: this end never comes; write stop.learner_steps "
                       "or stop.time");
    if (config->learners.count < 0)
        schema_problem(report, "learners.count",
                       "auto weighs learners against actors, and actors.count is 0: write a number");
}

static void check_actors_alone(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    if (config->actors.command.count == 0 && !config->actors.weights[0])
        schema_problem(report, "learners.count",
                       "is 0, so actors have no parameters: write actors.weights, the saved state "
                       "of a learner such as runs/latest/learner.weights");
    if (table)
        check_coupling(config, table, true, report);
    if (config->stop.learner_steps > 0)
        schema_problem(report, "stop.learner_steps",
                       "are made by learners, and learners.count is 0: this end never comes; write stop.steps or "
                       "stop.time");
    if (!(isinf(config->stop.value) && config->stop.value > 0))
        schema_problem(report, "stop.value",
                       "is what a learner's parameters give, and learners.count is 0: this end never comes; write "
                       "stop.steps or stop.time");
    if (config->actors.count < 0)
        schema_problem(report, "actors.count",
                       "auto weighs actors against learners, and learners.count is 0: write a number");
}

static void check_sides(const struct run_config *self, struct schema_report *report)
{
    if (self->actors.count == 0 && self->learners.count == 0)
        schema_problem(report, "learners.count",
                       "no actor runs (actors.count is 0) and no learner: nothing would happen");
    else if (self->actors.count == 0)
        check_learners_alone(self, report);
    else if (self->learners.count == 0)
        check_actors_alone(self, report);
}

/* A user's own programs may replace ours: rules about our programs do not bind them. */
static bool our_actors(const struct run_config *config)
{
    return config->actors.count != 0 && config->actors.command.count == 0;
}

static bool our_learners(const struct run_config *config)
{
    return config->learners.count != 0 && config->learners.command.count == 0;
}

bool run_config_needs_ours(const struct run_config *self)
{
    bool evaluates = self->evaluator.episodes > 0 && self->evaluator.command.count == 0;
    return our_actors(self) || our_learners(self) || evaluates;
}

/* Items in a learner step. 0: only the user's learner knows. */
static int64_t batch_of(const struct run_config *config)
{
    const struct agent_ops *ops = run_config_algorithm(config);
    return config->agent.batch > 0 || !ops || !our_learners(config) ? config->agent.batch : ops->defaults->batch;
}

/* ---- names, and parts that must fit each other ---- */

static void check_source(const struct env_config *config, struct schema_report *report)
{
    const char *colon = strchr(config->python, ':');
    if (config->plugin && config->plugin[0] && env_is_python(config))
        schema_problem(report, "environment.plugin",
                       "is a shared object with C environments, and environment.name is Python: leave one of them out");
    if (strncmp(config->name, "python:", 7) == 0 &&
        (!colon || colon == config->python || !colon[1] || strchr(colon + 1, ':')))
        schema_problem(
            report, "environment.name",
            "'%s' is not python:MODULE:CALLABLE: write python:my_env:make for the function make in my_env.py",
            config->name);
    if (!env_is_python(config) && config->spec.count > 0)
        schema_problem(report, "environment.spec",
                       "describes an environment in Python, and this one is C: leave it out");
}

/* Creates the environment and the agent as a trial: each of them reports its own mistakes. False: there is no such
 * environment, and so no spec. */
static bool check_agent(const struct run_config *config, rp_env_spec *spec, struct schema_report *report)
{
    rp_error err = {0};
    struct env env;
    if (env_is_python(&config->environment) && config->environment.spec.count == 0)
        return false; /* not described yet */
    if (env_open(&env, &config->environment, &err) != RP_OK) {
        bool name = err.status == RP_NOT_FOUND;
        bool plugin = !name && config->environment.plugin && config->environment.plugin[0];
        schema_problem(report,
                       name                                  ? "environment.name"
                       : plugin                              ? "environment.plugin"
                       : env_is_python(&config->environment) ? "environment.spec"
                                                             : "environment",
                       "%s", err.text);
        return false;
    }
    const struct agent_ops *ops = run_config_algorithm(config);
    *spec = env.spec;
    if (ops) {
        bool suits = env.spec.n_actions > 0 ? ops->discrete : ops->continuous;
        struct agent *agent = agent_new(&config->agent, env_name(&config->environment), &env.spec, 1, &err);
        if (!agent)
            schema_problem(report, suits ? "agent" : "agent.algorithm", "%s", err.text);
        agent_destroy(&agent);
    }
    env_close(&env);
    return true;
}

static void check_algorithm(const struct run_config *config, struct schema_report *report)
{
    rp_error err = {0};
    if (!agent_find(config->agent.algorithm, &err))
        schema_problem(report, "agent.algorithm", "%s", err.text);
}

/* Checks that our learner can use the items. */
static void check_items(const struct run_config *config, struct schema_report *report)
{
    const struct adder_config *adder = &config->adder;
    const struct agent_ops *ops = run_config_algorithm(config);
    if (!ops || !our_learners(config))
        return;
    if (config->agent.batch > CONFIG_MAX_BATCH)
        schema_problem(report, "agent.batch", "a broker gives at most %u items in one sample: write at most %u",
                       CONFIG_MAX_BATCH, CONFIG_MAX_BATCH);
    if (ops->data == AGENT_TRANSITIONS && adder->kind != ADDER_TRANSITION)
        schema_problem(report, "adder.kind", "%s learns from transitions: write kind: transition", ops->name);
    if (ops->data == AGENT_SEQUENCES && adder->kind == ADDER_TRANSITION)
        schema_problem(report, "adder.kind", "%s learns from sequences: write kind: sequence", ops->name);
    int64_t steps = adder->kind == ADDER_EPISODE ? adder->max_length + 1 : adder->length, batch = batch_of(config);
    if (ops->data == AGENT_SEQUENCES && adder->kind != ADDER_TRANSITION && batch > MOST_STEPS / steps)
        schema_problem(report, "agent.batch",
                       "%lld sequences of up to %lld steps are too much for one learner step: write at most %lld",
                       (long long)batch, (long long)steps, (long long)(MOST_STEPS / steps));
}

static void check_adder(const struct run_config *config, struct schema_report *report)
{
    const struct adder_config *adder = &config->adder;
    int64_t trained = adder->length - adder->burn_in;
    if (adder->kind == ADDER_SEQUENCE && adder->length < 2)
        schema_problem(report, "adder.length", "a sequence of %lld steps has nothing to learn from: write at least 2",
                       (long long)adder->length);
    else if (adder->kind == ADDER_SEQUENCE && adder->length > SEQUENCE_MAX_LENGTH)
        schema_problem(report, "adder.length",
                       "a sequence of %lld steps is longer than an item may be: write at most %d",
                       (long long)adder->length, SEQUENCE_MAX_LENGTH);
    else if (adder->kind == ADDER_SEQUENCE && trained < 1)
        schema_problem(report, "adder.burn_in",
                       "%lld leaves nothing to train on of a length of %lld: write at most %lld",
                       (long long)adder->burn_in, (long long)adder->length, (long long)adder->length - 1);
    else if (adder->kind == ADDER_SEQUENCE && adder->period > trained)
        schema_problem(
            report, "adder.period",
            "%lld is more than length - burn_in, %lld: no item would train on the steps in between; write at "
            "most %lld",
            (long long)adder->period, (long long)trained, (long long)trained);
    if (adder->actor_priorities && adder->kind != ADDER_TRANSITION)
        schema_problem(report, "adder.actor_priorities", "are those of transitions: leave them out with this kind");
}

/* ---- tables with which actors and learners would wait for each other ---- */

static void check_queue(const struct table_config *table, int64_t batch, const char *path, struct schema_report *report)
{
    double size = (double)table->max_size;
    if (batch > 0 && size <= (double)(batch + 1))
        schema_problem(report, path,
                       "a %s of %.0f items is not larger than a batch of %lld (agent.batch) and one more: write a "
                       "max_size of at least %lld",
                       limiter_kind_name((enum limiter_kind)table->limiter.kind), size, (long long)batch,
                       (long long)batch + 2);
}

/* A version pays for `batch` inserts. If our learner takes more items before it publishes, it ends up waiting for items, and the
 * actors for a version. */
static void check_lag(const struct run_config *config, const struct table_config *table, int64_t batch,
                      const char *path, struct schema_report *report)
{
    double taken = (double)(batch * config->learners.publish_every) / (double)table->max_times_sampled;
    if (our_learners(config) && batch > 0 && table->max_times_sampled > 0 && table->limiter.batch < taken)
        schema_problem(
            report, path,
            "batch is %.0f, and learners take %.0f items between two versions (agent.batch times "
            "learners.publish_every, each item %lld times): actors and learners would end up waiting for each "
            "other; write batch: %.0f",
            table->limiter.batch, ceil(taken), (long long)table->max_times_sampled, ceil(taken));
    if (is_divided_lag(config, table))
        schema_problem(
            report, path,
            "over shards, a learner could hold items that another one's batch lacks, while both wait for the "
            "next version: write learners: {count: 1}, or broker: {shards: 1}");
}

/* Items that are evicted before they were sampled as often as the limiter wants take their part of the samples with
 * them. Sooner or later inserts wait for samples, and samples for items. Items that never leave a queue are read for
 * ever. */
static void check_times_sampled(const struct table_config *table, uint32_t index, struct schema_report *report)
{
    const struct limiter_config *limiter = &table->limiter;
    char path[64];
    snprintf(path, sizeof path, "broker.tables[%u].max_times_sampled", index);
    bool held = limiter->error_buffer >= 0 || limiter->max_diff < NO_BOUND;
    const char *sampler = table->sampler.kind ? table->sampler.kind : "";
    bool in_order = strcmp(sampler, "fifo") == 0 || strcmp(sampler, "lifo") == 0;
    if (limiter->kind == LIMITER_RATIO && held && table->max_times_sampled > 0 &&
        (double)table->max_times_sampled < limiter->samples_per_insert)
        schema_problem(report, path,
                       "an item leaves after %lld samples, but the limiter wants %g for each insert: inserts would end "
                       "up waiting for samples, and samples for items; write at least %.0f, or 0",
                       (long long)table->max_times_sampled, limiter->samples_per_insert,
                       ceil(limiter->samples_per_insert));
    if (is_queue(limiter) && table->max_times_sampled == 0 && in_order)
        schema_problem(report, path,
                       "is 0, so items of this %s never leave, and a %s sampler would give the same one again and "
                       "again: write 1",
                       limiter_kind_name((enum limiter_kind)limiter->kind), sampler);
}

/* Our learners update only the table that they sample; algorithms that learn from sequences update none. */
static void check_updates(const struct run_config *config, const struct table_config *table, uint32_t index,
                          struct schema_report *report)
{
    const char *kind = table->sampler.kind ? table->sampler.kind : "";
    char path[64];
    const struct table_config *sampled = run_config_table(config);
    const struct agent_ops *ops = run_config_algorithm(config);
    if (config->actors.command.count > 0 || !our_learners(config) || !sampled || strcmp(kind, "prioritized") != 0)
        return;
    snprintf(path, sizeof path, "broker.tables[%u].sampler", index);
    if (table == sampled && ops && ops->data == AGENT_SEQUENCES)
        schema_problem(report, path,
                       "no learner updates the priorities of table '%s': %s gives none; write another sampler",
                       table->name ? table->name : "", ops->name);
    if (table == sampled)
        return;
    schema_problem(
        report, path,
        "no learner updates the priorities of table '%s': learners sample and update '%s' (adder.table) alone; "
        "write another sampler, or name this table in adder.table",
        table->name ? table->name : "", config->adder.table ? config->adder.table : "");
}

static void check_sampler(const struct run_config *config, const struct table_config *table,
                          struct schema_report *report)
{
    const char *kind = table->sampler.kind ? table->sampler.kind : "";
    if (our_learners(config) && config->agent.importance_exponent > 0 && strcmp(kind, "prioritized") != 0 &&
        selector_builtin(kind))
        schema_problem(report, "agent.importance_exponent",
                       "importance weights make up for prioritized sampling, and the sampler of table '%s' is %s: "
                       "write 0, or a prioritized sampler",
                       table->name, kind);
}

static void check_table(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    if (!table) {
        const char *names[64];
        const struct table_config *tables = config->broker.tables.data;
        uint32_t n = 0;
        for (; n < config->broker.tables.count && n < 64; n++)
            names[n] = tables[n].name ? tables[n].name : "";
        const char *near = schema_nearest(config->adder.table ? config->adder.table : "", names, n);
        if (near)
            schema_problem(report, "adder.table", "there is no table '%s' in broker.tables (did you mean '%s'?)",
                           config->adder.table, near);
        else if (n > 0)
            schema_problem(report, "adder.table", "there is no table '%s' in broker.tables", config->adder.table);
        return;
    }
    char path[64];
    int64_t batch = batch_of(config);
    table_path(config, "limiter", path, sizeof path);
    if (is_queue(&table->limiter))
        check_queue(table, batch, path, report);
    if (table->limiter.kind == LIMITER_LAG)
        check_lag(config, table, batch, path, report);
    check_sampler(config, table, report);
}

static void check_tables(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *tables = config->broker.tables.data;
    check_table(config, report);
    for (uint32_t i = 0; i < config->broker.tables.count; i++) {
        check_times_sampled(&tables[i], i, report);
        check_updates(config, &tables[i], i, report);
    }
}

/* ---- ends that never come, and plans without an aim ---- */

double run_config_ratio(const struct run_config *self)
{
    const struct table_config *table = run_config_table(self);
    double times = table && table->max_times_sampled > 0 ? (double)table->max_times_sampled : 0.0;
    if (!table)
        return 0.0;
    switch (table->limiter.kind) {
    case LIMITER_RATIO:
        return table->limiter.samples_per_insert;
    case LIMITER_QUEUE:
    case LIMITER_STACK:
    case LIMITER_LAG:
        return times > 0 ? times : 1.0;
    default:
        return times;
    }
}

/* How far samples may run ahead of inserts and behind them, in samples. */
static double limiter_width(const struct limiter_config *limiter)
{
    switch (limiter->kind) {
    case LIMITER_RATIO:
        return limiter->error_buffer >= 0 ? 2.0 * limiter->error_buffer : limiter->max_diff - limiter->min_diff;
    case LIMITER_QUEUE:
    case LIMITER_STACK:
    case LIMITER_LAG:
        return 0.0; /* an item that is taken out early is old when it is used */
    default:
        return INFINITY;
    }
}

uint32_t run_config_prefetch(const struct run_config *self, int64_t batch)
{
    const struct table_config *table = run_config_table(self);
    if (self->learners.prefetch > 0)
        return (uint32_t)self->learners.prefetch;
    uint32_t learners = run_config_learners(self);
    double samples = (table ? limiter_width(&table->limiter) : INFINITY) / (learners > 1 ? (double)learners : 1.0);
    double batches = floor(samples * PREFETCH_SHARE / (double)(batch > 0 ? batch : 1));
    return batches >= PREFETCH_MOST ? PREFETCH_MOST : batches > 1.0 ? (uint32_t)batches : 1;
}

static void check_plan(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    bool actors = config->actors.count < 0, learners = config->learners.count < 0;
    if (!table || config->actors.count == 0 || config->learners.count == 0)
        return;
    if ((actors || learners) && run_config_ratio(config) <= 0)
        schema_problem(
            report, actors ? "actors.count" : "learners.count",
            "auto needs to know how many samples there should be per insert, and the limiter of table '%s' "
            "(%s) does not say: write limiter: {kind: sample_to_insert_ratio}, or numbers for actors.count and "
            "learners.count",
            table->name, limiter_kind_name((enum limiter_kind)table->limiter.kind));
}

static void check_stop(const struct run_config *config, struct schema_report *report)
{
    const struct stop_section *stop = &config->stop;
    if (isinf(stop->value) && stop->value > 0)
        return;
    if (config->evaluator.episodes == 0)
        schema_problem(
            report, "stop.value",
            "is the mean return of an evaluation, and evaluator.episodes is 0: nothing would measure it; write "
            "some episodes");
    else if (config->evaluator.every == 0)
        schema_problem(report, "stop.value",
                       "is the mean return of an evaluation, and there is one only at the end (evaluator.every is 0): "
                       "write how many steps lie between two, such as evaluator.every: 2500");
}

void run_config_check(struct run_config *config, struct schema_report *report)
{
    schema_report_within(report, "broker");
    config_derive(&config->broker, report);
    schema_report_within(report, NULL);
    check_room(config, batch_of(config), report); /* first: it says more than the broker's own check of shards */
    schema_report_within(report, "broker");
    broker_schema.check(&config->broker, report);
    schema_report_within(report, NULL);
    rp_env_spec spec;
    bool known = false;
    check_source(&config->environment, report);
    if (run_config_needs_ours(config)) {
        check_algorithm(config, report);
        known = check_agent(config, &spec, report);
    }
    placeholder_check(&config->actors.command, "actors.command", report);
    placeholder_check(&config->learners.command, "learners.command", report);
    placeholder_check(&config->evaluator.command, "evaluator.command", report);
    check_items(config, report);
    if (our_actors(config))
        check_adder(config, report);
    check_tables(config, report);
    check_plan(config, report);
    check_stop(config, report);
    check_sides(config, report);
    run_config_check_hosts(config, report);
    run_config_check_slurm(config, report);
    check_table_memory(config, known ? &spec : NULL, report);
}
