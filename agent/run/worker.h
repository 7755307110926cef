/* An actor, an evaluator or a learner in a process of its own, with a broker. */
#pragma once

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/env/env.h"
#include "replay/error.h"

struct worker_options {
    const struct run_config *config;
    const char *endpoint; /* endpoint of the broker's service */
    uint32_t index;
    const atomic_bool *stop;
    const char *weights; /* evaluator: a saved learner instead of a broker; NULL: from the broker */
    bool show, json;     /* with weights: show the episodes; print the result as JSON */
    bool resume;        /* continue from the folder's state, if there is one: of a learner, or of the best evaluation */
    int64_t connect_ms; /* how long to wait for the broker at the start; 0: 30 s */
    void *context;      /* zmq context, for inproc; NULL: its own */
    const struct env_provider *provider; /* makes environments in Python; NULL: there are none */
};

/* Counters at the broker, shared by all processes. */
#define COUNTER_STEPS "environment_steps" /* claimed before they are taken; an actor that ends gives back its rest */
#define COUNTER_TAKEN "environment_steps_taken" /* taken by our actors; at most a moment behind, and it never falls */
#define COUNTER_LEARNER_STEPS "learner_steps"
/* Learner steps + 1 of the parameters that a learner published at its end; 0: none has ended. */
#define COUNTER_LEARNER_END "learner_end"
/* Of whose folder the tables and the other counters are; below 0: the parameters are still those of another run. */
#define COUNTER_RUN "run_folder"
/* Raised by whoever wants the evaluator to measure, or the learner to save its state, now. */
#define COUNTER_EVALUATE "evaluations_asked"
#define COUNTER_SAVE "saves_asked"
/* In the run's folder. */
#define LEARNER_STATE_FILE "learner.weights"

/* Each returns when its work is done (stop.steps, stop.learner_steps, stop.time) or *stop is set: RP_OK in both
 * cases. */
rp_status worker_actor(const struct worker_options *options, rp_error *err);
rp_status worker_learner(const struct worker_options *options, rp_error *err);
rp_status worker_evaluator(const struct worker_options *options, rp_error *err);

/* Seeds of the parts of a run, all derived from its one seed: different from each other, and the same in every mode. */
uint64_t worker_seed(const struct run_config *config, const char *part, uint32_t index);
