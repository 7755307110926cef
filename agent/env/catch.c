/* Catch (bsuite): a ball falls down a board of 10 rows and 5 columns, one row a step; a paddle in the last row moves
 * left (0), stays (1) or moves right (2). +1 for a ball that is caught, -1 for one that is not. The state for
 * set_state: the ball's row and column, the paddle's column. */
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define ROWS 10u
#define COLUMNS 5u

struct catch
{
    struct classic base;
    uint32_t row, column; /* position of the ball */
    uint32_t paddle;
};

static void catch_observe(const void *env, void *observation)
{
    const struct catch *self = env;
    uint8_t *board = observation;
    memset(board, 0, ROWS * COLUMNS);
    board[self->row * COLUMNS + self->column] = 1;
    board[(ROWS - 1) * COLUMNS + self->paddle] = 1;
}

static void catch_start(void *env)
{
    struct catch *self = env;
    self->row = 0;
    self->column = (uint32_t)rng_below(&self->base.rng, COLUMNS);
    self->paddle = COLUMNS / 2;
}

static double catch_move(void *env, const void *action, bool *terminal)
{
    struct catch *self = env;
    int32_t move = *(const int32_t *)action - 1;
    if (move < 0 && self->paddle > 0)
        self->paddle--;
    else if (move > 0 && self->paddle < COLUMNS - 1)
        self->paddle++;
    self->row++;
    *terminal = self->row == ROWS - 1;
    return !*terminal ? 0 : self->column == self->paddle ? 1 : -1;
}

static bool catch_place(void *env, const double *values, uint32_t n)
{
    struct catch *self = env;
    (void)n;
    self->row = (uint32_t)values[0];
    self->column = (uint32_t)values[1];
    self->paddle = (uint32_t)values[2];
    return true;
}

static const struct classic_task catch_task = {
    .spec = {.observation_dtype = RP_DTYPE_UINT8,
             .observation_rank = 3,
             .observation_shape = {ROWS, COLUMNS, 1},
             .n_actions = 3},
    .size = sizeof(struct catch),
    .options = (const struct classic_option[]){CLASSIC_PIXELS},
    .n_options = 1,
    .greys = (const uint8_t[]){255},
    .n_state = 3,
    .below = (const uint32_t[]){ROWS - 1, COLUMNS, COLUMNS},
    .n_below = 3,
    .start = catch_start,
    .observe = catch_observe,
    .move = catch_move,
    .place = catch_place,
};

CLASSIC_ENV(env_catch, &catch_task, "Catch",
            "catch a falling ball: 3 actions, a board of 10 x 5, +1 or -1 after 9 steps; option pixels");
