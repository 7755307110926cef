/* Patterns: items that are made by rule after each step. */
#ifndef AGENT_CLIENT_STRUCTURED_H
#define AGENT_CLIENT_STRUCTURED_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/writer.h"

struct pattern {
    uint32_t table;
    double priority;
    rp_slice *slices;
    uint32_t n_slices;
    rp_condition *conditions;
    uint32_t n_conditions;
    bool at_end;        /* runs at the end of an episode only */
    bool made;          /* has made an item in this episode */
    uint64_t last_step; /* when */
};

struct structured {
    struct pattern *patterns;
    uint32_t count, at_end; /* all of them; those that run at the end */
};

void structured_fini(struct structured *self);
/* After a step, or at the end of an episode before its steps go. */
rp_status structured_apply(rp_writer *writer, bool end, rp_error *err);
/* A new episode has begun. */
void structured_reset(struct structured *self);

#endif
