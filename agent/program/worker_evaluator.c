/* An evaluator in a process of its own: greedy, and without an adder, so it never inserts. It owns best.weights. */
#include <time.h>

#include "agent/program/measure.h"
#include "agent/program/worker_impl.h"
#include "agent/run/best.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "replay/params.h"

/* After the last environment step: a learner that publishes nothing for this long, without having ended, has died. */
#define LAST_WAIT_NS (60 * NS_PER_S)
/* Time between two looks at the progress of the run. */
#define LOOK_NS (20 * NS_PER_MS)

struct evaluator_work {
    struct worker worker;
    struct variables variables;
    struct actor actor;
    struct environment_loop loop;
    struct best_file best;
};

static void tell(struct evaluator_work *self, const struct best *result, double seconds)
{
    const struct agent_scalar scalars[] = {
        {"return", result->value},
        {"episodes", (double)result->episodes},
        {"seconds", seconds},
    };
    worker_report(&self->worker, result->environment_steps, result->learner_steps, scalars,
                  sizeof scalars / sizeof scalars[0]);
    log_line(LEVEL_INFO, "A0303", "evaluation", "return=%.6g episodes=%llu environment_steps=%llu learner_steps=%llu",
             result->value, (unsigned long long)result->episodes, (unsigned long long)result->environment_steps,
             (unsigned long long)result->learner_steps);
}

/* The parameters do not change during an evaluation: nothing is pulled. They are saved before their return is
 * reported, so a launcher that ends the run because of it finds them. */
static rp_status evaluate_once(struct evaluator_work *self, uint64_t steps, double *mean, rp_error *err)
{
    uint64_t episodes = (uint64_t)self->worker.config->evaluator.episodes;
    int64_t from = clock_now(&self->worker.clock);
    RP_TRY(environment_loop_episodes(&self->loop, episodes, mean, err));
    const struct best result = {
        .value = *mean, .episodes = episodes, .environment_steps = steps, .learner_steps = self->variables.steps};
    double seconds = (double)(clock_now(&self->worker.clock) - from) * 1e-9;
    best_file_offer(&self->best, self->worker.agent->tensors, self->worker.agent->n_policy, &result);
    tell(self, &result, seconds);
    return RP_OK;
}

/* All environment steps are taken, and the learner still learns from the last of them. Pulls until the parameters are
 * the ones that the learner published at its end. */
static rp_status await_last(struct worker *self, struct variables *variables, rp_error *err)
{
    int64_t news_ns = clock_now(&self->clock);
    while (!worker_stopped(self) && !worker_out_of_time(self) && clock_now(&self->clock) - news_ns < LAST_WAIT_NS) {
        int64_t end = 0;
        rp_status status = rp_counter_read(self->client, COUNTER_LEARNER_END, WORKER_READ_MS, &end, err);
        if (status != RP_OK && worker_try_again(self, status))
            continue;
        RP_TRY(status);
        if (end == (int64_t)variables->steps + 1)
            break;
        bool fresh;
        RP_TRY(variables_pull(variables, WORKER_RETRY_MS, &fresh, err));
        if (fresh)
            news_ns = clock_now(&self->clock);
    }
    return RP_OK;
}

/* The progress of the run, and whether the run ends: in environment steps of all actors, or without actors in learner
 * steps of the newest parameters. */
static rp_status look(struct worker *self, const struct variables *variables, uint64_t *at, bool *last, rp_error *err)
{
    const struct stop_section *stop = &self->config->stop;
    int64_t steps = 0;
    if (!self->config->actors.on) {
        *at = variables->steps;
        *last = stop->learner_steps > 0 && *at >= (uint64_t)stop->learner_steps;
        return RP_OK;
    }
    RP_TRY(rp_counter_read(self->client, COUNTER_STEPS, WORKER_READ_MS, &steps, err));
    *at = (uint64_t)steps;
    *last = stop->steps > 0 && steps >= stop->steps;
    return RP_OK;
}

/* Without actors the parameters show the progress of the run; with actors they are not needed before the next
 * evaluation. */
static rp_status pause_looking(struct worker *self, struct variables *variables, rp_error *err)
{
    if (!self->config->actors.on)
        return variables_pull(variables, WORKER_RETRY_MS, NULL, err);
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    return RP_OK;
}

/* The goal was reached, but the evaluator that found out may have been killed before it could report that. */
static bool reached_before(struct evaluator_work *self)
{
    bool reached = self->best.known && self->best.best.value >= self->worker.config->stop.value;
    if (reached)
        tell(self, &self->best.best, 0.0);
    return reached;
}

/* Evaluates the newest parameters at regular numbers of steps, and the last ones at the end. */
static rp_status evaluate(struct evaluator_work *self, rp_error *err)
{
    struct worker *worker = &self->worker;
    struct variables *variables = &self->variables;
    const struct run_config *config = worker->config;
    uint64_t every = (uint64_t)config->evaluator.every, next = every;
    RP_TRY(variables_wait(variables, worker->options->stop, err));
    for (bool last = false; !last && !worker_stopped(worker) && !worker_out_of_time(worker);) {
        uint64_t at;
        rp_status status = look(worker, variables, &at, &last, err);
        if (status != RP_OK && worker_try_again(worker, status))
            continue;
        RP_TRY(status);
        if (!last && (every == 0 || at < next)) {
            RP_TRY(pause_looking(worker, variables, err));
            continue;
        }
        while (every > 0 && next <= at)
            next += every;
        double mean;
        bool acts = config->actors.on;
        if (acts)
            RP_TRY(last ? await_last(worker, variables, err) : variables_pull(variables, 0, NULL, err));
        RP_TRY(evaluate_once(self, acts ? worker_steps(worker, (int64_t)at) : 0, &mean, err));
        last |= mean >= config->stop.value;
    }
    return RP_OK;
}

static rp_status evaluator_open(struct evaluator_work *self, const struct worker_options *options, rp_error *err)
{
    RP_TRY(worker_open(&self->worker, options, "evaluator", err));
    struct worker *worker = &self->worker;
    variables_init(&self->variables, worker->client, worker->agent);
    const struct actor_options of = {.config = options->config,
                                     .agent = worker->agent,
                                     .index = options->index,
                                     .seed = worker_seed(options->config, "evaluator", options->index),
                                     .greedy = true,
                                     .stop = options->stop};
    actor_init(&self->actor, &of);
    return environment_loop_init(&self->loop, &worker->envs.envs[0], &self->actor)
               ? RP_OK
               : err_set(err, RP_NO_MEMORY, "no memory for an environment loop");
}

rp_status worker_evaluator(const struct worker_options *options, rp_error *err)
{
    struct evaluator_work self = {0};
    rp_status status = evaluator_open(&self, options, err);
    if (status == RP_OK && options->weights) {
        status = measure_file(&self.worker, &self.variables, &self.loop, err);
    } else if (status == RP_OK) {
        best_file_open(&self.best, options->config->folder, !options->resume);
        status = reached_before(&self) ? RP_OK : evaluate(&self, err);
    }
    status = worker_unless_stopped(&self.worker, status);
    environment_loop_fini(&self.loop);
    variables_fini(&self.variables);
    worker_close(&self.worker);
    return status;
}
