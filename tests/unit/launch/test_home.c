/* The page of all runs: its token, its folders and its lock are one for all processes of a user. */
#include <limits.h>
#include <sys/stat.h>

#include "agent/launch/home.h"
#include "tests/support/tempdir.h"

static int set_up(void **state)
{
    int status = tempdir_enter(state);
    setenv("XDG_CACHE_HOME", tempdir, 1);
    return status;
}

static struct home open_home(const char *address)
{
    struct home home;
    assert_int_equal(home_open(&home, address, &err), RP_OK);
    return home;
}

static void make_run(const char *path)
{
    assert_int_equal(run_folder_make(path, 0777, &err), RP_OK);
}

TEST(addresses)
{
    unsetenv("REPLAY_PAGE");
    assert_string_equal(home_address(NULL), "127.0.0.1:7650");
    assert_string_equal(home_address(""), "");
    setenv("REPLAY_PAGE", "127.0.0.1:7001", 1);
    assert_string_equal(home_address(NULL), "127.0.0.1:7001");
    assert_string_equal(home_address("127.0.0.1:7650"), "127.0.0.1:7001"); /* what a file without the key has */
    assert_string_equal(home_address("127.0.0.1:7002"), "127.0.0.1:7002");
    unsetenv("REPLAY_PAGE");
    assert_true(home_is_shared("[::1]:7650"));
    assert_false(home_is_shared("127.0.0.1:0"));
    assert_false(home_is_shared(""));
}

TEST(token, set_up, tempdir_leave)
{
    char path[PATH_MAX];
    struct stat st;
    struct home one = open_home("127.0.0.1:1"), two = open_home("127.0.0.1:2");
    assert_int_equal(strlen(one.token), HTTP_TOKEN - 1);
    assert_string_equal(one.token, two.token);
    assert_int_equal(stat(run_folder_path(path, sizeof path, one.cache, "page.token"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* A damaged one is replaced. */
    assert_int_equal(run_folder_write_secret(one.cache, "page.token", "short", &err), RP_OK);
    two = open_home("127.0.0.1:2");
    assert_int_equal(strlen(two.token), HTTP_TOKEN - 1);
    assert_string_not_equal(one.token, two.token);
}

TEST(folders, set_up, tempdir_leave)
{
    struct home home = open_home("127.0.0.1:1");
    char page[64], folder[FOLDER_SIZE];
    static const char *const runs[][2] = {{"a/x", "1/x/"}, {"b/x", "2/x/"}, {"a/#%", "1/%23%25/"}, {"ab/x", "3/x/"}};
    assert_false(home_folder(&home, 1, folder));
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        make_run(tempdir_at(runs[i][0]));
        assert_int_equal(home_add(&home, tempdir_at(runs[i][0]), page, sizeof page, &err), RP_OK);
        assert_string_equal(page, runs[i][1]);
    }
    assert_true(home_folder(&home, 2, folder));
    assert_string_equal(folder, tempdir_at("b"));
    assert_false(home_folder(&home, 0, folder));
    assert_false(home_folder(&home, 4, folder));
    assert_int_equal(home_add(&home, tempdir_at("none"), page, sizeof page, &err), RP_INVALID_ARGUMENT);
}

TEST(a_line_that_a_full_disk_cut, set_up, tempdir_leave)
{
    struct home home = open_home("127.0.0.1:1");
    char page[64], folder[FOLDER_SIZE];
    make_run(tempdir_at("a/x"));
    assert_int_equal(run_folder_write_secret(home.cache, "page.folders", "/cu", &err), RP_OK);
    assert_int_equal(home_add(&home, tempdir_at("a/x"), page, sizeof page, &err), RP_OK);
    assert_string_equal(page, "2/x/");
    assert_true(home_folder(&home, 2, folder));
    assert_string_equal(folder, tempdir_at("a"));
}

TEST(one_serves, set_up, tempdir_leave)
{
    struct home one = open_home("127.0.0.1:1"), two = open_home("127.0.0.1:1"), other = open_home("127.0.0.1:2");
    assert_true(home_lock(&one));
    assert_false(home_lock(&two));
    assert_true(home_lock(&other));
    home_unlock(&one);
    assert_true(home_lock(&two));
    home_unlock(&two);
    home_unlock(&other);
}
