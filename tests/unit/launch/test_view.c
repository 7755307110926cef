/* The view of a run: what it says, that it fits, and where it is written; integration.launch_view_py has real terminals. */
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "agent/launch/screen.h"
#include "agent/launch/view.h"
#include "tests/support/statuses.h"

static double steps[200], values[200];
static struct status_process processes[] = {
    {"broker", ROLE_BROKER, 100, 0, 80 << 20, 0.3, "runs", ""},
    {"learner-0", ROLE_LEARNER, 101, 0, 60 << 20, 0.9, "runs", ""},
    {"actor-0", ROLE_ACTOR, 102, 0, 20 << 20, 0.3, "runs", ""},
    {"actor-1", ROLE_ACTOR, 0, 3, 0, 0, "restarts in 2 s", ""},
};

static struct status sample(void)
{
    for (int i = 0; i < 200; i++) {
        steps[i] = 1000 * i;
        values[i] = i;
    }
    struct status s = status_of(
        "\"name\": \"cartpole-dqn\", \"folder\": \"runs/cartpole-dqn-1\", \"phase\": \"running\", \"unix_s\": 1e9, "
        "\"elapsed_s\": 12.3, \"steps\": 31200, \"learner_steps\": 15600, \"stop_steps\": 100000, \"stop_value\": 475, "
        "\"progress\": 0.312, \"eta_s\": 28, \"steps_rate\": 5200, \"updates_rate\": 2100, \"inserts_rate\": 5190, "
        "\"samples_rate\": 166000, \"spi\": 31.8, \"spi_target\": 32, \"actor_idle\": 0.61, \"learner_idle\": 0.03, "
        "\"planned_inserts\": 5400, \"planned_samples\": 120000, \"planned_actor_idle\": 0.58, "
        "\"planned_learner_idle\": 0.02, \"waits\": \"4 actors wait for learners\", \"cause\": \"learners\", \"size\": "
        "31200, "
        "\"max_size\": 50000, \"min_size\": 1000, \"value\": 212, \"best\": 230.25, \"actors\": 1, "
        "\"actors_wanted\": 2, \"learners\": 1, \"learners_wanted\": 1, \"restarts\": 3, \"memory\": 327155712, "
        "\"memory_limit\": 4294967296, \"cpu\": 1.9, \"cores\": 2, \"event\": \"actor-1 restarted (exit status 1)\", "
        "\"event_unix_s\": 999999992");
    s.value_steps = steps;
    s.values = values;
    s.n_values = 200;
    s.processes = processes;
    s.n_processes = 4;
    return s;
}

/* What was rendered last. */
static struct text out;

static const char *render(const struct status *s, uint32_t columns, uint32_t rows)
{
    text_fini(&out);
    view_render(&out, s, columns, rows, true);
    return text_get(&out);
}

static const char *render_line(const struct status *s)
{
    text_fini(&out);
    view_line(&out, s);
    return text_get(&out);
}

static const char *spark(const double *list, uint32_t n, uint32_t columns, bool utf8)
{
    text_fini(&out);
    view_sparkline(&out, list, n, columns, utf8);
    return text_get(&out);
}

/* ---- what it says ---- */

TEST(content)
{
    struct status s = sample();
    const char *text = render(&s, 100, 24);
    HAS(text, "cartpole-dqn  running  12 s", "runs/cartpole-dqn-1", "31%  steps 31,200 of 100,000  28 s left",
        "5.2 k steps/s", "2.1 k updates/s", "inserts   5.2 k/s              plan 5.4 k/s       -4%",
        "samples   166 k/s              plan 120 k/s      +38%",
        "SPI       31.8                 target 32          -1%", "61% idle       plan 58%", "3% idle       plan 2%",
        "waits     4 actors wait for learners", "31,200 of 50,000 items", "return    212   best 230.2   target 475",
        "actors 1/2   learners 1/1   restarts 3", "memory    312 MiB of 4 GiB   cores 1.9 of 2",
        "actor-1 restarts in 2 s   3 restarts", "event     8 s ago  actor-1 restarted (exit status 1)", "▁▁▁", "███");
    assert_has_not(text, "actor-0"); /* it does what it should */
    assert_has_not(text, "\x1b");
}

TEST(unknown)
{
    struct status s = status_of("\"phase\": \"starting\", \"name\": \"x\"");
    HAS(render(&s, 80, 24), "x  starting", "none yet", "nobody");
    HAS_NOT(text_get(&out), "nan", "inf", "plan");
    assert_string_equal(render_line(&s), "- starting steps 0 0 steps/s 0 updates/s");
}

/* Other programs are named where they take the processor, and only there. */
TEST(others)
{
    struct status s = sample();
    assert_has_not(render(&s, 100, 24), "other programs");
    assert_has_not(render_line(&s), "other programs");
    s.others = 0.72;
    assert_has(render(&s, 100, 24), "cores 1.9 of 2   other programs take 0.7");
    assert_has(render_line(&s), "other programs take 0.7 cores");
}

TEST(ends)
{
    struct status s = sample();
    s.stop_steps = 0;
    s.stop_learner_steps = 20000;
    s.progress = 0.78;
    assert_has(render(&s, 100, 24), "78%  updates 15,600 of 20,000");
    s.stop_learner_steps = 0;
    s.progress = NAN;
    assert_has(render(&s, 100, 24), "return 212 of 475");
    s.stop_time_s = 60;
    s.progress = 0.205;
    assert_has(render(&s, 100, 24), "20%  12 s of 1 min");
    s.stop_steps = 20000; /* more than all steps: still the end that counts, not the nearest share above it */
    s.progress = 1;
    assert_has(render(&s, 100, 24), "100%  steps 31,200 of 20,000");
    s.phase = PHASE_DONE;
    s.best = 480;
    snprintf(s.reason, sizeof s.reason, "an evaluation gave 480");
    snprintf(s.event, sizeof s.event, "stopping: an evaluation gave 480");
    assert_has(render(&s, 100, 24), "100%  return 480 of 475"); /* whichever end was nearest before */
    assert_has(text_get(&out), "\n an evaluation gave 480\n");
    HAS_NOT(text_get(&out), "stopping:", "waits", "memory");
    s.phase = PHASE_FAILED;
    snprintf(s.reason, sizeof s.reason, "actor-1 failed 5 times in a row");
    HAS(render(&s, 100, 3), "failed", "actor-1 failed 5 times in a row");
}

TEST(plain_line)
{
    struct status s = sample();
    s.restarts = 0;
    s.best = 230;
    assert_string_equal(render_line(&s),
                        "12 s running steps 31,200/100,000 progress 31% 5.2 k steps/s 2.1 k updates/s spi 31.8/32 "
                        "return 212 (best 230) learners wait 3% actors wait 61% limited by learners");
    s.why.cause = WHY_NETWORK;
    assert_has(render_line(&s), "actors wait 61% limited by network");
    s.why.cause = WHY_NOTHING;
    assert_has_not(render_line(&s), "limited");
    s.elapsed_s = 3 * 3600 + 125;
    snprintf(s.reason, sizeof s.reason, "done\x1b[2J\n");
    HAS(render_line(&s), "3 h 2 min running", "(done?[2J?)");
}

/* ---- hosts ---- */

#define HOSTS 100u
#define LOST 3u
#define INCOMPLETE 5u
#define CONNECTING 8u
static struct status_host hosts[HOSTS];

/* Home without actors, then hosts with 30 actors each; two of them are away, one has too few actors. */
static struct status sample_hosts(uint32_t n)
{
    struct status s = sample();
    for (uint32_t i = 0; i < HOSTS; i++) {
        hosts[i] = (struct status_host){.state = "ready",
                                        .ready = true,
                                        .actors = i ? 30 : 0,
                                        .actors_wanted = i ? 30 : 0,
                                        .times = i ? 1 : 0,
                                        .cpu = 29.25,
                                        .cores = 32,
                                        .machine_cpu = i ? 30 : NAN,
                                        .round_trip_ms = i ? 0.4 : NAN};
        snprintf(hosts[i].name, sizeof hosts[i].name, i ? "cpu%u" : "home", i);
    }
    hosts[LOST].ready = hosts[CONNECTING].ready = false;
    hosts[LOST].actors = hosts[CONNECTING].actors = 0;
    snprintf(hosts[LOST].state, sizeof hosts[LOST].state, "lost for 12 s: Connection refused");
    snprintf(hosts[CONNECTING].state, sizeof hosts[CONNECTING].state, "connecting");
    hosts[INCOMPLETE].actors = 28;
    hosts[INCOMPLETE].times = 2;
    s.hosts = hosts;
    s.n_hosts = n;
    return s;
}

TEST(hosts)
{
    struct status s = sample_hosts(6);
    const char *text = render(&s, 100, 40);
    HAS(text, "\n host        actors  learners  state            cores used   load  round trip  taken in\n",
        "\n home             -         -  ready            29.2 of 32      -           -         -\n",
        "\n cpu3          0/30         -  lost for 12 s ", "\n           cpu3 lost for 12 s: Connection refused\n",
        "\n cpu5         28/30         -  ready            29.2 of 32   30.0      400 us         2\n", "hosts 5/6");
    assert_has_not(text, "more");
    /* A narrow terminal has fewer columns; the state and the whole reason of a loss are always there. */
    assert_has(render(&s, 59, 40), "\n cpu5         28/30         -  ready            29.2 of 32\n");
    assert_has_not(text_get(&out), "round trip");
    HAS(render(&s, 30, 40), "\n cpu3          0/30", "cpu3 lost for 12", "Connection refused\n");
    /* Without other hosts, and after the end, there is no table. */
    for (uint32_t i = 0; i < 3; i++) {
        s.n_hosts = i < 2 ? i : 6;
        s.phase = i < 2 ? PHASE_RUNNING : PHASE_DONE;
        HAS_NOT(render(&s, 100, 40), "round trip", "hosts");
    }
}

/* Of more hosts than fit, those with a problem come first, and the others are summed up. */
TEST(many_hosts)
{
    struct status s = sample_hosts(64);
    const char *text = render(&s, 80, 23);
    const char *lost = strstr(text, "\n cpu3 "), *connecting = strstr(text, "\n cpu8 "),
               *few = strstr(text, "\n cpu5 ");
    const char *home = strstr(text, "\n home "), *more = strstr(text, "\n and 58 more\n");
    assert_true(lost && connecting && few && home && more);
    assert_true(lost < connecting && connecting < few && few < home && home < more);
    /* In a tiny terminal, a lost host still has its row. */
    s = sample_hosts(HOSTS);
    s.n_processes = 0;
    assert_has(render(&s, 80, 5), "lost for 12 s: Connection refused");
}

/* A lost host has a row; its processes, which wait for it, need none. */
TEST(processes_of_hosts)
{
    struct status s = sample_hosts(6);
    struct status_process own[4];
    memcpy(own, processes, sizeof own);
    s.processes = own;
    snprintf(own[3].host, sizeof own[3].host, "cpu3");
    assert_has_not(render(&s, 100, 40), "actor-1 on");
    snprintf(own[3].host, sizeof own[3].host, "cpu2");
    assert_has(render(&s, 100, 40), "actor-1 on cpu2 restarts in 2 s   3 restarts");
}

TEST(plain_hosts)
{
    struct status s = sample_hosts(HOSTS);
    assert_has(render_line(&s), " hosts 98/100 ");
    s.n_hosts = 1;
    assert_has_not(render_line(&s), "hosts");
}

TEST(sparkline)
{
    const double rising[] = {0, 1, 2, 3, 4, 5, 6, 7}, gap[] = {0, NAN, 7}, same[] = {5, 5}, none[] = {NAN};
    assert_string_equal(spark(rising, 8, 20, true), "▁▂▃▄▅▆▇█");
    assert_string_equal(spark(rising, 8, 4, true), "▁▃▆█"); /* means of neighbours */
    assert_string_equal(spark(gap, 3, 20, true), "▁ █");
    spark(rising, 8, 20, false);
    assert_int_equal(out.size, 8);
    assert_true(out.data[0] == '.' && out.data[7] == '#');
    assert_string_equal(spark(same, 2, 20, true), "▅▅");
    assert_string_equal(spark(none, 1, 20, true), " ");
    assert_string_equal(spark(NULL, 0, 20, true), "");
    assert_string_equal(spark(rising, 8, 0, true), "");
}

/* ---- that it fits ---- */

static void assert_fits(const char *text, uint32_t columns, uint32_t rows, bool utf8)
{
    uint32_t lines = 0;
    for (const char *at = text; *at; lines++) {
        size_t size = strcspn(at, "\n");
        char line[4096];
        assert_true(size < sizeof line);
        snprintf(line, sizeof line, "%.*s", (int)size, at);
        if (format_width(line) > columns)
            fail_msg("wider than %u: '%s'", columns, line);
        for (size_t i = 0; i < size; i++)
            assert_true((unsigned char)line[i] >= 0x20 && (utf8 || (unsigned char)line[i] < 0x7f));
        at += size + (at[size] == '\n');
    }
    assert_true(lines <= rows);
}

TEST(fits)
{
    struct status s = sample_hosts(HOSTS);
    for (uint32_t extreme = 0; extreme < 3; extreme++) {
        for (uint32_t columns = 1; columns < 200; columns += columns < 20 ? 1 : 7) {
            for (uint32_t rows = 1; rows < 50; rows += 5) {
                text_fini(&out);
                view_render(&out, &s, columns, rows, rows % 2);
                assert_fits(text_get(&out), columns, rows, rows % 2);
                assert_true(out.size > 0);
            }
        }
        memset(s.name, 'n', sizeof s.name - 1);
        snprintf(s.folder, sizeof s.folder,
                 "数据数据数据数据/\xff\xc3\x1b]0;title\a/\xe2\x80\xae"
                 "right-to-left/é́");
        snprintf(s.event, sizeof s.event, "two\nlines\tand \x9b[2J 🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉");
        snprintf(s.why.text, sizeof s.why.text, "%0200d", 7);
        s.inserts_rate = s.spi = s.value = s.best = 1e300;
        s.steps_rate = -1e300;
        s.actor_idle = 1e9;
        s.learner_idle = -1e9;
        s.progress = 1e9;
        s.eta_s = s.elapsed_s = 1e300;
        s.steps = s.size = s.memory = UINT64_MAX;
        s.restarts = s.actors = s.learners_wanted = UINT32_MAX;
        s.cpu = 1e300;
        s.n_hosts = 4;
        memset(hosts[1].name, 'n', sizeof hosts[1].name - 1);
        memset(hosts[1].state, 's', sizeof hosts[1].state - 1);
        snprintf(hosts[2].name, sizeof hosts[2].name, "数据数据数据数据数据\xff\xc3\x1b]0;");
        memset(hosts[LOST].state, '\n', sizeof hosts[LOST].state - 1);
        hosts[1].actors = hosts[2].learners_wanted = hosts[2].times = UINT32_MAX;
        hosts[1].cpu = hosts[1].cores = hosts[2].machine_cpu = hosts[1].round_trip_ms = 1e300;
        hosts[2].cores = hosts[1].machine_cpu = -1e300;
        hosts[2].round_trip_ms = -1;
    }
}

/* In a small terminal the most important lines are there, in their order. */
TEST(priorities)
{
    struct status s = sample();
    const char *text = render(&s, 80, 4);
    HAS(text, "cartpole-dqn", "31%", "actor-1 restarts in 2 s", "return    212");
    HAS_NOT(text, "memory", "\n\n");
    assert_has(render(&s, 80, 1), "cartpole-dqn");
    assert_has_not(text_get(&out), "31%");
}

/* ---- on a terminal ---- */

static uint32_t count(const char *text, const char *what)
{
    uint32_t n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

/* Standard output is this descriptor until it is put back. */
static int replace_stdout(int with)
{
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    assert_true(before >= 0 && dup2(with, STDOUT_FILENO) >= 0);
    return before;
}

static void put_back(int before)
{
    dup2(before, STDOUT_FILENO);
    close(before);
}

/* All that was written so far. */
static char *drain(int fd)
{
    static char data[1 << 18];
    size_t size = 0;
    ssize_t n;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while ((n = read(fd, data + size, sizeof data - 1 - size)) > 0)
        size += (size_t)n;
    data[size] = '\0';
    return data;
}

static int open_terminal(int *slave, uint32_t columns, uint32_t rows)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    *slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(*slave >= 0);
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
    assert_int_equal(ioctl(master, TIOCSWINSZ, &size), 0);
    return master;
}

/* Colours are for terminals, and only for those who want them. */
TEST(colour)
{
    for (uint32_t i = 0; i < 3; i++) {
        int slave, master = open_terminal(&slave, 80, 24);
        setenv("TERM", i == 2 ? "dumb" : "xterm", 1);
        setenv("NO_COLOR", i == 1 ? "1" : "", 1);
        int before = replace_stdout(slave);
        struct screen *screen = screen_new(SCREEN_AUTO);
        struct status s = sample();
        screen_show(screen, &s);
        screen_destroy(&screen);
        put_back(before);
        const char *text = drain(master);
        assert_int_equal(strstr(text, "\x1b[32m") != NULL, i == 0);
        assert_int_equal(strstr(text, "\x1b[") != NULL, i < 2);
        assert_has(text, "running");
        close(slave);
        close(master);
    }
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "", 1);
}

/* What was written into a pipe; read after each step, since a pipe may be as small as a page. */
static const char *through_pipe(enum screen_mode mode)
{
    static char text[32768];
    size_t size = 0;
    int fds[2];
    text[0] = '\0';
    assert_int_equal(pipe(fds), 0);
    int before = replace_stdout(fds[1]);
    struct screen *screen = screen_new(mode);
    struct status s = sample();
    for (uint32_t i = 0; i < 6; i++) {
        if (i < 3) /* only the first is due */
            screen_show(screen, &s);
        else if (i == 3)
            screen_say(screen, false, "soft\n");
        else if (i == 4)
            screen_say(screen, true, "loud \"%d\"\n| \x1b[2J", 7);
        else {
            s.phase = PHASE_DONE;
            screen_show(screen, &s);
        }
        size += (size_t)snprintf(text + size, sizeof text - size, "%s", drain(fds[0]));
    }
    screen_destroy(&screen);
    put_back(before);
    close(fds[1]);
    close(fds[0]);
    assert_has_not(text, "\x1b");
    return text;
}

TEST(pipe)
{
    const char *text = through_pipe(SCREEN_AUTO);
    assert_int_equal(count(text, "\n"), 5);
    assert_int_equal(count(text, "12 s running steps"), 1);
    assert_has(text, "\nsoft\nloud \"7\"\n| ?[2J\n12 s done steps");
    text = through_pipe(SCREEN_QUIET);
    assert_string_equal(text, "loud \"7\"\n| ?[2J\n");
    text = through_pipe(SCREEN_JSON);
    assert_int_equal(count(text, "\n"), 4);
    assert_int_equal(count(text, "\"phase\": \"running\""), 1);
    assert_int_equal(count(text, "\"phase\": \"done\""), 1);
    HAS(text, "{\"event\": \"soft\", \"loud\": false}\n",
        "{\"event\": \"loud \\\"7\\\"\\n| \\u001b[2J\", \"loud\": true}\n");
}

/* A reader that does not read, or is gone, does not stop the run. */
TEST(broken_output)
{
    int fds[2];
    struct status s = sample();
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    int before = replace_stdout(fds[1]);
    struct screen *screen = screen_new(SCREEN_JSON);
    screen_show(screen, &s);
    screen_say(screen, true, "nobody hears it");
    put_back(before);
    screen_destroy(&screen);
    close(fds[1]);
    /* A full pipe. */
    assert_int_equal(pipe(fds), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) > 0);
    before = replace_stdout(fds[1]);
    screen = screen_new(SCREEN_JSON);
    for (uint32_t i = 0; i < 2; i++) {
        s.phase = i ? PHASE_STOPPING : PHASE_RUNNING;
        screen_show(screen, &s);
    }
    put_back(before);
    screen_destroy(&screen);
    close(fds[1]);
    char *text = drain(fds[0]);
    assert_int_equal(strncmp(text, "{\"name\"", 7), 0);
    close(fds[0]);
}
