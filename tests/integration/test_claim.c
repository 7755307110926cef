/* Claims of steps against a real broker. Clocks are moved by hand: how large blocks get depends on nothing else. */

#include "agent/run/claim.h"
#include "proto/base/rng.h"
#include "tests/support/clock_manual.h"
#include "tests/support/process.h"

#define ACTORS 3
#define COUNTER "environment_steps"
#define TAKEN "taken"

struct fixture {
    SERVED;
    struct clock_manual time;
    atomic_bool stop;
};

static void set_up(struct fixture *f)
{
    served_start(f, "  - {name: replay, max_size: 10}\n", NULL, NULL);
    f->time.now_ns = NS_PER_S;
}

static void begin(struct fixture *f, struct claim *claim, int64_t limit, uint64_t least, uint32_t sharers)
{
    struct claim_options options = {.client = f->client,
                                    .counter = COUNTER,
                                    .taken = TAKEN,
                                    .clock = clock_manual(&f->time),
                                    .limit = limit,
                                    .least = least,
                                    .sharers = sharers,
                                    .stop = &f->stop};
    claim_init(claim, &options);
}

static int64_t read_counter(struct fixture *f, const char *name)
{
    int64_t value = 0;
    ok(rp_counter_read(f->client, name, WAIT, &value, &err));
    return value;
}

static int64_t counted(struct fixture *f)
{
    return read_counter(f, COUNTER);
}

/* Takes up to `most` steps of 20 us. */
static uint64_t step(struct fixture *f, struct claim *claim, uint64_t most)
{
    uint64_t n = 0, total = 0;
    ok(claim_next(claim, most, &n, &total, &err));
    assert_true(n <= most);
    f->time.now_ns += (int64_t)n * 20 * NS_PER_US;
    return n;
}

FIXTURE(struct fixture, set_up, served_stop)

/* One actor: every step is given out once, in order, and there are far fewer claims than parts of five. */
CASE(blocks)
{
    struct claim claim;
    uint64_t taken = 0, n, total;
    begin(f, &claim, 100003, 5, 1);
    for (;;) {
        ok(claim_next(&claim, 5, &n, &total, &err));
        if (n == 0)
            break;
        assert_int_equal(total, taken);
        taken += n;
        f->time.now_ns += (int64_t)n * 20 * NS_PER_US; /* 500 steps in 10 ms */
    }
    assert_int_equal(taken, 100003);
    assert_int_equal(counted(f), 100003);
    assert_true(claim.claims >= 200 && claim.claims < 500);
    claim_fini(&claim);
    assert_int_equal(counted(f), 100003);
}

/* Several that claim from one counter take together what is allowed, never more, whoever is quick. */
CASE(never_too_many)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct rng rng;
        struct claim claims[ACTORS];
        uint64_t taken = 0, ended = 0;
        rng_seed(&rng, seed);
        int64_t start = counted(f), limit = start + 1 + (int64_t)rng_below(&rng, 1500);
        for (uint32_t i = 0; i < ACTORS; i++)
            begin(f, &claims[i], limit, 1 + rng_below(&rng, 40), ACTORS);
        while (ended != (1u << ACTORS) - 1) {
            uint32_t i = (uint32_t)rng_below(&rng, ACTORS);
            uint64_t n = step(f, &claims[i], 1 + rng_below(&rng, 50));
            taken += n;
            ended |= n == 0 ? 1u << i : 0;
            if ((int64_t)taken > limit - start)
                fail_msg("seed %llu: %llu steps of %lld", (unsigned long long)seed, (unsigned long long)taken,
                         (long long)(limit - start));
        }
        for (uint32_t i = 0; i < ACTORS; i++)
            claim_fini(&claims[i]);
        assert_int_equal(taken, limit - start);
        assert_int_equal(counted(f), limit);
    }
}

/* While the broker does not answer, steps go on for the rest of the block; then a stop is heard. */
CASE(ahead_of_need)
{
    struct claim claim;
    uint64_t taken = 0, n, total;
    begin(f, &claim, 0, 5, 1);
    while (claim.claims < 20 || !claim.ahead)
        taken += step(f, &claim, 5);
    uint64_t left = claim.left;
    assert_true(left > 100 && claim.block > 200);
    kill(f->broker.pid, SIGSTOP);
    for (uint64_t more = 0; more < left;)
        more += step(f, &claim, 5);
    atomic_store(&f->stop, true);
    /* The next block may have been claimed before the broker was stopped. */
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < 10000 && status == RP_OK; i++)
        status = claim_next(&claim, 5, &n, &total, &err);
    assert_int_equal(status, RP_CANCELLED);
    struct claim_steps steps;
    assert_int_equal(claim_try(&claim, 5, 0, &steps, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(claim_try(&claim, 5, 50, &steps, &err), RP_DEADLINE_EXCEEDED);
    kill(f->broker.pid, SIGCONT);
    ok(claim_try(&claim, 5, 10000, &steps, &err));
    assert_int_equal(steps.n, 5);
    claim_return(&claim, steps.n);
    claim_fini(&claim);
}

/* What was claimed and not taken is given back, unless the end is near. What is counted as taken was taken, and stays so. */
CASE(give_back)
{
    struct claim claim;
    uint64_t taken = 0;
    int64_t told = 0;
    begin(f, &claim, 100000, 5, 2);
    while (taken < 20000) {
        taken += step(f, &claim, 5);
        int64_t now = read_counter(f, TAKEN);
        assert_true(now >= told && now <= (int64_t)taken);
        told = now;
    }
    assert_true(told > 10000);
    assert_true(counted(f) > (int64_t)taken);
    uint64_t n, total, again;
    ok(claim_next(&claim, 5, &n, &total, &err));
    claim_return(&claim, n - 1); /* stopped after the first of them */
    taken++;
    ok(claim_next(&claim, 1, &n, &again, &err));
    assert_int_equal(again, total + 1);
    claim_return(&claim, n);
    claim_fini(&claim);
    assert_int_equal(counted(f), taken);
    assert_int_equal(read_counter(f, TAKEN), taken);
    begin(f, &claim, (int64_t)taken + 8, 5, 2);
    assert_int_equal(step(f, &claim, 2), 2);
    claim_fini(&claim);
    assert_true(counted(f) >= (int64_t)taken + 5);
}
