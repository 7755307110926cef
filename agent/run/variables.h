/* Parameters on their way from learners to those who act: the slot "policy" holds the policy's tensors and the learner
 * step that made them. */
#ifndef AGENT_RUN_VARIABLES_H
#define AGENT_RUN_VARIABLES_H

#include <stdatomic.h>

#include "agent/learn/agent.h"
#include "replay/client.h"

#define VARIABLES_SLOT "policy"

struct variables {
    rp_client *client;   /* borrowed */
    struct agent *agent; /* borrowed; its policy is overwritten by newer ones */
    uint64_t version;    /* of the slot */
    uint64_t steps;      /* of the learner, when it made this policy */
    void *block;         /* encoding */
    size_t size;
};

void variables_init(struct variables *self, rp_client *client, struct agent *agent);
void variables_fini(struct variables *self);
/* Takes the newest policy if there is one. *fresh (may be NULL) tells. Not a word from the broker in time is no error:
 * the present policy goes on acting. */
rp_status variables_pull(struct variables *self, int64_t timeout_ms, bool *fresh, rp_error *err);
/* Waits for the first policy, until *stop (may be NULL) is set: RP_CANCELLED. */
rp_status variables_wait(struct variables *self, const atomic_bool *stop, rp_error *err);
/* The policy, and its learner's step, from a learner's saved state instead. */
rp_status variables_load(struct variables *self, const char *path, rp_error *err);
/* The learner's side. */
rp_status variables_publish(struct variables *self, int64_t timeout_ms, rp_error *err);

#endif
