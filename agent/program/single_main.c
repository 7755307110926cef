/* replay-single: a whole run in one process. */
#include "agent/program/program.h"

int main(int argc, char **argv)
{
    return single_program("replay-single", NULL, argc, argv);
}
