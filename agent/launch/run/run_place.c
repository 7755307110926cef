/* Which host each process of a run is on. The plan's rule gives numbers of actors and learners for each host; processes keep their
 * host as long as those numbers allow it, so that a new host moves only as many as it takes over. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/run/run_impl.h"

static uint32_t count_of(const struct run_hosts *hosts)
{
    return hosts->n;
}

/* ---- numbers ---- */

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
    uint32_t n = count_of(hosts), actor_hosts = 0, learner_hosts = 0;
    uint32_t *numbers = calloc(2 * (size_t)n, sizeof *numbers);
    input.hosts = calloc(n, sizeof *input.hosts);
    input.n_hosts = n;
    hosts->counted = input.hosts && numbers;
    for (uint32_t i = 0; hosts->counted && i < n; i++) {
        fill_host(self, i, &input.hosts[i]);
        actor_hosts += input.hosts[i].actors;
        learner_hosts += input.hosts[i].learners;
    }
    if (hosts->counted)
        plan_place(&input, self->actors_wanted, run_config_learners(self->config), numbers, numbers + n);
    for (uint32_t i = 0; hosts->counted && i < n; i++) {
        uint32_t most = most_at(self, i);
        hosts->sites[i].actors = actor_hosts == 0 ? 0 : numbers[i] < most ? numbers[i] : most;
        hosts->sites[i].learners = learner_hosts == 0 ? 0 : numbers[n + i];
    }
    plan_input_free(&input);
    free(numbers);
}

/* ---- places ---- */

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
    for (uint32_t i = 0; i < count_of(hosts); i++) {
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
    uint32_t *kept = calloc(count_of(&self->hosts), sizeof *kept);
    for (uint32_t i = 0; kept && i < self->n_members; i++) {
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
