/* A broker with a journal and tables of all kinds, and clients that make random requests. */
#pragma once

#include "proto/base/rng.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

extern const char world_tables[]; /* fifo, queue, stack, prio, heap, any, copies, lag, fresh, teams, pairs */
#define WORLD_PEERS 3u

struct world {
    struct embed embed;
    struct twin_folder folder;
    struct rng rng;
    struct testpeer *peers[WORLD_PEERS];
    uint64_t next_key;
};

/* more: further keys of the configuration, or NULL. */
void world_start(struct world *self, uint64_t seed, const char *more);
void world_stop(struct world *self);
/* Runs this many operations, and settles. */
void world_run(struct world *self, uint32_t operations);
/* Starts another broker from a copy of the files as they are now. */
void world_twin(struct world *self, struct world *twin, const char *more);
/* Moves the clients of a stopped world to its twin: they resume their sessions and send unresolved items again. */
void world_follow(struct world *self, struct world *from);
void world_kill(struct world *self);
