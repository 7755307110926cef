/* Hosts, with the real node agent as the carrier: processes there, ends of connections, carriers that fail, and the network. */
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/launch/host/host_pool.h"
#include "proto/base/clock.h"
#include "tests/support/hostbed.h"

FIXTURE(struct hostbed, hostbed_set_up, hostbed_tear_down)

/* A lease that ends soon, and not while a process stalls for three seconds. */
#define LEASE_NS (5 * NS_PER_S)

/* ---- processes there ---- */

CASE(facts)
{
    char name[HOST_NAME] = "";
    hostbed_connect(f, 0);
    const struct host_facts *facts = &host_info(f->host)->facts;
    gethostname(name, sizeof name - 1);
    assert_string_equal(facts->hostname, name);
    assert_true(facts->cores > 0 && facts->memory > 0);
    assert_true(strchr(facts->model, '(') != NULL);
    assert_string_equal(facts->here, f->dir);
    assert_string_equal(facts->work, hostbed_work(f));
    assert_string_equal(facts->address, "10.1.2.3");
    assert_int_equal(host_info(f->host)->times, 1);
    struct stat info;
    assert_int_equal(stat(facts->work, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    hostbed_await(f, host_info(f->host)->cpu > 0);
}

/* The address that a host saw, and the one under which it reaches the broker here. */
TEST(home_address)
{
    static const struct {
        const char *seen, *service, *advertise, *address;
    } rows[] = {{"10.1.2.3", "tcp://*:0", "", "10.1.2.3"},
                {"::ffff:10.1.2.3", "tcp://*:0", "", "10.1.2.3"},
                {"fd00::1", "tcp://*:0", "", "[fd00::1]"},
                {"fe80::1%eth0", "tcp://[::]:7600", "", "[fe80::1%eth0]"},
                {"fd00::1", "tcp://0.0.0.0:0", "", NULL}, /* the broker does not listen there */
                {"fd00::1", "tcp://*:0", "[fd00::2]", "[fd00::2]"},
                {"::1", "tcp://*:0", "", "127.0.0.1"},
                {"fd00::1]:1 x", "tcp://*:0", "", NULL}, /* nonsense of a host */
                {"10.0.0.1 x", "tcp://*:0", "", NULL},
                {"", "tcp://*:0", "", NULL}};
    char name[HOST_NAME] = "", out[HOST_NAME + 3];
    gethostname(name, sizeof name - 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct broker_config broker = {.service = (char *)(uintptr_t)rows[i].service,
                                       .advertise = (char *)(uintptr_t)rows[i].advertise};
        struct host_facts facts = {0};
        snprintf(facts.address, sizeof facts.address, "%s", rows[i].seen);
        assert_string_equal(host_pool_home_address(&facts, &broker, out, sizeof out),
                            rows[i].address ? rows[i].address : name);
    }
}

CASE(ends)
{
    struct process a, b, c;
    int status = -1;
    hostbed_connect(f, 0);
    hostbed_shell(f, &a, "a", "echo one; echo two >&2; exit 3");
    hostbed_shell(f, &b, "b", "kill -SEGV $$");
    hostbed_shell(f, &c, "c", "sleep 100 & echo $!; echo \"$0 $REPLAY_X\"");
    assert_true(a.running && a.place == host_place(f->host));
    assert_int_equal(hostbed_await_end(f, &a), 3 << 8);
    assert_string_equal(hostbed_log(f, "a"), "one\ntwo\n");
    assert_false(a.running);
    assert_false(process_ended(&a, &status));
    status = hostbed_await_end(f, &b);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_int_equal(hostbed_await_end(f, &c), 0);
    pid_t left = (pid_t)atoi(hostbed_log(f, "c"));
    assert_true(left > 0);
    hostbed_await(f, kill(left, 0) != 0); /* the rest of the group goes with the process */
}

CASE(environment)
{
    struct process a;
    char cwd[512];
    const char *const argv[] = {"/bin/sh", "-c", "echo \"$REPLAY_X|$1\"; pwd", "sh", "with \"quotes\"\n and \x01 \xff",
                                NULL};
    const char *const environment[] = {"REPLAY_X=a b=c", NULL};
    const struct process_options options = {.name = "a",
                                            .argv = argv,
                                            .environment = environment,
                                            .log = file_in(f->dir, "a.log"),
                                            .place = host_place((hostbed_connect(f, 0), f->host))};
    ok(process_start(&a, &options, clock_ns(), &err));
    assert_int_equal(hostbed_await_end(f, &a), 0);
    assert_string_equal(hostbed_log(f, "a"),
                        textf("a b=c|with \"quotes\"\n and \x01 \xff\n%s\n", getcwd(cwd, sizeof cwd)));
}

CASE(ask_and_kill)
{
    struct process a, b;
    struct process_usage usage;
    hostbed_connect(f, 0);
    hostbed_shell(f, &a, "a", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    hostbed_shell(f, &b, "b", "trap '' TERM; echo ready; while :; do :; done");
    hostbed_await(f, hostbed_log(f, "a")[0] && hostbed_log(f, "b")[0]);
    hostbed_await(f, process_usage(&b, &usage) && usage.cpu_ns > 0);
    process_ask(&a, clock_ns());
    process_ask(&b, clock_ns());
    assert_int_equal(hostbed_await_end(f, &a), 7 << 8);
    int status = 0;
    assert_false(process_ended(&b, &status));
    assert_true(b.pid > 0);
    process_kill(&b);
    status = hostbed_await_end(f, &b);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

CASE(no_such_program)
{
    struct process a;
    const char *const argv[] = {"/nowhere/program", NULL};
    hostbed_connect(f, 0);
    hostbed_start(f, &a, "a", argv);
    assert_int_equal(hostbed_await_end(f, &a), 127 << 8);
    assert_true(strstr(hostbed_log(f, "a"), "/nowhere/program") != NULL);
}

CASE(too_long_a_command)
{
    struct process a;
    hostbed_connect(f, 0);
    const char *const argv[] = {"/bin/echo", textf("%0100000d", 1), NULL};
    const struct process_options options = {
        .name = "a", .argv = argv, .log = file_in(f->dir, "a.log"), .place = host_place(f->host)};
    assert_int_equal(process_start(&a, &options, clock_ns(), &err), RP_INVALID_ARGUMENT);
    assert_false(a.running);
    hostbed_shell(f, &a, "a", "exit 0"); /* the connection is still good */
    assert_int_equal(hostbed_await_end(f, &a), 0);
}

CASE(many)
{
    enum { N = 50 };
    struct process processes[N];
    hostbed_connect(f, 0);
    for (int i = 0; i < N; i++)
        hostbed_shell(f, &processes[i], textf("p%d", i), textf("echo %d; exit %d", i, i));
    for (int i = 0; i < N; i++) {
        assert_int_equal(hostbed_await_end(f, &processes[i]), i << 8);
        assert_string_equal(hostbed_log(f, textf("p%d", i)), textf("%d\n", i));
    }
}

static int64_t memory_of(pid_t pid)
{
    long pages = 0;
    assert_int_equal(sscanf(file_text(textf("/proc/%d/statm", (int)pid)), "%*d %ld", &pages), 1);
    return pages * sysconf(_SC_PAGESIZE);
}

/* The bytes that a process has written; -1: not known. */
static int64_t written_by(pid_t pid)
{
    const char *line = strstr(file_text(textf("/proc/%d/io", (int)pid)), "wchar: ");
    return line ? atoll(line + strlen("wchar: ")) : -1;
}

CASE(flood)
{
    struct process flood, other;
    hostbed_connect(f, 0);
    hostbed_shell(f, &flood, "flood", "exec yes");
    hostbed_await(f, flood.pid > 0 || process_ended(&flood, &(int){0}));
    pid_t yes = flood.pid;
    int64_t before = memory_of(hostbed_node(f)), last = 0, bytes = 0;
    /* Nobody reads: the program is held back soon. */
    do {
        last = bytes;
        hostbed_pause(100);
        bytes = written_by(yes);
    } while (bytes == 0 || bytes != last);
    assert_true(bytes > 0);
    assert_true(memory_of(hostbed_node(f)) - before < 8 * 1024 * 1024);
    /* Others are heard beside it. */
    hostbed_shell(f, &other, "other", "echo done; exit 5");
    assert_int_equal(hostbed_await_end(f, &other), 5 << 8);
    assert_string_equal(hostbed_log(f, "other"), "done\n");
    hostbed_await(f, file_size(file_in(f->dir, "flood.log")) >= 64 * 1024);
    process_kill(&flood);
    assert_true(WIFSIGNALED(hostbed_await_end(f, &flood)));
    assert_int_equal(host_info(f->host)->state, HOST_READY);
}

/* ---- ends of connections ---- */

/* Starts a process with a child, which ignores what can be ignored, and waits until it runs. */
static void start_stubborn(struct hostbed *f, struct process *process)
{
    hostbed_shell(f, process, "a", "trap '' TERM HUP; sleep 1000 & echo ready; while :; do sleep 0.1; done");
    hostbed_await(f, hostbed_log(f, "a")[0]);
}

CASE(node_killed)
{
    struct process a;
    hostbed_connect(f, 0);
    start_stubborn(f, &a);
    char old[HOST_PATH];
    snprintf(old, sizeof old, "%s", host_info(f->host)->facts.work);
    assert_int_equal(kill(hostbed_node(f), SIGKILL), 0);
    assert_int_equal(hostbed_await_end(f, &a), PROCESS_LOST);
    assert_int_equal(host_info(f->host)->state, HOST_LOST);
    assert_true(host_info(f->host)->reason[0]);
    hostbed_await_nobody(f);
    hostbed_await(f, !file_exists(old)); /* its guard cleans up */
    host_open(f->host, clock_ns());
    hostbed_await(f, host_info(f->host)->state == HOST_READY);
    hostbed_shell(f, &a, "a", "exit 0");
    assert_int_equal(hostbed_await_end(f, &a), 0);
    assert_int_equal(host_info(f->host)->times, 2);
    assert_true(file_exists(host_info(f->host)->facts.work));
}

CASE(closed)
{
    struct process a;
    hostbed_connect(f, 0);
    start_stubborn(f, &a);
    host_close(f->host);
    assert_int_equal(host_info(f->host)->state, HOST_ABSENT);
    assert_int_equal(hostbed_await_end(f, &a), PROCESS_LOST);
    hostbed_await_nobody(f);
    assert_string_equal(hostbed_work(f), "");
}

/* The launcher's end without a word: the kernel closes its pipes and kills the carrier. */
CASE(launcher_killed)
{
    struct process a;
    pid_t launcher = fork();
    if (launcher == 0) {
        guard_start(&f->guard, NULL, NULL);
        hostbed_connect(f, 0);
        start_stubborn(f, &a);
        for (;;)
            hostbed_tend(f);
    }
    hostbed_await(f, strcmp(hostbed_log(f, "a"), "ready\n") == 0);
    assert_int_equal(kill(launcher, SIGKILL), 0);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    hostbed_await_nobody(f);
}

/* A node agent that is stopped cannot end its processes: its guard does, when the lease is over, and nobody has to tell it. */
CASE(stopped)
{
    struct process a;
    pid_t one = 0;
    hostbed_connect(f, LEASE_NS);
    start_stubborn(f, &a);
    pid_t node = hostbed_node(f);
    assert_int_equal(kill(node, SIGSTOP), 0);
    int64_t start_ns = clock_ns();
    while (hostbed_processes(f, &one) > 0) { /* the launcher does nothing meanwhile */
        assert_true(clock_ns() - start_ns < WAIT * NS_PER_MS);
        hostbed_pause(20);
    }
    assert_true(clock_ns() - start_ns > NS_PER_S);
    assert_int_equal(hostbed_await_end(f, &a), PROCESS_LOST);
    assert_int_equal(host_info(f->host)->state, HOST_LOST);
}

/* A node agent that hears nothing ends by itself, though its pipes stay open. */
CASE(lease_there)
{
    int64_t end_ns = clock_ns() + WAIT * NS_PER_MS;
    hostbed_connect(f, LEASE_NS);
    pid_t node = hostbed_node(f);
    while (clock_ns() < end_ns && hostbed_work(f)[0])
        hostbed_pause(10); /* nobody tends the host */
    assert_string_equal(hostbed_work(f), "");
    hostbed_await(f, host_info(f->host)->state == HOST_LOST);
    hostbed_await(f, kill(node, 0) != 0);
}

CASE(end_of_input)
{
    assert_int_equal(system(textf("\"$RP_LAUNCH\" node </dev/null >%s/out 2>&1", f->dir)), 0);
    assert_string_equal(file_text(file_in(f->dir, "out")), "@rp {\"type\":\"here\"}\n");
    assert_string_equal(hostbed_work(f), "");
}

/* Words without an end, no words, fewer than there should be, and none at all: such a process has ended before it began. */
CASE(damaged_orders)
{
    static const char start[] = "{\"type\":\"start\",\"name\":\"a\"";
    FILE *in = fopen(file_in(f->dir, "in"), "w");
    assert_non_null(in);
    fputs("@rp {\"type\":\"hello\"}\n", in);
    fprintf(in, "@rp %s,\"words\":1,\"bytes\":3}\nabc@rp %s,\"words\":0,\"bytes\":2}\na%c", start, start, 0);
    fprintf(in, "@rp %s,\"words\":3,\"bytes\":2}\na%c@rp %s,\"words\":1}\n", start, 0, start);
    fclose(in);
    /* The node agent leaves without further words when its input ends. */
    static const char script[] =
        "cd %s && touch out && all() { [ $(grep -c '\"status\":32256' out) = 4 ]; } &&"
        "{ cat in; for i in $(seq 1500); do all && break; sleep 0.02; done; } | \"$RP_LAUNCH\" node >out 2>&1; all";
    assert_int_equal(system(textf(script, f->dir)), 0);
}

/* ---- carriers ---- */

CASE(facts_out_of_bounds)
{
    hostbed_connect_script(f, "echo '@rp {\"type\":\"here\"}'; read -r hello; printf '@rp "
                              "{\"type\":\"ready\",\"version\":\"%s\",\"cores\":1e300,"
                              "\"memory\":-5,\"work\":\"a/path\"}\n' \"$RP_VERSION\"; exec sleep 600");
    hostbed_await(f, host_info(f->host)->state == HOST_READY);
    const struct host_facts *facts = &host_info(f->host)->facts;
    assert_true(facts->cores == 1e6 && facts->memory == 0);
    assert_string_equal(facts->work, "");
}

CASE(noise)
{
    struct process a;
    hostbed_connect_script(
        f, "echo Welcome; printf '@rp {\\n@rp nonsense\\n@rp []\\n\\0\\377\\n'; head -c 300000 /dev/urandom; echo; "
           "printf 'no end of line'; exec \"$RP_LAUNCH\" node");
    hostbed_await(f, host_info(f->host)->state == HOST_READY);
    assert_string_equal(host_info(f->host)->facts.address, ""); /* no ssh in between */
    hostbed_shell(f, &a, "a", "echo ok");
    assert_int_equal(hostbed_await_end(f, &a), 0);
    assert_string_equal(hostbed_log(f, "a"), "ok\n");
}

CASE(endless_noise)
{
    hostbed_connect_script(f, "exec cat /dev/zero");
    int64_t before = memory_of(getpid()), end = clock_ns() + NS_PER_S / 2;
    while (clock_ns() < end)
        host_tend(f->host, clock_ns());
    assert_int_equal(host_info(f->host)->state, HOST_CONNECTING);
    assert_true(memory_of(getpid()) - before < 16 * 1024 * 1024);
}

CASE(reason)
{
    hostbed_connect_script(f, "echo 'ssh: connect to host cpu3 port 22: Connection refused' >&2; exit 255");
    hostbed_await(f, host_info(f->host)->state == HOST_LOST);
    static const char said[] = "ssh: connect to host cpu3 port 22: Connection refused";
    assert_memory_equal(host_info(f->host)->reason, said, sizeof said - 1);
    assert_true(strlen(host_info(f->host)->reason) > sizeof said); /* what to do about it follows */
    assert_int_equal(host_info(f->host)->times, 0);
}

CASE(no_carrier)
{
    const char *const carrier[] = {"/nowhere/ssh", "cpu3", NULL};
    hostbed_make(f, carrier, 0);
    assert_int_equal(host_info(f->host)->state, HOST_LOST);
    assert_true(strstr(host_info(f->host)->reason, "/nowhere/ssh") != NULL);
    struct process a;
    const char *const argv[] = {"/bin/true", NULL};
    const struct process_options options = {
        .name = "a", .argv = argv, .log = file_in(f->dir, "a.log"), .place = host_place(f->host)};
    assert_int_equal(process_start(&a, &options, clock_ns(), &err), RP_UNAVAILABLE);
}

CASE(other_version)
{
    hostbed_connect_script(f, "echo '@rp {\"type\":\"ready\",\"version\":\"0.0.0-other\"}'; exec cat");
    hostbed_await(f, host_info(f->host)->state == HOST_LOST);
    assert_true(strstr(host_info(f->host)->reason, "0.0.0-other") != NULL);
}

/* ---- network ---- */

/* Asks the host to connect; gives the answer. */
static const struct host_probe *probe(struct hostbed *f, const char *scheme, uint16_t port)
{
    ok(host_probe(f->host, textf("%s127.0.0.1:%u", scheme, port), &err));
    assert_false(host_info(f->host)->probe.done);
    hostbed_await(f, host_info(f->host)->probe.done);
    return &host_info(f->host)->probe;
}

CASE(reaches_home)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    hostbed_connect(f, 0);
    const struct host_probe *answer = probe(f, "tcp://", ntohs(at.sin_port));
    assert_true(answer->ok && answer->ns > 0);
    assert_int_equal(host_info(f->host)->round_trip_ns, answer->ns);
    close(listener);
    answer = probe(f, "", ntohs(at.sin_port));
    assert_true(!answer->ok && answer->text[0]);
}
