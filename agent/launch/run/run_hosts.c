/* The hosts of a run: which are there, and what happens to the processes of a lost one. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/run/run_impl.h"

/* A learner whose host stays lost for this long moves to another one. */
#define MOVE_NS (30 * NS_PER_S)
/* How long a host may take to say that killed processes have ended. */
#define SILENT_NS (2 * NS_PER_S)

static bool several(const struct run *self)
{
    return self->hosts.n > 1;
}

bool run_host_ready(const struct run *self, const struct member *member)
{
    return member->host != RUN_NO_HOST &&
           (member->host == HOST_POOL_HOME || host_pool_ready(self->hosts.pool, member->host));
}

/* ---- starting there ---- */

/* Sends what a learner has saved, unless this connection has seen it already: what is there then is newer. */
static void send_state(struct run *self, struct member *member)
{
    struct host *host = host_pool_at(self->hosts.pool, member->host);
    const char *folder = self->options->folder;
    if (member->state_at == member->host && member->state_times == host_times(host))
        return;
    member->state_at = member->host;
    member->state_times = host_times(host);
    static const char first[] = "learner."; /* learner.weights, and what a learner of the user's keeps beside it */
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        char path[FOLDER_SIZE + 300];
        if (strncmp(entry->d_name, first, sizeof first - 1) != 0 || strstr(entry->d_name, ".tmp"))
            continue;
        rp_error err = {0};
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (host_send_file(host, path, entry->d_name, &err) != RP_OK && err.status != RP_NOT_FOUND)
            run_say(self, LEVEL_WARN, "A0430", "%s cannot be sent to %s: %s", entry->d_name, host_name(host), err.text);
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
    const char *reason = host_reason(host_pool_at(self->hosts.pool, index));
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
    bool absent = host_state(host_pool_at(self->hosts.pool, index)) == HOST_ABSENT;
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
    if (!site->in || host_state(host_pool_at(self->hosts.pool, index)) != HOST_ABSENT)
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
    if (site->in || site->said || host_state(host_pool_at(self->hosts.pool, index)) != HOST_LOST)
        return;
    site->said = true;
    run_say(self, LEVEL_WARN, "A0433", "%s is left out: %s; it is taken in when it comes",
            host_pool_name(self->hosts.pool, index), site->reason);
}

/* ---- hosts that do not answer at the end ---- */

int64_t run_host_moved(const struct run *self, uint32_t index, int64_t since_ns)
{
    int64_t moved_ns = host_moved(host_pool_at(self->hosts.pool, index));
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
    site->reach_times = host_times(host);
    site->reaching = there.endpoints && strncmp(there.endpoints->service, "tcp://", 6) == 0 &&
                     host_reach_begin(host, there.endpoints->service, NULL) == RP_OK;
}

static void check_reach(struct run *self, uint32_t index)
{
    struct run_site *site = &self->hosts.sites[index];
    struct host *host = host_pool_at(self->hosts.pool, index);
    bool done = false;
    const char *why = "";
    if (!self->observer || !site->ready)
        return;
    if (site->reach_times != host_times(host))
        ask_reach(self, site, index, host);
    bool reached = site->reaching && host_reach_result(host, &done, &why);
    if (!site->reaching || !done)
        return;
    site->reaching = false;
    if (!reached)
        run_say(
            self, LEVEL_WARN, "A0435",
            "%s cannot connect to the broker: %.200s; write an address that it reaches in broker.advertise, and let "
            "its ports through firewalls",
            host_name(host), why);
}

/* ---- the whole ---- */

/* A source may have added hosts. */
static bool grow(struct run_hosts *self)
{
    uint32_t n = host_pool_count(self->pool);
    if (n == self->n)
        return true;
    struct run_site *sites = realloc(self->sites, n * sizeof *sites);
    struct status_host *shown = sites ? realloc(self->shown, n * sizeof *shown) : NULL;
    if (sites)
        self->sites = sites;
    if (!shown)
        return false;
    self->shown = shown;
    memset(self->sites + self->n, 0, (n - self->n) * sizeof *sites);
    self->n = n;
    self->counted = false;
    return true;
}

bool run_hosts_open(struct run *self)
{
    struct run_hosts *hosts = &self->hosts;
    hosts->pool = self->options->hosts;
    if (!hosts->pool)
        return true;
    if (!grow(hosts))
        return false;
    for (uint32_t i = 0; i < hosts->n; i++) {
        hosts->sites[i].in = hosts->sites[i].ready = host_pool_ready(hosts->pool, i);
        hosts->sites[i].times = i == HOST_POOL_HOME ? 0 : host_times(host_pool_at(hosts->pool, i));
    }
    return true;
}

void run_hosts_fini(struct run *self)
{
    free(self->hosts.sites);
    free(self->hosts.shown);
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

void run_hosts_tend(struct run *self, int64_t now_ns)
{
    struct run_hosts *hosts = &self->hosts;
    if (!hosts->pool)
        return;
    host_pool_tend(hosts->pool, now_ns);
    if (!grow(hosts) || !several(self))
        return;
    for (uint32_t i = 1; i < hosts->n; i++) {
        struct run_site *site = &hosts->sites[i];
        bool ready = host_pool_ready(hosts->pool, i);
        keep_reason(self, i);
        bool replaced = ready && site->ready && site->times != host_times(host_pool_at(hosts->pool, i));
        if (site->ready && (!ready || replaced)) {
            site->ready = false;
            host_went(self, i, now_ns);
        }
        host_is_gone(self, i, now_ns);
        if (ready && !site->ready) {
            site->ready = true;
            host_came(self, i, now_ns);
        }
        site->times = host_times(host_pool_at(hosts->pool, i));
        say_left_out(self, i);
        give_up_silent(self, i, now_ns);
        if (self->phase < PHASE_STOPPING) {
            evacuate(self, i, now_ns);
            check_reach(self, i);
        }
    }
    tend_stranded(self);
}
