/* Environments, built in or loaded from a shared object.
 *
 * An environment is a plain struct that writes observations into the caller's memory. It has its own random number
 * generator, seeded by the caller, and uses no global state, so any number of environments can run side by side.
 *
 * An episode ends in one of two ways, never both: `terminal` (the task is over: the value of what follows is 0) or
 * `truncated` (the time limit has passed: the value of what follows is unchanged, but it is not observed).
 *
 * A plug-in is a shared object that exports one function, rp_env_plugin_entry, which returns an rp_env_plugin that
 * lists its environments. tests/plugins/env_example.c is an example. */
#ifndef REPLAY_ENV_H
#define REPLAY_ENV_H

#include <stdint.h>

#include "replay/error.h"
#include "replay/plugin.h" /* rp_option */
#include "replay/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_ENV_ABI 2u
#define RP_ENV_MAX_ACTION 64u

typedef struct rp_env_spec {
    int32_t observation_dtype; /* RP_DTYPE_FLOAT32, or RP_DTYPE_UINT8 for planes of an image */
    uint32_t observation_rank;
    uint32_t observation_shape[RP_MAX_RANK]; /* images: height, width, planes */
    uint32_t n_actions;                      /* an action is one int32_t in [0, n_actions); 0: continuous */
    uint32_t action_size;                    /* continuous: number of floats in an action */
    float action_low[RP_ENV_MAX_ACTION], action_high[RP_ENV_MAX_ACTION];
    uint32_t max_steps; /* steps after which an episode is truncated; 0: never */
} rp_env_spec;

typedef struct rp_env_result {
    float reward;
    uint8_t terminal;
    uint8_t truncated; /* never together with terminal */
} rp_env_result;

/* ---- pictures: what people see of an environment, on the page of a run and in a terminal ---- */

typedef enum rp_shape_kind {
    RP_SHAPE_LINE,   /* from x, y to x2, y2; size: its thickness */
    RP_SHAPE_CIRCLE, /* around x, y; size: its radius */
    RP_SHAPE_BOX     /* between the corners x, y and x2, y2 */
} rp_shape_kind;

/* What a shape is decides its colour. */
typedef enum rp_shape_role {
    RP_ROLE_SCENE, /* stays the same within an episode: recorded once */
    RP_ROLE_MARK,  /* scenery that moves */
    RP_ROLE_BODY,
    RP_ROLE_LIMB,
    RP_ROLE_JOINT,
    RP_ROLE_GOAL
} rp_shape_role;

typedef struct rp_shape {
    rp_shape_kind kind;
    rp_shape_role role;
    double x, y, x2, y2, size;
} rp_shape;

#define RP_MAX_SHAPES 128u

/* Shapes in the environment's own units, y upwards. Later ones cover earlier ones. */
typedef struct rp_drawing {
    double left, bottom, right,
        top;       /* the part of the world that is seen; its proportions stay the same in an episode */
    double step_s; /* seconds that a step lasts, for the speed of playing; 0: not known */
    uint32_t n;
    rp_shape shapes[RP_MAX_SHAPES];
} rp_drawing;

/* Adds a shape, if there is room. */
static inline void rp_draw(rp_drawing *self, rp_shape shape)
{
    if (self->n < RP_MAX_SHAPES)
        self->shapes[self->n++] = shape;
}

typedef struct rp_env_ops {
    const char *name; /* "CartPole-v1" */
    const char *help; /* one line */
    /* Returns the environment and fills *spec (zeroed before the call), or returns NULL with err set. Unknown options are an
     * error. The first reset uses seed 0 unless `seed` was called. */
    void *(*create)(const rp_option *options, uint32_t n_options, rp_env_spec *spec, rp_error *err);
    void (*destroy)(void *self);
    void (*seed)(void *self, uint64_t seed);
    /* Starts an episode and writes its first observation. */
    void (*reset)(void *self, void *observation);
    /* Makes one step. The action is within its bounds. After `terminal`, reset is called before the next step. After
     * `truncated`, step may be called again if the user has set a longer time limit: then the episode goes on. */
    void (*step)(void *self, const void *action, void *observation, rp_env_result *result);
    /* Optional, for tests: starts an episode in the given state (n numbers, as documented by the environment) and writes
     * its observation. RP_INVALID_ARGUMENT if n is wrong. */
    rp_status (*set_state)(void *self, const double *state, uint32_t n, void *observation);
    /* Optional, for demonstrations: writes an action for `step` that is best in the present state. */
    void (*expert)(const void *self, void *action);
    /* Optional: draws the present state; *out is zeroed before the call. Without shapes, the observation is shown: planes as an
     * image, numbers as bars. Must not change what follows. */
    void (*draw)(const void *self, rp_drawing *out);
} rp_env_ops;

typedef struct rp_env_plugin {
    uint32_t abi; /* RP_ENV_ABI */
    const char *name;
    const rp_env_ops *const *environments; /* NULL-terminated */
} rp_env_plugin;

/* The only symbol that a plug-in exports. */
typedef const rp_env_plugin *rp_env_plugin_entry_fn(void);
RP_API const rp_env_plugin *rp_env_plugin_entry(void);

#ifdef __cplusplus
}
#endif

#endif
