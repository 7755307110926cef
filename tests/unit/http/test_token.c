/* The token of a broker with keys: made once, read again, refused if others may read it. */

#include <pthread.h>
#include <sys/stat.h>

#include "broker/program/web.h"
#include "tests/support/tempdir.h"

TEST(tokens_are_made_once_and_kept_secret, tempdir_enter, tempdir_leave)
{
    const char *path = tempdir_at(TOKEN_READER);
    char token[TOKEN_TEXT] = "", again[TOKEN_TEXT] = "";
    struct stat facts;
    assert_int_equal(token_open(tempdir, TOKEN_READER, token, &err), RP_OK);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    assert_int_equal(strlen(token), 64);
    assert_int_equal(token_open(tempdir, TOKEN_READER, again, &err), RP_OK);
    assert_string_equal(token, again);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(token_open(tempdir, TOKEN_READER, again, &err), RP_PERMISSION_DENIED);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(token_open(tempdir, TOKEN_READER, again, &err), RP_INVALID_ARGUMENT);
    unlink(path);
    assert_int_equal(token_open(tempdir, TOKEN_READER, again, &err), RP_OK);
    assert_string_not_equal(token, again);
    assert_int_equal(rename(path, tempdir_at("good")), 0);
    assert_int_equal(symlink("good", path), 0); /* a link is not followed, whatever it leads to */
    assert_int_equal(token_open(tempdir, TOKEN_READER, again, &err), RP_PERMISSION_DENIED);
    assert_int_equal(token_open(tempdir_at("nowhere"), TOKEN_READER, again, &err), RP_IO);
}

static void *open_shared(void *out)
{
    return (void *)(intptr_t)(token_open(tempdir, TOKEN_READER, out, &err) == RP_OK);
}

/* Shards start together: all have the token that one of them has made. */
TEST(shards_make_one_token, tempdir_enter, tempdir_leave)
{
    enum { SHARDS = 6, TIMES = 30 };
    char tokens[SHARDS][TOKEN_TEXT];
    pthread_t threads[SHARDS];
    for (uint32_t round = 0; round < TIMES; round++) {
        for (uint32_t i = 0; i < SHARDS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, open_shared, tokens[i]), 0);
        for (uint32_t i = 0; i < SHARDS; i++) {
            void *ok;
            assert_int_equal(pthread_join(threads[i], &ok), 0);
            assert_non_null(ok);
        }
        for (uint32_t i = 1; i < SHARDS; i++)
            assert_string_equal(tokens[i], tokens[0]);
        assert_int_equal(unlink(tempdir_at(TOKEN_READER)), 0);
        assert_int_equal(rmdir(tempdir), 0); /* nothing else is left there */
        assert_int_equal(mkdir(tempdir, 0700), 0);
    }
}
