/* What the built-in environments share: their options, and everything of rp_env_ops but the task itself, which is a struct
 * classic_task. */
#ifndef AGENT_ENV_CLASSIC_H
#define AGENT_ENV_CLASSIC_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h> // IWYU pragma: keep

#include "proto/base/rng.h"
#include "replay/env.h"

/* Refuses a name: "WHAT 'name' (did you mean 'near'?)", or "WHAT 'name'; OTHERS a, b, c". */
rp_status env_no_such(rp_error *err, rp_status status, const char *what, const char *name, const char *const *names,
                      uint32_t n, const char *others);

/* An option that is a number within bounds; *out keeps its default if the option is absent. */
struct env_number {
    const char *name;
    double min, max;
    double *out;
    bool whole; /* fractions are refused */
};
/* For the create functions of environments: reads these n options. Refuses all others with "did you mean". */
rp_status env_read_options(const char *env, const rp_option *options, uint32_t n_options,
                           const struct env_number *numbers, uint32_t n, rp_error *err);

/* The struct of an environment begins with this. */
struct classic {
    const struct classic_task *task;
    struct rng rng;
    uint32_t steps;        /* of this episode */
    struct pixels *pixels; /* makes the observations of a board: images; NULL: they are its planes */
};

struct classic_task {
    rp_env_spec spec;
    size_t size; /* bytes of the environment's struct */
    /* A board of rows, columns and planes: the brightness of each plane as an image. NULL: no board. */
    const uint8_t *greys;
    /* How many finite numbers are a state: without place, the doubles behind struct classic. 0: place checks their number. */
    uint32_t n_state;
    /* Bounds of whole numbers from 0 on, of which the last `repeat` go on to the end of the state; n_below 0: any numbers. */
    const uint32_t *below;
    uint32_t n_below, repeat;
    /* Draws the first state of an episode. */
    void (*start)(void *self);
    void (*observe)(const void *self, void *out);
    /* Takes the action. Returns the reward, and says whether the task has ended. */
    double (*move)(void *self, const void *action, bool *terminal);
    /* For set_state: takes these values, or returns false if they are no state. */
    bool (*place)(void *self, const double *values, uint32_t n);
    /* As rp_env_ops has it; NULL: the observation is the picture. */
    void (*draw)(const void *self, rp_drawing *out);
    /* Frees what the environment owns beside its struct; may be NULL. */
    void (*release)(void *self);
};

/* The part of a spec that says: n numbers are an observation. */
#define CLASSIC_NUMBERS(n) .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {n}

/* Returns a new environment and gives its spec. extra: bytes behind its struct. */
void *classic_new(const struct classic_task *task, size_t extra, rp_env_spec *spec);
/* The option of boards that classic_with_pixels takes; 0: planes. */
#define PIXELS_MOST 256u /* a side */
#define CLASSIC_PIXELS(out)                                                                                            \
    {                                                                                                                  \
        "pixels", 0, PIXELS_MOST, out, true                                                                            \
    }
/* The end of a create function: makes the observations images of this side, unless it is 0. NULL with err set, and self is
 * gone: the board has more cells. */
void *classic_with_pixels(void *self, const char *name, double side, rp_env_spec *spec, rp_error *err);
/* Returns a new environment without options of its own. NULL with err set: an option is wrong. */
void *classic_create(const char *name, const struct classic_task *task, const rp_option *options, uint32_t n_options,
                     rp_env_spec *spec, rp_error *err);

/* The other members of rp_env_ops. */
void classic_destroy(void *self);
void classic_seed(void *self, uint64_t seed);
void classic_reset(void *self, void *observation);
void classic_step(void *self, const void *action, void *observation, rp_env_result *result);
rp_status classic_set_state(void *self, const double *values, uint32_t n, void *observation);
void classic_draw(const void *self, rp_drawing *out);
#define CLASSIC_MEMBERS(title, text, make)                                                                             \
    .name = title, .help = text, .create = make, .destroy = classic_destroy, .seed = classic_seed,                     \
    .reset = classic_reset, .step = classic_step, .set_state = classic_set_state, .draw = classic_draw
#define CLASSIC_OPS(title, text, make)                                                                                 \
    {                                                                                                                  \
        CLASSIC_MEMBERS(title, text, make),                                                                            \
    }
/* Defines the ops of a task without options of its own. */
#define CLASSIC_ENV(symbol, task, title, text)                                                                         \
    static void *task##_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)         \
    {                                                                                                                  \
        return classic_create(title, &task, options, n_options, spec, err);                                            \
    }                                                                                                                  \
    const rp_env_ops symbol = CLASSIC_OPS(title, text, task##_create)

/* True if a value is a cell of a grid: whole and within [0, n). */
static inline bool classic_cell(double value, uint32_t n)
{
    return value >= 0 && value < n && value == floor(value);
}

static inline double classic_uniform(struct rng *rng, double low, double high)
{
    return low + rng_unit(rng) * (high - low);
}

static inline double classic_clip(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

#endif
