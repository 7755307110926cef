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
#include "agent/env/minatar.h"

#define SIDE MINATAR_SIDE
#define FIRST_BRICK_ROW 1
#define BRICK_ROWS 3
#define BRICKS (BRICK_ROWS * SIDE)
#define STATE_SIZE (4 + BRICKS)
#define START_ROW 3
#define START_PADDLE 4

enum plane { PADDLE, BALL, TRAIL, BRICK, PLANES };
enum direction { UP_LEFT, UP_RIGHT, DOWN_RIGHT, DOWN_LEFT };

static const uint8_t mirror_sideways[] = {UP_RIGHT, UP_LEFT, DOWN_LEFT, DOWN_RIGHT};
static const uint8_t mirror_upright[] = {DOWN_LEFT, DOWN_RIGHT, UP_RIGHT, UP_LEFT};
static const uint8_t turn_back[] = {DOWN_RIGHT, DOWN_LEFT, UP_LEFT, UP_RIGHT};

struct breakout {
    struct minatar game;
    int32_t row, column;           /* position of the ball */
    int32_t last_row, last_column; /* a step ago */
    uint8_t direction;
    bool struck; /* the ball broke a brick in the last step, and passes through the next brick it meets */
    int32_t paddle;
    uint32_t n_bricks;
    uint8_t bricks[BRICKS];
};

static void breakout_observe(const void *env, void *observation)
{
    const struct breakout *self = env;
    memset(observation, 0, SIDE * SIDE * PLANES);
    *minatar_cell(&self->game, observation, SIDE - 1, self->paddle, PADDLE) = 1;
    *minatar_cell(&self->game, observation, self->row, self->column, BALL) = 1;
    *minatar_cell(&self->game, observation, self->last_row, self->last_column, TRAIL) = 1;
    uint8_t *wall = minatar_cell(&self->game, observation, FIRST_BRICK_ROW, 0, BRICK);
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
    self->game.last_action = 0;
}

static void breakout_start(void *env)
{
    struct breakout *self = env;
    bool from_right = rng_below(&self->game.base.rng, 2) == 1;
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
    int32_t taken = minatar_action(&self->game, action);
    if (taken == 1 && self->paddle > 0)
        self->paddle--;
    else if (taken == 2 && self->paddle < SIDE - 1)
        self->paddle++;
    return move_ball(self, terminal);
}

static bool breakout_place(void *env, const double *values, uint32_t n)
{
    struct breakout *self = env;
    (void)n;
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
    .spec = MINATAR_SPEC(PLANES, 3, 1000),
    .size = sizeof(struct breakout),
    .options = minatar_options,
    .n_options = MINATAR_EVEN,
    .n_state = STATE_SIZE,
    .below = (const uint32_t[]){SIDE - 1, SIDE, 4, SIDE, 2}, /* a ball in the paddle's row is already lost */
    .n_below = 5,
    .repeat = 1,
    .greys = (const uint8_t[]){[PADDLE] = 255, [BALL] = 200, [TRAIL] = 80, [BRICK] = 140},
    .start = breakout_start,
    .observe = breakout_observe,
    .move = breakout_move,
    .place = breakout_place,
};

CLASSIC_ENV(
    env_breakout, &breakout_task, "Breakout",
    "break a wall with a ball, MinAtar's rules: 3 actions, 10 x 10 x 4 planes, +1 a brick; options sticky, pixels");
