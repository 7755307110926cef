/* What actor, learner and evaluator share. Not for other files. */
#ifndef AGENT_PROGRAM_WORKER_IMPL_H
#define AGENT_PROGRAM_WORKER_IMPL_H

#include "agent/log/log.h"
#include "agent/program/worker.h"
#include "proto/base/clock.h"
#include "replay/client.h"

#define WORKER_CONNECT_MS 30000
#define WORKER_CALL_MS 10000
/* For calls that may be repeated: time between two checks of the stop flag. */
#define WORKER_READ_MS 1000
#define WORKER_RETRY_MS 200
/* For confirmations after the process was stopped. */
#define WORKER_STOPPED_MS 500

/* The common part of every worker. */
struct worker {
    const struct worker_options *options;
    const struct run_config *config;
    char name[32];
    rp_client *client;     /* NULL: an evaluator of a file */
    struct env_group envs; /* one, or for an actor several */
    struct agent *agent;
    struct run_log *log;
    struct clock clock;
    int64_t start_ns, next_report_ns;
};

/* kind: "actor", "learner" or "evaluator". After an error, worker_close must still follow. */
rp_status worker_open(struct worker *self, const struct worker_options *options, const char *kind, rp_error *err);
void worker_close(struct worker *self);
/* The spec of its environments. */
const rp_env_spec *worker_spec(const struct worker *self);
bool worker_stopped(const struct worker *self);
bool worker_out_of_time(const struct worker *self);
bool worker_report_due(struct worker *self);
void worker_report(struct worker *self, uint64_t steps, uint64_t learner_steps, const struct agent_scalar *scalars,
                   uint32_t n);
/* A broker that is away for a while is no reason to end: returns true, after a pause, if the call should be
 * repeated. */
bool worker_try_again(const struct worker *self, rp_status status);
/* The counter, but no more than stop.steps: it exceeds stop.steps for a moment when actors claim the last steps. */
uint64_t worker_steps(const struct worker *self, int64_t counter);
/* An error while the process is being stopped is no error. */
rp_status worker_unless_stopped(const struct worker *self, rp_status status);

#endif
