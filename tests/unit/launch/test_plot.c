/* Charts: SVG that is well-formed whatever is drawn, and boxes of characters that keep their size. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plot.h"
#include "tests/support/test.h"

/* Tags are balanced, and no coordinate is something else than a number. */
static void assert_well_formed(const char *text)
{
    char open[32][16];
    uint32_t depth = 0;
    for (const char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        assert_non_null(end);
        size_t name = strcspn(at + 1 + (at[1] == '/'), " />");
        if (at[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_int_equal(strlen(open[depth]), name);
            assert_memory_equal(open[depth], at + 2, name);
        } else if (end[-1] != '/') {
            assert_true(depth < 32 && name < 16);
            snprintf(open[depth++], 16, "%.*s", (int)name, at + 1);
        }
    }
    assert_int_equal(depth, 0);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf\""));
}

static uint32_t count(const char *text, const char *what)
{
    uint32_t n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + strlen(what), what))
        n++;
    return n;
}

/* The path of the line with this name; it ends at a quote. */
static const char *path_of(const char *svg, const char *name)
{
    char title[64];
    snprintf(title, sizeof title, "\"><title>%s</title></path>", name);
    const char *end = strstr(svg, title);
    assert_non_null(end);
    const char *at = end;
    while (at[-1] != '"')
        at--;
    static char path[1 << 17];
    assert_true((size_t)(end - at) < sizeof path);
    snprintf(path, sizeof path, "%.*s", (int)(end - at), at);
    return path;
}

TEST(line)
{
    const double x[] = {0, 50, 100}, y[] = {0, 250, 500};
    struct plot plot = {.title = "A <title> & \"more\"",
                        .x_label = "steps",
                        .y_label = "return",
                        .n_lines = 1,
                        .lines = {{.name = "only", .x = x, .y = y, .n = 3}}};
    struct text out = {0};
    plot_svg(&out, &plot, 600, 300);
    const char *svg = text_get(&out);
    assert_well_formed(svg);
    assert_non_null(strstr(svg, "A &lt;title&gt; &amp; &quot;more&quot;"));
    assert_non_null(strstr(svg, ">500<"));
    assert_non_null(strstr(svg, ">100<"));
    assert_non_null(strstr(svg, ">return<"));
    assert_null(strstr(svg, ">only</text>")); /* one line needs no legend */
    /* A straight line from the lower left corner of the axes to the upper right. */
    double points[3][2];
    assert_int_equal(sscanf(path_of(svg, "only"), "M%lf %lfL%lf %lfL%lf %lf", &points[0][0], &points[0][1],
                            &points[1][0], &points[1][1], &points[2][0], &points[2][1]),
                     6);
    assert_true(points[0][0] == 72 && points[2][0] == 580 && points[0][1] == 256 && points[2][1] == 38);
    assert_true(fabs(points[1][0] - 326) < 0.2 && fabs(points[1][1] - 147) < 0.2);
    text_fini(&out);
}

TEST(several)
{
    const double x[] = {0, 1}, y[] = {1, 2};
    struct plot plot = {.n_lines = 12};
    static const char *const names[] = {"achieved", "predicted", "other", "d", "e", "f", "g", "h"};
    for (uint32_t i = 0; i < PLOT_MAX_LINES; i++)
        plot.lines[i] = (struct plot_line){.name = names[i], .x = x, .y = y, .n = 2, .dashed = i == 1};
    struct text out = {0};
    plot_svg(&out, &plot, 100, 10);
    assert_well_formed(text_get(&out));
    assert_non_null(strstr(text_get(&out), ">predicted</text>"));
    /* Legend and line each; what is dashed has the colour of the line before it. */
    assert_int_equal(count(text_get(&out), "class=\"line c0\""), 2);
    assert_int_equal(count(text_get(&out), "class=\"line c0 dashed\""), 2);
    assert_int_equal(count(text_get(&out), "class=\"line c1\""), 2);
    text_fini(&out);
}

TEST(gaps)
{
    const double x[] = {0, 1, 2, 3, 4, 5, 6}, y[] = {1, 2, NAN, 3, INFINITY, 4, 5};
    struct plot plot = {.n_lines = 1, .lines = {{.name = "gaps", .x = x, .y = y, .n = 7}}};
    struct text out = {0};
    plot_svg(&out, &plot, 600, 300);
    assert_well_formed(text_get(&out));
    assert_int_equal(count(path_of(text_get(&out), "gaps"), "M"), 3);
    assert_int_equal(count(text_get(&out), "<circle"), 1); /* the one between the gaps */
    text_fini(&out);
}

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
                plot_svg(&out, &plot, 500, 200);
                assert_well_formed(text_get(&out));
                assert_true(out.size < 20000);
                plot_text(&out, &plot, 60, 12, n & 1);
                text_fini(&out);
            }
        }
    }
    struct plot empty = {.title = "nothing", .x_label = "x"};
    struct text out = {0};
    plot_svg(&out, &empty, 500, 200);
    assert_well_formed(text_get(&out));
    assert_non_null(strstr(text_get(&out), ">no data<"));
    text_fini(&out);
    plot_text(&out, &empty, 60, 12, true);
    assert_string_equal(text_get(&out), "nothing\nno data\n");
    text_fini(&out);
}

TEST(axes)
{
    static const struct {
        double low, high, step;
        uint32_t ticks;
    } cases[] = {{0, 475, 100, 6}, {-200, -100, 20, 6}, {0, 1, 0.2, 6}, {3, 97, 20, 6}, {0, 60000, 20000, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double x[] = {0, 1}, y[] = {cases[i].low, cases[i].high};
        struct plot plot = {.n_lines = 1, .lines = {{.x = x, .y = y, .n = 2}}};
        struct plot_axis a, b;
        assert_true(plot_axes(&plot, 5, 5, &a, &b));
        assert_true(fabs(b.step / cases[i].step - 1) < 1e-9);
        assert_int_equal(b.ticks, cases[i].ticks);
        assert_true(b.low <= cases[i].low && b.high >= cases[i].high);
    }
    char label[FORMAT_SIZE];
    struct plot_axis axis = {.low = 0, .high = 60000, .step = 20000};
    assert_string_equal(plot_label(&axis, 40000, label), "40 k");
    assert_string_equal(plot_label(&axis, 0, label), "0");
    axis = (struct plot_axis){.low = 0, .high = 0.5, .step = 0.05};
    assert_string_equal(plot_label(&axis, 0.15, label), "0.15");
    axis = (struct plot_axis){.low = 0, .high = 12000, .step = 500};
    assert_string_equal(plot_label(&axis, 2500, label), "2.5 k");
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
                                  {.name = "two", .x = x, .y = z, .n = 100, .points = true, .dashed = true}}};
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

TEST(escape)
{
    struct text out = {0};
    plot_escape(&out, "a<b>&\"c'\x01\x1b[31m\tü");
    assert_string_equal(text_get(&out), "a&lt;b&gt;&amp;&quot;c&#39;??[31m\tü");
    text_fini(&out);
    plot_escape(&out, NULL);
    assert_string_equal(text_get(&out), "");
    text_fini(&out);
}
