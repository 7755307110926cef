/* Structs as JSON and back: one table for both directions. */

#include "proto/base/json_map.h"
#include "tests/support/parsed.h"

enum colour { RED, GREEN, BLUE };

struct point {
    uint32_t count;
    double rate;
};

struct whole {
    char name[8];
    double known, unknown;
    uint64_t big;
    uint32_t small;
    int32_t sign;
    bool flag;
    enum colour colour;
    struct {
        double inner[2];
    } deep;
    struct point one, many[3];
    uint32_t n_many;
};

static const char *const colours[] = {[RED] = "red", [GREEN] = "green", [BLUE] = "blue"};

static const struct json_row point_rows[] = {JSON_ROW(struct point, count), JSON_REAL(struct point, rate, NAN), {0}};

static const struct json_row whole_rows[] = {
    JSON_ROW(struct whole, name),
    JSON_ROW(struct whole, known),
    JSON_REAL(struct whole, unknown, NAN),
    JSON_ROW(struct whole, big),
    JSON_ROW(struct whole, small),
    JSON_ROW(struct whole, sign),
    JSON_ROW(struct whole, flag),
    JSON_WORD(struct whole, colour, colours, GREEN),
    JSON_ROW_AS("second", struct whole, deep.inner[1], -1),
    JSON_OBJECT(struct whole, one, point_rows),
    JSON_LIST(struct whole, many, n_many, point_rows),
    {0},
};

static const struct whole sample = {"a\"b", 0.1,  NAN,        UINT64_MAX, UINT32_MAX,          5,
                                    true,   BLUE, {{7, 2.5}}, {1, 10},    {{2, 20}, {3, NAN}}, 2};

static const char sample_text[] =
    "{\"name\": \"a\\\"b\", \"known\": 0.1, \"unknown\": null, \"big\": 18446744073709551615, \"small\": 4294967295, "
    "\"sign\": 5, \"flag\": true, \"colour\": \"blue\", \"second\": 2.5, \"one\": {\"count\": 1, \"rate\": 10}, "
    "\"many\": [{\"count\": 2, \"rate\": 20}, {\"count\": 3, \"rate\": null}]}";

static bool read_text(const char *text, struct whole *out)
{
    return json_map_read(parsed(text), whole_rows, out);
}

static const char *text_of(const struct whole *whole)
{
    struct json json = {0};
    json_open(&json, '{');
    json_map_write(&json, whole_rows, whole);
    json_close(&json, '}');
    return owned(json_take(&json));
}

TEST(text)
{
    assert_string_equal(text_of(&sample), sample_text);
}

TEST(tree)
{
    struct json_object *tree = json_map_object(whole_rows, &sample);
    assert_true(json_object_equal(tree, parsed(sample_text)));
    json_object_put(tree);
}

TEST(back)
{
    struct whole out;
    memset(&out, 0xa5, sizeof out);
    assert_true(read_text(sample_text, &out));
    assert_string_equal(text_of(&out), sample_text);
}

/* Nothing to read: every member has its absent value. */
TEST(absent)
{
    static const char *const texts[] = {
        "null", "[]", "{}", "7",
        "{\"name\": 1, \"known\": \"x\", \"unknown\": [], \"big\": {}, \"small\": null, \"sign\": \"3\", \"flag\": [], "
        "\"colour\": \"pink\", \"second\": true, \"one\": 4, \"many\": {}}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct whole out;
        memset(&out, 0xa5, sizeof out);
        assert_false(read_text(texts[i], &out));
        assert_string_equal(out.name, "");
        assert_true(out.known == 0 && isnan(out.unknown) && out.deep.inner[1] == -1);
        assert_true(out.big == 0 && out.small == 0 && out.sign == 0 && !out.flag);
        assert_int_equal(out.colour, GREEN);
        assert_true(out.one.count == 0 && isnan(out.one.rate));
        assert_int_equal(out.n_many, 0);
    }
}

/* Values out of range are cut to it, and the reader says so. */
TEST(range)
{
    static const struct {
        const char *text;
        uint32_t count;
        double rate;
        bool ok;
    } cases[] = {
        {"{\"count\": 4294967295, \"rate\": 3}", UINT32_MAX, 3, true},
        {"{\"count\": 4294967296, \"rate\": 3}", UINT32_MAX, 3, false},
        {"{\"count\": -1, \"rate\": 3}", 0, 3, false},
        {"{\"count\": 2.9, \"rate\": 3}", 2, 3, false},
        {"{\"count\": 1e300, \"rate\": 3}", UINT32_MAX, 3, false},
        {"{\"count\": 1, \"rate\": 1e999}", 1, NAN, true},
        {"{\"count\": 1, \"rate\": null}", 1, NAN, true},
        {"{\"count\": 1}", 1, NAN, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct point out = {0};
        assert_int_equal(json_map_read(parsed(cases[i].text), point_rows, &out), cases[i].ok);
        assert_int_equal(out.count, cases[i].count);
        assert_true(isnan(cases[i].rate) ? isnan(out.rate) : out.rate == cases[i].rate);
    }
    struct whole out;
    assert_false(read_text("{\"name\": \"longer than it\", \"many\": [{}, {}, {}, {}, {}]}", &out));
    assert_string_equal(out.name, "longer ");
    assert_int_equal(out.n_many, 3);
}
