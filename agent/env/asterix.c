/* Asterix with the rules of MinAtar: enemies and gold enter the rows 1 to 8 at a side and cross the board. The player moves
 * by a cell in these rows: stay (0), left (1), up (2), right (3), down (4). +1 for gold that it meets; an enemy ends the
 * episode.
 *
 * Four planes: player, enemy, trail (the cell behind an enemy or gold) and gold. One thing in a row at a time; a new one
 * comes each `spawn` steps if a row is free, and all move together each `march` steps. At level 0 spawn is 10 and march is 5; with
 * the option ramping (default 1) the level rises each 102 steps: spawn falls by one each time and march each second time, down to 1.
 * A new thing draws its direction (1 of 2: right), whether it is gold (0 of 3), and its row among the free ones.
 *
 * Options: sticky, ramping. The state for set_state: the player's row less 1 and its column; the steps until the next thing
 * comes, until the things move, until the level rises; the level; for each row its thing (0 none, 1 enemy, 2 gold; going left
 * 3 and 4) and its column. */
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/minatar.h"

#define ROWS 8
#define START 5
#define SPAWN 10
#define MARCH 5
#define LEVELS 9 /* the level at which both are 1 */
#define RAMP 101 /* steps from one level to the next, less the one that rises */
#define STATE_SIZE (6 + 2 * ROWS)

enum plane { PLAYER, ENEMY, TRAIL, GOLD, PLANES };
enum action { STAY, LEFT, UP, RIGHT, DOWN, ACTIONS };

struct asterix {
    struct minatar game;
    int32_t row, column;        /* of the player */
    int32_t spawn, march, ramp; /* steps until the next thing comes, until they move, until the level rises */
    int32_t level;
    struct thing {
        bool there, gold;
        int32_t column;
        int32_t forward; /* 1: to the right, -1: to the left */
    } things[ROWS];      /* of the rows from 1 */
};

static bool on_board(int32_t column)
{
    return column >= 0 && column < MINATAR_SIDE;
}

static void asterix_observe(const void *env, void *observation)
{
    const struct asterix *self = env;
    memset(observation, 0, MINATAR_SIDE * MINATAR_SIDE * PLANES);
    *minatar_cell(&self->game, observation, self->row, self->column, PLAYER) = 1;
    for (int32_t i = 0; i < ROWS; i++) {
        const struct thing *thing = &self->things[i];
        int32_t behind = thing->column - thing->forward;
        if (!thing->there)
            continue;
        *minatar_cell(&self->game, observation, i + 1, thing->column, thing->gold ? GOLD : ENEMY) = 1;
        if (on_board(behind))
            *minatar_cell(&self->game, observation, i + 1, behind, TRAIL) = 1;
    }
}

static void asterix_start(void *env)
{
    struct asterix *self = env;
    self->row = self->column = START;
    self->level = 0;
    self->spawn = SPAWN;
    self->march = MARCH;
    self->ramp = RAMP;
    memset(self->things, 0, sizeof self->things);
    self->game.last_action = STAY;
}

static void spawn(struct asterix *self)
{
    struct rng *rng = &self->game.base.rng;
    bool right = rng_below(rng, 2) == 1, gold = rng_below(rng, 3) == 0;
    struct thing *free_rows[ROWS];
    uint32_t n = 0;
    for (int i = 0; i < ROWS; i++)
        if (!self->things[i].there)
            free_rows[n++] = &self->things[i];
    if (n > 0)
        *free_rows[rng_below(rng, n)] = (struct thing){true, gold, right ? 0 : MINATAR_SIDE - 1, right ? 1 : -1};
}

static void move_player(struct asterix *self, int32_t action)
{
    if (action == LEFT && self->column > 0)
        self->column--;
    else if (action == RIGHT && self->column < MINATAR_SIDE - 1)
        self->column++;
    else if (action == UP && self->row > 1)
        self->row--;
    else if (action == DOWN && self->row < ROWS)
        self->row++;
}

/* Takes gold that the player has met. Returns the reward. */
static double meet(struct asterix *self, bool *terminal)
{
    struct thing *thing = &self->things[self->row - 1];
    if (!thing->there || thing->column != self->column)
        return 0;
    if (thing->gold)
        thing->there = false;
    else
        *terminal = true;
    return thing->gold;
}

static void move_things(struct asterix *self)
{
    for (int i = 0; i < ROWS; i++) {
        self->things[i].column += self->things[i].forward;
        if (!on_board(self->things[i].column))
            self->things[i].there = false;
    }
}

static double asterix_move(void *env, const void *action, bool *terminal)
{
    struct asterix *self = env;
    int32_t taken = minatar_action(&self->game, action);
    if (self->spawn == 0) {
        spawn(self);
        self->spawn = SPAWN - self->level;
    }
    move_player(self, taken);
    double reward = meet(self, terminal);
    if (self->march == 0) {
        self->march = MARCH - self->level / 2;
        move_things(self);
        reward += meet(self, terminal);
    }
    self->spawn--;
    self->march--;
    if (self->game.ramping != 0 && self->level < LEVELS && self->ramp-- == 0) {
        self->level++;
        self->ramp = RAMP;
    }
    return reward;
}

static bool asterix_place(void *env, const double *values, uint32_t n)
{
    struct asterix *self = env;
    (void)n;
    self->row = (int32_t)values[0] + 1;
    self->column = (int32_t)values[1];
    self->spawn = (int32_t)values[2];
    self->march = (int32_t)values[3];
    self->ramp = (int32_t)values[4];
    self->level = (int32_t)values[5];
    for (uint32_t i = 0; i < ROWS; i++) {
        int32_t kind = (int32_t)values[6 + 2 * i];
        self->things[i] = (struct thing){kind > 0, kind % 2 == 0, (int32_t)values[7 + 2 * i], kind < 3 ? 1 : -1};
    }
    self->game.last_action = STAY;
    return true;
}

static const struct classic_task asterix_task = {
    .spec = MINATAR_SPEC(PLANES, ACTIONS, 10000),
    .size = sizeof(struct asterix),
    .options = minatar_options,
    .n_options = MINATAR_RAMPS,
    .n_state = STATE_SIZE,
    .below = (const uint32_t[]){ROWS, MINATAR_SIDE, SPAWN + 1, MARCH + 1, RAMP + 1, LEVELS + 1, 5, MINATAR_SIDE},
    .n_below = 8,
    .repeat = 2,
    .greys = (const uint8_t[]){[PLAYER] = 255, [ENEMY] = 110, [TRAIL] = 50, [GOLD] = 180},
    .start = asterix_start,
    .observe = asterix_observe,
    .move = asterix_move,
    .place = asterix_place,
};

CLASSIC_ENV(env_asterix, &asterix_task, "Asterix",
            "take gold and avoid enemies, MinAtar's rules: 5 actions, 10 x 10 x 4 planes, +1 for gold; options sticky, "
            "pixels, ramping");
