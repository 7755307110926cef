/* A learner: samples, computes a gradient, shares it with other learners if there are any, applies it, writes
 * priorities back and publishes the policy. It runs unchanged in a process of its own and in one process with
 * actors. */
#pragma once

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/learn/agent.h"
#include "agent/run/group.h"
#include "agent/run/idle.h"
#include "agent/run/variables.h"
#include "replay/client.h"
#include "replay/sampler.h"

struct learner_options {
    const struct run_config *config;
    rp_client *client;   /* borrowed */
    struct agent *agent; /* borrowed */
    uint32_t index;
    bool lockstep; /* nothing stays in flight between two calls: batches, updates and parameters are awaited */
    const atomic_bool *stop; /* may be NULL */
};

/* Sums over the batches since the last learner_take_stats. */
struct learner_stats {
    uint64_t batches, items;
    uint64_t skipped;            /* items that do not fit environment and algorithm */
    double age_sum_s, age_max_s; /* age of items since their insert */
    double stale_sum, stale_max; /* how many learner steps, or versions, an item is behind */
    double weight_sum;           /* of importance weights */
    uint32_t n_scalars;          /* means */
    struct agent_scalar scalars[AGENT_MAX_SCALARS];
    uint64_t scalar_counts[AGENT_MAX_SCALARS]; /* of the batches that had each */
};

struct learner;

struct learner *learner_new(const struct learner_options *options, rp_error *err);
void learner_destroy(struct learner **self);
/* Takes one step. At every multiple of learners.snapshot_every steps, the leading learner saves its whole state to
 * snapshots/STEPS.weights in the run's folder; snapshots are never removed. RP_DEADLINE_EXCEEDED: no batch in time; the text says
 * what the table waits for. RP_CANCELLED: stopped. */
rp_status learner_step(struct learner *self, int64_t timeout_ms, rp_error *err);
/* A run without actors never gets more items than the broker has loaded: an error if there are fewer than the
 * limiter's min_size. */
rp_status learner_check_loaded(const struct learner *self, rp_error *err);
/* Publishes the present policy and waits until the broker has it. Between two steps the learner publishes by itself,
 * and waits only if the table has max_lag: the next batch is then of versions that it knows. */
rp_status learner_publish(struct learner *self, rp_error *err);
/* Time waited since its start. Others add what they wait for on its behalf. */
struct idle *learner_idle(struct learner *self);
/* True if this learner leads: it publishes, saves and counts. */
bool learner_leads(const struct learner *self);
void learner_take_stats(struct learner *self, struct learner_stats *out);
