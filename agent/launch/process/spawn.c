#include "agent/launch/process/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/io.h"
#include "proto/base/need.h"

/* What the child needs between fork and exec, where nothing may be allocated. */
struct child {
    const struct spawn *spawn;
    const char *program;
    char **environment;
    int streams[3]; /* descriptors above the standard three, close-on-exec; -1: keep */
    int report;     /* the same: takes the errno of a failure */
    pid_t parent;
};

void spawn_await_children(void)
{
    struct sigaction action;
    if (sigaction(SIGCHLD, NULL, &action) != 0)
        return;
    if (action.sa_handler != SIG_IGN && !(action.sa_flags & SA_NOCLDWAIT))
        return;
    if (action.sa_handler == SIG_IGN)
        action.sa_handler = SIG_DFL;
    action.sa_flags &= ~SA_NOCLDWAIT;
    sigaction(SIGCHLD, &action, NULL);
}

/* ---- what to execute ---- */

static bool is_program(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

/* The path that execve needs; NULL: not found. Given to the caller. */
static char *find_program(const char *name)
{
    if (strchr(name, '/'))
        return need_text(name);
    const char *path = getenv("PATH");
    for (const char *part = path ? path : "/usr/local/bin:/usr/bin:/bin"; name[0];) {
        size_t length = strcspn(part, ":");
        char *full = need_print("%.*s%s%s", (int)length, part, length ? "/" : "./", name);
        if (is_program(full))
            return full;
        free(full);
        if (!part[length])
            break;
        part += length + 1;
    }
    return NULL;
}

bool spawn_can_start(const char *program)
{
    char *path = find_program(program);
    bool there = path && is_program(path);
    free(path);
    return there;
}

/* Our own variables except those that `more` sets, and `more`. The strings are borrowed; the list is given. */
static char **merge_environment(const char *const *more)
{
    size_t own = 0, extra = 0, n = 0;
    while (environ && environ[own])
        own++;
    while (more && more[extra])
        extra++;
    char **merged = need_alloc((own + extra + 1) * sizeof *merged);
    for (size_t i = 0; i < own; i++) {
        bool replaced = false;
        for (size_t k = 0; k < extra; k++)
            replaced |= strncmp(more[k], environ[i], strcspn(more[k], "=") + 1) == 0;
        if (!replaced)
            merged[n++] = environ[i];
    }
    for (size_t k = 0; k < extra; k++)
        merged[n++] = (char *)(uintptr_t)more[k];
    return merged;
}

/* ---- in the child ---- */

static _Noreturn void fail(const struct child *self)
{
    int error = errno;
    if (self->spawn->in_child)
        self->spawn->in_child(self->spawn->ctx, false);
    ssize_t n = write(self->report, &error, sizeof error);
    _exit(n == (ssize_t)sizeof error ? 127 : 126);
}

/* Handlers first: a pending signal must not meet a handler of the parent. */
static void reset_signals(void)
{
    sigset_t none;
    struct sigaction usual = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &usual, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Calls only what is safe after a fork of a process with threads. */
static _Noreturn void child_main(const struct child *self)
{
    if (setpgid(0, 0) != 0 || (self->spawn->dies_with_us && prctl(PR_SET_PDEATHSIG, SIGKILL) != 0))
        fail(self);
    if (self->spawn->dies_with_us && getppid() != self->parent)
        _exit(126); /* the parent ended before the kernel was asked to watch it */
    if (self->spawn->in_child)
        self->spawn->in_child(self->spawn->ctx, true);
    for (int i = 0; i < 3; i++)
        if (self->streams[i] >= 0 && dup2(self->streams[i], i) < 0)
            fail(self);
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC); /* ours have that flag already; a library's may lack it */
    reset_signals();
    execve(self->program, (char *const *)(uintptr_t)self->spawn->argv, self->environment);
    fail(self);
}

/* ---- in the parent ---- */

/* Moves a descriptor out of the way of the standard three, which this process may have been started without. */
static int above_standard(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int error = errno;
    close(fd);
    errno = error;
    return above;
}

int spawn_reap(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static pid_t fork_child(struct child *self, int *error)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        *error = errno;
        return -1;
    }
    ends[0] = above_standard(ends[0]);
    self->report = ends[1] = above_standard(ends[1]);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of ours runs in the child */
    pid_t pid = fork();
    if (pid == 0)
        child_main(self);
    *error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (pid > 0) {
        setpgid(pid, pid); /* the child does this too: the first of both counts */
        if (io_read(ends[0], error, sizeof *error, IO_HERE) ==
            (ssize_t)sizeof *error) { /* it could not execute the program */
            spawn_reap(pid);
            pid = -1;
        }
    }
    close(ends[0]);
    return pid;
}

pid_t spawn_start(const struct spawn *self, int *error)
{
    const int streams[3] = {self->in, self->out, self->err};
    struct child child = {.spawn = self, .parent = getpid()};
    char *program = find_program(self->argv[0] ? self->argv[0] : "");
    int null = above_standard(open("/dev/null", O_RDWR | O_CLOEXEC));
    pid_t pid = -1;
    bool ready = program && null >= 0;
    *error = !program ? ENOENT : errno;
    child.environment = merge_environment(self->environment);
    child.program = program;
    for (int i = 0; i < 3; i++) {
        /* A copy above the standard three, so that no stream overwrites another one. */
        child.streams[i] =
            streams[i] == SPAWN_KEEP ? -1 : fcntl(streams[i] == SPAWN_NULL ? null : streams[i], F_DUPFD_CLOEXEC, 3);
        if (child.streams[i] < 0 && streams[i] != SPAWN_KEEP && ready) {
            *error = errno;
            ready = false;
        }
    }
    spawn_await_children();
    if (ready)
        pid = fork_child(&child, error);
    for (int i = 0; i < 3; i++)
        if (child.streams[i] >= 0)
            close(child.streams[i]);
    if (null >= 0)
        close(null);
    free(program);
    free(child.environment);
    return pid;
}
