/* What top and the launcher's view have in common: ranks of lines, keys, lists that are sorted and scrolled. */

#include "agent/view/tui.h"
#include "tests/support/naive.h"

/* ---- lines ---- */

/* Whatever a text contains, a line shows it in as many columns as format_width says, and in no more than its limit. */
TEST(widths)
{
    static const char *const parts[] = {"a",    "\xc3\xa4", "\xe6\xbc\xa2", "\x01",    "\x1b",
                                        "\xff", "\xcc\x88", "\xe2\x80\xae", "\xc2\x9b"};
    struct rng rng = rng_of(3);
    for (int round = 0; round < 3000; round++) {
        char text[64] = "";
        for (uint32_t i = (uint32_t)rng_below(&rng, 12); i > 0; i--)
            strcat(text, parts[rng_below(&rng, sizeof parts / sizeof *parts)]);
        struct line any = {.utf8 = true}, small = {.utf8 = true, .limit = 1 + (uint32_t)rng_below(&rng, 8)};
        line_put(&any, TINT_NONE, "%s", text);
        line_put(&small, TINT_NONE, "%s", text);
        assert_int_equal(any.width, format_width(text));
        assert_int_equal(any.width, format_width(text_get(&any.text)));
        assert_true(small.width <= small.limit && format_width(text_get(&small.text)) == small.width);
        assert_null(strpbrk(text_get(&any.text), "\x01\x1b\xff"));
        line_fini(&any);
        line_fini(&small);
    }
}

/* ---- canvases ---- */

TEST(ranks)
{
    for (uint32_t rows = 1; rows <= 12; rows++) {
        struct canvas_style style = {.columns = 20, .rows = rows};
        struct canvas canvas = {.style = &style};
        struct text out = {0};
        uint32_t lines = 0;
        for (uint32_t i = 0; i < 10; i++)
            line_put(canvas_line(&canvas, i % 3), TINT_NONE, "%u", i);
        canvas_write(&canvas, &out);
        for (const char *at = text_get(&out); *at; lines++, at = strchr(at, '\n') + 1)
            if (rows <= 4) /* of rank 0 there are four */
                assert_int_equal((at[0] - '0') % 3, 0);
        assert_int_equal(lines, rows < 10 ? rows : 10);
        assert_int_equal(canvas.n, 0);
        text_fini(&out);
    }
}

/* A long text goes on below, nothing of it is lost, also if its characters take two columns each. */
TEST(wrapped)
{
    static const char *const words[] = {"\xe6\xbc\xa2", "ab "};
    for (size_t i = 0; i < 2; i++) {
        struct canvas_style style = {.columns = 41, .utf8 = true};
        struct canvas canvas = {.style = &style};
        struct text text = {0}, out = {0};
        for (int k = 0; k < 40; k++)
            text_add(&text, "%s", words[i]);
        canvas_wrapped(&canvas, 0, "waits", TINT_NONE, text_get(&text), 9);
        for (uint32_t k = 0; k < canvas.n; k++)
            assert_true(canvas.lines[k].width <= 41);
        canvas_write(&canvas, &out);
        uint32_t found = 0;
        for (const char *at = text_get(&out); (at = strstr(at, i ? "ab" : words[0])); at++)
            found++;
        assert_int_equal(found, 40);
        text_fini(&text);
        text_fini(&out);
    }
}

TEST(full_sheet)
{
    struct canvas_style style = {0};
    struct canvas canvas = {.style = &style};
    struct text out = {0};
    for (uint32_t i = 0; i < CANVAS_MAX; i++)
        line_put(canvas_row(&canvas, 1000, "x"), TINT_NONE, "shown");
    canvas_cursor(&canvas, 0, "x", 0, -1, 1);
    canvas_wrapped(&canvas, 0, "x", TINT_NONE, "a text", 3);
    canvas_write(&canvas, &out);
    assert_int_equal(out.size, CANVAS_MAX * strlen(" x         shown\n"));
    text_fini(&out);
}

TEST(cursor)
{
    static const struct {
        double at, low, high;
        const char *wanted; /* NULL: no row */
    } cases[] = {
        {0, -10, 10, "..........o......... 0 in -10..10\n"},
        {-10, -10, 10, "o................... -10 in -10..10\n"},
        {99, -10, 10, "...................o 99 in -10..10\n"},
        {0, -1e308, 10, NULL},
        {0, 5, 5, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct canvas_style style = {.columns = 80};
        struct canvas canvas = {.style = &style};
        struct text out = {0};
        struct line *line = canvas_cursor(&canvas, 0, "cursor", cases[i].at, cases[i].low, cases[i].high);
        assert_int_equal(line != NULL, cases[i].wanted != NULL);
        canvas_write(&canvas, &out);
        if (cases[i].wanted)
            assert_non_null(strstr(text_get(&out), cases[i].wanted));
        text_fini(&out);
    }
}

/* ---- keys ---- */

TEST(keys)
{
    struct tui tui = {.n_rows = 100, .page = 10};
    assert_int_equal(tui_take(&tui, TUI_KEY_NONE), TUI_SAME);
    assert_int_equal(tui_take(&tui, TUI_KEY_QUIT), TUI_SAME); /* q does not end a run */
    tui.quits = true;
    assert_int_equal(tui_take(&tui, TUI_KEY_QUIT), TUI_QUIT);
    assert_int_equal(tui_take(&tui, TUI_KEY_HELP), TUI_CHANGED);
    assert_true(tui.help);
    assert_int_equal(tui_take(&tui, TUI_KEY_QUIT), TUI_CHANGED); /* leaves the help */
    assert_false(tui.help);
    tui_take(&tui, TUI_KEY_PAUSE);
    assert_true(tui.paused && !tui.chosen);
    tui_take(&tui, TUI_KEY_PAUSE);
    assert_false(tui.paused);
    tui_take(&tui, TUI_KEY_PAGE_DOWN);
    assert_true(tui.first == 9 && tui.chosen);
    tui_take(&tui, TUI_KEY_SORT);
    assert_true(tui.first == 0 && tui.sort == 1);
    tui_take(&tui, TUI_KEY_UP);
    assert_int_equal(tui.first, 0);
    for (int i = 0; i < 200; i++)
        tui_take(&tui, TUI_KEY_DOWN);
    assert_int_equal(tui.first, 90);
}

/* ---- lists ---- */

struct row {
    char name[32];
    uint32_t value;
};

static void cell_name(char *out, const void *row)
{
    snprintf(out, FORMAT_SIZE, "%s", ((const struct row *)row)->name);
}

static void cell_value(char *out, const void *row)
{
    snprintf(out, FORMAT_SIZE, "%u", ((const struct row *)row)->value);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static int by_value(const void *a, const void *b)
{
    const struct row *p = a, *q = b;
    return p->value != q->value ? (p->value < q->value) - (p->value > q->value) : by_name(a, b);
}

static const struct list_column columns[] = {{"name", 10, true, cell_name, by_name},
                                             {"nothing", 7, true, cell_name, NULL},
                                             {"value", 6, false, cell_value, by_value}};

/* The k-th row in the order by value: as many have a larger value. */
static bool is_kth(const struct row *rows, uint32_t n, uint32_t value, uint32_t k)
{
    uint32_t larger = 0, equal = 0;
    for (uint32_t i = 0; i < n; i++) {
        larger += rows[i].value > value;
        equal += rows[i].value == value;
    }
    return larger <= k && k < larger + equal;
}

/* Any number of rows, any size, any keys: the part that is seen is that of the sorted list, and it fits. */
TEST(list)
{
    struct rng rng;
    struct tui tui = {0};
    rng_seed(&rng, 7);
    for (int round = 0; round < 3000; round++) {
        struct row rows[60];
        uint32_t n = (uint32_t)rng_below(&rng, 60), most = (uint32_t)rng_below(&rng, 20);
        for (uint32_t i = 0; i < n; i++) {
            rows[i].value = (uint32_t)rng_below(&rng, 30);
            snprintf(rows[i].name, sizeof rows[i].name, "\xc3\xa4%u%s", i, i % 5 ? "" : "-with-a-long-name");
        }
        tui_take(&tui, (enum tui_key)rng_below(&rng, TUI_KEY_PAGE_DOWN + 1));
        struct canvas_style style = {.columns = 5 + (uint32_t)rng_below(&rng, 40), .utf8 = true};
        struct canvas canvas = {.style = &style};
        const struct list list = {.columns = columns, .n_columns = 3, .rows = rows, .n_rows = n, .size = sizeof *rows};
        list_add(&canvas, 0, &list, &tui, most);
        uint32_t shown = n < most - 1 ? n : most - 1;
        assert_int_equal(canvas.n, most < 2 || n == 0 ? 0 : shown + 1);
        assert_true(tui.first + tui.page <= n || canvas.n == 0);
        for (uint32_t i = 1; i < canvas.n; i++) {
            const char *text = text_get(&canvas.lines[i].text), *number = strrchr(text, ' ');
            assert_true(format_width(text) <= style.columns);
            if (tui.sort % 2 == 1 && style.columns >= 28)
                assert_true(is_kth(rows, n, (uint32_t)strtoul(number, NULL, 10), tui.first + i - 1));
        }
        struct text out = {0};
        canvas_write(&canvas, &out);
        if (most >= 2 && n && style.columns >= 28) /* the order is marked by more than a colour */
            assert_non_null(strstr(text_get(&out), tui.sort % 2 ? "value▾" : "name▾"));
        text_fini(&out);
    }
}
