/* Breakout with the rules of MinAtar on a board of 10 x 10 cells with four planes: paddle, ball, trail (where the ball
 * was a step ago) and bricks. Actions: stay (0), left (1), right (2). The ball moves diagonally; +1 for each brick it
 * breaks; a ball that passes the paddle ends the episode. When all bricks are gone, a new wall appears as the ball
 * reaches the paddle's row.
 *
 * Option: sticky (default 0.1), the probability that the action before is taken instead. The state for set_state: the
 * ball's row, column and direction (0 up left, 1 up right, 2 down right, 3 down left), the paddle's column, and the 30
 * cells of the bricks, row by row, 1 where there is one. */
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/classic.h"
#include "proto/base/error.h"

#define SIDE 10
#define PLANES 4
#define FIRST_BRICK_ROW 1
#define BRICK_ROWS 3
#define BRICKS (BRICK_ROWS * SIDE)
#define STATE_SIZE (4 + BRICKS)
#define START_ROW 3
#define START_PADDLE 4

enum plane { PADDLE, BALL, TRAIL, BRICK };
enum direction { UP_LEFT, UP_RIGHT, DOWN_RIGHT, DOWN_LEFT };

static const uint8_t mirror_sideways[] = {UP_RIGHT, UP_LEFT, DOWN_LEFT, DOWN_RIGHT};
static const uint8_t mirror_upright[] = {DOWN_LEFT, DOWN_RIGHT, UP_RIGHT, UP_LEFT};
static const uint8_t turn_back[] = {DOWN_RIGHT, DOWN_LEFT, UP_LEFT, UP_RIGHT};

struct breakout {
    struct classic base;
    double sticky;
    int32_t row, column;           /* position of the ball */
    int32_t last_row, last_column; /* a step ago */
    uint8_t direction;
    bool struck; /* the ball broke a brick in the last step, and passes through the next brick it meets */
    int32_t paddle;
    int32_t last_action;
    uint32_t n_bricks;
    uint8_t bricks[BRICKS];
};

static uint8_t *cell(uint8_t *planes, int32_t row, int32_t column, enum plane plane)
{
    return planes + (row * SIDE + column) * PLANES + plane;
}

static void breakout_observe(const void *env, void *observation)
{
    const struct breakout *self = env;
    uint8_t *planes = observation;
    memset(planes, 0, SIDE * SIDE * PLANES);
    *cell(planes, SIDE - 1, self->paddle, PADDLE) = 1;
    *cell(planes, self->row, self->column, BALL) = 1;
    *cell(planes, self->last_row, self->last_column, TRAIL) = 1;
    uint8_t *wall = cell(planes, FIRST_BRICK_ROW, 0, BRICK);
    for (int i = 0; i < BRICKS; i++)
        wall[i * PLANES] = self->bricks[i];
}

static void build_wall(struct breakout *self)
{
    memset(self->bricks, 1, BRICKS);
    self->n_bricks = BRICKS;
}

static void begin_board(struct breakout *self)
{
    self->last_row = self->row;
    self->last_column = self->column;
    self->struck = false;
    self->last_action = 0;
}

static void breakout_start(void *env)
{
    struct breakout *self = env;
    bool from_right = rng_below(&self->base.rng, 2) == 1;
    self->row = START_ROW;
    self->column = from_right ? SIDE - 1 : 0;
    self->direction = from_right ? DOWN_LEFT : DOWN_RIGHT;
    self->paddle = START_PADDLE;
    build_wall(self);
    begin_board(self);
}

static uint8_t *brick_at(struct breakout *self, int32_t row, int32_t column)
{
    if (row < FIRST_BRICK_ROW || row >= FIRST_BRICK_ROW + BRICK_ROWS)
        return NULL;
    uint8_t *brick = &self->bricks[(row - FIRST_BRICK_ROW) * SIDE + column];
    return *brick ? brick : NULL;
}

/* The ball is about to enter the paddle's row. Above the paddle it bounces as from a wall; at the paddle's edge it
 * goes back the way it came. False: the ball is lost. */
static bool meet_paddle(struct breakout *self, int32_t *row, int32_t column)
{
    if (self->n_bricks == 0)
        build_wall(self);
    if (self->column == self->paddle)
        self->direction = mirror_upright[self->direction];
    else if (column == self->paddle)
        self->direction = turn_back[self->direction];
    else
        return false;
    *row = self->row;
    return true;
}

/* Moves the ball by one cell. Returns the reward. */
static uint32_t move_ball(struct breakout *self, bool *lost)
{
    int32_t row = self->row + (self->direction == DOWN_LEFT || self->direction == DOWN_RIGHT ? 1 : -1);
    int32_t column = self->column + (self->direction == UP_RIGHT || self->direction == DOWN_RIGHT ? 1 : -1);
    uint32_t reward = 0;
    if (column < 0 || column >= SIDE) {
        column = column < 0 ? 0 : SIDE - 1;
        self->direction = mirror_sideways[self->direction];
    }
    uint8_t *brick = brick_at(self, row, column);
    bool struck = brick != NULL;
    if (row < 0) {
        row = 0;
        self->direction = mirror_upright[self->direction];
    } else if (brick && !self->struck) {
        reward = 1;
        *brick = 0;
        self->n_bricks--;
        row = self->row;
        self->direction = mirror_upright[self->direction];
    } else if (row == SIDE - 1) {
        *lost = !meet_paddle(self, &row, column);
    }
    self->struck = struck;
    self->last_row = self->row;
    self->last_column = self->column;
    self->row = row;
    self->column = column;
    return reward;
}

static double breakout_move(void *env, const void *action, bool *terminal)
{
    struct breakout *self = env;
    int32_t taken = *(const int32_t *)action;
    if (self->sticky > 0 && rng_unit(&self->base.rng) < self->sticky)
        taken = self->last_action;
    self->last_action = taken;
    if (taken == 1 && self->paddle > 0)
        self->paddle--;
    else if (taken == 2 && self->paddle < SIDE - 1)
        self->paddle++;
    return move_ball(self, terminal);
}

static bool breakout_place(void *env, const double *values, uint32_t n)
{
    struct breakout *self = env;
    /* A ball in the paddle's row is already lost. */
    if (n != STATE_SIZE || !classic_cell(values[0], SIDE - 1) || !classic_cell(values[1], SIDE) ||
        !classic_cell(values[2], 4) || !classic_cell(values[3], SIDE))
        return false;
    for (int i = 0; i < BRICKS; i++)
        if (!classic_cell(values[4 + i], 2))
            return false;
    self->row = (int32_t)values[0];
    self->column = (int32_t)values[1];
    self->direction = (uint8_t)values[2];
    self->paddle = (int32_t)values[3];
    self->n_bricks = 0;
    for (int i = 0; i < BRICKS; i++) {
        self->bricks[i] = (uint8_t)values[4 + i];
        self->n_bricks += self->bricks[i];
    }
    begin_board(self);
    return true;
}

static const struct classic_task breakout_task = {
    .spec = {.observation_dtype = RP_DTYPE_UINT8,
             .observation_rank = 3,
             .observation_shape = {SIDE, SIDE, PLANES},
             .n_actions = 3,
             .max_steps = 1000},
    .size = sizeof(struct breakout),
    .start = breakout_start,
    .observe = breakout_observe,
    .move = breakout_move,
    .place = breakout_place,
};

static void *breakout_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    static const char *const known[] = {"sticky", NULL};
    double sticky = 0.1;
    if (env_option_real(options, n_options, &(struct env_real){"sticky", 0, 1, &sticky}, err) != RP_OK) {
        err_prefix(err, "environment Breakout");
        return NULL;
    }
    struct breakout *self = classic_new("Breakout", &breakout_task, 0, options, n_options, known, spec, err);
    if (self)
        self->sticky = sticky;
    return self;
}

const rp_env_ops env_breakout = CLASSIC_OPS(
    "Breakout", "break a wall with a ball, MinAtar's rules: 3 actions, 10 x 10 x 4 planes, +1 a brick; option sticky",
    breakout_create);
