#include <czmq.h>

#include "proto/base/clock.h"
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

struct ending {
    void (*release)(void *object);
    void *object;
    struct ending *next;
};

static struct ending *endings;

void at_end(void (*release)(void *object), void *object)
{
    struct ending *ending = calloc(1, sizeof *ending);
    assert_non_null(ending);
    *ending = (struct ending){release, object, endings};
    endings = ending;
}

void *owned(void *object)
{
    at_end(free, must(object));
    return object;
}

static void release_all(void)
{
    while (endings) {
        struct ending *ending = endings;
        endings = ending->next;
        ending->release(ending->object);
        free(ending);
    }
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
    release_all();
    free(tests);
    return failed;
}

char *lend_text(char *text)
{
    static char *texts[LENT_TEXTS];
    static uint32_t next;
    char **at = &texts[next++ % LENT_TEXTS];
    assert_non_null(text);
    free(*at);
    return *at = text;
}

char *textf(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    assert_true(vasprintf(&text, format, args) >= 0);
    va_end(args);
    return lend_text(text);
}

FILE *printing;
static char *printed;

void printing_begin(void)
{
    static size_t size;
    printing = open_memstream(&printed, &size);
    assert_non_null(printing);
}

char *printing_end(void)
{
    fclose(printing);
    return lend_text(printed);
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

void assert_has_all(const char *text, const char *const *all, void (*check)(const char *text, const char *what))
{
    for (; *all; all++)
        check(text, *all);
}

void check_near(double value, double wanted, double tolerance, const char *what)
{
    bool same = isnan(wanted) ? isnan(value) : fabs(value - wanted) <= tolerance * (1 + fabs(wanted));
    if (!same && value != wanted)
        fail_msg("%s is %.9g, not %.9g", what, value, wanted);
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

void must_fail(rp_status status, rp_status want, const char *says)
{
    if (status != want)
        fail_msg("%s instead of %s: %s", rp_status_name(status), rp_status_name(want), err.text);
    if (says)
        assert_has(err.text, says);
}

void wait_again(int64_t *end_ns, const char *what, const char *file, int line)
{
    int64_t now = clock_ns();
    *end_ns = *end_ns ? *end_ns : now + WAIT * NS_PER_MS;
    if (now >= *end_ns) {
        print_error("waited in vain for: %s\n", what);
        _fail(file, line);
    }
    nanosleep(&(struct timespec){.tv_nsec = 2 * NS_PER_MS}, NULL);
}
