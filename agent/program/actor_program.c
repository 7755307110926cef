/* An actor of a run, or its evaluator, as a program: replay-actor, and replaybus.actor in Python. */
#include "agent/program/program.h"
#include "agent/program/worker.h"
#include "proto/base/clock.h"

int actor_program(const char *name, const struct env_provider *provider, int argc, char **argv)
{
    struct program program = {
        .kind = PROGRAM_ACTOR,
        .name = name,
        .summary =
            "Acts in an environment and puts what it sees into a replay table, with the newest parameters of the "
            "learner.\nWith --evaluate it measures them instead. Without -c: CartPole-v1 with dqn.",
    };
    int exit_status = program_start(&program, argc, argv);
    if (exit_status < 0) {
        rp_error err = {0};
        const struct worker_options options = {
            .config = &program.run,
            .endpoint = program.service,
            .index = program.index,
            .stop = program_catch_signals(),
            .weights = program.weights,
            .show = program.show,
            .json = program.json,
            .resume = !program.fresh,
            .connect_ms = program.timeout_ns / NS_PER_MS,
            .provider = provider,
        };
        rp_status status = program.evaluate ? worker_evaluator(&options, &err) : worker_actor(&options, &err);
        exit_status = program_result(&program, status, &err);
    }
    program_end(&program);
    return exit_status;
}
