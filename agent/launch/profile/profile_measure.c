/* Rates, processor time, memory and idle shares of a session over a stretch of time. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/process/machine_load.h"
#include "agent/launch/profile/profile_rate.h"
#include "agent/launch/profile/profile_session.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* If the slices of a rate differ by no more than this, half of the time is enough. */
#define EVEN_SPREAD 0.04
/* A counter that changes less often is read for longer, up to this many times the time. */
#define LEAST_CHANGES 5u
#define LONGEST 4
#define MOST_TRIES 3

static int64_t now_ns(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

struct usage {
    int64_t at_ns;
    int64_t cpu_ns[ROLES];
    double memory[ROLES];
    struct machine_load machine;
};

static void add_usage(struct usage *self, const struct process *process, int role)
{
    struct process_usage one;
    if (!process->running || !process_usage(process, &one))
        return;
    self->cpu_ns[role] += one.cpu_ns;
    self->memory[role] = fmax(self->memory[role], (double)one.memory);
}

static struct usage read_usage(const struct profile_session *self)
{
    struct usage usage = {.at_ns = now_ns()};
    add_usage(&usage, &self->broker, ROLE_BROKER);
    for (int role = 0; role < ROLES; role++)
        for (uint32_t i = 0; i < self->n[role]; i++)
            add_usage(&usage, &self->workers[role][i], role);
    machine_load_read(&usage.machine);
    return usage;
}

struct idle_sum {
    double sum[2];
    uint32_t n[2];
    struct idle_shares by;
};

static void add_idle(struct idle_sum *self, const struct observation *seen)
{
    const double shares[2] = {seen->idle_by.actor[IDLE_CREDIT], seen->idle_by.learner[IDLE_SAMPLE]};
    for (int i = 0; i < 2; i++) {
        if (isnan(shares[i]))
            continue;
        self->sum[i] += shares[i];
        self->n[i]++;
    }
    idle_shares_add(&self->by, &seen->idle_by, 1.0);
}

struct reads {
    struct profile_reads inserts, samples, steps;
};

/* What to measure, and for how long. */
struct task {
    enum profile_what what;
    uint64_t quantum; /* items that come at once */
    int64_t ns;
};

/* Reads until there are enough changes to compute rates from. */
static rp_status read_counters(struct profile_session *self, const struct task *task, struct reads *reads,
                               struct idle_sum *idle, rp_error *err)
{
    int64_t ns = task->ns, start = now_ns(), pause = ns / 80 / NS_PER_MS;
    pause = pause < 5 ? 5 : pause > 500 ? 500 : pause;
    const struct profile_reads *main = task->what == PROFILE_INSERTS ? &reads->inserts : &reads->samples;
    for (;;) {
        RP_TRY(profile_session_look(self, err));
        if (self->seen.broker) {
            profile_reads_add(&reads->inserts, self->seen.at_ns, self->seen.inserts);
            profile_reads_add(&reads->samples, self->seen.at_ns, self->seen.samples);
            profile_reads_add(&reads->steps, self->seen.at_ns, self->seen.steps);
            add_idle(idle, &self->seen);
        }
        int64_t taken = now_ns() - start;
        struct profile_rate rate = profile_rate(main, task->quantum);
        if ((task->what != PROFILE_BOTH && taken >= ns / 2 && rate.spread < EVEN_SPREAD) ||
            (taken >= ns && rate.changes >= LEAST_CHANGES) || taken >= LONGEST * ns)
            return RP_OK;
        profile_pause(pause);
    }
}

/* The rate of one counter: the measured one, or another one. */
static double rate_of(const struct profile_reads *reads, enum profile_what what, enum profile_what of, uint64_t quantum)
{
    return what == PROFILE_BOTH ? profile_rate_mean(reads) : profile_rate(reads, what == of ? quantum : 1).rate;
}

static rp_status measure_once(struct profile_session *self, const struct task *task, struct reads *reads,
                              struct profile_measured *out, rp_error *err)
{
    enum profile_what what = task->what;
    struct idle_sum idle = {{0}, {0}, {{0}, {0}}};
    struct usage before = read_usage(self);
    RP_TRY(read_counters(self, task, reads, &idle, err));
    struct usage after = read_usage(self);
    double seconds = 1e-9 * (double)(after.at_ns - before.at_ns), ours = 0.0;
    *out = (struct profile_measured){
        .inserts = rate_of(&reads->inserts, what, PROFILE_INSERTS, task->quantum),
        .samples = rate_of(&reads->samples, what, PROFILE_SAMPLES, task->quantum),
        /* Actors claim several steps in advance. */
        .steps = rate_of(&reads->steps, what, what, (uint64_t)self->options->config->actors.pull_every),
        .actor_idle = idle.n[0] > 0 ? idle.sum[0] / idle.n[0] : NAN,
        .learner_idle = idle.n[1] > 0 ? idle.sum[1] / idle.n[1] : NAN,
    };
    for (int i = 0; i < IDLE_CAUSES; i++) {
        out->idle_by.actor[i] = idle.n[0] > 0 ? idle.by.actor[i] / idle.n[0] : NAN;
        out->idle_by.learner[i] = idle.n[1] > 0 ? idle.by.learner[i] / idle.n[1] : NAN;
    }
    for (int role = 0; role < ROLES; role++) {
        out->cpu[role] = fmax(0.0, 1e-9 * (double)(after.cpu_ns[role] - before.cpu_ns[role]) / seconds);
        out->memory[role] = after.memory[role];
        ours += out->cpu[role];
    }
    out->others = machine_load_others(&before.machine, &after.machine, ours);
    return RP_OK;
}

rp_status profile_session_measure(struct profile_session *self, enum profile_what what, uint64_t quantum, int64_t ns,
                                  struct profile_measured *out, rp_error *err)
{
    const struct task task = {.what = what, .quantum = quantum, .ns = ns};
    rp_status status = RP_OK;
    bool whole = false;
    /* A process that restarted meanwhile spoils rates and processor times. */
    for (int i = 0; i < MOST_TRIES && status == RP_OK && !whole; i++) {
        struct reads *reads = calloc(1, sizeof *reads);
        uint32_t before = self->n_again;
        if (!reads)
            return err_set(err, RP_NO_MEMORY, "no memory to measure");
        status = measure_once(self, &task, reads, out, err);
        whole = self->n_again == before;
        free(reads);
    }
    return status;
}
