/* JSON text: what is written reads back with another parser. */

#include "proto/base/json.h"
#include "replay.pb-c.h"
#include "tests/support/parsed.h"

/* What was written, as json-c reads it. */
static json_object *parse(struct json *json)
{
    return parsed(owned(json_take(json)));
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
    json_object *root = parse(&json);
    assert_int_equal(json_object_array_length(root), 4);
    assert_string_equal(parsed_text(root, "/0"), "plain \"quoted\" back\\slash\n\t\x01\x7f");
    assert_string_equal(parsed_text(root, "/1"), "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
    assert_non_null(strstr(parsed_text(root, "/2"), "broken \xef\xbf\xbd("));
    assert_string_equal(parsed_text(root, "/3"), "");
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
    const char *text = owned(json_take(&json));
    static const char begin[] =
        "[18446744073709551615, -9223372036854775808, \"NaN\", \"Infinity\", \"-Infinity\", 0.1, 0, 0.1,";
    assert_memory_equal(text, begin, strlen(begin));
    json_object *root = parsed(text);
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
        assert_true(json_object_get_double(json_object_array_get_idx(root, 6 + i)) == doubles[i]);
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
    json_object *root = parse(&json);
    assert_string_equal(parsed_text(root, "/server/release"), "1 \"x\"");
    assert_true(json_object_get_uint64(parsed_at(root, "/server/instance")) == UINT64_MAX);
    assert_string_equal(parsed_text(root, "/tables/0/name"), "replay");
    assert_string_equal(parsed_text(root, "/tables/0/limiter/max_diff"), "Infinity");
    assert_string_equal(parsed_text(root, "/sessions/0/session"), "0001abff");
    assert_true(json_object_get_boolean(parsed_at(root, "/sessions/0/expired")));
    assert_int_equal(parsed_count(root, "/slots"), 0);
}

/* Of a oneof only the member that is set is written, also when its value is the default; enums by name. */
TEST(oneof_and_enum)
{
    struct json json = {0};
    Replay__Reduce reduce = REPLAY__REDUCE__INIT;
    reduce.op = REPLAY__REDUCE__OP__JOIN;
    json_message(&json, &reduce.base);
    json_object *root = parse(&json);
    assert_string_equal(parsed_text(root, "/op"), "JOIN");
    assert_false(json_object_object_get_ex(root, "timeout_ms", NULL));
    reduce.has_timeout_ms_case = REPLAY__REDUCE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    reduce.timeout_ms = 0;
    json_message(&json, &reduce.base);
    root = parse(&json);
    assert_near(parsed_number(root, "/timeout_ms"), 0, 0);

    Replay__Reply reply = REPLAY__REPLY__INIT;
    json_message(&json, &reply.base);
    root = parse(&json);
    assert_false(json_object_object_get_ex(root, "hello", NULL));
    json_message(&json, NULL);
    assert_string_equal(owned(json_take(&json)), "null");
}
