/* Three structures do the same work in turn: the reference, the sum tree alone, and the prioritized selector with
 * exponent 0.6 around it. Each figure is the median over the repetitions of the thread's CPU time for one element.
 * New weights differ from those before, so that nothing is saved by writing the same value again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "broker/select/selector.h"
#include "broker/select/sumtree.h"
#include "proto/base/rng.h"

#define BATCH 256u
#define WORK (1u << 18) /* elements in one measurement */

enum structure { REFERENCE, SUMTREE, SELECTOR, N_STRUCTURES };
enum operation { UPDATE, UPDATE_BATCH, SAMPLE_BATCH, N_OPERATIONS };

static const char *const structure_names[N_STRUCTURES] = {"binary_f32", "sumtree", "prioritized"};
static const char *const operation_names[N_OPERATIONS] = {"update", "update_256", "sample_256"};

/* ---- the reference: a binary segment tree over float32 ---- */

struct ref_tree {
    float *sum; /* sum[1] is the root, the leaves begin at sum[leaves] */
    uint32_t leaves;
};

static bool ref_tree_init(struct ref_tree *self, uint32_t capacity)
{
    self->leaves = 1;
    while (self->leaves < capacity)
        self->leaves *= 2;
    self->sum = calloc(2 * (size_t)self->leaves, sizeof *self->sum);
    return self->sum != NULL;
}

static void ref_tree_fini(struct ref_tree *self)
{
    free(self->sum);
    self->sum = NULL;
}

static void ref_tree_set(struct ref_tree *self, uint32_t slot, float weight)
{
    size_t i = (size_t)self->leaves + slot;
    self->sum[i] = weight;
    while (i > 1) {
        i /= 2;
        self->sum[i] = self->sum[2 * i] + self->sum[2 * i + 1];
    }
}

static uint32_t ref_tree_pick(const struct ref_tree *self, struct rng *rng)
{
    float point = (float)rng_unit(rng) * self->sum[1];
    size_t i = 1;
    while (i < self->leaves) {
        i *= 2;
        if (point >= self->sum[i]) {
            point -= self->sum[i];
            i++;
        }
    }
    return (uint32_t)(i - self->leaves);
}

/* ---- the work ---- */

struct bench {
    struct ref_tree reference;
    struct sumtree tree;
    void *selector;
    struct rng rng;
    uint32_t leaves;
    uint32_t *slots;
    float *weights;
    uint64_t sink; /* keeps the compiler from dropping picks */
};

static float new_weight(struct rng *rng)
{
    return 0.01f + (float)rng_unit(rng);
}

static void bench_fini(struct bench *self)
{
    ref_tree_fini(&self->reference);
    sumtree_fini(&self->tree);
    if (self->selector)
        selector_prioritized.destroy(self->selector);
    free(self->slots);
    free(self->weights);
}

static bool bench_init(struct bench *self, uint32_t leaves)
{
    static const rp_option exponent = {.name = "exponent", .value = "0.6"};
    *self = (struct bench){.leaves = leaves};
    rng_seed(&self->rng, 1);
    self->slots = malloc(WORK * sizeof *self->slots);
    self->weights = malloc(WORK * sizeof *self->weights);
    self->selector = selector_prioritized.create(&exponent, 1, leaves, 1, NULL);
    sumtree_init(&self->tree, leaves);
    if (!ref_tree_init(&self->reference, leaves) || !self->slots || !self->weights || !self->selector) {
        bench_fini(self);
        return false;
    }
    for (uint32_t slot = 0; slot < leaves; slot++) {
        float weight = new_weight(&self->rng);
        ref_tree_set(&self->reference, slot, weight);
        sumtree_set(&self->tree, slot, weight);
        selector_prioritized.insert(self->selector, slot, (double)weight);
    }
    return true;
}

static void draw_work(struct bench *self)
{
    for (uint32_t i = 0; i < WORK; i++) {
        self->slots[i] = (uint32_t)rng_below(&self->rng, self->leaves);
        self->weights[i] = new_weight(&self->rng);
    }
}

static void update(struct bench *self, enum structure structure, uint32_t from, uint32_t n)
{
    const uint32_t *slots = self->slots + from;
    const float *weights = self->weights + from;
    for (uint32_t i = 0; i < n; i++) {
        if (structure == REFERENCE)
            ref_tree_set(&self->reference, slots[i], weights[i]);
        else if (structure == SUMTREE)
            sumtree_set(&self->tree, slots[i], weights[i]);
        else
            selector_prioritized.update(self->selector, slots[i], (double)weights[i]);
    }
}

static void prefetch(struct bench *self, enum structure structure, uint32_t from, uint32_t n)
{
    if (structure == SUMTREE) {
        for (uint32_t i = 0; i < n; i++)
            sumtree_prefetch(&self->tree, self->slots[from + i]);
    } else if (structure == SELECTOR) {
        for (uint32_t i = 0; i < n; i++)
            selector_prioritized.prefetch(self->selector, self->slots[from + i]);
    }
}

static void sample(struct bench *self, enum structure structure)
{
    uint32_t picked[BATCH];
    double probabilities[BATCH];
    if (structure == REFERENCE) {
        for (uint32_t i = 0; i < BATCH; i++)
            picked[i] = ref_tree_pick(&self->reference, &self->rng);
    } else if (structure == SUMTREE) {
        sumtree_pick(&self->tree, &self->rng, BATCH, picked);
    } else {
        selector_prioritized.pick(self->selector, BATCH, picked, probabilities);
    }
    self->sink += picked[BATCH - 1];
}

static void work(struct bench *self, enum structure structure, enum operation operation)
{
    if (operation == UPDATE) {
        update(self, structure, 0, WORK);
        return;
    }
    for (uint32_t from = 0; from < WORK; from += BATCH) {
        if (operation == UPDATE_BATCH) {
            prefetch(self, structure, from, BATCH);
            update(self, structure, from, BATCH);
        } else {
            sample(self, structure);
        }
    }
}

/* Nanoseconds for one element. The structures evict each other from the caches: the first round brings this one
 * back. */
static double measure(struct bench *self, enum structure structure, enum operation operation)
{
    draw_work(self);
    work(self, structure, operation);
    draw_work(self);
    double start = thread_seconds();
    work(self, structure, operation);
    return (thread_seconds() - start) * 1e9 / WORK;
}

static bool run_size(const struct options *options, uint32_t leaves)
{
    static double ns[N_OPERATIONS][N_STRUCTURES][MOST_REPEATS];
    struct bench bench;
    char name[64];
    if (!bench_init(&bench, leaves)) {
        fprintf(stderr, "replay-bench tree: no memory for %u leaves\n", leaves);
        return false;
    }
    for (uint32_t r = 0; r < options->repeats; r++)
        for (int o = 0; o < N_OPERATIONS; o++)
            for (int s = 0; s < N_STRUCTURES; s++)
                ns[o][s][r] = measure(&bench, (enum structure)s, (enum operation)o);
    for (int o = 0; o < N_OPERATIONS; o++) {
        for (int s = 0; s < N_STRUCTURES; s++) {
            snprintf(name, sizeof name, "%u leaves, %s, %s", leaves, operation_names[o], structure_names[s]);
            report_value(options, name, spread_of(ns[o][s], options->repeats).median, 0, "ns");
        }
        snprintf(name, sizeof name, "  %s / %s", structure_names[REFERENCE], structure_names[SUMTREE]);
        report_value(options, name, spread_ratio(ns[o][REFERENCE], ns[o][SUMTREE], options->repeats).median, 0,
                     "ratio");
    }
    bench_fini(&bench);
    return true;
}

bool command_tree(struct options *options)
{
    if (options->items)
        return run_size(options, (uint32_t)options->items);
    bool ok = true;
    for (uint32_t leaves = 10000; ok && leaves <= 10000000; leaves *= 10)
        ok = run_size(options, leaves);
    return ok;
}
