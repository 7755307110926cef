#include "agent/env/picture.h"

#include <math.h>
#include <string.h>

#define DEFAULT_STEP_S 0.1 /* of environments that know no time, such as boards */
#define MOST_BARS 64u

const uint8_t picture_ground[3] = {18, 22, 29};
const uint8_t picture_colours[RP_ROLE_GOAL + 1][3] = {
    [RP_ROLE_SCENE] = {86, 96, 114},  [RP_ROLE_MARK] = {150, 160, 176},  [RP_ROLE_BODY] = {127, 178, 240},
    [RP_ROLE_LIMB] = {247, 154, 102}, [RP_ROLE_JOINT] = {231, 235, 242}, [RP_ROLE_GOAL] = {134, 214, 163},
};

/* ---- observations that are images ---- */

static const uint8_t plane_colours[][3] = {{255, 255, 255}, {250, 90, 70},   {80, 160, 255}, {90, 210, 110},
                                           {245, 200, 60},  {190, 110, 240}, {60, 210, 210}, {250, 140, 190}};
#define PLANE_COLOURS (sizeof plane_colours / sizeof plane_colours[0])

struct image {
    const void *values;
    bool bytes; /* the values are uint8, else float32 */
    uint32_t height, width, planes;
    double most; /* largest value */
};

static double value_at(const struct image *self, size_t at)
{
    return self->bytes ? (double)((const uint8_t *)self->values)[at] : (double)((const float *)self->values)[at];
}

static struct image image_of(const rp_env_spec *spec, const void *observation)
{
    struct image self = {.values = observation,
                         .bytes = spec->observation_dtype == RP_DTYPE_UINT8,
                         .height = spec->observation_shape[0],
                         .width = spec->observation_shape[1],
                         .planes = spec->observation_rank > 2 ? spec->observation_shape[2] : 1};
    for (size_t i = 0; i < env_observation_count(spec); i++)
        self.most = fmax(self.most, value_at(&self, i));
    return self;
}

/* Planes of zeros and ones have a colour each, and the last one that is set is seen; three planes of larger numbers are RGB; of
 * other planes, such as the frames of a stack, the last one is seen. */
static void cell_colour(const struct image *self, size_t cell, double out[3])
{
    double scale = self->most > 1 ? 1 : 255;
    size_t at = cell * self->planes, last = self->planes;
    bool binary = self->most <= 1 && self->planes > 1;
    while (binary && last > 0 && !(value_at(self, at + last - 1) > 0))
        last--;
    for (uint32_t part = 0; part < 3; part++)
        if (binary)
            out[part] = last > 0 ? plane_colours[(last - 1) % PLANE_COLOURS][part] : picture_ground[part];
        else
            out[part] = scale * value_at(self, at + (self->planes == 3 ? part : last - 1));
}

/* Each pixel is the mean of a square of cells. */
static void take_image(const struct image *image, struct env_picture *out)
{
    uint32_t longest = image->height > image->width ? image->height : image->width;
    uint32_t by = (longest + PICTURE_SIDE - 1) / PICTURE_SIDE;
    out->width = image->width / by > 0 ? image->width / by : 1;
    out->height = image->height / by > 0 ? image->height / by : 1;
    for (uint32_t pixel = 0; pixel < out->width * out->height; pixel++) {
        double sum[3] = {0}, n = 0;
        uint32_t top = pixel / out->width * by, left = pixel % out->width * by;
        for (uint32_t y = top; y < top + by && y < image->height; y++)
            for (uint32_t x = left; x < left + by && x < image->width; x++, n++) {
                double colour[3];
                cell_colour(image, (size_t)y * image->width + x, colour);
                for (uint32_t part = 0; part < 3; part++)
                    sum[part] += colour[part];
            }
        for (uint32_t part = 0; part < 3; part++)
            out->rgb[3 * pixel + part] = (uint8_t)fmin(255, fmax(0, sum[part] / n));
    }
}

/* ---- observations that are numbers: a bar for each, upwards or downwards; large ones approach the frame ---- */

static void take_bars(const rp_env_spec *spec, const void *observation, rp_drawing *out)
{
    const struct image row = {.values = observation, .bytes = spec->observation_dtype == RP_DTYPE_UINT8};
    uint32_t n = (uint32_t)env_observation_count(spec);
    n = n < MOST_BARS ? n : MOST_BARS;
    *out = (rp_drawing){.right = 2, .bottom = -0.55, .top = 0.55};
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_SCENE, 0, 0, 2, 0, 0.01});
    for (uint32_t i = 0; i < n; i++) {
        double value = value_at(&row, i), left = 2 * (i + 0.15) / n, right = 2 * (i + 0.85) / n;
        double height = isinf(value) ? copysign(1, value) : isnan(value) ? 0 : value / (1 + fabs(value));
        rp_draw(out,
                (rp_shape){RP_SHAPE_BOX, value < 0 ? RP_ROLE_LIMB : RP_ROLE_BODY, left, 0, right, 0.5 * height, 0});
    }
}

void picture_take(const struct env *env, const void *observation, struct env_picture *out)
{
    out->width = out->height = 0;
    if (env->provider && env->provider->render && env->provider->render(env->self, out))
        return;
    env_draw(env, &out->drawing);
    out->step_s = out->drawing.step_s > 0 ? out->drawing.step_s : DEFAULT_STEP_S;
    if (out->drawing.n > 0)
        return;
    const rp_env_spec *spec = &env->spec;
    if (spec->observation_rank < 2) {
        take_bars(spec, observation, &out->drawing);
        return;
    }
    struct image image = image_of(spec, observation);
    take_image(&image, out);
}

/* ---- painting, for terminals ---- */

/* The distance of a point from a shape's edge, negative inside. */
static double distance_of(const rp_shape *shape, double x, double y)
{
    if (shape->kind == RP_SHAPE_BOX) {
        double dx = fabs(x - (shape->x + shape->x2) / 2) - fabs(shape->x2 - shape->x) / 2;
        double dy = fabs(y - (shape->y + shape->y2) / 2) - fabs(shape->y2 - shape->y) / 2;
        return fmax(dx, dy);
    }
    if (shape->kind == RP_SHAPE_CIRCLE)
        return hypot(x - shape->x, y - shape->y) - shape->size;
    double dx = shape->x2 - shape->x, dy = shape->y2 - shape->y, length = dx * dx + dy * dy;
    double along = length > 0 ? ((x - shape->x) * dx + (y - shape->y) * dy) / length : 0;
    along = fmin(1, fmax(0, along));
    return hypot(x - shape->x - along * dx, y - shape->y - along * dy) - shape->size / 2;
}

static void blend(uint8_t *rgb, const uint8_t *colour, double share)
{
    for (uint32_t part = 0; part < 3; part++)
        rgb[part] = (uint8_t)(rgb[part] + share * (colour[part] - rgb[part]));
}

/* Edges are smooth: a shape covers part of a pixel. A line that is thinner than a pixel is drawn as wide as one. */
static void paint_shapes(const rp_drawing *drawing, uint32_t width, uint32_t height, uint8_t *rgb)
{
    double across = drawing->right - drawing->left, up = drawing->top - drawing->bottom;
    double unit = fmax(across / width, up / height); /* of the world, for a pixel */
    double left = (drawing->left + drawing->right - unit * width) / 2;
    double top = (drawing->top + drawing->bottom + unit * height) / 2;
    for (uint32_t i = 0; i < drawing->n; i++) {
        rp_shape shape = drawing->shapes[i];
        if (shape.kind == RP_SHAPE_LINE)
            shape.size = fmax(shape.size, unit);
        for (uint32_t row = 0; row < height; row++)
            for (uint32_t column = 0; column < width; column++) {
                double x = left + (column + 0.5) * unit, y = top - (row + 0.5) * unit;
                double covered = fmin(1, fmax(0, 0.5 - distance_of(&shape, x, y) / unit));
                blend(rgb + 3 * ((size_t)row * width + column), picture_colours[shape.role], covered);
            }
    }
}

static void paint_pixels(const struct env_picture *self, uint32_t width, uint32_t height, uint8_t *rgb)
{
    double scale = fmin((double)width / self->width, (double)height / self->height);
    scale = scale > 1 ? floor(scale) : scale; /* cells of one size */
    uint32_t w = (uint32_t)(scale * self->width), h = (uint32_t)(scale * self->height);
    uint32_t left = (width - w) / 2, top = (height - h) / 2;
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++) {
            uint32_t from = (uint32_t)(y / scale) * self->width + (uint32_t)(x / scale);
            memcpy(rgb + 3 * ((size_t)(top + y) * width + left + x), self->rgb + 3 * (size_t)from, 3);
        }
}

void picture_paint(const struct env_picture *self, uint32_t width, uint32_t height, uint8_t *rgb)
{
    for (uint32_t i = 0; i < width * height; i++)
        memcpy(rgb + 3 * (size_t)i, picture_ground, 3);
    if (self->width > 0)
        paint_pixels(self, width, height, rgb);
    else
        paint_shapes(&self->drawing, width, height, rgb);
}
