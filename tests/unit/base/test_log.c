/* The log: its format, and what happens when it cannot be written. */
#include "proto/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "proto/base/clock.h"
#include "tests/support/tempdir.h"

static char path[96];

static int set_up(void **state)
{
    int status = tempdir_enter(state);
    snprintf(path, sizeof path, "%s/log", tempdir);
    log_set_level(LEVEL_INFO);
    return status;
}

static int tear_down(void **state)
{
    log_close();
    return tempdir_leave(state);
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&regex, text, 0, NULL, 0) != 0)
        fail_msg("'%s' does not match '%s'", text, pattern);
    regfree(&regex);
}

TEST(lines, set_up, tear_down)
{
    assert_int_equal(log_open(path, NULL), RP_OK);
    log_line(LEVEL_INFO, "B0101", "session opened", "name=%s ordinal=%u", "actor-3", 7u);
    log_line(LEVEL_DEBUG, "B0102", "not shown", NULL);
    log_line(LEVEL_ERROR, "B0103", "no fields", NULL);
    log_set_level(LEVEL_OFF);
    log_line(LEVEL_ERROR, "B0104", "not shown", NULL);
    assert_matches(
        file_text(path),
        "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info  B0101 session opened name=actor-3 ordinal=7\n"
        "[0-9T:.-]{23}Z error B0103 no fields\n$");
}

TEST(one_line_stays_one_line, set_up, tear_down)
{
    assert_int_equal(log_open(path, NULL), RP_OK);
    log_line(LEVEL_WARN, "B0001", "odd", "name=%s", "a\nb\x1b[2J");
    char *text = file_text(path);
    assert_non_null(strstr(text, "name=a?b?[2J\n"));
    char large[8000];
    memset(large, 'y', sizeof large);
    large[sizeof large - 1] = '\0';
    for (size_t length = 1900; length < 2100; length++) {
        assert_int_equal(truncate(path, 0), 0);
        log_line(LEVEL_WARN, "B0001", "long", "name=%s", large + sizeof large - 1 - length);
        text = file_text(path);
        assert_in_range(strlen(text), 1900, 2048);
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
        if (strlen(strchr(text, 'y')) < length + 1)
            assert_string_equal(text + strlen(text) - 4, "...\n");
    }
}

TEST(open_fails_with_a_reason, set_up, tear_down)
{
    assert_int_equal(log_open("/nonexistent/log", &err), RP_IO);
    assert_string_equal(err.text, "the log '/nonexistent/log' cannot be opened: No such file or directory");
}

/* The same descriptor fails with ENOSPC, then works: /dev/full stands in the log's place through a symbolic link. */
/* Rotation: the file is renamed, then opened anew. A file that cannot be opened anew changes nothing. */
TEST(reopen, set_up, tear_down)
{
    char old[128];
    snprintf(old, sizeof old, "%s.1", path);
    assert_int_equal(log_open(path, NULL), RP_OK);
    log_line(LEVEL_INFO, "X0001", "first", NULL);
    assert_int_equal(rename(path, old), 0);
    log_line(LEVEL_INFO, "X0002", "second", NULL);
    log_reopen();
    log_line(LEVEL_INFO, "X0003", "third", NULL);
    assert_true(strstr(file_text(old), "X0001") && strstr(file_text(old), "X0002") && !strstr(file_text(old), "X0003"));
    assert_true(strstr(file_text(path), "L0002") && strstr(file_text(path), "X0003"));
    assert_int_equal(rename(path, old), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    log_reopen();
    log_line(LEVEL_INFO, "X0004", "fourth", NULL);
    assert_true(strstr(file_text(old), "L0003") && strstr(file_text(old), "X0004"));
    assert_int_equal(rmdir(path), 0);
    log_reopen();
    log_line(LEVEL_INFO, "X0005", "fifth", NULL);
    assert_non_null(strstr(file_text(path), "X0005"));
    log_close();
    log_reopen(); /* standard error stays what it is */
}

TEST(full_disk, set_up, tear_down)
{
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(log_open("/dev/full", NULL), RP_OK);
    for (int i = 0; i < 5; i++)
        log_line(LEVEL_INFO, "B0001", "lost", "i=%d", i);

    /* The log has the lowest free descriptor: put a real file behind it, as if the disk had room again. */
    int log_fd = -1;
    for (int fd = 3; fd < 64 && log_fd < 0; fd++) {
        struct stat here, full;
        if (fstat(fd, &here) == 0 && stat("/dev/full", &full) == 0 && here.st_rdev == full.st_rdev)
            log_fd = fd;
    }
    assert_true(log_fd >= 0);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_int_equal(dup2(file, log_fd), log_fd);
    close(file);
    log_line(LEVEL_INFO, "B0002", "works", NULL);
    log_line(LEVEL_INFO, "B0002", "again", NULL);
    assert_matches(file_text(path),
                   "^[^\n]* warn  L0001 log lines were lost count=5 error=\"No space left on device\"\n"
                   "[^\n]* info  B0002 works\n"
                   "[^\n]* info  B0002 again\n$");
}

/* A file-size limit cuts a line in the middle; the next one that can be written starts on a line of its own. */
TEST(cut_line, set_up, tear_down)
{
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, previous;
    sigaction(SIGXFSZ, &ignore, &previous);
    assert_int_equal(log_open(path, NULL), RP_OK);
    log_line(LEVEL_INFO, "B0001", "first line that fits", NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    log_line(LEVEL_INFO, "B0002", "a second line that does not fit into a hundred bytes", NULL);
    log_line(LEVEL_INFO, "B0003", "nor does this", NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    log_line(LEVEL_INFO, "B0004", "back", NULL);
    sigaction(SIGXFSZ, &previous, NULL);
    assert_matches(file_text(path),
                   "^[^\n]*fits\n[^\n]*B0002 [^\n]*\n[^\n]* L0001 [^\n]*count=2 [^\n]*\n[^\n]*back\n$");
}

TEST(reader_that_sleeps_or_leaves, set_up, tear_down)
{
    static char seen[1 << 20];
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_int_equal(log_open(path, NULL), RP_OK);
    /* Nobody reads: the pipe fills, and the program goes on. */
    for (int i = 0; i < 3000; i++)
        log_line(LEVEL_INFO, "B0001", "a line of some length, so that the pipe is full soon", "i=%d", i);
    assert_true(read(reader, seen, sizeof seen) > 0);
    log_line(LEVEL_INFO, "B0002", "the reader is back", NULL);
    ssize_t size = read(reader, seen, sizeof seen - 1);
    assert_true(size > 0);
    seen[size] = '\0';
    assert_matches(seen, "^[^\n]* L0001 log lines were lost count=[1-9][^\n]*\n[^\n]*B0002 the reader is back\n$");
    close(reader);
    log_line(LEVEL_INFO, "B0003", "the reader has left", NULL);
}

#define WRITERS 4
#define LINES 500

static void *writer(void *arg)
{
    for (int i = 0; i < LINES; i++)
        log_line(LEVEL_INFO, "B0009", "from a thread", "writer=%d i=%d text=%s", *(int *)arg, i, "0123456789abcdef");
    return NULL;
}

TEST(threads_do_not_mix_lines, set_up, tear_down)
{
    assert_int_equal(log_open(path, NULL), RP_OK);
    pthread_t threads[WRITERS];
    int ids[WRITERS], next[WRITERS] = {0}, total = 0;
    for (int i = 0; i < WRITERS; i++) {
        ids[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, writer, &ids[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    for (char *line = strtok(file_text(path), "\n"); line; line = strtok(NULL, "\n"), total++) {
        int id, i;
        char *fields = strstr(line, "writer=");
        assert_non_null(fields);
        assert_int_equal(sscanf(fields, "writer=%d i=%d", &id, &i), 2);
        assert_int_equal(i, next[id]++);
        assert_string_equal(strstr(fields, " text="), " text=0123456789abcdef");
    }
    assert_int_equal(total, WRITERS * LINES);
}

TEST(quote)
{
    char buffer[64];
    assert_string_equal(log_quote(buffer, sizeof buffer, "a b"), "\"a b\"");
    assert_string_equal(log_quote(buffer, sizeof buffer, "q\"\\\n\t\x01\x7f"), "\"q\\\"\\\\\\n\\t\\u0001\\u007f\"");
    assert_string_equal(log_quote(buffer, sizeof buffer, NULL), "\"\"");
    assert_string_equal(log_quote(buffer, 6, "abcdef"), "\"abc\"");
    assert_string_equal(log_quote(buffer, 6, "ab\n"), "\"ab\"");
    assert_string_equal(log_quote(buffer, 6, "ab\xc3\xa9"), "\"ab\"");
    assert_string_equal(log_quote(buffer, 7, "ab\xc3\xa9"), "\"ab\xc3\xa9\"");
    assert_string_equal(log_quote(buffer, 2, "abc"), "");
    assert_string_equal(log_quote(buffer, 3, "abc"), "\"\"");
}

TEST(allow)
{
    struct log_limit limit = {0};
    uint32_t held = 99;
    int64_t now = 5 * NS_PER_S;
    assert_true(log_allow(&limit, 2, now, &held));
    assert_int_equal(held, 0);
    assert_true(log_allow(&limit, 2, now + 1, &held));
    for (int i = 0; i < 7; i++)
        assert_false(log_allow(&limit, 2, now + 2 + i, &held));
    assert_false(log_allow(&limit, 2, now + NS_PER_S - 1, &held));
    assert_true(log_allow(&limit, 2, now + NS_PER_S, &held));
    assert_int_equal(held, 8);
    assert_true(log_allow(&limit, 2, now + NS_PER_S, &held));
    assert_int_equal(held, 0);
    assert_false(log_allow(&limit, 2, now + NS_PER_S, NULL));
}

TEST(levels)
{
    assert_int_equal(log_level_by_name("warn"), LEVEL_WARN);
    assert_int_equal(log_level_by_name("OFF"), LEVEL_OFF);
    assert_int_equal(log_level_by_name("loud"), -1);
    assert_int_equal(log_level_by_name(NULL), -1);
    assert_string_equal(log_level_name(LEVEL_DEBUG), "debug");
}
