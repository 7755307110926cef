/* Snapshots are made in stages: the state of rooms that are small, tables in slices, sessions in slices, sentences. */
#include "broker/service/snapshot_maker.h"

#include <stdlib.h>
#include <time.h>

#include "broker/service/service.h"
#include "broker/service/snapshot_fill.h"

#define TABLES_PER_STEP 64u
#define SESSIONS_PER_STEP 256u

/* A stage. True: it is done. */
typedef bool stage_fn(struct snapshot_maker *self);

static bool stage_state(struct snapshot_maker *self)
{
    struct snapshot *snapshot = self->snapshot;
    snapshot_fill_state(snapshot, self->service);
    snapshot->server.snapshots = self->made;
    snapshot->server.snapshot_cpu_ns = self->cpu_ns;
    snapshot->server.snapshot_longest_ns = self->longest_ns;
    self->table = 0;
    snapshot->tables = snapshot_take(snapshot, self->service->tables->n, sizeof *snapshot->tables);
    return true;
}

static bool stage_tables(struct snapshot_maker *self)
{
    const struct tables *tables = self->service->tables;
    struct snapshot *snapshot = self->snapshot;
    for (uint32_t i = 0; snapshot->tables && i < TABLES_PER_STEP && self->table < tables->n; i++)
        snapshot_fill_table(snapshot, &tables->list[self->table++]);
    return !snapshot->tables || self->table == tables->n;
}

static bool stage_sessions_begin(struct snapshot_maker *self)
{
    struct sessions *sessions = self->service->sessions;
    struct snapshot *snapshot = self->snapshot;
    if (!(snapshot->parts & SNAPSHOT_SESSIONS))
        return true;
    /* Sessions that open from now on are not met: they stand before the others. */
    self->sessions_most = sessions->by_id.count;
    snapshot->sessions = snapshot_take(snapshot, self->sessions_most, sizeof *snapshot->sessions);
    free(self->seen);
    self->seen = calloc(self->service->tables->n, sizeof *self->seen);
    snapshot->failed |= !self->seen;
    sessions->walk = snapshot->failed ? NULL : sessions->list;
    return true;
}

static bool stage_sessions(struct snapshot_maker *self)
{
    struct sessions *sessions = self->service->sessions;
    struct snapshot *snapshot = self->snapshot;
    for (uint32_t i = 0; sessions->walk && i < SESSIONS_PER_STEP; i++) {
        const struct session *session = sessions->walk;
        sessions->walk = snapshot->n_sessions + 1 < self->sessions_most ? session->next : NULL;
        snapshot_fill_session(snapshot, session, self->seen);
    }
    return !sessions->walk;
}

static bool stage_waits(struct snapshot_maker *self)
{
    if (self->snapshot->parts & SNAPSHOT_WAITS)
        snapshot_fill_waits(self->snapshot, self->service);
    return true;
}

static stage_fn *const stages[] = {stage_state, stage_tables, stage_sessions_begin, stage_sessions, stage_waits};
#define N_STAGES (sizeof stages / sizeof stages[0])

static int64_t thread_cpu(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return at.tv_sec * NS_PER_S + at.tv_nsec;
}

static void finish(struct snapshot_maker *self)
{
    struct snapshot *snapshot = self->snapshot;
    self->snapshot = NULL;
    self->made++;
    self->cpu_ns += snapshot->cpu_ns;
    if (snapshot->cpu_ns > self->longest_ns)
        self->longest_ns = snapshot->cpu_ns;
    exchange_give(&self->exchange, snapshot);
}

/* Runs the next slice; small stages that follow each other are one slice. */
static bool step(struct chore *chore)
{
    struct snapshot_maker *self =
        (struct snapshot_maker *)(void *)((char *)chore - offsetof(struct snapshot_maker, chore));
    int64_t start = thread_cpu();
    while (self->stage < N_STAGES && stages[self->stage](self))
        self->stage++;
    self->snapshot->cpu_ns += (uint64_t)(thread_cpu() - start);
    self->running = self->stage < N_STAGES;
    if (!self->running)
        finish(self);
    return self->running;
}

void snapshot_maker_init(struct snapshot_maker *self, struct service *service, int wake_fd)
{
    *self = (struct snapshot_maker){.service = service, .chore = {.step = step}};
    exchange_init(&self->exchange, wake_fd);
}

void snapshot_maker_fini(struct snapshot_maker *self)
{
    if (!self->service)
        return;
    if (self->running)
        chores_remove(&self->service->loop->chores, &self->chore);
    snapshot_destroy(&self->snapshot);
    exchange_fini(&self->exchange);
    free(self->seen);
    *self = (struct snapshot_maker){0};
}

bool snapshot_maker_begin(struct snapshot_maker *self, unsigned parts)
{
    self->snapshot = snapshot_new();
    if (!self->snapshot)
        return false;
    struct clock clock = clock_system();
    self->snapshot->parts = parts | SNAPSHOT_STATE;
    self->snapshot->made_ns = clock_now(&clock);
    self->stage = 0;
    self->running = true;
    chores_add(&self->service->loop->chores, &self->chore);
    return true;
}
