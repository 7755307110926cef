/* What the built-in environments share: their options, and everything of rp_env_ops but the task itself, which is a struct
 * classic_task. */
#pragma once

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

/* An option: a number within bounds, a double in the environment's struct. */
struct classic_option {
    const char *name;
    double min, max, initial;
    bool whole;    /* fractions are refused */
    size_t offset; /* in the environment's struct */
};

/* The struct of an environment begins with this. */
struct classic {
    const struct classic_task *task;
    const char *name;
    struct rng rng;
    uint32_t steps;        /* of this episode */
    double side;           /* the option pixels */
    struct pixels *pixels; /* makes the observations of a board: images; NULL: they are its planes */
};

/* The option of boards: images of so many pixels a side; 0: planes. */
#define CLASSIC_PIXELS                                                                                                 \
    {                                                                                                                  \
        "pixels", 0, 256, 0, true, offsetof(struct classic, side)                                                      \
    }

struct classic_task {
    rp_env_spec spec;
    size_t size; /* bytes of the environment's struct */
    const struct classic_option *options;
    uint32_t n_options;
    /* Completes a new environment, whose options are set, and its spec; may be NULL. */
    rp_status (*prepare)(void *self, rp_env_spec *spec, rp_error *err);
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

/* Returns a new environment, which classic_complete is to complete. */
void *classic_new(const char *name, const struct classic_task *task);
/* Reads its options and gives its spec. NULL with err set, and self is gone: an option is wrong or not known. */
void *classic_complete(void *self, const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err);
/* Both of it. */
void *classic_create(const char *name, const struct classic_task *task, const rp_option *options, uint32_t n_options,
                     rp_env_spec *spec, rp_error *err);

/* The other members of rp_env_ops. */
void classic_destroy(void *self);
void classic_seed(void *self, uint64_t seed);
void classic_reset(void *self, void *observation);
void classic_step(void *self, const void *action, void *observation, rp_env_result *result);
rp_status classic_set_state(void *self, const double *values, uint32_t n, void *observation);
void classic_draw(const void *self, rp_drawing *out);
/* Defines the ops of a task. */
#define CLASSIC_ENV(symbol, of, title, text) CLASSIC_DEFINE(symbol, classic_create, of, title, text, NULL)
/* The same with another create function, or with a function that knows the best actions. */
#define CLASSIC_DEFINE(symbol, make, of, title, text, best)                                                            \
    static void *symbol##_create(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err)       \
    {                                                                                                                  \
        return make(title, of, options, n_options, spec, err);                                                         \
    }                                                                                                                  \
    const rp_env_ops symbol = {.name = title,                                                                          \
                               .help = text,                                                                           \
                               .create = symbol##_create,                                                              \
                               .destroy = classic_destroy,                                                             \
                               .seed = classic_seed,                                                                   \
                               .reset = classic_reset,                                                                 \
                               .step = classic_step,                                                                   \
                               .set_state = classic_set_state,                                                         \
                               .expert = best,                                                                         \
                               .draw = classic_draw}

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
