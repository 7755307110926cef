
#include "broker/loop/loop.h"
#include "tests/support/naive.h"

#define N 500u

struct log {
    uint32_t fired[N * 4], n;
};

static struct timer list[N];

static void record(struct timer *timer, void *ctx)
{
    struct log *log = ctx;
    assert_int_equal(timer->place, 0); /* may be set again from here */
    log->fired[log->n++] = (uint32_t)(timer - list);
}

TEST(timers_fire_in_order_and_ties_as_they_were_set)
{
    struct log log = {.n = 0};
    struct timers timers = {0};
    static const int64_t at[] = {30, 10, 20, 10, 30, 10};
    for (uint32_t i = 0; i < 6; i++) {
        list[i] = (struct timer){.fire = record, .ctx = &log};
        timer_set(&timers, &list[i], at[i]);
    }
    assert_int_equal(timers_next(&timers), 10);
    assert_false(timers_run(&timers, 9, 100));
    assert_int_equal(log.n, 0);
    assert_true(timers_run(&timers, 10, 2));
    assert_int_equal(log.n, 2);
    assert_false(timers_run(&timers, 30, 100));
    static const uint32_t want[] = {1, 3, 5, 2, 0, 4};
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(log.fired[i], want[i]);
    assert_true(timers_next(&timers) == INT64_MAX);
    timers_fini(&timers);
}

/* Against a plain array: set, move and clear at random. */
TEST(random_use_matches_a_sorted_list)
{
    struct rng rng = naive_rng(__func__);
    struct log log = {.n = 0};
    struct timers timers = {0};
    bool set[N] = {false};
    int64_t now = 0;
    for (uint32_t i = 0; i < N; i++)
        list[i] = (struct timer){.fire = record, .ctx = &log};
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, N);
        switch (rng_below(&rng, 4)) {
        case 0:
        case 1:
            timer_set(&timers, &list[i], now + (int64_t)rng_below(&rng, 100));
            set[i] = true;
            break;
        case 2:
            timer_clear(&timers, &list[i]);
            set[i] = false;
            break;
        default:
            now += (int64_t)rng_below(&rng, 5);
            log.n = 0;
            assert_false(timers_run(&timers, now, N));
            for (uint32_t f = 0; f < log.n; f++) {
                assert_true(set[log.fired[f]]);
                assert_true(list[log.fired[f]].at_ns <= now);
                if (f)
                    assert_true(list[log.fired[f]].at_ns >= list[log.fired[f - 1]].at_ns);
                set[log.fired[f]] = false;
            }
            int64_t next = INT64_MAX;
            uint32_t count = 0;
            for (uint32_t t = 0; t < N; t++) {
                count += set[t];
                if (set[t] && list[t].at_ns < next)
                    next = list[t].at_ns;
            }
            assert_true(timers_next(&timers) == next);
            assert_int_equal(timers.count, count);
        }
    }
    timers_fini(&timers);
}
