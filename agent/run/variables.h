/* Parameters on their way from learners to those who act: the slot "policy" holds the policy's tensors and the learner
 * step that made them. */
#ifndef AGENT_RUN_VARIABLES_H
#define AGENT_RUN_VARIABLES_H

#include <stdatomic.h>

#include "agent/learn/agent.h"
#include "replay/client.h"
#include "replay/params.h"

#define VARIABLES_SLOT "policy"

struct variables {
    rp_client *client;   /* borrowed */
    struct agent *agent; /* borrowed; its policy is overwritten by newer ones */
    uint64_t version;    /* of the slot */
    uint64_t steps;      /* of the learner, when it made this policy */
    void *block;         /* encoding */
    size_t size;
    rp_publisher *publisher;   /* NULL: every publishing is a round trip */
    rp_subscriber *subscriber; /* NULL: every pull is a round trip */
};

void variables_init(struct variables *self, rp_client *client, struct agent *agent);
void variables_fini(struct variables *self);
/* From now on pulls take what has arrived meanwhile, and wait for nothing. Without it a pull asks the broker: whoever takes
 * turns with a learner gets what that has just published, and repeats exactly. */
rp_status variables_subscribe(struct variables *self, rp_error *err);
/* From now on variables_offer may be used. */
rp_status variables_open_publisher(struct variables *self, rp_error *err);
/* Takes the newest policy if there is one. *fresh (may be NULL) tells. Not a word from the broker in time is no error:
 * the present policy goes on acting. */
rp_status variables_pull(struct variables *self, int64_t timeout_ms, bool *fresh, rp_error *err);
/* Waits for the first policy, until *stop (may be NULL) is set: RP_CANCELLED. */
rp_status variables_wait(struct variables *self, const atomic_bool *stop, rp_error *err);
/* The policy, and its learner's step, from a learner's saved state instead. */
rp_status variables_load(struct variables *self, const char *path, rp_error *err);
/* The learner's side: publishes, and waits until the broker has it. */
rp_status variables_publish(struct variables *self, int64_t timeout_ms, rp_error *err);
/* Publishes without waiting; of those that are offered while one is under way the newest is sent. The error of an earlier
 * one is returned. */
rp_status variables_offer(struct variables *self, rp_error *err);

#endif
