/* The line of shell that finds or fetches our programs on a host, run by shells of this machine with a home of their own. The
 * programs are copies of /bin/echo: `replay-launch node` prints "node". */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/host/carrier.h"
#include "agent/launch/host/host.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "tests/support/test.h"

static char dir[64];

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
    snprintf(variable, sizeof variable, "dir=%s", dir);
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
    rp_error err = {0};
    char programs[128];
    snprintf(programs, sizeof programs, "%s/programs", dir);
    if (bundle_describe(programs, &bundle, &err) != RP_OK)
        fail_msg("%s", err.text);
    return bundle;
}

static struct bundle make(void)
{
    struct bundle bundle = describe();
    rp_error err = {0};
    rp_status status;
    while ((status = bundle_pack(&bundle, &err)) == RP_UNAVAILABLE)
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    if (status != RP_OK)
        fail_msg("%s", err.text);
    return bundle;
}

/* ---- a host: a shell with a home of its own ---- */

struct there {
    pid_t pid;
    int in;
    FILE *out;
};

struct way {
    const char *home, *path; /* of the host */
    const char *programs;    /* hosts[].programs */
    const char *same;        /* where our programs are at home */
    const char *name;
    const char *shell; /* "sh" */
};

static struct there begin(const struct way *way, const struct bundle *bundle)
{
    const char *words[] = {way->shell ? way->shell : "sh", "-c"};
    struct host_config host = {.ssh = "",
                               .command = {.data = words, .count = 2},
                               .programs = (char *)(uintptr_t)(way->programs ? way->programs : "")};
    struct bundle elsewhere = bundle ? *bundle : (struct bundle){0};
    rp_error err = {0};
    snprintf(elsewhere.programs, sizeof elsewhere.programs, "%s", way->same ? way->same : "/nowhere");
    char **argv = carrier_build(bundle ? &elsewhere : NULL, &host, way->name ? way->name : "cpu1", &err);
    assert_non_null(argv);
    char home[256], path[256];
    snprintf(home, sizeof home, "HOME=%s", way->home);
    snprintf(path, sizeof path, "PATH=%s", way->path ? way->path : getenv("PATH"));
    int in[2], out[2], error = 0;
    assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
    struct there there = {.in = in[1], .out = fdopen(out[0], "r")};
    const char *environment[] = {home, path, "XDG_CACHE_HOME=", NULL};
    there.pid = spawn_start(
        &(struct spawn){
            .argv = (const char *const *)argv, .environment = environment, .in = in[0], .out = out[1], .err = out[1]},
        &error);
    assert_true(there.pid > 0);
    close(in[0]);
    close(out[1]);
    command_free(&argv);
    return there;
}

/* The next line of output. */
static const char *line_of(const struct there *there)
{
    static char line[1024];
    if (!fgets(line, sizeof line, there->out))
        return "(end)";
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static int end(struct there *there)
{
    close(there->in);
    while (fgetc(there->out) != EOF)
        ;
    fclose(there->out);
    int status = spawn_reap(there->pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Sends what the launcher sends when it is asked: lines from before the question, then the bundle. */
static void send_bundle(const struct there *there, const struct bundle *bundle, bool damaged)
{
    char before[128];
    int n_before =
        snprintf(before, sizeof before, "@rp {\"type\":\"hello\"}\n@rp {\"type\":\"bundle\",\"size\":%lld}\n",
                 (long long)bundle->size);
    char *bytes = malloc((size_t)bundle->size);
    FILE *file = fopen(bundle->path, "re");
    assert_true(bytes && file);
    assert_int_equal(fread(bytes, 1, (size_t)bundle->size, file), bundle->size);
    fclose(file);
    for (int64_t i = bundle->size / 2; damaged && i < bundle->size; i++)
        bytes[i] ^= 85;
    assert_int_equal(write(there->in, before, (size_t)n_before), n_before);
    for (int64_t done = 0; done < bundle->size;) {
        ssize_t n = write(there->in, bytes + done, (size_t)(bundle->size - done));
        if (n < 0)
            break; /* a damaged bundle may be given up early */
        done += n;
    }
    free(bytes);
}

static int setup(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    snprintf(dir, sizeof dir, "/tmp/replay-carrier-XXXXXX");
    assert_non_null(mkdtemp(dir));
    char home[128];
    snprintf(home, sizeof home, "%s/home", dir);
    setenv("HOME", home, 1);
    unsetenv("XDG_CACHE_HOME");
    shell("mkdir -p $dir/home $dir/there $dir/programs/lib/python/replaybus; cd $dir/programs; for p in launch actor "
          "learner; do "
          "cp /bin/echo replay-$p; done; echo one >lib/python/replaybus/__init__.py");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    shell("rm -rf $dir");
    return 0;
}

/* ---- the bundle ---- */

TEST(bundle_is_made_once, setup, teardown)
{
    struct bundle first = make(), second;
    struct stat info, again;
    assert_int_equal(stat(first.path, &info), 0);
    assert_int_equal(info.st_size, first.size);
    assert_int_equal(info.st_mode & 0777, 0600);
    second = make();
    assert_int_equal(stat(second.path, &again), 0);
    assert_string_equal(first.hash, second.hash);
    assert_int_equal(info.st_ino, again.st_ino);
    shell("tar tzf %s | grep -v '/$' | sort >$dir/names; printf '%%s\\n' lib/python/replaybus/__init__.py list "
          "replay-actor "
          "replay-launch "
          "replay-learner | cmp - $dir/names",
          first.path);
}

TEST(bundle_of_changed_programs, setup, teardown)
{
    struct bundle first = make(), same;
    shell("touch -d 2001-01-01 $dir/programs/replay-actor"); /* other time, same contents */
    same = make();
    assert_string_equal(same.hash, first.hash);
    shell("echo two >$dir/programs/lib/python/replaybus/__init__.py");
    struct bundle other = make();
    assert_string_not_equal(other.hash, first.hash);
    for (int i = 0; i < 5; i++) {
        shell("echo %d >$dir/programs/lib/python/replaybus/__init__.py", i);
        make();
    }
    shell("[ $(ls $dir/home/.cache/replay/bundle-*.tar.gz | wc -l) = 4 ]");
    shell("[ ! -e $dir/home/.cache/replay/new.* ]");
}

TEST(bundle_without_a_program, setup, teardown)
{
    struct bundle bundle;
    rp_error err = {0};
    char programs[128];
    shell("rm $dir/programs/replay-learner");
    snprintf(programs, sizeof programs, "%s/programs", dir);
    assert_int_equal(bundle_describe(programs, &bundle, &err), RP_NOT_FOUND);
    shell("cp /bin/echo $dir/programs/replay-learner; rm -rf $dir/home; touch $dir/home");
    assert_int_equal(bundle_describe(programs, &bundle, &err), RP_OK);
    rp_status status;
    while ((status = bundle_pack(&bundle, &err)) == RP_UNAVAILABLE)
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    assert_int_equal(status, RP_IO); /* there is no place for the cache */
    bundle_fini(&bundle);
    shell("rm $dir/home");
}

/* ---- where the programs are ---- */

TEST(programs_are_installed_there, setup, teardown)
{
    char home[128];
    snprintf(home, sizeof home, "%s/there", dir);
    shell("mkdir -p \"$dir/there/it's a \\$(folder)\"; cp /bin/echo \"$dir/there/it's a \\$(folder)/replay-launch\"");
    struct there there =
        begin(&(struct way){.home = home, .programs = "~/it's a $(folder)", .name = "`x`; 'y' \"z\""}, NULL);
    assert_string_equal(line_of(&there), "node");
    assert_int_equal(end(&there), 0);
    there = begin(&(struct way){.home = home, .programs = "/nowhere"}, NULL);
    assert_non_null(strstr(line_of(&there), "/nowhere/replay-launch"));
    assert_int_equal(end(&there), 1);
}

TEST(programs_of_the_same_path, setup, teardown)
{
    char home[128], programs[128];
    struct bundle bundle = describe();
    snprintf(home, sizeof home, "%s/there", dir);
    snprintf(programs, sizeof programs, "%s/programs", dir);
    struct way way = {.home = home, .same = programs};
    struct there there = begin(&way, &bundle);
    assert_string_equal(line_of(&there), "node");
    assert_int_equal(end(&there), 0);
    assert_int_equal(bundle.size, 0); /* nobody needs it packed */
    shell("[ ! -e $dir/home/.cache/replay/bundle-*.tar.gz ]");
    shell("echo changed >$dir/programs/lib/python/replaybus/__init__.py");
    there = begin(&way, &bundle);
    assert_non_null(strstr(line_of(&there), "\"need\""));
    assert_int_equal(end(&there), 1);
    shell("[ -z \"$(ls $dir/there/.cache/replay/programs)\" ]");
}

static void check_sent_once(const char *with)
{
    char home[128];
    struct bundle bundle = make();
    shell("rm -rf $dir/there; mkdir $dir/there");
    snprintf(home, sizeof home, "%s/there", dir);
    struct way way = {.home = home, .shell = with};
    struct there there = begin(&way, &bundle);
    struct utsname machine;
    uname(&machine);
    char need[128];
    snprintf(need, sizeof need, "@rp {\"type\":\"need\",\"arch\":\"%s\"}", machine.machine);
    assert_string_equal(line_of(&there), need);
    send_bundle(&there, &bundle, false);
    assert_string_equal(line_of(&there), "@rp {\"type\":\"got\"}");
    assert_string_equal(line_of(&there), "node");
    assert_int_equal(end(&there), 0);
    there = begin(&way, &bundle);
    assert_string_equal(line_of(&there), "node");
    assert_int_equal(end(&there), 0);
    shell("cd $dir/there/.cache/replay/programs; [ \"$(ls)\" = %s ]; cmp %s/lib/python/replaybus/__init__.py "
          "$dir/programs/lib/python/replaybus/__init__.py",
          bundle.hash, bundle.hash);
}

/* The line is read by whatever shell the user has there. */
TEST(programs_are_sent_once, setup, teardown)
{
    static const char *const shells[] = {"sh", "bash", "dash", "csh", "fish", "zsh"};
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++)
        if (spawn_can_start(shells[i]))
            check_sent_once(shells[i]);
}

TEST(old_programs_are_removed, setup, teardown)
{
    struct bundle bundle = make();
    char home[128];
    snprintf(home, sizeof home, "%s/there", dir);
    shell("cd $dir/there; for i in 1 2 3 4 5; do mkdir -p .cache/replay/programs/abc$i/x; touch -d 2001-01-0$i "
          ".cache/replay/programs/abc$i; done; mkdir .cache/replay/programs/new.123456; touch -d 2001-01-01 "
          ".cache/replay/programs/new.123456");
    struct there there = begin(&(struct way){.home = home}, &bundle);
    line_of(&there);
    send_bundle(&there, &bundle, false);
    assert_string_equal(line_of(&there), "@rp {\"type\":\"got\"}");
    assert_int_equal(end(&there), 0);
    shell("cd $dir/there/.cache/replay/programs; [ \"$(echo $(ls))\" = \"$(echo %s abc3 abc4 abc5 | tr ' ' '\\n' | "
          "LC_ALL=C sort | "
          "tr '\\n' ' ' | sed 's/ $//')\" ]",
          bundle.hash);
}

/* ---- what goes wrong ---- */

TEST(damaged_bundle, setup, teardown)
{
    struct bundle bundle = make();
    char home[128];
    snprintf(home, sizeof home, "%s/there", dir);
    struct there there = begin(&(struct way){.home = home}, &bundle);
    line_of(&there);
    send_bundle(&there, &bundle, true);
    assert_int_equal(end(&there), 1);
    there = begin(&(struct way){.home = home}, &bundle);
    assert_non_null(strstr(line_of(&there), "\"need\"")); /* the next attempt asks again */
    assert_int_equal(end(&there), 1);
    shell("[ -z \"$(ls $dir/there/.cache/replay/programs)\" ]");
}

TEST(other_machine, setup, teardown)
{
    struct bundle bundle = make();
    char home[128], path[512];
    snprintf(home, sizeof home, "%s/there", dir);
    shell("mkdir $dir/bin; printf '#!/bin/sh\\necho pdp11\\n' >$dir/bin/uname; chmod +x $dir/bin/uname");
    snprintf(path, sizeof path, "%s/bin:%s", dir, getenv("PATH"));
    struct there there = begin(&(struct way){.home = home, .path = path, .name = "gpu1"}, &bundle);
    assert_non_null(strstr(line_of(&there), "gpu1 is pdp11"));
    assert_int_equal(end(&there), 1);
}

TEST(tools_are_missing, setup, teardown)
{
    struct bundle bundle = make();
    char home[128], path[128];
    snprintf(home, sizeof home, "%s/there", dir);
    snprintf(path, sizeof path, "%s/bin", dir);
    shell(
        "mkdir $dir/bin; for p in sh head tr gzip uname sha256sum mktemp mkdir rm; do ln -s $(command -v $p) $dir/bin; "
        "done");
    struct there there = begin(&(struct way){.home = home, .path = path}, &bundle);
    assert_non_null(strstr(line_of(&there), "no tar on cpu1"));
    assert_int_equal(end(&there), 1);
    there = begin(&(struct way){.home = "/dev/null"}, &bundle);
    assert_int_equal(end(&there), 1);
}

/* ---- the launcher's side ---- */

/* Connects to a script that plays a host, and waits until it is ready or lost. */
static struct host *connect_to(const char *script, struct bundle *bundle)
{
    struct clock clock = clock_system();
    const char *carrier[] = {"sh", "-c", script, "sh", dir, NULL};
    struct host *host = host_new(
        &(struct host_options){.name = "cpu1", .carrier = carrier, .folder = dir, .here = dir, .bundle = bundle});
    host_open(host, clock_now(&clock));
    for (int64_t end_ns = clock_now(&clock) + 20 * NS_PER_S; host_state(host) == HOST_CONNECTING;) {
        assert_true(clock_now(&clock) < end_ns);
        host_tend(host, clock_now(&clock));
    }
    return host;
}

TEST(launcher_sends_the_bundle, setup, teardown)
{
    struct bundle bundle = describe(); /* it is packed when the host asks */
    char script[1024];
    snprintf(
        script, sizeof script,
        "read -r hello; echo '@rp {\"type\":\"need\"}'; echo '@rp {\"type\":\"need\"}'; read -r line; echo \"$line\" "
        ">$1/line; "
        "head -c $(echo \"${line##*size}\" | tr -cd 0-9) >$1/got; sleep 0.1; echo '@rp {\"type\":\"got\"}'; read -r "
        "again; [ \"$again\" = \"$hello\" ] && "
        "echo '@rp {\"type\":\"ready\",\"protocol\":1,\"version\":\"%s\"}'; echo '@rp {\"type\":\"need\"}'; cat "
        ">/dev/null",
        rp_version());
    struct host *host = connect_to(script, &bundle);
    assert_string_equal(host_reason(host), "");
    assert_int_equal(host_state(host), HOST_READY);
    assert_true(bundle.size > 0);
    assert_int_equal(host_sent(host), bundle.size);
    shell("cmp %s $dir/got; grep -q bundle $dir/line", bundle.path);
    host_destroy(&host);
}

TEST(launcher_has_no_bundle, setup, teardown)
{
    static const char script[] = "echo '@rp {\"type\":\"need\"}'; cat >/dev/null";
    struct host *host = connect_to(script, NULL);
    assert_int_equal(host_state(host), HOST_LOST);
    assert_int_equal(host_sent(host), 0);
    host_destroy(&host);
    struct bundle gone = make();
    unlink(gone.path);
    host = connect_to(script, &gone);
    assert_int_equal(host_state(host), HOST_LOST);
    assert_non_null(strstr(host_reason(host), gone.path));
    host_destroy(&host);
    struct bundle shorter = make();
    shorter.size++;
    host = connect_to(script, &shorter);
    assert_int_equal(host_state(host), HOST_LOST);
    host_destroy(&host);
}

/* A host that ends in the middle of the bundle is lost with what it said. */
TEST(host_stops_reading, setup, teardown)
{
    struct bundle bundle = make();
    struct host *host = connect_to(
        "echo '@rp {\"type\":\"need\"}'; head -c 1000 >/dev/null; printf 'No space left on device' >&2; exit 1",
        &bundle);
    assert_int_equal(host_state(host), HOST_LOST);
    if (!strstr(host_reason(host), "make room on cpu1"))
        fail_msg("%s", host_reason(host));
    host_destroy(&host);
}

/* Carriers that do not end by themselves are killed together. */
TEST(many_hosts_end_together, setup, teardown)
{
    struct clock clock = clock_system();
    struct host *hosts[4];
    const char *carrier[] = {"sleep", "1000", NULL};
    for (size_t i = 0; i < 4; i++) {
        hosts[i] = host_new(&(struct host_options){.name = "cpu1", .carrier = carrier, .folder = dir, .here = dir});
        host_open(hosts[i], clock_now(&clock));
    }
    int64_t start = clock_now(&clock);
    for (size_t i = 0; i < 4; i++)
        host_close(hosts[i]);
    for (size_t i = 0; i < 4; i++)
        host_destroy(&hosts[i]);
    assert_true(clock_now(&clock) - start < 4 * NS_PER_S); /* 1.5 s for each of them would be 6 s */
}

/* ---- ssh ---- */

TEST(ssh_command, setup, teardown)
{
    struct host_config host = {.ssh = "cpu[1-4]", .programs = "/opt/replay"};
    rp_error err = {0};
    char **argv = carrier_build(NULL, &host, "-oProxyCommand=evil", &err);
    assert_non_null(argv);
    size_t n = 0;
    while (argv[n])
        n++;
    assert_string_equal(argv[0], "ssh");
    assert_string_equal(argv[n - 3], "--");
    assert_string_equal(argv[n - 2], "-oProxyCommand=evil");
    assert_null(strpbrk(argv[n - 1], "\n!"));
    command_free(&argv);
    host.programs = "";
    assert_null(carrier_build(NULL, &host, "cpu1", &err));
    assert_int_equal(err.status, RP_FAILED_PRECONDITION);
}

TEST(advice, setup, teardown)
{
    char out[256];
    assert_string_equal(carrier_advice("Host key verification failed.", "cpu3", out, sizeof out),
                        "run `ssh cpu3` once by hand and accept its key");
    assert_non_null(
        strstr(carrier_advice("me@x: Permission denied (publickey).", "cpu3", out, sizeof out), "ssh-copy-id cpu3"));
    assert_string_equal(carrier_advice("Segmentation fault", "cpu3", out, sizeof out), "");
    assert_string_equal(carrier_advice("Host key verification failed.", "cpu3", out, 4), "run");
}
