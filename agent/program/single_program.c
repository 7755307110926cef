/* A whole run in one process, the same every time for a configuration and a seed: replay-single, and replaybus.single in
 * Python. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agent/log/log.h"
#include "agent/log/log_file.h"
#include "agent/program/lockstep.h"
#include "agent/program/program.h"
#include "agent/program/worker.h"

#define REPORTS 50u        /* number of reports in a run whose length is known */
#define REPORT_STEPS 1000u /* steps between two reports in a run of unknown length */
#define MAX_SCALARS (AGENT_MAX_SCALARS + 4u)

struct single {
    const struct program *program;
    struct run_log *log;
    bool headed; /* the header of the table is printed */
};

/* JSON has no NaN. */
static void print_number(const char *name, double value)
{
    if (isfinite(value))
        printf("\"%s\": %.9g", name, value);
    else
        printf("\"%s\": null", name);
}

static void print_json(const struct lockstep_report *report)
{
    printf("{\"environment_steps\": %llu, \"learner_steps\": %llu, \"episodes\": %llu, ",
           (unsigned long long)report->steps, (unsigned long long)report->learner_steps,
           (unsigned long long)report->episodes);
    print_number("training_return", report->training);
    printf(", ");
    print_number("return", report->evaluation);
    printf(", \"seconds\": %.3f, \"fingerprint\": \"%08x\"}\n", report->seconds, report->fingerprint);
}

static const char *format_value(char *out, size_t size, double value)
{
    if (isfinite(value))
        snprintf(out, size, "%.2f", value);
    else
        snprintf(out, size, "-");
    return out;
}

static void print_row(struct single *self, const struct lockstep_report *report)
{
    char training[32], evaluation[32];
    if (!self->headed)
        printf("%10s %14s %9s %16s %11s %9s\n", "steps", "learner steps", "episodes", "training return", "evaluation",
               "seconds");
    self->headed = true;
    printf("%10llu %14llu %9llu %16s %11s %9.1f\n", (unsigned long long)report->steps,
           (unsigned long long)report->learner_steps, (unsigned long long)report->episodes,
           format_value(training, sizeof training, report->training),
           format_value(evaluation, sizeof evaluation, report->evaluation), report->seconds);
}

static void write_log(const struct single *self, const struct lockstep_report *report)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const struct run_log_at at = {.time_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec,
                                  .environment_steps = report->steps,
                                  .learner_steps = report->learner_steps};
    struct agent_scalar scalars[MAX_SCALARS];
    uint32_t n = 0;
    scalars[n++] = (struct agent_scalar){"episodes", (double)report->episodes};
    if (isfinite(report->training))
        scalars[n++] = (struct agent_scalar){"training_return", report->training};
    if (isfinite(report->evaluation))
        scalars[n++] = (struct agent_scalar){"return", report->evaluation};
    for (uint32_t i = 0; report->learner && i < report->learner->n_scalars; i++)
        scalars[n++] = report->learner->scalars[i];
    run_log_report(self->log, &at, scalars, n);
}

static void on_report(void *ctx, const struct lockstep_report *report)
{
    struct single *self = ctx;
    write_log(self, report);
    if (self->program->quiet)
        return;
    if (self->program->json)
        print_json(report);
    else
        print_row(self, report);
    fflush(stdout);
}

static void print_result(const struct program *program, const struct lockstep_result *result)
{
    const struct run_config *run = &program->run;
    if (program->json) {
        printf("{\"result\": true, \"stopped\": %s, \"environment\": \"%s\", \"algorithm\": \"%s\", \"seed\": %lld, ",
               result->stopped ? "true" : "false", env_name(&run->environment), run->agent.algorithm,
               (long long)run->seed);
        print_number("return", result->evaluation);
        printf(", \"environment_steps\": %llu, \"learner_steps\": %llu, \"episodes\": %llu, \"inserted\": %llu, "
               "\"seconds\": %.3f, \"fingerprint\": \"%08x\"}\n",
               (unsigned long long)result->steps, (unsigned long long)result->learner_steps,
               (unsigned long long)result->episodes, (unsigned long long)result->inserted, result->seconds,
               result->fingerprint);
        return;
    }
    char value[32];
    printf("%s%s with %s, seed %lld: return %s after %llu environment steps and %llu learner steps in %.1f s "
           "(fingerprint %08x)\n",
           result->stopped ? "stopped before the end: " : "", env_name(&run->environment), run->agent.algorithm,
           (long long)run->seed, format_value(value, sizeof value, result->evaluation),
           (unsigned long long)result->steps, (unsigned long long)result->learner_steps, result->seconds,
           result->fingerprint);
}

static int run(const struct program *program, const struct env_provider *provider)
{
    const struct run_config *config = &program->run;
    const struct run_log_options log = {.folder = config->folder,
                                        .process = "single",
                                        .csv = config->report.csv,
                                        .tensorboard = config->report.tensorboard};
    rp_error err = {0};
    struct single self = {.program = program, .log = run_log_new(&log, &err)};
    if (!self.log)
        return program_result(program, (rp_status)err.status, &err);
    struct log_file trial; /* fails now rather than after all the learning */
    char weights[512];
    snprintf(weights, sizeof weights, "%s/single.jsonl", config->folder);
    log_file_init(&trial);
    if (config->folder[0] && !log_file_open(&trial, weights, false)) {
        fprintf(stderr, "%s: folder %s cannot be written: %s\n", program->name, config->folder, strerror(errno));
        run_log_destroy(&self.log);
        return EXIT_FAILED;
    }
    log_file_fini(&trial);
    snprintf(weights, sizeof weights, "%s/" LEARNER_STATE_FILE, config->folder);
    int64_t end = config->actors.on ? config->stop.steps : config->stop.learner_steps;
    const struct lockstep_options options = {
        .config = config,
        .report_every = end >= REPORTS ? (uint64_t)end / REPORTS : REPORT_STEPS,
        .report = on_report,
        .ctx = &self,
        .stop = program_catch_signals(),
        .weights_file = config->folder[0] ? weights : NULL,
        .provider = provider,
    };
    struct lockstep_result result;
    rp_status status = lockstep_run(&options, &result, &err);
    if (status == RP_OK)
        print_result(program, &result);
    run_log_destroy(&self.log);
    if (status != RP_OK && atomic_load(options.stop)) /* an interruption by a signal is no failure */
        return EXIT_FINE;
    return program_result(program, status, &err);
}

int single_program(const char *name, const struct env_provider *provider, int argc, char **argv)
{
    struct program program = {
        .kind = PROGRAM_SINGLE,
        .name = name,
        .summary =
            "Runs broker, actors, learner and evaluator in one process, in turns, so that the outcome depends on "
            "the\nconfiguration and the seed alone. Without -c: dqn on CartPole-v1.",
    };
    int status = program_start(&program, argc, argv);
    if (status < 0)
        status = run(&program, provider);
    program_end(&program);
    return status;
}
