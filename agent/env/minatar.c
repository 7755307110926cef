#include "agent/env/minatar.h"

int32_t minatar_action(struct minatar *self, const void *action)
{
    if (!(self->sticky > 0 && rng_unit(&self->base.rng) < self->sticky))
        self->last_action = *(const int32_t *)action;
    return self->last_action;
}

void *minatar_new(const char *name, const struct classic_task *task, bool ramps, const rp_option *options,
                  uint32_t n_options, rp_env_spec *spec, rp_error *err)
{
    double sticky = 0.1, pixels = 0, ramping = 1;
    const struct env_number numbers[] = {
        {"sticky", 0, 1, &sticky, false}, CLASSIC_PIXELS(&pixels), {"ramping", 0, 1, &ramping, true}};
    if (env_read_options(name, options, n_options, numbers, ramps ? 3 : 2, err) != RP_OK)
        return NULL;
    struct minatar *self = classic_new(task, 0, spec);
    self->sticky = sticky;
    self->ramping = ramping != 0;
    return classic_with_pixels(self, name, pixels, spec, err);
}
