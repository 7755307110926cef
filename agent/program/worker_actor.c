/* An actor in a process of its own. */
#include <math.h>

#include "agent/program/worker_impl.h"
#include "agent/run/claim.h"
#include "agent/run/environment_loop.h"
#include "proto/base/error.h"

struct actor_work {
    struct worker worker;
    struct variables variables;
    struct adder *adder;
    struct actor actor;
    struct environment_loop loop;
    struct claim claim;
    uint64_t episodes, reported_steps;
    double value_sum; /* sum of returns since the last report */
    uint64_t value_count, length_sum;
    int64_t reported_ns;
    struct idle reported_idle;
};

static void actor_report(struct actor_work *self)
{
    struct worker *worker = &self->worker;
    int64_t now = clock_now(&worker->clock);
    double seconds = (double)(now - self->reported_ns) * 1e-9, n = self->value_count ? (double)self->value_count : NAN;
    struct adder_stats stats;
    adder_get_stats(self->adder, &stats);
    struct agent_scalar scalars[6 + IDLE_CAUSES + 1] = {
        {"actor_steps", (double)self->actor.steps},
        {"steps_per_second", (double)(self->actor.steps - self->reported_steps) / seconds},
        {"episodes", (double)self->episodes},
        {"return", self->value_sum / n},
        {"episode_length", (double)self->length_sum / n},
        {"items", (double)stats.items},
    };
    uint32_t n_scalars =
        6 + idle_report(&self->actor.idle, &self->reported_idle, seconds, "blocked_share", IDLE_OF_ACTOR, scalars + 6);
    worker_report(worker, self->actor.total, self->variables.steps, scalars, n_scalars);
    self->reported_ns = now;
    self->reported_steps = self->actor.steps;
    self->value_sum = 0.0;
    self->value_count = self->length_sum = 0;
}

/* An actor that is stopped gives its remaining steps back to the other actors. */
static rp_status take_steps(struct actor_work *self, uint64_t n, rp_error *err)
{
    rp_status status = RP_OK;
    uint64_t taken = 0;
    for (; taken < n && status == RP_OK && !worker_stopped(&self->worker); taken++) {
        bool ended = false;
        status = environment_loop_step(&self->loop, &ended, err);
        if (!ended)
            continue;
        self->episodes++;
        self->value_sum += self->loop.episode.value;
        self->length_sum += self->loop.episode.steps;
        self->value_count++;
    }
    claim_return(&self->claim, n - taken);
    return status;
}

/* Takes the first parameters. */
static rp_status begin(struct actor_work *self, rp_error *err)
{
    const char *weights = self->worker.config->actors.weights;
    self->reported_ns = clock_now(&self->worker.clock);
    rp_status status = weights[0] ? variables_load(&self->variables, weights, err)
                                  : variables_wait(&self->variables, self->worker.options->stop, err);
    self->actor.idle.ns[IDLE_PARAMETERS] += (uint64_t)(clock_now(&self->worker.clock) - self->reported_ns);
    adder_set_policy(self->adder, self->variables.steps);
    return status;
}

static rp_status act(struct actor_work *self, rp_error *err)
{
    uint64_t part = (uint64_t)self->worker.config->actors.pull_every;
    RP_TRY(begin(self, err));
    while (!worker_stopped(&self->worker) && !worker_out_of_time(&self->worker)) {
        uint64_t n = 0;
        RP_TRY(claim_next(&self->claim, part, &n, &self->actor.total, err));
        self->actor.idle.ns[IDLE_COUNTERS] = self->claim.wait_ns;
        if (n == 0)
            break;
        RP_TRY(take_steps(self, n, err));
        if (worker_report_due(&self->worker))
            actor_report(self);
    }
    return RP_OK;
}

static rp_status actor_open(struct actor_work *self, const struct worker_options *options, rp_error *err)
{
    const struct run_config *config = options->config;
    RP_TRY(worker_open(&self->worker, options, "actor", err));
    struct worker *worker = &self->worker;
    const struct adder_options adder = {.client = worker->client,
                                        .name = worker->name,
                                        .config = &config->adder,
                                        .spec = &worker->env.spec,
                                        .with_log_prob = worker->agent->ops->stores_log_prob,
                                        .timeout_ms = WORKER_CONNECT_MS};
    self->adder = adder_new(&adder, err);
    if (!self->adder)
        return (rp_status)err->status;
    variables_init(&self->variables, worker->client, worker->agent);
    if (!config->actors.weights[0])
        RP_TRY(variables_subscribe(&self->variables, err));
    struct actor_options actor = {.config = config,
                                  .agent = worker->agent,
                                  .adder = self->adder,
                                  .variables = config->actors.weights[0] ? NULL : &self->variables,
                                  .index = options->index,
                                  .seed = worker_seed(config, "actor", options->index),
                                  .greedy = config->actors.greedy,
                                  .stop = options->stop};
    actor_init(&self->actor, &actor);
    struct claim_options claim = {.client = worker->client,
                                  .counter = COUNTER_STEPS,
                                  .clock = worker->clock,
                                  .limit = config->stop.steps,
                                  .least = (uint64_t)config->actors.pull_every,
                                  .sharers = run_config_actors(config),
                                  .stop = options->stop};
    claim_init(&self->claim, &claim);
    return environment_loop_init(&self->loop, &worker->env, &self->actor)
               ? RP_OK
               : err_set(err, RP_NO_MEMORY, "no memory for an environment loop");
}

rp_status worker_actor(const struct worker_options *options, rp_error *err)
{
    struct actor_work self = {0};
    rp_status status = actor_open(&self, options, err);
    if (status == RP_OK) {
        status = act(&self, err);
        claim_fini(&self.claim);
        actor_report(&self);
    }
    status = worker_unless_stopped(&self.worker, status);
    if (self.adder) {
        rp_status closing =
            adder_destroy(&self.adder, worker_stopped(&self.worker) ? WORKER_STOPPED_MS : WORKER_CALL_MS,
                          status == RP_OK ? err : NULL);
        status = status == RP_OK ? worker_unless_stopped(&self.worker, closing) : status;
    }
    environment_loop_fini(&self.loop);
    variables_fini(&self.variables);
    worker_close(&self.worker);
    return status;
}
