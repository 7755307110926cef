/* Start and end of one child. */
#include "agent/launch/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/error.h"

#define FILES_MOST 16384 /* descriptors: some for each process and each host */

/* Says what happened and what to do about it. */
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
    } else if (error == EAGAIN || error == ENOMEM) {
        return err_set(err, RP_RESOURCE_EXHAUSTED, "could not start %.300s: too many processes, or no memory", name);
    } else if (error == E2BIG) {
        advice = "; its arguments and environment are too long";
    }
    return err_set(err, status, "could not start %.300s: %s%s", name, strerror(error), advice);
}

/* The guard knows the group before that can have more processes. */
static void tell_guard(const void *guard, bool begins)
{
    guard_tell(guard, begins ? (int32_t)getpid() : -(int32_t)getpid());
}

static rp_status start(struct process *self, const struct process_options *options, int log, rp_error *err)
{
    const struct spawn spawn = {.argv = options->argv,
                                .environment = options->environment,
                                .in = SPAWN_NULL,
                                .out = log,
                                .err = log,
                                .dies_with_us = true,
                                .in_child = tell_guard,
                                .ctx = options->guard};
    int error;
    pid_t pid = spawn_start(&spawn, &error);
    if (pid < 0)
        return explain(options->argv[0] ? options->argv[0] : "", error, err);
    self->pid = pid;
    return RP_OK;
}

/* Opens the log, and notes where the output of this start begins. Returns the descriptor; -1: err says why. */
static int open_log(struct process *self, const char *path, rp_error *err)
{
    struct stat info;
    if ((size_t)snprintf(self->log, sizeof self->log, "%s", path) >= sizeof self->log) {
        err_fill(err, RP_INVALID_ARGUMENT, "the path of the log of %s is longer than %zu bytes: %.100s...", self->name,
                 sizeof self->log - 1, path);
        return -1;
    }
    int log = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log < 0 || fstat(log, &info) != 0) {
        err_fill(err, RP_IO, "the log %.300s cannot be written: %s", path, strerror(errno));
        if (log >= 0)
            close(log);
        return -1;
    }
    self->log_start = info.st_size;
    return log;
}

rp_status process_start(struct process *self, const struct process_options *options, int64_t now_ns, rp_error *err)
{
    rp_error why = {0};
    *self = (struct process){.started_ns = now_ns, .guard = options->guard, .place = options->place};
    snprintf(self->name, sizeof self->name, "%s", options->name);
    int output = options->log ? open_log(self, options->log, &why) : options->output;
    if (output < 0)
        return err_set(err, (rp_status)why.status, "%s", why.text);
    rp_status status =
        self->place ? self->place->start(self->place, self, options, err) : start(self, options, output, err);
    if (options->log)
        close(output);
    self->running = status == RP_OK;
    return status;
}

static bool child_ended(struct process *self, int *status)
{
    siginfo_t info = {0};
    int rc = waitid(P_PID, (id_t)self->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (rc == 0 && info.si_pid == 0)
        return false;
    if (rc != 0 && errno != ECHILD)
        return false;
    *status = 255 << 8; /* somebody else has taken the true status */
    /* The process is still there as a zombie, so no other group can have its number. */
    if (rc == 0)
        kill(-self->pid, SIGKILL);
    guard_tell(self->guard, -(int32_t)self->pid);
    if (rc == 0)
        *status = spawn_reap(self->pid);
    return true;
}

bool process_ended(struct process *self, int *status)
{
    if (!self->running || !(self->place ? self->place->ended(self->place, self, status) : child_ended(self, status)))
        return false;
    self->running = false;
    self->pid = 0;
    return true;
}

void process_guard(const struct process *self)
{
    if (self->running && !self->place)
        guard_tell(self->guard, (int32_t)self->pid);
}

void process_ask(struct process *self, int64_t now_ns)
{
    if (!self->running || self->asked_ns != 0)
        return;
    self->asked_ns = now_ns != 0 ? now_ns : 1;
    if (self->place)
        self->place->ask(self->place, self);
    else
        kill(self->pid, SIGTERM);
}

void process_kill(struct process *self)
{
    if (!self->running)
        return;
    self->killed = true;
    if (self->place)
        self->place->kill(self->place, self);
    else
        kill(-self->pid, SIGKILL);
}

const char *process_describe(int status, char *out, size_t size)
{
    if (status == PROCESS_LOST)
        snprintf(out, size, "its host is lost");
    else if (WIFEXITED(status))
        snprintf(out, size, "exit status %d", WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        snprintf(out, size, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out, size, "no start");
    return out;
}

void process_raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_MOST)
        return;
    limit.rlim_cur = limit.rlim_max < FILES_MOST ? limit.rlim_max : FILES_MOST;
    setrlimit(RLIMIT_NOFILE, &limit);
}
