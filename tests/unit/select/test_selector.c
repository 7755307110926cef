
#include <float.h>

#include "broker/select/selector.h"
#include "proto/base/log.h"
#include "proto/base/rng.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

static const rp_selector_ops *const all[] = {&selector_fifo,     &selector_lifo,     &selector_uniform,
                                             &selector_min_heap, &selector_max_heap, &selector_prioritized};
#define N_ALL (sizeof all / sizeof all[0])

static void *make(const rp_selector_ops *ops, uint32_t capacity, uint64_t seed)
{
    void *self = ops->create(NULL, 0, capacity, seed, &err);
    if (!self)
        fail_msg("%s: %s", ops->name, err.text);
    return self;
}

static void *make_exponent(const char *exponent, uint32_t capacity, uint64_t seed)
{
    rp_option option = {.name = "exponent", .value = exponent};
    return must(selector_prioritized.create(&option, 1, capacity, seed, &err));
}

static uint32_t pick_one(const rp_selector_ops *ops, void *self)
{
    uint32_t slot;
    double probability;
    assert_int_equal(ops->pick(self, 1, &slot, &probability), 1);
    return slot;
}

TEST(registry_knows_the_built_in_ones)
{
    for (uint32_t i = 0; i < N_ALL; i++) {
        assert_string_equal(selector_builtin_name(i), all[i]->name);
        assert_ptr_equal(selector_builtin(all[i]->name), all[i]);
        assert_non_null(all[i]->pick_distinct);
    }
    assert_null(selector_builtin_name(N_ALL));
    assert_null(selector_builtin("softmax"));
}

static void assert_refused(const rp_selector_ops *ops, const char *name, const char *value, const char *part)
{
    err = (rp_error){0};
    rp_option option = {.name = name, .value = value};
    assert_null(ops->create(&option, 1, 10, 1, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    facts_said(err.text, part);
}

TEST(bad_options_are_refused)
{
    for (uint32_t i = 0; i < N_ALL; i++) {
        assert_refused(all[i], "size", "3", "no option 'size'");
        assert_null(all[i]->create(NULL, 0, 0, 1, &err));
        assert_int_equal(err.status, RP_INVALID_ARGUMENT);
        assert_null(all[i]->create(NULL, 0, 0, 1, NULL));
    }
    assert_refused(&selector_prioritized, "exponent", "", "write a number");
    assert_refused(&selector_prioritized, "exponent", "0.6x", "exponent is '0.6x'");
    assert_refused(&selector_prioritized, "exponent", "nan", "write a number");
    assert_refused(&selector_prioritized, "exponent", "inf", "write a number");
}

/* ---- random operations against the model */

struct subject {
    const rp_selector_ops *ops;
    enum naive_order order;
    const char *exponent;
};

static const struct subject subjects[] = {
    {&selector_fifo, NAIVE_FIFO, NULL},
    {&selector_lifo, NAIVE_LIFO, NULL},
    {&selector_min_heap, NAIVE_MIN, NULL},
    {&selector_max_heap, NAIVE_MAX, NULL},
    {&selector_uniform, NAIVE_WEIGHTED, NULL},
    {&selector_prioritized, NAIVE_WEIGHTED, "1"},
    {&selector_prioritized, NAIVE_WEIGHTED, "0.6"},
    {&selector_prioritized, NAIVE_WEIGHTED, "0.5"},
    {&selector_prioritized, NAIVE_WEIGHTED, "0"},
    {&selector_prioritized, NAIVE_WEIGHTED, "-0.4"},
};
#define N_SUBJECTS (sizeof subjects / sizeof subjects[0])

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fmax(a, b);
}

static void check_picks(const struct subject *subject, void *self, const struct naive_selector *naive, struct rng *rng)
{
    uint32_t slots[40];
    double probabilities[40];
    uint32_t n = (uint32_t)rng_below(rng, 41);
    uint32_t got = subject->ops->pick(self, n, slots, probabilities);
    assert_int_equal(got, naive_count(naive) ? n : 0);
    for (uint32_t i = 0; i < got; i++) {
        assert_true(slots[i] < NAIVE_SLOTS && naive->present[slots[i]]);
        if (subject->order == NAIVE_WEIGHTED) {
            assert_true(probabilities[i] > 0.0);
            assert_true(close_to(probabilities[i], naive_probability(naive, slots[i])));
        } else {
            assert_int_equal(slots[i], naive_first(naive, subject->order));
            assert_true(probabilities[i] == 1.0);
        }
    }
}

static bool skip_some(void *ctx, uint32_t slot)
{
    return ((const bool *)ctx)[slot];
}

/* Takes the picks out of a copy of the model one by one; none of them may be missing or skipped. */
static void check_distinct(const struct subject *subject, void *self, const struct naive_selector *naive,
                           struct rng *rng)
{
    static bool skipped[NAIVE_SLOTS];
    uint32_t slots[NAIVE_SLOTS];
    double probabilities[NAIVE_SLOTS];
    bool skipping = rng_below(rng, 2);
    uint32_t n = 1 + (uint32_t)rng_below(rng, rng_below(rng, 4) ? 10 : NAIVE_SLOTS);
    struct naive_selector left = *naive;
    uint32_t allowed = 0;
    for (uint32_t slot = 0; slot < NAIVE_SLOTS; slot++) {
        skipped[slot] = skipping && rng_below(rng, 3) == 0;
        allowed += naive->present[slot] && !skipped[slot];
    }
    uint32_t got = subject->ops->pick_distinct(self, n, skipping ? skip_some : NULL, skipped, slots, probabilities);
    assert_int_equal(got, n < allowed ? n : allowed);
    for (uint32_t i = 0; i < got; i++) {
        assert_true(slots[i] < NAIVE_SLOTS && left.present[slots[i]] && !skipped[slots[i]]);
        if (subject->order != NAIVE_WEIGHTED) {
            while (skipped[naive_first(&left, subject->order)])
                naive_remove(&left, naive_first(&left, subject->order));
            assert_int_equal(slots[i], naive_first(&left, subject->order));
        } else if (!skipping) {
            assert_true(close_to(probabilities[i], naive_probability(&left, slots[i])));
        }
        assert_true(probabilities[i] > 0.0 && probabilities[i] <= 1.0);
        naive_remove(&left, slots[i]);
    }
}

static double random_priority(struct rng *rng, bool zeros)
{
    switch (rng_below(rng, 4)) {
    case 0:
        return zeros ? 0.0 : 1.0;
    case 1:
        return (double)rng_below(rng, 4);
    default:
        return zeros ? 0.0 : 10.0 * rng_unit(rng);
    }
}

static void random_step(const struct subject *subject, void *self, struct naive_selector *naive, struct rng *rng,
                        bool shrink, bool zeros)
{
    uint32_t slot = (uint32_t)rng_below(rng, NAIVE_SLOTS);
    double priority = random_priority(rng, zeros);
    if (!naive->present[slot]) {
        if (shrink && rng_below(rng, 4))
            return;
        subject->ops->insert(self, slot, priority);
        naive_insert(naive, slot, priority);
    } else if (rng_below(rng, 10) < (shrink ? 8u : 3u)) {
        subject->ops->remove(self, slot);
        naive_remove(naive, slot);
    } else {
        if (subject->ops->update)
            subject->ops->update(self, 1, &slot, &priority);
        naive_update(naive, slot, priority);
    }
}

TEST(random_operations_match_the_model)
{
    struct rng rng = naive_rng("selector");
    for (uint32_t i = 0; i < N_SUBJECTS; i++) {
        const struct subject *subject = &subjects[i];
        struct naive_selector naive = {.uniform = subject->ops == &selector_uniform};
        uint64_t seed = rng_next(&rng);
        void *self = subject->exponent ? make_exponent(subject->exponent, NAIVE_SLOTS, seed)
                                       : make(subject->ops, NAIVE_SLOTS, seed);
        naive.exponent = subject->exponent ? strtod(subject->exponent, NULL) : 0.0;
        for (uint32_t step = 0; step < 4000; step++) {
            if (step > 0) /* first there is nothing, then one item */
                random_step(subject, self, &naive, &rng, step / 500 % 2, step / 1000 % 2);
            if (step % 4 == 0 || step == 1)
                check_picks(subject, self, &naive, &rng);
            if (step % 8 <= 1)
                check_distinct(subject, self, &naive, &rng);
        }
        subject->ops->destroy(self);
    }
}

/* ---- distributions, with fixed seeds */

/* used: the k slots that have items, in ascending order; NULL: the first k. */
static void check_distribution(const rp_selector_ops *ops, void *self, const uint32_t *used, const double *probability,
                               uint32_t k)
{
    enum { BATCHES = 2000, BATCH = 100 };
    uint64_t observed[64] = {0};
    uint32_t slots[BATCH];
    double reported[BATCH];
    for (uint32_t b = 0; b < BATCHES; b++) {
        assert_int_equal(ops->pick(self, BATCH, slots, reported), BATCH);
        for (uint32_t i = 0; i < BATCH; i++) {
            uint32_t cell = used ? 0 : slots[i];
            while (used && cell < k && used[cell] != slots[i])
                cell++;
            assert_true(cell < k);
            observed[cell]++;
            assert_true(close_to(reported[i], probability[cell]));
        }
    }
    double deviation = naive_chi_square(observed, probability, k, BATCHES * BATCH);
    if (fabs(deviation) > 4.0)
        fail_msg("%s: chi-square is %.1f standard deviations off", ops->name, deviation);
}

TEST(picks_follow_the_probabilities)
{
    static const char *const exponents[] = {"0", "0.5", "0.6", "1", "2", "-0.4", "-1"};
    enum { K = 50 };
    double probability[K];
    for (uint32_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
        double exponent = strtod(exponents[e], NULL);
        double total = 0.0;
        void *self = make_exponent(exponents[e], 64, 11 + e);
        for (uint32_t slot = 0; slot < K; slot++) {
            selector_prioritized.insert(self, slot, 0.5 + slot % 7);
            probability[slot] = pow(0.5 + slot % 7, exponent);
            total += probability[slot];
        }
        for (uint32_t slot = 0; slot < K; slot++)
            probability[slot] /= total;
        assert_true(close_to(selector_prioritized.total(self), total));
        check_distribution(&selector_prioritized, self, NULL, probability, K);
        selector_prioritized.destroy(self);
    }
    void *self = make(&selector_uniform, 64, 5);
    for (uint32_t slot = 0; slot < K; slot++) {
        selector_uniform.insert(self, slot, slot);
        probability[slot] = 1.0 / K;
    }
    check_distribution(&selector_uniform, self, NULL, probability, K);
    selector_uniform.destroy(self);
}

TEST(all_zero_is_uniform)
{
    enum { CAPACITY = 100000 };
    static const uint32_t used[5] = {0, 5, 63, 4097, CAPACITY - 1};
    static const double probability[5] = {0.2, 0.2, 0.2, 0.2, 0.2};
    void *self = make(&selector_prioritized, CAPACITY, 6);
    for (uint32_t i = 0; i < 5; i++)
        selector_prioritized.insert(self, used[i], i == 3 ? 1.0 : 0.0);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(pick_one(&selector_prioritized, self), 4097);
    selector_prioritized.update(self, 1, &(uint32_t){4097}, &(double){0.0});
    check_distribution(&selector_prioritized, self, used, probability, 5);
    selector_prioritized.destroy(self);
}

/* Four items, three picks: each of the 24 orders has the probability of taking out one after the other. */
static void check_orders(const rp_selector_ops *ops, void *self, const double *weight)
{
    enum { RUNS = 100000 };
    uint64_t observed[64] = {0};
    double probability[64] = {0};
    double total = weight[0] + weight[1] + weight[2] + weight[3];
    for (uint32_t code = 0; code < 64; code++) {
        uint32_t a = code / 16;
        uint32_t b = code / 4 % 4;
        uint32_t c = code % 4;
        if (a != b && b != c && a != c)
            probability[code] =
                weight[a] / total * weight[b] / (total - weight[a]) * weight[c] / (total - weight[a] - weight[b]);
    }
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t slots[3];
        double reported[3];
        assert_int_equal(ops->pick_distinct(self, 3, NULL, NULL, slots, reported), 3);
        observed[16 * slots[0] + 4 * slots[1] + slots[2]]++;
        assert_true(close_to(reported[0], weight[slots[0]] / total));
        assert_true(close_to(reported[1], weight[slots[1]] / (total - weight[slots[0]])));
        assert_true(close_to(reported[2], weight[slots[2]] / (total - weight[slots[0]] - weight[slots[1]])));
    }
    double deviation = naive_chi_square(observed, probability, 64, RUNS);
    if (fabs(deviation) > 4.0)
        fail_msg("%s: chi-square is %.1f standard deviations off", ops->name, deviation);
}

TEST(distinct_picks_are_taken_out_in_turn)
{
    static const double skewed[4] = {1.0, 2.0, 4.0, 50.0};
    static const double even[4] = {1.0, 1.0, 1.0, 1.0};
    void *prioritized = make(&selector_prioritized, 10, 7);
    void *uniform = make(&selector_uniform, 10, 8);
    for (uint32_t slot = 0; slot < 4; slot++) {
        selector_prioritized.insert(prioritized, slot, skewed[slot]);
        selector_uniform.insert(uniform, slot, 1.0);
    }
    check_orders(&selector_prioritized, prioritized, skewed);
    check_orders(&selector_uniform, uniform, even);
    selector_prioritized.destroy(prioritized);
    selector_uniform.destroy(uniform);
}

/* ---- edge cases of the prioritized selector */

/* Weights below float32's range count as its least one: such items are picked, alike, and the log says so once. */
TEST(priorities_too_small_for_a_weight_are_told_of)
{
    char path[] = "/tmp/replay-selector-XXXXXX", text[4096] = "";
    int file = mkstemp(path);
    assert_true(file >= 0);
    log_set_level(LEVEL_INFO);
    assert_int_equal(log_open(path, NULL), RP_OK);
    void *self = make_exponent("1", 100, 3);
    static const double priorities[] = {1e-300, 1e-60, 1e-39, 0.0};
    uint32_t picked[4] = {0};
    for (uint32_t slot = 0; slot < 4; slot++) {
        assert_int_equal(selector_prioritized.check(self, priorities[slot], &err), RP_OK);
        selector_prioritized.insert(self, slot, priorities[slot]);
    }
    for (uint32_t i = 0; i < 3000; i++)
        picked[pick_one(&selector_prioritized, self)]++;
    for (uint32_t slot = 0; slot < 3; slot++)
        assert_true(picked[slot] > 800 && picked[slot] < 1200);
    assert_int_equal(picked[3], 0);
    selector_prioritized.destroy(self);
    self = make_exponent("0.5", 100, 3); /* 1e-60 has a weight of its own there */
    assert_int_equal(selector_prioritized.check(self, 1e-60, &err), RP_OK);
    selector_prioritized.destroy(self);
    log_open("-", NULL);
    assert_true(read(file, text, sizeof text - 1) > 0);
    close(file);
    unlink(path);
    const char *line = strstr(text, "B0212");
    assert_non_null(line);
    assert_non_null(strstr(line, "priority=1e-300"));
    assert_null(strstr(line + 1, "B0212"));
}

TEST(priorities_past_float32_are_refused_or_kept_finite)
{
    static const char *const exponents[] = {"1", "0.5", "2", "-1", "-20", "0"};
    static const bool refuses[] = {true, true, true, false, false, false};
    for (uint32_t e = 0; e < 6; e++) {
        void *self = make_exponent(exponents[e], 100, 1);
        uint32_t slots[10];
        double probabilities[10];
        rp_status status = selector_prioritized.check(self, 1e300, &err);
        assert_int_equal(status, refuses[e] ? RP_INVALID_ARGUMENT : RP_OK);
        assert_int_equal(selector_prioritized.check(self, 1e10, &err), RP_OK);
        assert_int_equal(selector_prioritized.check(self, 0.0, &err), RP_OK);
        assert_int_equal(selector_prioritized.check(self, 1e-300, &err), RP_OK);
        if (refuses[e])
            assert_non_null(strstr(err.text, "scale priorities to at most"));
        double low, high;
        selector_prioritized.bounds(self, &low, &high); /* check is not asked for those in between */
        assert_int_equal(selector_prioritized.check(self, low, &err), RP_OK);
        assert_int_equal(selector_prioritized.check(self, fmin(high, DBL_MAX), &err), RP_OK);
        assert_true(low <= 0.01 && high >= 10.0);
        assert_true(refuses[e] == (high < 1e300 && selector_prioritized.check(self, 2 * high, &err) != RP_OK));
        selector_prioritized.insert(self, 1, 1e300);
        selector_prioritized.insert(self, 2, 1e-300);
        selector_prioritized.insert(self, 3, 0.0);
        assert_true(isfinite(selector_prioritized.total(self)));
        assert_int_equal(selector_prioritized.pick_distinct(self, 10, NULL, NULL, slots, probabilities), 3);
        selector_prioritized.remove(self, 1);
        selector_prioritized.remove(self, 3);
        assert_int_equal(selector_prioritized.pick(self, 10, slots, probabilities), 10);
        assert_int_equal(slots[9], 2);
        assert_true(probabilities[9] == 1.0);
        selector_prioritized.destroy(self);
    }
}

/* ---- what a checkpoint keeps of them */

#define SAVED_SLOTS 600u

struct saved_item {
    double priority;
    uint64_t born, order; /* born == 0: the slot is free */
    uint32_t slot;
};

/* Insertions, updates and removals at random. */
static void stir(const rp_selector_ops *ops, void *self, struct saved_item *in, struct rng *rng, uint32_t changes)
{
    static uint64_t births;
    for (uint32_t i = 0; i < changes; i++) {
        struct saved_item *item = &in[rng_below(rng, SAVED_SLOTS)];
        uint32_t slot = (uint32_t)(item - in);
        item->priority = (double)rng_below(rng, 8);
        if (!item->born) {
            item->born = ++births;
            ops->insert(self, slot, item->priority);
        } else if (rng_below(rng, 2)) {
            if (ops->update)
                ops->update(self, 1, &slot, &item->priority);
        } else {
            item->born = 0;
            ops->remove(self, slot);
        }
    }
}

static int by_order(const void *a, const void *b)
{
    const struct saved_item *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return (x->born > y->born) - (x->born < y->born);
}

/* As the broker restores one: items in their order, then the rest of its state. */
static void *restored(const rp_selector_ops *ops, void *from, const struct saved_item *in)
{
    struct saved_item items[SAVED_SLOTS];
    uint32_t n = 0;
    uint8_t state[256];
    for (uint32_t slot = 0; slot < SAVED_SLOTS; slot++)
        if (in[slot].born) {
            items[n] = in[slot];
            items[n].slot = slot;
            items[n++].order = ops->order ? ops->order(from, slot) : 0;
        }
    qsort(items, n, sizeof items[0], by_order);
    void *self = make(ops, SAVED_SLOTS, 999);
    for (uint32_t i = 0; i < n; i++)
        ops->insert(self, items[i].slot, items[i].priority);
    uint32_t size = ops->save ? ops->save(from, state, sizeof state) : 0;
    assert_true(!ops->save || (size > 0 && ops->load(self, state, size)));
    return self;
}

TEST(a_saved_one_goes_on_as_it_would_have)
{
    for (uint32_t i = 0; i < N_ALL; i++) {
        struct saved_item in[SAVED_SLOTS] = {0};
        struct rng rng = rng_of(7 + i);
        void *one = make(all[i], SAVED_SLOTS, 5);
        stir(all[i], one, in, &rng, 5000);
        for (uint32_t k = 0; k < 100; k++)
            pick_one(all[i], one);
        void *other = restored(all[i], one, in);
        for (uint32_t k = 0; k < 3000; k++) {
            assert_int_equal(pick_one(all[i], one), pick_one(all[i], other));
            struct rng same = rng;
            struct saved_item copy[SAVED_SLOTS];
            memcpy(copy, in, sizeof copy);
            stir(all[i], one, in, &rng, 1);
            stir(all[i], other, copy, &same, 1);
        }
        all[i]->destroy(one);
        all[i]->destroy(other);
    }
}

/* Nothing but zeros would come of it, for ever where a draw is repeated. */
TEST(a_generator_of_zeros_is_refused)
{
    const rp_selector_ops *const drawn[] = {&selector_uniform, &selector_prioritized};
    for (uint32_t i = 0; i < 2; i++) {
        void *self = make(drawn[i], 100, 5);
        drawn[i]->insert(self, 1, 0);
        drawn[i]->insert(self, 2, 0);
        drawn[i]->insert(self, 4, 0);
        uint8_t saved[256];
        uint32_t size = drawn[i]->save(self, saved, sizeof saved);
        assert_true(drawn[i]->load(self, saved, size));
        memset(saved, 0, 32);
        assert_false(drawn[i]->load(self, saved, size));
        assert_true(pick_one(drawn[i], self) < 5);
        drawn[i]->destroy(self);
    }
}

/* Few of the slots that were once used are: every one of them is still as likely. */
TEST(a_sparse_uniform_one_is_uniform)
{
    enum { SLOTS = 10000, LEFT = 50 };
    void *self = make(&selector_uniform, SLOTS, 11);
    uint32_t used[LEFT], picked[256];
    double probability[256];
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        selector_uniform.insert(self, slot, 1);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (slot % (SLOTS / LEFT) != 77)
            selector_uniform.remove(self, slot);
    for (uint32_t i = 0; i < LEFT; i++) {
        used[i] = 77 + i * (SLOTS / LEFT);
        probability[i] = 1.0 / LEFT;
    }
    check_distribution(&selector_uniform, self, used, probability, LEFT);
    assert_int_equal(selector_uniform.pick_distinct(self, 256, NULL, NULL, picked, probability), LEFT);
    selector_uniform.destroy(self);
}
