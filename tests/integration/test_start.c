/* Brokers that must not start, and brokers that must go on: a path that is taken, too few descriptors, signals. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define ANY_PORTS "--set service=tcp://127.0.0.1:0 --set ingest=tcp://127.0.0.1:0 --set events=tcp://127.0.0.1:0"

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

static bool serves(const struct broker_process *self, const char *request)
{
    const char *argv[] = {process_env("RP_CTL"), "-e", self->service, request, NULL};
    return process_run(argv, NULL, 0, NULL, 0) == 0;
}

enum { MANY = 5 };
struct fixture {
    struct broker_process broker;
    pid_t pids[MANY]; /* of brokers that start at once; 0: not started, or has ended */
    int ended, wrong; /* how many of them; of those, not with 1 */
};

static void tear_down(struct fixture *f)
{
    for (int i = 0; i < MANY; i++)
        if (f->pids[i]) {
            kill(f->pids[i], SIGKILL);
            waitpid(f->pids[i], NULL, 0);
        }
    broker_process_fini(&f->broker);
}

FIXTURE(struct fixture, (void), tear_down)

CASE(a_path_that_is_taken_is_refused)
{
    char said[1024] = "";
    broker_process_start(&f->broker, tables, NULL);
    assert_int_equal(run_another(&f->broker, said, sizeof said), 1);
    assert_non_null(strstr(said, f->broker.service));
    assert_true(serves(&f->broker, "info"));
}

CASE(what_a_killed_broker_left_is_no_obstacle)
{
    broker_process_start(&f->broker, tables, NULL);
    broker_process_stop(&f->broker, SIGKILL);
    assert_true(file_exists(file_in(f->broker.dir, "service")));
    broker_process_again(&f->broker, NULL);
    assert_true(serves(&f->broker, "info"));
}

CASE(a_file_at_the_path_is_kept)
{
    char said[1024] = "";
    broker_process_start(&f->broker, tables, NULL);
    broker_process_stop(&f->broker, SIGKILL);
    assert_int_equal(unlink(file_in(f->broker.dir, "ingest")), 0);
    file_put(file_in(f->broker.dir, "ingest"), "mine");
    assert_int_equal(run_another(&f->broker, said, sizeof said), 1);
    assert_string_equal(file_text(file_in(f->broker.dir, "ingest")), "mine");
}

static bool all_but_one_ended(struct fixture *f)
{
    for (int i = 0, status; i < MANY; i++) {
        if (!f->pids[i] || waitpid(f->pids[i], &status, WNOHANG) != f->pids[i])
            continue;
        f->pids[i] = 0;
        f->ended++;
        f->wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 1;
    }
    return f->ended >= MANY - 1;
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
    int start[2];
    broker_process_start(&f->broker, tables, NULL);
    broker_process_stop(&f->broker, SIGKILL);
    assert_int_equal(pipe(start), 0);
    for (int i = 0; i < MANY; i++)
        f->pids[i] = start_at_end_of(start, file_in(f->broker.dir, "broker.yaml"));
    close(start[0]);
    close(start[1]);
    wait_until(all_but_one_ended(f));
    wait_until(serves(&f->broker, "info"));
    all_but_one_ended(f);
    assert_int_equal(f->ended, MANY - 1);
    assert_int_equal(f->wrong, 0);
}

/* ---- descriptors ---- */

static int run_limited(const char *arguments, int files, char *said, size_t size)
{
    const char *argv[] = {
        "/bin/sh", "-c",
        textf("ulimit -n %d && exec timeout -s KILL 20 %s %s", files, process_env("RP_BROKER"), arguments), NULL};
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
    static const char *const arguments[] = {ANY_PORTS, ANY_PORTS " --set io_threads=4"};
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

static bool has_refused(const struct broker_process *broker)
{
    return strstr(file_text(file_in(broker->dir, "log")), "B0007") != NULL;
}

/* With as few descriptors as it starts with, and with a disk, which takes most. */
TEST(more_connections_than_descriptors, tempdir_enter, tempdir_leave)
{
    char said[1024] = "";
    run_limited("", 24, said, sizeof said);
    const char *program = textf("%s", process_env("RP_BROKER")), *limited = tempdir_at("limited");
    const char *script = textf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", needed(said) + 6,
                               program); /* 6: those that a program has open when it begins */
    file_write(limited, script, strlen(script), 0700);
    struct broker_process broker;
    setenv("RP_BROKER", limited, 1);
    broker_process_start(&broker, tables,
                         textf("folder: %s/data\nstorage: {memory: 32MiB}\ncheckpoint: {every: 1s}", tempdir));
    setenv("RP_BROKER", program, 1);

    struct crowd crowd = {.n = 0};
    crowd_connect(&crowd, broker.dir, "service");
    crowd_connect(&crowd, broker.dir, "ingest");
    wait_until(has_refused(&broker));
    for (int i = 0; i < crowd.n; i++)
        close(crowd.sockets[i]);
    wait_until(serves(&broker, "info"));
    assert_true(serves(&broker, "checkpoint"));
    assert_int_equal(broker_process_stop(&broker, SIGTERM), 0);
    broker_process_fini(&broker);
}

/* ---- signals ---- */

TEST(no_signal_reaches_a_broker_that_goes)
{
    char said[1024] = "";
    const char *argv[] = {"/bin/sh", "-c",
                          textf("exec %s/tests/replay-broker-signals " ANY_PORTS " --endpoints-file /nowhere/at/all",
                                process_env("RP_BUILD_DIR")),
                          NULL};
    assert_int_equal(process_run(argv, NULL, 0, said, sizeof said), 1);
    assert_non_null(strstr(said, "/nowhere/at/all"));
}

/* SIGHUP: the broker opens its log anew, at any time, and goes on to its last checkpoint. */
static void await_text(const char *path, const char *text)
{
    wait_until(strstr(file_text(path), text));
}

TEST(a_hangup_opens_the_log_anew, tempdir_enter, tempdir_leave)
{
    char path[96];
    snprintf(path, sizeof path, "%s/broker.log", tempdir);
    struct broker_process broker;
    broker_process_start(&broker, tables, textf("log: {file: %s}\nfolder: %s/data\njournal: off\n", path, tempdir));
    await_text(path, "B0001");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rename(path, tempdir_at("broker.log.1")), 0);
        assert_int_equal(kill(broker.pid, SIGHUP), 0);
        await_text(path, "L0002");
    }
    rp_client *client = must(rp_client_connect(broker.service, NULL, WAIT, &err));
    rp_client_destroy(&client);
    for (int i = 0; i < 100; i++)
        kill(broker.pid, SIGHUP);
    kill(broker.pid, SIGTERM);
    for (int i = 0; i < 100; i++) /* also while it ends */
        kill(broker.pid, SIGHUP);
    int status = broker_process_stop(&broker, SIGHUP);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    await_text(path, "B0002");
    assert_true(file_exists(tempdir_at("data/checkpoint-00000001.replay")));
    broker_process_fini(&broker);
}
