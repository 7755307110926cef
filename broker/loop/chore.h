/* Chores: work whose cost grows with a table (freeing after a reset, mass removal, the end of a session), cut into slices so
 * that the core thread never stays with it for long. */
#ifndef BROKER_CHORE_H
#define BROKER_CHORE_H

#include <stdbool.h>
#include <stdint.h>

struct chore {
    struct chore *next;
    /* Does a slice of about 256 elements. True: more is left. False: done, and step has freed the chore. */
    bool (*step)(struct chore *self);
};

struct chores {
    struct chore *first, **last;
};

void chores_init(struct chores *self);
void chores_add(struct chores *self, struct chore *chore);
/* Takes a chore off the list, if it is there. */
void chores_remove(struct chores *self, const struct chore *chore);
/* Runs slices of all chores in turn until now() has advanced by budget_ns. True: more is left. */
bool chores_run(struct chores *self, int64_t (*now)(void *), void *ctx, int64_t budget_ns);

#endif
