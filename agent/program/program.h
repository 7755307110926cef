/* The program room: replay-actor, replay-learner and replay-single. It owns their command lines (this header), the
 * work of each process (worker.h), a whole run in one process (lockstep.h) and measurements of saved weights
 * (measure.h). It may use the broker (embedded in replay-single), the client library and the rooms below run. */
#ifndef AGENT_PROGRAM_PROGRAM_H
#define AGENT_PROGRAM_PROGRAM_H

#include <stdatomic.h>

#include "agent/config/config.h"
#include "agent/env/env_group.h"
#include "proto/config/cli.h"

enum program_kind { PROGRAM_ACTOR = 1, PROGRAM_LEARNER = 2, PROGRAM_SINGLE = 4 };
/* The same as replay-ctl's. */
enum program_exit { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_BROKER = 3 };

struct program {
    enum program_kind kind;
    const char *name;    /* "replay-actor" */
    const char *summary; /* summary for --help */
    /* ---- from the command line */
    const char *config, *endpoint, *endpoints_file, *weights;
    struct cli_overrides overrides;
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

/* The whole of replay-actor and of replay-single; return the exit status. provider: makes environments in Python; NULL:
 * this program cannot run them. (actor_program.c, single_program.c) */
int actor_program(const char *name, const struct env_provider *provider, int argc, char **argv);
int single_program(const char *name, const struct env_provider *provider, int argc, char **argv);

/* Becomes true with the first SIGINT or SIGTERM; the second one ends the process at once. */
const atomic_bool *program_catch_signals(void);

/* Prints the error and returns the exit status for it. RP_OK gives EXIT_FINE. */
int program_result(const struct program *self, rp_status status, const rp_error *err);

#endif
