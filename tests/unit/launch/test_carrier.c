/* The lines of shell that find our programs on a host or send them there, run by shells of this machine with a home of their own. The
 * programs are copies of /bin/echo: `replay-launch node` prints "node". */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "agent/launch/host/carrier.h"
#include "agent/launch/host/host.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "tests/support/tempdir.h"

/* Runs a line of shell at home with $dir. Fails the test unless it succeeds. */
static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    const char *argv[] = {"sh", "-ec", line, NULL};
    char variable[128];
    snprintf(variable, sizeof variable, "dir=%s", tempdir);
    int error = 0;
    pid_t pid = spawn_start(&(struct spawn){.argv = argv,
                                            .environment = (const char *[]){variable, NULL},
                                            .in = SPAWN_NULL,
                                            .out = SPAWN_KEEP,
                                            .err = SPAWN_KEEP},
                            &error);
    assert_true(pid > 0);
    if (spawn_reap(pid) != 0)
        fail_msg("%s", line);
}

static struct bundle describe(void)
{
    struct bundle bundle = {0};
    ok(bundle_describe(tempdir_at("programs"), &bundle, &err));
    return bundle;
}

/* ---- a host: a shell with a home of its own ---- */

struct target {
    const char *path;     /* PATH of the host */
    const char *programs; /* hosts[].programs */
    const char *same;     /* where our programs are at home; NULL: nowhere on the host */
    const char *name;
    const char *shell; /* "sh" */
};

static char output[4096]; /* of the last host */

/* Lets the carrier reach a host whose home is $dir/there. Returns the exit status. */
static int reach(const struct target *target, const struct bundle *bundle)
{
    char home[128], path[512];
    snprintf(home, sizeof home, "HOME=%s/there", tempdir);
    snprintf(path, sizeof path, "PATH=%s", target->path ? target->path : getenv("PATH"));
    const char *words[] = {"env", home, path, "XDG_CACHE_HOME=", target->shell ? target->shell : "sh", "-c"};
    struct host_config host = {.name = "",
                               .command = {.data = words, .count = sizeof words / sizeof words[0]},
                               .programs = (char *)(uintptr_t)(target->programs ? target->programs : "")};
    char **argv = must(carrier_build(bundle, &host, target->name ? target->name : "cpu1", &err));
    if (bundle && !target->same) { /* the host has another file system */
        char *line = argv[6], *at = strstr(line, bundle->programs);
        assert_non_null(at);
        memset(at, 'x', strlen(bundle->programs));
    }
    int out[2], error = 0;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    const struct spawn spawn = {.argv = (const char *const *)argv, .in = SPAWN_NULL, .out = out[1], .err = out[1]};
    pid_t pid = spawn_start(&spawn, &error);
    assert_true(pid > 0);
    close(out[1]);
    words_free(&argv);
    FILE *file = fdopen(out[0], "r");
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    int status = spawn_reap(pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define SENDING "@rp {\"type\":\"sending\"}\n"

static void expect(const struct target *target, const struct bundle *bundle, int status, const char *text)
{
    int found = reach(target, bundle);
    if (found != status || !strstr(output, text))
        fail_msg("status %d instead of %d, without '%s':\n%s", found, status, text, output);
}

static int setup(void **state)
{
    signal(SIGPIPE, SIG_IGN);
    int status = tempdir_enter(state);
    setenv("HOME", tempdir_at("home"), 1);
    unsetenv("XDG_CACHE_HOME");
    shell("mkdir -p $dir/home $dir/there $dir/programs/lib/python/replaybus; cd $dir/programs; for p in launch actor "
          "learner; do "
          "cp /bin/echo replay-$p; done; echo one >lib/python/replaybus/__init__.py");
    return status;
}

/* ---- the bundle ---- */

TEST(bundle_of_changed_programs, setup, tempdir_leave)
{
    struct bundle first = describe(), other;
    shell("touch -d 2001-01-01 $dir/programs/replay-actor"); /* other time, same contents */
    other = describe();
    assert_string_equal(other.hash, first.hash);
    shell("echo two >$dir/programs/lib/python/replaybus/__init__.py");
    other = describe();
    assert_string_not_equal(other.hash, first.hash);
    expect(&(struct target){0}, &first, 1, "have changed since the start");
    expect(&(struct target){0}, &other, 0, SENDING "node\n");
    shell("cd $dir/home/.cache/replay; [ \"$(echo bundle-*)\" = bundle-%s.tar.gz ]; [ \"$(stat -c %%a bundle-*)\" = "
          "600 ]; "
          "echo damaged >bundle-%s.tar.gz; rm -rf $dir/there/.cache",
          other.hash, other.hash);
    assert_int_not_equal(reach(&(struct target){0}, &other), 0);
    shell("[ -z \"$(ls $dir/there/.cache/replay/programs)\" ]");
}

TEST(bundle_without_a_program, setup, tempdir_leave)
{
    struct bundle bundle;
    shell("rm $dir/programs/replay-learner");
    must_fail(bundle_describe(tempdir_at("programs"), &bundle, &err), RP_IO, "replay-learner");
}

/* ---- where the programs are ---- */

TEST(programs_are_installed_there, setup, tempdir_leave)
{
    shell("mkdir -p \"$dir/there/it's a \\$(folder)\"; cp /bin/echo \"$dir/there/it's a \\$(folder)/replay-launch\"");
    expect(&(struct target){.programs = "~/it's a $(folder)", .name = "`x`; 'y' \"z\""}, NULL, 0, "node");
    expect(&(struct target){.programs = "/nowhere"}, NULL, 1, "/nowhere/replay-launch");
}

TEST(programs_of_the_same_path, setup, tempdir_leave)
{
    struct bundle bundle = describe();
    struct target target = {.same = bundle.programs};
    assert_int_equal(reach(&target, &bundle), 0);
    assert_string_equal(output, "node\n");
}

/* The line is read by whatever shell the user has there. */
TEST(programs_are_sent_once, setup, tempdir_leave)
{
    static const char *const shells[] = {"sh", "bash", "dash", "csh", "fish", "zsh"};
    struct bundle bundle = describe();
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
        if (!spawn_can_start(shells[i]))
            continue;
        shell("rm -rf $dir/there; mkdir $dir/there");
        expect(&(struct target){.shell = shells[i]}, &bundle, 0, SENDING "node\n");
        assert_int_equal(reach(&(struct target){.shell = shells[i]}, &bundle), 0);
        assert_string_equal(output, "node\n");
        shell("cd $dir/there/.cache/replay/programs; [ \"$(ls)\" = %s ]; [ \"$(ls %s)\" = \"$(ls $dir/programs)\" ]; "
              "cmp %s/lib/python/replaybus/__init__.py "
              "$dir/programs/lib/python/replaybus/__init__.py",
              bundle.hash, bundle.hash, bundle.hash);
    }
}

TEST(old_programs_are_removed, setup, tempdir_leave)
{
    struct bundle bundle = describe();
    shell("cd $dir/there; for i in 1 2 3 4 5; do mkdir -p .cache/replay/programs/abc$i/x; touch -d 2001-01-0$i "
          ".cache/replay/programs/abc$i; done; mkdir .cache/replay/programs/new.123456; touch -d 2001-01-01 "
          ".cache/replay/programs/new.123456");
    expect(&(struct target){0}, &bundle, 0, "node");
    shell("cd $dir/there/.cache/replay/programs; [ \"$(echo $(ls))\" = \"$(echo %s abc3 abc4 abc5 | tr ' ' '\\n' | "
          "LC_ALL=C sort | tr '\\n' ' ' | sed 's/ $//')\" ]",
          bundle.hash);
}

/* ---- what goes wrong ---- */

TEST(other_machine, setup, tempdir_leave)
{
    struct bundle bundle = describe();
    char path[512];
    shell("mkdir $dir/bin; printf '#!/bin/sh\\necho pdp11\\n' >$dir/bin/uname; chmod +x $dir/bin/uname");
    snprintf(path, sizeof path, "%s/bin:%s", tempdir, getenv("PATH"));
    expect(&(struct target){.path = path, .name = "gpu1"}, &bundle, 1, "gpu1 is pdp11");
}

TEST(tools_are_missing, setup, tempdir_leave)
{
    struct bundle bundle = describe();
    shell("mkdir $dir/bin; for p in sh gzip uname sha256sum mktemp mkdir rm; do ln -s $(command -v $p) $dir/bin; done");
    expect(&(struct target){.path = tempdir_at("bin")}, &bundle, 1, "no tar on cpu1");
    shell("rm -rf $dir/there; touch $dir/there");
    expect(&(struct target){0}, &bundle, 1, "cannot be written");
}

/* ---- the launcher's side ---- */

/* A host that cannot store our programs is lost with what it said. */
TEST(no_room_for_programs, setup, tempdir_leave)
{
    const char *words[] = {"sh", "-c", "case $1 in *xzf*) echo 'No space left on device' >&2; exit 1;; esac; exit 86",
                           "sh"};
    const struct host_config config = {.name = "", .command = {.data = words, .count = 4}, .programs = ""};
    struct bundle bundle = describe();
    char **carrier = carrier_build(&bundle, &config, "cpu1", NULL);
    struct host *host = host_new(&(struct host_options){
        .name = "cpu1", .carrier = (const char *const *)carrier, .folder = tempdir, .here = tempdir});
    host_open(host, clock_ns());
    for (int64_t end_ns = clock_ns() + WAIT * NS_PER_MS; host_info(host)->state == HOST_CONNECTING;) {
        assert_true(clock_ns() < end_ns);
        host_tend(host, clock_ns());
    }
    assert_true(host_info(host)->sent);
    assert_non_null(strstr(host_info(host)->reason, "make room on cpu1"));
    host_destroy(&host);
    words_free(&carrier);
}

/* Carriers that do not end by themselves are killed together. */
TEST(many_hosts_end_together, setup, tempdir_leave)
{
    struct host *hosts[40];
    const char *carrier[] = {"sleep", "1000", NULL};
    for (size_t i = 0; i < 40; i++) {
        hosts[i] =
            host_new(&(struct host_options){.name = "cpu1", .carrier = carrier, .folder = tempdir, .here = tempdir});
        host_open(hosts[i], clock_ns());
    }
    int64_t start = clock_ns();
    for (size_t i = 0; i < 40; i++)
        host_close(hosts[i]);
    for (size_t i = 0; i < 40; i++)
        host_destroy(&hosts[i]);
    assert_true(clock_ns() - start < 30 * NS_PER_S); /* 1.5 s for each of them would be 60 s */
}

/* ---- ssh ---- */

TEST(ssh_command, setup, tempdir_leave)
{
    struct host_config host = {.name = "cpu[1-4]", .programs = "/opt/replay"};
    char **argv = carrier_build(NULL, &host, "-oProxyCommand=evil", &err);
    assert_non_null(argv);
    size_t n = 0;
    while (argv[n])
        n++;
    assert_string_equal(argv[0], "ssh");
    assert_string_equal(argv[n - 3], "--");
    assert_string_equal(argv[n - 2], "-oProxyCommand=evil");
    assert_null(strpbrk(argv[n - 1], "\n!"));
    words_free(&argv);
    host.programs = "";
    must_fail_new(carrier_build(NULL, &host, "cpu1", &err), RP_FAILED_PRECONDITION, NULL);
}

TEST(advice, setup, tempdir_leave)
{
    char out[256];
    assert_string_equal(carrier_advice("Host key verification failed.", "cpu3", out, sizeof out),
                        "run `ssh cpu3` once by hand and accept its key");
    assert_non_null(
        strstr(carrier_advice("me@x: Permission denied (publickey).", "cpu3", out, sizeof out), "ssh-copy-id cpu3"));
    assert_string_equal(carrier_advice("Segmentation fault", "cpu3", out, sizeof out), "");
    assert_string_equal(carrier_advice("Host key verification failed.", "cpu3", out, 4), "run");
}
