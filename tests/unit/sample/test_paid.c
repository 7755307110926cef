/* Paid samples and permits of tables without a ratio: nobody pays, so every pick counts, once. That a broker which was
 * killed has counted the same: tests/unit/checkpoint/test_restore.c. */

#include "proto/base/rng.h"
#include "tests/support/testpeer.h"

enum { NONE, MIN, RATIO, ONCE, N_TABLES };
static const char *const names[N_TABLES] = {"none", "min", "ratio", "once"};
static const char tables[] =
    "  - {name: none, max_size: 20, limiter: {kind: none}}\n"
    "  - {name: min, max_size: 20, limiter: {kind: min_size, min_size: 5}}\n"
    "  - {name: ratio, max_size: 20, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 2,\n"
    "     error_buffer: 2000}}\n"
    "  - {name: once, max_size: 20, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: min_size}}\n";

struct fixture {
    struct embed embed;
    struct testpeer *peer, *writer;
    uint64_t next_key;
    uint64_t counted[N_TABLES], picked[N_TABLES]; /* what limiters and tables should have counted */
};

static void start(struct fixture *f)
{
    f->next_key = 1;
    embed_start(&f->embed, tables, NULL);
    f->peer = testpeer_new(&f->embed);
    f->writer = testpeer_opened(&f->embed, false);
}

static void insert(struct fixture *f, uint32_t table, uint32_t n)
{
    testpeer_insert(f->writer, names[table], f->next_key, n, 1);
    f->next_key += n;
    embed_settle(&f->embed);
}

/* Samples and adds what came to what should be counted. Returns the id. */
static uint64_t sample(struct fixture *f, uint32_t table, uint32_t count, int flags)
{
    uint64_t id = testpeer_sample(f->peer, names[table], count, 0, flags);
    const struct testpeer_answer *answer = testpeer_await(f->peer, id);
    uint64_t n = answer->status == RP_OK ? answer->reply->sample->n_key : 0;
    f->picked[table] += n;
    f->counted[table] += table == RATIO && (flags & PAID) ? 0 : n;
    return id;
}

static void permit(struct fixture *f, uint32_t table, uint32_t count)
{
    uint64_t id = testpeer_permit(f->peer, 0, names[table], count, 0, FLEXIBLE);
    const struct testpeer_answer *answer = testpeer_await(f->peer, id);
    f->counted[table] += table == RATIO && answer->status == RP_OK ? answer->reply->permit->granted : 0;
}

static void check(struct fixture *f)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_int_equal(embed_table(&f->embed, names[t])->limiter.samples, f->counted[t]);
        assert_int_equal(embed_table(&f->embed, names[t])->stats.total_samples, f->picked[t]);
    }
}

static void stop(struct fixture *f)
{
    embed_stop(&f->embed);
}

FIXTURE(struct fixture, start, stop)

CASE(a_pick_that_nobody_paid_for_counts)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        insert(f, t, 3); /* fewer than min_size: it is the sampler that knows of the items at all shards */
        uint64_t id = sample(f, t, 8, PAID);
        assert_int_equal(f->picked[t], t == ONCE ? 3 : 8);
        check(f);
        testpeer_forget(f->peer); /* a retry counts nothing */
        testpeer_await(f->peer, testpeer_sample_as(f->peer, id, names[t], 8, 0, PAID));
        check(f);
        insert(f, t, 5);
        permit(f, t, 6);
        check(f);
        assert_int_equal(embed_table(&f->embed, names[t])->stats.permits, t == RATIO ? 6 : 0);
    }
    assert_int_equal(f->counted[MIN], 8);
    assert_int_equal(testpeer_table_info(f->peer, "min")->limiter->samples, 8);
}

static void step(struct fixture *f, struct rng *rng)
{
    uint32_t table = (uint32_t)(rng_next(rng) % N_TABLES), n = 1 + (uint32_t)(rng_next(rng) % 12);
    switch (rng_next(rng) % 16) {
    case 0:
        testpeer_reset(f->peer, names[table]);
        f->counted[table] = 0;
        break;
    case 1:
        permit(f, table, n);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
        insert(f, table, n);
        break;
    default:
        sample(f, table, n, rng_next(rng) % 3 ? PAID : FLEXIBLE);
    }
}

CASE(random_picks_are_counted)
{
    struct rng rng;
    rng_seed(&rng, 42);
    for (uint32_t i = 0; i < 360; i++) {
        step(f, &rng);
        check(f);
    }
    assert_true(f->picked[MIN] && f->picked[NONE] && f->picked[RATIO] && f->picked[ONCE]);
}
