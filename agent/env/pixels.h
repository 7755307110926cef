/* A board as images: the brightest plane of each cell as one grey picture, scaled to a square, and the last four of these stacked, as
 * networks that look at screens expect them. */
#ifndef AGENT_ENV_PIXELS_H
#define AGENT_ENV_PIXELS_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/env.h"

#define PIXELS_MOST 256u /* a side */

struct pixels;

/* Takes the spec of a board (rows, columns, planes) and makes it that of its images, side x side x 4. greys: the brightness of each
 * plane, borrowed. side is at least rows and columns. free releases it. */
struct pixels *pixels_new(const uint8_t *greys, uint32_t side, rp_env_spec *spec);
/* Where the environment writes its planes. */
uint8_t *pixels_board(struct pixels *self);
/* Writes the images: the board is the newest, in the last place; all four are the board if it is the first of its episode. */
void pixels_draw(struct pixels *self, bool first, uint8_t *images);

#endif
