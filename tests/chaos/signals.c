/* Linked with the broker's main file and --wrap: signals that arrive while main takes its broker down, and after that,
 * must not reach the broker. If one does, this program aborts. */
#include <signal.h>
#include <stdlib.h>

#include "broker/broker.h"

void __real_broker_destroy(struct broker **self);
void __wrap_broker_destroy(struct broker **self);
void __wrap_broker_stop(struct broker *self);
void __wrap_broker_checkpoint(struct broker *self);

static void send_all(void)
{
    static const int signals[] = {SIGUSR1, SIGTERM, SIGINT};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        raise(signals[i]);
}

void __wrap_broker_destroy(struct broker **self)
{
    send_all();
    __real_broker_destroy(self);
    send_all();
}

void __wrap_broker_stop(struct broker *self)
{
    (void)self;
    abort();
}

void __wrap_broker_checkpoint(struct broker *self)
{
    (void)self;
    abort();
}
