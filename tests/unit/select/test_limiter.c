
#include <inttypes.h>

#include "broker/select/limiter.h"
#include "proto/base/rng.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"

#define UNCHANGED                                                                                                      \
    {                                                                                                                  \
        .samples_per_insert = NAN, .min_size = NAN, .min_diff = NAN, .max_diff = NAN, .error_buffer = NAN,             \
        .max_lag = NAN                                                                                                 \
    }

static struct limiter make(const struct limiter_config *config)
{
    struct limiter limiter;
    if (limiter_init(&limiter, config, &err) != RP_OK)
        fail_msg("refused: %s", err.text);
    return limiter;
}

static struct limiter make_ratio(double spi, double min_size, double error_buffer)
{
    struct limiter_config config = {
        .kind = LIMITER_RATIO, .samples_per_insert = spi, .min_size = min_size, .error_buffer = error_buffer};
    return make(&config);
}

static void assert_refused(const struct limiter_config *config, const char *part)
{
    err = (rp_error){0};
    struct limiter limiter;
    assert_int_equal(limiter_init(&limiter, config, &err), RP_INVALID_ARGUMENT);
    facts_said(err.text, part);
}

TEST(mistakes_are_refused_with_what_to_write)
{
    struct limiter_config good = {.kind = LIMITER_RATIO,
                                  .samples_per_insert = 8,
                                  .min_size = 10,
                                  .error_buffer = -1,
                                  .min_diff = 0,
                                  .max_diff = 16};
    const struct {
        double samples_per_insert, min_size, error_buffer, min_diff, max_diff;
        const char *part;
    } bad[] = {
        {0, 10, -1, 0, 16, "samples_per_insert is 0; write a number above 0"},
        {NAN, 10, -1, 0, 16, "write a number above 0"},
        {INFINITY, 10, -1, 0, 16, "write a number above 0"},
        {8, 0, -1, 0, 16, "min_size is 0; write a whole number of at least 1"},
        {8, 1.5, -1, 0, 16, "min_size is 1.5, not a whole number; write 2"},
        {8, 10, -1, 0, 15, "write max_diff of at least 16"},
        {8, 10, -1, 81, 200, "write min_diff of at most 80"},
        {8, 10, -1, NAN, 16, "min_diff and max_diff are both needed"},
        {8, 10, 7.5, 0, 16, "write at least 8"},
        {0.1, 10, 0.5, 0, 16, "write at least 1"},
    };
    make(&good);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(&(struct limiter_config){.kind = LIMITER_RATIO,
                                                .samples_per_insert = bad[i].samples_per_insert,
                                                .min_size = bad[i].min_size,
                                                .error_buffer = bad[i].error_buffer,
                                                .min_diff = bad[i].min_diff,
                                                .max_diff = bad[i].max_diff},
                       bad[i].part);
    assert_refused(&(struct limiter_config){.kind = LIMITER_QUEUE, .size = 0}, "size is 0");
    assert_refused(&(struct limiter_config){.kind = LIMITER_MIN_SIZE, .min_size = -3}, "min_size is -3");
    assert_refused(&(struct limiter_config){.kind = LIMITER_MIN_SIZE, .min_size = 1e300}, "write at most");
    assert_refused(&(struct limiter_config){.kind = (enum limiter_kind)99}, "no such rate limiter");
    /* The smallest buffer is good whatever its bounds round to. */
    for (int i = 1; i < 2000; i++)
        make_ratio(i * 0.1, 1 + i % 7, fmax(1.0, i * 0.1));
}

/* The limiter of a shard may have no part of min_size. It is sampled when it has an item, and its cursor has its centre at 0. */
TEST(a_part_of_min_size_may_be_0)
{
    struct limiter_config config = {
        .kind = LIMITER_RATIO, .part = true, .samples_per_insert = 4, .min_size = 0, .error_buffer = 8};
    struct limiter limiter = make(&config);
    assert_true(limiter.min_size == 1.0 && limiter.min_size_part == 0.0);
    assert_true(limiter.min_diff == -8.0 && limiter.max_diff == 8.0);
    assert_int_equal(limiter_sampleable(&limiter, 100), 0);
    assert_int_equal(limiter_insertable(&limiter, 100), 2);
    limiter_inserted(&limiter, 1);
    assert_int_equal(limiter_sampleable(&limiter, 100), 12);
    struct limiter_change change = UNCHANGED;
    change.min_size = 3;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter.min_size_part == 3.0);
    change.min_size = 0;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter.min_size == 1.0 && limiter.min_size_part == 0.0);
    config.min_size = 1.5;
    assert_refused(&config, "not a whole number");
    /* With bounds of its own the first item is inserted all the same, or nothing would ever happen. */
    config = (struct limiter_config){.kind = LIMITER_RATIO,
                                     .part = true,
                                     .samples_per_insert = 4,
                                     .error_buffer = -1,
                                     .min_diff = -8,
                                     .max_diff = 1};
    limiter = make(&config);
    assert_int_equal(limiter_insertable(&limiter, 100), 1);
}

TEST(a_change_is_whole_or_not_at_all)
{
    struct limiter limiter = make_ratio(8, 10, 16);
    struct limiter before = limiter;
    struct limiter_change change = UNCHANGED;
    limiter_inserted(&limiter, 5);
    before = limiter;
    change.min_size = 20;
    change.samples_per_insert = -1;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_INVALID_ARGUMENT);
    assert_memory_equal(&limiter, &before, sizeof limiter);
    change.samples_per_insert = 4;
    change.error_buffer = 40;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter.min_diff == 40.0 && limiter.max_diff == 120.0 && limiter.inserts == 5);
    change.max_diff = 1000;
    must_fail(limiter_change(&limiter, &change, &err), RP_INVALID_ARGUMENT, "not both");
    change = (struct limiter_change)UNCHANGED;
    change.error_buffer = -3;
    must_fail(limiter_change(&limiter, &change, &err), RP_INVALID_ARGUMENT, "error_buffer -3");
    change = (struct limiter_change)UNCHANGED;
    change.max_diff = 500;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter.max_diff == 500.0);
}

TEST(each_kind_has_its_own_values_to_change)
{
    struct limiter_change size = UNCHANGED;
    struct limiter_change upper = UNCHANGED;
    size.min_size = 50;
    upper.max_diff = 50;
    struct limiter limiter = make(&(struct limiter_config){.kind = LIMITER_NONE});
    assert_int_equal(limiter_change(&limiter, &size, &err), RP_FAILED_PRECONDITION);
    limiter = make(&(struct limiter_config){.kind = LIMITER_MIN_SIZE, .min_size = 3});
    assert_int_equal(limiter_change(&limiter, &upper, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(limiter_change(&limiter, &size, &err), RP_OK);
    assert_true(limiter.min_size == 50.0);
    limiter = make(&(struct limiter_config){.kind = LIMITER_QUEUE, .size = 3});
    assert_int_equal(limiter_change(&limiter, &size, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(limiter_change(&limiter, &upper, &err), RP_OK);
    assert_int_equal(limiter_insertable(&limiter, 100), 50);
    upper.max_diff = 0;
    assert_int_equal(limiter_change(&limiter, &upper, &err), RP_INVALID_ARGUMENT);
}

/* ---- lag */

TEST(a_version_pays_for_a_batch)
{
    struct limiter_config config = {.kind = LIMITER_LAG, .batch = 4, .max_lag = 1, .min_size = 1};
    struct limiter limiter = make(&config);
    char text[256];
    assert_int_equal(limiter_insertable(&limiter, 100), 8);
    limiter_inserted(&limiter, 3);
    struct limiter early = limiter;
    assert_true(limiter_moved(&early, 1)); /* the first one: whoever put it has learned from items without one */
    assert_int_equal(limiter_insertable(&early, 100), 8);
    limiter.version = 16;
    assert_int_equal(limiter_insertable(&limiter, 100), 5);
    limiter_inserted(&limiter, 5);
    assert_int_equal(limiter_insertable(&limiter, 100), 0);
    limiter_explain_insert(&limiter, text, sizeof text);
    assert_non_null(strstr(text, "needs version 17"));
    limiter_sampled(&limiter, 8); /* samples do not pay */
    limiter_deleted(&limiter, 8);
    assert_int_equal(limiter_insertable(&limiter, 100), 0);
    assert_true(limiter_moved(&limiter, 17));
    assert_int_equal(limiter_insertable(&limiter, 100), 4);
    /* Credit of versions that nobody waited for is not saved up. */
    assert_true(limiter_moved(&limiter, 1000));
    assert_false(limiter_moved(&limiter, 1001));
    assert_int_equal(limiter_insertable(&limiter, 100), 8);
    /* An item that was dropped unseen makes room for another. */
    limiter_inserted(&limiter, 8);
    limiter_forgot(&limiter, 0, 7);
    limiter_forgot(&limiter, 1, 7);
    assert_int_equal(limiter_insertable(&limiter, 100), 1);
    limiter_inserted(&limiter, 1);
    /* A version has paid for items that nobody had sampled. That they are dropped later does not pay again. */
    struct limiter unused = limiter;
    assert_true(limiter_moved(&unused, 1003));
    for (uint64_t left = 8; left-- > 0;)
        limiter_forgot(&unused, 0, left);
    assert_true(limiter_cursor(&unused) == 0.0);
    /* Changes. */
    struct limiter_change change = UNCHANGED;
    change.max_lag = 2;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_int_equal(limiter_insertable(&limiter, 100), 4);
    assert_true(limiter_max_lag(&limiter) == 2.0);
    struct limiter again = make(&config);
    const struct limiter_change kept = {
        limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff, NAN, NAN};
    assert_int_equal(limiter_keep(&again, limiter.changed_from, &kept, &err), RP_OK);
    assert_true(limiter_max_lag(&again) == 2.0);
    change.max_lag = 1.5;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_INVALID_ARGUMENT);
    change = (struct limiter_change)UNCHANGED;
    change.max_diff = 50;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_FAILED_PRECONDITION);
    config.max_lag = -1;
    assert_refused(&config, "max_lag");
    config.max_lag = 0;
    config.batch = 0;
    assert_refused(&config, "batch is 0");
    config.batch = 4;
    config.min_size = 5;
    assert_refused(&config, "can never be reached");
}

/* Lets a shard insert an item, with room of another one if it has none. */
static void insert_at(struct limiter *shards, uint32_t n, uint32_t at, const uint64_t *unseen)
{
    for (uint32_t i = 0; i < n && !limiter_insertable(&shards[at], 1); i++)
        if (i != at && limiter_move(&shards[i], -1, unseen[i]))
            assert_int_equal(limiter_move(&shards[at], 1, unseen[at]), 1);
    assert_int_equal(limiter_insertable(&shards[at], 1), 1);
    limiter_inserted(&shards[at], 1);
}

/* Writers are ahead at random shards. If the learner lacks items, all of them come to one shard. */
static void check_shards(struct rng *rng, uint32_t n, uint32_t lag, uint32_t batch)
{
    struct limiter shards[4];
    uint64_t inserted = 0, unseen[4] = {0};
    for (uint32_t i = 0; i < n; i++)
        shards[i] = make(&(struct limiter_config){
            .kind = LIMITER_LAG, .part = true, .batch = batch / n + (i < batch % n), .whole = batch, .max_lag = lag});
    for (uint64_t version = 0; version < 30; version++) {
        for (uint64_t tries = rng_below(rng, (uint64_t)3 * batch), at; tries > 0; tries--) {
            at = rng_below(rng, n);
            if (limiter_insertable(&shards[at], 1)) {
                limiter_inserted(&shards[at], 1);
                inserted++;
                unseen[at]++;
            }
        }
        for (uint32_t taken = 0, i = 0; taken < batch; taken++) {
            while (i < n && !unseen[i])
                i++;
            if (i < n) {
                unseen[i]--;
            } else {
                insert_at(shards, n, (uint32_t)version % n, unseen);
                inserted++;
            }
        }
        double room = 0, more = 0;
        for (uint32_t i = 0; i < n; i++) {
            room += (double)limiter_insertable(&shards[i], 1000);
            limiter_moved(&shards[i], version + 1);
            more += (double)limiter_insertable(&shards[i], 1000);
        }
        assert_true((double)inserted + room <= (double)((version + lag + 1) * batch));
        assert_true(more >= batch);
    }
}

/* However unevenly writers spread: never more than max_lag + 1 batches ahead, and a whole batch for each version. */
TEST(room_moves_between_shards)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng rng = rng_of(seed);
        uint32_t n = 2 + (uint32_t)rng_below(&rng, 3);
        check_shards(&rng, n, (uint32_t)rng_below(&rng, 4), n + (uint32_t)rng_below(&rng, 9));
    }
    struct limiter shard = make(&(struct limiter_config){
        .kind = LIMITER_LAG, .part = true, .batch = 3, .whole = 7, .max_lag = 1, .min_size = 0});
    char text[256];
    limiter_inserted(&shard, 4);
    assert_int_equal(limiter_move(&shard, -5, 4), 2); /* what there is */
    assert_int_equal(limiter_insertable(&shard, 9), 0);
    limiter_explain_insert(&shard, text, sizeof text);
    assert_non_null(strstr(text, "version 1 "));
    assert_non_null(strstr(text, "2 batches of 3 (this shard's part of 7)"));
    assert_int_equal(limiter_move(&shard, 5, 4), 2); /* not for items that nobody has sampled */
    assert_int_equal(limiter_move(&shard, 9, 1), 3);
    assert_int_equal(limiter_insertable(&shard, 9), 5);
}

/* ---- properties */

static struct limiter_config random_config(struct rng *rng)
{
    struct limiter_config config = {.kind = (enum limiter_kind)rng_below(rng, 5), .error_buffer = -1};
    double spi = rng_below(rng, 2) ? (double)(1 + rng_below(rng, 9)) : exp(8.0 * rng_unit(rng) - 4.0);
    config.samples_per_insert = spi;
    config.min_size = (double)(1 + rng_below(rng, 30));
    config.size = (double)(1 + rng_below(rng, 20));
    double least = fmax(1.0, spi);
    if (rng_below(rng, 2)) {
        config.error_buffer = rng_below(rng, 3) ? least * (1.0 + 5.0 * rng_unit(rng)) : least;
    } else {
        config.min_diff = spi * config.min_size - 20.0 * spi * rng_unit(rng);
        config.max_diff = config.min_diff + 2.0 * least + (rng_below(rng, 2) ? 30.0 * rng_unit(rng) : 1e-9);
    }
    return config;
}

static struct naive_limiter naive_of(const struct limiter *limiter)
{
    return (struct naive_limiter){
        .samples_per_insert = limiter->samples_per_insert,
        .min_size = limiter->min_size,
        .min_diff = limiter->min_diff,
        .max_diff = limiter->max_diff,
        .inserts = limiter->inserts,
        .samples = limiter->samples,
        .deletes = limiter->deletes,
    };
}

static void check_counts(const struct limiter *limiter)
{
    enum { MOST = 40 };
    uint64_t inserts = 0;
    uint64_t samples = 0;
    for (struct naive_limiter naive = naive_of(limiter); inserts < MOST && naive_may_insert(&naive); inserts++)
        naive.inserts++;
    for (struct naive_limiter naive = naive_of(limiter); samples < MOST && naive_may_sample(&naive); samples++)
        naive.samples++;
    assert_int_equal(limiter_insertable(limiter, MOST), inserts);
    assert_int_equal(limiter_sampleable(limiter, MOST), samples);
    /* Whatever the state, something can go on. */
    assert_true(inserts > 0 || samples > 0);
}

static void check_insert_text(const struct limiter *limiter)
{
    char text[256];
    uint64_t missing;
    limiter_explain_insert(limiter, text, sizeof text);
    if (limiter_insertable(limiter, 1) == 1) {
        assert_string_equal(text, "");
        return;
    }
    assert_int_equal(sscanf(text, "needs %" SCNu64 " more sample", &missing), 1);
    struct naive_limiter naive = naive_of(limiter);
    for (uint64_t i = 0; i < missing; i++) {
        assert_false(naive_may_insert(&naive));
        assert_true(naive_may_sample(&naive));
        naive.samples++;
    }
    assert_true(naive_may_insert(&naive));
}

static void check_sample_text(const struct limiter *limiter, uint64_t want)
{
    char text[256];
    uint64_t missing;
    limiter_explain_sample(limiter, want, text, sizeof text);
    if (limiter_sampleable(limiter, want) == want) {
        assert_string_equal(text, "");
        return;
    }
    assert_int_equal(sscanf(text, "needs %" SCNu64 " more insert", &missing), 1);
    assert_true(missing > 0);
    struct limiter later = *limiter;
    limiter_inserted(&later, missing - 1);
    assert_true(limiter_sampleable(&later, want) < want);
    limiter_inserted(&later, 1);
    assert_int_equal(limiter_sampleable(&later, want), want);
    if (want == 1) {
        /* And those inserts are allowed, one after the other. */
        struct naive_limiter naive = naive_of(limiter);
        for (uint64_t i = 0; i < missing; i++) {
            assert_true(naive_may_insert(&naive));
            naive.inserts++;
        }
        assert_true(naive_may_sample(&naive));
    }
}

static void step(struct limiter *limiter, struct rng *rng)
{
    uint64_t n = 1 + rng_below(rng, 6);
    switch (rng_below(rng, 5)) {
    case 0:
    case 1:
        limiter_inserted(limiter, limiter_insertable(limiter, n));
        break;
    case 2:
    case 3:
        limiter_sampled(limiter, limiter_sampleable(limiter, n));
        break;
    default:
        limiter_deleted(limiter, n < limiter_size(limiter) ? n : limiter_size(limiter));
    }
    if (rng_below(rng, 400) == 0)
        limiter_reset(limiter);
    /* Past the limiter, as insert-on-sample does. */
    if (rng_below(rng, 200) == 0)
        limiter_inserted(limiter, n);
}

TEST(random_runs_follow_the_rules)
{
    struct rng rng = naive_rng("limiter");
    for (int run = 0; run < 300; run++) {
        struct limiter_config config = random_config(&rng);
        struct limiter limiter = make(&config);
        for (int i = 0; i < 200; i++) {
            step(&limiter, &rng);
            check_counts(&limiter);
            check_insert_text(&limiter);
            check_sample_text(&limiter, 1);
            check_sample_text(&limiter, 1 + rng_below(&rng, 300));
        }
    }
}

/* Items come and go, and permits are granted, whole or in part. The naive limiter counts what the real one should. */
static void shard_step(struct limiter *limiter, struct naive_limiter *naive, struct rng *rng)
{
    uint64_t n = 1 + rng_below(rng, 30);
    switch (rng_below(rng, 4)) {
    case 0:
    case 1:
        for (n = limiter_insertable(limiter, n); n > 0; n--) {
            assert_true(naive_may_insert(naive));
            naive->inserts++;
            limiter_inserted(limiter, 1);
        }
        break;
    case 2:
        n = limiter_sampleable(limiter, n);
        limiter_sampled(limiter, n);
        for (; n > 0; n--, naive->samples++)
            assert_true(naive_may_sample(naive));
        break;
    default: /* a paid pick counts and is taken back; then an item leaves */
        limiter_sampled(limiter, n);
        limiter_refund(limiter, n);
        n = (double)limiter_size(limiter) > limiter->min_size ? 1 : 0;
        limiter_deleted(limiter, n);
        naive->deletes += n;
    }
}

/* Whatever the shards are asked for: as each stays within its bounds, all of them together stay within those of the whole. */
TEST(permits_keep_the_sum_of_shards_within_the_bounds)
{
    enum { SHARDS = 5 };
    struct rng rng = naive_rng("permits");
    for (int run = 0; run < 100; run++) {
        double spi = exp(4.0 * rng_unit(&rng) - 2.0), least = fmax(1.0, spi);
        double min_size = (double)(1 + rng_below(&rng, 20)), buffer = SHARDS * least * (1.0 + 20.0 * rng_unit(&rng));
        double centre = SHARDS * spi * min_size;
        struct limiter limiters[SHARDS];
        struct naive_limiter naive[SHARDS];
        for (uint32_t s = 0; s < SHARDS; s++) {
            limiters[s] = make_ratio(spi, min_size, buffer / SHARDS);
            limiter_inserted(&limiters[s], (uint64_t)min_size);
            naive[s] = naive_of(&limiters[s]);
        }
        for (int i = 0; i < 1000; i++) {
            uint32_t s = (uint32_t)rng_below(&rng, SHARDS);
            shard_step(&limiters[s], &naive[s], &rng);
            assert_int_equal(limiters[s].samples, naive[s].samples);
            double sum = 0;
            for (uint32_t k = 0; k < SHARDS; k++)
                sum += limiter_cursor(&limiters[k]);
            assert_true(sum >= centre - buffer - 1e-6 && sum <= centre + buffer + 1e-6);
        }
    }
}

/* A count that is not above this is allowed some day, however inserts fall: otherwise a permit would wait for ever. */
TEST(what_is_possible_at_once_comes_if_inserts_go_on)
{
    struct rng rng = naive_rng("at once");
    for (int run = 0; run < 2000; run++) {
        struct limiter_config config = random_config(&rng);
        struct limiter limiter = make(&config);
        uint64_t count = limiter_most_at_once(&limiter, 1 + rng_below(&rng, 60));
        assert_true(count >= 1);
        for (int i = 0; i < 20; i++)
            step(&limiter, &rng);
        limiter_inserted(&limiter, limiter_insertable(&limiter, 100000));
        assert_int_equal(limiter_sampleable(&limiter, count), count);
    }
}

TEST(large_counts_are_exact)
{
    struct rng rng = naive_rng("limiter, large counts");
    for (int run = 0; run < 3000; run++) {
        struct limiter_config config = random_config(&rng);
        struct limiter limiter = make(&config);
        uint64_t inserts = rng_next(&rng) >> (14 + rng_below(&rng, 30));
        limiter_inserted(&limiter, inserts);
        double target = limiter.min_diff > -1e300 ? limiter.min_diff : 0.0;
        double samples = (double)inserts * limiter.samples_per_insert - target - 5.0 * rng_unit(&rng);
        limiter_sampled(&limiter, samples > 0.0 && samples < 9e15 ? (uint64_t)samples : 0);
        uint64_t k = limiter_sampleable(&limiter, UINT64_MAX);
        struct naive_limiter naive = naive_of(&limiter);
        naive.samples += k;
        if (limiter.min_diff > -1e300 && naive.samples < UINT64_C(1) << 53)
            assert_false(naive_may_sample(&naive));
        naive.samples--;
        if (k > 0)
            assert_true(naive_may_sample(&naive));
    }
}

TEST(small_buffers_are_not_overrun)
{
    struct limiter limiter = make_ratio(8, 500, 16);
    char text[12];
    limiter_explain_sample(&limiter, 1, text, sizeof text);
    assert_string_equal(text, "needs 500 m");
    limiter_explain_sample(&limiter, 1, NULL, 0);
    limiter_explain_insert(&limiter, NULL, 0);
}

/* The bounds of error_buffer follow the ratio, and the cursor keeps its place between them: what was possible stays possible. */
TEST(a_new_ratio_leaves_the_cursor_in_place)
{
    struct limiter limiter = make_ratio(32, 1000, 256);
    limiter_inserted(&limiter, 1000000);
    limiter_sampled(&limiter, 32000000 - 32000 + 100);
    struct limiter_change change = UNCHANGED;
    change.samples_per_insert = 4;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter.min_diff == 4000.0 - 256.0 && limiter.max_diff == 4000.0 + 256.0);
    assert_true(fabs(limiter_cursor(&limiter) - 3900.0) < 1e-6);
    assert_int_equal(limiter_sampleable(&limiter, 1000), 156);
    limiter_inserted(&limiter, 10);
    assert_true(fabs(limiter_cursor(&limiter) - 3940.0) < 1e-6);
    limiter_reset(&limiter);
    assert_true(limiter_cursor(&limiter) == 0.0);
    /* Before min_size is reached, as if the new ratio had been there from the start. */
    limiter_inserted(&limiter, 400);
    change.samples_per_insert = 2;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(fabs(limiter_cursor(&limiter) - 800.0) < 1e-6);
    assert_int_equal(limiter_sampleable(&limiter, 1), 0);
    limiter_inserted(&limiter, 600);
    assert_int_equal(limiter_sampleable(&limiter, 1000), 256);
    /* min_size alone moves the bounds as well. */
    change = (struct limiter_change)UNCHANGED;
    change.min_size = 10;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter.min_diff == 20.0 - 256.0);
    assert_int_equal(limiter_sampleable(&limiter, 1000), 256);
    /* A buffer that is too small for the new ratio is named. */
    change.samples_per_insert = 1000;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_INVALID_ARGUMENT);
    change.error_buffer = 1000;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_int_equal(limiter_sampleable(&limiter, 5000), 1000);
    /* Bounds that were given stay, and so does the cursor. */
    limiter = make(&(struct limiter_config){.kind = LIMITER_RATIO,
                                            .samples_per_insert = 8,
                                            .min_size = 1,
                                            .error_buffer = -1,
                                            .min_diff = -50,
                                            .max_diff = 50});
    limiter_inserted(&limiter, 5);
    change = (struct limiter_change)UNCHANGED;
    change.samples_per_insert = 4;
    assert_int_equal(limiter_change(&limiter, &change, &err), RP_OK);
    assert_true(limiter_cursor(&limiter) == 40.0 && limiter.min_diff == -50.0 && limiter.max_diff == 50.0);
}
