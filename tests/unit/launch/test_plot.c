/* Charts: boxes of characters that keep their size, whatever is drawn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plot.h"
#include "tests/support/test.h"

TEST(odd)
{
    static const double odd[][3] = {
        {5, 5, 5},
        {0, 0, 0},
        {-3, -3, -3},
        {1e308, -1e308, 1},
        {1e18, 1e18 + 1, 1e18},
        {1e-300, 2e-300, 0},
        {NAN, NAN, NAN},
        {INFINITY, -INFINITY, NAN},
        {1e199, -1e199, 0},
        {5e-324, 5e-324, 5e-324},
        {-1, 1e12, 0.001},
        {1e9, 1e9, 1e9 + 1e-6},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
            for (uint32_t n = 0; n <= 3; n++) {
                struct plot plot = {.n_lines = 1,
                                    .from_zero = n & 1,
                                    .lines = {{.name = "odd", .x = odd[i], .y = odd[k], .n = n, .points = true}}};
                struct text out = {0};
                plot_text(&out, &plot, 60, 12, n & 1);
                assert_true(out.size > 0 && out.size < 4000);
                assert_null(strstr(text_get(&out), "nan"));
                text_fini(&out);
            }
        }
    }
    struct plot empty = {.title = "nothing", .x_label = "x"};
    struct text out = {0};
    plot_text(&out, &empty, 60, 12, true);
    assert_string_equal(text_get(&out), "nothing\nno data\n");
    text_fini(&out);
}

/* The labels of the y axis, from below. */
static void labels_of(double low, double high, char *out, size_t size)
{
    const double x[] = {0, 1}, y[] = {low, high};
    struct plot plot = {.n_lines = 1, .lines = {{.x = x, .y = y, .n = 2}}};
    struct text text = {0};
    plot_text(&text, &plot, 60, 12, false);
    snprintf(out, size, "%s", "");
    for (const char *at = text_get(&text); *at; at += strcspn(at, "\n") + 1) {
        char before[512], label[16];
        const char *tick = strstr(at, " +");
        if (!tick || tick > at + strcspn(at, "\n") || tick - at > 12)
            continue;
        const char *from = at + strspn(at, " ");
        snprintf(before, sizeof before, "%s", out);
        snprintf(label, sizeof label, "%.*s", (int)(tick > from ? tick - from : 0), from);
        snprintf(out, size, "%s%s%s", label, label[0] && before[0] ? ", " : "", before);
    }
    text_fini(&text);
}

TEST(axes)
{
    static const struct {
        double low, high;
        const char *labels;
    } cases[] = {{0, 475, "0, 100, 200, 300, 400, 500"},
                 {-200, -100, "-200, -180, -160, -140, -120, -100"},
                 {0, 1, "0.0, 0.2, 0.4, 0.6, 0.8, 1.0"},
                 {0, 60000, "0, 20 k, 40 k, 60 k"},
                 {0, 0.3, "0.0, 0.1, 0.2, 0.3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char labels[512];
        labels_of(cases[i].low, cases[i].high, labels, sizeof labels);
        assert_string_equal(labels, cases[i].labels);
    }
}

TEST(text)
{
    const double x[] = {0, 1, 2, 3}, y[] = {0, 1, 2, 3};
    struct plot plot = {.title = "t", .x_label = "n", .n_lines = 1, .lines = {{.x = x, .y = y, .n = 4}}};
    struct text out = {0};
    plot_text(&out, &plot, 24, 8, false);
    assert_string_equal(text_get(&out), "t\n"
                                        "4 +\n"
                                        "  |                 ****\n"
                                        "2 +    *************\n"
                                        "0 +****\n"
                                        "  ++------------+-------\n"
                                        "   0            2\n"
                                        "             n\n");
    text_fini(&out);
}

/* Never more than asked for, in any size. */
TEST(text_fits)
{
    double x[100], y[100], z[100];
    for (int i = 0; i < 100; i++) {
        x[i] = i * 1234.5;
        y[i] = 1e5 * sin(i * 0.1);
        z[i] = i % 7 ? i * 500.0 : NAN;
    }
    struct plot plot = {.title = "title that is rather long for a small box",
                        .y_label = "y",
                        .x_label = "steps",
                        .n_lines = 2,
                        .lines = {{.name = "one", .x = x, .y = y, .n = 100},
                                  {.name = "two", .x = x, .y = z, .n = 100, .points = true}}};
    for (uint32_t columns = 24; columns < 140; columns += 3) {
        for (uint32_t rows = 8; rows < 40; rows += 5) {
            struct text out = {0};
            plot_text(&out, &plot, columns, rows, rows % 2);
            uint32_t lines = 0;
            for (const char *at = text_get(&out); *at; lines++) {
                char line[2048];
                size_t size = strcspn(at, "\n");
                snprintf(line, sizeof line, "%.*s", (int)size, at);
                assert_true(format_width(line) <= columns);
                at += size + 1;
            }
            assert_true(lines <= rows);
            text_fini(&out);
        }
    }
    struct text out = {0};
    plot_text(&out, &plot, 80, 20, true);
    assert_non_null(strstr(text_get(&out), "○")); /* points of the second line */
    assert_non_null(strstr(text_get(&out), "└"));
    text_fini(&out);
}
