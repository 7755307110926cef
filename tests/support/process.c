/* See process.h. */
#include "tests/support/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"

const char *process_env(const char *name)
{
    const char *value = getenv(name);
    if (!value)
        fail_msg("%s is not set: run this through ctest", name);
    return value;
}

static int64_t now_ms(void)
{
    return clock_ns() / NS_PER_MS;
}

int process_await(int (*test)(void *ctx), void *ctx)
{
    int64_t until = now_ms() + WAIT;
    while (!test(ctx)) {
        if (now_ms() >= until)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return 1;
}

/* ---- broker ---- */

static void write_config(const struct broker_process *self, const char *tables, const char *more)
{
    char path[128];
    snprintf(path, sizeof path, "%s/broker.yaml", self->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    if (!more || !strstr(more, "service:"))
        fprintf(file, "service: ipc://%s/service\ningest: ipc://%s/ingest\nevents: ipc://%s/events\n", self->dir,
                self->dir, self->dir);
    fprintf(file, "%s\ntables:\n%s\n", more ? more : "", tables);
    fclose(file);
}

struct start {
    char path[128];
    pid_t pid;
    int dead;
};

static int has_started(void *ctx)
{
    struct start *start = ctx;
    start->dead = waitpid(start->pid, NULL, WNOHANG) == start->pid;
    return start->dead || access(start->path, R_OK) == 0;
}

static void print_file(const char *dir, const char *name)
{
    char path[128], line[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        print_error("%s", line);
    if (file)
        fclose(file);
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

static void launch(struct broker_process *self)
{
    const char *program = process_env("RP_BROKER");
    char config[128], log[128];
    struct start start = {0};
    snprintf(config, sizeof config, "%s/broker.yaml", self->dir);
    snprintf(log, sizeof log, "%s/log", self->dir);
    snprintf(start.path, sizeof start.path, "%s/endpoints", self->dir);
    unlink(start.path);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const char *const argv[] = {program, "-c", config, "--endpoints-file", start.path, NULL};
    start.pid = self->pid = process_spawn(argv, fd, fd);
    close(fd);
    int ok = process_await(has_started, &start);
    if (!ok || start.dead) {
        print_file(self->dir, "log");
        if (start.dead)
            self->pid = 0;
        fail_msg("the broker did not start");
    }
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
    static const char *const names[] = {"broker.yaml", "log", "endpoints", "service", "ingest", "events"};
    if (self->pid)
        broker_process_stop(self, SIGKILL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", self->dir, names[i]);
        unlink(path);
    }
    rmdir(self->dir);
}

void served_start(void *fixture, const char *tables, const char *more)
{
    struct served *self = fixture;
    broker_process_start(&self->broker, tables, more);
    self->client = must(rp_client_connect(self->broker.service, NULL, WAIT, &err));
}

void served_stop(void *fixture)
{
    struct served *self = fixture;
    rp_client_destroy(&self->client);
    broker_process_fini(&self->broker);
}

/* ---- programs ---- */

struct capture {
    int fd;
    char *out;
    size_t size, used;
};

static int capture_read(struct capture *self)
{
    char buffer[4096];
    ssize_t n = read(self->fd, buffer, sizeof buffer);
    if (n <= 0)
        return 0;
    for (ssize_t i = 0; i < n && self->out && self->used + 1 < self->size; i++)
        self->out[self->used++] = buffer[i];
    return 1;
}

int process_run(const char *const *argv, char *out, size_t out_size, char *error, size_t error_size)
{
    int pipes[2][2];
    assert_int_equal(pipe(pipes[0]), 0);
    assert_int_equal(pipe(pipes[1]), 0);
    pid_t pid = process_spawn(argv, pipes[0][1], pipes[1][1]);
    close(pipes[0][1]);
    close(pipes[1][1]);
    struct capture captures[2] = {{pipes[0][0], out, out_size, 0}, {pipes[1][0], error, error_size, 0}};
    for (int open = 2; open > 0;) {
        struct pollfd fds[2] = {{captures[0].fd, POLLIN, 0}, {captures[1].fd, POLLIN, 0}};
        poll(fds, 2, -1);
        for (int i = 0; i < 2; i++) {
            if (captures[i].fd >= 0 && fds[i].revents && !capture_read(&captures[i])) {
                close(captures[i].fd);
                captures[i].fd = -1;
                open--;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        if (captures[i].out)
            captures[i].out[captures[i].used] = '\0';
    }
    int status = spawn_reap(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

uint32_t process_threads(void)
{
    uint32_t n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}
