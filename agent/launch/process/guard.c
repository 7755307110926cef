/* The guard is forked once. It sees the launcher's end as the end of a socket whose other side the launcher holds. A
 * new group is reported by its own first process, before that can have children, and is reported again when it is
 * gone. */
#include "agent/launch/process/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/error.h"

#define TELL_US 200000
#define BEGIN_S 5

static void groups_remove(struct guard_groups *self, pid_t group)
{
    size_t kept = 0;
    for (size_t i = 0; i < self->count; i++) {
        if (self->list[i] != group)
            self->list[kept++] = self->list[i];
    }
    self->count = kept;
}

static void groups_add(struct guard_groups *self, pid_t group)
{
    groups_remove(self, group);
    if (self->count < GUARD_GROUPS_MOST)
        self->list[self->count++] = group;
}

/* What the guard is told. */
struct word {
    int32_t group;    /* positive: to be remembered; negative: to be forgotten; 0: the parent is alive */
    int32_t lease_ms; /* longest silence from now on; 0: as before */
};

/* parent: killed, too, when the lease is over. */
static _Noreturn void watch(struct guard *self, int from, pid_t parent)
{
    struct guard_groups *groups = &self->groups;
    bool late = false;
    for (;;) {
        struct word word = {0};
        ssize_t n = recv(from, &word, sizeof word, 0);
        if (n < 0 && errno == EINTR)
            continue;
        late = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (n != (ssize_t)sizeof word)
            break;
        const struct timeval most = {.tv_sec = word.lease_ms / 1000, .tv_usec = word.lease_ms % 1000 * 1000};
        if (word.lease_ms > 0)
            setsockopt(from, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        if (word.group > 0)
            groups_add(groups, word.group);
        else
            groups_remove(groups, -word.group);
    }
    for (size_t i = 0; i < groups->count; i++) {
        if (groups->list[i] > 1)
            kill(-groups->list[i], SIGKILL);
    }
    if (late && parent > 1 && getppid() == parent)
        kill(parent, SIGKILL);
    if (self->folder)
        execlp("rm", "rm", "-rf", "--", self->folder, (char *)NULL);
    _exit(0);
}

/* A reader of the launcher's output, or a process that waits for the launcher's session, must not wait for the guard.
 * May be forked from a process with threads. */
static _Noreturn void guard_main(struct guard *self, int from)
{
    pid_t parent = getppid();
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    setsid();
    send(from, &(int32_t){0}, sizeof(int32_t), MSG_NOSIGNAL);
    prctl(PR_SET_NAME, "replay-guard");
    from = fcntl(from, F_DUPFD, 3);
    int nothing = open("/dev/null", O_RDWR);
    if (from < 0 || nothing < 0)
        _exit(1);
    for (int fd = 1; fd <= 2; fd++)
        dup2(nothing, fd);
    dup2(from, 0);
    close_range(3, ~0U, 0);
    if (chdir("/") != 0)
        _exit(1);
    watch(self, 0, parent);
}

static rp_status fork_guard(struct guard *self, rp_error *err)
{
    int pair[2];
    self->pipe = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return err_set(err, RP_IO, "could not make a socket for the guard of the processes: %s", strerror(errno));
    spawn_await_children();
    pid_t pid = fork();
    if (pid == 0)
        guard_main(self, pair[1]);
    int error = errno;
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return err_set(err, RP_RESOURCE_EXHAUSTED, "could not start the guard of the processes: %s", strerror(error));
    }
    /* Only in a session of its own does the guard outlive a kill of this process group. */
    int32_t word;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = BEGIN_S}, sizeof(struct timeval));
    while (recv(pair[0], &word, sizeof word, 0) < 0 && errno == EINTR)
        ;
    /* A stopped guard must not stop the launcher. A child that the guard never learned of still dies with the
     * launcher, but processes that this child started do not. */
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_usec = TELL_US}, sizeof(struct timeval));
    self->pipe = pair[0];
    self->pid = pid;
    return RP_OK;
}

rp_status guard_start(struct guard *self, const char *folder, rp_error *err)
{
    *self = (struct guard){.folder = folder};
    return fork_guard(self, err);
}

bool guard_lost(struct guard *self)
{
    rp_error err = {0};
    if (self->pipe < 0 || waitpid(self->pid, NULL, WNOHANG) != self->pid)
        return false;
    close(self->pipe);
    fork_guard(self, &err); /* without one, the kernel still kills the children themselves */
    return true;
}

static void tell(const struct guard *self, struct word word, int flags)
{
    if (self->pipe < 0)
        return;
    while (send(self->pipe, &word, sizeof word, MSG_NOSIGNAL | flags) < 0 && errno == EINTR)
        ;
}

void guard_tell(struct guard *self, int32_t group)
{
    if (!self)
        return;
    if (group > 0)
        groups_add(&self->groups, group);
    else
        groups_remove(&self->groups, -group);
    tell(self, (struct word){.group = group}, 0);
}

void guard_lease(const struct guard *self, int64_t ns)
{
    int64_t ms = ns / 1000000;
    tell(self, (struct word){.lease_ms = ms < INT32_MAX ? (int32_t)ms : INT32_MAX}, 0);
}

void guard_alive(const struct guard *self)
{
    tell(self, (struct word){0}, MSG_DONTWAIT);
}

void guard_finish(struct guard *self)
{
    if (self->pipe < 0)
        return;
    close(self->pipe);
    spawn_reap(self->pid);
    *self = (struct guard){.pipe = -1};
}

void guard_stop(struct guard *self)
{
    /* The guard is gone before it could mistake the end of the socket for the launcher's end. */
    if (self->pipe >= 0)
        kill(self->pid, SIGKILL);
    guard_finish(self);
}
