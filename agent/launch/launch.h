/* replay-launch: the command line, the verbs, the run itself (run.h), and how a run is shown. This folder owns main and the options, the
 * verbs, what comes before a run (prepare.h), the run from its first process to its report (report.h), the view in a terminal (view.h,
 * screen.h), the page in a browser (run_page.h) and the list of runs (runs.h). It may use all rooms below it: plan
 * (measurements, and how many processes), process (children, what they do, and the run's folder), host (other machines), slurm (jobs). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/config/config.h"
#include "agent/run/program.h" /* exit statuses */

#define LAUNCH_PROGRAM "replay-launch"

/* Options that only some verbs have. */
enum launch_option {
    LAUNCH_SET = 1,     /* --set, --seed */
    LAUNCH_FOLDER = 2,  /* --folder */
    LAUNCH_VIEW = 4,    /* --quiet, --json-lines, --log-json */
    LAUNCH_PLAN = 8,    /* --again */
    LAUNCH_RESIZE = 16, /* --no-resize */
    LAUNCH_RUN = 32,    /* --run */
    LAUNCH_FOLLOW = 64,
    LAUNCH_LINES = 128,
    LAUNCH_JSON = 256,
    LAUNCH_FORCE = 512,
    LAUNCH_EVAL = 1024,    /* --weights, --episodes, --show */
    LAUNCH_RUNS = 2048,    /* --html, --prune, --tables, --dry-run */
    LAUNCH_OPEN = 4096,    /* --http, --key-file */
    LAUNCH_METRICS = 8192, /* --openmetrics */
};

struct prepared;

struct launch {
    const struct launch_verb *verb;
    struct prepared *prepared; /* what a verb needs to begin a run; nothing of it is there yet (prepare.h) */
    const char *argument;      /* of the verb, or NULL */
    char *const *arguments;    /* all arguments, for a verb that takes several */
    uint32_t n_arguments;
    struct words overrides;
    const char *folder, *run, *weights, *episodes, *html, *http, *key_file;
    bool quiet, json_lines, json, again, no_resize, follow, force, show, prune, tables, dry_run, openmetrics;
    int exit;     /* status of the program after a verb that has printed all there is to say */
    bool submits; /* the verb submits the run, or checks whether it could: the configuration must suit the cluster */
    int64_t lines;
    int64_t keep;       /* number of the newest runs to keep, with --prune */
    char command[1024]; /* the whole command line, to be shown */
};

struct launch_verb {
    const char *name; /* "" is the verb of a command line that begins with a file */
    /* "CONFIG.yaml"; in brackets if it may be left out, with "..." at its end if it may be repeated; NULL: none */
    const char *argument;
    const char *summary;
    uint32_t options; /* launch_option bits */
    rp_status (*run)(struct launch *launch, rp_error *err);
};

/* Prints a mistake on the command line; returns the exit status. */
#define launch_usage(...) cli_usage(LAUNCH_PROGRAM, __VA_ARGS__)
/* The same in a verb, which returns it. */
#define launch_refuse(launch, ...) ((launch)->exit = launch_usage(__VA_ARGS__), RP_INVALID_ARGUMENT)
/* Prints the error; returns the exit status. */
int launch_fail(const rp_error *err);

/* verb_run.c */
rp_status launch_run(struct launch *launch, rp_error *err);
rp_status launch_resume(struct launch *launch, rp_error *err);
rp_status launch_core(struct launch *launch, rp_error *err);
rp_status launch_script(struct launch *launch, rp_error *err);
/* verbs.c */
rp_status launch_eval(struct launch *launch, rp_error *err);
rp_status launch_runs(struct launch *launch, rp_error *err);
rp_status launch_check(struct launch *launch, rp_error *err);
rp_status launch_plan(struct launch *launch, rp_error *err);
rp_status launch_status(struct launch *launch, rp_error *err);
rp_status launch_logs(struct launch *launch, rp_error *err);
rp_status launch_stop(struct launch *launch, rp_error *err);
rp_status launch_ask(struct launch *launch, rp_error *err);
rp_status launch_open(struct launch *launch, rp_error *err);
