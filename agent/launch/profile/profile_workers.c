/* The processes of a session: on this machine or on hosts. */
#include <stdio.h>
#include <stdlib.h>

#include "agent/launch/profile/profile_session.h"
#include "agent/program/worker.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "replay/params.h"

#define COUNTER_MS 2000
/* Measured data is thrown away, so no process needs long to end. */
#define GRACE_NS (2 * NS_PER_S)
/* Restarts of programs that ended by themselves with success, before the profile gives up. */
#define MOST_AGAIN 100u

static int64_t now_ns(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- starting ---- */

/* What the command line needs on a host. */
static rp_status context_of(struct profile_session *self, uint32_t host, struct command_context *out, rp_error *err)
{
    *out = self->context;
    if (host == HOST_POOL_HOME)
        return RP_OK;
    if (!host_pool_ready(self->hosts, host)) {
        self->lost = host;
        return err_set(err, RP_UNAVAILABLE, "the host %s is not reachable: %s", host_pool_name(self->hosts, host),
                       host_reason(host_pool_at(self->hosts, host)));
    }
    host_pool_context(self->hosts, host, &self->context, out);
    return RP_OK;
}

rp_status profile_workers_launch(struct profile_session *self, struct profile_worker *worker, enum role role,
                                 uint32_t index, rp_error *err)
{
    char name[32], log[600];
    struct command_context context;
    if (role == ROLE_BROKER)
        snprintf(name, sizeof name, "%s", role_names[role]);
    else
        snprintf(name, sizeof name, "%s-%u", role_names[role], index);
    snprintf(log, sizeof log, "%s/%s.log", self->folder, name);
    RP_TRY(context_of(self, worker->host, &context, err));
    char **argv = command_build(&context, role, index, err);
    char **environment = argv ? command_environment(&context, role, index) : NULL;
    rp_status status = RP_OK;
    if (!argv)
        status = err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    else if (!environment)
        status = err_set(err, RP_NO_MEMORY, "no memory to start %s", name);
    bool home = worker->host == HOST_POOL_HOME;
    struct process_options options = {.name = name,
                                      .argv = (const char *const *)argv,
                                      .environment = (const char *const *)environment,
                                      .log = log,
                                      .guard = self->options->guard,
                                      .place = home ? NULL : host_place(host_pool_at(self->hosts, worker->host))};
    if (status == RP_OK)
        status = process_start(&worker->process, &options, now_ns(), err);
    command_free(&environment);
    command_free(&argv);
    return status;
}

static rp_status tell_lost(struct profile_session *self, const struct profile_worker *worker, rp_error *err)
{
    self->lost = worker->host;
    return err_set(err, RP_UNAVAILABLE, "the host %s was lost while %s was measured there: %s",
                   host_pool_name(self->hosts, worker->host), worker->process.name,
                   host_reason(host_pool_at(self->hosts, worker->host)));
}

static rp_status tell_end(const struct process *process, int status, rp_error *err)
{
    char how[96], tail[300];
    process_describe(status, how, sizeof how);
    process_tail(process, tail, sizeof tail, 4);
    return err_set(err, RP_FAILED_PRECONDITION, "%s ended while it was measured (%s)%s%s", process->name, how,
                   tail[0] ? ":\n" : ", without a word", tail);
}

/* A user's own program may end by itself, for example after a number of steps. */
static bool may_end(const struct profile_session *self, int role, int status)
{
    const struct run_config *config = self->options->config;
    bool foreign = (role == ROLE_ACTOR && config->actors.command.count > 0) ||
                   (role == ROLE_LEARNER && config->learners.command.count > 0);
    return foreign && status == 0 && self->n_again < MOST_AGAIN;
}

/* Starts the process again, with all steps still to take. */
static rp_status start_again(struct profile_session *self, struct profile_worker *worker, int role, uint32_t index,
                             rp_error *err)
{
    int64_t steps = 0;
    rp_client *client = self->observer ? observer_client(self->observer) : NULL;
    if (client && rp_counter_read(client, COUNTER_STEPS, COUNTER_MS, &steps, NULL) == RP_OK && steps > 0)
        rp_counter_add(client, COUNTER_STEPS, -steps, COUNTER_MS, NULL, NULL);
    self->n_again++;
    *worker = (struct profile_worker){.host = worker->host};
    return profile_workers_launch(self, worker, (enum role)role, index, err);
}

static rp_status check_process(struct profile_session *self, struct profile_worker *worker, int role, uint32_t index,
                               rp_error *err)
{
    int status = 0;
    if (!worker->process.running || !process_ended(&worker->process, &status))
        return RP_OK;
    if (status == PROCESS_LOST && worker->host != HOST_POOL_HOME)
        return tell_lost(self, worker, err);
    return may_end(self, role, status) ? start_again(self, worker, role, index, err)
                                       : tell_end(&worker->process, status, err);
}

/* Notes what the process has used. Reports from a host come about once a second: a changed number is a new one. */
static void note_usage(struct profile_worker *worker)
{
    struct process_usage usage;
    if (!worker->process.running || !process_usage(&worker->process, &usage))
        return;
    worker->memory = usage.memory;
    if (worker->host != HOST_POOL_HOME && worker->seen_ns > 0 && usage.cpu_ns == worker->cpu_ns)
        return;
    worker->cpu_ns = usage.cpu_ns;
    worker->main_ns = usage.main_ns;
    worker->seen_ns = now_ns();
}

rp_status profile_workers_check(struct profile_session *self, rp_error *err)
{
    for (int role = 0; role < ROLES; role++)
        for (uint32_t i = 0; i < self->n[role]; i++)
            RP_TRY(check_process(self, &self->workers[role][i], role, i, err));
    return check_process(self, &self->broker, ROLE_BROKER, 0, err);
}

void profile_session_note(struct profile_session *self, bool home)
{
    for (int role = 0; role < ROLES; role++)
        for (uint32_t i = 0; i < self->n[role]; i++)
            if (home || self->workers[role][i].host != HOST_POOL_HOME)
                note_usage(&self->workers[role][i]);
    if (home)
        note_usage(&self->broker);
}

static bool any_runs(struct profile_worker *list, uint32_t n)
{
    bool runs = false;
    for (uint32_t i = 0; i < n; i++) {
        int status;
        runs |= list[i].process.running && !process_ended(&list[i].process, &status);
    }
    return runs;
}

/* Asks all processes to end and kills those that do not. */
void profile_workers_end(struct profile_session *self, struct profile_worker *list, uint32_t n)
{
    int64_t start = now_ns();
    for (uint32_t i = 0; i < n; i++)
        if (list[i].process.running)
            process_ask(&list[i].process, start);
    while (any_runs(list, n)) {
        for (uint32_t i = 0; now_ns() - start > GRACE_NS && i < n; i++)
            if (list[i].process.running && !list[i].process.killed)
                process_kill(&list[i].process);
        profile_session_pause(self, 2);
    }
}

static rp_status make_room(struct profile_session *self, enum role role, uint32_t count, rp_error *err)
{
    struct profile_worker *list = realloc(self->workers[role], count * sizeof *list);
    if (!list)
        return err_set(err, RP_NO_MEMORY, "no memory for %u processes", count);
    self->workers[role] = list;
    if (role == ROLE_ACTOR)
        self->context.actors = count;
    else if (role == ROLE_LEARNER)
        self->context.learners = count;
    return RP_OK;
}

static rp_status start_some(struct profile_session *self, enum role role, uint32_t count, uint32_t host, rp_error *err)
{
    while (self->n[role] < count) {
        struct profile_worker *worker = &self->workers[role][self->n[role]];
        *worker = (struct profile_worker){.host = host};
        RP_TRY(profile_workers_launch(self, worker, role, self->n[role], err));
        self->n[role]++;
    }
    return RP_OK;
}

rp_status profile_session_start(struct profile_session *self, enum role role, uint32_t count, uint32_t host,
                                rp_error *err)
{
    if (count <= self->n[role])
        return RP_OK;
    RP_TRY(make_room(self, role, count, err));
    return start_some(self, role, count, host, err);
}

rp_status profile_session_spread(struct profile_session *self, enum role role, uint32_t total, const uint32_t *at,
                                 uint32_t n, rp_error *err)
{
    if (!at)
        return profile_session_start(self, role, total, HOST_POOL_HOME, err);
    RP_TRY(make_room(self, role, total, err));
    for (uint32_t host = 0; host < n; host++)
        RP_TRY(start_some(self, role, self->n[role] + at[host], host, err));
    return RP_OK;
}

rp_status profile_session_stop(struct profile_session *self, enum role role, rp_error *err)
{
    /* A process that failed before it was asked to end is an error. */
    RP_TRY(profile_workers_check(self, err));
    profile_session_drop(self, role);
    return RP_OK;
}

void profile_session_drop(struct profile_session *self, enum role role)
{
    profile_workers_end(self, self->workers[role], self->n[role]);
    self->n[role] = 0;
}
