#include "agent/run/learner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/run/stop.h"
#include "proto/base/clock.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "replay/admin.h"
#include "replay/trace.h"

#define CALL_MS 10000
/* Within that time the stop flag is checked this often. */
#define PART_MS 500
/* The same for a delay, which may be longer than a user wants to wait for the end. */
#define NAP_NS (50 * NS_PER_MS)
/* Time limit for a look at the table. */
#define CHECK_MS 1000
/* Several learners: how long a learner waits for the gradients of the others before it goes on without them. */
static const int64_t round_ms = 2000;
/* Skipped items are logged this often at most. */
#define SKIPS_NS (10 * NS_PER_S)

struct learner {
    struct learner_options options;
    rp_sampler *sampler;
    rp_updater *updater;         /* NULL: no selector uses priorities */
    struct learner_group *group; /* NULL: this is the only learner */
    uint64_t starts;             /* of the group, that were published */
    struct variables variables;
    struct learner_stats stats;
    struct idle idle;
    bool has_learned;        /* some items fitted */
    uint64_t skipped;        /* since the start */
    int64_t skips_logged_ns; /* 0: never */
    struct log_limit voided;
};

/* Of the built-in selectors only these ignore priorities; a plug-in's selector may use them. */
static bool is_blind(const char *kind)
{
    return strcmp(kind, "uniform") == 0 || strcmp(kind, "fifo") == 0 || strcmp(kind, "lifo") == 0;
}

/* True if a selector of the sampled table uses priorities. */
static bool prioritized(const struct run_config *config)
{
    const struct table_config *table = run_config_table(config);
    return table && !(is_blind(table->sampler.kind) && is_blind(table->remover.kind));
}

static rp_status open_parts(struct learner *self, rp_error *err)
{
    const struct run_config *config = self->options.config;
    rp_sampler_options options = {.struct_size = sizeof options};
    options.batch_size = (uint32_t)self->options.agent->config.batch;
    options.in_flight = run_config_prefetch(config, self->options.agent->config.batch);
    options.on_demand = self->options.lockstep;
    options.fill = self->options.lockstep ? RP_FILL_WHOLE : RP_FILL_WAIT;
    options.beta = self->options.agent->config.importance_exponent;
    self->sampler = rp_sampler_new(self->options.client, config->adder.table, &options, err);
    if (!self->sampler)
        return RP_UNAVAILABLE;
    if (prioritized(config)) {
        self->updater = rp_updater_new(self->options.client, config->adder.table, NULL, err);
        if (!self->updater)
            return RP_UNAVAILABLE;
    }
    if (config->learners.count > 1) {
        struct group_options group = {.client = self->options.client,
                                      .agent = self->options.agent,
                                      .index = self->options.index,
                                      .round_ms = &round_ms,
                                      .stop = self->options.stop};
        self->group = group_new(&group, err);
        if (!self->group)
            return RP_UNAVAILABLE;
    }
    return RP_OK;
}

struct learner *learner_new(const struct learner_options *options, rp_error *err)
{
    struct learner *self = need_alloc(sizeof *self);
    self->options = *options;
    variables_init(&self->variables, options->client, options->agent);
    if (open_parts(self, err) != RP_OK)
        learner_destroy(&self);
    return self;
}

void learner_destroy(struct learner **self)
{
    if (!*self)
        return;
    group_destroy(&(*self)->group);
    if ((*self)->updater)
        rp_updater_destroy(&(*self)->updater, 1000, NULL);
    rp_sampler_destroy(&(*self)->sampler);
    variables_fini(&(*self)->variables);
    free(*self);
    *self = NULL;
}

/* ---- a batch as the algorithm sees it ---- */

/* A batch of n items of `length` steps, of which fields are read. */
struct fields {
    const rp_batch *batch;
    uint32_t n, length;
    rp_error *err;
};

/* Returns the field as an array of `count` numbers of the given type per step, or NULL with err set. */
static const void *field(const struct fields *self, const char *name, int32_t dtype, uint64_t count)
{
    uint32_t n = self->n, length = self->length;
    rp_error *err = self->err;
    const rp_field_view *view = rp_batch_find(self->batch, name);
    if (!view) {
        err_set(err, RP_FAILED_PRECONDITION, "items of the table have no field '%s', which the algorithm needs", name);
        return NULL;
    }
    uint64_t size = dtype_size(dtype), expected = (uint64_t)n * length * count * size;
    if (view->dtype != dtype || view->bytes != expected) {
        err_set(
            err, RP_FAILED_PRECONDITION,
            "field '%s' of the table's items has %llu %s values; this environment and algorithm need %llu %s values: "
            "was it filled by actors of another environment?",
            name, (unsigned long long)(n ? view->bytes / n / dtype_size(view->dtype) : 0), dtype_name(view->dtype),
            (unsigned long long)length * count, dtype_name(dtype));
        return NULL;
    }
    return view->data;
}

static rp_status read_length(const struct learner *self, const rp_batch *batch, struct agent_batch *out, rp_error *err)
{
    const struct adder_config *adder = &self->options.config->adder;
    const rp_field_view *view = rp_batch_find(batch, "observation");
    int64_t most = adder->kind == ADDER_EPISODE ? adder->max_length + 1 : adder->length;
    out->length = view && view->rank > 1 ? (uint32_t)view->shape[1] : 0;
    out->lengths = view ? view->lengths : NULL;
    if (view && (out->length == 0 || out->length > most))
        return err_set(err, RP_FAILED_PRECONDITION,
                       "sequences in table '%s' have %u steps; those of this run have 1 to %lld: was it filled by "
                       "actors of another one?",
                       adder->table, out->length, (long long)most);
    return RP_OK;
}

/* Points out, whose n is set, to the fields that the algorithm needs. */
static rp_status read_batch(const struct learner *self, const rp_batch *batch, struct agent_batch *out, rp_error *err)
{
    const struct agent *agent = self->options.agent;
    const rp_env_spec *spec = &agent->spec;
    bool sequences = agent->ops->data == AGENT_SEQUENCES;
    uint64_t count = env_observation_count(spec), numbers = spec->n_actions ? 1 : spec->action_size;
    int32_t action = spec->n_actions ? RP_DTYPE_INT32 : RP_DTYPE_FLOAT32;
    out->length = 1;
    if (sequences)
        RP_TRY(read_length(self, batch, out, err));
    const struct fields fields = {batch, out->n, out->length, err};
    bool ok = (out->observation = field(&fields, "observation", spec->observation_dtype, count)) &&
              (out->action = field(&fields, "action", action, numbers)) &&
              (out->reward = field(&fields, "reward", RP_DTYPE_FLOAT32, 1)) &&
              (out->discount = field(&fields, "discount", RP_DTYPE_FLOAT32, 1));
    if (ok && sequences)
        ok = (out->step_type = field(&fields, "step_type", RP_DTYPE_UINT8, 1));
    else if (ok)
        ok = (out->next_observation = field(&fields, "next_observation", spec->observation_dtype, count));
    if (ok && agent->ops->stores_log_prob)
        ok = (out->log_prob = field(&fields, "log_prob", RP_DTYPE_FLOAT32, 1));
    return ok ? RP_OK : RP_FAILED_PRECONDITION;
}

/* ---- figures ---- */

static void count_provenance(struct learner *self, const rp_batch_arrays *arrays)
{
    struct learner_stats *stats = &self->stats;
    bool versions = run_config_bounds_lag(self->options.config);
    double now = (double)(versions ? self->variables.version : self->options.agent->steps);
    for (uint32_t i = 0; i < arrays->n; i++) {
        double age = (double)arrays->age_ns[i] * 1e-9, stale = now - (double)arrays->policy[i];
        stale = stale > 0.0 ? stale : 0.0;
        stats->age_sum_s += age;
        stats->age_max_s = age > stats->age_max_s ? age : stats->age_max_s;
        stats->stale_sum += stale;
        stats->stale_max = stale > stats->stale_max ? stale : stats->stale_max;
        stats->weight_sum += (double)arrays->weight[i];
    }
    stats->batches++;
    stats->items += arrays->n;
}

/* Not every step has every scalar: TD3 does not update its policy in each. If one is not finite, the step's
 * gradient has counted as 0. */
static void count_scalars(struct learner *self, const struct agent_result *result)
{
    struct learner_stats *stats = &self->stats;
    uint32_t held;
    for (uint32_t i = 0; i < result->n_scalars; i++) {
        if (!isfinite(result->scalars[i].value) && log_allow(&self->voided, 1, clock_ns(), &held))
            log_line(LEVEL_WARN, "A0212", "the gradient of a learner step counts as 0", "not_finite=%s held_back=%u",
                     result->scalars[i].name, held);
        const char *name = result->scalars[i].name;
        uint32_t k = 0;
        while (k < stats->n_scalars && strcmp(stats->scalars[k].name, name) != 0)
            k++;
        if (k == AGENT_MAX_SCALARS)
            continue;
        if (k == stats->n_scalars) {
            stats->scalars[k] = (struct agent_scalar){.name = name};
            stats->n_scalars++;
        }
        stats->scalars[k].value += result->scalars[i].value;
        stats->scalar_counts[k]++;
    }
}

void learner_take_stats(struct learner *self, struct learner_stats *out)
{
    *out = self->stats;
    for (uint32_t i = 0; i < out->n_scalars; i++)
        out->scalars[i].value /= (double)out->scalar_counts[i];
    self->stats = (struct learner_stats){0};
}

bool learner_leads(const struct learner *self)
{
    return !self->group || group_info(self->group)->lead;
}

struct idle *learner_idle(struct learner *self)
{
    return &self->idle;
}

/* Counts the time since from_ns as a wait. */
static void waited(struct learner *self, enum idle_cause cause, int64_t from_ns)
{
    self->idle.ns[cause] += (uint64_t)(clock_ns() - from_ns);
}

/* ---- a step ---- */

/* Sends as many updates as there is room for; waits only if there is no room. */
static rp_status add_priorities(struct learner *self, const uint64_t *keys, const double *priorities, uint32_t n,
                                uint32_t *taken, rp_error *err)
{
    rp_status status = rp_updater_add(self->updater, keys, priorities, n, 0, taken, err);
    if (status != RP_DEADLINE_EXCEEDED || *taken > 0)
        return status;
    int64_t from = clock_ns();
    status = rp_updater_add(self->updater, keys, priorities, n, PART_MS, taken, err);
    waited(self, IDLE_UPDATES, from);
    return status;
}

static rp_status write_priorities(struct learner *self, const rp_batch_arrays *arrays,
                                  const struct agent_result *result, rp_error *err)
{
    if (!self->updater || !result->priority)
        return RP_OK;
    /* One item with a number that is not finite is no reason to end: it gets a priority with which it is hardly ever
     * picked again. */
    for (uint32_t i = 0; i < arrays->n; i++)
        if (!(result->priority[i] > ADDER_MIN_PRIORITY && isfinite(result->priority[i])))
            result->priority[i] = ADDER_MIN_PRIORITY;
    uint32_t done = 0;
    rp_status status = RP_OK;
    do {
        uint32_t taken = 0;
        status = add_priorities(self, arrays->key + done, result->priority + done, arrays->n - done, &taken, err);
        done += taken;
    } while (status == RP_DEADLINE_EXCEEDED && !is_stopped(self->options.stop));
    if (status == RP_OK && self->options.lockstep)
        status = rp_updater_flush(self->updater, CALL_MS, NULL, err);
    return status;
}

/* Simulates a longer gradient. Turns in one process follow steps, not time: there it would only be slow. */
static void delay(const struct learner *self)
{
    int64_t left = self->options.lockstep ? 0 : self->options.config->learners.delay_ns;
    int64_t end = left > 0 ? clock_ns() + left : 0;
    while (left > 0 && !is_stopped(self->options.stop)) {
        int64_t nap = left < NAP_NS ? left : NAP_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL); /* after a signal the flag is checked */
        left = end - clock_ns();
    }
}

static rp_status learn(struct learner *self, const struct agent_batch *batch, struct agent_result *result,
                       rp_error *err)
{
    struct agent *agent = self->options.agent;
    int64_t traced = rp_trace_begin(self->options.client);
    agent->ops->gradient(agent, batch, result);
    delay(self);
    rp_trace_end(self->options.client, "gradient", traced);
    if (!self->group) {
        agent->ops->apply(agent, result);
        return RP_OK;
    }
    int64_t from = clock_ns();
    rp_status status = group_mean(self->group, err);
    waited(self, IDLE_REDUCE, from);
    RP_TRY(status);
    agent->ops->apply(agent, result);
    from = clock_ns();
    status = group_applied(self->group, err);
    waited(self, IDLE_REDUCE, from);
    return status;
}

/* Skips n items that cannot be read: one writer with other fields must not end the run. Fails as long as no item has fitted: then
 * table, environment and algorithm do not belong together. keys: a prioritized table hardly picks them again; NULL: unknown. */
static rp_status skip(struct learner *self, const uint64_t *keys, uint32_t n, rp_error *err)
{
    int64_t now = clock_ns();
    self->skipped += n;
    self->stats.skipped += n;
    if (!self->has_learned && self->skipped >= (uint64_t)self->options.agent->config.batch)
        return RP_FAILED_PRECONDITION;
    if (self->skips_logged_ns == 0 || now - self->skips_logged_ns >= SKIPS_NS) {
        char why[512];
        self->skips_logged_ns = now;
        log_line(LEVEL_WARN, "A0211", "skips items that do not fit", "items=%llu why=%s",
                 (unsigned long long)self->skipped, log_quote(why, sizeof why, err->text));
    }
    struct agent_result result = {.priority = keys ? need_alloc(n * sizeof(double)) : NULL};
    rp_status status = write_priorities(self, &(rp_batch_arrays){.n = n, .key = keys}, &result, err);
    free(result.priority);
    return status;
}

static rp_status use_batch(struct learner *self, const rp_batch *batch, rp_error *err)
{
    struct agent *agent = self->options.agent;
    rp_batch_arrays arrays = {.struct_size = sizeof arrays};
    RP_TRY(rp_batch_get_arrays(batch, &arrays));
    struct agent_batch view = {.n = arrays.n};
    if (agent->config.importance_exponent > 0.0)
        view.weight = arrays.weight;
    if (read_batch(self, batch, &view, err) != RP_OK)
        return skip(self, arrays.key, arrays.n, err);
    self->has_learned = true;
    struct agent_result result = {0};
    rp_status status = learn(self, &view, &result, err);
    if (status == RP_FAILED_PRECONDITION && self->group) {
        log_line(LEVEL_WARN, "A0202", "out of step with the other learners", "why=\"%s\"", err->text);
        return RP_OK; /* the next step joins again */
    }
    RP_TRY(status);
    RP_TRY(write_priorities(self, &arrays, &result, err));
    count_provenance(self, &arrays);
    count_scalars(self, &result);
    if (agent->steps % (uint64_t)self->options.config->learners.publish_every == 0 && learner_leads(self))
        return self->options.lockstep || run_config_bounds_lag(self->options.config)
                   ? learner_publish(self, err)
                   : variables_offer(&self->variables, err);
    return RP_OK;
}

/* Joins the group. A learner that begins with its own state publishes it, because no other has. */
static rp_status join(struct learner *self, rp_error *err)
{
    int64_t from = clock_ns();
    rp_status status = group_join(self->group, err);
    waited(self, IDLE_REDUCE, from);
    RP_TRY(status);
    uint64_t starts = group_info(self->group)->starts;
    if (starts != self->starts)
        RP_TRY(learner_publish(self, err));
    self->starts = starts;
    return RP_OK;
}

/* Saves a snapshot if the step from `before` has passed a multiple of learners.snapshot_every. A learner that was set back to an
 * older state replaces the snapshots that it passes again; a failing disk is logged. */
static void take_snapshot(struct learner *self, uint64_t before)
{
    const struct run_config *config = self->options.config;
    const struct agent *agent = self->options.agent;
    uint64_t every = (uint64_t)config->learners.snapshot_every, steps = agent->steps;
    if (every == 0 || steps / every == before / every || !config->folder || !config->folder[0] || !learner_leads(self))
        return;
    char path[512], why[512];
    rp_error err = {0};
    snprintf(path, sizeof path, "%s/snapshots/%012llu.weights", config->folder, (unsigned long long)steps);
    io_make_parents(path, 0755);
    if (weights_write_file(path, agent->tensors, agent->n_tensors, &err) != RP_OK)
        log_line(LEVEL_ERROR, "A0210", "a snapshot of the learner could not be saved", "why=%s",
                 log_quote(why, sizeof why, err.text));
}

rp_status learner_step(struct learner *self, int64_t timeout_ms, rp_error *err)
{
    uint64_t before = self->options.agent->steps;
    if (self->group)
        RP_TRY(join(self, err));
    int64_t from = clock_ns();
    rp_batch *batch;
    rp_status status = rp_sampler_next(self->sampler, &batch, timeout_ms, err);
    waited(self, IDLE_SAMPLE, from);
    if (status == RP_RESOURCE_EXHAUSTED) { /* an item that is far too long makes its batch too large */
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL); /* or the broker has no place for the request */
        return skip(self, NULL, (uint32_t)self->options.agent->config.batch, err);
    }
    if (status != RP_OK)
        return status;
    int64_t traced = rp_trace_begin(self->options.client);
    status = use_batch(self, batch, err);
    rp_trace_end(self->options.client, "learner step", traced);
    rp_batch_release(&batch);
    if (status == RP_OK)
        take_snapshot(self, before);
    return status;
}

rp_status learner_check_loaded(const struct learner *self, rp_error *err)
{
    const struct run_config *config = self->options.config;
    const char *name = config->adder.table;
    rp_info *info = NULL;
    if (config->actors.count != 0 || rp_admin_info(self->options.client, name, 0, CHECK_MS, &info, NULL) != RP_OK)
        return RP_OK;
    const rp_info *table = rp_info_find(info, "tables", name);
    double min_size = rp_info_real(table, "limiter.min_size");
    rp_status status = RP_OK;
    if (rp_info_real(table, "size") < min_size)
        status = err_set(err, RP_FAILED_PRECONDITION,
                         "table '%s' holds %llu items, its limiter wants %g (min_size), and there are no actors "
                         "(actors.count is 0): was a checkpoint loaded (broker.folder)?",
                         name, (unsigned long long)rp_info_u64(table, "size"), min_size);
    rp_info_free(&info);
    return status;
}

rp_status learner_publish(struct learner *self, rp_error *err)
{
    int64_t from = clock_ns(), end_ns = from + CALL_MS * NS_PER_MS;
    rp_status status;
    do
        status = variables_publish(&self->variables, PART_MS, err);
    while ((status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE) && !is_stopped(self->options.stop) &&
           clock_ns() < end_ns);
    waited(self, IDLE_PARAMETERS, from);
    return status;
}
