/* Whole files: what is read back, what replaces what, and what a failure leaves behind. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "proto/base/io.h"
#include "tests/support/tempdir.h"

TEST(round_trip, tempdir_enter, tempdir_leave)
{
    char got[8], text[4];
    int fd = open(tempdir_at("a"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(io_write(fd, "abcdef", 6, 0) && io_write(fd, "XY", 2, 2));
    assert_int_equal(io_read(fd, got, sizeof got, 1), 5); /* the file ends */
    assert_memory_equal(got, "bXYef", 5);
    assert_true(io_write(fd, "1", 1, IO_HERE));
    assert_int_equal(io_read(fd, got, 2, IO_HERE), 2);
    assert_memory_equal(got, "bX", 2);
    close(fd);
    assert_int_equal(io_read(-1, got, 1, 0), -1);
    assert_int_equal(errno, EBADF);
    assert_true(io_text(tempdir_at("a"), text, sizeof text));
    assert_string_equal(text, "1bX"); /* what does not fit is left out */
    assert_false(io_text(tempdir_at("none"), text, sizeof text));
    assert_string_equal(text, "");
}

TEST(replaced_whole_or_not_at_all, tempdir_enter, tempdir_leave)
{
    char path[512], blocked[520], text[16];
    struct stat info;
    snprintf(path, sizeof path, "%s/a", tempdir);
    snprintf(blocked, sizeof blocked, "%s.tmp", path);
    assert_true(io_replace(path, "one", 3, 0600, true));
    file_put(blocked, "left behind"); /* with another mode */
    assert_true(io_replace(path, "second", 6, 0600, false));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(mkdir(blocked, 0700), 0);
    assert_false(io_replace(path, "third", 5, 0600, true));
    assert_int_equal(errno, EISDIR);
    assert_true(io_text(path, text, sizeof text));
    assert_string_equal(text, "second");
    assert_false(io_replace("/nowhere/at/all", "x", 1, 0600, false));
    assert_int_equal(errno, ENOENT);
}
