/* A broker as a czmq actor, on a thread of its own. For single-process runs, tests and benches.
 *
 *   struct broker_actor_args args = {.config = &config, .context = context};
 *   zactor_t *actor = zactor_new(broker_actor, &args);   returns when the broker has bound its sockets or has failed
 *   if (!args.broker) ... args.err.text
 *   zactor_destroy(&actor);                              drains and ends it */
#ifndef BROKER_ACTOR_H
#define BROKER_ACTOR_H

#include <czmq.h>

#include "broker/broker.h"

struct broker_actor_args {
    const struct broker_config *config; /* borrowed while the actor runs */
    void *context;                      /* zmq context for inproc endpoints, or NULL */
    const struct clock *clock;          /* borrowed; NULL: the system's */
    struct broker *broker;              /* set when zactor_new returns; NULL: it could not start */
    rp_error err;
    atomic_bool done; /* set last: the actor uses nothing of its caller any more */
};

void broker_actor(zsock_t *pipe, void *args);

#endif
