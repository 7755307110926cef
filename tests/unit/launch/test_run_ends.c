/* Ends of a run's processes: what counts as a failure, and how long a host is waited for that still sends files. */

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "agent/launch/run_state.h"
#include "tests/support/runtext.h"
#include "tests/support/tempdir.h"

#define YAML "launch: {grace: 1s}\nbroker: {tables: [{name: replay}]}\n"
#define BIG 120000000 /* bytes */

/* A run with one process, at home or on the host of a source. */
struct world {
    struct run_config config;
    struct run_options options;
    struct guard guard;
    struct screen *screen;
    struct run run;
    struct member member, *list[1];
};

static void open_world(struct world *self, enum role role)
{
    *self = (struct world){.screen = screen_new(SCREEN_QUIET)};
    assert_int_equal(tempdir_enter(NULL), 0);
    self->config = runtext_read(YAML, NULL);
    assert_int_equal(guard_start(&self->guard, &err), RP_OK);
    const struct host_pool_options options = {.home.config = &self->config,
                                              .home.folder = tempdir,
                                              .home.config_path = "config.yaml",
                                              .home.here = tempdir,
                                              .home.programs = ".",
                                              .cores = 4,
                                              .home.guard = &self->guard};
    self->options = (struct run_options){.home.config = &self->config,
                                         .home.folder = tempdir,
                                         .home.guard = &self->guard,
                                         .screen = &self->screen,
                                         .hosts = host_pool_new(&options, &err)};
    self->member = (struct member){.role = role, .wanted = true};
    snprintf(self->member.name, sizeof self->member.name, role == ROLE_LEARNER ? "learner-0" : "actor-0");
    self->list[0] = &self->member;
    self->run = (struct run){.options = &self->options,
                             .config = &self->config,
                             .clock = clock_system(),
                             .members = self->list,
                             .n_members = 1};
    assert_non_null(self->options.hosts);
    run_hosts_open(&self->run);
}

static void close_world(struct world *self)
{
    run_hosts_fini(&self->run);
    free(self->run.events);
    host_pool_destroy(&self->options.hosts);
    guard_stop(&self->guard);
    screen_destroy(&self->screen);
    run_config_free(&self->config);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct world, (void), close_world)

/* As the loop of a run does it. */
static void tick(struct world *self)
{
    bool busy = host_pool_busy(self->options.hosts);
    nanosleep(&(struct timespec){.tv_nsec = (busy ? RUN_BUSY_MS : RUN_TICK_MS) * NS_PER_MS}, NULL);
    run_tend(&self->run, clock_ns());
}

#define await(self, condition)                                                                                         \
    do {                                                                                                               \
        for (int64_t end_ = clock_ns() + 40 * NS_PER_S; !(condition); tick(self))                                      \
            if (clock_ns() > end_)                                                                                     \
                fail_msg("waited in vain for: %s", #condition);                                                        \
    } while (0)

static void start(struct world *self, const char *script)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct host *host = host_pool_at(self->options.hosts, self->member.at);
    const struct process_options options = {.name = self->member.name,
                                            .argv = argv,
                                            .log = tempdir_at("log"),
                                            .guard = &self->guard,
                                            .place = host ? host_place(host) : NULL};
    ok(process_start(&self->member.process, &options, clock_ns(), &err));
}

/* Every exit status of a program is its own: none means that its host is lost. */
TEST(exit_status)
{
    static const char *const scripts[] = {"exit 254", "exit 255", "exit 1"};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct world world;
        open_world(&world, ROLE_ACTOR);
        start(&world, scripts[i]);
        await(&world, !world.member.process.running);
        assert_false(world.member.waits);
        assert_int_equal(world.member.supervised.in_a_row, 1);
        assert_true(world.member.supervised.restart_ns > 0);
        close_world(&world);
    }
}

static const char *const carrier[] = {"/bin/sh", "-c", "exec \"$RP_LAUNCH\" node", NULL};

/* A guard that was killed is replaced, and the new one knows the carriers. */
CASE(guard_of_carriers)
{
    open_world(f, ROLE_LEARNER);
    assert_int_equal(host_pool_appear(f->options.hosts, "far", carrier, 1, clock_ns(), &err), RP_OK);
    await(f, host_pool_ready(f->options.hosts, 1));
    f->member.wanted = false;
    pid_t first = f->guard.pid;
    assert_int_equal(kill(first, SIGKILL), 0);
    await(f, f->guard.pid != first);
    close(f->guard.pipe); /* as the launcher's end does */
    f->guard.pipe = -1;
    await(f, host_info(host_pool_at(f->options.hosts, 1))->state == HOST_LOST);
    assert_int_equal(waitpid(f->guard.pid, NULL, 0), f->guard.pid);
}

/* A learner saves much at its end: the files may take longer than launch.grace, and the host is waited for. */
CASE(last_state)
{
    char script[1024];
    open_world(f, ROLE_LEARNER);
    f->config.launch.grace_ns *= 4; /* a busy machine takes long for that many bytes */
    assert_int_equal(host_pool_appear(f->options.hosts, "far", carrier, 1, clock_ns(), &err), RP_OK);
    f->member.host = f->member.at = 1;
    await(f, host_pool_ready(f->options.hosts, 1));
    f->member.waits = false;
    snprintf(
        script, sizeof script,
        "cd '%s'; trap 'truncate -s %d state.tmp; echo end >> state.tmp; mv state.tmp learner.weights; exit 0' TERM; "
        "echo ready; while :; do sleep 0.02; done",
        host_info(host_pool_at(f->options.hosts, 1))->facts.work, BIG);
    start(f, script);
    await(f, file_size(tempdir_at("log")) > 0);
    f->run.phase = PHASE_STOPPING;
    f->member.wanted = false;
    int64_t begin_ns = clock_ns();
    process_ask(&f->member.process, begin_ns);
    await(f, !f->member.process.running);
    print_message("%d bytes took %.2f s\n", BIG, (double)(clock_ns() - begin_ns) * 1e-9);
    assert_false(f->member.process.killed);
    assert_int_equal(file_size(tempdir_at("learner.weights")), BIG + 4);
    assert_true(host_pool_ready(f->options.hosts, 1)); /* not given up */
}

/* A node agent whose process has ended and that sends files for ever: it is waited for, and not longer than that; who asks again
 * does not wait. */
TEST(endless_files)
{
    static const char script[] =
        "echo '@rp {\"type\":\"ready\",\"protocol\":1,\"version\":\"'\"$RP_VERSION\"'\",\"cores\":1,\"work\":\"/x\"}'; "
        "while read -r x; do case \"$x\" in *start*) break;; esac; done; "
        "cat >/dev/null <&0 & echo '@rp {\"type\":\"exited\",\"id\":1}'; "
        "while sleep 0.02; do echo '@rp "
        "{\"type\":\"file\",\"name\":\"learner.weights\",\"bytes\":4,\"offset\":0,"
        "\"replace\":true,\"last\":true}'; printf harm; done";
    static const char *const evil[] = {"/bin/sh", "-c", script, NULL};
    for (int hurry = 0; hurry < 2; hurry++) {
        struct world world;
        open_world(&world, ROLE_LEARNER);
        world.config.launch.grace_ns = (hurry ? 500 : 50) * NS_PER_MS;
        assert_int_equal(host_pool_appear(world.options.hosts, "far", evil, 1, clock_ns(), &err), RP_OK);
        world.member.host = world.member.at = 1;
        await(&world, host_pool_ready(world.options.hosts, 1));
        world.member.waits = false;
        start(&world, "true");
        await(&world, file_size(tempdir_at("learner.weights")) > 0);
        world.run.phase = PHASE_STOPPING;
        world.run.hurried = hurry;
        world.member.wanted = false;
        process_ask(&world.member.process, clock_ns());
        await(&world, !world.member.process.running);
        assert_true(world.member.process.killed);
        close_world(&world);
    }
}

/* A run whose broker never answers has not met stop.time: it has failed. A leg that began with no time left is done. */
TEST(time_without_broker)
{
    static const struct {
        double before_s; /* of earlier legs */
        bool learners_started;
        enum run_outcome outcome;
    } rows[] = {{0, false, RUN_FAILED}, {0, true, RUN_DONE}, {10, false, RUN_DONE}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct world world;
        struct folder_state before = {.elapsed_s = rows[i].before_s};
        struct status_process shown[1];
        open_world(&world, ROLE_BROKER);
        world.config.stop.time_ns = 10 * NS_PER_S;
        world.options.before = &before;
        world.run.shown = shown;
        world.run.learners_started = rows[i].learners_started;
        world.run.save_ns = INT64_MAX; /* this run has no metrics.jsonl */
        world.run.start_ns = clock_ns() - 9 * NS_PER_S;
        run_poll(&world.run, clock_ns());
        assert_int_equal(world.run.phase, PHASE_STOPPING);
        assert_int_equal(world.run.outcome, rows[i].outcome);
        assert_int_equal(strlen(world.run.cause) > 0, rows[i].outcome == RUN_FAILED);
        close_world(&world);
    }
}

static bool act_third_time(void *context)
{
    return ++*(int *)context == 3;
}

/* Saving that takes longer than the warning of a time limit: the scheduler is asked until it agrees, and not at all after a stop. */
CASE(limit)
{
    int acted = 0;
    struct interrupts interrupts = {.fd = -1, .asked = 1, .last = SIGUSR1};
    const struct run_limit limit = {.after_ns = 30 * NS_PER_S, .act = act_third_time, .context = &acted};
    open_world(f, ROLE_BROKER);
    f->options.interrupts = &interrupts;
    f->options.limit = &limit;
    f->run.phase = PHASE_STOPPING;
    f->run.outcome = RUN_STOPPED;
    static const int expected[] = {0, 0, 0, 1, 2, 3, 3, 3}; /* after 0, 10, 20, ... s */
    for (int i = 0; i < 8; i++) {
        run_heed_limit(&f->run, NS_PER_S + i * 10 * NS_PER_S);
        assert_int_equal(acted, expected[i]);
    }
    acted = 0;
    f->run.limit_ns = 1;
    interrupts.last = SIGTERM; /* somebody asked to stop meanwhile */
    run_heed_limit(&f->run, 100 * NS_PER_S);
    interrupts.last = SIGUSR1;
    f->run.outcome = RUN_DONE;
    run_heed_limit(&f->run, 100 * NS_PER_S);
    assert_int_equal(acted, 0);
}

/* The reason of a stop names who asked: the note, else the sender of the signal. */
TEST(asker, tempdir_enter, tempdir_leave)
{
    char who[STOP_ASKER], own[64];
    struct interrupts interrupts;
    assert_int_equal(interrupts_init(&interrupts, &err), RP_OK);
    snprintf(own, sizeof own, "process %d", (int)getpid());
    stop_note_leave(tempdir, "replay-launch stop\nand more");
    kill(getpid(), SIGTERM);
    interrupts_wait(&interrupts, 1000);
    assert_int_equal(interrupts.asked, 1);
    assert_string_equal(stop_asker(tempdir, &interrupts, who, sizeof who), "replay-launch stop");
    assert_non_null(strstr(stop_asker(tempdir, &interrupts, who, sizeof who), own)); /* a note serves once */
    assert_non_null(strstr(who, "SIGTERM"));
    stop_note_leave(tempdir, "replay-launch stop");
    interrupts.last = SIGINT;
    interrupts.sender = 0;
    assert_string_equal(stop_asker(tempdir, &interrupts, who, sizeof who), "Ctrl-C");
    interrupts_fini(&interrupts);
    assert_false(file_exists(tempdir_at("launch.stop")));
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as the launcher: a carrier may end while it is written to */
    return test_run(NULL, NULL);
}
