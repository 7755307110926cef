/* Computes the status of a run from observations: rates, progress, and what the report says of each stretch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/plan/profile.h"
#include "agent/launch/process/machine.h"
#include "agent/launch/run_impl.h"

/* Rates cover this many of the last seconds. */
#define WINDOW_NS (5 * NS_PER_S)
/* The first reports still cover the start. */
#define SETTLE_MOST_NS (5 * NS_PER_S)
#define SETTLE_MORE_NS (NS_PER_S / 2)

/* ---- stretches: from one change of the number of actors to the next, with the rates achieved in each ---- */

void run_stretch_begin(struct run *self, uint32_t actors)
{
    if (self->n_stretches > 0 && self->stretches[self->n_stretches - 1].actors == actors)
        return;
    if (self->n_stretches == REPORT_STRETCHES) /* the newest are kept */
        memmove(self->stretches, self->stretches + 1, --self->n_stretches * sizeof *self->stretches);
    self->stretches[self->n_stretches++] =
        (struct stretch){.actors = actors, .from_s = run_elapsed(self), .from_ns = clock_now(&self->clock)};
}

static void add_sums(struct stretch_sums *sums, const struct observation *before, const struct observation *seen)
{
    double seconds = (double)(seen->at_ns - before->at_ns) * 1e-9;
    sums->seconds += seconds;
    sums->inserts += (double)(seen->inserts - before->inserts);
    sums->samples += (double)(seen->samples - before->samples);
    idle_shares_add(&sums->idle_by, &seen->idle_by, seconds);
    if (isfinite(seen->actor_idle)) {
        sums->actor_idle += seconds * seen->actor_idle;
        sums->actor_s += seconds;
    }
    if (isfinite(seen->learner_idle)) {
        sums->learner_idle += seconds * seen->learner_idle;
        sums->learner_s += seconds;
    }
}

/* Adds what happened between two looks at the same broker, unless the table was reset meanwhile and its counts began
 * again. Time in which nothing moves counts only within the settled part: starting and ending may take long. */
void run_stretch_add(struct run *self, const struct observation *before)
{
    const struct observation *seen = &self->seen;
    if (self->n_stretches == 0 || before->at_ns == 0 || seen->broker_instance != before->broker_instance ||
        seen->inserts < before->inserts || seen->samples < before->samples)
        return;
    struct stretch *stretch = &self->stretches[self->n_stretches - 1];
    if (seen->inserts != before->inserts || seen->samples != before->samples)
        add_sums(&stretch->whole, before, seen);
    int64_t every = self->config->report.every_ns, from = stretch->from_ns;
    from = from > self->running_ns ? from : self->running_ns;
    if (self->phase == PHASE_RUNNING &&
        before->at_ns >= from + (every < SETTLE_MOST_NS ? every : SETTLE_MOST_NS) + SETTLE_MORE_NS)
        add_sums(&stretch->settled, before, seen);
}

static struct report_steady rates_of(const struct stretch_sums *sums)
{
    struct report_steady out = {.seconds = sums->seconds, .spi = NAN, .actor_idle = NAN, .learner_idle = NAN};
    idle_shares_none(&out.idle_by);
    if (sums->seconds <= 0.0)
        return out;
    out.inserts = sums->inserts / sums->seconds;
    out.samples = sums->samples / sums->seconds;
    out.spi = sums->inserts > 0.0 ? sums->samples / sums->inserts : NAN;
    out.actor_idle = sums->actor_s > 0.0 ? sums->actor_idle / sums->actor_s : NAN;
    out.learner_idle = sums->learner_s > 0.0 ? sums->learner_idle / sums->learner_s : NAN;
    for (int i = 0; i < IDLE_CAUSES; i++) {
        out.idle_by.actor[i] = sums->actor_s > 0.0 ? sums->idle_by.actor[i] / sums->actor_s : NAN;
        out.idle_by.learner[i] = sums->learner_s > 0.0 ? sums->idle_by.learner[i] / sums->learner_s : NAN;
    }
    return out;
}

/* A run that ends before the first reports is described by the last ones: each process reports when it ends. */
static void fill_idle(struct report_steady *rates, const struct observation *seen)
{
    if (isnan(rates->actor_idle)) {
        rates->actor_idle = seen->actor_idle;
        memcpy(rates->idle_by.actor, seen->idle_by.actor, sizeof rates->idle_by.actor);
    }
    if (isnan(rates->learner_idle)) {
        rates->learner_idle = seen->learner_idle;
        memcpy(rates->idle_by.learner, seen->idle_by.learner, sizeof rates->idle_by.learner);
    }
}

uint32_t run_stretches(const struct run *self, struct report_stretch out[REPORT_STRETCHES])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct stretch *stretch = &self->stretches[i];
        bool settled = stretch->settled.seconds > 0.0;
        struct report_steady rates = rates_of(settled ? &stretch->settled : &stretch->whole);
        if (rates.seconds <= 0.0)
            continue;
        if (i + 1 == self->n_stretches)
            fill_idle(&rates, &self->seen);
        out[n++] = (struct report_stretch){.actors = stretch->actors,
                                           .learners = run_config_learners(self->config),
                                           .from_s = stretch->from_s,
                                           .settled = settled,
                                           .rates = rates};
    }
    return n;
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

static double unix_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

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
                          .others = out->others};
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
    out->memory_limit = input ? (uint64_t)plan_memory(input) : (uint64_t)self->config->plan.memory;
    out->cores = self->config->plan.cores > 0.0 ? self->config->plan.cores : machine_cores();
}

static void show_event(const struct run_event *event, struct status *out)
{
    snprintf(out->event, sizeof out->event, "%s", event ? event->text : "");
    out->event_unix_s = event ? event->unix_s : 0.0;
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
    show_event(self->n_events > 0 ? &self->events[self->n_events - 1] : NULL, out);
}

/* ---- saving ---- */

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
}

/* The state is written first, so that a launcher that resumes the run knows everything that status.json shows. A status has room for one
 * event, the newest; metrics.jsonl has them all. */
void run_save(struct run *self, const struct status *status)
{
    save_state(self, status);
    char *whole = status_to_json(status, true);
    if (whole)
        run_folder_write(self->options->folder, FOLDER_STATUS, whole, NULL);
    free(whole);
    for (uint32_t i = self->saved_events; i + 1 < self->n_events; i++) {
        struct status earlier = *status;
        show_event(&self->events[i], &earlier);
        write_line(self, &earlier);
    }
    write_line(self, status);
    if (self->n_events > 0) { /* the newest stays, for the next status */
        self->events[0] = self->events[self->n_events - 1];
        self->n_events = self->saved_events = 1;
    }
}
