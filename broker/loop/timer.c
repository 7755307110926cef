#include "broker/loop/timer.h"

#include <stdlib.h>

static bool before(const struct timer *a, const struct timer *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void put(struct timers *self, uint32_t i, struct timer *timer)
{
    self->heap[i] = timer;
    timer->place = i + 1;
}

static void sift(struct timers *self, uint32_t i, struct timer *timer)
{
    while (i > 0 && before(timer, self->heap[(i - 1) / 2])) {
        put(self, i, self->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= self->count)
            break;
        if (child + 1 < self->count && before(self->heap[child + 1], self->heap[child]))
            child++;
        if (!before(self->heap[child], timer))
            break;
        put(self, i, self->heap[child]);
        i = child;
    }
    put(self, i, timer);
}

bool timer_reserve(struct timers *self)
{
    if (self->count < self->capacity)
        return true;
    uint32_t capacity = self->capacity ? self->capacity * 2 : 64;
    struct timer **heap = realloc(self->heap, capacity * sizeof(*heap));
    if (!heap)
        return false;
    self->heap = heap;
    self->capacity = capacity;
    return true;
}

bool timer_set(struct timers *self, struct timer *timer, int64_t at_ns)
{
    if (!timer->place) {
        if (!timer_reserve(self))
            return false;
        timer->place = ++self->count;
    }
    timer->at_ns = at_ns;
    timer->order = self->order++;
    sift(self, timer->place - 1, timer);
    return true;
}

void timer_clear(struct timers *self, struct timer *timer)
{
    if (!timer->place)
        return;
    uint32_t i = timer->place - 1;
    timer->place = 0;
    struct timer *last = self->heap[--self->count];
    if (last != timer)
        sift(self, i, last);
}

bool timers_run(struct timers *self, int64_t now_ns, uint32_t most)
{
    while (self->count && self->heap[0]->at_ns <= now_ns) {
        if (most-- == 0)
            return true;
        struct timer *timer = self->heap[0];
        timer_clear(self, timer);
        timer->fire(timer, timer->ctx);
    }
    return false;
}

int64_t timers_next(const struct timers *self)
{
    return self->count ? self->heap[0]->at_ns : INT64_MAX;
}

void timers_fini(struct timers *self)
{
    free(self->heap);
    *self = (struct timers){0};
}
