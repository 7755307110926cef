/* Tests that register themselves: a file of TEST(name) { ... } needs nothing else. cmocka.h and the headers of the C library that most tests use
 * come with it. The files of a folder are one program, which runs the tests of the file that its argument names, or all. A file with a main or other functions that are not
 * static is a program by itself; its main ends with `return test_run(...)`. */
#pragma once

#include <math.h>
#include <setjmp.h> // IWYU pragma: keep
#include <stdarg.h> // IWYU pragma: keep
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "replay/error.h"

/* Milliseconds that a test waits for what must happen. A machine that stalls for seconds, or is ten times slower, is no failure. */
#define WAIT 60000

struct test {
    struct CMUnitTest unit;
    const char *file;
    int line;
    struct test *next;
};

/* Adds a test before those that stand further down in its file. */
void test_add(struct test *test);

/* Runs the tests of a file, or of all if file is NULL; in the environment, ONLY is the name of one, and RP_TEST_LOG shows the log. Returns the number of those that failed; 1 if there are none. */
int test_run_file(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down);

#define LENT_TEXTS 64u
/* Keeps a text of the heap until LENT_TEXTS further ones were lent, and gives it. For the main thread. */
char *lend_text(char *text);
/* A text as printf makes it; it is lent. */
char *textf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* PRINTED(print(x, printing)): what the call has written to the stream `printing`; it is lent. */
extern FILE *printing;
void printing_begin(void);
char *printing_end(void);
#define PRINTED(call) (printing_begin(), (call), printing_end())

/* Fails with the text if it does not contain what it should, or contains what it should not. */
void assert_has(const char *text, const char *what);
void assert_has_not(const char *text, const char *what);
/* The error of the last call that this thread gave it to. It is zero at the start of each test. */
extern _Thread_local rp_error err;
/* Fails with err unless the call has succeeded. In another thread, a check that fails ends the program: these here and fail_msg
 * with their text, cmocka's own assertions without one. */
void ok(rp_status status);
/* Fails with err if there is no object; otherwise returns it. */
void *must(void *object);
/* Fails unless the call has failed with this status, and err says this (NULL: anything). */
void must_fail(rp_status status, rp_status want, const char *says);
/* The same for a call that returns an object. */
#define must_fail_new(object, want, says) must_fail((object) ? RP_OK : (rp_status)err.status, want, says)

/* Looks every 2 ms until the condition is true; fails the test if it is still false after WAIT. */
#define wait_until(condition)                                                                                          \
    for (int64_t wait_end = 0; !(condition);)                                                                          \
    wait_again(&wait_end, #condition, __FILE__, __LINE__)
void wait_again(int64_t *end_ns, const char *what, const char *file, int line);

/* Calls release(object) when the program's tests have ended, the newest first: what a test makes may outlive it. */
void at_end(void (*release)(void *object), void *object);
/* must() of an object of the heap, which is freed when the program's tests have ended. */
void *owned(void *object);
/* Fails unless |value - wanted| <= tolerance * (1 + |wanted|), or both are no numbers. */
#define assert_near(value, wanted, tolerance) check_near(value, wanted, tolerance, #value)
void check_near(double value, double wanted, double tolerance, const char *what);
/* HAS(text, "a", "b"): assert_has for each. HAS_NOT: none of them. */
#define HAS(text, ...) assert_has_all(text, (const char *const[]){__VA_ARGS__, NULL}, assert_has)
#define HAS_NOT(text, ...) assert_has_all(text, (const char *const[]){__VA_ARGS__, NULL}, assert_has_not)
void assert_has_all(const char *text, const char *const *all, void (*check)(const char *text, const char *what));

/* Runs the tests of this file, which is a program by itself. */
#define test_run(set_up, tear_down) test_run_file(NULL, set_up, tear_down)

/* TEST(title, set_up, tear_down, initial state): what is left out is NULL. The body has `state`. */
#define TEST(title, ...)                                                                                               \
    static void test_##title(void **state);                                                                            \
    static void test_begin_##title(void **state)                                                                       \
    {                                                                                                                  \
        err = (rp_error){0};                                                                                           \
        test_##title(state);                                                                                           \
    }                                                                                                                  \
    static struct test test_entry_##title = {                                                                          \
        {.name = #title, .test_func = test_begin_##title, __VA_ARGS__}, __FILE__, __LINE__, NULL};                     \
    __attribute__((constructor)) static void test_add_##title(void)                                                    \
    {                                                                                                                  \
        test_add(&test_entry_##title);                                                                                 \
    }                                                                                                                  \
    static void test_##title(void **state __attribute__((unused)))

/* TEST whose body has a pointer of this type and name to what set_up has made. */
#define TEST_WITH(type, name, title, ...)                                                                              \
    static void test_with_##title(type *name);                                                                         \
    TEST(title, __VA_ARGS__)                                                                                           \
    {                                                                                                                  \
        test_with_##title(*state);                                                                                     \
    }                                                                                                                  \
    static void test_with_##title(type *name __attribute__((unused)))

/* FIXTURE(type, begin, end) before CASE(title) { ... }, which is a TEST whose body has `f`, a zeroed object of that type: begin(f) has been called, and
 * end(f) is called after the test, also if it failed. */
#define FIXTURE(type, begin, end)                                                                                      \
    typedef type fixture_type;                                                                                         \
    static int fixture_set_up(void **state)                                                                            \
    {                                                                                                                  \
        begin(*state = calloc(1, sizeof(type)));                                                                       \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int fixture_tear_down(void **state)                                                                         \
    {                                                                                                                  \
        end(*state);                                                                                                   \
        free(*state);                                                                                                  \
        return 0;                                                                                                      \
    }
#define CASE(title) TEST_WITH(fixture_type, f, title, fixture_set_up, fixture_tear_down)
