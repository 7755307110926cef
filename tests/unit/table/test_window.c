/* The window of versions against a naive model: which items are stale after any order of events. */
#include "broker/table/window.h"
#include "proto/base/rng.h"
#include "tests/support/test.h"

#define SLOTS 64u

struct model {
    struct window window;
    uint64_t version, of[SLOTS]; /* version of each item */
    bool used[SLOTS], stale[SLOTS];
    uint32_t lag;
};

static void model_age(struct model *self)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        self->stale[i] |= self->used[i] && self->of[i] + self->lag < self->version;
}

static void enter_or_leave(struct model *self, struct rng *rng)
{
    uint32_t slot = (uint32_t)rng_below(rng, SLOTS);
    if (self->used[slot]) {
        window_leave(&self->window, slot);
        self->used[slot] = self->stale[slot] = false;
        return;
    }
    uint64_t back = rng_below(rng, self->lag + 4), version = self->version > back ? self->version - back : 0;
    if (rng_below(rng, 8) == 0)
        version =
            rng_below(rng, 2) ? self->version + 1 : self->version + rng_below(rng, 3) * UINT64_C(0x7fffffffffffffff);
    window_enter(&self->window, slot, window_version(&self->window, version));
    self->used[slot] = true;
    self->of[slot] = version <= self->version + 1 ? version : self->version;
}

static void move(struct model *self, struct rng *rng)
{
    self->version += rng_below(rng, 20) ? 1 + rng_below(rng, 3) : 1 + rng_below(rng, UINT64_C(1) << 40);
    window_move(&self->window, self->version);
}

/* Takes all stale items out, in the order in which they became stale or arrived so. */
static void take_stale(struct model *self)
{
    for (uint32_t slot; (slot = window_stale(&self->window)) != UINT32_MAX;) {
        assert_true(slot < SLOTS && self->used[slot] && self->stale[slot]);
        window_leave(&self->window, slot);
        self->used[slot] = self->stale[slot] = false;
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_false(self->used[i] && self->stale[i]);
}

TEST(model)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng rng;
        rng_seed(&rng, seed);
        struct model self = {.lag = (uint32_t)rng_below(&rng, 6), .version = rng_below(&rng, 2) ? 0 : 1000};
        window_init(&self.window, SLOTS, self.lag, self.version);
        for (uint32_t i = 0; i < 2000; i++) {
            uint64_t what = rng_below(&rng, 40);
            if (what < 30) {
                enter_or_leave(&self, &rng);
            } else if (what < 38) {
                move(&self, &rng);
            } else {
                self.lag = (uint32_t)rng_below(&rng, 8);
                window_set_lag(&self.window, self.lag);
            }
            model_age(&self);
            if (rng_below(&rng, 3) == 0)
                take_stale(&self);
        }
        window_fini(&self.window);
    }
}

TEST(without_a_window_nothing_is_stale)
{
    struct window window = {0};
    assert_int_equal(window_stale(&window), UINT32_MAX);
    window_fini(&window);
}
