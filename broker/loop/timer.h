/* Deadlines: a binary heap of timers, each embedded in the struct that waits. Timers with equal times fire in the order in
 * which they were set. The loop sleeps until the first deadline. */
#ifndef BROKER_TIMER_H
#define BROKER_TIMER_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    int64_t at_ns;
    uint64_t order;
    uint32_t place; /* in the heap, from 1 on; 0: not set */
    void (*fire)(struct timer *self, void *ctx);
    void *ctx; /* passed to fire */
};

struct timers {
    struct timer **heap; /* heap[0] is the first */
    uint32_t count, capacity;
    uint64_t order;
};

/* Makes room for one more timer, so that the next timer_set cannot fail. False: no memory. */
bool timer_reserve(struct timers *self);
/* Sets a timer, or moves one that is set. False: no memory. */
bool timer_set(struct timers *self, struct timer *timer, int64_t at_ns);
void timer_clear(struct timers *self, struct timer *timer);
/* Fires timers that are due, at most `most`. True: more are due. */
bool timers_run(struct timers *self, int64_t now_ns, uint32_t most);
/* Returns the time of the first timer. INT64_MAX: none is set. */
int64_t timers_next(const struct timers *self);
void timers_fini(struct timers *self);

#endif
