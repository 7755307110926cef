#include "broker/sample/samples.h"

#include <stdlib.h>

#include "broker/sample/reply_build.h"
#include "broker/sample/waiter.h"

void samples_init(struct samples *self)
{
    kept_list_init(&self->kept, self);
}

void samples_fini(struct samples *self)
{
    kept_list_fini(&self->kept);
    while (self->spare_waiters) {
        struct waiter *waiter = self->spare_waiters;
        self->spare_waiters = waiter->next;
        picks_fini(&waiter->picks);
        free(waiter);
    }
    self->n_spare_waiters = 0;
    reply_build_destroy(&self->build);
}
