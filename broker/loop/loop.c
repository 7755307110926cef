#include "broker/loop/loop.h"

#include <stddef.h>
#include <stdlib.h>

#include "proto/base/need.h"

/* ---- timers */

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

void timer_set(struct timers *self, struct timer *timer, int64_t at_ns)
{
    if (!timer->place) {
        self->heap = need_room(self->heap, self->count, &self->capacity, sizeof(*self->heap));
        timer->place = ++self->count;
    }
    timer->at_ns = at_ns;
    timer->order = self->order++;
    sift(self, timer->place - 1, timer);
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
        timer->fire(timer);
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

/* ---- chores */

void chores_init(struct chores *self)
{
    self->first = NULL;
    self->last = &self->first;
}

void chores_add(struct chores *self, struct chore *chore)
{
    chore->next = NULL;
    *self->last = chore;
    self->last = &chore->next;
}

void chores_remove(struct chores *self, const struct chore *chore)
{
    struct chore **at = &self->first;
    while (*at && *at != chore)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = chore->next;
    if (!*at)
        self->last = at;
}

bool chores_run(struct chores *self, const struct clock *clock, int64_t budget_ns)
{
    if (!self->first)
        return false;
    int64_t end = clock_now(clock) + budget_ns;
    do {
        struct chore *chore = self->first;
        self->first = chore->next;
        if (!self->first)
            self->last = &self->first;
        if (chore->step(chore))
            chores_add(self, chore);
    } while (self->first && clock_now(clock) < end);
    return self->first != NULL;
}
