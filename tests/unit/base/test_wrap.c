/* Lines broken between words: nothing is lost, nothing is too wide, and tables stay tables. */

#include "proto/base/format.h"
#include "tests/support/naive.h"

static char *wrap(const char *text, uint32_t columns)
{
    struct text out = {0};
    format_wrap(&out, text, columns);
    char *copy = strdup(text_get(&out));
    text_fini(&out);
    return copy;
}

static void check(const char *text, uint32_t columns, const char *expected)
{
    char *got = wrap(text, columns);
    assert_string_equal(got, expected);
    free(got);
}

TEST(examples)
{
    check("", 40, "");
    check("short\n\nlines\n", 40, "short\n\nlines\n");
    check("no end", 40, "no end\n");
    check("  because     the highest rate within 2 cores\n", 30,
          "  because     the highest rate\n              within 2 cores\n");
    check("actors  learners  why\n     2         1  same inserts with one more process\n", 40,
          "actors  learners  why\n     2         1  same inserts with one\n                  more process\n");
    check("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bb\n", 20, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nbb\n");
    check("\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4 12345 12345\n", 21,
          "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4 12345 12345\n");
}

TEST(frame)
{
    struct text out = {0};
    terminal_add_frame(&out, "one\n\nlast");
    assert_string_equal(text_get(&out), "one\x1b[K\n\x1b[K\nlast\x1b[K\n\x1b[J");
    text_fini(&out);
}

/* The words come out as they went in, and a line is wider than asked for only if it is one word. */
TEST(any)
{
    struct rng rng = rng_of(3);
    for (int round = 0; round < 2000; round++) {
        char text[400];
        size_t n = rng_next(&rng) % (sizeof text - 1);
        for (size_t i = 0; i < n; i++)
            text[i] = "abcdefghi   \n"[rng_next(&rng) % 13];
        text[n] = '\0';
        uint32_t columns = 20 + (uint32_t)(rng_next(&rng) % 60);
        char *got = wrap(text, columns), *a_save = NULL, *b_save = NULL, *copy = strdup(got);
        for (char *line = got; *line; line += strcspn(line, "\n") + 1) {
            size_t size = strcspn(line, "\n"), blanks = strspn(line, " ");
            assert_true(size <= columns || blanks >= size || !memchr(line + blanks, ' ', size - blanks));
        }
        char *a = strtok_r(text, " \n", &a_save), *b = strtok_r(copy, " \n", &b_save);
        for (; a && b; a = strtok_r(NULL, " \n", &a_save), b = strtok_r(NULL, " \n", &b_save))
            assert_string_equal(a, b);
        assert_true(a == NULL && b == NULL);
        free(got);
        free(copy);
    }
}
