/* A run with its folder, its hosts and members without processes, of which nothing is started by itself. */
#pragma once

#include "agent/launch/run_state.h"
#include "tests/support/tempdir.h"

#define RUNBED_MEMBERS 32u

struct runbed {
    struct run_config config;
    struct run_options options;
    struct host_pool *pool; /* NULL: refused, err says why */
    struct guard guard;
    struct screen *screen;
    struct run run;
    struct member members[RUNBED_MEMBERS], *list[RUNBED_MEMBERS];
};

/* Opens a run of this configuration in a folder of its own; source may be NULL. */
void runbed_open(struct runbed *self, const char *yaml, struct host_source *source);
void runbed_close(struct runbed *self);
/* A process that the run wants, and that runs nowhere. */
struct member *runbed_add(struct runbed *self, enum role role, uint32_t index);
