/* The built-in selectors: lists, uniform, heaps, prioritized; then their registry. */
#include "broker/select/selector.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "broker/select/slotset.h"
#include "broker/select/sumtree.h"
#include "broker/store/reserve.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"

/* Checks the capacity, and that there are no options. */
static rp_status selector_check_plain(const char *name, const rp_option *options, uint32_t n_options, uint32_t capacity,
                                      rp_error *err)
{
    if (n_options > 0)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "selector %s has no option '%s': it takes none; only kind: prioritized has one, exponent. Without a "
            "kind, a sampler is uniform and a remover fifo",
            name, options[0].name);
    if (capacity == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "selector %s: a capacity of 0 can hold no item", name);
    return RP_OK;
}

/* Slots that pick_distinct has taken out, and puts back at its end. Kept for the next call. */
struct taken {
    struct taken_slot {
        uint32_t slot;
        float weight;
    } * list;
    uint32_t n, capacity;
};

static void taken_add(struct taken *self, uint32_t slot, float weight)
{
    self->list = need_room(self->list, self->n, &self->capacity, sizeof *self->list);
    self->list[self->n++] = (struct taken_slot){slot, weight};
}

/* The create of a selector without options, whose state make(which, capacity) returns. */
#define PLAIN_CREATE(name, make, which)                                                                                \
    static void *name##_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,         \
                               rp_error *err)                                                                          \
    {                                                                                                                  \
        (void)seed;                                                                                                    \
        return selector_check_plain(#name, options, n_options, capacity, err) == RP_OK ? make(which, capacity) : NULL; \
    }

/* What a selector that draws saves: its generator, which is the first in its state, and a number. */
struct saved {
    uint64_t rng[4];
    uint32_t number, zero;
};

static uint32_t saved_write(const struct rng *rng, uint32_t number, void *out, uint32_t size)
{
    struct saved saved = {.number = number};
    if (size < sizeof saved)
        return 0;
    memcpy(saved.rng, rng->s, sizeof saved.rng);
    memcpy(out, &saved, sizeof saved);
    return sizeof saved;
}

static bool saved_read(struct saved *self, const void *data, uint32_t size)
{
    if (size == sizeof *self)
        memcpy(self, data, size);
    return size == sizeof *self;
}

static void drawing_seed(void *state, uint64_t seed)
{
    rng_seed(state, seed);
}

/* ---- fifo and lifo: one list in the order of insertion, picked from its oldest or its newest end. An update of the priority keeps
 * the order. */

/* Neighbours as slot + 1; 0 means none, so that zeroed memory needs no initialization. */
struct link {
    uint32_t older;
    uint32_t newer;
};

struct list {
    struct link *links;
    uint32_t oldest; /* slot + 1, or 0 */
    uint32_t newest;
    uint32_t returned; /* fifo: the last one put back; those older than it were put back, too */
    uint32_t capacity;
    bool newest_first; /* lifo */
    /* lifo: number of the last insert. fifo: of the last time that one was put back. */
    uint64_t sequence;
    uint64_t *numbers; /* those of the slots; 0: inserted, and not put back. NULL: of all */
};

static void list_destroy(void *state)
{
    struct list *self = state;
    reserve_unmap(self->links, self->capacity * sizeof *self->links);
    reserve_unmap(self->numbers, self->capacity * sizeof *self->numbers);
    free(self);
}

static struct list *list_new(bool newest_first, uint32_t capacity)
{
    struct list *self = need_alloc(sizeof *self);
    *self = (struct list){
        .links = reserve_map(capacity * sizeof *self->links), .capacity = capacity, .newest_first = newest_first};
    if (newest_first)
        self->numbers = reserve_map(capacity * sizeof *self->numbers);
    return self;
}

PLAIN_CREATE(fifo, list_new, false)
PLAIN_CREATE(lifo, list_new, true)

static void list_insert(void *state, uint32_t slot, double priority)
{
    struct list *self = state;
    (void)priority;
    assert(slot < self->capacity);
    self->links[slot] = (struct link){.older = self->newest};
    if (self->newest)
        self->links[self->newest - 1].newer = slot + 1;
    else
        self->oldest = slot + 1;
    self->newest = slot + 1;
    if (self->numbers)
        self->numbers[slot] = self->newest_first ? ++self->sequence : 0;
}

/* Behind those put back before it. */
static void fifo_put_back(void *state, uint32_t slot, double priority)
{
    struct list *self = state;
    if (!self->numbers) /* most lists never need them */
        self->numbers = reserve_map(self->capacity * sizeof *self->numbers);
    if (self->returned == self->newest) {
        list_insert(state, slot, priority);
    } else {
        uint32_t older = self->returned, newer = older ? self->links[older - 1].newer : self->oldest;
        self->links[slot] = (struct link){.older = older, .newer = newer};
        self->links[newer - 1].older = slot + 1;
        *(older ? &self->links[older - 1].newer : &self->oldest) = slot + 1;
    }
    self->returned = slot + 1;
    self->numbers[slot] = ++self->sequence;
}

static uint64_t list_order(void *state, uint32_t slot)
{
    const struct list *self = state;
    uint64_t number = self->numbers ? self->numbers[slot] : 0;
    return self->newest_first ? number | UINT64_C(1) << 63 : number;
}

static void list_remove(void *state, uint32_t slot)
{
    struct list *self = state;
    assert(slot < self->capacity);
    struct link at = self->links[slot];
    if (self->returned == slot + 1)
        self->returned = at.older;
    if (at.older)
        self->links[at.older - 1].newer = at.newer;
    else
        self->oldest = at.newer;
    if (at.newer)
        self->links[at.newer - 1].older = at.older;
    else
        self->newest = at.older;
}

static uint32_t list_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    const struct list *self = state;
    uint32_t end = self->newest_first ? self->newest : self->oldest;
    if (!end)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = end - 1;
        probabilities[i] = 1.0;
    }
    return n;
}

static uint32_t list_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                   uint32_t *slots, double *probabilities)
{
    const struct list *self = state;
    uint32_t got = 0;
    uint32_t at = self->newest_first ? self->newest : self->oldest;
    while (at && got < n) {
        uint32_t slot = at - 1;
        if (!skip || !skip(ctx, slot)) {
            slots[got] = slot;
            probabilities[got++] = 1.0;
        }
        at = self->newest_first ? self->links[slot].older : self->links[slot].newer;
    }
    return got;
}

#define LIST_OPS(name_, create_, put_back_)                                                                            \
    {                                                                                                                  \
        .name = (name_), .create = (create_), .destroy = list_destroy, .insert = list_insert, .remove = list_remove,   \
        .pick = list_pick, .pick_distinct = list_pick_distinct, .order = list_order, .put_back = (put_back_)           \
    }
const rp_selector_ops selector_fifo = LIST_OPS("fifo", fifo_create, fifo_put_back);
const rp_selector_ops selector_lifo = LIST_OPS("lifo", lifo_create, NULL);

/* ---- uniform: every item with the same probability. A bit for each slot says whether the slot is in use. A pick draws slots below
 * the highest used one until it meets a slot in use; if few slots are in use, it counts to a random one of them. So a pick
 * depends on the generator and on which slots are in use, and not on the history: a restored table continues exactly as the
 * saved table would have. */

/* If at least one of this many slots is in use, drawing again is cheaper than counting. */
#define SPARSE 8u

struct uniform {
    struct rng rng; /* first */
    struct slotset present;
    uint32_t capacity;
    uint32_t high; /* no slot from this one on is in use */
    struct taken taken;
};

static void uniform_destroy(void *state)
{
    struct uniform *self = state;
    slotset_fini(&self->present);
    free(self->taken.list);
    free(self);
}

static void *uniform_create(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed,
                            rp_error *err)
{
    if (selector_check_plain("uniform", options, n_options, capacity, err) != RP_OK)
        return NULL;
    struct uniform *self = need_alloc(sizeof *self);
    slotset_init(&self->present, capacity);
    self->capacity = capacity;
    rng_seed(&self->rng, seed);
    return self;
}

static void uniform_insert(void *state, uint32_t slot, double priority)
{
    struct uniform *self = state;
    (void)priority;
    assert(slot < self->capacity);
    slotset_add(&self->present, slot);
    if (slot >= self->high)
        self->high = slot + 1;
}

static void uniform_remove(void *state, uint32_t slot)
{
    struct uniform *self = state;
    assert(slot < self->capacity);
    slotset_remove(&self->present, slot);
    if (self->present.count == 0)
        self->high = 0;
}

static bool uniform_is_sparse(const struct uniform *self)
{
    return self->present.count < self->high / SPARSE;
}

static uint32_t uniform_draw(struct uniform *self)
{
    if (uniform_is_sparse(self))
        return slotset_nth(&self->present, (uint32_t)rng_below(&self->rng, self->present.count));
    uint32_t slot;
    do
        slot = (uint32_t)rng_below(&self->rng, self->high);
    while (!slotset_has(&self->present, slot));
    return slot;
}

static uint32_t uniform_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct uniform *self = state;
    if (self->present.count == 0)
        return 0;
    double probability = 1.0 / self->present.count;
    bool sparse = uniform_is_sparse(self);
    for (uint32_t i = 0; i < n && !sparse; i++) {
        slots[i] = (uint32_t)rng_below(&self->rng, self->high);
        __builtin_prefetch(&self->present.bits[slots[i] / 64]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (sparse || !slotset_has(&self->present, slots[i]))
            slots[i] = uniform_draw(self);
        probabilities[i] = probability;
    }
    return n;
}

/* Takes each pick out of the set, and puts all picks back at the end. */
static uint32_t uniform_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                      uint32_t *slots, double *probabilities)
{
    struct uniform *self = state;
    uint32_t got = 0;
    while (got < n && self->present.count > 0) {
        double probability = 1.0 / self->present.count;
        uint32_t slot = uniform_draw(self);
        taken_add(&self->taken, slot, 0.0f);
        slotset_remove(&self->present, slot);
        if (skip && skip(ctx, slot))
            continue;
        slots[got] = slot;
        probabilities[got++] = probability;
    }
    while (self->taken.n > 0)
        slotset_add(&self->present, self->taken.list[--self->taken.n].slot);
    return got;
}

static uint32_t uniform_save(void *state, void *out, uint32_t size)
{
    const struct uniform *self = state;
    return saved_write(&self->rng, self->high, out, size);
}

static bool uniform_load(void *state, const void *data, uint32_t size)
{
    struct uniform *self = state;
    struct saved saved;
    if (!saved_read(&saved, data, size) || saved.number < self->high || saved.number > self->capacity ||
        !rng_load(&self->rng, saved.rng))
        return false;
    self->high = self->present.count ? saved.number : 0;
    return true;
}

static double uniform_mass(void *state, uint32_t n)
{
    (void)state;
    return n;
}

const rp_selector_ops selector_uniform = {
    .name = "uniform",
    .create = uniform_create,
    .destroy = uniform_destroy,
    .insert = uniform_insert,
    .remove = uniform_remove,
    .pick = uniform_pick,
    .pick_distinct = uniform_pick_distinct,
    .save = uniform_save,
    .load = uniform_load,
    .mass = uniform_mass,
    .seed = drawing_seed,
};

/* ---- min_heap and max_heap: pick the item of lowest or highest priority; among equals the item that was inserted or updated least
 * recently. A 4-ary heap of entries, and for each slot its place in the heap. */

#define FANOUT 4u

struct selector_entry {
    double rank;      /* the priority, or its negative in a max_heap: the smallest rank is on top */
    int64_t sequence; /* of the last insert or update: breaks ties. Negative: it was put back */
    uint32_t slot;
};

struct heap {
    struct selector_entry *entries;
    uint32_t *place; /* of a slot in entries */
    uint32_t count;
    uint32_t capacity;
    uint64_t sequence;
    int64_t returned; /* sequence of the next one that is put back */
    double sign;
};

static void heap_destroy(void *state)
{
    struct heap *self = state;
    reserve_unmap(self->entries, self->capacity * sizeof *self->entries);
    reserve_unmap(self->place, self->capacity * sizeof *self->place);
    free(self);
}

static struct heap *heap_new(double sign, uint32_t capacity)
{
    struct heap *self = need_alloc(sizeof *self);
    *self = (struct heap){.capacity = capacity,
                          .returned = INT64_MIN + 1, /* its order is above 0 */
                          .sign = sign,
                          .entries = reserve_map(capacity * sizeof *self->entries),
                          .place = reserve_map(capacity * sizeof *self->place)};
    return self;
}

PLAIN_CREATE(min_heap, heap_new, 1.0)
PLAIN_CREATE(max_heap, heap_new, -1.0)

static bool heap_before(const struct selector_entry *a, const struct selector_entry *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->sequence < b->sequence);
}

static void put(struct heap *self, uint32_t at, struct selector_entry entry)
{
    self->entries[at] = entry;
    self->place[entry.slot] = at;
}

static void sift_up(struct heap *self, uint32_t at, struct selector_entry entry)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / FANOUT;
        if (!heap_before(&entry, &self->entries[parent]))
            break;
        put(self, at, self->entries[parent]);
        at = parent;
    }
    put(self, at, entry);
}

static void sift_down(struct heap *self, uint32_t at, struct selector_entry entry)
{
    for (;;) {
        uint64_t first = (uint64_t)at * FANOUT + 1;
        if (first >= self->count)
            break;
        uint32_t end = first + FANOUT < self->count ? (uint32_t)first + FANOUT : self->count;
        uint32_t best = (uint32_t)first;
        for (uint32_t child = best + 1; child < end; child++) {
            if (heap_before(&self->entries[child], &self->entries[best]))
                best = child;
        }
        if (!heap_before(&self->entries[best], &entry))
            break;
        put(self, at, self->entries[best]);
        at = best;
    }
    put(self, at, entry);
}

/* Puts an entry in the place of another that may rank above or below it. */
static void replace(struct heap *self, uint32_t at, struct selector_entry entry)
{
    if (at > 0 && heap_before(&entry, &self->entries[(at - 1) / FANOUT]))
        sift_up(self, at, entry);
    else
        sift_down(self, at, entry);
}

static struct selector_entry new_entry(struct heap *self, uint32_t slot, double priority)
{
    return (struct selector_entry){.rank = self->sign * priority, .sequence = (int64_t)self->sequence++, .slot = slot};
}

static void heap_insert(void *state, uint32_t slot, double priority)
{
    struct heap *self = state;
    assert(slot < self->capacity && self->count < self->capacity);
    self->count++;
    sift_up(self, self->count - 1, new_entry(self, slot, priority));
}

static void heap_put_back(void *state, uint32_t slot, double priority)
{
    struct heap *self = state;
    struct selector_entry entry = {self->sign * priority, self->returned++, slot};
    self->count++;
    sift_up(self, self->count - 1, entry);
}

static void heap_update(void *state, uint32_t n, const uint32_t *slots, const double *priorities)
{
    struct heap *self = state;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slots[i];
        assert(slot < self->capacity && self->entries[self->place[slot]].slot == slot);
        replace(self, self->place[slot], new_entry(self, slot, priorities[i]));
    }
}

static void heap_remove(void *state, uint32_t slot)
{
    struct heap *self = state;
    assert(slot < self->capacity && self->count > 0 && self->entries[self->place[slot]].slot == slot);
    uint32_t at = self->place[slot];
    self->count--;
    if (at < self->count)
        replace(self, at, self->entries[self->count]);
}

static uint32_t heap_pick(void *state, uint32_t n, uint32_t *slots, double *probabilities)
{
    struct heap *self = state;
    if (self->count == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = self->entries[0].slot;
        probabilities[i] = 1.0;
    }
    return n;
}

/* Takes entries off the top and keeps each in the place that becomes free at the end of the array, as heapsort does; then lets
 * the heap grow over these entries again. */
static uint32_t heap_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                   uint32_t *slots, double *probabilities)
{
    struct heap *self = state;
    uint32_t all = self->count;
    uint32_t got = 0;
    while (self->count > 0 && got < n) {
        struct selector_entry top = self->entries[0];
        struct selector_entry last = self->entries[--self->count];
        if (self->count > 0)
            sift_down(self, 0, last);
        put(self, self->count, top);
        if (skip && skip(ctx, top.slot))
            continue;
        slots[got] = top.slot;
        probabilities[got++] = 1.0;
    }
    while (self->count < all) {
        struct selector_entry entry = self->entries[self->count++];
        sift_up(self, self->count - 1, entry);
    }
    return got;
}

static uint64_t heap_order(void *state, uint32_t slot)
{
    const struct heap *self = state;
    return (uint64_t)self->entries[self->place[slot]].sequence ^ UINT64_C(1) << 63; /* in the same order, unsigned */
}

static uint32_t heap_save(void *state, void *out, uint32_t size)
{
    const struct heap *self = state;
    if (size < sizeof self->sequence)
        return 0;
    memcpy(out, &self->sequence, sizeof self->sequence);
    return sizeof self->sequence;
}

static bool heap_load(void *state, const void *data, uint32_t size)
{
    struct heap *self = state;
    uint64_t sequence;
    if (size != sizeof sequence)
        return false;
    memcpy(&sequence, data, sizeof sequence);
    if (sequence < self->sequence)
        return false;
    self->sequence = sequence;
    return true;
}

#define HEAP_OPS(name_, create_)                                                                                       \
    {                                                                                                                  \
        .name = (name_), .create = (create_), .destroy = heap_destroy, .insert = heap_insert, .update = heap_update,   \
        .remove = heap_remove, .pick = heap_pick, .pick_distinct = heap_pick_distinct, .order = heap_order,            \
        .save = heap_save, .load = heap_load, .put_back = heap_put_back                                                \
    }
const rp_selector_ops selector_min_heap = HEAP_OPS("min_heap", min_heap_create);
const rp_selector_ops selector_max_heap = HEAP_OPS("max_heap", max_heap_create);

/* ---- prioritized: an item with priority p is picked in proportion to p ^ exponent.
 *
 * - p = 0 has weight 0 and is never picked while another item has a weight. If all weights are 0, all items are equally likely.
 * - With a negative exponent (a remover that prefers small priorities) a priority below 1e-9 counts as 1e-9, so that
 *   p = 0 means "the first to go".
 * - Weights are float32. A weight too small for a float32 becomes the smallest float32, so that an item with p > 0 can always be
 *   picked; this is logged once. With a positive exponent `check` refuses a priority whose weight is too large. */

#define LEAST_PRIORITY 1e-9
#define DISTINCT_BLOCK 64u
#define UPDATE_BLOCK 64u

struct prioritized {
    struct rng rng; /* first */
    struct sumtree tree;
    struct slotset present; /* used when all weights are 0, and to mark the slots that pick_distinct took */
    double exponent;
    double max_priority;  /* largest priority whose weight is still a float32 */
    double low, high;     /* priorities in between have weights of their own; others count as the nearer bound */
    bool logged;          /* a priority outside of the bounds was logged */
    double last_priority; /* cached with its weight: writers often give all items the same priority */
    float last_weight;
    struct taken taken;
};

static void prioritized_destroy(void *state)
{
    struct prioritized *self = state;
    sumtree_fini(&self->tree);
    slotset_fini(&self->present);
    free(self->taken.list);
    free(self);
}

#define LANES 4u

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t uints __attribute__((vector_size(LANES * sizeof(float))));
typedef int64_t longs __attribute__((vector_size(LANES * sizeof(float))));

/* base^exponent = 2^(exponent * log2 base), for bases from 1e-30 to 1e30 and exponents from -1 to 1, within 3e-7 of the true power:
 * weights are float32. The polynomials interpolate log2(1 + t) / t and 2^part at Chebyshev nodes. */
static inline floats powers(floats base, float exponent)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: added and taken away, it rounds to whole numbers */
    ints bits = (ints)base, scale = (bits - 0x3f3504f3) >> 23; /* of a fraction from sqrt(1/2) to sqrt(2) */
    floats t = (floats)(bits - (ints)((uints)scale << 23)) - 1.0f, e = __builtin_convertvector(scale, floats);
    floats low = 0.2879183292f + t * (-0.2389203459f + t * (0.2156698555f + t * (-0.2074210346f + t * 0.1261484623f)));
    floats log = t * (1.4426950216f + t * (-0.7213473320f + t * (0.4809105992f + t * (-0.3607048392f + t * low))));
    float high = ((floats)((ints)(floats){exponent} & ~0xfff))[0]; /* 12 bits: e * high is exact */
    floats exact = e * high, rest = e * (exponent - high) + log * exponent;
    floats whole = (exact + rest + magic) - magic, part = (exact - whole) + rest;
    floats tail = 0.0555032715f + part * (0.0096760374f + part * 0.0013400433f);
    floats power = 1.0000001192f + part * (0.6931471825f + part * (0.2402210683f + part * tail));
    return (floats)((ints)power + (ints)((uints) __builtin_convertvector(whole, ints) << 23));
}

static double power(double base, double exponent)
{
    if (base > 1e-30 && base < 1e30 && fabs(exponent) <= 1.0)
        return (double)powers((floats){(float)base}, (float)exponent)[0];
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
        if (strcmp(options[i].name, "exponent") != 0)
            return err_null(err, RP_INVALID_ARGUMENT,
                            "selector prioritized has no option '%s'; its only one is exponent", options[i].name);
        char *end;
        exponent = strtod(options[i].value, &end);
        if (end == options[i].value || *end != '\0' || !isfinite(exponent))
            return err_null(err, RP_INVALID_ARGUMENT,
                            "selector prioritized: exponent is '%s'; write a number such as 0.6", options[i].value);
    }
    if (selector_check_plain("prioritized", NULL, 0, capacity, err) != RP_OK)
        return NULL;
    struct prioritized *self = need_alloc(sizeof *self);
    sumtree_init(&self->tree, capacity);
    slotset_init(&self->present, capacity);
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

static void prioritized_bounds(void *state, double *low, double *high)
{
    const struct prioritized *self = state;
    *low = self->low;
    *high = self->high;
}

/* The same as weight_of for n priorities, at most LANES. */
static void weights_of(const struct prioritized *self, uint32_t n, const double *priorities, float *weights)
{
    if (n == LANES && self->exponent > 0.0 && self->exponent < 1.0 && self->exponent != 0.5) {
        floats base = {(float)priorities[0], (float)priorities[1], (float)priorities[2], (float)priorities[3]};
        longs inside = (longs)((base > 1e-30f) & (base < 1e30f));
        floats power = powers(base, (float)self->exponent);
        memcpy(weights, &power, sizeof power);
        if ((inside[0] & inside[1]) == -1)
            return;
    }
    for (uint32_t i = 0; i < n; i++)
        weights[i] = weight_of(self, priorities[i]);
}

static void prioritized_update(void *state, uint32_t n, const uint32_t *slots, const double *priorities)
{
    struct prioritized *self = state;
    float weights[UPDATE_BLOCK];
    for (uint32_t first = 0, some; first < n; first += some) {
        some = n - first < UPDATE_BLOCK ? n - first : UPDATE_BLOCK;
        for (uint32_t i = 0, part; i < some; i += part) {
            part = some - i < LANES ? some - i : LANES;
            for (uint32_t k = 0; k < part; k++) /* the lines come while the powers are computed */
                sumtree_prefetch(&self->tree, slots[first + i + k]);
            weights_of(self, part, priorities + first + i, weights + i);
        }
        sumtree_set_many(&self->tree, some, slots + first, weights);
    }
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

/* Takes one slot out, and picks it unless it is skipped. */
static void accept(struct prioritized *self, struct distinct *d, uint32_t slot)
{
    double weight = (double)sumtree_get(&self->tree, slot);
    double probability = 1.0 / self->present.count;
    if (self->tree.nonzero > 0)
        probability = fmin(1.0, weight / (sumtree_total(&self->tree) - d->left_behind));
    taken_add(&self->taken, slot, (float)weight);
    slotset_remove(&self->present, slot);
    if (d->emptied)
        sumtree_set(&self->tree, slot, 0.0f);
    else
        d->left_behind += weight;
    if (!d->skip || !d->skip(d->ctx, slot)) {
        d->slots[d->got] = slot;
        d->probabilities[d->got++] = probability;
    }
}

/* Drawing with replacement and ignoring slots that were drawn before is the same as taking each pick out, and does not change
 * the tree. Once more than half of a block is ignored, the picks are really taken out. */
static uint32_t prioritized_pick_distinct(void *state, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                                          uint32_t *slots, double *probabilities)
{
    struct prioritized *self = state;
    struct distinct d = {.skip = skip, .ctx = ctx, .slots = slots, .probabilities = probabilities};
    while (d.got < n && self->present.count > 0) {
        uint32_t block[DISTINCT_BLOCK];
        uint32_t draws = d.emptied ? 1 : n - d.got < DISTINCT_BLOCK ? n - d.got : DISTINCT_BLOCK;
        uint32_t fresh = 0;
        if (self->tree.nonzero == 0) {
            accept(self, &d, pick_any(self));
            continue;
        }
        sumtree_pick(&self->tree, &self->rng, draws, block);
        for (uint32_t i = 0; i < draws; i++) {
            if (!slotset_has(&self->present, block[i]))
                continue;
            fresh++;
            accept(self, &d, block[i]);
        }
        if (d.emptied || 2 * fresh >= draws)
            continue;
        for (uint32_t i = 0; i < self->taken.n; i++)
            sumtree_set(&self->tree, self->taken.list[i].slot, 0.0f);
        d.emptied = true;
        d.left_behind = 0.0;
    }
    while (self->taken.n > 0) {
        const struct taken_slot *last = &self->taken.list[--self->taken.n];
        slotset_add(&self->present, last->slot);
        sumtree_set(&self->tree, last->slot, last->weight);
    }
    return d.got;
}

static double prioritized_total(void *state)
{
    return sumtree_total(&((struct prioritized *)state)->tree);
}

static void prioritized_prefetch(void *state, uint32_t slot)
{
    sumtree_prefetch(&((struct prioritized *)state)->tree, slot);
}

static uint32_t prioritized_save(void *state, void *out, uint32_t size)
{
    const struct prioritized *self = state;
    return saved_write(&self->rng, self->tree.until_exact, out, size);
}

/* Weights are stored by slot, so the order of inserts does not matter; sums are recomputed, as exact as they can be. */
static bool prioritized_load(void *state, const void *data, uint32_t size)
{
    struct prioritized *self = state;
    struct saved saved;
    if (!saved_read(&saved, data, size) || !rng_load(&self->rng, saved.rng) ||
        !sumtree_set_until_exact(&self->tree, saved.number))
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
    .seed = drawing_seed,
    .bounds = prioritized_bounds,
};

/* ---- by name */

static const rp_selector_ops *const builtin_selectors[] = {
    &selector_fifo, &selector_lifo, &selector_uniform, &selector_min_heap, &selector_max_heap, &selector_prioritized,
};

#define SELECTOR_N_BUILTIN ((uint32_t)(sizeof builtin_selectors / sizeof builtin_selectors[0]))

const rp_selector_ops *selector_builtin(const char *name)
{
    for (uint32_t i = 0; i < SELECTOR_N_BUILTIN; i++) {
        if (strcmp(builtin_selectors[i]->name, name) == 0)
            return builtin_selectors[i];
    }
    return NULL;
}

const char *selector_builtin_name(uint32_t i)
{
    return i < SELECTOR_N_BUILTIN ? builtin_selectors[i]->name : NULL;
}

uint32_t selector_slot_bytes(const char *name)
{
    enum { SLOTS = 4096 };
    const rp_selector_ops *ops = selector_builtin(name);
    struct reserve_group group = {0};
    reserve_group_begin(&group);
    void *state = ops ? ops->create(NULL, 0, SLOTS, 0, NULL) : NULL;
    reserve_group_end(SLOTS);
    if (state)
        ops->destroy(state);
    return group.slot_bytes;
}
