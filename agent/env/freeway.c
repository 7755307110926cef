/* Freeway with the rules of MinAtar: a chicken at the bottom of column 4 crosses eight lanes, each with a car. Actions:
 * stay (0), up (1), down (2); it moves once in three steps. At the top it gains +1, all cars get new speeds and directions,
 * and it starts again; a car that meets it sends it back. The episode is truncated after 2500 steps; nothing else ends it.
 *
 * Seven planes: chicken, car, and the cell behind a car in the plane of its speed: a car of speed s moves once in s + 1
 * steps, to the right or the left, and comes back at the other side. New cars draw eight speeds, then eight directions.
 *
 * Option: sticky. The state for set_state: the chicken's row, the steps until it may move; for each car its column, the steps
 * until it moves, and its speed less 1, plus 5 if it goes left. */
#include <string.h>

#include "agent/env/builtin.h"
#include "agent/env/minatar.h"

#define CARS 8
#define COLUMN 4
#define LAST_ROW (MINATAR_SIDE - 1)
#define REST 3 /* steps from one move of the chicken to the next */
#define SPEEDS 5
#define STATE_SIZE (2 + 3 * CARS)

enum plane { CHICKEN, CAR, TRAIL, PLANES = TRAIL + SPEEDS };
enum action { STAY, UP, DOWN };

struct freeway {
    struct minatar game;
    int32_t row;  /* of the chicken */
    int32_t rest; /* steps until it may move */
    struct car {
        int32_t column;
        int32_t rest;    /* steps until it moves */
        int32_t speed;   /* 1 is the fastest */
        int32_t forward; /* 1: to the right, -1: to the left */
    } cars[CARS];        /* of the rows from 1 */
};

static int32_t around(int32_t column)
{
    return (column + MINATAR_SIDE) % MINATAR_SIDE;
}

static void freeway_observe(const void *env, void *observation)
{
    const struct freeway *self = env;
    memset(observation, 0, MINATAR_SIDE * MINATAR_SIDE * PLANES);
    *minatar_cell(&self->game, observation, self->row, COLUMN, CHICKEN) = 1;
    for (int32_t i = 0; i < CARS; i++) {
        const struct car *car = &self->cars[i];
        *minatar_cell(&self->game, observation, i + 1, car->column, CAR) = 1;
        *minatar_cell(&self->game, observation, i + 1, around(car->column - car->forward),
                      TRAIL + (uint32_t)car->speed - 1) = 1;
    }
}

static void draw_cars(struct freeway *self)
{
    for (int i = 0; i < CARS; i++)
        self->cars[i].rest = self->cars[i].speed = 1 + (int32_t)rng_below(&self->game.base.rng, SPEEDS);
    for (int i = 0; i < CARS; i++)
        self->cars[i].forward = rng_below(&self->game.base.rng, 2) ? 1 : -1;
}

static void freeway_start(void *env)
{
    struct freeway *self = env;
    for (int i = 0; i < CARS; i++)
        self->cars[i].column = 0;
    draw_cars(self);
    self->row = LAST_ROW;
    self->rest = REST;
    self->game.last_action = STAY;
}

/* A car hits a chicken that has walked into it, and one that it drives into. */
static void drive(struct freeway *self, int32_t row)
{
    struct car *car = &self->cars[row - 1];
    if (car->column == COLUMN && self->row == row)
        self->row = LAST_ROW;
    if (car->rest-- > 0)
        return;
    car->rest = car->speed;
    car->column = around(car->column + car->forward);
    if (car->column == COLUMN && self->row == row)
        self->row = LAST_ROW;
}

static double freeway_move(void *env, const void *action, bool *terminal)
{
    struct freeway *self = env;
    int32_t taken = minatar_action(&self->game, action);
    double reward = 0;
    (void)terminal;
    if (taken != STAY && self->rest == 0) {
        self->rest = REST;
        self->row += taken == UP ? -1 : self->row < LAST_ROW ? 1 : 0;
    }
    if (self->row <= 0) {
        reward = 1;
        draw_cars(self);
        self->row = LAST_ROW;
    }
    for (int32_t row = 1; row <= CARS; row++)
        drive(self, row);
    if (self->rest > 0)
        self->rest--;
    return reward;
}

static bool freeway_place(void *env, const double *values, uint32_t n)
{
    struct freeway *self = env;
    (void)n;
    self->row = (int32_t)values[0];
    self->rest = (int32_t)values[1];
    for (uint32_t i = 0; i < CARS; i++) {
        const double *of = values + 2 + 3 * i;
        int32_t kind = (int32_t)of[2];
        self->cars[i] = (struct car){(int32_t)of[0], (int32_t)of[1], 1 + kind % SPEEDS, kind < SPEEDS ? 1 : -1};
    }
    self->game.last_action = STAY;
    return true;
}

static const struct classic_task freeway_task = {
    .spec = MINATAR_SPEC(PLANES, 3, 2500),
    .size = sizeof(struct freeway),
    .options = minatar_options,
    .n_options = MINATAR_EVEN,
    .n_state = STATE_SIZE,
    .below = (const uint32_t[]){MINATAR_SIDE, REST + 1, MINATAR_SIDE, SPEEDS + 1, 2 * SPEEDS},
    .n_below = 5,
    .repeat = 3,
    .greys = (const uint8_t[]){[CHICKEN] = 255, [CAR] = 210, [TRAIL] = 170, 140, 110, 80, 50},
    .start = freeway_start,
    .observe = freeway_observe,
    .move = freeway_move,
    .place = freeway_place,
};

CLASSIC_ENV(
    env_freeway, &freeway_task, "Freeway",
    "cross a road, MinAtar's rules: 3 actions, 10 x 10 x 7 planes, +1 a crossing, 2500 steps; options sticky, pixels");
