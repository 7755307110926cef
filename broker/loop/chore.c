#include "broker/loop/chore.h"

#include <stddef.h>

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

bool chores_run(struct chores *self, int64_t (*now)(void *), void *ctx, int64_t budget_ns)
{
    if (!self->first)
        return false;
    int64_t end = now(ctx) + budget_ns;
    do {
        struct chore *chore = self->first;
        self->first = chore->next;
        if (!self->first)
            self->last = &self->first;
        if (chore->step(chore))
            chores_add(self, chore);
    } while (self->first && now(ctx) < end);
    return self->first != NULL;
}
