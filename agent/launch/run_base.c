/* What all parts of a run need: messages, the begin of the end, counts, and time.
 *
 * stop.time bounds a run up to the end of its last process. So the run stops a little earlier, and processes that are left at stop.time
 * are killed. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "agent/launch/run_impl.h"
#include "proto/base/need.h"

/* The largest share of stop.time that is kept for the end. */
#define RESERVE_SHARE 0.25
/* An evaluation is expected to take as long as the previous one. */
#define EVALUATIONS 1.5
/* Bytes per second at which a broker writes its last checkpoint to a slow disk. */
#define WRITE_RATE 100e6

/* ---- messages ---- */

/* shown: text for the screen; text: for the log and as the event. */
static void tell(struct run *self, enum log_level level, const char *id, const char *shown, const char *text)
{
    char quoted[SUPERVISOR_TAIL + 1024];
    struct timespec now;
    screen_say(*self->options->screen, level >= LEVEL_WARN, "%s", shown);
    log_line(level, id, "launch", "text=%s", log_quote(quoted, sizeof quoted, text));
    self->events = need_resize(self->events, self->n_events + 1, sizeof *self->events);
    struct run_event *event = &self->events[self->n_events++];
    supervisor_one_line(text, event->text, sizeof event->text);
    clock_gettime(CLOCK_REALTIME, &now);
    event->unix_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void run_say(struct run *self, enum log_level level, const char *id, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tell(self, level, id, text, text);
}

/* run_finish prints why a run failed, as the very last lines, so it is not printed here. */
void run_stop(struct run *self, enum run_outcome outcome, bool patient, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 512], line[SUPERVISOR_TAIL + 576];
    if (self->phase >= PHASE_STOPPING)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    supervisor_one_line(text, self->reason, sizeof self->reason);
    self->phase = PHASE_STOPPING;
    self->outcome = outcome;
    self->patient = patient;
    bool failed = outcome == RUN_FAILED;
    if (failed)
        snprintf(self->cause, sizeof self->cause, "%s", text);
    snprintf(line, sizeof line, "stopping: %s", text);
    tell(self, failed ? LEVEL_ERROR : LEVEL_INFO, "A0408", failed ? "stopping: the run has failed" : line, line);
}

/* ---- processes ---- */

bool run_is_custom(const struct run *self, enum role role)
{
    const struct run_config *config = self->config;
    return (role == ROLE_ACTOR && config->actors.on && config->actors.command.count > 0) ||
           (role == ROLE_LEARNER && config->learners.on && config->learners.command.count > 0);
}

uint32_t run_running(const struct run *self, enum role role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++)
        n += self->members[i]->role == role && self->members[i]->process.running;
    return n;
}

uint32_t run_wanted(const struct run *self, enum role role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_members; i++)
        n += self->members[i]->role == role && self->members[i]->wanted;
    return n;
}

/* ---- time ---- */

double run_elapsed(const struct run *self)
{
    double before = self->options->before ? self->options->before->elapsed_s : 0.0;
    return before + (double)(clock_now(&self->clock) - self->start_ns) * 1e-9;
}

double run_time_left(const struct run *self)
{
    int64_t limit_ns = self->config->stop.time_ns;
    return limit_ns > 0 ? (double)limit_ns * 1e-9 - run_elapsed(self) : INFINITY;
}

/* The end: processes end within launch.grace, the last parameters are measured, and a broker with files writes its
 * last checkpoint. */
static double reserve(const struct run *self)
{
    double most = RESERVE_SHARE * (double)self->config->stop.time_ns * 1e-9;
    double needed = (double)self->config->launch.grace_ns * 1e-9;
    if (self->config->evaluator.episodes > 0 && isfinite(self->seen.value_seconds))
        needed += EVALUATIONS * self->seen.value_seconds;
    if (config_folder(&self->config->broker))
        needed += (double)self->seen.broker_bytes / WRITE_RATE;
    return needed < most ? needed : most;
}

bool run_had_time(const struct run *self)
{
    double leg_s = (double)(clock_now(&self->clock) - self->start_ns) * 1e-9;
    return run_time_left(self) + leg_s > reserve(self);
}

bool run_time_to_end(const struct run *self)
{
    return self->config->stop.time_ns > 0 && run_time_left(self) <= reserve(self);
}
