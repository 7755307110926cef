/* What the configuration says about a profile: its target, its budgets, and how rates measured with the first
 * policies are converted. */
#include <math.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/profile/profile_config.h"

/* A side that waits nearly all the time says too little about what it could do. */
#define MOST_IDLE 0.95

int64_t profile_batch(const struct run_config *config)
{
    const struct agent_ops *ops = run_config_algorithm(config);
    int64_t batch = config->agent.batch > 0 || !ops ? config->agent.batch : ops->defaults->batch;
    return batch > 0 ? batch : 1;
}

double profile_target(const struct run_config *config)
{
    const struct table_config *table = run_config_table(config);
    if (config->plan.spi > 0 || !table)
        return config->plan.spi;
    double times = table->max_times_sampled > 0 ? (double)table->max_times_sampled : 0.0;
    switch (table->limiter.kind) {
    case LIMITER_RATIO:
        return table->limiter.samples_per_insert;
    case LIMITER_QUEUE:
    case LIMITER_STACK:
        return times > 0 ? times : 1.0;
    default:
        return times;
    }
}

/* Cores and memory of all machines that take processes, and of home, where the broker runs. */
static void add_hosts(struct plan_input *out)
{
    out->cores = out->memory = 0.0;
    for (uint32_t i = 0; i < out->n_hosts; i++) {
        const struct plan_host *host = &out->hosts[i];
        if (i > 0 && !host->actors && !host->learners)
            continue;
        out->cores += host->cores;
        out->memory += host->memory;
    }
}

void profile_fill(const struct run_config *config, struct plan_input *out)
{
    out->spi = profile_target(config);
    out->cores = config->plan.cores > 0 ? config->plan.cores : machine_cores();
    out->memory = config->plan.memory > 0 ? (double)config->plan.memory : machine_memory();
    out->other_memory = config->evaluator.on && out->actors.n > 0 ? out->actors.points[0].memory : 0.0;
    out->fixed_actors = (uint32_t)config->actors.count;
    out->fixed_learners = (uint32_t)config->learners.count;
    out->max_actors = (uint32_t)config->plan.max_actors;
    out->max_learners = (uint32_t)config->plan.max_learners;
    out->fixed_shards = config->broker.shards.count;
    out->most_shards = run_config_most_shards(config, profile_batch(config));
    if (out->n_hosts > 0)
        add_hosts(out);
}

/* ---- what lasts ---- */

/* Items of an episode with this many steps. See agent/adder/transition.c and sequence.c. */
static double items_in_episode(const struct adder_config *adder, double steps)
{
    if (adder->kind == ADDER_TRANSITION)
        return steps + fmin((double)adder->n_step, steps) - 1.0;
    double rows = steps + 1.0, length = (double)adder->length, period = (double)adder->period;
    if (adder->end == ADDER_CONTINUE)
        return rows / period;
    return 1.0 + (rows > length ? ceil((rows - length) / period) : 0.0);
}

double profile_items_per_step(const struct run_config *config)
{
    struct env env;
    if (config->actors.command.count > 0 || config->adder.kind == ADDER_EPISODE)
        return 0.0;
    if (env_open(&env, &config->environment, NULL) != RP_OK)
        return 0.0;
    double most = (double)env.spec.max_steps;
    env_close(&env);
    if (most > 0)
        return items_in_episode(&config->adder, most) / most;
    return config->adder.kind == ADDER_TRANSITION ? 1.0 : 1.0 / (double)config->adder.period;
}

double profile_lasting(double items_per_step, double steps, double inserts)
{
    return items_per_step > 0 && steps > 0 ? fmin(inserts, items_per_step * steps) : inserts;
}

void profile_lasting_joint(double items_per_step, double steps, struct plan_joint *joint)
{
    double idle = isnan(joint->actor_idle) ? 0.0 : joint->actor_idle;
    if (!(items_per_step > 0 && steps > 0 && joint->inserts > 0) || idle > MOST_IDLE)
        return;
    double could = items_per_step * steps / (1.0 - idle), inserts = fmin(joint->inserts, could);
    double share = inserts / joint->inserts;
    joint->inserts = inserts;
    joint->samples *= share;
    if (!isnan(joint->actor_idle))
        joint->actor_idle = fmin(idle, 1.0 - inserts / could);
    if (!isnan(joint->learner_idle))
        joint->learner_idle = 1.0 - (1.0 - joint->learner_idle) * share;
}
