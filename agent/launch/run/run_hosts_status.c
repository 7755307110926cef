/* How the status shows the hosts of a run, and for which of them processes wait. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/run/run_impl.h"

static bool several(const struct run *self)
{
    return self->hosts.n > 1;
}

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
    enum host_state state = host_state(host);
    int64_t since_ns = site->lost_ns > 0 ? site->lost_ns : self->start_ns;
    double seconds = (double)(clock_now(&self->clock) - since_ns) * 1e-9;
    out->ready = host_pool_ready(self->hosts.pool, index);
    out->times = host_times(host);
    if (state == HOST_LOST || site->lost_ns > 0) /* attempts to reach it again do not end its absence */
        snprintf(out->state, sizeof out->state, "lost for %.0f s: %.150s", seconds, site->reason);
    else
        snprintf(out->state, sizeof out->state, "%s", host_state_names[state]);
    struct host_load load = host_load(host);
    out->machine_cpu = out->ready && load.cpu > 0 ? load.cpu : NAN;
    out->round_trip_ms = out->ready && load.round_trip_ns > 0 ? (double)load.round_trip_ns * 1e-6 : NAN;
    if (out->times > 0)
        snprintf(out->model, sizeof out->model, "%.63s", host_facts(host)->model);
}

static void fill_home(const struct run *self, struct status_host *out)
{
    machine_model(out->model, sizeof out->model);
    out->machine_cpu = self->home_load;
}

void run_fill_hosts(struct run *self, struct status *out)
{
    const struct run_hosts *hosts = &self->hosts;
    if (!several(self))
        return;
    uint32_t n = 0;
    out->cores = 0.0;
    for (uint32_t i = 0; i < hosts->n; i++) {
        if (i != HOST_POOL_HOME && host_state(host_pool_at(hosts->pool, i)) == HOST_ABSENT)
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
                                      .machine_cpu = NAN,
                                      .round_trip_ms = NAN};
        snprintf(shown->name, sizeof shown->name, "%s", host_pool_name(hosts->pool, i));
        snprintf(shown->state, sizeof shown->state, "ready");
        shown->cores = host_pool_cores(hosts->pool, i);
        if (i != HOST_POOL_HOME)
            fill_state(self, i, shown);
        else
            fill_home(self, shown);
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

/* Says for which host a process waits, and why that is away. */
static void name_lost(const struct run *self, const struct member *member, char *out, size_t size)
{
    if (member->host == RUN_NO_HOST) {
        snprintf(out, size, "none has room for %s", member->name);
        return;
    }
    const struct run_site *site = &self->hosts.sites[member->host];
    enum host_state state = host_state(host_pool_at(self->hosts.pool, member->host));
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
