#include "agent/program/worker.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agent/program/worker_impl.h"
#include "agent/run/actor.h"
#include "proto/base/error.h"

uint64_t worker_seed(const struct run_config *config, const char *part, uint32_t index)
{
    uint64_t hash = UINT64_C(14695981039346656037) ^ (uint64_t)config->seed;
    for (const char *c = part; *c; c++)
        hash = (hash ^ (uint64_t)(unsigned char)*c) * UINT64_C(1099511628211);
    struct rng rng;
    rng_seed(&rng, hash + index);
    return rng_next(&rng);
}

void worker_close(struct worker *self)
{
    run_log_destroy(&self->log);
    agent_destroy(&self->agent);
    env_group_close(&self->envs);
    if (self->client)
        rp_client_destroy(&self->client);
}

static int is_stopped(void *ctx)
{
    return worker_stopped(ctx);
}

/* Checks the stop flag while it waits. */
static rp_status connect_client(struct worker *self, rp_error *err)
{
    const struct worker_options *options = self->options;
    rp_client_options client = {.struct_size = sizeof client, .name = self->name, .zmq_context = options->context};
    int64_t wait_ms = options->connect_ms > 0 ? options->connect_ms : WORKER_CONNECT_MS;
    rp_wait_set(is_stopped, self);
    self->client = rp_client_connect(options->endpoint, &client, wait_ms, err);
    rp_wait_set(NULL, NULL);
    if (self->client)
        return RP_OK;
    if (worker_stopped(self))
        return err_set(err, RP_CANCELLED, "stopped while no broker answered");
    return (rp_status)err->status;
}

static rp_status open_environments(struct worker *self, const char *kind, rp_error *err)
{
    const struct run_config *config = self->config;
    bool acts = strcmp(kind, "actor") == 0, steps = strcmp(kind, "learner") != 0;
    const char *part = acts ? "environment" : "evaluator-environment";
    if (steps && env_is_python(&config->environment) && !self->options->provider)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "environment '%s' is Python, which this program cannot run: start '%s -m replaybus.actor' with "
                       "the same options instead, or the whole run with replay-launch",
                       env_name(&config->environment), config->environment.interpreter);
    RP_TRY(env_group_open(&self->envs, &config->environment, acts ? (uint32_t)config->actors.environments : 1,
                          steps ? self->options->provider : NULL, err));
    for (uint32_t i = 0; i < self->envs.n; i++)
        env_seed(&self->envs.envs[i], worker_seed(config, part, self->options->index * self->envs.n + i));
    return RP_OK;
}

rp_status worker_open(struct worker *self, const struct worker_options *options, const char *kind, rp_error *err)
{
    const struct run_config *config = options->config;
    *self = (struct worker){.options = options, .config = config, .clock = clock_system()};
    self->start_ns = clock_now(&self->clock);
    self->next_report_ns = self->start_ns + config->report.every_ns;
    snprintf(self->name, sizeof self->name, "%s-%u", kind, options->index);
    net_single_thread();
    RP_TRY(open_environments(self, kind, err));
    struct agent_config agent = config->agent;
    agent.acting_rows = self->envs.n < ACTOR_ROWS ? self->envs.n : ACTOR_ROWS;
    self->agent =
        agent_new(&agent, env_name(&config->environment), worker_spec(self), worker_seed(config, "parameters", 0), err);
    if (!self->agent)
        return (rp_status)err->status;
    struct run_log_options log = {.folder = config->folder,
                                  .process = self->name,
                                  .csv = config->report.csv,
                                  .tensorboard = config->report.tensorboard};
    self->log = run_log_new(&log, err);
    if (!self->log)
        return (rp_status)err->status;
    if (options->weights)
        return RP_OK;
    return connect_client(self, err);
}

const rp_env_spec *worker_spec(const struct worker *self)
{
    return &self->envs.envs[0].spec;
}

bool worker_stopped(const struct worker *self)
{
    return self->options->stop && atomic_load(self->options->stop);
}

bool worker_out_of_time(const struct worker *self)
{
    int64_t limit = self->config->stop.time_ns;
    return limit > 0 && clock_now(&self->clock) - self->start_ns >= limit;
}

bool worker_report_due(struct worker *self)
{
    int64_t now = clock_now(&self->clock);
    if (now < self->next_report_ns)
        return false;
    self->next_report_ns = now + self->config->report.every_ns;
    return true;
}

void worker_report(struct worker *self, uint64_t steps, uint64_t learner_steps, const struct agent_scalar *scalars,
                   uint32_t n)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct run_log_at at = {.time_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec,
                            .environment_steps = steps,
                            .learner_steps = learner_steps};
    run_log_report(self->log, &at, scalars, n);
}

bool worker_try_again(const struct worker *self, rp_status status)
{
    if (worker_stopped(self) || (status != RP_DEADLINE_EXCEEDED && status != RP_UNAVAILABLE))
        return false;
    nanosleep(&(struct timespec){.tv_nsec = WORKER_RETRY_MS * 1000000}, NULL);
    return true;
}

uint64_t worker_steps(const struct worker *self, int64_t counter)
{
    int64_t limit = self->config->stop.steps;
    return (uint64_t)(limit > 0 && counter > limit ? limit : counter > 0 ? counter : 0);
}

rp_status worker_unless_stopped(const struct worker *self, rp_status status)
{
    return status != RP_OK && worker_stopped(self) ? RP_OK : status;
}
