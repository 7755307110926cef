/* The processes of a run: started, awaited, started again, retired. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/run_impl.h"
#include "proto/error.h"

#define TAIL_LINES 8

static struct supervisor_limits limits_of(const struct run *self)
{
    const struct launch_section *launch = &self->config->launch;
    return (struct supervisor_limits){.backoff_ns = launch->backoff_ns,
                                      .backoff_most_ns = launch->backoff_most_ns,
                                      .failures = (uint32_t)launch->failures,
                                      .healthy_ns = launch->healthy_ns};
}

/* ---- starting ---- */

static rp_status start_process(struct run *self, struct member *member, int64_t now_ns, rp_error *err)
{
    char log[FOLDER_SIZE + 64];
    self->context.actors = self->actors_wanted;
    char **argv = command_build(&self->context, member->role, member->index, err);
    char **environment = argv ? command_environment(&self->context, member->role, member->index) : NULL;
    rp_status status = argv ? RP_OK : (rp_status)err->status;
    if (argv && !environment)
        status = err_set(err, RP_NO_MEMORY, "no memory for a command line");
    snprintf(log, sizeof log, "%s/logs/%s.log", self->options->folder, member->name);
    const struct process_options options = {.name = member->name,
                                            .argv = (const char *const *)argv,
                                            .environment = (const char *const *)environment,
                                            .log = log,
                                            .guard = self->options->guard};
    if (status == RP_OK)
        status = process_start(&member->process, &options, now_ns, err);
    command_free(&argv);
    command_free(&environment);
    member->hang = (struct hang){0};
    member->usage_ns = member->cpu_ns = 0;
    return status;
}

static void give_up(struct run *self, const struct member *member)
{
    char text[SUPERVISOR_TAIL + 512];
    supervisor_explain(&member->supervised, member->name, text, sizeof text);
    run_say(self, LEVEL_ERROR, "A0404", "%s", text);
    text[strcspn(text, "\n")] = '\0';
    run_stop(self, RUN_FAILED, false, "%s", text);
}

static void start(struct run *self, struct member *member)
{
    rp_error err = {0};
    int64_t now_ns = clock_now(&self->clock);
    if (start_process(self, member, now_ns, &err) == RP_OK) {
        log_line(LEVEL_INFO, "A0402", "started", "process=%s pid=%d", member->name, (int)member->process.pid);
        return;
    }
    const struct supervisor_limits limits = limits_of(self);
    enum supervisor_action action = supervisor_not_started(&member->supervised, &limits, err.text, now_ns);
    run_say(self, LEVEL_WARN, "A0403", "%s: %s", member->name, err.text);
    if (action == SUPERVISOR_GIVE_UP)
        give_up(self, member);
}

static struct member *find(const struct run *self, enum role role, uint32_t index)
{
    for (uint32_t i = 0; i < self->n_members; i++)
        if (self->members[i]->role == role && self->members[i]->index == index)
            return self->members[i];
    return NULL;
}

static struct member *add(struct run *self, enum role role, uint32_t index)
{
    if (self->n_members == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 16;
        struct member **members = realloc(self->members, capacity * sizeof *members);
        struct status_process *shown = realloc(self->shown, capacity * sizeof *shown);
        if (members)
            self->members = members;
        if (shown)
            self->shown = shown;
        if (!members || !shown)
            return NULL;
        self->capacity = capacity;
    }
    struct member *member = calloc(1, sizeof *member);
    if (!member)
        return NULL;
    member->role = role;
    member->index = index;
    if (role == ROLE_BROKER)
        snprintf(member->name, sizeof member->name, "broker");
    else
        snprintf(member->name, sizeof member->name, "%s-%u", role_name(role), index);
    self->members[self->n_members++] = member;
    return member;
}

void run_add(struct run *self, enum role role, uint32_t index)
{
    struct member *member = find(self, role, index);
    if (!member)
        member = add(self, role, index);
    if (!member) {
        run_stop(self, RUN_FAILED, false, "no memory for one more process");
        return;
    }
    member->wanted = true;
    member->supervised = (struct supervised){.restarts = member->supervised.restarts};
    if (member->process.pid == 0)
        start(self, member);
}

/* ---- ends ---- */

static void ended(struct run *self, struct member *member, int status, int64_t now_ns)
{
    char tail[SUPERVISOR_TAIL], how[96];
    const struct supervisor_limits limits = limits_of(self);
    int64_t ran_ns = now_ns - member->process.started_ns;
    bool asked = member->process.asked_ns > 0 || self->phase >= PHASE_STOPPING;
    bool by_right = status == 0 && member->role != ROLE_BROKER; /* its work is done */
    process_tail(&member->process, tail, sizeof tail, TAIL_LINES);
    process_describe(status, how, sizeof how);
    member->memory = 0;
    member->cpu = 0.0;
    log_line(LEVEL_INFO, "A0405", "ended", "process=%s how=\"%s\" asked=%d", member->name, how, asked);
    if (asked && member->wanted && self->phase < PHASE_STOPPING) { /* retired, and wanted again meanwhile */
        start(self, member);
        return;
    }
    switch (supervisor_ended(&member->supervised, &limits, status, asked || by_right, tail, now_ns, ran_ns)) {
    case SUPERVISOR_DONE:
        member->wanted = false;
        break;
    case SUPERVISOR_RESTART:
        run_say(self, LEVEL_WARN, "A0403", "%s ended after %.1f s with %s; it starts again in %.1f s.%s%s",
                member->name, (double)ran_ns * 1e-9, how, (double)(member->supervised.restart_ns - now_ns) * 1e-9,
                tail[0] ? " Its last lines:\n" : "", tail);
        break;
    case SUPERVISOR_GIVE_UP:
        give_up(self, member);
        break;
    }
}

static bool custom(const struct run *self, enum role role)
{
    return (role == ROLE_ACTOR && self->config->actors.command.count > 0) ||
           (role == ROLE_LEARNER && self->config->learners.command.count > 0);
}

/* A role whose last process ended by right ends the run, if that was its work. */
static void check_done(struct run *self)
{
    if (self->phase >= PHASE_STOPPING || !self->actors_started)
        return;
    bool learners = run_wanted(self, ROLE_LEARNER) > 0 || run_running(self, ROLE_LEARNER) > 0;
    bool actors = run_wanted(self, ROLE_ACTOR) > 0 || run_running(self, ROLE_ACTOR) > 0;
    if (learners && (actors || !custom(self, ROLE_ACTOR)))
        return;
    if (!self->looked_again) { /* a stop condition that they have seen before us is the better reason */
        self->looked_again = true;
        self->look_ns = 0;
        return;
    }
    run_stop(self, RUN_DONE, false, "the %s have ended", learners ? "actors" : "learners");
}

static void tend_hang(struct run *self, struct member *member, int64_t now_ns)
{
    struct process_usage usage;
    if (!process_usage(&member->process, &usage))
        return;
    if (member->usage_ns > 0 && now_ns > member->usage_ns)
        member->cpu = (double)(usage.cpu_ns - member->cpu_ns) / (double)(now_ns - member->usage_ns);
    member->usage_ns = now_ns;
    member->cpu_ns = usage.cpu_ns;
    member->memory = usage.memory;
    if (hang_seen(&member->hang, self->config->launch.hang_ns, usage.cpu_ns, now_ns) && !member->process.killed) {
        run_say(self, LEVEL_WARN, "A0406",
                "%s hangs: it used no processor time for %.0f s%s; it is killed (launch.hang)", member->name,
                (double)self->config->launch.hang_ns * 1e-9, usage.stopped ? " and is stopped" : "");
        process_kill(&member->process);
    }
}

void run_measure_usage(struct run *self, int64_t now_ns)
{
    for (uint32_t i = 0; i < self->n_members; i++)
        if (self->members[i]->process.pid > 0)
            tend_hang(self, self->members[i], now_ns);
}

void run_tend(struct run *self, int64_t now_ns)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        struct member *member = self->members[i];
        int status;
        if (member->process.pid > 0 && process_ended(&member->process, &status))
            ended(self, member, status, now_ns);
        else if (member->process.pid > 0 && member->process.asked_ns > 0 && !member->process.killed &&
                 now_ns - member->process.asked_ns > self->config->launch.grace_ns) {
            run_say(self, LEVEL_WARN, "A0407", "%s did not end within %.1f s of SIGTERM (launch.grace); it is killed",
                    member->name, (double)self->config->launch.grace_ns * 1e-9);
            process_kill(&member->process);
        }
        if (self->phase < PHASE_STOPPING && member->wanted && member->process.pid == 0 &&
            supervisor_due(&member->supervised, now_ns))
            start(self, member);
    }
    check_done(self);
}

/* ---- counts ---- */

uint32_t run_running(const struct run *self, enum role role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++)
        n += self->members[i]->role == role && self->members[i]->process.pid > 0;
    return n;
}

uint32_t run_wanted(const struct run *self, enum role role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++)
        n += self->members[i]->role == role && self->members[i]->wanted;
    return n;
}

void run_ask(struct run *self, enum role role, uint32_t from, int64_t now_ns)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        struct member *member = self->members[i];
        if (member->role != role || member->index < from)
            continue;
        member->wanted = false;
        if (member->process.pid > 0)
            process_ask(&member->process, now_ns);
    }
}

void run_kill_all(struct run *self)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        self->members[i]->wanted = false;
        if (self->members[i]->process.pid > 0)
            process_kill(&self->members[i]->process);
    }
}

void run_set_actors(struct run *self, uint32_t count, int64_t now_ns)
{
    uint32_t before = self->actors_wanted;
    self->actors_wanted = count;
    run_ask(self, ROLE_ACTOR, count, now_ns);
    for (uint32_t i = before; i < count; i++)
        run_add(self, ROLE_ACTOR, i);
}
