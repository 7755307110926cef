/* A run: starts, awaits, restarts and retires its processes, looks at what they do, stops them, and writes the report. */
#include "agent/launch/run.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/run_state.h"
#include "agent/run/worker.h"
#include "proto/base/crc32c.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "replay/admin.h"
#include "replay/collective.h"

#define TAIL_LINES 8
/* Grace for the broker after all other processes have ended. A broker without files has little left to do; a broker
 * with files writes its last checkpoint. A second Ctrl-C does not wait for it. */
#define BROKER_GRACE_NS (2 * NS_PER_S)
#define BROKER_WRITE_NS (300 * NS_PER_S)
/* By this time the last report of a process has been read. */
#define JUDGE_NS (3 * NS_PER_S / 2)
/* Time between two looks at the load of the machine. */
#define LOAD_NS (2 * NS_PER_S)
/* The longest pause before a restart, in units of launch.backoff. */
#define BACKOFFS_MOST 60
/* Failures are counted anew after a process has run for this long: long enough that a crash while it starts does not count as new. */
#define HEALTHY_NS (60 * NS_PER_S)
/* Bytes of a process's log beyond which it is emptied. */
#define LOG_MOST (256 << 20)

/* ---- starting ---- */

static struct supervisor_limits limits_of(const struct run *self)
{
    const struct launch_section *launch = &self->config->launch;
    return (struct supervisor_limits){.backoff_ns = launch->backoff_ns,
                                      .backoff_most_ns = BACKOFFS_MOST * launch->backoff_ns,
                                      .failures = (uint32_t)launch->failures,
                                      .healthy_ns = HEALTHY_NS};
}

static void give_up(struct run *self, const struct member *member)
{
    char text[SUPERVISOR_TAIL + 512], quoted[SUPERVISOR_TAIL + 1024];
    supervisor_explain(&member->supervised, member->name, text, sizeof text);
    log_line(LEVEL_ERROR, "A0404", "launch", "text=%s", log_quote(quoted, sizeof quoted, text));
    run_stop(self, PHASE_FAILED, false, "%s", text);
}

static void start(struct run *self, struct member *member)
{
    rp_error err = {0};
    char logs[FOLDER_SIZE + 16];
    struct command_context context;
    int64_t now_ns = clock_now(&self->clock);
    run_place(self, member);
    member->waits = !run_host_ready(self, member);
    if (member->waits)
        return;
    self->context.actors = self->actors_wanted;
    member->hang = (struct hang){0};
    member->usage_ns = member->cpu_ns = 0;
    run_go_there(self, member, &context);
    run_folder_path(logs, sizeof logs, self->options->home.folder, "logs");
    if (command_start(&context, member->role, member->index, logs, &member->process, now_ns, &err) == RP_OK) {
        if (member->at == HOST_POOL_HOME)
            log_line(LEVEL_INFO, "A0402", "started", "process=%s pid=%d", member->name, (int)member->process.pid);
        else
            log_line(LEVEL_INFO, "A0402", "started", "process=%s host=%s", member->name,
                     host_pool_at(self->hosts.pool, member->at)->info->name);
        return;
    }
    const struct supervisor_limits limits = limits_of(self);
    enum supervisor_action action = supervisor_not_started(&member->supervised, &limits, err.text, now_ns);
    run_say(self, LEVEL_WARN, "A0403", "%s: %s", member->name, err.text);
    if (action == SUPERVISOR_GIVE_UP)
        give_up(self, member);
}

static struct member *add(struct run *self, enum role role, uint32_t index)
{
    struct member *member = need_alloc(sizeof *member);
    self->members = need_resize(self->members, self->n_members + 1, sizeof *self->members);
    self->shown = need_resize(self->shown, self->n_members + 1, sizeof *self->shown);
    member->role = role;
    member->index = index;
    member->host = member->at = member->state_at = RUN_NO_HOST;
    command_name(role, index, member->name);
    self->members[self->n_members++] = member;
    return member;
}

/* Adds a process and starts it, or takes back a retired one. */
static void run_member(struct run *self, enum role role, uint32_t index)
{
    uint32_t i = 0;
    while (i < self->n_members && (self->members[i]->role != role || self->members[i]->index != index))
        i++;
    struct member *member = i < self->n_members ? self->members[i] : add(self, role, index);
    member->wanted = true;
    member->unjudged = false;
    member->supervised = (struct supervised){.restarts = member->supervised.restarts};
    if (!member->process.running)
        start(self, member);
}

/* ---- ends ---- */

/* How long the broker may take to end: with files, until its last checkpoint is written. */
static int64_t broker_grace(const struct run *self)
{
    return config_folder(&self->config->broker) ? BROKER_WRITE_NS : BROKER_GRACE_NS;
}

/* Time between SIGTERM and SIGKILL. */
static int64_t grace_of(const struct run *self, const struct member *member)
{
    int64_t grace_ns = self->config->launch.grace_ns, broker_ns = broker_grace(self);
    return member->role == ROLE_BROKER && broker_ns > grace_ns ? broker_ns : grace_ns;
}

/* True if the process failed before with the same output, which was shown then. */
static bool as_before(const struct member *member, const char *tail)
{
    return member->supervised.in_a_row > 0 && tail[0] && strcmp(member->supervised.first.tail, tail) == 0;
}

/* A process that was asked to end should still end with success: a learner may have failed to save its state. */
static void check_last_words(struct run *self, const struct member *member, int status)
{
    char tail[SUPERVISOR_TAIL], how[96];
    bool by_us =
        member->process.killed || status == PROCESS_LOST || (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    if (status == 0 || by_us)
        return;
    process_tail(&member->process, tail, sizeof tail, TAIL_LINES);
    if (as_before(member, tail))
        tail[0] = '\0';
    run_say(self, LEVEL_WARN, "A0414", "%s failed while it ended: %s.%s%s", member->name,
            process_describe(status, how, sizeof how), tail[0] ? " Its last lines:\n" : "", tail);
}

static void judge(struct run *self, struct member *member, int status, bool expected, int64_t now_ns)
{
    char tail[SUPERVISOR_TAIL], how[96];
    const struct supervisor_limits limits = limits_of(self);
    int64_t ran_ns = member->ended_ns - member->process.started_ns;
    bool again, killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    process_tail(&member->process, tail, sizeof tail, TAIL_LINES);
    process_describe(status, how, sizeof how);
    const struct supervisor_end end = {status, expected, tail, now_ns, ran_ns};
    switch (supervisor_ended(&member->supervised, &limits, &end)) {
    case SUPERVISOR_DONE:
        member->wanted = false;
        break;
    case SUPERVISOR_RESTART:
        again = member->supervised.in_a_row > 1 && as_before(member, tail);
        run_say(self, LEVEL_WARN, "A0403", "%s ended after %.1f s%s%s%s; it starts again in %.1f s.%s%s", member->name,
                (double)ran_ns * 1e-9, WIFEXITED(status) ? " with " : ", ", how,
                !killed                  ? ""
                : member->process.killed ? " by replay-launch"
                                         : " by a user, or by the kernel because memory ran out (dmesg says so)",
                (double)(member->supervised.restart_ns - now_ns) * 1e-9,
                again     ? " It failed as before."
                : tail[0] ? " Its last lines:\n"
                          : "",
                again ? "" : tail);
        break;
    case SUPERVISOR_GIVE_UP:
        give_up(self, member);
        break;
    }
}

static void ended(struct run *self, struct member *member, int status, int64_t now_ns)
{
    char how[96];
    if (status == 0 && self->phase < PHASE_STOPPING)
        self->poll_ns = 0; /* a stop condition that the process noticed before the launcher is a good reason */
    bool asked = member->process.asked_ns > 0 || self->phase >= PHASE_STOPPING;
    bool custom = run_is_custom(self, member->role);
    member->ended_ns = now_ns;
    member->memory = 0;
    member->cpu = 0.0;
    log_line(LEVEL_INFO, "A0405", "ended", "process=%s how=\"%s\" asked=%d", member->name,
             process_describe(status, how, sizeof how), asked);
    if (status == PROCESS_LOST && self->phase < PHASE_STOPPING) { /* not its fault: it waits for its host */
        member->waits = member->wanted;
        return;
    }
    if (asked)
        check_last_words(self, member, status);
    if (asked && member->wanted && self->phase < PHASE_STOPPING) /* it was retired, and is wanted again */
        start(self, member);
    else if (status == 0 && !asked && !custom)
        member->unjudged = true;
    else
        judge(self, member, status, asked || (status == 0 && custom), now_ns);
}

/* Our programs end by themselves only because of a stop condition, which they may notice before the launcher. */
static void tend_unjudged(struct run *self, struct member *member, int64_t now_ns)
{
    bool stops = self->phase >= PHASE_STOPPING;
    if (!member->unjudged || (!stops && now_ns - member->ended_ns < JUDGE_NS))
        return;
    member->unjudged = false;
    judge(self, member, 0, stops, now_ns);
}

/* Ends the run when the last process of a user's role has ended as it should. */
static void check_done(struct run *self)
{
    for (enum role role = 0; role < ROLES && self->actors_started; role++) {
        if (!run_is_custom(self, role) || run_wanted(self, role) > 0 || run_running(self, role) > 0)
            continue;
        if (role == ROLE_ACTOR && self->seen.inserts == 0)
            run_stop(self, PHASE_FAILED, false, "the actors have ended with status 0, but none has inserted anything");
        run_stop(self, PHASE_DONE, false, "the %ss have ended", role_names[role]);
    }
}

/* ---- shards of the broker ---- */

/* Their parent starts a shard again that has died, which is told; one that hangs (a SIGSTOP, a lost disk) is killed. Those of a parent
 * that has died itself are gone with it. */
static void tend_shards(struct run *self, const struct member *broker)
{
    uint32_t shards = config_shards(&self->config->broker), n, k;
    int64_t hang_ns = self->config->launch.hang_ns;
    struct process_child children[CONFIG_MAX_SHARDS];
    struct run_shard now[CONFIG_MAX_SHARDS] = {{0}};
    if (shards == 1 || !broker->process.running || broker->process.asked_ns > 0)
        return;
    n = process_children(&broker->process, children, shards);
    for (uint32_t i = 0; i < shards; i++) {
        for (k = 0; k < n && children[k].pid != self->shards[i].pid;)
            k++;
        if (k < n)
            now[k].hang = self->shards[i].hang;
        else if (self->shards[i].pid != 0 && self->shards_of == broker->process.pid)
            run_say(self, LEVEL_WARN, "A0442",
                    "a shard of the broker (process %d) has ended, and the broker starts it again: see logs/broker.log",
                    (int)self->shards[i].pid);
    }
    for (k = 0; k < n; k++) {
        now[k].pid = children[k].pid;
        if (!hang_seen(&now[k].hang, hang_ns, children[k].cpu_ns, clock_now(&self->clock)))
            continue;
        run_say(self, LEVEL_WARN, "A0406",
                "a shard of the broker (process %d) hangs: it used no processor time for %.0f s%s; it is killed "
                "(launch.hang), and the broker starts it again",
                (int)now[k].pid, (double)hang_ns * 1e-9, children[k].stopped ? " and is stopped" : "");
        kill(now[k].pid, SIGKILL);
    }
    memcpy(self->shards, now, sizeof now);
    self->shards_of = broker->process.pid;
}

/* ---- what they use ---- */

static void tend_hang(struct run *self, struct member *member, int64_t now_ns)
{
    struct process_usage usage;
    if (!process_usage(&member->process, &usage))
        return;
    if (member->usage_ns > 0 && now_ns > member->usage_ns)
        member->cpu = (double)(usage.cpu_ns - member->cpu_ns) / (double)(now_ns - member->usage_ns);
    member->usage_ns = now_ns;
    member->cpu_ns = usage.cpu_ns;
    member->memory = usage.memory;
    /* Shards work on while their parent is stopped, which could not start one again. */
    bool parent = member->role == ROLE_BROKER && config_shards(&self->config->broker) > 1;
    int64_t cpu_ns = parent && usage.stopped ? member->hang.cpu_ns : usage.cpu_ns;
    if (hang_seen(&member->hang, self->config->launch.hang_ns, cpu_ns, now_ns) && !member->process.killed) {
        run_say(self, LEVEL_WARN, "A0406",
                "%s hangs: it used no processor time for %.0f s%s; it is killed (launch.hang)", member->name,
                (double)self->config->launch.hang_ns * 1e-9, usage.stopped ? " and is stopped" : "");
        process_kill(&member->process);
    }
}

/* Logged once: a process that floods its log keeps doing so. */
static void tend_log(struct run *self, struct member *member)
{
    if (!process_cut_log(&member->process, LOG_MOST) || member->flooded)
        return;
    member->flooded = true;
    run_say(self, LEVEL_WARN, "A0416",
            "%s has printed more than %d MiB: its log is emptied, now and whenever it gets so large", member->name,
            LOG_MOST >> 20);
}

/* Measured over several seconds, because the kernel counts processor time in ticks. The account of a process is gone
 * when it ends. */
static void measure_others(struct run *self)
{
    struct machine_load load;
    int64_t ours_ns = 0;
    for (uint32_t i = 0; i < self->n_members; i++)
        if (self->members[i]->process.running && self->members[i]->at == HOST_POOL_HOME)
            ours_ns += self->members[i]->cpu_ns;
    if (!machine_load_read(&load) || (self->load.cores > 0 && load.at_ns - self->load.at_ns < LOAD_NS))
        return;
    double ns = (double)(load.at_ns - self->load.at_ns);
    self->others = self->load.cores > 0 && ours_ns >= self->load_ours_ns
                       ? machine_load_others(&self->load, &load, (double)(ours_ns - self->load_ours_ns) / ns)
                       : 0.0;
    self->home_load = self->load.cores > 0 ? (double)(load.busy_ns - self->load.busy_ns) / ns : NAN;
    self->load = load;
    self->load_ours_ns = ours_ns;
}

static void measure_usage(struct run *self, int64_t now_ns)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        if (!self->members[i]->process.running)
            continue;
        tend_hang(self, self->members[i], now_ns);
        tend_log(self, self->members[i]);
        if (self->members[i]->role == ROLE_BROKER)
            tend_shards(self, self->members[i]);
    }
    measure_others(self);
    run_hosts_measure(self, now_ns);
}

/* ---- all of them ---- */

/* Since when a process that was asked to end keeps the run waiting. One that has ended on its host waits for its files. */
static int64_t waited_since(const struct run *self, const struct member *member)
{
    int64_t asked_ns = member->process.asked_ns;
    bool files = member->process.exited && member->at != HOST_POOL_HOME;
    return files ? run_host_moved(self, member->at, asked_ns) : asked_ns;
}

void run_tend(struct run *self, int64_t now_ns)
{
    struct guard *guard = self->options->home.guard;
    if (guard_lost(guard))
        run_say(self, LEVEL_WARN, "A0415", "the guard of the processes was killed; %s",
                guard->pipe >= 0 ? "there is another one" : "another one could not be started");
    run_hosts_tend(self, now_ns);
    for (uint32_t i = 0; i < self->n_members; i++) {
        struct member *member = self->members[i];
        int status;
        if (member->process.running && process_ended(&member->process, &status))
            ended(self, member, status, now_ns);
        else if (member->process.running && member->process.asked_ns > 0 && !member->process.killed &&
                 now_ns - waited_since(self, member) > grace_of(self, member)) {
            run_say(self, LEVEL_WARN, "A0407", "%s did not end within %.1f s of SIGTERM%s; it is killed", member->name,
                    (double)grace_of(self, member) * 1e-9, member->role == ROLE_BROKER ? "" : " (launch.grace)");
            process_kill(&member->process);
        }
        tend_unjudged(self, member, now_ns);
        if (self->phase < PHASE_STOPPING && member->wanted && !member->process.running &&
            ((member->waits && run_host_ready(self, member)) || supervisor_due(&member->supervised, now_ns)))
            start(self, member);
    }
}

/* Sends SIGTERM to all processes of a role from this index on. */
static void ask_role(struct run *self, enum role role, uint32_t from, int64_t now_ns)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        struct member *member = self->members[i];
        if (member->role != role || member->index < from)
            continue;
        member->wanted = member->unjudged = member->waits = false;
        if (member->process.running)
            process_ask(&member->process, now_ns);
    }
}

static void kill_all(struct run *self)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        self->members[i]->wanted = self->members[i]->waits = false;
        if (self->members[i]->process.running)
            process_kill(&self->members[i]->process);
    }
}

/* Changes the number of actors. */
static void set_actors(struct run *self, uint32_t count, int64_t now_ns)
{
    uint32_t before = self->actors_wanted;
    self->actors_wanted = count;
    self->hosts.counted = false;
    host_pool_want(self->hosts.pool, count);
    run_stretch_begin(self, count);
    ask_role(self, ROLE_ACTOR, count, now_ns);
    for (uint32_t i = before; i < count; i++)
        run_member(self, ROLE_ACTOR, i);
}

#define POLL_NS (NS_PER_S / 2)
#define SAVE_NS NS_PER_S
#define RESIZE_MARGIN 0.2
#define RESIZE_REPORTS 10 /* times report.every for which a side is idle before actors are added or retired */
/* A broker that does not listen by then has a problem that a restart does not solve. */
#define READY_NS (30 * NS_PER_S)
/* The same for a broker that loads tables first. */
#define LOADED_NS (1800 * NS_PER_S)
/* A learner gives a new broker the step counters with its next report. After this much more than a report's interval
 * the launcher does it. */
#define PUT_BACK_NS (2 * NS_PER_S)
/* Pause before options->limit acts again. */
#define LIMIT_PAUSE_NS (5 * NS_PER_S)

/* ---- the start, step by step: broker, learners, their first parameters, actors and evaluator ---- */

/* Moves a counter of the broker to the nearest number from least to most. False: the broker does not answer. */
static bool bound_counter(const struct run *self, const char *name, int64_t least, int64_t most)
{
    rp_client *client = observer_client(self->observer);
    int64_t total = 0;
    if (rp_counter_read(client, name, RUN_POLL_MS, &total, NULL) != RP_OK)
        return false;
    int64_t wanted = total < least ? least : total > most ? most : total;
    return wanted == total || rp_counter_add(client, name, wanted - total, RUN_POLL_MS, NULL, NULL) == RP_OK;
}

/* Restores the counters of before a resume, or of another broker: exploration and stop.steps continue from there. */
static bool put_back(struct run *self)
{
    self->put_back = self->put_back || self->steps_before == 0 ||
                     (bound_counter(self, COUNTER_STEPS, (int64_t)self->steps_before, INT64_MAX) &&
                      bound_counter(self, COUNTER_TAKEN, (int64_t)self->steps_shown, INT64_MAX));
    return self->put_back;
}

/* Our learner does this by itself, unless it was restarted too. */
static void put_back_later(struct run *self, int64_t now_ns)
{
    bool by_learner = self->config->learners.count != 0 && !run_is_custom(self, ROLE_LEARNER);
    int64_t patience_ns = by_learner ? self->config->report.every_ns + PUT_BACK_NS : 0;
    if (self->put_back || !self->seen.broker || !self->learners_started) {
        self->put_back_ns = 0;
        return;
    }
    if (self->put_back_ns == 0)
        self->put_back_ns = now_ns + patience_ns;
    if (now_ns >= self->put_back_ns)
        put_back(self);
}

static void fill_steps(struct run *self)
{
    uint64_t full = (uint64_t)self->config->stop.steps;
    if (!self->patient || !self->seen.broker || self->seen.steps >= full)
        return;
    if (self->steps_before < full)
        self->steps_before = full;
    self->put_back = false;
    put_back(self);
}

/* Whose the tables and the other counters are: the value of COUNTER_RUN. */
static int64_t run_mark(const struct run *self)
{
    char real[PATH_MAX];
    const char *folder = realpath(self->options->home.folder, real) ? real : self->options->home.folder;
    return crc32c(0, folder, strlen(folder));
}

/* The tables of a run may be those of another one (broker.folder), whose counters and parameters come with them: a counter says whose they
 * are. How far that one was is not how far this one is. */
static bool forget(struct run *self)
{
    int64_t whose = 0, ours = run_mark(self), steps = (int64_t)self->steps_before;
    const struct {
        const char *name;
        int64_t least, most;
    } counts[] = {{COUNTER_STEPS, 0, steps},
                  {COUNTER_TAKEN, 0, steps},
                  {COUNTER_LEARNER_STEPS, 0, (int64_t)self->learner_steps_before},
                  {COUNTER_LEARNER_END, 0, 0},
                  {COUNTER_RUN, -ours, -ours}};
    if (!config_folder(&self->config->broker))
        return true;
    if (rp_counter_read(observer_client(self->observer), COUNTER_RUN, RUN_POLL_MS, &whose, NULL) != RP_OK)
        return false;
    if (self->options->before && whose == ours)
        return true;
    observer_poll(self->observer, RUN_POLL_MS, &self->seen);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (!self->seen.broker || !bound_counter(self, counts[i].name, counts[i].least, counts[i].most))
            return false;
    self->policy_before = self->seen.policy;
    self->seen.steps = self->seen.taken = self->steps_before;
    self->seen.learner_steps = self->learner_steps_before;
    return true;
}

/* From here on a resume takes the parameters in the broker for those of this run. */
static bool own(struct run *self)
{
    int64_t ours = run_mark(self);
    return !config_folder(&self->config->broker) || bound_counter(self, COUNTER_RUN, ours, ours);
}

/* A broker may end between writing its file and answering: then the connection is tried again until another broker is
 * there. */
static void open_observer(struct run *self, int64_t now_ns)
{
    rp_error err = {0};
    if (run_running(self, ROLE_BROKER) > 0 && endpoints_read(self->endpoints_file, &self->endpoints, &err) == RP_OK) {
        self->context.endpoints = &self->endpoints; /* a restarted broker listens at the same endpoints */
        self->observer =
            observer_new(&self->context, self->endpoints.service, self->config->report.every_ns, RUN_POLL_MS, &err);
        if (self->observer && !forget(self))
            observer_destroy(&self->observer);
    }
    int64_t ready_ns = config_folder(&self->config->broker) ? LOADED_NS : READY_NS;
    if (!self->observer && now_ns - self->start_ns > ready_ns)
        run_stop(self, PHASE_FAILED, false, "the broker was not ready within %d s%s%.300s: see logs/broker.log",
                 (int)(ready_ns / NS_PER_S), err.text[0] ? ": " : "", err.text);
}

/* Each step waits for the one before: broker, learners, their first parameters, actors. */
static void start_more(struct run *self, int64_t now_ns)
{
    const struct run_config *config = self->config;
    if (!self->observer) {
        open_observer(self, now_ns);
    } else if (!self->learners_started && self->seen.broker && put_back(self)) {
        self->learners_started = true;
        for (uint32_t i = 0; i < run_config_learners(config); i++)
            run_member(self, ROLE_LEARNER, i);
    } else if (self->learners_started &&
               (self->seen.policy > self->policy_before || run_is_custom(self, ROLE_LEARNER) ||
                config->learners.count == 0) &&
               own(self)) {
        self->actors_started = true;
        self->actors_wanted = 0;
        set_actors(self, run_config_actors(config), now_ns);
        if (config->evaluator.episodes > 0 && config->learners.count != 0)
            run_member(self, ROLE_EVALUATOR, 0);
        if (self->phase == PHASE_STARTING)
            self->phase = PHASE_FILLING;
    }
}

/* ---- stopping ---- */

static void heed_interrupts(struct run *self)
{
    const struct interrupts *interrupts = self->options->interrupts;
    char who[STOP_ASKER];
    if (interrupts->asked == self->interrupts_seen || self->forced)
        return;
    self->interrupts_seen = interrupts->asked;
    self->patient = false; /* the run is stopping already and takes too long */
    self->hurried |= self->phase >= PHASE_STOPPING;
    run_stop(self, PHASE_STOPPED, false, "%s", stop_asker(self->options->home.folder, interrupts, who, sizeof who));
    if (interrupts->asked < 2)
        return;
    run_say(self, LEVEL_WARN, "A0409", "asked twice: all processes are killed");
    self->forced = self->hurried = true;
    kill_all(self);
}

/* A learner that fails, if none has been able to publish the parameters with which actors begin; NULL: there is none. */
static const struct member *never_up(const struct run *self)
{
    for (uint32_t i = 0; i < self->n_members && self->learners_started && !self->actors_started; i++)
        if (self->members[i]->role == ROLE_LEARNER && self->members[i]->supervised.in_a_row > 0)
            return self->members[i];
    return NULL;
}

static void check_ends(struct run *self, const struct status *status)
{
    const struct stop_section *stop = &self->config->stop;
    uint64_t claimed = self->seen.steps > self->steps_before ? self->seen.steps : self->steps_before;
    if (self->phase >= PHASE_STOPPING)
        return;
    /* Checked first: a run that reaches its goal with the last step has reached it. */
    if (self->n_values > 0 && status->value >= stop->value) {
        self->reached = true;
        run_stop(self, PHASE_DONE, false, "an evaluation gave %.6g, and stop.value is %.6g", status->value,
                 stop->value);
    } else if (stop->steps > 0 && claimed >= (uint64_t)stop->steps) {
        run_stop(self, PHASE_DONE, true, "%llu environment steps were taken", (unsigned long long)stop->steps);
    } else if (stop->learner_steps > 0 && status->learner_steps >= (uint64_t)stop->learner_steps) {
        run_stop(self, PHASE_DONE, false, "%llu learner steps were made", (unsigned long long)stop->learner_steps);
    } else if (run_time_to_end(self) && !self->learners_started && run_had_time(self)) {
        run_stop(self, PHASE_FAILED, false,
                 "stop.time of %.6g s is reached, and the broker was never ready: see logs/broker.log",
                 status->stop_time_s);
    } else if (run_time_to_end(self) && never_up(self)) {
        give_up(self, never_up(self));
    } else if (run_time_to_end(self)) {
        run_stop(self, PHASE_DONE, false, "stop.time of %.6g s is reached", status->stop_time_s);
    }
}

/* True if nothing was inserted, sampled or learned for launch.hang. */
static bool stalls(const struct run *self, int64_t now_ns)
{
    int64_t hang_ns = self->config->launch.hang_ns;
    return hang_ns > 0 && self->moved_ns > 0 && now_ns - self->moved_ns > hang_ns;
}

/* Reports a run that stands still, with the reason if the broker knows one. */
static void watch_progress(struct run *self, const struct observation *before, int64_t now_ns)
{
    const struct observation *seen = &self->seen;
    bool moves = seen->inserts != before->inserts || seen->samples != before->samples || seen->steps != before->steps ||
                 seen->learner_steps != before->learner_steps || !self->actors_started || self->paused;
    if (moves || self->moved_ns == 0) {
        self->moved_ns = now_ns;
        self->stall_said = false;
    }
    if (self->stall_said || self->phase >= PHASE_STOPPING || !stalls(self, now_ns))
        return;
    self->stall_said = true;
    struct why why;
    observer_why(self->observer, NULL, &why);
    run_say(self, LEVEL_WARN, "A0417", "nothing was inserted, sampled or learned for %.0f s. %s",
            (double)self->config->launch.hang_ns * 1e-9, why.text);
}

/* Without a broker no process can finish, and without learners an actor that the limiter holds back cannot. */
static void lose_patience(struct run *self, int64_t now_ns)
{
    if (run_running(self, ROLE_LEARNER) > 0 || self->config->learners.count == 0)
        self->learners_seen_ns = now_ns;
    if (run_running(self, ROLE_BROKER) == 0 || run_time_to_end(self) ||
        now_ns - self->learners_seen_ns > self->config->launch.grace_ns)
        self->patient = false;
    if (self->patient && run_running(self, ROLE_LEARNER) > 0 && stalls(self, now_ns)) {
        run_say(self, LEVEL_WARN, "A0417",
                "a learner neither ends nor learns for %.0f s (launch.hang): it is asked to end",
                (double)self->config->launch.hang_ns * 1e-9);
        self->patient = false;
    }
}

/* Our actors and learners end by themselves when all steps are taken, and the evaluator ends after them. */
static void stop_more(struct run *self, int64_t now_ns)
{
    lose_patience(self, now_ns);
    if (!self->patient || run_is_custom(self, ROLE_ACTOR))
        ask_role(self, ROLE_ACTOR, 0, now_ns);
    if (!self->patient || (run_is_custom(self, ROLE_LEARNER) && run_running(self, ROLE_ACTOR) == 0))
        ask_role(self, ROLE_LEARNER, 0, now_ns);
    /* Our evaluator does not trust a user's learner to mark its last parameters; a user's evaluator knows its learner. */
    bool last_evaluation =
        self->patient && (!run_is_custom(self, ROLE_LEARNER) || run_running(self, ROLE_LEARNER) > 0 ||
                          self->config->evaluator.command.count > 0);
    if (!last_evaluation)
        ask_role(self, ROLE_EVALUATOR, 0, now_ns);
    if (run_running(self, ROLE_ACTOR) + run_running(self, ROLE_LEARNER) + run_running(self, ROLE_EVALUATOR) > 0)
        return;
    if (self->broker_asked_ns == 0) {
        self->broker_asked_ns = now_ns;
        if (self->observer && !self->forced) { /* takes in the last counts and evaluations */
            const struct observation before = self->seen;
            observer_rescan(self->observer);
            observer_poll(self->observer, RUN_POLL_MS, &self->seen);
            run_take_in(self, &before);
        }
        observer_destroy(&self->observer); /* the broker's end is expected */
        ask_role(self, ROLE_BROKER, 0, now_ns);
    } else if (now_ns - self->broker_asked_ns > broker_grace(self) && run_running(self, ROLE_BROKER) > 0) {
        kill_all(self);
    }
}

static void keep_time(struct run *self)
{
    uint32_t running = run_running(self, ROLES);
    if (self->out_of_time || run_time_left(self) > 0.0)
        return;
    self->out_of_time = true;
    if (running == 0)
        return;
    run_say(self, LEVEL_WARN, "A0420", "stop.time (%.6g s) has passed: %u process%s not ended, and %s killed",
            (double)self->config->stop.time_ns * 1e-9, running, running == 1 ? " has" : "es have",
            running == 1 ? "is" : "are");
    kill_all(self);
}

void run_heed_limit(struct run *self, int64_t now_ns)
{
    const struct run_limit *limit = self->options->limit;
    /* Whoever asks to stop after the warning wants the run to end. */
    if (!limit || self->outcome != PHASE_STOPPED || self->options->interrupts->last != SIGUSR1)
        return;
    if (self->limit_ns == 0)
        self->limit_ns = now_ns + limit->after_ns;
    if (now_ns < self->limit_ns)
        return;
    run_say(self, LEVEL_WARN, "A0421", "the run still saves %.0f s after the warning of the time limit",
            (double)limit->after_ns * 1e-9);
    self->limit_ns = limit->act(limit->context) ? INT64_MAX : now_ns + LIMIT_PAUSE_NS;
}

/* ---- a look ---- */

static void resize(struct run *self, const struct status *status, int64_t now_ns)
{
    const struct plan *plan = self->options->plan;
    if (!self->auto_actors || !plan || self->phase >= PHASE_STOPPING)
        return;
    double cpu = status->cpu, cores = status->cores;
    uint32_t least = 1, most = 1;
    run_actor_machines(self, &cpu, &cores);
    /* What the machines of the plan take; under a scheduler, as many as it may give machines for. */
    if (self->config->launch.engine == ENGINE_SLURM && !run_config_slurm_actors(self->config, &least, &most))
        least = most = 1;
    const struct resize_limits limits = {.least = least,
                                         .most = most > plan->most_actors ? most : plan->most_actors,
                                         .after_ns = RESIZE_REPORTS * self->config->report.every_ns,
                                         .margin = RESIZE_MARGIN,
                                         .predicted_actor_idle = status->planned_actor_idle,
                                         .predicted_learner_idle = status->planned_learner_idle,
                                         .cores = cores};
    const struct resize_seen seen = {.actors = self->actors_wanted,
                                     .actor_idle = status->actor_idle,
                                     .learner_idle = status->learner_idle,
                                     .cpu = cpu,
                                     .steady = self->phase == PHASE_RUNNING && !self->paused &&
                                               status->actors == status->actors_wanted &&
                                               status->learners == status->learners_wanted && self->seen.broker};
    char reason[256];
    uint32_t wanted = resize_decide(&self->resize, &limits, &seen, now_ns, reason, sizeof reason);
    if (wanted == self->actors_wanted)
        return;
    run_say(self, LEVEL_INFO, "A0410", "%s", reason);
    set_actors(self, wanted, now_ns);
}

/* ---- what others ask of the run: replay-launch ask, and its page ---- */

struct order {
    const char *word, *value; /* of the order, and what follows it */
    int64_t now_ns;
    char done[256]; /* what was done */
};

/* actors=N or actors=auto */
static rp_status change_actors(struct run *self, struct order *order, rp_error *err)
{
    uint32_t least = 1, most = RUN_MAX_COUNT, before = self->actors_wanted;
    int64_t count = 0;
    if (self->config->launch.engine == ENGINE_SLURM)
        run_config_slurm_actors(self->config, &least, &most);
    bool automatic = strcmp(order->value, "auto") == 0;
    if (before == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "this run has no actors (actors.count: none)");
    if (automatic && !self->options->plan)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "auto needs a plan, and this run has none: its file gives the number of actors");
    if (!automatic && (!schema_parse_int(order->value, &count) || count < least || count > most))
        return err_set(err, RP_INVALID_ARGUMENT, "actors=%.40s is not possible: auto, or a number from %u to %u",
                       order->value, least, most);
    self->auto_actors = automatic;
    self->by_hand = !automatic;
    if (!automatic && (uint32_t)count != before)
        set_actors(self, (uint32_t)count, order->now_ns);
    snprintf(order->done, sizeof order->done, "actors: %u -> %u%s", before, self->actors_wanted,
             automatic ? ", from now on automatic" : "");
    return RP_OK;
}

/* hosts=+NAME or hosts=-NAME */
static rp_status change_hosts(struct run *self, struct order *order, rp_error *err)
{
    snprintf(order->done, sizeof order->done, "hosts: %.100s", order->value);
    return run_hosts_change(self, order->value, order->now_ns, err);
}

/* How long an order may wait for the broker: nobody repeats it, as a look is. */
#define ORDER_MS 3000

/* Makes the limiters as they were asked for. */
static rp_status set_limiters(struct run *self, int64_t timeout_ms, rp_error *err)
{
    const struct schema_list *list = &self->config->broker.tables;
    const struct table_config *tables = list->data;
    rp_client *client = observer_client(self->observer);
    rp_limiter_change change = {
        .struct_size = sizeof change, .set = RP_LIMITER_SAMPLES_PER_INSERT, .samples_per_insert = self->ratio};
    if (self->ratio > 0.0)
        RP_TRY(rp_admin_set_limiter(client, self->config->adder.table, &change, timeout_ms, NULL, err));
    change.set = self->paused ? RP_LIMITER_PAUSE : RP_LIMITER_GO;
    for (uint32_t i = 0; i < list->count; i++)
        RP_TRY(rp_admin_set_limiter(client, tables[i].name, &change, timeout_ms, NULL, err));
    self->limited_at = self->seen.broker_instance;
    return RP_OK;
}

static rp_status change_ratio(struct run *self, struct order *order, rp_error *err)
{
    double ratio = 0.0, before = self->seen.spi, kept = self->ratio;
    if (!schema_parse_real(order->value, &ratio) || !(ratio > 0.0))
        return err_set(err, RP_INVALID_ARGUMENT, "ratio=%.40s is not possible: write a number above 0, such as ratio=8",
                       order->value);
    self->ratio = ratio;
    if (set_limiters(self, ORDER_MS, err) != RP_OK) {
        self->ratio = kept;
        return (rp_status)err->status;
    }
    snprintf(order->done, sizeof order->done, "ratio: %.6g -> %.6g samples per insert", before, ratio);
    return RP_OK;
}

/* pause or go */
static rp_status change_pause(struct run *self, struct order *order, rp_error *err)
{
    bool before = self->paused, paused = strcmp(order->word, "pause") == 0;
    snprintf(order->done, sizeof order->done, "%s",
             paused ? "paused: actors and learners wait, and stop.time goes on; 'replay-launch ask go' lets them go on"
                    : "the run goes on");
    /* replay-ctl may have paused the table, and so may an order to pause that not all shards have got */
    if (paused ? before : !before && !self->seen.paused)
        return err_set(err, RP_FAILED_PRECONDITION, paused ? "the run is paused already" : "the run is not paused");
    self->paused = paused;
    rp_status status = set_limiters(self, ORDER_MS, err);
    if (status != RP_OK)
        self->paused = before;
    return status;
}

/* A user's own program may not look at the counters. */
#define IF_ITS_OWN(custom) ((custom) ? ", if it uses replaybus.run" : "")

static rp_status evaluate_now(struct run *self, struct order *order, rp_error *err)
{
    if (run_wanted(self, ROLE_EVALUATOR) == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "this run has no evaluator (evaluator.episodes)");
    snprintf(order->done, sizeof order->done, "the evaluator measures the newest parameters over %lld episodes%s",
             (long long)self->config->evaluator.episodes, IF_ITS_OWN(self->config->evaluator.command.count > 0));
    return rp_counter_add(observer_client(self->observer), COUNTER_EVALUATE, 1, ORDER_MS, NULL, err);
}

/* The tables, if the broker has a folder for them, and the learner's state: what a resumed run goes on from. */
static rp_status save_now(struct run *self, struct order *order, rp_error *err)
{
    rp_client *client = observer_client(self->observer);
    bool learner = run_wanted(self, ROLE_LEARNER) > 0;
    char state[96] = "";
    rp_status status = learner ? rp_counter_add(client, COUNTER_SAVE, 1, ORDER_MS, NULL, err) : RP_OK;
    if (status != RP_OK)
        return status;
    if (learner)
        snprintf(state, sizeof state, "; the learner saves its state with its next report%s",
                 IF_ITS_OWN(run_is_custom(self, ROLE_LEARNER)));
    status = rp_admin_checkpoint(client, RUN_POLL_MS, NULL, err);
    if (status == RP_OK || status == RP_DEADLINE_EXCEEDED)
        snprintf(order->done, sizeof order->done, "checkpoint: the tables %s%s",
                 status == RP_OK ? "are on disk" : "are being written", state);
    else if (status == RP_FAILED_PRECONDITION && learner)
        snprintf(order->done, sizeof order->done, "checkpoint: the tables have no folder (broker.folder)%s", state);
    else
        return status;
    return RP_OK;
}

static const struct {
    const char *word; /* with "=" at its end: a value follows */
    rp_status (*obey)(struct run *self, struct order *order, rp_error *err);
} orders[] = {{"actors=", change_actors}, {"hosts=", change_hosts},   {"ratio=", change_ratio}, {"pause", change_pause},
              {"go", change_pause},       {"evaluate", evaluate_now}, {"checkpoint", save_now}};

static rp_status obey(struct run *self, const char *request, struct order *order, rp_error *err)
{
    if (!self->actors_started || self->phase >= PHASE_STOPPING)
        return err_set(err, RP_FAILED_PRECONDITION, "the run is %s: nothing can be changed now",
                       self->actors_started ? "stopping" : "starting");
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        size_t size = strlen(orders[i].word);
        bool value = orders[i].word[size - 1] == '=';
        order->word = orders[i].word;
        order->value = request + size;
        if (value ? strncmp(request, orders[i].word, size) == 0 : strcmp(request, orders[i].word) == 0)
            return orders[i].obey(self, order, err);
    }
    return err_set(err, RP_INVALID_ARGUMENT,
                   "'%.60s': write actors=N, actors=auto, hosts=+NAME, hosts=-NAME, ratio=N, pause, go, evaluate or "
                   "checkpoint",
                   request);
}

static void heed_request(struct run *self, int64_t now_ns)
{
    char *request = run_request_next(self->options->home.folder);
    struct order order = {.now_ns = now_ns};
    char answer[sizeof order.done + 8];
    rp_error err = {0};
    if (!request)
        return;
    bool done = obey(self, request, &order, &err) == RP_OK;
    if (done) {
        run_say(self, LEVEL_INFO, "A0410", "%s (as asked)", order.done);
        self->poll_ns = self->save_ns = 0; /* whoever looks sees it at once */
    }
    snprintf(answer, sizeof answer, RUN_REQUEST_OK "%s", order.done);
    run_request_answer(self->options->home.folder, done ? answer : err.text);
    free(request);
}

void run_poll(struct run *self, int64_t now_ns)
{
    struct status status;
    bool line = now_ns >= self->save_ns;
    if (self->observer && self->broker_asked_ns == 0) {
        const struct observation before = self->seen;
        observer_poll(self->observer, RUN_POLL_MS, &self->seen);
        run_take_in(self, &before);
        put_back_later(self, now_ns);
        if (self->phase == PHASE_STOPPING)
            fill_steps(self);
        watch_progress(self, &before, now_ns);
        /* A broker, or a shard, that was started again has the limiters of the file. */
        bool renewed = self->ratio > 0.0 && self->seen.broker_instance != self->limited_at;
        if (self->seen.broker && (renewed || (self->paused && !self->seen.paused)))
            set_limiters(self, RUN_POLL_MS, NULL);
    }
    if (self->phase == PHASE_FILLING &&
        (self->seen.samples > 0 || (self->config->learners.count == 0 && self->seen.inserts > 0))) {
        self->phase = PHASE_RUNNING;
        self->running_ns = now_ns;
    }
    if (line) {
        self->save_ns = now_ns + SAVE_NS;
        measure_usage(self, now_ns);
    }
    run_status(self, &status);
    check_ends(self, &status);
    heed_request(self, now_ns);
    if (self->actors_started)
        resize(self, &status, now_ns);
    if (line)
        run_save(self, &status);
    screen_show(*self->options->screen, &status);
}

/* ---- the loop ---- */

static void loop(struct run *self)
{
    run_member(self, ROLE_BROKER, 0);
    for (;;) {
        interrupts_wait(self->options->interrupts, host_pool_busy(self->hosts.pool) ? RUN_BUSY_MS : RUN_TICK_MS);
        int64_t now_ns = clock_now(&self->clock);
        heed_interrupts(self);
        run_tend(self, now_ns);
        if (self->phase < PHASE_STOPPING && !self->actors_started)
            start_more(self, now_ns);
        if (self->phase >= PHASE_STOPPING) {
            keep_time(self);
            run_heed_limit(self, now_ns);
            stop_more(self, now_ns);
            if (run_running(self, ROLES) == 0)
                return;
        }
        if (now_ns >= self->poll_ns || !self->actors_started || screen_touched(*self->options->screen)) {
            self->poll_ns = now_ns + POLL_NS;
            run_poll(self, now_ns);
        }
        check_done(self); /* after the look: a stop condition that was met is the better reason */
    }
}

/* ---- after the last process has ended: measures the last parameters and writes the report ---- */

/* Waits for the measuring process to end, however long its episodes take; a request to stop shortens the wait. */
static int await_measured(struct run *self, struct process *process)
{
    struct process_usage usage;
    struct hang hang = {0};
    int status = 0;
    while (!process_ended(process, &status)) {
        interrupts_wait(self->options->interrupts, RUN_TICK_MS);
        int64_t now_ns = clock_now(&self->clock);
        bool hangs =
            process_usage(process, &usage) && hang_seen(&hang, self->config->launch.hang_ns, usage.cpu_ns, now_ns);
        if (self->options->interrupts->asked > 0 || hangs || run_time_left(self) <= 0.0)
            process_kill(process);
        run_hosts_tend(self, now_ns); /* their connections stay open */
        run_poll(self, now_ns);
    }
    return status;
}

/* Measures in a process of its own; NAN: that process printed no return. */
static double measure_weights(struct run *self, const char *weights)
{
    char log[FOLDER_SIZE + 32];
    rp_error err = {0};
    struct process process = {0};
    double value = NAN;
    unsigned long long episodes;
    char **argv = command_evaluate(&self->context, &(struct command_evaluation){.weights = weights}, &err);
    run_folder_path(log, sizeof log, self->options->home.folder, "logs/measure.log");
    char **environment = command_environment(&self->context, ROLE_EVALUATOR, 0);
    const struct process_options options = {.name = "measure",
                                            .argv = (const char *const *)argv,
                                            .environment = (const char *const *)environment,
                                            .log = log,
                                            .guard = self->options->home.guard};
    if (argv && process_start(&process, &options, clock_now(&self->clock), &err) == RP_OK &&
        await_measured(self, &process) == 0) {
        char tail[512];
        const char *found = strstr(process_tail(&process, tail, sizeof tail, 4), "mean return of ");
        if (!found || sscanf(found, "mean return of %llu episodes: %lf", &episodes, &value) != 2)
            value = NAN;
    }
    words_free(&argv);
    words_free(&environment);
    return value;
}

/* Measures the last parameters: those of the last evaluation may be older. */
static void measure_last(struct run *self)
{
    char weights[FOLDER_SIZE + 32];
    run_folder_path(weights, sizeof weights, self->options->home.folder, LEARNER_STATE_FILE);
    /* A user's own learner may save nothing. */
    if (self->config->evaluator.episodes == 0 || self->outcome != PHASE_DONE || self->interrupts_seen > 0 ||
        access(weights, R_OK) != 0)
        return;
    self->final.episodes = (uint64_t)self->config->evaluator.episodes;
    self->final_weights = LEARNER_STATE_FILE;
    if (self->n_values > 0 && self->seen.value_learner_steps == self->seen.learner_steps) {
        self->final.value = self->seen.value;
        return;
    }
    self->phase = PHASE_MEASURING;
    if (run_time_left(self) > 0.0)
        self->final.value = measure_weights(self, weights);
    if (isnan(self->final.value))
        run_say(self, LEVEL_WARN, "A0411", "the last parameters %s",
                self->options->interrupts->asked > 0 ? "were not measured: the run was asked to end"
                : run_time_left(self) <= 0.0         ? "were not measured: stop.time has passed"
                                                     : "could not be measured: see logs/measure.log");
}

/* The evaluator has ended: from here on the launcher may change best.weights. */
static void keep_if_best(struct run *self)
{
    char best[FOLDER_SIZE + 32], last[FOLDER_SIZE + 32];
    rp_error err = {0};
    self->final.environment_steps = self->seen.steps;
    self->final.learner_steps = self->seen.learner_steps;
    if (!best_replaces(&self->final, self->best_known ? &self->best_kept : NULL))
        return;
    run_folder_path(best, sizeof best, self->options->home.folder, BEST_WEIGHTS_FILE);
    run_folder_path(last, sizeof last, self->options->home.folder, LEARNER_STATE_FILE);
    if (best_write_from(best, last, &self->final, &err) == RP_OK) {
        self->best_kept = self->final;
        self->best_known = true;
    } else {
        run_say(self, LEVEL_ERROR, "A0419", "the parameters of the best evaluation could not be saved: %s", err.text);
    }
}

/* The result of the run: the return of the parameters that reached its goal, or else of the last ones. */
static void conclude(struct run *self)
{
    char path[FOLDER_SIZE + 32];
    rp_error err = {0};
    run_folder_path(path, sizeof path, self->options->home.folder, BEST_WEIGHTS_FILE);
    self->best_known = self->config->evaluator.episodes > 0 && best_read(path, &self->best_kept, &err) == RP_OK;
    if (self->reached && self->best_known && self->best_kept.value >= self->config->stop.value) {
        self->final = self->best_kept;
        self->final_weights = BEST_WEIGHTS_FILE;
        return;
    }
    if (self->reached)
        run_say(self, LEVEL_WARN, "A0418",
                "the parameters that reached stop.value were not saved (%.300s): see logs/evaluator-0.log", err.text);
    measure_last(self);
    keep_if_best(self);
}

static void finish(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    struct status status;
    rp_error problem = {0};
    conclude(self);
    self->phase = self->outcome;
    run_status(self, &status);
    run_save(self, &status);
    screen_show(*options->screen, &status);
    struct report report = {.last = &status,
                            .plan = options->plan,
                            .plan_input = options->plan_input,
                            .final_value = self->final.value,
                            .final_episodes = (uint32_t)self->final.episodes,
                            .final_weights = self->final_weights,
                            .best = self->best_known ? &self->best_kept : NULL,
                            .legs = options->before ? options->before->legs + 1 : 1,
                            .command = options->command};
    report.n_stretches = run_stretches(self, report.stretches);
    report_predict(&report);
    bool written = report_write(&report, options->home.folder, &problem) == RP_OK;
    if (!written)
        run_say(self, LEVEL_ERROR, "A0412", "the report could not be written: %s", problem.text);
    screen_destroy(options->screen);
    struct text text = {0};
    report_text(&text, &report, written ? options->home.folder : NULL);
    fputs(options->print_report ? text_get(&text) : "", stdout);
    text_fini(&text);
    if (self->outcome == PHASE_FAILED) {
        fflush(stdout);
        fprintf(stderr, "replay-launch: %s\n", self->cause);
        err_set(err, RP_INTERNAL, "%s", self->reason);
    }
}

/* ---- the whole ---- */

/* A new run goes on from nothing: weights and statistics that lie in its folder are not its own. */
static void set_aside(struct run *self)
{
    DIR *folder = opendir(self->options->home.folder);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        const char *name = entry->d_name;
        char path[FOLDER_SIZE + 256], other[FOLDER_SIZE + 264];
        bool old = strcmp(name, LEARNER_STATE_FILE) == 0 || strcmp(name, BEST_WEIGHTS_FILE) == 0 ||
                   fnmatch("actor-0.*.npy", name, 0) == 0;
        run_folder_path(path, sizeof path, self->options->home.folder, name);
        snprintf(other, sizeof other, "%s.before", path);
        if (old && rename(path, other) == 0)
            run_say(self, LEVEL_WARN, "A0443", "%s was there before the run began: it is %s.before now", name, name);
    }
    if (folder)
        closedir(folder);
}

static rp_status open_run(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    char path[FOLDER_SIZE + 32];
    self->value_steps = need_alloc(STATUS_MAX_VALUES * sizeof *self->value_steps);
    self->values = need_alloc(STATUS_MAX_VALUES * sizeof *self->values);
    run_folder_path(path, sizeof path, options->home.folder, FOLDER_METRICS);
    line_file_init(&self->history, need_text(path), "\"elapsed_s\": ");
    if (!line_file_open(&self->history))
        return err_set(err, RP_IO, "'%s' cannot be written: %s", path, strerror(errno));
    line_file_thin(&self->history); /* a full disk does not keep a run from its start */
    run_folder_path(self->endpoints_file, sizeof self->endpoints_file, options->home.folder, "endpoints");
    unlink(self->endpoints_file); /* of an earlier leg */
    stop_note_drop(options->home.folder);
    free(run_request_next(options->home.folder)); /* whoever asked an earlier leg is gone */
    if (!options->before)
        set_aside(self);
    run_hosts_open(self);
    return RP_OK;
}

enum phase run_do(const struct run_options *options, rp_error *err)
{
    struct run self = {
        .options = options,
        .config = options->home.config,
        .context = options->home,
        .clock = clock_system(),
        .best = NAN,
        .home_load = NAN,
        .final = {.value = NAN},
        .actors_wanted = run_config_actors(options->home.config),
        .auto_actors = options->auto_actors,
        .by_hand = options->before && options->before->by_hand,
        .seen = {.actor_idle = NAN, .learner_idle = NAN, .value = NAN, .value_seconds = NAN, .actor_value = NAN}};
    self.start_ns = clock_now(&self.clock);
    if (options->before) {
        self.steps_before = self.steps_shown = options->before->steps;
        self.learner_steps_before = options->before->learner_steps;
    }
    self.context.endpoints_file = self.endpoints_file;
    self.context.learners = run_config_learners(self.config);
    self.context.resume = true; /* a restarted learner continues from its saved state */
    if (open_run(&self, err) == RP_OK) {
        loop(&self);
        observer_destroy(&self.observer);
        finish(&self, err);
    } else {
        self.outcome = PHASE_FAILED;
        fprintf(stderr, "replay-launch: %s\n", err->text);
    }
    for (uint32_t i = 0; i < self.n_members; i++)
        free(self.members[i]);
    free(self.members);
    free(self.shown);
    run_hosts_fini(&self);
    free(self.events);
    free(self.value_steps);
    free(self.values);
    line_file_fini(&self.history);
    return self.outcome;
}
