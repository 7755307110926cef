/* Start and end of one child. */
#include "agent/launch/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/launch/process/process_impl.h"
#include "proto/base/error.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

/* What the child needs between fork and exec, where nothing may be allocated. */
struct launch {
    const char *program;
    char *const *argv;
    char **environment;
    int null, log, report; /* all above the standard three, all close-on-exec */
    pid_t launcher;
    const struct guard *guard;
};

void process_await_children(void)
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
        return strdup(name);
    const char *path = getenv("PATH");
    for (const char *part = path ? path : "/usr/local/bin:/usr/bin:/bin"; name[0];) {
        size_t length = strcspn(part, ":");
        char *full = NULL;
        if (asprintf(&full, "%.*s%s%s", (int)length, part, length ? "/" : "./", name) < 0)
            return NULL;
        if (is_program(full))
            return full;
        free(full);
        if (!part[length])
            break;
        part += length + 1;
    }
    return NULL;
}

bool process_can_start(const char *program)
{
    char *path = find_program(program);
    bool there = path && is_program(path);
    free(path);
    return there;
}

static bool same_name(const char *a, const char *b)
{
    size_t length = strcspn(a, "=");
    return strncmp(a, b, length) == 0 && b[length] == '=';
}

/* Ours, without what `more` says otherwise, and `more`. The strings are borrowed; the list is given. */
static char **merge_environment(const char *const *more)
{
    size_t own = 0, extra = 0, n = 0;
    while (environ && environ[own])
        own++;
    while (more && more[extra])
        extra++;
    char **merged = calloc(own + extra + 1, sizeof *merged);
    for (size_t i = 0; merged && i < own; i++) {
        bool replaced = false;
        for (size_t k = 0; k < extra; k++)
            replaced |= same_name(more[k], environ[i]);
        if (!replaced)
            merged[n++] = environ[i];
    }
    for (size_t k = 0; merged && k < extra; k++)
        merged[n++] = (char *)(uintptr_t)more[k];
    return merged;
}

/* What happened, and what to do about it. */
static rp_status explain(const char *name, int error, rp_error *err)
{
    bool path = strchr(name, '/') != NULL;
    const char *advice = "";
    rp_status status = RP_FAILED_PRECONDITION;
    if (error == ENOENT && !path) {
        advice = "; no folder of PATH has such a program: write ./NAME for one that is in this folder";
        status = RP_NOT_FOUND;
    } else if (error == ENOENT && access(name, F_OK) == 0) {
        advice = "; the file is there, but what its first line (#!) or its loader names is not";
    } else if (error == ENOENT || error == ENOTDIR) {
        advice = "; check the path: it is relative to the folder that replay-launch was started in";
        status = RP_NOT_FOUND;
    } else if (error == EACCES) {
        advice = "; make it executable: chmod +x";
    } else if (error == ENOEXEC) {
        advice = "; it is no program of this machine: a script needs a first line like #!/usr/bin/env python3";
    } else if (error == E2BIG) {
        advice = "; its arguments and environment are too long";
    }
    return err_set(err, status, "could not start %.300s: %s%s", name, strerror(error), advice);
}

/* ---- in the child ---- */

static _Noreturn void fail(const struct launch *self)
{
    int error = errno;
    ssize_t n = write(self->report, &error, sizeof error);
    _exit(n == (ssize_t)sizeof error ? 127 : 126);
}

/* Handlers first: a signal that waits must not meet one of the launcher's. */
static void reset_signals(void)
{
    sigset_t none;
    struct sigaction usual = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &usual, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void close_on_exec(void)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
        return;
#endif
    for (int fd = 3; fd < 4096; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags >= 0)
            fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
}

/* Calls only what is safe after a fork of a process with threads. */
static _Noreturn void child_main(const struct launch *self)
{
    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        fail(self);
    if (getppid() != self->launcher)
        _exit(126); /* it ended before we asked to be told */
    guard_tell(self->guard, (int32_t)getpid());
    if (dup2(self->null, 0) < 0 || dup2(self->log, 1) < 0 || dup2(self->log, 2) < 0)
        fail(self);
    close_on_exec();
    reset_signals();
    execve(self->program, self->argv, self->environment);
    fail(self);
}

/* ---- in the launcher ---- */

/* Out of the way of the standard three, which the launcher may have been started without. */
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

static void reap(pid_t pid, int *status)
{
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        ;
}

/* Gives the child; -1: *error is why, and there is none. */
static pid_t fork_child(struct launch *self, int *error)
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
        setpgid(pid, pid); /* the child does so too: whoever comes first */
        ssize_t n;
        while ((n = read(ends[0], error, sizeof *error)) < 0 && errno == EINTR)
            ;
        if (n == (ssize_t)sizeof *error) {
            guard_tell(self->guard, -(int32_t)pid);
            reap(pid, NULL);
            pid = -1;
        }
    }
    close(ends[0]);
    return pid;
}

static rp_status open_files(struct launch *self, const char *log, int64_t *log_start, rp_error *err)
{
    struct stat info;
    self->log = above_standard(open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
    if (self->log < 0 || fstat(self->log, &info) != 0)
        return err_set(err, RP_IO, "the log %.300s can not be written: %s", log, strerror(errno));
    *log_start = info.st_size;
    self->null = above_standard(open("/dev/null", O_RDWR | O_CLOEXEC));
    return self->null >= 0 ? RP_OK : err_set(err, RP_IO, "/dev/null can not be opened: %s", strerror(errno));
}

static rp_status start(struct process *self, const struct process_options *options, struct launch *launch,
                       rp_error *err)
{
    const char *name = options->argv[0] ? options->argv[0] : "";
    char *program = find_program(name);
    int error = ENOENT;
    if (!program)
        return explain(name, error, err);
    launch->program = program;
    launch->argv = (char *const *)(uintptr_t)options->argv;
    launch->environment = merge_environment(options->environment);
    rp_status status = launch->environment ? open_files(launch, options->log, &self->log_start, err)
                                           : err_set(err, RP_NO_MEMORY, "no memory to start %.300s", name);
    if (status == RP_OK) {
        pid_t pid = fork_child(launch, &error);
        if (pid > 0)
            self->pid = pid;
        else if (error == EAGAIN || error == ENOMEM)
            status =
                err_set(err, RP_RESOURCE_EXHAUSTED, "could not start %.300s: too many processes, or no memory", name);
        else
            status = explain(name, error, err);
    }
    free(program);
    free(launch->environment);
    return status;
}

rp_status process_start(struct process *self, const struct process_options *options, int64_t now_ns, rp_error *err)
{
    struct launch launch = {.null = -1, .log = -1, .report = -1, .launcher = getpid(), .guard = options->guard};
    *self = (struct process){.started_ns = now_ns, .guard = options->guard};
    snprintf(self->name, sizeof self->name, "%s", options->name);
    if ((size_t)snprintf(self->log, sizeof self->log, "%s", options->log) >= sizeof self->log)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the log of %s is longer than %zu bytes: %.100s...",
                       self->name, sizeof self->log - 1, options->log);
    process_await_children();
    rp_status status = start(self, options, &launch, err);
    if (launch.log >= 0)
        close(launch.log);
    if (launch.null >= 0)
        close(launch.null);
    return status;
}

bool process_ended(struct process *self, int *status)
{
    siginfo_t info = {0};
    if (self->pid == 0)
        return false;
    int rc = waitid(P_PID, (id_t)self->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (rc == 0 && info.si_pid == 0)
        return false;
    if (rc != 0 && errno != ECHILD)
        return false;
    *status = 255 << 8; /* somebody else took the true one */
    /* The process is still there, as a zombie, so that its group's number can not be another group's. */
    if (rc == 0)
        kill(-self->pid, SIGKILL);
    guard_tell(self->guard, -(int32_t)self->pid);
    if (rc == 0)
        reap(self->pid, status);
    self->pid = 0;
    return true;
}

void process_guard(const struct process *self)
{
    if (self->pid > 0)
        guard_tell(self->guard, (int32_t)self->pid);
}

void process_ask(struct process *self, int64_t now_ns)
{
    if (self->pid == 0 || self->asked_ns != 0)
        return;
    self->asked_ns = now_ns != 0 ? now_ns : 1;
    kill(self->pid, SIGTERM);
}

void process_kill(struct process *self)
{
    if (self->pid == 0)
        return;
    self->killed = true;
    kill(-self->pid, SIGKILL);
}

const char *process_describe(int status, char *out, size_t size)
{
    if (WIFEXITED(status))
        snprintf(out, size, "exit status %d", WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        snprintf(out, size, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out, size, "no start");
    return out;
}
