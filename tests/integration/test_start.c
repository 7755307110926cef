/* Brokers that must not start, and brokers that must go on: a path that is taken, too few descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/support/process.h"
#include "tests/support/tempdir.h"

static const char tables[] = "  - {name: t, max_size: 10}\n";

/* Starts a broker with the configuration of this one, which must end by itself. */
static int run_another(const struct broker_process *self, char *said, size_t size)
{
    const char *argv[] = {"/usr/bin/timeout",
                          "-s",
                          "KILL",
                          "20",
                          process_env("RP_BROKER"),
                          "-c",
                          file_in(self->dir, "broker.yaml"),
                          NULL};
    return process_run(argv, NULL, 0, said, size);
}

static int serves(const char *service)
{
    const char *argv[] = {process_env("RP_CTL"), "-e", service, "info", NULL};
    return process_run(argv, NULL, 0, NULL, 0) == 0;
}

static int serves_now(void *ctx)
{
    return serves(((struct broker_process *)ctx)->service);
}

FIXTURE(struct broker_process, (void), broker_process_fini)

CASE(a_path_that_is_taken_is_refused)
{
    char said[1024] = "";
    broker_process_start(f, tables, NULL);
    assert_int_equal(run_another(f, said, sizeof said), 1);
    assert_non_null(strstr(said, f->service));
    assert_true(serves(f->service));
}

CASE(what_a_killed_broker_left_is_no_obstacle)
{
    struct stat file;
    broker_process_start(f, tables, NULL);
    broker_process_stop(f, SIGKILL);
    assert_int_equal(stat(file_in(f->dir, "service"), &file), 0);
    broker_process_again(f, NULL);
    assert_true(serves(f->service));
}

CASE(a_file_at_the_path_is_kept)
{
    char path[128], said[1024] = "";
    broker_process_start(f, tables, NULL);
    broker_process_stop(f, SIGKILL);
    snprintf(path, sizeof path, "%s/ingest", f->dir);
    assert_int_equal(unlink(path), 0);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(file, "mine", 4), 4);
    close(file);
    assert_int_equal(run_another(f, said, sizeof said), 1);
    struct stat now;
    assert_int_equal(stat(path, &now), 0);
    assert_int_equal(now.st_size, 4);
}

enum { MANY = 5 };
struct race {
    pid_t pids[MANY]; /* 0: has ended */
    int ended, wrong;
};

static int all_but_one_ended(void *ctx)
{
    struct race *self = ctx;
    for (int i = 0, status; i < MANY; i++) {
        if (!self->pids[i] || waitpid(self->pids[i], &status, WNOHANG) != self->pids[i])
            continue;
        self->pids[i] = 0;
        self->ended++;
        self->wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 1;
    }
    return self->ended >= MANY - 1;
}

static pid_t start_at_end_of(const int *start, const char *config)
{
    const char *program = process_env("RP_BROKER");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid != 0)
        return pid;
    char go;
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    dup2(null, 2);
    close(start[1]);
    if (read(start[0], &go, 1) == 0)
        execl(program, program, "-c", config, (char *)NULL);
    _exit(127);
}

/* Of brokers that start at the same instant exactly one stays. */
CASE(one_of_many_gets_the_path)
{
    struct race race = {.ended = 0};
    int start[2];
    broker_process_start(f, tables, NULL);
    broker_process_stop(f, SIGKILL);
    assert_int_equal(pipe(start), 0);
    for (int i = 0; i < MANY; i++)
        race.pids[i] = start_at_end_of(start, file_in(f->dir, "broker.yaml"));
    close(start[0]);
    close(start[1]);
    int ended = process_await(all_but_one_ended, &race);
    int served = ended && process_await(serves_now, f);
    for (int i = 0; i < MANY; i++)
        if (race.pids[i])
            kill(race.pids[i], SIGKILL);
    assert_true(ended);
    assert_true(served);
    assert_int_equal(race.ended, MANY - 1);
    assert_int_equal(race.wrong, 0);
}

/* ---- descriptors ---- */

static int run_limited(const char *arguments, int files, char *said, size_t size)
{
    char line[512];
    snprintf(line, sizeof line, "ulimit -n %d && exec timeout -s KILL 20 %s %s", files, process_env("RP_BROKER"),
             arguments);
    const char *argv[] = {"/bin/sh", "-c", line, NULL};
    return process_run(argv, NULL, 0, said, size);
}

/* The number of descriptors that the sentence asks for. */
static int needed(const char *text)
{
    const char *at = strstr(text, "at least ");
    return at ? atoi(at + strlen("at least ")) : 0;
}

TEST(too_few_descriptors_are_told)
{
    static const char *const arguments[] = {
        "--set service=tcp://127.0.0.1:0 --set ingest=tcp://127.0.0.1:0 --set events=tcp://127.0.0.1:0",
        "--set service=tcp://127.0.0.1:0 --set ingest=tcp://127.0.0.1:0 --set events=tcp://127.0.0.1:0 "
        "--set io_threads=4"};
    int need[2];
    for (int i = 0; i < 2; i++) {
        char said[1024] = "";
        assert_int_equal(run_limited(arguments[i], 24, said, sizeof said), 1);
        assert_non_null(strstr(said, " 24 "));
        need[i] = needed(said);
        assert_true(need[i] > 24);
        assert_int_equal(run_limited(arguments[i], need[i] - 1, said, sizeof said), 1);
    }
    assert_int_equal(need[1] - need[0], 6);
}

struct crowd {
    int sockets[300];
    int n;
};

/* Connects as often as the listener's queue takes it. */
static void crowd_connect(struct crowd *self, const char *dir, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, name);
    for (int i = 0; i < 100; i++) {
        int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        assert_true(s >= 0);
        if (connect(s, (struct sockaddr *)&address, sizeof address) != 0)
            assert_int_equal(errno, EAGAIN);
        self->sockets[self->n++] = s;
    }
}

static int has_refused(void *ctx)
{
    const struct broker_process *broker = ctx;
    return strstr(file_text(file_in(broker->dir, "log")), "B0007") != NULL;
}

/* A program that runs the broker with so few descriptors. */
static void write_limited(const char *path, int files)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", files, process_env("RP_BROKER"));
    fclose(file);
    assert_int_equal(chmod(path, 0700), 0);
}

/* With as few descriptors as it starts with, and with a disk, which takes most. */
TEST(more_connections_than_descriptors, tempdir_enter, tempdir_leave)
{
    char said[1024] = "", more[300], program[512];
    run_limited("", 24, said, sizeof said);
    write_limited(tempdir_at("limited"), needed(said) + 6); /* those that a program has open when it begins */
    snprintf(program, sizeof program, "%s", process_env("RP_BROKER"));
    snprintf(more, sizeof more, "folder: %s/data\nstorage: {memory: 32MiB}\ncheckpoint: {every: 1s}", tempdir);
    struct broker_process broker;
    setenv("RP_BROKER", tempdir_at("limited"), 1);
    broker_process_start(&broker, tables, more);
    setenv("RP_BROKER", program, 1);

    struct crowd crowd = {.n = 0};
    crowd_connect(&crowd, broker.dir, "service");
    crowd_connect(&crowd, broker.dir, "ingest");
    assert_true(process_await(has_refused, &broker));
    for (int i = 0; i < crowd.n; i++)
        close(crowd.sockets[i]);
    assert_true(process_await(serves_now, &broker));
    const char *checkpoint[] = {process_env("RP_CTL"), "-e", broker.service, "checkpoint", NULL};
    assert_int_equal(process_run(checkpoint, NULL, 0, NULL, 0), 0);
    assert_int_equal(broker_process_stop(&broker, SIGTERM), 0);
    broker_process_fini(&broker);
}

/* ---- signals ---- */

TEST(no_signal_reaches_a_broker_that_goes)
{
    char program[512], said[1024] = "";
    snprintf(program, sizeof program, "%s/tests/replay-broker-signals", process_env("RP_BUILD_DIR"));
    const char *argv[] = {program,
                          "--set",
                          "service=tcp://127.0.0.1:0",
                          "--set",
                          "ingest=tcp://127.0.0.1:0",
                          "--set",
                          "events=tcp://127.0.0.1:0",
                          "--endpoints-file",
                          "/nowhere/at/all",
                          NULL};
    assert_int_equal(process_run(argv, NULL, 0, said, sizeof said), 1);
    assert_non_null(strstr(said, "/nowhere/at/all"));
}
