/* replay-actor, replay-learner and replay-single: their command lines, and what each does with the configuration. */
#include "agent/run/program.h"

#include <czmq.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/run/lockstep.h"
#include "agent/run/run_log.h"
#include "agent/run/worker.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/log.h"

#define WORKERS (PROGRAM_ACTOR | PROGRAM_LEARNER)
#define ALL (WORKERS | PROGRAM_SINGLE)

static int take_episodes(const struct cli *cli, const struct cli_option *option, const char *number, void *target)
{
    struct program *self = target;
    (void)option;
    self->episodes = true;
    return cli_override(cli, &self->overrides, "evaluator.episodes=", number);
}

#define AT(field) CLI_AT(struct program, field)
static const struct cli_option command_line[] = {
    {"config", 'c', "FILE", "the run (docs/CONFIG.md; configs/learning/ has examples)", ALL, CLI_TEXT, AT(config)},
    {"set", 0, "KEY=VALUE", "override a key of FILE: agent.batch=64; may be repeated", ALL, CLI_OVERRIDE,
     AT(overrides)},
    {"seed", 0, "N", "the same as --set seed=N", ALL, CLI_OVERRIDE, AT(overrides), .prefix = "seed="},
    {"folder", 0, "DIR", "the same as --set folder=DIR: logs and learner state", ALL, CLI_OVERRIDE, AT(overrides),
     .prefix = "folder="},
    {"endpoint", 'e', "ENDPOINT", "service of the broker (or REPLAY_ENDPOINT; else broker.service of FILE)", WORKERS,
     CLI_TEXT, AT(endpoint)},
    {"endpoints-file", 0, "FILE", "read it from what replay-broker --endpoints-file wrote", WORKERS, CLI_TEXT,
     AT(endpoints_file)},
    {"index", 0, "N", "which one this is, from 0 on", WORKERS, CLI_WHOLE, AT(index), .most = UINT16_MAX},
    {"timeout", 0, "TIME", "how long to wait for the broker at first (30s)", WORKERS, CLI_TIME, AT(timeout_ns),
     .least = NS_PER_MS},
    {"evaluate", 0, NULL, "be the evaluator: act without exploring, insert nothing", PROGRAM_ACTOR, CLI_SWITCH,
     AT(evaluate)},
    {"weights", 0, "FILE", "evaluate this saved learner once, without a broker", PROGRAM_ACTOR, CLI_TEXT, AT(weights)},
    {"episodes", 0, "N", "in an evaluation: the same as --set evaluator.episodes=N", PROGRAM_ACTOR, CLI_TAKE,
     .take = take_episodes},
    {"show", 0, NULL, "with --weights: draw the environment in the terminal", PROGRAM_ACTOR, CLI_SWITCH, AT(show)},
    {"resume", 0, NULL, "go on from the state in the folder; without one, refuse", PROGRAM_LEARNER, CLI_SWITCH,
     AT(resume)},
    {"fresh", 0, NULL, "start anew, whatever is in the folder (else: go on if there is a state)", WORKERS, CLI_SWITCH,
     AT(fresh)},
    {"quiet", 0, NULL, "print the result only", PROGRAM_SINGLE, CLI_SWITCH, AT(quiet)},
    {"json", 0, NULL, "print JSON, one object on a line", PROGRAM_SINGLE | PROGRAM_ACTOR, CLI_SWITCH, AT(json)},
    {"check", 0, NULL, "read the configuration, report every mistake, start nothing", ALL, CLI_SWITCH, AT(check)},
    {"print-config", 0, NULL, "print the whole configuration with defaults and help as YAML", ALL, CLI_SWITCH,
     AT(print)},
    {"print-reference", 0, NULL, "print the reference of all keys as Markdown", ALL, CLI_SWITCH, AT(reference)},
    {"log-level", 0, "LEVEL", "debug, info, warn, error or off", ALL, CLI_LEVEL, AT(log_level)},
    CLI_LOG_JSON(ALL),
    CLI_HELP_AND_VERSION(ALL),
};

static void print_help(const void *target);

static struct cli cli_of(const struct program *self)
{
    return (struct cli){.program = self->name,
                        .options = command_line,
                        .n = sizeof command_line / sizeof command_line[0],
                        .who = self->kind,
                        .width = 28,
                        .help = print_help};
}

/* ---- help and errors ---- */

static const char *summary_of(enum program_kind kind)
{
    if (kind == PROGRAM_ACTOR)
        return "Acts in an environment and puts what it sees into a replay table, with the newest parameters of the "
               "learner.\nWith --evaluate it measures them instead. Without -c: CartPole-v1 with dqn.";
    if (kind == PROGRAM_LEARNER)
        return "Samples a replay table, learns, writes priorities back and publishes parameters for the actors.\n"
               "Without -c: dqn for CartPole-v1.";
    return "Runs broker, actors, learner and evaluator in one process, in turns, so that the outcome depends on "
           "the\nconfiguration and the seed alone. Without -c: dqn on CartPole-v1.";
}

static void print_help(const void *target)
{
    const struct program *self = target;
    const struct cli cli = cli_of(self);
    printf("Usage: %s [options]\n\n%s\n\n", self->name, summary_of(self->kind));
    cli_print_options(&cli, self->kind);
    printf("\nSIGTERM and SIGINT stop it in order; a second one at once.\n"
           "Exit status: 0 finished or stopped as requested, 1 failed, 2 the command line or the configuration is "
           "wrong%s.\n",
           self->kind & WORKERS ? ",\n3 no broker answers" : "");
}

/* Prints the error and returns the exit status for it. RP_OK gives EXIT_FINE. */
static int program_result(const struct program *self, rp_status status, const rp_error *err)
{
    if (status == RP_OK)
        return EXIT_FINE;
    bool silent = status == RP_UNAVAILABLE || status == RP_DEADLINE_EXCEEDED;
    bool says_so = strncmp(err->text, "no broker answers", strlen("no broker answers")) == 0;
    if (silent && self->service && !says_so)
        fprintf(stderr, "%s: no broker answers at %s: %s\n", self->name, self->service,
                err->text[0] ? err->text : rp_status_name(status));
    else
        fprintf(stderr, "%s: %s\n", self->name, err->text[0] ? err->text : rp_status_name(status));
    return silent ? EXIT_NO_BROKER : EXIT_FAILED;
}

/* ---- options ---- */

static int read_line(struct program *self, int argc, char **argv)
{
    const struct cli cli = cli_of(self);
    self->log_level = -1;
    int status = cli_read(&cli, self, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage(self->name, "unexpected argument '%s'. Did you mean -c %s?", argv[optind], argv[optind]);
    if (self->endpoint && self->endpoints_file)
        return cli_usage(self->name, "--endpoint and --endpoints-file exclude each other");
    if (self->resume && self->fresh)
        return cli_usage(self->name, "--resume and --fresh exclude each other");
    self->evaluate |= self->weights != NULL;
    if (self->episodes && !self->evaluate)
        return cli_usage(self->name, "--episodes belongs to --evaluate or --weights");
    if (self->kind == PROGRAM_ACTOR && (self->show || self->json) && !self->weights)
        return cli_usage(self->name, "--%s belongs to --weights", self->show ? "show" : "json");
    return -1;
}

/* ---- configuration ---- */

static int read_config(struct program *self)
{
    struct schema_report *report = schema_report_new();
    bool ok = run_config_read(self->config, (const char *const *)self->overrides.list, &self->run, report);
    if (!ok) {
        fputs(schema_report_text(report), stderr);
        fprintf(stderr, "%s: %u mistake%s in the configuration; nothing was started\n", self->name,
                schema_report_count(report), schema_report_count(report) == 1 ? "" : "s");
    }
    schema_report_destroy(&report);
    return ok ? -1 : EXIT_USAGE;
}

/* Checks --index against the counts of the configuration. */
static int check_index(const struct program *self)
{
    bool learner = self->kind == PROGRAM_LEARNER;
    if (learner && self->run.learners.count == 0)
        return cli_usage(self->name, "learners.count is 0: this run has no learners");
    if (self->kind == PROGRAM_ACTOR && !self->evaluate && self->run.actors.count == 0)
        return cli_usage(self->name, "actors.count is 0: this run has no actors");
    int64_t count = learner ? self->run.learners.count : self->run.actors.count;
    const char *key = learner ? "learners.count" : "actors.count";
    if (!(self->kind & WORKERS) || self->evaluate || self->index < count || (count < 0 && self->index == 0))
        return -1;
    if (count < 0)
        return cli_usage(self->name, "--index is %u, but %s is auto: say --set %s=N", self->index, key, key);
    return cli_usage(self->name, "--index is %u, but %s is %lld: they count from 0 to %lld", self->index, key,
                     (long long)count, (long long)count - 1);
}

/* Only replay-launch decides what auto means, and passes the counts to the processes that it starts. */
static void settle_counts(struct run_config *run)
{
    if (run->actors.count < 0)
        run->actors.count = 1;
    if (run->learners.count < 0)
        run->learners.count = 1;
}

/* Listed shards, separated by commas: whichever of them runs knows the others. */
static char *join_shards(const struct broker_config *broker)
{
    char *out = NULL;
    size_t size = 0;
    FILE *text = open_memstream(&out, &size);
    for (uint32_t i = 0; i < config_shards(broker); i++)
        fprintf(text, "%s%s", i > 0 ? "," : "", config_shard_endpoint(broker, i));
    fclose(text);
    return out;
}

static int find_service(struct program *self)
{
    const char *environment = getenv("REPLAY_ENDPOINT");
    rp_error err = {0};
    if (!(self->kind & WORKERS) || self->weights)
        return -1;
    if (self->endpoints_file)
        return endpoints_from_file(self->endpoints_file, &self->service, &err) == RP_OK
                   ? -1
                   : cli_usage(self->name, "%s", err.text);
    bool told = self->endpoint || (environment && environment[0]);
    bool listed = !told && config_shard_endpoint(&self->run.broker, 0);
    self->service = listed ? join_shards(&self->run.broker)
                           : endpoint_local(self->endpoint ? self->endpoint
                                            : told         ? environment
                                                           : self->run.broker.service);
    size_t length = self->service ? strlen(self->service) : 0;
    if (!told && length > 2 && strcmp(self->service + length - 2, ":0") == 0)
        return cli_usage(self->name,
                         "broker.service is '%s', any free port: say with --endpoint or --endpoints-file which "
                         "one it is",
                         self->run.broker.service);
    return length > 0 ? -1 : EXIT_FAILED;
}

int program_start(struct program *self, int argc, char **argv)
{
    int status = read_line(self, argc, argv);
    if (status >= 0)
        return status;
    if (self->reference) {
        schema_print_reference(run_schema(), stdout);
        return EXIT_FINE;
    }
    int own = self->kind == PROGRAM_SINGLE ? LEVEL_WARN : LEVEL_INFO;
    log_set_level((enum log_level)(self->log_level >= 0 ? self->log_level : own));
    if ((status = read_config(self)) >= 0 || (status = check_index(self)) >= 0)
        return status;
    if (self->print) {
        schema_print(run_schema(), &self->run, stdout);
        return EXIT_FINE;
    }
    if (self->check) {
        printf("%s: no mistakes; %s with %s\n", self->config ? self->config : "(embedded)",
               env_name(&self->run.environment), self->run.agent.algorithm);
        return EXIT_FINE;
    }
    settle_counts(&self->run);
    return find_service(self);
}

void program_end(struct program *self)
{
    words_clear(&self->overrides);
    free(self->service);
    run_config_free(&self->run);
}

/* ---- signals ---- */

static atomic_bool stopping;

static void on_signal(int number)
{
    if (atomic_exchange(&stopping, true))
        _exit(128 + number);
}

/* Becomes true with the first SIGINT or SIGTERM; the second one ends the process at once. */
static const atomic_bool *program_catch_signals(void)
{
    zsys_handler_set(NULL); /* otherwise the library of an embedded broker would handle signals */
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return &stopping;
}

/* ---- actors, evaluators, learners ---- */

/* --resume without a saved state is a mistake, not a fresh start. */
static int check_state(const struct program *program)
{
    char path[512];
    const char *folder = program->run.folder;
    if (!program->resume)
        return -1;
    if (!folder[0])
        return cli_usage(program->name, "--resume needs the folder of the run: --folder DIR");
    snprintf(path, sizeof path, "%s/" LEARNER_STATE_FILE, folder);
    if (access(path, R_OK) == 0)
        return -1;
    return cli_usage(program->name, "--resume: there is no state at %s; leave --resume out to start from nothing",
                     path);
}

static int run_worker(const struct program *self, const struct env_provider *provider)
{
    rp_error err = {0};
    int exit_status = check_state(self);
    if (exit_status >= 0)
        return exit_status;
    const struct worker_options worker = {
        .config = &self->run,
        .endpoint = self->service,
        .index = self->index,
        .stop = program_catch_signals(),
        .weights = self->weights,
        .show = self->show,
        .json = self->json,
        .resume = !self->fresh,
        .connect_ms = self->timeout_ns / NS_PER_MS,
        .provider = provider,
    };
    rp_status status = self->kind == PROGRAM_LEARNER ? worker_learner(&worker, &err)
                       : self->evaluate              ? worker_evaluator(&worker, &err)
                                                     : worker_actor(&worker, &err);
    return program_result(self, status, &err);
}

/* ---- a whole run in one process, the same every time for a configuration and a seed ---- */

#define REPORTS 50u        /* number of reports in a run whose length is known */
#define REPORT_STEPS 1000u /* steps between two reports in a run of unknown length */
#define MAX_SCALARS (AGENT_MAX_SCALARS + 4u)

struct single {
    const struct program *program;
    struct run_log *log;
    bool headed; /* the header of the table is printed */
};

/* Adds where the run stands. */
static void add_report(struct json *out, const struct lockstep_report *report)
{
    char fingerprint[16];
    snprintf(fingerprint, sizeof fingerprint, "%08x", report->fingerprint);
    json_count(out, "environment_steps", report->steps);
    json_count(out, "learner_steps", report->learner_steps);
    json_count(out, "episodes", report->episodes);
    json_count(out, "inserted", report->inserted);
    json_real(out, "training_return", report->training);
    json_real(out, "return", report->evaluation);
    json_real(out, "seconds", report->seconds);
    json_text(out, "fingerprint", fingerprint);
}

static void print_json(struct json *out)
{
    json_close(out, '}');
    char *text = json_take(out);
    puts(text ? text : "");
    free(text);
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
    const struct run_log_at at = {
        .time_s = clock_unix_s(), .environment_steps = report->steps, .learner_steps = report->learner_steps};
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
    if (self->program->json) {
        struct json out = {0};
        json_open(&out, '{');
        add_report(&out, report);
        print_json(&out);
    } else {
        print_row(self, report);
    }
    fflush(stdout);
}

static void print_result(const struct program *program, const struct lockstep_report *result)
{
    const struct run_config *run = &program->run;
    if (program->json) {
        struct json out = {0};
        json_open(&out, '{');
        json_flag(&out, "result", true);
        json_flag(&out, "stopped", result->stopped);
        json_text(&out, "environment", env_name(&run->environment));
        json_text(&out, "algorithm", run->agent.algorithm);
        json_key(&out, "seed");
        json_signed(&out, run->seed);
        add_report(&out, result);
        print_json(&out);
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

static int run_single(const struct program *program, const struct env_provider *provider)
{
    const struct run_config *config = &program->run;
    rp_error err = {0};
    struct single self = {.program = program, .log = run_log_new(config->folder, "single")};
    if (!run_log_open(self.log)) { /* fails now rather than after all the learning */
        fprintf(stderr, "%s: folder %s cannot be written: %s\n", program->name, config->folder, strerror(errno));
        run_log_destroy(&self.log);
        return EXIT_FAILED;
    }
    char weights[512], real[PATH_MAX];
    snprintf(weights, sizeof weights, "%s/" LEARNER_STATE_FILE, config->folder);
    setenv(PROGRAM_FOLDER, config->folder[0] && realpath(config->folder, real) ? real : "", 1);
    int64_t end = config->actors.count != 0 ? config->stop.steps : config->stop.learner_steps;
    const struct lockstep_options lockstep = {
        .config = config,
        .report_every = end >= REPORTS ? (uint64_t)end / REPORTS : REPORT_STEPS,
        .report = on_report,
        .ctx = &self,
        .stop = program_catch_signals(),
        .weights_file = config->folder[0] ? weights : NULL,
        .provider = provider,
    };
    struct lockstep_report result;
    rp_status status = lockstep_run(&lockstep, &result, &err);
    if (status == RP_OK)
        print_result(program, &result);
    run_log_destroy(&self.log);
    if (status == RP_OK && result.lost)
        status = err_set(&err, RP_DATA_LOSS, "the last checkpoint in %s failed: what came after the one before is lost",
                         config->broker.folder);
    else if (status != RP_OK && atomic_load(lockstep.stop)) /* an interruption by a signal is no failure */
        return EXIT_FINE;
    return program_result(program, status, &err);
}

int program_run(enum program_kind kind, const char *name, const struct env_provider *provider, int argc, char **argv)
{
    struct program self = {.kind = kind, .name = name};
    int status = program_start(&self, argc, argv);
    if (status < 0)
        status = kind == PROGRAM_SINGLE ? run_single(&self, provider) : run_worker(&self, provider);
    program_end(&self);
    return status;
}
