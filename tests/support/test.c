#include <czmq.h>

#include "proto/base/log.h"
#include "tests/support/test.h"

_Thread_local rp_error err;

static struct test *first;
static size_t n_tests;

static bool is_before(const struct test *one, const struct test *other)
{
    int order = strcmp(one->file, other->file);
    return order != 0 ? order < 0 : one->line < other->line;
}

void test_add(struct test *test)
{
    struct test **at = &first;
    while (*at && is_before(*at, test))
        at = &(*at)->next;
    test->next = *at;
    *at = test;
    n_tests++;
}

/* True if the path ends with the file's name. */
static bool is_in(const struct test *test, const char *file)
{
    const char *name = strrchr(test->file, '/');
    return !file || strcmp(name ? name + 1 : test->file, file) == 0;
}

int test_run_file(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    zsys_handler_set(NULL);
    log_set_level(getenv("RP_TEST_LOG") ? LEVEL_DEBUG : LEVEL_OFF);
    if (getenv("ONLY"))
        cmocka_set_test_filter(getenv("ONLY"));
    struct CMUnitTest *tests = calloc(n_tests, sizeof *tests);
    size_t n = 0;
    for (struct test *test = first; tests && test; test = test->next)
        if (is_in(test, file))
            tests[n++] = test->unit;
    if (n == 0)
        fprintf(stderr, "there are no tests in '%s'\n", file ? file : "this program");
    int failed = n > 0 ? _cmocka_run_group_tests(file ? file : "tests", tests, n, set_up, tear_down) : 1;
    free(tests);
    return failed;
}

FILE *printing;
static char *printed[8];
static uint32_t n_printed;

void printing_begin(void)
{
    static size_t size;
    char **text = &printed[n_printed % 8];
    free(*text);
    printing = open_memstream(text, &size);
    assert_non_null(printing);
}

char *printing_end(void)
{
    fclose(printing);
    return printed[n_printed++ % 8];
}

void assert_has(const char *text, const char *what)
{
    if (!text || !strstr(text, what))
        fail_msg("'%s' is not in:\n%.3000s", what, text ? text : "(nothing)");
}

void assert_has_not(const char *text, const char *what)
{
    if (text && strstr(text, what))
        fail_msg("'%s' is in:\n%.3000s", what, text);
}

void ok(rp_status status)
{
    if (status != RP_OK)
        fail_msg("%s: %s", rp_status_name(status), err.text);
}

void *must(void *object)
{
    if (!object)
        fail_msg("%s", err.text);
    return object;
}
