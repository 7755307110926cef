/* replay-learner: a learner of a run in a process of its own. */
#include <stdio.h>
#include <unistd.h>

#include "agent/program/program.h"
#include "agent/program/worker.h"
#include "proto/base/clock.h"

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

int main(int argc, char **argv)
{
    struct program program = {
        .kind = PROGRAM_LEARNER,
        .name = "replay-learner",
        .summary = "Samples a replay table, learns, writes priorities back and publishes parameters for the actors.\n"
                   "Without -c: dqn for CartPole-v1.",
    };
    int exit_status = program_start(&program, argc, argv);
    if (exit_status < 0)
        exit_status = check_state(&program);
    if (exit_status < 0) {
        rp_error err = {0};
        const struct worker_options options = {
            .config = &program.run,
            .endpoint = program.service,
            .index = program.index,
            .stop = program_catch_signals(),
            .resume = !program.fresh,
            .connect_ms = program.timeout_ns / NS_PER_MS,
        };
        exit_status = program_result(&program, worker_learner(&options, &err), &err);
    }
    program_end(&program);
    return exit_status;
}
