/* Tests with a fixture. */
#ifndef TESTS_SUPPORT_FIXTURE_H
#define TESTS_SUPPORT_FIXTURE_H

#include "tests/support/test.h"

/* TEST whose body has `f`, a pointer to what set_up has made. */
#define FIXTURE_TEST(type, title, ...)                                                                                 \
    static void test_with_##title(type *f);                                                                            \
    TEST(title, __VA_ARGS__)                                                                                           \
    {                                                                                                                  \
        test_with_##title(*state);                                                                                     \
    }                                                                                                                  \
    static void test_with_##title(type *f __attribute__((unused)))

#endif
