/* The processes of a run: starts, awaits, restarts and retires them. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/run_impl.h"
#include "proto/base/need.h"

#define TAIL_LINES 8
/* Grace for the broker after all other processes have ended. A broker without files has little left to do; a broker
 * with files writes its last checkpoint. A second Ctrl-C does not wait for it. */
#define BROKER_GRACE_NS (2 * NS_PER_S)
#define BROKER_WRITE_NS (300 * NS_PER_S)
/* By this time the last report of a process has been read. */
#define JUDGE_NS (3 * NS_PER_S / 2)
/* Time between two looks at the load of the machine. */
#define LOAD_NS (2 * NS_PER_S)

/* ---- starting ---- */

/* The longest pause before a restart, in units of launch.backoff. */
#define BACKOFFS_MOST 60
/* Failures are counted anew after a process has run for this long: long enough that a crash while it starts does not count as new. */
#define HEALTHY_NS (60 * NS_PER_S)

static struct supervisor_limits limits_of(const struct run *self)
{
    const struct launch_section *launch = &self->config->launch;
    return (struct supervisor_limits){.backoff_ns = launch->backoff_ns,
                                      .backoff_most_ns = BACKOFFS_MOST * launch->backoff_ns,
                                      .failures = (uint32_t)launch->failures,
                                      .healthy_ns = HEALTHY_NS};
}

static rp_status start_process(struct run *self, struct member *member, int64_t now_ns, rp_error *err)
{
    char log[FOLDER_SIZE + 64];
    struct command_context context;
    self->context.actors = self->actors_wanted;
    struct process_place *place = run_go_there(self, member, &context);
    char **argv = command_build(&context, member->role, member->index, err);
    char **environment = argv ? command_environment(&context, member->role, member->index) : NULL;
    rp_status status = argv ? RP_OK : (rp_status)err->status;
    snprintf(log, sizeof log, "%s/logs/%s.log", self->options->folder, member->name);
    const struct process_options options = {.name = member->name,
                                            .argv = (const char *const *)argv,
                                            .environment = (const char *const *)environment,
                                            .log = log,
                                            .guard = self->options->guard,
                                            .place = place};
    if (status == RP_OK)
        status = process_start(&member->process, &options, now_ns, err);
    command_free(&argv);
    command_free(&environment);
    member->hang = (struct hang){0};
    member->usage_ns = member->cpu_ns = 0;
    return status;
}

static void give_up(struct run *self, const struct member *member)
{
    char text[SUPERVISOR_TAIL + 512], quoted[SUPERVISOR_TAIL + 1024];
    supervisor_explain(&member->supervised, member->name, text, sizeof text);
    log_line(LEVEL_ERROR, "A0404", "launch", "text=%s", log_quote(quoted, sizeof quoted, text));
    run_stop(self, RUN_FAILED, false, "%s", text);
}

static void start(struct run *self, struct member *member)
{
    rp_error err = {0};
    int64_t now_ns = clock_now(&self->clock);
    run_place(self, member);
    member->waits = !run_host_ready(self, member);
    if (member->waits)
        return;
    if (start_process(self, member, now_ns, &err) == RP_OK) {
        if (member->at == HOST_POOL_HOME)
            log_line(LEVEL_INFO, "A0402", "started", "process=%s pid=%d", member->name, (int)member->process.pid);
        else
            log_line(LEVEL_INFO, "A0402", "started", "process=%s host=%s", member->name,
                     host_pool_name(self->hosts.pool, member->at));
        return;
    }
    const struct supervisor_limits limits = limits_of(self);
    enum supervisor_action action = supervisor_not_started(&member->supervised, &limits, err.text, now_ns);
    run_say(self, LEVEL_WARN, "A0403", "%s: %s", member->name, err.text);
    if (action == SUPERVISOR_GIVE_UP)
        give_up(self, member);
}

static struct member *find(const struct run *self, enum role role, uint32_t index)
{
    for (uint32_t i = 0; i < self->n_members; i++)
        if (self->members[i]->role == role && self->members[i]->index == index)
            return self->members[i];
    return NULL;
}

static struct member *add(struct run *self, enum role role, uint32_t index)
{
    struct member *member = need_alloc(sizeof *member);
    self->members = need_resize(self->members, self->n_members + 1, sizeof *self->members);
    self->shown = need_resize(self->shown, self->n_members + 1, sizeof *self->shown);
    member->role = role;
    member->index = index;
    member->host = member->at = member->state_at = RUN_NO_HOST;
    if (role == ROLE_BROKER)
        snprintf(member->name, sizeof member->name, "broker");
    else
        snprintf(member->name, sizeof member->name, "%s-%u", role_names[role], index);
    self->members[self->n_members++] = member;
    return member;
}

void run_add(struct run *self, enum role role, uint32_t index)
{
    struct member *member = find(self, role, index);
    if (!member)
        member = add(self, role, index);
    member->wanted = true;
    member->unjudged = false;
    member->supervised = (struct supervised){.restarts = member->supervised.restarts};
    if (!member->process.running)
        start(self, member);
}

/* ---- ends ---- */

int64_t run_broker_grace(const struct run *self)
{
    return config_folder(&self->config->broker) ? BROKER_WRITE_NS : BROKER_GRACE_NS;
}

/* Time between SIGTERM and SIGKILL. */
static int64_t grace_of(const struct run *self, const struct member *member)
{
    int64_t grace_ns = self->config->launch.grace_ns, broker_ns = run_broker_grace(self);
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
    bool again;
    process_tail(&member->process, tail, sizeof tail, TAIL_LINES);
    process_describe(status, how, sizeof how);
    const struct supervisor_end end = {status, expected, tail, now_ns, ran_ns};
    switch (supervisor_ended(&member->supervised, &limits, &end)) {
    case SUPERVISOR_DONE:
        member->wanted = false;
        break;
    case SUPERVISOR_RESTART:
        again = member->supervised.in_a_row > 1 && as_before(member, tail);
        run_say(self, LEVEL_WARN, "A0403", "%s ended after %.1f s with %s; it starts again in %.1f s.%s%s",
                member->name, (double)ran_ns * 1e-9, how, (double)(member->supervised.restart_ns - now_ns) * 1e-9,
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
        self->look_ns = 0; /* a stop condition that the process noticed before the launcher is a good reason */
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

void run_check_done(struct run *self)
{
    for (enum role role = 0; role < ROLES && self->actors_started; role++) {
        if (!run_is_custom(self, role) || run_wanted(self, role) > 0 || run_running(self, role) > 0)
            continue;
        if (role == ROLE_ACTOR && self->seen.inserts == 0)
            run_stop(self, RUN_FAILED, false, "the actors have ended with status 0, but none has inserted anything");
        run_stop(self, RUN_DONE, false, "the %ss have ended", role_names[role]);
    }
}

/* ---- shards of the broker ---- */

/* Their parent starts a shard again that has died; a shard that hangs is the launcher's to see. */
struct run_shard {
    pid_t pid; /* 0: none */
    struct hang hang;
};

/* What is known about a process; a new one begins anew. */
static struct hang known(const struct run *self, pid_t pid)
{
    for (uint32_t i = 0; i < config_shards(&self->config->broker); i++)
        if (self->shards[i].pid == pid)
            return self->shards[i].hang;
    return (struct hang){0};
}

static void tend_shard(struct run *self, const struct process_child *child, struct run_shard *out)
{
    int64_t hang_ns = self->config->launch.hang_ns;
    *out = (struct run_shard){child->pid, known(self, child->pid)};
    if (!hang_seen(&out->hang, hang_ns, child->cpu_ns, clock_now(&self->clock)))
        return;
    run_say(self, LEVEL_WARN, "A0406",
            "a shard of the broker (process %d) hangs: it used no processor time for %.0f s%s; it is killed "
            "(launch.hang), and the broker starts it again",
            (int)child->pid, (double)hang_ns * 1e-9, child->stopped ? " and is stopped" : "");
    kill(child->pid, SIGKILL);
}

/* Tells of shards that have died since the last look. Those of a parent that has died itself are gone with it. */
static void tell_ends(struct run *self, const struct run_shard *now, uint32_t shards)
{
    for (uint32_t i = 0; i < shards; i++) {
        pid_t pid = self->shards[i].pid;
        bool lives = pid == 0;
        for (uint32_t k = 0; k < shards && !lives; k++)
            lives = now[k].pid == pid;
        if (!lives)
            run_say(self, LEVEL_WARN, "A0442",
                    "a shard of the broker (process %d) has ended, and the broker starts it again: see logs/broker.log",
                    (int)pid);
    }
}

/* Kills a shard that hangs: a SIGSTOP, a lost disk. */
static void tend_shards(struct run *self, const struct member *broker)
{
    uint32_t shards = config_shards(&self->config->broker);
    struct process_child children[CONFIG_MAX_SHARDS];
    if (shards == 1 || !broker->process.running || broker->process.asked_ns > 0)
        return;
    struct run_shard *now = need_alloc(shards * sizeof *now);
    if (!self->shards)
        self->shards = need_alloc(shards * sizeof *self->shards);
    uint32_t n = process_children(&broker->process, children, shards);
    for (uint32_t i = 0; i < n; i++)
        tend_shard(self, &children[i], &now[i]);
    if (self->shards_of == broker->process.pid)
        tell_ends(self, now, shards);
    free(self->shards);
    self->shards = now;
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
    int64_t most = self->config->launch.log_most;
    if (!process_cut_log(&member->process, most) || member->flooded)
        return;
    member->flooded = true;
    run_say(
        self, LEVEL_WARN, "A0416",
        "%s has printed more than %.0f MiB: its log is emptied, now and whenever it gets so large (launch.log_most)",
        member->name, (double)most / (1 << 20));
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

void run_measure_usage(struct run *self, int64_t now_ns)
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

static void tend_guard(struct run *self)
{
    if (!guard_lost(self->options->guard))
        return;
    run_say(self, LEVEL_WARN, "A0415", "the guard of the processes was killed; %s",
            self->options->guard->pipe >= 0 ? "there is another one" : "another one could not be started");
    for (uint32_t i = 0; i < self->n_members; i++)
        process_guard(&self->members[i]->process);
    if (self->hosts.pool)
        host_pool_guard(self->hosts.pool);
}

/* Since when a process that was asked to end keeps the run waiting. One that has ended on its host waits for its files. */
static int64_t waited_since(const struct run *self, const struct member *member)
{
    int64_t asked_ns = member->process.asked_ns;
    bool files = member->process.exited && member->at != HOST_POOL_HOME;
    return files ? run_host_moved(self, member->at, asked_ns) : asked_ns;
}

void run_tend(struct run *self, int64_t now_ns)
{
    tend_guard(self);
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

void run_ask(struct run *self, enum role role, uint32_t from, int64_t now_ns)
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

void run_kill_all(struct run *self)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        self->members[i]->wanted = self->members[i]->waits = false;
        if (self->members[i]->process.running)
            process_kill(&self->members[i]->process);
    }
}

void run_set_actors(struct run *self, uint32_t count, int64_t now_ns)
{
    uint32_t before = self->actors_wanted;
    self->actors_wanted = count;
    self->hosts.counted = false;
    if (self->hosts.pool)
        host_pool_want(self->hosts.pool, count);
    run_stretch_begin(self, count);
    run_ask(self, ROLE_ACTOR, count, now_ns);
    for (uint32_t i = before; i < count; i++)
        run_add(self, ROLE_ACTOR, i);
}
