/* DeepSea (bsuite): a diver sinks one row a step through a square of size x size cells, and moves left or right with
 * it. Each move right costs 0.01 / size; only the one who goes right every time finds the treasure, +1, in the last
 * cell. Deterministic. The state for set_state: row, column.
 *
 * Options: size (default 10); randomize (0 or 1, default 0: action 1 is right everywhere; 1: in each cell the seed
 * decides which action is right); seed (default 0), of that choice only. */
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"

#define MOST_SIZE 100
#define MOVE_COST 0.01

struct deepsea {
    struct classic base;
    double wanted, randomize, seed; /* options; wanted: the size */
    uint32_t size;
    uint32_t row, column;
    uint8_t right[MOST_SIZE * MOST_SIZE]; /* [size][size]: the action that goes right */
};

/* Past the last row the diver is not visible. */
static void deepsea_observe(const void *env, void *observation)
{
    const struct deepsea *self = env;
    uint8_t *board = observation;
    memset(board, 0, self->size * self->size);
    if (self->row < self->size)
        board[self->row * self->size + self->column] = 1;
}

static void deepsea_start(void *env)
{
    struct deepsea *self = env;
    self->row = self->column = 0;
}

static double deepsea_move(void *env, const void *action, bool *terminal)
{
    struct deepsea *self = env;
    double reward = 0;
    if (*(const int32_t *)action == self->right[self->row * self->size + self->column]) {
        reward = (self->column == self->size - 1 ? 1 : 0) - MOVE_COST / self->size;
        if (self->column < self->size - 1)
            self->column++;
    } else if (self->column > 0) {
        self->column--;
    }
    self->row++;
    *terminal = self->row == self->size;
    return reward;
}

static bool deepsea_place(void *env, const double *values, uint32_t n)
{
    struct deepsea *self = env;
    if (n != 2 || !classic_cell(values[0], self->size) || !classic_cell(values[1], self->size))
        return false;
    self->row = (uint32_t)values[0];
    self->column = (uint32_t)values[1];
    return true;
}

static rp_status deepsea_prepare(void *env, rp_env_spec *spec, rp_error *err)
{
    struct deepsea *self = env;
    struct rng rng;
    (void)err;
    self->size = spec->observation_shape[0] = spec->observation_shape[1] = (uint32_t)self->wanted;
    rng_seed(&rng, (uint64_t)self->seed);
    for (uint32_t i = 0; i < self->size * self->size; i++)
        self->right[i] = self->randomize != 0 ? (uint8_t)rng_below(&rng, 2) : 1;
    return RP_OK;
}

static const struct classic_option deepsea_options[] = {
    {"size", 1, MOST_SIZE, 10, true, offsetof(struct deepsea, wanted)},
    {"randomize", 0, 1, 0, true, offsetof(struct deepsea, randomize)},
    {"seed", 0, 0x1p53, 0, true, offsetof(struct deepsea, seed)},
    CLASSIC_PIXELS,
};

static const struct classic_task deepsea_task = {
    .spec = {.observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3, .observation_shape[2] = 1, .n_actions = 2},
    .size = sizeof(struct deepsea),
    .options = deepsea_options,
    .n_options = 4,
    .prepare = deepsea_prepare,
    .greys = (const uint8_t[]){255},
    .start = deepsea_start,
    .observe = deepsea_observe,
    .move = deepsea_move,
    .place = deepsea_place,
};

/* On the diagonal, right: the treasure can be reached. Elsewhere it cannot, and left is free. */
static void deepsea_expert(const void *env, void *action)
{
    const struct deepsea *self = env;
    uint8_t right = self->right[self->row * self->size + self->column];
    *(int32_t *)action = self->row == self->column ? right : !right;
}

CLASSIC_DEFINE(env_deepsea, classic_create, &deepsea_task, "DeepSea",
               "dive to the far corner: 2 actions, a board of size x size, +1 at the end of the one right path; "
               "options size, randomize, seed, pixels; has an expert",
               deepsea_expert);
