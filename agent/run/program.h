/* replay-actor, replay-learner and replay-single: their command lines. The work of each process is in worker.h, a whole run in
 * one process in lockstep.h. */
#pragma once

#include "agent/config/config.h"
#include "agent/env/env.h"
#include "proto/config/cli.h"

enum program_kind { PROGRAM_ACTOR = 1, PROGRAM_LEARNER = 2, PROGRAM_SINGLE = 4 };
/* The same as replay-ctl's. */
enum program_exit { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_BROKER = 3 };

/* The environment variable with the folder of a run in one process, absolute; its environments may keep files there. */
#define PROGRAM_FOLDER "REPLAY_FOLDER"

struct program {
    enum program_kind kind;
    const char *name; /* "replay-actor" */
    /* ---- from the command line */
    const char *config, *endpoint, *endpoints_file, *weights;
    struct words overrides;
    uint32_t index;
    int64_t timeout_ns;
    int log_level; /* -1: the program's default */
    bool evaluate, resume, fresh, quiet, json, show, check, print, reference;
    bool episodes;
    /* ---- after program_start */
    struct run_config run;
    char *service; /* endpoint of the broker */
};

/* Reads options and configuration, and answers --help, --check and the like. -1: go on with the work; otherwise the
 * exit status. program_end must follow in any case. */
int program_start(struct program *self, int argc, char **argv);
void program_end(struct program *self);

/* The whole of a program; returns the exit status. provider: makes environments in Python; NULL: this program cannot run
 * them. */
int program_run(enum program_kind kind, const char *name, const struct env_provider *provider, int argc, char **argv);
