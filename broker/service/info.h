/* What a broker says of itself, filled in from all rooms: the messages of Info and Why for requests (req_info, req_why), and snapshots
 * for other threads (loop/snapshot.h). The messages live in an arena and point to nothing outside of it.
 *
 * A snapshot is made when one is asked for, in slices, as a chore of the loop. While nobody asks, a turn costs one load. */
#pragma once

#include "broker/loop/loop.h"
#include "broker/loop/snapshot.h"

struct service;
struct signature;

struct snapshot_maker {
    struct exchange exchange;
    struct service *service; /* borrowed */
    struct chore chore;
    bool running;              /* the chore is in the loop's list */
    struct snapshot *snapshot; /* being made; NULL: none */
    uint32_t stage;            /* of the work, see info.c */
    uint32_t sessions_most;    /* room in the list of sessions */
};

/* Describes the fields that a table prescribes. */
Replay__Column **info_signature(struct arena *arena, const struct signature *signature);

/* wake_fd (an eventfd that wakes the loop) and service are borrowed. */
void snapshot_maker_init(struct snapshot_maker *self, struct service *service, int wake_fd);
void snapshot_maker_fini(struct snapshot_maker *self);
/* Begins a snapshot with these parts. */
void snapshot_maker_begin(struct snapshot_maker *self, unsigned parts);
/* Begins a snapshot if one is wanted. In every turn, before the chores. True: there is something to do. */
static inline bool snapshot_maker_run(struct snapshot_maker *self)
{
    unsigned parts = self->running ? 0 : exchange_wanted(&self->exchange);
    if (__builtin_expect(parts != 0, 0))
        snapshot_maker_begin(self, parts);
    return parts != 0;
}
