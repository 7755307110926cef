/* What the games of MinAtar share: boards of 10 x 10 cells, the options sticky and ramping, and actions that stick. */
#pragma once

#include "agent/env/classic.h"

#define MINATAR_SIDE 10

/* The struct of a game begins with this. */
struct minatar {
    struct classic base;
    double sticky;       /* probability that the action before is taken instead */
    double ramping;      /* 1: the game becomes harder with time */
    int32_t last_action; /* start and place set it to 0 */
};

/* Returns the action that is taken: the given one, or the one before. It draws once, unless sticky is 0. */
static inline int32_t minatar_action(struct minatar *self, const void *action)
{
    if (!(self->sticky > 0 && rng_unit(&self->base.rng) < self->sticky))
        self->last_action = *(const int32_t *)action;
    return self->last_action;
}

static inline uint8_t *minatar_cell(const struct minatar *self, uint8_t *board, int32_t row, int32_t column,
                                    uint32_t plane)
{
    return board + (uint32_t)(row * MINATAR_SIDE + column) * self->base.task->spec.observation_shape[2] + plane;
}

static const struct classic_option minatar_options[] = {
    {"sticky", 0, 1, 0.1, false, offsetof(struct minatar, sticky)},
    CLASSIC_PIXELS,
    {"ramping", 0, 1, 1, true, offsetof(struct minatar, ramping)},
};
/* The number of options of a game with or without ramping. */
enum { MINATAR_EVEN = 2, MINATAR_RAMPS = 3 };

#define MINATAR_SPEC(n_planes, actions, limit)                                                                         \
    {                                                                                                                  \
        .observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3,                                                    \
        .observation_shape = {MINATAR_SIDE, MINATAR_SIDE, n_planes}, .n_actions = (actions), .max_steps = (limit)      \
    }
