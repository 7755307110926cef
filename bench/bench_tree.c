/* The broker's tree of priorities next to textbook trees with other fan-outs: what a change and a pick cost against the number of
 * leaves. One thread, in this process. */
#include <stdio.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "broker/select/sumtree.h"
#include "proto/base/need.h"

#define BATCH 256u
#define LEAST_LEAVES 10000u
#define MOST_LEAVES 10000000u
#define PLAIN_LEVELS 32u

static const uint32_t fanouts[] = {0, 2, 4, 8, 16, 32, 64}; /* 0: the broker's tree */

/* ---- the textbook: a node is the sum of its `fanout` children, and each pick descends alone ---- */

struct plain {
    uint32_t fanout, levels;
    double *level[PLAIN_LEVELS]; /* level[0]: the leaves; the last one: the total */
};

/* All weights are 1. */
static void plain_init(struct plain *self, uint32_t fanout, uint32_t leaves)
{
    *self = (struct plain){.fanout = fanout};
    for (size_t n = leaves;; n = (n + fanout - 1) / fanout) {
        double *nodes = need_alloc((n + fanout - 1) / fanout * fanout * sizeof *nodes);
        const double *below = self->levels ? self->level[self->levels - 1] : NULL;
        for (size_t i = 0; i < (below ? n * fanout : n); i++)
            nodes[below ? i / fanout : i] += below ? below[i] : 1;
        self->level[self->levels++] = nodes;
        if (n == 1)
            break;
    }
}

static void plain_fini(struct plain *self)
{
    for (uint32_t l = 0; l < self->levels; l++)
        free(self->level[l]);
}

static void plain_set(struct plain *self, uint32_t slot, double weight)
{
    double change = weight - self->level[0][slot];
    for (uint32_t l = 0; l < self->levels; l++, slot /= self->fanout)
        self->level[l][slot] += change;
}

static uint32_t plain_pick(const struct plain *self, double point)
{
    size_t at = 0;
    for (uint32_t l = self->levels - 1; l-- > 0;) {
        const double *child = self->level[l] + at * self->fanout;
        uint32_t i = 0;
        while (i + 1 < self->fanout && child[i] <= point)
            point -= child[i++];
        at = at * self->fanout + i;
    }
    return (uint32_t)at;
}

/* ---- measuring ---- */

struct subject {
    uint32_t fanout, leaves; /* fanout 0: `ours` is measured, otherwise `plain` */
    struct sumtree ours;
    struct plain plain;
    struct rng rng;
    uint32_t picked; /* keeps compilers from leaving picks out */
};

static void update_batch(void *subject)
{
    struct subject *self = subject;
    uint32_t slots[BATCH];
    for (uint32_t i = 0; i < BATCH; i++) {
        slots[i] = (uint32_t)(rng_unit(&self->rng) * self->leaves);
        if (!self->fanout)
            sumtree_prefetch(&self->ours, slots[i]);
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        double weight = 0.1 + rng_unit(&self->rng);
        if (self->fanout)
            plain_set(&self->plain, slots[i], weight);
        else
            sumtree_set(&self->ours, slots[i], (float)weight);
    }
}

static void pick_batch(void *subject)
{
    struct subject *self = subject;
    if (self->fanout) {
        double total = self->plain.level[self->plain.levels - 1][0];
        for (uint32_t i = 0; i < BATCH; i++)
            self->picked ^= plain_pick(&self->plain, rng_unit(&self->rng) * total);
    } else {
        uint32_t slots[BATCH];
        sumtree_pick(&self->ours, &self->rng, BATCH, slots);
        for (uint32_t i = 0; i < BATCH; i++)
            self->picked ^= slots[i];
    }
}

static void measure(const struct options *options, uint32_t fanout, uint32_t leaves)
{
    struct subject self = {.fanout = fanout, .leaves = leaves};
    double update[MOST_REPEATS], pick[MOST_REPEATS];
    char name[64], tree[32] = "broker";
    if (fanout)
        snprintf(tree, sizeof tree, "fan-out %u", fanout);
    rng_seed(&self.rng, 1);
    if (fanout)
        plain_init(&self.plain, fanout, leaves);
    else
        sumtree_init(&self.ours, leaves);
    for (uint32_t i = 0; !fanout && i < leaves; i++)
        sumtree_set(&self.ours, i, 1);
    for (uint32_t n = 0; n < options->repeats; n++) {
        update[n] = 1e9 / BATCH * time_calls(update_batch, &self, options->seconds / 10);
        pick[n] = 1e9 / BATCH * time_calls(pick_batch, &self, options->seconds / 10);
    }
    snprintf(name, sizeof name, "update, %s, %u leaves", tree, leaves);
    report_value(options, name, spread_of(update, options->repeats).median, 0, "ns");
    snprintf(name, sizeof name, "pick, %s, %u leaves", tree, leaves);
    report_value(options, name, spread_of(pick, options->repeats).median, 0, "ns");
    if (fanout)
        plain_fini(&self.plain);
    else
        sumtree_fini(&self.ours);
}

bool command_tree(struct options *options)
{
    uint64_t most = options->items ? options->items : MOST_LEAVES;
    for (uint32_t leaves = LEAST_LEAVES; leaves <= most && leaves <= MOST_LEAVES; leaves *= 10)
        for (uint32_t i = 0; i < sizeof fanouts / sizeof fanouts[0]; i++)
            measure(options, fanouts[i], leaves);
    return true;
}
