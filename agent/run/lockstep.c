#include "agent/run/lockstep.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "agent/run/actor.h"
#include "agent/run/stop.h"
#include "agent/run/worker.h"
#include "broker/broker.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

/* ---- whether the limiter of the table suits a run in one process ---- */

/* The most items that all actors make in a round: the end of an episode adds the items that begin with its last
 * steps. */
static double items_per_round(const struct run_config *config)
{
    double most = config->adder.kind == ADDER_TRANSITION ? (double)config->adder.n_step + 1.0 : 2.0;
    return most * (double)(config->actors.count * config->actors.environments);
}

/* The learner's turn comes after a round, so all inserts of a round must have room: otherwise an insert would wait
 * for a learner that waits for the insert. */
static rp_status check_room(const struct run_config *config, const struct table_config *table, double batch,
                            rp_error *err)
{
    const struct limiter_config *limiter = &table->limiter;
    double items = items_per_round(config);
    if (limiter->kind != LIMITER_RATIO) {
        bool lag = limiter->kind == LIMITER_LAG;
        double size = lag ? (double)(table->max_lag + 1) * limiter->batch : (double)table->max_size,
               least = batch - 1.0 + items;
        return size >= least
                   ? RP_OK
                   : err_set(err, RP_INVALID_ARGUMENT,
                             "the limiter of table '%s' has room for %.0f items; a run in one process needs "
                             "%.0f: a batch, and what %lld actors insert in one round",
                             table->name, size, least, (long long)(config->actors.count * config->actors.environments));
    }
    double ratio = limiter->samples_per_insert, round = items * ratio, centre = ratio * limiter->min_size;
    bool buffer = limiter->error_buffer >= 0;
    double low = buffer ? centre - limiter->error_buffer : limiter->min_diff;
    double high = buffer ? centre + limiter->error_buffer : limiter->max_diff;
    double lack = fmax(batch + round - (high - low), 2.0 * (centre + round - ratio - high));
    if (lack <= 0.0)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "the limiter of table '%s' leaves less room than a run in one process needs: a batch, and what %lld "
                   "actors insert in one round; write error_buffer of at least %.0f",
                   table->name, (long long)(config->actors.count * config->actors.environments),
                   ceil((high - low + lack) / 2.0));
}

/* RP_INVALID_ARGUMENT if actors and learner would wait for each other, or if the learner's turn would never end.
 * batch: items in a learner step. */
static rp_status lockstep_check(const struct run_config *config, double batch, rp_error *err)
{
    const struct table_config *table = run_config_table(config);
    uint32_t shards = config_shards(&config->broker);
    if (shards > 1)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a run in one process has one broker, and broker.shards says %u: write 1, or use replay-launch",
                       shards);
    if (config->actors.count == 0 || config->learners.count == 0)
        return RP_OK; /* no turns to take */
    if (table->limiter.kind == LIMITER_MIN_SIZE || table->limiter.kind == LIMITER_NONE)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a run in one process learns for as long as the limiter of table '%s' lets it, and a %s "
                       "limiter always does: use sample_to_insert_ratio or queue",
                       table->name, limiter_kind_name(table->limiter.kind));
    return check_room(config, table, batch, err);
}

/* ---- the run ---- */

#define LOCKSTEP_CALL_MS 60000
/* For a batch of loaded items, which may still be on disk. */
#define LOADED_MS 60000
#define RECENT 20u

struct lockstep {
    const struct lockstep_options *options;
    const struct run_config *config;
    struct broker_config broker_config; /* the run's, for turns that follow steps */
    struct channels channels;
    int64_t now_ns;
    struct clock clock;
    struct broker *broker; /* does its work when the client waits for it */
    rp_client *client;
    struct agent *agent; /* the learner's */
    struct learner *learner;
    struct crew *players; /* an actor each, with one environment and its own copy of the policy */
    uint32_t n_players;
    struct crew evaluator;
    uint64_t steps, episodes;
    double recent[RECENT];
    double evaluation;
    int64_t start_ns;
};

/* ---- set-up ---- */

static int64_t stepped_now(void *ctx)
{
    return *(const int64_t *)ctx;
}

static void broker_turns(void *ctx, int wait_ms)
{
    broker_turn(ctx, wait_ms);
}

/* Threads that the broker starts (for a disk) must not receive signals, and a signal must not interrupt its start and
 * end. */
static void hold_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, before);
}

/* A run in one process is repeated, not resumed: it starts without tables and leaves none. A run with one side off
 * loads a table, or leaves one. */
static void keep_nothing(struct broker_config *broker)
{
    static char nothing[] = "", none[] = "none";
    if (broker->storage_memory == 0)
        broker->folder = nothing;
    broker->journal_ns = JOURNAL_OFF;
    broker->checkpoint_keep = 0;
    broker->checkpoint_load = none;
}

static rp_status start_broker(struct lockstep *self, rp_error *err)
{
    self->broker_config = self->config->broker; /* strings and lists still belong to the run */
    if (self->config->actors.count != 0 && self->config->learners.count != 0)
        keep_nothing(&self->broker_config);
    self->broker_config.prompt = true; /* every step waits for its effects */
    self->broker_config.seed = (int64_t)(worker_seed(self->config, "broker", 0) >> 1);
    self->clock = (struct clock){.now = stepped_now, .ctx = &self->now_ns};
    sigset_t before;
    hold_signals(&before);
    self->broker = broker_new_local(&self->broker_config, self->clock, &self->channels, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!self->broker)
        return (rp_status)err->status;
    rp_client_options options = {.struct_size = sizeof options, .name = "single"};
    const struct conn_host host = {.channels = &self->channels, .turn = broker_turns, .ctx = self->broker};
    self->client = client_connect("this process", &options, &host, LOCKSTEP_CALL_MS, err);
    return self->client ? RP_OK : RP_UNAVAILABLE;
}

static rp_status open_player(struct lockstep *self, struct crew *player, uint32_t index, rp_error *err)
{
    const struct crew_options options = {.config = self->config,
                                         .provider = self->options->provider,
                                         .python = "single",
                                         .index = index,
                                         .n = 1,
                                         .environments = (uint32_t)self->config->actors.environments,
                                         .evaluates = player == &self->evaluator,
                                         .stop = self->options->stop};
    RP_TRY(crew_open(player, &options, err));
    if (player->n > 1)
        return err_set(err, RP_UNSUPPORTED,
                       "environment '%s' is a vector of %u environments, and a run in one process steps them one by "
                       "one: use replay-launch, or an environment that is not a vector",
                       env_name(&self->config->environment), player->n);
    RP_TRY(crew_join(player, self->client, err));
    return options.evaluates ? RP_OK : crew_begin(player, err);
}

/* Without learners, the weights of the actors are measured at the end. */
static rp_status load_weights(struct lockstep *self, rp_error *err)
{
    struct variables variables;
    variables_init(&variables, self->client, self->agent);
    return variables_load(&variables, self->config->actors.weights, err);
}

static rp_status open_learner(struct lockstep *self, rp_error *err)
{
    const struct run_config *config = self->config;
    self->agent = agent_new(&config->agent, env_name(&config->environment), &self->evaluator.agent->spec,
                            worker_seed(config, "parameters", 0), err);
    if (!self->agent)
        return (rp_status)err->status;
    if (config->learners.count == 0)
        return load_weights(self, err);
    rng_seed(&self->agent->rng, worker_seed(config, "learner", 0));
    struct learner_options options = {
        .config = config, .client = self->client, .agent = self->agent, .lockstep = true, .stop = self->options->stop};
    self->learner = learner_new(&options, err);
    if (!self->learner)
        return (rp_status)err->status;
    RP_TRY(learner_check_loaded(self->learner, err));
    return learner_publish(self->learner, err);
}

static rp_status open_all(struct lockstep *self, rp_error *err)
{
    const struct run_config *config = self->config;
    uint32_t n = run_config_actors(config) * (uint32_t)config->actors.environments;
    RP_TRY(open_player(self, &self->evaluator, 0, err));
    RP_TRY(open_learner(self, err));
    self->players = need_alloc(n * sizeof *self->players);
    for (; self->n_players < n; self->n_players++) {
        struct crew *player = &self->players[self->n_players];
        rp_status status = open_player(self, player, self->n_players, err);
        if (status != RP_OK) {
            (void)crew_close(player, 0, NULL);
            return status;
        }
    }
    return RP_OK;
}

/* False: what the tables hold should be on disk, and is not. */
static bool close_all(struct lockstep *self)
{
    for (uint32_t i = 0; i < self->n_players; i++)
        (void)crew_close(&self->players[i], 1000, NULL);
    free(self->players);
    learner_destroy(&self->learner);
    agent_destroy(&self->agent);
    (void)crew_close(&self->evaluator, 0, NULL);
    if (self->client)
        rp_client_destroy(&self->client);
    sigset_t before;
    hold_signals(&before);
    bool saved = !self->broker || broker_finish(self->broker);
    broker_destroy(&self->broker);
    channels_fini(&self->channels);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return saved;
}

/* ---- the schedule ---- */

static double recent_mean(const struct lockstep *self)
{
    uint64_t n = self->episodes < RECENT ? self->episodes : RECENT;
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++)
        sum += self->recent[i];
    return n ? sum / (double)n : NAN;
}

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_ns() - start_ns) * 1e-9;
}

static struct lockstep_report report_of(const struct lockstep *self, double evaluation)
{
    struct lockstep_report out = {.steps = self->steps,
                                  .learner_steps = self->agent ? self->agent->steps : 0,
                                  .seconds = seconds_since(self->start_ns),
                                  .evaluation = evaluation,
                                  .training = recent_mean(self),
                                  .episodes = self->episodes,
                                  .fingerprint = self->learner ? agent_fingerprint(self->agent) : 0,
                                  .stopped = is_stopped(self->options->stop)};
    for (uint32_t i = 0; i < self->n_players; i++) {
        struct adder_stats stats;
        adder_get_stats(self->players[i].loops[0].actor.options.adder, &stats);
        out.inserted += stats.items;
    }
    return out;
}

static void report(struct lockstep *self, double evaluation)
{
    if (!self->options->report)
        return;
    struct learner_stats stats = {0};
    struct lockstep_report line = report_of(self, evaluation);
    if (self->learner)
        learner_take_stats(self->learner, &stats);
    line.learner = &stats;
    self->options->report(self->options->ctx, &line);
}

/* The learner's present policy is copied, not published: an evaluation must not change the run. */
static rp_status evaluate(struct lockstep *self, rp_error *err)
{
    struct agent *copy = self->evaluator.agent;
    struct best result;
    for (uint32_t i = 0; i < self->agent->n_policy; i++)
        memcpy(copy->tensors[i].data, self->agent->tensors[i].data, tensor_bytes(&self->agent->tensors[i]));
    RP_TRY(crew_evaluate(&self->evaluator, self->steps, self->agent->steps, &result, err));
    self->evaluation = result.value;
    report(self, self->evaluation);
    return RP_OK;
}

static bool steps_taken(const struct lockstep *self)
{
    const struct stop_section *stop = &self->config->stop;
    return stop->steps > 0 && self->steps >= (uint64_t)stop->steps;
}

static bool steps_learned(const struct lockstep *self)
{
    const struct stop_section *stop = &self->config->stop;
    return stop->learner_steps > 0 && self->agent->steps >= (uint64_t)stop->learner_steps;
}

static rp_status act(struct lockstep *self, rp_error *err)
{
    for (uint32_t i = 0; i < self->n_players && !steps_taken(self); i++) {
        struct environment_loop *loop = &self->players[i].loops[0];
        bool ended;
        loop->actor.total = self->steps;
        RP_TRY(environment_loop_step(loop, &ended, err));
        self->steps++;
        self->now_ns += NS_PER_US;
        if (ended)
            self->recent[self->episodes++ % RECENT] = loop->episode.value;
        /* Before the next actor: items of two writers may arrive in any order. */
        RP_TRY(adder_flush(loop->actor.options.adder, 0, LOCKSTEP_CALL_MS, err));
    }
    return RP_OK;
}

static rp_status lockstep_learn(struct lockstep *self, rp_error *err)
{
    rp_status status = RP_OK;
    if (!self->learner)
        return RP_OK;
    if (self->n_players == 0) { /* each turn is a learner step */
        self->now_ns += NS_PER_US;
        return learner_step(self->learner, LOADED_MS, err);
    }
    do
        status = learner_step(self->learner, 0, err);
    while (status == RP_OK && !is_stopped(self->options->stop) && !steps_learned(self));
    return status == RP_DEADLINE_EXCEEDED || status == RP_OK ? RP_OK : status;
}

static bool finished(const struct lockstep *self)
{
    const struct stop_section *stop = &self->config->stop;
    return is_stopped(self->options->stop) || steps_taken(self) || steps_learned(self) ||
           (stop->time_ns > 0 && seconds_since(self->start_ns) * 1e9 >= (double)stop->time_ns) ||
           (isfinite(self->evaluation) && self->evaluation >= stop->value);
}

static rp_status take_turns(struct lockstep *self, rp_error *err)
{
    uint64_t every = (uint64_t)self->config->evaluator.every, next_evaluation = every;
    uint64_t next_report = self->options->report_every;
    while (!finished(self)) {
        RP_TRY(act(self, err));
        RP_TRY(lockstep_learn(self, err));
        uint64_t at = self->n_players > 0 ? self->steps : self->agent->steps;
        if (every > 0 && at >= next_evaluation) {
            next_evaluation += every;
            RP_TRY(evaluate(self, err));
        }
        if (self->options->report_every > 0 && at >= next_report) {
            next_report += self->options->report_every;
            report(self, NAN);
        }
    }
    return is_stopped(self->options->stop) ? RP_OK : evaluate(self, err);
}

/* Work in progress may have been done in another order. */
static void warn_of_breaks(const struct lockstep *self)
{
    rp_client_info info = {.struct_size = sizeof info};
    if (self->client && rp_client_get_info(self->client, &info, NULL) == RP_OK && info.reconnects > 0)
        log_line(LEVEL_WARN, "A0209", "the connection inside this process broke: the result may not be repeatable",
                 "times=%llu", (unsigned long long)info.reconnects);
}

rp_status lockstep_run(const struct lockstep_options *options, struct lockstep_report *out, rp_error *err)
{
    struct lockstep self = {.options = options, .config = options->config, .evaluation = NAN};
    self.start_ns = clock_ns();
    *out = (struct lockstep_report){.evaluation = NAN};
    int64_t batch = options->config->agent.batch;
    if (batch <= 0)
        batch = run_config_algorithm(options->config)->defaults->batch;
    RP_TRY(lockstep_check(options->config, (double)batch, err));
    net_single_thread();
    rp_status status = start_broker(&self, err);
    if (status == RP_OK)
        status = open_all(&self, err);
    self.start_ns = clock_ns(); /* the set-up does not count */
    if (status == RP_OK) {
        crew_keep(&self.evaluator, self.learner && options->weights_file ? options->config->folder : NULL, true);
        status = take_turns(&self, err);
    }
    if (status == RP_CANCELLED && is_stopped(options->stop))
        status = RP_OK;
    if (status == RP_OK && self.learner && options->weights_file)
        status = weights_write_file(options->weights_file, self.agent->tensors, self.agent->n_tensors, err);
    *out = report_of(&self, self.evaluation);
    warn_of_breaks(&self);
    out->lost = !close_all(&self);
    return status;
}
