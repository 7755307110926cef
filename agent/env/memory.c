/* Memory: the first observation shows a cue, the next `length` show nothing but the time, and the action after the last
 * one is the answer: +1 if it is the cue's, -1 if it is the other. All actions before it have no effect. A policy without a
 * memory scores 0 in the mean; so does one that remembers less than `length` steps. After bsuite's memory_len.
 *
 * An observation: the share of the time that is left, from 1 to 0; the cue, -1 (action 0) or 1 (action 1), 0 after the first. The
 * state for set_state: the steps taken, the cue's action.
 *
 * Option: length (default 30). */
#include "agent/env/builtin.h"
#include "agent/env/classic.h"

struct memory {
    struct classic base;
    double length;
    uint32_t time; /* steps taken */
    int32_t cue;   /* the right action */
};

static void memory_observe(const void *env, void *observation)
{
    const struct memory *self = env;
    float *out = observation;
    out[0] = self->time < self->length ? 1 - (float)self->time / (float)self->length : 0;
    out[1] = self->time > 0 ? 0 : self->cue ? 1 : -1;
}

static void memory_start(void *env)
{
    struct memory *self = env;
    self->time = 0;
    self->cue = (int32_t)rng_below(&self->base.rng, 2);
}

static double memory_move(void *env, const void *action, bool *terminal)
{
    struct memory *self = env;
    *terminal = self->time++ == self->length;
    return !*terminal ? 0 : *(const int32_t *)action == self->cue ? 1 : -1;
}

static bool memory_place(void *env, const double *values, uint32_t n)
{
    struct memory *self = env;
    if (n != 2 || !classic_cell(values[0], (uint32_t)self->length + 1) || !classic_cell(values[1], 2))
        return false;
    self->time = (uint32_t)values[0];
    self->cue = (int32_t)values[1];
    return true;
}

static const struct classic_task memory_task = {
    .spec = {CLASSIC_NUMBERS(2), .n_actions = 2},
    .size = sizeof(struct memory),
    .options = (const struct classic_option[]){{"length", 1, 10000, 30, true, offsetof(struct memory, length)}},
    .n_options = 1,
    .start = memory_start,
    .observe = memory_observe,
    .move = memory_move,
    .place = memory_place,
};

CLASSIC_ENV(env_memory, &memory_task, "Memory",
            "recall a cue after a delay: 2 actions, 2 numbers, +1 or -1 at the end; option length");
