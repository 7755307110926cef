/* Paid samples and permits of tables without a ratio: nobody pays, so every pick counts, once, live and after a crash. */

#include "proto/base/rng.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

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
    struct twin_folder folder;
    struct testpeer *peer, *writer;
    uint64_t next_key;
    uint64_t counted[N_TABLES], picked[N_TABLES]; /* what limiters and tables should have counted */
};

static void start(struct fixture *f, bool journal)
{
    *f = (struct fixture){.next_key = 1};
    if (journal)
        twin_folder_init(&f->folder);
    embed_start(&f->embed, tables, journal ? twin_config(&f->folder, NULL) : NULL);
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

static void check(struct fixture *f, struct embed *embed)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_int_equal(embed_table(embed, names[t])->limiter.samples, f->counted[t]);
        assert_int_equal(embed_table(embed, names[t])->stats.total_samples, f->picked[t]);
    }
}

TEST(a_pick_that_nobody_paid_for_counts)
{
    struct fixture f;
    start(&f, false);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        insert(&f, t, 3); /* fewer than min_size: it is the sampler that knows of the items at all shards */
        uint64_t id = sample(&f, t, 8, PAID);
        assert_int_equal(f.picked[t], t == ONCE ? 3 : 8);
        check(&f, &f.embed);
        f.peer->next_id = id - 1; /* a retry counts nothing */
        testpeer_forget(f.peer);
        testpeer_await(f.peer, testpeer_sample(f.peer, names[t], 8, 0, PAID));
        check(&f, &f.embed);
        insert(&f, t, 5);
        permit(&f, t, 6);
        check(&f, &f.embed);
        assert_int_equal(embed_table(&f.embed, names[t])->stats.permits, t == RATIO ? 6 : 0);
    }
    assert_int_equal(f.counted[MIN], 8);
    assert_int_equal(testpeer_table_info(f.peer, "min")->limiter->samples, 8);
    embed_stop(&f.embed);
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
    case 6:
        twin_checkpoint(&f->embed);
        break;
    default:
        sample(f, table, n, rng_next(rng) % 3 ? PAID : FLEXIBLE);
    }
}

/* The journal alone, or after a checkpoint, leads to the counts of the broker that has written it. */
TEST(a_broker_that_was_killed_has_counted_the_same)
{
    struct fixture f;
    struct rng rng;
    rng_seed(&rng, 42);
    start(&f, true);
    for (uint32_t round = 0; round < 6; round++) {
        struct twin_folder copy;
        struct embed again;
        for (uint32_t i = 0; i < 60; i++)
            step(&f, &rng);
        check(&f, &f.embed);
        testpeer_heartbeat(f.writer, 0, false);
        twin_folder_copy(&copy, &f.folder);
        embed_start(&again, tables, twin_config(&copy, NULL));
        check(&f, &again);
        twin_check(&f.embed, &again);
        embed_stop(&again);
        twin_folder_fini(&copy);
    }
    assert_true(f.counted[MIN] && f.counted[NONE] && f.counted[RATIO]);
    twin_kill(&f.embed);
    twin_folder_fini(&f.folder);
}
