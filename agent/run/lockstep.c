#include "agent/run/lockstep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "agent/run/loop.h"
#include "agent/run/worker.h"
#include "broker/actor.h"
#include "proto/clock.h"
#include "proto/error.h"

#define CALL_MS 60000
#define RECENT 20u

struct seat { /* an actor with its environment */
    struct env env;
    struct adder *adder;
    struct agent *agent; /* its own copy of the policy, as in a process of its own */
    struct variables variables;
    struct actor actor;
    struct loop loop;
};

struct lockstep {
    const struct lockstep_options *options;
    const struct run_config *config;
    struct broker_config broker_config; /* the run's, on inproc endpoints */
    void *context;
    _Atomic int64_t now_ns;
    struct clock clock;
    struct broker_actor_args broker_args;
    zactor_t *broker;
    rp_client *client;
    struct agent *agent; /* the learner's */
    struct learner *learner;
    struct seat *seats;
    uint32_t n_seats;
    struct seat evaluator;
    uint64_t steps, episodes;
    double recent[RECENT];
    double evaluation;
    int64_t start_ns;
};

/* ---- set-up ---- */

static int64_t stepped_now(void *ctx)
{
    return atomic_load_explicit((_Atomic int64_t *)ctx, memory_order_relaxed);
}

static rp_status start_broker(struct lockstep *self, rp_error *err)
{
    static char service[] = "inproc://service", ingest[] = "inproc://ingest", events[] = "inproc://events";
    self->broker_config = self->config->broker; /* the strings and lists stay the run's */
    self->broker_config.service = service;
    self->broker_config.ingest = ingest;
    self->broker_config.events = events;
    self->broker_config.notice_ns = 0; /* every step is awaited */
    self->broker_config.seed = (int64_t)(worker_seed(self->config, "broker", 0) >> 1);
    self->context = zmq_ctx_new();
    self->clock = (struct clock){.now = stepped_now, .ctx = &self->now_ns};
    self->broker_args =
        (struct broker_actor_args){.config = &self->broker_config, .context = self->context, .clock = &self->clock};
    self->broker = self->context ? zactor_new(broker_actor, &self->broker_args) : NULL;
    if (!self->broker)
        return err_set(err, RP_NO_MEMORY, "the broker's thread could not be started");
    if (!self->broker_args.broker) {
        *err = self->broker_args.err;
        return (rp_status)err->status;
    }
    rp_client_options options = {.struct_size = sizeof options, .name = "single", .zmq_context = self->context};
    self->client = rp_client_connect(service, &options, CALL_MS, err);
    return self->client ? RP_OK : RP_UNAVAILABLE;
}

/* index -1: the evaluator, which has no adder. */
static rp_status open_seat(struct lockstep *self, struct seat *seat, int index, rp_error *err)
{
    const struct run_config *config = self->config;
    const char *part = index < 0 ? "evaluator" : "actor";
    uint32_t number = index < 0 ? 0 : (uint32_t)index;
    RP_TRY(env_open(&seat->env, &config->environment, err));
    env_seed(&seat->env, worker_seed(config, index < 0 ? "evaluator-environment" : "environment", number));
    seat->agent =
        agent_new(&config->agent, config->environment.name, &seat->env.spec, worker_seed(config, "parameters", 0), err);
    if (!seat->agent)
        return (rp_status)err->status;
    if (index >= 0) {
        char name[32];
        snprintf(name, sizeof name, "actor-%d", index);
        seat->adder = adder_new(self->client, name, &config->adder, &seat->env.spec, seat->agent->ops->stores_log_prob,
                                CALL_MS, err);
        if (!seat->adder)
            return (rp_status)err->status;
    }
    variables_init(&seat->variables, self->client, seat->agent);
    struct actor_options options = {.config = config,
                                    .agent = seat->agent,
                                    .adder = seat->adder,
                                    .variables = index < 0 ? NULL : &seat->variables,
                                    .index = number,
                                    .seed = worker_seed(config, part, number),
                                    .greedy = index < 0,
                                    .stop = self->options->stop};
    actor_init(&seat->actor, &options);
    if (!loop_init(&seat->loop, &seat->env, &seat->actor))
        return err_set(err, RP_NO_MEMORY, "no memory for an environment loop");
    return RP_OK;
}

static void close_seat(struct seat *seat)
{
    loop_fini(&seat->loop);
    variables_fini(&seat->variables);
    if (seat->adder)
        adder_destroy(&seat->adder, 1000, NULL);
    agent_destroy(&seat->agent);
    env_close(&seat->env);
}

static rp_status open_all(struct lockstep *self, rp_error *err)
{
    const struct run_config *config = self->config;
    RP_TRY(open_seat(self, &self->evaluator, -1, err));
    self->agent = agent_new(&config->agent, config->environment.name, &self->evaluator.env.spec,
                            worker_seed(config, "parameters", 0), err);
    if (!self->agent)
        return (rp_status)err->status;
    rng_seed(&self->agent->rng, worker_seed(config, "learner", 0));
    struct learner_options options = {
        .config = config, .client = self->client, .agent = self->agent, .lockstep = true, .stop = self->options->stop};
    self->learner = learner_new(&options, err);
    if (!self->learner)
        return (rp_status)err->status;
    RP_TRY(learner_publish(self->learner, err));
    self->seats = calloc((size_t)config->actors.count, sizeof *self->seats);
    if (!self->seats)
        return err_set(err, RP_NO_MEMORY, "no memory for %d actors", (int)config->actors.count);
    for (; self->n_seats < (uint32_t)config->actors.count; self->n_seats++) {
        rp_status status = open_seat(self, &self->seats[self->n_seats], (int)self->n_seats, err);
        if (status != RP_OK) {
            close_seat(&self->seats[self->n_seats]);
            return status;
        }
        RP_TRY(variables_wait(&self->seats[self->n_seats].variables, self->options->stop, err));
    }
    return RP_OK;
}

static void close_all(struct lockstep *self)
{
    for (uint32_t i = 0; i < self->n_seats; i++)
        close_seat(&self->seats[i]);
    free(self->seats);
    learner_destroy(&self->learner);
    agent_destroy(&self->agent);
    close_seat(&self->evaluator);
    if (self->client)
        rp_client_destroy(&self->client);
    zactor_destroy(&self->broker);
    if (self->context)
        zmq_ctx_term(self->context);
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
    struct clock clock = clock_system();
    return (double)(clock_now(&clock) - start_ns) * 1e-9;
}

static void report(struct lockstep *self, double evaluation)
{
    if (!self->options->report)
        return;
    struct learner_stats stats;
    learner_take_stats(self->learner, &stats);
    struct lockstep_report line = {.steps = self->steps,
                                   .learner_steps = self->agent->steps,
                                   .seconds = seconds_since(self->start_ns),
                                   .evaluation = evaluation,
                                   .training = recent_mean(self),
                                   .episodes = self->episodes,
                                   .learner = &stats};
    self->options->report(self->options->ctx, &line);
}

static bool stopped(const struct lockstep *self)
{
    return self->options->stop && atomic_load(self->options->stop);
}

static rp_status evaluate(struct lockstep *self, rp_error *err)
{
    struct seat *seat = &self->evaluator;
    RP_TRY(learner_publish(self->learner, err));
    RP_TRY(variables_pull(&seat->variables, CALL_MS, NULL, err));
    RP_TRY(loop_episodes(&seat->loop, (uint64_t)self->config->evaluator.episodes, &self->evaluation, err));
    report(self, self->evaluation);
    return RP_OK;
}

static rp_status act(struct lockstep *self, rp_error *err)
{
    for (uint32_t i = 0; i < self->n_seats; i++) {
        struct seat *seat = &self->seats[i];
        bool ended;
        seat->actor.total = self->steps;
        RP_TRY(loop_step(&seat->loop, &ended, err));
        self->steps++;
        atomic_fetch_add_explicit(&self->now_ns, NS_PER_US, memory_order_relaxed);
        if (ended)
            self->recent[self->episodes++ % RECENT] = seat->loop.episode.value;
        RP_TRY(adder_flush(seat->adder, 0, CALL_MS, err)); /* before the next: two writers' items come in any order */
    }
    return RP_OK;
}

static rp_status learn(struct lockstep *self, rp_error *err)
{
    rp_status status;
    do
        status = learner_step(self->learner, 0, err);
    while (status == RP_OK && !stopped(self));
    return status == RP_DEADLINE_EXCEEDED || status == RP_OK ? RP_OK : status;
}

static bool finished(const struct lockstep *self)
{
    const struct stop_section *stop = &self->config->stop;
    return stopped(self) || (stop->steps > 0 && self->steps >= (uint64_t)stop->steps) ||
           (stop->learner_steps > 0 && self->agent->steps >= (uint64_t)stop->learner_steps) ||
           (stop->time_ns > 0 && seconds_since(self->start_ns) * 1e9 >= (double)stop->time_ns) ||
           (isfinite(self->evaluation) && self->evaluation >= stop->value);
}

static rp_status take_turns(struct lockstep *self, rp_error *err)
{
    uint64_t every = (uint64_t)self->config->evaluator.every, next_evaluation = every;
    uint64_t next_report = self->options->report_every;
    while (!finished(self)) {
        RP_TRY(act(self, err));
        RP_TRY(learn(self, err));
        if (every > 0 && self->steps >= next_evaluation) {
            next_evaluation += every;
            RP_TRY(evaluate(self, err));
        }
        if (self->options->report_every > 0 && self->steps >= next_report) {
            next_report += self->options->report_every;
            report(self, NAN);
        }
    }
    return stopped(self) ? RP_OK : evaluate(self, err);
}

static bool bounded(const struct run_config *config)
{
    const struct table_config *tables = config->broker.tables.data;
    for (uint32_t i = 0; i < config->broker.tables.count; i++) {
        if (strcmp(tables[i].name, config->adder.table) == 0)
            return tables[i].limiter.kind != LIMITER_MIN_SIZE;
    }
    return false;
}

rp_status lockstep_run(const struct lockstep_options *options, struct lockstep_result *out, rp_error *err)
{
    struct lockstep self = {.options = options, .config = options->config, .evaluation = NAN};
    struct clock clock = clock_system();
    self.start_ns = clock_now(&clock);
    if (!bounded(options->config))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a run in one process learns for as long as the limiter of table '%s' lets it, and a min_size "
                       "limiter always does: use sample_to_insert_ratio or queue",
                       options->config->adder.table);
    net_single_thread();
    rp_status status = start_broker(&self, err);
    if (status == RP_OK)
        status = open_all(&self, err);
    if (status == RP_OK)
        status = take_turns(&self, err);
    if (status == RP_OK && options->weights_file)
        status = learner_save(self.learner, options->weights_file, err);
    *out = (struct lockstep_result){.evaluation = self.evaluation,
                                    .steps = self.steps,
                                    .learner_steps = self.agent ? self.agent->steps : 0,
                                    .episodes = self.episodes,
                                    .seconds = seconds_since(self.start_ns),
                                    .fingerprint = self.learner ? learner_fingerprint(self.learner) : 0};
    for (uint32_t i = 0; i < self.n_seats; i++) {
        struct adder_stats stats;
        adder_get_stats(self.seats[i].adder, &stats);
        out->inserted += stats.items;
    }
    close_all(&self);
    return status;
}
