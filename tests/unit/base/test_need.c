#include "proto/base/need.h"

#include <sys/wait.h>

#include "tests/support/test.h"

TEST(gives_what_was_asked_for)
{
    static const char zeros[100];
    char *memory = need_alloc(sizeof zeros);
    assert_memory_equal(memory, zeros, sizeof zeros);
    memory = need_resize(memory, 50, 4);
    assert_memory_equal(memory, zeros, sizeof zeros);
    free(memory);
    memory = need_resize(NULL, 0, 8);
    free(memory);
    char *text = need_text("a"), *longer = need_print("%s%d", text, 17);
    assert_string_equal(longer, "a17");
    free(text);
    free(longer);
}

/* Returns the exit status of a child that needs n times size bytes. */
static int ended_with(size_t n, size_t size)
{
    pid_t child = fork();
    if (!child) {
        close(STDERR_FILENO);
        free(need_resize(NULL, n, size));
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(ends_the_process_if_there_is_none)
{
    assert_int_equal(ended_with(8, 8), 0);
    assert_int_equal(ended_with(SIZE_MAX / 4, 8), 1);
    assert_int_equal(ended_with(SIZE_MAX / 16, 8), 1);
}
