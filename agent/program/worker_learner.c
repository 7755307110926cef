/* A learner in a process of its own. */
#include <stdio.h>
#include <unistd.h>

#include "agent/log/log_file.h"
#include "agent/program/worker_impl.h"
#include "agent/run/learner.h"
#include "agent/run/snapshots.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "replay/params.h"

#define STEP_MS 500
/* Time limit for a look at the counters, in case the broker is away. */
#define COUNT_MS 1000
/* After this long without a batch the reason is logged. */
#define LOG_WAIT_NS (10 * NS_PER_S)
/* All environment steps are taken and nothing could be sampled for this long: there is nothing more to come. */
#define LAST_WAIT_NS (2 * NS_PER_S)

struct learner_work {
    struct worker worker;
    struct learner *learner;
    char state_path[512]; /* empty: not saved */
    struct snapshots snapshots;
    int64_t next_save_ns, reported_ns;
    struct idle reported_idle;
    uint64_t environment_steps;
    uint64_t broker;     /* instance of the broker that has this learner's parameters; 0: none */
    uint64_t counted_at; /* instance of the broker whose count of environment steps is complete; 0: none yet */
    uint64_t most_steps; /* the largest count of environment steps so far */
};

static rp_status save(struct learner_work *self, rp_error *err)
{
    if (!self->state_path[0] || !learner_leads(self->learner))
        return RP_OK;
    return learner_save(self->learner, self->state_path, err);
}

/* Only the disk has failed: the run goes on. */
static void save_or_say(struct learner_work *self)
{
    rp_error err = {0};
    if (save(self, &err) != RP_OK) {
        char why[512];
        log_line(LEVEL_ERROR, "A0203", "the learner's state could not be saved", "why=%s",
                 log_quote(why, sizeof why, err.text));
    }
}

/* The counters of a restarted broker begin at 0, and exploration and stop.steps depend on them: the leading learner
 * restores the earlier counts. */
static void put_back_steps(struct learner_work *self)
{
    rp_client *client = self->worker.client;
    rp_client_info info = {.struct_size = sizeof info};
    int64_t total = 0;
    if (rp_client_get_info(client, &info, NULL) != RP_OK || info.state != RP_CLIENT_CONNECTED ||
        info.broker == self->counted_at || rp_counter_read(client, COUNTER_STEPS, COUNT_MS, &total, NULL) != RP_OK)
        return;
    if (self->counted_at != 0 && (uint64_t)total < self->most_steps) {
        if (!learner_leads(self->learner) ||
            rp_counter_add(client, COUNTER_STEPS, (int64_t)self->most_steps, COUNT_MS, NULL, NULL) != RP_OK)
            return;
        log_line(LEVEL_INFO, "A0207", "restored the count of environment steps at a new broker", "steps=%llu",
                 (unsigned long long)self->most_steps);
    }
    self->counted_at = info.broker;
}

static void exchange_counts(struct learner_work *self)
{
    rp_client *client = self->worker.client;
    put_back_steps(self);
    int64_t steps = (int64_t)self->worker.agent->steps, counted = 0, total = 0;
    /* The learner that led before may have restored some of them. */
    if (learner_leads(self->learner) &&
        (rp_counter_read(client, COUNTER_LEARNER_STEPS, COUNT_MS, &counted, NULL) != RP_OK ||
         (steps > counted &&
          rp_counter_add(client, COUNTER_LEARNER_STEPS, steps - counted, COUNT_MS, NULL, NULL) != RP_OK)))
        return;
    if (rp_counter_read(client, COUNTER_STEPS, COUNT_MS, &total, NULL) == RP_OK)
        self->environment_steps = worker_steps(&self->worker, total);
    if (self->environment_steps > self->most_steps)
        self->most_steps = self->environment_steps;
}

static void count_steps(struct learner_work *self)
{
    int64_t from = clock_now(&self->worker.clock);
    exchange_counts(self);
    learner_idle(self->learner)->ns[IDLE_COUNTERS] += (uint64_t)(clock_now(&self->worker.clock) - from);
}

static void report(struct learner_work *self)
{
    struct worker *worker = &self->worker;
    count_steps(self);
    struct learner_stats stats;
    learner_take_stats(self->learner, &stats);
    int64_t now = clock_now(&worker->clock);
    double seconds = (double)(now - self->reported_ns) * 1e-9, items = stats.items ? (double)stats.items : 1.0;
    self->reported_ns = now;
    struct agent_scalar scalars[AGENT_MAX_SCALARS + 13 + IDLE_CAUSES];
    uint32_t n = 0;
    scalars[n++] = (struct agent_scalar){"updates_per_second", (double)stats.batches / seconds};
    scalars[n++] = (struct agent_scalar){"samples_per_second", (double)stats.items / seconds};
    n += idle_report(learner_idle(self->learner), &self->reported_idle, seconds, "wait_share", IDLE_OF_LEARNER,
                     scalars + n);
    scalars[n++] = (struct agent_scalar){"item_age_seconds", stats.age_sum_s / items};
    scalars[n++] = (struct agent_scalar){"item_age_seconds_max", stats.age_max_s};
    scalars[n++] = (struct agent_scalar){"policy_staleness", stats.stale_sum / items};
    scalars[n++] = (struct agent_scalar){"policy_staleness_max", stats.stale_max};
    scalars[n++] = (struct agent_scalar){"importance_weight", stats.weight_sum / items};
    scalars[n++] = (struct agent_scalar){"skipped_items", (double)stats.skipped};
    scalars[n++] = (struct agent_scalar){"fingerprint", (double)learner_fingerprint(self->learner)};
    for (uint32_t i = 0; i < stats.n_scalars; i++)
        scalars[n++] = stats.scalars[i];
    worker_report(worker, self->environment_steps, worker->agent->steps, scalars, n);
}

/* A restarted broker has no parameters, and without them new actors do not begin: the learner would wait for their
 * items, and they for its parameters. */
static void publish_anew(struct learner_work *self)
{
    rp_client_info info = {.struct_size = sizeof info};
    if (learner_leads(self->learner) && rp_client_get_info(self->worker.client, &info, NULL) == RP_OK &&
        info.state == RP_CLIENT_CONNECTED && info.broker != self->broker &&
        learner_publish(self->learner, NULL) == RP_OK)
        self->broker = info.broker;
}

/* No batch arrived. False: none will ever arrive. */
static bool wait_goes_on(struct learner_work *self, int64_t waited_ns, int64_t *logged_ns, const rp_error *err)
{
    int64_t limit = self->worker.config->stop.steps;
    publish_anew(self);
    if (limit > 0 && waited_ns >= LAST_WAIT_NS) {
        count_steps(self);
        if (self->most_steps >= (uint64_t)limit) /* an actor may have given steps back since then */
            return false;
    }
    if (waited_ns - *logged_ns >= LOG_WAIT_NS) {
        char why[512];
        *logged_ns = waited_ns;
        log_line(LEVEL_INFO, "A0204", "waits for a batch", "seconds=%lld why=%s", (long long)(waited_ns / NS_PER_S),
                 log_quote(why, sizeof why, err->text));
    }
    return true;
}

/* True if the table gives out samples for ever, so that the learner is not told by a wait that the actors have ended. */
static bool never_starves(const struct run_config *config)
{
    const struct table_config *table = run_config_table(config);
    return table && table->max_times_sampled == 0 &&
           (table->limiter.kind == LIMITER_MIN_SIZE || table->limiter.kind == LIMITER_NONE);
}

/* With the last environment step a learner that never waits has learned long enough. */
static bool has_learned_enough(const struct learner_work *self)
{
    const struct run_config *config = self->worker.config;
    return config->actors.on && config->stop.steps > 0 && self->most_steps >= (uint64_t)config->stop.steps &&
           never_starves(config);
}

static rp_status learn(struct learner_work *self, rp_error *err)
{
    struct worker *worker = &self->worker;
    uint64_t limit = (uint64_t)worker->config->stop.learner_steps;
    int64_t waiting_since = 0, logged_ns = 0;
    while (!worker_stopped(worker) && !worker_out_of_time(worker) && !(limit > 0 && worker->agent->steps >= limit)) {
        rp_status status = learner_step(self->learner, STEP_MS, err);
        int64_t now = clock_now(&worker->clock);
        if (worker_report_due(worker)) {
            report(self);
            if (has_learned_enough(self))
                break;
        }
        if (self->next_save_ns > 0 && now >= self->next_save_ns) {
            self->next_save_ns = now + worker->config->learners.save_every_ns;
            save_or_say(self);
        }
        if (status == RP_OK) {
            waiting_since = 0;
            snapshots_take(&self->snapshots, self->learner, worker->agent->steps);
            continue;
        }
        if (status != RP_DEADLINE_EXCEEDED && status != RP_UNAVAILABLE)
            return status;
        if (waiting_since == 0) {
            waiting_since = now;
            logged_ns = 0;
        }
        RP_TRY(learner_check_loaded(self->learner, err));
        if (!wait_goes_on(self, now - waiting_since, &logged_ns, err))
            break;
    }
    return RP_OK;
}

/* The run is in progress: earlier learning is lost, and the user should know. */
static void say_fresh(const struct learner_work *self)
{
    int64_t before = 0;
    if (self->worker.config->learners.count == 1 &&
        rp_counter_read(self->worker.client, COUNTER_LEARNER_STEPS, COUNT_MS, &before, NULL) == RP_OK && before > 0)
        log_line(LEVEL_WARN, "A0208",
                 "starts from nothing: there is no saved state of the steps that were learned before",
                 "steps=%lld folder=%s", (long long)before, self->state_path[0] ? self->worker.config->folder : "none");
}

static rp_status resume(struct learner_work *self, rp_error *err)
{
    const struct worker *worker = &self->worker;
    if (!worker->options->resume || !self->state_path[0] || access(self->state_path, F_OK) != 0) {
        say_fresh(self);
        return RP_OK;
    }
    RP_TRY(learner_load(self->learner, self->state_path, err));
    log_line(LEVEL_INFO, "A0205", "continues from saved state", "file=%s step=%llu", self->state_path,
             (unsigned long long)worker->agent->steps);
    return RP_OK;
}

static rp_status learner_open(struct learner_work *self, const struct worker_options *options, rp_error *err)
{
    const struct run_config *config = options->config;
    RP_TRY(worker_open(&self->worker, options, "learner", err));
    struct worker *worker = &self->worker;
    rng_seed(&worker->agent->rng, worker_seed(config, "learner", options->index));
    struct learner_options of = {.config = config,
                                 .client = worker->client,
                                 .agent = worker->agent,
                                 .index = options->index,
                                 .stop = options->stop};
    self->learner = learner_new(&of, err);
    if (!self->learner)
        return (rp_status)err->status;
    if (config->folder && config->folder[0]) {
        snprintf(self->state_path, sizeof self->state_path, "%s/" LEARNER_STATE_FILE, config->folder);
        log_file_make_folders(self->state_path); /* once: if the folder goes away later, that is logged */
    }
    self->reported_ns = clock_now(&worker->clock);
    if (config->learners.save_every_ns > 0)
        self->next_save_ns = self->reported_ns + config->learners.save_every_ns;
    RP_TRY(resume(self, err));
    snapshots_init(&self->snapshots, config, worker->agent->steps);
    /* With several learners, the one that begins publishes: this one may have to take the state of the others first. */
    return config->learners.count == 1 ? learner_publish(self->learner, err) : RP_OK;
}

/* Publishes the last parameters, and marks them as the last for the evaluator. */
static void publish_last(struct learner_work *self)
{
    rp_client *client = self->worker.client;
    int64_t before = 0, mark = (int64_t)self->worker.agent->steps + 1;
    if (learner_leads(self->learner) && learner_publish(self->learner, NULL) == RP_OK &&
        rp_counter_read(client, COUNTER_LEARNER_END, COUNT_MS, &before, NULL) == RP_OK)
        rp_counter_add(client, COUNTER_LEARNER_END, mark - before, COUNT_MS, NULL, NULL);
}

rp_status worker_learner(const struct worker_options *options, rp_error *err)
{
    struct learner_work self = {0};
    rp_status status = learner_open(&self, options, err);
    if (status == RP_OK) {
        status = worker_unless_stopped(&self.worker, learn(&self, err));
        /* Saves first: the rest waits for a broker that may be gone, and the parent process may kill this one before
         * that ends. */
        rp_status saving = save(&self, status == RP_OK ? err : NULL);
        publish_last(&self);
        report(&self);
        status = status == RP_OK ? saving : status;
    } else {
        status = worker_unless_stopped(&self.worker, status);
    }
    learner_destroy(&self.learner);
    worker_close(&self.worker);
    return status;
}
