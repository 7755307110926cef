#include "proto/base/clock.h"

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
