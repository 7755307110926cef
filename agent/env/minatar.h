/* What the games of MinAtar share: boards of 10 x 10 cells, the options sticky and ramping, and actions that stick. */
#ifndef AGENT_ENV_MINATAR_H
#define AGENT_ENV_MINATAR_H

#include "agent/env/classic.h"

#define MINATAR_SIDE 10

/* The struct of a game begins with this. */
struct minatar {
    struct classic base;
    double sticky;       /* probability that the action before is taken instead */
    bool ramping;        /* the game becomes harder with time */
    int32_t last_action; /* start and place set it to 0 */
};

/* Returns the action that is taken: the given one, or the one before. It draws once, unless sticky is 0. */
int32_t minatar_action(struct minatar *self, const void *action);

static inline uint8_t *minatar_cell(const struct minatar *self, uint8_t *board, int32_t row, int32_t column,
                                    uint32_t plane)
{
    return board + (uint32_t)(row * MINATAR_SIDE + column) * self->base.task->spec.observation_shape[2] + plane;
}

/* ramps: it has the option ramping. */
void *minatar_new(const char *name, const struct classic_task *task, bool ramps, const rp_option *options,
                  uint32_t n_options, rp_env_spec *spec, rp_error *err);

/* Defines the ops of a game. */
#define MINATAR_ENV(symbol, task, ramps, title, text)                                                                  \
    static void *task##_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)         \
    {                                                                                                                  \
        return minatar_new(title, &task, ramps, options, n_options, spec, err);                                        \
    }                                                                                                                  \
    const rp_env_ops symbol = CLASSIC_OPS(title, text, task##_create)

#define MINATAR_SPEC(n_planes, actions, limit)                                                                         \
    {                                                                                                                  \
        .observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3,                                                    \
        .observation_shape = {MINATAR_SIDE, MINATAR_SIDE, n_planes}, .n_actions = (actions), .max_steps = (limit)      \
    }

#endif
