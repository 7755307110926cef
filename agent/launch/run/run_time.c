/* stop.time bounds a run up to the end of its last process. So the run stops a little earlier, and processes that are
 * left at stop.time are killed. A scheduler's time limit is announced by a signal, and ends the run whether it has saved or not. */
#include <math.h>
#include <signal.h>

#include "agent/launch/run/run_impl.h"

/* The largest share of stop.time that is kept for the end. */
#define RESERVE_SHARE 0.25
/* An evaluation is expected to take as long as the previous one. */
#define EVALUATIONS 1.5
/* Bytes per second at which a broker writes its last checkpoint to a slow disk. */
#define WRITE_RATE 100e6
/* Pause before options->limit acts again. */
#define LIMIT_PAUSE_NS (5 * NS_PER_S)

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
    if (self->config->evaluator.on && isfinite(self->seen.value_seconds))
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

void run_keep_time(struct run *self)
{
    uint32_t running = 0;
    if (self->out_of_time || run_time_left(self) > 0.0)
        return;
    self->out_of_time = true;
    for (enum role role = 0; role < ROLES; role++)
        running += run_running(self, role);
    if (running == 0)
        return;
    run_say(self, LEVEL_WARN, "A0420", "stop.time (%.6g s) has passed: %u process%s not ended, and %s killed",
            (double)self->config->stop.time_ns * 1e-9, running, running == 1 ? " has" : "es have",
            running == 1 ? "is" : "are");
    run_kill_all(self);
}

void run_heed_limit(struct run *self, int64_t now_ns)
{
    const struct run_limit *limit = self->options->limit;
    /* Whoever asks to stop after the warning wants the run to end. */
    if (!limit || self->outcome != RUN_STOPPED || self->options->interrupts->last != SIGUSR1)
        return;
    if (self->limit_ns == 0)
        self->limit_ns = now_ns + limit->after_ns;
    if (now_ns < self->limit_ns)
        return;
    run_say(self, LEVEL_WARN, "A0421", "the run still saves %.0f s after the warning of the time limit",
            (double)limit->after_ns * 1e-9);
    self->limit_ns = limit->act(limit->context) ? INT64_MAX : now_ns + LIMIT_PAUSE_NS;
}
