#include "broker/select/sumtree.h"

#include <assert.h>
#include <math.h>

#include "broker/store/reserve.h"

#define SUMTREE_FANOUT 16u
#define EXACT_EVERY 127u /* prime, so that no regular pattern of changes always misses the same path */
#define PICK_BLOCK 128u  /* descents in parallel; their lines fit into the first-level cache */
#define TOP_NODES 512u   /* running sums that are made for a block of picks */
/* A change updates sums up to the first level with at most this many nodes. The few sums above it would make each change wait for
 * the one before it, and only small batches of picks need them. */
#define KEPT_NODES 256u

void sumtree_init(struct sumtree *self, uint32_t capacity)
{
    size_t offset[SUMTREE_LEVELS];
    size_t nodes = ((size_t)capacity + SUMTREE_FANOUT - 1) / SUMTREE_FANOUT;
    size_t bytes = nodes * SUMTREE_FANOUT * sizeof(float);
    *self = (struct sumtree){.capacity = capacity, .until_exact = EXACT_EVERY};
    for (;;) {
        size_t groups = (nodes + SUMTREE_FANOUT - 1) / SUMTREE_FANOUT;
        bytes = (bytes + 127) & ~(size_t)127;
        offset[self->levels++] = bytes;
        bytes += groups * SUMTREE_FANOUT * sizeof(double);
        if (!self->kept && nodes <= KEPT_NODES)
            self->kept = self->levels;
        if (nodes == 1)
            break;
        nodes = groups;
    }
    char *memory = reserve_map(bytes);
    self->bytes = bytes;
    self->leaves = (float *)(void *)memory;
    for (uint32_t l = 0; l < self->levels; l++)
        self->level[l] = (double *)(void *)(memory + offset[l]);
}

void sumtree_fini(struct sumtree *self)
{
    reserve_unmap(self->leaves, self->bytes);
    *self = (struct sumtree){0};
}

static double sum_leaves(const float *leaf)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < SUMTREE_FANOUT; i++)
        sum += (double)leaf[i];
    return sum;
}

static double sum_nodes(const double *node)
{
    double even = 0.0;
    double odd = 0.0;
    for (uint32_t i = 0; i < SUMTREE_FANOUT; i += 2) {
        even += node[i];
        odd += node[i + 1];
    }
    return even + odd;
}

/* Recomputes the sums of the levels from l on. */
static void rebuild_from(struct sumtree *self, uint32_t l)
{
    for (; l < self->levels; l++) {
        size_t nodes = ((size_t)(self->capacity - 1) >> (4 * l + 4)) + 1;
        for (size_t i = 0; i < nodes; i++)
            self->level[l][i] = sum_nodes(self->level[l - 1] + i * SUMTREE_FANOUT);
    }
    self->stale = false;
}

/* Recomputes the sums above a slot, upwards from its line, while a sum is smaller than what was taken out of it: above that the
 * difference did no harm. INFINITY goes up to the last level that is kept. */
static void repair(struct sumtree *self, uint32_t slot, double taken)
{
    size_t i = slot / SUMTREE_FANOUT;
    self->level[0][i] = sum_leaves(self->leaves + i * SUMTREE_FANOUT);
    self->stale = true;
    for (uint32_t l = 1; l < self->kept; l++) {
        i /= SUMTREE_FANOUT;
        if (self->level[l][i] >= taken)
            return;
        self->level[l][i] = sum_nodes(self->level[l - 1] + i * SUMTREE_FANOUT);
    }
}

static inline void set(struct sumtree *self, uint32_t slot, float weight)
{
    assert(slot < self->capacity);
    float before = self->leaves[slot];
    double change = (double)weight - (double)before;
    self->leaves[slot] = weight;
    self->nonzero += (uint32_t)(weight != 0.0f) - (uint32_t)(before != 0.0f);

    uint32_t i = slot / SUMTREE_FANOUT;
    double sum_before = self->level[0][i];
    double sum = sum_before + change;
    self->level[0][i] = sum;
    for (uint32_t l = 1; l < self->kept; l++) {
        i /= SUMTREE_FANOUT;
        self->level[l][i] += change;
    }
    /* Sums grow upwards: if this change is small against the line's sum, it is small against all of them. */
    bool large = sum < 0.5 * sum_before;
    bool due = --self->until_exact == 0;
    if (__builtin_expect(large | due, 0)) {
        repair(self, slot, due ? (double)INFINITY : -change);
        if (due)
            self->until_exact = EXACT_EVERY;
    }
}

void sumtree_set(struct sumtree *self, uint32_t slot, float weight)
{
    self->stale = true;
    set(self, slot, weight);
}

void sumtree_prefetch(const struct sumtree *self, uint32_t slot)
{
    __builtin_prefetch(&self->leaves[slot], 1);
    __builtin_prefetch(&self->level[0][slot / SUMTREE_FANOUT], 1);
}

void sumtree_set_many(struct sumtree *self, uint32_t n, const uint32_t *slots, const float *weights)
{
    self->stale = true;
    for (uint32_t i = 0; i < n; i++)
        set(self, slots[i], weights[i]);
}

bool sumtree_set_until_exact(struct sumtree *self, uint32_t changes)
{
    if (changes == 0 || changes > EXACT_EVERY)
        return false;
    self->until_exact = changes;
    return true;
}

void sumtree_rebuild(struct sumtree *self)
{
    size_t nodes = ((size_t)self->capacity + SUMTREE_FANOUT - 1) / SUMTREE_FANOUT;
    for (size_t i = 0; i < nodes; i++)
        self->level[0][i] = sum_leaves(self->leaves + i * SUMTREE_FANOUT);
    rebuild_from(self, 1);
}

double sumtree_total(struct sumtree *self)
{
    if (self->stale)
        rebuild_from(self, self->kept);
    return self->nonzero ? self->level[self->levels - 1][0] : 0.0;
}

/* Returns which of four neighbours holds `point`, given the sums up to and including the first three. The look-up in `below`
 * keeps compilers from making branches, which would mispredict every other time. */
static inline uint32_t choose_of_4(double point, double sum1, double sum2, double sum3, double *rest)
{
    double below[4] = {0.0, sum1, sum2, sum3};
    uint32_t child = (uint32_t)(sum1 <= point) + (uint32_t)(sum2 <= point) + (uint32_t)(sum3 <= point);
    *rest = point - below[child];
    return child;
}

static inline uint32_t choose_node(const double *g, double *point)
{
    double quad1 = (g[0] + g[1]) + (g[2] + g[3]);
    double quad2 = (g[4] + g[5]) + (g[6] + g[7]);
    double quad3 = (g[8] + g[9]) + (g[10] + g[11]);
    double rest;
    uint32_t quad = choose_of_4(*point, quad1, quad1 + quad2, quad1 + quad2 + quad3, &rest);
    const double *h = g + 4 * (size_t)quad;
    return 4 * quad + choose_of_4(rest, h[0], h[0] + h[1], h[0] + h[1] + h[2], point);
}

static inline uint32_t choose_leaf(const float *g, double point)
{
    double quad1 = ((double)g[0] + (double)g[1]) + ((double)g[2] + (double)g[3]);
    double quad2 = ((double)g[4] + (double)g[5]) + ((double)g[6] + (double)g[7]);
    double quad3 = ((double)g[8] + (double)g[9]) + ((double)g[10] + (double)g[11]);
    double rest;
    uint32_t quad = choose_of_4(point, quad1, quad1 + quad2, quad1 + quad2 + quad3, &rest);
    const float *h = g + 4 * (size_t)quad;
    double sum1 = (double)h[0];
    double sum2 = sum1 + (double)h[1];
    double sum3 = sum2 + (double)h[2];
    return 4 * quad + (uint32_t)(sum1 <= rest) + (uint32_t)(sum2 <= rest) + (uint32_t)(sum3 <= rest);
}

/* Prefetches the children of a node. Inlined always: gcc drops calls of functions that only prefetch. */
static inline __attribute__((always_inline)) void prefetch_children(const struct sumtree *self, uint32_t level,
                                                                    uint32_t node)
{
    size_t first = SUMTREE_FANOUT * (size_t)node;
    if (level == 0) {
        __builtin_prefetch(self->leaves + first);
        return;
    }
    __builtin_prefetch(self->level[level - 1] + first);
    __builtin_prefetch(self->level[level - 1] + first + SUMTREE_FANOUT / 2);
}

/* The running sums of a level with few nodes: a search in them replaces the descent through the levels above it. */
struct top {
    double below[TOP_NODES]; /* of each node: the sum of those before it; INFINITY behind the last node */
    double total;
    uint32_t level;
    uint32_t half; /* of the nodes, rounded up to a power of two */
};

/* Takes the lowest level with at most this many nodes. */
static void top_init(struct top *self, struct sumtree *tree, uint32_t most)
{
    uint32_t level = 0, nodes, half = 1;
    while ((nodes = (uint32_t)((uint64_t)(tree->capacity - 1) >> (4 * level + 4)) + 1) > most) /* may shift by 32 */
        level++;
    if (level >= tree->kept && tree->stale)
        rebuild_from(tree, tree->kept);
    while (2 * half < nodes)
        half *= 2;
    double sum = 0.0;
    for (uint32_t i = 0; i < nodes; i++) {
        self->below[i] = sum;
        sum += tree->level[level][i];
    }
    for (uint32_t i = nodes; i < 2 * half; i++)
        self->below[i] = (double)INFINITY;
    self->total = sum;
    self->level = level;
    self->half = half;
}

static inline uint32_t choose_top(const struct top *self, double *point)
{
    uint32_t node = 0;
    for (uint32_t half = self->half; half > 0; half /= 2)
        node += half & -(uint32_t)(self->below[node + half] <= *point); /* a branch would mispredict every other time */
    *point -= self->below[node];
    return node;
}

/* Picks for n <= PICK_BLOCK points together, level by level, so that the cache misses of one level overlap. A point that
 * rounding put past the last sum goes to the last node that exists; pick_again draws again if that node is empty. */
static void descend(struct sumtree *self, struct rng *rng, uint32_t n, uint32_t *slots)
{
    struct top top;
    double point[PICK_BLOCK];
    top_init(&top, self, TOP_NODES / PICK_BLOCK * n); /* sums for a few picks cost more than the levels above */
    for (uint32_t j = 0; j < n; j++) {
        point[j] = rng_unit(rng) * top.total;
        slots[j] = choose_top(&top, &point[j]);
        prefetch_children(self, top.level, slots[j]);
    }
    for (uint32_t l = top.level; l-- > 0;) {
        uint32_t last = (self->capacity - 1) >> (4 * l + 4);
        for (uint32_t j = 0; j < n; j++) {
            size_t first = SUMTREE_FANOUT * (size_t)slots[j];
            uint32_t i = (uint32_t)first + choose_node(self->level[l] + first, &point[j]);
            slots[j] = i < last ? i : last;
            prefetch_children(self, l, slots[j]);
        }
    }
    for (uint32_t j = 0; j < n; j++)
        slots[j] = SUMTREE_FANOUT * slots[j] + choose_leaf(self->leaves + SUMTREE_FANOUT * (size_t)slots[j], point[j]);
}

/* Returns a leaf that is not zero. All sums are exact. */
static uint32_t first_nonzero(const struct sumtree *self)
{
    size_t i = 0;
    for (uint32_t l = self->levels - 1; l-- > 0;) {
        i *= SUMTREE_FANOUT;
        while (!(self->level[l][i] > 0.0))
            i++;
    }
    i *= SUMTREE_FANOUT;
    while (!(self->leaves[i] > 0.0f))
        i++;
    return (uint32_t)i;
}

/* Draws again after a descent that ended at an empty leaf because of rounding. */
static uint32_t pick_again(struct sumtree *self, struct rng *rng, uint32_t slot)
{
    for (uint32_t tries = 0; tries < 64; tries++) {
        repair(self, slot, (double)INFINITY);
        descend(self, rng, 1, &slot);
        if (self->leaves[slot] > 0.0f)
            return slot;
    }
    sumtree_rebuild(self);
    descend(self, rng, 1, &slot);
    return self->leaves[slot] > 0.0f ? slot : first_nonzero(self);
}

void sumtree_pick(struct sumtree *self, struct rng *rng, uint32_t n, uint32_t *slots)
{
    assert(self->nonzero > 0);
    while (n > 0) {
        uint32_t block = n < PICK_BLOCK ? n : PICK_BLOCK;
        descend(self, rng, block, slots);
        for (uint32_t j = 0; j < block; j++) {
            if (__builtin_expect(!(self->leaves[slots[j]] > 0.0f), 0))
                slots[j] = pick_again(self, rng, slots[j]);
        }
        slots += block;
        n -= block;
    }
}
