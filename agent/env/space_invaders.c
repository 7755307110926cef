/* Space Invaders with the rules of MinAtar: a cannon in the last row shoots at aliens, which march sideways, come down a row at each side
 * and drop bombs. Actions: stay (0), left (1), right (2), fire (3), at most once in five steps. +1 an alien. A bomb or an alien that
 * meets the cannon ends the episode, and so do aliens that would leave the last row. When all are gone, the next wave comes.
 *
 * Six planes: cannon, alien, aliens that go left, aliens that go right, shot, bomb. Aliens move each `march` steps, or as many steps as
 * there are aliens if that is less; march is 12 and, with the option ramping (default 1), falls by one with each wave down
 * to 6. Each 10 steps the lowest alien of the column nearest to the cannon (the left one of two) drops a bomb. Deterministic but for
 * the option sticky.
 *
 * The state for set_state: the cannon's column; the steps until it can fire, until the aliens move, until the next bomb; the aliens'
 * direction (0 left, 1 right); the waves by which march fell; then for each row the aliens, then so the shots and the bombs, as a sum of
 * 2^column. Without aliens a new wave is there. */
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/minatar.h"

#define SIDE MINATAR_SIDE
#define LAST_ROW (SIDE - 1)
#define START 5
#define SHOT_REST 5
#define MARCH 12
#define LEAST_MARCH 6
#define BOMB_REST 10
#define WAVE_ROWS 4
#define WAVE_ROW 0xfcu /* columns 2 to 7 */
#define STATE_SIZE (6 + 3 * SIDE)

enum plane { CANNON, ALIEN, ALIEN_LEFT, ALIEN_RIGHT, SHOT, BOMB, PLANES };
enum action { STAY, LEFT, RIGHT, FIRE, ACTIONS };

/* A bit for each column of each row. */
typedef uint16_t map[SIDE];

struct invaders {
    struct minatar game;
    int32_t column; /* of the cannon */
    int32_t shot_rest, march_rest, bomb_rest;
    int32_t march;
    bool right; /* where the aliens go */
    map aliens, shots, bombs;
};

static void show(const struct invaders *self, const map cells, enum plane plane, uint8_t *board)
{
    for (int32_t row = 0; row < SIDE; row++)
        for (int32_t column = 0; cells[row] >> column; column++)
            *minatar_cell(&self->game, board, row, column, plane) = cells[row] >> column & 1;
}

static void invaders_observe(const void *env, void *observation)
{
    const struct invaders *self = env;
    memset(observation, 0, SIDE * SIDE * PLANES);
    *minatar_cell(&self->game, observation, LAST_ROW, self->column, CANNON) = 1;
    show(self, self->aliens, ALIEN, observation);
    show(self, self->aliens, self->right ? ALIEN_RIGHT : ALIEN_LEFT, observation);
    show(self, self->shots, SHOT, observation);
    show(self, self->bombs, BOMB, observation);
}

static void come_in_waves(struct invaders *self)
{
    memset(self->aliens, 0, sizeof self->aliens);
    for (int row = 0; row < WAVE_ROWS; row++)
        self->aliens[row] = WAVE_ROW;
}

static void invaders_start(void *env)
{
    struct invaders *self = env;
    memset(self->shots, 0, sizeof self->shots);
    memset(self->bombs, 0, sizeof self->bombs);
    come_in_waves(self);
    self->column = START;
    self->right = false;
    self->shot_rest = 0;
    self->march = self->march_rest = MARCH;
    self->bomb_rest = BOMB_REST;
    self->game.last_action = STAY;
}

static bool hits_cannon(const struct invaders *self, const map cells)
{
    return cells[LAST_ROW] >> self->column & 1;
}

static uint32_t columns_of(const map cells)
{
    uint32_t any = 0;
    for (int row = 0; row < SIDE; row++)
        any |= cells[row];
    return any;
}

/* Moves all rows down by one; the last becomes the first. */
static void lower(map cells)
{
    uint16_t last = cells[LAST_ROW];
    memmove(cells + 1, cells, LAST_ROW * sizeof cells[0]);
    cells[0] = last;
}

static void act(struct invaders *self, int32_t action)
{
    uint16_t fired = 0;
    if (action == FIRE && self->shot_rest == 0) {
        fired = (uint16_t)(1u << self->column);
        self->shot_rest = SHOT_REST;
    } else if (action == LEFT && self->column > 0) {
        self->column--;
    } else if (action == RIGHT && self->column < SIDE - 1) {
        self->column++;
    }
    memmove(self->shots, self->shots + 1, LAST_ROW * sizeof self->shots[0]);
    self->shots[LAST_ROW - 1] |= fired;
    self->shots[LAST_ROW] = 0;
}

/* Returns false if the aliens have landed. */
static bool march(struct invaders *self)
{
    int32_t n = 0;
    for (int row = 0; row < SIDE; row++)
        n += __builtin_popcount(self->aliens[row]);
    self->march_rest = n < self->march ? n : self->march;
    bool at_side = columns_of(self->aliens) & (self->right ? 1u << (SIDE - 1) : 1u);
    if (at_side) {
        bool landed = self->aliens[LAST_ROW] != 0;
        self->right = !self->right;
        lower(self->aliens);
        return !landed;
    }
    for (int row = 0; row < SIDE; row++)
        self->aliens[row] = (uint16_t)(self->right ? self->aliens[row] << 1 : self->aliens[row] >> 1);
    return true;
}

/* Of the aliens nearest to the cannon, the lowest one; to the left, if two are as near. */
static void drop_bomb(struct invaders *self)
{
    uint32_t columns = columns_of(self->aliens), away = 0, nearest = SIDE;
    uint32_t from = (uint32_t)self->column;
    for (; nearest == SIDE && away < SIDE; away++)
        if (away <= from && columns >> (from - away) & 1)
            nearest = from - away;
        else if (from + away < SIDE && columns >> (from + away) & 1)
            nearest = from + away;
    for (int row = LAST_ROW; nearest < SIDE && row >= 0; row--)
        if (self->aliens[row] >> nearest & 1) {
            self->bombs[row] |= (uint16_t)(1u << nearest);
            return;
        }
}

/* Returns how many aliens the shots have hit. */
static int32_t hit(struct invaders *self)
{
    int32_t n = 0;
    for (int row = 0; row < SIDE; row++) {
        uint16_t both = self->aliens[row] & self->shots[row];
        n += __builtin_popcount(both);
        self->aliens[row] ^= both;
        self->shots[row] ^= both;
    }
    return n;
}

static double invaders_move(void *env, const void *action, bool *terminal)
{
    struct invaders *self = env;
    act(self, minatar_action(&self->game, action));
    lower(self->bombs);
    self->bombs[0] = 0;
    *terminal = hits_cannon(self, self->bombs) || hits_cannon(self, self->aliens);
    if (self->march_rest == 0 && (!march(self) || hits_cannon(self, self->aliens)))
        *terminal = true;
    if (self->bomb_rest == 0) {
        self->bomb_rest = BOMB_REST;
        drop_bomb(self);
    }
    int32_t reward = hit(self);
    if (self->shot_rest > 0)
        self->shot_rest--;
    self->march_rest--;
    self->bomb_rest--;
    if (!columns_of(self->aliens)) {
        if (self->game.ramping != 0 && self->march > LEAST_MARCH)
            self->march--;
        come_in_waves(self);
    }
    return reward;
}

static bool invaders_place(void *env, const double *values, uint32_t n)
{
    struct invaders *self = env;
    (void)n;
    self->column = (int32_t)values[0];
    self->shot_rest = (int32_t)values[1];
    self->march_rest = (int32_t)values[2];
    self->bomb_rest = (int32_t)values[3];
    self->right = values[4] != 0;
    self->march = MARCH - (int32_t)values[5];
    for (uint32_t row = 0; row < SIDE; row++) {
        self->aliens[row] = (uint16_t)values[6 + row];
        self->shots[row] = (uint16_t)values[6 + SIDE + row];
        self->bombs[row] = (uint16_t)values[6 + 2 * SIDE + row];
    }
    if (!columns_of(self->aliens))
        come_in_waves(self);
    self->game.last_action = STAY;
    return true;
}

static const struct classic_task invaders_task = {
    .spec = MINATAR_SPEC(PLANES, ACTIONS, 10000),
    .size = sizeof(struct invaders),
    .options = minatar_options,
    .n_options = MINATAR_RAMPS,
    .n_state = STATE_SIZE,
    .below = (const uint32_t[]){SIDE, SHOT_REST + 1, MARCH + 1, BOMB_REST + 1, 2, MARCH - LEAST_MARCH + 1, 1u << SIDE},
    .n_below = 7,
    .repeat = 1,
    /* Aliens are as bright as their direction. */
    .greys = (const uint8_t[]){[CANNON] = 255, [ALIEN_LEFT] = 90, [ALIEN_RIGHT] = 140, [SHOT] = 220, [BOMB] = 180},
    .start = invaders_start,
    .observe = invaders_observe,
    .move = invaders_move,
    .place = invaders_place,
};

CLASSIC_ENV(
    env_space_invaders, &invaders_task, "SpaceInvaders",
    "shoot aliens, MinAtar's rules: 4 actions, 10 x 10 x 6 planes, +1 an alien; options sticky, pixels, ramping");
