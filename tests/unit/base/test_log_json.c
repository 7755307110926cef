/* Log lines as JSON objects: types, escapes, lines that are too long, and fields of any bytes. */
#include <json-c/json.h>

#include "proto/base/log.h"
#include "proto/base/utf8.h"
#include "tests/support/naive.h"

/* Parses a line strictly; fails unless it is one whole object on one line. */
static json_object *parse(const char *line, size_t size)
{
    json_tokener *tokener = json_tokener_new();
    char ascii[4096]; /* json-c 0.18 refuses all other bytes when it is strict */
    assert_true(size <= sizeof ascii);
    assert_true(size > 2 && line[size - 1] == '\n' && memchr(line, '\n', size) == line + size - 1);
    assert_true(utf8_valid(line, size));
    for (size_t i = 0; i < size; i++)
        ascii[i] = line[i] & 0x80 ? '?' : line[i];
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    json_object_put(json_tokener_parse_ex(tokener, ascii, (int)size - 1));
    assert_int_equal(json_tokener_get_error(tokener), json_tokener_success);
    json_tokener_set_flags(tokener, 0);
    json_object *object = json_tokener_parse_ex(tokener, line, (int)size - 1);
    if (json_tokener_get_error(tokener) != json_tokener_success || !json_object_is_type(object, json_type_object))
        fail_msg("no JSON: %.*s", (int)size, line);
    json_tokener_free(tokener);
    return object;
}

static json_object *converted(const char *fields)
{
    char line[4096];
    const struct log_parts parts = {"2026-01-31T12:00:00.123Z", "warn", "B0103", "session expired", fields};
    return parse(line, log_json(line, sizeof line, &parts));
}

static void assert_member(json_object *object, const char *name, json_type type, const char *text)
{
    json_object *value = NULL;
    assert_true(json_object_object_get_ex(object, name, &value));
    assert_int_equal(json_object_get_type(value), type);
    assert_string_equal(json_object_get_string(value), text);
}

TEST(members)
{
    json_object *object =
        converted("name=actor-3 ordinal=7 silent_s=30.2 ratio=-1.5e-3 why=\"no \\\"room\\\": a=1\\n\" ok=true "
                  "client=1234567890123456 zeros=007 place=in the rack of=x text=\"inner\" empty= nan=nan");
    assert_member(object, "time", json_type_string, "2026-01-31T12:00:00.123Z");
    assert_member(object, "level", json_type_string, "warn");
    assert_member(object, "id", json_type_string, "B0103");
    assert_member(object, "text", json_type_string, "session expired");
    assert_member(object, "name", json_type_string, "actor-3");
    assert_member(object, "ordinal", json_type_int, "7");
    assert_member(object, "silent_s", json_type_double, "30.2");
    assert_member(object, "ratio", json_type_double, "-1.5e-3");
    assert_member(object, "why", json_type_string, "no \"room\": a=1\n");
    assert_member(object, "ok", json_type_boolean, "true");
    assert_member(object, "client", json_type_string, "1234567890123456");
    assert_member(object, "zeros", json_type_string, "007");
    assert_member(object, "place", json_type_string, "in the rack");
    assert_member(object, "of", json_type_string, "x");
    assert_member(object, "text_", json_type_string, "inner");
    assert_member(object, "empty", json_type_string, "");
    assert_member(object, "nan", json_type_string, "nan");
    json_object_put(object);
}

/* Whatever log_quote writes comes out as it was, as far as it is UTF-8. */
TEST(quoted)
{
    static const char *const texts[] = {"",        "a \\ b",        "\"",          "tab\there",
                                        "\x1b[2J", "größer → 日本", "a=1 b=\"2\"", "\\x41"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char quoted[128], fields[160];
        snprintf(fields, sizeof fields, "a=1 why=%s b=2", log_quote(quoted, sizeof quoted, texts[i]));
        json_object *object = converted(fields);
        assert_member(object, "why", json_type_string, texts[i]);
        assert_member(object, "b", json_type_int, "2");
        json_object_put(object);
    }
}

TEST(any_bytes)
{
    static const char pieces[] = " ==\"\"\\\\xx01ab_ab \xc3\xa4\xe6\x97\xff\x80.-e\n\t\x1b{}[],:";
    struct rng rng = rng_of(15);
    for (int i = 0; i < 20000; i++) {
        char fields[2048], line[4096];
        size_t n = rng_below(&rng, i % 10 ? 60 : sizeof fields), size = 512 + rng_below(&rng, sizeof line - 512);
        for (size_t k = 0; k < n; k++)
            fields[k] = pieces[rng_below(&rng, sizeof pieces - 1)];
        fields[n] = '\0';
        size_t used = log_json(line, size, &(struct log_parts){"t", "info", "X", "any", fields});
        assert_true(used <= size);
        json_object_put(parse(line, used));
    }
}

/* Through the log itself: a line of any length is one object, of at most one page. */
TEST(log)
{
    char path[] = "/tmp/rp_log_json_XXXXXX", large[6000], text[8192];
    int fd = mkstemp(path);
    assert_true(fd >= 0 && !log_is_json());
    log_set_json(true);
    log_set_level(LEVEL_INFO);
    assert_int_equal(log_open(path, NULL), RP_OK);
    memset(large, 'y', sizeof large);
    large[sizeof large - 1] = '\0';
    for (size_t length = 0; length < sizeof large; length += 97) {
        assert_int_equal(ftruncate(fd, 0), 0);
        log_line(LEVEL_WARN, "B0001", "long", "n=%zu name=\"%s\" last=1", length, large + sizeof large - 1 - length);
        ssize_t n = pread(fd, text, sizeof text, 0);
        assert_in_range(n, 60, 4096);
        json_object *object = parse(text, (size_t)n);
        assert_member(object, "level", json_type_string, "warn");
        json_object_put(object);
    }
    log_open("-", NULL);
    log_set_json(false);
    close(fd);
    unlink(path);
}
