#include "agent/program/program.h"

#include <czmq.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/flags.h"
#include "proto/base/log.h"

enum {
    OPT_SET = 256,
    OPT_SEED,
    OPT_FOLDER,
    OPT_FILE,
    OPT_INDEX,
    OPT_TIMEOUT,
    OPT_EVALUATE,
    OPT_WEIGHTS,
    OPT_EPISODES,
    OPT_SHOW,
    OPT_RESUME,
    OPT_FRESH,
    OPT_QUIET,
    OPT_JSON,
    OPT_CHECK,
    OPT_PRINT,
    OPT_REFERENCE,
    OPT_LEVEL,
    OPT_VERSION
};

#define WORKERS (PROGRAM_ACTOR | PROGRAM_LEARNER)
#define ALL (WORKERS | PROGRAM_SINGLE)

static const struct flag flags[] = {
    {'c', ALL, "config", "FILE", "the run (docs/CONFIG.md; configs/learning/ has examples)"},
    {OPT_SET, ALL, "set", "KEY=VALUE", "instead of what FILE says: agent.batch=64; may be repeated"},
    {OPT_SEED, ALL, "seed", "N", "the same as --set seed=N"},
    {OPT_FOLDER, ALL, "folder", "DIR", "the same as --set folder=DIR: logs and learner state"},
    {'e', WORKERS, "endpoint", "ENDPOINT", "service of the broker (or REPLAY_ENDPOINT; else broker.service of FILE)"},
    {OPT_FILE, WORKERS, "endpoints-file", "FILE", "read it from what replay-broker --endpoints-file wrote"},
    {OPT_INDEX, WORKERS, "index", "N", "which one this is, from 0 on"},
    {OPT_TIMEOUT, WORKERS, "timeout", "TIME", "how long to wait for the broker at first (30s)"},
    {OPT_EVALUATE, PROGRAM_ACTOR, "evaluate", NULL, "be the evaluator: act without exploring, insert nothing"},
    {OPT_WEIGHTS, PROGRAM_ACTOR, "weights", "FILE", "evaluate this saved learner once, without a broker"},
    {OPT_EPISODES, PROGRAM_ACTOR, "episodes", "N", "in an evaluation: the same as --set evaluator.episodes=N"},
    {OPT_SHOW, PROGRAM_ACTOR, "show", NULL, "with --weights: print the first episode step by step"},
    {OPT_RESUME, PROGRAM_LEARNER, "resume", NULL, "go on from the state in the folder; without one, refuse"},
    {OPT_FRESH, WORKERS, "fresh", NULL, "start anew, whatever is in the folder (else: go on if there is a state)"},
    {OPT_QUIET, PROGRAM_SINGLE, "quiet", NULL, "print the result only"},
    {OPT_JSON, PROGRAM_SINGLE | PROGRAM_ACTOR, "json", NULL, "print JSON, one object on a line"},
    {OPT_CHECK, ALL, "check", NULL, "read the configuration, report every mistake, start nothing"},
    {OPT_PRINT, ALL, "print-config", NULL, "print the whole configuration with defaults and help as YAML"},
    {OPT_REFERENCE, ALL, "print-reference", NULL, "print the reference of all keys as Markdown"},
    {OPT_LEVEL, ALL, "log-level", "LEVEL", "debug, info, warn, error or off"},
    {'h', ALL, "help", NULL, "this text"},
    {OPT_VERSION, ALL, "version", NULL, "the version"},
};
#define N_FLAGS (sizeof flags / sizeof flags[0])

/* ---- help and errors ---- */

static void print_help(const struct program *self)
{
    printf("Usage: %s [options]\n\n%s\n\n", self->name, self->summary);
    flags_print(flags, N_FLAGS, self->kind, 28);
    printf("\nSIGTERM and SIGINT stop it in order; a second one at once.\n"
           "Exit status: 0 done or stopped as asked, 1 failed, 2 the command line or the configuration is wrong%s.\n",
           self->kind & WORKERS ? ",\n3 no broker answers" : "");
}

int program_usage(const struct program *self, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s: ", self->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry '%s --help'.\n", self->name);
    return EXIT_USAGE;
}

int program_result(const struct program *self, rp_status status, const rp_error *err)
{
    if (status == RP_OK)
        return EXIT_FINE;
    bool silent = status == RP_UNAVAILABLE || status == RP_DEADLINE_EXCEEDED;
    if (silent && self->service)
        fprintf(stderr, "%s: no broker answers at %s: %s\n", self->name, self->service,
                err->text[0] ? err->text : rp_status_name(status));
    else
        fprintf(stderr, "%s: %s\n", self->name, err->text[0] ? err->text : rp_status_name(status));
    return silent ? EXIT_NO_BROKER : EXIT_FAILED;
}

/* ---- options ---- */

/* -1, or an exit status after a message. */
static int add_override(struct program *self, const char *key, const char *value)
{
    char *text = NULL;
    if (self->n_overrides == PROGRAM_MAX_OVERRIDES)
        return program_usage(self, "more than %d values are set", PROGRAM_MAX_OVERRIDES);
    if (asprintf(&text, "%s%s", key, value) < 0)
        return EXIT_FAILED;
    self->overrides[self->n_overrides++] = text;
    return -1;
}

static int read_index(struct program *self, const char *text)
{
    int64_t value;
    if (!schema_parse_int(text, &value) || value < 0 || value > UINT16_MAX)
        return program_usage(self, "--index is '%s'; it needs a whole number from 0 on", text);
    self->index = (uint32_t)value;
    return -1;
}

static int read_timeout(struct program *self, const char *text)
{
    if (!schema_parse_time(text, &self->timeout_ns) || self->timeout_ns < NS_PER_MS)
        return program_usage(self, "--timeout is '%s'; it needs a number with a unit, like 500ms or 3s", text);
    return -1;
}

static int read_option(struct program *self, int key, const char *argument)
{
    switch (key) {
    case 'c':
        self->config = argument;
        return -1;
    case 'e':
        self->endpoint = argument;
        return -1;
    case OPT_SET:
        return add_override(self, "", argument);
    case OPT_SEED:
        return add_override(self, "seed=", argument);
    case OPT_FOLDER:
        return add_override(self, "folder=", argument);
    case OPT_EPISODES:
        self->episodes = true;
        return add_override(self, "evaluator.episodes=", argument);
    case OPT_FILE:
        self->endpoints_file = argument;
        return -1;
    case OPT_WEIGHTS:
        self->weights = argument;
        return -1;
    case OPT_INDEX:
        return read_index(self, argument);
    case OPT_TIMEOUT:
        return read_timeout(self, argument);
    case OPT_LEVEL:
        self->log_level = log_level_by_name(argument);
        return self->log_level < 0
                   ? program_usage(self, "--log-level %s: use debug, info, warn, error or off", argument)
                   : -1;
    case 'h':
        print_help(self);
        return EXIT_FINE;
    case OPT_VERSION:
        printf("%s %s\n", self->name, rp_version());
        return EXIT_FINE;
    default:
        fprintf(stderr, "Try '%s --help'.\n", self->name);
        return EXIT_USAGE;
    }
}

/* Those that only say yes; NULL: another one. */
static bool *find_switch(struct program *self, int key)
{
    switch (key) {
    case OPT_EVALUATE:
        return &self->evaluate;
    case OPT_SHOW:
        return &self->show;
    case OPT_RESUME:
        return &self->resume;
    case OPT_FRESH:
        return &self->fresh;
    case OPT_QUIET:
        return &self->quiet;
    case OPT_JSON:
        return &self->json;
    case OPT_CHECK:
        return &self->check;
    case OPT_PRINT:
        return &self->print;
    case OPT_REFERENCE:
        return &self->reference;
    default:
        return NULL;
    }
}

static int read_line(struct program *self, int argc, char **argv)
{
    struct option names[N_FLAGS + 1];
    flags_names(flags, N_FLAGS, self->kind, names);
    self->log_level = -1;
    const char *letters = self->kind & WORKERS ? "c:e:h" : "c:h";
    for (int key; (key = getopt_long(argc, argv, letters, names, NULL)) != -1;) {
        bool *on = find_switch(self, key);
        int status = -1;
        if (on)
            *on = true;
        else
            status = read_option(self, key, optarg);
        if (status >= 0)
            return status;
    }
    if (optind < argc)
        return program_usage(self, "unexpected argument '%s'. Did you mean -c %s?", argv[optind], argv[optind]);
    if (self->endpoint && self->endpoints_file)
        return program_usage(self, "--endpoint and --endpoints-file exclude each other");
    if (self->resume && self->fresh)
        return program_usage(self, "--resume and --fresh exclude each other");
    self->evaluate |= self->weights != NULL;
    if (self->episodes && !self->evaluate)
        return program_usage(self, "--episodes belongs to --evaluate or --weights");
    if (self->kind == PROGRAM_ACTOR && (self->show || self->json) && !self->weights)
        return program_usage(self, "--%s belongs to --weights", self->show ? "show" : "json");
    return -1;
}

/* ---- configuration ---- */

static int read_config(struct program *self)
{
    struct schema_report *report = schema_report_new();
    bool ok = report && run_config_read(self->config, (const char *const *)self->overrides, &self->run, report);
    if (!ok && report) {
        fputs(schema_report_text(report), stderr);
        fprintf(stderr, "%s: %u mistake%s in the configuration; nothing was started\n", self->name,
                schema_report_count(report), schema_report_count(report) == 1 ? "" : "s");
    }
    schema_report_destroy(&report);
    return ok ? -1 : EXIT_USAGE;
}

/* What the configuration says about how many there are. */
static int check_index(const struct program *self)
{
    bool learner = self->kind == PROGRAM_LEARNER;
    if (learner && !self->run.learners.on)
        return program_usage(self, "learners.on is false: nobody learns in this run");
    if (self->kind == PROGRAM_ACTOR && !self->evaluate && !self->run.actors.on)
        return program_usage(self, "actors.on is false: nobody acts in this run");
    int64_t count = learner ? self->run.learners.count : self->run.actors.count;
    const char *key = learner ? "learners.count" : "actors.count";
    if (!(self->kind & WORKERS) || self->evaluate || self->index < count || (count == 0 && self->index == 0))
        return -1;
    if (count == 0)
        return program_usage(self, "--index is %u, but %s is auto: say --set %s=N", self->index, key, key);
    return program_usage(self, "--index is %u, but %s is %lld: they count from 0 to %lld", self->index, key,
                         (long long)count, (long long)count - 1);
}

/* Only replay-launch knows how many "auto" are; it tells the processes that it starts. */
static void settle_counts(struct run_config *run)
{
    if (run->actors.count == 0)
        run->actors.count = 1;
    if (run->learners.count == 0)
        run->learners.count = 1;
}

static int find_service(struct program *self)
{
    const char *environment = getenv("REPLAY_ENDPOINT");
    rp_error err = {0};
    if (!(self->kind & WORKERS) || self->weights)
        return -1;
    if (self->endpoints_file)
        return endpoint_from_file(self->endpoints_file, &self->service, &err) == RP_OK
                   ? -1
                   : program_usage(self, "%s", err.text);
    bool told = self->endpoint || (environment && environment[0]);
    self->service = endpoint_local(self->endpoint ? self->endpoint : told ? environment : self->run.broker.service);
    size_t length = self->service ? strlen(self->service) : 0;
    if (!told && length > 2 && strcmp(self->service + length - 2, ":0") == 0)
        return program_usage(self,
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
        printf("%s: no mistakes; %s with %s\n", self->config ? self->config : "(embedded)", self->run.environment.name,
               self->run.agent.algorithm);
        return EXIT_FINE;
    }
    settle_counts(&self->run);
    return find_service(self);
}

void program_end(struct program *self)
{
    for (uint32_t i = 0; i < self->n_overrides; i++)
        free(self->overrides[i]);
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

const atomic_bool *program_catch_signals(void)
{
    zsys_handler_set(NULL); /* an embedded broker's library would take them */
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return &stopping;
}
