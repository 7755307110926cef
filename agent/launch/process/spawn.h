/* Starts a program as a child in a process group of its own: used by the launcher, by replay-bench and by tests.
 * Descriptors other than the standard three are closed in the child, signals are as in a new program, and a program
 * that cannot be executed is reported as not started. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define SPAWN_NULL (-1) /* /dev/null */
#define SPAWN_KEEP (-2) /* the stream of this process */

struct spawn {
    const char *const *argv;        /* argv[0] is searched in PATH if it has no slash */
    const char *const *environment; /* "NAME=value" beyond our own; NULL-terminated; may be NULL */
    int in, out, err;               /* descriptors of the child's standard streams, or SPAWN_NULL or SPAWN_KEEP */
    bool dies_with_us;              /* the kernel kills the child when the thread that started it ends */
    /* Called in the child with true before it executes the program, and with false if that fails. May do only what is
     * safe after a fork of a process with threads. NULL: nothing. */
    void (*in_child)(void *ctx, bool begins);
    void *ctx;
};

/* Returns the child's id; -1: there is no child, and *error is the errno that says why. */
pid_t spawn_start(const struct spawn *self, int *error);
/* Waits for the child's end. Returns the status of waitpid. */
int spawn_reap(pid_t pid);
/* Whether there is such a program: a path, or a name in PATH. */
bool spawn_can_start(const char *program);
/* Makes sure that ended children wait for us: a program may be started with SIGCHLD ignored, and then they would
 * not. */
void spawn_await_children(void);
