/* The picture of an environment's present state: the shapes that it draws, or pixels. Pixels are the frame that a Python environment
 * renders, or the planes of an observation. Whoever shows a picture (the page of a run, a terminal) knows nothing else of
 * environments. */
#pragma once

#include "agent/env/env.h"

/* Most pixels of a side: larger frames are made smaller. */
#define PICTURE_SIDE 96u

struct env_picture {
    rp_drawing drawing;     /* with shapes, unless there are pixels */
    uint32_t width, height; /* of the pixels; 0: there are none */
    uint8_t rgb[PICTURE_SIDE * PICTURE_SIDE * 3];
    double step_s; /* seconds of a step when it is played */
};

/* Draws the present state, of which this is the observation. */
void picture_take(const struct env *env, const void *observation, struct env_picture *out);

/* Colours of the roles of shapes, and of what is behind them. */
extern const uint8_t picture_colours[RP_ROLE_GOAL + 1][3], picture_ground[3];

/* Paints the picture into width x height square pixels (RGB), as large as it fits, in the middle. */
void picture_paint(const struct env_picture *self, uint32_t width, uint32_t height, uint8_t *rgb);
