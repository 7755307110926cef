/* JSON text: what is written reads back with another parser. */

#include <json-c/json.h>

#include "proto/base/json.h"
#include "replay.pb-c.h"
#include "tests/support/test.h"

static struct json_object *parse(struct json *json)
{
    char *text = json_take(json);
    assert_non_null(text);
    enum json_tokener_error error;
    struct json_object *root = json_tokener_parse_verbose(text, &error);
    if (error != json_tokener_success)
        fail_msg("%s: %s", json_tokener_error_desc(error), text);
    free(text);
    return root;
}

static struct json_object *get(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    if (!json_object_object_get_ex(object, name, &value))
        fail_msg("no member '%s'", name);
    return value;
}

TEST(strings)
{
    struct json json = {0};
    json_open(&json, '[');
    json_string(&json, "plain \"quoted\" back\\slash\n\t\x01\x7f");
    json_string(&json, "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
    json_string(&json, "broken \xc3( \xff \xed\xa0\x80 \xc0\x80 \xe2\x82");
    json_string(&json, "");
    json_close(&json, ']');
    struct json_object *root = parse(&json);
    assert_int_equal(json_object_array_length(root), 4);
    assert_string_equal(json_object_get_string(json_object_array_get_idx(root, 0)),
                        "plain \"quoted\" back\\slash\n\t\x01\x7f");
    assert_string_equal(json_object_get_string(json_object_array_get_idx(root, 1)),
                        "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
    assert_non_null(strstr(json_object_get_string(json_object_array_get_idx(root, 2)), "broken \xef\xbf\xbd("));
    assert_string_equal(json_object_get_string(json_object_array_get_idx(root, 3)), "");
    json_object_put(root);
}

TEST(numbers)
{
    static const double doubles[] = {0, 0.1, 1e300, -2.5, 1.0 / 3, 5e-324, 123456789012345678.0};
    struct json json = {0};
    json_open(&json, '[');
    json_unsigned(&json, UINT64_MAX);
    json_signed(&json, INT64_MIN);
    json_double(&json, NAN);
    json_double(&json, INFINITY);
    json_double(&json, -INFINITY);
    json_float(&json, 0.1f);
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
        json_double(&json, doubles[i]);
    json_boolean(&json, true);
    json_close(&json, ']');
    char *text = json_take(&json);
    assert_memory_equal(
        text, "[18446744073709551615, -9223372036854775808, \"NaN\", \"Infinity\", \"-Infinity\", 0.1, 0, 0.1,",
        strlen("[18446744073709551615, -9223372036854775808, \"NaN\", \"Infinity\", \"-Infinity\", 0.1, 0, 0.1,"));
    struct json_object *root = json_tokener_parse(text);
    assert_non_null(root);
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
        assert_true(json_object_get_double(json_object_array_get_idx(root, 6 + i)) == doubles[i]);
    json_object_put(root);
    free(text);
}

TEST(message)
{
    Replay__InfoReply info = REPLAY__INFO_REPLY__INIT;
    Replay__ServerInfo server = REPLAY__SERVER_INFO__INIT;
    Replay__TableInfo table = REPLAY__TABLE_INFO__INIT, *tables[] = {&table};
    Replay__LimiterInfo limiter = REPLAY__LIMITER_INFO__INIT;
    Replay__SessionInfo session = REPLAY__SESSION_INFO__INIT, *sessions[] = {&session};
    uint8_t id[] = {0, 1, 0xab, 0xff};
    server.release = (char *)"1 \"x\"";
    server.instance = UINT64_MAX;
    limiter.max_diff = INFINITY;
    table.name = (char *)"replay";
    table.limiter = &limiter;
    session.session = (ProtobufCBinaryData){sizeof id, id};
    session.expired = 1;
    info.server = &server;
    info.n_tables = 1;
    info.tables = tables;
    info.n_sessions = 1;
    info.sessions = sessions;
    struct json json = {0};
    json_message(&json, &info.base);
    struct json_object *root = parse(&json);
    assert_string_equal(json_object_get_string(get(get(root, "server"), "release")), "1 \"x\"");
    assert_true(json_object_get_uint64(get(get(root, "server"), "instance")) == UINT64_MAX);
    struct json_object *first = json_object_array_get_idx(get(root, "tables"), 0);
    assert_string_equal(json_object_get_string(get(first, "name")), "replay");
    assert_string_equal(json_object_get_string(get(get(first, "limiter"), "max_diff")), "Infinity");
    first = json_object_array_get_idx(get(root, "sessions"), 0);
    assert_string_equal(json_object_get_string(get(first, "session")), "0001abff");
    assert_true(json_object_get_boolean(get(first, "expired")));
    assert_int_equal(json_object_array_length(get(root, "slots")), 0);
    json_object_put(root);
}

/* Of a oneof only the member that is set is written, also when its value is the default; enums by name. */
TEST(oneof_and_enum)
{
    struct json json = {0};
    Replay__Reduce reduce = REPLAY__REDUCE__INIT;
    reduce.op = REPLAY__REDUCE__OP__JOIN;
    json_message(&json, &reduce.base);
    struct json_object *root = parse(&json);
    assert_string_equal(json_object_get_string(get(root, "op")), "JOIN");
    assert_false(json_object_object_get_ex(root, "timeout_ms", NULL));
    json_object_put(root);
    reduce.has_timeout_ms_case = REPLAY__REDUCE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    reduce.timeout_ms = 0;
    json_message(&json, &reduce.base);
    root = parse(&json);
    assert_int_equal(json_object_get_int(get(root, "timeout_ms")), 0);
    json_object_put(root);

    Replay__Reply reply = REPLAY__REPLY__INIT;
    json_message(&json, &reply.base);
    root = parse(&json);
    assert_false(json_object_object_get_ex(root, "hello", NULL));
    json_object_put(root);
    json_message(&json, NULL);
    char *text = json_take(&json);
    assert_string_equal(text, "null");
    free(text);
}
