#include "broker/actor.h"

void broker_actor(zsock_t *pipe, void *given)
{
    struct broker_actor_args *args = given;
    args->broker = broker_new(args->config, args->clock ? *args->clock : clock_system(), args->context, &args->err);
    struct broker *broker = args->broker;
    zsock_signal(pipe, broker ? 0 : 1);
    if (!broker)
        return;
    /* The broker sleeps in its own poll: the pipe is checked every few milliseconds. */
    void *ends = zsock_resolve(pipe);
    while (!atomic_load(&broker->stop)) {
        broker_turn(broker, 10);
        int events = 0;
        size_t size = sizeof events;
        if (zmq_getsockopt(ends, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN)) {
            char *command = zstr_recv(pipe);
            bool end = !command || streq(command, "$TERM");
            zstr_free(&command);
            if (end)
                break;
        }
    }
    broker_finish(broker);
    broker_destroy(&broker);
    atomic_store(&args->done, true);
}
