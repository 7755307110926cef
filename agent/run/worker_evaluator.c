/* An evaluator in a process of its own: greedy, and without an adder, so it never inserts. */
#include <stdio.h>
#include <time.h>

#include "agent/run/loop.h"
#include "agent/run/worker_impl.h"
#include "proto/error.h"
#include "proto/log.h"
#include "replay/params.h"

/* After the last environment step: a learner that publishes nothing for so long, without having ended, has died. */
#define LAST_WAIT_NS (60 * NS_PER_S)
/* Between two looks at how far the run is. */
#define LOOK_NS (20 * NS_PER_MS)

static rp_status evaluate_once(struct worker *self, struct loop *loop, struct variables *variables, uint64_t episodes,
                               uint64_t steps, double *mean, rp_error *err)
{
    int64_t from = clock_now(&self->clock);
    RP_TRY(loop_episodes(loop, episodes, mean, err));
    const struct agent_scalar scalars[] = {
        {"return", *mean},
        {"episodes", (double)episodes},
        {"seconds", (double)(clock_now(&self->clock) - from) * 1e-9},
    };
    worker_report(self, steps, variables->steps, scalars, sizeof scalars / sizeof scalars[0]);
    log_line(LEVEL_INFO, "A0303", "evaluation", "return=%.6g episodes=%llu environment_steps=%llu learner_steps=%llu",
             *mean, (unsigned long long)episodes, (unsigned long long)steps, (unsigned long long)variables->steps);
    return RP_OK;
}

/* All environment steps are taken, and the learner still learns from the last of them. Pulls until the parameters are
 * those that it published at its end. */
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

/* How far the run is, and whether that is its end: in environment steps of all actors, or without actors in learner steps of
 * the newest parameters. */
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

/* Without actors the parameters tell how far the run is; with them they are not needed before the next evaluation. */
static rp_status pause_looking(struct worker *self, struct variables *variables, rp_error *err)
{
    if (!self->config->actors.on)
        return variables_pull(variables, WORKER_RETRY_MS, NULL, err);
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    return RP_OK;
}

/* An evaluation every so many steps, of the newest parameters; and one of the last. */
static rp_status evaluate(struct worker *self, struct loop *loop, struct variables *variables, rp_error *err)
{
    const struct run_config *config = self->config;
    uint64_t episodes = (uint64_t)config->evaluator.episodes, every = (uint64_t)config->evaluator.every, next = every;
    RP_TRY(variables_wait(variables, self->options->stop, err));
    for (bool last = false; !last && !worker_stopped(self) && !worker_out_of_time(self);) {
        uint64_t at;
        rp_status status = look(self, variables, &at, &last, err);
        if (status != RP_OK && worker_try_again(self, status))
            continue;
        RP_TRY(status);
        if (!last && (every == 0 || at < next)) {
            RP_TRY(pause_looking(self, variables, err));
            continue;
        }
        while (every > 0 && next <= at)
            next += every;
        double mean;
        bool acts = config->actors.on;
        if (acts)
            RP_TRY(last ? await_last(self, variables, err) : variables_pull(variables, 0, NULL, err));
        RP_TRY(evaluate_once(self, loop, variables, episodes, acts ? worker_steps(self, (int64_t)at) : 0, &mean, err));
        last |= mean >= config->stop.value;
    }
    return RP_OK;
}

static rp_status evaluate_file(struct worker *self, struct loop *loop, struct variables *variables, rp_error *err)
{
    uint64_t n = self->options->episodes ? self->options->episodes : (uint64_t)self->config->evaluator.episodes;
    RP_TRY(weights_read_file(self->options->weights, self->agent->tensors, self->agent->n_policy, err));
    double mean;
    RP_TRY(evaluate_once(self, loop, variables, n, 0, &mean, err));
    printf("mean return of %llu episodes: %.6g\n", (unsigned long long)n, mean);
    return RP_OK;
}

rp_status worker_evaluator(const struct worker_options *options, rp_error *err)
{
    struct worker self;
    struct variables variables = {0};
    struct actor actor;
    struct loop loop = {0};
    rp_status status = worker_open(&self, options, "evaluator", err);
    if (status == RP_OK) {
        variables_init(&variables, self.client, self.agent);
        struct actor_options of = {.config = options->config,
                                   .agent = self.agent,
                                   .index = options->index,
                                   .seed = worker_seed(options->config, "evaluator", options->index),
                                   .greedy = true,
                                   .stop = options->stop};
        actor_init(&actor, &of);
        if (!loop_init(&loop, &self.env, &actor))
            status = err_set(err, RP_NO_MEMORY, "no memory for an environment loop");
    }
    if (status == RP_OK)
        status =
            options->weights ? evaluate_file(&self, &loop, &variables, err) : evaluate(&self, &loop, &variables, err);
    status = worker_unless_stopped(&self, status);
    loop_fini(&loop);
    variables_fini(&variables);
    worker_close(&self);
    return status;
}
