/* Memory beyond what is counted: when the log says so. */

#include "broker/loop/resident.h"
#include "tests/support/test.h"

#define MIB (UINT64_C(1) << 20)

TEST(when_it_warns)
{
    struct resident self = {.on = true};
    const struct {
        uint64_t resident, counted; /* MiB */
        bool warns;
    } rows[] = {
        {20, 0, false},     /* at the start */
        {270, 0, false},    /* 250 beyond */
        {1020, 800, false}, /* data that is counted */
        {1270, 800, false}, /* 450 beyond; 456 are allowed */
        {1300, 800, true},  /* 480 beyond */
        {1500, 800, false}, /* the log knows of it */
        {1800, 800, true},  /* twice as much */
        {1000, 800, false}, /* back */
        {1300, 800, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(resident_judge(&self, rows[i].resident * MIB, rows[i].counted * MIB, 0), rows[i].warns);
}

/* The memory of this process is read, and is not beyond the margin. */
TEST(the_process)
{
    struct resident self = {.on = true};
    resident_check(&self, 0, 0);
    assert_in_range(self.start, MIB / 16, 512 * MIB);
    assert_int_equal(self.told, 0);
    struct resident off = {0};
    resident_check(&off, 0, 0);
    assert_int_equal(off.start, 0);
}
