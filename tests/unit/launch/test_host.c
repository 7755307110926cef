/* Hosts, with the real node agent as the carrier: there is nothing between both sides but pipes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/launch/host/host.h"
#include "agent/launch/host/host_measure.h"
#include "proto/base/clock.h"

#define MARK "REPLAY_TEST_HOST"

struct fixture {
    char dir[64];    /* of the test */
    char folder[80]; /* of the run */
    char mark[64];   /* in the environment of all descendants */
    struct guard guard;
    struct host *host;
};

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void tend(struct fixture *f)
{
    host_tend(f->host, now());
    pause_ms(2);
}

/* Tends the host until the condition holds, for up to 20 s. */
#define await(f, condition)                                                                                            \
    do {                                                                                                               \
        int64_t end_ = now() + 20 * NS_PER_S;                                                                          \
        while (!(condition)) {                                                                                         \
            if (now() > end_)                                                                                          \
                fail_msg("waited in vain for: %s (host %s: %s)", #condition,                                           \
                         (f)->host ? host_state_names[host_state((f)->host)] : "-",                                    \
                         (f)->host ? host_reason((f)->host) : "");                                                     \
            if ((f)->host)                                                                                             \
                tend(f);                                                                                               \
            else                                                                                                       \
                pause_ms(2);                                                                                           \
        }                                                                                                              \
    } while (0)

/* ---- files ---- */

static const char *path_in(const char *folder, const char *name)
{
    static char paths[8][700];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t size, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

static void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text), 0666);
}

/* The contents of a small file; "": there is none. */
static const char *text_of(const char *path)
{
    static char texts[4][65536];
    static unsigned next;
    char *text = texts[next++ % 4];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof texts[0] - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static int64_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : -1;
}

/* ---- processes ---- */

/* Counts the processes that have the test's mark in their environment; of these, *one is any. Zombies do not count. */
static int count_marked(const struct fixture *f, pid_t *one)
{
    DIR *proc = opendir("/proc");
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(proc));) {
        char path[300], *text = NULL;
        size_t capacity = 0;
        pid_t pid = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/environ", entry->d_name);
        FILE *file = pid > 0 && pid != getpid() ? fopen(path, "re") : NULL;
        while (file && getdelim(&text, &capacity, '\0', file) > 0) {
            if (strcmp(text, f->mark) != 0)
                continue;
            count++;
            *one = pid;
            break;
        }
        free(text);
        if (file)
            fclose(file);
    }
    closedir(proc);
    return count;
}

static void await_nobody(struct fixture *f)
{
    pid_t one = 0;
    await(f, count_marked(f, &one) == 0);
}

static void start(struct fixture *f, struct process *process, const char *name, const char *const *argv)
{
    char log[128];
    snprintf(log, sizeof log, "%s/%s.log", f->dir, name);
    const struct process_options options = {
        .name = name, .argv = argv, .log = log, .guard = &f->guard, .place = host_place(f->host)};
    rp_error err = {0};
    if (process_start(process, &options, now(), &err) != RP_OK)
        fail_msg("%s", err.text);
}

static void shell(struct fixture *f, struct process *process, const char *name, const char *script)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    start(f, process, name, argv);
}

static int await_end(struct fixture *f, struct process *process)
{
    int status = -1;
    await(f, process_ended(process, &status));
    return status;
}

static const char *log_of(const struct fixture *f, const char *name)
{
    char log[64];
    snprintf(log, sizeof log, "%s.log", name);
    return text_of(path_in(f->dir, log));
}

/* ---- fixture ---- */

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    rp_error err = {0};
    snprintf(f->dir, sizeof f->dir, "/tmp/test-host-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->folder, sizeof f->folder, "%s/run", f->dir);
    mkdir(f->folder, 0777);
    snprintf(f->mark, sizeof f->mark, MARK "=%s", f->dir);
    setenv(MARK, f->dir, 1);
    setenv("TMPDIR", f->dir, 1);
    unsetenv("XDG_RUNTIME_DIR");
    setenv("SSH_CONNECTION", "10.1.2.3 4567 10.1.2.4 22", 1);
    assert_int_equal(guard_start(&f->guard, &err), RP_OK);
    *state = f;
    return 0;
}

static bool is_work(const char *name)
{
    return strncmp(name, "replay-node-", 12) == 0;
}

/* The work folder of a node agent that has not ended; "": none. */
static const char *find_work(const struct fixture *f)
{
    static char path[400];
    DIR *folder = opendir(f->dir);
    path[0] = '\0';
    for (const struct dirent *entry; (entry = readdir(folder));)
        if (is_work(entry->d_name))
            snprintf(path, sizeof path, "%s/%s", f->dir, entry->d_name);
    closedir(folder);
    return path;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];
    host_destroy(&f->host);
    guard_stop(&f->guard);
    await_nobody(f);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    int rc = system(command);
    free(f);
    return rc;
}

static void make(struct fixture *f, const char *const *carrier, int64_t lease_ns)
{
    rp_error err = {0};
    const struct host_options options = {.name = "cpu3",
                                         .carrier = carrier,
                                         .folder = f->folder,
                                         .here = f->dir,
                                         .guard = &f->guard,
                                         .lease_ns = lease_ns};
    f->host = host_new(&options, &err);
    assert_non_null(f->host);
    assert_int_equal(host_state(f->host), HOST_ABSENT);
    host_open(f->host, now());
}

/* A carrier that writes its number, which is the node agent's, into a file. */
static void connect_node(struct fixture *f, int64_t lease_ns)
{
    const char *const carrier[] = {"/bin/sh", "-c", "echo $$ > \"$" MARK "/pid\"; exec \"$RP_LAUNCH\" node", NULL};
    make(f, carrier, lease_ns);
    await(f, host_state(f->host) == HOST_READY);
}

static void connect_script(struct fixture *f, const char *script)
{
    const char *const carrier[] = {"/bin/sh", "-c", script, NULL};
    make(f, carrier, 0);
}

static pid_t node_of(const struct fixture *f)
{
    return (pid_t)atoi(text_of(path_in(f->dir, "pid")));
}

/* ---- processes there ---- */

static void test_facts(void **state)
{
    struct fixture *f = *state;
    char name[HOST_NAME] = "";
    connect_node(f, 0);
    const struct host_facts *facts = host_facts(f->host);
    gethostname(name, sizeof name - 1);
    assert_string_equal(facts->hostname, name);
    assert_true(facts->cores > 0 && facts->memory > 0);
    assert_true(strchr(facts->model, '(') != NULL);
    assert_string_equal(facts->here, f->dir);
    assert_string_equal(facts->work, find_work(f));
    assert_string_equal(facts->address, "10.1.2.3");
    assert_int_equal(host_times(f->host), 1);
    struct stat info;
    assert_int_equal(stat(facts->work, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    await(f, host_load(f->host).memory > 0);
}

static void test_ends(void **state)
{
    struct fixture *f = *state;
    struct process a, b, c;
    int status = -1;
    connect_node(f, 0);
    shell(f, &a, "a", "echo one; echo two >&2; exit 3");
    shell(f, &b, "b", "kill -SEGV $$");
    shell(f, &c, "c", "sleep 100 & echo $!; echo \"$0 $REPLAY_X\"");
    assert_true(a.running && a.place == host_place(f->host));
    assert_int_equal(await_end(f, &a), 3 << 8);
    assert_string_equal(log_of(f, "a"), "one\ntwo\n");
    assert_false(a.running);
    assert_false(process_ended(&a, &status));
    status = await_end(f, &b);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_int_equal(await_end(f, &c), 0);
    pid_t left = (pid_t)atoi(log_of(f, "c"));
    assert_true(left > 0);
    await(f, kill(left, 0) != 0); /* the rest of the group goes with the process */
}

static void test_environment(void **state)
{
    struct fixture *f = *state;
    struct process a;
    rp_error err = {0};
    char log[128], cwd[512];
    snprintf(log, sizeof log, "%s/a.log", f->dir);
    const char *const argv[] = {"/bin/sh", "-c", "echo \"$REPLAY_X|$1\"; pwd", "sh", "with \"quotes\"\n and \x01 \xff",
                                NULL};
    const char *const environment[] = {"REPLAY_X=a b=c", NULL};
    const struct process_options options = {.name = "a",
                                            .argv = argv,
                                            .environment = environment,
                                            .log = log,
                                            .place = host_place((connect_node(f, 0), f->host))};
    assert_int_equal(process_start(&a, &options, now(), &err), RP_OK);
    assert_int_equal(await_end(f, &a), 0);
    char expected[1024];
    snprintf(expected, sizeof expected, "a b=c|with \"quotes\"\n and \x01 \xff\n%s\n", getcwd(cwd, sizeof cwd));
    assert_string_equal(log_of(f, "a"), expected);
}

static void test_ask_and_kill(void **state)
{
    struct fixture *f = *state;
    struct process a, b;
    struct process_usage usage;
    connect_node(f, 0);
    shell(f, &a, "a", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    shell(f, &b, "b", "trap '' TERM; echo ready; while :; do :; done");
    await(f, log_of(f, "a")[0] && log_of(f, "b")[0]);
    await(f, process_usage(&b, &usage) && usage.cpu_ns > 0);
    process_ask(&a, now());
    process_ask(&b, now());
    assert_int_equal(await_end(f, &a), 7 << 8);
    int status = 0;
    assert_false(process_ended(&b, &status));
    assert_true(b.pid > 0);
    process_kill(&b);
    status = await_end(f, &b);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_no_such_program(void **state)
{
    struct fixture *f = *state;
    struct process a;
    const char *const argv[] = {"/nowhere/program", NULL};
    connect_node(f, 0);
    start(f, &a, "a", argv);
    assert_int_equal(await_end(f, &a), 127 << 8);
    assert_true(strstr(log_of(f, "a"), "/nowhere/program") != NULL);
}

static void test_too_long_a_command(void **state)
{
    struct fixture *f = *state;
    struct process a;
    rp_error err = {0};
    char *word = calloc(1, 100000), log[128];
    memset(word, 'x', 99999);
    connect_node(f, 0);
    snprintf(log, sizeof log, "%s/a.log", f->dir);
    const char *const argv[] = {"/bin/echo", word, NULL};
    const struct process_options options = {.name = "a", .argv = argv, .log = log, .place = host_place(f->host)};
    assert_int_equal(process_start(&a, &options, now(), &err), RP_INVALID_ARGUMENT);
    assert_false(a.running);
    free(word);
    shell(f, &a, "a", "exit 0"); /* the connection is still good */
    assert_int_equal(await_end(f, &a), 0);
}

static void test_many(void **state)
{
    enum { N = 50 };
    struct fixture *f = *state;
    struct process processes[N];
    connect_node(f, 0);
    for (int i = 0; i < N; i++) {
        char name[32], script[96];
        snprintf(name, sizeof name, "p%d", i);
        snprintf(script, sizeof script, "echo %d; exit %d", i, i);
        shell(f, &processes[i], name, script);
    }
    for (int i = 0; i < N; i++) {
        char name[32], text[32];
        snprintf(name, sizeof name, "p%d", i);
        snprintf(text, sizeof text, "%d\n", i);
        assert_int_equal(await_end(f, &processes[i]), i << 8);
        assert_string_equal(log_of(f, name), text);
    }
}

static int64_t memory_of(pid_t pid)
{
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "re");
    assert_true(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* The bytes that a process has written; -1: not known. */
static int64_t written_by(pid_t pid)
{
    char path[64], line[128];
    int64_t bytes = -1;
    snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "wchar: %" SCNd64, &bytes);
    if (file)
        fclose(file);
    return bytes;
}

static void test_flood(void **state)
{
    struct fixture *f = *state;
    struct process flood, other;
    connect_node(f, 0);
    shell(f, &flood, "flood", "exec yes");
    await(f, flood.pid > 0 || process_ended(&flood, &(int){0}));
    pid_t yes = flood.pid;
    int64_t before = memory_of(node_of(f)), last = -2, bytes = -1;
    /* Nobody reads: the program is held back soon. */
    for (int i = 0; i < 400 && (bytes = written_by(yes)) != last; i++) {
        last = bytes;
        pause_ms(100);
    }
    assert_true(bytes == last && bytes > 0);
    assert_true(memory_of(node_of(f)) - before < 8 * 1024 * 1024);
    /* Others are heard beside it. */
    shell(f, &other, "other", "echo done; exit 5");
    assert_int_equal(await_end(f, &other), 5 << 8);
    assert_string_equal(log_of(f, "other"), "done\n");
    assert_true(size_of(path_in(f->dir, "flood.log")) >= 64 * 1024);
    process_kill(&flood);
    assert_true(WIFSIGNALED(await_end(f, &flood)));
    assert_int_equal(host_state(f->host), HOST_READY);
}

/* ---- files ---- */

static void test_mirror(void **state)
{
    struct fixture *f = *state;
    struct process a;
    char script[2048];
    connect_node(f, 0);
    const char *work = host_facts(f->host)->work;
    snprintf(script, sizeof script,
             "cd '%s' && echo 1 > a.jsonl && mkdir -p deep/er && echo x > deep/er/file && echo secret > config.yaml && "
             "mkdir keys && echo k > keys/k && echo hidden > .hidden && echo t > w.tmp && echo old > w && "
             "ln -s /etc/passwd link && "
             "read x < go1; echo 2 >> a.jsonl; echo newer > w.tmp; mv w.tmp w; read x < go2; echo 3 > a.jsonl; exit 4",
             work);
    assert_int_equal(mkfifo(path_in(work, "go1"), 0600), 0);
    assert_int_equal(mkfifo(path_in(work, "go2"), 0600), 0);
    shell(f, &a, "a", script);
    await(f, strcmp(text_of(path_in(f->folder, "a.jsonl")), "1\n") == 0);
    await(f, strcmp(text_of(path_in(f->folder, "deep/er/file")), "x\n") == 0);
    await(f, strcmp(text_of(path_in(f->folder, "w")), "old\n") == 0);
    struct stat before, after;
    assert_int_equal(stat(path_in(f->folder, "a.jsonl"), &before), 0);
    write_text(path_in(work, "go1"), "\n");
    await(f, strcmp(text_of(path_in(f->folder, "a.jsonl")), "1\n2\n") == 0);
    assert_int_equal(stat(path_in(f->folder, "a.jsonl"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* appended */
    await(f, strcmp(text_of(path_in(f->folder, "w")), "newer\n") == 0);
    write_text(path_in(work, "go2"), "\n");
    assert_int_equal(await_end(f, &a), 4 << 8);
    assert_string_equal(text_of(path_in(f->folder, "a.jsonl")), "3\n"); /* at the latest with the end */
    static const char *const absent[] = {"config.yaml", "keys", ".hidden", "w.tmp", "link", "go1"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_false(exists(path_in(f->folder, absent[i])));
}

/* The end of a process comes after the last byte of what it has written and printed. */
static void test_end_after_files(void **state)
{
    struct fixture *f = *state;
    struct process a;
    char script[1024];
    connect_node(f, 0);
    snprintf(script, sizeof script,
             "head -c 5000000 /dev/urandom > '%s/big'; head -c 3000000 /dev/zero; cksum < '%s/big' > '%s/sum'",
             host_facts(f->host)->work, host_facts(f->host)->work, f->dir);
    shell(f, &a, "a", script);
    assert_int_equal(await_end(f, &a), 0);
    assert_int_equal(size_of(path_in(f->dir, "a.log")), 3000000);
    char command[512];
    snprintf(command, sizeof command, "cksum < '%s/big' | cmp - '%s/sum'", f->folder, f->dir);
    assert_int_equal(system(command), 0);
}

/* A process goes on with its own files after its host was lost, and files that are gone at home are gone there. */
static void test_own_files(void **state)
{
    struct fixture *f = *state;
    struct process a;
    char script[1024];
    connect_node(f, 0);
    for (int round = 1; round <= 3; round++) {
        snprintf(script, sizeof script, "echo %d >> '%s/actor-0.jsonl'", round, host_facts(f->host)->work);
        shell(f, &a, "actor-0", script);
        assert_int_equal(await_end(f, &a), 0);
        if (round == 2)
            break;
        host_close(f->host);
        assert_int_equal(host_state(f->host), HOST_ABSENT);
        host_open(f->host, now());
        await(f, host_state(f->host) == HOST_READY);
    }
    assert_int_equal(host_times(f->host), 2);
    assert_string_equal(text_of(path_in(f->folder, "actor-0.jsonl")), "1\n2\n");
    unlink(path_in(f->folder, "actor-0.jsonl"));
    shell(f, &a, "actor-0", script);
    assert_int_equal(await_end(f, &a), 0);
    assert_string_equal(text_of(path_in(f->folder, "actor-0.jsonl")), "2\n");
}

/* A copy at home that somebody has cut is made whole again. */
static void test_copy_cut(void **state)
{
    struct fixture *f = *state;
    struct process a;
    char script[1024];
    connect_node(f, 0);
    snprintf(script, sizeof script, "cd '%s'; echo one > x; read y < go; echo two >> x", host_facts(f->host)->work);
    assert_int_equal(mkfifo(path_in(host_facts(f->host)->work, "go"), 0600), 0);
    shell(f, &a, "a", script);
    await(f, strcmp(text_of(path_in(f->folder, "x")), "one\n") == 0);
    write_text(path_in(f->folder, "x"), "on");
    write_text(path_in(host_facts(f->host)->work, "go"), "\n");
    await(f, strcmp(text_of(path_in(f->folder, "x")), "one\ntwo\n") == 0);
    assert_int_equal(await_end(f, &a), 0);
}

static void test_send_files(void **state)
{
    struct fixture *f = *state;
    struct process a;
    struct stat info;
    rp_error err = {0};
    size_t size = 3000001;
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    write_file(path_in(f->dir, "key"), "secret\n", 7, 0600);
    write_file(path_in(f->dir, "empty"), "", 0, 0644);
    write_file(path_in(f->dir, "big"), bytes, size, 0755);
    assert_int_equal(chmod(path_in(f->dir, "big"), 0755), 0);
    free(bytes);
    connect_node(f, 0);
    assert_int_equal(host_send_file(f->host, path_in(f->dir, "key"), "keys/actor.key", &err), RP_OK);
    assert_int_equal(host_send_file(f->host, path_in(f->dir, "empty"), "empty", &err), RP_OK);
    assert_int_equal(host_send_file(f->host, path_in(f->dir, "big"), "here/deep/big", &err), RP_OK);
    assert_int_equal(host_send_file(f->host, path_in(f->dir, "missing"), "x", &err), RP_NOT_FOUND);
    static const char *const bad[] = {"../x", "/x", "a/../../x", "", "a//b", ".x", "a/.."};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(host_send_file(f->host, path_in(f->dir, "key"), bad[i], &err), RP_INVALID_ARGUMENT);
    /* A process that is started later finds them. */
    char script[1024];
    const char *work = host_facts(f->host)->work;
    snprintf(script, sizeof script, "cmp '%s/big' '%s/here/deep/big' && cat '%s/keys/actor.key'", f->dir, work, work);
    shell(f, &a, "a", script);
    assert_int_equal(await_end(f, &a), 0);
    assert_string_equal(log_of(f, "a"), "secret\n");
    assert_int_equal(stat(path_in(work, "keys/actor.key"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(stat(path_in(work, "here/deep/big"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0755);
    assert_int_equal(size_of(path_in(work, "empty")), 0);
    assert_false(exists(path_in(f->folder, "empty"))); /* what was sent there does not come back */
    host_close(f->host);
    assert_int_equal(host_send_file(f->host, path_in(f->dir, "key"), "x", &err), RP_UNAVAILABLE);
}

/* ---- ends of connections ---- */

static void test_node_killed(void **state)
{
    struct fixture *f = *state;
    struct process a;
    connect_node(f, 0);
    shell(f, &a, "a", "sleep 1000 & echo ready; while :; do sleep 0.1; done");
    await(f, log_of(f, "a")[0]);
    char old[HOST_PATH];
    snprintf(old, sizeof old, "%s", host_facts(f->host)->work);
    assert_int_equal(kill(node_of(f), SIGKILL), 0);
    assert_int_equal(await_end(f, &a), PROCESS_LOST);
    assert_int_equal(host_state(f->host), HOST_LOST);
    assert_true(host_reason(f->host)[0]);
    await_nobody(f);
    assert_true(exists(old));
    host_open(f->host, now());
    await(f, host_state(f->host) == HOST_READY);
    shell(f, &a, "a", "exit 0");
    assert_int_equal(await_end(f, &a), 0);
    assert_int_equal(host_times(f->host), 2);
    assert_false(exists(old)); /* the next agent cleans up */
    assert_true(exists(host_facts(f->host)->work));
}

static void test_closed(void **state)
{
    struct fixture *f = *state;
    struct process a;
    connect_node(f, 0);
    shell(f, &a, "a", "trap '' TERM HUP; sleep 1000 & echo ready; while :; do sleep 0.1; done");
    await(f, log_of(f, "a")[0]);
    host_close(f->host);
    assert_int_equal(host_state(f->host), HOST_ABSENT);
    assert_int_equal(await_end(f, &a), PROCESS_LOST);
    await_nobody(f);
    assert_string_equal(find_work(f), "");
}

/* The launcher's end without a word: the kernel closes its pipes and kills the carrier. */
static void test_launcher_killed(void **state)
{
    struct fixture *f = *state;
    struct process a;
    pid_t launcher = fork();
    if (launcher == 0) {
        guard_start(&f->guard, NULL);
        connect_node(f, 0);
        shell(f, &a, "a", "trap '' TERM HUP; sleep 1000 & echo ready; while :; do sleep 0.1; done");
        for (;;)
            tend(f);
    }
    await(f, strcmp(log_of(f, "a"), "ready\n") == 0);
    assert_int_equal(kill(launcher, SIGKILL), 0);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    await_nobody(f);
}

static void test_stopped(void **state)
{
    struct fixture *f = *state;
    struct process a;
    pid_t one = 0;
    connect_node(f, 2 * NS_PER_S);
    shell(f, &a, "a", "echo ready; while :; do sleep 0.1; done");
    await(f, log_of(f, "a")[0]);
    pid_t node = node_of(f);
    assert_int_equal(kill(node, SIGSTOP), 0);
    int64_t start_ns = now();
    assert_int_equal(await_end(f, &a), PROCESS_LOST);
    assert_true(now() - start_ns > NS_PER_S);
    assert_int_equal(host_state(f->host), HOST_LOST);
    assert_true(count_marked(f, &one) > 0);
    assert_int_equal(kill(node, SIGCONT), 0);
    await_nobody(f);
}

/* A node agent that hears nothing ends by itself, though its pipes stay open. */
static void test_lease_there(void **state)
{
    struct fixture *f = *state;
    int64_t end_ns = now() + 20 * NS_PER_S;
    connect_node(f, 2 * NS_PER_S);
    pid_t node = node_of(f);
    while (now() < end_ns && find_work(f)[0])
        pause_ms(10); /* nobody tends the host */
    assert_string_equal(find_work(f), "");
    await(f, host_state(f->host) == HOST_LOST);
    await(f, kill(node, 0) != 0);
}

static void test_end_of_input(void **state)
{
    struct fixture *f = *state;
    char command[512];
    snprintf(command, sizeof command, "\"$RP_LAUNCH\" node </dev/null >%s/out 2>&1", f->dir);
    assert_int_equal(system(command), 0);
    assert_string_equal(text_of(path_in(f->dir, "out")), "");
    assert_string_equal(find_work(f), "");
}

/* ---- carriers ---- */

static void test_noise(void **state)
{
    struct fixture *f = *state;
    struct process a;
    connect_script(
        f, "echo Welcome; printf '@rp {\\n@rp nonsense\\n@rp []\\n\\0\\377\\n'; head -c 300000 /dev/urandom; echo; "
           "printf 'no end of line'; exec \"$RP_LAUNCH\" node");
    await(f, host_state(f->host) == HOST_READY);
    shell(f, &a, "a", "echo ok");
    assert_int_equal(await_end(f, &a), 0);
    assert_string_equal(log_of(f, "a"), "ok\n");
}

static void test_endless_noise(void **state)
{
    struct fixture *f = *state;
    connect_script(f, "exec cat /dev/zero");
    int64_t before = memory_of(getpid()), end = now() + NS_PER_S / 2;
    while (now() < end)
        host_tend(f->host, now());
    assert_int_equal(host_state(f->host), HOST_CONNECTING);
    assert_true(memory_of(getpid()) - before < 16 * 1024 * 1024);
}

static void test_reason(void **state)
{
    struct fixture *f = *state;
    connect_script(f, "echo 'ssh: connect to host cpu3 port 22: Connection refused' >&2; exit 255");
    await(f, host_state(f->host) == HOST_LOST);
    static const char said[] = "ssh: connect to host cpu3 port 22: Connection refused";
    assert_memory_equal(host_reason(f->host), said, sizeof said - 1);
    assert_true(strlen(host_reason(f->host)) > sizeof said); /* what to do about it follows */
    assert_int_equal(host_times(f->host), 0);
}

static void test_no_carrier(void **state)
{
    struct fixture *f = *state;
    const char *const carrier[] = {"/nowhere/ssh", "cpu3", NULL};
    make(f, carrier, 0);
    assert_int_equal(host_state(f->host), HOST_LOST);
    assert_true(strstr(host_reason(f->host), "/nowhere/ssh") != NULL);
    struct process a;
    rp_error err = {0};
    char log[128];
    snprintf(log, sizeof log, "%s/a.log", f->dir);
    const char *const argv[] = {"/bin/true", NULL};
    const struct process_options options = {.name = "a", .argv = argv, .log = log, .place = host_place(f->host)};
    assert_int_equal(process_start(&a, &options, now(), &err), RP_UNAVAILABLE);
}

static void test_other_version(void **state)
{
    struct fixture *f = *state;
    connect_script(f, "echo '@rp {\"type\":\"ready\",\"protocol\":1,\"version\":\"0.0.0-other\"}'; exec cat");
    await(f, host_state(f->host) == HOST_LOST);
    assert_true(strstr(host_reason(f->host), "0.0.0-other") != NULL);
}

/* A node agent that means harm: nothing is written outside of the folder, and the launcher's files stay. */
static void test_hostile(void **state)
{
    struct fixture *f = *state;
    struct process a;
    static const char *const names[] = {"../outside",
                                        "/tmp/test-host-outside",
                                        "a/../../outside",
                                        "config.yaml",
                                        "keys/actor.key",
                                        "launch.json",
                                        "status.json",
                                        "logs/x.log",
                                        "launch.lock",
                                        "trap/outside",
                                        "trapped",
                                        ".hidden",
                                        "keys",
                                        "keys/../config.yaml",
                                        "./config.yaml",
                                        "a//../config.yaml",
                                        "metrics.jsonl",
                                        "core.sbatch",
                                        "page",
                                        "evaluator-0.jsonl",
                                        "best.weights",
                                        "report.txt",
                                        "return.svg",
                                        "plan.json",
                                        "report.html",
                                        "x/\\u0000/y",
                                        "x\\u0000",
                                        "a/b/c/d/e/f/g/h/i/j/k"};
    mkdir(path_in(f->folder, "keys"), 0700);
    mkdir(path_in(f->dir, "other"), 0700);
    write_text(path_in(f->dir, "other/trapped"), "mine");
    assert_int_equal(symlink(path_in(f->dir, "other"), path_in(f->folder, "trap")), 0);
    assert_int_equal(symlink(path_in(f->dir, "other/trapped"), path_in(f->folder, "trapped")), 0);
    write_text(path_in(f->folder, "config.yaml"), "mine");
    write_text(path_in(f->folder, "keys/actor.key"), "mine");
    write_text(path_in(f->folder, "launch.json"), "mine");
    write_text(path_in(f->folder, "status.json"), "mine");
    write_text(path_in(f->folder, "good"), "mine");
    FILE *lines = fopen(path_in(f->dir, "lines"), "we");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int way = 0; way < 4; way++)
            fprintf(lines,
                    "@rp "
                    "{\"type\":\"file\",\"name\":\"%s\",\"data\":\"aGFybQ==\",\"offset\":%d,\"replace\":%s,\"last\":"
                    "true}\n",
                    names[i], way & 1 ? 4 : 0, way & 2 ? "true" : "false");
    static const char *const others[] = {
        "{\"type\":\"output\",\"id\":99,\"data\":\"aGFybQ==\"}",
        "{\"type\":\"output\",\"id\":1,\"data\":\"%%%%\"}",
        "{\"type\":\"output\",\"id\":-1,\"data\":7}",
        "{\"type\":\"ended\",\"id\":77,\"status\":1}",
        "{\"type\":\"started\",\"id\":1e99,\"pid\":-5}",
        "{\"type\":\"usage\",\"list\":[[1],[1,2,3,4],7,[[],{},[],{}]],\"cpu\":NaN,\"memory\":-1}",
        "{\"type\":\"ready\"}",
        "{\"type\":7}",
        "{}",
        "{\"type\":\"measured\",\"rate\":Infinity,\"ok\":true}",
        "{\"type\":\"file\",\"name\":\"sparse\",\"data\":\"\",\"offset\":9223372036854775807,\"replace\":false,"
        "\"last\":true}",
        "{\"type\":\"file\",\"name\":\"middle\",\"data\":\"aGFybQ==\",\"offset\":5,\"replace\":true,\"last\":true}",
        "{\"type\":\"file\",\"name\":\"good\",\"data\":\"bmV3\",\"offset\":0,\"replace\":true,\"last\":true}"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        fprintf(lines, "@rp %s\n", others[i]);
    fclose(lines);
    char script[512], ready[128];
    snprintf(ready, sizeof ready,
             "{\"type\":\"ready\",\"protocol\":1,\"version\":\"%s\",\"cores\":NaN,\"work\":\"relative\"}",
             rp_version());
    snprintf(script, sizeof script, "echo '@rp %s'; cat '%s/lines'; exec cat >/dev/null", ready, f->dir);
    connect_script(f, script);
    await(f, host_state(f->host) == HOST_READY);
    assert_true(host_facts(f->host)->cores > 0);
    assert_string_equal(host_facts(f->host)->work, "");
    shell(f, &a, "a", "never starts");
    await(f, strcmp(text_of(path_in(f->folder, "good")), "new") == 0);
    static const char *const kept[] = {"config.yaml", "keys/actor.key", "launch.json", "status.json"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_string_equal(text_of(path_in(f->folder, kept[i])), "mine");
    assert_string_equal(text_of(path_in(f->dir, "other/trapped")), "mine");
    assert_false(exists(path_in(f->dir, "outside")));
    assert_false(exists(path_in(f->dir, "other/outside")));
    assert_false(exists("/tmp/test-host-outside"));
    static const char *const absent[] = {"core.sbatch",
                                         "logs",
                                         "launch.lock",
                                         ".hidden",
                                         "metrics.jsonl",
                                         "report.html",
                                         "evaluator-0.jsonl",
                                         "best.weights",
                                         "report.txt",
                                         "return.svg",
                                         "sparse",
                                         "middle",
                                         "x"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_false(exists(path_in(f->folder, absent[i])));
    assert_true(a.running);
}

/* ---- network ---- */

static void test_measure(void **state)
{
    struct fixture *f = *state;
    rp_error err = {0};
    uint16_t port = 0;
    const char *why = "";
    bool done = false;
    char address[64];
    connect_node(f, 0);
    struct host_measure_sink *sink = host_measure_sink_open("127.0.0.1", &port, &err);
    assert_non_null(sink);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    assert_int_equal(host_measure_begin(f->host, address, 300 * NS_PER_MS, &err), RP_OK);
    await(f, host_measure_result(f->host, &why) != 0);
    double rate = host_measure_result(f->host, &why), bytes = (double)host_measure_sink_bytes(sink);
    assert_true(rate > 1e6);
    assert_true(bytes / 0.3 > 0.3 * rate && bytes / 0.3 < 3 * rate);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
    assert_int_equal(host_reach_begin(f->host, address, &err), RP_OK);
    await(f, (host_reach_result(f->host, &done, &why), done));
    assert_true(host_reach_result(f->host, &done, &why));
    assert_true(host_load(f->host).round_trip_ns > 0);
    host_measure_sink_close(&sink);
    assert_int_equal(host_reach_begin(f->host, address, &err), RP_OK);
    await(f, (host_reach_result(f->host, &done, &why), done));
    assert_false(host_reach_result(f->host, &done, &why));
    assert_true(why[0]);
    assert_int_equal(host_measure_begin(f->host, "127.0.0.1:1", NS_PER_MS, &err), RP_OK);
    await(f, host_measure_result(f->host, &why) != 0);
    assert_true(host_measure_result(f->host, &why) < 0 && why[0]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        TEST(test_facts),
        TEST(test_ends),
        TEST(test_environment),
        TEST(test_ask_and_kill),
        TEST(test_no_such_program),
        TEST(test_too_long_a_command),
        TEST(test_many),
        TEST(test_flood),
        TEST(test_mirror),
        TEST(test_end_after_files),
        TEST(test_own_files),
        TEST(test_copy_cut),
        TEST(test_send_files),
        TEST(test_node_killed),
        TEST(test_closed),
        TEST(test_launcher_killed),
        TEST(test_stopped),
        TEST(test_lease_there),
        TEST(test_end_of_input),
        TEST(test_noise),
        TEST(test_endless_noise),
        TEST(test_reason),
        TEST(test_no_carrier),
        TEST(test_other_version),
        TEST(test_hostile),
        TEST(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
