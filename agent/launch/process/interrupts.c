#include "agent/launch/process/interrupts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"

static pid_t waiting_thread;

/* A library may have started threads before main (OpenBLAS does), and they block no signal. Such a thread passes a signal on to
 * the thread that waits for it. */
static void pass_on(int number)
{
    int error = errno;
    syscall(SYS_tgkill, getpid(), waiting_thread, number);
    errno = error;
}

rp_status interrupts_init(struct interrupts *self, rp_error *err)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD};
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigset_t set;
    *self = (struct interrupts){.fd = -1};
    signal(SIGPIPE, SIG_IGN); /* a reader of the output that goes away does not end the run */
    waiting_thread = (pid_t)syscall(SYS_gettid);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sigaddset(&set, numbers[i]);
        sigaction(numbers[i], &action, NULL);
    }
    if (sigprocmask(SIG_BLOCK, &set, NULL) == 0)
        self->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return self->fd >= 0 ? RP_OK : err_set(err, RP_INTERNAL, "signals cannot be caught: %s", strerror(errno));
}

void interrupts_fini(struct interrupts *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}

void interrupts_wait(struct interrupts *self, int ms)
{
    struct pollfd poll_fd = {.fd = self->fd, .events = POLLIN};
    struct signalfd_siginfo info;
    poll(&poll_fd, 1, ms);
    while (read(self->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGHUP)
            log_reopen(); /* the log was rotated, or the terminal is gone: the run goes on */
        if (info.ssi_signo == SIGHUP || info.ssi_signo == SIGCHLD)
            continue;
        self->asked++;
        self->last = (int)info.ssi_signo;
        self->sender = info.ssi_code == SI_USER || info.ssi_code == SI_QUEUE ? (int32_t)info.ssi_pid : 0;
    }
}

const char *interrupts_describe(const struct interrupts *self, char *out, size_t size)
{
    char name[32], path[32];
    const char *what = self->last == SIGINT    ? "Ctrl-C"
                       : self->last == SIGUSR1 ? "the time limit of the job is near"
                                               : "a signal (SIGTERM)";
    if (self->sender <= 0 || self->last == SIGUSR1) {
        snprintf(out, size, "%s", what);
        return out;
    }
    snprintf(path, sizeof path, "/proc/%d/comm", (int)self->sender);
    io_text(path, name, sizeof name); /* "": the process has ended, or is none of this machine's */
    name[strcspn(name, "\n")] = '\0';
    snprintf(out, size, "%s%s from %s%sprocess %d", what, self->last == SIGINT ? " (SIGINT)" : "", name,
             name[0] ? ", " : "", (int)self->sender);
    return out;
}
