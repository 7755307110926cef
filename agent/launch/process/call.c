#include "agent/launch/process/call.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

#define LOOK_MS 5
/* Longer answers are cut: an array of Slurm has at most some thousand tasks. */
#define MOST_TEXT (1u << 20)

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

rp_status call_start(struct call *self, const char *const *argv, const char *const *environment, int64_t limit_ns,
                     rp_error *err)
{
    int out[2] = {-1, -1}, errors[2] = {-1, -1}, error = 0;
    call_fini(self);
    if (pipe2(out, O_CLOEXEC) == 0 && pipe2(errors, O_CLOEXEC) == 0) {
        const struct spawn spawn = {.argv = argv,
                                    .environment = environment,
                                    .in = SPAWN_NULL,
                                    .out = out[1],
                                    .err = errors[1],
                                    .dies_with_us = true};
        self->pid = spawn_start(&spawn, &error);
    } else {
        self->pid = -1;
        error = errno;
    }
    close_fd(out[1]);
    close_fd(errors[1]);
    if (self->pid < 0) {
        close_fd(out[0]);
        close_fd(errors[0]);
        self->pid = 0;
        return err_set(err, error == ENOENT ? RP_NOT_FOUND : RP_IO, "'%s' cannot be started: %s", argv[0],
                       strerror(error));
    }
    self->out.fd = out[0];
    self->err.fd = errors[0];
    fcntl(self->out.fd, F_SETFL, O_NONBLOCK);
    fcntl(self->err.fd, F_SETFL, O_NONBLOCK);
    self->limit_ns = limit_ns;
    self->deadline_ns = clock_ns() + limit_ns;
    return RP_OK;
}

static void read_stream(struct call_stream *self)
{
    char block[4096];
    ssize_t n = 1;
    for (size_t total = 0; total < MOST_TEXT && (n = read(self->fd, block, sizeof block)) > 0; total += (size_t)n) {
        size_t room = MOST_TEXT - self->size, taken = (size_t)n < room ? (size_t)n : room;
        self->text = need_resize(self->text, self->size + taken + 1, 1);
        memcpy(self->text + self->size, block, taken);
        self->size += taken;
        self->text[self->size] = '\0';
    }
}

static void leave(struct call *self)
{
    self->pid = 0;
    close(self->out.fd);
    close(self->err.fd);
}

bool call_ended(struct call *self)
{
    if (self->pid == 0)
        return false;
    read_stream(&self->out);
    read_stream(&self->err);
    self->late = clock_ns() > self->deadline_ns;
    if (self->late)
        kill(-self->pid, SIGKILL);
    if (waitpid(self->pid, &self->status, self->late ? 0 : WNOHANG) == 0)
        return false;
    read_stream(&self->out);
    read_stream(&self->err);
    leave(self);
    return true;
}

bool call_succeeded(const struct call *self)
{
    return !self->late && WIFEXITED(self->status) && WEXITSTATUS(self->status) == 0;
}

bool call_await(struct call *self)
{
    while (!call_ended(self))
        poll(NULL, 0, LOOK_MS);
    return call_succeeded(self);
}

const char *call_text(const struct call_stream *stream)
{
    return stream->text ? stream->text : "";
}

void call_fini(struct call *self)
{
    if (self->pid > 0) {
        kill(-self->pid, SIGKILL);
        spawn_reap(self->pid);
        leave(self);
    }
    free(self->out.text);
    free(self->err.text);
    *self = (struct call){0};
}
