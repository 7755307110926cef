/* Priority diffusion: when an item's priority is updated, the priorities of its neighbours in the same episode are raised to at
 * least decay^distance of the new priority, up to `radius` steps away. Credit for a surprise spreads to the steps before it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "broker/extension/extension.h"
#include "broker/select/keymap.h"
#include "broker/store/reserve.h"
#include "proto/base/error.h"
#include "proto/config/schema.h"

/* Most items that begin at one step and are raised together. */
#define SAME_STEP_MOST 64u

struct diffusion {
    const rp_extension_host *host;
    struct keymap *by_step; /* session and step -> the slot of an item that begins there */
    uint32_t *next;         /* slot -> another item that begins at the same step, or KEYMAP_NONE */
    uint32_t capacity;
    int64_t radius;
    double decay;
    double diffused;
};

static uint64_t place(uint32_t session, uint64_t step)
{
    return (uint64_t)session << 40 | (step & ((UINT64_C(1) << 40) - 1));
}

static void destroy(void *ctx)
{
    struct diffusion *self = ctx;
    keymap_destroy(&self->by_step);
    reserve_unmap(self->next, self->capacity * sizeof *self->next);
    free(self);
}

static void *create(const rp_option *options, uint32_t n_options, uint32_t capacity, const rp_extension_host *host,
                    rp_error *err)
{
    struct diffusion *self = calloc(1, sizeof *self);
    if (self) {
        self->capacity = capacity;
        self->by_step = keymap_new(NULL);
        self->next = reserve_map(capacity * sizeof *self->next);
    }
    if (!self || !self->by_step || !self->next) {
        if (self)
            destroy(self);
        err_set(err, RP_NO_MEMORY, "no memory for priority_diffusion");
        return NULL;
    }
    self->host = host;
    self->radius = 1;
    self->decay = 0.5;
    for (uint32_t i = 0; i < n_options; i++) {
        const char *name = options[i].name, *value = options[i].value;
        bool ok = false;
        if (strcmp(name, "radius") == 0)
            ok = schema_parse_int(value, &self->radius) && self->radius >= 1 && self->radius <= 64;
        else if (strcmp(name, "decay") == 0)
            ok = schema_parse_real(value, &self->decay) && self->decay > 0 && self->decay <= 1;
        if (ok)
            continue;
        err_set(err, RP_INVALID_ARGUMENT,
                "extension priority_diffusion: option '%s: %s' is wrong: the options are radius (1 to 64) and decay "
                "(above 0, up to 1)",
                name, value);
        destroy(self);
        return NULL;
    }
    return self;
}

static void on_insert(void *ctx, const rp_item_view *item)
{
    struct diffusion *self = ctx;
    uint64_t at = place(item->session, item->step);
    self->next[item->slot] = keymap_remove(self->by_step, at);
    keymap_put(self->by_step, at, item->slot);
}

static void on_delete(void *ctx, const rp_item_view *item)
{
    struct diffusion *self = ctx;
    uint64_t at = place(item->session, item->step);
    uint32_t head = keymap_get(self->by_step, at), after = self->next[item->slot];
    if (head == item->slot) {
        keymap_remove(self->by_step, at);
        if (after != KEYMAP_NONE)
            keymap_put(self->by_step, at, after);
        return;
    }
    while (head != KEYMAP_NONE && self->next[head] != item->slot)
        head = self->next[head];
    if (head != KEYMAP_NONE)
        self->next[head] = after;
}

static void on_reset(void *ctx)
{
    struct diffusion *self = ctx;
    struct keymap *fresh = keymap_new(NULL);
    if (!fresh)
        return; /* stale entries do no harm: slots are checked before use */
    keymap_destroy(&self->by_step);
    self->by_step = fresh;
}

static void raise_neighbour(struct diffusion *self, const rp_item_view *item, uint64_t step, double priority)
{
    uint32_t slot = keymap_get(self->by_step, place(item->session, step)), most = SAME_STEP_MOST;
    for (; slot != KEYMAP_NONE && most > 0; slot = self->next[slot], most--) {
        rp_item_view neighbour;
        if (!self->host->view(self->host->table, slot, &neighbour) || neighbour.session != item->session ||
            neighbour.step != step)
            return; /* left over from before a reset */
        if (neighbour.episode == item->episode && neighbour.priority < priority)
            self->diffused += self->host->set_priority(self->host->table, slot, priority);
    }
}

static void on_update(void *ctx, const rp_item_view *item, double old_priority)
{
    struct diffusion *self = ctx;
    (void)old_priority;
    double priority = item->priority;
    for (int64_t d = 1; d <= self->radius; d++) {
        priority *= self->decay;
        if (item->step >= (uint64_t)d)
            raise_neighbour(self, item, item->step - (uint64_t)d, priority);
        raise_neighbour(self, item, item->step + (uint64_t)d, priority);
    }
}

static void stats(void *ctx, void (*emit)(void *, const char *, double), void *to)
{
    emit(to, "diffused", ((const struct diffusion *)ctx)->diffused);
}

const rp_extension_ops extension_priority_diffusion = {
    .name = "priority_diffusion",
    .create = create,
    .destroy = destroy,
    .on_insert = on_insert,
    .on_update = on_update,
    .on_delete = on_delete,
    .on_reset = on_reset,
    .stats = stats,
};
