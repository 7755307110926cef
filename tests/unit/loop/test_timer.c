
#include "broker/loop/loop.h"
#include "tests/support/naive.h"

#define N 500u

struct log {
    uint32_t fired[N * 4], n;
};

static struct timer list[N];

static void record(struct timer *timer)
{
    struct log *log = timer->ctx;
    assert_int_equal(timer->place, 0); /* may be set again from here */
    log->fired[log->n++] = (uint32_t)(timer - list);
}

/* Against a plain array: set, move and clear at random. Those of one time fire as they were set, however many at once. */
TEST(random_use_matches_a_sorted_list)
{
    struct rng rng = naive_rng(__func__);
    struct log log = {.n = 0};
    struct timers timers = {0};
    bool set[N] = {false};
    uint32_t order[N];
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
            order[i] = step;
            break;
        case 2:
            timer_clear(&timers, &list[i]);
            set[i] = false;
            break;
        default:
            now += (int64_t)rng_below(&rng, 5);
            log.n = 0;
            for (uint32_t most = (uint32_t)rng_below(&rng, 4), before = 0; timers_run(&timers, now, most);
                 before = log.n)
                assert_int_equal(log.n, before + most++);
            for (uint32_t f = 0; f < log.n; f++) {
                assert_true(set[log.fired[f]]);
                assert_true(list[log.fired[f]].at_ns <= now);
                int64_t later = f ? list[log.fired[f]].at_ns - list[log.fired[f - 1]].at_ns : 1;
                assert_true(later > 0 || (later == 0 && order[log.fired[f]] > order[log.fired[f - 1]]));
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
