/* The shards of a run's broker. Their parent starts a shard again that has died; a shard that hangs is the launcher's to see. */
#include <signal.h>
#include <stdlib.h>

#include "agent/launch/run/run_impl.h"

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

void run_tend_shards(struct run *self, const struct member *broker)
{
    uint32_t shards = config_shards(&self->config->broker);
    struct process_child children[CONFIG_MAX_SHARDS];
    if (shards == 1 || !broker->process.running || broker->process.asked_ns > 0)
        return;
    struct run_shard *now = calloc(shards, sizeof *now);
    if (!now)
        return;
    if (!self->shards)
        self->shards = calloc(shards, sizeof *self->shards);
    uint32_t n = self->shards ? process_children(&broker->process, children, shards) : 0;
    for (uint32_t i = 0; i < n; i++)
        tend_shard(self, &children[i], &now[i]);
    if (self->shards && self->shards_of == broker->process.pid)
        tell_ends(self, now, shards);
    free(self->shards);
    self->shards = now;
    self->shards_of = broker->process.pid;
}
