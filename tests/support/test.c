#include "tests/support/test.h"

#include <stdlib.h>

static struct test *first;
static size_t n_tests;

void test_add(struct test *test)
{
    struct test **at = &first;
    while (*at && (*at)->line < test->line)
        at = &(*at)->next;
    test->next = *at;
    *at = test;
    n_tests++;
}

int test_run(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    struct CMUnitTest *tests = calloc(n_tests, sizeof *tests);
    if (!tests)
        return 1;
    size_t n = 0;
    for (struct test *test = first; test; test = test->next)
        tests[n++] = test->unit;
    int failed = _cmocka_run_group_tests("tests", tests, n_tests, set_up, tear_down);
    free(tests);
    return failed;
}
