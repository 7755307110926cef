/* Tests that register themselves: a file of TEST(name) { ... } is a whole program. cmocka.h comes with it. A file with a main of its
 * own, for its arguments or for a set-up of all its tests, ends it with `return test_run(...)`. */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H

#include <setjmp.h> // IWYU pragma: keep
#include <stdarg.h> // IWYU pragma: keep
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct test {
    struct CMUnitTest unit;
    int line;
    struct test *next;
};

/* Adds a test before those that stand further down in the file. */
void test_add(struct test *test);

/* Runs the tests of this file. Returns the number of those that failed. */
int test_run(CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* TEST(title, set_up, tear_down, initial state): what is left out is NULL. The body has `state`. */
#define TEST(title, ...)                                                                                               \
    static void test_##title(void **state);                                                                            \
    static struct test test_entry_##title = {                                                                          \
        {.name = #title, .test_func = test_##title, __VA_ARGS__}, __LINE__, NULL};                                     \
    __attribute__((constructor)) static void test_add_##title(void)                                                    \
    {                                                                                                                  \
        test_add(&test_entry_##title);                                                                                 \
    }                                                                                                                  \
    static void test_##title(void **state __attribute__((unused)))

#endif
