/* An actor in a process of its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/program/worker_impl.h"
#include "agent/run/claim.h"
#include "agent/run/environment_round.h"
#include "proto/base/error.h"

/* Scalars of a report beside the shares of idle time. */
#define ACTOR_SCALARS 7

/* One environment of the actor, with its own stream of items. */
struct actor_seat {
    struct adder *adder;
    struct actor actor;
};

struct actor_work {
    struct worker worker;
    struct variables variables;
    struct actor_seat *seats;
    struct environment_loop *loops; /* one for each seat */
    uint32_t n;
    struct environment_round round;
    struct claim claim;
    uint64_t owed;   /* steps that are claimed and not taken */
    uint64_t total;  /* steps of all actors before these */
    uint64_t policy; /* learner step of the parameters that the adders know */
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

/* Sums over the seats. */
static void sum_seats(const struct actor_work *self, uint64_t *steps, struct adder_stats *sum, struct idle *idle)
{
    *steps = 0;
    *sum = (struct adder_stats){0};
    *idle = (struct idle){0};
    for (uint32_t i = 0; i < self->n; i++) {
        struct adder_stats stats;
        adder_get_stats(self->seats[i].adder, &stats);
        sum->items += stats.items;
        sum->rejected += stats.rejected;
        *steps += self->seats[i].actor.steps;
        for (int cause = 0; cause < IDLE_CAUSES; cause++)
            idle->ns[cause] += self->seats[i].actor.idle.ns[cause];
    }
}

static void actor_report(struct actor_work *self)
{
    struct worker *worker = &self->worker;
    int64_t now = clock_now(&worker->clock);
    double seconds = (double)(now - self->reported_ns) * 1e-9, n = self->value_count ? (double)self->value_count : NAN;
    uint64_t steps;
    struct adder_stats sum;
    struct idle idle;
    sum_seats(self, &steps, &sum, &idle);
    struct agent_scalar scalars[ACTOR_SCALARS + IDLE_CAUSES + 1] = {
        {"actor_steps", (double)steps},
        {"steps_per_second", (double)(steps - self->reported_steps) / seconds},
        {"episodes", (double)self->episodes},
        {"return", self->value_sum / n},
        {"episode_length", (double)self->length_sum / n},
        {"items", (double)sum.items},
        {"rejected", (double)sum.rejected},
    };
    uint32_t n_scalars = ACTOR_SCALARS + idle_report(&idle, &self->reported_idle, seconds, "blocked_share",
                                                     IDLE_OF_ACTOR, scalars + ACTOR_SCALARS);
    worker_report(worker, self->total, self->variables.steps, scalars, n_scalars);
    self->reported_ns = now;
    self->reported_steps = steps;
    self->value_sum = 0.0;
    self->value_count = self->length_sum = 0;
}

/* The seats share their parameters: the first of them pulls. */
static void tell_policy(struct actor_work *self)
{
    for (uint32_t i = 0; self->policy != self->variables.steps && i < self->n; i++)
        adder_set_policy(self->seats[i].adder, self->variables.steps);
    self->policy = self->variables.steps;
}

/* Takes the claimed steps in whole rounds. The rest waits for the next claim, unless there is none. An actor that is
 * stopped gives its remaining steps back to the other actors. */
static rp_status take_steps(struct actor_work *self, bool last, rp_error *err)
{
    rp_status status = RP_OK;
    while (status == RP_OK && self->owed >= (last ? 1 : self->n) && !worker_stopped(&self->worker)) {
        uint32_t taken = 0, n = self->owed < self->n ? (uint32_t)self->owed : self->n;
        status = environment_round_step(&self->round, n, self->total, &taken, err);
        self->owed -= taken;
        self->total += taken;
        tell_policy(self);
    }
    if (status != RP_OK || worker_stopped(&self->worker)) {
        claim_return(&self->claim, self->owed);
        self->owed = 0;
    }
    return status;
}

/* Takes the first parameters. */
static rp_status begin(struct actor_work *self, rp_error *err)
{
    const char *weights = self->worker.config->actors.weights;
    self->reported_ns = clock_now(&self->worker.clock);
    rp_status status = weights[0] ? variables_load(&self->variables, weights, err)
                                  : variables_wait(&self->variables, self->worker.options->stop, err);
    self->seats[0].actor.idle.ns[IDLE_PARAMETERS] += (uint64_t)(clock_now(&self->worker.clock) - self->reported_ns);
    tell_policy(self);
    return status;
}

/* Steps of a claim: at least those of a round. */
static uint64_t part_of(const struct actor_work *self)
{
    uint64_t part = (uint64_t)self->worker.config->actors.pull_every;
    return part > self->n ? part : self->n;
}

static rp_status act(struct actor_work *self, rp_error *err)
{
    RP_TRY(begin(self, err));
    while (!worker_stopped(&self->worker) && !worker_out_of_time(&self->worker)) {
        uint64_t n = 0, total = 0;
        RP_TRY(claim_next(&self->claim, part_of(self), &n, &total, err));
        self->seats[0].actor.idle.ns[IDLE_COUNTERS] = self->claim.wait_ns;
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

static rp_status open_seat(struct actor_work *self, uint32_t i, rp_error *err)
{
    const struct worker_options *options = self->worker.options;
    const struct run_config *config = options->config;
    struct actor_seat *seat = &self->seats[i];
    uint32_t index = options->index * self->n + i;
    char name[48];
    snprintf(name, sizeof name, i ? "%s.%u" : "%s", self->worker.name, i);
    const struct adder_options adder = {.client = self->worker.client,
                                        .name = name,
                                        .config = &config->adder,
                                        .spec = worker_spec(&self->worker),
                                        .with_log_prob = self->worker.agent->ops->stores_log_prob,
                                        .timeout_ms = WORKER_CONNECT_MS};
    seat->adder = adder_new(&adder, err);
    if (!seat->adder)
        return (rp_status)err->status;
    const struct actor_options actor = {.config = config,
                                        .agent = self->worker.agent,
                                        .adder = seat->adder,
                                        .variables = i > 0 || config->actors.weights[0] ? NULL : &self->variables,
                                        .index = index,
                                        .environments = self->n,
                                        .seed = worker_seed(config, "actor", index),
                                        .greedy = config->actors.greedy,
                                        .stop = options->stop};
    actor_init(&seat->actor, &actor);
    return environment_loop_init(&self->loops[i], &self->worker.envs.envs[i], &seat->actor)
               ? RP_OK
               : err_set(err, RP_NO_MEMORY, "no memory for an environment loop");
}

static rp_status actor_open(struct actor_work *self, const struct worker_options *options, rp_error *err)
{
    const struct run_config *config = options->config;
    RP_TRY(worker_open(&self->worker, options, "actor", err));
    struct worker *worker = &self->worker;
    self->n = worker->envs.n;
    self->seats = calloc(self->n, sizeof *self->seats);
    self->loops = calloc(self->n, sizeof *self->loops);
    if (!self->seats || !self->loops)
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", self->n);
    variables_init(&self->variables, worker->client, worker->agent);
    if (!config->actors.weights[0])
        RP_TRY(variables_subscribe(&self->variables, err));
    for (uint32_t i = 0; i < self->n; i++)
        RP_TRY(open_seat(self, i, err));
    if (!environment_round_init(&self->round, self->loops, self->n))
        return err_set(err, RP_NO_MEMORY, "no memory for %u environments", self->n);
    self->round.ended = on_episode;
    self->round.ctx = self;
    const struct claim_options claim = {.client = worker->client,
                                        .counter = COUNTER_STEPS,
                                        .taken = COUNTER_TAKEN,
                                        .clock = worker->clock,
                                        .limit = config->stop.steps,
                                        .least = part_of(self),
                                        .sharers = run_config_actors(config),
                                        .stop = options->stop};
    claim_init(&self->claim, &claim);
    return RP_OK;
}

/* Waits until the items are confirmed. Returns the first error. */
static rp_status close_seats(struct actor_work *self, rp_status status, rp_error *err)
{
    int64_t most_ms = worker_stopped(&self->worker) ? WORKER_STOPPED_MS : WORKER_CALL_MS;
    int64_t end_ns = clock_now(&self->worker.clock) + most_ms * NS_PER_MS;
    for (uint32_t i = 0; self->seats && i < self->n; i++) {
        if (self->loops)
            environment_loop_fini(&self->loops[i]);
        if (!self->seats[i].adder)
            continue;
        int64_t left_ms = (end_ns - clock_now(&self->worker.clock)) / NS_PER_MS;
        rp_status closing =
            adder_destroy(&self->seats[i].adder, left_ms > 0 ? left_ms : 0, status == RP_OK ? err : NULL);
        status = status == RP_OK ? worker_unless_stopped(&self->worker, closing) : status;
    }
    environment_round_fini(&self->round);
    free(self->seats);
    free(self->loops);
    return status;
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
    status = close_seats(&self, worker_unless_stopped(&self.worker, status), err);
    variables_fini(&self.variables);
    worker_close(&self.worker);
    return status;
}
