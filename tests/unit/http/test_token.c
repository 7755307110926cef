/* The token of a broker with keys: made once, read again, refused if others may read it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/http/token.h"

static void tokens_are_made_once_and_kept_secret(void **state)
{
    (void)state;
    char folder[] = "/tmp/replay-token-XXXXXX", path[64], token[TOKEN_TEXT] = "", again[TOKEN_TEXT] = "";
    struct stat facts;
    rp_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, TOKEN_FILE);
    assert_int_equal(token_open(folder, token, &err), RP_OK);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    assert_int_equal(strlen(token), 64);
    assert_int_equal(token_open(folder, again, &err), RP_OK);
    assert_string_equal(token, again);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(token_open(folder, again, &err), RP_PERMISSION_DENIED);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(token_open(folder, again, &err), RP_INVALID_ARGUMENT);
    unlink(path);
    assert_int_equal(token_open(folder, again, &err), RP_OK);
    assert_string_not_equal(token, again);
    unlink(path);
    assert_int_equal(symlink("/etc/hostname", path), 0); /* a link is not followed */
    assert_int_not_equal(token_open(folder, again, &err), RP_OK);
    unlink(path);
    rmdir(folder);
    assert_int_equal(token_open(folder, again, &err), RP_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_made_once_and_kept_secret)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
