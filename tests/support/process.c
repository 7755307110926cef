/* See process.h. */
#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "tests/support/tempdir.h"

const char *process_env(const char *name)
{
    const char *value = getenv(name);
    if (!value)
        fail_msg("%s is not set: run this through ctest", name);
    return value;
}

/* ---- broker ---- */

static void write_config(const struct broker_process *self, const char *tables, const char *more)
{
    const char *endpoints = more && strstr(more, "service:")
                                ? ""
                                : textf("service: ipc://%s/service\ningest: ipc://%s/ingest\nevents: ipc://%s/events\n",
                                        self->dir, self->dir, self->dir);
    file_put(file_in(self->dir, "broker.yaml"), textf("%s%s\ntables:\n%s\n", endpoints, more ? more : "", tables));
}

pid_t process_spawn(const char *const *argv, int out, int errors)
{
    /* Nobody is left of a test that dies. The kernel watches the thread that starts a process, so only the main one will do. */
    bool main_thread = gettid() == getpid();
    const struct spawn spawn = {.argv = argv, .in = SPAWN_KEEP, .out = out, .err = errors, .dies_with_us = main_thread};
    int error;
    pid_t pid = spawn_start(&spawn, &error);
    if (pid < 0)
        fail_msg("%s does not start: %s", argv[0], strerror(error));
    return pid;
}

/* Also true if the broker has ended, which sets its pid to 0. */
static bool has_started(struct broker_process *self)
{
    char path[80];
    snprintf(path, sizeof path, "%s/endpoints", self->dir);
    if (waitpid(self->pid, NULL, WNOHANG) == self->pid)
        self->pid = 0;
    return !self->pid || file_exists(path);
}

static void launch(struct broker_process *self)
{
    const char *log = file_in(self->dir, "log"), *endpoints = file_in(self->dir, "endpoints");
    const char *const argv[] = {process_env("RP_BROKER"), "-c",      file_in(self->dir, "broker.yaml"),
                                "--endpoints-file",       endpoints, NULL};
    unlink(endpoints);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    self->pid = process_spawn(argv, fd, fd);
    close(fd);
    bool started;
    for (int64_t end = clock_ns() + WAIT * NS_PER_MS; !(started = has_started(self)) && clock_ns() < end;)
        nanosleep(&(struct timespec){.tv_nsec = 2 * NS_PER_MS}, NULL);
    if (!started || !self->pid)
        fail_msg("the broker %s:\n%s", self->pid ? "does not listen" : "did not start", file_text(log));
}

void broker_process_start(struct broker_process *self, const char *tables, const char *more)
{
    *self = (struct broker_process){0};
    snprintf(self->dir, sizeof self->dir, "/tmp/replay-test-XXXXXX");
    assert_non_null(mkdtemp(self->dir));
    if (!more || sscanf(more, "service: %127s", self->service) != 1)
        snprintf(self->service, sizeof self->service, "ipc://%s/service", self->dir);
    snprintf(self->more, sizeof self->more, "%s", more ? more : "");
    write_config(self, tables, more);
    launch(self);
}

int broker_process_stop(struct broker_process *self, int signal_number)
{
    kill(self->pid, signal_number);
    int status = spawn_reap(self->pid);
    self->pid = 0;
    return status;
}

void broker_process_again(struct broker_process *self, const char *tables)
{
    if (tables)
        write_config(self, tables, self->more);
    launch(self);
}

void broker_process_fini(struct broker_process *self)
{
    if (self->pid)
        broker_process_stop(self, SIGKILL);
    uint32_t n;
    char **files = files_like(file_in(self->dir, "*"), &n);
    while (n > 0)
        unlink(files[--n]);
    rmdir(self->dir);
}

void served_start(void *fixture, const char *tables, const char *more, const rp_client_options *options)
{
    struct served *self = fixture;
    broker_process_start(&self->broker, tables, more);
    self->client = must(rp_client_connect(self->broker.service, options, WAIT, &err));
}

void served_stop(void *fixture)
{
    struct served *self = fixture;
    rp_client_destroy(&self->client);
    broker_process_fini(&self->broker);
}

/* ---- programs ---- */

int process_run(const char *const *argv, char *out, size_t out_size, char *error, size_t error_size)
{
    int files[] = {memfd_create("out", MFD_CLOEXEC), memfd_create("errors", MFD_CLOEXEC)};
    int status = spawn_reap(process_spawn(argv, files[0], files[1]));
    char *texts[] = {out, error};
    size_t sizes[] = {out_size, error_size};
    for (int i = 0; i < 2; i++) {
        ssize_t n = texts[i] ? pread(files[i], texts[i], sizes[i] - 1, 0) : 0;
        if (texts[i])
            texts[i][n > 0 ? n : 0] = '\0';
        close(files[i]);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

uint32_t process_threads(void)
{
    uint32_t n;
    files_like("/proc/self/task/*", &n);
    return n;
}

uint64_t process_memory(pid_t pid, const char *kind)
{
    const char *at = strstr(file_text(textf("/proc/%d/status", (int)pid)), kind);
    assert_non_null(at);
    return strtoull(at + strlen(kind) + 1, NULL, 10) * 1024;
}
