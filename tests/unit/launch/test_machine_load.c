

#include "agent/launch/process/machine.h"
#include "tests/support/test.h"

#define SECOND INT64_C(1000000000)

static bool all(uint32_t cpu, const void *context)
{
    (void)cpu;
    (void)context;
    return true;
}

static bool only(uint32_t cpu, const void *context)
{
    return cpu == *(const uint32_t *)context;
}

/* Idle and waiting for a disk is not work; what is stolen by the host is; guests are counted in user and nice. */
TEST(work_is_counted)
{
    static const char text[] = "cpu  111 22 33 4444 55 66 77 88 9 10\n"
                               "cpu0 100 20 30 4000 50 6 7 8 90 10\n"
                               "cpu1 11 2 3 444 5 60 70 80 9 0\n"
                               "intr 12345 0 0\n"
                               "cpufreq 1 2 3\n"
                               "ctxt 99\n";
    struct machine_load load;
    int64_t tick = SECOND / sysconf(_SC_CLK_TCK);
    assert_true(machine_load_parse(text, all, NULL, &load));
    assert_int_equal(load.cores, 2);
    assert_int_equal(load.busy_ns, (100 + 20 + 30 + 6 + 7 + 8 + 11 + 2 + 3 + 60 + 70 + 80) * tick);
    const uint32_t second = 1;
    assert_true(machine_load_parse(text, only, &second, &load));
    assert_int_equal(load.cores, 1);
    assert_int_equal(load.busy_ns, (11 + 2 + 3 + 60 + 70 + 80) * tick);
}

TEST(what_is_no_account_is_refused)
{
    static const char *const texts[] = {"",       "cpu",      "cpu 1 2 3 4",       "cpux 1 2 3",
                                        "\n\n\n", "intr 1 2", "cpu99999999999 1 2"};
    struct machine_load load;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_false(machine_load_parse(texts[i], all, NULL, &load));
    assert_true(machine_load_parse("cpu0", all, NULL, &load));
    assert_int_equal(load.busy_ns, 0);
    assert_true(machine_load_parse("cpu0 -5 x", all, NULL, &load));
    assert_int_equal(load.busy_ns, 0);
}

/* Two looks a second apart; busy and own: cores. */
static double others(uint32_t cores, double busy, double own, double ours)
{
    struct machine_load before = {.at_ns = 5 * SECOND, .busy_ns = 7 * SECOND, .own_ns = SECOND, .cores = cores};
    struct machine_load after = {.at_ns = 6 * SECOND,
                                 .busy_ns = before.busy_ns + (int64_t)(busy * SECOND),
                                 .own_ns = before.own_ns + (int64_t)(own * SECOND),
                                 .cores = cores};
    return machine_load_others(&before, &after, ours);
}

TEST(others_are_what_is_not_ours)
{
    assert_near(others(2, 2, 0.1, 0.9), 1, 1e-6);
    assert_near(others(16, 15, 0.5, 4.5), 10, 1e-6);
    /* Cores are free: other programs take none from us. */
    assert_near(others(16, 8, 0.5, 2), 0, 1e-6);
    /* The kernel's own work. */
    assert_near(others(2, 2, 0.1, 1.8), 0, 1e-6);
    assert_near(others(2, 1.9, 0, 2.1), 0, 1e-6);
    /* Looks that do not belong together. */
    struct machine_load before = {.at_ns = SECOND, .busy_ns = 9 * SECOND, .cores = 2}, after = before;
    assert_near(machine_load_others(&before, &after, 0), 0, 1e-6);
    after.at_ns = 2 * SECOND;
    after.busy_ns = 0;
    assert_near(machine_load_others(&before, &after, 0), 0, 1e-6);
    after.busy_ns = 11 * SECOND;
    assert_near(machine_load_others(&before, &after, 0), 2, 1e-6);
    before.cores = 0;
    assert_near(machine_load_others(&before, &after, 0), 0, 1e-6);
}

TEST(this_machine_tells)
{
    struct machine_load before, after;
    assert_true(machine_load_read(&before));
    assert_true(before.cores > 0);
    do
        assert_true(machine_load_read(&after));
    while (after.busy_ns == before.busy_ns); /* reading is work */
    assert_true(after.at_ns > before.at_ns && after.own_ns > before.own_ns && after.busy_ns > before.busy_ns);
}
