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
/* Hosts report about once a second what their processes use. Later than this, a process without news counts as idle. */
#define REPORT_NS (3 * NS_PER_S)

static int64_t now_ns(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

struct usage {
    int64_t at_ns;
    double memory[ROLES];
    struct machine_load machine;
};

/* Processor time and time of a process at the beginning. */
struct mark {
    int64_t cpu_ns, seen_ns, main_ns;
};

/* Calls visit for every process of the session, the broker first. */
static void every_worker(struct profile_session *self,
                         void (*visit)(struct profile_worker *, int role, uint32_t number, void *context),
                         void *context)
{
    uint32_t number = 0;
    visit(&self->broker, ROLE_BROKER, number++, context);
    for (int role = 0; role < ROLES; role++)
        for (uint32_t i = 0; i < self->n[role]; i++)
            visit(&self->workers[role][i], role, number++, context);
}

static uint32_t count_workers(const struct profile_session *self)
{
    uint32_t n = 1;
    for (int role = 0; role < ROLES; role++)
        n += self->n[role];
    return n;
}

static void add_memory(struct profile_worker *worker, int role, uint32_t number, void *context)
{
    struct usage *usage = context;
    (void)number;
    if (worker->process.running)
        usage->memory[role] = fmax(usage->memory[role], (double)worker->memory);
}

static struct usage read_usage(struct profile_session *self)
{
    struct usage usage = {.at_ns = now_ns()};
    profile_session_note(self, true);
    every_worker(self, add_memory, &usage);
    machine_load_read(&usage.machine);
    return usage;
}

static void set_mark(struct profile_worker *worker, int role, uint32_t number, void *context)
{
    struct mark *marks = context;
    (void)role;
    bool none = worker->seen_ns == 0; /* no report yet: since its start */
    marks[number] = (struct mark){none ? 0 : worker->cpu_ns, none ? worker->process.started_ns : worker->seen_ns,
                                  none ? 0 : worker->main_ns};
}

/* Cores of each role since the marks. */
struct cores {
    const struct mark *marks;
    double of[ROLES], home;
    double core; /* of the broker's busiest core thread; NAN: not known */
};

/* A report of a host covers the time since the report before; one that has not come counts as nothing used. */
static void add_cores(struct profile_worker *worker, int role, uint32_t number, void *context)
{
    struct cores *cores = context;
    const struct mark *mark = &cores->marks[number];
    if (!worker->process.running || worker->seen_ns <= mark->seen_ns || mark->seen_ns == 0)
        return;
    double used = (double)(worker->cpu_ns - mark->cpu_ns) / (double)(worker->seen_ns - mark->seen_ns);
    cores->of[role] += fmax(0.0, used);
    cores->home += worker->host == HOST_POOL_HOME ? fmax(0.0, used) : 0.0;
    if (role == ROLE_BROKER && worker->main_ns > mark->main_ns)
        cores->core = (double)(worker->main_ns - mark->main_ns) / (double)(worker->seen_ns - mark->seen_ns);
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

/* Whether the hosts have told what their processes have used since the marks. */
struct reports {
    const struct mark *marks;
    bool missing;
};

static void find_missing(struct profile_worker *worker, int role, uint32_t number, void *context)
{
    struct reports *reports = context;
    (void)role;
    reports->missing |=
        worker->host != HOST_POOL_HOME && worker->process.running && worker->seen_ns <= reports->marks[number].seen_ns;
}

static bool all_reported(struct profile_session *self, const struct mark *marks)
{
    struct reports reports = {.marks = marks};
    every_worker(self, find_missing, &reports);
    return !reports.missing;
}

/* Reads until there are enough changes to compute rates from. */
static rp_status read_counters(struct profile_session *self, const struct task *task, const struct mark *marks,
                               struct reads *reads, struct idle_sum *idle, rp_error *err)
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
        bool even = task->what != PROFILE_BOTH && taken >= ns / 2 && rate.spread < EVEN_SPREAD;
        bool enough = even || (taken >= ns && rate.changes >= LEAST_CHANGES) || taken >= LONGEST * ns;
        if (enough && (taken >= REPORT_NS || all_reported(self, marks)))
            return RP_OK;
        profile_session_pause(self, pause);
    }
}

/* The rate of one counter: the measured one, or another one. */
static double rate_of(const struct profile_reads *reads, enum profile_what what, enum profile_what of, uint64_t quantum)
{
    return what == PROFILE_BOTH ? profile_rate_mean(reads) : profile_rate(reads, what == of ? quantum : 1).rate;
}

static rp_status measure_once(struct profile_session *self, const struct task *task, struct reads *reads,
                              struct mark *marks, struct profile_measured *out, rp_error *err)
{
    enum profile_what what = task->what;
    struct idle_sum idle = {{0}, {0}, {{0}, {0}}};
    struct usage before = read_usage(self);
    every_worker(self, set_mark, marks);
    RP_TRY(read_counters(self, task, marks, reads, &idle, err));
    struct usage after = read_usage(self);
    struct cores cores = {.marks = marks, .core = NAN};
    every_worker(self, add_cores, &cores);
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
        out->cpu[role] = cores.of[role];
        out->memory[role] = after.memory[role];
    }
    out->home = cores.home;
    out->core = cores.core;
    out->others = machine_load_others(&before.machine, &after.machine, cores.home);
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
        struct mark *marks = calloc(count_workers(self), sizeof *marks);
        uint32_t before = self->n_again;
        status = reads && marks ? measure_once(self, &task, reads, marks, out, err)
                                : err_set(err, RP_NO_MEMORY, "no memory to measure");
        whole = self->n_again == before;
        free(marks);
        free(reads);
    }
    return status;
}
