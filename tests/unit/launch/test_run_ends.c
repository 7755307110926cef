/* Ends of a run's processes: what counts as a failure, and how long a host is waited for that still sends files. */

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/support/runbed.h"

#define YAML "launch: {grace: 1s}\nbroker: {tables: [{name: replay}]}\n"
#define BIG 120000000 /* bytes */

/* Opens a run with one process, at home. */
static struct member *open_run(struct runbed *self, enum role role)
{
    runbed_open(self, YAML, NULL);
    struct member *member = runbed_add(self, role, 0);
    member->host = member->at = HOST_POOL_HOME;
    snprintf(member->name, sizeof member->name, role == ROLE_LEARNER ? "learner-0" : "actor-0");
    run_hosts_open(&self->run);
    return member;
}

FIXTURE(struct runbed, (void), runbed_close)

/* As the loop of a run does it. */
static void tick(struct runbed *self)
{
    bool busy = host_pool_busy(self->pool);
    nanosleep(&(struct timespec){.tv_nsec = (busy ? RUN_BUSY_MS : RUN_TICK_MS) * NS_PER_MS}, NULL);
    run_tend(&self->run, clock_ns());
}

#define await(self, condition)                                                                                         \
    do {                                                                                                               \
        for (int64_t end_ = clock_ns() + 40 * NS_PER_S; !(condition); tick(self))                                      \
            if (clock_ns() > end_)                                                                                     \
                fail_msg("waited in vain for: %s", #condition);                                                        \
    } while (0)

static void start(struct runbed *self, const char *script)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct member *member = self->list[0];
    struct host *host = host_pool_at(self->pool, member->at)->host;
    const struct process_options options = {.name = member->name,
                                            .argv = argv,
                                            .log = tempdir_at("log"),
                                            .guard = &self->guard,
                                            .place = host ? host_place(host) : NULL};
    ok(process_start(&member->process, &options, clock_ns(), &err));
}

/* Every exit status of a program is its own: none means that its host is lost. */
TEST(exit_status)
{
    static const char *const scripts[] = {"exit 254", "exit 255", "exit 1"};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct runbed bed;
        struct member *member = open_run(&bed, ROLE_ACTOR);
        start(&bed, scripts[i]);
        await(&bed, !member->process.running);
        assert_false(member->waits);
        assert_int_equal(member->supervised.in_a_row, 1);
        assert_true(member->supervised.restart_ns > 0);
        runbed_close(&bed);
    }
}

static const char *const carrier[] = {"/bin/sh", "-c", "exec \"$RP_LAUNCH\" node", NULL};

/* A guard that was killed is replaced, and the new one knows the carriers. */
CASE(guard_of_carriers)
{
    struct member *member = open_run(f, ROLE_LEARNER);
    assert_int_equal(host_pool_appear(f->pool, "far", carrier, 1, clock_ns(), &err), RP_OK);
    await(f, host_pool_at(f->pool, 1)->ready);
    member->wanted = false;
    pid_t first = f->guard.pid;
    assert_int_equal(kill(first, SIGKILL), 0);
    await(f, f->guard.pid != first);
    close(f->guard.pipe); /* as the launcher's end does */
    f->guard.pipe = -1;
    await(f, host_pool_at(f->pool, 1)->info->state == HOST_LOST);
    assert_int_equal(waitpid(f->guard.pid, NULL, 0), f->guard.pid);
}

/* A learner saves much at its end: the files may take longer than launch.grace, and the host is waited for. */
CASE(last_state)
{
    char script[1024];
    struct member *member = open_run(f, ROLE_LEARNER);
    f->config.launch.grace_ns *= 4; /* a busy machine takes long for that many bytes */
    assert_int_equal(host_pool_appear(f->pool, "far", carrier, 1, clock_ns(), &err), RP_OK);
    member->host = member->at = 1;
    await(f, host_pool_at(f->pool, 1)->ready);
    member->waits = false;
    snprintf(
        script, sizeof script,
        "cd '%s'; trap 'truncate -s %d state.tmp; echo end >> state.tmp; mv state.tmp learner.weights; exit 0' TERM; "
        "echo ready; while :; do sleep 0.02; done",
        host_pool_at(f->pool, 1)->info->facts.work, BIG);
    start(f, script);
    await(f, file_size(tempdir_at("log")) > 0);
    f->run.phase = PHASE_STOPPING;
    member->wanted = false;
    int64_t begin_ns = clock_ns();
    process_ask(&member->process, begin_ns);
    await(f, !member->process.running);
    print_message("%d bytes took %.2f s\n", BIG, (double)(clock_ns() - begin_ns) * 1e-9);
    assert_false(member->process.killed);
    assert_int_equal(file_size(tempdir_at("learner.weights")), BIG + 4);
    assert_true(host_pool_at(f->pool, 1)->ready); /* not given up */
}

/* A node agent whose process has ended and that sends files for ever: it is waited for, and not longer than that; who asks again
 * does not wait. */
TEST(endless_files)
{
    static const char script[] =
        "echo '@rp {\"type\":\"ready\",\"version\":\"'\"$RP_VERSION\"'\",\"cores\":1,\"work\":\"/x\"}'; "
        "while read -r x; do case \"$x\" in *start*) break;; esac; done; "
        "cat >/dev/null <&0 & echo '@rp {\"type\":\"process\",\"id\":1,\"pid\":1,\"exited\":true}'; "
        "while sleep 0.02; do echo '@rp "
        "{\"type\":\"file\",\"name\":\"learner.weights\",\"bytes\":4,\"offset\":0,"
        "\"replace\":true,\"last\":true}'; printf harm; done";
    static const char *const evil[] = {"/bin/sh", "-c", script, NULL};
    for (int hurry = 0; hurry < 2; hurry++) {
        struct runbed bed;
        struct member *member = open_run(&bed, ROLE_LEARNER);
        bed.config.launch.grace_ns = (hurry ? 500 : 50) * NS_PER_MS;
        assert_int_equal(host_pool_appear(bed.pool, "far", evil, 1, clock_ns(), &err), RP_OK);
        member->host = member->at = 1;
        await(&bed, host_pool_at(bed.pool, 1)->ready);
        member->waits = false;
        start(&bed, "true");
        await(&bed, file_size(tempdir_at("learner.weights")) > 0);
        bed.run.phase = PHASE_STOPPING;
        bed.run.hurried = hurry;
        member->wanted = false;
        process_ask(&member->process, clock_ns());
        await(&bed, !member->process.running);
        assert_true(member->process.killed);
        runbed_close(&bed);
    }
}

/* A run whose broker never answers has not met stop.time: it has failed. A leg that began with no time left is done. */
TEST(time_without_broker)
{
    static const struct {
        double before_s; /* of earlier legs */
        bool learners_started;
        enum phase outcome;
    } rows[] = {{0, false, PHASE_FAILED}, {0, true, PHASE_DONE}, {10, false, PHASE_DONE}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct runbed bed;
        struct folder_state before = {.elapsed_s = rows[i].before_s};
        struct status_process shown[1];
        open_run(&bed, ROLE_BROKER);
        bed.config.stop.time_ns = 10 * NS_PER_S;
        bed.options.before = &before;
        bed.run.shown = shown;
        bed.run.learners_started = rows[i].learners_started;
        bed.run.save_ns = INT64_MAX; /* this run has no metrics.jsonl */
        bed.run.start_ns = clock_ns() - 9 * NS_PER_S;
        run_poll(&bed.run, clock_ns());
        assert_int_equal(bed.run.phase, PHASE_STOPPING);
        assert_int_equal(bed.run.outcome, rows[i].outcome);
        assert_int_equal(strlen(bed.run.cause) > 0, rows[i].outcome == PHASE_FAILED);
        runbed_close(&bed);
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
    open_run(f, ROLE_BROKER);
    f->options.interrupts = &interrupts;
    f->options.limit = &limit;
    f->run.phase = PHASE_STOPPING;
    f->run.outcome = PHASE_STOPPED;
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
    f->run.outcome = PHASE_DONE;
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
