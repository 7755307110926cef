
#include "proto/base/utf8.h"
#include "tests/support/test.h"

static void check(const char *in, const char *cleaned)
{
    char buffer[64];
    size_t size = strlen(in);
    memcpy(buffer, in, size + 1);
    assert_int_equal(utf8_valid(in, size), strcmp(in, cleaned) == 0);
    utf8_clean(buffer, size);
    assert_string_equal(buffer, cleaned);
    assert_true(utf8_valid(buffer, size));
}

TEST(accepts_text_and_replaces_the_rest)
{
    check("", "");
    check("plain", "plain");
    check("gr\xc3\xb6\xc3\x9f", "gr\xc3\xb6\xc3\x9f");
    check("\xe2\x82\xac \xf0\x9f\x8e\xb2", "\xe2\x82\xac \xf0\x9f\x8e\xb2");
    check("\xff", "?");
    check("a\xc3", "a?");
    check("\xc3(", "?(");
    check("\xc0\xaf", "??");           /* overlong */
    check("\xed\xa0\x80", "???");      /* surrogate */
    check("\xf4\x90\x80\x80", "????"); /* past the last code point */
    check("\xe2\x82", "??");
}
