/* Patterns: items that are made by rule after each step or at the end of an episode. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/client/writer/step_stream.h"
#include "replay/writer.h"

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
/* Checks the slices and conditions of a pattern against a stream. */
rp_status structured_check(const rp_pattern *in, const struct step_stream *stream, rp_error *err);
/* Adds a pattern that was checked. */
rp_status structured_add(struct structured *self, const rp_pattern *in, uint32_t table, rp_error *err);
/* Tests the conditions on values, before the current step is completed: afterwards its values may be compressed. */
void structured_look(struct structured *self, const struct step_stream *stream);
/* Returns the next pattern that applies after a step or, with `end`, at the end of an episode, before its steps are dropped.
 * NULL: there are no more. *at starts at 0. The caller notes in the pattern that it has made the item. */
struct pattern *structured_next(struct structured *self, const struct step_stream *stream, bool end, uint32_t *at);
/* Starts a new episode. */
void structured_reset(struct structured *self);
