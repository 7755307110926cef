/* replay-actor, replay-learner and replay-single: the build says which of them this is. */
#include "agent/run/program.h"

int main(int argc, char **argv)
{
    return program_run(RP_PROGRAM_KIND, RP_PROGRAM_NAME, NULL, argc, argv);
}
