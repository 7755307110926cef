/* Catch (bsuite): a ball falls down a board of 10 rows and 5 columns, one row a step; a paddle in the last row moves
 * left (0), stays (1) or moves right (2). +1 for a ball that is caught, -1 for one that is not. The state for
 * set_state: the ball's row and column, the paddle's column. */
#include <stdlib.h>
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define ROWS 10u
#define COLUMNS 5u

struct catch
{
    struct rng rng;
    uint32_t row, column; /* position of the ball */
    uint32_t paddle;
    uint32_t steps;
};

static void *catch_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    struct catch *self = classic_new("Catch", sizeof *self, options, n_options, NULL, err);
    if (!self)
        return NULL;
    rng_seed(&self->rng, 0);
    *spec = (rp_env_spec){.observation_dtype = RP_DTYPE_UINT8,
                          .observation_rank = 3,
                          .observation_shape = {ROWS, COLUMNS, 1},
                          .n_actions = 3};
    return self;
}

static void catch_seed(void *state, uint64_t seed)
{
    rng_seed(&((struct catch *)state)->rng, seed);
}

static void catch_observe(const struct catch *self, uint8_t *board)
{
    memset(board, 0, ROWS * COLUMNS);
    board[self->row * COLUMNS + self->column] = 1;
    board[(ROWS - 1) * COLUMNS + self->paddle] = 1;
}

static void catch_reset(void *state, void *observation)
{
    struct catch *self = state;
    self->steps = 0;
    self->row = 0;
    self->column = (uint32_t)rng_below(&self->rng, COLUMNS);
    self->paddle = COLUMNS / 2;
    catch_observe(self, observation);
}

static void catch_step(void *state, const void *action, void *observation, rp_env_result *result)
{
    struct catch *self = state;
    int32_t move = *(const int32_t *)action - 1;
    if (move < 0 && self->paddle > 0)
        self->paddle--;
    else if (move > 0 && self->paddle < COLUMNS - 1)
        self->paddle++;
    self->row++;
    bool terminal = self->row == ROWS - 1;
    catch_observe(self, observation);
    double reward = !terminal ? 0 : self->column == self->paddle ? 1 : -1;
    classic_result(result, reward, terminal, &self->steps, 0);
}

static rp_status catch_set_state(void *state, const double *values, uint32_t n, void *observation)
{
    struct catch *self = state;
    if (n != 3 || !classic_cell(values[0], ROWS - 1) || !classic_cell(values[1], COLUMNS) ||
        !classic_cell(values[2], COLUMNS))
        return RP_INVALID_ARGUMENT;
    self->steps = 0;
    self->row = (uint32_t)values[0];
    self->column = (uint32_t)values[1];
    self->paddle = (uint32_t)values[2];
    catch_observe(self, observation);
    return RP_OK;
}

const rp_env_ops env_catch = {
    .name = "Catch",
    .help = "catch a falling ball: 3 actions, a board of 10 x 5, +1 or -1 after 9 steps",
    .create = catch_create,
    .destroy = free,
    .seed = catch_seed,
    .reset = catch_reset,
    .step = catch_step,
    .set_state = catch_set_state,
};
