/* replay-actor: an actor of a run, or its evaluator, in a process of its own. */
#include "agent/program/program.h"

int main(int argc, char **argv)
{
    return actor_program("replay-actor", NULL, argc, argv);
}
