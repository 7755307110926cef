/* Patterns: items that are made by rule after each step or at the end of an episode. */
#ifndef AGENT_CLIENT_STRUCTURED_H
#define AGENT_CLIENT_STRUCTURED_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/client/outbox/step_stream.h"
#include "replay/writer.h"

struct lane;

struct pattern {
    uint32_t table;
    double priority;
    rp_slice *slices;
    uint32_t n_slices;
    rp_condition *conditions;
    uint32_t n_conditions;
    bool at_end;        /* runs at the end of an episode only */
    bool has_values;    /* has conditions on values */
    bool values_hold;   /* they hold for the newest step */
    bool made;          /* has made an item in this episode */
    uint64_t last_step; /* step of the episode at which it last made an item */
};

struct structured {
    struct pattern *patterns;
    uint32_t count, at_end; /* all patterns; patterns that run at the end of an episode */
    uint32_t with_values;   /* patterns with conditions on values */
};

void structured_fini(struct structured *self);
/* Takes the pattern back that was added last. */
void structured_drop_newest(struct structured *self);
/* Tests the conditions on values, before the current step is completed: afterwards its values may be compressed. */
void structured_look(struct structured *self, const struct step_stream *stream);
/* Makes the items of all patterns that apply after a step or, with `end`, at the end of an episode, before its steps are
 * dropped. */
rp_status structured_apply(struct lane *writer, bool end, rp_error *err);
/* Starts a new episode. */
void structured_reset(struct structured *self);

#endif
