/* Computes the status of a run from observations: rates and progress. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/plan/profile.h"
#include "agent/launch/run/run_impl.h"

/* Rates cover this many of the last seconds. */
#define WINDOW_NS (5 * NS_PER_S)

static double unix_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- taking in ---- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Counters of before a resume are put back into the broker a little later: that jump is no speed. */
static void add_mark(struct run *self)
{
    const struct observation *seen = &self->seen;
    if (seen->broker_instance != self->marks_of) { /* a new broker: its counters begin again */
        self->n_marks = 0;
        self->marks_of = seen->broker_instance;
    }
    if (self->n_marks == RUN_MARKS)
        memmove(self->marks, self->marks + 1, --self->n_marks * sizeof *self->marks);
    self->marks[self->n_marks++] =
        (struct mark){.at_ns = seen->at_ns,
                      .steps = larger(seen->steps, self->steps_before),
                      .learner_steps = larger(seen->learner_steps, self->learner_steps_before),
                      .inserts = seen->inserts,
                      .samples = seen->samples};
    uint32_t old = 0;
    while (old + 2 < self->n_marks && self->marks[old + 1].at_ns <= seen->at_ns - WINDOW_NS)
        old++;
    memmove(self->marks, self->marks + old, (self->n_marks - old) * sizeof *self->marks);
    self->n_marks -= old;
}

static void take_values(struct run *self)
{
    uint32_t n = 0;
    const struct observe_value *values = observer_values(self->observer, &n);
    uint32_t stride = n / STATUS_MAX_VALUES + 1;
    self->n_values = 0;
    self->best = NAN;
    for (uint32_t i = 0; i < n; i++) {
        self->best = isnan(self->best) || values[i].value > self->best ? values[i].value : self->best;
        if ((n - 1 - i) % stride != 0 || self->n_values == STATUS_MAX_VALUES)
            continue;
        self->value_steps[self->n_values] = (double)values[i].steps;
        self->values[self->n_values++] = values[i].value;
    }
}

void run_take_in(struct run *self, const struct observation *before)
{
    if (self->seen.broker) {
        if (before->broker_instance != 0 && self->seen.broker_instance != before->broker_instance) {
            self->steps_before = larger(self->steps_before, before->steps);
            self->learner_steps_before = larger(self->learner_steps_before, before->learner_steps);
            self->put_back = false;
            self->put_back_ns = 0;
        }
        add_mark(self);
        run_stretch_add(self, before);
    }
    take_values(self);
}

/* ---- the status ---- */

static double rate(const struct run *self, size_t member)
{
    if (self->n_marks < 2)
        return 0.0;
    const struct mark *first = &self->marks[0], *last = &self->marks[self->n_marks - 1];
    uint64_t a, b;
    memcpy(&a, (const char *)first + member, sizeof a);
    memcpy(&b, (const char *)last + member, sizeof b);
    double seconds = (double)(last->at_ns - first->at_ns) * 1e-9;
    return seconds > 0.0 && b > a ? (double)(b - a) / seconds : 0.0;
}

/* Our learner reports its steps now and then, and a counter that grows by jumps has no rate over a few seconds.
 * Samples are counted at once: a batch for each step, of each learner that takes part in the step. */
static double updates_rate(const struct run *self, double samples_rate)
{
    uint32_t learners = run_running(self, ROLE_LEARNER);
    if (self->config->learners.command.count > 0 || learners == 0)
        return rate(self, offsetof(struct mark, learner_steps));
    return samples_rate / ((double)profile_batch(self->config) * learners);
}

/* Takes one stop condition into account, which may be the nearest. */
static void approach(struct status *out, double now, double end, double per_second)
{
    if (!(end > 0.0) || !isfinite(end))
        return;
    double share = now / end, eta = per_second > 0.0 ? (end - now) / per_second : NAN;
    share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    if (isnan(out->progress) || share > out->progress)
        out->progress = share;
    if (isfinite(eta) && (isnan(out->eta_s) || eta < out->eta_s))
        out->eta_s = eta > 0.0 ? eta : 0.0;
}

static void fill_progress(const struct run *self, struct status *out)
{
    const struct stop_section *stop = &self->config->stop;
    out->stop_steps = (uint64_t)stop->steps;
    out->stop_learner_steps = (uint64_t)stop->learner_steps;
    out->stop_value = stop->value;
    out->stop_time_s = (double)stop->time_ns * 1e-9;
    out->progress = out->eta_s = NAN;
    approach(out, (double)out->steps, (double)stop->steps, out->steps_rate);
    approach(out, (double)out->learner_steps, (double)stop->learner_steps, out->updates_rate);
    approach(out, out->elapsed_s, out->stop_time_s, 1.0);
}

/* The verdict of agent/why, which all who look at the run show. */
static void fill_waits(const struct run *self, struct status *out)
{
    char lost[256];
    struct why_run run = {.actors = out->actors,
                          .learners = out->learners,
                          .actor_idle = out->actor_idle,
                          .learner_idle = out->learner_idle,
                          .cpu = out->cpu,
                          .cores = out->cores,
                          .others = out->others,
                          .network = out->network_measured};
    struct why why;
    if (!self->observer || self->phase >= PHASE_DONE)
        return;
    run_stranded(self, &run, lost, sizeof lost);
    observer_why(self->observer, &run, &why);
    snprintf(out->waits, sizeof out->waits, "%s", why.text);
    snprintf(out->advice, sizeof out->advice, "%s", why.advice);
    snprintf(out->cause, sizeof out->cause, "%s", why_cause_names[why.cause]);
    snprintf(out->blocked, sizeof out->blocked, "%s", why_side_names[why.blocked]);
    snprintf(out->blocked_table, sizeof out->blocked_table, "%s", why.table);
    out->bad = why.bad;
    out->network_rate = why.network_rate;
}

static const char *state_of(const struct run *self, const struct member *member, char *out, size_t size)
{
    int64_t now_ns = clock_now(&self->clock);
    if (member->process.running)
        snprintf(out, size, "%s", member->process.asked_ns > 0 ? "stopping" : "runs");
    else if (member->wanted && member->waits)
        snprintf(out, size, "waits for %.13s",
                 member->host == RUN_NO_HOST ? "a host" : host_pool_name(self->hosts.pool, member->host));
    else if (member->wanted && member->supervised.restart_ns > 0)
        snprintf(out, size, "restarts in %.1f s", fmax(0.0, (double)(member->supervised.restart_ns - now_ns) * 1e-9));
    else
        snprintf(out, size, "ended");
    return out;
}

static void fill_processes(struct run *self, struct status *out)
{
    for (uint32_t i = 0; i < self->n_members; i++) {
        const struct member *member = self->members[i];
        struct status_process *shown = &self->shown[i];
        *shown = (struct status_process){.role = member->role,
                                         .pid = (int32_t)member->process.pid,
                                         .restarts = member->supervised.restarts,
                                         .memory = member->memory,
                                         .cpu = member->cpu};
        snprintf(shown->name, sizeof shown->name, "%s", member->name);
        state_of(self, member, shown->state, sizeof shown->state);
        uint32_t host = member->process.running ? member->at : member->host;
        if (self->hosts.n > 1 && host != RUN_NO_HOST)
            snprintf(shown->host, sizeof shown->host, "%s", host_pool_name(self->hosts.pool, host));
        out->restarts += member->supervised.restarts;
        out->memory += member->memory;
        out->cpu += member->cpu;
    }
    out->others = self->others;
    out->processes = self->shown;
    out->n_processes = self->n_members;
    out->actors = run_running(self, ROLE_ACTOR);
    out->actors_wanted = self->actors_started ? self->actors_wanted : run_config_actors(self->config);
    out->learners = run_running(self, ROLE_LEARNER);
    out->learners_wanted = run_config_learners(self->config);
}

static void fill_plan(const struct run *self, struct status *out)
{
    const struct plan *plan = self->options->plan;
    const struct plan_input *input = self->options->plan_input;
    out->planned_inserts = plan ? plan->chosen.inserts : NAN;
    out->planned_samples = plan ? plan->chosen.samples : NAN;
    out->planned_actor_idle = plan ? plan_actor_idle(&plan->chosen, input) : NAN;
    out->planned_learner_idle = plan ? plan_learner_idle(&plan->chosen, input) : NAN;
    out->shards = config_shards(&self->config->broker);
    snprintf(out->shards_reason, sizeof out->shards_reason, "%s", plan ? plan->broker.reason : "");
    out->network_measured = input && input->network > 0 ? input->network : NAN;
    out->memory_limit = input ? (uint64_t)plan_memory(input) : (uint64_t)self->config->plan.memory;
    out->cores = self->config->plan.cores > 0.0 ? self->config->plan.cores : machine_cores();
}

void run_status(struct run *self, struct status *out)
{
    const struct observation *seen = &self->seen;
    *out = (struct status){
        .phase = self->phase, .unix_s = unix_now(), .value = seen->value, .best = self->best, .network_rate = NAN};
    snprintf(out->name, sizeof out->name, "%s", self->config->name);
    snprintf(out->folder, sizeof out->folder, "%s", self->options->folder);
    snprintf(out->reason, sizeof out->reason, "%s", self->reason);
    out->elapsed_s = run_elapsed(self);
    /* When the actors have ended, nothing is claimed and not taken. A new broker gets these counters a little later. */
    bool ended = self->phase >= PHASE_STOPPING && run_running(self, ROLE_ACTOR) == 0;
    out->steps = self->steps_shown = larger(ended ? seen->steps : seen->taken, self->steps_shown);
    if (self->config->stop.steps > 0 && out->steps > (uint64_t)self->config->stop.steps)
        out->steps = (uint64_t)self->config->stop.steps; /* actors may claim a few more for a moment */
    out->learner_steps = larger(seen->learner_steps, self->learner_steps_before);
    out->steps_rate = rate(self, offsetof(struct mark, steps));
    out->inserts_rate = rate(self, offsetof(struct mark, inserts));
    out->samples_rate = rate(self, offsetof(struct mark, samples));
    out->updates_rate = updates_rate(self, out->samples_rate);
    out->spi = out->inserts_rate > 0.0 ? out->samples_rate / out->inserts_rate : NAN;
    out->spi_target =
        seen->spi > 0.0 ? seen->spi : profile_target(self->config); /* it may change while the run goes on */
    out->actor_idle = seen->actor_idle;
    out->learner_idle = seen->learner_idle;
    out->idle_by = seen->idle_by;
    out->actor_value = seen->actor_value;
    out->size = seen->size;
    out->max_size = seen->max_size;
    out->min_size = seen->min_size;
    bool bounded = seen->max_size && fabs(seen->cursor_low) < 1e300 && fabs(seen->cursor_high) < 1e300;
    out->cursor = seen->max_size ? seen->cursor : NAN;
    out->cursor_low = bounded ? seen->cursor_low : NAN;
    out->cursor_high = bounded ? seen->cursor_high : NAN;
    out->value_steps = self->value_steps;
    out->values = self->values;
    out->n_values = self->n_values;
    fill_progress(self, out);
    fill_processes(self, out);
    fill_plan(self, out);
    run_fill_hosts(self, out);
    fill_waits(self, out);
    snprintf(out->event, sizeof out->event, "%s", self->event);
    out->event_unix_s = self->event_unix_s;
}

/* Writes launch.json, for a launcher that resumes the run. */
static void save_state(struct run *self, const struct status *status)
{
    const struct run_options *options = self->options;
    struct folder_state state = {.pid = (int32_t)getpid(),
                                 .legs = options->before ? options->before->legs + 1 : 1,
                                 .elapsed_s = status->elapsed_s,
                                 .steps = status->steps,
                                 .learner_steps = status->learner_steps,
                                 .actors = self->actors_wanted,
                                 .learners = run_config_learners(self->config),
                                 .auto_actors = options->auto_actors,
                                 .done = self->phase > PHASE_STOPPING && self->outcome == RUN_DONE};
    run_folder_this_node(state.node);
    snprintf(state.service, sizeof state.service, "%s", self->endpoints.service);
    snprintf(state.here, sizeof state.here, "%s", options->here);
    snprintf(state.cwd, sizeof state.cwd, "%s", options->cwd);
    snprintf(state.command, sizeof state.command, "%s", options->command);
    rp_error err = {0};
    bool saved = run_folder_write_state(options->folder, &state, &err) == RP_OK, said = self->unsaved;
    self->unsaved = !saved;
    if (!saved && !said)
        run_say(self, LEVEL_ERROR, "A0413", "%s: the run goes on, but 'resume' will not know about its progress",
                err.text);
}

static void write_line(struct run *self, const struct status *status)
{
    char *text = status_to_json(status, false);
    if (text)
        history_add(&self->history, text);
    free(text);
    if (status->event_unix_s == self->event_unix_s)
        self->event_unsaved = false;
}

/* The state is written first, so that a launcher that resumes the run knows everything that status.json shows. */
void run_save_line(struct run *self)
{
    struct status now;
    run_status(self, &now);
    save_state(self, &now);
    write_line(self, &now);
}

void run_save(struct run *self, const struct status *status)
{
    save_state(self, status);
    char *whole = status_to_json(status, true);
    if (whole)
        run_folder_write(self->options->folder, FOLDER_STATUS, whole, NULL);
    free(whole);
    write_line(self, status);
}
