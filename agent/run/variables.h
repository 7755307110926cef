/* Parameters on their way from learners to actors: the slot "policy" holds the policy's tensors and the learner step
 * that made them. */
#pragma once

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/learn/agent.h"
#include "replay/client.h"
#include "replay/params.h"

#define VARIABLES_SLOT "policy"

struct variables {
    rp_client *client;   /* borrowed */
    struct agent *agent; /* borrowed; newer policies overwrite its policy */
    uint64_t version;    /* version of the slot */
    uint64_t steps;      /* steps of the learner when it made this policy */
    void *block;         /* encoding */
    size_t size;
    rp_publisher *publisher;   /* opened with the first publication */
    rp_subscriber *subscriber; /* NULL: every pull is a round trip */
};

void variables_init(struct variables *self, rp_client *client, struct agent *agent);
void variables_fini(struct variables *self);
/* From now on a pull takes the newest policy that has arrived, and never waits. Without this a pull asks the broker:
 * an actor that takes turns with a learner then gets what the learner has just published, so that runs repeat
 * exactly. */
rp_status variables_subscribe(struct variables *self, rp_error *err);
/* Takes the newest policy if there is one; *fresh (may be NULL) says whether. No answer from the broker in time is
 * not an error: the present policy stays. */
rp_status variables_pull(struct variables *self, int64_t timeout_ms, bool *fresh, rp_error *err);
/* What the items that this policy makes are stamped with: the version of the slot if the run's table has max_lag, otherwise the learner's
 * steps, which also survive a broker that has lost the slot. */
uint64_t variables_stamp(const struct variables *self, const struct run_config *config);
/* Waits for the first policy, until *stop (may be NULL) is set: RP_CANCELLED. */
rp_status variables_wait(struct variables *self, const atomic_bool *stop, rp_error *err);
/* Loads the policy and its learner step from a learner's saved state instead. */
rp_status variables_load(struct variables *self, const char *path, rp_error *err);
/* For the learner: publishes, and waits until the broker has the policy. */
rp_status variables_publish(struct variables *self, int64_t timeout_ms, rp_error *err);
/* Publishes without waiting; of several that are offered while one is in flight only the newest is sent. Returns the
 * error of an earlier publication. */
rp_status variables_offer(struct variables *self, rp_error *err);
