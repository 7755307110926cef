/* The hosts of a run: which are there, which process is on which, and what happens to the processes of a lost one. The plan's rule gives
 * numbers of actors and learners for each host; processes keep their host as long as those numbers allow it, so that a new host moves only
 * as many as it takes over. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/run_impl.h"
#include "proto/base/need.h"

/* A learner whose host stays lost for this long moves to another one. */
#define MOVE_NS (30 * NS_PER_S)
/* How long a host may take to say that killed processes have ended. */
#define SILENT_NS (2 * NS_PER_S)

/* ---- which host each process is on ---- */

/* What one actor did on a host of this name. */
static struct plan_unit actor_on(const struct plan_input *input, const char *name)
{
    for (uint32_t i = 0; input && i < input->n_hosts; i++)
        if (strcmp(input->hosts[i].name, name) == 0 && input->hosts[i].kind < input->n_hosts)
            return input->hosts[input->hosts[i].kind].actor;
    return (struct plan_unit){0};
}

/* Hosts that have not come yet, or are gone, take nothing. */
static void fill_host(const struct run *self, uint32_t index, struct plan_host *out)
{
    const struct run_hosts *hosts = &self->hosts;
    const struct run_site *site = &hosts->sites[index];
    const char *name = host_pool_name(hosts->pool, index);
    *out = (struct plan_host){.kind = index,
                              .cores = host_pool_cores(hosts->pool, index),
                              .memory = host_pool_memory(hosts->pool, index),
                              .actors = site->in && host_pool_takes(hosts->pool, index, ROLE_ACTOR),
                              .learners =
                                  site->in && !site->evacuated && host_pool_takes(hosts->pool, index, ROLE_LEARNER)};
    out->actor = actor_on(self->options->plan_input, name);
}

/* A scheduler's machine has as many processors as actors were asked for: more actors wait for more machines. */
static uint32_t most_at(const struct run *self, uint32_t index)
{
    double cores = host_pool_cores(self->hosts.pool, index);
    return self->config->launch.engine == ENGINE_SLURM ? (uint32_t)fmax(1.0, floor(cores)) : UINT32_MAX;
}

/* Computes how many of each go where. */
static void count_up(struct run *self)
{
    struct run_hosts *hosts = &self->hosts;
    struct plan_input input = self->options->plan_input ? *self->options->plan_input : (struct plan_input){0};
    uint32_t n = hosts->n, actor_hosts = 0, learner_hosts = 0;
    uint32_t *numbers = need_alloc(2 * (size_t)n * sizeof *numbers);
    input.hosts = need_alloc(n * sizeof *input.hosts);
    input.n_hosts = n;
    hosts->counted = true;
    for (uint32_t i = 0; i < n; i++) {
        fill_host(self, i, &input.hosts[i]);
        actor_hosts += input.hosts[i].actors;
        learner_hosts += input.hosts[i].learners;
    }
    plan_place(&input, self->actors_wanted, run_config_learners(self->config), numbers, numbers + n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t most = most_at(self, i);
        hosts->sites[i].actors = actor_hosts == 0 ? 0 : numbers[i] < most ? numbers[i] : most;
        hosts->sites[i].learners = learner_hosts == 0 ? 0 : numbers[n + i];
    }
    plan_input_free(&input);
    free(numbers);
}

/* Wanted members of a role that have a host. */
static uint32_t placed_at(const struct run *self, enum role role, uint32_t host)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        n += member->role == role && member->wanted && member->host == host;
    }
    return n;
}

/* The first host with room; RUN_NO_HOST: none has. Learners are never without a place if a host takes them. */
static uint32_t free_host(const struct run *self, enum role role)
{
    const struct run_hosts *hosts = &self->hosts;
    uint32_t fallback = RUN_NO_HOST, least = UINT32_MAX;
    for (uint32_t i = 0; i < hosts->n; i++) {
        const struct run_site *site = &hosts->sites[i];
        uint32_t there = placed_at(self, role, i), planned = role == ROLE_ACTOR ? site->actors : site->learners;
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
    return !self->hosts.pool || !run_config_is_spread(self->config);
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

/* True if a member stays where it is. kept: members of its role that stay there so far. */
static bool stays(const struct run *self, const struct member *member, uint32_t kept)
{
    if (member->host == RUN_NO_HOST)
        return false;
    const struct run_site *site = &self->hosts.sites[member->host];
    if (member->role == ROLE_LEARNER) /* its state would have to move along */
        return site->in && !site->evacuated;
    return site->in && kept < site->actors;
}

static void unplace(struct run *self, enum role role)
{
    uint32_t *kept = need_alloc(self->hosts.n * sizeof *kept);
    for (uint32_t i = 0; i < self->n_members; i++) {
        struct member *member = self->members[i];
        if (member->role != role || !member->wanted)
            continue;
        if (stays(self, member, member->host == RUN_NO_HOST ? 0 : kept[member->host]))
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
    return member->host != RUN_NO_HOST &&
           (member->host == HOST_POOL_HOME || host_pool_ready(self->hosts.pool, member->host));
}

/* Sends what a learner has saved, unless this connection has seen it already: what is there then is newer. */
static void send_state(struct run *self, struct member *member)
{
    struct host *host = host_pool_at(self->hosts.pool, member->host);
    const char *folder = self->options->folder;
    if (member->state_at == member->host && member->state_times == host_info(host)->times)
        return;
    member->state_at = member->host;
    member->state_times = host_info(host)->times;
    static const char first[] = "learner."; /* learner.weights, and what a learner of the user's keeps beside it */
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        char path[FOLDER_SIZE + 300];
        if (strncmp(entry->d_name, first, sizeof first - 1) != 0 || strstr(entry->d_name, ".tmp"))
            continue;
        rp_error err = {0};
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (host_send_file(host, path, entry->d_name, &err) != RP_OK && err.status != RP_NOT_FOUND)
            run_say(self, LEVEL_WARN, "A0430", "%s cannot be sent to %s: %s", entry->d_name, host_info(host)->name,
                    err.text);
    }
    if (list)
        closedir(list);
}

struct process_place *run_go_there(struct run *self, struct member *member, struct command_context *out)
{
    member->at = member->host;
    *out = self->context;
    if (member->host == HOST_POOL_HOME)
        return NULL;
    host_pool_context(self->hosts.pool, member->host, &self->context, out);
    if (member->role == ROLE_LEARNER)
        send_state(self, member);
    return host_place(host_pool_at(self->hosts.pool, member->host));
}

/* ---- news ---- */

/* Keeps the newest reason of a loss: while the host is tried again, it has none. */
static void keep_reason(struct run *self, uint32_t index)
{
    const char *reason = host_info(host_pool_at(self->hosts.pool, index))->reason;
    struct run_site *site = &self->hosts.sites[index];
    size_t size = strlen(reason);
    size -= size > 0 && reason[size - 1] == '.'; /* ssh ends some of its sentences with a full stop; ours go on */
    if (size > 0)
        snprintf(site->reason, sizeof site->reason, "%.*s", (int)size, reason);
}

static const char *processes(uint32_t n, char *out, size_t size)
{
    snprintf(out, size, n == 1 ? "%u process" : "%u processes", n);
    return out;
}

/* Members that are on a host or are planned there. */
static uint32_t members_at(const struct run *self, uint32_t index)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++)
        n += self->members[i]->wanted && self->members[i]->host == index;
    return n;
}

static void host_came(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    const char *name = host_pool_name(self->hosts.pool, index);
    char text[32];
    bool again = site->in, moved = site->evacuated;
    site->in = true;
    site->evacuated = false;
    site->lost_s += site->lost_ns > 0 ? (double)(now_ns - site->lost_ns) * 1e-9 : 0.0;
    site->lost_ns = 0;
    if (!again || moved)
        run_place_again(self, now_ns);
    run_say(self, LEVEL_INFO, "A0432", "%s is %s: it gets %s", name, again ? "back" : "taken in",
            processes(members_at(self, index), text, sizeof text));
}

static void host_went(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    bool absent = host_info(host_pool_at(self->hosts.pool, index))->state == HOST_ABSENT;
    uint32_t members = members_at(self, index);
    char text[32];
    site->lost_ns = now_ns;
    site->losses++;
    if (self->phase < PHASE_STOPPING && !absent)
        run_say(self, LEVEL_WARN, "A0431", "%s is lost: %s; its %s %s for it", host_pool_name(self->hosts.pool, index),
                site->reason, processes(members, text, sizeof text), members == 1 ? "waits" : "wait");
}

/* A source has taken the host away, perhaps some time after its connection broke: others may take over its processes. */
static void host_is_gone(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    char text[32];
    if (!site->in || host_info(host_pool_at(self->hosts.pool, index))->state != HOST_ABSENT)
        return;
    site->in = false;
    if (self->phase >= PHASE_STOPPING)
        return;
    run_say(self, LEVEL_WARN, "A0431", "%s is %s, and %s with it", host_pool_name(self->hosts.pool, index),
            host_pool_dropped(self->hosts.pool, index) ? "dropped, since its key was revoked" : "gone",
            processes(members_at(self, index), text, sizeof text));
    run_place_again(self, now_ns);
}

/* Says once why a host that should be there is not. */
static void say_left_out(struct run *self, uint32_t index)
{
    struct run_site *site = &self->hosts.sites[index];
    if (site->in || site->said || host_info(host_pool_at(self->hosts.pool, index))->state != HOST_LOST)
        return;
    site->said = true;
    run_say(self, LEVEL_WARN, "A0433", "%s is left out: %s; it is taken in when it comes",
            host_pool_name(self->hosts.pool, index), site->reason);
}

/* ---- hosts that do not answer at the end ---- */

int64_t run_host_moved(const struct run *self, uint32_t index, int64_t since_ns)
{
    int64_t moved_ns = host_info(host_pool_at(self->hosts.pool, index))->moved_ns;
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
            host_pool_name(self->hosts.pool, index));
    host_pool_vanish(self->hosts.pool, host_pool_name(self->hosts.pool, index));
    site->killed_ns = 0;
}

/* ---- learners of a lost host ---- */

/* True if another host that is ready takes learners. */
static bool other_learner_host(const struct run *self, uint32_t lost)
{
    for (uint32_t i = 0; i < self->hosts.n; i++)
        if (i != lost && host_pool_takes(self->hosts.pool, i, ROLE_LEARNER) && host_pool_ready(self->hosts.pool, i))
            return true;
    return false;
}

static void evacuate(struct run *self, uint32_t index, int64_t now_ns)
{
    struct run_site *site = &self->hosts.sites[index];
    uint32_t learners = 0;
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        learners += member->role == ROLE_LEARNER && member->wanted && member->host == index;
    }
    if (site->evacuated || site->ready || learners == 0 || site->lost_ns == 0 || now_ns - site->lost_ns < MOVE_NS ||
        !other_learner_host(self, index))
        return;
    site->evacuated = true;
    run_say(self, LEVEL_WARN, "A0434", "%s is lost for %.0f s: its learners move to another host",
            host_pool_name(self->hosts.pool, index), (double)(now_ns - site->lost_ns) * 1e-9);
    run_place_again(self, now_ns);
}

/* ---- the broker, seen from there ---- */

/* Asks once for each connection. */
static void ask_reach(struct run *self, struct run_site *site, uint32_t index, struct host *host)
{
    struct command_context there;
    host_pool_context(self->hosts.pool, index, &self->context, &there);
    site->reach_times = host_info(host)->times;
    site->reaching = there.endpoints && strncmp(there.endpoints->service, "tcp://", 6) == 0 &&
                     host_probe(host, there.endpoints->service, NULL) == RP_OK;
}

static void check_reach(struct run *self, uint32_t index)
{
    struct run_site *site = &self->hosts.sites[index];
    struct host *host = host_pool_at(self->hosts.pool, index);
    const struct host_probe *probe = &host_info(host)->probe;
    if (!self->observer || !site->ready)
        return;
    if (site->reach_times != host_info(host)->times)
        ask_reach(self, site, index, host);
    if (!site->reaching || !probe->done)
        return;
    site->reaching = false;
    if (!probe->ok)
        run_say(
            self, LEVEL_WARN, "A0435",
            "%s cannot connect to the broker: %.200s; write an address that it reaches in broker.advertise, and let "
            "its ports through firewalls",
            host_info(host)->name, probe->text);
}

/* ---- processes that wait for hosts ---- */

static bool several(const struct run *self)
{
    return self->hosts.n > 1;
}

/* Says for which host a process waits, and why that is away. */
static void name_lost(const struct run *self, const struct member *member, char *out, size_t size)
{
    if (member->host == RUN_NO_HOST) {
        snprintf(out, size, "none has room for %s", member->name);
        return;
    }
    const struct run_site *site = &self->hosts.sites[member->host];
    enum host_state state = host_info(host_pool_at(self->hosts.pool, member->host))->state;
    snprintf(out, size, "%s: %s", host_pool_name(self->hosts.pool, member->host),
             site->reason[0] && (site->lost_ns > 0 || state == HOST_LOST) ? site->reason : host_state_names[state]);
}

void run_stranded(const struct run *self, struct why_run *out, char *lost, size_t size)
{
    for (uint32_t i = 0; several(self) && i < self->n_members; i++) {
        const struct member *member = self->members[i];
        bool waits = member->wanted && member->waits && !member->process.running && !run_host_ready(self, member);
        out->stranded_actors += waits && member->role == ROLE_ACTOR;
        out->stranded_learners += waits && member->role == ROLE_LEARNER;
        if (!waits || out->lost)
            continue;
        name_lost(self, member, lost, size);
        out->lost = lost;
    }
}

static void tend_stranded(struct run *self)
{
    char text[8];
    struct why_run run = {0};
    run_stranded(self, &run, text, sizeof text);
    uint32_t waiting = run.stranded_actors + run.stranded_learners;
    bool stranded = waiting > 0 && waiting == run_wanted(self, ROLE_ACTOR) + run_wanted(self, ROLE_LEARNER);
    if (stranded && !self->hosts.stranded && self->phase < PHASE_STOPPING)
        run_say(self, LEVEL_WARN, "A0436", "no actor and no learner runs: all of them wait for their hosts");
    self->hosts.stranded = stranded;
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
    if (!hosts->pool)
        return;
    grow(hosts);
    for (uint32_t i = 0; i < hosts->n; i++) {
        hosts->sites[i].in = hosts->sites[i].ready = host_pool_ready(hosts->pool, i);
        hosts->sites[i].times = i == HOST_POOL_HOME ? 0 : host_info(host_pool_at(hosts->pool, i))->times;
    }
}

void run_hosts_fini(struct run *self)
{
    free(self->hosts.sites);
    free(self->hosts.shown);
}

void run_hosts_tend(struct run *self, int64_t now_ns)
{
    struct run_hosts *hosts = &self->hosts;
    if (!hosts->pool)
        return;
    host_pool_tend(hosts->pool, now_ns);
    grow(hosts);
    for (uint32_t i = 1; i < hosts->n; i++) {
        struct run_site *site = &hosts->sites[i];
        bool ready = host_pool_ready(hosts->pool, i);
        keep_reason(self, i);
        bool replaced = ready && site->ready && site->times != host_info(host_pool_at(hosts->pool, i))->times;
        if (site->ready && (!ready || replaced)) {
            site->ready = false;
            host_went(self, i, now_ns);
        }
        host_is_gone(self, i, now_ns);
        if (ready && !site->ready) {
            site->ready = true;
            host_came(self, i, now_ns);
        }
        site->times = host_info(host_pool_at(hosts->pool, i))->times;
        say_left_out(self, i);
        give_up_silent(self, i, now_ns);
        if (self->phase < PHASE_STOPPING) {
            evacuate(self, i, now_ns);
            check_reach(self, i);
        }
    }
    tend_stranded(self);
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

/* True if the process has its place on the host; after the end of the run: had it. */
static bool is_planned(const struct run *self, const struct member *member, uint32_t index)
{
    bool kept = self->phase >= PHASE_STOPPING && (member->role != ROLE_ACTOR || member->index < self->actors_wanted);
    return member->host == index && (member->wanted || kept);
}

static void fill_members(const struct run *self, uint32_t index, struct status_host *out)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        bool runs = member->process.running && member->at == index;
        bool planned = is_planned(self, member, index);
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
    const struct host *host = host_pool_at(self->hosts.pool, index);
    const struct run_site *site = &self->hosts.sites[index];
    enum host_state state = host_info(host)->state;
    int64_t since_ns = site->lost_ns > 0 ? site->lost_ns : self->start_ns;
    double seconds = (double)(clock_now(&self->clock) - since_ns) * 1e-9;
    out->ready = host_pool_ready(self->hosts.pool, index);
    out->times = host_info(host)->times;
    if (state == HOST_LOST || site->lost_ns > 0) /* attempts to reach it again do not end its absence */
        snprintf(out->state, sizeof out->state, "lost for %.0f s: %.150s", seconds, site->reason);
    else
        snprintf(out->state, sizeof out->state, "%s", host_state_names[state]);
    const struct host_info *info = host_info(host);
    out->machine_cpu = out->ready && info->cpu > 0 ? info->cpu : NAN;
    out->round_trip_ms = out->ready && info->round_trip_ns > 0 ? (double)info->round_trip_ns * 1e-6 : NAN;
    if (out->times > 0)
        snprintf(out->model, sizeof out->model, "%.63s", host_info(host)->facts.model);
}

void run_fill_hosts(struct run *self, struct status *out)
{
    const struct run_hosts *hosts = &self->hosts;
    if (!several(self))
        return;
    uint32_t n = 0;
    out->cores = 0.0;
    for (uint32_t i = 0; i < hosts->n; i++) {
        if (i != HOST_POOL_HOME && host_info(host_pool_at(hosts->pool, i))->state == HOST_ABSENT)
            continue; /* a scheduler has given it to somebody else */
        struct status_host *shown = &hosts->shown[n++];
        const struct run_site *site = &hosts->sites[i];
        double away_s = site->lost_ns > 0 ? (double)(clock_now(&self->clock) - site->lost_ns) * 1e-9 : 0.0;
        *shown = (struct status_host){.ready = true,
                                      .losses = site->losses,
                                      .lost_s = site->lost_s + away_s,
                                      .mean_cpu = site->ready_s > 0 ? site->cpu_s / site->ready_s
                                                  : site->in        ? 0.0
                                                                    : NAN,
                                      .machine_cpu = self->home_load,
                                      .round_trip_ms = NAN};
        snprintf(shown->name, sizeof shown->name, "%s", host_pool_name(hosts->pool, i));
        snprintf(shown->state, sizeof shown->state, "ready");
        shown->cores = host_pool_cores(hosts->pool, i);
        if (i != HOST_POOL_HOME)
            fill_state(self, i, shown);
        else
            machine_model(shown->model, sizeof shown->model);
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
        if (!host_pool_takes(hosts->pool, i, ROLE_ACTOR) || !host_pool_ready(hosts->pool, i))
            continue;
        fill_members(self, i, &there);
        *cpu += there.cpu;
        *cores += host_pool_cores(hosts->pool, i);
    }
    if (self->config->launch.engine == ENGINE_SLURM)
        *cores = 0.0;
}
