/* prioritized: an item with priority p is picked in proportion to p ^ exponent.
 *
 * - p = 0 has weight 0 and is never picked while another item has a weight. If all weights are 0, all items are equally likely.
 * - With a negative exponent (a remover that prefers small priorities) a priority below 1e-9 counts as 1e-9, so that
 *   p = 0 means "the first to go".
 * - Weights are float32. A weight too small for a float32 becomes the smallest float32, so that an item with p > 0 can always be
 *   picked; this is logged once. With a positive exponent `check` refuses a priority whose weight is too large. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "broker/select/selector.h"
#include "broker/select/slotset.h"
#include "broker/select/sumtree.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/rng.h"

#define LEAST_PRIORITY 1e-9
#define DISTINCT_BLOCK 64u

struct taken {
    uint32_t slot;
    float weight;
};

struct prioritized {
    struct sumtree tree;
    struct slotset present; /* used when all weights are 0, and to mark the slots that pick_distinct took */
    struct rng rng;
    double exponent;
    double max_priority;  /* largest priority whose weight is still a float32 */
    double low, high;     /* priorities in between have weights of their own; others count as the nearer bound */
    bool logged;          /* a priority outside of the bounds was logged */
    double last_priority; /* cached with its weight: writers often give all items the same priority */
    float last_weight;
    struct taken *taken; /* scratch of pick_distinct */
    uint32_t n_taken;
    uint32_t room;
};

static void prioritized_destroy(void *state)
{
    struct prioritized *self = state;
    sumtree_fini(&self->tree);
    slotset_fini(&self->present);
    free(self->taken);
    free(self);
}

static rp_status read_exponent(const rp_option *option, double *out, rp_error *err)
{
    char *end;
    double value = strtod(option->value, &end);
    if (end == option->value || *end != '\0' || !isfinite(value))
        return err_set(err, RP_INVALID_ARGUMENT, "selector prioritized: exponent is '%s'; write a number such as 0.6",
                       option->value);
    *out = value;
    return RP_OK;
}

/* Weights are float32, so the power may be, too: it takes two thirds of the time of the double power. */
static double power(double base, double exponent)
{
    if (base > 1e-30 && base < 1e30)
        return (double)powf((float)base, (float)exponent);
    return pow(base, exponent);
}

static float weight_of(const struct prioritized *self, double priority)
{
    double weight;
    if (self->exponent < 0.0)
        weight = power(fmax(priority, LEAST_PRIORITY), self->exponent);
    else if (!(priority > 0.0))
        return 0.0f;
    else if (self->exponent == 1.0)
        weight = priority;
    else if (self->exponent == 0.5)
        weight = sqrt(priority);
    else if (self->exponent == 0.0)
        weight = 1.0;
    else
        weight = power(priority, self->exponent);
    if (weight > (double)FLT_MAX)
        return FLT_MAX;
    return weight > (double)FLT_MIN ? (float)weight : FLT_MIN;
}

static void *prioritized_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                                rp_error *err)
{
    double exponent = 1.0;
    for (uint32_t i = 0; i < n_options; i++) {
        if (strcmp(options[i].name, "exponent") != 0) {
            err_set(err, RP_INVALID_ARGUMENT, "selector prioritized has no option '%s'; its only one is exponent",
                    options[i].name);
            return NULL;
        }
        if (read_exponent(&options[i], &exponent, err) != RP_OK)
            return NULL;
    }
    if (selector_check_plain("prioritized", NULL, 0, capacity, err) != RP_OK)
        return NULL;
    struct prioritized *self = calloc(1, sizeof *self);
    if (!self || !sumtree_init(&self->tree, capacity) || !slotset_init(&self->present, capacity)) {
        if (self)
            prioritized_destroy(self);
        selector_no_memory("prioritized", capacity, err);
        return NULL;
    }
    self->exponent = exponent;
    self->max_priority = exponent > 0.0 ? pow((double)FLT_MAX, 1.0 / exponent) : (double)INFINITY;
    self->low = exponent > 0.0 ? pow((double)FLT_MIN, 1.0 / exponent) : 0.0;
    self->high = exponent < 0.0 ? pow((double)FLT_MIN, 1.0 / exponent) : self->max_priority;
    self->last_weight = weight_of(self, self->last_priority);
    rng_seed(&self->rng, seed);
    return self;
}

static rp_status prioritized_check(void *state, double priority, rp_error *err)
{
    struct prioritized *self = state;
    if (priority > self->max_priority)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "priority %g is too large: with exponent %g its weight does not fit into a float32; "
                       "scale priorities to at most %g",
                       priority, self->exponent, self->max_priority);
    bool beyond = (priority < self->low && priority > 0.0) || priority > self->high;
    if (beyond && !self->logged) {
        self->logged = true;
        log_line(LEVEL_WARN, "B0212", "a priority is too far from 1 to have a weight of its own: scale priorities",
                 "exponent=%g priority=%g counts_as=%g", self->exponent, priority,
                 priority < self->low ? self->low : self->high);
    }
    return RP_OK;
}

static void prioritized_insert(void *state, uint32_t slot, double priority)
{
    struct prioritized *self = state;
    slotset_add(&self->present, slot);
    if (priority != self->last_priority) {
        self->last_priority = priority;
        self->last_weight = weight_of(self, priority);
    }
    sumtree_set(&self->tree, slot, self->last_weight);
}

static void prioritized_update(void *state, uint32_t slot, double priority)
{
    struct prioritized *self = state;
    sumtree_set(&self->tree, slot, weight_of(self, priority));
}

static void prioritized_remove(void *state, uint32_t slot)
{
    struct prioritized *self = state;
    slotset_remove(&self->present, slot);
    sumtree_set(&self->tree, slot, 0.0f);
}

static uint32_t pick_any(struct prioritized *self)
{
    return slotset_nth(&self->present, (uint32_t)rng_below(&self->rng, self->present.count));
}

static uint32_t prioritized_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct prioritized *self = state;
    if (self->present.count == 0)
        return 0;
    if (self->tree.nonzero == 0) {
        for (uint32_t i = 0; i < n; i++) {
            slots[i] = pick_any(self);
            probabilities[i] = 1.0 / self->present.count;
        }
        return n;
    }
    sumtree_pick(&self->tree, &self->rng, n, slots);
    double total = sumtree_total(&self->tree);
    for (uint32_t i = 0; i < n; i++)
        probabilities[i] = (double)sumtree_get(&self->tree, slots[i]) / total;
    return n;
}

static bool take(struct prioritized *self, uint32_t slot)
{
    if (self->n_taken == self->room) {
        uint32_t room = self->room ? 2 * self->room : 256;
        struct taken *taken = realloc(self->taken, room * sizeof *taken);
        if (!taken)
            return false;
        self->taken = taken;
        self->room = room;
    }
    self->taken[self->n_taken++] = (struct taken){.slot = slot, .weight = sumtree_get(&self->tree, slot)};
    slotset_remove(&self->present, slot);
    return true;
}

/* The state of one pick_distinct. */
struct distinct {
    bool (*skip)(void *ctx, uint32_t slot);
    void *ctx;
    uint32_t *slots;
    double *probabilities;
    uint32_t got;
    bool emptied;       /* taken slots have no weight in the tree any more */
    double left_behind; /* otherwise: the weight that they still have in the tree */
};

/* Takes one slot out, and picks it unless it is skipped. False: no memory. */
static bool accept(struct prioritized *self, struct distinct *d, uint32_t slot)
{
    double weight = (double)sumtree_get(&self->tree, slot);
    double probability = 1.0 / self->present.count;
    if (self->tree.nonzero > 0)
        probability = fmin(1.0, weight / (sumtree_total(&self->tree) - d->left_behind));
    if (!take(self, slot))
        return false;
    if (d->emptied)
        sumtree_set(&self->tree, slot, 0.0f);
    else
        d->left_behind += weight;
    if (!d->skip || !d->skip(d->ctx, slot)) {
        d->slots[d->got] = slot;
        d->probabilities[d->got++] = probability;
    }
    return true;
}

static void empty_taken(struct prioritized *self, struct distinct *d)
{
    for (uint32_t i = 0; i < self->n_taken; i++)
        sumtree_set(&self->tree, self->taken[i].slot, 0.0f);
    d->emptied = true;
    d->left_behind = 0.0;
}

/* Drawing with replacement and ignoring slots that were drawn before is the same as taking each pick out, and does not change
 * the tree. Once more than half of a block is ignored, the picks are really taken out. */
static uint32_t prioritized_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                          uint32_t *slots, double *probabilities)
{
    struct prioritized *self = state;
    struct distinct d = {.skip = skip, .ctx = ctx, .slots = slots, .probabilities = probabilities};
    bool memory = true;
    while (memory && d.got < n && self->present.count > 0) {
        uint32_t block[DISTINCT_BLOCK];
        uint32_t draws = d.emptied ? 1 : n - d.got < DISTINCT_BLOCK ? n - d.got : DISTINCT_BLOCK;
        uint32_t fresh = 0;
        if (self->tree.nonzero == 0) {
            memory = accept(self, &d, pick_any(self));
            continue;
        }
        sumtree_pick(&self->tree, &self->rng, draws, block);
        for (uint32_t i = 0; memory && i < draws; i++) {
            if (!slotset_has(&self->present, block[i]))
                continue;
            fresh++;
            memory = accept(self, &d, block[i]);
        }
        if (!d.emptied && 2 * fresh < draws)
            empty_taken(self, &d);
    }
    while (self->n_taken > 0) {
        struct taken *last = &self->taken[--self->n_taken];
        slotset_add(&self->present, last->slot);
        sumtree_set(&self->tree, last->slot, last->weight);
    }
    return memory || d.got ? d.got : RP_PICK_NO_MEMORY;
}

static double prioritized_total(void *state)
{
    return sumtree_total(&((struct prioritized *)state)->tree);
}

static void prioritized_prefetch(void *state, uint32_t slot)
{
    sumtree_prefetch(&((struct prioritized *)state)->tree, slot);
}

struct saved {
    uint64_t rng[4];
    uint32_t until_exact;
    uint32_t zero;
};

static uint32_t prioritized_save(void *state, void *out, uint32_t size)
{
    const struct prioritized *self = state;
    struct saved saved = {.until_exact = self->tree.until_exact};
    memcpy(saved.rng, self->rng.s, sizeof saved.rng);
    if (size < sizeof saved)
        return 0;
    memcpy(out, &saved, sizeof saved);
    return sizeof saved;
}

/* Weights are stored by slot, so the order of inserts does not matter; sums are recomputed, as exact as they can be. */
static bool prioritized_load(void *state, const void *data, uint32_t size)
{
    struct prioritized *self = state;
    struct saved saved;
    if (size != sizeof saved)
        return false;
    memcpy(&saved, data, sizeof saved);
    if (!rng_load(&self->rng, saved.rng) || !sumtree_set_until_exact(&self->tree, saved.until_exact))
        return false;
    sumtree_rebuild(&self->tree);
    return true;
}

/* Without any priority above 0 all items are equally likely. Then the mass is tiny: beside a shard with priorities nothing is drawn
 * here, and among shards without any, draws are in proportion to their items. */
#define MASS_WITHOUT_PRIORITY 1e-300

static double prioritized_mass(void *state, uint32_t n)
{
    const struct prioritized *self = state;
    return self->tree.nonzero ? prioritized_total(state) : n * MASS_WITHOUT_PRIORITY;
}

const rp_selector_ops selector_prioritized = {
    .name = "prioritized",
    .create = prioritized_create,
    .destroy = prioritized_destroy,
    .check = prioritized_check,
    .insert = prioritized_insert,
    .update = prioritized_update,
    .remove = prioritized_remove,
    .pick = prioritized_pick,
    .pick_distinct = prioritized_pick_distinct,
    .total = prioritized_total,
    .prefetch = prioritized_prefetch,
    .save = prioritized_save,
    .load = prioritized_load,
    .mass = prioritized_mass,
};
