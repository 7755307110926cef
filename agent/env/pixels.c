#include "agent/env/pixels.h"

#include <string.h>

#include "proto/base/need.h"

#define FRAMES 4

struct pixels {
    const uint8_t *greys;
    uint32_t side, rows, columns, planes;
    uint8_t *board;            /* [rows][columns][planes] */
    uint8_t history[][FRAMES]; /* [rows][columns]: the cell's brightness in the last frames, the newest last */
};

struct pixels *pixels_new(const uint8_t *greys, uint32_t side, rp_env_spec *spec)
{
    uint32_t *shape = spec->observation_shape, cells = shape[0] * shape[1];
    struct pixels *self = need_alloc(sizeof *self + cells * (FRAMES + shape[2]));
    *self = (struct pixels){.greys = greys, .side = side, .rows = shape[0], .columns = shape[1], .planes = shape[2]};
    self->board = self->history[cells];
    shape[0] = shape[1] = side;
    shape[2] = FRAMES;
    return self;
}

uint8_t *pixels_board(struct pixels *self)
{
    return self->board;
}

static uint8_t brightness(const struct pixels *self, const uint8_t *planes)
{
    uint8_t most = 0;
    for (uint32_t i = 0; i < self->planes; i++)
        if (planes[i] && self->greys[i] > most)
            most = self->greys[i];
    return most;
}

static void remember(struct pixels *self, bool first)
{
    for (uint32_t i = 0; i < self->rows * self->columns; i++) {
        uint8_t *cell = self->history[i], newest = brightness(self, self->board + i * self->planes);
        memmove(cell, cell + 1, FRAMES - 1);
        cell[FRAMES - 1] = newest;
        if (first)
            memset(cell, newest, FRAMES);
    }
}

/* Pixel p of a side shows cell p * cells / side. */
static void draw_row(const struct pixels *self, uint32_t row, uint8_t *out)
{
    for (uint32_t column = 0, x = 0; column < self->columns; column++)
        for (; x * self->columns < (column + 1) * self->side; x++)
            memcpy(out + (size_t)x * FRAMES, self->history[row * self->columns + column], FRAMES);
}

void pixels_draw(struct pixels *self, bool first, uint8_t *images)
{
    size_t row_bytes = (size_t)self->side * FRAMES;
    remember(self, first);
    for (uint32_t row = 0, y = 0; row < self->rows; row++) {
        const uint8_t *drawn = images + y * row_bytes;
        draw_row(self, row, images + y * row_bytes);
        for (y++; y * self->rows < (row + 1) * self->side; y++)
            memcpy(images + y * row_bytes, drawn, row_bytes);
    }
}
