#include "proto/base/clock.h"

#include "tests/support/clock_manual.h"
#include "tests/support/test.h"

TEST(system_clock_never_goes_back)
{
    struct clock clock = clock_system();
    int64_t last = clock_now(&clock), first = last;
    assert_true(first > 0);
    /* Wait for it to move rather than count on a resolution. */
    while (last < first + NS_PER_MS) {
        int64_t now = clock_now(&clock);
        assert_true(now >= last);
        last = now;
    }
}

TEST(manual_clock_moves_only_when_told)
{
    struct clock_manual manual = {.now_ns = 5 * NS_PER_S};
    struct clock clock = clock_manual(&manual);
    struct clock copy = clock;
    assert_int_equal(clock_now(&clock), 5 * NS_PER_S);
    assert_int_equal(clock_now(&clock), 5 * NS_PER_S);
    manual.now_ns += 3 * NS_PER_MS;
    assert_int_equal(clock_now(&clock), 5003 * NS_PER_MS);
    assert_int_equal(clock_now(&copy), 5003 * NS_PER_MS);
}
