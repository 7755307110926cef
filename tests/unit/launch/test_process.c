/* Real children that crash, hang, ignore signals, print too much, and leave children of their own behind. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/launch/process/process.h"
#include "proto/base/clock.h"
#include "proto/base/utf8.h"
#include "tests/support/tempdir.h"

/* A number that a script has written into a file of its own. 0: not yet. */
static pid_t pid_in(const char *name)
{
    const char *text = file_text(tempdir_at(name));
    return strchr(text, '\n') ? (pid_t)atoi(text) : 0;
}

/* Zombies are gone too: only init may have to reap them. */
static bool gone(pid_t pid)
{
    const char *rest = strrchr(file_text(textf("/proc/%d/stat", (int)pid)), ')');
    return !rest || strncmp(rest, ") Z", 3) == 0 || strncmp(rest, ") X", 3) == 0;
}

static struct process_options options_of(const char *const *argv, struct guard *guard)
{
    return (struct process_options){.name = "child", .argv = argv, .log = tempdir_at("child.log"), .guard = guard};
}

static struct process start_shell(const char *script, struct guard *guard)
{
    struct process self;
    const char *const argv[] = {"sh", "-c", script, NULL};
    struct process_options options = options_of(argv, guard);
    ok(process_start(&self, &options, clock_ns(), &err));
    return self;
}

/* The last lines that it printed. */
static const char *tail_of(const struct process *self, uint32_t lines)
{
    static char text[2048];
    return process_tail(self, text, sizeof text, lines);
}

static int end_of(struct process *self)
{
    int status = -1;
    wait_until(process_ended(self, &status));
    assert_int_equal(self->pid, 0);
    assert_false(process_ended(self, &status)); /* once */
    return status;
}

/* ---- ends ---- */

TEST(ends, tempdir_enter, tempdir_leave)
{
    static const struct {
        const char *script, *text;
    } cases[] = {
        {"exit 0", "exit status 0"},
        {"exit 3", "exit status 3"},
        {"exit 254", "exit status 254"},
        {"exit 255", "exit status 255"},
        {"ulimit -c 0; kill -ABRT $$", "killed by SIGABRT (Aborted)"},
        {"ulimit -c 0; kill -SEGV $$", "killed by SIGSEGV (Segmentation fault)"},
    };
    char text[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process self = start_shell(cases[i].script, NULL);
        int status = end_of(&self);
        /* A core may be dumped or not. */
        assert_string_equal(process_describe(status & ~0x80, text, sizeof text), cases[i].text);
    }
}

TEST(ask_once_then_kill, tempdir_enter, tempdir_leave)
{
    struct process self = start_shell("trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done", NULL);
    wait_until(strstr(tail_of(&self, 5), "ready"));
    process_ask(&self, 77);
    assert_int_equal(self.asked_ns, 77);
    wait_until(strstr(tail_of(&self, 5), "asked"));
    process_ask(&self, 78); /* nothing: "asked" stays alone */
    assert_int_equal(self.asked_ns, 77);
    assert_string_equal(tail_of(&self, 5), "ready\nasked");
    int status;
    assert_false(process_ended(&self, &status));
    assert_false(self.killed);
    process_kill(&self);
    assert_true(self.killed);
    status = end_of(&self);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    process_ask(&self, 79); /* no such process */
    process_kill(&self);
    /* One that does not catch the signal ends by it. */
    self = start_shell("exec sleep 1000", NULL);
    process_ask(&self, 0);
    assert_true(self.asked_ns != 0);
    status = end_of(&self);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

/* ---- what a child begins with ---- */

static void ignore_signal(int number)
{
    (void)number;
}

TEST(child_begins_clean, tempdir_enter, tempdir_leave)
{
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    signal(SIGUSR1, ignore_signal);
    signal(SIGHUP, SIG_IGN);
    int open_one = open("/dev/null", O_RDONLY); /* not close-on-exec, as a library might leave it */
    assert_true(open_one > 2);
    const char *const argv[] = {"sh", "-c",
                                "grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f2; ls /proc/self/fd | wc -l; "
                                "readlink /proc/self/fd/0; echo err >&2; echo $ONE $HOME; cut -d' ' -f5 /proc/$$/stat",
                                NULL};
    const char *const environment[] = {"ONE=1", "HOME=elsewhere", NULL};
    struct process_options options = options_of(argv, NULL);
    options.environment = environment;
    struct process self;
    ok(process_start(&self, &options, clock_ns(), &err));
    pid_t pid = self.pid;
    assert_int_equal(end_of(&self), 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    signal(SIGUSR1, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    close(open_one);
    /* ls has its standard three and the folder. */
    assert_string_equal(tail_of(&self, 20),
                        textf("0000000000000000\n0000000000000000\n4\n/dev/null\nerr\n1 elsewhere\n%d", (int)pid));
}

TEST(launcher_without_standard_descriptors, tempdir_enter, tempdir_leave)
{
    const char *const argv[] = {"sh", "-c", "echo fine; echo too >&2", NULL};
    struct process_options options = options_of(argv, NULL);
    struct process self;
    pid_t pid = fork();
    if (pid == 0) {
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        int status = 1;
        if (process_start(&self, &options, 1, NULL) != RP_OK)
            _exit(2);
        while (!process_ended(&self, &status))
            poll(NULL, 0, 1);
        _exit(status == 0 ? 0 : 3);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_string_equal(file_text(tempdir_at("child.log")), "fine\ntoo\n");
}

TEST(ended_child_waits_though_sigchld_was_ignored, tempdir_enter, tempdir_leave)
{
    signal(SIGCHLD, SIG_IGN);
    struct process self = start_shell("exit 9", NULL);
    assert_int_equal(end_of(&self), 9 << 8);
    signal(SIGCHLD, SIG_DFL);
}

/* ---- what cannot be started ---- */

static void expect_no_start(const char *program, const char *first, const char *advice)
{
    err = (rp_error){0};
    const char *const argv[] = {program, NULL};
    struct process_options options = options_of(argv, NULL);
    struct process self;
    int status;
    assert_int_not_equal(process_start(&self, &options, 1, &err), RP_OK);
    assert_int_equal(self.pid, 0);
    assert_false(process_ended(&self, &status));
    if (!strstr(err.text, first) || !strstr(err.text, advice))
        fail_msg("%s", err.text);
    assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD); /* none is left behind */
}

TEST(can_not_be_started, tempdir_enter, tempdir_leave)
{
    expect_no_start("no-such-program-anywhere", "could not start no-such-program-anywhere: No such file", "PATH");
    expect_no_start("./no/such", "could not start ./no/such: No such file or directory", "check the path");
    expect_no_start("", "could not start ", "No such file");
    file_write(tempdir_at("script"), "#!/bin/sh\n", 10, 0644);
    expect_no_start(tempdir_at("script"), "Permission denied", "chmod +x");
    chmod(tempdir_at("script"), 0755);
    file_write(tempdir_at("script"), "echo x\n", 7, 0755);
    expect_no_start(tempdir_at("script"), "Exec format error", "#!");
    file_write(tempdir_at("script"), "#!/no/such/interpreter\n", 23, 0755);
    expect_no_start(tempdir_at("script"), "No such file", "first line");
    mkdir(tempdir_at("folder"), 0755);
    expect_no_start(tempdir_at("folder"), "Permission denied", "");
    const char *const argv[] = {"true", NULL};
    struct process_options options = options_of(argv, NULL);
    struct process self;
    options.log = tempdir_at("no/such/folder/log");
    must_fail(process_start(&self, &options, 1, &err), RP_IO, "no/such/folder/log");
    char path[700];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    options.log = path;
    assert_int_equal(process_start(&self, &options, 1, &err), RP_INVALID_ARGUMENT);
}

/* ---- what it printed ---- */

TEST(tail_is_of_this_start, tempdir_enter, tempdir_leave)
{
    char text[256];
    struct process self = start_shell("echo before", NULL);
    end_of(&self);
    assert_int_equal(self.log_start, 0);
    self = start_shell("for i in 1 2 3 4 5; do echo line $i; done; echo; printf unfinished", NULL);
    end_of(&self);
    assert_int_equal(self.log_start, 7);
    assert_string_equal(tail_of(&self, 3), "line 4\nline 5\nunfinished");
    assert_string_equal(tail_of(&self, 0), "");
    assert_string_equal(process_tail(&self, text, 20, 9), "line 5\nunfinished"); /* those that fit, whole */
    assert_string_equal(process_tail(&self, text, 17, 9), "unfinished");
    assert_string_equal(process_tail(&self, text, 18, 9), "line 5\nunfinished");
    assert_string_equal(process_tail(&self, text, 5, 9), "");
    self = start_shell(":", NULL);
    end_of(&self);
    assert_string_equal(tail_of(&self, 9), ""); /* this one printed nothing */
    assert_int_equal(truncate(tempdir_at("child.log"), 3), 0);
    assert_string_equal(tail_of(&self, 9), "bef"); /* another program cut the log */
    remove(tempdir_at("child.log"));
    assert_string_equal(tail_of(&self, 9), "");
}

static void expect_tail(const char *printed, size_t size, const char *expected)
{
    struct process self = {0};
    snprintf(self.log, sizeof self.log, "%s", tempdir_at("child.log"));
    file_write(self.log, printed, size, 0644);
    assert_string_equal(tail_of(&self, 9), expected);
}
#define EXPECT_TAIL(printed, expected) expect_tail(printed, sizeof(printed) - 1, expected)

TEST(tail_is_harmless, tempdir_enter, tempdir_leave)
{
    EXPECT_TAIL("\033[1;31merror\033[0m: \033]0;title\abad\r\n", "error: bad");
    EXPECT_TAIL("10%\r50%\r100%\ndone\n", "100%\ndone");
    EXPECT_TAIL("a\tb\0c\001d\177\n", "a b?c?d?");
    EXPECT_TAIL("\xc3\xa9 \xff\xc3 \xc2\x9b"
                "31m\n",
                "\xc3\xa9 ?? ?31m");
    EXPECT_TAIL("\n \n\n", "");
    EXPECT_TAIL("\033", "");
    EXPECT_TAIL("x\033[", "x");
    EXPECT_TAIL("x\033[12", "x");
    EXPECT_TAIL("\033]never ends", "");
}

TEST(tail_of_very_long_lines, tempdir_enter, tempdir_leave)
{
    struct process self = {0};
    enum { SIZE = 300000 };
    static char line[SIZE];
    for (int i = 0; i < SIZE; i++)
        line[i] = "\xc3\xa9"[i % 2];
    memcpy(line, "begin", 5);
    memcpy(line + SIZE - 8, "the end\n", 8);
    snprintf(self.log, sizeof self.log, "%s", tempdir_at("child.log"));
    file_write(self.log, line, SIZE, 0644);
    const char *text = tail_of(&self, 9);
    assert_in_range(strlen(text), 300, 400);
    assert_non_null(strstr(text, " ... "));
    assert_string_equal(text + strlen(text) - 7, "the end");
    assert_true(utf8_valid(text, strlen(text)));
    assert_null(strchr(text, '\n'));
    file_write(self.log, line, 1000, 0644); /* all of it in sight */
    assert_memory_equal(tail_of(&self, 9), "begin", 5);
}

/* ---- groups ---- */

TEST(leftovers_die_with_their_process, tempdir_enter, tempdir_leave)
{
    struct process self = start_shell(textf("(trap '' TERM HUP; sh -c 'echo $PPID' > %s; while :; do sleep 0.05; "
                                            "done) & while [ ! -s %s ]; do sleep 0.01; done; exit 4",
                                            tempdir_at("a"), tempdir_at("a")),
                                      NULL);
    assert_int_equal(end_of(&self), 4 << 8);
    pid_t left = pid_in("a");
    assert_true(left > 1);
    wait_until(gone(left));
}

TEST(kill_reaches_the_whole_group, tempdir_enter, tempdir_leave)
{
    struct process self = start_shell(
        textf("trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > %s; while :; do sleep 0.05; done'", tempdir_at("a")),
        NULL);
    wait_until(pid_in("a") > 1);
    process_kill(&self);
    int status = end_of(&self);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    wait_until(gone(pid_in("a")));
}

static void write_pid(const char *name, pid_t pid)
{
    file_put(tempdir_at(name), textf("%d\n", (int)pid));
}

/* A launcher that starts a child, with a guard or without one; their process ids are in files c and b. */
static pid_t fork_launcher(const char *script, bool guarded)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct guard guard;
        struct process self;
        const char *const argv[] = {"sh", "-c", script, NULL};
        struct process_options options = options_of(argv, guarded ? &guard : NULL);
        if ((guarded && guard_start(&guard, NULL, NULL) != RP_OK) || process_start(&self, &options, 1, NULL) != RP_OK)
            _exit(1);
        write_pid("b", self.pid);
        if (guarded)
            write_pid("c", guard.pid);
        for (;;)
            pause();
    }
    return pid;
}

/* The child has a child; all of them ignore what can be ignored. */
TEST(all_die_with_a_killed_launcher, tempdir_enter, tempdir_leave)
{
    for (int i = 0; i < 2; i++) {
        pid_t launcher =
            fork_launcher(textf("trap '' TERM HUP INT; sh -c 'trap \"\" TERM HUP INT; echo $$ > %s; while :; do sleep "
                                "0.05; done' & %s",
                                tempdir_at("a"), i ? "while :; do sleep 0.05; done" : "wait; wait"),
                          true);
        wait_until(pid_in("a") > 1 && pid_in("b") > 1 && pid_in("c") > 1);
        pid_t grandchild = pid_in("a"), child = pid_in("b"), guard = pid_in("c");
        assert_false(gone(grandchild) || gone(child) || gone(guard));
        kill(guard, SIGTERM); /* none of these ends it */
        kill(guard, SIGINT);
        kill(guard, SIGHUP);
        kill(launcher, SIGKILL);
        assert_int_equal(waitpid(launcher, NULL, 0), launcher);
        wait_until(gone(child));
        wait_until(gone(grandchild));
        wait_until(gone(guard));
        for (const char *name = "a\0b\0c\0"; *name; name += 2)
            remove(tempdir_at(name));
    }
}

/* Without a guard the kernel kills the child alone. */
TEST(child_dies_with_its_launcher, tempdir_enter, tempdir_leave)
{
    pid_t launcher = fork_launcher("exec sleep 1000", false);
    wait_until(pid_in("b") > 1);
    kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    wait_until(gone(pid_in("b")));
}

static bool names_guard(pid_t pid)
{
    return strcmp(file_text(textf("/proc/%d/comm", (int)pid)), "replay-guard\n") == 0;
}

/* Who reads the launcher's output to its end does not wait for the guard; and no child keeps the guard from its end. */
TEST(guard_holds_nothing, tempdir_enter, tempdir_leave)
{
    int ends[2];
    struct guard guard;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(guard_start(&guard, NULL, &err), RP_OK);
    wait_until(names_guard(guard.pid));
    close(ends[1]);
    char byte;
    struct pollfd poll_fd = {.fd = ends[0], .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 20000), 1);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
    struct process self = start_shell("ls -l /proc/self/fd | grep -c socket; echo said", &guard);
    end_of(&self);
    assert_string_equal(tail_of(&self, 2), "0\nsaid");
    pid_t pid = guard.pid;
    guard_stop(&guard);
    assert_true(gone(pid));
    assert_int_equal(guard.pipe, -1);
    guard_stop(&guard);
}

/* A group that has ended is no business of the guard's any more; one that runs is not its business after guard_stop. */
TEST(guard_forgets, tempdir_enter, tempdir_leave)
{
    struct guard guard;
    assert_int_equal(guard_start(&guard, NULL, &err), RP_OK);
    struct process first = start_shell("exit 0", &guard), other = start_shell("sleep 1000", NULL);
    end_of(&first);
    pid_t pid = guard.pid;
    guard_stop(&guard);
    assert_true(gone(pid));
    assert_false(gone(other.pid));
    /* A guard that is killed kills no process. */
    assert_int_equal(guard_start(&guard, NULL, &err), RP_OK);
    kill(guard.pid, SIGKILL);
    wait_until(gone(guard.pid));
    struct process late = start_shell("exit 5", &guard);
    assert_int_equal(end_of(&late), 5 << 8);
    guard_stop(&guard);
    process_kill(&other);
    end_of(&other);
}

/* ---- usage ---- */

static bool used(const struct process *self, struct process_usage *out)
{
    assert_true(process_usage(self, out));
    return true;
}

TEST(usage, tempdir_enter, tempdir_leave)
{
    struct process busy = start_shell("while :; do :; done", NULL);
    const char *const argv[] = {"sleep", "1000", NULL};
    struct process_options options = options_of(argv, NULL);
    struct process idle;
    struct process_usage of_busy, of_idle, again;
    assert_int_equal(process_start(&idle, &options, 1, NULL), RP_OK);
    /* It has got to its sleep once its account stands still. */
    int64_t last = -1, still = 0;
    wait_until(
        (used(&idle, &of_idle), still = of_idle.cpu_ns == last ? still + 1 : 0, last = of_idle.cpu_ns, still > 30));
    wait_until((used(&busy, &of_busy), of_busy.cpu_ns > 100 * NS_PER_MS));
    assert_true(of_idle.cpu_ns > 0);
    assert_true(of_idle.cpu_ns < 50 * NS_PER_MS);
    /* To the nanosecond: none at all, once it sleeps. */
    wait_until((used(&idle, &of_idle), used(&idle, &again), again.cpu_ns == of_idle.cpu_ns));
    assert_in_range(of_idle.memory, 1024, 100 << 20);
    assert_false(of_idle.stopped);
    kill(busy.pid, SIGSTOP);
    wait_until((used(&busy, &of_busy), of_busy.stopped));
    /* Its last moments count a little later. */
    wait_until((used(&busy, &of_busy), used(&busy, &again), again.cpu_ns == of_busy.cpu_ns));
    assert_true(again.stopped);
    kill(busy.pid, SIGCONT);
    wait_until((used(&busy, &of_busy), !of_busy.stopped && of_busy.cpu_ns > again.cpu_ns));
    process_kill(&busy);
    process_kill(&idle);
    end_of(&busy);
    end_of(&idle);
    assert_false(process_usage(&busy, &of_busy));
}

/* The work of children counts, while they run and after. */
TEST(usage_of_the_family, tempdir_enter, tempdir_leave)
{
    struct process self = start_shell(
        textf("sh -c 'sh -c \"while [ ! -e %s ]; do :; done\"; :'; echo over; sleep 1000; :", tempdir_at("a")), NULL);
    struct process_usage during, after;
    wait_until((used(&self, &during), during.cpu_ns > 200 * NS_PER_MS));
    file_write(tempdir_at("a"), "x", 1, 0644);
    wait_until(strstr(tail_of(&self, 1), "over"));
    wait_until(process_usage(&self, &after) && after.cpu_ns > 150 * NS_PER_MS);
    process_kill(&self);
    end_of(&self);
}

/* A guard that was killed is replaced by one that knows the running processes, and none that has ended or could not be started. */
TEST(guard_lost, tempdir_enter, tempdir_leave)
{
    struct guard guard;
    assert_int_equal(guard_start(&guard, NULL, &err), RP_OK);
    struct process over = start_shell("exit 0", &guard), self = start_shell("sleep 1000", &guard);
    struct process_options nowhere = options_of((const char *const[]){"./nowhere", NULL}, &guard);
    end_of(&over);
    assert_int_not_equal(process_start(&over, &nowhere, 1, NULL), RP_OK);
    assert_false(guard_lost(&guard));
    pid_t first = guard.pid;
    kill(first, SIGKILL);
    wait_until(guard_lost(&guard));
    assert_int_not_equal(guard.pid, first);
    assert_false(guard_lost(&guard));
    assert_int_equal(guard.groups.count, 1);
    assert_int_equal(guard.groups.list[0], self.pid);
    close(guard.pipe); /* as if we had ended */
    assert_int_equal(end_of(&self), SIGKILL);
    waitpid(guard.pid, NULL, 0);
    guard.pipe = -1;
    assert_false(guard_lost(&guard));
}

TEST(log_is_cut, tempdir_enter, tempdir_leave)
{
    struct process self =
        start_shell(textf("echo first; until [ -e %s ]; do sleep 0.01; done; echo last", tempdir_at("a")), NULL);
    wait_until(strcmp(tail_of(&self, 2), "first") == 0);
    assert_false(process_cut_log(&self, 0)); /* any number */
    assert_false(process_cut_log(&self, 6));
    assert_true(process_cut_log(&self, 5));
    assert_false(process_cut_log(&self, 5));
    assert_string_equal(tail_of(&self, 2), "");
    file_write(tempdir_at("a"), "", 0, 0600);
    end_of(&self);
    assert_string_equal(tail_of(&self, 2), "last");
    assert_int_equal(file_size(self.log), 5);
}

/* Each host takes some descriptors: hundreds must fit where the usual limit is 1024. */
TEST(raised_files)
{
    struct rlimit before, after;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlim_t most = before.rlim_max < 16384 ? before.rlim_max : 16384;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 64, .rlim_max = before.rlim_max}), 0);
    process_raise_files();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &after), 0);
    assert_true(after.rlim_cur == most && after.rlim_max == before.rlim_max);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}
