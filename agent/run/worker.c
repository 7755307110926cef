/* Actors, evaluators and learners, each in a process of its own: what they share, then each of them. */
#include "agent/run/worker.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/run/actor.h"
#include "agent/run/best.h"
#include "agent/run/claim.h"
#include "agent/run/learner.h"
#include "agent/run/run_log.h"
#include "agent/run/show.h"
#include "agent/run/stop.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/json.h"
#include "proto/base/log.h"
#include "replay/collective.h"

#define CONNECT_MS 30000
#define WORKER_CALL_MS 10000
/* For calls that may be repeated: time between two checks of the stop flag. */
#define READ_MS 1000
#define RETRY_MS 200
/* For confirmations after the process was stopped. */
#define STOPPED_MS 500

/* The common part of every worker. */
struct worker {
    const struct worker_options *options;
    const struct run_config *config;
    char name[32];
    rp_client *client; /* NULL: an evaluator of a file */
    struct crew crew;  /* of a learner, its network alone */
    struct agent *agent;
    struct run_log *log;
    int64_t start_ns, next_report_ns;
};

uint64_t worker_seed(const struct run_config *config, const char *part, uint32_t index)
{
    struct rng rng;
    rng_seed(&rng, rng_hash((uint64_t)config->seed, part) + index);
    return rng_next(&rng);
}

static bool worker_stopped(const struct worker *self)
{
    return is_stopped(self->options->stop);
}

/* An error while the process is being stopped is no error. */
static rp_status worker_unless_stopped(const struct worker *self, rp_status status)
{
    return status != RP_OK && worker_stopped(self) ? RP_OK : status;
}

/* Returns the first error: this status, or that of items that could not be confirmed. */
static rp_status worker_close(struct worker *self, rp_status status, rp_error *err)
{
    run_log_destroy(&self->log);
    status = worker_unless_stopped(self, status);
    int64_t wait_ms = worker_stopped(self) ? STOPPED_MS : WORKER_CALL_MS;
    rp_status closing = crew_close(&self->crew, wait_ms, status == RP_OK ? err : NULL);
    if (self->client)
        rp_client_destroy(&self->client);
    return status == RP_OK ? worker_unless_stopped(self, closing) : status;
}

static int ends_wait(void *ctx)
{
    return worker_stopped(ctx);
}

/* Checks the stop flag while it waits. */
static rp_status connect_client(struct worker *self, rp_error *err)
{
    const struct worker_options *options = self->options;
    rp_client_options client = {.struct_size = sizeof client, .name = self->name, .zmq_context = options->context};
    int64_t wait_ms = options->connect_ms > 0 ? options->connect_ms : CONNECT_MS;
    rp_wait_set(ends_wait, self);
    self->client = rp_client_connect(options->endpoint, &client, wait_ms, err);
    rp_wait_set(NULL, NULL);
    if (self->client)
        return RP_OK;
    if (worker_stopped(self))
        return err_set(err, RP_CANCELLED, "stopped while no broker answered");
    return (rp_status)err->status;
}

/* kind: "actor", "learner" or "evaluator". After an error, worker_close must still follow. */
static rp_status worker_open(struct worker *self, const struct worker_options *options, const char *kind, rp_error *err)
{
    const struct run_config *config = options->config;
    bool acts = strcmp(kind, "actor") == 0, steps = strcmp(kind, "learner") != 0;
    *self = (struct worker){.options = options, .config = config};
    self->start_ns = clock_ns();
    self->next_report_ns = self->start_ns + config->report.every_ns;
    snprintf(self->name, sizeof self->name, "%s-%u", kind, options->index);
    net_single_thread();
    const struct crew_options crew = {.config = config,
                                      .provider = steps ? options->provider : NULL,
                                      .python = steps ? "actor" : NULL,
                                      .index = options->index,
                                      .n = acts ? (uint32_t)config->actors.environments : 1,
                                      .evaluates = !acts,
                                      .stop = options->stop};
    RP_TRY(crew_open(&self->crew, &crew, err));
    self->agent = self->crew.agent;
    self->log = run_log_new(config->folder, self->name);
    if (!options->weights)
        RP_TRY(connect_client(self, err));
    return steps ? crew_join(&self->crew, self->client, err) : RP_OK;
}

static bool worker_out_of_time(const struct worker *self)
{
    int64_t limit = self->config->stop.time_ns;
    return limit > 0 && clock_ns() - self->start_ns >= limit;
}

static bool worker_report_due(struct worker *self)
{
    int64_t now = clock_ns();
    if (now < self->next_report_ns)
        return false;
    self->next_report_ns = now + self->config->report.every_ns;
    return true;
}

/* More scalars than a process has of its own. */
#define WORKER_MAX_SCALARS 32u

/* Reports scalars, and what the environment itself reports. */
static void worker_report(struct worker *self, const struct run_log_at *at, const struct agent_scalar *scalars,
                          uint32_t n)
{
    struct agent_scalar all[WORKER_MAX_SCALARS + ENV_MAX_METRICS];
    struct env_metric metrics[ENV_MAX_METRICS];
    uint32_t more = env_metrics(&self->crew.envs.envs[0], metrics);
    assert(n <= WORKER_MAX_SCALARS);
    memcpy(all, scalars, n * sizeof *all);
    for (uint32_t i = 0; i < more; i++)
        all[n++] = (struct agent_scalar){metrics[i].name, metrics[i].value};
    run_log_report(self->log, at, all, n);
}

/* A broker that is away for a while is no reason to end: returns true, after a pause, if the call should be
 * repeated. */
static bool worker_try_again(const struct worker *self, rp_status status)
{
    if (worker_stopped(self) || (status != RP_DEADLINE_EXCEEDED && status != RP_UNAVAILABLE))
        return false;
    nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
    return true;
}

/* Returns the counter, but no more than stop.steps: it exceeds stop.steps for a moment when actors claim the last steps. */
static uint64_t worker_steps(const struct worker *self, int64_t counter)
{
    int64_t limit = self->config->stop.steps;
    return (uint64_t)(limit > 0 && counter > limit ? limit : counter > 0 ? counter : 0);
}

/* ---- an actor ---- */

/* Scalars of a report beside the shares of idle time. */
#define ACTOR_SCALARS 8

struct actor_work {
    struct worker worker;
    struct claim claim;
    uint64_t owed;  /* steps that are claimed and not taken */
    uint64_t total; /* steps of all actors before these */
    uint64_t episodes, reported_steps;
    double value_sum; /* sum of returns since the last report */
    uint64_t value_count, length_sum;
    int64_t reported_ns;
    struct idle reported_idle;
};

static void on_episode(void *ctx, const struct episode *episode)
{
    struct actor_work *self = ctx;
    self->episodes++;
    self->value_sum += episode->value;
    self->length_sum += episode->steps;
    self->value_count++;
}

/* Sums over the environments. */
static void sum_loops(const struct crew *self, uint64_t *steps, struct adder_stats *sum, struct idle *idle)
{
    *steps = 0;
    *sum = (struct adder_stats){0};
    *idle = (struct idle){0};
    for (uint32_t i = 0; i < self->n; i++) {
        struct adder_stats stats;
        adder_get_stats(self->loops[i].actor.options.adder, &stats);
        sum->items += stats.items;
        sum->rejected += stats.rejected;
        *steps += self->loops[i].actor.steps;
        for (int cause = 0; cause < IDLE_CAUSES; cause++)
            idle->ns[cause] += self->loops[i].actor.idle.ns[cause];
    }
}

static void actor_report(struct actor_work *self)
{
    struct worker *worker = &self->worker;
    int64_t now = clock_ns();
    double seconds = (double)(now - self->reported_ns) * 1e-9, n = self->value_count ? (double)self->value_count : NAN;
    uint64_t steps;
    struct adder_stats sum;
    struct idle idle;
    sum_loops(&worker->crew, &steps, &sum, &idle);
    struct agent_scalar scalars[ACTOR_SCALARS + IDLE_CAUSES + 1] = {
        {"actor_steps", (double)steps},
        {"steps_per_second", (double)(steps - self->reported_steps) / seconds},
        {"episodes", (double)self->episodes},
        {"return", self->value_sum / n},
        {"episode_length", (double)self->length_sum / n},
        {"items", (double)sum.items},
        {"rejected", (double)sum.rejected},
        {"epsilon", actor_epsilon(&worker->crew.loops[0].actor)},
    };
    uint32_t n_scalars = ACTOR_SCALARS + idle_report(&idle, &self->reported_idle, seconds, "blocked_share",
                                                     IDLE_OF_ACTOR, scalars + ACTOR_SCALARS);
    const struct run_log_at at = {clock_unix_s(), self->total, worker->crew.variables.steps};
    worker_report(worker, &at, scalars, n_scalars);
    self->reported_ns = now;
    self->reported_steps = steps;
    self->value_sum = 0.0;
    self->value_count = self->length_sum = 0;
}

/* Takes the claimed steps in whole rounds. The rest waits for the next claim, unless there is none. An actor that is
 * stopped gives its remaining steps back to the other actors. */
static rp_status take_steps(struct actor_work *self, bool last, rp_error *err)
{
    struct crew *crew = &self->worker.crew;
    rp_status status = RP_OK;
    while (status == RP_OK && self->owed >= (last ? 1 : crew->n) && !worker_stopped(&self->worker)) {
        uint32_t taken = 0, n = self->owed < crew->n ? (uint32_t)self->owed : crew->n;
        status = crew_step(crew, n, self->total, &taken, err);
        self->owed -= taken;
        self->total += taken;
        crew_tell_policy(crew); /* the first loop pulls for all */
    }
    if (status != RP_OK || worker_stopped(&self->worker)) {
        claim_return(&self->claim, self->owed);
        self->owed = 0;
    }
    return status;
}

static rp_status worker_act(struct actor_work *self, rp_error *err)
{
    struct crew *crew = &self->worker.crew;
    struct idle *idle = &crew->loops[0].actor.idle;
    self->reported_ns = clock_ns();
    rp_status status = crew_begin(crew, err);
    idle->ns[IDLE_PARAMETERS] += (uint64_t)(clock_ns() - self->reported_ns);
    crew_tell_policy(crew);
    RP_TRY(status);
    while (!worker_stopped(&self->worker) && !worker_out_of_time(&self->worker)) {
        uint64_t n = 0, total = 0;
        RP_TRY(claim_next(&self->claim, self->claim.options.least, &n, &total, err));
        idle->ns[IDLE_COUNTERS] = self->claim.wait_ns;
        if (n == 0 && self->owed == 0)
            break;
        if (n > 0)
            self->total = total - self->owed;
        self->owed += n;
        RP_TRY(take_steps(self, n == 0, err));
        if (worker_report_due(&self->worker))
            actor_report(self);
    }
    return RP_OK;
}

rp_status worker_actor(const struct worker_options *options, rp_error *err)
{
    struct actor_work self = {0};
    struct worker *worker = &self.worker;
    rp_status status = worker_open(worker, options, "actor", err);
    worker->crew.ended = on_episode;
    worker->crew.ctx = &self;
    if (status == RP_OK && !options->config->actors.weights[0])
        status = variables_subscribe(&worker->crew.variables, err);
    if (status == RP_OK) {
        claim_init_actor(&self.claim, worker->client, options->config, worker->crew.n, options->stop);
        status = worker_act(&self, err);
        claim_fini(&self.claim);
        actor_report(&self);
    }
    return worker_close(worker, status, err);
}

/* ---- a saved learner without a broker: the return of its policy over some episodes, and one episode to look at ---- */

static void worker_print_result(const struct measured *self, const char *file, uint64_t learner_steps, bool json)
{
    double n = (double)self->episodes, mean = self->sum / n;
    double deviation = sqrt(fmax(0.0, self->squares / n - mean * mean));
    if (!json) {
        printf("mean return of %llu episodes: %.6g\n", (unsigned long long)self->episodes, mean);
        printf("from %.6g to %.6g, standard deviation %.6g, %.6g steps an episode\n", self->lowest, self->highest,
               deviation, (double)self->steps / n);
        printf("%s, of learner step %llu\n", file, (unsigned long long)learner_steps);
        return;
    }
    struct json out = {0};
    json_open(&out, '{');
    json_text(&out, "weights", file);
    json_count(&out, "learner_steps", learner_steps);
    json_count(&out, "episodes", self->episodes);
    json_real(&out, "return", mean);
    json_real(&out, "lowest", self->lowest);
    json_real(&out, "highest", self->highest);
    json_real(&out, "deviation", deviation);
    json_real(&out, "episode_length", (double)self->steps / n);
    json_close(&out, '}');
    char *text = json_take(&out);
    puts(text ? text : "");
    free(text);
}

/* Runs evaluator.episodes episodes and prints the result. */
static rp_status measure_file(struct worker *worker, rp_error *err)
{
    const struct worker_options *options = worker->options;
    struct variables *variables = &worker->crew.variables;
    struct measured measured;
    uint64_t episodes = (uint64_t)worker->config->evaluator.episodes;
    if (episodes == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "evaluator.episodes is 0: say how many by --episodes N");
    RP_TRY(weights_read_file(options->weights, worker->agent->tensors, worker->agent->n_policy, err));
    rp_error none = {0};
    if (variables_load(variables, options->weights, &none) != RP_OK)
        variables->steps = 0; /* a policy of another program may not contain its learner step */
    struct show *show = options->show && !options->json
                            ? show_new(env_name(&worker->config->environment), episodes, options->stop)
                            : NULL;
    rp_status status = environment_loop_episodes(&worker->crew.loops[0], episodes, show, &measured, err);
    show_destroy(&show);
    RP_TRY(status);
    worker_print_result(&measured, options->weights, variables->steps, options->json);
    return RP_OK;
}

/* ---- what others ask for: a counter that grows ---- */

/* Time between two looks at the counter. */
#define ASKED_NS (200 * NS_PER_MS)

/* Zero-initialised. */
struct asked {
    int64_t next_ns, count;
    bool known; /* count is what the counter was at the last look */
};

/* True if the counter has grown since the last look; the first look only learns its value. The counter of a new broker begins at 0. */
static bool worker_asked(const struct worker *self, struct asked *asked, const char *counter)
{
    int64_t now = clock_ns(), count = 0;
    if (now < asked->next_ns || rp_counter_read(self->client, counter, READ_MS, &count, NULL) != RP_OK)
        return false;
    bool more = asked->known && count > asked->count;
    *asked = (struct asked){.next_ns = now + ASKED_NS, .count = count, .known = true};
    return more;
}

/* ---- an evaluator: greedy, and without an adder, so it never inserts; it owns best.weights ---- */

/* After the last environment step: a learner that publishes nothing for this long, without having ended, has died. */
#define LAST_WAIT_NS (60 * NS_PER_S)
/* Time between two looks at the progress of the run. */
#define POLL_NS (20 * NS_PER_MS)

static void tell(struct worker *self, const struct best *result, double seconds)
{
    const struct agent_scalar scalars[] = {
        {"return", result->value},
        {"episodes", (double)result->episodes},
        {"seconds", seconds},
    };
    const struct run_log_at at = {clock_unix_s(), result->environment_steps, result->learner_steps};
    worker_report(self, &at, scalars, sizeof scalars / sizeof scalars[0]);
    log_line(LEVEL_INFO, "A0303", "evaluation", "return=%.6g episodes=%llu environment_steps=%llu learner_steps=%llu",
             result->value, (unsigned long long)result->episodes, (unsigned long long)result->environment_steps,
             (unsigned long long)result->learner_steps);
}

/* The parameters do not change during an evaluation: nothing is pulled. They are saved before their return is
 * reported, so a launcher that ends the run because of it finds them. */
static rp_status evaluate_once(struct worker *self, uint64_t steps, double *mean, rp_error *err)
{
    struct best result;
    int64_t from = clock_ns();
    RP_TRY(crew_evaluate(&self->crew, steps, self->crew.variables.steps, &result, err));
    tell(self, &result, (double)(clock_ns() - from) * 1e-9);
    *mean = result.value;
    return RP_OK;
}

/* All environment steps are taken, and the learner still learns from the last of them. Pulls until the parameters are
 * the ones that the learner published at its end. */
static rp_status await_last(struct worker *self, struct variables *variables, rp_error *err)
{
    int64_t news_ns = clock_ns();
    while (!worker_stopped(self) && !worker_out_of_time(self) && clock_ns() - news_ns < LAST_WAIT_NS) {
        int64_t end = 0;
        rp_status status = rp_counter_read(self->client, COUNTER_LEARNER_END, READ_MS, &end, err);
        if (status != RP_OK && worker_try_again(self, status))
            continue;
        RP_TRY(status);
        if (end == (int64_t)variables->steps + 1)
            break;
        bool fresh;
        RP_TRY(variables_pull(variables, RETRY_MS, &fresh, err));
        if (fresh)
            news_ns = clock_ns();
    }
    return RP_OK;
}

/* The progress of the run, and whether the run ends: in environment steps of all actors, or without actors in learner
 * steps of the newest parameters. */
static rp_status look(struct worker *self, const struct variables *variables, uint64_t *at, bool *last, rp_error *err)
{
    const struct stop_section *stop = &self->config->stop;
    int64_t steps = 0;
    if (self->config->actors.count == 0) {
        *at = variables->steps;
        *last = stop->learner_steps > 0 && *at >= (uint64_t)stop->learner_steps;
        return RP_OK;
    }
    RP_TRY(rp_counter_read(self->client, COUNTER_STEPS, READ_MS, &steps, err));
    *at = (uint64_t)steps;
    *last = stop->steps > 0 && steps >= stop->steps;
    return RP_OK;
}

/* Without actors the parameters show the progress of the run; with actors they are not needed before the next
 * evaluation. */
static rp_status pause_looking(struct worker *self, struct variables *variables, rp_error *err)
{
    if (self->config->actors.count == 0)
        return variables_pull(variables, RETRY_MS, NULL, err);
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    return RP_OK;
}

/* The goal was reached, but the evaluator that found out may have been killed before it could report that. */
static bool reached_before(struct worker *self)
{
    const struct best_file *best = &self->crew.best;
    bool reached = best->known && best->best.value >= self->config->stop.value;
    if (reached)
        tell(self, &best->best, 0.0);
    return reached;
}

/* Evaluates the newest parameters at regular numbers of steps, and the last ones at the end. */
static rp_status worker_evaluate(struct worker *worker, rp_error *err)
{
    struct variables *variables = &worker->crew.variables;
    const struct run_config *config = worker->config;
    struct asked asked_before = {0};
    uint64_t every = (uint64_t)config->evaluator.every, next = every;
    RP_TRY(variables_wait(variables, worker->options->stop, err));
    for (bool last = false; !last && !worker_stopped(worker) && !worker_out_of_time(worker);) {
        uint64_t at;
        rp_status status = look(worker, variables, &at, &last, err);
        if (status != RP_OK && worker_try_again(worker, status))
            continue;
        RP_TRY(status);
        bool asked = worker_asked(worker, &asked_before, COUNTER_EVALUATE);
        if (!last && !asked && (every == 0 || at < next)) {
            RP_TRY(pause_looking(worker, variables, err));
            continue;
        }
        while (every > 0 && next <= at)
            next += every;
        double mean;
        bool acts = config->actors.count != 0;
        if (acts)
            RP_TRY(last ? await_last(worker, variables, err) : variables_pull(variables, 0, NULL, err));
        RP_TRY(evaluate_once(worker, acts ? worker_steps(worker, (int64_t)at) : 0, &mean, err));
        last |= mean >= config->stop.value;
    }
    return RP_OK;
}

rp_status worker_evaluator(const struct worker_options *options, rp_error *err)
{
    struct worker self;
    rp_status status = worker_open(&self, options, "evaluator", err);
    if (status == RP_OK && options->weights) {
        status = measure_file(&self, err);
    } else if (status == RP_OK) {
        crew_keep(&self.crew, options->config->folder, !options->resume);
        status = reached_before(&self) ? RP_OK : worker_evaluate(&self, err);
    }
    return worker_close(&self, status, err);
}

/* ---- a learner ---- */

#define STEP_MS 500
/* Time limit for a look at the counters, in case the broker is away. */
#define COUNT_MS 1000
/* After this long without a batch the reason is logged. */
#define LOG_WAIT_NS (10 * NS_PER_S)
/* All environment steps are taken and nothing could be sampled for this long: there is nothing more to come. */
#define LAST_BATCH_NS (2 * NS_PER_S)

struct learner_work {
    struct worker worker;
    struct learner *learner;
    char state_path[512]; /* empty: not saved */
    int64_t next_save_ns, reported_ns;
    struct idle reported_idle;
    uint64_t environment_steps;
    uint64_t broker;     /* instance of the broker that has this learner's parameters; 0: none */
    uint64_t counted_at; /* instance of the broker whose count this leading learner has seen to; 0: none yet */
    uint64_t most_steps; /* the largest count of environment steps so far */
    int64_t learned;     /* the largest count of learner steps that this learner has seen at a broker */
    struct asked asked;
};

static rp_status save(struct learner_work *self, rp_error *err)
{
    if (!self->state_path[0] || !learner_leads(self->learner))
        return RP_OK;
    const struct agent *agent = self->worker.agent;
    return weights_write_file(self->state_path, agent->tensors, agent->n_tensors, err);
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

/* Instance of the broker; 0: not connected. */
static uint64_t broker_now(const struct learner_work *self)
{
    rp_client_info info = {.struct_size = sizeof info};
    return rp_client_get_info(self->worker.client, &info, NULL) == RP_OK && info.state == RP_CLIENT_CONNECTED
               ? info.broker
               : 0;
}

/* The counters of a restarted broker begin at 0, and exploration and stop.steps depend on them: the leading learner
 * restores the earlier count. Fast actors may have counted more than that by then, but nobody else counts learner_steps.
 * False: not done. */
static bool put_back_steps(struct learner_work *self)
{
    if (rp_counter_add(self->worker.client, COUNTER_STEPS, (int64_t)self->most_steps, COUNT_MS, NULL, NULL) != RP_OK)
        return false;
    log_line(LEVEL_INFO, "A0207", "restored the count of environment steps at a new broker", "steps=%llu",
             (unsigned long long)self->most_steps);
    return true;
}

/* What the leading learner counts for all. */
static bool put_counts(struct learner_work *self)
{
    rp_client *client = self->worker.client;
    uint64_t broker = broker_now(self);
    bool fresh = broker != self->counted_at;
    int64_t steps = (int64_t)self->worker.agent->steps, learned = 0, total = 0;
    if (broker == 0 || rp_counter_read(client, COUNTER_LEARNER_STEPS, COUNT_MS, &learned, NULL) != RP_OK ||
        (fresh && rp_counter_read(client, COUNTER_STEPS, COUNT_MS, &total, NULL) != RP_OK) ||
        broker_now(self) != broker)
        return false;
    bool lost = fresh && ((uint64_t)total < self->most_steps || learned < self->learned);
    if (lost && !put_back_steps(self))
        return false;
    self->counted_at = broker;
    /* The learner that led before may have restored some of them. */
    if (steps > learned &&
        rp_counter_add(client, COUNTER_LEARNER_STEPS, steps - learned, COUNT_MS, &learned, NULL) != RP_OK)
        return false;
    self->learned = learned > self->learned ? learned : self->learned;
    return true;
}

static void exchange_counts(struct learner_work *self)
{
    rp_client *client = self->worker.client;
    int64_t total = 0;
    if (learner_leads(self->learner) && !put_counts(self))
        return;
    if (rp_counter_read(client, COUNTER_STEPS, COUNT_MS, &total, NULL) == RP_OK)
        self->environment_steps = worker_steps(&self->worker, total);
    if (self->environment_steps > self->most_steps)
        self->most_steps = self->environment_steps;
}

static void count_steps(struct learner_work *self)
{
    int64_t from = clock_ns();
    exchange_counts(self);
    learner_idle(self->learner)->ns[IDLE_COUNTERS] += (uint64_t)(clock_ns() - from);
}

static void learner_report(struct learner_work *self)
{
    struct worker *worker = &self->worker;
    count_steps(self);
    struct learner_stats stats;
    learner_take_stats(self->learner, &stats);
    int64_t now = clock_ns();
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
    scalars[n++] = (struct agent_scalar){"fingerprint", (double)agent_fingerprint(worker->agent)};
    for (uint32_t i = 0; i < stats.n_scalars; i++)
        scalars[n++] = stats.scalars[i];
    const struct run_log_at at = {clock_unix_s(), self->environment_steps, worker->agent->steps};
    run_log_report(worker->log, &at, scalars, n);
}

/* A restarted broker has no parameters, and without them new actors do not begin: the learner would wait for their
 * items, and they for its parameters. */
static void publish_anew(struct learner_work *self)
{
    uint64_t broker = learner_leads(self->learner) ? broker_now(self) : 0;
    if (broker != 0 && broker != self->broker && learner_publish(self->learner, NULL) == RP_OK)
        self->broker = broker;
}

/* No batch arrived. False: none will ever arrive. */
static bool worker_wait_goes_on(struct learner_work *self, int64_t waited_ns, int64_t *logged_ns, const rp_error *err)
{
    int64_t limit = self->worker.config->stop.steps;
    publish_anew(self);
    if (limit > 0 && waited_ns >= LAST_BATCH_NS) {
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
    return config->actors.count != 0 && config->stop.steps > 0 && self->most_steps >= (uint64_t)config->stop.steps &&
           never_starves(config);
}

static rp_status worker_learn(struct learner_work *self, rp_error *err)
{
    struct worker *worker = &self->worker;
    uint64_t limit = (uint64_t)worker->config->stop.learner_steps;
    int64_t waiting_since = 0, logged_ns = 0;
    while (!worker_stopped(worker) && !worker_out_of_time(worker) && !(limit > 0 && worker->agent->steps >= limit)) {
        rp_status status = learner_step(self->learner, STEP_MS, err);
        int64_t now = clock_ns();
        if (worker_report_due(worker)) {
            learner_report(self);
            if (worker_asked(worker, &self->asked, COUNTER_SAVE))
                save_or_say(self);
            if (has_learned_enough(self))
                break;
        }
        if (self->next_save_ns > 0 && now >= self->next_save_ns) {
            self->next_save_ns = now + worker->config->learners.save_every_ns;
            save_or_say(self);
        }
        if (status == RP_OK) {
            waiting_since = 0;
            continue;
        }
        if (status != RP_DEADLINE_EXCEEDED && status != RP_UNAVAILABLE)
            return status;
        if (waiting_since == 0) {
            waiting_since = now;
            logged_ns = 0;
        }
        RP_TRY(learner_check_loaded(self->learner, err));
        if (!worker_wait_goes_on(self, now - waiting_since, &logged_ns, err))
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

/* Adds to the mistake in a damaged state what can be done. */
static rp_status damaged_state(const struct learner_work *self, const rp_error *why, rp_error *err)
{
    char snapshots[sizeof self->state_path], copy[sizeof snapshots + 64] = "";
    snprintf(snapshots, sizeof snapshots, "%.480s/snapshots", self->worker.config->folder);
    if (access(snapshots, F_OK) == 0)
        snprintf(copy, sizeof copy, "copy the newest file of %s over it, or ", snapshots);
    return err_set(err, (rp_status)why->status, "%.300s. To go on, %sremove it: then the learner begins anew (--fresh)",
                   why->text, copy);
}

static rp_status learner_resume(struct learner_work *self, rp_error *err)
{
    const struct worker *worker = &self->worker;
    if (!worker->options->resume || !self->state_path[0] || access(self->state_path, F_OK) != 0) {
        say_fresh(self);
        return RP_OK;
    }
    rp_error why = {0};
    rp_status status = weights_read_file(self->state_path, worker->agent->tensors, worker->agent->n_tensors, &why);
    if (status != RP_OK)
        return status == RP_DATA_LOSS ? damaged_state(self, &why, err) : err_set(err, status, "%s", why.text);
    log_line(LEVEL_INFO, "A0205", "continues from saved state", "file=%s step=%llu", self->state_path,
             (unsigned long long)worker->agent->steps);
    return RP_OK;
}

static rp_status learner_work_open(struct learner_work *self, const struct worker_options *options, rp_error *err)
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
        io_make_parents(self->state_path, 0755); /* once: if the folder goes away later, that is logged */
    }
    self->reported_ns = clock_ns();
    if (config->learners.save_every_ns > 0)
        self->next_save_ns = self->reported_ns + config->learners.save_every_ns;
    RP_TRY(learner_resume(self, err));
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
    rp_status status = learner_work_open(&self, options, err), saving = RP_OK;
    if (status == RP_OK) {
        status = worker_unless_stopped(&self.worker, worker_learn(&self, err));
        /* Saves first: the rest waits for a broker that may be gone, and the parent process may kill this one before
         * that ends. */
        saving = save(&self, status == RP_OK ? err : NULL);
        publish_last(&self);
        learner_report(&self);
    }
    learner_destroy(&self.learner);
    status = worker_close(&self.worker, status, err);
    return status == RP_OK ? saving : status;
}
