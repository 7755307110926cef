/* What is known of a run, from bottom to top: messages and time, its hosts and which process is on which, its status.
 *
 * stop.time bounds a run up to the end of its last process. So the run stops a little earlier, and processes that are left at stop.time
 * are killed.
 *
 * The plan's rule gives numbers of actors and learners for each host; processes keep their host as long as those numbers allow it, so that
 * a new host moves only as many as it takes over. */
#include "agent/launch/run_state.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/plan/profile.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* The largest share of stop.time that is kept for the end. */
#define RESERVE_SHARE 0.25
/* An evaluation is expected to take as long as the previous one. */
#define EVALUATIONS 1.5
/* Bytes per second at which a broker writes its last checkpoint to a slow disk. */
#define WRITE_RATE 100e6

/* ---- messages ---- */

/* shown: text for the screen; text: for the log and as the event. */
static void tell(struct run *self, enum log_level level, const char *id, const char *shown, const char *text)
{
    char quoted[SUPERVISOR_TAIL + 1024];
    screen_say(*self->options->screen, level >= LEVEL_WARN, "%s", shown);
    log_line(level, id, "launch", "text=%s", log_quote(quoted, sizeof quoted, text));
    self->events = need_resize(self->events, self->n_events + 1, sizeof *self->events);
    struct run_event *event = &self->events[self->n_events++];
    supervisor_one_line(text, event->text, sizeof event->text);
    event->unix_s = clock_unix_s();
}

void run_say(struct run *self, enum log_level level, const char *id, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tell(self, level, id, text, text);
}

/* run_finish prints why a run failed, as the very last lines, so it is not printed here. */
void run_stop(struct run *self, enum phase outcome, bool patient, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 512], line[SUPERVISOR_TAIL + 576];
    if (self->phase >= PHASE_STOPPING)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    supervisor_one_line(text, self->reason, sizeof self->reason);
    self->phase = PHASE_STOPPING;
    self->outcome = outcome;
    self->patient = patient;
    bool failed = outcome == PHASE_FAILED;
    if (failed)
        snprintf(self->cause, sizeof self->cause, "%s", text);
    snprintf(line, sizeof line, "stopping: %s", text);
    tell(self, failed ? LEVEL_ERROR : LEVEL_INFO, "A0408", failed ? "stopping: the run has failed" : line, line);
}

/* ---- processes ---- */

bool run_is_custom(const struct run *self, enum role role)
{
    const struct run_config *config = self->config;
    return (role == ROLE_ACTOR && config->actors.count != 0 && config->actors.command.count > 0) ||
           (role == ROLE_LEARNER && config->learners.count != 0 && config->learners.command.count > 0);
}

/* Counts members of a role (ROLES: of all) on a host (RUN_NO_HOST: on all): those that run there, or those that are
 * wanted and have their place there. */
static uint32_t count_members(const struct run *self, enum role role, uint32_t host, bool run)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        bool there = host == RUN_NO_HOST || host == (run ? member->at : member->host);
        n += there && (role == ROLES || member->role == role) && (run ? member->process.running : member->wanted);
    }
    return n;
}

uint32_t run_running(const struct run *self, enum role role)
{
    return count_members(self, role, RUN_NO_HOST, true);
}

uint32_t run_wanted(const struct run *self, enum role role)
{
    return count_members(self, role, RUN_NO_HOST, false);
}

/* ---- time ---- */

/* Seconds of all legs. */
static double elapsed(const struct run *self)
{
    double before = self->options->before ? self->options->before->elapsed_s : 0.0;
    return before + (double)(clock_now(&self->clock) - self->start_ns) * 1e-9;
}

double run_time_left(const struct run *self)
{
    int64_t limit_ns = self->config->stop.time_ns;
    return limit_ns > 0 ? (double)limit_ns * 1e-9 - elapsed(self) : INFINITY;
}

/* The end: processes end within launch.grace, the last parameters are measured, and a broker with files writes its
 * last checkpoint. */
static double reserve(const struct run *self)
{
    double most = RESERVE_SHARE * (double)self->config->stop.time_ns * 1e-9;
    double needed = (double)self->config->launch.grace_ns * 1e-9;
    if (self->config->evaluator.episodes > 0 && isfinite(self->seen.value_seconds))
        needed += EVALUATIONS * self->seen.value_seconds;
    if (config_folder(&self->config->broker))
        needed += (double)self->seen.broker_bytes / WRITE_RATE;
    return needed < most ? needed : most;
}

bool run_had_time(const struct run *self)
{
    double leg_s = (double)(clock_now(&self->clock) - self->start_ns) * 1e-9;
    return run_time_left(self) + leg_s > reserve(self);
}

bool run_time_to_end(const struct run *self)
{
    return self->config->stop.time_ns > 0 && run_time_left(self) <= reserve(self);
}

/* A learner whose host stays lost for this long moves to another one. */
#define MOVE_NS (30 * NS_PER_S)
/* How long a host may take to say that killed processes have ended. */
#define SILENT_NS (2 * NS_PER_S)

static const struct pool_host *host_at(const struct run *self, uint32_t index)
{
    return host_pool_at(self->hosts.pool, index);
}

static const struct host_info *info_at(const struct run *self, uint32_t index)
{
    return host_at(self, index)->info;
}

/* ---- which host each process is on ---- */

/* Computes how many of each go where. */
static void count_up(struct run *self)
{
    struct run_hosts *hosts = &self->hosts;
    struct plan_input input = self->options->plan_input ? *self->options->plan_input : (struct plan_input){0};
    uint32_t n = hosts->n, actor_hosts = 0, learner_hosts = 0, known;
    uint32_t *numbers = need_alloc(2 * (size_t)n * sizeof *numbers);
    input.hosts = profile_hosts(hosts->pool, &input, &known); /* the run may not have taken in the last ones yet */
    input.n_hosts = n;
    hosts->counted = true;
    for (uint32_t i = 0; i < n; i++) { /* hosts that have not come yet, or are gone, take nothing */
        const struct run_site *site = &hosts->sites[i];
        input.hosts[i].actors = site->in && host_at(self, i)->takes[ROLE_ACTOR];
        input.hosts[i].learners = site->in && !site->evacuated && host_at(self, i)->takes[ROLE_LEARNER];
        actor_hosts += input.hosts[i].actors;
        learner_hosts += input.hosts[i].learners;
    }
    plan_place(&input, self->actors_wanted, run_config_learners(self->config), numbers, numbers + n);
    for (uint32_t i = 0; i < n; i++) {
        /* A scheduler's machine has as many processors as actors were asked for: more actors wait for more machines. */
        uint32_t most = self->config->launch.engine == ENGINE_SLURM
                            ? (uint32_t)fmax(1.0, floor(host_at(self, i)->cores))
                            : UINT32_MAX;
        hosts->sites[i].actors = actor_hosts == 0 ? 0 : numbers[i] < most ? numbers[i] : most;
        hosts->sites[i].learners = learner_hosts == 0 ? 0 : numbers[n + i];
    }
    plan_input_free(&input);
    free(numbers);
}

/* The first host with room; RUN_NO_HOST: none has. Learners are never without a place if a host takes them. */
static uint32_t free_host(const struct run *self, enum role role)
{
    const struct run_hosts *hosts = &self->hosts;
    uint32_t fallback = RUN_NO_HOST, least = UINT32_MAX;
    for (uint32_t i = 0; i < hosts->n; i++) {
        const struct run_site *site = &hosts->sites[i];
        uint32_t there = count_members(self, role, i, false),
                 planned = role == ROLE_ACTOR ? site->actors : site->learners;
        if (there < planned)
            return i;
        if (role == ROLE_LEARNER && planned > 0 && there < least) {
            fallback = i;
            least = there;
        }
    }
    return fallback;
}

/* Everything is here. Not so if other machines are still to come: actors wait for them. */
static bool all_at_home(const struct run *self)
{
    return !run_config_is_spread(self->config);
}

void run_place(struct run *self, struct member *member)
{
    bool fixed = member->role == ROLE_BROKER || member->role == ROLE_EVALUATOR;
    if (fixed || all_at_home(self)) {
        member->host = HOST_POOL_HOME;
        return;
    }
    if (!self->hosts.counted)
        count_up(self);
    if (member->host == RUN_NO_HOST)
        member->host = free_host(self, member->role);
}

/* Takes members from hosts that are gone or have too many actors; a learner's state would have to move along. */
static void unplace(struct run *self, enum role role)
{
    uint32_t *kept = need_alloc(self->hosts.n * sizeof *kept);
    for (uint32_t i = 0; i < self->n_members; i++) {
        struct member *member = self->members[i];
        if (member->role != role || !member->wanted || member->host == RUN_NO_HOST)
            continue;
        const struct run_site *site = &self->hosts.sites[member->host];
        if (site->in && (role == ROLE_LEARNER ? !site->evacuated : kept[member->host] < site->actors))
            kept[member->host]++;
        else
            member->host = RUN_NO_HOST;
    }
    free(kept);
}

void run_place_again(struct run *self, int64_t now_ns)
{
    static const enum role roles[] = {ROLE_LEARNER, ROLE_ACTOR};
    if (all_at_home(self))
        return;
    count_up(self);
    for (uint32_t r = 0; r < 2; r++) {
        unplace(self, roles[r]);
        for (uint32_t i = 0; i < self->n_members; i++) {
            struct member *member = self->members[i];
            if (member->role != roles[r] || !member->wanted)
                continue;
            run_place(self, member);
            if (member->process.running && member->host != RUN_NO_HOST && member->host != member->at)
                process_ask(&member->process, now_ns); /* it starts again there */
            else if (!member->process.running && member->supervised.restart_ns == 0 && !member->unjudged)
                member->waits = true;
        }
    }
}

/* ---- starting there ---- */

bool run_host_ready(const struct run *self, const struct member *member)
{
    return member->host != RUN_NO_HOST && host_at(self, member->host)->ready;
}

static void say_unsent(void *context, const char *host, const char *file, const rp_error *err)
{
    run_say(context, LEVEL_WARN, "A0430", "%s cannot be sent to %s: %s", file, host, err->text);
}

void run_go_there(struct run *self, struct member *member, struct command_context *out)
{
    const struct pool_host *host = host_at(self, member->host);
    member->at = member->host;
    host_pool_context(self->hosts.pool, member->host, &self->context, out);
    if (member->role != ROLE_LEARNER || !host->host)
        return;
    /* What a learner has saved (learner.weights, and what a learner of the user's keeps beside it), unless this
     * connection has seen it already: what is there then is newer. */
    if (member->state_at != member->host || member->state_times != host->info->times)
        host_send_files(host->host, "learner", say_unsent, self);
    member->state_at = member->host;
    member->state_times = host->info->times;
}

/* ---- news ---- */

static const char *processes(uint32_t n, char *out, size_t size)
{
    snprintf(out, size, n == 1 ? "%u process" : "%u processes", n);
    return out;
}

static void host_came(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    const char *name = info_at(self, index)->name;
    char text[32];
    bool again = site->in, moved = site->evacuated;
    site->in = true;
    site->evacuated = false;
    site->lost_s += site->lost_ns > 0 ? (double)(now_ns - site->lost_ns) * 1e-9 : 0.0;
    site->lost_ns = 0;
    if (!again || moved)
        run_place_again(self, now_ns);
    run_say(self, LEVEL_INFO, "A0432", "%s is %s: it gets %s", name, again ? "back" : "taken in",
            processes(count_members(self, ROLES, index, false), text, sizeof text));
}

static void host_went(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    bool absent = info_at(self, index)->state == HOST_ABSENT;
    uint32_t members = count_members(self, ROLES, index, false);
    char text[32];
    site->lost_ns = now_ns;
    site->losses++;
    if (self->phase < PHASE_STOPPING && !absent)
        run_say(self, LEVEL_WARN, "A0431", "%s is lost: %s; its %s %s for it", info_at(self, index)->name,
                info_at(self, index)->reason, processes(members, text, sizeof text), members == 1 ? "waits" : "wait");
}

/* A source has taken the host away, perhaps some time after its connection broke: others may take over its processes. */
static void host_is_gone(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    char text[32];
    if (!site->in || info_at(self, index)->state != HOST_ABSENT)
        return;
    site->in = false;
    if (self->phase >= PHASE_STOPPING)
        return;
    run_say(self, LEVEL_WARN, "A0431", "%s is %s, and %s with it", info_at(self, index)->name,
            host_at(self, index)->dropped ? "dropped, since its key was revoked" : "gone",
            processes(count_members(self, ROLES, index, false), text, sizeof text));
    run_place_again(self, now_ns);
}

/* Says once why a host that should be there is not. */
static void say_left_out(struct run *self, uint32_t index)
{
    struct run_site *site = &self->hosts.sites[index];
    const char *name = info_at(self, index)->name;
    if (site->in || site->said || site->leaving || !host_at(self, index)->wanted ||
        info_at(self, index)->state != HOST_LOST)
        return;
    site->said = true;
    run_say(self, LEVEL_WARN, "A0433", "%s is left out: %s; it is taken in when it comes", name,
            info_at(self, index)->reason);
}

/* ---- hosts that do not answer at the end ---- */

int64_t run_host_moved(const struct run *self, uint32_t index, int64_t since_ns)
{
    int64_t moved_ns = info_at(self, index)->moved_ns;
    int64_t latest_ns = since_ns + RUN_FILES_GRACES * self->config->launch.grace_ns;
    if (self->hurried || moved_ns < since_ns)
        return since_ns;
    return moved_ns < latest_ns ? moved_ns : latest_ns;
}

/* A run that ends does not wait for a lease: a host that says nothing about killed processes is given up, and ends them when it
 * notices. While files or output still come from there, it is waited for a while. */
static void give_up_silent(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    bool killed = false;
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        killed |= member->at == index && member->process.running && member->process.killed;
    }
    if (!killed || self->phase < PHASE_STOPPING) {
        site->killed_ns = 0;
        return;
    }
    if (site->killed_ns == 0)
        site->killed_ns = now_ns;
    if (now_ns - run_host_moved(self, index, site->killed_ns) < SILENT_NS)
        return;
    run_say(self, LEVEL_WARN, "A0437", "%s does not say that its processes have ended: it is given up",
            info_at(self, index)->name);
    host_pool_vanish(self->hosts.pool, info_at(self, index)->name);
    site->killed_ns = 0;
}

/* ---- learners of a lost host ---- */

/* They move if another host takes learners: this one is not ready, and so not meant by host_pool_has. */
static void evacuate(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    if (site->evacuated || site->ready || count_members(self, ROLE_LEARNER, index, false) == 0 || site->lost_ns == 0 ||
        now_ns - site->lost_ns < MOVE_NS || !host_pool_has(self->hosts.pool, ROLE_LEARNER))
        return;
    site->evacuated = true;
    run_say(self, LEVEL_WARN, "A0434", "%s is lost for %.0f s: its learners move to another host",
            info_at(self, index)->name, (double)(now_ns - site->lost_ns) * 1e-9);
    run_place_again(self, now_ns);
}

/* ---- the broker, seen from there ---- */

/* Asks once for each connection whether the host reaches the broker, and says if it does not. */
static void check_reach(struct run *self, uint32_t index)
{
    struct run_site *site = &self->hosts.sites[index];
    const struct host_info *info = info_at(self, index);
    const struct host_probe *probe = &info->probe;
    struct command_context there;
    if (!self->observer || !site->ready)
        return;
    if (site->reach_times != info->times) {
        host_pool_context(self->hosts.pool, index, &self->context, &there);
        site->reach_times = info->times;
        site->reaching = there.endpoints && strncmp(there.endpoints->service, "tcp://", 6) == 0 &&
                         host_probe(host_at(self, index)->host, there.endpoints->service, NULL) == RP_OK;
    }
    if (!site->reaching || !probe->done)
        return;
    site->reaching = false;
    if (!probe->ok)
        run_say(
            self, LEVEL_WARN, "A0435",
            "%s cannot connect to the broker: %.200s; write an address that it reaches in broker.advertise, and let "
            "its ports through firewalls",
            info->name, probe->text);
}

/* ---- processes that wait for hosts ---- */

static bool several(const struct run *self)
{
    return self->hosts.n > 1;
}

/* Counts the actors and learners that wait for hosts; out->lost becomes `lost`, which names one of these hosts, or stays NULL. */
static void find_stranded(const struct run *self, struct why_run *out, char *lost, size_t size)
{
    for (uint32_t i = 0; several(self) && i < self->n_members; i++) {
        const struct member *member = self->members[i];
        bool waits = member->wanted && member->waits && !member->process.running && !run_host_ready(self, member);
        out->stranded_actors += waits && member->role == ROLE_ACTOR;
        out->stranded_learners += waits && member->role == ROLE_LEARNER;
        if (!waits || out->lost)
            continue;
        const struct host_info *info = member->host == RUN_NO_HOST ? NULL : info_at(self, member->host);
        if (info)
            snprintf(lost, size, "%s: %s", info->name, info->reason[0] ? info->reason : host_state_names[info->state]);
        else
            snprintf(lost, size, "none has room for %s", member->name);
        out->lost = lost;
    }
}

/* ---- the whole ---- */

/* A source may have added hosts. */
static void grow(struct run_hosts *self)
{
    uint32_t n = host_pool_count(self->pool);
    if (n == self->n)
        return;
    self->sites = need_resize(self->sites, n, sizeof *self->sites);
    self->shown = need_resize(self->shown, n, sizeof *self->shown);
    memset(self->sites + self->n, 0, (n - self->n) * sizeof *self->sites);
    self->n = n;
    self->counted = false;
}

void run_hosts_open(struct run *self)
{
    struct run_hosts *hosts = &self->hosts;
    hosts->pool = self->options->hosts;
    grow(hosts);
    for (uint32_t i = 0; i < hosts->n; i++)
        hosts->sites[i].in = hosts->sites[i].ready = host_at(self, i)->ready;
}

void run_hosts_fini(struct run *self)
{
    free(self->hosts.sites);
    free(self->hosts.shown);
}

rp_status run_hosts_change(struct run *self, const char *change, int64_t now_ns, rp_error *err)
{
    struct run_hosts *hosts = &self->hosts;
    const char *name = change + 1;
    if ((change[0] != '+' && change[0] != '-') || !name[0])
        return err_set(err, RP_INVALID_ARGUMENT, "hosts=%s: write hosts=+NAME or hosts=-NAME", change);
    if (self->config->launch.engine == ENGINE_SLURM)
        return err_set(err, RP_FAILED_PRECONDITION, "the hosts of this run are those that Slurm gives it");
    if (change[0] == '+')
        return host_pool_add(hosts->pool, name, now_ns, err);
    uint32_t index = host_pool_find(hosts->pool, name);
    if (index == 0 || hosts->sites[index].leaving)
        return err_set(err, RP_NOT_FOUND, "%s is no host of this run", name);
    hosts->sites[index].leaving = true;
    hosts->sites[index].in = false;
    run_place_again(self, now_ns);
    for (uint32_t i = 0; i < self->n_members; i++) /* those that have no other place end, too */
        if (self->members[i]->process.running && self->members[i]->at == index)
            process_ask(&self->members[i]->process, now_ns);
    return RP_OK;
}

void run_hosts_tend(struct run *self, int64_t now_ns)
{
    struct run_hosts *hosts = &self->hosts;
    host_pool_tend(hosts->pool, now_ns);
    grow(hosts);
    for (uint32_t i = 1; i < hosts->n; i++) {
        struct run_site *site = &hosts->sites[i];
        bool ready = host_at(self, i)->ready;
        if (site->ready && !ready) {
            site->ready = false;
            host_went(self, i, now_ns);
        }
        host_is_gone(self, i, now_ns);
        if (site->leaving && count_members(self, ROLES, i, true) == 0) {
            ready = site->ready = site->leaving = false; /* as asked: that is no loss */
            host_pool_vanish(hosts->pool, info_at(self, i)->name);
        }
        if (ready && !site->ready && !site->leaving) {
            site->ready = true;
            host_came(self, i, now_ns);
        }
        say_left_out(self, i);
        give_up_silent(self, i, now_ns);
        if (self->phase < PHASE_STOPPING) {
            evacuate(self, i, now_ns);
            check_reach(self, i);
        }
    }
}

/* ---- what the status shows of them ---- */

void run_hosts_measure(struct run *self, int64_t now_ns)
{
    struct run_hosts *hosts = &self->hosts;
    double seconds = hosts->measured_ns > 0 ? (double)(now_ns - hosts->measured_ns) * 1e-9 : 0.0;
    hosts->measured_ns = now_ns;
    if (!several(self) || self->phase >= PHASE_STOPPING)
        return;
    for (uint32_t i = 0; i < hosts->n; i++)
        hosts->sites[i].ready_s += hosts->sites[i].ready ? seconds : 0.0;
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        if (member->process.running)
            hosts->sites[member->at].cpu_s += seconds * member->cpu;
    }
}

static void fill_members(const struct run *self, uint32_t index, struct status_host *out)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        bool runs = member->process.running && member->at == index;
        bool kept = /* after the end of the run: had its place there */
            self->phase >= PHASE_STOPPING && (member->role != ROLE_ACTOR || member->index < self->actors_wanted);
        bool planned = member->host == index && (member->wanted || kept);
        out->actors += runs && member->role == ROLE_ACTOR;
        out->learners += runs && member->role == ROLE_LEARNER;
        out->actors_wanted += planned && member->role == ROLE_ACTOR;
        out->learners_wanted += planned && member->role == ROLE_LEARNER;
        out->cpu += runs ? member->cpu : 0.0;
        out->memory += runs ? member->memory : 0;
    }
}

static void fill_state(const struct run *self, uint32_t index, struct status_host *out)
{
    const struct host_info *info = info_at(self, index);
    const struct run_site *site = &self->hosts.sites[index];
    double cpu = index == HOST_POOL_HOME ? self->home_load : info->cpu > 0 ? info->cpu : NAN;
    int64_t since_ns = site->lost_ns > 0 ? site->lost_ns : self->start_ns;
    double seconds = (double)(clock_now(&self->clock) - since_ns) * 1e-9;
    const char *reason = info->reason; /* a source that took the host away has taken it along */
    snprintf(out->name, sizeof out->name, "%s", info->name);
    snprintf(out->model, sizeof out->model, "%.63s", info->facts.model);
    out->ready = host_at(self, index)->ready;
    out->times = info->times;
    if (info->state == HOST_LOST || site->lost_ns > 0) /* attempts to reach it again do not end its absence */
        snprintf(out->state, sizeof out->state, "lost for %.0f s%s%.150s", seconds, reason[0] ? ": " : "", reason);
    else
        snprintf(out->state, sizeof out->state, "%s", host_state_names[info->state]);
    out->machine_cpu = out->ready ? cpu : NAN;
    out->round_trip_ms = out->ready && info->round_trip_ns > 0 ? (double)info->round_trip_ns * 1e-6 : NAN;
}

static void fill_hosts(struct run *self, struct status *out)
{
    const struct run_hosts *hosts = &self->hosts;
    if (!several(self))
        return;
    uint32_t n = 0;
    out->cores = 0.0;
    for (uint32_t i = 0; i < hosts->n; i++) {
        if (info_at(self, i)->state == HOST_ABSENT)
            continue; /* a scheduler has given it to somebody else */
        struct status_host *shown = &hosts->shown[n++];
        const struct run_site *site = &hosts->sites[i];
        double away_s = site->lost_ns > 0 ? (double)(clock_now(&self->clock) - site->lost_ns) * 1e-9 : 0.0;
        *shown = (struct status_host){.losses = site->losses,
                                      .lost_s = site->lost_s + away_s,
                                      .mean_cpu = site->ready_s > 0 ? site->cpu_s / site->ready_s
                                                  : site->in        ? 0.0
                                                                    : NAN,
                                      .cores = host_at(self, i)->cores};
        fill_state(self, i, shown);
        fill_members(self, i, shown);
        out->cores += shown->cores;
    }
    out->hosts = hosts->shown;
    out->n_hosts = n;
}

void run_actor_machines(const struct run *self, double *cpu, double *cores)
{
    const struct run_hosts *hosts = &self->hosts;
    if (!several(self))
        return;
    *cpu = *cores = 0.0;
    for (uint32_t i = 0; i < hosts->n; i++) {
        struct status_host there = {0};
        if (!host_at(self, i)->takes[ROLE_ACTOR] || !host_at(self, i)->ready)
            continue;
        fill_members(self, i, &there);
        *cpu += there.cpu;
        *cores += host_at(self, i)->cores;
    }
    if (self->config->launch.engine == ENGINE_SLURM)
        *cores = 0.0;
}

/* Rates cover this many of the last seconds. */
#define WINDOW_NS (5 * NS_PER_S)
/* The first reports still cover the start. */
#define SETTLE_MOST_NS (5 * NS_PER_S)
#define SETTLE_MORE_NS (NS_PER_S / 2)

/* ---- stretches: from one change of the number of actors to the next, with the rates achieved in each ---- */

void run_stretch_begin(struct run *self, uint32_t actors)
{
    if (self->n_stretches > 0 && self->stretches[self->n_stretches - 1].actors == actors)
        return;
    if (self->n_stretches == REPORT_STRETCHES) /* the newest are kept */
        memmove(self->stretches, self->stretches + 1, --self->n_stretches * sizeof *self->stretches);
    self->stretches[self->n_stretches++] =
        (struct stretch){.actors = actors, .from_s = elapsed(self), .from_ns = clock_now(&self->clock)};
}

static void add_sums(struct stretch *sums, const struct observation *before, const struct observation *seen)
{
    double seconds = (double)(seen->at_ns - before->at_ns) * 1e-9;
    sums->seconds += seconds;
    sums->inserts += (double)(seen->inserts - before->inserts);
    sums->samples += (double)(seen->samples - before->samples);
    idle_shares_add(&sums->idle_by, &seen->idle_by, seconds);
    if (isfinite(seen->actor_idle)) {
        sums->actor_idle += seconds * seen->actor_idle;
        sums->actor_s += seconds;
    }
    if (isfinite(seen->learner_idle)) {
        sums->learner_idle += seconds * seen->learner_idle;
        sums->learner_s += seconds;
    }
}

/* Adds what happened between two looks at the same broker, unless the table was reset meanwhile and its counts began
 * again. A stretch begins anew once it is settled. Time in which nothing moves counts only then: starting and ending may take long. */
void run_stretch_add(struct run *self, const struct observation *before)
{
    const struct observation *seen = &self->seen;
    if (self->paused || self->n_stretches == 0 || before->at_ns == 0 ||
        seen->broker_instance != before->broker_instance || seen->inserts < before->inserts ||
        seen->samples < before->samples)
        return;
    struct stretch *stretch = &self->stretches[self->n_stretches - 1];
    bool moves = seen->inserts != before->inserts || seen->samples != before->samples;
    int64_t every = self->config->report.every_ns, from = stretch->from_ns;
    from = from > self->running_ns ? from : self->running_ns;
    bool settled = self->phase == PHASE_RUNNING &&
                   before->at_ns >= from + (every < SETTLE_MOST_NS ? every : SETTLE_MOST_NS) + SETTLE_MORE_NS;
    if (settled && !stretch->settled)
        *stretch = (struct stretch){
            .actors = stretch->actors, .from_s = stretch->from_s, .from_ns = stretch->from_ns, .settled = true};
    if (settled || (moves && !stretch->settled))
        add_sums(stretch, before, seen);
}

/* Makes shares of sums. A run that ends before the first reports is described by the last ones: each process reports when it ends. */
static double idle_of(double sum, double seconds, double shares[IDLE_CAUSES], double newest,
                      const double newest_by[IDLE_CAUSES])
{
    for (int i = 0; i < IDLE_CAUSES; i++)
        shares[i] = seconds > 0.0 ? shares[i] / seconds : newest_by[i];
    return seconds > 0.0 ? sum / seconds : newest;
}

uint32_t run_stretches(const struct run *self, struct report_stretch out[REPORT_STRETCHES])
{
    struct observation unknown = {.actor_idle = NAN, .learner_idle = NAN};
    uint32_t n = 0;
    idle_shares_none(&unknown.idle_by);
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct stretch *sums = &self->stretches[i];
        const struct observation *newest = i + 1 == self->n_stretches ? &self->seen : &unknown;
        struct report_stretch *stretch = &out[n];
        if (sums->seconds <= 0.0)
            continue;
        *stretch = (struct report_stretch){.actors = sums->actors,
                                           .learners = run_config_learners(self->config),
                                           .from_s = sums->from_s,
                                           .seconds = sums->seconds,
                                           .settled = sums->settled,
                                           .idle_by = sums->idle_by};
        stretch->achieved =
            (struct report_rates){.inserts = sums->inserts / sums->seconds,
                                  .samples = sums->samples / sums->seconds,
                                  .spi = sums->inserts > 0.0 ? sums->samples / sums->inserts : NAN,
                                  .actor_idle = idle_of(sums->actor_idle, sums->actor_s, stretch->idle_by.actor,
                                                        newest->actor_idle, newest->idle_by.actor),
                                  .learner_idle = idle_of(sums->learner_idle, sums->learner_s, stretch->idle_by.learner,
                                                          newest->learner_idle, newest->idle_by.learner)};
        n++;
    }
    return n;
}

/* ---- taking in ---- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Counters of before a resume are put back into the broker a little later: that jump is no speed. */
static void add_mark(struct run *self)
{
    const struct observation *seen = &self->seen;
    if (seen->broker_instance != self->marks_of) { /* a new broker: its counters begin again */
        self->n_marks = 0;
        self->marks_of = seen->broker_instance;
    }
    if (self->n_marks == RUN_MARKS)
        memmove(self->marks, self->marks + 1, --self->n_marks * sizeof *self->marks);
    self->marks[self->n_marks++] =
        (struct mark){seen->at_ns,
                      {larger(seen->steps, self->steps_before), larger(seen->learner_steps, self->learner_steps_before),
                       seen->inserts, seen->samples}};
    uint32_t old = 0;
    while (old + 2 < self->n_marks && self->marks[old + 1].at_ns <= seen->at_ns - WINDOW_NS)
        old++;
    memmove(self->marks, self->marks + old, (self->n_marks - old) * sizeof *self->marks);
    self->n_marks -= old;
}

static void take_values(struct run *self)
{
    uint32_t n = 0;
    const struct observe_value *values = observer_values(self->observer, &n);
    uint32_t stride = n / STATUS_MAX_VALUES + 1;
    self->n_values = 0;
    self->best = NAN;
    for (uint32_t i = 0; i < n; i++) {
        self->best = isnan(self->best) || values[i].value > self->best ? values[i].value : self->best;
        if ((n - 1 - i) % stride != 0 || self->n_values == STATUS_MAX_VALUES)
            continue;
        self->value_steps[self->n_values] = (double)values[i].steps;
        self->values[self->n_values++] = values[i].value;
    }
}

void run_take_in(struct run *self, const struct observation *before)
{
    if (self->seen.broker) {
        if (before->broker_instance != 0 && self->seen.broker_instance != before->broker_instance) {
            self->steps_before = larger(self->steps_before, before->steps);
            self->learner_steps_before = larger(self->learner_steps_before, before->learner_steps);
            self->put_back = false;
            self->put_back_ns = 0;
        }
        add_mark(self);
        run_stretch_add(self, before);
    }
    take_values(self);
}

/* ---- the status ---- */

static double rate(const struct run *self, enum mark_count what)
{
    if (self->n_marks < 2)
        return 0.0;
    const struct mark *first = &self->marks[0], *last = &self->marks[self->n_marks - 1];
    uint64_t a = first->counts[what], b = last->counts[what];
    double seconds = (double)(last->at_ns - first->at_ns) * 1e-9;
    return seconds > 0.0 && b > a ? (double)(b - a) / seconds : 0.0;
}

/* Our learner reports its steps now and then, and a counter that grows by jumps has no rate over a few seconds.
 * Samples are counted at once: a batch for each step, of each learner that takes part in the step. */
static double updates_rate(const struct run *self, double samples_rate)
{
    uint32_t learners = run_running(self, ROLE_LEARNER);
    if (self->config->learners.command.count > 0 || learners == 0)
        return rate(self, MARK_LEARNER_STEPS);
    return samples_rate / ((double)profile_batch(self->config) * learners);
}

/* Takes one stop condition into account, which may be the nearest. */
static void approach(struct status *out, double now, double end, double per_second)
{
    if (!(end > 0.0) || !isfinite(end))
        return;
    double share = now / end, eta = per_second > 0.0 ? (end - now) / per_second : NAN;
    share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    if (isnan(out->progress) || share > out->progress)
        out->progress = share;
    if (isfinite(eta) && (isnan(out->eta_s) || eta < out->eta_s))
        out->eta_s = eta > 0.0 ? eta : 0.0;
}

static void fill_progress(const struct run *self, struct status *out)
{
    const struct stop_section *stop = &self->config->stop;
    out->stop_steps = (uint64_t)stop->steps;
    out->stop_learner_steps = (uint64_t)stop->learner_steps;
    out->stop_value = stop->value;
    out->stop_time_s = (double)stop->time_ns * 1e-9;
    out->progress = out->eta_s = NAN;
    approach(out, (double)out->steps, (double)stop->steps, out->steps_rate);
    approach(out, (double)out->learner_steps, (double)stop->learner_steps, out->updates_rate);
    approach(out, out->elapsed_s, out->stop_time_s, 1.0);
}

static const char *state_of(const struct run *self, const struct member *member, char *out, size_t size)
{
    int64_t now_ns = clock_now(&self->clock);
    if (member->process.running)
        snprintf(out, size, "%s", member->process.asked_ns > 0 ? "stopping" : "runs");
    else if (member->wanted && member->waits)
        snprintf(out, size, "waits for %.13s",
                 member->host == RUN_NO_HOST ? "a host" : info_at(self, member->host)->name);
    else if (member->wanted && member->supervised.restart_ns > 0)
        snprintf(out, size, "restarts in %.1f s", fmax(0.0, (double)(member->supervised.restart_ns - now_ns) * 1e-9));
    else
        snprintf(out, size, "ended");
    return out;
}

static void fill_processes(struct run *self, struct status *out)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        struct status_process *shown = &self->shown[i];
        *shown = (struct status_process){.role = member->role,
                                         .pid = (int32_t)member->process.pid,
                                         .restarts = member->supervised.restarts,
                                         .memory = member->memory,
                                         .cpu = member->cpu};
        snprintf(shown->name, sizeof shown->name, "%s", member->name);
        state_of(self, member, shown->state, sizeof shown->state);
        uint32_t host = member->process.running ? member->at : member->host;
        if (self->hosts.n > 1 && host != RUN_NO_HOST)
            snprintf(shown->host, sizeof shown->host, "%s", info_at(self, host)->name);
        out->restarts += member->supervised.restarts;
        out->memory += member->memory;
        out->cpu += member->cpu;
    }
    out->others = self->others;
    out->processes = self->shown;
    out->n_processes = self->n_members;
    out->actors = run_running(self, ROLE_ACTOR);
    out->actors_wanted = self->actors_started ? self->actors_wanted : run_config_actors(self->config);
    out->learners = run_running(self, ROLE_LEARNER);
    out->learners_wanted = run_config_learners(self->config);
}

static void fill_plan(const struct run *self, struct status *out)
{
    const struct plan *plan = self->options->plan;
    const struct plan_input *input = self->options->plan_input;
    out->planned_inserts = plan ? plan->chosen.inserts : NAN;
    out->planned_samples = plan ? plan->chosen.samples : NAN;
    out->planned_actor_idle = plan ? plan_actor_idle(&plan->chosen) : NAN;
    out->planned_learner_idle = plan ? plan_learner_idle(&plan->chosen) : NAN;
    out->shards = config_shards(&self->config->broker);
    snprintf(out->shards_reason, sizeof out->shards_reason, "%s", plan ? plan->broker.reason : "");
    out->memory_limit = input ? (uint64_t)plan_memory(input) : (uint64_t)self->config->plan.memory;
    out->cores = host_at(self, HOST_POOL_HOME)->cores;
}

static void show_event(const struct run_event *event, struct status *out)
{
    snprintf(out->event, sizeof out->event, "%s", event ? event->text : "");
    out->event_unix_s = event ? event->unix_s : 0.0;
}

void run_status(struct run *self, struct status *out)
{
    const struct observation *seen = &self->seen;
    *out = (struct status){.phase = self->phase,
                           .unix_s = clock_unix_s(),
                           .value = seen->value,
                           .best = self->best,
                           .why = {.cause = WHY_CAUSES}};
    snprintf(out->name, sizeof out->name, "%s", self->config->name);
    snprintf(out->folder, sizeof out->folder, "%s", self->options->home.folder);
    snprintf(out->reason, sizeof out->reason, "%s", self->reason);
    out->elapsed_s = elapsed(self);
    /* When the actors have ended, nothing is claimed and not taken. A new broker gets these counters a little later. */
    bool ended = self->phase >= PHASE_STOPPING && run_running(self, ROLE_ACTOR) == 0;
    out->steps = self->steps_shown = larger(ended ? seen->steps : seen->taken, self->steps_shown);
    if (self->config->stop.steps > 0 && out->steps > (uint64_t)self->config->stop.steps)
        out->steps = (uint64_t)self->config->stop.steps; /* actors may claim a few more for a moment */
    out->learner_steps = larger(seen->learner_steps, self->learner_steps_before);
    out->steps_rate = rate(self, MARK_STEPS);
    out->inserts_rate = rate(self, MARK_INSERTS);
    out->samples_rate = rate(self, MARK_SAMPLES);
    out->updates_rate = updates_rate(self, out->samples_rate);
    out->spi = out->inserts_rate > 0.0 ? out->samples_rate / out->inserts_rate : NAN;
    out->spi_target =
        seen->spi > 0.0 ? seen->spi : run_config_ratio(self->config); /* it may change while the run goes on */
    out->actor_idle = seen->actor_idle;
    out->learner_idle = seen->learner_idle;
    out->idle_by = seen->idle_by;
    out->actor_value = seen->actor_value;
    out->size = seen->size;
    out->max_size = seen->max_size;
    out->min_size = seen->min_size;
    bool bounded = seen->max_size && fabs(seen->cursor_low) < 1e300 && fabs(seen->cursor_high) < 1e300;
    out->cursor = seen->max_size ? seen->cursor : NAN;
    out->cursor_low = bounded ? seen->cursor_low : NAN;
    out->cursor_high = bounded ? seen->cursor_high : NAN;
    out->value_steps = self->value_steps;
    out->values = self->values;
    out->n_values = self->n_values;
    fill_progress(self, out);
    fill_processes(self, out);
    fill_plan(self, out);
    fill_hosts(self, out);
    if (self->observer &&
        self->phase < PHASE_DONE) { /* the verdict of agent/view, which all who look at the run show */
        char lost[256];
        struct why_run run = status_facts(out);
        find_stranded(self, &run, lost, sizeof lost);
        observer_why(self->observer, &run, &out->why);
    }
    show_event(self->n_events > 0 ? &self->events[self->n_events - 1] : NULL, out);
}

/* ---- saving ---- */

/* Writes launch.json, for a launcher that resumes the run. */
static void save_state(struct run *self, const struct status *status)
{
    const struct run_options *options = self->options;
    struct folder_state state = {.pid = (int32_t)getpid(),
                                 .legs = options->before ? options->before->legs + 1 : 1,
                                 .elapsed_s = status->elapsed_s,
                                 .steps = status->steps,
                                 .learner_steps = status->learner_steps,
                                 .actors = self->actors_wanted,
                                 .learners = run_config_learners(self->config),
                                 .auto_actors = self->auto_actors,
                                 .by_hand = self->by_hand,
                                 .done = self->phase > PHASE_STOPPING && self->outcome == PHASE_DONE};
    run_folder_this_node(state.node);
    snprintf(state.service, sizeof state.service, "%s", self->endpoints.service);
    snprintf(state.here, sizeof state.here, "%s", options->home.here);
    snprintf(state.cwd, sizeof state.cwd, "%s", options->cwd);
    snprintf(state.command, sizeof state.command, "%s", options->command);
    rp_error err = {0};
    bool saved = run_folder_write_state(options->home.folder, &state, &err) == RP_OK, said = self->unsaved;
    self->unsaved = !saved;
    if (!saved && !said)
        run_say(self, LEVEL_ERROR, "A0413", "%s: the run goes on, but 'resume' will not know about its progress",
                err.text);
}

static void write_line(struct run *self, const struct status *status)
{
    char *text = status_to_json(status, false);
    line_file_add(&self->history, text);
    free(text);
}

/* The state is written first, so that a launcher that resumes the run knows everything that status.json shows. A status has room for one
 * event, the newest; metrics.jsonl has them all. */
void run_save(struct run *self, const struct status *status)
{
    save_state(self, status);
    char *whole = status_to_json(status, true);
    run_folder_write(self->options->home.folder, FOLDER_STATUS, whole, NULL);
    free(whole);
    for (uint32_t i = self->saved_events; i + 1 < self->n_events; i++) {
        struct status earlier = *status;
        show_event(&self->events[i], &earlier);
        write_line(self, &earlier);
    }
    write_line(self, status);
    if (self->n_events > 0) { /* the newest stays, for the next status */
        self->events[0] = self->events[self->n_events - 1];
        self->n_events = self->saved_events = 1;
    }
}
