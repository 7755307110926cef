/* What replay-ctl makes of numbers and names. Its sources are not part of a library: they are compiled in here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/ctl/format.c"

static void test_bytes(void **state)
{
    (void)state;
    format_buffer out;
    assert_string_equal(format_bytes(out, 0), "0 B");
    assert_string_equal(format_bytes(out, 999), "999 B");
    assert_string_equal(format_bytes(out, 1000), "1.0 KiB");
    assert_string_equal(format_bytes(out, 1024), "1 KiB");
    assert_string_equal(format_bytes(out, 1288490189), "1.2 GiB");
    assert_string_equal(format_bytes(out, UINT64_C(4) << 30), "4 GiB");
    assert_string_equal(format_bytes(out, UINT64_MAX), "16 EiB");
}

static void test_counts(void **state)
{
    (void)state;
    format_buffer out;
    assert_string_equal(format_count(out, 0), "0");
    assert_string_equal(format_count(out, 999), "999");
    assert_string_equal(format_count(out, 1000), "1,000");
    assert_string_equal(format_count(out, 1234567), "1,234,567");
    assert_string_equal(format_count(out, UINT64_MAX), "18,446,744,073,709,551,615");
    assert_string_equal(format_rate(out, 3400000), "3.4 M/s");
    assert_string_equal(format_rate(out, 0), "0/s");
    assert_string_equal(format_rate(out, 0.001), "0/s");
    assert_string_equal(format_rate(out, 12.34), "12/s");
    assert_string_equal(format_rate(out, 999.6), "1.0 k/s");
    assert_string_equal(format_short(out, -2500), "-2.5 k");
    assert_string_equal(format_short(out, NAN), "?");
    assert_string_equal(format_short(out, -INFINITY), "-inf");
    assert_string_equal(format_bound(out, 1.7e308), "none");
    assert_string_equal(format_bound(out, -INFINITY), "none");
    assert_string_equal(format_bound(out, -12.5), "-12.5");
    assert_string_equal(format_percent(out, 1, 3), "33%");
    assert_string_equal(format_percent(out, 1, 0), "-");
}

static void test_times(void **state)
{
    (void)state;
    format_buffer out;
    assert_string_equal(format_time(out, 0), "0 ns");
    assert_string_equal(format_time(out, 1500), "1.5 us");
    assert_string_equal(format_time(out, 3400000), "3.4 ms");
    assert_string_equal(format_time(out, UINT64_C(999600000)), "1.0 s");
    assert_string_equal(format_time(out, UINT64_C(12000000000)), "12 s");
    assert_string_equal(format_time(out, UINT64_C(59600000000)), "1 min");
    assert_string_equal(format_time(out, UINT64_C(125000000000)), "2 min 5 s");
    assert_string_equal(format_time(out, UINT64_C(12000) * 1000000000), "3 h 20 min");
    assert_string_equal(format_time(out, UINT64_C(352800) * 1000000000), "4 d 2 h");
    assert_non_null(format_time(out, UINT64_MAX));
    assert_string_equal(format_seconds(out, 0.25), "250 ms");
    assert_string_equal(format_seconds(out, -1), "-");
    assert_string_equal(format_seconds(out, NAN), "-");
}

static void test_clean(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(format_clean(out, sizeof out, "a\x1b[2Jb\n\x7f"), "a?[2Jb??");
    assert_string_equal(format_clean(out, sizeof out,
                                     "\xc2\x9b"
                                     "2J \xc3\xbc"),
                        "?2J \xc3\xbc");
    assert_string_equal(format_clean(out, 4, "abcdef"), "abc");
    assert_string_equal(format_clean(out, sizeof out, NULL), "");
    assert_int_equal(format_width("gr\xc3\xbc\xc3\x9f"), 4);
    assert_int_equal(format_cut("gr\xc3\xbc\xc3\x9f", 3), 4);
    assert_int_equal(format_cut("ab", 3), 2);
}

static void test_bars(void **state)
{
    (void)state;
    char out[16];
    assert_string_equal(format_bar(out, sizeof out, 12, 0), "[..........]");
    assert_string_equal(format_bar(out, sizeof out, 12, 0.5), "[#####.....]");
    assert_string_equal(format_bar(out, sizeof out, 12, 7), "[##########]");
    assert_string_equal(format_bar(out, sizeof out, 12, NAN), "[..........]");
    assert_int_equal(strlen(format_bar(out, sizeof out, 500, 0.5)), 15);
    assert_string_equal(format_place(out, sizeof out, 12, 0), "[o.........]");
    assert_string_equal(format_place(out, sizeof out, 12, 1), "[.........o]");
    assert_string_equal(format_place(out, sizeof out, 12, -3), "[o.........]");
}

static void test_grid(void **state)
{
    (void)state;
    static const char *const titles[] = {"name", ">size", "note"};
    struct grid grid;
    char *data = NULL;
    size_t size = 0;
    grid_init(&grid, titles, 3);
    grid_add(&grid, "replay");
    grid_addf(&grid, "%d", 12345);
    grid_add(&grid, "full\n");
    grid_add(&grid, "\xc3\xbc");
    grid_addf(&grid, "%d", 1);
    grid_add(&grid, "");
    FILE *out = open_memstream(&data, &size);
    grid_print(&grid, out);
    fclose(out);
    assert_string_equal(data, "name     size  note\n"
                              "replay  12345  full?\n"
                              "\xc3\xbc           1  \n");
    free(data);
    grid_fini(&grid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_counts), cmocka_unit_test(test_times),
        cmocka_unit_test(test_clean), cmocka_unit_test(test_bars),   cmocka_unit_test(test_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
