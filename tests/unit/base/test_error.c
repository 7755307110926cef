#include "proto/base/error.h"

#include "tests/support/test.h"

TEST(names_and_texts)
{
    assert_string_equal(rp_status_name(RP_OK), "OK");
    assert_string_equal(rp_status_name(RP_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
    assert_string_equal(rp_status_text(RP_UNAVAILABLE), "no broker answers");
    assert_string_equal(rp_status_name(-1), "UNKNOWN");
    assert_string_equal(rp_status_name(9999), "UNKNOWN");
    assert_non_null(rp_status_text(9999));
    const char *version = getenv("RP_VERSION");
    if (version)
        assert_string_equal(rp_version(), version);
}

/* The codes travel on the wire: a change here breaks every client that is out there. */
TEST(codes_are_fixed)
{
    static const char *const names[] = {
        "OK",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "UNSUPPORTED",
        "BAD_MESSAGE",
        "SESSION_UNKNOWN",
        "IN_DOUBT",
        "CANCELLED",
        "UNAVAILABLE",
        "DATA_LOSS",
        "CREDIT_EXCEEDED",
        "END_OF_STREAM",
        "NO_MEMORY",
        "IO",
        "INTERNAL",
    };
    for (int32_t i = 0; i < (int32_t)(sizeof names / sizeof *names); i++)
        assert_string_equal(rp_status_name(i), names[i]);
}

TEST(set_and_prefix)
{
    assert_int_equal(err_set(&err, RP_NOT_FOUND, "no table '%s'", "replay"), RP_NOT_FOUND);
    assert_int_equal(err.status, RP_NOT_FOUND);
    assert_string_equal(err.text, "no table 'replay'");
    err_prefix(&err, "item %d", 7);
    assert_string_equal(err.text, "item 7: no table 'replay'");
    assert_int_equal(err.status, RP_NOT_FOUND);
    assert_int_equal(err_set(&err, RP_IO, "again: %s", err.text), RP_IO);
    assert_string_equal(err.text, "again: item 7: no table 'replay'");
    assert_int_equal(err_set(NULL, RP_INTERNAL, "x"), RP_INTERNAL);
    err_prefix(NULL, "x");
}

TEST(long_texts_are_cut_between_characters)
{
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    err_set(&err, RP_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    err_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    /* Two-byte characters that start at an odd place: the last one does not fit whole. */
    for (size_t i = 0; i + 1 < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    text[sizeof text - 2] = '\0';
    err_set(&err, RP_IO, "%s", text);
    assert_int_equal(strlen(err.text), 506);
    err_set(&err, RP_IO, "a%s", text);
    assert_int_equal(strlen(err.text), 507);
    assert_int_equal((unsigned char)err.text[506], 0xa9);
}
