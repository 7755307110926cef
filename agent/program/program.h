/* What the command lines of replay-actor, replay-learner and replay-single share: one table of options for all three,
 * from which they are read and their help is printed. */
#ifndef AGENT_RUN_PROGRAM_H
#define AGENT_RUN_PROGRAM_H

#include <stdatomic.h>

#include "agent/config/config.h"
#include "proto/config/cli.h"

enum program_kind { PROGRAM_ACTOR = 1, PROGRAM_LEARNER = 2, PROGRAM_SINGLE = 4 };
/* The same as replay-ctl's. */
enum program_exit { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_BROKER = 3 };

struct program {
    enum program_kind kind;
    const char *name;    /* "replay-actor" */
    const char *summary; /* what it does, for --help */
    /* ---- from the command line */
    const char *config, *endpoint, *endpoints_file, *weights;
    struct cli_overrides overrides;
    uint32_t index;
    int64_t timeout_ns;
    int log_level; /* -1: the program's own */
    bool evaluate, resume, fresh, quiet, json, show, check, print, reference;
    bool episodes;
    /* ---- after program_start */
    struct run_config run;
    char *service; /* where the broker is */
};

/* Reads options and configuration and does what --help, --check and the like ask for. -1: go on with the work; otherwise
 * the exit status. program_end is due in any case. */
int program_start(struct program *self, int argc, char **argv);
void program_end(struct program *self);

/* Becomes true with the first SIGINT or SIGTERM; the second one ends the process at once. */
const atomic_bool *program_catch_signals(void);

/* Prints the error, and gives the exit status for it. RP_OK gives EXIT_FINE. */
int program_result(const struct program *self, rp_status status, const rp_error *err);

#endif
