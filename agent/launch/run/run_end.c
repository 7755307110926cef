/* After the last process has ended: measures the last parameters and writes the report. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/run/run_impl.h"
#include "agent/program/worker.h"
#include "proto/base/error.h"

#define MEASURE_MOST_NS (120 * NS_PER_S)

/* Waits for the measuring process to end; a request to stop shortens the wait. */
static int await_measured(struct run *self, struct process *process)
{
    int64_t end_ns = clock_now(&self->clock) + MEASURE_MOST_NS;
    int status = 0;
    while (!process_ended(process, &status)) {
        interrupts_wait(self->options->interrupts, RUN_TICK_MS);
        if (self->options->interrupts->asked > 0 || clock_now(&self->clock) > end_ns || run_time_left(self) <= 0.0)
            process_kill(process);
        run_hosts_tend(self, clock_now(&self->clock)); /* their connections stay open */
        run_look(self, clock_now(&self->clock));
    }
    return status;
}

/* Measures in a process of its own; NAN: that process printed no return. */
static double measure_weights(struct run *self, const char *weights)
{
    char log[FOLDER_SIZE + 32];
    rp_error err = {0};
    struct process process = {0};
    double value = NAN;
    unsigned long long episodes;
    char **argv = command_measure(&self->context, weights);
    run_folder_path(log, sizeof log, self->options->folder, "logs/measure.log");
    char **environment = command_environment(&self->context, ROLE_EVALUATOR, 0);
    const struct process_options options = {.name = "measure",
                                            .argv = (const char *const *)argv,
                                            .environment = (const char *const *)environment,
                                            .log = log,
                                            .guard = self->options->guard};
    if (argv && environment && process_start(&process, &options, clock_now(&self->clock), &err) == RP_OK &&
        await_measured(self, &process) == 0) {
        char tail[512];
        const char *found = strstr(process_tail(&process, tail, sizeof tail, 4), "mean return of ");
        if (!found || sscanf(found, "mean return of %llu episodes: %lf", &episodes, &value) != 2)
            value = NAN;
    }
    command_free(&argv);
    command_free(&environment);
    return value;
}

/* Measures the last parameters: those of the last evaluation may be older. */
static void measure_last(struct run *self)
{
    char weights[FOLDER_SIZE + 32];
    run_folder_path(weights, sizeof weights, self->options->folder, LEARNER_STATE_FILE);
    /* A user's own learner may save nothing. */
    if (!self->config->evaluator.on || self->outcome != RUN_DONE || self->interrupts_seen > 0 ||
        access(weights, R_OK) != 0)
        return;
    self->final.episodes = (uint64_t)self->config->evaluator.episodes;
    self->final_weights = LEARNER_STATE_FILE;
    if (self->n_values > 0 && self->seen.value_learner_steps == self->seen.learner_steps) {
        self->final.value = self->seen.value;
        return;
    }
    self->phase = PHASE_MEASURING;
    if (run_time_left(self) > 0.0)
        self->final.value = measure_weights(self, weights);
    if (isnan(self->final.value))
        run_say(self, LEVEL_WARN, "A0411", "the last parameters %s",
                self->options->interrupts->asked > 0 ? "were not measured: the run was asked to end"
                : run_time_left(self) <= 0.0         ? "were not measured: stop.time has passed"
                                                     : "could not be measured: see logs/measure.log");
}

/* The evaluator has ended: from here on the launcher may change best.weights. */
static void keep_if_best(struct run *self)
{
    char best[FOLDER_SIZE + 32], last[FOLDER_SIZE + 32];
    rp_error err = {0};
    self->final.environment_steps = self->seen.steps;
    self->final.learner_steps = self->seen.learner_steps;
    if (!best_replaces(&self->final, self->best_known ? &self->best_kept : NULL))
        return;
    run_folder_path(best, sizeof best, self->options->folder, BEST_WEIGHTS_FILE);
    run_folder_path(last, sizeof last, self->options->folder, LEARNER_STATE_FILE);
    if (best_write_from(best, last, &self->final, &err) == RP_OK) {
        self->best_kept = self->final;
        self->best_known = true;
    } else {
        run_say(self, LEVEL_ERROR, "A0419", "the parameters of the best evaluation could not be saved: %s", err.text);
    }
}

/* The result of the run: the return of the parameters that reached its goal, or else of the last ones. */
static void conclude(struct run *self)
{
    char path[FOLDER_SIZE + 32];
    rp_error err = {0};
    run_folder_path(path, sizeof path, self->options->folder, BEST_WEIGHTS_FILE);
    self->best_known = self->config->evaluator.on && best_read(path, &self->best_kept, &err) == RP_OK;
    if (self->reached && self->best_known && self->best_kept.value >= self->config->stop.value) {
        self->final = self->best_kept;
        self->final_weights = BEST_WEIGHTS_FILE;
        return;
    }
    if (self->reached)
        run_say(self, LEVEL_WARN, "A0418",
                "the parameters that reached stop.value were not saved (%.300s): see logs/evaluator-0.log", err.text);
    measure_last(self);
    keep_if_best(self);
}

void run_finish(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    struct status status;
    rp_error problem = {0};
    char metrics[FOLDER_SIZE + 32];
    conclude(self);
    static const enum phase phases[] = {
        [RUN_DONE] = PHASE_DONE, [RUN_STOPPED] = PHASE_STOPPED, [RUN_FAILED] = PHASE_FAILED};
    self->phase = phases[self->outcome];
    run_status(self, &status);
    run_save(self, &status);
    screen_show(*options->screen, &status);
    struct report report = {.last = &status,
                            .plan = options->plan,
                            .plan_input = options->plan_input,
                            .final_value = self->final.value,
                            .final_episodes = (uint32_t)self->final.episodes,
                            .final_weights = self->final_weights,
                            .best = self->best_known ? &self->best_kept : NULL,
                            .legs = options->before ? options->before->legs + 1 : 1,
                            .metrics = run_folder_path(metrics, sizeof metrics, options->folder, FOLDER_METRICS),
                            .command = options->command};
    report.n_stretches = run_stretches(self, report.stretches);
    if (report_write(&report, options->folder, &problem) != RP_OK)
        run_say(self, LEVEL_ERROR, "A0412", "the report could not be written: %s", problem.text);
    screen_destroy(options->screen);
    if (options->print_report)
        report_print(&report, options->folder, stdout);
    if (self->outcome == RUN_FAILED) {
        fflush(stdout);
        fprintf(stderr, "replay-launch: %s\n", self->cause);
        err_set(err, RP_INTERNAL, "%s", self->reason);
    }
}
