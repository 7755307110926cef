/* Snapshots are made in stages: the state of rooms that are small, tables in slices, sessions in slices, sentences. */
#include "broker/service/snapshot_maker.h"

#include <time.h>

#include "broker/service/info.h"
#include "broker/service/service.h"

#define TABLES_PER_STEP 64u
/* Of sessions, a step copies as many as this many flows allow; a session costs as much as some flows by itself. */
#define WORK_PER_STEP 4096u
#define SESSION_WORK 15u
/* Most sentences: each takes the core thread about a microsecond. */
#define WAITS_MOST 250u

/* A stage. True: it is done. */
typedef bool stage_fn(struct snapshot_maker *self);

static bool stage_state(struct snapshot_maker *self)
{
    struct snapshot *snapshot = self->snapshot;
    info_fill(&snapshot->arena, self->service, &snapshot->info);
    snapshot->info.server->snapshots = self->made;
    snapshot->info.server->snapshot_cpu_ns = self->cpu_ns;
    snapshot->info.server->snapshot_longest_ns = self->longest_ns;
    return true;
}

static bool stage_tables(struct snapshot_maker *self)
{
    const struct tables *tables = self->service->tables;
    struct snapshot *snapshot = self->snapshot;
    size_t *n = &snapshot->info.n_tables;
    for (uint32_t i = 0; i < TABLES_PER_STEP && *n < tables->n; i++, ++*n)
        snapshot->info.tables[*n] = info_table(&snapshot->arena, &tables->list[*n]);
    return *n == tables->n;
}

static bool stage_sessions_begin(struct snapshot_maker *self)
{
    struct sessions *sessions = self->service->sessions;
    struct snapshot *snapshot = self->snapshot;
    if (!(snapshot->parts & SNAPSHOT_SESSIONS))
        return true;
    /* Sessions that open from now on are not met: they stand before the others. */
    self->sessions_most = sessions->by_id.count;
    snapshot->info.sessions = arena_take(&snapshot->arena, self->sessions_most, sizeof(*snapshot->info.sessions));
    sessions->walk = sessions->list;
    return true;
}

/* Each flow of a session is a cache miss. */
static bool stage_sessions(struct snapshot_maker *self)
{
    struct sessions *sessions = self->service->sessions;
    struct snapshot *snapshot = self->snapshot;
    size_t *n = &snapshot->info.n_sessions;
    for (uint32_t work = 0; sessions->walk && work < WORK_PER_STEP; work += SESSION_WORK + sessions->tables->n) {
        const struct session *session = sessions->walk;
        sessions->walk = *n + 1 < self->sessions_most ? session->next : NULL;
        snapshot->info.sessions[(*n)++] = info_session(&snapshot->arena, session);
    }
    return !sessions->walk;
}

static bool stage_waits(struct snapshot_maker *self)
{
    struct snapshot *snapshot = self->snapshot;
    if (snapshot->parts & SNAPSHOT_WAITS)
        info_waits(&snapshot->arena, self->service, WAITS_MOST, &snapshot->why);
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
    *self = (struct snapshot_maker){0};
}

void snapshot_maker_begin(struct snapshot_maker *self, unsigned parts)
{
    self->snapshot = snapshot_new();
    struct clock clock = clock_system();
    self->snapshot->parts = parts | SNAPSHOT_STATE;
    self->snapshot->made_ns = clock_now(&clock);
    self->stage = 0;
    self->running = true;
    chores_add(&self->service->loop->chores, &self->chore);
}
